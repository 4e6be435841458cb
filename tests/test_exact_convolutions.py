"""Gradients of convolutions are as exact as eager's on the CPU, in any layout and of any kind, and are what eager gives
in all else.

Where a graph has several convolutions of images they run channels-last, whatever the program's layout is, and the
library's sums then are other ones than in eager.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit


def plain(x):
    return x


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def sliced(x):
    """Every other element of the last dimension of a larger tensor."""
    big = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 1e3, dtype=x.dtype)
    big[..., ::2] = x
    return big[..., ::2]


LAYOUTS = (plain, channels_last, sliced)

# name: (layers, shape of the input)
NETS = {
    "two": (lambda: [nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 6, 3)], (8, 3, 40, 40)),
    "grouped": (lambda: [nn.Conv2d(4, 12, 3, groups=2), nn.SiLU(), nn.Conv2d(12, 8, 3, groups=4)], (8, 4, 40, 40)),
    "depthwise": (lambda: [nn.Conv2d(6, 6, 5, padding=2, groups=6), nn.GELU(), nn.Conv2d(6, 12, 1), nn.Softplus(),
                           nn.Conv2d(12, 12, 3, groups=12)], (8, 6, 40, 40)),
    "dilated and strided": (lambda: [nn.Conv2d(4, 8, 3, dilation=2), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2)],
                            (8, 4, 48, 44)),
    "even and of the same size": (lambda: [nn.Conv2d(4, 8, 2, padding="same"), nn.Sigmoid(),
                                           nn.Conv2d(8, 4, (4, 3), padding="same", dilation=(1, 2))], (8, 4, 40, 40)),
    "transposed": (lambda: [nn.Conv2d(3, 6, 3), nn.Tanh(), nn.ConvTranspose2d(6, 8, 2, stride=2), nn.SiLU(),
                            nn.ConvTranspose2d(8, 4, 3, groups=2, output_padding=1, stride=2)], (4, 3, 20, 24)),
    "1d": (lambda: [nn.Conv1d(3, 8, 5), nn.Tanh(), nn.ConvTranspose1d(8, 6, 4, stride=2), nn.Tanh(),
                    nn.Conv1d(6, 6, 4, padding="same", groups=3)], (16, 3, 700)),
    "3d": (lambda: [nn.Conv3d(2, 6, 3), nn.Tanh(), nn.Conv3d(6, 6, (1, 2, 2), padding="same", groups=2), nn.Tanh(),
                    nn.ConvTranspose3d(6, 4, 2)], (4, 2, 8, 18, 16)),
}


def between(make, channels=(16, 16), act=nn.Tanh):
    """The layers of a convolution among others."""
    return lambda: [nn.Conv2d(4, channels[0], 1), nn.Tanh(), make(*channels), act(), nn.Conv2d(channels[1], 4, 1)]


# Convolutions for whose weights the library has other kernels channels-last than in the plain format, or none for that
# alone, and some for which it has the same.
BETWEEN = {
    "depthwise with holes": (between(lambda c, d: nn.Conv2d(c, d, 3, dilation=2, padding=1, groups=c)),
                             (16, 4, 32, 40)),
    "depthwise and wide": (between(lambda c, d: nn.Conv2d(c, d, 7, padding=3, groups=c)), (16, 4, 24, 24)),
    "depthwise, wide and strided": (between(lambda c, d: nn.Conv2d(c, d, 5, stride=2, padding=2, groups=c)),
                                    (16, 4, 48, 40)),
    "depthwise and leaving out columns": (between(lambda c, d: nn.Conv2d(c, d, 1, stride=2, groups=c)),
                                          (16, 4, 40, 40)),
    "depthwise, wide and transposed": (between(lambda c, d: nn.ConvTranspose2d(c, d, (3, 5), stride=2, padding=(0, 2),
                                                                               output_padding=1, groups=c)),
                                       (16, 4, 24, 24)),
    "depthwise, with two results each": (between(lambda c, d: nn.Conv2d(c, d, 3, padding=1, groups=c), (12, 24)),
                                         (16, 4, 32, 32)),
    "groups of few": (between(lambda c, d: nn.Conv2d(c, d, 3, padding=1, groups=4)), (16, 4, 32, 40)),
    "groups of few, large kernels": (between(lambda c, d: nn.Conv2d(c, d, 7, padding=3, groups=2), (8, 64)),
                                     (4, 4, 24, 40)),
    "groups of few, transposed": (between(lambda c, d: nn.ConvTranspose2d(c, d, 3, groups=2), (8, 24)),
                                  (16, 4, 32, 40)),
    "groups of whole vectors": (between(lambda c, d: nn.Conv2d(c, d, 3, padding=1, groups=2), (32, 32)),
                                (4, 4, 24, 24)),
    "groups of whole vectors with holes": (between(lambda c, d: nn.Conv2d(c, d, 3, dilation=2, groups=2), (16, 16)),
                                           (16, 4, 24, 32)),
    "holes and few results": (between(lambda c, d: nn.Conv2d(c, d, 3, dilation=2), (24, 4)), (16, 4, 40, 40)),
    "holes and strides": (between(lambda c, d: nn.Conv2d(c, d, 3, dilation=2, stride=2), (32, 12)), (4, 4, 33, 33)),
    "one small image": (between(lambda c, d: nn.Conv2d(c, d, 3), (3, 4)), (1, 4, 24, 16)),
    "with a norm": (between(lambda c, d: nn.Conv2d(c, d, 5, padding=2, groups=c),
                            act=lambda: nn.Sequential(nn.BatchNorm2d(16), nn.SiLU())), (16, 4, 32, 32)),
}


def net_of(name):
    torch.manual_seed(0)
    return nn.Sequential(*(NETS | BETWEEN)[name][0]())


def gradients(program, net, x, tangent, wanted):
    """Gradients of the net's parameters whose names end in ``wanted``."""
    parameters = [p for n, p in net.named_parameters() if n.endswith(wanted)]
    return torch.autograd.grad(program(x), parameters, tangent.to(x.dtype), allow_unused=True)


