"""Continuing a function in the middle: resume functions.

A resume function takes the state of a frame just before one instruction (live locals and the stack's values as
parameters, cells as its closure), puts the stack back and jumps to that instruction. The instructions are the
original's, under the same exception-table regions, and the whole stack is restored, so that loops, ``with`` blocks and
``try`` bodies go on as if nothing had happened. The frame's own cells become free variables.

Inside an ``except`` body the exception has to be the thread's current one (PUSH_EXC_INFO, as the original did): the
resumed code's POP_EXCEPT takes it away again. Either the caller sees to that, or the resume function is given the
exception and does it (``handled``). Resuming at a handler's first instruction needs the exception on the stack only.
"""

from __future__ import annotations

import dataclasses
import marshal
import types
from collections.abc import Collection
from typing import TYPE_CHECKING

from .. import errors
from ..runtime.naming import Naming
from ..runtime.names import Name, Unnameable, Value, calling, rule
from . import encode as _encode
from .canonical import JUMP, OPS, STOP, Instr
from .decode import decode

if TYPE_CHECKING:
    from .decode import CanonicalCode
    from .values.functions import FunctionValue

# Parameters that carry stack slots; the dot keeps them apart from every Python name.
STACK_PREFIX = ".stack"
_KEPT_FLAGS = ~(_encode.CO_VARARGS | _encode.CO_VARKEYWORDS)
_NOT_FRAMES = _encode.CO_GENERATOR | _encode.CO_COROUTINE | _encode.CO_ASYNC_GENERATOR


@dataclasses.dataclass(frozen=True)
class Resume:
    """A resume function's code and what to call it with.

    Attributes:
        code: the code object; all parameters are positional.
        params: one entry per parameter, in order: ``("local", name)``, ``("cell", name)`` (what the cell of this
            variable holds: slot 0 of a method whose first parameter is a cell and that calls ``super()``), or
            ``("stack", slot)``, slot 0 being the bottom.
        freevars: the variables whose cells make up the closure, in order.
    """

    code: types.CodeType
    params: tuple
    freevars: tuple

    @property
    def key(self) -> tuple:
        """What those have in common that are the same."""
        return self.code.co_code, self.code.co_linetable, self.code.co_varnames, self.params


def resume_of(code: bytes, params: tuple, freevars: tuple) -> Resume:
    """A Resume whose code is written by ``marshal``."""
    return Resume(marshal.loads(code), params, freevars)


@rule(Resume)
def _name_of_resume(naming: Naming, resume: Resume) -> Name:
    try:
        code = marshal.dumps(resume.code)
    except ValueError:
        return Unnameable(f"{resume.code.co_qualname} has constants that no source text has")
    return calling(resume_of, Value(code), Value(resume.params), Value(resume.freevars))


@dataclasses.dataclass(frozen=True, eq=False)
class Resumed:
    """What a resume function has of the function that it goes on in. ``closure``: the cells, where it takes them
    over."""

    code: types.CodeType
    globals: dict
    closure: tuple | None
    qualname: str

    @staticmethod
    def of(fn: FunctionValue, with_closure: bool) -> Resumed:
        return Resumed(fn.code, fn.globals, fn.obj.__closure__ if with_closure else None, fn.qualname)

    @property
    def key(self) -> tuple:
        return self.code, id(self.globals), self.closure and tuple(map(id, self.closure))

    def sign(self, made: types.FunctionType) -> types.FunctionType:
        """``made`` under the name of the function."""
        made.__qualname__, made.__module__ = self.qualname, self.globals.get("__name__")
        return made


@rule(Resumed)
def _name_of_resumed(naming: Naming, fn: Resumed) -> Name:
    return calling(Resumed, naming.name(fn.code), naming.name(fn.globals), naming.data(fn.closure),
                         Value(fn.qualname))


def uses_zero_argument_super(code: types.CodeType) -> bool:
    """Whether a ``super()`` in the code finds its arguments in the frame: ``__class__`` and local slot 0."""
    return "__class__" in code.co_freevars and any(
        i.op == "LOAD_GLOBAL" and i.arg == "super" for i in decode(code).instructions)


