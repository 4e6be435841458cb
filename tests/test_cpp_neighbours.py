"""Results along an axis that is read in periods of a few places, written out for each point."""

import pytest
import torch

import jit
from jit.codegen import loops
from jit.codegen.unrolling import neighbours_written_out


def halves_of_bytes(x):
    p = x.to(torch.uint8)
    return torch.stack([p & 15, p >> 4], -1).flatten(-2).float() - 8


def rotated_pairs(x):
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((-odd, even), -1).flatten(-2) + x


def in_place(x):
    y = x * 1
    y.copy_(torch.stack((y[..., 1::2], y[..., ::2]), -1).flatten(-2))
    return y


PROGRAMS = {
    "halves of bytes": halves_of_bytes,
    "pairs": lambda x: torch.stack((x, x + 1), -1),
    "triples in a row": lambda x: torch.stack((x, x * 2, x - 1), -1).flatten(-2) * 3,
    "pairs that turn": rotated_pairs,
    "each several times": lambda x: x.repeat_interleave(4, -1) + 1,
    "neighbours exchanged": in_place,
    "larger images": lambda x: torch.nn.functional.interpolate(x.double()[None, None], scale_factor=2),
    "chosen by rows": lambda x: torch.where(torch.arange(x.shape[-1]) % 3 < 2, x, -x),
    "places chosen by data": lambda x: torch.stack((x, x[:, x[0].long().clamp(0, 3)]), -1).flatten(-2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype, monkeypatch):
    """One entry sees several sizes, transposed and sliced memory, and nothing at all."""
    monkeypatch.setattr(jit.config, "cache_limit", 100)
    f = PROGRAMS[name]
    compiled = jit.compile(f)
    for rows, columns in ((40, 64), (9, 100), (33, 126), (20, 34), (70, 12), (1, 40), (0, 40)):
        if name == "places chosen by data" and not rows or name == "larger images" and not rows:
            continue
        x = torch.randint(0, 16, (rows, columns)).to(dtype)
        wide = torch.randint(0, 16, (rows, 2 * columns)).to(dtype)
        for layout in (x, torch.randint(0, 16, (columns, rows)).to(dtype).t(), wide[:, ::2]):
            expected = f(layout)
            got = compiled(layout)
            assert torch.equal(got, expected) and got.stride() == expected.stride() and got.dtype == expected.dtype


def pairs(columns, places: bool = False) -> loops.Kernel:
    """A kernel that puts two inputs side by side, element by element."""
    b = loops.KernelBuilder()
    i = b.axis(columns)
    first = b.compute("lt", b.index(i % 2), b.const(1, torch.int64), dtype=torch.bool)
    values = [b.load(b.buffer(torch.float32), i // 2) for _ in range(2)]
    if places:
        values[1] = b.load(b.buffer(torch.float32), b.clamped(b.load(b.buffer(torch.int64), i // 2), columns))
    b.store(b.buffer(torch.float32, "out"), i, b.compute("where", first, *values, dtype=torch.float32))
    return loops.verify(b.finish("pairs"))


def test_conditions_and_divisions_are_gone():
    kernel = loops.verify(neighbours_written_out(pairs(64)))
    assert kernel.axes[0].extent == 32
    assert sum(bool(s.stored) for s in kernel.body) == 2 and sum(bool(s.loaded) for s in kernel.body) == 2
    assert not any(s.prim for s in kernel.body)


def test_what_does_not_divide_or_reads_at_data_is_left():
    for kernel in (pairs(63), pairs(64, places=True)):
        assert neighbours_written_out(kernel) is kernel
