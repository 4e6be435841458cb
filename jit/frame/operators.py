"""Operators on values: arithmetic, comparison, ``is``, ``in``, truth; by constant folding, tensors, containers or
special methods."""

from __future__ import annotations

import collections
import math
import operator
import types

import numpy as np
import torch

from ..errors import Unsupported
from ..graph.dims import Dim, bounds
from ..runtime import facts
from .values.base import Raised, Value, type_name
from .values.constant import Constant, DimValue
from .values.containers import ContainerValue, DictValue, DictView, ListValue, SequenceValue, SetValue, TupleValue
from .values.deferred import Deferred, combined
from .values.floats import SYMBOLS, FloatValue, compute
from .values.functions import ClassValue, MethodValue
from .values.objects import BuiltinMethod, ObjectValue
from .values.tensor import SLOTS, TensorValue

BINARY = {
    "+": (operator.add, operator.iadd, "add"), "-": (operator.sub, operator.isub, "sub"),
    "*": (operator.mul, operator.imul, "mul"),
    "/": (operator.truediv, operator.itruediv, "truediv"), "//": (operator.floordiv, operator.ifloordiv, "floordiv"),
    "%": (operator.mod, operator.imod, "mod"), "**": (operator.pow, operator.ipow, "pow"),
    "@": (operator.matmul, operator.imatmul, "matmul"),
    "<<": (operator.lshift, operator.ilshift, "lshift"), ">>": (operator.rshift, operator.irshift, "rshift"),
    "&": (operator.and_, operator.iand, "and"), "|": (operator.or_, operator.ior, "or"),
    "^": (operator.xor, operator.ixor, "xor"),
}
COMPARE = {"<": (operator.lt, "__lt__", "__gt__"), "<=": (operator.le, "__le__", "__ge__"),
           "==": (operator.eq, "__eq__", "__eq__"),
           "!=": (operator.ne, "__ne__", "__ne__"), ">": (operator.gt, "__gt__", "__lt__"),
           ">=": (operator.ge, "__ge__", "__le__")}
_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
UNARY = {"-": (operator.neg, "__neg__"), "+": (operator.pos, "__pos__"), "~": (operator.invert, "__invert__")}
BY_FUNCTION = {}
for _symbol, (_fn, _ifn, _name) in BINARY.items():
    BY_FUNCTION[_fn] = (_symbol, False)
    BY_FUNCTION[_ifn] = (_symbol, True)
for _fn, _ifn, _name in BINARY.values():
    SLOTS[_fn], SLOTS[_ifn] = (f"__{_name}__", f"__r{_name}__"), (f"__i{_name}__", f"__r{_name}__")
for _fn, _name, _reflected in COMPARE.values():
    SLOTS[_fn] = (_name, _reflected)
for _fn, _name in UNARY.values():
    SLOTS[_fn] = (_name, None)
CONTAINER_RULES: dict = {}


def container_rule(symbol, *classes):
    """Register an operator between containers: ``fn(s, a, b, inplace) -> Value | None``."""

    def decorate(fn):
        for cls in classes:
            CONTAINER_RULES[symbol, cls] = fn
        return fn

    return decorate


