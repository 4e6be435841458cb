"""Canonical instructions -> a code object of the running CPython: the inverse of ``decode.py``.

The ``bytecode`` library assembles them: jumps and their extended arguments, caches, tables of lines and of exceptions.
What it would decide for itself is said to it otherwise. Constants come in holders, for it merges those that marshal to
the same bytes: two equal lists, or two arrays of one content, would become one object. Variables come under the
numbers of their slots, for a local variable and a free one may have one name, and it knows no local variable that is a
cell before 3.13.
"""

from __future__ import annotations

import enum
import opcode
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import bytecode
from bytecode.instr import InstrLocation

from .canonical import Instr
from .cpython import NULL_FIRST, ROW, VERSION
from .cpython.row import Steps
from .cpython.symbols import BINARY_OPERATORS, COMPARE_SYMBOLS, CONVERSIONS, FUNCTION_PARTS
from .decode import max_stack, stack_depths

CO_OPTIMIZED, CO_NEWLOCALS, CO_VARARGS, CO_VARKEYWORDS, CO_NESTED, CO_GENERATOR = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
CO_COROUTINE, CO_ASYNC_GENERATOR = 0x80, 0x200

_JUMP_OPS = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
_INVERSE = dict(zip(_JUMP_OPS, ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_NONE")))
_NOWHERE = InstrLocation(None, None, None, None)


class EncodeError(ValueError):
    """Instructions that the running CPython cannot express, or that do not fit together."""


class _Constant:
    """Stands for a constant in the library, which tells those apart by identity that cannot be marshalled."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class _Instr(bytecode.Instr):
    """An instruction whose argument may be the number that it has in the code (there is no other way to write a
    BUILD_INTERPOLATION)."""

    __slots__ = ()

    def _check_arg(self, name: str, opcode: int, arg: object) -> None:
        pass


class Encoder:
    """What one code object's instructions name."""

    def __init__(self, varnames: Sequence[str], cellvars: Sequence[str], freevars: tuple[str, ...],
                 instructions: list[Instr]) -> None:
        self.varnames, self.cellvars, self.freevars = list(varnames), tuple(cellvars), tuple(freevars)
        known = {*self.varnames, *self.cellvars, *self.freevars}
        for instr in instructions:  # locals that are only named by instructions come last
            if "FAST" in instr.op and instr.arg not in known:
                known.add(instr.arg)
                self.varnames.append(instr.arg)
        slots = [*self.varnames, *(c for c in self.cellvars if c not in self.varnames)]
        self.deref = {name: slots.index(name) for name in self.cellvars}
        self.deref.update((name, len(slots) + i) for i, name in enumerate(self.freevars))
        self.fast = {**self.deref, **{name: i for i, name in enumerate(slots)}}
        self.slots = [str(i) for i in range(len(slots) + len(self.freevars))]
        self.consts: dict[int, _Constant] = {}
        self.locations: dict[object, InstrLocation] = {}

    def const(self, value: object) -> _Constant:
        known = self.consts.get(id(value))
        if known is None:
            known = self.consts[id(value)] = _Constant(value)
        return known

    def local(self, name: str) -> str:
        return self.slots[self.fast[name]]

    def cell(self, name: str) -> bytecode.CellVar:
        try:
            return bytecode.CellVar(self.slots[self.deref[name]])
        except KeyError:
            raise EncodeError(f"{name!r} is neither a cell nor a free variable") from None

    def location(self, positions: tuple | None) -> InstrLocation:
        found = self.locations.get(positions)
        if found is None:
            found = self.locations[positions] = _location(positions)
        return found


def _location(positions: tuple | None) -> InstrLocation:
    if positions is None or positions[0] is None:
        return _NOWHERE
    if None not in positions:
        try:
            return InstrLocation(*positions)
        except ValueError:  # columns that CPython's compiler gives in the wrong order
            pass
    return InstrLocation(positions[0], None, None, None)


def _member(members: type[enum.IntEnum], number: int) -> enum.IntEnum:
    """The member of one of the library's enumerations; it need not know each number that CPython has."""
    try:
        return members(number)
    except ValueError:
        member = int.__new__(members, number)
        member._value_ = number
        return member


def _intrinsic(arity: int, name: str) -> enum.IntEnum:
    number = getattr(opcode, f"_intrinsic_{arity}_descs").index("INTRINSIC_" + name)
    return _member((bytecode.Intrinsic1Op, bytecode.Intrinsic2Op)[arity - 1], number)


_LOCALS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST")
_CELLS = ("MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF",
          "LOAD_FROM_DICT_OR_DEREF")
# Original opcode -> the library's argument, of the argument that a row's steps have; of others it is a number.
_ARGS: dict[str, Callable[[Encoder, Any], Any]] = {
    **{opcode.opname[op]: Encoder.const for op in opcode.hasconst},
    **dict.fromkeys(_LOCALS, Encoder.local),
    **dict.fromkeys(_CELLS, Encoder.cell),
    **{opcode.opname[op]: lambda e, arg: arg for op in opcode.hasname},
    "BINARY_OP": lambda e, arg: BINARY_OPERATORS.index(arg),
    "COMPARE_OP": lambda e, arg: bytecode.Compare(COMPARE_SYMBOLS.index(arg)),
    "UNPACK_EX": lambda e, arg: arg[0] | arg[1] << 8,
    "FORMAT_VALUE": lambda e, arg: CONVERSIONS.index(arg[0]) | 4 * arg[1],
    "MAKE_FUNCTION": lambda e, arg: sum(1 << FUNCTION_PARTS.index(part) for part in arg),
    "LOAD_SUPER_ATTR": lambda e, arg: (arg[1], arg[2], arg[0]),
    "YIELD_VALUE": lambda e, arg: ROW.yields(arg),
    "CALL_INTRINSIC_1": lambda e, arg: _intrinsic(1, arg),
    "CALL_INTRINSIC_2": lambda e, arg: _intrinsic(2, arg),
}


class Translation:
    """The library's instructions of canonical ones, with labels, and with the ends of what a handler covers.

    Attributes:
        out: all of these.
        starts: by canonical instruction, and at the end: how many original instructions lie before it.
    """

    def __init__(self, encoder: Encoder, instructions: list[Instr], paired: Mapping[str, int]) -> None:
        self.encoder, self.instructions, self.paired = encoder, instructions, paired
        self.targets = {i.target for i in instructions} | {i.handler[0] for i in instructions if i.handler}
        self.labels = [bytecode.Label() for _ in range(len(instructions) + 1)]
        self.out: list = []
        self.starts: list[int] = []
        self.count = 0
        self.fused = False  # a PUSH_NULL waits for the LOAD_GLOBAL after it, or is part of what is before it
        handler, begin = None, 0
        for i, instr in enumerate(instructions):
            if instr.handler != handler:
                begin, handler = self._cover(handler, begin, instr.handler), instr.handler
            self.starts.append(self.count)
            if i in self.targets:
                self.out.append(self.labels[i])
            where = encoder.location(instr.positions)
            for name, arg in self._originals(i, instr):
                self.out.append(_Instr(name, arg, location=where))
                self.count += 1
        self._cover(handler, begin, None)
        self.starts.append(self.count)
        self.out.append(self.labels[-1])

    def _cover(self, old: tuple | None, begin: int, new: tuple | None) -> int:
        """Ends what the handler ``old`` covers, and begins what ``new`` does; returns where in ``out`` that is."""
        if old is not None:
            if any(type(item) is _Instr for item in self.out[begin:]):
                self.out.append(bytecode.TryEnd(self.out[begin]))
            else:
                del self.out[begin]
        if new is not None:
            self.out.append(bytecode.TryBegin(self.labels[new[0]], bool(new[2]), new[1]))
        return len(self.out) - 1

    def _behind(self, i: int) -> bytecode.Label:
        """The label of the instruction after this one."""
        self.targets.add(i + 1)
        return self.labels[i + 1]

    def _follows(self, i: int, op: str) -> bool:
        instructions = self.instructions
        return i + 1 < len(instructions) and i + 1 not in self.targets and instructions[i + 1].op == op

    def _originals(self, i: int, instr: Instr) -> Iterator[tuple[str, Any]]:
        """Original instructions, with the library's arguments."""
        op, arg = instr.op, instr.arg
        if instr.target is not None:
            yield from self._jump(i, instr)
        elif op == "PUSH_NULL" and (self._follows(i, "LOAD_GLOBAL") if NULL_FIRST else self.fused):
            self.fused = NULL_FIRST
        elif op in self.paired and self._follows(i, "PUSH_NULL"):
            self.fused = True
            yield "GET_ITER", self.paired[op]
        elif op == "LOAD_GLOBAL":
            fused = self.fused if NULL_FIRST else self._follows(i, "PUSH_NULL")
            self.fused = fused and not NULL_FIRST
            yield op, (fused, arg)
        elif op == "END_ASYNC_FOR":
            yield op, self._behind(i) if opcode.opmap[op] in opcode.hasjrel else 0
        else:
            for name, value in _steps(op, arg):
                if name in ("LOAD_ATTR", "LOAD_METHOD") and "LOAD_ATTR" in ROW.reads:
                    yield "LOAD_ATTR", (name == "LOAD_METHOD", value)
                elif opcode.opmap.get(name, 256) >= 256:
                    raise EncodeError(f"Python {VERSION[0]}.{VERSION[1]} has no form of {instr!r}")
                else:
                    convert = _ARGS.get(name)
                    yield name, convert(self.encoder, value) if convert else int(value or 0)

    def _jump(self, i: int, instr: Instr) -> Iterator[tuple[str, Any]]:
        op, target = instr.op, instr.target
        to, backward = self.labels[target], target <= i
        if op == "JUMP":
            to_send = backward and self.instructions[target].op == "SEND"
            yield "JUMP_FORWARD" if not backward else "JUMP_BACKWARD_NO_INTERRUPT" if to_send else "JUMP_BACKWARD", to
        elif op in _INVERSE and ROW.directed:
            yield op.replace("JUMP_", "JUMP_BACKWARD_" if backward else "JUMP_FORWARD_"), to
        elif op in _INVERSE:
            if ROW.tests and op.endswith(("TRUE", "FALSE")):
                yield ROW.tests, 0
            yield (_INVERSE[op], self._behind(i)) if backward else (op, to)
            if backward:
                yield "JUMP_BACKWARD", to
        elif backward:
            raise EncodeError(f"{instr!r} at {i} jumps backward")
        elif op in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP") and not ROW.jump_or_pop:
            yield "COPY", 1
            if ROW.tests:
                yield ROW.tests, 0
            yield "POP_" + op[:-7], to
            yield "POP_TOP", 0
        else:
            wanted = {"FOR_ITER": ROW.end_for, "SEND": "END_SEND"}.get(op)
            if wanted and self.instructions[target].op != wanted:
                raise EncodeError(f"{instr!r} has to jump to {wanted}, not {self.instructions[target]!r}")
            yield op, to


def _steps(op: str, arg: Any) -> Steps:
    """The original (name, argument) steps of an instruction that does not jump."""
    if op == "CALL":
        return ROW.call(*arg)
    if op == "CALL_FUNCTION_EX" and ROW.always_kwargs:
        return ((op, 0),) if arg else (("PUSH_NULL", None), (op, 0))
    write = ROW.writes.get(op)
    steps = ((op, arg),) if write is None else write(arg)
    return ((ROW.tests, None), *steps) if ROW.tests and op == "UNARY_NOT" else steps


def encode(instructions: list[Instr], *, name: str, filename: str, varnames: Sequence[str] = (),
           cellvars: Sequence[str] = (), freevars: tuple[str, ...] = (), argcount: int = 0, posonly: int = 0,
           kwonly: int = 0, flags: int = CO_OPTIMIZED | CO_NEWLOCALS, qualname: str | None = None, first_line: int = 1,
           doc: str | None = None, offsets: list | None = None,
           paired: bool = True) -> types.CodeType:
    """A code object that runs the canonical ``instructions``.

    Args:
        instructions: the whole code, its setup (COPY_FREE_VARS, MAKE_CELL, RESUME) included. Targets and handlers
            are indices into it.
        varnames: the parameters in CPython's order and any further locals; locals that only instructions name are
            added.
        offsets: a list to be filled with the byte offset of every instruction.
        paired: a GET_ITER may leave what no variable can hold, where the version does so.

    Raises:
        EncodeError: for what the running CPython cannot express.
    """
    encoder = Encoder(varnames, cellvars, freevars, instructions)
    translation = Translation(encoder, instructions, ROW.paired if paired else {})
    code = bytecode.Bytecode(translation.out)
    code.name, code.filename, code.qualname, code.first_lineno = name, filename, qualname or name, first_line
    code.argcount, code.posonlyargcount, code.kwonlyargcount = argcount, posonly, kwonly
    code.flags = flags if doc is None else flags | ROW.has_docstring
    code.docstring = encoder.const(doc)  # a function takes a str in slot 0 for its docstring
    code.argnames = code.cellvars = encoder.slots
    concrete = code.to_concrete_bytecode(compute_exception_stack_depths=False)
    if offsets is not None:
        offsets[:] = _offsets(concrete, translation.starts)
    concrete.consts = [constant.value for constant in concrete.consts]
    concrete.varnames, concrete.cellvars, concrete.freevars = encoder.varnames, encoder.cellvars, encoder.freevars
    # A lowered JUMP_IF_X_OR_POP holds one slot more than its canonical form.
    return concrete.to_code(max_stack(instructions, stack_depths(instructions)) + 1,
                            compute_exception_stack_depths=False)


def _offsets(concrete: bytecode.ConcreteBytecode, starts: list[int]) -> list[int]:
    """The byte offset at which every canonical instruction begins."""
    places, at = [], 0
    for instr in concrete:
        if instr.name != "CACHE":
            places.append(at)
        at += instr.size
    places.append(at)
    return [places[start] for start in starts[:-1]]
