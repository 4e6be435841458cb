"""Loop kernel -> Triton source text.

The text is a module with one function, ``kernel``-like in name, whose arguments are the kernel's buffers and then its
sizes. Block sizes are literals in it. Names are structural (``b0`` buffer, ``n0`` size, ``v0`` value), so equal kernels
of different layers give equal text.

Shapes. A dimension with a block of more than one point is a dimension of the tensors in the text, in the order of the
tiling; ``r`` always is. A value that does not vary along a dimension has size 1 there, and one that varies along none
is a scalar. With one row per program, row-level values are scalars and element-level ones one-dimensional.

Reductions. On chip, the body is emitted in its order; in a loop, in passes over the row (``passes.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ... import devices
from ...errors import Unsupported
from ...graph import dims
from .. import kernel_names, loops
from ..absolute import absolute_values
from ..approximate import bfloat16_values, fast_values, fractions, rounded_values
from ..comparisons import below_zero
from ..handlers import Handlers
from . import analysis, heuristics, ops, scans, types
from . import halves  # noqa: F401  (it says which functions are cheaper for halves)
from .analysis import VECTOR
from .passes import Passes, limit, neutral
from .tiling import INT32_MAX, Tiling, tile

if TYPE_CHECKING:
    from ...graph.dims import Atom, Dim, IntExpr
    from ..loops import Bounded, Check, Clamped, Compute, Const, IndexValue, Load, Reduce, Scan, Statement, Store
    from .heuristics import Config

_UPDATES = {"sum": "add", "max": "max", "min": "min"}
_COMBINE = {
    "max": "tl.maximum(a, b{nan})",
    "min": "tl.minimum(a, b{nan})",
    "prod": "a * b",
}

PAIRS = 80  # the capability from which one instruction rounds two values to bfloat16
# What gives one of its operands, or its negative.
KEPT = ("where", "neg", "abs", "maximum", "minimum", "fmax", "fmin", "relu")


@dataclass(frozen=True)
class Source:
    """Emitted text and what is needed to build and launch it.

    Attributes:
        text: a Python module with one Triton function called ``function``.
        arguments: for each buffer, in ``kernel.buffers`` order, its pointer type, then "i64" for each size, in
            ``kernel.sizes`` order.
        divisible: positions of the arguments that are assumed to be divisible by 16 (for a pointer, its address).
        grid: the number of programs, an expression over the sizes; 0 when there is nothing to do.
        warps, stages: compile options.
        scratch: bytes of scratch memory for each program, whose address is a pointer behind the arguments.
        fused: products that are added to something are not rounded in between.
        registers: how many a thread may use, so that the compiler does not do with fewer by reading later what it has
            room for; 0 to leave that to it.
    """

    text: str
    function: str
    arguments: tuple
    divisible: tuple
    grid: "dims.IntExpr"
    warps: int
    stages: int
    scratch: int = 0
    fused: bool = False
    registers: int = 0


def emit(kernel: loops.Kernel, config: heuristics.Config | None = None, *, aligned: Collection[str] | None = None,
         interpret: bool = False) -> Source:
    """Triton text for a kernel.

    Args:
        config: block sizes; the heuristic's choice when None, unless the kernel has a layout of its own.
        aligned: names of the buffers whose address is a multiple of 16 bytes; all of them when None.
        interpret: write text for Triton's interpreter (no libdevice).
    Raises:
        Unsupported: a dtype or prim that has no GPU form.
    """
    if kernel.layout is not None and config is None:
        return kernel.layout.emit(kernel, aligned, interpret)
    tiling = tile(kernel)
    return emit_tiled(tiling, config or heuristics.choose(tiling), aligned, interpret)


def emit_tiled(tiling: Tiling, config: heuristics.Config, aligned: Collection[str] | None, interpret: bool) -> Source:
    """As ``emit``, of a kernel whose tile dimensions are chosen."""
    return EMITTERS[tiling.kind](tiling, config, aligned, interpret).source()


# What is written for each kind of statement, where a block holds the whole row.
statements = Handlers("Triton")


class Emitter:
    packs = False  # bytes are taken four at a time
    walked: tuple = ("r",)  # the dimensions that a program goes through, all of them
    fused, registers = False, 0  # see ``Source``

    def __init__(self, tiling: Tiling, config: Config, aligned: Collection[str] | None, interpret: bool) -> None:
        self.tiling, self.config, self.interpret = tiling, config, interpret
        self.kernel = kernel = tiling.kernel
        self.aligned = {b.name for b in kernel.buffers} if aligned is None else set(aligned)
        self.lines, self.depth, self.read_again = [], 1, frozenset()
        self.helpers, self.libdevice = {}, False
        self.were_bfloat16: dict[str, bool] = {}
        # Dimensions -> the conditions along them under which an index is out of range; None where each is looked at in
        # its place.
        self.bad: dict | None = None
        self.extents = tiling.extents
        self.range_of = {"@" + n: n for n in self.extents}
        self.once = analysis.read_once(kernel)
        self.points = frozenset([n for n, e in self.extents.items() if not (type(e) is int and e == 1)])
        self.block = {n: getattr(config, n, 1) for n in self.extents}
        self.dimensions = self._dimensions()
        self.order = list(self.dimensions)
        if config.parts > 1:  # a block of r has two dimensions: parts, and the piece that the threads share
            assert config.looped, "pieces are combined in a loop"
            self.order = ["part", *self.dimensions]
        self.length = dict(self.block)
        if "r" in self.length:
            self.length.update(part=config.parts, r=self.block["r"] // config.parts)
        self.names = {b.name: f"b{i}" for i, b in enumerate(kernel.buffers)}
        self.names.update((n, f"n{i}") for i, n in enumerate(kernel.sizes))
        self.names.update((n, f"v{i}") for i, n in enumerate(kernel.definition))
        self.names.update(self.range_of)
        # The vectors at a row's ends are read whole, which stays inside an allocation only from aligned addresses.
        whole = self.aligned >= {b.name for b in kernel.buffers if b.role != "error"}
        self.row_start = analysis.odd_row_start(kernel) if config.shift and whole else None
        # Value name -> the dimensions along which it varies.
        self.varies = {n: self._ranges(kernel.varies[n]) for n in kernel.definition}
        self.fast, self.absolute = self._approximate(), absolute_values(kernel)
        self.bfloat16, self.fractions, self.rounded = bfloat16_values(kernel), fractions(kernel), rounded_values(kernel)
        self.wide = self._wide_ranges()
        self.masked = {n for n in self.extents if self._needs_mask(n)}

    # analysis

    def _approximate(self) -> frozenset:
        return fast_values(self.kernel) | analysis.summed_exponentials(self.kernel)

    def _dimensions(self) -> list:
        """The dimensions of the tensors in the text."""
        return [n for n in self.extents if self.block[n] > 1 or n == "r"]

    def _ranges(self, axes: Collection[str]) -> frozenset:
        """The dimensions that are these axes."""
        return frozenset([self.range_of[n] for n in axes])

    def _needs_mask(self, name: str) -> bool:
        extent = self.extents[name]
        if name == "r" and self.row_start is not None:
            return True
        if name == "r" and not self.config.looped:
            return not (type(extent) is int and extent == self.block["r"])
        return not dims.divisible(extent, self.block[name])

    def _wide_ranges(self) -> set:
        """The dimensions whose positions need 64 bits, because an index made of them could pass 2**31."""
        every = set(self.extents)
        if self.config.index_bits:
            return every if self.config.index_bits == 64 else set()
        wide = {n for n, extent in self.extents.items() if not _fits(_bound(extent + self.block[n]))}
        for s in self.kernel.body:
            index = s.expression
            if index is None or type(index) is int:
                continue
            groups = self._terms(index)
            vectors = [part for along, part in groups.items() if along]
            for part in groups.values():
                if not _fits(_reach(part)):
                    wide |= self._ranges_in(part)
            if vectors and not _fits(sum(_reach(v) or 0 for v in vectors)):
                wide = wide.union(*map(self._ranges_in, vectors))
        if not _fits(_bound(dims.product(e for n, e in self.extents.items() if n != "r"))):  # the program number itself
            wide |= every - {"r"}
        return wide

    def _ranges_in(self, e: IntExpr) -> set:
        return {self.range_of[n] for n in dims.free_symbols(e) if n in self.range_of}

    def _terms(self, e: Dim) -> dict:
        """An expression as a sum of parts: set of tile dimensions that are in the tensors -> the part that varies along
        just these."""
        groups = {}
        for mono, c in e.terms.items():
            along = set()
            for atom in mono:
                for n in atom.free:
                    if n in self.range_of:
                        along.add(self.range_of[n])
                    elif n in self.varies:
                        along |= self.varies[n]
            key = frozenset(along & set(self.dimensions))
            groups[key] = groups.get(key, 0) + dims.Dim({mono: c}, 0)
        if e.const:
            groups[frozenset()] = groups.get(frozenset(), 0) + e.const
        return groups

    # text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextlib.contextmanager
    def indented(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def source(self) -> Source:
        self._positions()
        self._statements()
        kernel = self.kernel
        function = kernel_names.of_function(kernel, self.word)
        constant = ": tl.constexpr" if self.interpret else ""  # there, range() over an argument fails with numpy 2.4
        arguments = ", ".join([self.names[b.name] for b in kernel.buffers] + [self.names[n] + constant
                                                                              for n in kernel.sizes])
        head = "import triton\nimport triton.language as tl\n"
        if self.libdevice:
            head += "from triton.language.extra import libdevice\n"
        text = head + "".join(f"\n\n{h}" for h in self.helpers.values())
        text += f"\n\n@triton.jit\ndef {function}({arguments}):\n" + "\n".join(self.lines) + "\n"
        types_ = tuple(types.pointer(b.dtype) for b in kernel.buffers) + ("i64",) * len(kernel.sizes)
        aligned = [i for i, b in enumerate(kernel.buffers) if b.name in self.aligned]
        divisible = [] if self.config.singly or self._ends_inside_vectors() else aligned
        divisible += [len(kernel.buffers) + i for i, n in enumerate(kernel.sizes) if self._size_divisible(n)]
        return Source(text, function, types_, tuple(divisible), self.grid(), self.config.warps, self.config.stages,
                      fused=self.fused, registers=self.registers)

    def _statements(self) -> None:
        if self.config.looped or self.config.recompute:
            Passes(self).emit()
        else:
            self.bad = {}
            for s in self.kernel.body:
                self.statement(s)
            for conditions in self.bad.values():  # at the end, so that no read waits for another one's index
                self.trap(conditions)

    @statements(loops.Total)
    def total(self, s: loops.Total) -> None:
        raise Unsupported("totals in a kernel of another kind", kind="kernel")

    @property
    def word(self) -> str:
        """What kind of kernel it is, in its name."""
        return "row" if self.kernel.raxes else "map"

    def _ends_inside_vectors(self) -> bool:
        """Whether a mask along ``x`` cuts vectors. Triton then takes elements one by one, and should not give each
        thread neighbouring ones, as it does where addresses are known to be aligned: its stores would write parts of a
        sector each."""
        extent = self.extents.get("x")
        return (self.tiling.kind in ("flat", "strip") and "x" in self.masked
                and type(extent) is int and extent > 8 * self.block["x"] and extent % VECTOR != 0)

    def _size_divisible(self, name: str) -> bool:
        for e in (*self.extents.values(), *(s.expression for s in self.kernel.body)):
            if e is not None and type(e) is not int:
                for mono in e.terms:
                    for atom in mono:
                        if atom.kind == "sym" and atom.name == name:
                            return atom.multiple % 16 == 0
        return False

    def grid(self) -> IntExpr:
        return dims.product(dims.ceil_div(e, self.block[n]) for n, e in self.extents.items() if n not in self.walked)

    def _positions(self) -> None:
        """The program's place in each dimension, as ``x``, ``y``, ``z``; ``r`` too unless it is looped over."""
        if self.config.index_bits == 32:
            for n in self.kernel.sizes:
                self.line(f"{self.names[n]} = {self.names[n]}.to(tl.int32)")
        parallel = [n for n in self.extents if n not in self.walked]
        if self.tiling.kind == "shared":  # neighbouring programs have neighbouring pixels
            parallel.sort(key="zyx".index)
        rest = "tl.program_id(0)" + (".to(tl.int64)" if self.wide - {"r"} else "")
        for n in reversed(parallel):
            place = rest
            if n != parallel[0]:
                count = self.text(dims.ceil_div(self.extents[n], self.block[n]))
                self.line(f"{n}_rest = {rest}")
                self.line(f"{n}_outer = {n}_rest // {count}")
                place, rest = f"({n}_rest % {count})", f"{n}_outer"
            self.place(n, place)
            if n in self.masked:
                self.line(f"{n}_in = {n} < {self.text(self.extents[n])}")
        if self.row_start is not None:
            self.line(f"row_start = {self.text(self.row_start)}")
            self.line(f"row_begin = row_start // {VECTOR} * {VECTOR}")
            self.line("shift = row_start - row_begin")
        if "r" in self.extents and not self.config.looped:
            self.r_positions(self._arange("r") + (".to(tl.int64)" if "r" in self.wide else ""))

    def place(self, name: str, text: str) -> None:
        """The positions along a parallel dimension; ``text`` is the number of the block."""
        self.line(f"{name} = {text}"
                  + ("" if self.block[name] == 1 else f" * {self.block[name]} + {self._arange(name)}"))

    def r_positions(self, text: str) -> None:
        """``r`` and its mask. In a shifted row, ``r_at`` counts from the last aligned address before the row,
        ``r_first`` is where an aligned vector begins in the row, ``r_near`` tells the vectors that touch the row,
        ``r_whole`` those that lie inside it."""
        extent = self.text(self.extents["r"])
        if self.row_start is None:
            self.line(f"r = {text}")
            if "r" in self.masked:
                self.line(f"r_in = r < {extent}")
            return
        self.line(f"r_at = {text}")
        self.line("r = r_at - shift")
        self.line(f"r_in = (r >= 0) & (r < {extent})")
        self.line(f"r_first = r_at // {VECTOR} * {VECTOR} - shift")
        self.line(f"r_near = (r_first > -{VECTOR}) & (r_first < {extent})")
        if analysis.writes_elements(self.kernel):
            self.line(f"r_whole = (r_first >= 0) & (r_first <= {self.text(self.extents['r'] - VECTOR)})")

    def shifted(self, s: Load | Store) -> bool:
        """Whether an access walks along a row that begins at ``row_start``, give or take whole vectors."""
        return self.row_start is not None and s.mask is None and analysis.along_row(s.index, self.row_start)

    def _arange(self, name: str) -> str:
        """The positions inside a block, shaped for broadcasting."""
        text = self.arange_of(name, self.length[name])
        if name == "r" and self.config.parts > 1:
            text = f"{self.arange_of('part', self.config.parts)} * {self.length['r']} + {text}"
        return text

    def arange_of(self, name: str, length: int) -> str:
        """So many numbers from 0 on, along a dimension."""
        text = f"tl.arange(0, {length})"
        return (text if len(self.order) == 1
                else f"{text}[{', '.join(':' if k == name else 'None' for k in self.order)}]")

    def text(self, e: IntExpr) -> str:
        """An index expression as Triton text, in brackets where it is a sum or product."""
        if type(e) is int:
            return str(e)
        parts = [self._monomial(mono, c) for mono, c in e.terms.items()]
        if e.const:
            parts.append(str(e.const))
        text = " + ".join(parts).replace("+ -", "- ")
        return text if len(parts) == 1 and " " not in text else f"({text})"

    def _monomial(self, mono: tuple[Atom, ...], c: int) -> str:
        text = " * ".join(self._atom(a) for a in mono)
        if c == 1:
            return text
        return f"-{text}" if c == -1 and len(mono) == 1 else f"{c} * {text}"

    def _atom(self, atom: Atom) -> str:
        if atom.kind == "sym":
            return self.names[atom.name]
        a, b = self.text(atom.a), self.text(atom.b)
        if atom.kind in ("max", "min"):
            return f"tl.{atom.kind}imum({a}, {b})"
        lo = dims.bounds(atom.a)[0]
        if lo is None or lo < 0 and not dims.nonnegative(atom.a):
            return f"{self.helper('_int_floor_div' if atom.kind == '//' else '_int_remainder')}({a}, {b})"
        return f"({a} {atom.kind} {b})"

    def helper(self, name: str) -> str:
        return ops.Context(torch.int32, (), interpret=self.interpret, helpers=self.helpers).helper(name)

    def address(self, buffer: str, index: IntExpr, shifted: bool = False) -> str:
        """The pointer expression of an access: what is scalar is added to the pointer first, so that the rest stays
        narrow."""
        base = self.names[buffer]
        if shifted:
            rest = analysis.row_part(index) - self.row_start
            return f"{base} + row_begin" + ("" if type(rest) is int and rest == 0
                                            else f" + {self.text(rest)}") + " + r_at"
        if type(index) is int:
            return base if index == 0 else f"{base} + {index}"
        groups = self._terms(index)
        scalar = groups.pop(frozenset(), 0)
        if type(scalar) is not int or scalar != 0:
            base = f"{base} + {self.text(scalar)}"
        vectors = [self.text(groups[g]) for g in sorted(groups, key=sorted)]
        if not vectors:
            return base
        return f"{base} + {vectors[0]}" if len(vectors) == 1 else f"{base} + ({' + '.join(vectors)})"

    def mask(self, along: frozenset[str], value: str | None = None) -> str | None:
        """The condition under which an access that varies along these dimensions is done."""
        parts = [f"{n}_in" for n in ("z", "y", "x", "r") if n in along and n in self.masked]
        if value is not None:
            parts.append(self.names[value])
        return " & ".join(parts) or None

    # statements

    def statement(self, s: Statement) -> None:
        statements[type(s)](self, s)

    def assign(self, name: str, text: str) -> None:
        self.line(f"{self.names[name]} = {text}")

    @statements(loops.Load)
    def load(self, s: Load) -> None:
        along = self.varies[s.dst]
        shifted = self.shifted(s)
        mask = "r_near" if shifted else self.mask(along, s.mask)
        text = self.address(s.buffer, s.index, shifted) + self._spread_over_mask(s)
        dtype = self.kernel.buffer_of[s.buffer].dtype
        if self._too_few(along, dtype):
            text = f"tl.broadcast_to({text}, {self.shape})"
        if mask:
            text += f", mask={mask}"
            if s.mask is not None:
                other = types.constant if dtype is torch.float64 else types.literal
                text += f", other={other(s.other, dtype)}"
        self.assign(s.dst, f"tl.load({text}{self.eviction(s)})")

    def _too_few(self, along: frozenset, dtype: torch.dtype) -> bool:
        """Whether what is read along a row, for all rows of a block, is less than a vector for each thread. Triton
        would lay it out otherwise than the rows, and carry these over through shared memory, so that it is read for
        each row."""
        return (self.order == ["x", "r"] and along & {"x", "r"} == {"r"} and not self.config.looped
                and self.length["r"] * dtype.itemsize < 16 * 32 * self.config.warps)

    def _spread_over_mask(self, s: Load | Store) -> str:
        """What to add to a pointer so that it has all the dimensions of its mask."""
        if s.mask is None:
            return ""
        along = {self.range_of[n] for n in dims.free_symbols(s.index) if n in self.range_of}
        along = along.union(*(self.varies[n] for n in dims.free_symbols(s.index) if n in self.varies))
        return (f" + {self.names[s.mask]}.to(tl.int32) * 0" if (self.varies[s.mask] - along) & set(self.dimensions)
                else "")

    def steps(self, extent: object, block: int) -> str:
        """What the innermost loop over blocks of a dimension goes through: with loads ahead, or written out."""
        limits, config = f"0, {self.text(extent)}, {block}", self.config
        if config.stages > 1:
            return f"tl.range({limits}, num_stages={config.stages})"
        written_out = config.unrolled and type(extent) is int and extent <= heuristics.UNROLLED * block
        return f"tl.static_range({limits})" if written_out else f"range({limits})"

    def eviction(self, s: Load) -> str:
        """The cache policy of a load: what is read once streams through, unless a later pass over the row reads it
        again; in loops over rows, weights stay."""
        if not self.config.evict:
            return ""
        if s.dst in self.once:
            return f', eviction_policy="evict_{"last" if s.dst in self.read_again else "first"}"'
        stays = self.config.looped and self.tiling.kind == "inner" and "r" in self.varies[s.dst]
        return ', eviction_policy="evict_last"' if stays else ""

    @property
    def written(self) -> str:
        """The cache policy of a store."""
        return ', eviction_policy="evict_first"' if self.config.through else ""

    @statements(loops.Const)
    def const(self, s: Const) -> None:
        self.assign(s.dst, types.constant(s.value, s.dtype))

    @statements(loops.Given)
    def given(self, s: loops.Given) -> None:
        """Its layout has written it."""

    @statements(loops.IndexValue)
    def index_value(self, s: IndexValue) -> None:
        if type(s.expr) is int:
            self.assign(s.dst, types.constant(s.expr, s.dtype))
        else:
            wide = self.text(s.expr)
            lo, hi = dims.bounds(s.expr)
            if lo is None or hi is None or max(-lo, hi) > INT32_MAX:
                for n in sorted(dims.free_symbols(s.expr)):
                    if n in self.range_of and self.range_of[n] not in self.wide:
                        wide = self._widened(s.expr)
                        break
            if self.interpret and not any(n in self.range_of for n in dims.free_symbols(s.expr)):
                wide = f"tl.full([], {wide}, tl.int64)"  # sizes are Python's integers there
            self.assign(s.dst, f"({wide}).to({types.tl_dtype(s.dtype)})" if " " in wide
                        else f"{wide}.to({types.tl_dtype(s.dtype)})")

    def _widened(self, e: Dim) -> str:
        saved = dict(self.names)
        for n in dims.free_symbols(e):
            if n in self.range_of:
                self.names[n] += ".to(tl.int64)"
        text = self.text(e)
        self.names = saved
        return text

    def _compared(self, s: Compute) -> str | None:
        """The comparison of an index with a number, as ``<`` or ``>=`` of the index: of these Triton sees that they
        hold for all elements of a vector or for none, and takes what is under such a condition as vectors. None for
        others."""
        order = below_zero(s.op) if len(s.args) == 2 else None
        if order is None:
            return None
        e = [self._index_of(self.kernel.definition[n]) for n in s.args]
        if None in e or {type(v) is int for v in e} != {True, False}:
            return None
        index, number = (s.args[0], e[1]) if type(e[1]) is int else (s.args[1], e[0])
        below = (order[0] > 0) == (index is s.args[0])
        number += -order[1] if below else order[1] + 1
        return f"{self.names[index]} {'<' if below else '>='} {number}"

    @staticmethod
    def _index_of(s: Statement) -> IntExpr | None:
        """The index, or the whole number, that a value is; None of others."""
        if s.constant is not None:
            return s.constant if type(s.constant) is int else None
        return None if s.prim or s.accessed or s.combine or s.limit is not None else s.expression

    @statements(loops.Compute)
    def compute(self, s: Compute) -> None:
        text = self._compared(s)
        if text is not None:
            self.assign(s.dst, text)
            return
        dtypes = self.kernel.dtypes
        divisor = len(s.args) == 2 and (self.varies[s.args[0]] - self.varies[s.args[1]]) & set(self.dimensions)
        context = ops.Context(s.dtype, tuple(dtypes[a] for a in s.args),
                              s.dst in self.fast, self.interpret, s.dst in self.absolute, bool(divisor),
                              self.packs and bool(self.varies[s.args[0]] & set(self.dimensions)),
                              self._rounds_pairs(s), self.helpers, bfloat16=s.args[0] in self.bfloat16,
                              fraction=s.args[0] in self.fractions, rounded=s.dst in self.rounded)
        text = ops.emit(s.op, context, *(self.names[a] for a in s.args))
        self.libdevice |= context.libdevice
        self.assign(s.dst, text)

    def _rounds_pairs(self, s: Compute) -> bool:
        """Whether a cast to bfloat16 is written as one of pairs: that of a block, which is no sum or product of two
        values that were bfloat16, and none of these, as the compiler has such values in pairs by itself."""
        if s.op != "cast" or s.dtype is not torch.bfloat16 or not self.varies[s.args[0]] & set(self.dimensions):
            return False
        if devices.of_type(self.kernel.device).architecture().capability < PAIRS:
            return False
        made = self.kernel.definition[s.args[0]]
        return not (made.prim in ("add", "sub", "mul") and all(map(self._was_bfloat16, made.operands))
                    or self._was_bfloat16(s.args[0]))

    def _was_bfloat16(self, name: str) -> bool:
        """Whether a value is one of those that were bfloat16, or its negative, or such a number."""
        known = self.were_bfloat16.get(name)
        if known is None:
            made = self.kernel.definition.get(name)  # none for an index
            if made is None or made.prim is None:
                number = None if made is None else made.constant
                known = number is not None and torch.tensor(float(number)).bfloat16().double().item() == float(number)
            elif made.prim == "cast":
                known = self.kernel.dtypes[made.operands[0]] is torch.bfloat16
            else:
                values = made.operands[1:] if made.prim == "where" else made.operands
                known = made.prim in KEPT and all(map(self._was_bfloat16, values))
            self.were_bfloat16[name] = known
        return known

    @statements(loops.Store)
    def store(self, s: Store) -> None:
        along = self._ranges(self.kernel.along(s))
        value = self.names[s.value]
        if self.shifted(s):  # whole vectors, then the few elements at the row's ends
            address = self.address(s.buffer, s.index, True)
            self.line(f"tl.store({address}, {value}, mask=r_whole{self.written})")
            self.line(f"tl.store({address}, {value}, mask=r_in & (r_whole == 0){self.written})")
            return
        mask = self.mask(along, s.mask)
        address = self.address(s.buffer, s.index) + self._spread_over_mask(s)
        self.line(f"tl.store({address}, {value}" + (f", mask={mask}" if mask else "")
                  + (self.written if along >= self.points else "") + ")")

    @statements(loops.Update)
    def update(self, s: loops.Update) -> None:
        """Once for each point of the block, whichever dimensions its address and value vary along."""
        mask = self.mask(frozenset(self.extents), s.mask)
        address, value = self.address(s.buffer, s.index), self.names[s.value]
        if self.order:
            address, value = (f"tl.broadcast_to({text}, {self.shape})" for text in (address, value))
        masked = f", mask={mask}" if mask else ""
        self.line(f"tl.store({address}, {value}{masked})" if s.op == "set"
                  else f'tl.atomic_{_UPDATES[s.op]}({address}, {value}{masked}, sem="relaxed")')

    @statements(loops.Check)
    def check(self, s: Check) -> None:
        mask = self.mask(self._ranges(self.kernel.along(s)), s.mask)
        value, extent = self.names[s.value], self.text(s.extent)
        bad = f"(({value} < 0) | ({value} >= {extent}))" + (f" & {mask}" if mask else "")
        if s.code < 0 and not self.interpret:  # as a failed device-side assertion of eager's kernels does
            if self.bad is None:
                self.trap([bad])
            else:
                self.bad.setdefault(self._ranges(self.kernel.along(s)), []).append(bad)
            return
        self.line(f"tl.store({self.names[s.buffer]} + {value}.to(tl.int32) * 0, {s.code}, mask={bad})")

    def trap(self, conditions: list[str]) -> None:
        """Stop the kernel where one of some conditions holds."""
        trap = "{ .reg .pred bad; setp.ne.s32 bad, $1, 0; @bad trap; mov.u32 $0, $1; }"
        bad = " | ".join(f"({c})" for c in conditions)
        self.line(f'tl.inline_asm_elementwise("{trap}", "=r,r", [({bad}).to(tl.int32)], dtype=tl.int32, '
                  'is_pure=False, pack=1)')

    @statements(loops.Bounded)
    def bounded(self, s: Bounded) -> None:
        value, extent = self.names[s.value], self.text(s.extent)
        self.assign(s.dst, f"tl.where(({value} >= 0) & ({value} < {extent}), {value}, 0)")

    @statements(loops.Clamped)
    def clamped(self, s: Clamped) -> None:
        last = self.text(s.extent - 1)
        self.assign(s.dst, f"tl.maximum(tl.minimum({self.names[s.value]}, {last}), 0)")

    # reductions

    @property
    def shape(self) -> str:
        return f"[{', '.join(str(self.length[n]) for n in self.order)}]"

    @property
    def axis(self) -> int:
        """The position of r in row-wise reductions, in which pieces have been combined already."""
        return self.combined_order.index("r")

    @property
    def combined_order(self) -> list:
        """The dimensions of a block whose pieces have been combined: beside several rows, there is one piece left."""
        return self.order if len(self.dimensions) > 1 else self.dimensions

    def over_pieces(self, text: str) -> str:
        """The sum of a block's pieces."""
        return f"tl.sum({text}, 0{self._keeping(True)})"

    def _keeping(self, pieces: bool) -> str:
        return ", keep_dims=True" if pieces and len(self.dimensions) > 1 else ""

    def expanded(self, text: str) -> str:
        """A reduced value back in the tensors' rank, with size 1 along r."""
        if len(self.dimensions) == 1:
            return text
        return f"{text}[{', '.join('None' if n == 'r' else ':' for n in self.order)}]"

    def full(self, value: str, dtype=None) -> str:
        """A value broadcast to the whole block."""
        if self.varies[value] >= set(self.dimensions):
            return self.names[value]
        return f"tl.broadcast_to({self.names[value]}, {self.shape})"

    @staticmethod
    def neutral(op: str, dtype: torch.dtype) -> str:
        """The value that changes nothing under a combination, as a literal."""
        return neutral(op, dtype)

    def masked_value(self, text: str, neutral: str) -> str:
        return f"tl.where(r_in, {text}, {neutral})" if "r" in self.masked else text

    @statements(loops.Reduce)
    def reduce(self, s: Reduce) -> None:
        """A reduction of a block that holds the whole row."""
        dtype = self.kernel.dtypes[s.arg]
        if s.ordered:
            value, index = (self.masked_value(self.full(s.arg), neutral(s.op[3:], dtype)),
                            "tl.broadcast_to(r, " + self.shape + ")")
            self.assign(s.dst, self._position_of_extreme(s, value, index, dtype))
        else:
            self.assign(s.dst, self.combined(s.op, self.masked_value(self.full(s.arg), neutral(s.op, dtype)), dtype))

    def combined(self, op: str, value: str, dtype: torch.dtype, pieces: bool = False) -> str:
        """The block ``value`` combined along r, in the dtype of the result; along the pieces alone when ``pieces``."""
        axis, keeping = 0 if pieces else self.axis, self._keeping(pieces)
        expand = (lambda text: text) if pieces else self.expanded
        if op in ("any", "all") or op in ("max", "min") and dtype is torch.bool:
            name = "max" if op in ("any", "max") else "min"
            return expand(f"tl.{name}(({value}).to(tl.int32), {axis}{keeping})") + " != 0"
        if op == "sum":
            narrow = loops.is_integer(dtype) and types.bits(dtype) < 32
            return expand(f"tl.sum({value}, {axis}{keeping})") + (f".to({types.tl_dtype(dtype)})" if narrow else "")
        return expand(f"tl.reduce({value}, {axis}, {self.combiner(op, dtype)}{keeping})")

    def combiner(self, op: str, dtype: torch.dtype) -> str:
        name = f"_{op}_{'nan' if dtype.is_floating_point else 'int'}" if op != "prod" else "_prod"
        if dtype is torch.float64 and op != "prod":
            name, better = f"_{op}_f64", ">" if op == "max" else "<"
            body = f"tl.where((a {better} b) | (a != a), a, b)"
        else:
            body = _COMBINE[op].format(nan=", propagate_nan=tl.PropagateNan.ALL" if dtype.is_floating_point else "")
        self.helpers[name] = f"@triton.jit\ndef {name}(a, b):\n    return {body}\n"
        return name

    def _position_of_extreme(self, s: Reduce, value: str, index: str, dtype: torch.dtype) -> str:
        """The smallest index at which the block ``value`` has its extreme."""
        v = self.names[s.dst]
        self.line(f"{v}_value = {value}")
        self.line(f"{v}_best = {self.combined(s.op[3:], f'{v}_value', dtype)}")
        equal = f"{v}_value == {v}_best"
        if dtype.is_floating_point:
            equal = f"({equal}) | ({v}_value != {v}_value)"
        if "r" in self.masked and not self.config.looped:
            equal = f"({equal}) & r_in"
        self.line(f"{v}_index = tl.where({equal}, {index}, {limit(self, 'r')})")
        return self.expanded(f"tl.min({v}_index, {self.axis})") + ".to(tl.int64)"

    @statements(loops.Scan)
    def scan(self, s: Scan) -> None:
        self.assign(s.dst, scans.whole(self, s))


def _reach(e: IntExpr) -> int | None:
    """The largest absolute value of an expression, None if unknown."""
    lo, hi = dims.bounds(e)
    return None if lo is None or hi is None else max(-lo, hi)


def _bound(e: IntExpr) -> int | None:
    return dims.bounds(e)[1]


def _fits(reach: int | None) -> bool:
    return reach is not None and reach <= INT32_MAX


def bound_fits(e: IntExpr) -> bool:
    """Whether an expression is known to stay inside 32 bits."""
    return _fits(_bound(e))


EMITTERS = dict.fromkeys(("flat", "tile", "strip", "shared", "inner", "outer"), Emitter)  # by the kind of a tiling
