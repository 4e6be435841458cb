"""What is saved and what is computed again where library calls lie between kernels: values that both halves of a
training graph have in memory, masks that come from what is read anyway, values that each reader makes for itself."""

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import check_grad
from codegen_graphs import compare, compile_reference, moved, trace
from graph_harness import trace as traced

import jit
from jit.codegen import loops, reference
from jit.graph.autodiff import differentiate, partition
from jit.graph.interpret import evaluate
from jit.graph.passes.windows import make_windows

GPU = torch.device("cuda", 0)


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def layers(x, v, w, s, c):
    """A convolution, a norm and a relu, twice."""
    y = F.relu(F.batch_norm(F.conv2d(x, v, padding=1), None, None, s, c, training=True))
    return F.relu(F.batch_norm(F.conv2d(y, w, padding=1), None, None, s, c, training=True) + y)


def given(dtype=torch.float64):
    return [leaf(*shape, dtype=dtype) for shape in ((3, 2, 5, 6), (4, 2, 3, 3), (4, 4, 3, 3), (4,), (4,))]


def masks(graph):
    return [n.inputs[0] for n in graph.nodes if n.op == "le"]


def test_operands_of_two_calls_are_saved():
    found = check_grad(layers, *given())
    assert not any(n.op == "relu" for n in found.backward.nodes)
    assert any(n.op == "relu" for n in found.forward.nodes)


def test_operands_of_products_are_saved():
    found = check_grad(lambda x, v, w: F.gelu(x @ v) @ w, leaf(5, 6), leaf(6, 7), leaf(7, 3))
    (activation,) = [n for n in found.forward.nodes if n.op == "aten_call"][1].inputs[:1]
    assert activation in [o.node for o in found.forward.outputs]


def test_a_value_that_one_half_alone_has_in_memory_is_computed_again():
    found = check_grad(lambda x, w: (torch.sin(x * 2).exp() * 3).sin() @ w, leaf(5, 6), leaf(6, 7).detach())
    assert [kind for kind, _ in found.saved] == ["input", "input"]


def test_masks_of_norms_read_what_the_norm_reads():
    """The first relu follows a norm alone; the mask of the second, behind a sum with what is no result of the library,
    reads the relu."""
    def fn(u, *rest):
        return F.conv2d(layers(*rest), u)

    second, first = masks(check_grad(fn, leaf(2, 4, 1, 1), *given()).backward)
    assert second.op == "input" and first.op not in ("input", "relu")


def test_a_mask_whose_operand_nothing_else_reads_comes_from_the_relu():
    found = check_grad(lambda x, v, c, w: F.relu(x @ v + c) @ w, leaf(5, 6), leaf(6, 7), leaf(7), leaf(7, 3))
    assert [n.op for n in masks(found.backward)] == ["input"]
    assert len([n for n in found.backward.inputs if n.type.shape == (5, 7)]) == 1


