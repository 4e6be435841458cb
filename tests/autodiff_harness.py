"""Gradients by the joint graph against eager autograd: forward and backward halves are run op by op on eager
tensors."""

from __future__ import annotations

import torch
from graph_harness import clone_inputs, flatten, trace

from jit import config
from jit.codegen import compile_graph
from jit.graph.autodiff import carrying_outputs, differentiate, partition
from jit.graph.interpret import evaluate
from jit.graph.printing import unbound_symbols
from jit.graph.verify import verify


def halves(fn, *inputs, dynamic=False):
    """(traced graph, tangent positions, Halves, captured tensors), each verified. Inputs that require grad are
    differentiated."""
    graph, _, tracer = trace(fn, *clone_inputs(inputs), dynamic=dynamic, differentiated=True)
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    wrt = [i for i, x in enumerate(tensors) if x.requires_grad]
    tangents = carrying_outputs(graph, wrt)
    before = repr(graph)
    joint = differentiate(graph, wrt, tangents)
    verify(joint.graph)
    assert repr(graph) == before, "the given graph changed"
    result = partition(joint)
    verify(result.forward)
    verify(result.backward)
    return graph, tangents, result, tracer.captured


def sizes_of(graph, names, tensors):
    """Values of size symbols, read off the inputs of the traced graph."""
    values = {}
    for node, t in zip(graph.inputs, tensors):
        for size, value in zip(node.type.shape, t.shape):
            if not isinstance(size, int):
                values[str(size)] = value
    return [values[n] for n in names]


def differentiable(fn) -> bool:
    """Whether PyTorch has a derivative for ``fn``, which is called on a vector of float64."""
    try:
        fn(leaf(3)).sum().backward()
    except RuntimeError as error:
        return "is not implemented" not in str(error)
    return True


def check_grad(fn, *inputs, dynamic=False, rtol=1e-7, atol=1e-7, seed=0, run=evaluate):
    """Assert that outputs, mutations and gradients are eager's. Returns the Halves. ``run(graph, tensors, sizes)``
    gives a graph's returned outputs."""
    with config.patch(fallback_random=True):
        graph, tangents, result, captured = halves(fn, *inputs, dynamic=dynamic)
    eager, mine = clone_inputs(inputs), [x.detach() if isinstance(x, torch.Tensor) else x for x in clone_inputs(inputs)]
    torch.manual_seed(seed)
    outs = [o for o in flatten(fn(*eager)) if isinstance(o, torch.Tensor)]
    torch.manual_seed(seed + 1)
    given = [torch.randn_like(outs[k]) for k in tangents]
    sources = [x for x in eager if isinstance(x, torch.Tensor) and x.requires_grad]
    want = torch.autograd.grad([outs[k] for k in tangents], sources, given,
                               allow_unused=True) if tangents else [None] * len(sources)
    tensors = [*(x for x in mine if isinstance(x, torch.Tensor)), *captured]
    torch.manual_seed(seed)
    values = run(result.forward, tensors, sizes_of(graph, unbound_symbols(result.forward), tensors))
    returned = sum(o.mutates is None for o in graph.outputs)
    for w, g in zip(outs, values):
        torch.testing.assert_close(g, w.detach(), rtol=rtol, atol=atol, equal_nan=True)
    for w, g in zip(eager, mine):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w.detach(), rtol=rtol, atol=atol, equal_nan=True)
    saved = [tensors[i] if kind == "input" else values[i] if kind == "output" else values[returned + i]
             for kind, i in result.saved]
    got = run(result.backward, [*saved, *given], sizes_of(graph, result.symbols, tensors))
    for i, (w, position) in enumerate(zip(want, result.grads, strict=True)):
        if w is None:
            assert position is None, f"gradient {i} should be undefined"
            continue
        assert position is not None, f"gradient {i} is missing"
        g = got[position]
        assert g.dtype == w.dtype and g.shape == w.shape
        torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)
    return result


def extras(result) -> list:
    """The types of what the forward saves besides inputs and outputs."""
    n = sum(kind == "extra" for kind, _ in result.saved)
    return [o.node.type for o in result.forward.outputs[len(result.forward.outputs) - n :]]


def leaf(*shape, dtype=torch.float64, low=None):
    """Random values that require grad; ``low`` makes them uniform in [low, low + 1)."""
    values = torch.randn(shape, dtype=dtype) if low is None else torch.rand(shape, dtype=dtype) + low
    return values.requires_grad_()


def compiled(graph, tensors, sizes):
    """Runs a graph as the default backend compiles it: ``run`` of ``check_grad``."""
    plan = compile_graph(graph)
    values = dict(zip(unbound_symbols(graph), sizes))
    return list(plan.call(*tensors, *(values[n] for n in plan.int_symbols)))
