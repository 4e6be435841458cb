"""An operation that raises does so whether or not anybody reads its result, and however little of it is read."""

import pytest
import torch
import torch.nn.functional as F

import jit

# Nothing may be left to eager because compiling failed
pytestmark = pytest.mark.filterwarnings("error:jit:UserWarning")
TABLE, ONE = torch.arange(12.0).view(4, 3), torch.ones(3)
GOOD, BAD = torch.tensor([3, 0, 2]), torch.tensor([3, 0, 7])


def outcome(fn, *args):
    try:
        return fn(*[a.clone().requires_grad_(a.requires_grad) for a in args])
    except Exception as error:
        return type(error), str(error)


def check(fn, *calls, **options):
    """Each of the calls gives what it gives in eager, be it an exception."""
    jit.reset()
    compiled = jit.compile(fn, **options)
    for args in calls:
        expected, found = outcome(fn, *args), outcome(compiled, *args)
        if isinstance(expected, tuple):
            assert type(found) is tuple and found[0] is expected[0], f"{expected} in eager, {found} compiled"
        else:
            assert torch.equal(expected, found)


INDEXED = {
    "index_select": lambda i: TABLE.index_select(0, i),
    "embedding": lambda i: F.embedding(i, TABLE),
    "take": lambda i: TABLE[:, 0].take(i),
    "gather": lambda i: TABLE.gather(0, i.view(1, 3)),
    "take_along_dim": lambda i: torch.take_along_dim(TABLE, i.view(1, 3), 0),
    "item": lambda i: TABLE[i],
    "after a view": lambda i: TABLE.t()[:, i],
    "in a chain": lambda i: TABLE[i].exp().sum(),
    "index_put": lambda i: TABLE.index_put((i,), torch.zeros(())),
    "index_add": lambda i: TABLE.index_add(0, i, TABLE[:3]),
    "index_copy": lambda i: TABLE.index_copy(0, i, TABLE[:3]),
    "index_fill": lambda i: TABLE.index_fill(0, i, 1.0),
    "scatter": lambda i: TABLE.scatter(0, i.view(1, 3), 1.0),
    "nll_loss": lambda i: F.nll_loss(TABLE.t(), i),
    "cross_entropy": lambda i: F.cross_entropy(TABLE.t(), i),
    "one_hot": lambda i: F.one_hot(i, 4),
    "one_hot below zero": lambda i: F.one_hot(3 - i, 9),
    "division": lambda i: i // (7 - i),
    "remainder": lambda i: i % (7 - i),
    "fmod": lambda i: torch.fmod(i, 7 - i),
    "truncated": lambda i: torch.div(i, 7 - i, rounding_mode="trunc"),
    "cholesky": lambda i: torch.linalg.cholesky(torch.diag(5.0 - i)),
    "inverse": lambda i: torch.linalg.inv(torch.diag(7.0 - i)),
    "solve": lambda i: torch.linalg.solve(torch.diag(7.0 - i), ONE),
    "bernoulli": lambda i: torch.bernoulli(i / 6.0),
    "quantile": lambda i: torch.quantile(TABLE, i.max() / 4.0),
    "binary_cross_entropy": lambda i: F.binary_cross_entropy(i / 4.0, ONE),
    "repeat_interleave": lambda i: torch.repeat_interleave(ONE, 5 - i, output_size=int(10)),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "symbolic"])
def test_unused(name, dynamic):
    def fn(x, i):
        INDEXED[name](i)
        return x * 2

    check(fn, (ONE, GOOD), (ONE, BAD), (ONE, GOOD), dynamic=dynamic)


@pytest.mark.parametrize("name", ["item", "gather", "division", "cholesky", "one_hot"])
def test_unused_where_gradients_are_recorded(name):
    def fn(x, i):
        INDEXED[name](i)
        (x * 3)[i.clamp(max=2)]
        return (x * 2).sum()

    check(fn, *((ONE.clone().requires_grad_(), i) for i in (GOOD, BAD, GOOD)))


PARTLY = {
    "a slice": lambda i: TABLE[i][:2],
    "one row": lambda i: TABLE[i][0] + 1,
    "a slice of what is computed": lambda i: (TABLE[i] * 2 + 1)[:2],
    "no columns": lambda i: TABLE[i][:, :0] + 1,
    "a column": lambda i: TABLE[i][:, 0] * 2,
    "cropped": lambda i: F.pad(TABLE[i], (0, 0, 0, -2)) * 2,
    "of gather": lambda i: TABLE.gather(0, i.view(3, 1).expand(3, 3))[:, 1:2] * 2,
    "of gather, one row": lambda i: TABLE.gather(0, i.view(3, 1).expand(3, 3))[:2] * 2,
    "indices of indices": lambda i: TABLE[i][GOOD[:1] - 3],
    "of an index": lambda i: TABLE[GOOD[i % 4 // 2 * i][:2]],
    "transposed": lambda i: TABLE[i].t()[:, :2] + 0,
    "flattened": lambda i: TABLE[i].reshape(-1)[:4] * 2,
    "of sums": lambda i: TABLE[i].sum(1)[:2],
    "of sums of the other axis": lambda i: TABLE[i].sum(0)[:2],
    "expanded": lambda i: TABLE[i][None].expand(2, 3, 3)[:, :2] * 2,
    "a diagonal": lambda i: TABLE[i][:, :2].diagonal() * 2,
    "masked": lambda i: TABLE[i].masked_fill((i > 4).unsqueeze(1), 0.0),
    "a part of what is put together": lambda i: torch.cat([TABLE[i] * 2, TABLE])[4:],
    "one index": lambda i: TABLE[i[2]][:1] * 2,
}


@pytest.mark.parametrize("name", PARTLY)
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "symbolic"])
def test_read_in_part(name, dynamic):
    check(lambda x, i: PARTLY[name](i).sum() * x, (ONE, GOOD), (ONE, BAD), (ONE, GOOD), dynamic=dynamic)


def test_made_unused_by_simplification():
    def fn(x, i):
        return torch.where(torch.ones(3, dtype=torch.bool), x, TABLE[i][:, 0]) + torch.cat([x, TABLE[i][:, 0]])[:3]

    check(fn, (ONE, GOOD), (ONE, BAD))


def test_the_backward_does_not_check_again():
    def fn(x, i):
        return (TABLE[i].exp() * x).sum()

    x = torch.ones(3, requires_grad=True)
    jit.compile(fn)(x, GOOD).backward()
    torch.testing.assert_close(x.grad, TABLE[GOOD].exp().sum(0))
