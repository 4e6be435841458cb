"""What eager has of a tensor inside of ``torch.vmap``: one *physical* tensor of all slices, whose mapped dimensions are
where its operations put them. Its strides are what a slice's operations go by, such as ``contiguous()``, and what the
map gives at its end, which may be laid out otherwise than slices one behind the other.

PyTorch is asked: each operation inside of a map is done once more by its own rules for maps, on tensors that are made
up. Where it refuses that for whatever values, so does the program in eager. Where it is not known how an operand is
laid out, as of a gradient that is taken inside, nothing is asked, and slices are laid out as in any other program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

from jit import torch_private
from jit.graph.binding import resolve
from jit.graph.dims import hint
from jit.graph.foreign import is_foreign
from jit.graph.ir import same_ints
from jit.graph.handles import TensorHandle
from jit.graph.layout import is_dense
from jit.graph.nested import mapped, of_kind
from jit.graph.prims import VIEWS
from jit.graph.probe import StandIns, ask

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr

_SMALL = 1 << 12  # elements of all tensors up to which they have values, for the device's own kernels


class Map(NamedTuple):
    """A map in progress: its number, how many slices it has, and what these may draw."""

    number: int
    size: IntExpr
    randomness: str


class Physical(NamedTuple):
    """A tensor of the sizes and strides that eager's has, and its mapped dimensions: (map, dimension in what is left
    without those of the maps around it), the outermost first. ``same``: the operand whose very tensor it is."""

    tensor: torch.Tensor
    dims: tuple[tuple[Map, int], ...] = ()
    same: TensorHandle | None = None

    def left(self, number: int) -> Physical:
        """The same behind the end of a map, whose dimension is the first of what the function around it sees."""
        if not self.dims or self.dims[-1][0].number != number:
            return self
        rest = list(range(self.tensor.dim()))
        mapped = [rest.pop(dim) for _, dim in self.dims]
        return Physical(self.tensor.permute(*mapped, *rest), tuple([(m, 0) for m, _ in self.dims[:-1]]))

    def strides(self, shape: Sequence[IntExpr]) -> tuple[IntExpr, ...] | None:
        """Those of a slice of a shape, as the function of the innermost map sees it; None where the tensor is not
        dense."""
        sizes, found = list(shape), list(self.tensor.stride())
        for m, dim in reversed(self.dims):
            sizes.insert(dim, m.size)
        if tuple(map(hint, sizes)) != self.tensor.shape or not _is_dense(self.tensor):
            return None
        if not all(type(n) is int for n in sizes):
            step: IntExpr = 1
            for d in sorted(range(len(found)), key=lambda d: (found[d], -d)):
                found[d], step = step, step * sizes[d]
        for _, dim in self.dims:
            found.pop(dim)
        return tuple(found)


def _is_dense(t: torch.Tensor) -> bool:
    return not any(n > 1 and step == 0 for n, step in zip(t.shape, t.stride())) and is_dense(t.shape, t.stride())


def of(handle: TensorHandle) -> Physical | None:
    return handle.physical if handle.chain or handle.physical is not None else handle.base.physical


def very(handle: TensorHandle) -> TensorHandle:
    """The handle that was an operation's first operand, where eager has given its very tensor back."""
    while handle.physical is not None and handle.physical.same is not None:
        handle = handle.physical.same
    return handle


def slice_of(slice_: TensorHandle, whole: TensorHandle, dim: int, number: int, randomness: str) -> None:
    """A map gives its function a slice along a dimension of a tensor."""
    found = of(whole) or (None if whole.base.mapped else _plain(whole))
    if found is not None:
        made = Map(number, whole.shape[dim], randomness)
        slice_.physical = slice_.base.physical = Physical(found.tensor, (*found.dims, (made, dim)))


def _plain(handle: TensorHandle) -> Physical:
    t = handle.type
    return Physical(torch.empty_strided(tuple(map(hint, t.shape)), tuple(map(hint, t.strides)), dtype=t.dtype,
                                        device="meta"))


