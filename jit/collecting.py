"""Compiling without Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's garbage collector: compiling makes so many objects that it would look at all there are, which
    takes 0.2 s beside a large library; and finalizers of the program's do not run in the middle of a capture. What
    another thread switches meanwhile is not kept."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
