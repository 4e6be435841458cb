"""All that an entry holds, with the names of it: the roots of its guards and what they compare with, the constants of
its rewritten code, the plans among them with their kernels and the tensors that they are bound to, and what the frame
hook serves."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from typing import Any, Callable

from jit.runtime import native
from jit.runtime.guards import path
from jit.runtime.contents import Naming
from jit.runtime.names import Name, Unnameable, Value
from jit.runtime.plan import held_by_plan


when_grown: list[Callable[[Callable], None]] = []


def grown(function: Callable) -> None:
    """What an entry holds, a function of ours that is ``names.made_later``, holds more than before: whoever has written
    down what the entry holds is told."""
    for tell in when_grown:
        tell(function)


def naming_of(entry: Any) -> Naming:
    """How the objects of an entry are named: from its function on, and by the paths that its guards know."""
    given, dispatcher = {}, entry.owner
    if dispatcher is not None:
        given["function"] = getattr(dispatcher.__wrapped__, "__func__", dispatcher.__wrapped__)
        if type(dispatcher) is native().BoundDispatcher:
            given["self"] = dispatcher.__self__
        bound = getattr(dispatcher.on_miss, "bound", None)  # of the frame hook's, a weak reference
        if isinstance(bound, weakref.ReferenceType) and bound() is not None:
            given["self"] = bound()
        settings = getattr(dispatcher.on_miss, "settings", None)
        if settings is not None:
            given["settings"] = settings
    return Naming(given, [] if entry.guards is None else [entry.guards])


def holds(entry: Any) -> list[tuple[str, Name]]:
    """What an entry holds: (where, its name). Constants are left out that are written as they are."""
    naming = naming_of(entry)
    found = [*_of_guards(entry.guards, naming), *_of_code(entry.target, naming)]
    if entry.region is not None:
        found.append(("region", naming.name(entry.region)))
    return [(what, name) for what, name in found if type(name) is not Value]


def _of_guards(program: Any, naming: Naming) -> Iterator[tuple[str, Name]]:
    if program is None:
        return
    for k, (parent, kind, *rest) in enumerate(program.accessors):
        if kind not in ("local", "weak"):
            yield f"guards: {path(program.accessors, k)}", naming.name(rest[0] if rest else None)
        elif kind == "weak":
            obj = rest[0]()
            yield (f"guards: {path(program.accessors, k)}",
                   Unnameable("its object is gone") if obj is None else naming.name(obj))
    for at, kind, payload, *rest in program.checks:
        where = f"guards: {path(program.accessors, at)}: {rest[0] if rest else kind}"
        yield where, rest[0].name(naming, payload) if rest else naming.name(payload)


def _of_code(target: Any, naming: Naming) -> Iterator[tuple[str, Name]]:
    if not isinstance(target, types.FunctionType):
        if target is not None:
            yield "target", naming.name(target)
        return
    yield "globals of the code", naming.name(target.__globals__)
    for k, constant in enumerate(target.__code__.co_consts):
        yield f"constant {k} of the code", naming.name(constant)
        if type(constant) is native().Plan:
            for what, name in held_by_plan(constant, naming):
                yield f"constant {k} of the code: {what}", name
