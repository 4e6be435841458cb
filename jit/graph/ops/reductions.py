"""Sums, means, extrema, norms, scans. Half types accumulate in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph import aten
from jit.graph.build import HALF, is_number
from jit.graph.dims import product
from jit.graph.handles import NamedResult
from jit.graph.ir import Node, TensorType, contiguous_strides, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.nested import several
from jit.graph.prims import reduced_shape
from jit.graph.registry import OPS, op

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number
    from jit.graph.dims import IntExpr


def _empty_means_all(b: Builder, x: Node, dim: IntExpr | Sequence[int] | None) -> tuple[int, ...]:
    """sum, mean and their like reduce everything for ``dim=[]``."""
    if dim is not None and not is_number(dim) and len(dim) == 0:
        return tuple(range(x.type.rank))
    return b.dims_of(x, dim)


def _size(x: Node, dims: tuple[int, ...]) -> IntExpr:
    return product(x.shape[d] for d in dims)


def _accumulated(b: Builder, x: Node, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype) -> Node:
    """The sum in ``dtype``; half types are summed in float32 and rounded once."""
    x = b.cast(x, dtype)
    return b.cast(b.reduce("sum", b.opmath(x), dims, keepdim), dtype)


@op("sum")
def sum_(b: Builder, self: Node, dim: IntExpr | Sequence[int] | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Node:
    dims = _empty_means_all(b, self, dim)
    if dtype is None:
        dtype = self.dtype if self.dtype.is_floating_point else torch.int64
    if self.dtype is torch.bool or not self.dtype.is_floating_point and not dtype.is_floating_point:
        return b.reduce("sum", b.cast(self, dtype), dims, keepdim)
    return _accumulated(b, self, dims, keepdim, dtype)


@op("mean")
def mean(b: Builder, self: Node, dim: int | tuple[int, ...] | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Node:
    dtype = dtype or self.dtype
    if not dtype.is_floating_point:
        raise RuntimeError("mean(): could not infer output dtype. Input dtype must be either a floating point or "
                           f"complex dtype. Got: {str(self.dtype)[6:]}")
    dims = _empty_means_all(b, self, dim)
    x = b.opmath(b.cast(self, dtype))
    total = b.reduce("sum", x, dims, keepdim)
    mean = b.div(total, _size(x, dims))
    mean.type = mean.type.replace(strides=total.type.strides)  # eager divides in place
    return b.cast(mean, dtype)


@op("prod")
def prod(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Node:
    if dtype is None:
        dtype = self.dtype if self.dtype.is_floating_point else torch.int64
    x = b.cast(self, dtype)
    # In doubles: in another order of the factors than eager's, the range of floats may be left in between.
    if dtype.is_floating_point:
        x = b.cast(x, torch.float64)
    y = b.reduce("prod", x, None if dim is None else b.dims_of(self, dim), keepdim)
    return b.cast(b.marked(y, "", whole=True) if dim is None else y, dtype)


def _check_nonempty(x: Node, dims: tuple[int, ...], name: str) -> None:
    if any(x.shape[d] == 0 for d in dims):
        raise IndexError(f"{name}(): Expected reduction dim to have non-zero size.")


def _extremum(prim: str) -> None:
    def expand(b: Builder, self: Node, dim: int = (), keepdim: bool = False) -> Node:
        dims = _empty_means_all(b, self, dim)
        _check_nonempty(self, dims, prim)
        return b.reduce(prim, self, dims, keepdim)

    op(prim)(expand)


_extremum("amax")
_extremum("amin")


@op("aminmax")
def aminmax(b: Builder, self: Node, *, dim: int | None = None, keepdim: bool = False) -> NamedResult:
    dims = b.dims_of(self, dim)
    _check_nonempty(self, dims, "aminmax")
    return NamedResult(torch.return_types.aminmax, ("min", "max"),
                       (b.reduce("amin", self, dims, keepdim), b.reduce("amax", self, dims, keepdim)))


def _positions(b: Builder, x: Node, d: int) -> Node:
    """The index along dimension ``d``, in a shape that broadcasts to that of ``x``."""
    return b.reshape(b.iota(x.shape[d], device=x.device), (1,) * d + (x.shape[d],) + (1,) * (x.type.rank - d - 1))


def _max_min(name: str, prim: str, arg: str, elementwise: str) -> None:
    def expand(b: Builder, self: Node, dim: int | Node | None = None, keepdim: bool = False, *,
               other: Node | Number | None = None) -> NamedResult | Node:
        if isinstance(dim, Node) or other is not None:
            return OPS[elementwise].fn(b, self, other if other is not None else dim)
        if dim is None:
            if any(s == 0 for s in self.shape):
                raise RuntimeError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify "
                                   "the reduction dim with the 'dim' argument.")
            return b.marked(b.reduce(prim, self, None), "", nan_hits=True)
        if not is_number(dim):
            return NotImplemented
        d = normalize_dim(dim, self.type.rank)
        cls = getattr(torch.return_types, name)
        if self.type.rank == 0:
            return NamedResult(cls, ("values", "indices"), (b.clone(self), b.full((), 0, torch.int64, self.device)))
        _check_nonempty(self, (d,), name)
        values, indices = b.reduce(prim, self, (d,), keepdim), b.reduce(arg, self, (d,), keepdim)
        if b.recording:
            # The gradient goes to the position that ``indices`` names.
            at = b.reduce(arg, self, (d,), True)
            kept = b.with_gradient(b.reduce(prim, self, (d,), True), (self, lambda: b.eq(_positions(b, self, d), at)))
            values = kept if keepdim else b.reshape(kept, values.shape)
        return NamedResult(cls, ("values", "indices"), (values, indices))

    op(name)(expand)


_max_min("max", "amax", "argmax", "maximum")
_max_min("min", "amin", "argmin", "minimum")


def _arg(prim: str) -> None:
    def expand(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        if dim is None:
            if any(s == 0 for s in self.shape):
                raise IndexError(f"{prim}(): Expected reduction dim to be specified for input.numel() == 0. Specify "
                                 "the reduction dim with the 'dim' argument.")
            return b.reduce(prim, self, None, keepdim)
        d = normalize_dim(dim, self.type.rank)
        _check_nonempty(self, (d,) if self.type.rank else (), prim)
        return b.reduce(prim, self, (d,), keepdim)

    op(prim)(expand)


_arg("argmax")
_arg("argmin")


def _any_all(prim: str) -> None:
    def expand(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        dims = b.dims_of(self, dim)
        if self.dtype is torch.uint8:
            return NotImplemented
        x = self if self.dtype is torch.bool else b.ne(self, 0)
        return b.reduce(prim, x, dims, keepdim, torch.bool)

    op(prim)(expand)


_any_all("any")
_any_all("all")


def _of_truths(name: str, reduction: str) -> None:
    """``aten::_is_all_true`` and its like, which distributions and assertions ask."""
    @op(name)
    def expand(b: Builder, self: Node) -> Node:
        if self.dtype is not torch.bool:
            raise RuntimeError("self.scalar_type() == at::kBool INTERNAL ASSERT FAILED")
        return b.reduce(reduction, self, None)


_of_truths("_is_all_true", "all")
_of_truths("_is_any_true", "any")


@op("count_nonzero")
def count_nonzero(b: Builder, self: Node, dim: int | None = None) -> Node:
    return b.reduce("sum", b.cast(b.ne(self, 0), torch.int64), b.dims_of(self, dim))


# variance


def _variance(b: Builder, x: Node, dims: tuple[int, ...], correction: int, keepdim: bool, freedom: IntExpr,
              whole: bool) -> tuple[Node, ...]:
    """(variance, mean); of doubles where eager computes in them: squares of large values fit. ``freedom``,
    ``whole``: for ``_few``."""
    given, narrow = x, x.dtype is not torch.float64
    wide_variance = backend(x.device).wide_variance
    x = b.cast(x, torch.float64) if wide_variance else b.opmath(x)
    n = _size(x, dims)
    wide = b.div(b.reduce("sum", x, dims, True), n)
    divisor = _degrees_of_freedom(n, correction)
    if freedom <= 0 or freedom != divisor:
        total = b.reduce("sum", _few(b, given, x, wide, freedom, whole), dims, keepdim)
        value = b.div(total, divisor if divisor > 0 else 0)
        average = wide if keepdim else b.reshape(wide, reduced_shape(x.shape, dims, False))
        return b.with_gradient(value, (total, lambda: b.lift(1.0, total))), average
    if narrow and wide_variance and dims and type(n) is int and 0 < n <= _ONE_PASS:
        total = _squares(b, x, dims, n)
        total = b.marked(b.div(total, divisor), "variance")
        shape = reduced_shape(x.shape, dims, False)
        return (total, wide) if keepdim else (b.reshape(total, shape), b.reshape(wide, shape))
    centred = b.sub(x, wide)
    total = b.reduce("sum", b.mul(centred, centred), dims, keepdim)
    average = wide if keepdim else b.reshape(wide, reduced_shape(x.shape, dims, False))
    return b.div(total, divisor), average


def _degrees_of_freedom(n: IntExpr, correction: int) -> IntExpr:
    """What a sum of ``n`` squares is divided by; a symbolic ``n`` less a float is the float of today's size."""
    return n - correction if isinstance(correction, int) else float(int(n)) - correction


