"""What debuggers, coverage tools and tracebacks show of compiled code."""

import bdb
import io
import os
import pdb
import subprocess
import sys
import traceback

import pytest
import torch
from torch import nn

import jit
from jit.frame import debuggers

FILE = os.path.basename(__file__)
X = torch.ones(3)


def line_of(fn, text):
    import inspect

    lines, first = inspect.getsourcelines(fn)
    return first + next(k for k, line in enumerate(lines) if text in line)


def helper(x):
    z = x * 3
    return z + 1


def program(x):
    y = x.exp()
    if x.dim() == 2:
        y = y - 1
    return helper(y)


def debugged(call, commands):
    """What a debugger prints that is given these commands while a call is made."""
    out, before = io.StringIO(), sys.gettrace()
    debugger = pdb.Pdb(stdin=io.StringIO("\n".join(commands) + "\nc\n" * 5), stdout=out, nosigint=True, readrc=False)
    try:
        result = debugger.runcall(call)
    finally:
        sys.settrace(before)
        debugger.clear_all_breaks()  # they are all debuggers'
        frame = sys._getframe()
        while frame is not None:  # it would go on there as soon as another tracer comes
            if getattr(frame.f_trace, "__self__", None) is debugger:
                frame.f_trace = None
            frame = frame.f_back
    return out.getvalue(), result


def test_a_breakpoint_in_a_compiled_function_is_met():
    c = jit.compile(program)
    c(X)
    hits = c.hits
    said, got = debugged(lambda: c(X), [f"b {__file__}:{line_of(helper, '* 3')}", "c", "p x", "n", "p z", "up", "p y"])
    torch.testing.assert_close(got, program(X))
    assert f"{FILE}({line_of(helper, '* 3')})helper()" in said
    assert said.count("(Pdb) tensor([2.7183, 2.7183, 2.7183])") == 2  # x in the callee is y in the caller
    assert "(Pdb) tensor([8.1548, 8.1548, 8.1548])" in said
    assert c.hits == hits
    c(X)
    assert c.hits == hits + 1


def test_stepping_into_a_compiled_function_goes_to_its_lines():
    c = jit.compile(program)
    said, _ = debugged(lambda: c(X), ["s"] * 8)
    for fn, text in ((program, "exp"), (program, "dim()"), (program, "return"), (helper, "* 3")):
        assert f"{FILE}({line_of(fn, text)}){fn.__name__}()" in said
    assert os.sep + "jit" + os.sep not in said
    assert "nothing compiled yet" in repr(c)


def stopping(x):
    y = x.exp()
    breakpoint()
    return y + 1


def stopping_inside(x):
    y = x * 2
    return stopping(y)


@pytest.mark.parametrize("fn", [stopping, stopping_inside])
def test_a_call_of_breakpoint(monkeypatch, fn):
    seen = []

    def hook():
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_name, frame.f_lineno, sorted(frame.f_locals), frame.f_back.f_code.co_name))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    c = jit.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(c(X), fn(X))
    line = line_of(stopping, "breakpoint()")
    eager, compiled = seen[1::2], seen[::2]
    assert compiled == eager and compiled[0][:3] == ("stopping", line, ["x", "y"])
    with pytest.raises(jit.Unsupported, match="stops in a debugger"):
        jit.compile(fn, fullgraph=True)(X)


SET_TRACE = '''
import io, pdb, sys, torch, jit

def program(x):
    y = x.exp()
    pdb.set_trace()
    return y + 1

def inside(x):
    return program(x * 1)

for f in map(jit.compile, (program, inside)):
    for _ in range(2):
        sys.stdin = io.StringIO("p y\\nup\\nc\\n")
        print(f(torch.ones(2)))
'''


