"""Guards that hold on later calls as on the first: what was captured once is not captured again."""

import pytest
import torch
from guard_harness import LOCAL, Plain, program

import jit
from jit.runtime import guards as G


def compiles(fn, calls):
    """How many graphs are compiled for calls of ``fn``, one by one."""
    compiled, before = jit.compile(fn), jit.compile_count()
    for arguments in calls:
        torch.testing.assert_close(compiled(*arguments()), fn(*arguments()))
    return jit.compile_count() - before


@pytest.mark.parametrize("view", [lambda p: p.expand(5, 6), lambda p: p[::2], lambda p: p.view(2, 3),
                                  lambda p: p.expand(2, 6)[:, 1:].t()])
@pytest.mark.parametrize("recording", [False, True])
def test_views_of_parameters_made_without_recording(view, recording):
    """Such a view says that it requires grad, as its base does, without having a function of its own."""
    p = torch.nn.Parameter(torch.arange(6.0))

    def made():
        with torch.no_grad():
            v = view(p)
        assert v.requires_grad and v.grad_fn is None
        return (v,)

    def fn(v):
        return (v * 2).sin()

    with torch.set_grad_enabled(recording):
        assert compiles(fn, [made] * 4) == 1


def test_a_view_that_requires_no_grad_is_another():
    p, frozen = torch.nn.Parameter(torch.arange(6.0)), torch.arange(6.0)
    compiled = jit.compile(lambda v: v * 2)
    for base, requires in ((p, True), (frozen, False), (p, True)):
        with torch.no_grad():
            v = base.expand(5, 6)
        assert compiled(v).requires_grad is requires


def test_an_object_without_attributes_yet_is_no_other():
    """The context of an autograd.Function has no dict before its first attribute, so that is not another object's."""
    accessors = [LOCAL, (-1, "local", 1), (0, "dict"), (1, "dict")]
    apart = program(accessors, [(2, "distinct", 3)])
    there = program([LOCAL, (0, "dict")], [(1, "is_not", None)])
    held = Plain()
    held.a = 1
    watched = G.program([(-1, "const", held), (0, "dict"), LOCAL, (2, "dict")], [(3, "distinct", 1)])

    class Asked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert not there.check((ctx,))
            for _ in range(3):
                assert apart.check((ctx, held)) and apart.check((held, ctx)) and watched.check((ctx,))
            assert not apart.check((held, held)) and not watched.check((held,))
            ctx.a = 1
            assert there.check((ctx,)) and apart.check((ctx, held)) and watched.check((ctx,))
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    Asked.apply(torch.ones(2))
