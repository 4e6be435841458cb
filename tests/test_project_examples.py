"""The examples run as a reader would run them, and print what their gallery, docs/examples.md, shows."""

import doctest
import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/examples.md").read_text()
GALLERY = dict(re.findall(r"^```console\n\$ (python examples/[^\n]*)\n(.*?)^```", PAGE, re.M | re.S))
COMMANDS = {re.search(r"examples/(\w+)\.py", command)[1]: command for command in GALLERY}
SCRIPTS = sorted(p.stem for p in (ROOT / "examples").glob("[a-z]*.py"))
needs_timm = pytest.mark.skipif(
    not any((Path(folder) / "timm").is_dir() for folder in (*sys.path, Path(sys.prefix) / "extra")),
    reason="timm is not installed")


@functools.cache
def printed(command: str) -> str:
    """What a command prints: to stdout, or where it ends in 2>&1 to stderr too. It has to succeed."""
    words = shlex.split(command)
    together = words[-1] == "2>&1"
    environment = {k: v for k, v in os.environ.items()
                   if k != "COLUMNS" and (not k.startswith("JIT_") or k in ("JIT_CACHE_DIR", "JIT_ENTRY_CACHE"))}
    done = subprocess.run([sys.executable, *words[1:len(words) - together]], cwd=ROOT, text=True, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT if together else subprocess.PIPE,
                          env={**environment, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})
    assert done.returncode == 0, done.stdout + (done.stderr or "")
    return done.stdout


def of(example: str) -> str:
    return printed(COMMANDS[example])


def test_the_gallery_has_every_example():
    assert sorted(COMMANDS) == SCRIPTS
    for name in SCRIPTS:
        assert f"[`{name}.py`](../examples/{name}.py)" in PAGE, name


@pytest.mark.skipif(torch.cuda.is_available(), reason="the gallery was printed on a CPU")
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_timm) if name == "vision" else name
                                  for name in SCRIPTS])
def test_the_gallery_shows_what_is_printed(name):
    """Three dots stand for anything."""
    shown = GALLERY[COMMANDS[name]]
    assert doctest.OutputChecker().check_output(shown, of(name), doctest.ELLIPSIS), of(name)


def test_quickstart():
    out = of("quickstart")
    assert "same as eager" in out and "graphs compiled: 1" in out
    assert re.search(r"1 graphs?, 0 breaks, [1-9]\d* operations, 1 kernels?",
                     out) and "tanh" in out.split("--- kernel")[1]


def test_guards_and_recompiles():
    out = of("guards_and_recompiles")
    verdict = dict(line.rsplit(": ", 1) for line in out.splitlines() if not line.startswith("[jit:"))
    assert list(verdict.values()) == ["compiled", "served by an existing entry", "compiled", "compiled", "compiled",
                                      "served by an existing entry", "compiled", "served by an existing entry"]
    assert "[jit:guards]" in out and "[jit:recompiles]" in out


def test_graph_breaks():
    out = of("graph_breaks")
    assert "[jit:graph_breaks]" in out and "graph_breaks.py:" in out
    assert "fullgraph=True says:" in out and "one graph" in out


@pytest.mark.parametrize("name", ["matmul_softmax", "transformer", pytest.param("vision", marks=needs_timm)])
def test_comparisons(name):
    assert re.search(r"^jit .* ok$", of(name), re.MULTILINE)


def test_another_model():
    out = printed("python examples/transformer.py --model gpt2 --length 16 --compilers eager,jit --seconds 0.1")
    assert re.search(r"^jit .* ok$", out, re.MULTILINE)


def test_training():
    assert "one curve" in of("training")


def test_training_step():
    out = of("training_step")
    assert "one curve" in out
    kernels, library = ([int(n) for n in re.search(rf"^ *{row} +(\d+) +(\d+)$", out, re.MULTILINE).groups()]
                        for row in ("kernels", "library"))
    assert kernels[0] == 0 < kernels[1]
    # On a GPU eager's optimizer changes all parameters at once.
    assert torch.cuda.is_available() or sum(kernels[1:] + library[1:]) < library[0]


def test_custom_pass():
    out = of("custom_pass")
    assert ("calls of the operator: 1" in out and "[jit:passes] rms_norm" in out
            and "custom_pass_example.rms_norm" in out)
    assert re.search(r"\[jit:passes\] cheaper_gelu \(\w+\): [1-9]", out)
    difference, of_gradient = (
        (float(v) for v in re.search(r"rewritten by hand: (\S+), of its gradient (\S+)", out).groups()))
    assert difference < 1e-5 and of_gradient < 1e-2
