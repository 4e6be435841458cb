"""Which line of the program a message is about."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
import warnings

import torch

from . import progress

BEHIND = "<jit: behind a graph break>"  # the file of code that goes on in several frames
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_LIBRARIES = tuple(os.path.join(os.path.abspath(folder), "") for folder in (
    os.path.dirname(torch.__file__), sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"]))


def is_library(file: str) -> bool:
    """Whether a file of code is not the program's own: it is this package's, Python's, PyTorch's, or one of an
    installed package."""
    return file.startswith(("<frozen ", "<jit", _OURS, *_LIBRARIES)) or any(part in file for part in _PACKAGES)


def caller() -> tuple[str, int] | None:
    """(file, line) of the program that this thread executes: of the innermost frame that is not a library's.
    None where all are."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def raised_at(error: BaseException) -> str:
    """" at FILE:LINE" of the innermost line of the program's own that an error went through; "" if there is none."""
    place, at = "", error.__traceback__
    while at is not None:
        if not is_library(at.tb_frame.f_code.co_filename):
            place = f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
        at = at.tb_next
    return place


def raised(error: BaseException) -> str:
    """What code of the user's has raised, in words."""
    return f"{type(error).__name__}{raised_at(error)}: {error}"


def warn(text: str, category: type[Warning] = UserWarning, at: tuple[str, int] | None = None,
         otherwise: tuple[str, int] = ("<unknown>", 1)) -> None:
    """Warn at a line of the program: ``at``, else the one that is being executed (``caller``), else ``otherwise``."""
    file, line = at or caller() or otherwise
    with progress.cleared():
        warnings.warn_explicit(text, category, file, line)
