"""What a linter finds: names that nothing defines, imports and variables that nothing uses; and lines that are long."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("jit", "benchmarks", "examples", "tests")
LONGEST = 120


def check(*arguments):
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_linter_finds_nothing():
    found = check(*ROOMS)
    assert found.returncode == 0, found.stdout + found.stderr


def test_lines_are_short_enough():
    files = [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))]
    long = [f"{p.relative_to(ROOT)}:{k}" for p in files
            for k, line in enumerate(p.read_text().splitlines(), 1) if len(line) > LONGEST]
    assert len(files) > 400 and long == []


def test_the_linter_would_find_something(tmp_path):
    (tmp_path / "unused.py").write_text("import os\n\n\ndef f():\n    return undefined\n")
    found = check("--config", str(ROOT / "pyproject.toml"), str(tmp_path)).stdout
    assert "F401" in found and "F821" in found
