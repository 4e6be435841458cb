"""What an entry relies on: typed facts about objects, one class for each check of the native guard program.

A fact names its check (``kind``, an entry of the table in ``native/guard_checks.h``), gives what that check takes
(``payload``), and says in words what it is (``str``) and how an object that it does not hold of differs (``mismatch``).
A new kind is a class here and an entry there; ``tests/test_guard_mutations.py`` asks for a program that changes it
between calls.

Facts that speak of further objects have their sources; what ``payload`` is given makes accessors of them.
"""

from __future__ import annotations

import functools
import operator
import re
import types
from typing import Any, Callable

import torch

from jit import telling
from jit.runtime import guards
from jit.runtime.guards import in_users_terms, short
from jit.runtime.holding import behind, lightly, loosely
from jit.runtime.naming import Naming
from jit.runtime.names import Name, Unnameable, Value, calling

NOWHERE = type("Nowhere", (), {"__slots__": ()})()  # no object of a program is this one: what is not it is there


def _number(value: object) -> object:
    """What tells a value from others: it itself where it is a text or a number, else where it lies."""
    return value if isinstance(value, (str, int)) else id(value)


@functools.cache
def _parts_of(kind: type) -> tuple[str, ...]:
    """The parts of a kind of fact."""
    return tuple(name for cls in kind.__mro__ for name in getattr(cls, "__slots__", ()))


class Fact:
    """Base class. ``kind``: the name of the native check. ``of_object``: whether it is about the object at a source,
    which is then known to be there."""

    __slots__ = ("value",)
    value: Any
    kind = ""
    of_object = True

    def __init__(self, value: Any = None) -> None:
        self.value = value

    @property
    def key(self) -> object:
        """What facts of this kind have in common that say the same."""
        return _number(self.value)

    @property
    def identity(self) -> tuple:
        """Of facts for which it is equal one may stand for the other: each part of them is the same object."""
        kind = type(self)
        return (kind, *[id(getattr(self, name, None)) for name in _parts_of(kind)])  # type: ignore[arg-type]

    def payload(self, locate: Callable) -> object:
        """What the native check takes. ``locate``: the index of a source's accessor."""
        return self.value

    def speaks_of(self) -> tuple:
        """The sources of further objects that it is about."""
        return ()

    def moved(self, place: Callable) -> Fact:
        """The same fact with other ones: ``place`` says what stands for each source."""
        return self

    def name(self, naming: Naming, payload: Any) -> Name:
        """The name of what the native check takes."""
        return naming.name(payload)

    def words(self) -> object:
        """What else the fact has to be told of, beside what its check takes, to be told again (``retold``): constants.
        Of sources their texts."""
        return None

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        """The fact of a check that takes ``payload``, as far as messages need it: of an entry that was read from a
        file, which has no sources."""
        return cls(payload)

    def __str__(self) -> str:
        return f"{self.kind} {self.value!s}"

    def expected(self) -> str:
        """What the object should be."""
        return short(self.value)

    def found(self, found: object) -> str:
        """What another object is instead."""
        return short(found)

    def failing(self, payload: Any, value: Callable[[int], Any]) -> str:
        """Why a condition that is about no single object does not hold, in words. ``payload``: what the native check
        was given; ``value``: what lies at an accessor now."""
        return self.mismatch(None)

    def mismatch(self, found: object) -> str:
        """How an object differs, in words."""
        expected, shown = self.expected(), self.found(found)
        if expected == shown:
            expected, shown = (f"{expected} ({type(self.value).__name__} at {id(self.value):#x})",
                               f"{shown} ({type(found).__name__} at {id(found):#x})")
        return f"expected {expected}, found {shown}"


class TypeIs(Fact):
    """The object is of exactly this type."""

    __slots__ = ()
    kind = "type_is"

    def __str__(self) -> str:
        return f"type is {self.value.__qualname__}"

    def expected(self) -> str:
        return f"type {self.value.__qualname__}"

    def found(self, found: object) -> str:
        return f"type {type(found).__qualname__}"


