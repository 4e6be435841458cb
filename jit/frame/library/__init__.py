"""What the compiler knows of Python's own library, by table: builtins, container methods, the standard library,
torch."""

from ..values import byte_arrays  # noqa: F401  (as these, for its rules)
from . import (  # noqa: F401
    autograd_functions, backward, batching, builtin_functions, cached_functions, class_checks,
    class_statements, classes, container_methods, control_flow, flex_attention, formatting, interpreter, modules,
    numpy_functions, optimizers, pickles, polyfills, random_state, records, stdlib, text, torch_functions, transforms,
    type_expressions, wrapping,
)
