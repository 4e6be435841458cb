"""What a report says: plain data, which ``gather`` fills in, and ``text`` and ``html`` show.

Sizes are in bytes, times in seconds, operations are single additions, multiplications or function values. Lines count
from 1. None stands for what is not known.
"""

from __future__ import annotations

import dataclasses

from ..observing import KERNEL, LIBRARY, USER_KERNEL, Place, Results, Step  # noqa: F401  (told as they are)

CAPTURED, FOLLOWED, BREAK, EAGER = "captured", "followed", "break", "eager"
FORWARD, BACKWARD = "forward", "backward"


@dataclasses.dataclass(frozen=True)
class Apart:
    """Two kernels that were not made one although the second reads what the first computes, or both read the same.

    Attributes:
        first, second: the numbers of the steps, from 0.
        why: one sentence.
        moved: bytes that go through memory between them for that.
    """

    first: int
    second: int
    why: str
    moved: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a plan needs beside its inputs.

    Attributes:
        inputs: bytes of the inputs.
        results: bytes of what it returns; saved: of that, what is kept for the backward.
        temporary: the most bytes that are needed at once of memory that only the plan uses.
        live: bytes that are in use beside the inputs, step by step.
        returned: what the results are, with what is kept for the backward, the largest first.
    """

    inputs: int
    results: int
    saved: int
    temporary: int
    live: tuple[int, ...]
    returned: tuple[Results, ...] = ()


@dataclasses.dataclass(frozen=True)
class PlanReport:
    """A plan of a graph: its only one, or that of the forward or the backward.

    Attributes:
        direction: ``FORWARD`` or ``BACKWARD``.
        graph: what it computes, as runnable Python.
        kernels: (name, source text).
        loops: (name, text) of each as a loop kernel, from which the source is made.
        text: of what the runtime does, a line each.
        name: what profilers call a run of it.
    """

    direction: str
    graph: str
    operations: int
    steps: tuple[Step, ...]
    apart: tuple[Apart, ...]
    memory: Memory
    kernels: tuple[tuple[str, str], ...]
    loops: tuple[tuple[str, str], ...] = ()
    text: str = ""
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Break:
    """Where a graph ends before the function does. ``whole``: the function runs in eager from its first line; ``user``:
    the program's own line, where ``place`` is in a library that it calls; ``meaning``: of its kind, where ``why`` does
    not say as much."""

    id: str
    kind: str
    why: str
    hint: str
    place: Place
    whole: bool
    user: Place | None = None
    meaning: str = ""


@dataclasses.dataclass(frozen=True)
class Guard:
    """A fact that compiled code relies on.

    Attributes:
        about: the expression of which it says something, in the program's terms, such as ``self.layers[0].weight``; ""
            of the state of PyTorch.
        fact: what has to be so.
        watched: it costs nothing at a call: what may change it is watched; else it is checked at each call.
    """

    about: str
    fact: str
    watched: bool | None = None


@dataclasses.dataclass(frozen=True)
class Region:
    """A part of the program that was captured at once: a whole function, or one up to or from a graph break on.

    Attributes:
        name, place: of the function.
        plans: what runs; none where there is nothing for a graph to do.
        guards: in the order in which they are checked.
        breaks: at its end.
        seconds: of capturing and compiling it.
        instructions: how many instructions of Python's were followed.
        bytecode: of the function, and what it is rewritten to.
        unnamed: what of it no other process could find, so that it is not kept on disk, and why.
    """

    name: str
    place: Place
    plans: tuple[PlanReport, ...]
    guards: tuple[Guard, ...]
    breaks: tuple[Break, ...]
    seconds: float
    instructions: int
    unnamed: tuple[str, ...] = ()
    bytecode: str = ""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of source. ``kind``: ``CAPTURED``, it is in a graph; ``FOLLOWED``, Python that is done with once it is
    compiled; ``BREAK``, a graph ends here; ``EAGER``, it runs in Python at each call; "" for what was not come to.
    ``regions``: numbers, from 0, of the regions that it is a part of. ``operations``: of the graphs that come from it.
    ``note``: what there is to say of a break."""

    number: int
    text: str
    kind: str = ""
    regions: tuple[int, ...] = ()
    operations: int = 0
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Source:
    """A function that was captured, or inlined into one that was. ``inlined``: it is called from there. ``library``: it
    is a library's, of another package than what is reported."""

    place: Place
    name: str
    lines: tuple[Line, ...]
    inlined: bool
    library: bool = False


@dataclasses.dataclass(frozen=True)
class Recompile:
    """A further entry of a function. ``differed``: the one fact that no longer held; ``cure``: what to write to avoid
    it; "" where there is nothing."""

    function: str
    number: int
    differed: str
    cure: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """A compiled form that a function had before it was reported on. ``calls``: how many it has served; ``differs``:
    what in the reported call is not as it needs it; "": it would serve that call; None: not known, since it goes on
    behind a graph break."""

    function: str
    number: int
    calls: int
    differs: str | None


@dataclasses.dataclass(frozen=True)
class Report:
    """All of it. ``phases``: seconds of each stage of compiling, without those inside it; ``versions``: what it was
    made with; ``device``: of the figures of the roofline, as text."""

    title: str
    place: Place | None
    regions: tuple[Region, ...]
    sources: tuple[Source, ...]
    recompiles: tuple[Recompile, ...]
    phases: tuple[tuple[str, float], ...]
    versions: str
    device: str
    measured: bool = False
    entries: tuple[Entry, ...] = ()


def breaks_of(report: Report) -> dict[tuple[str, Place], tuple[Break, list[int]]]:
    """Each break once: (id, line) -> the break, and the numbers of the regions, from 0, that end there."""
    found: dict[tuple[str, Place], tuple[Break, list[int]]] = {}
    for number, region in enumerate(report.regions):
        for b in region.breaks:
            found.setdefault((b.id, b.place), (b, []))[1].append(number)
    return found
