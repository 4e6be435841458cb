"""Gradients of elementwise functions against eager autograd, at the points where conventions matter too."""

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import check_grad, leaf

POINTS = torch.tensor([-800.0, -50, -3, -1, -0.7, -0.2, 0, 0.2, 0.5, 1, 3, 6, 50, 800], dtype=torch.float64)


def points():
    return POINTS.clone().requires_grad_()


def positive():
    return (POINTS.abs() + 0.25).requires_grad_()


def unit():
    return (torch.linspace(-0.95, 0.95, 11, dtype=torch.float64)).requires_grad_()


EVERYWHERE = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "frac": torch.frac, "square": torch.square, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "atan": torch.atan, "tanh": torch.tanh, "asinh": torch.asinh, "erf": torch.erf,
    "erfc": torch.erfc, "sigmoid": torch.sigmoid, "relu": torch.relu, "relu6": F.relu6, "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.7), "elu_alpha": lambda x: F.elu(x, 0.3), "silu": F.silu, "mish": F.mish,
    "softplus": F.softplus, "softplus_beta": lambda x: F.softplus(x, 2.0, 5.0), "logsigmoid": F.logsigmoid,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "softsign": F.softsign,
    "tanhshrink": F.tanhshrink, "hardshrink": F.hardshrink, "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 20.0), "clamp": lambda x: torch.clamp(x, -1, 3),
    "clamp_min": lambda x: x.clamp_min(0), "clamp_max": lambda x: x.clamp_max(0.5), "pow2": lambda x: x**2,
    "pow3": lambda x: x**3, "pow0": lambda x: x**0, "pow1": lambda x: x**1, "exp2_pow": lambda x: 2.0 ** x.clamp(-5, 5),
    "nan_to_num": lambda x: torch.nan_to_num(x / 0.0), "deg2rad": torch.deg2rad, "sinc": torch.sinc,
    "exp_of_small": lambda x: torch.exp(x.clamp(-9, 9)), "expm1": lambda x: torch.expm1(x.clamp(-9, 9)),
    "sinh": lambda x: torch.sinh(x.clamp(-9, 9)), "cosh": lambda x: torch.cosh(x.clamp(-9, 9)),
    "remainder": lambda x: x % 0.3, "fmod": lambda x: torch.fmod(x, 0.3),
    "heaviside_like": lambda x: torch.where(x > 0, x, -x), "masked_fill": lambda x: x.masked_fill(x > 1, 7.0),
    "maximum_number": lambda x: torch.maximum(x, torch.zeros_like(x)),
}  # fmt: skip
POSITIVE = {
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "log": torch.log, "log2": torch.log2,
    "log10": torch.log10, "log1p": torch.log1p, "lgamma": torch.lgamma, "pow_half": lambda x: x**0.5,
    "pow_negative": lambda x: x**-1.5, "acosh": lambda x: torch.acosh(x + 1), "digamma": torch.digamma,
}  # fmt: skip
UNIT = {"asin": torch.asin, "acos": torch.acos, "atanh": torch.atanh, "erfinv": torch.erfinv,
        "logit": lambda x: torch.logit(x / 2 + 0.5), "logit_eps": lambda x: torch.logit(x, 0.1)}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_everywhere(name):
    check_grad(EVERYWHERE[name], points())


@pytest.mark.parametrize("name", POSITIVE)
def test_positive(name):
    check_grad(POSITIVE[name], positive(), rtol=1e-7)


@pytest.mark.parametrize("name", UNIT)
def test_unit_interval(name):
    check_grad(UNIT[name], unit(), rtol=1e-7)


