"""Tensors of classes derived from ``torch.Tensor``.

``HeldTensor``: it has data of its own, as that of ``x.as_subclass(C)``; the class may have a ``__torch_function__``.
``WrapperTensor``: it has none; the class has a ``__torch_dispatch__``, which computes with the tensors that the object
keeps in its attributes (``torch.Tensor._make_wrapper_subclass``). Those become inputs of the graph where they are used,
as any tensor in an attribute does, and what else is read of the object, such as what ``__tensor_flatten__`` calls its
context, is guarded where it is read.

Objects made while capturing are made again behind the graph, by the calls that made them, and get their attributes.
"""

from __future__ import annotations

import functools
import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, NoReturn

import torch

from ... import torch_private
from ...errors import Unsupported
from ...graph import unwritable
from ...graph.input_strides import symbolic_strides
from ...graph.tracer import TensorHandle
from ...runtime import facts
from ...runtime.guards import TensorSpec
from .. import messages
from .. import source as src, tables
from ..size_nodes import to_torch
from ..subclass_gradients import emerge, emit_shown
from ..tables import wrapper
from ..tensor_guards import guard_place
from .base import TUPLE_ITERATOR, Raised, Value
from .constant import Constant
from .objects import instance_dict, by_python
from .overlays import DELETED, Overlay
from .tensor import OWN_MEMBERS, TensorMethod, TensorValue, is_own_member

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session
    from ..source import Source

PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
KINDS: dict[tuple[str, str], type[WrapperTensor]] = {}  # (module, name) of a class of PyTorch's -> its values


def overrides_functions(s: Session, cls: type) -> bool:
    """Whether PyTorch asks a class about each call of its functions."""
    return cls not in PLAIN_CLASSES and s.class_lookup(cls, "__torch_function__")[1] is not torch_private.no_function


def dispatches(s: Session, cls: type) -> bool:
    """Whether PyTorch asks a class about each operator."""
    return cls not in PLAIN_CLASSES and s.class_lookup(cls, "__torch_dispatch__")[1] is not torch_private.no_dispatch


class SubclassTensor(TensorValue):
    """Of both kinds."""

    def overrides_functions(self, s: Session) -> bool:
        self.pytype(s)
        return overrides_functions(s, self.cls)

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__class__":
            return s.wrap_class(self.pytype(s))
        self.pytype(s)
        found, raw, _ = s.class_lookup(self.cls, name)
        if not found or not is_own_member(name, raw):
            return self.added_attr(s, name, found, raw)
        if type(raw) in (classmethod, staticmethod):
            return s.wrap_class(self.cls).getattr(s, name)
        if callable(getattr(torch.Tensor, name)):
            value = self.own_attr(s, name)
            return TensorMethod(self, name) if value is None else value
        if name == "__dict__":
            raise Unsupported("the __dict__ of a tensor is read", kind="tensor-attribute")
        if s.asker.concerns([self], {}):
            return s.asker.call(raw.__get__, [self], {})
        return self.plain_attribute(s, name)


class HeldTensor(SubclassTensor):
    """See above. ``maker``: what makes it of a plain tensor, with what follows the tensor's class."""

    def __init__(self, cls: type, handle: TensorHandle | None = None, obj: torch.Tensor | None = None,
                 source: Source | None = None, maker: Any = None) -> None:
        super().__init__(handle, obj, source)
        self.cls, self.maker = cls, maker

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            made = e.local(e.graph_output(self)), e.const(self.cls)
            if self._handle.is_leaf and self._handle.requires_grad:
                e.call(leaf_of, e.const(self.maker), *made)
            else:
                e.call(self.maker, *made)


