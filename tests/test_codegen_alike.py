"""Groups that are alike are lowered once: what comes of it is what lowering each of them gives, and what differs in
anything is no such group."""

import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from codegen_graphs import compare, compile_reference, moved, trace
from graph_harness import trace as traced

import jit
from jit.codegen import Options, alike, lower, planner, reference
from jit.graph.autodiff import differentiate
from jit.graph.interpret import evaluate
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

GPU = torch.device("cuda", 0)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = F.gelu(self.up(self.norm(x)), approximate="tanh")
        return x + self.down(y.softmax(-1) * y.flip(-1))


def layers(n):
    torch.manual_seed(0)
    return nn.Sequential(*[Layer(8) for _ in range(n)])


def mixture(x, i):
    """Concatenations, scans, sorts, lookups, scatters and sums of few long rows, some of them twice."""
    out = []
    for k in range(2):
        y = torch.cat([x * 2, x.flip(0)]).cumsum(0)
        out.append(y.sort(-1)[0] + y.index_select(0, i).sum())
        out.append(torch.scatter_add(x, 0, torch.zeros_like(x, dtype=torch.int64), x * (k + 1)))
        out.append(F.pad(x, (1, 2)).roll(1, 0).softmax(-1) * x.std() + x.argmax(-1, keepdim=True))
        out.append(x.expand(400, *x.shape).sum((1, 2)) + x.repeat(700, 1).sum(0).mean())
        x = x.sin()
    return out


def lowered_each(self, group, name):
    """``Alike.lower`` without a memory."""
    places = {n: lower.Place(s, (s if s.kind == "input" else n).type.strides, 0, n.type.dtype)
              for n, s in self.storages.items()}
    stored = {m.node: places[m.node] for m in group.members if m.node in places}
    return lower.lower_group(group, places.get, stored, name)


@pytest.fixture
def plans(monkeypatch):
    """The plans and kernels of all that is scheduled, as text."""
    found, finish = [], planner.Planner.finish

    def noted(self):
        compiled = finish(self)
        text = re.sub("0x[0-9a-f]+", "", compiled.plan.text())  # where functions were loaded
        found.append((text, compiled.kernels, [k.text() for k in compiled.launches]))
        return compiled

    monkeypatch.setattr(planner.Planner, "finish", noted)
    return found


def both_ways(run, plans, monkeypatch):
    """What ``run()`` gives, having compared the plans that it makes with those without a memory."""
    plans.clear()
    result = run()
    made = plans[:]
    plans.clear()
    with monkeypatch.context() as m:
        m.setattr(alike.Alike, "lower", lowered_each)
        run()
    assert made and plans == made
    return result


def test_plans_are_those_of_each_group_by_itself(plans, monkeypatch):
    model, x = layers(3), torch.randn(4, 8)

    def forward():
        with torch.no_grad():
            return jit.compile(lambda x: model(x))(x)

    def trained():
        model.zero_grad()
        jit.compile(lambda x: model(x).square().mean())(x).backward()
        return [p.grad for p in model.parameters()]

    torch.testing.assert_close(both_ways(forward, plans, monkeypatch), model(x))
    got = both_ways(trained, plans, monkeypatch)
    model.zero_grad()
    model(x).square().mean().backward()
    torch.testing.assert_close(got, [p.grad for p in model.parameters()])


@pytest.mark.parametrize("shapes", [((6, 9),), ((6, 9), (7, 11))], ids=["static", "symbolic"])
def test_plans_of_other_kernels(shapes, plans, monkeypatch):
    inputs = [(torch.randn(s), torch.tensor([0, 3, 1] * 4)[: 2 * s[0]]) for s in shapes]

    def run():
        fn = jit.compile(mixture)
        return [fn(x, i) for x, i in inputs]

    inputs = [(x, torch.arange(2 * len(x)).flip(0)) for x, _ in inputs]
    torch.testing.assert_close(both_ways(run, plans, monkeypatch), [mixture(*i) for i in inputs], rtol=1e-4, atol=1e-4)


def test_plans_of_kernels_with_columns(plans, monkeypatch):
    """On GPUs a norm's gradient takes the sums for its weights along."""
    def fn(x, *weights):
        for w, b in zip(weights[::2], weights[1::2]):
            x = F.layer_norm(x, x.shape[-1:], w, b).sin()
        return x.sum()

    tensors = [torch.randn(4096, 256), *[torch.randn(256) for _ in range(6)]]
    graph, *_ = traced(fn, *tensors, differentiated=True)
    joint = differentiate(graph, range(7), [0])
    graph = moved(run_passes(run_passes(joint.graph, STANDARD), SCHEDULED), GPU)

    def kernels():
        p = planner.Planner(graph, Options())
        p.schedule()
        assert any(getattr(g, "columns", None) for g in planner.fusion.fuse(p.graph).order)
        return [k.key for k in p.launches]

    made = kernels()
    monkeypatch.setattr(alike.Alike, "lower", lowered_each)
    assert made == kernels()


def test_more_layers_are_not_more_to_lower(monkeypatch):
    counts, made = [], lower.lower_group

    def counted(*args):
        counts[-1] += 1
        return made(*args)

    monkeypatch.setattr(lower, "lower_group", counted)
    for n in (4, 8):
        counts.append(0)
        model = layers(n)
        jit.compile(lambda x: model(x).sum())(torch.randn(4, 8)).backward()
    assert 0 < counts[0] == counts[1], counts


def alone(b, x):
    """``x`` behind what no kernel reads through."""
    return b.aten("aten::mul", "Scalar", (x, 1), x.type)


DIFFERENT = {
    "number": lambda b, x, y: (b.where(b.gt(x, 0.0), 0.0, x), b.where(b.gt(y, 0.0), -0.0, y)),
    "kind of number": lambda b, x, y: (b.add(b.cast(x, torch.int32), 1), b.add(b.cast(y, torch.int32), True)),
    "op": lambda b, x, y: (b.sin(x), b.cos(y)),
    "operands": lambda b, x, y: (b.sub(x, y), b.sub(y, y)),
    "order": lambda b, x, y: (b.sub(x, b.neg(y)), b.sub(b.neg(y), x)),
    "strides": lambda b, x, y: (b.mul(x, 2.0), b.mul(b.permute(y, (1, 0)), 2.0)),
    "part": lambda b, x, y: (b.slice(x, 0, 1, 3), b.mul(b.slice(y, 0, 0, 2), 1.5)),
    "dtype": lambda b, x, y: (b.exp(x), b.exp(b.cast(y, torch.float64))),
    "dimension": lambda b, x, y: (b.sum(x, [0], True), b.sum(y, [1], True)),
}


@pytest.mark.parametrize("fn", DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_not_alike(fn):
    x, y = torch.randn(4, 4), torch.randn(4, 4)

    def program(b, x, y):
        first, second = fn(b, alone(b, x), alone(b, y))
        return alone(b, first), alone(b, second), first, second

    graph = trace(program, [x, y])
    got = reference.run_plan(compile_reference(graph), x, y)
    want = evaluate(graph, [x, y])
    compare(got, want)
    assert all(torch.equal(g.signbit(), w.signbit()) for g, w in zip(got, want))
