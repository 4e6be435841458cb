"""Values and gradients where floats end: NaN, infinities, the largest and the tiniest numbers, empty means. Eager's on
the CPU, in one entry's life at several shapes and layouts, or float64's where eager's own kernels disagree."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

import jit

INF, NAN = math.inf, math.nan
MAX, TINY = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
BEYOND = [NAN, INF, -INF, 3e9, -3e9, 1e20, 300.7, -300.7, 70000.0, -0.0, 2.5] * 7


def layouts(t):
    """``t`` (a matrix) dense, transposed, sliced, at an offset, in part; most with other strides or sizes than the one
    before."""
    wide = torch.full((t.shape[0], t.shape[1] + 3), 7.0).to(t.dtype)
    wide[:, 2:-1] = t
    flat = torch.full((t.numel() + 5,), 7.0).to(t.dtype)
    flat[3 : 3 + t.numel()] = t.flatten()
    return (t.clone(), t.t().contiguous().t(), wide[:, 2:-1], flat[3 : 3 + t.numel()].view(t.shape),
            t[:, : t.shape[1] // 2 + 1], t[1:])


def same(want, got, rtol=1e-5, atol=0.0):
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, check_dtype=False)


def check(fn, inputs, grad=False, tangent=None, rtol=1e-5, atol=0.0, exact=False):
    """``fn`` compiled gives eager's values, and gradients with ``grad``; with ``exact`` those of ``fn`` in double
    precision, rounded to the inputs' dtype."""
    compiled = jit.compile(fn)
    for x in inputs:
        runs = []
        for f in (fn, compiled):
            given = (x.double() if exact and f is fn else x).detach()
            given = given.as_strided(given.shape, given.stride(), given.storage_offset()).requires_grad_(grad)
            y = f(given)
            run = (y.detach(), torch.autograd.grad(y, given, torch.ones_like(y) if tangent is None
                                                   else torch.full_like(y, tangent))[0]) if grad else (y,)
            runs.append([v.to(x.dtype) if exact else v for v in run])
            assert exact or y.dtype is fn(x).dtype
        same(*runs, rtol, atol)


# whole numbers


@pytest.mark.parametrize("target", WHOLE, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_whole_numbers_of_what_they_cannot_hold(dtype, target):
    x = torch.tensor(BEYOND).to(dtype).reshape(7, 11)
    check(lambda x: x.to(target), layouts(x))
    check(lambda x: x.abs().sqrt().neg().to(target), layouts(x))
    check(lambda x: (x.sqrt() * 2).to(target) // 2, layouts(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_whole_numbers_of_constants_that_are_nan(dtype):
    def f(x):
        mean, filled = F.mse_loss(x[:0], x[:0]), torch.full_like(x, NAN)
        return (mean.long(), mean.int() // 2, F.smooth_l1_loss(x[:0], x[:0]).long() % 3, filled.long(), filled.int(),
                x[:0].mean().to(torch.int64))

    for x in layouts(torch.ones(4, 6, dtype=dtype)):
        same(f(x), jit.compile(f)(x))


# products added


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fn", [
    lambda x, y: torch.add(x, y, alpha=0.3), lambda x, y: torch.sub(x, y, alpha=0.3),
    lambda x, y: torch.rsub(x, y, alpha=-1.7), lambda x, y: torch.addcmul(x, y, x, value=0.3),
    lambda x, y: torch.addcmul(x, y, y), lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.lerp(x, y, 0.8),
    lambda x, y: torch.lerp(x, y, (x + y) / 4)],
    ids=["add", "sub", "rsub", "addcmul", "addcmul_1", "lerp_near", "lerp_far", "lerp_tensor"])
def test_what_eager_rounds_once_is_rounded_once(fn, dtype):
    generator, compiled = torch.Generator().manual_seed(0), jit.compile(fn)
    for shape in ((64, 33), (7, 5), (129, 64)) if dtype.itemsize > 2 else ((64, 64), (16, 32)):
        x, y = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        # Eager rounds the factors of halves that do not fill its vectors, or not
        for x, y in zip(*(layouts(t) if dtype.itemsize > 2 else [t] for t in (x, y))):
            want, got = fn(x, y), compiled(x, y)
            assert torch.equal(want, got), f"{int((want != got).sum())} of {want.numel()} differ"


