"""Generators: a suspended frame that is executed further on each ``next`` or ``send``."""

from __future__ import annotations

import builtins
import types

from ...errors import Unsupported
from ..decode import decode
from ..resume import make_generator
from .base import Raised, Value
from .constant import Constant
from .containers import TupleValue
from .functions import CellValue
from .iterators import IteratorValue


class GeneratorValue(IteratorValue):
    """A generator made while capturing. A break while it is running cannot be undone past its last step."""

    py = types.GeneratorType

    def __init__(self, frame):
        self.frame, self.state = frame, "created"
        self.result: Value = Constant(None)

    def resume(self, s, value, error=None):
        """Run to the next yield; None when it returns."""
        from ..executor import Returned, Yielded

        frame = self.frame
        if self.state == "running":
            raise Raised(s.exception(ValueError("generator already executing")))
        if self.state == "done":
            if error is not None:
                raise Raised(error)
            return None
        s.set_field(frame, "stack", list(frame.stack))
        s.set_field(frame, "locals", dict(frame.locals))
        s.set_field(frame, "cells", dict(frame.cells))
        s.set_field(frame, "pc", frame.pc)
        first = self.state == "created"
        s.set_field(self, "state", "running")
        s.frames.append(frame)
        depth = len(s.current_exception)
        try:
            if error is not None:
                if first:
                    self.state = "done"
                    raise Raised(error)
                frame.pop()
                frame.pc = frame.unwind(frame.instructions[frame.pc - 1], Raised(error))
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
            if s.is_exception(raised.value, StopIteration):
                cause = s.exception(RuntimeError("generator raised StopIteration"))
                raise Raised(cause) from None
            raise
        finally:
            if s.frames and s.frames[-1] is frame:
                s.frames.pop()
            del s.current_exception[depth:]

    def left_inside_block(self) -> bool:
        """Whether it is suspended inside a ``try`` or ``with`` block, which runs on when Python lets go of the generator."""
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

    def passes_exit(self, index: int):
        """The instruction by which a GeneratorExit leaves the handler at ``index``: one that only has clauses for other exceptions, or None."""
        instructions, namespace = self.frame.instructions, self.frame.globals
        if instructions[index].op == "PUSH_EXC_INFO":
            index += 1
            while instructions[index].op == "LOAD_GLOBAL" and instructions[index + 1].op == "CHECK_EXC_MATCH":
                name = instructions[index].arg
                cls = namespace.get(name, getattr(builtins, name, None))
                if not (isinstance(cls, type) and issubclass(cls, Exception)) or instructions[index + 2].op != "POP_JUMP_IF_FALSE":
                    return None
                index = instructions[index + 2].target
            if instructions[index].op == "RERAISE":
                return instructions[index]
        return None

    def next(self, s):
        return self.resume(s, Constant(None))

    def getattr(self, s, name):
        if name in ("send", "throw", "close", "__next__", "__iter__"):
            return GeneratorMethod(self, name)
        return super().getattr(s, name)

    def emit(self, e):
        """A real generator that stands where this one does."""
        from ..executor import NULL
        from ..opcodes.exceptions import Previous

        frame = self.frame
        if self.state == "done":
            e.call_const(_finished_generator, [])
            return
        if self.state == "running":
            raise Unsupported("a generator that is running leaves the captured region", kind="iterator-escapes")
        code, index, suspended = frame.fn.code, frame.pc, self.state == "suspended"
        decoded = decode(code)
        if not suspended:
            index = decoded.body
        stack = frame.stack[:-1] if suspended else []
        if any(isinstance(v, Previous) for v in stack):
            raise Unsupported("a generator inside an exception handler leaves the captured region", kind="iterator-escapes")
        live = decoded.live_locals(index)
        cells = code.co_cellvars + code.co_freevars
        if not suspended:  # the setup has not run yet
            for name in code.co_cellvars:
                if name not in frame.cells:
                    value = frame.locals.get(name)
                    frame.cells[name] = CellValue() if value is None else CellValue(value)
        names = [n for n in frame.locals if n in live and n not in cells]
        resume = make_generator(code, index, names, len(stack), [v is NULL for v in stack], suspended)
        arguments = [frame.locals[what] if kind == "local" else stack[what] for kind, what in resume.params]
        e.call_const(_generator, [Literal(resume.code), Literal(frame.globals), TupleValue([frame.cells[n] for n in resume.freevars]),
                                  TupleValue(arguments), Literal(suspended)])

    def describe(self):
        return f"generator {self.frame.fn.qualname}"


class Literal(Value):
    """An object that emitted code takes by identity."""

    def __init__(self, obj):
        self.obj = obj

    def is_const(self):
        return True

    def emit(self, e):
        e.load_const(self.obj)


def _generator(code, namespace, cells, arguments, started):
    """A generator made from the code of ``make_generator``."""
    generator = types.FunctionType(code, namespace, code.co_name, None, cells)(*arguments)
    if started:
        next(generator)
    return generator


def _finished_generator():
    generator = (None for _ in ())
    generator.close()
    return generator


def thrown(s, args):
    """The exception that ``throw(type_or_instance, value, traceback)`` raises."""
    first, given = args[0], args[1] if len(args) > 1 else Constant(None)
    if not s.is_class(first):
        return first
    cls = first.const(s)
    if not issubclass(cls, BaseException):
        raise Raised(s.exception(TypeError(f"exceptions must be classes or instances deriving from BaseException, not {cls.__name__}")))
    if s.is_exception(given, cls):
        return given
    if isinstance(given, Constant) and given.value is None:
        return first.call(s, [], {})
    return first.call(s, given.items_list(s) if isinstance(given, TupleValue) else [given], {})


class GeneratorMethod(Value):
    """``generator.send``, ``throw``, ``close``."""

    def __init__(self, generator, name):
        self.generator, self.name = generator, name

    def call(self, s, args, kwargs):
        g = self.generator
        if self.name == "__iter__":
            return g
        if self.name == "close":
            if g.state in ("created", "done"):
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
            if g.state == "created" and not (isinstance(value, Constant) and value.value is None):
                raise Raised(s.exception(TypeError("can't send non-None value to a just-started generator")))
            value = g.resume(s, value)
        if value is None:
            result = g.result
            stop = [] if isinstance(result, Constant) and result.value is None else [result]
            raise Raised(s.exception(StopIteration, stop))
        return value
