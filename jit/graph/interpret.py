"""Run a graph on eager tensors: compile its printed text once and call it."""

from __future__ import annotations

import linecache

import torch

from jit.graph.ir import Graph
from jit.graph.prims import literal
from jit.graph.printing import to_python

_counter = 0


def compile_python(graph: Graph):
    """The graph as a Python function of its inputs (and of size symbols that no input's shape shows)."""
    global _counter
    _counter += 1
    text = to_python(graph)
    file = f"<jit graph {_counter}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace = {literal(v): v for node in graph.nodes for v in _generators(node.attrs.get("args"))}
    exec(compile(text, file, "exec"), namespace)
    return namespace["graph"]


def _generators(template):
    """The random generators in the arguments of a library call, which the text can only name."""
    if isinstance(template, torch.Generator):
        yield template
    elif isinstance(template, (tuple, list)):
        for t in template:
            yield from _generators(t)


def evaluate(graph: Graph, tensors, sizes=()) -> list:
    """Values of the returned outputs for input ``tensors``; mutated inputs are written in place.

    Gradients are not recorded. ``sizes`` gives the values of size symbols that cannot be read off the inputs' shapes.
    """
    with torch.no_grad():
        return list(compile_python(graph)(*tensors, *sizes))
