"""Pooling, resizing, padding, sampling and their gradients as the prim ``window``, where kernels do them better.

A program's call stays the library's operator until here, with its type, its errors and its gradient: what becomes a
window is decided by sizes and by the device (``Backend.window_limits``). A rule of ``RULES`` gives what stands for a
call, or None to leave it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph import dims, layout
from jit.graph.ir import Graph, Node, TensorType, filled, same_ints
from jit.graph.nested import several
from jit.graph.passes.rewrite import changed, rebuilt
from jit.graph.windows import (
    Axis, Edge, EdgeBack, Resized, ResizedBack, Same, Shares, SharesBack, Strided, StridedBack,
)

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr

RULES: dict[str, Callable] = {}


def rule(*names: str) -> Callable:
    """Register ``fn(b, node, *args)``, which gives what stands for a call: a node, or a tuple of nodes for several
    results; None leaves it."""

    def register(fn: Callable) -> Callable:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def make_windows(graph: Graph) -> Graph:
    """The graph with windows in the place of library calls, where the device wants them; the same graph when there is
    none."""
    read = {(n.inputs[0].id, n.attrs["index"]) for n in graph.of_ops(("getitem",))}
    return _with_short_positions(rebuilt(graph, _applies, lambda b, n: _rewrite(b, n, read), ("aten_call",)))


def _with_short_positions(graph: Graph) -> Graph:
    """The graph with positions of maxima that only their gradients read in as few bytes as they need: these read each
    several times."""
    found = {n for n in graph.of_ops(("window",)) if n.attrs["how"] == "position"}
    if not found:
        return graph
    found -= {o.node for o in graph.outputs}
    for n in graph.nodes:
        found.difference_update(i for k, i in enumerate(n.inputs)
                                if not (n.op == "window" and n.attrs["how"] == "picked" and k))
    kinds = {n: _integer_for(math.prod(n.inputs[0].type.shape[-len(n.attrs["axes"]):])) for n in found
             if all(type(d) is int for d in n.inputs[0].type.shape[-len(n.attrs["axes"]):])}
    return changed(graph, {n: {"type": n.type.replace(dtype=t)} for n, t in kinds.items()})


def _integer_for(count: int) -> torch.dtype:
    return next(t for t in (torch.int16, torch.int32, torch.int64) if count <= torch.iinfo(t).max)


def _applies(n: Node) -> bool:
    if n.op != "aten_call" or n.attrs["target"].removeprefix("aten::") not in RULES or not n.inputs:
        return False
    kind = backend(n.inputs[0].type.device)
    return bool(kind.window_limits) and all(
        t is None or t.dtype in kind.dtypes and not t.is_empty for t in (*n.types, *(i.type for i in n.inputs)))


def _rewrite(b: Builder, n: Node, read: set) -> Node | tuple | None:
    """``read``: the results, of nodes with several, that anything reads."""
    first = len(b.nodes)
    if n.several:
        n = n.replace(type=tuple(t if k == 0 or (n.id, k) in read else None for k, t in enumerate(n.type)))
    made = RULES[n.attrs["target"].removeprefix("aten::")](b, n, *filled(n.attrs["args"], n.inputs))
    if made is None:
        del b.nodes[first:]
    return made


def window(b: Builder, how: str, operands: Sequence[Node], axes: Sequence[Axis], like: TensorType,
           **attrs: object) -> Node | None:
    """A window with the type ``like``; None where the device leaves it to the library."""
    if any(a.count is None for a in axes) or any(_inexact(a) for a in axes):
        return None
    count, limit = math.prod(a.count for a in axes), limit_of(how, axes, like)
    apart = how == "max" or how == "sum" and attrs.get("divisor") not in ("read", "inside")
    if apart and count > min(limit, backend(like.device).places_at_once) and sum(a.count > 1 for a in axes) > 1:
        made = _one_by_one(b, how, operands[0], axes, like, **attrs)
        if made is not None:
            return made
    if count > limit:
        return None
    entries = tuple(a.entry() for a in axes)
    return b.node("window", tuple(operands), {"how": how, "axes": entries, "shape": like.shape, **attrs}, like)


def limit_of(how: str, axes: Sequence[Axis], like: TensorType) -> int:
    """How many places an element may read on this device; 0 where the library is better."""
    axis = next((a for a in axes if not isinstance(a, Same)), axes[0])
    if how == "sum":
        name = axis.name
    else:
        name = f"{how} of shares" if isinstance(axis, (Shares, SharesBack)) else how
    limits = backend(like.device).window_limits
    if layout.memory_format(like) == "channels_last" and f"{name}, channels last" in limits:
        name += ", channels last"
    return limits.get(name, 0)


def _one_by_one(b: Builder, how: str, x: Node, axes: Sequence[Axis], like: TensorType,
                **attrs: object) -> Node | None:
    """The same along one axis after the other, from the last one on, with float32 between: fewer places in all."""
    wide = [k for k, a in enumerate(axes) if a.count > 1]
    if any(axes[k].count > limit_of(how, axes, like) for k in wide):
        return None
    lead = like.rank - len(axes)
    # Where much becomes little the outermost is first, so that neighbouring results still read neighbouring places.
    shrinks = how == "max" and _plain(axes[wide[0]].source, axes[wide[0]].size) and (
        axes[wide[0]].source >= 4 * axes[wide[0]].size)
    order = wide if shrinks else wide[::-1]
    for k in order:
        last = k == order[-1]
        now = [axes[j] if j == k or last and j not in wide else Same(n, n)
               for j, n in enumerate(x.type.shape[lead:])]
        shape = (*x.type.shape[:lead], *(a.size for a in now))
        t, given = like, attrs
        if not last:
            wider = torch.float32 if how == "sum" and like.dtype.itemsize == 2 else like.dtype
            t = TensorType(shape, _ordered_as(like, shape), wider, like.device)
            given = {"divisor": "axes"} if attrs.get("divisor") == "axes" else {}
        x = b.node("window", (x,), {"how": how, "axes": tuple(a.entry() for a in now), "shape": shape, **given}, t)
    return x


def _ordered_as(t: TensorType, shape: tuple) -> tuple:
    """Strides of a dense tensor of this shape whose dimensions lie in the order of those of ``t``."""
    strides: list = [0] * t.rank
    step: IntExpr = 1
    for d in sorted(range(t.rank), key=lambda d: (dims.hint(t.strides[d]), -d)):
        strides[d], step = step, step * shape[d]
    return tuple(strides)


def _inexact(a: Axis) -> bool:
    """Whether what eager's kernels look up might be other results than those that read a place."""
    return isinstance(a, ResizedBack) and a.how in ("nearest", "exact") and a.forward.nearest_place is None


