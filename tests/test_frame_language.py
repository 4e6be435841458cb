"""The language: operators, calls, closures, containers, iteration, generators, matching, text. Each program is captured
whole."""

import bisect
import collections
import copy
import functools
import heapq
import itertools
import operator
import typing

from frame_harness import Cases

cases = Cases()
Point = collections.namedtuple("Point", "x y", defaults=[7])


# -- calls -------------------------------------------------------------------------------------------------------------


@cases()
def arguments(x):
    def g(a, b=2, /, c=3, *rest, d, e=5, **more):
        return a, b, c, rest, d, e, more

    return g(1, d=4), g(1, 2, 3, 4, 5, d=6, z=7), g(*[1, 2], **{"d": x}), g(1, d=1, b=3)


@cases()
def argument_errors(x):
    def g(a, b, *, c):
        return a

    def h(a, /, b=1):
        return a

    said = []
    for call in (lambda: g(), lambda: g(1), lambda: g(1, 2), lambda: g(1, 2, 3, c=1), lambda: g(1, 2, c=1, d=2),
                 lambda: g(1, 2, a=1, c=1), lambda: h(), lambda: h(a=1), lambda: h(1, 2, 3), lambda: h(1, b=2, c=3),
                 lambda: (lambda: 0)(1)):
        try:
            call()
        except TypeError as e:
            said.append(str(e).replace("argument_errors.", ""))
    return said, x


@cases()
def closures(x):
    def counter():
        n = 0

        def step(k=1):
            nonlocal n
            n += k
            return n

        return step, lambda: n

    a, read = counter()
    b, _ = counter()
    late = [lambda: i for i in range(3)]
    early = [lambda i=i: i for i in range(3)]
    return a(), a(5), b(), read(), [g() for g in late], [g() for g in early], x + a()


@cases()
def decorators_and_partials(x):
    def twice(fn):
        @functools.wraps(fn)
        def inner(*a, **k):
            return fn(fn(*a, **k), **k)

        inner.calls = 2
        return inner

    @twice
    def add(v, k=1):
        "adds"
        return v + k

    p = functools.partial(add, k=3)
    q = functools.partial(p, x)
    return (add(x), add.__name__, add.__doc__, add.calls, add.__wrapped__(x), p(x), q(), q.args, q.keywords,
            p.func is add)


@cases()
def recursion(x):
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return x * fib(9)


@cases()
def reducing(x):
    return (functools.reduce(operator.add, [x, 1, 2]), functools.reduce(lambda a, b: a * b, range(1, 5), 1),
            sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)))


@cases()
def single_dispatch(x):
    return describe(1), describe("a"), describe(2.5), describe([1]), x


@functools.singledispatch
def describe(v):
    return "object"


@describe.register
def _(v: int):
    return "int"


@describe.register(list)
def _(v):
    return "list"


# -- containers --------------------------------------------------------------------------------------------------------


@cases([3, 1, 2])
def lists(v):
    w = v
    v.append(4)
    v.extend(range(2))
    v.insert(1, 9)
    v[1:3] = [7, 7, 7]
    del v[0], v[-1:]
    v.sort(reverse=True)
    v += [5]
    popped = v.pop(), v.pop(0)
    v.remove(7)
    v.reverse()
    return (w is v, popped, v.index(7), v.count(7), v[::-1], v * 2, [*v, *"ab"], v == list(v), v < [9], max(v),
            min(v, default=0), copy.copy(v) is v)


@cases({"a": 1, "b": 2})
def dicts(d):
    d["c"] = 3
    d.update(b=5, e=6)
    d |= {"f": 1}
    got = d.pop("a"), d.pop("zz", None), d.setdefault("g", []), d.get("q", 4), d.popitem()
    try:
        d["missing"]
    except KeyError as e:
        missing = e.args
    views = d.keys() & {"b", "e"}, ("b", 5) in d.items(), list(reversed(d)), {**d, "b": 0} == d
    del d["e"]
    return (got, missing, views, {k: v for v, k in d.items()}, dict(zip("ab", [1, 2])), dict.fromkeys("ab", 0), list(d),
            len(d), "c" in d)


