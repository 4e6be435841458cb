"""The tracer's state: dynamic sizes, rollback, gradients, aliases of inputs, attributes, identity."""

import operator

import pytest
import torch
import torch.nn.functional as F
from graph_harness import check, trace

from jit.errors import EagerRaises, Unsupported
from jit.graph.dims import Dim, hint
from jit.graph.shape_env import ShapeEnv
from jit.graph.handles import view_path
from jit.graph.interpret import evaluate
from jit.graph.memory import SharedMemory, strided_view
from jit.graph.tracer import Tracer
from jit.graph.verify import verify

X = torch.randn(6, 4)
Z = torch.randn(2, 6, 4)

DYNAMIC = {
    "pointwise": (lambda x: (x * 2 + 1).relu(), X),
    "broadcast": (lambda x, v: x + v, X, torch.randn(4)),
    "reduce": (lambda x: (x.sum(0), x.mean(-1, keepdim=True), x.softmax(-1), x.var(1)), X),
    "views": (lambda z: (z.flatten(1), z.transpose(1, 2).reshape(2, -1), z[:, 1:], z[:, -1],
                         z.view(z.shape[0] * z.shape[1], -1)), Z),
    "split_heads": (lambda z: z.view(z.shape[0], z.shape[1], 2, -1).transpose(1, 2).contiguous(), Z),
    "matmul": (lambda z: (z @ z.mT, z.sum(0) @ z[0].T), Z),
    "linear": (lambda z, w: F.linear(z, w), Z, torch.randn(5, 4)),
    "norm": (lambda z: (F.layer_norm(z, (4,)), F.rms_norm(z, (z.shape[-1],))), Z),
    "creation": (lambda x: (x.new_zeros(x.shape[0], 2), x.new_ones(x.shape), torch.ones_like(x),
                            x.new_full((x.shape[1],), 2)), X),
    "mask": (lambda x: x.masked_fill(x.new_ones(x.shape[0], x.shape[1]).tril() == 0, -1.0), X),
    "cat": (lambda x: (torch.cat([x, x], 1), torch.stack([x, x])), X),
    "slice_write": (lambda x: x[1:, :2].add_(1), X),
    "sizes": (lambda x: (x.shape[0] * 2, x.numel(), x * x.shape[1], x.size(0) // 2), X),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), torch.randn(2, 3, 5, 8)),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)),
    "embedding": (lambda w, i: F.embedding(i, w), X, torch.tensor([[1, 2, 3], [0, 5, 4]])),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), X, torch.tensor([0, 1, 2, 3, 0, -100])),
    "extern": (lambda x: x.cumprod(0), X),
    "repeat": (lambda x: (x.repeat(2, 1), x.unsqueeze(1).expand(-1, 3, -1)), X),
    "chunk": (lambda x: x.chunk(2), X),
}


def grow(x):
    """The same tensor, two longer in each dimension that is not 1 wide."""
    shape = [s + 2 if s != 1 else s for s in x.shape]
    return torch.randn(shape) if x.is_floating_point() else torch.randint(0, 4, shape)


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic(name):
    fn, *inputs = DYNAMIC[name]
    graph = check(fn, *inputs, dynamic=True)
    # The graph runs for the traced sizes; where its guards hold for other sizes, it is right there too.
    other = [grow(x) for x in inputs]
    env = {name: getattr(other[int(at.removeprefix("arg"))], what)(d)
           for name, (at, what, d) in graph.env.origins.items()}
    if all(p.holds(env) for p in graph.env.guards):
        expected = fn(*[x.clone() for x in other])
        flat = [v for v in (expected if isinstance(expected, tuple) else (expected,)) if isinstance(v, torch.Tensor)]
        for w, g in zip(flat, evaluate(graph, [x.clone() for x in other]), strict=True):
            torch.testing.assert_close(g, w)
            assert g.stride() == w.stride()


def test_dynamic_without_guards():
    """Ordinary programs need no guard beyond the ranks."""
    for name in ("pointwise", "reduce", "matmul", "linear", "cat", "mask", "attention"):
        fn, *inputs = DYNAMIC[name]
        graph, _, _ = trace(fn, *inputs, dynamic=True)
        assert all(p.kind == "==0" for p in graph.env.guards), (name, graph.env.guards)


