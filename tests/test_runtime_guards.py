"""Guard programs: every accessor and check, passing and failing; what is watched, what re-arms it and what is walked
again; explanations."""

import collections
import contextvars
import contextlib
import gc
import math
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import jit
from jit.runtime import facts
from jit.runtime import guards as G
from jit.runtime import load_plan, native
from jit.runtime.plan import Plan

LOCAL = (-1, "local", 0)


def program(accessors, checks, binds=()):
    return G.program(accessors, [worded(accessors, *c) for c in checks], binds)


def worded(accessors, at, kind="", payload=None):
    """A check with the fact that tells it in words."""
    name = lambda other: G.path(accessors, other)  # noqa: E731
    with contextlib.suppress(Exception):  # of records that are wrong on purpose
        if kind in ("same", "distinct", "no_alias"):
            fact = facts.KINDS[kind](name(payload))
        elif kind == "shares":
            fact = facts.Shares(name(payload[0]), payload[1])
        elif kind == "apart":
            fact = facts.Apart(*(tuple(map(name, side)) for side in payload))
        elif kind in ("subclass", "instance"):
            fact = facts.KINDS[kind](*payload)
        elif kind == "global_state":
            fact = facts.GlobalState()
            fact.value = payload
        elif kind in ("dims", "at"):
            return at, kind, payload
        else:
            fact = facts.KINDS[kind](payload)
        return at, kind, payload, fact
    return at, kind, payload


def one(kind, payload=None):
    """A program with one check on local 0."""
    return program([LOCAL], [(0, kind, payload)])


class Plain:
    def __init__(self, **kw):
        self.__dict__.update(kw)


class Slots:
    __slots__ = ("a",)


nan, inf = math.nan, math.inf
EQ = [
    (1, [1], [2, True, 1.0, "1", None, 1 << 70]),
    (1 << 70, [1 << 70], [1, -(1 << 70)]),
    (True, [True], [1, False]),
    (0.0, [0.0], [-0.0, 0, nan]),
    (-0.0, [-0.0], [0.0]),
    (nan, [float("nan"), -float("nan")], [1.0]),
    (1.5, [3.0 / 2], [1.25]),
    ("ab", ["".join(["a", "b"])], ["a", b"ab", None]),
    (b"x", [b"x"], ["x"]),
    (None, [None], [0, False, ""]),
    (Ellipsis, [...], [None]),
    (1j, [0 + 1j], [1.0, complex(-0.0, 1)]),
    ((1, "a", (2.0, nan)), [(1, "a", (2.0, float("nan")))],
     [(1, "a", (2, nan)), (True, "a", (2.0, nan)), (1, "a"), [1, "a"]]),
    (slice(1, None, 2), [slice(1, None, 2)], [slice(1, 2, 2), slice(True, None, 2)]),
    (frozenset({1, 2}), [frozenset({2, 1})], [frozenset({True, 2}), frozenset({1})]),
    (torch.float32, [torch.float32], [torch.float64]),
    (torch.device("cpu"), [torch.device("cpu")], [torch.device("meta"), "cpu"]),
    (torch.Size([2, 3]), [torch.Size([2, 3])], [(2, 3), torch.Size([2, 4])]),
    (range(3), [range(3)], [range(4)]),
    (int, [int], [bool]),
]


@pytest.mark.parametrize("want,good,bad", EQ, ids=[repr(e[0]) for e in EQ])
def test_eq(want, good, bad):
    p = one("eq", want)
    for v in [want, *good]:
        assert p.check((v,)), v
        assert p.explain((v,)) == ""
    for v in bad:
        assert not p.check((v,)), v
        assert p.explain((v,)).startswith("local 0: expected ")


