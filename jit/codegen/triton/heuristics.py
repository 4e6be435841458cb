"""Which block sizes, how many warps, held on chip or in a loop: a kernel's configuration from its shape.

The figures come from a sweep on an H200 (132 multiprocessors, 4.3 TB/s for a plain copy); the shares reached are in the
functions below. How many programs there should be, and how much a row may hold, follow the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import devices
from ...graph.prims import info
from .. import loops
from ..indexing import size_hint
from . import analysis
from .tiling import LONG_ROW, ROW, Tiling, contiguous_axes

if TYPE_CHECKING:
    from ..loops import Kernel

NARROWEST = 16  # columns of a block of rows that is held on chip


@dataclass(frozen=True)
class Config:
    """How a kernel is laid out. All sizes are powers of two.

    x, y, r, s, t: block sizes. looped: the reduction runs in a loop over blocks of ``r``; parts: in that loop, a block
    is taken as ``parts`` pieces that each thread combines on its own (x is 1 then). recompute: in a row held on chip,
    only what was loaded stays in registers, and the rest is computed again after each reduction. stages: loads in
    flight in the loop. evict: give cache policies. index_bits: 32 or 64, or 0 to decide from the sizes. shift: rows
    whose length is no multiple of a vector are read from the aligned address before them (x is 1).
    """

    x: int = 1
    y: int = 1
    r: int = 1
    s: int = 1
    t: int = 1
    looped: bool = False
    parts: int = 1
    recompute: bool = False
    warps: int = 4
    stages: int = 1
    evict: bool = False
    index_bits: int = 0
    shift: bool = False


def next_power_of_two(n: int) -> int:
    return 1 << max(0, int(n) - 1).bit_length()


def _power_of_two_below(n: int) -> int:
    return 1 << max(int(n).bit_length() - 1, 0)


def _clamp(n: int, low: int, high: int) -> int:
    return max(low, min(high, n))


def choose(tiling: Tiling, architecture: devices.Architecture | None = None) -> Config:
    """The configuration that is used without timing anything, for the current device where none is named."""
    arch = architecture or devices.of_type(tiling.kernel.device).architecture()
    return (_sorted_rows if analysis.sorts(tiling.kernel) else _CHOOSERS[tiling.kind])(tiling, arch)


def _sorted_rows(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Whole rows, several together, with few elements per thread: exchanges between elements of a thread cost as much
    as those between threads of a warp."""
    rows, width = size_hint(tiling.extent("x")), size_hint(tiling.extent("r"))
    block = next_power_of_two(max(width, 2))
    x = _clamp(1024 // block, 1, next_power_of_two(rows))
    return Config(x=x, r=block, warps=_clamp(block * x // 256, 1, 8))


def _smallest_access(kernel: Kernel) -> int:
    return min((b.dtype.itemsize for b in kernel.buffers if b.role != "error"), default=4)


def arithmetic(kernel: loops.Kernel) -> int:
    """About how many instructions a point takes."""
    return sum(info(s.prim).cost.gpu for s in kernel.body if s.prim)


def flat(tiling: Tiling, arch: devices.Architecture) -> Config:
    """One range: 16 bytes per thread and access."""
    n = size_hint(tiling.extent("x"))
    per_thread = _clamp(16 // _smallest_access(tiling.kernel), 4, 8)
    if arithmetic(tiling.kernel) > 24:  # two vectors per thread, so that their arithmetic interleaves
        per_thread *= 2
    warps = 4
    block = warps * arch.lanes * per_thread
    while warps > 1 and block > 128 and n // block < arch.processors:  # a small problem: more programs
        block //= 2
        if block < warps * arch.lanes:
            warps //= 2
    return Config(x=max(min(block, next_power_of_two(n)), 1), warps=warps)


def tiles(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Two contiguous axes: square tiles, through shared memory."""
    nx, ny = size_hint(tiling.extent("x")), size_hint(tiling.extent("y"))
    x = min(64, next_power_of_two(nx))
    y = min(4096 // x, 64 if nx >= 64 else 256, next_power_of_two(ny))
    return Config(x=x, y=y, warps=_clamp(x * y // 512, 1, 8))


def strips(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Pieces of rows: as ``flat``, without a division per element."""
    nx, ny = size_hint(tiling.extent("x")), size_hint(tiling.extent("y"))
    if nx >= LONG_ROW:  # what is computed once per row takes a while to arrive
        return Config(x=4096, warps=8)
    x = min(1024, next_power_of_two(nx))
    y = min(1024 // x, next_power_of_two(ny))
    return Config(x=x, y=y, warps=_clamp(x * y // 256, 1, 4))


def rows(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Reduction along the contiguous axis: a row per program, held on chip; several short rows together; a loop for
    long ones.

    Shares of a plain copy's rate, bf16 softmax: rows of 64 to 8192 elements 0.98 to 1.0; 16384 0.95 and 32768 0.91 with
    ``recompute`` (0.67 without); 65536 0.83 in a loop (0.72 on chip).
    """
    kernel = tiling.kernel
    n_rows, width = size_hint(tiling.extent("x")), size_hint(tiling.extent("r"))
    held, itemsize = analysis.held_bytes(kernel), _stream_access(kernel)
    if type(tiling.extent("r")) is not int:
        return _long_rows(kernel, min(next_power_of_two(max(width, 2)), 4096), n_rows, arch)
    block = next_power_of_two(max(width, 2))
    single = analysis.Schedule(kernel, online=True).count == 1 and not analysis.has_scan(kernel)
    if block > (8192 if single else _on_chip(kernel, held, itemsize, arch)):
        return _long_rows(kernel, block, n_rows, arch)
    x, least = 1, 1024 if analysis.writes_elements(kernel) else 2048
    while block * x < least and x < 64 and x < n_rows:
        x *= 2
    while x > 1 and n_rows // x < arch.processors:
        x //= 2
    per_thread = 16 if itemsize <= 2 else 8
    warps = _clamp(_power_of_two_below(min(width, block) * x // (arch.lanes * per_thread)), 1, 16)
    recompute = held == 2 and block >= 16384 and not analysis.has_scan(kernel)
    return Config(x=x, r=block, warps=warps, recompute=recompute)


def _on_chip(kernel: Kernel, held: int, itemsize: int, arch: devices.Architecture) -> int:
    """The longest row, in elements, that is kept in registers while it is reduced and used again: half of them. Float32
    rows, and rows with weights beside them, stop at half of that."""
    weights = any(s.loaded and "@r" in s.symbols and "@x" not in s.symbols for s in kernel.body)
    return min(arch.registers // 8 // (2 if weights or itemsize > 2 else 1), arch.registers // 2 // max(held, 1))


def _long_rows(kernel: Kernel, block: int, n_rows: int, arch: devices.Architecture) -> Config:
    """A loop over a row. In pieces of 8 elements per thread where the kernel allows it."""
    schedule, pieces = analysis.Schedule(kernel, online=True), analysis.pieces_allowed(kernel)
    narrow, stages = _stream_access(kernel) <= 2, 1
    shift = block >= 16384 and not analysis.has_scan(kernel) and analysis.odd_row_start(kernel) is not None
    if not pieces:
        r, warps = 4096, 8
    elif schedule.count == 1 and schedule.pairs:  # exponentials: few threads per row, each with many elements
        r, warps, stages = (2048, 2, 3) if n_rows >= 2 * arch.processors else (8192, 4, 3)
    elif schedule.count == 1:
        r, warps = 8192, 8
    elif shift:
        r, warps = 4096, 16
    elif schedule.count > 2 or n_rows < 3 * arch.processors:
        r, warps = 16384, 32
    else:
        r, warps = 16384 if narrow else 8192, 16
    if block < r:
        r = max(block, 256)
        warps = _clamp(r // 512, 1, warps)
    parts = max(1, r // (warps * 256)) if pieces else 1
    return Config(r=r, looped=True, parts=parts, warps=warps, stages=stages, evict=schedule.count > 1, shift=shift)


def columns(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Reduction across the contiguous axis: a loop over blocks of rows, with an accumulator per column and thread.

    512 columns per program (0.9 of a copy's rate, against 0.6 with 256) as long as there are enough programs. Where
    elements are written as well, or there are several accumulators, few rows at a time with more loads ahead: 0.75 to
    0.9 against 0.5 to 0.8.
    """
    kernel = tiling.kernel
    nx, nr, nz = (size_hint(tiling.extent(n)) for n in "xrz")
    x = min(512, next_power_of_two(nx))
    while x > 32 and nz * -(-nx // x) < 3 * arch.processors // 2:
        x //= 2
    block = next_power_of_two(max(nr, 2))
    static = type(tiling.extent("r")) is int
    if static and analysis.held_bytes(kernel):
        narrow = min(x, max(NARROWEST, 8192 // block))
        if narrow * block <= 16384:
            return Config(x=narrow, r=block, warps=_clamp(narrow * block // 1024, 1, 16))
    r = _clamp(16384 // _stream_access(kernel) // x, 2, 128)
    warps = _clamp(x * r // 512, 1, 4 if analysis.writes_elements(kernel) else 2)
    if analysis.writes_elements(kernel) or sum(s.reduces for s in kernel.body) > 1:
        return Config(x=x, r=min(max(r // 4, 2), block), looped=True, warps=warps, stages=4)
    return Config(x=x, r=min(r, block), looped=True, warps=warps, stages=3)


def thin(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Sums of products of a matrix and a few vectors."""
    row = {n: size_hint(tiling.extents[n]) for n in ROW if n in tiling.extents}
    columns, vectors = size_hint(tiling.extent("x")), next_power_of_two(size_hint(tiling.extent("y")))
    along = contiguous_axes(tiling.kernel, [s for s in tiling.kernel.body if s.loaded])
    across = along.get("@x", 0) > along.get("@r", 0)
    elements, warps = 4096, 4
    x = 32 if across else 4
    while x > 1 and columns // x < 4 * arch.processors:
        x //= 2
    left, blocks = max(elements // (x * vectors), 1), {}
    for n in reversed(list(row)):
        blocks[n] = min(next_power_of_two(row[n]), left)
        left = max(left // blocks[n], 1)
    return Config(x=min(x, next_power_of_two(columns)), y=vectors, looped=True, warps=warps, stages=1, **blocks)


def _stream_access(kernel: Kernel) -> int:
    """Bytes of the widest element that is read or written throughout the iteration space."""
    accesses = [s for s in kernel.body if s.accessed and "@r" in s.symbols]
    whole = [s for s in accesses if "@x" in s.symbols]
    return max((kernel.buffer_of[s.buffer].dtype.itemsize for s in whole or accesses), default=4)


_CHOOSERS = {"flat": flat, "tile": tiles, "strip": strips, "inner": rows, "outer": columns, "thin": thin}
