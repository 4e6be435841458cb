"""Tensors of the jagged layout (``torch.nested``), and the size that stands for the lengths of their sequences.

PyTorch's class is a wrapper subclass (``values.subclasses``) with one size that is no number: a *nested int*, which is
equal to another where both come of the same tensor of offsets (or of lengths), and is made of that tensor by its
identity. So the value of a nested int is that tensor and a factor. Which number PyTorch gives to the tensor differs in
each call and is nowhere relied on: sizes and strides of an argument are computed of the tensors inside of it, as its
class does when the tensor is made, and behind the graph PyTorch is asked for the nested int of the tensor there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...errors import Unsupported
from ..operators import BINARY
from ..protocols import binary_op
from ..size_nodes import SizeNode
from ..subclass_gradients import emerge
from .base import Value
from .constant import Constant
from .containers import TupleValue
from .subclasses import KINDS, WrapperTensor

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..operators import Binary, Comparison
    from ..session import Session


class NestedInt(Value):
    """``factor`` times the nested int of the tensor ``of``."""

    is_numeric = True

    def __init__(self, of: Any, factor: Any = 1) -> None:
        self.of, self.factor = of, factor

    def pytype(self, s: Session) -> type:
        return torch.SymInt

    def identity(self) -> tuple:
        return ("nested int", id(self.of), self.factor)

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        other = b if a is self else a
        n = other.exact_int()
        if op.symbol != "*" or n is None:
            raise Unsupported(f"{op.symbol} of the size of a nested tensor's ragged dimension", kind="tensor-layout")
        return NestedInt(self.of, self.factor * n)

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        same = type(other) is NestedInt and other.of is self.of and bool(other.factor == self.factor)
        if op.symbol == "==":
            return Constant(same)
        if op.symbol == "!=":
            return Constant(not same)
        n = other.exact_int()
        if n is not None and op.symbol in (">=", ">", "<", "<="):
            return Constant(bool(op.fn(SizeOfSequences.LEAST, n))) if bool(n < SizeOfSequences.LEAST) else None
        raise Unsupported("sizes of nested tensors' ragged dimensions are compared by order", kind="tensor-layout")

    def emit(self, e: Emitter) -> None:
        e.call(torch_private.nested_int, lambda: e.load(self.of), lambda: e.load_dim(self.factor)
               if type(self.factor) is not int else e.load_const(self.factor))

    def describe(self) -> str:
        return "a nested int"


class SizeOfSequences(SizeNode):
    """What PyTorch asks of a nested int (``NestedInt``)."""

    LEAST = 2  # PyTorch takes it to be no smaller

    def is_nested_int(self) -> bool:
        return True

    def nested_int(self) -> int:
        return id(self.value.of) & 0x7FFFFFFF

    def nested_int_coeff(self) -> int:
        return self.value.factor if type(self.value.factor) is int else int(self.value.factor)

    def maybe_as_int(self) -> None:
        return None

    def same(self, other: SizeNode) -> bool:
        mine, its = self.value, other.value
        return type(its) is NestedInt and its.of is mine.of and bool(its.factor == mine.factor)

    def mul(self, other: SizeNode) -> SizeNode:
        return SizeOfSequences(NestedInt(self.value.of, self.value.factor * other.value))

    def eq(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.same(other))

    def ne(self, other: SizeNode) -> SizeNode:
        return SizeNode(not self.same(other))

    def _order(self, other: SizeNode) -> int:
        if type(other.value) is NestedInt:
            if other.value.of is not self.value.of:
                raise Unsupported("sizes of nested tensors' ragged dimensions are compared by order",
                                  kind="tensor-layout")
            return self.value.factor - other.value.factor
        if bool(other.value > self.LEAST):
            raise Unsupported("sizes of nested tensors' ragged dimensions are compared by order", kind="tensor-layout")
        return 1

    def gt(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self._order(other) > 0))

    def ge(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self._order(other) >= 0))

    def lt(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self._order(other) < 0))

    def le(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self._order(other) <= 0))

    def clone(self) -> SizeNode:
        return self

    def text(self) -> str:
        return f"j{self.nested_int()}"

    _graph_repr = str = text

    def decided(self, *where: object) -> bool:
        return True

    def plain(self, *where: object) -> int:
        raise Unsupported("the size of a nested tensor's ragged dimension is needed as a number", kind="tensor-layout")

    guard_bool = bool_ = guard_or_false = guard_or_true = decided
    guard_int = int_ = plain


class JaggedTensor(WrapperTensor):
    """Of ``torch.nested``'s class."""

    carrying = ("_values",)

    def own_attr(self, s: Session, name: str) -> Value | None:
        if self.obj is not None and name in ("_size", "_strides") and name not in self.attrs:
            self.laid_out(s)
        return super().own_attr(s, name)

    def laid_out(self, s: Session) -> None:
        """Sizes and strides, of what is inside."""
        values, at = self.getattr(s, "_values"), self.getattr(s, "_ragged_idx").const(s) - 1
        offsets, lengths = self.getattr(s, "_offsets"), self.getattr(s, "_lengths")
        batch = binary_op(s, BINARY["-"], offsets.getattr(s, "shape").items_list(s)[0], Constant(1))
        inner = values.getattr(s, "shape").items_list(s)
        strides = values.call_method(s, "stride").items_list(s)
        ragged = NestedInt(offsets if lengths.is_nothing(s) else lengths)
        s.set_entry(self.attrs, "_size", TupleValue([batch, *inner[:at], ragged, *inner[at + 1:]]))
        s.set_entry(self.attrs, "_strides", TupleValue([binary_op(s, BINARY["*"], ragged, strides[at]), *strides]))

    def new_stand_in(self, s: Session, kind: type, requires_grad: bool | None = None) -> Any:
        real = s.asker.to_real
        size, strides = self.getattr(s, "_size"), self.getattr(s, "_strides")
        values = self.getattr(s, "_values")
        dtype, device = values.getattr(s, "dtype").const(s), values.getattr(s, "device").const(s)
        if requires_grad is None:
            requires_grad = (self.obj.requires_grad if self.obj is not None
                             else "requires_grad" in self.made[1] and self.made[1]["requires_grad"].truth(s))
        return torch_private.make_jagged(kind, real(size), real(strides), dtype, device, requires_grad)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
            return
        s = e.session
        known = s.asker.made.get(id(self))
        parts = s.asker.emerging(self) if known is not None and known[1].requires_grad else {}
        inside = []
        for name in _INSIDE:
            inside.append(functools.partial(e.load, self.attrs[name]) if name not in parts
                          else functools.partial(e.call_const, torch.Tensor.detach, [parts[name].shown]))
        e.call(torch_private.new_jagged, e.const(self.cls), *inside)
        e.remember(self)
        for name, value in self.attrs.items():
            if name not in _MADE:
                e.fill(object.__setattr__, self, e.const(name), functools.partial(e.load, value))
        if parts:
            made = e.memo[self.memo_key()]
            e.cmd("pop")
            e.call(emerge, e.local(made), e.const(tuple(parts)),
                   *(functools.partial(e.load, p.history) for p in parts.values()))
            e.remember(self)


_INSIDE = ("_values", "_offsets", "_lengths", "_ragged_idx", "_metadata_cache")
_MADE = frozenset((*_INSIDE, "_size", "_strides"))
KINDS[(torch_private.NESTED, "NestedTensor")] = JaggedTensor
