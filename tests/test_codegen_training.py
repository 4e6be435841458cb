"""What a training step's graphs are turned into before and while they are scheduled: formats, products, saved and
recomputed values."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import check_grad, leaf
from codegen_graphs import check, compare, moved, trace
from graph_harness import trace as traced

import jit
from jit.codegen import Options, chunks, layout, planner
from jit.codegen.padding import pad_rows
from jit.devices import cuda
from jit.graph.autodiff import differentiate, partition
from jit.graph.interpret import evaluate
from jit.graph.ir import TensorType
from jit.graph.layout import is_channels_last
from jit.graph.op_info import op_info
from jit.graph.passes.contractions import rewrite_contractions
from jit.graph.passes.convolutions import as_products, each_channels_gradients, patch_gradients, separate_bias

GPU = torch.device("cuda", 0)


def rewritten(fn, rewrite, *tensors):
    """``fn`` traced, rewritten as for CUDA and compared with the original. Returns the targets of the library calls."""
    graph = rewrite(moved(trace(fn, tensors), GPU))
    targets = [n.attrs["target"] for n in graph.nodes if n.op == "aten_call"]
    want = evaluate(trace(fn, tensors), [t.clone() for t in tensors])
    compare(evaluate(moved(graph, torch.device("cpu")), [t.clone() for t in tensors]), want)
    return targets


def conv(b, x, w, bias=None, stride=(1, 1), padding=(0, 0), groups=1):
    from jit.graph.ops import externs

    args = (x, w, bias, stride, padding, (1, 1), groups)
    types = [a.type if hasattr(a, "type") else a for a in args]
    return b.aten("aten::conv2d", "", args, externs.conv(*types))


def image(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).to(memory_format=torch.channels_last)


def test_bias_of_a_convolution_is_added_apart():
    x, w, bias = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    graph = separate_bias(moved(trace(lambda b, x, w, c: conv(b, x, w, c), [x, w, bias]), GPU))
    calls = [n for n in graph.nodes if n.op == "aten_call"]
    assert [n.attrs["args"][2] for n in calls] == [None] and any(n.op == "add" for n in graph.nodes)
    compare(evaluate(moved(graph, torch.device("cpu")), [x, w, bias]), [F.conv2d(x, w, bias)])
    plain = trace(lambda b, x, w, c: conv(b, x, w, c), [x, w, bias])
    assert separate_bias(plain) is plain


def test_convolutions_of_a_pixel_are_products():
    half = torch.bfloat16
    x, w = image(2, 8, 5, 6, dtype=half), torch.randn(4, 8, 1, 1).to(half)
    assert rewritten(lambda b, x, w: conv(b, x, w), as_products, x, w) == ["aten::matmul"]
    for other in (dict(stride=(2, 2)), dict(padding=(1, 1))):
        assert rewritten(lambda b, x, w: conv(b, x, w, **other), as_products, x, w) == ["aten::conv2d"]
    assert rewritten(lambda b, x, w: conv(b, x, w, groups=2), as_products, x,
                     torch.randn(4, 4, 1, 1).to(half)) == ["aten::conv2d"]
    assert rewritten(lambda b, x, w: conv(b, x, w), as_products, x.contiguous(), w) == ["aten::conv2d"]
    assert rewritten(lambda b, x, w: conv(b, x, w), as_products, x.float().to(memory_format=torch.channels_last),
                     w.float()) == ["aten::conv2d"]


def test_gradients_of_a_pixel_are_products():
    half = torch.bfloat16
    x, w, g = image(2, 8, 5, 6, dtype=half), torch.randn(4, 8, 1, 1).to(half), image(2, 4, 5, 6, dtype=half)

    def backward(b, g, x, w):
        args = (g, x, w, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True, True, False))
        return b.aten("aten::convolution_backward", "", args, (x.type, w.type, None))[:2]

    targets = rewritten(backward, as_products, g, x, w)
    assert "aten::matmul" in targets and "aten::mm" in targets


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("weights", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_patches_are_products(monkeypatch, format, weights):
    half = torch.bfloat16
    monkeypatch.setattr(cuda.Cuda, "convolves_backwards", True)

    def backward(b, g, x, w, stride=(2, 3), wanted=(True, True, False)):
        args = (g, x, w, None, stride, (0, 0), (1, 1), False, (0, 0), 1, wanted)
        return b.aten("aten::convolution_backward", "", args, (x.type, w.type, None))[:2]

    x = torch.randn(2, 8, 6, 9).to(half, memory_format=format)
    w = torch.randn(5, 8, 2, 3).to(half, memory_format=weights)
    g = torch.randn(2, 5, 3, 3).to(half, memory_format=format)
    # The library's call is dead, and goes with the next pass that asks.
    assert rewritten(backward, patch_gradients, g, x, w).count("aten::mm") == 2
    whole = torch.randn(2, 5, 3, 3).to(half)
    odd = torch.randn(2, 8, 7, 9).to(half)
    assert rewritten(backward, patch_gradients, whole, odd, w) == ["aten::convolution_backward"]
    assert rewritten(backward, patch_gradients, whole.float(), x.float(), w.float()) == ["aten::convolution_backward"]
    assert rewritten(lambda b, g, x, w: backward(b, g, x, w, (1, 1)), patch_gradients,
                     torch.randn(2, 5, 5, 7).to(half), x, w) == ["aten::convolution_backward"]


@pytest.mark.parametrize("padding, dilation", [((1, 1), (1, 1)), ((0, 2), (2, 1))])
@pytest.mark.parametrize("wanted", [(True, True, False), (True, False, False)])
def test_gradients_of_each_channel_are_convolutions(monkeypatch, padding, dilation, wanted):
    half = torch.bfloat16
    monkeypatch.setattr(cuda.Cuda, "convolves_backwards", True)
    x, w = image(2, 16, 6, 9, dtype=half), torch.randn(16, 1, 3, 3).to(half)
    g = torch.randn_like(F.conv2d(x, w, None, 1, padding, dilation, 16))

    def backward(b, g, x, w, stride=(1, 1), wanted=wanted, groups=16, padding=padding):
        args = (g, x, w, None, stride, padding, dilation, False, (0, 0), groups, wanted)
        types = [t.type if k else None for t, k in zip((x, w), wanted)]
        made = b.aten("aten::convolution_backward", "", args, (*types, None))
        return [m for m in made if m is not None]

    targets = rewritten(backward, each_channels_gradients, g, x, w)
    assert targets.count("aten::conv2d") == 1
    assert rewritten(lambda *a: backward(*a, wanted=(False, True, False)), each_channels_gradients, g, x,
                     w) == ["aten::convolution_backward"]
    assert rewritten(backward, each_channels_gradients, g.float(), x.float(),
                     w.float()) == ["aten::convolution_backward"]
    assert rewritten(backward, each_channels_gradients, g.contiguous(), x, w) == ["aten::convolution_backward"]


def test_operands_are_laid_out_for_kernels():
    """Values stay, and weights lie as images do, or with the channels as neighbours; few channels become more."""
    half = torch.bfloat16

    def laid_out(x, w, **more):
        def fn(b, x, w):
            return conv(b, x, w, **more)

        graph = layout.operands_laid_out(moved(trace(fn, [x, w]), GPU))
        rewritten(fn, layout.operands_laid_out, x, w)
        (call,) = [n for n in graph.nodes if n.op == "aten_call"]
        return call.inputs[0].type, call.inputs[1].type, call.attrs["args"]

    x, w = image(2, 16, 6, 7, dtype=half), torch.randn(5, 16, 3, 3).to(half)
    assert laid_out(x, w, padding=(1, 1))[1].strides == (144, 1, 48, 16)
    assert laid_out(x.contiguous(), w, padding=(1, 1))[1].strides == w.stride()
    assert laid_out(x.float(), w.float(), padding=(1, 1))[1].strides == w.stride()
    each = torch.randn(16, 1, 3, 3).to(half)
    assert laid_out(x, each, groups=16, padding=(1, 1))[1].strides == (1, 144, 48, 16)
    x, w = image(2, 3, 12, 10, dtype=half), torch.randn(8, 3, 7, 7).to(half)
    images, weights, args = laid_out(x, w, stride=(2, 2), padding=(3, 2))
    assert images.shape == (2, 4, 18, 14) and weights.shape == (8, 4, 7, 7) and tuple(args[4]) == (0, 0)
    assert is_channels_last(images.shape, images.strides) and is_channels_last(weights.shape, weights.strides)
    assert laid_out(x, w, stride=(2, 2))[0].shape == x.shape


def blocks(x, w1, w2, s, c):
    y = F.conv2d(x, w1, padding=1)
    y = F.relu(F.batch_norm(y, None, None, s, c, training=True))
    z = F.conv2d(y, w2, padding=1)
    return F.relu(F.batch_norm(z, None, None, s, c, training=True) + y).mean((2, 3))


def block_inputs():
    return tuple(leaf(*shape, dtype=torch.float32) for shape in ((2, 3, 6, 5), (4, 3, 3, 3), (4, 4, 3, 3), (4,), (4,)))


def test_training_graph_is_channels_last_in_both_halves():
    graph, *_ = traced(blocks, *block_inputs(), differentiated=True)
    joint = differentiate(graph, tuple(range(5)), (0,))
    joint.graph = layout.channels_last(joint.graph)
    halves = partition(joint)
    images = [n for half in (halves.forward, halves.backward) for n in half.nodes if layout.is_convolution(n)]
    assert len(images) == 4
    for n in images:
        for i in n.inputs[: op_info(n.attrs["target"]).images]:
            assert is_channels_last(i.type.shape, i.type.strides)
    saved = [n.type
             for n in halves.backward.inputs if n.type.rank == 4 and n.type.shape[0] == 2 and n.type.shape[1] == 4]
    assert saved and all(is_channels_last(t.shape, t.strides) for t in saved)


def test_channels_last_training_gives_eagers_gradients():
    inputs = block_inputs()
    mine = [t.detach().clone().requires_grad_() for t in inputs]
    want = blocks(*inputs)
    got = jit.compile(blocks, fullgraph=True)(*mine)
    torch.testing.assert_close(got, want)
    want.square().sum().backward()
    got.square().sum().backward()
    for a, b in zip(mine, inputs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
        assert a.grad.stride() == b.grad.stride()


NORMS = {
    "layer": (lambda x, w, c: F.layer_norm(x, (6,), w, c), (5, 6), (6,)),
    "layer_plain": (lambda x, w, c: F.layer_norm(x, (4, 6)), (5, 4, 6), (6,)),
    "batch": (lambda x, w, c: F.batch_norm(x, None, None, w, c, True), (5, 6, 3), (6,)),
    "batch_plain": (lambda x, w, c: F.batch_norm(x, None, None, None, None, True), (5, 6), (6,)),
    "group": (lambda x, w, c: F.group_norm(x, 2, w, c), (3, 4, 5), (4,)),
    "instance": (lambda x, w, c: F.instance_norm(x, None, None, w, c), (3, 4, 5), (4,)),
    "one_value": (lambda x, w, c: F.layer_norm(x, (1,), w, c), (5, 1), (1,)),
    "wide_factor": (lambda x, w, c: F.layer_norm(x, (6,)) * x, (5, 6), (6,)),
    "row_factor": (lambda x, w, c: F.layer_norm(x, (6,)) * w, (5, 6), (5, 1)),
}


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_normalisations(name):
    fn, shape, parameters = NORMS[name]
    check_grad(fn, leaf(*shape), leaf(*parameters), leaf(*parameters))


def test_batch_norm_backward_takes_two_sums():
    # Float64 goes by eager's order of factors
    given = [leaf(*shape).detach().float().requires_grad_() for shape in ((5, 6, 3), (6,), (6,))]
    graph, *_ = traced(lambda x, w, c: F.batch_norm(x, None, None, w, c, True), *given, differentiated=True)
    halves = partition(differentiate(graph, (0, 1, 2), (0,)))
    assert sum(n.op == "sum" for n in halves.backward.nodes) == 2


def scheduled(fn, *tensors, device=None):
    graph = trace(fn, tensors)
    p = planner.Planner(graph if device is None else moved(graph, device), Options(target="reference"))
    p.schedule()
    return p


def test_widened_values_are_stored_narrow():
    def fn(b, x, y):
        h = b.cast(b.exp(b.add(b.cast(x, torch.float32), b.cast(y, torch.float32))), torch.bfloat16)
        wide = b.cast(h, torch.float32)
        return b.mul(wide, 2), b.sum(wide, [0]), b.sum(b.mul(wide, b.cast(x, torch.float32)), [0])

    p = scheduled(fn, *[torch.randn(64, 32).bfloat16() for _ in range(2)])
    assert not any(n.op == "cast" and n.type.dtype is torch.float32 for n in p.buffers.storages)


def test_recomputed_values_are_made_when_they_are_read():
    """Each of several products reads a value that could be made at the start."""

    def fn(b, *xs):
        total = None
        for x in xs:
            y = b.exp(x)
            p = b.aten("aten::mm", "", (y, y), y.type)
            total = p if total is None else b.aten("aten::mm", "", (total, p), p.type)
        return total

    p = scheduled(fn, *[torch.randn(16, 16) for _ in range(6)])
    made = [s for n, s in p.buffers.storages.items() if n.op == "exp"]
    assert len(made) == 6 and all(s.last - s.first <= 1 for s in made)


def test_column_sums_are_cut_over_several_dimensions():
    p = scheduled(lambda b, x: b.sum(x, [0, 2, 3]), image(6, 64, 120, 40), device=GPU)
    group = next(g for g in p.buffers.schedule.order if g.split)
    cut, length = chunks.chunk_plan(group)
    extents = [group.dims[d] for d in cut]
    assert len(cut) == 2 and extents == [6, 120] and 720 % length == 0


def test_cut_columns_sum_what_the_whole_sums(monkeypatch):
    from jit.codegen import reference

    small = dataclasses.replace(cuda.H200, processors=10)
    monkeypatch.setattr(cuda.Cuda, "architecture", lambda self, device=None: small)
    x = torch.randn(9, 64, 13, 11, dtype=torch.float64).to(memory_format=torch.channels_last)
    p = scheduled(lambda b, x: b.sum(x, [0, 2, 3]), x, device=GPU)
    first, second = p.launches
    chunks = first.axes[0].extent
    assert 20 < chunks < 55
    partial, out = torch.empty(chunks * 64, dtype=torch.float64), torch.empty(64, dtype=torch.float64)
    for kernel, memory in ((first, (x.permute(0, 2, 3, 1).reshape(-1), partial)), (second, (partial, out))):
        reference.evaluate(kernel, {buffer.name: m for buffer, m in zip(kernel.buffers, memory)}, {})
    torch.testing.assert_close(out, x.sum((0, 2, 3)))


@pytest.mark.parametrize("columns, shape", [(3, (8, 60, 64)), (5, (20, 40, 33)), (1, (4, 80, 90)), (7, (60000,)),
                                            (3, (2, 150, 101))], ids=str)
def test_few_columns_are_dealt_to_full_vectors(columns, shape):
    """The chunks of a sum over few columns lie beside each other, where the inner size is a multiple of their
    number."""
    x = torch.randn(*shape, columns).movedim(-1, 1)
    dims = [d for d in range(x.dim()) if d != 1]
    fn = lambda b, x: (b.tanh(x), b.sum(b.tanh(x), dims), b.sum(b.mul(x, x), dims))  # noqa: E731
    c = check(fn, x)
    if columns > 1:
        most = max((k for k in range(1, 16 // columns + 1) if shape[-1] % k == 0), default=1)
        first = c.launches[0]
        assert most == 1 or len(first.axes) == 1 and first.axes[0].extent == columns * most and len(first.raxes) == 1
    program = jit.compile(lambda x: (x.tanh(), x.tanh().sum(dims), (x * x).sum(dims), x.var(dims)), dynamic=False)
    for mine, eager in zip(program(x), (x.tanh(), x.tanh().sum(dims), (x * x).sum(dims), x.var(dims))):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-3)


def test_a_group_reads_a_sum_in_its_own_rows():
    """Two sums over a row, and what is computed from both, are one kernel."""

    def fn(b, g, x):
        a = b.div(b.sum(g, [1], True), 64.0)
        c = b.div(b.sum(b.mul(g, x), [1], True), 64.0)
        return b.sub(b.sub(g, a), b.mul(x, c))

    assert len(scheduled(fn, torch.randn(8, 64), torch.randn(8, 64)).launches) == 1


def wide_rows(dtype=torch.bfloat16):
    return torch.randn(512, 771).to(dtype), torch.randn(771, 16).to(dtype), torch.randn(512, 16).to(dtype)


def classifier(b, x, w, h):
    g = b.cast(b.mul(b.cast(x, torch.float32), 0.125), torch.bfloat16)
    mm = lambda p, q: b.aten("aten::mm", "", (p, q),
                             TensorType.contiguous((p.type.shape[0], q.type.shape[1]), torch.bfloat16,
                                                   p.type.device))  # noqa: E731
    return mm(g, w), mm(b.permute(g, (1, 0)), h)


def test_rows_of_matrices_for_products_are_aligned():
    graph = pad_rows(rewrite_contractions(moved(trace(classifier, wide_rows()), GPU)))
    padded = [n for n in graph.nodes if n.op == "cast" and n.type.dtype is torch.bfloat16]
    assert [n.type.strides for n in padded] == [(776, 1)]
    same = trace(classifier, wide_rows())
    assert pad_rows(same) is same  # only a GPU's library minds


def test_products_over_odd_widths_are_split():
    targets = rewritten(classifier, rewrite_contractions, *wide_rows())
    assert sorted(targets) == ["aten::addmm", "aten::mm", "aten::mm"]


def variance(b, x, dims):
    n = 1
    for d in dims:
        n *= x.type.shape[d]
    centred = b.sub(x, b.div(b.sum(x, dims, True), n))
    return b.div(b.sum(b.mul(centred, centred), dims, True), n)


@pytest.mark.parametrize("shape, dims", [((2300, 48), [0]), ((6, 32, 23, 31), [0, 2, 3]), ((2, 40009), [1]),
                                         ((31, 17, 29, 13), [0, 1, 2, 3])])
def test_variance_of_split_reductions_takes_one_pass(monkeypatch, shape, dims):
    """By chunks, of values whose mean is far from zero; chunks of unequal lengths too."""
    from jit.codegen import fusion, reference

    x = ((torch.randn(shape) + 3000.0).to(memory_format=torch.channels_last) if len(shape) == 4
         and len(dims) == 3 else torch.randn(shape) + 3000.0)
    monkeypatch.setattr(fusion, "wants_split", lambda device, dims, reduced, inner: "rows" if inner else "columns")
    p = scheduled(lambda b, x: variance(b, x, dims), x, device=GPU)
    assert len(p.launches) == 2 and [n.op for n in p.graph.nodes if n.op in fusion.REDUCTIONS] == ["squares"]
    memory = {}
    for step in p.steps:
        launch = p.launches[step.number]
        for buffer, storage in zip(launch.buffers, step.arguments):
            if storage.kind == "input":
                flat = x.permute(0, 2, 3, 1).reshape(-1) if not x.is_contiguous() else x.reshape(-1)
                memory[id(storage)] = flat
            elif id(storage) not in memory:
                memory[id(storage)] = torch.full((storage.type.numel,), float("nan"), dtype=buffer.dtype)
        given = {buffer.name: memory[id(s)] for buffer, s in zip(launch.buffers, step.arguments)}
        reference.evaluate(launch, given, {})
    result = p.buffers.storages[p.graph.outputs[0].node]
    want = x.double().var(dims, correction=0, keepdim=True).float()
    torch.testing.assert_close(memory[id(result)].view(want.shape), want, rtol=1e-4, atol=0)


def test_statistics_that_are_updated_are_written_in_place():
    def fn(b, x, mean):
        from jit.graph.ir import Output

        batch = b.div(b.sum(x, [0, 2, 3]), 1440.0)
        new = b.detach(b.add(b.mul(batch, 0.1), b.mul(mean, 0.9)))
        return [Output(b.mul(x, 2)), Output(new, 1)]

    p = scheduled(fn, image(6, 64, 120, 40), torch.randn(64), device=GPU)
    assert len(p.buffers.direct) == 1


def test_gradient_of_a_likelihood_sums_no_rows():
    def loss(x):
        return F.cross_entropy(x, torch.tensor([2, 0, -100, 4]))

    graph, *_ = traced(loss, leaf(4, 5), differentiated=True)
    halves = partition(differentiate(graph, (0,), (0,)))
    assert not any(n.op == "sum" and n.inputs[0].type.rank == 2 for n in halves.backward.nodes)
    check_grad(loss, leaf(4, 5))
    check_grad(lambda x, t: F.cross_entropy(x, t), leaf(3, 5, 2), torch.tensor([[1, 2], [0, 4], [3, 3]]))
