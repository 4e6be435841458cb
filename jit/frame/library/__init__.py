"""What the compiler knows of Python's own library, by table: builtins, container methods, the standard library, torch."""

from . import (autograd_functions, backward, builtin_functions, class_statements, classes, container_methods, interpreter, modules, numpy_functions, optimizers,  # noqa: F401
               polyfills, stdlib, text, torch_functions, type_expressions, wrapping)
