"""Passes: each rule fires where it should, not where it must not, and keeps values. check() compares before and after
every graph."""

import dataclasses

import pytest
import torch
from graph_harness import check, trace

from jit import config
from jit.graph.ir import Graph, TensorType
from jit.graph.interpret import evaluate
from jit.graph.passes import SCHEDULED, STANDARD, optimize, run_passes
from jit.graph.passes.gradients import without_gradients
from jit.graph.passes.simplify import holds_exactly
from jit.graph.prims import infer
from jit.graph.verify import InvalidGraph, verify

pytestmark = pytest.mark.usefixtures("eager_numbers")

X = torch.randn(3, 4)
H = X.bfloat16()


def ops(fn, *inputs):
    check(fn, *inputs)
    graph = verify(optimize(trace(fn, *inputs)[0]))
    return [n.op for n in graph.nodes if n.op not in ("input", "scalar")]


@pytest.mark.parametrize(
    "fn, inputs, expected",
    [
        (lambda x: ((x * 1 + 1) / 1).exp(), (X,), ["add", "exp"]),
        (lambda x: x + 0, (X,), ["add"]),  # -0.0 + 0.0 is 0.0
        (lambda x: (x - 0).exp(), (X,), ["exp"]),
        (lambda x: (x + -0.0).exp(), (X,), ["exp"]),
        (lambda x: (x.to(torch.int64) + 0) * 2, (X,), ["cast", "mul"]),
        (lambda x: x.double().float().exp(), (X,), ["exp"]),
        (lambda x: x.bfloat16().float().exp(), (X,), ["cast", "cast", "exp"]),
        (lambda h: h.float().bfloat16().exp(), (H,), ["exp"]),
        (lambda h: h.half().bfloat16().exp(), (H,), ["cast", "cast", "exp"]),
        (lambda x: x.t().t().exp(), (X,), ["exp"]),
        (lambda x: x.view(12).view(2, 6).exp(), (X,), ["reshape", "exp"]),
        (lambda x: x[1:][1:].exp(), (X,), ["slice", "exp"]),
        (lambda x: x.clone().exp(), (X,), ["exp"]),
        (lambda x: x.clone(), (X,), ["clone"]),
        (lambda x: (x + 1) * (x + 1), (X,), ["add", "mul"]),
        (lambda x: (x + 1, x + 1), (X,), ["add", "add"]),
        (lambda x: (x + 1, (x + 1).exp()), (X,), ["add", "exp"]),
        (lambda x: (torch.zeros(3, 4) + 1) * 2 * x, (X,), ["full", "mul"]),
        (lambda x: -(-x).relu().relu(), (X,), ["neg", "relu", "neg"]),
        (lambda x: torch.cat([x, x * 2])[3:].exp(), (X,), ["mul", "exp"]),
        (lambda x: (x * 0), (X,), ["mul"]),
        (lambda x: x.exp() if True else x, (X,), ["exp"]),
        (lambda x: (torch.rand(2), torch.rand(2)), (X,), ["aten_call", "aten_call"]),
    ],
)
def test_rules(fn, inputs, expected):
    assert ops(fn, *inputs) == expected


def test_dead_code_keeps_random_order():
    def f(x):
        torch.rand(3)
        x * 3
        return torch.rand(2)

    assert ops(f, X) == ["aten_call", "aten_call"]


def test_holds_exactly():
    values = {
        torch.bfloat16: torch.randn(2000).mul(100).bfloat16(),
        torch.float16: torch.randn(2000).half(),
        torch.float32: torch.randn(2000),
        torch.int64: torch.randint(-(2**62), 2**62, (2000,)),
        torch.int32: torch.randint(-(2**31), 2**31 - 1, (2000,)).int(),
        torch.int16: torch.arange(-32768, 32767).short(),
        torch.uint8: torch.arange(256).byte(),
        torch.int8: torch.arange(-128, 128).char(),
        torch.bool: torch.tensor([True, False]),
        torch.float64: torch.randn(2000, dtype=torch.float64),
    }
    for narrow, v in values.items():
        for wide in values:
            if holds_exactly(wide, narrow):
                assert torch.equal(v.to(wide).to(narrow), v), (wide, narrow)


