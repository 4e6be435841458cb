"""jit: a bytecode-level just-in-time compiler for PyTorch."""

from . import config, versions

if versions.refusal() is None:
    from .api import (Explanation, assume_constant_result, compile, compile_count, disable, explain,
                      graph_break, is_compiling, mark_dynamic, mark_static, reset, set_stance, verify)
else:
    from .uncompiled import (Explanation, assume_constant_result, compile, compile_count, disable, explain,
                             graph_break, is_compiling, mark_dynamic, mark_static, reset, set_stance, verify)
from .errors import CompileError, JitError, PassError, Unsupported

__version__ = "0.1.0"
__all__ = ["CompileError", "Explanation", "JitError", "PassError", "Unsupported",
           "assume_constant_result", "compile", "compile_count", "config", "disable", "explain",
           "graph_break", "is_compiling", "mark_dynamic", "mark_static", "reset", "set_stance", "verify"]
