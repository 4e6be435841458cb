"""Numbers that Python reads off tensors (``x.item()``, ``lengths.tolist()``) before the graph runs.

A number that is only kept, returned or an operand of tensors is read behind the graph (``values.deferred``). Where the
program needs to know it, as a size, an index or in a branch, and it is computed from one small tensor of integers on
the CPU, or from one drawn number, the capture is made again with all such numbers as numbers from outside: a constant
with a guard at first, and a symbol once it has changed, as sizes are. Their source computes them from that tensor.
What a branch finds is no number that could be a symbol: where it has turned out otherwise at one capture after another,
as in a loop that a number ends, it is a break as any branch on data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from ...devices import backend
from ...graph import constants
from ...graph.dims import hint
from ...graph.interpret import function_of_text
from ...graph.ir import Graph, Output
from ...graph.printing import to_python
from ...graph.refusals import keep_sizes
from ...runtime import names
from ...runtime.drawing import drawn_by
from .. import source as src
from ..assumptions import Reconsider
from .base import Value
from .containers import ListValue

if TYPE_CHECKING:
    from ...graph.handles import TensorHandle
    from ...graph.ir import Node
    from ..session import Session
    from .tensor import TensorValue

_MOST = 64  # elements
# Numbers drawn before one that is read: its guard draws them all, and so do those of the numbers behind it.
_MOST_DRAWS = 64


def possible(s: Session, handle: TensorHandle) -> bool:
    """Whether the values of a tensor can be read before the graph runs."""
    return _only_input(s, handle) is not None


def _only_input(s: Session, handle: TensorHandle) -> tuple[TensorValue, Node, list[Node]] | None:
    """The tensor from outside that a value is computed from, its node, and the nodes in between."""
    t = handle.type
    if not backend(t.device).host or hint(t.numel) > _MOST or s.in_a_map or s.levels:
        return None
    cone = [handle.node] if handle.node.op == "input" else constants.cone(handle.node)
    inputs = [n for n in cone or () if n.op == "input"]
    if len(inputs) != 1 or hint(inputs[0].type.numel) > _MOST:
        return None
    node, = inputs
    tensor = s.recording.inputs[node.attrs["index"]]
    if tensor.obj is None or tensor.source is None or tensor.obj.is_meta:
        return None
    if tensor.source.drawn:
        return (tensor, node, cone) if tensor.source.index < _MOST_DRAWS else None
    if node.dtype.is_floating_point or node.dtype.is_complex or not tensor.source.guarded:
        return None
    return tensor, node, cone


def read(s: Session, tensor: TensorValue, method: str) -> Value | None:
    """What a method that gives Python's numbers gives, or None where that is not known before the graph runs."""
    found = _only_input(s, tensor.handle(s))
    if found is None or method != "tolist" and hint(tensor.handle(s).type.numel) != 1:
        return None
    decides = method == "__bool__"
    if decides and s.varying.turns(s.frames[-1].where()):
        return None
    outside, node, cone = found
    keep_sizes([tensor.handle(s)])
    text = None if len(cone) == 1 else to_python(Graph([node], cone, [Output(tensor.handle(s).node)], s.tracer.env))
    if outside.source.drawn:
        generator = s.heap.by_source[outside.source.of.of]
        source = src.Computed(generator.source, _drawn, (generator.program[:outside.source.index + 1], text, method))
    else:
        source = src.Computed(outside.source, _of_tensor, (text, method))
    number = _of_tensor(text, method)(outside.obj)
    if decides and not s.varying.foretells(s.frames[-1].where(), number):
        raise Reconsider("")
    return _wrapped(s, number, source)


def needed(s: Session, tensor: TensorValue, method: str) -> Value | None:
    """``read`` of a number that is needed now. Raises Reconsider where such numbers are read behind the graph so
    far."""
    if not s.lazy_reads:
        return read(s, tensor, method)
    if possible(s, tensor.handle(s)):
        raise Reconsider("lazy_reads")
    return None


def _wrapped(s: Session, number: object, source: src.Source) -> Value:
    if type(number) is not list:
        return s.wrap(number, source)
    return ListValue([_wrapped(s, n, src.Item(source, k)) for k, n in enumerate(number)])


def _of_tensor(text: str | None, method: str) -> Callable:
    """The function of a tensor that gives what ``method`` says of what is computed from it by a text, or of itself."""
    compute = (lambda tensor: (tensor,)) if text is None else function_of_text(text)

    def read_first(tensor: torch.Tensor) -> object:
        with torch.no_grad():
            return getattr(compute(tensor)[0], method)()

    return names.made(read_first, _of_tensor, text, method)


def _drawn(program: tuple, text: str | None, method: str) -> Callable:
    compute = _of_tensor(text, method)

    def read_first(generator: object) -> object:
        return compute(drawn_by(generator, program)[-1])

    return names.made(read_first, _drawn, program, text, method)
