"""Programs with tensor subclasses (``subclass_programs``) give what they give in eager, in one graph: values, classes,
attributes, gradients, what is changed in place; at the first call and at later ones, on other shapes and layouts."""

import copy

import pytest
import torch
from frame_harness import same
from subclass_programs import BREAKS, PROGRAMS

import jit


def taken_apart(v):
    """A value with subclasses as plain data that ``same`` compares."""
    if isinstance(v, torch.Tensor) and type(v) not in (torch.Tensor, torch.nn.Parameter):
        with torch._C.DisableTorchFunction():
            if hasattr(v, "__tensor_flatten__"):
                names, context = v.__tensor_flatten__()
                outer = (tuple(v.shape), v.stride(), v.dtype, v.requires_grad)
                return [type(v).__name__, context, outer, *(taken_apart(getattr(v, n)) for n in names)]
            plain = v.as_subclass(torch.Tensor)
            return [type(v).__name__, plain, {k: taken_apart(w) for k, w in v.__dict__.items()}]
    if isinstance(v, (list, tuple)):
        return [taken_apart(w) for w in v]
    return v


def leaves(v):
    if isinstance(v, torch.Tensor):
        return [v]
    return [t for w in v for t in leaves(w)] if isinstance(v, (list, tuple)) else []


def outcome(fn, args):
    """What a call gives, what becomes of its arguments, and their gradients."""
    result = fn(*args)
    wanted = [t for t in args if isinstance(t, torch.Tensor) and t.requires_grad]
    gradients = []
    if wanted:
        total = sum((t * torch.arange(1.0, t.numel() + 1).view_as(t)).sum() for t in leaves(result) if t.requires_grad)
        gradients = torch.autograd.grad(total, wanted, allow_unused=True)
        result = [t.detach() for t in leaves(result)]
    return taken_apart([result, list(args), list(gradients)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    fn, make = PROGRAMS[name]
    jit.reset()
    fast = jit.compile(fn, fullgraph=name not in BREAKS)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = outcome(fn, make())
        torch.manual_seed(seed)
        same(expected, outcome(fast, make()), rtol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_once(name):
    fn, make = PROGRAMS[name]
    jit.reset()
    fast = jit.compile(fn)
    fast(*make())
    before = jit.compile_count()
    fast(*make())
    assert jit.compile_count() == before


_ = copy