def _ints(v: object, n: int, default: Sequence | None = None) -> tuple:
    values = tuple(several(v)) if v is not None else ()
    if not values:
        values = tuple(default or ())
    return values * n if len(values) == 1 else values


def _plain(*values: object) -> bool:
    return all(type(v) is int for v in values)


def _floats(*nodes: Node) -> bool:
    return all(n.type.dtype.is_floating_point for n in nodes)


# pooling


def _pool_axes(kind: type, sources: Sequence, sizes: Sequence, kernel: tuple, stride: tuple, padding: tuple,
               dilation: tuple = ()) -> list | None:
    if not _plain(*kernel, *stride, *padding, *dilation) or min((*stride, *kernel)) < 1:
        return None
    return [kind(*v) for v in zip(sources, sizes, kernel, stride, padding, dilation or (1,) * len(kernel))]


def _rank_of(n: Node) -> int:
    """How many dimensions an operator works on, by its name."""
    name = n.attrs["target"]
    return next(k for k in (1, 2, 3) if f"{k}d" in name)


def _avg(n: Node, args: tuple, kind: type, sources: Sequence, sizes: Sequence) -> tuple | None:
    """(axes, divisor) of an average pool."""
    k = len(sources)
    kernel, stride, padding, ceil_mode, include, divisor = (*args, *((), 0, False, True, None)[len(args) - 1 :])[:6]
    kernel = _ints(kernel, k)
    padding = _ints(padding, k)
    axes = _pool_axes(kind, sources, sizes, kernel, _ints(stride, k, kernel), padding)
    if axes is None or divisor is not None and not _plain(divisor):
        return None
    if divisor is not None:
        return axes, float(divisor)
    if not any(padding) and not ceil_mode:
        return axes, float(math.prod(kernel))
    if include and not ceil_mode:
        return axes, float(math.prod(kernel))
    return axes, "read" if include else "inside"


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(b: Builder, n: Node, x: Node, *args: object) -> Node | None:
    k = _rank_of(n)
    found = _floats(x) and _avg(n, args, Strided, x.type.shape[-k:], n.type.shape[-k:])
    return window(b, "sum", (x,), found[0], n.type, divisor=found[1]) if found else None


