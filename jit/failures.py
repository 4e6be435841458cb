"""Failures of the compiler itself: exceptions of its rules that are neither the program's nor a step that it knows that
it does not support.

The program runs on, in eager where the compiler has failed, and its user is told once for each place, of the line of
the program and of the rule. With ``config.strict`` the failure is raised instead.
"""

from __future__ import annotations

import os
import threading
import warnings

from . import config, progress, telling, turns
from .errors import BackendError, NoCompiler

_ROOM = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MOST_TOLD = 1000
_told: set = set()
_lock = threading.Lock()


class InternalFailure(UserWarning):
    """The compiler has failed on a part of the program, which runs in eager."""


def rule_of(error: BaseException) -> tuple | None:
    """(file, line, function) of the innermost code of ours that ``error`` went through, or None. What caused it is
    looked at first."""
    if error.__cause__ is not None:
        found = rule_of(error.__cause__)
        if found is not None:
            return found
    found, at = None, error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if code.co_filename.startswith(_ROOM):
            found = code.co_filename, at.tb_lineno, code.co_qualname
        at = at.tb_next
    return found


def report(error: BaseException, where: tuple | None, consequence: str) -> None:
    """Warn of ``error``, raised by a rule at ``where`` (file, line, function) of the program; ``consequence`` says what
    happens now. Raises it with ``config.strict``."""
    # The warning itself, where warnings are errors; in the background what was read may have changed meanwhile.
    if config.strict or isinstance(error, InternalFailure) or turns.here():
        raise error
    if isinstance(error, NoCompiler):
        return _tell_of_compiler(error)
    if isinstance(error, BackendError):
        return _tell_of_backend(error, where, consequence)
    rule = rule_of(error)
    file, line, function = where or ("<unknown>", 1, "?")
    with _lock:
        key = type(error), rule, file, line
        if key in _told or len(_told) >= _MOST_TOLD:
            return
        _told.add(key)
    by = f" in {rule[2]} ({rule[0]}:{rule[1]})" if rule else ""
    text = (f"jit: compiling {function} ({file}:{line}) failed with {type(error).__name__}: {error}{by}; "
            f"{consequence}. "
            "This is a fault of the compiler: please report it. JIT_STRICT=1 raises instead.")
    with progress.cleared():
        warnings.warn_explicit(text, InternalFailure, file, line)


def _tell_of_compiler(error: NoCompiler) -> None:
    """Without a compiler many functions run in eager; it is told once."""
    with _lock:
        if NoCompiler in _told:
            return
        _told.add(NoCompiler)
    telling.warn(f"jit: {error}", RuntimeWarning)


def _tell_of_backend(error: BackendError, where: tuple | None, consequence: str) -> None:
    """A backend of the user's own has failed, and not the compiler."""
    file, line, function = where or ("<unknown>", 1, "?")
    telling.warn(f"jit: {error}. {function} ({file}:{line}) was being compiled; {consequence}. JIT_STRICT=1 raises "
                 "instead.", at=(file, line))


def forget() -> None:
    """Tell of every place again."""
    with _lock:
        _told.clear()
