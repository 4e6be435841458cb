"""Words of messages: how many of something there are, and what was probably meant by a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, what: str, several: str = "") -> str:
    """1 graph, 2 graphs; ``several`` is the plural where it is not made by an s."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def meant(name: object, known: Iterable[str]) -> str:
    """" (did you mean ...?)" for a name that is not among those that are known; "" where none is like it."""
    names = {_bare(other): other for other in known}
    close = difflib.get_close_matches(_bare(str(name)), names, n=1, cutoff=0.75)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
