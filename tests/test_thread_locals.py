"""Objects of ``threading.local`` in compiled functions: what each thread reads and writes is its own, as in eager."""

import threading

import pytest
import torch

import jit

ONES = torch.ones(3)


class Counted(threading.local):
    step = 1

    def __init__(self):
        self.calls, self.scale = 0, 2.0


STATE, PLAIN = Counted(), threading.local()


def counts(x):
    STATE.calls += 1
    if not hasattr(STATE, "seen"):
        STATE.seen = []
    STATE.seen.append(len(STATE.seen))
    return x * STATE.calls + STATE.step


def switched(x):
    before = getattr(PLAIN, "on", False)
    PLAIN.on = not before
    return x + 1 if before else x - 1


def holds_a_tensor(x):
    PLAIN.last = getattr(PLAIN, "last", x) * 2
    return PLAIN.last + x


def forgets(x):
    PLAIN.gone = 3
    y = x * PLAIN.gone
    del PLAIN.gone
    return y if not hasattr(PLAIN, "gone") else x


def put_back(x):
    before = STATE.scale
    STATE.scale = 5.0
    try:
        return x * STATE.scale
    finally:
        STATE.scale = before


def elsewhere(call):
    out = []
    thread = threading.Thread(target=lambda: out.append(call()))
    thread.start()
    thread.join()
    return out[0]


def state():
    return ({k: list(v) if isinstance(v, list) else v for k, v in vars(STATE).items()},
            {k: v for k, v in vars(PLAIN).items() if k != "last"})


def run(fn):
    """Results and what the objects hold, call by call, in this thread and in new ones."""
    out = []
    for _ in range(3):
        out += [fn(ONES), state(), elsewhere(lambda: (fn(ONES), fn(ONES * 2), state()))]
    return out


@pytest.mark.parametrize("fn", [counts, switched, holds_a_tensor, forgets, put_back])
def test_each_thread_has_its_own(fn):
    def clean():
        vars(STATE).clear()
        STATE.calls, STATE.scale = 0, 2.0
        vars(PLAIN).clear()

    clean()
    want = run(fn)
    clean()
    got = run(jit.compile(fn))
    torch.testing.assert_close(got, want)
    clean()
    assert jit.explain(jit.compile(fn))(ONES).graph_break_count == 0


def test_a_number_of_one_thread_says_nothing_of_another():
    compiled = jit.compile(lambda x: x * STATE.scale)
    STATE.scale = 3.0
    for _ in range(3):
        assert torch.equal(compiled(ONES), ONES * 3)
        assert torch.equal(elsewhere(lambda: compiled(ONES)), ONES * 2)


def test_no_attribute():
    with pytest.raises(AttributeError, match="nothing"):
        jit.compile(lambda x: x * PLAIN.nothing)(ONES)
    with pytest.raises(AttributeError):
        jit.compile(lambda x: x * STATE.nothing)(ONES)


def test_its_dictionary_is_a_break():
    compiled = jit.compile(lambda x: x * vars(STATE)["scale"])
    assert torch.equal(compiled(ONES), ONES * STATE.scale)
