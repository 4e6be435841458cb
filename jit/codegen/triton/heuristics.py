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
    """How a kernel is laid out. All sizes are powers of two.

    x, y, r: block sizes. looped: the reduction runs in a loop over blocks of ``r``; parts: in that loop, a block is taken as ``parts`` pieces that
    each thread combines on its own (x is 1 then). recompute: in a row held on chip, only what was loaded stays in registers, and the rest is
    computed again after each reduction. stages: loads in flight in the loop. evict: give cache policies. index_bits: 32 or 64, or 0 to
    decide from the sizes.
    """

    x: int = 1
    y: int = 1
    r: int = 1
    looped: bool = False
    parts: int = 1
    recompute: bool = False
    warps: int = 4
    stages: int = 1
    evict: bool = False
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


_COST = dict.fromkeys("exp exp2 log sqrt rsqrt reciprocal div sigmoid sin cos".split(), 4)
_COST.update(dict.fromkeys("tanh erf erfc erfinv pow lgamma tan asin acos atan sinh cosh asinh acosh atanh expm1 log1p fmod remainder floor_div".split(), 16))


def arithmetic(kernel: loops.Kernel) -> int:
    """About how many instructions a point takes."""
    return sum(_COST.get(s.op, 1) for s in kernel.body if isinstance(s, loops.Compute))


def flat(tiling: Tiling) -> Config:
    """One range: 16 bytes per thread and access."""
    n = size_hint(tiling.extent("x"))
    per_thread = _clamp(16 // _smallest_access(tiling.kernel), 4, 8)
    if arithmetic(tiling.kernel) > 24:  # two vectors per thread, so that their arithmetic interleaves
        per_thread *= 2
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


def row_warps(width: int) -> int:
    """Warps for a block of ``width`` elements held on chip: 16 elements per thread, up to 16 warps."""
    return _clamp(width // 512, 1, 16)


def _pieces_allowed(kernel) -> bool:
    return not any(isinstance(s, loops.Scan) or isinstance(s, loops.Reduce) and s.op.startswith("arg") for s in kernel.body)


def rows(tiling: Tiling) -> Config:
    """Reduction along the contiguous axis: a row per program, held on chip; several short rows together; a loop for long ones."""
    kernel = tiling.kernel
    n_rows, width = size_hint(tiling.extent("x")), size_hint(tiling.extent("r"))
    held = held_bytes(kernel)
    block = next_power_of_two(max(width, 2))
    static = type(tiling.extent("r")) is int
    limit = min(ON_CHIP_ELEMENTS, ON_CHIP_BYTES // held) if held else 8192
    if not static or block > limit:
        return _long_rows(kernel, block, n_rows)
    x = 1
    while block * x < 1024 and x < 64 and x < n_rows:
        x *= 2
    while x > 1 and n_rows // x < MULTIPROCESSORS:
        x //= 2
    warps = row_warps(block * x)
    recompute = held == 2 and block >= 16384 and not any(isinstance(s, loops.Scan) for s in kernel.body)
    return Config(x=x, r=block, warps=warps, recompute=recompute)


def _long_rows(kernel, block: int, n_rows: int) -> Config:
    """A loop over a row: blocks of 4096 elements, 32 per thread, in four pieces that threads combine on their own."""
    r = _clamp(block, 512, 4096)
    warps = _clamp(r // 1024, 1, 4) if n_rows > 4 * MULTIPROCESSORS else _clamp(r // 256, 1, 16)
    parts = max(1, r // (warps * 256)) if _pieces_allowed(kernel) else 1
    return Config(r=r, looped=True, parts=parts, warps=warps)


def columns(tiling: Tiling) -> Config:
    """Reduction across the contiguous axis: a loop over blocks of rows, with an accumulator per column.

    A program takes up to 512 columns, as long as there are four programs per multiprocessor."""
    nx, nr, nz = (size_hint(tiling.extent(n)) for n in "xrz")
    x = min(512, next_power_of_two(nx))
    while x > 32 and nz * -(-nx // x) < 4 * MULTIPROCESSORS:
        x //= 2
    r = _clamp(4096 // x, 4, 64)
    block = next_power_of_two(max(nr, 2))
    static = type(tiling.extent("r")) is int
    if static and block <= r:
        return Config(x=x, r=block, warps=_clamp(x * block // 512, 1, 4))
    return Config(x=x, r=r, looped=True, warps=4, stages=3 if x >= 256 else 1)


_CHOOSERS = {"flat": flat, "tile": tiles, "strip": strips, "inner": rows, "outer": columns}
