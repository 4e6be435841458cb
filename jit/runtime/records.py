"""Entries as records: all that an entry is, said by names, so that another process can make it again.

A record is plain data, which can be pickled. ``record_of`` writes one of an entry; ``Record.bind`` makes the guard
program and the rewritten function again from what their names lead to there.

What is known by identity needs care. A constant, such as a float that a class has, is another object there, so it has
to be equal and not the same. What has no name but the way to it is the object that lies there now, and everything that
was relied on about it is a fact of its own. And objects that were different here have to be different there: that they
are is what being known by identity has said of them.
"""

from __future__ import annotations

import array
import dataclasses
import marshal
import types
from collections.abc import Iterable, Iterator
from typing import Any

from jit import turns
from jit.runtime import guards
from jit.runtime.facts import Fact
from jit.runtime.holding import behind
from jit.runtime.naming import Naming
from jit.runtime.names import Binding, Importable, Name, Unbound, Unnameable, Value, bind, calling

_ONE_OF_A_KIND = (type(None), bool, type(Ellipsis), type(NotImplemented))


class Unnamed(Exception):
    """An entry holds what only this process has; the text says what and why."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A guard program.

    Many objects are read in the same way, and the same is asked of many: what is said of the ways and of the facts is
    said once.

    Attributes:
        steps: (kind, payload, text, object) of the ways to read something. ``text`` goes on behind that of the parent;
            where it does not, it is the only item of a tuple.
        accessors: the parent and the step of each, 32-bit numbers in turns.
        facts: (kind, payload, class of the fact, its words, object). ``object`` is a number for the one that is known
            by identity, which others have who speak of the same one; None where none is.
        checks: the accessor and the fact of each, 32-bit numbers in turns.
    """

    steps: tuple[tuple[str, Name, str | tuple[str], int | None], ...]
    accessors: bytes
    facts: tuple[tuple[str, Name, type[Fact], Any, int | None], ...]
    checks: bytes

    def names(self) -> Iterator[Name]:
        yield from (payload for _, payload, *_ in self.steps)
        yield from (payload for _, payload, *_ in self.facts)

    def bind(self, given: Binding) -> Any:
        """The native guard program. Raises Unbound."""
        known: dict[int, int] = {}

        def tell_apart(address: int, number: int, name: Name) -> None:
            if known.setdefault(address, number) != number:
                raise Unbound(f"{name} is the same object as another one")

        steps: list[tuple] = []
        facts: list[tuple] = []
        accessors: list[tuple] = []
        for kind, payload, text, number in self.steps:
            found = bind(payload, given)
            steps.append((kind, found, text))
            if number is not None:
                tell_apart(id(found), number, payload)
        for kind, payload, cls, words, number in self.facts:
            found = bind(payload, given)
            fact = cls.retold(found, words)
            facts.append((kind, fact.value if kind == "is" else found, fact))
            if number is not None:
                tell_apart(found[0] if kind == "at" else id(found), number, payload)
        for parent, step in pairs(self.accessors):
            kind, found, text = steps[step]
            accessors.append((parent, kind, found, accessors[parent][3] + text if isinstance(text, str) else text[0]))
        return guards.program(accessors, [(at, *facts[fact]) for at, fact in pairs(self.checks)])


def pairs(numbers: bytes) -> Iterator[tuple[int, int]]:
    """What ``Program.accessors`` and ``Program.checks`` hold."""
    found = array.array("i", numbers)
    return zip(found[::2], found[1::2])


def part(program: Program, accessors: list[int], checks: list[int]) -> Program:
    """A program of some of the accessors and checks: pairs of numbers, one after the other."""
    steps = {step: k for k, step in enumerate(dict.fromkeys(accessors[1::2]))}
    facts = {fact: k for k, fact in enumerate(dict.fromkeys(checks[1::2]))}
    return Program(
        tuple((kind, name, text, None) for kind, name, text, _ in map(program.steps.__getitem__, steps)),
        array.array("i", [n for at, k in zip(accessors[::2], accessors[1::2]) for n in (at, steps[k])]).tobytes(),
        tuple((*row, None) for *row, _ in map(program.facts.__getitem__, facts)),
        array.array("i", [n for at, k in zip(checks[::2], checks[1::2]) for n in (at, facts[k])]).tobytes())


class Rows:
    """Distinct rows in order, and the numbers of pairs (a number, a row)."""

    def __init__(self) -> None:
        self.places: dict[tuple, int] = {}
        self.rows: list[tuple] = []
        self.numbers = array.array("i")

    def add(self, number: int, key: tuple, row: tuple) -> int:
        """``key``: what the row is equal to others by; it keeps alive whatever it has the number of."""
        place = self.places.setdefault(key, len(self.rows))
        if place == len(self.rows):
            self.rows.append(row)
        self.numbers.extend((number, place))
        return place


@dataclasses.dataclass(frozen=True)
class Code:
    """A rewritten function.

    Attributes:
        code: its code object without constants, written by ``marshal``.
        blocks: (offset, name) of its blocks.
    """

    code: bytes
    constants: tuple[Name, ...]
    globals: Name
    name: str
    blocks: tuple[tuple[int, str], ...]

    def bind(self, given: Binding) -> types.FunctionType:
        """The function. Raises Unbound."""
        constants = tuple([bind(name, given) for name in self.constants])
        code = marshal.loads(self.code).replace(co_consts=constants)
        made = types.FunctionType(code, bind(self.globals, given), self.name)
        made._jit_blocks = list(self.blocks)  # type: ignore[attr-defined]
        return made


