"""Generator and coroutine functions as compiled functions: what runs between two yields is captured, one step at a
time.

The function makes its generator as ever, and gives it to a *driver*, a generator or coroutine of ours, which is what
the program gets. For each ``send`` the driver calls a compiled *step*: captured code follows the real generator from
where it stands to its next yield and puts it there (``values/generators.py``). So between two steps the real generator
is just where eager would have it, and whatever is not captured, an exception that is thrown in, say, is left to it. At
a graph break it is put behind the instruction that broke, and a step for that place goes on.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Callable

from ..errors import NeedsEager
from ..runtime import native
from . import source as src
from .capture import Capture
from .decode import decode
from .dispatch import MAKERS, Settings, make_dispatcher
from .executor import Returned, Yielded
from .tables import on_code
from .values.base import Value
from .values.constant import Constant

if TYPE_CHECKING:
    import torch
    from .assemble import Assembler
    from .dynamic import Dynamic
    from .emit import Emitter
    from .session import Session

GENERATOR, COROUTINE, ASYNC_GENERATOR = inspect.CO_GENERATOR, inspect.CO_COROUTINE, inspect.CO_ASYNC_GENERATOR
_ASYNCIO_MARK = getattr(asyncio.coroutines, "_is_coroutine", None)


class Finished:
    """What a step gives when the generator has returned."""

    __slots__ = ("result",)

    def __init__(self, result):
        self.result = result


def compilable(fn: Callable) -> bool:
    """Whether ``compile_steps`` takes a function."""
    return bool(fn.__code__.co_flags & (GENERATOR | COROUTINE)) and bool(native().KNOWS_GENERATORS)


def compile_steps(fn: Callable, settings: Settings) -> Callable:
    """The compiled form of a generator or coroutine function."""
    steps = Steps(settings)
    if fn.__code__.co_flags & COROUTINE:
        call = _coroutine_maker(fn, steps)
        if hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(call)
        elif _ASYNCIO_MARK is not None:
            call._is_coroutine = _ASYNCIO_MARK
    else:
        call = _generator_maker(fn, steps)
    functools.update_wrapper(call, fn)
    return call


def _generator_maker(fn: Callable | None, steps: Steps | None) -> Callable:
    def call(*args: object, **kwargs: float | int) -> Iterator:
        return named(drive(fn(*args, **kwargs), steps), fn)

    return call


def _coroutine_maker(fn: Callable | None, steps: Steps | None) -> Callable:
    def call(*args: torch.Tensor, **kwargs: object) -> object:
        return named(awaited(fn(*args, **kwargs), steps), fn)

    return call


_MADE = (_generator_maker(None, None).__code__, _coroutine_maker(None, None).__code__)


def original(fn: Callable) -> Callable:
    """The function that was compiled, for what ``compile_steps`` has given; others as they are."""
    return fn.__wrapped__ if fn.__code__ in _MADE else fn


@on_code(*_MADE)
def inlined(s: Session, fn, args, kwargs: dict[str, Value]):
    """Captured code that calls a compiled generator function calls the original."""
    return s.wrap_raw(original(fn.obj)).call(s, args, kwargs)


def named(driver: object, fn: Callable) -> object:
    driver.__name__, driver.__qualname__ = fn.__name__, fn.__qualname__
    return driver


def drive(generator: object,
          steps: Steps) -> Iterator[torch.Tensor | int | tuple[int, list[torch.Tensor], dict[str, int]] | None]:
    """Does in compiled steps what ``yield from generator`` would do, but for closing the generator: that is thrown in,
    too."""
    held = [steps.send(generator, None)]
    while type(held[0]) is not Finished:
        error = sent = None
        try:
            sent = yield held.pop()  # nothing but the program keeps what was yielded
        except BaseException as thrown:  # whatever the program throws in
            error = thrown
        held.append(steps.send(generator, sent) if error is None else steps.throw(generator, error))
    return held.pop().result


class Awaitable:
    """What ``await`` drives a coroutine with."""

    __slots__ = ("coroutine", "steps")

    def __init__(self, coroutine: object, steps: Steps) -> None:
        self.coroutine, self.steps = coroutine, steps

    def __await__(self) -> Iterator:
        return drive(self.coroutine, self.steps)


async def awaited(coroutine: object,
                  steps: Steps) -> torch.Tensor | tuple[torch.Tensor | list[torch.Tensor], list[torch.Tensor | str]]:
    return await Awaitable(coroutine, steps)


class Steps:
    """The compiled steps of one function's generators, by where they start."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def send(self, generator, value):
        """To the next yield, whose value it gives, or to the end: a Finished."""
        if type(generator) is types.GeneratorType:
            return self.settings.step(generator.gi_code, generator.gi_frame.f_lasti, False)(generator, value)
        return self.settings.step(generator.cr_code, generator.cr_frame.f_lasti, False)(generator, value)

    @staticmethod
    def throw(generator: Iterable, error: BaseException | Exception) -> torch.Tensor:
        try:
            return generator.throw(error)
        except StopIteration as end:
            return Finished(end.value)


