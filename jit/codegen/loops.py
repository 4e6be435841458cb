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
``Bounded``, which brings it into its range first, and a ``Check`` reports it, or through ``Clamped``, for which any
value is good; ``verify_addresses`` holds this for every kernel that is built. Half types never appear in arithmetic:
after a load they are cast to float32, and cast back before a store. All names are C identifiers, and axis, size, value
and buffer names are disjoint.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Optional, Union

import torch

from .. import devices
from ..graph import dims, prims
from ..graph.prim_info import PRIMS, info
from .loop_text import readable, short, size_facts

if TYPE_CHECKING:
    from ..graph.dims import Dim, IntExpr

# Types in which nothing is computed: values are float32 after a load, and rounded before a store.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
HALF = (torch.float16, torch.bfloat16, *FLOAT8)

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
    "error" (one int32 that ``Check`` writes). ``rounded``: what is written of float32 reaches other memory only through
    a half type (see ``approximate``)."""

    name: str
    dtype: torch.dtype
    role: str = "in"
    rounded: bool = False


@dataclass(frozen=True)
class Statement:
    """What everybody asks of a statement. A kind of statement is a class that says where it differs, with a handler in
    the tables of each emitter (``Handlers``)."""

    effect = False  # it writes memory; else it defines the value ``dst``
    loaded = stored = None  # the buffer that it reads or writes at its expression
    prim = None  # the pointwise prim that it computes
    combine: ClassVar[Optional[str]] = None  # how it puts the values of a row together
    reduces = scans = False  # whether one value comes of that, or one per element
    totals = False  # whether it adds up values of a parallel axis
    constant = None  # the number that it is
    limit = None  # what its ``value`` has to be less than
    names: ClassVar[tuple] = ()  # the fields that name values
    indexed = ""  # the field that is an expression over axes and sizes: an index, or the extent of a bounded value

    @property
    def ordered(self) -> bool:
        """Whether the order of a row's elements matters to it."""
        return self.scans or self.combine in ("argmax", "argmin")

    @property
    def accessed(self) -> str | None:
        """The buffer that it reads or writes at its expression."""
        return self.loaded or self.stored

    @functools.cached_property
    def operands(self) -> tuple:
        """The names of the values that it uses directly; those inside its expression are in ``symbols``."""
        return tuple([v for v in [getattr(self, n) for n in self.names] if v is not None])

    @property
    def expression(self) -> IntExpr | None:
        return getattr(self, self.indexed) if self.indexed else None

    @functools.cached_property
    def symbols(self) -> frozenset:
        """The names in its expression: axes, sizes and integer values."""
        return frozenset() if self.expression is None else dims.free_symbols(self.expression)

    @functools.cached_property
    def uses(self) -> tuple:
        """All names that it uses."""
        return (*self.operands, *self.symbols)

    def mapped(self, change: Callable) -> Statement:
        """The statement with ``change`` applied to its expression."""
        old = self.expression
        new = None if old is None else change(old)
        return self if new is old else dataclasses.replace(self, **{self.indexed: new})

    def varies(self, along: frozenset, raxes: frozenset) -> frozenset:
        """The axes along which it varies, when what it uses varies along ``along``."""
        return along

    def dtype_in(self, kernel: Kernel) -> torch.dtype:
        """The dtype of its value."""
        return self.dtype  # type: ignore[attr-defined]

    def line(self, n: Callable, e: Callable) -> str:
        """It as text, with ``n`` for the text of a name and ``e`` for that of an expression."""
        raise NotImplementedError

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        """Say ``need(condition, rule)`` for each rule of this kind; ``dtype`` has the values before it."""


class Value(Statement):
    """A statement whose value ``dst`` is made of what it uses, point by point."""


@dataclass(frozen=True)
class Combined(Statement):
    """A statement whose value is made of all values ``arg`` of a row, with the operator ``op``."""

    dst: str
    op: str
    arg: str
    dtype: torch.dtype

    combine, names = property(attrgetter("op")), ("arg",)