def named(value: object) -> str:
    """The name of an object that is found in a text by one; functions of the program's also go by the line where they
    begin. "" for others."""
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    if type(value) is types.FunctionType:
        file = value.__code__.co_filename
        place = "" if telling.is_library(file) else f" ({file}:{value.__code__.co_firstlineno})"
        return value.__qualname__ + place
    if isinstance(value, (type, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType,
                          types.WrapperDescriptorType)):
        return value.__qualname__
    return ""


class Is(Fact):
    """It is this object, which the fact keeps alive only where that harms nothing (``holding``)."""

    __slots__ = ("number",)
    kind = "is"

    def __init__(self, value: object) -> None:
        self.number = id(value)
        self.value = lightly(value)

    @property
    def key(self) -> int:
        return self.number

    @property
    def object(self) -> Any:
        return behind(self.value)

    def __str__(self) -> str:
        value = self.object
        if value is None or isinstance(value, (bool, str)):
            return f"is {value!r}"
        return f"is {named(value) or f'{type(value).__name__} at {id(value):#x}'}"

    def mismatch(self, found: Any) -> str:
        value = self.object
        expected, shown = named(value) or short(value), named(found) or short(found)
        if expected == shown:
            return (f"expected {expected}, found another one: {type(value).__name__} at {id(value):#x} before, "
                    f"{type(found).__name__} at {id(found):#x} now")
        return f"expected {expected}, found {shown}"


def place_of(obj: Any) -> tuple[int, type]:
    """Where an object lies, and its type."""
    return id(obj), type(obj)


class At(Fact):
    """It lies where this object does and is of its type: for what has its facts checked again when another one has come
    to lie there."""

    __slots__ = ()
    kind = "at"

    def __init__(self, value: Any) -> None:
        self.value = place_of(value)

    @property
    def key(self) -> tuple[int, type]:
        return self.value

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        fact = cls(None)
        fact.value = payload
        return fact

    def name(self, naming: Naming, payload: Any) -> Name:
        found = naming.located(self.value[0])
        return Unnameable("it lies where no path leads to") if found is None else calling(place_of, found)

    def __str__(self) -> str:
        return f"is the {self.value[1].__name__} at {self.value[0]:#x}"

    def expected(self) -> str:
        return f"the {self.value[1].__name__} at {self.value[0]:#x}"

    def found(self, found: object) -> str:
        return f"{'another' if type(found) is self.value[1] else 'the'} {type(found).__name__} at {id(found):#x}"


class IsNot(Fact):
    """It is another object than this one."""

    __slots__ = ()
    kind = "is_not"

    def expected(self) -> str:
        return f"another object than {short(self.value)}"

    def found(self, found: object) -> str:
        return "it"


class Present(IsNot):
    """There is an object."""

    __slots__ = ()

    def __init__(self) -> None:
        self.value = NOWHERE

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        return cls()

    def __str__(self) -> str:
        return "is there"


class Equals(Fact):
    """It is of the constant's exact type and equal to it; -0.0 differs from 0.0 and nan equals nan, inside tuples and
    slices too."""

    __slots__ = ()
    kind = "eq"

    @property
    def key(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)

    def __str__(self) -> str:
        return f"== {self.value!r}"


class Length(Fact):
    """``len()`` of it."""

    __slots__ = ()
    kind = "len"

    def __str__(self) -> str:
        return f"length is {self.value}"

    def expected(self) -> str:
        return f"length {self.value}"

    def found(self, found: object) -> str:
        return f"length {len(found) if hasattr(found, '__len__') else 'none'}"


class Truth(Fact):
    """``bool()`` of it."""

    __slots__ = ()
    kind = "truth"

    def __str__(self) -> str:
        return f"is {'true' if self.value else 'false'}"

    def expected(self) -> str:
        return f"a {'true' if self.value else 'false'} value"


class _Held(Fact):
    """Of objects that are held as ``loosely`` says."""

    __slots__ = ("number",)

    def __init__(self, value: tuple[int | str | type, ...]) -> None:
        self.number = type(value), repr(value)
        self.value = loosely(value)

    @property
    def key(self) -> tuple[type, str]:
        return self.number


class DictKeys(_Held):
    """The keys of a dict, in order."""

    __slots__ = ()
    kind = "dict_keys"

    def __str__(self) -> str:
        return f"keys are {short(tuple(self.value))}"

    def expected(self) -> str:
        return f"keys {short(tuple(self.value))}"

    def found(self, found: object) -> str:
        return f"keys {short(tuple(found)) if isinstance(found, dict) else type(found).__name__}"


