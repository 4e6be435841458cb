"""Reductions, norms and their gradients are as exact as eager's on the CPU, in any layout: sums do not run in one
float32 chain.

The error is the Euclidean norm of the difference from float64, of all elements of some draws, over that of the results.
It may be twice eager's, or one unit in the last place.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import jit


def rows(x):
    return x


def columns(x):
    """Stored with the dimensions in reverse order."""
    order = tuple(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 1 else x.clone()


def sliced(x):
    """The inside of a larger tensor."""
    inside = tuple(slice(1, 1 + s) for s in x.shape)
    big = torch.full([s + 3 for s in x.shape], 1e3, dtype=x.dtype)
    big[inside] = x
    return big[inside]


LAYOUTS = (rows, columns, channels_last, sliced)
MATRICES = ((20001, 5), (300, 37), (3, 20011))
IMAGES = ((6, 8, 45, 47), (16, 40, 7, 9))

# name: (function of x and a vector of the size of its dimension 1, shapes)
MATRIX = {
    "sum 0": lambda x, w: x.sum(0),
    "sum 1": lambda x, w: x.sum(1),
    "sum": lambda x, w: x.sum(),
    "sum of magnitudes": lambda x, w: (x.abs().sum(0), x.abs().sum(1), x.abs().sum()),
    "mean": lambda x, w: (x.mean(0), x.mean()),
    "var": lambda x, w: (x.var(0), x.var(1), x.std()),
    "norm": lambda x, w: (x.norm(dim=0), x.norm(dim=1), x.norm(3)),
    "cumsum": lambda x, w: (x.cumsum(0), x.cumsum(1)),
    "scale and shift": lambda x, w: torch.tanh(x * w + w),
    "layer_norm": lambda x, w: F.layer_norm(x, x.shape[1:], w, w),
}
IMAGE = {
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w, w.cos(), True),
    "batch_norm and relu": lambda x, w: F.relu(F.batch_norm(x, None, None, w, w.cos(), True)),
    "scale and shift": lambda x, w: F.silu(x * w[:, None, None] + w[:, None, None]),
}


def leaves(found):
    return [found] if isinstance(found, torch.Tensor) else list(found)


def run(f, x, w, tangents, gradients):
    """Results, and gradients of x and w for the tangents."""
    x, w = x.detach().requires_grad_(gradients), w.detach().requires_grad_(gradients)
    found = leaves(f(x, w))
    if not gradients:
        return found
    smooth = [(r, t.to(r.dtype)) for r, t in zip(found, tangents) if r.requires_grad]
    given = torch.autograd.grad([r for r, _ in smooth], [x, w], [t for _, t in smooth], allow_unused=True)
    return found + [g for g in given if g is not None]


def compare(f, compiled, shape, layout, dtype, gradients=True, draws=3):
    # Of eager and compiled, for each draw and value: of the difference from float64, and of the value
    squares = [[], []]
    for draw in range(draws):
        random = torch.Generator().manual_seed(draw)
        x = layout(torch.randn(shape, generator=random, dtype=torch.float64).to(dtype))
        w = torch.randn(shape[1], generator=random, dtype=torch.float64).to(dtype)
        with torch.no_grad():
            tangents = [torch.randn(r.shape, generator=random).to(dtype) for r in leaves(f(x, w))]
        truth = run(f, x.double(), w.double(), tangents, gradients)
        for to, program in zip(squares, (f, compiled), strict=True):
            found = run(program, x, w, tangents, gradients)
            to.append([((v.detach().double() - t.detach()).square().sum(),
                        t.detach().square().sum()) for v, t in zip(found, truth)])
    for k, pair in enumerate(zip(*[zip(*e) for e in squares])):
        eager, mine = (math.sqrt(sum(d for d, _ in e) / max(sum(t for _, t in e), 1e-300)) for e in pair)
        allowed = max(2 * eager, torch.finfo(dtype).eps)
        assert mine <= allowed, (
            f"{shape} {layout.__name__} {dtype}: value {k} has the error {mine:.3g}, eager's {eager:.3g}")


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("name", [n for n in MATRIX if n != "layer_norm"])
def test_matrices(name, shape):
    compiled = jit.compile(MATRIX[name], dynamic=False)
    draws = 20 if "sum" in name or name == "mean" else 3  # a single number says little
    for layout in LAYOUTS:
        compare(MATRIX[name], compiled, shape, layout, torch.float32, draws=draws)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("name", IMAGE)
def test_images(name, shape):
    compiled = jit.compile(IMAGE[name], dynamic=False)
    for layout in LAYOUTS:
        compare(IMAGE[name], compiled, shape, layout, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["scale and shift"])
def test_half_types(name, dtype):
    compiled = jit.compile(MATRIX[name], dynamic=False)
    for shape in ((3001, 12), (4, 5003)):
        for layout in (rows, columns):
            compare(MATRIX[name], compiled, shape, layout, dtype, draws=2)


def exact_sums(x):
    return x.sum(0), x.sum(1), x.sum(), (x * x).sum(0)


@pytest.mark.parametrize("shape", [(50000, 3), (3, 50000), (700, 90)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_long_sums_of_doubles(shape, layout):
    """Against exact sums: of values of one sign, whose errors add up in a chain."""
    x = layout(torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5)
    for value, flat in (zip(jit.compile(exact_sums, dynamic=False)(x), (x.t(), x, x.reshape(1, -1), (x * x).t()),
                            strict=True)):
        truth = torch.tensor([math.fsum(row.tolist()) for row in flat], dtype=torch.float64).reshape(value.shape)
        assert ((value - truth).norm() / truth.norm()).item() < 2 * torch.finfo(torch.float64).eps, shape


@pytest.mark.parametrize("name", ["sum 0", "sum 1", "cumsum", "layer_norm"])
def test_symbolic_sizes(name):
    compiled = jit.compile(MATRIX[name], dynamic=True)
    for shape in ((70, 9), (5000, 11), (11, 5003), (3, 64)):
        for layout in (rows, columns):
            compare(MATRIX[name], compiled, shape, layout, torch.float32, draws=2)


@pytest.mark.parametrize("shape", [(40, 13), (40, 33), (40, 64), (40, 100), (40, 300), (4, 4099)], ids=str)
def test_running_sums_of_short_and_long_rows(shape):
    for spread in (0, 2):  # values of much the same size, and of very different ones

        def program(x, w):
            return (x * (x * spread).exp()).cumsum(1)

        compare(program, jit.compile(program, dynamic=False), shape, rows, torch.float32, gradients=False, draws=10)


@pytest.mark.parametrize("dims", [(1,), (0,), (0, 1)], ids=str)
@pytest.mark.parametrize("shape", [(64, 4096), (300, 37), (2, 9)], ids=str)
def test_variances_far_from_zero_and_with_a_first_value_far_from_all(shape, dims):
    programs = [lambda x: x.var(dims), lambda x: x.std(dims, correction=0),
                lambda x: torch.var_mean(x, dims, keepdim=True)]
    compiled = [jit.compile(f, dynamic=False) for f in programs]
    for scale, offset in ((1, 0), (1, 1e4), (1, 1e7), (1e-25, 0), (1e17, 0)):
        for outlier in (0, 1e3):
            x = (torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * scale
                 + offset).float()
            x.view(-1)[0] += outlier * scale
            for f, program in zip(programs, compiled, strict=True):
                runs = []
                for g, given in ((f, x.double()), (f, x), (program, x)):
                    given = given.clone().requires_grad_()
                    found = leaves(g(given))
                    (slope,) = torch.autograd.grad(sum(r.sum() for r in found), given)
                    runs.append([v.detach().double() for v in (*found, slope)])
                for true, eager, mine in zip(*runs):
                    allowed, error = ((v - true).norm() for v in (eager, mine))
                    assert error <= max(2 * allowed, 1.5 * torch.finfo(torch.float32).eps * true.norm()), (
                        scale, offset, outlier, error / true.norm(), allowed / true.norm())


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dim", [None, 0, (0, 1), ()], ids=str)
@pytest.mark.parametrize("name", ["var", "std"])
def test_variances_without_degrees_of_freedom(name, dim):
    """Infinite or NaN, and so is the gradient: which of them, eager's formula says. The function becomes symbolic on
    the way."""
    for correction in (1, 4, 1.5):

        def program(x):
            return getattr(torch, name)(x, dim, correction=correction, keepdim=True)

        for dtype in (torch.float32, torch.bfloat16):
            compiled = jit.compile(program)
            for shape in ((1, 1), (2, 1), (3, 1), (5, 1), (7, 3)):
                for value in (1.0, float("nan"), float("inf")):
                    x = torch.arange(7.0)[: shape[0], None].expand(shape).to(dtype).contiguous()
                    x[0, 0] = value
                    runs = []
                    for f in (program, compiled):
                        leaf = x.clone().requires_grad_()
                        y = f(leaf)
                        runs.append((y.detach(), *torch.autograd.grad(y.sum(), leaf)))
                    atol, rtol = (2e-2, 2e-2) if dtype is torch.bfloat16 else (1e-5, 1e-5)
                    for want, got in zip(*runs):
                        torch.testing.assert_close(got, want, equal_nan=True, atol=atol, rtol=rtol,
                                                   msg=lambda m: f"{correction} {shape} {value} {dtype} {m}")


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_variance_of_one_number_that_is_not_rounded_on_the_way(dtype):
    def program(x):
        return (x.sum() / 7).var(-1)

    compiled = jit.compile(program)
    for rows in (4, 5, 9):
        x = (torch.arange(3.0 * rows) / 3).view(rows, 3).to(dtype).requires_grad_()
        want, got = (torch.autograd.grad(f(x), x)[0] for f in (program, compiled))
        assert got.isnan().all() and want.isnan().all()


@pytest.mark.parametrize("groups", [1, 4])
def test_weights_of_convolutions_with_holes(groups):
    """Their gradients are sums over all pixels, in the CPU library's plain format by matrix products. Two convolutions
    run in channels-last otherwise."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Tanh(),
                              torch.nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=groups))
    wide = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Tanh(),
                               torch.nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=groups)).double()
    wide.load_state_dict(net.state_dict())
    program, squares = jit.compile(net), [0.0, 0.0]
    for draw in range(10):
        x = torch.randn(8, 4, 24, 24)
        truth = torch.autograd.grad(wide(x.double()).sum(), wide[2].weight)[0]
        for k, f in enumerate((net, program)):
            squares[k] += (torch.autograd.grad(f(x).sum(), net[2].weight)[0].double() - truth).square().sum().item()
    assert squares[1] <= 4 * squares[0]


TOGETHER = {
    "of its own row": lambda x, y: (x - x[:, :1]).sum(0),
    "divided by its row": lambda x, y: (x / (x[:, :1].abs() + 1)).sum(0),
    "several, one of indices": lambda x, y: ((x * y).sum(0), x.sum(0), x.amax(0), x.argmax(0)),
    "two inputs under a choice": lambda x, y: (torch.where(x > 0, x, y) * 2).mean(0),
    "a long row": lambda x, y: ((x * y + x - y * 2).abs() * (x + 3) * (y - 4) + (x * x - y) * 5).sum(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TOGETHER)
def test_rows_that_are_added_up_together_and_those_left_over(name, dtype):
    """Columns of any number of rows, of widths that start at one place of a page and of others."""
    for rows, width in ((33, 1024), (34, 1000), (37, 70), (40, 1024), (41, 3), (100, 130)):
        compiled = jit.compile(TOGETHER[name], dynamic=False)
        x, y = (torch.randn(2 * rows, width, generator=torch.Generator().manual_seed(k), dtype=dtype)[::2]
                for k in range(2))
        torch.testing.assert_close(compiled(x, y), TOGETHER[name](x, y))
