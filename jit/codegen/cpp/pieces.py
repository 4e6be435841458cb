"""The loop over a vector axis in pieces, in each of which comparisons of positions are known.

``cat``, ``pad``, ``roll`` and triangles choose by the position where an element is read from. A loop that asks at each
element has masked loads, which processors have for some sizes of elements, strides and conditions only; where none is
at hand, g++ does not vectorise the loop. Between two positions at which a comparison changes its answer, it is a
constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...graph import dims
from ..comparisons import below_zero
from .layout import hint

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..loops import Kernel
    from .layout import Layout

MOST = 3  # positions at which some comparison changes; a copy of the loop's body is made for each
LONGEST_BODY = 80  # statements
FEWEST = 32  # elements that are worth it

@dataclass(frozen=True)
class Cut:
    """A comparison that is ``before`` at positions below ``at``, and its opposite from there on."""

    at: IntExpr
    before: bool


def cuts(kernel: Kernel, layout: Layout, statements: list[int]) -> dict[int, Cut]:
    """The comparisons among statements that change once along the vector axis: their numbers and where. Empty where
    pieces do not pay, or where it is not known while compiling in which order the positions come."""
    body, vector = kernel.body, layout.vector
    masked = any(body[i].accessed and body[i].mask for i in statements)
    if not masked or len(statements) > LONGEST_BODY or hint(vector.extent) < FEWEST:
        return {}
    found = {}
    for i in statements:
        below = below_zero(body[i].prim) if body[i].prim else None
        if below is None or body[i].dst in layout.kept or body[i].dst in layout.arrays:
            continue
        sides = [_position(kernel, a) for a in body[i].uses]
        if len(sides) == 2 and None not in sides:
            sign, more = below
            cut = _solved((sides[0] - sides[1]) * sign + more, vector.name)
            if cut is not None:
                found[i] = cut
    places = distinct(found)
    if len(places) > MOST or len(places) > 1 and any(type(p) is not int for p in places):
        return {}
    return found


def _position(kernel: Kernel, value: str) -> IntExpr | None:
    """An integer value as an expression of axes and sizes, where it is one."""
    s = kernel.definition.get(value)
    if s is None:
        return None
    if type(s.constant) is int:
        return s.constant
    e = s.expression
    if e is None or s.accessed or any(n in kernel.definition for n in s.symbols):
        return None
    return e


def _solved(e: IntExpr, vector: str) -> Cut | None:
    """Where ``e < 0`` changes, of an expression that goes up or down by one along the vector axis."""
    slope = dims.coefficient(e, vector)
    if type(slope) is not int or slope not in (1, -1):
        return None
    rest = dims.subst(e, {vector: 0})
    return Cut(-rest, True) if slope == 1 else Cut(rest + 1, False)


def distinct(found: dict[int, Cut]) -> list:
    """The positions of cuts, each once and in order."""
    places: list = []
    for cut in found.values():
        if not any(dims.structurally_equal(cut.at, p) for p in places):
            places.append(cut.at)
    return sorted(places) if len(places) > 1 else places


def answers(found: dict[int, Cut], places: list, piece: int) -> dict[int, bool]:
    """What each comparison is in a piece, counted from 0."""
    return {i: cut.before == any(dims.structurally_equal(cut.at, p) for p in places[piece:])
            for i, cut in found.items()}
