"""Templates, a file for each. Every module here is imported when the first graph is planned in which templates may
be used."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
