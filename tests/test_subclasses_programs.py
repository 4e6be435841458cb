"""Programs with tensor subclasses (``subclass_programs``) give what they give in eager, in one graph: values, classes,
attributes, gradients, what is changed in place; at the first call and at later ones, on other shapes and layouts."""

import pytest
import torch
import torch.nn.functional as F
from frame_harness import same
from subclass_programs import (
    BREAKS, PROGRAMS, Pair, Plain, Quantized, QuantizedByFunction, pair, weights,
)

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



VARIED = {
    "quantized by dispatch": (lambda x, w, b: F.linear(x, w, b).relu(),
                              lambda n: [torch.randn(n, 5, 4), weights(Quantized), torch.randn(6)]),
    "quantized by function": (lambda x, w, b: F.linear(x, w, b).relu(),
                              lambda n: [torch.randn(n, 5, 4), weights(QuantizedByFunction), torch.randn(6)]),
    "gradient": (lambda x, w, b: F.linear(x * 2, w, b).relu(),
                 lambda n: [torch.randn(n, 5, 4, requires_grad=True), weights(Quantized),
                            torch.randn(6, requires_grad=True)]),
    "a class and nothing else": (lambda x: F.softmax(x * 2, -1).view(-1),
                                 lambda n: [torch.randn(n, 5).as_subclass(Plain)]),
    "a pair": (lambda p: F.softmax(p * 2 + 1, -1).sum(0), lambda n: [pair(n, 4)]),
    "a pair and a tensor": (lambda p, x: (p @ x).view(-1, 2) + p.shape[0], lambda n: [pair(n, 4), torch.randn(4, 4)]),
    "made inside": (lambda x: Pair(x, x + 1) * 2, lambda n: [torch.randn(n, 3)]),
}


@pytest.mark.parametrize("name", VARIED)
def test_sizes_that_vary(name):
    fn, make = VARIED[name]
    jit.reset()
    fast = jit.compile(fn, fullgraph=True)
    for n in (3, 5, 7, 2, 9, 12):
        torch.manual_seed(n)
        expected = outcome(fn, make(n))
        torch.manual_seed(n)
        same(expected, outcome(fast, make(n)), rtol=1e-5)
    assert len(fast.entries) == 2


@pytest.mark.parametrize("make", [lambda: pair(3), lambda: Plain(torch.ones(3)), lambda: torch.ones(3)])
def test_class_attributes_that_are_no_descriptors_are_read_as_they_are(make):
    def f(x):
        return x.__doc__, x.__annotations__, x.__module__, x + 1

    x = make()
    same(taken_apart(f(x)), taken_apart(jit.compile(f)(x)))
