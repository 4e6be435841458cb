"""A captured graph as a ``torch.fx.GraphModule``.

A graph prints as a Python function of one assignment per node (``graph/printing.py``), and that text is what computes
the same as the graph, by definition. It is read here as a syntax tree, and each call in it becomes a node. Where the
text has more than assignments and calls, such as a backward of the program's own, the whole function is one node.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.shape_prop import TensorMetadata

from ..graph.dims import Dim, hint, symbols_of
from ..graph.interpret import compile_python, function_of_text
from ..graph.ir import Graph, Node, TensorType
from ..graph.nested import holds, of_kind
from ..graph.prims import literal
from ..graph.printing import to_python, unbound_symbols
from . import helpers

# What the text calls helpers of its own, here as functions that code elsewhere can import.
HELPERS = {"_restride": helpers.restride, "_laid_out": helpers.laid_out, "_custom_gradient": helpers.custom_gradient}
OPERATORS: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
    ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}


class _NoNode(Exception):
    """A piece of the text that is no call."""


def to_graph_module(graph: Graph, example_inputs: Sequence[torch.Tensor] = ()) -> fx.GraphModule:
    """A ``torch.fx.GraphModule`` that computes what ``graph`` does: a placeholder for each input, then one for each
    size that no input shows, ``call_function`` and ``call_method`` nodes, and a tuple as its output. Inputs that the
    program has changed are written in place, behind all that may fail.

    Nodes for tensors have ``meta["tensor_meta"]``, and ``meta["val"]`` on the device "meta" (of placeholders, the
    example input where there is one); symbolic sizes have there the value that they have now.
    """
    made = fx.Graph()
    try:
        _Reader(graph, made, example_inputs).read()
    except _NoNode:
        made = fx.Graph()
        _whole(graph, made, example_inputs)
    made.lint()
    return fx.GraphModule(torch.nn.Module(), made)


def _placeholders(graph: Graph, made: fx.Graph, examples: Sequence[torch.Tensor]) -> dict[str, fx.Node]:
    names = [n.name for n in graph.inputs] + unbound_symbols(graph)
    placeholders = {name: made.placeholder(name) for name in names}
    for k, node in enumerate(graph.inputs):
        _describe(placeholders[node.name], node)
        if k < len(examples):
            placeholders[node.name].meta.update(val=examples[k], example_value=examples[k])
    return placeholders


def numbers_of(graph: Graph) -> list[int]:
    """What the sizes that no input shows are now, in the order of their placeholders."""
    types = [(t.shape, t.strides) for n in graph.nodes for t in n.types if t is not None]
    now = {atom.name: atom.hint for d in of_kind(Dim, ([n.attrs for n in graph.nodes], types))
           for atom in symbols_of(d)}
    return [now[name] or 0 for name in unbound_symbols(graph)]  # each has a hint


def _whole(graph: Graph, made: fx.Graph, examples: Sequence[torch.Tensor]) -> None:
    """One node, which runs the text."""
    placeholders = _placeholders(graph, made, examples)
    text = compile_python(graph)
    text.__module__ = __name__  # torch.fx names what it calls by that
    result = made.call_function(text, tuple(placeholders.values()))
    returned = [o.node for o in graph.outputs if o.mutates is None]
    parts = [made.call_function(operator.getitem, (result, k)) for k in range(len(returned))]
    for part, node in zip(parts, returned, strict=True):
        _describe(part, node)
    made.output(tuple(parts))


def _of_type(t: TensorType) -> tuple[torch.Tensor, TensorMetadata]:
    shape, strides = [hint(d) for d in t.shape], [hint(d) for d in t.strides]
    value = torch.empty_strided(shape, strides, dtype=t.dtype, device="meta")
    layout = next((f for f in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
                   if (f is torch.contiguous_format or len(shape) == (4 if f is torch.channels_last else 5))
                   and value.is_contiguous(memory_format=f)), None)
    return value, TensorMetadata(value.shape, t.dtype, False, tuple(strides), layout, False, {})


def _describe(made: fx.Node, node: Node) -> None:
    """What is known of the value of a node."""
    types = node.types if node.several else (node.type,)
    known = [_of_type(t) for t in types if t is not None]
    values, records = [v for v, _ in known], [r for _, r in known]
    made.meta["val"] = tuple(values) if node.several else values[0]
    made.meta["tensor_meta"] = tuple(records) if node.several else records[0]
    if node.loc is not None:
        file, line, function = node.loc.user or node.loc[:3]
        made.meta["stack_trace"] = f'File "{file}", line {line}, in {function}'


class _Reader:
    """Reads the text of one graph."""

    def __init__(self, graph: Graph, made: fx.Graph, examples: Sequence[torch.Tensor]) -> None:
        self.graph, self.made, self.examples = graph, made, examples
        self.values: dict[str, Any] = {}
        self.nodes = {n.name: n for n in graph.nodes}

    def read(self) -> None:
        text = to_python(self.graph)
        generators = [v for node in self.graph.nodes for v in of_kind(torch.Generator, node.attrs)]
        self.globals = {**function_of_text(text, *generators).__globals__, **HELPERS,
                        **{literal(v): v for v in generators}}
        self.values.update(_placeholders(self.graph, self.made, self.examples))
        function = next(s for s in ast.parse(text).body if isinstance(s, ast.FunctionDef) and s.name == "graph")
        for statement in function.body:
            self.statement(statement)
        for node in reversed(self.made.nodes):
            unused = node.op == "call_function" and node.target is torch.tensor and not node.users
            if unused or node.op == "call_method" and node.target in ("size", "stride") and not node.users:
                self.made.erase_node(node)

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
            name = s.targets[0].id
            value = self.values[name] = self.value(s.value)
            if isinstance(value, fx.Node) and name in self.nodes:
                _describe(value, self.nodes[name])
        elif isinstance(s, ast.With):  # the writes at the end
            for write in s.body:
                call = write.value if isinstance(write, ast.Expr) else None
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
                        and call.func.attr == "copy_"):
                    raise _NoNode(ast.unparse(write))
                self.made.call_function(helpers.write, (self.value(call.func.value), self.value(call.args[0])))
        elif isinstance(s, ast.Return):
            self.made.output(self.value(s.value))
        else:
            raise _NoNode(ast.unparse(s))

    def call(self, fn: Any, args: tuple, kwargs: dict[str, Any] | None = None) -> Any:
        """A call: a node, but for a class, whose instances are no tensors, of values that are known."""
        kwargs = kwargs or {}
        if not holds(fx.Node, (args, kwargs)) and (isinstance(fn, type) or fn in OPERATORS.values()):
            return fn(*args, **kwargs)
        return self.made.call_function(fn, args, kwargs)

    def value(self, e: ast.expr | None) -> Any:
        """The node or the plain value of an expression."""
        match e:
            case ast.Constant():
                return e.value
            case ast.Name():
                for scope in (self.values, self.globals, vars(builtins)):
                    if e.id in scope:
                        return scope[e.id]
                raise _NoNode(e.id)
            case ast.Tuple():
                return tuple(self.elements(e.elts))
            case ast.List():
                return self.elements(e.elts)
            case ast.Slice():
                return slice(*(None if part is None else self.value(part) for part in (e.lower, e.upper, e.step)))
            case ast.Subscript():
                return self.call(operator.getitem, (self.value(e.value), self.value(e.slice)))
            case ast.BinOp():
                return self.call(OPERATORS[type(e.op)], (self.value(e.left), self.value(e.right)))
            case ast.UnaryOp():
                return self.call(OPERATORS[type(e.op)], (self.value(e.operand),))
            case ast.Compare() if len(e.ops) == 1 and type(e.ops[0]) in OPERATORS:
                return self.call(OPERATORS[type(e.ops[0])], (self.value(e.left), self.value(e.comparators[0])))
            case ast.Attribute():
                owner = self.value(e.value)
                return self.call(getattr, (owner, e.attr)) if isinstance(owner, fx.Node) else getattr(owner, e.attr)
            case ast.Call():
                args, kwargs = tuple(self.elements(e.args)), {k.arg: self.value(k.value) for k in e.keywords if k.arg}
                if len(kwargs) < len(e.keywords):
                    raise _NoNode(ast.unparse(e))
                if isinstance(e.func, ast.Attribute):
                    owner = self.value(e.func.value)
                    if isinstance(owner, fx.Node):
                        return self.made.call_method(e.func.attr, (owner, *args), kwargs)
                    return self.call(getattr(owner, e.func.attr), args, kwargs)
                return self.call(self.value(e.func), args, kwargs)
            case _:
                raise _NoNode("" if e is None else ast.unparse(e))

    def elements(self, expressions: Sequence[ast.expr]) -> list:
        found: list = []
        for e in expressions:
            if isinstance(e, ast.Starred):
                inner = self.value(e.value)
                if not isinstance(inner, (list, tuple)):
                    raise _NoNode(ast.unparse(e))
                found.extend(inner)
            else:
                found.append(self.value(e))
        return found
