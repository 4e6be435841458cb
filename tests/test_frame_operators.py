"""Which object is asked to carry out an operator or a conversion, in which order, and what comparisons of objects made
in C give."""

import bisect
import collections
import datetime
import decimal
import heapq
import math

import pytest
import torch
from frame_harness import Cases, sequence

import jit

cases = Cases()
VECTOR = torch.arange(3.0)
Pair = collections.namedtuple("Pair", "left right")


class NoNumber:
    def __int__(self):
        return None


@cases([], fullgraph=False, raises=True)
def int_of_what_is_none(log):
    return int(NoNumber())


class Number:
    def __init__(self, n):
        self.n = n

    def __int__(self):
        return self.n


@cases(True, fullgraph=False)
def int_of_an_object_that_gives_a_bool(flag):
    return int(Number(flag)), int(Number(3))


@cases(None, VECTOR, fullgraph=False, raises=True)
def in_place_operator_of_something_else_and_a_tensor(n, x):
    n *= x


class Halves:
    def __divmod__(self, other):
        return "divmod", other

    def __rdivmod__(self, other):
        return "rdivmod", other


@cases(VECTOR)
def divmod_of_objects(x):
    return divmod(Halves(), 2), divmod(2, Halves()), divmod(7, 2), x


@cases(VECTOR, (1, 2), Pair(1, 2), fullgraph=False)
def a_class_of_tuples_is_asked_first(x, t, p):
    log = [t == p, p == t, t != Pair(1, 3), (0, 5) < p, (0, 5) >= p]
    for compare in (lambda: ("", "") < p, lambda: ("", "") <= p, lambda: p < ("", ""), lambda: p > ("", "")):
        try:
            log.append(compare())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


class Letters:
    def __radd__(self, other):
        return ("radd", other)

    def __iter__(self):
        return iter("xy")


@cases(VECTOR, Letters(), [1], {3: 4}, {5}, torch.tensor(2.0), Pair(1, 2), fullgraph=False)
def who_is_asked_first(x, number, v, d, s, y, p):
    log, w = [v + number, (1,) + number], v
    w += number
    for wrong in (lambda: bisect.bisect(d, 1), lambda: bisect.bisect(x, 1), lambda: heapq.heappush(None, 1),
                  lambda: s.pop(1, 2), lambda: torch.full((3,), x), lambda: [a for a, b in [y]],
                  lambda: [a for a, *b in [y]], lambda: torch.cat([p, x]), lambda: torch.stack([x, p]),
                  lambda: heapq.heappop([2, 1]), lambda: bisect.bisect((1, 2, 3), 2)):
        try:
            log.append(wrong())
        except (TypeError, AttributeError) as error:
            log.append(str(error))
    return x + 1, log, w


test_programs = cases.test()


@pytest.mark.parametrize("a, b", [(datetime.date(2020, 1, 1), datetime.date(2020, 1, 1)),
                                  (datetime.date(2020, 1, 1), datetime.timedelta(1)), (decimal.Decimal(1), 1),
                                  ({1: 2}.items(), {1: 2}.items()), ({1: 2}.keys(), {1}), (bytearray(b"a"), b"a"),
                                  (memoryview(b"a"), b"a"), (decimal.Decimal(2), [1])], ids=lambda v: type(v).__name__)
def test_comparisons_in_c(a, b):
    def f(x, a, b):
        log = []
        for compare in (lambda: a == b, lambda: a != b, lambda: a < b, lambda: a >= b, lambda: b > a, lambda: a in [b],
                        lambda: [b].index(a)):
            try:
                log.append(compare())
            except (TypeError, ValueError) as error:
                log.append(str(error))
        return x + 1, log

    jit.reset()
    compiled = jit.compile(f, backend="eager")
    for _ in range(2):
        want, got = f(VECTOR, a, b), compiled(VECTOR, a, b)
        assert torch.equal(want[0], got[0]) and want[1] == got[1]


class Real:
    def __float__(self):
        return 2.5


class Index:
    def __index__(self):
        return 3


class Floored:
    def __floor__(self):
        return "floor"

    def __trunc__(self):
        return 1


@pytest.mark.parametrize("number", [Real(), Index(), Floored(), Floored, object(), 2.5],
                         ids=lambda v: getattr(v, "__name__", type(v).__name__))
def test_rounding_of_objects(number):
    def make():
        def f(x, number):
            log = []
            for fn in (math.floor, math.ceil, math.trunc):
                try:
                    log.append(fn(number))
                except TypeError as error:
                    log.append(str(error))
            return x + 1, log

        return f

    sequence(make, [(VECTOR, number)])
