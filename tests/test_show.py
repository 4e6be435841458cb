"""``python -m jit show`` and ``python -m jit report``: what a function becomes, stage by stage."""

import re
from pathlib import Path

import pytest
import torch
from jit.report import show

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def run(programs):
    """``python -m jit`` with these arguments."""
    return lambda *arguments, cwd=None: programs.run("-m", "jit", *arguments, cwd=cwd)


def softmax(x):
    return torch.softmax(x, -1)


EXPECTED = {
    "bytecode": ("LOAD_GLOBAL", "rewritten:", "<jit plan:"), "instructions": ("LOAD_FAST 'x'", "RETURN_VALUE"),
    "graph": ("def graph(x0):", "torch.exp("), "loops": ("reduce_max", "for r0 in 8"),
    "cpp": ("#pragma omp simd", "PART "), "triton": ("@triton.jit", "tl.reduce"), "plan": ("alloc float32 cpu [4, 8]",),
    "guards": ("sizes (4, 8)",),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stage(name):
    text = show.stage(name, softmax, (torch.randn(4, 8),), {})
    assert all(part in text for part in EXPECTED[name]), text


def test_all_stages_are_tested():
    assert {*EXPECTED, "joint"} == set(show.STAGES)


def test_joint():
    text = show.stage("joint", softmax, (torch.randn(4, 8, requires_grad=True),), {})
    assert text.index("# forward") < text.index("# backward") and text.count("def graph(") == 2
    with pytest.raises(show.NothingToShow, match="requires_grad"):
        show.stage("joint", softmax, (torch.randn(4, 8),), {})


def test_a_graph_that_is_shown_runs():
    x = torch.randn(4, 8)
    names: dict = {}
    exec(show.stage("graph", lambda x: torch.tanh(x) @ x.t(), (x,), {}), names)
    torch.testing.assert_close(names["graph"](x)[0], torch.tanh(x) @ x.t())


@pytest.mark.parametrize("name, expected", [("plan", "launch jit_"), ("loops", " on cuda")])
def test_for_a_gpu_that_is_not_there(name, expected):
    assert expected in show.stage(name, softmax, (torch.randn(4, 8),), {}, "cuda")


@pytest.mark.parametrize("program, name", [(lambda x: x, "graph"), (lambda x: x.sort(), "cpp"), (len, "instructions")])
def test_nothing_to_show(program, name):
    with pytest.raises(show.NothingToShow):
        print(show.stage(name, program, (torch.randn(4, 8),), {}))


def test_modules_and_compiled_functions():
    import jit

    module = torch.nn.Linear(3, 3)
    x, names = torch.randn(2, 3), {}
    exec(show.stage("graph", module, (x,), {}), names)
    torch.testing.assert_close(names["graph"](x, module.weight, module.bias)[0], module(x))
    steps = show.stage("instructions", module, (), {})
    assert "LOAD_ATTR 'linear'" in steps and "LOAD_ATTR 'weight'" in steps and "RETURN_VALUE" in steps, steps
    assert "torch.exp(" in show.stage("graph", jit.compile(softmax), (torch.randn(4, 8),), {})


MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def forward(self, x, scale=1.0):
        return torch.tanh(self.layer(x)) * scale

def helper(x):
    return x * 2
"""


def test_the_command(run, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    done = run("show", "model.py:Model.forward", "--args", "Model(), torch.randn(2, 4), scale=2.0", "--stage", "graph",
               cwd=tmp_path)
    assert done.returncode == 0 and "torch.tanh(" in done.stdout, done.stderr
    done = run("show", "-c", "torch.relu(x) + 1", "--args", "x=torch.randn(3)", "--stage", "loops", cwd=tmp_path)
    assert done.returncode == 0 and "kernel k_" in done.stdout, done.stderr


@pytest.mark.parametrize("arguments, said", [
    (("model.py:Nothing",), "there are Model, helper"), (("none.py:f",), "no file none.py"),
    (("model.py",), "FILE:FUNCTION"), ((), "either FILE:FUNCTION or -c EXPR"),
    (("-c", "x +", "--args", "x=1"), "invalid syntax"), (("-c", "x", "--args", "y"), "NameError"),
    (("-c", "x * 2", "--args", "torch.ones(3)"), "needs a name"),
    (("-c", "x + 1", "--args", "x=torch.ones(3)", "--stage", "joint"), "no gradients are needed"),
])
def test_what_is_wrong_is_said(run, tmp_path, arguments, said):
    (tmp_path / "model.py").write_text(MODEL)
    done = run("show", *arguments, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("jit show: ") and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


SCRIPT = """
import sys
import torch
import jit

@jit.compile
def first(x):
    y = x * 2
    jit.graph_break()
    return y + 1

@jit.compile
def second(x):
    return torch.softmax(x, -1)

for n in (3, 4, 5):
    first(torch.ones(n))
second(torch.randn(2, 5))
print("the script has", sys.argv[1:])
sys.exit(3)
"""


def test_report_of_a_script(run, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("report", "script.py", "--steps", "2", cwd=tmp_path)
    assert done.returncode == 3 and "the script has ['--steps', '2']" in done.stdout, done.stderr
    assert "first: " in done.stdout and "second: " in done.stdout and "jit.graph_break()" in done.stdout
    assert "jit.mark_dynamic(x, 0)" in done.stdout
    again = run("report", "--html", "page.html", "script.py", cwd=tmp_path)
    assert again.returncode == 3 and (tmp_path / "page.html").is_file() and (tmp_path / "page-2.html").is_file()
    assert "second" in (tmp_path / "page-2.html").read_text()
    timed = run("report", "--measure", "script.py", cwd=tmp_path)
    rows = [[line for line in told.stdout.splitlines() if "jit_softmax" in line] for told in (timed, done)]
    assert [[bool(re.search(r"\d (ns|us|ms) ", row)) for row in found] for found in rows] == [[True], [False]], rows
    (tmp_path / "profiles.py").write_text(SCRIPT.replace("second(torch", "with torch.profiler.profile(): second(torch"))
    untimed = run("report", "--measure", "profiles.py", cwd=tmp_path)
    assert untimed.returncode == 3 and "no run was timed" in untimed.stderr and "second: " in untimed.stdout
    assert "no run was timed" not in timed.stderr
    (tmp_path / "raises.py").write_text(SCRIPT.replace("sys.exit(3)", "raise OSError('of the script')"))
    raised = run("report", "raises.py", cwd=tmp_path)
    assert raised.returncode == 1 and "OSError: of the script" in raised.stderr and "first: " in raised.stdout
    (tmp_path / "plain.py").write_text("print(1)")
    assert "nothing was compiled" in run("report", "plain.py", cwd=tmp_path).stderr
    assert run("report", "none.py", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize("command", ["show", "report", "bench", "cache", "warm", "doctor"])
def test_help_has_examples(run, command):
    done = run(command, "--help")
    assert done.returncode == 0 and "example" in done.stdout and f"python -m jit {command}" in done.stdout, done.stdout