def make_resume(code: types.CodeType, index: int, locals_: list, stack_depth: int | None = None,
                null_mask: list[bool] = (), handled: tuple | dict[int, str] = ()) -> Resume:
    """The code that continues ``code`` from canonical instruction ``index``.

    Args:
        locals_: the locals (not cells) that the caller hands over, in the order that it wants; those that are bound
            and in ``live_locals(index)`` are needed. The others are unbound in the resumed frame.
        stack_depth: slots on the stack before the instruction; it has to be what the flow analysis says.
        null_mask: a truth value per slot, the bottom first, True for a NULL; missing ones are False.
        handled: slots where PUSH_EXC_INFO has left the exception that was handled before. The parameter of such a slot
            is the exception handled from there on, which the resume function makes the current one again.

    Raises:
        Unsupported: for generators, class bodies and modules, inside a frame's setup, and where a ``super()`` that
            follows has lost its first parameter.
    """
    decoded = decode(code)
    index = normal(decoded, index)
    depth = check(code, decoded, index, stack_depth)
    nulls = [bool(n) for n in null_mask] + [False] * (depth - len(null_mask))
    cells = code.co_cellvars + code.co_freevars
    if any(n in cells for n in locals_):
        raise ValueError(f"cells are passed in the closure: {[n for n in locals_ if n in cells]}")

    params = [("local", n) for n in locals_]
    names = list(locals_)
    if code.co_argcount and uses_zero_argument_super(code) and code.co_varnames[0] in decoded.live_locals(index):
        first = code.co_varnames[0]
        if first in code.co_cellvars:
            params.insert(0, ("cell", first))
            names.insert(0, "." + first)
        elif first not in locals_:
            raise errors.Unsupported(f"super() where {first!r}, the first parameter, may be unbound",
                                     where=(code.co_filename, decoded.instructions[index].line, code.co_name),
                                     kind="not-resumable")
        else:
            params = [("local", first)] + [p for p in params if p[1] != first]
            names = [first] + [n for n in names if n != first]
    slots = [i for i in range(depth) if not nulls[i]]
    params += [("stack", i) for i in slots]
    names += [f"{STACK_PREFIX}{i}" for i in slots]

    where = decoded.instructions[index]
    place = dict(line=where.line, positions=where.positions)
    out = [Instr("COPY_FREE_VARS", len(cells), **place)] if cells else []
    out.append(Instr("RESUME", 0, **place))
    for i in range(depth):
        if nulls[i]:
            out.append(Instr("PUSH_NULL", **place))
            continue
        out.append(Instr("LOAD_FAST_AND_CLEAR", f"{STACK_PREFIX}{i}", **place))
        if i in handled:
            out += [Instr("PUSH_EXC_INFO", **place), Instr("POP_TOP", **place)]
    kept = reachable(decoded.instructions, index)
    moved = {old: len(out) + 1 + k for k, old in enumerate(kept)}
    out.append(Instr("JUMP", target=moved[index], **place))
    unbound = set(decoded.names) - set(names) - set(cells)
    out += relocated(decoded.instructions, kept, moved, unbound)

    return _resume(code, out, names, cells, params)


def _resume(code: types.CodeType, instructions: list[Instr], names: list[str], cells: tuple[str, ...],
            params: list[tuple[str, int | str]]) -> Resume:
    """The Resume of ``code`` with these instructions, whose parameters are ``names``."""
    flags = code.co_flags & _KEPT_FLAGS | (_encode.CO_NESTED if cells else 0)
    new = _encode.encode(instructions, name=code.co_name, filename=code.co_filename, varnames=names, freevars=cells,
                         argcount=len(names), flags=flags, qualname=code.co_qualname, first_line=code.co_firstlineno)
    return Resume(new, tuple(params), cells)


def normal(decoded: CanonicalCode, index: int) -> int:
    """The index to stop at: a FOR_ITER lands behind the END_FOR that it names."""
    return index + 1 if decoded.instructions[index].op == "END_FOR" else index


def check(code: types.CodeType, decoded: CanonicalCode, index: int, stack_depth: int | None) -> int:
    where = (code.co_filename, decoded.instructions[index].line, code.co_name)
    if code.co_flags & _NOT_FRAMES:
        raise errors.Unsupported("a generator or coroutine cannot be resumed from the outside", where=where,
                                 kind="not-resumable")
    if not code.co_flags & _encode.CO_OPTIMIZED:
        raise errors.Unsupported("a class body or module cannot be resumed", where=where, kind="not-resumable")
    if index < decoded.body:
        raise errors.Unsupported("a frame cannot be resumed before it is set up", where=where, kind="not-resumable")
    depth = decoded.stack_depth(index)
    if depth is None:
        raise errors.Unsupported("no path leads to the instruction to resume at", where=where, kind="not-resumable")
    if stack_depth is not None and stack_depth != depth:
        raise ValueError(f"{stack_depth} slots are on the stack before {decoded.instructions[index]!r}, not {depth}")
    return depth


def reachable(instructions: list[Instr], start: int, stop: int | None = None) -> list:
    """Indices of the instructions that can run from ``start`` on, in order; none is followed beyond ``stop``."""
    seen, work = set(), [start]
    while work:
        i = work.pop()
        while i not in seen:
            seen.add(i)
            if i == stop:
                break
            instr = instructions[i]
            if instr.handler is not None and instr.handler[0] not in seen:
                work.append(instr.handler[0])
            flow = OPS[instr.op].flow
            if instr.target is not None and instr.target not in seen:
                work.append(instr.target)
            if flow in (STOP, JUMP):
                break
            i += 1
    return sorted(seen)


def relocated(instructions: list[Instr], kept: list[int], moved: dict[int, int],
               unbound: Collection[str] = frozenset()) -> list:
    """Copies of the ``kept`` instructions with targets and handlers at their new places.

    LOAD_FAST of a variable in ``unbound`` checks again (from 3.12 on it does not), for the original's proof that the
    variable is bound does not hold for a caller that left it out.
    """
    out = []
    for i in kept:
        old = instructions[i]
        op = "LOAD_FAST_CHECK" if old.op == "LOAD_FAST" and old.arg in unbound else old.op
        arg = 0 if op == "RERAISE" else old.arg  # the position may be that of another code object
        handler = old.handler and (moved[old.handler[0]], *old.handler[1:])
        out.append(Instr(op, arg, old.offset, old.line, old.positions,
                         None if old.target is None else moved[old.target], handler))
    return out
