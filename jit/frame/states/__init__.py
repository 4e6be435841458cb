"""The rows of the table of tracked states (``jit.frame.tracked_state``), a file for each switch or family of them."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
