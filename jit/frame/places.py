"""Where in the program something happens that is seen in a library which it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .. import telling
from .decode import decode

if TYPE_CHECKING:
    import types

    from .executor import Frame

Place = tuple[str, int, str]


def users_line(frames: Sequence[Frame]) -> Place | None:
    """(file, line, function) of the program's own line among frames that are being executed, the outermost first: that
    of the innermost one that is not a library's. None where the innermost of all is no library's, or where there are
    only libraries."""
    places = _places(frames)
    first = next(places, None)
    if first is None or not telling.is_library(first[0]):
        return None
    return next((place for place in places if not telling.is_library(place[0])), None)


def _places(frames: Sequence[Frame]) -> Iterator[Place]:
    """Where the frames are, the innermost first, also those that a function stands for which goes on in several of
    them behind a break (``dispatch.chain_function``)."""
    for frame in reversed(frames):
        place = frame.where()
        parts = getattr(frame.fn.obj, "_jit_chain", None)
        if parts is None:
            yield place
            continue
        # What it has called stands before it here; its line tells which of its parts that is.
        for fn, resume, *_ in parts[max(0, place[1] - 1):]:
            yield fn.code.co_filename, first_line(resume.code), fn.code.co_qualname


def first_line(code: types.CodeType) -> int:
    """The line at which a resume function goes on."""
    return next((i.line for i in decode(code).instructions if i.line), code.co_firstlineno)


def shown_code(fn: types.FunctionType) -> types.CodeType | None:
    """Of a function that goes on in several frames behind a break, the code of the innermost one that is not a
    library's; None of others."""
    parts = getattr(fn, "_jit_chain", None)
    if parts is None:
        return None
    return next((of.code for of, *_ in parts if not telling.is_library(of.code.co_filename)), parts[-1][0].code)
