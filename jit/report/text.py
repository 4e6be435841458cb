"""A report as text that fits a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

from ..spelling import counted
from . import model
from .figures import amount, byte_size, duration

_MARKS = {model.CAPTURED: "=", model.FOLLOWED: ".", model.BREAK: "#", model.EAGER: "!", "": " "}
_MOST_GUARDS, _MOST_APART, _MOST_RETURNED = 12, 8, 6
_LEAST_NAME, _LEAST_SPACE = 12, 9  # characters of columns that are cut
_MEANING = ("= in a graph (how many operations)   . Python, done with once it is compiled   # a graph ends here   "
            "! runs in eager at each call")


def render(report: model.Report, width: int | None = None, everything: bool = False) -> str:
    """The report. ``width``: in characters, that of the terminal if it is not given; ``everything``: all guards and
    the functions of PyTorch's own that were followed, too."""
    width = max(60, min(width or shutil.get_terminal_size((100, 24)).columns, 140))
    lines = [*_summary(report, width), *_sources(report, width, everything), *_breaks(report, width)]
    for k, region in enumerate(region for region in report.regions if region.plans):
        for plan in region.plans:
            lines += _plan(k, region, plan, width, everything)
    lines += [*_guards(report, width, everything), *_entries(report, width),
              *_recompiles(report, width), *_phases(report, width)]
    return "\n".join(line.rstrip() for line in lines)


def _heading(text: str, width: int) -> list[str]:
    return ["", f"-- {text} ".ljust(width, "-")[:width]]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _summary(report: model.Report, width: int) -> Iterator[str]:
    plans = [plan for region in report.regions for plan in region.plans]
    steps = [step for plan in plans for step in plan.steps]
    count = {kind: sum(s.times for s in steps if s.kind == kind) for kind in (model.KERNEL, model.LIBRARY,
                                                                            model.USER_KERNEL)}
    graphs = sum(any(p.direction == model.FORWARD and p.operations for p in r.plans) for r in report.regions)
    parts = [
        counted(graphs, "graph"),
        counted(sum(len(r.breaks) for r in report.regions), "break"),
        counted(sum(p.operations for p in plans), "operation"),
        f"{counted(count[model.KERNEL], 'kernel')}",
        f"{counted(count[model.LIBRARY], 'library call')}",
        *([counted(count[model.USER_KERNEL], "Triton kernel") + " of the program's own"]
          if count[model.USER_KERNEL] else []),
        counted(sum(len(r.guards) for r in report.regions), "guard"),
    ]
    yield from _wrapped(f"{report.title}: {', '.join(parts)}", width)
    moved = sum((s.read + s.written) * s.times for s in steps)
    seconds = sum(region.seconds for region in report.regions)
    yield from _wrapped(f"{byte_size(moved)} through memory, {amount(sum(s.operations * s.times for s in steps))} "
                        f"operations of arithmetic at each call; compiled in {duration(seconds)}", width)
    yield from _wrapped(report.versions + (f"; {report.device}" if report.device else ""), width)


def fitted(path: str, width: int, indent: str) -> str:
    """The end of a path, which tells most, where all of it does not fit."""
    room = width - len(indent)
    return indent + (path if len(path) <= room else "..." + path[3 - room:])


def _sources(report: model.Report, width: int, everything: bool) -> list[str]:
    shown = [s for s in report.sources if everything or not s.library or any(line.note for line in s.lines)]
    if not shown:
        return []
    lines = [*_heading("Source", width), *_wrapped(_MEANING, width)]
    for source in shown:
        how = " (inlined)" if source.inlined else ""
        lines += ["", f"{source.name}{how}"[:width], fitted(f"{source.place.file}:{source.place.line}", width, "  ")]
        for line in source.lines:
            count = str(line.operations) if line.operations else ""
            lines.append(f"{line.number:6d} {count:>4s} {_MARKS[line.kind]} {line.text}"[:width])
            if line.note:
                lines += _wrapped(line.note, width, " " * 14)
    left = len(report.sources) - len(shown)
    if left:
        lines += ["", f"and {counted(left, 'function')} of libraries that {'was' if left == 1 else 'were'} inlined"]
    return lines


def _breaks(report: model.Report, width: int) -> list[str]:
    found = list(model.breaks_of(report).values())
    if not found:
        return []
    lines = _heading("Graph breaks", width)
    for b, regions in found:
        often = f" ({len(regions)} times)" if len(regions) > 1 else ""
        lines += [fitted(f"{b.place.file}:{b.place.line}{often}", width, "")]
        lines += _wrapped(f"in {b.place.function}{', which runs in eager from its first line' if b.whole else ''} "
                          f"[{b.kind}, {b.id}]", width, "  ")
        if b.user is not None:
            lines += [fitted(f"called from {b.user.file}:{b.user.line} in {b.user.function}", width, "  ")]
        lines += [*_wrapped(b.why, width, "  "), *(_wrapped(f"that is: {b.meaning}", width, "  ") if b.meaning else ()),
                  *_wrapped(f"what to do: {b.hint}", width, "  ")]
    return lines


