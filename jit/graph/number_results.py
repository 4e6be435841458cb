"""Numbers that operators return beside tensors, such as the longest sequence of a batch, or how many steps were made.

In the graph such a result is a tensor without axes on the CPU, of the precision that Python's number has: the plan
makes it of the number. The program has the number that is read off that tensor, as by ``item()``: behind the graph, or
not at all where it is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from jit.graph.ir import TensorType
from jit.runtime.result_numbers import DTYPES, KINDS

if TYPE_CHECKING:
    from jit.graph.ir import Node


class NumberResult(NamedTuple):
    """A result that is a number to the program; ``node`` is the tensor that it is read off."""

    node: Node


def type_of(kind: str) -> TensorType:
    """The type of the tensor for a number, by its type in a schema."""
    return TensorType((), (), DTYPES[kind], torch.device("cpu"))


def type_of_value(value: object) -> TensorType | None:
    """The same for a number that an operator has given; None for what is none."""
    kind = KINDS.get(type(value))
    return None if kind is None else type_of(kind)
