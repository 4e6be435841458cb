"""Functions of float32 values that reach memory as halves alone: cheaper than the library's, which are right to the
last bit of float32, at some 1e-5 of their value or less, where a half rounds at 2e-4.

An entry here goes before that of ``ops`` where the value is ``fast``. Polynomials are our own, fitted to the smallest
relative error (beside each); they are written with fused multiplications, and the single instructions of the device
for exponentials, logarithms and reciprocals are used where their error is small beside the value. At infinities, NaN,
zeros and at the ends of what a function takes, results are those of the library.
"""

from __future__ import annotations

import math
from typing import Callable

import torch

from .ops import OPS, Context, helper


def _horner(coefficients: tuple[float, ...], x: str) -> str:
    text = repr(coefficients[-1])
    for c in coefficients[-2::-1]:
        text = f"_fma({text}, {x}, {c!r})"
    return text


_MADE: list[str] = []


def _function(name: str, body: str, *needs: str) -> None:
    """A helper in terms of others; ``POLYNOMIAL(name, x)`` stands for one of ``_NUMBERS``. One called as a prim,
    with ``_fast`` behind, is that prim for halves; with ``_of_bfloat16`` or ``_of_fraction``, where its argument is
    such a number (``codegen.approximate``)."""
    while "POLYNOMIAL(" in body:
        before, _, rest = body.partition("POLYNOMIAL(")
        inside, _, after = rest.partition(")")
        which, x = inside.split(", ")
        body = before + _horner(_NUMBERS[which], x) + after
    helper(name, body, ("_fma", *needs))
    _MADE.append(name)


helper("_fma", """
@triton.jit
def _fma(a, b, c):
    return tl.fma(a, b, c)
""", interpreted="""
@triton.jit
def _fma(a, b, c):
    return ((tl.zeros([], tl.float64) + a) * b + c).to(tl.float32)
""")
helper("_log2_approximate", """
@triton.jit
def _log2_approximate(x):
    return tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
""", interpreted="""
@triton.jit
def _log2_approximate(x):
    return tl.log2(x)
""")
helper("_log2_of_normal", """
@triton.jit
def _log2_of_normal(x):
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
""", interpreted="""
@triton.jit
def _log2_of_normal(x):
    return tl.log2(x)
""")
# Whether a block has numbers of a kind, whose values cost nothing where it has none: bits, read as integers, are in the
# order of the positive numbers, with NaN above these and what has a sign below.
for _which, _function_name in (("_most_bits", "max"), ("_least_bits", "min")):
    helper(_which, f"""
@triton.jit
def {_which}(x):
    bits = x.to(tl.int32, bitcast=True)
    if len(x.shape) == 0:
        return bits
    else:
        return tl.{_function_name}(bits, None)
""")
helper("_signed", """
@triton.jit
def _signed(a, x):
    # a, which is positive, with the sign of x
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (a.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
""")

