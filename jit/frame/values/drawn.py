"""Random numbers of Python's and NumPy's generators: ``random.random()``, ``rng.normal(size=3)``.

A generator whose state is known, as behind ``seed(0)``, is followed: its numbers are constants. Any other gives numbers
that are others at each call. They are drawn before the graph runs, from a copy of the generator, so that nothing has
happened where the call turns out to be left to eager; among the effects the same calls are made once more, of the
generator itself. A drawn number is an input of the graph, and one that Python reads off a tensor
(``values.read_numbers``).
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import torch

from ...errors import Unsupported
from ...runtime.drawing import Kind, call_again, called, drawn_by, put_back, tensor_of
from .. import source as src
from . import arrays, first_reads
from .arrays import ArrayValue
from .base import Raised, Value
from .constant import Constant
from .deferred import defer
from .objects import ObjectValue
from .tensor import TensorValue

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session
    from ..source import Source

_NOT_KNOWN = "a random number is needed while capturing"


class GeneratorObject(ObjectValue):
    """A generator of random numbers.

    Attributes:
        kind: its record.
        known: the pickled generator at this point of the program, None where its state is not known.
        program: (method, positional arguments, named ones) of each call that has drawn while the state was not known.
        reached: the pickled copy on which these calls were made; None before the first one.
        states: by the number of a call that has read the state, the same at that call.
        seeded: whether the program may draw: not from a new generator that the system has seeded.
    """

    draws = property(lambda self: drawn_by)
    known: bytes | None = None
    program: tuple = ()
    reached: bytes | None = None
    seeded = True

    def __init__(self, kind: Kind, obj: Any = None, source: Source | None = None) -> None:
        super().__init__(kind.cls, obj, source)
        self.kind, self.states = kind, dict[int, bytes]()

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        elif self.seeded:
            e.call(pickle.loads, e.const(self.known))
        else:
            e.call(self.cls)

    @classmethod
    def made(cls, s: Session, kind: Kind, make: Callable, *args: Any) -> GeneratorObject:
        """The generator that ``make`` makes of constants; without any it is one that the system seeds."""
        value = cls(kind)
        value.known, value.seeded = pickle.dumps(_tried(s, make, *args)) if args else None, bool(args)
        return value

    def do(self, s: Session, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a method that draws, or that sets the state."""
        if len(args) == 1 and not kwargs and name in self.kind.sets and type(args[0]) is StateValue:
            if args[0].generator is not self:
                raise Unsupported("the state of another generator is set", kind="data-dependent-value")
            return self.put_back(s, name, args[0])
        low = tuple(_plain(s, a) for a in args)
        named = {k: _plain(s, v) for k, v in kwargs.items()}
        if name in self.kind.sets:
            return self.set(s, name, low, named)
        if not self.seeded:
            raise Unsupported("a new generator that the system has seeded draws numbers", "give it a seed",
                              kind="forbidden-call")
        s.heap.touch(self)
        if self.known is not None:
            return self.follow(s, name, low, named)
        if self.source is None:
            raise Unsupported(_NOT_KNOWN, kind="data-dependent-value")
        return self.draw(s, name, low, named)

    def state(self, s: Session, name: str) -> Value:
        """The state of a generator of which nothing is known: good for being set again, and for being returned."""
        s.heap.touch(self)
        s.set_field(self, "program", (*self.program, (name, (), ())))
        s.set_entry(self.states, len(self.program) - 1, pickle.dumps(self.copy()))
        return StateValue(self, len(self.program) - 1)

    def copy(self) -> Any:
        """One that is where this one is, whose state was not known at first."""
        return self.kind.copied(self.obj) if self.reached is None else pickle.loads(self.reached)

    def put_back(self, s: Session, name: str, state: StateValue) -> Value:
        """The state is what it was before."""
        s.heap.touch(self)
        s.set_field(self, "known", None)
        s.set_field(self, "program", (*self.program, (name, state.position, ())))
        s.set_field(self, "reached", self.states[state.position])
        s.effect(put_back, [self, Constant(name), state])
        return Constant(None)

    def set(self, s: Session, name: str, args: tuple, kwargs: dict) -> Value:
        if not args and not kwargs or args and args[0] is None:
            raise Unsupported("a generator of random numbers is seeded by the system", "give it a seed",
                              kind="forbidden-call")
        generator = self.kind.copied(self.obj) if self.obj is not None else self.cls()
        result = _called(s, generator, name, args, kwargs)
        s.heap.touch(self)
        s.set_field(self, "known", pickle.dumps(generator))
        s.set_field(self, "seeded", True)
        self.again(s, name, args, kwargs)
        return s.from_python(result)

    def follow(self, s: Session, name: str, args: tuple, kwargs: dict) -> Value:
        """Of a generator in a known state."""
        generator = pickle.loads(self.known)
        result = _called(s, generator, name, args, kwargs)
        s.set_field(self, "known", pickle.dumps(generator))
        self.again(s, name, args, kwargs)
        if isinstance(result, (np.ndarray, np.generic)):
            return _array(s, result, s.recording.traced(lambda: s.tracer.constant(torch.from_numpy(np.array(result)))))
        return s.from_python(result)

    def draw(self, s: Session, name: str, args: tuple, kwargs: dict) -> Value:
        program, generator = (*self.program, (name, args, tuple(kwargs.items()))), self.copy()
        result = _called(s, generator, name, args, kwargs)
        s.set_field(self, "reached", pickle.dumps(generator))
        s.set_field(self, "program", program)
        self.again(s, name, args, kwargs)
        if result is None:
            return s.from_python(None)
        try:
            example = tensor_of(result)
        except TypeError:
            raise Unsupported(_NOT_KNOWN, kind="data-dependent-value") from None
        source = src.Drawn(src.Draws(self.source), len(program) - 1)
        handle = s.tracer.input(example, source)
        tensor = TensorValue(handle, example, source)
        s.recording.inputs.append(tensor)
        s.recording.tensors[id(handle)] = tensor
        s.heap.keep(handle)
        if isinstance(result, (np.ndarray, np.generic)):
            return _array(s, result, s.recording.tensor_of(s.tracer.fresh(s.tracer.builder.clone(handle.node))))
        reader = torch.Tensor.tolist if type(result) is list else torch.Tensor.item
        found = None if s.lazy_reads else first_reads.read(s, tensor, reader.__name__)
        return found or defer(s, reader, [tensor], {}, Unsupported(_NOT_KNOWN, kind="data-dependent-value"))

    def again(self, s: Session, name: str, args: tuple, kwargs: dict) -> None:
        """Behind the graph the generator itself is called."""
        if self.obj is not None:
            s.effect(call_again, [self, *(s.from_python(v) for v in (name, args, tuple(kwargs.items())))])


