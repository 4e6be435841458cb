"""C++ as a target of plans: see ``jit.codegen.target``."""

from __future__ import annotations

from jit.codegen import cpp
from jit.runtime.steps import Call


def compile_kernels(kernels, aligned) -> dict:
    found = cpp.compile_cpp(kernels)
    return {k.name: (found[k.name], cpp.kernel_text(k)[1]) for k in kernels}


def step(code, slots, ints, written, number) -> Call:
    return Call(code, slots, ints, written)
