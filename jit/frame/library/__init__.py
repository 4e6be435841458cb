"""What the compiler knows of Python's own library, by table: builtins, container methods, the standard library, torch."""

from . import builtin_functions, classes, container_methods, interpreter, numpy_functions, polyfills, stdlib, text, torch_functions, type_expressions, wrapping  # noqa: F401
