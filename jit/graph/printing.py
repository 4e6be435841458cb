"""A graph as runnable Python on eager tensors; the same text is what ``interpret`` runs."""

from __future__ import annotations

from jit.graph.dims import Dim, free_symbols
from jit.graph.functions import parts
from jit.graph.ir import Graph, Node, TensorType, ancestors, origins_in, same_ints
from jit.graph.nested import of_kind
from jit.graph.prim_info import info
from jit.graph.prims import FUSED_ATTENTION, GROUPED, infer, literal, words

HELPERS = '''\
def _restride(t, size, stride):
    """``t`` copied to memory with these strides."""
    return torch.empty_strided(size, stride, dtype=t.dtype, device=t.device).copy_(t)

def _laid_out(t, *stride):
    """The result of a library call, with the strides that the graph relies on."""
    return t if t.stride() == stride else _restride(t, t.shape, stride)
'''

CUSTOM_GRADIENT = '''\

class _CustomGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, *partials):
        ctx.undefined = [None] * (len(partials) % 2)
        ctx.shapes = [x.shape for x in partials[::2]]
        ctx.save_for_backward(*partials[1::2])
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        def share(d, shape):
            return g.new_zeros(shape) if d.dim() == 0 and d == 0 else (g * d).sum_to_size(shape)

        shares = [v for d, shape in zip(ctx.saved_tensors, ctx.shapes) for v in (share(d, shape), None)]
        return None, *shares, *ctx.undefined

_custom_gradient = _CustomGradient.apply
'''


FUNCTION = '''\

class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backward, n, *tensors):
        results = tuple([t.clone() for t in tensors[:n]])
        ctx.backward = backward
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx, *tangents):
        results = ctx.saved_tensors
        return None, None, *[None] * len(results), *ctx.backward(*results, *tangents)

class _FunctionOnce(_Function):
    backward = staticmethod(torch.autograd.function.once_differentiable(_Function.backward))
'''


def _arguments(node: Node) -> list[str]:
    """Operand texts. Scalars that eager would take as Python numbers are written as such."""
    names = [i.name for i in node.inputs]
    if info(node.op).takes_number:
        scalar = [info(i.op).kind == "number" and i.dtype == node.inputs[0].dtype for i in node.inputs]
        if scalar[1] and not scalar[0]:
            names[1] = (words(node.inputs[1]) if node.inputs[1].op == "float_scalar"
                        else literal(node.inputs[1].attrs["value"]))
    return names


def expression(node: Node) -> str:
    """The eager expression of one node, with the strides of its type."""
    prim = info(node.op)
    text = prim.text(node, _arguments(node))
    if node.several:
        return text
    if prim.kind in ("call", "part"):
        return f"_laid_out({text}, {', '.join(map(literal, node.type.strides))})" if node.type.rank > 1 else text
    if prim.is_source:
        natural = TensorType.contiguous(node.shape, node.dtype, node.device)
    else:
        natural = infer(node.op, tuple(i.type for i in node.inputs), node.attrs, node.dtype)
    if natural is None:
        return text
    if node.op == "cat" and node.dtype != node.inputs[0].dtype:
        text += f".to({node.dtype})"
    if same_ints(natural.strides, node.type.strides):
        return text
    sizes = ", ".join(map(literal, node.type.shape)), ", ".join(map(literal, node.type.strides))
    if prim.kind == "view":
        source = node.inputs[0].name if prim.at_start else text
        return f"{source}.as_strided([{sizes[0]}], [{sizes[1]}])"
    return f"_restride({text}, [{sizes[0]}], [{sizes[1]}])"


def symbol_origins(graph: Graph) -> dict[str, tuple]:
    """Symbol name -> ("size" | "stride", position of the input, dimension) that is its value."""
    return origins_in(graph.inputs)


def symbol_bindings(graph: Graph) -> dict[str, str]:
    """Symbol name -> Python expression over the inputs that gives its value."""
    return {name: f"{graph.inputs[i].name}.{kind}({d})" for name, (kind, i, d) in symbol_origins(graph).items()}


