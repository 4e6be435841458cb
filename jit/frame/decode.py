"""Original bytecode -> canonical instructions, with the exception table, stack depths and liveness.

``decode(code)`` is cached per code object for as long as that lives. It reads ``co_code``, which is free of inline
caches and of specialised or instrumented opcodes, with ``opcode``'s tables; nothing here imports a library.
"""

from __future__ import annotations

import opcode
import weakref
from typing import TYPE_CHECKING

from .. import errors
from .canonical import JUMP, OPS, ORIGINS, STOP, Instr
from .cpython import ROW, ROWS, VERSION
from .cpython.row import Tables
from .cpython.symbols import BINARY_OPERATORS, COMPARE_SYMBOLS, CONVERSIONS, FUNCTION_PARTS

if TYPE_CHECKING:
    import types

# Builtins that read the local variables of the frame that calls them.
_READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})


class CanonicalCode:
    """A decoded code object.

    Attributes:
        instructions: list of ``Instr``. Jump targets and handlers are indices into it.
        names: every variable slot of the frame, in the interpreter's order (locals, own cells, free variables).
        body: index of the first instruction after the frame's setup (MAKE_CELL, COPY_FREE_VARS, RETURN_GENERATOR and
            the first RESUME).
    """

    __slots__ = ("_code", "instructions", "names", "body", "_offsets", "_depths", "_live", "_handled", "_joins",
                 "__weakref__")

    def __init__(self, code: types.CodeType, instructions: list[Instr], names: tuple[str, ...], body: int,
                 offsets: list[int]) -> None:
        self._code = weakref.ref(code)
        self.instructions, self.names, self.body, self._offsets = instructions, names, body, offsets
        self._depths = self._live = self._handled = self._joins = None

    @property
    def code(self) -> types.CodeType:
        """The code object, or None once it is gone: the decoded form does not keep it alive."""
        return self._code()

    def index_at(self, offset: int) -> int:
        """The first instruction that stands for the original one at this byte offset (such as ``f_lasti``)."""
        return self._offsets[offset // 2]

    @property
    def stack_depths(self) -> list:
        """Stack slots in use before each instruction, NULLs counted; None where no path leads."""
        if self._depths is None:
            self._depths = stack_depths(self.instructions)
        return self._depths

    def stack_depth(self, index: int) -> int | None:
        """``stack_depths[index]``."""
        return self.stack_depths[index]

    @property
    def max_stack(self) -> int:
        """Stack slots that running the canonical instructions can need."""
        return max_stack(self.instructions, self.stack_depths)

    @property
    def reads_frame(self) -> bool:
        """Whether a call in it may look into the frame: it names ``locals``, ``eval`` ..., or calls ``super()``."""
        called = {i.arg for i in self.instructions if i.op in ("LOAD_GLOBAL", "LOAD_NAME")}
        return not called.isdisjoint(_READS_LOCALS) or ("super" in called and "__class__" in self.names)

    def handled_slots(self, index: int) -> frozenset:
        """Stack slots before instruction ``index`` where PUSH_EXC_INFO has left the exception that was handled
        before."""
        return self._exception_slots(index)[0]

    def position_slots(self, index: int) -> frozenset:
        """Stack slots before instruction ``index`` that hold where an exception was raised (see ``Instr.handler``)."""
        return self._exception_slots(index)[1]

    def _exception_slots(self, index: int) -> tuple[frozenset, frozenset]:
        if self._handled is None:
            self._handled = exception_slots(self.instructions, self.stack_depths)
        return self._handled[index]

    def join(self, index: int) -> int | None:
        """Where all ways from instruction ``index`` on that end by a return meet first: an instruction, or the number
        of instructions where they only meet in having returned; None where none returns."""
        if self._joins is None:
            self._joins = post_dominators(self.instructions)
        return self._joins[index]

    def live_locals(self, index: int) -> frozenset:
        """Variables (locals, own cells and free variables) whose value before instruction ``index`` may still be used.

        A zero-argument ``super()`` uses the first parameter; ``locals()`` and its like use every variable.
        """
        if self._live is None:
            self._live = _Liveness(self)
        return self._live.at(index)

    def text(self, start: int = 0, stop: int | None = None) -> str:
        """A listing, a line per instruction: source line, index, stack depth, instruction."""
        lines, last = [], None
        for i in range(start, len(self.instructions) if stop is None else stop):
            instr, depth = self.instructions[i], self.stack_depths[i]
            line = "" if instr.line in (None, last) else instr.line
            last = instr.line
            lines.append(f"{line!s:>5} {i:4} {'-' if depth is None else depth!s:>2}  {instr!r}")
        return "\n".join(lines)


# --- the exception table ------------------------------------------------------------------------------------------


def parse_exception_table(table: bytes) -> list:
    """``co_exceptiontable`` as (start, end, target, depth, push_lasti) rows; offsets in code units of two bytes.

    The format is CPython's Objects/exception_handling_notes.txt: big-endian 6-bit groups, bit 6 continues a number.
    """
    numbers, value = [], 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    rows = []
    for i in range(0, len(numbers), 4):
        start, length, target, depth_lasti = numbers[i:i + 4]
        rows.append((start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)))
    return rows


