"""Values of every kind that programs compute with, and what a program gives for them, in eager and compiled."""

import collections
import copy
import datetime
import enum
import fractions
import itertools
import re

import numpy as np
import torch

import jit


class Plain:
    pass


class Asked:
    """Says who was asked."""

    def __add__(self, other):
        return ("add", type(other).__name__)

    def __radd__(self, other):
        return ("radd", type(other).__name__)

    def __imul__(self, other):
        return ("imul", type(other).__name__)

    def __rmul__(self, other):
        return NotImplemented

    def __eq__(self, other):
        return type(other).__name__ if not isinstance(other, Asked) else NotImplemented

    def __lt__(self, other):
        return ("lt", type(other).__name__)

    __hash__ = None

    def __contains__(self, item):
        return isinstance(item, int)


class Inherits(Asked):
    pass


class Overrides(Asked):
    def __radd__(self, other):
        return ("own radd", type(other).__name__)


class Index:
    def __index__(self):
        return 2


class OwnList(list):
    def __add__(self, other):
        return "own add"

    def __eq__(self, other):
        return NotImplemented

    __hash__ = None


class OwnSet(set):
    pass


class OwnInt(int):
    pass


class Color(enum.IntEnum):
    RED = 2


class Mode(enum.Flag):
    A = 1
    B = 2


OPERANDS = {
    "int": lambda: 3, "negative": lambda: -2, "bool": lambda: True, "float": lambda: 2.5, "complex": lambda: 2j,
    "text": lambda: "a%s", "bytes": lambda: b"ab", "none": lambda: None, "range": lambda: range(3),
    "list": lambda: [1, 2], "longer list": lambda: [1, 2, 3], "tuple": lambda: (1, 2), "empty tuple": lambda: (),
    "dict": lambda: {1: 2}, "ordered": lambda: collections.OrderedDict([(1, 2), (3, 4)]),
    "other order": lambda: collections.OrderedDict([(3, 4), (1, 2)]), "set": lambda: {1, 2},
    "frozenset": lambda: frozenset((2, 3)), "keys": lambda: {1: 2, 5: 6}.keys(), "items": lambda: {1: 2}.items(),
    "values": lambda: {1: 2}.values(), "deque": lambda: collections.deque([1, 2], maxlen=3),
    "bytearray": lambda: bytearray(b"ab"), "size": lambda: torch.Size([1, 2]), "slice": lambda: slice(1, 2),
    "class": lambda: int, "dtype": lambda: torch.int64, "function": lambda: len, "plain": Plain, "asked": Asked,
    "inherits": Inherits, "overrides": Overrides, "index": Index, "own list": lambda: OwnList([1, 2]),
    "own set": lambda: OwnSet([2]), "own int": lambda: OwnInt(4), "int enum": lambda: Color.RED, "flag": lambda: Mode.A,
    "numpy": lambda: np.int64(3), "fraction": lambda: fractions.Fraction(1, 2),
    "timedelta": lambda: datetime.timedelta(1), "tensor": lambda: torch.tensor([1, 2]),
    "scalar tensor": lambda: torch.tensor(2),
}


OWN = ("kinds_harness", "test_frame_operator_kinds", "test_frame_builtin_kinds")


def shown(value):
    """A value in a form that can be compared: its type, what it holds, no addresses."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, tuple(value.shape), value.tolist()
    if type(value) is slice:
        return slice, shown([value.start, value.stop, value.step])
    if hasattr(type(value), "__next__"):
        return type(value), [shown(v) for v in itertools.islice(value, 20)]
    if isinstance(value, dict):
        return type(value), [(shown(k), shown(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(str, map(shown, value)))
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), list(map(shown, value))
    if type(value).__module__ in OWN:
        return type(value)
    text = re.sub(r"0x\w+|grad_fn=<\w+>", "", repr(value))  # addresses, and which operations made a gradient
    return type(value), text.replace("numpy.int64", "int")  # PyTorch's errors name what the program has given


VIEWS = (type({}.keys()), type({}.items()), type({}.values()))


def fresh(make):
    value = make()
    return value if isinstance(value, VIEWS) else copy.deepcopy(value)


def differences(run, operators, operands):
    """What ``run(*operands(), operators)`` gives in another way compiled, on the first call and on the second."""
    jit.reset()
    compiled, found = jit.compile(run), []
    for call in range(2):
        ours, theirs = operands(), operands()
        want, got = run(*theirs, operators), compiled(*ours, operators)
        for op, x, y in zip(operators, want, got, strict=True):
            if shown(x) != shown(y):
                found.append(f"call {call}: {op.__name__}: {shown(x)} in eager, {shown(y)} compiled")
        if shown(ours) != shown(theirs):
            found.append(f"call {call}: left as {shown(theirs)} in eager, {shown(ours)} compiled")
    return found
