"""Operators of ``torch.ops`` give lists and plain tuples where Python functions give tuples and named ones."""

import pytest
import torch

import jit

aten = torch.ops.aten
CALLS = {
    "unbind.int": lambda x: aten.unbind.int(x, 0), "unbind": lambda x: aten.unbind(x),
    "split.Tensor": lambda x: aten.split.Tensor(x, 2), "chunk": lambda x: aten.chunk(x, 2),
    "tensor_split": lambda x: aten.tensor_split.sections(x, 2),
    "foreach": lambda x: aten._foreach_add.Scalar([x, x], 1),
    "split_with_sizes": lambda x: aten.split_with_sizes(x, [1, x.shape[0] - 1]),
    "max.dim": lambda x: aten.max.dim(x, 0), "max": lambda x: aten.max(x), "max of rows": lambda x: aten.max(x, 1),
    "aminmax": lambda x: aten.aminmax(x), "sort": lambda x: aten.sort(x), "topk": lambda x: aten.topk(x, 2),
    "cummax": lambda x: aten.cummax(x, 0), "var_mean": lambda x: aten.var_mean.correction(x),
    "grown": lambda x: [*aten.unbind.int(x, 0), x][0],
    "python": lambda x: (torch.unbind(x), torch.max(x, 0), x.split(2), torch.topk(x, 2)),
}


def appended(x):
    parts = aten.unbind.int(x, 0)
    parts.append(parts[0] * 2)
    return parts


def kinds(value):
    return (type(value), [kinds(v) for v in value]) if isinstance(value, (tuple, list)) else type(value)


@pytest.mark.parametrize("name", [*CALLS, "appended"])
def test_results_are_of_eagers_types(name):
    fn = CALLS.get(name, appended)
    compiled = jit.compile(fn)
    for x in (torch.randn(3, 4), torch.randn(5, 3).t(), torch.randn(6, 4)[::2]):
        torch.testing.assert_close(compiled(x), fn(x))
        assert kinds(compiled(x)) == kinds(fn(x))