# --- arguments ----------------------------------------------------------------------------------------------------
# Per opcode: a function (code tables, raw argument) -> canonical argument.


def _slot(t: Tables, arg: int) -> str:
    return t.slots[arg]


def _name(t: Tables, arg: int) -> str:
    return t.names[arg]


def _const(t: Tables, arg: int) -> object:
    return t.consts[arg]


def _number(t: Tables, arg: int) -> int:
    return arg


def _flag(t: Tables, arg: int) -> bool:
    return bool(arg)


_ARGS = {
    "BINARY_OP": lambda t, arg: BINARY_OPERATORS[arg],
    "COMPARE_OP": lambda t, arg: COMPARE_SYMBOLS[arg >> ROW.compare],
    "IS_OP": _flag,
    "CONTAINS_OP": _flag,
    "CALL_FUNCTION_EX": lambda t, arg: bool(arg & 1),
    "UNPACK_EX": lambda t, arg: (arg & 0xFF, arg >> 8),
    "FORMAT_VALUE": lambda t, arg: (CONVERSIONS[arg & 3], bool(arg & 4)),
    "MAKE_FUNCTION": lambda t, arg: tuple(p for bit, p in enumerate(FUNCTION_PARTS) if arg >> bit & 1),
    "LOAD_SUPER_ATTR": lambda t, arg: (t.names[arg >> 2], bool(arg & 1), bool(arg & 2)),
    "LOAD_CONST": _const,
    "RESUME": lambda t, arg: arg & ROW.resumes,
}

# How the main loop treats an opcode.
_PLAIN, _STEPS, _JUMP_FORWARD, _JUMP_BACKWARD, _FOLDED, _EXTENDED, _KWNAMES, _CALL, _CALL_KW, _CALL_EX, _PART, \
    _UNKNOWN = range(12)
_SPECIAL = {"EXTENDED_ARG": _EXTENDED, "KW_NAMES": _KWNAMES, "CALL": _CALL, "CALL_KW": _CALL_KW,
            "SET_FUNCTION_ATTRIBUTE": _PART, **({"CALL_FUNCTION_EX": _CALL_EX} if ROW and ROW.always_kwargs else {})}


def _inline_caches() -> dict[str, int]:
    """Code units of cache behind each original instruction."""
    entries, numbers = opcode._inline_cache_entries, opcode.opmap
    if isinstance(entries, list):  # 3.11 and 3.12, by number
        entries = {name: entries[number] for name, number in numbers.items() if number < len(entries)}
    return {name: entries.get(name, 0) for name in numbers}


INLINE_CACHES = {} if ROW is None else _inline_caches()
_WITH_ARGUMENT = frozenset(getattr(opcode, "hasarg", range(opcode.HAVE_ARGUMENT, 256)))


