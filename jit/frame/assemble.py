"""Writing new code objects by hand, in canonical instructions.

``Assembler`` follows the stack depth of what is emitted, so that an underflow, a call whose arguments were not counted
right, or two paths that meet at different depths raise ``AssembleError`` where they are written. ``encode.py`` turns
the result into the running CPython's bytecode.

    asm = Assembler("f", "example.py", ["x"])
    with asm.calling():                      # emits CALL with as many arguments as were pushed behind the callable
        asm.load_const(print)
        asm.load_fast("x")
    asm.return_value()
    f = function_from(asm.finish(), {}, "f")
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Callable

from . import encode as _encode
from .canonical import BRANCH, JUMP, OPS, STOP, Instr
from .cpython import ITERATOR_SLOTS, NULL_FIRST
from .encode import CO_NESTED, CO_NEWLOCALS, CO_OPTIMIZED, CO_VARARGS, CO_VARKEYWORDS


class AssembleError(ValueError):
    """A misuse of the assembler: the emitted instructions would corrupt the stack."""


class Label:
    """A place to jump to. ``depth`` is the stack depth there, known from the first jump to it or from its placing."""

    __slots__ = ("depth", "index", "name")

    def __init__(self, name: str = "", depth: int | None = None) -> None:
        self.name, self.depth, self.index = name, depth, None

    def __repr__(self) -> str:
        return f"<label {self.name or hex(id(self))} depth {self.depth}>"


class Assembler:
    """Builds one code object.

    Args:
        name, filename: as in a code object.
        argnames: the parameters in CPython's order: positional, keyword-only, ``*args``, ``**kwargs``.
        posonly, kwonly: how many of them are positional-only and keyword-only.
        varargs, varkw: whether the last ones are ``*args`` and ``**kwargs``.
        cellvars: locals (parameters too) that live in cells of this frame.
        freevars: names of the closure's cells.
        doc: the docstring.

    Every method that emits returns None. ``depth`` is the present stack depth, or None where no path leads (after a
    return, for example), until a label is placed.
    """

    def __init__(self, name: str, filename: str, argnames: list[str] = (), *, qualname: str | None = None,
                 first_line: int = 1, posonly: int = 0, kwonly: int = 0, varargs: bool = False, varkw: bool = False,
                 cellvars: tuple = (), freevars: tuple = (), flags: int | None = None, doc: str | None = None) -> None:
        self.name, self.filename, self.qualname, self.first_line = name, filename, qualname or name, first_line
        self.argnames, self.posonly, self.kwonly = list(argnames), posonly, kwonly
        self.argcount = len(self.argnames) - kwonly - varargs - varkw
        self.cellvars, self.freevars, self.doc = tuple(cellvars), tuple(freevars), doc
        if flags is None:
            flags = CO_OPTIMIZED | CO_NEWLOCALS | (CO_NESTED if self.freevars else 0)
        self.flags = (flags & ~(CO_VARARGS | CO_VARKEYWORDS)) | CO_VARARGS * varargs | CO_VARKEYWORDS * varkw
        self.instructions: list[Instr] = []
        self.depth: int | None = 0
        self.positions = (first_line, first_line, None, None)
        self._handler = None
        self._temporaries = 0
        self.blocks: list[tuple[int, str]] = []  # the index of a block's first instruction, until finish: its offset
        if self.freevars:
            self.emit("COPY_FREE_VARS", len(self.freevars))
        for cell in self.cellvars:
            self.emit("MAKE_CELL", cell)
        self.emit("RESUME", 0)

    @classmethod
    def like(cls, code: types.CodeType, **changes: object) -> Assembler:
        """An assembler with the name, file, first line, signature and variables of ``code``."""
        flags = code.co_flags
        varargs, varkw = bool(flags & CO_VARARGS), bool(flags & CO_VARKEYWORDS)
        count = code.co_argcount + code.co_kwonlyargcount + varargs + varkw
        options = dict(qualname=code.co_qualname, first_line=code.co_firstlineno, posonly=code.co_posonlyargcount,
                       kwonly=code.co_kwonlyargcount, varargs=varargs, varkw=varkw, cellvars=code.co_cellvars,
                       freevars=code.co_freevars, flags=flags)
        options.update(changes)
        return cls(options.pop("name", code.co_name), options.pop("filename", code.co_filename),
                   options.pop("argnames", code.co_varnames[:count]), **options)

    # --- instructions ---------------------------------------------------------------------------------------------

    def emit(self, op: str, arg: object = None, target: Label | None = None) -> None:
        """Any canonical instruction; ``arg`` is as the table in ``canonical.py`` says."""
        row = OPS.get(op)
        if row is None:
            raise AssembleError(f"{op} is no canonical op")
        if (target is None) != (row.flow not in (BRANCH, JUMP)):
            raise AssembleError(f"{op} {'needs a' if target is None else 'takes no'} label")
        if op not in ("LOAD_CONST", "YIELD_VALUE") and (arg is None) != (not row.arg or target is not None):
            raise AssembleError(f"{op} takes {row.arg or 'no argument'}, not {arg!r}")
        if self.depth is None:
            raise AssembleError(f"{op}: no path leads here")
        pops, pushes = row.effect(arg)
        reach = arg if op in ("COPY", "SWAP") else pops
        if self.depth < reach:
            raise AssembleError(f"{op} {arg!r} takes {reach} slots, the stack has {self.depth}")
        if target is not None:
            jump_pops, jump_pushes = row.effect(arg, True)
            self._meet(target, self.depth - jump_pops + jump_pushes)
        self.instructions.append(Instr(op, arg, -1, self.positions and self.positions[0], self.positions, target,
                                       self._handler))
        self.depth = None if row.flow in (STOP, JUMP) else self.depth - pops + pushes

    def _meet(self, label: Label, depth: int) -> None:
        if label.depth is None:
            label.depth = depth
        elif label.depth != depth:
            raise AssembleError(f"{label!r} is reached with {depth} slots too")

    def new_label(self, name: str = "", depth: int | None = None) -> Label:
        """A label that is not placed yet. ``depth`` needs to be given only when nothing before it jumps there."""
        return Label(name, depth)

    def place(self, label: Label) -> None:
        """The next instruction is where ``label`` is."""
        if label.index is not None:
            raise AssembleError(f"{label!r} is placed twice")
        if self.depth is not None:
            self._meet(label, self.depth)
        elif label.depth is None:
            raise AssembleError(f"{label!r}: nothing leads here; give its depth")
        self.depth = label.depth
        label.index = len(self.instructions)

    def label(self, name: str = "") -> Label:
        """A new label, placed here."""
        new = Label(name)
        self.place(new)
        return new

    def block(self, name: str) -> None:
        """What follows is the block ``name``, until the next one."""
        self.blocks.append((len(self.instructions), name))

    @contextlib.contextmanager
    def handler(self, label: Label, push_lasti: bool = False, depth: int | None = None) -> Iterator[None]:
        """Exceptions of what is emitted inside go to ``label``, with the stack as it is now, and the exception on top.

        With ``push_lasti`` an int (the raising instruction's offset, which RERAISE can take) is below the exception.
        ``depth`` cuts the stack further, to that many slots.
        """
        depth = self.depth if depth is None else depth
        if depth > self.depth:
            raise AssembleError(f"a handler keeps {depth} slots, the stack has {self.depth}")
        self._meet(label, depth + 1 + push_lasti)
        kept, self._handler = self._handler, (label, depth, push_lasti)
        try:
            yield
        finally:
            self._handler = kept

    @contextlib.contextmanager
    def at(self, where: Instr | tuple[int, ...] | int) -> Iterator[None]:
        """Source position of what is emitted inside: a line, a positions tuple, an ``Instr``, or None."""
        kept = self.positions
        if isinstance(where, Instr):
            where = where.positions
        self.positions = (where, where, None, None) if isinstance(where, int) else where
        try:
            yield
        finally:
            self.positions = kept

    def temporary(self, hint: str = "t") -> str:
        """The name of a fresh local; the dot keeps it apart from every Python name."""
        self._temporaries += 1
        return f".{hint}{self._temporaries}"

    # --- values ---------------------------------------------------------------------------------------------------

    def load_const(self, value: object) -> None:
        """Any object; it is kept by identity."""
        self.emit("LOAD_CONST", value)

    def load_fast(self, name: str) -> None:
        self.emit("LOAD_FAST", name)

    def take_fast(self, name: str) -> None:
        """Pushes a bound local and unbinds it, so that the frame keeps no reference."""
        self.emit("LOAD_FAST", name)
        self.emit("DELETE_FAST", name)

    def store_fast(self, name: str) -> None:
        self.emit("STORE_FAST", name)

    def delete_fast(self, name: str) -> None:
        self.emit("DELETE_FAST", name)

    def load_deref(self, name: str) -> None:
        self.emit("LOAD_DEREF", name)

    def store_deref(self, name: str) -> None:
        self.emit("STORE_DEREF", name)

    def load_closure(self, name: str) -> None:
        """The cell itself."""
        self.emit("LOAD_CLOSURE", name)

    def _in_cell(self, name: str) -> bool:
        return name in self.cellvars or name in self.freevars

    def load(self, name: str) -> None:
        """A variable, wherever it lives."""
        self.emit("LOAD_DEREF" if self._in_cell(name) else "LOAD_FAST", name)

    def store(self, name: str) -> None:
        """A variable, wherever it lives."""
        self.emit("STORE_DEREF" if self._in_cell(name) else "STORE_FAST", name)

    def load_global(self, name: str) -> None:
        self.emit("LOAD_GLOBAL", name)

    def store_global(self, name: str) -> None:
        self.emit("STORE_GLOBAL", name)

    def load_attr(self, name: str) -> None:
        self.emit("LOAD_ATTR", name)

    def store_attr(self, name: str) -> None:
        """value obj ->"""
        self.emit("STORE_ATTR", name)

    def delete_attr(self, name: str) -> None:
        self.emit("DELETE_ATTR", name)

    def subscript(self) -> None:
        """obj key -> value"""
        self.emit("BINARY_SUBSCR")

    def store_subscr(self) -> None:
        """value obj key ->"""
        self.emit("STORE_SUBSCR")

    def delete_subscr(self) -> None:
        """obj key ->"""
        self.emit("DELETE_SUBSCR")

    def binary_op(self, symbol: str, inplace: bool = False) -> None:
        self.emit("BINARY_OP", (symbol, inplace))

    def compare_op(self, symbol: str) -> None:
        self.emit("COMPARE_OP", symbol)

    def is_op(self, invert: bool = False) -> None:
        self.emit("IS_OP", invert)

    def build_tuple(self, count: int) -> None:
        self.emit("BUILD_TUPLE", count)

    def build_list(self, count: int) -> None:
        self.emit("BUILD_LIST", count)

    def build_set(self, count: int) -> None:
        self.emit("BUILD_SET", count)

    def build_dict(self, count: int) -> None:
        """count (key value) -> dict"""
        self.emit("BUILD_MAP", count)

    def build_string(self, count: int) -> None:
        self.emit("BUILD_STRING", count)

    def build_slice(self, count: int) -> None:
        self.emit("BUILD_SLICE", count)

    def unpack_sequence(self, count: int) -> None:
        """The first item ends up on top."""
        self.emit("UNPACK_SEQUENCE", count)

    # --- the stack ------------------------------------------------------------------------------------------------

    def pop(self, count: int = 1) -> None:
        for _ in range(count):
            self.emit("POP_TOP")

    def copy(self, i: int = 1) -> None:
        """Pushes slot i again, 1 = top."""
        self.emit("COPY", i)

    def swap(self, i: int = 2) -> None:
        """Exchanges the top with slot i."""
        self.emit("SWAP", i)

    def rot(self, count: int) -> None:
        """Moves the top below the ``count - 1`` slots under it."""
        for i in range(count, 1, -1):
            self.emit("SWAP", i)

    def push_null(self) -> None:
        self.emit("PUSH_NULL")

    def drop_null(self) -> None:
        """Removes a slot that may be NULL, which POP_TOP cannot. A value stays referenced until the frame ends."""
        self.emit("STORE_FAST", ".null")

    # --- calls ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def calling(self, kwnames: tuple = ()) -> Iterator[None]:
        """Push the callable and then its arguments inside, the keyword ones last; the result is what is left."""
        start = self.depth
        yield
        if self.depth is not None:
            self.call(self._pushed_since(start, kwnames), kwnames)

    @contextlib.contextmanager
    def calling_method(self, name: str, kwnames: tuple = ()) -> Iterator[None]:
        """As ``calling``, for a method of the object on top of the stack; push its arguments inside."""
        start = self.depth
        self.emit("LOAD_METHOD", name)
        yield
        if self.depth is not None:
            self.emit("CALL", (self._pushed_since(start, kwnames), tuple(kwnames)))

    def _pushed_since(self, start: int, kwnames: tuple) -> int:
        count = self.depth - start - 1
        if count < len(kwnames):
            raise AssembleError(f"a call with {count} arguments and the keywords {kwnames}; was the callable pushed?")
        return count

    def call(self, count: int, kwnames: tuple = ()) -> None:
        """A call of ``callable args``. The first positional argument is in the slot that a method's self has, so that
        no NULL is needed, whose place differs among versions of CPython; where there is none, NULL is moved there."""
        if count > len(kwnames):
            self.emit("CALL", (count - 1, tuple(kwnames)))
        else:
            self.push_null()
            self.rot(count + (2 if NULL_FIRST else 1))
            self.emit("CALL", (count, tuple(kwnames)))

    # --- control flow ---------------------------------------------------------------------------------------------

    def jump(self, label: Label) -> None:
        self.emit("JUMP", None, label)

    def pop_jump_if_true(self, label: Label) -> None:
        self.emit("POP_JUMP_IF_TRUE", None, label)

    def pop_jump_if_false(self, label: Label) -> None:
        self.emit("POP_JUMP_IF_FALSE", None, label)

    def pop_jump_if_none(self, label: Label) -> None:
        self.emit("POP_JUMP_IF_NONE", None, label)

    def pop_jump_if_not_none(self, label: Label) -> None:
        self.emit("POP_JUMP_IF_NOT_NONE", None, label)

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """The body of a for loop over the iterator on top; it is entered with the item above it, and has to drop it.

        Afterwards the iterator is gone.
        """
        end = self.new_label("end of loop")
        for _ in range(ITERATOR_SLOTS - 1):
            self.push_null()
        start = self.label("loop")
        self.emit("FOR_ITER", None, end)
        yield
        if self.depth is not None:
            self.jump(start)
        self.place(end)
        self.emit("END_FOR")

    def return_value(self) -> None:
        self.emit("RETURN_VALUE")

    # --- the result -----------------------------------------------------------------------------------------------

    def finish(self) -> types.CodeType:
        """The code object.

        Raises:
            AssembleError: when control can run off the end or a label was never placed.
        """
        if self.depth is not None:
            raise AssembleError(f"{self.name}: control runs off the end")
        out = []
        # From 3.12 on LOAD_FAST does not check that the variable is bound.
        emptied = {i.arg for i in self.instructions if i.op in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR")}
        bound = {*self.argnames} - emptied
        for instr in self.instructions:
            op, target, handler = instr.op, instr.target, instr.handler
            if op == "LOAD_FAST" and instr.arg not in bound:
                op = "LOAD_FAST_CHECK"
            if target is not None:
                target = self._index(target)
            if handler is not None:
                handler = (self._index(handler[0]), *handler[1:])
            out.append(Instr(op, instr.arg, -1, instr.line, instr.positions, target, handler))
        offsets: list = []
        code = _encode.encode(out, name=self.name, filename=self.filename, varnames=self.argnames,
                              cellvars=self.cellvars, freevars=self.freevars, argcount=self.argcount,
                              posonly=self.posonly, kwonly=self.kwonly, flags=self.flags, qualname=self.qualname,
                              first_line=self.first_line, doc=self.doc, offsets=offsets)
        self.blocks = [(offsets[index], name) for index, name in self.blocks if index < len(offsets)]
        return code

    def _index(self, label: Label) -> int:
        if label.index is None:
            raise AssembleError(f"{label!r} was never placed")
        return label.index


def function_from(code: types.CodeType, globals_: dict, name: str | None = None,
                  closure: dict[str, types.CellType] | None = None, defaults: tuple[int, ...] | None = None,
                  kwdefaults: dict[str, int] | None = None) -> Callable:
    """A function of ``code``. ``closure`` is a tuple of cells in the order of ``code.co_freevars``, or a dict of
    them."""
    if isinstance(closure, dict):
        closure = tuple(closure[n] for n in code.co_freevars)
    function = types.FunctionType(code, globals_, name or code.co_name, defaults, tuple(closure) if closure else None)
    function.__kwdefaults__ = kwdefaults
    return function
