"""The prims that are not pointwise: the record of each, with its type rule, eager text and library form.

The names and records are the interface to the code generator.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit import torch_private
from jit.by_class import by_class
from jit.graph import layout
from jit.graph.dim_text import render
from jit.graph.dims import Dim, structurally_equal
from jit.graph.ir import Graph, Node, Ref, TensorType, contiguous_strides, same_ints, operator
from jit.graph.prim_info import IN_ALL, IN_FIRST, LOOKUP, MOVE, NOTHING, OTHERS, info, names, prim
from jit.graph import pointwise, windows  # noqa: F401  (they make records)

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.ir import Node

# text helpers


def literal(v: object) -> str:
    """Python text of an attribute value."""
    return (by_class(_TEXTS, v) or repr)(v)


def words(node: Node) -> str:
    """Python text of the number that a ``float_scalar`` is."""
    return f"from_words({literal(node.attrs['low'])}, {literal(node.attrs['high'])})"


def _size_list(v: Sequence[IntExpr]) -> str:
    return "[" + ", ".join(map(literal, v)) + "]"


_TEXTS: dict[type, Callable] = {
    Dim: lambda v: f"({render(v, 'py')})" if len(v.terms) > 1 or v.const else render(v, "py"),
    float: lambda v: repr(v) if math.isfinite(v) else f"float({str(v)!r})",
    complex: lambda v: f"complex({literal(v.real)}, {literal(v.imag)})",
    tuple: lambda v: f"({', '.join(map(literal, v))}{',' * (len(v) == 1)})",
    list: _size_list,
    torch.device: lambda v: f"torch.device({str(v)!r})",
    torch.Generator: lambda v: f"generator_{id(v)}",
}


def _factory(node: Node) -> str:
    return f"dtype={node.dtype}, device={literal(node.device)}"


# sources


prim("input", "input", lambda n, a: n.name, saves=NOTHING)
prim("tangent", "input", lambda n, a: n.name)
prim("scalar", "number", lambda n, a: f"torch.tensor({literal(n.attrs['value'])}, {_factory(n)})",
     library=lambda n, a: _filled(n), constant=True)
prim("float_scalar", "number", lambda n, a: f"torch.tensor({words(n)}, {_factory(n)})")
prim("full", "source", lambda n, a: f"torch.full({_size_list(n.shape)}, {literal(n.attrs['value'])}, {_factory(n)})",
     library=lambda n, a: _filled(n), constant=True, rounds=True)
prim("iota", "source", lambda n, a: f"torch.arange({literal(n.attrs['length'])}, {_factory(n)}) * "
                                    f"{literal(n.attrs['step'])} + {literal(n.attrs['start'])}",
     library=lambda n, a: _arange(n), rounds=True)
prim("from_words", "kernel", lambda n, a: f"from_words({a[0]}, {a[1]})", arity=2, of_words=True)  # see ``words``


def _filled(n: Node) -> tuple[str, str, tuple]:
    return "aten::full", "", (tuple(n.type.shape), n.attrs["value"], n.type.dtype, None, n.type.device)


def _arange(n: Node) -> tuple[str, str, tuple]:
    start, step = n.attrs["start"], n.attrs["step"]
    stop = start + n.attrs["length"] * step
    return "aten::arange", "start_step", (start, stop, step, n.type.dtype, None, n.type.device)


# views


def view(name: str, text, **facts: object) -> Callable:
    return prim(name, "view", text, **{"saves": NOTHING, "linear": IN_FIRST, "complex_gradient": True, "by_parts": True,
                                       **facts})


@view("permute", lambda n, a: f"{a[0]}.permute({_size_list(n.attrs['dims'])})", at_start=True)
def _permute(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    t, dims = types[0], attrs["dims"]
    return t.replace(shape=(t.shape[d] for d in dims), strides=(t.strides[d] for d in dims))


@view("reshape", lambda n, a: f"{a[0]}.view({_size_list(n.shape)})", at_start=True, in_order=True)
def _reshape(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    t = types[0]
    strides = layout.view_strides(t.shape, t.strides, attrs["shape"])
    if strides is None:
        raise layout.ShapeError(f"{t} cannot be viewed as {list(attrs['shape'])}")
    return t.replace(shape=attrs["shape"], strides=strides)


@view("expand", lambda n, a: f"{a[0]}.expand({_size_list(n.shape)})", at_start=True)
def _expand(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    return types[0].replace(shape=attrs["shape"], strides=layout.expand_strides(types[0], attrs["shape"]))


def _slice_text(n: Node, a: list[str]) -> str:
    dim, start, length, step = (n.attrs[k] for k in ("dim", "start", "length", "step"))
    stop = start + length * step if not (type(length) is int and length == 0) else start
    return f"{a[0]}[{':, ' * dim}{literal(start)}:{literal(stop)}{'' if step == 1 else ':' + literal(step)}]"


@view("slice", _slice_text)
def _slice(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    t, d = types[0], attrs["dim"]
    shape = t.shape[:d] + (attrs["length"],) + t.shape[d + 1 :]
    return t.replace(shape=shape, strides=t.strides[:d] + (t.strides[d] * attrs["step"],) + t.strides[d + 1 :])


@view("diagonal", lambda n, a: f"{a[0]}.diagonal({literal(n.attrs['offset'])}, {n.attrs['dim1']}, {n.attrs['dim2']})")
def _diagonal(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    t, offset, d1, d2 = types[0], attrs["offset"], attrs["dim1"], attrs["dim2"]
    rows, cols = t.shape[d1], t.shape[d2]
    rows, cols = (rows, cols - offset) if offset >= 0 else (rows + offset, cols)
    length = rows if rows <= cols else cols
    length = length if length >= 0 else 0
    keep = [d for d in range(t.rank) if d not in (d1, d2)]
    return t.replace(shape=(*(t.shape[d] for d in keep), length),
                     strides=(*(t.strides[d] for d in keep), t.strides[d1] + t.strides[d2]))


@view("as_strided", lambda n, a: f"{a[0]}.as_strided({_size_list(n.attrs['size'])}, "
                                 f"{_size_list(n.attrs['stride'])}, {literal(n.attrs['offset'])})",
      library=lambda n, a: ("aten::as_strided", "", (a[0], tuple(n.attrs["size"]), tuple(n.attrs["stride"]),
                                                     n.attrs["offset"])), by_parts=False)
def _as_strided(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    return types[0].replace(shape=attrs["size"], strides=attrs["stride"])


@view("alias", lambda n, a: f"torch.ops.aten.alias({a[0]})", at_start=True, same_dims=True, in_order=True)
def _alias(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    return types[0]


@view("detach", lambda n, a: f"{a[0]}.detach()", at_start=True, same_dims=True, in_order=True, complex_gradient=False,
      plain="alias")
def _detach(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """The same values and memory; gradients stop here."""
    return types[0]


def _reinterpret_text(n: Node, a: list[str]) -> str:
    how = n.attrs["how"]
    return f"{a[0]}.view({n.dtype})" if how == "dtype" else f"torch.{how}({a[0]})"


def _reinterpret_library(n: Node, a: list[str]) -> tuple[str, str, tuple]:
    how = n.attrs["how"]
    if how == "dtype":
        return "aten::view", "dtype", (a[0], n.type.dtype)
    return "aten::_conj" if how == "conj" else f"aten::{how}", "", (a[0],)


@view("reinterpret", _reinterpret_text, library=_reinterpret_library, in_kernels=False, linear=None,
      by_parts=False)
def _reinterpret(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """The same memory read as another dtype. ``how``: dtype, view_as_real, view_as_complex, real, imag or conj.

    Kernels cannot read memory as two dtypes: it is a library call that gives a view.
    """
    return layout.reinterpreted(types[0], attrs["how"], dtype)


# copies


@prim("custom_gradient", "gradient", lambda n, a: f"_custom_gradient({', '.join(a)})", plain="cast")
def _custom_gradient(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """``y, x0, d0, x1, d1, ...``: the value of y, whose gradient with respect to each x is ``d``, summed where x was
    broadcast, and nothing else. A last x without ``d`` has a gradient that is undefined. Where d is the number zero, x
    may be of any shape."""
    return types[0]


@prim("gate", "gradient", lambda n, a: a[0], saves=NOTHING)
def _gate(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """``x, *tangents``: x, in a backward where one of these tangents is given; nothing where none is. See
    ``autodiff.narrow``."""
    return types[0]


@prim("redistributed", "gradient", lambda n, a: a[0], plain="cast", saves=NOTHING)
def _redistributed(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """``y, x``: the value of y, which processes have made of x together; its gradient goes ``way`` back to x, times
    ``factor``, and nowhere else. See ``collectives``."""
    return types[0]


prim("autograd_function", "gradient", lambda n, a: n.name, in_kernels=False)  # see ``functions``
prim("gradient", "gradient", lambda n, a: n.name, in_kernels=False)  # see ``backward``
prim("mapped", "gradient", lambda n, a: n.name, in_kernels=False, saves=NOTHING)  # see ``maps``, and the next one
prim("collected", "gradient", lambda n, a: n.name, in_kernels=False, saves=NOTHING)


@prim("clone", "copy", lambda n, a: f"{a[0]}.clone()", library=lambda n, a: ("aten::clone", "", a), cost=MOVE,
      same_dims=True, in_order=True, saves=NOTHING, linear=IN_FIRST, complex_gradient=True, by_parts=True)
def _clone(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    return layout.empty_like(types[0])


@prim("flip", "copy", lambda n, a: f"{a[0]}.flip({_size_list(n.attrs['dims'])})",
      library=lambda n, a: ("aten::flip", "", (a[0], tuple(n.attrs["dims"]))), same_dims=True, saves=NOTHING,
      linear=IN_FIRST, complex_gradient=True, by_parts=True)
def _flip(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    return layout.empty_like(types[0])


@prim("cat", "copy", lambda n, a: f"torch.cat([{', '.join(a)}], {n.attrs['dim']})",
      library=lambda n, a: ("aten::cat", "", (a, n.attrs["dim"])), cost=LOOKUP, saves=NOTHING, linear=IN_ALL,
      complex_gradient=True, by_parts=True)
def _cat(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    d = attrs["dim"]
    total = types[0].shape[d]
    for t in types[1:]:
        total = total + t.shape[d]
        if t.rank != types[0].rank:
            raise layout.ShapeError(f"Tensors must have same number of dimensions: got {types[0].rank} and {t.rank}")
        for k in range(t.rank):
            if k != d and not structurally_equal(t.shape[k], types[0].shape[k]) and not t.shape[k] == types[0].shape[k]:
                raise layout.ShapeError(f"Sizes of tensors must match except in dimension {d}. Expected size "
                                        f"{types[0].shape[k]} but got size {t.shape[k]}")
    shape = types[0].shape[:d] + (total,) + types[0].shape[d + 1 :]
    formats = {layout.memory_format(t) for t in types}
    strides = layout.channels_last_strides(shape) if formats == {"channels_last"} else contiguous_strides(shape)
    return types[0].replace(shape=shape, strides=strides, dtype=dtype)


def _pad_text(n: Node, a: list[str]) -> str:
    pads = [p for pair in reversed(n.attrs["pads"]) for p in pair]
    return f"torch.nn.functional.pad({a[0]}, {_size_list(pads)}, value={literal(n.attrs['value'])})"


def _pad_library(n: Node, a: list[str]) -> tuple[str, str, tuple]:
    pads = tuple(p for pair in reversed(n.attrs["pads"]) for p in pair)
    return "aten::constant_pad_nd", "", (a[0], pads, n.attrs["value"])


@prim("constant_pad", "copy", _pad_text, _pad_library, saves=NOTHING, complex_gradient=True)
def _constant_pad(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """``pads``: one (before, after) pair for each dimension, from the first to the last."""
    t = types[0]
    shape = tuple(s + lo + hi for s, (lo, hi) in zip(t.shape, attrs["pads"]))
    strides = (layout.channels_last_strides(shape) if layout.memory_format(t) == "channels_last"
               else contiguous_strides(shape))
    return t.replace(shape=shape, strides=strides)


# reductions


def reduced_shape(shape: tuple[IntExpr, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[IntExpr, ...]:
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(shape))
    return tuple(s for d, s in enumerate(shape) if d not in dims)


def _reduction_rule(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    shape = reduced_shape(types[0].shape, attrs["dims"], attrs["keepdim"])
    return TensorType.contiguous(shape, dtype or types[0].dtype, types[0].device)


def _sum_text(n: Node, a: list[str]) -> str:
    return f"torch.sum({a[0]}, {_size_list(n.attrs['dims'])}, {n.attrs['keepdim']}, dtype={n.dtype})"


def _one_by_one_text(function: str, dtype_argument: bool) -> Callable:
    """Reductions whose eager form takes one dimension: reduce from the last dimension to the first, then restore the
    shape."""

    def text(n: Node, a: list[str]) -> str:
        result = a[0]
        extra = f", dtype={n.dtype}" if dtype_argument else ""
        for d in reversed(n.attrs["dims"]):
            result = f"torch.{function}({result}, {d}, {n.attrs['keepdim']}{extra})"
        return result if n.attrs["dims"] else f"{result}.to({n.dtype}, copy=True)"

    return text


def _extremum_text(n: Node, a: list[str]) -> str:
    if not n.attrs["dims"]:
        return f"{a[0]}.clone()"
    if n.attrs.get("nan_hits") and not n.attrs["keepdim"]:
        return f"torch.{n.op[1:]}({a[0]})"
    return f"torch.{n.op}({a[0]}, {_size_list(n.attrs['dims'])}, {n.attrs['keepdim']})"


def _arg_text(n: Node, a: list[str]) -> str:
    dims, rank = n.attrs["dims"], n.inputs[0].type.rank
    if rank == 0:
        return f"torch.{n.op}({a[0]})"
    if len(dims) == 1:
        return f"torch.{n.op}({a[0]}, {dims[0]}, {n.attrs['keepdim']})"
    return f"torch.{n.op}({a[0]}).view({_size_list(n.shape)})"


def _sum_library(n: Node, a: list[str]) -> tuple[str, str, tuple]:
    return "aten::sum", "dim_IntList", (a[0], tuple(n.attrs["dims"]), n.attrs["keepdim"], n.type.dtype)


def _extremum_library(n: Node, a: list[str]) -> tuple[str, str, tuple]:
    return f"aten::{n.op}", "", (a[0], tuple(n.attrs["dims"]), n.attrs["keepdim"])


def _one_dim_library(overload, with_dtype: bool = False) -> Callable:
    """Of reductions whose operator takes one dimension; None for several."""

    def library(n: Node, a: list[str]) -> tuple | None:
        if len(n.attrs["dims"]) != 1:
            return None
        return f"aten::{n.op}", overload, (a[0], n.attrs["dims"][0], n.attrs["keepdim"],
                                           *((n.type.dtype,) if with_dtype else ()))

    return library


prim("sum", "reduction", _sum_text, _sum_library, combine="sum", of_nothing=0, rounds=True, saves=NOTHING,
     linear=IN_FIRST, complex_gradient=True)
prim("prod", "reduction", _one_by_one_text("prod", True), _one_dim_library("dim_int", True), combine="prod",
     of_nothing=1, rounds=True)
prim("amax", "reduction", _extremum_text, _extremum_library, combine="max")
prim("amin", "reduction", _extremum_text, _extremum_library, combine="min")
prim("argmax", "reduction", _arg_text, _one_dim_library(""), combine="argmax", result=torch.int64)
prim("argmin", "reduction", _arg_text, _one_dim_library(""), combine="argmin", result=torch.int64)
prim("any", "reduction", _one_by_one_text("any", False), _one_dim_library("dim"), combine="any", of_nothing=0,
     result=torch.bool)
prim("all", "reduction", _one_by_one_text("all", False), _one_dim_library("dim"), combine="all", of_nothing=1,
     result=torch.bool)
# The sum of squares about the mean, of ``count`` values: what ``codegen.moments`` makes of such a sum.
prim("squares", "reduction", lambda n, a: f"({a[0]}.var({_size_list(n.attrs['dims'])}, correction=0, "
                                          f"keepdim={n.attrs['keepdim']}) * {n.attrs['count']})", of_nothing=0)


def _none(n: Node, a: list[str]) -> None:
    """There is no operator that gives this alone."""


def _scan_text(function: str, part: str = "") -> Callable:
    return lambda n, a: f"torch.{function}({a[0]}, {n.attrs['dim']}){part}"


@prim("cumsum", "scan", lambda n, a: f"torch.cumsum({a[0]}, {n.attrs['dim']}, dtype={n.dtype})",
      library=lambda n, a: ("aten::cumsum", "", (a[0], n.attrs["dim"], n.type.dtype)), combine="sum", rounds=True,
      same_dims=True, saves=NOTHING, linear=IN_FIRST)
def _cumsum(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    return TensorType.contiguous(types[0].shape, dtype or types[0].dtype, types[0].device)


prim("cumprod", "scan", lambda n, a: f"torch.cumprod({a[0]}, {n.attrs['dim']}, dtype={n.dtype})",
     library=lambda n, a: ("aten::cumprod", "", (a[0], n.attrs["dim"], n.type.dtype)), combine="prod", rounds=True,
     same_dims=True)(_cumsum)
prim("cummax", "scan", _scan_text("cummax", ".values"), _none, combine="max", same_dims=True)(_cumsum)
prim("cummin", "scan", _scan_text("cummin", ".values"), _none, combine="min", same_dims=True)(_cumsum)
prim("logcumsumexp", "scan", _scan_text("logcumsumexp"),
     library=lambda n, a: ("aten::logcumsumexp", "", (a[0], n.attrs["dim"])), combine="logaddexp",
     of_nothing=-math.inf, rounds=True, same_dims=True)(_cumsum)


@prim("cummax_at", "scan", _scan_text("cummax", ".indices"), _none, combine="argmax", result=torch.int64,
      same_dims=True, saves=NOTHING)
@prim("cummin_at", "scan", _scan_text("cummin", ".indices"), _none, combine="argmin", result=torch.int64,
      same_dims=True, saves=NOTHING)
def _cum_at(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """Where the running extreme stands: the last of equal ones."""
    return TensorType.contiguous(types[0].shape, torch.int64, types[0].device)


@prim("sort_keys", "scan", lambda n, a: f"torch.sort({a[0]}, {n.attrs['dim']}).values.narrow({n.attrs['dim']}, "
                                        f"{n.attrs['start']}, {n.attrs['length']})", _none, combine="sort",
      saves=NOTHING)
def _sort_keys(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """Integers in ascending order along ``dim``, of which ``length`` are kept from number ``start`` on."""
    t, d = types[0], attrs["dim"]
    return TensorType.contiguous((*t.shape[:d], attrs["length"], *t.shape[d + 1 :]), t.dtype, t.device)


# indexing


@prim("gather", "index", lambda n, a: f"torch.gather({a[0]}, {n.attrs['dim']}, {a[1]})",
      library=lambda n, a: ("aten::gather", "", (a[0], n.attrs["dim"], a[1], False)), checks=True, cost=LOOKUP,
      saves=(OTHERS,), linear=IN_FIRST, by_parts=True)
def _gather(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    return TensorType.contiguous(types[1].shape, types[0].dtype, types[0].device)


def _index_text(n: Node, a: list[str]) -> str:
    if not n.attrs.get("wrap", True):
        return (f"torch.index_select({a[0]}, {n.attrs['dims'][0]}, {a[1]})" if n.inputs[1].type.rank == 1
                else f"torch.embedding({a[0]}, {a[1]})")
    lead = ":, " * n.attrs["dims"][0]
    return f"{a[0]}[{lead}{', '.join(a[1:])}{',' if len(a) == 2 else ''}]"


def _index_library(n: Node, a: list[str]) -> tuple[str, str, tuple[Ref, tuple[Ref, ...]]]:
    x, *indices = a
    if n.attrs.get("wrap", True):
        return "aten::index", "Tensor", (x, (None,) * n.attrs["dims"][0] + tuple(indices))
    if n.inputs[1].type.rank == 1:
        return "aten::index_select", "", (x, n.attrs["dims"][0], *indices)
    return "aten::embedding", "", a


@prim("index", "index", _index_text, _index_library, checks=True, cost=LOOKUP, saves=(OTHERS,), linear=IN_FIRST,
      by_parts=True)
def _index(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """Advanced indexing on consecutive dimensions ``dims``; the index tensors have one common shape. With ``wrap``
    false, negative indices are out of range: ``index_select``, or ``embedding`` where the index is not a vector."""
    x, dims = types[0], attrs["dims"]
    index = types[1].shape
    before, after = dims[0], x.rank - dims[-1] - 1
    shape = x.shape[:before] + index + x.shape[dims[-1] + 1 :]
    source = x.replace(shape=shape, strides=x.strides[:before] + (0,) * len(index) + x.strides[dims[-1] + 1 :])
    spread = []
    # Reshaped, so that their dimensions of one element have strides, which count in the order of those of the result.
    for t in types[1:]:
        own = (1,) * before + t.shape + (1,) * after
        spread.append(t.replace(shape=own, strides=layout.view_strides(t.shape, t.strides, own)))
    return x.replace(shape=shape, strides=layout.iterator_strides(shape, [source, *spread]))


_EXTREMES = {"max": "amax", "min": "amin"}


def _put_text(n: Node, a: list[str]) -> str:
    if n.attrs["combine"] in _EXTREMES:
        return f"torch.index_reduce({a[0]}, {n.attrs['dims'][0]}, {a[2]}, {a[1]}, '{_EXTREMES[n.attrs['combine']]}')"
    lead = "None, " * n.attrs["dims"][0]
    return f"torch.ops.aten.index_put({a[0]}, [{lead}{', '.join(a[2:])}], {a[1]}, {n.attrs['combine'] == 'sum'})"


def _put_library(n: Node, a: tuple) -> tuple[str, str, tuple]:
    if n.attrs["combine"] in _EXTREMES:
        return "aten::index_reduce", "", (a[0], n.attrs["dims"][0], a[2], a[1], _EXTREMES[n.attrs["combine"]])
    return "aten::index_put", "", (a[0], (None,) * n.attrs["dims"][0] + tuple(a[2:]), a[1], n.attrs["combine"] == "sum")


@prim("put", "scatter", _put_text, _put_library, checks=True, rounds=True, cost=LOOKUP, saves=NOTHING)
def _put(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """``x, values, *index tensors``: x with the values put to, or added at, (``combine``: "set" or "sum") the elements
    that ``index`` would read; or the larger or smaller of both ("max", "min"), of integers at one index tensor."""
    return types[0].replace(strides=layout.preserved_strides(types[0]))


def _scatter_text(n: Node, a: list[str]) -> str:
    if n.attrs["combine"] in _EXTREMES:
        return f"torch.scatter_reduce({a[0]}, {n.attrs['dim']}, {a[2]}, {a[1]}, '{_EXTREMES[n.attrs['combine']]}')"
    name = "scatter_add" if n.attrs["combine"] == "sum" else "scatter"
    return f"torch.{name}({a[0]}, {n.attrs['dim']}, {a[2]}, {a[1]})"


def _scatter_library(n: Node, a: tuple) -> tuple[str, str, tuple]:
    given = (a[0], n.attrs["dim"], a[2], a[1])
    if n.attrs["combine"] in _EXTREMES:
        return "aten::scatter_reduce", "two", (*given, _EXTREMES[n.attrs["combine"]])
    return ("aten::scatter_add", "", given) if n.attrs["combine"] == "sum" else ("aten::scatter", "src", given)


@prim("scatter", "scatter", _scatter_text, _scatter_library, checks=True, rounds=True, cost=LOOKUP, saves=NOTHING)
def _scatter(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """``x, values, index``, the latter two of one shape: as ``put``, for the elements that ``gather`` would read."""
    return TensorType.contiguous(types[0].shape, types[0].dtype, types[0].device)


# library calls


def template_text(template: object, a: list[str]) -> str:
    """Python text of an ``aten_call`` argument template."""
    write = by_class(_TEMPLATES, template)
    return literal(template) if write is None else write(template, a)


def _several_text(templates: Sequence, a: list[str]) -> str:
    return "[" + ", ".join(template_text(t, a) for t in templates) + "]"


_TEMPLATES: dict[type, Callable] = {
    Ref: lambda t, a: a[t.index], list: _several_text, tuple: _several_text,
    Graph: lambda t, a: repr(t.python()),
    dict: lambda t, a: "{" + ", ".join(f"{k!r}: {template_text(v, a)}" for k, v in t.items()) + "}",
}


@functools.lru_cache(4096)
def keyword_names(op: object) -> tuple:
    """For each argument of an operator in schema order: its name when it is keyword-only, else None."""
    return tuple(a.name if a.kwarg_only else None for a in torch_private.schema(op).arguments)


def _operator_text(target: str, overload: str, args: tuple[object, ...],
                   a: list[str]) -> tuple[str, list[str], list[tuple[str, ...]]]:
    """(operator, positional argument texts, keyword argument texts)."""
    positional, keyword = [], []
    for name, t in zip(keyword_names(operator(target, overload)), args):
        text = template_text(t, a)
        if name is None:
            positional.append(text)
        else:
            keyword.append((name, text))
    packet, overload = f"torch.ops.{target.replace('::', '.')}", overload or "default"
    return f"getattr({packet}, {overload!r})" if iskeyword(overload) else f"{packet}.{overload}", positional, keyword


# Attention whose kernels are ours, with graphs among the arguments: see ``passes.attention``.
FUSED_ATTENTION = ("jit::attention", "jit::attention_backward")
# Sums of rows at places that data decide: see ``passes.grouped``.
GROUPED = ("jit::place_ranks", "jit::place_order", "jit::part_sums", "jit::row_sums")
PART = 128  # positions whose sum is kept where all of them belong to one row
COMPUTED_HERE = FUSED_ATTENTION + GROUPED


def _aten_text(n: Node, a: list[str]) -> str:
    if n.attrs["target"] == "jit::vjp":
        return _replay_text(n, a)
    if n.attrs["target"] in COMPUTED_HERE:
        return f"_{n.attrs['target'][5:]}({', '.join(template_text(t, a) for t in n.attrs['args'])})"
    op, positional, keyword = _operator_text(n.attrs["target"], n.attrs["overload"], n.attrs["args"], a)
    return f"{op}({', '.join([*positional, *(f'{k}={v}' for k, v in keyword)])})"


def _replay_text(n: Node, a: list[str]) -> str:
    """The gradient of an operator by PyTorch's autograd; see ``autodiff.replay``."""
    target, overload, args, wanted, present, *given = n.attrs["args"]
    op, positional, keyword = _operator_text(target, overload, args, a)
    given = iter(given)
    tangents = [template_text(next(given), a) if p else "None" for p in present]
    named = "{" + ", ".join(f"{k!r}: {v}" for k, v in keyword) + "}"
    return (
        f"_vjp({op}, [{', '.join(positional)}], {named}, [{', '.join(a[k] for k in wanted)}], [{', '.join(tangents)}])")


