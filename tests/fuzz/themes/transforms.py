"""``torch.func``: transforms one by one and in one another, over functions with closures, creations, in-place
operations and effects."""

from __future__ import annotations

import torch

from ..grammar import rules
from .theme import Theme

PRELUDE = """
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

CLOSE = 2e-4  # derivatives may be rounded in another order

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(9.0).view(3, 3) / 9)
        self.b = torch.nn.Parameter(torch.ones(3) / 2)
        self.register_buffer('seen', torch.zeros(1))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return torch.tanh(x @ self.w + self.b)

net = Net()

def weights():
    return {k: v.detach() * 1.5 for k, v in net.named_parameters()}

def scalar(x):
    return (x.sin() * x).sum()

def filled(x):
    y = torch.zeros_like(x)
    y += x
    y.mul_(2)
    return y.sin()

def pieces(x):
    return {'a': x.sin(), 'b': (x * 2, x.sum())}

def first(value):
    while not isinstance(value, torch.Tensor):
        value = list(value.values())[0] if isinstance(value, dict) else value[0]
    return value
"""

TENSORS = rules("""
    grad(scalar)(<ft>) | 2
    grad(lambda x: <inner>.sum())(<ft>) | 5
    grad(lambda x, y: (<inner> * y.sin()).sum(), argnums=1)(<ft>, <ft>)
    grad(lambda x, y: (<inner> * y).sum(), argnums=(0, 1))(<ft>, <ft>)[0]
    grad(lambda x: (<inner>.sum(), <inner>), has_aux=True)(<ft>)[0] | 1.5
    grad(lambda x: (<inner>.sum(), {'a': <inner>, 'n': x}), has_aux=True)(<ft>)[1]['a']
    grad_and_value(lambda x: <inner>.sum())(<ft>)[0] | 1.5
    grad_and_value(lambda x: (<inner>.sum(), x * 2), has_aux=True)(<ft>)[1][1]
    grad(lambda x: grad(lambda x: <inner>.sum())(x).sum())(<ft>) | 1.5
    grad(lambda x: (x * grad(scalar)(<inner>).sum()).sum())(<ft>)
    grad(lambda x: filled(<inner>).sum())(<ft>) | 1.5
    grad(lambda x, k: (<inner> * k).sum())(<ft>, k=<int> % 3)
    grad(lambda d<#>: (d<#>['x'] * d<#>['y'].sin()).sum())({'x': <ft>, 'y': <ft>})['x']
    vjp(lambda x: <inner>, <ft>)[0] | 1.5
    (lambda out, back: back(torch.ones_like(out))[0])(*vjp(lambda x: <inner>, <ft>)) | 3
    (lambda out, back: back(out)[0] + back(out * 2)[0])(*vjp(torch.sin, <ft>))
    (lambda out, back: back({'a': out['a'], 'b': (out['b'][0], out['b'][1])})[0])(*vjp(pieces, <ft>))
    (lambda out, back, aux: back(torch.ones_like(out))[0] + aux)(*vjp(lambda x: (<inner>, x * 2), <ft>, has_aux=True))
    (lambda v<#>: first(jvp(lambda x: <inner>, (v<#>,), (torch.ones_like(v<#>),))))(<ft>) | 3
    (lambda v<#>: jvp(lambda x: <inner>, (v<#>,), (v<#>.cos(),))[1])(<ft>) | 3
    (lambda v<#>: jvp(lambda x: (<inner>, x), (v<#>,), (v<#>.cos(),), has_aux=True)[2])(<ft>)
    (lambda v<#>: jvp(lambda x: grad(lambda x: <inner>.sum())(x), (v<#>,), (v<#>.cos(),))[1])(<ft>)
    vmap(lambda x: <inner>)(<ft>) | 5
    vmap(lambda x: <inner>, in_dims=-1)(<ft>)
    vmap(lambda x: <inner>, in_dims=1)(torch.arange(6.0).view(2, 3) / 4)
    vmap(lambda x: <inner>, in_dims=(0,), out_dims=-1)(<ft>)
    vmap(lambda x: <inner>, out_dims=1)(torch.arange(6.0).view(2, 3) / 4)
    vmap(lambda x, y: <inner> + y, in_dims=(0, None))(<ft>, <ft>) | 1.5
    vmap(lambda x, y: <inner> * y.sum(), in_dims=(None, 0))(<ft>, <ft>)
    vmap(lambda x, y: (<inner>, y), in_dims=(0, 0))(<ft>, <ft>)[0]
    vmap(lambda d<#>: d<#>['x'] * 2 + d<#>['n'], in_dims=({'x': 0, 'n': None},))({'x': <ft>, 'n': <int>})
    vmap(pieces)(<ft>)['b'][0]
    vmap(pieces, out_dims={'a': 0, 'b': (-1, 0)})(<ft>)['b'][0] | 0.5
    vmap(lambda x: <inner>, chunk_size=2)(<ft>) | 1.5
    vmap(lambda x: <inner>, chunk_size=<int>)(<ft>) | 0.5
    vmap(lambda x: torch.zeros(2).add_(<inner>))(<ft>) | 0.5
    vmap(filled)(<ft>) | 1.5
    vmap(lambda x: <inner>, randomness='same')(<ft>) | 0.3
    vmap(vmap(lambda x: <inner>))(torch.arange(6.0).view(2, 3) / 4) | 1.5
    vmap(vmap(lambda x, y: <inner> * y, in_dims=(None, 0)), in_dims=(0, None))(<ft>, torch.ones(2)) | 1.5
    vmap(grad(lambda x: <inner>.sum()))(<ft>) | 2.5
    vmap(grad(lambda x, y: (<inner> * y).sum()), in_dims=(None, 0))(torch.ones(3), <ft>)
    grad(lambda x: vmap(lambda x: <inner>)(x).sum())(torch.arange(6.0).view(2, 3) / 4) | 1.5
    jacrev(lambda x: <inner>)(<ft>) | 2
    jacrev(lambda x: <inner>, chunk_size=1)(<ft>) | 0.5
    jacrev(lambda x: (<inner>, x), has_aux=True)(<ft>)[0] | 0.7
    jacrev(lambda x, y: <inner> * y.sum(), argnums=(0, 1))(<ft>, <ft>)[1]
    jacfwd(lambda x: <inner>)(<ft>) | 2
    jacfwd(lambda x: (<inner>, x), has_aux=True)(<ft>)[1] | 0.7
    jacfwd(lambda x, y: <inner> * y, argnums=1)(<ft>, <ft>) | 0.7
    jacfwd(jacrev(lambda x: <inner>.sum()))(<ft>)
    jacrev(pieces)(<ft>)['a'] | 0.7
    hessian(lambda x: <inner>.sum())(<ft>) | 1.5
    vmap(hessian(lambda x: <inner>.sum()))(torch.arange(6.0).view(2, 3) / 4) | 0.7
    vmap(jacrev(lambda x: <inner>))(torch.arange(6.0).view(2, 3) / 4) | 0.7
    first(linearize(lambda x: <inner>, torch.ones(3))) | 0.3
    functional_call(net, weights(), (<ft>,)) | 1.5
    functional_call(net, {'b': <ft>}, (torch.ones(2, 3),))
    functional_call(net, (weights(), {'seen': torch.ones(1)}), (torch.ones(3),), {}) | 0.5
    grad(lambda p: functional_call(net, p, (torch.ones(2, 3),)).sum())(weights())['w'] | 1.5
    vmap(grad(lambda p, x: functional_call(net, p, (x,)).sum()), in_dims=(None, 0))(weights(), torch.ones(2, 3))['b']
    net(<ft>) | 0.7
    functools.partial(grad(lambda x, y: (<inner> * y).sum()), y=<ft>)(<ft>)
    functools.reduce(lambda f<#>, _: grad(lambda x: f<#>(x).sum()), range(<int> % 3), scalar)(<ft>) | 0.7
    """)

