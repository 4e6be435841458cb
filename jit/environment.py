"""The environment variables whose names begin with ``JIT_``: which are read, and a word about those that are not."""

from __future__ import annotations

import os

from . import config, telling
from .spelling import meant

PREFIX = "JIT_"
OTHERS = ("JIT_LOGS", "JIT_LOGS_OUT")  # beside the options


def known() -> list[str]:
    """The names that are read."""
    return [*(PREFIX + name.upper() for name in (*config.OPTIONS, *config.ALSO_CALLED)), *OTHERS]


def unknown() -> list[tuple[str, str]]:
    """(name, what was probably meant, in words, or "") of each variable that is set and not read."""
    names = known()
    return [(name, meant(name, names)) for name in sorted(os.environ) if name.startswith(PREFIX) and name not in names]


def tell_of_unknown() -> None:
    """Warn of variables whose names are like those of ours, and that have no effect. Others may be of another
    program: ``python -m jit doctor`` lists them."""
    for name, probably in unknown():
        if probably:
            telling.warn(f"jit: the environment variable {name} is not read{probably}, so it changes nothing. "
                         "`print(jit.config.describe())` shows all that are read.")