def binary(s, symbol: str, a: Value, b: Value, inplace: bool = False) -> Value:
    """``a symbol b``, or ``a symbol= b``."""
    fn, inplace_fn, name = BINARY[symbol]
    later = combined(s, symbol, fn, a, b)
    if later is not None:
        return later
    if isinstance(a, Constant) and isinstance(a.value, np.generic) and isinstance(b, TensorValue):
        raise Unsupported("a numpy scalar on the left of a tensor", kind="numpy",
                          hint="write the tensor first, or use a Python number")
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        if isinstance(a, TensorValue) or not (isinstance(a, ObjectValue) and not isinstance(a, ContainerValue)
                                              and a.has_special(s, f"__{name}__")):
            if not (isinstance(b, ObjectValue) and not isinstance(b, ContainerValue)):
                return s.torch_call(inplace_fn if inplace else fn, [a, b], {})
    if isinstance(a, (FloatValue, DimValue)) or isinstance(b, (FloatValue, DimValue)):
        result = _dims(s, symbol, a, b)
        if result is None and symbol in SYMBOLS:
            result = compute(s, symbol, [a, b])
        if result is not None:
            return result
    if symbol in "&|-^" and any(isinstance(v, DictView) and v.what != "values" for v in (a, b)):
        a, b = (v.as_set(s) if isinstance(v, DictView) else v for v in (a, b))
        if not isinstance(a, SetValue) or not isinstance(b, SetValue):
            a, b = (v if isinstance(v, SetValue) else SetValue.of(s, v.items_list(s)) for v in (a, b))
    if isinstance(a, (SequenceValue, DictValue, SetValue)) or isinstance(b, (SequenceValue, DictValue, SetValue)):
        result = _container(s, symbol, a, b, inplace)
        if result is not None:
            return result
    if isinstance(a, ClassValue) or isinstance(b, ClassValue):
        return s.fold(inplace_fn if inplace else fn, [a, b], {})
    if symbol == "%" and isinstance(a, Constant) and isinstance(a.value, str) and not b.is_const():
        from .library.formatting import percent

        return percent(s, a.const(s), b)
    if _special_holder(a) or _special_holder(b):
        return special(s, symbol, name, a, b, inplace)
    if a.is_const() and b.is_const():
        return s.fold(inplace_fn if inplace else fn, [a, b], {})
    _refuse(s, inplace_fn if inplace else fn, a, b)
    raise Unsupported(f"operator {symbol} on {a.describe()} and {b.describe()}", kind="operator")


def _refuse(s, fn, a, b):
    """Raise the program's TypeError where builtin types do not go together: empty objects of them say so."""
    samples = []
    for v in (a, b):
        if isinstance(v, ContainerValue) and v.cls is v.builtin:
            v.pytype(s)
            samples.append(v.builtin())
        elif isinstance(v, Constant):
            samples.append(v.const(s))
        else:
            return
    try:
        fn(*samples)
    except TypeError as error:
        raise Raised(s.exception(error)) from None
    except Exception:  # of these samples
        pass


def _special_holder(v) -> bool:
    return (isinstance(v, ObjectValue) and not isinstance(v, ClassValue)
            and not (isinstance(v, ContainerValue) and v.cls is v.builtin))