class Effect(Statement):
    """A statement that writes memory."""

    effect, dst = True, None


def _access(s: Load | Store | Total | Update | Check, need: Callable, kernel: Kernel, dtype: dict, *roles: str) -> None:
    need(s.buffer in kernel.buffer_of, f"buffer {s.buffer} is declared")
    need(kernel.buffer_of[s.buffer].role in roles, f"{s.buffer} has the role {kernel.buffer_of[s.buffer].role}")
    need(s.mask is None or dtype[s.mask] is torch.bool, "a mask is bool")


def _where(n: Callable, mask: str | None) -> str:
    return "" if mask is None else f" if {n(mask)}"


@dataclass(frozen=True)
class Load(Value):
    """``dst = buffer[index]`` in the buffer's dtype; where ``mask`` (a bool value) is false nothing is read and dst is
    ``other``."""

    dst: str
    buffer: str
    index: "dims.IntExpr"
    mask: Optional[str] = None
    other: Union[int, float, bool] = 0

    loaded = property(attrgetter("buffer"))
    names, indexed = ("mask",), "index"

    def dtype_in(self, kernel: Kernel) -> torch.dtype:
        return kernel.buffer_of[self.buffer].dtype

    def line(self, n: Callable, e: Callable) -> str:
        other = "" if self.mask is None else f" else {self.other!r}"
        return f"{n(self.dst)} = {n(self.buffer)}[{e(self.index)}]{_where(n, self.mask)}{other}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        _access(self, need, kernel, dtype, "in", "inout")


@dataclass(frozen=True)
class Const(Value):
    """``dst = value`` as ``dtype``."""

    dst: str
    value: Union[int, float, bool]
    dtype: torch.dtype

    constant = property(attrgetter("value"))

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.dst)} = {self.value!r}: {short(self.dtype)}"


