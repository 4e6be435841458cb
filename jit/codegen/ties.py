"""What suggests that two groups be one kernel: a root reads what another group makes, or the two read one tensor in
step, or run over one space. A tie holds roots, and not groups, since groups join while it waits for its turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from .indexing import FIXED, same

if TYPE_CHECKING:
    from .groups import Group, Root

Alignment = Optional[tuple[int, ...]]


@dataclass
class Tie:
    """``first`` and ``second`` are roots of two groups, the second of which would move to the first. ``mapping`` says
    what the tie knows of where: dimension of the second group -> dimension of the first; None: they cannot be one.

    ``behind``: the second is a root that is new, alone, and reads the first. ``related``: one may read the other, and
    not only through the tie.
    """

    first: Root
    second: Root

    behind = related = False

    def mapping(self, a: Group, b: Group, roots: dict) -> dict[int, int] | None:
        raise NotImplementedError


class Behind(Tie):
    """The new root ``second`` reads what ``first`` makes, and perhaps more of its group."""

    behind = related = True

    def mapping(self, a: Group, b: Group, roots: dict) -> dict[int, int] | None:
        root, found = self.second, None
        if len(b.members) > 1:
            return None  # it has joined another producer meanwhile
        for node, aligns in root.reads.items():
            for q in roots.get(node, ()):
                if q.group is not a:
                    continue
                if q.part is not None:  # of the operands of a concatenation it would see one alone
                    return None
                for align in aligns:
                    one = _in_step_with(root, q, align, a)
                    if one is None or found is not None and one != found:
                        return None
                    found = one
        return found


def _in_step_with(root: Root, q: Root, align: Alignment, a: Group) -> dict[int, int] | None:
    """The mapping with which a root, alone in its group, reads ``q`` in the iteration that computes it. What the root
    has loops for beyond those of ``q`` is paired with what was reduced on the way to ``q``."""
    if align is None:
        return None
    place, mapping = q.out_place(), {}
    for k, d in enumerate(align):
        if d != FIXED and (place[k] == FIXED or mapping.setdefault(root.place[d], place[k]) != place[k]):
            return None
    free = [d for d in root.place if d != FIXED and d not in mapping]
    if free:
        spare = [x for x in sorted(a.reduced) if x not in mapping.values()]
        if len(spare) != len(free) or not all(same(root.group.dims[d], a.dims[x]) for d, x in zip(free, spare)):
            return None
        mapping.update(zip(free, spare))
    return mapping


class ReadTogether(Tie):
    """``first`` reads what ``second`` makes: its group is another producer's, or its own."""

    related = True

    def mapping(self, a: Group, b: Group, roots: dict) -> dict[int, int] | None:
        root, found = self.first, None
        for node, aligns in root.reads.items():
            for q in roots.get(node, ()):
                if q.group is not b:
                    continue
                if q.part is not None or None in aligns:
                    return None
                for align in aligns:
                    one = {x: root.place[d] for d, x in zip(align, q.out_place()) if d != FIXED and x != FIXED}
                    if found is not None and one != found:
                        return None
                    found = one
        if found is not None:
            # The root reads a reduction's result: what was reduced to it is paired with what its own group reduces.
            free = [d for d in sorted(b.reduced) if d not in found]
            spare = [d for d in sorted(a.reduced) if d not in found.values()]
            if len(free) == len(spare):
                found.update(zip(free, spare))
        return found


@dataclass
class Siblings(Tie):
    """Both read one tensor, or write parts of one, at these alignments."""

    first_align: tuple[int, ...]
    second_align: tuple[int, ...]

    def mapping(self, a: Group, b: Group, roots: dict) -> dict[int, int] | None:
        return {self.second.place[d]: self.first.place[e] for d, e in zip(self.second_align, self.first_align)
                if d != FIXED and e != FIXED}


class Alike(Tie):
    """Both run over one space."""

    def mapping(self, a: Group, b: Group, roots: dict) -> dict[int, int] | None:
        return {d: d for d in range(len(b.dims))}
