"""The check of the C++ compiler: what it finds wrong is told, whatever else is; what has another form is a quirk, which
the emitter asks for."""

import dataclasses
import json
import platform

import pytest
import torch

from jit.codegen import loops, toolchain
from jit.codegen.cpp import compile_cpp, compiler_check, emit
from jit.errors import CompileError


def _indirect():
    b = loops.KernelBuilder()
    i = b.axis(100)
    table, x, y, flag = (b.buffer(torch.float32), b.buffer(torch.int64), b.buffer(torch.float32, "out"),
                         b.buffer(torch.int32, "error"))
    b.store(y, i, b.load(table, b.position(b.load(x, i), 8, flag, 1) * 1))
    return b.finish("k")


def test_this_compiler_can_be_used():
    assert compiler_check.quirks() <= compiler_check.QUIRKS.keys() and compiler_check.report()


def test_wrong_results_and_deaths_are_found(monkeypatch):
    """Of a wrong result, a death and a wrong result behind it, and nothing else."""
    good = compiler_check.probes()[:6]
    wrong = dataclasses.replace(good[1], text="r = 1;")
    dead = dataclasses.replace(good[2], text="r = *(volatile char*)8;")
    tried = [good[0], wrong, good[1], dead, good[3], wrong, good[4]]
    monkeypatch.setattr(compiler_check, "probes", lambda: tried)
    assert compiler_check.failures(toolchain.compiler(), toolchain.flags()) == [1, 3, 5]


@pytest.mark.parametrize("vendor, family, halved", [("AuthenticAMD", "25", True), ("AuthenticAMD", "26", False),
                                                    ("GenuineIntel", "6", False), ("", "", False)])
def test_vectors_of_streaming_kernels(monkeypatch, vendor, family, halved):
    """Half as wide where the processor does the widest in two halves; other kernels have the widest there are."""
    monkeypatch.setattr(toolchain, "cpu_facts", lambda: {"vendor_id": vendor, "cpu family": family})
    monkeypatch.setattr(toolchain, "flags", toolchain.flags.__wrapped__)
    flags = toolchain.flags()
    assert any("width=256" in f for f in flags) is (halved and platform.machine() == "x86_64")
    assert any("width=512" in f for f in flags) is (platform.machine() == "x86_64")
    kernels = []
    for prims in (["neg"], ["exp", "tanh", "erf"]):
        b = loops.KernelBuilder()
        i, r = b.axis(100), b.axis(4096, "r")
        x, y = b.buffer(torch.float32), b.buffer(torch.float32, "out")
        value = b.load(x, i * 4096 + r)
        for prim in prims:
            value = b.compute(prim, value, dtype=torch.float32)
        b.store(y, i, b.reduce("sum", value, torch.float32))
        kernels.append(b.finish(prims[0]))
    cheap, other = (emit([loops.verify(k)]) for k in kernels)
    assert "STREAMS PART" in cheap and "STREAMS PART" not in other


def test_probes_can_fail():
    """Each that compares numbers fails for fast arithmetic where that differs, as a compiler's bug would."""
    tried = compiler_check.probes()
    found = {tried[k].what for k in compiler_check.failures(toolchain.compiler(), (*toolchain.flags(), "-ffast-math"))}
    assert {"isnan of float32 to bool", "maximum of float32", "maximum of float64"} <= found


@pytest.fixture
def findings(monkeypatch, tmp_path):
    """Sets what the check finds."""
    def give(quirks, broken=()):
        monkeypatch.setattr(compiler_check, "_findings", lambda: (quirks, list(broken)))

    return give


def test_a_quirk_changes_what_is_emitted(findings, monkeypatch):
    from jit.codegen import cpp

    monkeypatch.setattr(cpp, "_texts", {})
    findings({})
    plain = emit([_indirect()])
    cpp._texts.clear()
    findings({"bool_offset": ["a load"]})
    careful = emit([_indirect()])
    assert "= hidden(" not in plain and "= hidden(8)" in careful
    assert "vectorised load" in compiler_check.report()


def test_what_has_no_other_form_is_an_error(findings):
    findings({}, ["lt of float32", "mul of int64"])
    with pytest.raises(CompileError, match="wrong code .* lt of float32, mul of int64.*CXX"):
        compiler_check.quirks()
    b = loops.KernelBuilder()
    i, x, y = b.axis(123), b.buffer(torch.float32), b.buffer(torch.float32, "out")
    b.store(y, i, b.compute("mul", b.load(x, i), b.const(0.4321, torch.float32), dtype=torch.float32))
    with pytest.raises(CompileError, match="wrong code"):  # for every kernel, not only those with the loops in question
        compile_cpp([b.finish("k")])


def test_the_result_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler_check, "_folder", lambda: str(tmp_path))
    runs = []
    monkeypatch.setattr(compiler_check, "failures",
                        lambda compiler, flags: runs.append(compiler) or [len(compiler_check.probes()) - 3])
    for _ in range(2):
        compiler_check._findings.cache_clear()
        found = json.loads(json.dumps(compiler_check._findings()))
    compiler_check._findings.cache_clear()
    assert len(list(tmp_path.iterdir())) == 1
    assert len(runs) == 1 and sum(map(len, found[0].values())) + len(found[1]) == 1


def test_a_check_that_cannot_run_uses_every_form(monkeypatch, tmp_path):
    def refuse(compiler, flags):
        raise PermissionError("not here")

    monkeypatch.setattr(compiler_check, "_folder", lambda: str(tmp_path))
    monkeypatch.setattr(compiler_check, "failures", refuse)
    compiler_check._findings.cache_clear()
    assert compiler_check.quirks() == compiler_check.QUIRKS.keys()
    compiler_check._findings.cache_clear()


ROWS = """
import torch, jit

def f(y):
    v = torch.clamp(y, min=1)
    sums = v.cumsum(-1)
    return torch.addcmul(y, sums, v, value=0.5), sums[:, 1:]

for columns in (2, 3, 4, 5, 8, 16):
    for symbolic in (None, True):
        compiled = jit.compile(f, dynamic=symbolic)
        for rows in (3, 5, 1):
            y = torch.randn(columns, rows).t().requires_grad_()
            for got, want in zip(compiled(y), f(y)):
                torch.testing.assert_close(got, want)
"""


@pytest.mark.parametrize("assembler", ["new", "old"])
def test_small_arrays_on_the_stack(python, tmp_path, assembler):
    """Kernels that keep a row of a few floats there, in a process of its own: where the compiler loses the alignment of
    the stack, it ends."""
    program = ROWS if assembler == "new" else ROWS.replace("import torch, jit",
                                                           "import torch, jit\nfrom jit.codegen import toolchain\n"
                                                           "toolchain._accepts = lambda flag: False")
    assert python(program, JIT_CACHE_DIR=str(tmp_path)).returncode == 0
