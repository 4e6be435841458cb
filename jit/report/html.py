"""A report as one page of HTML that asks nothing of any other file or machine.

Everything on the page is in the markup, so that it can be read, printed and searched without JavaScript; ``page.js``
adds filtering, sorting and unfolding. Markup is made by ``_el`` alone, which escapes all that it did not make itself.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import figures, model

_UNKNOWN = figures.UNKNOWN
_FOLDED_FROM = 250
_NAMED_IN_NAVIGATION = 12
_VOID = frozenset({"meta", "link", "input", "col", "br"})
_KINDS = (
    (model.CAPTURED, "captured", "In a graph: it runs as compiled kernels or library calls."),
    (model.FOLLOWED, "followed", "Plain Python, done with once it is compiled. It costs nothing at later calls."),
    (model.BREAK, "graph break", "A graph ends here: Python runs this step, and a new graph begins after it."),
    (model.EAGER, "eager", "Python runs it at each call, as it would without the compiler."),
    ("", "not reached", "The program did not come here while it was captured."),
)
_LINE_CLASS = {kind: kind or "unreached" for kind, _, _ in _KINDS}
_LINE_WORD = {kind: word for kind, word, _ in _KINDS}
_STEP_CLASS = {model.KERNEL: "kernel", model.LIBRARY: "library", model.USER_KERNEL: "user"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class _Html(str):
    """Text that is markup already."""


def _join(parts: Iterable[str | None], between: str = "") -> _Html:
    return _Html(between.join(p if isinstance(p, _Html) else html.escape(p) for p in parts if p is not None))


def _el(name: str, /, *inside: str | None, **attributes: object) -> _Html:
    """An element. ``class_`` is the attribute class, ``data_v`` is data-v; None and False leave an attribute out."""
    opening = name
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        opening += " " + key.rstrip("_").replace("_", "-")
        if value is not True:
            opening += f'="{html.escape(str(value))}"'
    if name in _VOID:
        return _Html(f"<{opening}>")
    return _Html(f"<{opening}>{_join(inside)}</{name}>")


def _count(number: int, one: str = "", many: str | None = None) -> str:
    if not one:
        return f"{number:,}"
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _seconds(number: float | None) -> str:
    return figures.duration(_known(number))


def _bytes(number: float | None) -> str:
    return figures.byte_size(number)


def _operations(number: int | None) -> str:
    if number is None:
        return _UNKNOWN
    text = figures.amount(number)
    return f"{text}FLOP" if " " in text else f"{text} FLOP"


def _percent(share: float | None) -> str:
    if share is None or not math.isfinite(share):
        return _UNKNOWN
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def _known(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    part, whole = _known(part), _known(whole)
    return None if part is None or not whole else part / whole


def _all_of(steps: Iterable[model.Step], figure: Callable[[model.Step], float | None]) -> float | None:
    """The sum of a figure over the steps in which it is known, each as often as it is done; None if in none."""
    known = [value * step.times for step in steps if (value := _known(figure(step))) is not None]
    return sum(known) if known else None


def _moved(steps: Iterable[model.Step]) -> int:
    return sum((step.read + step.written) * step.times for step in steps)


def _roofline(steps: Iterable[model.Step]) -> float | None:
    """The least seconds over the measured ones, of the steps where both are known."""
    both = [s for s in steps if _known(s.seconds) is not None and _known(s.least) is not None]
    return _ratio(_all_of(both, lambda s: s.least), _all_of(both, lambda s: s.seconds))


def _bar(share: float | None, kind: str = "") -> _Html | None:
    if share is None:
        return None
    width = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    return _el("span", _el("span", style=f"width:{width}"), class_=f"bar {kind}".rstrip(), aria_hidden="true")


def _note(text: str | None) -> _Html | None:
    return _el("span", text, class_="sub") if text else None


def _header(text: str, type_: str = "text", class_: str | None = None) -> _Html:
    return _el("th", _el("button", text, type="button", class_="sort"), scope="col", data_type=type_, class_=class_,
               aria_sort="none")


def _table(label: str, headers: Sequence[str], rows: Sequence[str], class_: str) -> _Html:
    """``headers``: cells made by ``_header``, or plain texts. It can be scrolled sideways where it is too wide."""
    cells = [h if isinstance(h, _Html) else _el("th", h, scope="col") for h in headers]
    table = _el("table", _el("caption", label, class_="hidden"), _el("thead", _el("tr", *cells)),
                _el("tbody", *rows), class_=class_)
    return _el("div", table, class_=f"scroll of-{class_}", tabindex=0, role="region", aria_label=label)


def _fold(title: Sequence[str | None], *inside: str | None, **attributes: object) -> _Html:
    return _el("details", _el("summary", *title), *inside, **attributes)


def _section(name: str, title: str, *inside: str | None, class_: str | None = None) -> _Html:
    return _el("section", _el("h2", title, id=f"{name}-title"), *inside, id=name, class_=class_,
               aria_labelledby=f"{name}-title")


def _nothing(text: str) -> _Html:
    return _el("p", text, class_="nothing aside")


def _facts(*pairs: tuple[str, str | None]) -> _Html:
    return _el("dl", *(_el("div", _el("dt", name), _el("dd", value)) for name, value in pairs if value is not None),
               class_="facts aside")


def _tile(name: str, value: str, note: str | None = None, target: str | None = None, tone: str = "") -> _Html:
    inside = (_el("span", name, class_="name"), _el("span", value, class_="value"), _note(note))
    if target is not None:
        return _el("a", *inside, class_=f"tile {tone}".rstrip(), href=target)
    return _el("div", *inside, class_=f"tile {tone}".rstrip())


class _Page:
    """The sections of the page. Regions and steps are numbered from 0, as in ``text``."""

    def __init__(self, report: model.Report) -> None:
        self.report = report
        self.plans = [(f"{r}-{p}", region, plan) for r, region in enumerate(report.regions)
                      for p, plan in enumerate(region.plans)]
        self.steps = [step for _, _, plan in self.plans for step in plan.steps]
        self.anchors: dict[tuple[str, int], str] = {}
        for k, source in enumerate(report.sources, 1):
            for line in source.lines:
                self.anchors.setdefault((source.place.file, line.number), f"line-{k}-{line.number}")
        self.breaks = model.breaks_of(report)

    def place(self, place: model.Place) -> _Html:
        where = f"{place.file.rsplit('/', 1)[-1]}:{place.line}"
        anchor, whole = self.anchors.get((place.file, place.line)), f"{place.file}:{place.line}"
        shown = (_el("a", where, href=f"#{anchor}", title=whole) if anchor is not None
                 else _el("span", where, title=whole))
        return _el("span", shown, " ", _el("span", place.function, class_="function"), class_="place")

    def region_name(self, number: int) -> str:
        return f"region {number}, {self.report.regions[number].name}"

    # Summary

    def summary(self) -> _Html:
        report = self.report
        place = report.place
        meta = [_el("span", f"{place.file}:{place.line} {place.function}", class_="mono")] if place is not None else []
        meta += [_el("span", text) for text in (report.device, report.versions) if text]
        return _el("section", _el("h1", report.title), _el("p", *meta, class_="meta") if meta else None,
                   _el("h2", "Summary", class_="hidden"), self.tiles(), self.advice(), id="summary", class_="aside",
                   aria_label="Summary")

    def tiles(self) -> _Html:
        report, steps = self.report, self.steps
        done = {kind: sum(s.times for s in steps if s.kind == kind) for kind in _STEP_CLASS}
        sources = len({source for _, _, plan in self.plans for _, source in plan.kernels})
        own = done[model.USER_KERNEL]
        guards = [guard for region in report.regions for guard in region.guards]
        checked = sum(guard.watched is False for guard in guards)
        known = any(guard.watched is not None for guard in guards)
        operations = sum(plan.operations for _, _, plan in self.plans)
        graphs = sum(any(p.direction == model.FORWARD and p.operations for p in r.plans) for r in report.regions)
        read = sum(s.read * s.times for s in steps)
        written = sum(s.written * s.times for s in steps)
        tiles = [
            _tile("Regions", _count(len(report.regions)), "parts of the program captured at once", "#plans"),
            _tile("Graphs", _count(graphs),
                  f"{_count(operations, 'operation')}, {_count(len(self.plans), 'plan')}", "#plans"),
            _tile("Graph breaks", _count(len(self.breaks)), "places where a graph ends early", "#breaks",
                  "bad" if self.breaks else "good"),
            _tile("Kernels", _count(done[model.KERNEL]), f"launched by a run, from {_count(sources, 'source')}"
                  + (f"; {own:,} of the program’s own" if own else ""), "#plans"),
            _tile("Library calls", _count(done[model.LIBRARY]), "made by a run, of PyTorch’s operators", "#plans"),
            _tile("Guards", _count(len(guards)), f"{checked:,} checked at each call" if known else
                  "facts that it relies on", "#guards"),
            _tile("Compiling", _seconds(sum(r.seconds for r in report.regions) if report.regions else None),
                  "to capture and compile", "#phases"),
            _tile("Memory moved", _bytes(_moved(steps)), f"{_bytes(read)} read, {_bytes(written)} written", "#plans"),
        ]
        seconds = _all_of(steps, lambda s: s.seconds)
        if report.measured or seconds is not None:
            share = _roofline(steps)
            tiles.append(_tile("Time of a run", _seconds(seconds), "all steps, added up", "#plans"))
            least = _all_of((s for s in steps if _known(s.seconds) is not None), lambda s: s.least)
            tiles.append(_tile("Share of roofline", _percent(share), f"the device allows {_seconds(least)} at best",
                               "#plans"))
        return _el("div", *tiles, class_="tiles", style=f"--columns:{4 if len(tiles) == 8 else 5}")

    def advice(self) -> _Html | None:
        found: list[_Html] = []
        for b, _ in list(self.breaks.values())[:2]:
            found.append(_join((_el("a", "Graph break", href="#breaks"), " at ", self.place(b.place), f": {b.why}")))
        gains = [(gain, key, k, step) for key, _, plan in self.plans for k, step in enumerate(plan.steps)
                 if (gain := self.gain(step)) is not None and gain > 0]
        if gains:
            gain, key, k, step = max(gains, key=lambda g: g[0])
            found.append(_join((_el("a", f"Step {k}, {step.name}", href=f"#step-{key}-{k}"),
                                f" is furthest from what the device allows: each run takes {_seconds(gain)} longer.")))
        apart = [(a.moved, key, a) for key, _, plan in self.plans for a in plan.apart]
        if apart:
            moved, key, a = max(apart, key=lambda found: found[0])
            found.append(_join((_bytes(moved), " go through memory between ", self.step_link(key, a.first), " and ",
                                self.step_link(key, a.second), f", which were not joined: {a.why}")))
        for again in [r for r in self.report.recompiles if r.cure][:1]:
            found.append(_join((_el("a", "Compiled again", href="#recompiles"),
                                f": {again.function}, since {again.differed}")))
        if not found:
            return None
        return _el("div", _el("h3", "Look here first"), _el("ul", *(_el("li", text) for text in found)),
                   class_="advice")

    @staticmethod
    def gain(step: model.Step) -> float | None:
        seconds, least = _known(step.seconds), _known(step.least)
        return None if seconds is None or least is None else (seconds - least) * step.times

    # Source

    def sources(self) -> _Html:
        legend = _el("dl", *(_el("div", _el("dt", _el("span", class_=f"mark {_LINE_CLASS[kind]}", aria_hidden="true"),
                                            word, class_=_LINE_CLASS[kind]), _el("dd", meaning))
                             for kind, word, meaning in _KINDS), class_="legend aside")
        numbered = list(enumerate(self.report.sources, 1))
        own = [(k, s) for k, s in numbered if not s.inlined]
        inlined = [(k, s) for k, s in numbered if s.inlined and not s.library]
        libraries = [(k, s) for k, s in numbered if s.inlined and s.library]
        opened = sum(len(s.lines) for _, s in own) <= 4 * _FOLDED_FROM
        groups = []
        for title, group, open_ in (("Compiled functions", own, opened), ("Functions that they call", inlined, False)):
            if group:
                groups.append(_el("div", _el("h3", title, " ", _el("span", _count(len(group)), class_="badge")),
                                  *(self.source(k, s, open_) for k, s in group), data_group=True))
        if libraries:
            groups.append(_fold((_el("h3", "Functions of libraries that they call ",
                                     _el("span", _count(len(libraries)), class_="badge")),),
                                *(self.source(k, s, False) for k, s in libraries), class_="bare", data_group=True))
        if not groups:
            return _section("source", "Source", _nothing("No source text is known."))
        return _section("source", "Source", legend, *groups)

    def source(self, number: int, source: model.Source, opened: bool) -> _Html:
        operations = sum(line.operations for line in source.lines)
        lines = {kind: sum(line.kind == kind for line in source.lines) for kind, _, _ in _KINDS}
        shares = [_el("span", class_=_LINE_CLASS[kind], style=f"flex:{n}") for kind, n in lines.items() if kind and n]
        said = [_count(operations, "operation")]
        if lines[model.BREAK]:
            said.append(_count(lines[model.BREAK], "line with a break", "lines with a break"))
        if lines[model.EAGER]:
            said.append(_count(lines[model.EAGER], "eager line"))
        title = (_el("span", source.name, class_="title mono"),
                 _el("span", f"{source.place.file}:{source.place.line}", class_="path mono"),
                 _el("span", ", ".join(said), class_="said"),
                 _el("span", *shares, class_="shares", aria_hidden="true") if shares else None)
        rows: list[_Html] = []
        for line in source.lines:
            rows.append(self.line(number, line))
            if line.note:
                rows.append(_el("tr", _el("td", colspan=2), _el("td", line.note, colspan=3), class_="note"))
        headers = ("Line", "Kind", "Code", "Regions", "Operations")
        return _fold(title, _table(f"Source of {source.name}", headers, rows, "code"), class_="card source",
                     data_item=True, open=opened)

    def line(self, number: int, line: model.Line) -> _Html:
        word = _LINE_WORD.get(line.kind, line.kind)
        regions = ", ".join(map(str, line.regions))
        return _el("tr", _el("td", str(line.number), class_="number"),
                   _el("td", _el("span", word, class_="hidden"), class_="mark", title=word),
                   _el("td", _el("code", line.text)),
                   _el("td", regions, class_="regions", title=f"region {regions}" if regions else None),
                   _el("td", _count(line.operations, "op") if line.operations else "", class_="operations"),
                   class_=_LINE_CLASS.get(line.kind, "unreached"), id=f"line-{number}-{line.number}")

    # Graph breaks

    def graph_breaks(self) -> _Html:
        cards = [self.graph_break(b, regions) for b, regions in self.breaks.values()]
        if not cards:
            return _section("breaks", "Graph breaks",
                            _nothing("There are none: each function is in one graph from its start to its end."))
        return _section("breaks", "Graph breaks", *cards)

    def graph_break(self, b: model.Break, regions: Sequence[int]) -> _Html:
        whole = _el("p", "The whole function runs in eager, from its first line.", class_="whole") if b.whole else None
        hint = _el("p", _el("strong", "What to do: "), b.hint, class_="hint") if b.hint else None
        meta = [_el("span", b.kind, class_="badge break"), _el("span", f"id {b.id}", class_="mono"),
                _el("span", "in " + ", ".join(self.region_name(r) for r in regions))]
        called = None if b.user is None else _el("p", "Called from ", self.place(b.user))
        return _el("article", _el("h3", self.place(b.place)), called, _el("p", b.why, class_="why"),
                   _el("p", "That is: ", b.meaning, class_="why") if b.meaning else None, whole, hint,
                   _el("p", *meta, class_="meta"), class_="card trouble", data_item=True)

    # Plans

    def all_plans(self) -> _Html:
        if not self.report.regions:
            return _section("plans", "Plans", _nothing("Nothing was captured, so there is nothing to run."))
        intro = _el("p", "What runs in the place of the program, step by step. Click a heading to sort by it, and a "
                    "step to unfold its source. “Least” is the time that the device’s memory and arithmetic allow "
                    "at best; the roofline’s share is that over the time measured.", class_="intro aside")
        return _section("plans", "Plans", intro,
                        *(self.region(r, region) for r, region in enumerate(self.report.regions)))

    def region(self, number: int, region: model.Region) -> _Html:
        facts = _facts(("Place", self.place(region.place)), ("Captured and compiled in", _seconds(region.seconds)),
                       ("Python instructions followed", _count(region.instructions)),
                       ("Guards", _count(len(region.guards))),
                       ("Graph breaks", _count(len(region.breaks))))
        unnamed = None
        if region.unnamed:
            unnamed = _fold((f"Not kept on disk: {_count(len(region.unnamed), 'thing')} that no other process could "
                             "find by name",), _el("ul", *(_el("li", text) for text in region.unnamed)),
                            class_="plain aside")
        plans = [self.plan(f"{number}-{p}", region, plan) for p, plan in enumerate(region.plans)]
        if not plans:
            plans = [_nothing("No plan: there is nothing here for a graph to do.")]
        return _el("div", _el("h3", f"Region {number} ", _el("span", region.name, class_="mono")), facts, unnamed,
                   *plans, class_="region", id=f"region-{number}", data_group=True)

    def plan(self, key: str, region: model.Region, plan: model.PlanReport) -> _Html:
        steps = plan.steps
        seconds, share = _all_of(steps, lambda s: s.seconds), _roofline(steps)
        devices = list(dict.fromkeys(s.device for s in steps))
        said = [_count(len(steps), "step"), f"{_count(plan.operations, 'operation')} of the graph",
                f"{_bytes(_moved(steps))} moved"]
        if seconds is not None:
            said.append(_seconds(seconds))
        if share is not None:
            said.append(f"{_percent(share)} of the roofline")
        if len(devices) == 1:
            said.append(f"on {devices[0]}")
        title = (_el("h4", plan.direction.capitalize(), id=f"plan-{key}-title"),
                 _el("span", ", ".join(said), class_="said"))
        inside = (
            self.strip(key, plan), self.step_table(key, plan, len(devices) > 1), self.apart(key, plan),
            self.memory(plan),
            self.listing("Kernel sources", f"kernel-{key}", plan.kernels, plan.steps),
            self.listing("Loops that the kernels are made from", f"loop-{key}", plan.loops, plan.steps),
            self.texts(("The graph, as Python", plan.graph), ("What the runtime does, line by line", plan.text)),
        )
        opened = len(self.steps) <= _FOLDED_FROM or key == "0-0"
        return _fold(title, *inside, class_="card plan", id=f"plan-{key}", open=opened, data_group=True)

    @staticmethod
    def listing(title: str, key: str, texts: Sequence[tuple[str, str]], steps: Sequence[model.Step]) -> _Html | None:
        if not texts:
            return None
        users: dict[str, dict[str, None]] = {}  # of each text, the names of the steps that are made from it
        for step in steps:
            users.setdefault(step.source, {})[step.name] = None
        folds = [_fold((_el("span", ", ".join(users.get(name, (name,))), class_="mono"),),
                       _el("pre", _el("code", text)), class_="plain", id=f"{key}-{k}", data_item=True)
                 for k, (name, text) in enumerate(texts, 1)]
        return _el("div", _el("h5", title, class_="aside"), *folds, class_="block kernels", data_group=True)

    @staticmethod
    def texts(*titled: tuple[str, str]) -> _Html | None:
        folds = [_fold((title,), _el("pre", _el("code", text)), class_="plain") for title, text in titled if text]
        return _el("div", *folds, class_="block aside") if folds else None

    def strip(self, key: str, plan: model.PlanReport) -> _Html | None:
        """How the time, or else the memory moved, is divided among the steps."""
        measured = any(_known(s.seconds) is not None for s in plan.steps)
        values = [(_known(s.seconds) or 0.0) * s.times if measured else (s.read + s.written) * s.times
                  for s in plan.steps]
        total = sum(values)
        if total <= 0:
            return None
        shown: Callable[[float], str] = _seconds if measured else _bytes
        rects, left = [], 0.0
        for k, (step, value) in enumerate(zip(plan.steps, values)):
            width = 1000 * value / total
            if width > 0:
                title = _el("title", f"Step {k}, {step.name}: {shown(value)}, {_percent(value / total)}")
                rects.append(_el("rect", title, x=f"{left:.2f}", y=0, width=f"{width:.2f}", height=10,
                                 class_=f"{_STEP_CLASS.get(step.kind, 'user')}{' odd' if k % 2 else ''}",
                                 data_go=f"step-{key}-{k}"))
            left += width
        top = sorted(range(len(values)), key=lambda i: -values[i])[:5]
        largest = _el("ol", *(_el("li", _el("a", _el("span", f"{i} ", class_="nr"), plan.steps[i].name,
                                            href=f"#step-{key}-{i}"),
                                  _el("span", f"{shown(values[i])}, {_percent(values[i] / total)}", class_="figure"),
                                  _note(self.could_save(plan.steps[i])))
                              for i in top if values[i] > 0), class_="largest")
        kinds = [k for k in _STEP_CLASS if any(s.kind == k for s in plan.steps)]
        legend = _el("p", *(_el("span", _el("span", class_=f"dot {_STEP_CLASS[kind]}", aria_hidden="true"), kind)
                            for kind in kinds), class_="keys")
        name = "Time by step" if measured else "Memory moved by step (times were not measured)"
        picture = _el("svg", *rects, viewBox="0 0 1000 10", preserveAspectRatio="none", class_="strip", role="img",
                      aria_label=f"{name}: {shown(total)} in all, in the order of the steps")
        return _el("div", _el("div", _el("h5", name), legend, class_="head"), picture, largest, class_="block aside")

    def could_save(self, step: model.Step) -> str | None:
        gain = self.gain(step)
        return f"{_seconds(gain)} above the least" if gain is not None and gain > 0 else None

    def step_table(self, key: str, plan: model.PlanReport, say_device: bool) -> _Html:
        steps = plan.steps
        if not steps:
            return _nothing("It has no steps.")
        timed = any(_known(s.seconds) is not None for s in steps)
        least = any(_known(s.least) is not None for s in steps)
        headers = [_header("#", "number", "nr"), _header("Kind", class_="kind"), _header("Name", class_="name"),
                   _header("Computes", class_="computes"), _header("Where", class_="where"),
                   _header("Space", class_="space"), _header("Memory", "number", "figure"),
                   _header("Arithmetic", "number", "figure")]
        if timed:
            headers.append(_header("Time", "number", "figure"))
        if least:
            headers.append(_header("Least", "number", "figure"))
        if timed and least:
            headers.append(_header("Roofline", "number", "figure"))
        longest = max((_known(s.seconds) or 0.0) * s.times for s in steps)
        most = max((s.read + s.written) * s.times for s in steps)
        kernels: dict[str, int] = {}
        for k, (name, _) in enumerate(plan.kernels, 1):
            kernels.setdefault(name, k)
        rows = []
        for k, step in enumerate(steps):
            found = kernels.get(step.source)
            cells = self.step_cells(k, step, f"kernel-{key}-{found}" if found is not None else None, say_device)
            moved = (step.read + step.written) * step.times
            cells.append(self.figure(moved, _bytes(moved), _bar(_ratio(moved, most)) if not timed else None,
                                     _note(f"{_bytes(step.read * step.times)} read"),
                                     _note(f"{_bytes(step.written * step.times)} written")))
            cells.append(self.figure(step.operations * step.times, _operations(step.operations * step.times)))
            seconds, allowed = _known(step.seconds), _known(step.least)
            times = step.times
            if timed:
                once = f"{times:,} × {_seconds(seconds)}" if seconds is not None and times != 1 else None
                whole = None if seconds is None else seconds * times
                cells.append(self.figure(whole, _seconds(whole), _bar(_ratio(whole, longest), "time"), _note(once)))
            if least:
                whole = None if allowed is None else allowed * times
                cells.append(self.figure(whole, _seconds(whole)))
            if timed and least:
                share = _ratio(allowed, seconds)
                cells.append(self.figure(share, _percent(share), _bar(share, "share")))
            rows.append(_el("tr", *cells, id=f"step-{key}-{k}", data_item=True, data_n=k))
        label = f"Steps of plan {key}, {plan.direction}"
        return _el("div", _table(label, headers, rows, "steps"), class_="block flush",
                   data_group=True)

    @staticmethod
    def figure(value: float | None, text: str, *more: str | None) -> _Html:
        return _el("td", _el("span", text, class_="figure"), *more, class_="figure",
                   data_v="" if value is None else value)

    def step_cells(self, number: int, step: model.Step, kernel: str | None, say_device: bool) -> list[_Html]:
        name = _el("button", step.name, type="button", class_="unfold mono", aria_expanded="false", data_kernel=kernel,
                   aria_label=f"Step {number}, {step.name}: " + ("show its source" if kernel else "show all of it"))
        times = _el("span", f"× {step.times:,}", class_="badge", title="how often a run does it") \
            if step.times != 1 else None
        return [
            _el("td", str(number), class_="nr", data_v=number),
            _el("td", _el("span", step.kind, class_=f"badge {_STEP_CLASS.get(step.kind, 'user')}")),
            _el("td", name, times, _note(step.why), _note(step.function and f"in the binary: {step.function}"),
                _note(f"on {step.device}" if say_device else None),
                data_v=step.name),
            _el("td", _el("div", ", ".join(step.computes) or _UNKNOWN, class_="clamp mono")),
            _el("td", _el("div", *(self.place(p) for p in step.places), class_="clamp places mono")
                if step.places else _UNKNOWN),
            _el("td", _el("span", step.space or _UNKNOWN, class_="mono")),
        ]

    def step_link(self, key: str, index: int) -> _Html:
        plan = next(plan for found, _, plan in self.plans if found == key)
        if not 0 <= index < len(plan.steps):
            return _el("span", f"step {index}")
        return _el("a", f"step {index}, ", _el("span", plan.steps[index].name, class_="mono"),
                   href=f"#step-{key}-{index}")

    def apart(self, key: str, plan: model.PlanReport) -> _Html | None:
        if not plan.apart:
            return None
        rows = [_el("tr", _el("td", self.step_link(key, a.first), " and ", self.step_link(key, a.second)),
                    _el("td", a.why), self.figure(a.moved, _bytes(a.moved)), data_item=True, data_n=k)
                for k, a in enumerate(sorted(plan.apart, key=lambda a: -a.moved), 1)]
        headers = ("Steps", "Why they stay apart", _header("Memory", "number", "figure"))
        return _el("div", _el("h5", "What was not joined ", _el("span", _count(len(rows)), class_="badge")),
                   _el("p", "Kernels that share data and yet were not made one. The data goes through memory between "
                       "them.", class_="intro aside"),
                   _table(f"What was not joined in plan {key}", headers, rows, "apart"), class_="block",
                   data_group=True)

    def memory(self, plan: model.PlanReport) -> _Html:
        m = plan.memory
        return _el("div", _el("h5", "Memory"), self.live(m.live) if m.live else None,
                   _facts(("Inputs", _bytes(m.inputs)), ("Results", _bytes(m.results)),
                          ("of these, kept for the backward", _bytes(m.saved)),
                          ("Working memory", _bytes(m.temporary))), self.returned(m), class_="block aside")

    def returned(self, m: model.Memory) -> _Html | None:
        """Where something is kept for the backward: what that and the results are."""
        if not m.saved:
            return None
        rows = [_el("tr", _el("td", r.computes, class_="mono"), _el("td", r.dtype, class_="mono"),
                    self.figure(r.count, str(r.count)), self.figure(r.size, _bytes(r.size)),
                    _el("td", self.place(r.place) if r.place is not None else None)) for r in m.returned]
        headers = (_header("Operation"), _header("Dtype"), _header("Tensors", "number", "figure"),
                   _header("Memory", "number", "figure"), _header("Where"))
        return _fold((f"Results and what is kept for the backward: of {_count(len(rows), 'operation')}",),
                     _table("Results and what is kept for the backward", headers, rows, "returned"), class_="plain")

    def live(self, live: Sequence[int]) -> _Html:
        """What is in use after each step, as an area."""
        n, peak = len(live), max(live)
        at = live.index(peak)
        wide = 1000 / n
        path, hovers = "M0 100", []
        for i, value in enumerate(live):
            height = 100 - 96 * value / peak if peak > 0 else 100
            path += f"V{height:.2f}H{(i + 1) * wide:.2f}"
            hovers.append(_el("rect", _el("title", f"Step {i}: {_bytes(value)}"), x=f"{i * wide:.2f}", y=0,
                              width=f"{wide:.2f}", height=100, class_="hover"))
        middle = 100 * (at + 0.5) / n
        side = "right" if middle > 60 else "left"
        label = _el("span", f"peak {_bytes(peak)} at step {at}", class_=f"peak {side}",
                    style=f"left:{middle:.2f}%")
        picture = _el("svg", _el("path", d=path + "V100Z", class_="area"), *hovers, viewBox="0 0 1000 100",
                      preserveAspectRatio="none", role="img",
                      aria_label=f"Memory in use beside the inputs: {_bytes(peak)} at most, at step {at}")
        axis = _el("p", _el("span", "step 0"), _el("span", "in use beside the inputs"), _el("span", f"step {n - 1}"),
                   class_="axis", aria_hidden="true")
        return _el("div", _el("div", picture, label, class_="plot"), axis, class_="live")

    # Guards, phases, recompiles

    def guards(self) -> _Html:
        total = sum(len(region.guards) for region in self.report.regions)
        if not total:
            return _section("guards", "Guards", _nothing("The compiled code relies on nothing that could change."))
        intro = _el("p", "What has to be so for the compiled code to be used; if it is not, the function is compiled "
                    "again. A guard that is watched costs nothing at a call: what could change it is noticed when it "
                    "does.", class_="intro aside")
        return _section("guards", "Guards", intro,
                        *(self.guards_of(r, region, total <= _FOLDED_FROM)
                          for r, region in enumerate(self.report.regions) if region.guards))

    def guards_of(self, number: int, region: model.Region, opened: bool) -> _Html:
        watched = {True: "watched", False: "at each call", None: _UNKNOWN}
        tone = {True: "quiet", False: "mono", None: "quiet"}
        rows = [_el("tr", _el("td", _el("code", g.about) if g.about else _el("em", "the state of PyTorch")),
                    _el("td", _el("code", g.fact)), _el("td", watched[g.watched], class_=tone[g.watched]),
                    data_item=True, data_n=k) for k, g in enumerate(region.guards, 1)]
        headers = (_header("About"), _header("What has to be so"), _header("Checked"))
        title = (_el("h3", f"Region {number} ", _el("span", region.name, class_="mono")),
                 _el("span", _count(len(rows), "guard"), class_="said"))
        return _fold(title, _table(f"Guards of region {number}", headers, rows, "guards"), class_="card",
                     open=opened, data_group=True)

    def phases(self) -> _Html:
        phases = self.report.phases
        if not phases:
            return _section("phases", "Compile time", _nothing("The time of each stage is not known."))
        total = sum(_known(seconds) or 0.0 for _, seconds in phases)
        longest = max(_known(seconds) or 0.0 for _, seconds in phases)
        rows = [_el("tr", _el("th", name, scope="row"),
                    _el("td", _bar(_ratio(seconds, longest), "time"), class_="wide"),
                    self.figure(_known(seconds), _seconds(seconds)),
                    _el("td", _percent(_ratio(seconds, total)), class_="figure"), data_item=True, data_n=k)
                for k, (name, seconds) in enumerate(phases, 1)]
        table = _table("Compile time by stage", ("Stage", "Time as a bar", "Time", "Share"), rows, "phases")
        return _section("phases", "Compile time",
                        _el("p", f"{_seconds(total)} in all, each stage without those inside it.",
                            class_="intro aside"), _el("div", table, class_="card padded"))

    def recompiles(self) -> _Html:
        held = [_el("tr", _el("td", e.function, class_="mono"), _el("td", str(e.number)),
                    self.figure(e.calls, f"{e.calls:,}"),
                    _el("td", _UNKNOWN if e.differs is None else _el("code", e.differs) if e.differs
                        else "nothing: it would serve this call"), data_item=True, data_n=k)
                for k, e in enumerate(self.report.entries, 1)]
        entries = _join((_el("p", "What calls before this one have compiled, and what differs from it in this call.",
                             class_="intro aside"),
                         _el("div", _table("Entries", ("Function", "Entry", "Calls served", "What differs"), held,
                                           "entries"), class_="card padded"))) if held else None
        rows = [_el("tr", _el("td", r.function, class_="mono"), _el("td", str(r.number)),
                    _el("td", _el("code", r.differed) if r.differed else _UNKNOWN),
                    _el("td", _el("code", r.cure) if r.cure else _UNKNOWN), data_item=True, data_n=k)
                for k, r in enumerate(self.report.recompiles, 1)]
        if not rows:
            return _section("recompiles", "Recompiles", entries, _nothing("No function was compiled more than once."))
        headers = ("Function", "Entry", "What differed", "What to write to avoid it")
        return _section("recompiles", "Recompiles", entries,
                        _el("p", "Functions that were compiled again, since a guard no longer held.",
                            class_="intro aside"),
                        _el("div", _table("Recompiles", headers, rows, "recompiles"), class_="card padded"))

    # The page around them

    def navigation(self) -> _Html:
        report = self.report
        plans = None
        if 1 < len(self.plans) <= _NAMED_IN_NAVIGATION:
            plans = _el("ul", *(_el("li", _el("a", _el("span", f"{plan.direction.capitalize()}, {region.name}"),
                                              href=f"#plan-{key}")) for key, region, plan in self.plans))
        entries = (
            ("summary", "Summary", None, None), ("source", "Source", len(report.sources), None),
            ("breaks", "Graph breaks", len(self.breaks), None), ("plans", "Plans", len(self.steps), plans),
            ("guards", "Guards", sum(len(region.guards) for region in report.regions), None),
            ("phases", "Compile time", None, None), ("recompiles", "Recompiles", len(report.recompiles), None))
        links = [_el("li", _el("a", _el("span", title),
                               _el("span", _count(n) if n is not None else "", class_="badge"), href=f"#{name}"), more)
                 for name, title, n, more in entries]
        return _el("nav", _el("ul", *links), aria_label="Sections")

    def header(self) -> _Html:
        box = _el("div", _el("input", type="search", id="search", placeholder="Search all", autocomplete="off",
                             spellcheck="false", aria_label="Search steps, source, guards and all else",
                             aria_describedby="matches"), _el("kbd", "/", aria_hidden="true"), class_="search")
        button = _el("button", "Dark", type="button", id="theme", aria_label="Switch between light and dark")
        return _el("header", _el("div", _el("span", "jit report", class_="brand"), button, class_="top"), box,
                   _el("p", id="matches", role="status", aria_live="polite"), self.navigation())

    def whole(self) -> _Html:
        here = Path(__file__).parent
        style, script = (_Html((here / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
        head = _el("head", _el("meta", charset="utf-8"),
                   _el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
                   _el("meta", name="viewport", content="width=device-width, initial-scale=1"),
                   _el("title", f"{self.report.title} – jit report"), _el("link", rel="icon", href="data:,"),
                   _el("style", style))
        main = _el("main", self.summary(), self.sources(), self.graph_breaks(), self.all_plans(), self.guards(),
                   self.phases(), self.recompiles(),
                   _el("p", "Nothing on the page matches.", id="nothing", hidden=True), id="content", tabindex=-1)
        body = _el("body", _el("a", "Skip to the report", href="#content", class_="skip"), self.header(), main,
                   _el("script", script))
        return _Html("<!DOCTYPE html>\n" + _el("html", head, body, lang="en") + "\n")


def page(report: model.Report) -> str:
    """The page, as text to be written to a file in UTF-8."""
    return str(_Page(report).whole())