def test_simple_checks():
    a, b = object(), object()
    cases = [
        ("type_is", int, [3], [True, 3.0]),
        ("is", a, [a], [b]),
        ("is_not", a, [b, None], [a]),
        ("len", 2, [[1, 2], (1, 2), {1: 1, 2: 2}, "ab", {1, 2}], [[], (1,), {}, 5, "abc"]),
        ("truth", True, [1, "x", [0], True, 2.0, torch.ones(1)], [0, "", [], False, None, {}]),
        ("truth", False, [0, "", None, {}], [1, torch.ones(2)]),
        ("dict_keys", ("a", "b"), [{"a": 1, "b": 2}], [{"b": 1, "a": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, 5]),
        ("dict_lacks", "a", [{}, {"b": 1}], [{"a": None}, 3]),
        ("no_dict_attr", "a", [Plain(), Plain(b=1), 5, Slots()], [Plain(a=1)]),
        ("type_lacks", "q", [Plain(q=1), 3], []),
        ("type_lacks", "real", ["x"], [3, 2.5]),
        ("class_lacks", "real", [str], [int, 3]),
        ("elements", (1, 2), [{1, 2}, frozenset({1, 2})], [{1}, {1, 3}, {True, 2}, [1, 2]]),
    ]
    for kind, payload, good, bad in cases:
        p = one(kind, payload)
        for v in good:
            assert p.check((v,)), (kind, v)
        for v in bad:
            assert not p.check((v,)), (kind, v)
            assert p.explain((v,)), (kind, v)


def test_ordered_dict_order():
    d = collections.OrderedDict(a=1, b=2)
    p = one("dict_keys", ("a", "b"))
    assert p.check((d,))
    d.move_to_end("a")
    assert not p.check((d,))
    watched = program([(-1, "const", d)], [(0, "dict_keys", ("b", "a"))])
    assert watched.check(()) and watched.check(())
    d.move_to_end("b")
    assert not watched.check(())


def test_memory_apart():
    accessors = [(-1, "local", i) for i in range(4)] + [(-1, "const", torch.ones(2))]
    flat = torch.zeros(16)
    a, b, c, d = flat.split(4)
    p = program(accessors, [(0, "apart", ((0, 1), (2, 3, 4)))])
    assert p.check((a, b, c, d)) and p.check((d, a, c, b))
    assert p.check((a, b, c, c)) and p.check((a, b, flat[8:], c))  # what is only read may overlap
    assert (not p.check((a, a, c, d)) and not p.check((a, b, c, b[1:2])) and not p.check((a, flat[2:6], c, d))
            and not p.check((a, b, flat, d)))
    assert p.check((a[:0], b, flat[4:4], flat[8:])) and not p.check((a, b, c, 3))
    assert p.check((torch.empty(4, device="meta"), a, torch.empty(4, device="meta"), b))
    assert "shared memory" in p.explain((a, a, c, d))
    many = [(-1, "local", i) for i in range(100)]
    p = program(many, [(0, "apart", (tuple(range(60)), tuple(range(60, 100))))])
    parts = torch.zeros(400).split(4)
    assert p.check(tuple(parts)) and not p.check((*parts[:99], parts[3]))


def test_relations_between_locals():
    accessors = [LOCAL, (-1, "local", 1)]
    x = torch.zeros(4)
    for kind, good, bad in ([("same", (x, x), (x, x.clone())), ("distinct", (x, x.clone()), (x, x)),
                             ("no_alias", (x, x.clone()), (x, x[1:]))]):
        p = program(accessors, [(0, kind, 1)])
        assert p.check(good) and not p.check(bad)
        assert "expected" in p.explain(bad)
    flat = torch.zeros(8)
    p = program(accessors, [(0, "no_alias", 1)])
    assert (p.check((flat[:4], flat[4:])) and not p.check((flat[:5], flat[4:])) and p.check((flat, flat[:0]))
            and not p.check((flat[::2], flat[1::2])))
    p = program(accessors, [(0, "shares", (1, 8))])
    assert (p.check((flat, flat[2:])) and p.check((flat[1:], flat[3:4])) and not p.check((flat, flat[1:]))
            and not p.check((flat, x)) and not p.check((flat, 3)))
    assert "8 bytes further on" in p.explain((flat, x))
    p = program(accessors, [(0, "room", (8, 16))])
    assert (p.check((flat[2:], 0)) and p.check((flat[4:5], 0)) and not p.check((flat[1:], 0))
            and not p.check((flat[5:], 0)) and not p.check((3, 0)))
    assert "16 from its start" in p.explain((flat[5:], 0))
    np = pytest.importorskip("numpy").zeros(8, "float32")
    assert not p.check((torch.from_numpy(np), torch.from_numpy(np[4:6])))
    assert not p.check((x, 3))


def test_accessors_on_locals():
    def f(x, y=3, *, z=4):
        return k

    k = 5
    f.note = "n"
    cls = type("Sub", (Plain,), {"shared": 7})
    o = cls(v=1)
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 2.0)
    cases = [
        ([("dict_attr", "v")], o, 1, cls(v=2)),
        ([("dict_attr", "shared")], cls, 7, Plain),
        ([("getattr", "v")], o, 1, Plain()),
        ([("getattr", "shared")], o, 7, Plain()),
        ([("type_attr", "shared")], o, 7, Plain()),
        ([("class_attr", "shared")], cls, 7, o),
        ([("type",)], 3, int, 3.0),
        ([("dict",), ("item", "v")], o, 1, Plain()),
        ([("item", 1)], [4, 5], 5, [4]),
        ([("item", -1)], [4, 5], 5, []),
        ([("item", 1)], (4, 5), 5, (4,)),
        ([("item", "k")], {"k": 5}, 5, {}),
        ([("item", (1, 2))], {(1, 2): 5}, 5, {}),
        ([("item", 1)], {1: 5}, 5, {2: 5}),
        ([("item", 0)], collections.namedtuple("N", "a")(9), 9, ()),
        ([("item", 0)], torch.Size([9]), 9, torch.Size([])),
        ([("cell",)], f.__closure__[0], 5, 3),
        ([("closure", 0), ("cell",)], f, 5, lambda: 0),
        ([("function", "code")], f, f.__code__, lambda: 0),
        ([("function", "defaults")], f, (3,), len),
        ([("function", "kwdefaults"), ("item", "z")], f, 4, lambda: 0),
        ([("function", "dict"), ("item", "note")], f, "n", lambda: 0),
        ([("grad",), ("item", 0), ("getattr", "shape")], parameter, torch.Size([]), torch.ones(2)),
        ([("wrapped",)], native().Dispatcher(f), f, f),
    ]
    for steps, good, value, bad in cases:
        accessors = [LOCAL] + [(i, *s) for i, s in enumerate(steps)]
        p = program(accessors, [(len(steps), "eq" if not callable(value) or isinstance(value, type) else "is", value)])
        assert p.check((good,)), steps
        assert p.value((good,), len(steps)) == value
        assert not p.check((bad,)), steps
        assert p.explain((bad,))
        watched = program([(-1, "const", good), *accessors[1:]],
                          [(len(steps), "eq" if not callable(value) or isinstance(value, type) else "is", value)])
        assert watched.check(()) and watched.check(()), steps


