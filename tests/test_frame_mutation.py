"""Changes that captured code makes to what it was given: replayed in order, exactly once, with aliases kept."""

import collections
import contextlib

import pytest
import torch
from frame_harness import observe, same

import jit

ONES = torch.ones(2)
CASES = []


def case(make):
    """``make()`` gives the tuples of arguments to call the program with, one call after the other."""
    def register(fn):
        CASES.append(pytest.param(fn, make, id=fn.__name__))
        return fn

    return register


class O:
    def __init__(self, **k):
        self.__dict__.update(k)


@case(lambda: [(ONES, O(l=[])), (ONES, O(l=[1], n=5)), (ONES, O(l=[], n=7))])
def attributes(x, o):
    o.n = getattr(o, "n", 0) + 1
    o.l.append(o.n)
    return o.l[-1], x + o.n


@case(lambda: [(ONES, {}), (ONES, {"b": 3}), (ONES, {"a": 1, "b": 3}), (ONES, {"c": [1]})])
def dict_items(x, d):
    d["a"] = d.pop("b", 1)
    d.setdefault("c", []).append(2)
    return list(d), x


@case(lambda: [(ONES, O()), (ONES, O())])
def methods_of_what_was_made(x, o):
    log, table = [], {}
    o.add, o.put = log.append, table.setdefault
    print("a break")
    o.add(3)
    o.put(1, 2)
    return x * len(log) + len(table), o.add.__self__ is log, o.put.__self__ is table, log


@case(lambda: [(ONES, [1], [2]), (ONES, [], []), (ONES, *[[1]] * 2)])
def aliased_lists(x, a, b):
    a += b
    a.extend(x for x in range(2))
    del b[:]
    return a, b


@case(lambda: [(ONES, {1, 2}), (ONES, set()), (ONES, {5})])
def set_changes(x, s):
    s |= {5}
    s.discard(1)
    return sorted(s), len(s)


@case(lambda: [(ONES, O(k=1)), (ONES, O(j=1, k=2)), (ONES, O())])
def deleted_attributes(x, o):
    del o.k
    o.z = x
    return vars(o).keys().__len__(), hasattr(o, "k")


@case(lambda: [(ONES, [1, 2, 2, 3]), (ONES, [2]), (ONES, [0])])
def list_changed_while_iterated(x, l):
    for i, v in enumerate(l):
        if v == 2: l.remove(2)
        if i > 5: break
        l[0] = i
    return l


@case(lambda: [(ONES, {"a": 1}), (ONES, {"add": 1, "b": 2})])
def dict_changed_while_iterated(x, d):
    for k in d:
        d[k] = d[k] + 1
        if k == "add": d["new"] = 1
    return d


@case(lambda: [(ONES, 1), (ONES, 2)])
def globals_written(x, n):
    global G
    G = n
    def h(): return G + 1  # noqa: F821
    r = h()
    del G
    try: G
    except NameError as e: return r, str(e), x


@case(lambda: [(ONES, []), (ONES, [1])])
def lists_in_each_other(x, l):
    a, l2 = l, list(l)
    a.append(l2)
    l2.append(a)
    return len(a), a[-1] is l2, l2[-1] is a


@case(lambda: [(ONES, collections.deque([1, 2, 3], 3)), (ONES, collections.deque([4])),
               (ONES, collections.deque([5, 6], maxlen=5))])
def deques(x, q):
    q.append(1)
    q.popleft()
    q.rotate()
    return list(q), q.maxlen


@case(lambda: [(ONES, collections.deque([1, 2, 3], 3)), (ONES, collections.deque([1, 2, 3], 5)),
               (ONES, collections.deque([1, 2, 3]))])
def full_deques(x, q):
    q.append(1)
    return list(q), q.maxlen


@case(lambda: [(ONES, torch.ones(1)), (ONES, 5), (ONES, O())])
def attribute_of_anything(x, t):
    t.k = 5
    return t.k, x


@case(lambda: [(ONES, O(), O()), (ONES, *[O()] * 2)])
def aliased_objects(x, o, p):
    o.a, p.a = 1, 2
    return o.a + p.a, x * o.a


@case(lambda: [(ONES, iter([1, 2])), (ONES, iter([])), (ONES, iter((1,))), (ONES, zip([1], [2])),
               (ONES, map(abs, [-1])), (ONES, enumerate("ab")), (ONES, (i for i in range(2))),
               (ONES, iter({1: 2}.items()))])
def iterators(x, it):
    return list(it), next(it, "end"), x


@case(lambda: [(torch.ones(2), []), (torch.ones(2), [1])])
def tensors_in_lists(x, l):
    y = x * 2
    l.append(y)
    y.add_(1)
    l.append(y + 1)
    x.mul_(3)
    print(len(l))
    l[0].add_(x)
    return l, y is l[0]


@case(lambda: [(ONES, O())])
def effects_before_a_suppressed_error(x, o):
    with contextlib.suppress(KeyError):
        o.step = "in"
        {}["k"]
        o.step = "never"
    return o.step, x


@case(lambda: [(torch.ones(2),)])
def effects_in_finally(x):
    try:
        return "try", x
    finally:
        x.add_(1)


@case(lambda: [(ONES, 5), (ONES, 0), (ONES, 6), (ONES, 9)])
def loops(x, n):
    s = 0
    while True:
        n -= 1
        if n < 0: break
        if n % 2: continue
        s += n
    else: s = -1
    return s, x


@pytest.mark.parametrize("program, make", CASES)
def test_changes(program, make):
    compiled = jit.compile(program, backend="eager")
    for _ in range(2):
        for a, b in zip(make(), make(), strict=True):
            want, got = observe(program, a), observe(compiled, b)
            assert want[1:3] == got[1:3], f"{want[1:3]} in eager, {got[1:3]} compiled"
            plain = ([v for v in want[3] if not hasattr(v, "__next__")],
                     [v for v in got[3] if not hasattr(v, "__next__")])
            same((want[0], plain[0]), (got[0], plain[1]))
