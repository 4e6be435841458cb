"""Control flow as operators: ``torch.cond``, ``while_loop``, ``scan`` and ``map``.

In eager PyTorch starts its own compiler for each of them, so that the program in eager has functions in their places
that say in Python what they give (``IN_EAGER``). A compiled program that calls the operators themselves in a frame left
to eager is no test. Nor is one in which something of the program's sees the single calls that an operator is made of, a
mode or the class of a tensor that it is given: what they are is PyTorch's own affair.
"""

from __future__ import annotations

import contextlib

import torch
import torch._higher_order_ops as operators
from torch import overrides
from torch._higher_order_ops import utils as higher_order
from torch.utils import _pytree as pytree

from ..grammar import rules
from .theme import Theme

PRELUDE = """
from torch._higher_order_ops import map as map_, scan, while_loop
cond = torch.cond

CLOSE = 2e-4  # derivatives may be rounded in another order
"""

TENSORS = rules("""
    cond(<tensor>.sum() > <int> + 0.3, lambda x: <inner>, lambda x: <inner>, (<ft>,)) | 6
    cond(<bool>, lambda x: <inner>, lambda x: <inner>, (<ft>,)) | 3
    cond(<tensor.name>.dim() > 1, lambda x: <inner>, lambda x: <inner>, [<ft>]) | 2
    cond(<tensor>.float().mean() < 1.3, lambda x, y: <inner> * y, lambda x, y: x - y, (<ft>, <ft>)) | 2
    cond(<tensor>.any(), lambda x: (<inner>, x * 2), lambda x: (x, <inner>), (<ft>,))[1]
    cond(<bool>, lambda: <tensor.name> * 2, lambda: <tensor.name> + <int>)
    while_loop(lambda i, x: i < <int> % 4, lambda i, x: (i + 1, <inner>), (torch.tensor(0), <ft>))[1] | 3
    while_loop(lambda x: x.abs().sum() < 9.3, lambda x: (x * 2 + 1.5,), (torch.arange(3.0),))[0] | 2
    scan(lambda c, x: (c + x.sum(), <inner>), torch.tensor(0.0), <ft>)[1] | 3
    scan(lambda c, x: (c * 0.5 + x, c.sin()), torch.zeros(3), torch.arange(6.0).view(2, 3))[0] | 2
    scan(lambda c, x: (c + x.sum(), <inner>), torch.tensor(<float>), <ft>, reverse=<bool>)[1] | 2
    scan(lambda c, x: (c + x, c * 1), torch.zeros(2), torch.arange(6.0).view(2, 3), dim=1)[1]
    map_(lambda x: <inner>, <ft>) | 4
    map_(lambda x, w: <inner> * w.sum(), <ft>, <ft>) | 2
    map_(lambda d<#>: d<#>['x'] * d<#>['y'], {'x': torch.arange(3.0), 'y': torch.ones(3)})
    map_(lambda x: cond(<bool>, lambda x: <inner>, lambda x: x, (x,)), <ft>)
    """)

STATEMENTS = [
    ("<tensor.new> = cond(<tensor.name>.float().sum() > 1.3, lambda x: <inner>, lambda x: <inner>, (<ft>,))", 2),
    ("<tensor.new> = map_(lambda x: <inner>, <ft>)", 2),
    ("<tensor.new>, <tensor.new> = scan(lambda c, x: (c + x.sum(), <inner>), torch.tensor(0.5), <ft>)", 2),
    ("def g<#>(x):\n    y = x.clone()\n    y.mul_(2)\n    return y + <inner>\n"
     "<tensor.new> = cond(<bool>, g<#>, torch.sin, (<ft>,))", 1.5),
    ("def g<#>(x):\n    y = torch.ones(3)\n    y[0] = <int>\n    return <inner> * y.sum()\n"
     "<tensor.new> = map_(g<#>, <ft>)", 1.5),
    ("for <tensor.new> in (torch.ones(3), -torch.ones(3)):\n"
     "    log.append(cond(<tensor.name>.sum() > 0.3, torch.sin, torch.cos, (torch.ones(3),)))\n<loop>", 1),
]


def stacked(results):
    leaves, specs = zip(*map(pytree.tree_flatten, results))
    return pytree.tree_unflatten([torch.stack(found) for found in zip(*leaves)], specs[0])


def slices(xs, dim=0):
    leaves, spec = pytree.tree_flatten(xs)
    return [pytree.tree_unflatten(of, spec) for of in zip(*[x.unbind(dim) for x in leaves])]


def cond(pred, true_fn, false_fn, operands=()):
    return (true_fn if pred else false_fn)(*operands)


def while_loop(cond_fn, body_fn, carried):
    if not cond_fn(*carried):
        return tuple(t.clone() for t in carried)
    while True:
        carried = tuple(body_fn(*carried))
        if not cond_fn(*carried):
            return carried


def scan(combine, carry, xs, *, dim=0, reverse=False):
    results = []
    for x in slices(xs, dim)[::-1 if reverse else 1]:
        carry, out = combine(carry, x)
        results.append(out)
    out = stacked(results[::-1] if reverse else results)
    return carry, pytree.tree_map(lambda t: t.movedim(0, dim) if dim < t.dim() else t, out)


def map_(f, xs, *others):
    return stacked([f(x, *others) for x in slices(xs)])


class NoTest(BaseException):
    """A program's calls cannot be compared with anything. ``raised`` counts how often that was found: a program may
    leave a ``finally`` by a ``return``, and the exception is gone."""

    raised = 0

    def __init__(self, *args) -> None:
        super().__init__(*args)
        NoTest.raised += 1


class StartsCompiler(BaseException):
    """An operator is called that PyTorch compiles."""


in_operator: list = []  # operators that are asked what they refuse


def seen(given) -> bool:
    """Whether code of the program's is told of each call of a function of PyTorch that is given these."""
    return overrides._len_torch_function_stack() > 0 or any(
        isinstance(t, torch.Tensor) and type(t).__torch_function__ is not torch._C._disabled_torch_function_impl
        and type(t).__torch_function__.__func__ is not torch.Tensor.__torch_function__.__func__
        for t in pytree.tree_leaves(given))


def checked(operator, stand_in):
    """``stand_in`` for what PyTorch would compile; what it refuses before that, it refuses here."""
    def call(*args, **kwargs):
        if seen((args, kwargs)):
            raise NoTest
        in_operator.append(operator)
        try:
            return operator(*args, **kwargs)
        except StartsCompiler:
            pass
        finally:
            in_operator.pop()
        return stand_in(*args, **kwargs)

    return call


IN_EAGER = {"cond": checked(torch.cond, cond), "while_loop": checked(operators.while_loop, while_loop),
            "scan": checked(operators.scan, scan), "map_": checked(operators.map, map_)}


@contextlib.contextmanager
def forbid():
    """In the block PyTorch's own compiler is not started for these operators."""
    def refuse(*args):
        if in_operator:
            raise StartsCompiler
        raise NoTest

    before = getattr(higher_order, "_hop_compile_and_call", None)
    higher_order._hop_compile_and_call = refuse
    try:
        yield
    finally:
        if before is None:
            del higher_order._hop_compile_and_call
        else:
            higher_order._hop_compile_and_call = before


THEME = Theme(PRELUDE, {"tensor": TENSORS}, STATEMENTS)
