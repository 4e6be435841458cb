"""Regular expressions on constant text: run for real while capturing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...errors import Unsupported
from .. import source as src
from ..tables import on_function, on_method

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def _result(s: Session, value: object) -> Value:
    if isinstance(value, (re.Pattern, re.Match)):
        return s.wrap(value, src.Const(value, type(value).__name__.lower(), owned=True))
    return s.from_python(value)


def _run(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [*args, *kwargs.values()]
    real = [a.obj if isinstance(getattr(a, "obj", None), re.Pattern) else a.const(s) for a in given]
    for value, a in zip(real, given):
        if isinstance(value, re.Pattern):
            a.pin(s)
        elif callable(value):
            raise Unsupported("a regular expression with a function as its replacement", kind="c-call")
    return _result(s, s.really(fn, *real[:len(args)], **dict(zip(kwargs, real[len(args):]))))


for _fn in (re.compile, re.escape, re.findall, re.fullmatch, re.match, re.search, re.split, re.sub, re.subn):
    on_function(_fn)(lambda s, args, kwargs, fn=_fn: _run(s, fn, args, kwargs))

for _cls, _names in ((re.Pattern, "findall fullmatch match search split sub subn"),
                     (re.Match, "end group groupdict groups span start __getitem__")):
    for _name in _names.split():
        on_method((_cls, _name))(lambda s, value, args, kwargs,
                                 name=_name: _run(s, getattr(value.pin(s), name), args, kwargs))
