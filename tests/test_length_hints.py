"""``list`` and ``tuple``, and what Python makes of them, ask an object how long it may be."""

import pytest
import torch

import jit


class Sized:
    def __init__(self, log):
        self.log = log

    def __iter__(self):
        self.log.append("iter")
        return iter([3, 1, 2])

    def __len__(self):
        self.log.append("len")
        return 3


class Hinting(Sized):
    __len__ = None

    def __length_hint__(self):
        self.log.append("hint")
        return 3


class Unknown(Hinting):
    def __length_hint__(self):
        self.log.append("hint")
        return NotImplemented


class Text(Hinting):
    def __length_hint__(self):
        return "3"


class Raising(Sized):
    def __len__(self):
        raise ValueError("no length")


class Untyped(Sized):
    def __len__(self):
        self.log.append("len")
        raise TypeError


def given(*args):
    return args


USES = {"list": list, "tuple": tuple, "star": lambda o: [*o], "call": lambda o: given(*o),
        "call behind": lambda o: given(1, *o),
        "extend": lambda o: [].extend(o), "add": lambda o: [0].__iadd__(o), "sorted": sorted, "set": set, "max": max,
        "zip": lambda o: list(zip(o)), "loop": lambda o: [k for k in o], "dict": dict.fromkeys}


@pytest.mark.parametrize("cls", [Sized, Hinting, Unknown, Text, Raising, Untyped])
@pytest.mark.parametrize("use", USES)
def test_lengths_are_asked_for(use, cls):
    def fn(x):
        log = []
        try:
            found = USES[use](cls(log))
        except (TypeError, ValueError) as error:
            found = repr(error)
        return x + 1, log, found

    assert jit.compile(fn)(torch.ones(2))[1:] == fn(torch.ones(2))[1:]
