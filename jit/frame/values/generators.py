"""Generators: a suspended frame that is executed further on each ``next`` or ``send``.

One made while capturing is such a frame. A real one that comes in is read (``native().generator_state``): its code and
position are guarded, its variables and stack slots are sources like any other. Either kind is written when the region
ends: the real generator is put where the captured code left it, and a new one is made from its own code and put there.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import types
from typing import TYPE_CHECKING, Callable, NoReturn

from ... import turns
from ...errors import Unsupported
from ...runtime import facts, native
from .. import source as src
from ..cpython import ITERATOR_SLOTS, ROW
from ..decode import decode
from ..executor import NULL, Frame, Returned, Yielded
from .constant import Previous
from .base import Raised, Value, type_name
from .constant import Constant
from .containers import TupleValue
from .functions import FunctionValue
from .iterators import IteratorValue

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..executor import Frame
    from ..session import Session
    from ..source import Source


class GeneratorValue(IteratorValue):
    """A generator. A break while it is running cannot be undone past its last step.

    Attributes:
        frame: the suspended frame; None of a real one that is not read yet, or has finished.
        state: "created", "suspended", "running" or "done".
        moved: a real one that is not where it was.
    """

    py = types.GeneratorType
    made_by = None  # (callable, arguments): of one that stands for another iterator, what makes that

    def __init__(self, frame: Frame | None = None, obj: object = None, source: Source | None = None) -> None:
        self.frame, self.obj, self.source = frame, obj, source
        self.state = "created"
        self.moved, self.kept = False, {}
        self.result: Value = Constant(None)

    def load(self, s: Session, parked: bool = False) -> None:
        """Read a real generator, once. ``parked``: it stands between two instructions."""
        if self.obj is None or self.frame is not None or self.state == "done":
            return
        self.pytype(s)
        turns.only_in_call("a generator is read")  # which the call advances
        try:
            found = native().generator_state(self.obj)
        except ValueError as error:
            raise Unsupported(f"{self.describe()}: {error}", kind="iterator-escapes") from None
        source = None if self.source is None else src.GeneratorState(self.source)

        def item(i: int) -> Source:
            return None if source is None else src.Item(source, i)

        if found is None:
            s.guards.add(source, facts.identity(None))
            self.state = "done"
            return
        code, namespace, position, handled, *slots = found
        s.guards.add(item(0), facts.identity(code))
        s.guards.add(item(1), facts.identity(namespace))
        s.guards.add(item(2), facts.Equals(position))
        decoded = decode(code)
        at = decoded.index_at(position + 2 if parked else position)
        if not parked and decoded.instructions[at].op not in ("YIELD_VALUE", "RETURN_GENERATOR"):
            raise Unsupported(f"{self.describe()} is suspended in an unknown way", kind="iterator-escapes")
        if handled is None:
            s.guards.add(item(3), facts.identity(None))
        values = []
        for i, obj in enumerate(slots, 4):
            if obj is native().EMPTY_SLOT:
                s.guards.add(item(i), facts.identity(obj))
            is_cell = type(obj) is types.CellType and i - 4 < len(decoded.names)
            values.append(NULL if obj is native().EMPTY_SLOT else s.wrap_cell(obj, item(i)) if is_cell
                          else s.wrap(obj, item(i)))
        variables = dict(zip(decoded.names, values))
        cells = {n: v for n, v in variables.items() if v.is_cell}
        fn = FunctionValue(code=code, globals=namespace, closure=tuple(cells[n] for n in code.co_freevars),
                           qualname=self.obj.__qualname__)
        frame = Frame(s, fn, {n: v for n, v in variables.items() if v is not NULL and n not in cells})
        frame.cells, frame.stack = cells, values[len(decoded.names):]
        frame.pc = at
        current = None if handled is None else s.wrap(handled, item(3))
        for slot in sorted(decoded.handled_slots(at), reverse=True):
            frame.stack[slot] = Previous(frame.stack[slot], current)
            current = frame.stack[slot].error
        self.kept = dict(frame.locals)
        self.state = "created"
        if not parked and decoded.instructions[at].op == "YIELD_VALUE":
            self.state = "suspended"
            frame.pc += 1
            frame.stack.append(Constant(None))
        self.frame = frame
        s.real_generators.append(self)

    def resume(self, s: Session, value: Value | None, error: Value | None = None) -> Value | None:
        """Run to the next yield; None when it returns. ``error``: an exception that is raised at the yield where it
        stands."""
        self.load(s)
        frame = self.frame
        if self.state == "running":
            raise Raised(s.exception(ValueError("generator already executing")))
        if self.state == "done":
            if error is not None:
                raise Raised(error)
            s.set_field(self, "result", Constant(None))
            return None
        s.set_field(frame, "stack", list(frame.stack))
        s.set_field(frame, "locals", dict(frame.locals))
        s.set_field(frame, "cells", dict(frame.cells))
        s.set_field(frame, "pc", frame.pc)
        s.set_field(self, "moved", True)
        first = self.state == "created"
        s.set_field(self, "state", "running")
        depth = len(s.current_exception)
        s.current_exception += [v.handled for v in frame.stack if v.handled]
        try:
            if error is not None and not first:
                yielded = self.throw_into_delegate(s, error)
                if yielded is not None:
                    self.state = "suspended"
                    return yielded
            s.frames.append(frame)
            if error is not None:
                if first:
                    self.state = "done"
                    raise Raised(error)
            elif not first:
                frame.pop()
                frame.push(value)
            frame.loop()
        except Yielded as out:
            self.state = "suspended"
            frame.push(Constant(None))
            return out.value
        except Returned as done:
            self.state = "done"
            s.set_field(self, "result", done.value)
            return None
        except Raised as raised:
            self.state = "done"
            error = no_stop_iteration(s, frame.fn.code, raised.value)
            if error is raised.value:
                raise
            raise Raised(error) from None
        finally:
            if s.frames and s.frames[-1] is frame:
                s.frames.pop()
            del s.current_exception[depth:]

    def awaited(self, s: Session) -> Value | None:
        self.load(s)
        is_awaitable = self.frame is not None and self.frame.fn.code.co_flags & inspect.CO_ITERABLE_COROUTINE
        return self if is_awaitable else None

    def send(self, s: Session, sent: Value) -> tuple[Value | None, Value]:
        return self.resume(s, sent), self.result

    def throw_into(self, s: Session, error: Value) -> Value:
        value = self.resume(s, None, error)
        return value if value is not None else stop(s, self.result)

    def close_delegate(self, s: Session) -> None:
        GeneratorMethod(self, "close").call(s, [], {})

    def delegate(self) -> Value | None:
        """What a ``yield from`` is waiting for where it is suspended, or None."""
        return self.frame.stack[-1 - ITERATOR_SLOTS] if self.delegates() else None

    def delegates(self) -> bool:
        """Whether it is suspended in a ``yield from`` or ``await``."""
        after = self.frame.instructions[self.frame.pc]
        return after.op == "RESUME" and after.arg & 3 >= 2

    def throw_into_delegate(self, s: Session, error: Value) -> Value | None:
        """An exception thrown in at a yield: offered to what a ``yield from`` waits for, as CPython's ``_gen_throw``
        does, and else put where the frame's loop handles it. Gives what the delegate yields, or None: the frame goes
        on."""
        frame = self.frame
        yielding = frame.instructions[frame.pc - 1]
        receiver = self.delegate()
        if receiver is not None:
            try:
                if s.is_exception(error, GeneratorExit):
                    receiver.close_delegate(s)
                else:
                    value = receiver.throw_into(s, error)
                    if value is not None:
                        return value
            except Raised as raised:
                error = raised.value
                # Later versions do this by CLEANUP_THROW.
                if ROW.throws_into_delegates and s.is_exception(error, StopIteration):
                    frame.pop()
                    frame.push(error.getattr(s, "value"))
                    frame.pc = frame.instructions[frame.pc - 2].target
                    return None
        frame.pop()
        s.frames.append(frame)
        try:
            frame.pc = frame.unwind(yielding, Raised(error))
        finally:
            s.frames.pop()
        return None

    def left_inside_block(self) -> bool:
        """Whether it is suspended inside a ``try`` or ``with`` block, which runs on when Python lets go of the
        generator."""
        if self.state != "suspended":
            return False
        instructions = self.frame.instructions
        handler = instructions[self.frame.pc - 1].handler
        while handler is not None:
            target = instructions[handler[0]]
            if target.op == "CALL_INTRINSIC_1" and target.arg == "STOPITERATION_ERROR":
                return False
            if target.op == "CLEANUP_THROW":
                handler = target.handler
                continue
            reraise = self.passes_exit(handler[0])
            if reraise is None:
                return True
            handler = reraise.handler
            if handler is not None and instructions[handler[0]].op == "COPY":  # what restores the exception before
                handler = instructions[handler[0]].handler
        return False

    def may_run_on(self) -> bool:
        """``left_inside_block``, or not known: a real one that is not read."""
        return self.obj is not None and self.frame is None and self.state != "done" or self.left_inside_block()

    def passes_exit(self, index: int) -> None:
        """The instruction by which a GeneratorExit leaves the handler at ``index``: one that only has clauses for other
        exceptions, or None."""
        instructions, namespace = self.frame.instructions, self.frame.globals
        if instructions[index].op == "PUSH_EXC_INFO":
            index += 1
            while instructions[index].op == "LOAD_GLOBAL" and instructions[index + 1].op == "CHECK_EXC_MATCH":
                name = instructions[index].arg
                cls = namespace.get(name, getattr(builtins, name, None))
                if (not (isinstance(cls, type) and issubclass(cls, Exception))
                    or instructions[index + 2].op != "POP_JUMP_IF_FALSE"):
                    return None
                index = instructions[index + 2].target
            if instructions[index].op == "RERAISE":
                return instructions[index]
        return None

    def next(self, s: Session) -> Value | None:
        return self.resume(s, Constant(None))

    def getattr(self, s: Session, name: str) -> Value:
        if self.py is not types.GeneratorType and name not in ("__next__", "__iter__"):
            return IteratorValue.getattr(self, s, name)
        if name in ("send", "throw", "close", "__next__", "__iter__"):
            return GeneratorMethod(self, name)
        self.load(s)
        if name == "gi_running":
            return Constant(self.state == "running")
        if name == "gi_suspended":
            return Constant(self.state == "suspended")
        if name == "gi_yieldfrom":
            return self.state == "suspended" and self.delegate() or Constant(None)
        if name == "gi_frame" and self.state == "done":
            return Constant(None)
        if self.frame is not None and name in ("gi_code", "__name__", "__qualname__"):
            if name == "gi_code":
                return Constant(self.frame.fn.code)
            return self.frame.fn.getattr(s, name) if self.obj is None else Constant(getattr(self.obj, name))
        return super().getattr(s, name)

    def hash_key(self, s: Session) -> tuple[str, int]:
        if self.obj is None:
            return super().hash_key(s)
        s.guards.add(self.source, facts.identity(self.obj))
        return self.obj

    # -- writing ------------------------------------------------------------------------------------------------------

    def arguments(self) -> list[Value]:
        """What ``native().set_generator_state`` takes after the generator. The slots are the variables in the
        interpreter's order, then the stack; locals that the rest does not read are left out, unless a real generator
        has held them all along."""
        frame, empty = self.frame, Literal(native().EMPTY_SLOT)
        decoded, suspended = decode(frame.fn.code), self.state == "suspended"
        live = set(decoded.live_locals(frame.pc if suspended else decoded.body))
        handler = frame.instructions[frame.pc - 1].handler if suspended else None
        if handler is not None:
            live |= decoded.live_locals(handler[0])
        slots, handled = [], Constant(None)
        for name in decoded.names:
            value = frame.locals.get(name)
            if name in frame.cells:
                value = frame.cells[name]
            elif value is not None and name not in live and self.kept.get(name) is not value:
                value = None
            slots.append(empty if value is None else value)
        for value in frame.stack[:-1] if suspended else frame.stack:
            if value.handled:
                value, handled = handled, value.handled
            slots.append(empty if value is NULL else value)
        position = frame.instructions[frame.pc - 1].offset if suspended else self.start()
        units = tuple(len(decoded.names) + i for i in decoded.position_slots(frame.pc)) if suspended else ()
        return [Constant(position), handled, TupleValue(slots), Constant(suspended + (suspended and self.delegates())),
                Constant(units)]

    def start(self) -> int:
        """The offset at which it has not started yet."""
        return next(i.offset for i in self.frame.instructions if i.op == "RETURN_GENERATOR")

    def settle(self) -> tuple[Callable, list[Value]]:
        """The effect (function, arguments) that puts a real generator where the captured code has left it."""
        if self.state == "done":
            empty = Literal(native().EMPTY_SLOT)
            return _finish, [self, Constant(self.start()), TupleValue([empty] * len(self.frame.code.names))]
        return native().set_generator_state, [self, *self.arguments()]

    def rebuild(self, e: Emitter) -> None:
        """A real generator that stands where this one does."""
        if self.state == "done":
            own = self.frame is not None and self.py in (types.GeneratorType, types.CoroutineType)
            e.call_const(*((_ended, self.own_code()) if own else (_finished, [Literal(self.py)])))
            return
        if self.made_by is not None and self.state == "created":
            e.call_const(*self.made_by)
            return
        if self.state == "running":
            raise Unsupported("a generator that is running leaves the captured region", kind="iterator-escapes")
        if not native().KNOWS_GENERATORS:
            raise Unsupported("a generator leaves the captured region, and this interpreter's frames are not known",
                              kind="iterator-escapes")
        e.call_const(_new_generator, self.own_code())
        e.remember(self)  # what it holds may hold it
        e.fill(native().set_generator_state, self, *(functools.partial(e.load, v) for v in self.arguments()))

    def own_code(self) -> list[Value]:
        """What ``_new_generator`` takes."""
        fn = self.frame.fn
        name = fn.attrs.get("__name__") or Constant(fn.obj.__name__ if fn.obj is not None else fn.code.co_name)
        return [Literal(fn.code), Literal(fn.globals), name, Constant(fn.qualname)]

    def describe(self) -> str:
        return f"generator {self.obj.__qualname__ if self.obj is not None else self.frame.fn.qualname}"


class CoroutineValue(GeneratorValue):
    """What a call of an ``async`` function gives."""

    py = types.CoroutineType

    def iter(self, s: Session) -> Value:
        raise Raised(s.exception(TypeError("'coroutine' object is not iterable")))

    def awaited(self, s: Session) -> Value | None:
        return self

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__await__":
            return GeneratorMethod(self, "__iter__")
        if name in ("cr_running", "cr_suspended", "cr_code", "cr_frame"):
            return super().getattr(s, "gi" + name[2:])
        if name in ("__iter__", "__next__") or name.startswith("gi_"):
            raise Raised(s.exception(AttributeError(f"'coroutine' object has no attribute '{name}'", name=name)))
        return super().getattr(s, name)

    def left_inside_block(self) -> bool:
        """Python warns of one that is never awaited, too."""
        return self.state == "created" or super().left_inside_block()


class Literal(Value):
    """An object that emitted code takes by identity."""

    def __init__(self, obj) -> None:
        self.obj = obj

    def is_const(self) -> bool:
        return True

    def emit(self, e: Emitter) -> None:
        e.load_const(self.obj)


def _new_generator(code: types.CodeType, namespace: dict[str, object], name: str, qualname: str) -> object:
    """A generator of a code object whose variables are still to be set."""
    fn = types.FunctionType(code, namespace, name, None, tuple(types.CellType() for _ in code.co_freevars))
    fn.__qualname__ = qualname
    given = code.co_argcount
    fn.__kwdefaults__ = dict.fromkeys(code.co_varnames[given: given + code.co_kwonlyargcount])
    return fn(*[()] * given)  # a generator expression may ask for an iterator at once


def _ended(*own_code):
    """A generator of a code object that has come to its end."""
    generator = _new_generator(*own_code)
    generator.close()
    return generator


def _finish(generator: object, position: int, slots) -> None:
    """End a real generator whose code has been followed to its end: nothing of it runs any more."""
    native().set_generator_state(generator, position, None, slots, 0, ())
    generator.close()


def _finished(cls):
    """An iterator of a class that has come to its end: a generator, or one of ``itertools`` that it stands for."""
    iterator = (None for _ in ()) if cls is types.GeneratorType else cls((),
                                                                         ()) if cls is itertools.compress else cls(())
    next(iterator, None)
    return iterator


def stop(s: Session, result: Value) -> NoReturn:
    """Raise StopIteration with a generator's result."""
    raise Raised(s.exception(StopIteration, [] if result.is_nothing(s) else [result]))


