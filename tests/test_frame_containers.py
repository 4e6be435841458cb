"""Lists, tuples, sets, dictionaries and counters: equal elements, order of comparisons, changes during an operation,
and errors half-way."""

import collections

import torch
from frame_harness import Cases, said, sequence

import jit

cases = Cases()
VECTOR = torch.arange(3.0)


@cases([2, 1], fullgraph=False)
def lists_changed_while_they_are_sorted(v):
    lengths = []
    return (said(lambda: v.sort(key=lambda e: lengths.append(len(v)) or e)), lengths,
            said(lambda: v.sort(key=lambda e: v.append(e))), v)


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


@cases(VECTOR)
def sizes_joined_with_tuples(x):
    return x.shape + (1,), (1,) + x.shape, () + x.shape, x.shape + x.shape, (True,) + x.shape, 2 * x.shape


@cases(VECTOR, [0, False, 1, True])
def which_of_equal_elements_a_set_keeps(x, v):
    made = [set(v), set(v[::-1]), {1, 2} & {True}, {1} & {True, 2}, {1, 2}.intersection([True, 2.0]), {1} | {True},
            frozenset([1.0, 1]), {1, 5}.union([True])]
    return x + 1, [[(type(e).__name__, e) for e in sorted(s)] for s in made]


@cases(VECTOR, [1, []], {1}, set(), fullgraph=False)
def how_far_sets_look_into_what_they_are_given(x, v, s, empty):
    left, log = iter([2, 1, 5, 6]), []
    for call in (lambda: s.isdisjoint(v), lambda: s.isdisjoint(v[::-1]), lambda: s.issuperset([2, []]),
                 lambda: s.issubset(v), lambda: s.intersection(v), lambda: s.difference(v),
                 lambda: empty.intersection([[]]), lambda: empty.issubset([[]]), lambda: s.intersection(left),
                 lambda: next(left), lambda: s.issuperset(left), lambda: list(left), lambda: s.isdisjoint(5),
                 lambda: s.issubset({1, 2}), lambda: s.isdisjoint({2}), lambda: s >= {1}):
        try:
            log.append(call())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


@cases(VECTOR, {1}, {5, 6}, fullgraph=False)
def what_a_set_has_taken_before_an_error(x, s, t):
    own, log = {1, 2, 3}, []
    for call in (lambda: s.update([2, 3, [], 4]), lambda: own.update({7: 8}, [9], 3),
                 lambda: own.difference_update([1, {}, 2]), lambda: t.difference_update([5, {}, 6]),
                 lambda: own.symmetric_difference_update([3, []]), lambda: own.intersection_update([2, []])):
        try:
            log.append(call())
        except TypeError as error:
            log.append(str(error))
    return x + 1, s, own, log


@cases(VECTOR, True)
def which_of_equal_keys_a_dict_keeps(x, flag):
    return (x + 1, [list(d.items()) for d in (dict.fromkeys([1, True, 1.0], 3), {1: 2} | {flag: 4}, {flag: 2, **{1: 3}},
                                              dict([(1, 2), (flag, 3)]))])


@cases(VECTOR, fullgraph=False)
def counters_merge_by_their_own_methods(x):
    counter = collections.Counter("aab")
    counter |= {"a": 3, "b": 1, "z": 2}
    counter &= collections.Counter("azz")
    other = collections.defaultdict(list, {"q": 1})
    other |= {"z": 2}
    return x + 1, counter, other


test_programs = cases.test()


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


def test_views_of_dictionaries_are_compared_without_hashing_values():
    def f(x, d, e):
        p, q, keys = d.items(), e.items(), {"a", "b"}
        log = [p <= q, p < q, p == q, p != q, p >= q, p > q, d.keys() <= keys, keys == d.keys(), keys > d.keys(),
               d.keys() != e.keys()]
        return (log, ("a", [1]) in p, ("a", 2) in q, 3 in p, ("z", 1) in p, said(lambda: p <= {1, 2, 3}),
                said(lambda: {("a", 1)} <= p), x + 1)

    sequence(lambda: f, [(VECTOR, {}, {"a": [1]}), (VECTOR, {"a": [1]}, {"a": [1]}),
                         (VECTOR, {"a": [1], "b": 2}, {"a": [2], "c": 1})])


def test_what_is_no_index_of_a_slice_is_guarded():
    def make():
        def f(x, v, k):
            try:
                return x + 1, v[k::-1]
            except TypeError as error:
                return x + 2, str(error)

        return f

    sequence(make, [(VECTOR, [1, 2], 1.5), (VECTOR, [1, 2], 4), (VECTOR, [1, 2], "a"), (VECTOR, [1, 2], None)])


class Thing:
    def __init__(self):
        self.a, self.b, self.c = 1, 2, 3


def test_an_attribute_that_is_deleted_and_set_anew_comes_last():
    def f(x, old, fn):
        new = Thing()
        for thing in (new, old):
            del thing.a
            thing.c = 4
            thing.a = x
            thing.a = x + 1
            vars(thing)["d"] = thing.__dict__.pop("b", None)
            thing.b = 5
        fn.a, fn.b = 1, 2
        del fn.a
        fn.a = 3
        seen = [list(vars(thing)) for thing in (new, old, fn)]
        del old.c
        return seen, list(old.__dict__), new, fn.__dict__

    def made():
        def fn():
            return None

        fn.a = 0
        return torch.ones(2), Thing(), fn

    want, got = f(*(arguments := made())), jit.compile(f)(*(others := made()))
    assert want[:2] == got[:2] and list(vars(want[2])) == list(vars(got[2])) and list(want[3]) == list(got[3])
    assert list(vars(arguments[1])) == list(vars(others[1]))
