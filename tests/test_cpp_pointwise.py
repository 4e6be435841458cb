"""Every pointwise prim in C++ against torch's eager operator, on special values and for each dtype."""

import ctypes
import math
import re
import subprocess

import pytest
import torch

from jit.codegen import loops, reference, toolchain
from jit.codegen.cpp import compile_cpp, emit
from jit.errors import Unsupported
from jit.graph.prims import info, names

FLOATS = [torch.float32, torch.float64]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FLOAT_UNARY = sorted(n for n in names(kind="pointwise", arity=1) - {"cast", "logical_not", "bitwise_not"}
                     if info(n).result in (None, torch.bool))
FLOAT_BINARY = sorted(names(kind="pointwise", arity=2, of_words=False)
                      - {"bitwise_and", "bitwise_or", "bitwise_xor", "shl", "shr"})
INT_UNARY = ["neg", "abs", "sign", "relu", "bitwise_not", "logical_not", "ceil", "floor", "round", "trunc"]
INT_BINARY = sorted(names(kind="pointwise", arity=2, of_words=False)
                    - {"div", "atan2", "copysign", "hypot", "pow", "fmax", "fmin"})
LOOSE = {"lgamma": 40, "pow": 8, "erfinv": 400, "tan": 8, "erfc": 30, "sinh": 8, "cosh": 8, "atanh": 8, "asinh": 8,
         "acosh": 8}


def run(kernels, buffers):
    """Run kernels on lists of tensors (ABI: pointers in buffer order)."""
    addresses = compile_cpp(kernels)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    for kernel, tensors in zip(kernels, buffers, strict=True):
        pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        call(addresses[kernel.name])(pointers, (ctypes.c_int64 * 1)())


