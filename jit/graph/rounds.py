"""A loop as one step of a graph: ``jit::run_loop``, or ``jit::run_scan`` over the first dimension of tensors
(``runtime.rounds``). What a round computes is a graph apart. A branch is likewise: ``jit::run_branch``, with a graph
for each of its ways.

The round is traced on stand-ins for what is carried (``start``), into a list of nodes of its own (``tracing``), out of
which the part behind its results is cut (``_defined``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.dims import Dim, of_atom
from jit.graph.handles import TensorHandle, next_number
from jit.graph.interpret import compile_python
from jit.graph.ir import CHECKED, Graph, Node, Part, TensorType, ancestors, same_ints
from jit.graph.nested import of_kind, several
from jit.graph.passes.dce import mark_checked
from jit.graph.polynomials import symbols_of
from jit.graph.prim_info import info
from jit.graph.printing import unbound_symbols
from jit.runtime import rounds

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.shape_env import ShapeEnv
    from jit.graph.tracer import Tracer


_NAMING = (rounds.LOOP, rounds.SCAN, rounds.BRANCH)


class Refused(Unsupported):
    """What is traced cannot be a round.

    Args:
        reason: what is in the way, said of the round.
        cure: what the user can do about it; that of every branch by a value where it is left out.
    """

    def __init__(self, reason: str, cure: str = "") -> None:
        self.reason, self.cure = reason, cure
        super().__init__(f"a round of a loop, or a way of a branch, {reason}", cure, kind="data-dependent-branch")


def does_more(what: str = "") -> Refused:
    """The refusal of a round with effects. ``what``: the effect."""
    return Refused("does more than to compute" + (f" ({what})" if what else ""),
                   "return what the branch depends on, and do the rest after the compiled function: torch.where "
                   "chooses between tensors alone")


@contextlib.contextmanager
def tracing(tracer: Tracer, own: list[Node] | None = None) -> Iterator[list[Node]]:
    """What is traced inside goes into the list that this gives, a new one or ``own``, but for inputs of the graph."""
    if own is None:
        own = []
        tracer.journal.grows(own)  # what is tried inside and taken back leaves it too
    before, journal = len(own), tracer.journal
    mark, number = journal.checkpoint(), next_number()
    with (journal.temporarily(tracer.builder, "nodes", own), journal.temporarily(tracer, "events", []),
          journal.temporarily(tracer, "apart", True)):
        yield own
    tracer.builder.nodes.extend([n for n in own[before:] if n.op == "input"])
    # What a view from before shows was worked out in there, for in there.
    for holder, name, old in reversed(journal.changes_since(mark)):
        if isinstance(holder, TensorHandle) and holder.number < number and name in ("_node", "_version"):
            tracer.set(holder, name, old)


def _nodes_of(tracer: Tracer, made: list[Node], handles: Sequence[TensorHandle]) -> list[Node]:
    """The nodes of what was traced into ``made``: what a view shows may be worked out only now."""
    with tracing(tracer, made):
        return [h.node for h in handles]


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
                results: Sequence[TensorHandle], more: TensorHandle, first: TensorHandle,
                own: bool = True) -> list[Node]:
    """The loop's results. ``made``: what was traced of a round, from what is ``started`` with in the place of what is
    ``carried`` to ``results`` and whether there is ``more``; ``first``: whether there is a first round; ``own``:
    whether results are never memory of what is given."""
    starts = [h.node for h in started]
    *ends, last = _nodes_of(tracer, made, [*results, more])
    name, others, numbers = _round(made, starts, [*_carried_on(starts, ends), last], tracer.env)
    args = (name, own, first.node, _dense(tracer, carried, starts), others, numbers)
    return list(several(tracer.builder.aten(rounds.LOOP, "", args, tuple([n.type for n in starts]))))


def record_scan(tracer: Tracer, made: list[Node], reverse: bool, carried: Sequence[TensorHandle],
                started: Sequence[TensorHandle], xs: Sequence[TensorHandle], parts: Sequence[TensorHandle],
                results: Sequence[TensorHandle], ys: Sequence[TensorHandle]) -> list[Node]:
    """What a scan carries on at last, then its results. The same, of ``parts`` of ``xs``, along their first dimensions,
    with ``ys`` as the results of a step."""
    starts = [h.node for h in started]
    ends = _nodes_of(tracer, made, [*results, *ys])
    name, others, numbers = _round(made, [*starts, *[h.node for h in parts]],
                                   [*_carried_on(starts, ends[:len(starts)]), *ends[len(starts):]], tracer.env)
    args = (name, reverse, _dense(tracer, carried, starts), tuple([h.node for h in xs]), others, numbers)
    steps = xs[0].shape[0]
    stacked = [TensorType.contiguous((steps, *h.shape), h.dtype, h.device) for h in ys]
    return list(several(tracer.builder.aten(rounds.SCAN, "", args, (*[n.type for n in starts], *stacked))))


def _carried_on(starts: Sequence[Node], ends: Sequence[Node]) -> Sequence[Node]:
    if any(before.type != after.type for before, after in zip(starts, ends, strict=True)):
        raise Refused("does not carry on tensors of the types and strides that it is given")
    return ends


def _dense(tracer: Tracer, carried: Sequence[TensorHandle], starts: Sequence[Node]) -> tuple[Node, ...]:
    """What is carried, laid out as rounds take it."""
    return tuple([h.node if same_ints(h.type.strides, n.type.strides) else tracer.builder.clone(h.node)
                  for h, n in zip(carried, starts)])


def record_branch(tracer: Tracer, holds: TensorHandle, made: Sequence[list[Node]],
                  results: Sequence[Sequence[TensorHandle]]) -> list[Node]:
    """The results of one of two ways. ``made``, ``results``: what was traced of each, of the one first that is taken
    where something ``holds``."""
    ends = [_nodes_of(tracer, nodes, of) for nodes, of in zip(made, results)]
    types = [n.type for n in ends[0]]
    if types != [n.type for n in ends[1]]:
        raise Refused("does not give tensors of the types and strides that the other way gives")
    others = sorted({*_read(made[0], [], ends[0]), *_read(made[1], [], ends[1])}, key=lambda n: n.id)
    parts = [_part(nodes, others, of, tracer.env) for nodes, of in zip(made, ends)]
    names, numbers = _defined(parts)
    return list(several(tracer.builder.aten(rounds.BRANCH, "", (*names, holds.node, tuple(others), numbers),
                                            tuple(types))))


def require_no_more(made: list[Node]) -> None:
    """Raises Refused unless what was traced may be left out, as nothing of it is read."""
    mark_checked(made)
    if any(n.impure for n in made):
        raise does_more()
    if any(n.attrs.get(CHECKED) for n in made):
        raise Refused("may raise for what nobody reads")


def _round(made: list[Node], starts: list[Node], ends: list[Node], env: ShapeEnv) -> tuple:
    """(the name of a round from ``starts`` to ``ends``, the other nodes that it reads, its integers)"""
    others = _read(made, starts, ends)
    (name,), numbers = _defined([_part(made, [*starts, *others], ends, env)])
    return name, tuple(others), numbers


def _read(made: list[Node], starts: list[Node], ends: list[Node]) -> list[Node]:
    """The nodes from outside that lead to ``ends``, besides ``starts``."""
    if any(n.impure and n not in starts for n in made):
        raise does_more()
    mark_checked(made)
    # What was there before is given to each round; constants are made anew.
    inside, others, seen, queue = {n for n in made if n.op != "input"}, [], set(starts), list(ends)
    while queue:
        n = queue.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in inside:
            queue += n.inputs
        elif not _is_constant(n):
            others.append(n)
    if any(n.several for n in others):
        raise Refused("reads several results of one operation")
    return sorted(others, key=lambda n: n.id)


def _part(made: list[Node], inputs: list[Node], ends: list[Node], env: ShapeEnv) -> Graph:
    """The graph from ``inputs`` to ``ends``."""
    found = ancestors(ends, frozenset(inputs))
    part = Part(Graph([], sorted({*found, *inputs}, key=lambda n: n.id), [], env), inputs, ends)
    if any(n.attrs.get(CHECKED) and n not in part.needed for n in made):
        raise Refused("may raise for what nobody reads")
    graph = part.run()
    return graph


def _defined(graphs: list[Graph]) -> tuple[list[rounds.RoundName], tuple[IntExpr, ...]]:
    """(names for what the graphs compute, the integers that they take together)"""
    symbols: dict[str, IntExpr] = {}
    for graph in graphs:
        held = ([n.attrs for n in graph.nodes], [(t.shape, t.strides) for n in graph.nodes for t in n.types if t])
        symbols |= {a.name: of_atom(a) for d in of_kind(Dim, held) for a in symbols_of(d)}
    wanted = [unbound_symbols(graph) for graph in graphs]
    integers = list(dict.fromkeys([n for of in wanted for n in of]))
    names = [rounds.define(graph, compile_python(graph), of, integers) for graph, of in zip(graphs, wanted)]
    return names, tuple([symbols[n] for n in integers])


def _is_constant(n: Node) -> bool:
    return n.op != "input" and info(n.op).is_source and not n.inputs and not n.impure


def names_in(graph: Graph) -> list[rounds.RoundName]:
    """The rounds that a graph calls and that are not compiled yet."""
    calls = [n for n in graph.nodes if n.op == "aten_call" and n.attrs["target"] in _NAMING]
    return [a for n in calls for a in n.attrs["args"] if isinstance(a, rounds.RoundName) and not a.compiled]
