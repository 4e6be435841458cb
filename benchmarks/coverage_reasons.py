"""Why an operator of PyTorch stays a library call: one row for each reason."""

from __future__ import annotations

import re

NO_WORK = frozenset()
NOT_YET = "not yet"
REASONS: dict[str, str] = {}


def reason(call: str) -> str:
    """Why the plan calls this operator."""
    name = call.removesuffix(" (vjp)")
    return next((why for why, names in REASONS.items() if re.fullmatch(names, name)), NOT_YET)
