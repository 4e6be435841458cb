"""Which block sizes, how many warps, held on chip or in a loop: a kernel's configuration from its shape.

The figures come from a sweep on an H200 (132 multiprocessors, 4.3 TB/s for a plain copy); see the table in ``rows``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import loops
from .tiling import Tiling, size_hint

# Bytes of one row that may stay in registers while it is reduced and used again.
ON_CHIP_BYTES = 128 * 1024
ON_CHIP_ELEMENTS = 64 * 1024
MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Config:
    """How a kernel is laid out. ``x``, ``y``, ``r``: block sizes, powers of two; ``looped``: the reduction runs in a loop of blocks
    of ``r``; ``stages``: loads in flight in that loop; ``index_bits``: 32 or 64, or 0 to decide from the sizes."""

    x: int = 1
    y: int = 1
    r: int = 1
    looped: bool = False
    warps: int = 4
    stages: int = 1
    evict: bool = True
    index_bits: int = 0


def next_power_of_two(n: int) -> int:
    return 1 << max(0, int(n) - 1).bit_length()


def _clamp(n, low, high):
    return max(low, min(high, n))


def choose(tiling: Tiling) -> Config:
    """The configuration that is used without timing anything."""
    return _CHOOSERS[tiling.kind](tiling)


def _smallest_access(kernel) -> int:
    return min((b.dtype.itemsize for b in kernel.buffers if b.role != "error"), default=4)


def _largest_access(kernel) -> int:
    return max((b.dtype.itemsize for b in kernel.buffers if b.role != "error"), default=4)


def flat(tiling: Tiling) -> Config:
    """One range: 16 bytes per thread and access."""
    n = size_hint(tiling.extent("x"))
    per_thread = _clamp(16 // _smallest_access(tiling.kernel), 4, 8)
    warps = 4
    block = warps * 32 * per_thread
    while warps > 1 and block > 128 and n // block < MULTIPROCESSORS:  # a small problem: more programs
        block //= 2
        if block < warps * 32:
            warps //= 2
    return Config(x=max(min(block, next_power_of_two(n)), 1), warps=warps)


def tiles(tiling: Tiling) -> Config:
    """Two contiguous axes: square tiles, through shared memory."""
    nx, ny = size_hint(tiling.extent("x")), size_hint(tiling.extent("y"))
    x = min(64, next_power_of_two(nx))
    y = min(4096 // x, 64 if nx >= 64 else 256, next_power_of_two(ny))
    return Config(x=x, y=y, warps=_clamp(x * y // 512, 1, 8))


def strips(tiling: Tiling) -> Config:
    """Pieces of rows: as ``flat``, without a division per element."""
    nx, ny = size_hint(tiling.extent("x")), size_hint(tiling.extent("y"))
    x = min(1024, next_power_of_two(nx))
    y = min(1024 // x, next_power_of_two(ny))
    return Config(x=x, y=y, warps=_clamp(x * y // 256, 1, 4))


def phases(kernel: loops.Kernel) -> dict:
    """Value name -> how many reductions in a row lie before it."""
    found = {}
    for s in kernel.body:
        if isinstance(s, (loops.Store, loops.Check)):
            continue
        needed = [found.get(n, 0) for n in (*loops.reads(s), *loops.index_symbols(s))]
        found[s.dst] = max(needed, default=0) + isinstance(s, loops.Reduce)
    return found


def held_bytes(kernel: loops.Kernel) -> int:
    """Bytes per row element that have to stay on chip, because they are needed before and after a reduction."""
    phase = phases(kernel)
    element = kernel.element_values
    uses = {}
    for s in kernel.body:
        p = max([phase.get(n, 0) for n in (*loops.reads(s), *loops.index_symbols(s))], default=0)
        for n in (*loops.reads(s), *loops.index_symbols(s)):
            if n in element:
                uses.setdefault(n, set()).add(p)
    total = 0
    for s in kernel.body:
        if isinstance(s, loops.Load) and s.dst in element and _spread(kernel, s.dst, phase) > 1:
            total += max(2, kernel.buffer_of[s.buffer].dtype.itemsize)
    return total


def _spread(kernel, name, phase) -> int:
    """In how many phases a loaded value is used, through element-level values of its own phase."""
    seen, places = {name}, set()
    for s in kernel.body:
        hit = any(n in seen for n in (*loops.reads(s), *loops.index_symbols(s)))
        if not hit:
            continue
        p = max([phase.get(n, 0) for n in (*loops.reads(s), *loops.index_symbols(s))])
        places.add(p)
        if isinstance(s, (loops.Compute, loops.IndexValue, loops.Load)) and p == phase[name]:
            seen.add(s.dst)
    return len(places)


def row_warps(width: int, itemsize: int) -> int:
    """Warps for one row of ``width`` elements (a power of two) held on chip."""
    for limit, warps in ((256, 1), (512, 2), (1024, 4), (8192, 8), (16384, 16), (32768, 32)):
        if width <= limit:
            return warps
    return 16 if itemsize <= 2 else 32


def rows(tiling: Tiling) -> Config:
    """Reduction along the contiguous axis: a row per program, held on chip; several short rows together; a loop for long ones."""
    kernel = tiling.kernel
    n_rows, width = size_hint(tiling.extent("x")), size_hint(tiling.extent("r"))
    held = held_bytes(kernel)
    itemsize = _largest_access(kernel)
    block = next_power_of_two(max(width, 2))
    static = type(tiling.extent("r")) is int
    limit = min(ON_CHIP_ELEMENTS, ON_CHIP_BYTES // held) if held else 8192
    if not static or block > limit:
        r = min(block, 4096 if static or width >= 4096 else 1024)
        return Config(x=1, r=r, looped=True, warps=_clamp(r // 256, 4, 16))
    x = 1
    while block * x < 1024 and x < 64 and x < n_rows:
        x *= 2
    while x > 1 and n_rows // x < MULTIPROCESSORS:
        x //= 2
    return Config(x=x, r=block, warps=row_warps(block * x, itemsize))


def columns(tiling: Tiling) -> Config:
    """Reduction across the contiguous axis: a loop over blocks of rows, with an accumulator per column."""
    nx, nr = size_hint(tiling.extent("x")), size_hint(tiling.extent("r"))
    n_z = size_hint(tiling.extent("z"))
    x = min(64, next_power_of_two(nx))
    while x > 16 and n_z * -(-nx // x) < MULTIPROCESSORS:
        x //= 2
    static = type(tiling.extent("r")) is int
    elements = 4096
    r = _clamp(elements // x, 2, 256)
    block = next_power_of_two(max(nr, 2))
    if static and block <= r:
        return Config(x=x, r=block, warps=_clamp(x * block // 256, 1, 8))
    return Config(x=x, r=r, looped=True, warps=_clamp(x * r // 512, 1, 8))


_CHOOSERS = {"flat": flat, "tile": tiles, "strip": strips, "inner": rows, "outer": columns}
