"""The kernel language: an iteration space, reduction axes and a straight SSA body of loads, computes, reductions and
stores.

A kernel stands for this program, in which the statements after ``p`` run in order for each point of the parallel axes::

    for each (p0, p1, ...) in parallel:
        for each (r0, ...): element-level statements
        row-level statements

A value is *element-level* when it depends on a reduction (``r``) axis, and *row-level* otherwise. ``Reduce`` turns an
element-level value into a row-level one, which later element-level statements may use again: softmax reads its row,
reduces it, and uses the row again. Whether a row is kept on chip or read again per pass is the emitter's choice.

Indices are in elements of the buffer's dtype, from the pointer that is passed, over the axis names, the size symbols
and the names of bounded values (an indirect load). A value that data decide becomes part of an address through
``Bounded`` alone, which brings it into its range first, and a ``Check`` reports it; ``verify_addresses`` holds this for
every kernel that is built. Half types never appear in arithmetic: after a load they are cast to float32, and cast back
before a store. All names are C identifiers, and axis, size, value and buffer names are disjoint.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import torch

from .. import devices
from ..graph import dims, prims
from ..graph.dim_text import render
from ..graph.prim_info import PRIMS, info

if TYPE_CHECKING:
    from ..graph.dims import Dim, IntExpr

HALF = (torch.float16, torch.bfloat16)

# What a kernel computes of single elements, and what its reductions and scans are called, as the records of prims say.
POINTWISE = prims.POINTWISE | prims.names(kind="kernel")
REDUCE_OPS = frozenset(p.combine for p in PRIMS.values() if p.kind == "reduction" and p.combine)
SCAN_OPS = frozenset(p.combine for p in PRIMS.values() if p.kind == "scan")


_OF_NOTHING = {p.combine: p.of_nothing for p in PRIMS.values() if p.combine and p.of_nothing is not None}


def neutral(op: str, dtype: torch.dtype) -> Any:
    """The value that changes nothing under the reduction ``op`` over ``dtype``, as a number of its kind."""
    kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
    if op in _OF_NOTHING:
        return kind(_OF_NOTHING[op])
    largest = math.inf if kind is float else 1 if kind is bool else torch.iinfo(dtype).max
    smallest = -math.inf if kind is float else 0 if kind is bool else torch.iinfo(dtype).min
    return kind(smallest if op.endswith("max") else largest)


@dataclass(frozen=True)
class Axis:
    """A loop. ``kind`` is "p" (parallel) or "r" (reduction); it runs from 0 to ``extent`` - 1."""

    name: str
    extent: "dims.IntExpr"
    kind: str = "p"

    @functools.cached_property
    def sym(self) -> Dim:
        """The axis as an index expression (0 for an axis of one iteration)."""
        return axis_symbol(self.name, self.extent)


def axis_symbol(name: str, extent: IntExpr) -> Dim:
    """The index expression of a loop variable, with the bounds 0 .. extent-1."""
    return dims.Sym(name, lo=0, hi=extent - 1)


@dataclass(frozen=True)
class Buffer:
    """A pointer argument. ``role``: "in", "out", "inout" (read and written at the same index in one iteration) or
    "error" (one int32 that ``Check`` writes)."""

    name: str
    dtype: torch.dtype
    role: str = "in"


@dataclass(frozen=True)
class Load:
    """``dst = buffer[index]`` in the buffer's dtype; where ``mask`` (a bool value) is false nothing is read and dst is
    ``other``."""

    dst: str
    buffer: str
    index: "dims.IntExpr"
    mask: Optional[str] = None
    other: Union[int, float, bool] = 0


@dataclass(frozen=True)
class Const:
    """``dst = value`` as ``dtype``."""

    dst: str
    value: Union[int, float, bool]
    dtype: torch.dtype


@dataclass(frozen=True)
class IndexValue:
    """An index expression as a value of an integer ``dtype``."""

    dst: str
    expr: "dims.IntExpr"
    dtype: torch.dtype


@dataclass(frozen=True)
class Compute:
    """``dst = op(*args)``; ``op`` is the name of a pointwise prim. ``dtype`` is the type of dst; ``cast`` converts and
    rounds to it."""

    dst: str
    op: str
    args: tuple
    dtype: torch.dtype


@dataclass(frozen=True)
class Reduce:
    """``dst`` = ``arg`` combined over all reduction axes; ``arg`` has dst's dtype, except for argmax and argmin, which
    give the int64 position of the first extreme in row-major order of the reduction axes (a NaN is extreme). max and
    min propagate NaN. A sum of float32 values may also be given in float64, before it is rounded. ``precise``: such a
    sum adds in float64 from the first value on."""

    dst: str
    op: str
    arg: str
    dtype: torch.dtype
    precise: bool = False


@dataclass(frozen=True)
class Scan:
    """Inclusive running ``op`` of ``arg`` along the only reduction axis."""

    dst: str
    op: str
    arg: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Store:
    """``buffer[index] = value`` where ``mask`` holds. A row-level store is done once per row, an element-level one per
    element."""

    buffer: str
    index: "dims.IntExpr"
    value: str
    mask: Optional[str] = None


@dataclass(frozen=True)
class Bounded:
    """``dst = value`` where ``0 <= value < extent``, and 0 elsewhere; both int64. The only values that an index
    expression may name."""

    dst: str
    value: str
    extent: "dims.IntExpr"

    dtype = torch.int64


@dataclass(frozen=True)
class Check:
    """Where not ``0 <= value < extent``, and ``mask`` holds if given: write ``code`` (not 0) to element 0 of the error
    buffer, or, for a negative code on a GPU, stop the kernel."""

    value: str
    extent: "dims.IntExpr"
    buffer: str
    code: int
    mask: Optional[str] = None


Stmt = Union[Load, Const, IndexValue, Compute, Reduce, Scan, Bounded, Store, Check]


def index_key(e: Any) -> int | tuple[frozenset[tuple], int]:
    """A hashable stand-in for an index expression whose equality is structural; comparing Dims themselves may guard or
    raise."""
    return e if type(e) is int else (frozenset(e.terms.items()), e.const)


def reads(stmt: object) -> tuple:
    """The names of the values that a statement uses directly; those inside an index expression are in
    ``index_symbols``."""
    if isinstance(stmt, Compute):
        return stmt.args
    if isinstance(stmt, (Reduce, Scan)):
        return (stmt.arg,)
    if isinstance(stmt, Load):
        return () if stmt.mask is None else (stmt.mask,)
    if isinstance(stmt, Store):
        return (stmt.value,) if stmt.mask is None else (stmt.value, stmt.mask)
    if isinstance(stmt, Bounded):
        return (stmt.value,)
    if isinstance(stmt, Check):
        return (stmt.value,) if stmt.mask is None else (stmt.value, stmt.mask)
    return ()


def index_symbols(stmt: object) -> frozenset:
    """The names in a statement's index expression: axes, sizes and integer values."""
    e = expression_of(stmt)
    return frozenset() if e is None else frozenset(dims.free_symbols(e))


