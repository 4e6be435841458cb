"""Inputs that share memory, of which one is changed.

A graph input stands for memory of its own. Where a program changes an input that overlaps another one, ``SharedMemory``
says so, and the capture starts anew with both in one ``Region``: the graph then has one flat input, the stretch of
memory that all of them lie in, and they are views of it.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from jit import torch_private
from jit.errors import JitError, Unsupported
from jit.graph.handles import Base, TensorHandle, view_path
from jit.graph.ir import Node, contiguous_strides, same_ints

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.tracer import Tracer


class SharedMemory(JitError):
    """``tensors``, inputs of one capture, overlap, and one of them is changed."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__("inputs that share memory are changed")
        self.tensors = tensors


def _unseen(fn: Callable) -> Callable:
    """A function that looks at tensors of the program's: no class or mode of its own sees that."""

    @functools.wraps(fn)
    def run(*args: object) -> object:
        with torch_private.WithoutTorchFunction():
            return fn(*args)

    return run


@_unseen
def extent(t: torch.Tensor) -> tuple[int, ...] | None:
    """(begin, end) of the addresses that a tensor reaches; None where it has no memory."""
    if t.numel() == 0 or t.is_meta:
        return None
    begin = t.data_ptr()
    return begin, begin + (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))) * t.element_size()


class Stretches:
    """The stretches of addresses that inputs reach, apart from each other and in order, each with the inputs in it: to
    find those that may share memory with another one, not all have to be looked at."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._bases: list[list[Base]] = []

    def add(self, base: Base) -> None:
        """Note an input. Its stretch becomes one with those that it touches."""
        if base.extent is None:
            return
        first, behind = self._met(base)
        self._bases[first:behind] = [[b for bases in self._bases[first:behind] for b in bases] + [base]]
        self._begins[first:behind] = [min([base.extent[0], *self._begins[first:behind]])]
        self._ends[first:behind] = [max([base.extent[1], *self._ends[first:behind]])]

    def near(self, base: Base) -> list[Base]:
        """The inputs in the stretches that ``base`` touches, the first ones first."""
        if base.extent is None:
            return []
        first, behind = self._met(base)
        return sorted((b for bases in self._bases[first:behind] for b in bases), key=lambda b: b.input.attrs["index"])

    def _met(self, base: Base) -> tuple[int, int]:
        """Where the stretches that an input touches begin and end."""
        begin, end = base.extent
        return bisect.bisect_right(self._ends, begin), bisect.bisect_left(self._begins, end)


def check_apart(base: Base, others: Iterable[Base]) -> None:
    """Raise SharedMemory when the memory of an input overlaps that of another one."""
    if base.extent is None:
        return
    begin, end = base.extent
    for other in others:
        if (other is not base and other.extent is not None and begin < other.extent[1]
            and other.extent[0] < end and base.example.device == other.example.device):
            raise SharedMemory(base.example if base.region is None else base.region.tensors[0],
                               other.example if other.region is None else other.region.tensors[0])


def join(groups: list, tensors: tuple[torch.Tensor, ...]) -> list:
    """``groups`` (lists of tensors) with the groups of ``tensors`` made one."""
    joined, rest = [], []
    for group in groups:
        (joined if any(t is member for t in tensors for member in group) else rest).append(group)
    return [*rest, _distinct([t for group in joined for t in group] + list(tensors))]


def _distinct(tensors: list[torch.Tensor]) -> list:
    return list({id(t): t for t in tensors}.values())


class Region:
    """A stretch of one storage and the inputs in it.

    Attributes:
        tensors: the inputs. start, count: the stretch, in elements from the start of the storage.
        base: of the flat input, once it is there. anchor: what stands for the first of the tensors that was used.
        members: their handles, in order of use. written: those of them through which the program has written.
    """

    @_unseen
    def __init__(self, tensors: list) -> None:
        self.tensors = tensors
        first = tensors[0]
        size = first.element_size()
        self.start = min(t.storage_offset() for t in tensors)
        self.count = max(t.storage_offset() + (extent(t)[1] - extent(t)[0]) // size for t in tensors) - self.start
        whole = first.untyped_storage().nbytes() // size
        if whole <= 2 * self.count:  # rows are described more easily from the start
            self.start, self.count = 0, whole
        self.base = self.anchor = None
        self.members: tuple = ()
        self.written: tuple = ()

    @_unseen
    def check(self, tracer: Tracer) -> None:
        """Raise Unsupported for a region that cannot be one input."""
        first = self.tensors[0]
        storages = {torch_private.storage_id(t) for t in self.tensors}
        if len(storages) > 1 or any(t.dtype is not first.dtype for t in self.tensors):
            raise Unsupported("an input that is changed in place shares memory with one of another dtype, or by "
                              "another storage", "clone one of them", kind="aliased-mutation")
        if any(t.requires_grad for t in self.tensors):
            raise Unsupported("an input that is changed in place shares memory with one that requires grad",
                              "clone one of them", kind="aliased-mutation")

    @_unseen
    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stretch as a tensor, made from one of the inputs."""
        return flat_memory(tensor, self.start - tensor.storage_offset(), self.count)

    @_unseen
    def member(self, tracer: Tracer, tensor: torch.Tensor, origin) -> TensorHandle:
        """A handle for one of the inputs."""
        b = tracer.builder
        flat = self.base.input
        node = strided_view(b, flat, tuple(tensor.shape), tensor.stride(), tensor.storage_offset() - self.start)
        path = None if node is None else view_path(node, flat)
        if path is None:
            raise Unsupported("an input that is changed in place overlaps another one in a way that is not described "
                              "by slices", "clone one of them", kind="aliased-mutation")
        if not path:
            path = view_path(b.alias(node), flat)
        handle = TensorHandle(tracer, self.base, path, node, False, origin)
        if self.base.node is not flat:
            handle._version = -1  # it shows what has been written since
        tracer.set(self, "members", (*self.members, handle))
        return handle

    @staticmethod
    @_unseen
    def place(tensor: torch.Tensor) -> tuple[int, int]:
        """Where a tensor begins in its storage, and the size of an element."""
        return tensor.storage_offset(), tensor.element_size()

    def owner(self, handle: TensorHandle) -> TensorHandle:
        """The member that ``handle`` is, or is a view of."""
        return handle.member or handle


