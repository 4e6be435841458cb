"""``contextvars``: what a ContextVar holds is read when it is asked for and guarded by what was used of it; ``set`` and
``reset`` are followed while capturing and done for real after the graph, or not at all where the program has left every
variable as it was."""

from __future__ import annotations

from contextvars import Context, ContextVar, Token
from typing import TYPE_CHECKING

from ...errors import Unsupported
from ...runtime import facts
from ..source import Const, ContextValue, GetAttr
from ..tables import on_method
from ..tracked_state import TrackedState
from ..values.base import Raised
from ..values.constant import Constant
from ..values.objects import ObjectValue

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session
    from ..values.base import Value


class TokenValue(ObjectValue):
    """The token of a ``set`` of the program. ``before``: what the variable held then, None for nothing. ``used``: the
    variable was reset by it."""

    def __init__(self, variable: Value, before: Value | None) -> None:
        super().__init__(Token)
        self.variable, self.before, self.used = variable, before, False

    def plain_getattr(self, s: Session, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value":
            return self.before or s.wrap(Token.MISSING, Const(Token.MISSING))
        return super().plain_getattr(s, name)

    def emit(self, e: Emitter) -> None:
        """The token that ``set`` has given when it was done for real; of a used one only that it is used can be
        seen."""
        if not self.used:
            raise Unsupported("rebuilding the token of a ContextVar before it is set", kind="rebuild")
        e.call_const(_spent, [self.variable])


def _spent(variable: ObjectValue) -> Token:
    token = variable.set(None)
    variable.reset(token)
    return token


class Setting:
    """``ContextVar.set`` in the log of effects: what it gives is the token that the program has."""

    def __init__(self, token: Value) -> None:
        self.gives, self.fn = token, ContextVar.set


def _held(s: Session, variable: ObjectValue) -> Value | None:
    """What a variable (a value) holds now, or None."""
    var = variable.pin(s)
    if (CONTEXT, var) not in s.states.now:
        now, source = var.get(ContextValue.UNSET), ContextValue(variable.source or Const(var, var.name))
        if now is ContextValue.UNSET:
            s.guards.add(source, facts.identity(now))
        return None if now is ContextValue.UNSET else s.wrap(now, source)
    return s.states.now[CONTEXT, var]


@on_method((ContextVar, "get"))
def get(s: Session, variable: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs or len(args) > 1:
        raise Unsupported("these arguments of ContextVar.get", kind="argument-error")
    value = _held(s, variable)
    if value is not None:
        return value
    if args:
        return args[0]
    try:
        default = Context().run(variable.obj.get)
    except LookupError:
        raise Raised(s.exception(LookupError(variable.obj), [variable])) from None
    return s.wrap(default, Const(default, f"the default of {variable.obj.name}"))


@on_method((ContextVar, "set"))
def set_(s: Session, variable: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs or len(args) != 1:
        raise Unsupported("these arguments of ContextVar.set", kind="argument-error")
    token = TokenValue(variable, _held(s, variable))
    s.states.set(CONTEXT, args[0], Setting(token), [variable, args[0]], (variable.obj,))
    return token


@on_method((ContextVar, "reset"))
def reset(s: Session, variable: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs or len(args) != 1 or not args[0].is_object or args[0].cls is not Token:
        raise Unsupported("these arguments of ContextVar.reset", kind="argument-error")
    (token,), var = args, variable.pin(s)
    if token.is_new:
        if token.used or token.variable.obj is not var:
            raise Unsupported("a reset of a ContextVar that raises", kind="argument-error")
        before = token.before
        s.set_field(token, "used", True)
    else:
        before = _of_real(s, var, token)
    s.states.set(CONTEXT, before, ContextVar.reset, [variable, token], (var,))
    return Constant(None)


def _of_real(s: Session, var: object, token: ObjectValue) -> Value | None:
    """What a variable holds after a reset by a token that was there before, None for nothing."""
    real = token.obj
    if real is None or token.source is None or real.var is not var or " used " in repr(real):
        raise Unsupported("a reset of a ContextVar by this token", kind="argument-error")
    s.guards.add(GetAttr(token.source, "var"), facts.identity(var))
    old = GetAttr(token.source, "old_value")
    if real.old_value is Token.MISSING:
        s.guards.add(old, facts.identity(Token.MISSING))
        return None
    return s.wrap(real.old_value, old)


def _reduced(s: Session, effects) -> list:
    """The effects without those on variables that hold in the end what they held before, and whose tokens are all
    used."""
    first, kept = {}, set()
    for fn, args, state in effects:
        if state is not CONTEXT:
            continue
        variable, other = args
        if type(fn) is Setting:
            first.setdefault(variable.obj, fn.gives)
            if not fn.gives.used:
                kept.add(variable.obj)
        elif not other.is_new:
            kept.add(variable.obj)
    kept |= {var for var, token in first.items() if s.states.now[CONTEXT, var] is not token.before}
    return [e for e in effects if e[2] is not CONTEXT or e[1][0].obj in kept]


CONTEXT = TrackedState("a ContextVar", ContextVar.get, reduce=_reduced)