# Programs in which each pass finds something to do.
CHANGED = {
    "name_written_values": (lambda x: x.copy_((x + 1).detach()), X.clone()),
    "eliminate_dead_nodes": (lambda x: (x + 1, x.exp()), X),  # of which the second is taken from the results
    "merge_seeds": (lambda x: (torch.nn.functional.dropout(x), torch.nn.functional.dropout(x + 1)), X),
    "compute_empty": (lambda x: (x[:0].exp(), x[:, :0].sum(1)), X),
    "fold_constants": (lambda x: (torch.zeros(3) + 1, x + (torch.ones(4) * 2)), X),
    "simplify": (lambda x: x.t().t().exp() * 1, X),
    "merge_equal_nodes": (lambda x: ((x + 1).exp() * (x + 1).exp(), x + 1), X),
    "keep_checks": (lambda x, i: x[i][:1, :1], X, torch.tensor([0, 2])),
    "without_gradients": (lambda x: x.detach().exp(), X),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_pass_gives_another_graph_and_leaves_its_own(name, kernel_numbers):
    fn, *inputs = CHANGED[name]
    with config.patch(fallback_random=name != "merge_seeds"):
        graph = trace(fn, *inputs, differentiated=name == "without_gradients")[0]
    if name == "eliminate_dead_nodes":
        graph = graph.replace(outputs=graph.outputs[:1])
    (run,) = (p for p in (*STANDARD[:-1], *SCHEDULED, without_gradients) if p.__name__ == name)
    before = repr(graph)
    made = run_passes(graph, (run,))
    assert repr(graph) == before != repr(made)
    assert run_passes(made, (run,)) is made or repr(run(made)) == repr(made)
    if name != "merge_seeds":
        ours, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
        torch.testing.assert_close(evaluate(made, ours), evaluate(graph, theirs), rtol=0, atol=0)
        assert all(map(torch.equal, ours, theirs))


def test_a_pass_that_changes_the_graph_that_it_is_given_is_refused():
    def in_place(graph):
        node = graph.nodes[-1]
        node.attrs = {**node.attrs, "precise": True}
        return graph

    with pytest.raises(InvalidGraph, match="in_place changes the graph that it is given"):
        run_passes(trace(lambda x: x.exp(), X)[0], (in_place,))


def changed(graph, at, **parts):
    """The graph with another node in the place of number ``at`` in its list, which the ones behind read."""
    new = {}
    for n in graph.nodes:
        kept = n.replace(inputs=tuple([new[i] for i in n.inputs]))
        new[n] = kept.replace(**parts) if n is graph.nodes[at] else kept
    outputs = [dataclasses.replace(o, node=new[o.node]) for o in graph.outputs]
    return Graph([new[n] for n in graph.inputs], list(new.values()), outputs, graph.env)


@pytest.mark.parametrize("at, parts", [
    (-1, {"type": TensorType.contiguous((4, 3), torch.float32, X.device)}),
    (-2, {"type": TensorType.contiguous((3, 4), torch.float64, X.device)}),
    (-1, {"attrs": {"dims": (0,), "keepdim": False}}),
    (-2, {"op": "unheard_of"}),
])
def test_what_a_pass_makes_wrong_is_found_behind_one_that_was_checked(at, parts):
    """Nodes that are as they were are not checked again; those that are not are, whatever was checked before."""
    graph = trace(lambda x: (x + 1).exp().sum(1), X)[0]

    def same(graph):
        return changed(graph, 0)

    def wrong(graph):
        return changed(graph, at, **parts)

    with pytest.raises(InvalidGraph, match="after wrong"):
        run_passes(graph, (same, same, wrong))


def test_what_is_as_it_was_is_inferred_once(monkeypatch):
    asked = []
    monkeypatch.setattr("jit.graph.verify.infer", lambda op, *given: asked.append(op) or infer(op, *given))
    graph = trace(lambda x: (x + 1).exp().sum(1), X)[0]
    run_passes(graph, (lambda graph: changed(graph, 0),) * 4)
    assert sorted(asked) == ["add", "exp", "sum"]
