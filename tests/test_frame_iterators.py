"""Iterators: when they do their work, and what they see of containers that change under them."""

import collections
import itertools

import pytest
import torch
from frame_harness import Cases, said, sequence

import jit

cases = Cases()
VECTOR = torch.arange(3.0)


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
    return (first, list(running), pairs, kept, list(waiting[0]), list(waiting[1]), list(waiting[2]), log,
            said(lambda: itertools.accumulate(5)), said(lambda: waiting[1].send(1)),
            said(lambda: abs(itertools.tee(v)[0])), list(itertools.tee(numbers())[1]), itertools.pairwise(v),
            itertools.accumulate([4, 5]))


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
    for made in (lambda: itertools.takewhile(lambda c: c < next(left) + 3, v), lambda: map(lambda c: next(left), v),
                 lambda: filter(lambda c: next(left), v), lambda: itertools.starmap(lambda a, b: next(left), [(1, 2)]),
                 lambda: (c for c in map(lambda c: next(left), v))):
        log.append((list(made()), sum(1 for _ in made())))
    try:
        next(map(lambda c: next(left), v))
    except StopIteration:
        log.append("stopped")
    return x + 1, log


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


@cases(VECTOR, fullgraph=False)
def an_iterator_over_a_list_after_a_break(x):
    it = iter([sum(pair) for pair in itertools.combinations([1], 2)])
    jit.graph_break()
    try:
        it.close()
    except AttributeError as error:
        return x + 1, str(error)


test_programs = cases.test()


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
        counts = (itertools.count(n), itertools.count(n, True), itertools.count(n, 2), itertools.count(n, 1.0),
                  itertools.count(start=n))
        return [[next(c), next(c)] for c in counts], x + 1

    sequence(lambda: f, [(VECTOR, True), (VECTOR, 1), (VECTOR, False)], fullgraph=True)


def replaced(d):
    seen = []
    for k, v in d.items():
        seen.append(k)
        d.pop("b", None)
        d["b"] = v
    return seen, d


def renamed(d):
    seen = []
    it = iter(d)
    next(it)
    d["q"] = d.pop("a")
    try:
        seen.extend(it)
    except RuntimeError as error:
        seen.append(str(error))
    return seen, d


def rewritten(d):
    for k in d:
        d[k] = 5
    return list(d), d


@pytest.mark.parametrize("fn", [replaced, renamed, rewritten])
@pytest.mark.parametrize("given", [{"a": 1}, {"a": 1, "b": 2}, {"b": 1, "a": 2}, {"a": 1, "b": 2, "c": 3}])
def test_keys_that_are_replaced_while_iterated(fn, given):
    def outcome(run):
        try:
            return run(dict(given))
        except RuntimeError as error:
            return str(error)

    compiled = jit.compile(fn)
    for _ in range(2):
        assert outcome(compiled) == outcome(fn)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("drop", [1, 2, 3])
def test_a_list_that_is_shorter_than_its_iterator_at_a_break(drop, backwards):
    def fn(v):
        seen = []
        for m in reversed(v) if backwards else v:
            seen.append(m)
            taken = [v.pop() for _ in range(min(drop, len(v)))]
            jit.graph_break()
            v.extend(taken[:-1] if len(seen) > 1 else taken)
            if len(seen) > 6:
                break
        return seen, v

    compiled = jit.compile(fn)
    for given in ([1], [3, 1, 2], [1, 2, 3, 4, 5], []):
        for _ in range(2):
            assert compiled(list(given)) == fn(list(given))


RANGES = [range(5), range(2, 20, 3), range(5, -7, -2), range(0), range(1), range(10**12), range(-2**40, 2**40, 2**20)]


@pytest.mark.parametrize("used", [0, 1, 3])
@pytest.mark.parametrize("numbers", RANGES, ids=repr)
def test_an_iterator_over_a_range_leaves_as_one(numbers, used):
    """Whatever is left of it: nothing is listed."""
    def fn(x):
        it = iter(numbers)
        for _ in range(used):
            next(it, None)
        return x + 1, it

    (_, got), (_, want) = jit.compile(fn)(VECTOR), fn(VECTOR)
    assert type(got) is type(want) and got.__length_hint__() == want.__length_hint__()
    assert got.__reduce__() == want.__reduce__()
    assert list(itertools.islice(got, 9)) == list(itertools.islice(want, 9))
