"""Handlers of the canonical ops, a file per family; importing the package fills ``executor.HANDLERS``."""

from . import asynchronous, calls, containers, control, exceptions, matching, names, stack  # noqa: F401
