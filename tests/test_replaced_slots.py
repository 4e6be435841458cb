"""Objects that the program itself puts others in the place of, such as the state of a model: read anew from the first
capture on, which holds for all calls."""

import pytest
import torch
from torch import nn

import jit


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.state, self.steps = torch.zeros(3), 0

    def forward(self, x):
        self.state = self.state * 0.9 + x
        return self.state.sin()


class Buffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x):
        self.state = torch.lerp(self.state, x, 0.3)
        return x - self.state


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = (torch.zeros(3), torch.ones(3))

    def forward(self, x):
        h, c = self.hidden
        self.hidden = (h + x, c * x.cos())
        return self.hidden[0] * self.hidden[1]


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = torch.zeros(3)

    def forward(self, x):
        self.total = self.total + x
        jit.graph_break()
        self.total = self.total * 2
        return self.total + 1


@pytest.mark.parametrize("cls", [Attribute, Buffer, Broken, Pair])
def test_one_capture_for_all_calls(cls):
    ours, theirs = cls(), cls()
    compiled = jit.compile(ours)
    for i in range(6):
        x = torch.randn(3, generator=torch.Generator().manual_seed(i))
        torch.testing.assert_close(compiled(x), theirs(x))
    assert len(compiled.entries) == 1 if hasattr(compiled, "entries") else True
    for a, b in zip(vars(ours).values(), vars(theirs).values()):
        if isinstance(a, (torch.Tensor, tuple)):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cls", [Attribute, Buffer, Broken])
def test_nothing_is_compiled_again(cls):
    ours = cls()

    def step(x):
        return ours(x)

    compiled = jit.compile(step)
    compiled(torch.ones(3))
    before = jit.compile_count()
    for _ in range(4):
        compiled(torch.ones(3))
    assert jit.compile_count() == before


def test_what_is_there_may_differ():
    ours, theirs = Attribute(), Attribute()
    compiled = jit.compile(lambda x: ours(x))
    others = [torch.ones(3, dtype=torch.float64), torch.ones(3), torch.ones(()), torch.ones(2, 3)]
    for i, put in enumerate([None, *others]):
        if put is not None:
            ours.state, theirs.state = put, put.clone()
        torch.testing.assert_close(compiled(torch.full((3,), float(i))), theirs(torch.full((3,), float(i))))
        torch.testing.assert_close(ours.state, theirs.state)


def test_an_object_is_made_once():
    """A first call that puts something in the place of what there is, for good."""
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.ready = torch.arange(3.0), False

        def forward(self, x):
            if not self.ready:
                self.weight, self.ready = self.weight / self.weight.norm(), True
            return x * self.weight

    ours, theirs = Once(), Once()
    compiled = jit.compile(ours)
    for _ in range(4):
        torch.testing.assert_close(compiled(torch.ones(3)), theirs(torch.ones(3)))


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.rate, self.flag = 0, 1.0, 0

    def forward(self, x):
        self.calls += 1
        self.rate *= 0.5
        if self.flag == 0:
            self.flag = 3
        return x * self.calls + self.rate + (1 if self.calls == 4 else 0)


def test_numbers_that_the_program_changes():
    ours, theirs = Counted(), Counted()
    compiled = jit.compile(ours)
    counts = []
    for _ in range(8):
        torch.testing.assert_close(compiled(torch.ones(3)), theirs(torch.ones(3)))
        assert (ours.calls, ours.rate, ours.flag) == (theirs.calls, theirs.rate, theirs.flag)
        counts.append(jit.compile_count())
    # What goes on where the flag is set, and where it is the fourth call, are programs of their own.
    assert counts[-1] - counts[0] <= 2


def test_a_counter_is_no_fact():
    class Calls:
        n = 0

    calls = Calls()
    calls.n = 0

    def step(x):
        calls.n += 1
        return x + calls.n

    compiled = jit.compile(step)
    compiled(torch.ones(3))
    before = jit.compile_count()
    for k in range(2, 6):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 1.0 + k)) and calls.n == k
    assert jit.compile_count() == before