def test_namedtuple_and_missing_locals():
    p = program([(-1, "local", 3)], [(0, "truth", True)])
    assert not p.check((1,)) and "cannot be reached" in p.explain((1,))


@pytest.mark.parametrize("base, make", [(list, lambda v: [v]), (tuple, lambda v: [v]), (dict, lambda v: {0: v}),
                                        (collections.OrderedDict, lambda v: {0: v})])
def test_what_subclasses_of_containers_hold_is_read_without_their_own_code(base, make):
    def own(*args):
        raise AssertionError("code of the subclass ran")

    class Own(base):
        __getitem__ = __iter__ = __len__ = __contains__ = own

    checks = [(1, "eq", 5), (0, "len", 1)]
    if issubclass(base, dict):
        checks += [(0, "dict_keys", (0,)), (0, "dict_lacks", 1)]
    p = program([LOCAL, (0, "item", 0)], checks)
    assert p.check((Own(make(5)),)) and not p.check((Own(make(6)),)) and not p.check((Own(),))
    good = Own(make(5))
    watched = program([(-1, "const", good), (0, "item", 0)], checks)
    assert watched.check(()) and watched.check(())
    if base is not tuple:
        base.__setitem__(good, 0, 6)
        assert not watched.check(())
        base.__setitem__(good, 0, 5)
        assert watched.check(())


def test_the_order_of_an_ordered_dict_is_its_own():
    keys = collections.OrderedDict(a=1, b=2)
    for p, given in (((one("dict_keys", ("a", "b")), (keys,)),
                      (program([(-1, "const", keys)], [(0, "dict_keys", ("a", "b"))]), ()))):
        assert p.check(given) and p.check(given)
        keys.move_to_end("a")
        assert not p.check(given)
        keys.move_to_end("b")
        assert p.check(given)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def test_tensor_spec():
    x = torch.randn(2, 3)
    p = one("tensor", G.TensorSpec.of(x))
    assert p.check((torch.zeros(2, 3),))
    with torch.inference_mode():
        inference = torch.zeros(2, 3)
    bad = {
        "type": nn.Parameter(torch.zeros(2, 3)),
        "dtype": torch.zeros(2, 3, dtype=torch.float64),
        "device": torch.zeros(2, 3, device="meta"),
        "requires_grad": torch.zeros(2, 3, requires_grad=True),
        "rank": torch.zeros(2, 3, 1),
        "size of dim 1": torch.zeros(2, 4),
        "stride of dim 0": torch.zeros(3, 2).t(),
        "dispatch keys": inference,
    }
    for word, value in bad.items():
        assert not p.check((value,)), word
        assert word in p.explain((value,)), p.explain((value,))
    for value in (None, 3, "x", torch.zeros(2, 3).to_sparse(), (x + 0j).conj()):
        assert not p.check((value,))
        assert p.explain((value,))
    dynamic = one("tensor", G.TensorSpec.of(x, dynamic_dims=(0,)))
    assert (dynamic.check((torch.zeros(9, 3),)) and not dynamic.check((torch.zeros(9, 4),))
            and not dynamic.check((torch.zeros(9),)))
    loose = one("tensor", G.TensorSpec(torch.Tensor, torch.float32))
    assert loose.check((torch.zeros(1, 2, 3),)) and not loose.check((torch.zeros(3).to_sparse(),))
    some_strides = one("tensor", G.TensorSpec(torch.Tensor, torch.float32, sizes=(2, 3), strides=(None, 1)))
    assert some_strides.check((torch.zeros(2, 6)[:, :3],)) and not some_strides.check((torch.zeros(3, 2).t(),))
    aligned = one("tensor", G.TensorSpec(torch.Tensor, torch.float32, align=16))
    base = torch.zeros(16)
    assert aligned.check((base,)) and not aligned.check((base[1:],))


