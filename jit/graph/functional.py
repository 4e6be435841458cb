"""Torch functions that are written in Python: direct entries for the frequent ones, and a way to run any other on
proxies."""

from __future__ import annotations

import string
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch
import torch.nn.functional as F

from jit import torch_private
from jit.devices import backend
from jit.errors import Unsupported
from jit.graph.dims import Dim, specialize
from jit.graph.handles import TensorHandle
from jit.graph.nested import holds, replaced, unpacked
from jit.graph.op_info import op_info
from jit.graph.ops.contractions import contraction_order
from jit.graph.ir import same_ints
from jit.graph.layout import broadcast_shapes
from jit.graph.proxy import Proxy, call, unwrap, wrap
from jit.graph.registry import python_function

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.tracer import Tracer


def _isinstance(obj: int | tuple[int, ...] | Proxy, cls) -> bool:
    """``isinstance`` to which proxies are tensors, and sizes that are symbols integers."""
    classes = cls if isinstance(cls, tuple) else (cls,)
    if type(obj) is Proxy:
        return any(c is torch.Tensor or c is object or c is Proxy for c in classes)
    return type(obj) is Dim and int in classes or isinstance(obj, cls)


_OVERRIDES = {
    "isinstance": _isinstance,
    "has_torch_function": lambda *args: False,
    "has_torch_function_unary": lambda *args: False,
    "has_torch_function_variadic": lambda *args: False,
}
_tracers: list = []  # the tracers for which Python functions are running, innermost last


class _Namespace:
    """Stands for the module ``torch``, or a namespace of native functions, in rebound functions. Recorded are its
    factories, and calls with sizes that are symbols, which PyTorch's own parser of arguments does not take."""

    def __init__(self, module: object) -> None:
        self.module = module

    def __getattr__(self, name: str) -> object:
        value = getattr(self.module, name)
        if name in _NATIVE:
            return _Namespace(value)
        if not isinstance(value, types.BuiltinFunctionType):
            return value
        factory = op_info(name).factory

        def native(*args: object, **kwargs: object) -> object:
            recorded = factory or holds(Dim, (args, kwargs))
            return call(_tracers[-1], value, args, kwargs) if recorded else value(*args, **kwargs)

        return native


_NATIVE = ("_C", "_nn", "_VF")
_STAND_INS = {id(m): _Namespace(m) for m in (torch, *(getattr(torch, n) for n in _NATIVE if hasattr(torch, n)))}
_namespaces: dict[int, dict] = {}
_rebound: dict = {}


def _namespace(original: dict) -> dict:
    """A module's globals in which override checks say no and every function of the module is rebound."""
    found = _namespaces.get(id(original))
    if found is None:
        found = _namespaces[id(original)] = dict(original)
        for name, value in original.items():
            if isinstance(value, types.FunctionType) and value.__globals__ is original:
                found[name] = rebind(value)
        found.update((k, v) for k, v in _OVERRIDES.items() if k == "isinstance" or k in original)
        found.update((name, _STAND_INS[id(value)]) for name, value in original.items() if id(value) in _STAND_INS)
    return found


def rebind(fn: types.FunctionType) -> types.FunctionType:
    """A copy of a Python function of PyTorch, and of the functions it closes over, without override checks."""
    namespace = _namespace(fn.__globals__)
    copy = _rebound.get(fn)
    if copy is None:
        cells = None if fn.__closure__ is None else tuple(types.CellType() for _ in fn.__closure__)
        copy = _rebound[fn] = types.FunctionType(fn.__code__, namespace, fn.__name__, fn.__defaults__, cells)
        copy.__kwdefaults__ = fn.__kwdefaults__
        for cell, original in zip(cells or (), fn.__closure__ or ()):
            _fill_cell(cell, original)
    return copy


def _fill_cell(cell: types.CellType, original: types.CellType) -> None:
    try:
        value = original.cell_contents
    except ValueError:
        return
    is_torch = isinstance(value, types.FunctionType) and (value.__module__ or "").startswith("torch.")
    cell.cell_contents = rebind(value) if is_torch else value


