"""``python -m jit show`` and ``python -m jit report``."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import devices, observing
from ..frame import entries
from . import calls, gather, html, measured, show, text
from .model import Recompile

_SHOW_EXAMPLES = f"""examples:
  python -m jit show -c "torch.softmax(x, -1)" --args "x=torch.randn(4, 8)" --stage graph
  python -m jit show model.py:Model.forward --args "Model(), torch.randn(2, 16)" --stage guards
  python -m jit show ops.py:gelu --args "torch.randn(4096)" --stage triton

{calls.KNOWN} Kernels for a GPU
are shown on a machine without one, too, then without gradients."""

_REPORT_EXAMPLES = """examples:
  python -m jit report train.py --steps 2
  python -m jit report --html report.html train.py
  python -m jit report --measure train.py"""


def show_command(arguments: Sequence[str]) -> int:
    """``python -m jit show FILE:FUNCTION | -c EXPR --args ARGS --stage STAGE``."""
    parser = argparse.ArgumentParser(
        prog="python -m jit show", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Show what a function becomes on its way to kernels.\n\nstages:\n"
                    + "\n".join(f"  {name:13s} {meaning}" for name, meaning in show.STAGES.items()),
        epilog=_SHOW_EXAMPLES)
    calls.add_to(parser)
    parser.add_argument("--stage", choices=list(show.STAGES), default="graph", help="default: graph")
    parser.add_argument("--device", choices=[kind.type for kind in devices.registered() if kind.emitter is not None],
                        help="for loops and plan: of which kind of device; default: that of the arguments")
    given = parser.parse_args(arguments)
    try:
        fn, args, kwargs = calls.find(given.function, given.expression, given.args)
        print(show.stage(given.stage, fn, args, kwargs, given.device))
    except (calls.Usage, show.NothingToShow) as error:
        print(f"jit show: {error}", file=sys.stderr)
        return 1
    return 0


def report_command(arguments: Sequence[str]) -> int:
    """``python -m jit report [--html FILE] [--all] [--measure] SCRIPT [ARGUMENTS]``."""
    parser = argparse.ArgumentParser(
        prog="python -m jit report", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run a script as `python SCRIPT ARGUMENTS` would, and report what was compiled in it: the source "
                    "line by line, kernels and library calls, what was not fused, guards, why functions were compiled "
                    "again, and where the time of compiling went. Nothing is read from the cache on disk.",
        epilog=_REPORT_EXAMPLES)
    parser.add_argument("--html", metavar="FILE", help="write a page for each compiled function, the further ones with "
                                                       "a number in the name, instead of text to the terminal")
    parser.add_argument("--all", action="store_true", help="in the text: all guards, and functions of libraries")
    parser.add_argument("--measure", action="store_true",
                        help="time each step over its runs in the script, by PyTorch's profiler, which keeps all that "
                             "it saw in memory until the end; there are no times where the script uses it itself")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="what the script is given")
    given = parser.parse_args(arguments)
    if not Path(given.script).is_file():
        print(f"jit report: there is no file {given.script}", file=sys.stderr)
        return 1
    sys.argv = [given.script, *given.rest]
    sys.path.insert(0, os.path.dirname(os.path.abspath(given.script)))
    status, ranges = 0, None
    with contextlib.ExitStack() as around:
        observer = around.enter_context(observing.observed())
        if given.measure:
            ranges = around.enter_context(measured.profiled(devices.registered()))
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
    elif given.measure and not ranges:
        print("jit report: no run was timed: the profiler saw none, as where the script uses it itself",
              file=sys.stderr)
    for number, made in enumerate(reports):
        if ranges:
            made = measured.timed(made, ranges)
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
