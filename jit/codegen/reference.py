"""A slow interpreter of loop kernels on torch tensors: the meaning of the language, which the emitters are tested
against.

The whole iteration space is one broadcast tensor per value, with one dimension per axis (parallel, then reduction).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

from ..graph import dims, prims
from ..graph.dim_text import render
from . import loops
from .registers import run

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from .loops import Bounded, Check
    from .planner import CompiledGraph


class _Prim(NamedTuple):
    """Stands for a node of a graph where a prim's eager form is asked for."""

    op: str
    dtype: torch.dtype
    attrs: dict = {}


def pointwise(op: str, args: list, dtype: torch.dtype) -> torch.Tensor:
    """A pointwise prim on tensors, with the result converted to ``dtype``."""
    return prims.evaluate(_Prim(op, dtype), args, **_FUNCTIONS).to(dtype)


def _random_bits(seed, counter, dtype: torch.dtype):
    """Philox2x32-10 (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011), key and counter as in
    ``graph.philox``."""
    word = 0xFFFFFFFF
    a, b, key = counter & word, (counter >> 32) + (seed >> 32) & word, seed & word
    for _ in range(10):
        product = a * 0xD256D193
        a, b = (product >> 32 & word) ^ key ^ b, product & word
        key = key + 0x9E3779B9 & word
    return b << 32 | a


def _from_words(low, high):
    return ((high << 32) | (low & 0xFFFFFFFF)).view(torch.float64)


_FUNCTIONS = {"_random_bits": _random_bits, "from_words": _from_words}


def _reduce(op: str, value: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
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


def _index_max(a, b):
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


def _index_min(a, b):
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


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

    def index_of(e: IntExpr) -> torch.Tensor:
        if type(e) is int:
            return torch.full([1] * rank, e)
        scope = {n: (values[n].long() if n in values else names[n]) for n in dims.free_symbols(e)}
        scope["max"], scope["min"] = _index_max, _index_min
        out = eval(render(e, style="py"), {"__builtins__": {}}, scope)  # the text is the compiler's own arithmetic
        return out if isinstance(out, torch.Tensor) else torch.full([1] * rank, out)

    def checked(buffer: str, index: torch.Tensor, mask: torch.Tensor | None) -> None:
        bad = (index < 0) | (index >= buffers[buffer].numel())
        if mask is not None:
            bad = bad & mask
        if bad.expand(torch.broadcast_shapes(bad.shape, extents)).any() and 0 not in extents:
            raise IndexError(f"{buffer}[{int(index.min())} .. {int(index.max())}] of "
                             f"{buffers[buffer].numel()}\n{kernel.text()}")

    def within(s: Bounded | Check) -> torch.Tensor:
        return (values[s.value] >= 0) & (values[s.value] < index_of(s.extent))

    for s in kernel.body:
        if isinstance(s, loops.Load):
            index, mask, storage = index_of(s.index), values.get(s.mask), buffers[s.buffer]
            checked(s.buffer, index, mask)
            value = (storage[index.clamp(0, max(storage.numel() - 1, 0))] if storage.numel()
                     else torch.zeros(index.shape, dtype=storage.dtype))
            values[s.dst] = value if mask is None else torch.where(mask,
                                                                   value, torch.tensor(s.other, dtype=value.dtype))
        elif isinstance(s, loops.Const):
            values[s.dst] = torch.tensor(s.value, dtype=s.dtype).reshape([1] * rank)
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
        elif isinstance(s, loops.Bounded):
            values[s.dst] = torch.where(within(s), values[s.value], 0)
        elif isinstance(s, loops.Check):
            bad = ~within(s)
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


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements from a tensor's first one to the end of its storage, as one dimension."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    return tensor.as_strided((max(count, 0),), (1,), tensor.storage_offset())


class _Machine:
    """The state of a run, for the steps: tensors in slots, integers in registers, and a way to run kernels."""

    def __init__(self, compiled: CompiledGraph, tensors: list, ints: tuple, run_kernel: Callable) -> None:
        self.slots, self.regs = dict(enumerate(tensors)), run(compiled.plan.regs, tensors, ints)
        self.kernels, self.run_kernel = list(compiled.loops.values()), run_kernel

    def values(self, regs: tuple[int, ...]) -> list:
        return [self.regs[r] for r in regs]

    def kernel(self, number: int, slots: tuple[int, ...], ints: tuple[int, ...]) -> None:
        kernel = self.kernels[number]
        self.run_kernel(kernel, {b.name: _flat(self.slots[s]) for b, s in zip(kernel.buffers, slots)},
                        dict(zip(kernel.sizes, self.values(ints))))


def run_plan(compiled: CompiledGraph, *arguments: torch.Tensor, run_kernel=evaluate) -> tuple:
    """Run a ``CompiledGraph`` that was compiled with ``target="reference"``: the meaning of a plan's steps, on CPU
    tensors.

    ``arguments``: the input tensors, then the ints. ``run_kernel``: what runs a kernel, called as ``evaluate`` is.
    Raises IndexError when a kernel reports an index out of range.
    """
    plan = compiled.plan
    machine = _Machine(compiled, list(arguments[: plan.n_inputs]), arguments[plan.n_inputs :], run_kernel)
    with torch.no_grad():
        for step in plan.steps:
            step.run(machine)
    return tuple(machine.slots[s] for s in plan.outputs)
