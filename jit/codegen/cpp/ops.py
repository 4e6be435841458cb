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

import torch

from jit.codegen.cpp import functions
from jit.errors import Unsupported

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
BOOL, U8, I8, I16, I32, I64 = torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64

# dtype -> (type of a value and of memory, unsigned type in which arithmetic wraps)
C_TYPES = {
    F32: ("float", None), F64: ("double", None), F16: ("f16", None), BF16: ("bf16", None),
    BOOL: ("bool", None), U8: ("uint8_t", "uint32_t"), I8: ("int8_t", "uint32_t"), I16: ("int16_t", "uint32_t"),
    I32: ("int32_t", "uint32_t"), I64: ("int64_t", "uint64_t"),
    torch.uint16: ("uint16_t", "uint32_t"), torch.uint32: ("uint32_t", "uint32_t"),
    torch.uint64: ("uint64_t", "uint64_t"),
}  # fmt: skip


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


def constant(value, dtype: torch.dtype) -> str:
    """A literal that is exactly ``value`` rounded to ``dtype``."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype in (F32, F64, F16, BF16):
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


def _from_float(text, dtype):
    return f"to_bf16({text})" if dtype is BF16 else f"to_f16({text})"


def cast(a: str, source: torch.dtype, target: torch.dtype) -> str:
    """``a`` converted as ``tensor.to`` does: floats truncate toward zero, anything but 0 is true, halves round to
    nearest even."""
    if source is target:
        return a
    if source is BF16 or source is F16:
        a, source = f"from_{'bf16' if source is BF16 else 'f16'}({a})", F32
        if target is F32:
            return a
    if target is BOOL:
        return f"({a} != 0)"
    if source is BOOL and target in (F32, F64):  # g++ 12 does not vectorise a conversion
        return f"({a} ? {constant(1, target)} : {constant(0, target)})"
    if target is F16 or target is BF16:
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
    simd = '__attribute__((simd("notinbranch"))) ' if base in _vector_functions() else ""
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
    "remainder_float": (("fmodf", "fmod"), """\
static inline float remainder_float(float a, float b) { const float m = fmodf(a, b);
return (m != 0 && ((b < 0) != (m < 0))) ? m + b : m; }
static inline double remainder_float(double a, double b) { const double m = fmod(a, b);
return (m != 0 && ((b < 0) != (m < 0))) ? m + b : m; }
"""),
    "floor_div_float": (("fmodf", "fmod"), """\
template <class T> static inline T floor_div_rest(T a, T b, T m) {
    T d = (a - m) / b;
    if (m != 0 && ((b < 0) != (m < 0))) d -= 1;
    T f = (T)__builtin_floor(d);
    if (d - f > (T)0.5) f += 1;
    const T whole = d != 0 ? f : (T)__builtin_copysign(0.0, a / b);
    return b == 0 ? a / b : whole;
}
static inline float floor_div_float(float a, float b) { return floor_div_rest<float>(a, b, fmodf(a, b)); }
static inline double floor_div_float(double a, double b) { return floor_div_rest<double>(a, b, fmod(a, b)); }
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
    # M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2010), polished by Newton steps on erf.
    "erfinv": (("log", "erf", "exp"), """\
static inline double erfinv_start(double x) {
    double w = -log((1.0 - x) * (1.0 + x)), p;
    if (w < 5.0) {
        w -= 2.5;
        p = 2.81022636e-08; p = 3.43273939e-07 + p * w; p = -3.5233877e-06 + p * w; p = -4.39150654e-06 + p * w;
        p = 0.00021858087 + p * w;
        p = -0.00125372503 + p * w; p = -0.00417768164 + p * w; p = 0.246640727 + p * w; p = 1.50140941 + p * w;
    } else {
        w = __builtin_sqrt(w) - 3.0;
        p = -0.000200214257; p = 0.000100950558 + p * w; p = 0.00134934322 + p * w; p = -0.00367342844 + p * w;
        p = 0.00573950773 + p * w;
        p = -0.0076224613 + p * w; p = 0.00943887047 + p * w; p = 1.00167406 + p * w; p = 2.83297682 + p * w;
    }
    return p * x;
}
static inline double erfinv(double x) {
    const double a = __builtin_fabs(x);
    if (!(a < 1.0)) return a == 1.0 ? __builtin_copysign(__builtin_inf(), x) : __builtin_nan("");
    if (a == 0.0) return x;
    double y = erfinv_start(x);
    for (int i = 0; i < 3; i++) {
        const double step = (erf(y) - x) * 0.886226925452758 * exp(y * y);
        y -= step / (1.0 + y * step);
    }
    return y;
}
"""),
    "lgamma": (("lgamma",), """\
/* lgammaf's errors are twice eager's */
static inline float lgamma_of(float x) { int sign; return (float)lgamma_r(x, &sign); }
static inline double lgamma_of(double x) { int sign; return lgamma_r(x, &sign); }
"""),
}  # fmt: skip
HELPERS["lgamma_of"] = HELPERS.pop("lgamma")
HELPERS.update(functions.HELPERS)

