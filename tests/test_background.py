"""jit.config.compile_in = "background": calls run in eager while a thread compiles, and later ones are compiled."""

import contextlib
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch.overrides import TorchFunctionMode

import jit
from jit import config, failures, turns
from jit.frame import background, capture, dispatch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture(autouse=True)
def in_background():
    jit.wait_for_compiles()
    with config.patch(compile_in="background"):
        yield
    assert jit.wait_for_compiles(120)


def hits(fn) -> int:
    return getattr(fn, "_jit_dispatcher", fn).hits


class Held:
    """A pass that the thread in the background waits in, at one point after another, until it is let go."""

    def __init__(self):
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, graph):
        self.reached.set()
        while turns.here() and not self.go.wait(0.002):
            turns.point()


@pytest.fixture
def held():
    made = Held()
    yield made
    made.go.set()


def test_first_calls_run_in_eager_and_later_ones_are_compiled(held):
    calls = []

    def f(x, w):
        calls.append(1)  # only the program's own calls are in the list
        return torch.tanh(x @ w).sum()

    c = jit.compile(f, passes=[held])
    x, w = torch.randn(4, 5), torch.randn(5, 3, requires_grad=True)
    for n in range(1, 4):
        assert torch.equal(c(x, w), f(x, w)) and len(calls) == 2 * n and hits(c) == 0
        assert not jit.wait_for_compiles(0)
    held.go.set()
    assert jit.wait_for_compiles()
    got = c(x, w)
    assert hits(c) == 1 and len(calls) == 7
    torch.testing.assert_close(got, f(x, w))
    got.backward()
    grad, w.grad = w.grad, None
    f(x, w).backward()
    torch.testing.assert_close(grad, w.grad)


def test_results_of_first_calls_have_gradients_and_effects_are_done_once():
    log = []

    def f(x, out):
        out.add_(x.detach())
        log.append(out.shape[0])
        return (x * x).sum()

    c = jit.compile(f)
    x, out = torch.randn(3, requires_grad=True), torch.zeros(3)
    for n in range(1, 4):
        c(x, out).backward()
        jit.wait_for_compiles()
        torch.testing.assert_close(out, n * x.detach())
        torch.testing.assert_close(x.grad, 2 * n * x.detach())
        assert log == [3] * n
    assert hits(c) == 2


def test_exceptions_are_those_of_eager():
    def f(x, y):
        if x.shape[0] > 3:
            raise KeyError("too long")
        return x + y

    c = jit.compile(f)
    for _ in range(3):
        with pytest.raises(KeyError, match="too long"):
            c(torch.ones(4), torch.ones(4))
        with pytest.raises(RuntimeError, match="must match"):
            c(torch.ones(3), torch.ones(2))
        assert torch.equal(c(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))
        jit.wait_for_compiles()


VARIABLE = contextvars.ContextVar("a variable of the program's", default=1)


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def variable():
    token = VARIABLE.set(5)
    try:
        yield
    finally:
        VARIABLE.reset(token)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


