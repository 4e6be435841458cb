"""A failure inside any rule of the compiler: eager's result and one warning that names both places, the error itself
with ``strict``, and other shapes compiled all the same."""

import os
import warnings

import pytest
import torch

import jit
from jit import compiling, failures
from jit.codegen import cpp, lower, planner
from jit.frame import capture, dispatch, emit, executor
from jit.graph import registry
from jit.graph.autodiff import rules
from jit.graph.ops import externs

BROKEN = 3  # the size for which the rule fails
FILE = os.path.abspath(__file__)


class Broken(Exception):
    """Raised by a broken rule."""


def has_broken_size(v) -> bool:
    """Whether a tensor of the broken size is among arguments of whatever kind."""
    if isinstance(v, (list, tuple)):
        return any(map(has_broken_size, v))
    if hasattr(v, "nodes"):
        return has_broken_size(list(v.nodes))
    shape = getattr(v, "shape", None)
    if shape is None and hasattr(v, "axes"):
        shape = [a.size for a in v.axes]
    return isinstance(shape, (tuple, list)) and BROKEN in list(shape)


def broken(fn):
    def rule(*args, **kwargs):
        if has_broken_size(args):
            raise Broken("no such luck")
        return fn(*args, **kwargs)

    return rule


def broken_op(name):
    entry = registry.OPS[name]
    return (registry.OPS, name, type(entry)(entry.name, broken(entry.fn), entry.varargs, entry.alias, entry.raw,
                                            entry.pointwise, entry.wraps))


def broken_handler(monkeypatch):
    """An opcode handler that fails where the frame has a tensor of the broken size among its arguments."""
    real = executor.HANDLERS["RETURN_VALUE"]

    def rule(frame, instr):
        value = frame.locals.get("x")
        if value is not None and value.obj is not None and BROKEN in value.obj.shape and value.handle(frame.s):
            raise Broken("no such luck")
        return real(frame, instr)

    monkeypatch.setitem(executor.HANDLERS, "RETURN_VALUE", rule)


def broken_step(monkeypatch, owner, name):
    """``owner.name`` fails while something of the broken size is compiled."""
    real, sizes = getattr(owner, name), []
    compile_graph = dispatch.Settings.compile_graph

    def noted(self, graph, inputs, *rest):
        sizes[:] = [BROKEN in v.obj.shape for v in inputs]
        return compile_graph(self, graph, inputs, *rest)

    def rule(*args, **kwargs):
        if any(sizes):
            raise Broken("no such luck")
        return real(*args, **kwargs)

    monkeypatch.setattr(dispatch.Settings, "compile_graph", noted)
    monkeypatch.setattr(owner, name, rule)


def in_the_frame(monkeypatch):
    real = emit.Emitter.finish

    def finish(self, plan, inputs, *rest):
        if any(BROKEN in v.obj.shape for v in self.session.recording.inputs):
            raise Broken("no such luck")
        return real(self, plan, inputs, *rest)

    monkeypatch.setattr(emit.Emitter, "finish", finish)


# name -> what breaks a rule
RULES = {
    "op expansion": lambda m: m.setitem(*broken_op("softmax")),
    "type rule": lambda m: m.setattr(externs, "mm", broken(externs.mm)),
    "opcode handler": broken_handler,
    "pass": lambda m: broken_step(m, compiling, "run_passes"),
    "planner": lambda m: broken_step(m, planner, "prepare"),
    "lowering": lambda m: broken_step(m, lower, "lower_group"),
    "emitter": lambda m: broken_step(m, cpp, "kernel_text"),
    "rewritten bytecode": in_the_frame,
    "guards": lambda m: m.setattr(capture.Capture, "guard_aliases", broken_guards(capture.Capture.guard_aliases)),
    "gradient rule": lambda m: m.setitem(rules.VJPS, "exp", broken(rules.VJPS["exp"])),
}


def broken_guards(real):
    def guard_aliases(self):
        if any(BROKEN in v.obj.shape for v in self.session.recording.inputs):
            raise Broken("no such luck")
        return real(self)

    return guard_aliases


