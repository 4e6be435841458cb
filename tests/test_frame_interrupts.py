"""A KeyboardInterrupt while a function is captured or compiled leaves nothing behind: the next call compiles."""

import pytest
import torch
from frame_harness import compiled, same

import jit
from jit.frame.executor import Frame
from jit.runtime import native

ONES = torch.ones(3)


def test_keyboard_interrupt_while_capturing(monkeypatch):
    """Interrupted at any point of the capture, nothing is left of it: the next call compiles."""
    def f(x, held):
        with torch.no_grad():
            held.append(x + 1)
            y = torch.sin(x) * 2
        print(end="")
        return y + len(held)

    push, count = Frame.push, [0]

    def interrupted(frame, value):
        count[0] -= 1
        if count[0] == 0:
            raise KeyboardInterrupt
        push(frame, value)

    for at in (1, 3, 7, 12, 20, 30):
        c = compiled(f)
        monkeypatch.setattr(Frame, "push", interrupted)
        count[0], held = at, []
        try:
            c(ONES, held)
        except KeyboardInterrupt:
            assert len(held) < 2
        monkeypatch.setattr(Frame, "push", push)
        assert (not native().is_capturing() and torch.is_grad_enabled()
                and native().frame_hook_status() in ("ready", "not built"))
        for _ in range(2):
            same(f(ONES, []), c(ONES, []))
        assert len(c.entries) == 1 and c.entries[0].hits >= 1


def test_keyboard_interrupt_in_the_backend():
    calls = []

    def backend(graph, examples):
        calls.append(graph)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return lambda *tensors: (tensors[0] * 2,)

    c = jit.compile(lambda x: x * 2, backend=backend)
    with pytest.raises(KeyboardInterrupt):
        c(ONES)
    assert not native().is_capturing()
    assert torch.equal(c(ONES), ONES * 2) and torch.equal(c(ONES), ONES * 2) and len(calls) == 2 and len(c.entries) == 1
