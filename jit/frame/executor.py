"""The stack machine: one ``Frame`` per Python function being executed, a handler per canonical op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NoReturn

from .. import observing, progress
from ..errors import Unsupported
from ..turns import point
from .decode import decode
from .places import users_line
from .values.base import Raised, Value, births
from .values.constant import Constant
from .values.functions import CellValue, FunctionValue

if TYPE_CHECKING:
    from .canonical import Instr
    from .emit import Emitter
    from .session import Session

HANDLERS: dict = {}
MAX_STEPS = 2_000_000


def op(*names: str) -> Callable:
    """Register the handler of canonical ops: ``fn(frame, instr)``. It returns None to go on, or the next instruction's
    index."""

    def decorate(fn: Callable) -> Callable:
        for name in names:
            HANDLERS[name] = fn
        return fn

    return decorate


class Null(Value):
    """The empty stack slot beside a callable."""

    def emit(self, e: Emitter) -> None:
        e.push_null()

    def describe(self) -> str:
        return "NULL"


NULL = Null()


class Returned(Exception):
    """Leaves the loop with the frame's result."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Yielded(Exception):
    """Leaves the loop of a generator's frame with what it yields."""

    def __init__(self, value: Value) -> None:
        self.value = value


def _unknown(f: Frame, i: Instr) -> NoReturn:
    raise Unsupported(f"the bytecode instruction {i.op} is not supported", kind="opcode")


class Frame:
    """Execution state of one call: locals, cells, stack, program counter."""

    def __init__(self, session: Session, fn: FunctionValue, bound: dict[str, Value]) -> None:
        self.s, self.fn = session, fn
        self.code = decode(fn.code)
        self.instructions = self.code.instructions
        self.globals = fn.globals
        self.locals = bound
        self.born = births()
        self.cells: dict[str, CellValue] = {}
        self.stack: list[Value] = []
        self.pc = 0
        self.spliceable = False  # entered by a call instruction of a frame that can be resumed
        self.mark, self.kept = None, []
        self.namespace = None  # what locals() has given
        self.names = None  # the namespace of a class body
        free = fn.code.co_freevars
        if free:
            self.cells.update(zip(free, fn.cells(session)))

    # -- stack ----------------------------------------------------------------------------------------------------

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        return self.stack.pop()

    def popn(self, n: int) -> list[Value]:
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    def where(self) -> tuple[str, int, str]:
        instr = self.instructions[min(self.pc, len(self.instructions) - 1)]
        return (self.fn.code.co_filename, instr.line or self.fn.code.co_firstlineno, self.fn.code.co_qualname)

    # -- running --------------------------------------------------------------------------------------------------

    def run_inlined(self) -> Value:
        """Run to the end as a callee of the frame being executed."""
        s = self.s
        s.frames.append(self)
        depth = len(s.current_exception)
        try:
            self.loop()
        except Returned as done:
            return done.value
        finally:
            if s.frames and s.frames[-1] is self:
                s.frames.pop()
            del s.current_exception[depth:]
        raise AssertionError("unreachable")

    def set_up_generator(self) -> None:
        """What a call does of a generator's or coroutine's frame: it gets to RETURN_GENERATOR, which stands for the
        start of its body."""
        self.s.frames.append(self)
        try:
            while (instr := self.instructions[self.pc]).op != "RETURN_GENERATOR":
                HANDLERS[instr.op](self, instr)
                self.pc += 1
        finally:
            self.s.frames.pop()

    def loop(self, stop: int | None = None) -> None:
        """Execute until the frame returns, yields or raises, or is before the instruction ``stop``."""
        instructions, handlers, s = self.instructions, HANDLERS, self.s
        progress.tick()
        instructions = observing.reading(self.fn.code, instructions)
        while self.pc != stop:
            instr = instructions[self.pc]
            if self.spliceable:
                self.mark, self.kept = s.journal.checkpoint(), list(self.stack)
            s.steps += 1
            point()
            try:
                if s.steps > MAX_STEPS:
                    raise Unsupported(f"more than {MAX_STEPS} instructions in one capture", kind="long-loop")
                following = handlers.get(instr.op, _unknown)(self, instr)
            except Raised as raised:
                self.pc = self.unwind(instr, raised)
                continue
            except Unsupported as error:
                if error.where is None:
                    error.where, error.user = self.where(), users_line(s.frames)
                if self.spliceable:
                    error.frames.insert(0, self)
                raise
            self.pc = self.pc + 1 if following is None else following

    def unwind(self, instr: Instr, raised: Raised) -> int:
        """Enter the exception handler around ``instr``, or leave the frame."""
        self.set_context(raised.value)
        if instr.handler is None:
            try:
                raise raised
            finally:
                # Else it and this frame, and so the program's objects, keep each other until they are collected.
                del raised
        index, depth, push_lasti = instr.handler
        del self.stack[depth:]
        if push_lasti:
            self.push(Constant(instr.offset // 2))
        self.push(raised.value)
        return index

    def set_context(self, error: Value) -> None:
        """What CPython does when an exception is first raised: the one being handled becomes its context."""
        s = self.s
        if error.is_object and not error.was_raised:
            s.set_field(error, "was_raised", True)
            handled = s.current_exception[-1] if s.current_exception else None
            if handled is not None and handled is not error and "__context__" not in error.attrs and error.obj is None:
                s.set_entry(error.attrs, "__context__", handled)
