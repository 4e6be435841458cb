"""jit: a bytecode-level just-in-time compiler for PyTorch."""

from . import config, versions

if versions.refusal() is None:
    from .api import (Explanation, compile, compile_count, disable, explain,
                      graph_break, is_compiling, mark_dynamic, reset, verify)
else:
    from .uncompiled import (Explanation, compile, compile_count, disable,
                             explain, graph_break, is_compiling, mark_dynamic, reset, verify)
from .errors import CompileError, JitError, PassError, Unsupported

__version__ = "0.1.0"
__all__ = ["CompileError", "Explanation", "JitError", "PassError", "Unsupported",
           "compile", "compile_count", "config", "disable", "explain",
           "graph_break", "is_compiling", "mark_dynamic", "reset", "verify"]
