"""What the rewritten function does at a break: live values into locals and onto the stack, then the code of
``jit.frame.splice``.

The frames of a break are the outermost one and those entered from it directly by call instructions, so that each can be
resumed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..errors import NeedsEager, Unsupported
from ..runtime import native
from .assemble import Assembler
from .blocks import LET_GO, RETURN
from .canonical import BRANCH, JUMP, OPS, STOP
from .decode import decode
from .executor import NULL
from .resume import Resumed
from .splice import BreakFrame, emit_break
from .values.deferred import Deferred
from .ways import BRANCHES, Learner, Seen

if TYPE_CHECKING:
    from .canonical import Instr
    from .dispatch import Settings
    from .emit import Emitter
    from .executor import Frame
    from .resume import Resume
    from .session import Session
    from .values.base import Value

@dataclasses.dataclass
class Broken:
    """A frame at a break: its checkpoint before the breaking instruction and the stack at that point (a caller's: below
    the call)."""

    frame: object
    mark: tuple
    stack: list


def reads_frame(frame: Frame, instr: Instr, stack: list[Value]) -> bool:
    """Whether a call looks into the frame that makes it: a zero-argument ``super()``, ``locals()``, ``eval(text)``
    ..."""
    if instr.op == "CALL":
        total = instr.arg[0]
        first, second = stack[len(stack) - total - 2 : len(stack) - total]
        callee = second if first is NULL else first
        count = total if NULL in (first, second) else total + 1
    elif instr.op == "CALL_FUNCTION_EX":
        return any(v.reads_caller(None) for v in stack[-4:])
    else:
        return False
    return callee.reads_caller(count)


def lets_go_of(frame: Frame, slot: int) -> bool:
    """Whether some way on from where a frame is takes the iterator in a stack slot away before it has come to its end,
    and goes on in the frame: a ``break``, or an exception that is handled."""
    instructions, depth = frame.instructions, decode(frame.fn.code).stack_depth
    seen, work = set(), [frame.pc]
    while work:
        i = work.pop()
        if i in seen or (depth(i) or 0) <= slot:
            continue
        seen.add(i)
        instr = instructions[i]
        if instr.op == "POP_TOP" and depth(i) == slot + 1:
            return True
        if instr.handler is not None:
            if instr.handler[1] <= slot:
                return True
            work.append(instr.handler[0])
        if instr.target is not None:
            work.append(instr.target)
        if OPS[instr.op].flow not in (STOP, JUMP):
            work.append(i + 1)
    return False


class Return:
    """The end of a rewritten function that has captured the frame to its end."""

    goes_on = False

    def __init__(self, value: Value) -> None:
        self.value = value

    def load(self, e: Emitter) -> None:
        """REBUILD: what is returned is on the stack."""
        e.load(self.value)

    def leave(self, e: Emitter, asm: Assembler) -> None:
        asm.block(RETURN)
        asm.return_value()


def learner_of(settings: Settings, broken: Broken) -> Learner | None:
    """What learns which way the program goes, where it breaks at a branch on the values of a tensor."""
    frame = broken.frame
    instr = frame.instructions[frame.pc]
    if OPS[instr.op].flow != BRANCH or not (broken.stack and (broken.stack[-1].is_tensor
                                                              or type(broken.stack[-1]) is Deferred)):
        return None
    ways = settings.ways.at(frame.fn.code, instr)
    return Learner(ways) if ways.usual() is None else None  # what is known, and no use here, is not learned again


def rest_of(chain: list[Broken]) -> list[tuple] | None:
    """Where the outermost frame is that of a chain (``dispatch.chain_function``), and waits for a part of it: each part
    behind that, with the names of its cells and of what else it takes. Else None. So what goes on is a chain of what is
    left, the same one each time that a loop comes by, and not one around a chain."""
    frame = chain[0].frame
    parts = getattr(frame.fn.obj, "_jit_chain", None)
    if parts is None or len(chain) < 2 or chain[0].stack:
        return None
    first = frame.instructions[frame.pc].line - 1
    return [(part, ([f"c{k}_{i}" for i in range(len(resume.freevars))] if closure else [],
                    [None if what == result else f"a{k}_{i}" for i, what in enumerate(resume.params)]))
            for k, part in enumerate(parts) for _, resume, closure, result in [part] if k >= first]


class BreakCode:
    """The end of one that breaks, in the last of a chain of ``Broken`` frames, the outermost first."""

    goes_on = True

    def __init__(self, session: Session, settings: Settings, chain: list[Broken], go_on: object = None,
                 sizes_vary: bool = False) -> None:
        self.session, self.settings, self.chain, self.go_on = session, settings, chain, go_on
        self.sizes_vary = sizes_vary
        self.learner = learner_of(settings, chain[-1])
        self.rest = rest_of(chain)
        self.frames = [self.break_frame(k, broken) for k, broken in enumerate(chain)]

    def check(self) -> None:
        """Raises Unsupported where the chain cannot be resumed, before anything is compiled."""
        self.check_generators()
        asm = Assembler("check", "", [])
        for frame in self.frames:
            for name in (*frame.locals.values(), *frame.handled.values()):
                asm.load_const(None)
                asm.store_fast(name)
        for frame in self.frames:
            for null in frame.nulls:
                asm.push_null() if null else asm.load_const(None)
        quiet = [dataclasses.replace(f, push_callable=lambda asm, resume: asm.load_const(None),
                                     push_cell=lambda asm, name: asm.load_const(None),
                                     push_chain=f.push_chain and (lambda asm, resumes: asm.load_const(None)),
                                     push_rest=lambda asm: asm.load_const(None),
                                     go_on=f.go_on and (lambda asm, index, slots, handled: asm.load_const(None)))
                                     for f in self.frames]
        emit_break(asm, quiet, tail_call=object)

    def check_generators(self) -> None:
        """A loop that is left early closes its generator at once, which a resume function cannot: its caller holds what
        it is given."""
        for k, broken in enumerate(self.chain):
            for slot, v in enumerate(broken.stack):
                if (v.left_inside_block() and v.obj is None
                    and not any(v is w for w in broken.frame.locals.values())
                    and not self.held_outside(k, v) and lets_go_of(broken.frame, slot)):
                    raise (Unsupported if k else NeedsEager)("a loop that may be left early goes through a generator "
                                                             "that is inside a try or with block",
                                                             "make a list of it first", kind="iterator-escapes")

    def load(self, e: Emitter) -> None:
        """REBUILD: the variables of frame k are in ``.lk.NAME``, its cells in ``.ck.NAME``, the exceptions that it
        handles in ``.hk.SLOT`` and current, and the stacks of all frames on the stack, the outermost at the bottom."""
        if self.go_on is not None:
            e.cmd("load_fast", e.argnames[0])
            e.cmd("store_fast", ".generator")
        for k, broken in enumerate(self.chain):
            self.load_variables(e, k, broken.frame)
        for frame, broken in zip(self.frames, self.chain):
            self.push_stack(e, frame, broken.stack)

    def leave(self, e: Emitter, asm: Assembler) -> None:
        """Let go of what was made on the way, so that only the program's variables and stack keep its objects alive,
        and a generator, say, is closed when the program drops it; then do the instruction."""
        asm.block(LET_GO)
        for name in (*e.argnames, *e.memo.values(), *e.sources.values(), *(f".out{i}" for i in range(len(e.outputs)))):
            asm.load_const(None)
            asm.store_fast(name)
        emit_break(asm, self.frames, tail_call=native().TailCall)

    def break_frame(self, k: int, broken: Broken) -> BreakFrame:
        frame = broken.frame
        instr = frame.instructions[frame.pc]
        innermost = k == len(self.chain) - 1
        return BreakFrame(frame.fn.code, frame.pc, {n: f".l{k}.{n}" for n in self.live(frame)},
                          tuple(v is NULL for v in broken.stack),
                          lambda asm, resume: self.push_callable(asm, k, resume),
                          lambda asm, name: asm.load_fast(f".v{k}.{name}"),
                          push_chain=self.push_chain if k == 0 and self.together() else None,
                          rest=None if self.rest is None or k else tuple(names for _, (_, names) in self.rest),
                          push_rest=lambda asm: self.push_chain(asm, []),
                          reads_frame=innermost and reads_frame(frame, instr, broken.stack),
                          has_globals=frame.globals is self.chain[0].frame.globals,
                          go_on=self.go_on_there if k == 0 and self.go_on is not None else None,
                          handled={i: f".h{k}.{i}" for i, v in enumerate(broken.stack) if v.handled},
                          seen={w: native().Unhooked(Seen(self.learner, w)) for w in BRANCHES}
                          if innermost and self.learner is not None else {})

    def together(self) -> bool:
        """Whether one function may go on in all the frames. A generator that only a callee holds runs on where that
        returns, and so must not be held by the function for all."""
        return self.go_on is None and not any(
            v.handled or k and v.may_run_on() and not self.held_outside(k, v)
            for k, b in enumerate(self.chain) for v in b.stack)

    def held_outside(self, k: int, value: Value) -> bool:
        """Whether a frame around the ``k``-th one holds a value too."""
        return any(value is v for b in self.chain[:k] for v in (*b.frame.locals.values(), *b.stack))

    def go_on_there(self, asm: Assembler, index: int, slots: list[str | None], handled: dict[int, str]) -> None:
        frame = self.chain[0].frame
        variables = {n: f".l0.{n}" for n in self.live(frame)} | {n: f".c0.{n}" for n in frame.cells}
        self.go_on(asm, index, variables, slots, handled)

    @staticmethod
    def live(frame: Frame) -> list[str]:
        """Bound locals that some way on from the present instruction may read."""
        code, instr = frame.code, frame.instructions[frame.pc]
        live = set(code.live_locals(frame.pc))
        if OPS[instr.op].flow != "stop":
            live |= code.live_locals(frame.pc + 1)
        for index in (instr.target, instr.handler and instr.handler[0]):
            if index is not None:
                live |= code.live_locals(index)
        cells = frame.fn.code.co_cellvars + frame.fn.code.co_freevars
        return [n for n in frame.locals if n in live and n not in cells]

    def load_variables(self, e: Emitter, k: int, frame: Frame) -> None:
        for name in self.live(frame):
            e.load(frame.locals[name])
            e.cmd("store_fast", f".l{k}.{name}")
        if self.makes_closure(frame):
            for name, cell in frame.cells.items():
                e.load(cell)
                e.cmd("store_fast", f".c{k}.{name}")
        first = frame.fn.code.co_varnames[0] if frame.fn.code.co_argcount else None
        if first in frame.cells:
            value = frame.cells[first].get(self.session)
            if value is not None:
                e.load(value)
                e.cmd("store_fast", f".v{k}.{first}")

    def push_stack(self, e: Emitter, frame: BreakFrame, stack: list[Value]) -> None:
        for i, value in enumerate(stack):
            if value is NULL:
                e.push_null()
            elif value.handled:
                e.load(value.handled)
                e.cmd("copy", 1)
                e.cmd("store_fast", frame.handled[i])
                e.cmd("emit", "PUSH_EXC_INFO")
                e.cmd("pop")
            else:
                e.load(value)

    @staticmethod
    def makes_closure(frame: Frame) -> bool:
        """True unless the frame's cells are exactly those of a function that exists and that later calls have too, and
        which may be kept alive."""
        code, fn = frame.fn.code, frame.fn
        return bool(code.co_cellvars or (code.co_freevars and (fn.obj is None
                                                               or fn.by_structure or fn.root().reference is not None)))

    def push_callable(self, asm: Assembler, k: int, resume: Resume) -> None:
        broken = self.chain[k]
        frame, fn = broken.frame, broken.frame.fn
        if resume.freevars and self.makes_closure(frame):
            self.push_resumed(asm, self.settings.resume_with_cells(Resumed.of(fn, False), resume, True))
            for name in resume.freevars:
                asm.load_fast(f".c{k}.{name}")
        else:
            self.push_resumed(asm, self.settings.resume_function(Resumed.of(fn, bool(resume.freevars)), resume, True))

    def push_resumed(self, asm: Assembler, resumed: Any) -> None:
        """What goes on: where a result's size depends on the data, it is told that sizes vary."""
        if self.sizes_vary:
            resumed.on_miss.sizes_vary()
        asm.load_const(resumed)

    def push_chain(self, asm: Assembler, resumes: list[Resume]) -> None:
        """One function for all frames, the innermost first."""
        parts, cells = [], []
        for k, resume in zip(reversed(range(len(self.chain))), resumes):  # not frame 0 where there is a ``rest``
            frame = self.chain[k].frame
            closure = bool(resume.freevars) and self.makes_closure(frame)
            result = None if k == len(self.chain) - 1 else ("stack", len(self.chain[k].stack))
            fn = Resumed.of(frame.fn, bool(resume.freevars) and not closure)
            parts.append((fn, resume, closure, result))
            if closure:
                cells += [f".c{k}.{name}" for name in resume.freevars]
        for part, (closures, _) in self.rest or ():
            parts.append(part if parts else (*part[:3], None))
            cells += [self.frames[0].locals[name] for name in closures]
        if len(parts) > 1:
            self.push_resumed(asm, self.settings.resume_chain(*parts))
        else:
            ((fn, resume, closure, _),) = parts
            made = self.settings.resume_with_cells if closure else self.settings.resume_function
            self.push_resumed(asm, made(fn, resume, True))
        for name in cells:
            asm.load_fast(name)