def run_python(fn: Callable, rebound: bool = True) -> Callable:
    """A traced form of a Python function of PyTorch: its own code, run on proxies and without the override checks."""
    body = rebind(fn) if rebound else fn

    def traced(tracer: Tracer, *args: TensorHandle | IntExpr | tuple[int, ...],
               **kwargs: object) -> TensorHandle | tuple[TensorHandle, ...]:
        _tracers.append(tracer)
        mark = tracer.journal.checkpoint()
        try:
            with torch_private.WithTorchFunction():
                result = body(*(_shallow_wrap(tracer, a) for a in args),
                              **{k: _shallow_wrap(tracer, v) for k, v in kwargs.items()})
        except (TypeError, AttributeError, ValueError) as error:
            # torch's own argument parser does not take Dims, and some functions look into a tensor's internals.
            if holds(Dim, (args, kwargs)):
                tracer.journal.rollback(mark)
                return traced(tracer, *replaced(Dim, specialize, args), **replaced(Dim, specialize, kwargs))
            if isinstance(error, ValueError):
                raise
            if tracer.env.symbols:  # its own code, executed, may do with a size that is a symbol what a Dim refuses
                raise Unsupported(f"{fn.__name__}: {error}", kind="torch-argument") from error
            raise Unsupported(f"{fn.__name__}: {error}", kind="unknown-function") from error
        finally:
            _tracers.pop()
        return unwrap(result)

    traced.__name__ = fn.__name__
    return traced


def _shallow_wrap(tracer: Tracer, v: object) -> object:
    if isinstance(v, TensorHandle) or type(v) in (list, tuple):
        return wrap(tracer, v)
    return v


def _reduction(reduction: str, size_average=None, reduce=None) -> int:
    if size_average is not None or reduce is not None:
        reduction = torch_private.reduction.legacy_get_string(size_average, reduce, emit_warning=False)
    return torch_private.reduction.get_enum(reduction)


@python_function(F.dropout)
def dropout(t: Tracer, input: TensorHandle, p: float | int = 0.5, training: bool = True,
            inplace: bool = False) -> TensorHandle:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if inplace and training and p:
        return t.call_op("dropout_", (input, p, training), {})
    return t.call_op("dropout", (input, p, training), {})


@python_function(F.relu)
def relu(t: Tracer, input: TensorHandle, inplace: bool = False) -> TensorHandle:
    return t.call_op("relu_" if inplace else "relu", (input,), {})


@python_function(F.silu)
def silu(t: Tracer, input: TensorHandle, inplace: bool = False) -> TensorHandle:
    return t.call_op("silu_" if inplace else "silu", (input,), {})


@python_function(F.mish)
def mish(t, input: TensorHandle, inplace: bool = False):
    return t.call_op("mish_" if inplace else "mish", (input,), {})


@python_function(F.leaky_relu)
def leaky_relu(t: Tracer, input: TensorHandle, negative_slope: float = 0.01, inplace: bool = False) -> TensorHandle:
    return t.call_op("leaky_relu_" if inplace else "leaky_relu", (input, negative_slope), {})


@python_function(F.sigmoid)
def sigmoid(t, input: TensorHandle):
    return t.call_op("sigmoid", (input,), {})


@python_function(F.tanh)
def tanh(t, input: TensorHandle):
    return t.call_op("tanh", (input,), {})


@python_function(F.softmax)
def softmax(t: Tracer, input: TensorHandle, dim: IntExpr | None = None, _stacklevel: int = 3,
            dtype: torch.dtype | None = None) -> TensorHandle:
    return t.call_op("softmax", (input, _implicit_dim(input) if dim is None else dim, dtype), {})


@python_function(F.log_softmax)
def log_softmax(t: Tracer, input: TensorHandle, dim: int | None = None, _stacklevel: int = 3,
                dtype: torch.dtype | None = None) -> TensorHandle:
    return t.call_op("log_softmax", (input, _implicit_dim(input) if dim is None else dim, dtype), {})


def _implicit_dim(x: TensorHandle) -> int:
    return 0 if x.ndim in (0, 1, 3) else 1


