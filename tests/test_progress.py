"""What a compilation says on a terminal while it takes long: shown, rewritten in place, cleared, and nothing without a
terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAD = """
import os, sys, time, threading
import torch, jit
from jit import progress
progress.AFTER = 0.3
def slow(fn):  # a function whose compilation takes long
    def backend(graph, inputs):
        with jit.logs.timed("passes"):
            time.sleep(0.8)
            progress.kernels(1, 3)
            time.sleep(0.4)
        return lambda *given: (given[0] + 1,)
    return jit.compile(fn, backend=backend)
def program(x):
    return x + 1
x = torch.ones(3)
"""


def terminal(script: str, columns: int = 200, **variables) -> str:
    """What a script writes to stderr, which is a terminal; its stdout is a pipe, from which nothing may come."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("JIT_") or k == "JIT_CACHE_DIR"},
                   "PYTHONPATH": str(ROOT), **variables}
    process = subprocess.Popen([sys.executable, "-c", HEAD + script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=theirs, env=environment, cwd=ROOT)
    os.close(theirs)
    found = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        found += data
    os.close(ours)
    out = process.communicate()[0]
    assert process.returncode == 0 and out == b"", (process.returncode, out, found)
    return found.decode()


def screen(text: str) -> list[str]:
    """The lines that a terminal shows in the end, without blanks at their ends."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = []
        for part in line.split("\r"):
            shown[:len(part)] = part
        lines.append("".join(shown).rstrip())
    return lines


def test_a_long_compilation_is_told_and_the_line_is_cleared():
    text = terminal("slow(program)(x)")
    assert re.search(r"\rjit: \d+ s, passes, 1 graph: program \(<string>:\d+\)", text), text
    assert re.search(r"\rjit: \d+ s, passes: 1 of 3 built, 1 graph: program", text), text
    assert screen(text) == [""] and "\n" not in text


def test_the_line_is_cut_to_the_width():
    text = terminal("slow(program)(x)", columns=30)
    assert "jit: " in text and max(map(len, text.split("\r"))) == 29


@pytest.mark.parametrize("script, variables", [
    ("slow(program)(x)", {"JIT_PROGRESS": "0"}),
    ("jit.config.progress = False\nslow(program)(x)", {}),
    ("progress.AFTER = 60\nslow(program)(x)", {}),
    ("jit.compile(program, backend='eager')(x)", {}),
])
def test_nothing_is_told(script, variables):
    assert terminal(script, **variables) == ""


def test_nothing_without_a_terminal(python):
    done = python(HEAD + "slow(program)(x)")
    assert done.stdout == done.stderr == ""


def test_logs_and_warnings_stand_on_lines_of_their_own():
    shown = screen(terminal("""
def talks(graph, inputs):
    time.sleep(0.7)
    with jit.logs.timed("kernels"):
        time.sleep(0.7)
    return lambda *given: (given[0] + 1,)
jit.logs.enable("timing")
jit.compile(program, backend=talks)(x)
"""))
    assert all(line == "" or line.startswith("[jit:timing]") for line in shown) and len(shown) > 1, shown


def test_exceptions_interrupts_and_streams_that_fail():
    text = terminal("""
import _thread
def raising(error):
    def backend(graph, inputs):
        with jit.logs.timed("kernels"):
            time.sleep(0.7)
            raise error
    try:
        jit.compile(lambda x: x + 1, backend=backend, fullgraph=True)(x)
    except (KeyboardInterrupt, jit.errors.BackendError) as raised:
        assert isinstance(raised, KeyboardInterrupt) == isinstance(error, KeyboardInterrupt)
        return
    os._exit(3)
raising(ZeroDivisionError())
raising(KeyboardInterrupt())
class Broken:
    def isatty(self): return True
    def fileno(self): return 2
    def flush(self): pass
    def write(self, text): raise OSError
class Odd:
    pass
real = sys.stderr
for stream in (Broken(), Odd(), None):
    sys.stderr = stream
    if slow(lambda x: x + 1)(x).tolist() != [2.0] * 3:
        os._exit(4)
sys.stderr = real
assert progress._now is None
time.sleep(0.3)
assert threading.active_count() == 1
""")
    assert "jit: " in text and screen(text) == [""], text


def test_a_forked_process_says_nothing_and_the_first_goes_on():
    text = terminal("""
def forks(graph, inputs):
    with jit.logs.timed("kernels"):
        time.sleep(0.6)
        child = os.fork()
        if not child:
            progress.kernels(1, 2)
            time.sleep(0.5)
            os._exit(progress._now is not None)
        if os.waitpid(child, 0)[1]:
            os._exit(3)
        time.sleep(0.3)
    return lambda *given: (given[0] + 1,)
jit.compile(program, backend=forks)(x)
""")
    assert "jit: " in text and "1 of 2" not in text and screen(text) == [""], text


def test_what_follows_a_break_counts_as_the_same_compilation():
    """Each part takes less than it takes until something is told."""
    text = terminal("""
progress.AFTER = 1.0
def backend(graph, inputs):
    with jit.logs.timed("passes"):
        time.sleep(0.6)
    return lambda *given: (given[0] + 1,)
@jit.compile(backend=backend)
def broken(x):
    y = x + 1
    jit.graph_break()
    y = y + 1
    jit.graph_break()
    return y + 1
broken(x)
""")
    assert re.search(r"passes, [23] graphs: broken", text), text
    assert screen(text) == [""]


def test_what_a_short_compilation_pays(monkeypatch):
    """On a terminal too: no thread is started."""
    from jit import progress

    class Terminal:
        isatty = staticmethod(lambda: True)

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress.config, "progress", True)
    times = []
    for _ in range(200):
        start = time.process_time_ns()
        with progress.compiling("f", "f.py", 1):
            progress.tick()
        times.append(time.process_time_ns() - start)
    assert sorted(times)[100] < 20_000


def test_the_build_of_the_native_runtime_is_told(tmp_path):
    (tmp_path / "module.cpp").write_text("""
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_jit_native", nullptr, -1};
PyMODINIT_FUNC PyInit__jit_native() { return PyModule_Create(&definition); }
""")
    text = terminal(f"""
from jit.runtime import build
progress.AFTER = 0.1
build.SOURCE_DIR = {str(tmp_path)!r}
build.library_path()
""", JIT_CACHE_DIR=str(tmp_path / "cache"))
    assert re.search(r"jit: \d+ s, build of the native runtime: 0 of 1 built: the native runtime", text), text
    assert screen(text) == [""]
