"""Gradients of collectives, which communicate in turn: those that PyTorch registers for its functional operators, and
those of tensors that are spread over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.graph import collectives
from jit.graph.autodiff.rules import UNDEFINED, aten_vjp, vjp

if TYPE_CHECKING:
    from typing import Callable

    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.ir import Node


def _rule(op: str, back: str, arguments: Callable) -> None:
    """The gradient of a collective by another one, which is given ``arguments(*those of the first one)``; and that of
    the form with several tensors by that one's."""

    @aten_vjp(collectives.SPACE + op)
    def gradient(b: GradBuilder, out: Node, g: Node, given: Node, *args: object) -> tuple[Callable]:
        started = collectives.record(b, back, g, *arguments(*args))
        return (collectives.wait(b, started),)

    @aten_vjp(collectives.SPACE + op + collectives.COALESCED)
    def of_several(b: GradBuilder, out: Node, given_back: tuple, given: tuple[Node, ...], *args: object) -> tuple:
        whole = tuple(b.zeros(out.type[k]) if g is None else g for k, g in enumerate(given_back))
        started = collectives.record(b, back + collectives.COALESCED, whole, *arguments(*args))
        b.aten_results(tuple(started))
        return (tuple(collectives.wait(b, n) for n in started),)


_rule("all_reduce", "all_reduce", lambda how, group: (how, group))
_rule("all_gather_into_tensor", "reduce_scatter_tensor", lambda count, group: ("sum", count, group))
_rule("reduce_scatter_tensor", "all_gather_into_tensor", lambda how, count, group: (count, group))


@aten_vjp(collectives.SPACE + "all_to_all_single")
def exchanged(b: GradBuilder, out: Node, g: Node, given: Node, received: tuple, sent: tuple, group: str) -> tuple:
    return (collectives.wait(b, collectives.record(b, "all_to_all_single", g, sent, received, group)),)


@aten_vjp(collectives.WAIT)
def waited(b: GradBuilder, out: Node, g: Node, given: Node) -> tuple[Node]:
    return (g,)


@vjp("redistributed")
def redistributed(b: GradBuilder, n: Node, g: Node) -> tuple:
    source, target, group = n.attrs["way"]
    factor = n.attrs["factor"]
    back = collectives.moved(b, g if factor is None else b.mul(g, factor), source, target, group)
    return UNDEFINED, back