@python_function(F.layer_norm)
def layer_norm(t: Tracer, input: TensorHandle, normalized_shape: Sequence[IntExpr], weight: TensorHandle | None = None,
               bias: TensorHandle | None = None, eps: float = 1e-5) -> TensorHandle:
    return t.call_op("layer_norm", (input, normalized_shape, weight, bias, eps), {})


@python_function(F.rms_norm)
def rms_norm(t: Tracer, input: TensorHandle, normalized_shape: tuple[IntExpr, ...], weight: TensorHandle | None = None,
             eps: float | None = None) -> TensorHandle:
    return t.call_op("rms_norm", (input, normalized_shape, weight, eps), {})


@python_function(F.group_norm)
def group_norm(t: Tracer, input: TensorHandle, num_groups: int, weight: TensorHandle | None = None,
               bias: TensorHandle | None = None, eps: float = 1e-5) -> TensorHandle:
    if input.ndim < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.ndim}")
    return t.call_op("group_norm", (input, num_groups, weight, bias, eps), {})


@python_function(F.batch_norm)
def batch_norm(t: Tracer, input: TensorHandle, running_mean: TensorHandle | None, running_var: TensorHandle | None,
               weight: TensorHandle | None = None, bias: TensorHandle | None = None, training: bool = False,
               momentum: float = 0.1, eps: float = 1e-5) -> TensorHandle:
    return t.call_op("batch_norm", (input, weight, bias, running_mean, running_var, training, momentum, eps), {})


