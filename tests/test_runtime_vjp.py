"""Operators whose backward a plan asks autograd for: one operator is run again, with its tangents, inside the plan."""

import pytest
import torch
from runtime_harness import aten, c, leaf, s

from jit.runtime import load_plan
from jit.runtime.plan import GradSpec, Plan, load_differentiable
from jit.runtime.steps import Several, Vjp, Wanted


def vjp_plan(n_inputs, step, outputs, n_slots):
    return load_plan(Plan(n_inputs, 0, (), n_slots, (step,), outputs))


def test_vjp_of_one_operator():
    x, w, b, t = torch.randn(2, 3, 8), torch.randn(4, 3, 3), torch.randn(4), torch.randn(2, 4, 8)
    rest = (c((1,)), c((1,)), c((1,)), c(False), c((0,)), c(1))
    step = Vjp("aten::convolution", "", (s(0), Wanted(0), Wanted(1), *rest), (1, 2), (3,), (4, 5), None)
    gw, gb = vjp_plan(4, step, (4, 5), 6)(x, w, b, t)
    w, b = w.requires_grad_(), b.requires_grad_()
    want = torch.autograd.grad(torch.conv1d(x, w, b, padding=1), (w, b), t)
    torch.testing.assert_close((gw, gb), want)
    by_slot = Vjp("aten::convolution", "", (s(0), s(1), s(2), *rest), (1, 2), (3,), (4, 5), None)
    torch.testing.assert_close(vjp_plan(4, by_slot, (4, 5), 6)(x, w.detach(), b.detach(), t), want)
    assert not gw.requires_grad


def test_vjp_tells_positions_of_one_tensor_apart():
    x, t = torch.randn(4), torch.randn(4)
    both = Vjp("aten::mul", "Tensor", (Wanted(0), Wanted(1)), (0, 0), (1,), (2, 3), None)
    assert all(torch.equal(g, x * t) for g in vjp_plan(2, both, (2, 3), 4)(x, t))
    one = Vjp("aten::sub", "Tensor", (Wanted(0), s(2), c(1)), (0,), (1,), (3,), None)
    assert torch.equal(vjp_plan(3, one, (3,), 4)(x, t, x)[0], t)


def test_vjp_of_several_results_and_lists():
    x, t = torch.randn(5, 6), torch.randn(5, 2)
    step = Vjp("aten::topk", "", (Wanted(0), c(2), c(1), c(True), c(True)), (0,), (1, None), (2,), None)
    (got,) = vjp_plan(2, step, (2,), 3)(x, t)
    leafed = x.clone().requires_grad_()
    torch.testing.assert_close(got, torch.autograd.grad(leafed.topk(2, 1).values, leafed, t)[0])
    step = Vjp("aten::split", "Tensor", (Wanted(0), c(2), c(1)), (0,), (None, 1, None), (2,), None)
    (got,) = vjp_plan(2, step, (2,), 3)(x, t)
    want = torch.zeros(5, 6)
    want[:, 2:4] = t
    assert torch.equal(got, want)
    step = Vjp("aten::cat", "", (Several((Wanted(0), s(1), Wanted(1))), c(1)), (0, 2), (3,), (4, 5), None)
    t = torch.randn(2, 9)
    got = vjp_plan(4, step, (4, 5), 6)(torch.randn(2, 3), torch.randn(2, 2), torch.randn(2, 4), t)
    assert torch.equal(got[0], t[:, :3]) and torch.equal(got[1], t[:, 5:])


def test_vjp_without_a_path_is_zero():
    x, t = torch.randn(3), torch.randn(3)
    step = Vjp("aten::sign", "", (Wanted(0),), (0,), (1,), (2,), None)
    assert vjp_plan(2, step, (2,), 3)(x, t)[0].tolist() == [0, 0, 0]
    step = Vjp("aten::argmax", "", (Wanted(0), c(0), c(False)), (0,), (None,), (2,), None)
    assert vjp_plan(2, step, (2,), 3)(x, t)[0].tolist() == [0, 0, 0]


def test_vjp_inside_a_backward_and_under_guards():
    step = Vjp("aten::logcumsumexp", "", (Wanted(0), c(0)), (0,), (1,), (2,), None)
    forward = Plan(1, 0, (), 2, (aten("logcumsumexp", (s(0), c(0)), 1),), (1,))
    f = load_differentiable(forward, Plan(2, 0, (), 3, (step,), (2,)), GradSpec(1, (0,), (0,), (("input", 0),), (0,)))
    x, t = leaf(6), torch.randn(6)
    f(x)[0].backward(t)
    torch.testing.assert_close(x.grad, torch.autograd.grad(x.logcumsumexp(0), x, t)[0])
    plan = vjp_plan(2, step, (2,), 3)
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            torch.testing.assert_close(plan(x.detach(), t)[0].clone(), x.grad)


def test_vjp_expected_layout_and_errors():
    regs = (("const", 3), ("const", 4), ("const", 1))
    args = (Wanted(0),)
    step = Vjp("aten::exp", "", args, (0,), (1,), (2,), (((0, 1), (2, 0)),))
    x, t = torch.randn(3, 4), torch.randn(3, 4)
    (g,) = load_plan(Plan(2, 0, regs, 3, (step,), (2,)))(x, t)
    assert g.stride() == (1, 3)
    torch.testing.assert_close(g, x.exp() * t)
    assert "vjp aten::exp(wanted[0]) wrt [%0] tangents [%1]" in Plan(2, 0, regs, 3, (step,), (2,)).text()
    for bad in (Vjp("aten::exp", "", (Wanted(1),), (0,), (1,), (2,), None),
                Vjp("aten::exp", "", args, (0,), (1,), (2, 2), None)):
        with pytest.raises(ValueError):
            load_plan(Plan(2, 0, regs, 3, (bad,), (2,)))
