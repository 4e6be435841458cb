"""Text that shows the values of tensors: not known while capturing, made for real if it leaves the captured region."""

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
        return cls(pieces, tensors) if tensors else Constant("".join(pieces))

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


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Makes the text from real tensors."""

    pieces: list

    def __call__(self, *tensors: object) -> str:
        rest = iter(tensors)
        return "".join(p if isinstance(p, str) else format(_CONVERT[p[0]](next(rest)), p[1]) for p in self.pieces)
