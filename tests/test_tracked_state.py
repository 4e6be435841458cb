"""Switches of PyTorch that a program sets, reads and puts back: compiled calls tell the program what eager tells it,
and leave the switches as eager leaves them."""

import contextlib
import importlib
import pkgutil

import pytest
import torch

import jit
from jit.frame import states, tracked_state

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


class Switch:
    """A switch as programs see it. ``before``, ``other``: two of its values."""

    def __init__(self, read, write, before, other):
        self.read, self.write, self.before, self.other = read, write, before, other


def set_math(value):
    torch.backends.cuda.enable_math_sdp(value)


def set_benchmark(value):
    torch.backends.cudnn.benchmark = value


def set_cudnn_deterministic(value):
    torch.backends.cudnn.deterministic = value


def set_autocast(value):
    torch.set_autocast_enabled("cpu", value)


def set_autocast_dtype(value):
    torch.set_autocast_dtype("cpu", value)


SWITCHES = {
    "grad mode": Switch(torch.is_grad_enabled, torch._C._set_grad_enabled, True, False),
    "autocast": Switch(lambda: torch.is_autocast_enabled("cpu"), set_autocast, False, True),
    "autocast's dtype": Switch(lambda: torch.get_autocast_dtype("cpu"), set_autocast_dtype, torch.bfloat16,
                               torch.float16),
    "autocast's cache": Switch(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, True, False),
    "attention": Switch(lambda: torch.backends.cuda.math_sdp_enabled(), set_math, True, False),
    "cudnn.benchmark": Switch(lambda: torch.backends.cudnn.benchmark, set_benchmark, False, True),
    "cudnn.deterministic": Switch(lambda: torch.backends.cudnn.deterministic, set_cudnn_deterministic, False, True),
    "matmul precision": Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest",
                               "medium"),
}


@pytest.fixture(autouse=True)
def as_they_were():
    """torch.testing forbids programs to set the switches of cuDNN, which is lifted here; afterwards all are as
    before."""
    with torch.backends.__allow_nonbracketed_mutation():
        try:
            yield
        finally:
            for switch in SWITCHES.values():
                switch.write(switch.before)


def agree(fn, switch, *args, starts=None, **options):
    """Calls of a compiled function from each state of the switch give what eager gives, and leave what it leaves."""
    compiled = jit.compile(fn, **options)
    for start in starts or (switch.before, switch.before, switch.other, switch.before, switch.other):
        seen = []
        for run in (fn, compiled):
            switch.write(start)
            try:
                result = run(*args)
            except Exception as error:
                result = (type(error), str(error))
            seen.append((result, switch.read()))
        (want, left), (got, ours) = seen
        assert ours == left, (start, ours, left)
        assert len(want) == len(got)
        for w, g in zip(want, got):
            if isinstance(w, torch.Tensor):
                torch.testing.assert_close(g, w)
                assert g.requires_grad == w.requires_grad and g.dtype == w.dtype
            else:
                assert g == w


@pytest.fixture(params=SWITCHES)
def switch(request):
    return SWITCHES[request.param]


def test_read(switch):
    def f(x):
        return x + 1, switch.read()

    agree(f, switch, X, fullgraph=True)


def test_set_and_read(switch):
    def f(x):
        switch.write(switch.other)
        return x + 1, switch.read()

    agree(f, switch, X, fullgraph=True)


def test_set_without_reading(switch):
    def f(x):
        switch.write(switch.before)
        return (x + 1,)

    agree(f, switch, X, fullgraph=True)


def test_set_and_put_back(switch):
    def f(x):
        old = switch.read()
        switch.write(switch.other)
        y, inside = x * 2, switch.read()
        switch.write(old)
        return y + 1, inside, switch.read()

    agree(f, switch, X, fullgraph=True)


def test_told_to_the_functions_that_are_called(switch):
    def deeper(x):
        return x.relu() if switch.read() == switch.other else x * 3

    def f(x):
        first = deeper(x)
        switch.write(switch.other)
        return first, deeper(x), [switch.read() for _ in range(2)]

    agree(f, switch, X, fullgraph=True)


