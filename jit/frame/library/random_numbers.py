"""Python's ``random`` and ``numpy.random``: a record for each class of generators, and the calls that draw from them
(``values.drawn``). Which of several objects is drawn, and in which order they are, is known where all are numbers."""

from __future__ import annotations

import pickle
import random
import threading
from typing import TYPE_CHECKING

import numpy as np

from ...errors import Unsupported
from ...runtime import facts
from ...runtime.drawing import KINDS, Kind, copied
from ..tables import on_call, on_descriptor, on_function, on_method, wrapper
from ..values.base import Value
from ..values.constant import Constant
from ..values.drawn import GeneratorObject
from ..values.objects import ObjectValue

if TYPE_CHECKING:
    from ..session import Session
    from ..source import Source

_OWN = frozenset(["gauss_next"])  # attributes that a generator of Python has itself
_PYTHON = frozenset("""
    betavariate binomialvariate choice choices expovariate gammavariate gauss getrandbits lognormvariate normalvariate
    paretovariate randbytes randint random randrange sample shuffle triangular uniform vonmisesvariate weibullvariate
""".split())
_NUMPY = frozenset("""
    beta binomial chisquare choice dirichlet exponential f gamma geometric gumbel hypergeometric integers laplace
    logistic lognormal logseries multinomial multivariate_normal negative_binomial noncentral_chisquare noncentral_f
    normal pareto permutation poisson power rand randint randn random random_sample rayleigh standard_cauchy
    standard_exponential standard_gamma standard_normal standard_t tomaxint triangular uniform vonmises wald weibull
    zipf
""".split())
_local = threading.local()


def _copied_python(generator: random.Random) -> random.Random:
    made = random.Random.__new__(random.Random)
    made.setstate(generator.getstate())
    return made


def _copied_state(generator: np.random.RandomState) -> np.random.RandomState:
    """One for all calls in a thread, as making one takes long."""
    if not hasattr(_local, "state"):
        _local.state = np.random.RandomState(0)
    _local.state.set_state(generator.get_state(legacy=False))
    return _local.state


for _kind in (Kind(random.Random, _copied_python, _PYTHON, frozenset(["seed", "setstate"])),
              Kind(np.random.RandomState, _copied_state, _NUMPY, frozenset(["seed", "set_state"])),
              Kind(np.random.Generator, copied, _NUMPY, frozenset())):
    KINDS[_kind.cls] = _kind


@wrapper(*KINDS)
def wrap_generator(s: Session, obj: object, source: Source | None) -> Value:
    kind = KINDS.get(type(obj))
    if kind is None or source is None:
        return s.heap.opaque(obj, source)
    return GeneratorObject(kind, obj, source)


def _python_method(name: str) -> None:
    raw = getattr(random.Random, name, None)
    if raw is None:
        return
    if hasattr(raw, "__code__"):
        @on_function(raw)
        def call(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
            if not args or not _is_plain(s, args[0], name):
                return s.inline(s.wrap_raw(raw), args, kwargs)
            return _do(s, args[0], name, list(args[1:]), kwargs)
    else:
        @on_method((raw.__objclass__, name))
        def call_c(s: Session, generator: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
            if not isinstance(generator, GeneratorObject):
                raise Unsupported(f"method {name} (implemented in C) of {generator.describe()}", kind="c-call")
            return _do(s, generator, name, args, kwargs)


def _is_plain(s: Session, value: Value, name: str) -> bool:
    """Whether a method of a generator does what its class says: none has been put on the object itself."""
    if not isinstance(value, GeneratorObject) or set(value.attrs) - _OWN:
        return False
    if set(getattr(value.obj, "__dict__", ())) - _OWN:
        return False
    if value.obj is not None and value.cls is random.Random:
        for own in (name, "random", "getrandbits", "_randbelow"):
            s.guards.add(value.source, facts.NoDictAttr(own))
    return True


def _do(s: Session, generator: GeneratorObject, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = generator.do(s, name, args, kwargs)
    if name != "shuffle":
        return found
    given = args[0] if args else kwargs["x"]
    for k, element in enumerate(found.items_list(s)):
        given.setitem(s, Constant(k), element)
    return Constant(None)


for _name in _PYTHON | {"seed", "setstate"}:
    _python_method(_name)


@on_function(random.Random.getstate)
def getstate(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    generator = args[0]
    if _is_plain(s, generator, "getstate") and generator.known is not None:
        return s.from_python(pickle.loads(generator.known).getstate())
    if _is_plain(s, generator, "getstate") and generator.source is not None:
        return generator.state(s, "getstate")
    return s.inline(s.wrap_raw(random.Random.getstate), args, kwargs)


def _new(cls: type) -> None:
    """A generator that the program makes, from a seed that is a constant or from none."""

    @on_call(cls)
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [v.const(s) for v in (*args, *kwargs.values())]
        return GeneratorObject.made(s, KINDS[cls], cls, *(n for n in given if n is not None))


for _cls in (random.Random, np.random.RandomState):
    _new(_cls)

_CYTHON = type(np.random.default_rng)


class CythonFunction(ObjectValue):
    """A function or method of a module that Cython has compiled."""

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fn = self.pin(s)
        if fn is np.random.default_rng and len(args) == 1 and not kwargs and type(args[0].const(s)) is int:
            return GeneratorObject.made(s, KINDS[np.random.Generator], fn, args[0].const(s))
        if fn is np.random.seed:
            return s.wrap_raw(np.random.mtrand._rand).do(s, "seed", args, kwargs)
        generator, name = args[0] if args else None, fn.__name__
        if isinstance(generator, GeneratorObject) and getattr(generator.cls, name, None) is fn:
            if name in generator.kind.draws or name in generator.kind.sets:
                return _do(s, generator, name, args[1:], kwargs)
            if name == "get_state" and not args[1:] and not kwargs and generator.known is None and generator.source:
                return generator.state(s, name)
        return super().call(s, args, kwargs)


@wrapper(_CYTHON)
def wrap_cython(s: Session, obj: object, source: Source | None) -> Value:
    return CythonFunction(_CYTHON, obj, source)


@on_descriptor(_CYTHON)
def bound_cython(s: Session, value: Value, raw: object, name: str, cls: type) -> Value:
    return s.bound_method(s.wrap_raw(raw), value)
