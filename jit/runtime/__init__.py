"""The right-hand end of the compiler: native dispatcher, guard programs, plan executor, memory pool and launcher.

``native()`` gives the C++ extension, built on first use (see ``build.py``). ``load_plan`` and ``guards.program`` turn plain
data into native objects.
"""

from __future__ import annotations

import threading

_native = None
_lock = threading.Lock()


def native():
    """The extension module ``_jit_native``. Raises CompileError, with a cure, when it cannot be built."""
    global _native
    if _native is None:
        with _lock:
            if _native is None:
                from jit import config
                from jit.runtime import build

                module = build.load()
                module.set_pool_limit(config.cpu_pool_mb << 20)
                _native = module
    return _native


def unhooked(fn):
    """A callable like ``fn`` that runs with the frame evaluation hook off."""
    return fn if _native is None else _native.Unhooked(fn)


def load_plan(plan):
    """A native callable for a ``plan.Plan``: ``call(*tensors, *ints) -> tuple``."""
    from jit.runtime.plan import load_plan as load

    return load(plan)
