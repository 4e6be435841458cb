"""Sizes and indices as source text, of Python and of C."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr


def render(e: IntExpr, style: str = "c", names: dict | None = None) -> str:
    """``e`` as source text. ``names`` renames symbols.

    Style ``py`` gives ``//``, ``%``, ``max`` and ``min``; style ``c`` gives ``/``, ``%`` and conditionals, with a
    corrected form where a dividend is not provably non-negative, so that both have floor semantics.
    """
    if isinstance(e, int):
        return str(e)
    parts = []
    for mono, c in sorted(e.terms.items(), key=lambda item: (len(item[0]), [a.key for a in item[0]])):
        text = "*".join(a.text(style, names) for a in mono)
        parts.append(("+" if c > 0 else "-", text if abs(c) == 1 else f"{text}*{abs(c)}"))
    if e.const:
        parts.append(("+" if e.const > 0 else "-", str(abs(e.const))))
    parts.sort(key=lambda p: p[0] == "-")  # a positive term first, so that the text rarely starts with a minus
    sign, text = parts[0]
    text = text if sign == "+" else "-" + text
    for sign, part in parts[1:]:
        text += f" {sign} {part}"
    return text


def operand(e: IntExpr, style: str, names: dict[str, str] | None) -> str:
    """The same, in brackets where it is no number or single atom."""
    text = render(e, style, names)
    plain = e >= 0 if isinstance(e, int) else e.single_atom is not None
    return text if plain else f"({text})"
