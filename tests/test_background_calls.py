"""Compiling in the background, and the calls that leave the work: each takes what it takes in eager, and its work
begins when it is over."""

import asyncio
import os
import threading
import time

import pytest
import test_background
import torch

import jit
from jit import turns
from jit.frame import background, capture, dispatch

held, in_background, hits = test_background.held, test_background.in_background, test_background.hits

@pytest.fixture
def patient(monkeypatch):
    """Nothing begins because time has passed."""
    monkeypatch.setattr(turns, "PATIENCE_S", 1000.0)


@pytest.fixture
def begun(monkeypatch):
    """Set when anything is captured in the background."""
    event, run = threading.Event(), capture.Capture.run

    def running(self):
        if turns.here():
            event.set()
        return run(self)

    monkeypatch.setattr(capture.Capture, "run", running)
    return event


def test_the_first_call_is_over_before_anything_is_captured(patient, begun):
    seen = []

    def f(x):
        seen.append(begun.wait(0.2))
        return x * 2

    c = jit.compile(f)
    assert torch.equal(c(torch.ones(2)), torch.full((2,), 2.0))
    assert seen == [False] and begun.wait(60)
    assert jit.wait_for_compiles()


def test_waiting_has_the_work_begun_at_once(patient, begun):
    def f(x):
        if not hits(c) and not c.entries:
            assert jit.wait_for_compiles(60) and begun.is_set()  # in the middle of the call itself
        return x + 1

    c = jit.compile(f)
    assert torch.equal(c(torch.ones(2)), torch.full((2,), 2.0)) and begun.is_set()
    begun.clear()
    d = jit.compile(lambda x: x + 2)
    d(torch.ones(2))
    assert jit.wait_for_compiles() and begun.is_set()
    d(torch.ones(2))
    assert hits(d) == 1


def test_a_long_call_has_its_work_begun(monkeypatch, begun):
    monkeypatch.setattr(turns, "PATIENCE_S", 0.05)
    inner = jit.compile(lambda x: x * 3)

    def train(x):
        for _ in range(600):
            x = inner(x) / 3
            if hits(inner):
                return x
            time.sleep(0.05)
        return None

    assert torch.equal(jit.compile(train)(torch.ones(2)), torch.ones(2)) and begun.is_set()


def test_a_call_that_raises_is_over(patient, begun):
    def f(x):
        y = torch.sin(x)
        if x.shape[0] == 3:
            raise KeyError("three")
        return y

    c = jit.compile(f)
    with pytest.raises(KeyError, match="three"):
        c(torch.ones(3))
    assert begun.wait(60) and jit.wait_for_compiles()
    assert not turns._work.calls
    with pytest.raises(KeyError, match="three"):
        c(torch.ones(3))
    assert torch.equal(c(torch.ones(2)), torch.sin(torch.ones(2)))


def test_calls_inside_of_a_first_call_wait_for_its_end(patient, begun):
    inner, seen = jit.compile(lambda x: torch.cos(x)), []

    def outer(x):
        for _ in range(3):
            x = inner(x)
        seen.append(begun.wait(0.2))
        return x

    c, x = jit.compile(outer), torch.ones(2)
    want = torch.cos(torch.cos(torch.cos(x)))
    assert torch.equal(c(x), want) and seen == [False]
    assert begun.wait(60) and jit.wait_for_compiles()
    torch.testing.assert_close(c(x), want)
    assert hits(c) == 1 and len(inner.entries) == 1


def test_work_rests_during_first_calls_of_other_threads(patient, held):
    one = jit.compile(lambda x: x + 1, passes=[held])
    one(torch.ones(2))
    assert held.reached.wait(60)
    began, go = threading.Event(), threading.Event()

    def slow(x):
        began.set()
        assert go.wait(60)
        return x + 2

    two = jit.compile(slow)
    other = threading.Thread(target=two, args=(torch.ones(2),))
    other.start()
    assert began.wait(60)
    held.go.set()
    assert not done_within(0.3)  # what is at work rests, and the second one does not begin
    three = jit.compile(lambda x: x + 3)
    three(torch.ones(2))
    assert not done_within(0.2) and not one.entries and not three.entries
    go.set()
    other.join()
    for _ in range(1200):
        if not background.is_busy():
            break
        time.sleep(0.05)
    assert len(one.entries) == len(two.entries) == len(three.entries) == 1


