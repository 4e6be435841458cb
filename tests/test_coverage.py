"""The table of operators in docs/performance.md: what it says of some of them is true, and each reason has a row."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import _coverage_reasons as reasons  # noqa: E402

TEXT = (ROOT / "docs/performance.md").read_text()
ALONE = re.search(r"Kernels of ours alone: (.*?)\.\n<!--", TEXT, re.S)[1].replace("\n", " ").split(", ")


def look(name):
    import importlib.util

    spec = importlib.util.spec_from_file_location("coverage_of_operators", ROOT / "benchmarks/coverage.py")
    tool = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool.look(name, tool.operators()[name])


@pytest.mark.parametrize("name", ALONE[::29])
def test_no_library_call_is_left(name):
    found = look(name)
    assert {found.forward, found.backward} <= {"", "nothing", "prim", "composite"}, found


def test_a_library_call_is_seen():
    found = look("linalg.cholesky")
    assert found.forward == "library" and found.calls[0] == ("linalg_cholesky",)
    assert reasons.reason(found.calls[0][0]).startswith("factorisations")


def test_reasons():
    assert reasons.reason("no_such_operator") == reasons.NOT_YET
    assert reasons.reason("fft_fft (vjp)") == reasons.reason("fft_fft") != reasons.NOT_YET
    assert len(ALONE) > 300
    table = TEXT.partition("written by benchmarks/coverage.py")[2].partition("<!-- coverage: end")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table, re.M)[1:]
    assert len(rows) > 10
    for row in rows:
        assert row in (*reasons.REASONS, reasons.NOT_YET) or set(row) == {"-"}, row
