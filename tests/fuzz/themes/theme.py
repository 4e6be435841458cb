"""The record of a theme."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Theme:
    """``prelude`` stands at the head of its programs, behind that of all; ``arguments`` may stand for a tensor among
    the arguments of a call; ``inner``: its templates use the expressions of ``inner.py``."""

    prelude: str
    expressions: dict
    statements: list
    arguments: tuple = ()
    inner: bool = True
