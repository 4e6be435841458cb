"""Calls that fail halfway leave what eager leaves: a plan changes nothing before its last step that may raise,
and the call is then run again in eager.

Failures are natural (a library call refuses a matrix, an index is out of range) or injected at each point where a
plan may fail: at every step, behind the last one, as lack of memory or as a pressed Ctrl-C.
"""

import copy
import random
import signal
import traceback
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit
from jit.codegen import emit_plan
from jit.graph.interpret import compile_python
from jit.runtime import native


def seen(v, memo=None):
    """Everything of a state that a program can tell but for version counters, as something that compares."""
    memo = {} if memo is None else memo
    if id(v) in memo:
        return "again", memo[id(v)]
    if isinstance(v, (list, dict, torch.Tensor)) or hasattr(v, "__dict__"):
        memo[id(v)] = len(memo)
    if isinstance(v, torch.Tensor):
        grad = seen(v.grad, memo) if v.is_leaf and v.grad is not None else None
        values = v.detach().clone().reshape(-1).tolist()
        return "tensor", str(v.dtype), tuple(v.shape), v.stride(), v.requires_grad, values, grad
    if isinstance(v, (list, tuple)):
        return type(v).__name__, [seen(e, memo) for e in v]
    if isinstance(v, dict):
        return "dict", [(k, seen(e, memo)) for k, e in v.items()]
    if isinstance(v, nn.Module):
        return type(v).__name__, seen(list(v.named_parameters()), memo), seen(list(v.named_buffers()), memo)
    if isinstance(v, torch.optim.Optimizer):
        return "optimizer", [seen(s, memo) for s in v.state.values()]
    if isinstance(v, Thing):
        return "thing", seen(vars(v), memo)
    if isinstance(v, types.FunctionType):
        cells = [c.cell_contents for c in v.__closure__ or ()]
        return "function", v.__qualname__, seen(vars(v), memo), seen(cells, memo)
    if isinstance(v, types.GeneratorType):
        return "generator", v.gi_code, v.gi_frame and v.gi_frame.f_lasti
    if hasattr(v, "__next__"):
        return "iterator", list(copy.copy(v))
    return v


def versions(args):
    return [v._version for v in args if isinstance(v, torch.Tensor)]


def copied(args):
    """A deep copy, with the gradients of parameters, which Python's leaves out."""
    made = copy.deepcopy(args)
    for old, new in zip(args, made):
        if isinstance(old, nn.Module):
            for p, q in zip(old.parameters(), new.parameters()):
                q.grad = None if p.grad is None else p.grad.clone()
    return made


class Thing:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def outcome(fn, args):
    """What a call gives or raises."""
    try:
        return "returned", seen(fn(*args))
    except (Exception, KeyboardInterrupt) as e:
        names = [f.name for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__]
        return "raised", type(e), str(e), names[1:], e.__context__ is None


def spoiled(a):
    return -torch.eye(a.shape[-1])


def drawn():
    """The states of the generators."""
    return [torch.get_rng_state().tolist()] + [state.tolist() for state in torch.cuda.get_rng_state_all()]


PROGRAMS = {}


def program(make):
    PROGRAMS[make.__name__] = make
    return make


@program
def write_and_library():
    def f(b, a):
        b.add_(1)
        return torch.linalg.cholesky(a)
    return f, (torch.zeros(4), torch.eye(4))


@program
def effects_and_writes():
    def f(b, a, log, d, o):
        log.append(b.sum())
        b.mul_(2)
        d["x"] = len(log)
        o.seen = b + 1
        o.count += 1
        log.append(o.count)
        return torch.linalg.inv(a) + b
    return f, (torch.ones(3, 3), torch.eye(3) + 1, [], {"x": 0}, Thing(count=0))


@program
def advanced_iterators():
    def f(it, b, a):
        b += next(it)
        c = torch.linalg.inv(a)
        return c * next(it) + b
    return f, (iter([1.0, 2.0, 3.0]), torch.ones(3), torch.eye(3))


@program
def layouts():
    def f(wide, turned, half, empty, large, scalar, a):
        wide[:, 1:3].mul_(2)
        turned.t().add_(wide[:, :1])
        half.mul_(0.5)
        empty.add_(1)
        large.sub_(1)
        scalar.fill_(3)
        return torch.linalg.inv(a) * scalar
    wide, turned, half = torch.randn(4, 8)[:, ::2], torch.randn(4, 4).t(), torch.randn(3, 5, dtype=torch.float16)
    return f, (wide, turned, half, torch.zeros(0, 3), torch.randn(300, 300), torch.zeros(()), torch.eye(3))