class StateValue(Value):
    """What ``getstate()`` of a generator has given: number ``position`` of what its calls give."""

    can_wait = True

    def __init__(self, generator: GeneratorObject, position: int) -> None:
        self.generator, self.position = generator, position

    def pytype(self, s: Session) -> type:
        raise Unsupported("the state of a generator of random numbers is looked at", kind="data-dependent-value")

    def identity(self) -> tuple[str, int]:
        return ("value", id(self))

    def emit(self, e: Emitter) -> None:
        e.load_source(src.Drawn(src.Draws(self.generator.source), self.position))


def _array(s: Session, result: Any, tensor: TensorValue) -> Value:
    if result.dtype not in arrays.DTYPES:
        raise arrays.refuse(f"random numbers of {result.dtype}, which PyTorch does not have")
    return ArrayValue(type(result), tensor)


def _plain(s: Session, v: Value) -> Any:
    if v.is_tensor or v.is_array:
        raise Unsupported("a tensor or an array says what is drawn", kind="data-dependent-value")
    if v.builtin in (list, tuple) and v.cls is v.builtin:
        return tuple([_plain(s, e) for e in v.items_list(s)])
    return v.const(s)


def _called(s: Session, generator: Any, name: str, args: tuple, kwargs: dict) -> Any:
    return _tried(s, called, generator, name, args, kwargs)


def _tried(s: Session, fn: Callable, *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:  # the program's own, of constants
        raise Raised(s.exception(error)) from None