def _dims(s, symbol, a, b):
    x = a.dim if isinstance(a, DimValue) else a.value if isinstance(a, Constant) else None
    y = b.dim if isinstance(b, DimValue) else b.value if isinstance(b, Constant) else None
    if isinstance(x, (int, Dim)) and isinstance(y, (int, Dim)) and symbol in ("+", "-", "*", "//", "%"):
        if symbol in ("//", "%") and isinstance(y, int) and y == 0:
            return s.fold(BINARY[symbol][0], [Constant(1), Constant(0)], {})
        if symbol in ("//", "%") and isinstance(y, Dim) and y == 0:
            return s.fold(BINARY[symbol][0], [Constant(1), Constant(0)], {})
        turns = 0  # added so that the dividend is not negative, which symbolic quotients want
        if symbol in ("//", "%") and type(y) is int and y > 0 and isinstance(x, Dim) and (bounds(x)[0] or 0) < 0:
            turns = -(bounds(x)[0] // y)
            x = x + turns * y
        if symbol in ("//", "%") and any(bounds(v)[0] is None or bounds(v)[0] < 0 for v in (x, y)):
            return None
        if isinstance(x, bool) or isinstance(y, bool):
            x, y = (int(x) if isinstance(x, bool) else x), (int(y) if isinstance(y, bool) else y)
        result = BINARY[symbol][0](x, y) - (turns if symbol == "//" else 0)
        for v in (a, b):
            if isinstance(v, Constant):
                v.const(s)
        return DimValue(result) if isinstance(result, Dim) else Constant(result)
    return None


def _container(s, symbol, a, b, inplace):
    if symbol == "*" and isinstance(b, SequenceValue) and not isinstance(a, SequenceValue):
        a, b = b, a
    if (isinstance(a, SequenceValue) and a.cls in (list, tuple) or isinstance(a, TupleValue)
        and not a.user_special(s, f"__{BINARY[symbol][2]}__")):
        if (symbol == "+" and isinstance(b, ObjectValue) and not isinstance(b, (ClassValue, ContainerValue))
            and b.has_special(s, "__radd__")):
            result = b.call_special(s, "__radd__", [a])  # a number's method comes before what sequences do
            if not (isinstance(result, Constant) and result.value is NotImplemented):
                return result
        if symbol == "+" and isinstance(a, ListValue) and inplace:
            a.extend_by(s, b)
            return a
        if symbol == "+" and isinstance(a, TupleValue) and isinstance(b, TupleValue) and torch.Size in (a.cls, b.cls):
            return _join_sizes(s, a, b)
        if symbol == "+" and isinstance(b, SequenceValue) and isinstance(a, ListValue) == isinstance(b, ListValue):
            return a.like(a.load(s) + b.load(s))
        if (symbol == "*" and isinstance(b, ObjectValue) and not isinstance(b, ClassValue)
            and (b.has_special(s, "__mul__") or b.has_special(s, "__rmul__"))):
            return None  # its methods come first
        if symbol == "*" and s.has_index(b):
            elements = a.load(s) * s.index(b)
            if isinstance(a, ListValue) and inplace:
                s.set_elements(a, elements)
                a.changed(s, list.__imul__, [b])
                return a
            return a.like(elements)
    if isinstance(a, DictValue) and isinstance(b, DictValue) and symbol == "|":
        if inplace and not a.user_special(s, "__ior__"):
            a.call_method(s, "update", [b])
            return a
        if a.cls is not dict or b.cls is not dict:
            raise Unsupported(f"{a.cls.__name__} | {b.cls.__name__}", kind="operator")
        entries = dict(a.load(s))
        for k, (key, value) in b.load(s).items():
            entries[k] = (entries[k][0] if k in entries else key, value)
        return DictValue(entries)
    if isinstance(a, SetValue) and isinstance(b, SetValue) and symbol in "&|-^":
        x, y = a.load(s), b.load(s)
        keys = {"&": [k for k in x if k in y], "|": [*x, *(k for k in y if k not in x)],
                "-": [k for k in x if k not in y],
                "^": [*(k for k in x if k not in y), *(k for k in y if k not in x)]}[symbol]
        if symbol == "&" and len(y) <= len(x):  # CPython goes through the smaller one
            x, y = y, x
        entries = {k: x.get(k, y.get(k)) for k in keys}
        if inplace and a.cls is set:
            a.update(s, entries, {"&": set.__iand__, "|": set.__ior__, "-": set.__isub__, "^": set.__ixor__}[symbol],
                     [b])
            return a
        return SetValue(entries, a.cls)
    return None


def _join_sizes(s, a, b):
    """A ``torch.Size`` and a tuple, on either side: a ``torch.Size``, which holds nothing but integers."""
    elements = a.load(s) + b.load(s)
    if all(isinstance(v, DimValue) or isinstance(v, Constant) and type(v.value) is int for v in elements):
        return TupleValue(elements, torch.Size)
    if a.is_const() and b.is_const():
        return s.fold(operator.add, [a, b], {})
    raise Unsupported("a torch.Size and a tuple of other things than integers", kind="operator")


def special(s, symbol, name, a, b, inplace=False):
    """``a symbol b`` by the special methods ``__name__`` and ``__rname__``."""
    tried = []
    if inplace and isinstance(a, ObjectValue) and a.has_special(s, f"__i{name}__"):
        tried.append((a, f"__i{name}__", b))
    forward, backward = (a, f"__{name}__", b), (b, f"__r{name}__", a)
    if isinstance(a, ObjectValue) and isinstance(b, ObjectValue) and a.cls is not b.cls and s.inherits(b.cls, a.cls):
        tried += [backward, forward]
    elif (isinstance(a, ObjectValue) and isinstance(b, ObjectValue) and a.cls is b.cls
          and not isinstance(a, ContainerValue)):
        tried.append(forward)  # one of the same class is not asked as the right operand
    else:
        tried += [forward, backward]
    for owner, method, other in tried:
        if isinstance(owner, ObjectValue):
            if not owner.has_special(s, method):
                continue
            result = owner.call_special(s, method, [other])
        elif isinstance(owner, Constant) and hasattr(type(owner.value), method) and other.is_const():
            result = owner.call_special(s, method, [other])
        else:
            continue
        if not (isinstance(result, Constant) and result.value is NotImplemented):
            return result
    cls = a.pytype(s)
    if symbol == "+" and cls in (str, list, tuple):
        raise Raised(s.exception(TypeError(f'can only concatenate {cls.__name__} (not "{type_name(b.pytype(s))}") to '
                                           f'{cls.__name__}')))
    shown = {"**": "** or pow()"}.get(symbol, symbol) + ("=" if inplace else "")
    raise Raised(s.exception(TypeError(
        f"unsupported operand type(s) for {shown}: '{type_name(a.pytype(s))}' and '{type_name(b.pytype(s))}'")))


def unary(s, symbol: str, a: Value) -> Value:
    fn, method = UNARY[symbol]
    if type(a) is Deferred:
        a.needed()
    if isinstance(a, TensorValue):
        return s.torch_call(fn, [a], {})
    if isinstance(a, DimValue):
        return DimValue(-a.dim) if symbol == "-" else a if symbol == "+" else s.fold(fn, [a], {})
    if isinstance(a, FloatValue) and symbol != "~":
        return compute(s, symbol, [a])
    if isinstance(a, ObjectValue) and not isinstance(a, ClassValue):
        if not a.has_special(s, method):
            raise Raised(s.exception(TypeError(f"bad operand type for unary {symbol}: '{type_name(a.cls)}'")))
        return a.call_special(s, method, [])
    return s.fold(fn, [a], {})


def compare(s, symbol: str, a: Value, b: Value) -> Value:
    """``a < b`` and the like; the result is not turned into a bool."""
    fn, method, reflected = COMPARE[symbol]
    for v in (a, b):
        if type(v) is Deferred:
            v.needed()
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        other = b if isinstance(a, TensorValue) else a
        if (isinstance(other, Constant) and not isinstance(other.value, (int, float, complex))
            or not (other.is_const() or isinstance(other, (TensorValue, DimValue)))):
            if symbol in ("==", "!="):
                a.pytype(s), other.pytype(s)
                return Constant(symbol == "!=")
        return s.torch_call(fn, [a, b], {})
    if isinstance(a, DimValue) or isinstance(b, DimValue):
        x = a.dim if isinstance(a, DimValue) else a.const(s) if a.is_const() else None
        y = b.dim if isinstance(b, DimValue) else b.const(s) if b.is_const() else None
        if isinstance(x, (int, float, Dim)) and isinstance(y, (int, float, Dim)):
            if isinstance(x, float) or isinstance(y, float):
                if isinstance(x, float):
                    x, y, symbol = y, x, _MIRRORED[symbol]
                return Constant(_compare_with_float(symbol, x, y))
            return Constant(bool(fn(x, y)))
        return Constant(symbol == "!=") if symbol in ("==", "!=") else s.fold(fn, [a, b], {})
    if symbol in ("==", "!="):
        equal = _equal_methods(s, a, b)
        if equal is not None:
            return Constant(equal == (symbol == "=="))
    if not (isinstance(a, SetValue) and isinstance(b, SetValue)) and all(
            isinstance(v, SetValue) or isinstance(v, DictView) and v.what != "values" for v in (a, b)):
        return Constant(_compare_views(s, symbol, a, b))
    for v, cls in ((a, ContainerValue), (b, ContainerValue)):
        if isinstance(v, cls) and v.cls is not v.builtin and v.user_special(s, method):
            return _compare_special(s, symbol, a, b)
    if isinstance(a, ContainerValue) and isinstance(b, ContainerValue):
        if a.cls is not b.cls and s.inherits(b.cls, a.cls):  # its method comes first
            a, b, symbol = b, a, _MIRRORED[symbol]
        result = _compare_containers(s, symbol, a, b)
        if result is not None:
            return Constant(result)
    if a.is_const() and b.is_const() and not _special_holder(a) and not _special_holder(b):
        return s.fold(fn, [a, b], {})
    if isinstance(a, ObjectValue) or isinstance(b, ObjectValue):
        return _compare_special(s, symbol, a, b)
    if symbol in ("==", "!="):
        return Constant(_identical(s, a, b) == (symbol == "=="))
    _refuse(s, fn, a, b)
    raise Unsupported(f"comparison {symbol} of {a.describe()} and {b.describe()}", kind="operator")


def _compare_with_float(symbol, n: Dim, f: float) -> bool:
    """``n < f`` and the like of a symbolic integer, by a condition on integers."""
    if not math.isfinite(f):
        return COMPARE[symbol][0](0, f)
    if symbol in ("==", "!="):
        return bool(COMPARE[symbol][0](n, int(f))) if f == int(f) else symbol == "!="
    return bool(COMPARE[symbol][0](n, math.floor(f) if symbol in ("<=", ">") else math.ceil(f)))


def _identical(s, a, b) -> bool:
    """Equality of objects that define none, guarded."""
    for v in (a, b):
        if v.source is not None:
            v.pytype(s)
    return same_object(s, a, b)


_COMPARED_HERE = (list, tuple, dict, set, frozenset, collections.deque)


def _compares_in_c(s, owner, name) -> bool:
    """Whether the class of an object has a comparison of its own that is written in C, which no rule here stands
    for."""
    if not isinstance(owner, ObjectValue) or isinstance(owner, (ClassValue, MethodValue, BuiltinMethod)):
        return False
    if isinstance(owner, ContainerValue) and owner.builtin in _COMPARED_HERE:
        return False
    found = getattr(owner.pytype(s), name, None)
    return isinstance(found, types.WrapperDescriptorType) and found is not getattr(object, name)


def _compare_special(s, symbol, a, b):
    fn, method, reflected = COMPARE[symbol]
    order = [(a, method, b), (b, reflected, a)]
    if isinstance(a, ObjectValue) and isinstance(b, ObjectValue) and a.cls is not b.cls and s.inherits(b.cls, a.cls):
        order.reverse()
    for owner, name, other in order:
        if isinstance(owner, ObjectValue) and not isinstance(owner, ClassValue) and owner.user_special(s, name):
            result = owner.call_special(s, name, [other])
            if not (isinstance(result, Constant) and result.value is NotImplemented):
                return result
        elif (symbol == "!=" and isinstance(owner, ObjectValue) and not isinstance(owner, ClassValue)
              and owner.user_special(s, "__eq__")):
            result = owner.call_special(s, "__eq__", [other])
            if not (isinstance(result, Constant) and result.value is NotImplemented):
                return Constant(not result.truth(s))
        elif _compares_in_c(s, owner, name):
            raise Unsupported(f"comparison {symbol} of {a.describe()} and {b.describe()}, by code in C",
                              kind="operator")
    if symbol in ("==", "!="):
        return Constant(_identical(s, a, b) == (symbol == "=="))
    raise Raised(s.exception(TypeError(
        f"'{symbol}' not supported between instances of '{type_name(a.pytype(s))}' and '{type_name(b.pytype(s))}'")))


def _compare_containers(s, symbol, a, b):
    if isinstance(a, SequenceValue) and isinstance(b, SequenceValue):
        if a.builtin is not b.builtin:
            return {"==": False, "!=": True}.get(symbol)
        x, y = a.load(s), b.load(s)
        if symbol in ("==", "!="):
            same = len(x) == len(y) and all(same_or_equal(s, p, q) for p, q in zip(x, y))
            return same == (symbol == "==")
        for p, q in zip(x, y):
            if not same_or_equal(s, p, q):
                return compare(s, symbol, p, q).truth(s)
        return COMPARE[symbol][0](len(x), len(y))
    if isinstance(a, DictValue) and isinstance(b, DictValue) and symbol in ("==", "!="):
        x, y = a.load(s), b.load(s)
        same = x.keys() == y.keys() and all(same_or_equal(s, x[k][1], y[k][1]) for k in x)
        return same == (symbol == "==")
    if isinstance(a, SetValue) and isinstance(b, SetValue):
        return COMPARE[symbol][0](set(a.load(s)), set(b.load(s)))
    if symbol in ("==", "!="):
        return symbol == "!="
    return None


def _compare_views(s, symbol, a, b) -> bool:
    """Views of dictionaries compare by their lengths, then by whether the elements of the smaller one are in the other;
    no value is hashed."""
    fn = COMPARE["==" if symbol == "!=" else symbol][0]
    if symbol in ("==", "!=") and not isinstance(a, DictView):
        a, b = b, a  # the view's method compares, and asks for its own elements
    small, large = (b, a) if symbol in (">", ">=") else (a, b)
    found = bool(fn(a.length(s), b.length(s))) and all(large.contains(s, element) for element in small.items_list(s))
    return found != (symbol == "!=")


def same_object(s, a: Value, b: Value) -> bool:
    """``a is b``; what the answer rests on is guarded."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return _same_constant(s, a, b)
    x, y = a.identity(), b.identity()
    if x == y:
        return x is not None
    numbers = [v.dim if isinstance(v, DimValue) else v.value if isinstance(v, Constant) and type(v.value) is int
               else None for v in (a, b)]
    if None not in numbers:
        if not numbers[0] == numbers[1]:
            return False
        if -5 <= s.index(a) <= 256:  # CPython has one object for each of these
            return True
        raise Unsupported("whether two equal integers are one object", "compare them with ==", kind="operator")
    for p, q in ((a, b), (b, a)):
        if type(p) is Deferred and not (isinstance(q, Constant) and q.value is None):
            p.needed()
    for p, q in ((a, b), (b, a)):
        if p.source is not None and isinstance(q, Constant) and not isinstance(p, Constant):
            p.pytype(s)
    if a.source is not None and b.source is not None and not (isinstance(a, Constant) or isinstance(b, Constant)):
        s.guards.add(a.source, facts.Distinct(b.source))
    return False


def _same_constant(s, a: Constant, b: Constant) -> bool:
    same = a.value is b.value
    if a.source is not None and b.source is not None:
        s.guards.add(a.source, facts.Same(b.source) if same else facts.Distinct(b.source))
        return same
    if a.source is None:
        a, b = b, a
    if a.source is not None:
        if same:
            s.guards.add(a.source, facts.identity(a.value))
        elif type(a.value) is not type(b.value):
            a.pytype(s)
        else:
            s.guards.add(a.source, facts.IsNot(b.value))
    return same


def _equal_methods(s, a, b):
    """Equality of two bound methods, or None for other values."""
    if isinstance(a, MethodValue) and isinstance(b, MethodValue):
        return a.owner.identity() == b.owner.identity() and same_or_equal(s, a.fn, b.fn)
    if isinstance(a, BuiltinMethod) and isinstance(b, BuiltinMethod):
        return a.owner.identity() == b.owner.identity() and a.raw is b.raw
    return None


def same_or_equal(s, a, b) -> bool:
    """The comparison that containers use: identity first, then equality."""
    if a is b or (not isinstance(a, Constant) and not isinstance(b, Constant) and a.identity() == b.identity()):
        return True
    return compare(s, "==", a, b).truth(s)