class Elements(_Held):
    """The elements of a set or frozenset, in order of iteration."""

    __slots__ = ()
    kind = "elements"

    def __str__(self) -> str:
        return f"elements are {short(tuple(self.value))}"


class DictLacks(Fact):
    """A dict has no such key."""

    __slots__ = ("number",)
    kind = "dict_lacks"

    def __init__(self, value: object) -> None:
        self.number = _number(value)
        self.value = lightly(value)

    @property
    def key(self) -> object:
        return self.number

    def __str__(self) -> str:
        return f"has no key {self.value!r}"

    def mismatch(self, found: object) -> str:
        return f"expected no key {self.value!r}, found it"


class NoDictAttr(Fact):
    """Its own ``__dict__`` has no such name."""

    __slots__ = ()
    kind = "no_dict_attr"

    def __str__(self) -> str:
        return f"has no attribute {self.value!r} of its own"

    def mismatch(self, found: object) -> str:
        return f"expected no attribute {self.value!r} of its own, found one"


class TypeLacks(Fact):
    """No class in the MRO of its type has such a name."""

    __slots__ = ()
    kind = "type_lacks"

    def __str__(self) -> str:
        return f"has no attribute {self.value!r} on its class"

    def mismatch(self, found: object) -> str:
        return f"expected no attribute {self.value!r} on its class, found one"


class ClassLacks(TypeLacks):
    """No class in the MRO of the object, a class, has such a name."""

    __slots__ = ()
    kind = "class_lacks"

    def __str__(self) -> str:
        return f"has no attribute {self.value!r}"

    def mismatch(self, found: object) -> str:
        return f"expected no attribute {self.value!r}, found one"


class _OfClass(Fact):
    __slots__ = ("answer",)

    def __init__(self, cls: type, answer: bool) -> None:
        self.value, self.answer = cls, answer

    @property
    def key(self) -> int:
        return id(self.value)

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        return cls(*payload)

    def payload(self, locate: Callable) -> tuple[type, bool]:
        return self.value, self.answer

    def __str__(self) -> str:
        return f"is {'' if self.answer else 'no '}{self.kind} of {self.value!r}"

    def mismatch(self, found: object) -> str:
        return f"expected {self}, found the other answer"


class Subclass(_OfClass):
    """``issubclass()`` of the object, a class, by its MRO and by what abstract classes have registered."""

    __slots__ = ()
    kind = "subclass"


class Instance(_OfClass):
    """``isinstance()``, asked on every call."""

    __slots__ = ()
    kind = "instance"


class Tensor(Fact):
    """A tensor's metadata: ``value`` is a ``TensorSpec``."""

    __slots__ = ()
    kind = "tensor"

    def __str__(self) -> str:
        return str(self.value)

    def mismatch(self, found: object) -> str:
        return self.value.mismatch(found)


class _OfTwo(Fact):
    """Of the object and the one at another source, ``value``."""

    __slots__ = ()
    relation = other = ""

    def __str__(self) -> str:
        return f"is {self.relation} {self.value}"

    @property
    def key(self) -> object:
        return self.value

    def speaks_of(self) -> tuple:
        return (self.value,)

    def moved(self, place: Callable) -> Fact:
        return type(self)(place(self.value))

    def payload(self, locate: Callable) -> int:
        return locate(self.value)

    def words(self) -> str:
        return str(self.value)

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        return cls(words)

    def mismatch(self, found: object) -> str:
        return f"expected {self.relation} {self.value}, found {self.other}"


class Same(_OfTwo):
    __slots__ = ()
    kind, relation, other = "same", "the same object as", "another object"


class Distinct(_OfTwo):
    __slots__ = ()
    kind, relation, other = "distinct", "another object than", "the same object"


class NoAlias(_OfTwo):
    """The memory that two tensors reach does not overlap."""

    __slots__ = ()
    kind, relation, other = "no_alias", "in memory apart from", "shared memory"