@program
def results_on_changed_inputs():
    def f(x, y, a):
        x.mul_(2)
        c = torch.linalg.inv(a)
        y.add_(c.sum())
        return x[1:], y, x.t(), c, y.view(-1)
    return f, (torch.randn(3, 4), torch.randn(2, 2), torch.eye(3))


@program
def swapped():
    def f(x, y, a):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return torch.linalg.inv(a) + x
    return f, (torch.randn(3, 3), torch.randn(3, 3), torch.eye(3))


@program
def writes_behind_the_last_library_call():
    def f(x, y, a):
        c = torch.linalg.inv(a)
        x.add_(c)
        y.mul_(x)
        return x + 1, y.sum()
    return f, (torch.randn(3, 3), torch.randn(3, 3), torch.eye(3))


@program
def batch_norm():
    torch.manual_seed(1)
    first, second = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))
    m = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(36 * 4, 2))

    def f(m, x):
        return m(x)
    return f, (m, torch.randn(4, 3, 10, 10))


def _step(optimizer, zero=True, **options):
    torch.manual_seed(1)
    m = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    o = optimizer(m.parameters(), lr=0.1, **options)

    def f(m, o, x):
        if zero:
            o.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        o.step()
        return loss
    return f, (m, o, torch.randn(4, 8))


@program
def sgd_step():
    return _step(torch.optim.SGD, momentum=0.9)


@program
def adam_step():
    return _step(torch.optim.Adam)


@program
def accumulated_gradients():
    return _step(torch.optim.SGD, zero=False)


@program
def random_numbers():
    def f(x, b):
        b.add_(1)
        y = F.dropout(x, 0.3) + torch.rand(2000) + torch.randn(3).sum()
        return torch.linalg.inv(torch.eye(3)).sum() * y + b
    return f, (torch.ones(2000), torch.zeros(1))


@program
def differentiable_with_state():
    w = torch.randn(4, 4, requires_grad=True)

    def f(w, x, calls):
        calls.add_(1)
        return torch.linalg.inv(x @ w + 5 * torch.eye(4)).sum() * calls
    return f, (w, torch.randn(4, 4), torch.zeros(()))


@program
def broken_graph():
    def f(b, a, log):
        b.add_(1)
        log.append(1)
        jit.graph_break()
        log.append(2)
        b.mul_(3)
        c = torch.linalg.inv(a)
        b.add_(c.sum())
        jit.graph_break()
        b.sub_(1)
        return c @ b
    return f, (torch.ones(3), torch.eye(3), [])


@program
def checked_index():
    def f(b, x, i):
        b.add_(1)
        y = x[i]
        b.mul_(2)
        return y + b.sum()
    return f, (torch.zeros(2), torch.randn(5), torch.tensor([1, 4]))


@program
def called_functions():
    def inner(b, a):
        b.add_(1)
        try:
            return torch.linalg.cholesky(a)
        except RuntimeError:
            b.sub_(10)
            return a * 2

    def f(b, a):
        y = inner(b, a)
        b.mul_(2)
        return y + inner(b, a)
    return f, (torch.zeros(3), torch.eye(3))


@pytest.fixture(autouse=True)
def no_faults():
    yield
    native().fail_at(-1)
    jit.reset()


ON_GPU = torch.get_default_device().type == "cuda"
KEPT = ("batch_norm", "sgd_step", "adam_step", "accumulated_gradients")  # their arguments are known by identity


def _warm(name):
    """A program, compiled and called: (function, compiled function, how to get the arguments of a call)."""
    torch.manual_seed(0)
    f, args = PROGRAMS[name]()
    c = jit.compile(f)
    for seed in range(3):
        torch.manual_seed(seed)
        c(*(args if name in KEPT else copy.deepcopy(args)))
    return f, c, (lambda: args) if name in KEPT else lambda: copy.deepcopy(args)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "broken_graph"])
