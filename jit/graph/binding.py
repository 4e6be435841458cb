"""From a callable of PyTorch or Python to the name of the op that it stands for.

``torch.add``, ``Tensor.add``, ``Tensor.__add__``, ``operator.add`` and ``torch.ops.aten.add.Tensor`` are all ``add``;
``Tensor.add_``, ``operator.iadd`` are ``add_``. Functions that PyTorch writes in Python are bound to themselves.
"""

from __future__ import annotations

import builtins
import operator
import types
from typing import Callable, NamedTuple

import torch

from jit import torch_private
from jit.graph import registry
from jit.graph.functional import run_python

DUNDERS = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add_", "__sub__": "sub", "__isub__": "sub_", "__rsub__": "rsub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul_", "__truediv__": "true_divide",
    "__itruediv__": "true_divide_", "__div__": "true_divide",
    "__idiv__": "true_divide_", "__rdiv__": "rdiv", "__rtruediv__": "rdiv",
    "__floordiv__": "floor_divide", "__ifloordiv__": "floor_divide_", "__rfloordiv__": "rfloor_divide",
    "__mod__": "remainder", "__imod__": "remainder_", "__rmod__": "rremainder",
    "__pow__": "pow", "__ipow__": "pow_", "__rpow__": "rpow", "__matmul__": "matmul",
    "__rmatmul__": "rmatmul", "__imatmul__": "imatmul",
    "__and__": "bitwise_and", "__rand__": "bitwise_and", "__iand__": "bitwise_and_",
    "__or__": "bitwise_or", "__ror__": "bitwise_or", "__ior__": "bitwise_or_",
    "__xor__": "bitwise_xor", "__rxor__": "bitwise_xor", "__ixor__": "bitwise_xor_",
    "__lshift__": "bitwise_left_shift", "__ilshift__": "bitwise_left_shift_",
    "__rshift__": "bitwise_right_shift", "__irshift__": "bitwise_right_shift_",
    "__rlshift__": "rlshift", "__rrshift__": "rrshift",
    "__neg__": "neg", "__pos__": "positive", "__abs__": "abs", "__invert__": "bitwise_not",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
    "__getitem__": "__getitem__", "__setitem__": "__setitem__", "__len__": "__len__",
    "__bool__": "__bool__", "__contains__": "__contains__",
    "__float__": "item", "__int__": "item", "__index__": "item", "__complex__": "item", "__iter__": "unbind_list",
}  # fmt: skip

# Methods whose argument order is not that of the function of the same name.
METHODS = {"where": "where_method"}

_REFLECTED = {
    "add": "add", "sub": "rsub", "mul": "mul", "truediv": "rdiv", "floordiv": "rfloor_divide",
    "mod": "rremainder", "pow": "rpow", "matmul": "rmatmul",
    "and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor", "lshift": "rlshift", "rshift": "rrshift",
    "eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le",
}  # fmt: skip


class Binding(NamedTuple):
    """``name`` of the op; ``python`` when the callable is a Python function; ``overload`` for ``torch.ops`` objects;
    ``reflected``: the op to use, with exchanged operands, when only the second operand is a tensor; ``unreduced``: the
    position of ``reduction``, which PyTorch's Python bindings of losses take for 0 (none) where it is left out,
    whatever their schemas say."""

    name: str
    python: object = None
    overload: object = None
    reflected: str | None = None
    unreduced: int | None = None


def _operators() -> dict:
    table = {}
    for py in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
               "matmul", "and_", "or_", "xor", "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge"):
        dunder = f"__{py.rstrip('_')}__"
        table[getattr(operator, py)] = Binding(DUNDERS[dunder], reflected=_REFLECTED[py])
    for py in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod",
               "ipow", "imatmul", "iand", "ior", "ixor", "ilshift", "irshift"):
        name = DUNDERS[f"__{py}__"]
        plain = py[1:] if py not in ("iand", "ior") else py[1:] + "_"
        table[getattr(operator, py)] = Binding(name, reflected=_REFLECTED[plain])
    for py in ("neg", "pos", "abs", "invert", "inv"):
        table[getattr(operator, py)] = Binding(DUNDERS[f"__{py}__"] if py != "inv" else "bitwise_not")
    table[operator.getitem] = Binding("__getitem__")
    table[operator.setitem] = Binding("__setitem__")
    table[operator.truth] = Binding("__bool__")
    table[operator.contains] = Binding("__contains__")
    table[operator.index] = table[builtins.float] = table[builtins.int] = table[builtins.complex] = Binding("item")
    table[builtins.abs] = Binding("abs")
    table[builtins.len] = Binding("__len__")
    table[builtins.bool] = Binding("__bool__")
    table[builtins.pow] = Binding("pow", reflected="rpow")
    return table


