"""Which memory values have, pass by pass: lifetimes, in-place reuse, direct writes, frees, and what a plan's check
refuses."""

import pytest
import torch
from codegen_graphs import trace

import jit
from jit.codegen import failing, fusion
from jit.codegen.buffers import Buffers
from jit.codegen.direct_writes import write_into_inputs
from jit.codegen.frees import with_frees
from jit.codegen.in_place import reuse_in_place
from jit.codegen.lifetimes import find_lifetimes
from jit.graph.ir import Output
from jit.runtime.plan import Plan
from jit.runtime.steps import Alloc, Arena, Aten, Call, Const, Copy, Free, Slot, Temp, View


def product(b, x, y):
    """A library call, which may raise."""
    return b.aten("aten::mm", "", (x, y), x.type)


def buffers(fn, *tensors, last=False):
    """What the passes before in-place reuse leave. ``last``: kernels that write inputs run as late as they can."""
    graph = trace(fn, tensors)
    schedule = fusion.fuse(graph)
    if last:
        schedule.order = failing.writes_last(graph, schedule, [o.node for o in graph.outputs if o.mutates is not None])
    b = Buffers(graph, schedule)
    find_lifetimes(b)
    return b


def of(b, op, which=0):
    """The storage of the value that a prim makes."""
    return b.storages[[n for n in b.graph.nodes if n.op == op][which]]


X = torch.randn(8, 8)


def test_lifetimes_reach_from_the_maker_to_the_last_reader():
    def fn(b, x):
        e = b.exp(x)
        p = product(b, e, e)
        return product(b, b.sin(p), e)

    b = buffers(fn, X)
    exp, first, sin, second = [of(b, *at) for at in (("exp",), ("aten_call",), ("sin",), ("aten_call", 1))]
    assert [(s.first, s.last) for s in (exp, first, sin, second)] == [(0, 3), (1, 2), (2, 3), (3, 4)]
    assert [s.kind for s in (exp, first, sin, second)] == ["temp", "temp", "temp", "alloc"]
    assert exp.nbytes == 256 and len({id(s) for s in b.storages.values()}) == 5


def test_memory_that_the_library_may_show_is_no_part_of_the_arena():
    def fn(b, x):
        e = b.exp(x)
        shown = b.aten("aten::view", "", (e, [64]), b.reshape(e, (64,)).type)
        return b.sin(shown)

    b = buffers(fn, X)
    assert of(b, "exp").kind == "alloc" and of(b, "aten_call").loose


def test_a_result_takes_the_memory_of_an_operand_that_dies():
    def fn(b, x):
        return product(b, b.sin(product(b, x, x)), x)

    b = buffers(fn, X)
    assert of(b, "sin") is not of(b, "aten_call")
    reuse_in_place(b)
    assert of(b, "sin") is of(b, "aten_call") and of(b, "sin").last == 2


@pytest.mark.parametrize("fn", [
    lambda b, x: product(b, b.sin(p := product(b, x, x)), p),  # read later
    lambda b, x: product(b, b.add(p := product(b, x, x), b.permute(p, (1, 0))), x),  # read at other places too
    lambda b, x: product(b, b.div(p := product(b, x, x), b.sum(p, [1], keepdim=True)), x),  # of rows, read twice
    lambda b, x: product(b, b.sin(x), x),  # memory of the caller's
    lambda b, x: b.add(e := b.exp(x), b.permute(product(b, e, e), (1, 0))),  # a result is no part of the arena
], ids=["later", "elsewhere", "rows", "input", "result"])
def test_memory_that_is_still_needed_is_not_taken(fn):
    b = buffers(fn, X)
    before = dict(b.storages)
    reuse_in_place(b)
    assert all(b.storages[n] is s for n, s in before.items())


def test_the_new_value_of_an_input_is_written_into_it():
    b = buffers(lambda b, x, y: [Output(b.add(x, y), 0)], X, X)
    write_into_inputs(b)
    assert of(b, "add") is b.storages[b.graph.inputs[0]]
    assert b.direct == set(b.graph.outputs) and b.commits == {0}


@pytest.mark.parametrize("fn", [
    lambda b, x, y: [Output(s := b.add(x, y), 0), Output(product(b, s, y))],  # a step behind it may raise
    lambda b, x, y: [Output(b.add(b.permute(x, (1, 0)), y), 0)],  # written before all of it is read
    lambda b, x, y: [Output(s := b.add(x, y), 0), Output(s)],  # a result as well, which is another tensor
    lambda b, x, y: [Output(s := b.add(x, y), 0), Output(s, 1)],  # of two inputs
    lambda b, x, y: [Output(product(b, x, y), 0)],  # not made by a kernel
], ids=["raises", "transposed", "result", "two", "library"])
def test_inputs_are_not_written_too_early(fn):
    b = buffers(fn, X, X)
    write_into_inputs(b)
    assert not b.direct and not b.commits


def test_writes_of_inputs_wait_for_what_may_raise():
    def fn(b, x, y):
        return [Output(b.add(x, y), 0), Output(product(b, y, y))]

    early, late = buffers(fn, X, X), buffers(fn, X, X, last=True)
    write_into_inputs(early)
    write_into_inputs(late)
    assert not early.direct and len(late.direct) == 1 and late.commits == {1}


F = torch.float32


def aten(out, *slots):
    return Aten("aten::add", "Tensor", (*map(Slot, slots), Const(1)), (out,))


def test_slots_are_freed_behind_their_last_use():
    compute = [Arena(1, "cpu", 0), Temp(2, 1, 0, F, "cpu", (0,), (0,)), View(3, 2, (0,), (0,), 0), aten(4, 0, 3),
               aten(5, 4, 4), aten(6, 5, 5)]
    first, second = with_frees((compute, [Copy(0, 5)]), {0, 1, 6}, {1})
    assert first == (*compute[:5], Free(4), compute[5]) and second == (Copy(0, 5), Free(5))


ONE = (("const", 1),)
NEW = Alloc(1, F, "cpu", (0,), (0,))


@pytest.mark.parametrize("compute, commit, why", [
    ((NEW, Call(8, (0, 1), (), (0,))), (), "writes before the commit"),
    ((View(1, 0, (0,), (0,), 0), Copy(1, 0)), (), "writes before the commit"),
    ((NEW,), (Call(8, (1, 0), (), (0,)), aten(2, 1, 1)), "may raise"),
    ((Call(8, (0, 1), (), (1,)), NEW), (), "empty"),
    ((NEW, Free(1), aten(2, 1, 1)), (), "empty"),
    ((NEW, Free(1)), (), "result is not there"),
])
def test_plans_that_break_their_rules_are_refused(compute, commit, why):
    with pytest.raises(ValueError, match=why):
        Plan(1, 0, ONE, 3, compute, (1,), commit).check()


def test_plans_that_keep_their_rules_are_not():
    Plan(1, 0, ONE, 3, (NEW, Call(8, (0, 1), (), (1,)), aten(2, 1, 0), Free(2)), (1,), (Copy(0, 1),)).check()


def test_a_product_that_is_returned_in_another_shape():
    """The library writes into memory of the shape that it computes, and the caller gets a view of that."""
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    for f in (lambda a, b: a @ b, lambda a, b: torch.matmul(a, b).view(3, 2, 5), lambda a, b: (a @ b).flatten()):
        got, expected = jit.compile(f)(a, b), f(a, b)
        assert got.shape == expected.shape and got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)
