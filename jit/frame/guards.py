"""The guards of one capture: facts about sources, recorded when they are used, translated to the native guard program."""

from __future__ import annotations

import types

import torch

from ..runtime import native
from .source import Source, holding, loosely

NOWHERE = type("Nowhere", (), {"__slots__": ()})()  # no object of a program is this one: what is not it is there


class Sources(tuple):
    """Sources, and tuples of them, in the payload of a guard; plain numbers stay as they are."""


class Guards:
    """All facts that one capture relies on: an append-only list of (source, kind, payload) without repeats, with checkpoints, and ``sizes``,
    those about symbols (a ``SizeFacts``).

    Kinds are those of ``jit.runtime.guards``. Payloads that cannot be hashed are compared by identity.
    """

    def __init__(self, sizes):
        self.sizes = sizes
        self._rows: list[tuple] = []
        self._seen: set = set()
        self._facts: set = set()
        self._present: dict = {}
        self.settings: set[str] = set()  # what of torch's state is read that few programs read: see ``jit.runtime.guards.narrowed_state``
        self.fresh: set[Source] = set()  # slots whose contents are replaced all the time

    @staticmethod
    def _key(source, kind, payload):
        if kind in ("eq", "at", "dict_keys", "elements"):
            return (source, kind, type(payload), repr(payload))
        if kind in ("subclass", "instance"):
            return (source, kind, id(payload[0]))
        return (source, kind, payload if isinstance(payload, (str, int, Source)) else id(payload))

    def add(self, source: Source, kind: str, payload=None):
        """Record a fact; a value without a source (made while capturing) needs none. It keeps no object of the program alive that can be referred to
        weakly; a tensor is known by its place, since all else that is relied on is guarded by facts of its own."""
        if source is None:
            return
        if kind == "is" and isinstance(payload, torch.Tensor):
            kind, payload = "at", (id(payload), type(payload))
        key = self._key(source, kind, payload)
        if kind in ("is", "dict_lacks"):
            payload = native().Weak(payload) if holding(payload) == "weak" else payload
        elif kind in ("dict_keys", "elements"):
            payload = loosely(payload)
        if key not in self._seen:
            self._seen.add(key)
            self._facts.add((source, kind))
            self._rows.append((source, kind, payload, key))

    def add_presence(self, source: Source):
        """Record that there is something at a source, such as an entry of a dict."""
        if source is not None:
            self._present[source] = True

    def has(self, source, kinds) -> bool:
        """Whether a fact of one of these kinds is recorded for ``source``."""
        return any((source, kind) in self._facts for kind in kinds)

    def checkpoint(self) -> int:
        return len(self._rows)

    def rollback(self, mark: int):
        for row in self._rows[mark:]:
            self._seen.discard(row[3])
        del self._rows[mark:]
        self._facts = {row[:2] for row in self._rows}

    def __len__(self):
        return len(self._rows)

    def rows(self):
        """(source, kind, payload) in the order of recording."""
        return [row[:3] for row in self._rows]

    def program(self):
        """-> (accessors, checks, descriptions), what the native guard program is made of: accessors as (parent, kind, payload), checks as (accessor, kind, payload)."""
        index: dict[Source, int] = {}
        accessors: list[tuple] = []

        def locate(source: Source) -> int:
            at = index.get(source)
            if at is None:
                parent = -1 if source.base is None else locate(source.base)
                kind, payload = source.step()
                if source in self.fresh:
                    kind = f"fresh_{kind}"
                at = index[source] = len(accessors)
                accessors.append((parent, kind, payload))
            return at

        def located(payload):
            """Accessors in place of sources."""
            if isinstance(payload, Source):
                return locate(payload)
            return tuple(map(located, payload)) if isinstance(payload, tuple) else payload

        checks, texts = [], []
        for source, kind, payload, _ in self._rows:
            at = locate(source)
            value = located(payload) if isinstance(payload, (Source, Sources)) else payload
            checks.append((at, kind, value))
            texts.append(f"{source}: {describe(kind, payload)}")
        for source in self._present:
            if source not in index:  # nothing else reaches it
                checks.append((locate(source), "is_not", NOWHERE))
                texts.append(f"{source}: is there")
        row = self.sizes.row(locate)
        if row is not None:
            checks.append(row)
            texts.append("; ".join(self.sizes.texts()))
        locate = located = None  # these refer to themselves, and so to the program's objects
        return accessors, checks, texts


def describe(kind: str, payload) -> str:
    """A guard in words, for logs and ``explain``."""
    if kind == "type_is":
        return f"type is {payload.__qualname__}"
    if kind == "at":
        return f"is the {payload[1].__name__} at {payload[0]:#x}"
    if kind == "is":
        payload = payload() if type(payload) is native().Weak else payload
        if payload is None or isinstance(payload, (bool, str)):
            return f"is {payload!r}"
        if isinstance(payload, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            return f"is {payload.__qualname__}"
        return f"is {type(payload).__name__} at {id(payload):#x}"
    if kind == "eq":
        return f"== {payload!r}"
    if kind == "tensor":
        return str(payload)
    return f"{kind} {payload!s}"
