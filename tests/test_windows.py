"""Pooling, resizing, padding, sampling and unfolding by kernels of ours, against eager: values, strides, gradients."""

import pytest
import torch
import torch.nn.functional as F

import jit
from jit import devices
from jit.graph import windows
from jit.graph.passes import windows as rules

EXACT = dict(rtol=1e-4, atol=2e-5)
ROUNDED = dict(rtol=2e-2, atol=2e-2)


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """All kinds of windows are made on the CPU; the names of what was made."""
    made = []
    original = rules.window

    def window(b, how, operands, axes, like, **attrs):
        node = original(b, how, operands, axes, like, **attrs)
        made.extend([how] if node is not None else [])
        return node

    monkeypatch.setattr(rules, "window", window)
    limits = {k.partition(",")[0] for d in ("cpu", "cuda") for k in devices.of_type(d).window_limits}
    monkeypatch.setattr(type(devices.of_type("cpu")), "window_limits", dict.fromkeys({*limits, "sample"}, 64))
    return made


def results(value):
    return value if isinstance(value, tuple) else (value,)


def copies(args, grad):
    return [a.detach().clone(memory_format=torch.preserve_format).requires_grad_(grad and a.is_floating_point())
            for a in args]


def compare(f, *args, grad=True, **tolerance):
    """A compiled call against an eager one: values, dtypes, strides, and gradients with their strides."""
    mine, theirs = copies(args, grad), copies(args, grad)
    got, want = results(jit.compile(f)(*mine)), results(f(*theirs))
    tolerance = tolerance or (ROUNDED if want[0].dtype.itemsize == 2 else EXACT)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, equal_nan=True, **(tolerance if b.is_floating_point() else {}))
        assert a.stride() == b.stride()
    if grad and want[0].requires_grad:
        g = torch.randn_like(want[0])
        got[0].backward(g)
        want[0].backward(g)
        for a, b in zip(mine, theirs):
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, equal_nan=True, **{k: 3 * v for k, v in tolerance.items()})
                assert a.grad.stride() == b.grad.stride()


def images(channels=6, height=13, width=17):
    x = torch.randn(2, channels, height, width)
    return {"plain": x, "last": x.contiguous(memory_format=torch.channels_last),
            "sliced": torch.cat([x, x], 1)[:, ::2], "expanded": x[:1].expand(2, -1, -1, -1)}


LAYOUTS = ("plain", "last", "sliced", "expanded")
AVERAGES = [
    dict(kernel_size=2), dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=5, stride=1, padding=2),
    dict(kernel_size=(3, 2), stride=(1, 2), padding=(1, 0), ceil_mode=True),
    dict(kernel_size=3, stride=2, padding=1, count_include_pad=False),
    dict(kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    dict(kernel_size=3, divisor_override=5, padding=1),
]
LARGEST = [
    dict(kernel_size=2), dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=3, stride=2, padding=1, dilation=2),
    dict(kernel_size=(3, 2), stride=2, ceil_mode=True), dict(kernel_size=5, stride=1, padding=2),
    dict(kernel_size=2, stride=3),
]


def name(options):
    return " ".join(f"{k}={v}" for k, v in options.items()) if isinstance(options, dict) else str(options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", AVERAGES, ids=name)
def test_average_pools(everywhere, layout, options):
    compare(lambda x: F.avg_pool2d(x, **options), images()[layout])
    assert "sum" in everywhere and "back" in everywhere


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", LARGEST, ids=name)
def test_max_pools(everywhere, layout, options):
    x = images()[layout]
    compare(lambda x: F.max_pool2d(x, **options), x)
    compare(lambda x: F.max_pool2d(x, return_indices=True, **options), x)
    assert {"max", "position", "picked"} <= set(everywhere)


@pytest.mark.parametrize("layout", LAYOUTS[:3])
@pytest.mark.parametrize("size", [(2, 3), 5, (13, 17), (20, 20), (13, 1)], ids=str)
def test_adaptive_pools(everywhere, layout, size):
    x = images()[layout]
    compare(lambda x: F.adaptive_avg_pool2d(x, size), x)
    compare(lambda x: F.adaptive_max_pool2d(x, size), x)
    compare(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x)
    assert {"sum", "back", "picked"} <= set(everywhere)


@pytest.mark.parametrize("f", [
    lambda x: F.avg_pool1d(x, 3, 2, 1), lambda x: F.max_pool1d(x, 3, 2, 1),
    lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), lambda x: F.adaptive_avg_pool1d(x, 5),
    lambda x: F.adaptive_max_pool1d(x, 5), lambda x: F.lp_pool1d(x, 2.0, 3),
], ids="avg max positions adaptive_avg adaptive_max power".split())
def test_pools_of_signals(f):
    compare(f, torch.randn(2, 6, 23))


