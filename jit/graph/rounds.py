"""A loop as one step of a graph: ``jit::run_loop`` (``runtime.rounds``). What a round computes is a graph apart.

The round is traced on stand-ins for what is carried (``start``), into a list of nodes of its own (``tracing``), out of
which the part behind its results is cut (``record``).
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
from jit.graph.ir import CHECKED, Graph, Node, Part, ancestors, same_ints
from jit.graph.nested import of_kind, several
from jit.graph.passes.dce import mark_checked
from jit.graph.polynomials import symbols_of
from jit.graph.prim_info import info
from jit.graph.printing import unbound_symbols
from jit.runtime import rounds

if TYPE_CHECKING:
    from jit.graph.handles import TensorHandle
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
    b = tracer.builder
    return tracer.fresh(b.aten("jit::carried", "", (handle.node,), layout.empty_like(handle.type), impure=True))


def record(tracer: Tracer, made: list[Node], carried: Sequence[TensorHandle], started: Sequence[TensorHandle],
           results: Sequence[TensorHandle], more: TensorHandle, first: TensorHandle) -> list[Node]:
    """The loop's results. ``made``: what was traced of a round, from what is ``started`` with in the place of what is
    ``carried`` to ``results`` and whether there is ``more``; ``first``: whether there is a first round."""
    b = tracer.builder
    starts, ends = [h.node for h in started], [h.node for h in results]
    if any(n.impure and n not in starts for n in made):
        raise Refused("does more than to compute")
    for before, after in zip(starts, ends, strict=True):
        if before.type != after.type:
            raise Refused("does not carry on tensors of the types and strides that it is given")
    mark_checked(made)
    inside, known = set(made), set(starts)
    ends.append(more.node)
    found = ancestors(ends, frozenset(starts))
    # What was there before is given to each round; constants are made anew.
    others = [n for n in found if n not in known and (n.op == "input" or n not in inside) and not _is_constant(n)]
    others.sort(key=lambda n: n.id)
    if any(n.several for n in others):
        raise Refused("reads several results of one operation")
    inputs = [*starts, *others]
    around = Graph([], sorted({*found, *inputs}, key=lambda n: n.id), [], tracer.env)
    part = Part(around, inputs, ends)
    if any(n.attrs.get(CHECKED) and n not in part.needed for n in made):
        raise Refused("may raise for what nobody reads")
    round_ = part.run()
    if any(not backend(t.device).host for n in round_.nodes for t in n.types if t is not None):
        raise Refused("is not computed on the CPU")
    symbols = {a.name: of_atom(a) for d in of_kind(Dim, ([n.attrs for n in round_.nodes],
                                                        [(t.shape, t.strides) for n in round_.nodes for t in n.types
                                                         if t is not None])) for a in symbols_of(d)}
    integers = unbound_symbols(round_)
    name = rounds.define(round_, compile_python(round_), integers)
    dense = [h.node if same_ints(h.type.strides, n.type.strides) else b.clone(h.node) for h, n in zip(carried, starts)]
    args = (name, first.node, tuple(dense), tuple(others), tuple([symbols[n] for n in integers]))
    return list(several(b.aten(rounds.OPERATOR, "", args, tuple([n.type for n in starts]))))


def _is_constant(n: Node) -> bool:
    return n.op != "input" and info(n.op).is_source and not n.inputs and not n.impure


def names_in(graph: Graph) -> list[rounds.RoundName]:
    """The rounds that a graph calls and that are not compiled yet."""
    return [n.attrs["args"][0] for n in graph.nodes if n.op == "aten_call" and n.attrs["target"] == rounds.OPERATOR
            and not n.attrs["args"][0].compiled]
