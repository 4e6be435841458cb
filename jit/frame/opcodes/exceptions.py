"""Raising, handling, and ``with`` blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ...errors import Unsupported
from .. import special_methods
from ..cpython import EXIT_SLOTS
from ..executor import NULL, op
from ..values.base import Raised, type_name
from ..values.constant import Constant, Previous
from ..values.objects import TracebackValue

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame
    from ..session import Session
    from ..values.base import Value


def as_exception(s: Session, value: Value) -> Value:
    """What ``raise value`` raises: classes are instantiated."""
    if value.as_class is not None and issubclass(value.as_class, BaseException):
        return value.call(s, [], {})
    if value.is_exception(BaseException):
        return value
    return s.exception(TypeError("exceptions must derive from BaseException"))


@op("RAISE_VARARGS")
def raise_varargs(f: Frame, i: Instr) -> None:
    if i.arg == 0:
        if not f.s.current_exception or f.s.current_exception[-1] is None:
            raise Raised(f.s.exception(RuntimeError("No active exception to reraise")))
        raise Raised(f.s.current_exception[-1])
    cause = f.pop() if i.arg == 2 else None
    error = as_exception(f.s, f.pop())
    if cause is not None:
        if cause.as_class is not None and issubclass(cause.const(f.s), BaseException):
            cause = cause.call(f.s, [], {})
        elif not (cause.is_nothing(f.s) or cause.is_exception(BaseException)):
            cause.pytype(f.s)
            raise in_context(f.s, f.s.exception(TypeError("exception causes must derive from BaseException")))
        f.s.set_entry(error.attrs, "__cause__", cause)
        f.s.set_entry(error.attrs, "__suppress_context__", Constant(True))
    raise in_context(f.s, error)


def in_context(s: Session, error: Value) -> Raised:
    """An exception that is raised while another one is handled."""
    if (s.current_exception and s.current_exception[-1] is not None
        and s.current_exception[-1] is not error and error.obj is None):
        s.set_entry(error.attrs, "__context__", s.current_exception[-1])
    return Raised(error)


@op("RERAISE")
def reraise(f: Frame, i: Instr) -> NoReturn:
    raise Raised(f.pop())


@op("PUSH_EXC_INFO")
def push_exc_info(f: Frame, i: Instr) -> None:
    error = f.pop()
    previous = f.s.current_exception[-1] if f.s.current_exception else None
    f.push(Previous(previous, error))
    f.push(error)
    f.s.current_exception.append(error)


@op("POP_EXCEPT")
def pop_except(f: Frame, i: Instr) -> None:
    f.pop()
    if f.s.current_exception:
        f.s.current_exception.pop()


@op("CHECK_EXC_MATCH")
def check_exc_match(f: Frame, i: Instr) -> None:
    wanted, error = f.pop(), f.stack[-1]
    classes = [v.const(f.s) for v in wanted.several(f.s)]
    if not all(isinstance(c, type) and issubclass(c, BaseException) for c in classes):
        raise Raised(f.s.exception(TypeError("catching classes that do not inherit from BaseException is not allowed")))
    f.push(Constant(any([f.s.inherits(error.pytype(f.s), c) for c in classes])))


@op("BEFORE_WITH")
def before_with(f: Frame, i: Instr) -> None:
    enter_context(f, "__enter__", "__exit__", "the context manager protocol")


def enter_context(f: Frame, enter: str, leave: str, protocol: str) -> None:
    """Push the bound method that leaves the context of a manager, and what entering it gives."""
    manager = f.pop()
    for name, what in ((enter, ""), (leave, f" (missed {leave} method)")):
        if not manager.has_slot(f.s, name):
            raise Raised(f.s.exception(TypeError(
                f"'{type_name(manager.pytype(f.s))}' object does not support {protocol}{what}")))
    f.push(manager.special(f.s, leave))
    f.push(manager.special(f.s, enter).call(f.s, [], {}))


@op("LOAD_SPECIAL")
def load_special(f: Frame, i: Instr) -> None:
    owner = f.pop()
    if not owner.has_slot(f.s, i.arg):
        others = all([owner.has_slot(f.s, name) for name in special_methods.other_pair(i.arg)])
        raise Raised(f.s.exception(TypeError(special_methods.missing(owner.pytype(f.s), i.arg, others))))
    f.push(owner.special(f.s, i.arg))
    f.push(NULL)


@op("WITH_EXCEPT_START")
def with_except_start(f: Frame, i: Instr) -> None:
    error, (leave, *own) = f.stack[-1], f.stack[-3 - EXIT_SLOTS:-3]
    args = [v for v in own if v is not NULL] + [f.s.wrap_class(error.pytype(f.s)), error, TracebackValue(error)]
    f.push(leave.call(f.s, args, {}))


@op("CHECK_EG_MATCH", "PREP_RERAISE_STAR")
def exception_groups(f: Frame, i: Instr) -> NoReturn:
    raise Unsupported("except* is used (exception groups)", kind="opcode")
