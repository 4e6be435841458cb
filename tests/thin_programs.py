"""Products with a vector in the ways in which programs write them, most with a weight of few bits, for the tests of
sums of products. ``PROGRAMS[name]`` gives, for the length of a row, the number of rows and a dtype, a function and its
tensors, all on the CPU."""

import torch
import torch.nn.functional as F

PROGRAMS = {}
GROUP = 32


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


def _vector(k, dtype):
    return torch.randn(1, k, dtype=torch.float64).to(dtype)


def _factors(*shape, dtype):
    return (torch.rand(*shape, dtype=torch.float64) * 0.1 + 0.01).to(dtype)


def _bytes(*shape, dtype=torch.uint8):
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype)


@program
def int8(k, n, dtype):
    return (lambda x, w, s: F.gelu(x @ (w.to(x.dtype) * s).T)), (
        _vector(k, dtype), _bytes(n, k, dtype=torch.int8), _factors(n, 1, dtype=dtype))


@program
def int8_factor_behind(k, n, dtype):
    return (lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s + b), (
        _vector(k, dtype), _bytes(n, k, dtype=torch.int8), _factors(n, dtype=dtype), _factors(n, dtype=dtype))


@program
def int8_with_bias_of_three_dimensions(k, n, dtype):
    return (lambda x, w, b: F.linear(x.view(1, 1, -1), w.to(x.dtype), b)), (
        _vector(k, dtype), _bytes(n, k, dtype=torch.int8), _factors(n, dtype=dtype))


@program
def int8_by_columns(k, n, dtype):
    return (lambda x, w, s: x @ (w.to(x.dtype) * s)), (
        _vector(k, dtype), _bytes(k, n, dtype=torch.int8), _factors(1, n, dtype=dtype))


@program
def int8_of_a_vector(k, n, dtype):
    return (lambda x, w: torch.mv(w.to(x.dtype), x[0])), (_vector(k, dtype), _bytes(n, k, dtype=torch.int8))


@program
def uint8_with_zeros(k, n, dtype):
    return (lambda x, w, s, z: x @ ((w.to(x.dtype) - z) * s).T), (
        _vector(k, dtype), _bytes(n, k), _factors(n, 1, dtype=dtype), _factors(n, 1, dtype=dtype) * 100)


@program
def int4_stacked(k, n, dtype):
    def fn(x, p, s):
        w = torch.stack([p & 15, (p >> 4) & 15], -1).view(n, k).to(x.dtype) - 8
        return F.linear(x, (w.view(n, k // GROUP, GROUP) * s[..., None]).view(n, k))

    return fn, (_vector(k, dtype), _bytes(n, k // 2), _factors(n, k // GROUP, dtype=dtype))


@program
def int4_in_halves(k, n, dtype):
    def fn(x, p, s):
        return x @ ((torch.cat([p & 15, p >> 4], -1).to(x.dtype) - 8) * s.repeat_interleave(GROUP, 1)).t()

    return fn, (_vector(k, dtype), _bytes(n, k // 2), _factors(n, k // GROUP, dtype=dtype))


@program
def int4_signed(k, n, dtype):
    def fn(x, p, s):
        w = torch.stack([(p << 4) >> 4, p >> 4], -1).reshape(n, k)
        return x @ (w.to(x.dtype) * s).t()

    return fn, (_vector(k, dtype), _bytes(n, k // 2, dtype=torch.int8), _factors(n, 1, dtype=dtype))


@program
def int4_in_words(k, n, dtype):
    def fn(x, q, s, z):
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
        w = ((q[:, None, :] >> shifts[None, :, None]) & 15).view(k // GROUP, GROUP, n).to(x.dtype)
        return x @ ((w - z[:, None]) * s[:, None]).view(k, n)

    return fn, (_vector(k, dtype), _bytes(k // 8, n, dtype=torch.int32), _factors(k // GROUP, n, dtype=dtype),
                _factors(k // GROUP, n, dtype=dtype) * 100)


@program
def int4_as_rows_of_groups(k, n, dtype):
    def fn(x, p, s, z):
        return F.linear(x, ((torch.cat([p & 15, p >> 4], 0).to(x.dtype) - z) * s).view(n, k))

    rows = n * k // GROUP
    return fn, (_vector(k, dtype), _bytes(rows // 2, GROUP), _factors(rows, 1, dtype=dtype),
                _factors(rows, 1, dtype=dtype) * 100)


@program
def two_bits(k, n, dtype):
    def fn(x, p):
        return x @ (torch.stack([(p >> i) & 3 for i in (0, 2, 4, 6)], -1).view(n, k).to(x.dtype) - 1.5).t()

    return fn, (_vector(k, dtype), _bytes(n, k // 4))


@program
def gated(k, n, dtype):
    return (lambda x, w, v: F.silu(x @ w.to(x.dtype).t()) * (x @ v.to(x.dtype).t())), (
        _vector(k, dtype), _bytes(n, k, dtype=torch.int8), _bytes(n, k, dtype=torch.int8))


@program
def of_a_norm(k, n, dtype):
    return (lambda x, w: F.rms_norm(x, (k,)) @ w.to(x.dtype).t() + 1), (
        _vector(k, dtype), _bytes(n, k, dtype=torch.int8))


@program
def of_a_norm_with_weight(k, n, dtype):
    def fn(x, g, w, s):
        wide = x.float()
        y = g * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        return F.linear(y, w.to(x.dtype) * s) + F.linear(y, w.to(x.dtype)) * 0.01

    return fn, (_vector(k, dtype), _factors(k, dtype=dtype), _bytes(n, k, dtype=torch.int8),
                _factors(n, 1, dtype=dtype))


@program
def low_rank_added(k, n, dtype):
    return (lambda x, w, a, b: x @ (w + a * b).t()), (
        _vector(k, dtype), _factors(n, k, dtype=dtype), _factors(n, 1, dtype=dtype), _factors(1, k, dtype=dtype))


@program
def float8(k, n, dtype):
    return (lambda x, w, s: x @ (w.to(x.dtype) * s).t()), (
        _vector(k, dtype), torch.randn(n, k).to(torch.float8_e4m3fn), _factors(n, 1, dtype=dtype))
