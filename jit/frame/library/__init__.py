"""What the compiler knows of Python's own library, by table: builtins, container methods, the standard library, torch."""

from . import (autograd_functions, backward, builtin_functions, class_statements, classes, container_methods, interpreter, modules, numpy_functions,  # noqa: F401
               optimizers, polyfills, stdlib, text, torch_functions, type_expressions, wrapping)
