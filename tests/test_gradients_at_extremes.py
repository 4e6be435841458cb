"""Gradients of elementwise operators, of roots, products and norms, where operands and what comes in are zero,
infinite, NaN, or the largest and tiniest floats: eager's formulas, factor by factor, on the default backend."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_values_at_extremes import INF, MAX, NAN, TINY, check, layouts, same

import jit

POINTS = [0.0, -0.0, INF, -INF, NAN, MAX, -MAX, TINY, -TINY, 1.0, -1.0, 0.5, -2.0, 2.0, 3.0, -3.0, 0.1, 1e30, -1e30,
          1e-30, 1e20, 50.0]
TANGENTS = [1.0, -2.0, 0.0, INF, NAN, MAX, 1e20, 1e-3]

UNARY = {
    name: getattr(torch, name)
    for name in """abs acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 logit
    neg reciprocal relu rsqrt sigmoid sign sin sinc sinh sqrt square tan tanh nan_to_num lgamma""".split()}
UNARY |= {name: getattr(F, name)
          for name in "celu elu selu hardshrink hardsigmoid hardswish hardtanh leaky_relu "
                      "logsigmoid relu6 silu softplus softshrink softsign".split()}
UNARY |= {f"pow {e}": lambda x, e=e: x**e for e in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, -3, 1.5, 2.5)}
UNARY |= {f"{e} to the power": lambda x, e=e: e**x for e in (2.0, 0.0, 1.0, 0.5)}
UNARY |= {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "elu_scaled": lambda x: F.elu(x, 1.5),
    "celu_scaled": lambda x: F.celu(x, 1.5), "softplus_scaled": lambda x: F.softplus(x, 2.0, 10.0),
    "leaky_relu_0.1": lambda x: F.leaky_relu(x, 0.1), "clamp": lambda x: x.clamp(-1, 2), "rdiv": lambda x: 2 / x,
    "xlogy_number": lambda x: torch.xlogy(2, x), "xlogy_of_number": lambda x: torch.xlogy(x, 3.0),
    "product_of_itself": lambda x: x * x, "where": lambda x: torch.where(x > 0, x, x * x),
    "ratio_to_itself": lambda x: x / x.abs(), "log_ratio": lambda x: torch.log(x / (1 - x)),
}
BINARY = {name: getattr(torch, name)
          for name in "add sub mul div pow maximum minimum atan2 hypot xlogy logaddexp logaddexp2 copysign".split()}
BINARY |= {
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcmul_square": lambda x, y: torch.addcmul(x, y, y, value=0.5), "addcmul_1": lambda x, y: torch.addcmul(x, y, x),
    "addcmul_broadcast": lambda x, y: torch.addcmul(x, x[:1], y, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5), "addcdiv_1": lambda x, y: torch.addcdiv(y, y, x),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25), "lerp_far": lambda x, y: torch.lerp(x, y, 0.75),
    "lerp_tensor": lambda x, y: torch.lerp(x, y, y),
    "alpha": lambda x, y: torch.add(x, y, alpha=0.3) - torch.sub(y, x, alpha=2),
    "clamp_tensor": lambda x, y: x.clamp(y, None), "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "mse_mean": F.mse_loss, "mse_sum": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"), "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"), "glu": lambda x, y: F.glu(torch.stack([x, y]), 0)[0],
    "gaussian": lambda x, y: F.gaussian_nll_loss(x, y, y.abs().nan_to_num(), reduction="none"),
}
NEAR_ZERO = {"logaddexp2": 1e-7}  # what eager rounds to another number than zero
ON_THE_EDGE = {("kl_div", MAX)}  # eager adds what overflows alone


def runs(fn, given, tangent):
    """Value and gradients of eager and compiled calls."""
    found = []
    for f in fn:
        leaves = [g.clone().requires_grad_() for g in given]
        y = f(*leaves)
        found.append([y.detach(), *torch.autograd.grad(y, leaves, torch.full_like(y, tangent), allow_unused=True)])
    return found


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_elementwise(name):
    fn = UNARY.get(name) or BINARY[name]
    points = torch.tensor(POINTS)
    given = [points.repeat(3)] if name in UNARY else list(torch.cartesian_prod(points, points).t().contiguous())
    compiled = jit.compile(fn)
    for tangent in TANGENTS:
        if (name, tangent) in ON_THE_EDGE:
            continue
        want, got = runs((fn, compiled), given, tangent)
        for a, b in zip(want, got, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(b, a, rtol=5e-5, atol=NEAR_ZERO.get(name, TINY * 4096), equal_nan=True,
                                           msg=lambda m: f"gradient {tangent}: {m}")  # noqa: B023


def test_roots_of_variances_that_are_zero():
    x = torch.tensor([[1.0, 2.0, 1.0, 3.0], [1.0, 0.5, 1.0, 3.0], [1.0, -1.0, 1.0, 4.0]])
    for unbiased in (False, True):
        check(lambda x: x.std(0, unbiased=unbiased).sqrt(), layouts(x), True)
        check(lambda x: torch.std_mean(x, 0, unbiased=unbiased)[0].sqrt(), layouts(x), True)
    for tangent in (INF, NAN, 0.0):
        check(lambda x: x.std(0), layouts(x), True, tangent)


@pytest.mark.parametrize("p", [1, 1.5, 2, 2.5, 3, 0.5, INF])
def test_norms_of_zeros(p):
    x = torch.tensor([[0.0, 2.0, 0.0, -3.0], [0.0, 0.5, 0.0, 0.0], [0.0, -1.0, 0.0, 4.0]])
    for tangent in (1.0, INF, NAN, 0.0):
        check(lambda x: torch.linalg.vector_norm(x, p, dim=0), layouts(x), True, tangent)
        check(lambda x: x.norm(p), [x, x * 0], True, tangent)


def test_products_of_others_in_doubles():
    """Beside a zero somewhere, each gradient is a product of what is before and what is behind."""
    most = torch.finfo(torch.float64).max
    x = torch.tensor([[1.0, 1.0, -0.75, 1.25], [1.0, most, 0.75, -1.5], [-INF, 2.0, 1e-30, 0.0]], dtype=torch.float64)
    for rows in (x, x.roll(1, 0), x.roll(1, 1), x.flip(1)):
        check(lambda x: x.prod(-1), layouts(rows), True)
        check(lambda x: x.prod(0), layouts(rows.t().contiguous()), True)
        check(lambda x: x.prod(), layouts(rows), True)


def test_gradients_of_products_at_the_ends_of_floats():
    """Of the largest and the tiniest numbers, the product over the number itself is one: what comes in is multiplied by
    that."""
    for dtype in (torch.float32, torch.float64):
        info = torch.finfo(dtype)
        x = torch.tensor([[info.max, 1.0], [info.tiny / 4, 1.0], [-2.0, 3.0], [INF, 1.0], [info.max, 0.5]], dtype=dtype)
        for tangent in (1.5, 0.25, -3.0):
            check(lambda x: x.prod(-1), layouts(x), True, tangent)
            check(lambda x: x[:1].prod(), layouts(x), True, tangent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_squares_beyond_floats(dtype):
    """Twice the largest number is infinite, and its product with the zero that the root gives is NaN."""
    x = torch.tensor([[1.0, torch.finfo(dtype).max, 2.0, -1.0], [1.0, 2.0, 3.0, 4.0], [torch.finfo(dtype).max] * 4],
                     dtype=dtype)
    for fn in (lambda x: F.rms_norm(x, x.shape[-1:]), lambda x: x.pow(2).mean(-1).rsqrt(),
               lambda x: x.square().sum(0).reciprocal()):
        check(fn, layouts(x), True)


def test_norms_of_the_largest_doubles():
    """There is no wider type to tell what is right: NaN is where eager's order of products has it."""
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 2.0, 1.0], [1.0, torch.finfo(torch.float64).max, 2.0, -1.0, 0.5, 3.0],
                      [0.0, 1.0, -2.0, 1.0, 3.0, 0.5], [1.0, 2.0, 0.25, 2.0, 0.0, 1.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0, 1.0], dtype=torch.float64)
    for tangent in (0.25, 1e10):
        for rows in (x, x.t().contiguous().t(), x.flip(0), x.roll(3, 1)):
            check(lambda x: F.layer_norm(x, x.shape[-1:]), [rows], True, tangent, 1e-9, 1e-4)
            check(lambda x: F.layer_norm(x, (6,), weight), [rows], True, tangent, 1e-9, 1e-4)
            check(lambda x: F.batch_norm(x, None, None, training=True), [rows], True, tangent, 1e-9, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_extrema_of_what_is_computed(dtype):
    """An element is equal to the extremum in the backward too, whichever kernel computes it there."""
    for fn in (lambda x: torch.softmax(x, -1).amin(0), lambda x: x.tanh().amax(-1), lambda x: x.exp().amin(-1),
               lambda x: torch.softmax(x, -1).max(), lambda x: x.sigmoid().median(),
               lambda x: torch.linalg.vector_norm(x.sin(), INF, dim=-1)):
        compiled = jit.compile(fn)
        for shape in ((2, 9), (9, 70), (64, 18)):
            x = torch.randperm(math.prod(shape), generator=torch.Generator().manual_seed(0)).reshape(shape).div(
                math.prod(shape) / 4).sub(2).to(dtype).t().contiguous().t().requires_grad_()
            want, got = (torch.autograd.grad(f(x).double().sum(), x)[0] for f in (fn, compiled))
            assert got.isfinite().all()
            torch.testing.assert_close(got.double().sum(), want.double().sum(), rtol=0.05, atol=0.05)


def test_nan_left_out_of_sums_is_multiplied_by_zero():
    x = torch.tensor([[1.0, NAN, 2.0, INF], [NAN, NAN, 3.0, 1.0]])
    for tangent in (1.0, INF, NAN):
        check(lambda x: x.nansum(1), layouts(x), True, tangent)
        check(lambda x: x.nanmean(0), layouts(x), True, tangent)


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_of_minus_infinity(exponent):
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = torch.tensor([0.0, -0.0, -INF, INF, -1.0, 2.0, NAN] * 10, dtype=dtype)
        power = torch.tensor(exponent)
        for fn in (lambda x: x**exponent, lambda x: torch.pow(x, power)):
            same(fn(x), jit.compile(fn)(x))


def test_second_derivatives_of_formulas():
    x = torch.linspace(-2.1, 2.3, 24).reshape(4, 6)

    def curvature(fn, x):
        x = x.clone().requires_grad_()
        g, = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return torch.autograd.grad((g * x.detach().cos()).sum(), x)[0]

    for fn in (F.elu, F.softplus, F.hardswish, lambda x: x.sigmoid().logit(), lambda x: x.std(0),
               lambda x: torch.xlogy(x, x * x), lambda x: x**3, lambda x: x.prod(0),
               lambda x: torch.addcmul(x, x, x, value=math.pi), lambda x: torch.addcdiv(x, x, x.exp(), value=2),
               lambda x: F.mse_loss(x, x.sin()), lambda x: torch.lerp(x, x * x, x)):
        same(curvature(fn, x), curvature(jit.compile(fn), x), 1e-4, 1e-4)


@pytest.mark.parametrize("dynamic", [None, True])
def test_indices_of_nothing(dynamic):
    """Forwards of nothing take any index; backwards look at them."""
    beyond = torch.tensor([-100])
    for fn in (lambda x: x.index_copy(0, beyond, x[:1]),
               lambda x: torch.zeros_like(x).scatter_add(0, beyond[:, None].expand(-1, x.shape[-1]),
                                                         x.unsqueeze(-1)[:1])):
        compiled = jit.compile(fn, dynamic=dynamic)
        for n in (3, 4):
            said = []
            for f in (fn, compiled):
                x = torch.rand(n, 0, requires_grad=True)
                with pytest.raises(RuntimeError) as raised:
                    torch.autograd.grad(f(x).sum(), x)
                said.append(str(raised.value))
            assert said[0] == said[1]


def test_as_strided_without_elements():
    for shape, stride in (((0, 4), (7, 1)), ((2, 0), (9, 3)), ((0,), (4,))):
        for x in (torch.rand(0, 4), torch.rand(5, 6)[:, :4], torch.rand(3, 3)):
            def fn(x):
                return x.as_strided(shape, stride).flip(-1) * 2  # noqa: B023

            found = []
            for f in (fn, jit.compile(fn)):
                leaf = x.detach().requires_grad_()
                found.append(torch.autograd.grad(f(leaf).sum(), leaf)[0])
            torch.testing.assert_close(found[1], found[0])