prim("aten_call", "call", _aten_text, in_kernels=False, complex_gradient=True)


@prim("getitem", "part", lambda n, a: f"{a[0]}[{n.attrs['index']}]", in_kernels=False, saves=NOTHING,
      linear=IN_FIRST, complex_gradient=True)
def _getitem(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None):
    return types[0][attrs["index"]]


# what the records say

VIEWS = names(kind="view")
POINTWISE = names(kind="pointwise")
REDUCTIONS = names(kind="reduction")
SCANS = names(kind="scan")
SCATTERS = names(kind="scatter")


def _pointwise_rule(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    shape = layout.broadcast_shapes(*(t.shape for t in types))
    device = next((t.device for t in types if t.rank), types[0].device)
    return TensorType(shape, layout.iterator_strides(shape, types), dtype or types[-1].dtype, device)


def base_of(node: Node) -> Node:
    """The node whose memory a chain of views shows."""
    while node.op in VIEWS:
        node = node.inputs[0]
    return node


def infer(op: str, types: tuple, attrs: dict, dtype: torch.dtype | None = None) -> TensorType:
    """The type that prim ``op`` gives to inputs of these types; None where there is no rule."""
    p = info(op)
    if p.kind == "pointwise":
        return _pointwise_rule(types, attrs, p.result or dtype)
    if p.kind == "reduction":
        return _reduction_rule(types, attrs, dtype or p.result)
    return p.infer and p.infer(types, attrs, dtype)


@functools.lru_cache(4096)
def _compiled(text: str):
    return compile(text, "<eager form of a prim>", "eval")


def evaluate(node: Node, operands, **functions: object) -> torch.Tensor:
    """The value of a pointwise prim by its eager form. ``operands`` are tensors, or numbers where that takes them;
    ``functions`` are those of the form's that are not PyTorch's."""
    names = [f"x{k}" for k in range(len(operands))]
    scope = {"torch": torch, **functions, **dict(zip(names, operands))}
    return eval(_compiled(info(node.op).text(node, names)), scope)


def library_form(node: Node):
    """(target, overload, argument template) of the ``aten_call`` that computes the same as a prim, or None."""
    p, operands = info(node.op), tuple([Ref(k) for k in range(len(node.inputs))])
    if p.library is not None:
        return p.library(node, operands)
    if p.kind != "pointwise" or not hasattr(torch.ops.aten, node.op):
        return None
    return f"aten::{node.op}", _overload_of_tensors(node.op, p.arity), operands


@functools.lru_cache(256)
def _overload_of_tensors(name: str, arity: int) -> str:
    """The overload of ``aten::name`` that takes so many tensors."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        given = [a for a in torch_private.schema(getattr(packet, overload)).arguments if not a.has_default_value()]
        if len(given) == arity and all(str(a.type) == "Tensor" and a.alias_info is None for a in given):
            return "" if overload == "default" else overload
    raise KeyError(name)


def strides_agree(a: TensorType, b: TensorType) -> bool:
    """Whether strides are equal wherever they matter, that is for sizes other than 1 in tensors that have elements."""
    if a.is_empty:
        return same_ints(a.shape, b.shape)
    return all(structurally_equal(s, t) or (type(n) is int and n == 1)
               for n, s, t in zip(a.shape, a.strides, b.strides)) and same_ints(a.shape, b.shape)