class Apart(Fact):
    """Of tensors at the sources ``changed`` and ``others``, none that is changed reaches into the memory of another
    one."""

    __slots__ = ("changed", "others")
    kind = "apart"

    def __init__(self, changed: tuple, others: tuple) -> None:
        self.changed, self.others = changed, others

    @property
    def key(self) -> object:
        return self.changed, self.others

    def speaks_of(self) -> tuple:
        return (*self.changed, *self.others)

    def moved(self, place: Callable) -> Fact:
        return Apart(tuple(map(place, self.changed)), tuple(map(place, self.others)))

    def payload(self, locate: Callable) -> tuple[tuple[int, ...], ...]:
        return tuple(map(locate, self.changed)), tuple(map(locate, self.others))

    def words(self) -> tuple[tuple[str, ...], ...]:
        return tuple(map(str, self.changed)), tuple(map(str, self.others))

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        return cls(*words)

    def __str__(self) -> str:
        return f"memory apart from {', '.join(map(str, (*self.changed, *self.others)))}"

    def mismatch(self, found: object) -> str:
        return "expected memory apart from each other, found shared memory"


class Shares(Fact):
    """The first elements of it and of the tensor at another source, two views of one storage, are so many bytes
    apart."""

    __slots__ = ("distance",)
    kind = "shares"

    def __init__(self, other: Any, distance: int) -> None:
        self.value, self.distance = other, distance

    @property
    def key(self) -> object:
        return self.value, self.distance

    def speaks_of(self) -> tuple:
        return (self.value,)

    def moved(self, place: Callable) -> Fact:
        return Shares(place(self.value), self.distance)

    def payload(self, locate: Callable) -> tuple[int, ...]:
        return locate(self.value), self.distance

    def words(self) -> tuple[str, int]:
        return str(self.value), self.distance

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        return cls(*words)

    def __str__(self) -> str:
        return f"memory of which {self.value} shows a part {self.distance} bytes further on"

    def mismatch(self, found: object) -> str:
        return f"expected {self}, found other memory"


class Writable(Fact):
    """Autograd lets a tensor be changed in place where operations are recorded: it is no leaf that requires grad, no
    view of one, and no view that was made under no_grad or by a call with several results."""

    __slots__ = ()
    kind = "writable"

    def __str__(self) -> str:
        return "may be changed in place by operations that autograd records"

    def mismatch(self, found: object) -> str:
        return "expected a tensor that may be changed in place, found a leaf, or a view that may not"


class Room(Fact):
    """Its storage has so many bytes before the tensor's first element, and from there on."""

    __slots__ = ()
    kind = "room"

    @property
    def key(self) -> tuple[int, ...]:
        return self.value

    def __str__(self) -> str:
        return f"a storage with {self.value[0]} bytes before the tensor and {self.value[1]} from its start"

    def mismatch(self, found: object) -> str:
        return f"expected {self}, found a smaller one"


class NoMemory(Fact):
    """Its storage has no bytes, so that no other tensor shows what it gets when it is resized."""

    __slots__ = ()
    kind = "no_memory"

    def __str__(self) -> str:
        return "a tensor without memory"

    def mismatch(self, found: object) -> str:
        return "expected a tensor without memory, found one that has some"


class GlobalState(Fact):
    """Torch's state in this thread is what it was when the program was made. ``read``: which parts of it that few
    programs read were read, see ``guards.narrowed_state``."""

    __slots__ = ("read", "modes")
    kind = "global_state"
    of_object = False

    def __init__(self) -> None:
        self.value = None
        self.read: set[str] = set()
        self.modes: tuple[tuple[str, str], ...] = ()

    def payload(self, locate: Callable) -> tuple[int, ...]:
        self.value = guards.narrowed_state(guards.global_state_snapshot(), self.read)
        self.modes = guards.function_modes()
        return self.value

    def name(self, naming: Naming, payload: Any) -> Name:
        return calling(guards.state_under, Value(payload), Value(self.modes)) if self.modes else Value(payload)

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        fact = cls()
        fact.value = payload
        return fact

    def __str__(self) -> str:
        return "torch's state"

    def mismatch(self, found: object) -> str:
        return guards.state_difference(self.value, guards.global_state_snapshot())


_ON_ROWS: dict[str, Callable] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "max": max, "min": min,
                                 "floordiv": operator.floordiv, "mod": operator.mod}
_RELATIONS: dict[str, Callable] = {"==0": operator.eq, "!=0": operator.ne, ">=0": operator.ge}


