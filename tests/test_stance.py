"""Stances, marks on sizes, and functions whose result is taken for a constant."""

import threading

import pytest
import torch

import jit


@pytest.fixture(autouse=True)
def default_stance():
    yield
    jit.set_stance("default")


def counted(calls):
    def fn(x):
        calls.append(jit.is_compiling())
        return x * 2 + x.shape[0]

    return fn


def compiled(calls=None, **options):
    seen = [] if calls is None else calls

    def fn(x):
        seen.append(1)
        return x * 2 + 1

    return jit.compile(fn, **options)


def compilations(run):
    before = jit.compile_count()
    run()
    return jit.compile_count() - before


def test_all_calls_in_eager():
    fn = jit.compile(lambda x: (x * 2, jit.is_compiling()))
    x = torch.ones(3)
    assert fn(x)[1] is True
    with jit.set_stance("force_eager"):
        assert fn(x)[1] is False and compilations(lambda: fn(torch.ones(3, 2))) == 0
        found = []
        thread = threading.Thread(target=lambda: found.append(fn(x)[1]))
        thread.start()
        thread.join()
        assert found == [False]
    assert fn(x)[1] is True


def test_eager_where_something_would_be_compiled():
    fn = jit.compile(lambda x: (x * 2, jit.is_compiling()))
    fn(torch.ones(3))
    with jit.set_stance("eager_on_recompile"):
        assert fn(torch.ones(3))[1] is True
        assert fn(torch.ones(3, dtype=torch.int64))[1] is False
        assert jit.compile(lambda x: jit.is_compiling())(torch.ones(3)) is False
    assert fn(torch.ones(3, dtype=torch.int64))[1] is True


def test_an_error_where_something_would_be_compiled():
    fn = compiled()
    fn(torch.ones(3))
    with jit.set_stance("fail_on_recompile"):
        assert torch.equal(fn(torch.ones(3)), torch.full((3,), 3.0))
        with pytest.raises(RuntimeError, match='test_stance.py.*fail_on_recompile'):
            fn(torch.ones(3, dtype=torch.int64))
    assert fn(torch.ones(3, dtype=torch.int64)).dtype is torch.int64


def test_ways_to_set_it():
    fn = jit.compile(lambda x: jit.is_compiling())
    x = torch.ones(2)
    fn(x)
    jit.set_stance("force_eager")
    assert fn(x) is False
    with jit.set_stance("default"):
        assert fn(x) is True
    assert fn(x) is False
    jit.set_stance("default")

    @jit.set_stance("force_eager")
    def run():
        return fn(x)

    assert fn(x) is True and run() is False and fn(x) is True
    with pytest.raises(ValueError, match="force_eager"):
        jit.set_stance("eager")
    assert fn(x) is True


def test_modules_have_a_stance_too():
    net = jit.compile(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    x = torch.randn(3, 2)
    expected = net(x)
    with jit.set_stance("force_eager"):
        torch.testing.assert_close(net(x), expected)
    with jit.set_stance("fail_on_recompile"):
        torch.testing.assert_close(net(x), expected)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            net(x.double())


@pytest.mark.parametrize("mark", [lambda t: jit.mark_static(t, 0), jit.mark_static,
                                  lambda t: setattr(t, "_dynamo_static_indices", {0})])
def test_sizes_that_are_no_symbols(mark):
    fn = compiled()
    for n in (3, 4, 5):
        x = torch.ones(n, 2)
        mark(x)
        assert compilations(lambda x=x: fn(x)) == 1
        assert torch.equal(fn(x), x * 3)


@pytest.mark.parametrize("mark", [lambda t: jit.mark_dynamic(t, 0),
                                  lambda t: setattr(t, "_dynamo_dynamic_indices", {0}),
                                  lambda t: setattr(t, "_dynamo_weak_dynamic_indices", {0})])
def test_sizes_that_are_symbols_at_once(mark):
    fn = compiled()
    x = torch.ones(3, 2)
    mark(x)
    fn(x)
    assert compilations(lambda: [fn(torch.ones(n, 2)) for n in (4, 7, 9)]) == 0


@pytest.mark.parametrize("mark", [jit.assume_constant_result, torch.compiler.assume_constant_result])
def test_results_that_are_taken_for_constants(mark):
    calls = []

    @mark
    def scale(k):
        calls.append(k)
        return {"by": float(len(calls)), "name": str(k)}

    def fn(x):
        return x * scale(3)["by"], scale(4)["name"]

    compiled = jit.compile(fn, fullgraph=True)
    x = torch.ones(2)
    first = compiled(x)
    assert len(calls) >= 2 and first[1] == "4"
    count = len(calls)
    assert torch.equal(compiled(x)[0], first[0]) and len(calls) == count
