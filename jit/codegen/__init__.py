"""From graphs to kernels and plans. ``compile_graph`` is the door; see ``fusion`` for what shares a kernel and
``lower`` for how it computes."""

from __future__ import annotations

__all__ = ["compile_graph", "CompiledGraph", "Options"]


def __getattr__(name):
    if name in __all__:
        from . import planner

        return getattr(planner, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
