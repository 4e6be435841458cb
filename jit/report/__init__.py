"""Reports of what was compiled: ``jit.explain(fn)(*args)`` gathers one, as text and as a page of HTML."""

from . import debug, gather, measured, minimal  # noqa: F401
