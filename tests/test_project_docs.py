"""The Python in README.md and docs/ runs, and the pages, files and names that they speak of are there."""

import ast
import doctest
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import torch

import jit

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block of Python, and what it prints where that is shown below it.
PYTHON = re.compile(r"^```python\n(.*?)^```(?:\n+```output\n(.*?)^```)?", re.M | re.S)


def same(shown: str, printed: str) -> bool:
    """Three dots stand for anything."""
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


@pytest.mark.parametrize("page", [p for p in PAGES if PYTHON.search(p.read_text())], ids=lambda p: p.stem)
def test_examples_run(page, tmp_path, capsys):
    """The blocks of a page, one after the other as a reader would type them."""
    f = jit.compile(lambda x, y: torch.tanh(x) * y)
    namespace = {"jit": jit, "torch": torch, "f": f, "x": torch.randn(8), "y": torch.randn(8),
                 "model": torch.nn.Linear(4, 4), "__name__": "example"}
    for number, (block, output) in enumerate(PYTHON.findall(page.read_text())):
        file = tmp_path / str(number) / "example.py"
        file.parent.mkdir()
        file.write_text(block)
        exec(compile(block, str(file), "exec"), namespace)
        printed = capsys.readouterr().out
        assert not output or same(output, printed), f"block {number} prints\n{printed}"


def test_every_output_has_its_block():
    """An output that stands elsewhere would be compared with nothing."""
    for page in PAGES:
        text = page.read_text()
        assert text.count("```output\n") == sum(bool(output) for _, output in PYTHON.findall(text)), page.name


COMMANDS = [pytest.param(command, output, id=f"{page.stem}-{k}") for page in PAGES
            for k, (command, output) in enumerate(re.findall(r"^```console\n\$ ([^\n]*)\n(.*?)^```", page.read_text(),
                                                             re.M | re.S))
            if not command.startswith("python examples/")]  # those of the gallery: test_project_examples.py


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bytecode differs between versions of Python")
@pytest.mark.parametrize("command, output", COMMANDS)
def test_commands_print_what_is_shown(command, output, tmp_path):
    words = shlex.split(command)
    assert words[0] == "python"
    done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert same(output, done.stdout), done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_api_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for name in set(jit.__all__) - {"CompileError", "Explanation", "JitError", "Unsupported", "mark_dynamic"}:
        assert f"jit.{name}" in text, name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_are_there(page):
    for path in re.findall(r"`((?:jit|tests|docs|examples|benchmarks)/[\w./*]+\.\w+)`", page.read_text()):
        assert list(ROOT.glob(path)), path


def _defined(file: pathlib.Path) -> set:
    """The functions, classes and methods of a file, by qualified name."""
    found = set()

    def visit(nodes, prefix):
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(prefix + node.name)
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(file.read_text()).body, "")
    return found


def test_the_walk_of_one_call_names_what_is_there():
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"\| `(jit/[\w/]+\.py)` \| `([\w.]+)` \|", text)
    assert len(rows) > 15
    for file, name in rows:
        assert name in _defined(ROOT / file), (file, name)
