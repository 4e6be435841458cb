"""Calls of PyTorch with tensors of classes of the program's, which have a say in what an operation does: by
``__torch_function__`` before PyTorch does anything, and by ``__torch_dispatch__`` at each operator of ATen that is left
when the call has been decomposed and recorded for autograd.

Which operators these are, with which arguments, and when a class is asked, is PyTorch's own business, and PyTorch is
asked: the call is made for real on *stand-ins*, tensors without data that have the type of a value. Where PyTorch
would call the program's Python it calls ours, which executes the program's symbolically; an operator on plain tensors
is recorded. So the graph has what the program's classes make of the call, in its order, and nothing of it is guessed.

Gradients: with autograd on, PyTorch records the call for the stand-ins as it does in eager, above the dispatch to the
class. A plain tensor that comes out of it is the result of a function with a backward of its own
(``graph.functions``): PyTorch's engine is run on stand-ins for the gradients, and what its formulas do is executed and
recorded the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch

from .. import torch_private
from ..errors import JitError, Unsupported
from ..graph.binding import resolve
from ..graph.functions import FunctionTrace
from ..graph.ops.metadata import NOT_OPERATIONS
from . import source as src
from . import tables
from .size_nodes import from_torch, to_torch
from .subclass_gradients import arguments, rebuilt, taken_apart, with_gradient
from .states import function_state
from .states.autocast import AUTOCAST
from .states.index_modes import MODES, function_modes
from .states.grad_mode import GRAD_MODE
from .values.base import Raised, Value
from .values.constant import Constant, is_leaf
from .values.containers import ListValue, TupleValue
from .values.jagged import NestedInt, SizeOfSequences
from .values.lifting import lift
from .values.mappings import DictValue, Unpacked
from .values.new_parameters import refuse_leaves

if TYPE_CHECKING:
    from ..graph.handles import TensorHandle
    from .session import Session
    from .values.tensor import TensorValue


class StandIn(torch.Tensor):
    """Stands for ``value`` while PyTorch is asked by ``asker``."""

    value: TensorValue
    asker: Asker
    since: int  # ``Asker.operators`` when it was made
    placed = False  # its history only says what autograd takes the tensor for; see ``_placed``
    __torch_function__ = torch_private.no_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        """What C++ asks of a tensor beside operators, such as how many dimensions it has."""
        given = next(_stand_ins((args, kwargs or {})))
        return given.asker.at_operator(func, args, kwargs or {})


class Asked(StandIn):
    """The same of a class that has a ``__torch_function__``; see ``Asker.kind_of``."""

    of: type  # the program's

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        given = next(_stand_ins((args, kwargs or {})))
        return given.asker.at_function(func, types, args, kwargs)


class AskedObject:
    """Stands for an object that is no tensor, of a class that has a ``__torch_function__``."""

    of: type

    def __init__(self, value: Value, asker: Asker) -> None:
        self.value, self.asker = value, asker

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        given = next(_stand_ins((args, kwargs or {}), (StandIn, AskedObject)))
        return given.asker.at_function(func, types, args, kwargs)


class Opaque:
    """Stands for what PyTorch only hands on."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Alike:
    """In place of an asker: operators give new stand-ins like the one that they are called with."""

    @staticmethod
    def at_operator(func: object, args: tuple, kwargs: dict) -> StandIn:
        t = args[0]
        return torch_private.make_wrapper(type(t), t.shape, strides=t.stride(), storage_offset=t.storage_offset(),
                                          dtype=t.dtype, device=t.device)


def _placed(made: StandIn, unwritable: str | None) -> StandIn:
    """A stand-in that requires grad as what autograd takes the tensor for: a leaf, a view of one, or a result."""
    if not made.requires_grad or unwritable == "a leaf" or torch_private.below_autograd():
        return made
    made.asker = Alike()  # type: ignore[assignment]
    operator = torch.ops.aten.clone if unwritable is None else torch.ops.aten.alias
    with torch.enable_grad(), torch_private.WithoutFunctionOfClasses():
        found = operator(made)
    found.placed = True
    return found


class Operators:
    """A mode that has the operators of a call come to the asker. It is none by inheritance: those of PyTorch load its
    own compiler."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker

    def __enter__(self) -> None:
        torch_private.push_dispatch_mode(self)

    def __exit__(self, *error: object) -> None:
        torch_private.pop_dispatch_mode(None)

    def is_infra_mode(self) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.asker.at_operator(func, args, kwargs or {})


class Modes(torch.overrides.TorchFunctionMode):
    """In place of the program's modes, which are asked symbolically."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.asker.at_function(func, types, args, kwargs)


