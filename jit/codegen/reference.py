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
from .handlers import Handlers
from .registers import run

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from .loops import Bounded, Check, Clamped
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


def _scan(op: str, row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The running ``op`` along the last dimension."""
    if op == "sum":
        return row.cumsum(-1, dtype=dtype)
    if op == "logaddexp":
        return row.logcumsumexp(-1)
    if op == "sort":
        return row.sort(-1).values
    if op == "prod":
        return row.cumprod(-1)
    found = getattr(torch, "cum" + op.removeprefix("arg"))(row, -1)
    return found.indices if op.startswith("arg") else found.values


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
    state = _Run(kernel, buffers, sizes)
    if 0 not in state.extents[: len(kernel.axes)]:
        for s in kernel.body:
            value = means[type(s)](state, s)
            if not s.effect:
                state.values[s.dst] = value


means = Handlers("the reference interpreter")


class _Run:
    """One run of a kernel: the meaning of each kind of statement."""

    def __init__(self, kernel: loops.Kernel, buffers: dict, sizes: dict) -> None:
        self.kernel, self.buffers, self.values, self.names = kernel, buffers, {}, dict(sizes)
        axes = kernel.axes + kernel.raxes
        self.extents = [dims.evaluate(a.extent, sizes) for a in axes]
        self.rank, self.n_reduced = len(axes), len(kernel.raxes)
        for i, (a, extent) in enumerate(zip(axes, self.extents)):
            self.names[a.name] = torch.arange(extent).reshape([-1 if j == i else 1 for j in range(self.rank)])

    def index(self, e: IntExpr) -> torch.Tensor:
        if type(e) is int:
            return torch.full([1] * self.rank, e)
        scope = {n: (self.values[n].long() if n in self.values else self.names[n]) for n in dims.free_symbols(e)}
        scope["max"], scope["min"] = _index_max, _index_min
        out = eval(render(e, style="py"), {"__builtins__": {}}, scope)  # the text is the compiler's own arithmetic
        return out if isinstance(out, torch.Tensor) else torch.full([1] * self.rank, out)

    def checked(self, buffer: str, index: torch.Tensor, mask: torch.Tensor | None) -> None:
        size, extents = self.buffers[buffer].numel(), self.extents
        bad = (index < 0) | (index >= size)
        if mask is not None:
            bad = bad & mask
        if bad.expand(torch.broadcast_shapes(bad.shape, extents)).any() and 0 not in extents:
            raise IndexError(f"{buffer}[{int(index.min())} .. {int(index.max())}] of {size}\n{self.kernel.text()}")

    def row(self, value: torch.Tensor) -> torch.Tensor:
        """A value with all elements of its row."""
        kept = self.rank - self.n_reduced
        return value.expand(list(value.shape[:kept]) + self.extents[kept:])

    def within(self, s: Bounded | Check) -> torch.Tensor:
        return (self.values[s.value] >= 0) & (self.values[s.value] < self.index(s.extent))

    @means(loops.Load)
    def load(self, s: loops.Load) -> torch.Tensor:
        index, mask, storage = self.index(s.index), self.values.get(s.mask), self.buffers[s.buffer]
        self.checked(s.buffer, index, mask)
        value = (storage[index.clamp(0, max(storage.numel() - 1, 0))] if storage.numel()
                 else torch.zeros(index.shape, dtype=storage.dtype))
        return value if mask is None else torch.where(mask, value, torch.tensor(s.other, dtype=value.dtype))

    @means(loops.Const)
    def const(self, s: loops.Const) -> torch.Tensor:
        return torch.tensor(s.value, dtype=s.dtype).reshape([1] * self.rank)

    @means(loops.Given)
    def given(self, s: loops.Given) -> torch.Tensor:
        raise NotImplementedError(f"{s.dst}, which only the layout of {self.kernel.name} can tell")

    @means(loops.IndexValue)
    def index_value(self, s: loops.IndexValue) -> torch.Tensor:
        return self.index(s.expr).to(s.dtype)

    @means(loops.Compute)
    def compute(self, s: loops.Compute) -> torch.Tensor:
        return pointwise(s.op, [self.values[a] for a in s.args], s.dtype)

    @means(loops.Reduce)
    def reduce(self, s: loops.Reduce) -> torch.Tensor:
        return _reduce(s.op, self.row(self.values[s.arg]), self.n_reduced, s.dtype)

    @means(loops.Scan)
    def scan(self, s: loops.Scan) -> torch.Tensor:
        return _scan(s.op, self.row(self.values[s.arg]), s.dtype)

    @means(loops.Clamped)
    def clamped(self, s: Clamped) -> torch.Tensor:
        value = self.values[s.value]
        return torch.minimum(value, (self.index(s.extent) - 1).to(value.dtype)).clamp(min=0)

    @means(loops.Bounded)
    def bounded(self, s: Bounded) -> torch.Tensor:
        return torch.where(self.within(s), self.values[s.value], 0)

    @means(loops.Check)
    def check(self, s: Check) -> None:
        bad = ~self.within(s)
        if s.mask is not None:
            bad = bad & self.values[s.mask]
        if bad.any():
            self.buffers[s.buffer][0] = s.code

    @means(loops.Store)
    def store(self, s: loops.Store) -> None:
        index, value, mask = self.index(s.index), self.values[s.value], self.values.get(s.mask)
        kept = self.rank - self.n_reduced
        shape = self.extents if self.kernel.is_element(s) else self.extents[:kept] + [1] * self.n_reduced
        shape = torch.broadcast_shapes(shape, value.shape)
        mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
        self.checked(s.buffer, index.expand(shape), mask)
        self.buffers[s.buffer][index.expand(shape)[mask]] = value.expand(shape)[mask]

    @means(loops.Total)
    def total(self, s: loops.Total) -> None:
        index, value = self.index(s.index), self.values[s.value].expand(self.extents)
        self.checked(s.buffer, index, None)
        self.buffers[s.buffer][index.expand(self.extents).select(1, 0)] = value.sum(1)

    @means(loops.Update)
    def update(self, s: loops.Update) -> None:
        index, value, mask = self.index(s.index), self.values[s.value], self.values.get(s.mask)
        shape = torch.broadcast_shapes(self.extents, value.shape)
        mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
        self.checked(s.buffer, index.expand(shape), mask)
        target, at, values = self.buffers[s.buffer], index.expand(shape)[mask], value.expand(shape)[mask]
        if s.op in ("max", "min"):
            target.scatter_reduce_(0, at, values, f"a{s.op}")
        else:
            target.index_put_((at,), values, s.op == "sum")


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
