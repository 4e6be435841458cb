"""What a tracer such as coverage.py sees of compiled code. A compiled function runs no lines of the program's, but for
those of its breaks. So when one is compiled while a tracer is on, the lines that the compiler has followed are told to
it: functions that do nothing, in the same lines of the same files, are called once.

A debugger is another matter: under one, functions are not compiled (``debuggers.py``).
"""

from __future__ import annotations

import ast
import sys
import types

from .. import observing


def wanted() -> bool:
    """Whether a tracer, or a tool for coverage of ``sys.monitoring``, is on in this thread."""
    if sys.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return monitoring is not None and monitoring.get_tool(monitoring.COVERAGE_ID) is not None


def tell(followed: observing.Lines) -> None:
    """Run through these lines, in order."""
    for code, lines in followed.runs:
        if lines:
            _in_lines(code, tuple(lines))()


def _in_lines(code: types.CodeType, lines: tuple[int, ...]) -> types.FunctionType:
    """A function that does nothing, in these lines, under the names of ``code``."""
    place = {"lineno": code.co_firstlineno, "col_offset": 0, "end_lineno": code.co_firstlineno, "end_col_offset": 0}
    body: list[ast.stmt] = [ast.Pass(**{**place, "lineno": line, "end_lineno": line}) for line in lines]
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef(name="f", args=nothing, body=body, decorator_list=[], **place)
    if sys.version_info >= (3, 12):
        function.type_params = []
    module = compile(ast.Module([function], []), code.co_filename, "exec", dont_inherit=True)
    made = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    return types.FunctionType(made.replace(co_name=code.co_name, co_qualname=code.co_qualname), {})
