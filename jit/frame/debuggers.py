"""Which tracers are debuggers: under one, compiled functions run in eager in the thread that it traces, so that
breakpoints in them are met, and stepping goes through the program's own lines, with its own variables.

Other tracers (coverage, profilers, a function given to ``sys.settrace``) get no such treatment: what they would measure
then is not what the program does without them.
"""

from __future__ import annotations

import sys

_OTHERS = ("pydevd", "_pydevd", "debugpy")  # packages of debuggers (PyCharm, VS Code) that are not made of ``bdb``


def is_debugger(tracer: object) -> bool:
    """Whether what ``sys.settrace`` was given, or an extension's own tracer, belongs to a debugger: one made of
    Python's ``bdb``, as pdb, ipdb and pdb++ are, or one of those named above."""
    owner = getattr(tracer, "__self__", tracer)
    bdb = sys.modules.get("bdb")
    if bdb is not None and isinstance(owner, bdb.Bdb):
        return True
    module = getattr(tracer, "__module__", None) or type(owner).__module__
    return isinstance(module, str) and module.partition(".")[0].startswith(_OTHERS)