def test_scalar_tensor_and_subclass():
    class Sub(torch.Tensor):
        pass

    p = one("tensor", G.TensorSpec.of(torch.tensor(1.0)))
    assert p.check((torch.tensor(2.0),)) and not p.check((torch.tensor([2.0]),))
    assert not p.check((torch.tensor(1.0).as_subclass(Sub),))
    sub = one("tensor", G.TensorSpec.of(torch.ones(2).as_subclass(Sub)))
    assert sub.check((torch.zeros(2).as_subclass(Sub),)) and not sub.check((torch.zeros(2),))


def test_dims():
    # 4 <= size(0), size(0) divisible by 4, size(1) == 2 * n, stride(0) > 0
    regs = (("size", 0, 0), ("const", 4), ("sub", 0, 1), ("mod", 0, 1), ("size", 0, 1), ("int", 1), ("const", 2),
            ("mul", 5, 6), ("sub", 4, 7), ("stride", 0, 0))
    conditions = ((2, ">=0"), (3, "==0"), (8, "==0"), (9, ">0"))
    p = program([LOCAL, (-1, "local", 1)], [(-1, "dims", ((0, 1), regs, conditions))])
    assert p.check((torch.zeros(8, 6), 3))
    for bad in ((torch.zeros(2, 6), 3), (torch.zeros(9, 6), 3), (torch.zeros(8, 6), 4), (torch.zeros(8), 3), (8, 3),
                (torch.zeros(8, 6), True), (torch.zeros(8, 6), 1 << 80)):
        assert not p.check(bad)
        assert p.explain(bad) == "dims does not hold"
    for relation, good, bad in [("!=0", 1, 0), ("<0", -1, 0), ("<=0", 0, 1), (">0", 1, 0)]:
        q = program([LOCAL], [(-1, "dims", ((0,), (("int", 0),), ((0, relation),)))])
        assert q.check((good,)) and not q.check((bad,))


# ---- global state ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


STATES = {
    "grad mode": torch.no_grad,
    "keys": torch.inference_mode,
    "CPU autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype": default_dtype,
    "deterministic": deterministic,
    "torch function modes": Mode,
    "function modes": lambda: torch.device("meta"),
    "torch function state": torch._C.DisableTorchFunctionSubclass,
    "dispatch keys": lambda: __import__("torch.utils.flop_counter").utils.flop_counter.FlopCounterMode(display=False),
}


@pytest.mark.parametrize("word", STATES)
def test_global_state(word):
    p = program([], [(-1, "global_state", G.global_state_snapshot())])
    assert p.check(()) and p.explain(()) == ""
    with STATES[word]():
        assert not p.check(())
        assert word in p.explain(())
        inside = program([], [(-1, "global_state", G.global_state_snapshot())])
        assert inside.check(())
    assert p.check(()) and not inside.check(())


def test_autocast_dtypes_differ():
    with torch.autocast("cpu", dtype=torch.float16):
        p = program([], [(-1, "global_state", G.global_state_snapshot())])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not p.check(())
    with torch.autocast("cpu", dtype=torch.float16):
        assert p.check(())


# ---- watched facts ---------------------------------------------------------------------------------------------------


def walks(p):
    return p.stats["walks"]


def test_armed_after_one_walk():
    o = Plain(a=1, b=2)
    p = program([(-1, "const", o), (0, "dict_attr", "a")], [(0, "type_is", Plain), (1, "eq", 1)])
    for _ in range(5):
        assert p.check(())
    assert walks(p) == 1 and p.stats["armed"] and p.stats["dicts"] == 1
    o.a = 1  # the same object again
    o.b = 99  # another name
    o.new = 3
    assert p.check(()) and walks(p) == 1
    o.a = 2
    assert not p.check(()) and walks(p) == 2
    assert "expected 1, found 2" in p.explain(())
    o.a = int("1")
    assert p.check(()) and walks(p) == 3
    assert p.check(()) and walks(p) == 3
    del o.a
    assert not p.check(()) and "cannot be reached" in p.explain(())


def test_equal_value_of_another_object_is_walked_and_accepted():
    o = Plain(a=1000)
    p = program([(-1, "const", o), (0, "dict_attr", "a")], [(1, "eq", 1000)])
    assert p.check(())
    o.a = int("1000")
    assert p.check(()) and walks(p) == 2
    assert p.check(()) and walks(p) == 2


