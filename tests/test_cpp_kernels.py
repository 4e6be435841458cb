"""C++ loop kernels: reductions against float64, layouts, scans, indirect accesses, in-place runs, and random kernels
against the reference interpreter."""

import ctypes
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jit
from jit import devices
from jit.codegen import loops, reference
from jit.codegen.cpp import compile_cpp, emit
from jit.codegen.cpp.emission import KernelText
from jit.graph import dims
from jit.graph.prims import info

F32 = torch.float32


def run(kernel, tensors, sizes=()):
    """Run one kernel; ``tensors`` are in buffer order, ``sizes`` in the order of ``kernel.sizes``."""
    address = compile_cpp([loops.verify(kernel)])[kernel.name]
    pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
    integers = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)(pointers, integers)


def reduction(shape, dims_, ops, dtype=F32, result=None):
    """A kernel that applies several reductions over ``dims_`` of a contiguous tensor."""
    b = loops.KernelBuilder()
    kept = [d for d in range(len(shape)) if d not in dims_]
    index, out, stride = 0, 0, 1
    axes = {d: b.axis(shape[d], "r" if d in dims_ else "p") for d in [*kept, *dims_]}
    for d in reversed(range(len(shape))):
        index = index + axes[d] * stride
        stride *= shape[d]
    stride = 1
    for d in reversed(kept):
        out = out + axes[d] * stride
        stride *= shape[d]
    source = b.buffer(dtype)
    for op in ops:
        kind = torch.int64 if op.startswith("arg") else result or dtype
        value = b.load(source, index)
        if not op.startswith("arg"):
            value = b.cast(value, kind)
        b.store(b.buffer(kind, "out"), out, b.reduce(op, value))
    return b.finish("reduction"), [shape[d] for d in kept]


SHAPES = [((4, 1000), (1,)), ((1000, 4), (1,)), ((1000, 37), (0,)), ((300_001,), (0,)), ((5, 6, 7), (1,)),
          ((5, 6, 70), (0, 2)), ((64, 130), (1,)), ((3, 20_000), (0,)), ((20_000, 3), (0,)), ((2, 200_000), (1,)),
          ((17, 9, 33), (0, 1)), ((4, 5, 6), (0, 1, 2)), ((8, 1), (1,)), ((40, 5000), (0,))]  # fmt: skip


@pytest.mark.parametrize("shape,over", SHAPES, ids=str)
def test_reductions(shape, over):
    x = torch.randn(shape) + 0.25
    kernel, out_shape = reduction(shape, over, ["sum", "max", "min", "argmax",
                                                "argmin"] if len(over) == 1 else ["sum", "max", "min"])
    outs = [torch.zeros(out_shape, dtype=b.dtype) for b in kernel.buffers[1:]]
    run(kernel, [x, *outs])
    error = (outs[0].double() - x.double().sum(over)).abs().max()
    scale = x.double().abs().sum(over).max()
    assert error <= 2e-6 * scale, f"relative error {error / scale:.1e}"
    assert torch.equal(outs[1], x.amax(over)) and torch.equal(outs[2], x.amin(over))
    if len(over) == 1:
        assert torch.equal(outs[3], x.argmax(over[0])) and torch.equal(outs[4], x.argmin(over[0]))


@pytest.mark.parametrize("shape,over", [((6, 1000), (1,)), ((1000, 6), (0,)), ((40, 3), (1,)), ((200_000,), (0,))],
                         ids=str)
def test_nan_and_infinity_in_reductions(shape, over):
    x = torch.randn(shape)
    flat = x.view(-1)
    flat[7], flat[len(flat) // 2], flat[-1] = math.nan, math.inf, math.nan
    flat[11] = -math.inf
    kernel, out_shape = reduction(shape, over, ["max", "min", "sum", "argmax", "argmin"])
    outs = [torch.zeros(out_shape, dtype=b.dtype) for b in kernel.buffers[1:]]
    run(kernel, [x, *outs])
    for got, want in (zip(outs, [x.amax(over), x.amin(over), x.sum(over), x.argmax(over[0]), x.argmin(over[0])],
                          strict=True)):
        assert torch.allclose(got, want, equal_nan=True)


def test_ties_take_the_first_position():
    x = torch.zeros(3, 777)
    x[1, 100:] = 1
    x[2] = -math.inf
    kernel, out_shape = reduction((3, 777), (1,), ["argmax", "argmin"])
    outs = [torch.zeros(out_shape, dtype=torch.int64) for _ in range(2)]
    run(kernel, [x, *outs])
    assert outs[0].tolist() == [0, 100, 0] and outs[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float64, torch.bool], ids=str)
