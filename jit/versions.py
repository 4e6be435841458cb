"""Which versions of Python and PyTorch the compiler was tested with, and what is done about others.

Bytecode is another one in each version of Python, and what eager computes changes with PyTorch, so on a version that is
not in these tables ``jit.compile`` runs functions in eager (``uncompiled.py``), and says so once. With
``JIT_UNTESTED=1`` a later PyTorch may be tried if it has the private names of ``torch_private.py``.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Sequence

import torch

from . import config, torch_private

JIT = "0.1.0"  # setup.cfg has it too
PYTHON = ((3, 11), (3, 12), (3, 13), (3, 14), (3, 15))
TORCH = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))


def _text(versions: Sequence[tuple[int, ...]]) -> str:
    return (
        f"{'.'.join(map(str, versions[0]))} {'and' if len(versions) == 2 else 'to'} {'.'.join(map(str, versions[-1]))}")


SUPPORTED = f"CPython {_text(PYTHON)} with torch {_text(TORCH)}"


def torch_version() -> tuple:
    """(major, minor) of this PyTorch; () where its text does not say."""
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return tuple(map(int, found.groups())) if found else ()


def python_fault() -> str | None:
    """What is wrong with this Python, or None."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in PYTHON:
        return (
            f"{'Python' if sys.implementation.name == 'cpython' else sys.implementation.name} {sys.version.split()[0]} "
            "is not supported")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"the free-threaded build of Python {sys.version.split()[0]} is not supported"
    return None


def torch_fault() -> str | None:
    """What is wrong with this PyTorch, or None."""
    version = torch_version()
    if version < TORCH[0]:
        return f"torch {torch.__version__} is too old"
    if torch_private.missing:
        return f"torch {torch.__version__} lacks {', '.join('torch.' + n for n in torch_private.missing)}"
    if version not in TORCH and not config.untested:
        return f"torch {torch.__version__} was not tested (JIT_UNTESTED=1 compiles all the same)"
    return None


def refusal() -> str | None:
    """Why nothing can be compiled in this process, and what is supported; None where all is well."""
    fault = python_fault() or torch_fault()
    return fault and f"{fault}; supported: {SUPPORTED}"
