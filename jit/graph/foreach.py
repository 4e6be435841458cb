"""``torch._foreach_*``: one operation on lists of tensors, as the operations on their elements that it stands for.
Fusion puts them together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jit.errors import Unsupported
from jit.graph import changes
from jit.graph.handles import TensorHandle
from jit.graph.nested import holds
from jit.graph.op_info import op_info

if TYPE_CHECKING:
    from jit.graph.tracer import Tracer

_PREFIX = "_foreach_"


def foreach(tracer: Tracer, name: str, args: Sequence[float | list[TensorHandle]],
            kwargs: dict[str, int]) -> tuple[TensorHandle, ...] | list[TensorHandle]:
    """The tuple of results, or the list itself for an in-place form; NotImplemented where the library has to do it."""
    in_place = name.endswith("_")
    base = name[len(_PREFIX):].removesuffix("_")
    row = op_info(_PREFIX + base)
    operation = base if row.each == "" else row.each
    lists = [v for v in (*args, *kwargs.values()) if isinstance(v, (list, tuple)) and holds(TensorHandle, v)]
    if operation is None or not lists or in_place and lists[0] is not args[0]:
        return NotImplemented
    count = len(lists[0])
    if any(len(v) != count for v in lists) or any(not isinstance(e, TensorHandle) for v in lists for e in v):
        return NotImplemented  # which says what is wrong
    if base == "norm" and len(args) > 2 or base == "copy" and len(args) > 2:
        return NotImplemented
    names = dict(row.by_keyword)
    scalars = [*(args[k] for k in names if k < len(args)), kwargs.get("scalars")]
    if any(isinstance(v, TensorHandle) for v in scalars):
        return NotImplemented
    if in_place:
        written = {id(h.base) for h in args[0]}
        others = [h for v in lists[1:] for h in v]
        if len(written) != count or any(id(h.base) in written for h in others):
            raise Unsupported(f"{name} on tensors that share memory", "use separate operations",
                              kind="aliased-mutation")
    results = []
    for i in range(count):
        def at(v: float | int | Sequence[TensorHandle]) -> TensorHandle | float | int:
            return v[i] if isinstance(v, (list, tuple)) else v

        given = {"value" if k == "scalars" else k: at(v) for k, v in kwargs.items()}
        given.update((names[k], at(v)) for k, v in enumerate(args) if k in names)
        results.append(tracer.call_op(operation + "_" * in_place, [at(v) for k, v in enumerate(args) if k not in names],
                                      given))
    return (args[0] if changes.foreach_returns_list() else None) if in_place else tuple(results)
