"""The right-hand end of the compiler: native dispatcher, guard programs, plan executor, memory pool and launcher.

``native()`` gives the C++ extension, built on first use (see ``build.py``). ``load_plan`` and ``guards.program`` turn
plain data into native objects.
"""

from __future__ import annotations

from jit.runtime.extension import native, unhooked
from jit.runtime.plan import load_plan

__all__ = ["load_plan", "native", "unhooked"]
