"""How torch dtypes are spelled in Triton text and in kernel signatures."""

from __future__ import annotations

import math

import torch

from ...errors import Unsupported

_TL = {
    torch.float64: "tl.float64", torch.float32: "tl.float32", torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float8_e4m3fn: "tl.float8e4nv", torch.float8_e5m2: "tl.float8e5",
    torch.int64: "tl.int64", torch.int32: "tl.int32", torch.int16: "tl.int16",
    torch.int8: "tl.int8", torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16", torch.uint32: "tl.uint32", torch.uint64: "tl.uint64", torch.bool: "tl.int1",
}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
HALF = (torch.float16, torch.bfloat16, *FLOAT8)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def tl_dtype(dtype: torch.dtype) -> str:
    """The name of a dtype in Triton text. Raises Unsupported for complex and quantised types."""
    if dtype not in _TL:
        raise Unsupported(f"{dtype} in a GPU kernel", hint="complex tensors run through ATen", kind="kernel")
    return _TL[dtype]


def pointer(dtype: torch.dtype) -> str:
    """The type of a pointer argument in a kernel signature. Raises Unsupported as ``tl_dtype`` does."""
    name = tl_dtype(dtype).removeprefix("tl.")
    for long, short in (("bfloat", "bf"), ("float", "fp"), ("uint", "u"), ("int", "i")):
        name = name.replace(long, short)
    return "*" + name


def bits(dtype: torch.dtype) -> int:
    return dtype.itemsize * 8


def literal(value: float | int, dtype: torch.dtype) -> str:
    """A Python literal of ``value`` converted to ``dtype``, as it may stand in Triton text."""
    if dtype is torch.bool:
        return "True" if value else "False"
    if dtype.is_floating_point:
        value = float(value)
        if value != value:
            return 'float("nan")'
        if value in (float("inf"), float("-inf")):
            return 'float("inf")' if value > 0 else 'float("-inf")'
        return repr(value)
    n, value = bits(dtype), int(value)
    value %= 1 << n  # as a conversion in C does
    return repr(value - (1 << n) if dtype.is_signed and value >> n - 1 else value)


def constant(value: float | int, dtype: torch.dtype) -> str:
    """Triton text of a scalar constant of that type. Triton drops the sign of a zero, so that one is given by its
    bits."""
    if dtype in (torch.float32, torch.float64) and value == 0 and math.copysign(1.0, value) < 0:
        n = bits(dtype)
        return f"tl.full([], {-(1 << n - 1)}, tl.int{n}).to({tl_dtype(dtype)}, bitcast=True)"
    return f"tl.full([], {literal(value, dtype)}, {tl_dtype(dtype)})"
