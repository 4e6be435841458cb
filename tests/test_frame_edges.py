"""Edges of the language that random programs (``python -m tests.fuzz``) found: each runs as in eager, wherever the graph breaks."""

import bisect
import collections
import collections.abc
import copy
import functools
import gc
import itertools
import json
import operator
import types

import pytest
import torch
from frame_harness import Cases, sequence

import jit

pytestmark = pytest.mark.filterwarnings("error:jit. compiling")  # a failure inside the compiler
cases = Cases()
VECTOR, MATRIX = torch.arange(3.0), torch.arange(6.0).view(2, 3)


# -- exceptions ------------------------------------------------------------------------------------------------------------


@cases([], fullgraph=False)
def iterating_over_a_class(log):
    try:
        for _ in range:
            pass
    finally:
        log.append(1)


@cases({3}, fullgraph=False)
def subscript_of_a_set(s):
    return s[0]


@cases(VECTOR, fullgraph=False)
def wrong_arguments_of_builtins(x):
    said = []
    for call in (lambda: abs(), lambda: functools.partial(), lambda: functools.partial(3), lambda: [].pop(1, 2), lambda: len(1, 2), lambda: [1].sort(reverse=set)):
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


@cases(VECTOR, [], fullgraph=False)
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

    for call in (lambda: inplace(None), lambda: enter(1), lambda: enter(x), lambda: itertools.count(None), lambda: copy.copy(), lambda: divmod(abs, 2), lambda: functools.reduce(abs, 3)):
        try:
            call()
        except TypeError as error:
            said.append(str(error))
    return said


@cases(VECTOR, [], fullgraph=False)
def texts_of_torch_errors(x, log):
    for call in (lambda: x.sum().size(0), lambda: x.size(4), lambda: torch.sin(1), lambda: abs([]), lambda: round({}), lambda: [][1.5], lambda: 1 - x.shape):
        try:
            log.append(call())
        except (TypeError, IndexError) as error:
            log.append(str(error))
    log[1.5] = 1


# -- generators ------------------------------------------------------------------------------------------------------------


@cases([], fullgraph=False)
def a_generator_left_in_a_try_block(log):
    def numbers():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    first = next(numbers())
    log.append("after")
    return first


@jit.disable
def fails(x):
    raise KeyError(1)


@cases(VECTOR, [], fullgraph=False)
def a_generator_is_closed_when_an_exception_leaves_its_loop(x, log):
    def numbers(n):
        try:
            for i in range(n):
                yield i
        finally:
            log.append("closed")

    try:
        for _ in numbers(2):
            fails(x)
    except KeyError:
        log.append("after")


class Sequence(collections.abc.Sequence):
    """Its ``__iter__`` is a generator with an ``except IndexError`` around the yield."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return range(3)[i]


@cases([])
def a_generator_left_where_only_other_exceptions_are_caught(log):
    def nested():
        try:
            try:
                yield from Sequence()
            except IndexError:
                log.append("never")
        except KeyError:
            log.append("never")
        except ValueError:
            log.append("never")

    return next(iter(Sequence())), any(n == 1 for n in Sequence()), next(nested()), 1 in Sequence()


# -- objects ---------------------------------------------------------------------------------------------------------------


@cases([2, 1], fullgraph=False)
def classes_made_in_c(v):
    @functools.cache
    def f(n):
        return n + 1

    return json.dumps(v), f(2), collections.Counter(v)


class NoNumber:
    def __int__(self):
        return None


@cases([], fullgraph=False)
def int_of_what_is_none(log):
    return int(NoNumber())


class Number:
    def __init__(self, n):
        self.n = n

    def __int__(self):
        return self.n


@cases(True, fullgraph=False)
def the_globals_as_a_dict(v):
    globals()["EDGE"] = v
    return EDGE, collections.defaultdict(int) | {1: 2}  # noqa: F821


CALLS = []


@cases(VECTOR, fullgraph=False)
def a_cached_function_with_effects(x):
    @functools.cache
    def f(n):
        CALLS.append(n)
        return n

    made = [f(1), f(1), f(2)], len(CALLS)
    CALLS.clear()
    return made


@cases(True, fullgraph=False)
def int_of_an_object_that_gives_a_bool(flag):
    return int(Number(flag)), int(Number(3))


# -- tensors ---------------------------------------------------------------------------------------------------------------


@cases(VECTOR, fullgraph=False)
def writing_where_the_same_memory_is_read(x):
    x[:1].add_(x[1:2])
    x.mul_(x)
    x.mul_(x[0])


@cases(VECTOR, fullgraph=False)
def a_tensor_of_a_tensor_is_a_copy(x):
    y = torch.tensor(x)
    x.add_(1)
    return y, torch.as_tensor(x) is x


@cases(MATRIX, fullgraph=False)
def copying_within_one_tensor(x):
    x[0].copy_(x[1])
    try:
        x.copy_(x[1][0])
    except RuntimeError as error:
        return str(error)


# -- sorting ---------------------------------------------------------------------------------------------------------------


def said(call):
    """What a call raises, as (type, text), or its result."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__, str(error)


