"""One capture in progress: the tracer, the guards, the effect log, the undo journal, and how real objects become
values."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import os
import types

import torch

from .. import torch_private
from ..errors import EagerRaises, Unsupported
from ..graph.dims import Sym, free_symbols, hint
from ..graph.ir import Loc
from ..graph.sym_float import SymFloat, to_words
from ..graph.tracer import Tracer
from ..runtime import facts
from . import source as src
from . import tables
from .calls import Calls
from .guards import Guards
from .size_facts import SizeFacts
from .guesses import guess
from .makers import Makers
from .values import batched
from .values.base import Raised, Value, lookup
from .values.constant import Constant, is_leaf
from .values.numbers import DimValue
from .values.containers import DictValue, ListValue, TupleValue
from .values.deferred import defer
from .values.numbers import FloatValue
from .values.functions import (
    BuiltinValue, CellValue, ClassValue, DispatcherValue, FunctionValue, MethodValue, PyModuleValue,
)
from .values.objects import IMMUTABLE_TYPE, ModuleObject, ObjectValue, instance_dict
from .values.lifting import lift
from .values.tensor import OWN_MEMBERS, SLOTS, TensorValue


_TORCH = os.path.dirname(torch.__file__) + os.sep
_mro_of = type.__dict__["__mro__"].__get__  # whatever a metaclass makes of the name
PYTHON_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}  # what PyTorch takes them for
# Of operations that take symbolic floats.
FLOAT_OPERANDS = frozenset(("min", "max", "other", "value", "scalars", "scalar", "alpha", "weight"))


class Session(Makers, Calls):
    """State shared by all frames of one capture. ``dynamic`` decides which sizes become symbols (see
    ``jit.frame.dynamic``)."""

    def __init__(self, dynamic=None):
        self.tracer = Tracer()
        self.tracer.set_grad_enabled(torch.is_grad_enabled())
        self.integers: dict[str, tuple] = {}  # symbol of an integer argument -> (source, "int")
        self.guards = Guards(SizeFacts(self.tracer.env, self.integers, dynamic))
        self.effects: list[tuple] = []
        self.undo: list[tuple] = []
        self.dynamic = dynamic
        self.tables = tables
        self.by_object: dict[int, Value] = {}
        self.by_source: dict = {}
        self.templates: dict[int, Value] = {}  # what stands for a value in a class made while capturing -> the value
        self.keep: list = []
        self.inputs: list[TensorValue] = []
        self.tensors: dict[int, TensorValue] = {}
        self.globals_written: dict[tuple, Value] = {}
        self.touched: dict[Value, bool] = {}  # real objects that the program has changed
        self.class_written: dict[tuple, Value] = {}
        self.grad_mode = torch.is_grad_enabled()
        self.grad_switches = 0  # how often the program has set or asked for it
        self.autocast: dict = {}  # what the program has set of its state; see library.autocast_state
        self.attention: dict = {}  # likewise; see library.attention_state
        # (a tensor's identity, name) -> what the program has hung on it, None for nothing any more.
        self.tensor_attributes: dict = {}
        # ContextVar -> what the program has set it to, None for nothing; see library.context_variables.
        self.context: dict = {}
        # The calls of torch.vmap, and the index modes, that the program is in; see values.batched.
        self.maps, self.modes = (), ()
        self.frames: list = []
        self.steps = 0
        self.current_exception: list = []
        self.generators: list = []  # that were made while capturing
        self.real_generators: list = []  # that came in and were read
        self.region = self.regions = 0  # the checkpointed call that is being executed, and how many there were
        self.inner_gradients = True  # whether backward() inside is captured
        # See guesses.py: (node, value, place); places where no value is guessed, None: nowhere.
        self.guesses, self.unsteady = (), None
        self.tracer.builder.guess = functools.partial(guess, self)
        self.unbroken = False  # whether a break is an error
        self.tracer.steps_aside = self.why_aside
        self.uncertain = True  # whether calls that may raise can be deferred until the graph has run
        self.recorders: list[list] = []  # that what is pending adds to
        self.dicts: dict[int, ObjectValue] = {}  # the instance dictionaries that were looked into -> their first owner
        self.trial = None  # while a cached function is tried: what the ones it calls gave; see library.cached_functions
        # [cached function, key, whether this attempt has come to it] that were made while capturing.
        self.calls_made: list = []
        # See assumptions.py: a tensor that has to be true after the graph has run.
        self.assuming, self.assumption = True, None

    def close(self):
        """Let go of the program's objects: the values refer to each other in cycles, and arguments must not outlive
        their call."""
        for held in (self.by_object, self.dicts, self.recorders, self.by_source,
                     self.templates, self.keep, self.inputs, self.tensors, self.undo, self.effects,
                     self.globals_written, self.class_written, self.touched,
                     self.frames, self.current_exception, self.generators, self.real_generators):
            held.clear()
        vars(self.tracer).clear()  # its handles refer to it
        self.tracer = None

    # -- checkpoints --------------------------------------------------------------------------------------------

    def checkpoint(self):
        return (len(self.undo), len(self.effects), self.guards.checkpoint(),
                self.tracer.checkpoint(), len(self.inputs), len(self.frames),
                len(self.current_exception))

    def rollback(self, mark):
        undo, effects, guards, tracer, inputs, frames, exceptions = mark
        while len(self.undo) > undo:
            holder, key, old, is_entry = self.undo.pop()
            if not is_entry:
                setattr(holder, key, old)
            elif old is _ABSENT:
                holder.pop(key, None)
            else:
                holder[key] = old
        del self.effects[effects:]
        del self.inputs[inputs:]
        del self.frames[frames:]
        del self.current_exception[exceptions:]
        # guards stay: a fact that was used before a break still decided where the break was
        self.tracer.rollback(tracer)

    def set_field(self, holder, name, value):
        """Assign an attribute of a value so that a rollback restores it. Returns the new value."""
        self.undo.append((holder, name, getattr(holder, name), False))
        setattr(holder, name, value)
        return value

    def set_entry(self, mapping, key, value):
        """Assign an entry of a dict (or list) that belongs to a value."""
        old = mapping.get(key, _ABSENT) if isinstance(mapping, dict) else mapping[key]
        self.undo.append((mapping, key, old, True))
        mapping[key] = value

    def set_elements(self, sequence, elements):
        """Replace the elements of a list value; iterators over it see the change."""
        self.set_field(sequence, "_elements", elements)

    def effect(self, fn, args):
        """Log that the program called the C function ``fn`` on values, to be done for real after the graph has run."""
        self.effects.append((fn, list(args)))

    def why_aside(self, is_python: bool) -> str | None:
        """Why an operator that is not PyTorch's own is called between two graphs and not in one, if it is: see
        ``graph.foreign``."""
        if is_python and not self.unbroken:
            return "has a kernel in Python"
        if any(fn is not torch_private.set_grad_enabled for fn, _ in self.effects):
            return "is called after a change that is made behind the graph"
        return "is called inside a map" if self.maps or self.modes else None

    def touch(self, value):
        """A real object is about to change: what is read or changed besides must be other objects on later calls
        too."""
        if value.source is None or value in self.touched:
            return
        self.undo.append((self.touched, value, _ABSENT, True))
        self.touched[value] = True
        for other in list(self.by_object.values()):
            self.keep_apart(value, other)

    def keep_apart(self, changed, other):
        """Guard that two real objects of one class stay two. Objects of a module tree are taken to: pairs of them are
        too many."""
        if other is changed or not isinstance(other, (ObjectValue, TensorValue)) or other.source is None:
            return
        sides = dictionary_of(changed), dictionary_of(other)
        if None not in sides and (other.cls is changed.cls or not (changed.source.watched or other.source.watched)):
            if changed.attrs is not other.attrs and not (changed.source.watched and other.source.watched):
                self.guards.add(sides[0], facts.Distinct(sides[1]))
            return
        if other.cls is not changed.cls:
            return
        if changed.source.watched and other.source.watched and changed.cls not in (list, set, collections.deque):
            return
        if (changed.source.base is not None or other.source.base is not None
            or not (changed.source.watched and other.source.watched)):
            self.guards.add(changed.source, facts.Distinct(other.source))

    # -- real objects to values -----------------------------------------------------------------------------------

    def wrap(self, obj, source) -> Value:
        """The value of a real object reached by ``source``. One object is one value, however it was reached."""
        if self.templates:
            known = self.templates.get(id(obj))
            if known is not None:
                return known
        if source is not None:
            known = self.by_source.get(source)
            if known is not None:
                return known
        if is_leaf(obj):
            value = Constant(obj, source)
            if type(obj) in (int, float) and self.dynamic is not None and src.changeable(source):
                value = self.number(obj, source, value)
        else:
            if source is not None and source.slot and self.is_replaced(source, obj):
                source = dataclasses.replace(source, fresh=True)
                self.guards.fresh.add(source)
            value = self.by_object.get(id(obj))
            if value is None:
                value = self._make(obj, source)
                self.by_object[id(obj)] = value
                self.keep.append(obj)
                for changed in self.touched:
                    self.keep_apart(changed, value)
            elif source is not None:
                value = self._again(obj, value, source)
        if source is not None:
            self.by_source[source] = value
        return value

    def length_at(self, source, n: int):
        """The length of a container from outside: an int that is guarded, or a Dim once it has changed between
        captures."""
        dim = None if self.dynamic is None else self.dynamic.integer(self.tracer.env,
                                                                     self.integers, src.Length(source), n)
        if dim is None:
            self.guards.add(source, facts.Length(n))
            return n
        self.guards.add(src.Length(source), facts.TypeIs(int))
        return dim

    def expect(self, source, n: int, cls):
        """A container from outside is to be read as a whole: one that keeps growing is left to the interpreter."""
        if self.dynamic is not None and not self.dynamic.takes(source, n):
            raise Unsupported(f"a {cls.__name__} comes with ever new lengths", kind="container-length")

    def specialize(self, key, value):
        """A number or text from outside is needed as a constant: one that changes on every call is left to the
        interpreter."""
        if self.dynamic is not None and not self.dynamic.takes(key, value):
            raise Unsupported("this value changes on every call but is used as a constant", kind="not-constant")

    def is_replaced(self, source, obj) -> bool:
        """Whether a slot of an object that stays has been seen to hold another object: a parameter under
        ``functional_call``, the state of a model."""
        if self.dynamic is None or not source.watched:
            return False
        if (isinstance(obj, (type, types.ModuleType, types.BuiltinFunctionType))
            or isinstance(obj, types.FunctionType) and "<locals>" not in obj.__qualname__):
            return False
        return self.dynamic.is_replaced(source, obj)

    def number(self, obj, source, value):
        """The value of an int or float from outside: ``value``, a constant, or a symbolic one if it has changed between
        captures."""
        if type(obj) is int:
            dim = self.dynamic.integer(self.tracer.env, self.integers, source, obj)
            if dim is None:
                return value
            value = DimValue(dim)
        elif self.dynamic.is_symbolic_float(source, obj):
            value = FloatValue(obj, source)
        else:
            return value
        if source is not None and source.slot:
            self.guards.fresh.add(source)
        self.guards.add(source, facts.TypeIs(type(obj)))
        return value

    def _again(self, obj, value, source):
        """The same object through a second source: later calls must have them the same too."""
        if value.source is None:
            value.source = source
        elif isinstance(value.source, src.Const):
            self.guards.add(source, facts.identity(obj))
        elif type(obj) is not tuple:
            self.guards.add(source, facts.Same(value.source))
        else:
            return self._make(obj, source)
        return value

    def hide_recorder(self, recorder: list):
        """Something is going to be put into a list after the graph has run: it cannot be read before."""
        if id(recorder) in self.by_object:
            raise Unsupported("a warning is recorded in a list that the program sees", kind="warning")
        self.recorders.append(recorder)

    def _make(self, obj, source):
        cls = type(obj)
        if cls is dict and id(obj) in self.dicts:
            raise Unsupported("a dictionary in which an object keeps its attributes", kind="attribute")
        if cls is list and any(obj is recorder for recorder in self.recorders):
            raise Unsupported("the list in which warnings are recorded is read", kind="warning")
        if cls.__module__ == "jit.runtime.native" and hasattr(obj, "__wrapped__"):
            return DispatcherValue(cls, obj, source)
        maker = tables.wrappers.get(cls)
        if maker is None:
            for base in cls.__mro__[1:]:
                maker = tables.wrappers.get(base)
                if maker is not None:
                    break
            else:
                maker = lambda s, obj, source: ObjectValue(type(obj), obj, source)
        return maker(self, obj, source)

    def wrap_key(self, key):
        """A dict key or set element of a real container: known by the guard on the keys."""
        if type(key) is tuple:
            return TupleValue([self.wrap_key(k) for k in key])
        if is_leaf(key):
            return Constant(key)
        return self.wrap(key, src.Const(key))

    def opaque(self, obj, source):
        """An object that nothing is done with but passing it on."""
        return ObjectValue(type(obj), obj, source)

    def wrap_class(self, cls) -> ClassValue:
        return self.wrap(cls, src.Const(cls, cls.__qualname__))

    def wrap_raw(self, fn) -> Value:
        """A function found by a lookup that is guarded already."""
        return self.wrap(fn, src.Const(fn, getattr(fn, "__qualname__", "")))

    def wrap_class_attr(self, cls, name) -> Value:
        """The unbound attribute ``name`` along the MRO of ``cls``, guarded by ``class_lookup``."""
        found, raw, owner = self.class_lookup(cls, name)
        if isinstance(raw, types.FunctionType):
            return self.wrap_raw(raw)
        return self.wrap(raw, src.ClassAttr(src.Const(cls, cls.__qualname__), name))

    def wrap_cell(self, cell, source) -> CellValue:
        value = self.by_object.get(id(cell))
        if value is None:
            value = self.by_object[id(cell)] = CellValue(real=cell, source=source)
            self.keep.append(cell)
        if source.watched:
            self.guards.add(source, facts.At(cell))
        elif value.source != source:
            self.guards.add(source, facts.Same(value.source))
        return value

    def class_lookup(self, cls, name):
        """(found, raw, owner) along the MRO; what is found, or its absence, becomes a guard on the class."""
        result = lookup(cls, name)
        if not cls.__flags__ & IMMUTABLE_TYPE and id(cls) not in self.templates:
            source = src.Const(cls, cls.__qualname__)
            if result[0]:
                at, raw = src.ClassAttr(source, name), result[1]
                changes = (type(raw) in (int, float) or isinstance(raw, torch.Tensor)) and self.is_replaced(at, raw)
                self.guards.add(at, facts.TypeIs(type(raw)) if changes else facts.identity(raw))
            else:
                self.guards.add(source, facts.ClassLacks(name))
        return result

    def inherits(self, cls, target) -> bool:
        """Whether ``target`` is among the bases of a class, which are guarded."""
        if not cls.__flags__ & IMMUTABLE_TYPE and id(cls) not in self.templates:
            self.guards.add(src.Mro(src.Const(cls, cls.__qualname__)), facts.identity(_mro_of(cls)))
        return target in _mro_of(cls)

    def is_data_descriptor(self, raw) -> bool:
        """Whether what a class has under a name goes before the instance's own; what its type lacks is guarded."""
        return any([self.class_lookup(type(raw), "__set__")[0], self.class_lookup(type(raw), "__delete__")[0]])

    def written_on_class(self, cls, name):
        """What the captured code has assigned to ``name`` on the class that a lookup on ``cls`` finds it on, or
        None."""
        for c in cls.__mro__:
            value = self.class_written.get((c, name))
            if value is not None or name in c.__dict__:
                return value
        return None

    def bound_method(self, fn, owner) -> MethodValue:
        return MethodValue(fn, owner)

    def bind_static(self, raw, cls, name, owner):
        """A classmethod or staticmethod found as ``name`` on ``cls``."""
        inner = raw.__func__
        fn = self.wrap_raw(inner) if isinstance(inner, (types.FunctionType, types.BuiltinFunctionType)) else self.wrap(
            inner, src.GetAttr(src.ClassAttr(src.Const(cls), name), "__func__"))
        return fn if isinstance(raw, staticmethod) else self.bound_method(fn, self.wrap_class(cls))

    def from_python(self, obj) -> Value:
        """A new value for a plain result that was computed while capturing."""
        if is_leaf(obj):
            return Constant(obj)
        maker = tables.new_values.get(type(obj))
        if maker is not None:
            return maker(self, obj)
        if isinstance(obj, (type, types.ModuleType, types.FunctionType,
                            types.BuiltinFunctionType, types.MethodDescriptorType)):
            return self.wrap(obj, src.Const(obj, getattr(obj, "__qualname__", ""), owned=True))
        if isinstance(obj, tuple):
            return TupleValue([self.from_python(v) for v in obj], type(obj))
        raise Unsupported(f"a {type(obj).__module__}.{type(obj).__qualname__} made while capturing", kind="instantiate")

    # -- globals --------------------------------------------------------------------------------------------------

    def load_global(self, namespace: dict, name: str):
        """The global ``name`` in a module's dictionary, or None."""
        written = self.globals_written.get((id(namespace), name))
        if written is not None:
            return written if written is not _ABSENT else None
        holder = self.by_object.get(id(namespace))
        if isinstance(holder, DictValue) and holder in self.touched:
            return holder.get_constant(self, name)
        root = src.Const(namespace, namespace.get("__name__", "globals"))
        if name in namespace:
            self.guards.add_presence(src.Item(root, name))
            return self.pinned(self.wrap(namespace[name], src.Item(root, name)))
        self.guards.add(root, facts.DictLacks(name))
        return None

    def load_name(self, namespace, name):
        """A global or builtin, or None."""
        value = self.load_global(namespace, name)
        if value is None:
            scope = namespace.get("__builtins__", builtins)
            scope = scope.__dict__ if isinstance(scope, types.ModuleType) else scope
            value = self.load_global(scope, name)
        return value

    def pinned(self, value):
        """Guard at once what globals hold as code: functions, classes and modules."""
        if isinstance(value, (FunctionValue, ClassValue, BuiltinValue, PyModuleValue)):
            value.pin(self)
        return value

    def store_global(self, namespace, name, value):
        self.set_entry(self.globals_written, (id(namespace), name), value)
        self.effect(dict.__setitem__, [self.globals_value(namespace), Constant(name), value])

    def delete_global(self, namespace, name):
        self.set_entry(self.globals_written, (id(namespace), name), _ABSENT)
        self.effect(dict.__delitem__, [self.globals_value(namespace), Constant(name)])

    def globals_value(self, namespace):
        return self.wrap(namespace, src.Const(namespace, namespace.get("__name__", "globals")))

    # -- exceptions -------------------------------------------------------------------------------------------------

    def exception(self, error, args=None) -> ObjectValue:
        """An exception value from a real exception, or from a class and argument values."""
        cls = error if isinstance(error, type) else type(error)
        value = ObjectValue(cls)
        value.init_args = tuple(args) if args is not None else tuple(
            self.from_python(a) if is_leaf(a) or isinstance(a, tuple) else Constant(str(a))
            for a in (() if isinstance(error, type) else error.args))
        if isinstance(error, AttributeError) and error.name is not None:
            value.attrs["name"] = Constant(error.name)
        return value

    @staticmethod
    def is_class(value) -> bool:
        return isinstance(value, ClassValue)

    def plain_namespace(self, value) -> dict:
        """The real dict behind a value that is used as a function's globals."""
        if isinstance(value, DictValue) and value.obj is not None:
            if value.source is not None:
                self.guards.add(value.source, facts.identity(value.obj))
            return value.obj
        raise Unsupported("globals made while capturing", kind="rebuild")

    def is_exception(self, value, cls) -> bool:
        return isinstance(value, ObjectValue) and issubclass(value.cls, cls)

    def real_exception(self, value):
        """The exception object itself, when its arguments are constants."""
        if value.obj is not None and value.source is not None:
            cls = value.pytype(self)
            given = self.wrap(value.obj.args, src.GetAttr(value.source, "args"))
            if (cls.__str__ not in (BaseException.__str__, KeyError.__str__)
                or cls.__repr__ is not BaseException.__repr__ or not given.is_const()):
                raise Unsupported(f"the text of {value.describe()}, which comes from outside", kind="format")
            given.const(self)
        return value.obj if value.obj is not None else value.cls.__new__(value.cls,
                                                                         *(a.const(self) for a in value.init_args))

    # -- tensors ------------------------------------------------------------------------------------------------------

    def tensor_input(self, value: TensorValue):
        """Make a real tensor a graph input, guarded by its metadata."""
        from .tensor_guards import check_supported, guard_tensor

        check_supported(value.obj)
        region = self.tracer.region_of(value.obj)
        if region is not None:
            return self.shared_input(value, region)
        dims = set() if self.dynamic is None else self.dynamic.tensor_dims(value.source, value.obj)
        handle = self.tracer.input(value.obj, value.source, dims)
        guard_tensor(self, value, handle.node.type)
        self.inputs.append(value)
        self.tensors[id(handle)] = value
        self.keep.append(handle)
        return handle

    def shared_input(self, value: TensorValue, region):
        """Make a real tensor a view of the memory that it shares with others; the first one brings that memory as the
        graph input."""
        from .tensor_guards import guard_tensor

        if value.source is None:
            raise Unsupported("a tensor that is known by itself shares memory with one that is changed",
                              "clone one of them", kind="aliased-mutation")
        tensor, size = value.obj, value.obj.element_size()
        if region.base is None:
            region.check(self.tracer)
            back = region.start - tensor.storage_offset()
            source = src.FlatMemory(value.source, back, region.count)
            self.guards.add(value.source, facts.Room((-back * size, (back + region.count) * size)))
            flat = self.tracer.input(region.flat(tensor), source)
            flat.base.region = region
            self.tracer.set(region, "base", flat.base)
            self.tracer.set(region, "anchor", value)
            self.inputs.append(TensorValue(flat, flat.base.example, source))
            self.keep.append(flat)
        else:
            anchor = region.anchor
            self.guards.add(anchor.source, facts.Shares(value.source,
                                                        (tensor.storage_offset() - anchor.obj.storage_offset()) * size))
        handle = self.tracer.shared_input(region, tensor, value.source)
        guard_tensor(self, value, handle.node.type)
        self.tensors[id(handle)] = value
        self.keep.append(handle)
        return handle

    def tensor_of(self, handle) -> TensorValue:
        value = self.tensors.get(id(handle))
        if value is None:
            value = self.tensors[id(handle)] = TensorValue(handle)
            self.keep.append(handle)
        return value

    def traced(self, fn) -> Value:
        """Run a tracer operation; what eager would raise becomes an exception of the program."""
        try:
            return lift(self, fn())
        except EagerRaises as raised:
            raise Raised(self.exception(raised.error)) from None

    def torch_call(self, fn, args, kwargs) -> Value:
        """A torch callable, as the program calls it."""
        for value, name in zip(args, SLOTS.get(fn, ())):
            if isinstance(value, TensorValue) and name is not None:
                self.tensor_slot(value.cls, name)
                break
        if self.maps or self.modes:
            return batched.call(self, fn, args, kwargs)
        return self.record(fn, args, kwargs)

    def tensor_slot(self, cls, name):
        """Guard that a special method of tensors is PyTorch's own. Raises Unsupported where it is not."""
        raw = self.class_lookup(cls, name)[1]
        if raw is not OWN_MEMBERS.get(name):
            raise Unsupported(f"{name} of tensors, which was replaced", kind="operator")

    def record(self, fn, args, kwargs) -> Value:
        """Record a torch callable."""
        takes = self.tracer.takes_sym_floats(fn)
        low = [self.operand(a) if takes else a.lower(self) for a in args]
        low_kw = {k: self.operand(v) if takes and k in FLOAT_OPERANDS else v.lower(self) for k, v in kwargs.items()}
        if isinstance(low_kw.get("dtype"), type):
            low_kw["dtype"] = PYTHON_DTYPES.get(low_kw["dtype"], low_kw["dtype"])
        own = []

        def call():
            result = self.tracer.call(fn, low, low_kw, loc=self.location())
            own.extend(a for a, given in zip(args, low) if given is result and type(result) is list)
            return result

        try:
            value = self.traced(call)
        except Unsupported as error:
            return defer(self, fn, args, kwargs, error)
        except Raised as raised:
            if self.is_exception(raised.value, TypeError) and any(map(has_own_class, (*args, *kwargs.values()))):
                raise Unsupported("an error of torch that may name an argument's own class of containers",
                                  kind="argument-error") from None
            raise
        return own[0] if own else value  # a list that is given back is the very list

    def set_grad_enabled(self, enabled: bool):
        self.grad_switches += 1
        if enabled != self.grad_mode:
            self.set_field(self, "grad_mode", enabled)
            self.tracer.set_grad_enabled(enabled)
            self.effect(torch_private.set_grad_enabled, [Constant(enabled)])

    def location(self):
        """The Loc of the instruction being executed, or None."""
        if not self.frames:
            return None
        where = self.frames[-1].where()
        if not where[0].startswith(_TORCH):
            return Loc(*where, None, self.region)
        user = next((f for f in reversed(self.frames) if not f.fn.code.co_filename.startswith(_TORCH)), None)
        return Loc(*where, None if user is None else user.where(), self.region)

    def symbol_origins(self) -> dict:
        """What each symbol stands for: see ``SizeFacts.origins``."""
        return self.guards.sizes.origins()

    def operand(self, value):
        """An argument for the tracer, in which symbolic floats, also those in a list, stay so."""
        if isinstance(value, FloatValue):
            return self.float_operand(value)
        if type(value) is ListValue and value.obj is None and any(isinstance(v, FloatValue) for v in value.load(self)):
            return [self.operand(v) for v in value.load(self)]
        return value.lower(self)

    def float_operand(self, value: FloatValue) -> SymFloat:
        """A symbolic float as an operand for the tracer: its halves are integers that the plan is given."""
        if to_words(value.value) is None:
            return value.const(self)
        if value.operand is None:
            env = self.tracer.env
            words = []
            for kind, word in zip(("float_low", "float_high"), to_words(value.value)):
                name = f"f{len(env.origins)}"
                env.origins[name] = (value, kind)
                words.append(Sym(name, word, lo=-(1 << 31), hi=(1 << 31) - 1, env=env))
            self.set_field(value, "operand", SymFloat(*words, value.value, lambda: value.const(self)))
        return value.operand

    @staticmethod
    def hint(dim) -> int:
        """The present value of a Dim; nothing is guarded."""
        return hint(dim)

    def plain_dim(self, dim):
        """A Dim for the graph, to which the integer arguments in it become known."""
        for name in free_symbols(dim):
            if name in self.integers:
                self.tracer.env.origins.setdefault(name, self.integers[name])
        return dim

    # -- numbers ------------------------------------------------------------------------------------------------------

    def method_of_constants(self, name, owner, other) -> Value | None:
        """What a special method of a constant gives for another one; None for NotImplemented."""
        result = self.fold(getattr(type(owner.const(self)), name), [owner, other], {})
        return None if result.is_plain and result.const(self) is NotImplemented else result

    def fold(self, fn, args, kwargs) -> Value:
        """Call a pure function for real on constant arguments."""
        real = [a.const(self) for a in args]
        real_kw = {k: v.const(self) for k, v in kwargs.items()}
        try:
            result = fn(*real, **real_kw)
        except Exception as error:
            raise Raised(self.exception(error)) from None
        return self.from_python(result)


def dictionary_of(value):
    """The source of the dictionary in which a real object keeps its attributes, or which it is; None for other
    values."""
    if type(value) is DictValue and value.obj is not None and type(value.obj) is dict:
        return value.source
    if type(value) in (ObjectValue, ModuleObject) and value.obj is not None and instance_dict(value.obj) is not None:
        return src.InstanceDict(value.source)
    return None


class _Absent:
    def __repr__(self):
        return "<absent>"


_ABSENT = _Absent()


def has_own_class(value) -> bool:
    """Whether a container is of a class derived from the builtin one, or a number of an enumeration."""
    if type(value) in (ListValue, TupleValue) and value.cls is value.builtin and value._elements is not None:
        return any(map(has_own_class, value._elements))
    return (isinstance(value, Constant) and isinstance(value.value, enum.Enum)
            or isinstance(value, (TupleValue, ListValue, DictValue)) and value.cls is not value.builtin)