def test_replaced_dict_and_class():
    o = Plain(a=1)
    p = program([(-1, "const", o), (0, "dict_attr", "a"), (0, "type_attr", "shared")], [(1, "eq", 1)])
    assert p.check(())
    o.__dict__ = {"a": 2}
    assert not p.check(())
    o.__dict__ = {"a": 1}
    assert p.check(())

    class A(Plain):
        pass

    class B(Plain):
        pass

    o = A(a=1)
    p = program([(-1, "const", o)], [(0, "type_is", A)])
    assert p.check(())
    o.__class__ = B
    assert not p.check(())


def test_class_attributes():
    class Base:
        scale = 2

    class Sub(Base):
        pass

    o = Sub()
    p = program([(-1, "const", o), (0, "type_attr", "scale")],
                [(1, "eq", 2), (0, "type_lacks", "extra"), (0, "no_dict_attr", "scale")])
    assert p.check(()) and p.check(()) and walks(p) == 1
    Sub.other = 1  # another name: only the tag moves
    assert p.check(()) and p.check(()) and walks(p) == 1 and p.stats["armed"]
    Base.scale = 3
    assert not p.check(())
    Base.scale = 2
    assert p.check(())
    Sub.scale = 9
    assert not p.check(())
    del Sub.scale
    assert p.check(())
    Base.extra = 1
    assert not p.check(())
    del Base.extra
    assert p.check(())
    o.scale = 2
    assert not p.check(())
    del o.scale
    assert p.check(())
    Sub.__bases__ = (type("Other", (), {"scale": 5}),)
    assert not p.check(())


def test_object_without_a_dict_that_gets_one():
    class C:
        pass

    o = C()
    p = program([(-1, "const", o)], [(0, "no_dict_attr", "late")])
    assert p.check(())
    o.late = 1
    assert not p.check(())


def test_functions_and_cells():
    def make():
        n = 1

        def f(x=1, *, y=2):
            return n

        def put(v):
            nonlocal n
            n = v

        return f, put

    f, put = make()
    root = (-1, "const", f)
    code = program([root, (0, "function", "code")], [(1, "is", f.__code__)])
    defaults = program([root, (0, "function", "defaults"), (1, "item", 0)], [(2, "eq", 1)])
    keyword = program([root, (0, "function", "kwdefaults"), (1, "item", "y")], [(2, "eq", 2)])
    cell = program([root, (0, "closure", 0), (1, "cell",)], [(2, "eq", 1)])
    note = program([root, (0, "function", "dict")], [(1, "dict_lacks", "note")])
    everything = (code, defaults, keyword, cell)
    assert all(p.check(()) and p.check(()) and walks(p) == 1 for p in everything)
    put(2)
    assert not cell.check(()) and code.check(())
    put(1)
    assert cell.check(())
    f.__defaults__ = (5,)
    assert not defaults.check(())
    f.__kwdefaults__["y"] = 3
    assert not keyword.check(())
    f.__code__ = (lambda x=1, *, y=2: put).__code__
    assert not code.check(())
    assert not note.check(())  # no dict at all yet
    f.note = 1
    assert not note.check(())


def test_lists_and_dicts():
    items, table = [1, 2], {"a": 1}
    p = program(
        [(-1, "const", items), (0, "item", 1), (-1, "const", table), (2, "item", "a")],
        [(0, "len", 2), (1, "eq", 2), (2, "dict_keys", ("a",)), (3, "eq", 1), (2, "dict_lacks", "b"), (2, "len", 1)],
    )
    assert p.check(()) and p.check(()) and walks(p) == 1
    items[0] = 5
    assert p.check(()) and walks(p) == 2
    items.append(3)
    assert not p.check(())
    items.pop()
    assert p.check(())
    table["b"] = 1
    assert not p.check(())
    del table["b"]
    table["a"] = 2
    assert not p.check(())
    table["a"] = 1
    assert p.check(())
    items[:] = [1, 2]
    table.clear()
    assert not p.check(())


def test_items_that_have_moved():
    """A list that has got other memory with the same items in it needs no walk, and is looked at in its new place from
    then on."""
    items = [object() for _ in range(3)]
    wanted = items[1]
    p = program([(-1, "const", items), (0, "item", 1)], [(0, "len", 3), (1, "is", wanted)])
    assert p.check(())
    items.extend(range(10000))
    del items[3:]
    for _ in range(3):
        assert p.check(()) and walks(p) == 1
    items[1] = None
    assert not p.check(())
    items[1] = wanted
    assert p.check(())
    items.clear()
    assert not p.check(())


