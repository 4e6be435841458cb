"""Exceptions of Python's own operations: types, texts and contexts are eager's, and what was being handled stays what
it was."""

import bisect
import collections
import copy
import enum
import functools
import itertools
import operator
import sys
import types

import pytest
import torch
from frame_harness import Cases, compiled, observe, said, same, sequence

import jit

cases = Cases()
VECTOR = torch.arange(3.0)
ONES = torch.ones(3)


@cases([], fullgraph=False, raises=True)
def iterating_over_a_class(log):
    try:
        for _ in range:
            pass
    finally:
        log.append(1)


@cases({3}, fullgraph=False, raises=True)
def subscript_of_a_set(s):
    return s[0]


@cases(VECTOR, fullgraph=False)
def wrong_arguments_of_builtins(x):
    said = []
    for call in (lambda: abs(), lambda: functools.partial(), lambda: functools.partial(3), lambda: [].pop(1, 2),
                 lambda: len(1, 2), lambda: [1].sort(reverse=set)):
        try:
            call()
        except TypeError as error:
            said.append(str(error))
    return said, x + 1


@cases(VECTOR, torch.tensor([0, 7]), [], fullgraph=False)
def an_error_while_the_graph_runs_is_handled(x, i, log):
    log.append("before")
    try:
        return x[i] * 2
    except IndexError as error:
        log.append(str(error))
        return error.__context__


@cases(VECTOR, [], fullgraph=False, raises=True)
def an_error_while_the_graph_runs_escapes(x, log):
    log.append("before")
    return torch.relu(x > 1)


@cases(VECTOR, fullgraph=False)
def texts_of_type_errors(x):
    said = []

    def inplace(a):
        a *= 2

    def enter(a):
        with a:
            pass

    for call in (lambda: inplace(None), lambda: enter(1), lambda: enter(x), lambda: itertools.count(None),
                 lambda: copy.copy(), lambda: divmod(abs, 2), lambda: functools.reduce(abs, 3)):
        try:
            call()
        except TypeError as error:
            said.append(str(error))
    return said


class Cooperative:
    def __init__(self, n, **kw):
        super().__init__(**kw)
        self.n = n


@cases(VECTOR)
def arguments_that_object_refuses(x):
    return (said(lambda: Cooperative(1, m=2)), said(lambda: Cooperative(1).n),
            said(lambda: object.__init__(Cooperative(1), 2)), x)


class Plain:
    pass


@cases([1, 2], {}, collections.defaultdict(int), fullgraph=False)
def texts_of_errors_of_containers_and_operators(v, d, e):
    def unpack(value):
        a, *b = value
        return b

    def put(index, value):
        v[index] = value

    return [said(call) for call in (
        lambda: unpack(None), lambda: put(slice(None, None, 2), None), lambda: put(slice(0, 1), 5), lambda: e.popitem(),
        lambda: d.popitem(), lambda: collections.OrderedDict().popitem(),
        lambda: d.pop([], 3), lambda: {"a": 1}.pop([], 3), lambda: max(), lambda: d.items <= d.items(),
        lambda: d.items() <= 3, lambda: torch.maximum(True, torch.ones(2)), lambda: "a" + Plain(),
        lambda: [1] + Plain(), lambda: (1,) + Plain(), lambda: Plain() + "a", lambda: operator.ior({}, "ab"),
        lambda: torch.nn.functional.pad(torch.ones(3), (1, 0.5)), lambda: len(reversed(v)), lambda: len(iter(v)),
        lambda: len(iter((1, 2))), lambda: abs(reversed((1, 2))), lambda: repr(types.SimpleNamespace()),
        lambda: repr(types.SimpleNamespace(a=1)), lambda: v[torch.tensor(1)], lambda: v[torch.ones(2)],
        lambda: v[: torch.tensor(1)], lambda: v[torch.ones(2):])]


