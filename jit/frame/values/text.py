"""Text that shows the values of tensors, or integers that change from call to call: made for real if it leaves the
captured region."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...errors import Unsupported
from .base import Raised, Value
from .constant import Constant

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..operators import Binary, Comparison
    from ..session import Session

_CONVERT = {None: lambda x: x, "str": str, "repr": repr, "ascii": ascii}


class TensorText(Value):
    """``pieces``: strings, and (conversion, format specification) for each of ``tensors``, in order."""

    def __init__(self, pieces, tensors) -> None:
        self.pieces, self.tensors = tuple(pieces), list(tensors)

    @classmethod
    def of(cls, s: Session, tensor, conversion, spec: str = ""):
        """The text of a tensor as it is now. Raises Unsupported where the text shows more than values."""
        if tensor.pytype(s) is not torch.Tensor or tensor.handle(s).requires_grad:
            raise Unsupported("str() of a tensor shows its values", kind="data-dependent-value")
        if spec:  # one that is wrong for such a tensor raises here
            t = tensor.handle(s).type
            try:
                format(_CONVERT[conversion](torch.zeros((1,) if t.shape else (), dtype=t.dtype)), spec)
            except (TypeError, ValueError) as error:
                raise Raised(s.exception(error)) from None
        return cls([(conversion, spec)], [s.torch_call(torch.clone, [tensor], {})])

    @classmethod
    def join(cls, s: Session, parts: list[Value]) -> Value:
        """The text of several one after another; a Constant where none is unknown."""
        pieces: list = []
        tensors: list[Value] = []
        for p in parts:
            more, shown = p.text_parts(s)
            pieces += more
            tensors += shown
        if not tensors:
            return Constant("".join(pieces))
        return (NumberText if all(v.symbolic is int for v in tensors) else cls)(pieces, tensors)

    def text_parts(self, s: Session) -> tuple[Sequence, Sequence[Value]]:
        return self.pieces, self.tensors

    def pytype(self, s: Session) -> type:
        return str

    def identity(self) -> tuple[str, int]:
        return ("value", id(self))

    def text(self, s: Session, method: str) -> Value:
        return self if method == "__str__" else self.const(s)

    def escaped(self, s: Session) -> Value:
        return TensorText([("ascii", "")], self.tensors)  # it is a tensor's ``repr``

    def formatted(self, s: Session, spec: Value) -> Value:
        plain, piece = spec.const(s), self.pieces[0]
        if not plain:
            return self
        s.really(format, "", plain)  # one that is wrong for a text raises here
        if len(self.pieces) > 1 or type(piece) is str or piece[0] is None or piece[1]:
            self.const(s)
        return TensorText([(piece[0], plain)], self.tensors)

    def const(self, s: Session, *args: object) -> Any:
        raise Unsupported("str() of a tensor shows its values", kind="data-dependent-value")

    number = concat = repeat = compare = contains = const

    def emit(self, e: Emitter) -> None:
        e.call_const(Joined(self.pieces), self.tensors)

    def describe(self) -> str:
        return "the text of a tensor"


class NumberText(Value):
    """Text that shows integers that change from call to call: most of it is for an error that is not raised. Where the
    program needs to know what it says, they are constants.

    ``pieces``: strings, and (conversion, format specification) for each of ``numbers``, in order.
    """

    can_wait = True

    def __init__(self, pieces, numbers) -> None:
        self.pieces, self.numbers = tuple(pieces), list(numbers)

    @classmethod
    def of(cls, s: Session, number: Value, spec: str = "") -> Value:
        """The text of an integer."""
        s.really(format, number.at_hand(s), spec)  # one that is wrong for an integer raises here
        return cls([(None, spec)], [number])

    def text_parts(self, s: Session) -> tuple[Sequence, Sequence[Value]]:
        return self.pieces, self.numbers

    def pytype(self, s: Session) -> type:
        return str

    def is_const(self) -> bool:
        return True

    def const(self, s: Session) -> str:
        return Joined(self.pieces)(*[v.const(s) for v in self.numbers])

    def known(self, s: Session) -> Value:
        """The constant that it is in this call, which becomes a fact."""
        return Constant(self.const(s))

    def identity(self) -> tuple:
        return ("text", self.pieces, tuple([v.identity() for v in self.numbers]))

    def text(self, s: Session, method: str) -> Value:
        return self if method == "__str__" else self.known(s).text(s, method)

    def formatted(self, s: Session, spec: Value) -> Value:
        return self if spec.const(s) == "" else self.known(s).formatted(s, spec)

    def escaped(self, s: Session) -> Value:
        return self if all(p.isascii() for p in self.pieces if isinstance(p, str)) else super().escaped(s)

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        if issubclass(other.pytype(s), str):
            return TensorText.join(s, [self, other])
        return self.known(s).concat(s, op, other)

    def behind(self, s: Session, text: Value) -> Value | None:
        return TensorText.join(s, [text, self])

    def truth(self, s: Session) -> bool:
        return any(self.pieces)  # what shows a number is never empty

    def hash_key(self, s: Session) -> object:
        return self.const(s)

    instance_key = hash_key

    def length(self, s: Session) -> int:
        return self.known(s).length(s)

    def backwards(self, s: Session) -> Value:
        return self.known(s).backwards(s)

    def attribute_names(self, s: Session) -> Value:
        return self.known(s).attribute_names(s)

    def getattr(self, s: Session, name: str) -> Value:
        return self.known(s).getattr(s, name)

    def setattr(self, s: Session, name: str, value: Value) -> None:
        self.known(s).setattr(s, name, value)

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.known(s).call(s, args, kwargs)

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        return self.known(s).call_special(s, name, args)

    def getitem(self, s: Session, key: Value) -> Value:
        return self.known(s).getitem(s, key)

    def iter(self, s: Session) -> Value:
        return self.known(s).iter(s)

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        if op.symbol == "+":
            return None  # ``concat`` comes next
        known = self.known(s)
        return known.number(s, op, known if a is self else a, known if b is self else b)

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        return self.known(s).repeat(s, op, times)

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        return self.known(s).compare(s, op, other)

    def contains(self, s: Session, item: Value) -> bool:
        return self.known(s).contains(s, item)

    def lower(self, s: Session) -> Any:
        return self.const(s)

    def emit(self, e: Emitter) -> None:
        e.call_const(Joined(self.pieces), self.numbers)

    def describe(self) -> str:
        return "a text that shows an integer"


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Makes the text from real tensors and integers."""

    pieces: list

    def __call__(self, *shown: object) -> str:
        rest = iter(shown)
        return "".join(p if isinstance(p, str) else format(_CONVERT[p[0]](next(rest)), p[1]) for p in self.pieces)
