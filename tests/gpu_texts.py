"""What a function captured here would run on a GPU: its graphs, moved there, compiled for one, and not run."""

import torch

from codegen_graphs import moved

import jit
from jit import compiling
from jit.codegen import compile_graph
from jit.graph.passes.grouped import group_rows


def compiled_for_gpu(fn, *args, backward=False):
    """The compiled graphs of ``fn(*args)`` for a CUDA device, a backward before its forward, of graphs captured on the
    CPU. Raises where a kernel does not compile."""
    graphs, real = [], compiling.schedule

    def seen(graph, *rest, **options):
        graphs.append(graph)
        return real(graph, *rest, **options)

    jit.reset()
    compiling.schedule = seen
    try:
        result = jit.compile(fn)(*args)
        if backward:
            results = result if isinstance(result, tuple) else (result,)
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    finally:
        compiling.schedule = real
        jit.reset()
    return [compile_graph(group_rows(moved(graph, torch.device("cuda", 0)))) for graph in graphs]


def library_calls(compiled):
    """The operators that compiled graphs call."""
    return [step.name for c in compiled for step in c.plan.steps if step.kind in ("aten", "vjp")]
