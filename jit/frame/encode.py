"""Canonical instructions -> a code object of the running CPython: the inverse of ``decode.py``.

Constants are kept by identity. (The ``bytecode`` library merges constants that marshal to the same bytes: two equal
lists, or two arrays of one content, would become one object.) The tables' formats are CPython's
Objects/locations.md and Objects/exception_handling_notes.txt.
"""

from __future__ import annotations

import opcode
import types
from collections.abc import Mapping, Sequence

from .canonical import Instr
from .cpython import NULL_FIRST, ROW, VERSION
from .cpython.symbols import BINARY_OPERATORS, COMPARE_SYMBOLS, CONVERSIONS, FUNCTION_PARTS
from .decode import INLINE_CACHES, max_stack, stack_depths

CO_OPTIMIZED, CO_NEWLOCALS, CO_VARARGS, CO_VARKEYWORDS, CO_NESTED, CO_GENERATOR = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
CO_COROUTINE, CO_ASYNC_GENERATOR = 0x80, 0x200

_OPMAP = opcode.opmap
_JUMP_OPS = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
_INVERSE = dict(zip(_JUMP_OPS, ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_NONE")))
# CPython's comparison masks: unordered 1, less 2, greater 4, equal 8.
_COMPARE_MASKS = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}


class EncodeError(ValueError):
    """Instructions that the running CPython cannot express, or that do not fit together."""


class Raw:
    """An original instruction being placed. ``target`` is a canonical index; ``source`` the canonical instruction."""

    __slots__ = ("number", "arg", "target", "backward", "caches", "source")

    def __init__(self, name: str, arg: int, source: Instr, target: int | None = None, backward: bool = False) -> None:
        self.number = _OPMAP[name]
        self.arg, self.target, self.backward, self.source = arg, target, backward, source
        self.caches = INLINE_CACHES[name]

    @property
    def size(self) -> int:
        arg = self.arg
        return 1 + self.caches + (0 if arg < 256 else 1 if arg < 65536 else 2 if arg < 16777216 else 3)


class Encoder:
    """Collects the tables of one code object while its instructions are translated."""

    def __init__(self, varnames: Sequence[str], cellvars: Sequence[str], freevars: tuple[str, ...], doc=None) -> None:
        self.varnames, self.cellvars, self.freevars = list(varnames), tuple(cellvars), tuple(freevars)
        self.consts: list = [doc]  # a function takes a str in slot 0 for its docstring
        self.const_index = {id(doc): 0}
        self.names: list = []
        self.name_index: dict = {}
        self.fast, self.deref = {}, {}

    def place_variables(self, instructions: list[Instr]) -> None:
        """Gives every variable its slot; locals that are only named by instructions come last."""
        known = {*self.varnames, *self.cellvars, *self.freevars}
        for instr in instructions:
            if "FAST" in instr.op and instr.arg not in known:
                known.add(instr.arg)
                self.varnames.append(instr.arg)
        slots = self.varnames + [c for c in self.cellvars if c not in self.varnames]
        first_free = len(slots)
        self.fast = {name: i for i, name in enumerate(slots)}
        self.deref = {name: self.fast[name] for name in self.cellvars}
        for i, name in enumerate(self.freevars):
            self.deref[name] = first_free + i
            self.fast.setdefault(name, first_free + i)

    def const(self, value: object) -> int:
        index = self.const_index.get(id(value))
        if index is None:
            index = self.const_index[id(value)] = len(self.consts)
            self.consts.append(value)
        return index

    def name(self, name: str) -> int:
        index = self.name_index.get(name)
        if index is None:
            index = self.name_index[name] = len(self.names)
            self.names.append(name)
        return index


def _variable(encoder: Encoder, arg: str) -> int:
    return encoder.fast[arg]


def _cell(encoder: Encoder, arg: str) -> int:
    try:
        return encoder.deref[arg]
    except KeyError:
        raise EncodeError(f"{arg!r} is neither a cell nor a free variable") from None


def _name(encoder: Encoder, arg: str) -> int:
    return encoder.name(arg)


_ARGS = {
    "LOAD_CONST": lambda e, arg: e.const(arg),
    **dict.fromkeys(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST"), _variable),
    **dict.fromkeys(("MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF",
                     "LOAD_FROM_DICT_OR_DEREF"), _cell),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_GLOBAL", "STORE_GLOBAL",
                     "DELETE_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME", "IMPORT_FROM",
                     "LOAD_FROM_DICT_OR_GLOBALS"), _name),
    "BINARY_OP": lambda e, arg: BINARY_OPERATORS.index(arg),
    "COMPARE_OP": lambda e, arg: COMPARE_SYMBOLS.index(arg) << ROW.compare | _COMPARE_MASKS[arg] * ROW.masks,
    "UNPACK_EX": lambda e, arg: arg[0] | arg[1] << 8,
    "FORMAT_VALUE": lambda e, arg: CONVERSIONS.index(arg[0]) | 4 * arg[1],
    "MAKE_FUNCTION": lambda e, arg: sum(1 << FUNCTION_PARTS.index(part) for part in arg),
    "IMPORT_NAME": lambda e, arg: e.name(arg) << ROW.import_bits | ROW.import_flag,
    "LOAD_SUPER_ATTR": lambda e, arg: e.name(arg[0]) << 2 | 2 * arg[2] | arg[1],
    "YIELD_VALUE": lambda e, arg: ROW.yields(arg),
    "KW_NAMES": lambda e, arg: e.const(arg),
    "CALL_INTRINSIC_1": lambda e, arg: _intrinsic(1, arg),
    "CALL_INTRINSIC_2": lambda e, arg: _intrinsic(2, arg),
}


