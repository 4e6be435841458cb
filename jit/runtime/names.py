"""Names that last: what an entry holds, said so that another process can have the same objects.

A ``Name`` is a small record of plain data, which can be pickled and compared; ``bind`` gives its object. An object is
named by what is sure to lead to it again: the module that has it, the constant that it is, the way to it from an object
with a name, by the accessors of guards, or a call of a named function on named arguments. Each is tried out when the
name is made. What has no such name is ``Unnameable``, with the reason.

Nothing is named before somebody asks: see ``held.holds``. What objects of a class of our own are made of is said by a
function in ``rules``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import operator
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit.runtime.extension import native, unhooked

if TYPE_CHECKING:
    from jit.runtime.naming import Naming


class Unbound(LookupError):
    """A name leads to nothing in this process."""


@dataclasses.dataclass(frozen=True)
class Name:
    """Base class."""

    def bind(self, given: Mapping[str, object]) -> Any:
        """The object. ``given``: those of ``Given``."""
        raise NotImplementedError

    def parts(self) -> tuple[Name, ...]:
        """The names that this one is made of."""
        return ()

    def all(self) -> Iterator[Name]:
        """This name and all that it is made of."""
        yield self
        for part in self.parts():
            yield from part.all()

    def why_not(self) -> str:
        """Why it cannot be bound in another process; empty if it can."""
        return next((name.reason for name in self.all() if type(name) is Unnameable), "")


@dataclasses.dataclass(frozen=True)
class Value(Name):
    """A constant, written as it is."""

    value: Any

    def bind(self, given: Mapping[str, object]) -> Any:
        return self.value

    def __str__(self) -> str:
        text = repr(self.value)
        return text if len(text) <= 60 else f"{text[:57]}..."


@dataclasses.dataclass(frozen=True)
class Importable(Name):
    """What a module has under a dotted name; the module itself where that is empty."""

    module: str
    path: str = ""

    def bind(self, given: Mapping[str, object]) -> Any:
        found = importlib.import_module(self.module)
        return operator.attrgetter(self.path)(found) if self.path else found

    def __str__(self) -> str:
        return f"{self.module}.{self.path}" if self.path else self.module


@dataclasses.dataclass(frozen=True)
class Given(Name):
    """What the one who binds has: the compiled "function", the module that its first argument always is ("self"), the
    "settings" that it was compiled with."""

    what: str

    def bind(self, given: Mapping[str, object]) -> Any:
        return given[self.what]

    def __str__(self) -> str:
        return f"<{self.what}>"


@dataclasses.dataclass(frozen=True)
class Reached(Name):
    """What the accessors of guards (``guards.program``) reach from another object: attributes, items, cells, and so
    on. ``steps``: the (kind, payload) of each."""

    of: Name
    steps: tuple[tuple[str, Name], ...]

    def parts(self) -> tuple[Name, ...]:
        return (self.of, *(payload for _, payload in self.steps))

    def bind(self, given: Mapping[str, object]) -> Any:
        accessors = [(-1, "const", bound(self.of, given))]
        accessors += [(k, kind, bound(payload, given)) for k, (kind, payload) in enumerate(self.steps)]
        return native().GuardProgram(tuple(accessors), ()).value((), len(self.steps))

    def then(self, *steps: tuple[str, Name]) -> Reached:
        return Reached(self.of, self.steps + steps)

    def __str__(self) -> str:
        text = str(self.of)
        for kind, payload in self.steps:
            if kind in ("dict_attr", "getattr", "class_attr"):
                text += f".{getattr(payload, 'value', payload)}"
            elif kind == "item":
                text += f"[{payload}]"
            else:
                argument = "" if payload == Value(None) else f"({payload})"
                text += f".<{kind}{argument}>"
        return text


@dataclasses.dataclass(frozen=True)
class Made(Name):
    """What a call gives: of a class or a function of ours that makes or finds the object again."""

    function: Name
    arguments: tuple[Name, ...] = ()

    def parts(self) -> tuple[Name, ...]:
        return (self.function, *self.arguments)

    def bind(self, given: Mapping[str, object]) -> Any:
        return bound(self.function, given)(*[bound(argument, given) for argument in self.arguments])

    def __str__(self) -> str:
        return f"{str(self.function).rpartition('.')[2]}({', '.join(map(str, self.arguments))})"


@dataclasses.dataclass(frozen=True)
class Postponed(Name):
    """A function of ours that few calls need, which is made when it is first called: its name is bound then."""

    of: Name

    def parts(self) -> tuple[Name, ...]:
        return (self.of,)

    def bind(self, given: Mapping[str, object]) -> Any:
        return Later(self.of, {name.what: given[name.what] for name in self.of.all() if type(name) is Given})

    def __str__(self) -> str:
        return str(self.of)


class Later:
    """What ``Postponed`` gives: called as the function is."""

    def __init__(self, name: Name, given: Mapping[str, object]) -> None:
        self.name, self.given = name, given
        self.function: Callable | None = None

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            self.function = bind(self.name, self.given)
        return self.function(*args)


@dataclasses.dataclass(frozen=True)
class Unnameable(Name):
    """What only this process has."""

    reason: str

    def bind(self, given: Mapping[str, object]) -> Any:
        raise Unbound(self.reason)

    def __str__(self) -> str:
        return f"(no name: {self.reason})"


class Binding(dict):
    """What the names of one entry are bound with: what is given, by what ``Given`` says, and what names that were bound
    have led to, so that one name leads to one object."""

    def __init__(self, given: Mapping[str, object]) -> None:
        super().__init__(given)
        self.found: dict[int, Any] = {}


def bound(name: Name, given: Mapping[str, object]) -> Any:
    """The object of a name that is part of another one."""
    if type(given) is not Binding or type(name) is Value:
        return name.bind(given)
    found = given.found.get(id(name), given)
    if found is given:
        found = given.found[id(name)] = name.bind(given)
    return found


def bind(name: Name, given: Mapping[str, object] = types.MappingProxyType({})) -> Any:
    """The object of a name in this process. Raises Unbound where there is none."""
    try:
        return bound(name, given)
    except (ImportError, AttributeError, LookupError) as error:
        raise Unbound(f"{name}: {error}") from error


# ---- what is made by a call -----------------------------------------------------------------------------------------

# Full name of a class -> function(naming, object) -> Name, for classes of ours whose objects are made of others. By
# their names, since those of the extension are there only once it is loaded.
rules: dict[str, Callable[[Naming, Any], Name]] = {}


# Class -> functions of ours that give what its objects lead to, besides what accessors reach.
leads: dict[type, tuple[Callable, ...]] = {}


def rule(*classes: str | type) -> Callable[[Callable], Callable]:
    """Decorates the function that names the objects of some classes of ours."""

    def add(function: Callable) -> Callable:
        for cls in classes:
            rules[cls if isinstance(cls, str) else full_name(cls)] = function
        return function

    return add


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def calling(function: Callable, *arguments: Name) -> Made:
    """The name of what a function or class of ours gives; it has to be importable."""
    return Made(importable(function.__module__, function.__qualname__), arguments)


importable = functools.lru_cache(4096)(Importable)  # one name for what entries name often


def tuple_of(*items: object) -> tuple:
    return items


def list_of(*items: object) -> list:
    return list(items)


def dict_of(*items: object) -> dict:
    """A dict of keys and values in turns."""
    return dict(zip(items[::2], items[1::2]))


def frozenset_of(*items: object) -> frozenset:
    return frozenset(items)


def partial_of(fn: Callable, positional: tuple, named: dict) -> functools.partial:
    return functools.partial(fn, *positional, **named)


def weak(obj: object) -> Any:
    """A reference that does not keep the object alive."""
    return native().Weak(obj)


def digest(code: types.CodeType) -> str:
    """A number for what a code object does, the same in every process of one Python."""
    constants = [digest(c) if isinstance(c, types.CodeType) else f"{type(c).__name__} {c!r}" if type(c) is not frozenset
                 else sorted(map(repr, c)) for c in code.co_consts]
    parts = (code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars,
             code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, constants)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def code_at(code: types.CodeType, expected: str) -> types.CodeType:
    """The code object if it does what the one did that had the name."""
    if digest(code) != expected:
        raise Unbound(f"{code.co_qualname} is not the same function any more")
    return code


@rule("jit.runtime.native.Weak")
def _name_of_weak(naming: Naming, reference: Any) -> Name:
    obj = reference()
    return Unnameable("its object is gone") if obj is None else calling(weak, naming.name(obj))


@rule(Later)
def _name_of_later(naming: Naming, function: Later) -> Name:
    made = function.function
    return Postponed(function.name) if made is None else naming.name(made)  # it may know more by now


@rule("jit.runtime.native.Unhooked")
def _name_of_unhooked(naming: Naming, call: Any) -> Name:
    return calling(unhooked, naming.name(call.fn))


def operator_of(name: str, overload: str | None) -> Any:
    """An operator of PyTorch, as "aten::add", or one of its overloads."""
    found = operator.attrgetter(name.replace("::", "."))(torch.ops)
    return found if overload is None else getattr(found, overload or "default")


def made(result: Callable, maker: Callable, *arguments: object) -> Callable:
    """``result``, a function of ours that ``maker(*arguments)`` gives, so that it has a name."""
    # Its number, since what wraps a function has a copy of its attributes.
    result._jit_made = id(result), maker, arguments  # type: ignore[attr-defined]
    return result


def made_later(result: Callable, maker: Callable, *arguments: object) -> Callable:
    """The same of what few calls need: another process makes it once it is called."""
    result._jit_postponed = True  # type: ignore[attr-defined]
    return made(result, maker, *arguments)