STATES = {
    "grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16), "dtype": default_dtype,
    "autocast without cache": lambda: torch.autocast("cpu", torch.float16, cache_enabled=False),
    "device": lambda: torch.device("meta"), "variable": variable, "deterministic": deterministic,
}


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_the_call_is_that_of_the_capture(state):
    def f(x, w):
        y = x @ w + torch.ones(3, device="cpu") * VARIABLE.get()
        return y, torch.zeros(2), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    c = jit.compile(f)
    x, w = torch.randn(2, 4), torch.randn(4, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with STATES[state]():
            first, want = c(x, w), f(x, w)
            assert jit.wait_for_compiles()
            got = c(x, w)
    assert hits(c) == 1
    for one in (first, got):
        for a, b in zip(one[:2], want[:2]):
            assert (a.dtype, a.device, a.requires_grad, a.is_inference()) == (
                b.dtype, b.device, b.requires_grad, b.is_inference())
        torch.testing.assert_close(one[0], want[0])
        assert one[2:] == want[2:]
    if state != "grad":  # entered in that state, it fits no other
        c(x, w)
        assert hits(c) == 1


class Doubled(TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kwargs=None):
        out = fn(*args, **(kwargs or {}))
        return out * 2 if fn is torch.sin else out


def test_modes_and_transforms_are_seen():
    c = jit.compile(lambda x: torch.sin(x) + 1)
    x = torch.randn(3)
    for _ in range(3):
        with Doubled():
            got = c(x)
        torch.testing.assert_close(got, torch.sin(x) * 2 + 1)
        torch.testing.assert_close(torch.vmap(c)(x.expand(2, 3)), (torch.sin(x) + 1).expand(2, 3))
        torch.testing.assert_close(c(x), torch.sin(x) + 1)
        jit.wait_for_compiles()


def test_a_switch_changed_meanwhile_is_not_relied_on(held):
    def f(x):
        return torch.ones(3) * 2, x / 3  # whose dtypes are the default one

    c = jit.compile(f, passes=[held])
    x = torch.arange(3)
    c(x)
    assert held.reached.wait(60)
    with default_dtype():
        held.go.set()
        jit.wait_for_compiles()
        for _ in range(2):
            assert [t.dtype for t in c(x)] == [torch.float64] * 2
            jit.wait_for_compiles()
    for _ in range(3):
        assert [t.dtype for t in c(x)] == [torch.float32] * 2
        jit.wait_for_compiles()
    assert hits(c) > 0


def test_metadata_changed_meanwhile_are_not_relied_on(held):
    w = torch.nn.Parameter(torch.randn(3))
    c = jit.compile(lambda x: (x * w).sum(), passes=[held])
    x = torch.randn(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c(x)
        assert held.reached.wait(60)
        w.requires_grad_(False)
        held.go.set()
        for _ in range(3):
            jit.wait_for_compiles()
            assert not c(x).requires_grad
        w.requires_grad_()
        for _ in range(3):
            got = c(x)
            assert got.requires_grad
            torch.testing.assert_close(torch.autograd.grad(got, w)[0], x)
            jit.wait_for_compiles()
    assert hits(c) > 0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
        self.rest = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.RReLU(), torch.nn.Dropout(0.3))
        self.rnn = torch.nn.LSTM(16, 16, 2, dropout=0.1)

    def forward(self, x):
        y = self.rest(self.attention(x, x, x, need_weights=False)[0])
        y = torch.nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.1)
        return self.rnn(y)[0] + torch.rand_like(y) + torch.bernoulli(torch.full_like(y, 0.5)) + torch.randn(16).to(y)


def test_no_random_numbers_are_taken_from_the_program():
    torch.manual_seed(3)
    model, x = Model(), torch.randn(2, 5, 16)
    c = jit.compile(model)
    c(x)
    state = torch.get_rng_state()
    assert jit.wait_for_compiles()
    assert torch.equal(torch.get_rng_state(), state)
    assert hits(c) or c._jit_dispatcher.entries  # in the background, all of it


def test_the_program_draws_while_it_is_compiled():
    """What it draws in the meantime is what it draws in eager."""
    torch.manual_seed(3)
    model, x = Model(), torch.randn(2, 5, 16)
    c = jit.compile(model)
    torch.manual_seed(4)
    c(x)
    drawn = [torch.rand(2)]
    while not jit.wait_for_compiles(0):
        drawn.append(torch.rand(2))
    torch.manual_seed(4)
    model(x)
    assert all(torch.equal(torch.rand(2), known) for known in drawn)


def test_values_of_tensors_are_not_read_meanwhile():
    def f(x, n):
        return x.repeat_interleave(n) * 2

    c = jit.compile(f)
    x, n = torch.arange(3.0), torch.tensor([1, 2, 3])
    for _ in range(4):
        assert torch.equal(c(x, n), f(x, n))
        n.add_(1)
        jit.wait_for_compiles()
    assert c.on_miss.waiting.in_call


def test_what_only_the_thread_of_the_call_has():
    own = threading.local()
    own.scale = 3.0

    def f(x):
        return x * own.scale, threading.get_ident()

    c = jit.compile(f)
    for _ in range(3):
        got = c(torch.ones(2))
        assert torch.equal(got[0], torch.full((2,), 3.0)) and got[1] == threading.get_ident()
        jit.wait_for_compiles()
    assert hits(c) == 1  # the second call has compiled it


