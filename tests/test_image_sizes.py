"""Images whose sizes change from call to call: what is computed of them is compiled for one size, and then for any."""

import pytest
import torch
import torch.nn.functional as F

import jit

SIZES = [(2, 9, 12), (2, 13, 10), (2, 16, 17), (2, 10, 10), (2, 21, 6), (2, 7, 15)]
POOLS = {
    "max": lambda x: F.max_pool2d(x * 2, 3, 2, 1) + 1,
    "max of every second": lambda x: F.max_pool2d(x, 1, 2),
    "max of places that lie apart": lambda x: F.max_pool2d(x, 2, 3, 1, 2) + 1,
    "max, rounded up": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True) * 2,
    "max, rounded up, a last window that would start outside": lambda x: F.max_pool2d(x, 2, 3, ceil_mode=True) * 2,
    "max and where": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "mean": lambda x: F.avg_pool2d(x.relu(), 2),
    "mean, rounded up": lambda x: F.avg_pool2d(x.relu(), (3, 2), (2, 3), (1, 0), True, False),
    "max along one axis": lambda x: F.max_pool1d(x.flatten(0, 1).contiguous(), 3, 2),
    "mean along one axis": lambda x: F.avg_pool1d(x.flatten(0, 1).contiguous(), 3, 2),
    "max of volumes": lambda x: F.max_pool3d(x.contiguous()[None], 2),
    "mean of volumes": lambda x: F.avg_pool3d(x.contiguous()[None], (1, 2, 3)),
    "one image": lambda x: F.max_pool2d(x[0], 2),
    "windows": lambda x: F.unfold(x, 3, 1, 1, 2) * 2,
    "axes in another order": lambda x: F.max_pool2d(x.permute(0, 2, 1, 3), (1, 2)) + 1,
    "to the size of another": lambda x: F.interpolate(F.max_pool2d(x, 2), size=x.shape[-2:], mode="nearest") + x,
    "a network": lambda x: F.max_pool2d(F.conv2d(x, torch.ones(6, 4, 3, 3)).relu(), 3, 2, 1).mean((2, 3)),
}


def several(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name, last, grad):
    fn = POOLS[name]
    compiled, before = jit.compile(fn), jit.compile_count()
    for n, h, w in SIZES:
        torch.manual_seed(h)
        x = torch.randn(n, 4, h, w)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        ours, theirs = x.clone().requires_grad_(grad), x.clone().requires_grad_(grad)
        got, expected = several(compiled(ours)), several(fn(theirs))
        for a, b in zip(got, expected, strict=True):
            assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        if grad:
            got[0].square().sum().backward()
            expected[0].square().sum().backward()
            assert ours.grad.stride() == theirs.grad.stride()
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    assert jit.compile_count() - before == 2


