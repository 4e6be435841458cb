"""The C++ extension, built on first use."""

from __future__ import annotations

import threading
from typing import Any, Callable

from jit import config

DIRECT_PRODUCTS = True  # products of halves and float32 on GPUs without PyTorch's operators
_native = None
_lock = threading.Lock()


def native() -> Any:
    """The extension module ``_jit_native``. Raises CompileError, with a cure, when it cannot be built."""
    global _native
    if _native is None:
        with _lock:
            if _native is None:
                from jit.runtime import build  # late: loaded with the extension, not when jit is imported

                module = build.load()
                module.set_pool_limit(config.cpu_pool_mb << 20)
                module.direct_products(DIRECT_PRODUCTS)
                _native = module
    return _native


def unhooked(fn: Callable) -> Callable:
    """A callable like ``fn`` that runs with the frame evaluation hook off."""
    return fn if _native is None else _native.Unhooked(fn)