def _plan(number: int, region: model.Region, plan: model.PlanReport, width: int, everything: bool) -> list[str]:
    title = f"Graph {number}, {plan.direction}: {region.name}, {counted(plan.operations, 'operation')}"
    lines = _heading(title, width)
    memory = plan.memory
    lines += _wrapped(f"inputs {byte_size(memory.inputs)}, results {byte_size(memory.results)}"
                      + (f" ({byte_size(memory.saved)} of them kept for the backward)" if memory.saved else "")
                      + f", memory for a while "
                      f"{byte_size(memory.temporary)}"
                      + (f", at most {byte_size(max(memory.live))} in use beside the inputs" if memory.live else ""),
                      width)
    if memory.saved:
        largest = [f"{byte_size(r.size)} of {r.computes} ({counted(r.count, 'tensor')} of {r.dtype})"
                   + (f" at {r.place.file.rsplit('/', 1)[-1]}:{r.place.line}" if r.place is not None else "")
                   for r in memory.returned[:_MOST_RETURNED]]
        lines += _wrapped(f"results and what is kept, the largest first: {'; '.join(largest)}", width)
    if plan.steps:
        lines.append("")
        lines += table(["", "what", "space", "read", "written", "arithmetic", "at best", "time", "where"],
                       [_row(k, step) for k, step in enumerate(plan.steps)], width)
    for step in {s.name: s for s in plan.steps if s.why}.values():
        lines += _wrapped(f"{step.name}: PyTorch's, since {step.why}", width, "  ") if step.why else []
    if plan.apart:
        lines += ["", "Kernels that were not made one:"]
        worst = sorted(plan.apart, key=lambda a: -a.moved)
        for a in worst if everything else worst[:_MOST_APART]:
            lines += _wrapped(f"{a.first} and {a.second}, {byte_size(a.moved)} between them: {a.why}", width, "  ")
        if len(worst) > _MOST_APART and not everything:
            lines.append(f"  and {counted(len(worst) - _MOST_APART, 'pair')} more")
    return lines


def _row(number: int, step: model.Step) -> list[str]:
    what = step.name
    return [str(number), what + (f"  ({step.times} times)" if step.times > 1 else ""), step.space,
            byte_size(step.read), byte_size(step.written), amount(step.operations) if step.operations else "",
            duration(step.least), duration(step.seconds),
            ", ".join(dict.fromkeys(f"{p.file.rsplit('/', 1)[-1]}:{p.line}" for p in step.places))]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns of text, without those that are empty. Where they do not fit the width, the second column is cut, which
    is a name, then the third, and then the last."""
    keep = [k for k in range(len(heads)) if any(row[k] not in ("", "–") for row in rows)]
    cells = [[r[k] for k in keep] for r in (heads, *rows)]
    widths = [min(40, max(len(r[k]) for r in cells)) for k in range(len(keep))]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    for k, least in ((1, _LEAST_NAME), (2, _LEAST_SPACE)):
        if over > 0 and k < len(widths) - 1:
            cut = max(0, min(over, widths[k] - least))
            widths[k] -= cut
            over -= cut
    right = [heads[k] in ("", "read", "written", "arithmetic", "at best", "time") for k in keep]
    return ["  ".join((str.rjust if to_right else str.ljust)(c if len(c) <= w else c[:w - 1] + "…", w)
                      for c, w, to_right in zip(row, widths, right))[:width] for row in cells]


def _guards(report: model.Report, width: int, everything: bool) -> list[str]:
    rows = [(k, g) for k, region in enumerate(report.regions) for g in region.guards]
    if not rows:
        return []
    lines = _heading(f"Guards: what has to hold for the compiled code to be used ({len(rows)})", width)
    if report.entries:
        lines += _wrapped("of what was compiled anew for this report; an entry from before may be for more", width,
                          "  ")
    for _, g in rows if everything else rows[:_MOST_GUARDS]:
        text = f"{g.about}: {g.fact}" if g.about else g.fact
        lines.append("  " + " ".join(text.split())[:width - 2])
    if len(rows) > _MOST_GUARDS and not everything:
        lines.append(f"  and {len(rows) - _MOST_GUARDS} more: all with explanation.text(everything=True)")
    return lines


def _entries(report: model.Report, width: int) -> list[str]:
    if not report.entries:
        return []
    lines = _heading("Entries that it has, compiled by calls before this one", width)
    for e in report.entries:
        served = f"{e.function}, entry {e.number}: has served {e.calls:,} {'call' if e.calls == 1 else 'calls'}"
        fits = "" if e.differs is None else f"; not this one: {e.differs}" if e.differs else "; it would serve this one"
        lines += _wrapped(served + fits, width, "  ")
    return lines


def _recompiles(report: model.Report, width: int) -> list[str]:
    if not report.recompiles:
        return []
    lines = _heading("Compiled again", width)
    for r in report.recompiles:
        lines += _wrapped(f"{r.function}, for the {ordinal(r.number)} time: {r.differed}", width, "  ")
        lines += _wrapped(f"what to do: {r.cure}", width, "    ") if r.cure else []
    return lines


def ordinal(n: int) -> str:
    """2nd, 3rd, ..."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def _phases(report: model.Report, width: int) -> list[str]:
    if not report.phases:
        return []
    most, room = max(seconds for _, seconds in report.phases) or 1.0, min(30, width - 40)
    lines = _heading("Where the time of compiling went", width)
    for name, seconds in report.phases:
        if seconds >= 0.0005:
            lines.append(f"  {name[:24]:24s} {duration(seconds):>9s}  {'#' * round(room * seconds / most)}")
    return lines
