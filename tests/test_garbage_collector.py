"""Python's garbage collector rests while a function is compiled, and is as the program left it afterwards."""

import gc

import pytest
import torch

import jit


@pytest.fixture
def collections():
    """The generations of the collections that have begun; the collector begins one at every tenth object."""
    seen, thresholds = [], gc.get_threshold()

    def began(phase, info):
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(began)
    gc.set_threshold(10, 2, 2)
    yield seen
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(began)
    gc.enable()


def test_nothing_is_collected_while_a_function_is_compiled(collections):
    during = []

    def backend(graph, examples, *more):
        during.append(len(collections))
        made = [[] for _ in range(1000)]
        during.append(len(collections))
        return lambda x: (x + len(made) - 999,)

    compiled = jit.compile(lambda x: x + 1, backend=backend)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert during[0] == during[1] and gc.isenabled()


def test_a_failure_leaves_the_collector_on(collections):
    def backend(graph, examples, *more):
        raise ZeroDivisionError("the backend's own")

    with pytest.raises(Exception, match="the backend's own"):
        jit.compile(lambda x: x + 1, backend=backend, fullgraph=True)(torch.ones(3))
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off(collections):
    gc.disable()
    assert torch.equal(jit.compile(lambda x: x * 2)(torch.ones(3)), torch.full((3,), 2.0))
    assert not gc.isenabled()


def test_the_program_sees_and_switches_its_own_collector(collections):
    @jit.compile
    def seen(x):
        return x + 1 if gc.isenabled() else x - 1

    @jit.compile
    def switched(x):
        gc.disable()
        return x * 2

    assert torch.equal(seen(torch.ones(3)), torch.full((3,), 2.0))
    for _ in range(2):
        gc.enable()
        switched(torch.ones(3))
        assert not gc.isenabled()
