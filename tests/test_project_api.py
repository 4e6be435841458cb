"""The public names: what they accept, what they refuse and say, and what importing them costs."""

import inspect
import warnings

import pytest
import torch
from frame_harness import compiled

import jit

ONES = torch.ones(3)


def double(x):
    """Twice x."""
    return x * 2


def test_public_names():
    for name in ("compile", "disable", "explain", "reset", "graph_break", "is_compiling", "compile_count", "config",
                 "logs", "errors", "__version__"):
        assert hasattr(jit, name), name


def test_compile_has_the_parameters_of_torch_compile():
    parameters = inspect.signature(jit.compile).parameters
    names = list(parameters)
    assert set(names[1:]) >= {"fullgraph", "dynamic", "backend", "mode", "options", "disable"}
    assert all(parameters[n].kind is inspect.Parameter.KEYWORD_ONLY for n in names[1:])


@pytest.mark.parametrize("thing", [42, "double", None.__class__, [double]])
def test_compile_takes_a_callable_or_a_module(thing):
    if isinstance(thing, type):
        pytest.raises(TypeError, jit.compile(fullgraph=True), 3)
        return
    with pytest.raises(TypeError) as caught:
        jit.compile(thing)
    assert type(thing).__name__ in str(caught.value)


@pytest.mark.parametrize(
    "arguments, kind, says",
    [
        (dict(mode="fast"), ValueError, ("fast", "default", "reduce-overhead", "max-autotune")),
        (dict(backend="llvm"), ValueError, ("llvm", "eager")),
        (dict(backend=3), TypeError, ("backend",)),
        (dict(fullgraph="yes"), TypeError, ("fullgraph", "bool")),
        (dict(dynamic="yes"), TypeError, ("dynamic",)),
        (dict(options=[1]), TypeError, ("options", "dict")),
        (dict(options={"no_such_option": 1}), ValueError, ("no_such_option",)),
        (dict(disable="yes"), TypeError, ("disable", "bool")),
    ],
)
def test_bad_arguments_raise_at_once_and_say_what_is_allowed(arguments, kind, says):
    with pytest.raises(kind) as caught:
        jit.compile(double, **arguments)
    for word in says:
        assert word in str(caught.value), str(caught.value)


def test_unknown_keyword_is_python_s_own_error():
    with pytest.raises(TypeError, match="full_graph"):
        jit.compile(double, full_graph=True)


@pytest.mark.parametrize("decorate", [jit.compile, jit.compile(), jit.compile(fullgraph=True),
                                      jit.compile(backend="eager"), jit.compile(disable=True)],
                         ids=["bare", "called", "fullgraph", "eager", "disabled"])
def test_every_way_of_decorating(decorate):
    compiled = decorate(double)
    x = torch.randn(5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), x * 2)
        torch.testing.assert_close(compiled(x=x), x * 2)
    assert compiled.__name__ == "double" and compiled.__doc__ == "Twice x."
    assert inspect.signature(compiled) == inspect.signature(double)


def test_a_wrong_call_gives_python_s_own_error():
    compiled = jit.compile(double)
    with pytest.raises(TypeError) as ours:
        compiled()
    with pytest.raises(TypeError) as theirs:
        double()
    assert str(ours.value) == str(theirs.value)


def test_a_module_stays_what_it_was():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)
            self.note = "kept"

        def forward(self, x):
            return torch.relu(self.linear(x))

    net = Net().eval()
    compiled = jit.compile(net)
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
    assert isinstance(compiled, Net) and compiled.note == "kept"
    assert list(compiled.state_dict()) == list(net.state_dict()) == ["linear.weight", "linear.bias"]
    assert [n for n, _ in compiled.named_parameters()] == ["linear.weight", "linear.bias"]


def test_explain_reports_and_reads():
    explanation = jit.explain(double)(torch.randn(4))
    assert explanation.graph_count == 1 and explanation.graph_break_count == 0 and explanation.op_count >= 1
    assert len(explanation.break_reasons) == 0 and explanation.guards and explanation.kernels
    assert "1" in str(explanation)


