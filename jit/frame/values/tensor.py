"""Tensors: a ``TensorHandle`` of the tracer behind the value protocol."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...errors import NeedsEager, Unsupported
from ... import torch_private
from ...graph import constants, unwritable
from ...graph.ir import same_ints
from ...graph.tracer import TensorHandle
from ...runtime import facts
from .. import source as src
from .. import tables
from ..operators import DIVMOD, METHODS
from ..size_nodes import from_torch, to_torch
from ..states.function_state import unasked
from ..tables import wrapper
from ..tensor_guards import guard_place
from . import first_reads, unmapped
from .base import TUPLE_ITERATOR, Raised, Value, special_error, type_name
from .constant import Constant
from .descriptors import through_object
from .objects import ObjectValue, is_data_descriptor
from .text import TensorText

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..operators import Binary, Comparison, Unary
    from ..session import Session
    from ..source import Source


def _own_members() -> dict:
    """What PyTorch itself has put on ``torch.Tensor`` and an instance is asked for: name -> raw attribute. A program
    may replace any of it, and add to it."""
    found = {name: raw for cls in reversed(torch.Tensor.__mro__) for name, raw in cls.__dict__.items()}
    return {name: raw for name, raw in found.items() if hasattr(type(raw), "__get__")
            and (not isinstance(raw, types.FunctionType) or (raw.__module__ or "").startswith("torch"))}


OWN_MEMBERS = _own_members()


def is_own_member(name: str, raw: object) -> bool:
    """Whether ``raw``, found under ``name`` in a class, is what torch.Tensor itself has there."""
    return raw is not None and raw is OWN_MEMBERS.get(name)


class TensorValue(Value):
    """A tensor. From outside, ``obj`` is the real one and becomes a graph input at its first use."""

    def __init__(self, handle: TensorHandle | None = None, obj: torch.Tensor | None = None,
                 source: Source | None = None) -> None:
        self._handle, self.obj, self.source = handle, obj, source
        self.cls = type(obj) if obj is not None else torch.Tensor
        self.elsewhere = False  # its ``data`` was set
        self.grad: Value | None = None  # what its ``.grad`` is at this point of the program, if it was asked for

    def handle(self, s: Session) -> TensorHandle:
        if self._handle is None:
            if self.elsewhere:
                raise Unsupported("a tensor that requires grad is used behind setting its 'data'",
                                  kind="tensor-attribute")
            s.set_field(self, "_handle", s.recording.tensor_input(self))
        return self._handle

    def shows(self, s: Session, handle: TensorHandle | None) -> None:
        """The object shows the memory of another one from here on: ``handle``, or what is read behind the graph."""
        s.heap.touch(self)
        s.set_field(self, "_handle", handle)
        s.set_field(self, "elsewhere", True)
        if handle is not None:
            s.recording.tensors[id(handle)] = self
            s.heap.keep(handle)

    def detached(self, s: Session) -> Value:
        """The same values, outside of autograd."""
        if not self.handle(s).requires_grad:
            return self
        with unasked(s):
            return s.torch_call(torch.Tensor.detach, [self], {})

    def pytype(self, s: Session) -> type:
        if self._handle is None and self.source is not None:
            s.guards.add(self.source, facts.TypeIs(self.cls))
        return self.cls

    def identity(self) -> tuple[str, int]:
        if self.obj is not None:
            return ("object", id(self.obj))
        return ("tensor", id(self._handle))

    @property
    def stands_for_itself(self) -> bool:
        return self.obj is not None

    def hash_key(self, s: Session) -> torch.Tensor:
        if self.obj is not None:
            if self.source is not None:
                s.guards.add(self.source, facts.identity(self.obj))
            return self.obj
        return ("tensor", id(self._handle), self)

    def plain_attribute(self, s: Session, name: str) -> Value:
        """PyTorch's own attribute, past what classes and modes make of it."""
        handler = tables.tensor_attributes.get(name)
        if handler is not None:
            return handler(s, self)
        start = s.tracer.builder.next_id
        found = s.recording.traced(lambda: s.tracer.attribute(self.handle(s), name))
        if s.levels and found.is_tensor:
            unmapped.lay_out(s, OWN_MEMBERS[name].__get__, [self.handle(s)], {}, found, start)
        return found

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__class__":
            return s.wrap_class(self.pytype(s))
        found, raw, owner = s.class_lookup(self.cls, name)
        if not found or not is_own_member(name, raw):
            return self.added_attr(s, name, found, raw)
        if callable(getattr(torch.Tensor, name)) and name not in tables.tensor_attributes:
            if self.source is not None and not is_data_descriptor(raw):
                value = self.own_attr(s, name)
                if value is not None:
                    return value
            return TensorMethod(self, name)
        if name != "__dict__" and s.asker.concerns([self], {}):
            return s.asker.call(raw.__get__, [self], {})
        return self.plain_attribute(s, name)

    def added_attr(self, s: Session, name: str, found: bool, raw) -> Value:
        """An attribute that is not PyTorch's: of the class where ``found``, and else the tensor's own."""
        kept = s.lookups.is_data_descriptor(raw) if found else False
        value = None if kept else self.own_attr(s, name)
        if value is not None:
            return value
        if not found:
            raise Raised(s.exception(AttributeError(f"'{type_name(self.cls)}' object has no attribute '{name}'",
                                                    name=name)))
        return through_object(s, self, raw, name, self.cls)

    def bound_builtin(self, s: Session, raw: object, *name: str) -> NoReturn:
        raise Unsupported(f"attribute {raw.__name__!r}, which was put on torch.Tensor", kind="tensor-attribute")

    slot = getset = bound_builtin

    def own_attr(self, s: Session, name: str) -> Value | None:
        """What the program has hung on a tensor under a name, or None."""
        if (self.identity(), name) in s.effects.tensor_attributes:
            return s.effects.tensor_attributes[self.identity(), name]
        if self.obj is None:
            return None
        self.pytype(s)
        if name not in self.obj.__dict__:
            s.guards.add(self.source, facts.NoDictAttr(name))
            return None
        source = src.DictAttr(self.source, name)
        s.guards.add_presence(source)
        return s.wrap(self.obj.__dict__[name], source)

    def setattr(self, s: Session, name: str, value: Value) -> None:
        setter = tables.tensor_setters.get(name)
        if setter is not None and is_own_member(name, raw := s.class_lookup(self.cls, name)[1]):
            if s.asker.concerns([self], {}):
                s.asker.call(raw.__set__, [self, value], {})
            else:
                setter(s, self, value)
            return
        self.write_own(s, name, value)
        s.effect(setattr, [self, Constant(name), value])

    def delattr(self, s: Session, name: str) -> None:
        if self.own_attr(s, name) is None:
            raise Unsupported(f"attribute {name!r} of a tensor is deleted", kind="tensor-attribute")
        self.write_own(s, name, None)
        s.effect(delattr, [self, Constant(name)])

    def write_own(self, s: Session, name: str, value: Value) -> None:
        if s.lookups.is_data_descriptor(s.class_lookup(self.cls, name)[1]):
            raise Unsupported(f"attribute {name!r} of a tensor is set", kind="tensor-attribute")
        self.pytype(s)
        s.heap.touch(self)
        s.set_entry(s.effects.tensor_attributes, (self.identity(), name), value)

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        return self.getattr(s, name).call(s, args, {})

    def getitem(self, s: Session, key: Value) -> Value:
        return s.torch_call(torch.Tensor.__getitem__, [self, key], {})

    def setitem(self, s: Session, key: Value, value: Value) -> None:
        s.torch_call(torch.Tensor.__setitem__, [self, key, value], {})

    def known(self, s: Session) -> torch.Tensor | None:
        """A real tensor with the values, where they are known or guessed (``graph.known``, ``frame.guesses``); None for
        any other."""
        if self.obj is not None and (self.obj.is_floating_point() or self.obj.is_complex()):
            return None
        return constants.value(s.tracer.builder, self.handle(s).node)

    def asked_truth(self, s: Session) -> Value:
        s.recording.tensor_slot(self.cls, "__bool__")
        return s.asker.call(torch.Tensor.__bool__, [self], {}) if s.asker.overridden([self]) else self

    def truth(self, s: Session) -> bool:
        asked = self.asked_truth(s)
        if asked is not self:
            return asked.truth(s)
        found = self.known(s)
        if found is not None and found.numel() == 1:
            return bool(found)
        number = first_reads.needed(s, self, "__bool__")
        if number is not None:
            return number.truth(s)
        raise Unsupported("a branch depends on the values of a tensor", kind="data-dependent-branch")

    def length(self, s: Session) -> int:
        if s.asker.concerns([self], {}):
            return s.asker.call(torch.Tensor.__len__, [self], {}).const(s)
        s.recording.tensor_slot(self.cls, "__len__")
        handle = self.handle(s)
        if not handle.shape:
            raise Raised(s.exception(TypeError("len() of a 0-d tensor")))
        return handle.shape[0]

    def iter(self, s: Session) -> Value:
        s.recording.tensor_slot(self.cls, "__iter__")
        if s.asker.concerns([self], {}):  # as Tensor.__iter__ asks
            s.torch_call(torch.Tensor.dim, [self], {})
        handle = self.handle(s)
        if not handle.shape:
            raise Raised(s.exception(TypeError("iteration over a 0-d tensor")))
        parts = s.torch_call(torch.Tensor.unbind, [self, Constant(0)], {})
        return s.iterate(parts.items_list(s), TUPLE_ITERATOR)

    def tells_length(self, s: Session) -> bool:
        return s.asker.overridden([self])

    def tell_length(self, s: Session) -> None:
        s.asker.call(torch.Tensor.__len__, [self], {})

    def backwards(self, s: Session) -> Value:
        raise Unsupported("reversed() of a tensor", kind="iterate")

    def truth_value(self, s: Session) -> Value:
        if self.known(s) is not None:
            return super().truth_value(s)
        if s.asker.concerns([self], {}):
            return self.call_method(s, "__bool__")
        s.recording.tensor_slot(self.cls, "__bool__")
        return s.recording.read_later(bool, self, "keep it a tensor, and use torch.where")

    def to_int(self, s: Session) -> Value:
        if s.asker.overridden([self]):
            return s.asker.call(torch.Tensor.__int__, [self], {})
        if self.known(s) is not None:
            return self.call_method(s, "__int__")
        return s.recording.read_later(int, self, "keep it a tensor")

    def to_float(self, s: Session) -> Value:
        if s.asker.overridden([self]):
            return s.asker.call(torch.Tensor.__float__, [self], {})
        if self.known(s) is not None:
            return self.call_method(s, "__float__")
        return s.recording.read_later(float, self, "keep it a tensor")

    def absolute(self, s: Session) -> Value:
        return s.torch_call(torch.Tensor.abs, [self], {})

    def rounded(self, s: Session, digits: list[Value]) -> Value:
        cls = self.pytype(s)
        if not hasattr(cls, "__round__"):
            raise Raised(s.exception(TypeError(special_error(cls, "__round__"))))
        return s.torch_call(torch.round, [self], {"decimals": digits[0]} if digits else {})

    def hashed(self, s: Session) -> Value:
        return self.call_method(s, "__hash__")

    def text(self, s: Session, method: str) -> Value:
        if s.asker.overridden([self]):
            return s.asker.call(torch.Tensor.__repr__, [self], {})
        return TensorText.of(s, self, "str" if method == "__str__" else "repr")

    def formatted(self, s: Session, spec: Value) -> Value:
        if s.asker.overridden([self]):
            return s.asker.call(torch.Tensor.__format__, [self, spec], {})
        return TensorText.of(s, self, None, spec.const(s))

    is_numeric = is_tensor = can_wait = True
    levels: tuple = ()  # the maps that it varies under: see ``values.batched``

    @property
    def whole(self) -> TensorValue:
        """The tensor of all elements, of one that is mapped."""
        return self

    def probed(self, s: Session) -> TensorHandle:
        return self.handle(s)

    def fits(self, s: Session, made: Any) -> bool:
        """Whether a stand-in (``frame.stand_ins``) is still of its type."""
        t = self.handle(s).type
        return (made.value is self and made.requires_grad == self.handle(s).requires_grad and made.dtype == t.dtype
                and same_ints(tuple(map(from_torch, made.shape)), t.shape)
                and same_ints(tuple(map(from_torch, made.stride())), t.strides))

    def new_stand_in(self, s: Session, kind: type, requires_grad: bool | None = None) -> Any:
        handle = self.handle(s)
        sizes, strides = (tuple(map(to_torch, of)) for of in (handle.type.shape, handle.type.strides))
        return torch_private.make_wrapper(kind, sizes, strides=strides, dtype=handle.dtype, device=handle.type.device,
                                          requires_grad=handle.requires_grad if requires_grad is None
                                          else requires_grad)

    def unwritable(self, s: Session) -> str | None:
        """Why a tensor that requires grad may not be written where gradients are recorded; see the file of that
        name."""
        guard_place(s, self)
        return unwritable.which(self.handle(s))

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        return s.torch_call(op.fn, [a, b], {}) if a.is_numeric and b.is_numeric and op is not DIVMOD else None

    def unary(self, s: Session, op: Unary) -> Value | None:
        return s.torch_call(op.fn, [self], {})

    def derives(self, s: Session, other: Value) -> bool:
        if not other.is_tensor or self.cls is other.cls or not issubclass(self.cls, other.cls):
            return False
        self.pytype(s), other.pytype(s)
        return True

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if other.is_numeric:
            return s.torch_call(op.fn, [self, other], {})
        self.pytype(s), other.pytype(s)
        if op.equality and s.asker.overridden([self, other]):  # the one that asks before it looks at the other
            result = s.torch_call(torch.Tensor.__eq__, [self, other], {})
            return None if result.is_leaf and result.value is NotImplemented else result
        return None

    def has_index(self, s: Session) -> bool:
        """A tensor is an index as far as Python is concerned; one whose values are not known is a break."""
        if self.known(s) is None:
            raise Unsupported("a tensor is used as an index", "index with an int", kind="data-dependent-value")
        return True

    def index(self, s: Session) -> int:
        return self.getattr(s, "__index__").call(s, [], {}).index(s)

    def contains(self, s: Session, item: Value) -> bool | None:
        raise Unsupported("`in` on the values of a tensor", kind="data-dependent-branch")

    def lower(self, s: Session) -> Any:
        return self.handle(s)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            e.load_graph_output(self)

    def describe(self) -> str:
        return "a tensor" + (f" ({self.source})" if self.source is not None else "")