def expression_of(stmt: object) -> IntExpr | None:
    """The expression over axes and sizes in a statement: an index, or the extent of a bounded value; None where there
    is none."""
    if isinstance(stmt, (Load, Store)):
        return stmt.index
    if isinstance(stmt, (Bounded, Check)):
        return stmt.extent
    return stmt.expr if isinstance(stmt, IndexValue) else None


@dataclass(frozen=True)
class Kernel:
    """A loop kernel. ``axes``: the parallel axes, outermost first, the innermost being the fastest-varying of the main
    store; ``raxes``: the reduction axes, outermost first; ``sizes``: the size symbols, passed as int64 in this order;
    ``buffers``: the pointer arguments."""

    name: str
    axes: tuple
    raxes: tuple
    buffers: tuple
    sizes: tuple
    body: tuple
    device: str = "cpu"

    @functools.cached_property
    def buffer_of(self) -> dict:
        return {b.name: b for b in self.buffers}

    @functools.cached_property
    def dtypes(self) -> dict:
        """Value name -> dtype."""
        out = {}
        for s in self.body:
            if isinstance(s, Load):
                out[s.dst] = self.buffer_of[s.buffer].dtype
            elif not isinstance(s, (Store, Check)):
                out[s.dst] = s.dtype
        return out

    @functools.cached_property
    def element_values(self) -> frozenset:
        """The names of the values that vary along a reduction axis."""
        raxes = {a.name for a in self.raxes}
        found = set()
        for s in self.body:
            if isinstance(s, (Store, Check, Reduce)):
                continue
            if (isinstance(s, Scan) or any(r in found for r in reads(s))
                or any(n in raxes or n in found for n in index_symbols(s))):
                found.add(s.dst)
        return frozenset(found)

    def is_element(self, stmt: Compute | Const | Load | Store | Check) -> bool:
        """Whether a statement runs once per element (it uses a reduction axis or an element-level value) or once per
        row."""
        if isinstance(stmt, (Store, Check)):
            raxes = {a.name for a in self.raxes}
            return (any(r in self.element_values for r in reads(stmt))
                    or any(n in raxes or n in self.element_values for n in index_symbols(stmt)))
        return stmt.dst in self.element_values

    def text(self, name: Optional[str] = None) -> str:
        """The kernel in readable form, one statement per line."""
        return _text(self, name or self.name, {})

    @functools.cached_property
    def key(self) -> str:
        """A hash of the structure, equal for kernels that differ only in names: the identity under which a kernel is
        compiled."""
        names: dict[str, str] = {}
        for prefix, group in (("p", self.axes), ("r", self.raxes), ("b", self.buffers)):
            names.update((x.name, f"{prefix}{i}") for i, x in enumerate(group))
        names.update((s, f"n{i}") for i, s in enumerate(self.sizes))
        names.update((s.dst, f"v{i}") for i, s in enumerate(self.body) if not isinstance(s, (Store, Check)))
        facts = []  # what is known of a size symbol may be used by an emitter
        if self.sizes:
            known = _size_facts(self)
            facts = [repr(known.get(s)) for s in self.sizes]
        return hashlib.sha256("\n".join([_text(self, "k", names), *facts]).encode()).hexdigest()[:24]