@dataclass(frozen=True)
class IndexValue(Value):
    """An index expression as a value of an integer ``dtype``."""

    dst: str
    expr: "dims.IntExpr"
    dtype: torch.dtype

    indexed = "expr"

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.dst)} = index({e(self.expr)}): {short(self.dtype)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        need(is_integer(self.dtype), "an index value is an integer")


@dataclass(frozen=True)
class Given(Value):
    """``dst`` is what the kernel's layout makes for number ``number``, at the place ``expr``, which names the axes
    along which it varies."""

    dst: str
    number: int
    expr: "dims.IntExpr"
    dtype: torch.dtype

    indexed = "expr"

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.dst)} = given_{self.number}[{e(self.expr)}]: {short(self.dtype)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        need(kernel.layout is not None, "a layout gives it")


@dataclass(frozen=True)
class Compute(Value):
    """``dst = op(*args)``; ``op`` is the name of a pointwise prim. ``dtype`` is the type of dst; ``cast`` converts and
    rounds to it."""

    dst: str
    op: str
    args: tuple
    dtype: torch.dtype

    prim, operands = property(attrgetter("op")), property(attrgetter("args"))

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.dst)} = {self.op}({', '.join(map(n, self.args))}): {short(self.dtype)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        op, kinds = self.op, [dtype[a] for a in self.args]
        need(op in POINTWISE and len(kinds) == info(op).arity, f"{op} is a pointwise prim with {len(kinds)} arguments")
        result = info(op).result
        if op != "cast":
            need(not {self.dtype, *kinds} & set(HALF), f"{op} is not computed in a half type")
        if result is not None:
            need(self.dtype is result, f"{op} gives {result}")
        if op == "where":
            need(kinds[0] is torch.bool and kinds[1] is kinds[2] is self.dtype,
                 "where takes bool and two of its dtype")
        elif op == "fma":
            need(self.dtype.is_floating_point and all(k is self.dtype for k in kinds),
                 "the arguments of fma have its dtype")
        elif len(kinds) == 2 and result is not None:
            need(kinds[0] is kinds[1], f"the arguments of {op} have one dtype")
        elif len(kinds) == 2 and not info(op).of_words:
            need(all(k is self.dtype for k in kinds), f"the arguments of {op} have its dtype")


@dataclass(frozen=True)
class Reduce(Combined):
    """``dst`` = ``arg`` combined over all reduction axes; ``arg`` has dst's dtype, except for argmax and argmin, which
    give the int64 position of the first extreme in row-major order of the reduction axes (a NaN is extreme). max and
    min propagate NaN. A sum of float32 values may also be given in float64, before it is rounded. ``precise``: such a
    sum adds in float64 from the first value on."""

    precise: bool = False

    reduces = True

    def varies(self, along: frozenset, raxes: frozenset) -> frozenset:
        return along - raxes

    def line(self, n: Callable, e: Callable) -> str:
        precise = "precise_" if self.precise else ""
        return f"{n(self.dst)} = {precise}reduce_{self.op}({n(self.arg)}): {short(self.dtype)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        op, of = self.op, dtype[self.arg]
        need(bool(kernel.raxes) and op in REDUCE_OPS, f"{op} is a reduction, in a kernel with reduction axes")
        unrounded = op == "sum" and of is torch.float32 and self.dtype is torch.float64
        need(self.dtype is torch.int64 if self.ordered else of is self.dtype or unrounded, f"the dtype of {op}")
        need(of not in HALF, "no reduction in a half type")
        need(op not in ("any", "all") or self.dtype is torch.bool, "any and all reduce bools")


@dataclass(frozen=True)
class Scan(Combined):
    """Inclusive running ``op`` of ``arg`` along the only reduction axis. argmax and argmin give the int64 position of
    the last of equal extremes; NaN is extreme. ``sort``: all values of the row, in ascending order, of which only the
    first ``upto`` matter (0: all)."""

    upto: int = 0

    scans = True

    def varies(self, along: frozenset, raxes: frozenset) -> frozenset:
        return along | raxes

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.dst)} = scan_{self.op}({n(self.arg)}): {short(self.dtype)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        need(len(kernel.raxes) == 1 and self.op in SCAN_OPS, "a scan runs along the only reduction axis")
        positions = self.op.startswith("arg") and self.dtype is torch.int64
        need((positions or dtype[self.arg] is self.dtype) and dtype[self.arg] not in HALF,
             "a scan keeps its dtype, no half type")


@dataclass(frozen=True)
class Bounded(Value):
    """``dst = value`` where ``0 <= value < extent``, and 0 elsewhere; both int64. The only values that an index
    expression may name."""

    dst: str
    value: str
    extent: "dims.IntExpr"

    dtype, limit = torch.int64, property(attrgetter("extent"))
    names, indexed = ("value",), "extent"
    checked = True  # a Check reports what is out of range

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.dst)} = {n(self.value)} within {e(self.extent)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        need(dtype[self.value] is torch.int64, "a bounded value is an int64")


@dataclass(frozen=True)
class Clamped(Value):
    """``dst`` is the place in 0 .. ``extent`` - 1 that is nearest to ``value``; both of ``dtype``, int32 or int64. An
    index expression may name it: any value is good."""

    dst: str
    value: str
    extent: "dims.IntExpr"
    dtype: torch.dtype

    limit = property(attrgetter("extent"))
    names, indexed = ("value",), "extent"
    checked = False

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.dst)} = {n(self.value)} clamped to {e(self.extent)}: {short(self.dtype)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        need(self.dtype in (torch.int32, torch.int64) and dtype[self.value] is self.dtype,
             "a clamped value is an int32 or an int64")


@dataclass(frozen=True)
class Store(Effect):
    """``buffer[index] = value`` where ``mask`` holds. A row-level store is done once per row, an element-level one per
    element."""

    buffer: str
    index: "dims.IntExpr"
    value: str
    mask: Optional[str] = None

    stored = property(attrgetter("buffer"))
    names, indexed = ("value", "mask"), "index"

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.buffer)}[{e(self.index)}] = {n(self.value)}{_where(n, self.mask)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        _access(self, need, kernel, dtype, "out", "inout")
        need(dtype[self.value] is kernel.buffer_of[self.buffer].dtype,
             f"the value stored to {self.buffer} has its dtype")
        if kernel.is_element(self) and all(type(a.extent) is int for a in kernel.raxes):
            need({a.name for a in kernel.raxes if a.extent != 1} <= self.symbols,
                 "an element-level store is indexed by every reduction axis")


@dataclass(frozen=True)
class Total(Effect):
    """``buffer[index]`` = the sum of ``value`` over the parallel axes that are not in ``index``: the sums of columns
    beside the results of rows. The kernel has two parallel axes, the second of which, inside, is summed."""

    buffer: str
    index: "dims.IntExpr"
    value: str

    stored = property(attrgetter("buffer"))
    names, indexed, totals, mask = ("value",), "index", True, None

    def line(self, n: Callable, e: Callable) -> str:
        return f"{n(self.buffer)}[{e(self.index)}] += {n(self.value)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        _access(self, need, kernel, dtype, "out")
        need(dtype[self.value] is torch.float32 is kernel.buffer_of[self.buffer].dtype, "totals are float32")
        need(len(kernel.axes) == 2 and {a.name for a in (kernel.axes[0], *kernel.raxes) if a.extent != 1}
             <= self.symbols and kernel.axes[1].name not in self.symbols, "a total is over the second parallel axis")


@dataclass(frozen=True)
class Update(Effect):
    """``buffer[index] = value`` with "set", ``+= value`` with "sum", or the larger or smaller of both with "max" and
    "min", of integers, for each iteration, in no order, at places that data may decide and several iterations may
    share. All but "set" are atomic; of several values that are set any one stays."""

    buffer: str
    index: "dims.IntExpr"
    value: str
    op: str
    mask: Optional[str] = None

    stored = property(attrgetter("buffer"))
    names, indexed = ("value", "mask"), "index"

    def line(self, n: Callable, e: Callable) -> str:
        return f"{self.op} {n(self.buffer)}[{e(self.index)}] with {n(self.value)}{_where(n, self.mask)}"

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        _access(self, need, kernel, dtype, "out", "inout")
        extreme = self.op in ("max", "min") and dtype[self.value] in (torch.int32, torch.int64)
        need(self.op in ("set", "sum") or extreme, "an update sets or adds, or takes the larger or smaller integer")
        need(not kernel.raxes, "an update is in a kernel without reductions")
        need(dtype[self.value] is kernel.buffer_of[self.buffer].dtype, f"the value put to {self.buffer} has its dtype")


@dataclass(frozen=True)
class Check(Effect):
    """Where not ``0 <= value < extent``, and ``mask`` holds if given: write ``code`` (not 0) to element 0 of the error
    buffer, or, for a negative code on a GPU, stop the kernel."""

    value: str
    extent: "dims.IntExpr"
    buffer: str
    code: int
    mask: Optional[str] = None

    limit = property(attrgetter("extent"))
    names, indexed = ("value", "mask"), "extent"

    def line(self, n: Callable, e: Callable) -> str:
        return (f"check {n(self.value)} within {e(self.extent)} else {n(self.buffer)}[0] = {self.code}"
                f"{_where(n, self.mask)}")

    def verify(self, need: Callable, kernel: Kernel, dtype: dict) -> None:
        _access(self, need, kernel, dtype, "error")
        need(dtype[self.value] is torch.int64 and self.code != 0, "a check has an int64 value and a code")


def index_key(e: Any) -> int | tuple[frozenset[tuple], int]:
    """A hashable stand-in for an index expression whose equality is structural; comparing Dims themselves may guard or
    raise."""
    return e if type(e) is int else (frozenset(e.terms.items()), e.const)


def substituted(body: Iterable[Statement], values: dict) -> tuple:
    """The statements with symbols of their expressions replaced by expressions, given by name."""
    return tuple([s.mapped(lambda e: dims.subst(e, values)) for s in body])


def is_integer(dtype: torch.dtype) -> bool:
    """Whether it is an integer type (bool is none)."""
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


@dataclass(frozen=True)
class Kernel:
    """A loop kernel. ``axes``: the parallel axes, outermost first, the innermost being the fastest-varying of the main
    store; ``raxes``: the reduction axes, outermost first; ``sizes``: the size symbols, passed as int64 in this order;
    ``buffers``: the pointer arguments. ``layout``: a template's way of laying it out (see ``template.Layout``), where
    that is not left to the emitter."""

    name: str
    axes: tuple
    raxes: tuple
    buffers: tuple
    sizes: tuple
    body: tuple
    device: str = "cpu"
    layout: Any = None

    @functools.cached_property
    def buffer_of(self) -> dict:
        return {b.name: b for b in self.buffers}

    @functools.cached_property
    def dtypes(self) -> dict:
        """Value name -> dtype."""
        return {s.dst: s.dtype_in(self) for s in self.body if not s.effect}

    @functools.cached_property
    def definition(self) -> dict:
        """Value name -> the statement that defines it."""
        return {s.dst: s for s in self.body if not s.effect}

    @functools.cached_property
    def reduced(self) -> frozenset:
        """The names of the reduction axes."""
        return frozenset([a.name for a in self.raxes])

    @functools.cached_property
    def varies(self) -> dict:
        """Name of an axis or a value -> the names of the axes along which it varies."""
        found = {a.name: frozenset((a.name,)) for a in self.axes + self.raxes}
        for s in self.body:
            if not s.effect:
                found[s.dst] = self._along(s, found)
        return found

    def _along(self, stmt: Statement, varies: dict) -> frozenset:
        used = [varies[n] for n in stmt.uses if n in varies]
        return stmt.varies(frozenset().union(*used), self.reduced)

    def along(self, stmt: Statement) -> frozenset:
        """The names of the axes along which a statement varies."""
        return self._along(stmt, self.varies)

    @functools.cached_property
    def element_values(self) -> frozenset:
        """The names of the values that vary along a reduction axis."""
        return frozenset([s.dst for s in self.body if not s.effect and not self.varies[s.dst].isdisjoint(self.reduced)])

    def is_element(self, stmt: Statement) -> bool:
        """Whether a statement runs once per element (it uses a reduction axis or an element-level value) or once per
        row."""
        return not self.along(stmt).isdisjoint(self.reduced)

    def text(self, name: Optional[str] = None) -> str:
        """The kernel in readable form, one statement per line."""
        return readable(self, name or self.name, {})

    @functools.cached_property
    def key(self) -> str:
        """A hash of the structure, equal for kernels that differ only in names: the identity under which a kernel is
        compiled."""
        names: dict[str, str] = {}
        for prefix, group in (("p", self.axes), ("r", self.raxes), ("b", self.buffers)):
            names.update((x.name, f"{prefix}{i}") for i, x in enumerate(group))
        names.update((s, f"n{i}") for i, s in enumerate(self.sizes))
        names.update((s.dst, f"v{i}") for i, s in enumerate(self.body) if not s.effect)
        facts = []  # what is known of a size symbol may be used by an emitter
        if self.sizes:
            known = size_facts(self)
            facts = [repr(known.get(s)) for s in self.sizes]
        if self.layout is not None:
            facts.append(repr(self.layout))
        return hashlib.sha256("\n".join([readable(self, "k", names), *facts]).encode()).hexdigest()[:24]


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
    for s in kernel.body:
        for r in s.operands:
            need(r in dtype, f"{r} is defined before its use")
        need(s.symbols <= integers, f"unknown names in an index: {sorted(s.symbols - integers)}")
        s.verify(need, kernel, dtype)
        if not s.effect:
            need(s.dst not in taken, f"{s.dst} is assigned once")
            taken.add(s.dst)
            dtype[s.dst] = s.dtype_in(kernel)
            if is_integer(dtype[s.dst]):
                integers.add(s.dst)
    return verify_addresses(kernel)


def verify_addresses(kernel: Kernel) -> Kernel:
    """Check that no address depends on data but through a bounded value that is also checked, and that nothing is read
    where there may be nothing to read; return the kernel. This is run on every kernel that is lowered. Raises
    VerifyError."""
    plain = {a.name for a in kernel.axes + kernel.raxes} | set(kernel.sizes)
    bounds = [s for s in kernel.body if s.limit is not None]
    bounded = {s.dst: s for s in bounds if not s.effect}
    checked = {(s.value, index_key(s.limit)) for s in bounds if s.effect}
    for s in kernel.body:
        if s.accessed:
            for name in s.symbols - plain:
                found = bounded.get(name)
                if found is None:
                    raise VerifyError(f"{name} is in an index and not bounded\n{kernel.text()}")
                if s.mask is None and not dims.nonnegative(found.extent - 1):
                    raise VerifyError(f"an access at {name}, which is within {found.extent}, needs a mask: that may be "
                                      f"nothing\n{kernel.text()}")
    for s in bounded.values():
        if s.checked and (s.value, index_key(s.extent)) not in checked:
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

    def given(self, number: int, expr: IntExpr, dtype: torch.dtype) -> str:
        return self._value(lambda n: Given(n, number, expr, dtype), ("given", number), dtype)

    def compute(self, op: str, *args: str, dtype: torch.dtype) -> str:
        return self._value(lambda n: Compute(n, op, args, dtype), (op, args, dtype), dtype)

    def cast(self, value: str, dtype: torch.dtype) -> str:
        return value if self.dtype[value] is dtype else self.compute("cast", value, dtype=dtype)

    def reduce(self, op: str, arg: str, dtype: torch.dtype | None = None, precise: bool = False) -> str:
        dtype = dtype or (torch.int64 if op.startswith("arg") else self.dtype[arg])
        return self._value(lambda n: Reduce(n, op, arg, dtype, precise), ("reduce", op, arg, dtype, precise), dtype)

    def scan(self, op: str, arg: str, upto: int = 0) -> str:
        dtype = torch.int64 if op.startswith("arg") else self.dtype[arg]
        return self._value(lambda n: Scan(n, op, arg, dtype, upto), ("scan", op, arg, upto), dtype)

    def store(self, buffer: str, index: IntExpr, value: str, mask: str | None = None) -> None:
        self.body.append(Store(buffer, index, value, mask))

    def total(self, buffer: str, index: IntExpr, value: str) -> None:
        self.body.append(Total(buffer, index, value))

    def update(self, buffer: str, index: IntExpr, value: str, op: str, mask: str | None = None) -> None:
        self.body.append(Update(buffer, index, value, op, mask))

    def position(self, value: str, extent: IntExpr, error: str, code: int, mask: str | None = None) -> Dim:
        """An int64 value as a term of an index expression. Where it is not in 0 .. extent-1 the term is 0, and, where
        ``mask`` holds, the error buffer ``error`` gets ``code``. Accesses at the term need a mask where ``extent`` may
        be 0."""
        check = (value, index_key(extent), error, code, mask)
        if check not in self._checks:
            self._checks.add(check)
            self.body.append(Check(value, extent, error, code, mask))
        name = self._value(lambda n: Bounded(n, value, extent), ("bounded", value, index_key(extent)), torch.int64)
        return self._place(name, extent)

    def clamped(self, value: str, extent: IntExpr) -> Dim:
        """An int32 or int64 value, brought into 0 .. extent-1, as a term of an index expression. Accesses at it need a
        mask where ``extent`` may be 0."""
        dtype = self.dtype[value]
        name = self._value(lambda n: Clamped(n, value, extent, dtype), ("clamped", value, index_key(extent)), dtype)
        return self._place(name, extent)

    def _place(self, name: str, extent: IntExpr) -> Dim:
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
            sizes.update(dict.fromkeys(sorted(s.symbols - known)))
        return dataclasses.replace(kernel, sizes=tuple(sizes))
