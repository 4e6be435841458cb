"""The numbers of one device that choices are made by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """Read from the device where there is one.

    Attributes:
        name: what the maker calls it.
        processors: multiprocessors of a GPU, cores of a CPU that this process may use.
        lanes: threads of a warp; 1 where there are none.
        registers: bytes of the registers of one multiprocessor; 0 where kernels do not count them.
        local: bytes of memory next to a processor: a multiprocessor's shared memory for one program, a core's own
            cache.
        cache: bytes of the cache that all processors share.
        bandwidth: bytes per second that the memory's clock and width allow; 0 where they are not told.
        products: operations per second of products of matrices of halves, a multiplication and an addition being two;
            0 where they are not told.
        capability: the version of a GPU's instruction set as major * 10 + minor; 0 of a CPU.
    """

    name: str
    processors: int
    lanes: int = 1
    registers: int = 0
    local: int = 0
    cache: int = 0
    bandwidth: float = 0.0
    products: float = 0.0
    capability: int = 0

    def __str__(self) -> str:
        memory = f", {self.bandwidth / 1e12:.1f} TB/s" if self.bandwidth else ""
        return f"{self.name}: {self.processors} processors, {self.cache / (1 << 20):.0f} MiB of cache{memory}"
