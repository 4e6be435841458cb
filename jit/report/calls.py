"""What a command line names to be called: a function of a file, or an expression, with the arguments of the call.

It imports nothing of the package: the processes that ``bench`` compares load this file, and no compiler but their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

KNOWN = "The arguments are those of a call, in Python; torch and the names of FILE are known there."


class Usage(Exception):
    """What is wrong with a command line."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what is called."""
    parser.add_argument("function", nargs="?", metavar="FILE:FUNCTION", help="a Python file and a name in it")
    parser.add_argument("-c", dest="expression", metavar="EXPR", help="an expression instead, of the names in --args")
    parser.add_argument("--args", default="", metavar="ARGS", help="the arguments of the call")


def check(function: str | None, expression: str | None) -> None:
    """Raises Usage unless one of the two is there, and the file of a function."""
    if (function is None) == (expression is None):
        raise Usage("give either FILE:FUNCTION or -c EXPR")
    if function is not None:
        file, _, name = function.rpartition(":")
        if not file or not name:
            raise Usage(f"{function!r} is no FILE:FUNCTION")
        if not Path(file).is_file():
            raise Usage(f"there is no file {file}")


def find(function: str | None, expression: str | None, arguments: str) -> tuple[Callable, tuple, dict[str, Any]]:
    """What is called, and the arguments. Raises Usage; what the file itself raises is left to the caller."""
    check(function, expression)
    return _of_expression(expression, arguments) if function is None else _of_file(function, arguments)


def _of_expression(expression: str | None, arguments: str) -> tuple[Callable, tuple, dict[str, Any]]:
    known: dict[str, Any] = {"torch": torch}
    args, kwargs = _arguments(arguments, known)
    if args:
        raise Usage("with -c, each argument needs a name: --args \"x=torch.randn(4)\"")
    source = f"def expression({', '.join(kwargs)}):\n    return {expression}\n"
    try:
        exec(compile(source, "<expression>", "exec"), known)
    except SyntaxError as error:
        raise Usage(f"-c: {error.msg}: {expression}") from None
    return known["expression"], (), kwargs


def _of_file(function: str, arguments: str) -> tuple[Callable, tuple, dict[str, Any]]:
    file, _, name = function.rpartition(":")
    module = _loaded(file)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            there = sorted(n for n, v in vars(found).items() if callable(v) and not n.startswith("_")) if hasattr(
                found, "__dict__") else []
            raise Usage(f"{file} has no {name}" + (f"; there are {', '.join(there)}" if there else ""))
        found = getattr(found, part)
    args, kwargs = _arguments(arguments, {"torch": torch, **vars(module)})
    return found, args, kwargs


def _loaded(file: str) -> types.ModuleType:
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise Usage(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(text: str, known: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a call as Python evaluates them."""
    try:
        return eval(f"_given({text})", {**known, "_given": lambda *args, **kwargs: (args, kwargs)})
    except Exception as error:  # whatever the text does: it is the user's
        raise Usage(f"--args {text!r}: {type(error).__name__}: {error}") from None
