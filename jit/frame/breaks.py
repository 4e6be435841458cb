"""Records of graph breaks and eager fallbacks: a stable id, the user's file and line, why, and what to do about it."""

from __future__ import annotations

import dataclasses
import hashlib
import os

from .. import failures, logs
from ..errors import Unsupported
from ..reasons import that_is
from ..runtime.guards import in_users_terms

log = logs.channel("graph_breaks")


@dataclasses.dataclass(frozen=True)
class BreakReason:
    """One break.

    Attributes:
        file, line, function: where it is.
        user: (file, line, function) of the program's own line, where the break is in a library that it calls; else
            None.
        whole_frame: the function ran in eager from its first line.
    """

    kind: str
    why: str
    hint: str
    file: str
    line: int
    function: str
    whole_frame: bool = False
    user: tuple[str, int, str] | None = None

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that stay the same for this kind of break at this place."""
        file = os.path.abspath(self.file) if os.path.exists(self.file) else self.file
        return hashlib.sha256(f"{self.kind}|{file}|{self.line}|{self.function}".encode()).hexdigest()[:8]

    @property
    def called_from(self) -> str:
        """", called from" the program's own line, in words; empty where the break is there."""
        return "" if self.user is None else f", called from {self.user[0]}:{self.user[1]} in {self.user[2]}"

    def __str__(self) -> str:
        text = (
            f"{'eager' if self.whole_frame else 'break'} {self.id} at {self.file}:{self.line} in {self.function}"
            f"{self.called_from}: {self.why} [{self.kind}]")
        if self.whole_frame:
            text += "\n  the whole function runs in eager, from its first line"
        if meaning := that_is(self.kind):
            text += f"\n  that is: {meaning}"
        return text + f"\n  hint: {self.hint}"


def record(error: Unsupported, where: tuple[str, int, str], whole_frame: bool = False) -> BreakReason:
    """Make and log the record of an Unsupported step at (file, line, function); tell of one that a failure of ours has
    made so."""
    file, line, function = error.where or where or ("?", 0, "?")
    if error.kind == "internal" and not error.told:
        failures.report(error, (file, line, function), "this step runs in eager")
    why = in_users_terms(error.said)
    reason = BreakReason(error.kind, why, error.hint, file, line, function, whole_frame, error.user)
    log(reason)
    return reason
