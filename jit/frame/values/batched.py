"""Tensors inside ``torch.vmap``: one that is mapped is a tensor with a leading axis for each map that it varies under.

A map in progress is an integer, its *level*, the outermost first. A mapped tensor has ``levels``, ascending, and as
many leading axes; what the mapped function sees of it are the axes behind them. Elementwise operations line both up by
axes of size one, which is also what ``torch.vmap`` does, so that values and strides are the same. All else is a break.
Source: PyTorch's ``_binary_pointwise_batch_rule`` and ``index_batch_rule``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from ...errors import Unsupported
from ...graph.binding import resolve
from ...graph.op_info import op_info
from ..states.index_modes import modes
from .constant import Constant
from .containers import ListValue, TupleValue
from .lifting import lift
from .tensor import TensorValue

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session
    from .base import Value


def refuse(what: str) -> NoReturn:
    raise Unsupported(f"{what} inside torch.vmap", "only elementwise functions of the mapped tensors are captured",
                      kind="functorch")


class BatchedValue(TensorValue):
    """A mapped tensor. ``whole``: the tensor of all its elements; ``levels``: what its leading axes are."""

    def __init__(self, whole: TensorValue, levels: tuple) -> None:
        super().__init__()
        self._whole, self.levels = whole, levels

    @property
    def whole(self) -> TensorValue:
        return self._whole

    def handle(self, s: Session) -> None:
        refuse("a use of a mapped tensor")

    def identity(self) -> tuple[str, int]:
        return ("batched", id(self))

    def hash_key(self, s: Session) -> None:
        refuse("a mapped tensor as a key")

    def getattr(self, s: Session, name: str) -> Value:
        if name in ("dtype", "device"):
            return self.whole.getattr(s, name)
        if name == "shape":
            return TupleValue(self.whole.getattr(s, name).items_list(s)[len(self.levels):], torch.Size)
        if name == "__class__" or callable(getattr(torch.Tensor, name, None)):
            return super().getattr(s, name)
        refuse(f"{name} of a mapped tensor")

    def setattr(self, s: Session, name: str, value: Value) -> None:
        refuse("setting an attribute of a mapped tensor")

    def length(self, s: Session) -> None:
        refuse("the length of a mapped tensor")

    def iter(self, s: Session) -> None:
        refuse("iterating over a mapped tensor")

    def truth(self, s: Session) -> None:
        refuse("a branch on a mapped tensor")

    def emit(self, e: Emitter) -> None:
        refuse("keeping a mapped tensor")


def active(s: Session) -> bool:
    """Whether the program is inside a map or a mode."""
    return bool(s.maps or modes(s))


def rank(s: Session, value: TensorValue) -> int:
    """How many axes of a tensor the mapped function sees."""
    return len(value.whole.handle(s).shape) - len(value.levels)


def align(s: Session, value: Value, levels: tuple[int, ...], axes: int) -> Value:
    """The tensor of all elements with an axis for each of ``levels`` and ``axes`` more, of size one where it has
    none."""
    own = value.levels
    missing = [i for i, level in enumerate(levels) if level not in own]
    tensor = value.whole
    if not own and rank(s, value) == 0:
        return tensor  # broadcasts as it is
    for _ in range(axes - rank(s, value)):
        tensor = s.record(torch.unsqueeze, [tensor, Constant(len(own))], {})
    for i in missing if own or axes else ():
        tensor = s.record(torch.unsqueeze, [tensor, Constant(i)], {})
    return tensor


def union(tensors: list[Value]) -> tuple:
    return tuple(sorted({level for t in tensors for level in t.levels}))


def call(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A torch operation under a map or an index mode: lined up, or a break."""
    binding = resolve(fn)
    name = binding.name if binding is not None and binding.overload is None else getattr(fn, "__name__", repr(fn))
    if fn is torch.Tensor.__getitem__:
        return index(s, fn, args, kwargs)
    if not s.maps:
        return s.record(fn, args, kwargs)
    tensors = [a for a in args if a.is_tensor]
    sequences = any(v.nested(s) is not None for v in (*args, *kwargs.values()))
    if sequences and not op_info(name).takes_size or any(v.is_tensor for v in kwargs.values()):
        refuse(f"{name} of these arguments")
    if any(level not in s.maps for t in tensors for level in t.levels):
        refuse("a tensor of a map that has ended")
    levels = union(tensors)
    if op_info(name).takes_size and args[0].is_tensor and args[0].levels and len(args) + ("size" in kwargs) == 2:
        like, options = args[0].whole, dict(kwargs)
        size = options.pop("size", args[-1])
        sizes = [size] if size.nested(s) is None else size.nested(s)
        lead = like.getattr(s, "shape").items_list(s)[: len(levels)]
        return BatchedValue(s.record(fn, [like, TupleValue([*lead, *sizes])], options), levels)
    others = [v for v in (*args, *kwargs.values()) if not v.is_tensor]
    if name == "to" and len(tensors) == 1 and all(v.is_const() and isinstance(v.const(s),
        (torch.dtype, torch.device, str)) for v in others):
        result = s.record(fn, [args[0].whole, *args[1:]], kwargs)
        return BatchedValue(result, levels) if levels else result
    if not op_info(name).lines_up or "out" in kwargs:
        refuse(f"{name}")
    if not levels:
        return s.record(fn, args, kwargs)
    axes = max(rank(s, t) for t in tensors)
    low = [align(s, a, levels, axes) if a.is_tensor else a for a in args]
    numbers = [t for t in tensors if t.whole.handle(s).dtype is not torch.bool]  # bools give way to any other type
    if len({t.whole.handle(s).dtype for t in numbers}) > 1:
        seen = [torch.empty((0,) * rank(s, t), dtype=t.whole.handle(s).dtype, device="meta") for t in numbers]
        lined = [torch.empty((0,) * len(t.handle(s).shape), dtype=t.handle(s).dtype, device="meta")
                 for t in low if t.is_tensor and t.handle(s).dtype is not torch.bool]
        if len(seen) != 2 or torch.result_type(*seen) != torch.result_type(*lined):
            refuse("operands of several types")
    return BatchedValue(s.record(fn, low, kwargs), levels)


