

from . import debug, gather, measured, minimal  # noqa: F401
