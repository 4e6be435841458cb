"""The measuring code of the examples and benchmarks: what it calls right, wrong and failed, and that it times what it
says."""

import importlib.util
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def shared(monkeypatch, tmp_path):
    """examples/_compare.py and benchmarks/_harness.py, imported for one test."""
    for name in ("JIT_BENCH_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), str(ROOT / "benchmarks"), *sys.path])
    yield importlib.import_module("_compare"), importlib.import_module("_harness")
    for name in ("_compare", "_harness"):
        sys.modules.pop(name, None)


def test_difference(shared):
    compare, _ = shared
    x = torch.tensor([3.0, 4.0])
    assert compare.difference(x, x.clone()) == (0.0, 0.0)
    largest, relative = compare.difference(x + torch.tensor([0.0, 0.5]), x)
    assert largest == 0.5 and relative == pytest.approx(0.1)
    assert compare.difference({"a": x, "b": [x, None]}, {"a": x, "b": [x, None]}) == (0.0, 0.0)
    inf = (float("inf"), float("inf"))
    assert compare.difference(x, x.double()) == inf
    assert compare.difference(x[:1], x) == inf
    assert compare.difference((x,), (x, x)) == inf
    assert compare.difference(x * float("nan"), x) == inf


def test_a_wrong_or_failing_compiler_is_reported(shared, monkeypatch, capsys):
    compare, _ = shared

    def pretend(compiler, program, **options):
        if compiler == "torch.compile":
            raise RuntimeError("no backend\nmore")
        return program if compiler == "eager" else lambda *a: program(*a) * 1.5

    monkeypatch.setattr(compare, "compiled", pretend)
    rows = compare.compare(torch.sin, torch.randn(8), seconds=0.02)
    assert [r.compiler for r in rows] == ["eager", "torch.compile", "jit"]
    assert rows[1].error == "RuntimeError: no backend" and not rows[1].ok(1.0)
    assert rows[2].relative_error == pytest.approx(0.5) and not rows[2].ok(1e-3)
    assert compare.report("title", rows) is False
    out = capsys.readouterr().out
    assert "DIFFERS" in out and "torch.compile failed: RuntimeError: no backend" in out


def test_eagers_own_error_is_raised(shared):
    with pytest.raises(TypeError):
        shared[0].compare(torch.sin, "not a tensor", compilers=("eager",), seconds=0.01)


def test_times_are_per_call(shared):
    compare, harness = shared
    row = compare.compare(lambda: time.sleep(0.005), compilers=("eager",), seconds=0.05)[0]
    assert 5.0 <= row.min_ms < 25
    assert 0.005 <= harness.interleaved({"x": lambda: time.sleep(0.005)}, "cpu", 0.05)["x"] < 0.025


def test_compiler_names(shared):
    compare, harness = shared
    with pytest.raises(ValueError, match="no compiler 'tvm'; there are: eager, torch.compile, jit"):
        compare.compiled("tvm", torch.sin)
    arguments = harness.parser("doc").parse_args(["--compilers", "eager,jit:fastest"])
    with pytest.raises(SystemExit, match="no compiler 'jit:fastest'"):
        harness.start(arguments)


def test_geomean_and_table(shared):
    compare, harness = shared
    assert harness.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert harness.geomean([]) != harness.geomean([])
    assert compare.table(["", "ms"], [["a", 1], ["long name", 22]]).splitlines() == [
        "           ms", "-" * 13, "a           1", "long name  22"]


def test_subprocess_result(shared, tmp_path):
    _, harness = shared
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint('noise')\n"
                      "print('RESULT {\"x\": %s}' % sys.argv[1])\nassert os.environ['JIT_BENCH_CACHE']\n")
    assert harness.in_subprocess(str(script), ["3"], 60) == {"x": 3}
    script.write_text("raise ValueError('broken')")
    assert harness.in_subprocess(str(script), [], 60) == {"error": "ValueError: broken"}
    script.write_text("import time; time.sleep(60)")
    assert harness.in_subprocess(str(script), [], 1) == {"error": "no result after 1 s"}


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_timm_imports_beside_any_torch(python):
    """torchvision's compiled part may not load here; its import has to work all the same."""
    script = """
import sys
sys.path.insert(0, "examples")
from _compare import import_timm
import torch
timm = import_timm()
with torch.no_grad():
    print(tuple(timm.create_model("test_vit", pretrained=False).eval()(torch.zeros(1, 3, 160, 160)).shape))
"""
    assert python(script).stdout.strip() == "(1, 1000)"


def test_rows_that_have_become_slower(shared, tmp_path):
    expected, table = importlib.import_module("_expected"), tmp_path / "table.json"
    expected.update({"sum": 0.9, "sort": 0.2, "gone": 0.5}, "a device", "float16", table)
    expected.update({"sum": 0.8}, "a device", "float16", table)
    assert expected.slower({"sum": 0.7, "sort": 0.2, "new": 0.01}, "a device", "float16", table) == []
    assert [line.split(":")[0] for line in expected.slower({"sum": 0.6, "sort": 0.16}, "a device", "float16", table)] \
        == ["sum", "sort"]
    with pytest.raises(KeyError):
        expected.slower({}, "another device", "float16", table)