def test_a_failure_at_any_point_is_an_eager_call(name):
    f, c, arguments = _warm(name)
    for point in range(200):
        mine = arguments()
        theirs = copied(mine)
        torch.manual_seed(5)
        expected = outcome(f, theirs), seen(theirs), drawn()
        torch.manual_seed(5)
        native().fail_at(point)
        got = outcome(c, mine)
        if native().fail_at(-1) >= 0:
            break
        assert (got, seen(mine), drawn()) == expected, point
        assert name in KEPT or versions(mine) == versions(theirs), point
    assert point > 1


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also in a process that a shell has started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("broken_graph", "called_functions")])
def test_an_interrupt_leaves_the_state_before_the_call(name):
    f, c, arguments = _warm(name)
    for point in range(200):
        mine = arguments()
        before, counted = seen(mine), versions(mine)
        native().fail_at(point, True)
        got = outcome(c, mine)
        if native().fail_at(-1) >= 0:
            break
        assert got[:2] == ("raised", KeyboardInterrupt), point
        assert seen(mine) == before and versions(mine) == counted, point
    assert point > 1


def test_failures_between_breaks():
    f, c, arguments = _warm("broken_graph")
    for point in range(100):
        mine, theirs = arguments(), arguments()
        native().fail_at(point)
        got = c(*mine)
        if native().fail_at(-1) >= 0:
            break
        torch.testing.assert_close(got, f(*theirs))
        torch.testing.assert_close(mine[0], theirs[0])
        assert mine[2] == theirs[2] == [1, 2]
    assert point > 5


# What eager refuses; on a GPU it does not say so of an index.
NATURAL = {
    "write_and_library": lambda args: (args[0], spoiled(args[1])),
    "effects_and_writes": lambda args: (args[0], torch.zeros(3, 3), *args[2:]),
    "advanced_iterators": lambda args: (*args[:2], torch.zeros(3, 3)),
    "layouts": lambda args: (*args[:-1], torch.zeros(3, 3)),
    "results_on_changed_inputs": lambda args: (*args[:-1], torch.zeros(3, 3)),
    "swapped": lambda args: (*args[:-1], torch.zeros(3, 3)),
    "writes_behind_the_last_library_call": lambda args: (*args[:-1], torch.zeros(3, 3)),
    "broken_graph": lambda args: (args[0], torch.zeros(3, 3), args[2]),
    **({} if ON_GPU else {"checked_index": lambda args: (*args[:-1], torch.tensor([1, 7]))}),
    "called_functions": lambda args: (args[0], spoiled(args[1])),
}


@pytest.mark.parametrize("name", NATURAL)
def test_what_raises_leaves_what_eager_leaves(name):
    f, c, arguments = _warm(name)
    for bad in (True, False, True, True):
        mine, theirs = arguments(), arguments()
        if bad:
            assert outcome(c, NATURAL[name](mine)) == outcome(f, NATURAL[name](theirs))
            if name != "broken_graph":
                assert seen(mine) == seen(theirs) and versions(mine) == versions(theirs)
            torch.testing.assert_close(*([v for v in args if isinstance(v, torch.Tensor)] for args in (mine, theirs)))
        else:
            assert outcome(c, mine)[0] == "returned"


def test_kernels_of_an_optimizer_write_directly(monkeypatch):
    plans = []
    write = emit_plan.PlanWriter.write
    monkeypatch.setattr(emit_plan.PlanWriter, "write", lambda writer: plans.append(write(writer)) or plans[-1])
    torch.manual_seed(1)
    m = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 8))
    o = torch.optim.Adam(m.parameters(), lr=0.1)

    def f(m, o, x):
        o.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        o.step()
        return loss

    c = jit.compile(f)
    for _ in range(3):
        c(m, o, torch.randn(4, 64))
    plan = plans[-1]
    copied = [step.slot for step in plan.commit if step.kind == "copy"]
    assert {step.kind for step in plan.commit} <= {"call", "launch", "copy", "free"}
    assert len(plan.mutates) + len(copied) == 3 * 6 + 6  # parameters, two moments each, and the counters of steps
    assert len(plan.mutates) >= 2 * 3 + 6  # the others are made by kernels that products read; they are copied


def test_a_warning_that_is_an_error_comes_before_the_writes():
    def f(b, z, log):
        b.add_(1)
        log.append(1)
        return z.to(torch.float32) + b

    c = jit.compile(f)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            c(torch.zeros(2), torch.ones(2, dtype=torch.complex64), [])
            warnings.simplefilter("error")
            mine, theirs = ([torch.zeros(2), torch.ones(2, dtype=torch.complex64), []] for _ in range(2))
            results = outcome(f, theirs), outcome(c, mine)
    finally:
        torch.set_warn_always(always)
    assert results[0] == results[1] and results[0][:2] == ("raised", UserWarning)
    assert mine[0].tolist() == theirs[0].tolist() and mine[2] == theirs[2]