def test_reductions_of_other_dtypes(dtype):
    x = torch.randint(0, 2, (9, 333)).to(dtype) if dtype is torch.bool else (torch.randn(9, 333) * 50).abs().to(dtype)
    for over in ((0,), (1,)):
        ops = ["any", "all", "max", "min"] if dtype is torch.bool else ["max", "min", "argmax"]
        kernel, out_shape = reduction((9, 333), over, ops, dtype)
        outs = [torch.zeros(out_shape, dtype=b.dtype) for b in kernel.buffers[1:]]
        run(kernel, [x, *outs])
        for op, got in zip(ops, outs, strict=True):
            want = {"any": x.any, "all": x.all, "max": x.amax, "min": x.amin, "argmax": x.argmax}[op](over[0])
            assert torch.equal(got, want), op
        total = torch.float64 if dtype is torch.float64 else torch.int64
        kernel, out_shape = reduction((9, 333), over, ["sum", "prod"], dtype, total)
        outs = [torch.zeros(out_shape, dtype=total) for _ in range(2)]
        run(kernel, [x, *outs])
        assert torch.allclose(outs[0], x.sum(over[0])) and torch.allclose(outs[1], x.prod(over[0], dtype=total))


def test_a_long_sum_of_ones_is_exact():
    n = 18_000_000  # a plain float sum stops at 2**24
    kernel, _ = reduction((n,), (0,), ["sum"])
    out = torch.zeros(())
    run(kernel, [torch.ones(n), out])
    assert out.item() == n


def test_a_column_sum_is_as_accurate_as_float64():
    x = torch.randn(100_000, 8) + 1
    kernel, _ = reduction((100_000, 8), (0,), ["sum"])
    out = torch.zeros(8)
    run(kernel, [x, out])
    assert torch.allclose(out.double(), x.double().sum(0), rtol=1e-6)


def softmax(rows, columns, by_column=False):
    b = loops.KernelBuilder()
    if by_column:
        p, r = b.axis(columns), b.axis(rows, "r")
        index = r * columns + p
    else:
        p, r = b.axis(rows), b.axis(columns, "r")
        index = p * columns + r
    source, target = b.buffer(F32), b.buffer(F32, "out")
    x = b.load(source, index)
    e = b.compute("exp", b.compute("sub", x, b.reduce("max", x), dtype=F32), dtype=F32)
    b.store(target, index, b.compute("div", e, b.reduce("sum", e), dtype=F32))
    return b.finish("softmax")


@pytest.mark.parametrize("rows,columns",
                         [(3, 5), (64, 64), (50, 1000), (7, 40_000), (2, 300_000), (1000, 130), (1500, 2500)])
@pytest.mark.parametrize("by_column", [False, True])
def test_softmax(rows, columns, by_column):
    x = torch.randn(rows, columns) * 5
    want = x.double().softmax(0 if by_column else 1)
    out = torch.full_like(x, math.nan)
    run(softmax(rows, columns, by_column), [x, out])
    assert torch.allclose(out.double(), want, rtol=6e-6, atol=1e-12)
    run(softmax(rows, columns, by_column), [x, x])  # in place
    assert torch.equal(x, out)


@pytest.mark.parametrize("rows,columns", [(50, 1000), (3, 70), (2, 100_000)])
def test_a_row_that_is_stored_early_may_be_run_in_place(rows, columns):
    """The sum x + r is an output and is normalised as well: with x overwritten by the sum, x must not be read again."""
    b = loops.KernelBuilder()
    p, r = b.axis(rows), b.axis(columns, "r")
    index = p * columns + r
    x, y, total, out = b.buffer(F32), b.buffer(F32), b.buffer(F32, "out"), b.buffer(F32, "out")
    s = b.compute("add", b.load(x, index), b.load(y, index), dtype=F32)
    b.store(total, index, s)
    mean = b.compute("mul", b.reduce("sum", s), b.const(1 / columns, F32), dtype=F32)
    b.store(out, index, b.compute("sub", s, mean, dtype=F32))
    a, c = torch.randn(rows, columns), torch.randn(rows, columns)
    want = a + c
    result = torch.zeros_like(a)
    run(b.finish("early"), [a, c, a, result])
    assert torch.equal(a, want)
    assert torch.allclose(result, want - want.mean(1, keepdim=True), atol=1e-5)