def errors(name, layout, dtype, draws, wanted="bias"):
    """For each parameter whose name ends in ``wanted`` the errors of eager and compiled."""
    net, wide = net_of(name).to(dtype), net_of(name).to(dtype).double()
    wide.load_state_dict(net.state_dict())
    program, squares, sizes = jit.compile(net, dynamic=False), None, None
    for draw in range(draws):
        random = torch.Generator().manual_seed(draw)
        x = torch.randn((NETS | BETWEEN)[name][1], generator=random).to(dtype)
        tangent = torch.randn(net(x).shape, generator=random).to(dtype)
        truth = gradients(wide, wide, x.double(), tangent, wanted)
        squares = squares or [[0.0, 0.0] for _ in truth]
        sizes = [t.square().sum().item() + s for t, s in zip(truth, sizes or [0.0] * len(truth))]
        for k, f in enumerate((net, program)):
            for total, t, g in zip(squares, truth, gradients(f, net, layout(x), tangent, wanted), strict=True):
                total[k] += (g.double() - t).square().sum().item()
    return [tuple(math.sqrt(v / size) for v in pair) for pair, size in zip(squares, sizes)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", NETS)
def test_biases(name, layout):
    for k, (eager, mine) in enumerate(errors(name, layout, torch.float32, 8)):
        assert mine <= max(1.5 * eager,
                           torch.finfo(torch.float32).eps), f"bias {k} has the error {mine:.3g}, eager's {eager:.3g}"


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", NETS | BETWEEN)
def test_weights(name, layout):
    for k, (eager, mine) in enumerate(errors(name, layout, torch.float32, 4, "weight")):
        assert mine <= 2 * max(
            eager, torch.finfo(torch.float32).eps / 4), f"weight {k} has the error {mine:.3g}, eager's {eager:.3g}"


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NETS | BETWEEN)
def test_weights_in_one_thread(name, one_thread):
    """The library has other kernels there, for one pixel above all."""
    test_weights(name, plain)


def test_inputs_of_groups_of_few():
    """Gradients toward the input of such a convolution are sums of many products."""
    w, squares = torch.randn(64, 4, 7, 7, generator=torch.Generator().manual_seed(0)), [0.0, 0.0]

    def program(x, w, v):
        return F.conv2d(F.conv2d(x, w, groups=2, padding=3).tanh(), v)

    compiled = jit.compile(program, dynamic=False)
    for draw in range(4):
        random = torch.Generator().manual_seed(draw)
        x, v = torch.randn(4, 8, 24, 40, generator=random), torch.randn(4, 64, 1, 1, generator=random) / 64
        tangent = torch.randn(4, 4, 24, 40, generator=random)

        def gradient(f, *given):
            x = given[0].requires_grad_()
            return torch.autograd.grad(f(*given), x, tangent.to(x.dtype))[0].double()

        truth = gradient(program, x.double(), w.double() / 16, v.double())
        for k, f in enumerate((program, compiled)):
            squares[k] += (gradient(f, x.clone(), w / 16, v) - truth).square().sum().item()
    assert squares[1] <= 4 * squares[0]


@pytest.mark.parametrize("name",
                         ["depthwise, wide and strided", "depthwise, wide and transposed", "depthwise with holes"])
def test_gradients_of_gradients(name):
    """The gradient of weights can be differentiated again."""
    net = net_of(name)

    def penalty(f, x):
        (g,) = torch.autograd.grad(f(x).square().sum(), [net[2].weight], create_graph=True)
        return torch.autograd.grad(g.square().sum(), list(net.parameters()), allow_unused=True)

    x = torch.randn(2, *BETWEEN[name][1][1:3], 22)[:, :, :20]
    for mine, eager in zip(penalty(jit.compile(net, dynamic=False), x), penalty(net, x), strict=True):
        assert (mine is None) == (eager is None)
        if eager is not None:
            torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-4 * eager.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["two", "depthwise", "transposed", "1d"])
