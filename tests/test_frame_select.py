"""Reading a tensor at a position that a 0-dim tensor says: eager gives a view, and so does captured code."""

import pytest
import torch
from inplace_harness import check

import jit

CASES = {}


def case(*shapes, grad=(), size=4):
    def register(fn):
        def make():
            return ([*(torch.randn(s, requires_grad=k in grad) for k, s in enumerate(shapes)),
                     torch.randint(0, size, ())], [])

        CASES[fn.__name__] = fn, make
        return fn

    return register


@case((4, 4))
def of_an_input(x, i):
    y = x * 2
    return y[i] + 1, y[i, 0] * 3, x[i]


@case((4, 4), grad=(0,))
def of_a_leaf(x, i):
    return x[i], x[:, i], x[i] * 2


@case((4, 4))
def of_a_returned_value(x, i):
    y = x * 2
    return y, y[i], y[1:]


@case((4, 4), grad=(0,))
def of_a_returned_value_with_history(x, i):
    y = x.exp()
    return y, y[i], y * 2


@case((4, 4))
def only_the_part(x, i):
    return (x * 2)[i]


@case((4, 4))
def a_column(x, i):
    return (x * 2)[:, i]


@case((4, 4))
def twice(x, i):
    return x[i][i], x[i, i]


@case((4, 4))
def views_of_it(x, i):
    return x[i].view(2, 2), x[i][1:]


@case((4, 4))
def computed_position(x, i):
    return x[(i + 1) % 4], x[i - 4]


@case((4, 4))
def position_that_changes(x, i):
    a = x[i]
    i.add_(1).remainder_(4)
    return a, x[i]


@case((4, 4), grad=(0,))
def not_recorded(x, i):
    with torch.no_grad():
        a = x[i]
    return a, x[i]


@case((4, 4), grad=(0,))
def beside_what_is_detached(x, i):
    return x.detach(), x[i], x.data, x[:, i]


@case((4, 4), grad=(0,))
def of_a_value_beside_what_is_detached(x, i):
    y = x.exp()
    return y.detach(), y[i], y


@case((4, 4), grad=(0,))
def beside_views_that_are_not_recorded(x, i):
    with torch.no_grad():
        a, b = x[:], x.t()
    return a, x[i], b, b[i]


@case((4, 4), grad=(0,))
def beside_its_position(x, i):
    return i.detach(), x[i], i, x[:, i], x.detach()[i]


@case((4, 4))
def whole_and_new_axis(x, i):
    return x[..., None, i], x[i, ::2]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["eager", "jit"])
def test_as_eager(name, backend):
    fn, make = CASES[name]
    jit.reset()
    check(fn, make, jit.compile(fn, backend=backend, fullgraph=True), calls=3)


def test_a_position_out_of_range():
    def f(x, i):
        return x[i]

    compiled = jit.compile(f, fullgraph=True)
    x = torch.randn(4, 4)
    assert torch.equal(compiled(x, torch.tensor(3)), x[3])
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 0 with size 4"):
        compiled(x, torch.tensor(4))


def test_a_write_after_it_is_seen():
    def f(x, i):
        a = x[i]
        x.add_(1)
        return a * 2

    check(f, lambda: ([torch.randn(4, 4), torch.tensor(2)], []), jit.compile(f))


@pytest.mark.parametrize("position", (0, 2))
@pytest.mark.parametrize("rows", (4, 1))
def test_a_write_that_reads_it(rows, position):
    """Eager refuses to read a part of what is written, and the selection shows what has been written."""
    def whole(x, i):
        return x.add_(x[i])

    def one_row(x, i):
        a = x[i]
        x[0].mul_(a)
        return a, x

    for f in (whole, one_row):
        compiled = jit.compile(f)
        for _ in range(2):
            outcomes = []
            for g in (f, compiled):
                x = torch.arange(1.0, 4 * rows + 1).view(rows, 4)
                try:
                    outcomes.append([t.tolist() for t in (*g(x, torch.tensor(min(position, rows - 1))), x)])
                except RuntimeError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("options", [{"backend": "eager"}, {}])
def test_lists_of_single_integers_index(options, dtype):
    def f(x, places):
        rows, columns = zip(*places)
        y = x.clone()
        y[rows, columns] = 0
        return y, x[rows, columns], x[:, list(columns)]

    for x in (torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)):
        places = torch.tensor([[0, 1], [2, -1]], dtype=dtype)
        for result, expected in zip(jit.compile(f, fullgraph=True, **options)(x, places), f(x, places), strict=True):
            assert torch.equal(result, expected) and result.stride() == expected.stride()
