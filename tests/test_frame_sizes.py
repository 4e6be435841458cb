"""Sizes that become symbols, at values where layouts and errors are others: nothing, one, and what an error names."""

import torch
from frame_harness import Cases, said, same, sequence

import jit

cases = Cases()
VECTOR, MATRIX = torch.arange(3.0), torch.arange(6.0).view(2, 3)


@cases(torch.arange(6.0).view(2, 3), torch.arange(6.0).view(3, 2), fullgraph=False)
def layouts_of_one_row(x, y):
    row, column = x[::2], y.t()[:1]
    return (row.sort(), row.argsort(), row.msort(), [fn(column > 1) for fn in (torch.sin, torch.sigmoid, torch.exp)],
            torch.where(column > 1, column, row), (column > 1).clamp(0, 2))


test_programs = cases.test()


def test_graphs_of_nothing_but_an_integer():
    def f(n):
        jit.graph_break()
        return torch.arange(n).add_(n)

    c = jit.compile(f, backend="eager")
    for n in (1, 2, 3):
        assert torch.equal(c(n), f(n))


def test_rows_that_have_one_element_now():
    def f(x):
        return [row for row in x[1:].transpose(0, 1)]

    jit.reset()
    compiled = jit.compile(f, backend="eager", dynamic=True, fullgraph=True)
    for x in (torch.arange(6.0).view(3, 2).t(), torch.arange(12.0).view(3, 4).t(), torch.arange(6.0).view(2, 3).t()):
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(f(x), compiled(x), strict=True))


def test_sizes_that_are_one_only_now():
    def f(x, n):
        return x[:n].squeeze(0), torch.ones(n).squeeze(), x[:n].squeeze()

    jit.reset()
    compiled = jit.compile(f, backend="eager", dynamic=True)
    for n in (3, 1, 2, 1):
        for a, b in zip(f(MATRIX.view(3, 2), n), compiled(MATRIX.view(3, 2), n), strict=True):
            assert a.shape == b.shape and torch.equal(a, b)


def test_an_error_that_names_sizes_is_for_these_sizes():
    def f(x, y):
        return said(lambda: x.sum() * x.masked_fill(y > torch.tensor(1), 0))

    sequence(lambda: f, [(torch.ones(3), torch.ones(3)), (torch.ones(4), torch.ones(3)), (torch.ones(3), torch.ones(3)),
                         (torch.ones(5), torch.ones(3))])


def test_a_size_that_comes_to_nothing():
    def make():
        def f(x, n):
            try:
                return torch.arange(n % 5).max(), x + 1
            except RuntimeError as error:
                return str(error)

        return f

    sequence(make, [(VECTOR, n) for n in (3, 4, 5, 7, 10)])


def test_layouts_of_one_row_that_was_symbolic():
    def program(x, y, n):
        return torch.add(y, x)[:n].pow(2).clamp(max=100), torch.add(y, x)[:n].exp()

    compiled = jit.compile(program, backend="eager")
    x, y = torch.arange(6.0).view(3, 2).t(), torch.arange(3.0)
    for n in (2, 1, 0, 2, 1):
        same(program(x, y, n), compiled(x, y, n))
    same(program(x, y, 1), jit.compile(program, backend="eager", dynamic=True)(x, y, 1))
