"""What goes with an entry and is told of it: see ``Watching``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatch import Missed


class Watching:
    """Base class of objects that the rewritten function of an entry calls, and that may take the entry back.

    Whoever does so says why with ``Missed.takes_back``, before: the message of the next compilation tells it.
    """

    def watch(self, missed: Missed, dispatcher: Any, entry: Any) -> None:
        """``entry`` is the one, and it is kept by ``dispatcher``, whose ``on_miss`` is ``missed``. They are not to be
        kept alive."""
        raise NotImplementedError