@cases([2, 1], fullgraph=False)
def lists_changed_while_they_are_sorted(v):
    lengths = []
    return said(lambda: v.sort(key=lambda e: lengths.append(len(v)) or e)), lengths, said(lambda: v.sort(key=lambda e: v.append(e))), v


@cases([3, 1, 2, "a", 0])
def lists_that_cannot_be_sorted_stay_as_eager_leaves_them(v):
    w = [4, *v]
    return said(lambda: v.sort()), said(lambda: w.sort(reverse=True)), said(lambda: v.sort(key=lambda e: 1 // e)), v, w


@cases([3, 1, 2, 5, 4])
def sorting_compares_in_the_order_of_the_real_sort(v):
    seen = []

    class Key:
        def __init__(self, n):
            self.n = n

        def __lt__(self, other):
            seen.append((self.n, other.n))
            return self.n < other.n

    return sorted(v, key=Key), sorted(v, key=Key, reverse=True), v.sort(key=Key), v, seen


@cases([1], [2], collections.deque([3], maxlen=5))
def lists_extended_by_what_changes_them(v, w, q):
    def numbers(target):
        yield 7
        target.append(8)
        yield len(target)

    v.extend(numbers(v))
    v += numbers(v)
    w.extend(w)
    w.extend(map(lambda n: w.append(n) or n, [4, 5]))
    q.extend(numbers(q))
    q.extendleft(numbers(q))
    v.extend(range(3))
    v.extend({"a": 1})
    return v, w, q


@cases([1, 2, 3], fullgraph=False)
def slices_by_floats(v):
    return said(lambda: v[1.5:]), said(lambda: v.__setitem__(slice(0, 1.5), [])), said(lambda: (1, 2)[: 2.0])


@functools.lru_cache
def cached(*values):
    return len(values)


@cases([1], VECTOR, fullgraph=False)
def caches_refuse_what_they_cannot_look_up(v, x):
    return said(lambda: cached(v)), said(lambda: cached((1, [v]))), said(lambda: cached({})), said(lambda: cached(1, (2, "a"))), x


@cases(VECTOR)
def errors_of_tensors_that_are_known(x):
    zero_dim = torch.zeros(2).any(0)
    return said(lambda: zero_dim.unbind(0)), said(lambda: x @ torch.tensor(2)), said(lambda: torch.ones(2).sum()[:1])


class Cooperative:
    def __init__(self, n, **kw):
        super().__init__(**kw)
        self.n = n


@cases(VECTOR)
def arguments_that_object_refuses(x):
    return said(lambda: Cooperative(1, m=2)), said(lambda: Cooperative(1).n), said(lambda: object.__init__(Cooperative(1), 2)), x


@cases([1, 2, 3], {"a": 1}, fullgraph=False)
def iterators_that_work_when_they_are_asked(v, d):
    log = []

    def noted(a, b):
        log.append((a, b))
        return a + b

    def numbers():
        for n in (3, 1, 2):
            log.append(n)
            yield n

    running = itertools.accumulate(v, noted)
    log.append("before")
    first = next(running)
    pairs = [(log.append(a), b) for a, b in itertools.pairwise(numbers())]
    kept = [(log.append("kept"), n) for n in itertools.compress(numbers(), [0, 1, 1])]
    waiting = itertools.accumulate([1], "no function"), itertools.pairwise([]), itertools.accumulate([2, 3], initial=1)
    return (first, list(running), pairs, kept, list(waiting[0]), list(waiting[1]), list(waiting[2]), log, said(lambda: itertools.accumulate(5)), said(lambda: waiting[1].send(1)),
            said(lambda: abs(itertools.tee(v)[0])), list(itertools.tee(numbers())[1]), itertools.pairwise(v), itertools.accumulate([4, 5]))


@cases([1, 2], {}, collections.defaultdict(int), fullgraph=False)
def more_texts_of_errors(v, d, e):
    def unpack(value):
        a, *b = value
        return b

    def put(index, value):
        v[index] = value

    return [said(call) for call in (
        lambda: unpack(None), lambda: put(slice(None, None, 2), None), lambda: put(slice(0, 1), 5), lambda: e.popitem(), lambda: d.popitem(), lambda: collections.OrderedDict().popitem(),
        lambda: d.pop([], 3), lambda: {"a": 1}.pop([], 3), lambda: max(), lambda: d.items <= d.items(), lambda: d.items() <= 3, lambda: torch.maximum(True, torch.ones(2)),
        lambda: "a" + Plain(), lambda: [1] + Plain(), lambda: (1,) + Plain(), lambda: Plain() + "a", lambda: operator.ior({}, "ab"),
        lambda: torch.nn.functional.pad(torch.ones(3), (1, 0.5)), lambda: len(reversed(v)), lambda: len(iter(v)), lambda: len(iter((1, 2))), lambda: abs(reversed((1, 2))), lambda: repr(types.SimpleNamespace()), lambda: repr(types.SimpleNamespace(a=1)), lambda: v[torch.tensor(1)], lambda: v[torch.ones(2)], lambda: v[: torch.tensor(1)], lambda: v[torch.ones(2):])]


class Slotted:
    __slots__ = ("a", "b", "__private")

    def __init__(self, a):
        self.a, self.__private = a, 5


class Stated:
    def __init__(self, n):
        self.n = n

    def __getstate__(self):
        return {"n": self.n + 1}

    def __setstate__(self, state):
        self.m = state["n"]


@cases(VECTOR)
def copies_of_objects_with_slots_or_states(x):
    s, o = Slotted(x), Stated(1)
    t, p = copy.copy(s), copy.copy(o)
    return t.a is s.a, t, hasattr(t, "b"), p, copy.deepcopy(Slotted([1])), object.__getstate__(Slotted(2)), Plain().__getstate__(), copy.copy(Plain())


# -- texts of errors ---------------------------------------------------------------------------------------------------------


@cases(VECTOR, fullgraph=False)
def errors_name_types_as_c_does(x):
    partial, ordered = functools.partial(abs), collections.OrderedDict()
    return [said(call) for call in (
        lambda: [*partial], lambda: len(partial), lambda: partial.nothing, lambda: partial[0], lambda: hash(ordered), lambda: ordered(), lambda: [1][partial], lambda: ordered.nothing,
        lambda: divmod(True, x), lambda: divmod(x, 2), lambda: bisect.bisect(), lambda: bisect.insort([]), lambda: x.shape + ("a",), lambda: ("a",) + x.shape, lambda: [1] + x.shape)]


@cases(VECTOR)
def sizes_joined_with_tuples(x):
    return x.shape + (1,), (1,) + x.shape, () + x.shape, x.shape + x.shape, (True,) + x.shape, 2 * x.shape


@cases(None, VECTOR, fullgraph=False)
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


# -- memory that is written and read -----------------------------------------------------------------------------------------


@cases(VECTOR, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), fullgraph=False)
def in_place_operations_that_read_what_they_write(x, y):
    return [said(call) for call in (lambda: x[1].mul_(x.detach()), lambda: x[:2].add_(x[1:]), lambda: x[:2].mul_(x), lambda: y[0].add_(y), lambda: y.add_(y.t()))]


test_edges = cases.test()


class Plain:
    pass


def test_an_exception_that_leaves_the_program_keeps_nothing_alive():
    log = []

    def numbers():
        try:
            yield 1
        finally:
            log.append("closed")

    def f(x):
        for _ in numbers():
            x.tolist()[7]

    with pytest.raises(IndexError):
        jit.compile(f, backend="eager")(VECTOR)
    assert log == ["closed"]


def test_division_by_an_integer_that_is_zero_later():
    def f(x, n):
        try:
            return x + 7 // n, 7 % n
        except ZeroDivisionError as error:
            return str(error)

    sequence(lambda: f, [(VECTOR, 3), (VECTOR, 2), (VECTOR, 0), (VECTOR, 4)])


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


def test_what_was_only_looked_up_may_be_gone_later():
    def f(d, o):
        try:
            d["a"]
        except KeyError:
            return "no"
        return "b" in d, hasattr(o, "n"), "b" in vars(o)

    with_n, without = Plain(), Plain()
    with_n.n = with_n.b = 1
    sequence(lambda: f, [({"a": 1, "b": 2}, with_n), ({"a": 1}, with_n), ({}, with_n), ({"a": 1, "b": 2}, without), ({"a": 5, "b": 2}, with_n)])


def test_graphs_of_nothing_but_an_integer():
    def f(n):
        jit.graph_break()
        return torch.arange(n).add_(n)

    c = jit.compile(f, backend="eager")
    for n in (1, 2, 3):
        assert torch.equal(c(n), f(n))


def test_arguments_that_torch_refuses():
    def f(x, how):
        try:
            return abs(x > 0) if how else x[:1.5]
        except (TypeError, NotImplementedError) as error:
            return type(error), str(error)

    sequence(lambda: f, [(VECTOR, True), (VECTOR, False)])


def test_in_place_operations_on_arguments_that_share_memory():
    def f(x, y):
        return said(lambda: y.mul_(x))

    def steps():
        x = torch.arange(3.0)
        return [(x, x[1]), (x, x[:2]), (x, x)]

    sequence(lambda: f, steps())


def test_rows_that_have_one_element_now():
    def f(x):
        return [row for row in x[1:].transpose(0, 1)]

    jit.reset()
    compiled = jit.compile(f, backend="eager", dynamic=True, fullgraph=True)
    for x in (torch.arange(6.0).view(3, 2).t(), torch.arange(12.0).view(3, 4).t(), torch.arange(6.0).view(2, 3).t()):
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(f(x), compiled(x)))


