"""What autograd would record of an operation, and what a captured graph has to be differentiated for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

from jit.graph.ir import Node
from jit.graph.op_info import op_info

if TYPE_CHECKING:
    from jit.graph.ir import TensorType


def result_is_differentiable(name: str, index: int) -> bool:
    """Whether eager gives result number ``index`` of the operation a gradient."""
    known = op_info(name).differentiable
    return known is None or index >= len(known) or known[index]


def _has_gradient(t: TensorType | tuple[TensorType, ...]) -> bool:
    """Whether values of a type, such as no comparison's, have gradients."""
    return type(t) is tuple or t.dtype.is_floating_point or t.dtype.is_complex


class Recording:
    """What autograd would record of one operation: whether it does (``enabled``), and the nodes that ``carry`` a
    gradient into it. ``given``: the nodes of all its arguments. ``asked``: a function that says whether eager gives the
    result a history where these nodes, and no others, require grad."""

    def __init__(self, enabled: bool, carry: set, given: Sequence[Node] = (), asked: Callable | None = None) -> None:
        self.enabled, self.carry, self.given, self.asked = enabled, carry, carry.union(given), asked

    @functools.cached_property
    def oldest(self) -> int:
        return min(n.id for n in self.carry)

    def missing(self, reached: set) -> list:
        """The other carrying nodes for whose sake eager gives the result a history too: their values were not
        needed."""
        if not self.enabled or self.asked is None or len(reached) == len(self.carry):
            return []
        return sorted((n for n in self.carry - reached if self.asked({n})), key=lambda n: n.id)

    def reached(self, node: Node) -> set:
        """The carrying nodes to which a gradient of ``node`` leads."""
        found, seen, stack = set(), set(), [node]
        while stack:
            n = stack.pop()
            if n in self.carry:
                found.add(n)
                if len(found) == len(self.carry):
                    break
            elif (n.id > self.oldest and n.op != "detach" and n not in seen and n not in self.given
                  and _has_gradient(n.type)):
                seen.add(n)
                stack.extend(n.inputs)
        return found


def positions(bits: int) -> tuple:
    """Of the bits that are set."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Gradient:
    """Which inputs (``wrt``) and returned outputs (``tangents``) of a graph have gradients, by position. The results
    ``views`` are views of inputs or of other results; autograd takes their gradient there. The inputs ``changed`` are
    written when the graph has run: what is kept of them for the backward has to be a copy. So it has for ``fragile``
    ones, which eager does not keep, and the program may write. ``watched``, ``loose`` and
    ``unsaid``: see saved_tensors.held_by_caller. ``several``: those of ``views`` that came from an operation which gave
    several views."""

    wrt: tuple
    tangents: tuple
    views: tuple = ()
    changed: tuple = ()
    fragile: tuple = ()
    watched: tuple = ()
    loose: tuple = ()
    unsaid: tuple = ()
    several: tuple = ()
