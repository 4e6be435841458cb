"""Makes a report of what was captured and compiled in one call."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import linecache
import math
import platform
import re
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import devices, logs
from ..frame.blocks import rewriting
from ..frame.titles import is_call_of_modules
from ..graph.dims import hint
from ..graph.prim_info import info
from ..graph.prims import base_of
from ..graph.writing import PackedGraph
from ..reasons import that_is
from ..runtime.guards import in_users_terms
from . import model
from .model import BREAK, CAPTURED, EAGER, FOLLOWED, Entry, Place, Recompile

_PACKAGE = re.compile(r".*/(?:site|dist)-packages/[^/]*/")  # the folder of an installed package

if TYPE_CHECKING:
    from ..codegen.described import Described
    from ..frame.breaks import BreakReason
    from ..frame.capture import Captured
    from ..graph.ir import Graph
    from ..observing import Followed, Observer
    from ..plans import Plan


def report(title: str, captured: Sequence[Captured], observer: Observer,
           recompiles: Sequence[Recompile] = (), code: types.CodeType | None = None,
           entries: Sequence[Entry] = ()) -> model.Report:
    """What these captures, which the observer was told of, came to. ``code``: of the function that it is about, where
    that is not the first one that was captured."""
    regions, used = [], []
    for c in captured:
        plan = observer.plans.get(c.graph) if c.graph is not None else None
        regions.append(_region(c, plan, code))
        used.append(plan)
    kinds = {step.device for r in regions for p in r.plans for step in p.steps}
    place = _place(code) if code is not None else regions[0].place if regions else None
    done = observer.done_for(captured)
    sources = _sources(captured, used, done, place)
    return model.Report(title, place, tuple(regions), tuple(sources), tuple(recompiles),
                        _phases(done), versions(),
                        "; ".join(dict.fromkeys(map(_figures_of, sorted(kinds)))), entries=tuple(entries))


def _figures_of(device: str) -> str:
    return str(devices.backend(torch.device(device)).architecture())


def _region(c: Captured, plan: Plan | None, of_module: types.CodeType | None) -> model.Region:
    code = of_module if of_module is not None and c.code is not None and is_call_of_modules(c.code) else c.code
    place = _place(code) if code is not None else Place("", 0, "?")
    entry = c.entry
    unnamed = () if entry is None else tuple(f"{what}: {name.why_not()}" for what, name in entry.holds()
                                             if name.why_not())
    guards = () if c.guards is None else tuple(
        model.Guard(in_users_terms(str(source)), str(fact), source.watched) if fact.of_object
        else model.Guard("", str(fact), False)
        for source, fact in c.guards.rows())
    return model.Region(place.function, place, () if plan is None else tuple(_plans(plan, c.graph)), guards,
                        tuple(map(_break, c.breaks)), c.seconds, c.instructions, unnamed,
                        "" if c.target is None or c.code is None else rewriting(c.code, c.target))


def _place(code: types.CodeType) -> Place:
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname)


def _break(b: BreakReason) -> model.Break:
    return model.Break(b.id, b.kind, b.why, b.hint, Place(b.file, b.line, b.function), b.whole_frame,
                       None if b.user is None else Place(*b.user), that_is(b.kind))


def _plans(plan: Plan, captured: Graph | None) -> list[model.PlanReport]:
    found = []
    returned = 0 if captured is None else sum(
        math.prod(map(hint, n.type.shape)) * n.type.dtype.itemsize
        for n in {base_of(o.node) for o in captured.outputs if o.mutates is None} if n.op != "input" and not n.several)
    graphs = [plan.graph, plan.backward]
    for direction, graph, described in zip((model.FORWARD, model.BACKWARD), graphs, plan.described):
        if described is None:
            continue
        own = {s.source for s in described.steps}
        if isinstance(graph, PackedGraph):
            graph = graph()
        found.append(model.PlanReport(
            direction, "" if graph is None else graph.python(),
            0 if graph is None else sum(info(n.op).kind not in ("input", "number") for n in graph.nodes),
            tuple([dataclasses.replace(s, least=least_seconds(s)) for s in described.steps]),
            tuple(model.Apart(*row) for row in described.apart),
            _memory(described, returned if direction == model.FORWARD and plan.backward is not None else None),
            tuple((name, text) for name, text in plan.kernels if name in own), described.loops, described.text,
            described.name))
    return found


def least_seconds(step: model.Step) -> float | None:
    """What the device's memory and, for products, its arithmetic take at best; None where it does not tell."""
    architecture = devices.backend(torch.device(step.device)).architecture()
    if not architecture.bandwidth:
        return None
    seconds = (step.read + step.written) / architecture.bandwidth
    if step.kind == model.LIBRARY and architecture.products:
        seconds = max(seconds, step.operations / architecture.products)
    return seconds


