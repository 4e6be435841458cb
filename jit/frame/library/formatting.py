"""Text made of values: ``%`` and ``str.format`` for objects that are not constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from ...errors import Unsupported
from .. import protocols
from ..tables import on_method
from ..values.base import Raised
from ..values.constant import Constant
from ..values.containers import TupleValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


class Shown:
    """Stands for a value while C code formats it: every way to its text is the value's own."""

    def __init__(self, session: Session, value: Value) -> None:
        self._of = session, value

    def __str__(self) -> str:
        s, value = self._of
        return value.text(s, "__str__").const(s)

    def __repr__(self) -> str:
        s, value = self._of
        return value.text(s, "__repr__").const(s)

    def __format__(self, spec) -> str:
        s, value = self._of
        return value.formatted(s, Constant(spec)).const(s)

    def __getattr__(self, name: str) -> int:
        s, value = self._of
        return shown(s, value.getattr(s, name))

    def __getitem__(self, key: str) -> int:
        s, value = self._of
        return shown(s, value.getitem(s, s.from_python(key)))


def shown(s: Session, value: Value) -> object:
    """The constant itself, or something that formats as the value does."""
    return value.const(s) if value.is_const() else Shown(s, value)


@on_method((str, "__mod__"))
def percent(s: Session, owner, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``text % value``."""
    text, (value,) = owner.const(s), args
    if value.builtin is tuple:
        operand = tuple(shown(s, v) for v in value.load(s))
    elif value.builtin is dict and value.pytype(s) is dict:
        operand = {k: shown(s, v) for k, (_, v) in value.load(s).items()}
        if any(not isinstance(k, str) for k in operand):
            raise Unsupported("% formatting is given a dict with keys that are not text", kind="format")
    else:
        operand = shown(s, value)
    return run(s, lambda: text % operand)


@on_method((str, "format"))
def format_text(s: Session, owner, args: list[Value], kwargs: dict[str, Value]) -> Value:
    text = owner.const(s)
    return run(s, lambda: text.format(*(shown(s, a) for a in args), **{k: shown(s, v) for k, v in kwargs.items()}))


@on_method((str, "join"), (bytes, "join"))
def join(s: Session, owner, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not args[0].is_const():
        args = [TupleValue(protocols.iterate(s, args[0], "can only join an iterable").items_list(s))]
    return s.fold(owner.const(s).join, args, kwargs)


def run(s: Session, fn: Callable) -> Value:
    """The text that ``fn`` makes; TypeErrors about stand-ins are not the program's."""
    try:
        return s.from_python(s.really(fn))
    except Raised as raised:
        if any("Shown" in str(v.value) for v in raised.value.init_args if v.is_leaf):
            raise Unsupported("a value is formatted that is known only at run time", kind="format") from None
        raise
