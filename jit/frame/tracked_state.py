"""Switches of PyTorch and of Python that a program reads, sets and puts back: each is one row of a table.

A row says how to ask what the switch is outside (``read``), how an entry relies on that (``guard``), what capturing
has to know when the program changes it (``enter``), and how it is set for real (``exit``). All else follows. While
capturing nothing is set: the program is told what it has set itself, in whatever function it asks, and what the switch
is outside where it has set nothing. After the graph has run, or before the step that breaks it, the rewritten function
sets what is another than before; a switch that was put back leaves nothing. A step whose result depends on a switch
that the program has changed (``matters``) is a break, unless ``enter`` has told the tracer all about it: the step then
runs for real, and what is captured after it finds the switch as it is. When a step is taken back, so are the changes
that it made.

A new switch is a row in a file of ``jit/frame/states/``.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .. import turns
from ..errors import Unsupported
from ..graph.journal import ABSENT
from ..runtime import facts
from . import source as src
from .tables import on_call, on_function
from .values.constant import Constant

if TYPE_CHECKING:
    from .session import Session
    from .values.base import Value

TABLE: list[TrackedState] = []


def covered(s: Session, *key: object) -> None:
    """The guard of a state that the fact about torch's state covers for every entry."""


def part(name: str) -> Callable:
    """The guard of a state that is a part of the fact about torch's state which few programs read."""
    return lambda s, *key: s.guards.state.read.add(name)


def returned(read, name: str) -> Callable:
    """The guard of a state for which there is no check in C++: ``read`` is called at each call."""
    return lambda s: s.guards.add(src.Returned(src.Const(read, name)), facts.Equals(read()))


@dataclasses.dataclass(frozen=True, eq=False)
class TrackedState:
    """A switch, or several that differ by a key.

    Attributes:
        name: what it is, for messages.
        read: ``read(*key)``: what it is now, for real.
        guard: ``guard(s, *key)``: have the entry rely on that.
        enter: ``enter(s)``: the program has changed it, or put it back.
        exit: ``exit(value, *key)`` -> (function, values) that set it; None: the program's own calls are what is done.
        reduce: ``reduce(s, effects)`` -> those that are left to do of a log, or None: see ``reduced``.
        matters: ``matters(node)``: whether what a node gives depends on it.
    """

    name: str
    read: Callable
    guard: Callable = covered
    enter: Callable = lambda s: None
    exit: Callable | None = None
    reduce: Callable | None = None
    matters: Callable | None = None

    def __post_init__(self) -> None:
        TABLE.append(self)


class States:
    """What the program has set, in one capture.

    Attributes:
        now: (state, *key) -> what the program has set it to.
        uses: state -> how often the program has set it or asked for it.
    """

    def __init__(self, s: Session) -> None:
        self.s = s
        self.now: dict[tuple, object] = {}
        self.uses: collections.Counter = collections.Counter()

    def close(self) -> None:
        self.now.clear()

    def get(self, state: TrackedState, *key):
        """What the program is told."""
        self.uses[state] += 1
        found = self.peek(state, *key)
        if (state, *key) not in self.now:
            state.guard(self.s, *key)
            turns.same(found, self.peek(state, *key))
        return found

    def peek(self, state: TrackedState, *key):
        """The state at this point of the program, for our own use: nothing is guarded."""
        at = (state, *key)
        return self.now[at] if at in self.now else state.read(*key)

    def set(self, state: TrackedState, value, fn, args, key=()) -> None:
        """The program has set it by calling ``fn`` on values."""
        self.uses[state] += 1
        state.guard(self.s, *key)
        self.s.set_entry(self.now, (state, *key), value)
        self.s.effects.add(fn, args, state)
        state.enter(self.s)

    @contextlib.contextmanager
    def told(self, state: TrackedState, value) -> Iterator[None]:
        """The program is told ``value`` inside, and is taken to have put back what it sets there itself."""
        before = self.now.get((state,), ABSENT)
        self.s.set_entry(self.now, (state,), value)
        try:
            yield
        finally:
            if before is ABSENT:
                self.s.journal.drop_entry(self.now, (state,))
            else:
                self.s.set_entry(self.now, (state,), before)

    def of(self, state: TrackedState) -> dict:
        """Key -> what the program has set."""
        return {at[1:]: value for at, value in self.now.items() if at[0] is state}

    def differs(self, state: TrackedState) -> bool:
        """Whether it is another than it is outside."""
        return any(value != state.read(*key) for key, value in self.of(state).items())

    def changed_since(self, before: dict) -> bool:
        """Whether any state is another than it was with ``before``, a copy of ``now``."""
        def then(at: tuple):
            return before[at] if at in before else at[0].read(*at[1:])

        return any(self.peek(*at) != then(at) for at in self.now.keys() | before.keys())

    def check(self, nodes) -> None:
        """Raise Unsupported where one of the nodes that a step has recorded depends on what the program has changed."""
        for state in {at[0] for at in self.now}:
            if state.matters is not None and self.differs(state) and any(map(state.matters, nodes)):
                raise Unsupported(f"an operation that depends on {state.name}, which the program has changed",
                                  "change it outside the compiled function", kind="global-state")


def reduced(s: Session, effects: list) -> list:
    """What is left to do of a log. Of a state that is in the end what it was before, nothing; of another one the last
    value, or all calls of the program where the row has no ``exit``."""
    present = {e[2] for e in effects} | {at[0] for at in s.states.now}
    for state in filter(present.__contains__, TABLE):
        if state.reduce is not None:
            effects = state.reduce(s, effects)
        elif state.exit is not None or not s.states.differs(state):
            last = [state.exit(value, *key) for key, value in s.states.of(state).items() if value != state.read(*key)]
            effects = [*(e for e in effects if e[2] is not state), *((*e, state) for e in last)]
    return effects


def calls_library(node) -> bool:
    """``matters`` of a state on which what libraries compute depends, and kernels of ours do not."""
    return node.op == "aten_call"


def register(fn):
    """The decorator for the rule of a function of PyTorch, whether it is in C or in Python."""
    return (on_function if hasattr(fn, "__code__") else on_call)(fn)


def switch(name: str, getter, setter=None, values=(False, True), guard=None, matters=None) -> TrackedState:
    """A row for a switch that ``getter()`` tells and ``setter(value)`` sets to one of ``values``. Without a ``setter``,
    setting it is a break."""
    state = TrackedState(name, getter, guard or returned(getter, name), matters=matters,
                         exit=lambda value: (setter, [Constant(value)]))

    @register(getter)
    def read(s: Session, args, kwargs: dict[str, Value]):
        if args or kwargs:
            raise Unsupported(f"{name} is asked for with arguments", kind="argument-error")
        return s.from_python(s.states.get(state))

    if setter is not None:
        @register(setter)
        def write(s: Session, args, kwargs: dict[str, Value]) -> Constant:
            value = args[0].const(s) if len(args) == 1 and not kwargs else None
            if not any(value is known or type(value) is str and value == known for known in values):
                raise Unsupported(f"{name} is set to something unknown", kind="global-state")
            s.states.set(state, value, setter, args)
            return Constant(None)

    return state