@pytest.mark.parametrize("f", [
    lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), lambda x: F.max_pool3d(x, 3, 2, 1),
    lambda x: F.max_pool3d(x, (1, 3, 2), 2, return_indices=True), lambda x: F.adaptive_avg_pool3d(x, (3, 4, 5)),
    lambda x: F.adaptive_max_pool3d(x, (3, 4, 5)),
], ids="avg max positions adaptive_avg adaptive_max".split())
def test_pools_of_volumes(f):
    compare(f, torch.randn(2, 3, 7, 9, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_pools_of_other_types(dtype):
    x = images()["plain"].to(dtype)
    compare(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    compare(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    compare(lambda x: F.adaptive_avg_pool2d(x, 5), x)


@pytest.mark.parametrize("f", [
    lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    lambda x: F.max_pool2d(x, 3, 2, 1, 2, return_indices=True),
    lambda x: F.adaptive_max_pool2d(x, 5, return_indices=True),
], ids="strided dilated adaptive".split())
def test_positions_of_equals(f):
    """The first of equal values, the last NaN, and the first place where all are -inf."""
    x = images()["plain"]
    compare(f, torch.where(x.abs() < 0.3, float("nan"), x))
    compare(f, torch.full_like(x, float("-inf")))
    compare(f, torch.randint(0, 3, x.shape).float())
    compare(f, torch.where(x < 0.0, -0.0, 0.0))


RESIZES = [dict(scale_factor=2), dict(size=(20, 30)), dict(size=(5, 4)), dict(scale_factor=(1.7, 2.3)),
           dict(scale_factor=0.6), dict(scale_factor=1.7, recompute_scale_factor=True), dict(size=(9, 22)),
           dict(size=(1, 1))]


@pytest.mark.parametrize("layout", LAYOUTS[:3])
@pytest.mark.parametrize("options", RESIZES, ids=name)
def test_resizing(everywhere, layout, options):
    x = images(3, 9, 11)[layout]
    compare(lambda x: F.interpolate(x, mode="nearest", **options), x)
    compare(lambda x: F.interpolate(x, mode="nearest-exact", **options), x)
    compare(lambda x: F.interpolate(x, mode="area", **options), x)
    for align in (False, True):
        compare(lambda x: F.interpolate(x, mode="bilinear", align_corners=align, **options), x)
        compare(lambda x: F.interpolate(x, mode="bicubic", align_corners=align, **options), x)
    assert "sum" in everywhere


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("options", [dict(size=(5, 4)), dict(size=(20, 30)), dict(scale_factor=0.4)], ids=name)
def test_antialiased_resizing(everywhere, mode, options):
    for layout in LAYOUTS[:2]:
        for align in (False, True):
            compare(lambda x: F.interpolate(x, mode=mode, antialias=True, align_corners=align, **options),
                    images(3, 9, 11)[layout])
    assert "sum" in everywhere


def test_resizing_signals_and_volumes():
    x = torch.randn(2, 3, 13)
    compare(lambda x: F.interpolate(x, size=20, mode="linear"), x)
    compare(lambda x: F.interpolate(x, size=20), x)
    x = torch.randn(2, 2, 4, 5, 6)
    compare(lambda x: F.interpolate(x, scale_factor=2.0, mode="trilinear"), x)
    compare(lambda x: F.interpolate(x, scale_factor=2.0), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_resizing_other_types(dtype):
    x = images(3, 9, 11)["plain"].to(dtype)
    for mode in ("nearest", "bilinear", "bicubic"):
        compare(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x)
    compare(lambda x: F.interpolate(x, scale_factor=2), torch.randint(0, 255, (1, 3, 8, 8)).to(torch.uint8))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(1, 2, 3, 1), (0, 2, 0, 0), (3, 3)], ids=str)
def test_edges(everywhere, mode, padding):
    for layout in LAYOUTS[:3]:
        x = images(3, 9, 11)[layout]
        compare(lambda x: F.pad(x, padding, mode=mode) * 2, x if len(padding) == 4 else x[0].contiguous())
    assert "sum" in everywhere


def test_edges_of_signals_and_volumes():
    for mode in ("reflect", "replicate", "circular"):
        compare(lambda x: F.pad(x, (3, 2), mode=mode), torch.randn(2, 3, 13))
        compare(lambda x: F.pad(x, (3, 2, 1, 1, 2, 1), mode=mode), torch.randn(2, 2, 4, 5, 6))


def test_edges_of_large_images_keep_the_layout():
    """PyTorch's own type rule gives them row-major."""
    x = torch.randn(2, 32, 40, 41).contiguous(memory_format=torch.channels_last)
    for mode in ("reflect", "replicate"):
        compare(lambda x: F.pad(x, (2, 2, 2, 2), mode=mode), x)


@pytest.mark.parametrize("options", [dict(kernel_size=3), dict(kernel_size=(3, 2), stride=2, padding=1),
                                     dict(kernel_size=3, dilation=2, padding=2)], ids=name)
def test_columns(options):
    for layout in LAYOUTS[:3]:
        compare(lambda x: F.unfold(x, **options), images(3, 9, 11)[layout])


@pytest.mark.parametrize("size, columns, options", [
    ((8, 8), (2, 36, 36), dict(kernel_size=3)), ((8, 8), (2, 16, 16), dict(kernel_size=2, stride=2)),
    ((9, 7), (2, 36, 20), dict(kernel_size=(3, 2), stride=2, padding=1)),
], ids=str)
def test_images_of_columns(everywhere, size, columns, options):
    compare(lambda x: F.fold(x, size, **options), torch.randn(columns))
    assert "images" in everywhere


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("reach", [1.0, 3.0])
def test_samples(everywhere, mode, padding, reach):
    grid = (torch.rand(2, 5, 6, 2) * 2 - 1) * reach
    for align in (False, True):
        for layout in LAYOUTS[:3]:
            compare(lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=align),
                    images(3, 9, 11)[layout], grid)
    assert "sample" in everywhere


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_of_volumes(padding):
    grid = (torch.rand(2, 3, 4, 5, 3) * 2 - 1) * 1.5
    for mode in ("bilinear", "nearest"):
        compare(lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=False),
                torch.randn(2, 2, 4, 5, 6), grid)


def test_samples_beyond_all_numbers():
    """As on GPUs what is infinite is outside; no place is read that is not there."""
    grid = torch.rand(2, 5, 6, 2) * 2 - 1
    grid[0, 0, 0, 0], grid[0, 1, 0, 1], grid[1, 1, 2, 0] = float("nan"), float("inf"), -1e30
    x = images(3, 9, 11)["plain"]
    got = jit.compile(lambda x, g: F.grid_sample(x, g, align_corners=False))(x, grid)
    want = F.grid_sample(x, grid.nan_to_num(5.0, 5.0, -5.0), align_corners=False)
    torch.testing.assert_close(got, want, **EXACT)
    for padding in ("border", "reflection"):
        jit.compile(lambda x, g: F.grid_sample(x, g, padding_mode=padding, align_corners=False))(x, grid)


def test_what_stands_around_is_fused():
    def before(x):
        return F.avg_pool2d((x * 2 + 1).relu(), 2).sum(1)

    def behind(x):
        return F.max_pool2d(x, 3, 2, 1).sigmoid() * 3

    def both(x, y):
        return F.interpolate((x * 2).relu(), scale_factor=2, mode="bilinear") + y

    x = images()["plain"]
    for f, args in ((before, (x,)), (behind, (x,)), (both, (x, torch.randn(2, 6, 26, 34)))):
        with torch.no_grad():
            assert len(jit.explain(f)(*args).kernels) == 1
        compare(f, *args)
    compare(lambda x: F.max_pool2d(F.max_pool2d(x, 5, 1, 2), 5, 1, 2), x)


SIZES = [(2, 3, 8, 9), (2, 3, 11, 7), (3, 2, 30, 31), (4, 5, 6, 6), (2, 3, 4, 4), (1, 1, 5, 6)]


@pytest.mark.parametrize("f", [
    lambda x: F.max_pool2d(x, 3, 2, 1) + 1, lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) + 1,
    lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) + 1, lambda x: F.interpolate(x, scale_factor=2) + 1,
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + 1, lambda x: F.interpolate(x, (16, 12)) + 1,
    lambda x: F.interpolate(x, size=(16, 12), mode="bicubic") + 1, lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect") + 1,
    lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate") + 1, lambda x: F.unfold(x, 3, padding=1) + 1,
    lambda x: F.adaptive_avg_pool2d(x, (3, 2)) + 1,
], ids="max avg ceil nearest bilinear to_size bicubic reflect replicate unfold adaptive".split())
@pytest.mark.parametrize("grad", [False, True])
def test_sizes_that_change(f, grad):
    """One function, called again and again with other sizes."""
    compiled = jit.compile(f)
    for size in SIZES:
        a = torch.randn(size, requires_grad=grad)
        b = a.detach().clone().requires_grad_(grad)
        got, want = compiled(a), f(b)
        torch.testing.assert_close(got, want, **EXACT)
        if grad:
            got.square().sum().backward()
            want.square().sum().backward()
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_without_elements():
    x = torch.randn(0, 3, 8, 8)
    compare(lambda x: F.max_pool2d(x, 2), x)
    compare(lambda x: F.interpolate(x, scale_factor=2), x)
    compare(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), x)


