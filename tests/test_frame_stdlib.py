"""Programs over the standard library: functools, itertools, operator, collections, math, copy, inspect, text, numbers,
sorting, calls, exceptions."""

import collections
import copy
import functools
import inspect
import itertools
import json
import logging
import math
import operator
import string
import types

import pytest
import torch
from frame_harness import Cases

import jit

VECTOR = torch.arange(3.0)
cases = Cases()


class A:
    def __init__(self, k=2):
        self.k = k

    def mul(self, x, by=2):
        return x * by * self.k
    tripled = functools.partialmethod(mul, by=3)

    @functools.cached_property
    def slow(self):
        return self.k * 10


@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@functools.cache
def cached(n):
    return n * 2


@functools.singledispatch
def disp(v, x):
    return x


@disp.register
def _(v: int, x):
    return x + 1


@disp.register(list)
def _(v, x):
    return x + 2


@functools.total_ordering
class TO:
    def __init__(s, v):
        s.v = v

    def __eq__(s, o):
        return s.v == o.v

    def __lt__(s, o):
        return s.v < o.v


def deco(fn):
    @functools.wraps(fn)
    def w(*a, **k):
        return fn(*a, **k) + 1
    return w


@deco
def decorated(x, *, k=2):
    'doc'
    return x * k


@cases()
def functools_(x):
    a = A()
    p = functools.partial(a.mul, by=4)
    return (p(x), a.tripled(x), a.slow, a.slow, fib(10), cached(3), disp(1, x), disp([], x), disp('', x),
            TO(1) >= TO(0), TO(1) <= TO(0), decorated(x, k=3), decorated.__name__, decorated.__doc__,
            functools.reduce(operator.add, [x, x, 1]), functools.reduce(lambda a, b: a * b, [1, 2, 3], 10),
            p.func.__name__, p.keywords, functools.partial(max, 3)(5),
            sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)))


