"""The page that a report becomes: well formed, escaped, without requests to the outside, with all that it was given."""

import dataclasses
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jit.report import html
from jit.report.model import (BACKWARD, BREAK, CAPTURED, EAGER, FOLLOWED, FORWARD, KERNEL, LIBRARY, USER_KERNEL, Apart,
                              Break, Guard, Line, Memory, Place, PlanReport, Recompile, Region, Report, Results, Source,
                              Step)

VOID = {"meta", "link", "input", "col", "br"}
ATTACK = """</script></style></title></pre><b onclick="x('1')">&amp; "quoted" 'single' <!-- ö – 漢字"""
MIB = 2**20


class Page(HTMLParser):
    """What a browser would make of a page; fails where it would have to guess."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.headings, self.texts, self.attributes = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names))
        self.tags.append((tag, dict(attributes)))
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if "id" in names:
            self.ids.append(dict(attributes)["id"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def text(self):
        return "\n".join(self.texts)

    def of(self, tag):
        return [attributes for found, attributes in self.tags if found == tag]


def step(name="k", kind=KERNEL, **more):
    given = dict(kind=kind, name=name, source=name, computes=("add", "mul"), places=(Place("/p/model.py", 12, "f"),),
                 space="1024 x 768", device="cuda:0", read=3 * MIB, written=MIB, operations=2_500_000)
    return Step(**{**given, **more})


def plan(steps, direction=FORWARD, **more):
    given = dict(direction=direction, graph="def graph(a):\n    return a", operations=7, steps=tuple(steps), apart=(),
                 memory=Memory(5 * MIB, 6 * MIB, 7 * MIB, 8 * MIB, tuple(range(1, len(steps) + 1)),
                               (Results("sort", "int64", Place("/p/model.py", 12, "f"), 3 * MIB, 2),
                                Results("tanh", "float16", None, MIB, 1))),
                 kernels=(("k", "def k(): pass"),), loops=(("k", "loop over rows"),), text="launch k")
    return PlanReport(**{**given, **more})


def region(*plans, **more):
    given = dict(name="Model.forward", place=Place("/p/model.py", 10, "Model.forward"), plans=plans, guards=(),
                 breaks=(), seconds=0.25, instructions=4321)
    return Region(**{**given, **more})


def report(*regions, **more):
    given = dict(title="a report", place=None, regions=regions, sources=(), recompiles=(), phases=(), versions="",
                 device="")
    return Report(**{**given, **more})


def full():
    steps = (step("k", seconds=40e-6, least=10e-6),
             step("aten.mm", LIBRARY, why="a product of this size", seconds=60e-6, least=50e-6, times=3),
             step("own", USER_KERNEL, device="cpu", computes=(), places=(), space="", seconds=None, least=None))
    b = Break("1f0c7a52", "data-dependent-value", "Python reads a value", "keep it in tensors",
              Place("/p/model.py", 13, "Model.forward"), True)
    lines = (Line(10, "def forward(self, x):", FOLLOWED, (0,)), Line(11, "    y = x + 1", CAPTURED, (0,), 17),
             Line(12, "    y = y * 2", CAPTURED, (0, 1), 1), Line(13, "    y.item()", BREAK, note="reads a value"),
             Line(14, "    print(y)", EAGER), Line(15, "    never()"))
    first = region(plan(steps, apart=(Apart(0, 1, "a library call is between", 9 * MIB), Apart(0, 99, "gone", 1))),
                   plan(steps[:1], BACKWARD, memory=Memory(0, 0, 0, 0, (0,))), breaks=(b,),
                   guards=(Guard("self.w", "is the object that it was", True), Guard("x", "float32", False),
                           Guard("", "gradients are recorded")), unnamed=("self.f: a lambda",))
    return report(
        first, region(name="the rest", breaks=(b,)), place=Place("/p/train.py", 3, "step"), measured=True,
        sources=(Source(Place("/p/model.py", 10, "f"), "Model.forward", lines, False),
                 Source(Place("/p/inner.py", 1, "g"), "inner", (Line(1, "def inner(): pass"),), True),
                 Source(Place("/x/site-packages/a.py", 1, "h"), "of a library", (Line(1, "pass"),), True)),
        recompiles=(Recompile("Model.forward", 2, "x has sizes (3,)", "jit.mark_dynamic(x, 0)"),
                    Recompile("Model.forward", 3, "grad is off", "")),
        phases=(("capture", 0.2), ("schedule", 0.05)), versions="torch 2.11.0", device="H200: 4.8 TB/s")


def hostile(value):
    """The same with an attack in each text, but for those that the model gives a meaning."""
    if isinstance(value, Place):
        return Place(value.file + ATTACK, value.line, ATTACK)
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **{f.name: hostile(getattr(value, f.name)) for f in dataclasses.fields(value)
                                             if f.name != "direction"})
    if isinstance(value, tuple):
        return tuple(map(hostile, value))
    return value + ATTACK if isinstance(value, str) else value


def large():
    steps = [step(f"kernel_{k}", seconds=1e-6 * (k + 1), least=1e-6) for k in range(800)]
    kernels = tuple((f"kernel_{k}", f"def kernel_{k}(): pass\n" * 30) for k in range(300))
    return report(region(plan(steps, kernels=kernels, operations=4000),
                         guards=tuple(Guard(f"self.layers[{k}]", "is", k % 2 == 0) for k in range(3000))),
                  measured=True)


def empty():
    return report(title="")


REPORTS = {"full": full, "hostile": lambda: hostile(full()), "large": large, "empty": empty,
           "no plans": lambda: report(region()), "no steps": lambda: report(region(plan(()))),
           "nothing moves": lambda: report(region(plan([step(read=0, written=0, seconds=0.0, least=0.0)]))),
           "not numbers": lambda: report(region(plan([step(seconds=float("nan"), least=float("inf"))], kernels=()),
                                                seconds=float("nan")), phases=(("capture", float("nan")),))}


@pytest.fixture(scope="module", params=REPORTS)
def page(request):
    return html.page(REPORTS[request.param]())


def test_each_element_is_closed_and_ids_are_unique(page):
    found = Page(page)
    assert page.startswith("<!DOCTYPE html>\n") and len(found.ids) == len(set(found.ids))
    assert {t for t in ("html", "head", "title", "body", "main", "nav", "header")} <= {t for t, _ in found.tags}


def test_links_lead_to_something_on_the_page(page):
    found = Page(page)
    targets = [a["href"] for a in found.of("a")] + ["#" + a["data-go"] for a in found.of("rect") if "data-go" in a]
    targets += ["#" + a["data-kernel"] for a in found.of("button") if "data-kernel" in a]
    assert targets and all(t.startswith("#") and t[1:] in found.ids for t in targets)


def test_nothing_is_asked_of_the_outside(page):
    found = Page(page)
    assert not {t for t, _ in found.tags} & {"img", "iframe", "object", "embed", "base", "form", "video", "audio"}
    for tag, name, value in found.attributes:
        assert name not in ("src", "srcset", "action", "poster", "background") and not name.startswith("on")
        assert name != "href" or value.startswith("#") or value == "data:,"
        assert name != "style" or re.fullmatch(r"(width|left):[\d.]+%|flex:\d+|--columns:\d", value)
    assert not re.search(r"https?://|url\(|@import|\ssrc=", page)
    policy = next(a["content"] for a in found.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_headings_are_in_order_and_controls_have_names(page):
    found = Page(page)
    assert found.headings[0] == 1 and found.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(found.headings, found.headings[1:]))
    assert all("scope" in a for a in found.of("th"))
    assert all("aria-label" in a for a in found.of("input"))
    assert all(a.get("type") == "button" for a in found.of("button"))
    assert all("aria-label" in a for a in found.of("svg") if a.get("role") == "img")


def test_hostile_texts_are_only_text():
    text = html.page(hostile(full()))
    found = Page(text)
    assert not found.of("b") and len(found.of("script")) == 1 and len(found.of("style")) == 1
    assert "</script><" not in text.replace("</script></body>", "") and found.text().count(ATTACK) > 40


@pytest.mark.parametrize("name", ["full", "hostile"])
def test_all_texts_of_a_report_appear(name):
    given = REPORTS[name]()
    shown = Page(html.page(given)).text()

    def check(value, field=""):
        if isinstance(value, Place):
            assert value.function in shown and f"{value.file.rsplit('/', 1)[-1]}:{value.line}" in shown
        elif dataclasses.is_dataclass(value):
            for f in dataclasses.fields(value):
                check(getattr(value, f.name), f.name)
        elif isinstance(value, tuple):
            for v in value:
                check(v, field)
        elif isinstance(value, str):
            assert (value.capitalize() if field == "direction" else value) in shown

    plain = [dataclasses.replace(s, place=s.place._replace(function=""), lines=tuple(
        dataclasses.replace(line, kind="") for line in s.lines)) for s in given.sources]
    check(dataclasses.replace(given, sources=tuple(plain)))


def test_figures_are_written_for_people():
    shown = Page(html.page(full())).text()
    for figure in ("4.0 MiB", "3.0 MiB read", "1.0 MiB written", "12.0 MiB", "9.0 MiB read", "2.5 MFLOP", "7.5 MFLOP",
                   "40 us", "180 us", "3 × 60 us", "150 us", "25 %", "83 %", "5.0 MiB", "6.0 MiB", "7.0 MiB",
                   "8.0 MiB", "9.0 MiB", "4,321", "250 ms", "200 ms",
                   "80 %", "17 ops", "1 op", "× 3", "step 99", "2 plans",
                   "–"):
        assert figure in shown, figure


def test_the_summary_counts_what_a_run_does():
    text = html.page(full())
    tiles = re.findall(r'class="name">([^<]*)</span><span class="value">([^<]*)<', text)
    assert dict(tiles) == {"Regions": "2", "Graphs": "1", "Graph breaks": "1", "Kernels": "2", "Library calls": "3",
                           "Guards": "3", "Compiling": "500 ms", "Memory moved": "24.0 MiB",
                           "Time of a run": "260 us", "Share of roofline": "65 %"}


def test_what_was_not_measured_has_no_columns():
    text = html.page(report(region(plan([step(), step(least=1e-6)]))))
    headers = re.findall(r'class="sort">([^<]*)<', text)
    assert "Least" in headers and "Time" not in headers and "Roofline" not in headers
    assert "times were not measured" in text and "Time of a run" not in text


def test_what_is_missing_is_said():
    shown = Page(html.page(empty())).text()
    for said in ("No source text is known", "each function is in one graph", "Nothing was captured",
                 "relies on nothing", "time of each stage is not known", "compiled more than once"):
        assert said in shown
    assert "there is nothing here for a graph to do" in Page(html.page(report(region()))).text()
    assert "It has no steps" in Page(html.page(report(region(plan(()))))).text()


def test_much_is_folded():
    few, many = html.page(full()), html.page(large())
    assert re.search(r'<details class="card" open[^>]*><summary><h3>Region 0', few)
    assert re.search(r'<details class="card" data-group><summary><h3>Region 0', many)
    assert len(many) < 5_000_000


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough(theme):
    style = (Path(html.__file__).parent / "page.css").read_text()
    colours = {name: pair[theme] for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    pairs = [(ink, back) for ink in ("ink", "muted", "accent") for back in ("page", "panel", "sunk", "found")]
    pairs += [(kind, f"{kind}-back") for kind in ("captured", "break")] + [("ink", "eager-back"), ("ink", "break-back")]
    pairs += [(kind, back) for kind in ("captured", "followed", "break", "eager") for back in ("page", "panel")]
    pairs += [("ink", "captured-back"), ("muted", "captured-back"), ("muted", "break-back"), ("muted", "eager-back")]
    for ink, back in pairs:
        a, b = sorted((luminance(colours[ink]), luminance(colours[back])))
        assert (b + 0.05) / (a + 0.05) >= 4.5, (ink, back)


def test_style_and_script_cannot_end_their_element():
    for name in ("page.css", "page.js"):
        assert "</" not in (Path(html.__file__).parent / name).read_text()


def test_the_page_itself_needs_no_torch():
    for name in ("html.py", "model.py", "figures.py"):
        assert not re.search(r"^\s*(import|from) torch", (Path(html.__file__).parent / name).read_text(), re.MULTILINE)


# -- in a browser -----------------------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
USED = """
<script>
window.onerror = (message) => { document.title = "ERROR " + message; };
const of = (s) => document.querySelector(s), count = (s) => [...document.querySelectorAll(s)].filter(
  (e) => e.getClientRects().length > 0).length;
of(".steps .unfold[data-kernel]").click();
const unfolded = of(".steps .detail pre").textContent.length;
const rows = count(".steps tbody tr");
of(".steps th button").click();
document.getElementById("theme").click();
const box = document.getElementById("search");
box.value = "nothing has this text";
box.dispatchEvent(new Event("input", {bubbles: true}));
setTimeout(() => {
  document.title = ["DONE", unfolded, rows, of(".steps th").getAttribute("aria-sort"),
                    document.documentElement.dataset.theme, count(".steps tbody tr"),
                    performance.getEntriesByType("resource").length].join(" ");
}, 1500);
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser(tmp_path):
    """It unfolds, sorts, searches and switches its colours, without an error and without a request."""
    file = tmp_path / "page.html"
    file.write_text(html.page(large()).replace("</body>", USED), encoding="utf-8")
    done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
                           f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom",
                           file.as_uri()], capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title, done.stderr[-2000:]
    state, unfolded, rows, order, theme, left, requests = title[1].split()
    assert state == "DONE" and int(unfolded) > 0 and int(rows) > 0 and order in ("ascending", "descending")
    assert theme in ("dark", "light") and (left, requests) == ("0", "0")
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
