"""A slow interpreter of loop kernels on torch tensors: the meaning of the language, which the emitters are tested against.

The whole iteration space is one broadcast tensor per value, with one dimension per axis (parallel, then reduction).
"""

from __future__ import annotations

import torch

from ..graph import dims
from . import loops


def pointwise(op: str, args: list, dtype: torch.dtype) -> torch.Tensor:
    """A pointwise prim on tensors, with the result converted to ``dtype``."""
    return _POINTWISE[op](*args).to(dtype)


def _floor_div(a, b):
    return torch.div(a, b, rounding_mode="floor")


def _trunc_div(a, b):
    return torch.div(a, b, rounding_mode="trunc")


def _maximum(a, b):
    return torch.logical_or(a, b) if a.dtype is torch.bool else torch.maximum(a, b)


def _minimum(a, b):
    return torch.logical_and(a, b) if a.dtype is torch.bool else torch.minimum(a, b)


_POINTWISE = {
    **{n: getattr(torch, n) for n in (loops.POINTWISE - {"cast"}) if hasattr(torch, n)},
    "cast": lambda a: a,
    "relu": torch.relu,
    "maximum": _maximum,
    "minimum": _minimum,
    "floor_div": _floor_div,
    "trunc_div": _trunc_div,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "erfinv": torch.special.erfinv,
    "mul": lambda a, b: torch.logical_and(a, b) if a.dtype is torch.bool else a * b,
    "add": lambda a, b: torch.logical_or(a, b) if a.dtype is torch.bool else a + b,
}


def _reduce(op: str, value: torch.Tensor, n: int, dtype) -> torch.Tensor:
    """Combine over the last ``n`` dimensions, keeping them with size 1."""
    flat = value.reshape(value.shape[: value.dim() - n] + (-1,))
    if op == "sum":
        out = flat.sum(-1, dtype=dtype)
    elif op == "prod":
        out = flat.prod(-1, dtype=dtype)
    elif op in ("max", "min"):
        out = getattr(flat, "a" + op)(-1)
    elif op in ("any", "all"):
        out = getattr(flat, op)(-1)
    else:
        if op == "argmax":
            best = flat == flat.amax(-1, keepdim=True)
        else:
            best = flat == flat.amin(-1, keepdim=True)
        if flat.is_floating_point():
            best = torch.where(flat.isnan().any(-1, keepdim=True), flat.isnan(), best)
        out = best.to(torch.int8).argmax(-1)
    return out.to(dtype).reshape(out.shape + (1,) * n)


def evaluate(kernel: loops.Kernel, buffers: dict, sizes: dict) -> None:
    """Run ``kernel`` in place.

    Args:
        buffers: buffer name -> one-dimensional tensor of the buffer's dtype.
        sizes: size symbol -> int.
    Raises:
        IndexError: an unmasked access outside a buffer.
    """
    for b in kernel.buffers:
        tensor = buffers[b.name]
        assert tensor.dim() == 1 and tensor.dtype is b.dtype, (b, tensor.dtype, tensor.shape)
    axes = kernel.axes + kernel.raxes
    extents = [dims.evaluate(a.extent, sizes) for a in axes]
    rank, n_reduced = len(axes), len(kernel.raxes)
    names = dict(sizes)
    for i, (a, extent) in enumerate(zip(axes, extents)):
        names[a.name] = torch.arange(extent).reshape([-1 if j == i else 1 for j in range(rank)])
    values = {}
    if 0 in extents and 0 in extents[: rank - n_reduced]:
        return

    def index_of(e):
        if type(e) is int:
            return torch.full([1] * rank, e)
        scope = {n: (values[n].long() if n in values else names[n]) for n in dims.free_symbols(e)}
        scope["max"], scope["min"] = _index_max, _index_min
        out = eval(dims.render(e, style="py"), {"__builtins__": {}}, scope)  # the text is the compiler's own arithmetic
        return out if isinstance(out, torch.Tensor) else torch.full([1] * rank, out)

    def checked(buffer, index, mask):
        bad = (index < 0) | (index >= buffers[buffer].numel())
        if mask is not None:
            bad = bad & mask
        if bad.expand(torch.broadcast_shapes(bad.shape, extents)).any() and 0 not in extents:
            raise IndexError(f"{buffer}[{int(index.min())} .. {int(index.max())}] of {buffers[buffer].numel()}\n{kernel.text()}")

    for s in kernel.body:
        if isinstance(s, loops.Load):
            index, mask, storage = index_of(s.index), values.get(s.mask), buffers[s.buffer]
            checked(s.buffer, index, mask)
            value = storage[index.clamp(0, max(storage.numel() - 1, 0))] if storage.numel() else torch.zeros(index.shape, dtype=storage.dtype)
            values[s.dst] = value if mask is None else torch.where(mask, value, torch.tensor(s.other).to(value.dtype))
        elif isinstance(s, loops.Const):
            values[s.dst] = torch.tensor(s.value).to(s.dtype).reshape([1] * rank)
        elif isinstance(s, loops.IndexValue):
            values[s.dst] = index_of(s.expr).to(s.dtype)
        elif isinstance(s, loops.Compute):
            values[s.dst] = pointwise(s.op, [values[a] for a in s.args], s.dtype)
        elif isinstance(s, loops.Reduce):
            value = values[s.arg]
            shape = list(value.shape[: rank - n_reduced]) + extents[rank - n_reduced :]
            values[s.dst] = _reduce(s.op, value.expand(shape), n_reduced, s.dtype)
        elif isinstance(s, loops.Scan):
            value = values[s.arg]
            values[s.dst] = value.expand(list(value.shape[:-1]) + [extents[-1]]).cumsum(-1, dtype=s.dtype)
        elif isinstance(s, loops.Check):
            bad = ~values[s.cond]
            if s.mask is not None:
                bad = bad & values[s.mask]
            if bad.any():
                buffers[s.buffer][0] = s.code
        else:
            index, value, mask = index_of(s.index), values[s.value], values.get(s.mask)
            shape = extents if kernel.is_element(s) else extents[: rank - n_reduced] + [1] * n_reduced
            shape = torch.broadcast_shapes(shape, value.shape)
            mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
            checked(s.buffer, index.expand(shape), mask)
            buffers[s.buffer][index.expand(shape)[mask]] = value.expand(shape)[mask]
