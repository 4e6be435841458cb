"""Forward and backward of a function as they are made for a GPU, run without one."""

import torch
from codegen_graphs import moved
from graph_harness import ElsewhereTracer, flatten, trace

from jit.codegen import Options, compile_graph, layout, reference
from jit.graph.autodiff import differentiate, partition
from jit.graph.passes import SCHEDULED, run_passes
from jit.graph.passes.gradients import without_gates
from jit.graph.shape_env import ShapeEnv

GPU = torch.device("cuda", 0)


class Step:
    """The two compiled graphs of a training step; ``given``: the arguments, which are all differentiated."""

    def __init__(self, fn, *given):
        self.fn, self.given = fn, [t.detach().requires_grad_() for t in given]
        graph, *_ = trace(fn, *self.given, differentiated=True, tracer=ElsewhereTracer(ShapeEnv(), GPU))
        joint = differentiate(moved(graph, GPU), tuple(range(len(given))), tuple(range(len(graph.outputs))))
        joint.graph = layout.channels_last(joint.graph)
        self.halves = partition(joint)
        self.outputs = len(graph.outputs)
        self.forward = self.compiled(self.halves.forward)
        self.backward = self.compiled(without_gates(self.halves.backward))

    @staticmethod
    def compiled(graph):
        return compile_graph(run_passes(graph, SCHEDULED), Options(target="reference"))

    def kernels(self):
        return [*self.forward.loops.values(), *self.backward.loops.values()]

    def run(self, tangents, run_kernel=None):
        """(results, gradients)"""
        more = {} if run_kernel is None else {"run_kernel": run_kernel}
        given = [t.detach() for t in self.given]
        out = list(reference.run_plan(self.forward, *given, **more))
        of = {"input": given, "output": out, "extra": out[self.outputs:]}
        saved = [of[kind][k] for kind, k in self.halves.saved]
        found = list(reference.run_plan(self.backward, *saved, *tangents, **more))
        return out[:self.outputs], [None if k is None else found[k] for k in self.halves.grads]

    def check(self, rtol, atol, run_kernel=None):
        """Compare with eager in float64."""
        wide = [t.detach().double().requires_grad_() for t in self.given]
        want = list(flatten(self.fn(*wide)))
        tangents = [torch.randn(t.shape).to(self.given[0].dtype) for t in want]
        types = [n.type for n in self.halves.backward.inputs[len(self.halves.saved):]]
        tangents = [torch.empty_strided(n.shape, n.strides, dtype=n.dtype).copy_(t) for n, t in zip(types, tangents)]
        grads = torch.autograd.grad(want, wide, [t.double() for t in tangents])
        results, found = self.run(tangents, run_kernel)
        for got, expected in zip([*results, *found], [*want, *grads], strict=True):
            torch.testing.assert_close(got.double(), expected.detach(), rtol=rtol, atol=atol)
