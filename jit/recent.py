"""A cache with a bound: what was used longest ago leaves first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Recent(dict):
    """A dict of at most ``most`` entries. ``get`` and ``[key] = value`` count as uses; nothing else should be used to
    read or write it."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def get(self, key: Hashable, default: Any = None) -> Any:
        found = self.pop(key, self)  # in one step, so that another thread cannot come between
        if found is self:
            return default
        super().__setitem__(key, found)
        return found

    def __setitem__(self, key: Hashable, value: object) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        while len(self) > self.most:
            try:
                del self[next(iter(self))]
            except (KeyError, RuntimeError, StopIteration):  # another thread has changed it
                continue
