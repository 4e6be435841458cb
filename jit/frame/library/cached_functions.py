"""``functools.lru_cache`` and ``functools.cache``: functions with a memory.

What such a function gives is an object that lives in its cache. An entry of the cache is read where it lies, as any
object from outside, with guards on what is used of it; the call itself is made again by the emitted code, so that hits
are counted and the order of use is kept. Where there is no entry yet and nothing of the program is pending that the
call could see or be seen by, it is made while capturing, which is when eager would make it.

A call with sizes that change from call to call is followed instead, as that of any function, since there is an entry
for each of them. That is taken back where it has effects, or the program changes or keeps a list or dict that it gives.
"""

from __future__ import annotations

import functools
import gc
import types
from typing import TYPE_CHECKING, Callable

import torch

from ...errors import Unsupported
from ...runtime import facts, names, native
from ...runtime.naming import Naming
from .. import source as src
from ..assumptions import Reconsider
from ..decode import decode
from ..states import grad_mode
from ..tables import on_descriptor, on_method
from ..values.base import lookup
from ..values.constant import Constant
from ..values.containers import ContainerValue
from ..values.functions import MethodValue
from ..values.objects import ObjectValue
from .records import write_record

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

_LRU = type(functools.lru_cache(lambda: None))
_ABSENT = object()
_ASKS_THE_SYSTEM = ("c-call", "c-method", "instantiate")  # a function that breaks for these looks at what is outside


class Repeated:
    """A call of a cached function in an effect log; it was made while capturing, so that the first time is over."""

    def __init__(self, function: object) -> None:
        self.function, self.done = function, True

    def __call__(self, *args: object, **kwargs: object) -> None:
        if self.done:
            self.done = False
        else:
            self.function(*args, **kwargs)


@names.rule(Repeated)
def _name_of_repeated(naming: Naming, call: Repeated) -> names.Name:
    return names.calling(first_call, naming.name(call.function))


def first_call(function: object) -> Repeated:
    """A Repeated in a process where the function was not called yet."""
    call = Repeated(function)
    call.done = False
    return call


def cache_of(function: object) -> tuple[dict, object]:
    """-> (the dict of a cached function, the object that separates positional from named arguments in its keys)."""
    parts = gc.get_referents(function)[::-1]  # results that it holds come first
    cache = next(p for p in parts if type(p) is dict and p is not function.__dict__)
    return cache, next(p for p in parts if type(p) is object)


def _cache(function: object) -> dict:
    return cache_of(function)[0]


def _mark(function: object) -> object:
    return cache_of(function)[1]


names.leads[_LRU] = (_cache, _mark)


@functools.cache
def readable() -> bool:
    """Whether caches of this Python are laid out as this file takes them to be."""
    probe = functools.lru_cache(2, typed=True)(lambda *args, **kwargs: [args])
    wanted = [probe(1), probe(1.0, k=2)]
    try:
        keys = [key_of(probe, (1,), {}), key_of(probe, (1.0,), {"k": 2})]
        return [native().cache_link_result(cache_of(probe)[0][k]) for k in keys] == wanted
    except (KeyError, TypeError, StopIteration):
        return False


def key_of(function: object, args: tuple, kwargs: dict) -> object:
    """The key of a call in the cache, as CPython's ``lru_cache_make_key``."""
    typed = function.cache_parameters()["typed"]
    if not typed and not kwargs:
        return args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    key = args
    if kwargs:
        key += (cache_of(function)[1], *(part for item in kwargs.items() for part in item))
    if typed:
        key += (*map(type, args), *map(type, kwargs.values()))
    return key


def real_argument(s: Session, value: Value) -> object:
    """The object that an argument is, guarded to be that one. Raises Unsupported where it is made by the call, or says
    itself what it equals."""
    if type(value) is Constant or value.symbolic is int or value.is_code and not value.is_function:
        return value.const(s) if value.is_const() else value.pin(s)
    if value.builtin is tuple and value.cls in (tuple, torch.Size):
        return value.cls(real_argument(s, v) for v in value.load(s))
    if value.is_function and value.obj is not None:
        return value.pin_object(s)
    if value.is_object and value.obj is not None and value.builtin is not tuple:
        cls = value.pytype(s)
        if s.class_lookup(cls, "__hash__")[1] is object.__hash__ and s.class_lookup(cls, "__eq__")[1] is object.__eq__:
            return value.pin(s)
    raise Unsupported(f"a cached function is called with {value.describe()}", kind="cached-function")


