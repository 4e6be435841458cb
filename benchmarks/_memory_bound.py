"""Memory-bound functions by class, at the sizes at which they fill a GPU: what ``kernel_configs.py`` fits and measures.

``CASES[name](rand, n)`` gives ``(function, arguments)``; ``n`` is the number of elements of the largest tensor, and
``rand(*shape)`` makes tensors of the dtype at hand. Those in ``BACKWARD`` are differentiated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CASES = {}
BACKWARD = set()
WIDTHS = (64, 100, 128, 256, 500, 1000, 1024, 2048, 3000, 4096, 8192, 12288, 16384, 32768, 50257, 65536, 131072, 262144)


def case(make):
    CASES[make.__name__] = make
    return make


def backward(make):
    BACKWARD.add(make.__name__)
    return case(make)


def rows_of(name, widths, arguments):
    """A case for each width of rows: ``arguments(rand, rows, width)``."""
    def register(fn):
        for width in widths:
            CASES[f"{name}_{width}"] = lambda rand, n, w=width: (fn, arguments(rand, max(n // w, 1), w))
        return fn
    return register


def labels(rand, rows, width):
    x = rand(rows, width)
    return x, torch.randint(0, width, (rows,), device=x.device)


@rows_of("softmax", WIDTHS, lambda rand, n, w: (rand(n, w),))
def softmax(x):
    return torch.softmax(x, -1)


@rows_of("log_softmax", (1024, 32768, 50257, 131072, 262144), lambda rand, n, w: (rand(n, w),))
def log_softmax(x):
    return torch.log_softmax(x, -1)


@rows_of("layer_norm", WIDTHS, lambda rand, n, w: (rand(n, w), rand(w), rand(w)))
def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


@rows_of("rms_norm", (128, 1024, 4096, 5120, 8192, 16384, 65536), lambda rand, n, w: (rand(n, w), rand(w)))
def rms_norm(x, w):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


@rows_of("residual_norm", (768, 1024, 4096, 8192, 16384), lambda rand, n, w: (rand(n, w), rand(n, w), rand(w), rand(w)))
def residual_layer_norm(x, r, w, b):
    y = x + r
    return F.layer_norm(y, y.shape[-1:], w, b), y


@rows_of("cross_entropy", (1000, 32768, 50257, 131072, 262144), labels)
def cross_entropy(x, t):
    return F.cross_entropy(x.float(), t)


@rows_of("smooth_entropy", (32768,), labels)
def smooth_entropy(x, t):
    return F.cross_entropy(x.float(), t, label_smoothing=0.1, ignore_index=-100)


@rows_of("row_sum", (64, 256, 1024, 4096, 32768, 262144), lambda rand, n, w: (rand(n, w),))
def row_sum(x):
    return x.float().sum(-1)


@rows_of("row_var", (256, 4096, 65536), lambda rand, n, w: (rand(n, w),))
def row_var(x):
    return x.var(-1)


@rows_of("row_argmax", (1024, 32768, 151936), lambda rand, n, w: (rand(n, w),))
def row_argmax(x):
    return x.argmax(-1)


@rows_of("row_max", (4096, 32768), lambda rand, n, w: (rand(n, w),))
def row_max(x):
    return x.max(-1)


@rows_of("cumsum", (128, 1024, 4096, 32768, 262144), lambda rand, n, w: (rand(n, w),))
def cumsum(x):
    return x.cumsum(-1)


@rows_of("sample", (32768, 151936), lambda rand, n, w: (rand(n, w), rand(n, w).abs() + 0.1))
def sample(x, noise):
    return (torch.softmax(x.float() / 0.7, -1) / noise).argmax(-1)


@rows_of("quantised_row", (1024, 4096, 16384), lambda rand, n, w: (rand(n, w),))
def quantised_rows(x):
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


@rows_of("quantised_block", (4096,), lambda rand, n, w: (rand(n, w),))
def quantised_blocks(x):
    y = x.float().view(x.shape[0], -1, 128)
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
    return (y / scale).to(torch.float8_e4m3fn).view_as(x), scale.squeeze(-1)


@rows_of("int8_row", (4096,), lambda rand, n, w: (rand(n, w),))
def int8_rows(x):
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale).clamp(-127, 127).to(torch.int8), scale


@rows_of("norm_quantised", (4096,), lambda rand, n, w: (rand(n, w), rand(w)))
def norm_quantised(x, w):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w.float()
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
    return (y / scale).to(torch.float8_e4m3fn), scale


@case
def dequantised(rand, n):
    q = torch.randint(-127, 128, (n // 4096, 4096), device=rand(1).device, dtype=torch.int8)
    return lambda q, s: (q.float() * s[:, None]).to(s.dtype), (q, rand(n // 4096))


@case
def bias_gelu(rand, n):
    return lambda x, b: F.gelu(x + b), (rand(n // 4096, 4096), rand(4096))


@case
def swiglu(rand, n):
    return lambda a, b: F.silu(a) * b, (rand(n // 4096, 4096), rand(n // 4096, 4096))


@case
def swiglu_halves(rand, n):
    def fn(x):
        a, b = x.chunk(2, -1)
        return F.silu(a) * b
    return fn, (rand(n // 8192, 8192),)


@case
def rope(rand, n):
    def fn(q, cos, sin):
        h = q.shape[-1] // 2
        return q * cos + torch.cat((-q[..., h:], q[..., :h]), -1) * sin
    return fn, (rand(n // (32 * 1024 * 128), 32, 1024, 128), rand(1024, 128), rand(1024, 128))


@case
def qk_norm_rope(rand, n):
    def fn(q, w, cos, sin):
        y = (q.float() * torch.rsqrt(q.float().square().mean(-1, keepdim=True) + 1e-6)).to(q.dtype) * w
        y = y.transpose(1, 2)
        h = y.shape[-1] // 2
        return y * cos + torch.cat((-y[..., h:], y[..., :h]), -1) * sin
    return fn, (rand(n // (32 * 1024 * 128), 1024, 32, 128), rand(128), rand(1024, 128), rand(1024, 128))


@case
def sum_all(rand, n):
    return lambda x: x.float().sum(), (rand(n // 4096, 4096),)


@case
def mean_square(rand, n):
    return lambda x, y: (x.float() - y.float()).square().mean(), (rand(n // 4096, 4096), rand(n // 4096, 4096))


@case
def norm_all(rand, n):
    return lambda x: x.float().norm(), (rand(n),)


@case
def max_all(rand, n):
    return lambda x: x.abs().max(), (rand(n),)


@case
def col_sum(rand, n):
    return lambda x: x.sum(0), (rand(n // 4096, 4096),)


@case
def col_sum_few_rows(rand, n):
    return lambda x: x.sum(0), (rand(64, n // 64),)


@case
def col_sum_few_columns(rand, n):
    return lambda x: x.sum(0), (rand(n // 64, 64),)


@case
def col_mean_var(rand, n):
    return lambda x: (x.float().mean(0), x.float().var(0)), (rand(n // 1024, 1024),)


@case
def middle_sum(rand, n):
    return lambda x: x.sum(1), (rand(n // (256 * 1024), 256, 1024),)


@case
def middle_softmax(rand, n):
    return lambda x: torch.softmax(x, 1), (rand(n // (64 * 4096), 64, 4096),)


@case
def channel_softmax(rand, n):
    return lambda x: F.log_softmax(x, 1), (rand(n // (21 * 65536), 21, 256, 256),)


@case
def transpose_add(rand, n):
    return lambda x, y: x.t() + y, (rand(4096, n // 4096), rand(n // 4096, 4096))


@case
def heads_merged(rand, n):
    return lambda x: (x * 2).transpose(1, 2).reshape(-1, 2048, 4096), (rand(n // (4096 * 2048), 32, 2048, 128),)


@case
def to_channels_last(rand, n):
    return (lambda x: (x * 2 + 1).contiguous(memory_format=torch.channels_last),
            (rand(n // (256 * 64 * 64), 256, 64, 64),))


@case
def permuted(rand, n):
    return lambda x: x.permute(2, 0, 1).contiguous(), (rand(n // (128 * 64), 64, 128),)


@case
def cat_many(rand, n):
    return lambda *x: torch.cat(x, -1), tuple(rand(n // 4096, 512) for _ in range(8))


@case
def cat_pointwise(rand, n):
    return lambda x, y: F.relu(torch.cat((x, y), 1)), (rand(n // 4096, 1024), rand(n // 4096, 3072))


@case
def split_three(rand, n):
    def fn(x):
        q, k, v = x.split((2048, 512, 512), -1)
        return q * 2, k + 1, v.contiguous()
    return fn, (rand(n // 3072, 3072),)


@case
def adam(rand, n):
    def fn(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v
    return fn, (rand(n), rand(n), rand(n), rand(n).abs())


@case
def group_norm(rand, n):
    return lambda x, w, b: F.group_norm(x, 32, w, b), (rand(n // (512 * 32 * 32), 512, 32, 32), rand(512), rand(512))


@case
def group_norm_silu_last(rand, n):
    return (lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
            (rand(n // (512 * 32 * 32), 512, 32, 32).to(memory_format=torch.channels_last), rand(512), rand(512)))


@case
def group_norm_large(rand, n):
    x = rand(n // (256 * 256 * 256), 256, 256, 256)
    return lambda x, w, b: F.group_norm(x, 32, w, b), (x, rand(256), rand(256))


@case
def instance_norm(rand, n):
    return lambda x: F.instance_norm(x), (rand(n // (64 * 128 * 128), 64, 128, 128),)


@case
def batch_norm_training(rand, n):
    def fn(x, w, b):
        return F.batch_norm(x, None, None, w, b, training=True)
    return fn, (rand(n // (256 * 56 * 56), 256, 56, 56), rand(256), rand(256))


@case
def modulated_norm(rand, n):
    def fn(x, scale, shift):
        return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]
    return fn, (rand(n // (1024 * 1152), 1024, 1152), rand(n // (1024 * 1152), 1152), rand(n // (1024 * 1152), 1152))


@case
def masked_softmax(rand, n):
    x = rand(n // (1024 * 1024 * 16), 16, 1024, 1024)
    mask = torch.ones(1024, 1024, device=x.device, dtype=torch.bool).tril()
    return lambda x, m: torch.softmax((x * 0.125).masked_fill(~m, float("-inf")), -1), (x, mask)


@case
def softcap(rand, n):
    return lambda x: 30 * torch.tanh(x / 30), (rand(n),)


@case
def dropout_residual_norm(rand, n):
    def fn(x, r, w, b):
        y = F.dropout(x, 0.1, True) + r
        return F.layer_norm(y, y.shape[-1:], w, b)
    return fn, (rand(n // 4096, 4096), rand(n // 4096, 4096), rand(4096), rand(4096))


@case
def kl_divergence(rand, n):
    def fn(a, b):
        return F.kl_div(torch.log_softmax(a.float(), -1), torch.log_softmax(b.float(), -1), log_target=True,
                        reduction="batchmean")
    return fn, (rand(n // 32768, 32768), rand(n // 32768, 32768))


@case
def binary_entropy(rand, n):
    return F.binary_cross_entropy_with_logits, (rand(n // 4096, 4096), rand(n // 4096, 4096).sigmoid())


@case
def huber(rand, n):
    return lambda x, y: F.smooth_l1_loss(x.float(), y.float()), (rand(n), rand(n))


@case
def cosine(rand, n):
    return lambda x, y: F.cosine_similarity(x, y, -1), (rand(n // 1024, 1024), rand(n // 1024, 1024))


@case
def normalised(rand, n):
    return lambda x: F.normalize(x, dim=-1), (rand(n // 768, 768),)


@case
def triplet_distance(rand, n):
    return lambda x, y: (x - y).float().pow(2).sum(-1).sqrt(), (rand(n // 256, 256), rand(n // 256, 256))


@case
def where_chain(rand, n):
    def fn(x, y):
        z = torch.where(x > 0, x, 0.1 * x)
        return torch.where(y.isnan(), 0.0, z * y).clamp(-3, 3)
    return fn, (rand(n // 3000, 3000), rand(n // 3000, 3000))


@case
def outer_broadcast(rand, n):
    return lambda a, b: torch.exp(-(a[:, :, None] - b[:, None, :]).abs()), (rand(n // (512 * 512), 512),
                                                                       rand(n // (512 * 512), 512))


@case
def taken_rows(rand, n):
    x = rand(n // 1024, 1024)
    return lambda x, i: x[i] * 2, (x, torch.randperm(n // 1024, device=x.device))


@case
def stochastic_depth(rand, n):
    def fn(x, r):
        keep = (torch.rand(x.shape[0], 1, 1, device=x.device) > 0.1).to(x.dtype) / 0.9
        return x * keep + r
    return fn, (rand(n // (197 * 768), 197, 768), rand(n // (197 * 768), 197, 768))


@backward
def layer_norm_backward(rand, n):
    return (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)), (rand(n // 4096, 4096), rand(4096), rand(4096))


@backward
def narrow_norm_backward(rand, n):
    return (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)), (rand(n // 768, 768), rand(768), rand(768))


@backward
def rms_norm_backward(rand, n):
    return rms_norm, (rand(n // 4096, 4096), rand(4096))


@backward
def residual_rms_backward(rand, n):
    return lambda x, r, w: rms_norm(x + r, w), (rand(n // 2048, 2048), rand(n // 2048, 2048), rand(2048))


@backward
def softmax_backward(rand, n):
    return softmax, (rand(n // 4096, 4096),)


@backward
def cross_entropy_backward(rand, n):
    x, t = labels(rand, n // 32768, 32768)
    return lambda x: F.cross_entropy(x.float(), t), (x,)


@backward
def group_norm_backward(rand, n):
    return (lambda x, w, b: F.group_norm(x, 32, w, b)), (rand(n // (512 * 32 * 32), 512, 32, 32), rand(512), rand(512))


@backward
def swiglu_backward(rand, n):
    return lambda a, b: F.silu(a) * b, (rand(n // 4096, 4096), rand(n // 4096, 4096))


@backward
def geglu_backward(rand, n):
    def fn(x):
        a, b = x.chunk(2, -1)
        return F.gelu(a, approximate="tanh") * b
    return fn, (rand(n // 8192, 8192),)


@backward
def bias_gelu_backward(rand, n):
    return lambda x, b: F.gelu(x + b), (rand(n // 4096, 4096), rand(4096))


@backward
def batch_norm_backward(rand, n):
    return (lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)),
            (rand(n // (256 * 56 * 56), 256, 56, 56), rand(256), rand(256)))
