"""Backwards for some of the results: where a call gives (loss, logits), say, and only the loss gets a gradient.

They are compiled when they are met, and kept on disk with the entry that they belong to: a later process loads them as
it does the others, and loads no more of the compiler than this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from .runtime import held, names

Given = tuple[bool, ...]  # which tangents are


def narrow_of(source: Any, compile: Callable[[Any, Given], Any],
              made: dict[Given, Any] | None = None) -> Callable[[Given], Any]:
    """``GradSpec.narrow`` of a backward.

    Args:
        source: gives the backward for all tangents.
        compile: gives of that, and of which tangents are given, a loaded plan; None where the one for all serves.
        made: the plans that there are already. More are added.
    """
    known: dict[Given, Any] = {} if made is None else made

    def narrow(present: Sequence[bool]) -> Any:
        given = tuple(map(bool, present))
        if given not in known:
            plan = compile(source, given)
            if plan is None:
                return None
            known[given] = plan
            held.grown(narrow)
        return known[given]

    return names.made_later(narrow, narrow_of, source, compile, known)