def test_what_is_read_behind_the_graph_and_raises():
    def f(b, x, n, log):
        log.append(1)
        b.add_(1)
        y = torch.repeat_interleave(x, n)
        b.mul_(2)
        log.append(2)
        return y

    def g(b, x, n, log):
        b.add_(1)
        k = int(x[0])
        log.append(k)
        return b

    bad = {f: torch.tensor([1, -1]), g: torch.tensor([0, 0])}
    for fn in (f, g):
        c = jit.compile(fn)
        for k in range(4):
            x = torch.tensor([1.0, 2.0])
            n = bad[fn] if k % 2 else torch.tensor([1, 2])
            if fn is g and k % 2:
                x[0] = float("nan")
            mine, theirs = (torch.zeros(2), x, n, []), (torch.zeros(2), x, n, [])
            assert outcome(c, mine)[:3] == outcome(fn, theirs)[:3]
            assert seen(mine[0])[5] == seen(theirs[0])[5] and mine[3] == theirs[3]


def test_operators_of_the_program_happen_once():
    calls, kernel = [], "CUDA" if ON_GPU else "CPU"
    library = torch.library.Library("jit_failing", "DEF")
    library.define("tell(Tensor x) -> Tensor")
    library.impl("tell", lambda x: (calls.append(float(x.sum())), x + 1)[1], kernel)
    library.impl("tell", lambda x: torch.empty_like(x), "Meta")

    def f(b, a):
        y = torch.ops.jit_failing.tell(b)
        z = torch.ops.jit_failing.tell(y)
        b.add_(2)
        return torch.linalg.cholesky(a) + z

    c = jit.compile(f, fullgraph=True)
    c(torch.zeros(3), torch.eye(3))
    for a in (torch.eye(3), -torch.eye(3), torch.eye(3)):
        results = []
        for fn in (c, f):
            b = torch.zeros(3)
            calls.clear()
            results.append((outcome(fn, (b, a)), seen(b)[5], list(calls)))
        assert results[0][1:] == results[1][1:]
        assert results[0][0][:3] == results[1][0][:3]
    for point in range(100):
        b, calls[:] = torch.zeros(3), []
        native().fail_at(point)
        got = outcome(c, (b, torch.eye(3)))
        if native().fail_at(-1) >= 0:
            break
        assert got == outcome(f, (torch.zeros(3), torch.eye(3))) and b.tolist() == [2] * 3
        assert len(calls) == 4, point
    assert point > 3


def test_a_failing_backward_leaves_no_gradients_behind():
    def f(w, x):
        return torch.linalg.inv(x @ w).sum()

    c = jit.compile(f)
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    c(w, x).backward()
    w.grad = None
    out = c(w, x)
    native().fail_at(1)
    with pytest.raises(RuntimeError, match="injected"):
        out.backward()
    assert native().fail_at(-1) == -1 and w.grad is None
    out = c(w, x)
    out.backward()
    expected = torch.autograd.grad(f(w, x), w)[0]
    torch.testing.assert_close(w.grad, expected)


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("point", [1, 2])
def test_an_exception_of_a_signal_handler_is_passed_on(writes, point):
    def f(b, a, log):
        if writes:
            b.add_(1)
        log.append(1)
        return torch.linalg.inv(a) + b

    def handler(number, frame):
        raise TimeoutError("late")

    c = jit.compile(f)
    c(torch.zeros(3), torch.eye(3), [])
    before = signal.signal(signal.SIGINT, handler)
    try:
        b, log = torch.zeros(3), []
        native().fail_at(point, True)
        got = outcome(c, (b, torch.eye(3), log))
    finally:
        signal.signal(signal.SIGINT, before)
    assert native().fail_at(-1) == -1
    assert got[:3] == ("raised", TimeoutError, "late") and b.tolist() == [0] * 3 and log == []


def test_a_pack_hook_that_raises_behind_the_writes():
    def f(calls, w, x):
        calls.add_(1)
        return (w * x).sin().exp().sum()

    def pack(t):
        raise ValueError("no room")

    c = jit.compile(f)
    args = torch.zeros(()), torch.randn(3, requires_grad=True), torch.randn(3)
    c(*args), c(*args)
    calls = args[0].clone()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        assert outcome(c, (calls, *args[1:]))[:3] == ("raised", ValueError, "no room")
    assert calls == args[0] + 1


