"""``out=`` tensors of another shape than the result: resized as in eager, in one graph."""

import warnings

import pytest
import torch

import jit


def unary(x, out):
    return torch.sigmoid(x, out=out)


def of_several(x, values, indices):
    return torch.sort(x, out=(values, indices))


def written_after(x, out):
    torch.add(x, 1, out=out)
    out.mul_(2)
    return out.sum(), out.shape, out


def product(x, out):
    torch.mm(x, x.t(), out=out)
    return out + 1


def twice(x, out):
    torch.sin(x, out=out)
    y = out * 2
    torch.cat([x, x], out=out)
    return y, out


PROGRAMS = [unary, written_after, product, twice]
INPUTS = [lambda: torch.randn(3, 5), lambda: torch.randn(3, 5), lambda: torch.randn(5, 3).t(),
          lambda: torch.randn(4, 8)[:, ::2], lambda: torch.randn(1, 4).expand(3, 4), lambda: torch.randn(7, 2)]


def layout(t):
    return t.shape, t.stride(), t.dtype, t.storage_offset()


def same(want, got):
    if isinstance(want, torch.Tensor):
        assert layout(want) == layout(got)
        torch.testing.assert_close(got, want)
    elif isinstance(want, tuple) and not isinstance(want, torch.Size):
        for a, b in zip(want, got, strict=True):
            same(a, b)
    else:
        assert want == got


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_tensor_from_outside(fn):
    compiled = jit.compile(fn, fullgraph=fn is not twice)
    for make in INPUTS:
        x, a, b = make(), torch.empty(0), torch.empty(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want, got = fn(x, a), compiled(x, b)
        same(want, got)
        same(a, b)
        assert a._version == b._version
        if fn is unary:
            assert got is b


@pytest.mark.parametrize("fn", PROGRAMS)
@pytest.mark.parametrize("shape", [(0,), (), (2, 3)])
def test_a_tensor_of_the_program(fn, shape):
    def inside(x):
        out = torch.zeros(shape)
        result = fn(x, out)
        return result, out, result is out, out.shape

    compiled = jit.compile(inside, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for make in INPUTS:
            x = make()
            same(inside(x), compiled(x))


def test_several_results():
    def inside(x):
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        result = torch.sort(x, out=(values, indices))
        return values, indices, type(result).__name__, result[0] is values

    compiled, given = jit.compile(inside, fullgraph=True), jit.compile(of_several, fullgraph=True)
    for make in INPUTS:
        x = make()
        same(inside(x), compiled(x))
        a, b = ([torch.empty(0), torch.empty(0, dtype=torch.long)] for _ in "ab")
        same(tuple(of_several(x, *a)), tuple(given(x, *b)))
        same(tuple(a), tuple(b))


def test_the_warning_is_pytorchs():
    def fn(x):
        out = torch.ones(2)
        torch.exp(x, out=out)
        return out

    compiled = jit.compile(fn)
    seen = []
    for f in (fn, compiled, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            same(fn(torch.ones(3)), f(torch.ones(3)))
        seen.append([(w.category, str(w.message).split(" (Triggered")[0], w.filename, w.lineno) for w in caught][-1])
    assert seen[0] == seen[1] == seen[2]


def test_memory_that_others_show_is_left_to_eager():
    def fn(x, out, other):
        torch.exp(x, out=out)
        return other + 1

    compiled = jit.compile(fn)
    for shares in (False, True, False, True):
        buffers = torch.zeros(9), torch.zeros(9)
        outs = [b[:0] if shares else torch.empty(0) for b in buffers]
        want = fn(torch.ones(4), outs[0], buffers[0])
        same(want, compiled(torch.ones(4), outs[1], buffers[1]))
        same(outs[0], outs[1])
        same(buffers[0], buffers[1])


def test_sizes_that_vary():
    def fn(high, size, out):
        return torch.randint(high, size, out=out)

    compiled = jit.compile(fn, fullgraph=True)
    for n in (10, 12, 14, 20, 10):
        out = torch.empty(n, dtype=torch.int32)
        assert compiled(17, (n,), out) is out and out.max() < 17
        with pytest.raises(Exception):
            fn(17, (n,), torch.empty(n, dtype=torch.int32, requires_grad=True))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_without_dimensions():
    def fn(x):
        out = torch.ones(3)
        return torch.sum(x, 0, out=out), out

    compiled = jit.compile(fn, fullgraph=True)
    for x in (torch.arange(4.0), torch.arange(6.0)):
        want, got = fn(x), compiled(x)
        assert got[0].shape == want[0].shape == () and torch.equal(got[1], want[1])
