"""What the compiler knows of Python's own library, by table: builtins, container methods, the standard library,
torch."""

from ..values import byte_arrays, thread_locals  # noqa: F401  (as these, for their rules)
from . import (  # noqa: F401
    autograd_functions, backward, batching, builtin_functions, cached_functions, class_checks, class_statements,
    classes, compiler_control, container_methods, control_flow, debuggers, distributed, drawn_in_maps, dtensors,
    flex_attention, foreign_operators, formatting, forward_mode, gradient_hooks, interpreter, jagged_attention,
    jagged_tensors, modules, numpy_functions, optimizers, pickles, polyfills, printing, random_numbers, random_state,
    records, sharded_modules, stdlib, tensor_equality, tensor_subclasses, text, torch_functions, transforms,
    type_expressions, user_kernels, wrapping,
)