def test_random_failures_among_good_calls():
    rng = random.Random(3)
    f, args = PROGRAMS["adam_step"]()
    c = jit.compile(f)
    mine, theirs = args, copy.deepcopy(args)
    for k in range(30):
        native().fail_at(rng.randrange(60) if k % 3 else -1)
        got = c(*mine)
        native().fail_at(-1)
        torch.testing.assert_close(got, f(*theirs))
    for p, q in zip(mine[0].parameters(), theirs[0].parameters()):
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(p.grad, q.grad)


def _stopped_behind_its_writes(graph, examples):
    """A backend that runs the graph, and may then raise."""
    run = compile_python(graph)

    def call(*tensors):
        out = run(*tensors)
        if STOP:
            raise STOP[0]
        return out
    return call


STOP = []


@pytest.mark.parametrize("name", ["effects_and_writes", "writes_behind_the_last_library_call", "checked_index"])
def test_a_backend_that_raises_behind_its_writes_has_written_once(name):
    f, args = PROGRAMS[name]()
    c = jit.compile(f, backend=_stopped_behind_its_writes)
    for error in (None, MemoryError("full"), None, KeyboardInterrupt()):
        STOP[:] = [error] if error else []
        mine, theirs = copied(args), copied(args)
        got, expected = outcome(c, mine), outcome(f, theirs)
        assert got[:2] == (("raised", type(error)) if error else expected[:2])
        assert seen([t for t in mine if isinstance(t, torch.Tensor)]) == seen(
            [t for t in theirs if isinstance(t, torch.Tensor)])
        if error:
            rest = [a for a in args if not isinstance(a, torch.Tensor)]
            assert seen([a for a in mine if not isinstance(a, torch.Tensor)]) == seen(rest)


def test_a_backend_that_raises_before_its_writes_is_followed_by_eager():
    f, args = PROGRAMS["effects_and_writes"]()

    def backend(graph, examples):
        run = compile_python(graph)

        def call(*tensors):
            if STOP:
                raise STOP[0]
            return run(*tensors)
        return call

    c = jit.compile(f, backend=backend)
    for error in (None, MemoryError("full")):
        STOP[:] = [error] if error else []
        mine, theirs = copied(args), copied(args)
        assert outcome(c, mine) == outcome(f, theirs) and seen(mine) == seen(theirs)


@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_steps_of_a_generator_that_fail(backend):
    def g(b, a, log):
        for k in range(3):
            b.add_(1)
            log.append(k)
            yield torch.linalg.inv(a) + b
            log.append(-k)

    def every(fn):
        return lambda *args: [v.tolist() for v in fn(*args)]

    c = jit.compile(g, backend=backend)
    for a in (torch.eye(3), torch.eye(3), torch.zeros(3, 3), torch.eye(3)):
        mine, theirs = (torch.zeros(3), a, []), (torch.zeros(3), a, [])
        assert outcome(every(c), mine)[:3] == outcome(every(g), theirs)[:3]
        assert seen(mine) == seen(theirs) and versions(mine) == versions(theirs)
    if backend == "eager":
        return
    for point in range(100):
        mine = torch.zeros(3), torch.eye(3), []
        native().fail_at(point)
        got = outcome(every(c), mine)
        if native().fail_at(-1) >= 0:
            break
        assert (got, seen(mine)) == (outcome(every(g), theirs := (torch.zeros(3), torch.eye(3), [])), seen(theirs))
    assert point > 5


def test_what_is_read_without_a_graph_and_raises():
    def f(i, n, log):
        log.append(1)
        return torch.bincount(i), n

    def g(x, y, log):
        log.append(len(log))
        return torch.linalg.lstsq(x, y).solution

    bad = torch.full((3, 3), float("nan"))
    for fn, good, bad in ((f, (torch.tensor([1, 2]), 2), (torch.tensor([-1, 2]), 2)),
                          (g, (torch.eye(3), torch.ones(3, 1)), (bad, torch.ones(3, 1)))):
        c = jit.compile(fn)
        for args in (good, good, bad, good, bad):
            mine, theirs = (*args, []), (*args, [])
            assert repr(outcome(c, mine)) == repr(outcome(fn, theirs)) and mine[2] == theirs[2]