def _intrinsic(arity, name: str):
    return getattr(opcode, f"_intrinsic_{arity}_descs").index("INTRINSIC_" + name)


def _raws(encoder: Encoder, instructions: list[Instr], paired: Mapping[str, int]) -> tuple:
    """(raw instructions, index of the first one of every canonical instruction, and one past the last)."""
    targets = {i.target for i in instructions} | {i.handler[0] for i in instructions if i.handler}
    raws: list = []
    starts: list = []

    def follows(i: int, op: str) -> bool:
        return i + 1 < len(instructions) and i + 1 not in targets and instructions[i + 1].op == op

    fused = False  # a PUSH_NULL waits for the LOAD_GLOBAL after it, or is part of what is before it
    for i, instr in enumerate(instructions):
        starts.append(len(raws))
        op, arg = instr.op, instr.arg
        if instr.target is not None:
            raws.extend(_jump(instructions, i, instr))
        elif op == "PUSH_NULL" and (follows(i, "LOAD_GLOBAL") if NULL_FIRST else fused):
            fused = NULL_FIRST
        elif op in paired and follows(i, "PUSH_NULL"):
            fused = True
            raws.append(Raw("GET_ITER", paired[op], instr))
        elif op == "LOAD_GLOBAL":
            fused = fused if NULL_FIRST else follows(i, "PUSH_NULL")
            raws.append(Raw(op, encoder.name(arg) << 1 | fused, instr))
            fused = fused and not NULL_FIRST
        else:
            for name, value in _steps(op, arg):
                if name in ("LOAD_ATTR", "LOAD_METHOD") and "LOAD_ATTR" in ROW.reads:
                    number, name = encoder.name(value) << 1 | (name == "LOAD_METHOD"), "LOAD_ATTR"
                elif _OPMAP.get(name, 256) >= 256:
                    raise EncodeError(f"Python {VERSION[0]}.{VERSION[1]} has no form of {instr!r}")
                else:
                    convert = _ARGS.get(name)
                    number = convert(encoder, value) if convert else int(value or 0)
                raws.append(Raw(name, number, instr))
    starts.append(len(raws))
    return raws, starts


def _steps(op: str, arg: object) -> tuple[tuple[str, object], ...]:
    """The original (name, argument) steps of an instruction that does not jump."""
    if op == "CALL":
        return ROW.call(*arg)
    if op == "CALL_FUNCTION_EX" and ROW.always_kwargs:
        return ((op, 0),) if arg else (("PUSH_NULL", None), (op, 0))
    write = ROW.writes.get(op)
    steps = ((op, arg),) if write is None else write(arg)
    return ((ROW.tests, None), *steps) if ROW.tests and op == "UNARY_NOT" else steps


def _jump(instructions: list[Instr], i: int, instr: Instr) -> list[Raw]:
    op, target = instr.op, instr.target
    backward = target <= i
    if op == "JUMP":
        if not backward:
            return [Raw("JUMP_FORWARD", 0, instr, target)]
        to_send = instructions[target].op == "SEND"
        return [Raw("JUMP_BACKWARD_NO_INTERRUPT" if to_send else "JUMP_BACKWARD", 0, instr, target, True)]
    if op in _INVERSE:
        if ROW.directed:
            return [Raw(op.replace("JUMP_", "JUMP_BACKWARD_" if backward else "JUMP_FORWARD_"),
                        0, instr, target, backward)]
        test = [Raw(ROW.tests, 0, instr)] if ROW.tests and op.endswith(("TRUE", "FALSE")) else []
        if not backward:
            return [*test, Raw(op, 0, instr, target)]
        return [*test, Raw(_INVERSE[op], 0, instr, i + 1), Raw("JUMP_BACKWARD", 0, instr, target, True)]
    if backward:
        raise EncodeError(f"{instr!r} at {i} jumps backward")
    if op in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP") and not ROW.jump_or_pop:
        test = [Raw(ROW.tests, 0, instr)] if ROW.tests else []
        return [Raw("COPY", 1, instr), *test, Raw("POP_" + op[:-7], 0, instr, target), Raw("POP_TOP", 0, instr)]
    wanted = {"FOR_ITER": ROW.end_for, "SEND": "END_SEND"}.get(op)
    if wanted and instructions[target].op != wanted:
        raise EncodeError(f"{instr!r} has to jump to {wanted}, not {instructions[target]!r}")
    return [Raw(op, 0, instr, target)]