@dataclasses.dataclass(frozen=True)
class Record:
    """An entry.

    Attributes:
        guards: what it relies on.
        circumstances: what it was made under.
        code: what is called; None: the original runs.
        region: what the frame hook serves, or None.
    """

    guards: Program
    circumstances: Program
    code: Code | None
    region: Name | None

    def names(self) -> Iterator[Name]:
        """All that it holds."""
        yield from self.guards.names()
        yield from self.circumstances.names()
        if self.code is not None:
            yield self.code.globals
            yield from self.code.constants
        if self.region is not None:
            yield self.region

    def all_names(self) -> Iterator[Name]:
        """All that it holds, and what these names are made of, each once."""
        seen: set[int] = set()
        left = list(self.names())
        while left:
            name = left.pop()
            if id(name) not in seen:
                turns.point()
                seen.add(id(name))
                left += name.parts()
                yield name


def modules(names: Iterable[Name]) -> set[str]:
    """The modules that names start from: what these say is relied on."""
    return {name.module for name in names if type(name) is Importable}


def record_of(entry: Any, naming: Naming) -> Record:
    """The record of an entry. Raises Unnamed."""
    target = entry.target
    if target is not None and not isinstance(target, types.FunctionType):
        raise Unnamed(f"what it calls is no function but {target!r}")
    return Record(_program(entry.guards, naming), _program(entry.circumstances, naming),
                  None if target is None else _code(target, naming),
                  None if entry.region is None else naming.name(entry.region))


def _program(program: Any, naming: Naming) -> Program:
    steps, facts = Rows(), Rows()
    texts: list[str] = []
    numbers: dict[int, int] = {}

    def number(obj: Any, name: Name) -> int | None:
        return None if type(name) is Value else numbers.setdefault(id(obj), len(numbers))

    for k, (parent, kind, *rest) in enumerate(program.accessors):
        turns.point()
        payload = rest[0] if rest else None
        if kind == "weak":
            payload = behind(payload) if not callable(payload) else payload()
        gone = kind == "weak" and payload is None
        name = Unnameable("its object is gone") if gone else naming.name(payload)
        root = parent < 0 and kind in ("const", "weak")
        texts.append(guards.path(program.accessors, k))
        above = texts[parent] if parent >= 0 else None
        text = ((texts[k],) if above is None or not texts[k].startswith(above) else texts[k][len(above):])
        known = number(payload, name) if root else None
        steps.add(parent, (kind, id(name), text, known), (kind, name, text, known))
    asked: dict[tuple, int] = {}  # what the name of what it takes says all of: the class of a fact, and that
    for at, kind, payload, fact in program.checks:
        turns.point()
        key = None if kind in ("is", "at") or not _by_payload(type(fact)) else (type(fact), kind, id(payload))
        place = asked.get(key) if key is not None else None
        if place is not None:
            facts.numbers.extend((at, place))
            continue
        name, known = fact.name(naming, payload), None
        if kind == "is":
            kind, name = _identity(naming, behind(payload))
            known = number(behind(payload), name)
        elif kind == "at":
            known = numbers.setdefault(payload[0], len(numbers))
        cls, words = type(fact), fact.words()
        told = words if type(words) is str else id(words)
        place = facts.add(at, (kind, id(name), cls, told, known), (kind, name, cls, words, known))
        if key is not None:
            asked[key] = place
    return Program(tuple(steps.rows), steps.numbers.tobytes(), tuple(facts.rows), facts.numbers.tobytes())


def _by_payload(cls: type[Fact]) -> bool:
    """Whether a fact of a class says no more than what its check takes."""
    return cls.name is Fact.name and cls.words is Fact.words


def _identity(naming: Naming, obj: Any) -> tuple[str, Name]:
    """The kind of check and the name for an object that something has to be."""
    name = naming.name(obj)
    if type(obj) in (tuple, frozenset):
        way = naming.way(obj)
        if way is None:
            return "is", Unnameable(f"a {type(obj).__name__} that is known by identity")
        return "is", calling(same_items, way, name)
    if type(name) is Value and not isinstance(obj, _ONE_OF_A_KIND):
        return "eq", name
    return "is", name


def same_items(found: Any, expected: Any) -> Any:
    """``found``, which has no name but the way to it, if it holds what another process has seen there."""
    if type(found) is not type(expected) or len(found) != len(expected):
        raise Unbound("a tuple has other items")
    pairs = zip(found, expected) if isinstance(found, tuple) else ((found, expected),)
    if not all(a is b or type(a) is type(b) and a == b for a, b in pairs):
        raise Unbound("a tuple has other items")
    return found


def _code(target: Any, naming: Naming) -> Code:
    code = target.__code__
    if code.co_freevars:
        raise Unnamed("the rewritten function has cells")
    constants = tuple([naming.name(constant) for constant in code.co_consts])
    return Code(marshal.dumps(code.replace(co_consts=())), constants, naming.name(target.__globals__), target.__name__,
                tuple(target._jit_blocks))