@cases(VECTOR, fullgraph=False)
def errors_name_types_as_c_does(x):
    partial, ordered = functools.partial(abs), collections.OrderedDict()
    return [said(call) for call in (
        lambda: [*partial], lambda: len(partial), lambda: partial.nothing, lambda: partial[0], lambda: hash(ordered),
        lambda: ordered(), lambda: [1][partial], lambda: ordered.nothing,
        lambda: divmod(True, x), lambda: divmod(x, 2), lambda: bisect.bisect(), lambda: bisect.insort([]),
        lambda: x.shape + ("a",), lambda: ("a",) + x.shape, lambda: [1] + x.shape)]


@cases(VECTOR, [], {}, {1}, fullgraph=False)
def numbers_of_arguments_of_methods(x, v, d, s):
    log = []
    for wrong in (lambda: v.count(), lambda: v.append(), lambda: v.pop(1, 2), lambda: v.clear(1), lambda: v.reverse(1),
                  lambda: v.copy(1), lambda: v.count(1, 2), lambda: v.append(a=1), lambda: d.items(1),
                  lambda: d.keys(3), lambda: d.copy(1), lambda: s.add(), lambda: s.clear(1), lambda: s.isdisjoint(),
                  lambda: v.insert(1), lambda: v.index(), lambda: d.update(b=2), lambda: v.extend([3]),
                  lambda: v.sort(key=str, reverse=True), lambda: v.index(3, 0, 9), lambda: d.get("b", 1),
                  lambda: s.union()):
        try:
            log.append(wrong())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


class Sized:
    def __len__(self):
        return 2


@cases(VECTOR, [], Sized(), fullgraph=False)
def what_has_no_length_or_order(x, log, o):
    for value in (abs, sequence, o, Sized, {1}, 5, None, x.shape):
        for fn in (len, reversed):
            try:
                log.append(list(map(int, fn(value))) if fn is reversed else fn(value))
            except TypeError as error:
                log.append(str(error))
    return x + 1


class Settable:
    def __setitem__(self, key, value):
        pass


@cases(VECTOR, torch.tensor(1), (1, 2), [3, 4], {}, fullgraph=False)
def tensors_as_indices_of_what_cannot_change(x, one, t, v, d):
    log = []
    for value in ("ab", t, 5, None, v, d, Settable()):
        for key in (x, one):
            try:
                value[key] = 7
                del value[key]
            except (TypeError, AttributeError) as error:
                log.append((type(error).__name__, str(error)))
    return x + 1, log, v, len(d)


class Shade(enum.IntEnum):
    DARK = 2


@cases(VECTOR, Shade.DARK, range(3), {1, frozenset([2])}, fullgraph=False)
def operations_on_what_does_not_know_them(x, shade, r, s):
    log, left = [], iter("ab")
    for wrong in (lambda: shade[0], lambda: shade["a"], lambda: list(reversed(shade)), lambda: r["a"],
                  lambda: [1, 2][abs:], lambda: [1, 2][:1.5], lambda: s.discard({2}), lambda: len(s),
                  lambda: s.discard(set()), lambda: s.remove({3}), lambda: {2} in s, lambda: s.update(a=1),
                  lambda: sum(left), lambda: list(left), lambda: torch.maximum(x, shade), lambda: [] in s,
                  lambda: {}.update(left), lambda: 2 in shade, lambda: [*shade], lambda: iter(None, 2),
                  lambda: iter(2, 3), lambda: divmod(r, 2), lambda: x.clamp(0, x)):
        try:
            log.append(wrong())
        except (TypeError, KeyError) as error:
            log.append(str(error))
    return x + shade, log


class Times:
    def __index__(self):
        return 2

    def __mul__(self, other):
        return "mul"

    __rmul__ = __mul__