def leaf_of(maker: Callable, tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """A tensor of a class that ``maker`` makes of a plain one, as a leaf that requires grad. The class has been asked
    while capturing."""
    with torch_private.WithoutFunctionOfClasses():
        return maker(tensor.detach(), cls).requires_grad_()


class WrapperTensor(SubclassTensor):
    """See above. ``made``: the arguments that ``_make_wrapper_subclass`` was called with."""

    dispatches = True
    carrying: tuple[str, ...] | None = None  # which of the tensors inside have gradients, where not all of real numbers

    def __init__(self, cls: type, obj: torch.Tensor | None = None, source: Source | None = None,
                 made: tuple[list[Value], dict[str, Value]] = ((), {})) -> None:  # type: ignore[assignment]
        super().__init__(None, obj, source)
        self.cls, self.made = cls, made
        self.attrs = Overlay(obj is not None)
        self.carriers: dict | None = None  # see ``subclass_gradients``

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.obj)) if self.obj is not None else ("value", id(self))

    def hash_key(self, s: Session) -> Any:
        return super().hash_key(s) if self.obj is not None else ("value", id(self), self)

    def handle(self, s: Session) -> NoReturn:
        raise Unsupported(f"the data of a {self.cls.__name__}, which has none of its own", kind="tensor-subclass")

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(self.cls))
        return self.cls

    def known(self, s: Session) -> None:
        return None

    def detached(self, s: Session) -> Value:
        return s.torch_call(torch.Tensor.detach, [self], {})

    # -- attributes ---------------------------------------------------------------------------------------------------

    def plain_attribute(self, s: Session, name: str) -> Value:
        return s.asker.call(OWN_MEMBERS[name].__get__, [self], {})

    def of_the_object(self, s: Session, name: str) -> Value:
        """What autograd keeps of it."""
        if self.obj is None or name not in ("grad", "_grad"):
            raise Unsupported(f"{name} of a {self.cls.__name__}", kind="tensor-attribute")
        return tables.tensor_attributes[name](s, self)

    def own_attr(self, s: Session, name: str) -> Value | None:
        value = self.attrs.get(name)
        if value is not None or self.obj is None:
            return None if value is DELETED else value
        real = instance_dict(self.obj) or {}
        if name not in real:
            s.guards.add(self.source, facts.NoDictAttr(name))
            return None
        source = src.DictAttr(self.source, name)
        s.guards.add_presence(source)
        return s.wrap(real[name], source)

    def slot(self, s: Session, raw: Any, name: str) -> Value:
        value = self.attrs.get(name)
        if value is DELETED or value is None and (self.obj is None or not hasattr(self.obj, name)):
            raise Raised(s.exception(AttributeError(messages.no_slot(self.cls, name), name=name)))
        return s.wrap(raw.__get__(self.obj), src.GetAttr(self.source, name)) if value is None else value

    getset = slot

    def setattr(self, s: Session, name: str, value: Value) -> None:
        setter = s.function_of_class(self.pytype(s), "__setattr__")
        if setter is not None:
            s.bound_method(setter, self).call(s, [Constant(name), value], {})
            return
        found, raw, _ = s.class_lookup(self.cls, name)
        if found and is_own_member(name, raw):
            raise Unsupported(f"attribute {name!r} of a {self.cls.__name__} is set", kind="tensor-attribute")
        kind = s.class_lookup(type(raw), "__set__")[2] if found else None
        if kind is property:
            if raw.fset is None:
                raise Raised(s.exception(AttributeError(
                    f"property {name!r} of {self.cls.__name__!r} object has no setter")))
            s.wrap_raw(raw.fset).call(s, [self, value], {})
            return
        if kind is not None and by_python(kind, "__set__"):
            s.wrap_class_attr(type(raw), "__set__").call(s, [s.wrap_class_attr(self.cls, name), self, value], {})
            return
        if kind not in (None, types.MemberDescriptorType):
            raise Unsupported(f"{name!r} of {self.describe()} is set through a descriptor", kind="descriptor")
        self.put(s, name, value, object.__setattr__, value)

    def delattr(self, s: Session, name: str) -> None:
        if self.own_attr(s, name) is None:
            raise Unsupported(f"attribute {name!r} of a tensor is deleted", kind="tensor-attribute")
        self.put(s, name, DELETED, object.__delattr__)

    def put(self, s: Session, name: str, value: Any, fn: Any, *args: Value) -> None:
        self.attrs.delete(s, name) if value is DELETED else self.attrs.put(s, name, value)
        if self.obj is not None:
            s.heap.touch(self)
            s.effect(fn, [self, Constant(name), *args])

    # -- as a stand-in ------------------------------------------------------------------------------------------------

    def fits(self, s: Session, made: Any) -> bool:
        return made.value is self

    def new_stand_in(self, s: Session, kind: type, requires_grad: bool | None = None) -> Any:
        if self.obj is None:
            args, kwargs = self.made
            if len(args) > 6 or "layout" in kwargs and kwargs["layout"].const(s) is not torch.strided:
                raise Unsupported(f"a {self.cls.__name__}, which is no tensor of plain sizes", kind="tensor-layout")
            return torch_private.make_wrapper(kind, *map(s.asker.to_real, args[1:]),
                                              **{k: s.asker.to_real(v) for k, v in kwargs.items()})
        obj = self.obj
        if obj.layout is not torch.strided or obj.is_nested or not all(type(n) is int for n in obj.shape):
            raise Unsupported(f"a {self.cls.__name__}, which is no tensor of plain sizes", kind="tensor-layout")
        history, env = s.varying.history, s.tracer.env
        varies = set() if history is None else history.tensor_dims(self.source, obj)
        sizes = tuple([env.symbol(n, (self.source, "size", d)) if d in varies else n for d, n in enumerate(obj.shape)])
        strides = symbolic_strides(obj, sizes, env, self.source) if varies else obj.stride()
        fixed = [tuple([n if type(n) is int else None for n in of]) for of in (sizes, strides)]
        s.guards.add(self.source, facts.Tensor(replace(TensorSpec.of(obj), sizes=fixed[0], strides=fixed[1])))
        return torch_private.make_wrapper(
            kind, tuple(map(to_torch, sizes)), strides=tuple(map(to_torch, strides)),
            storage_offset=obj.storage_offset(), dtype=obj.dtype, device=obj.device, requires_grad=obj.requires_grad)

    def unwritable(self, s: Session) -> str | None:
        guard_place(s, self)
        return "a leaf" if self.obj is None else unwritable.of_real(self.obj)

    def length(self, s: Session) -> Any:
        return s.torch_call(torch.Tensor.__len__, [self], {}).const(s)

    def iter(self, s: Session) -> Value:
        if s.asker.overridden([self]):  # as Tensor.__iter__ asks
            s.torch_call(torch.Tensor.dim, [self], {})
        return s.iterate(s.torch_call(torch.Tensor.unbind, [self, Constant(0)], {}).items_list(s), TUPLE_ITERATOR)

    def truth(self, s: Session) -> bool:
        return s.torch_call(torch.Tensor.__bool__, [self], {}).truth(s)

    # -- behind the graph ---------------------------------------------------------------------------------------------

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
            return
        known, view = e.session.asker.made.get(id(self)), e.session.asker.view_of(self)
        parts = e.session.asker.emerging(self) if known is not None and known[1].requires_grad and not view else {}
        args, kwargs = self.made
        e.call_const(torch_private.make_wrapper, args, kwargs)
        e.remember(self)
        for name, value in self.attrs.items():
            part = parts[name].shown if name in parts and value is parts[name].inside else None
            if view and type(value) is TensorValue and value.obj is None:
                part = value  # a view below autograd requires no grad, whatever it is a view of
            if value is not DELETED:
                e.fill(object.__setattr__, self, e.const(name), functools.partial(e.load, value) if part is None
                       else functools.partial(e.call_const, torch.Tensor.detach, [part]))
        if parts:
            made = e.memo[self.memo_key()]
            e.cmd("pop")
            e.call(emerge, e.local(made), e.const(tuple(parts)),
                   *(functools.partial(e.load, p.history) for p in parts.values()))
            e.remember(self)
        if view:
            emit_shown(e, self, view)

    def describe(self) -> str:
        return f"a {self.cls.__name__}" + (f" ({self.source})" if self.source is not None else "")


@wrapper(torch.Tensor)
def wrap_tensor(s: Session, obj: torch.Tensor, source: Source | None) -> TensorValue:
    cls = type(obj)
    if cls in PLAIN_CLASSES:
        return TensorValue(None, obj, source)
    s.set_field(s.asker, "seen", True)
    kind = KINDS.get((cls.__module__, cls.__qualname__), WrapperTensor)
    return kind(cls, obj, source) if dispatches(s, cls) else HeldTensor(cls, None, obj, source)

