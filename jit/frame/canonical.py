"""The canonical instruction set: one language for the bytecode of every supported CPython.

``OPS`` is the table, a row per canonical op: its stack layout, how control leaves it, and whether captured code may
hold it. ``ORIGINS`` says which canonical op each original opcode becomes. ``decode.py`` translates original bytecode
into these ops and ``assemble.py`` translates them back for the running interpreter.

Conventions, the same on every version:

* Stack layouts are written bottom to top, ``a b -> c``: ``b`` is on top and is popped first.
* A call pops ``NULL callable args...`` or ``method self args...``; on a version whose row in ``cpython`` says so, NULL
  is above the callable. NULL is a real (empty) stack slot. LOAD_GLOBAL never pushes a NULL of its own: its NULL bit
  becomes a PUSH_NULL on its side of it.
* PRECALL and KW_NAMES are part of CALL. CACHE and EXTENDED_ARG are gone. All unconditional jumps are JUMP.
* An exhausted FOR_ITER pops its iterator and jumps. The END_FOR that it may land on does nothing.
* What loops and ``yield from`` iterate over takes ITERATOR_SLOTS slots, what leaves a ``with`` block EXIT_SLOTS.
* A finished SEND keeps its receiver below the result and jumps to an END_SEND, which drops the receiver.
* A jump has its target as an instruction index in ``Instr.target``; its ``arg`` is None.
* An exception goes to ``Instr.handler`` = (index, depth, push_lasti): the stack is cut to ``depth`` slots, then the
  raising instruction's code unit (only with push_lasti; a number that only RERAISE may use) and the exception are
  pushed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Callable

from .cpython import EXIT_SLOTS, ITERATOR_SLOTS, ROWS

if TYPE_CHECKING:
    from .assemble import Label

NEXT, BRANCH, JUMP, STOP = "next", "branch", "jump", "stop"


@dataclasses.dataclass(frozen=True)
class Op:
    """A row of the table.

    Attributes:
        name: the canonical name.
        stack: the layout, ``popped -> pushed``; for a branch, the fall-through. ``; jump: ...`` gives the other side.
        arg: what ``Instr.arg`` holds; empty when it is None.
        pops, pushes: slots popped and pushed when control falls through (and when it jumps, unless given apart);
            an int or a function of ``arg``.
        jump_pops, jump_pushes: the same for the taken jump of a branch.
        flow: ``next``, ``branch`` (falls through or jumps), ``jump`` (always jumps) or ``stop`` (leaves the frame,
            or raises).
        versions: the CPython versions whose bytecode decodes to it. ``assemble`` encodes every op on all versions
            unless the table's text says otherwise.
        keeps: how many of the slots popped, the lowest of them, are pushed again as they were, a NULL among them.
        supported: False for what function bodies that can be captured never hold (class bodies, modules, async).
    """

    name: str
    stack: str
    arg: str
    pops: int | Callable
    pushes: int | Callable
    jump_pops: int | Callable | None
    jump_pushes: int | Callable | None
    flow: str
    versions: tuple
    supported: bool
    keeps: int = 0

    def effect(self, arg: object, jump: bool = False) -> tuple:
        """(slots popped, slots pushed) of an instruction with this ``arg``."""
        pops, pushes = self.pops, self.pushes
        if jump and self.jump_pops is not None:
            pops, pushes = self.jump_pops, self.jump_pushes
        return (pops if type(pops) is int else pops(arg)), (pushes if type(pushes) is int else pushes(arg))


OPS: dict[str, Op] = {}
ALL = tuple(ROWS)
ONLY_311, FROM_312, UNTIL_313, FROM_313, FROM_314 = ALL[:1], ALL[1:], ALL[:3], ALL[2:], ALL[3:]


def _op(name: str, stack: str, pops: int | Callable = 0, pushes: int | Callable = 0, arg: str = "", flow: str = NEXT,
        jump: tuple[int, ...] | None = None, versions: tuple[tuple[int, ...], ...] = ALL,
        supported: bool = True, keeps: int = 0) -> None:
    jump_pops, jump_pushes = jump if jump else (None, None)
    OPS[name] = Op(name, stack, arg, pops, pushes, jump_pops, jump_pushes, flow, versions, supported, keeps)


def _n(n: int) -> int:
    return n


# The stack itself.
_op("NOP", "->")
_op("POP_TOP", "value ->", 1)
_op("COPY", "... -> ... copy", 0, 1, "i: depth of the copied slot, 1 = top")
_op("SWAP", "... -> ...", 0, 0, "i: exchanges the top with slot i, 1 = top")
_op("PUSH_NULL", "-> NULL", 0, 1)
_op("LOAD_CONST", "-> value", 0, 1, "the constant itself")

# Local variables. A name in co_cellvars or co_freevars means the raw slot, that is, the cell.
_op("LOAD_FAST", "-> value", 0, 1, "name; raises UnboundLocalError when empty")
_op("LOAD_FAST_CHECK", "-> value", 0, 1, "name; the same as LOAD_FAST", versions=FROM_312)
_op("LOAD_FAST_AND_CLEAR", "-> value|NULL", 0, 1, "name; empties the slot, pushes NULL when it was empty",
    versions=FROM_312)
_op("STORE_FAST", "value|NULL ->", 1, 0, "name; storing NULL empties the slot")
_op("DELETE_FAST", "->", 0, 0, "name")

# Cells. LOAD_CLOSURE pushes the cell object itself.
_op("MAKE_CELL", "->", 0, 0, "name; replaces the slot's value, if any, by a new cell that holds it")
_op("COPY_FREE_VARS", "->", 0, 0, "n")
_op("LOAD_CLOSURE", "-> cell", 0, 1, "name")
_op("LOAD_DEREF", "-> value", 0, 1, "name")
_op("STORE_DEREF", "value ->", 1, 0, "name")
_op("DELETE_DEREF", "->", 0, 0, "name")
_op("LOAD_CLASSDEREF", "-> value", 0, 1, "name", versions=ONLY_311, supported=False)
_op("LOAD_FROM_DICT_OR_DEREF", "dict -> value", 1, 1, "name", versions=FROM_312, supported=False)

# Globals and namespaces.
_op("LOAD_GLOBAL", "-> value", 0, 1, "name")
_op("STORE_GLOBAL", "value ->", 1, 0, "name")
_op("DELETE_GLOBAL", "->", 0, 0, "name")
_op("LOAD_NAME", "-> value", 0, 1, "name", supported=False)
_op("STORE_NAME", "value ->", 1, 0, "name", supported=False)
_op("DELETE_NAME", "->", 0, 0, "name", supported=False)
_op("LOAD_LOCALS", "-> dict", 0, 1, versions=FROM_312, supported=False)
_op("LOAD_FROM_DICT_OR_GLOBALS", "dict -> value", 1, 1, "name", versions=FROM_312, supported=False)
_op("SETUP_ANNOTATIONS", "->", supported=False)
_op("LOAD_BUILD_CLASS", "-> __build_class__", 0, 1)
_op("LOAD_ASSERTION_ERROR", "-> AssertionError", 0, 1)

# Attributes. LOAD_METHOD leaves what CALL takes.
_op("LOAD_ATTR", "obj -> value", 1, 1, "name")
_op("LOAD_METHOD", "obj -> method self | NULL value", 1, 2, "name")
_op("STORE_ATTR", "value obj ->", 2, 0, "name")
_op("DELETE_ATTR", "obj ->", 1, 0, "name")
_op("LOAD_SUPER_ATTR", "super class self -> value (is_method: method self | NULL value)", 3, lambda a: 2 if a[1] else 1,
    "(name, is_method, two_args); two_args False: written as super() with no arguments", versions=FROM_312)

# Imports.
_op("IMPORT_NAME", "level fromlist -> module", 2, 1, "name")
_op("IMPORT_FROM", "module -> module value", 1, 2, "name")
_op("IMPORT_STAR", "module ->", 1, 0, versions=ONLY_311, supported=False)

# Operators.
_op("BINARY_OP", "a b -> value", 2, 1, "(symbol such as '+', inplace: bool)")
_op("UNARY_NEGATIVE", "value -> value", 1, 1)
_op("UNARY_POSITIVE", "value -> value", 1, 1)
_op("UNARY_NOT", "value -> bool", 1, 1)
_op("UNARY_INVERT", "value -> value", 1, 1)
_op("COMPARE_OP", "a b -> value", 2, 1, "'<' '<=' '==' '!=' '>' '>='")
_op("IS_OP", "a b -> bool", 2, 1, "invert: bool")
_op("CONTAINS_OP", "item container -> bool", 2, 1, "invert: bool")
_op("BINARY_SUBSCR", "obj key -> value", 2, 1)
_op("STORE_SUBSCR", "value obj key ->", 3, 0)
_op("DELETE_SUBSCR", "obj key ->", 2, 0)
_op("BINARY_SLICE", "obj start stop -> value", 3, 1, versions=FROM_312)
_op("STORE_SLICE", "value obj start stop ->", 4, 0, versions=FROM_312)

# Containers and text.
_op("BUILD_TUPLE", "n items -> tuple", _n, 1, "n")
_op("BUILD_LIST", "n items -> list", _n, 1, "n")
_op("BUILD_SET", "n items -> set", _n, 1, "n")
_op("BUILD_MAP", "n (key value) -> dict", lambda n: 2 * n, 1, "n")
_op("BUILD_CONST_KEY_MAP", "n values, tuple of keys -> dict", lambda n: n + 1, 1, "n", versions=UNTIL_313)
_op("BUILD_STRING", "n strings -> str", _n, 1, "n")
_op("BUILD_SLICE", "start stop [step] -> slice", _n, 1, "n: 2 or 3")
_op("LIST_APPEND", "... value -> ...", 1, 0, "i: the list is slot i after the pop, 1 = top")
_op("SET_ADD", "... value -> ...", 1, 0, "i: as LIST_APPEND")
_op("MAP_ADD", "... key value -> ...", 2, 0, "i: the dict is slot i after the pops")
_op("LIST_EXTEND", "... iterable -> ...", 1, 0, "i: the list is slot i after the pop")
_op("SET_UPDATE", "... iterable -> ...", 1, 0, "i: as LIST_EXTEND")
_op("DICT_UPDATE", "... mapping -> ...", 1, 0, "i: as LIST_EXTEND")
_op("DICT_MERGE", "... mapping -> ...", 1, 0,
    "i: as LIST_EXTEND; a repeated key raises TypeError; slot i + 2 after the pop is the callable named in it")
_op("LIST_TO_TUPLE", "list -> tuple", 1, 1)
_op("UNPACK_SEQUENCE", "iterable -> n items, the first on top", 1, _n, "n")
_op("UNPACK_EX", "iterable -> after items, list, before items, the first on top", 1, lambda a: a[0] + a[1] + 1,
    "(before, after)")
_op("FORMAT_VALUE", "value [spec] -> str", lambda a: 2 if a[1] else 1, 1,
    "(conversion: None 'str' 'repr' or 'ascii', has_spec: bool)")
_op("GET_LEN", "obj -> obj len", 1, 2)
_op("BUILD_INTERPOLATION", "value text [spec] -> interpolation", lambda n: 2 + (n & 1), 1, "n: CPython's own number",
    versions=FROM_314)
_op("BUILD_TEMPLATE", "strings interpolations -> template", 2, 1, versions=FROM_314)

# Functions and calls.
_op("MAKE_FUNCTION", "[defaults] [kwdefaults] [annotations or what makes them] [closure] code -> function",
    lambda a: 1 + len(a), 1,
    "tuple of those of 'defaults' 'kwdefaults' 'annotations' (or 'annotate') 'closure' that are on the stack")
_op("CALL", "NULL callable args... -> value | method self args... -> value", lambda a: a[0] + 2, 1,
    "(number of args, the keyword ones too; tuple of the keywords' names)")
_op("CALL_FUNCTION_EX", "NULL callable args [kwargs] -> value", lambda a: 4 if a else 3, 1, "has_kwargs: bool")
_op("CALL_INTRINSIC_1", "value -> value", 1, 1, "name, as in CPython without INTRINSIC_", versions=FROM_312)
_op("CALL_INTRINSIC_2", "a b -> value", 2, 1, "name, as in CPython without INTRINSIC_", versions=FROM_312)
_op("PRINT_EXPR", "value ->", 1, 0, versions=ONLY_311, supported=False)

# Control flow.
_op("JUMP", "->", flow=JUMP)
_op("POP_JUMP_IF_TRUE", "value ->", 1, 0, flow=BRANCH)
_op("POP_JUMP_IF_FALSE", "value ->", 1, 0, flow=BRANCH)
_op("POP_JUMP_IF_NONE", "value ->", 1, 0, flow=BRANCH)
_op("POP_JUMP_IF_NOT_NONE", "value ->", 1, 0, flow=BRANCH)
_op("JUMP_IF_TRUE_OR_POP", "value -> ; jump: value -> value", 1, 0, flow=BRANCH, jump=(1, 1), versions=ONLY_311)
_op("JUMP_IF_FALSE_OR_POP", "value -> ; jump: value -> value", 1, 0, flow=BRANCH, jump=(1, 1), versions=ONLY_311)
_op("GET_ITER", "iterable -> iterator", 1, 1)
_op("FOR_ITER", "iterator -> iterator item; jump: iterator ->", ITERATOR_SLOTS, ITERATOR_SLOTS + 1, flow=BRANCH,
    jump=(ITERATOR_SLOTS, 0), keeps=ITERATOR_SLOTS)
_op("END_FOR", "->", versions=FROM_312)
_op("RETURN_VALUE", "value ->", 1, 0, flow=STOP)
_op("RESUME", "->", 0, 0, "where: 0 start, 1 after yield, 2 after yield from, 3 after await")

# Generators and coroutines.
_op("RETURN_GENERATOR", "-> sent value (the frame returns its generator; None is sent first)", 0, 1)
_op("YIELD_VALUE", "value -> sent value", 1, 1, "None on 3.11; the number of enclosing handlers on 3.12")
_op("GET_YIELD_FROM_ITER", "iterable -> iterator", 1, 1)
_op("SEND", "receiver value -> receiver yielded; jump: receiver value -> receiver result", ITERATOR_SLOTS + 1,
    ITERATOR_SLOTS + 1, flow=BRANCH, keeps=ITERATOR_SLOTS)
_op("END_SEND", "receiver value -> value", ITERATOR_SLOTS + 1, 1)
_op("CLEANUP_THROW", "receiver sent exception -> None result", ITERATOR_SLOTS + 2, ITERATOR_SLOTS + 1,
    versions=FROM_312, supported=False)
_op("GET_AWAITABLE", "obj -> awaitable", 1, 1, "0, or 1 in async-with enter, 2 in its exit", supported=False)
_op("GET_AITER", "obj -> async iterator", 1, 1, supported=False)
_op("GET_ANEXT", "aiter -> aiter awaitable", 1, 2, supported=False)
_op("END_ASYNC_FOR", "aiter exception ->", 2, 0, supported=False)
_op("ASYNC_GEN_WRAP", "value -> wrapped", 1, 1, supported=False)
_op("BEFORE_ASYNC_WITH", "manager -> __aexit__ awaitable", 1, 2, versions=UNTIL_313, supported=False)

# Exceptions and with blocks.
_op("RAISE_VARARGS", "[exception [cause]] ->", _n, 0, "n: 0, 1 or 2", flow=STOP)
_op("RERAISE", "lasti ... exception -> ", 1, 0, "n: 0, or the depth of the lasti slot below the exception", flow=STOP)
_op("PUSH_EXC_INFO", "exception -> previous exception", 1, 2)
_op("POP_EXCEPT", "previous ->", 1, 0)
_op("CHECK_EXC_MATCH", "exception type -> exception bool", 2, 2)
_op("CHECK_EG_MATCH", "exception type -> rest match | None-or-exception None", 2, 2)
_op("PREP_RERAISE_STAR", "original list -> exception|None", 2, 1)
_op("BEFORE_WITH", "manager -> __exit__ result-of-__enter__", 1, 2, versions=UNTIL_313)
_op("LOAD_SPECIAL", "obj -> method self | callable NULL", 1, 2, "name of the method that its class has",
    versions=FROM_314)
_op("WITH_EXCEPT_START", "__exit__ lasti previous exception -> __exit__ lasti previous exception result",
    EXIT_SLOTS + 3, EXIT_SLOTS + 4, keeps=EXIT_SLOTS + 3)

# Pattern matching.
_op("MATCH_CLASS", "subject type names -> tuple|None", 3, 1, "n: positional patterns")
_op("MATCH_MAPPING", "subject -> subject bool", 1, 2)
_op("MATCH_SEQUENCE", "subject -> subject bool", 1, 2)
_op("MATCH_KEYS", "subject keys -> subject keys tuple|None", 2, 3)

# Never in a code object that a function runs; named so that the table is whole.
_op("INTERPRETER_EXIT", "value ->", 1, 0, flow=STOP, versions=FROM_312, supported=False)
_op("RESERVED", "->", flow=STOP, versions=FROM_312, supported=False)
_op("EXIT_INIT_CHECK", "None ->", 1, 0, versions=FROM_313, supported=False)

# Original opcode -> canonical op, where the names differ. None: folded into a neighbour.
ORIGINS: dict[str, str | None] = {
    "CACHE": None,
    "EXTENDED_ARG": None,
    "PRECALL": None,
    "KW_NAMES": None,
    "RETURN_CONST": "RETURN_VALUE",  # after a LOAD_CONST
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
    **{f"POP_JUMP_{way}_IF_{test}": f"POP_JUMP_IF_{test}"
       for way in ("FORWARD", "BACKWARD") for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")},
}


class Instr:
    """One canonical instruction; treat it as immutable.

    Attributes:
        op: a name in ``OPS``.
        arg: as the table's ``arg`` text says; None when that is empty.
        offset: byte offset of the original instruction. An op that was split has it twice.
        line: source line, or None.
        positions: (line, end line, column, end column), each possibly None.
        target: instruction index that it may jump to, or None.
        handler: (instruction index, stack depth, push_lasti) of the exception handler around it, or None.
    """

    __slots__ = ("op", "arg", "offset", "line", "positions", "target", "handler")

    def __init__(self, op: str, arg: object = None, offset: int = -1, line: int | None = None,
                 positions: tuple[int | None, ...] | None = None, target: int | Label | None = None,
                 handler: tuple[int | Label, int, bool] | None = None) -> None:
        self.op = op
        self.arg = arg
        self.offset = offset
        self.line = line
        self.positions = positions
        self.target = target
        self.handler = handler

    def __repr__(self) -> str:
        text = self.op
        if self.arg is not None or self.op == "LOAD_CONST":
            text += f" {self.arg!r}"
        if self.target is not None:
            text += f" -> {self.target}"
        if self.handler is not None:
            text += f"  [handler {self.handler[0]} depth {self.handler[1]}{' lasti' if self.handler[2] else ''}]"
        return text
