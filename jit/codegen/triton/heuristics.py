"""Which block sizes, how many warps, held on chip or in a loop: a kernel's configuration from its shape.

The figures come from a sweep on an H200 (132 multiprocessors, 4.3 TB/s for a plain copy); the shares reached are in the
functions below. How many programs there should be, and how much a row may hold, follow the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ... import devices
from ...graph import dims
from ...graph.prims import info
from .. import loops
from ..indexing import size_hint
from . import analysis, thin_terms
from .neighbours import accesses
from .tiling import (LONG_ROW, ROW, Tiling, contiguous_axes, divisions, in_vectors, reads_around, reads_vectors,
                     side_by_side)

if TYPE_CHECKING:
    from ..loops import Kernel

NARROWEST = 16  # columns of a block of rows that is held on chip
LEAST_SUM = 16  # length of sums, rows and columns of the blocks that matrix units take
UNROLLED = 16  # blocks of a loop that is written out
WRITTEN_OUT = 4096  # bytes of a row for each processor from which pieces of columns are so short
COUNTING = 2  # programs that count, for each processor
MANY_READS = 64  # of a point that is a thread
SECTORS = 64  # bytes that memory gives at once
UNITS = 80  # the capability from which they take all halves


@dataclass(frozen=True)
class Config:
    """How a kernel is laid out. All sizes are powers of two.

    x, y, r, s, t: block sizes. looped: the reduction runs in a loop over blocks of ``r``; parts: in that loop, a block
    is taken as ``parts`` pieces that each thread combines on its own. recompute: in a row held on chip, only what was
    loaded stays in registers, and the rest is computed again after each reduction. stages: loads in flight in the loop.
    evict: what is read once leaves the cache first. through: so does what is written. index_bits: 32 or 64, or 0 to
    decide from the sizes. shift: rows whose length is no multiple of a vector are read from the aligned address before
    them (x is 1). singly: threads take elements one by one, not
    vectors. units: sums of products are taken by the matrix units. unrolled: the loop is written out, as far as
    ``UNROLLED`` blocks. folded: factors that stay the same along parts of a row follow their sums.
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
    through: bool = False
    index_bits: int = 0
    shift: bool = False
    singly: bool = False
    units: bool = False
    unrolled: bool = False
    folded: bool = False


def next_power_of_two(n: int) -> int:
    return 1 << max(0, int(n) - 1).bit_length()


def _power_of_two_below(n: int) -> int:
    return 1 << max(int(n).bit_length() - 1, 0)


def _clamp(n: int, low: int, high: int) -> int:
    return max(low, min(high, n))


def choose(tiling: Tiling, architecture: devices.Architecture | None = None) -> Config:
    """The configuration that is used without timing anything, for the current device where none is named."""
    arch = architecture or devices.of_type(tiling.kernel.device).architecture()
    config = (_sorted_rows if analysis.sorts(tiling.kernel) else _CHOOSERS[tiling.kind])(tiling, arch)
    return _within_local(tiling, config, arch)


