"""What is known of PyTorch's operators besides their schemas, a row for each."""

from __future__ import annotations

from dataclasses import dataclass

from jit.graph.prim_info import IN_EACH


@dataclass(frozen=True)
class OpInfo:
    """An operator of PyTorch.

    linear: as in ``PrimInfo``.
    """

    linear: str | None = None


_PRODUCT = OpInfo(linear=IN_EACH)
_ROWS: dict[str, OpInfo] = {"mm": _PRODUCT, "bmm": _PRODUCT, "mv": _PRODUCT, "dot": _PRODUCT}
_UNKNOWN = OpInfo()


def op_info(name: str) -> OpInfo:
    """The row of the operator ``aten::name``, of which the namespace may be left out."""
    return _ROWS.get(name.removeprefix("aten::"), _UNKNOWN)
