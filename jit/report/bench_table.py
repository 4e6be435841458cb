"""What ``bench`` has found, as a table, and what has to be known to read it right."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import timing
from .figures import UNKNOWN, byte_size, duration
from .systems import COMPILED, EAGER, JIT, TORCH

if TYPE_CHECKING:
    from .bench import Comparison, System

_WIDTH = 110
_UNCERTAIN = 0.05  # of a median, which is then said


def printed(found: Comparison) -> str:
    """The table and the notes below it."""
    job = found.job
    how = " with its gradients" if job.backward else " without gradients" if job.no_grad else ""
    where = [found.where["device"], f"torch {found.where['torch']}", f"Python {found.where['python']}",
             f"mode {job.mode}" if job.mode else ""]
    about = [f"{job.title}{how}", ", ".join(filter(None, where))]
    heads = ["", "first call", "a call", "spread", f"vs {EAGER}", f"vs {TORCH}", "graphs", "breaks", "memory",
             "difference", "of gradients"]
    rows = {name: _cells(found, name) for name in found.systems if not found.systems[name].error}
    keep = [k for k in range(len(heads)) if any(row[k] != UNKNOWN for row in rows.values())]
    widths = {k: max(len(row[k]) for row in (heads, *rows.values())) for k in keep}
    widths[0] = max(map(len, found.systems))

    def line(cells: list[str]) -> str:
        return "  ".join([cells[0].ljust(widths[0]), *(cells[k].rjust(widths[k]) for k in keep if k)]).rstrip()

    table = [line(heads)] if rows else []
    for name, system in found.systems.items():
        table.append(line(rows[name]) if name in rows else f"{name.ljust(widths[0])}  {system.error}")
    notes = [line for note in _notes(found) for line in textwrap.wrap(note, _WIDTH, break_on_hyphens=False,
                                                                      break_long_words=False)]
    return "\n".join([*about, "", *table, *([""] if notes else []), *notes])


def _cells(found: Comparison, name: str) -> list[str]:
    system, call = found.systems[name], found.estimate(name)
    assert call is not None
    differs = {} if name == EAGER else system.difference
    return [name, duration(system.first_call_s), f"{duration(call.median)} {_within(call.error)}",
            _percent(call.spread), _ratio(found, name, EAGER), _ratio(found, name, TORCH), _count(system.graphs),
            _count(system.breaks), byte_size(system.peak_bytes), _difference(differs, "values"),
            _difference(differs, "gradients")]


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def _within(share: float) -> str:
    return f"±{_percent(share)}" if share <= 1 else "± over 100%"


def _ratio(found: Comparison, name: str, base: str) -> str:
    ratio = found.ratio(name, base)
    return UNKNOWN if ratio is None else f"{_times(ratio.median)} {_within(ratio.error)}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 9.95 else f"{ratio:.1f}x" if ratio < 99.5 else f"{ratio:.0f}x"


def _difference(difference: dict, kind: str) -> str:
    if kind not in difference:
        return UNKNOWN
    if difference[kind]["other"]:
        return "other results"
    largest = difference[kind]["largest"]
    return "0" if not largest else f"{largest:.1e}"


def _notes(found: Comparison) -> Iterator[str]:
    timed = {name: call for name in found.systems if (call := found.estimate(name)) is not None}
    if timed:
        count = next(iter(timed.values())).count
        yield (f"a call: the median of {count} rounds, in each of which every system has a turn, with half the width "
               "of its 95% interval; spread: of the middle half of the rounds. vs: how many times as fast, by the "
               "ratios in each round. difference: the largest of two elements, from eager's first call.")
        yield _first_calls(found)
    for name in timed:
        for base in timed:
            ratio = found.ratio(name, base)
            if ratio is not None and list(timed).index(name) > list(timed).index(base) and timing.inside_noise(ratio):
                yield (f"Which of {base} and {name} is faster cannot be told: the ratio is inside the noise, between "
                       f"{ratio.low:.2f} and {ratio.high:.2f}.")
    worst = max((call.error for call in timed.values()), default=0.0)
    if worst > _UNCERTAIN:
        yield f"Times are uncertain ({_within(worst)}); more --seconds, or a quieter machine, helps."
    if timed and found.where["load"]:
        yield (f"Other programs kept this machine busy when this began (load {found.where['load']}): these are not the "
               "times of a quiet one.")
    for name, system in found.systems.items():
        yield from _of_system(name, system)


def _first_calls(found: Comparison) -> str:
    told = {name: system.first_call for name, system in found.systems.items() if system.first_call}
    start = "first call: measured once, in a new process, with what it has to load; "
    if found.job.cold is not None:
        return start + "all caches were empty."
    said = "; ".join(f"{name}: {how}" for name, how in told.items())
    if len(set(told.values())) > 1:
        return f"{start}{said}. They are not alike, so do not compare them: --cold has all compile."
    return f"{start}{said}." + ("" if set(told.values()) <= {COMPILED} else " --cold has all compile.")


def _of_system(name: str, system: System) -> Iterator[str]:
    for kind, difference in system.difference.items():
        if name == EAGER:
            if difference["largest"] or difference["other"]:
                by = "" if difference["other"] else f" by up to {difference['largest']:.1e}"
                yield (f"Eager's own second call gave other {kind} than its first{by}: the function draws random "
                       "numbers, or changes what it is given. Where it draws random numbers, differences say nothing.")
            continue
        for text in difference["other"][:5]:
            yield f"{name}, {kind}: {text}"
        if math.isinf(difference["largest"]) and not difference["other"]:
            yield f"{name}, {kind}: {difference['where']} is infinite or no number where eager's is not, or is another."
    if name == JIT and not system.error and system.graphs == 0:
        yield "jit has compiled nothing: the function does nothing with tensors that could be."
    for text in system.warnings:
        yield f"{name} warns: {text}"
