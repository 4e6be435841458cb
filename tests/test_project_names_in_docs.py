"""Names that the pages of docs/ use in code font are there: ours; options, channels and commands; and those of
PyTorch's compiler, as its sources have them, without loading it."""

import importlib
import pathlib
import re

import pytest
import torch

import jit
from jit import config, logs
from jit.__main__ import COMMANDS
from jit.commands import _CACHE
from jit.report import show

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TORCH = pathlib.Path(torch.__file__).parent
# Variables that no option has: of the logs, of the benchmarks, and of what is tested.
VARIABLES = {"LOGS", "LOGS_OUT", "BENCH_CACHE"}


def quoted(page):
    return re.findall(r"`([^`\n]+)`", page.read_text())


def reached(name):
    """Whether a dotted name leads to something, from the module ``jit`` on."""
    found, path = jit, "jit"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_our_names(page):
    name_of_ours = re.compile(r"(?<![\w./])jit(?:\.[A-Za-z_]\w*)+\b(?!\.py|/)")
    names = {name for text in quoted(page) for name in name_of_ours.findall(text)}
    assert [name for name in sorted(names) if name != "jit.NAME" and not reached(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_our_variables_options_and_channels(page):
    text = page.read_text()
    variables = set(re.findall(r"\bJIT_([A-Z_]*[A-Z])\b", text)) - VARIABLES
    known = {name.upper() for name in (*config.OPTIONS, *config.ALSO_CALLED)}
    assert variables <= known, variables - known
    for names in re.findall(r"JIT_LOGS=([a-z_,]*[a-z_])", text) + re.findall(r"logs\.enable\(\"([a-z_,]*)\"\)", text):
        for name in filter(None, names.split(",")):
            assert name in ("all", "a", "b", *logs.CHANNELS), name
    for options in re.findall(r"options=\{([^}]*)\}", text):
        for name in re.findall(r"\"(\w+(?:\.\w+)?)\":", options):
            assert name in config.OPTIONS or name in config.ALSO_CALLED or "." in name, name
    for command, rest in re.findall(r"python -m jit ([a-z]+)([^`\n]*)", text):
        assert command in COMMANDS, command
        for stage in re.findall(r"--stage ([a-z]+)", rest):
            assert stage in show.STAGES, stage
        if command == "cache":
            assert rest.split()[0] in _CACHE, rest


def texts(*files):
    return "\n".join((TORCH / file).read_text() for file in files)


def torch_options(folder):
    """The options of a module ``config`` of PyTorch's, told from its source: assignments, in classes too."""
    return set(re.findall(r"^ *([a-z]\w*)\s*(?::[^=\n]+)?(?:=|:)", (TORCH / folder / "config.py").read_text(), re.M))


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="names of another version of PyTorch")
def test_names_of_torch_compile():
    page = (ROOT / "docs" / "torch_compile.md").read_text()
    section = ""
    seen = 0
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) < 3:
            continue
        if re.fullmatch(r"`torch\.[\w.]+\.config`", cells[1]) and len(cells) == 4:
            section = cells[1].strip("`").removeprefix("torch.").removesuffix(".config").replace(".", "/")
        elif cells[1] in ("others", "variable", "TORCH_LOGS"):
            section = cells[1]
        elif section.startswith("_") and cells[1].startswith("`"):
            for name in re.findall(r"`([a-z_.]+)`", cells[1]):
                assert name.split(".")[-1] in torch_options(section), (section, name)
                seen += 1
        elif section == "variable":
            for name in re.findall(r"`(TORCH\w*)", cells[1]):
                where = texts("_dynamo/config.py", "_inductor/config.py", "_functorch/config.py", "compiler/config.py",
                              "_logging/_internal.py", "_dynamo/eval_frame.py", "_inductor/compile_fx.py",
                              "_inductor/runtime/cache_dir_utils.py")
                assert name in where, name
                seen += 1
        elif section == "TORCH_LOGS":
            registered = set(re.findall(r"register_(?:artifact|log)\(\s*\"(\w+)\"",
                                        texts("_logging/_registrations.py")))
            for name in re.findall(r"`\+?([a-z_]+)`", cells[1]):
                assert name in registered, name
                seen += 1
        if line.startswith("## "):
            section = ""
    assert seen > 60
