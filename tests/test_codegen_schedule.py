"""Fusion, lowering, memory and plans, on reference kernels: values against eager, and how many kernels there are."""

import random

import pytest
import torch
from codegen_graphs import check, compile_reference, trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jit.codegen import memory, reference
from jit.codegen.indexing import base_of
from jit.graph import dims
from jit.graph.ir import Output, TensorType, same_ints


def layer_norm(b, x, w, bias):
    n = float(x.type.shape[-1])
    x32 = b.opmath(x)
    d = b.sub(x32, b.div(b.sum(x32, [-1], True), n))
    var = b.div(b.sum(b.mul(d, d), [-1], True), n)
    y = b.mul(d, b.rsqrt(b.add(var, 1e-5)))
    return b.cast(b.add(b.mul(y, b.cast(w, torch.float32)), b.cast(bias, torch.float32)), x.type.dtype)


def softmax(b, x, dim=-1):
    e = b.exp(b.sub(x, b.amax(x, [dim], True)))
    return b.div(e, b.sum(e, [dim], True))


def linear(b, x, w, bias):
    rows, shape = x.type.numel // x.type.shape[-1], x.type.shape[:-1]
    y = b.aten("aten::addmm", "", (bias, b.reshape(x, (rows, x.type.shape[-1])), b.permute(w, (1, 0))),
               TensorType.contiguous((rows, w.type.shape[0]), x.type.dtype, x.type.device))
    return b.reshape(y, (*shape, w.type.shape[0]))


def gelu(b, x):
    return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.7071067811865476)), 1.0))


def n_kernels(compiled):
    return len(compiled.launches)


def test_pointwise_chain_is_one_flat_kernel():
    c = check(lambda b, x, y: b.tanh(b.add(b.mul(x, y), 1.0)), torch.randn(4, 6), torch.randn(4, 6))
    assert n_kernels(c) == 1 and len(c.launches[0].axes) == 1


def test_softmax_is_one_kernel():
    assert n_kernels(check(softmax, torch.randn(4, 33))) == 1
    assert n_kernels(check(lambda b, x: softmax(b, x, 0), torch.randn(12, 5))) == 1


def test_residual_layer_norm_is_one_kernel_with_both_outputs():
    def fn(b, x, r, w, bias):
        h = b.add(x, r)
        return layer_norm(b, h, w, bias), h

    c = check(fn, torch.randn(3, 4, 16), torch.randn(3, 4, 16), torch.randn(16), torch.randn(16))
    assert n_kernels(c) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_transformer_block(dtype):
    def block(b, x, w1, b1, wu, bu, wd, bd):
        h = layer_norm(b, x, w1, b1)
        h = b.cast(gelu(b, b.opmath(linear(b, h, wu, bu))), x.type.dtype)
        x = b.add(x, linear(b, h, wd, bd))
        return b.add(x, linear(b, layer_norm(b, x, w1, b1), wu, bu)) if False else layer_norm(b, x, w1, b1), x

    tensors = [torch.randn(s).to(dtype) * 0.5 for s in [(2, 5, 8), (8,), (8,), (32, 8), (32,), (8, 32), (8,)]]
    c = check(block, *tensors)
    assert n_kernels(c) == 3


def test_rope_reads_its_halves_by_index():
    def rope(b, q, cos, sin):
        half = q.type.shape[-1] // 2
        turned = b.cat([b.neg(b.slice(q, 3, half, half)), b.slice(q, 3, 0, half)], 3)
        return b.add(b.mul(q, cos), b.mul(turned, sin))

    assert n_kernels(check(rope, torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8))) == 1


def test_cat_operands_write_their_slices():
    c = check(lambda b, x, y: b.cat([b.exp(x), b.mul(y, 2.0), b.neg(x)], 1), torch.randn(4, 6), torch.randn(4, 3))
    assert n_kernels(c) == 2  # the two of x together
    assert not any(s.kind == "copy" for s in c.plan.steps)


def test_equal_operands_of_cat_share_a_kernel():
    c = check(lambda b, x, y: b.cat([b.exp(x), b.mul(y, 2.0)], 1), torch.randn(4, 6), torch.randn(4, 6))
    assert n_kernels(c) == 1