_NUMBERS = {
    # sin(x) / x in x**2, |x| <= pi/2: 9.4e-7
    "SIN": (0.999999046, -0.166655555, 0.00831190869, -0.000184883305),
    # tan(x) / x in x**2, |x| <= pi/4: 2.3e-7
    "TAN": (0.999999762, 0.333359599, 0.13284789, 0.0571909696, 0.0125143109, 0.0204003211),
    # log(1 + x) / x, |x| <= 1/4: 1.2e-6
    "LOG": (1.00000119, -0.500003338, 0.332994223, -0.249557391, 0.214195341, -0.18096751),
    # log(1 + x) / x, 0 <= x <= 1: 1.4e-6
    "LOG_TO_TWO": (0.999998732, -0.499869655, 0.331094478, -0.235038553, 0.149223777, -0.0664017132, 0.0141409949),
    # log2(1 + x) / x, |x| <= 1/4: 1.3e-7
    "LOG_OF_POWER": tuple(c / math.log(2) for c in (
        1.0, -0.500003695, 0.333340377, -0.249533549, 0.199423924, -0.181272581, 0.157573253)),
    # (exp(x) - 1) / x, |x| <= 0.35: 4.5e-7
    "EXPM1": (0.99999994, 0.499993533, 0.166669458, 0.0418792516, 0.008333317),
    # tanh(x) / x in x**2, |x| <= 0.4: 6.3e-6
    "TANH": (0.999993801, -0.332626373, 0.121280685),
    # atan(x) / x in x**2, |x| <= 1: 4.4e-6
    "ATAN": (0.999995649, -0.332994938, 0.195637837, -0.121243432, 0.0574816689, -0.013482051),
    # asin(x) / x in x**2, |x| <= 1/2: 1.5e-6
    "ASIN": (0.99999851, 0.166851997, 0.0714855418, 0.0650640652),
    # sinh(x) / x in x**2, |x| <= 1: 5.9e-6
    "SINH": (1.00000584, 0.166556627, 0.00863180961),
    # asinh(x) / x in x**2, |x| <= 1/2: 6.2e-7
    "ASINH": (0.999999404, -0.1665847, 0.0732813254, -0.0326552913),
    # exp(x**2) erfc(x) / t in t = 1 / (1 + 0.4 x), 0 <= x <= 12: 3.1e-6
    "ERFC": (0.225826994, 0.223466828, 0.219087079, 0.149047345, 0.11535541, 0.152862042, -0.0856488273),
    # erf of Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7), and near 0
    "ERF": (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429),
    "ERF_NEAR": (1.1283791671, -0.3761263890, 0.1128379167),
    # erfinv(x) / x in w - 2.5 and in sqrt(w) - 3 for w = -log(1 - x**2), up to 5 and up to 17: 2.2e-6 and 7.4e-6
    "ERFINV": (1.50141013, 0.246649593, -0.00417894451, -0.00126525911, 0.000218481393, -6.62473326e-07,
               -3.30801299e-06),
    "ERFINV_FAR": (2.83299255, 1.00177455, 0.00911357161, -0.00834334828, 0.00693470612, -0.00266071386),
    # I0(x) in x**2, |x| <= 5, and exp(-x) I0(x) sqrt(x) in 1/x above: 4.0e-7 and 6.1e-6
    "I0": (1.00000036, 0.249997437, 0.0156273674, 0.0004332799, 6.8867148e-06, 6.06672899e-08, 6.97322755e-10),
    "I0_FAR": (0.398938924, 0.050255131, 0.02010414, 0.0766390041),
    # lgamma(x) / ((x - 1)(x - 2)) in x - 1.95, 0.9 <= x <= 3: 3.1e-6; and what Stirling's series adds above, in 1/x**2
    # and with the factor 1/x: 7.6e-8
    "LGAMMA": (0.427884519, -0.103698455, 0.0348854065, -0.0135641946, 0.00566575164, -0.00202334276, 0.000825257855,
               -0.000891146308, 0.000445499551),
    # digamma(x) + 1 / (2 x) - log(x) in 1/x**2, with it as a factor, x >= 3: 1.3e-7
    "DIGAMMA": (-0.083312422, 0.00775714638),
    "STIRLING": (0.0833284184, -0.00265320903),
}

for _base in (2, 10):
    _NUMBERS[f"LOG{_base}"] = tuple(c / math.log(_base) for c in _NUMBERS["LOG"])

# Angles of 65536 and more, brought into -pi .. pi: the 24 bits of the number times those bits of 1 / (2 pi) from which
# the product's fraction comes. Others stay what they are. Four at a time share the branch around it.
# 16 zeros, then 208 bits of the fraction of 1 / (2 pi).
_TURNS = (0x000028BE, 0x60DB9391, 0x054A7F09, 0xD5F47D4D, 0x377036D8, 0xA5664F10, 0xE4107F94)


