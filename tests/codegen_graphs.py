"""Helpers of the codegen tests: build a graph by hand, run it through the reference kernels or natively, compare with
eager."""

import torch

from jit.codegen import Options, compile_graph, loops, reference
from jit.graph.build import Builder
from jit.graph.shape_env import ShapeEnv
from jit.graph.interpret import evaluate
from jit.graph.ir import Graph, Output, TensorType
from jit.graph.verify import verify

TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 3e-3, torch.float32: 2e-5, torch.float64: 1e-10}


def trace(fn, tensors, dynamic=()):
    """The graph of ``fn(builder, *nodes)``. ``dynamic``: (input, dim) pairs whose sizes become symbols; equal sizes
    share one."""
    env = ShapeEnv()
    b = Builder(env)
    inputs, symbols = [], {}
    for i, t in enumerate(tensors):
        shape = list(t.shape)
        for d in range(t.dim()):
            if (i, d) in dynamic:
                if shape[d] not in symbols:
                    symbols[shape[d]] = env.symbol(shape[d], f"size{len(symbols)}")
                shape[d] = symbols[shape[d]]
        if t.is_contiguous():
            type_ = TensorType.contiguous(tuple(shape), t.dtype, t.device)
        else:
            type_ = TensorType(tuple(shape), tuple(t.stride()), t.dtype, t.device)
        inputs.append(b.node("input", (), {"index": i}, type_))
    result = fn(b, *inputs)
    if not isinstance(result, (tuple, list)):
        result = [result]
    graph = Graph(inputs, b.nodes, [o if isinstance(o, Output) else Output(o) for o in result], env)
    return verify(graph)


def moved(graph, device):
    """The graph with its tensors announced on a device, so that what is done for CUDA can be looked at, and run,
    without one."""

    def on(t):
        return t.replace(device=device) if isinstance(t, TensorType) else None if t is None else tuple(map(on, t))

    for n in graph.nodes:
        n.type = on(n.type)
    return graph


def compile_reference(graph, **options):
    compiled = compile_graph(graph, Options(target="reference", **options))
    for kernel in compiled.loops.values():
        loops.verify(kernel)
    return compiled


def same_layout(a, b):
    return all(s == t or n == 1 for n, s, t in zip(a.shape, a.stride(), b.stride()))


def compare(got, want):
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype and g.shape == w.shape, (g.dtype, w.dtype, g.shape, w.shape)
        assert w.numel() == 0 or same_layout(g, w), (g.shape, g.stride(), w.stride())
        tolerance = TOLERANCE.get(w.dtype, 0)
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(fn, *tensors, dynamic=(), native=False, **options):
    """Compile ``fn`` and compare results and mutated inputs with eager. Returns the CompiledGraph."""
    graph = trace(fn, tensors, dynamic)
    theirs, ours = [t.clone() for t in tensors], [t.clone() for t in tensors]
    want = evaluate(graph, theirs)
    if native:
        compiled = compile_graph(graph, Options(**options))
        got = compiled.call(*ours)
    else:
        compiled = compile_reference(graph, **options)
        got = reference.run_plan(compiled, *ours)
    compare(got, want)
    compare(ours, theirs)
    return compiled