def _place(raws: list[Raw], starts: list[int]) -> list:
    """Settles the jumps' arguments; returns the code unit at which every raw instruction begins, and the end.

    Arguments start at 0; a larger one only makes its instruction, and so other distances, larger, so this ends.
    """
    while True:
        offsets, at = [], 0
        for raw in raws:
            offsets.append(at)
            at += raw.size
        offsets.append(at)
        settled = True
        for k, raw in enumerate(raws):
            if raw.target is None:
                continue
            after, to = offsets[k + 1], offsets[starts[raw.target]]
            distance = after - to if raw.backward else to - after
            if distance < 0:
                raise EncodeError(f"{raw.source!r}: the jump goes the other way")
            if distance != raw.arg:
                raw.arg, settled = distance, False
        if settled:
            return offsets


def _bytes(raws: list[Raw]) -> bytes:
    out = bytearray()
    extended = _OPMAP["EXTENDED_ARG"]
    for raw in raws:
        arg = raw.arg
        for shift in (24, 16, 8):
            if arg >> shift:
                out += bytes((extended, arg >> shift & 0xFF))
        out += bytes((raw.number, arg & 0xFF))
        out += bytes(2 * raw.caches)
    return bytes(out)


def _varint(out: bytearray, value: int) -> None:
    while value >= 64:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)


def _location_table(raws: list[Raw], offsets: list[int], first_line: int) -> bytes:
    out = bytearray()
    line = first_line
    k = 0
    while k < len(raws):
        where, start = raws[k].source.positions, offsets[k]
        while k < len(raws) and raws[k].source.positions == where:
            k += 1
        units = offsets[k] - start
        while units:
            length = min(units, 8)
            units -= length
            if where is None or where[0] is None:
                out.append(0x80 | 15 << 3 | length - 1)
                continue
            delta = where[0] - line
            line = where[0]
            full = None not in where
            out.append(0x80 | (14 if full else 13) << 3 | length - 1)
            _varint(out, (-delta << 1 | 1) if delta < 0 else delta << 1)
            if full:
                for value in (where[1] - where[0], where[2] + 1, where[3] + 1):
                    _varint(out, value)
    return bytes(out)


def _exception_table(instructions: list[Instr], starts: list[int], offsets: list[int]) -> bytes:
    out = bytearray()
    i = 0
    while i < len(instructions):
        handler, first = instructions[i].handler, i
        while i < len(instructions) and instructions[i].handler == handler:
            i += 1
        start, end = offsets[starts[first]], offsets[starts[i]]
        if handler is None or start == end:
            continue
        index, depth, push_lasti = handler
        mark = 0x80
        for value in (start, end - start, offsets[starts[index]], depth << 1 | bool(push_lasti)):
            groups = [value & 63]
            while value >= 64:
                value >>= 6
                groups.append(value & 63 | 64)
            groups[-1] |= mark
            mark = 0
            out += bytes(reversed(groups))
    return bytes(out)


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
    encoder = Encoder(varnames, cellvars, freevars, doc)
    encoder.place_variables(instructions)
    raws, starts = _raws(encoder, instructions, ROW.paired if paired else {})
    places = _place(raws, starts)
    if doc is not None:
        flags |= ROW.has_docstring
    if offsets is not None:
        offsets[:] = [2 * places[k] for k in starts[:-1]]
    # A lowered JUMP_IF_X_OR_POP holds one slot more than its canonical form.
    stack = max_stack(instructions, stack_depths(instructions)) + 1
    return types.CodeType(
        argcount, posonly, kwonly, len(encoder.varnames), stack, flags, _bytes(raws), tuple(encoder.consts),
        tuple(encoder.names), tuple(encoder.varnames), filename, name, qualname or name, first_line,
        _location_table(raws, places, first_line), _exception_table(instructions, starts, places), encoder.freevars,
        encoder.cellvars)