def index(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``x[i, j]`` by mapped scalars, which PyTorch permits under its mode ``TransformGetItemToIndex``: a gather, never
    a view."""
    x, key = args
    keys = key.items_list(s) if type(key) is TupleValue else [key]
    if x.levels:
        refuse("indexing of a mapped tensor")
    tensors = [k for k in keys if k.is_tensor]
    levels = union(tensors)
    by_scalars = bool(modes(s) or s.scalars_index)
    if not levels and (not by_scalars or not tensors and (s.scalars_index or any(
            k.is_slice or k.is_const() and k.const(s) in (None, ...) for k in keys))):
        return s.record(fn, args, kwargs)
    if (not by_scalars or not levels or any(level not in s.maps for level in levels)
        or x.handle(s).requires_grad and not s.scalars_index):
        refuse("indexing by these keys")
    plain = _by_places(s, x, keys)
    if plain is not None:
        return plain
    low = []
    for k in keys:
        if k.is_tensor:
            indexes = rank(s, k) == 0 and k.whole.handle(s).dtype in (torch.int64, torch.int32)
        else:
            indexes = k.is_const() and type(k.const(s)) is int
        if not indexes:
            refuse("indexing by these keys")
        if k.is_tensor and k.levels:
            low.append(align(s, k, levels, 0))
        elif k.is_tensor:
            low.append(s.record(torch.Tensor.reshape, [k, TupleValue([Constant(1)] * len(levels))], {}))
        else:
            options = {"dtype": Constant(torch.int64), "device": x.getattr(s, "device")}
            low.append(s.record(torch.full, [TupleValue([Constant(1)] * len(levels)), k], options))
    return BatchedValue(s.record(fn, [x, TupleValue(low)], {}), levels)


def _by_places(s: Session, x: TensorValue, keys: list[Value]) -> Value | None:
    """``x[q, k]`` by places of scores themselves, each along one axis: a view of ``x`` in place of a gather; None for
    other keys."""
    levels, sizes = [k.levels[0] for k in keys if k.is_tensor and k.levels], x.handle(s).shape
    if len(keys) > len(sizes) or not levels or len(set(levels)) < len(levels):
        return None
    for k, size in zip(keys, sizes):
        if k.is_tensor and not (any(k.whole is place for place in s.scalars_index)
                                and bool(k.whole.handle(s).shape[0] <= size)):
            return None
        if not k.is_tensor and not (k.is_const() and type(k.const(s)) is int and bool(-size <= k.const(s))
                                    and bool(k.const(s) < size)):
            return None
    if len(keys) < len(sizes):
        return None
    tensor, at = x, 0
    for k in keys:
        if k.is_tensor:
            extent = k.whole.handle(s).shape[0]
            tensor = s.record(torch.Tensor.narrow, [tensor, Constant(at), Constant(0), lift(s, extent)], {})
            at += 1
        else:
            tensor = s.record(torch.Tensor.select, [tensor, Constant(at), k], {})
    order = sorted(range(len(levels)), key=levels.__getitem__)
    tensor = s.record(torch.Tensor.permute, [tensor, TupleValue([Constant(d) for d in order])], {})
    return BatchedValue(tensor, tuple(sorted(levels)))


def enter(s: Session, value: Value, axis: int | tuple[int | tuple[int, ...] | None, ...] | None, level: int,
          sizes: list[int]) -> Value:
    """A value as the function of map ``level`` sees it: its tensors mapped over ``axis``, of which a tuple has one for
    each element, or not at all (None). The sizes of the axes are added to ``sizes``."""
    if axis is None:
        return value
    if type(value) in (TupleValue, ListValue) and value.pytype(s) in (tuple, list):
        items = value.items_list(s)
        axes = axis if type(axis) is tuple else (axis,) * len(items)
        if len(axes) != len(items):
            refuse("mapping over another number of arguments")
        return type(value)([enter(s, v, a, level, sizes) for v, a in zip(items, axes)])
    if not value.is_tensor or type(axis) is not int:
        refuse("a map over something that is no tensor")
    n, axes = len(value.levels), rank(s, value)
    if not -axes <= axis < axes:
        refuse("a map over an axis that is not there")
    tensor = value.whole
    if axis % axes:
        tensor = s.record(torch.movedim, [tensor, Constant(n + axis % axes), Constant(n)], {})
    sizes.append(tensor.handle(s).shape[n])
    return BatchedValue(tensor, (*value.levels, level))


def leave(s: Session, value: Value, level: int, size: int) -> Value:
    """What the function of map ``level`` has returned, with the map's axis first."""
    if type(value) is TupleValue and value.pytype(s) is tuple:
        return TupleValue([leave(s, v, level, size) for v in value.items_list(s)])
    if not value.is_tensor:
        refuse("a result is no tensor")
    own = value.levels
    if level in own:
        tensor, own = value.whole, own[:-1]
    else:
        shape = list(value.whole.handle(s).shape)
        tensor = s.record(torch.unsqueeze, [value.whole, Constant(len(own))], {})
        shape.insert(len(own), size)
        tensor = s.record(torch.Tensor.expand, [tensor, TupleValue([lift(s, d) for d in shape])], {})
    return BatchedValue(tensor, own) if own else tensor