def _build_table() -> list[tuple]:
    jumps = set(opcode.hasjrel) | set(opcode.hasjabs)
    table = [(_UNKNOWN, name, None, 0) for name in opcode.opname[:256]]
    for name, number in opcode.opmap.items():
        if number >= 256:
            continue
        op = ORIGINS.get(name, name)
        convert = ROW.reads.get(name)
        if name in _SPECIAL:
            kind = _SPECIAL[name]
        elif convert is not None:
            kind = _STEPS
        elif name in ROW.folded:
            kind = _FOLDED
        elif op not in OPS:
            continue
        elif number in jumps:
            kind = _JUMP_BACKWARD if "BACKWARD" in name else _JUMP_FORWARD
        else:
            kind = _PLAIN
            convert = _ARGS.get(name)
            if convert is None:
                if number in opcode.haslocal or number in opcode.hasfree:
                    convert = _slot
                elif number in opcode.hasname:
                    convert = _name
                elif number in _WITH_ARGUMENT:
                    convert = _number
        table[number] = (kind, op, convert, INLINE_CACHES[name])
    return table


_TABLE = None if ROW is None else _build_table()


# --- decoding -----------------------------------------------------------------------------------------------------

_cache: dict = {}


def decode(code: types.CodeType) -> CanonicalCode:
    """The canonical form of a code object.

    Raises:
        Unsupported: on a CPython version, or an opcode, that is not in the table.
    """
    # Keyed by identity: hashing a code object hashes its constants, which emitted code does not keep hashable.
    key = id(code)
    found = _cache.get(key)
    if found is not None and found.code is code:
        return found
    result = _decode(code)
    _cache[key] = result
    weakref.finalize(code, _forget, key, weakref.ref(result)).atexit = False
    return result


def _forget(key: int, result: object) -> None:
    if _cache.get(key) is result():
        _cache.pop(key, None)


def _decode(code: types.CodeType, shared: frozenset[int] = frozenset()) -> CanonicalCode:
    """``shared``: code units of those instructions behind an END_FOR, a part of it, that something else jumps to."""
    if _TABLE is None:
        raise errors.Unsupported(f"the bytecode of Python {VERSION[0]}.{VERSION[1]} is not known",
                                 kind="python-version",
                                 hint="use Python " + " or ".join(f"{a}.{b}" for a, b in ROWS))
    raw, tables, table = code.co_code, Tables(code), _TABLE
    positions = list(code.co_positions())
    units = len(raw) // 2
    index_of = [0] * (units + 1)
    out: list = []
    jumps: list = []
    send_ends: dict = {}  # where a SEND drops its receiver, code unit -> index of the END_SEND put before it
    loop_ends: set = set()  # of those instructions that are a part of the END_FOR before them
    extended, kwnames, unit = 0, (), 0
    while unit < units:
        index_of[unit] = len(out)
        if unit in send_ends:
            send_ends[unit] = len(out)
            out.append(Instr("END_SEND", None, 2 * unit, positions[unit][0], positions[unit]))
            index_of[unit] += 1
        kind, op, convert, caches = table[raw[2 * unit]]
        arg = raw[2 * unit + 1] | extended
        if kind == _EXTENDED:
            extended = arg << 8
            unit += 1
            continue
        extended = 0
        where = positions[unit]
        line = where[0]
        if unit in loop_ends:
            if unit in shared:
                over = Instr("JUMP", None, 2 * unit, line, where)
                jumps.append((over, unit + 1))
                out.append(over)
                index_of[unit] = len(out)
            else:
                kind = _FOLDED
        if kind == _PLAIN:
            if op == "END_FOR" and ROW.pops_loop:
                loop_ends.add(unit + 1)
            out.append(Instr(op, None if convert is None else convert(tables, arg), 2 * unit, line, where))
        elif kind == _STEPS:
            for name, value in convert(tables, arg):
                out.append(Instr(name, value, 2 * unit, line, where))
        elif kind == _CALL:
            out.append(Instr(op, (arg, kwnames), 2 * unit, line, where))
            kwnames = ()
        elif kind == _CALL_KW:
            out[-1] = Instr("CALL", (arg, out[-1].arg), 2 * unit, line, where)  # a LOAD_CONST of the names
            index_of[unit] -= 1
        elif kind == _CALL_EX:
            given = out[-1].op != "PUSH_NULL"
            if not given:
                out.pop()
                index_of[unit] -= 1
            out.append(Instr(op, given, 2 * unit, line, where))
        elif kind == _PART:
            part = FUNCTION_PARTS[arg.bit_length() - 1]  # the last one on the stack comes first
            out[-1] = Instr(out[-1].op, (part, *out[-1].arg), out[-1].offset, line, where)
            index_of[unit] -= 1
        elif kind == _JUMP_FORWARD or kind == _JUMP_BACKWARD:
            instr = Instr(op, None, 2 * unit, line, where)
            after = unit + 1 + caches
            to = after + arg if kind == _JUMP_FORWARD else after - arg
            if op == "SEND" and ROW.no_end_send:
                send_ends[to] = -1
            jumps.append((instr, to))
            out.append(instr)
        elif kind == _KWNAMES:
            kwnames = tables.consts[arg]
        elif kind == _UNKNOWN:
            raise errors.Unsupported(f"opcode {op} at offset {2 * unit} of {code.co_qualname}",
                                     where=(code.co_filename, line, code.co_name), kind="opcode")
        for skipped in range(unit + 1, unit + 1 + caches):
            index_of[skipped] = len(out)
        unit += 1 + caches
    index_of[units] = len(out)
    if loop_ends and not shared and (found := loop_ends.intersection(to for _, to in jumps)):
        return _decode(code, frozenset(found))
    for instr, to in jumps:
        instr.target = send_ends[to] if instr.op == "SEND" and ROW.no_end_send else index_of[to]
    for start, end, target, depth, push_lasti in parse_exception_table(code.co_exceptiontable):
        handler = (index_of[target], depth, push_lasti)
        for i in range(index_of[start], index_of[end]):
            out[i].handler = handler
    return CanonicalCode(code, out, tables.slots, _body(out), index_of)


