"""``python -m jit bench``: eager, torch.compile and jit beside each other, each in a process of its own."""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jit.report import bench, bench_table, calls, results, timing
from jit.report.systems import COMPILED, EAGER, JIT, READ, TORCH

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import atexit, os, sys
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        sys.stdout.write("not an answer\\n")
        return {"y": y, "sum": y.sum(), "count": 3}

def double(x, scale=2.0):
    return x * scale

def draws(x):
    return x + torch.rand_like(x)

def raises(x):
    raise ValueError("nothing to add\\nnor this")

def ends(x):
    os._exit(7)

def in_one_way_only(x):
    return x + (100.0 if "jit" in sys.modules else 0.0), x.sum()

def note():
    with open(os.environ.get("LOADED", os.devnull), "a") as file:
        print(sys.argv[0], *(name for name in ("jit", "torch._dynamo", "torch._inductor") if name in sys.modules),
              file=file)

atexit.register(note)
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


def compared(function=None, args="torch.ones(8)", against=(EAGER,), **job):
    return bench.compare(bench.Job(function, job.pop("expression", None), args, **job), against, 0.02, 300)


def run(*arguments, cwd=None, **variables):
    """The command; the last line says what the user's own process has loaded."""
    script = ("import sys; from jit.__main__ import main; status = main(sys.argv[1:]); "
              "print('torch._dynamo' in sys.modules); sys.exit(status)")
    return subprocess.run([sys.executable, "-c", script, "bench", *arguments], cwd=cwd or ROOT, capture_output=True,
                          text=True, timeout=500, env={**os.environ, "PYTHONPATH": str(ROOT), **variables})