def make_step(settings: Settings, code: types.CodeType, position: int, parked: bool):
    """The dispatcher of the steps of ``code``'s generators from one place. ``parked``: between two instructions, else
    at a yield."""
    if parked:
        def step(generator: object):
            try:
                return native().go_on(generator)
            except StopIteration as end:
                return Finished(end.value)
    else:
        def step(generator: object, value: float | None):
            try:
                return generator.send(value)
            except StopIteration as end:
                return Finished(end.value)
    step._jit_capture, step._jit_stands_for = StepCapture, code
    step.__qualname__ = code.co_qualname
    step._jit_line = next((line for begin, end, line in code.co_lines() if begin <= position < end), None)
    return make_dispatcher(step, settings, resumed="step")


class StepCapture(Capture):
    """Captures one step: the outermost frame is the generator's own."""

    def __init__(self, fn: Callable, values: tuple[object, ...], settings: Settings, dynamic: Dynamic | None = None,
                 bound=None) -> None:
        super().__init__(fn, values, settings, dynamic, bound)
        self.code = fn._jit_stands_for
        self.generator = None

    def set_up(self) -> None:
        s = self.session
        generator = s.wrap(self.values[0], src.Local(0, "generator"))
        parked = len(self.values) == 1
        generator.load(s, parked)
        frame = generator.frame
        if frame is None:
            raise NeedsEager("the generator has finished", kind="generator-target")
        if parked:
            pass
        elif generator.state == "suspended":
            frame.stack[-1] = s.wrap(self.values[1], src.Local(1, "value"))
        elif s.wrap(self.values[1], src.Local(1, "value")).const(s) is not None:
            raise NeedsEager("a value is sent to a generator that has not started", kind="raises")
        generator.state = "running"
        s.current_exception += [v.handled for v in frame.stack if v.handled]
        self.generator, self.frame = generator, frame

    def run_frame(self) -> Value:
        generator, frame = self.generator, self.frame
        try:
            frame.loop()
        except Yielded as out:
            frame.push(Constant(None))
            generator.state, generator.moved = "suspended", True
            return out.value
        except Returned as done:
            generator.state, generator.moved = "done", True
            return Finish(done.value)

    def continuation(self) -> object:
        """Emits code that goes on in the generator: see ``BreakFrame.go_on``."""
        return functools.partial(park, self)


class Finish(Value):
    """``Finished(result)`` being returned."""

    def __init__(self, result: Value) -> None:
        self.result = result

    def emit(self, e: Emitter) -> None:
        e.call_const(Finished, [self.result])


def park(capture: StepCapture, asm: Assembler, index: int, variables: dict[str, str], slots: list[str | None],
         handled: dict[int, str]) -> None:
    """Puts the real generator before instruction ``index`` and pushes the step that goes on there, with its argument.

    Args:
        variables: name -> the emitted function's local that holds the value, or the cell.
        slots: the locals that hold the stack's values, the bottom first; None for a NULL, and for what PUSH_EXC_INFO
            has left.
        handled: slot -> the local that holds the exception handled from there on.
    """
    decoded = decode(capture.code)
    position = decoded.instructions[index].offset - 2
    empty, current = native().EMPTY_SLOT, None
    asm.load_const(capture.settings.step(capture.code, position, True))
    with asm.calling():
        asm.load_const(_parked)
        asm.load_fast(".generator")
        asm.load_const(position)
        asm.load_const(tuple(len(decoded.names) + i for i in decoded.position_slots(index)))
        for name in decoded.names:
            asm.load_fast(variables[name]) if name in variables else asm.load_const(empty)
        for i, slot in enumerate(slots):
            if i in handled:
                asm.load_const(None) if current is None else asm.load_fast(current)
                current = handled[i]
            else:
                asm.load_const(empty) if slot is None else asm.take_fast(slot)
        asm.load_const(None) if current is None else asm.load_fast(current)


def _parked(generator: object, position: int, units: tuple[int, ...], *slots: object) -> object:
    native().set_generator_state(generator, position, slots[-1], slots[:-1], 1, units)
    return generator


MAKERS["step"] = make_step
