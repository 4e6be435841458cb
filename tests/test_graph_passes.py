"""Passes: each rule fires where it should, not where it must not, and keeps values. check() compares before and after
every graph."""

import pytest
import torch
from graph_harness import check, trace

from jit.graph.passes import optimize
from jit.graph.passes.simplify import holds_exactly
from jit.graph.verify import verify

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
