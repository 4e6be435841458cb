"""Shapes and strides of results, as eager gives them: broadcasting, TensorIterator's output strides, views, memory
formats.

Every rule works over IntExpr. A comparison of Dims may record a guard in their ShapeEnv.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jit.graph.dims import Dim, IntExpr, equal, plain_if_few, product, specialize, structurally_equal
from jit.graph.ir import TensorType, contiguous_strides, same_ints


class ShapeError(ValueError):
    """Shapes that eager refuses as well."""


def normalize_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front. Raises IndexError as torch does; rank 0 accepts 0 and -1. A symbol becomes a
    known number."""
    dim, n = specialize(dim) if type(dim) is Dim else dim, max(rank, 1)
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return dim % n


def broadcast_shapes(*shapes: tuple[IntExpr, ...]) -> tuple[IntExpr, ...]:
    """The common shape. A size 1 gives way; unequal sizes raise ShapeError."""
    first = shapes[0]
    for other in shapes[1:]:
        if first is not other and not same_ints(first, other):
            break
    else:
        return first
    rank = max(map(len, shapes))
    result = []
    for i in range(rank):
        size: IntExpr = 1
        for shape in shapes:
            k = i - rank + len(shape)
            if k < 0:
                continue
            s = shape[k]
            if type(s) is int and s == 1:
                continue
            if type(size) is int and size == 1:
                size = s
            elif size is not s and not size == s:
                raise ShapeError(f"The size of tensor a ({size}) must match the size of tensor b ({s}) at "
                                 f"non-singleton dimension {i}")
            elif type(s) is int:
                size = s  # a constant is the better name for an equal symbol
        result.append(size)
    return tuple(result)


def equal_ints(a: Sequence[IntExpr], b: Sequence[IntExpr]) -> bool:
    """Whether two shapes, or strides, are equal, recorded where structure does not say."""
    return a is b or len(a) == len(b) and all(map(equal, a, b))


def is_channels_last(shape: Sequence[IntExpr], strides: Sequence[IntExpr]) -> bool:
    """``is_contiguous(memory_format=torch.channels_last)`` (rank 4) or ``channels_last_3d`` (rank 5)."""
    if len(shape) not in (4, 5):
        return False
    expected: IntExpr = 1
    for d in channels_last_order(len(shape)):
        if equal(shape[d], 1):
            continue
        if not equal(strides[d], expected):
            return False
        expected = expected * shape[d]
    return True


def channels_last_order(rank: int) -> tuple[int, ...]:
    """Dimensions from fastest to slowest in the channels-last format."""
    return (1, *range(rank - 1, 1, -1), 0)


def channels_last_strides(shape: Sequence[IntExpr]) -> tuple[IntExpr, ...]:
    strides: list[IntExpr] = [0] * len(shape)
    step: IntExpr = 1
    for d in channels_last_order(len(shape)):
        strides[d] = step
        step = step * (shape[d] if not (type(shape[d]) is int and shape[d] == 0) else 1)
    return tuple(strides)


def is_dense(shape: Sequence[IntExpr], strides: Sequence[IntExpr]) -> bool:
    """``is_non_overlapping_and_dense``: the elements fill one block of memory exactly, in some order of dimensions."""
    dims = [d for d in range(len(shape)) if not equal(shape[d], 1)]
    if not dims:
        return True
    if any(equal(shape[d], 0) for d in dims):
        return True
    remaining = dims
    expected: IntExpr = 1
    while remaining:
        d = next((d for d in remaining if structurally_equal(strides[d], expected)), None)
        if d is None:
            d = next((d for d in remaining if equal(strides[d], expected)), None)
        if d is None:
            return False
        expected = expected * shape[d]
        remaining = [k for k in remaining if k != d]
    return True


def memory_format(t: TensorType) -> str:
    """``suggest_memory_format()``: ``channels_last`` when rank 4 or 5 strides say so, else ``contiguous``."""
    if t.rank not in (4, 5):
        return "contiguous"
    shape, strides = t.shape, t.strides
    low: IntExpr = 0
    if type(strides[1]) is int and strides[1] == 0:
        return "contiguous"
    for d in channels_last_order(t.rank):
        if type(shape[d]) is int and shape[d] == 0:
            return "contiguous"
        if strides[d] < low:
            return "contiguous"
        # Of an N1HW tensor with equal strides for N and C, the contiguous reading wins.
        if d == 0 and structurally_equal(low, strides[1]):
            return "contiguous"
        low = strides[d]
        if not (type(shape[d]) is int and shape[d] == 1):
            low = low * shape[d]
    return "channels_last"


