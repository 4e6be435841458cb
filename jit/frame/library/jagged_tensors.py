"""What makes tensors of the jagged layout, and what the Python code of ``torch.nested`` asks; see ``values.jagged``."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...errors import Unsupported
from ..tables import add_pure, on_call, on_function, on_name
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.functions import FunctionValue
from ..values.jagged import JaggedTensor, NestedInt
from ..values.mappings import DictValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


OPERATORS = "torch.nested._internal.ops"
add_pure(torch_private.has_kernel)


@on_name((torch_private.NESTED, "get_tensor_symint"))
def nested_int(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factor = kwargs["coeff"].exact_int() if "coeff" in kwargs else None
    return NestedInt(args[0], 1 if factor is None else factor)


@on_name((torch_private.NESTED, "NestedTensor.__new__"))
def new(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    named = dict(kwargs)
    cls = args[0].const(s)
    values, offsets = (*args[1:], *(named.pop(n) for n in ("values", "offsets") if n in named))
    s.set_field(s.asker, "seen", True)
    made = JaggedTensor(cls, made=([], {k: v for k, v in named.items() if k == "requires_grad"}))
    for name, value in (("_values", values), ("_offsets", offsets),
                        ("_lengths", named.get("lengths", Constant(None))),
                        ("_ragged_idx", named.get("_ragged_idx", Constant(1)))):
        s.set_entry(made.attrs, name, value)
    made.laid_out(s)
    return made


@on_name((torch_private.NESTED, "NestedTensor.__init__"))
def init(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The rest of what it does is a word to another compiler."""
    cache = kwargs.get("_metadata_cache", Constant(None))
    kept = not cache.is_nothing(s) and cache.truth(s)
    s.set_entry(args[0].attrs, "_metadata_cache", cache if kept else DictValue({}))
    return Constant(None)


def _nothing() -> Iterator[None]:
    yield


@on_name(("torch.fx.experimental.proxy_tensor", "maybe_enable_thunkify"))
def no_thunks(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.wrap_raw(_nothing).call(s, [], {})


@on_name(("torch.fx.experimental.symbolic_shapes", "is_nested_int"))
def is_nested_int(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(type(args[0]) is NestedInt)


@on_name(("torch.fx.operator_schemas", "normalize_function"))
def by_names(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The arguments of an operator by the names that its schema has, with what it has by default."""
    given = {n: v for n, v in kwargs.items() if n in ("args", "kwargs")}
    given.update(zip(("args", "kwargs"), args[1:3]))
    if not kwargs.get("normalize_to_only_use_kwargs", Constant(False)).truth(s):
        raise Unsupported("the arguments of a function, some by name", kind="torch-argument")
    named = {} if given["kwargs"].is_nothing(s) else {k.const(s): v for k, v in given["kwargs"].load(s).values()}
    positional = given["args"].items_list(s)
    if type(args[0]) is FunctionValue:
        return TupleValue([TupleValue([]), s.dict_of(s.calls.bind(args[0], positional, named))])
    op, found = args[0].const(s), {}
    if not isinstance(op, torch_private.OpOverload):
        raise Unsupported("the arguments of a function that is no operator, by name", kind="torch-argument")
    for at, argument in enumerate(torch_private.schema(op).arguments):
        name = "input" if argument.name == "self" else argument.name
        if at < len(positional):
            found[name] = positional[at]
        elif name in named or argument.name in named:
            found[name] = named[name if name in named else argument.name]
        else:
            found[name] = s.from_python(argument.default_value)
    return TupleValue([TupleValue([]), s.dict_of(found)])


@on_name((OPERATORS, "lookup_jagged"))
def lookup(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What computes an operator: of its table, or for what works by element. The check of the latter's arguments by
    their schema asks C++ and says no more than how many of them are tensors."""
    ops, op = sys.modules[OPERATORS], args[0].const(s)
    tensors = sum(a.is_tensor for a in args[1:])
    if op in ops.JAGGED_OPS_TABLE:
        return s.inline(fn, args, kwargs)
    if torch.Tag.pointwise not in op.tags or tensors not in (1, 2):
        if torch_private.composite_key(op) is None:
            return s.inline(fn, args, kwargs)
        return s.wrap_class(functools.partial).call(s, [s.wrap_raw(in_parts), args[0]], {})
    if any(type(a) is NestedInt for a in args[1:]):
        raise Unsupported("the size of a nested tensor's ragged dimension is an operand", kind="tensor-layout")
    computes = (ops.jagged_unary_pointwise, ops.jagged_binary_pointwise)[tensors - 1]
    return s.wrap_class(functools.partial).call(s, [s.wrap_raw(computes), args[0]], {})


def in_parts(op, *args, **kwargs):
    """An operator that is composed of others, where PyTorch has not taken it apart: in inference mode it does not."""
    with torch.overrides.enable_reentrant_dispatch():
        return op._op_dk(torch_private.composite_key(op), *args, **kwargs)


@on_function(in_parts)
def taken_apart(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.asker.call(functools.partial(in_parts, args[0].const(s)), args[1:], kwargs)


@on_call(torch_private.InferenceMode)
def inference_mode(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``with torch.inference_mode(x.is_inference())`` changes nothing where ``x`` was made in the mode that is on."""
    if len(args) != 1 or kwargs or args[0].truth(s) != s.tracer.inference:
        raise Unsupported("a new torch._C._InferenceMode", "make the object outside the compiled function",
                          kind="instantiate")
    return s.wrap_class(contextlib.nullcontext).call(s, [], {})


@on_name((torch_private.WEAK, "WeakIdKeyDictionary.__getitem__"))
def looked_up(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return NestedInt(args[1]) if _has_nested_ints(args[0]) else s.inline(fn, args, kwargs)


@on_name((torch_private.WEAK, "WeakIdKeyDictionary.__setitem__"))
def entered(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """That another tensor of offsets, which is a copy, has the same nested int."""
    if not _has_nested_ints(args[0]):
        return s.inline(fn, args, kwargs)
    if type(args[2]) is not NestedInt or args[2].of is not args[1]:
        raise Unsupported("offsets that are those of another tensor, on another device", kind="tensor-layout")
    return Constant(None)


def _has_nested_ints(value: Value) -> bool:
    """Whether it is the table in which PyTorch notes the nested int of each tensor."""
    module = sys.modules.get(torch_private.NESTED)
    return module is not None and getattr(value, "obj", None) is getattr(module, "_tensor_symint_registry", value)


@on_call(torch.ops.aten.sym_is_contiguous.default)
def is_contiguous(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.torch_call(torch.Tensor.is_contiguous, args[:1],
                        {**kwargs, **({"memory_format": args[1]} if len(args) > 1 else {})})


@on_call(torch.nested.to_padded_tensor)
def to_padded_tensor(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.torch_call(torch.Tensor.to_padded_tensor, args, kwargs)