def test_arguments_are_let_go(held):
    c = jit.compile(lambda x: x + 1, passes=[held])
    x = torch.ones(1000)
    gone = weakref.ref(x)
    c(x)
    held.go.set()
    jit.wait_for_compiles()
    del x
    assert gone() is None


def test_a_module_may_be_collected_meanwhile(held):
    model = torch.nn.Linear(3, 3)
    gone = weakref.ref(model)
    c = jit.compile(model, passes=[held])
    other = jit.compile(torch.nn.Linear(2, 2))
    c(torch.ones(3))
    other(torch.ones(2))  # behind it in the queue
    assert held.reached.wait(60)
    del c, model, other
    held.go.set()
    assert jit.wait_for_compiles()
    gc.collect()
    assert gone() is None


def test_errors_of_changes_are_told_to_nobody(monkeypatch):
    """Something changes while a rule iterates over it: tried again, and in the call in the end."""
    run, errors = capture.Capture.run, [RuntimeError("dictionary changed size during iteration"), IndexError("gone")]

    def failing(self):
        if turns.here() and errors:
            try:
                raise errors.pop()
            except Exception as error:
                failures.report(error, None, "it runs in eager")
        return run(self)

    monkeypatch.setattr(capture.Capture, "run", failing)
    c = jit.compile(lambda x: x * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(3):
            assert hits(c) == 0 and torch.equal(c(torch.ones(2)), torch.full((2,), 3.0))
            assert jit.wait_for_compiles()
        assert not errors and torch.equal(c(torch.ones(2)), torch.full((2,), 3.0)) and hits(c) == 1


@pytest.mark.parametrize("strict", [True, False])
def test_a_rule_that_always_fails_tells_in_the_call(monkeypatch, strict):
    def failing(self):
        raise AssertionError("a fault of ours")

    monkeypatch.setattr(dispatch.Missed, "guard_program", lambda self, captured: failing(self))
    failures.forget()
    with config.patch(strict=strict):
        c = jit.compile(lambda x: x * 3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(background.ATTEMPTS):
                c(torch.ones(2))
                jit.wait_for_compiles()
        expected = (pytest.raises(AssertionError, match="a fault of ours") if strict
                    else pytest.warns(failures.InternalFailure, match="a fault of ours"))
        with expected:
            c(torch.ones(2))


def test_errors_of_fullgraph_reach_the_program():
    def f(x):
        jit.graph_break()
        return x + 1

    c = jit.compile(f, fullgraph=True)
    assert torch.equal(c(torch.ones(2)), torch.full((2,), 2.0))
    jit.wait_for_compiles()
    for _ in range(2):
        with pytest.raises(jit.Unsupported):
            c(torch.ones(2))


def test_error_on_recompile():
    c = jit.compile(lambda x: x + 1, dynamic=False, options={"error_on_recompile": True})
    c(torch.ones(2))
    jit.wait_for_compiles()
    c(torch.ones(2))
    assert hits(c) == 1
    with pytest.raises(jit.RecompileError):
        c(torch.ones(3))


def test_stances(held):
    c = jit.compile(lambda x: x + 1, passes=[held])
    with jit.set_stance("fail_on_recompile"), pytest.raises(jit.RecompileError):
        c(torch.ones(2))
    with jit.set_stance("eager_on_recompile"):
        c(torch.ones(2))
        assert jit.wait_for_compiles(0)
    c(torch.ones(2))
    assert held.reached.wait(60)
    other = jit.compile(lambda x: x + 2)
    other(torch.ones(2))
    with jit.set_stance("force_eager"):  # what is begun is made, what is not is not
        held.go.set()
        assert jit.wait_for_compiles() and not other.entries
    c(torch.ones(2))
    assert hits(c) == 1


def test_one_function_in_many_threads_is_compiled_once(held):
    c, before = jit.compile(lambda x: torch.cos(x) * 2, passes=[held]), jit.compile_count()
    x, wrong = torch.randn(5), []

    def work():
        for _ in range(5):
            if not torch.allclose(c(x), torch.cos(x) * 2):
                wrong.append(1)

    for _ in range(2):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        held.go.set()
        jit.wait_for_compiles()
    assert not wrong and jit.compile_count() == before + 1 and len(c.entries) == 1 and hits(c) == 20


def test_reset_in_the_middle(held):
    c = jit.compile(lambda x: x * 5, passes=[held])
    c(torch.ones(2))
    assert held.reached.wait(60)
    jit.reset()  # it does not wait until the pass is let go
    assert jit.wait_for_compiles(0) and not c.entries
    held.go.set()
    c(torch.ones(2))
    jit.wait_for_compiles()
    assert torch.equal(c(torch.ones(2)), torch.full((2,), 5.0)) and hits(c) == 1


def test_waiting_can_be_interrupted(held):
    c = jit.compile(lambda x: x * 6, passes=[held])
    c(torch.ones(2))
    assert held.reached.wait(60) and not jit.wait_for_compiles(0.01)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            jit.wait_for_compiles(60)
    finally:
        signal.signal(signal.SIGALRM, before)
    held.go.set()
    assert jit.wait_for_compiles()
    c(torch.ones(2))
    assert hits(c) == 1


def test_a_fork_meanwhile(held):
    c = jit.compile(lambda x: torch.sin(x) * 7, passes=[held])
    x = torch.ones(2)
    c(x)
    assert held.reached.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            fresh = jit.compile(lambda x: torch.exp(x) * 8)
            right = True
            for fn, plain in ((c, lambda x: torch.sin(x) * 7), (fresh, lambda x: torch.exp(x) * 8)):
                held.go.set()
                for _ in range(2):
                    right &= torch.allclose(fn(x), plain(x))
                    right &= jit.wait_for_compiles(60)
                right &= hits(fn) == 1
            code = 0 if right else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.go.set()
    assert jit.wait_for_compiles()
    torch.testing.assert_close(c(x), torch.sin(x) * 7)
    assert hits(c) == 1


PROGRAM = """
import sys, threading, torch, jit
from jit import turns
reached = threading.Event()
def held(graph):
    reached.set()
    while {endless}:
        turns.point()
c = jit.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)), passes=[held])
c(torch.ones(4))
{wait}
print("done")
"""


@pytest.mark.parametrize("wait, endless", [("reached.wait()", True), ("", True), ("reached.wait()", False)])
def test_the_end_of_the_program(tmp_path, wait, endless):
    environment = {**os.environ, "JIT_COMPILE_IN": "background", "PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(wait=wait, endless=endless)], env=environment,
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_explain_and_verify_compile_in_the_call():
    f = lambda x: torch.tanh(x) + 1  # noqa: E731
    assert jit.explain(f)(torch.ones(3)).graph_count == 1
    assert jit.verify(f)(torch.ones(3)).ok


def test_breaks_and_what_goes_on_behind_them():
    def f(x, items):
        y = torch.sin(x)
        jit.graph_break()
        z = y * len(items)
        return torch.stack(sorted([z, y], key=lambda t: float(torch.cos(t).sum())))

    c = jit.compile(f)
    x = torch.randn(4)
    for _ in range(6):
        torch.testing.assert_close(c(x, [1, 2]), f(x, [1, 2]))
        jit.wait_for_compiles()
    assert hits(c) >= 4


def test_generator_functions():
    def series(x):
        for i in range(3):
            x = x * 2 + i
            yield x

    c = jit.compile(series)
    for _ in range(4):
        assert all(map(torch.equal, c(torch.ones(2)), series(torch.ones(2))))
        jit.wait_for_compiles()


def test_too_many_entries_give_up():
    c = jit.compile(lambda x: x + 1, dynamic=False, options={"cache_limit": 2})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(5):
            assert torch.equal(c(torch.ones(n + 2)), torch.full((n + 2,), 2.0))
            jit.wait_for_compiles()
    assert len(c.entries) == 2 and len(told) == 1 and "runs in eager from now on" in str(told[0].message)


def test_processes_that_have_to_do_the_same(monkeypatch):
    monkeypatch.setattr(background, "in_several_processes", lambda: True)
    c = jit.compile(lambda x: x + 1, options={"bucket_collectives": True})
    c(torch.ones(2))
    c(torch.ones(2))
    assert hits(c) == 1  # compiled in the first call
    c = jit.compile(lambda x: x + 1)
    c(torch.ones(2))
    c(torch.ones(2))
    jit.wait_for_compiles()
    c(torch.ones(2))
    assert hits(c) >= 1


def test_options_of_a_function_are_not_those_of_the_program(held):
    seen = []

    def passed(graph):
        seen.append(config.match_eager_rounding)
        held(graph)

    c = jit.compile(lambda x: x + 1, passes=[passed], options={"match_eager_rounding": True})
    c(torch.ones(2))
    assert held.reached.wait(60) and not config.match_eager_rounding
    config.match_eager_rounding = False
    held.go.set()
    jit.wait_for_compiles()
    assert seen == [True] and not config.match_eager_rounding


def test_garbage_of_the_program_is_collected_meanwhile(held):
    class Circle:
        def __init__(self):
            self.itself = self

    before = gc.get_threshold()
    c = jit.compile(lambda x: x + 1, passes=[held])
    c(torch.ones(2))
    assert held.reached.wait(60)
    gone = weakref.ref(Circle())
    for _ in range(200):
        if gone() is None:
            break
        held.go.wait(0.05)
    assert gone() is None
    held.go.set()
    jit.wait_for_compiles()
    assert gc.get_threshold() == before
    other = jit.compile(lambda x: x + 2)
    try:
        other(torch.ones(2))
        gc.set_threshold(500, 5, 5)
        jit.wait_for_compiles()
        assert gc.get_threshold() == (500, 5, 5)
    finally:
        gc.set_threshold(*before)


def test_the_option():
    with config.patch(compile_in="call"):
        c = jit.compile(lambda x: x + 1, options={"compile_in": "background"})
        d = jit.compile(lambda x: x + 1)
        c(torch.ones(2))
        d(torch.ones(2))
        jit.wait_for_compiles()
        c(torch.ones(2))
        d(torch.ones(2))
        assert hits(c) == hits(d) == 1
    with pytest.raises(ValueError, match="expected call or background"):
        config.compile_in = "thread"
    with pytest.raises(ValueError, match="expected call or background"):
        jit.compile(lambda x: x, options={"compile_in": "thread"})


def test_a_call_that_compiles_itself_waits_for_the_thread(held):
    c = jit.compile(lambda x: x * 9, passes=[held])
    c(torch.ones(2))
    assert held.reached.wait(60)
    in_call = jit.compile(lambda x: x * 10, options={"compile_in": "call"})
    threading.Timer(0.05, held.go.set).start()
    assert torch.equal(in_call(torch.ones(2)), torch.full((2,), 10.0)) and len(in_call.entries) == 1


def test_iterators_that_the_call_advances():
    def f(x, items):
        y = x * next(items)
        return y + sum(items)

    c = jit.compile(f)
    for _ in range(4):
        assert torch.equal(c(torch.ones(2), iter([2, 3, 4])), torch.full((2,), 9.0))
        jit.wait_for_compiles()
    assert hits(c) == 2


def test_containers_that_the_call_changes():
    log = []

    def f(x):
        log.append(1)
        return x + len(log)

    c = jit.compile(f)
    for n in range(1, 9):
        assert torch.equal(c(torch.ones(2)), torch.full((2,), n + 1.0)) and len(log) == n
        jit.wait_for_compiles()
    assert hits(c) > 0


def test_code_that_is_replaced_meanwhile(held):
    def f(x):
        return x + 1

    def g(x):
        return x + 2

    c = jit.compile(f, passes=[held])
    c(torch.ones(2))
    assert held.reached.wait(60)
    f.__code__ = g.__code__
    for _ in range(4):
        assert torch.equal(c(torch.ones(2)), torch.full((2,), 3.0))
        held.go.set()
        jit.wait_for_compiles()
    assert hits(c) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu():
    """On the stream of the call, and without the program's random numbers; what is timed is tensors of its own."""
    model, x = Model().cuda(), torch.randn(2, 5, 16, device="cuda")
    c = jit.compile(model, options={"templates": True})
    plain = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
    d, y = jit.compile(plain), torch.randn(8, 64, device="cuda")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            c(x), d(y)
            torch.cuda.synchronize()
            states = torch.get_rng_state(), torch.cuda.get_rng_state()
            assert jit.wait_for_compiles()
            assert all(map(torch.equal, states, (torch.get_rng_state(), torch.cuda.get_rng_state())))
            c(x).sum().backward()
            torch.testing.assert_close(d(y), plain(y))
            torch.cuda.synchronize()
    assert hits(d) >= 2 and hits(c) + len(c._jit_dispatcher.entries)