def _stand_ins(v: object, kinds: tuple = (StandIn,)) -> Iterator[Any]:
    """Those in nested arguments."""
    if isinstance(v, kinds):
        yield v
    elif isinstance(v, (list, tuple)):
        for part in v:
            yield from _stand_ins(part, kinds)
    elif type(v) is dict:
        yield from _stand_ins(tuple(v.values()), kinds)


class Asker:
    """Of one capture.

    Attributes:
        seen: whether the program has a tensor of a class of its own, or a mode: all else goes past this.
        kinds: a class of the program's -> that of stand-ins; see ``kind_of``.
        made: id of a value -> (value, its stand-in).
        leaves: id of a stand-in that has a history -> (it, stand-ins that this history may lead to).
        shown: id of what a call has given that shows the memory of its argument -> how; see ``Shown``.
        depth: how many operators are being executed inside one another; ``operators``: how many there were.
        released: ids of values whose stand-ins are not to be kept in ``made``, but by PyTorch alone.
        keys: PyTorch's thread-local dispatch keys where the program is, if they are not those ``outer`` of the call.
    """

    def __init__(self, s: Session) -> None:
        self.s = s
        self.seen = False
        self.depth = self.operators = 0
        self.released: set[int] = set()
        self.kinds: dict[type, type] = {}
        self.made: dict[int, tuple[TensorValue, StandIn]] = {}
        self.leaves: dict[int, tuple[StandIn, list[StandIn]]] = {}
        self.shown: dict[int, Shown] = {}
        self.keys: tuple | None = None
        self.outer = torch_private.included_keys(), torch_private.excluded_keys()

    def close(self) -> None:
        self.kinds.clear()
        self.made.clear()
        self.leaves.clear()
        self.shown.clear()

    # -- whose business a call is -------------------------------------------------------------------------------------

    def concerns(self, args: Iterable[Value], kwargs: dict[str, Value]) -> bool:
        """Whether a class or a mode of the program's has a say in a call of these arguments."""
        if not self.seen:
            return False
        if function_modes(self.s) and function_state.modes_on(self.s):
            return True
        by_class = function_state.classes_on(self.s)
        return any(v.dispatches or by_class and v.overrides_functions(self.s)
                   for v in parts_of(self.s, (*args, *kwargs.values())))

    def meets(self, cls: type) -> None:
        """The program has an object of a class, which is none of tensors."""
        if not self.seen and hasattr(cls, "__torch_function__"):
            self.s.set_field(self, "seen", True)

    def overridden(self, values: Iterable[Value]) -> bool:
        """``torch.overrides.has_torch_function`` of these."""
        if not self.seen:
            return False
        if function_modes(self.s) and function_state.modes_on(self.s):
            return True
        return function_state.classes_on(self.s) and any(v.overrides_functions(self.s) for v in values)

    def takes(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
        """Whether a function in C is to be called by ``builtin``."""
        if not self.seen:
            return False
        if getter_of(fn) is not None:
            return len(args) > 0 and args[0].is_tensor
        if (getattr(fn, "__module__", None) in ("_operator", "builtins") or fn in _MAKERS
            or not self.s.tracer.supports(fn)):
            return False
        return self.concerns(args, kwargs)

    def takes_method(self, owner: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> bool:
        """As ``takes`` of a method of tensors. What is done to the object itself, such as hooks, is no operation."""
        if not self.concerns([owner, *args], kwargs) or getattr(torch.Tensor, name) in _MAKERS:
            return False
        return (name not in tables.tensor_methods or name in _BY_OPERATORS
                or self.overridden(parts_of(self.s, (owner, *args, *kwargs.values()))))

    # -- asking PyTorch -----------------------------------------------------------------------------------------------

    def call(self, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``fn(*args, **kwargs)`` of PyTorch, in which the program's classes have a say."""
        s = self.s
        refuse_leaves(s, (*args, *kwargs.values()))
        if (any(level.duals is None and not level.randomness for level in s.levels)
                and any(v.dispatches for v in parts_of(s, (*args, *kwargs.values())))):
            raise Unsupported("a tensor of a class with a __torch_dispatch__ inside of a gradient of torch.func, where "
                              "eager wraps it", kind="functorch")
        binding = resolve(fn)
        if binding is not None and binding.name in NOT_OPERATIONS and not self.overridden(parts_of(s, args)):
            raise Unsupported(f"Tensor.{binding.name} of a tensor of a class with a __torch_dispatch__",
                              kind="tensor-attribute")
        if getter_of(fn) in _OF_THE_OBJECT and args[0].dispatches and not self.overridden(parts_of(s, args)):
            return args[0].of_the_object(s, fn.__self__.__name__)
        given = [Opaque(a) if fn is torch.Tensor.__eq__ and not a.is_numeric and not a.overrides_functions(s)
                 else self.to_real(a) for a in args]
        named = {k: self.to_real(v) for k, v in kwargs.items()}
        mine = list(_stand_ins((given, named)))
        before = [(t, history_of(t)) for t in mine] if s.states.peek(GRAD_MODE) else []
        with self.as_program(), Operators(self):
            try:
                result = fn(*given, **named) if named or type(kwargs) is Unpacked else fn(*given)
            except JitError:
                raise
            except Raised as raised:
                if getattr(fn, "__module__", None) == "_operator" and s.is_exception(raised.value, TypeError):
                    raise Unsupported("a TypeError of a class or mode that an operator asks, for which Python asks the "
                                      "other operand", kind="argument-error") from None
                raise
            except Exception as error:  # of PyTorch's, as in eager
                if names_stand_ins(error, mine):
                    raise Unsupported("an error of PyTorch whose text may name a class or a size",
                                      kind="argument-error") from None
                raise Raised(s.exception(error)) from None
        if any(history_of(t) is not history for t, history in before):
            raise Unsupported("a tensor of a class with __torch_dispatch__, or one beside it, is changed in place "
                              "where gradients are recorded", "use the operation that gives a new tensor",
                              kind="gradient")
        for made in _stand_ins((result,)):
            self.made[id(made.value)] = made.value, made
            # A leaf, or one that is placed, stands for what has its history already.
            if not made.placed and not any(made is t for t in mine) and not made.is_leaf:
                self.leaves.setdefault(id(made), (made, self.histories(mine)))
        if not self.depth:
            self.with_history(result, mine)
        return self.to_value(result)

    def builtin(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A function in C of which ``takes`` says so."""
        name = getter_of(fn)
        if name is None or self.concerns(args, kwargs):
            return self.call(fn, args, kwargs)
        return args[0].plain_attribute(self.s, name)

    @contextlib.contextmanager
    def as_program(self) -> Iterator[None]:
        """PyTorch's own switches as the program has set them."""
        s = self.s
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(s.states.peek(GRAD_MODE)))
            for (what, *device), value in s.states.of(AUTOCAST).items():
                if what == "enabled":
                    dtype = s.states.peek(AUTOCAST, "dtype", *device)
                    stack.enter_context(torch.autocast(*device, dtype=dtype, enabled=value))
            stack.enter_context(_function_state(s.states.peek(function_state.FUNCTION_STATE)))
            if function_modes(s) and function_state.modes_on(s):  # last: the program's modes see no switch of ours
                stack.enter_context(Modes(self))
            if self.keys is not None:
                stack.enter_context(torch_private.ForceKeys(*self.keys))
            yield

    @contextlib.contextmanager
    def as_compiler(self) -> Iterator[None]:
        """Inside of what PyTorch calls: its switches are ours again."""
        before = self.keys
        self.keys = torch_private.included_keys(), torch_private.excluded_keys()
        mode = torch_private.pop_dispatch_mode(None) if torch_private.dispatch_modes() else None
        try:
            with (self.s.states.told(GRAD_MODE, self.s.states.peek(GRAD_MODE)), torch_private.ForceKeys(*self.outer),
                  torch_private.WithoutFunctionOfClasses(), torch.set_grad_enabled(True)):
                yield
        finally:
            self.keys = before
            if mode is not None:
                torch_private.push_dispatch_mode(mode)

    def to_real(self, value: Value) -> Any:
        """An argument for PyTorch."""
        s = self.s
        if value.is_tensor:
            return self.stand_in(value)
        if type(value) is DictValue:
            return {k.const(s): self.to_real(v) for k, v in value.load(s).values()}
        if value.is_slice:
            return slice(*map(self.to_real, value.nested(s)))
        if value.builtin in (list, tuple):
            parts = [self.to_real(v) for v in value.items_list(s)]
            cls = value.pytype(s)
            return parts if cls is list else cls(*parts) if hasattr(cls, "_fields") else cls(parts)
        if value.symbolic is int:
            return to_torch(value.exact_int())
        if type(value) is NestedInt:
            return torch.SymInt(SizeOfSequences(value))
        if value.is_const():
            return value.const(s)
        if value.overrides_functions(s):
            return self.kind_of(value.cls, AskedObject)(value, self)
        raise Unsupported(f"a torch function is given {value.describe()}", kind="torch-argument")

    def stand_in(self, value: TensorValue) -> StandIn:
        known = self.made.get(id(value))
        if known is not None and value.fits(self.s, known[1]):
            return known[1]
        kind = self.kind_of(value.cls, Asked if value.overrides_functions(self.s) else StandIn)
        made = value.new_stand_in(self.s, kind)
        made = _placed(made, value.unwritable(self.s))
        made.value, made.asker, made.since = value, self, self.operators
        if id(value) not in self.released:
            self.made[id(value)] = value, made
        return made

    def kind_of(self, cls: type, base: type) -> type:
        """The class of what stands for objects of a class of the program's, and of parameters. These are derived from
        each other as the program's are, so that Python and PyTorch find whom to ask first."""
        kind = self.kinds.get(cls)
        if kind is None and cls is torch.Tensor:
            kind = base
        elif kind is None:
            derived = [self.kind_of(b, Asked if is_asked(b) else StandIn) for b in cls.__bases__
                       if base is not AskedObject and issubclass(b, torch.Tensor) and b is not torch.Tensor]
            if not any(issubclass(d, base) for d in derived):
                derived.append(base)
            kind = self.kinds[cls] = type(base.__name__, tuple(derived), {
                "of": cls, "__torch_function__": base.__dict__["__torch_function__"]})
        return kind

    def to_value(self, obj: object) -> Value:
        """What PyTorch gives, or calls with."""
        s = self.s
        if isinstance(obj, (StandIn, AskedObject, Opaque)):
            return obj.value
        if isinstance(obj, torch.Tensor):
            return lift(s, s.tracer.constant(obj))
        if isinstance(obj, torch.SymInt) and isinstance(obj.node, SizeOfSequences):
            return obj.node.value
        if isinstance(obj, torch.SymInt):
            return lift(s, from_torch(obj))
        if type(obj) is list:
            return ListValue([self.to_value(v) for v in obj])
        if isinstance(obj, tuple):
            return TupleValue([self.to_value(v) for v in obj], type(obj))
        if type(obj) is dict:
            return DictValue({k: (Constant(k), self.to_value(v)) for k, v in obj.items()})
        if type(obj) is slice:
            return s.from_python(slice(None)).with_nested([self.to_value(v) for v in (obj.start, obj.stop, obj.step)])
        if is_leaf(obj):
            return Constant(obj)
        if isinstance(obj, type):
            return s.wrap_class(obj)
        return s.from_python(obj)

    # -- what PyTorch calls -------------------------------------------------------------------------------------------

    def at_function(self, func: object, types: Iterable[type], args: tuple, kwargs: dict | None) -> object:
        """Where PyTorch would call ``__torch_function__``."""
        with self.as_compiler():
            fn = self.function(func)
            relevant = [t.value for t in _stand_ins((args, kwargs or {}), (StandIn, AskedObject))]
            named = None if kwargs is None else {k: self.to_value(v) for k, v in kwargs.items()}
            classes = [t.of for t in types if issubclass(t, (Asked, AskedObject))]
            told = self.told_by_python(relevant) if hasattr(func, "__code__") else [
                relevant[0].cls if t is StandIn else t.of for t in types]  # a method in C tells of a plain tensor too
            return self.to_real(self.by_function(fn, classes, told, [self.to_value(a) for a in args], named))

    def at_operator(self, func: object, args: tuple, kwargs: dict) -> object:
        """Where PyTorch would call ``__torch_dispatch__`` or a kernel."""
        with self.as_compiler():
            self.depth += 1
            self.operators += 1
            first, mine = self.operators, list(_stand_ins((args, kwargs)))
            known = {id(t.value): self.made.get(id(t.value)) for t in mine}
            self.made.update({id(t.value): (t.value, t) for t in mine})
            try:
                given = [self.to_value(a) for a in args]
                named = {k: self.to_value(v) for k, v in kwargs.items()}
                with self.unrecorded():
                    found = self.by_operator(func, given, named)
                if self.depth == 1:
                    self.note_shown(func, given, named, found)
                return self.handed_over(found, first)
            finally:
                self.depth -= 1
                for key, before in known.items():
                    if before is None:
                        self.made.pop(key, None)
                    else:
                        self.made[key] = before

    def handed_over(self, found: Value, first: int) -> Any:
        """What an operator has given, for PyTorch. What was made by the operator of this number, or later, is held by
        nobody else: where PyTorch makes a variable of it, it takes that very tensor, and no copy, as in eager."""
        for value in [found] if found.is_tensor else found.nested(self.s) or ():
            known = self.made.get(id(value))
            if value.is_tensor and value.obj is None and (
                    known is None or known[1].since >= first and not known[1].requires_grad):
                self.made.pop(id(value), None)
                self.released.add(id(value))
        try:
            return self.to_real(found)
        finally:
            self.released.clear()

    def note_shown(self, func: Any, args: list[Value], kwargs: dict[str, Value], found: Value) -> None:
        """An operator that a call of the program's comes to has given this."""
        if not (args and args[0].is_tensor and args[0].dispatches and shows(func)):
            return
        how = Shown(found, func, args, kwargs, self.s.states.peek(GRAD_MODE), not found.is_tensor)
        for value in [found] if found.is_tensor else found.items_list(self.s):
            if value.is_tensor and value.dispatches and value is not args[0]:
                self.shown[id(value)] = how

    def view_of(self, value: TensorValue) -> Shown | None:
        """How a new tensor is a view, for autograd, of another of a class of the program's; None where it is none."""
        known, how = self.made.get(id(value)), self.shown.get(id(value))
        if how is None or known is None or not torch_private.is_view(known[1]):
            return None
        if how.several:
            raise Unsupported("one of several views of a tensor of a class with a __torch_dispatch__ is left over",
                              kind="gradient")
        return how

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Below autograd."""
        s = self.s
        recording = s.tracer.grad_enabled
        with s.states.told(GRAD_MODE, False):
            try:
                with s.tracer.journal.temporarily(s.tracer, "below", True):
                    s.tracer.set_grad_enabled(False)
                    yield
            finally:
                s.tracer.set_grad_enabled(recording)

    def function(self, func: Any) -> Value:
        """A function of PyTorch as ``__torch_function__`` is given it."""
        s = self.s
        return s.wrap(func, src.Const(func, getattr(func, "__qualname__", ""), owned=True))

    def asked_by_python(self, relevant: Iterable[Value]) -> list[type]:
        """The classes that functions of PyTorch's in Python ask."""
        on = function_state.classes_on(self.s)
        return by_precedence(v for v in relevant if on and v.overrides_functions(self.s))

    def told_by_python(self, relevant: Iterable[Value]) -> list[type]:
        """Those of which they tell: plain tensors are taken for ones that have a say."""
        on = function_state.classes_on(self.s)
        return by_precedence(v for v in relevant if on and (v.overrides_functions(self.s) or v.is_tensor
                             and v.cls.__torch_function__ is not torch_private.no_function))

    def by_function(self, fn: Value, classes: list[type], told: list[type], args: list[Value],
                    kwargs: dict | None) -> Value:
        """What modes and the ``__torch_function__`` of classes make of a call, which are told of classes as those whose
        objects have a say."""
        s = self.s
        given = [fn, TupleValue([s.wrap_class(c) for c in told]), TupleValue(args)]
        if kwargs is not None:
            given.append(s.dict_of(kwargs))
        asked = []
        if function_modes(s) and function_state.modes_on(s):
            mode = function_modes(s)[-1]
            with s.states.told(MODES, tuple(m for m in s.states.peek(MODES) if m is not mode)):
                result = mode.getattr(s, "__torch_function__").call(s, given, {})
            if not is_not_implemented(result):
                return result
            asked.append(mode.cls)
        for cls in classes:
            result = s.wrap_class(cls).getattr(s, "__torch_function__").call(s, given, {})
            if not is_not_implemented(result):
                return result
            asked.append(cls)
        if fn.is_const() and fn.const(s) is torch.Tensor.__eq__:  # whose TypeError is told as this
            return Constant(NotImplemented)
        raise Unsupported(f"no __torch_function__ of {[c.__name__ for c in asked]} takes the call",
                          kind="tensor-subclass")

    def by_operator(self, func: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """What the ``__torch_dispatch__`` of classes makes of an operator; without one it is recorded."""
        s = self.s
        classes = by_precedence(v for v in parts_of(s, (*args, *kwargs.values())) if v.dispatches)
        if not classes:
            return s.record(func, args, kwargs)
        given = [s.wrap(func, src.Const(func, str(func), owned=True)),
                 TupleValue([s.wrap_class(c) for c in classes]), TupleValue(args), s.dict_of(kwargs)]
        for cls in classes:
            result = s.wrap_class(cls).getattr(s, "__torch_dispatch__").call(s, given, {})
            if not is_not_implemented(result):
                return result
        raise Unsupported(f"no __torch_dispatch__ of {[c.__name__ for c in classes]} takes {func}",
                          kind="tensor-subclass")

    # -- gradients ----------------------------------------------------------------------------------------------------

    def leaves_of(self, stand_in: StandIn) -> list[StandIn]:
        return self.leaves[id(stand_in)][1] if id(stand_in) in self.leaves else [stand_in]

    def histories(self, given: Iterable[StandIn]) -> list[StandIn]:
        """What the history of a result of these may lead to."""
        found: list[StandIn] = []
        for t in given:
            if t.requires_grad:
                found += [leaf for leaf in self.leaves_of(t) if not any(leaf is f for f in found)]
        return found

    def with_history(self, result: Any, given: list[StandIn]) -> None:
        """Plain results of a call get the gradient that PyTorch has recorded for them."""
        s = self.s
        found = [t for t in _stand_ins((result,)) if t.requires_grad and not t.value.dispatches
                 and not t.value.handle(s).requires_grad]
        if not found:
            return
        if any(t is given_ for t in found for given_ in given):
            raise Unsupported("a tensor is changed in place by a call with a tensor of a class with __torch_dispatch__",
                              kind="gradient")
        leaves = self.histories(given)
        for t in found:
            tangents, finish = self.differentiate(t, leaves, [t.value.handle(s)])
            t.value = s.recording.tensor_of(finish(s.recording.tensor_of(tangents[0]))[0])

    def emerging(self, value: Any) -> dict[str, Emerging]:
        """Of a result with a history: name of a tensor inside -> what becomes of it, in order."""
        s, parts = self.s, with_gradient(self.s, value, taken_apart(self.s, value)[0])
        stand_in = self.made[id(value)][1]
        tangents, finish = self.differentiate(stand_in, self.leaves_of(stand_in),
                                              [p.handle(s) for p in parts.values()])
        inside: dict = dict(zip(parts, map(s.recording.tensor_of, tangents)))
        with self.unrecorded():
            tangent = rebuilt(s, value, inside)
        found = {}
        for name, handle in zip(parts, finish(tangent)):
            shown = handle.base.frozen is not None  # the tensor inside is a view, and stays one: this is its history
            if shown:
                s.tracer.set(handle.base, "frozen", None)
            shown |= any(how.args[0] is value for how in self.shown.values())  # there are views of that very memory
            history = s.recording.tensor_of(handle)
            found[name] = Emerging(parts[name], history, parts[name] if shown else history)
        return found

    def differentiate(self, result: StandIn, leaves: list[StandIn],
                      handles: list[TensorHandle]) -> tuple[list[TensorHandle], Callable]:
        """(tangents of ``handles``, which are what the graph has for ``result``; a function from the tangent of the
        result to ``handles`` with their history)."""
        s = self.s
        plain = [t.value.handle(s) for t in leaves if not t.value.dispatches]
        trace = FunctionTrace(s.tracer, plain, handles)

        def finish(tangent: Any) -> list[TensorHandle]:
            given = tangent.new_stand_in(s, StandIn, False)
            given.value, given.asker = tangent, self
            if torch_private.takes_strided_impl(result.grad_fn):
                raise Unsupported("the gradient of a nested tensor that is split by sizes", kind="gradient")
            done, states = len(s.effects.log), dict(s.states.now)
            # the engine's own function is no call of the program's that a class has a say in
            with self.as_program(), torch_private.WithoutFunctionOfClasses(), Operators(self):
                try:
                    found = torch.autograd.grad(result, leaves, given, retain_graph=True, allow_unused=True)
                except JitError:
                    raise
                except Raised as raised:  # by a class, which does not know an operator of a formula
                    raise Unsupported(f"the backward raises {raised.value.describe()}", kind="gradient") from None
                except Exception as error:  # of PyTorch's, in a formula
                    raise Unsupported(f"the backward raises {type(error).__name__}: {error}", kind="gradient") from None
            if any(e.state is None for e in s.effects.log[done:]) or s.states.changed_since(states):
                raise Unsupported("a __torch_dispatch__ with side effects in the backward", kind="gradient")
            with self.unrecorded():
                rows = [row for t, g in zip(leaves, found)
                        for row in arguments(s, t.value, None if g is None else g.value)]
            trace.arguments = [handle for handle, _ in rows]
            return trace.finish([g for _, g in rows], None)

        return trace.tangents, finish


class Shown(NamedTuple):
    """``result`` of an operator that gives one view of its first argument, or several; ``recorded``: whether gradients
    were."""

    result: Value
    func: Any
    args: list[Value]
    kwargs: dict[str, Value]
    recorded: bool
    several: bool


class Emerging(NamedTuple):
    """A tensor inside of a result: as it is, with a history, and that of these two whose memory the result shows."""

    inside: Value
    history: Value
    shown: Value


def history_of(tensor: StandIn) -> object:
    """Its ``grad_fn``. Autograd refuses that of a view that was made where gradients were not recorded, once its memory
    is changed; so it does to the program, where that needs it."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return RuntimeError


def shows(func: Any) -> bool:
    """Whether an operator gives views of its first argument."""
    schema = torch_private.schema(func)
    first = schema.arguments[0].alias_info
    return first is not None and not first.is_write and any(r.alias_info is not None for r in schema.returns)


def parts_of(s: Session, values: Iterable[Value]) -> Iterator[Value]:
    """Arguments of a function, and what is nested in them."""
    for v in values:
        nested = None if v.is_tensor else v.nested(s)
        if nested is None:
            yield v
        else:
            yield from parts_of(s, nested)


def names_stand_ins(error: Exception, stand_ins: list[StandIn]) -> bool:
    """Whether the text of an error may say of stand-ins what is not so of what they stand for."""
    classes = StandIn, Asked, AskedObject, Opaque
    return (any(cls.__name__ in str(error) for cls in classes)
            or any(type(n) is not int for t in stand_ins for n in t.shape))


def is_asked(cls: type) -> bool:
    """Whether a class has a ``__torch_function__`` of the program's."""
    return (hasattr(cls, "__torch_function__") and cls not in (torch.Tensor, torch.nn.Parameter)
            and cls.__torch_function__ is not torch_private.no_function)


def is_not_implemented(value: Value) -> bool:
    return value.is_leaf and value.value is NotImplemented


def by_precedence(values: Iterable[Value]) -> list[type]:
    """The classes of tensors, in the order in which PyTorch asks them: as they come, but a class before its bases."""
    found: list[type] = []
    for value in values:
        if value.cls not in found:
            at = next((i for i, c in enumerate(found) if issubclass(value.cls, c)), len(found))
            found.insert(at, value.cls)
    return found


def getter_of(fn: Any) -> str | None:
    """The name of the attribute of tensors that a function reads, such as ``torch.Tensor.shape.__get__``."""
    owner = getattr(fn, "__self__", None)
    if type(owner) is _GETSET and getattr(fn, "__name__", None) == "__get__":
        return owner.__name__
    return None


# These make tensors of classes, and ask none.
_MAKERS = frozenset((torch.Tensor.as_subclass, torch.Tensor.__new__, torch_private.make_subclass,
                     torch_private.make_wrapper))
# Of what is known of methods of tensors, those that only need what operators say.
_BY_OPERATORS = frozenset(("size", "item", "tolist", "__len__", "__iter__", "__bool__", "__int__", "__float__",
                           "__index__"))
# What autograd keeps of a tensor object, of which a stand-in has its own.
_OF_THE_OBJECT = frozenset(("grad", "_grad", "grad_fn", "_version", "_base", "_backward_hooks", "output_nr",
                            "retains_grad"))
_GETSET = type(torch_private.TensorBase.__dict__["shape"])


@contextlib.contextmanager
def _function_state(state: object) -> Iterator[None]:
    before = torch_private.get_function_state()
    torch_private.set_function_state(state)
    try:
        yield
    finally:
        torch_private.set_function_state(before)