class Dims(Fact):
    """Conditions on sizes, strides and integers. ``sizes``: a ``SizeFacts`` of the capture, which ends with it; its
    words stay."""

    __slots__ = ("sizes", "symbols", "conditions", "places")
    kind = "dims"
    of_object = False

    def __init__(self, sizes: Any) -> None:
        self.sizes, self.symbols, said, self.places = sizes, sizes.symbols(), sizes.conditions(), sizes.places()
        self.conditions = [*said, *(f"{name} >= {least}" for name, least in sizes.least_values().items())]
        self.value = "; ".join([*(f"{name} = {what}" for name, what in self.symbols.items()), *said])

    def payload(self, locate: Callable) -> tuple[tuple[int, ...], tuple[tuple[str | int, ...], ...], tuple[tuple, ...]]:
        sizes, self.sizes = self.sizes, None
        return sizes.payload(locate)

    def words(self) -> tuple:
        return self.symbols, self.conditions, self.value, self.places

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        fact = cls.__new__(cls)
        fact.sizes = None
        fact.symbols, fact.conditions, fact.value, fact.places = words
        return fact

    def __str__(self) -> str:
        return self.value

    def mismatch(self, found: object) -> str:
        return f"{self.value} does not hold"

    def failing(self, payload: Any, value: Callable[[int], Any]) -> str:
        locations, rows, conditions = payload
        known: list[int | None] = []  # None: a quotient by 0, of which an earlier condition says that it is not
        for what, *operands in rows:
            if what in ("size", "stride"):
                known.append(getattr(torch.Tensor, what)(value(locations[operands[0]]), *operands[1:]))
            elif what == "int":
                known.append(int(value(locations[operands[0]])))
            elif what == "const":
                known.append(operands[0])
            else:
                given = [known[at] for at in operands]
                try:
                    known.append(None if None in given else _ON_ROWS[what](*given))
                except ZeroDivisionError:
                    known.append(None)
        for at, (row, relation) in enumerate(conditions):
            if known[row] is None or not _RELATIONS[relation](known[row], 0):
                text = self.conditions[at]
                of = [f"{name} = {in_users_terms(str(what))}" for name, what in self.named_in(text)]
                place = self.places[at] if at < len(self.places) else ""
                return f"{text} does not hold ({', '.join(of)})" + (f", which {place} needs" if place else "")
        return super().failing(payload, value)

    def named_in(self, text: str) -> list[tuple[str, object]]:
        """The symbols in a condition, and what they are."""
        return [(name, what) for name, what in self.symbols.items() if re.search(rf"\b{name}\b", text)]


class Numbers(Fact):
    """A condition on numbers: ``program`` (``jit.runtime.numbers``) gives something other than zero for what lies at
    ``sources``: floats, integers and tensors of one element on the CPU. ``value``: its text."""

    __slots__ = ("program", "sources")
    kind = "numbers"
    of_object = False

    def __init__(self, text: str, program: Any, sources: tuple) -> None:
        self.value, self.program, self.sources = text, program, sources

    def speaks_of(self) -> tuple:
        return self.sources

    @property
    def key(self) -> object:
        return self.value, self.sources

    def payload(self, locate: Callable) -> tuple[Any, tuple[int, ...]]:
        sources, self.sources = self.sources, ()
        return self.program, tuple(map(locate, sources))

    def words(self) -> str:
        return self.value

    @classmethod
    def retold(cls, payload: Any, words: Any) -> Fact:
        return cls(words, payload[0], ())

    def __str__(self) -> str:
        return self.value

    def mismatch(self, found: object) -> str:
        return f"{self.value} does not hold"


def identity(value: object) -> Fact:
    """That it is this object; a tensor is known by its place, since all else that is relied on is guarded by facts of
    its own."""
    return At(value) if isinstance(value, torch.Tensor) else Is(value)


KINDS = {fact.kind: fact for fact in (TypeIs, Is, At, IsNot, Equals, Length, Truth, DictKeys, Elements,
                                      DictLacks, NoDictAttr, TypeLacks, ClassLacks, Subclass, Instance, Tensor,
                                      Same, Distinct, NoAlias, Apart, Shares, Room, Writable, GlobalState,
                                      Dims, Numbers)}  # fmt: skip
