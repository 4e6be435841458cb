"""The parts of the standard library that are implemented in C, or better not inlined."""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
import inspect
import itertools
import math
import operator
import os
import posixpath
import sys
import time
import types
import typing
import warnings
import weakref
from typing import TYPE_CHECKING, Callable, NoReturn

import torch

from ...errors import Unsupported
from ...runtime import facts
from .. import protocols
from ..operators import BINARY, COMPARE, INPLACE, UNARY
from .. import source as src
from ..tables import add_forbidden, add_pure, on_call, on_descriptor, on_function, on_method
from ..values.base import Raised, type_name
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.numbers import FUNCTIONS, compute
from ..values.functions import MethodValue
from ..values.iterators import ChainIterator, FilterIterator, FunctionIterator, SequenceIterator, TeeIterator
from ..values.objects import ObjectValue
from .builtin_functions import abs_

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session
    from ..values.base import Value
    from ..values.containers import SequenceValue

NONE = Constant(None)

# -- operator --------------------------------------------------------------------------------------------------------

for _op in (*BINARY.values(), *INPLACE.values()):
    on_call(_op.fn)(lambda s, args, kwargs, op=_op: protocols.binary_op(s, op, *args))
for _op in COMPARE.values():
    on_call(_op.fn)(lambda s, args, kwargs, op=_op: protocols.rich_compare(s, op, *args))
for _op in UNARY.values():
    on_call(_op.fn)(lambda s, args, kwargs, op=_op: protocols.unary_op(s, op, *args))
on_call(operator.not_)(lambda s, args, kwargs: Constant(not args[0].truth(s)))
on_call(operator.truth)(lambda s, args, kwargs: Constant(args[0].truth(s)))
on_call(operator.is_)(lambda s, args, kwargs: Constant(protocols.same_object(s, *args)))
on_call(operator.is_not)(lambda s, args, kwargs: Constant(not protocols.same_object(s, *args)))
on_call(operator.contains)(lambda s, args, kwargs: Constant(protocols.contains(s, *args)))
on_call(operator.getitem)(lambda s, args, kwargs: args[0].getitem(s, args[1]))
on_call(operator.index)(lambda s, args, kwargs: args[0] if args[0].symbolic is int else Constant(args[0].index(s)))
on_call(operator.abs)(abs_)
on_call(operator.inv)(lambda s, args, kwargs: protocols.unary_op(s, UNARY["~"], *args))


def _concat(op) -> Callable:
    """``operator.concat`` and ``iconcat``: of sequences only."""
    def concat(s: Session, args: list[Value], kwargs: dict[str, Value]):
        a, b = args
        result = a.concat(s, op, b) if not a.by_class(s, op.forward) else None
        if result is None and not a.is_const():
            raise Unsupported(f"operator.{op.fn.__name__} of {a.describe()}", kind="operator")
        if result is None:
            raise Raised(s.exception(TypeError(f"'{type_name(a.pytype(s))}' object can't be concatenated")))
        return result

    return concat


on_call(operator.concat)(_concat(BINARY["+"]))
on_call(operator.iconcat)(_concat(INPLACE["+"]))


@on_call(operator.setitem)
def operator_setitem(s: Session, args: list[Value], kwargs: dict[str, Value]):
    args[0].setitem(s, args[1], args[2])
    return NONE


@on_call(operator.delitem)
def operator_delitem(s: Session, args: list[Value], kwargs: dict[str, Value]):
    args[0].delitem(s, args[1])
    return NONE


def _only_argument(s: Session, cls: type, args: list[Value]) -> Value:
    if len(args) != 1:
        raise Raised(s.exception(TypeError(f"{cls.__name__} expected 1 argument, got {len(args)}")))
    return args[0]


