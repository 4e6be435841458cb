"""The processes with Triton's interpreter: run once each, ahead or at once, and ended with the session."""

import os
import time

import interpreter
import pytest


@pytest.fixture
def session(tmp_path):
    (tmp_path / "fails.py").write_text("def interpret():\n    print('so far')\n    raise ValueError('then not')\n")
    (tmp_path / "prints.py").write_text("import random\ndef interpret():\n    print('ok', random.random())\n")
    (tmp_path / "sleeps.py").write_text("import os, time\nprint('awake', flush=True)\n"
                                        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                                        "def interpret():\n    time.sleep(600)\n")
    runs = interpreter.Runs(tmp_path)
    yield runs
    runs.stop()
    assert not runs.thread.is_alive() and not runs.running


def interpret():
    print(os.environ["TRITON_INTERPRET"], os.environ["OMP_NUM_THREADS"])


def test_the_output_of_this_module():
    assert interpreter.output(__name__) == "1 2\n"


@pytest.mark.parametrize("ahead", [[], ["prints"], ["fails", "prints"]])
def test_each_runs_once(session, ahead):
    session.start(ahead)
    printed = session.output("prints")
    assert printed.startswith("ok ") and session.output("prints") == printed


@pytest.mark.parametrize("ahead", [[], ["fails"]])
def test_a_failure_says_what_was_printed(session, ahead):
    session.start(ahead)
    with pytest.raises(AssertionError, match="(?s)exit status 1.*so far.*then not"):
        session.output("fails")


def test_none_waits_for_those_before_it_and_none_outlives_the_session(session, tmp_path):
    session.start(["sleeps", "prints"])
    deadline = time.monotonic() + 60
    while not ((pid := tmp_path / "pid").exists() and pid.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert session.output("prints").startswith("ok ")
    session.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_process_that_takes_too_long(session):
    session.limit = 5
    with pytest.raises(AssertionError, match="(?s)exit status -9.*awake"):
        session.output("sleeps")
