"""What a call gave, tensor by tensor, and how far two calls are apart.

It imports nothing of the package, as ``calls.py`` does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors and plain values in nested sequences, mappings and dataclasses, in order, and where each is: "" for
    the value itself, ``[0]``, ``['name']`` or ``.name``. Objects of other kinds are given as the name of their
    class."""
    if isinstance(value, (torch.Tensor, *_PLAIN)):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, f"<{type(value).__module__}.{type(value).__qualname__}>"


def copied(value: object) -> list[tuple[str, Any]]:
    """The leaves of a value as they are now, tensors in the memory of the CPU."""
    return [(path, leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf)
            for path, leaf in leaves(value)]


@dataclasses.dataclass
class Difference:
    """How far results are from those of eager.

    Attributes:
        largest: absolute difference of two elements; infinite where one of them is no number or infinite and the other
            is not the same.
        relative: this over the largest magnitude in eager's tensor, the largest of all tensors.
        where: in which tensor the largest is.
        other: what else differs, a line each: shapes, dtypes, values that are no tensors.
    """

    largest: float = 0.0
    relative: float = 0.0
    where: str = ""
    other: list[str] = dataclasses.field(default_factory=list)


def difference(ours: list[tuple[str, Any]], eagers: list[tuple[str, Any]]) -> Difference:
    """Of two results of ``copied``."""
    found = Difference()
    if [path for path, _ in ours] != [path for path, _ in eagers]:
        found.other.append(f"the results are {_shape(ours)} and not {_shape(eagers)}")
        return found
    for (path, a), (_, b) in zip(ours, eagers):
        name = path or "result"
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or not _same(a, b):
                found.other.append(f"{name} is {_text(a)} and not {_text(b)}")
            continue
        if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
            found.other.append(f"{name} is {_text(a)} and not {_text(b)}")
            continue
        largest, size = _apart(a, b)
        if largest > found.largest or math.isinf(largest):
            found.largest, found.where = largest, name
        if largest:
            found.relative = max(found.relative, largest / size if size else math.inf)
    return found


def _apart(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """The largest difference of elements, and the largest finite magnitude in ``b``."""
    a, b = _plain(a), _plain(b)
    if not b.numel():
        return 0.0, 0.0
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(math.inf, math.inf)
    return float(apart.max()), float(b.abs().nan_to_num(0.0, 0.0, 0.0).max())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as float64; of complex ones both parts. Integers above 2**53 are rounded by this."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)


def _shape(found: list[tuple[str, Any]]) -> str:
    return ", ".join(_text(value) for _, value in found) or "nothing"


def _text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = value if isinstance(value, str) and value.startswith("<") else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
