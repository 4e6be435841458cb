"""Every operator between every two kinds of operands: values, types and errors as CPython's protocols give them."""

import collections
import copy
import datetime
import enum
import fractions
import operator
import os
import re

import numpy as np
import pytest
import torch

import jit

BINARY = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
          operator.matmul, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor, divmod)
INPLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
           operator.ipow, operator.imatmul, operator.ilshift, operator.irshift, operator.iand, operator.ior,
           operator.ixor)
COMPARE = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
OTHERS = (operator.is_, operator.contains, operator.concat)


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


def outcomes(a, b, operators):
    found = []
    for op in operators:
        try:
            found.append(op(a, b))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def in_place(pairs, operators):
    found = []
    for (a, b), op in zip(pairs, operators):
        try:
            found.append((op(a, b), a, b))
        except Exception as error:
            found.append((type(error), str(error), a, b))
    return found


def shown(value):
    """A value in a form that can be compared: its type, what it holds, no addresses."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, tuple(value.shape), value.tolist()
    if isinstance(value, (Plain, Asked, Index)):
        return type(value)
    if isinstance(value, dict):
        return type(value), [(shown(k), shown(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), list(map(shown, value))
    text = re.sub(r"0x\w+", "0x", repr(value))
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


@pytest.mark.parametrize("left", OPERANDS)
def test_operators(left):
    """Each kind on the left of every third other one; ``EVERY=1`` in the environment: of all."""
    rows = list(OPERANDS)
    rights = rows if os.environ.get("EVERY") else rows[rows.index(left) % 3::3]
    found = []
    for right in rights:
        def operands():
            return fresh(OPERANDS[left]), fresh(OPERANDS[right])

        found += [(left, right, row) for row in differences(outcomes, BINARY + COMPARE + OTHERS, operands)]
        found += [(left, right, row) for row in differences(
            in_place, INPLACE, lambda: ([operands() for _ in INPLACE],))]
    assert not found, "\n".join(map(str, found[:20]))


def test_the_right_operand_of_a_subclass_goes_first_where_it_overrides():
    def run(a, b, x):
        return a + b, x + 1

    for left, right in ((Asked, Inherits), (Asked, Overrides), (Inherits, Overrides), (Overrides, Asked)):
        jit.reset()
        assert jit.compile(run, fullgraph=True)(left(), right(), torch.ones(2))[0] == left() + right()


def test_symbolic_integers_compare_with_any_number():
    def run(x):
        n = x.shape[0]
        return (x + 1, n == 2.5, n == 3 + 0j, n < fractions.Fraction(7, 2), n == None, n != "3",
                n == (3,),  # noqa: E711
                divmod(n, 2), divmod(7, n), n in (1, 3, 5), [1, 2] * n, "ab" * n)

    compiled = jit.compile(run)
    for size in (3, 4, 5, 2, 3):
        want, got = run(torch.ones(size)), compiled(torch.ones(size))
        assert want[1:] == got[1:], size


def test_numpy_integers_are_indices():
    def run(x, i):
        return [5, 6, 7][i], x[i], (1, 2, 3)[i:], x == i

    x, i = torch.arange(3), np.int64(1)
    want, got = run(x, i), jit.compile(run)(x, i)
    assert shown(want) == shown(got)
