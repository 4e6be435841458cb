"""What the compiler knows of Python's own library, by table: builtins, container methods, the standard library, torch."""

from . import (autograd_functions, backward, builtin_functions, class_statements, classes, container_methods, interpreter, numpy_functions, optimizers, polyfills,  # noqa: F401
               stdlib, text, torch_functions, type_expressions, wrapping)