def test_other_objects_at_the_same_address():
    """An object's class is not looked at where it cannot change, but another object may come to lie where the object
    was."""

    def cell(value):
        return (lambda: value).__closure__[0]

    makes = {"dict": lambda k: {"a": k}, "ordered": lambda k: collections.OrderedDict(a=k), "list": lambda k: [k],
             "tuple": lambda k: (k, []), "cell": cell, "float": lambda k: k + 0.5}
    holders = {"attribute": (Plain(), "dict_attr", "v"), "cell": (cell(None), "cell"), "list": ([None], "item", 0),
               "dict": ({"v": None}, "item", "v")}

    def put(where, value):
        holder = holders[where][0]
        if where == "attribute":
            holder.v = value
        elif where == "cell":
            holder.cell_contents = value
        else:
            holder["v" if where == "dict" else 0] = value

    for where, (holder, *steps) in holders.items():
        for name, make in makes.items():
            put(where, make(1))
            value = make(1)
            inner = ([(1, "item", "a" if name in ("dict", "ordered") else 0)]
                     if name not in ("cell", "float") else [(1, "cell")] if name == "cell" else [(1, "type")])
            p = program([(-1, "const", holder), (0, *steps), *inner],
                        [(1, "type_is", type(value)), (2, "is", float) if name == "float" else (2, "eq", 1)])
            del value
            assert p.check(()) and p.check(()), (where, name)
            for k in range(60):
                other = list(makes)[k % len(makes)]
                put(where, None)
                put(where, makes[other](k % 2))
                assert p.check(()) == (other == name and (k % 2 == 1 or name == "float")), (where, name, other, k)


def test_replaced_dicts_at_the_same_address():
    o = Plain(a=1)
    p = program([(-1, "const", o), (0, "dict",), (0, "dict_attr", "a")],
                [(1, "type_is", dict), (1, "len", 1), (2, "eq", 1)])
    assert p.check(())
    places = set()
    for k in range(60):
        o.__dict__ = collections.OrderedDict(a=1) if k % 3 == 0 else {"a": k % 2} if k % 3 == 1 else {"a": 1, "b": 2}
        places.add(id(o.__dict__))
        assert p.check(()) == (k % 3 == 1 and k % 2 == 1), k
    assert len(places) < 60  # else this has shown nothing


def test_global_names_and_shadowed_builtins():
    module = types.ModuleType("scratch")
    module.value = 4
    names = module.__dict__
    p = program([(-1, "const", names), (0, "item", "value"), (-1, "const", module), (2, "dict_attr", "value")],
                [(1, "eq", 4), (0, "dict_lacks", "len"), (3, "eq", 4)])
    assert p.check(())
    module.unrelated = 1
    assert p.check(()) and walks(p) == 1
    module.len = lambda x: 0
    assert not p.check(())
    del module.len
    assert p.check(())
    module.value = 5
    assert not p.check(())


def test_module_tree():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    accessors, checks, binds = ([(-1, "const", net), (0, "dict_attr", "_modules")],
                                [(1, "dict_keys", ("0", "1", "2")), (0, "type_is", nn.Sequential)], [])
    x = torch.randn(5, 3)
    for name in ("0", "2"):
        accessors += [(1, "item", name)]
        m = len(accessors) - 1
        accessors += [(m, "dict_attr", "_parameters"), (m, "dict_attr", "training")]
        checks += [(m, "type_is", nn.Linear), (m + 2, "eq", True), (m, "no_dict_attr", "forward")]
        for part in ("weight", "bias"):
            accessors.append((m + 1, "item", part))
            checks.append((len(accessors) - 1, "tensor", G.TensorSpec.of(net[int(name)]._parameters[part])))
            binds.append((len(accessors) - 1, len(binds) + 1))

    def slot(i):
        return ("slot", i)

    steps = (
        ("aten", "aten::linear", "", (slot(0), slot(1), slot(2)), (5,), None),
        ("aten", "aten::relu", "", (slot(5),), (6,), None),
        ("aten", "aten::linear", "", (slot(6), slot(3), slot(4)), (7,), None),
    )
    plan = native().bind(load_plan(Plan(5, 0, (), 8, steps, (7,))), {i + 1: p for i, p in enumerate(net.parameters())})
    p = program(accessors, checks, binds)
    p.set_plan(plan)

    def same():
        assert p.check(())
        torch.testing.assert_close(plan(x)[0], net(x).detach())

    same()
    same()
    first = walks(p)
    with torch.no_grad():
        net[0].weight.mul_(2)  # in place: nothing to do
    same()
    assert walks(p) == first
    net[0].weight.data = torch.randn(4, 3)  # other memory, same metadata
    same()
    assert walks(p) == first
    net[2].weight = nn.Parameter(torch.randn(2, 4))  # another object: bound anew
    same()
    assert walks(p) == first + 1 and plan.bound[3] is net[2].weight
    net.load_state_dict({k: torch.randn_like(v) for k, v in net.state_dict().items()})
    same()
    net.eval()
    assert (not p.check(()) and "'training' of item '0'" in p.explain(())
            and "expected True, found False" in p.explain(()))
    net.train()
    same()
    net[0].weight.requires_grad_(False)
    assert not p.check(()) and "requires_grad" in p.explain(())
    net[0].weight.requires_grad_(True)
    same()
    net[0].bias.data = net[0].bias.data.double()
    assert not p.check(()) and "dtype" in p.explain(())
    net[0].bias.data = net[0].bias.data.float()
    same()
    net[0].forward = lambda x: x
    assert not p.check(())
    del net[0].forward
    same()
    net[0] = nn.Linear(3, 4)
    same()
    assert plan.bound[1] is net[0].weight
    torch.utils.swap_tensors(net[0].weight, nn.Parameter(torch.randn(4, 3)))
    same()
    net.append(nn.ReLU())
    assert not p.check(())


