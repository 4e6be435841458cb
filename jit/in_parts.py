"""Graphs of which a stretch is repeated, as the layers of a deep network: what comes before it, what is repeated, and
what comes after it are compiled once each, and the plan of the whole is written from theirs (``graph.repeats`` finds
the parts, ``codegen.stamping`` writes the plan).

With gradients, each part is differentiated and divided by itself. A gradient that one part asks for is what another has
computed; where several parts read an input of the graph, what each finds for it is added up by a plan of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from . import config, logs
from .codegen.layout import channels_last, wants_channels_last
from .codegen.registers import Registers
from .codegen.stamping import Stamper, together
from .graph.autodiff import differentiate
from .graph.autodiff.partition import Halves, Saves, partition, region_of
from .graph.build import Builder
from .graph.gradient_paths import carrying, passed
from .graph.ir import Graph, Node, Output
from .graph.pairs import added
from .graph.passes.gradients import without_gates
from .graph.prim_info import info
from .graph.prims import base_of
from .graph.repeats import Part, Repeat, find

if TYPE_CHECKING:
    from .codegen.planner import CompiledGraph
    from .graph.ir import TensorType
    from .graph.recording import Gradient

Begin = Callable[..., Callable[[], "CompiledGraph"]]  # ``compiling.begin``


def repeat_of(graph: Graph) -> Repeat | None:
    """What is repeated in a graph often enough to be compiled once. The layout of images is chosen for a whole
    graph."""
    repeat = find(graph) if config.siblings else None
    return None if repeat is None or wants_channels_last(graph) else repeat


def without_gradients(graph: Graph, repeat: Repeat, unaligned: frozenset[int], graphs: str, begin: Begin,
                      prepared: Callable[[Graph], Graph]) -> CompiledGraph:
    """A graph in parts. ``prepared``: the passes over each. ``graphs``: see ``runtime.plan.Plan``."""
    registers = Registers([])
    begun = [begin(prepared(part.graph), _read(part, graph, unaligned), graphs="never", registers=registers)
             for part in repeat.parts]
    compiled = [finish() for finish in begun]
    stamper = Stamper(graph.inputs, registers)
    for part, one in zip(repeat.parts, compiled, strict=True):
        for reads, results in zip(part.reads, part.results, strict=True):
            stamper.stamp(one, reads, results)
    return together(compiled, stamper, [o.node for o in graph.outputs], graphs)


def _read(part: Part, graph: Graph, inputs: frozenset[int] | set[int]) -> frozenset[int]:
    """Which inputs of a part stand for some of these inputs of the graph."""
    nodes = {graph.inputs[i] for i in inputs}
    return frozenset(k for reads in part.reads for k, n in enumerate(reads) if n in nodes)


@dataclasses.dataclass
class Differentiable:
    """The forward and the backward of a graph; ``saves``, ``types``: what is saved, and of which types; ``grads`` as
    of ``Halves``."""

    forward: CompiledGraph
    backward: CompiledGraph
    saves: Saves
    types: tuple[TensorType, ...]
    grads: tuple[int | None, ...]


def with_gradients(graph: Graph, repeat: Repeat, unaligned: frozenset[int], gradient: Gradient, graphs: str,
                   begin: Begin) -> Differentiable | None:
    """A graph with its gradients, in parts. None where what gradients go through is not the same in all that is
    repeated, or something is not known of parts alone."""
    if (len(gradient.tangents) != 1 or gradient.views
        or any(_holds_others(n) or region_of(n) for n in graph.nodes)):
        return None
    ways = _Ways(graph, repeat, gradient)
    sides = [side for part in repeat.parts if (side := ways.of(part)) is not None]
    if len(sides) < len(repeat.parts) or not ways.each_read_once():
        return None
    halves = [_halves(graph, part, side, gradient) for part, side in zip(repeat.parts, sides, strict=True)]
    if not all(ways.found(part, side, half) for part, side, half in zip(repeat.parts, sides, halves, strict=True)):
        return None
    if not ways.fit() or not all(_apart_from_others(graph, part, half, gradient)
                                 for part, half in zip(repeat.parts, halves, strict=True)):
        return None
    return _Joined(graph, repeat, sides, halves, gradient, unaligned, graphs, begin).run()


def _holds_others(node: Node) -> bool:
    """Whether a node says how gradients go through several others, which parts would tear from each other."""
    record = info(node.op)
    return record.kind == "gradient" and record.infer is None


@dataclasses.dataclass
class _Side:
    """Which inputs and results of a part gradients go through, by position."""

    wrt: tuple[int, ...]
    tangents: tuple[int, ...]


class _Ways:
    """What gradients go through."""

    def __init__(self, graph: Graph, repeat: Repeat, gradient: Gradient) -> None:
        self.repeat, self.inputs = repeat, set(graph.inputs)
        self.root = graph.outputs[gradient.tangents[0]].node
        wrt = {graph.inputs[i] for i in gradient.wrt}
        carries = carrying(graph.nodes, wrt)
        self.through = passed([self.root], carries) - (self.inputs - wrt)
        self.expected: dict[Node, TensorType] = {}  # of the gradients of what goes on between parts
        self.given: dict[Node, TensorType] = {}

    def of(self, part: Part) -> _Side | None:
        """Those of a part, each time that it is done; None where they are others at other times."""
        wrt, tangents = [], []
        for k, nodes in enumerate(zip(*part.reads)):
            go = [n in self.through for n in nodes]
            if any(go) and not all(go[1:]):  # what the first one reads may be without: it is not asked for
                return None
            if any(go):
                wrt.append(k)
        for k, nodes in enumerate(zip(*part.results)):
            go = [n in self.through for n in nodes]
            if any(go) and not all(go):
                return None
            if any(go):
                tangents.append(k)
        return _Side(tuple(wrt), tuple(tangents))

    def each_read_once(self) -> bool:
        """Whether each gradient of what goes on between parts is computed in one place."""
        readers: dict[Node, int] = {self.root: 1}
        for part in self.repeat.parts:
            for reads in part.reads:
                for n in reads:
                    if n in self.through and n not in self.inputs:
                        readers[n] = readers.get(n, 0) + 1
        made = {n for part in self.repeat.parts for results in part.results for n in results if n in self.through}
        return self.root in made and all(readers.get(n, 0) == 1 for n in made | readers.keys())

    def found(self, part: Part, side: _Side, halves: Halves) -> bool:
        """Whether there is a gradient wherever another part asks for it."""
        tangents = halves.backward.inputs[len(halves.saved):]
        for results in part.results:
            self.expected.update((results[k], t.type) for k, t in zip(side.tangents, tangents, strict=True))
        for k, at in zip(side.wrt, halves.grads, strict=True):
            for n in {reads[k] for reads in part.reads} & self.through - self.inputs:
                if at is None:
                    return False
                self.given[n] = halves.backward.outputs[at].node.type
        return True

    def fit(self) -> bool:
        """Whether all gradients are of the types that are expected."""
        return all(self.expected[n] == t for n, t in self.given.items())


def _apart_from_others(graph: Graph, part: Part, halves: Halves, gradient: Gradient) -> bool:
    """Whether what goes on between parts, and is saved, lies in memory that the program does not have: it may write to
    that, and a part alone does not know of it."""
    shown = {base_of(o.node) for o in graph.outputs}
    kept = {o.node for k, o in enumerate(graph.outputs) if k not in gradient.loose}  # which autograd watches
    saved = {nodes[i] for kind, i in halves.saved if kind != "extra"
             for nodes in (part.reads if kind == "input" else part.results)}
    return all(n.op == "input" or n in kept and base_of(n) is n
               or base_of(n).op != "input" and base_of(n) not in shown for n in saved)


def _halves(graph: Graph, part: Part, side: _Side, gradient: Gradient) -> Halves:
    loose = {graph.outputs[k].node for k in gradient.loose}
    written = tuple(_read(part, graph, {*gradient.changed, *gradient.fragile}))
    results = tuple(sorted({k for nodes in part.results for k, n in enumerate(nodes) if n in loose}))
    with logs.timed("autodiff"):
        joint = differentiate(part.graph, side.wrt, side.tangents)
        joint.graph = channels_last(joint.graph)
        return partition(joint, written, results)


class _Joined:
    """The plans of the whole, from those of the parts."""

    def __init__(self, graph: Graph, repeat: Repeat, sides: list, halves: list[Halves], gradient: Gradient,
                 unaligned: frozenset[int], graphs: str, begin: Begin) -> None:
        self.graph, self.repeat, self.sides, self.halves = graph, repeat, sides, halves
        self.gradient, self.unaligned, self.graphs, self.begin = gradient, unaligned, graphs, begin
        self.ahead, self.back = Registers([]), Registers([])  # of the two plans
        self.saved: dict[object, int] = {}  # what is saved -> its position
        # Where the backward finds it: what autograd keeps for these results, inputs, and then what else there is.
        self.places: dict[object, tuple[str, int]] = {
            o.node: ("output", k) for k, o in reversed(list(enumerate(graph.outputs)))
            if k not in gradient.loose and base_of(o.node).op != "input"}
        self.places |= {n: ("input", k) for k, n in enumerate(graph.inputs)}
        self.known = len(self.places)
        self.types: list[TensorType] = []
        self.parts: dict[Node, list[object]] = {}  # input of the graph -> what parts have found for its gradient

    def run(self) -> Differentiable:
        begun = []
        for part, halves in zip(self.repeat.parts, self.halves, strict=True):
            loose = _read(part, self.graph, self.unaligned)
            saved = frozenset(k for k, (kind, i) in enumerate(halves.saved) if kind == "input" and i in loose)
            begun.append((self.begin(without_gates(halves.backward), saved, graphs="never", registers=self.back),
                          self.begin(halves.forward, loose, graphs="never", registers=self.ahead)))
        plans = [(behind(), ahead()) for behind, ahead in begun]
        forward, saved_by = self.forward([ahead for _, ahead in plans])
        backward, grads = self.backward([behind for behind, _ in plans], saved_by)
        saves = Saves(tuple(self.place(key) for key in self.saved), (None,) * len(self.saved))
        return Differentiable(forward, backward, saves, tuple(self.types), grads)

    # forward

    def forward(self, compiled: list[CompiledGraph]) -> tuple[CompiledGraph, list[list[list[int]]]]:
        """The forward, and of each part, each time that it is done, where what it saves is among all that is saved."""
        stamper = Stamper(self.graph.inputs, self.ahead)
        saved_by: list[list[list[int]]] = []
        for number, (part, halves, one) in enumerate(zip(self.repeat.parts, self.halves, compiled, strict=True)):
            saved_by.append([])
            extras = sum(kind == "extra" for kind, _ in halves.saved)
            for time, (reads, results) in enumerate(zip(part.reads, part.results, strict=True)):
                own = [("extra", number, time, k) for k in range(extras)]
                stamper.stamp(one, reads, [*results, *own])
                places: dict[str, list] = {"input": reads, "output": results, "extra": own}
                keys = [places[kind][i] for kind, i in halves.saved]
                for key, n in zip(keys, halves.backward.inputs):
                    if key not in self.saved:
                        self.saved[key] = len(self.saved)
                        self.types.append(n.type)
                saved_by[-1].append([self.saved[key] for key in keys])
        results, more = [o.node for o in self.graph.outputs], [k for k in self.saved if self.place(k)[0] == "extra"]
        return together(compiled, stamper, [*results, *more], self.graphs), saved_by

    def place(self, key: object) -> tuple[str, int]:
        """Where the backward finds a saved value: see ``Halves.saved``."""
        return self.places.setdefault(key, ("extra", len(self.places) - self.known))

    # backward

    def backward(self, compiled: list[CompiledGraph], saved_by: list) -> tuple[CompiledGraph, tuple]:
        """The backward, and where the gradients are among its results."""
        root = self.graph.outputs[self.gradient.tangents[0]].node
        stamper = Stamper([*[("saved", k) for k in range(len(self.saved))], ("gradient", root)], self.back)
        inputs = set(self.graph.inputs)
        for number, time in self.backwards():
            part, side, halves = self.repeat.parts[number], self.sides[number], self.halves[number]
            reads, results = part.reads[time], part.results[time]
            found: list[object] = [None] * len(halves.backward.outputs)
            for k, at in zip(side.wrt, halves.grads, strict=True):
                if at is not None:
                    found[at] = ("gradient", reads[k])
                    if reads[k] in inputs:
                        found[at] = ("gradient", reads[k], number, time)
                        self.parts.setdefault(reads[k], []).append(found[at])
            stamper.stamp(compiled[number], [*[("saved", k) for k in saved_by[number][time]],
                                             *[("gradient", results[k]) for k in side.tangents]], found)
        sums = self.sums(stamper)
        order = {n: k for k, n in enumerate([n for n in (self.graph.inputs[i] for i in self.gradient.wrt)
                                             if n in self.parts])}
        grads = tuple(order.get(self.graph.inputs[i]) for i in self.gradient.wrt)
        return together([*compiled, *sums], stamper, [self.parts[n][0] for n in order], self.graphs), grads

    def backwards(self) -> Iterator[tuple[int, int]]:
        """(number of a part, which time it is done), the last one first."""
        for number in reversed(range(len(self.repeat.parts))):
            for time in reversed(range(len(self.repeat.parts[number].reads))):
                yield number, time

    def sums(self, stamper: Stamper) -> list[CompiledGraph]:
        """Add up what several parts have found for one input."""
        several = {n: keys for n, keys in self.parts.items() if len(keys) > 1}
        if not several:
            return []
        b = Builder(self.graph.env)
        keys: list[object] = []
        inputs: list[Node] = []
        outputs: list[Output] = []
        for n, found in several.items():
            own = [b.node("input", (), {"index": len(inputs) + k}, stamper.types[key]) for k, key in enumerate(found)]
            outputs.append(Output(functools.reduce(functools.partial(added, b), own)))
            keys += found
            inputs += own
            self.parts[n] = [("gradient", n)]
        made = self.begin(Graph(inputs, b.nodes, outputs, self.graph.env), graphs="never", registers=self.back)()
        stamper.stamp(made, keys, [("gradient", n) for n in several])
        return [made]