def iterator_strides(shape: tuple[IntExpr, ...], operands: Sequence[TensorType]) -> tuple:
    """Output strides of a TensorIterator operation over ``operands`` (TensorTypes, in the operation's argument order).

    Source: the algorithm of ``aten/src/ATen/TensorIterator.cpp`` (fast set-up, stable sort of dimensions by the
    operands' strides).
    """
    rank = len(shape)
    # Row-major operands give a row-major result, but the tie-break by size makes empty shapes different.
    canonical = not any(_is_zero(s) for s in shape)
    for t in operands:
        if t.rank and not (t.is_contiguous and (t.shape is shape or same_ints(t.shape, shape))
                           and same_ints(t.strides, contiguous_strides(shape))):
            canonical = False
            break
    if canonical or rank == 0:
        return contiguous_strides(shape)
    few = _with_few(shape)
    parts = [_with_few(t.shape) for t in operands]
    if few is not shape or any(p is not t.shape for p, t in zip(parts, operands)):
        return iterator_strides(few, [t.replace(shape=p) for p, t in zip(parts, operands)])
    if all(equal_ints(t.shape, shape) for t in operands):
        if all(t.is_contiguous for t in operands):
            return contiguous_strides(shape)
        if rank == 4 and all(is_channels_last(shape, t.strides) for t in operands):
            return channels_last_strides(shape)
        first = operands[0].strides
        if all(equal_ints(t.strides, first) for t in operands) and is_dense(shape, first):
            return first
    if rank == 1:
        return (1,)
    return strides_in_order(shape, iteration_order(shape, [broadcast_strides(t, shape) for t in operands]))


def _with_few(shape: tuple[IntExpr, ...]) -> tuple[IntExpr, ...]:
    """The shape with sizes that are symbols, but 0 or 1 in this call, as numbers: layouts make much of these. That they
    are, or are not, is a guard."""
    if all(type(s) is int or s > 1 for s in shape):
        return shape
    return tuple(s if type(s) is int or s > 1 else 1 if s == 1 else 0 for s in shape)


def broadcast_strides(t: TensorType, shape: Sequence[IntExpr]) -> tuple:
    """Strides of ``t`` read in the broadcast shape: 0 along dimensions that are repeated."""
    lead = len(shape) - t.rank
    out: list[IntExpr] = [0] * lead
    for d in range(t.rank):
        repeated = (not structurally_equal(t.shape[d], shape[lead + d])
                    and equal(t.shape[d], 1) and not _is_one(shape[lead + d]))
        out.append(0 if repeated else t.strides[d])
    return tuple(out)


def _is_zero(v: IntExpr) -> bool:
    return type(v) is int and v == 0


def compared(s0: IntExpr, s1: IntExpr) -> int:
    """-1, 0 or 1, recorded. Symbolic strides may be equal at the sizes at hand, where a size is 1."""
    if structurally_equal(s0, s1):
        return 0
    return -1 if s0 < s1 else 0 if s0 == s1 else 1


def iteration_order(shape: Sequence[IntExpr], all_strides: list[tuple[IntExpr, ...]]) -> list[int]:
    """Dimensions from fastest to slowest varying, by TensorIterator's insertion sort with ambiguous comparisons."""

    def after(d0: int, d1: int) -> int:
        for strides in all_strides:
            s0, s1 = strides[d0], strides[d1]
            if _is_zero(s0) or _is_zero(s1):
                continue
            c = compared(s0, s1)
            if c:
                return c
            if not structurally_equal(shape[d0], shape[d1]) and shape[d0] > shape[d1]:
                return 1
        return 0

    perm = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(perm)):
        right = i
        for left in range(i - 1, -1, -1):
            c = after(perm[left], perm[right])
            if c > 0:
                perm[left], perm[right] = perm[right], perm[left]
                right = left
            elif c < 0:
                break
    return perm


def strides_in_order(shape: Sequence[IntExpr], order: list[int]) -> tuple:
    """Dense strides when ``order`` lists the dimensions from fastest to slowest."""
    if list(order) == list(range(len(shape) - 1, -1, -1)):
        return contiguous_strides(shape)
    strides: list[IntExpr] = [0] * len(shape)
    step: IntExpr = 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    return tuple(strides)