@pytest.mark.parametrize("shape,dim", [((5, 1000), 1), ((3, 7), 1), ((300, 40), 0), ((2, 5, 3), 1), ((40_000,), 0)])
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int64], ids=str)
def test_cumsum(shape, dim, dtype):
    x = (torch.randn(shape) * 9).to(dtype)
    b = loops.KernelBuilder()
    axes = [b.axis(n, "r" if d == dim else "p") for d, n in enumerate(shape)]
    index = 0
    for a, stride in zip(axes, x.stride()):
        index = index + a * stride
    source, target, scaled = b.buffer(dtype), b.buffer(dtype, "out"), b.buffer(dtype, "out")
    v = b.load(source, index)
    running = b.scan("sum", b.compute("mul", v, b.const(2, dtype), dtype=dtype))
    b.store(target, index, running)
    b.store(scaled, index, b.compute("add", running, v, dtype=dtype))
    outs = [torch.zeros_like(x), torch.zeros_like(x)]
    run(b.finish("cumsum"), [x, *outs])
    want = (x.double() * 2).cumsum(dim)
    error = 3e-7 * want.abs().max().item()
    assert torch.allclose(outs[0].double(), want, rtol=0, atol=error)
    assert torch.allclose(outs[1].double(), want + x.double(), rtol=0, atol=2 * error)


@pytest.mark.parametrize("rows,columns", [(5, 7), (64, 64), (100, 300), (1000, 3), (513, 1030)])
def test_transposed_operand(rows, columns):
    b = loops.KernelBuilder()
    i, j = b.axis(rows), b.axis(columns)
    x, y, out = b.buffer(F32), b.buffer(F32), b.buffer(F32, "out")
    b.store(out, i * columns + j, b.compute("add", b.load(x, j * rows + i), b.load(y, i * columns + j), dtype=F32))
    a, c, got = torch.randn(columns, rows), torch.randn(rows, columns), torch.zeros(rows, columns)
    run(b.finish("transposed"), [a, c, got])
    assert torch.equal(got, a.t() + c)


def test_indirect_load_with_a_check():
    b = loops.KernelBuilder()
    i, j = b.axis(6), b.axis(10)
    table, rows, out, error = b.buffer(F32), b.buffer(torch.int64), b.buffer(F32, "out"), b.buffer(torch.int32, "error")
    row = b.load(rows, i)
    b.store(out, i * 10 + j, b.load(table, b.position(row, 20, error, 7) * 10 + j))
    kernel = b.finish("embedding")
    weights, result, code = torch.randn(20, 10), torch.zeros(6, 10), torch.zeros(1, dtype=torch.int32)
    index = torch.tensor([3, 19, 0, 3, 7, 1])
    run(kernel, [weights, index, result, code])
    assert torch.equal(result, weights[index]) and code.item() == 0
    for bad in (20, -1, 10**12, -(10**12), 2**63 - 1, -(2**63)):
        index[2] = bad
        code.zero_()
        run(kernel, [weights, index, result, code])
        assert code.item() == 7 and torch.equal(result, weights[torch.tensor([3, 19, 0, 3, 7, 1])])


def test_masked_stores_and_loads():
    b = loops.KernelBuilder()
    i = b.axis(500)
    x, out = b.buffer(F32), b.buffer(F32, "out")
    position = b.index(i)
    inside = b.compute("lt", position, b.const(300, torch.int64), dtype=torch.bool)
    odd = b.compute("ne", b.compute("remainder", position, b.const(2, torch.int64), dtype=torch.int64),
                    b.const(0, torch.int64), dtype=torch.bool)
    b.store(out, i, b.load(x, i, mask=inside, other=9.0), mask=odd)
    a, got = torch.randn(300), torch.zeros(500)
    run(b.finish("masked"), [a, got])
    want = torch.cat([a, torch.full((200,), 9.0)])
    want[::2] = 0
    assert torch.equal(got, want)


