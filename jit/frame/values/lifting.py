"""What the tracer returns, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...graph.dims import Dim
from ...graph.handles import SymSize, TensorHandle
from ...graph.number_results import NumberResult
from .base import Value
from .containers import ListValue, TupleValue
from .deferred import number_read
from .numbers import DimValue

if TYPE_CHECKING:
    from ..session import Session


def lift(s: Session, result) -> Value:
    """The value of a result of the tracer."""
    if isinstance(result, TensorHandle):
        return s.recording.tensor_of(result)
    if isinstance(result, NumberResult):
        return number_read(s, s.recording.tensor_of(s.tracer.fresh(result.node)))
    if isinstance(result, Dim):
        return DimValue(result)
    if isinstance(result, (torch.Size, SymSize)):
        return TupleValue([lift(s, v) for v in result], torch.Size)
    if isinstance(result, list):
        return ListValue([lift(s, v) for v in result])
    if isinstance(result, tuple):
        return TupleValue([lift(s, v) for v in result], getattr(result, "cls", tuple))
    return s.from_python(result)
