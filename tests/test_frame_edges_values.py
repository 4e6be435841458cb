"""Edges of builtin values that random programs (``python -m tests.fuzz``) found: containers, numbers, text and errors are those of eager."""

import bisect
import collections
import datetime
import decimal
import enum
import heapq
import itertools
import math

import pytest
import torch
from frame_harness import Cases, sequence

import jit

pytestmark = pytest.mark.filterwarnings("error:jit. compiling")  # a failure inside the compiler
cases = Cases()
VECTOR = torch.arange(3.0)
Pair = collections.namedtuple("Pair", "left right")


# -- containers ------------------------------------------------------------------------------------------------------------


@cases(VECTOR, [0, False, 1, True])
def which_of_equal_elements_a_set_keeps(x, v):
    made = [set(v), set(v[::-1]), {1, 2} & {True}, {1} & {True, 2}, {1, 2}.intersection([True, 2.0]), {1} | {True}, frozenset([1.0, 1]), {1, 5}.union([True])]
    return x + 1, [[(type(e).__name__, e) for e in sorted(s)] for s in made]


@cases(VECTOR, [1, []], {1}, set(), fullgraph=False)
def how_far_sets_look_into_what_they_are_given(x, v, s, empty):
    left, log = iter([2, 1, 5, 6]), []
    for call in (lambda: s.isdisjoint(v), lambda: s.isdisjoint(v[::-1]), lambda: s.issuperset([2, []]), lambda: s.issubset(v), lambda: s.intersection(v),
                 lambda: s.difference(v), lambda: empty.intersection([[]]), lambda: empty.issubset([[]]), lambda: s.intersection(left), lambda: next(left),
                 lambda: s.issuperset(left), lambda: list(left), lambda: s.isdisjoint(5), lambda: s.issubset({1, 2}), lambda: s.isdisjoint({2}), lambda: s >= {1}):
        try:
            log.append(call())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


@cases(VECTOR, {1}, {5, 6}, fullgraph=False)
def what_a_set_has_taken_before_an_error(x, s, t):
    own, log = {1, 2, 3}, []
    for call in (lambda: s.update([2, 3, [], 4]), lambda: own.update({7: 8}, [9], 3), lambda: own.difference_update([1, {}, 2]), lambda: t.difference_update([5, {}, 6]),
                 lambda: own.symmetric_difference_update([3, []]), lambda: own.intersection_update([2, []])):
        try:
            log.append(call())
        except TypeError as error:
            log.append(str(error))
    return x + 1, s, own, log


@cases(VECTOR, True)
def which_of_equal_keys_a_dict_keeps(x, flag):
    return x + 1, [list(d.items()) for d in (dict.fromkeys([1, True, 1.0], 3), {1: 2} | {flag: 4}, {flag: 2, **{1: 3}}, dict([(1, 2), (flag, 3)]))]


@cases(VECTOR, (1, 2), Pair(1, 2), fullgraph=False)
def a_class_of_tuples_is_asked_first(x, t, p):
    log = [t == p, p == t, t != Pair(1, 3), (0, 5) < p, (0, 5) >= p]
    for compare in (lambda: ("", "") < p, lambda: ("", "") <= p, lambda: p < ("", ""), lambda: p > ("", "")):
        try:
            log.append(compare())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


def test_what_is_no_index_of_a_slice_is_guarded():
    def make():
        def f(x, v, k):
            try:
                return x + 1, v[k::-1]
            except TypeError as error:
                return x + 2, str(error)

        return f

    sequence(make, [(VECTOR, [1, 2], 1.5), (VECTOR, [1, 2], 4), (VECTOR, [1, 2], "a"), (VECTOR, [1, 2], None)])


@cases(VECTOR, [3, 0, 1], None, 1, fullgraph=False)
def what_is_no_function_for_iterators(x, v, none, one):
    log = []
    for fn in (none, one, None):
        for made in (itertools.takewhile, itertools.dropwhile, itertools.filterfalse, filter):
            try:
                log.append(list(made(fn, v)))
            except TypeError as error:
                log.append(str(error))
        try:
            log.append([k for k, _ in itertools.groupby(v, fn)])
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


@cases(VECTOR, [], {}, {1}, fullgraph=False)
def numbers_of_arguments_of_methods(x, v, d, s):
    log = []
    for wrong in (lambda: v.count(), lambda: v.append(), lambda: v.pop(1, 2), lambda: v.clear(1), lambda: v.reverse(1), lambda: v.copy(1), lambda: v.count(1, 2), lambda: v.append(a=1),
                  lambda: d.items(1), lambda: d.keys(3), lambda: d.copy(1), lambda: s.add(), lambda: s.clear(1), lambda: s.isdisjoint(), lambda: v.insert(1), lambda: v.index(),
                  lambda: d.update(b=2), lambda: v.extend([3]), lambda: v.sort(key=str, reverse=True), lambda: v.index(3, 0, 9), lambda: d.get("b", 1), lambda: s.union()):
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


