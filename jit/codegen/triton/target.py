"""Triton as a target of plans: see ``jit.codegen.target``. Code is a kernel as the runtime takes it, and the number of
its programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from ...runtime.plan import GpuKernel
from ...runtime.steps import Launch, LaunchTogether
from . import worker, workers
from .compile import begin_triton

if TYPE_CHECKING:
    from .ops import Context


def expects_kernels() -> None:
    workers.workers().start()


def begin_kernels(kernels, aligned, joined=None) -> Callable[[], dict]:
    finish = begin_triton(kernels, aligned=aligned, joined=joined)
    return lambda: {name: ((_launched(c), c.source.grid), c.source.text) for name, c in finish().items()}


def _launched(c: Context) -> GpuKernel:
    """The runtime's record of a compiled kernel."""
    types = [t for t in c.source.arguments if not t.startswith("*")]
    return GpuKernel(c.function, c.cubin, c.warps, c.shared, tuple(enumerate(types)),
                     scratch=1 if c.source.scratch else 2, early=c.early, joined=c.joined)


def function_of(kernel, code) -> str:
    return code[0].name


def step(code, slots, ints, written, number) -> Launch:
    kernel, programs = code
    one = number(1)
    return Launch(kernel, slots, ints, (number(programs), one, one), written)


def may_join(kernel) -> bool:
    return worker.places(len(kernel.buffers) + len(kernel.sizes), 2)[0] == 2


def joined_step(code, slots, ints, written, numbers) -> LaunchTogether:
    kernel, programs = code
    return LaunchTogether(kernel, tuple(s for of_one in slots for s in of_one),
                          tuple(i for of_one in ints for i in of_one), tuple(number(programs) for number in numbers),
                          written)
