"""``Tensor.item()`` of a tensor on the CPU whose value can be computed before the graph runs, such as the step counter of an optimizer: a symbolic float."""

from __future__ import annotations

import torch

from ...errors import Unsupported
from .floats import FloatValue

_LONGEST = 8  # operations between what comes from outside and the number
_PASSES = frozenset(("alias", "detach", "clone", "reshape"))
_COMPUTES = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}
_EXACT = 1 << 24  # float32 holds every integer up to it


class ItemValue(FloatValue):
    """The number in a tensor of one element, computed by ``read`` from ``tensors`` (tensor values from outside)."""

    def __init__(self, value: float, tensors, read):
        super().__init__(value)
        self.tensors, self.read = tensors, read

    def const(self, s):
        raise Unsupported("a tensor's value is needed by Python", kind="data-dependent-value")

    def emit(self, e):
        e.load_or_give_up((self, "number"), self.tensors, self.read)

    def describe(self):
        return "the value of a tensor"


def item(s, tensor) -> ItemValue | None:
    """``tensor.item()``, or None where that is not known before the graph runs."""
    node = tensor.handle(s).node
    t = node.type
    if t.device.type != "cpu" or not t.dtype.is_floating_point or any(type(n) is not int or n != 1 for n in t.shape):
        return None
    found: dict = {}
    text = _text(node, found, [_LONGEST])
    if text is None or not found:
        return None
    tensors = [s.inputs[index] for index in found]
    if any(v.source is None for v in tensors):
        return None
    counter = _counter(node)
    if counter is not None:
        read = counter
    else:
        names = ", ".join(f"x{index}" for index in found)
        read = eval(f"lambda {names}: ({text}).item()", {**{f.__name__: f for f in _COMPUTES.values()}, "torch": torch})
    with torch.no_grad():
        value = read(*(v.obj for v in tensors))
    return ItemValue(value, tensors, _without_grad(read)) if type(value) is float else None


def _without_grad(read):
    """``read`` on detached tensors; None where it raises."""

    def number(*tensors):
        try:
            with torch.no_grad():
                return read(*tensors)
        except RuntimeError:
            return None

    return read if getattr(read, "plain", False) else number


def _counter(node):
    """A quick form for the frequent case, a number that has been added to."""
    added = 0.0
    while node.op in _PASSES or node.op == "add" and node.inputs[1].op == "scalar":
        if node.op == "add":
            added += node.inputs[1].attrs["value"]
            if node.dtype not in (torch.float32, torch.float64) or added != int(added):
                return None
        node = node.inputs[0]
    if node.op != "input":
        return None

    def read(tensor):
        value = tensor.item()
        total = value + added
        if total == int(total) and -_EXACT < total < _EXACT and value == int(value):
            return total
        return torch.add(tensor.detach(), added).item()

    if not added:
        read = torch.Tensor.item
    else:
        read.plain = True
    return read


def _text(node, found: dict, left: list) -> str | None:
    """Python text of a value, over the inputs in ``found`` (their positions)."""
    left[0] -= 1
    t = node.type
    if left[0] < 0 or isinstance(t, tuple) or t.device.type != "cpu" or any(type(n) is not int or n != 1 for n in t.shape):
        return None
    if node.op == "input":
        found[node.attrs["index"]] = True
        return f"x{node.attrs['index']}"
    if node.op == "scalar" and type(node.attrs["value"]) in (int, float, bool):
        return f"torch.tensor({float(node.attrs['value'])!r}, dtype={t.dtype})" if t.dtype.is_floating_point else None
    parts = [_text(i, found, left) for i in node.inputs]
    if any(p is None for p in parts):
        return None
    if node.op in _PASSES:
        return parts[0]
    if node.op == "cast":
        return f"({parts[0]}).to({t.dtype})"
    return f"{node.op}({', '.join(parts)})" if node.op in _COMPUTES else None
