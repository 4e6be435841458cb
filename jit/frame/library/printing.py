"""``print``: done behind the graph, among the effects, in the program's order. What it shows is what there was at the
time of the call: numbers and texts as they are, copies of tensors, and containers of these as new ones; of any other
object its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...errors import Unsupported
from ..tables import on_call
from ..values.base import Value
from ..values.constant import Constant
from ..values.containers import ListValue, TupleValue
from ..values.mappings import DictValue
from ..values.text import TensorText

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session

_EXACT = {list: ListValue, tuple: TupleValue, torch.Size: TupleValue}


def printed(file: Any, sep: str | None, end: str | None, flush: bool, *shown: object) -> None:
    """The effect of a call of ``print``."""
    print(*shown, sep=sep, end=end, file=file, flush=flush)


@on_call(print)
def print_later(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(kwargs)
    file = given.pop("file", Constant(None))
    options = [given.pop(name, Constant(None)) for name in ("sep", "end")]
    flush = given.pop("flush", Constant(False))
    if given or not all(v.is_leaf and (v.value is None or type(v.value) is str) for v in options):
        raise Unsupported("print() is given arguments that it does not take", kind="argument-error")
    if not file.is_nothing(s) and (not file.is_object or file.obj is None):
        raise Unsupported("print() writes to a file object that is made here", "print outside the compiled function",
                          kind="forbidden-call")
    shown = [snapshot(s, v, True) for v in args]
    s.effect(printed, [file, *options, Constant(flush.truth(s)), *shown])
    return Constant(None)


def snapshot(s: Session, v: Value, outermost: bool = False) -> Value:
    """A value that prints as ``v`` does now, whatever the program changes later."""
    if v.is_leaf or v.symbolic is not None or v.is_read or type(v) is TensorText:
        return v
    if v.is_tensor:
        if outermost or v.handle(s).requires_grad:
            return TensorText.of(s, v, "str")
        if v.pytype(s) is not torch.Tensor:
            raise Unsupported("str() of a tensor shows its values", kind="data-dependent-value")
        return s.torch_call(torch.clone, [v], {})
    if v.builtin in (list, tuple) and v.cls in _EXACT:
        parts = [snapshot(s, e) for e in v.items_list(s)]
        return ListValue(parts) if v.cls is list else TupleValue(parts, v.cls)
    if type(v) is DictValue and v.cls is dict:
        return DictValue({key: (k, snapshot(s, e)) for key, (k, e) in v.load(s).items()})
    text = v.text(s, "__str__" if outermost else "__repr__")
    return text if outermost else AsText(text)


class Verbatim:
    """Shows in a container as a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class AsText(Value):
    """A new ``Verbatim``."""

    def __init__(self, text: Value) -> None:
        self.shown = text

    def pytype(self, s: Session) -> type:
        return Verbatim

    def identity(self) -> tuple[str, int]:
        return ("value", id(self))

    def emit(self, e: Emitter) -> None:
        e.call_const(Verbatim, [self.shown])
