"""Passes of the user's own: ``jit.compile(fn, passes=[...])``.

A pass is a function of a ``GraphEditor``. It sees each captured graph before gradients are derived and kernels are
made, so that what it puts there is differentiated, fused and compiled like the program's own operations.
``Replacement`` makes one from two functions on tensors. See docs/passes.md.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from . import logs
from .errors import PassError
from .graph.edit import GraphEditor, refused
from .graph.ir import Node
from .graph.patterns import Replacement

if TYPE_CHECKING:
    import torch
    from .backends import Plan
    from .graph.ir import Graph
    from .graph.recording import Gradient

__all__ = ["GraphEditor", "Node", "PassError", "Replacement", "key"]
_log = logs.channel("passes")


def name_of(p: object) -> str:
    return getattr(p, "__name__", type(p).__name__)


def described(p: Any) -> str:
    """A pass in messages: its name, and the line where its function begins."""
    code = getattr(p.replacement if isinstance(p, Replacement) else p, "__code__", None)
    return f"the pass {name_of(p)!r}" + (f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else "")


def key(p: Callable | Replacement) -> str:
    """Hexadecimal digits that change with the text of a pass: ``p.key`` if it has one, which a pass that depends on
    other values has to set, else from the code of its functions."""
    given = getattr(p, "key", None)
    if isinstance(given, str):
        return given
    parts: list[str] = []
    functions: tuple[Any, ...] = (p,)
    if isinstance(p, Replacement):
        functions = p.pattern, p.replacement, p.where
        parts = [repr((p.keep_gradient, [[(t.dtype, t.dim()) for t in example] for example in p.examples]))]
    for fn in functions:
        code = getattr(fn, "__code__", None) or getattr(getattr(type(fn), "__call__", None), "__code__", None)
        parts.append(name_of(fn) if code is None else hashlib.sha256(marshal.dumps(code)).hexdigest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def applied(backend: Callable, passes: tuple) -> Callable:
    """``backend`` for graphs that the passes have changed, one after the other."""
    if not passes:
        return backend

    def changed(graph: Graph, examples: Sequence[torch.Tensor], gradient: Gradient | None = None) -> Plan:
        for p in passes:
            with refused(described(p)), logs.timed(f"pass {name_of(p)}"):
                editor = GraphEditor(graph, () if gradient is None else gradient.wrt)
                if p(editor) is not None:
                    raise PassError("returned a value; a pass changes the graph that it is given, and returns None")
                if editor.changes:
                    graph = editor.result()
            if _log:
                _log(f"{name_of(p)} ({key(p)}): {editor.changes} node{'s'[:editor.changes != 1]} replaced" +
                     (f"\n{graph.python()}" if editor.changes else ""))
        return backend(graph, examples, gradient)

    return changed
