"""How many entries count against ``config.cache_limit``: those that compete for one kind of call.

An entry says what it was made under: the state of the thread (grad mode, inference mode, autocast ...) and the modules
that its function was given. One that was made under another state, or for another module, can never serve this call,
whatever its arguments are; so it uses up nothing of the call's limit. Training and sampling with one model, and many
modules that share one function, are counted apart. All entries of a function are bounded too, by ``MOST`` times the
limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..runtime import guards as native_guards
from ..runtime.facts import GlobalState, Is
from .source import Local

if TYPE_CHECKING:
    from .guards import Guards

MOST = 16  # as many kinds of calls, each at its limit


def circumstances(guards: Guards) -> Any:
    """The native guard program of what an entry with these guards was made under."""
    rows = [(source, fact) for source, fact in guards.of_kinds(GlobalState, Is)
            if type(fact) is GlobalState or type(source) is Local and isinstance(fact.object, torch.nn.Module)]
    accessors = [(-1, *source.step(), source) for source, fact in rows if fact.of_object]
    checks, at = [], -1
    for _, fact in rows:
        at += fact.of_object
        checks.append((at if fact.of_object else -1, fact.kind, fact.payload(lambda source: -1), fact))
    return native_guards.program(accessors, checks)


class Limits:
    """Of one function: which kinds of calls have used up their limit."""

    def __init__(self) -> None:
        self.full: list = []

    def competing(self, entries: tuple, values: tuple) -> list:
        """The entries that count for a call with these locals."""
        return [entry for entry in entries if entry.circumstances.check(values)]

    def is_full(self, values: tuple) -> bool:
        """Whether a call with these locals is one of a kind that was given up."""
        return any(all(one.check(values) for one in kind) for kind in self.full)

    def give_up(self, entries: list) -> None:
        """Calls for which all of these count are compiled no more."""
        self.full.append([entry.circumstances for entry in entries])
