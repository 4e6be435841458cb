"""A loop as one step of a graph: ``jit::run_loop``, or ``jit::run_scan`` over the first dimension of tensors
(``runtime.rounds``). What a round computes is a graph apart.

The round is traced on stand-ins for what is carried (``start``), into a list of nodes of its own (``tracing``), out of
which the part behind its results is cut (``_round``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.dims import Dim, of_atom
from jit.graph.interpret import compile_python
from jit.graph.ir import CHECKED, Graph, Node, Part, TensorType, ancestors, same_ints
from jit.graph.nested import of_kind, several
from jit.graph.passes.dce import mark_checked
from jit.graph.polynomials import symbols_of
from jit.graph.prim_info import info
from jit.graph.printing import unbound_symbols
from jit.runtime import rounds

if TYPE_CHECKING:
    from jit.graph.handles import TensorHandle
    from jit.graph.shape_env import ShapeEnv
    from jit.graph.tracer import Tracer


class Refused(Unsupported):
    """What is traced cannot be a round."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a round of a loop {why}", kind="data-dependent-branch")


@contextlib.contextmanager
def tracing(tracer: Tracer) -> Iterator[list[Node]]:
    """What is traced inside goes into the list that this gives, but for inputs of the graph."""
    own: list[Node] = []
    with tracer.journal.temporarily(tracer.builder, "nodes", own), tracer.journal.temporarily(tracer, "events", []):
        yield own
    tracer.builder.nodes.extend([n for n in own if n.op == "input"])


def start(tracer: Tracer, handle: TensorHandle) -> TensorHandle:
    """What a round starts from, in the place of what is carried: nothing is known of its values."""
    return _stand_in(tracer, handle, layout.empty_like(handle.type))


def start_part(tracer: Tracer, handle: TensorHandle) -> TensorHandle:
    """The same for a step's part of a tensor, along its first dimension."""
    t = handle.type
    return _stand_in(tracer, handle, t.replace(shape=t.shape[1:], strides=t.strides[1:]))


def _stand_in(tracer: Tracer, handle: TensorHandle, type_: TensorType) -> TensorHandle:
    return tracer.fresh(tracer.builder.aten("jit::carried", "", (handle.node,), type_, impure=True))


def record_loop(tracer: Tracer, made: list[Node], carried: Sequence[TensorHandle], started: Sequence[TensorHandle],
                results: Sequence[TensorHandle], more: TensorHandle, first: TensorHandle) -> list[Node]:
    """The loop's results. ``made``: what was traced of a round, from what is ``started`` with in the place of what is
    ``carried`` to ``results`` and whether there is ``more``; ``first``: whether there is a first round."""
    starts = [h.node for h in started]
    name, others, numbers = _round(made, starts, [*_carried_on(starts, results), more.node], tracer.env)
    args = (name, first.node, _dense(tracer, carried, starts), others, numbers)
    return list(several(tracer.builder.aten(rounds.LOOP, "", args, tuple([n.type for n in starts]))))


def record_scan(tracer: Tracer, made: list[Node], reverse: bool, carried: Sequence[TensorHandle],
                started: Sequence[TensorHandle], xs: Sequence[TensorHandle], parts: Sequence[TensorHandle],
                results: Sequence[TensorHandle], ys: Sequence[TensorHandle]) -> list[Node]:
    """What a scan carries on at last, then its results. The same, of ``parts`` of ``xs``, along their first dimensions,
    with ``ys`` as the results of a step."""
    starts = [h.node for h in started]
    name, others, numbers = _round(made, [*starts, *[h.node for h in parts]],
                                   [*_carried_on(starts, results), *[h.node for h in ys]], tracer.env)
    args = (name, reverse, _dense(tracer, carried, starts), tuple([h.node for h in xs]), others, numbers)
    steps = xs[0].shape[0]
    stacked = [TensorType.contiguous((steps, *h.shape), h.dtype, h.device) for h in ys]
    return list(several(tracer.builder.aten(rounds.SCAN, "", args, (*[n.type for n in starts], *stacked))))


def _carried_on(starts: Sequence[Node], results: Sequence[TensorHandle]) -> list[Node]:
    ends = [h.node for h in results]
    if any(before.type != after.type for before, after in zip(starts, ends, strict=True)):
        raise Refused("does not carry on tensors of the types and strides that it is given")
    return ends


def _dense(tracer: Tracer, carried: Sequence[TensorHandle], starts: Sequence[Node]) -> tuple[Node, ...]:
    """What is carried, laid out as rounds take it."""
    return tuple([h.node if same_ints(h.type.strides, n.type.strides) else tracer.builder.clone(h.node)
                  for h, n in zip(carried, starts)])


def _round(made: list[Node], starts: list[Node], ends: list[Node], env: ShapeEnv) -> tuple:
    """(the name of a round from ``starts`` to ``ends``, the other nodes that it reads, its integers)"""
    if any(n.impure and n not in starts for n in made):
        raise Refused("does more than to compute")
    mark_checked(made)
    inside, known = set(made), set(starts)
    found = ancestors(ends, frozenset(starts))
    # What was there before is given to each round; constants are made anew.
    others = [n for n in found if n not in known and (n.op == "input" or n not in inside) and not _is_constant(n)]
    others.sort(key=lambda n: n.id)
    if any(n.several for n in others):
        raise Refused("reads several results of one operation")
    inputs = [*starts, *others]
    part = Part(Graph([], sorted({*found, *inputs}, key=lambda n: n.id), [], env), inputs, ends)
    if any(n.attrs.get(CHECKED) and n not in part.needed for n in made):
        raise Refused("may raise for what nobody reads")
    graph = part.run()
    types = [t for n in graph.nodes for t in n.types if t is not None]
    if not all(backend(t.device).host for t in types):
        raise Refused("is not computed on the CPU")
    held = ([n.attrs for n in graph.nodes], [(t.shape, t.strides) for t in types])
    symbols = {a.name: of_atom(a) for d in of_kind(Dim, held) for a in symbols_of(d)}
    integers = unbound_symbols(graph)
    name = rounds.define(graph, compile_python(graph), integers)
    return name, tuple(others), tuple([symbols[n] for n in integers])


def _is_constant(n: Node) -> bool:
    return n.op != "input" and info(n.op).is_source and not n.inputs and not n.impure


def names_in(graph: Graph) -> list[rounds.RoundName]:
    """The rounds that a graph calls and that are not compiled yet."""
    return [n.attrs["args"][0] for n in graph.nodes if n.op == "aten_call"
            and n.attrs["target"] in (rounds.LOOP, rounds.SCAN) and not n.attrs["args"][0].compiled]