def asked(maps: Sequence[Map], fn: Callable, args: Sequence[object], kwargs: dict[str, object],
          varies: Callable) -> tuple[list[Physical | None] | None, Exception | None]:
    """-> (eager's tensors of the results, what eager raises). ``varies``: whether a handle that nothing is known of is
    mapped. Operators that are none of PyTorch's are not tried out: nothing is known of their results."""
    binding = resolve(fn)
    if binding is not None and is_foreign(binding.name):
        return None, None
    known: dict[int, Physical] = {}
    handles = {id(h): h for h in of_kind(TensorHandle, (list(args), kwargs))}
    for h in handles.values():
        found = of(h)
        if found is None and varies(h):
            return None, None
        known[id(h)] = found or _plain(h)
    if not any(p.dims for p in known.values()):
        return None, None
    small = sum(p.tensor.numel() for p in known.values()) <= _SMALL
    error = None
    for fill in (1, None, 0) if small else (None,):
        with _entered(maps) as levels:
            filled = {key: _filled(p, fill, small) for key, p in known.items()}
            made = {key: _wrapped(p, levels) for key, p in filled.items()}
            answer = ask(fn, *(mapped(lambda v: made.get(id(v), v), a) for a in (list(args), kwargs)), StandIns())
            if answer.error is None:
                numbers = {levels[m.number]: m for m in maps}
                given = {id(p.tensor): handles[key] for key, p in filled.items()}
                return [_unwrapped(t, numbers, given) for t in of_kind(torch.Tensor, answer.result)], None
            error = answer.error
    return None, error if small else None


@contextlib.contextmanager
def _entered(maps: Sequence[Map]) -> Iterator[dict[int, int]]:
    """Inside of PyTorch's own maps; -> the number of a map -> PyTorch's."""
    levels: dict[int, int] = {}
    try:
        for m in maps:
            levels[m.number] = torch_private.map_begins(hint(m.size), m.randomness)
        yield levels
    finally:
        for _ in levels:
            torch_private.map_ends()


def _filled(p: Physical, fill: int | None, small: bool) -> Physical:
    t = p.tensor
    if not small:
        return p
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
    StandIns(fill).fill_in(made)
    return p._replace(tensor=made)


def _wrapped(p: Physical, levels: dict[int, int]) -> torch.Tensor:
    tensor = p.tensor
    for m, dim in p.dims:
        if m.number in levels:
            tensor = torch_private.map_enters(tensor, dim, levels[m.number])
    return tensor


def _unwrapped(tensor: torch.Tensor, levels: dict[int, Map], given: dict[int, TensorHandle]) -> Physical:
    dims = []
    while torch_private.is_mapped(tensor):
        dims.append((levels[torch_private.level_of_map(tensor)], torch_private.mapped_dim(tensor)))
        tensor = torch_private.of_all_slices(tensor)
    return Physical(tensor.to("meta"), tuple(reversed(dims)), given.get(id(tensor)))


def lay_out(handle: TensorHandle, found: Physical, start: int) -> None:
    """A result is laid out as eager's. ``start``: the number of the first node that the operation has made."""
    handle.physical = found
    if handle.chain or handle.node is not handle.base.node or handle.node.op in VIEWS:
        return
    handle.base.physical = found
    strides, t = found.strides(handle.shape), handle.type
    if strides is not None and handle.node.id >= start and not same_ints(strides, t.strides):
        handle.node.type = handle.type = handle.base.type = t.replace(strides=strides)


def laid_out(handle: TensorHandle, found: Physical) -> TensorHandle:
    """All slices of a result, or a copy of them, with eager's strides."""
    strides = found.strides(handle.shape)
    if strides is not None and not same_ints(strides, handle.type.strides):
        tracer = handle.tracer
        handle = tracer.fresh(tracer.builder.clone(handle.node, strides), handle.requires_grad)
    handle.physical = handle.base.physical = found
    return handle