def test_mixed_checks_see_the_present_watched_object():
    holder = Plain(weight=torch.zeros(3))
    p = program([LOCAL, (-1, "const", holder), (1, "dict_attr", "weight")], [(0, "distinct", 2), (0, "no_alias", 2)])
    x = torch.ones(3)
    assert p.check((x,)) and not p.check((holder.weight,)) and not p.check((holder.weight[1:],))
    holder.weight = x
    assert not p.check((x,)) and p.check((torch.ones(3),))
    assert p.stats["mixed_checks"] == 2


def test_unwatchable_facts_are_read_on_each_call():
    class Property:
        n = 1

        @property
        def value(self):
            return Property.n

    o = Property()
    p = program([(-1, "const", o), (0, "getattr", "value")], [(1, "eq", 1)])
    assert p.check(())
    Property.n = 2
    assert not p.check(())
    Property.n = 1
    assert p.check(())

    class Raises:
        def __getattr__(self, name):
            raise KeyError(name)

    assert not program([(-1, "const", Raises()), (0, "getattr", "value")], [(1, "eq", 1)]).check(())
    parameter = nn.Parameter(torch.ones(1))
    grad = program([(-1, "const", parameter), (0, "grad",)], [(1, "is", None)])
    assert grad.check(())
    parameter.sum().backward()
    assert not grad.check(())
    parameter.grad = None
    assert grad.check(())


def test_watched_sets():
    items, frozen = {1, 2}, frozenset({3})
    p = program([(-1, "const", items), (-1, "const", frozen)], [(0, "elements", (1, 2)), (1, "elements", (3,))])
    assert p.check(())
    items.add(7)
    assert not p.check(())
    items.discard(7)
    assert p.check(())


def test_one_unwatchable_fact_leaves_the_rest_watched():
    class Property:
        n = 1

        def __len__(self):
            return Property.n

    holder = Plain(odd=Property(), table=collections.OrderedDict(), a=1)
    accessors = [(-1, "const", holder), (0, "dict_attr", "odd"), (0, "dict_attr", "table"), (0, "dict_attr", "a")]
    p = program(accessors, [(1, "len", 1), (2, "len", 0), (2, "dict_keys", ()), (2, "truth", False), (3, "eq", 1)])
    for _ in range(3):
        assert p.check(())
    assert walks(p) == 1 and p.stats["armed"]
    Property.n = 2
    assert not p.check(()) and walks(p) == 1
    Property.n = 1
    assert p.check(()) and walks(p) == 1
    holder.table["hook"] = 1
    assert not p.check(())
    holder.table.popitem()
    assert p.check(())
    holder.odd = [0]
    assert p.check(()) and p.check(())
    holder.odd.append(1)
    assert not p.check(())


def test_values_below_an_unwatchable_step():
    class Table:
        def __getitem__(self, key):
            return current[0]

    current = [Plain(v=1)]
    p = program([(-1, "const", Table()), (0, "item", "k"), (1, "dict_attr", "v"), LOCAL],
                [(2, "eq", 1), (3, "distinct", 1)])
    assert p.check((0,)) and p.check((0,))
    assert not p.check((current[0],))
    current[0].v = 2
    assert not p.check((0,))
    current[0] = Plain(v=1)
    assert p.check((0,)) and not p.check((current[0],))


def test_user_dict_keys():
    class Key:
        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return 7

        def __eq__(self, other):
            return self.n == other.n

    table = {Key(1): "a", Key(2): "b"}
    p = program([(-1, "const", table), (0, "item", Key(2))], [(1, "eq", "b")])
    assert p.check(()) and p.check(())
    table[Key(3)] = "c"
    assert p.check(())
    table[Key(2)] = "z"
    assert not p.check(())


