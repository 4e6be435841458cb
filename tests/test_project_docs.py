"""The Python in README.md and docs/ runs, and the pages, files and names that they speak of are there."""

import ast
import contextlib
import doctest
import itertools
import pathlib
import re
import shlex
import sys

import pytest
import torch

import jit
from jit.__main__ import COMMANDS as COMMANDS_OF_JIT
from jit.__main__ import main as jit_main
from jit.report.show import STAGES

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
         *sorted((ROOT / "docs").glob("*.md"))]
# A block of Python, and what it prints where that is shown below it.
PYTHON = re.compile(r"^```python\n(.*?)^```(?:\n+```output\n(.*?)^```)?", re.M | re.S)


def same(shown: str, printed: str) -> bool:
    """Three dots stand for anything."""
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


@pytest.mark.parametrize("page", [p for p in PAGES if PYTHON.search(p.read_text())], ids=lambda p: p.stem)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    """The blocks of a page, one after the other as a reader would type them. Logs are shown behind what is printed."""
    f = jit.compile(lambda x, y: torch.tanh(x) * y)
    namespace = {"jit": jit, "torch": torch, "f": f, "x": torch.randn(8), "y": torch.randn(8),
                 "model": torch.nn.Linear(4, 4), "__name__": "example"}
    for number, (block, output) in enumerate(PYTHON.findall(page.read_text())):
        file = tmp_path / str(number) / "example.py"
        file.parent.mkdir()
        file.write_text(block)
        monkeypatch.chdir(file.parent)
        try:
            exec(compile(block, str(file), "exec"), namespace)
        finally:
            jit.logs.enable()
        printed = "".join(capsys.readouterr())
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
def test_commands_print_what_is_shown(command, output, tmp_path, programs):
    words = shlex.split(command)
    assert words[0] == "python"
    done = programs.run(*words[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert same(output, done.stdout), done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_api_page_has_every_public_name():
    text = (ROOT / "docs/api.md").read_text()
    overview, reference = text.split("\n::: ", 1)
    assert sorted(re.findall(r"^::: jit\.(\w+)$", "::: " + reference, re.M)) == sorted(jit.__all__)
    # Errors are told of where they are raised.
    for name in set(jit.__all__) - {"CompileError", "Explanation", "JitError", "RecompileError", "Unsupported"}:
        assert f"jit.{name}" in overview, name


def test_every_benchmark_is_told_of():
    text = (ROOT / "docs/comparison.md").read_text()
    for script in (ROOT / "benchmarks").glob("[a-z]*.py"):
        assert f"`{script.name}`" in text, script.name


def _code(text: str) -> list[str]:
    """The lines of a page that are code, but for blocks of Python."""
    blocks = re.findall(r"^```(?!python)[^\n]*\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return lines + re.findall(r"^    (?! )(.+)$", rest, re.M) + re.findall(r"`([^`\n]+)`", rest)


def _commands(text: str) -> list[list[str]]:
    """The commands of a page, as words: without a prompt, variables in front, comments and redirections."""
    found = []
    for line in _code(text):
        line = re.sub(r"\s+2?>.*", "", re.sub(r"\s+#.*", "", line.removeprefix("$ ")))
        if re.match(r"(\w+=\S* )*(make|python) \S", line):
            words = shlex.split(line)
            while re.match(r"\w+=", words[0]):
                words.pop(0)
            found.append(words)
    return found


MAKEFILE = (ROOT / "Makefile").read_text()


def _help_of(command: str, capsys) -> str:
    """What a command of ``python -m jit`` says of its options; those that have none do not ask for help either."""
    if command in ("build", "doctor"):
        return ""
    with contextlib.suppress(SystemExit):
        jit_main([command, "--help"])
    return capsys.readouterr().out


def unknown(words: list[str], capsys) -> str:
    """What of a command there is not; empty where all is there."""
    if words[0] == "make":
        for word in words[1:]:
            name, is_variable, _ = word.partition("=")
            there = rf"^{name} \?=" if is_variable else rf"^{name}:"
            if not re.search(there, MAKEFILE, re.M):
                return f"make {word}"
    elif words[1:3] == ["-m", "jit"]:
        command, given = words[3], words[4:]
        if command not in COMMANDS_OF_JIT:
            return "" if command == "COMMAND" else f"python -m jit {command}"
        if command in ("report", "warm"):  # what follows the script is the script's
            script = next((k for k, word in enumerate(given) if word.lower().endswith((".py", "script"))), len(given))
            given = given[:script]
        text = _help_of(command, capsys)
        for option, value in itertools.zip_longest(given, given[1:], fillvalue=""):
            if re.match("-+[a-z]", option) and not re.search(rf"(^|[\s\[|]){re.escape(option)}\b", text, re.M):
                return f"python -m jit {command} {option}"
            if option == "--stage" and value.islower() and value not in STAGES:
                return f"--stage {value}"
    elif re.match(r"(examples|benchmarks|tools|tests)/", words[1]):
        file = ROOT / words[1]
        if not file.is_file():
            return words[1]
        files = [file, *file.parent.glob("_*.py")]  # where what several scripts share declares their options
        for option in words[2:]:
            if option.startswith("--") and not any(f'"{option.split("=")[0]}"' in f.read_text() for f in files) \
                    and option != "--help":
                return f"{words[1]} {option}"
    elif words[1] == "-m" and words[2].startswith(("tests", "jit")):
        path = ROOT / words[2].replace(".", "/")
        if not (path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()):
            return words[2]
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_are_known(page, capsys):
    for words in _commands(page.read_text()):
        assert not unknown(words, capsys), " ".join(words)


@pytest.mark.parametrize("text, what", [
    ("`make nothing`", "make nothing"), ("    make test NO=1\n", "make NO=1"),
    ("```\n$ A=1 python -m jit nothing\n```\n", "python -m jit nothing"),
    ("`python -m jit report --pdf a.py`", "python -m jit report --pdf"),
    ("`python -m jit show -c x --stage fx`", "--stage fx"),
    ("`python -m jit doctor --all`", "python -m jit doctor --all"),
    ("`python examples/nothing.py`", "examples/nothing.py"),
    ("`python examples/vision.py --modell x`", "examples/vision.py --modell"),
    ("`python -m tests.nothing`", "tests.nothing"),
])
def test_a_command_that_is_not_there_would_be_found(text, what, capsys):
    (words,) = _commands(text)
    assert unknown(words, capsys) == what


def test_commands_are_found():
    found = [words for page in PAGES for words in _commands(page.read_text())]
    assert len(found) > 40
    assert {words[2] for words in found if words[1] == "-m"} >= {"jit"} and ["make", "demo"] in found


def test_the_form_for_faults_asks_for_what_tells_most(capsys):
    text = (ROOT / ".github/ISSUE_TEMPLATE/bug_report.yml").read_text()
    form = pytest.importorskip("yaml").safe_load(text)
    fields = {part["id"]: part for part in form["body"]}
    assert "python -m jit doctor" in fields["doctor"]["attributes"]["label"]
    assert "python -m jit report" in fields["report"]["attributes"]["label"]
    found = _commands(text)
    assert len(found) >= 3 and not any(unknown(words, capsys) for words in found)


def test_the_figures_of_the_readme_stand_in_the_docs():
    """With the dates, machines and versions of which they are."""
    table = re.search(r"<!-- figures -->\n(.*?)<!-- /figures -->", (ROOT / "README.md").read_text(), re.S)[1]
    rows = [[cell.strip(" *") for cell in line.split("|")[2:5]] for line in table.splitlines()[2:]]
    assert len(rows) > 5
    docs = "".join((ROOT / "docs" / name).read_text() for name in ("comparison.md", "performance.md"))
    figures = set(re.findall(r"\d+(?:\.\d+)?", docs))
    for row in rows:
        assert {cell for cell in row if cell} <= figures, row
        assert "" in row or any(set(row) <= set(re.findall(r"\d+(?:\.\d+)?", line)) for line in docs.splitlines()), row


def test_variables_are_known():
    options = {f"JIT_{name.upper()}" for name in jit.config.OPTIONS}
    sources = "".join(p.read_text() for room in ("jit", "benchmarks", "tools") for p in (ROOT / room).rglob("*.py"))
    for page in PAGES:
        for name in set(re.findall(r"\bJIT_[A-Z_]*[A-Z]\b", page.read_text())) - options:
            assert re.search(rf"[\"']{name}[\"']", sources), (page.name, name)


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