def test_dynamic_arange():
    t = Tracer(ShapeEnv())
    x = t.input(X, "x", {0})
    a = t.call(torch.arange, (x.shape[0],))
    b = t.call(torch.arange, (0, x.shape[0] * 2, 2), {"dtype": torch.float32})
    z = t.call(torch.zeros, (x.shape[0], 3))
    got = evaluate(t.finish([a, b, z]), [torch.randn(9, 4)])
    assert (torch.equal(got[0], torch.arange(9)) and torch.equal(got[1], torch.arange(0, 18, 2).float())
            and got[2].shape == (9, 3))
    assert not t.env.guards


def test_rollback():
    t = Tracer(ShapeEnv())
    x = t.input(X.clone(), "x", {0})
    y = t.call(torch.mul, (x, 2))
    view = t.call(torch.Tensor.select, (y, 0, 1))
    before = repr(t.builder.nodes), y.node, view.node
    cp = t.journal.checkpoint()
    t.call(torch.Tensor.add_, (y, 1))
    t.call(torch.Tensor.zero_, (x,))
    t.input(Z, "z")
    t.set_grad_enabled(False)
    assert view.node is not before[2]
    assert x.shape[0] != 100
    t.journal.rollback(cp)
    assert (repr(t.builder.nodes), y.node, view.node) == before
    assert len(t.inputs) == 1 and t.grad_enabled and not x.base.mutated
    t.call(torch.Tensor.add_, (y, 5))
    graph = verify(t.finish([view, y]))
    got = evaluate(graph, [X])
    torch.testing.assert_close(got[0], X[1] * 2 + 5)
    torch.testing.assert_close(got[1], X * 2 + 5)


def test_gradients():
    t = Tracer()
    x = t.input(X.clone().requires_grad_(), "x")
    assert not t.needs_grad
    with_grad = t.call(torch.mul, (x, 2))
    assert with_grad.requires_grad and t.needs_grad and not with_grad.is_leaf
    assert not t.call(torch.Tensor.argmax, (with_grad,)).requires_grad
    assert not t.call(torch.Tensor.detach, (with_grad,)).requires_grad
    assert not t.attribute(with_grad, "data").requires_grad
    t2 = Tracer()
    y = t2.input(X.clone().requires_grad_(), "y")
    t2.set_grad_enabled(False)
    assert not t2.call(torch.mul, (y, 2)).requires_grad and not t2.needs_grad
    t2.set_grad_enabled(True)
    with pytest.raises(EagerRaises):
        t2.call(torch.Tensor.add_, (y, 1))


def test_aliased_inputs():
    base = torch.randn(4, 4)
    t = Tracer()
    a, b = t.input(base, "a"), t.input(base[1:], "b")
    t.call(torch.add, (b, 1))
    with pytest.raises(SharedMemory):
        t.call(torch.Tensor.add_, (a, 1))
    t = Tracer()
    a = t.input(base, "a")
    t.call(torch.Tensor.add_, (a, 1))
    t.input(torch.ones(4), "other")
    with pytest.raises(SharedMemory) as found:
        t.input(base[1:], "b")
    assert [x.shape for x in found.value.tensors] == [(3, 4), (4, 4)]


VIEWS_OF_16 = [((3, 2), (3, 2), 1), ((4, 4), (4, 1), 0), ((4, 4), (1, 4), 0), ((3, 4), (4, 1), 4), ((2, 2), (4, 1), 5),
               ((2, 4), (8, 1), 4), ((4,), (4,), 2), ((4, 2), (4, 2), 1), ((), (), 9), ((2, 1, 4), (4, 4, 1), 8),
               ((2, 2, 2, 2), (8, 4, 2, 1), 0), ((2, 2), (2, 8), 5), ((16,), (1,), 0)]


@pytest.mark.parametrize("sizes, strides, offset", VIEWS_OF_16)
def test_strided_views_as_slices(sizes, strides, offset):
    t = Tracer()
    flat = torch.arange(16.0)
    node = strided_view(t.builder, t.input(flat, "x").node, sizes, strides, offset)
    assert (node.type.shape, node.type.strides) == (sizes, strides)
    handle = t.view(t.inputs[0], view_path(node, t.inputs[0].node), node)
    assert torch.equal(evaluate(t.finish([handle]), [flat])[0], flat.as_strided(sizes, strides, offset))
    t.call(torch.Tensor.mul_, (handle, -1))
    want = flat.clone()
    want.as_strided(sizes, strides, offset).mul_(-1)
    evaluate(t.finish([]), [flat])
    assert torch.equal(flat, want)


