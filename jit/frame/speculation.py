"""Trying one way of following the program where there may have to be another one."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import Unsupported
from .executor import Frame
from .values.base import Raised, Value


class Attempt:
    """``with session.speculate() as attempt:`` leaves the block where a step in it cannot be captured, takes back what
    it has done, and goes on behind it. Exceptions of ours are no answer: they pass through.

    Args:
        kinds: of the ``Unsupported`` that are an answer; others pass through. None: all are.
        raises: whether an exception of the program is an answer too.
        keep: whether what an attempt has done stays when it went through.

    Attributes:
        refusal: the Unsupported that ended it, or None.
        raised: the exception of the program that ended it, as ``Raised``, or None.
        effects: what was logged in it, also where that was taken back.
    """

    def __init__(self, session, kinds=None, raises: bool = False, keep: bool = True) -> None:
        self.session, self.kinds, self.raises, self.keep = session, kinds, raises, keep
        self.refusal: Unsupported | None = None
        self.raised: Raised | None = None
        self.effects: list = []

    @property
    def went_through(self) -> bool:
        return self.refusal is None and self.raised is None

    def __enter__(self):
        self._mark, self._first = self.session.journal.checkpoint(), len(self.session.effects.log)
        return self

    def __exit__(self, cls, error, traceback) -> bool:
        self.effects = self.session.effects.log[self._first:]
        if isinstance(error, Unsupported) and (self.kinds is None or error.kind in self.kinds):
            self.refusal = error
        elif isinstance(error, Raised) and self.raises:
            self.raised = error
        if not self.went_through:  # what led here holds the program's objects, and would do so in a cycle
            error.__traceback__ = error.__context__ = None
        if not self.keep or not self.went_through:
            self.session.journal.rollback(self._mark)
        return not self.went_through


def reachable(values: Iterable[object]) -> set[int]:
    """Identities of the values, and of the Python containers and frames in them, that can be got at from some values:
    a change of one of these is a change of what was there before."""
    seen: set[int] = set()
    stack = list(values)
    while stack:
        v = stack.pop()
        if id(v) in seen:
            continue
        if isinstance(v, (Value, Frame)):
            stack.extend(vars(v).values())
        elif isinstance(v, dict):
            stack.extend(v.values())
        elif isinstance(v, (list, tuple)):
            stack.extend(v)
        else:
            continue
        seen.add(id(v))
    return seen