_LIBM = set(_VECTOR_222 + _VECTOR_235) - {"hypot", "pow"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_WRAPPING = {"add": "+", "sub": "-", "mul": "*"}
_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_ROUNDING = {"ceil": "ceil", "floor": "floor", "round": "rint", "trunc": "trunc", "sqrt": "sqrt", "abs": "fabs"}


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
        return f"(({a} {sign} {b}) | ({a} != {a}) ? {a} : {b})"
    return f"({a} {sign} {b} ? {a} : {b})"


def expression(op: str, args: list[str], arg_dtypes: list, dtype: torch.dtype,
               constants: list, absolute: bool = False) -> str:
    """One pointwise prim as a C++ expression.

    Args:
        args: expressions of the arguments; each is a name or a literal, so that it may be repeated.
        constants: for each argument its Python value when it is a constant, else None.
        absolute: see ``loops.absolute_values``.
    Raises Unsupported for an operator, or an operator on a dtype, that has no form here.
    """
    if op == "cast":
        return cast(args[0], arg_dtypes[0], dtype)
    a, kind = args[0], arg_dtypes[0]
    b = args[1] if len(args) > 1 else None
    if op == "where":
        return f"({a} ? {args[1]} : {args[2]})"
    if op == "from_words":
        return f"from_words({a}, {b})"
    if op == "random_bits":
        return f"({c_type(dtype)})random_bits({a}, {b})"
    if op in _COMPARE:
        return f"({a} {_COMPARE[op]} {b})"
    if op == "logical_not":
        return f"({a} == 0)" if kind is not BOOL else f"(!{a})"
    if op in ("logical_and", "logical_or", "logical_xor"):
        x, y = (v if kind is BOOL else f"({v} != 0)" for v in args)
        return (f"({x} {'&|^'[('logical_and', 'logical_or', 'logical_xor').index(op)]} {y})" if kind is BOOL
                or op != "logical_xor" else f"({x} != {y})")
    if op in _BITWISE:
        return f"({c_type(dtype)})({a} {_BITWISE[op]} {b})"
    if op == "bitwise_not":
        return f"(!{a})" if kind is BOOL else f"({c_type(dtype)})(~{a})"
    if op in _WRAPPING:
        return wrap(_WRAPPING[op], a, b, dtype)
    if op in ("maximum", "minimum"):
        return maximum(a, b, dtype, op == "minimum")
    if op in functions.FUNCTIONS.get(_FORMATS.get(kind), ()):
        form = f"{op}_absolute" if absolute and op in functions.ABSOLUTE.get(_FORMATS[kind], ()) else op
        return f"{form}_{_FORMATS[kind]}({', '.join(args)})"
    form = _FLOAT.get(op) if kind.is_floating_point else _INTEGER.get(op)
    if form is None and kind.is_floating_point and op in _LIBM:
        return _function(op, kind, a)
    if form is None:
        raise Unsupported(f"CPU kernels have no {op} on {kind}", hint="run this operator outside the compiled region",
                          kind="kernel")
    return form(args, kind, dtype, constants)


_FORMATS = {F32: "f32", F64: "f64"}


def _function(name: str, kind, a: str) -> str:
    """A call of a function of floats: our own form where there is one, else libm's."""
    own = _FORMATS[kind]
    return f"{name}_{own}({a})" if name in functions.FUNCTIONS[own] else f"{_suffixed(name, kind)}({a})"


def _suffixed(name, kind):
    return name + ("f" if kind is F32 else "")


def _bits_type(kind):
    return "int32_t" if kind is F32 else "int64_t"


def _pow(args, kind, dtype, constants):
    a, b = args
    one = constant(1, kind)
    # What the compiler makes of such a power is a root, which differs at -0 and -inf.
    root = (
        f"({a} == -__builtin_inff() ? __builtin_inff() : "
        f"__builtin_{_suffixed('fabs', kind)}(__builtin_{_suffixed('sqrt', kind)}({a})))")
    exact = {0.0: one, 1.0: a, 2.0: f"({a} * {a})", 3.0: f"({a} * {a} * {a})",
             -1.0: f"({one} / {a})", -2.0: f"({one} / ({a} * {a}))", 0.5: root, -0.5: f"({one} / {root})"}  # fmt: skip
    if constants[1] is not None and float(constants[1]) in exact:
        return exact[float(constants[1])]
    return f"{_suffixed('pow', kind)}({a}, {b})"


_FLOAT = {
    "neg": lambda v, k, d, c: f"(-{v[0]})",
    "sign": lambda v, k, d, c: f"({v[0]} > 0 ? {constant(1, k)} : {v[0]} < 0 ? {constant(-1, k)} : {constant(0, k)})",
    "rsqrt": lambda v, k, d, c: f"({constant(1, k)} / __builtin_{_suffixed('sqrt', k)}({v[0]}))",
    "reciprocal": lambda v, k, d, c: f"({constant(1, k)} / {v[0]})",
    "sigmoid": lambda v, k, d, c: f"({constant(1, k)} / ({constant(1, k)} + {_function('exp', k, '-' + v[0])}))",
    "relu": lambda v, k, d, c: f"({v[0]} < 0 ? {constant(0, k)} : {v[0]})",
    "isnan": lambda v, k, d, c: f"({v[0]} != {v[0]})",
    "isinf": lambda v, k, d, c: f"(__builtin_{_suffixed('fabs', k)}({v[0]}) == {constant(math.inf, k)})",
    "isfinite": lambda v, k, d, c: f"(__builtin_{_suffixed('fabs', k)}({v[0]}) < {constant(math.inf, k)})",
    "signbit": lambda v, k, d, c: f"(({_bits_type(k)})bits({v[0]}) < 0)",
    "div": lambda v, k, d, c: f"({v[0]} / {v[1]})",
    "trunc_div": lambda v, k, d, c: f"__builtin_{_suffixed('trunc', k)}({v[0]} / {v[1]})",
    "floor_div": lambda v, k, d, c: f"floor_div_float({v[0]}, {v[1]})",
    "fmod": lambda v, k, d, c: f"{_suffixed('fmod', k)}({v[0]}, {v[1]})",
    "remainder": lambda v, k, d, c: f"remainder_float({v[0]}, {v[1]})",
    "pow": _pow,
    "fma": lambda v, k, d, c: f"FMA{'' if k is F32 else '_DOUBLE'}({v[0]}, {v[1]}, {v[2]})",
    "fmax": lambda v, k, d, c: f"(({v[0]} > {v[1]}) | ({v[1]} != {v[1]}) ? {v[0]} : {v[1]})",
    "fmin": lambda v, k, d, c: f"(({v[0]} < {v[1]}) | ({v[1]} != {v[1]}) ? {v[0]} : {v[1]})",
    "hypot": lambda v, k, d, c: f"{_suffixed('hypot', k)}({v[0]}, {v[1]})",
    "copysign": lambda v, k, d, c: f"__builtin_{_suffixed('copysign', k)}({v[0]}, {v[1]})",
    "erfinv": lambda v, k, d, c: f"({c_type(d)})erfinv((double){v[0]})",
    "lgamma": lambda v, k, d, c: f"lgamma_of({v[0]})",
    **{op: (lambda v, k, d, c, name=name: f"__builtin_{_suffixed(name, k)}({v[0]})") for op, name in _ROUNDING.items()},
}


def _shift(op):
    def form(v, k, d, c):
        kind, unsigned = C_TYPES[k]
        width = torch.iinfo(k).bits
        bad = f"(({unsigned}){v[1]} >= {width}u)" if width >= 32 else f"(({v[1]} < 0) | ({v[1]} >= {width}))"
        amount = f"({v[1]} & {width - 1})"
        if op == "shl":
            return f"({bad} ? ({kind})0 : ({kind})(({unsigned}){v[0]} << {amount}))"
        return f"({bad} ? ({kind})({v[0]} < 0 ? -1 : 0) : ({kind})({v[0]} >> {amount}))"

    return form


def _divide(helper, power_of_two=None):
    def form(v, k, d, c):
        kind = c_type(k)
        divisor = c[1]
        if divisor is not None and int(divisor) > 0:
            n = constant(int(divisor), k)
            signed = k not in (U8, torch.uint16, torch.uint32, torch.uint64, BOOL)
            if helper == "trunc_div_int" or (helper == "floor_div_int" and not signed):
                return f"({kind})({v[0]} / {n})"
            if helper == "fmod_int" or not signed:
                return f"({kind})({v[0]} % {n})"
            if helper == "floor_div_int":
                return f"({kind})({v[0]} / {n} - ({v[0]} % {n} < 0))"
            return f"({kind})({v[0]} % {n} + ({v[0]} % {n} < 0 ? {n} : 0))"
        return f"{helper}<{kind}>({v[0]}, {v[1]})"

    return form


_INTEGER = {
    "neg": lambda v, k, d, c: f"({c_type(d)})(0 - ({C_TYPES[d][1]}){v[0]})",
    "abs": lambda v, k, d, c: v[0] if k in (BOOL, U8)
    else f"({v[0]} < 0 ? ({c_type(d)})(0 - ({C_TYPES[d][1]}){v[0]}) : {v[0]})",
    "sign": lambda v, k, d, c: v[0] if k is BOOL else f"({c_type(d)})(({v[0]} > 0) - ({v[0]} < 0))",
    "relu": lambda v, k, d, c: f"({v[0]} > 0 ? {v[0]} : ({c_type(d)})0)",
    "ceil": lambda v, k, d, c: v[0],
    "floor": lambda v, k, d, c: v[0],
    "round": lambda v, k, d, c: v[0],
    "trunc": lambda v, k, d, c: v[0],
    "isnan": lambda v, k, d, c: "false",
    "isinf": lambda v, k, d, c: "false",
    "isfinite": lambda v, k, d, c: "true",
    "signbit": lambda v, k, d, c: "false" if k is BOOL else f"({v[0]} < 0)",
    "fmax": lambda v, k, d, c: maximum(v[0], v[1], k),
    "fmin": lambda v, k, d, c: maximum(v[0], v[1], k, True),
    "floor_div": _divide("floor_div_int"),
    "trunc_div": _divide("trunc_div_int"),
    "remainder": _divide("remainder_int"),
    "fmod": _divide("fmod_int"),
    "pow": lambda v, k, d, c: f"pow_int<{c_type(k)}, {C_TYPES[k][1]}>({v[0]}, {v[1]})",
    "shl": _shift("shl"),
    "shr": _shift("shr"),
}

# What a prim costs in units of a float addition; the default is 1.
COST = dict.fromkeys(_LIBM | {"sigmoid", "pow", "atan2", "hypot"}, 14) | {
    "erfinv": 200, "lgamma": 100, "fmod": 40, "remainder": 40, "floor_div": 30,
    "div": 3, "sqrt": 3, "rsqrt": 5, "reciprocal": 3, "trunc_div": 4, "cast": 1, "random_bits": 30,
}  # fmt: skip


def prelude(text: str) -> str:
    """The declarations and helpers that ``text`` refers to, in an order in which each comes before its use."""
    out, seen = [], set()

    def need(name):
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
    libm = _LIBM | {"pow", "hypot", "fmod"}
    for word in sorted(words):
        if word in HELPERS or word in libm or (word.endswith("f") and word[:-1] in libm):
            need(word)
    return "".join(out)
