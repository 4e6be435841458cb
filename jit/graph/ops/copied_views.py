"""``permute_copy`` and its like: what a view operator shows, in row-major memory of its own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jit.graph.ir import Node, contiguous_strides
from jit.graph.ops import views
from jit.graph.registry import OPS, Op

if TYPE_CHECKING:
    from jit.graph.build import Builder


def _copied(b: Builder, shown: Any) -> Any:
    if isinstance(shown, Node):
        return b.clone(shown, contiguous_strides(shown.shape))
    return tuple(_copied(b, part) for part in shown)


def _copying(entry: Op) -> Op:
    @functools.wraps(entry.fn)
    def expand(b: Builder, *args: Any, **named: Any) -> Any:
        shown = entry.fn(b, *args, **named)
        return shown if shown is NotImplemented else _copied(b, shown)

    return Op(f"{entry.name}_copy", expand, entry.varargs)


for _view in (views.alias, views.permute, views.transpose, views.t, views.squeeze, views.unsqueeze,
              views.narrow, views.diagonal, views.unbind, views.split_with_sizes):
    _made = _copying(OPS[_view.__name__])
    OPS[_made.name] = _made
