"""Scripts that run a captured graph again: they run, compute what the program computes, take edited kernels, and say
when a kernel is wrong. And ``JIT_DEBUG``, which writes them."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import jit
from jit.report import inputs, rerun

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = """
import torch, jit
import torch.nn.functional as F

@jit.compile
def f(x, w):
    y = F.gelu(torch.softmax(x @ w, -1))
    return y.sum() + torch.relu(x).mean()

for n in {sizes}:
    f(torch.randn(n, 8), torch.randn(8, 16, requires_grad=True)).backward()
"""


def run(path, *arguments, **more):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **more}
    return subprocess.run([sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=300, env=env)


def written(tmp_path, program):
    """The folder of the program's process under JIT_DEBUG."""
    script = tmp_path / "program.py"
    script.write_text(program)
    done = run(script, JIT_DEBUG=str(tmp_path / "debug"), JIT_STRICT="1")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "debug").iterdir()
    assert folder.name.startswith("program-")
    return folder


def test_every_stage_is_written_and_each_graph_runs_again(tmp_path):
    folder = written(tmp_path, PROGRAM.format(sizes=(4, 5)))
    index = (folder / "index.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in index] == ["000_f", "001_f"]
    assert all("1 graph, " in line and "0 breaks" in line for line in index)
    for name in ("000_f", "001_f"):
        there = {str(p.relative_to(folder / name)) for p in (folder / name).rglob("*") if p.is_file()}
        assert {"report.html", "report.txt", "bytecode.txt", "instructions.txt", "guards.txt", "graph0.py",
                "graph0.forward.py", "graph0.backward.py", "graph0.loops.txt", "graph0.plan.txt",
                "graph0.rerun.py"} <= there
        kernels = [p for p in there if p.startswith("graph0.kernels/")]
        assert kernels and all(p.endswith(".cpp") for p in kernels)
        done = run(folder / name / "graph0.rerun.py")
        assert done.returncode == 0, done.stderr
        assert "all as exact as eager" in done.stdout and "not used" not in done.stdout
    assert "original f:" in (folder / "000_f" / "bytecode.txt").read_text()
    assert "rewritten:" in (folder / "000_f" / "bytecode.txt").read_text()
    assert "s0 = " not in (folder / "000_f" / "graph0.py").read_text()
    assert "s0 = " in (folder / "001_f" / "graph0.py").read_text()  # the size is a symbol by then


def test_a_script_compiles_its_python_and_times_it(tmp_path):
    folder = written(tmp_path, PROGRAM.format(sizes=(4,)))
    script = folder / "000_f" / "graph0.rerun.py"
    done = run(script, "--recapture", "--time")
    assert done.returncode == 0, done.stderr
    assert "1 graph, " in done.stdout and "not as exact" not in done.stdout
    assert re.search(r"operation by operation [\d.]+ us, by its kernels [\d.]+ us", done.stdout)


def test_an_edited_kernel_is_what_runs(tmp_path):
    folder = written(tmp_path, PROGRAM.format(sizes=(4,)))
    script = folder / "000_f" / "graph0.rerun.py"
    text = script.read_text()
    edited, count = re.subn(r"exp_f32\((\w+)\)", r"(1.01f * exp_f32(\1) + 0.01f)", text)
    assert count
    script.write_text(edited)
    done = run(script)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not as exact as eager" in done.stdout and "edited: " in done.stdout


def test_a_failed_compilation_is_written_too(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("""
import torch, jit
def backend(graph, examples):
    raise IndexError("no such kernel")
f = jit.compile(lambda x: x * 2, backend=backend)
try:
    f(torch.randn(3))
except Exception as error:
    print("raised", error)
""")
    done = run(script, JIT_DEBUG=str(tmp_path / "debug"), JIT_STRICT="1")
    (folder,) = (tmp_path / "debug").iterdir()
    (compilation,) = (p for p in folder.iterdir() if p.is_dir())
    assert "no such kernel" in (compilation / "error.txt").read_text()
    assert "failed: " in (folder / "index.txt").read_text()
    assert run(compilation / "graph0.rerun.py").returncode == 0  # by kernels of ours it is right
    assert done.returncode == 0


def test_breaks_make_a_compilation_each(tmp_path):
    folder = written(tmp_path, """
import torch, jit
@jit.compile
def f(x):
    y = x * 2
    jit.graph_break()
    return y + 1
f(torch.randn(3))
""")
    index = (folder / "index.txt").read_text().splitlines()
    assert len(index) == 2 and "1 break" in index[0] and "0 breaks" in index[1]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    script = tmp_path / "program.py"
    script.write_text("import torch, jit\nprint(jit.compile(lambda x: x * 2)(torch.ones(2)).tolist())")
    done = run(script, JIT_DEBUG=str(tmp_path / "file"))
    assert done.stdout.strip() == "[2.0, 2.0]"
    assert f"JIT_DEBUG={tmp_path / 'file'}" in done.stderr and "are not written there" in done.stderr


def test_nothing_is_written_without_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(sizes=(4,)))
    assert run(script).returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize("tensor", [
    torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(6, 4)[::2, 1:], torch.randn(4).expand(3, 4),
    torch.empty(0, 3), torch.tensor(2.5), torch.randint(-3, 9, (5,)), torch.tensor([True, False, True]),
    torch.randn(3, dtype=torch.cfloat), torch.randn(4, 4).half(), torch.randn(4, 4).bfloat16(),
    torch.randint(0, 255, (7,), dtype=torch.uint8),
    torch.full((3,), float("nan")), torch.randn(4).to(torch.float8_e4m3fn), torch.randn(2, 3, 4, 4).to(
        memory_format=torch.channels_last)], ids=lambda t: f"{t.dtype}{tuple(t.shape)}".removeprefix("torch."))
def test_an_input_is_made_like_the_one_that_was_there(tensor):
    known = inputs.input_of(tensor)
    again = eval(known.text(), {"Input": inputs.Input, "torch": torch})
    assert again == known
    made = again.make(torch.Generator().manual_seed(0))
    assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    if tensor.numel() and known.low is not None:
        assert made.double().min() >= tensor.double().min() and made.double().max() <= tensor.double().max()
    whole = inputs.input_of(tensor, whole=True).make(torch.Generator())
    assert whole.stride() == tensor.stride()
    kind = torch.uint8 if tensor.dtype == torch.float8_e4m3fn else tensor.dtype
    torch.testing.assert_close(whole.view(kind), tensor.view(kind), equal_nan=True, rtol=0, atol=0)


def test_requires_grad_is_kept():
    made = inputs.input_of(torch.randn(3, requires_grad=True)).make(torch.Generator())
    assert made.requires_grad and made.is_leaf


def test_kernels_of_the_program_are_said_not_to_be_there(tmp_path):
    folder = written(tmp_path, """
import torch, jit
@torch.library.custom_op("rerun_test::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3
@thrice.register_fake
def _(x):
    return torch.empty_like(x)
f = jit.compile(lambda x: thrice(x + 1), fullgraph=True)
f(torch.randn(3))
""")
    (script,) = folder.rglob("*.rerun.py")
    assert "kernels of the program's own (rerun_test::thrice" in script.read_text()


def test_options_are_those_of_the_compilation(tmp_path):
    folder = written(tmp_path, """
import torch, jit
f = jit.compile(lambda x: (x * 1.1 + x).exp(), options={"match_eager_rounding": True})
f(torch.randn(64).half())
""")
    (script,) = folder.rglob("*.rerun.py")
    assert "OPTIONS = {'match_eager_rounding': True}" in script.read_text()
    done = run(script)
    assert done.returncode == 0 and "not used" not in done.stdout, done.stdout + done.stderr


def test_the_text_of_a_script_is_plain_python():
    got = []

    def backend(graph, examples, gradient=None):
        got.append(graph)
        return lambda *given: graph_function(*given)

    def graph_function(x, t):
        return (F.cross_entropy(x, t),)

    jit.compile(lambda x, t: F.cross_entropy(x, t), backend=backend)(torch.randn(8, 4), torch.randint(4, (8,)))
    made = rerun.Rerun("a title", got[0], [inputs.input_of(torch.randn(8, 4)),
                                           inputs.input_of(torch.randint(4, (8,)))], {}, None, note="a 'note'")
    namespace = {"__name__": "script"}
    exec(compile(made.text(), "script", "exec"), namespace)
    x, t = torch.randn(8, 4), torch.randint(4, (8,))
    torch.testing.assert_close(namespace["graph"](x, t)[0], F.cross_entropy(x, t))