def test_compile_count_and_reset():
    compiled = jit.compile(double)
    before = jit.compile_count()
    compiled(torch.randn(7))
    assert jit.compile_count() == before + 1
    compiled(torch.randn(7))
    assert jit.compile_count() == before + 1
    jit.reset()
    base = jit.compile_count()
    compiled(torch.randn(7))
    assert jit.compile_count() == base + 1


def test_is_compiling_outside():
    assert jit.is_compiling() is False


def test_disable_leaves_a_function_alone():
    seen = []

    @jit.disable
    def plain(x):
        seen.append(jit.is_compiling())
        return x + 1

    assert torch.equal(plain(torch.zeros(2)), torch.ones(2)) and seen == [False]


IMPORT = """
import os, threading, torch
def tasks(): return len(os.listdir("/proc/self/task"))
def children():
    return [c for t in os.listdir("/proc/self/task") for c in open(f"/proc/self/task/{t}/children").read().split()]
import sys
loaded, before = set(sys.modules), tasks()
import jit
assert tasks() == before, "threads were started"
assert threading.active_count() == 1
assert not children(), children()
bad = ("torch._dynamo", "torch._inductor", "torch.fx", "torch._functorch", "torch.export", "torch.jit",
       "torch._subclasses")
new = [m for m in set(sys.modules) - loaded if any(m == b or m.startswith(b + ".") for b in bad)]
assert not new, new
print("quiet")
"""


def test_import_starts_no_thread_and_no_process(python):
    python("import jit")
    assert python(IMPORT).stdout.strip() == "quiet"


COMPILE = """
import sys, torch
loaded = set(sys.modules)
import jit
with torch.no_grad():
    out = jit.compile(lambda x: torch.softmax(x * 2, -1), fullgraph=True)(torch.randn(4, 8))
assert jit.compile_count() == 1
bad = "torch._dynamo", "torch._inductor", "torch.fx", "torch._functorch", "torch.export", "torch._subclasses"
new = [m for m in set(sys.modules) - loaded if m.startswith(bad)]
assert not new, new
print("apart")
"""


def test_compiling_loads_nothing_of_pytorchs_compiler(python):
    assert python(COMPILE).stdout.strip() == "apart"


def test_a_fork_after_import_can_compile(python):
    script = """
import os, torch, jit
pid = os.fork()
if pid == 0:
    with torch.no_grad():
        ok = torch.equal(jit.compile(lambda x: x + 1)(torch.zeros(3)), torch.ones(3))
    os._exit(0 if ok else 1)
assert os.waitpid(pid, 0)[1] == 0
print("forked")
"""
    assert python(script).stdout.strip() == "forked"


def test_a_mode_that_asks_for_more_says_once_what_it_does_not_get():
    jit.arguments._told.clear()
    with pytest.warns(UserWarning, match="max-autotune.*not searched"):
        compiled = jit.compile(double, mode="max-autotune")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in ("max-autotune", "default", None):
            jit.compile(double, mode=mode)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_reset_forgets():
    c = compiled(lambda x: x + 1)
    c(ONES)
    assert len(c.entries) == 1
    jit.reset()
    assert len(c.entries) == 0
    assert torch.equal(c(ONES), ONES + 1) and len(c.entries) == 1


def test_methods_classmethods_and_modules():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3), requires_grad=False)
            self.calls = 0

        def forward(self, x, *, k=1):
            self.calls += 1
            return x * self.w * k

        @jit.compile(backend="eager")
        def other(self, x):
            return self.forward(x) + self.calls

        @classmethod
        @jit.compile(backend="eager")
        def build(cls, x):
            return cls.__name__, x + 1

    m = M()
    c = compiled(m)
    assert torch.equal(c(ONES, k=3), ONES * 3) and m.calls == 1 and c.calls == 1
    assert torch.equal(m.other(ONES), ONES * 3) and isinstance(c, M) and list(c.state_dict()) == ["w"]
    assert M.build(ONES)[0] == "M"
    m.w = torch.nn.Parameter(torch.full((3,), 5.0), requires_grad=False)
    assert torch.equal(c(ONES), ONES * 5)