def test_against_eager(program, tmp_path):
    """The table, the figures in the file, and what the processes have loaded."""
    done = run("program.py:double", "--args", "torch.ones(8), scale=3.0", "--against", "eager", "--seconds", "0.02",
               "--json", "made.json", cwd=tmp_path, LOADED=str(tmp_path / "loaded"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "program.py:double" and f"torch {torch.__version__}" in lines[1]
    assert [line.split()[0] for line in lines[4:6]] == ["eager", "jit"] and "torch.compile" not in done.stdout
    assert lines[-1] == "False"
    assert sorted((tmp_path / "loaded").read_text().splitlines()) == ["program.py", "program.py jit"]
    made = json.loads((tmp_path / "made.json").read_text())
    assert made["function"] == "program.py:double" and made["cold"] is False and list(made["systems"]) == [EAGER, JIT]
    ours, eagers = made["systems"][JIT], made["systems"][EAGER]
    assert (ours["graphs"], ours["breaks"], eagers["graphs"]) == (1, 0, None)
    assert ours["difference"]["values"] == {"largest": 0.0, "relative": 0.0, "where": "", "other": []}
    assert len(ours["samples"]) == len(eagers["samples"]) > timing.FEWEST and min(ours["samples"]) > 0
    assert ours["call_s"]["median"] == timing.estimate(ours["samples"]).median
    ratio = ours["times_as_fast_as"][EAGER]
    assert ratio["median"] == timing.ratio(eagers["samples"], ours["samples"]).median
    assert ratio["inside_noise"] is (ratio["low"] <= 1 <= ratio["high"])
    assert ours["first_call_s"] > 0 and eagers["first_call"] == "" and ours["error"] == ""


def test_the_three_with_a_break_and_gradients(program, tmp_path):
    """Cold: what each has kept is not used, and nothing is added to it."""
    kept = tmp_path / "kept"
    kept.mkdir()
    done = run("program.py:Model.forward", "--args", "Model(), torch.randn(4, 16)", "--backward", "--cold", "--json",
               "made.json", "--seconds", "0.02", cwd=tmp_path, TORCHINDUCTOR_CACHE_DIR=str(kept))
    assert done.returncode == 0 and "with its gradients" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "False" and not list(kept.iterdir())
    systems = json.loads((tmp_path / "made.json").read_text())["systems"]
    assert list(systems) == [EAGER, TORCH, JIT]
    for name in (TORCH, JIT):
        found = systems[name]
        assert found["error"] == "" and found["first_call"] == COMPILED and found["graphs"] >= 1, found
        assert set(found["difference"]) == {"values", "gradients"}
        assert found["difference"]["gradients"]["largest"] < 1e-4 and not found["difference"]["gradients"]["other"]
    assert systems[TORCH]["breaks"] == 1 and systems[TORCH]["graphs"] == 2
    assert set(systems[JIT]["times_as_fast_as"]) == {EAGER, TORCH}
    assert "all caches were empty" in done.stdout.replace("\n", " ")


def test_breaks_of_jit(tmp_path):
    (tmp_path / "breaking.py").write_text(
        "import jit\ndef program(x):\n    y = x.sin()\n    jit.graph_break()\n    return y.cos()\n")
    found = compared(str(tmp_path / "breaking.py") + ":program")
    assert (found.systems[JIT].graphs, found.systems[JIT].breaks) == (2, 1)


def test_from_the_cache(program, tmp_path, monkeypatch):
    """A second run finds what the first has kept, and says that this is no time of compiling."""
    monkeypatch.setenv("JIT_ENTRY_CACHE", "1")
    monkeypatch.setenv("JIT_CACHE_DIR", str(tmp_path / "cache"))
    assert compared(program + ":double").systems[JIT].first_call == COMPILED
    again = compared(program + ":double")
    assert again.systems[JIT].first_call == READ
    assert "jit: read from its cache. --cold has all compile." in bench_table.printed(again).replace("\n", " ")


def test_torch_compile_fails(tmp_path):
    """Its row says why, and the others are there."""
    (tmp_path / "refused.py").write_text(
        "import torch\ndef refuse(*args, **kwargs):\n    raise RuntimeError('no compiler\\nat all')\n"
        "torch.compile = refuse\ndef double(x):\n    return x * 2\n")
    found = compared(str(tmp_path / "refused.py") + ":double", against=(EAGER, TORCH))
    assert found.systems[TORCH].error == "RuntimeError: no compiler"
    text = bench_table.printed(found)
    assert "\ntorch.compile  RuntimeError: no compiler\n" in text and found.estimate(JIT) is not None


def test_the_function_raises(program, capsys):
    assert bench.command([program + ":raises", "--args", "torch.ones(3)", "--against", "eager"]) == 1
    assert "eager  ValueError: nothing to add\njit    not called, since eager fails\n" in capsys.readouterr().out


def test_a_process_that_ends(program):
    found = compared(program + ":ends")
    assert found.systems[EAGER].error == "its process ended with exit status 7"


def test_other_results_are_said(program):
    found = compared(program + ":in_one_way_only")
    assert found.systems[JIT].difference["values"]["largest"] == 100.0
    assert found.systems[JIT].difference["values"]["where"] == "[0]"
    assert "1.0e+02" in bench_table.printed(found)


def test_random_numbers_are_said(program):
    text = bench_table.printed(compared(program + ":draws")).replace("\n", " ")
    assert "Eager's own second call gave other values than its first" in text


def test_what_the_program_has_compiled_itself_is_measured_as_it_was_written(tmp_path):
    (tmp_path / "decorated.py").write_text("import jit\n@jit.compile\ndef double(x):\n    return x * 2\n")
    found = compared(str(tmp_path / "decorated.py") + ":double")
    assert found.systems[JIT].graphs == 1 and not found.systems[EAGER].difference["values"]["other"]


@pytest.mark.parametrize("arguments, said", [
    ((), "give either FILE:FUNCTION or -c EXPR"),
    (("-c", "x + 1", "--args", "x=torch.ones(3)", "--backward"), "no argument or module requires gradients"),
    (("-c", "x.detach()", "--args", "x=torch.ones(3, requires_grad=True)", "--backward"),
     "no tensor of the result requires gradients"),
    (("-c", "x + 1", "--args", "x=y"), "NameError"),
    (("none.py:f",), "there is no file none.py"),
    (("-c", "x", "--against", "tvm"), "there are eager and torch.compile"),
    (("-c", "x", "--backward", "--no-grad"), "--no-grad records none"),
])
def test_what_is_wrong_is_said(arguments, said, capsys):
    try:
        status = bench.command([*arguments, *(() if "--against" in arguments else ("--against", "eager"))])
    except SystemExit as end:
        status = end.code
    assert status and said in capsys.readouterr().err


def test_help():
    done = run("--help")
    assert done.stdout.count("python -m jit bench ") >= 4 and "examples:" in done.stdout


def test_a_turn_ends_when_the_device_is_done(monkeypatch):
    """Not when it has been told what to do."""
    clock = []
    timing.seconds_per_call(lambda: clock.append("call"), 3, lambda: clock.append("settled"))
    assert clock == ["settled", "call", "call", "call", "settled"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu():
    """Memory is told, and a call takes as long as the device works for it."""
    found = compared(expression="x.sin().sum() + x.cos().sum()", args="x=torch.randn(2**26, device='cuda')")
    assert found.where["device"] == torch.cuda.get_device_name()
    for system in found.systems.values():
        assert not system.error and system.peak_bytes >= 4 * 2**26
        assert min(system.samples) > 4 * 2**26 / 20e12  # it is read, at less than 20 TB/s
    assert found.systems[JIT].peak_bytes < found.systems[EAGER].peak_bytes
    assert "memory" in bench_table.printed(found)


# -- what is computed of the times ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [timing.FEWEST, 20, 51])
def test_an_interval_holds_the_median_as_often_as_it_says(count):
    numbers, held = random.Random(0), 0
    for _ in range(1000):
        found = timing.estimate([numbers.expovariate(1.0) for _ in range(count)])
        held += found.low <= math.log(2) <= found.high
    assert 0.93 <= held / 1000 <= 0.995


def test_few_samples_tell_nothing():
    assert timing.estimate([1.0] * (timing.FEWEST - 1)).error == math.inf
    assert timing.estimate([1.0] * timing.FEWEST).error == 0.0
    assert timing.estimate([2.0]).median == 2.0


def test_a_ratio_is_of_the_same_rounds():
    """A machine that becomes slower slows both."""
    drift = [1.0 + k for k in range(20)]
    found = timing.ratio([2.0 * d for d in drift], drift)
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0) and not timing.inside_noise(found)
    assert timing.inside_noise(timing.ratio(drift, drift[::-1]))


def test_calls_of_a_turn():
    clock = []
    count = timing.calls_in(lambda: clock.append(0), 1e-3, lambda: None)
    assert count > 100
    assert timing.calls_in(lambda: clock.append(sum(range(200_000))), 1e-3, lambda: None) < 10


def comparison(eager, ours, **more):
    return bench.Comparison(bench.Job(None, "x", ""), {"device": "a CPU", "torch": "2", "python": "3", "load": ""},
                            {EAGER: bench.System(first_call_s=1e-3, samples=eager),
                             JIT: bench.System(first_call_s=1.0, first_call=COMPILED, samples=ours, **more)})


def test_noise_is_said():
    numbers = random.Random(0)
    eager, ours = ([numbers.uniform(0.9, 1.1) for _ in range(30)] for _ in range(2))
    assert "Which of eager and jit is faster cannot be told" in bench_table.printed(comparison(eager, ours))
    assert "cannot be told" not in bench_table.printed(comparison(eager, [t / 2 for t in ours]))
    assert "uncertain" in bench_table.printed(comparison([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0] * 6))


def test_first_calls_that_are_not_alike_are_not_compared():
    found = comparison([1.0] * 6, [1.0] * 6)
    found.systems[TORCH] = bench.System(first_call_s=20.0, first_call=READ, samples=[1.0] * 6)
    assert "They are not alike, so do not compare them" in bench_table.printed(found).replace("\n", " ")


def test_figures_that_json_has_not():
    found = comparison([1.0], [1.0])
    assert json.dumps(found.plain(), allow_nan=False)


# -- what is compared of the results --------------------------------------------------------------------------------


def apart(ours, eagers):
    return results.difference(results.copied(ours), results.copied(eagers))


def test_differences():
    x = torch.tensor([1.0, -4.0, math.nan, math.inf])
    assert apart([x], [x.clone()]) == results.Difference()
    found = apart({"a": x, "b": x + torch.tensor([0.0, 1.0, 0.0, 0.0])}, {"a": x, "b": x})
    assert (found.largest, found.relative, found.where) == (1.0, 0.25, "['b']")
    assert apart(torch.tensor([1.0]), torch.tensor([math.nan])).largest == math.inf
    assert apart(torch.tensor([1 + 2j]), torch.tensor([1 + 1j])).largest == 1.0
    assert apart(torch.tensor([True]), torch.tensor([False])).largest == 1.0
    assert apart(torch.zeros(0), torch.zeros(0)) == results.Difference()
    assert apart(torch.zeros(2), torch.zeros(3)).other == ["result is float32[2] and not float32[3]"]
    assert apart(torch.zeros(2), torch.zeros(2).double()).other == ["result is float32[2] and not float64[2]"]
    assert apart((x, 1), (x, 2)).other == ["[1] is 1 and not 2"]
    assert apart((x,), (x, x)).other == ["the results are float32[4] and not float32[4], float32[4]"]
    assert apart((x, object()), (x, object())) == results.Difference()
    assert apart(x, None).other == ["result is float32[4] and not None"]


def test_a_copy_is_not_changed_by_what_comes_later():
    x = torch.zeros(2)
    before = results.copied(x)
    x.add_(1)
    assert results.difference(before, results.copied(torch.zeros(2))) == results.Difference()


def test_a_usage_error_names_the_argument():
    with pytest.raises(calls.Usage, match="either FILE:FUNCTION or -c EXPR"):
        bench.compare(bench.Job("a.py:f", "x", ""), (EAGER,), 0.1)