def test_weak_roots_do_not_keep_modules():
    net = nn.Linear(2, 2)
    weight = weakref.ref(net.weight)
    accessors = [(-1, "weak", net, "net"), (0, "dict_attr", "_parameters"), (1, "item", "weight")]
    plan = native().bind(load_plan(Plan(1, 0, (), 2, (("aten", "aten::clone", "", (("slot", 0), ("const", None)), (1,),
                                                       None),), (1,))), {0: net.weight})
    p = program(accessors, [(2, "tensor", G.TensorSpec.of(net.weight))], [(2, 0)])
    d = native().Dispatcher(lambda: None, lambda d, locals: None)
    d.add_entry(p, lambda: plan()[0], plan)
    assert torch.equal(d(), net.weight) and d.hits == 1
    gone = weakref.ref(net)
    del accessors, net
    gc.collect()
    assert gone() is None and weight() is None and not p.check(())
    assert d() is None and d.entries == ()
    with pytest.raises(TypeError):
        plan()


def test_collectable():
    o = Plain()
    p = program([(-1, "const", o), (0, "dict_attr", "p")], [(1, "is_not", None)])
    o.p = p
    assert p.check(())
    seen = weakref.ref(o)
    del o, p
    gc.collect()
    assert seen() is None


def test_bad_records():
    x = torch.zeros(1)
    for accessors, checks in [
        ([(-1, "wild", 0)], []),
        ([(0, "type")], []),
        ([(-1, "type")], []),
        ([LOCAL], [(1, "eq", 0)]),
        ([LOCAL], [(0, "wild", 0)]),
        ([LOCAL], [(0, "type_is", 3)]),
        ([LOCAL], [(0, "same", 4)]),
        ([LOCAL], [(0, "tensor", 4)]),
        ([LOCAL], [(-1, "dims", ((0,), (("size", 1, 0),), ()))]),
        ([LOCAL], [(-1, "dims", ((0,), (("int", 0),), ((0, "~"),)))]),
        ([LOCAL], [(-1, "global_state", (1,))]),
        ([LOCAL, (0, "dict_attr", 3)], []),
        ([LOCAL, (0, "function", "name")], []),
        ([LOCAL, (0, "item", [])], []),
    ]:
        with pytest.raises((ValueError, TypeError, AttributeError)):
            program(accessors, checks)
    with pytest.raises(ValueError):
        program([LOCAL], [], [(0, 0)])
    with pytest.raises(TypeError):
        program([LOCAL], []).set_plan(x)


def test_names_in_explanations():
    p = program([(-1, "local", 0, "self"), (0, "dict_attr", "layers", "the layers"), (1, "item", 0)],
                [(2, "eq", 1), (1, "len", 1)])
    assert p.explain((Plain(layers=[2]),)) == "item 0 of the layers: expected 1, found 2"
    assert p.explain((Plain(layers=[1, 2]),)) == "the layers: expected length 1, found length 2"


def test_names_of_a_capture():
    """Places are told as the program writes them."""
    def f(self, x, *, k):
        return x * self.layers[0] * k["scale"]

    compiled = jit.compile(f, dynamic=False)
    one = Plain(layers=[1.5])
    compiled(one, torch.ones(2), k={"scale": 2})
    entry = compiled.entries[0]
    for args, text in (((Plain(layers=[2.5]), torch.ones(2), {"scale": 2}), "self.layers[0]: expected 1.5, found 2.5"),
                       ((one, torch.ones(2), {"scale": 3}), "k['scale']: expected 2, found 3"),
                       ((one, torch.ones(2, 2), {"scale": 2}), "x: rank: expected 1, found 2")):
        assert text in G.explain(entry.guards, args)


def test_threads():
    o = Plain(a=1, other=0)
    p = program([(-1, "const", o), (0, "dict_attr", "a")], [(1, "eq", 1)])
    stop, errors = threading.Event(), []

    def change():
        while not stop.is_set():
            o.other += 1
            Plain.counter = o.other

    def check():
        for _ in range(5000):
            if not p.check(()):
                errors.append("failed")

    changer = threading.Thread(target=change)
    changer.start()
    checkers = [threading.Thread(target=check) for _ in range(4)]
    [t.start() for t in checkers]
    [t.join() for t in checkers]
    stop.set()
    changer.join()
    del Plain.counter
    assert not errors


def test_what_is_asked_anew_on_each_call():
    variable, none, answers = contextvars.ContextVar("variable", default=5), object(), [1]
    p = program([(-1, "const", variable), (0, "context_value", none), (-1, "const", lambda: answers[0]),
                 (2, "returned", None)], [(1, "is", none), (3, "eq", 1)])
    assert p.check(()) and p.check(())
    answers[0] = 2
    assert not p.check(()) and "lambda" in p.explain(())
    answers[0] = 1
    token = variable.set(5)
    assert not p.check(()) and "context_value" in p.explain(())
    variable.reset(token)
    assert p.check(())
    assert not program([(-1, "local", 0), (0, "context_value", none)], [(1, "is", none)]).check((3,))
