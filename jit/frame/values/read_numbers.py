"""Numbers that Python reads from tensors (``x.item()``, ``float(x)``, ``x.tolist()``) as operands of tensors: in the
graph each is a tensor without axes, of Python's precision, while Python's own number is made behind the graph, by the
same steps. Where Python would raise, or compute with more digits, the number is assumed or refused not to be such.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

from ...graph import aten
from ...graph.binding import resolve
from ...graph.op_info import op_info
from ..assumptions import assume
from .base import Value
from .constant import Constant
from .containers import ListValue, TupleValue

if TYPE_CHECKING:
    from ..operators import Binary, Comparison
    from ..session import Session
    from .deferred import Deferred
    from .tensor import TensorValue

_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}
_EXACT, _WIDEST = 1 << 53, 1 << 63  # of integers as floats, and in 64 bits
_LONGEST = 64  # elements of a list that is read
READERS = frozenset([torch.Tensor.item, int, float, bool])


class InTensors(NamedTuple):
    """A function of floats in tensors; ``holds``: of argument and result, where Python does not raise."""

    fn: Callable
    holds: Callable | None = None


def _finite(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """No overflow, and no argument outside of the domain."""
    return torch.isfinite(y) | torch.isnan(x) | torch.isinf(x) & ~torch.isnan(y)


FUNCTIONS = {
    math.sqrt: InTensors(torch.sqrt, _finite), math.exp: InTensors(torch.exp, _finite),
    math.log: InTensors(torch.log, _finite), math.log2: InTensors(torch.log2, _finite),
    math.log10: InTensors(torch.log10, _finite), math.log1p: InTensors(torch.log1p, _finite),
    math.expm1: InTensors(torch.expm1, _finite), math.sin: InTensors(torch.sin, _finite),
    math.cos: InTensors(torch.cos, _finite), math.tan: InTensors(torch.tan, _finite),
    math.sinh: InTensors(torch.sinh, _finite), math.cosh: InTensors(torch.cosh, _finite),
    math.tanh: InTensors(torch.tanh), math.atan: InTensors(torch.atan), math.erf: InTensors(torch.erf),
    math.fabs: InTensors(torch.abs), math.degrees: InTensors(torch.rad2deg), math.radians: InTensors(torch.deg2rad),
}

EXTREMES = {max: operator.gt, min: operator.lt}  # whether the second number is taken


def bound(s: Session, v: Value) -> int:
    """What an integer is at most, without its sign."""
    if type(v) is Constant:
        return abs(int(v.value))
    if v.symbolic is int:
        return _EXACT
    assert v.is_read
    if v.fn in READERS and v.args[0].is_tensor:
        dtype = v.args[0].handle(s).dtype
        return 1 if dtype is torch.bool else torch.iinfo(dtype).max + 1
    if not all(a.is_read or type(a) is Constant or a.symbolic is int for a in v.args) or v.fn is operator.getitem:
        return _WIDEST
    parts = [bound(s, a) for a in v.args]
    return parts[0] * parts[-1] if v.fn in (operator.mul, operator.imul) else sum(parts)


def tensor_of(s: Session, v: Deferred) -> TensorValue:
    """The number as a tensor without axes. Raises the Unsupported of the number where that is not possible."""
    if v.as_tensor is None:
        s.set_field(v, "as_tensor", _tensor_of(s, v))
    return v.as_tensor


def _tensor_of(s: Session, v: Deferred) -> TensorValue:
    first = v.args[0]
    if first.is_tensor and v.fn in READERS:
        return _read(s, v.then(s, first), v.cls)
    if v.fn is operator.getitem:
        return _element(s, v)
    if v.cls is int and bound(s, v) > _WIDEST:
        v.needed()
    given = [tensor_of(s, a) if a.is_read else a for a in v.args]
    if v.cls is float or any(a.is_read and a.cls is float or a.is_leaf and type(a.value) is float for a in v.args):
        for a, t in zip(v.args, given):
            if (a.is_read and a.cls is int or a.exact_int() is not None) and bound(s, a) > _EXACT:
                v.needed()
        given = [t.call_method(s, "double") if t.is_tensor else t for t in given]
    if v.fn in EXTREMES:
        taken = s.torch_call(EXTREMES[v.fn], given[::-1], {})
        return s.torch_call(torch.where, [taken, *given[::-1]], {})
    known = FUNCTIONS.get(v.fn)
    if known is None:
        if v.fn in (operator.truediv, operator.itruediv) and given[1].is_tensor and not assume(s, given[1], True):
            v.needed()
        return s.torch_call(v.fn, given, {})
    found = s.torch_call(known.fn, given, {})
    if known.holds is not None and not assume(s, s.inline(s.wrap_raw(known.holds), [given[0], found], {}), True):
        v.needed()
    return found


def _read(s: Session, tensor: TensorValue, cls: type) -> TensorValue:
    plain = s.torch_call(torch.Tensor.reshape, [tensor.detached(s), TupleValue([])], {})
    return s.torch_call(torch.Tensor.to, [plain, Constant(_DTYPES[cls])], {})


def _element(s: Session, v: Deferred) -> TensorValue:
    """Of a list that is read."""
    path: list[int] = []
    at = v
    while at.fn is operator.getitem and at.args[0].as_list is None:
        path.insert(0, at.args[1].const(s))
        at = at.args[0]
        if not hasattr(at, "fn"):
            v.needed()
    if at.fn is not operator.getitem:
        v.needed()
    path.insert(0, at.args[1].const(s))
    tensor = at.args[0].then(s, at.args[0].args[0])
    for k in path:
        tensor = s.torch_call(torch.Tensor.select, [tensor, Constant(0), Constant(k)], {})
    return _read(s, tensor, v.cls)


def elements(s: Session, v: Deferred) -> Value:
    """The list that ``tolist()`` of a tensor gives, with its numbers; the value itself where there are many."""
    tensor = v.args[0]
    shape = tensor.handle(s).shape
    if not shape or any(type(n) is not int for n in shape) or math.prod(shape) > _LONGEST or 0 in shape:
        return v
    s.set_field(v, "as_list", True)

    def nested(of: Value, rank: int) -> Value:
        made = [of.part(s, operator.getitem, k) for k in range(len(of.example))]
        return ListValue(made if rank == 1 else [nested(m, rank - 1) for m in made])

    return nested(v, len(shape))


def with_tensor(s: Session, op: Binary | Comparison, a: Value, b: Value) -> Value:
    """``a op b`` of such a number and a tensor."""
    number, tensor = (a, b) if b.is_tensor else (b, a)
    dtype = tensor.handle(s).dtype
    if dtype in (torch.float16, torch.bfloat16):  # PyTorch does not round the number
        if getattr(op, "inplace", None) is not None or getattr(op, "symbol", "") not in ("+", "-", "*", "/"):
            number.needed()
        wide = s.torch_call(torch.Tensor.float, [tensor], {})
        given = {id(tensor): wide, id(number): like(s, number, wide)}
        found = s.torch_call(op.fn, [given[id(a)], given[id(b)]], {})
        return s.torch_call(torch.Tensor.to, [found, Constant(dtype)], {})
    given = {id(tensor): tensor, id(number): like(s, number, tensor)}
    return s.torch_call(op.fn, [given[id(a)], given[id(b)]], {})


def like(s: Session, number: Deferred, tensor: Value) -> TensorValue:
    """The number with the type that it has no say in beside ``tensor``."""
    handle = tensor.handle(s)
    dtype = handle.dtype
    found = tensor_of(s, number)
    if dtype.is_complex or found.handle(s).device != handle.device:
        number.needed()
    if number.cls is float and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    elif number.cls is int and dtype is torch.bool:
        dtype = torch.int64
    return found if found.handle(s).dtype is dtype else s.torch_call(torch.Tensor.to, [found, Constant(dtype)], {})


def scaled(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value]) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of an operation, where a number that is read and multiplies an operand is multiplied first."""
    binding = resolve(fn)
    known = None if binding is None else op_info(binding.name.removesuffix("_")).scales
    if known is None or not (number := kwargs.get(known[0], args[0])).is_read or len(args) <= known[1]:
        return args, kwargs
    operand = args[known[1]]
    if not operand.is_tensor or operand.handle(s).dtype in (torch.float16, torch.bfloat16):
        return args, kwargs
    args = list(args)
    args[known[1]] = s.torch_call(torch.mul, [operand, number], {})
    return args, {k: v for k, v in kwargs.items() if k != known[0]}


def operands(s: Session, fn: object, args: list[Value]) -> list[Value]:
    """The arguments of an operation, where numbers that are read stand for tensors that it takes as well."""
    binding = resolve(fn)
    if binding is None or binding.python is not None or not args[0].is_tensor:
        return args
    if args[0].handle(s).dtype in (torch.float16, torch.bfloat16):
        return args
    found = aten.overloads(binding.name.removesuffix("_"))
    return [like(s, v, args[0]) if v.is_read and any(
        i < len(o.arguments) and o.arguments[i].kind == "Tensor" for o in found) else v for i, v in enumerate(args)]