def _body(instructions: list[Instr]) -> int:
    generator = next((i for i, instr in enumerate(instructions) if instr.op == "RETURN_GENERATOR"), 0)
    for i, instr in enumerate(instructions[generator:], generator):
        if instr.op == "RESUME":
            return i + 1
        if instr.op not in ("MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR", "POP_TOP", "NOP"):
            return i
    return 0


# --- flow analysis ------------------------------------------------------------------------------------------------


def stack_depths(instructions: list[Instr]) -> list:
    """Depth before every instruction, by following every path from the first, through handlers too."""
    depths: list = [None] * len(instructions)
    work = [(0, 0)]
    while work:
        i, depth = work.pop()
        while depths[i] is None:
            depths[i] = depth
            instr = instructions[i]
            op = OPS[instr.op]
            if instr.handler is not None:
                target, base, push_lasti = instr.handler
                if depths[target] is None:
                    work.append((target, base + 1 + push_lasti))
            flow = op.flow
            if flow != STOP and instr.target is not None:
                pops, pushes = op.effect(instr.arg, True)
                if flow == JUMP:
                    i, depth = instr.target, depth - pops + pushes
                    continue
                if depths[instr.target] is None:
                    work.append((instr.target, depth - pops + pushes))
            if flow == STOP:
                break
            pops, pushes = op.effect(instr.arg)
            depth += pushes - pops
            i += 1
    return depths


def exception_slots(instructions: list[Instr], depths: list[int]) -> list:
    """Per instruction, the stack slots that PUSH_EXC_INFO has filled and POP_EXCEPT has not emptied, and those where a
    handler was given a position, by following every path."""
    found: list = [None] * len(instructions)
    nothing: frozenset = frozenset()
    work = [(0, nothing, nothing)]
    while work:
        i, handled, positions = work.pop()
        while found[i] is None:
            positions = frozenset(k for k in positions if k < depths[i]) if positions else nothing
            found[i] = handled, positions
            instr = instructions[i]
            flow = OPS[instr.op].flow
            if instr.handler is not None:
                target, base, push_lasti = instr.handler
                kept = frozenset(k for k in positions if k < base)
                work.append((target, frozenset(k for k in handled if k < base), kept | {base} if push_lasti else kept))
            if instr.op == "PUSH_EXC_INFO":
                handled |= {depths[i] - 1}
            elif instr.op == "POP_EXCEPT":
                handled -= {max(handled, default=-1)}
            if instr.target is not None:
                work.append((instr.target, handled, positions))
            if flow in (STOP, JUMP):
                break
            i += 1
    return found