def program(x):
    y = torch.softmax(x, -1).exp()
    return (y @ y.t() * 0.1).exp() * 2


def inputs(n, grad):
    return (torch.arange(float(n * n)).reshape(n, n) / 7).requires_grad_(grad)


def run(fn, n, grad):
    x = inputs(n, grad)
    result = fn(x)
    if not grad:
        return result
    result.sum().backward()
    return result.detach(), x.grad


@pytest.fixture(autouse=True)
def told_again():
    failures.forget()
    yield
    failures.forget()


@pytest.mark.parametrize("dynamic", [None, False], ids=["sizes become symbols", "sizes stay"])
@pytest.mark.parametrize("rule", RULES)
def test_a_failure_at_one_shape(rule, dynamic, monkeypatch):
    grad = rule == "gradient rule"
    want = {n: run(program, n, grad) for n in (2, BROKEN, 4, 5)}
    RULES[rule](monkeypatch)
    captures = []
    fn = dispatch.make_dispatcher(program,
                                  dispatch.Settings(jit.backends.BACKENDS["jit"], False, dynamic,
                                                    on_capture=captures.append))
    told = []
    for n in (BROKEN, 2, BROKEN, 4, 5, BROKEN, 2):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.testing.assert_close(run(fn, n, grad), want[n], rtol=1e-4, atol=1e-4)
        told += seen
    assert len(told) == 1 and told[0].category is failures.InternalFailure
    text = str(told[0].message)
    assert told[0].filename == FILE and "Broken: no such luck" in text and "JIT_STRICT=1" in text
    first = program.__code__.co_firstlineno
    assert any(f"program ({FILE}:{line})" in text for line in range(first, first + 3))
    assert f"{FILE}:" in text.split("no such luck")[1] or "jit/" in text.split("no such luck")[
        1], "the failing rule is not named"
    assert captures[-1].graph is not None and not captures[-1].failed
    before = len(captures)
    run(fn, BROKEN, grad), run(fn, 5, grad), run(fn, 2, grad)
    assert len(captures) == before, "captured again"


@pytest.mark.parametrize("rule", RULES)
def test_strict(rule, monkeypatch):
    grad = rule == "gradient rule"
    want = run(program, 2, grad)
    RULES[rule](monkeypatch)
    with jit.config.patch(strict=True):
        fn = jit.compile(program)
        for _ in range(2):
            with pytest.raises(Broken, match="no such luck"):
                run(fn, BROKEN, grad)
        torch.testing.assert_close(run(fn, 2, grad), want)


def test_what_fails_always_is_given_up(monkeypatch):
    calls = []

    def fails(*args):
        calls.append(1)
        raise Broken("no such luck")

    monkeypatch.setattr(capture.Capture, "set_up", fails)
    fn = jit.compile(program)
    with pytest.warns(failures.InternalFailure):
        for n in range(2, 12):
            torch.testing.assert_close(fn(inputs(n, False)), program(inputs(n, False)))
    assert 1 <= len(calls) <= 4


def test_it_is_an_error_in_this_suite(monkeypatch):
    monkeypatch.setitem(*broken_op("softmax"))
    with pytest.raises(failures.InternalFailure, match="no such luck"):
        jit.compile(program)(inputs(BROKEN, False))


def test_second_derivatives(monkeypatch):
    def gradients(fn):
        x = torch.tensor([0.5, 1.0], requires_grad=True)
        (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def fails(*args):
        raise Broken("no such luck")

    monkeypatch.setattr("jit.second._Second.gradients", fails)
    third = lambda x: x.sin() * x * x  # noqa: E731
    with pytest.warns(failures.InternalFailure, match="second derivatives"):
        torch.testing.assert_close(gradients(jit.compile(third)), gradients(third))
    failures.forget()
    with jit.config.patch(strict=True), pytest.raises(Broken):
        gradients(jit.compile(third))
