"""Calling: binding of arguments, inlining of Python functions, instantiation of classes, C callables through the
tables."""

from __future__ import annotations

import collections
import inspect
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from .. import observing, torch_private
from ..errors import Unsupported
from ..graph import refusals
from . import in_graph, marks, tables
from .executor import Frame
from .signatures import is_exact, takes
from .values.base import Raised, Value
from .values.constant import Constant
from .values.containers import DequeValue, ListValue, TupleValue
from .values.mappings import DictValue
from .values.sets import SetValue
from .values.deferred import Deferred, only_keeps
from .values.functions import ClassValue, FunctionValue
from .values.generators import CoroutineValue, GeneratorValue
from .values.read_numbers import EXTREMES, FUNCTIONS as READ_FUNCTIONS
from .values.tensor import OWN_MEMBERS, TensorMethod
from .values.objects import BuiltinMethod, ModuleObject, ObjectValue, has_plain_layout, is_static_function

if TYPE_CHECKING:
    from .session import Session
    from .values.tensor import TensorValue

MAX_DEPTH = 120
# Breaks at a function of PyTorch's in Python: it may be whole where its code is executed.
_FOLLOWED = ("torch-argument", "data-dependent-value", "data-dependent-branch", "not-constant")


class Calls:
    """Of one capture."""

    def __init__(self, s: Session) -> None:
        self.s = s
        self.direct = False  # whether the Python function that was called last was entered by a call instruction

    def call_function(self, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value],
                      direct: bool = False) -> Value:
        """Call a Python function: by table, as a torch operation, or inlined."""
        real, self.direct = fn.obj, direct
        if real is not None:
            handler = tables.functions.get(real)
            if handler is not None:
                self.guard_kinds(args, kwargs)
                if not takes(real, args, kwargs):
                    self.bind(fn, args, kwargs)
                return self.by_table(real, lambda: handler(self.s, args, kwargs), args, kwargs)
            if real in tables.refusals:
                tables.refusals[real](self.s, args)
            if real in tables.forbidden:
                why, hint = tables.forbidden[real]
                raise Unsupported(why, hint, kind="forbidden-call")
        module = fn.globals.get("__name__")
        special = (tables.codes.get(fn.code) or tables.named.get((module, fn.qualname))
                   or tables.named.get((module, fn.code.co_qualname)))
        if special is not None:
            try:
                return special(self.s, fn, args, kwargs)
            except (TypeError, ValueError, IndexError, KeyError):
                self.bind(fn, args, kwargs)  # a call that the function itself refuses is left to it
                raise
        if real is not None:
            rule = marks.rule_of(real) if real.__dict__ else None
            if rule is not None:
                return rule(self.s, fn, args, kwargs)
            self.check_allowed(real)
            substitute = marks.substitute_of(real)
            if substitute is not None:
                return self.s.inline(self.s.wrap_raw(substitute), args, kwargs)
            if marks.is_in_graph(real):
                return in_graph.call(self.s, real, args, kwargs, lambda: self.s.inline(fn, args, kwargs))
            if (real.__module__ and real.__module__.startswith("torch")
                and self.s.tracer.supports(real)
                and any(v.holds_tensor() for v in (*args, *kwargs.values()))):
                with self.s.speculate(kinds=_FOLLOWED):
                    return self.s.torch_call(real, args, kwargs)
        return self.inline(fn, args, kwargs, direct)

    def inline(self, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value], direct: bool = False,
               anew: bool = False) -> Value:
        """Execute a Python function symbolically with these arguments. ``direct``: a call instruction enters it.
        ``anew``: no earlier call tells what this one does."""
        code = fn.code
        if code.co_flags & inspect.CO_ASYNC_GENERATOR:
            raise Unsupported(f"the asynchronous generator {code.co_qualname} is called", kind="async")
        if len(self.s.frames) > MAX_DEPTH:
            raise Unsupported("calls are nested too deeply to be followed", kind="too-deep")
        if not anew and args and self.s.siblings.takes(fn, args[0]):
            return self.s.siblings.call(fn, args, kwargs, lambda: self.inline(fn, args, kwargs, direct, anew=True))
        if (observer := observing.observer()) is not None:
            observer.follows(code, True)
        frame = Frame(self.s, fn, self.bind(fn, args, kwargs))
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
            frame.set_up_generator()
            made = (GeneratorValue if code.co_flags & inspect.CO_GENERATOR else CoroutineValue)(frame)
            self.s.generators.append(made)
            return made
        frame.spliceable = direct
        return frame.run_inlined()

    def bind(self, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
        """Arguments to the function's local names, as CPython does; argument errors are left to eager execution."""
        code = fn.code
        names = code.co_varnames
        n_pos, n_kwonly = code.co_argcount, code.co_kwonlyargcount
        bound = dict(zip(names[:n_pos], args))
        at = n_pos + n_kwonly
        if code.co_flags & inspect.CO_VARARGS:
            bound[names[at]] = TupleValue(list(args[n_pos:]))
            at += 1
        elif len(args) > n_pos:
            self.argument_error(fn, args, kwargs, f"takes {n_pos} positional arguments but {len(args)} were given")
        extra = {}
        keyword_names = set(names[code.co_posonlyargcount: n_pos + n_kwonly])
        for key, value in kwargs.items():
            if key in keyword_names:
                if key in bound:
                    self.argument_error(fn, args, kwargs, f"got multiple values for argument '{key}'")
                bound[key] = value
            elif code.co_flags & inspect.CO_VARKEYWORDS:
                extra[key] = (Constant(key), value)
            else:
                self.argument_error(fn, args, kwargs, f"got an unexpected keyword argument '{key}'")
        if code.co_flags & inspect.CO_VARKEYWORDS:
            bound[names[at]] = DictValue(extra)
        missing = [n for n in names[:n_pos] if n not in bound]
        if missing:
            defaults = fn.field_value(self.s, "defaults")
            values = defaults.load(self.s) if defaults is not None else []
            first = n_pos - len(values)
            for name in missing:
                at = names.index(name)
                if at < first:
                    self.argument_error(fn, args, kwargs, f"missing required argument '{name}'")
                bound[name] = values[at - first]
        for name in names[n_pos: n_pos + n_kwonly]:
            if name not in bound:
                defaults = fn.field_value(self.s, "kwdefaults")
                value = defaults.get_constant(self.s, name) if defaults is not None else None
                if value is None:
                    self.argument_error(fn, args, kwargs, f"missing required keyword-only argument '{name}'")
                bound[name] = value
        return bound

    def argument_error(self, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value], text) -> None:
        """Raise the TypeError that CPython raises for a wrong call, with its very text, by calling a function of the
        same signature that does nothing."""
        try:
            signature_twin(fn, self.s)(*[None] * len(args), **dict.fromkeys(kwargs))
        except TypeError as error:
            raise Raised(self.s.exception(error)) from None
        raise Unsupported(f"{fn.qualname}() {text}", kind="argument-error")

    def guard_kinds(self, args: list[Value], kwargs: dict[str, Value], fn: object = None) -> None:
        """Guard the types of arguments: what implements the C function ``fn`` asks of which class a value is, or
        whether it is None."""
        for value in (*args, *kwargs.values()):
            if type(value) is Deferred and not only_keeps(fn) and not (value.is_read and self.takes_read(fn)):
                value.needed()
            if value.source is not None:
                value.pytype(self.s)

    def takes_read(self, fn: object) -> bool:
        """Whether a function may be given a number that is read off a tensor."""
        return fn in READ_FUNCTIONS or fn in EXTREMES or self.s.tracer.supports(fn)

    def call_builtin(self, fn: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a C function."""
        self.guard_kinds(args, kwargs, fn)
        self.check_allowed(fn)
        if self.s.asker.takes(fn, args, kwargs):
            return self.s.asker.builtin(fn, args, kwargs)
        try:
            handler, forbidden = tables.calls.get(fn), tables.forbidden.get(fn)
        except TypeError:  # it cannot be a key
            handler = forbidden = None
        if handler is not None:
            return self.by_table(fn, lambda: handler(self.s, args, kwargs), args, kwargs)
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, type):
            handler = tables.calls.get(class_method(owner, fn.__name__))
            if handler is not None:
                whole = [self.s.wrap_class(owner), *args]
                return self.by_table(fn, lambda: handler(self.s, whole, kwargs), args, kwargs)
        if forbidden is not None:
            raise Unsupported(*forbidden, kind="forbidden-call")
        if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)) and args:
            return self.call_unbound(fn, args, kwargs)
        if self.s.tracer.supports(fn):
            return self.s.torch_call(fn, args, kwargs)
        if type(owner) is types.GetSetDescriptorType and args:
            return self.s.wrap_raw(owner).builtin_method(self.s, getattr(type(owner), fn.__name__), args, kwargs)
        if self.is_pure(fn) and all(a.is_const() for a in [*args, *kwargs.values()]):
            return self.s.fold(fn, args, kwargs)
        substitute = marks.substitute_of(fn)
        if substitute is not None:
            return self.s.inline(self.s.wrap_raw(substitute), args, kwargs)
        if marks.is_in_graph(fn):
            return in_graph.call(self.s, fn, args, kwargs)
        name = f"{getattr(fn, '__module__', None) or ''}.{getattr(fn, '__qualname__', repr(fn))}".lstrip(".")
        raise Unsupported(f"call of {name}, implemented in C and not known to the compiler", kind="c-call",
                          hint="call it outside the compiled function, or on constants")

    def by_table(self, fn: object, run: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """What a table's entry for a function gives. Entries take arguments as they come; a call that the function
        itself refuses is left to it."""
        if not takes(fn, args, kwargs):
            raise Unsupported(f"{getattr(fn, '__qualname__', fn)}() is called with the wrong arguments",
                              kind="argument-error")
        try:
            return run()
        except (TypeError, ValueError, IndexError, KeyError):
            if is_exact(fn):
                raise
            raise Unsupported(f"{getattr(fn, '__qualname__', fn)}() is called with the wrong arguments",
                              kind="argument-error") from None

    def check_method(self, raw: Callable, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Raise what eager says to a call of a method of tensors with the wrong arguments: a table's entry takes them
        as they come."""
        if isinstance(raw, types.FunctionType):
            if not takes(raw, [owner, *args], kwargs):
                self.bind(self.s.wrap_raw(raw), [owner, *args], kwargs)
        elif args or kwargs:
            error = refusals.of_kinds(raw, [v.lower(self.s) for v in args],
                                      {k: v.lower(self.s) for k, v in kwargs.items()})
            if error is not None:
                raise Raised(self.s.exception(error))

    def check_allowed(self, fn: object) -> None:
        """Raise Unsupported for what the program keeps out of graphs."""
        if marks.is_disallowed(fn):
            raise Unsupported(f"call of {getattr(fn, '__qualname__', fn)}, which the program disallows in graphs",
                              "torch._dynamo.disallow_in_graph was called for it", kind="disabled")

    def is_pure(self, fn: Callable) -> bool:
        if fn in tables.pure:
            return True
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, type):
            return owner in (str, bytes, int, float)
        return (isinstance(owner, (str, bytes, int, float, complex))
                or getattr(fn, "__module__", None) in ("math", "_operator", "cmath"))

    def call_unbound(self, raw: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``type.method(instance, ...)`` of a C type."""
        owner = args[0]
        if owner.is_tensor and raw.__name__ in tables.tensor_methods and OWN_MEMBERS.get(raw.__name__) is raw:
            return TensorMethod(owner, raw.__name__).call(self.s, args[1:], kwargs)
        if owner.is_tensor or (issubclass(raw.__objclass__, torch_private.TensorBase)
                                              and self.s.tracer.supports(raw)):
            return self.s.torch_call(raw, args, kwargs)
        if owner.is_object:
            return owner.builtin_method(self.s, raw, args[1:], kwargs)
        if owner.is_const():
            return Constant(owner.const(self.s)).getattr(self.s, raw.__name__).call(self.s, args[1:], kwargs)
        return owner.getattr(self.s, raw.__name__).call(self.s, args[1:], kwargs)

    # -- classes ------------------------------------------------------------------------------------------------------

    def instantiate(self, cls_value: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``cls(*args, **kwargs)`` by ``__new__`` and ``__init__``."""
        cls = cls_value.obj
        if inspect.isabstract(cls):
            return self.fold_error(cls, args, kwargs)
        new = self.s.class_lookup(cls, "__new__")[1]
        if is_static_function(new):
            instance = self.s.wrap_raw(new.__func__).call(self.s, [cls_value, *args], kwargs)
            if not (instance.is_object or instance.is_tensor) or not issubclass(instance.cls, cls):
                return instance
        else:
            instance = self.allocate(cls, args, kwargs)
        init, written = self.s.class_lookup(cls, "__init__")[1], self.s.function_of_class(cls, "__init__")
        if written is not None:
            self.s.bound_method(written, instance).call(self.s, args, kwargs)
        elif not hasattr(init, "__objclass__"):
            raise Unsupported(f"an object of {cls.__module__}.{cls.__qualname__} is made",
                              kind="instantiate", hint="make the object outside the compiled function")
        elif init is not None and init is not object.__init__ and instance.builtin is not tuple:
            BuiltinMethod(instance, init).call(self.s, args, kwargs)
        elif (args or kwargs) and init is object.__init__ and self.s.class_lookup(cls, "__new__")[1] is object.__new__:
            raise Unsupported(f"{cls.__name__}() takes no arguments", kind="argument-error")
        return instance

    def fold_error(self, cls, args: list[Value], kwargs: dict[str, Value]):
        try:
            cls()
        except TypeError as error:
            raise Raised(self.s.exception(error)) from None
        raise Unsupported(f"an object of the abstract class {cls.__name__} is made", kind="instantiate")

    def allocate(self, cls, args: Sequence[Value] = (), kwargs: dict[str, Value] | None = None) -> Value:
        """``cls.__new__`` for classes whose ``__new__`` is implemented in C."""
        if self.s.class_lookup(cls, "__del__")[0]:
            raise Unsupported(f"an object of {cls.__module__}.{cls.__qualname__} is made, whose finalizer has to run",
                              kind="instantiate",
                              hint="make the object outside the compiled function")
        if issubclass(cls, BaseExceptionGroup) and not makes_group(cls, args):
            raise Unsupported(f"an object of {cls.__qualname__} is made of arguments that are not known",
                              kind="instantiate", hint="make the object outside the compiled function")
        if issubclass(cls, torch.Tensor):
            return tables.calls[torch.Tensor.__new__](self.s, [self.s.wrap_class(cls), *args], kwargs or {})
        if issubclass(cls, BaseException):
            value = ObjectValue(cls)
            value.init_args = tuple(args)
            return value
        if issubclass(cls, dict):
            return DictValue({}, cls)
        if issubclass(cls, list):
            return ListValue([], cls)
        if issubclass(cls, tuple):
            return TupleValue(args[0].items_list(self.s) if args else [], cls)
        if issubclass(cls, (set, frozenset)):
            return SetValue({}, cls)
        if issubclass(cls, collections.deque):
            return DequeValue([], cls)
        if issubclass(cls, torch.nn.Module):
            return ModuleObject(cls)
        if issubclass(cls, torch.autograd.Function):  # older programs make one to call its ``apply``
            return ObjectValue(cls)
        self.s.asker.meets(cls)
        if has_plain_layout(cls) or issubclass(cls, types.SimpleNamespace):
            return ObjectValue(cls)
        raise Unsupported(f"an object of {cls.__module__}.{cls.__qualname__} is made", kind="instantiate",
                          hint="make the object outside the compiled function")


def makes_group(cls, args: list[Value]) -> bool:
    """Whether ``cls(*args)``, of an exception group, raises nothing and gives an object of just that class."""
    if cls is not ExceptionGroup or len(args) != 2 or not args[0].is_leaf or not isinstance(args[0].value, str):
        return False
    parts = args[1]._elements if args[1].builtin in (list, tuple) else None
    return bool(parts) and all(v.is_exception(Exception) for v in parts)


def class_method(cls: type, name: str) -> object:
    """The descriptor of a class method that is implemented in C, or None."""
    raw = next((c.__dict__[name] for c in cls.__mro__ if name in c.__dict__), None)
    return raw if isinstance(raw, types.ClassMethodDescriptorType) else None


def signature_twin(fn: FunctionValue, s: Session):
    """A function with the name, parameters and number of defaults of ``fn`` that does nothing."""
    code = fn.code
    names = list(code.co_varnames)
    n_pos, n_only = code.co_argcount, code.co_kwonlyargcount
    defaults, kwdefaults = fn.field_value(s, "defaults"), fn.field_value(s, "kwdefaults")
    n_defaults = len(defaults.load(s)) if defaults is not None else 0
    optional = set() if kwdefaults is None else {k for k in kwdefaults.load(s)}
    parts = [n + ("=None" if i >= n_pos - n_defaults else "") for i, n in enumerate(names[:n_pos])]
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    at = n_pos + n_only
    if code.co_flags & inspect.CO_VARARGS:
        parts.append("*" + names[at])
        at += 1
    elif n_only:
        parts.append("*")
    parts += [n + ("=None" if n in optional else "") for n in names[n_pos: n_pos + n_only]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append("**" + names[at])
    twin = eval(f"lambda {', '.join(parts)}: None")
    twin.__qualname__ = fn.qualname
    return twin
