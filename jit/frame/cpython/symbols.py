"""What numbers in bytecode stand for, the same on every version that has them."""

from __future__ import annotations

# CALL_INTRINSIC_1 and CALL_INTRINSIC_2 of 3.12 that have an op of their own on 3.11, with the same stack layout.
INTRINSIC_OPS = {
    "UNARY_POSITIVE": "UNARY_POSITIVE",
    "LIST_TO_TUPLE": "LIST_TO_TUPLE",
    "ASYNC_GEN_WRAP": "ASYNC_GEN_WRAP",
    "PREP_RERAISE_STAR": "PREP_RERAISE_STAR",
}

SUBSCRIPT = ("[]", False)
_SYMBOLS = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
BINARY_OPERATORS = (*((s, False) for s in _SYMBOLS), *((s, True) for s in _SYMBOLS), SUBSCRIPT)
"""(symbol, in place) by BINARY_OP's number; a subscript is one from 3.14 on."""
COMPARE_SYMBOLS = ("<", "<=", "==", "!=", ">", ">=")
FUNCTION_PARTS = ("defaults", "kwdefaults", "annotations", "closure", "annotate")
"""By the bits of MAKE_FUNCTION and SET_FUNCTION_ATTRIBUTE."""
CONVERSIONS = (None, "str", "repr", "ascii")