def test_the_length_of_a_number_that_changes():
    def make():
        def f(x, k):
            try:
                return x + len(0.5 + k)
            except TypeError as error:
                return str(error)

        return f

    sequence(make, [(VECTOR, k) for k in (1.5, 2, 2.5, 7, 8)])


# -- what is iterated while it changes ---------------------------------------------------------------------------------------


@cases.made(VECTOR, {"a": 1}, fullgraph=False)
def a_dict_that_grows_after_a_break():
    def f(x, d):
        log = []
        try:
            for k, v in d.items():
                jit.graph_break()
                log.append((k, v))
                d["b"] = x + 1
        except RuntimeError as error:
            log.append(str(error))
        return log

    return f


@cases.made(VECTOR, {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}, fullgraph=False)
def values_that_are_replaced_after_a_break():
    def f(x, d):
        log, ordered, seen = [], collections.OrderedDict(d), {1, 2, 3}
        for k, v in d.items():
            jit.graph_break()
            log.append((k, v))
            d["c"] = x + 5
            seen.add(len(log))
        for i, k in enumerate(ordered):
            jit.graph_break()
            ordered[k] = i
        for k in reversed(d):
            jit.graph_break()
            log.append((k, ordered[k]))
        try:
            for k in seen:
                jit.graph_break()
                seen.add(k + 70)
                log.append(k)
        except RuntimeError as error:
            log.append(str(error))
        try:
            for k in ordered.values():
                jit.graph_break()
                del ordered["f"]
        except (RuntimeError, KeyError) as error:
            log.append(str(error))
        return log, d

    return f


@cases(VECTOR, [1, 2, 3])
def functions_that_end_iterators(x, v):
    left, log = iter([1, 5]), []
    for made in (lambda: itertools.takewhile(lambda c: c < next(left) + 3, v), lambda: map(lambda c: next(left), v), lambda: filter(lambda c: next(left), v),
                 lambda: itertools.starmap(lambda a, b: next(left), [(1, 2)]), lambda: (c for c in map(lambda c: next(left), v))):
        log.append((list(made()), sum(1 for _ in made())))
    try:
        next(map(lambda c: next(left), v))
    except StopIteration:
        log.append("stopped")
    return x + 1, log


class Number:
    def __radd__(self, other):
        return ("radd", other)

    def __iter__(self):
        return iter("xy")


@cases(VECTOR, Number(), [1], {3: 4}, {5}, torch.tensor(2.0), Pair(1, 2), fullgraph=False)
def who_is_asked_first(x, number, v, d, s, y, p):
    log, w = [v + number, (1,) + number], v
    w += number
    for wrong in (lambda: bisect.bisect(d, 1), lambda: bisect.bisect(x, 1), lambda: heapq.heappush(None, 1), lambda: s.pop(1, 2), lambda: torch.full((3,), x),
                  lambda: [a for a, b in [y]], lambda: [a for a, *b in [y]], lambda: torch.cat([p, x]), lambda: torch.stack([x, p]), lambda: heapq.heappop([2, 1]),
                  lambda: bisect.bisect((1, 2, 3), 2)):
        try:
            log.append(wrong())
        except (TypeError, AttributeError) as error:
            log.append(str(error))
    return x + 1, log, w


def test_small_integers_are_one_object():
    def make():
        def f(x, n, k):
            one, big = 1, 1000
            return x + 1, n is k, one is k, k is not one, n + 1 is k + 1, big is n, n is None

        return f

    sequence(make, [(VECTOR, 2, 1), (VECTOR, 3, 3), (VECTOR, 1, 5), (VECTOR, 7, 7), (VECTOR, 1000, 3)])
    jit.reset()
    f = make()
    assert jit.compile(f, backend="eager", dynamic=True)(VECTOR, 2, 1)[1:] == f(VECTOR, 2, 1)[1:]


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


class OnlyRight:
    def __radd__(self, other):
        return "right"


@cases(VECTOR, torch.tensor(2), torch.tensor([True, False]), OnlyRight(), OnlyRight(), fullgraph=False)
def operands_and_values_of_wrong_kinds(x, n, b, o, p):
    log = []
    for y in (x, n, b):
        for wrong in (lambda: y * None, lambda: None + y, lambda: y & None, lambda: y > None, lambda: y.__setitem__(..., "2"), lambda: y.__setitem__(0, None), lambda: o + p, lambda: 1 + p):
            try:
                log.append(wrong())
            except (TypeError, IndexError, RuntimeError) as error:
                log.append(str(error))
    return x + 1, log


GLOBAL = 1


