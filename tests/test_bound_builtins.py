"""Methods that are implemented in C, bound to objects whose own attribute of that name is another one, and kept beyond
a graph break; symbolic sizes of library calls without a type rule."""

import torch

import jit


class Doubling(list):
    def append(self, x):
        add = super().append
        print(end="")
        add(x * 2)


class Halved(dict):
    def __getitem__(self, key):
        get = super().__getitem__
        print(end="")
        return get(key) / 2


class Counted(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class Callable(metaclass=Counted):
    def __init__(self, x):
        print(end="")
        self.x = x

    def __call__(self, y):
        return self.x + y


def test_a_method_reached_through_super_beyond_a_break():
    def f(x):
        values, table = Doubling([x]), Halved(a=x)
        values.append(x)
        return values[1] + table["a"], list(values)

    x = torch.randn(3)
    ours, theirs = jit.compile(f)(x), f(x)
    assert torch.equal(ours[0], theirs[0]) and all(map(torch.equal, ours[1], theirs[1]))


def test_a_class_whose_metaclass_calls_its_super():
    def f(x):
        return Callable(x)(x) * 2

    x = torch.randn(3)
    assert torch.equal(jit.compile(f)(x), f(x))


def test_which_method_an_argument_is():
    def f(method, x):
        method(x)
        return x + 1

    compiled, ours, theirs = jit.compile(f), [], []
    for name in ("append", "extend", "append"):
        compiled(getattr(ours, name), torch.ones(2))
        f(getattr(theirs, name), torch.ones(2))
    assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))
