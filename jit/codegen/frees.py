"""Where a plan lets go of tensors: behind the last step that names them. Parts of an arena hold nothing of their own,
and are not freed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ..runtime.steps import Free

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..runtime.steps import Step


def with_frees(parts: Sequence[list[Step]], kept: set[int], arenas: Iterable[int]) -> list[tuple[Step, ...]]:
    """The parts of a plan, one after the other, with frees among their steps. ``kept``: slots that stay filled."""
    last, inside, dying = {}, set(arenas), {}
    for k, step in enumerate(itertools.chain(*parts)):
        last.update(dict.fromkeys(step.slots, k))
        if step.part_of in inside:
            inside.update(step.makes)
    for slot, k in last.items():
        if slot not in kept and slot not in inside:
            dying.setdefault(k, []).append(Free(slot))
    count = itertools.count()
    return [tuple(s for step in part for s in (step, *dying.get(next(count), ()))) for part in parts]