def _few(b: Builder, given: Node, x: Node, mean: Node, freedom: int, whole: bool) -> Node:
    """The squares of ``x - mean``, with eager's formula of the gradient where ``freedom``, by which that divides, is
    not positive or not that of the variance. ``whole``: no dimension was named. Then eager gives the limit for each
    element: NaN at the mean, infinity anywhere else."""
    centred = b.sub(x, mean)

    def slope() -> Node:
        if whole:
            # A single element is its mean.
            rounded = given if same_ints(given.shape, mean.shape) else b.cast(mean, given.dtype)
            return b.where(b.eq(given, rounded), b.lift(math.nan, x), b.lift(math.inf, x))
        return b.mul(centred, 2.0 / (freedom if isinstance(freedom, float) else int(freedom)) if freedom else math.inf)

    return b.with_gradient(b.mul(centred, centred), (x, slope))


_ONE_PASS = 1 << 24


def _squares(b: Builder, x: Node, dims: tuple[int, ...], n: int) -> Node:
    """The sum of the squares of ``x - mean(x)`` in one pass over ``x``: that of ``x - first`` less what the distance of
    ``first``, the first value, from the mean makes.

    The square of that distance is at most n times the variance, so that in doubles no more than n units of their last
    place are lost, and in practice a few.
    """
    first = x
    for d in dims:
        first = b.slice(first, d, 0, 1)
    shifted = b.sub(x, first)
    total = b.total(shifted, dims, True)
    return b.sub(b.total(b.mul(shifted, shifted), dims, True), b.div(b.mul(total, total), n))


