"""Tables that are keyed by classes, asked about objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def by_class(table: Mapping[type, Any], obj: object) -> Any:
    """The row for the class of an object, or for the nearest class that this one is derived from; None without one."""
    for cls in type(obj).__mro__:
        if cls in table:
            return table[cls]
    return None
