"""Texts of kernels that are compiled in the place of others: of a script that reruns a graph, in which kernels can be
edited (``jit.report.rerun``)."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
from collections.abc import Iterator, Mapping

_texts: contextvars.ContextVar[Texts | None] = contextvars.ContextVar("texts in the place of generated ones",
                                                                      default=None)


class Texts:
    """``texts``: digest of a generated text -> the text to compile. ``met``: the digests that were asked for, each with
    the generated text."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts, self.met = dict(texts), {}  # type: dict[str, str], dict[str, str]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def instead_of(text: str) -> str:
    """What is to be compiled for a generated text: itself, if nothing is given for it."""
    given = _texts.get()
    if given is None:
        return text
    name = digest(text)
    given.met[name] = text
    return given.texts.get(name, text)


@contextlib.contextmanager
def replacing(texts: Mapping[str, str]) -> Iterator[Texts]:
    """What is compiled in the block takes these texts, by digest."""
    given = Texts(texts)
    token = _texts.set(given)
    try:
        yield given
    finally:
        _texts.reset(token)
