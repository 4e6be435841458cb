"""Numbers that operators return beside tensors, as plans have them: tensors without axes on the CPU. What they are in
the graph says ``graph.number_results``."""

from __future__ import annotations

from typing import Any

import torch

DTYPES = {"int": torch.int64, "SymInt": torch.int64, "float": torch.float64, "bool": torch.bool}  # by a schema's type
KINDS = {int: "int", torch.SymInt: "int", float: "float", torch.SymFloat: "float", bool: "bool", torch.SymBool: "bool"}


def as_tensor(result: Any) -> Any:
    """A result of an operator as the plan has it."""
    kind = KINDS.get(type(result))
    return result if kind is None else torch.tensor(result, dtype=DTYPES[kind], device="cpu")