@cases()
def sets(x):
    a, b = {1, 2, 3}, frozenset({2, 3, 4})
    a.add(5)
    a.discard(9)
    c = a & b, a | b, a - b, a ^ b, a <= b, a.isdisjoint({7}), {*a, 9}
    a -= {1}
    a.update([8], (9,))
    return a, c, len(a), sorted(a), 3 in a, {frozenset({1}): 2}, x


@cases()
def collections_module(x):
    o = collections.OrderedDict(a=1, b=2, c=3)
    o.move_to_end("a")
    first = o.popitem(last=False)
    n = collections.Counter("abracadabra")
    n.update("zz")
    n.subtract("a")
    d = collections.defaultdict(list)
    d["k"].append(x)
    q = collections.deque([1, 2, 3], maxlen=3)
    q.append(4)
    q.appendleft(0)
    q.rotate(1)
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return (o, first, n.most_common(2), n["q"], sum(n.values()), n + collections.Counter("b"), d, q, q.maxlen,
            chain["b"], chain["a"], sorted(chain))


@cases(Point(1, 2), fullgraph=False)  # a class statement is a break
def named_tuples_made_inside(p):
    class Typed(typing.NamedTuple):
        a: int
        b: str = "z"

    a, b = t = Typed(3)
    return t, a, b, t._replace(b=p.x), Typed(*p), t < Typed(4), Typed._fields, Typed._field_defaults, t._asdict()


@cases(Point(1, 2))
def named_fields(p):
    q = p._replace(y=9)
    a, b = p
    return (p.x + q.y, q, p._fields, p._asdict(), Point(4), Point._make([1, 2]), a, b, p == (1, 2),
            isinstance(p, tuple), p[0], hash(p) == hash((1, 2)))


@cases()
def nested_and_shared(x):
    a = [x]
    b = {"a": a, "b": a}
    b["a"].append(1)
    loop = []
    loop.append(loop)
    knot = {"self": None}
    knot["self"] = knot
    return a, b, b["a"] is b["b"], loop, knot, copy.deepcopy(b), copy.copy(b)["a"] is a


@cases()
def heaps_and_bisection(x):
    h = [5, 3, 8, 1]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    out = [heapq.heappop(h) for _ in range(3)]
    return (out, heapq.heappushpop(h, 9), heapq.nlargest(2, [1, 5, 3]), heapq.nsmallest(2, [4, 1, 2]),
            bisect.bisect([1, 3], 2), list(heapq.merge([1, 4], [2, 3])), x)


# -- iteration ---------------------------------------------------------------------------------------------------------


@cases()
def iteration(x):
    out = []
    for i, (a, b) in enumerate(zip([1, 2, 3], "abc"), 1):
        if i == 2:
            continue
        out.append((i, a, b))
    else:
        out.append("else")
    for i in range(10, 0, -3):
        if i < 5:
            break
    else:
        out.append("not here")
    it = iter([1, 2, 3, 4])
    pairs = list(zip(it, it))
    first, *middle, last = range(5)
    (p, q), r = [1, 2], 3
    return (out, i, pairs, first, middle, last, p, q, r, list(map(lambda a, b: a + b, [1, 2], [3, 4])),
            list(filter(None, [0, 1, "", 2])), x)


@cases()
def itertools_module(x):
    return (list(itertools.chain([1], (2,))), list(itertools.islice(itertools.count(3, 2), 3)),
            list(itertools.product("ab", [1, 2])), list(itertools.permutations([1, 2, 3], 2)),
            list(itertools.accumulate([1, 2, 3])), [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])],
            list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
            list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
            list(itertools.dropwhile(lambda v: v < 3, [1, 3, 1])), list(itertools.starmap(pow, [(2, 3)])),
            list(itertools.compress("abc", [1, 0, 1])), list(itertools.pairwise([1, 2, 3])),
            [next(c) for c in [itertools.cycle("ab")] for _ in range(3)], list(itertools.repeat(1, 2)),
            list(itertools.combinations([1, 2, 3], 2)), list(itertools.chain.from_iterable([[1], [2]])), x)


