"""exp, log and their relatives in C++ kernels: as exact as eager's on average and without a bias, right at the ends of
floats, on processors of all kinds.

Errors are relative to the truth, in half units of the last place: 1 is the most by which a rounded truth is off.
"""

import ctypes
import functools
import math
import platform
import subprocess

import numpy
import pytest
import torch
import torch.nn.functional as F

import jit
from jit.codegen import toolchain
from jit.codegen.cpp import functions, ops, support

FLOATS = (torch.float32, torch.float64)
N = 1 << 16


def bessel(x):
    """I0(x), by its series: the sum of ((x/2)**k / k!)**2."""
    term = total = numpy.ones_like(x)
    for k in range(1, 200):
        term = term * (x / 2 / k) ** 2
        total = total + term
    return total


# name: (function of numpy's wide floats, ranges (low, high) of arguments, or of their binary logarithms behind a "2")
CASES = {
    "exp": (numpy.exp, (-1, 1), (-20, 20), (-80, 80)),
    "exp2": (numpy.exp2, (-1, 1), (-100, 100)),
    "expm1": (numpy.expm1, (-1, 1), (-20, 20), (-20, 0, 2)),
    "cosh": (numpy.cosh, (-1, 1), (-20, 20)),
    "tanh": (numpy.tanh, (0, 1), (0, 8), (-20, 0, 2)),
    "sigmoid": (lambda x: 1 / (1 + numpy.exp(-x)), (-1, 1), (-8, 8), (-80, 80)),
    "log": (numpy.log, (0.5, 2), (-60, 60, 2)),
    "log10": (numpy.log10, (0.5, 2), (-60, 60, 2)),
    "log1p": (numpy.log1p, (-0.5, 1), (-20, -1, 2), (-20, 20, 2)),
    "asin": (numpy.arcsin, (0, 1), (-20, 0, 2)),
    "acos": (numpy.arccos, (-1, 1)),
    "atan": (numpy.arctan, (0, 1), (0, 20)),
    "sin": (numpy.sin, (0, 3), (0, 100), (-20, 0, 2)),
    "cos": (numpy.cos, (-3, 3), (0, 100)),
    "tan": (numpy.tan, (0, 1.5), (0, 100)),
    "atan2": (lambda x: numpy.arctan2(x, x[::-1]), (-3, 3), (0.5, 1.5), (-20, 20, 2)),
    "erf": (None, (0, 1), (0, 4), (-20, 0, 2)),
    "i0": (bessel, (-1, 1), (-8, 8), (8, 80)),
    "lgamma": (None, (0, 3), (1, 20), (20, 1000), (-5, 0)),
    "digamma": (None, (0, 1), (2, 20), (20, 1000)),
}
BINARY = {"atan2"}  # their second argument is the first one in reverse order
MOST = {"lgamma": 1.1, "i0": 6.0}  # the one is rounded from a double, the other a product of two functions
PRODUCTS = {"i0"}
ABSOLUTE = {"normal_cdf"}  # exact beside 1 alone, see test_the_normal_distribution


def applied(name):
    f = getattr(torch, name)
    return (lambda x: f(x, x.flip(0))) if name in BINARY else lambda x: f(x)


def arguments(low, high, base, dtype):
    x = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    return (torch.exp2(x) if base else x).to(dtype)


def truth(name, x):
    if CASES[name][0] is None:
        return getattr(torch, name)(x.double()).numpy().astype(numpy.longdouble)
    return CASES[name][0](x.numpy().astype(numpy.longdouble))


def errors(value, true):
    """(mean, standard deviation, largest magnitude)."""
    known = numpy.isfinite(true) & (true != 0)
    half = 2.0**-24 if value.dtype == numpy.float32 else 2.0**-53
    e = ((value[known].astype(numpy.longdouble) - true[known]) / true[known]).astype(float) / half
    return e.mean(), e.std(), numpy.abs(e).max()


@functools.lru_cache(maxsize=None)
def compiled(name):
    return jit.compile(applied(name))


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name in CASES for dtype in FLOATS if dtype is torch.float32
                                         or CASES[name][0] is not None], ids=str)
