"""``torch.distributed.tensor``: importing it takes a while, so what is known of it is registered once the program has
done that."""

from __future__ import annotations

import importlib

from ..tables import when_loaded


@when_loaded("torch.distributed.tensor")
def register() -> None:
    importlib.import_module("jit.frame.spread_functions")
