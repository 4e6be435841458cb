"""Calls of NumPy: of functions and ufuncs, of methods of arrays and classes of scalars, on arrays as tensors
(``values.arrays``), and on constants, for which the real function is called."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import torch

from ...devices import backend
from ...errors import Unsupported
from .. import source as src
from ..tables import array_rules, on_array_method, on_call, on_function, on_method, on_tensor_method
from ..values import arrays
from ..values.arrays import (
    NONE, ArrayValue, array_of, as_array_value, binds, call, holds_array, holds_tensor, probe, refuse, whole,
)
from ..values.constant import Constant
from ..values.containers import TupleValue
from . import numpy_rules, numpy_ufuncs, tensors_of_data  # noqa: F401  the first two fill the table

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

# Functions that are dispatched by their array arguments, without effects.
_PURE = {getattr(np, name) for name in (
    "prod sum mean max min amax amin std var median argmax argmin any all round ndim size isclose allclose array_equal "
    "dot count_nonzero ptp "
    "cumsum interp clip").split() if hasattr(np, name)}
_FUNCTION = type(np.prod)
# Functions of which types, shapes and constants tell all.
_FACTS = {np.result_type, np.can_cast, np.promote_types, np.iscomplexobj, np.isrealobj, np.common_type,
          np.broadcast_shapes, np.ndim}
_FACTS.update(getattr(np.lib.array_utils, name) for name in ("normalize_axis_index", "normalize_axis_tuple")
              if hasattr(np.lib, "array_utils"))


def plain(s: Session, value: Value):
    """A value as a real object: constants, and lists and tuples of them."""
    if value.builtin in (list, tuple) and value.cls is value.builtin:
        return value.cls(plain(s, v) for v in value.load(s))
    if not value.is_leaf:
        raise Unsupported(f"a NumPy function is given {value.describe()}",
                          kind="numpy", hint="use torch, or call it outside")
    return value.const(s)


def _on_constants(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a function gives for constants, where that is a plain object; None for all else."""
    with s.speculate(kinds=("numpy", "instantiate")):
        real, real_kw = [plain(s, a) for a in args], {k: plain(s, v) for k, v in kwargs.items()}
        if "out" in real_kw:
            raise Unsupported("a NumPy function is given out=", kind="numpy")
        return s.fold(lambda: fn(*real, **real_kw), [], {})
    return None


def _call(s: Session, fn, args: list[Value], kwargs: dict[str, Value], pure: bool) -> Value:
    given = (*args, *kwargs.values())
    if pure and not holds_array(s, given) and not holds_tensor(s, given):
        found = _on_constants(s, fn, args, kwargs)
        if found is not None:
            return found
    return call(s, fn, args, kwargs)


