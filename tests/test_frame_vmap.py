"""torch.vmap of elementwise functions, as attention masks are built: captured with eager's values, types and strides;
all else is a break."""

import pytest
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

import jit

PADDING = torch.tensor([[True, True, False, True, True], [True, False, False, True, True]])
IDS = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]])
BIAS = torch.arange(12.0).reshape(3, 4)
INDICES = tuple(torch.arange(n) for n in (2, 3, 4, 5))

MASKS = {
    "causal": lambda b, h, q, k: k <= q,
    "unmapped": lambda b, h, q, k: q >= 0,
    "padding": lambda b, h, q, k: PADDING[b, k],
    "packed": lambda b, h, q, k: IDS[b, q] == IDS[b, k],
    "all of": lambda b, h, q, k: q.new_ones((), dtype=torch.bool) & (k <= q).to(q.device) & PADDING[b, k],
    "any of": lambda b, h, q, k: q.new_zeros((), dtype=torch.bool) | (k <= q) | PADDING[b, k],
    "window": lambda b, h, q, k: ((q - k >= 0) & (q - k < 2)) | ((q - k < 0) & (-(q - k) < 3)),
    "chunks": lambda b, h, q, k: torch.div(q, 2, rounding_mode="trunc") - torch.div(k, 2, rounding_mode="trunc") >= 0,
    "bias": lambda b, h, q, k: BIAS[h, q] * 0.5,
    "constant index": lambda b, h, q, k: BIAS[1, q] + k,
    "rows": lambda b, h, q, k: BIAS[h] * 2,
    "shape": lambda b, h, q, k: q + len(q.shape),
    "all axes": lambda b, h, q, k: 2 * q - k + h * b,
    "to a type": lambda b, h, q, k: q.to(torch.float32) - k.to(torch.int32),
}


def build(mask, *indices):
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mask = torch.vmap(mask, in_dims=axes, out_dims=0)
    with TransformGetItemToIndex():
        return mask(*indices)


def agree(fn, *args, graphs=1):
    expected = fn(*args)
    for options in ({"backend": "eager"}, {}):
        if graphs == 1:
            options["fullgraph"] = True
        compiled = jit.compile(fn, **options)
        for _ in range(2):
            result = compiled(*args)
            assert (torch.equal(result, expected) and result.dtype == expected.dtype
                    and result.stride() == expected.stride())
        assert not torch._C._len_torch_function_stack()


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    agree(build, MASKS[name], *INDICES)


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, None), (-1, 1)])
def test_maps_of_matrices(axes):
    inner = lambda a, b: a * 2 + 1 if axes[1] is None else a * b - b
    agree(lambda x, y: torch.vmap(inner, in_dims=axes)(x, y), torch.randn(3, 3), torch.randn(3, 3))


def test_maps_in_another_order():
    rows = lambda x, y: torch.vmap(torch.vmap(lambda a, b: a - b * 2, in_dims=(None, 0)), in_dims=(0, None))(y, x)
    agree(rows, torch.randn(3, 2), torch.randn(4, 2))
    agree(lambda x, y: torch.vmap(torch.vmap(lambda a, b: b - a, in_dims=(0, None)), in_dims=(None, 0))(x, y),
          torch.arange(3), torch.arange(4.0))


def test_ranks_differ():
    agree(lambda x, y: torch.vmap(lambda a, b: a + b * 2)(x, y), torch.randn(0, 4), torch.randn(0, 4))
    agree(lambda x: torch.vmap(lambda a: a.new_ones((2,)))(x), torch.randn(0, 4))
    agree(lambda x, y: torch.vmap(lambda a, b: a + b)(x, y), torch.randn(3, 2, 4), torch.randn(3, 4))
    agree(lambda x, y: torch.vmap(lambda a, b: a + b)(x, y), torch.arange(12).reshape(3, 4),
          torch.randn(3, 4, dtype=torch.float64))


def test_tuples_in_and_out():
    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def fn(a, b, c):
        mapped = torch.vmap(combine, in_dims=((0, 0), (0, 1)))
        first, second = mapped((a, b), (a, c))
        return first - second + torch.vmap(combine)((a, b), [a, b])[1]

    agree(fn, torch.randn(4, 3, 2), torch.randn(4, 3, 2), torch.randn(3, 4, 2))


def test_associative_scan_of_elementwise_functions():
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    fn = lambda a, b: associative_scan(combine, (a, b), dim=1, combine_mode="generic")[1]
    agree(fn, torch.rand(2, 5, 3), torch.randn(2, 5, 3))


def sums(x):
    return torch.vmap(lambda a: a.sum() * 2)(x) + 1


def branches(x):
    return torch.vmap(lambda a: a * len(a) if a.dim() else a)(x) + 1


def types(x, y):
    return torch.vmap(lambda a, b: a + b)(x, y) + 1


def keeps(x):
    kept = []

    def inner(a):
        kept.append(1)
        return a * 2

    return torch.vmap(inner)(x) + len(kept)


@pytest.mark.parametrize("fn, args",
                         [(sums, (torch.randn(3, 4),)), (branches, (torch.randn(3, 4),)), (keeps, (torch.randn(3),)),
                          (types, (torch.randn(3), torch.randn(3, 2, dtype=torch.float16)))])
def test_other_functions(fn, args):
    torch.testing.assert_close(jit.compile(fn, fullgraph=True)(*args), fn(*args), rtol=2e-3, atol=1e-3)


def test_random_numbers_raise_as_in_eager():
    fn = lambda x: torch.vmap(lambda a: a + torch.rand(()))(x)
    with pytest.raises(RuntimeError, match="randomness"):
        fn(torch.randn(3))
    with pytest.raises(RuntimeError, match="randomness"):
        jit.compile(fn)(torch.randn(3))


def test_indexing_in_the_mode_copies():
    def fn(x, i):
        with TransformGetItemToIndex():
            y = x[1:]
            z = torch.vmap(lambda k: x[k])(i)
        return y + z, len(x)

    x, i = torch.randn(4), torch.tensor([3, 0, 1])
    result = jit.compile(fn, fullgraph=True)(x, i)
    assert torch.equal(result[0], fn(x, i)[0]) and result[1] == 4


def test_a_break_inside_the_mode():
    def fn(x, i):
        with TransformGetItemToIndex():
            y = x * 2
            jit.graph_break()
            z = torch.vmap(lambda k: x[k])(i)
        return y[1:] + z

    x, i = torch.randn(4), torch.tensor([3, 0, 1])
    assert torch.equal(jit.compile(fn)(x, i), fn(x, i))
    assert not torch._C._len_torch_function_stack()


def test_gradients():
    x = torch.randn(3, 2, requires_grad=True)
    fn = lambda x: torch.vmap(lambda a: a * a * 3)(x)
    expected, = torch.autograd.grad(fn(x).sum(), x)
    found, = torch.autograd.grad(jit.compile(fn, fullgraph=True)(x).sum(), x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64])
def test_writes_to_expanded_memory_in_a_map_are_refused_as_in_eager(dtype):
    def f(x):
        y = x[:1].expand(3)
        try:
            return torch.vmap(lambda x: x.add_(1))(y), x
        except RuntimeError as error:
            return str(error), y, x

    want, got = f(torch.arange(3).to(dtype)), jit.compile(f)(torch.arange(3).to(dtype))
    assert want[0] == got[0]
    for a, b in zip(want[1:], got[1:]):
        assert torch.equal(a, b) and a.stride() == b.stride()