def _memory(d: Described, returned: int | None) -> model.Memory:
    """``returned``: bytes of what the program gets, where the rest of the results is kept for a backward."""
    return model.Memory(d.inputs, d.results, 0 if returned is None else max(0, d.results - returned), d.temporary,
                        d.live, d.returned)


def _phases(done: Followed) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for name, seconds in done.phases.items():
        name = logs.group_of(name)
        found[name] = found.get(name, 0.0) + seconds
    return tuple(sorted(found.items(), key=lambda row: -row[1]))


def versions() -> str:
    """Those of what it runs with, as text."""
    parts = [f"Python {platform.python_version()}", f"PyTorch {torch.__version__}"]
    for package in ("triton",):
        try:
            parts.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(parts)


# -- source -----------------------------------------------------------------------------------------------------------


def _sources(captured: Sequence[Captured], plans: Sequence[Plan | None], done: Followed,
             own: Place | None) -> list[model.Source]:
    """The functions that were followed, those of libraries last. ``own``: what is reported."""
    operations: dict[tuple[str, int], int] = {}
    regions: dict[tuple[str, int], set[int]] = {}
    for k, (c, plan) in enumerate(zip(captured, plans)):
        graph = c.graph
        for n in graph.nodes if graph is not None else ():
            loc: Any = n.loc
            if loc is None or info(n.op).kind in ("input", "number"):
                continue
            for file, line in {(loc.file, loc.line), *([loc.user[:2]] if loc.user is not None else [])}:
                operations[file, line] = operations.get((file, line), 0) + 1
                regions.setdefault((file, line), set()).add(k)
    breaks: dict[tuple[str, int], list[BreakReason]] = {}
    for c in captured:
        for b in c.breaks:
            for place in {(b.file, b.line), (b.user or (b.file, b.line))[:2]}:
                breaks.setdefault(place, []).append(b)
    # A function that goes on behind a break has code of its own, with the lines of the whole.
    lines: dict[tuple[str, int, str], set[int]] = {}
    for code, executed in done.lines.items():
        lines.setdefault((code.co_filename, code.co_firstlineno, code.co_qualname), set()).update(executed)
    found, seen = [], set()
    for code, inlined in done.codes.items():
        if (code.co_filename, code.co_firstlineno, code.co_qualname) in seen:
            continue
        seen.add((code.co_filename, code.co_firstlineno, code.co_qualname))
        made = _source(code, inlined or is_call_of_modules(code), lines, operations, regions, breaks)
        if made is not None:
            found.append(dataclasses.replace(made, library=made.inlined and _is_library(made.place.file, own)))
    return sorted(found, key=lambda s: (s.inlined, s.library))


def _is_library(file: str, own: Place | None) -> bool:
    """Whether a file is a library's: PyTorch's, Python's, or of a package of which what is reported is no part."""
    package = _PACKAGE.search(file)
    if package is None:
        return "/lib/python" in file or file.startswith("<")
    of_own = _PACKAGE.search(own.file) if own is not None else None
    return of_own is None or package[0] != of_own[0] or file.startswith(torch.__path__[0])


def _source(code: types.CodeType, inlined: bool, executed: dict, operations: dict, regions: dict,
            breaks: dict) -> model.Source | None:
    text = linecache.getlines(code.co_filename)
    if not text:
        return None
    own = executed.get((code.co_filename, code.co_firstlineno, code.co_qualname), set())
    try:
        count = len(inspect.getblock(text[code.co_firstlineno - 1:]))
    except (IndexError, SyntaxError, IndentationError):  # the file was changed, or it is no file of Python's
        count = max((line for *_, line in code.co_lines() if line), default=0) - code.co_firstlineno + 1
    whole = any(b.whole_frame for found in breaks.values() for b in found
                if b.file == code.co_filename and b.function == code.co_qualname)
    lines = []
    for number in range(code.co_firstlineno, code.co_firstlineno + count):
        key = code.co_filename, number
        said = breaks.get(key, ())
        kind = (BREAK if said else CAPTURED if key in operations else "" if number not in own
                else EAGER if whole else FOLLOWED)
        lines.append(model.Line(number, text[number - 1].rstrip("\n") if number <= len(text) else "", kind,
                                tuple(sorted(regions.get(key, ()))), operations.get(key, 0),
                                "; ".join(dict.fromkeys(f"{b.why} ({b.hint})" for b in said))))
    return model.Source(Place(code.co_filename, code.co_firstlineno, code.co_qualname), code.co_qualname,
                        tuple(lines), inlined)