@pytest.mark.parametrize("n", [2, 63, 64, 65, 1000, 70_000])
def test_symbolic_sizes(n):
    rows, columns = dims.Sym("rows", hint=50, lo=2), dims.Sym("columns", hint=100, lo=2)
    b = loops.KernelBuilder()
    i, j = b.axis(rows), b.axis(columns, "r")
    x, out, total = b.buffer(F32), b.buffer(F32, "out"), b.buffer(F32, "out")
    v = b.load(x, i * columns + j)
    s = b.reduce("sum", v)
    b.store(out, i * columns + j, b.compute("sub", v, s, dtype=F32))
    b.store(total, i, s)
    kernel = b.finish("symbolic")
    a = torch.randn(5, n)
    got, sums = torch.zeros_like(a), torch.zeros(5)
    run(kernel, [a, got, sums], [{"rows": 5, "columns": n}[s] for s in kernel.sizes])
    assert torch.allclose(sums, a.sum(1), atol=1e-3) and torch.allclose(got, a - a.sum(1, keepdim=True), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_rows(dtype):
    b = loops.KernelBuilder()
    i, j = b.axis(20), b.axis(333, "r")
    x, out = b.buffer(dtype), b.buffer(dtype, "out")
    v = b.cast(b.load(x, i * 333 + j), F32)
    e = b.compute("exp", b.compute("sub", v, b.reduce("max", v), dtype=F32), dtype=F32)
    b.store(out, i * 333 + j, b.cast(b.compute("div", e, b.reduce("sum", e), dtype=F32), dtype))
    a = torch.randn(20, 333).to(dtype)
    got = torch.zeros_like(a)
    run(b.finish("half"), [a, got])
    assert torch.allclose(got.float(), a.float().softmax(1).to(dtype).float(), rtol=1e-2, atol=1e-4)


def test_an_empty_kernel_does_nothing():
    b = loops.KernelBuilder()
    n = dims.Sym("n", hint=8)
    i = b.axis(n)
    x, out = b.buffer(F32), b.buffer(F32, "out")
    b.store(out, i, b.load(x, i))
    run(b.finish("empty"), [torch.zeros(1), torch.zeros(1)], [0])


def test_a_kernel_without_axes():
    b = loops.KernelBuilder()
    x, out = b.buffer(F32), b.buffer(F32, "out")
    b.store(out, 0, b.compute("exp", b.load(x, 0), dtype=F32))
    a, got = torch.tensor([2.0]), torch.zeros(1)
    run(b.finish("rank0"), [a, got])
    assert torch.allclose(got, a.exp())


def test_duplicates_are_emitted_and_compiled_once():
    first, second = (loops.rename(softmax(64, 64), n) for n in ("layer0", "layer1"))
    assert emit([first, second]).count("EXPORT void") == 1
    addresses = compile_cpp([first, second])
    assert addresses["layer0"] == addresses["layer1"]


def test_large_outputs_are_right_with_streaming_stores():
    n = max(9_000_037, devices.of_type("cpu").architecture().cache // 4 + 37)
    b = loops.KernelBuilder()
    i = b.axis(n)
    x, out = b.buffer(F32), b.buffer(F32, "out")
    b.store(out, i, b.compute("add", b.load(x, i), b.const(1.0, F32), dtype=F32))
    kernel = b.finish("large")
    assert "stream<" in emit([kernel])
    a = torch.randn(n)
    for offset in (0, 1):  # aligned and not
        got = torch.zeros(n + 1)
        run(kernel, [a, got[offset:]])
        assert torch.equal(got[offset : offset + n], a + 1) and got[n if offset == 0 else 0] == 0


# random kernels against the reference interpreter

_FLOAT_OPS = ["add", "sub", "mul", "maximum", "minimum", "abs", "neg", "relu", "sqrt", "exp", "tanh", "sigmoid"]


@st.composite
def random_kernel(draw):
    b = loops.KernelBuilder()
    n_p, n_r = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    sizes = st.sampled_from([1, 2, 3, 5, 16, 31, 64, 70])
    p = [(b.axis(n), n, "p") for n in (draw(sizes) for _ in range(n_p))]
    r = [(b.axis(n, "r"), n, "r") for n in (draw(sizes) for _ in range(n_r))]
    extents = [*p, *r]
    lengths = {}

    def index(axes, offset=0):
        """A dense index over some axes, in a drawn order of strides."""
        order = draw(st.permutations(axes))
        out, stride = offset, 1
        for sym, n, _ in order:
            out = out + sym * stride
            stride = stride * n
        return out, stride + offset

    element, row = [], []
    for _ in range(draw(st.integers(1, 3))):
        axes = [a for a in extents if draw(st.integers(0, 4))]
        dtype = draw(st.sampled_from([F32, F32, F32, torch.bfloat16, torch.int32]))
        buffer = b.buffer(dtype)
        at, lengths[buffer] = index(axes)
        value = b.cast(b.load(buffer, at), F32)
        (element if any(a[2] == "r" for a in axes) else row).append(value)
    if p and draw(st.booleans()):
        row.append(b.cast(b.index(p[-1][0]), F32))

    def compute(pool):
        op = draw(st.sampled_from(_FLOAT_OPS))
        value = b.compute(op, *[draw(st.sampled_from(pool)) for _ in range(info(op).arity)], dtype=F32)
        return b.compute("minimum", b.compute("maximum", value, b.const(-4.0, F32), dtype=F32), b.const(4.0, F32),
                         dtype=F32)

    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.integers(0, 4))
        if kind == 4 and element and n_r == 1:
            value = b.scan("sum", draw(st.sampled_from(element)))
            element.append(b.compute("mul", value, b.const(0.03, F32), dtype=F32) if draw(st.booleans()) else value)
        elif kind == 0 and element:
            op = draw(st.sampled_from(["sum", "max", "min"]))
            value = b.reduce(op, draw(st.sampled_from(element)))
            row.append(b.compute("mul", value, b.const(0.03, F32), dtype=F32))
        elif kind == 1 and row:
            row.append(compute(row))
        elif element or (row and r):
            value = compute(element + row)
            (element if value in element or _uses_r(b, value) else row).append(value)
    outs = []
    for pool, axes in ((element[-2:], extents), (row[-2:], p)):
        for value in pool:
            if not _uses_r(b, value) and axes is extents and r:
                continue
            buffer = b.buffer(F32, "out")
            at, lengths[buffer] = index(axes)
            b.store(buffer, at, value)
            outs.append(buffer)
    if not outs:
        buffer = b.buffer(F32, "out")
        at, lengths[buffer] = index(p)
        b.store(buffer, at, b.const(1.0, F32))
    return b.finish("random"), lengths


def _uses_r(b, value):
    """Whether a value of an unfinished kernel varies along a reduction axis."""
    return value in b.finish("k").element_values


@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(random_kernel())
def test_random_kernels(case):
    kernel, lengths = case
    torch.manual_seed(1)
    buffers = {b.name: (torch.randn(lengths[b.name]) * 2).to(b.dtype)
               if b.role == "in" else torch.full((lengths[b.name],), 7.0) for b in kernel.buffers}
    want = {n: t.clone() for n, t in buffers.items()}
    loops.verify(kernel)
    reference.evaluate(kernel, want, {})
    run(kernel, [buffers[b.name] for b in kernel.buffers])
    for b in kernel.buffers:
        assert torch.allclose(buffers[b.name].float(), want[b.name].float(), rtol=1e-4, atol=1e-4,
                              equal_nan=True), f"{b.name}\n{kernel.text()}"


@pytest.mark.parametrize("n", [60, 5000])
def test_indices_with_divisions(n):
    """A reshape that is not affine: out[i] = x[i // 5, i % 5] + y[i % 3], with x transposed in memory."""
    b = loops.KernelBuilder()
    i = b.axis(n)
    x, y, out, where = b.buffer(F32), b.buffer(F32), b.buffer(F32, "out"), b.buffer(torch.int64, "out")
    b.store(out, i, b.compute("add", b.load(x, i % 5 * (n // 5) + i // 5), b.load(y, i % 3), dtype=F32))
    b.store(where, i, b.index(i // 7 + i % 4))
    a, c = torch.randn(5, n // 5), torch.randn(3)
    got, index, k = torch.zeros(n), torch.zeros(n, dtype=torch.int64), torch.arange(n)
    run(b.finish("divided"), [a, c, got, index])
    assert torch.equal(got, a.t().reshape(-1) + c[k % 3])
    assert torch.equal(index, k // 7 + k % 4)


@pytest.mark.parametrize("rows", [7, 3000])
def test_divided_indices_beside_rows_and_reductions(rows):
    b = loops.KernelBuilder()
    p, r = b.axis(rows), b.axis(90, "r")
    x, out, total = b.buffer(F32), b.buffer(F32, "out"), b.buffer(F32, "out")
    v = b.load(x, p // 7 * 900 + p % 7 * 90 + r // 9 + r % 9 * 10)
    b.store(out, p * 90 + r, v)
    b.store(total, p, b.reduce("sum", v))
    a = torch.randn(rows // 7 + 1, 10, 9, 10)
    want = a[:, :7].reshape(-1, 9, 10)[:rows].transpose(1, 2).reshape(rows, 90)
    got, sums = torch.zeros(rows, 90), torch.zeros(rows)
    run(b.finish("divided"), [a, got, sums])
    assert torch.equal(got, want) and torch.allclose(sums, want.sum(1), atol=1e-4)


def test_a_division_by_a_row_value_is_the_rounded_quotient():
    torch.manual_seed(3)
    divisors = torch.tensor([3.0, 0.0, -0.0, math.inf, math.nan, 1e-40, 3e38, 1e-30, -7.25, 1 / 3])
    b = loops.KernelBuilder()
    p, r = b.axis(len(divisors)), b.axis(1000, "r")
    x, t, out = b.buffer(F32), b.buffer(F32), b.buffer(F32, "out")
    v = b.load(x, r)
    b.store(out, p * 1000 + r, b.compute("div", v, b.load(t, p), dtype=F32))
    a = torch.cat([torch.randn(900), torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, 1e-38, 1.0]),
                   torch.rand(92) * 1e-20])
    got = torch.zeros(len(divisors), 1000)
    run(b.finish("divide"), [a, divisors, got])
    want = a / divisors[:, None]
    normal = (want.abs() >= torch.finfo(F32).tiny) | (want == 0) | ~want.isfinite()
    assert ((got == want) | (got.isnan() & want.isnan()) | ~normal).all()
    assert torch.equal(got.signbit()[want == 0], want.signbit()[want == 0])
    assert torch.allclose(got, want, rtol=0, atol=2e-45,
                          equal_nan=True) or (got[~normal] - want[~normal]).abs().max() <= 2e-45


def test_two_long_reductions_over_several_axes():
    b = loops.KernelBuilder()
    c, n, s = b.axis(6), b.axis(40, "r"), b.axis(900, "r")
    x, mean, var = b.buffer(F32), b.buffer(F32, "out"), b.buffer(F32, "out")
    v = b.load(x, n * 5400 + c * 900 + s)
    m = b.compute("mul", b.reduce("sum", v), b.const(1 / 36000, F32), dtype=F32)
    d = b.compute("sub", v, m, dtype=F32)
    b.store(mean, c, m)
    b.store(var, c,
            b.compute("mul", b.reduce("sum", b.compute("mul", d, d, dtype=F32)), b.const(1 / 36000, F32), dtype=F32))
    a = torch.randn(40, 6, 900) + 3
    got = [torch.zeros(6), torch.zeros(6)]
    run(b.finish("statistics"), [a, *got])
    assert torch.allclose(got[0], a.mean((0, 2)),
                          atol=1e-6) and torch.allclose(got[1], a.var((0, 2), correction=0), atol=1e-6)


def test_a_scan_between_two_passes():
    b = loops.KernelBuilder()
    p, r = b.axis(4), b.axis(333, "r")
    x, out = b.buffer(F32), b.buffer(F32, "out")
    running = b.scan("sum", b.load(x, p * 333 + r))
    b.store(out, p * 333 + r, b.compute("sub", running, b.reduce("max", running), dtype=F32))
    a, got = torch.randn(4, 333), torch.zeros(4, 333)
    run(b.finish("scanned"), [a, got])
    want = a.cumsum(1) - a.cumsum(1).amax(1, keepdim=True)
    assert torch.allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("columns", [12, 40, 100])
def test_what_a_scan_reads_is_used_again_after_it(columns):
    def f(m, x):
        return (m.cumsum(1) * m - 1, x.cumsum(1) * x + (x * 2).cumsum(1))

    m, x = torch.randint(0, 2, (3, columns)), torch.rand(3, columns)
    for ours, theirs in zip(jit.compile(f, fullgraph=True)(m, x), f(m, x)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int64], ids=str)
def test_scans_of_scans(dtype):
    """Each is stored and read by the next: what came before a strip belongs to both uses."""

    def f(x):
        once = x.cumsum(-1)
        twice = once.cumsum(-1)
        return once, twice, twice.cumsum(-1), once.relu(), once - once.amax(-1, keepdim=True), (once * 2).cumsum(-1)

    compiled = jit.compile(f, fullgraph=True)
    for columns in (1, 8, 9, 33, 64, 65, 300):
        x = torch.randint(-2, 3, (3, columns)).to(dtype)
        for ours, theirs in zip(compiled(x), f(x), strict=True):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_einsum_of_one_operand_is_a_view():
    def f(q, m):
        m = torch.einsum("ijb->bij", ((m * 2)[:, None] + m[None]) * 3)
        return torch.softmax(q @ q.mT - m, -1) @ q

    q, m = torch.rand(2, 12, 4), torch.rand(12, 2)
    torch.testing.assert_close(jit.compile(f, fullgraph=True)(q, m), f(q, m))


REPEATED = {
    "repeat": lambda x: x.repeat(1, 4) * 2,
    "repeat_interleave": lambda x: x.repeat_interleave(128, 1) + 1,
    "both ways": lambda x: x.repeat(2, 3) + x.repeat_interleave(2, 0).repeat_interleave(3, 1),
    "scan of a repetition": lambda x: x.repeat(1, 3).cumsum(1),
    "sum of a repetition": lambda x: x.repeat(1, 4).sum(1),
    "sum over columns": lambda x: x.repeat(1, 4).sum(0),
}


@pytest.mark.parametrize("name", REPEATED)
def test_axes_walked_in_periods(name):
    """Whole numbers, so that every order of adding gives the same."""
    f = REPEATED[name]
    compiled = jit.compile(f)
    for rows, columns in ((3, 128), (5, 100), (2, 64), (70, 63), (64, 192), (1, 64), (0, 64)):
        x = torch.randint(-9, 9, (rows, columns)).float()
        for layout in (x, x.t().contiguous().t(), x[:, ::2]):
            assert torch.equal(compiled(layout), f(layout))


def test_a_repetition_is_read_in_order():
    """As a loop over one period, not as a gather at ``i % n``."""
    b = loops.KernelBuilder()
    i = b.axis(4096)
    value = b.load(b.buffer(torch.float32), dims.Mod(i, 1024))
    b.store(b.buffer(torch.float32, "out"), i, value)
    text = emit([loops.verify(b.finish("repeated"))])
    assert "% 1024" not in text and "< 1024" in text


def grouped(x, groups):
    """Channels-last images as (batch, groups, channels of a group, rows, columns)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


GROUPED = {
    "sum": lambda x, w: grouped(x, 4).sum((2, 3, 4)),
    "largest": lambda x, w: grouped(x, 4).amax((2, 3, 4)),
    "variance": lambda x, w: grouped(x, 4).var((2, 3, 4)),
    "one dimension after the other": lambda x, w: grouped(x, 4).sum((2, 4), keepdim=True),
    "norm": lambda x, w: torch.nn.functional.group_norm(x, 4, w, w),
    "less the mean": lambda x, w: grouped(x, 4) - grouped(x, 4).mean((2, 3, 4), keepdim=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GROUPED)
def test_reductions_of_short_runs(name, dtype):
    """Exact to what eager is against double the precision; numbers far from zero beside their spread."""
    f = GROUPED[name]
    for shape in ((3, 32, 9, 7), (2, 8, 16, 16), (2, 12, 40, 3), (1, 4, 5, 5)):
        for offset in (0.0, 50.0):
            x = (torch.randn(shape) + offset).to(dtype).to(memory_format=torch.channels_last)
            w = torch.randn(shape[1]).to(dtype)
            compiled = jit.compile(f)
            got, expected = compiled(x, w), f(x, w)
            assert got.dtype is expected.dtype and got.stride() == expected.stride()
            exact = f(x.double(), w.double())
            error, eager = ((r.double() - exact).abs().max().item() if r.numel() else 0 for r in (got, expected))
            least = max(torch.finfo(dtype).eps, 1e-12) * (exact.abs().max().item() if exact.numel() else 0)
            assert error <= 2 * eager + 4 * least


def test_rows_of_short_runs_are_reduced_side_by_side(monkeypatch):
    """The kernel that reads the image has the channels as its innermost loop, not the two that are added up."""
    texts = []
    monkeypatch.setattr("jit.codegen.cpp.KernelText.text", lambda self, _text=KernelText.text: texts.append(_text(self))
                        or texts[-1])
    x = torch.randn(2, 64, 33, 35).to(memory_format=torch.channels_last)
    jit.compile(lambda x: grouped(x, 32).sum((2, 3, 4)) * 1.25)(x)
    assert any("j < 64" in text for text in texts)