def _angle_text(k: int) -> str:
    words = [f"0x{word:08X}" for word in _TURNS]
    text = [f"mov.b32 bits, ${4 + k};", f"mov.f32 ${k}, ${4 + k};", "bfe.u32 power, bits, 23, 8;",
            f"setp.lt.u32 p, power, 143; @p bra after{k};",
            "and.b32 m, bits, 0x7FFFFF; or.b32 m, m, 0x800000; sub.u32 s, power, 134; shr.u32 i, s, 5;"]
    for j in range(4):
        text.append(f"mov.b32 w{j}, {words[j]};")
        text += [f"setp.ge.u32 p, i, {n}; @p mov.b32 w{j}, {words[j + n]};" for n in (1, 2, 3)]
    text += ["shf.l.wrap.b32 w0, w1, w0, s; shf.l.wrap.b32 w1, w2, w1, s; shf.l.wrap.b32 w2, w3, w2, s;",
             "mul.lo.u32 w0, m, w0; mul.wide.u32 d, m, w1; mul.hi.u32 w2, m, w2;",
             "cvt.u64.u32 e, w2; add.u64 d, d, e; cvt.u64.u32 e, w0; shl.b64 e, e, 32; add.u64 d, d, e;",
             f"cvt.rn.f32.s64 f, d; mul.f32 f, f, 0f{_float_bits(2 * math.pi * 2.0**-64)};",
             "and.b32 bits, bits, 0x80000000; mov.b32 i, f; xor.b32 i, i, bits; mov.b32 f, i;",
             f"setp.eq.u32 p, power, 255; @p sub.f32 f, ${4 + k}, ${4 + k};",
             f"mov.f32 ${k}, f; after{k}:"]
    return " ".join(text)


def _float_bits(value: float) -> str:
    return f"{torch.tensor(value, dtype=torch.float32, device='cpu').view(torch.int32).item():08X}"


helper("_near_angle", f"""
@triton.jit
def _near_angle(x):
    return tl.inline_asm_elementwise("{{ .reg .b32 bits, power, m, s, i, w<4>; .reg .b64 d, e; .reg .f32 f; "
        ".reg .pred p; "
        "{" ".join(_angle_text(k) for k in range(4))} }}",
        "=&f,=&f,=&f,=&f,f,f,f,f", [x], dtype=tl.float32, is_pure=True, pack=4)
""", interpreted="""
@triton.jit
def _near_angle(x):
    return x
""")