@pytest.mark.parametrize("sizes, strides, offset", [((2, 2), (1, 1), 0), ((2, 4), (0, 1), 0), ((3, 4), (4, 1), 6)])
def test_strided_views_that_are_no_slices(sizes, strides, offset):
    t = Tracer()
    assert strided_view(t.builder, t.input(torch.arange(16.0), "x").node, sizes, strides, offset) is None


def test_identity():
    t = Tracer()
    x = t.input(X, "x")
    for fn, args in [
        (torch.Tensor.contiguous, ()),
        (torch.Tensor.to, (torch.float32,)),
        (torch.Tensor.float, ()),
        (F.dropout, (0.5, False)),
        (torch.Tensor.add_, (1,)),
        (operator.iadd, (1,)),
        (operator.pos, ()),
        (torch.Tensor.type_as, (x,)),
    ]:
        assert t.call(fn, (x, *args)) is x, fn
    assert t.call(torch.Tensor.detach, (x,)) is not x
    assert t.call(torch.Tensor.view, (x, 6, 4)) is not x


def test_attributes():
    t = Tracer()
    x = t.input(X, "x")
    for name in ("dtype", "device", "ndim", "layout", "itemsize", "nbytes", "requires_grad", "is_leaf", "is_cuda",
                 "is_cpu", "is_sparse", "is_quantized"):
        assert t.attribute(x, name) == getattr(X, name), name
    assert tuple(t.attribute(x, "shape")) == tuple(X.shape)
    for name in ("T", "mT", "H", "mH", "real", "data"):
        assert tuple(t.attribute(x, name).shape) == tuple(getattr(X, name).shape), name
    with pytest.raises(EagerRaises):
        t.attribute(x, "imag")
    with pytest.raises(Unsupported):
        t.attribute(x, "_version")


def test_named_results():
    t = Tracer()
    x = t.input(X, "x")
    r = t.call(torch.max, (x, 1))
    assert r.cls is torch.return_types.max and r.values is r[0] and r.indices is r[1]
    assert t.call(torch.topk, (x, 2)).fields == ("values", "indices")


def test_locations_are_printed():
    from jit.graph.ir import Loc

    t = Tracer()
    x = t.input(X, "x")
    y = t.call(torch.exp, (x,), loc=Loc("/tmp/model.py", 12, "forward"))
    assert "model.py:12 forward" in t.finish([y]).python()


def test_refused_inputs():
    t = Tracer()
    for bad in (torch.randn(2, 2).to_sparse(), torch.randn(2, dtype=torch.complex64).conj()):
        with pytest.raises(Unsupported):
            t.input(bad, "x")


def test_supports():
    t = Tracer()
    for fn in (torch.add, torch.Tensor.add_, operator.matmul, F.gelu, F.interpolate, torch.einsum,
               torch.ops.aten.add.Tensor, torch.Tensor.__getitem__, torch.Tensor.norm):
        assert t.supports(fn), fn
    for fn in (print, len.__class__, torch.nn.Linear, torch.manual_seed, operator.itemgetter):
        assert not t.supports(fn), fn


def test_layer_stays_apart():
    """The graph room imports nothing of the rooms before and beside it, and nothing of PyTorch's own compiler."""
    import pathlib
    import re

    import jit.graph

    for file in pathlib.Path(jit.graph.__file__).parent.rglob("*.py"):
        text = file.read_text()
        assert not re.search(
            r"^\s*(from|import) "
            r"(jit\.(frame|codegen)|torch\.(_dynamo|_inductor|fx|_functorch|export|jit|_subclasses))", text, re.M), file


def test_hints():
    graph, structure, _ = trace(lambda x: x.shape[0] + 1, X, dynamic=True)
    assert hint(structure) == 7


def test_sizes_that_no_input_shows():
    from jit.graph.printing import unbound_symbols

    env = ShapeEnv()
    t = Tracer(env)
    n, unused = env.symbol(5, "n"), env.symbol(7, "m")
    x = t.input(X, "x")
    y = t.call(torch.mul, (t.call(torch.arange, (n,)), n))
    graph = t.finish([y, t.call(torch.add, (x, 1))])
    assert unbound_symbols(graph) == ["s0"] and type(unused) is Dim
    assert torch.equal(evaluate(graph, [X], [4])[0], torch.arange(4) * 4)
