"""The code of a graph break: do the instruction that could not be captured, then call the function that goes on.

``emit_break`` takes the frames that were being executed, the compiled function's own first, each inlined callee after
its caller. The innermost instruction is emitted itself. Every way that leads on from it (the next instruction, a jump,
the exception handler around it) calls a resume function of that frame; what this returns is the value of the caller's
call, which goes on in turn in a resume function of the caller, under the caller's own exception handler.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Callable

from .. import errors
from . import special_methods
from .assemble import Assembler
from .blocks import BREAK, RESUME
from .canonical import BRANCH, JUMP, OPS, STOP
from .cpython import ITERATOR_SLOTS, NULL_FIRST
from .decode import decode
from .resume import Resume, make_resume

if TYPE_CHECKING:
    from .assemble import Label
    from .canonical import Instr
    from .decode import CanonicalCode

# Instructions on the frame's own variables or exception state: they are not what a break is about, and their effect
# would be on the emitted frame.
_NOT_HERE = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST", "MAKE_CELL",
                       "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "COPY_FREE_VARS", "LOAD_GLOBAL",
                       "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "PUSH_EXC_INFO", "POP_EXCEPT", "SEND",
                       "YIELD_VALUE", "RETURN_GENERATOR"})

_GLOBALS = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"})


@dataclasses.dataclass(frozen=True)
class BreakFrame:
    """A frame at a break.

    Attributes:
        code: its code object.
        index: the canonical instruction to be done: the breaking one, or, for the caller of an inlined function, the
            one that called it.
        locals: name of every bound local (not cells) -> the local of the emitted function that holds its value.
        nulls: a truth value per stack slot, the bottom first, True for a NULL. The breaking frame's stack is as it is
            before the instruction. A caller's has lost what the call takes, and is what is below the call's result.
        push_callable: ``push_callable(asm, resume)`` emits code that pushes one callable, to be called with the
            parameters in ``resume.params``. It makes the closure: the cells of ``resume.freevars``.
        push_cell: ``push_cell(asm, name)`` emits code that pushes what the cell of a variable holds; needed for
            methods that call ``super()`` and whose first parameter is a cell.
        push_chain: of the outermost frame: ``push_chain(asm, resumes)`` pushes one callable that goes on in all frames,
            the innermost first; it takes the parameters of each resume in turn, but for the slots that hold a callee's
            result.
        rest: of the outermost frame, where that is a chain's and waits for one of its parts: the locals that hold what
            each of the parts behind takes, None for the result of the one before; ``push_chain`` adds these parts, and
            ``push_rest(asm)`` pushes one callable for them alone. Else None.
        reads_frame: whether the instruction is a call that looks into its frame; None: decided from what the code
            names.
        has_globals: the emitted function's globals are this frame's.
        handled: stack slots that PUSH_EXC_INFO has filled -> the local that holds the exception handled from there on.
        go_on: of an outermost frame that is a generator's, which no resume function continues: ``go_on(asm, index,
            slots, handled)`` pushes a callable and its arguments that go on at ``index`` with a stack in the locals
            ``slots`` (None for a NULL, and for what PUSH_EXC_INFO has left).
        seen: of the breaking frame, at a branch: what to call where the program goes on, or jumps.
    """

    code: object
    index: int
    locals: dict
    nulls: tuple
    push_callable: Callable[[Assembler, Resume], None]
    push_cell: Callable[[Assembler, str], None] | None = None
    push_chain: Callable[[Assembler, list], None] | None = None
    rest: tuple | None = None
    push_rest: Callable[[Assembler], None] | None = None
    reads_frame: bool | None = None
    has_globals: bool = False
    handled: dict = dataclasses.field(default_factory=dict)
    go_on: Callable | None = None
    seen: dict = dataclasses.field(default_factory=dict)


def emit_break(asm: Assembler, frames: list, tail_call: type | None = None) -> None:
    """Emits the break and returns its result from the emitted function.

    With ``tail_call`` the emitted function returns ``tail_call(resume, *arguments)`` for its own frame instead of
    making the call.

    The assembler's stack holds the stacks of all ``frames``, the outermost at the bottom. Handled exceptions (the
    break is in an ``except`` body) have to be in place, by PUSH_EXC_INFO.

    Raises:
        Unsupported: for instructions that work on the frame itself.
    """
    base = asm.depth - sum(len(f.nulls) for f in frames)
    if base < 0:
        raise ValueError(f"the stack has {asm.depth} slots, the frames {[len(f.nulls) for f in frames]}")
    bases = []
    for frame in frames:
        bases.append(base)
        base += len(frame.nulls)
    _emit_frame(asm, frames, bases, 0, tail_call)


def _past_jumps(decoded: CanonicalCode, index: int) -> int:
    """Where unconditional jumps from ``index`` on lead, so that all ways to one place share a resume function."""
    seen = set()
    while decoded.instructions[index].op == "JUMP" and index not in seen:
        seen.add(index)
        index = decoded.instructions[index].target
    return index


def loads_method(instr: Instr) -> bool:
    """Whether it pushes a method and its self, or a callable and NULL."""
    return instr.op in ("LOAD_METHOD", "LOAD_SPECIAL") or instr.op == "LOAD_SUPER_ATTR" and instr.arg[1]


def _one_way(frames: list[BreakFrame]) -> bool:
    """Whether every caller goes on at the instruction after its call, whatever the callee does: no handler is around a
    call."""
    return all(decode(f.code).instructions[f.index].handler is None
               and OPS[decode(f.code).instructions[f.index].op].flow == "next"
               and decode(f.code).stack_depth(f.index + 1) == len(f.nulls) + 1 for f in frames[:-1])


def _emit_frame(asm: Assembler, frames: list[BreakFrame], bases: list[int], k: int,
                tail_call: type | None = None) -> None:
    """Frame ``k`` and its callees run to their end: the result replaces frame ``k``'s stack, or no path goes on."""
    frame, base = frames[k], bases[k]
    decoded = decode(frame.code)
    instr = decoded.instructions[frame.index]
    done = asm.new_label("done", base + 1)
    together = (k and k == len(frames) - 1 and tail_call is not None and frames[0].push_chain is not None
                and _one_way(frames))
    caught = jumped = None
    with asm.at(instr):
        if instr.handler is None:
            jumped = _step(asm, frames, bases, k, decoded, instr, tail_call)
        else:
            target, depth, push_lasti = instr.handler
            caught = asm.new_label("caught")
            with asm.handler(caught, False, base + depth):
                jumped = _step(asm, frames, bases, k, decoded, instr, tail_call)
        ways = [("next", None, frame.index + 1)] if asm.depth is not None else []
        if jumped is not None:
            ways.append(("jumped", jumped, instr.target))
        if caught is not None:
            ways.append(("caught", caught, instr.handler[0]))
        for way, label, index in ways:
            asm.block(RESUME)
            if label is not None:
                asm.place(label)
                if way == "caught" and instr.handler[2]:
                    asm.load_const(instr.offset // 2)  # that of this code object is of no use there
                    asm.swap()
                elif way == "jumped" and instr.op == "FOR_ITER":
                    asm.emit("END_FOR")
                elif way == "jumped" and instr.op == "SEND":
                    asm.emit("END_SEND")
                    index += 1
            if way in frame.seen:
                with asm.calling():
                    asm.load_const(frame.seen[way])
                asm.pop()
            leaves = together or not k
            if frame.go_on is not None:
                _go_on_in_generator(asm, frame, base, decoded, way, index, tail_call)
            else:
                _go_on(asm, frames if together else [frame], base, decoded, way, index, tail_call if leaves else None)
            if leaves:
                asm.return_value()
            else:
                asm.jump(done)
        if k and ways and not together:
            asm.place(done)


def _step(asm: Assembler, frames: list[BreakFrame], bases: list[int], k: int, decoded: CanonicalCode, instr: Instr,
          tail_call: type | None) -> Label | None:
    """What the instruction does; the label that it may jump to."""
    frame = frames[k]
    if k + 1 < len(frames):
        _emit_frame(asm, frames, bases, k + 1, tail_call)
        if asm.depth is not None:
            wanted = bases[k] + (decoded.stack_depth(frame.index + 1) or 0)
            if wanted == asm.depth - 1:
                asm.pop()  # a setter's result, for example
            elif wanted != asm.depth or OPS[instr.op].flow != "next":
                raise errors.Unsupported(f"a break inside what {instr.op} calls", kind="not-resumable")
        return None
    allowed = frame.has_globals and instr.op in _GLOBALS or frame.go_on is not None and instr.op == "SEND"
    if (instr.op in _NOT_HERE and not allowed) or (k and instr.op == "RETURN_VALUE"):
        raise errors.Unsupported(f"a break at {instr.op}", kind="not-resumable")
    if len(frame.nulls) != decoded.stack_depth(frame.index):
        raise ValueError(f"{len(frame.nulls)} slots before {instr!r}, not {decoded.stack_depth(frame.index)}")
    reads_frame = decoded.reads_frame if frame.reads_frame is None else frame.reads_frame
    if instr.op in ("CALL", "CALL_FUNCTION_EX") and reads_frame:
        raise errors.Unsupported("a call that may look into its caller's frame (locals(), super(), eval() ...)",
                                 kind="not-resumable", hint="call it outside the compiled function")
    asm.block(BREAK)
    flow = OPS[instr.op].flow
    if flow in (BRANCH, JUMP):
        label = asm.new_label("jumped")
        asm.emit(instr.op, instr.arg, label)
        return label
    if loads_method(instr):
        # The other form that CALL takes; which slot is NULL is then known.
        if instr.op == "LOAD_METHOD":
            asm.emit("LOAD_ATTR", instr.arg)
        elif instr.op == "LOAD_SPECIAL":
            asm.load_const(special_methods.bound)
            asm.swap()
            asm.load_const(instr.arg)
            asm.call(2)
        else:
            asm.emit("LOAD_SUPER_ATTR", (instr.arg[0], False, instr.arg[2]))
        asm.push_null()
        if NULL_FIRST:
            asm.swap()
    elif instr.op == "RERAISE":
        asm.emit("RERAISE", 0)  # the lasti is of another code object
    else:
        asm.emit(instr.op, instr.arg)
    assert (asm.depth is None) == (flow == STOP)
    return None


def _nulls_at(frame: BreakFrame, decoded: CanonicalCode, way: str, depth: int) -> list:
    """NULLs on the stack after the step: those that it left alone, and what it pushed."""
    instr = decoded.instructions[frame.index]
    if way == "caught":
        kept = instr.handler[1]
    else:
        pushes = OPS[instr.op].effect(instr.arg, way == "jumped")[1]
        kept = min(depth - pushes + (OPS[instr.op].keeps if way == "next" else 0), len(frame.nulls))
    nulls = list(frame.nulls[:kept]) + [False] * (depth - kept)
    if way == "next":
        if loads_method(instr):
            nulls[-2 if NULL_FIRST else -1] = True
        elif instr.op == "PUSH_NULL":
            nulls[-1] = True
        elif instr.op == "CLEANUP_THROW":
            nulls[-ITERATOR_SLOTS:-1] = [True] * (ITERATOR_SLOTS - 1)
        elif instr.op == "SWAP":
            nulls[-1], nulls[-instr.arg] = nulls[-instr.arg], nulls[-1]
        elif instr.op == "COPY":
            nulls[-1] = nulls[-1 - instr.arg]
    return nulls


def _set_aside(asm: Assembler, depth: int, nulls: list[bool], handled: dict[int, str]) -> dict[int, str]:
    """Take the top ``depth`` stack slots off. Returns the variable of each, but of NULLs and of what PUSH_EXC_INFO has
    left there."""
    slots = {}
    for i in reversed(range(depth)):
        if nulls[i]:
            asm.drop_null()
        elif i in handled:
            asm.emit("POP_EXCEPT")
        else:
            slots[i] = asm.temporary("slot")
            asm.store_fast(slots[i])
    return slots


def _go_on(asm: Assembler, frames: list[BreakFrame], base: int, decoded: CanonicalCode, way: str, index: int,
           tail_call: type | None) -> None:
    """Stack from ``base`` on -> the result of the function that goes on in the last of ``frames`` at ``index`` and, if
    there are more, then in each of its callers behind its call."""
    frame, depth = frames[-1], asm.depth - base
    if len(frames) == 1 and frame.rest is not None:
        _go_on_in_rest(asm, frame, tail_call)
        return
    nulls = _nulls_at(frame, decoded, way, depth)
    resumes, slots = [], []
    rest = frames[0].rest if len(frames) > 1 else None
    going = frames if rest is None else frames[1:]
    for f in reversed(going):
        if f is not frame:
            index, nulls = f.index + 1, [*f.nulls, False]  # the last one is the callee's result
        code, index = decode(f.code), _past_jumps(decode(f.code), index)
        live, cells = code.live_locals(index), f.code.co_cellvars + f.code.co_freevars
        handled = {i: name for i, name in f.handled.items() if i < len(nulls)}
        resumes.append(make_resume(f.code, index, [n for n in f.locals if n in live and n not in cells],
                                   len(nulls), nulls, handled))
        slots.append(handled | _set_aside(asm, len(nulls) - (f is not frame), nulls, handled))
    with asm.calling():
        if tail_call is not None:
            asm.load_const(tail_call)
        if len(going) > 1 or rest:
            frames[0].push_chain(asm, resumes)
        else:
            frame.push_callable(asm, resumes[0])
        for f, resume, held in zip(reversed(going), resumes, slots):
            for kind, what in resume.params:
                if kind == "local":
                    asm.load_fast(f.locals[what])
                elif kind == "cell":
                    f.push_cell(asm, what)
                elif what in held:
                    asm.take_fast(held[what])
        for names in rest or ():
            for name in names:
                if name is not None:
                    asm.load_fast(frames[0].locals[name])


def _go_on_in_rest(asm: Assembler, frame: BreakFrame, tail_call: type | None) -> None:
    """The result of a chain's part, on the stack, -> that of the parts behind it."""
    if not frame.rest:
        return
    result = asm.temporary("slot")
    asm.store_fast(result)
    with asm.calling():
        if tail_call is not None:
            asm.load_const(tail_call)
        frame.push_rest(asm)
        for k, names in enumerate(frame.rest):
            for name in names:
                if name is not None:
                    asm.load_fast(frame.locals[name])
                elif not k:
                    asm.take_fast(result)


def _go_on_in_generator(asm: Assembler, frame: BreakFrame, base: int, decoded: CanonicalCode, way: str, index: int,
                        tail_call: type) -> None:
    """Stack from ``base`` on -> a tail call of the step that goes on at ``index`` of a generator's frame."""
    depth = asm.depth - base
    sent = way == "jumped" and decoded.instructions[frame.index].op == "SEND"
    nulls = [*frame.nulls[:-1 - ITERATOR_SLOTS], False] if sent else _nulls_at(frame, decoded, way, depth)
    index = _past_jumps(decoded, index)
    if decoded.instructions[index].op == "END_FOR":
        index += 1
    handled = {i: name for i, name in frame.handled.items() if i < depth}
    slots = _set_aside(asm, depth, nulls, handled)
    with asm.calling():
        asm.load_const(tail_call)
        frame.go_on(asm, index, [slots.get(i) for i in range(depth)], handled)