class TensorMethod(Value):
    """A method of a tensor."""

    def __init__(self, owner: TensorValue, name: str) -> None:
        self.owner, self.name = owner, name

    def pytype(self, s: Session) -> type:
        return type(getattr(torch.Tensor, self.name))

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        s.calls.guard_kinds(args, kwargs, getattr(torch.Tensor, self.name))
        handler = tables.tensor_methods.get(self.name)
        if s.asker.takes_method(self.owner, self.name, args, kwargs):
            return s.asker.call(getattr(torch.Tensor, self.name), [self.owner, *args], kwargs)
        if handler is not None:
            s.calls.check_method(getattr(torch.Tensor, self.name), self.owner, args, kwargs)
            result = handler(s, self.owner, args, kwargs)
            if result is not None:
                return result
        return s.torch_call(getattr(torch.Tensor, self.name), [self.owner, *args], kwargs)

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__self__":
            return self.owner
        method = getattr(torch.Tensor, self.name)
        if not hasattr(method, name):
            raise Unsupported(f"the attribute {name} of a tensor's method", kind="tensor-attribute")
        return Constant(getattr(method, name))

    def emit(self, e: Emitter) -> None:
        e.load(self.owner)
        e.load_attr(self.name)

    def describe(self) -> str:
        return f"method Tensor.{self.name}"


