"""Functions of NumPy in functions of PyTorch. A rule has NumPy's own parameters, those that it knows: a call with
others is followed through NumPy's Python code, or is a break. It gives the right values; type, layout and whether it is
a view are made to fit behind it (``values.arrays``). ``result`` is the type that NumPy gives, ``dtype`` the one asked
for, both PyTorch's.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ..tables import array_rule, rule_if_there

# -- making arrays ---------------------------------------------------------------------------------------------------


@array_rule(np.zeros, np.empty)
def zeros(shape, dtype=torch.float64, order="C", device=None):
    return torch.zeros(shape, dtype=dtype, device="cpu")


@array_rule(np.ones)
def ones(shape, dtype=torch.float64, order="C", device=None):
    return torch.ones(shape, dtype=dtype, device="cpu")


@array_rule(np.full)
def full(shape, fill_value, dtype=None, order="C", device=None, result=None):
    if isinstance(fill_value, torch.Tensor):
        made = torch.zeros(shape, dtype=result, device="cpu")
        made[...] = fill_value
        return made
    return torch.full(shape, fill_value, dtype=result, device="cpu")


@array_rule(np.zeros_like)
def zeros_like(a, dtype=None, order="K", subok=True, shape=None, device=None, result=None):
    return torch.zeros(a.shape if shape is None else shape, dtype=result, device="cpu")


@array_rule(np.empty_like)
def empty_like(prototype, dtype=None, order="K", subok=True, shape=None, device=None, result=None):
    return torch.zeros(prototype.shape if shape is None else shape, dtype=result, device="cpu")


@array_rule(np.ones_like)
def ones_like(a, dtype=None, order="K", subok=True, shape=None, device=None, result=None):
    return torch.ones(a.shape if shape is None else shape, dtype=result, device="cpu")


@array_rule(np.full_like)
def full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, device=None, result=None):
    return full(a.shape if shape is None else shape, fill_value, result=result)


@array_rule(np.eye)
def eye(N, M=None, k=0, dtype=torch.float64, order="C", device=None):
    rows = torch.arange(N, device="cpu").unsqueeze(1)
    columns = torch.arange(N if M is None else M, device="cpu")
    return (columns - rows == k).to(dtype)


@array_rule(np.identity)
def identity(n, dtype=torch.float64):
    return eye(n, dtype=dtype)


@array_rule(np.arange)
def arange(start, stop=None, step=1, dtype=None, device=None, result=None):
    if stop is None:
        start, stop = 0, start
    if not result.is_floating_point:
        return torch.arange(start, stop, step, dtype=result, device="cpu")
    count = math.ceil((stop - start) / step)
    return torch.arange(max(count, 0), dtype=torch.float64, device="cpu") * ((start + step) - start) + start


@array_rule(np.linspace)
def linspace(start, stop, num=50, endpoint=True, dtype=None, result=None):
    parts = num - 1 if endpoint else num
    found = torch.arange(num, dtype=torch.float64, device="cpu")
    if parts > 0:
        found = found * ((stop - start) / parts)
    found = found + start
    if endpoint and num > 1:
        found[-1] = stop
    return found if result.is_floating_point else torch.floor(found)


@array_rule(np.array)
def array(object, dtype=None, copy=True, order="K", subok=False, ndmin=0, result=None):
    made = asarray(object, result=result)
    while made.dim() < ndmin:
        made = made.unsqueeze(0)
    return made.clone() if copy else made


@array_rule(np.asarray, np.asanyarray, np.ascontiguousarray)
def asarray(a, dtype=None, order=None, device=None, copy=None, result=None):
    if isinstance(a, torch.Tensor):
        return a.clone() if copy else a
    if isinstance(a, (list, tuple)) and len(a) and holds(a):
        return torch.stack([asarray(v, result=result).to(result) for v in a])
    return torch.tensor(a, dtype=result, device="cpu")


def holds(a):
    """Whether there is a tensor in nested lists."""
    for v in a:
        if isinstance(v, torch.Tensor) or isinstance(v, (list, tuple)) and holds(v):
            return True
    return False


@array_rule(np.copy)
def copy(a, order="K"):
    return a.clone() if isinstance(a, torch.Tensor) else asarray(a)


@array_rule(np.ndarray.astype)
@rule_if_there(np, "astype")
def astype(x, dtype, order="K", casting="unsafe", subok=True, copy=True):
    return x.to(dtype)


@array_rule(np.ndarray.view)
def view(a, dtype=None):
    return a.view(a.dtype if dtype is None else dtype)


# -- reductions ------------------------------------------------------------------------------------------------------


def axes(a, axis):
    """The axes as positive numbers, the last one first."""
    if axis is None:
        return list(range(a.dim() - 1, -1, -1))
    if not isinstance(axis, tuple):
        axis = (axis,)
    return sorted([n % a.dim() for n in axis], reverse=True)


def masked(a, where, identity):
    return a if where is True else torch.where(where, a, identity)


def by_axes(fn, a, axis, keepdims):
    for n in axes(a, axis):
        a = fn(a, n, keepdims)
    return a


def add_initial(found, initial):
    return found if initial is None else found + initial


@array_rule(np.sum)
def sum(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True, result=None):
    a = masked(a.to(result), where, 0)
    over = axes(a, axis)
    return add_initial(torch.sum(a, over, keepdims, dtype=result) if over else a.clone(), initial)


@array_rule(np.prod)
def prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True, result=None):
    found = by_axes(lambda v, n, keep: torch.prod(v, n, keep, dtype=result),
                    masked(a.to(result), where, 1), axis, keepdims)
    return found if initial is None else found * initial


@array_rule(np.max, np.amax)
def amax(a, axis=None, out=None, keepdims=False, initial=None):
    over = axes(a, axis)
    found = torch.amax(a, over, keepdims) if over and a.numel() else filled(a, over, keepdims, initial)
    if initial is None:
        return found
    return torch.maximum(found, torch.full((), initial, dtype=a.dtype, device="cpu"))


def filled(a, over, keepdims, initial):
    if not over:
        return a.clone()
    return torch.full(torch.sum(a, over, keepdims).shape, initial, dtype=a.dtype, device="cpu")


@array_rule(np.min, np.amin)
def amin(a, axis=None, out=None, keepdims=False, initial=None):
    over = axes(a, axis)
    found = torch.amin(a, over, keepdims) if over and a.numel() else filled(a, over, keepdims, initial)
    if initial is None:
        return found
    return torch.minimum(found, torch.full((), initial, dtype=a.dtype, device="cpu"))


@array_rule(np.nanmax)
def nanmax(a, axis=None, out=None, keepdims=False):
    missing = torch.isnan(a)
    found = amax(torch.where(missing, -math.inf, a), axis, None, keepdims)
    return torch.where(all(missing, axis, None, keepdims), math.nan, found)


@array_rule(np.nanmin)
def nanmin(a, axis=None, out=None, keepdims=False):
    missing = torch.isnan(a)
    found = amin(torch.where(missing, math.inf, a), axis, None, keepdims)
    return torch.where(all(missing, axis, None, keepdims), math.nan, found)


@array_rule(np.nanmean)
def nanmean(a, axis=None, dtype=None, out=None, keepdims=False, result=None):
    missing = torch.isnan(a)
    total = sum(torch.where(missing, 0, a), axis, None, None, keepdims, result=accumulated(dtype, result))
    return total / count_nonzero(~missing, axis, keepdims)


@array_rule(np.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, result=None):
    missing, kept = torch.isnan(a), accumulated(dtype, result)
    count = count_nonzero(~missing, axis, True)
    total = sum(torch.where(missing, 0, a), axis, None, None, True, result=kept)
    away = torch.where(missing, 0, a.to(kept) - total / count)
    left = count_nonzero(~missing, axis, keepdims) - ddof
    found = sum(away * away, axis, None, None, keepdims, result=kept) / left
    return torch.where(left > 0, found, math.nan)


@array_rule(np.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, result=None):
    return torch.sqrt(nanvar(a, axis, dtype, None, ddof, keepdims, result))


@array_rule(np.ptp)
def ptp(a, axis=None, out=None, keepdims=False):
    return amax(a, axis, None, keepdims) - amin(a, axis, None, keepdims)


@array_rule(np.any)
def any(a, axis=None, out=None, keepdims=False, where=True):
    return by_axes(torch.any, masked(a != 0, where, False), axis, keepdims)


@array_rule(np.all)
def all(a, axis=None, out=None, keepdims=False, where=True):
    return by_axes(torch.all, masked(a != 0, where, True), axis, keepdims)


@array_rule(np.count_nonzero)
def count_nonzero(a, axis=None, keepdims=False):
    over = axes(a, axis)
    return torch.sum(a != 0, over, keepdims) if over else (a != 0).long()


def count_of(a, axis):
    count = 1
    for n in axes(a, axis):
        count = count * a.shape[n]
    return count


def accumulated(dtype, result):
    """The type in which a mean is computed."""
    return torch.float32 if dtype is None and result is torch.float16 else result


@array_rule(np.mean)
def mean(a, axis=None, dtype=None, out=None, keepdims=False, result=None):
    over, kept = axes(a, axis), accumulated(dtype, result)
    total = torch.sum(a, over, keepdims, dtype=kept) if over else a.to(kept)
    return total / count_of(a, axis)


@array_rule(np.var)
def var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, result=None):
    over = axes(a, axis)
    kept = accumulated(dtype, result)
    if a.is_complex():
        away = a - torch.mean(a, over, True) if over else a - a
        away = away.real * away.real + away.imag * away.imag
    else:
        a = a.to(kept)
        away = a - torch.sum(a, over, True) / count_of(a, axis) if over else a - a
        away = away * away
    left = count_of(a, axis) - ddof
    return (torch.sum(away, over, keepdims) if over else away) / (left if left > 0 else 0.0)


@array_rule(np.std)
def std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, result=None):
    return torch.sqrt(var(a, axis, dtype, None, ddof, keepdims, result))


def comparable(a):
    return a.to(torch.uint8) if a.dtype is torch.bool else a


@array_rule(np.argmax)
def argmax(a, axis=None, out=None, keepdims=False):
    return torch.argmax(comparable(a), axis, keepdims)


@array_rule(np.argmin)
def argmin(a, axis=None, out=None, keepdims=False):
    return torch.argmin(comparable(a), axis, keepdims)


@array_rule(np.cumsum)
def cumsum(a, axis=None, dtype=None, out=None, result=None):
    return torch.cumsum(a.reshape(-1) if axis is None else a, 0 if axis is None else axis, dtype=result)


@array_rule(np.cumprod)
def cumprod(a, axis=None, dtype=None, out=None, result=None):
    return torch.cumprod(a.reshape(-1) if axis is None else a, 0 if axis is None else axis, dtype=result)


@array_rule(np.median)
def median(a, axis=None, out=None, overwrite_input=False, keepdims=False, result=None):
    shape = list(a.shape)
    for n in axes(a, axis):
        shape[n] = 1
    if axis is None:
        a, at = a.reshape(-1), 0
    else:
        at = axis
    ordered = torch.sort(a.to(result), at)[0]
    n = a.shape[at]
    found = (ordered.select(at, (n - 1) // 2) + ordered.select(at, n // 2)) / 2
    # NaN is sorted to the end, and is then the median.
    last = ordered.select(at, -1)
    found = torch.where(torch.isnan(last), last, found)
    return found.reshape(shape) if keepdims else found


@array_rule(np.average)
def average(a, axis=None, weights=None, returned=False, keepdims=False, result=None):
    over, kept = axes(a, axis), torch.promote_types(a.dtype, torch.float64 if weights is None else weights.dtype)
    kept = kept if kept.is_floating_point or kept.is_complex else torch.float64
    if weights is None:
        found = mean(a, axis, None, None, keepdims, a.dtype if a.is_floating_point() or a.is_complex() else kept)
        return (found, torch.full_like(found, count_of(a, axis))) if returned else found
    weights = weights.to(kept)
    if weights.dim() != a.dim():
        weights = weights.reshape([-1 if n == axis % a.dim() else 1 for n in range(a.dim())]).expand(a.shape)
    scale = torch.sum(weights, over, keepdims)
    found = torch.sum(a.to(kept) * weights, over, keepdims) / scale
    return (found, scale) if returned else found


# -- shapes ----------------------------------------------------------------------------------------------------------


@array_rule(np.reshape)
def reshape(a, shape, order="C"):
    if order != "F":
        return torch.reshape(a, shape if isinstance(shape, (tuple, list)) else (shape,))
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return transpose(torch.reshape(transpose(a), shape[::-1]))


@array_rule(np.ravel)
def ravel(a, order="C"):
    return torch.reshape(transpose(a) if order == "F" else a, (-1,))


@array_rule(np.ndarray.flatten)
def flatten(a, order="C"):
    return ravel(a, order)


@array_rule(np.transpose)
@rule_if_there(np, "permute_dims")
def transpose(a, axes=None):
    return torch.permute(a, tuple(range(a.dim() - 1, -1, -1)) if axes is None else tuple(axes))


@rule_if_there(np, "matrix_transpose")
def matrix_transpose(x, /):
    return torch.transpose(x, -1, -2)


@array_rule(np.swapaxes)
def swapaxes(a, axis1, axis2):
    return torch.transpose(a, axis1, axis2)


@array_rule(np.moveaxis)
def moveaxis(a, source, destination):
    return torch.movedim(a, source, destination)


@array_rule(np.squeeze)
def squeeze(a, axis=None):
    return torch.squeeze(a) if axis is None else torch.squeeze(a, axis)


@array_rule(np.expand_dims)
def expand_dims(a, axis):
    axis = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    rank = a.dim() + len(axis)
    for n in sorted([n % rank for n in axis]):
        a = torch.unsqueeze(a, n)
    return a


@array_rule(np.broadcast_to)
def broadcast_to(array, shape):
    return torch.broadcast_to(array, shape if isinstance(shape, tuple) else (shape,))


@array_rule(np.broadcast_arrays)
def broadcast_arrays(*args, subok=False):
    return tuple(torch.broadcast_tensors(*args))


@array_rule(np.concatenate)
def concatenate(arrays, /, axis=0, out=None, dtype=None, casting="same_kind", result=None):
    arrays = [asarray(a, result=result).to(result) for a in arrays]
    return torch.cat([a.reshape(-1) for a in arrays]) if axis is None else torch.cat(arrays, axis)


@array_rule(np.stack)
def stack(arrays, axis=0, out=None, dtype=None, casting="same_kind", result=None):
    return torch.stack([asarray(a, result=result).to(result) for a in arrays], axis)


@array_rule(np.vstack)
def vstack(tup, dtype=None, casting="same_kind", result=None):
    arrays = [asarray(a, result=result).to(result) for a in tup]
    return torch.cat([a if a.dim() > 1 else a.reshape(1, -1) for a in arrays], 0)


@array_rule(np.hstack)
def hstack(tup, dtype=None, casting="same_kind", result=None):
    arrays = [asarray(a, result=result).to(result) for a in tup]
    arrays = [a if a.dim() else a.reshape(1) for a in arrays]
    return torch.cat(arrays, 0 if arrays[0].dim() == 1 else 1)


@array_rule(np.split, np.array_split)
def split(ary, indices_or_sections, axis=0):
    return list(torch.tensor_split(ary, indices_or_sections, axis))


@array_rule(np.roll)
def roll(a, shift, axis=None):
    if axis is None:
        return torch.reshape(torch.roll(a.reshape(-1), shift, 0), a.shape)
    return torch.roll(a, shift, axis)


@array_rule(np.tile)
def tile(A, reps):
    return torch.tile(A, reps if isinstance(reps, tuple) else (reps,))


@array_rule(np.repeat)
def repeat(a, repeats, axis=None):
    if axis is None:
        a, axis = a.reshape(-1), 0
    axis = axis % a.dim()
    shape = list(a.shape)
    sizes = shape[:axis + 1] + [repeats] + shape[axis + 1:]
    shape[axis] = shape[axis] * repeats
    return a.unsqueeze(axis + 1).expand(sizes).reshape(shape)


@array_rule(np.tril)
def tril(m, k=0):
    return torch.tril(m, k)


@array_rule(np.triu)
def triu(m, k=0):
    return torch.triu(m, k)


@array_rule(np.diagonal)
def diagonal(a, offset=0, axis1=0, axis2=1):
    return torch.diagonal(a, offset, axis1, axis2)


@array_rule(np.diag)
def diag(v, k=0):
    return torch.diag_embed(v, k) if v.dim() == 1 else torch.diagonal(v, k)


@array_rule(np.trace)
def trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None, result=None):
    return torch.sum(torch.diagonal(a, offset, axis1, axis2), -1, dtype=result)


@array_rule(np.flip)
def flip(m, axis=None):
    return torch.flip(m, axes(m, axis))


@array_rule(np.pad)
def pad(array, pad_width, mode="constant", constant_values=0):
    widths = pad_widths(pad_width, array.dim())
    if mode != "constant" or not isinstance(constant_values, (int, float)):
        for n in range(array.dim()):
            array = padded(array, n, widths[n], mode)
        return array
    flat = []
    for before, after in reversed(widths):
        flat += [before, after]
    return torch.nn.functional.pad(array, flat, value=constant_values)


def pad_widths(width, rank):
    if not isinstance(width, (tuple, list)):
        return [(width, width)] * rank
    if not isinstance(width[0], (tuple, list)):
        return [(width[0], width[-1])] * rank
    return [(w[0], w[-1]) for w in (list(width) * rank if len(width) == 1 else width)]


def padded(a, n, width, mode):
    """By an index along one axis."""
    size = a.shape[n]
    at = torch.arange(-width[0], size + width[1], device="cpu")
    if mode == "edge":
        at = torch.clamp(at, 0, size - 1)
    elif mode == "wrap":
        at = torch.remainder(at, size)
    elif mode == "reflect" and size > 1:
        at = torch.remainder(at, 2 * size - 2)
        at = torch.where(at < size, at, 2 * size - 2 - at)
    elif mode == "symmetric":
        at = torch.remainder(at, 2 * size)
        at = torch.where(at < size, at, 2 * size - 1 - at)
    else:
        raise NotImplementedError(mode)
    return torch.index_select(a, n, at)


# -- choosing --------------------------------------------------------------------------------------------------------


@array_rule(np.ndarray.__getitem__)
def getitem(a, key, /):
    return a[key]


@array_rule(np.where)
def where(condition, x, y, /, result=None):
    return torch.where(condition != 0, of_type(x, result), of_type(y, result))


def of_type(x, dtype):
    return x.to(dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device="cpu")


@array_rule(np.clip)
def clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, result=None):
    low, high = min if a_min is None else a_min, max if a_max is None else a_max
    a = a.to(result).clone()
    if low is not None:
        a = torch.maximum(a, of_type(low, result))
    if high is not None:
        a = torch.minimum(a, of_type(high, result))
    return a


@array_rule(np.take)
def take(a, indices, axis=None, out=None):
    if axis is None:
        a, axis = a.reshape(-1), 0
    index = [slice(None)] * (axis % a.dim()) + [indices]
    return a[tuple(index)]


@array_rule(np.take_along_axis)
def take_along_axis(arr, indices, axis=-1):
    if axis is None:
        arr, axis = arr.reshape(-1), 0
    return torch.take_along_dim(arr, torch.where(indices < 0, indices + arr.shape[axis], indices), axis)


@array_rule(np.sort)
def sort(a, axis=-1, kind=None, stable=None):
    return torch.sort(a.reshape(-1) if axis is None else a, 0 if axis is None else axis)[0]


@array_rule(np.searchsorted)
def searchsorted(a, v, side="left", result=None):
    return torch.searchsorted(a, v, right=side == "right")


@array_rule(np.isclose)
def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    a, b = double(a), double(b)
    near = torch.abs(a - b) <= atol + rtol * torch.abs(b)
    found = near & torch.isfinite(b) | (a == b)
    return found | torch.isnan(a) & torch.isnan(b) if equal_nan else found


def double(a):
    a = a if isinstance(a, torch.Tensor) else torch.full((), a, dtype=torch.float64, device="cpu")
    return a if a.is_complex() else a.double()


@array_rule(np.allclose)
def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    return torch.all(isclose(a, b, rtol, atol, equal_nan))


@array_rule(np.array_equal)
def array_equal(a1, a2):
    return torch.all(a1 == a2) if a1.shape == a2.shape else False


@array_rule(np.real)
def real(val):
    return val.real if val.is_complex() else val


@array_rule(np.imag)
def imag(val):
    return val.imag if val.is_complex() else torch.zeros_like(val)


@array_rule(np.nan_to_num)
def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    return torch.nan_to_num(x, nan, posinf, neginf) if x.is_floating_point() else x.clone()


@array_rule(np.interp)
def interp(x, xp, fp, left=None, right=None):
    x, xp, fp = double(x), double(xp), double(fp)
    at = torch.clamp(torch.searchsorted(xp, x, right=True), 1, xp.shape[0] - 1)
    x0, x1, y0, y1 = xp[at - 1], xp[at], fp[at - 1], fp[at]
    found = (y1 - y0) / (x1 - x0) * (x - x0) + y0
    found = torch.where(x < xp[0], fp[0] if left is None else left, found)
    found = torch.where(x > xp[-1], fp[-1] if right is None else right, torch.where(x == xp[-1], fp[-1], found))
    return torch.where(torch.isnan(x), x, found)


# -- products --------------------------------------------------------------------------------------------------------


def by_type(fn, a, b, dtype):
    """Of truth values by way of integers."""
    if dtype is torch.bool:
        return fn(a.long(), b.long()) != 0
    return fn(a.to(dtype), b.to(dtype))


@array_rule(np.dot)
def dot(a, b, out=None, result=None):
    if not a.dim() or not b.dim():
        return a.to(result) * b.to(result)
    if b.dim() == 1 or a.dim() == 1 and b.dim() == 2 or a.dim() == 2 and b.dim() == 2:
        return by_type(torch.matmul, a, b, result)
    return by_type(lambda x, y: torch.tensordot(x, y, ([-1], [-2])), a, b, result)


@array_rule(np.vdot)
def vdot(a, b, /, result=None):
    a, b = a.reshape(-1), b.reshape(-1)
    return by_type(torch.matmul, torch.conj_physical(a) if a.is_complex() else a, b, result)


@array_rule(np.inner)
def inner(a, b, /, result=None):
    if not a.dim() or not b.dim():
        return a.to(result) * b.to(result)
    return by_type(lambda x, y: torch.tensordot(x, y, ([-1], [-1])), a, b, result)


@array_rule(np.outer)
def outer(a, b, out=None, result=None):
    return a.reshape(-1, 1).to(result) * b.reshape(1, -1).to(result)


@array_rule(np.tensordot)
def tensordot(a, b, axes=2, result=None):
    return by_type(lambda x, y: torch.tensordot(x, y, axes), a, b, result)


@array_rule(np.kron)
def kron(a, b, result=None):
    return torch.kron(a.to(result), b.to(result))


@array_rule(np.cross)
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None, result=None):
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = torch.broadcast_tensors(torch.movedim(a.to(result), axisa, -1), torch.movedim(b.to(result), axisb, -1))
    return torch.movedim(torch.linalg.cross(a, b), -1, axisc)


@array_rule(np.einsum)
def einsum(subscripts, /, *operands, optimize=False, result=None):
    return torch.einsum(subscripts, *[v.to(result) for v in operands])


# -- linear algebra and Fourier transforms ---------------------------------------------------------------------------


def floating(a):
    return a if a.is_floating_point() or a.is_complex() else a.double()


@array_rule(np.linalg.inv)
def inv(a):
    return torch.linalg.inv(floating(a))


@array_rule(np.linalg.det)
def det(a):
    return torch.linalg.det(floating(a))


@array_rule(np.linalg.solve)
def solve(a, b, result=None):
    return torch.linalg.solve(a.to(result), b.to(result))


@array_rule(np.linalg.cholesky)
def cholesky(a, /):
    return torch.linalg.cholesky(floating(a))


@array_rule(np.linalg.eigvalsh)
def eigvalsh(a, UPLO="L"):
    return torch.linalg.eigvalsh(floating(a), UPLO=UPLO)


@array_rule(np.linalg.matrix_power)
def matrix_power(a, n):
    return torch.linalg.matrix_power(a, n)


@rule_if_there(np.linalg, "svdvals")
def svdvals(x, /):
    return torch.linalg.svdvals(floating(x))


def transforms(*names):
    for name in names:
        def rule(a, n=None, axis=-1, norm=None, fn=getattr(torch.fft, name)):
            return fn(a, n, axis, norm)

        array_rule(getattr(np.fft, name))(rule)


transforms("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")


def several_transforms(*names):
    for name in names:
        def rule(a, s=None, axes=None, norm=None, fn=getattr(torch.fft, name)):
            return fn(a, s, axes, norm)

        array_rule(getattr(np.fft, name))(rule)


several_transforms("fftn", "ifftn", "rfftn", "irfftn")
