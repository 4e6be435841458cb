"""The C++ form of every pointwise prim, as text: types, constants, casts, and the helper functions that a kernel may
need.

Expressions are straight-line code that g++ turns into vector code: selects instead of branches, own forms of functions
(``functions.py``), libmvec's vector forms of the other libm functions. Each follows torch's CPU semantics for NaN,
infinities, signed zeros and integer wrapping.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import re
from dataclasses import dataclass
from typing import Callable

import torch

from jit.codegen.cpp import float8, functions
from jit.errors import Unsupported
from jit.graph.prims import POINTWISE, info

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
BOOL, U8, I8, I16, I32, I64 = torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64

# dtype -> (type of a value and of memory, unsigned type in which arithmetic wraps)
C_TYPES = {
    F32: ("float", None), F64: ("double", None), F16: ("f16", None), BF16: ("bf16", None),
    BOOL: ("bool", None), U8: ("uint8_t", "uint32_t"), I8: ("int8_t", "uint32_t"), I16: ("int16_t", "uint32_t"),
    I32: ("int32_t", "uint32_t"), I64: ("int64_t", "uint64_t"),
    torch.uint16: ("uint16_t", "uint32_t"), torch.uint32: ("uint32_t", "uint32_t"),
    torch.uint64: ("uint64_t", "uint64_t"), **{dtype: (name, None) for dtype, name in float8.NAMES.items()},
}  # fmt: skip


_NARROW = (F16, BF16, *float8.FORMATS)  # values are converted to float before anything is computed of them


def c_type(dtype: torch.dtype) -> str:
    """The C++ type of a value. Raises Unsupported for a dtype that CPU kernels do not compute with."""
    try:
        return C_TYPES[dtype][0]
    except KeyError:
        raise Unsupported(f"CPU kernels do not handle {dtype}",
                          hint="convert the tensor to a real dtype of at least 8 bits", kind="kernel") from None


def memory_type(dtype: torch.dtype) -> str:
    """The C++ type of an element in memory. A bool is a byte there, so that a stray value never makes an invalid
    ``bool``."""
    return "uint8_t" if dtype is BOOL else c_type(dtype)


def constant(value: float | int, dtype: torch.dtype) -> str:
    """A literal that is exactly ``value`` rounded to ``dtype``."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_floating_point:
        value = float(torch.tensor(float(value), dtype=F64).to(dtype))
        if math.isnan(value):
            text = "__builtin_nan(\"\")"
        elif math.isinf(value):
            text = "__builtin_inf()" if value > 0 else "-__builtin_inf()"
        elif (value == int(value) and abs(value) < 1e6 and math.copysign(1, value) * value >= 0
              and not (value == 0 and math.copysign(1, value) < 0)):
            text = f"{int(value)}.0"
        else:
            text = value.hex()
        if dtype is F64:
            return f"({text})" if text[0] == "-" else text
        if "builtin" in text:
            text = text.replace("nan(", "nanf(").replace("inf(", "inff(")
        else:
            text += "f"
        if dtype is F32:
            return f"({text})" if text[0] == "-" else text
        return _from_float(text, dtype)
    value = int(torch.tensor(value).to(dtype)) if not isinstance(value, int) else value
    if dtype is I64:
        return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"
    if dtype is I32 and value == -(2**31):
        return "INT32_MIN"
    return f"({c_type(dtype)}){value}" if dtype not in (I32,) else (f"({value})" if value < 0 else str(value))


def _from_float(text: str, dtype: torch.dtype) -> str:
    return float8.rounded(text, dtype) if dtype in float8.FORMATS else f"to_{C_TYPES[dtype][0]}({text})"


def cast(a: str, source: torch.dtype, target: torch.dtype) -> str:
    """``a`` converted as ``tensor.to`` does: floats truncate toward zero, anything but 0 is true, halves round to
    nearest even."""
    if source is target:
        return a
    if source in _NARROW:
        a, source = f"from_{C_TYPES[source][0]}({a})", F32
        if target is F32:
            return a
    if target is BOOL:
        return f"({a} != 0)"
    if source is BOOL and target in (F32, F64):  # g++ 12 does not vectorise a conversion
        return f"({a} ? {constant(1, target)} : {constant(0, target)})"
    if target in _NARROW:
        return _from_float(a if source is F32 else f"(float){a}", target)
    if source.is_floating_point and target in (U8, I8, I16, torch.uint16):
        # As eager's conversions do.
        return f"({c_type(target)})truncated_{64 if target is U8 and source is F64 else 32}({a})"
    if source.is_floating_point and target in (I32, I64):
        return f"truncated_{target.itemsize * 8}({a})"
    return f"({c_type(target)}){a}"