@cases()
def itertools_(x):
    i = itertools
    return (list(i.chain([1], [2, 3])), list(i.chain.from_iterable([[1], [2]])), list(i.islice(i.count(3, 2), 3)),
            list(i.islice(range(10), 1, 8, 3)), list(zip(range(3), i.cycle('ab'))), list(i.repeat(x, 2)),
            list(i.accumulate([1, 2, 3])), list(i.accumulate([x, x, x], operator.mul)),
            list(i.accumulate([1, 2], initial=5)), list(i.product('ab', [1, 2])), list(i.product([0, 1], repeat=2)),
            list(i.permutations([1, 2, 3], 2)), list(i.combinations([1, 2, 3], 2)),
            list(i.combinations_with_replacement([1, 2], 2)), list(i.starmap(pow, [(2, 3), (3, 2)])),
            list(i.takewhile(lambda v: v < 3, [1, 2, 3, 1])), list(i.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
            list(i.filterfalse(lambda v: v % 2, range(5))), list(i.compress('abc', [1, 0, 1])),
            [(k, list(g)) for k, g in i.groupby([1, 1, 2, 3, 3])],
            [(k, list(g)) for k, g in i.groupby(['aa', 'b', 'cc'], key=len)],
            list(i.zip_longest([1, 2], [3], fillvalue=0)), list(i.pairwise([1, 2, 3])),
            [list(t) for t in i.tee([1, 2], 2)])


@cases()
def operator_(x):
    o = operator
    return (o.itemgetter(1)([1, 2]), o.itemgetter(0, 2)('abc'), o.attrgetter('k')(A()), o.methodcaller('upper')('a'),
            o.add(x, 1), o.matmul(x, x), o.concat([1], [2]), o.countOf([1, 1, 2], 1), o.indexOf([1, 2], 2), o.truth([]),
            o.not_(1), o.is_(None, None), o.contains([1], 1), o.neg(x), o.index(3), o.iadd([1], [2]), o.mod(7, 4),
            o.inv(5), o.lshift(1, 3), o.setitem, o.attrgetter('a.k')(types.SimpleNamespace(a=A())) if False else 0,
            o.itemgetter(slice(1, 3))([1, 2, 3, 4]))


@cases()
def collections_(x):
    d = collections.defaultdict(list)
    d['a'].append(x)
    d['b']
    od = collections.OrderedDict(a=1, b=2)
    od.move_to_end('a')
    od2 = collections.OrderedDict([('x', 1)])
    dq = collections.deque([1, 2, 3], maxlen=3)
    dq.append(4)
    dq.appendleft(0)
    dq.rotate(1)
    dq.extend([7])
    l = dq.pop()
    dq.popleft()
    c = collections.Counter('abca')
    c.update('aa')
    c['z'] += 1
    cm = collections.ChainMap({'a': 1}, {'a': 2, 'b': 3})
    cm['n'] = 5
    return (dict(d), list(od.items()), od.popitem(), list(dq), l, c.most_common(1), c['q'], sum(c.values()),
            (c + collections.Counter(a=1))['a'], cm['a'], cm['b'], cm.maps[0], len(cm), c, od2, list(c.elements())[:2],
            cm.new_child({'z': 1})['z'], dict(cm), collections.Counter(a=3) - collections.Counter(a=1))


@cases()
def math_(x):
    m = math
    return (m.sqrt(2), m.pi, m.floor(2.5), m.ceil(2.1), m.log(8, 2), m.log2(8), m.prod([1, 2, 3]), m.gcd(12, 18),
            m.lcm(4, 6), m.isclose(1, 1 + 1e-12), m.inf, m.isnan(m.nan), m.factorial(5), m.comb(5, 2), m.hypot(3, 4),
            m.fsum([0.1] * 10), m.copysign(1, -2), m.modf(2.5), m.frexp(8), m.trunc(-2.5), m.degrees(1), m.isqrt(10),
            m.dist([1, 2], [3, 4]), m.exp(1), x * m.tau, m.perm(5, 2), m.ldexp(1, 3), m.fmod(7, 3), m.remainder(7, 3),
            m.erf(0.5), m.gamma(5), m.cbrt(8), m.nextafter(1, 2))


@cases()
def copy_(x):
    l = [1, [2, x]]
    c = copy.copy(l)
    d = copy.deepcopy(l)
    a = A(5)
    b = copy.copy(a)
    e = copy.deepcopy(a)
    t = copy.copy(x)
    u = copy.deepcopy(x)
    l[1].append(3)
    dd = copy.deepcopy({'a': [1], 'b': (1, [2])})
    b.k = 7
    return (c, d, a.k, b.k, e.k, t, u, dd, copy.copy({1: 2}), copy.copy({1}), copy.deepcopy((1, 2)), d[1] is not l[1],
            copy.copy(collections.deque([1])), copy.deepcopy(collections.OrderedDict(a=[1])))


@cases()
def strings(x):
    s = 'Hello, World'
    return (s.upper(), s.split(', '), s.partition(','), s.replace('l', 'L'), s.find('W'), s.startswith(('He', 'x')),
            s.strip('Hd'), '-'.join(['a', 'b']), '{:>5}|{!r}|{a}'.format(1, 'q', a=2),
            f"{3.14159:.2f} {10:#x} {'a':^5} {s!r:>20} {5:,} {0.5:%}", '%s %d %.2f %r' % ('a', 3, 1.5, 'z'),
            '%(k)s' % {'k': 1}, s.encode(), b'ab'.decode(), s.zfill(15), s[::-1], s[1:5], 'a' * 3, 'a' in s,
            s.count('l'), s.isalpha(), '1'.isdigit(), s.title(), s.swapcase(), s.center(20, '*'), s.rsplit(',', 1),
            'a\nb'.splitlines(), s.casefold(), s.index('o'), s.removeprefix('He'), s.removesuffix('ld'), ord('a'),
            chr(98), str.maketrans('a', 'b'), '\t'.expandtabs(2), min('bca'), sorted('bca'), list(enumerate('ab')),
            'a' < 'b', hash('a') == hash('a'), str(3), str(1.5), str([1, 'a']), repr('a'), str((1,)), str({'a': 1}),
            str(None), str(True), f'{[1, 2]}', f"{ {'a': 1}}", string.ascii_lowercase[:3], 'é'.encode('latin1'),
            int('ff', 16), float('1e3'), int(3.9), bytes(3), b'a' + b'b', b'abc'[0], b'abc'[1:], b'a,b'.split(b','),
            bytes([1, 2]).hex(), bytes.fromhex('0102'), 'x'.ljust(3), 'a,b,c'.rpartition(','),
            '{0[a]} {1.k}'.format({'a': 1}, A()), f'{x.shape}', f'{x.dtype}', f'A().k={A().k!r}')


@cases()
def numbers_(x):
    return (5 .bit_length(), 1.5.is_integer(), 0.5.as_integer_ratio(), 255 .to_bytes(2, 'big'),
            int.from_bytes(b'\x01\x02', 'big'), 3 .conjugate(), (1 + 2j).real, abs(3 + 4j), divmod(-7, 2), -7 // 2,
            -7 % 3, 7.5 // 2, round(2.5), round(2.675, 2), round(1234, -2), pow(3, 4, 5), 2 ** (-1), 1e309,
            float('nan') != float('nan'), bin(5), hex(255), oct(8), 5 .bit_count(), 5 & 3, 5 ^ 3, ~5, 1 << 4,
            3 .__add__(4), True + 1, int(True), 10 ** 20, -0.0, complex(1, 2), 2.0.hex(), float.fromhex('0x1.8p1'),
            sum([0.1] * 3), max(1, 2.5), min([3, 1], key=lambda v: -v), 1 if x.shape[0] > 3 else 0, bool(0.0),
            isinstance(True, int), type(1)(2.5), 3 in (1, 2, 3), 1000)


@cases()
def sorting(x):
    l = [('b', 2), ('a', 3), ('c', 1)]
    l2 = sorted(l, key=lambda t: t[1])
    l.sort(reverse=True)
    r = [3, 1, 2]
    r.reverse()
    return (l, l2, sorted({'b': 1, 'a': 2}), sorted([x.shape[0], 2]), min(l, key=operator.itemgetter(1)),
            max([1, 5], [2]), list(reversed(l)), sorted([3, 1], reverse=True), r, sorted([(1, 'b'), (1, 'a')]),
            sorted(['B', 'a'], key=str.lower), heap())


def heap():
    import heapq, bisect
    h = [3, 1, 2]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return (heapq.heappop(h), heapq.nsmallest(2, h), heapq.nlargest(1, h), bisect.bisect([1, 2, 3], 2))


@cases()
def zips(x):
    out = []
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as e:
        out.append(str(e))
    try:
        list(zip([1, 2], [1], strict=True))
    except ValueError as e:
        out.append(str(e))
    a, *b, c = range(5)
    (d, e), f = ((1, 2), 3)
    [g, h] = x[:2]
    first, *_ = {'k': 1, 'j': 2}.items()
    return (out, a, b, c, d, e, f, g, h, first, list(map(lambda p, q: p + q, [1, 2], [3, 4])),
            list(filter(None, [0, 1, 2])), dict(zip('ab', [x, 1])), [*range(2), *'ab'], {**{'a': 1}, 'b': 2}, (*[1], 2),
            {*[1, 2]})


@cases()
def starargs(x):
    def f(a, /, b, *c, d=4, e, **g):
        return (a, b, c, d, e, g)
    def k(*, z=1):
        return z
    args = [1, 2]
    kw = {'e': 5, 'q': x}
    out = [f(*args, **kw), f(1, *[2, 3], 4, e=6), f(*(1,), **{'b': 2, 'e': 3}), k(**{}),
           (lambda *a, **k: (a, k))(1, *[2], z=3, **{'y': 4}), max(*[1, 2]), dict(a=1, **{'b': 2})]
    for bad in (lambda: f(1), lambda: f(1, 2, e=1, **{'e': 2}), lambda: k(1), lambda: f(a=1, b=2, e=3), lambda: k(y=1)):
        try:
            out.append(bad())
        except TypeError as e:
            out.append(str(e))
    return out


@cases()
def dels(x):
    a = 1
    b = [1, 2, 3]
    del b[0]
    del b[-1:]
    d = {'a': 1, 'b': 2}
    del d['a']
    o = A()
    del o.k
    del a
    out = []
    try:
        print(a)  # noqa: F821
    except UnboundLocalError as e:
        out.append(str(e))
    try:
        o.k
    except AttributeError as e:
        out.append(str(e))
    try:
        del d['zz']
    except KeyError as e:
        out.append(repr(e))
    try:
        del o.k
    except AttributeError as e:
        out.append(str(e))
    y = x + 1
    del x
    return (b, d, out, y)


@cases()
def excs(x):
    out = []
    try:
        try:
            1 / 0
        except ZeroDivisionError as e:
            raise ValueError('v') from e
    except ValueError as v:
        out += [type(v.__cause__).__name__, v.__suppress_context__, v.__context__ is v.__cause__]
    try:
        try:
            {}['a']
        except KeyError:
            raise RuntimeError('r') from None
    except RuntimeError as v:
        out += [v.__cause__, type(v.__context__).__name__, v.__suppress_context__]
    e = ValueError('n')
    e.add_note('note1')
    e.add_note('note2')
    out.append(e.__notes__)
    class_ = type(e)
    out.append(class_.__name__)
    try:
        raise e
    except (KeyError, ValueError) as z:
        out.append(z is e)
    else:
        out.append('no')
    finally:
        out.append('fin')
    try:
        raise ValueError
    except Exception as q:
        out.append((q.args, str(q), repr(q)))
    try:
        assert x.shape[0] == 3, 'msg'
    except AssertionError as q:
        out.append(str(q))
    try:
        raise KeyError('k')
    except LookupError as q:
        out.append((str(q), isinstance(q, KeyError)))
    try:
        raise OSError(2, 'nofile')
    except OSError as q:
        out.append((q.errno, q.strerror))
    try:
        next(iter([]))
    except StopIteration:
        out.append('si')
    try:
        [].pop()
    except IndexError as q:
        out.append(str(q))
    try:
        int('z')
    except ValueError as q:
        out.append(str(q))
    try:
        a, b = [1]
    except ValueError as q:
        out.append(str(q))
    try:
        a, b = [1, 2, 3]  # noqa: F841
    except ValueError as q:
        out.append(str(q))
    return out


@cases()
def inspect_(x):
    def f(a, b=2, *c, d, **e):
        pass
    s = inspect.signature(f)
    return (list(s.parameters), inspect.isfunction(f), inspect.isclass(A), inspect.ismethod(A().mul),
            f.__code__.co_argcount, f.__name__, f.__defaults__, A.__name__, A.__mro__[0] is A, A.__module__,
            inspect.isbuiltin(len), f.__kwdefaults__, s.parameters['b'].default, inspect.isgeneratorfunction(f),
            inspect.getmembers)


@cases()
def misc(x):
    w = (y := (x + 1)).sum()
    lam = lambda a, b=3: a + b
    v = [i for i in range(3) if (j := i)]
    z = 1 < 2 < 3
    q = x if z else 0
    r = not z or None
    t = type(x) is torch.Tensor
    n = [[0] * 2 for _ in range(2)]
    n[0][1] = x
    s = {i % 3 for i in range(5)}
    fs = frozenset([1, 2])
    it = iter([1, 2])
    nx = (next(it, 9), next(it, 9), next(it, 9))
    sl = slice(1, 3)
    g = getattr(A(), 'k')
    st = types.SimpleNamespace(a=1, b=x)
    st.c = 2
    return (w, y, lam(1), v, j, z, q, r, t, n, s, fs | {3}, nx, [1, 2, 3, 4][sl], g, st.a, st.b, st.c,
            vars(st) if False else 0, any([]), all([]), abs(-3), id(x) == id(x), callable(lam),
            isinstance(x, (int, torch.Tensor)), iter(callable_gen(), 3) and list(iter(callable_gen(), 3)),
            hasattr(x, 'shape'), vars(A(3)), dir(A)[:0], ascii('é'), bool([]), slice(None).indices(5), memoryview)


def callable_gen():
    n = [0]
    def f():
        n[0] += 1
        return n[0]
    return f


@cases()
def byte_arrays(x):
    a = bytearray(b"abc")
    b = a
    a[0] = 100
    a.append(33)
    b.extend([1, 2])
    del a[1]
    a[1:2] = b"QQ"
    out = []
    for bad in (lambda: a.append(300), lambda: a[99], lambda: a.pop(77)):
        try:
            bad()
        except (ValueError, IndexError) as e:
            out.append((type(e).__name__, str(e)))
    return bytes(a), len(a), a[0], list(a), a, b is a, a.hex(), bytearray(3), 33 in a, a[1:3], a.decode("latin1"), out


@cases([2, 1], fullgraph=False)
def classes_made_in_c(v):
    @functools.cache
    def f(n):
        return n + 1

    return json.dumps(v), f(2), collections.Counter(v)


@cases(VECTOR, [1, 2], (1, 2))
def numbers_of_lists(x, v, t):
    log = [math.prod(v), math.fsum(v), math.dist(v, t)]
    for wrong in (lambda: math.gcd(v), lambda: math.sqrt(v), lambda: math.hypot(1.0, v), lambda: math.gcd(t),
                  lambda: math.floor(v), lambda: math.trunc(v)):
        try:
            log.append(wrong())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


test_stdlib = cases.test()


def test_records_are_logged_as_from_the_program():
    logger, records = logging.getLogger("records of a program"), []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append((record.levelno, record.lineno, record.funcName, record.pathname, record.getMessage(),
                            record.args))

    def inner(x, n):
        logger.warning("row %d of %s", n, "three")
        return x * n

    def f(x):
        logger.debug("not shown")
        x = inner(x, 1) + inner(x, 2)
        logger.log(logging.ERROR, "done")
        return x

    logger.propagate = False
    logger.addHandler(Keep())
    compiled = jit.compile(f, backend="eager", fullgraph=True)
    for level in (logging.WARNING, logging.ERROR):
        logger.setLevel(level)
        found = []
        for run in (f, compiled, compiled):
            records.clear()
            run(torch.ones(2))
            found.append(list(records))
        assert found[0] == found[1] == found[2] and len(found[0]) == (3 if level == logging.WARNING else 1)


def _with_buffers(x):
    module = torch.nn.Module()
    module.register_buffer("a", x)
    module.register_buffer("b", x[0])
    made = copy.deepcopy(module)
    return [made.a, made.b]


COPIES = {
    "rows": lambda x: copy.deepcopy([x[0], x[1]]), "a view and its tensor": lambda x: copy.deepcopy((x[1:], x)),
    "one row twice": lambda x: copy.deepcopy([x[0]] * 2),
    "in a dict": lambda x: [*copy.deepcopy({1: x, 2: x.T}).values()],
    "detached": lambda x: copy.deepcopy([x.detach(), x]), "of a result": lambda x: copy.deepcopy([y := x * 2, y[0]]),
    "apart": lambda x: [copy.deepcopy(x), copy.deepcopy(x[0])], "buffers": _with_buffers,
    "behind a break": lambda x: copy.deepcopy([*sorted(x[0]), x]), "a column": lambda x: [copy.deepcopy(x[:, 0])],
}


@pytest.mark.parametrize("made", [lambda: torch.arange(6.0).view(2, 3), lambda: torch.arange(12.0).view(2, 6)[:, ::2]])
@pytest.mark.parametrize("name", COPIES)
def test_deep_copies_share_memory_as_their_tensors_do(name, made):
    def fn(x):
        found = COPIES[name](x)
        found[0].add_(1)
        return found

    def looked_at(tensors):
        places = [t.untyped_storage().data_ptr() for t in tensors]
        return [(t.tolist(), t.stride(), places.index(p)) for t, p in zip(tensors, places)]

    compiled = jit.compile(fn)
    for _ in range(2):
        assert looked_at(compiled(made())) == looked_at(fn(made()))


def test_deep_copies_of_arguments():
    def fn(x, y):
        a, b = copy.deepcopy([x, y])
        a.add_(1)
        return a, b

    x, compiled = torch.arange(4.0), jit.compile(fn)
    for arguments in ((x, x + 1), (x, x.view(2, 2)), (x[:2], x[2:]), (x, x * 2), (x[:3], x[1:])):
        want, found = fn(*arguments), compiled(*arguments)
        assert [t.tolist() for t in found] == [t.tolist() for t in want]