_function("_sin_fast", """
@triton.jit
def _sin_fast(x):
    y = _near_angle(x)
    turns = _fma(y, 0.31830988618, 12582912.0)
    k = turns - 12582912.0
    r = _fma(k, 8.74227766e-08, _fma(k, -3.14159274, y))
    s = r * r
    value = r * POLYNOMIAL(SIN, s)
    return (value.to(tl.int32, bitcast=True) ^ (turns.to(tl.int32, bitcast=True) << 31)).to(tl.float32, bitcast=True)
""", "_near_angle")
_function("_cos_fast", """
@triton.jit
def _cos_fast(x):
    y = _near_angle(x)
    turns = _fma(y, 0.31830988618, -0.5) + 12582912.0
    k = (turns - 12582912.0) + 0.5
    r = _fma(k, 8.74227766e-08, _fma(k, -3.14159274, y))
    s = r * r
    value = -r * POLYNOMIAL(SIN, s)
    return (value.to(tl.int32, bitcast=True) ^ (turns.to(tl.int32, bitcast=True) << 31)).to(tl.float32, bitcast=True)
""", "_near_angle")
_function("_tan_fast", """
@triton.jit
def _tan_fast(x):
    y = _near_angle(x)
    turns = _fma(y, 0.63661977237, 12582912.0)
    k = turns - 12582912.0
    r = _fma(k, 4.37113883e-08, _fma(k, -1.57079637, y))
    s = r * r
    value = r * POLYNOMIAL(TAN, s)
    return tl.where((turns.to(tl.int32, bitcast=True) & 1) != 0, -_rcp_fast(value), value)
""", "_near_angle", "_rcp_fast")
for _name, _base in (("log", math.e), *((f"log{n}", n) for n in (2, 10))):
    _function(f"_{_name}_fast", f"""
@triton.jit
def _{_name}_fast(x):
    d = x - 1.0
    near = d * POLYNOMIAL({_name.upper()}, d)
    return tl.where(tl.abs(d) < 0.25, near, _log2_approximate(x) * {math.log(2) / math.log(_base)!r})
""", "_log2_approximate")
    # Of a bfloat16 number the instruction's own error of 2^-22 is at most 4.3e-5 of the result.
    _function(f"_{_name}_of_bfloat16", f"""
@triton.jit
def _{_name}_of_bfloat16(x):
    return _log2_approximate(x) * {math.log(2) / math.log(_base)!r}
""", "_log2_approximate")
_function("_log1p_of_fraction", """
@triton.jit
def _log1p_of_fraction(x):
    return x * POLYNOMIAL(LOG_TO_TWO, x)
""")
_function("_log1p_fast", """
@triton.jit
def _log1p_fast(x):
    near = x * POLYNOMIAL(LOG, x)
    return tl.where(tl.abs(x) < 0.25, near, _log2_of_normal(1.0 + x) * 0.69314718056)
""", "_log2_of_normal")
_function("_expm1_fast", """
@triton.jit
def _expm1_fast(x):
    near = x * POLYNOMIAL(EXPM1, x)
    return tl.where(tl.abs(x) < 0.35, near, _exp_fast(x) - 1.0)
""", "_exp_fast")
_function("_pow_fast", """
@triton.jit
def _pow_fast(x, y):
    a = tl.abs(x)
    d = a - 1.0
    near = d * POLYNOMIAL(LOG_OF_POWER, d)
    r = _exp2_fast(y * tl.where(tl.abs(d) < 0.25, near, _log2_approximate(a)))
    half = y * 0.5
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(half) != half)
    r = tl.where(odd, _signed(r, x), r)
    r = tl.where((x < 0.0) & (whole == 0) & (a < float("inf")), float("nan"), r)
    one = (y == 0.0) | (x == 1.0) | ((a == 1.0) & (tl.abs(y) == float("inf")))
    return tl.where(one, 1.0, r)
""", "_log2_approximate", "_exp2_fast", "_signed")
_function("_tanh_fast", """
@triton.jit
def _tanh_fast(x):
    s = x * x
    near = x * POLYNOMIAL(TANH, s)
    far = _fma(_rcp_fast(_exp2_fast(x * 2.88539008) + 1.0), -2.0, 1.0)
    return tl.where(s < 0.16, near, far)
""", "_exp2_fast", "_rcp_fast")
_function("_erf_fast", """
@triton.jit
def _erf_fast(x):
    s = x * x
    near = x * POLYNOMIAL(ERF_NEAR, s)
    return tl.where(s < 0.04, near, _erf_far(x))
""", "_erf_far")
_function("_erf_far", """
@triton.jit
def _erf_far(x):
    t = _rcp_fast(_fma(tl.abs(x), 0.3275911, 1.0))
    p = t * POLYNOMIAL(ERF, t)
    return _signed(_fma(-p, _exp_fast(-(x * x)), 1.0), x)
""", "_exp_fast", "_rcp_fast", "_signed")
_function("_erfc_fast", """
@triton.jit
def _erfc_fast(x):
    t = _rcp_fast(_fma(tl.abs(x), 0.4, 1.0))
    tail = t * _exp_fast(-(x * x)) * POLYNOMIAL(ERFC, t)
    return tl.where(x < 0.0, 2.0 - tail, tail)
""", "_exp_fast", "_rcp_fast")
_function("_erfinv_fast", """
@triton.jit
def _erfinv_fast(x):
    w = _log2_of_normal((1.0 - x) * (1.0 + x)) * -0.69314718056
    v = w - 2.5
    r = x * POLYNOMIAL(ERFINV, v)
    if _most_bits(w) >= 0x40A00000:
        u = tl.sqrt(w) - 3.0
        far = x * POLYNOMIAL(ERFINV_FAR, u)
        far = tl.where(tl.abs(x) == 1.0, x * float("inf"), far)
        r = tl.where(w >= 5.0, far, r)
    return r
""", "_log2_of_normal", "_most_bits")
_function("_i0_fast", """
@triton.jit
def _i0_fast(x):
    a = tl.abs(x)
    s = a * a
    root = tl.rsqrt(a)
    u = root * root
    far = _exp2_fast(a * 1.44269504) * root * POLYNOMIAL(I0_FAR, u)
    return tl.where(a <= 5.0, POLYNOMIAL(I0, s), far)
""", "_exp2_fast")
_function("_atan_fast", """
@triton.jit
def _atan_fast(x):
    a = tl.abs(x)
    t = tl.where(a > 1.0, _rcp_fast(a), a)
    s = t * t
    p = t * POLYNOMIAL(ATAN, s)
    return _signed(tl.where(a > 1.0, 1.57079633 - p, p), x)
""", "_rcp_fast", "_signed")
_function("_atan2_fast", """
@triton.jit
def _atan2_fast(y, x):
    a = tl.abs(y)
    b = tl.abs(x)
    high = tl.maximum(a, b)
    t = tl.where(a == b, tl.where(high == 0.0, 0.0, 1.0), tl.minimum(a, b) / high)
    s = t * t
    p = t * POLYNOMIAL(ATAN, s)
    p = tl.where(a > b, 1.57079633 - p, p)
    p = tl.where(x.to(tl.int32, bitcast=True) < 0, 3.14159265 - p, p)
    return tl.where((x != x) | (y != y), x + y, _signed(p, y))
""", "_signed")
for _name, _result in (("asin", "_signed(tl.where(far, _fma(q, -2.0, 1.57079633), q), x)"),
                       ("acos", "tl.where(far, tl.where(x < 0.0, _fma(q, -2.0, 3.14159265), 2.0 * q), "
                                "1.57079633 - _signed(q, x))")):
    _function(f"_{_name}_fast", f"""
@triton.jit
def _{_name}_fast(x):
    a = tl.abs(x)
    far = a > 0.5
    z = tl.where(far, _fma(a, -0.5, 0.5), a * a)
    q = tl.where(far, tl.sqrt(z), a) * POLYNOMIAL(ASIN, z)
    return {_result}
""", "_signed")
_function("_sinh_fast", """
@triton.jit
def _sinh_fast(x):
    s = x * x
    e = _exp2_fast(_fma(tl.abs(x), 1.44269504, -1.0))
    far = _signed(_fma(_rcp_fast(e), -0.25, e), x)
    return tl.where(s < 1.0, x * POLYNOMIAL(SINH, s), far)
""", "_exp2_fast", "_rcp_fast", "_signed")
_function("_cosh_fast", """
@triton.jit
def _cosh_fast(x):
    e = _exp2_fast(_fma(tl.abs(x), 1.44269504, -1.0))
    return _fma(_rcp_fast(e), 0.25, e)
""", "_exp2_fast", "_rcp_fast")
_function("_asinh_fast", """
@triton.jit
def _asinh_fast(x):
    a = tl.abs(x)
    s = a * a
    big = a > 1e9
    l = _fma(_log2_of_normal(tl.where(big, a, a + tl.sqrt(s + 1.0))), 0.69314718056, tl.where(big, 0.69314718056, 0.0))
    return tl.where(a < 0.5, x * POLYNOMIAL(ASINH, s), _signed(l, x))
""", "_log2_of_normal", "_signed")
_function("_acosh_fast", """
@triton.jit
def _acosh_fast(x):
    d = x - 1.0
    near = _log1p_fast(d + tl.sqrt(d * (d + 2.0)))
    near = tl.where(d < 0.0, float("nan"), near)
    return tl.where(x > 1e9, _fma(_log2_of_normal(x), 0.69314718056, 0.69314718056), near)
""", "_log2_of_normal", "_log1p_fast")
_function("_atanh_fast", """
@triton.jit
def _atanh_fast(x):
    a = tl.abs(x)
    return _signed(0.5 * _log1p_fast((a + a) / (1.0 - a)), x)
""", "_log1p_fast", "_signed")
_function("_lgamma_above", """
@triton.jit
def _lgamma_above(x):
    # x > 0
    l = _log2_approximate(x) * 0.69314718056
    below = x < 0.9
    d = tl.where(below, x, x - 1.0)
    p = d - 0.95
    near = _fma(_fma(d, d, -d), POLYNOMIAL(LGAMMA, p), tl.where(below, -l, 0.0))
    u = _rcp_fast(x)
    s = u * u
    far = _fma(x - 0.5, l, -x) + _fma(u, POLYNOMIAL(STIRLING, s), 0.91893853)
    return tl.where(x < 3.0, near, tl.where(x == float("inf"), x, far))
""", "_log2_approximate", "_rcp_fast")
_function("_lgamma_fast", """
@triton.jit
def _lgamma_fast(x):
    a = tl.abs(x)
    result = _lgamma_above(a)
    if _least_bits(x) <= 0:
        part = a - tl.floor(a)
        r = 3.14159265 * tl.minimum(part, 1.0 - part)
        s = r * r
        sine = r * POLYNOMIAL(SIN, s)
        other = (1.65149613 - _log2_approximate(a) - _log2_approximate(sine)) * 0.69314718056 - result
        other = tl.where((part == 0.0) | (a == float("inf")), float("inf"), other)
        result = tl.where(x <= 0.0, other, result)
    return result
""", "_lgamma_above", "_least_bits", "_log2_approximate")
_function("_digamma_fast", """
@triton.jit
def _digamma_fast(x):
    # behind three steps of the recurrence; one reciprocal for those and for the series
    a = tl.abs(x)
    c = tl.minimum(a, 1e9)
    z = c + 3.0
    product = _fma(c, c, c) * (c + 2.0)
    r = _rcp_fast(product * z)
    u = product * r
    s = u * u
    steps = _fma(_fma(c, 3.0, 6.0), c, 2.0) * (z * r)
    series = _fma(s, POLYNOMIAL(DIGAMMA, s), u * -0.5)
    result = _fma(_log2_approximate(a + 3.0), 0.69314718056, series) - steps
    if _least_bits(x) < 0x0DA24260:
        part = a - tl.floor(a)
        part = tl.where(part > 0.5, part - 1.0, part)
        side = tl.abs(part)
        t = 3.14159265 * tl.where(side > 0.25, 0.5 - side, side)
        s = t * t
        tangent = t * POLYNOMIAL(TAN, s)
        turned = tl.where(side > 0.25, tangent, 1.0 / tangent)
        other = _fma(tl.where(part < 0.0, -turned, turned), 3.14159265, result + 1.0 / a)
        other = tl.where(part == 0.0, float("nan"), other)
        result = tl.where(x < 1e-30, tl.where(a < 1e-30, -1.0 / x, other), result)
    return result
""", "_least_bits", "_log2_approximate", "_rcp_fast")


def _entry(prim: str, relative: str, absolute: str) -> None:
    """``absolute``: the function where only the absolute error counts."""
    exact: Callable = OPS[prim]

    def text(c: Context, *args: str) -> str:
        if not c.fast or c.dtype is not torch.float32:
            return exact(c, *args)
        name = absolute if c.absolute else relative
        if c.bfloat16 and f"_{prim}_of_bfloat16" in _MADE:
            name = f"_{prim}_of_bfloat16"
        elif c.fraction and f"_{prim}_of_fraction" in _MADE:
            name = f"_{prim}_of_fraction"
        return f"{c.helper(name)}({', '.join(args)})"

    OPS[prim] = text


for _helper in _MADE:
    _name = _helper.removeprefix("_").removesuffix("_fast")
    if _name in OPS:
        _entry(_name, _helper, {"_erf_fast": "_erf_far", "_tanh_fast": "_tanh_absolute"}.get(_helper, _helper))