@rule("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(b: Builder, n: Node, g: Node, x: Node, *args: object) -> Node | None:
    k = _rank_of(n)
    found = _floats(g) and _avg(n, args, StridedBack, g.type.shape[-k:], n.type.shape[-k:])
    return window(b, "back", (g,), found[0], n.type, divisor=found[1]) if found else None


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(b: Builder, n: Node, x: Node, kernel: object, stride: object = (), padding: object = 0,
             dilation: object = 1, ceil_mode: bool = False) -> Node | None:
    axes = _floats(x) and _max_axes(n, Strided, x.type.shape, n.type.shape, kernel, stride, padding, dilation)
    return window(b, "max", (x,), axes, n.type) if axes else None


def _max_axes(n: Node, kind: type, sources: tuple, sizes: tuple, kernel: object, stride: object, padding: object,
              dilation: object) -> list | None:
    k = _rank_of(n)
    kernel = _ints(kernel, k)
    return _pool_axes(kind, sources[-k:], sizes[-k:], kernel, _ints(stride, k, kernel), _ints(padding, k),
                      _ints(dilation, k))


def _with_positions(b: Builder, n: Node, x: Node, axes: list) -> tuple | None:
    values = window(b, "max", (x,), axes, n.type[0])
    if values is None or n.type[1] is None:
        return None if values is None else (values, None)
    positions = window(b, "position", (x, values), axes, n.type[1])
    return None if positions is None else (values, positions)


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices")
def max_pool_with_indices(b: Builder, n: Node, x: Node, kernel: object, stride: object = (), padding: object = 0,
                          dilation: object = 1, ceil_mode: bool = False) -> tuple | None:
    axes = _floats(x) and _max_axes(n, Strided, x.type.shape, n.type[0].shape, kernel, stride, padding, dilation)
    return _with_positions(b, n, x, axes) if axes else None


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(b: Builder, n: Node, g: Node, x: Node, kernel: object, stride: object, padding: object,
                      dilation: object, ceil_mode: bool, positions: Node) -> Node | None:
    axes = _floats(g) and _max_axes(n, StridedBack, g.type.shape, n.type.shape, kernel, stride, padding, dilation)
    return window(b, "picked", (g, positions), axes, n.type) if axes else None


def _shares(kind: type, sources: tuple, sizes: tuple, k: int) -> list:
    return [kind(*v) for v in zip(sources[-k:], sizes[-k:])]


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "_adaptive_avg_pool3d")
def adaptive_avg_pool(b: Builder, n: Node, x: Node, size: object) -> Node | None:
    if not _floats(x):
        return None
    k = _rank_of(n)
    axes = _shares(Shares, x.type.shape, n.type.shape, k)
    even = all(dims.divisible(a.source, a.size) for a in axes)
    if even and all(_plain(a.source, a.size) for a in axes):
        whole = _rows_of_shares(b, x, axes, n.type)
        if whole is not None:
            return whole
    if even and all(a.count is not None for a in axes):
        return window(b, "sum", (x,), axes, n.type, divisor=float(math.prod(a.count for a in axes)))
    return window(b, "sum", (x,), axes, n.type, divisor="axes")


