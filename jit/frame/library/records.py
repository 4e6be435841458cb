"""``logging``: records are written after the graph has run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Callable

from ...errors import Unsupported
from ..tables import on_function
from ..values.constant import Constant
from ..values.containers import TupleValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def write_record(logger, level, file, line, function: object, message, args: list[Value]) -> None:
    """What ``Logger._log`` does, for a call at this place of the program."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, file, line, message, args, None, function))


def log_call(level: int | None) -> Callable:
    """The handler of a method of ``Logger``. ``level``: of its records; None where it is the first argument."""

    def handler(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
        logger, *rest = args
        if kwargs or len(rest) < (2 if level is None else 1) or not all(v.is_const() for v in rest) or not s.frames:
            raise Unsupported("a log record is written", kind="logging", hint="log outside the compiled function")
        at, message, *values = rest if level is None else [Constant(level), *rest]
        file, line, *_ = s.recording.location()
        s.effect(write_record, [logger, at, Constant(file), Constant(line),
                                Constant(s.frames[-1].fn.code.co_name), message, TupleValue(values)])
        return Constant(None)

    return handler


for _name, _level in (("debug", logging.DEBUG), ("info", logging.INFO),
                      ("warning", logging.WARNING), ("error", logging.ERROR), ("log", None)):
    on_function(getattr(logging.Logger, _name))(log_call(_level))