def test_a_generator_is_closed_when_its_frame_raises():
    """What a break handed on must not keep the stack of a frame that has ended."""

    class Raising:
        def __enter__(self):
            pass

        def __exit__(self, *exception):
            issubclass()

    def numbers(log):
        try:
            yield from (1, 2)
        finally:
            log.append("closed")

    def raising(log):
        for _ in numbers(log):
            with Raising():
                abs()

    def f(log):
        try:
            raising(log)
        except TypeError:
            pass
        log.append("after")

    gc.collect()
    gc.disable()
    try:
        sequence(lambda: f, [([],), ([],)])
    finally:
        gc.enable()


def test_slices_without_an_end_that_get_one():
    def f(v, k):
        return v[k:k], v[:k], v[::k]

    sequence(lambda: f, [([1, 2, 3], None), ([1, 2, 3], 1), ([1, 2, 3], 2)], fullgraph=True)


def test_sizes_that_are_one_only_now():
    def f(x, n):
        return x[:n].squeeze(0), torch.ones(n).squeeze(), x[:n].squeeze()

    jit.reset()
    compiled = jit.compile(f, backend="eager", dynamic=True)
    for n in (3, 1, 2, 1):
        for a, b in zip(f(MATRIX.view(3, 2), n), compiled(MATRIX.view(3, 2), n)):
            assert a.shape == b.shape and torch.equal(a, b)


