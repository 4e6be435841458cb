"""The dispatch tables of symbolic execution. Each row is added by a decorator in ``values/`` or ``library/``."""

from __future__ import annotations

from collections.abc import Container
from typing import Callable

wrappers: dict = {}           # type -> fn(s, obj, source) -> Value: how a real object of that type is represented
new_values: dict = {}         # type -> fn(s, obj) -> Value: a plain result made while capturing
# C callable or class -> fn(s, args, kwargs) -> Value; a class method's descriptor: with the class as first argument.
calls: dict = {}
functions: dict = {}          # Python function -> fn(s, args, kwargs) -> Value, instead of inlining it
methods: dict = {}            # (class, name) of a C method of an object -> fn(s, value, args, kwargs) -> Value
pure: set = set()             # C callables without effects: called for real on constants
# Class that has a ``__get__``, in C or better not followed -> fn(s, value, raw, name, class of the lookup) -> Value:
descriptors: dict = {}        # of an object
class_descriptors: dict = {}  # of a class
module_attributes: dict = {}  # type of a descriptor of a class of modules -> fn(s, module, raw, name) -> Value
tensor_attributes: dict = {}  # name -> fn(s, tensor) -> Value, before the tracer is asked
tensor_setters: dict = {}     # name -> fn(s, tensor, value): an attribute of a tensor is set
tensor_methods: dict = {}     # name -> fn(s, tensor, args, kwargs) -> Value | None
codes: dict = {}              # code object of closures -> fn(s, function, args, kwargs) -> Value
named: dict = {}              # (module, qualified name) of a Python function that may not be there -> as in ``codes``
array_rules: dict = {}        # function of NumPy -> the same in functions of PyTorch, which is followed
array_methods: dict = {}      # name of a method of arrays -> fn(s, array, args, kwargs) -> Value
marks: dict = {}              # attribute of a Python function -> as in ``codes``; the first one that it has counts
substitutes: dict = {}        # callable -> the Python function that the program has given for it
in_graph: set = set()         # callables that the program says are followed by running them
refusals: dict = {}           # Python function -> fn(s, args), which may raise that a call of it is a break
forbidden: dict = {}          # callable -> (why, hint): a recorded break


# What calls PyTorch with DTensors among the arguments, fn(s, called, args, kwargs) -> Value; None before there are any.
spread_call: Callable | None = None
# What draws random numbers inside of a transform, fn(s, called, args, kwargs) -> Value, or None where it draws none.
mapped_draw: Callable | None = None
late: dict = {}               # name of a module -> what fills in more rows once the program has imported it


def _register(table: dict) -> Callable:
    def keyed(*keys: object) -> Callable:
        def decorate(fn: Callable) -> Callable:
            for key in keys:
                table[key] = fn
            return fn

        return decorate

    return keyed


wrapper, new_value, on_call, on_function = (_register(wrappers), _register(new_values),
                                            _register(calls), _register(functions))
array_rule, on_array_method = _register(array_rules), _register(array_methods)
on_code, on_name, on_mark, on_refusal = (_register(codes), _register(named), _register(marks),
                                         _register(refusals))
on_method, on_tensor_attribute, on_tensor_method, on_descriptor = (
    _register(methods), _register(tensor_attributes), _register(tensor_methods), _register(descriptors))
on_tensor_setter, on_class_descriptor, on_module_attribute = (
    _register(tensor_setters), _register(class_descriptors), _register(module_attributes))


when_loaded = _register(late)


def fill_in(loaded: Container[str]) -> None:
    """Have the rows of modules that were imported since."""
    for name in [name for name in late if name in loaded]:
        late.pop(name)()


def rule_if_there(holder: object, *names: str) -> Callable:
    """``array_rule`` for functions that some versions of NumPy do not have."""
    return array_rule(*(getattr(holder, name) for name in names if hasattr(holder, name)))


def add_pure(*callables: Callable) -> None:
    """Register C callables that may be run for real when every argument is a constant."""
    pure.update(callables)


def add_forbidden(why: str, hint: str, *callables: object) -> None:
    """Register callables that always break the graph."""
    for fn in callables:
        forbidden[fn] = (why, hint)