def test_errors_are_small_and_on_both_sides(name, dtype):
    if dtype is torch.float64 and numpy.finfo(numpy.longdouble).eps > 1e-18:
        pytest.skip("nothing more exact to compare with")
    for low, high, *base in CASES[name][1:]:
        x = arguments(low, high, base, dtype)
        true = truth(name, x)
        bias, spread, most = errors(compiled(name)(x).numpy(), true)
        eager_bias, eager_spread, _ = errors(applied(name)(x).numpy(), true)
        where = (f"{name} of {dtype} between {low} and {high}: bias {bias:.3f} ({eager_bias:.3f}), "
                 f"spread {spread:.3f} ({eager_spread:.3f}), most {most:.2f}")
        assert abs(bias) < max(0.1, 2 * abs(eager_bias)) and spread < 2 * eager_spread, where
        if name in functions.FUNCTIONS["f32" if dtype is torch.float32 else "f64"] or name in MOST:
            assert most < MOST.get(name, 3.2), where


def ends(dtype):
    info = torch.finfo(dtype)
    tiny = 5e-324 if dtype is torch.float64 else 1e-45
    x = [0.0, float("inf"), float("nan"), info.tiny, info.tiny / 4, tiny, 1e-30, info.max, info.max / 2,
         info.max * 0.71, 0.5, 0.55, 1 - info.eps / 2, 1.0, 1 + info.eps, 2.0, 16.6, 20.0, 87.3, 88.0, 88.72, 88.73,
         89.0, 90.0, 103.9, 104.0, 105.0, 126.0, 127.9, 128.0, 129.0, 149.0, 150.0, 151.0, 709.7, 709.8, 711.0, 745.1,
         746.0, 1023.5, 1024.0, 1074.0, 1076.0, 999999.0, 1000001.0, 1e10, 1e22, 355.0, 0.41421357, 2.4142137, 3.92,
         4.01, 1e-4, 1e-8, 6e-8, 1.2e-7, 1e-16, 1e-17, 0.70710677, 0.7071068, 1.4142135]  # fmt: skip
    # NaN that carry something
    marked = torch.tensor([0x7FC00001, 0x7FFFFFFF, -0x3FFFFE, 0x7FA12345],
                          dtype=torch.int32).view(torch.float32).to(dtype)
    return torch.cat([torch.tensor(x + [-v for v in x], dtype=torch.float64).to(dtype), marked]).repeat(3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_at_the_ends_of_floats(name, dtype):
    x = ends(dtype)
    got, eager = compiled(name)(x), applied(name)(x)
    least = 1e-45 if dtype is torch.float32 else 5e-324
    near = (got - eager).abs() <= 4 * torch.finfo(dtype).eps * eager.abs() + 2 * least
    same = (got == eager) | (got.isnan() & eager.isnan()) | (near & got.isfinite() & eager.isfinite())
    if name == "cosh":  # eager's overflows with exp(x), our own where the result does
        wide = torch.cosh(x.double())
        same |= (eager == float("inf")) & ((got.double() - wide).abs() <= 1e-6 * wide
                                           if dtype is torch.float32 else (x.abs() > 709.7) & (x.abs() < 710.5))
    if name == "digamma":  # beside its zeros eager's is as exact as what it adds up
        apart = (x - x.round()).double().abs()  # from a pole, by which the error of its place is divided twice
        far = torch.where(x < 0, x.double().abs() / apart**2, 0.0)
        same |= (got - eager).abs() <= 8 * torch.finfo(dtype).eps * (1 + eager.abs() + far)
    same &= got.isnan() | (torch.signbit(got) == torch.signbit(eager)) | (got.abs() <= 2 * least)
    assert same.all(), [(v, g,
                         e) for v, g, e, s in zip(x.tolist(), got.tolist(), eager.tolist(), same.tolist()) if not s][:5]
    zeros = torch.tensor([0.0, -0.0], dtype=dtype).repeat(20)
    assert torch.equal(torch.signbit(compiled(name)(zeros)), torch.signbit(applied(name)(zeros)))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of one family")
@pytest.mark.parametrize("flags", ["-march=x86-64", "-march=x86-64-v3", "-march=native"])
def test_without_instructions_that_this_processor_has(flags, tmp_path):
    """Without fused multiply-adds and wide vectors the functions are a little less exact."""
    called = [f"{name}_{kind}" for kind, names in functions.FUNCTIONS.items() for name in sorted(names - ABSOLUTE)]
    loops = [f'EXPORT void run_{f}({t}* y, const {t}* x, long n) {{\n#pragma omp simd\n'
             f'for (long i = 0; i < n; i++) y[i] = {f}(x[i]{", x[n - 1 - i]" if f[:-4] in BINARY else ""}); }}\n'
             for f in called for t in ("float" if f.endswith("32") else "double",)]  # fmt: skip
    body = "".join(loops)
    source, library = tmp_path / "functions.cpp", tmp_path / "functions.so"
    source.write_text(support.RUNTIME + ops.prelude(body) + body)
    kept = [f for f in toolchain.flags() if not f.startswith("-march")]
    subprocess.run([toolchain.compiler(), *kept, flags, "-shared", str(source), "-o", str(library),
                    *toolchain.LIBRARIES], check=True, timeout=120)
    loaded = ctypes.CDLL(str(library))
    for f in called:
        name, dtype = f[:-4], torch.float32 if f.endswith("32") else torch.float64
        if dtype is torch.float64 and numpy.finfo(numpy.longdouble).eps > 1e-18:
            continue
        for low, high, *base in CASES[name][1:]:
            x = arguments(low, high, base, dtype).numpy()
            y = numpy.empty_like(x)
            loaded[f"run_{f}"](ctypes.c_void_p(y.ctypes.data), ctypes.c_void_p(x.ctypes.data), ctypes.c_long(N))
            bias, spread, most = errors(y, truth(name, torch.from_numpy(x)))
            more = 4 if name in PRODUCTS else 1
            assert abs(bias) < 0.2 * more and spread < 1 * more and most < 6 * more, (
                f"{f} between {low} and {high}: {bias:.3f}, {spread:.3f}, {most:.2f}")


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "softplus", "elu", "logsigmoid", "tanh", "sigmoid"])
def test_activations_and_their_gradients(name):
    """Their sums are as exact as eager's: no bias adds up."""
    f = getattr(F, name)
    program = jit.compile(lambda x: f(x))
    for scale in (0.3, 1.0, 3.0):
        x = torch.randn(1 << 18, generator=torch.Generator().manual_seed(1)) * scale

        def found(g, x):
            x = x.detach().requires_grad_()
            y = g(x)
            (slope,) = torch.autograd.grad(y.sum(), x)
            return y.detach().double(), slope.double()

        for value, eager, true in zip(found(program, x), found(f, x), found(f, x.double()), strict=True):
            spread, allowed = ((v - true).norm() / true.norm() for v in (value, eager))
            assert spread < 2 * max(allowed, 2.0**-26)
            drift, allowed = (((v - true).sum() / true.abs().sum()).abs() for v in (value, eager))
            assert drift < max(2 * allowed, 3e-9)


