"""Graphs of which a stretch is repeated, as the layers of a deep network: what comes before it, what is repeated, and
what comes after it are compiled once each, and the plan of the whole is written from theirs (``graph.repeats`` finds
the parts, ``codegen.stamping`` writes the plan).

With gradients, each part is differentiated and divided by itself. A gradient that one part asks for is what another has
computed, or what the whole is given; where several parts read an input of the graph, what each finds for it is added up
by a plan of its own. How the backward is put together is said by plain data (``Course``), so that one for some of the
results can be compiled later, and in another process.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import config, logs, meanwhile
from .codegen.layout import channels_last, wants_channels_last
from .codegen.registers import Registers
from .codegen.stamping import Mismatch, Stamper, together
from .graph import layout
from .graph.autodiff import differentiate
from .graph.autodiff.freed import kept_for_others, uses
from .graph.autodiff.narrow import narrowed
from .graph.autodiff.partition import Halves, Saves, partition, region_of
from .graph.build import Builder
from .graph.functions import differentiated
from .graph.gradient_paths import carrying, passed
from .graph.ir import Graph, Node, Output
from .graph.pairs import added
from .graph.passes import optimize
from .graph.passes.gradients import without_gates
from .graph.prim_info import info
from .graph.prims import base_of
from .graph.recording import positions
from .graph.repeats import Part, Repeat, find
from .graph.shape_env import ShapeEnv
from .graph.writing import PackedGraph
from .runtime import names
from .runtime.steps import fields_of

if TYPE_CHECKING:
    from .codegen.planner import CompiledGraph
    from .graph.ir import TensorType
    from .graph.recording import Gradient

Begin = Callable[..., Callable[[], "CompiledGraph"]]  # ``compiling.begin``
SUM = -1


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


@dataclasses.dataclass(frozen=True)
class Course:
    """How a backward is put together.

    Attributes:
        graphs: the backward of each part, of saved values and then of gradients. None are kept where the whole has one
            result.
        unaligned: of each part, which of its inputs may lie anywhere.
        inputs: names of what the whole is given: saved values, and then the gradients of its results.
        types: of the latter.
        calls: (number of a part, names of what it is given, names of what it gives; None for what nobody reads), in
            order; of number ``SUM`` are the sums of what they are given.
        results: names.
        sums: names of sums, and of which types they have to be.
    """

    graphs: tuple[PackedGraph, ...]
    unaligned: tuple[frozenset[int], ...]
    inputs: tuple[tuple, ...]
    types: tuple[TensorType, ...]
    calls: tuple[tuple[int, tuple, tuple], ...]
    results: tuple[tuple, ...]
    sums: tuple[tuple[tuple, TensorType], ...]

    def plan(self, compiled: list[CompiledGraph], registers: Registers, graphs: str, begin: Begin,
             missing: Collection[tuple] = ()) -> CompiledGraph:
        """The whole, of its compiled parts. ``missing``: what is not given. Raises Mismatch."""
        stamper = Stamper(self.inputs, registers)
        stamper.types.update(zip(self.inputs[-len(self.types):], self.types, strict=True))
        adding: dict[tuple, CompiledGraph] = {}
        wanted = dict(self.sums)
        for number, reads, results in self.calls:
            if number != SUM:
                stamper.stamp(compiled[number], reads, results)
                continue
            there = [name for name in reads if name not in missing]
            types, type_ = tuple([stamper.types[name] for name in there]), wanted.get(results[0])
            if not there or len(there) == 1 and type_ in (None, *types):
                stamper.rename((there or reads)[0], results[0])
                continue
            if (types, type_) not in adding:
                adding[types, type_] = begin(_sum(types, type_), graphs="never", registers=registers, backward=True)()
            stamper.stamp(adding[types, type_], there, results)
        return together([*compiled, *adding.values()], stamper, self.results, graphs)

    def missing(self, given: Sequence[bool]) -> set[tuple]:
        """What is not given where these of the gradients of results are."""
        found = {name for name, there in zip(self.inputs[-len(given):], given, strict=True) if not there}
        for number, reads, results in self.calls:
            if number == SUM and found.issuperset(reads):
                found.update(results)
        return found

    def absent(self, missing: Collection[tuple]) -> list[tuple[int, ...]] | None:
        """Of each part, which of its inputs are missing, by position; None where they are others at other times that it
        is done."""
        found: dict[int, tuple[int, ...]] = {}
        for number, reads, _ in self.calls:
            own = tuple(k for k, name in enumerate(reads) if name in missing)
            if number != SUM and found.setdefault(number, own) != own:
                return None
        return [found[number] for number in range(len(self.graphs))]


def _sum(types: Sequence[TensorType], wanted: TensorType | None) -> Graph:
    """The graph of the sum of tensors of these types, laid out as ``wanted``."""
    b = Builder(ShapeEnv())
    inputs = [b.node("input", (), {"index": k}, t) for k, t in enumerate(types)]
    total = functools.reduce(functools.partial(added, b), inputs)
    if wanted is not None and total.type != wanted and total.shape == wanted.shape:
        total = b.clone(total, wanted.strides)
    return Graph(inputs, b.nodes, [Output(total)], b.env)


def course_of(*fields: Any) -> Callable[[], Course]:
    """Gives the course of these fields; a later process loads this file when it is asked for."""
    made = Course(*fields)
    return names.made_later(lambda: made, course_of, *fields)


def narrowed_backward(course: Course, given: Sequence[bool], graphs: str, begin: Begin) -> CompiledGraph | None:
    """The backward for the case that only some gradients of results are ``given``; None where it is not the same for
    all that is repeated. Raises Unsupported."""
    missing = course.missing(given)
    absent = course.absent(missing)
    if absent is None:
        return None
    registers = Registers([])
    parts = [optimize(without_gates(narrowed(graph(), own)))
             for graph, own in zip(course.graphs, absent, strict=True)]
    begun = [begin(part, loose, graphs="never", registers=registers, backward=True)
             for part, loose in zip(parts, course.unaligned, strict=True)]
    try:
        return course.plan([finish() for finish in begun], registers, graphs, begin, missing)
    except Mismatch:  # a gradient is laid out in another way where less comes to it
        return None


@dataclasses.dataclass
class Differentiable:
    """The forward and the backward of a graph; ``saves``, ``types``: what is saved, and of which types; ``grads`` as
    of ``Halves``, ``depends`` and ``uses`` as of ``runtime.plan.GradSpec``; ``course``: of the backward."""

    forward: CompiledGraph
    backward: CompiledGraph
    saves: Saves
    types: tuple[TensorType, ...]
    grads: tuple[int | None, ...]
    depends: tuple[tuple[int, ...], ...]
    uses: tuple[int, ...] | None
    course: Course

    def later(self) -> Callable[[], Course]:
        """The course, as ``course_of`` gives it."""
        return course_of(*[getattr(self.course, name) for name in fields_of(Course)])


def with_gradients(graph: Graph, repeat: Repeat, unaligned: frozenset[int], gradient: Gradient, graphs: str,
                   begin: Begin) -> Differentiable | None:
    """A graph with its gradients, in parts. None where what gradients go through is not the same in all that is
    repeated, or something is not known of parts alone."""
    if gradient.views or any(_holds_others(n) or region_of(n) for n in graph.nodes):
        return None
    ways = _Ways(graph, repeat, gradient)
    sides = [side for part in repeat.parts if (side := ways.of(part)) is not None]
    if len(sides) < len(repeat.parts) or not ways.given_to_parts():
        return None
    changed, loose = (*gradient.changed, *gradient.fragile), gradient.loose
    while True:
        halves = [_halves(graph, part, side, changed, loose) for part, side in zip(repeat.parts, sides, strict=True)]
        if not ways.take(sides, halves) or not all(_apart_from_others(graph, part, half, gradient)
                                                   for part, half in zip(repeat.parts, halves, strict=True)):
            return None
        joined = _Joined(graph, repeat, sides, halves, gradient, unaligned, graphs, begin)
        read = joined.uses(ways.reach) if len(gradient.tangents) > 1 else None
        more = read and kept_for_others(joined.saved_places(), read, gradient.watched, gradient.unsaid)
        if not more:
            break
        changed += tuple(k for kind, k in more if kind == "input")
        loose += tuple(k for kind, k in more if kind == "output")
    try:
        return joined.run(ways.reach, read, ways.sums())
    except Mismatch:  # of a sum
        return None


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
        self.roots = [graph.outputs[k].node for k in gradient.tangents]
        wrt = {graph.inputs[i] for i in gradient.wrt}
        carries = carrying(graph.nodes, wrt)
        self.through = passed(self.roots, carries) - (self.inputs - wrt)
        self.reach: dict[Node, int] = {}  # which gradients of results come to a node, as bits
        for k, n in enumerate(self.roots):
            self.reach[n] = self.reach.get(n, 0) | 1 << k
        for n in reversed(graph.nodes):
            if n in self.through and n.op != "detach" and n in self.reach:
                for i in differentiated(n):
                    if i in self.through:
                        self.reach[i] = self.reach.get(i, 0) | self.reach[n]
        self.expected: dict[Node, TensorType] = {}  # of the gradients of what goes on between parts
        self.given: dict[Node, list[TensorType]] = {}

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

    def given_to_parts(self) -> bool:
        """Whether what the whole is given goes to a part."""
        return {n for part in self.repeat.parts for results in part.results for n in results}.issuperset(self.roots)

    def take(self, sides: list[_Side], halves: list[Halves]) -> bool:
        """Whether these halves of the parts fit together."""
        self.expected, self.given = {}, {n: [layout.empty_like(n.type)] for n in self.roots}
        return all(map(self.found, self.repeat.parts, sides, halves))

    def found(self, part: Part, side: _Side, halves: Halves) -> bool:
        """Whether there is a gradient wherever another part asks for it."""
        tangents = halves.backward.inputs[len(halves.saved):]
        for results in part.results:
            self.expected.update((results[k], t.type) for k, t in zip(side.tangents, tangents, strict=True))
        for k, at in zip(side.wrt, halves.grads, strict=True):
            for n in [reads[k] for reads in part.reads if reads[k] in self.through and reads[k] not in self.inputs]:
                if at is None:
                    return False
                self.given.setdefault(n, []).append(halves.backward.outputs[at].node.type)
        return True

    def sums(self) -> dict[Node, TensorType]:
        """What has several gradients, or one of another type than is expected, and which is."""
        return {n: self.expected[n] for n, types in self.given.items()
                if n in self.through and types != [self.expected[n]]}


def _apart_from_others(graph: Graph, part: Part, halves: Halves, gradient: Gradient) -> bool:
    """Whether what goes on between parts, and is saved, lies in memory that the program does not have: it may write to
    that, and a part alone does not know of it."""
    shown = {base_of(o.node) for o in graph.outputs}
    kept = {o.node for k, o in enumerate(graph.outputs) if k not in gradient.loose}  # which autograd watches
    saved = {nodes[i] for kind, i in halves.saved if kind != "extra"
             for nodes in (part.reads if kind == "input" else part.results)}
    return all(n.op == "input" or base_of(n).op != "input" and (n in kept or base_of(n) not in shown) for n in saved)


def _halves(graph: Graph, part: Part, side: _Side, changed: tuple[int, ...], loose: tuple[int, ...]) -> Halves:
    """The halves of a part. ``changed``, ``loose``: the graph's inputs and outputs that are not saved themselves."""
    outputs = {graph.outputs[k].node for k in loose}
    written = tuple(_read(part, graph, {*changed}))
    results = tuple(sorted({k for nodes in part.results for k, n in enumerate(nodes) if n in outputs}))
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
        self.saved_by = [self.note_saved(number) for number in range(len(repeat.parts))]

    def note_saved(self, number: int) -> list[list[int]]:
        """Where, each time that a part is done, what it saves is among all that is saved."""
        part, halves = self.repeat.parts[number], self.halves[number]
        found = []
        for time, (reads, results) in enumerate(zip(part.reads, part.results, strict=True)):
            places: dict[str, Sequence[object]] = {"input": reads, "output": results,
                                                   "extra": self.extras(number, time)}
            keys = [places[kind][i] for kind, i in halves.saved]
            for key, n in zip(keys, halves.backward.inputs):
                if key not in self.saved:
                    self.saved[key] = len(self.saved)
                    self.types.append(n.type)
            found.append([self.saved[key] for key in keys])
        return found

    def extras(self, number: int, time: int) -> list[tuple]:
        """Names of what a part saves that is neither an input nor a result."""
        count = sum(kind == "extra" for kind, _ in self.halves[number].saved)
        return [("extra", number, time, k) for k in range(count)]

    def saved_places(self) -> tuple[tuple[str, int], ...]:
        """``Halves.saved`` of the whole."""
        return tuple(self.place(key) for key in self.saved)

    def place(self, key: object) -> tuple[str, int]:
        """Where the backward finds a saved value: see ``Halves.saved``."""
        return self.places.setdefault(key, ("extra", len(self.places) - self.known))

    def uses(self, reach: dict[Node, int]) -> tuple[int, ...]:
        """Of each saved value, which gradients of results read it on their way, as bits."""
        found = [0] * len(self.saved)
        for part, side, halves, saved_by in zip(self.repeat.parts, self.sides, self.halves, self.saved_by, strict=True):
            read = uses(halves.backward, len(halves.saved))
            for results, saved in zip(part.results, saved_by, strict=True):
                come = [reach.get(results[k], 0) for k in side.tangents]
                for at, own in zip(saved, read, strict=True):
                    for k in positions(own):
                        found[at] |= come[k]
        return tuple(found)

    def run(self, reach: dict[Node, int], read: tuple[int, ...] | None, sums: dict[Node, TensorType]) -> Differentiable:
        """``reach``, ``sums``: see ``_Ways``. ``read``: ``GradSpec.uses``."""
        begun, loose = [], []
        for part, halves in zip(self.repeat.parts, self.halves, strict=True):
            own = _read(part, self.graph, self.unaligned)
            loose.append(frozenset(k for k, (kind, i) in enumerate(halves.saved) if kind == "input" and i in own))
            begun.append((self.begin(without_gates(halves.backward), loose[-1], graphs="never", registers=self.back,
                                     backward=True),
                          self.begin(halves.forward, own, graphs="never", registers=self.ahead)))
        later = () if read is None else self.halves  # of one result there is no backward for some of them
        packed = meanwhile.soon(lambda: tuple(PackedGraph(halves.backward) for halves in later))
        plans = [(behind(), ahead()) for behind, ahead in begun]
        forward = self.forward([ahead for _, ahead in plans])
        inputs = [self.graph.inputs[i] for i in self.gradient.wrt]
        course, order = self.course(packed(), tuple(loose), inputs, sums)
        backward = course.plan([behind for behind, _ in plans], self.back, self.graphs, self.begin)
        saves = Saves(self.saved_places(), (None,) * len(self.saved))
        return Differentiable(forward, backward, saves, tuple(self.types), tuple(map(order.get, inputs)),
                              tuple(tuple(positions(reach.get(n, 0))) if n in order else () for n in inputs), read,
                              course)

    # forward

    def forward(self, compiled: list[CompiledGraph]) -> CompiledGraph:
        stamper = Stamper(self.graph.inputs, self.ahead)
        for number, (part, one) in enumerate(zip(self.repeat.parts, compiled, strict=True)):
            for time, (reads, results) in enumerate(zip(part.reads, part.results, strict=True)):
                stamper.stamp(one, reads, [*results, *self.extras(number, time)])
        results, more = [o.node for o in self.graph.outputs], [k for k in self.saved if self.place(k)[0] == "extra"]
        return together(compiled, stamper, [*results, *more], self.graphs)

    # backward

    def course(self, graphs: tuple[PackedGraph, ...], unaligned: tuple[frozenset[int], ...],
               wrt: list[Node], sums: dict[Node, TensorType]) -> tuple[Course, dict[Node, int]]:
        """How the backward is put together, and where the gradients are among its results."""
        found: dict[Node, list[tuple]] = {}  # what there is for the gradient of a node, to be added up
        tangents = [("given", k) for k in range(len(self.gradient.tangents))]
        roots = [self.graph.outputs[k].node for k in self.gradient.tangents]
        for name, n in zip(tangents, roots, strict=True):
            found.setdefault(n, []).append(name)
        calls: list[tuple[int, tuple, tuple]] = []

        def whole(n: Node) -> tuple:
            """The name of a node's gradient, now that there is all of it."""
            if len(found[n]) > 1 or n in sums:
                calls.append((SUM, tuple(found[n]), (("gradient", n.id),)))
                found[n] = [("gradient", n.id)]
            return found[n][0]

        for number, time in self.backwards():
            part, side, halves = self.repeat.parts[number], self.sides[number], self.halves[number]
            reads, results = part.reads[time], part.results[time]
            given = [whole(results[k]) for k in side.tangents]
            made: list[tuple | None] = [None] * len(halves.backward.outputs)
            for k, at in zip(side.wrt, halves.grads, strict=True):
                if at is not None:
                    shared = made[at] = made[at] or ("gradient", reads[k].id, number, time, k)
                    found.setdefault(reads[k], []).append(shared)
            calls.append((number, (*[("saved", k) for k in self.saved_by[number][time]], *given), tuple(made)))
        order = {n: k for k, n in enumerate(n for n in wrt if n in found)}
        gradients = tuple(map(whole, order))
        return Course(graphs, unaligned, (*[("saved", k) for k in range(len(self.saved))], *tangents),
                      tuple([layout.empty_like(n.type) for n in roots]), tuple(calls), gradients,
                      tuple((("gradient", n.id), type_) for n, type_ in sums.items())), order

    def backwards(self) -> Iterator[tuple[int, int]]:
        """(number of a part, which time it is done), the last one first."""
        for number in reversed(range(len(self.repeat.parts))):
            for time in reversed(range(len(self.repeat.parts[number].reads))):
                yield number, time
