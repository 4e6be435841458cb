"""Functions that ``sys.settrace``, ``sys.setprofile``, ``sys.monitoring`` or a debugger watches."""

import io
import pdb
import sys

import pytest
import torch
from frame_harness import compiled, same

import jit

ONES = torch.ones(3)


def test_settrace_stays_and_sees_user_lines():
    lines = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name == "traced":
            lines.append((event, frame.f_lineno))
        return tracer

    def traced(x):
        y = x + 1
        return y * 2

    c = compiled(traced)
    kept = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert torch.equal(c(ONES), ONES * 4)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(kept)
    assert torch.equal(c(ONES), ONES * 4)


class Recorder:
    """A tracer as coverage tools have them: the lines of this file, and calls back into compiled code."""

    def __init__(self, inner):
        self.lines, self.inner, self.inside = [], inner, False

    def __call__(self, frame, event, arg):
        if event == "line" and frame.f_code.co_filename == __file__ and not self.inside:
            self.lines.append(frame.f_lineno)
            self.inside = True
            self.inner(ONES)
            self.inside = False
        return self


@jit.compile(backend="eager")
def steps_of(x):
    yield x
    print(end="")
    yield x * 2


def everything(x, held):
    with torch.no_grad():
        y = x * 2
        print(end="")
        held.append(y)
    for v in (t + 1 for t in held):
        print(end="")
        y = y + v
    try:
        print(end="")
        held[7]
    except IndexError as e:
        return y, str(e), [v for v in steps_of(y)]


@pytest.mark.parametrize("tool", ("settrace", "setprofile", "monitoring"))
def test_under_tools_that_watch(tool):
    """Compiled before the tool starts, while it is active, and after it has gone."""
    for first in (0, 1):
        c, recorder = compiled(everything), Recorder(compiled(lambda x: x * 3))
        for active in (False, True, False)[first:]:
            kept = getattr(sys, tool.replace("set", "get"))() if tool != "monitoring" else None
            if not active:
                got = c(ONES, [])
            elif tool == "monitoring":
                if sys.version_info < (3, 12):
                    continue
                sys.monitoring.use_tool_id(3, "test")
                sys.monitoring.register_callback(3, sys.monitoring.events.LINE,
                                                 lambda code, line: recorder.lines.append(line))
                sys.monitoring.set_events(3, sys.monitoring.events.LINE)
                try:
                    got = c(ONES, [])
                finally:
                    sys.monitoring.set_events(3, 0)
                    sys.monitoring.free_tool_id(3)
            else:
                getattr(sys, tool)(recorder)
                try:
                    got = c(ONES, [])
                    assert getattr(sys, tool.replace("set", "get"))() is recorder
                finally:
                    getattr(sys, tool)(kept)
            same(everything.__wrapped__(ONES, []) if hasattr(everything, "__wrapped__") else everything(ONES, []), got)


def test_under_a_debugger():
    out = io.StringIO()
    for commands in ("c", "n\nn\nn\nn\nn\np y\nc", "s\ns\ns\ns\ns\ns\nr\nc", "b steps_of\nc\nc\nc\nc\nc"):
        c = compiled(everything)
        kept = sys.gettrace()
        debugger = pdb.Pdb(stdin=io.StringIO(commands + "\nc\n" * 9), stdout=out, nosigint=True, readrc=False)
        try:
            got = debugger.runcall(c, ONES, [])
        finally:
            debugger.set_quit()
            sys.settrace(kept)
        same(everything(ONES, []), got)
        same(everything(ONES, []), c(ONES, []))