def _var_arguments(b: Builder, self: Node, args: tuple, unbiased: bool | None,
                   correction: int | None, dim: int | None, keepdim: bool) -> tuple[IntExpr | tuple[int, ...], ...]:
    args = list(args)
    if args and type(args[0]) is bool:
        unbiased = args.pop(0)
        dim = None
    elif args:
        dim = args.pop(0)
        if args:
            unbiased = args.pop(0)
        if args:
            keepdim = args.pop(0)
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    dims = _empty_means_all(b, self, dim)
    # eager's formula of the gradient takes ``[]`` for no dimension.
    named = dims if dim is None or is_number(dim) or dim else ()
    return (dims, correction, keepdim, _degrees_of_freedom(_size(self, named), correction),
            dim is None or not self.type.rank)


def _var_like(name: str, finish: Callable) -> None:
    def expand(b: Builder, self: Node, *args: int | tuple[int, ...] | list[int], dim: int | None = None,
               unbiased: bool | None = None, keepdim: bool = False,
               correction: int | None = None) -> Node | tuple[Node, ...]:
        if not self.dtype.is_floating_point:
            raise RuntimeError("std and var only support floating point and complex dtypes")
        return finish(b, self, *_variance(b, self, *_var_arguments(b, self, args, unbiased, correction, dim, keepdim)))

    op(name)(expand)


