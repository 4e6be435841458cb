"""Sizes and indices as source text, of Python and of C."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jit.graph.dims import Atom, IntExpr


def render(e: IntExpr, style: str = "c", names: dict | None = None) -> str:
    """``e`` as source text. ``names`` renames symbols.

    Style ``py`` gives ``//``, ``%``, ``max`` and ``min``; style ``c`` gives ``/``, ``%`` and conditionals, with a
    corrected form where a dividend is not provably non-negative, so that both have floor semantics.
    """
    if isinstance(e, int):
        return str(e)
    parts = []
    for mono, c in sorted(e.terms.items(), key=lambda item: (len(item[0]), [a.key for a in item[0]])):
        text = "*".join(_render_atom(a, style, names) for a in mono)
        if c == 1:
            parts.append(("+", text))
        elif c == -1:
            parts.append(("-", text))
        else:
            parts.append(("+" if c > 0 else "-", f"{text}*{abs(c)}"))
    if e.const:
        parts.append(("+" if e.const > 0 else "-", str(abs(e.const))))
    parts.sort(key=lambda p: p[0] == "-")  # a positive term first, so that the text rarely starts with a minus
    sign, text = parts[0]
    text = text if sign == "+" else "-" + text
    for sign, part in parts[1:]:
        text += f" {sign} {part}"
    return text


def _render_atom(atom: Atom, style: str, names: dict[str, str] | None) -> str:
    if atom.kind == "sym":
        return names.get(atom.name, atom.name) if names else atom.name
    a, b = _operand(atom.a, style, names), _operand(atom.b, style, names)
    if atom.kind in ("max", "min"):
        if style == "py":
            return f"{atom.kind}({render(atom.a, style, names)}, {render(atom.b, style, names)})"
        return f"({a} {'>' if atom.kind == 'max' else '<'} {b} ? {a} : {b})"
    if style == "py":
        return f"({a} {atom.kind} {b})"
    if atom.a >= 0 if isinstance(atom.a, int) else atom.a.is_nonnegative:
        return f"({a} {'/' if atom.kind == '//' else '%'} {b})"
    if atom.kind == "//":
        return f"({a} >= 0 ? {a} / {b} : -((-{a} + {b} - 1) / {b}))"
    return f"(({a} % {b} + {b}) % {b})"


def _operand(e: IntExpr, style: str, names: dict[str, str] | None) -> str:
    text = render(e, style, names)
    plain = e >= 0 if isinstance(e, int) else e.single_atom is not None
    return text if plain else f"({text})"