def test_cross_entropy_rows():
    def fn(b, x, target):
        m = b.amax(x, [1], True)
        lse = b.add(b.log(b.sum(b.exp(b.sub(x, m)), [1], True)), m)
        picked = b.gather(x, 1, b.reshape(target, (target.type.shape[0], 1)))
        return b.div(b.sum(b.sub(lse, picked)), float(x.type.shape[0]))

    assert n_kernels(check(fn, torch.randn(6, 10), torch.randint(0, 10, (6,)))) == 2


def test_full_sum_takes_two_stages():
    c = check(lambda b, x: b.div(b.sum(b.mul(x, x)), 3.0), torch.randn(300, 1000))
    assert n_kernels(c) == 2 and c.launches[0].axes and c.launches[0].raxes


def test_full_sum_of_odd_size_masks_its_tail():
    check(lambda b, x: (b.sum(x), b.amax(x), b.prod(b.add(b.mul(x, 1e-6), 1.0))),
          torch.randn(99991, dtype=torch.float64))


def test_column_reduction_keeps_the_contiguous_axis_parallel():
    c = check(lambda b, x: (b.sum(x, [0]), b.amax(x, [0])), torch.randn(40, 7))
    assert n_kernels(c) == 1


def test_variance_of_far_off_values():
    def var(b, x):
        d = b.sub(x, b.div(b.sum(x, [1], True), 64.0))
        return b.div(b.sum(b.mul(d, d), [1]), 63.0)

    check(var, torch.randn(4, 64) + 3e4)


def test_explicit_casts_round():
    x = torch.randn(4, 9).bfloat16()
    check(lambda b, x: b.cast(b.mul(x, x), torch.float32), x)
    check(lambda b, x: b.cast(b.cast(b.mul(x, 3.0), torch.bfloat16), torch.float32), x.float())


def test_bool_and_integer_arithmetic():
    x, y = torch.randint(-100, 100, (50,), dtype=torch.int8), torch.randint(1, 100, (50,), dtype=torch.int8)
    check(lambda b, x, y: (b.mul(x, y), b.floor_div(x, y), b.remainder(x, y), b.maximum(x, y), b.cast(x, torch.bool),
                           b.isnan(x)), x, y)
    p, q = torch.rand(50) > 0.5, torch.rand(50) > 0.5
    check(lambda b, p, q: (b.logical_and(p, q), b.bitwise_xor(p, q), b.bitwise_not(p), b.lt(p, q), b.eq(p, q),
                           b.maximum(p, q), b.sum(p, dtype=torch.int64)), p, q)


def test_indirect_loads():
    x, i = torch.randn(7, 5), torch.tensor([[6, -1], [0, -7]])
    check(lambda b, x, i: b.mul(b.index(x, (0,), (i,)), 2.0), x, i)
    check(lambda b, x, i: b.index(x, (1,), (i,)), torch.randn(4, 7, 3), i)
    check(lambda b, x, i, j: b.index(x, (0, 1), (i, j)), x, i, torch.tensor([[0, 4], [-5, 2]]))
    with pytest.raises(IndexError):
        check_raises(lambda b, x, i: b.index(x, (0,), (i,)), x, torch.tensor([0, 7]))
    with pytest.raises(RuntimeError):
        check_raises(lambda b, x, i: b.gather(x, 1, i), x, torch.tensor([[0], [-1]]))


def check_raises(fn, *tensors):
    compiled = compile_reference(trace(fn, tensors))
    return reference.run_plan(compiled, *tensors)


def test_mutated_input_is_written_by_the_kernel():
    c = check(lambda b, x, y: [Output(b.add(x, y), 0)], torch.randn(5, 6), torch.randn(5, 6))
    assert n_kernels(c) == 1 and c.plan.mutates == (0,) and not any(s.kind in ("copy", "alloc") for s in c.plan.steps)


def test_mutation_waits_for_readers():
    def fn(b, x, y):
        changed = b.add(x, y)
        return [Output(changed, 0), Output(b.mul(b.permute(x, (1, 0)), 2.0)), Output(b.flip(x, (0,)))]

    check(fn, torch.randn(5, 5), torch.randn(5, 5))


def test_swap_of_inputs():
    check(lambda b, x, y: [Output(y, 0), Output(x, 1)], torch.randn(4), torch.randn(4))


def test_updates_without_a_tensor_in_common_share_a_kernel():
    def fn(b, p, q, g, h, other):
        return [Output(b.sub(p, b.mul(g, 0.1)), 0), Output(b.sub(q, b.mul(h, 0.1)), 1), Output(b.add(other, 1.0), 4)]

    tensors = [torch.randn(4, 5) for _ in range(4)] + [torch.randn(3)]
    check(fn, *tensors)
    assert n_kernels(compile_reference(trace(fn, tensors))) == 2


