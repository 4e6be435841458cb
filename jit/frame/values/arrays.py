"""NumPy arrays, and the scalars that are computed from them: a tensor on the CPU behind the value protocol.

A function of NumPy is called for real on stand-ins of the same shapes, strides and types, which tells all but the
values of its result: type and layout, scalar or array, view or copy, writable or not. The values are computed by a rule
in functions of PyTorch (``tables.array_rules``), or by NumPy's own Python code, which is followed as any other.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import torch

from ...devices import backend
from ...errors import Unsupported
from ...graph.dims import hint
from ...graph.memory import extent
from ...graph.polynomials import product
from ...graph.probe import without_warnings
from ...runtime import facts
from ...runtime.array_memory import DTYPES, as_array, as_read_only, as_scalar
from .. import source as src
from .. import tables
from ..states.function_state import unasked
from ..tables import wrapper
from . import batched
from .base import Raised, Value, type_name
from .constant import Constant
from .containers import ListValue, TupleValue
from .slices import SliceValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...graph.dims import IntExpr
    from ...graph.handles import TensorHandle
    from ..emit import Emitter
    from ..operators import Binary, Comparison, Unary
    from ..session import Session
    from ..source import Source
    from .tensor import TensorValue

_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
TYPES = {dtype: of for of, dtype in DTYPES.items()}  # torch's -> NumPy's
_STRONG_SCALARS = int(np.__version__.partition(".")[0]) >= 2
NONE = Constant(None)
_NO_VALUE = inspect.signature(np.sum).parameters["keepdims"].default  # what NumPy's parameters are by default
CPU = Constant(torch.device("cpu"))
_CONTIGUOUS = Constant(torch.contiguous_format)
_UFUNCS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "//": np.floor_divide,
           "%": np.remainder, "**": np.power, "@": np.matmul, "<<": np.left_shift, ">>": np.right_shift,
           "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "divmod": np.divmod}
_UNARY = {"-": np.negative, "+": np.positive, "~": np.invert}
_COMPARISONS = {"<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal, ">": np.greater,
                ">=": np.greater_equal}


def refuse(why: str, hint: str = "use torch, or do it outside the compiled function") -> Unsupported:
    return Unsupported(why, hint, kind="numpy")


class ArrayValue(Value):
    """An ``np.ndarray``, or, where ``cls`` is another class, a NumPy scalar. From outside, ``obj`` is the real array.

    Attributes:
        writable: whether the array is.
        shown: whether the program has a tensor that is the one behind it.
    """

    is_array = can_wait = True

    def __init__(self, cls: type, tensor: TensorValue | None = None, obj: np.ndarray | None = None,
                 source: Source | None = None, writable: bool = True) -> None:
        self.cls, self._tensor, self.obj, self.source, self.writable = cls, tensor, obj, source, writable
        self.shown = False

    @property
    def is_scalar(self) -> bool:
        return self.cls is not np.ndarray

    def tensor(self, s: Session) -> TensorValue:
        """The tensor with its memory."""
        if self._tensor is None:
            s.set_field(self, "_tensor", self._input(s))
        return self._tensor

    def _input(self, s: Session) -> TensorValue:
        array = self.obj
        if self.source is None:
            raise refuse("the code refers to an array directly, and not by an argument, a global or an attribute")
        if array.dtype not in DTYPES:
            raise refuse(f"an array of {array.dtype}, which PyTorch does not have")
        if not array.flags.writeable:
            raise refuse("a read-only array", "copy() it")
        if any(step < 0 or step % array.itemsize for step in array.strides):
            raise refuse("an array with negative steps, or steps that are no multiples of an element", "copy() it")
        self.pytype(s)
        tensor = torch.from_numpy(array)
        if any(overlaps(tensor, other) for region in s.tracer.regions for other in region.tensors):
            raise Unsupported("an array that shares memory with what is changed", "copy() one of them",
                              kind="aliased-mutation")
        return s.wrap(tensor, src.ArrayMemory(self.source))

    def handle(self, s: Session) -> TensorHandle:
        return self.tensor(s).handle(s)

    def dtype(self, s: Session) -> np.dtype:
        return TYPES[self.handle(s).dtype]

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(self.cls))
        return self.cls

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.obj)) if self.obj is not None else ("value", id(self))

    def hash_key(self, s: Session) -> Any:
        if not self.is_scalar:
            raise Raised(s.exception(TypeError("unhashable type: 'numpy.ndarray'")))
        raise refuse("the hash of a NumPy scalar is needed")

    def getattr(self, s: Session, name: str) -> Value:
        if name in _ATTRIBUTES:
            return _ATTRIBUTES[name](s, self)
        if name in tables.array_methods:
            return ArrayMethod(self, name)
        if not hasattr(self.cls, name):
            raise Raised(s.exception(AttributeError(
                f"'{type_name(self.cls)}' object has no attribute '{name}'", name=name)))
        raise refuse(f"attribute {name} of a NumPy array")

    def setattr(self, s: Session, name: str, value: Value) -> None:
        if name == "shape" and self.obj is None and not self.is_scalar:
            shown = call(s, np.reshape, [self, value], {})
            if shown.handle(s).base is self.handle(s).base:
                s.set_field(self, "_tensor", shown.tensor(s))
                return
        raise refuse(f"attribute {name} of a NumPy array is set")

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        return self.getattr(s, name).call(s, args, {})

    def getitem(self, s: Session, key: Value) -> Value:
        return call(s, np.ndarray.__getitem__, [self, key], {})

    def setitem(self, s: Session, key: Value, value: Value) -> None:
        if self.is_scalar or not self.writable:
            raise refuse("a NumPy scalar or a read-only array is written to")
        value = value if value.is_array or value.is_const() else as_array_value(s, value)
        real = stand_in(s, self)
        index, given = probe_argument(s, key), probe_argument(s, value)
        with quiet():
            try:
                np.ndarray.__setitem__(real, index, given)
            except Exception as error:  # what NumPy refuses is refused for real behind the break
                raise refuse(f"a write that NumPy refuses: {type(error).__name__}") from None
        if np.iscomplexobj(given) and not np.iscomplexobj(real):
            raise refuse("complex numbers are written to a real array")
        value = value.tensor(s) if value.is_array else value
        if not value.is_tensor and isinstance(given, np.generic):
            value = Constant(given.item())
        if value.is_tensor:
            value = to_dtype(s, value, self.handle(s).dtype)
        elif not isinstance(given, bool) and np.issubdtype(real.dtype, np.integer) and isinstance(given, float):
            value = Constant(int(given))
        with unasked(s):
            s.torch_call(torch.Tensor.__setitem__, [self.tensor(s), lowered(s, key), value], {})

    # What follows is asked of the tensor, of which no class or mode of the program's hears.

    def truth(self, s: Session) -> bool:
        with unasked(s):
            return self._single(s).truth(s)

    def truth_value(self, s: Session) -> Value:
        with unasked(s):
            return self._single(s).truth_value(s)

    def to_int(self, s: Session) -> Value:
        with unasked(s):
            return self._single(s).to_int(s)

    def to_float(self, s: Session) -> Value:
        with unasked(s):
            return self._single(s).to_float(s)

    def _single(self, s: Session) -> TensorValue:
        """The tensor, which has to have one element and no axes."""
        if self.handle(s).shape:
            raise refuse("an array with axes is used as a bool or a number", "use any(), all() or item()")
        return self.tensor(s)

    def has_index(self, s: Session) -> bool:
        return self.tensor(s).has_index(s) if issubclass(self.dtype(s).type, np.integer) else False

    def index(self, s: Session) -> int:
        if self.handle(s).shape:
            raise Raised(s.exception(TypeError("only integer scalar arrays can be converted to a scalar index")))
        with unasked(s):
            return self.tensor(s).index(s)

    def length(self, s: Session) -> IntExpr:
        shape = self.handle(s).shape
        if not shape:
            raise Raised(s.exception(TypeError(f"object of type '{type_name(self.cls)}' has no len()" if self.is_scalar
                                               else "len() of unsized object")))
        return shape[0]

    def iter(self, s: Session) -> Value:
        shape = self.handle(s).shape
        if not shape:
            raise refuse("iteration over an array without axes")
        count = shape[0] if type(shape[0]) is int else s.integer(shape[0]).index(s)
        return s.iterate([self.getitem(s, Constant(i)) for i in range(count)])

    def absolute(self, s: Session) -> Value:
        return call(s, np.absolute, [self], {})

    def rounded(self, s: Session, digits: list[Value]) -> Value:
        if self.is_scalar:
            raise refuse("round() of a NumPy scalar is called")
        raise Raised(s.exception(TypeError("type numpy.ndarray doesn't define __round__ method")))

    # -- operators

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        other = b if self is a else a
        if other.is_tensor:
            return with_tensor(s, op, self, a, b)
        if not (other.is_array or other.is_numeric or other.builtin in (list, tuple)):
            raise refuse(f"an operator has a NumPy array and {other.describe()} as operands")
        return call(s, _UFUNCS[op.symbol.removesuffix("=") if op.inplace else op.symbol], [a, b], {})

    def inplace(self, s: Session, op: Binary, other: Value) -> Value | None:
        if self.is_scalar:
            return None
        if other.is_tensor:
            raise refuse("a NumPy array is changed by a tensor")
        return call(s, _UFUNCS[op.symbol], [self, other], {"out": self})

    def unary(self, s: Session, op: Unary) -> Value | None:
        return call(s, _UNARY[op.symbol], [self], {})

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if other.is_tensor:
            return with_tensor(s, op, self, self, other)
        if not (other.is_array or other.is_numeric or other.builtin in (list, tuple)):
            raise refuse(f"a NumPy array is compared with {other.describe()}")
        return call(s, _COMPARISONS[op.symbol], [self, other], {})

    def contains(self, s: Session, item: Value) -> bool | None:
        found = call(s, np.any, [call(s, np.equal, [self, item], {})], {})
        return found.truth(s)

    def lower(self, s: Session) -> Any:
        raise refuse("a torch function is given a NumPy array", "use torch.from_numpy")

    def probed(self, s: Session) -> Any:
        return self.tensor(s).probed(s)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            e.call(as_scalar if self.is_scalar else as_array if self.writable else as_read_only,
                   functools.partial(e.load, self._tensor))

    def describe(self) -> str:
        return (f"a numpy.{self.cls.__name__}" if self.is_scalar else "an array") + (
            f" ({self.source})" if self.source is not None else "")


class ArrayMethod(Value):
    """A method of an array."""

    def __init__(self, owner: ArrayValue, name: str) -> None:
        self.owner, self.name = owner, name

    def pytype(self, s: Session) -> type:
        return types.BuiltinMethodType

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        with unasked(s):
            return tables.array_methods[self.name](s, self.owner, args, kwargs)

    def emit(self, e: Emitter) -> None:
        e.load(self.owner)
        e.load_attr(self.name)

    def describe(self) -> str:
        return f"method {self.name} of an array"


_ATTRIBUTES: dict[str, Callable[[Session, ArrayValue], Value]] = {
    "shape": lambda s, v: TupleValue([s.integer(n) for n in v.handle(s).shape]),
    "strides": lambda s, v: TupleValue([s.integer(n * v.dtype(s).itemsize) for n in v.handle(s).type.strides]),
    "ndim": lambda s, v: Constant(len(v.handle(s).shape)),
    "size": lambda s, v: s.integer(product(v.handle(s).shape)),
    "nbytes": lambda s, v: s.integer(product(v.handle(s).shape) * v.dtype(s).itemsize),
    "dtype": lambda s, v: Constant(v.dtype(s)),
    "itemsize": lambda s, v: Constant(v.dtype(s).itemsize),
    "device": lambda s, v: Constant("cpu"),
    "T": lambda s, v: call(s, np.transpose, [v], {}),
    "mT": lambda s, v: call(s, np.swapaxes, [v, Constant(-1), Constant(-2)], {}),
    "real": lambda s, v: call(s, np.real, [v], {}),
    "imag": lambda s, v: call(s, np.imag, [v], {}),
    "__class__": lambda s, v: s.wrap_class(v.pytype(s)),
}


def with_tensor(s: Session, op: Binary | Comparison, array: ArrayValue, a: Value, b: Value) -> Value:
    """An operator of which one operand is a NumPy scalar and the other a tensor: the scalar is a number, of 64 bits and
    without a say in the type of the result."""
    if not array.is_scalar:
        raise refuse("an operator has a NumPy array and a tensor as operands")
    with unasked(s):
        operands = [number_like(s, v, b if v is a else a) if v.is_array else v for v in (a, b)]
    return s.torch_call(op.fn, operands, {})


def number_like(s: Session, scalar: ArrayValue, tensor: Value) -> Value:
    """A NumPy scalar as the operand of a tensor. Raises Unsupported where a tensor without axes is not the same."""
    other, own = tensor.handle(s).dtype, scalar.handle(s).dtype
    at = tensor.handle(s).device
    if not backend(at).host or not tensor.handle(s).shape or other in (torch.float16, torch.bfloat16):
        raise refuse("a NumPy scalar as the operand of this tensor", "make it a tensor")
    kept = other.is_complex or other.is_floating_point and not own.is_complex or not (
        own.is_floating_point or own.is_complex) and other is not torch.bool
    if not kept:
        raise refuse("a NumPy scalar as the operand of a tensor of integers", "make it a tensor")
    return to_dtype(s, scalar.tensor(s), other)


# -- what functions are given ----------------------------------------------------------------------------------------


def as_array_value(s: Session, value: Value) -> ArrayValue:
    """What ``np.asarray`` makes of an argument."""
    if value.is_array and not value.is_scalar:
        return value
    result = call(s, np.asarray, [value], {})
    if not result.is_array:
        raise refuse(f"{value.describe()} is needed as a NumPy array")
    return result


def holds_array(s: Session, values: Iterable[Value]) -> bool:
    return any(v.is_array or holds_array(s, parts(s, v)) for v in values)


def holds_tensor(s: Session, values: Iterable[Value]) -> bool:
    return any(v.is_tensor or holds_tensor(s, parts(s, v)) for v in values)


def parts(s: Session, v: Value) -> list[Value]:
    return v.nested(s) or [] if v.builtin in (list, tuple) or v.is_slice else []


def stand_in(s: Session, value: ArrayValue) -> Any:
    """A real array, or scalar, of the same type and layout: zeros, or of floating point ones, and of square matrices
    the identity."""
    handle, dtype = value.handle(s), value.dtype(s)
    if value.is_scalar:
        return dtype.type(dtype.kind in "fc")
    shape, strides = [hint(n) for n in handle.shape], [hint(n) for n in handle.type.strides]
    reach = 1 + sum((n - 1) * step for n, step in zip(shape, strides)) if all(shape) else 0
    array = np.lib.stride_tricks.as_strided(np.zeros(reach, dtype), shape, [n * dtype.itemsize for n in strides])
    if dtype.kind in "fc" and 0 not in strides:
        square = len(shape) >= 2 and shape[-1] == shape[-2]
        array[...] = np.eye(shape[-1]) if square else 1
    if not value.writable:
        array.flags.writeable = False
    return array


def probe_argument(s: Session, value: Value, made: dict | None = None) -> Any:
    """The argument for a call that tells what a function gives; ``made``: id of a stand-in -> its value."""
    if value.is_tensor:
        value = array_of(s, value)
    if _not_given(value):
        return _NO_VALUE
    if value.is_array:
        real = next((r for r, v in made.values() if v is value), None) if made is not None else None
        if real is None:
            real = stand_in(s, value)
            if made is not None:
                made[id(real)] = real, value
        return real
    if value.builtin in (list, tuple) and value.cls is value.builtin:
        return value.builtin(probe_argument(s, v, made) for v in value.nested(s))
    if value.is_slice:
        return slice(*(probe_argument(s, v, made) for v in value.nested(s)))
    if value.symbolic:
        return value.at_hand(s)
    if value.as_class is not None or value.is_object and isinstance(value.obj, (np.finfo, np.iinfo)):
        return value.real(s)
    if not value.is_leaf:
        raise refuse(f"a NumPy function is given {value.describe()}")
    return value.const(s)


def lowered(s: Session, value: Value) -> Value:
    """The argument for a rule: tensors for arrays and scalars, plain numbers for constant scalars."""
    if value.is_tensor:
        return array_of(s, value).tensor(s)
    if value.is_array:
        return value.tensor(s)
    if value.is_leaf and isinstance(value.value, np.generic):
        return Constant(value.const(s).item())
    if value.builtin in (list, tuple):
        return (ListValue if value.builtin is list else TupleValue)([lowered(s, v) for v in value.nested(s)])
    return SliceValue(*(lowered(s, v) for v in value.nested(s))) if value.is_slice else value


def array_of(s: Session, tensor: TensorValue) -> ArrayValue:
    """``tensor.numpy()``."""
    handle = tensor.handle(s)
    if handle.requires_grad:
        raise refuse("numpy() of a tensor that requires grad", "detach() it first")
    if not backend(handle.device).host or handle.dtype not in TYPES:
        raise refuse(f"numpy() of a tensor of {handle.dtype} on {handle.device}", "use cpu() first")
    return ArrayValue(np.ndarray, s.recording.traced(lambda: s.tracer.attribute(handle, "data")))


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    first, second = extent(a), extent(b)
    return first is not None and second is not None and first[0] < second[1] and second[0] < first[1]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what NumPy says about the values of stand-ins."""
    with np.errstate(all="ignore"), without_warnings():
        yield


