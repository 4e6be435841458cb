"""What a function captured here would run on a GPU: its graphs, moved there, compiled for one, and not run."""

from unittest import mock

import torch

from codegen_graphs import moved

import jit
from jit import compiling
from jit.codegen import compile_graph
from jit.codegen.planner import Options
from jit.devices.cpu import Cpu
from jit.graph.passes.grouped import group_rows


def captured(fn, *args, backward=False, **options):
    """The graphs for which kernels are made in a call of ``fn(*args)``, compiled with ``options``: a backward before
    its forward."""
    graphs, real = [], compiling.begin

    def seen(graph, *rest, **more):
        graphs.append(graph)
        return real(graph, *rest, **more)

    jit.reset()
    compiling.begin = seen
    try:
        result = jit.compile(fn, **options)(*args)
        if backward:
            results = result if isinstance(result, tuple) else (result,)
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    finally:
        compiling.begin = real
        jit.reset()
    return graphs


def compiled_for_gpu(fn, *args, backward=False):
    """Graphs that were ``captured`` on the CPU, compiled for a CUDA device. Raises where a kernel does not compile."""
    device = torch.device("cuda", 0)
    return [compile_graph(group_rows(moved(graph, device))) for graph in captured(fn, *args, backward=backward)]


def library_calls(compiled):
    """The operators that compiled graphs call."""
    return [step.name for c in compiled for step in c.plan.steps if step.kind in ("aten", "vjp")]


class Seen(Exception):
    """A graph has been seen, and is not to be compiled."""


def launched_on_gpu(fn, *args, **options):
    """The graph of ``fn(*args)``, which launches Triton kernels of the program's own, compiled for a CUDA device as if
    the arguments, of the CPU, were there."""
    graphs, real = [], compiling.begin

    def seen(graph, *rest, **more):
        graphs.append(graph)
        raise Seen

    jit.reset()
    compiling.begin = seen
    try:
        with mock.patch.object(Cpu, "launches_user_kernels", True):
            jit.compile(fn, fullgraph=True)(*args)
    except (Seen, jit.JitError, RuntimeError):
        pass
    finally:
        compiling.begin = real
        jit.reset()
    return compile_graph(moved(graphs[0], torch.device("cuda", 0)), Options(**options))
