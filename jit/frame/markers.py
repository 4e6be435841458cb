"""Functions that a program calls to talk to the compiler; what they mean in captured code is in
``library/interpreter.py``."""

from __future__ import annotations


def is_compiling() -> bool:
    """True inside captured code, False in eager."""
    return False


def graph_break(msg: str = "") -> None:
    """End the captured region here; nothing in eager."""