_var_like("var", lambda b, x, var, mean: b.cast(var, x.dtype))


def _root(b: Builder, square: Node) -> Node:
    """The square root, with gradient 0 at 0."""
    y = b.sqrt(square)
    return b.with_formula(y, "root", (square, lambda: b.where(b.eq(y, 0.0), 0.0, b.div(b.lift(0.5, y), y))))


_var_like("std", lambda b, x, var, mean: b.cast(_root(b, var), x.dtype))
_var_like("var_mean", lambda b, x, var, mean: (b.cast(var, x.dtype), b.cast(mean, x.dtype)))
_var_like("std_mean", lambda b, x, var, mean: (b.cast(_root(b, var), x.dtype), b.cast(mean, x.dtype)))


@op("logsumexp", "special_logsumexp")
def logsumexp(b: Builder, self: Node, dim: int | tuple[int, ...], keepdim: bool = False) -> Node:
    dims = b.dims_of(self, dim)
    (x,) = b.promote(self, to_float=True)
    dtype = x.dtype
    x = b.opmath(x)
    top = b.reduce("amax", x, dims, True)
    top = b.where(b.isinf(top), 0.0, top)
    total = b.reduce("sum", b.exp(b.sub(x, top)), dims, keepdim)
    narrow = top if keepdim else b.reshape(top, reduced_shape(x.shape, dims, False))
    return b.cast(b.marked(b.add(b.log(total), narrow), "logsumexp"), dtype)


# norms


def vector_norm(b: Builder, x: Node, ord: float | int, dims: tuple[int, ...], keepdim: bool,
                dtype: torch.dtype | None = None) -> Node:
    dtype = dtype or x.dtype
    x = b.opmath(b.cast(x, dtype))
    dims = b.dims_of(x, dims)
    # The norm of a number is its absolute value.
    single = all(type(x.shape[d]) is int and x.shape[d] == 1 for d in dims)
    if b.recording and ord != 1:
        kept = _norm_with_gradient(b, x, ord, dims, single)
        return b.cast(kept if keepdim else b.reshape(kept, reduced_shape(x.shape, dims, False)), dtype)
    if single and ord != 0:
        return b.cast(b.reshape(b.contiguous(b.abs(x)), reduced_shape(x.shape, dims, keepdim)), dtype)
    if ord == 2:
        return b.cast(b.sqrt(b.reduce("sum", b.mul(x, x), dims, keepdim)), dtype)
    a = b.abs(x)
    if ord == math.inf:
        return b.cast(b.reduce("amax", a, dims, keepdim), dtype)
    if ord == -math.inf:
        return b.cast(b.reduce("amin", a, dims, keepdim), dtype)
    if ord == 0:
        return b.cast(b.reduce("sum", b.cast(b.ne(x, 0.0), x.dtype), dims, keepdim), dtype)
    if ord == 1:
        return b.cast(b.reduce("sum", a, dims, keepdim), dtype)
    return b.cast(b.power(b.reduce("sum", b.power(a, float(ord)), dims, keepdim), 1.0 / ord), dtype)


