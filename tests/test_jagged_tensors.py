"""Tensors of the jagged layout, given to and made by compiled functions, over batches of other lengths.

Without sequence lengths in their cache, eager itself does not start PyTorch's own compiler."""

import pytest
import torch

import jit

BATCHES = ((3, 4, 5), (2, 7, 1), (6, 6, 2, 4), (1, 0, 3))
PROGRAMS = {
    "values": lambda x: x.values() * 2,
    "pointwise": lambda x: x.sin(),
    "of two": lambda x: (x + x * 2).relu(),
    "with dense": lambda x: x * torch.arange(8.0),
    "sum of sequences": lambda x: x.sum(1),
    "mean of sequences": lambda x: x.mean(1),
    "softmax of features": lambda x: x.softmax(-1),
    "heads": lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2),
    "chunk": lambda x: x.chunk(2, -1)[0] * 2,
    "offsets": lambda x: x.offsets() + 1,
}


BROKEN = {
    "dtype": lambda x: x.to(torch.float64) + 1,
    "linear with a weight that is trained": lambda x: torch.nn.functional.linear(x, WEIGHT),
    "of attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *[x.unflatten(-1, (2, 4)).transpose(1, 2)] * 3).transpose(1, 2).flatten(-2).values(),
}
WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()


def batch(lengths, holes=False):
    offsets = torch.tensor((0, *lengths)).cumsum(0)
    values = torch.randn(int(offsets[-1]), 8, generator=torch.Generator().manual_seed(0))
    given = torch.tensor([max(n - 1, 0) for n in lengths]) if holes else None
    return torch.nested.nested_tensor_from_jagged(values, offsets, given)


def parts(result):
    return (result.values(), result.offsets(), result.lengths()) if result.is_nested else (result,)


def same(a, b):
    assert type(a) is type(b)
    for mine, its in zip(parts(a), parts(b), strict=True):
        assert (mine is None) == (its is None)
        if mine is not None:
            torch.testing.assert_close(mine, its, equal_nan=True)
            assert mine.stride() == its.stride()


@pytest.mark.parametrize("name", PROGRAMS)
def test_over_lengths(name):
    program = PROGRAMS[name]
    compiled = jit.compile(program, fullgraph=True)
    for lengths in BATCHES:
        x = batch(lengths)
        with torch.no_grad():
            same(compiled(x), program(x))


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_keep_values(name):
    compiled = jit.compile(BROKEN[name])
    for lengths in BATCHES[:3]:
        x = batch(lengths)
        with torch.no_grad():
            same(compiled(x), BROKEN[name](x))


@pytest.mark.parametrize("name", ["pointwise", "of two", "offsets"])
def test_with_holes(name):
    compiled = jit.compile(PROGRAMS[name])
    for lengths in BATCHES:
        x = batch(lengths, holes=True)
        with torch.no_grad():
            same(compiled(x), PROGRAMS[name](x))


def test_the_ragged_size_is_that_of_the_argument():
    compiled = jit.compile(lambda x: x.sin(), fullgraph=True)
    for lengths in BATCHES:
        x = batch(lengths)
        y = compiled(x)
        assert y.offsets() is x.offsets() and y.shape == x.shape
        same(x + y, x + x.sin())


def test_two_of_other_offsets_are_refused_as_in_eager():
    compiled = jit.compile(lambda x, y: x + y)
    x = batch((3, 4, 5))
    same(compiled(x, x), x + x)
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function"):
        compiled(x, batch((3, 4, 5)))
    y = torch.nested.nested_tensor_from_jagged(x.values() + 1, x.offsets())
    same(compiled(x, y), x + y)
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function"):
        compiled(y, batch((3, 4, 5)))


def test_gradients():
    for program in (PROGRAMS["pointwise"], PROGRAMS["values"], PROGRAMS["with dense"]):
        compiled = jit.compile(program)
        for lengths in BATCHES:
            found = []
            for fn in (compiled, program):
                x = batch(lengths).detach().requires_grad_()
                fn(x).sin().to_padded_tensor(0.0).sum().backward() if program is not PROGRAMS["values"] else (
                    fn(x).sin().sum().backward())
                found.append(x.grad)
            same(*found)
