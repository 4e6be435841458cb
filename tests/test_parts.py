"""Axes in parts of one length, a point for the same place in each."""

import pytest
import torch

import triton_kernels as zoo
from jit.codegen import loops, reference
from jit.codegen.parts import in_parts

F32, I64 = torch.float32, torch.int64


def rotated(rows, width, norm=False, cut=None, op="lt"):
    """Rows whose halves are turned into each other, after a norm over the row if asked for."""
    cut = width // 2 if cut is None else cut
    b = zoo.B()
    i, j = b.axis(rows), b.axis(width, "r" if norm else "p")
    q, w, y = b.buffer(F32), b.buffer(F32), b.buffer(F32, "out")
    factor = None
    if norm:
        value = b.load(q, i * width + j)
        factor = b.do("rsqrt", b.reduce("sum", b.do("mul", value, value)))
    sides = b.index(j), b.const(cut, I64)
    low = b.do("lt", *sides) if op == "lt" else b.do("gt", *reversed(sides))
    high = b.do("le", b.const(cut, I64), b.index(j))
    left = b.do("neg", b.load(q, i * width + j + width - cut, mask=low))
    right = b.load(q, i * width + j - cut, mask=high)
    value = b.do("mul", b.do("where", low, left, right), b.load(w, j))
    b.store(y, i * width + j, b.do("mul", value, factor) if norm else value)
    return loops.verify(b.finish("k")), (rows * width, width, rows * width)


def run(kernel, lengths):
    g = torch.Generator().manual_seed(0)
    memory = {b.name: torch.randn(n, generator=g).to(b.dtype) for b, n in zip(kernel.buffers, lengths)}
    reference.evaluate(kernel, memory, {})
    return memory["b2"]


@pytest.mark.parametrize("op", ["lt", "gt"])
@pytest.mark.parametrize("norm", [False, True])
def test_halves_know_which_they_are(norm, op):
    kernel, lengths = rotated(5, 64, norm, op=op)
    made = loops.verify(in_parts(kernel))
    (axis,) = made.raxes if norm else made.axes[-1:]
    assert axis.extent == 32 and not any(s.accessed and s.mask for s in made.body)
    assert sum(bool(s.loaded) for s in made.body) == 4
    torch.testing.assert_close(run(made, lengths), run(kernel, lengths))


def test_three_parts():
    kernel, lengths = rotated(4, 48, cut=16)
    made = loops.verify(in_parts(kernel))
    assert made.axes[-1].extent == 16
    torch.testing.assert_close(run(made, lengths), run(kernel, lengths))


def test_uneven_and_short_parts_are_left():
    for width, cut in ((64, 30), (64, 4), (8, 4), (100, 33)):
        kernel, _ = rotated(3, width, cut=cut)
        assert in_parts(kernel) is kernel


def test_other_reductions_are_left():
    b = zoo.B()
    i, j = b.axis(4), b.axis(64, "r")
    x, y = b.buffer(F32), b.buffer(F32, "out")
    b.store(y, i, b.reduce("max", b.load(x, i * 64 + j, mask=b.do("lt", b.index(j), b.const(32, I64)))))
    kernel = loops.verify(b.finish("k"))
    assert in_parts(kernel) is kernel


def test_what_writes_goes_by_data_too():
    """Places that data decide, and conditions on them, in each part."""
    b = zoo.B()
    i, j = b.axis(6), b.axis(32)
    at, x, y = b.buffer(I64), b.buffer(F32), b.buffer(F32, "out")
    low = b.do("lt", b.index(j), b.const(16, I64))
    high = b.do("ge", b.index(j), b.const(16, I64))
    place = b.clamped(b.load(at, i), 9)
    value = b.do("where", low, b.load(x, place * 32 + j, mask=low), b.load(x, place * 32 + j - 16, mask=high))
    b.store(y, i * 32 + j, value)
    kernel = loops.verify(b.finish("k"))
    made = loops.verify(in_parts(kernel))
    assert made is not kernel
    memory = {"b0": torch.tensor([3, 12, -1, 0, 8, 5]), "b1": torch.randn(9 * 32), "b2": torch.zeros(6 * 32)}
    other = {n: t.clone() for n, t in memory.items()}
    reference.evaluate(kernel, memory, {})
    reference.evaluate(made, other, {})
    assert torch.equal(memory["b2"], other["b2"]) and memory["b2"].any()