def test_updates_that_also_give_a_result_share_a_kernel():
    def fn(b, p, q, g, h):
        first, second = b.mul(g, 0.1), b.mul(h, 0.1)
        return [Output(b.sub(p, first), 0), Output(b.sub(q, second), 1), Output(first), Output(second)]

    tensors = [torch.randn(4, 5) for _ in range(4)]
    check(fn, *tensors)
    assert n_kernels(compile_reference(trace(fn, tensors))) == 1


def test_transposed_write_into_input():
    check(lambda b, x: [Output(b.clone(b.permute(x, (1, 0)), (4, 1)), 0)], torch.randn(4, 4))


def test_outputs_that_alias():
    def fn(b, x):
        y = b.exp(x)
        return y, b.permute(y, (1, 0)), y, b.slice(x, 0, 1, 2), x

    x = torch.randn(4, 3)
    compiled = compile_reference(trace(fn, [x]))
    y, yt, again, view, same = reference.run_plan(compiled, x)
    assert y is again and same is x
    assert yt.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert view.data_ptr() == x[1:].data_ptr()


def test_library_calls_between_kernels():
    def fn(b, x, w):
        h = b.aten("aten::mm", "", (b.relu(x), w), TensorType.contiguous((4, 3), x.type.dtype, x.type.device))
        return b.add(b.sigmoid(h), b.sum(h, [0]))

    assert n_kernels(check(fn, torch.randn(4, 5), torch.randn(5, 3))) <= 3


def test_dtypes_without_kernels_go_to_the_library():
    x = torch.randn(4, 3, dtype=torch.complex64)
    check(lambda b, x: b.mul(b.add(x, x), b.exp(x)), x)


def test_as_strided_of_an_input():
    check(lambda b, x: b.mul(b.emit("as_strided", (x,), {"size": (2, 3), "stride": (1, 2), "offset": 1}), 2.0),
          torch.randn(12))


def test_scalars():
    check(lambda b, x: b.mul(x, 2.0), torch.tensor(3.0))
    check(lambda b, x: (b.sum(x), b.full((2, 2), 7.0, torch.float32), b.iota(5)), torch.tensor(3.0))


def test_identical_layers_share_their_kernels():
    def fn(b, x, w, bias):
        for _ in range(3):
            x = b.add(x, linear(b, layer_norm(b, x, bias, bias), w, bias))
        return x

    c = check(fn, torch.randn(4, 8), torch.randn(8, 8), torch.randn(8))
    assert n_kernels(c) == 4 and len(c.loops) == 3


def test_horizontal_join_of_siblings():
    c = check(lambda b, x: (b.amax(x, [1]), b.sum(x, [1]), b.exp(x)), torch.randn(5, 9))
    assert n_kernels(c) == 1


def test_a_transposing_copy_and_a_sum_stay_apart():
    """A kernel without a reduction transposes by tiles."""
    def fn(b, x):
        return b.clone(x, (120, 1, 24, 4)), b.sum(x, [0, 2, 3]), b.exp(x)

    c = check(fn, torch.randn(3, 4, 5, 6))
    assert n_kernels(c) == 2
    assert n_kernels(check(lambda b, x: (b.clone(x, (120, 1, 24, 4)), b.sum(x, [0, 2, 3])),
                           torch.randn(3, 4, 5, 6).contiguous(memory_format=torch.channels_last))) == 1


def test_no_cycle_through_a_library_call():
    def fn(b, x, w):
        a = b.exp(x)
        m = b.aten("aten::mm", "", (a, w), TensorType.contiguous((4, 4), x.type.dtype, x.type.device))
        c = b.add(a, m)
        return b.mul(c, a), b.sum(c, [1])

    assert n_kernels(check(fn, torch.randn(4, 4), torch.randn(4, 4))) == 2


def test_large_graph_schedules_quickly():
    import time

    def fn(b, x, w, bias):
        for _ in range(60):
            x = b.add(x, linear(b, layer_norm(b, x, bias, bias), w, bias))
        return x

    graph = trace(fn, [torch.randn(4, 8), torch.randn(8, 8), torch.randn(8)])
    start = time.perf_counter()
    compile_reference(graph)
    assert len(graph.nodes) > 900 and time.perf_counter() - start < 2.0


