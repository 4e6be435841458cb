"""``torch.autograd.Function`` inside of transforms of ``torch.func``: eager refuses those that lack what it needs, and
asks their own ``vmap`` and ``jvp``."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vjp, vmap
from torch.utils._pytree import tree_map

import jit


class OfContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Separate(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Generated(Separate):
    generate_vmap_rule = True


class WithMap(Separate):
    @staticmethod
    def vmap(info, in_dims, x):
        return x * 2 + 1, in_dims[0]


class WithTangent(Separate):
    @staticmethod
    def jvp(ctx, t):
        return t * 5


def dual(of):
    def fn(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(of.apply(forward_ad.make_dual(x, torch.ones_like(x)))).tangent

    return fn


USES = {
    "grad": lambda of: grad(lambda x: of.apply(x).sum()), "vjp": lambda of: lambda x: vjp(of.apply, x)[0],
    "beside grad": lambda of: lambda x: grad(lambda z: of.apply(x).sum() + z.sum())(x),
    "vmap": lambda of: vmap(lambda x: of.apply(x).sum()),
    "beside vmap": lambda of: lambda x: vmap(lambda y: of.apply(x).sum() + y)(x),
    "jvp": lambda of: lambda x: jvp(of.apply, (x,), (x,))[1],
    "vmap of grad": lambda of: vmap(grad(lambda y: of.apply(y).sum())), "dual": dual}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("of", [OfContext, Separate, Generated, WithMap, WithTangent])
def test_functions_are_used_as_in_eager(of, use):
    def outcome(fn):
        try:
            return fn(torch.ones(2, 2)).tolist()
        except (RuntimeError, NotImplementedError) as error:
            return type(error), str(error)

    fn = USES[use](of)
    compiled = jit.compile(fn)
    for _ in range(2):
        assert outcome(compiled) == outcome(fn)


@pytest.mark.parametrize("use", ["grad", "vjp", "vmap", "vmap of grad"])
def test_functions_with_a_rule_are_captured(use):
    jit.compile(USES[use](Generated), fullgraph=True)(torch.ones(2, 2))


class Held(torch.Tensor):
    """A tensor around another one, whose class is asked by ``__torch_dispatch__``."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Held(inner["inner"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, Held) else t, (args, kwargs or {}))
        return Held(func(*args, **kwargs))


INSIDE = {
    "number": lambda x: grad(lambda x: (x * (Held(torch.ones(3)) * 2).shape[0]).sum())(x),
    "size only": lambda x: grad(lambda x: (x * Held(torch.ones(3)).shape[0]).sum())(x),
    "slices": lambda x: vmap(lambda r: r * (Held(torch.ones(3)) * 2).shape[0])(x),
    "tangent": lambda x: jvp(lambda x: x * (Held(torch.ones(3)) + 1).shape[0], (x,), (x,))[1],
    "outside": lambda x: (grad(lambda x: x.sum())(x) * (Held(torch.ones(3)) * 2).inner)}


@pytest.mark.parametrize("name", INSIDE)
def test_classes_that_are_asked_inside_of_a_gradient(name):
    def outcome(run):
        try:
            return run(torch.ones(2, 3)).tolist()
        except (RuntimeError, NotImplementedError) as error:
            return type(error)

    assert outcome(jit.compile(INSIDE[name])) == outcome(INSIDE[name])