@cases()
def iterator_protocol(x):
    class Down:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    return list(Down(3)), list(zip(Down(2), "ab")), sum(Down(4)), 1 in Down(3), [x * n for n in Down(3)]


@cases()
def comprehensions(x):
    y = 3
    return ([a * y for a in range(4) if a % 2], {a: b for a, b in zip("ab", [x, 2])}, {a % 3 for a in range(5)},
            sum(a for a in range(4)), [[b for b in range(a)] for a in range(3)], any(a > 2 for a in range(4)))


@cases()
def generators(x):
    def inner():
        got = yield 1
        try:
            got = yield got
        except ValueError as e:
            yield "caught " + str(e)
        finally:
            seen.append("finally")
        return x

    def outer():
        r = yield from inner()
        yield r
        yield from [7, 8]

    seen = []
    g = outer()
    out = [next(g), g.send("sent"), g.throw(ValueError("v")), next(g), *g]
    h = inner()
    next(h)
    next(h)
    h.close()
    try:
        next(h)
    except StopIteration as e:
        out.append(e.value)

    def fails():
        yield 1
        raise StopIteration(3)

    try:
        list(fails())
    except RuntimeError as e:
        out.append((str(e), type(e.__cause__).__name__))
    return out, seen


@cases()
def generators_that_leave(x):
    return (x * i for i in range(2)), None


# -- matching and text -------------------------------------------------------------------------------------------------


@cases()
def matching(x):
    out = []
    for v in (1, "s", [1, 2, 3], (4,), {"k": 5, "m": 6}, Point(0, 2), None, 2.5, True, [], {"z": 1}, -3):
        match v:
            case True | None:
                out.append("singleton")
            case 0 | 1:
                out.append("small")
            case str() as t:
                out.append(t + "!")
            case Point(x=0, y=k):
                out.append(("point", k))
            case [a]:
                out.append(("one", a))
            case [a, *rest]:
                out.append((a, rest))
            case {"k": k, **others}:
                out.append((k, others))
            case float(f) if f > 2:
                out.append(f)
            case []:
                out.append("empty")
            case int(n) if n < 0:
                out.append(n)
            case _:
                out.append("other")
    return out, x


@cases()
def text(x):
    n, f, s = 42, 3.14159, "word"
    return (f"{n:05d}|{f:.2f}|{s!r:>8}|{n:#x}|{s:*^10}|{f!s}|{n=}", "%d %s %5.1f %%" % (n, s, f),
            "{} {k:>4} {!r}".format(1, "b", k="a"), f"{[1, 'a']} {(1,)} {{}} { {'k': None} }",
            s.upper().center(10, "-"), "a,b".split(","), "-".join(str(i) for i in range(3)), s[1:3], s * 2, "or" in s,
            repr(s), str(x.shape), ascii("é"), "%(a)s" % {"a": 1}, f"{x.dtype} {x.ndim}", s.replace("w", "l").encode(),
            b"ab".decode(), s.partition("r"), s.startswith(("x", "w")), "1_000".isdigit(), int("12"), float("1e3"),
            s < "x", chr(97), ord("b"))


@cases()
def numbers(x):
    a, b = 7, -3
    return (a // b, a % b, a ** 2, a / 2, -a, ~a, a & 3, a | 8, a ^ 1, a << 2, a >> 1, divmod(a, b), round(2.5),
            round(2.567, 1), abs(b), pow(2, 5, 7), 1 < a <= 7 != b, a and b, 0 or "x", not a, int(3.9),
            float("inf") > 1, complex(1, 2) * 2, (5).bit_length(), (0.5).as_integer_ratio(), hash(3), bool([]),
            max(3, 1, 2), min([4, 2]), sum([1, 2], 10), x * a)


@cases()
def walrus_and_conditionals(x):
    out = [y := 3, y ** 2]
    while (n := len(out)) < 5:
        out.append(n)
    del y
    try:
        y  # noqa: F821
    except UnboundLocalError as e:
        out.append(str(e))
    assert out, "message"
    return out, x if n else None, (lambda *a, k=1: (a, k))(1, 2)


test_language = cases.test()
