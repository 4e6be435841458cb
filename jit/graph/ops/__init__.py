"""Expansions of PyTorch's operations into prims, a file for each family. Every module here is imported."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