def _within_local(tiling: Tiling, config: Config, arch: devices.Architecture) -> Config:
    """The configuration with no more loads in flight than there is memory for next to a processor, or for two programs
    where these are few and large."""
    if config.stages < 2 or not arch.local:
        return config
    each = 0
    for s in tiling.kernel.body:
        if s.loaded and not s.symbols.isdisjoint(("@x", "@r")):
            points = math.prod(getattr(config, n[1:], 1) for n in s.symbols if n.startswith("@"))
            each += points * tiling.kernel.buffer_of[s.loaded].dtype.itemsize
    return replace(config, stages=_clamp(arch.local * 7 // 8 // (1 + config.units) // max(each, 1), 1, config.stages))


def _sorted_rows(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Whole rows, several together, with few elements per thread: exchanges between elements of a thread cost as much
    as those between threads of a warp."""
    rows, width = size_hint(tiling.extent("x")), size_hint(tiling.extent("r"))
    block = next_power_of_two(max(width, 2))
    x = _clamp(1024 // block, 1, next_power_of_two(rows))
    return Config(x=x, r=block, warps=_clamp(block * x // 256, 1, 8))


def mostly_reads(kernel: Kernel, arch: devices.Architecture, caches: int = 2) -> bool:
    """Whether a kernel reads more than so many caches hold, and writes a small part of that. What it reads should then
    leave the cache first: 0.91 of a copy's rate for sums of rows, 0.77 where it puts out what others have left there.
    Kernels that write as much are 0.03 slower so, and those of few long rows up to a third."""
    extent = {a.name: size_hint(a.extent) for a in kernel.axes + kernel.raxes}
    read, written, once = 0, 0, analysis.read_once(kernel)
    for s in kernel.body:
        if s.stored or s.loaded and s.dst in once:
            size = kernel.buffer_of[s.accessed].dtype.itemsize * math.prod(extent.get(n, 1) for n in s.symbols)
            read, written = read + size * (not s.effect), written + size * s.effect
    rows = math.prod(extent[a.name] for a in kernel.axes)
    return read > caches * arch.cache and 4 * written < read and rows >= 8 * arch.processors


def _smallest_access(kernel: Kernel) -> int:
    return min((b.dtype.itemsize for b in kernel.buffers if b.role != "error"), default=4)


def arithmetic(kernel: loops.Kernel) -> int:
    """About how many instructions a point takes."""
    return sum(info(s.prim).cost.gpu for s in kernel.body if s.prim)


def flat(tiling: Tiling, arch: devices.Architecture) -> Config:
    """One range: 16 bytes per thread and access; of windows that are read here and there, neighbouring threads have
    neighbouring points."""
    n = size_hint(tiling.extent("x"))
    singly = reads_around(tiling.kernel) and not reads_vectors(tiling)
    per_thread = _clamp(16 // _smallest_access(tiling.kernel), 4, 8)
    if arithmetic(tiling.kernel) > 24:  # two vectors per thread, so that their arithmetic interleaves
        per_thread *= 2
    per_thread = 2 if singly else min(per_thread, _looked_up(tiling.kernel))
    count = _side_by_side(tiling)
    if count > 1:
        per_thread = _clamp(16 // _smallest_access(tiling.kernel), 4, 8) // count or 1
    warps = 4
    block = warps * arch.lanes * per_thread
    while warps > 1 and block > 128 and n // block < arch.processors:  # a small problem: more programs
        block //= 2
        if block < warps * arch.lanes:
            warps //= 2
    return Config(x=max(min(block, next_power_of_two(n)), 1), warps=warps, singly=singly)


def _looked_up(kernel: Kernel) -> int:
    """The most elements for a thread where data decide alone where an element is read, apart from its neighbours, or is
    written: two take 0.87 of the time of four, and four that are written 0.95 of the time of eight, as addresses of 64
    bits are found from indices of as many."""
    bounded = {s.dst for s in kernel.body if s.limit is not None and not s.effect}
    if any(s.loaded and s.symbols and s.symbols <= bounded for s in kernel.body):
        return 2
    apart = [s for s in kernel.body if s.effect and s.accessed and not s.symbols.isdisjoint(bounded)]
    return 4 if any(not in_vectors(s.index) for s in apart) else 16


def _side_by_side(tiling: Tiling) -> int:
    """The most elements that are read, or written, at once for a point, side by side. A thread has one vector of them:
    with more, what it reads beside them would be laid out otherwise, and go through shared memory."""
    return max((g.count for g in analysis.interleaved(tiling.kernel, "@x")), default=1)


def tiles(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Two contiguous axes: square tiles, through shared memory."""
    nx, ny = size_hint(tiling.extent("x")), size_hint(tiling.extent("y"))
    side = 128 if _smallest_access(tiling.kernel) <= 2 and nx * ny * size_hint(tiling.extent("z")) >= 1 << 23 else 64
    x = min(side, next_power_of_two(nx))
    y = min(side * side // x, side if nx >= side else 256, next_power_of_two(ny))
    return Config(x=x, y=y, warps=_clamp(x * y // 512, 1, 8))


def strips(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Pieces of rows: as ``flat``, without a division per element."""
    nx, ny = size_hint(tiling.extent("x")), size_hint(tiling.extent("y"))
    count = _side_by_side(tiling)
    if count > 1:
        points = 4 * arch.lanes * (_clamp(16 // _smallest_access(tiling.kernel), 4, 8) // count or 1)
        x = min(points, next_power_of_two(nx))
        return Config(x=x, y=min(points // x, next_power_of_two(ny)), warps=4)
    if nx >= LONG_ROW and arithmetic(tiling.kernel) > 20:
        return Config(x=1024, warps=4)
    if nx >= LONG_ROW and ny >= 4096 and _smallest_access(tiling.kernel) <= 2:  # two rows share what is read once
        return Config(x=1024, y=2, warps=2)
    if nx >= LONG_ROW:  # what is computed once per row takes a while to arrive
        return Config(x=4096, warps=8)
    # Four elements for a thread where each finds its place by itself, in 0.92 of the time; else eight.
    apart = any(s.loaded and "@x" in s.symbols and dims.coefficient(s.index, "@x") is None for s in tiling.kernel.body)
    points = 512 if apart else 1024
    x = min(1024, next_power_of_two(nx))
    y = min(max(points // x, 1), next_power_of_two(ny))
    return Config(x=x, y=y, warps=_clamp(x * y // (points // 4), 1, 4))


def rows(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Reduction along the contiguous axis: a row per program, several short rows together; a loop for long ones.

    Rows of 4096 elements on, in a power of two, are read again for each pass, from the cache: 0.97 of a plain copy's
    rate, where held ones reach 0.92 (bf16 softmax and norms). Other lengths are slower so, and rows that are quantised.
    With exponentials that ends at 16384 elements: 0.95 held with ``recompute``, at 32768 0.91; 65536 0.83 in a loop.
    """
    kernel = tiling.kernel
    n_rows, width = size_hint(tiling.extent("x")), size_hint(tiling.extent("r"))
    held, itemsize, evict = analysis.held_bytes(kernel), _stream_access(kernel), mostly_reads(kernel, arch)
    block = next_power_of_two(max(width, 2))
    if type(tiling.extent("r")) is not int:
        return _long_rows(kernel, min(block, 4096), n_rows, evict, arch)
    schedule, scan = analysis.Schedule(kernel, online=True), analysis.has_scan(kernel)
    single = schedule.count == 1 and not scan
    if schedule.pairs and not single and 16384 <= block <= 32768 and 4 * width < 3 * block and held <= itemsize:
        return Config(r=block, warps=16, evict=evict)  # 28000 columns are a third slower so, and 20000 in a loop
    if block > (8192 if single else 16384 if scan else _on_chip(kernel, held, itemsize, arch)) or (
            block * held > arch.registers // 4) or block > 16384 and _rounds(kernel):
        return _long_rows(kernel, width, n_rows, evict, arch)
    if block >= 16384 and 4 * width < 3 * block and not single and not scan and analysis.writes_elements(kernel):
        return _long_rows(kernel, width, n_rows, evict, arch)
    if (width == block > 2048 and itemsize <= 2 and analysis.writes_elements(kernel) and analysis.pieces_allowed(kernel)
        and (block <= 8192 or not schedule.pairs) and not _rounds(kernel)):
        if _works_hard(kernel) and block <= 8192:  # an eighth faster than to compute it again
            return Config(r=block, warps=block // 1024)
        streams = sum(bool(s.loaded) and {"@x", "@r"} <= s.symbols for s in kernel.body)
        if streams > 1 and block <= 8192:  # what is read again for each pass is twice as much: 0.92 to 0.99 of the time
            return Config(r=block, warps=8)
        return _in_passes(block, schedule)
    x, least = 1, 1024 if analysis.writes_elements(kernel) else 2048
    while block * x < least and x < 64 and x < n_rows:
        x *= 2
    while x > 1 and n_rows // x < arch.processors:
        x //= 2
    together = min(side_by_side(tiling, SECTORS), 32768 // block)
    if together > x:  # pieces of rows that are read from memory at once
        return Config(x=together, r=block, warps=_clamp(block * together // 2048, 1, 16), evict=evict)
    if single and evict and itemsize <= 2 and block in (4096, 8192) and (schedule.pairs or not
                                                                         analysis.pieces_allowed(kernel)):
        return Config(x=8192 // block, r=block, warps=4, evict=True)  # exponentials and positions: few threads
    per_thread = 32 if itemsize <= 2 and evict and block <= 1024 else 16 if itemsize <= 2 else 8
    recompute = held == 2 and block >= 16384 and not scan
    most = 32 if recompute and block >= 32768 else 16
    warps = _clamp(_power_of_two_below(min(width, block) * x // (arch.lanes * per_thread)), 1, most)
    return Config(x=x, r=block, warps=warps, recompute=recompute, evict=evict)


def _works_hard(kernel: Kernel) -> bool:
    """Whether the arithmetic of an element, or finding what is read for it, takes as long as reading it."""
    axes = {a.name for a in kernel.raxes}
    return arithmetic(kernel) > 30 or any(s.loaded and divisions(s.index, axes) for s in kernel.body)


def _rounds(kernel: Kernel) -> bool:
    """Whether it quantises: what it does to an element then takes more registers than the few threads of ``_in_passes``
    have, a quarter of the speed."""
    narrow = {b.name for b in kernel.buffers if b.dtype.itemsize == 1 and b.role != "in"}
    return any(s.stored and s.buffer in narrow for s in kernel.body)


def _in_passes(block: int, schedule: analysis.Schedule) -> Config:
    """A row that is read again for each pass, in few blocks."""
    if block <= 8192:
        return Config(r=block, looped=True, parts=4, warps=block // 1024, evict=True)
    return Config(r=8192, looped=True, warps=16, evict=True)


def _on_chip(kernel: Kernel, held: int, itemsize: int, arch: devices.Architecture) -> int:
    """The longest row, in elements, that is kept in registers while it is reduced and used again: half of them. Float32
    rows, and rows with weights beside them, stop at half of that."""
    shares = 2 if _has_weights(kernel) or itemsize > 2 else 1
    return min(arch.registers // 8 // shares, arch.registers // 2 // max(held, 1))


def _has_weights(kernel: Kernel) -> bool:
    return any(s.loaded and "@r" in s.symbols and "@x" not in s.symbols for s in kernel.body)


def _filled(width: int, r: int, least: int) -> int:
    """The largest block, from ``r`` to ``least``, in which all but a tenth of what is walked are elements of a row;
    the smallest where there is none."""
    while r > least and 10 * width < 9 * -(-width // r) * r:
        r //= 2
    return r


def _long_rows(kernel: Kernel, width: int, n_rows: int, evict: bool, arch: devices.Architecture) -> Config:
    """A loop over a row. In pieces of 8 elements per thread where the kernel allows it.

    What is read again comes from the cache as long as the rows that all programs have begun fit into it, and is written
    past it. Shares of a copy's rate on an H200, softmax and layer norm of bfloat16 (float32), by columns: 12000 1.03,
    1.03 (0.97, 1.02); 20000 1.01, 1.03 (0.97, 1.01); 28000 0.98, 0.99 (0.78, 0.98); 50304 0.78, 0.94 (0.67, 0.71);
    65536 0.90, 0.80 (0.77, 0.80); 131072 0.79, 0.80 (0.67, 0.68). 50257, of odd length: 0.63, 0.63 (0.62, 0.73).
    """
    schedule, pieces = analysis.Schedule(kernel, online=True), analysis.pieces_allowed(kernel)
    block = next_power_of_two(max(width, 2))
    narrow, stages, scan = _stream_access(kernel) <= 2, 1, analysis.has_scan(kernel)
    shift = block >= 16384 and not scan and analysis.odd_row_start(kernel) is not None
    if scan:
        r, warps, stages = 4096, 8, 4
    elif not pieces:  # positions
        r, warps = 1024, 8
    elif schedule.count == 1 and schedule.pairs:  # exponentials: few threads per row, each with many elements
        if n_rows >= 8 * arch.processors:
            r, warps, stages = 2048, 2, 1 if evict else 3
        else:
            r, warps, stages = (8192, 4, 3) if n_rows < 2 * arch.processors else (8192, 8, 1)
            evict = evict or stages == 1
    elif schedule.count == 1 and _works_hard(kernel):
        warps = _clamp(_power_of_two_below(48 * arch.processors // max(n_rows, 1)), 8, 32)  # few rows: more at a time
        r, pieces = 256 * warps, False
    elif schedule.count == 1 and block == 16384 and evict:
        r, warps, pieces = 4096, 16, False
    elif schedule.count == 1:
        r = _filled(width, 8192, 2048)
        warps = r // 1024
    elif schedule.pairs and block > 4096:
        if shift:
            r, warps = 4096, 16
        elif not narrow and block <= 32768:
            r, warps = _filled(width, 8192, 4096), 16
        else:
            r, warps = 16384, 16 if narrow and block < 131072 and n_rows >= 3 * arch.processors else 32
    elif block <= 4096 or (narrow or _rounds(kernel)) and (shift or width <= 24576):
        r = _filled(width, 4096, 2048)
        warps = r // 256
    elif block == width and _has_weights(kernel) and not _rounds(kernel):
        r, warps = 16384, 32
    elif shift or narrow or block <= 32768 or _rounds(kernel):
        r, warps, pieces = 8192, 32, False
    else:
        r, warps = 16384, 16 if n_rows >= 3 * arch.processors else 32
    if block < r:
        r = max(block, 256)
        warps = _clamp(r // 512, 1, warps)
    parts = max(1, r // (warps * 256)) if pieces else 1
    return Config(r=r, looped=True, parts=parts, warps=warps, stages=stages, evict=evict or schedule.count > 1,
                  through=schedule.count > 1, shift=shift)


def columns(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Reduction across the contiguous axis: a loop over blocks of rows, with an accumulator per column and thread.

    512 columns per program as long as there are enough programs. Where elements are written as well, or there are
    several accumulators, few rows at a time with more loads ahead.
    """
    kernel = tiling.kernel
    nx, nr, nz = (size_hint(tiling.extent(n)) for n in "xrz")
    if analysis.has_scan(kernel):  # a warp's threads lie across columns, so that each has its rows to itself
        x = min(256, next_power_of_two(nx))
        return Config(x=x, r=min(8, next_power_of_two(max(nr, 2))), looped=True, warps=1, stages=4)
    writes, sums = analysis.writes_elements(kernel), sum(s.reduces for s in kernel.body)
    block, item = next_power_of_two(max(nr, 2)), _stream_access(kernel)
    x = min(512, next_power_of_two(nx))
    while x > 32 and nz * -(-nx // x) < 3 * arch.processors // 2:
        x //= 2
    static = type(tiling.extent("r")) is int
    if not writes and sums == 1 and static:
        config = _written_out(kernel, nx, nr, nz, arch)
        if config is not None:
            return config
    if not writes and static and block >= 32 and 4 * nx * nr * nz <= arch.cache // 2 and nx >= 32:
        few = nx < 16 * arch.processors  # parts of sums, from the cache
        return Config(x=8 if few else 32, r=min(block, 256 if few else 64), looped=True, warps=4 if few else 8)
    if static and analysis.held_bytes(kernel):  # the column is read again, by the threads that have read it
        if block <= 32 and nx >= 64:
            return Config(x=64, r=8, looped=True, warps=1, stages=4, evict=True)
        if block == 64 and nx >= 32:
            return Config(x=32, r=64, looped=True, warps=1, stages=3)
        if block in (128, 256) and analysis.held_bytes(kernel) <= 2 and nx >= 128:
            return Config(x=16384 // block, r=block, warps=4)  # 128 elements per thread
        narrow = min(x, max(NARROWEST, 8192 // block))
        if narrow * block <= 16384:
            return Config(x=narrow, r=block, warps=_clamp(narrow * block // 1024, 1, 16))
    r = _clamp(16384 // item // x, 2, 128)
    if writes and sums:
        return Config(x=min(x, 128), r=min(32, block), looped=True, warps=4, stages=4)
    warps = _clamp(x * r // 512, 1, 4 if writes else 2)
    if sums and not writes and item <= 2 and x >= 128 and static:
        if not analysis.pieces_allowed(kernel):  # positions: two values kept for each element of a block
            return Config(x=64, r=min(32, block), looped=True, warps=2, stages=4)
        if analysis.online_pairs(kernel):
            return Config(x=128, r=min(64, block), looped=True, parts=min(2, block), warps=8, evict=True)
    if sums > 1 and not writes and item <= 2 and x >= 64:
        return Config(x=64, r=min(64, block), looped=True, warps=2, stages=3)
    if writes or sums > 1:
        return Config(x=x, r=min(max(r // 4, 2), block), looped=True, warps=warps, stages=4)
    return Config(x=x, r=min(r, block), looped=True, warps=warps, stages=3)


def _written_out(kernel: Kernel, nx: int, nr: int, nz: int, arch: devices.Architecture) -> Config | None:
    """Short columns of which there are many: a vector of columns for a thread, which reads all rows with no loop in
    between, so that what has been read once leaves the cache first (loads ahead in loops cannot ask for that). None
    for others. The first kernel of 16384 x 4096 bfloat16 numbers takes 38 us so, and 41 in a loop."""
    item = _stream_access(kernel)
    x = min(2048 // item, next_power_of_two(nx))
    warps = max(4 * x * item // 2048, 1)
    r = 4 * max(512 * warps // (x * item), 1)
    while UNROLLED * r < nr:
        r *= 2
    wide = nx * nz >= WRITTEN_OUT // item * arch.processors
    if not wide or r > 32 or nr < 2 * r or not analysis.pieces_allowed(kernel) or analysis.online_pairs(kernel):
        return None
    return Config(x=x, r=r, looped=True, warps=warps, unrolled=True, evict=mostly_reads(kernel, arch))


def thin(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Sums of products of a matrix and a few vectors: some rows of the matrix for a program, which share what they read
    of the vector, with pieces of the row on their way to shared memory.

    Microseconds for a vector and a matrix of 16384 x 4096 that is not in the cache, whose lines have been written to
    before (what the reads take): bytes 22 (16), four bits with groups' factors 18 where pairs lie half a row apart, 19
    where they are neighbours, 23 where eight lie in a word across rows (8). For four vectors by the matrix units 31
    and 27.
    """
    row = {n: size_hint(tiling.extents[n]) for n in ROW if n in tiling.extents}
    columns, vectors = size_hint(tiling.extent("x")), next_power_of_two(size_hint(tiling.extent("y")))
    loads = [s for s in tiling.kernel.body if s.loaded]
    along = contiguous_axes(tiling.kernel, loads)
    turned = along.get("@x", 0) > along.get("@r", 0)
    many, side_by_side = columns >= 64 * arch.processors, bool(analysis.interleaved(tiling.kernel, "@r"))
    units = (math.prod(row.values()) >= LEAST_SUM and arch.capability >= UNITS
             and thin_terms.operand_type(tiling) is not None)
    walked = turned and vectors == 1 and len(row) > 1 and row["r"] <= UNROLLED
    if units:
        x, warps, stages = 64, 4, 4
        while x > LEAST_SUM and 2 * columns < 3 * x * arch.processors:
            x, warps = x // 2, max(warps // 2, 1)
        vectors = max(vectors, LEAST_SUM)
        elements = 256 * x * vectors
    elif walked:  # what lies in a word is taken from it one after the other
        x, warps, stages = 32, 4, 1
        while x > 16 and columns < 2 * x * arch.processors:
            x, warps = x // 2, warps * 2
        elements = 512 * warps
    elif turned:
        x, elements, warps, stages = 64, 8192, 8, 1
        while x > 16 and 2 * columns < 3 * x * arch.processors:
            x, elements = x // 2, elements // 2
    elif vectors > 1:
        x, elements, warps, stages = 4, 8192, 4, 1
    elif side_by_side or len(row) > 1 and many:
        x, elements, warps, stages = 8, 2048, 1, 3
        while x > 1 and columns < 4 * x * arch.processors:
            x //= 2
    elif len(row) == 1 and _smallest_access(tiling.kernel) == 1:  # a warp reads the whole of a row at once
        x, elements, warps, stages = 1, 2048, 1, 1
        while warps < 8 and columns * warps < 8 * arch.processors:
            elements, warps = elements * 2, warps * 2
    elif vectors == 1:
        # Where the vector is computed, that is done for several rows; what threads have of it then is less.
        computed = sum("@x" not in tiling.kernel.along(s) and tiling.kernel.is_element(s) for s in loads) > 1
        x, elements, warps, stages = (4 if computed else 2), 8192, 4, 1
        if columns < 4 * arch.processors or _stream_access(tiling.kernel) > 2:
            x, elements, warps = (1, 4096, 8 if computed else 4)
    else:
        x, elements, warps, stages = 1, 4096, 4, 1
    x = x if units else min(x, next_power_of_two(columns))
    left, blocks = max(elements // (x * vectors), 1), {}
    for n in reversed(list(row)):
        blocks[n] = 1 if walked and n == "r" else min(next_power_of_two(row[n]), left)
        left = max(left // blocks[n], 1)
    folded, evict = not units and (walked or not turned), mostly_reads(tiling.kernel, arch, caches=1)
    return Config(x=x, y=vectors, looped=True, warps=warps, stages=stages, units=units, unrolled=True, evict=evict,
                  folded=folded, **blocks)


def totals(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Rows held on chip, one after the other, beside the sums of their columns."""
    block = next_power_of_two(max(size_hint(tiling.extent("r")), 2))
    x = _clamp(4096 // block, 1, min(16, next_power_of_two(size_hint(tiling.extent("x")))))
    return Config(x=x, r=block, warps=_clamp(x * block // (arch.lanes * (16 if x == 1 else 32)), 1, 16), stages=3)


def counts(tiling: Tiling, arch: devices.Architecture) -> Config:
    """Points that are gone through while counting, one or more for each thread, by few large programs: each adds all
    its counts to the others' at its end."""
    each = size_hint(tiling.extent("x")) // (COUNTING * arch.processors)
    return Config(x=_clamp(next_power_of_two(each), 16 * arch.lanes, 8192), warps=16)


def whole_rows(tiling: Tiling, config: Config) -> Config:
    """A configuration with what kernels with totals need: rows that are held."""
    return replace(config, y=1, r=next_power_of_two(max(size_hint(tiling.extent("r")), 2)), looped=False, parts=1,
                   recompute=False, shift=False)


def _stream_access(kernel: Kernel) -> int:
    """Bytes of the widest element that is read or written throughout the iteration space."""
    accesses = [s for s in kernel.body if s.accessed and "@r" in s.symbols]
    whole = [s for s in accesses if "@x" in s.symbols]
    return max((kernel.buffer_of[s.buffer].dtype.itemsize for s in whole or accesses), default=4)


def shared(tiling: Tiling, arch: devices.Architecture) -> Config:
    """What is computed along one dimension alone is shared by the other's points in a block.

    Where what is read is no vector along x, neighbouring threads have neighbouring points, and each has a few along y.
    Few where a point reads much, and more where weights are computed along x. Shares of a copy's rate: max pool 3x3
    with two points for each thread 0.57, with eight 0.44; average pool 3x3 0.49 and 0.43; bilinear resizing 0.46 and
    0.57, bicubic, with four points, 0.24 (0.21).
    """
    nx, ny = size_hint(tiling.extent("x")), size_hint(tiling.extent("y"))
    if not reads_vectors(tiling):
        kernel = tiling.kernel
        reads = sum(bool(s.loaded) for s in kernel.body)
        weights = sum(bool(s.prim) and s.dtype.is_floating_point and "@x" in kernel.along(s)
                      and "@y" not in kernel.along(s) for s in kernel.body) > 4
        points = (4 if reads > 16 else 8) if weights else 2
        x = min((64, 128, 32) if weights else (32, 64, 128), key=lambda b: -(-nx // b) * b)
        warps = 2 if weights and points == 8 else 4
        y = min(warps * arch.lanes * points // x, next_power_of_two(ny))
        while y > 1 and size_hint(tiling.extent("z")) * -(-nx // x) * -(-ny // y) < 4 * arch.processors:
            y //= 2
        return Config(x=x, y=y, warps=_clamp(x * y // (arch.lanes * points), 1, warps), singly=True)
    x = min(256, next_power_of_two(nx))
    y = min(1024 // x, next_power_of_two(ny), 32)
    while y > 2 and size_hint(tiling.extent("z")) * -(-nx // x) * -(-ny // y) < 4 * arch.processors:
        y //= 2
    return Config(x=x, y=y, warps=_clamp(x * y // 256, 1, 4))


def vectors(tiling: Tiling, arch: devices.Architecture) -> Config:
    """A point for each thread, which has several results."""
    n, warps = size_hint(tiling.extent("x")), 4
    if sum(next(iter(a.members.values())).loaded is not None for a in accesses(tiling.kernel)) > MANY_READS:
        warps = 1  # each keeps its registers for long
    while warps > 1 and n < warps * arch.lanes * arch.processors:
        warps //= 2
    return Config(x=min(warps * arch.lanes, max(next_power_of_two(n), 2)), warps=warps)


_CHOOSERS = {"flat": flat, "vectors": vectors, "shared": shared, "tile": tiles, "strip": strips, "inner": rows,
             "outer": columns, "totals": totals, "counts": counts, "thin": thin}
