"""Pointwise prims as Triton expressions: one table entry per prim.

An entry takes a ``Context`` and the argument texts, and gives an expression. Two settings change what is emitted:

- ``fast``: the value only ever reaches a store in a half type, through smooth operations. Then approximate instructions
  are used (relative error of some 1e-6): they cost a third of the exact ones, and half types round at 5e-4.
- ``interpret``: text for Triton's interpreter, in which ``libdevice`` does not exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Callable

import torch

from ...devices import float8
from ...errors import Unsupported
from ..cpp.functions import FORMATS
from . import types

OPS = {}
HELPERS = {}


@dataclass
class Context:
    """What an entry may ask about the value being computed: its dtype, its arguments' dtypes, and the two settings
    above. ``absolute``: the value is only ever added to a constant of its size, so that its error near zero does not
    matter. ``divisor_per_row``: the second argument varies along fewer dimensions than the first. ``packs``: the
    arguments are blocks, whose bytes may be taken four at a time. ``pairs``: they are blocks that are rounded to
    bfloat16 two at a time. ``helpers`` collects the functions that the text calls, ``libdevice`` tells whether it uses
    that library. ``bfloat16``: the first argument is a bfloat16 number in a wider type; ``fraction``: it is 0 to 1, or
    NaN. ``rounded``: the value reaches memory only through a half type."""

    dtype: torch.dtype
    args: tuple
    fast: bool = False
    interpret: bool = False
    absolute: bool = False
    divisor_per_row: bool = False
    packs: bool = False
    pairs: bool = False
    helpers: dict = field(default_factory=dict)
    libdevice: bool = False
    bfloat16: bool = False
    fraction: bool = False
    rounded: bool = False

    @property
    def source(self) -> torch.dtype:
        """The dtype of the first argument."""
        return self.args[0]

    def helper(self, name: str) -> str:
        """Make sure that a function of ``HELPERS`` is in the module, and give its name."""
        needs, text, interpreted = HELPERS[name]
        for n in needs:
            self.helper(n)
        self.helpers[name] = interpreted if self.interpret and interpreted else text
        return name

    def device(self, name: str, *args: str) -> str:
        """A call of libdevice."""
        if self.interpret:
            raise Unsupported(f"libdevice.{name} in Triton's interpreter", kind="kernel")
        self.libdevice = True
        return f"libdevice.{name}({', '.join(args)})"


def op(*names: str) -> Callable:
    def register(fn: Callable) -> Callable:
        for n in names:
            OPS[n] = fn
        return fn
    return register


def helper(name: str, text: str, needs: tuple[str, ...] = (), interpreted: str | None = None) -> None:
    """Declare a function that emitted text may call, with another text for the interpreter where the first uses
    instructions."""
    HELPERS[name] = (needs, text.strip("\n") + "\n", interpreted and interpreted.strip("\n") + "\n")


def emit(name: str, context: Context, *args: str) -> str:
    """The expression for one prim. Raises Unsupported for a prim that has no entry for these types."""
    if name not in OPS:
        raise Unsupported(f"{name} in a GPU kernel", kind="kernel")
    return OPS[name](context, *args)


def _chain(coefficients, x: str) -> str:
    """A polynomial by Horner's scheme."""
    text = repr(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = f"({text}) * {x} + {c!r}" if "*" in text else f"{text} * {x} + {c!r}"
    return text


def _binary(symbol: str) -> Callable:
    return lambda c, a, b: f"{a} {symbol} {b}"


# arithmetic

OPS["sub"] = _binary("-")
OPS["bitwise_and"] = _binary("&")
OPS["bitwise_or"] = _binary("|")
OPS["bitwise_xor"] = _binary("^")
OPS["eq"] = _binary("==")
OPS["ne"] = _binary("!=")


@op("add")
def _add(c: Context, a: str, b: str) -> str:
    return f"{a} | {b}" if c.dtype is torch.bool else f"{a} + {b}"


@op("mul")
def _mul(c: Context, a: str, b: str) -> str:
    return f"{a} & {b}" if c.dtype is torch.bool else f"{a} * {b}"


def _comparison(symbol: str) -> Callable:
    def text(c: Context, a: str, b: str) -> str:
        if c.source is torch.bool:  # a one-bit integer is signed, so True would be less than False
            a, b = f"{a}.to(tl.int8)", f"{b}.to(tl.int8)"
        return f"{a} {symbol} {b}"
    return text


OPS["lt"], OPS["le"], OPS["gt"], OPS["ge"] = map(_comparison, ("<", "<=", ">", ">="))


@op("neg")
def _neg(c: Context, a: str) -> str:
    return f"-{a}" if c.dtype.is_floating_point else f"0 - {a}"


@op("abs")
def _abs(c: Context, a: str) -> str:
    return a if c.dtype in types.UNSIGNED or c.dtype is torch.bool else f"tl.abs({a})"


@op("sign")
def _sign(c: Context, a: str) -> str:
    if c.dtype is torch.bool:
        return a
    t = types.tl_dtype(c.dtype)
    return f"({a} > 0).to({t}) - ({a} < 0).to({t})"


@op("div")
def _div(c: Context, a: str, b: str) -> str:
    if c.fast and c.divisor_per_row:
        return f"{a} * (1.0 / {b})"
    return f"tl.div_rn({a}, {b})" if c.dtype is torch.float32 and not c.fast else f"{a} / {b}"


@op("reciprocal")
def _reciprocal(c: Context, a: str) -> str:
    return f"{c.helper('_reciprocal')}({a})" if c.dtype is torch.float32 and not c.fast else f"1.0 / {a}"


# As a division by ``tl.div_rn``, which takes twice the instructions.
helper("_reciprocal", """
@triton.jit
def _reciprocal(x):
    return tl.inline_asm_elementwise("rcp.rn.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
""", interpreted="""
@triton.jit
def _reciprocal(x):
    return tl.div_rn(tl.full([], 1.0, tl.float32), x)
""")


@op("where")
def _where(c: Context, cond: str, a: str, b: str) -> str:
    return f"tl.where({cond}, {a}, {b})"


@op("fma")
def _fma(c: Context, x: str, y: str, z: str) -> str:
    return f"{x} * {y} + {z}" if c.interpret else f"tl.fma({x}, {y}, {z})"


def _extreme(name: str, propagate: str, boolean: str) -> Callable:
    def text(c: Context, a: str, b: str) -> str:
        if c.dtype is torch.bool:
            return f"{a} {boolean} {b}"
        nan = f", propagate_nan=tl.PropagateNan.{propagate}" if c.dtype.is_floating_point else ""
        if c.interpret and c.dtype.is_floating_point and propagate == "NONE":
            return f"tl.where({a} != {a}, {b}, tl.where({b} != {b}, {a}, tl.{name}({a}, {b})))"
        if c.dtype is torch.float64 and propagate == "ALL":  # there is no such instruction
            return f"tl.where({a} != {a}, {a}, tl.where({b} != {b}, {b}, tl.{name}({a}, {b})))"
        return f"tl.{name}({a}, {b}{nan})"
    return text


OPS["maximum"], OPS["minimum"] = _extreme("maximum", "ALL", "|"), _extreme("minimum", "ALL", "&")
OPS["fmax"], OPS["fmin"] = _extreme("maximum", "NONE", "|"), _extreme("minimum", "NONE", "&")


@op("relu")
def _relu(c: Context, a: str) -> str:
    return OPS["maximum"](c, a, types.constant(0, c.dtype))


# casts


@op("cast")
def _cast(c: Context, a: str) -> str:
    source, dtype = c.source, c.dtype
    if source is dtype:
        return a
    if dtype is torch.bool:
        return f"{a} != 0"
    if dtype in types.FLOAT8 and source is torch.float32:
        return _float8(c, a)
    if source in types.HALF and dtype in types.HALF or source is torch.float64 and dtype in types.HALF:
        return f"{a}.to(tl.float32).to({types.tl_dtype(dtype)})"
    if source.is_floating_point and not dtype.is_floating_point:
        via = _CONVERTED_BY.get(dtype, dtype)
        a = f"{a}.to(tl.float32)" if source in types.HALF else a
        whole = c.helper("_whole_" + str(via).removeprefix("torch.")) + f"({a})"
        return whole if via is dtype else f"{whole}.to({types.tl_dtype(dtype)})"
    if c.pairs and dtype is torch.bfloat16 and source is torch.float32:
        return f"{c.helper('_bfloat16_pairs')}({a})"
    if c.packs and dtype is torch.float32 and source in BYTES:
        return f"{c.helper('_word_of_' + str(source).removeprefix('torch.'))}({a}) - {BYTES[source]}"
    return f"{a}.to({types.tl_dtype(dtype)})"


def _float8(c: Context, a: str) -> str:
    """The instruction gives the largest number for what is too large."""
    if c.dtype is torch.float8_e5m2:
        return f"{c.helper('_float8_e5m2')}({a})"
    whole = a if float8.saturates() else f'tl.where(tl.abs({a}) > 464.0, float("nan"), {a})'
    return f"({whole}).to({types.tl_dtype(c.dtype)})"


helper("_float8_e5m2", """
@triton.jit
def _float8_e5m2(x):
    finite = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinite = ((x.to(tl.int32, bitcast=True) >> 24) & 0x80 | 0x7c).to(tl.uint8)
    return tl.where(tl.abs(x) >= 61440.0, infinite, finite).to(tl.float8e5, bitcast=True)
""")


# One at a time, bfloat16 is rounded to by the few units that compute exponentials too.
helper("_bfloat16_pairs", """
@triton.jit
def _bfloat16_pairs(x):
    return tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True,
        pack=2)
""", interpreted="""
@triton.jit
def _bfloat16_pairs(x):
    return x.to(tl.bfloat16)
""")


# Bytes as floats: put into the last bits of 2^23, from which that is taken then (for signed ones, 128 more). The
# device's own conversion is done by few units: with it a product of a matrix of bytes and a vector took 25 us on an
# H200 where its reads take 17.
BYTES = {torch.uint8: 2.0**23, torch.int8: 2.0**23 + 128}
for _name, _flip in (("uint8", "mov.b32 word, $4;"), ("int8", "xor.b32 word, $4, 0x80808080;")):
    _taken = " ".join(f"prmt.b32 ${i}, word, 0x4B000000, 0x765{i};" for i in range(4))
    helper(f"_word_of_{_name}", f"""
@triton.jit
def _word_of_{_name}(x):
    return tl.inline_asm_elementwise("{{ .reg .b32 word; {_flip} "
        "{_taken} }}",
        "=r,=r,=r,=r,r", [x], dtype=tl.int32, is_pure=True, pack=4).to(tl.float32, bitcast=True)
""", interpreted=f"""
@triton.jit
def _word_of_{_name}(x):
    return x.to(tl.float32) + {BYTES[getattr(torch, _name)]}
""")


# Floats as whole numbers, by the device's own instruction. LLVM's conversion leaves numbers that the type cannot hold,
# and NaN, undefined: it folds them to whatever lies in a register, where the instruction has a result for each. The
# smaller types are cut out of the type that nvcc, which compiled eager's kernels, converts them by (measured on an
# H200).
_CONVERTED_BY = {torch.int8: torch.int32, torch.int16: torch.int32, torch.uint8: torch.int64,
                 torch.uint16: torch.uint32}
for _name, _register in (("int32", "r"), ("uint32", "r"), ("int64", "l"), ("uint64", "l")):
    _suffix = _name.replace("uint", "u").replace("int", "s")
    helper(f"_whole_{_name}", f"""
@triton.jit
def _whole_{_name}(x):
    if x.dtype == tl.float64:
        return tl.inline_asm_elementwise("cvt.rzi.{_suffix}.f64 $0, $1;", "={_register},d", [x], dtype=tl.{_name},
            is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("cvt.rzi.{_suffix}.f32 $0, $1;", "={_register},f", [x], dtype=tl.{_name},
            is_pure=True, pack=1)
""", interpreted=f"""
@triton.jit
def _whole_{_name}(x):
    return x.to(tl.{_name})
""")


@op("from_words")
def _from_words(c: Context, low: str, high: str) -> str:
    return (
        f"((tl.full([], {high}, tl.int64) << 32) | (tl.full([], {low}, tl.int64) & 0xffffffff)).to(tl.float64, "
        "bitcast=True)")


helper("_order_key", """
@triton.jit
def _order_key(x):
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x != x, 0x7fffffff, tl.where(bits < 0, bits ^ 0x7fffffff, bits))
""")


@op("order_key")
def _order_key(c: Context, a: str) -> str:
    return f"{c.helper('_order_key')}({a})"


@op("from_order_key")
def _from_order_key(c: Context, a: str) -> str:
    return f"tl.where({a} < 0, {a} ^ 0x7fffffff, {a}).to(tl.float32, bitcast=True)"


# random bits: Philox2x32-10, see ``graph.philox``

helper("_products", """
@triton.jit
def _products(a):
    # the upper and the lower half of a product, by one instruction
    return tl.inline_asm_elementwise("{ .reg .b64 d; mul.wide.u32 d, $2, 0xD256D193; mov.b64 {$1, $0}, d; }",
        "=r,=r,r", [a], dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1)
""", interpreted="""
@triton.jit
def _products(a):
    m = tl.full([], 0xD256D193, tl.uint32)
    return tl.umulhi(a, m), a * m
""")
helper("_random_bits", """
@triton.jit
def _random_bits(seed, counter, wide: tl.constexpr):
    a = counter.to(tl.uint32)
    b = (counter >> 32).to(tl.uint32) + (seed >> 32).to(tl.uint32)
    key = seed.to(tl.uint32)
    w = tl.full([], 0x9E3779B9, tl.uint32)
    for _ in tl.static_range(10):
        high, low = _products(a)
        a = high ^ key ^ b
        b = low
        key = key + w
    if wide:
        return ((b.to(tl.uint64) << 32) | a.to(tl.uint64)).to(tl.int64, bitcast=True)
    else:
        return a.to(tl.int32, bitcast=True)
""", ("_products",))


@op("random_bits")
def _random_bits(c: Context, seed: str, counter: str) -> str:
    return f"{c.helper('_random_bits')}({seed}, {counter}, {c.dtype is torch.int64})"


# rounding


def _rounding(name: str) -> Callable:
    return lambda c, a: f"tl.{name}({a})" if c.dtype.is_floating_point else a


OPS["floor"], OPS["ceil"] = _rounding("floor"), _rounding("ceil")


@op("trunc")
def _trunc(c: Context, a: str) -> str:
    return f"tl.where({a} < 0, tl.ceil({a}), tl.floor({a}))" if c.dtype.is_floating_point else a


helper("_round_half_even", """
@triton.jit
def _round_half_even(x):
    low = tl.floor(x)
    rest = x - low
    half = low * 0.5
    up = (rest > 0.5) | ((rest == 0.5) & (half != tl.floor(half)))
    return tl.where(up, low + 1.0, low)
""")


@op("round")
def _round(c: Context, a: str) -> str:
    if not c.dtype.is_floating_point:
        return a
    return f"{c.helper('_round_half_even')}({a})" if c.interpret else c.device("rint", a)


# integer and float division

helper("_int_floor_div", """
@triton.jit
def _int_floor_div(a, b):
    q = a // b
    return tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)
""")
helper("_int_remainder", """
@triton.jit
def _int_remainder(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""")
helper("_fmod_interpreted", """
@triton.jit
def _fmod_interpreted(a, b):
    q = tl.abs(a) / tl.abs(b)
    r = tl.abs(a) - tl.floor(q) * tl.abs(b)
    r = tl.where((tl.abs(b) == float("inf")) & (tl.abs(a) < float("inf")), tl.abs(a), r)
    return tl.where(a < 0, -r, r)
""")
helper("_float_floor_div", """
@triton.jit
def _float_floor_div(a, b, m, exact):
    # m is fmod(a, b), exact is a / b
    q = (a - m) / b
    q = tl.where((m != 0) & ((b < 0) != (m < 0)), q - 1.0, q)
    f = tl.floor(q)
    f = tl.where(q - f > 0.5, f + 1.0, f)
    f = tl.where(q == 0, exact * 0.0, f)
    return tl.where(b == 0, exact, f)
""")
helper("_float_remainder", """
@triton.jit
def _float_remainder(m, b):
    # m is fmod(a, b)
    return tl.where((m != 0) & ((b < 0) != (m < 0)), m + b, m)
""")


def _float_mod(c: Context, a: str, b: str) -> str:
    return f"{c.helper('_fmod_interpreted')}({a}, {b})" if c.interpret else c.device("fmod", a, b)


@op("fmod")
def _fmod(c: Context, a: str, b: str) -> str:
    return _float_mod(c, a, b) if c.dtype.is_floating_point else f"{a} % {b}"


@op("remainder")
def _remainder(c: Context, a: str, b: str) -> str:
    if c.dtype.is_floating_point:
        return f"{c.helper('_float_remainder')}({_float_mod(c, a, b)}, {b})"
    return f"{a} % {b}" if c.dtype in types.UNSIGNED else f"{c.helper('_int_remainder')}({a}, {b})"


def _exact_div(c: Context, a: str, b: str) -> str:
    return f"tl.div_rn({a}, {b})" if c.dtype is torch.float32 else f"{a} / {b}"


@op("floor_div")
def _floor_div(c: Context, a: str, b: str) -> str:
    if c.dtype.is_floating_point:
        return f"{c.helper('_float_floor_div')}({a}, {b}, {_float_mod(c, a, b)}, {_exact_div(c, a, b)})"
    return f"{a} // {b}" if c.dtype in types.UNSIGNED else f"{c.helper('_int_floor_div')}({a}, {b})"


helper("_trunc", """
@triton.jit
def _trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""")


@op("trunc_div")
def _trunc_div(c: Context, a: str, b: str) -> str:
    return f"{c.helper('_trunc')}({_exact_div(c, a, b)})" if c.dtype.is_floating_point else f"{a} // {b}"


# bits and logic


@op("bitwise_not")
def _bitwise_not(c: Context, a: str) -> str:
    return f"{a} == 0" if c.dtype is torch.bool else f"~{a}"


def _truth(text: str, dtype: torch.dtype) -> str:
    return text if dtype is torch.bool else f"({text} != 0)"


@op("logical_not")
def _logical_not(c: Context, a: str) -> str:
    return f"{a} == 0"


def _logical(symbol: str) -> Callable:
    return lambda c, a, b: f"{_truth(a, c.args[0])} {symbol} {_truth(b, c.args[1])}"


OPS["logical_and"], OPS["logical_or"], OPS["logical_xor"] = _logical("&"), _logical("|"), _logical("^")


@op("shl")
def _shl(c: Context, a: str, b: str) -> str:
    n = types.bits(c.dtype)
    return f"tl.where(({b} < 0) | ({b} >= {n}), 0, {a} << tl.where(({b} < 0) | ({b} >= {n}), 0, {b}))"


@op("shr")
def _shr(c: Context, a: str, b: str) -> str:
    n = types.bits(c.dtype)
    return f"{a} >> tl.where(({b} < 0) | ({b} >= {n}), {n - 1}, {b})"


@op("isnan")
def _isnan(c: Context, a: str) -> str:
    return f"{a} != {a}"


@op("isinf")
def _isinf(c: Context, a: str) -> str:
    return f'tl.abs({a}) == float("inf")' if c.source.is_floating_point else f"{a} != {a}"


@op("isfinite")
def _isfinite(c: Context, a: str) -> str:
    return f'tl.abs({a}) < float("inf")' if c.source.is_floating_point else f"{a} == {a}"


def _as_bits(c: Context, a: str, dtype: torch.dtype) -> str:
    return f"{a}.to({'tl.int64' if dtype is torch.float64 else 'tl.int32'}, bitcast=True)"


@op("signbit")
def _signbit(c: Context, a: str) -> str:
    if c.source.is_floating_point:
        return f"{_as_bits(c, a, c.source)} < 0"
    return f"{a} != {a}" if c.source in types.UNSIGNED or c.source is torch.bool else f"{a} < 0"


@op("copysign")
def _copysign(c: Context, a: str, b: str) -> str:
    n = types.bits(c.dtype)
    low, high = f"{(1 << n - 1) - 1}", f"{-(1 << n - 1)}"
    return (
        f"(({_as_bits(c, a, c.dtype)} & {low}) | ({_as_bits(c, b, c.dtype)} & {high})).to({types.tl_dtype(c.dtype)}, "
        "bitcast=True)")


# exponentials and powers

# Single instructions. They flush subnormal results to zero; the plain forms spend four more instructions on those.
helper("_exp2_fast", """
@triton.jit
def _exp2_fast(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
""", interpreted="""
@triton.jit
def _exp2_fast(x):
    return tl.exp2(x)
""")
helper("_exp_fast", """
@triton.jit
def _exp_fast(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], dtype=tl.float32,
        is_pure=True, pack=1)
""", interpreted="""
@triton.jit
def _exp_fast(x):
    return tl.exp(x)
""")
helper("_rcp_fast", """
@triton.jit
def _rcp_fast(x):
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
""", interpreted="""
@triton.jit
def _rcp_fast(x):
    return 1.0 / x
""")


@op("exp")
def _exp(c: Context, a: str) -> str:
    if c.fast:
        return f"{c.helper('_exp_fast')}({a})"
    return f"tl.exp({a})" if c.interpret or c.dtype is torch.float64 else c.device("exp", a)


OPS["exp2"] = lambda c, a: f"tl.exp2({a})"
OPS["log"] = lambda c, a: f"tl.log({a})"
OPS["log2"] = lambda c, a: f"tl.log2({a})"
OPS["sin"] = lambda c, a: f"tl.sin({a})"
OPS["cos"] = lambda c, a: f"tl.cos({a})"
OPS["rsqrt"] = lambda c, a: f"1.0 / tl.sqrt({a})" if c.dtype is torch.float64 else f"tl.rsqrt({a})"


@op("log10")
def _log10(c: Context, a: str) -> str:
    return f"tl.log2({a}) * 0.30102999566398120" if c.interpret else c.device("log10", a)


@op("sqrt")
def _sqrt(c: Context, a: str) -> str:
    return f"tl.sqrt_rn({a})" if c.dtype is torch.float32 and not c.fast else f"tl.sqrt({a})"


helper("_expm1_interpreted", """
@triton.jit
def _expm1_interpreted(x):
    return tl.where(tl.abs(x) < 0.01, x * (1.0 + x * (0.5 + x * 0.16666666666666666)), tl.exp(x) - 1.0)
""")
helper("_log1p_interpreted", """
@triton.jit
def _log1p_interpreted(x):
    return tl.where(tl.abs(x) < 0.01, x * (1.0 - x * (0.5 - x * (0.3333333333333333 - x * 0.25))), tl.log(1.0 + x))
""")


@op("expm1")
def _expm1(c: Context, a: str) -> str:
    return f"{c.helper('_expm1_interpreted')}({a})" if c.interpret else c.device("expm1", a)


@op("log1p")
def _log1p(c: Context, a: str) -> str:
    return f"{c.helper('_log1p_interpreted')}({a})" if c.interpret else c.device("log1p", a)


@op("sigmoid")
def _sigmoid(c: Context, a: str) -> str:
    if c.fast or c.rounded:  # right to two units in the last place, and so is what it leaves of 1
        return f"{c.helper('_rcp_fast')}(1.0 + {c.helper('_exp_fast')}(-{a}))"
    if c.dtype is torch.float64 or c.interpret:
        return f"1.0 / (1.0 + tl.exp(-{a}))"
    return f"{c.helper('_reciprocal')}(1.0 + {c.device('exp', '-' + a)})"


# tanh(x) = 1 - 2 / (exp(2x) + 1), which cancels near 0: there the odd Taylor series up to x^9 (|x| < 0.25: relative
# error 1e-8).
helper("_tanh_absolute", """
@triton.jit
def _tanh_absolute(x):
    return 1.0 - 2.0 * _rcp_fast(_exp_fast(2.0 * x) + 1.0)
""", ("_exp_fast", "_rcp_fast"))
helper("_tanh", """
@triton.jit
def _tanh(x):
    s = x * x
    small = x * (1.0 + s * (-0.33333333333 + s * (0.13333333333 + s * (-0.05396825397 + s * 0.02186948854))))
    return tl.where(s < 0.0625, small, _tanh_absolute(x))
""", ("_tanh_absolute",))

@op("tanh")
def _tanh(c: Context, a: str) -> str:
    if c.dtype is torch.float64 and not c.interpret:
        return c.device("tanh", a)
    return f"{c.helper('_tanh')}({a})"


OPS["erf"] = lambda c, a: f"tl.erf({a})"


# The logarithm of the distribution's tail as a polynomial (fitted by reweighted least squares over 0 .. 5.5, where the
# tail's relative error is 6e-6, and falling for good beyond): one exponential, and no quotient as in _erf_absolute.
_TAIL = (-0.9999954655929904, -1.1512468329558871, -0.45848051137457385, -0.053937844379419925, 0.008493757180161928,
         -0.000926029130330634, 6.090420103529593e-05, -1.7934571210648957e-06)
_tail = repr(_TAIL[-1])
for _coefficient in _TAIL[-2::-1]:
    _tail = f"tl.fma({_tail}, a, {_coefficient!r})"
helper("_normal_cdf_fast", f"""
@triton.jit
def _normal_cdf_fast(x):
    a = tl.abs(x)
    tail = _exp2_fast({_tail})
    return tl.where(x < 0.0, tail, 1.0 - tail)
""", ("_exp2_fast",))


@op("normal_cdf")
def _normal_cdf(c: Context, a: str) -> str:
    if c.fast:
        return f"{c.helper('_normal_cdf_fast')}({a})"
    root, half = types.constant(math.sqrt(0.5), c.dtype), types.constant(0.5, c.dtype)
    return f"tl.erf({a} * {root}) * {half} + {half}"


# The same values, which the compiler cannot know to be the same (the z coordinate of a program is always 0): packed
# halves stay packed in registers across a reduction, instead of the float32 values made of them.
helper("_again", """
@triton.jit
def _again(x):
    return tl.inline_asm_elementwise("{ .reg .b32 z; mov.u32 z, %ctaid.z; xor.b32 $0, $1, z; }", "=r,r", [x],
        dtype=x.dtype, is_pure=True, pack=2)
""", interpreted="""
@triton.jit
def _again(x):
    return x
""")
helper("_int_pow", """
@triton.jit
def _int_pow(a, b):
    result = a * 0 + b * 0 + 1
    base = a + b * 0
    left = tl.where(b < 0, 0, b) + a * 0
    for _ in range(64):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    odd = (b & 1) != 0
    inverse = tl.where(a == 1, 1, tl.where(a == -1, tl.where(odd, -1, 1), 0))
    return tl.where(b < 0, inverse.to(result.dtype), result)
""")


@op("pow")
def _pow(c: Context, a: str, b: str) -> str:
    if not c.dtype.is_floating_point:
        return f"{c.helper('_int_pow')}({a}, {b})"
    return f"tl.exp2({b} * tl.log2({a}))" if c.interpret else c.device("pow", a, b)


# The modified Bessel function of order zero, as in C++: e is exp(|x|).
for _kind, _numbers in FORMATS.items():
    _near, _far = (_chain(_numbers[name], x) for name, x in (("I0_NEAR", "t"), ("I0_FAR", "u")))
    helper(f"_i0_{_kind}", f"""
@triton.jit
def _i0_{_kind}(x, e):
    a = tl.abs(x)
    t = a * 0.25 - 1.0
    u = 16.0 / a - 1.0
    near = {_near}
    far = {_far}
    return tl.where(a <= 8.0, e * near, e * far / tl.sqrt(a))
""")


@op("i0")
def _i0(c: Context, a: str) -> str:
    name = c.helper("_i0_f64" if c.dtype is torch.float64 else "_i0_f32")
    return f"{name}({a}, {_exp(c, f'tl.abs({a})')})"


helper("_some", """
@triton.jit
def _some(condition):
    # whether it holds anywhere in a block, whose other values cost nothing then
    if len(condition.shape) == 0:
        return condition
    else:
        return tl.max(condition.to(tl.int32), None) != 0
""")
# As in C++, in the type itself.
helper("_digamma", """
@triton.jit
def _digamma_above(a):
    b = tl.minimum(a, 1e8)
    q = b * (b + 7.0)
    steps = (b + b + 7.0) * ((q + q + 6.0) / (q * (q + 6.0)) + (q + q + 22.0) / ((q + 10.0) * (q + 12.0)))
    r = 1.0 / (a + 8.0)
    s = r * r
    series = s * (0.08333333333333333 - s * (0.008333333333333333 - s * (0.003968253968253968 - s * (
        0.004166666666666667 - s * (0.007575757575757576 - s * (0.021092796092796094 - s * 0.08333333333333333))))))
    return tl.log(a + 8.0) - 0.5 * r - series - steps


@triton.jit
def _digamma(x):
    result = _digamma_above(x)
    if _some(x <= 0.0):
        near = x - tl.floor(x + 0.5)
        t = near * 3.141592653589793
        other = _digamma_above(1.0 - x) - 3.141592653589793 * tl.cos(t) / tl.sin(t)
        other = tl.where(near == 0.0, float("nan"), other)
        result = tl.where(x < 0.0, other, tl.where(x == 0.0, -1.0 / x, result))
    return tl.where(x == float("inf"), x, result)
""", ("_some",))


@op("digamma")
def _digamma(c: Context, a: str) -> str:
    return f"{c.helper('_digamma')}({a})"


def _library(name: str) -> Callable:
    return lambda c, *args: c.device(name, *args)


for _name in "tan asin acos atan sinh cosh asinh acosh atanh erfc erfinv lgamma atan2 hypot".split():
    OPS[_name] = _library(_name)