def max_stack(instructions: list[Instr], depths: list[int]) -> int:
    """The largest stack that the instructions reach, given the depth before each of them."""
    most = 0
    for instr, depth in zip(instructions, depths):
        if depth is None:
            continue
        pops, pushes = OPS[instr.op].effect(instr.arg)
        most = max(most, depth, depth - pops + pushes)
        if instr.handler is not None:
            most = max(most, instr.handler[1] + 1 + instr.handler[2])
    return most


def successors(instructions: list[Instr], index: int) -> list[int]:
    """The instructions that may follow one, but for handlers of exceptions."""
    instr = instructions[index]
    flow = OPS[instr.op].flow
    following = [instr.target] if instr.target is not None and flow != STOP else []
    return following if flow in (STOP, JUMP) else [index + 1, *following]


def post_dominators(instructions: list[Instr]) -> list:
    """The immediate post-dominator of every instruction, by data flow over bit sets; raising an exception is no way."""
    count = len(instructions)
    every = (1 << count + 1) - 1
    found = [every] * count + [1 << count]
    changed = True
    while changed:
        changed = False
        for i in range(count - 1, -1, -1):
            behind = found[count] if instructions[i].op.startswith("RETURN") else every
            for k in successors(instructions, i):
                behind &= found[k]
            behind |= 1 << i
            if behind != found[i]:
                found[i], changed = behind, True
    nearest: list = [None] * count
    for i in range(count):
        behind = rest = found[i] & ~(1 << i)
        while found[i] != every and rest:
            j = (rest & -rest).bit_length() - 1
            if found[j] == behind:
                nearest[i] = j
                break
            rest &= rest - 1
    return nearest


_USES = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "LOAD_CLOSURE", "LOAD_DEREF",
                   "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "MAKE_CELL"})
_KILLS = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})


class _Liveness:
    """Backward data flow over variable bit sets. A handler's needs count at every instruction that it covers."""

    def __init__(self, canonical: CanonicalCode) -> None:
        instructions, self.names = canonical.instructions, canonical.names
        bit = {name: 1 << i for i, name in enumerate(self.names)}
        count = len(instructions)
        self.before = before = [0] * (count + 1)
        uses, kills = [0] * count, [0] * count
        # Calls that may be of a builtin that looks into this frame.
        called = {instr.arg for instr in instructions if instr.op in ("LOAD_GLOBAL", "LOAD_NAME")}
        reads = 0
        if not called.isdisjoint(_READS_LOCALS):
            reads = (1 << len(self.names)) - 1
        elif "super" in called and "__class__" in bit:
            reads = 1 | bit["__class__"]
        for i, instr in enumerate(instructions):
            if instr.op in _USES:
                uses[i] = bit[instr.arg]
            elif instr.op in ("CALL", "CALL_FUNCTION_EX"):
                uses[i] = reads
            if instr.op in _KILLS:
                kills[i] = bit[instr.arg]
        changed = True
        while changed:
            changed = False
            for i in range(count - 1, -1, -1):
                instr = instructions[i]
                flow = OPS[instr.op].flow
                after = before[i + 1] if flow != STOP and flow != JUMP else 0
                if instr.target is not None:
                    after |= before[instr.target]
                live = uses[i] | after & ~kills[i]
                if instr.handler is not None:
                    live |= before[instr.handler[0]]
                if live != before[i]:
                    before[i] = live
                    changed = True
        self._sets: dict = {}

    def at(self, index: int) -> frozenset[str]:
        bits = self.before[index]
        found = self._sets.get(bits)
        if found is None:
            found = self._sets[bits] = frozenset(n for i, n in enumerate(self.names) if bits >> i & 1)
        return found