def test_images_too_small_are_refused_as_in_eager():
    def fn(x):
        return F.max_pool2d(x, 4, 2)

    compiled = jit.compile(fn)
    for size in ((9, 8), (7, 6), (3, 8), (8, 9)):
        x = torch.randn(1, 2, *size)
        try:
            expected = fn(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                compiled(x)
            assert str(raised.value) == str(error)
        else:
            torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_grids(indexing):
    def fn(a, b, c):
        first, second = torch.meshgrid(a, b, indexing=indexing), torch.meshgrid(a, b, c, indexing=indexing)
        others = *torch.meshgrid(a, indexing=indexing), *torch.meshgrid([b[0], c], indexing=indexing)
        return type(first).__name__, *first, *second, first[0] * second[2][..., 0], *others

    compiled, before = jit.compile(fn), jit.compile_count()
    for sizes in ((4, 3, 5), (5, 6, 3), (7, 4, 9), (8, 8, 8)):
        given = [torch.randn(2 * n)[::2].requires_grad_() for n in sizes]
        memory = {t.untyped_storage().data_ptr() for t in given}
        got, expected = compiled(*given), fn(*given)
        assert got[0] == expected[0]
        for a, b in zip(got[1:], expected[1:], strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
            place = b.data_ptr() if b.untyped_storage().data_ptr() in memory else None
            assert place is None or a.data_ptr() == place
        weight = torch.randn_like(expected[6])
        ours, theirs = (torch.autograd.grad((r[6] * weight).sum(), given[::2]) for r in (got, expected))
        torch.testing.assert_close(ours, theirs)
    assert jit.compile_count() - before == 2


def test_a_grid_by_an_unknown_order_is_refused_as_in_eager():
    def fn(a, b):
        return torch.meshgrid(a, b, indexing="yx")

    with pytest.raises(RuntimeError) as expected:
        fn(torch.ones(2), torch.ones(3))
    with pytest.raises(RuntimeError) as got:
        jit.compile(fn)(torch.ones(2), torch.ones(3))
    assert str(got.value) == str(expected.value)


def test_a_size_in_where():
    """A number beside a mask and integers is one of these, and none of the mask's."""
    def fn(x, m):
        return torch.where(m, x.size(0) - 1, x.int())

    compiled, before = jit.compile(fn), jit.compile_count()
    for n in (4, 7, 9, 30, 3):
        x = torch.randn(n, 3) * 9
        assert torch.equal(compiled(x, x > 0), fn(x, x > 0))
    assert jit.compile_count() - before == 2


def test_a_size_that_does_not_fit_is_refused_as_in_eager():
    def fn(x, n):
        return torch.where(x > 0, n, x)

    compiled = jit.compile(fn)
    for n in (3, 5, 127, 128, -128, -129, 4):
        x = torch.tensor([1, -1, 2], dtype=torch.int8)
        try:
            expected = fn(x, n)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                compiled(x, n)
            assert str(raised.value) == str(error)
        else:
            assert torch.equal(compiled(x, n), expected)


def test_the_smaller_and_the_larger_of_sizes():
    def fn(x, k):
        least, most = min(k, x.size(0)), max(x.size(0), 3, k)
        values, places = x.topk(least, 0)
        return values * 2, places, x[:least].sum(0), x.new_zeros(most), torch.arange(min(x.size(0), 8)), least, most

    compiled, before = jit.compile(fn), jit.compile_count()
    for n, k in [(10, 4), (12, 5), (3, 4), (7, 9), (5, 5), (2, 7), (40, 6)]:
        x = torch.randn(n, 5)
        for a, b in zip(compiled(x, k), fn(x, k), strict=True):
            assert type(a) is type(b)
            torch.testing.assert_close(a, b)
    assert jit.compile_count() - before == 2


def test_a_foreign_operator_of_any_size():
    """An operator with a kernel for tensors without data: what it gives is learned from a few sizes, those of strides
    that follow from sizes included."""
    library = torch.library.Library("test_image_sizes", "DEF")
    library.define("halves(Tensor x, int n) -> Tensor")
    library.impl("halves", lambda x, n: x.detach().contiguous().repeat(n, 1, 1) / 2, "CPU")
    library.impl("halves", lambda x, n: x.new_empty(n * x.size(0), *x.shape[1:]), "Meta")
    for key in [k for k in torch.library._impls if k.startswith("test_image_sizes")]:
        torch.library._impls.discard(key)  # as if its kernels were written in C++
    operator = torch.ops.test_image_sizes.halves

    def fn(x, y):
        return operator(x + 1, 2) * y.sum()

    compiled, before = jit.compile(fn), jit.compile_count()
    for shape in ((2, 3, 7), (2, 5, 6), (2, 4, 5), (2, 9, 11)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x, x), fn(x, x))
    assert jit.compile_count() - before == 2


def test_printing_a_type_relies_on_nothing():
    """A type of symbols whose strides are those of contiguous memory at the sizes at hand is printed with its strides:
    nothing is asked of the sizes."""
    from jit.graph.ir import TensorType
    from jit.graph.shape_env import ShapeEnv

    env = ShapeEnv()
    a, b = env.symbol(6, ("x", "size", 1)), env.symbol(6, ("x", "stride", 0))
    assert repr(TensorType((4, a), (b, 1), torch.float32, torch.device("cpu"))) == f"float32[4, {a}] strides ({b}, 1)"
    assert repr(TensorType((4, a), (a, 1), torch.float32, torch.device("cpu"))) == f"float32[4, {a}]"
    assert not env.guards
