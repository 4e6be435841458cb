"""The C++ form of the 8-bit floating point types: conversions to and from float, in integer arithmetic that g++ turns
into vector code, rounded to nearest even as eager's are."""

from __future__ import annotations

import torch

from jit.devices.float8 import saturates

# dtype -> (name in C++, bits of the mantissa, bias of the exponent, the code of what is too large, that of NaN where it
# is another or None)
FORMATS = {
    torch.float8_e4m3fn: ("f8e4m3fn", 3, 7, 0x7F, 0x7F),
    torch.float8_e5m2: ("f8e5m2", 2, 15, 0x7C, 0x7F),
    torch.float8_e4m3fnuz: ("f8e4m3fnuz", 3, 8, 0x80, None),
    torch.float8_e5m2fnuz: ("f8e5m2fnuz", 2, 16, 0x80, None),
}


def _conversions(name: str, mantissa: int, bias: int, over: int, nan: int | None) -> str:
    shift, one_zero = 23 - mantissa, over == 0x80  # the sign of zero stands for NaN: there is one zero
    # A float in whose last place the smallest numbers are counted.
    magic = f"0x1p{1 - bias - mantissa + 23}f"
    lines = [
        f"typedef uint8_t {name};",
        f"template <int OVER> static inline {name} round_{name}(float x) {{",
        "    const uint32_t u = bits(x), a = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;",
        f"    const uint32_t normal = ((a + {(1 << shift - 1) - 1:#x}u + ((a >> {shift}) & 1u)) >> {shift}) - "
        f"{(127 - bias) << mantissa:#x}u;",
        f"    const uint32_t small = bits(from_bits(a) + {magic}) - bits({magic});",
        f"    uint32_t h = a < {(128 - bias) << 23:#x}u ? small : normal;",
        f"    h = h >= {over:#x}u ? OVER : h;",
        *([f"    h = a > 0x7f800000u ? {nan:#x}u : h;"] if nan is not None else []),
        f"    return ({name})({'h == 0 ? 0 : ' if one_zero else ''}h | sign);",
        "}",
        f"static inline {name} to_{name}(float x) {{ return round_{name}<{over:#x}>(x); }}",
        f"static inline {name} to_largest_{name}(float x) {{ return round_{name}<{over - 1:#x}>(x); }}",
        f"static inline float from_{name}({name} x) {{",
        f"    const uint32_t a = ((uint32_t)x & 0x7fu) << {shift}, sign = ((uint32_t)x & 0x80u) << 24;",
        f"    const uint32_t finite = bits(from_bits(a) * 0x1p{127 - bias}f);",
    ]
    if one_zero:
        lines.append("    return from_bits(x == 0x80 ? 0x7fc00000u : finite | sign);")
    elif over == nan:
        lines.append(f"    return from_bits(((x & 0x7f) == {nan:#x} ? 0x7fc00000u : finite) | sign);")
    else:
        lines.append(f"    return from_bits((a >= {over << shift:#x}u ? a | 0x7f800000u : finite) | sign);")
    return "\n".join([*lines, "}"]) + "\n"


NAMES = {dtype: name for dtype, (name, *_) in FORMATS.items()}
HELPERS = {name: (("bits",), _conversions(name, *rest)) for name, *rest in FORMATS.values()}


def rounded(text: str, dtype: torch.dtype) -> str:
    """A float as such a type, as eager converts it: what is too large becomes infinity or NaN, or the largest number
    in those versions of PyTorch that have it so."""
    largest = dtype is torch.float8_e4m3fn and saturates()
    return f"to_{'largest_' * largest}{NAMES[dtype]}({text})"
