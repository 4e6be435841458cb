"""``python -m jit COMMAND``: one entry of the table per command."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from jit import commands
from jit.errors import CompileError, NoCompiler
from jit.runtime import build, doctor


_DOCTOR_USAGE = """usage: python -m jit doctor

Builds the native runtime, where it is not there yet, and checks what compiling needs, a line for each thing: ok, warn
or FAIL, the latter two with what to do. The exit status is 1 where something is missing without which nothing is
compiled.

example:
  python -m jit doctor"""


def _doctor(arguments: Sequence[str]) -> int:
    doctor.check("compiled loops", "native runtime", "compiler")(_compiled_loops)
    return doctor.main(arguments)


def _compiled_loops() -> str:
    from jit.codegen.cpp import compiler_check  # late: of a room, which an unknown PyTorch may not let load

    try:
        return compiler_check.report()
    except NoCompiler as e:
        raise doctor.without_compiler(e) from None
    except CompileError as e:
        raise doctor.Problem(str(e), "point CXX at another g++, 11 or newer") from None


def _of_reports(name: str, file: str = "commands") -> Callable[[Sequence[str]], int]:
    """A command of the room of reports, which is loaded when it is asked for: it needs all others, which an unknown
    PyTorch may not let load."""
    return lambda arguments: getattr(importlib.import_module(f"jit.report.{file}"), name)(arguments)


COMMANDS = {
    "bench": (_of_reports("command", "bench"), "a function in eager, under torch.compile and under jit: times, graphs, "
                                               "memory, results"),
    "build": (build.main, "build the native runtime ahead of use, which takes minutes; once for each torch and Python"),
    "cache": (commands.cache_command, "what is kept on disk: ls, stats, verify, clear"),
    "doctor": (_doctor, "build the native runtime and check the toolchain; exit status 1 when something is missing"),
    "report": (_of_reports("report_command"), "run a script, and report what was compiled in it, as text or as a page"),
    "show": (_of_reports("show_command"), "what a function becomes: bytecode, graph, kernels, plan, guards"),
    "warm": (commands.warm_command, "run a script, and keep what is compiled in it"),
}


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]][0](arguments[1:])
    usage = "\n".join(["usage: python -m jit COMMAND ...", "",
                       *(f"  {name:8s} {text}" for name, (_, text) in COMMANDS.items()), "",
                       "python -m jit COMMAND --help says more about one, with examples."])
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage)
        return 0
    alike = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
    meant = f"; did you mean {alike[0]}?" if alike else ""
    print(f"jit: there is no command {arguments[0]!r}{meant}\n\n{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:  # nobody reads on, as behind ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
        sys.exit(1)