BINARY = {
    "add": torch.add, "sub": lambda x, y: torch.sub(x, y, alpha=3), "mul": torch.mul, "div": torch.div,
    "pow": lambda x, y: torch.pow(x.abs() + 0.5, y),
    "pow_zero_base": lambda x, y: torch.pow(torch.relu(x), torch.relu(y)), "maximum": torch.maximum,
    "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin, "atan2": torch.atan2, "hypot": torch.hypot,
    "copysign": torch.copysign, "fmod": lambda x, y: torch.fmod(x, y), "remainder": lambda x, y: torch.remainder(x, y),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "where": lambda x, y: torch.where(x > y, x, y * 2),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3), "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x * x + 1),
    "xlogy": lambda x, y: torch.xlogy(torch.relu(x), y.abs() + 0.1), "logaddexp": torch.logaddexp, "mse": F.mse_loss,
    "l1": F.l1_loss, "huber": F.huber_loss, "smooth_l1": F.smooth_l1_loss,
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
    "clamp_tensor": lambda x, y: torch.clamp(x, y, y + 1),
    "kl": lambda x, y: F.kl_div(x, y.softmax(-1), reduction="batchmean"),
    "cosine": lambda x, y: F.cosine_similarity(x, y, dim=-1), "square_of_same": lambda x, y: x * x + y * x * x,
    "bce": lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(y)),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    check_grad(BINARY[name], leaf(3, 4), leaf(3, 4))


@pytest.mark.parametrize("name", ["add", "mul", "div", "maximum", "where", "pow"])
def test_broadcasting(name):
    check_grad(BINARY[name], leaf(3, 1, 4), leaf(2, 1))
    check_grad(BINARY[name], leaf(), leaf(2, 3))


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "where"])
def test_ties(name):
    x, y = (torch.tensor([1.0, 2, 3, float("nan")], dtype=torch.float64),
            torch.tensor([1.0, 3, 2, 5], dtype=torch.float64))
    check_grad(BINARY[name], x.requires_grad_(), y.requires_grad_())


def test_integer_operands_have_no_gradient():
    check_grad(lambda x, n: x * n + n, leaf(3), torch.tensor([1, 2, 3]))


def test_casts():
    check_grad(lambda x: (x.double() * 2).float().sum(), leaf(5, dtype=torch.float32), rtol=1e-6, atol=1e-6)


def test_non_contiguous():
    check_grad(lambda x, y: torch.sin(x) * y, leaf(4, 3).detach().t().requires_grad_(),
               leaf(3, 8).detach()[:, ::2].requires_grad_())


def test_detach_stops_gradients():
    r = check_grad(lambda x, y: (x * y).detach() * x + y.detach() * 3, leaf(3), leaf(3))
    assert r.grads[1] is None


def test_in_place_versions():
    def fn(x, y):
        z = x * 2
        z.mul_(y)
        z[0] = y[1]
        z.add_(x)
        return z.relu_()

    check_grad(fn, leaf(3, 4), leaf(3, 4))


@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax, lambda x, d: torch.logsumexp(x, d),
                                lambda x, d: F.normalize(x, dim=d), lambda x, d: F.gelu(x) * F.silu(x)])
def test_bfloat16_is_as_exact_as_eager(fn):
    """Gradients of bfloat16 inputs against float64: the error is no larger than eager's."""
    torch.manual_seed(3)
    x = torch.randn(8, 64).bfloat16()
    wide = x.double().requires_grad_()
    g = torch.randn(8, 64 if fn(x.double(), 1).dim() == 2 else 1).squeeze(1).bfloat16()
    fn(wide, 1).backward(g.double())
    eager = x.clone().requires_grad_()
    fn(eager, 1).backward(g)
    from autodiff_harness import halves

    from jit.graph.interpret import evaluate

    leafed = x.clone().requires_grad_()
    graph, _, h, _ = halves(lambda t: fn(t, 1), leafed)
    values = evaluate(h.forward, [x])
    saved = [x if kind == "input" else values[i] if kind == "output" else values[len(graph.outputs) + i]
             for kind, i in h.saved]
    mine = evaluate(h.backward, [*saved, g])[0]
    assert mine.dtype == torch.bfloat16
    error, allowed = (mine.double() - wide.grad).abs().max(), (eager.grad.double() - wide.grad).abs().max()
    assert error <= 1.5 * allowed + 1e-3
