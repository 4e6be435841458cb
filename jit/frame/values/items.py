"""``Tensor.item()`` of a tensor on the CPU whose value can be computed before the graph runs, such as the step counter
of an optimizer: a symbolic float."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...devices import backend
from ...errors import Unsupported
from ...graph.dims import free_symbols
from ...graph.prim_info import info
from ...runtime.names import made
from .numbers import FloatValue

if TYPE_CHECKING:
    from ...graph.ir import Node
    from ..emit import Emitter
    from ..numbers import NumberProgram
    from ..session import Session
    from .base import Value
    from .tensor import TensorValue

_LONGEST = 8  # operations between what comes from outside and the number


class ItemValue(FloatValue):
    """The number in a tensor of one element, computed by ``read`` from ``given`` (tensors from outside and symbolic
    floats), or by the rows of ``tree``, if there is one."""

    def __init__(self, value: float, given: list[Value], read: Callable,
                 tree: tuple[str, tuple, tuple[str, float | int]] | None = None) -> None:
        super().__init__(value)
        self.given, self.read, self.tree = given, read, tree

    def const(self, s: Session) -> Any:
        raise Unsupported("a tensor's value is needed by Python", kind="data-dependent-value")

    def row(self, program: NumberProgram) -> int:
        return None if self.tree is None else self._row(self.tree, program)

    def _row(self, tree: tuple, program: NumberProgram) -> int:
        kind, *parts = tree
        if kind == "item":
            return program.row(kind, program.argument(self.given[parts[0]]))
        if kind == "float":
            return program.value(self.given[parts[0]])
        return program.const(*parts) if kind == "const" else program.row(kind, *(self._row(p, program) for p in parts))

    def emit(self, e: Emitter) -> None:
        e.load_or_give_up((self, "number"), self.read, [functools.partial(v.emit, e) for v in self.given])

    def describe(self) -> str:
        return "the value of a tensor"


def item(s: Session, tensor: TensorValue) -> ItemValue | None:
    """``tensor.item()``, or None where that is not known before the graph runs."""
    node = tensor.handle(s).node
    t = node.type
    if (not backend(t.device).host or not t.dtype.is_floating_point
        or any(type(n) is not int or n != 1 for n in t.shape)):
        return None
    found: dict = {}
    text = _text(node, found, [_LONGEST])
    if text is None or not any(type(key) is int for key in found):
        return None
    origins = s.tracer.env.origins
    given = [s.recording.inputs[key] if type(key) is int else origins[key][0] for key in found]
    if any(v.is_tensor and v.source is None for v in given):
        return None
    names = ", ".join(f"x{key}" for key in found)
    read = function_of_tensors(f"lambda {names}: ({text}).item()")
    value = read(*(v.obj if v.is_tensor else v.value for v in given))
    return ItemValue(value, given, read, _tree(node, list(found))) if type(value) is float else None


def function_of_tensors(text: str) -> Callable:
    """The function that a lambda's text is; None where PyTorch refuses the values."""
    compute = eval(text, {"torch": torch})

    def read(*values: torch.Tensor) -> float | None:
        try:
            with torch.no_grad():
                return compute(*values)
        except RuntimeError:
            return None

    return made(read, function_of_tensors, text)


def _tree(node: Node, inputs: list) -> tuple | None:
    """The rows of a number program (``runtime/numbers.py``) that compute a value, nested, with positions in ``inputs``
    for tensors and numbers; None where there are none."""
    dtype = node.type.dtype
    if node.op == "input":
        return ("item", inputs.index(node.attrs["index"])) if dtype.is_floating_point else None
    if node.op == "float_scalar":
        return ("float", inputs.index(_name(node)))
    if node.op == "scalar":
        return ("const", torch.tensor(float(node.attrs["value"]), dtype=dtype, device="cpu").item())
    parts = [_tree(i, inputs) for i in node.inputs]
    if None in parts:
        return None
    if info(node.op).in_order:
        return parts[0]
    if dtype is torch.float64:
        return parts[0] if node.op == "cast" else (info(node.op).number_row, *parts)
    if dtype is not torch.float32:
        return None
    return ("round32", *parts) if node.op == "cast" else (node.op + "32", *parts)


def _name(node: Node) -> str:
    """The symbol of a number that is known when the plan is called."""
    name, = free_symbols(node.attrs["low"])
    return name


def _text(node: Node, found: dict, left: list) -> str | None:
    """Python text of a value, over what is in ``found``: positions of inputs, and symbols of numbers."""
    left[0] -= 1
    t = node.type
    if (left[0] < 0 or isinstance(t, tuple) or not backend(t.device).host
        or any(type(n) is not int or n != 1 for n in t.shape)):
        return None
    if node.op == "input":
        found[node.attrs["index"]] = True
        return f"x{node.attrs['index']}"
    if node.op == "float_scalar":
        found[_name(node)] = True
        return f"torch.tensor(x{_name(node)}, dtype={t.dtype}, device='cpu')"
    if node.op == "scalar" and type(node.attrs["value"]) in (int, float, bool):
        return (f"torch.tensor({float(node.attrs['value'])!r}, dtype={t.dtype}, device='cpu')"
                if t.dtype.is_floating_point else None)
    parts = [_text(i, found, left) for i in node.inputs]
    if any(p is None for p in parts):
        return None
    if info(node.op).in_order:
        return parts[0]
    if node.op == "cast":
        return f"({parts[0]}).to({t.dtype})"
    return f"torch.{node.op}({', '.join(parts)})" if info(node.op).number_row else None