def test_an_error_that_names_sizes_is_for_these_sizes():
    def f(x, y):
        return said(lambda: x.sum() * x.masked_fill(y > torch.tensor(1), 0))

    sequence(lambda: f, [(torch.ones(3), torch.ones(3)), (torch.ones(4), torch.ones(3)), (torch.ones(3), torch.ones(3)), (torch.ones(5), torch.ones(3))])


class Unhashable:
    __hash__ = None

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def get(self):
        return self.n


def test_methods_as_keys_are_told_apart_by_their_very_objects():
    def f(x, n):
        a, b, v, w = Unhashable(n), Unhashable(n), [n], [n]
        d = {a.get: x, b.get: 2, v.append: 3, w.append: 4}
        return len(d), d[a.get], d[w.append], d.get(Unhashable(n).get), said(lambda: {a: 1})

    sequence(lambda: f, [(VECTOR, 1), (VECTOR, 2)], fullgraph=True)


def test_an_error_of_torch_names_the_very_class_of_an_argument():
    def f(x, t):
        return said(lambda: x.mean().sub_(t)), said(lambda: x.add(x.shape)), said(lambda: x + 1)

    sequence(lambda: f, [(VECTOR, collections.namedtuple("Pair", "a b")(1, 2)), (VECTOR, (1, 2))])


