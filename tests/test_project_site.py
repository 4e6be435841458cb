"""The documentation as a site: it is built without a warning, leads everywhere, and asks no other host for anything."""

import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
IMAGES = sorted(DOCS.rglob("*.svg"))

needs_mkdocs = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings"))),
    reason="needs what requirements-docs.txt lists")


class Settings(yaml.SafeLoader):
    """mkdocs.yml calls a function of Python for one setting."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def build(folder: Path, *more: str, settings: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), "-f",
                           str(settings), *more], cwd=ROOT, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search("warning|error", done.stdout + done.stderr, re.I), done.stdout + done.stderr
    return folder


def nav() -> list[str]:
    """The pages that the navigation names, in order."""
    found = []

    def visit(entry):
        if isinstance(entry, str):
            found.append(entry)
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                visit(part)

    visit(yaml.load((ROOT / "mkdocs.yml").read_text(), Settings)["nav"])
    return found


def test_the_navigation_has_every_page():
    pages = nav()
    assert len(pages) == len(set(pages))
    # Those at the top level of the repository become pages when the site is built.
    assert set(pages) == {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")} | {"contributing.md",
                                                                                        "changelog.md"}


@needs_mkdocs
def test_every_page_is_built(site):
    text = (site / "index.html").read_text()
    for page in nav():
        name = page.replace(".md", ".html")
        assert (site / name).is_file() and f'href="{name}"' in text, page


@needs_mkdocs
def test_a_broken_link_would_be_found(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](index.md#nowhere) [c](none.md)\n")
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Settings)
    kept = {name: settings[name] for name in ("site_name", "validation")}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(kept))
    done = build(tmp_path / "site", settings=tmp_path / "mkdocs.yml")
    assert done.returncode == 1 and "#nowhere" in done.stderr and "none.md" in done.stderr, done.stderr


class Requests(HTMLParser):
    """What a browser loads to show a page."""

    LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
              "embed": "src", "object": "data", "link": "href", "image": "href", "use": "href"}

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.found += [given[name] for name in (self.LOADED.get(tag), "srcset") if given.get(name)]


def outside(addresses) -> list[str]:
    return [a for a in addresses if re.match(r"\s*(\w[\w+.-]*:)?//", a)]


@needs_mkdocs
def test_pages_ask_no_other_host(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text()
        assert outside(Requests(text).found) == [], page
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", text), page
    for style in site.rglob("*.css"):
        assert not re.search(r"@import\b|url\(\s*[\"']?(https?:)?//", style.read_text()), style


def test_a_request_would_be_found():
    text = ('<script src="https://a.org/x.js"></script><link href="//a.org/y.css"><a href="https://a.org">a</a>'
            '<img src="b.svg">')
    assert outside(Requests(text).found) == ["https://a.org/x.js", "//a.org/y.css"]


class Paragraphs(HTMLParser):
    """The texts of paragraphs."""

    def __init__(self, text):
        super().__init__()
        self.depth, self.found = 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "p":
            self.depth += 1
            self.found.append("")

    def handle_endtag(self, tag):
        self.depth -= tag == "p"

    def handle_data(self, data):
        if self.depth:
            self.found[-1] += data


@needs_mkdocs
def test_lists_and_tables_are_such(site):
    """Without an empty line before them they are text of the paragraph above, here though not on GitHub."""
    for page in nav():
        text = (site / page.replace(".md", ".html")).read_text().split("<article", 1)[1].split("</article>")[0]
        for paragraph in Paragraphs(text).found:
            assert not re.search(r"^\s*([-*|] |\d+\. |```|:::)", paragraph, re.M), (page, paragraph)


@needs_mkdocs
def test_the_api_is_that_of_a_supported_version(site):
    """jit/__init__.py has two of each; those of jit/uncompiled.py say that nothing is compiled."""
    text = html.unescape(re.sub("<[^>]+>", "", (site / "api.html").read_text()))
    import jit

    names = sorted(set(jit.__all__) - {"config"})
    for name in names:
        first = (getattr(jit, name).__doc__ or "").strip().splitlines()[0].replace("``", "")
        assert first in text, name


@pytest.mark.parametrize("image", IMAGES, ids=lambda p: p.name)
def test_images_are_whole_and_used(image):
    root = xml.etree.ElementTree.parse(image).getroot()
    assert root.get("viewBox") and root.find("{http://www.w3.org/2000/svg}title").text
    assert not re.search(r"https?://(?!www\.w3\.org/)", image.read_text())
    places = [*DOCS.rglob("*.md"), ROOT / "mkdocs.yml"]
    assert any(image.relative_to(DOCS).as_posix() in p.read_text() for p in places)


def luminance(colour: str) -> float:
    parts = [int(colour[k:k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("image", [p for p in IMAGES if p.parent.name == "images"], ids=lambda p: p.name)
def test_texts_of_images_can_be_read_in_light_and_dark(image):
    """They bring their own background, and change it where the reader prefers dark pages."""
    light, dark = re.search(r"<style>(.*?)@media \(prefers-color-scheme: dark\) \{(.*?)</style>", image.read_text(),
                            re.S).groups()
    for style in (light, dark):
        fill = dict(re.findall(r"^\s*\.?([\w-]+) \{[^}]*?fill: (#\w{6})", style, re.M))
        for ink in ("text", "note"):
            for back in ("page", "panel", "kernel", "step", "python", "memory"):
                a, b = sorted((luminance(fill[ink]), luminance(fill[back])))
                assert (b + 0.05) / (a + 0.05) >= 4.5, (ink, back)


# -- in a browser -----------------------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SEARCH = """
<script>
window.onerror = (message) => { document.title = "ERROR " + message; };
addEventListener("load", () => setTimeout(() => {
  const box = document.querySelector("[data-md-component=search-query]");
  box.focus();
  box.value = "bytecode";
  box.dispatchEvent(new Event("keyup", {bubbles: true}));
  const wait = setInterval(() => {
    const found = [...document.querySelectorAll(".md-search-result__link")].map((a) => a.getAttribute("href"));
    if (!found.length) return;
    clearInterval(wait);
    document.title = ["DONE", found.length, performance.getEntriesByType("resource").filter(
      (r) => !r.name.startsWith("file:")).map((r) => r.name), found[0]].join(" ; ");
  }, 100);
}, 500));
</script></body>"""


@needs_mkdocs
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_search_finds_pages_in_files(site, tmp_path):
    """Opened as a file, without a server; nothing is loaded but files."""
    copy = site / "tried.html"
    copy.write_text((site / "index.html").read_text().replace("</body>", SEARCH))
    try:
        done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000",
                               f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom",
                               copy.as_uri()], capture_output=True, text=True, timeout=180)
    finally:
        copy.unlink()
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title and title[1].startswith("DONE"), (title and title[1], done.stderr[-2000:])
    _, count, requests, first = html.unescape(title[1]).split(" ; ")
    assert int(count) > 0 and requests == "" and ".html" in first
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