@_unseen
def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What the program reads as ``tensor.grad``."""
    return tensor.grad


@_unseen
def flat_memory(tensor: torch.Tensor, back: int, count: int) -> torch.Tensor:
    """``count`` elements of the memory of ``tensor``, starting ``back`` (0 or less) from its first: a flat tensor
    without a history."""
    return tensor.data.as_strided((count,), (1,), tensor.storage_offset() + back)


def flat_view(b: Builder, node: Node) -> Node | None:
    """All of the memory of a dense value as one dimension, in the order in which it lies there; None where the value is
    not dense. Plain sizes only."""
    t = node.type
    order = sorted(range(t.rank), key=lambda d: (-t.strides[d], t.shape[d] != 1))
    if t.rank == 1 and t.strides == (1,):
        return node
    node = b.permute(node, order) if order != list(range(t.rank)) else node
    if not same_ints(tuple(s for s, n in zip(node.type.strides, node.type.shape) if n != 1),
                     tuple(s for s, n in zip(contiguous_strides(node.type.shape), node.type.shape) if n != 1)):
        return None
    return b.try_view(node, (t.numel,))


def strided_view(b: Builder, flat: Node, sizes: tuple, strides: tuple, offset: int) -> Node | None:
    """The view of ``flat`` (of one dimension) with these sizes, strides and offset, made of slices, reshapes and a
    permutation; None where that is not possible."""
    order = sorted((d for d, n in enumerate(sizes) if n != 1), key=lambda d: -strides[d])
    node, length, dim = flat, flat.type.shape[0], 0
    for k, d in enumerate(order):
        n, step = sizes[d], strides[d]
        if step == 0:
            return None
        if k == len(order) - 1:
            if offset + (n - 1) * step >= length:
                return None
            node = b.slice(node, dim, offset, n, step) if (offset, n, step) != (0, length, 1) else node
            offset = None
            break
        start = offset // step * step
        inner = sum((sizes[e] - 1) * strides[e] for e in order[k + 1:])
        # Its rows begin elsewhere than those of the whole.
        if offset - start + inner >= step or start + n * step > length:
            start = min(offset, length - n * step)
        if start < 0 or offset - start + inner >= step:
            return None
        shape = node.type.shape[:dim]
        node = b.slice(node, dim, start, n * step) if (start, n * step) != (0, length) else node
        node = b.try_view(node, (*shape, n, step))
        if node is None:
            return None
        offset, length, dim = offset - start, step, dim + 1
    if offset is not None:
        if not 0 <= offset < length:
            return None
        node = b.select(node, dim, offset)
    places = [order.index(d) for d in sorted(order)]
    node = b.permute(node, places) if places else node
    if node.type.shape != sizes or node.type.strides != strides:
        node = b.view_node("reshape", node, {"shape": sizes}, sizes, strides)
    return node