def to_python(graph: Graph) -> str:
    """Source of ``graph(*inputs) -> tuple``; inputs that are mutated are written in place."""
    replays = any(n.op == "aten_call" and n.attrs["target"] == "jit::vjp" for n in graph.nodes)
    imports = ["from jit.graph.autodiff.replay import run as _vjp"] if replays else []
    if any(n.op == "aten_call" and n.attrs["target"] in FUSED_ATTENTION for n in graph.nodes):
        imports.append("from jit.graph.fused_attention import attention as _attention, backward as _attention_backward")
    if any(n.op == "aten_call" and n.attrs["target"] in GROUPED for n in graph.nodes):
        imports.append("from jit.graph.grouped import " + ", ".join(f"{t[5:]} as _{t[5:]}" for t in GROUPED))
    if any(n.op == "float_scalar" for n in graph.nodes):
        imports.append("from jit.graph.sym_float import from_words")
    if any(n.op == "random_bits" for n in graph.nodes):
        imports.append("from jit.graph.philox import random_bits as _random_bits")
    helpers = HELPERS + (CUSTOM_GRADIENT if any(n.op == "custom_gradient" for n in graph.nodes) else "")
    helpers += FUNCTION if any(n.op == "autograd_function" for n in graph.nodes) else ""
    lines = ["import torch", *imports, "", helpers,
             f"def graph({', '.join([*(n.name for n in graph.inputs), *unbound_symbols(graph)])}):"]
    for name, text in symbol_bindings(graph).items():
        lines.append(f"    {name} = {text}")
    loc = None
    late: set = set()  # what is computed in the backward of a function
    for node in graph.nodes:
        if node.op == "input":
            lines.append(f"    # {node.name}: {node.type}")
            continue
        if node.loc is not None and node.loc[:5] != loc:
            loc = node.loc[:5]
            lines.append(f"    # {node.loc}")
        if node.op == "autograd_function":
            lines += ["    " + line for line in function_text(graph, node)]
            continue
        if node.op == "tangent" or any(i in late for i in node.inputs):
            late.add(node)
            continue
        lines.append(f"    {node.name} = {expression(node)}  # {node.type}")
    returned = []
    for i, o in enumerate(graph.outputs):
        if o.mutates is None:
            returned.append(o.node.name)
    writes = [(o.node, graph.inputs[o.mutates]) for o in graph.outputs if o.mutates is not None]
    # A value that is read for one write may alias an input that an earlier write changes: take copies first.
    if len(writes) > 1:
        for k, (node, _) in enumerate(writes):
            lines.append(f"    w{k} = {node.name}.clone()")
    if writes:
        lines.append("    with torch.no_grad():")
    for k, (node, target) in enumerate(writes):
        lines.append(f"        {target.name}.copy_({f'w{k}' if len(writes) > 1 else node.name})")
    lines.append(f"    return ({', '.join(returned)}{',' if len(returned) == 1 else ''})")
    return "\n".join(lines) + "\n"


Graph.printer = to_python


def function_text(graph: Graph, call: Node) -> list[str]:
    """Lines that define the backward of an ``autograd_function`` and call it. All of the backward is in it, also what
    does not depend on a tangent: it may depend on the results, whose gradients of gradients go through the function
    itself."""
    results, arguments, tangents, gradients = parts(call)
    lines = [f"def _backward_{call.id}({', '.join(n.name for n in (*results, *tangents))}):"]
    body = ancestors([g for g in gradients if g is not None])
    for n in graph.nodes[graph.nodes.index(tangents[0]):]:
        if n in body and n.op != "tangent":
            lines += (["    " + line for line in function_text(graph, n)] if n.op == "autograd_function"
                      else [f"    {n.name} = {expression(n)}"])
    values = ["None" if g is None else f"{g.name}.sum_to_size({x.name}.shape)" for g, x in zip(gradients, arguments)]
    lines.append(f"    return [{', '.join(values)}]")
    lines.append(
        f"{call.name} = _Function{'Once' if call.attrs['second'] == 'once' else ''}.apply(_backward_{call.id}, "
        f"{len(results)}, {', '.join(n.name for n in (*results, *arguments))})")
    return lines


def unbound_symbols(graph: Graph) -> list[str]:
    """Size symbols that the graph uses and that no input's shape shows; they are given as integers after the inputs, in
    this order."""
    if not graph.env.origins:
        return []
    types = [(t.shape, t.strides) for n in graph.nodes for t in n.types if t is not None]
    used = {name for d in of_kind(Dim, ([n.attrs for n in graph.nodes], types)) for name in free_symbols(d)}
    bound = symbol_bindings(graph)
    return [name for name in graph.env.origins if name in used and name not in bound]
