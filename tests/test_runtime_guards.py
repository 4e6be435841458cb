"""Guard programs: every accessor and check, passing and failing; explanations."""

import collections
import contextlib
import math

import pytest
import torch
from guard_harness import LOCAL, Plain, Slots, one, program
from torch import nn

import jit
from jit.runtime import guards as G
from jit.runtime import native

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