class GradNode(Value):
    """The ``grad_fn`` of a tensor made while capturing: it is not None, and a program that looks any closer runs in
    eager, where it is what it would be."""

    def needed(self, *args):
        raise NeedsEager("grad_fn of a tensor is looked at", "look at it outside the compiled function",
                         kind="gradient")

    pytype = getattr = setattr = delattr = call_special = hash_key = emit = needed


# C functions that call a special method: -> the names that the first and the second operand are asked for.
SLOTS = METHODS | {torch.Tensor.__getitem__: ("__getitem__", None), torch.Tensor.__setitem__: ("__setitem__", None)}


class RandomGenerator(ObjectValue):
    """A ``torch.Generator``."""

    def lower(self, s: Session) -> Any:
        return self.known(s)

    def known(self, s: Session) -> torch.Generator:
        """The generator itself, which becomes a part of the graph. Raises Unsupported where it is another one at each
        call."""
        source, seen = self.source, s.varying.history
        if (seen is not None and not seen.in_one_graph and source is not None
            and not source.watched and seen.is_replaced(source, self.obj)):
            raise Unsupported("the random generator is a different object at every call",
                              "keep one generator, and seed it again", kind="torch-argument")
        return self.pin(s)


wrapper(torch.Generator)(lambda s, obj, source: RandomGenerator(type(obj), obj, source))