def specials(dtype, pairs=False):
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        base = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, math.pi, -7.25, 1e-3, info.tiny, -info.tiny,
                info.tiny / 8, info.max, -info.max, info.eps, 20.0, -20.0, 88.0, -88.0, 100.0, -110.0, 1e10, -1e10,
                math.inf, -math.inf, math.nan]  # fmt: skip
        values = torch.tensor(base, dtype=dtype)
        if not pairs:
            torch.manual_seed(0)
            values = torch.cat([values, torch.randn(300, dtype=dtype), torch.rand(100, dtype=dtype) * 40 - 20,
                                torch.logspace(-30, 30, 71, dtype=dtype)])
    elif dtype is torch.bool:
        values = torch.tensor([True, False])
    else:
        info = torch.iinfo(dtype)
        values = torch.tensor(sorted({info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 8, 31, 63, 64, 100}
                                     | (set() if info.min == 0 else {-1, -2, -3, -7, -100})), dtype=dtype)
    if not pairs:
        return (values.repeat(-(-200 // len(values))),)
    return tuple(v.reshape(-1).clone() for v in torch.meshgrid(values, values, indexing="ij"))


def grouped(ops, dtype, inputs, group=8):
    """Kernels with up to ``group`` operators each: [(kernel, tensors, {op: output})]."""
    out, scalar = [], {"lgamma", "erfinv"}
    order = [o for o in ops if o not in scalar] + [o for o in ops if o in scalar]
    n = len(inputs[0])
    for g in range(0, len(order), group):
        b, results = loops.KernelBuilder(), {}
        i = b.axis(n)
        values = [b.load(b.buffer(dtype), i) for _ in inputs]
        for op in order[g : g + group]:
            result = torch.bool if info(op).result is torch.bool else dtype
            results[op] = torch.zeros(n, dtype=result)
            b.store(b.buffer(result, "out"), i, b.compute(op, *values, dtype=result))
        kernel = loops.verify(b.finish(f"pointwise{len(out)}"))
        out.append((kernel, [*inputs, *results.values()], results))
    run([k for k, _, _ in out], [t for _, t, _ in out])
    return {op: r for _, _, results in out for op, r in results.items()}


def ulps(got, want):
    """Distance in units in the last place; 0 where both are NaN or equal."""
    integer = torch.int32 if got.dtype is torch.float32 else torch.int64
    a, b = got.view(integer), want.view(integer)
    low = torch.iinfo(integer).min
    a, b = torch.where(a < 0, low - a, a), torch.where(b < 0, low - b, b)
    distance = (a.to(torch.int64) - b).abs().double()
    return torch.where((got == want) | (got.isnan() & want.isnan()), 0.0,
                       torch.where(got.isnan() | want.isnan(), math.inf, distance))


def compare(op, got, want, inputs):
    if got.dtype.is_floating_point:
        distance = ulps(got, want)
        tiny = torch.finfo(got.dtype).tiny
        distance = torch.where((got.abs() < tiny) & (want.abs() < tiny) & ((got - want).abs() <= tiny * 1e-5), 0.0,
                               distance)
        if op in ("sin", "cos", "tan"):
            distance = torch.where(((got - want).abs() < 1e-6) & (inputs[0].abs() < 1e6), 0.0, distance)
        if op in ("lgamma", "erfc", "log1p", "expm1", "normal_cdf"):
            distance = torch.where((got - want).abs() < torch.finfo(got.dtype).eps * 4, 0.0, distance)
        if op == "digamma":  # beside its zeros eager's is as exact as what it adds up; ours is within 6e-8 of doubles
            near = torch.finfo(got.dtype).eps * 32 * (1 + want.abs())
            distance = torch.where((got - want).abs() < near, 0.0, distance)
        limit = LOOSE.get(op, 4)
        bad = distance > limit
        zero = (want == 0) & (got == 0) & (got.signbit() != want.signbit())
        if op in ("maximum", "minimum", "fmax", "fmin"):
            zero[:] = False  # which zero wins is not defined
        bad = bad | zero
    else:
        bad = got != want
    if bad.any():
        k = int(bad.nonzero()[0])
        raise AssertionError(f"{op}({', '.join(repr(i[k].item()) for i in inputs)}) = {got[k].item()!r}, "
                             f"eager gives {want[k].item()!r} ({int(bad.sum())} differ)")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_unary(dtype):
    inputs = specials(dtype)
    for op, got in grouped(FLOAT_UNARY, dtype, inputs).items():
        compare(op, got, reference.pointwise(op, list(inputs), got.dtype), inputs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_binary(dtype):
    inputs = specials(dtype, pairs=True)
    # Eager's fmod gives NaN where the quotient overflows
    normal = (inputs[1] == 0) | (inputs[0] / inputs[1]).isfinite() | ~inputs[0].isfinite()
    for op, got in grouped(FLOAT_BINARY, dtype, inputs).items():
        want = reference.pointwise(op, list(inputs), got.dtype)
        keep = normal if op in ("fmod", "remainder", "floor_div") else torch.ones_like(normal)
        compare(op, got[keep], want[keep], tuple(i[keep] for i in inputs))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_unary(dtype):
    inputs = specials(dtype)
    ops = [o for o in INT_UNARY if not (dtype is torch.uint8 and o == "relu")]
    for op, got in grouped(ops, dtype, inputs).items():
        compare(op, got, reference.pointwise(op, list(inputs), got.dtype), inputs)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_binary(dtype):
    inputs = specials(dtype, pairs=True)
    nonzero = inputs[1] != 0
    if dtype in (torch.int32, torch.int64):
        nonzero &= ~((inputs[0] == torch.iinfo(dtype).min) & (inputs[1] == -1))  # eager traps or is undefined there
    inputs = tuple(i[nonzero] for i in inputs)
    for op, got in grouped(INT_BINARY, dtype, inputs).items():
        compare(op, got, reference.pointwise(op, list(inputs), got.dtype), inputs)


def test_integer_division_by_zero_does_not_trap():
    inputs = (torch.tensor([5, torch.iinfo(torch.int64).min, 0]), torch.tensor([0, -1, 0]))
    grouped(["floor_div", "trunc_div", "remainder", "fmod"], torch.int64, inputs)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_pow(dtype):
    base = torch.tensor([0, 1, 2, 3, 5, 7, 100], dtype=dtype)
    inputs = tuple(v.reshape(-1).clone()
                   for v in torch.meshgrid(base, torch.tensor([0, 1, 2, 3, 10], dtype=dtype), indexing="ij"))
    for op, got in grouped(["pow"], dtype, inputs).items():
        compare(op, got, inputs[0] ** inputs[1], inputs)


def test_bool():
    inputs = specials(torch.bool, pairs=True)
    binary = ["logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "add", "mul",
              "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]
    for op, got in grouped(binary, torch.bool, inputs).items():
        compare(op, got, reference.pointwise(op, list(inputs), torch.bool), inputs)
    for op, got in grouped(["logical_not", "bitwise_not"], torch.bool, inputs[:1]).items():
        compare(op, got, ~inputs[0], inputs[:1])


ALL = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, *INTS]


@pytest.mark.parametrize("source", ALL, ids=str)
def test_cast(source):
    (values,) = specials(source)
    if source.is_floating_point:
        # A float that an integer type cannot hold has no defined value.
        integral = torch.cat([torch.linspace(-100, 100, 401), torch.tensor([-0.0, 0.5, -0.5, 127.9])]).to(source)
    else:
        integral = values
    kernels, tensors, checks = [], [], []
    for target in ALL:
        x = values if target.is_floating_point or target is torch.bool else integral
        if target is torch.uint8 and source.is_floating_point:
            x = x.abs()
        b = loops.KernelBuilder()
        i = b.axis(len(x))
        b_in, b_out = b.buffer(source), b.buffer(target, "out")
        b.store(b_out, i, b.cast(b.load(b_in, i), target))
        out = torch.zeros(len(x), dtype=target)
        kernels.append(loops.verify(b.finish(f"cast_{len(kernels)}")))
        tensors.append([x, out])
        checks.append((x, out, target))
    run(kernels, tensors)
    for x, out, target in checks:
        want = x.to(target)
        same = (out == want) | (out.isnan() & want.isnan()) if target.is_floating_point else out == want
        assert same.all(), f"{source} -> {target}: {x[~same][:4]} gave {out[~same][:4]}, eager {want[~same][:4]}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_floats_round_to_the_nearest_half(dtype):
    bits = (torch.arange(0, 1 << 16, dtype=torch.int64)[:, None] << 16) + torch.tensor(
        [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    x = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).reshape(-1).view(torch.float32)
    b = loops.KernelBuilder()
    i = b.axis(len(x))
    source, target = b.buffer(torch.float32), b.buffer(dtype, "out")
    b.store(target, i, b.cast(b.load(source, i), dtype))
    out = torch.zeros(len(x), dtype=dtype)
    run([b.finish("round")], [[x, out]])
    want = x.to(dtype)
    assert ((out == want) | (out.isnan() & want.isnan())).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_half_becomes_its_float(dtype):
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    b = loops.KernelBuilder()
    i = b.axis(len(x))
    source, target = b.buffer(dtype), b.buffer(torch.float32, "out")
    b.store(target, i, b.cast(b.load(source, i), torch.float32))
    out = torch.zeros(len(x))
    run([b.finish("widen")], [[x, out]])
    assert ((out == x.float()) | (out.isnan() & x.isnan())).all() and torch.equal(out.signbit(), x.float().signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8], ids=str)
def test_where_and_constants(dtype):
    (x,) = specials(dtype)
    b = loops.KernelBuilder()
    i = b.axis(len(x))
    source, target = b.buffer(dtype), b.buffer(dtype, "out")
    v = b.load(source, i)
    limit = b.const(3, dtype)
    b.store(target, i, b.compute("where", b.compute("gt", v, limit, dtype=torch.bool), v, limit, dtype=dtype))
    out = torch.zeros_like(x)
    run([b.finish("where")], [[x, out]])
    assert torch.equal(out, torch.where(x > 3, x, torch.tensor(3, dtype=dtype)))


@pytest.mark.parametrize("value", [0.0, -0.0, 1 / 3, 1e-45, 3.4e38, math.inf, -math.inf, math.nan, 123456789.0, -2.5])
def test_float_constants_are_exact(value):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        b = loops.KernelBuilder()
        target = b.buffer(dtype, "out")
        b.store(target, b.axis(3), b.const(value, dtype))
        out = torch.ones(3, dtype=dtype)
        run([b.finish("constant")], [[out]])
        assert [repr(v) for v in out.tolist()] == [
            repr(v) for v in torch.full((3,), value, dtype=torch.float64).to(dtype).tolist()]


@pytest.mark.parametrize("exponent", [-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 2.5])
def test_pow_with_a_constant_exponent(exponent):
    (x,) = specials(torch.float32)
    b = loops.KernelBuilder()
    i = b.axis(len(x))
    source, target = b.buffer(torch.float32), b.buffer(torch.float32, "out")
    b.store(target, i, b.compute("pow", b.load(source, i), b.const(exponent, torch.float32), dtype=torch.float32))
    out = torch.zeros_like(x)
    run([b.finish("power")], [[x, out]])
    roots = abs(exponent) == 0.5  # eager makes them of a number, and so does the graph
    compare("pow", out, torch.pow(x, torch.full_like(x, exponent)) if roots else x**exponent, (x,))


def test_complex_is_refused():
    b = loops.KernelBuilder()
    i = b.axis(4)
    source, target = b.buffer(torch.complex64), b.buffer(torch.complex64, "out")
    b.store(target, i, b.load(source, i))
    with pytest.raises(Unsupported, match="complex64"):
        compile_cpp([b.finish("complex")])


F32 = torch.float32
CHAINS = {
    "clamp": lambda b, x, y, z: b.compute("minimum", b.compute("maximum", x, y, dtype=F32), z, dtype=F32),
    "clamp between numbers": lambda b, x, y, z: b.compute(
        "minimum", b.compute("maximum", x, b.const(-1.0, F32), dtype=F32), b.const(1.0, F32), dtype=F32),
    "largest of three": lambda b, x, y, z: b.compute("maximum", b.compute("maximum", x, y, dtype=F32), z, dtype=F32),
    "fmod": lambda b, x, y, z: b.compute("fmod", x, y, dtype=F32),
    "remainder": lambda b, x, y, z: b.compute("remainder", b.compute("div", x, y, dtype=F32), z, dtype=F32),
    "floor_div": lambda b, x, y, z: b.compute("floor_div", x, y, dtype=F32),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_chains_are_vectorised(chain, tmp_path):
    """Jumps in a loop cost 10 to 30 times the work, and no other test sees them."""
    b = loops.KernelBuilder()
    i = b.axis(4096)
    values = [b.load(b.buffer(F32), i) for _ in range(3)]
    b.store(b.buffer(F32, "out"), i, CHAINS[chain](b, *values))
    source = tmp_path / "kernel.cpp"
    source.write_text(emit([loops.verify(b.finish("chain"))]))
    lines = source.read_text().splitlines()
    loop = next(n for n, line in enumerate(lines, 1) if "#pragma omp simd" in line) + 1
    command = [toolchain.compiler(), *toolchain.flags(), "-fopt-info-vec-optimized", "-c", str(source)]
    done = subprocess.run([*command, "-o", str(tmp_path / "kernel.o")], capture_output=True, text=True, check=True)
    found = [int(n) for n in re.findall(r"cpp:(\d+):\d+: optimized: loop vectorized", done.stderr)]
    assert any(loop <= n <= loop + 20 for n in found), f"{chain}: {done.stderr}"
