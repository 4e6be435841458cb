"""Gradients outside of ``torch.func``: ``torch.autograd.grad``, ``backward``, ``torch.autograd.functional``, and dual
numbers of ``torch.autograd.forward_ad``; some arguments require grad."""

from __future__ import annotations

from ..grammar import rules
from .theme import Theme

PRELUDE = """
import torch.autograd.forward_ad as fwAD
from torch.autograd import functional

CLOSE = 2e-4  # derivatives may be rounded in another order

def leaf(x):
    return x.detach().clone().requires_grad_()

def gradient(fn, x, **options):
    x = leaf(x)
    return torch.autograd.grad(fn(x).sum(), x, allow_unused=True, **options)[0]

def backward(fn, x):
    x = leaf(x)
    fn(x).sum().backward()
    return x

def tangent(fn, x):
    with fwAD.dual_level():
        value = fwAD.unpack_dual(fn(fwAD.make_dual(x, torch.ones_like(x))))
        return value.primal if value.tangent is None else value.tangent

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k=2):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * ctx.k + x.detach() * 0, None
"""

TENSORS = rules("""
    leaf(<ft>) | 4
    leaf(<ft>) * <int> | 2
    gradient(lambda x: <inner>, <ft>) | 3
    gradient(lambda x: <inner>, <ft>, create_graph=True) | 1
    gradient(lambda x: gradient(lambda x: <inner>, x, create_graph=True), <ft>) | 0.5
    backward(lambda x: <inner>, <ft>) | 2
    backward(lambda x: <inner>, <ft>).grad | 2
    tangent(lambda x: <inner>, <ft>) | 3
    tangent(torch.sin, <ft>)
    Double.apply(<ft>) | 1
    Double.apply(leaf(<ft>), <int>) | 1
    gradient(lambda x: Double.apply(<inner>), <ft>) | 1
    functional.jacobian(lambda x: <inner>, <ft>) | 1.5
    functional.jacobian(lambda x: <inner>, <ft>, create_graph=True) | 0.5
    functional.jacobian(lambda x, y: <inner> * y, (<ft>, <ft>))[1] | 0.7
    functional.hessian(lambda x: <inner>.sum(), <ft>) | 1
    functional.vjp(lambda x: <inner>.sum(), <ft>)[1] | 1
    (lambda v<#>: functional.vjp(lambda x: <inner>, v<#>, v<#>)[1])(<ft>) | 0.7
    (lambda v<#>: functional.jvp(lambda x: <inner>, v<#>, torch.ones_like(v<#>))[1])(<ft>) | 1
    (lambda v<#>: functional.hvp(lambda x: <inner>.sum(), v<#>, v<#>)[1])(<ft>) | 0.7
    (lambda v<#>: functional.vhp(lambda x: <inner>.sum(), v<#>, v<#>)[1])(<ft>) | 0.7
    <tensor.name>.detach() | 1
    <tensor.name>.float().requires_grad_() | 0.7
    """)

STATEMENTS = [
    ("<tensor.new> = leaf(<ft>)", 3), ("<tensor.new> = backward(lambda x: <inner>, <ft>)", 1),
    ("<tensor.name>.float().sum().backward()", 0.7), ("(<tensor> * leaf(<ft>)).sum().backward()", 0.7),
    ("log.append(<tensor.name>.grad)", 1), ("<tensor.name>.grad = None", 0.7), ("log.append(<tensor>.is_leaf)", 0.6),
    ("<tensor.name>.requires_grad_(<bool>)", 0.5), ("log.append(torch.is_grad_enabled())", 0.5),
    ("<tensor.new> = leaf(<ft>)\n<tensor.name>.sin().sum().backward()\nlog.append(<tensor.name>.grad)", 1),
    ("leaf_<#> = leaf(<ft>)\nout_<#> = (lambda x: <inner>)(leaf_<#>)\nout_<#>.sum().backward()\n"
     "log.append(leaf_<#>.grad)\n<tensor.new> = leaf_<#>", 1.5),
    ("leaf_<#> = leaf(<ft>)\nwith torch.no_grad():\n    leaf_<#>.sub_(<int>)\n<block>\n"
     "log.append((leaf_<#> * 2).sum())", 1),
    ("with fwAD.dual_level():\n    dual_<#> = fwAD.make_dual(torch.ones(3), torch.arange(3.0))\n"
     "    out_<#> = (lambda x: <inner>)(dual_<#>)\n    log.append(tuple(fwAD.unpack_dual(out_<#>)))", 2),
    ("with fwAD.dual_level():\n    dual_<#> = fwAD.make_dual(leaf(torch.ones(3)), torch.ones(3))\n"
     "    dual_<#> = dual_<#> * 2\n<block>\n    log.append(fwAD.unpack_dual(dual_<#>.sin()).tangent)", 0.7),
    ("with torch.set_grad_enabled(<bool>):\n<block>", 0.7), ("with torch.inference_mode():\n<block>", 0.3),
    ("with torch.enable_grad():\n<block>", 0.5),
    ("leaf_<#> = leaf(<ft>)\nleaf_<#>.register_hook(lambda g: g * 2)\n(leaf_<#> * <int>).sum().backward()\n"
     "log.append(leaf_<#>.grad)", 0.7),
]

ARGUMENTS = ("torch.arange(3.0, requires_grad=True)", "torch.ones(3, requires_grad=True) * 2",
             "torch.arange(6.0).view(2, 3).requires_grad_()", "torch.arange(6.0, requires_grad=True).view(3, 2).t()")
THEME = Theme(PRELUDE, {"tensor": TENSORS}, STATEMENTS, ARGUMENTS)