# -- calls -----------------------------------------------------------------------------------------------------------


def call(s: Session, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``fn(*args, **kwargs)`` of a function of NumPy, a ufunc, or a method of arrays by its descriptor."""
    if s.tracer.autocast or s.in_a_map or batched.active(s):
        raise refuse("NumPy arrays are used under autocast or inside torch.vmap")
    if not _STRONG_SCALARS:
        raise refuse("NumPy is older than version 2, and its types depend on values", "use NumPy 2")
    wanted = s.wrap(errors_are_wanted(), src.Returned(src.Const(errors_are_wanted)))
    if wanted.const(s):
        raise refuse("numpy.errstate or numpy.seterr asks for errors or warnings")
    with whole(), contextlib.nullcontext() if holds_tensor(s, (*args, *kwargs.values())) else unasked(s):
        if type(fn) is np.ufunc:
            return ufunc(s, fn, list(args), dict(kwargs))
        rule = tables.array_rules.get(fn)
        in_python = isinstance(getattr(fn, "__wrapped__", None), types.FunctionType)
        bound = None
        if rule is not None and not (in_python and holds_tensor(s, (*args, *kwargs.values()))):
            bound = _bind(fn, rule, args, kwargs)
        if bound is not None:
            return by_rule(s, fn, rule, args, kwargs, bound)
        if in_python:
            return s.inline(s.wrap_raw(fn.__wrapped__), args, kwargs)
        raise refuse(f"call of numpy.{getattr(fn, '__name__', fn)}")


def errors_are_wanted() -> bool:
    """Whether NumPy does more about values than to warn of them (``np.seterr``), which graphs do not."""
    return not {"ignore", "warn"}.issuperset(np.geterr().values())


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """A break inside is one of the call."""
    try:
        yield
    except Unsupported as error:
        error.frames = []
        raise


@contextlib.contextmanager
def rules(fn: Any) -> Iterator[None]:
    """What a rule raises is no answer: it has none for these arguments."""
    try:
        yield
    except Raised as raised:
        raise refuse(f"numpy.{fn.__name__} of these arguments: {raised.value.cls.__name__}") from None


@functools.cache
def _signature(rule: Callable) -> inspect.Signature:
    return inspect.signature(rule)


@functools.lru_cache(1024)
def _own_signature(fn: Any) -> inspect.Signature | None:
    """That of a function of NumPy, where it tells."""
    if isinstance(fn, _DESCRIPTORS):
        return None
    try:
        return inspect.signature(fn)
    except ValueError:
        return None


def _bind(fn: Any, rule: Callable, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Any] | None:
    """The arguments by the names of a rule's parameters, and ``out``; None where it has no such ones."""
    own, parameters = _own_signature(fn), _signature(rule).parameters
    try:
        if own is not None and next(iter(own.parameters), None) in parameters and not any(
                p.kind is p.VAR_POSITIONAL for p in own.parameters.values()):
            given = own.bind(*args, **kwargs).arguments
        else:
            rest = {k: v for k, v in kwargs.items() if k != "out"}
            given = _signature(rule).bind(*args, **rest).arguments | {k: v for k, v in kwargs.items() if k == "out"}
    except TypeError:
        return None
    given = {k: v for k, v in given.items() if not (_is_none(v) and k not in parameters or _not_given(v))}
    return given if given.keys() <= {*parameters, "out"} else None


def _not_given(v: Any) -> bool:
    return getattr(v, "obj", None) is _NO_VALUE


def binds(fn: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether there is a rule for these arguments."""
    rule = tables.array_rules.get(fn)
    return rule is not None and _bind(fn, rule, args, kwargs) is not None


def _is_none(v: Any) -> bool:
    return type(v) is Constant and v.value is None


def probe(s: Session, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple[Any, dict]:
    """-> (what ``fn`` gives for stand-ins, id of a stand-in -> (itself, its value)). Raises Unsupported where it
    refuses them."""
    made: dict = {}
    real = [probe_argument(s, a, made) for a in args]
    real_kw = {k: probe_argument(s, v, made) for k, v in kwargs.items()}
    if isinstance(fn, _DESCRIPTORS) and isinstance(real[0], np.generic):
        fn = getattr(type(real[0]), fn.__name__)
    with quiet():
        try:
            return fn(*real, **real_kw), made
        except Exception as error:  # whatever these arguments lead to: they lead to it for real behind the break
            raise refuse(f"numpy.{getattr(fn, '__name__', fn)} raises {type(error).__name__}") from None


def by_rule(s: Session, fn: Any, rule: Callable, args: list[Value], kwargs: dict[str, Value],
            bound: dict[str, Value]) -> Value:
    out = bound.pop("out", None)
    example, made = probe(s, fn, args, kwargs)
    parameters = _signature(rule).parameters
    given: dict = {k: v if k == "dtype" else [lowered(s, a) for a in v] if isinstance(v, tuple) else lowered(s, v)
                   for k, v in bound.items() if not (k == "dtype" and _is_none(v))}
    if "dtype" in given:
        given["dtype"] = Constant(torch_dtype(np.dtype(probe_argument(s, given["dtype"]))))
    if "result" in parameters:
        first = example[0] if isinstance(example, (list, tuple)) else example
        given["result"] = Constant(torch_dtype(np.asarray(first).dtype))
    positional: list[Value] = []
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += given.pop(name, ())
        elif name in given and (several and parameter.kind is not parameter.KEYWORD_ONLY
                                or parameter.kind is parameter.POSITIONAL_ONLY):
            positional.append(given.pop(name))
    with rules(fn):
        result = s.inline(s.wrap_raw(rule), positional, given)
    return finish(s, result, example, made, out)


def finish(s: Session, result: Value, example: Any, made: dict, out: Value | None) -> Value:
    """The result of a rule as what NumPy gives: written to ``out``, or of the type and layout of ``example``."""
    if out is None or _is_none(out):
        return conform(s, result, example, made)
    if out.builtin is tuple:
        outs = out.nested(s)
        if len(outs) > 1:
            raise refuse("a NumPy function is given several arrays by out=")
        out, = outs
    if not out.is_array or out.is_scalar or not out.writable:
        raise refuse("the out= of a NumPy function is no writable array")
    s.torch_call(torch.Tensor.copy_, [out.tensor(s), result], {})
    return out


def conform(s: Session, result: Value, example: Any, made: dict) -> Value:
    if isinstance(example, (tuple, list)):
        given = result.nested(s) if result.builtin in (tuple, list) else None
        if given is None or len(given) != len(example):
            raise refuse("a function of NumPy with another number of results")
        values = [conform(s, v, x, made) for v, x in zip(given, example)]
        if type(example) is list:
            return ListValue(values)
        if type(example) is tuple:
            return TupleValue(values)
        raise refuse("a function of NumPy with named results")
    if isinstance(example, (bool, int, float)) and not isinstance(example, np.generic) and result.is_tensor:
        return {bool: result.truth_value, int: result.to_int, float: result.to_float}[type(example)](s)
    if not isinstance(example, (np.ndarray, np.generic)):
        if example is None or result.is_leaf and type(result.value) is type(example):
            return result
        raise refuse(f"a function of NumPy that gives a {type(example).__name__}")
    if not result.is_tensor:
        raise refuse("a result is no tensor")
    if type(example) is not np.ndarray and not isinstance(example, np.generic):
        raise refuse("a result of a subclass of arrays")
    return conformed(s, result, example, made)


def conformed(s: Session, result: TensorValue, example: Any, made: dict) -> ArrayValue:
    if id(example) in made:
        return made[id(example)][1]
    result = to_dtype(s, result, torch_dtype(example.dtype))
    shape = [hint(n) for n in result.handle(s).shape]
    if shape != list(example.shape):
        raise refuse("a function of NumPy whose result has another shape")
    is_scalar = isinstance(example, np.generic)
    bases = [v.handle(s).base for _, v in made.values()]
    alias = result.handle(s).base in bases
    shared = not is_scalar and example.size > 0 and any(
        isinstance(real, np.ndarray) and np.may_share_memory(example, real) for real, _ in made.values())
    if shared and (not alias or not _same_strides(shape, result, example, s)):
        raise refuse("a NumPy view that PyTorch does not have", "copy() it")
    if not shared and alias:
        result = s.torch_call(torch.clone, [result], {})
    if not shared and not is_scalar and not _same_strides(shape, result, example, s):
        result = relaid(s, result, example)
    return ArrayValue(type(example), result, writable=is_scalar or example.flags.writeable)


def _same_strides(shape: list[int], result: TensorValue, example: np.ndarray, s: Session) -> bool:
    return all(n <= 1 and example.size or hint(own) * example.itemsize == step for n, own, step in
                                   zip(shape, result.handle(s).type.strides, example.strides))


def relaid(s: Session, tensor: TensorValue, example: np.ndarray) -> TensorValue:
    """A copy with the strides of ``example``. Raises Unsupported where it is not dense."""
    if not example.size:
        sizes = Constant(example.shape), Constant(tuple([n // example.itemsize for n in example.strides]))
        return s.torch_call(torch.as_strided, [s.torch_call(torch.clone, [tensor], {}), *sizes], {})
    order = sorted(range(example.ndim), key=lambda d: (-example.strides[d], d))
    back = [order.index(d) for d in range(example.ndim)]
    moved = s.torch_call(torch.permute, [tensor, Constant(tuple(order))], {})
    copy = s.torch_call(torch.clone, [moved], {"memory_format": _CONTIGUOUS})
    found = s.torch_call(torch.permute, [copy, Constant(tuple(back))], {})
    if not _same_strides(list(example.shape), found, example, s):
        raise refuse("a NumPy array has gaps in memory")
    return found


def to_dtype(s: Session, tensor: TensorValue, dtype: torch.dtype) -> TensorValue:
    own = tensor.handle(s).dtype
    if own is dtype:
        return tensor
    if own.is_complex and not dtype.is_complex:
        raise refuse("complex numbers become real ones, of which NumPy warns", "use real")
    return s.torch_call(torch.Tensor.to, [tensor, Constant(dtype)], {})


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    found = DTYPES.get(dtype)
    if found is None:
        raise refuse(f"an array of {dtype}, which PyTorch does not have")
    return found


# -- ufuncs ----------------------------------------------------------------------------------------------------------

_PYTHON = (bool, int, float, complex)


def ufunc(s: Session, fn: np.ufunc, args: list[Value], kwargs: dict[str, Value]) -> Value:
    rule = tables.array_rules.get(fn)
    if rule is None or not set(kwargs) <= {"out", "where", "dtype", "casting"}:
        raise refuse(f"call of numpy.{fn.__name__} with {', '.join(kwargs) or 'these arguments'}")
    inputs, outs = args[:fn.nin], args[fn.nin:]
    if len(inputs) < fn.nin or holds_tensor(s, (*args, *kwargs.values())):
        raise refuse("a NumPy ufunc is given tensors", "use torch, or numpy()")
    if outs:
        kwargs["out"] = outs[0] if len(outs) == 1 else TupleValue(outs)
    inputs = [as_array_value(s, v) if v.builtin in (list, tuple) else v for v in inputs]
    example, made = probe(s, fn, inputs, kwargs)
    loop = loop_types(s, fn, inputs, kwargs)
    given = [operand(s, v, torch_dtype(dtype)) for v, dtype in zip(inputs, loop)]
    with rules(fn):
        result = (s.inline(s.wrap_raw(rule), given, {}) if isinstance(rule, types.FunctionType)
                  else s.torch_call(rule, given, {}))
    out = kwargs.get("out")
    where = kwargs.get("where")
    if where is not None and not (where.is_leaf and where.value is True):
        if out is None or not out.is_array:
            raise refuse("a ufunc with where= and without out=, which leaves elements as they are in new memory")
        result = s.torch_call(torch.where, [as_array_value(s, where).tensor(s),
                                            to_dtype(s, result, out.handle(s).dtype), out.tensor(s)], {})
    return finish(s, result, example, made, out)


def loop_types(s: Session, fn: np.ufunc, inputs: list[Value], kwargs: dict[str, Value]) -> tuple:
    """The types in which NumPy computes: of the inputs, then of the results."""
    asked: list = []
    for v in inputs:
        if v.is_array:
            asked.append(v.dtype(s))
        elif v.symbolic:
            asked.append(v.symbolic)
        else:
            plain = v.const(s)
            if isinstance(plain, np.generic):
                asked.append(plain.dtype)
            elif type(plain) in _PYTHON:
                asked.append(np.dtype(bool) if type(plain) is bool else type(plain))
            else:
                raise refuse(f"numpy.{fn.__name__} is given {v.describe()}")
    options = {}
    if "dtype" in kwargs:
        options["signature"] = (None,) * fn.nin + (np.dtype(probe_argument(s, kwargs["dtype"])),) * fn.nout
    if "casting" in kwargs:
        options["casting"] = kwargs["casting"].const(s)
    try:
        return fn.resolve_dtypes((*asked, *(None,) * fn.nout), **options)
    except TypeError as error:
        raise refuse(f"numpy.{fn.__name__} of these types: {error}") from None


def operand(s: Session, value: Value, dtype: torch.dtype) -> TensorValue:
    if value.is_array:
        return to_dtype(s, value.tensor(s), dtype)
    number = Constant(value.const(s).item()) if value.is_leaf and isinstance(value.value, np.generic) else value
    return s.torch_call(torch.full, [TupleValue([]), number], {"dtype": Constant(dtype), "device": CPU})


@wrapper(np.ndarray)
def wrap_array(s: Session, obj: np.ndarray, source: Source) -> Value:
    return ArrayValue(np.ndarray, obj=obj, source=source) if type(obj) is np.ndarray else s.heap.opaque(obj, source)
