"""From graphs to kernels and plans. ``compile_graph`` is the door; see ``fusion`` for what shares a kernel and
``lower`` for how it computes."""

from __future__ import annotations

from . import windows  # noqa: F401  (by which kernels compute them)
from .planner import CompiledGraph, Options, begin_graph, compile_graph

__all__ = ["begin_graph", "compile_graph", "CompiledGraph", "Options"]
