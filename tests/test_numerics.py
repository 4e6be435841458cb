"""``jit.verify``: what is right passes, and a kernel or a rule that was broken on purpose is named, with the line of
the program."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from graph_harness import trace
from torch import nn

import jit
from jit.codegen.cpp import ops as cpp
from jit.graph import registry
from jit.graph.autodiff import rules


def line_of(fn, text):
    """The number of the line of a function that has a comment."""
    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def block(x, w):
    y = x @ w
    z = torch.rsqrt(y * y + 1)
    a = torch.sigmoid(z * 3)  # sigmoid
    b = torch.tanh(a - z)  # tanh
    return (b * y).softmax(-1).sum(0)


def inputs(width=8):
    """Of another width where a kernel is broken: what was compiled before is used again."""
    torch.manual_seed(0)
    return torch.randn(6, 16), torch.randn(16, width, requires_grad=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop, self.out = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2),
                                                     nn.Linear(4 * 16, 5))

    def forward(self, x):
        return F.log_softmax(self.out(self.drop(F.gelu(self.norm(self.conv(x))).flatten(1))), -1)


def writes(x):
    y = x.t()[:3]
    x.add_(1)
    return y, x.sum(), x > 0, x.argmax(), x.to(torch.bfloat16) * 3


@pytest.mark.usefixtures("kernel_numbers")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_right_passes(dtype):
    torch.manual_seed(0)
    x, w = inputs()
    report = jit.verify(block)(x.to(dtype), w.detach().to(dtype).requires_grad_())
    assert report.ok and report.checked > 10 and not report.unchecked, str(report)
    assert "as exact as eager" in str(report)
    net = Net().to(dtype)
    net.drop.eval()
    report = jit.verify(net)(torch.randn(2, 3, 6, 6, dtype=dtype))
    assert report.ok and report.checked >= 20 and not report.unchecked, str(report)
    report = jit.verify(net.train())(torch.randn(2, 3, 6, 6, dtype=dtype))
    assert report.ok and report.checked >= 25 and [u for u in report.unchecked
                                                   if "fallback_random" in u] == report.unchecked, str(report)
    with jit.config.patch(fallback_random=True):
        report = jit.verify(net.train())(torch.randn(2, 3, 6, 6, dtype=dtype))
    assert report.ok and "dropout" in report.unchecked[0], str(report)


def test_writes_views_indices_and_sizes():
    for dynamic in (None, True):
        x = torch.randn(5, 7)
        report = jit.verify(writes, dynamic=dynamic)(x)
        assert report.ok and report.checked >= 5 and not report.unchecked, str(report)
    y, total, positive, *_ = report.result
    torch.testing.assert_close(y, x.t()[:3])
    torch.testing.assert_close(total, x.sum())
    x, token = torch.randn(4, 1).expand(4, 6), torch.randn(1, 1, 6, requires_grad=True)
    report = jit.verify(lambda x, t: torch.cat([t.expand(4, -1, -1), x[:, None] * t.expand(4, 2, 6)], 1).mean(1))(
        x, token)
    assert report.ok and report.checked and not report.unchecked, str(report)
    assert jit.verify(lambda x: x.exp() + x[:, ::2].sum())(x).ok


def test_a_break_gives_a_graph_for_each_part():
    def f(x):
        y = x * 2
        jit.graph_break()
        return y.exp()

    report = jit.verify(f)(torch.randn(8))
    assert report.ok and report.graphs == 2


@pytest.mark.parametrize("op", ["sigmoid", "rsqrt"])
def test_a_broken_kernel_is_named(monkeypatch, op):
    right = cpp.OPS[op]
    monkeypatch.setitem(cpp.OPS, op, lambda *args: f"({right(*args)} * 1.0001f)")
    report = jit.verify(block)(*inputs(10 + len(op)))
    fault = report.faults[0]
    assert not report.ok and (fault.what, fault.op) == ("value", op), str(report)
    assert fault.loc[0] == __file__ and fault.loc[2] == "block" and fault.error > fault.allowed > fault.eager_error
    if op == "sigmoid":
        assert fault.loc[1] == line_of(block, "# sigmoid") and f"{__file__}:{fault.loc[1]}" in str(report)
    with pytest.raises(AssertionError, match=op):
        report.raise_if_wrong()


def test_the_line_of_the_program_is_named_where_a_module_computes(monkeypatch):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act = nn.Linear(8, 8), nn.Sigmoid()

        def forward(self, x):
            y = self.first(x)
            return self.act(y) * y  # sigmoid

    right = cpp.OPS["sigmoid"]
    monkeypatch.setitem(cpp.OPS, "sigmoid", lambda *args: f"({right(*args)} + 1e-4f)")
    fault = jit.verify(Model(), gradients=False)(torch.randn(4, 8)).faults[0]
    assert (fault.op == "sigmoid" and fault.user[:2] == (__file__, line_of(Model.forward, "# sigmoid"))
            and fault.loc[2] == "Sigmoid.forward")


def test_a_broken_gradient_is_named(monkeypatch):
    right = rules.VJPS["tanh"]

    def wrong(b, n, g):
        return tuple(b.mul(r() if callable(r) else r, b.scalar(1.001, g.dtype, g.device)) for r in right(b, n, g))

    monkeypatch.setitem(rules.VJPS, "tanh", wrong)
    report = jit.verify(block)(*inputs(9))
    fault = report.faults[0]
    assert (fault.what, fault.op, fault.loc[1]) == ("gradient", "tanh", line_of(block, "# tanh")), str(report)
    assert jit.verify(block, gradients=False)(*inputs(9)).ok


def test_a_wrong_expansion_is_found_by_the_result(monkeypatch):
    entry = registry.OPS["softplus"]
    monkeypatch.setitem(registry.OPS, "softplus", type(entry)(entry.name, lambda b, x, *args: b.exp(x)))
    report = jit.verify(lambda x: F.softplus(x))(torch.randn(8))
    assert [f.what for f in report.faults] == ["program"] and "the result" in str(report)


def test_what_cannot_be_checked_is_said():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    report = jit.verify(lambda x: Double.apply(x).exp())(torch.randn(4, requires_grad=True))
    assert report.ok and "autograd.Function" in report.unchecked[0] and "not checked: graph 1" in str(report)
    report = jit.verify(jit.disable(lambda x: x * 2))(torch.ones(2))
    assert report.ok and "nothing was compared" in str(report) and torch.equal(report.result, torch.full((2,), 2.0))


@pytest.mark.usefixtures("eager_numbers")
def test_what_is_compiled_already_is_compared_with_the_original():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = torch.randn(3, 4)
    for thing in (jit.compile(net), jit.compile(lambda x: torch.rand(3) + x.sum())):
        torch.manual_seed(1)
        report = jit.verify(thing)(x)
        torch.manual_seed(1)
        assert report.ok and report.checked, str(report)
        torch.testing.assert_close(report.result, getattr(thing, "__wrapped__", net)(x))


def test_a_wrong_program_of_a_compiled_module_is_found(monkeypatch):
    entry = registry.OPS["softplus"]
    net = nn.Sequential(nn.Linear(4, 7), nn.Softplus())
    monkeypatch.setitem(registry.OPS, "softplus", type(entry)(entry.name, lambda b, x, *args: b.exp(x)))
    assert [f.what for f in jit.verify(jit.compile(net))(torch.randn(3, 4)).faults] == ["program"]


def test_a_norm_of_order_three_multiplies():
    """A power is computed of the sum alone: multiplications are several times cheaper than one for each element."""
    graph, *_ = trace(lambda x: (x.norm(3, dim=-1), torch.linalg.vector_norm(x, 3, dim=0)), torch.randn(6, 5))
    powers = [n for n in graph.nodes if n.op == "pow"]
    assert powers and all(n.type.shape in ((6,), (5,)) for n in powers)
