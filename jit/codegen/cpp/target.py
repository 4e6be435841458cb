"""C++ as a target of plans: see ``jit.codegen.target``."""

from __future__ import annotations

from typing import Callable

from jit.codegen import cpp
from jit.runtime.steps import Call


def begin_kernels(kernels, aligned) -> Callable[[], dict]:
    finish = cpp.begin_cpp(kernels)

    def compiled() -> dict:
        found = finish()
        return {k.name: (found[k.name], cpp.kernel_text(k)[1]) for k in kernels}

    return compiled


def function_of(kernel, code) -> str:
    return cpp.kernel_text(kernel)[0]


def step(code, slots, ints, written, number) -> Call:
    return Call(code, slots, ints, written)
