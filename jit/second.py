"""Derivatives of compiled gradients, for ``create_graph=True``.

When a backward is to be differentiable itself, the graph of the gradients is compiled like any other graph that is
differentiated, when that is first asked for: with a forward, which reads what the first forward has saved, and a
backward, which can be differentiated in its turn. Where an operation of the backward has no derivative here, the traced
graph is run op by op on eager tensors, and PyTorch differentiates it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Callable

import torch

from . import failures, logs, meanwhile
from .collecting import uncollected
from .compiling import compile_joint, compile_joint_in_parts, named, schedule, telling_of
from .errors import Unsupported
from .graph.autodiff import Differentiated, differentiate, differentiated_again, gradients, settled
from .graph.autodiff.replay import draws
from .graph.dims import free_symbols
from .graph.interpret import compile_python
from .graph.passes import optimize
from .graph.passes.attention import fuse_attention
from .graph.passes.convolutions import separate_bias
from .graph.printing import symbol_origins, unbound_symbols
from .graph.recording import Gradient
from .graph.writing import PackedGraph
from .plans import Plan, without_autocast
from .runtime import names
from .runtime.naming import Naming
from .runtime.packed import Packed

if TYPE_CHECKING:
    from .graph.autodiff.partition import Saves
    from .graph.ir import Graph, Node, TensorType
    from .graph.shape_env import Predicate

_graph_log = logs.channel("graph")


@dataclasses.dataclass(eq=False)
class SecondDerivatives:
    """What is known of a graph that is being compiled with its gradients.

    Attributes:
        graph: the graph, as it is before it is differentiated.
        given: node of the graph -> position of the input that has its value, see ``graph.autodiff.again``.
        changed: positions of inputs that the graph or the program writes.
        traced: the graph to be run op by op.
    """

    graph: Graph
    given: dict[Node, int]
    changed: frozenset[int]
    traced: Graph

    def __post_init__(self) -> None:
        self.packed = meanwhile.soon(lambda: (PackedGraph(self.graph), PackedGraph(self.traced)))

    def of(self, halves: Saves, types: tuple[TensorType, ...], gradient: Gradient, int_symbols: tuple[str, ...],
           unaligned: frozenset[int], saved_unaligned: frozenset[int]) -> Callable:
        """``GradSpec.second`` for these halves, whose saved values have these ``types``. Positions whose pointers may
        be ``unaligned`` are those of inputs and of saved values."""
        kept = tuple(None if kind == "input" else id for (kind, _), id in zip(halves.saved, halves.kept))
        given = tuple((node.id, i) for node, i in self.given.items())
        rest = Packed((gradient.wrt, gradient.tangents, kept, types, given, ()))
        graph, traced = self.packed()
        return _Second(graph, rest, traced, self.changed, int_symbols, unaligned, saved_unaligned)


def compile_differentiable(graph: Graph, unaligned: frozenset[int], gradient: Gradient) -> Plan:
    """A forward and a backward plan, joined by an autograd node."""
    with logs.timed("autodiff"):
        traced, graph = graph, fuse_attention(separate_bias(graph), True)
    again = SecondDerivatives(graph, {}, frozenset(gradient.changed) | {o.mutates for o in graph.outputs
                                                                        if o.mutates is not None}, traced)
    made = compile_joint_in_parts(graph, unaligned, gradient, again.of)
    if made is not None:
        return made
    with logs.timed("autodiff"):
        joint = differentiate(graph, gradient.wrt, gradient.tangents)
    return compile_joint(joint, graph, unaligned, gradient, again.of)


@dataclasses.dataclass(eq=False)
class _Compiled:
    """Gradients as a function of the inputs, the given tangents and the saved values, and what it relies on."""

    call: Callable
    grads: tuple      # for each of ``wrt`` the position of its gradient among the results
    int_symbols: tuple
    guards: tuple     # facts about sizes that the capture has not checked
    reads: frozenset  # positions of the inputs that are read


class _Second:
    """``GradSpec.second``: see ``SecondDerivatives.of``."""

    def __init__(self, graph: PackedGraph, rest: Packed, traced: PackedGraph, changed: frozenset[int],
                 int_symbols: tuple[str, ...], unaligned: frozenset[int], saved_unaligned: frozenset[int]) -> None:
        # Most are never asked. ``rest``: the other parts of ``source``, with the ids of nodes.
        self.parts = graph, rest, traced
        self.changed, self.int_symbols = changed, int_symbols
        self.unaligned, self.saved_unaligned = unaligned, saved_unaligned
        self.compiled: dict = {}

    @functools.cached_property
    def source(self) -> Differentiated:
        graph = self.parts[0]()
        wrt, tangents, kept, types, given, changed = self.parts[1]()
        by_id = {n.id: n for n in graph.nodes}
        return Differentiated(graph, wrt, tangents, kept, types, {by_id[k]: i for k, i in given}, frozenset(changed))

    @functools.cached_property
    def traced(self) -> Graph:
        return self.parts[-1]()

    def __call__(self, inputs: tuple[torch.Tensor, ...], saved: tuple[torch.Tensor, ...], ints: tuple[int, ...],
                 tangents: tuple[torch.Tensor | None, ...], wanted: tuple[bool, ...], stale: Collection[int],
                 foreign: bool) -> tuple[torch.Tensor | None, ...]:
        if not foreign and torch.is_grad_enabled():
            present = tuple([t is not None for t in tangents])
            given = [t for t in tangents if t is not None]
            key = present, wanted, tuple([x.requires_grad for x in inputs]), tuple([t.requires_grad for t in given])
            found = self.compiled.get(key, self)
            if found is self:
                found = self.compiled[key] = self.compile(*key)
            if isinstance(found, _Compiled) and all(p.holds(self.sizes(inputs, ints, p)) for p in found.guards):
                _check_unchanged(found.reads.intersection([k if k < len(inputs) else k + len(given) for k in stale]))
                results = found.call(*inputs, *given, *saved,
                                     *[ints[self.int_symbols.index(name)] for name in found.int_symbols])
                return tuple([None if k is None else results[k] for k in found.grads])
        why = self.cannot_run_again()
        if why:
            raise NotImplementedError(f"jit: these gradients cannot be differentiated again: {why}")
        _check_unchanged([k for k in stale if k < len(inputs)])
        return self.by_steps(inputs, ints, tangents)

    def compile(self, present: tuple[bool, ...], wanted: tuple[bool, ...], inputs_need: tuple[bool, ...],
                tangents_need: tuple[bool, ...]) -> _Compiled | str:
        """-> _Compiled, or why there is none."""
        env = self.source.graph.env
        first_guard = len(env.guards)
        try:
            # The guards of the capture are made; these are checked at each call.
            with (telling_of(self.source.graph), logs.timed("a backward that is differentiable"), uncollected(),
                  env.journal.trial()):
                return self.gradients(present, wanted, inputs_need + tangents_need, first_guard)
        except Unsupported as e:
            if _graph_log:
                _graph_log(f"second derivatives op by op: {e.why}")
            return e.why
        except Exception as e:  # a rule of ours has failed, which is told
            failures.report(e, self.source.graph.place(), "second derivatives are computed op by op")
            return str(e)

    def gradients(self, present: tuple[bool, ...], wanted: tuple[bool, ...], needs: tuple[bool, ...],
                  first_guard: int) -> _Compiled:
        found = gradients(self.source, present, wanted, needs)
        graph = found.graph
        n_inputs, n_given = len(needs) - sum(present), sum(present)
        first_saved = n_inputs + n_given
        unaligned = self.unaligned | set(range(n_inputs, first_saved)) | {first_saved + k for k in self.saved_unaligned}
        if found.tangents:
            again = SecondDerivatives(graph, found.given, self.changed, graph)
            joint = differentiated_again(graph, found.wrt, found.tangents, found.given, self.changed)
            reads = _reads(joint.graph, joint.graph.nodes)
            plan = compile_joint(joint, graph, frozenset(unaligned), Gradient(found.wrt, found.tangents), again.of)
            call, int_symbols = plan.native, plan.int_symbols
        else:
            graph = optimize(settled(graph, found.given, self.changed))
            reads = _reads(graph, graph.nodes)
            compiled = named(schedule(graph, frozenset(unaligned)), "second backward", graph)
            call, int_symbols = compiled.call, tuple(compiled.int_symbols)
        if not set(int_symbols) <= set(self.int_symbols):
            raise Unsupported("double backward needs sizes that were not saved", kind="gradient")
        return _Compiled(call, found.grads, int_symbols, tuple(self.source.graph.env.guards[first_guard:]), reads)

    def sizes(self, inputs: Sequence[torch.Tensor], ints: Sequence[int], predicate: Predicate) -> dict:
        """The values of the symbols of a predicate."""
        origins, values = symbol_origins(self.source.graph), {}
        for name in free_symbols(predicate.expr):
            if name in origins:
                kind, i, d = origins[name]
                values[name] = getattr(inputs[i], kind)(d)
            else:
                values[name] = ints[self.int_symbols.index(name)]
        return values

    # op by op

    @functools.cached_property
    def forward(self) -> tuple[Callable, list[int]]:
        graph = self.traced
        kept = [o for o in graph.outputs if o.mutates is None]  # nothing is written again
        alone = graph.replace(outputs=kept)
        return without_autocast(compile_python(alone)), [self.int_symbols.index(name)
                                                         for name in unbound_symbols(alone)]

    def cannot_run_again(self) -> str:
        """Why the graph would give other results when it is run again on its inputs; empty if it does not."""
        graph = self.traced
        reason = next((v for v in self.compiled.values() if isinstance(v, str)), "")
        reason = f" ({reason})" if reason else ""
        if any(map(draws, graph.nodes)):
            return f"the forward draws random numbers{reason}. hint: draw them outside, and pass them in"
        if any(n.attrs.get("second", "") is None for n in graph.nodes):
            return (
                f"of a torch.autograd.Function only the backward is known{reason}. hint: keep its call outside the "
                "compiled function")
        reads = {graph.inputs[i] for i in self.changed}
        for node in graph.nodes:
            if any(i in reads for i in node.inputs):
                reads.add(node)
        if any(o.node in reads for o in graph.outputs if o.mutates is None):
            return f"the forward changes an input in place{reason}. hint: clone() it first"
        return ""

    def by_steps(self, inputs: tuple[torch.Tensor, ...], ints: tuple[int, ...],
                 tangents: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        """Differentiable gradients by running the graph op by op on eager tensors."""
        forward, names = self.forward
        source = self.source
        with torch.enable_grad():
            outputs = forward(*inputs, *[ints[k] for k in names])
            pairs = [(outputs[i], t) for i, t in zip(source.tangents, tangents) if t is not None
                     and outputs[i].requires_grad]
            if not pairs:
                return (None,) * len(source.wrt)
            sources = [inputs[i] for i in source.wrt]
            needed = [x for x in sources if x.requires_grad]
            found = iter(torch.autograd.grad([o for o, _ in pairs], needed,
                                             [t for _, t in pairs], create_graph=True, allow_unused=True))
            return tuple([next(found) if x.requires_grad else None for x in sources])


@names.rule(_Second)
def _name_of_second(naming: Naming, second: _Second) -> names.Name:
    return names.Postponed(names.calling(_Second, *map(naming.data, (
        *second.parts, second.changed, second.int_symbols, second.unaligned, second.saved_unaligned))))


def _reads(graph: Graph, nodes: list[Node]) -> frozenset:
    """The positions of the inputs that ``graph`` reads."""
    read = {i for n in nodes for i in n.inputs if i.op == "input"} | {o.node for o in graph.outputs}
    return frozenset(n.attrs["index"] for n in graph.inputs if n in read)


def _check_unchanged(positions: Collection[int]) -> None:
    if positions:
        raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace "
                           "operation: "
                           f"input {min(positions)} of the compiled function was written after the forward, and "
                           "create_graph=True computes from it anew")
