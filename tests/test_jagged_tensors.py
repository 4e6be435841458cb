"""Tensors of the jagged layout, given to and made by compiled functions, over batches of other lengths.

Without sequence lengths in their cache, eager itself does not start PyTorch's own compiler."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

import jit

BATCHES = ((3, 4, 5), (2, 7, 3), (6, 6, 2, 4), (2, 3, 3), (9, 2), (4, 4, 4, 2, 3), (2, 2), (5, 3, 8))
torch.manual_seed(1)
LINEAR, NORM, TABLE = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Embedding(5, 8)
NET = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8))
BILINEAR = torch.randn(8, 3)


def heads(x):
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def attend(x):
    x = NORM(x)
    return F.scaled_dot_product_attention(heads(x), heads(x * 2), heads(LINEAR(x))).transpose(1, 2).flatten(-2)


PROGRAMS = {
    "values": lambda x: x.values() * 2,
    "pointwise": lambda x: x.sin(),
    "of two": lambda x: (x + x * 2).relu(),
    "with a number": lambda x: 3 - x / 2,
    "with dense": lambda x: x * torch.arange(8.0),
    "with a dense batch": lambda x: x * torch.arange(1.0, 1.0 + x.shape[0]).reshape(-1, 1, 1),
    "a mask": lambda x: torch.where(x > 0, x, -x).masked_fill(x > 1, 0.0),
    "in place": lambda x: (x * 1).add_(1).mul_(2),
    "linear": lambda x: LINEAR(x),
    "a net": lambda x: NET(x) + x,
    "rms norm": lambda x: F.rms_norm(x, (8,)),
    "softmax of features": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum() + x.mean(),
    "sum of sequences": lambda x: x.sum(1),
    "mean of sequences": lambda x: x.mean(1, keepdim=True),
    "greatest": lambda x: (x.amax(1), x.max(-1)[0], x.min()),
    "sum of features": lambda x: x.sum(-1, keepdim=True),
    "heads": lambda x: heads(x),
    "flatten": lambda x: x.unflatten(-1, (2, 4)).flatten(-2),
    "view": lambda x: x.view(x.shape[0], -1, 2, 4),
    "chunk": lambda x: x.chunk(2, -1)[0] * 2,
    "split": lambda x: [part + 1 for part in x.split([2, 6], -1)],
    "slice": lambda x: x[..., 2:5] * 2,
    "select": lambda x: x.select(-1, 1) * 2,
    "unsqueeze": lambda x: x.unsqueeze(-1) * 2,
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "stack": lambda x: torch.stack([x, x * 2], -1),
    "product": lambda x: x @ BILINEAR,
    "product with a dense batch": lambda x: x @ torch.ones(x.shape[0], 8, 4),
    "clone": lambda x: x.clone().contiguous() * 2,
    "dtype": lambda x: x.to(torch.float64) + 1,
    "like": lambda x: torch.zeros_like(x) + torch.full_like(x, 3.0) + x,
    "shape": lambda x: x * x.shape[0] + x.dim() if x.is_nested and x.shape == (x * 2).shape else x,
    "padded": lambda x: x.to_padded_tensor(0.0),
    "padded by a function": lambda x: torch.nested.to_padded_tensor(x, 1.0),
    "offsets": lambda x: x.offsets() + 1,
    "made": lambda x: torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets()).sin(),
    "embedding": lambda x: TABLE(x.abs().long().clamp(max=4)),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "attention": attend,
    "attention, in one tensor": lambda x: attend(x).values(),
    "several": lambda x: {"a": x + 1, "b": (x, x.values().sum())},
}
BROKEN = {
    "sizes that data say": lambda x: torch.masked_select(x.select(-1, 0), x.select(-1, 0) > 0),
}
REFUSED = {
    "no such operator": lambda x: x.cumsum(-1),
    "features and sequences": lambda x: x.sum((1, 2)),
    "not of these sizes": lambda x: x @ torch.ones(3, 3),
    "causal attention on a CPU": lambda x: F.scaled_dot_product_attention(*[heads(x)] * 3, is_causal=True),
}
# Of these eager has gradients on a CPU.
ENTRIES = {"with a dense batch": 5}  # a dense batch is padded to the lengths at hand
WITH_GRADIENTS = sorted(set(PROGRAMS) - {
    "sum of sequences", "mean of sequences", "greatest", "sum of features", "offsets", "padded by a function", "dtype",
    "product with a dense batch", "embedding", "dropout", "sum", "split", "slice", "select", "with a dense batch",
    "in place", "rms norm"})


def batch(lengths, holes=False, grad=False):
    offsets = torch.tensor((0, *lengths)).cumsum(0)
    values = torch.randn(int(offsets[-1]), 8, generator=torch.Generator().manual_seed(0))
    given = torch.tensor([max(n - 1, 0) for n in lengths]) if holes else None
    return torch.nested.nested_tensor_from_jagged(values, offsets, given).detach().requires_grad_(grad)


def flat(result):
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [t for part in result for t in flat(part)]
    return [result]


def parts(result):
    return (result._values, result._offsets, result._lengths) if result.is_nested else (result,)


def same(a, b):
    a, b = flat(a), flat(b)
    assert len(a) == len(b)
    for one, other in zip(a, b):
        assert type(one) is type(other) and one.requires_grad == other.requires_grad
        assert getattr(one, "_ragged_idx", 0) == getattr(other, "_ragged_idx", 0)
        for mine, its in zip(parts(one), parts(other), strict=True):
            assert (mine is None) == (its is None)
            if mine is not None:
                torch.testing.assert_close(mine, its, equal_nan=True, rtol=1e-4, atol=1e-5)
                assert mine.stride() == its.stride()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", PROGRAMS)
def test_over_lengths(name, mode):
    program = PROGRAMS[name]
    compiled = jit.compile(program, fullgraph=True)
    with mode():
        for lengths in BATCHES:
            x = batch(lengths)
            same(compiled(x), program(x))
        assert len(compiled.entries) <= ENTRIES.get(name, 3)


def loss(result):
    return sum((t.values() if t.is_nested else t).double().sin().sum() for t in flat(result) if t.requires_grad)


@pytest.mark.parametrize("name", WITH_GRADIENTS)
@pytest.mark.parametrize("wanted", [True, False])
def test_gradients(name, wanted):
    program = PROGRAMS[name]
    compiled = jit.compile(program, fullgraph=True)
    weights = [*LINEAR.parameters(), *NORM.parameters(), *NET.parameters()]
    for lengths in BATCHES:
        found = []
        for fn in (compiled, program):
            x = batch(lengths, grad=wanted)
            made = fn(x)
            end = loss(made)
            if isinstance(end, torch.Tensor):
                end.backward()
            found.append([made, *[t.grad for t in (x, *weights) if t.grad is not None]])
            for t in weights:
                t.grad = None
        same(*found)
    assert len(compiled.entries) <= 3


@pytest.mark.parametrize("name", ["split", "slice", "select", "sum of sequences"])
def test_gradients_that_eager_lacks_are_left_to_it(name):
    """A backward raises there, and through parts by sizes it ends the process."""
    compiled = jit.compile(PROGRAMS[name])
    for lengths in BATCHES[:3]:
        x = batch(lengths, grad=True)
        made = compiled(x)
        same(made, PROGRAMS[name](x))
        if name != "split":
            with pytest.raises((NotImplementedError, ValueError)):
                loss(made).backward()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_eager(name):
    compiled = jit.compile(REFUSED[name])
    for lengths in BATCHES[:3]:
        x = batch(lengths)
        with torch.no_grad():
            with pytest.raises(Exception) as expected:
                REFUSED[name](x)
            with pytest.raises(type(expected.value)) as found:
                compiled(x)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_keep_values(name):
    compiled = jit.compile(BROKEN[name])
    for lengths in BATCHES[:3]:
        x = batch(lengths)
        with torch.no_grad():
            same(compiled(x), BROKEN[name](x))


@pytest.mark.parametrize("program", [lambda x: list(x.unbind()), lambda x: [t.sum() for t in x],
                                     lambda x: x.transpose(1, 2) @ x, lambda x: x.softmax(1), lambda x: x[0] * 2])
def test_what_needs_the_lengths(program):
    compiled = jit.compile(program)
    for lengths in BATCHES[:4]:
        x = batch(lengths)
        with torch.no_grad():
            same(compiled(x), program(x))


@pytest.mark.parametrize("name", ["pointwise", "of two", "offsets", "linear", "cat", "unsqueeze"])
def test_with_holes(name):
    compiled = jit.compile(PROGRAMS[name])
    for lengths in BATCHES:
        x = batch(lengths, holes=True)
        with torch.no_grad():
            if name == "linear":
                with pytest.raises(Exception) as expected:
                    PROGRAMS[name](x)
                with pytest.raises(type(expected.value)):
                    compiled(x)
            else:
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


def test_no_batch_is_kept():
    compiled = jit.compile(lambda x: x.sin() + x, fullgraph=True)
    x = batch((3, 4, 5))
    compiled(x)
    kept = weakref.ref(x), weakref.ref(x._offsets), weakref.ref(x._values)
    del x
    gc.collect()
    assert [k() for k in kept] == [None] * 3
    assert len(compiled.entries) == 1


def test_attention_of_sequences_of_no_rows():
    compiled = jit.compile(PROGRAMS["attention"])
    with torch.no_grad():
        for lengths in ((0, 3), (2, 0, 0), (3, 4)):
            x = batch(lengths)
            same(compiled(x), PROGRAMS["attention"](x))
        for fn in (compiled, PROGRAMS["attention"]):
            with pytest.raises(RuntimeError, match="non-zero numel"):
                fn(batch((0,)))