def test_arena_never_overlaps():
    rng = random.Random(1)
    spans = [memory.Span(i, rng.choice([0, 64, 100, 4096, 70000]), s := rng.randrange(60),
                         s + rng.randrange(9)) for i in range(200)]
    arena = memory.plan_arena(spans)
    for a in spans:
        assert arena.offsets[a.key] % 64 == 0 and arena.offsets[a.key] + a.nbytes <= arena.nbytes
        for b in spans:
            if a.key < b.key and a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes:
                lo, hi = sorted([a, b], key=lambda s: arena.offsets[s.key])
                assert arena.offsets[lo.key] + lo.nbytes <= arena.offsets[hi.key]
    assert arena.nbytes < sum(s.nbytes for s in spans) / 3


def test_symbolic_arena():
    n = dims.Sym("n", hint=10, lo=2)
    spans = [memory.Span("a", n * 4, 0, 1), memory.Span("b", n * 4, 2, 3), memory.Span("c", n * 8, 0, 3),
             memory.Span("d", 64, 0, 1)]
    arena = memory.plan_arena(spans)
    assert same_ints([arena.offsets["a"]], [arena.offsets["b"]])
    at = {k: dims.evaluate(v, {"n": 10}) for k, v in arena.offsets.items()}
    assert at["d"] + 64 <= min(at["a"], at["c"]) and abs(at["a"] - at["c"]) >= 64


# random graphs


def random_program(rng, b, inputs, index):
    """A few values computed from the inputs with pointwise, view, reduction and indexing prims."""
    from jit.graph.dims import structurally_equal

    values = list(inputs)
    unary = ["neg", "exp", "tanh", "abs", "relu", "sigmoid", "sin"]
    for _ in range(rng.randrange(2, 14)):
        kind = rng.choice("unary binary binary binary reduce reduce softmax permute slice "
                          "cat pad flip cast clone cumsum reshape gather argmax where mm".split())
        x = rng.choice(values[-4:])
        rank, shape, v = x.type.rank, x.type.shape, None
        d = rng.randrange(rank) if rank else 0
        if kind == "unary":
            v = getattr(b, rng.choice(unary))(x)
        elif kind == "binary":
            y = rng.choice(values)
            fits = all(p is q or structurally_equal(p, q) or (type(p) is int and p == 1) or (type(q) is int and q == 1)
                       for p, q in zip(reversed(shape), reversed(y.type.shape)))
            v = getattr(b, rng.choice(["add", "sub", "mul", "maximum"]))(x, y) if fits else None
        elif kind == "cast":
            v = b.cast(b.cast(x, torch.float64), torch.float32)
        elif kind == "clone":
            v = b.clone(x) if rng.random() < 0.5 else b.contiguous(x)
        elif kind == "where":
            v = b.where(b.gt(x, 0.1), x, b.mul(x, 0.5))
        elif not rank:
            pass
        elif kind == "reduce":
            v = b.reduce(rng.choice(["sum", "amax"]), x, sorted(rng.sample(range(rank), rng.randrange(1, rank + 1))),
                         rng.random() < 0.6)
        elif kind == "softmax":
            v = softmax(b, x, d)
        elif kind == "permute":
            v = b.permute(x, rng.sample(range(rank), rank))
        elif kind == "slice" and type(shape[d]) is int and shape[d] > 1:
            start, step = rng.randrange(shape[d] - 1), rng.choice([1, 1, 2])
            v = b.slice(x, d, start, (shape[d] - start + step - 1) // step, step)
        elif kind == "cat":
            v = b.cat([x, b.neg(x)] + [x] * rng.randrange(2), d)
        elif kind == "pad":
            v = b.pad(x, [(rng.randrange(2), rng.randrange(2)) for _ in range(rank)], 1.5)
        elif kind == "flip":
            v = b.flip(x, [d])
        elif kind == "cumsum":
            v = b.cumsum(x, d)
        elif kind == "reshape":
            if rank == 1 or rng.random() < 0.5:
                v = b.unsqueeze(x, d)
            else:
                k = rng.randrange(rank - 1)
                v = b.reshape(x, shape[:k] + (shape[k] * shape[k + 1],) + shape[k + 2 :])
        elif kind == "gather" and rank == 3 and all(type(p) is int and type(q) is int and p <= q
                                                    for p, q in zip(index.type.shape, shape)):
            v = b.gather(x, 1, index)
        elif kind == "argmax":
            v = b.cast(b.argmax(x, [d], rng.random() < 0.5), torch.float32)
        elif kind == "mm" and rank == 2:
            v = b.aten("aten::mm", "", (x, b.permute(x, (1, 0))),
                       TensorType.contiguous((shape[0], shape[0]), x.type.dtype, x.type.device))
        if v is not None and v.type.rank <= 5:
            values.append(v)
    outputs = rng.sample(values, min(len(values), rng.randrange(1, 4)))
    if values[-1] not in outputs:
        outputs.append(values[-1])
    outputs = [Output(v) for v in outputs]
    if rng.random() < 0.3:
        outputs += [Output(v, 0) for v in values[len(inputs) :] if same_ints(v.type.shape, inputs[0].type.shape)
                    and base_of(v).op != "input"][:1]
    return outputs


def random_case(seed):
    """(fn, tensors, dynamic) for ``check``."""
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(3)]
    tensors = [torch.randn(sizes) if rng.random() < 0.8 else torch.randn(sizes[::-1]).permute(2, 1, 0)
               for _ in range(2)]
    tensors += [torch.randn(sizes[2]), torch.randn(sizes[1], 1), torch.randint(0, sizes[1], sizes)]
    dynamic = set()
    if rng.random() < 0.4 and all(t.is_contiguous() for t in tensors):
        size = rng.choice(sizes)
        if size > 1:
            dynamic = {(i, d) for i, t in enumerate(tensors) for d, n in enumerate(t.shape) if n == size}
    return (lambda b, *ins: random_program(random.Random(seed + 1), b, ins[:4], ins[4])), tensors, dynamic


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9), st.booleans())
def test_random_graphs(seed, fuse):
    fn, tensors, dynamic = random_case(seed)
    check(fn, *tensors, dynamic=dynamic, fuse=fuse)