def _norm_with_gradient(b: Builder, x: Node, ord: float | int, dims: tuple[int, ...], single: bool) -> Node:
    """The norm with its reduced dimensions kept (``single``: all of size 1): d/dx = sign(x) (|x| / norm)^(ord - 1), and
    0 where the norm is 0. Equal extrema share evenly, NaN among them."""
    a = b.contiguous(b.abs(x)) if single else b.abs(x)
    if ord in (math.inf, -math.inf):
        y = b.reduce("amax" if ord > 0 else "amin", a, dims, True)

        def share() -> Node:
            hit = b.logical_or(b.eq(a, y), b.logical_and(b.isnan(a), b.isnan(y)))
            count = b.reduce("sum", b.cast(hit, torch.int64), dims, True)
            return b.where(hit, b.div(b.sign(x), b.cast(count, x.dtype)), 0.0)

        return b.with_gradient(y, (x, share))
    if ord == 0:
        return b.with_gradient(b.reduce("sum", b.cast(b.ne(x, 0.0), x.dtype), dims, True), (x, None))
    if single:
        y = a
    elif ord == 2:
        y = b.sqrt(b.reduce("sum", b.mul(x, x), dims, True))
    else:
        y = b.power(b.reduce("sum", b.power(a, float(ord)), dims, True), 1.0 / ord)

    def slope() -> Node:
        if ord == 2:
            return b.where(b.eq(y, 0.0), 0.0, b.div(x, y))
        if ord < 2:  # a power of 0 is infinite; what is NaN in the norm reaches all elements
            signed = b.mul(b.sign(x), b.power(a, float(ord - 1)))
            d = b.div(b.where(b.eq(a, 0.0), 0.0, signed), b.power(y, float(ord - 1)))
        else:
            d = b.div(b.mul(x, b.power(a, float(ord - 2))), b.power(y, float(ord - 1)))
        return b.where(b.eq(y, 0.0), 0.0, d)

    made = b.with_gradient(y, (x, slope))
    # Where the gradient may be infinite.
    return made if ord <= 1 or ord == 2 else b.with_gradient(y, (made, lambda: b.ne(y, 0.0)))


@op("linalg_vector_norm")
def linalg_vector_norm(b: Builder, self: Node, ord: int = 2, dim: int | None = None, keepdim: bool = False, *,
                       dtype: torch.dtype | None = None) -> Node:
    if not self.dtype.is_floating_point or any(s == 0 for s in self.shape):
        return NotImplemented
    return vector_norm(b, self, ord, _empty_means_all(b, self, dim), keepdim, dtype)


@op("norm")
def norm(b: Builder, self: Node, p: float | int | str = "fro", dim: int | list | tuple | None = None,
         keepdim: bool = False, dtype: torch.dtype | None = None) -> Node:
    if isinstance(p, str) and p != "fro":
        return NotImplemented
    if not self.dtype.is_floating_point and dtype is None:
        raise RuntimeError(f"norm of {self.dtype}")
    if any(s == 0 for s in self.shape) or not self.dtype.is_floating_point:
        return aten.call(b, "linalg_vector_norm", (self, 2 if p in ("fro", None) else p,
            None if dim is None else several(dim), keepdim), {"dtype": dtype})
    return vector_norm(b, self, 2 if p in ("fro", None) else p, _empty_means_all(b, self, dim), keepdim, dtype)


@op("linalg_norm")
def linalg_norm(b: Builder, self: Node, ord=None, dim: int | None = None, keepdim: bool = False, *,
                dtype: torch.dtype | None = None) -> Node:
    if ord is None or is_number(dim) or self.type.rank == 1 and dim is None:
        if not isinstance(ord, str):
            return linalg_vector_norm(b, self, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    return NotImplemented


# scans


@op("cumsum")
def cumsum(b: Builder, self: Node, dim: int, *, dtype: torch.dtype | None = None) -> Node:
    if dtype is None:
        dtype = self.dtype if self.dtype.is_floating_point else torch.int64
    d = normalize_dim(dim, self.type.rank)
    x = b.cast(self, dtype)
    return b.cumsum(x, d, dtype) if self.type.rank else b.clone(x, ())


@op("trace")
def trace(b: Builder, self: Node) -> Node:
    if self.type.rank != 2:
        raise RuntimeError("trace: expected a matrix")
    return sum_(b, b.emit("diagonal", (self,), {"offset": 0, "dim1": 0, "dim2": 1}))


def contiguous_like(x: Node) -> TensorType:
    return TensorType(x.shape, contiguous_strides(x.shape), x.dtype, x.device)


__all__ = ["HALF", "contiguous_like", "vector_norm"]
