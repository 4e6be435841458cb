"""Triton as a target of plans: see ``jit.codegen.target``. Code is a kernel as the runtime takes it, and the number of
its programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runtime.plan import GpuKernel
from ...runtime.steps import Launch
from .compile import compile_triton

if TYPE_CHECKING:
    from .ops import Context


def compile_kernels(kernels, aligned) -> dict:
    found = compile_triton(kernels, aligned=aligned)
    return {name: ((_launched(c), c.source.grid), c.source.text) for name, c in found.items()}


def _launched(c: Context) -> GpuKernel:
    """The runtime's record of a compiled kernel."""
    types = [t for t in c.source.arguments if not t.startswith("*")]
    return GpuKernel(c.function, c.cubin, c.warps, c.shared, tuple(enumerate(types)),
                     scratch=1 if c.source.scratch else 2, early=c.early)


def step(code, slots, ints, written, number) -> Launch:
    kernel, programs = code
    one = number(1)
    return Launch(kernel, slots, ints, (number(programs), one, one), written)