@pytest.mark.parametrize("program", [lambda x: 1 + torch.erf(x), lambda x: torch.erf(x) - 1,
                                     lambda x: 1.5 - torch.erf(x)], ids=["1 + erf", "erf - 1", "1.5 - erf"])
def test_erf_beside_a_constant(program):
    """Its error near zero does not matter there: the whole is as exact as eager's."""
    compiled = jit.compile(program, dynamic=False)
    for low, high in ((-6, 6), (-0.01, 0.01), (0, 1), (-4, -1)):
        x = arguments(low, high, (), torch.float32)
        true = program(x.double())
        mine, eager = ((f(x).double() - true) for f in (compiled, program))
        assert mine.norm() < 1.5 * eager.norm() and mine.abs().max() < 2.0**-22, (
            low, high, mine.norm() / eager.norm(), mine.abs().max())
    x = ends(torch.float32)
    torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=2.0**-22, equal_nan=True)


def test_the_normal_distribution():
    """What GELU multiplies by is as exact as eager's, and 0 and 1 where there is no float between."""
    compiled = jit.compile(lambda x: F.gelu(x))
    for low, high in ((-6, 6), (-0.01, 0.01), (0, 1), (-4, -1)):
        x = arguments(low, high, (), torch.float32)
        true = torch.special.ndtr(x.double())
        mine, eager = (f(x).double() / x.double() - true for f in (compiled, F.gelu))
        drift = (mine.mean() / true.mean()).abs()
        assert mine.norm() < 1.2 * eager.norm() and mine.abs().max() < 2.0**-23 and drift < 2e-8, (
            low, high, mine.norm() / eager.norm(), mine.abs().max(), drift)
    far = torch.tensor([5.7, 6.0, 30.0, 1e30]).repeat(16)
    assert torch.equal(compiled(far), far)
    none = compiled(-far)
    assert torch.equal(none, torch.zeros(64)) and none.signbit().all()
    assert compiled(torch.full((64,), math.nan)).isnan().all() and compiled(torch.full((64,), -math.inf)).isnan().all()