@pytest.mark.parametrize("f", [
    lambda x: F.max_pool2d(x, 3, padding=2), lambda x: F.avg_pool2d(x, 20), lambda x: F.interpolate(x, (0, 3)),
    lambda x: F.pad(x, (20, 1, 1, 1), mode="reflect"), lambda x: F.max_pool2d(x, 3, stride=0),
    lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
], ids="padding kernel size reflection stride rank".split())
def test_what_eager_refuses(f):
    x = images()["plain"]
    with pytest.raises(Exception) as theirs:
        f(x)
    with pytest.raises(type(theirs.value)):
        jit.compile(f)(x)


def test_gradients_of_gradients():
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    for f in (lambda x: F.avg_pool2d(x.square(), 3, 2, 1), lambda x: F.interpolate(x.exp(), scale_factor=2,
                                                                                   mode="bilinear")):
        torch.autograd.gradgradcheck(jit.compile(f), x)


@pytest.mark.parametrize("how", ["nearest", "exact", "linear", "cubic", "smooth linear", "smooth cubic"])
@pytest.mark.parametrize("source, size", [(9, 18), (9, 20), (20, 9), (7, 7), (5, 1), (1, 5), (16, 24)])
def test_all_results_that_read_a_place_are_looked_at(how, source, size):
    forward = windows.Resized(source, size, how, False, None)
    back = windows.ResizedBack(size, source, how, False, None)
    first, last = forward.spans
    a, b, c, count = back.touching
    for o in range(size):
        for i in range(int(first[o]), int(last[o]) + 1):
            assert 0 <= o - (i * a + b) // c < count


def test_few_results_are_looked_at():
    """Twice the size: a place has a part in four results in each direction."""
    assert windows.ResizedBack(18, 9, "linear", False, 2.0).count == 4
    assert windows.ResizedBack(18, 9, "nearest", False, 2.0).count == 2
