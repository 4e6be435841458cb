"""Gradients of library calls by what PyTorch's autograd has recorded of the call itself: of recurrent layers, whose
steps are many small operators, and of random operators, which a second run would give other numbers.

``jit::recorded_lstm`` takes what ``aten::lstm`` takes, and for each tensor among it whether its gradient is wanted and
whether it is copied, since its memory may be another's by the time of the backward. Behind the results it gives a
record, a tensor that owns what autograd has recorded; ``jit::recorded_gradient`` computes the gradients from it. The
record goes from the forward to the backward like any value that is saved (``runtime/native/recorded.cpp``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import torch

from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.autodiff.replay import draws
from jit.graph.autodiff.rules import aten_vjp, training_form
from jit.graph.ir import Node, TensorType
from jit.graph.nested import several
from jit.graph.prim_info import info
from jit.graph.prims import base_of
from jit.runtime import native

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder

RECORDED = "jit::recorded_"
GRADIENT = RECORDED + "gradient"


def _tensors(args: object) -> Iterator[Node]:
    """The nodes among nested arguments, in order, with repeats."""
    if isinstance(args, Node):
        yield args
    elif isinstance(args, (tuple, list)):
        for a in args:
            yield from _tensors(a)


def recorded(b: GradBuilder, node: Node, *args: object) -> object:
    """The form of a library call whose backward reads a record of it."""
    target, overload = node.attrs["target"], node.attrs["overload"]
    name = target.replace("aten::", RECORDED)
    given = tuple(_tensors(args))
    if not target.startswith("aten::") or not given or not native().define_recorded(name, overload):
        return NotImplemented
    if args and isinstance(args[-1], dict):
        return NotImplemented
    wanted = tuple(n in b.carries for n in given)
    copied = tuple(info(base_of(n).op).kind != "input" for n in given)
    record = TensorType.contiguous((1,), torch.uint8, given[0].type.device)
    made = b.aten(name, overload, (*args, wanted, copied), (*several(node.types), record),
                  node.attrs.get("impure", False) or draws(node))
    results = b.aten_results(made)[:-1]
    return results[0] if not node.several else results


def recorded_vjp(b: GradBuilder, out: Node, g: tuple[Node | None, ...], *args: object) -> tuple:
    """One gradient for each tensor whose gradient was wanted, in the places of the arguments."""
    *args, wanted, _ = args
    leaves = [n for n, w in zip(_tensors(args), wanted) if w]
    record = b.result(out, len(out.types) - 1)
    made = b.aten(GRADIENT, "", (record, tuple(g[:-1])), tuple(layout.empty_like(n.type) for n in leaves))
    found = iter(several(b.aten_results(made) if isinstance(made, tuple) else made))
    wants = iter(wanted)

    def placed(a: object) -> object:
        if isinstance(a, Node):
            return next(found) if next(wants) else None
        return tuple(map(placed, a)) if isinstance(a, (tuple, list)) else None

    return tuple(map(placed, args))


@aten_vjp(GRADIENT)
def again(b: GradBuilder, out: Node, g: object, *args: object) -> NoReturn:
    raise Unsupported("double backward of a recorded call", kind="gradient")


training_form("gru", "rnn_tanh", "rnn_relu")(recorded)
