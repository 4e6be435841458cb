"""Tables of what an emitter, or the reference interpreter, does with each kind of statement."""

from __future__ import annotations

from typing import Callable

from .loops import Statement


class Handlers(dict):
    """What an emitter does with each kind of statement, or with each of the ``kinds`` given: a table from classes to
    functions, which serve the classes derived from theirs too.

    >>> emits = Handlers("my language")
    >>> @emits(Load)
    ... def load(emitter, s): ...
    >>> emits[type(s)](emitter, s)
    """

    tables: list = []  # all that there are

    def __init__(self, of: str, *kinds: type) -> None:
        self.of, self.kinds = of, kinds or (Statement,)
        self.tables.append(self)

    def __call__(self, *kinds: type) -> Callable:
        def register(handler: Callable) -> Callable:
            self.update(dict.fromkeys(kinds, handler))
            return handler

        return register

    def __missing__(self, kind: type) -> Callable:
        handler = next((self.get(base) for base in kind.__mro__ if base in self), None)
        if handler is None:
            raise NotImplementedError(f"{self.of} has no handler of {kind.__name__}")
        self[kind] = handler
        return handler