def test_with(switch):
    @contextlib.contextmanager
    def switched(value):
        old = switch.read()
        switch.write(value)
        try:
            yield old
        finally:
            switch.write(old)

    def f(x):
        with switched(switch.other) as old:
            y, inside = x * 2, switch.read()
            with switched(switch.before):
                deeper = switch.read()
            again = switch.read()
        return y + 1, old, inside, deeper, again, switch.read()

    agree(f, switch, X, fullgraph=True)


def test_set_before_a_break_and_read_after_it(switch):
    def f(x):
        old = switch.read()
        switch.write(switch.other)
        y = x * 2
        jit.graph_break()
        inside = switch.read()
        y = y + 1
        switch.write(old)
        jit.graph_break()
        return y * 2, inside, switch.read()

    agree(f, switch, X)


def test_set_after_a_break_in_a_function_that_is_called(switch):
    def inner(x):
        y = x + 1
        jit.graph_break()
        switch.write(switch.other)
        return y * 2

    def f(x):
        y = inner(x)
        return y - 1, switch.read()

    agree(f, switch, X)


def test_an_exception_while_it_is_set(switch):
    def f(x, n):
        old = switch.read()
        switch.write(switch.other)
        try:
            y = x + [1, 2][n]
        except IndexError:
            y = x * (3 if switch.read() == switch.other else 5)
        finally:
            switch.write(old)
        return y + 1, switch.read()

    for n in (0, 7):
        agree(f, switch, X, n, fullgraph=True)


def test_an_exception_that_leaves_the_program_while_it_is_set(switch):
    def f(x):
        switch.write(switch.other)
        y = x * 2
        raise KeyError(y.shape[0])

    agree(f, switch, X)


def test_set_in_a_loop(switch):
    def f(x):
        seen = []
        for value in (switch.other, switch.before, switch.other):
            switch.write(value)
            seen.append(switch.read())
            x = x + 1
        return x, tuple(seen)

    agree(f, switch, X, fullgraph=True)


def test_one_way_that_is_given_up_leaves_nothing():
    """What a step sets before it turns out that it cannot be captured is set once, by the step itself."""
    calls = []

    def f(x):
        y = x + 1
        torch.set_float32_matmul_precision("high")
        calls.append(torch.get_float32_matmul_precision())
        print(end="")
        return y * 2, torch.get_float32_matmul_precision()

    agree(f, SWITCHES["matmul precision"], X)
    assert set(calls) == {"high"}


def test_products_under_another_precision_are_done_under_it():
    def f(x):
        torch.set_float32_matmul_precision("medium")
        y = x @ x
        torch.set_float32_matmul_precision("highest")
        return y + 1, x @ x

    agree(f, SWITCHES["matmul precision"], X)
    with pytest.raises(jit.errors.Unsupported, match="precision of float32 products"):
        jit.compile(f, fullgraph=True)(X)


def test_a_region_that_takes_the_dtype_of_autocast_from_outside():
    def f(x):
        with torch.autocast("cpu"):
            y = x @ x
        return y, torch.get_autocast_dtype("cpu")

    agree(f, SWITCHES["autocast's dtype"], X, fullgraph=True)


def test_an_unknown_value_is_left_to_torch():
    def f(x):
        torch.backends.cudnn.benchmark = 1 if x.shape[0] > 2 else False
        return x + 1, torch.backends.cudnn.benchmark

    agree(f, SWITCHES["cudnn.benchmark"], X)


def test_each_file_of_states_adds_rows():
    """All that there is to a switch is in its file: the others do not name it."""
    modules = [importlib.import_module(f"{states.__name__}.{m.name}") for m in pkgutil.iter_modules(states.__path__)]
    assert len(tracked_state.TABLE) >= len(modules)
    assert len({state.name for state in tracked_state.TABLE}) > 8