def test_no_product_overflows_that_is_added():
    def f(x, y):
        return (torch.addcmul(x, y, y, value=0.5), torch.add(-y, y, alpha=2), torch.sub(y, y, alpha=2),
                torch.addcmul(-y, y, y.sign(), value=2))

    for n in (4, 19, 64, 1):
        compiled = jit.compile(f)
        for x, y in zip(*(layouts(torch.full((n + 1, n), v)) for v in (-INF, MAX))):
            same(f(x, y), compiled(x, y))
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([3.0, 4.0], requires_grad=True)
    same(*(torch.autograd.grad(g(x, y)[0].sum() + g(x, y)[1].sum(), (x, y)) for g in (f, jit.compile(f))))


def test_whole_numbers_times_whole_numbers_are_added():
    x = torch.arange(24).reshape(4, 6)
    check(lambda x: torch.addcmul(x, x, x, value=3) + torch.add(x, x, alpha=2) - torch.sub(x, x, alpha=5), layouts(x))


# products


PRODUCTS = {
    "back_in_range": [[1e30, 1e30, 1e-30, 1e-30, 2.0], [MAX, 300.0, TINY, 1e-30, 1.0],
                      [1e-30, 1e-30, -1e30, 1e20, MAX]],
    "unbounded": [[INF, 2.0, -1.0, 0.5, 3.0], [NAN, 1.0, 2.0, 3.0, 1.0], [-INF, INF, 1.0, 2.0, 3.0]],
    "zero_elsewhere": [[INF, 2.0, -1.0, 0.5, 3.0], [0.0, 1.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]],
    "zero_and_unbounded": [[INF, 0.0, -1.0, 0.5, 3.0], [0.0, NAN, 2.0, 3.0, 1.0], [0.0, 0.0, -INF, 4.0, -5.0]],
    "zero_alone": [[1.0, -0.0, -1.0, 0.5, 3.0], [2.0, 1.0, 2.0, 3.0, 1.0], [1.0, 2.0, -INF, 4.0, -INF]],
    "nan_and_zeros": [[0.0, NAN, 0.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0, 2.0]],
}


@pytest.mark.parametrize("rows", PRODUCTS.values(), ids=PRODUCTS)
def test_products(rows):
    x = torch.tensor(rows)
    exact = rows is PRODUCTS["back_in_range"]
    check(lambda x: x.prod(-1), layouts(x), exact=exact)
    check(lambda x: x.prod(-1), layouts(x), grad=True, exact=exact)
    check(lambda x: x.prod(0, keepdim=True), [torch.tensor(rows).t().contiguous()], grad=True, exact=exact)
    check(lambda x: x.prod(), layouts(x), grad=True, exact=exact)
    if not exact:
        check(lambda x: x.prod(0), [x[0], x[1], x[2]], grad=True)


@pytest.mark.parametrize("value", [INF, NAN, 0.0, 3.0])
def test_products_of_a_number(value):
    check(lambda x: x.prod(0), [torch.tensor(value)], grad=True)
    check(lambda x: x.prod(), [torch.tensor(value)], grad=True)
    check(lambda x: x.prod(-1), [torch.tensor([[value], [2.0]])], grad=True)


# norms


