"""Several results of rows that become one value of each row, with what is looked up in the row: the rows' kernel does
it, and stores that value alone."""

import pytest
import torch
import torch.nn.functional as F
from gpu_texts import compiled_for_gpu

import jit


def cross_entropy(x, i):
    return F.cross_entropy(x.float(), i[:, 0])


def looked_up(x, i):
    return (x - x.logsumexp(1, keepdim=True)).gather(1, i).square().sum(1).mean()


def beside(x, i):
    y = (x - x.amax(1, keepdim=True)).square()
    return (y.gather(1, i[:, :1])[:, 0] + x.amax(1) * y.sum(1)).amax()


def columns(x, i):
    y = x.t() - x.t().logsumexp(0, keepdim=True)
    return y.gather(0, i[:, :1].t()).sum()


PROGRAMS = [cross_entropy, looked_up, beside, columns]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_values(fn):
    for rows, width, looked in ((6, 40, 6), (6, 40, 4), (1, 40, 1), (3, 1, 3), (17, 2100, 17), (40, 7, 11)):
        compiled, x = jit.compile(fn), torch.randn(rows, width)
        i = torch.randint(0, width, (looked, 3))
        for given in (x, x.double(), torch.randn(width, rows).t(), torch.randn(rows, 2 * width)[:, ::2]):
            try:
                want = fn(given, i)
            except (RuntimeError, ValueError) as error:  # rows and places do not fit
                with pytest.raises(type(error)):
                    compiled(given, i)
                continue
            torch.testing.assert_close(compiled(given, i), want, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("fn", [cross_entropy, beside, columns])
def test_one_value_of_each_row_is_stored(fn):
    x, i = torch.randn(512, 4096), torch.randint(0, 4096, (512, 3))
    (compiled,) = compiled_for_gpu(fn, x, i)
    kinds = [step.kind for step in compiled.plan.steps]
    assert kinds.count("launch") == 2 and kinds.count("temp") <= 1


def test_places_of_fewer_rows_are_read_where_they_are():
    """The loop over the places has fewer rows than the results that are read: the kernels stay apart."""
    x, i = torch.randn(512, 4096), torch.randint(0, 4096, (500, 1))
    (compiled,) = compiled_for_gpu(looked_up, x, i)
    assert sum(step.kind == "launch" for step in compiled.plan.steps) == 2


def test_long_chains_of_results_of_rows():
    """What was reduced is noted once for each value, however many ways lead to it."""
    def chain(x):
        a, b = x.amax(1), x.sum(1)
        for _ in range(60):
            a, b = b.sin(), (a + b).cos()
        return (a * b).sum(), a, b

    x = torch.randn(6, 40)
    torch.testing.assert_close(jit.compile(chain)(x), chain(x), rtol=1e-4, atol=1e-4)
