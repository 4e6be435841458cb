"""Calling classes that are implemented in C: containers, descriptors, iterators, exceptions' helpers."""

from __future__ import annotations

import collections
import functools
import types
from typing import TYPE_CHECKING

import torch

from ...errors import Unsupported
from .. import messages, protocols
from ..tables import on_call, on_method
from ..values.base import Raised
from ..values.constant import Constant
from ..values.containers import DequeValue, ListValue, TupleValue
from ..values.mappings import DictValue, mapping_items
from ..values.sets import SetValue
from ..values.functions import CellValue, MethodValue, PartialValue
from ..values.objects import ObjectValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


@on_call(list)
def list_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(args[0].listed(s) if args else [])


@on_call(tuple)
def tuple_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and args[0].builtin is tuple and args[0].cls is tuple:
        return args[0]
    return TupleValue(args[0].listed(s) if args else [])


@on_call(torch.Size)
def size_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> TupleValue:
    return TupleValue(args[0].listed(s) if args else [], torch.Size)


def _new_set(cls: type) -> None:
    @on_call(cls)
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = SetValue.of(s, args[0].items_list(s) if args else [], cls)
        if args and type(args[0]) is SetValue:
            made = SetValue.made_by(s, made.entries, cls, cls, args[0])
        return made


_new_set(set)
_new_set(frozenset)


def fill_dict(s: Session, cls: type, args: list[Value], kwargs: dict[str, Value]) -> list[tuple[Value, ...]]:
    """The pairs with which ``update`` of a dict or an OrderedDict, ``cls``, is called."""
    pairs = []
    if args:
        source = args[0]
        if source.builtin is dict or source.is_object and source.has_special(s, "keys"):
            pairs = mapping_items(s, source)
        else:
            it, pair = source.iter(s), _ordered_pair if issubclass(cls, collections.OrderedDict) else _pair
            while (item := it.next(s)) is not None:
                pairs.append(pair(s, item, len(pairs)))
    pairs += [(Constant(k), v) for k, v in kwargs.items()]
    return pairs


def _pair(s: Session, item: Value, at: int) -> tuple:
    pair = protocols.iterate(s, item, messages.not_a_pair(at)).items_list(s)
    if len(pair) != 2:
        raise Raised(s.exception(ValueError(
            f"dictionary update sequence element #{at} has length {len(pair)}; 2 is required")))
    return tuple(pair)


def _ordered_pair(s: Session, item: Value, at: int) -> tuple:
    pair = item.items_list(s)
    if len(pair) > 2:
        raise Raised(s.exception(ValueError(messages.too_many(2, None))))
    if len(pair) < 2:
        raise Raised(s.exception(ValueError(f"need more than {len(pair)} value{'' if pair else 's'} to unpack")))
    return tuple(pair)


@on_call(dict)
def dict_(s: Session, args: list[Value], kwargs: dict[str, Value], cls: type = dict) -> Value:
    entries = {}
    for k, v in fill_dict(s, cls, args, kwargs):
        h = messages.dict_key(s, k, is_new=True)
        entries[h] = (entries[h][0] if h in entries else k, v)
    return DictValue(entries)


@on_call(collections.OrderedDict)
def ordered_dict(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = collections.OrderedDict
    return DictValue(dict_(s, args, kwargs, cls).entries, cls)


@on_call(collections.defaultdict)
def default_dict(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory = args[0] if args else Constant(None)
    return DictValue(dict_(s, args[1:], kwargs).entries, collections.defaultdict, factory=factory)


@on_call(collections.deque)
def deque_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    maxlen = kwargs.get("maxlen", args[1] if len(args) > 1 else Constant(None)).const(s)
    value = DequeValue([], maxlen=maxlen)
    value._elements = value.trimmed((kwargs.get("iterable") or args[0]).items_list(s) if args or "iterable" in kwargs
                                    else [])
    return value


@on_call(dict.fromkeys)
def dict_fromkeys(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[1] if len(args) > 1 else Constant(None)
    entries: dict = {}
    for k in args[0].items_list(s):
        entries.setdefault(messages.dict_key(s, k, is_new=True), (k, value))
    return DictValue(entries)


@on_call(vars(dict)["fromkeys"], vars(collections.OrderedDict)["fromkeys"])
def subclass_fromkeys(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a class derived from dict, which is called and filled."""
    made = args[0].call(s, [], {})
    for key in args[1].items_list(s):
        made.setitem(s, key, args[2] if len(args) > 2 else Constant(None))
    return made


@on_call(functools.partial)
def partial_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn, rest = args[0], list(args[1:])
    if not fn.is_callable(s):
        raise Raised(s.exception(TypeError("the first argument must be callable")))
    if isinstance(fn, PartialValue):
        return PartialValue(fn.fn, [*fn.args, *rest], {**fn.kwargs, **kwargs})
    return PartialValue(fn, rest, dict(kwargs))


@on_call(types.MethodType)
def method_type(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MethodValue(args[0], args[1])


@on_call(types.CellType)
def cell_type(s: Session, args: list[Value], kwargs: dict[str, Value]) -> CellValue:
    return CellValue(args[0] if args else CellValue.UNSET)


@on_call(types.SimpleNamespace)
def simple_namespace(s: Session, args: list[Value], kwargs: dict[str, Value]):
    value = ObjectValue(types.SimpleNamespace)
    namespace_init(s, value, args, kwargs)
    return value


@on_method((types.SimpleNamespace, "__init__"))
def namespace_init(s: Session, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    if args:
        raise Unsupported("types.SimpleNamespace is given positional arguments", kind="instantiate")
    for name, given in kwargs.items():
        value.plain_setattr(s, name, given)
    return Constant(None)


def _namespace_equal(a: list[Value], b):
    if isinstance(a, types.SimpleNamespace) and isinstance(b, types.SimpleNamespace):
        return a.__dict__ == b.__dict__
    return NotImplemented


def _namespace_text(obj) -> str:
    name = "namespace" if type(obj) is types.SimpleNamespace else type(obj).__name__
    return name + "(" + ", ".join(f"{k}={v!r}" for k, v in obj.__dict__.items()) + ")"


for _name, _fn in (("__eq__", _namespace_equal), ("__repr__", _namespace_text)):
    on_method((types.SimpleNamespace, _name))(lambda s, value, args, kwargs,
                                              fn=_fn: s.inline(s.wrap_raw(fn), [value, *args], kwargs))


for _cls in (torch.device, torch.finfo, torch.iinfo):
    on_call(_cls)(lambda s, args, kwargs, cls=_cls: s.fold(cls, args, kwargs))


@on_call(object.__new__, dict.__new__, list.__new__, tuple.__new__, set.__new__, frozenset.__new__,
         collections.OrderedDict.__new__, BaseException.__new__, Exception.__new__)
def new(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args or args[0].as_class is None:
        raise Unsupported("object.__new__() is given something that is no class", kind="argument-error")
    return s.calls.allocate(args[0].const(s), args[1:], kwargs)