def test_a_call_of_set_trace(tmp_path):
    """In a process of its own: pytest has a ``pdb.set_trace`` of its own."""
    (tmp_path / "stops.py").write_text(SET_TRACE)
    run = subprocess.run([sys.executable, "stops.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.count("stops.py(7)program()") == 4
    assert run.stdout.count("(Pdb) tensor([2.7183, 2.7183])") == 4
    assert run.stdout.count("(Pdb) tensor([3.7183, 3.7183])") == 4
    assert run.stdout.count("stops.py(10)inside()") == 2 and run.stdout.count("<module>()") == 2


def test_which_tracers_are_debuggers():
    class Debugger(bdb.Bdb):
        pass

    class Coverage:
        def trace(self, *args):
            pass

    other = type("ThreadTracer", (), {"__module__": "_pydevd_bundle.pydevd_cython"})
    assert debuggers.is_debugger(Debugger().trace_dispatch) and debuggers.is_debugger(pdb.Pdb().trace_dispatch)
    assert debuggers.is_debugger(other())
    assert not debuggers.is_debugger(Coverage().trace) and not debuggers.is_debugger(lambda *args: None)


# tracers


def watched(call):
    """(the lines of this file that a tracer saw by function, what a call gives)"""
    seen, before = {}, sys.gettrace()

    def trace(frame, event, arg):
        if frame.f_code.co_filename != __file__:
            return None
        if event == "line" and frame.f_lineno != frame.f_code.co_firstlineno:  # which the rewritten code is in
            seen.setdefault(frame.f_code.co_name, []).append(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return seen, result


def lines(fn, *texts):
    return [line_of(fn, text) for text in texts]


def test_a_tracer_sees_the_lines_that_were_compiled():
    c = jit.compile(program)
    seen, got = watched(lambda: c(X))
    torch.testing.assert_close(got, program(X))
    assert c.hits == 0 and "1 entry" in repr(c)  # it was compiled, and the compiled code ran
    assert set(seen["program"]) == set(lines(program, "exp", "dim()", "return"))
    assert set(seen["helper"]) == set(lines(helper, "* 3", "+ 1"))
    seen, _ = watched(lambda: c(X))
    assert "program" not in seen and c.hits == 1
    seen, _ = watched(lambda: c(torch.ones(2, 2)))
    assert set(seen["program"]) == set(lines(program, "exp", "dim()", "- 1", "return"))


def test_nothing_is_followed_without_a_tracer():
    if sys.gettrace() is not None:
        pytest.skip("a tracer is on")
    called = []

    def profile(frame, event, arg):
        if event == "call" and frame.f_code.co_filename == __file__:
            called.append(frame.f_code.co_name)

    c = jit.compile(program)
    sys.setprofile(profile)
    try:
        c(X)
    finally:
        sys.setprofile(None)
    assert "helper" not in called


MEASURED = '''
import sys

seen = set()
def trace(frame, event, arg):
    if frame.f_code.co_filename == __file__ and event == "line":
        seen.add(frame.f_lineno)
    return trace if frame.f_code.co_filename == __file__ else None

import jit, torch

@jit.compile
def f(x):
    y = x + 1
    return y.cos()

sys.settrace(trace)
f(torch.ones(3))
sys.settrace(None)
print({14, 15} <= seen, jit.compile_count())
'''


def test_what_is_kept_on_disk_hides_no_lines(tmp_path):
    """A process that could read the entry from disk captures it, where a tracer is on."""
    (tmp_path / "measured.py").write_text(MEASURED)
    env = {**os.environ, "JIT_CACHE_DIR": str(tmp_path / "cache"), "JIT_ENTRY_CACHE": "1"}
    plain = MEASURED.replace("sys.settrace(trace)", "")
    for text, said in ((plain, "False 1"), (MEASURED, "True 1")):
        (tmp_path / "measured.py").write_text(text)
        run = subprocess.run([sys.executable, "measured.py"], cwd=tmp_path, env=env, capture_output=True, text=True,
                             check=True)
        assert run.stdout.split("\n")[0] == said


# tracebacks


def gathered(x, i):
    y = x.exp()
    return inner(y, i)


def inner(y, i):
    return y[i] * 2


def after_a_break(x, i):
    y = x.exp()
    jit.graph_break()
    return inner(y, i)


@pytest.mark.parametrize("fn", [gathered, after_a_break])
def test_tracebacks_name_the_lines_of_the_program(fn):
    c = jit.compile(fn, options={"eager_where_faster": False})
    c(X, torch.tensor([1]))
    with pytest.raises(IndexError) as raised:
        c(X, torch.tensor([9]))
    found = [(f.name, f.lineno) for f in traceback.extract_tb(raised.tb) if f.filename == __file__][1:]
    assert found == [(fn.__name__, line_of(fn, "inner")), ("inner", line_of(inner, "y[i]"))]


def rooted(x):
    y = x * 2
    z = torch.sqrt(y)
    return z.sum()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_detection_names_the_operation_and_its_line():
    c = jit.compile(rooted)
    c(torch.ones(3, requires_grad=True)).backward()
    hits = c.hits
    line = line_of(rooted, "sqrt")
    with torch.autograd.detect_anomaly():
        with pytest.warns(UserWarning, match=rf"(?s)Error detected in SqrtBackward0.*line {line}, in rooted"):
            with pytest.raises(RuntimeError, match="SqrtBackward0"):
                c(torch.full((3,), -1.0, requires_grad=True)).backward()
    assert c.hits == hits
    c(torch.ones(3, requires_grad=True))
    assert c.hits == hits + 1


def test_what_was_written_since_says_of_which_function():
    def fn(x):
        return x.exp(), x * 2

    c, x = jit.compile(fn), torch.ones(3, requires_grad=True)
    first, _ = c(x)
    with torch.no_grad():
        first.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


# what a compiled function says of itself


def broken(x):
    y = x.exp()
    jit.graph_break()
    return y.sin()


def test_repr_of_a_function():
    c, at = jit.compile(broken), f"{FILE}:{line_of(broken, 'def')}"
    assert repr(c) == f"<jit.compile(broken) at {at}: nothing compiled yet>"
    c(X)
    assert repr(c) == str(c) == f"<jit.compile(broken) at {at}: 1 entry, 2 graphs, 1 graph break>"
    c(torch.ones(5))
    assert repr(c) == f"<jit.compile(broken) at {at}: 2 entries, 4 graphs, 1 graph break>"
    jit.reset()
    assert "nothing compiled yet" in repr(c)
    c.on_miss.given_up = True
    assert "runs in eager from now on" in repr(c)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x)

    @jit.compile
    def other(self, x):
        """It adds one."""
        return x + 1


def test_repr_of_a_module_is_its_own():
    m = Model()
    assert repr(jit.compile(m)) == repr(m)
    called = type(jit.compile(m)).__call__
    assert repr(called) == (f"<jit.compile(Model.forward) at {FILE}:{line_of(Model.forward, 'def')}: "
                            "nothing compiled yet>")


def test_a_method_is_a_method():
    m = Model()
    m.other(X)
    assert repr(m.other).startswith("<bound method Model.other of Model(")
    assert "1 entry, 1 graph>" in repr(m.other.__func__) and repr(Model.other) == repr(m.other.__func__)
    assert m.other.__doc__ == "It adds one." and m.other.__self__ is m


def annotated(x: torch.Tensor, n: int = 2, *, flag: bool = False) -> torch.Tensor:
    """Its documentation."""
    return x * n


compiled_at_import = jit.compile(annotated)


@jit.compile
def decorated(x):
    return x + 1


def test_what_is_asked_of_functions_is_answered_by_the_original():
    import copy
    import functools
    import inspect
    import pickle
    import pydoc

    c = compiled_at_import
    assert inspect.signature(c) == inspect.signature(annotated)
    assert (c.__name__, c.__qualname__, c.__module__, c.__doc__) == (
        annotated.__name__, annotated.__qualname__, annotated.__module__, annotated.__doc__)
    assert c.__annotations__ == annotated.__annotations__ and inspect.unwrap(c) is annotated
    assert inspect.getsource(c) == inspect.getsource(annotated) and inspect.getdoc(c) == "Its documentation."
    assert inspect.isroutine(c) and callable(c)
    assert copy.copy(c) is c and copy.deepcopy([c])[0] is c
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    with pytest.raises(pickle.PicklingError):  # the name is the original's
        pickle.dumps(c)
    helped = pydoc.plain(pydoc.render_doc(c))
    assert "annotated(x: torch.Tensor, n: int = 2, *, flag: bool = False)" in helped and "Its documentation." in helped

    @functools.wraps(c)
    def around(*args, **kwargs):
        return c(*args, **kwargs)

    assert around.__name__ == "annotated" and inspect.signature(around) == inspect.signature(annotated)
    torch.testing.assert_close(around(X, n=3), X * 3)
