"""Which value class represents a real object, by its type; and the values of plain results."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Callable

import torch

from ... import torch_private, turns
from ...errors import Unsupported
from ...runtime import facts, native
from .. import source as src
from .. import tables
from ..tables import new_value, wrapper
from ..values.containers import DequeValue, ListValue, TupleValue
from ..values.mappings import DictValue
from ..values.sets import SetValue, copied
from ..values.functions import (
    BuiltinValue, CellValue, ClassValue, FunctionValue, MethodValue, PartialValue, PyModuleValue,
)
from ..values.generators import CoroutineValue, GeneratorValue
from ..values.iterators import (
    EnumerateIterator, FilterIterator, MapIterator, RealIterator, RealIteratorOver, ZipIterator,
)
from ..values.objects import ModuleObject
from ..values.slices import RangeValue, SliceValue

if TYPE_CHECKING:
    from ..session import Session
    from ..source import Source
    from ..values.base import Value

wrapper(torch.nn.Module)(lambda s, obj, source: ModuleObject(type(obj), obj, source))
wrapper(list)(lambda s, obj, source: ListValue(None, type(obj), obj, source))
wrapper(tuple)(lambda s, obj, source: TupleValue(None, type(obj), obj, source))
wrapper(dict)(lambda s, obj, source: DictValue(None, type(obj), obj, source))
wrapper(set, frozenset)(lambda s, obj, source: SetValue(None, type(obj), obj, source))
wrapper(type)(lambda s, obj, source: ClassValue(obj, source))
wrapper(types.FunctionType)(lambda s, obj, source: FunctionValue(obj, source))
wrapper(types.ModuleType)(lambda s, obj, source: PyModuleValue(obj, source))
wrapper(types.CellType)(lambda s, obj, source: CellValue(real=obj, source=source))
wrapper(range)(lambda s, obj, source: RangeValue(obj, source))
wrapper(collections.deque)(lambda s, obj, source: DequeValue(None, type(obj), obj, source))

# What ``__self__`` of a C function may be without making it a method: its module or class, or the record that pybind11
# keeps of it.
_NOT_OWNERS = (types.ModuleType, type, torch_private.FunctionRecord)


@wrapper(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
         types.ClassMethodDescriptorType)
def wrap_builtin(s: Session, obj: Callable, source: Source | None) -> Value:
    owner = getattr(obj, "__self__", None)
    if type(owner) is types.GetSetDescriptorType:  # ``torch.Tensor.shape.__get__``, as ``__torch_function__`` is given
        return BuiltinValue(obj, source)
    if (isinstance(obj, (types.BuiltinFunctionType, types.MethodWrapperType))
        and owner is not None and not isinstance(owner, _NOT_OWNERS)):
        if obj not in tables.calls and not s.tracer.supports(obj):
            holder = s.wrap(owner, src.GetAttr(source, "__self__") if source is not None else None)
            if source is not None:  # one of the same object is another method
                s.guards.add(source, facts.TypeIs(type(obj)))
                s.guards.add(src.GetAttr(source, "__name__"), facts.Equals(obj.__name__))
            raw = _descriptor_of(obj, type(owner))
            return holder.getattr(s, obj.__name__) if raw is None else holder.bound_builtin(s, raw)
    return BuiltinValue(obj, source)


def _descriptor_of(method: Callable, cls: type) -> object:
    """What a method in C is in the class of its object, where an attribute of that name is another one:
    ``super().append`` of a list that has its own; else None."""
    found = [c.__dict__[method.__name__] for c in cls.__mro__ if method.__name__ in c.__dict__]
    if not found or type(found[0]) in (types.MethodDescriptorType, types.WrapperDescriptorType):
        return None
    return next((raw for raw in found if type(raw) in (types.MethodDescriptorType, types.WrapperDescriptorType)
                 and raw.__get__(method.__self__) == method), None)


@wrapper(types.MethodType)
def wrap_method(s: Session, obj: Callable, source: Source | None) -> Value:
    fn = s.wrap(obj.__func__, src.GetAttr(source, "__func__") if source is not None else None)
    owner = s.wrap(obj.__self__, src.GetAttr(source, "__self__") if source is not None else None)
    if source is not None:
        s.guards.add(source, facts.TypeIs(types.MethodType))
    return MethodValue(fn, owner, obj, source)


@wrapper(torch.jit.ScriptFunction)
def wrap_script_function(s: Session, obj: object, source: Source | None) -> Value:
    """The Python function that was scripted, which does the same."""
    fn = getattr(obj, "_torchdynamo_inline", None)
    if not isinstance(fn, types.FunctionType) or source is None:
        return s.heap.opaque(obj, source)
    s.guards.add(source, facts.identity(obj))
    return FunctionValue(fn, src.Const(fn, fn.__qualname__))


@wrapper(functools.partial)
def wrap_partial(s: Session, obj, source) -> PartialValue:
    def at(name: str):
        return src.GetAttr(source, name) if source is not None else None

    fn = s.wrap(obj.func, at("func"))
    args = s.wrap(obj.args, at("args")).load(s)
    kwargs = {k: v for k, (_, v) in s.wrap(obj.keywords, at("keywords")).load(s).items()}
    return PartialValue(fn, args, kwargs, obj, source)


@wrapper(types.MappingProxyType)
def wrap_mapping_proxy(s: Session, obj: object, source: Source | None) -> DictValue:
    """A read-only view of a dict: what that holds now."""
    if source is None or not source.watched:
        raise Unsupported("a mappingproxy is an argument", kind="opaque-container")
    s.guards.add(source, facts.identity(obj))
    try:
        behind = src.dict_behind(obj)
    except TypeError:
        raise Unsupported("a mappingproxy of a mapping that is no dict", kind="opaque-container") from None
    return DictValue(dict(s.wrap(behind, src.Behind(source)).load(s)))


@wrapper(*(type(iter(x)) for x in ([], (), range(0), {}, {}.items(), {}.values(),
                                   set(), "a", "\u00e9", b"", collections.OrderedDict())), type(reversed([])))
def wrap_iterator(s: Session, obj: object, source: Source) -> Value:
    return RealIterator(obj, source)


@wrapper(types.GeneratorType, types.CoroutineType)
def wrap_generator(s: Session, obj: object, source: Source) -> Value:
    if not native().KNOWS_GENERATORS:
        return s.heap.opaque(obj, source)
    return (GeneratorValue if type(obj) is types.GeneratorType else CoroutineValue)(obj=obj, source=source)


@wrapper(zip, map, filter, enumerate)
def wrap_iterator_over_iterators(s: Session, obj: Iterable, source: Source | None) -> Value:
    if source is None:
        raise Unsupported(f"a {type(obj).__name__} from outside whose place is not known", kind="opaque-container")
    return RealIteratorOver(obj, source, take_apart)


def take_apart(s: Session, obj: Iterable, source: Source) -> Value:
    """A ``zip``, ``map``, ``filter`` or ``enumerate`` has no position of its own (but for the count of an enumerate):
    it advances what it iterates over."""
    turns.only_in_call("an iterator is read")  # which the call advances
    state = src.state_of(obj)
    at = src.IteratorState(source)
    s.guards.add(at, facts.Length(len(state)))
    if type(obj) is enumerate and not s.varying.unrolls(source, state[1]):
        raise Unsupported("the position of an iterator is different at every call", kind="iterator-position")
    parts = [s.wrap(v, src.Item(at, i)) for i, v in enumerate(state)]
    if type(obj) is zip:
        strict = len(parts) > 0 and state[-1] is True
        return ZipIterator(parts[:-1] if strict else parts, strict)
    if type(obj) is map:
        return MapIterator(parts[0], parts[1:])
    if type(obj) is filter:
        return FilterIterator(None if state[0] is None else parts[0], parts[1])
    if not isinstance(parts[0], RealIterator):
        raise Unsupported("an enumerate over this iterator", kind="opaque-container")
    parts[0].steps = False
    value = EnumerateIterator(parts[0], parts[1].const(s))
    value.obj, value.source = obj, source
    return value


@wrapper(slice)
def wrap_slice(s: Session, obj, source) -> SliceValue:
    s.guards.add(source, facts.TypeIs(slice))
    return SliceValue(*(s.wrap(getattr(obj, n), src.GetAttr(source, n) if source is not None else None)
                        for n in ("start", "stop", "step")))


new_value(tuple)(lambda s, obj: TupleValue([s.from_python(v) for v in obj]))
new_value(torch.Size)(lambda s, obj: TupleValue([s.from_python(v) for v in obj], torch.Size))
new_value(list)(lambda s, obj: ListValue([s.from_python(v) for v in obj]))
new_value(range)(lambda s, obj: RangeValue(obj))
new_value(slice)(lambda s, obj: SliceValue(s.from_python(obj.start), s.from_python(obj.stop), s.from_python(obj.step)))


@new_value(dict)
def new_dict(s: Session, obj: object) -> Value:
    entries = {}
    for k, v in obj.items():
        key = s.from_python(k)
        entries[key.hash_key(s)] = (key, s.from_python(v))
    return DictValue(entries)


@new_value(set, frozenset)
def new_set(s: Session, obj: frozenset[int | str]) -> Value:
    values = [s.from_python(v) for v in obj]
    made = SetValue({v.hash_key(s): v for v in values}, type(obj))
    made.history = None, (copied, obj.copy())
    return made
