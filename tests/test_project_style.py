"""What a linter finds: names that nothing defines, imports and variables that nothing uses; lines that are too long;
and C++ that is laid out in another way than .clang-format says."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("jit", "benchmarks", "examples", "tests")
LONGEST = 120


def check(*arguments):
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_linter_finds_nothing():
    found = check(*ROOMS)
    assert found.returncode == 0, found.stdout + found.stderr


def types(folder, *arguments):
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), "--no-error-summary", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_mypy_finds_nothing(tmp_path):
    found = types(tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


def test_mypy_would_find_something(tmp_path):
    (tmp_path / "wrong.py").write_text("from jit.graph.dims import hint\n\n\ndef f() -> str:\n    return hint(1)\n")
    found = types(tmp_path, str(tmp_path / "wrong.py")).stdout
    assert "wrong.py:5: error: Incompatible return value type" in found


def test_lines_are_short_enough():
    files = [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))]
    long = [f"{p.relative_to(ROOT)}:{k}" for p in files
            for k, line in enumerate(p.read_text().splitlines(), 1) if len(line) > LONGEST]
    assert len(files) > 400 and long == []


def test_the_linter_would_find_something(tmp_path):
    (tmp_path / "unused.py").write_text("import os\n\n\ndef f():\n    return undefined\n")
    found = check("--config", str(ROOT / "pyproject.toml"), str(tmp_path)).stdout
    assert "F401" in found and "F821" in found


needs_clang_format = pytest.mark.skipif(not importlib.util.find_spec("clang_format"), reason="needs clang-format")


def check_layout(*arguments, **options):
    command = [sys.executable, "-c", "import clang_format; clang_format.clang_format()", "--dry-run", "-Werror"]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, **options)


@needs_clang_format
def test_the_native_sources_are_laid_out_as_the_style_says():
    files = [str(p) for p in sorted((ROOT / "jit" / "runtime" / "native").iterdir()) if p.suffix in (".cpp", ".h")]
    found = check_layout(*files)
    assert len(files) > 30 and found.returncode == 0, found.stderr


@needs_clang_format
def test_another_layout_would_be_found():
    assert check_layout("--assume-filename=jit/a.cpp", input="int  f( ){return 1;}\n").returncode == 1
    assert check_layout("--assume-filename=jit/a.cpp", input="int f() { return 1; }\n").returncode == 0


BROAD = re.compile(r"except (Exception|BaseException)\b")


def test_broad_excepts_say_what_they_are_for():
    lines = [(f"{p.relative_to(ROOT)}:{k}", line) for p in sorted((ROOT / "jit").rglob("*.py"))
             for k, line in enumerate(p.read_text().splitlines(), 1)]
    broad = [(where, line) for where, line in lines if BROAD.search(line)]
    assert len(broad) > 10 and [where for where, line in broad if "#" not in line] == []