# the channels-last rewrite


def convolution(b, x, w, padding):
    from jit.graph.ops.externs import conv

    args = (x, w, None, (1, 1), (padding, padding), (1, 1), 1)
    return b.aten("aten::conv2d", "", args, conv(x.type, w.type, *args[2:]))


def batch_norm(b, x, mean, var, w):
    def row(v):
        return b.reshape(v, (v.type.shape[0], 1, 1))

    return b.mul(b.mul(b.sub(x, row(mean)), b.rsqrt(b.add(row(var), 1e-5))), row(w))


@pytest.mark.parametrize("channels_last", [True, False])
def test_residual_block_of_convolutions(channels_last):
    def block(b, x, w1, w2, mean, var, w):
        for _ in range(2):
            y = b.relu(batch_norm(b, convolution(b, x, w1, 1), mean, var, w))
            x = b.relu(b.add(batch_norm(b, convolution(b, y, w2, 0), mean, var, w), x))
        return x, b.reshape(x, (2, -1)), b.sum(x, [2, 3])

    tensors = [torch.randn(2, 8, 6, 6), torch.randn(8, 8, 3, 3) * 0.1, torch.randn(8, 8, 1, 1) * 0.3, torch.randn(8),
               torch.rand(8) + 0.5, torch.randn(8)]
    c = check(block, *tensors, channels_last=channels_last)
    inside = [s for s in c.plan.steps if s.kind == "temp"]
    assert n_kernels(c) <= 4 + 2 + channels_last and inside


def test_channels_last_leaves_other_graphs_alone():
    from jit.codegen.layout import channels_last

    graph = trace(lambda b, x, w: convolution(b, x, w, 0), [torch.randn(1, 4, 5, 5), torch.randn(4, 4, 3, 3)])
    assert channels_last(graph) is graph


def test_constants_that_are_stored_are_not_read_by_kernels():
    """A library call needs a constant in memory; the kernel that reads it too, after that memory went to another value,
    makes its own."""

    def fn(b, x):
        zero = b.reshape(b.scalar(0, torch.int64), (1,))
        t = TensorType.contiguous(x.shape, x.dtype, x.type.device)
        filled = b.aten("aten::index_fill", "int_Scalar", (x, 1, zero, 3.0), t)
        mask = b.eq(b.unsqueeze(b.iota(3), 1), b.unsqueeze(b.iota(4), 0))
        filled = b.aten("aten::masked_fill", "Scalar", (filled, mask, 1.0), t)
        index = b.cat([zero, b.reshape(b.scalar(5, torch.int64), (1,))], 0)
        return b.aten("aten::take", "", (filled, index), TensorType.contiguous((2,), x.dtype, x.type.device))

    check(fn, torch.randn(3, 4))
