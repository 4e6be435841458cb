"""Graphs as bytes, by which they are named: the nodes as rows, with the ids that they have, and the size symbols."""

from __future__ import annotations

import copyreg
import io
import pickle
import zlib
from typing import Callable

import torch

from jit.graph.dims import Dim, Larger, Quotient, Remainder, Smaller, Symbol, symbols_of
from jit.graph.ir import Graph, Loc, Node, Output, Ref, TensorType
from jit.graph.nested import holds, of_kind
from jit.graph.shape_env import Predicate, ShapeEnv
from jit.runtime.naming import Naming
from jit.runtime.names import Name, Unnameable, Value, calling, rule
from jit.runtime.packed import Packed, by_value


def written(graph: Graph) -> bytes:
    """The graph as bytes. Raises TypeError, AttributeError or pickle.PicklingError for what only this process has."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file)
    pickler.fast = True  # what is equal is written alike, be it one object or two
    pickler.dump(_rows(graph))
    return file.getvalue()


def read(data: bytes) -> Graph:
    """The graph that ``written`` was given; where its symbols come from is not known any more."""
    return _of_rows(pickle.loads(data))


class PackedGraph:
    """A graph that is kept for later, in a tenth of its memory: ``packed()`` gives it, a new one each time, as ``read``
    does. What its nodes refer to besides plain constants, containers and sizes is kept, and is the same."""

    __slots__ = ("_packed", "_graph")

    def __init__(self, graph: Graph) -> None:
        self._packed: Packed | bytes | None = None
        self._graph = None
        try:
            self._packed = Packed(_rows(graph), containers=True)
        except RecursionError:  # of sizes that are nested deeply
            self._graph = graph

    def __call__(self) -> Graph:
        if self._packed is None:
            return self._graph
        return read(zlib.decompress(self._packed)) if type(self._packed) is bytes else _of_rows(self._packed())


def packed_of_bytes(data: bytes) -> PackedGraph:
    """What was ``written`` and compressed, as it is: few ask for what is in it."""
    packed: PackedGraph = object.__new__(PackedGraph)
    packed._packed, packed._graph = data, None
    return packed


by_value(Dim, Symbol, Quotient, Remainder, Larger, Smaller, TensorType, Loc, Ref, Predicate, Graph)


def _rows(graph: Graph) -> tuple:
    """A graph as plain data, and the sizes, types and places in it."""
    nodes = tuple([(n.id, n.op, tuple([i.id for i in n.inputs]), tuple(n.attrs.items()), n.type, n.loc)
                   for n in graph.nodes])
    outputs = tuple([(o.node.id, o.mutates) for o in graph.outputs])
    env = graph.env
    symbols = env.prefix, tuple(env.origins), tuple(env.symbols.items()), tuple(env.guards)
    return (tuple([i.id for i in graph.inputs]), nodes, outputs, symbols, tuple(graph.origins.items()), graph.next_id)


def _of_rows(data: tuple) -> Graph:
    inputs, rows, outputs, (prefix, origins, symbols, guards), stands_for, next_id = data
    symbols = dict(symbols)
    env = ShapeEnv(prefix)
    env.origins.update(dict.fromkeys(origins))
    env.symbols.update(symbols)
    env.guards += guards
    env._seen.update(dict.fromkeys(guards))
    nodes: dict[int, Node] = {}
    for number, op, read_, attrs, type_, loc in rows:
        nodes[number] = Node(number, op, tuple(nodes[k] for k in read_), dict(attrs), type_, loc)
    graph = Graph([nodes[k] for k in inputs], list(nodes.values()),
                  [Output(nodes[k], mutates) for k, mutates in outputs], env)
    graph.origins, graph.next_id = dict(stands_for), next_id
    for dim in (*symbols.values(), *(p.expr for p in guards)):
        _belongs(dim, env)
    _take_over(graph, env)
    return graph


def _take_over(graph: Graph, env: ShapeEnv) -> None:
    """Have what is decided about the sizes in a graph, and in those that its nodes have, recorded in ``env``."""
    graph.env = env
    for node in graph.nodes:
        types = of_kind(TensorType, (node.attrs, node.types))
        for dim in of_kind(Dim, (node.attrs, [(t.shape, t.strides) for t in types])):
            _belongs(dim, env)
        for inner in of_kind(Graph, node.attrs):
            _take_over(inner, env)


def _belongs(dim: Dim, env: ShapeEnv) -> None:
    for symbol in symbols_of(dim):
        symbol.env = env


def _rows_of_part(graph: Graph) -> tuple:
    """How a graph is written that a node of another one has, such as the scores of an attention. Its sizes are those of
    the graph around it."""
    return _of_rows, (_rows(graph),)


copyreg.pickle(Graph, _rows_of_part)


@rule(Graph)
def _name_of_graph(naming: Naming, graph: Graph) -> Name:
    return _named(graph, lambda data: calling(read, Value(data)))


@rule(PackedGraph)
def _name_of_packed(naming: Naming, packed: PackedGraph) -> Name:
    if type(packed._packed) is bytes:
        return calling(packed_of_bytes, Value(packed._packed))
    return _named(packed(), lambda data: calling(packed_of_bytes, Value(zlib.compress(data, 1))))


def _named(graph: Graph, name: Callable[[bytes], Name]) -> Name:
    """The name of a graph by its bytes."""
    try:
        if any(holds(torch.Generator, n.attrs) for n in graph.nodes):
            return Unnameable("a graph that draws from a generator of the program's own")
        return name(written(graph))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        return Unnameable(f"a graph with what only this process has: {error}")