def _builtin_functions() -> dict:
    table = {}
    for space in torch_private.NAMESPACES:
        for name in dir(space):
            fn = getattr(space, name)
            if not name.startswith("__") and type(fn) is types.BuiltinFunctionType:
                # Functions that share their C code (mm, dsmm, hspmm) are equal: keep the name that is an op.
                known = table.get(fn)
                if known is None or not _is_op(known.name) and _is_op(fn.__name__):
                    table[fn] = Binding(fn.__name__)
    return table


def _reduction(name: str) -> int | None:
    """The position of ``reduction`` among the arguments of ``aten::name``, if it has one."""
    packet = getattr(torch.ops.aten, name, None)
    for overload in (packet.overloads() if packet is not None
                     and name.rstrip("_nd2").endswith(("_loss", "kl_div", "entropy", "logits")) else ()):
        names = [a.name for a in torch_private.schema(getattr(packet, overload)).arguments]
        if "reduction" in names:
            return names.index("reduction")
    return None


def _is_op(name: str) -> bool:
    return name in registry.OPS or name in registry.LIBRARY or hasattr(torch.ops.aten, name)


def _methods() -> dict:
    table = {}
    for cls in (torch_private.TensorBase, torch.Tensor):
        for name, fn in cls.__dict__.items():
            if type(fn) in (types.MethodDescriptorType, types.WrapperDescriptorType):
                if name in DUNDERS:
                    table.setdefault(fn, Binding(DUNDERS[name]))
                elif name in METHODS:
                    table.setdefault(fn, Binding(METHODS[name]))
                elif not name.startswith("__"):
                    table.setdefault(fn, Binding(name))
    return table


# Methods that are Python functions only for the sake of type errors or __torch_function__.
_PYTHON_METHODS = (
    "__pow__", "__ipow__", "__rpow__", "__rsub__", "__rdiv__", "__rtruediv__",
    "__floordiv__", "__rfloordiv__", "__rmod__", "__rmatmul__", "__rlshift__",
    "__rrshift__", "__len__", "__iter__", "__contains__",
)  # fmt: skip


def _python_methods() -> dict:
    table = {}
    for name in _PYTHON_METHODS:
        fn = getattr(torch.Tensor, name, None)
        if fn is not None:
            table[fn] = Binding(DUNDERS[name])
    return table


_table: dict | None = None
_cache: dict = {}


def resolve(fn: Callable) -> Binding | None:
    """The binding of a callable, or None when it is not a tensor operation."""
    try:
        return _cache[fn]
    except KeyError:
        pass
    except TypeError:
        return None
    result = _resolve(fn)
    if result is not None:  # anything else may be a short-lived object of the program's
        _cache[fn] = result
    return result


def _resolve(fn: Callable) -> Binding | None:
    global _table
    if _table is None:
        import jit.graph.ops  # noqa: F401  late: it fills the op tables when the first call is captured

        _table = {**_python_methods(), **_methods(), **_builtin_functions(), **_operators()}
    if fn in registry.PYTHON:
        return Binding(getattr(fn, "__name__", "python"), python=registry.PYTHON[fn])
    if fn in _table:
        found = _table[fn]
        return found._replace(unreduced=_reduction(found.name)) if type(fn) is types.BuiltinFunctionType else found
    if isinstance(fn, (torch_private.OpOverload, torch_private.OpOverloadPacket)):
        schema = torch_private.schema(torch_private.overloads_of(fn)[0])
        namespace, _, name = schema.name.partition("::")
        return Binding(name if namespace == "aten" else schema.name, overload=fn)
    # Its source is run on proxies.
    if isinstance(fn, types.FunctionType) and fn.__module__ in torch_private.PYTHON_OPERATIONS:
        return Binding(fn.__name__, python=run_python(fn))
    return None