def _size_facts(kernel: Kernel) -> dict:
    """Size symbol -> (known divisor, bounds), as they stand in the kernel's expressions."""
    found, wanted = {}, set(kernel.sizes)
    stack = [a.extent for a in kernel.axes + kernel.raxes]
    stack += [e for e in map(expression_of, kernel.body) if e is not None]
    while stack:
        e = stack.pop()
        if type(e) is int:
            continue
        for mono in e.terms:
            for atom in mono:
                if atom.kind != "sym":
                    stack += [atom.a, atom.b]
                elif atom.name in wanted and atom.name not in found:
                    found[atom.name] = (atom.multiple, *atom.bounds)
    return found


def _text(kernel: Kernel, title: str, names: dict) -> str:
    def n(x: str) -> str:
        return names.get(x, x)

    def e(x: IntExpr) -> str:
        return str(x) if type(x) is int else render(x, style="py", names=names)

    def d(dtype: torch.dtype) -> str:
        return str(dtype).removeprefix("torch.")

    def where(mask: str | None, other: float | int | None = None) -> str:
        if mask is None:
            return ""
        return f" if {n(mask)}" + ("" if other is None else f" else {other!r}")

    lines = [f"kernel {title} on {kernel.device} sizes({', '.join(map(n, kernel.sizes))})"]
    lines += [f"  for {n(a.name)} in {e(a.extent)} ({a.kind})" for a in kernel.axes + kernel.raxes]
    lines += [f"  {b.role} {n(b.name)}: {d(b.dtype)}" for b in kernel.buffers]
    for s in kernel.body:
        if isinstance(s, Load):
            line = f"{n(s.dst)} = {n(s.buffer)}[{e(s.index)}]{where(s.mask, s.other)}"
        elif isinstance(s, Const):
            line = f"{n(s.dst)} = {s.value!r}: {d(s.dtype)}"
        elif isinstance(s, IndexValue):
            line = f"{n(s.dst)} = index({e(s.expr)}): {d(s.dtype)}"
        elif isinstance(s, Compute):
            line = f"{n(s.dst)} = {s.op}({', '.join(map(n, s.args))}): {d(s.dtype)}"
        elif isinstance(s, Reduce):
            line = f"{n(s.dst)} = {'precise_' if s.precise else ''}reduce_{s.op}({n(s.arg)}): {d(s.dtype)}"
        elif isinstance(s, Scan):
            line = f"{n(s.dst)} = scan_{s.op}({n(s.arg)}): {d(s.dtype)}"
        elif isinstance(s, Bounded):
            line = f"{n(s.dst)} = {n(s.value)} within {e(s.extent)}"
        elif isinstance(s, Store):
            line = f"{n(s.buffer)}[{e(s.index)}] = {n(s.value)}{where(s.mask)}"
        else:
            line = f"check {n(s.value)} within {e(s.extent)} else {n(s.buffer)}[0] = {s.code}{where(s.mask)}"
        lines.append("    " + line)
    return "\n".join(lines)


