"""jit.logs: channels, where records go, and what an unknown name says."""

import re
import time

import pytest

from jit import logs

ALL = "graph, guards, recompiles, graph_breaks, passes, kernels, templates, bytecode, plan, cache, cudagraphs, timing"


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.delenv("JIT_LOGS_OUT", raising=False)
    yield
    logs.enable("")


def test_channels():
    assert ", ".join(logs.CHANNELS) == ALL
    assert all(logs.CHANNELS.values())


def test_unknown_channel_says_which_exist():
    said = rf"no log channel 'graphs' \(did you mean 'graph'\?\); the channels are: {ALL}, all"
    with pytest.raises(ValueError, match=said):
        logs.channel("graphs")
    with pytest.raises(ValueError, match="no log channel 'kernel'"):
        logs.enable("graph,kernel")


def test_enable_switches_exactly_these():
    logs.enable("graph, timing")
    assert [n for n in logs.CHANNELS if logs.channel(n)] == ["graph", "timing"]
    logs.enable("all")
    assert all(logs.channel(n) for n in logs.CHANNELS)
    logs.enable("")
    assert not any(logs.channel(n) for n in logs.CHANNELS)


def test_a_channel_is_one_object():
    log = logs.channel("plan")
    assert not log
    logs.enable("plan")
    assert log and log is logs.channel("plan")


def test_record_goes_to_stderr_with_every_line_marked(capsys):
    logs.enable("graph")
    logs.channel("graph")("first\nsecond\n")
    logs.channel("guards")("not shown")
    out, err = capsys.readouterr()
    assert out == "" and err == "[jit:graph] first\n[jit:graph] second\n"


def test_jit_logs_out(tmp_path, monkeypatch, capsys):
    path = tmp_path / "log.txt"
    monkeypatch.setenv("JIT_LOGS_OUT", str(path))
    logs.enable("kernels")
    logs.channel("kernels")("one")
    logs.channel("kernels")("two")
    assert path.read_text() == "[jit:kernels] one\n[jit:kernels] two\n"
    assert capsys.readouterr().err == ""


def test_an_unwritable_file_warns_and_loses_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JIT_LOGS_OUT", str(tmp_path / "no such folder" / "log.txt"))
    logs.enable("kernels")
    with pytest.warns(RuntimeWarning, match="JIT_LOGS_OUT: .*logging to stderr"):
        logs.channel("kernels")("kept")
    assert "[jit:kernels] kept" in capsys.readouterr().err


def test_timed(capsys):
    logs.enable("timing")
    with logs.timed("codegen"):
        pass
    assert capsys.readouterr().err.startswith("[jit:timing] codegen: 0.0")
    with pytest.raises(ZeroDivisionError), logs.timed("failing"):
        1 / 0
    assert "failing: " in capsys.readouterr().err
    logs.enable("")
    with logs.timed("codegen"):
        pass
    assert capsys.readouterr().err == ""


def test_the_stages_of_a_compilation_are_summed_up(capsys):
    """Each second counts once, with the innermost stage that it was spent in; short passes are not told one by one."""
    logs.enable("timing")
    logs.stages()
    with logs.timed("capture"):
        time.sleep(0.002)
        for name in ("pass a", "pass b"):
            with logs.timed(name):
                time.sleep(0.004)
        with logs.timed("pass c"):
            pass
    told = re.fullmatch(r"passes (0\.\d+), capture (0\.\d+)", logs.stages())
    out = capsys.readouterr().err
    assert told and float(told[1]) >= 0.008 and float(told[2]) >= 0.002, told
    assert "pass a: " in out and "pass c: " not in out and logs.stages() == ""
    whole = float(re.search(r"capture: ([\d.]+) s", out)[1])
    assert abs(whole - float(told[1]) - float(told[2])) < 0.002
    logs.enable("")


def test_environment(python):
    done = python("from jit import logs; print([n for n in logs.CHANNELS if logs.channel(n)])",
                  JIT_LOGS="graph_breaks,recompiles")
    assert done.stdout.strip() == "['recompiles', 'graph_breaks']"


def test_unknown_channel_in_environment(python):
    done = python("from jit import logs", check=False, JIT_LOGS="everything")
    assert done.returncode and f"JIT_LOGS: no log channel 'everything'; the channels are: {ALL}, all" in done.stderr