@pytest.mark.parametrize("value", [0.0, -0.0, float("nan"), float("inf")])
def test_masks_at_the_kink(value):
    """A norm that gives one number everywhere."""
    x, v, w, s, c = (t.detach() for t in given(torch.float32))
    s, c = torch.zeros(4), torch.full((4,), value)
    results = []
    for f in (layers, jit.compile(layers, fullgraph=True)):
        tensors = [t.clone().requires_grad_() for t in (x, v, w, s, c)]
        out = f(*tensors)
        out.sum().backward()
        results.append([out, *(t.grad for t in tensors)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, equal_nan=True)


def norm_behind_a_relu(b, y, g, s):
    """The gradients of a norm of rows by columns' sums, where a relu follows it: of what it is given, of its factor and
    of its shift."""
    ys, gs, f = b.opmath(y), b.opmath(g), b.opmath(s)
    masked = b.where(b.le(b.mul(ys, f), 0), 0.0, gs)
    masked = b.opmath(b.cast(masked, y.type.dtype))
    shift, factor = b.sum(masked, [0], True), b.sum(b.mul(masked, ys), [0], True)
    factor, shift = b.div(factor, 4096.0), b.div(shift, 4096.0)
    dx = b.sub(b.mul(masked, f), b.add(b.mul(ys, factor), shift))
    return b.cast(dx, y.type.dtype), factor, shift


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_readers_make_what_is_made_of_what_they_read(dtype):
    y, g = (torch.randn(4096, 64).to(dtype) for _ in range(2))
    tensors = [y, g, torch.rand(64).to(dtype) + 1]
    graph = trace(norm_behind_a_relu, tensors)
    want = evaluate(graph, tensors)
    ours = compile_reference(moved(graph, GPU))
    stores = [sum(s.stored is not None for s in k.body) for k in ours.launches]
    assert stores == [2, 2, 1], stores  # partial sums, sums, dx: what the mask leaves of g is not stored
    for kernel in ours.loops.values():
        loops.verify(kernel)
    compare(reference.run_plan(ours, *tensors), want)


def test_a_reader_of_one_operand_gets_the_value_stored():
    """The second kernel would read two tensors more."""
    def fn(b, y, g, s):
        m = b.where(b.le(b.mul(y, s), 0), 0.0, g)
        return b.sum(b.mul(m, y), [0], True), b.add(m, b.reshape(b.sum(m, [0], True), (64,)))

    y, g, s = torch.randn(4096, 64), torch.randn(4096, 64), torch.rand(64)
    ours = compile_reference(moved(trace(fn, [y, g, s]), GPU))
    (last,) = [k for k in ours.launches if any(s.stored and len(s.symbols) == 2 for s in k.body)][-1:]
    assert sum(s.loaded is not None and len(s.symbols) == 2 for s in last.body) == 1
    compare(reference.run_plan(ours, y, g, s), evaluate(trace(fn, [y, g, s]), [y, g, s]))


def test_gradients_in_a_layout_of_their_own():
    """The weights of convolutions of one pixel: strides are eager's, of dimensions of one element too."""
    for format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 16, 4, 4).to(memory_format=format).requires_grad_()
        w = torch.randn(8, 16, 1, 1, requires_grad=True)
        v = torch.randn(16, 8, 1, 1, requires_grad=True)
        want = torch.autograd.grad(F.conv2d(F.conv2d(x, w).relu(), v).sum(), (w, v))
        got = torch.autograd.grad(jit.compile(lambda: F.conv2d(F.conv2d(x, w).relu(), v).sum())(), (w, v))
        assert [t.stride() for t in got] == [t.stride() for t in want]


@pytest.mark.parametrize("size", [12, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_for_gradients_are_short(size, dtype):
    """Of the maxima of small images; at the last position of large ones too. What the program sees are long ones."""
    def pool(x):
        return F.max_pool2d(x, 3, 2, 1)

    x = torch.randn(2, 4, size, size).to(dtype)
    x[:, :, -1, -1] = 9.0
    x[0, 0, 3:6, 3:6] = float("nan")
    graph, *_ = traced(pool, x.clone().requires_grad_(), differentiated=True)
    joint = differentiate(graph, (0,), (0,))
    joint.graph = make_windows(moved(joint.graph, GPU))
    (position,) = [n for n in joint.graph.nodes if n.op == "window" and n.attrs["how"] == "position"]
    assert position.type.dtype is (torch.int16 if size == 12 else torch.int32)
    theirs = x.clone().requires_grad_()
    g = torch.randint(1, 9, pool(x).shape).to(dtype)
    halves = partition(joint)
    run = [compile_reference(h) for h in (halves.forward, halves.backward)]
    values = reference.run_plan(run[0], x)
    saved = [(x, *values)[i if kind == "input" else 1 + i if kind == "output" else 2 + i] for kind, i in halves.saved]
    (got,) = reference.run_plan(run[1], *saved, g)
    pool(theirs).backward(g)
    torch.testing.assert_close(got, theirs.grad, equal_nan=True)


def test_positions_that_the_program_sees_are_long():
    def pool(x):
        y, where = F.max_pool2d(x, 3, return_indices=True)
        return y.sum() + where.sum(), where

    x = torch.randn(2, 4, 12, 12, requires_grad=True)
    y, where = jit.compile(pool, fullgraph=True)(x)
    want, places = pool(x)
    assert where.dtype is torch.int64 and torch.equal(where, places)
    torch.testing.assert_close(torch.autograd.grad(y, x), torch.autograd.grad(want, x))
