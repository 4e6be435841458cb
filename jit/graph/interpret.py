"""Run a graph on eager tensors: compile its printed text once and call it."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit.graph.ir import Graph, Part
from jit.graph.nested import of_kind
from jit.graph.prims import literal
from jit.graph.printing import to_python, unbound_symbols
from jit.runtime import names

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr

_counter = 0
_MOST_TEXTS = 1000  # of which a traceback shows the lines


def compile_python(graph: Graph) -> Callable:
    """The graph as a Python function of its inputs (and of size symbols that no input's shape shows)."""
    generators = [v for node in graph.nodes for v in of_kind(torch.Generator, node.attrs)]
    return function_of_text(to_python(graph), *generators)


def function_of_text(text: str, *generators: torch.Generator) -> Callable:
    """The function ``graph`` that a text defines, which may name these random generators."""
    global _counter
    _counter += 1
    file = f"<jit graph {_counter}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    linecache.cache.pop(f"<jit graph {_counter - _MOST_TEXTS}>", None)
    namespace: dict[str, Any] = {literal(v): v for v in generators}
    exec(compile(text, file, "exec"), namespace)
    return names.made(namespace["graph"], function_of_text, text, *generators)


def view_function(graph: Graph, position: int) -> tuple:
    """How to make the returned output number ``position``, a view of an input or of another output, from its base.

    Returns (the base's position among the outputs, or None for an input; a function of the graph's inputs, that output
    if there is one, and integers, which gives a tuple of the view; the names of the size symbols that the integers are
    for).
    """
    returned = [o.node for o in graph.outputs if o.mutates is None]
    chain = [returned[position]]
    while chain[-1].inputs and chain[-1] not in returned[:position] + returned[position + 1 :]:
        chain.append(chain[-1].inputs[0])
    base = chain[-1]
    at = None if base.op == "input" else returned.index(base)
    part = Part(graph, graph.inputs if at is None else [*graph.inputs, base], [returned[position]]).run()
    return at, compile_python(part), unbound_symbols(part)


def evaluate(graph: Graph, tensors: list[torch.Tensor], sizes: Sequence[IntExpr] = ()) -> list:
    """Values of the returned outputs for input ``tensors``; mutated inputs are written in place.

    Gradients are not recorded. ``sizes`` gives the values of size symbols that cannot be read off the inputs' shapes.
    """
    with torch.no_grad():
        return list(compile_python(graph)(*tensors, *sizes))
