"""What profilers and debuggers call what jit runs: compiled regions, plans and kernels.

    jit: f (model.py:12)                   a call of a compiled function, or of what goes on behind a break of it
    jit forward: f (model.py:12)           a run of the plan of one of its graphs (``graph`` where there is no backward)
    jit_softmax_gelu_model_py_14           a kernel: the operations that tell most of it, and the line of the first one

The name of a kernel in a plan is not that of the function in the binary. Two layers whose kernels have the same text
share one binary, also with another process in which they stand in other lines, so a binary's name says operations
alone, which follow from the text (``codegen.kernel_names``). The line is in the step of the plan that runs it, and that
is what a range says that is open while it is run, or launched.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import types
from collections.abc import Iterable, Iterator

MOST = 63  # characters of a kernel's name
_MOST_FILE = 24  # of these, of the file's
_local = threading.local()


def identifier(text: str) -> str:
    """``text`` with what may not be in a name of C's or PTX's left out."""
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")


def place(name: str, file: str, line: int) -> str:
    """A function at a line, as ``f (model.py:12)``."""
    return f"{name.rpartition('<locals>.')[2]} ({os.path.basename(file)}:{line})"


def first_line(code: types.CodeType) -> int:
    """The line in which a code object begins to run: of one that goes on behind a break, the line of the break."""
    return next((line for *_, line in code.co_lines() if line), code.co_firstlineno)


def kernel(words: Iterable[str], file: str, line: int, backward: bool = False) -> str:
    """The name of a kernel in a plan: an identifier of at most ``MOST`` characters. ``words``: its operations; ``file``
    may be empty, where the line is not known."""
    where = f"_{identifier(os.path.basename(file))[-_MOST_FILE:].strip('_')}_{line}" if file else ""
    what = [word for text in words if (word := identifier(text))]
    while what and len("_".join(["jit", *["backward"] * backward, *what])) + len(where) > MOST and len(what) > 1:
        what.pop()
    return "_".join(["jit", *["backward"] * backward, *what])[:MOST - len(where)] + where


@contextlib.contextmanager
def compiling(region: str) -> Iterator[None]:
    """What is compiled in the block, in this thread, is a part of ``region``, as ``place`` gives it."""
    before, _local.region = getattr(_local, "region", ""), region
    try:
        yield
    finally:
        _local.region = before


def plan(what: str, found: tuple[str, int, str] | None) -> str:
    """The name of a plan. ``found``: (file, line, function) of its first operation, which tells where it is where
    nothing is being compiled."""
    region = getattr(_local, "region", "") or (place(found[2], found[0], found[1]) if found else "")
    return f"jit {what}: {region}" if region else f"jit {what}"
