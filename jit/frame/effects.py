"""What the program does to real objects while it is captured: nothing is done then; it is logged, and the rewritten
function does it after the graph has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import Unsupported
from . import tracked_state
from .source import DictAttr, GetAttr, Item
from .states.grad_mode import GRAD_MODE
from .values import batched
from .values.base import Value
from .values.constant import Constant

if TYPE_CHECKING:
    from .session import Session
    from .source import Source


class Effect(NamedTuple):
    """A call of a C function, or of one of ours, on values. ``state``: the TrackedState that it changes, if it does
    nothing else."""

    fn: object
    args: list
    state: tracked_state.TrackedState | None = None


class Effects:
    """The log of one capture.

    Attributes:
        log: what is to be done, in the program's order.
        recorders: lists of the program that what is logged will add to.
        globals_written: (id of a namespace, name) -> what the program has assigned, or ABSENT.
        class_written: (class, name) -> likewise.
        tensor_attributes: (a tensor's identity, name) -> what the program has hung on it, None for nothing any more.
    """

    def __init__(self, s: Session) -> None:
        self.s = s
        self.log: list[Effect] = []
        self.recorders: list[list] = []
        self.globals_written: dict[tuple, Value] = {}
        self.class_written: dict[tuple, Value] = {}
        self.tensor_attributes: dict[tuple, Value | None] = {}
        s.journal.grows(self.log, self.recorders)

    def close(self) -> None:
        for held in (self.log, self.recorders, self.globals_written, self.class_written, self.tensor_attributes):
            held.clear()

    def add(self, fn, args, state=None) -> None:
        """The program has called ``fn`` on values."""
        self.log.append(Effect(fn, list(args), state))

    def since(self, start: int, besides=GRAD_MODE) -> list[Effect]:
        """What was logged from number ``start`` on, but for changes of a state."""
        return [e for e in self.log[start:] if e.state is not besides]

    def records_into(self, obj: list) -> bool:
        """Whether a list is one to which what is logged will add something."""
        return any(obj is recorder for recorder in self.recorders)

    def hide_recorder(self, recorder: list) -> None:
        """Something is going to be put into a list after the graph has run: it cannot be read before."""
        if id(recorder) in self.s.heap.by_object:
            raise Unsupported("a warning is recorded in a list that the program sees", kind="warning")
        self.recorders.append(recorder)

    def why_aside(self, is_python: bool) -> str | None:
        """Why an operator that is not PyTorch's own is called between two graphs and not in one, if it is: see
        ``graph.foreign``."""
        if is_python and not self.s.unbroken:
            return "has a kernel in Python"
        if self.since(0):
            return "is called after a change that is made behind the graph"
        return "is called inside a map" if batched.active(self.s) else None

    def to_replay(self) -> list[tuple]:
        """(function, values) of what is left to do after the graph: of the switches only what they are in the end; last
        the real generators are put where they have come to."""
        left = tracked_state.reduced(self.s, _last_entries(self.s, self.log))
        return [*(e[:2] for e in left), *(g.settle() for g in self.s.real_generators if g.moved)]

    def replaced(self) -> list[tuple[Source, object]]:
        """The sources of attributes and entries of real objects to which the program assigns what it has made, or
        integers: at the next call something else is there. With each the integer, or None."""
        found = []
        for fn, args, _ in self.log:
            kinds = _SLOTS.get(fn, ())
            if (not kinds or args[0].source is None or args[1].symbolic or not args[1].is_const()
                or args[2].source is not None):
                continue
            value = args[2].value if type(args[2]) is Constant else None  # nothing is asked of a symbol
            if type(args[2]) is not Constant or type(value) is int:
                found += [(kind(args[0].source, args[1].const(self.s)), value) for kind in kinds]
        return found


_SLOTS = {object.__setattr__: (DictAttr, GetAttr), dict.__setitem__: (Item,)}


def _last_entries(s: Session, log: list[Effect]) -> list[Effect]:
    """A log without what the entries of dicts are set to in between, as parameters of modules are for a call: of each
    the last value, and none where that is what was there before. Only of entries that there are, since others get their
    place by being set first, and up to the first effect of another kind, which may look at any of them."""
    last: dict[tuple, int] = {}  # (id of a dict, key) -> number in the log
    dropped: set[int] = set()
    for n, (fn, args, _) in enumerate(log):
        touched = args[0] if args else None
        obj = getattr(touched, "obj", None)
        if (fn is not dict.__setitem__ or type(obj) is not dict or args[1].symbolic or not args[1].is_const()
            or args[1].const(s) not in obj):
            break
        slot = id(obj), args[1].const(s)
        if slot in last:
            dropped.add(last[slot])
        last[slot] = n
    for (_, key), n in last.items():
        touched, _, value = log[n].args
        if touched.source is not None and value.source == Item(touched.source, key):
            dropped.add(n)
    return [e for n, e in enumerate(log) if n not in dropped]