def _rows_of_shares(b: Builder, x: Node, axes: list, like: TensorType) -> Node | None:
    """Means of large shares, as reductions over dimensions of their own."""
    count, k = math.prod(a.count for a in axes), len(axes)
    if count < (backend(like.device).least_share or count + 1):
        return None
    lead = x.type.shape[:-k]
    parts = b.try_view(x, (*lead, *(s for a in axes for s in (a.size, a.count))))
    if parts is None:
        return None
    reduced = [len(lead) + 2 * d + 1 for d in range(k)]
    made = b.cast(b.div(b.reduce("sum", b.opmath(parts), reduced), float(count)), like.dtype)
    made.type = made.type.replace(strides=like.strides)
    return made


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(b: Builder, n: Node, g: Node, x: Node) -> Node | None:
    if not _floats(g):
        return None
    return window(b, "back", (g,), _shares(SharesBack, g.type.shape, n.type.shape, _rank_of(n)), n.type,
                  divisor="axes")


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: Builder, n: Node, x: Node, size: object) -> tuple | None:
    if not _floats(x):
        return None
    return _with_positions(b, n, x, _shares(Shares, x.type.shape, n.type[0].shape, _rank_of(n)))


@rule("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(b: Builder, n: Node, g: Node, x: Node, positions: Node) -> Node | None:
    if not _floats(g):
        return None
    return window(b, "picked", (g, positions), _shares(SharesBack, g.type.shape, n.type.shape, _rank_of(n)), n.type)


# resizing


_HOW = {"upsample_nearest": "nearest", "_upsample_nearest_exact": "exact", "upsample_linear": "linear",
        "upsample_bilinear": "linear", "upsample_trilinear": "linear", "upsample_bicubic": "cubic",
        "_upsample_bilinear2d_aa": "smooth linear", "_upsample_bicubic2d_aa": "smooth cubic"}


def _resize(name: str, how: str, k: int) -> None:
    """The rules of an operator and of its gradient."""

    def scales(args: tuple) -> tuple | None:
        """(whether corners are aligned, the factors)"""
        align = bool(args[0]) if how not in ("nearest", "exact") else False
        factors = args[0 if how in ("nearest", "exact") else 1 :]
        if len(factors) == 1 and isinstance(factors[0], (tuple, list)):
            factors = tuple(factors[0])
        factors = tuple(factors) or (None,) * k
        factors = (None,) * k if factors == (None,) else factors
        if len(factors) != k or not all(f is None or type(f) in (int, float) for f in factors):
            return None
        return align, tuple(None if f is None else float(f) for f in factors)

    def forward(b: Builder, n: Node, x: Node, size: object, *args: object) -> Node | None:
        found = scales(args)
        if found is None or not _floats(x) and how not in ("nearest", "exact"):
            return None
        wide = x.type.dtype is torch.float64
        axes = [Resized(s, o, how, found[0], f, wide) for s, o, f in zip(x.type.shape[2:], n.type.shape[2:], found[1])]
        if all(same_ints((a.source,), (a.size,)) for a in axes) and any(f not in (None, 1.0) for f in found[1]):
            return None
        return window(b, "sum", (x,), axes, n.type)

    def gradient(b: Builder, n: Node, g: Node, size: object, given: object, *args: object) -> Node | None:
        found = scales(args)
        if found is None or not _floats(g):
            return None
        wide = g.type.dtype is torch.float64
        axes = [ResizedBack(o, s, how, found[0], f, wide)
                for s, o, f in zip(n.type.shape[2:], g.type.shape[2:], found[1])]
        return window(b, "sum", (g,), axes, n.type)

    rule(name)(forward)
    rule(name + "_backward")(gradient)


for _prefix, _how in _HOW.items():
    for _k in (1, 2, 3):
        _name = _prefix if _prefix.endswith("aa") else f"{_prefix}{_k}d"
        _resize(_name, _how, 2 if _prefix.endswith("aa") else _k)


# edges


def _edges(n: Node, k: int, padding: object) -> list | None:
    """(before, after) for each of the last dimensions."""
    padding = tuple(several(padding))
    if len(padding) != 2 * k or not _plain(*padding) or min(padding) < 0:
        return None
    return [(padding[2 * (k - 1 - d)], padding[2 * (k - 1 - d) + 1]) for d in range(k)]


def _padded(b: Builder, n: Node, x: Node, padding: object, how: str, k: int) -> Node | None:
    pairs = _edges(n, k, padding)
    if pairs is None:
        return None
    return window(b, "sum", (x,), [Edge(s, o, lo, how) for s, o, (lo, _) in
                                   zip(x.type.shape[-k:], n.type.shape[-k:], pairs)], n.type)


@rule("pad")
def pad(b: Builder, n: Node, x: Node, padding: object, mode: str = "constant", value: object = None) -> Node | None:
    if mode not in ("reflect", "replicate", "circular"):
        return None
    return _padded(b, n, x, padding, mode, len(tuple(several(padding))) // 2)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(b: Builder, n: Node, x: Node, padding: object) -> Node | None:
    return _padded(b, n, x, padding, "reflect", _rank_of(n))


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(b: Builder, n: Node, x: Node, padding: object) -> Node | None:
    return _padded(b, n, x, padding, "replicate", _rank_of(n))


def _pad_backward(b: Builder, n: Node, g: Node, padding: object, how: str) -> Node | None:
    k = _rank_of(n)
    pairs = _edges(n, k, padding)
    if pairs is None or not _floats(g):
        return None
    return window(b, "sum", (g,), [EdgeBack(o, s, lo, hi, how) for s, o, (lo, hi) in
                                   zip(n.type.shape[-k:], g.type.shape[-k:], pairs)], n.type)


@rule("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def reflection_pad_backward(b: Builder, n: Node, g: Node, x: Node, padding: object) -> Node | None:
    return _pad_backward(b, n, g, padding, "reflect")


@rule("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(b: Builder, n: Node, g: Node, x: Node, padding: object) -> Node | None:
    return _pad_backward(b, n, g, padding, "replicate")


# columns and images


def _grid(image: Sequence, kernel: tuple, stride: tuple, padding: tuple, dilation: tuple) -> list:
    """How many windows there are in each direction."""
    return [(s + 2 * p - d * (k - 1) - 1) // t + 1
            for s, k, t, p, d in zip(image, kernel, stride, padding, dilation)]


@rule("im2col")
def im2col(b: Builder, n: Node, x: Node, kernel: object, dilation: object, padding: object,
           stride: object) -> Node | None:
    kernel, dilation, padding, stride = (_ints(v, 2) for v in (kernel, dilation, padding, stride))
    if not _plain(*kernel, *dilation, *padding, *stride):
        return None
    image, lead = x.type.shape[-2:], x.type.shape[:-2]
    sizes = _grid(image, kernel, stride, padding, dilation)
    axes = _pool_axes(Strided, image, sizes, kernel, stride, padding, dilation)
    like = TensorType.contiguous((*lead, *kernel, *sizes), x.type.dtype, x.type.device)
    if not axes or "columns" not in backend(x.type.device).window_limits:
        return None
    made = b.node("window", (x,), {"how": "columns", "axes": tuple(a.entry() for a in axes), "shape": like.shape}, like)
    made = b.try_view(made, n.type.shape)
    return made if made is None or same_ints(made.type.strides, n.type.strides) else b.clone(made, n.type.strides)


@rule("col2im")
def col2im(b: Builder, n: Node, x: Node, size: object, kernel: object, dilation: object, padding: object,
           stride: object) -> Node | None:
    kernel, dilation, padding, stride = (_ints(v, 2) for v in (kernel, dilation, padding, stride))
    if not _plain(*kernel, *dilation, *padding, *stride) or dilation != (1, 1) or not _floats(x):
        return None
    image, lead = n.type.shape[-2:], n.type.shape[:-2]
    sizes = _grid(image, kernel, stride, padding, dilation)
    axes = _pool_axes(StridedBack, sizes, image, kernel, stride, padding, dilation)
    columns = b.try_view(x, (*lead, *kernel, *sizes))
    return None if columns is None or not axes else window(b, "images", (columns,), axes, n.type)


# samples


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(b: Builder, n: Node, x: Node, grid: Node, mode: int, padding: int, align: bool) -> Node | None:
    k = x.type.rank - 2
    if not _floats(x, grid) or x.type.dtype is not grid.type.dtype or not _plain(mode, padding) or k not in (2, 3):
        return None
    if any(type(s) is int and s == 0 for s in x.type.shape) or mode == 2 and k == 3:
        return None
    axes = [Same(s, o) for s, o in zip(x.type.shape[2:], n.type.shape[2:])]
    return window(b, "sample", (x, grid), axes, n.type, mode=mode, padding=padding, align=bool(align))