def test_views_of_dictionaries_are_compared_without_hashing_values():
    def f(x, d, e):
        p, q, keys = d.items(), e.items(), {"a", "b"}
        log = [p <= q, p < q, p == q, p != q, p >= q, p > q, d.keys() <= keys, keys == d.keys(), keys > d.keys(), d.keys() != e.keys()]
        return log, ("a", [1]) in p, ("a", 2) in q, 3 in p, ("z", 1) in p, said(lambda: p <= {1, 2, 3}), said(lambda: {("a", 1)} <= p), x + 1

    sequence(lambda: f, [(VECTOR, {}, {"a": [1]}), (VECTOR, {"a": [1]}, {"a": [1]}), (VECTOR, {"a": [1], "b": 2}, {"a": [2], "c": 1})])


def test_tensors_are_not_rounded_by_the_builtin():
    def f(x):
        return said(lambda: round(x)), said(lambda: round(torch.nn.Parameter(x), 2)), x.round() + 1

    sequence(lambda: f, [(VECTOR,)])


def test_a_dictionary_that_changes_its_size_while_it_is_iterated_over():
    def f(d, last):
        log, copied, it = [], dict(d), iter(d.items())
        next(it), next(it), next(it, None)
        for mapping in (d, copied):
            try:
                for k in mapping:
                    if k == "b" or not last:
                        mapping["l"] = 1
                        jit.graph_break()
                    log.append(k)
            except RuntimeError as error:
                log.append(repr(error))
        return log, list(it)

    sequence(lambda: f, [({"a": 1, "b": 2}, True), ({"a": 1, "b": 2}, False)])


def test_iterators_that_come_in_when_their_dictionary_has_changed():
    def f(x, it):
        log = []
        try:
            for k in it:
                log.append(k)
        except RuntimeError as error:
            log.append(repr(error))
        return log, x + 1

    compiled = jit.compile(f, backend="eager")
    for change in (False, True, False, True):
        results = []
        for fn in (f, compiled):
            d = {"a": 1, "b": 2}
            it = iter(d)
            next(it)
            if change:
                d["c"] = 3
            results.append(fn(VECTOR, it)[0])
        assert results[0] == results[1]


def test_a_set_that_changes_its_size_while_it_is_iterated_over():
    def f(x, u, broken):
        log, copied, it = [], {*u}, iter(u)
        next(it), next(it), next(it, None)
        for changed in (u, copied):
            try:
                for k in changed:
                    log.append(1)
                    changed.add("z")
                    if broken:
                        jit.graph_break()
            except RuntimeError as error:
                log.append(repr(error))
        return log, list(it), x + 1

    sequence(lambda: f, [(VECTOR, {1, 2}, False), (VECTOR, {1, 2}, True), (VECTOR, {1, "z"}, False)])


def test_counting_from_a_truth_value():
    def f(x, n):
        counts = itertools.count(n), itertools.count(n, True), itertools.count(n, 2), itertools.count(n, 1.0), itertools.count(start=n)
        return [[next(c), next(c)] for c in counts], x + 1

    sequence(lambda: f, [(VECTOR, True), (VECTOR, 1), (VECTOR, False)], fullgraph=True)


def test_new_tensors_need_a_size():
    def f(x):
        makers = torch.zeros, torch.ones, torch.empty, x.new_zeros, x.new_ones, x.new_empty
        return [said(make) for make in makers], torch.zeros(()) + torch.ones(size=()) + x.new_ones(()) + x

    sequence(lambda: f, [(VECTOR,)])
