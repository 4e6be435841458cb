"""What the site of the documentation has beside docs/: pages of files that lie elsewhere. mkdocs calls it (mkdocs.yml).

CONTRIBUTING.md and CHANGELOG.md stand at the top level, where people look for them, and the examples are scripts; pages
link to them as files, so that the links hold on GitHub and in a checkout too. Here each becomes a page of the site, and
links to it are turned towards that page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
TOP = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)")


def page_of(file: str) -> str | None:
    """The page of a file of the repository, both as paths from where they are rooted; None where it has none."""
    if file in TOP:
        return TOP[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file.startswith("examples/") and file.endswith(".py"):
        return f"source/{file}.md"
    return None


def title_of(path: Path) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", path.read_text(), re.M)
    return found[1] if found else path.stem


def turned(text: str, folder: str) -> str:
    """A page's text with the links of a file in ``folder`` ("" or "docs") made those of a page at the site's top. Links
    whose text is the name of a file get the title of that page."""

    def link(match: re.Match) -> str:
        said, target = match.groups()
        if re.match(r"\w+:", target):
            return match[0]
        path = (ROOT / folder / target).resolve()
        inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
        if Path(said).suffix == ".md" and path.is_file():
            said = title_of(path)
        return f"[{said}]({page_of(inside) or target}"

    return LINK.sub(link, text)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=turned((ROOT / name).read_text(), "")))
    for script in sorted((ROOT / "examples").glob("*.py")):
        name = script.relative_to(ROOT).as_posix()
        content = f"# {name}\n\n```python\n{script.read_text()}```\n"
        # Reached from the pages that speak of it.
        files.append(File.generated(config, f"source/{name}.md", content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn the links of the pages in docs/ that lead out of it."""
    return markdown if page.file.generated_by else turned(markdown, "docs")
