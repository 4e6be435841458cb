"""Pointwise work behind concatenations of many parts: done part by part, with eager's values and gradients."""

import pytest
import torch
from graph_harness import trace

import jit
from jit.graph.passes import SCHEDULED, concatenations, optimize
from jit.graph.verify import verify

WIDTHS = ([1, 2, 3, 4, 5, 6], [3] * 8, [2, 9, 1], [0, 4, 4, 4, 4, 4])


def of_a_row(xs, y, z):
    return (torch.cat(xs, 1) * y + z).relu().to(torch.float64)


def of_every_element(xs, y, z):
    return torch.where(torch.cat(xs, 1) > 0, y.expand(z.shape[0], -1), z)


@pytest.mark.parametrize("program", [of_a_row, of_every_element])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_values_and_gradients(program, widths):
    compiled = jit.compile(program, fullgraph=True)
    for rows in (4, 7, 1):
        xs = [torch.randn(rows, w, requires_grad=True) for w in widths]
        y, z = torch.randn(sum(widths), requires_grad=True), torch.randn(rows, 1, requires_grad=True)
        got, want = compiled(xs, y, z), program(xs, y, z)
        assert got.dtype is want.dtype and got.stride() == want.stride()
        torch.testing.assert_close(got, want)
        for a, b in zip(torch.autograd.grad(got.sum(), [*xs, y, z], allow_unused=True),
                        torch.autograd.grad(want.sum(), [*xs, y, z], allow_unused=True)):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


def by_parts(program, x):
    graph = optimize(trace(program, x)[0])
    made = verify(concatenations.compute_parts(graph))
    return [n.op for n in made.nodes if n.op in ("cat", "mul", "exp")], made is graph


def test_the_concatenation_comes_last():
    assert concatenations.compute_parts in SCHEDULED
    x = torch.randn(3, 4)
    assert by_parts(lambda x: (torch.cat([x, x + 1] * 3) * 2).exp(), x) == (["mul"] * 6 + ["exp"] * 6 + ["cat"], False)
    assert by_parts(lambda x: torch.cat([x, x + 1, x]) * 2, x) == (["cat", "mul"], True)

    def read_twice(x):
        y = torch.cat([x, x + 1] * 3)
        return y, y * 2

    assert by_parts(read_twice, x) == (["cat", "mul"], True)