def no_stop_iteration(s: Session, code: types.CodeType, error: Value) -> Value:
    """What an exception that leaves a generator's frame becomes: a RuntimeError in the place of StopIteration."""
    if not s.is_exception(error, StopIteration):
        return error
    kind = "coroutine" if code.co_flags & inspect.CO_COROUTINE else "generator"
    new = s.exception(RuntimeError(f"{kind} raised StopIteration"))
    for name in ("__cause__", "__context__"):
        s.set_entry(new.attrs, name, error)
    s.set_entry(new.attrs, "__suppress_context__", Constant(True))
    return new


def thrown(s: Session, args: list[Value]) -> Value:
    """The exception that ``throw(type_or_instance, value, traceback)`` raises."""
    first, given = args[0], args[1] if len(args) > 1 else Constant(None)
    if first.as_class is None:
        return first
    cls = first.const(s)
    if not issubclass(cls, BaseException):
        raise Raised(s.exception(TypeError("exceptions must be classes or instances deriving from BaseException, not "
                                           f"{type_name(cls)}")))
    if s.is_exception(given, cls):
        return given
    if given.is_nothing(s):
        return first.call(s, [], {})
    return first.call(s, given.several(s), {})


class GeneratorMethod(Value):
    """``generator.send``, ``throw``, ``close``."""

    def __init__(self, generator: Value, name: str) -> None:
        self.generator, self.name = generator, name

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        g = self.generator
        if self.name == "__iter__":
            return g
        g.load(s)
        if self.name == "close":
            if g.state in ("created", "done"):
                s.set_field(g, "moved", g.moved or g.state == "created")
                s.set_field(g, "state", "done")
                return Constant(None)
            try:
                value = g.resume(s, None, s.exception(GeneratorExit()))
            except Raised as raised:
                if s.is_exception(raised.value, GeneratorExit):
                    return Constant(None)
                raise
            if value is not None:
                raise Raised(s.exception(RuntimeError("generator ignored GeneratorExit")))
            return Constant(None)
        if self.name == "throw":
            error = thrown(s, args)
            value = g.resume(s, None, error)
        else:
            value = args[0] if args else Constant(None)
            if g.state == "created" and not value.is_nothing(s):
                raise Raised(s.exception(TypeError("can't send non-None value to a just-started generator")))
            value = g.resume(s, value)
        return value if value is not None else stop(s, g.result)