def refuse_unhashable(s: Session, value: Value) -> None:
    """Raise the program's TypeError for what a cache cannot look up."""
    if value.builtin is tuple:
        for v in value.load(s):
            refuse_unhashable(s, v)
    elif value.is_object and lookup(value.pytype(s), "__hash__")[1] is None:
        value.hash_key(s)


@on_method((_LRU, "__call__"))
def cached_call(s: Session, cached: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of a cached function, at this point of the program."""
    function = cached.pin(s)
    inner = getattr(function, "__wrapped__", None)
    if not isinstance(inner, types.FunctionType):
        raise Unsupported("a cached function without __wrapped__", kind="c-call")
    for value in (*args, *kwargs.values()):
        refuse_unhashable(s, value)
    if s.trial is not None:
        return in_trial(s, inner, args, kwargs)
    if not kwargs and only_logs(s, function, inner, args, kwargs):
        return Constant(None)
    if s.following and any(map(is_symbolic, (*args, *kwargs.values()))):
        return followed(s, inner, args, kwargs)
    call = Call(s, function, inner, args, kwargs)
    found = call.stored()
    if found is not None:
        return call.result(found, done=call.was_made())
    value = call.tried()
    if not pending(s, call):
        return call.result(call.made(), done=True)
    if type(value) is Constant:
        s.guards.add(src.Const(call.cache), facts.DictLacks(call.key))
        call.again(done=False)
        return Constant(value.const(s))
    raise call.unsupported("has to be called for an entry of its cache")


class Call:
    """One call of a cached function with known arguments."""

    def __init__(self, s: Session, function: object, inner: Callable, args: list[Value],
                 kwargs: dict[str, Value]) -> None:
        self.s, self.function, self.inner, self.args, self.kwargs = s, function, inner, args, kwargs
        self.maxsize = function.cache_parameters()["maxsize"]
        if self.maxsize == 0 or not readable():
            raise self.unsupported("keeps nothing")
        self.real = tuple(real_argument(s, a) for a in args)
        self.real_kwargs = {k: real_argument(s, a) for k, a in kwargs.items()}
        self.key = key_of(function, self.real, self.real_kwargs)
        self.cache = cache_of(function)[0]

    def unsupported(self, why: str, hint: str = "") -> Unsupported:
        return Unsupported(f"{self.function.__qualname__} {why}", hint, kind="cached-function")

    def stored(self) -> tuple[object, ...] | None:
        """The object in the cache, in a tuple; None where there is none."""
        entry = self.cache.get(self.key, _ABSENT)
        if entry is _ABSENT:
            return None
        return (entry if self.maxsize is None else native().cache_link_result(entry),)

    def result(self, found: tuple[object, ...], done: bool) -> Value:
        """The object as a value, and the call as an effect."""
        item = src.Item(src.Const(self.cache, f"cache({self.function.__qualname__})"), self.key)
        source = item if self.maxsize is None else src.CacheLink(item)
        self.s.guards.add_presence(source)
        value = self.s.wrap(found[0], source)
        self.again(done)
        return value

    def was_made(self) -> bool:
        """Whether an earlier attempt to capture this call of the program has made the call."""
        for made in self.s.calls_made:
            if made[0] is self.function and made[1] == self.key and not made[2]:
                made[2] = True
                return True
        return False

    def again(self, done: bool) -> None:
        repeat = Repeated(self.function) if done else self.function
        if self.real_kwargs:
            repeat = functools.partial(repeat, **self.real_kwargs)
        self.s.effect(repeat, self.args)

    def made(self) -> tuple:
        """What the real call gives, which is made now."""
        with torch.set_grad_enabled(grad_mode.is_on(self.s)):
            try:
                self.function(*self.real, **self.real_kwargs)
            except Exception as error:  # of the program's own function
                raise self.unsupported(f"raises {type(error).__name__}") from None
        self.s.calls_made.append([self.function, self.key, True])
        found = self.stored()
        if found is None:
            raise self.unsupported("keeps nothing")
        return found

    def tried(self) -> Value:
        """The value that following the function gives, as a proof that calling it does nothing else; nothing else of
        that stays. None for a function that asks the system, such as which packages there are."""
        s, value = self.s, None
        before = state_of_inputs(s)
        with s.speculate(raises=True, keep=False) as attempt, s.journal.temporarily(s, "trial", {}):
            try:
                value = s.wrap_raw(self.inner).call(s, self.args, self.kwargs)
            finally:
                after = state_of_inputs(s)
        if attempt.raised is not None:
            raise self.unsupported(f"raises {attempt.raised.value.cls.__name__}")
        if attempt.refusal is not None and attempt.refusal.kind not in _ASKS_THE_SYSTEM:
            raise self.unsupported(f"has no entry for this call: {attempt.refusal.why}", attempt.refusal.hint)
        if attempt.effects or after != before:
            raise self.unsupported("has effects, which happen when its cache has no entry")
        return value


def is_symbolic(value: Value) -> bool:
    """Whether an argument is, or is a tuple that holds, an integer that changes from call to call."""
    if value.symbolic is int:
        return True
    return value.builtin is tuple and not value.is_untouched and any(map(is_symbolic, value.elements))


def followed(s: Session, inner: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a call gives that is followed and not looked up."""
    before = state_of_inputs(s)
    with s.speculate(raises=True) as attempt:
        value = s.wrap_raw(inner).call(s, args, kwargs)
    if attempt.went_through and not attempt.effects and state_of_inputs(s) == before:
        share(s, value)
        return value
    raise Reconsider("following")


def share(s: Session, value: Value) -> None:
    """Note of the containers that a result consists of that in eager all callers are given the same ones."""
    if isinstance(value, ContainerValue) and value.obj is None and value.source is None and not value.shared:
        s.set_field(value, "shared", True)
        for part in value.nested(s) or ():
            share(s, part)


def in_trial(s: Session, inner, args: list[Value], kwargs: dict[str, Value]):
    """A call from within a function that is tried: followed, once for each arguments that are constants."""
    key = None
    if all(type(a) is Constant for a in (*args, *kwargs.values())):
        named = tuple((k, type(a.value), a.const(s)) for k, a in kwargs.items())
        key = (inner, tuple((type(a.value), a.const(s)) for a in args), named)
    value = s.trial.get(key) if key is not None else None
    if value is None:
        value = s.wrap_raw(inner).call(s, args, kwargs)
        if key is not None:
            s.trial[key] = value
    return value


def state_of_inputs(s: Session) -> tuple[dict, int]:
    """What a call can do to the tensors of the program and to its random numbers: which inputs were written how often,
    how many numbers were drawn."""
    written = {id(h): h.base.version for h in s.tracer.inputs if h.base.mutated}
    return written, sum(node.impure for node in s.tracer.builder.nodes)


def pending(s: Session, call: Call) -> bool:
    """Whether the captured part of the program has done anything that a call made now would come before."""
    full = call.maxsize is not None and len(call.cache) >= call.maxsize
    for fn, *_ in s.effects.since(0):
        repeated = fn.func if isinstance(fn, functools.partial) else fn
        if not isinstance(repeated, (Repeated, _LRU)):
            return True
        if full and getattr(repeated, "function", repeated) is call.function:
            return True  # the order of use decides what goes
    return state_of_inputs(s) != ({}, 0)


def only_logs(s: Session, function: object, inner: Callable, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a function gives None and does nothing but write records, such as a warning that is given once: its
    effect is its call."""
    if not returns_none(inner):
        return False
    with s.speculate(raises=True, keep=False) as attempt, s.journal.temporarily(s, "trial", {}):
        s.wrap_raw(inner).call(s, args, kwargs)
    if attempt.refusal is not None:
        logs = attempt.refusal.kind == "logging"
    else:
        logs = attempt.went_through and bool(attempt.effects) and all(e.fn is write_record for e in attempt.effects)
    if logs:
        s.effect(functools.partial(call_with, function), args)
    return logs


def call_with(function: object, *args: object) -> None:
    """``function(*args)``: another effect than a call that only looks into the cache."""
    function(*args)


def returns_none(fn: Callable) -> bool:
    """True if every return of a Python function gives None, by its bytecode."""
    instructions = decode(fn.__code__).instructions
    return all(before.op == "LOAD_CONST" and before.arg is None
               for before, instr in zip(instructions, instructions[1:]) if instr.op == "RETURN_VALUE")


@on_descriptor(_LRU)
def cached_method(s: Session, owner, raw, name: str, cls: type) -> MethodValue:
    return MethodValue(s.wrap_class_attr(cls, name), owner)