def preserved_strides(t: TensorType) -> tuple:
    """Strides of ``empty_like(t)`` (``torch.preserve_format``): t's own when dense, else TensorIterator's."""
    if t.is_contiguous and same_ints(t.strides, contiguous_strides(t.shape)):
        return t.strides
    if is_dense(t.shape, t.strides):
        return t.strides
    return _infer_dense_strides(t.shape, t.strides)


def empty_like(t: TensorType) -> TensorType:
    """The type of ``empty_like`` of a tensor of type ``t``; that of its gradient too."""
    return t.replace(strides=preserved_strides(t))


def _infer_dense_strides(shape: Sequence[IntExpr], strides: Sequence[IntExpr]) -> tuple:
    """``at::infer_dense_strides``: the order of dimensions kept, the gaps and repetitions taken out."""

    def after(d0: int, d1: int) -> int:
        s0, s1 = strides[d0], strides[d1]
        if _is_zero(s0) or _is_zero(s1):
            return 0
        c = compared(s0, s1)
        if c:
            return c
        return 1 if not structurally_equal(shape[d0], shape[d1]) and shape[d0] > shape[d1] else 0

    perm = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(perm)):
        right = i
        for left in range(i - 1, -1, -1):
            c = after(perm[left], perm[right])
            if c > 0:
                perm[left], perm[right] = perm[right], perm[left]
                right = left
            elif c < 0:
                break
    out: list[IntExpr] = [0] * len(shape)
    step: IntExpr = 1
    for d in perm:
        out[d] = step
        size = shape[d]
        if not (type(size) is int and size <= 1):
            step = step * size
    return tuple(out)


def format_strides(t: TensorType, format: torch.memory_format | None) -> tuple:
    """Strides of a copy of ``t`` in a ``torch.memory_format`` (None: preserve)."""
    if format is None or format is torch.preserve_format:
        return preserved_strides(t)
    if format is torch.contiguous_format:
        return contiguous_strides(t.shape)
    rank = 4 if format is torch.channels_last else 5
    if t.rank != rank:
        raise ShapeError(f"required rank {rank} tensor to use {str(format)[6:]} format")
    return channels_last_strides(t.shape)


def expand_strides(t: TensorType, shape: Sequence[IntExpr]) -> tuple:
    """Strides of ``t.expand(shape)``; ``shape`` has no -1. Raises ShapeError when a size other than 1 would change."""
    lead = len(shape) - t.rank
    if lead < 0:
        raise ShapeError(f"the number of sizes provided ({len(shape)}) must be greater or equal to the number of "
                         f"dimensions in the tensor ({t.rank})")
    strides: list = [0] * len(shape)
    if t.rank == 0:
        return tuple(strides)
    for i in range(len(shape) - 1, -1, -1):
        d = i - lead
        size = t.shape[d] if d >= 0 else 1
        if d >= 0:
            stride = t.strides[d]
        else:
            stride = shape[i + 1] * strides[i + 1]
        if not structurally_equal(size, shape[i]):
            if type(size) is int and size == 1:
                stride = stride if shape[i] == 1 else 0
            elif not size == shape[i]:
                raise ShapeError(f"The expanded size of the tensor ({shape[i]}) must match the existing size ({size}) "
                                 f"at non-singleton dimension {i}")
        strides[i] = stride
    return tuple(strides)


def infer_size(shape: Sequence[IntExpr], numel: IntExpr) -> tuple:
    """Fill in a -1, and make sizes of 0 and 1 plain ints. Raises ShapeError when the sizes do not make up ``numel``."""
    unknown = [i for i, s in enumerate(shape) if type(s) is int and s == -1]
    if len(unknown) > 1:
        raise ShapeError("only one dimension can be inferred")
    known = product(s for i, s in enumerate(shape) if i not in unknown)
    if not unknown:
        if not structurally_equal(known, numel) and not known == numel:
            raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
        return tuple(map(plain_if_few, shape))
    if _is_zero(known):
        raise ShapeError(f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified "
                         "dimension size -1 can be any value")
    size = numel // known
    if not structurally_equal(size * known, numel) and not size * known == numel:
        raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    return tuple([plain_if_few(size if i in unknown else s) for i, s in enumerate(shape)])


