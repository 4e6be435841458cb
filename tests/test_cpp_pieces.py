"""Loops over a vector axis in pieces between the positions at which comparisons change."""

import pytest
import torch
import torch.nn.functional as F

import jit
from jit.codegen import loops
from jit.codegen.cpp import emit

PROGRAMS = {
    "roll and flip": lambda x: torch.roll(x, (5, 7), (0, 1)).flip(1),
    "pad": lambda x: F.pad(x, (3, 5, 1, 2)),
    "pad with a number": lambda x: F.pad(x, (3, 5), value=2.0) * 2,
    "crop and pad": lambda x: F.pad(x, (-3, 5)),
    "cat": lambda x: torch.cat([x, x * 2, x[:, :5]], 1) + 1,
    "cat of more than there are pieces": lambda x: torch.cat([x[:, :7], x, x, x, x], 1),
    "turned": lambda x: torch.cat([x[:, 5:], x[:, :5]], 1),
    "triangles": lambda x: torch.tril(x, -1) + torch.triu(x, 3),
    "mask": lambda x: x.masked_fill(torch.ones(x.shape, dtype=torch.bool).triu(1), -1),
    "write into every third column": lambda x: torch.slice_scatter(x, x[:, ::3] * 2, 1, 0, None, 3),
    "sum over rows": lambda x: F.pad(x, (3, 5, 1, 2)).sum(1),
    "sum over columns": lambda x: F.pad(x, (3, 5, 1, 2)).sum(0),
    "scan": lambda x: F.pad(x, (3, 5, 1, 2)).cumsum(1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype):
    """One entry sees several sizes, transposed memory and nothing at all."""
    f = PROGRAMS[name]
    compiled = jit.compile(f)
    for rows, columns in ((40, 64), (9, 100), (33, 257), (20, 33), (70, 9), (1, 40), (0, 40)):
        x = torch.randint(-3, 4, (rows, columns)).to(dtype)
        for layout in (x, torch.randint(-3, 4, (columns, rows)).to(dtype).t()):
            expected = f(layout)
            got = compiled(layout)
            assert torch.equal(got, expected) and got.stride() == expected.stride()


def padded(columns: int) -> str:
    """The text of a kernel that moves rows three places to the right."""
    b = loops.KernelBuilder()
    i = b.axis(columns)
    inside = b.compute("le", b.const(3, torch.int64), b.index(i), dtype=torch.bool)
    value = b.load(b.buffer(torch.float32), i - 3, mask=inside)
    b.store(b.buffer(torch.float32, "out"), i, value)
    return emit([loops.verify(b.finish("padded"))])


def test_a_mask_is_known_in_each_piece():
    assert "(true ? " in padded(4096) and "(false ? " in padded(4096)
    assert "(true ? " not in padded(16), "too short for pieces"