# libm functions that libmvec has in vector form, per glibc version that brought them
_VECTOR_222 = "sin cos exp log pow".split()
_VECTOR_235 = "exp2 expm1 log2 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc hypot".split()


@functools.lru_cache(maxsize=None)
def _vector_functions() -> frozenset:
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        found = re.search(r"glibc (\d+)\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError, AttributeError):
        found = None
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    return frozenset((_VECTOR_222 if version >= (2, 22) else []) + (_VECTOR_235 if version >= (2, 35) else []))


def declaration(function: str) -> str:
    """The prototype of a libm function such as ``expf``; with its vector forms where libmvec has them."""
    base = function[:-1] if function.endswith("f") and function not in ("erf",) else function
    kind = "float" if base != function else "double"
    arguments = ", ".join([kind] * (2 if base in ("pow", "hypot", "fmod") else 1))
    simd = '__attribute__((simd("notinbranch"), const)) ' if base in _vector_functions() else ""
    if base == "lgamma":
        return f'extern "C" {kind} {function}_r({kind}, int*);'
    return f'extern "C" {simd}{kind} {function}({arguments});'


# helper name -> (names of helpers and libm functions it calls, text)
HELPERS = {
    "bits": ((), """\
static inline uint32_t bits(float x) { uint32_t u; __builtin_memcpy(&u, &x, 4); return u; }
static inline float from_bits(uint32_t u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
static inline int64_t bits(double x) { int64_t u; __builtin_memcpy(&u, &x, 8); return u; }
"""),
    "from_words": ((), """\
static inline double from_words(int64_t low, int64_t high) {
    const int64_t u = (int64_t)(((uint64_t)high << 32) | ((uint64_t)low & 0xffffffffu));
    double x; __builtin_memcpy(&x, &u, 8); return x;
}
"""),
    # Philox2x32-10, see ``graph.philox``. In 64-bit lanes: g++ 12 takes wide products of 32-bit lanes apart and
    # together again.
    "random_bits": ((), """\
static inline uint64_t random_bits(int64_t seed, int64_t counter) {
    const uint64_t word = 0xffffffffu;
    uint64_t a = (uint64_t)counter & word, b = (((uint64_t)counter >> 32) + ((uint64_t)seed >> 32)) & word,
        key = (uint64_t)seed & word;
    for (int i = 0; i < 10; i++) {
        const uint64_t p = a * 0xD256D193u;
        a = (p >> 32) ^ key ^ b;
        b = p & word;
        key = (key + 0x9E3779B9u) & word;
    }
    return b << 32 | a;
}
"""),
    "bf16": (("bits",), """\
typedef uint16_t bf16;
static inline float from_bf16(bf16 x) { return from_bits((uint32_t)x << 16); }
static inline bf16 to_bf16(float x) {
    const uint32_t u = bits(x), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (bf16)(x != x ? 0x7fc0u : rounded);
}
"""),
    # g++ 12 does not vectorise conversions of _Float16, so halves are taken apart as integers.
    "f16": (("bits",), """\
typedef uint16_t f16;
static inline float from_f16(f16 x) {
    const uint32_t a = ((uint32_t)x & 0x7fffu) << 13, sign = ((uint32_t)x & 0x8000u) << 16;
    const uint32_t finite = bits(from_bits(a) * 0x1p112f);
    return from_bits((a >= 0x0f800000u ? a | 0x7f800000u : finite) | sign);
}
static inline f16 to_f16(float x) {
    const uint32_t u = bits(x), a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    const uint32_t small = bits(from_bits(a) + 0.5f) - 0x3f000000u; /* 0.5 has an ulp of 2**-24, as the denormals */
    uint32_t h = a < 0x38800000u ? small : normal;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? 0x7e00u : h;
    return (f16)(h | sign);
}
"""),
    # What the conversion's instruction gives on x86 for NaN and for what is out of range, in so many words: what a
    # compiler makes of a constant there is another value.
    "truncated_32": ((), """\
#ifdef __x86_64__
static inline int32_t truncated_32(float x) { return __builtin_fabsf(x) < 0x1p31f ? (int32_t)x : INT32_MIN; }
static inline int32_t truncated_32(double x) { return __builtin_fabs(x) < 0x1p31 ? (int32_t)x : INT32_MIN; }
#else
template <class T> static inline int32_t truncated_32(T x) { return (int32_t)x; }
#endif
"""),
    "truncated_64": ((), """\
#ifdef __x86_64__
static inline int64_t truncated_64(float x) { return __builtin_fabsf(x) < 0x1p63f ? (int64_t)x : INT64_MIN; }
static inline int64_t truncated_64(double x) { return __builtin_fabs(x) < 0x1p63 ? (int64_t)x : INT64_MIN; }
#else
template <class T> static inline int64_t truncated_64(T x) { return (int64_t)x; }
#endif
"""),
    "floor_div_int": ((), """\
template <class T> static inline T floor_div_int(T a, T b) {
    if (b == 0) return 0;
    if (b == (T)-1 && (T)-1 < 0) return (T)(0 - (uint64_t)a);
    const T q = a / b;
    return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}
"""),
    "trunc_div_int": ((), """\
template <class T> static inline T trunc_div_int(T a, T b) {
    if (b == 0) return 0;
    return b == (T)-1 && (T)-1 < 0 ? (T)(0 - (uint64_t)a) : a / b;
}
"""),
    "remainder_int": ((), """\
template <class T> static inline T remainder_int(T a, T b) {
    if (b == 0 || (b == (T)-1 && (T)-1 < 0)) return 0;
    const T m = a % b;
    return (m != 0 && ((m < 0) != (b < 0))) ? m + b : m;
}
"""),
    "fmod_int": ((), """\
template <class T> static inline T fmod_int(T a, T b) { return b == 0 || (b == (T)-1 && (T)-1 < 0) ? 0 : a % b; }
"""),
    "pow_int": ((), """\
template <class T, class U> static inline T pow_int(T a, T b) {
    if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b % 2 ? -1 : 1) : 0;
    U base = (U)a, result = 1;
    for (; b; b = b / 2, base *= base) if (b % 2) result *= base;
    return (T)result;
}
"""),
    # A quotient that rounds to less than 2^24 (2^53) is too large by one at most, and what is left is then exact. The
    # others take libm's function, one by one: in a vector form of our own, so that the loop around it is vectorised.
    "fmod_float": (("fmodf", "fmod", "bits"), """\
__attribute__((noinline, simd("notinbranch"))) static float fmod_far(float a, float b, float r, float far) {
    return far != 0 ? fmodf(a, b) : r;
}
__attribute__((noinline, simd("notinbranch"))) static double fmod_far(double a, double b, double r, double far) {
    return far != 0 ? fmod(a, b) : r;
}
static inline float fmod_float(float a, float b) {
    const float x = __builtin_fabsf(a), y = __builtin_fabsf(b), q = __builtin_truncf(x / y);
    const float r = __builtin_fmaf(-q, y, x), s = r < 0 ? r + y : r, t = (y == __builtin_inff()) ? x : s;
    return fmod_far(a, b, __builtin_copysignf(t, a), q < 0x1p24f ? 0.0f : 1.0f);
}
static inline double fmod_float(double a, double b) {
    const double x = __builtin_fabs(a), y = __builtin_fabs(b), q = __builtin_trunc(x / y);
    const double r = __builtin_fma(-q, y, x), s = r < 0 ? r + y : r, t = (y == __builtin_inf()) ? x : s;
    return fmod_far(a, b, __builtin_copysign(t, a), q < 0x1p53 ? 0.0 : 1.0);
}
"""),
    "remainder_float": (("fmod_float",), """\
template <class T> static inline T remainder_float(T a, T b) {
    const T m = fmod_float(a, b), other = m + b;
    return (m != 0) & ((b < 0) != (m < 0)) ? other : m;
}
"""),
    "floor_div_float": (("fmod_float",), """\
template <class T> static inline T floor_div_float(T a, T b) {
    const T m = fmod_float(a, b), q = (a - m) / b, less = q - 1;
    const T d = (m != 0) & ((b < 0) != (m < 0)) ? less : q;
    const T f = (T)__builtin_floor(d), more = f + 1, near = d - f > (T)0.5 ? more : f;
    const T whole = d != 0 ? near : (T)__builtin_copysign((T)0, a / b);
    return b == 0 ? a / b : whole;
}
"""),
    # x / t for one t and many x: r is 1/(t*s), s a power of two that brings t into range. The remainder corrects the
    # product, so that the result is the rounded quotient; where the remainder is zero or not finite the product is
    # already right.
    "divide_by": (("bits",), """\
struct Divisor { float s, t, r; };
static inline Divisor divisor(float t) {
    const float a = __builtin_fabsf(t), s = a < 0x1p-90f ? 0x1p64f : a > 0x1p90f ? 0x1p-64f : 1.0f;
    return Divisor{s, t * s, 1.0f / (t * s)};
}
static inline float divide_by(float x, float s, float t, float r) {
    const float y = x * s, q = y * r, e = FMA(-q, t, y);
    return (bits(e) & 0x7fffffffu) - 1u < 0x7f7fffffu ? FMA(e, r, q) : q;
}
"""),
    # M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2010): floats to 2.7e-7 of the value (five
    # units in the last place, as CUDA's); for doubles three steps of Halley's on erf follow. Without jumps, so that
    # loops are vectorised.
    "erfinv": (("log", "erf", "exp", "log_f32"), """\
template <class T> static inline T erfinv_start(T x, T w, T root) {
    const T c = w - (T)2.5, t = root - (T)3.0;
    T p = (T)2.81022636e-08, q = (T)-0.000200214257;
    p = (T)3.43273939e-07 + p * c; p = (T)-3.5233877e-06 + p * c; p = (T)-4.39150654e-06 + p * c;
    p = (T)0.00021858087 + p * c; p = (T)-0.00125372503 + p * c; p = (T)-0.00417768164 + p * c;
    p = (T)0.246640727 + p * c; p = (T)1.50140941 + p * c;
    q = (T)0.000100950558 + q * t; q = (T)0.00134934322 + q * t; q = (T)-0.00367342844 + q * t;
    q = (T)0.00573950773 + q * t; q = (T)-0.0076224613 + q * t; q = (T)0.00943887047 + q * t;
    q = (T)1.00167406 + q * t; q = (T)2.83297682 + q * t;
    return (w < 5 ? p : q) * x;
}
template <class T> static inline T erfinv_ends(T x, T y) {
    const T a = x < 0 ? -x : x, end = a == 1 ? x * (T)__builtin_inf() : (T)__builtin_nan(""), inner = a == 0 ? x : y;
    return a < 1 ? inner : end;
}
static inline float erfinv(float x) {
    const float w = -log_f32((1.0f - x) * (1.0f + x));
    return erfinv_ends(x, erfinv_start(x, w, __builtin_sqrtf(w)));
}
static inline double erfinv(double x) {
    const double w = -log((1.0 - x) * (1.0 + x));
    double y = erfinv_start(x, w, __builtin_sqrt(w));
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        const double step = (erf(y) - x) * 0.886226925452758 * exp(y * y);
        y -= step / (1.0 + y * step);
    }
    return erfinv_ends(x, y);
}
"""),
    # lgammaf's errors are twice eager's. Of floats: in doubles, with Stirling's series behind eight steps of the
    # recurrence, and the reflection for negative numbers.
    "lgamma": (("lgamma", "log", "sin"), """\
static inline float lgamma_of(float x) {
    const double a = __builtin_fabs((double)x), near = a - __builtin_rint(a), b = a < 1e30 ? a : 1e30;
    const double ends = (b * (b + 7.0)) * ((b + 1.0) * (b + 6.0)), inner = (b + 2.0) * (b + 5.0);
    const double product = ends * (inner * ((b + 3.0) * (b + 4.0))), z = a + 8.0, r = 1.0 / z, r2 = r * r;
    double s = -0.0019175269175269176;
    s = 0.0008417508417508417 + s * r2; s = -0.0005952380952380953 + s * r2; s = 0.0007936507936507937 + s * r2;
    s = -0.002777777777777778 + s * r2; s = 0.08333333333333333 + s * r2;
    const double series = ((z - 0.5) * log(z) - z + 0.9189385332046728) + s * r;
    const double turned = __builtin_fabs(a * sin(3.141592653589793 * near)), other = product / turned;
    const double rest = log(x < 0 ? other : product);
    const double left = 1.1447298858494002 - series + rest, right = series - rest, value = x < 0 ? left : right;
    const double exact = (x - 1) * (x - 2) == 0 ? 0.0 : value;
    const bool pole = (x <= 0) & (near == 0), endless = a == __builtin_inf();
    const float y = pole | endless ? __builtin_inff() : (float)exact;
    return x != x ? x : y;
}
static inline double lgamma_of(double x) { int sign; return lgamma_r(x, &sign); }
"""),
    # The logarithm's series behind eight steps of the recurrence, of which those from both ends have one numerator, and
    # the reflection for negative numbers; all in doubles.
    "digamma": (("log", "sin", "cos"), """\
template <class T> static inline T digamma(T given) {
    const double x = given, a = x < 0 ? 1.0 - x : x, b = a < 1e30 ? a : 1e30, q = b * (b + 7.0);
    const double steps = (b + b + 7.0) * ((q + q + 6.0) / (q * (q + 6.0)) + (q + q + 22.0) / ((q + 10.0) * (q + 12.0)));
    const double z = a + 8.0, r = 1.0 / z, r2 = r * r;
    double s = 0.08333333333333333;
    s = -0.021092796092796094 + s * r2; s = 0.007575757575757576 + s * r2; s = -0.004166666666666667 + s * r2;
    s = 0.003968253968253968 + s * r2; s = -0.008333333333333333 + s * r2; s = 0.08333333333333333 + s * r2;
    const double near = x - __builtin_rint(x), t = 3.141592653589793 * near;
    const double turned = 3.141592653589793 * cos(t) / sin(t);
    const double value = log(z) - 0.5 * r - s * r2 - steps, other = x < 0 ? value - turned : value;
    const double pole = x == 0 ? __builtin_copysign(__builtin_inf(), -x) : __builtin_nan("");
    return (T)((x <= 0) & !(near != 0) ? pole : other);
}
"""),
}  # fmt: skip
HELPERS["lgamma_of"] = HELPERS.pop("lgamma")
# One term more in a running logarithm of a sum of exponentials, as eager adds it.
HELPERS["log_add_exp"] = (("exp", "log1p"), """\
static inline double log_add_exp(double a, double b) {
    const double low = b != b ? b : (a < b ? a : b), high = b != b ? b : (a > b ? a : b);
    if (a != a) return a;
    return low != high || low - low == 0 ? log1p(exp(low - high)) + high : a;
}
""")
HELPERS.update(functions.HELPERS)
HELPERS.update(float8.HELPERS)

_LIBM = frozenset(_VECTOR_222 + _VECTOR_235)


def wrap(op: str, a: str, b: str, dtype: torch.dtype) -> str:
    """``a op b`` for ``op`` in ``+ - *``: wrapping for integers, logical for bools, IEEE for floats."""
    if dtype is BOOL:
        return f"({a} | {b})" if op == "+" else f"({a} & {b})" if op == "*" else f"({a} ^ {b})"
    kind, unsigned = C_TYPES[dtype]
    return f"({a} {op} {b})" if unsigned is None else f"({kind})(({unsigned}){a} {op} ({unsigned}){b})"


def maximum(a: str, b: str, dtype: torch.dtype, less: bool = False) -> str:
    """The larger (or with ``less`` the smaller) of two; a NaN wins over all. ``a`` and ``b`` are repeated in the text:
    give them names."""
    sign = "<" if less else ">"
    if dtype is BOOL:
        return f"({a} & {b})" if less else f"({a} | {b})"
    if dtype.is_floating_point:
        # Of this form g++ vectorises chains too; of ``(a > b) | (a != a) ? a : b`` it makes jumps, up to 30 times as
        # slow.
        return f"({b} != {b} ? {b} : !({a} {'>=' if less else '<='} {b}) ? {a} : {b})"
    return f"({a} {sign} {b} ? {a} : {b})"


@dataclass(frozen=True)
class Context:
    """What an entry may ask about the value being computed: its dtype, its arguments' dtypes, for each argument its
    Python value when it is a constant, else None, and ``absolute``, see ``codegen.absolute``."""

    dtype: torch.dtype
    args: tuple
    constants: tuple
    absolute: bool = False

    @property
    def source(self) -> torch.dtype:
        """The dtype of the first argument."""
        return self.args[0]


OPS = {}  # pointwise prim -> fn(context, *arguments): a C++ expression


def op(*names: object) -> Callable:
    def register(fn):
        OPS.update(dict.fromkeys(names, fn))
        return fn

    return register


def expression(name: str, args: list[str], arg_dtypes: list, dtype: torch.dtype,
               constants: list, absolute: bool = False) -> str:
    """One pointwise prim as a C++ expression.

    Args:
        args: expressions of the arguments; each is a name or a literal, so that it may be repeated.
        constants, absolute: see ``Context``.
    Raises Unsupported for an operator, or an operator on a dtype, that has no form here.
    """
    form = OPS.get(name)
    text = None if form is None else form(Context(dtype, tuple(arg_dtypes), tuple(constants), absolute), *args)
    if text is None:
        raise Unsupported(f"CPU kernels have no {name} on {arg_dtypes[0]}",
                          hint="run this operator outside the compiled function", kind="kernel")
    return text


def _by_kind(floats=None, integers=None) -> Callable:
    """An entry with a form for floats and one for integers and bools; None for what has none."""

    def form(c, *args):
        chosen = floats if c.source.is_floating_point else integers
        return chosen and chosen(c, *args)

    return form


_FORMATS = {F32: "f32", F64: "f64"}


def _function(name: str, kind: torch.dtype, *args: str, absolute: bool = False) -> str | None:
    """A call of a function of floats: our own form where there is one, else libm's."""
    own = _FORMATS.get(kind)
    if own is None:
        return None
    if name not in functions.FUNCTIONS[own]:
        return f"{_suffixed(name, kind)}({', '.join(args)})"
    form = f"{name}_absolute_{own}"
    return f"{form if absolute and form in HELPERS else f'{name}_{own}'}({', '.join(args)})"


def _suffixed(name: str, kind: torch.dtype) -> str:
    return name + ("f" if kind is F32 else "")


def _bits_type(kind: torch.dtype) -> str:
    return "int32_t" if kind is F32 else "int64_t"


def _named(name: str) -> Callable:
    return lambda c, *args: _function(name, c.source, *args, absolute=c.absolute)


for _name in _LIBM.union(*functions.FUNCTIONS.values()) - {"hypot", "pow"}:
    OPS[_name] = _named(_name)
OPS["normal_cdf"] = _by_kind(lambda c, x: f"normal_cdf_f32({x})" if c.source is F32 else
                             f"(0.5 + 0.5 * {_function('erf', c.source, f'({x} * {math.sqrt(0.5)!r})')})")


def _builtin(name: str) -> Callable:
    return lambda c, *args: f"__builtin_{_suffixed(name, c.source)}({', '.join(args)})"


# moving, comparing, logic


@op("cast")
def _cast(c, a: str) -> str:
    return cast(a, c.source, c.dtype)


@op("where")
def _where(c, condition, a: str, b: str) -> str:
    return f"({condition} ? {a} : {b})"


@op("from_words")
def _from_words(c, low, high) -> str:
    return f"from_words({low}, {high})"


@op("random_bits")
def _random_bits(c, seed, counter) -> str:
    return f"({c_type(c.dtype)})random_bits({seed}, {counter})"


def _compare(symbol) -> Callable:
    return lambda c, a, b: f"({a} {symbol} {b})"


OPS["eq"], OPS["ne"], OPS["lt"], OPS["le"], OPS["gt"], OPS["ge"] = map(_compare, ("==", "!=", "<", "<=", ">", ">="))


def _bitwise(symbol) -> Callable:
    return lambda c, a, b: f"({c_type(c.dtype)})({a} {symbol} {b})"


OPS["bitwise_and"], OPS["bitwise_or"], OPS["bitwise_xor"] = map(_bitwise, "&|^")


@op("bitwise_not")
def _bitwise_not(c, a: str) -> str:
    return f"(!{a})" if c.source is BOOL else f"({c_type(c.dtype)})(~{a})"


@op("logical_not")
def _logical_not(c, a: str) -> str:
    return f"({a} == 0)" if c.source is not BOOL else f"(!{a})"


def _logical(symbol, of_numbers) -> Callable:
    def form(c, a: str, b: str) -> str:
        return f"({a} {symbol} {b})" if c.source is BOOL else f"(({a} != 0) {of_numbers} ({b} != 0))"

    return form


OPS["logical_and"], OPS["logical_or"], OPS["logical_xor"] = _logical("&", "&"), _logical("|", "|"), _logical("^", "!=")
OPS["isnan"] = _by_kind(lambda c, a: f"({a} != {a})", lambda c, a: "false")
OPS["isinf"] = _by_kind(lambda c, a: f"({_builtin('fabs')(c, a)} == {constant(math.inf, c.source)})",
                        lambda c, a: "false")
OPS["isfinite"] = _by_kind(lambda c, a: f"({_builtin('fabs')(c, a)} < {constant(math.inf, c.source)})",
                           lambda c, a: "true")
OPS["signbit"] = _by_kind(lambda c, a: f"(({_bits_type(c.source)})bits({a}) < 0)",
                          lambda c, a: "false" if c.source is BOOL else f"({a} < 0)")


# arithmetic


def _wrapping(symbol) -> Callable:
    return lambda c, a, b: wrap(symbol, a, b, c.dtype)


OPS["add"], OPS["sub"], OPS["mul"] = map(_wrapping, "+-*")


def _negated(c, a: str) -> str:
    return f"({c_type(c.dtype)})(0 - ({C_TYPES[c.dtype][1]}){a})"


OPS["neg"] = _by_kind(lambda c, a: f"(-{a})", _negated)
OPS["abs"] = _by_kind(_builtin("fabs"),
                      lambda c, a: a if c.source in (BOOL, U8) else f"({a} < 0 ? {_negated(c, a)} : {a})")


def _sign_of_float(c, a: str) -> str:
    one, minus, zero = (constant(n, c.source) for n in (1, -1, 0))
    return f"({a} > 0 ? {one} : {a} < 0 ? {minus} : {zero})"


OPS["sign"] = _by_kind(_sign_of_float,
                       lambda c, a: a if c.source is BOOL else f"({c_type(c.dtype)})(({a} > 0) - ({a} < 0))")
OPS["relu"] = _by_kind(lambda c, a: f"({a} < 0 ? {constant(0, c.source)} : {a})",
                       lambda c, a: f"({a} > 0 ? {a} : ({c_type(c.dtype)})0)")
OPS["ceil"] = _by_kind(_builtin("ceil"), lambda c, a: a)
OPS["floor"] = _by_kind(_builtin("floor"), lambda c, a: a)
OPS["round"] = _by_kind(_builtin("rint"), lambda c, a: a)
OPS["trunc"] = _by_kind(_builtin("trunc"), lambda c, a: a)

OPS["maximum"] = lambda c, a, b: maximum(a, b, c.dtype)
OPS["minimum"] = lambda c, a, b: maximum(a, b, c.dtype, True)
OPS["fmax"] = _by_kind(lambda c, a, b: f"({a} != {a} ? {b} : !({a} <= {b}) ? {a} : {b})",
                       lambda c, a, b: maximum(a, b, c.source))
OPS["fmin"] = _by_kind(lambda c, a, b: f"({a} != {a} ? {b} : !({a} >= {b}) ? {a} : {b})",
                       lambda c, a, b: maximum(a, b, c.source, True))
OPS["fma"] = _by_kind(lambda c, x, y, z: f"FMA{'' if c.source is F32 else '_DOUBLE'}({x}, {y}, {z})")
OPS["copysign"] = _by_kind(_builtin("copysign"))


# division


def _divided(c, a: str, b: str) -> str:
    return f"({a} / {b})"


def _divide(helper: str) -> Callable:
    def form(c: list[int | None], a: str, b: str) -> str:
        k, divisor = c.source, c.constants[1]
        kind = c_type(k)
        if divisor is not None and int(divisor) > 0:
            n = constant(int(divisor), k)
            signed = k not in (U8, torch.uint16, torch.uint32, torch.uint64, BOOL)
            if helper == "trunc_div_int" or (helper == "floor_div_int" and not signed):
                return f"({kind})({a} / {n})"
            if helper == "fmod_int" or not signed:
                return f"({kind})({a} % {n})"
            if helper == "floor_div_int":
                return f"({kind})({a} / {n} - ({a} % {n} < 0))"
            return f"({kind})({a} % {n} + ({a} % {n} < 0 ? {n} : 0))"
        return f"{helper}<{kind}>({a}, {b})"

    return form


OPS["div"] = _by_kind(_divided)
OPS["reciprocal"] = _by_kind(lambda c, a: _divided(c, constant(1, c.source), a))
OPS["trunc_div"] = _by_kind(lambda c, a, b: f"__builtin_{_suffixed('trunc', c.source)}({a} / {b})",
                            _divide("trunc_div_int"))
OPS["floor_div"] = _by_kind(lambda c, a, b: f"floor_div_float({a}, {b})", _divide("floor_div_int"))
OPS["fmod"] = _by_kind(lambda c, a, b: f"fmod_float({a}, {b})", _divide("fmod_int"))
OPS["remainder"] = _by_kind(lambda c, a, b: f"remainder_float({a}, {b})", _divide("remainder_int"))


# powers and functions


def _power(c, a: str, b: str):
    kind = c.source
    one = constant(1, kind)
    # What the compiler makes of such a power is a root, which differs at -0 and -inf.
    root = (
        f"({a} == -__builtin_inff() ? __builtin_inff() : "
        f"__builtin_{_suffixed('fabs', kind)}(__builtin_{_suffixed('sqrt', kind)}({a})))")
    exact = {0.0: one, 1.0: a, 2.0: f"({a} * {a})", 3.0: f"({a} * {a} * {a})",
             -1.0: f"({one} / {a})", -2.0: f"({one} / ({a} * {a}))", 0.5: root, -0.5: f"({one} / {root})"}  # fmt: skip
    if c.constants[1] is not None and float(c.constants[1]) in exact:
        return exact[float(c.constants[1])]
    return f"{_suffixed('pow', kind)}({a}, {b})"


OPS["pow"] = _by_kind(_power, lambda c, a, b: f"pow_int<{c_type(c.source)}, {C_TYPES[c.source][1]}>({a}, {b})")
OPS["sqrt"] = _by_kind(_builtin("sqrt"))
OPS["rsqrt"] = _by_kind(lambda c, a: _divided(c, constant(1, c.source), _builtin("sqrt")(c, a)))


def _sigmoid(c, a: str) -> str:
    one = constant(1, c.source)
    return f"({one} / ({one} + {_function('exp', c.source, '-' + a)}))"


OPS["sigmoid"] = _by_kind(_sigmoid)
OPS["hypot"] = _by_kind(lambda c, a, b: f"{_suffixed('hypot', c.source)}({a}, {b})")
OPS["erfinv"] = _by_kind(lambda c, a: f"erfinv({a})")
OPS["lgamma"] = _by_kind(lambda c, a: f"lgamma_of({a})")
OPS["digamma"] = _by_kind(lambda c, a: f"digamma({a})")


HELPERS["order_key"] = (("bits",), """\
static inline int32_t order_key(float x) {
    const int32_t u = (int32_t)bits(x + 0.0f), k = u < 0 ? u ^ 0x7fffffff : u;
    return x != x ? 0x7fffffff : k;
}
static inline float from_order_key(int32_t k) { return from_bits((uint32_t)(k < 0 ? k ^ 0x7fffffff : k)); }
""")
HELPERS["from_order_key"] = (("order_key",), "")
OPS["order_key"] = _by_kind(lambda c, a: f"order_key({a})", lambda c, a: f"order_key((float){a})")
OPS["from_order_key"] = _by_kind(None, lambda c, a: f"from_order_key({a})")


# shifts


def _shift(left) -> Callable:
    def form(c: list[int | None], a: str, b: str) -> str:
        kind, unsigned = C_TYPES[c.source]
        width = torch.iinfo(c.source).bits
        bad = f"(({unsigned}){b} >= {width}u)" if width >= 32 else f"(({b} < 0) | ({b} >= {width}))"
        amount = f"({b} & {width - 1})"
        if left:
            return f"({bad} ? ({kind})0 : ({kind})(({unsigned}){a} << {amount}))"
        return f"({bad} ? ({kind})({a} < 0 ? -1 : 0) : ({kind})({a} >> {amount}))"

    return form


OPS["shl"], OPS["shr"] = _by_kind(None, _shift(True)), _by_kind(None, _shift(False))

COST = {name: info(name).cost.cpu for name in POINTWISE}  # in units of a float addition


def prelude(text: str) -> str:
    """The declarations and helpers that ``text`` refers to, in an order in which each comes before its use."""
    out, seen = [], set()

    def need(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        if name in HELPERS:
            for n in HELPERS[name][0]:
                need(n)
            out.append(HELPERS[name][1])
        else:
            out.append(declaration(name) + "\n")

    words = set(re.findall(r"\b[a-z_][a-z_0-9]*(?=[(<])", text))
    if re.search(r"\bbf16\b|_bf16\(", text):
        need("bf16")
    if re.search(r"\bf16\b|_f16\(", text):
        need("f16")
    for name in float8.HELPERS:
        if re.search(rf"(\b|_){name}\b", text):
            need(name)
    libm = _LIBM | {"fmod"}
    for word in sorted(words):
        if word in HELPERS or word in libm or (word.endswith("f") and word[:-1] in libm):
            need(word)
    return "".join(out)
