"""What benchmarks/operators.py measures: a row per operator or small chain of them, by the way that it moves memory.

A row is a function of a ``Maker`` under ``@row(group)``, which is also its name. It returns the program, its arguments
and, where not all of these are read, or some more than once, the bytes that have to be moved.
Under ``@row(group, grad=True)`` the program is run forward and backward, with gradients of all floating-point
arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F

WIDTH = 4096


@dataclass(frozen=True)
class Row:
    group: str
    make: Callable
    grad: bool


ROWS: dict[str, Row] = {}


def row(group: str, grad: bool = False):
    def register(make: Callable) -> Callable:
        name = make.__name__.strip("_")
        assert name not in ROWS, name
        ROWS[name] = Row(group, make, grad)
        return make
    return register


class Maker:
    """Makes arguments: matrices of ``rows`` by 4096 elements where no shape is given, other shapes of about as many."""

    def __init__(self, device: str, dtype: torch.dtype, rows: int):
        self.device, self.dtype, self.rows = device, dtype, rows
        self.numel = rows * WIDTH

    def x(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(*(shape or (self.rows, WIDTH)), device=self.device, dtype=dtype or self.dtype)

    def ints(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(high, shape or (self.rows, WIDTH), device=self.device).to(dtype)

    def wide(self, width: int) -> torch.Tensor:
        return self.x(max(self.numel // width, 1), width)

    def image(self, channels: int = 64, side: int = 56) -> torch.Tensor:
        return self.x(max(self.numel // (channels * side * side), 1), channels, side, side)

    def indices(self, n: int, *shape: int) -> torch.Tensor:
        return self.ints(n, *shape)


def nbytes(value) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(nbytes, value)) if isinstance(value, (list, tuple)) else 0


# elementwise


def _elementwise(name: str, function: Callable, operands: int = 1):
    def make(m: Maker):
        return function, tuple(m.x() for _ in range(operands))
    make.__name__ = name
    row("elementwise")(make)


_elementwise("gelu_erf", F.gelu)
_elementwise("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))
_elementwise("mish", F.mish)
_elementwise("softplus", F.softplus)
_elementwise("hardswish", F.hardswish)
_elementwise("elu_then_square", lambda x: F.elu(x).square())
_elementwise("logsigmoid", F.logsigmoid)
_elementwise("exp_sin_chain", lambda x: torch.exp(-torch.tanh(torch.sin(x))))
_elementwise("erfinv_of_sigmoid", lambda x: torch.erfinv(torch.sigmoid(x)))
_elementwise("lgamma", lambda x: torch.lgamma(x.abs() + 1))
_elementwise("digamma", lambda x: torch.digamma(x.abs() + 1))
_elementwise("bessel_i0", torch.special.i0)
_elementwise("sinc", torch.sinc)
_elementwise("nan_to_num_clamp", lambda x: torch.nan_to_num(x).clamp(-1, 1))
_elementwise("round_sign_frac", lambda x: torch.round(x) + torch.sign(x) * torch.frac(x))
_elementwise("power", lambda x: x.abs() ** 1.7)
_elementwise("atan2", torch.atan2, 2)
_elementwise("remainder", lambda a, b: torch.remainder(a, b + 3), 2)
_elementwise("hypot_copysign", lambda a, b: torch.copysign(torch.hypot(a, b), a), 2)
_elementwise("logaddexp", torch.logaddexp, 2)
_elementwise("xlogy", lambda a, b: torch.xlogy(a, b.abs()), 2)
_elementwise("lerp", lambda a, b, w: torch.lerp(a, b, w), 3)
_elementwise("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1, value=0.5), 3)
_elementwise("compare_and_select", lambda a, b: torch.where((a > b) & (a > 0), a, b * 0.1), 2)
_elementwise("softcap", lambda x: 30 * torch.tanh(x / 30))


@row("elementwise")
def shifts_and_masks(m):
    return lambda a, b: ((a >> 3) ^ (b << 2)) & 0xFFFF | ~a, (m.ints(1 << 30, dtype=torch.int32),
                                                              m.ints(1 << 30, dtype=torch.int32))


@row("elementwise")
def complex_multiply(m):
    a, b = (torch.view_as_complex(m.x(m.rows, WIDTH // 2, 2, dtype=torch.float32)) for _ in range(2))
    return lambda a, b: a * b.conj() + a, (a, b)


@row("elementwise")
def outer_sum(m):
    return lambda a, b: torch.tanh(a[:, None] + b), (m.x(m.rows), m.x(WIDTH))


@row("elementwise")
def scale_and_shift_channels(m):
    x = m.image()
    return lambda x, s, b: F.relu(x * s[:, None, None] + b[:, None, None]), (x, m.x(64), m.x(64))


@row("elementwise")
def scale_and_shift_channels_last(m):
    x = m.image().to(memory_format=torch.channels_last)
    return lambda x, s, b: F.relu(x * s[:, None, None] + b[:, None, None]), (x, m.x(64), m.x(64))


@row("elementwise")
def adaptive_modulation(m):
    return lambda x, s, b: x * (1 + s[:, None]) + b[:, None], (m.x(max(m.rows // 256, 1), 256, WIDTH),
                                                            m.x(max(m.rows // 256, 1), WIDTH),
                                                            m.x(max(m.rows // 256, 1), WIDTH))


@row("elementwise")
def polynomial_inplace(m):
    def program(x, y):
        y = y.mul(0.9).add_(x, alpha=0.1)
        return y.mul_(x).clamp_(min=0)
    return program, (m.x(), m.x())


# layout


@row("layout")
def add_transposed(m):
    return lambda x, y: x.t() + y, (m.x(WIDTH, m.rows), m.x())


@row("layout")
def heads_to_the_front(m):
    x = m.x(max(m.rows // 512, 1), 512, WIDTH)
    return lambda x: x.view(-1, 512, 32, 128).transpose(1, 2).contiguous() * 0.5, (x,)


@row("layout")
def channels_first_to_last(m):
    return lambda x: F.relu(x).contiguous(memory_format=torch.channels_last), (m.image(),)


@row("layout")
def channels_last_to_first(m):
    return lambda x: F.relu(x).contiguous(), (m.image().to(memory_format=torch.channels_last),)


@row("layout")
def reverse_of_four_axes(m):
    side = max(int(round((m.numel / 64) ** 0.5)), 1)
    return lambda x: x.permute(3, 2, 1, 0).contiguous(), (m.x(8, side, side, 8),)


@row("layout")
def cat_of_eight(m):
    return lambda *xs: torch.cat(xs, -1) * 2, tuple(m.x(m.rows, WIDTH // 8) for _ in range(8))


@row("layout")
def stack_last(m):
    return lambda a, b: torch.stack([a, b], -1).flatten(-2), (m.x(m.rows, WIDTH // 2), m.x(m.rows, WIDTH // 2))


@row("layout")
def split_glu(m):
    return lambda x: F.glu(x, -1), (m.x(),)


@row("layout")
def swiglu_of_halves(m):
    def program(x):
        a, b = x.chunk(2, -1)
        return F.silu(a) * b
    return program, (m.x(),)


@row("layout")
def roll_and_flip(m):
    return lambda x: torch.roll(x, (5, 77), (0, 1)).flip(1), (m.x(),)


@row("layout")
def lower_triangle(m):
    return lambda x: torch.tril(x, -1) + torch.triu(x, 3), (m.x(),)


@row("layout")
def pixel_shuffle(m):
    return lambda x: F.pixel_shuffle(x, 2), (m.image(),)


@row("layout")
def pixel_unshuffle(m):
    return lambda x: F.pixel_unshuffle(x, 2), (m.image(),)


@row("layout")
def channel_shuffle(m):
    return lambda x: F.channel_shuffle(x, 4) * 2, (m.image(),)


@row("layout")
def pad_constant(m):
    return lambda x: F.pad(x, (1, 2, 3, 1)), (m.image(),)


@row("layout")
def pad_reflect(m):
    return lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), (m.image(),)


@row("layout")
def pad_replicate(m):
    return lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate"), (m.image(),)


@row("layout")
def pad_circular(m):
    return lambda x: F.pad(x, (2, 2, 2, 2), mode="circular"), (m.image(),)


@row("layout")
def windows_of_images(m):
    return lambda x: x.view(-1, 64, 8, 7, 8, 7).permute(0, 2, 4, 3, 5, 1).contiguous(), (m.image(),)


@row("layout")
def unfold_3x3(m):
    return lambda x: F.unfold(x, 3, padding=1), (m.x(max(m.numel // (16 * 56 * 56 * 4), 1), 16, 56, 56),)


@row("layout")
def fold_3x3(m):
    n = max(m.numel // (144 * 784 * 2), 1)
    return lambda x: F.fold(x, (28, 28), 3, padding=1), (m.x(n, 144, 784),)


@row("layout")
def repeat_rows(m):
    return lambda x: x.repeat_interleave(4, 0) + 1, (m.x(max(m.rows // 4, 1), WIDTH),)


@row("layout")
def tile_columns(m):
    return lambda x: x.repeat(1, 4) * 2, (m.x(m.rows, WIDTH // 4),)


@row("layout")
def strided_slices(m):
    return lambda x: x[:, ::2] + x[:, 1::2], (m.x(),)


@row("layout")
def rotary_halves(m):
    def program(q, cos, sin):
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin
    return program, (m.x(max(m.rows // 512, 1), 32, 512, 128), m.x(512, 128), m.x(512, 128))


@row("layout")
def rotary_pairs(m):
    def program(q, cos, sin):
        a, b = q[..., ::2], q[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return program, (m.x(max(m.rows // 512, 1), 32, 512, 128), m.x(512, 64), m.x(512, 64))


# indexing


@row("indexing")
def embedding(m):
    w, i = m.x(50257, 1024), m.indices(50257, m.numel // 1024)
    return lambda i, w: F.embedding(i, w) * 2, (i, w), 2 * i.numel() * 1024 * w.element_size() + nbytes(i)


@row("indexing")
def embedding_bag_sum(m):
    w, i = m.x(200000, 128), m.indices(200000, m.numel // 128 // 2, 8)
    read = i.numel() * 128 * w.element_size()
    return lambda i, w: F.embedding_bag(i, w, mode="sum"), (i, w), read + read // 8 + nbytes(i)


@row("indexing")
def embedding_bag_mean(m):
    w, i = m.x(200000, 128), m.indices(200000, m.numel // 128 // 2, 8)
    read = i.numel() * 128 * w.element_size()
    return lambda i, w: F.embedding_bag(i, w, mode="mean"), (i, w), read + read // 8 + nbytes(i)


@row("indexing")
def select_rows(m):
    return lambda x, i: torch.index_select(x, 0, i) + 1, (m.x(), torch.randperm(m.rows, device=m.device))


@row("indexing")
def gather_columns(m):
    x, i = m.x(), m.indices(WIDTH, m.rows, WIDTH // 4)
    return lambda x, i: torch.gather(x, 1, i), (x, i)


@row("indexing")
def advanced_index(m):
    x = m.x()
    i, j = m.indices(m.rows, m.numel // 8), m.indices(WIDTH, m.numel // 8)
    return lambda x, i, j: x[i, j], (x, i, j), nbytes((i, j)) + 2 * i.numel() * x.element_size()


@row("indexing")
def scatter_add_rows(m):
    x, i = m.x(), m.indices(max(m.rows // 16, 1), m.rows)
    base = m.x(max(m.rows // 16, 1), WIDTH)
    return lambda base, i, x: base.index_add(0, i, x), (base, i, x)


@row("indexing")
def scatter_values(m):
    x = m.x()
    i = torch.argsort(torch.rand(m.rows, WIDTH // 4, device=m.device), 1)
    return lambda x, i, s: x.scatter(1, i, s), (x, i, m.x(m.rows, WIDTH // 4))


@row("indexing")
def scatter_amax(m):
    x, i = m.x(m.rows, 1024), m.indices(64, m.rows, 1024)
    base = m.x(m.rows, 64)
    return lambda base, i, x: base.scatter_reduce(1, i, x, "amax"), (base, i, x)


@row("indexing")
def masked_fill(m):
    return lambda x, k: x.masked_fill(k, -1e4) * 0.5, (m.x(), m.x() > 0)


@row("indexing")
def one_hot_mean(m):
    return lambda i: F.one_hot(i, 256).float().mul(0.9).add(0.1 / 256), (m.indices(256, max(m.numel // 512, 1)),)


@row("indexing")
def bucketize(m):
    return lambda x, b: torch.bucketize(x, b), (m.x(dtype=torch.float32), torch.linspace(-3, 3, 33, device=m.device))


@row("indexing")
def histogram(m):
    return lambda x: torch.histc(x, 100, -3, 3), (m.x(dtype=torch.float32).view(-1),)


@row("indexing")
def bincount(m):
    return lambda i: torch.bincount(i, minlength=1000), (m.indices(1000, m.numel // 4),)


@row("indexing")
def take_along_sorted(m):
    return lambda x, i: torch.take_along_dim(x, i, 1).sum(1), (m.x(m.rows, 1024), m.indices(1024, m.rows, 1024))


# reductions


def _reduction(name: str, function: Callable, *shape: int):
    def make(m: Maker):
        return function, (m.x(*shape),)
    make.__name__ = name
    row("reduction")(make)


_reduction("sum_of_all", lambda x: x.float().sum())
_reduction("mean_square_of_all", lambda x: x.float().square().mean())
_reduction("norm_of_all", lambda x: torch.linalg.vector_norm(x))
_reduction("largest_of_all", lambda x: x.abs().amax())
_reduction("sum_of_rows", lambda x: x.sum(-1))
_reduction("sum_of_columns", lambda x: x.sum(0))
_reduction("largest_of_columns", lambda x: x.amax(0))
_reduction("variance_of_rows", lambda x: x.var(-1))
_reduction("variance_and_mean_of_columns", lambda x: torch.var_mean(x, 0))
_reduction("norm_of_rows", lambda x: x.norm(dim=-1))
_reduction("three_norm_of_rows", lambda x: x.norm(3, dim=-1))
_reduction("argmax_of_rows", lambda x: x.argmax(-1))
_reduction("argmin_of_columns", lambda x: x.argmin(0))
_reduction("max_with_indices", lambda x: x.max(-1))
_reduction("aminmax_of_rows", lambda x: torch.aminmax(x, dim=-1))
_reduction("logsumexp_of_rows", lambda x: torch.logsumexp(x, -1))
_reduction("logsumexp_of_columns", lambda x: torch.logsumexp(x, 0))
_reduction("count_and_any", lambda x: (torch.count_nonzero(x > 1, -1), (x > 4).any(-1)))
_reduction("product_of_rows", lambda x: (x * 0.01 + 1).prod(-1))
_reduction("nan_sum_of_rows", lambda x: torch.nansum(x, -1))


@row("reduction")
def sum_of_the_middle(m):
    return lambda x: x.sum(1), (m.x(max(m.rows // 512, 1), 512, WIDTH),)


@row("reduction")
def mean_over_pixels(m):
    return lambda x: x.mean((2, 3)), (m.image(),)


@row("reduction")
def mean_over_pixels_channels_last(m):
    return lambda x: x.mean((2, 3)), (m.image().to(memory_format=torch.channels_last),)


@row("reduction")
def sum_over_batch_and_pixels(m):
    return lambda x: x.sum((0, 2, 3)), (m.image(),)


@row("reduction")
def cosine_similarity(m):
    return lambda a, b: F.cosine_similarity(a, b, dim=-1), (m.x(), m.x())


@row("reduction")
def pairwise_distance(m):
    return lambda a, b: F.pairwise_distance(a, b), (m.wide(512), m.wide(512))


@row("reduction")
def median_of_short_rows(m):
    return lambda x: x.median(-1), (m.wide(64),)


# scans and sorts


def _scan(name: str, function: Callable, width: int = WIDTH):
    def make(m: Maker):
        return function, (m.wide(width),)
    make.__name__ = name
    row("scan")(make)


_scan("cumsum_of_rows", lambda x: x.cumsum(-1))
_scan("cumsum_of_long_rows", lambda x: x.cumsum(-1), 65536)
_scan("cumsum_of_columns", lambda x: x.cumsum(0), 16384)
_scan("cummax_of_rows", lambda x: x.cummax(-1).values)
_scan("logcumsumexp_of_rows", lambda x: x.logcumsumexp(-1))
_scan("differences", lambda x: torch.diff(x, dim=-1))
_scan("sort_of_short_rows", lambda x: torch.sort(x, -1).values, 128)
_scan("argsort_of_short_rows", lambda x: torch.argsort(x, -1), 64)
_scan("topk_of_experts", lambda x: torch.topk(torch.softmax(x, -1), 8, -1).values, 64)
_scan("kthvalue_of_short_rows", lambda x: torch.kthvalue(x, 5, -1).values, 128)


@row("scan")
def cumprod_of_rows(m):
    """In float32: eager rounds halves at each step."""
    return lambda x: (x * 0.01 + 1).cumprod(-1), (m.x(dtype=torch.float32),)


# softmax and norms


def _rows(group: str, name: str, function: Callable, width: int = WIDTH, weights: int = 0, operands: int = 1):
    def make(m: Maker):
        return function, tuple(m.wide(width) for _ in range(operands)) + tuple(m.x(width) for _ in range(weights))
    make.__name__ = name
    row(group)(make)


for _width in (64, 200, 1000, 8192, 32768, 50257, 131072, 262144):
    _rows("softmax", f"softmax_{_width}", lambda x: torch.softmax(x, -1), _width)
_rows("softmax", "log_softmax_131072", lambda x: F.log_softmax(x, -1), 131072)
_rows("softmax", "softmax_with_temperature_32000", lambda x: torch.softmax(x.float() / 0.7, -1), 32000)


@row("softmax")
def softmax_of_the_middle(m):
    return lambda x: torch.softmax(x, 1), (m.x(max(m.rows // 128, 1), 128, WIDTH),)


@row("softmax")
def causal_softmax(m):
    def program(x):
        n = x.shape[-1]
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        return torch.softmax((x * 0.125).masked_fill(~mask, float("-inf")), -1)
    return program, (m.x(max(m.numel // 1024**2, 1), 1024, 1024),)


for _width in (128, 768, 5120, 20000, 65536, 131072):
    _rows("norm", f"layer_norm_{_width}", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), _width, 2)
_rows("norm", "rms_norm_4096", lambda x, w: F.rms_norm(x, x.shape[-1:], w), WIDTH, 1)
_rows("norm", "rms_norm_65536", lambda x, w: F.rms_norm(x, x.shape[-1:], w), 65536, 1)
_rows("norm", "residual_layer_norm", lambda x, r, w, b: F.layer_norm(x * 0.9 + r, x.shape[-1:], w, b), 1024, 2, 2)
_rows("norm", "normalize_rows", lambda x: F.normalize(x, dim=-1), 1024)


@row("norm")
def group_norm(m):
    return lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (m.image(128, 32), m.x(128), m.x(128))


@row("norm")
def group_norm_channels_last(m):
    x = m.image(128, 32).to(memory_format=torch.channels_last)
    return lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (x, m.x(128), m.x(128))


@row("norm")
def instance_norm(m):
    return F.instance_norm, (m.image(),)


@row("norm")
def batch_norm_of_a_trained_net(m):
    return (lambda x, mean, var, w, b: F.relu(F.batch_norm(x, mean, var, w, b)),
            (m.image(), m.x(64), m.x(64).abs() + 1, m.x(64), m.x(64)))


@row("norm")
def local_response_norm(m):
    return lambda x: F.local_response_norm(x, 5), (m.image(),)


@row("norm")
def query_key_norm_and_rotary(m):
    def program(q, w, cos, sin):
        q = F.rms_norm(q, (128,), w)
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin
    return program, (m.x(max(m.rows // 512, 1), 512, 32, 128), m.x(128), m.x(512, 1, 128), m.x(512, 1, 128))


# losses


@row("loss")
def cross_entropy_131072(m):
    x = m.wide(131072)
    return lambda x, t: F.cross_entropy(x.float(), t), (x, m.indices(131072, x.shape[0]))


@row("loss")
def cross_entropy_smoothed(m):
    x = m.wide(32000)
    return lambda x, t: F.cross_entropy(x.float(), t, label_smoothing=0.1), (x, m.indices(32000, x.shape[0]))


_elementwise("huber_loss", lambda a, b: F.huber_loss(a, b), 2)
_elementwise("binary_cross_entropy_with_logits", lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()), 2)
_elementwise("mean_square_loss", F.mse_loss, 2)
_elementwise("kl_divergence", lambda a, b: F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction="batchmean"), 2)


@row("loss")
def focal_loss(m):
    def program(x, t):
        p = torch.sigmoid(x)
        pt = torch.where(t > 0, p, 1 - p)
        return (-(1 - pt) ** 2 * torch.log(pt + 1e-6)).mean()
    return program, (m.x(), (m.x() > 0).to(m.dtype))


# pooling and resampling


def _image(name: str, function: Callable, channels: int = 64, side: int = 56, last: bool = False):
    def make(m: Maker):
        x = m.image(channels, side)
        return function, (x.to(memory_format=torch.channels_last) if last else x,)
    make.__name__ = name
    row("window")(make)


_image("max_pool_3x3", lambda x: F.max_pool2d(x, 3, 2, 1))
_image("max_pool_3x3_channels_last", lambda x: F.max_pool2d(x, 3, 2, 1), last=True)
_image("max_pool_with_indices", lambda x: F.max_pool2d(x, 2, 2, return_indices=True))
_image("average_pool_3x3", lambda x: F.avg_pool2d(x, 3, 1, 1))
_image("average_pool_2x2_after_relu", lambda x: F.avg_pool2d(F.relu(x), 2))
_image("adaptive_average_pool_7", lambda x: F.adaptive_avg_pool2d(x, 7))
_image("adaptive_max_pool_5", lambda x: F.adaptive_max_pool2d(x, 5))
_image("power_pool", lambda x: F.lp_pool2d(x, 2, 2))
_image("resize_nearest_up", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), side=28)
_image("resize_bilinear_up", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), side=28)
_image("resize_bilinear_up_channels_last", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 64, 28, True)
_image("resize_bilinear_to_48_corners", lambda x: F.interpolate(x, (48, 48), mode="bilinear", align_corners=True))
_image("resize_bicubic_up", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), 3, 224)
_image("resize_area_down", lambda x: F.interpolate(x, (20, 20), mode="area"))
_image("resize_antialiased_down", lambda x: F.interpolate(x, (40, 40), mode="bilinear", antialias=True))


@row("window")
def resize_trilinear(m):
    x = m.x(max(m.numel // (32 * 16**3 * 8), 1), 32, 16, 16, 16)
    return lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (x,)


@row("window")
def average_pool_of_signals(m):
    return lambda x: F.avg_pool1d(x, 5, 2), (m.x(max(m.rows // 64, 1), 64, WIDTH),)


@row("window")
def max_pool_of_volumes(m):
    return lambda x: F.max_pool3d(x, 2), (m.x(max(m.numel // (32 * 32**3), 1), 32, 32, 32, 32),)


@row("window")
def grid_sample(m):
    x = m.image()
    grid = F.affine_grid(torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.1]]], device=m.device).expand(x.shape[0], 2, 3),
                         x.shape, align_corners=False).to(m.dtype)
    return lambda x, g: F.grid_sample(x, g, align_corners=False), (x, grid)


# quantisation


@row("quantisation")
def float8_per_row(m):
    def program(x):
        scale = x.abs().amax(-1, keepdim=True).float() / 448
        return (x.float() / scale).to(torch.float8_e4m3fn), scale
    return program, (m.x(),)


@row("quantisation")
def float8_per_block(m):
    def program(x):
        b = x.view(x.shape[0], -1, 128).float()
        scale = b.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
        return (b / scale).to(torch.float8_e4m3fn).view(x.shape), scale.squeeze(-1)
    return program, (m.x(),)


@row("quantisation")
def int8_per_token(m):
    def program(x):
        scale = x.abs().amax(-1, keepdim=True).float() / 127
        return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale
    return program, (m.x(),)


@row("quantisation")
def dequantise_int8_per_channel(m):
    return lambda q, s: q.to(s.dtype) * s[:, None], (m.ints(255, dtype=torch.int8), m.x(m.rows))


@row("quantisation")
def unpack_int4(m):
    def program(p, s):
        q = torch.stack([p & 15, p >> 4], -1).flatten(-2)
        return (q.to(s.dtype) - 8).view(q.shape[0], -1, 128).mul(s[..., None]).flatten(1)
    return program, (m.ints(255, m.rows, WIDTH // 2, dtype=torch.uint8), m.x(m.rows, WIDTH // 128))


@row("quantisation")
def from_float8(m):
    return lambda x, s: x.to(s.dtype) * s, (m.x().to(torch.float8_e5m2), m.x(1))


@row("quantisation")
def fake_quantise(m):
    return lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127), (m.x(dtype=torch.float32),)


# forward and backward


@row("backward", grad=True)
def grad_gelu(m):
    return lambda x, b: F.gelu(x + b), (m.x(), m.x(WIDTH))


@row("backward", grad=True)
def grad_swiglu(m):
    return lambda a, b: F.silu(a) * b, (m.x(), m.x())


@row("backward", grad=True)
def grad_softmax(m):
    return lambda x: torch.softmax(x, -1), (m.wide(2048),)


@row("backward", grad=True)
def grad_cross_entropy(m):
    x = m.wide(32000)
    t = m.indices(32000, x.shape[0])
    return lambda x, t: F.cross_entropy(x.float(), t), (x, t)


@row("backward", grad=True)
def grad_layer_norm(m):
    return lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (m.wide(1024), m.x(1024), m.x(1024))


@row("backward", grad=True)
def grad_residual_rms_norm(m):
    return lambda x, r, w: F.rms_norm(x + r, x.shape[-1:], w), (m.x(), m.x(), m.x(WIDTH))


@row("backward", grad=True)
def grad_group_norm(m):
    return lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (m.image(128, 32), m.x(128), m.x(128))


@row("backward", grad=True)
def grad_batch_norm(m):
    def program(x, w, b):
        return F.relu(F.batch_norm(x, None, None, w, b, training=True))
    return program, (m.image(), m.x(64), m.x(64))


@row("backward", grad=True)
def grad_embedding(m):
    i = m.indices(32000, m.numel // 1024)
    return lambda w, i: F.embedding(i, w), (m.x(32000, 1024), i)


@row("backward", grad=True)
def grad_embedding_bag(m):
    i = m.indices(32000, m.numel // 1024 // 4, 8)
    return lambda w, i: F.embedding_bag(i, w, mode="sum"), (m.x(32000, 256), i)


@row("backward", grad=True)
def grad_max_pool(m):
    return lambda x: F.max_pool2d(x, 3, 2, 1), (m.image(),)


@row("backward", grad=True)
def grad_average_pool(m):
    return lambda x: F.avg_pool2d(x, 2), (m.image(),)


@row("backward", grad=True)
def grad_resize_bilinear(m):
    return lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (m.image(64, 28),)


@row("backward", grad=True)
def grad_cumsum(m):
    return lambda x: x.cumsum(-1), (m.x(),)


@row("backward", grad=True)
def grad_logsumexp(m):
    return lambda x: torch.logsumexp(x, -1), (m.x(),)


@row("backward", grad=True)
def grad_select_rows(m):
    return lambda x, i: torch.index_select(x, 0, i), (m.x(), m.indices(m.rows, m.rows))


@row("backward", grad=True)
def grad_cat_and_pad(m):
    return lambda a, b: F.pad(torch.cat([a, b], -1), (4, 4)), (m.x(m.rows, WIDTH // 2), m.x(m.rows, WIDTH // 2))


@row("backward", grad=True)
def grad_dropout_residual(m):
    return lambda x, r: F.dropout(x, 0.1) + r, (m.x(), m.x())


@row("backward", grad=True)
def grad_smooth_l1(m):
    return F.smooth_l1_loss, (m.x(), m.x())


# optimizers and random numbers


@row("update")
def adam(m):
    def program(p, g, a, v):
        a = torch.lerp(a, g, 0.1)
        v = 0.999 * v + 0.001 * g * g
        return p - 1e-3 * a / (v.sqrt() + 1e-8), a, v
    return program, (m.x(), m.x(), m.x(), m.x().abs())


@row("update")
def momentum_in_place(m):
    def program(p, g, a):
        a.mul_(0.9).add_(g)
        p.add_(a, alpha=-1e-6)
        return None
    p, g, a = m.x(), m.x(), m.x() * 0
    return program, (p, g, a), 5 * nbytes(p)


@row("random")
def dropout(m):
    return lambda x: F.dropout(x, 0.1, True), (m.x(),)


@row("random")
def noise(m):
    return lambda x: x + torch.randn_like(x) * 0.1, (m.x(),)


@row("random")
def gumbel_argmax(m):
    return lambda x: (x - torch.log(-torch.log(torch.rand_like(x)))).argmax(-1), (m.x(dtype=torch.float32),)
