"""What the compiler knows of Python's own library, by table: builtins, container methods, the standard library, torch."""

from . import (autograd_functions, backward, batching, builtin_functions, class_statements, classes, container_methods, interpreter,  # noqa: F401
               modules, numpy_functions, optimizers, polyfills, stdlib, text, torch_functions, type_expressions, wrapping)
