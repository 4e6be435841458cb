"""``python -m jit show`` and ``python -m jit report``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import devices, observing
from ..frame import entries
from . import gather, html, show, text
from .model import Recompile

_SHOW_EXAMPLES = """examples:
  python -m jit show -c "torch.softmax(x, -1)" --args "x=torch.randn(4, 8)" --stage graph
  python -m jit show model.py:Model.forward --args "Model(), torch.randn(2, 16)" --stage guards
  python -m jit show ops.py:gelu --args "torch.randn(4096)" --stage triton

The arguments are those of a call, in Python; torch and the names of FILE are known there. Kernels for a GPU are shown
on a machine without one, too, then without gradients."""

_REPORT_EXAMPLES = """examples:
  python -m jit report train.py --steps 2
  python -m jit report --html report.html train.py"""


class Usage(Exception):
    """What is wrong with a command line."""


def show_command(arguments: Sequence[str]) -> int:
    """``python -m jit show FILE:FUNCTION | -c EXPR --args ARGS --stage STAGE``."""
    parser = argparse.ArgumentParser(
        prog="python -m jit show", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Show what a function becomes on its way to kernels.\n\nstages:\n"
                    + "\n".join(f"  {name:13s} {meaning}" for name, meaning in show.STAGES.items()),
        epilog=_SHOW_EXAMPLES)
    parser.add_argument("function", nargs="?", metavar="FILE:FUNCTION", help="a Python file and a name in it")
    parser.add_argument("-c", dest="expression", metavar="EXPR", help="an expression instead, of the names in --args")
    parser.add_argument("--args", default="", metavar="ARGS", help="the arguments of the call")
    parser.add_argument("--stage", choices=list(show.STAGES), default="graph", help="default: graph")
    parser.add_argument("--device", choices=[kind.type for kind in devices.registered() if kind.emitter is not None],
                        help="for loops and plan: of which kind of device; default: that of the arguments")
    given = parser.parse_args(arguments)
    try:
        if (given.function is None) == (given.expression is None):
            raise Usage("give either FILE:FUNCTION or -c EXPR")
        fn, args, kwargs = (_of_expression(given.expression, given.args) if given.expression is not None
                            else _of_file(given.function, given.args))
        print(show.stage(given.stage, fn, args, kwargs, given.device))
    except (Usage, show.NothingToShow) as error:
        print(f"jit show: {error}", file=sys.stderr)
        return 1
    return 0


def _of_expression(expression: str, arguments: str) -> tuple[Callable, tuple, dict[str, Any]]:
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
    if not file or not name:
        raise Usage(f"{function!r} is no FILE:FUNCTION")
    if not Path(file).is_file():
        raise Usage(f"there is no file {file}")
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


def report_command(arguments: Sequence[str]) -> int:
    """``python -m jit report [--html FILE] [--all] SCRIPT [ARGUMENTS]``."""
    parser = argparse.ArgumentParser(
        prog="python -m jit report", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run a script as `python SCRIPT ARGUMENTS` would, and report what was compiled in it: the source "
                    "line by line, kernels and library calls, what was not fused, guards, why functions were compiled "
                    "again, and where the time of compiling went. Nothing is read from the cache on disk.",
        epilog=_REPORT_EXAMPLES)
    parser.add_argument("--html", metavar="FILE", help="write a page for each compiled function, the further ones with "
                                                       "a number in the name, instead of text to the terminal")
    parser.add_argument("--all", action="store_true", help="in the text: all guards, and functions of libraries")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="what the script is given")
    given = parser.parse_args(arguments)
    if not Path(given.script).is_file():
        print(f"jit report: there is no file {given.script}", file=sys.stderr)
        return 1
    sys.argv = [given.script, *given.rest]
    sys.path.insert(0, os.path.dirname(os.path.abspath(given.script)))
    status = 0
    with observing.observed() as observer:
        try:
            runpy.run_path(given.script, run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:  # the script's own: what was compiled until then is reported all the same
            traceback.print_exc()
            status = 1
    reports = list(_reports(observer))
    if not reports:
        print("jit report: nothing was compiled in this thread of the script", file=sys.stderr)
    for number, made in enumerate(reports):
        if given.html is None:
            print(text.render(made, everything=given.all), end="\n\n")
            continue
        path = Path(given.html)
        path = path if number == 0 else path.with_name(f"{path.stem}-{number + 1}{path.suffix}")
        path.write_text(html.page(made), encoding="utf-8")
        print(f"{made.title}: {path}", file=sys.stderr)
    return status


def _reports(observer: observing.Observer) -> Any:
    """A report for each function that was compiled, in order."""
    by_settings: dict[int, list] = {}
    for captured, settings in observer.captured:
        by_settings.setdefault(id(settings), []).append((captured, settings))
    for rows in by_settings.values():
        captured = [c for c, _ in rows]
        again = [Recompile(name, *row) for name, row in entries.why_again_under(rows[0][1])]
        yield gather.report(captured[0].code.co_qualname if captured[0].code is not None else "", captured, observer,
                            again)
