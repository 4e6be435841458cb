"""Backends that were written for ``torch.compile``, as backends of ``jit.compile``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable

import torch

from ..graph.ir import Graph
from .graph_module import numbers_of, to_graph_module


def torch_backend(fn: Callable) -> Callable:
    """``jit.compile(model, backend=torch_backend(fn))``, with ``fn(gm, example_inputs) -> callable`` as
    ``torch.compile`` takes it: ``gm`` is a ``torch.fx.GraphModule``, and the callable takes the tensors that its
    placeholders stand for, then the integers, and gives a tuple. Where gradients are wanted, the callable has to
    record them, as ``gm.forward`` does. Usable as a decorator."""

    @functools.wraps(fn)
    def backend(graph: Graph, examples: Sequence[torch.Tensor]) -> Callable:
        module = to_graph_module(graph, examples)
        numbers = numbers_of(graph)
        run = fn(module, [*examples, *numbers])
        if not callable(run):
            raise TypeError(f"the backend {fn!r} returned {type(run).__name__}; it has to return a callable")
        if getattr(run, "_boxed_call", False):  # it takes its arguments as a list, which it may empty
            return functools.partial(_boxed, run)
        return run

    return backend


def _boxed(run: Callable, *args: Any) -> Any:
    return run(list(args))