def test_biases_of_half_types(name, dtype):
    for k, (eager, mine) in enumerate(errors(name, plain, dtype, 3)):
        assert mine <= max(1.5 * eager,
                           torch.finfo(dtype).eps), f"bias {k} has the error {mine:.3g}, eager's {eager:.3g}"


@pytest.mark.parametrize("wanted", [("bias",), ("weight",), ("weight", "bias")], ids=str)
@pytest.mark.parametrize("name",
                         [*NETS, "depthwise, wide and strided", "depthwise, wide and transposed", "groups of few"])
def test_what_eager_gives(name, wanted):
    """Values, dtypes and strides, of some gradients alone, at several shapes and layouts of one program: of an empty
    batch and a lone image, too."""
    net, shape = net_of(name), (NETS | BETWEEN)[name][1]
    program = jit.compile(net)
    for batch in (shape[:1], (0,), (3,), (1,), ()):
        for layout in LAYOUTS:
            if layout is channels_last and not batch:
                continue
            x = layout(torch.randn(*batch, *shape[1:], generator=torch.Generator().manual_seed(1)))
            tangent = torch.randn(net(x).shape, generator=torch.Generator().manual_seed(2))
            for mine, eager in (zip(gradients(program, net, x, tangent, wanted),
                                    gradients(net, net, x, tangent, wanted), strict=True)):
                assert mine.stride() == eager.stride() and mine.dtype is eager.dtype
                torch.testing.assert_close(mine, eager, rtol=1e-4,
                                           atol=1e-4 * eager.abs().max().item() if eager.numel() else 0)


def test_a_bias_without_its_convolution():
    """Only a bias's gradient is asked for, of an expanded and of a real gradient."""

    def program(x, w, b):
        y = F.conv2d(x, w, b)
        return y.sum() + 2 * y.cos().sum()

    x, w, b = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), torch.randn(4, requires_grad=True)
    compiled = jit.compile(program)
    for dtype in (torch.float32, torch.float64, torch.complex64):
        given = [t.detach().to(dtype) for t in (x, w)] + [b.detach().to(dtype).requires_grad_()]
        mine, eager = (torch.autograd.grad(f(*given).abs(), given[2])[0] for f in (compiled, program))
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
        assert mine.dtype is dtype and mine.stride() == eager.stride()


@pytest.mark.parametrize("size", ["same", "valid"])
def test_inputs_of_convolutions_of_the_same_size(size):
    """Gradients of a padded input are cut to its size."""

    def program(x, w):
        return F.conv2d(F.conv2d(x, w, padding=size, dilation=(1, 3)).tanh(), w, padding=size)

    compiled = jit.compile(program, dynamic=False)
    for kernel in ((2, 4), (3, 2), (4, 3), (1, 2)):
        for layout in LAYOUTS:
            x, w = layout(torch.randn(2, 4, 14, 15)).requires_grad_(), torch.randn(4, 4, *kernel, requires_grad=True)
            mine, eager = (torch.autograd.grad(f(x, w).square().sum(), [x, w]) for f in (compiled, program))
            for a, e in zip(mine, eager, strict=True):
                torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-3 * e.abs().max().item())
                assert a.stride() == e.stride(), (kernel, layout)


def test_a_bias_that_the_program_asks_the_library_for():
    """Its sum is the library's, in the layout that the program has."""

    def program(g, x, w):
        gx, gw, gb = torch.ops.aten.convolution_backward(g.sin(), x, w, [12], [1, 1], [0, 0], [1, 1], False, [0, 0], 2,
                                                         [True, True, True])
        return F.conv2d(gx, w, groups=2).cos(), gw, gb

    compiled, squares = jit.compile(program, dynamic=False), [0.0, 0.0]
    for draw in range(8):
        given = [torch.randn(*shape, generator=torch.Generator().manual_seed(draw))
                 for shape in ((8, 12, 40, 40), (8, 4, 42, 42), (12, 2, 3, 3))]
        truth = program(*[t.double() for t in given])[2]
        for k, f in enumerate((program, compiled)):
            squares[k] += (f(*given)[2].double() - truth).square().sum().item()
    assert squares[1] <= 2 * squares[0]


def test_images_that_are_their_own_gradients():
    """The gradient that comes to a convolution is the very tensor that it was applied to."""

    def program(x, w, v):
        return (F.conv2d(x, w, padding=2, groups=12) * x).sum() + F.conv2d(x, v).square().sum()

    x, w, v = (torch.randn(2, 12, 14, 15), torch.randn(12, 1, 5, 5, requires_grad=True),
               torch.randn(4, 12, 1, 1, requires_grad=True))
    mine, eager = (torch.autograd.grad(f(x, w, v), [w, v]) for f in (jit.compile(program, dynamic=False), program))
    for a, e in zip(mine, eager):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-3)