STATEMENTS = [
    ("<tensor.new> = grad(lambda x: <inner>.sum())(<ft>)", 2),
    ("<tensor.new>, <tensor.new> = grad_and_value(lambda x: <inner>.sum())(<ft>)", 1),
    ("<tensor.new>, <tensor.new> = grad(lambda x, y: (<inner> * y.cos()).sum(), argnums=(0, 1))(<ft>, <ft>)", 1),
    ("log.append(vmap(lambda x: (<inner>, x))(<ft>))", 1),
    ("log.append(jvp(lambda x: <inner>, (torch.ones(3),), (torch.arange(3.0),)))", 1),
    ("def g<#>(x):\n    log.append(tuple(x.shape))\n    y = <inner>\n    return y.sum()\n"
     "<tensor.new> = grad(g<#>)(<ft>)", 1.5),
    ("def g<#>(x, k=<int>):\n    y = torch.zeros(3)\n    for i in range(k % 3):\n        y = y + <inner>\n"
     "    return y.sum()\n<tensor.new> = grad(g<#>)(torch.ones(3))", 1),
    ("def g<#>(x):\n    y = x.clone()\n    y[..., 0] = <int>\n    y.mul_(2)\n    return y + <inner>\n"
     "<tensor.new> = vmap(g<#>)(torch.arange(6.0).view(2, 3))", 1.5),
    ("def g<#>(x):\n    x = x * 1\n    x[..., 1:].add_(<int>)\n    y = <inner>\n    return (y * x.sum()).sum()\n"
     "<tensor.new> = grad(g<#>)(torch.arange(3.0))", 1),
    ("def g<#>(x):\n    nonlocal_<#>.append(x.dim())\n    return <inner>\nnonlocal_<#> = []\n"
     "<tensor.new> = vmap(g<#>, in_dims=0, out_dims=0)(<ft>)\nlog.append(nonlocal_<#>)", 1),
    ("def g<#>(x):\n    if x.dim() > 1:\n        return <inner>.sum()\n    return (x * <int>).sum()\n"
     "<tensor.new> = grad(g<#>)(<ft>)", 1),
    ("def g<#>(x):\n    with torch.no_grad():\n        y = <inner>\n    return (x * y.sum()).sum()\n"
     "<tensor.new> = grad(g<#>)(<ft>)", 0.7),
    ("def g<#>(x):\n    try:\n        y = <inner>\n    except Exception as err:\n"
     "        log.append(type(err).__name__)\n        return x.sum()\n"
     "    return y.sum()\n<tensor.new> = grad(g<#>)(<ft>)", 0.7),
    ("<tensor.new> = torch.arange(6.0).view(2, 3)\nlog.append(vmap(lambda x: x.add_(<int>))(<tensor.name>))", 1),
    ("out_<#>, back_<#> = vjp(lambda x: <inner>, <ft>)\nlog.append(back_<#>(torch.ones_like(out_<#>)))\n"
     "log.append(back_<#>(out_<#>))", 1.5),
    ("for <tensor.new> in vmap(lambda x: <inner>)(<ft>)[:2]:\n<loop>", 0.7),
    ("<dict.new> = grad(lambda p: functional_call(net, p, (torch.ones(3),)).sum())(weights())", 1),
    ("net.w.data.mul_(0.5)", 0.4), ("log.append(net.calls)", 0.4),
    ("s_<#> = grad(lambda x: <inner>.sum())\nlog.append((s_<#>(torch.ones(3)), s_<#>(torch.ones(2, 3))))", 0.7),
    ("@vmap\ndef g<#>(x):\n    return <inner>\nlog.append(g<#>(<ft>))", 0.7),
]

THEME = Theme(PRELUDE, {"tensor": TENSORS}, STATEMENTS)


def warm():
    """Has PyTorch import what it imports at the first call, which takes longer than a program may."""
    def fn(x):
        return x.sin().sum()

    torch.func.vmap(torch.func.hessian(fn))(torch.ones(2, 2))
    torch.autograd.functional.hessian(fn, torch.ones(2))
    torch.func.jvp(fn, (torch.ones(2),), (torch.ones(2),))
