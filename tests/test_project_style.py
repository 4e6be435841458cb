"""What a linter finds in the package: names that nothing defines, imports and variables that nothing uses."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def check(*arguments):
    return subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_linter_finds_nothing():
    found = check("jit", "benchmarks", "examples")
    assert found.returncode == 0, found.stdout + found.stderr


LONGEST = 120


def test_lines_are_short_enough():
    files = [p for room in ("jit", "benchmarks", "examples") for p in sorted((ROOT / room).rglob("*.py"))]
    long = [f"{p.relative_to(ROOT)}:{k}" for p in files for k, line in enumerate(p.read_text().splitlines(), 1) if len(line) > LONGEST]
    assert len(files) > 200 and long == []


def test_the_linter_would_find_something(tmp_path):
    (tmp_path / "unused.py").write_text("import os\n\n\ndef f():\n    return undefined\n")
    found = check("--config", str(ROOT / "pyproject.toml"), str(tmp_path)).stdout
    assert "F401" in found and "F821" in found


BROAD = re.compile(r"except (Exception|BaseException)\b")


def test_broad_excepts_say_what_they_are_for():
    lines = [(f"{p.relative_to(ROOT)}:{k}", line) for p in sorted((ROOT / "jit").rglob("*.py")) for k, line in enumerate(p.read_text().splitlines(), 1)]
    broad = [(where, line) for where, line in lines if BROAD.search(line)]
    assert len(broad) > 10 and [where for where, line in broad if "#" not in line] == []