class GetterValue(ObjectValue):
    """An ``operator.itemgetter``, ``attrgetter`` or ``methodcaller`` made while capturing."""

    def __init__(self, cls, args: list[Value], kwargs: dict[str, Value]) -> None:
        super().__init__(cls)
        self.args, self.kwargs = list(args), dict(kwargs)

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        target = _only_argument(s, self.cls, args)
        if self.cls is operator.methodcaller:
            return target.call_method(s, self.args[0].const(s), self.args[1:], self.kwargs)
        if self.cls is operator.itemgetter:
            values = [target.getitem(s, key) for key in self.args]
        else:
            values = [_attribute_path(s, target, name.const(s)) for name in self.args]
        return values[0] if len(values) == 1 else TupleValue(values)

    def emit(self, e: Emitter) -> None:
        e.call_const(self.cls, self.args, self.kwargs)


def _attribute_path(s: Session, value: Value, path: str) -> Value:
    for name in path.split("."):
        value = value.getattr(s, name)
    return value


def _made(s: Session, cls: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A getter, or what its class says to arguments of these types."""
    try:
        cls(*["a" if issubclass(a.pytype(s), str) else None for a in args], **dict.fromkeys(kwargs))
    except TypeError as error:
        raise Raised(s.exception(error)) from None
    return GetterValue(cls, args, kwargs)


for _getter in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    on_call(_getter)(lambda s, args, kwargs, cls=_getter: _made(s, cls, args, kwargs))


@on_method((operator.methodcaller, "__call__"))
def methodcaller_call(s: Session, getter, args: list[Value], kwargs: dict[str, Value]):
    name, *rest = getter.pin(s).__reduce__()[1]
    if not isinstance(name, str):
        raise Unsupported("an operator.methodcaller is made with keyword arguments", kind="instantiate")
    return _only_argument(s, operator.methodcaller, args).call_method(s, name, [s.from_python(v) for v in rest])


@on_method((operator.itemgetter, "__call__"))
def itemgetter_call(s: Session, getter, args: list[Value], kwargs: dict[str, Value]):
    keys = getter.pin(s).__reduce__()[1]
    values = [_only_argument(s, operator.itemgetter, args).getitem(s, s.from_python(k)) for k in keys]
    return values[0] if len(values) == 1 else TupleValue(values)


@on_method((operator.attrgetter, "__call__"))
def attrgetter_call(s: Session, getter, args: list[Value], kwargs: dict[str, Value]):
    target = _only_argument(s, operator.attrgetter, args)
    values = [_attribute_path(s, target, path) for path in getter.pin(s).__reduce__()[1]]
    return values[0] if len(values) == 1 else TupleValue(values)


# -- math ------------------------------------------------------------------------------------------------------------


_OF_ITERABLES = {math.prod, math.fsum, math.dist, getattr(math, "sumprod", None)}


for _name in dir(math):
    _fn = getattr(math, _name)
    if callable(_fn):
        def _math(s: Session, args: list[Value], kwargs: dict[str, Value], fn: Callable = _fn) -> Value:
            if fn in _OF_ITERABLES:
                args = [TupleValue(a.items_list(s)) if a.builtin is list else a for a in args]
            else:
                # Any list is refused with the same words.
                args = [Constant([]) if a.builtin is list and a.pytype(s) is list else a for a in args]
            if args and args[0].is_read:
                return args[0].of_floats(s, fn, args)
            if fn in FUNCTIONS and not kwargs and any(a.symbolic for a in args):
                result = compute(s, fn, args)
                if result is not None:
                    return result
            return s.fold(fn, args, kwargs)
        on_call(_fn)(_math)

for _fn in (math.floor, math.ceil, math.trunc):
    on_call(_fn)(lambda s, args, kwargs, fn=_fn: args[0].integral(s, fn))

# -- itertools -------------------------------------------------------------------------------------------------------


@on_call(itertools.chain)
def chain(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ChainIterator(SequenceIterator(list(args)))


@on_call(itertools.chain.from_iterable)
def chain_from_iterable(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ChainIterator(args[0].iter(s))


def _combinatoric(fn: type) -> None:
    @on_call(fn)
    def combine(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        n_iterables = len(args) if fn is itertools.product else 1
        pools = [a.items_list(s) for a in args[:n_iterables]]
        rest = [a.index(s) for a in args[n_iterables:] if not a.is_nothing(s)]
        extra = {k: v.index(s) for k, v in kwargs.items()}
        picked = fn(*(range(len(p)) for p in pools), *rest, **extra)
        if fn is itertools.product:
            return SequenceIterator([TupleValue([pools[i % len(pools)][k] for i, k in enumerate(row)])
                                     for row in picked], py=fn)
        return SequenceIterator([TupleValue([pools[0][k] for k in row]) for row in picked], py=fn)


for _fn in (itertools.product, itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
    _combinatoric(_fn)


@on_call(itertools.islice)
def islice(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bounds = [None if a.is_nothing(s) else a.index(s) if a.has_index(s) else a.pytype(s) for a in args[1:]]
    if any(isinstance(n, (type, int)) for n in bounds):
        try:
            itertools.islice((), *bounds)
        except ValueError as error:
            raise Raised(s.exception(error)) from None
    window = slice(*bounds)
    start, stop, step = window.start or 0, window.stop, window.step or 1
    it, state = args[0].iter(s), [0, start]

    def next_value(s: Session) -> Value | None:
        if stop is not None and state[1] >= stop:
            return None
        while True:
            if stop is not None and state[0] >= stop:
                return None
            value = it.next(s)
            if value is None:
                return None
            at = state[0]
            s.set_entry(state, 0, at + 1)
            if at == state[1]:
                s.set_entry(state, 1, at + step)
                return value

    return FunctionIterator(next_value, itertools.islice)


@on_call(itertools.count)
def count(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = kwargs.get("start", args[0] if args else Constant(0))
    step = kwargs.get("step", args[1] if len(args) > 1 else Constant(1))
    state = [start]
    for value in (start, step):
        cls = value.pytype(s)
        if not any(hasattr(cls, name) for name in ("__index__", "__int__", "__float__", "__complex__")):
            raise Raised(s.exception(TypeError("a number is required")))
    if start.pytype(s) is bool and step.is_const() and isinstance(step.const(s), int) and step.const(s) == 1:
        state[0] = protocols.binary_op(s, BINARY["+"], start, Constant(0))  # CPython counts in ones with a C integer

    def next_value(s: Session) -> Value:
        value = state[0]
        s.set_entry(state, 0, protocols.binary_op(s, BINARY["+"], value, step))
        return value

    return FunctionIterator(next_value, itertools.count)


@on_call(itertools.repeat)
def repeat(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    times = kwargs.get("times", args[1] if len(args) > 1 else None)
    if times is not None:
        return SequenceIterator([args[0]] * times.index(s), py=itertools.repeat)
    return FunctionIterator(lambda s: args[0], itertools.repeat)


def all_at_once(s: Session, fn: Callable, iterable: Value) -> list[Value]:
    """The elements for a C iterator that would ask for them one by one: where it makes no difference."""
    it = iterable.iter(s)
    if not it.quiet:
        raise Unsupported(f"itertools.{fn.__name__}() of an iterator that may do other things on its way",
                          "give it a list", kind="c-call")
    return it.items_list(s)


@on_call(itertools.cycle)
def cycle(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values, state = all_at_once(s, itertools.cycle, args[0]), [0]

    def next_value(s: Session) -> Value | None:
        if not values:
            return None
        value = values[state[0] % len(values)]
        s.set_entry(state, 0, state[0] + 1)
        return value

    return FunctionIterator(next_value, itertools.cycle)


@on_call(itertools.zip_longest)
def zip_longest(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fill = kwargs.get("fillvalue", NONE)
    pools = [all_at_once(s, itertools.zip_longest, a) for a in args]
    return SequenceIterator([TupleValue(list(row)) for row in itertools.zip_longest(*pools, fillvalue=fill)],
                            py=itertools.zip_longest)


@on_call(itertools.starmap)
def starmap(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[1].iter(s)

    def next_value(s: Session) -> Value | None:
        value = it.next(s)
        return None if value is None else args[0].call(s, value.items_list(s), {})

    return FunctionIterator(next_value, itertools.starmap)


for _fn, _mode in ((itertools.takewhile, "takewhile"), (itertools.dropwhile, "dropwhile"),
                   (itertools.filterfalse, "filterfalse")):
    on_call(_fn)(lambda s, args, kwargs, mode=_mode: FilterIterator(
        None if mode == "filterfalse" and args[0].is_nothing(s) else args[0], args[1].iter(s), mode))


_GROUP = type(next(itertools.groupby("a"))[1])


@on_call(itertools.groupby)
def groupby(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key = args[1] if len(args) > 1 else kwargs.get("key")
    groups = []
    for v in all_at_once(s, itertools.groupby, args[0]):
        k = v if key is None or key.is_nothing(s) else key.call(s, [v], {})
        if groups and protocols.same_or_equal(s, groups[-1][0], k):
            groups[-1][1].append(v)
        else:
            groups.append((k, [v]))
    return SequenceIterator([TupleValue([k, SequenceIterator(vs, py=_GROUP)]) for k, vs in groups],
                            py=itertools.groupby)


@on_call(itertools.tee)
def tee(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    count, it = args[1].index(s) if len(args) > 1 else 2, args[0].iter(s)
    if type(it) is SequenceIterator:
        shared = [it, []]
        return TupleValue([TeeIterator(shared) for _ in range(count)])
    values = all_at_once(s, itertools.tee, it)
    return TupleValue([SequenceIterator(values, py=type(itertools.tee(())[0])) for _ in range(count)])


# -- functools -------------------------------------------------------------------------------------------------------


@on_call(functools.reduce)
def reduce(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = protocols.iterate(s, args[1], "reduce() arg 2 must support iteration")
    total = args[2] if len(args) > 2 else it.next(s)
    if total is None:
        raise Raised(s.exception(TypeError("reduce() of empty iterable with no initial value")))
    while (value := it.next(s)) is not None:
        total = args[0].call(s, [total, value], {})
    return total


@on_descriptor(type(collections.namedtuple("_Pair", "first second").first))
def named_field(s: Session, owner: SequenceValue, raw: object, name: str, cls: type) -> Value:
    return owner.load(s)[raw.__reduce__()[1][0]]


@on_method((weakref.ReferenceType, "__call__"))
def weak_reference_call(s: Session, reference: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target = reference.pin(s)()
    return NONE if target is None else s.wrap(target, src.Weak(reference.obj))


class WeakReference(ObjectValue):
    """A ``weakref.ref`` made while capturing; its target is alive for as long as the captured region runs."""

    def __init__(self, target, rest) -> None:
        super().__init__(weakref.ReferenceType)
        self.target, self.rest = target, rest

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.target

    def emit(self, e: Emitter) -> None:
        e.call_const(weakref.ref, [self.target, *self.rest])


@on_call(weakref.ref)
def weak_reference(s: Session, args: list[Value], kwargs: dict[str, Value]) -> WeakReference:
    target = args[0]
    if getattr(target, "obj", None) is None:
        raise Unsupported("a weak reference to an object that is made here", kind="instantiate")
    return WeakReference(target, args[1:])


add_pure(os.fspath, sys.intern, *(getattr(posixpath, n) for n in ("_path_normpath",) if hasattr(posixpath, n)))


@on_method((types.GetSetDescriptorType, "__get__"), (types.MemberDescriptorType, "__get__"))
def descriptor_get(s: Session, descriptor: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.Tensor.shape.__get__(x)``: the attribute, where it is what the object's class has under that name."""
    raw = descriptor.pin(s)
    found, attribute, _ = s.class_lookup(args[0].pytype(s), raw.__name__)
    if not found or attribute is not raw or s.function_of_class(args[0].pytype(s), "__getattribute__"):
        raise Unsupported(f"descriptor {raw.__qualname__} of another class than the object's", kind="descriptor")
    return args[0].getattr(s, raw.__name__)


@on_descriptor(functools.cached_property)
def cached_property_get(s: Session, owner: ObjectValue, raw: object, name: str, cls: type) -> Value:
    value = s.wrap_raw(raw.func).call(s, [owner], {})
    owner.plain_setattr(s, raw.attrname, value)
    return value


# -- inspect, typing, copy, warnings, logging, time
# --------------------------------------------------------------------------


def stand_in(s: Session, fn):
    """A real function with the signature of one made while capturing, whose defaults and annotations have to be
    constants."""
    code = fn.code
    real = types.FunctionType(code, fn.globals, code.co_name, None, tuple(types.CellType() for _ in code.co_freevars))
    defaults, kwdefaults = fn.field_value(s, "defaults"), fn.field_value(s, "kwdefaults")
    real.__defaults__ = defaults and defaults.const(s)
    real.__kwdefaults__ = kwdefaults and {k: v.const(s) for k, (_, v) in kwdefaults.load(s).items()}
    if fn.annotations is not None or "__annotate__" in fn.attrs:
        annotations = fn.getattr(s, "__annotations__")
        real.__annotations__ = {k: v.const(s) for k, (_, v) in annotations.load(s).items()}
    return real


@on_function(inspect.signature)
def signature(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target = args[0]
    if isinstance(target, MethodValue):
        real = target.fn.pin_object(s)
        pin_defaults(s, target.fn)
        obj = inspect.signature(real)
        parameters = list(obj.parameters.values())[1:]
        obj = obj.replace(parameters=parameters)
    else:
        obj = inspect.signature(target.pin(s) if not target.is_function else stand_in(s, target) if target.obj is None
                                else target.pin_object(s))
        pin_defaults(s, target)
    s.guards.makes_some = True
    return s.wrap(obj, src.Const(obj, "signature", made=True))


def pin_defaults(s: Session, fn: Value) -> None:
    """Rely on the defaults of a function, which are in its signature."""
    for name in ("__defaults__", "__kwdefaults__") if fn.is_function else ():
        found = fn.getattr(s, name)
        values = [] if found.is_nothing(s) else found.load(s)
        for value in (pair[1] for pair in values.values()) if isinstance(values, dict) else values:
            value.const(s) if value.is_const() else value.pin(s)


@on_call(types.FunctionType.__get__)
def function_get(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args or not args[0].is_function:
        raise Unsupported("function.__get__() is given something that is no function", kind="argument-error")
    return args[0].getattr(s, "__get__").call(s, args[1:], kwargs)


@on_function(inspect.getattr_static)
def getattr_static(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a class whose own class has nothing of that name."""
    cls = args[0].as_class
    name = args[1].const(s) if len(args) > 1 and args[1].is_const() else None
    if cls is None or kwargs or not isinstance(name, str) or s.class_lookup(type(cls), name)[0]:
        return s.inline(s.wrap_raw(inspect.getattr_static), args, kwargs)
    if s.class_lookup(cls, name)[0]:
        return s.wrap_class_attr(cls, name)
    if len(args) > 2:
        return args[2]
    raise Raised(s.exception(AttributeError(name)))


@on_function(typing.cast)
def cast(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[1]


_COPY_METHODS = ("__copy__", "__reduce_ex__", "__reduce__", "__getstate__",
                 "__setstate__", "__getnewargs__", "__getnewargs_ex__")


@on_function(copy.copy)
def copy_copy(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    if value.is_leaf or value.is_function or value.builtin is tuple:
        return value
    if value.builtin is not None and value.cls is value.builtin:
        return value.call_method(s, "copy")
    if value.is_tensor:
        if s.asker.overridden([value]):
            raise Unsupported("copy.copy() of a tensor under a mode or class that sees each operation", kind="c-call")
        if value.pytype(s) is not torch.Tensor or value.handle(s).requires_grad:
            raise Unsupported("copy.copy() of a parameter or of a tensor that requires grad", kind="c-call")
        return s.torch_call(torch.Tensor.detach, [value], {})
    if (type(value) is ObjectValue and not issubclass(value.cls, BaseException)
        and not copyreg._slotnames(value.pytype(s))
        and not any(value.user_special(s, name) for name in _COPY_METHODS)):
        new = s.calls.allocate(value.pytype(s))
        for name in value.dict_names(s):
            new.attrs[name] = value.instance_attr(s, name)
        return new
    return s.inline(s.wrap_raw(copy.copy), args, kwargs)


@on_function(copy.deepcopy)
def deep_copy(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A break inside is one of the call: what has been copied is noted by what eager knows and this does not, such as
    the memory of tensors."""
    try:
        return s.inline(s.wrap_raw(copy.deepcopy), args, kwargs)
    except Unsupported as error:
        error.frames = []
        raise


add_forbidden("warnings are process-wide state", "", warnings.warn_explicit)


def give_warning(message, category, file, line, namespace) -> None:
    """What ``warnings.warn`` does, for a call at this place of the program: a line of a module with these globals."""
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, namespace.get("__name__", "<string>"), registry)


def _notes_filters(fn: Callable) -> None:
    """The module's own note that its filters have changed: an effect, as the change of its list is."""
    @on_call(fn)
    def note(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
        s.effect(fn, [])
        return Constant(None)


for _name in ("_filters_mutated", "_filters_mutated_lock_held"):  # the latter from 3.14 on
    if hasattr(warnings, _name):
        _notes_filters(getattr(warnings, _name))


def refuse_warning(s: Session, *args: object) -> NoReturn:
    raise Unsupported("a warning is given that has effects outside the program", kind="warning",
                      hint="warn outside the compiled function")


_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_shown, _shown_by = warnings._showwarnmsg_impl, warnings.showwarning
if type(_shown) is types.BuiltinMethodType:  # warnings are being recorded at this moment
    _shown = None


def way_of_warnings(category) -> str:
    """What becomes of a warning of a class now: it may be "raised" by a filter; it is "shown" on standard error, or
    "recorded" in a list of ``catch_warnings``; or a program's own function is "called" with it."""
    if any(action == "error" and issubclass(category, listed) for action, _, listed, *_ in warnings.filters):
        return "raised"
    if warnings.showwarning not in (_shown_by, warnings._showwarning_orig):
        return "called"
    last = warnings._showwarnmsg_impl
    if type(last) is types.BuiltinMethodType and last.__name__ == "append" and type(last.__self__) is list:
        return "recorded"
    return "shown" if last is _shown or _shown is None and getattr(last, "__module__", None) == "warnings" else "called"


@on_call(warnings.warn)
def warn(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    """A warning with a plain text, given after the graph has run, as if at its place in a frame of the program."""
    given = dict(zip(("message", "category", "stacklevel"), args)) | kwargs
    message, category = given.pop("message", Constant(None)), given.pop("category", Constant(None))
    level = given.pop("stacklevel", Constant(1))
    if (given or len(args) > 3 or not message.is_leaf or type(message.value) is not str
        or not level.is_leaf or type(level.value) is not int):
        refuse_warning(s)
    if category.is_nothing(s):
        category = s.wrap_raw(UserWarning)
    if category.as_class is None or not issubclass(category.pin(s), Warning):
        refuse_warning(s)
    at = len(s.frames) - max(level.const(s), 1)
    # Frames below one of our own, which stands for a function in C, would be counted wrongly.
    if at < 0 or not all(f.spliceable or not f.fn.code.co_filename.startswith(_OURS) for f in s.frames[at + 1:]):
        refuse_warning(s)
    if any(namespace == id(vars(warnings)) for namespace, _ in s.effects.globals_written):
        refuse_warning(s)  # the program has set what becomes of it
    ask = functools.partial(way_of_warnings, category.pin(s))
    way = ask()
    s.guards.add(src.Returned(src.Const(ask, "warnings")), facts.Equals(way))
    if way == "recorded":
        s.effects.hide_recorder(warnings._showwarnmsg_impl.__self__)
    elif way != "shown":
        refuse_warning(s)
    file, line, _ = s.frames[at].where()
    s.effect(give_warning, [message, category, Constant(file), Constant(line), Constant(s.frames[at].globals)])
    return Constant(None)


add_forbidden("the clock is read", "measure time outside the compiled function",
              time.time, time.perf_counter, time.monotonic, time.perf_counter_ns, time.time_ns)
add_forbidden("the program sleeps", "sleep before or after the compiled function", time.sleep)
