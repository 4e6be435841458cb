"""Runs graphs with kernels that are laid out by themselves where there is no GPU: those kernels by Triton's
interpreter, all others by the reference interpreter of loops. To be imported in a process of its own, with
TRITON_INTERPRET=1."""

import torch
from codegen_graphs import moved
from triton.runtime import interpreter

import jit
from jit.codegen import lower, planned, reference
from jit.codegen.indexing import base_of, offset_in_base
from jit.codegen.memory import storage_numel
from jit.codegen.planner import Options, Planner
from jit.codegen.triton import worker
from jit.graph import dims
from jit.graph.autodiff import differentiate
from jit.graph.ir import filled, operator
from jit.graph.passes import optimize
from jit.graph.passes.attention import fuse_attention
from jit.graph.prims import keyword_names

GPU = torch.device("cuda", 0)


def _with_plain_indices(patch=interpreter._patch_lang_tensor):
    """``range`` over what a kernel has computed, which fails with numpy 2.4."""
    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

    interpreter._patch_lang_tensor = patched


_with_plain_indices()


def captured(fn, *args):
    """The graph of a call, as if its tensors lay on a GPU, and its inputs."""
    found = []

    def backend(graph, examples):
        found.append((graph, [e.clone() for e in examples]))
        return lambda *tensors: [torch.empty_strided(o.node.type.shape, o.node.type.strides, dtype=o.node.dtype)
                                 for o in graph.outputs]

    jit.compile(fn, backend=backend, fullgraph=True)(*args)
    graph, examples = found[0]
    return moved(graph, GPU), examples


def is_fused(graph):
    return any(n.op == "aten_call" and n.attrs["target"] == "jit::attention" for n in graph.nodes)


def run(graph, tensors):
    """(results, the kinds of kernels, or the names of library calls, in order)."""
    p = Planner(graph, Options())
    p.schedule()
    memory = {}
    for n, t in zip(p.graph.inputs, tensors):
        size = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
        memory[id(p.buffers.storages[n])] = torch.as_strided(t, (size,), (1,)).clone()

    def of(s):
        if s == lower.ERROR:
            return torch.zeros(1, dtype=torch.int32)
        if id(s) not in memory:  # poison that no kernel computes
            memory[id(s)] = torch.full((max(storage_numel(s.type), 1),), 77).to(s.type.dtype)
        return memory[id(s)]

    def shown(n):
        return torch.as_strided(of(p.buffers.storages[base_of(n)]), n.type.shape, n.type.strides, offset_in_base(n))

    kinds = []
    for step in [run for step in p.steps for run in getattr(step, "runs", (step,))]:
        if type(step) is planned.CallLibrary:
            node = step.node
            op = operator(node.attrs["target"], node.attrs["overload"])
            args = list(zip(keyword_names(op), filled(node.attrs["args"], [shown(i) for i in node.inputs])))
            made = op(*(a for n, a in args if n is None), **{n: a for n, a in args if n is not None})
            parts = {node: made} if not isinstance(made, tuple) else {
                n: made[n.attrs["index"]] for n in p.graph.nodes if n.op == "getitem" and n.inputs[0] is node}
            memory.update((id(p.buffers.storages[n]), t.contiguous().flatten()) for n, t in parts.items())
            kinds.append(node.attrs["target"])
            continue
        assert type(step) is planned.RunKernel, step
        kernel, buffers = p.launches[step.number], list(map(of, step.arguments))
        if kernel.layout is None:
            reference.evaluate(kernel, {b.name: t for b, t in zip(kernel.buffers, buffers)}, {})
            kinds.append("loops")
        else:
            source = kernel.layout.emit(kernel, None, True)
            fn, _ = worker.load_function(source.text, source.function)
            fn[(dims.evaluate(source.grid, {}),)](*buffers)
            kinds.append(getattr(kernel.layout.parts, "kind", "side by side"))
    return [shown(o.node) for o in p.graph.outputs], kinds


def forward(fn, *args):
    graph, examples = captured(fn, *args)
    fused = fuse_attention(optimize(graph))
    assert is_fused(fused), fused
    return run(fused, examples)


def gradients(fn, args, tangents, wrt):
    """(results and gradients of ``args[i]`` for i in ``wrt``, kinds)."""
    graph, examples = captured(fn, *args)
    fused = fuse_attention(graph)
    assert is_fused(fused), fused
    places = tuple(next(k for k, e in enumerate(examples) if e.shape == args[i].shape and torch.equal(e, args[i]))
                   for i in wrt)
    joint = differentiate(fused, places, tuple(range(len(tangents))))
    return run(optimize(joint.graph), [*examples, *tangents])
