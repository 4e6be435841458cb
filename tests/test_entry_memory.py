"""How much an entry keeps on the host: the size of all that is reached from it, and records that are packed."""

import gc
import sys
from pathlib import Path

import pytest
import torch

import jit
from jit.frame import dispatch
from jit.graph.dims import Dim, symbols_of
from jit.graph.ir import Graph, Node
from jit.graph.nested import of_kind
from jit.graph.passes.cse import attributes_key
from jit.graph.writing import PackedGraph, read, written
from jit.runtime.packed import Packed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import compile_memory  # noqa: E402


def kept_by(model, *arguments):
    """(entries, kind -> bytes, class -> (number, bytes)) of what compiling a training step leaves."""
    known = list(dispatch._dispatchers)  # kept: no new one gets the place of one that is gone
    there = compile_memory.freeze()
    try:
        compiled = jit.compile(model)
        compiled(*arguments).sum().backward()
        made = [d for d in list(dispatch._dispatchers) if not any(d is one for one in known)]
        return compile_memory.walk(made, there)[:3]
    finally:
        gc.unfreeze()


def test_bytes_of_an_entry_of_a_transformer_of_four_layers():
    """It was 626 KB with graphs and steps of plans as they are, on CPython 3.11."""
    jit.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()))(torch.randn(4, 8)).sum().backward()
    model, arguments, _ = compile_memory.build("layers4", "cpu")
    entries, kinds, classes = kept_by(model, *arguments)
    assert len(entries) == 1
    nodes = [name for name in classes if name.startswith("jit.graph.ir.Node")]
    assert nodes == [] and "guards" in kinds  # the walk comes to what there is, and no graph is there
    assert sum(kinds.values()) < 420_000, kinds
    assert kinds["plans"] + kinds["graphs"] < 75_000, kinds


class Thing:
    pass


def test_a_packed_record_is_equal_and_what_is_no_plain_data_is_the_same():
    thing, numbers = Thing(), [1, 2]
    record = (1, -0.0, "a", (True, None, 1j), thing, numbers, torch.float32, Thing, thing, float("nan"), 1 << 80)
    packed = Packed(record)
    for _ in range(2):
        found = packed()
        assert found[4] is thing is found[8] and found[5] is numbers and found[7] is Thing
        assert repr(found) == repr(record) and type(found[3][0]) is bool


def captured(fn):
    """The graph of a function of a matrix, with a symbol for its first size."""
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return lambda *given: (given[0],)

    jit.compile(fn, backend=backend, dynamic=True)(torch.ones(5, 3))
    return seen[0]


def test_a_packed_graph_is_the_same():
    graph = captured(lambda x: torch.sin(x) * x.shape[0])
    packed = PackedGraph(graph)
    read = packed()
    assert read.python() == graph.python() and [repr(n) for n in read.nodes] == [repr(n) for n in graph.nodes]
    assert not set(map(id, read.nodes)) & set(map(id, graph.nodes)) and isinstance(read.nodes[0], Node)
    assert read.env is not graph.env and read.env.guards == graph.env.guards and read.next_id == graph.next_id
    assert all(s.env is None or s.env is read.env for d in read.env.symbols.values() for s in symbols_of(d))


def test_second_derivatives_of_a_packed_graph():
    def f(x, w):
        return torch.tanh(x @ w).pow(3).sum(-1)

    def gradients(fn):
        torch.manual_seed(0)
        x, w = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        (g,) = torch.autograd.grad(fn(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sin().sum(), (x, w))

    for ours, eager in zip(gradients(jit.compile(f)), gradients(f), strict=True):
        torch.testing.assert_close(ours, eager)


def test_facts_that_say_the_same_are_one_object():
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)])
    compiled = jit.compile(model)
    compiled(torch.ones(2, 4))
    facts = [c[3] for d in list(dispatch._dispatchers) for e in d.entries if e.guards is not None
             for c in e.guards.checks if len(c) > 3]
    same = {}
    for fact in facts:
        same.setdefault(str(fact), set()).add(id(fact))
    assert min(map(len, same.values())) == 1 and len({id(f) for f in facts}) < len(facts) * 0.8


@pytest.mark.parametrize("value", [{"a": 1}, {1, 2}, [1]])
def test_containers_that_can_change_are_the_same_object(value):
    assert Packed((value,))()[0] is value
    found = Packed((value, Thing), containers=True)()[0]
    assert found == value and found is not value


def test_sizes_in_dicts_of_a_packed_graph_are_its_own():
    """Those of the first graph keep the ranges that they are in."""
    graph = captured(lambda x: torch.full(size=(x.shape[0], 3), fill_value=1.5) + x)
    first = {id(s) for d in graph.env.symbols.values() for s in symbols_of(d)}
    env = graph.env
    again = PackedGraph(graph)()
    assert first and all(s.env is env for d in graph.env.symbols.values() for s in symbols_of(d))
    assert not first & {id(s) for d in of_kind(Dim, [n.attrs for n in again.nodes]) for s in symbols_of(d)}


@pytest.mark.parametrize("again", [lambda graph: PackedGraph(graph)(), lambda graph: read(written(graph))],
                         ids=["packed", "written"])
def test_graphs_that_nodes_have(again):
    """As the scores of an attention: written as rows like the one around them, whose sizes theirs are."""
    graph = captured(lambda x: torch.sin(x) * x.shape[0])
    own = PackedGraph(graph)()
    own.env.scaled = lambda size, factor: None  # only a capture has it
    graph.nodes[-1].attrs["args"] = (1, (own,))
    found = again(graph)
    (inner,) = of_kind(Graph, found.nodes[-1].attrs)
    assert repr(inner) == repr(own) and inner.env is found.env
    dims = [d for n in inner.nodes for d in of_kind(Dim, (n.attrs, n.type.shape))]
    assert dims and all(s.env is found.env for d in dims for s in symbols_of(d))
    assert attributes_key(found.nodes[-1]) == attributes_key(graph.nodes[-1])
    inner.nodes[-1].attrs["other"] = 2
    assert attributes_key(found.nodes[-1]) != attributes_key(graph.nodes[-1])


def test_a_graph_that_is_nested_too_deeply_is_kept(monkeypatch):
    def fails(record, containers):
        raise RecursionError

    monkeypatch.setattr("jit.graph.writing.Packed", fails)
    graph = captured(torch.sin)
    assert PackedGraph(graph)() is graph