@pytest.mark.parametrize("ord", [2, 1, 3, 1.5, INF, -INF, 0, -2])
def test_the_norm_of_a_number_is_its_absolute_value(ord):
    x = torch.tensor([[MAX], [-1e-30], [TINY], [0.0], [2.0], [-INF], [NAN]])
    check(lambda x: x.norm(ord, dim=-1), [x, x.t().contiguous().t(), x[1:3]])
    check(lambda x: torch.linalg.vector_norm(x, ord, dim=(0, 2), keepdim=True), [x.t().unsqueeze(-1).contiguous()])
    if ord in (1, 2, INF):
        check(lambda x: x.norm(ord, dim=-1), [x, x[1:3]], grad=True)
        check(lambda x: x.norm(ord), [torch.tensor(v) for v in (MAX, -1e-30, 0.0, 2.0)], grad=True)
        check(lambda x: F.normalize(x, ord, dim=-1), [x, x[1:3]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_limits_are_rounded_to_the_dtype(dtype):
    x = torch.tensor([[0.0, 0.05, 0.1, 0.3], [1.0, -1.0, 0.29, 2.0]], dtype=dtype)
    check(lambda x: F.normalize(x * 0, dim=-1), layouts(x))
    check(lambda x: x.clamp(0.1, 0.3) == x, layouts(x))
    check(lambda x: x.clamp_min(0.1).double(), layouts(x))
    check(lambda x: x.clamp(max=0.1).float() * 3, layouts(x))


def special(shape, dtype=torch.float32):
    """Small numbers with two of the largest in some rows, columns and images."""
    x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(1)) / 4
    flat = x.reshape(-1)
    flat[1 :: x.numel() // 7] = MAX
    flat[2 :: x.numel() // 7] = MAX
    return x.to(dtype)


@pytest.mark.parametrize("grad", [False, True])
def test_batch_norm_of_large_numbers(grad):
    """The variance of the largest floats has a root that is a float."""
    close = {"rtol": 1e-4, "atol": 1e-5, "exact": True}
    check(lambda x: F.batch_norm(x, None, None, training=True), layouts(special((9, 70))), grad, **close)
    check(lambda x: F.batch_norm(x, None, None, training=True), layouts(special((64, 18))), grad, **close)
    images = special((3, 4, 5, 6))
    check(lambda x: F.batch_norm(x, None, None, training=True),
          [images, images.contiguous(memory_format=torch.channels_last)], grad, **close)
    check(lambda x: F.instance_norm(x), [images, images[:, :, 1:]], grad, **close)


def test_running_statistics_of_large_numbers():
    def f(x, mean, var):
        return F.batch_norm(x, mean, var, training=True), mean, var

    compiled = jit.compile(f)
    for x in layouts(special((9, 70))):
        mean, var = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
        same([v.float() for v in f(x.double(), mean.double(), var.double())], compiled(x, mean, var), 1e-4, 1e-5)


def test_the_mean_of_a_layer_is_one_of_floats():
    """Eager's running mean does not overflow where the sum does: the values themselves are divided by an infinite
    deviation."""
    for shape in ((9, 70), (64, 18), (5, 300)):
        check(lambda x: F.layer_norm(x, x.shape[-1:]), layouts(special(shape)), rtol=1e-4, atol=1e-5)
    check(lambda x: F.group_norm(x, 2), [special((3, 4, 5, 6)), special((3, 4, 7, 6))], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fn", [
    lambda x, w, b: F.layer_norm(x, x.shape[1:], w.expand(x.shape[1:]), b.expand(x.shape[1:])),
    lambda x, w, b: F.group_norm(x, 1, w, b), lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    lambda x, w, b: F.instance_norm(x, weight=w, bias=b)], ids=["layer", "group", "batch", "instance"])
def test_gradients_of_norms(fn, dtype):
    """The gradient of the whole layer is found behind its sums in doubles and its scaled mean."""
    generator, compiled = torch.Generator().manual_seed(0), jit.compile(fn)
    for shape in ((6, 3, 5), (4, 3, 8)):
        given = [torch.randn(s, generator=generator).to(dtype)
                 for s in (shape, (3, 1) if "expand" in fn.__code__.co_names else (3,),
                           (3, 1) if "expand" in fn.__code__.co_names else (3,))]
        runs = []
        for f, to in ((fn, torch.float64), (fn, dtype), (compiled, dtype)):
            leaves = [g.detach().to(to).requires_grad_() for g in given]
            y = f(*leaves)
            weights = torch.linspace(0.5, 1.5, y.numel()).view(y.shape).to(dtype).to(to)
            runs.append([y.detach(), *torch.autograd.grad((y * weights).sum(), leaves)])
        for exact, want, got in zip(*runs):
            scale = exact.abs().max().item() + 1e-3
            own, error = ((r.double() - exact).abs().max().item() for r in (want, got))
            assert error <= 2 * own + 64 * min(torch.finfo(dtype).eps, 1e-7) * scale, (error, own)


# scans


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scans_after_an_infinity(dtype):
    most = torch.finfo(dtype).max
    x = torch.ones(6, 150, dtype=dtype)
    x[0, 3], x[0, 70:72] = -INF, most
    x[1, 100], x[1, 140] = INF, NAN
    x[2, 64:66], x[2, 130] = most, -INF
    x[3, 0], x[3, 149] = -INF, INF
    check(lambda x: x.cumsum(-1), [x, x[:, 1:], x.t().contiguous().t(), x[:, 60:], x[1:]])
    check(lambda x: x.cumsum(-1) + x, [x, x[:, 1:]])


# gradients


def test_extrema_share_what_is_not_a_number():
    x = torch.tensor([[1.0, NAN, 2.0, 5.0], [2.0, 3.0, 2.0, -INF], [2.0, NAN, 2.0, INF]])
    for tangent in (1.0, INF, NAN):
        for fn in (lambda x: x.amax(0), lambda x: x.amin(0), lambda x: x.amax(1, keepdim=True),
                   lambda x: x.amin((0, 1)), lambda x: x.max(), lambda x: x.min(), lambda x: x.max(1).values,
                   lambda x: x[:, ::2].max()):
            check(fn, layouts(x), True, tangent)
    for fn in (lambda x: x.amax(0), lambda x: x.amin(()), lambda x: x.max(), lambda x: x.max(0).values):
        check(fn, [torch.tensor(v) for v in (NAN, INF, 1.0)], True)


FLAT = {"sign": torch.sign, "round": torch.round, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
        "zeroth_power": lambda x: x**0, "floor_division": lambda x: torch.div(x, 2.0, rounding_mode="floor"),
        "division_by_it": lambda x: torch.div(2.0, x + 1, rounding_mode="trunc")}


@pytest.mark.parametrize("flat", FLAT.values(), ids=FLAT)
def test_a_gradient_of_zero_goes_on(flat):
    """Zero times infinity is NaN in what came before."""
    x = torch.tensor([[0.0, 1.0, 4.0, 0.0], [2.0, 0.0, 9.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    check(lambda x: flat(x.sqrt()), layouts(x), True)
    check(lambda x: flat(x.sqrt()) * 2 + x, layouts(x), True)
    check(lambda x: flat(F.layer_norm(x / x, (x.shape[-1],))), [x, x[:, 1:]], True)


def test_what_nan_to_num_has_replaced_is_multiplied_by_zero():
    x = torch.tensor([[1.0, NAN, INF, -INF], [0.0, -2.0, MAX, NAN]])
    for tangent in (1.0, INF, NAN):
        check(torch.nan_to_num, layouts(x), True, tangent)
        check(lambda x: x.nan_to_num(1.0, 2.0, 3.0) * 2, layouts(x), True, tangent)


def test_logsumexp_of_nothing_but_minus_infinity():
    x = torch.tensor([[-INF, -INF, -INF, -INF], [1.0, -INF, 2.0, 0.0], [INF, 1.0, -INF, 2.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(lambda x: x.logsumexp(-1), layouts(x), True)
        check(lambda x: x.cumsum(1).logsumexp(0), layouts(x), True)


def test_the_gradient_of_a_square_is_added_in_two_parts():
    """Their sum alone would be infinite."""
    x = torch.tensor([[2e38, 1.0, -2e38], [2e38, -2e38, 3.0], [0.5, 2e38, 2e38]])
    check(lambda x: torch.cat([x * x, x * -INF]), layouts(x), True)
    check(lambda x: (x * x).sum(1) + x @ torch.full((x.shape[1],), -2e38), layouts(x), True)