def rename(kernel: Kernel, name: str) -> Kernel:
    """The same kernel under another name."""
    return dataclasses.replace(kernel, name=name)


class VerifyError(AssertionError):
    """A kernel breaks a rule of the language; the message has the rule and the kernel's text."""


def verify(kernel: Kernel) -> Kernel:
    """Check SSA form, names, dtypes and levels; return the kernel. Raises VerifyError."""

    def need(condition: bool, rule: str) -> None:
        if not condition:
            raise VerifyError(f"{rule}\n{kernel.text()}")

    axes = [a.name for a in kernel.axes + kernel.raxes]
    names = axes + list(kernel.sizes) + [b.name for b in kernel.buffers]
    need(len(set(names)) == len(names), "axis, size and buffer names are distinct")
    need(all(a.kind == "p" for a in kernel.axes) and all(a.kind == "r" for a in kernel.raxes),
         "axes are p and raxes are r")
    need(devices.of_type(kernel.device).emitter is not None, "there is an emitter for the device")
    for a in kernel.axes + kernel.raxes:
        need(set(dims.free_symbols(a.extent)) <= set(kernel.sizes), f"the extent of {a.name} is over sizes")
    taken, integers = set(names), set(axes) | set(kernel.sizes)
    dtype: dict = {}
    raxes = {a.name for a in kernel.raxes}
    for s in kernel.body:
        for r in reads(s):
            need(r in dtype, f"{r} is defined before its use")
        need(index_symbols(s) <= integers, f"unknown names in an index: {sorted(index_symbols(s) - integers)}")
        if isinstance(s, (Load, Store, Check)):
            need(s.buffer in kernel.buffer_of, f"buffer {s.buffer} is declared")
            role = kernel.buffer_of[s.buffer].role
            need(role in {Load: ("in", "inout"), Store: ("out", "inout"), Check: ("error",)}[type(s)],
                 f"{s.buffer} has the role {role}")
            need(s.mask is None or dtype[s.mask] is torch.bool, "a mask is bool")
        if isinstance(s, Store):
            need(dtype[s.value] is kernel.buffer_of[s.buffer].dtype, f"the value stored to {s.buffer} has its dtype")
            if kernel.is_element(s):
                static = ({a.name for a in kernel.raxes if a.extent != 1}
                          if all(type(a.extent) is int for a in kernel.raxes) else set())
                need(static <= index_symbols(s), "an element-level store is indexed by every reduction axis")
        elif isinstance(s, Check):
            need(dtype[s.value] is torch.int64 and s.code != 0, "a check has an int64 value and a code")
        else:
            need(s.dst not in taken, f"{s.dst} is assigned once")
            taken.add(s.dst)
            dtype[s.dst] = kernel.dtypes[s.dst]
            if not dtype[s.dst].is_floating_point and not dtype[s.dst].is_complex and dtype[s.dst] is not torch.bool:
                integers.add(s.dst)
        if isinstance(s, Compute):
            need(s.op in POINTWISE and len(s.args) == info(s.op).arity,
                 f"{s.op} is a pointwise prim with {len(s.args)} arguments")
            result = info(s.op).result
            if s.op != "cast":
                need(s.dtype not in HALF and all(dtype[a] not in HALF for a in s.args),
                     f"{s.op} is not computed in a half type")
            if result is not None:
                need(s.dtype is result, f"{s.op} gives {result}")
            if s.op == "where":
                need(dtype[s.args[0]] is torch.bool and dtype[s.args[1]] is dtype[s.args[2]] is s.dtype,
                     "where takes bool and two of its dtype")
            elif s.op == "fma":
                need(s.dtype.is_floating_point and all(dtype[a] is s.dtype for a in s.args),
                     "the arguments of fma have its dtype")
            elif len(s.args) == 2 and result is not None:
                need(dtype[s.args[0]] is dtype[s.args[1]], f"the arguments of {s.op} have one dtype")
            elif len(s.args) == 2 and not info(s.op).of_words:
                need(all(dtype[a] is s.dtype for a in s.args), f"the arguments of {s.op} have its dtype")
        if isinstance(s, IndexValue):
            need(s.dst in integers, "an index value is an integer")
        if isinstance(s, Bounded):
            need(dtype[s.value] is torch.int64, "a bounded value is an int64")
        if isinstance(s, Reduce):
            need(bool(kernel.raxes) and s.op in REDUCE_OPS, f"{s.op} is a reduction, in a kernel with reduction axes")
            unrounded = s.op == "sum" and dtype[s.arg] is torch.float32 and s.dtype is torch.float64
            need(s.dtype is torch.int64 if s.op.startswith("arg") else dtype[s.arg] is s.dtype or unrounded,
                 f"the dtype of {s.op}")
            need(dtype[s.arg] not in HALF, "no reduction in a half type")
            need(s.op not in ("any", "all") or s.dtype is torch.bool, "any and all reduce bools")
        if isinstance(s, Scan):
            need(len(raxes) == 1 and s.op in SCAN_OPS, "a scan runs along the only reduction axis")
            need(dtype[s.arg] is s.dtype and s.dtype not in HALF, "a scan keeps its dtype, no half type")
    return verify_addresses(kernel)


