"""NumPy's ufuncs in functions of PyTorch, of operands that have the types in which NumPy computes."""

from __future__ import annotations

import numpy as np
import torch

from ..tables import array_rule, array_rules, rule_if_there

array_rules.update({
    np.add: torch.add, np.multiply: torch.mul,
    np.subtract: torch.sub, np.true_divide: torch.true_divide, np.negative: torch.neg, np.positive: torch.clone,
    np.fabs: torch.abs, np.rint: torch.round,
    np.exp: torch.exp, np.exp2: torch.exp2, np.expm1: torch.expm1, np.log: torch.log, np.log2: torch.log2,
    np.log10: torch.log10, np.log1p: torch.log1p, np.sqrt: torch.sqrt,
    np.sin: torch.sin, np.cos: torch.cos, np.tan: torch.tan,
    np.arcsin: torch.asin, np.arccos: torch.acos, np.arctan: torch.atan, np.arctan2: torch.atan2,
    np.hypot: torch.hypot, np.sinh: torch.sinh, np.cosh: torch.cosh, np.tanh: torch.tanh,
    np.arcsinh: torch.asinh, np.arccosh: torch.acosh, np.arctanh: torch.atanh,
    np.degrees: torch.rad2deg, np.rad2deg: torch.rad2deg, np.radians: torch.deg2rad, np.deg2rad: torch.deg2rad,
    np.bitwise_and: torch.bitwise_and, np.bitwise_or: torch.bitwise_or, np.bitwise_xor: torch.bitwise_xor,
    np.invert: torch.bitwise_not,
    np.greater: torch.gt, np.greater_equal: torch.ge, np.less: torch.lt, np.less_equal: torch.le,
    np.equal: torch.eq, np.not_equal: torch.ne, np.logical_and: torch.logical_and, np.logical_or: torch.logical_or,
    np.logical_xor: torch.logical_xor, np.logical_not: torch.logical_not,
    np.maximum: torch.maximum, np.minimum: torch.minimum, np.fmax: torch.fmax, np.fmin: torch.fmin,
    np.isfinite: torch.isfinite, np.isinf: torch.isinf, np.isnan: torch.isnan, np.signbit: torch.signbit,
    np.copysign: torch.copysign, np.nextafter: torch.nextafter,
    np.logaddexp: torch.logaddexp, np.logaddexp2: torch.logaddexp2, np.frexp: torch.frexp,
})


@array_rule(np.square)
def square(a):
    return a * a


@array_rule(np.conjugate)
def conjugate(a):
    return torch.conj_physical(a) if a.is_complex() else a.clone()


@array_rule(np.absolute)
def absolute(a):
    return a.clone() if a.dtype is torch.bool else torch.abs(a)


@array_rule(np.sign)
def sign(a):
    return torch.where(torch.isnan(a), a, torch.sgn(a)) if a.is_floating_point() else torch.sgn(a)


@array_rule(np.gcd)
def gcd(a, b):
    return torch.abs(torch.gcd(a, b))


@array_rule(np.lcm)
def lcm(a, b):
    a, b, common = torch.abs(a), torch.abs(b), torch.gcd(a, b).abs()
    return floor_divide(a, common) * b


@array_rule(np.reciprocal)
def reciprocal(a):
    if not (a.is_floating_point() or a.is_complex()):
        raise TypeError("integers, of which NumPy divides by zero")
    return torch.reciprocal(a)


@array_rule(np.floor)
def floor(a):
    return a.clone() if a.dtype is torch.bool else torch.floor(a)


@array_rule(np.ceil)
def ceil(a):
    return a.clone() if a.dtype is torch.bool else torch.ceil(a)


@array_rule(np.trunc)
def trunc(a):
    return a.clone() if a.dtype is torch.bool else torch.trunc(a)


@array_rule(np.cbrt)
def cbrt(a):
    root = torch.copysign(torch.pow(torch.abs(a), 1 / 3), a)
    better = root - (root * root * root - a) / (3 * root * root)  # a step of Newton's
    return torch.where(torch.isfinite(better), better, root)


@array_rule(np.floor_divide)
def floor_divide(a, b):
    """An integer divided by zero is zero."""
    if a.is_floating_point():
        return torch.floor_divide(a, b)
    zero = b == 0
    return torch.where(zero, 0, torch.floor_divide(a, torch.where(zero, 1, b)))


@array_rule(np.remainder)
def remainder(a, b):
    if a.is_floating_point():
        return torch.remainder(a, b)
    zero = b == 0
    return torch.where(zero, 0, torch.remainder(a, torch.where(zero, 1, b)))


@array_rule(np.fmod)
def fmod(a, b):
    if a.is_floating_point():
        return torch.fmod(a, b)
    zero = b == 0
    return torch.where(zero, 0, torch.fmod(a, torch.where(zero, 1, b)))


@array_rule(np.divmod)
def divmod_(a, b):
    return floor_divide(a, b), remainder(a, b)


@array_rule(np.modf)
def modf(a):
    whole = torch.trunc(a)
    return torch.copysign(torch.where(torch.isinf(a), 0.0, a - whole), a), whole


@array_rule(np.float_power)
def float_power(a, b):
    return torch.pow(a, b)


@array_rule(np.power)
def power(a, b):
    if not (a.is_floating_point() or a.is_complex()):
        return integer_power(a, b)
    return torch.pow(a, b)


def integer_power(a, b):
    """NumPy refuses negative exponents: PyTorch's index does as well, before anything is changed."""
    refused = torch.take(torch.zeros(1, dtype=torch.bool, device="cpu"), torch.any(b < 0).long())
    return torch.where(refused, 0, torch.pow(a, torch.abs(b)))


@array_rule(np.left_shift)
def left_shift(a, b):
    return torch.bitwise_left_shift(a, b)


@array_rule(np.right_shift)
def right_shift(a, b):
    return torch.bitwise_right_shift(a, b)


@array_rule(np.heaviside)
def heaviside(a, b):
    return torch.where(torch.isnan(a), a, torch.heaviside(a, b))


@array_rule(np.ldexp)
def ldexp(a, b):
    """In two steps, so that no power of two in between overflows."""
    half = torch.div(b, 2, rounding_mode="floor")
    two = torch.full((), 2.0, dtype=torch.float64, device="cpu")
    return (a.double() * torch.pow(two, half) * torch.pow(two, b - half)).to(a.dtype)


@array_rule(np.matmul)
def matmul(a, b):
    if a.dtype is torch.bool:
        return torch.matmul(a.long(), b.long()) != 0
    return torch.matmul(a, b)


@rule_if_there(np, "vecdot")
def vecdot(a, b):
    return torch.sum(conjugate(a) * b, -1, dtype=a.dtype)


@rule_if_there(np, "matvec")
def matvec(a, b):
    return torch.matmul(a, b.unsqueeze(-1)).squeeze(-1)