def view_strides(shape: Sequence[IntExpr], strides: Sequence[IntExpr], new_shape: Sequence[IntExpr]) -> tuple | None:
    """Strides that make ``new_shape`` a view of a tensor with ``shape`` and ``strides``, or None.

    Source: ``computeStride`` of ``aten/src/ATen/TensorUtils.cpp``.
    """
    if not shape:
        return (1,) * len(new_shape)
    if any(_is_zero(s) for s in shape):
        return tuple(strides) if same_ints(shape, new_shape) else contiguous_strides(new_shape)
    if same_ints(strides, contiguous_strides(shape)):
        return contiguous_strides(new_shape)
    out: list[IntExpr] = [0] * len(new_shape)
    v = len(new_shape) - 1
    base = strides[-1]
    old_numel: IntExpr = 1
    new_numel: IntExpr = 1
    for d in range(len(shape) - 1, -1, -1):
        old_numel = old_numel * shape[d]
        if d == 0 or (not _is_one(shape[d - 1]) and not equal(strides[d - 1], old_numel * base)):
            while v >= 0 and (_is_one(new_shape[v]) or (not structurally_equal(new_numel, old_numel)
                                                        and new_numel < old_numel) or equal(new_shape[v], 1)):
                out[v] = new_numel * base
                new_numel = new_numel * new_shape[v]
                v -= 1
            if not equal(new_numel, old_numel):
                return None
            if d > 0:
                base, old_numel, new_numel = strides[d - 1], 1, 1
    return tuple(out) if v == -1 else None


def _is_one(v: IntExpr) -> bool:
    return type(v) is int and v == 1


_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
_PARTS = {v: k for k, v in _COMPLEX.items()}


def reinterpreted(t: TensorType, how: str, dtype: torch.dtype | None = None) -> TensorType:
    """The type of a view that reads the memory of ``t`` as another dtype; see the prim ``reinterpret``. ``dtype`` is
    read for ``how="dtype"`` only.

    Raises RuntimeError, as eager does, where sizes or strides do not allow it.
    """
    if how == "conj":
        return t
    if how in ("real", "imag"):
        return t.replace(strides=(2 * s for s in t.strides), dtype=_PARTS[t.dtype])
    if how == "view_as_real":
        return t.replace(shape=(*t.shape, 2), strides=(*(2 * s for s in t.strides), 1), dtype=_PARTS[t.dtype])
    if how == "view_as_complex":
        if t.dtype not in _COMPLEX:
            raise RuntimeError("view_as_complex is only supported for half, float and double tensors, but got a "
                               f"tensor of scalar type: {t.dtype}")
        if not t.shape or not t.shape[-1] == 2:
            raise RuntimeError("Tensor must have a last dimension of size 2")
        if not t.strides[-1] == 1:
            raise RuntimeError("Tensor must have a last dimension with stride 1")
        if any(not s % 2 == 0 for s in t.strides[:-1]):
            raise RuntimeError("Tensor must have a stride divisible by 2 for all but last dimension")
        return t.replace(shape=t.shape[:-1], strides=(s // 2 for s in t.strides[:-1]), dtype=_COMPLEX[t.dtype])
    assert dtype is not None
    old, new = t.dtype.itemsize, dtype.itemsize
    if old == new:
        return t.replace(dtype=dtype)
    if not t.shape:
        raise RuntimeError(f"self.dim() cannot be 0 to view {t.dtype} as {dtype} (different element sizes)")
    if not t.strides[-1] == 1:
        raise RuntimeError(f"self.stride(-1) must be 1 to view {t.dtype} as {dtype} (different element sizes), but got "
                           f"{t.strides[-1]}")
    if old > new:
        k = old // new
        return t.replace(shape=(*t.shape[:-1], t.shape[-1] * k), strides=(*(s * k for s in t.strides[:-1]), 1),
                         dtype=dtype)
    k = new // old
    if any(not s % k == 0 for s in (t.shape[-1], *t.strides[:-1])):
        raise RuntimeError(f"a tensor of shape {list(t.shape)} and strides {list(t.strides)} cannot be viewed as "
                           f"{dtype} (different element sizes)")
    return t.replace(shape=(*t.shape[:-1], t.shape[-1] // k), strides=(*(s // k for s in t.strides[:-1]), 1),
                     dtype=dtype)
