"""Parts of PyTorch that only some programs are about, each with templates of its own: a program has none, one or two of
them. A theme is a file here, with a ``THEME``."""

from __future__ import annotations

import functools
import re

from ..grammar import EXPRESSIONS
from ..statements import STATEMENTS
from . import control, derivatives, inner, randomness, subclasses, transforms

THEMES = {"transforms": transforms.THEME, "subclasses": subclasses.THEME, "control": control.THEME,
          "randomness": randomness.THEME, "derivatives": derivatives.THEME}
SHARE = {"int": 0.15, "bool": 0.15, "float": 0.15, "tensor": 0.6, "any": 0.25}  # of what a kind has without themes
SHARE_OF_STATEMENTS = 0.3


def scaled(rows, share, among) -> list:
    """The rows with weights that make a share of those that they stand among."""
    total, all_of_them = sum(w for _, w in rows), sum(w for _, w in among)
    factor = share * all_of_them / total if all_of_them else 1.0
    return [(t, w * factor) for t, w in rows]


@functools.lru_cache(maxsize=64)
def tables(chosen: tuple) -> tuple:
    """(expressions by kind, those of them without further expressions in them, statements) of some themes."""
    expressions, statements = dict(EXPRESSIONS), list(STATEMENTS)
    if any(THEMES[name].inner for name in chosen):
        expressions.update(inner.KINDS)
    for name in chosen:
        theme = THEMES[name]
        for kind, rows in theme.expressions.items():
            among = EXPRESSIONS.get(kind, [])
            expressions[kind] = expressions.get(kind, []) + scaled(rows, SHARE.get(kind, 0.3), among)
        statements += scaled(theme.statements, SHARE_OF_STATEMENTS, STATEMENTS)
    leaves = {kind: [r for r in rows if not re.search(r"<[a-z]+>", r[0])] for kind, rows in expressions.items()}
    return expressions, leaves, statements


def choose(rng, only=None) -> tuple:
    """The themes of a program: more than half of the programs have one."""
    if only:
        return tuple(only)
    return tuple(sorted(rng.sample(sorted(THEMES), rng.choices((0, 1, 2), (4, 5, 1))[0])))