@on_method((np.ufunc, "__call__"))
def ufunc_call(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _call(s, fn.pin(s), args, kwargs, True)


@on_method((_FUNCTION, "__call__"))
def dispatched_call(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = fn.pin(s)
    if real in _FACTS:
        return fact(s, real, args, kwargs)
    if real is np.copyto:
        return copyto(s, *args, **kwargs)
    return _call(s, real, args, kwargs, real in _PURE)


def fact(s: Session, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    with whole():
        return s.from_python(probe(s, fn, args, kwargs)[0])


for _fn in _FACTS:
    if not isinstance(_fn, _FUNCTION):
        (on_function if isinstance(_fn, types.FunctionType) else on_call)(_fn)(
            lambda s, args, kwargs, fn=_fn: fact(s, fn, args, kwargs))


@on_call(np.dtype)
def dtype(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return fact(s, np.dtype, args, kwargs)


def _limits(cls: type) -> None:
    @on_call(cls)
    def limits(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = probe(s, cls, args, kwargs)[0]
        return s.wrap(found, src.Const(found, cls.__name__, owned=True))


_limits(np.finfo)
_limits(np.iinfo)


@on_function(np.errstate.__enter__)
def quieted(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What NumPy says about values, which graphs do not say at all. Errors are left to NumPy."""
    for name in ("all", "divide", "over", "under", "invalid"):
        wanted = args[0].getattr(s, f"_{name}")
        if wanted.is_leaf and wanted.value not in (None, "ignore", "warn"):
            raise refuse("numpy.errstate or numpy.seterr asks for errors or warnings")
    return NONE


@on_function(np.errstate.__exit__)
def unquieted(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return NONE


def _follow(fn: Callable) -> None:
    def handler(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return call(s, fn, args, kwargs)

    (on_function if isinstance(fn, types.FunctionType) else on_call)(fn)(handler)


for _fn in list(array_rules):
    if isinstance(_fn, (types.FunctionType, types.BuiltinFunctionType)):
        _follow(_fn)


# -- ufunc methods ---------------------------------------------------------------------------------------------------

_REDUCED = {np.fmax: np.nanmax, np.fmin: np.nanmin, np.add: np.sum, np.multiply: np.prod,
            np.maximum: np.max, np.minimum: np.min, np.logical_and: np.all,
            np.logical_or: np.any}
_ACCUMULATED = {np.add: np.cumsum, np.multiply: np.cumprod}


def _named(names: str, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    return dict(zip(names.split(), args)) | kwargs


@on_method((np.ufunc, "reduce"))
def ufunc_reduce(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = fn.pin(s)
    if real not in _REDUCED or not args:
        raise refuse(f"numpy.{real.__name__}.reduce")
    given = _named("axis dtype out keepdims initial where", args[1:], kwargs)
    given.setdefault("axis", Constant(0))
    asked = given.get("dtype", NONE)
    if real not in (np.add, np.multiply):
        if not (asked.is_leaf and asked.value is None):
            raise refuse(f"numpy.{real.__name__}.reduce with a dtype")
        given.pop("dtype", None)
    given = {k: v for k, v in given.items() if k == "axis" or not (v.is_leaf and v.value is None)}
    if given.get("keepdims") is not None:
        given["keepdims"] = Constant(given["keepdims"].truth(s))
    return call(s, _REDUCED[real], [args[0]], given)


@on_method((np.ufunc, "accumulate"))
def ufunc_accumulate(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = fn.pin(s)
    if real not in _ACCUMULATED or not args:
        raise refuse(f"numpy.{real.__name__}.accumulate")
    given = _named("axis dtype out", args[1:], kwargs)
    given.setdefault("axis", Constant(0))
    return call(s, _ACCUMULATED[real], [args[0]], given)


@on_method((np.ufunc, "outer"))
def ufunc_outer(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    a, b = (as_array_value(s, v) for v in args)
    rank = len(b.handle(s).shape)
    a = call(s, np.reshape, [a, TupleValue([*map(s.integer, a.handle(s).shape), *[Constant(1)] * rank])], {})
    return call(s, fn.pin(s), [a, b], kwargs)


# -- methods of arrays -----------------------------------------------------------------------------------------------


def _as_function(name: str, fn: Any) -> None:
    """A method that does what a function does whose first argument is the array."""
    own = getattr(np.ndarray, name, None)
    if own is not None and fn in array_rules:
        array_rules.setdefault(own, array_rules[fn])

    @on_array_method(name)
    def method(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        known = type(fn) is not np.ufunc and own is not None and binds(own, [array, *args], kwargs)
        return call(s, own if known else fn, [array, *args], kwargs)


for _name in ("sum prod mean var std max min any all argmax argmin cumsum cumprod round take repeat "
              "squeeze swapaxes diagonal trace dot searchsorted ravel clip").split():
    _as_function(_name, getattr(np, _name))
for _name in ("flatten", "astype", "view"):
    _as_function(_name, getattr(np.ndarray, _name))
_as_function("conj", np.conjugate)
_as_function("conjugate", np.conjugate)
_as_function("__getitem__", np.ndarray.__getitem__)
_as_function("__array__", np.asarray)
for _name, _fn in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("truediv", np.true_divide),
                   ("floordiv", np.floor_divide), ("mod", np.remainder), ("pow", np.power), ("matmul", np.matmul),
                   ("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor), ("lt", np.less),
                   ("le", np.less_equal), ("eq", np.equal), ("ne", np.not_equal), ("gt", np.greater),
                   ("ge", np.greater_equal), ("neg", np.negative), ("pos", np.positive), ("abs", np.absolute),
                   ("invert", np.invert)):
    _as_function(f"__{_name}__", _fn)


@on_array_method("argsort")
def argsort(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise refuse("argsort(), whose order of equal elements is NumPy's own")


@on_array_method("reshape")
def reshape(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    shape = args[0] if len(args) == 1 else TupleValue(args)
    return call(s, np.reshape, [array, shape], kwargs)


@on_array_method("transpose")
def transpose(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    axes = args[0] if len(args) == 1 and args[0].builtin in (tuple, list) or args and args[0].is_nothing(s) else (
        TupleValue(args) if args else NONE)
    return call(s, np.transpose, [array, axes], kwargs)


@on_array_method("copy")
def copy(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    order = args[0] if args else kwargs.get("order", Constant("C"))
    return call(s, np.copy, [array], {"order": order})


@on_array_method("fill")
def fill(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array.setitem(s, Constant(...), args[0] if args else kwargs["value"])
    return NONE


@on_array_method("sort")
def sort(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array.setitem(s, Constant(...), call(s, np.sort, [array, *args], kwargs))
    return NONE


@on_array_method("__setitem__")
def setitem(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array.setitem(s, *args)
    return NONE


@on_array_method("__len__")
def length(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.integer(array.length(s))


@on_array_method("__iter__")
def iterate(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return array.iter(s)


@on_array_method("item")
def item(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        key = args[0] if len(args) == 1 else TupleValue(args)
        array = call(s, np.ndarray.__getitem__, [array if len(args) > 1 else call(s, np.ravel, [array], {}), key], {})
    return array.tensor(s).call_method(s, "item")


@on_array_method("tolist")
def tolist(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return array.tensor(s).call_method(s, "tolist")


def _conversion(name: str) -> None:
    @on_array_method(f"__{name}__")
    def convert(s: Session, array: ArrayValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return {"int": array.to_int, "float": array.to_float, "bool": array.truth_value}[name](s)


for _name in ("int", "float", "bool"):
    _conversion(_name)


def copyto(s: Session, dst: Value, src: Value, casting: Value | None = None, where: Value | None = None) -> Value:
    if not dst.is_array:
        raise refuse("copyto() to something else than an array")
    probe(s, np.copyto, [dst, src], {k: v for k, v in (("casting", casting), ("where", where)) if v is not None})
    if where is None or where.is_leaf and where.value is True:
        dst.setitem(s, Constant(...), src)
    else:
        dst.setitem(s, Constant(...), call(s, np.where, [where, src, dst], {}))
    return NONE


def _scalar_class(cls: type) -> None:
    """``np.float32(x)`` and the like, of a number or an array."""
    @on_call(cls)
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) == 1 and not kwargs and args[0].is_array:
            made = call(s, np.ndarray.astype, [as_array_value(s, args[0]), s.wrap_class(cls)], {})
            return made if made.handle(s).shape else ArrayValue(cls, made.tensor(s))
        if holds_array(s, args) or holds_tensor(s, args):
            raise refuse(f"numpy.{cls.__name__} of this")
        return s.fold(cls, args, kwargs)


for _dtype in arrays.DTYPES:
    _scalar_class(_dtype.type)


# -- between arrays and tensors --------------------------------------------------------------------------------------


@on_tensor_method("numpy", "__array__")
def to_numpy(s: Session, tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args or kwargs:
        raise refuse("numpy() with arguments")
    shape = tensor.handle(s).shape
    if any(type(n) is int and n == 0 for n in shape):  # the strides of such an array are 0
        sizes, none = (s.from_python(tuple(v)) for v in (shape, [0] * len(shape)))
        tensor = s.torch_call(torch.as_strided, [tensor, sizes, none], {})
    array = array_of(s, tensor)
    array.shown = True
    return array


def _own_tensor(s: Session, array: ArrayValue) -> Value:
    """A new tensor over the memory of an array."""
    tensor = array.tensor(s)
    if array.shown:
        return s.torch_call(torch.Tensor.detach, [tensor], {})
    s.set_field(array, "shown", True)
    return tensor


@on_call(torch.from_numpy)
def from_numpy(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs or not args[0].is_array or args[0].is_scalar or not args[0].writable:
        raise Unsupported("torch.from_numpy of something else than a writable array", kind="numpy")
    return _own_tensor(s, args[0])


def _from_data(fn: Callable, copies: bool) -> None:
    """``torch.as_tensor`` and ``tensor``, which take arrays as well."""
    @on_call(fn)
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args or not args[0].is_array:
            if len(args) == 1 and tensors_of_data.holds_late(args[0]):
                return tensors_of_data.make(s, args[0], kwargs)
            return s.torch_call(fn, args, kwargs)
        array = args[0]
        if len(args) > 1 or not set(kwargs) <= {"dtype", "device"} or not array.writable:
            raise refuse(f"torch.{fn.__name__} of an array with these arguments")
        if copies or array.is_scalar:
            tensor = s.torch_call(torch.clone, [array.tensor(s)], {})
        else:
            tensor = _own_tensor(s, array)
        given = {k: v for k, v in kwargs.items() if not (v.is_leaf and v.value is None)}
        if "device" not in given and not backend(torch.get_default_device()).host:
            raise refuse("a tensor of an array on the default device", "give the device")
        return s.torch_call(torch.Tensor.to, [tensor], given) if given else tensor


for _fn, _copies in ((torch.as_tensor, False), (torch.asarray, False), (torch.tensor, True)):
    _from_data(_fn, _copies)