def done_within(seconds):
    """Whether nothing is left to do by then, without waiting for it, which has the work hurry."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and background.is_busy():
        time.sleep(0.01)
    return not background.is_busy()


def test_what_the_call_changes_is_captured_as_later_calls_find_it():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen, self.norm = False, torch.nn.BatchNorm1d(3)

        def forward(self, x):
            if not self.seen:
                self.seen = True
                return self.norm(x) * 100
            return self.norm(x)

    torch.manual_seed(0)
    model, plain, x = Counter(), Counter(), torch.randn(4, 3)
    plain.load_state_dict(model.state_dict())
    c = jit.compile(model)
    for n in range(4):
        torch.testing.assert_close(c(x), plain(x))
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)
        assert model.norm.num_batches_tracked == n + 1
        jit.wait_for_compiles()
    assert hits(c) == 3  # the first call has found another way


def test_arguments_that_each_call_uses_up_are_compiled_in_the_call():
    def f(x, items):
        return x * items.pop() + len(items)

    c = jit.compile(f)
    for _ in range(background.ATTEMPTS + 3):
        assert torch.equal(c(torch.ones(2), [1, 2, 3]), torch.full((2,), 5.0))
        jit.wait_for_compiles()
    assert hits(c) > 0


def test_no_more_is_kept_alive_than_some_memory(held, monkeypatch):
    monkeypatch.setattr(background, "MOST_HELD", 5000)
    first, second = jit.compile(lambda x: x + 1, passes=[held]), jit.compile(lambda x: x + 2)
    assert first(torch.ones(2000)).sum() == 4000  # alone it may be as large as it is
    assert held.reached.wait(60)
    assert second(torch.ones(2000)).sum() == 6000 and second.on_miss.waiting.job is None
    second(torch.ones(2))
    assert second.on_miss.waiting.job is None
    held.go.set()
    jit.wait_for_compiles()
    second(torch.ones(2000))
    jit.wait_for_compiles()
    second(torch.ones(2000))
    assert hits(second) == 1


def test_a_fork_in_a_first_call(patient):
    def f(x):
        children.append(os.fork())
        return x + 1

    children, codes = [], []
    c = jit.compile(f)
    got = c(torch.ones(2))
    if children[0] == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            d = jit.compile(lambda x: x + 2)
            for _ in range(2):
                d(torch.ones(2))
                jit.wait_for_compiles(60)
            code = 0 if hits(d) == 1 and got[0] == 2 else 2
        finally:
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
    assert codes == [0]
    background.cancel()  # compiling it would fork, were it not left to the interpreter


def test_generators_and_coroutines():
    def series(x):
        for i in range(3):
            yield x * i

    async def later(x):
        await asyncio.sleep(0)
        return torch.sin(x)

    c, d, x = jit.compile(series), jit.compile(later), torch.ones(3)
    for _ in range(3):
        assert all(map(torch.equal, c(x), series(x)))
        torch.testing.assert_close(asyncio.run(d(x)), torch.sin(x))
        jit.wait_for_compiles()
    assert not turns._work.calls


def test_functions_reached_through_c_code():
    """Nobody tells the end of their frames: they are compiled after a while, or for whoever waits."""
    def f(x, items):
        jit.graph_break()
        return torch.stack(list(map(lambda k: torch.tanh(x * k), items)))

    c, x, before = jit.compile(f), torch.randn(3), dispatch.compile_count()
    for _ in range(5):
        torch.testing.assert_close(c(x, [1, 2]), torch.stack([torch.tanh(x), torch.tanh(x * 2)]))
        jit.wait_for_compiles()
    assert dispatch.compile_count() > before and not turns._work.calls


def test_without_another_thread_functions_are_compiled_in_the_call(monkeypatch):
    monkeypatch.setattr(background, "_queue", background.Queue())

    def refused(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        c = jit.compile(lambda x: x + 1)
        c(torch.ones(2))
        c(torch.ones(2))
    assert hits(c) == 1 and jit.wait_for_compiles()