@python_function(F.embedding)
def embedding(t: Tracer, input: TensorHandle, weight: TensorHandle, padding_idx: int | None = None, max_norm=None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> TensorHandle:
    if max_norm is not None:
        raise Unsupported("embedding with max_norm changes its weight", kind="mutating-op")
    if padding_idx is None:
        padding_idx = -1
    elif padding_idx < 0:
        padding_idx = weight.shape[0] + padding_idx
    return t.call_op("embedding", (weight, input, padding_idx, scale_grad_by_freq, sparse), {})


_embedding_bag = run_python(F.embedding_bag)


@python_function(F.embedding_bag)
def embedding_bag(t: Tracer, input: TensorHandle, weight: TensorHandle, offsets: TensorHandle | None = None,
                  max_norm: float | None = None, norm_type: float = 2, scale_grad_by_freq: bool = False,
                  mode: str = "mean", sparse: bool = False, per_sample_weights: TensorHandle | None = None,
                  include_last_offset: bool = False, padding_idx: int | None = None) -> TensorHandle:
    """Bags of one size are rows of an embedding, added up."""
    plain = (offsets is None and max_norm is None and padding_idx is None and not (scale_grad_by_freq or sparse)
             and not include_last_offset and mode in ("sum", "mean"))
    if plain and isinstance(input, TensorHandle) and isinstance(weight, TensorHandle):
        node, table, weights = input.type, weight.type, per_sample_weights
        fits = weights is None or (mode == "sum" and isinstance(weights, TensorHandle)
                                   and weights.type.dtype is table.dtype and same_ints(weights.type.shape, node.shape))
        if (fits and node.rank == 2 and table.rank == 2 and backend(table.device).adds_bags
            and table.dtype.is_floating_point and not node.is_empty and node.dtype in (torch.int64, torch.int32)):
            return t.call_op("bags_of_rows", (weight, input, mode == "mean", weights), {})
    return _embedding_bag(t, input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse,
                          per_sample_weights, include_last_offset, padding_idx)


@python_function(F.cross_entropy)
def cross_entropy(t: Tracer, input: TensorHandle, target: TensorHandle, weight: TensorHandle | None = None,
                  size_average=None, ignore_index: int = -100, reduce=None, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> TensorHandle:
    return t.call_op("cross_entropy_loss", (input, target, weight, _reduction(reduction, size_average, reduce),
                                            ignore_index, label_smoothing), {})


@python_function(F.nll_loss)
def nll_loss(t: Tracer, input: TensorHandle, target: TensorHandle, weight=None, size_average=None,
             ignore_index: int = -100, reduce=None, reduction: str = "mean") -> TensorHandle:
    return t.call_op("nll_loss_nd", (input, target, weight, _reduction(reduction, size_average, reduce), ignore_index),
                     {})


@python_function(F.pad)
def pad(t: Tracer, input: TensorHandle, pad: Sequence[int], mode: str = "constant", value=None) -> TensorHandle:
    if mode == "constant":
        return t.call_op("constant_pad_nd", (input, pad, 0 if value is None else value), {})
    return t.call_op("pad", (input, pad, mode, value), {})


@python_function(F.normalize)
def normalize(t: Tracer, input: TensorHandle, p: float = 2.0, dim: int = 1, eps: float = 1e-12,
              out=None) -> TensorHandle:
    if not input.dtype.is_floating_point and out is None:
        return run_python(F.normalize)(t, input, p, dim, eps)
    return t.call_op("normalize", (input, p, dim, eps), {} if out is None else {"out": out})


@python_function(torch.einsum)
def einsum(t: Tracer, *args: str | TensorHandle | Sequence[TensorHandle] | Sequence[int]) -> TensorHandle:
    equation, *operands = args
    if not isinstance(equation, str):  # tensors, each with the numbers of its dimensions, and those of the result
        pairs = args[:len(args) // 2 * 2]
        subscripts = [*pairs[1::2], *args[len(pairs):]]
        texts = ["".join("..." if n is ... else string.ascii_letters[(n + 26) % 52] for n in s) for s in subscripts]
        equation = "->".join([",".join(texts[:len(pairs) // 2]), *texts[len(pairs) // 2:]])
        operands = pairs[::2]
    operands = tuple(unpacked(operands))
    return t.call_op("einsum", (equation, *operands), {"path": contraction_order(equation, operands)})


@python_function(torch.split, torch.Tensor.split)
def split(t: Tracer, tensor: TensorHandle, split_size_or_sections: list[int], dim: int = 0) -> tuple[TensorHandle, ...]:
    return t.call_op("split", (tensor, split_size_or_sections, dim), {})


@python_function(torch.Tensor.unflatten)
def unflatten(t, self: TensorHandle, dim: int, sizes):
    return t.call_op("unflatten", (self, dim, sizes), {})


@python_function(torch.broadcast_tensors)
def broadcast_tensors(t: Tracer, *tensors: TensorHandle | Sequence[TensorHandle]) -> tuple[TensorHandle, ...]:
    shape = broadcast_shapes(*(x.type.shape for x in unpacked(tensors)))
    return tuple(x if same_ints(x.shape, shape) else t.call_op("expand", (x, shape), {}) for x in unpacked(tensors))


@python_function(torch.is_tensor)
def is_tensor(t, obj) -> bool:
    return isinstance(obj, TensorHandle)


@python_function(torch.Tensor.norm, torch.norm)
def norm(t: Tracer, input: TensorHandle, p: float | int | str = "fro", dim: int | None = None, keepdim: bool = False,
         out: TensorHandle | None = None, dtype: torch.dtype | None = None) -> TensorHandle:
    given = {} if out is None else {"out": out}
    if input.dtype.is_complex and p != "nuc":
        return t.call_op("linalg_vector_norm", (input, 2 if p in ("fro", None) else p, dim, keepdim),
                         {"dtype": dtype, **given})
    if p == "nuc" and dtype is None:
        return t.call_op("nuclear_norm", (input, keepdim) if dim is None else (input, dim, keepdim), given)
    return t.call_op("norm", (input, p, dim, keepdim, dtype), given)


def _fill_masked(op: str, input: TensorHandle, mask, *args: object):
    """``input`` with the neutral element of the reduction ``op`` where ``mask`` is false."""
    if mask is None:
        return input
    mask = rebind(torch_private.masked._input_mask)(input, mask=mask)
    return rebind(torch_private.masked._where)(mask, input,
                                               rebind(torch_private.masked._reduction_identity)(op.__name__,
                                                   input, *args))


python_function(torch_private.masked._combine_input_and_mask)(run_python(_fill_masked, rebound=False))