@cases(VECTOR, Settable(), Times(), [1, 2, 3], fullgraph=False)
def items_that_cannot_be_deleted_or_assigned(x, o, times, v):
    log = [[1] * times, times * [1]]
    v[1:] = (c for c in (5, 6))
    for value in (None, (1, 2), "ab", 2, o, {1}, range(3), abs, Settable):
        for key in ("a", 0):
            try:
                del value[key]
            except (TypeError, AttributeError) as error:
                log.append((type(error).__name__, str(error)))
    for value in (torch.tensor(2.0), 5, iter([1, 2]), {3: 4}, "ab", None):
        try:
            v[::2] = value
            v[1:] = value
        except (TypeError, ValueError) as error:
            log.append(str(error))
    return x + 1, log, v


class Refusing:
    __contains__ = None


@cases(VECTOR, Sized(), Refusing(), abs, fullgraph=False)
def what_nothing_is_in(x, *values):
    log = []
    for value in (*values, Sized, 5, None):
        try:
            log.append(1 in value)
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


test_programs = cases.test()


def test_an_exception_that_comes_in_may_say_something_else_later():
    def f(x, n):
        try:
            jit.graph_break()
            raise_value(n)
        except ValueError as error:
            return repr(error), f"{error}", error.args, error.args[0] > 1, error
        return x

    @jit.disable
    def raise_value(n):
        raise ValueError(n)

    sequence(lambda: f, [(VECTOR, 1), (VECTOR, 2), (VECTOR, 3)])


def test_exceptions_leave_no_state():
    def f(x, k):
        with torch.no_grad():
            y = x * 2
            if k == 1:
                raise ValueError("inside no_grad")
            if k == 2:
                print("break")
                raise KeyError("after a break")
            return y + {0: 1}[k]

    c = compiled(f)
    for k in (0, 1, 2, 3, 0):
        want, got = observe(f, (ONES, k)), observe(c, (ONES, k))
        assert want[1:3] == got[1:3] and torch.is_grad_enabled()
        same(want[0], got[0])
    assert sys.exc_info() == (None, None, None)


def test_the_handled_exception_of_the_caller():
    def f(x):
        y = x + 1
        print("break")
        try:
            raise KeyError("inner")
        except KeyError as e:
            return y, repr(e.__context__), repr(sys.exc_info()[1])

    c = compiled(f)
    for fn in (f, c, c):
        try:
            raise ValueError("outer")
        except ValueError:
            got = fn(ONES)[1:]
        assert got[1] == "KeyError('inner')"


def test_groups_of_exceptions():
    def f(x):
        log = []
        try:
            raise ExceptionGroup("g", [ValueError("v"), TypeError("t"), KeyError("k")])
        except* ValueError as e:
            log.append(e.exceptions)
            x = x * 2
        except* (TypeError, KeyError) as e:
            log.append(e.message)
            x = x * 3
        try:
            try:
                raise ExceptionGroup("outer",
                                     [ValueError("v"), ExceptionGroup("inner", [OSError("o"), ValueError("w")])])
            except* ValueError:
                x = x + 1
        except ExceptionGroup as rest:
            log.append(repr(rest))
        try:
            raise ValueError("plain")
        except* ValueError as e:
            log.append(repr(e))
        for wrong in (lambda: ExceptionGroup("x", []), lambda: ExceptionGroup("x", [1]),
                      lambda: ExceptionGroup(1, [KeyError()])):
            try:
                wrong()
            except (ValueError, TypeError) as e:
                log.append(str(e))
        return x, [repr(v) for v in log], type(BaseExceptionGroup("b", [KeyError()])).__name__

    c = compiled(f)
    for _ in range(2):
        same(f(ONES), c(ONES))


def test_bad_calls_raise_as_in_eager():
    def f(a, b=1, *, c):
        return a

    for args, kwargs in ((((), {}), ((1,), {}), ((1, 2, 3), {"c": 1}), ((1,), {"c": 1, "z": 2}),
                          ((1,), {"a": 2, "c": 3}))):
        texts = []
        for fn in (f, compiled(f)):
            with pytest.raises(TypeError) as caught:
                fn(*args, **kwargs)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
