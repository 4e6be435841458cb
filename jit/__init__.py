"""jit: a bytecode-level just-in-time compiler for PyTorch."""

import importlib
from typing import TYPE_CHECKING

from . import config, versions

if TYPE_CHECKING:
    from . import interop as interop, passes as passes

if TYPE_CHECKING or versions.refusal() is None:
    from .api import (Explanation, allow_in_graph, assume_constant_result, compile, compile_count, compile_in_place,
                      cudagraph_mark_step_begin, disable, explain, graph_break, is_compiling, is_dynamo_compiling,
                      mark_dynamic, mark_static, mark_unbacked, minify, nested_compile_region, reset, set_stance,
                      substitute_in_graph, verify, wait_for_compiles)
    from .saving import load, save
else:
    from .uncompiled import (Explanation, allow_in_graph, assume_constant_result, compile, compile_count,
                             compile_in_place, cudagraph_mark_step_begin, disable, explain, graph_break, is_compiling,
                             is_dynamo_compiling, mark_dynamic, mark_static, mark_unbacked, nested_compile_region,
                             load, minify, reset, save, set_stance, substitute_in_graph, verify, wait_for_compiles)
from .errors import CompileError, JitError, LoadError, PassError, RecompileError, Unsupported

def __getattr__(name: str) -> object:
    if name in ("interop", "fx"):  # loads torch.fx
        return importlib.import_module("jit.interop")
    raise AttributeError(f"module 'jit' has no attribute {name!r}")


__version__ = versions.JIT
__all__ = ["CompileError", "Explanation", "JitError", "LoadError", "PassError", "RecompileError", "Unsupported",
           "allow_in_graph", "assume_constant_result", "compile", "compile_count", "compile_in_place", "config",
           "cudagraph_mark_step_begin", "disable", "explain", "graph_break", "is_compiling", "is_dynamo_compiling",
           "load", "mark_dynamic", "mark_static", "mark_unbacked", "minify", "nested_compile_region", "reset", "save",
           "set_stance", "substitute_in_graph", "verify", "wait_for_compiles"]
