"""``requires_grad_()`` inside of a transform of ``torch.func``: refused as in eager. PyTorch's own code may call it,
and tensors that require grad may be made."""

import pytest
import torch
from torch.func import grad, jacrev, jvp, vjp, vmap

import jit


def gradient(fn, x):
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(fn(x).sum(), x)[0]


PROGRAMS = {
    "of a slice": vmap(lambda y: y + gradient(torch.sin, y)),
    "of another": vmap(lambda y: y + gradient(torch.sin, torch.ones(3))),
    "behind a map": vmap(lambda y: y + gradient(torch.sin, vmap(lambda q: q + 1)(torch.ones(3)))),
    "in a gradient": grad(lambda y: (y * gradient(torch.sin, torch.ones(3))).sum()),
    "in jvp": lambda x: jvp(lambda y: (y * gradient(torch.sin, torch.ones(3))).sum(), (x,), (x,)),
    "in vjp": lambda x: vjp(lambda y: y * torch.ones(3).requires_grad_(), x)[0],
    "off": vmap(lambda y: y + y.requires_grad_(False)),
    "made": vmap(lambda y: y + torch.ones(3, requires_grad=True).numel()),
    "outside": lambda x: gradient(vmap(torch.sin), x),
    "in one another": vmap(grad(lambda y: grad(lambda z: (z * z).sum())(y).sum())),
    "jacobian": jacrev(lambda y: y.sin()),
    "behind one": lambda x: (vmap(torch.sin)(x), gradient(torch.cos, x))}


@pytest.mark.parametrize("name", PROGRAMS)
def test_requires_grad_is_refused_as_in_eager(name):
    fn = PROGRAMS[name]

    def outcome(run):
        try:
            return [t.tolist() for t in torch.utils._pytree.tree_leaves(run(torch.ones(2, 3)))]
        except RuntimeError as error:
            return str(error)

    want, got = outcome(fn), outcome(jit.compile(fn))
    if isinstance(want, str) or isinstance(got, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["outside", "in one another", "jacobian", "behind one"])
def test_gradients_of_and_behind_transforms_are_captured(name):
    jit.compile(PROGRAMS[name], fullgraph=True)(torch.ones(2, 3))