@cases(VECTOR, [], fullgraph=False)
def two_ways_to_a_global(x, log):
    global GLOBAL
    GLOBAL = x
    log.append(globals()["GLOBAL"] is x)
    globals()["GLOBAL"] = 5
    log.append(GLOBAL)
    GLOBAL = 7
    log.append(globals()["GLOBAL"])
    globals()["GLOBAL"] = 1
    return x + GLOBAL, log, globals().get("GLOBAL"), "GLOBAL" in globals()


def test_a_size_that_comes_to_nothing():
    def make():
        def f(x, n):
            try:
                return torch.arange(n % 5).max(), x + 1
            except RuntimeError as error:
                return str(error)

        return f

    sequence(make, [(VECTOR, n) for n in (3, 4, 5, 7, 10)])


class Settable:
    def __setitem__(self, key, value):
        pass


class Times:
    def __index__(self):
        return 2

    def __mul__(self, other):
        return "mul"

    __rmul__ = __mul__


class Shade(enum.IntEnum):
    DARK = 2


@cases(VECTOR, Shade.DARK, range(3), {1, frozenset([2])}, fullgraph=False)
def operations_on_what_does_not_know_them(x, shade, r, s):
    log, left = [], iter("ab")
    for wrong in (lambda: shade[0], lambda: shade["a"], lambda: list(reversed(shade)), lambda: r["a"], lambda: [1, 2][abs:], lambda: [1, 2][:1.5], lambda: s.discard({2}), lambda: len(s),
                  lambda: s.discard(set()), lambda: s.remove({3}), lambda: {2} in s, lambda: s.update(a=1), lambda: sum(left), lambda: list(left), lambda: torch.maximum(x, shade),
                  lambda: [] in s, lambda: {}.update(left), lambda: 2 in shade, lambda: [*shade], lambda: iter(None, 2), lambda: iter(2, 3), lambda: divmod(r, 2), lambda: x.clamp(0, x)):
        try:
            log.append(wrong())
        except (TypeError, KeyError) as error:
            log.append(str(error))
    return x + shade, log


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
        except TypeError as error:
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


@pytest.mark.parametrize("a, b", [(datetime.date(2020, 1, 1), datetime.date(2020, 1, 1)), (datetime.date(2020, 1, 1), datetime.timedelta(1)), (decimal.Decimal(1), 1),
                                  ({1: 2}.items(), {1: 2}.items()), ({1: 2}.keys(), {1}), (bytearray(b"a"), b"a"), (memoryview(b"a"), b"a"), (decimal.Decimal(2), [1])],
                         ids=lambda v: type(v).__name__)
def test_comparisons_in_c(a, b):
    def f(x, a, b):
        log = []
        for compare in (lambda: a == b, lambda: a != b, lambda: a < b, lambda: a >= b, lambda: b > a, lambda: a in [b], lambda: [b].index(a)):
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


# -- numbers ---------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("number", [Real(), Index(), Floored(), Floored, object(), 2.5], ids=lambda v: getattr(v, "__name__", type(v).__name__))
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


@cases(VECTOR, [1, 2], (1, 2))
def numbers_of_lists(x, v, t):
    log = [math.prod(v), math.fsum(v), math.dist(v, t)]
    for wrong in (lambda: math.gcd(v), lambda: math.sqrt(v), lambda: math.hypot(1.0, v), lambda: math.gcd(t), lambda: math.floor(v), lambda: math.trunc(v)):
        try:
            log.append(wrong())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


# -- tensors ---------------------------------------------------------------------------------------------------------------


@cases(torch.tensor([1, 0, 2]), VECTOR, fullgraph=False)
def a_dtype_that_a_kernel_refuses_raises_where_it_is(n, x):
    """Also where nobody reads the result, and where the operation would be in place."""
    log = []
    for refused in (lambda: (x == n).argmax(), lambda: (x == n).softmax(0), lambda: torch.nn.functional.gelu(n), lambda: n.frac_(), lambda: (n > 0) % (n > 1),
                    lambda: n.to(torch.complex64).max(), lambda: (n > 0).topk(1), lambda: n.add_(1), lambda: n.argmax()):
        try:
            refused()
            log.append("fine")
        except RuntimeError as error:
            log.append(str(error))
    return log, x + n


@cases(torch.arange(6.0).view(2, 3), torch.arange(6.0).view(3, 2), fullgraph=False)
def layouts_of_one_row(x, y):
    row, column = x[::2], y.t()[:1]
    return row.sort(), row.argsort(), row.msort(), [fn(column > 1) for fn in (torch.sin, torch.sigmoid, torch.exp)], torch.where(column > 1, column, row), (column > 1).clamp(0, 2)


@pytest.mark.parametrize("value", [torch.tensor(0), torch.tensor(True), torch.tensor(0.5), torch.tensor([7]), torch.tensor([1.5], dtype=torch.float64), 3, torch.tensor([1.0, 2.0])],
                         ids=str)