def verify_addresses(kernel: Kernel) -> Kernel:
    """Check that no address depends on data but through a bounded value that is also checked, and that nothing is read
    where there may be nothing to read; return the kernel. This is run on every kernel that is lowered. Raises
    VerifyError."""
    plain = {a.name for a in kernel.axes + kernel.raxes} | set(kernel.sizes)
    bounded, checked = {}, set()
    for s in kernel.body:
        if isinstance(s, Bounded):
            bounded[s.dst] = s
        elif isinstance(s, Check):
            checked.add((s.value, index_key(s.extent)))
        elif isinstance(s, (Load, Store)):
            for name in index_symbols(s) - plain:
                found = bounded.get(name)
                if found is None:
                    raise VerifyError(f"{name} is in an index and not bounded\n{kernel.text()}")
                if s.mask is None and not dims.nonnegative(found.extent - 1):
                    raise VerifyError(f"an access at {name}, which is within {found.extent}, needs a mask: that may be "
                                      f"nothing\n{kernel.text()}")
    for s in bounded.values():
        if (s.value, index_key(s.extent)) not in checked:
            raise VerifyError(f"{s.dst} is bounded, and {s.value} is not checked\n{kernel.text()}")
    return kernel


class KernelBuilder:
    """Builds a kernel's body statement by statement; equal pure statements share one value.

    >>> b = KernelBuilder("cpu")
    >>> i = b.axis(8); x = b.buffer(torch.float32, "in"); y = b.buffer(torch.float32, "out")
    >>> b.store(y, i, b.compute("neg", b.load(x, i), dtype=torch.float32))
    >>> kernel = b.finish("k")
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.axes: list = []
        self.raxes: list = []
        self.buffers: list = []
        self.body: list = []
        self._values: dict = {}
        self._checks: set = set()
        self.unsure: set = set()  # bounded values that an access needs a mask for, as there may be nothing to read
        self.dtype: dict = {}
        self._buffer_dtype: dict = {}

    def axis(self, extent: IntExpr, kind: str = "p") -> Dim:
        """Append a loop (inside the earlier ones of its kind) and return its index expression."""
        group = self.axes if kind == "p" else self.raxes
        axis = Axis(f"{kind}{len(group)}", extent, kind)
        group.append(axis)
        return axis.sym

    def buffer(self, dtype: torch.dtype, role: str = "in", name: Optional[str] = None) -> str:
        """Declare a pointer argument and return its name."""
        name = name or f"b{len(self.buffers)}"
        self.buffers.append(Buffer(name, dtype, role))
        self._buffer_dtype[name] = dtype
        return name

    def _value(self, make: Callable, key: tuple, dtype: torch.dtype) -> str:
        name = self._values.get(key)
        if name is None:
            name = self._values[key] = f"v{len(self.dtype)}"
            self.dtype[name] = dtype
            self.body.append(make(name))
        return name

    def load(self, buffer: str, index: IntExpr, mask: str | None = None, other: float | int = 0) -> str:
        return self._value(lambda n: Load(n, buffer, index, mask, other),
                           ("load", buffer, index_key(index), mask, repr(other)), self._buffer_dtype[buffer])

    def const(self, value: float | int, dtype: torch.dtype) -> str:
        return self._value(lambda n: Const(n, value, dtype), ("const", repr(value), dtype), dtype)

    def index(self, expr: IntExpr, dtype: torch.dtype = torch.int64) -> str:
        return self._value(lambda n: IndexValue(n, expr, dtype), ("index", index_key(expr), dtype), dtype)

    def compute(self, op: str, *args: str, dtype: torch.dtype) -> str:
        return self._value(lambda n: Compute(n, op, args, dtype), (op, args, dtype), dtype)

    def cast(self, value: str, dtype: torch.dtype) -> str:
        return value if self.dtype[value] is dtype else self.compute("cast", value, dtype=dtype)

    def reduce(self, op: str, arg: str, dtype: torch.dtype | None = None, precise: bool = False) -> str:
        dtype = dtype or (torch.int64 if op.startswith("arg") else self.dtype[arg])
        return self._value(lambda n: Reduce(n, op, arg, dtype, precise), ("reduce", op, arg, dtype, precise), dtype)

    def scan(self, op: str, arg: str) -> str:
        return self._value(lambda n: Scan(n, op, arg, self.dtype[arg]), ("scan", op, arg), self.dtype[arg])

    def store(self, buffer: str, index: IntExpr, value: str, mask: str | None = None) -> None:
        self.body.append(Store(buffer, index, value, mask))

    def position(self, value: str, extent: IntExpr, error: str, code: int, mask: str | None = None) -> Dim:
        """An int64 value as a term of an index expression. Where it is not in 0 .. extent-1 the term is 0, and, where
        ``mask`` holds, the error buffer ``error`` gets ``code``. Accesses at the term need a mask where ``extent`` may
        be 0."""
        check = (value, index_key(extent), error, code, mask)
        if check not in self._checks:
            self._checks.add(check)
            self.body.append(Check(value, extent, error, code, mask))
        name = self._value(lambda n: Bounded(n, value, extent), ("bounded", value, index_key(extent)), torch.int64)
        if not dims.nonnegative(extent - 1):
            self.unsure.add(name)
        return dims.Sym(name, lo=0, hi=dims.Max(extent, 1) - 1)

    def finish(self, name: str) -> Kernel:
        """The kernel, with its size symbols collected in order of first use."""
        kernel = Kernel(name, tuple(self.axes), tuple(self.raxes), tuple(self.buffers),
                        (), tuple(self.body), self.device)
        known = {a.name for a in kernel.axes + kernel.raxes} | set(self.dtype)
        sizes = {}
        for e in [a.extent for a in kernel.axes + kernel.raxes]:
            sizes.update(dict.fromkeys(sorted(dims.free_symbols(e))))
        for s in kernel.body:
            sizes.update(dict.fromkeys(sorted(index_symbols(s) - known)))
        return dataclasses.replace(kernel, sizes=tuple(sizes))


def absolute_values(kernel: Kernel) -> frozenset:
    """The values that are only ever added to, or taken from, constants of at least 1: their relative error near zero
    does not matter."""
    constants = {s.dst: s.value for s in kernel.body if isinstance(s, Const)}
    good: set = set()
    bad: set = set()
    for s in kernel.body:
        if (isinstance(s, Compute) and info(s.op).linear == prims.IN_ALL
            and any(abs(constants.get(a, 0)) >= 1 for a in s.args)):
            good.update(s.args)
        else:
            bad.update(reads(s))
    return frozenset(good - bad)