def test_what_may_be_put_at_an_index(value):
    def make():
        def f(y, v, m):
            log = []
            for put in (lambda y: y.__setitem__(y.sum() > 1, v), lambda y: y.__setitem__(m, v), lambda y: y.__setitem__((m,), v), lambda y: y.__setitem__([0, 1], v),
                        lambda y: y.__setitem__(torch.tensor([2]), v), lambda y: y.__setitem__(slice(0, 2), v), lambda y: y.__setitem__(m.to(torch.uint8), v)):
                z = y.clone()
                try:
                    put(z)
                except (RuntimeError, IndexError) as error:
                    log.append(str(error))
                log.append(z)
            return log

        return f

    sequence(make, [(torch.arange(3.0), value, torch.tensor([True, False, True]))])


@cases(torch.arange(3.0), fullgraph=False)
def what_is_refused_of_no_elements(x):
    log = []
    for dtype in (torch.float32, torch.int64, torch.bool):
        z = x.to(dtype)[3:]
        for refused in (lambda: z.softmax(-1), lambda: z.median(0), lambda: z.topk(1), lambda: z.amax(0), lambda: z.argmax(), lambda: z.index_select(0, torch.tensor([0])),
                        lambda: z.float().mean(), lambda: z[0], lambda: z.cumsum(0), lambda: z.dot(x[None])):
            try:
                refused()
                log.append("fine")
            except (RuntimeError, IndexError) as error:
                log.append(str(error))
    return log, x + 1


@cases(VECTOR, fullgraph=False)
def writes_to_expanded_tensors(x):
    log = []
    for write in (lambda y: y.zero_(), lambda y: y.fill_(3), lambda y: y.masked_fill_(y > 1, 0), lambda y: y.add_(1), lambda y: y.copy_(y * 2), lambda y: y.__setitem__(0, 1)):
        y = x.clone().expand(2, -1)
        try:
            write(y)
        except RuntimeError as error:
            log.append(str(error))
        log.append(y)
    return log


@cases(torch.tensor(True), torch.tensor(2.0), torch.tensor(3))
def reductions_of_nothing_are_new_tensors(b, x, n):
    return b, b.any(0), b.all(), x, x.prod(0), n, n.prod(), x.amax(0), x.sum(0)


def test_a_refusal_of_one_layout_says_nothing_of_others():
    zero = torch.tensor(0.0)

    def make():
        def f(x, log):
            try:
                x.expand(2, -1).mul_(zero)
            except RuntimeError as error:
                log.append(str(error))
            return x.sum()

        return f

    sequence(make, [(torch.arange(3.0), []), (torch.arange(6.0).view(2, 3), []), (torch.arange(3.0).view(1, 3), [])])


@cases(torch.tensor([3]), [], fullgraph=False)
def a_call_that_lacks_an_argument(n, log):
    try:
        if torch.equal(n):
            pass
    except TypeError as error:
        log.append(str(error))
    return n + 1


@cases(VECTOR, torch.tensor(2.0), torch.tensor(3), fullgraph=False)
def a_format_that_a_tensor_does_not_know(x, y, n):
    log = [f"{y:>8.1f}|{n:>4}|{n:x}", f"{x!r:>3}"]
    for wrong in (lambda: f"{x:>3}", lambda: f"{y:d}", lambda: f"{n:q}", lambda: format(x, "s")):
        try:
            None + wrong()
        except (TypeError, ValueError) as error:
            log.append((type(error).__name__, str(error)))
    return log, x + 1


@cases(VECTOR, fullgraph=False)
def counters_merge_by_their_own_methods(x):
    counter = collections.Counter("aab")
    counter |= {"a": 3, "b": 1, "z": 2}
    counter &= collections.Counter("azz")
    other = collections.defaultdict(list, {"q": 1})
    other |= {"z": 2}
    return x + 1, counter, other


@cases(VECTOR, [3, 1, 2], [2, 2])
def tees_of_a_list_that_grows(x, v, w):
    seen = []
    for values in (v, w):
        first, second = itertools.tee(values)
        for k in itertools.islice(itertools.chain([], second), 3):
            values.append(len(set(values)))
            seen.append(k)
        seen.append(next(first))
    return x + len(seen), seen, list(first), second


@cases(VECTOR, [1, 2], fullgraph=False)
def an_index_that_is_read_off_a_tensor(x, v):
    try:
        del v[int((x == x).sum().round())]
    except IndexError as error:
        return x + 1, str(error)
    return x, None


@cases(VECTOR, fullgraph=False)
def an_iterator_over_a_list_after_a_break(x):
    it = iter([sum(pair) for pair in itertools.combinations([1], 2)])
    jit.graph_break()
    try:
        it.close()
    except AttributeError as error:
        return x + 1, str(error)


test_programs = cases.test()
