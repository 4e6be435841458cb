"""Runs the programs of ``tests/planted`` as ``python FILE`` would, without loading PyTorch for each of them.

``python tests/planted_server.py [jit]`` loads PyTorch, and jit too where that is asked for, and forks a process for each
line on stdin, a JSON object: ``argv`` (the program and its arguments), ``env`` (variables to set; None: to remove),
``out`` (a file for stdout and stderr), ``seconds`` (after which it is killed), ``module`` (true: ``argv[0]`` is a module,
as with ``python -m``). It answers with the exit status, a line each. Programs that depend on variables which jit reads
when it is imported need a server without jit.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
import time
import traceback


def main() -> None:
    import torch  # noqa: F401

    torch.set_num_threads(1)
    if "jit" in sys.argv[1:]:
        import jit.api  # noqa: F401
        import jit.backends

        jit.backends.load()
    print("ready", flush=True)
    for line in sys.stdin:
        print(served(json.loads(line)), flush=True)


def served(order: dict) -> int:
    """The exit status of one program."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(run(order))
    end = time.monotonic() + order["seconds"]
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(order: dict) -> int:
    """Run the program in this process, which is of no use for anything else then."""
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for name, value in order["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.argv = list(order["argv"])
    status: object = 0
    try:
        if order.get("module"):
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # whatever the program raises, as the interpreter shows it
        status = 1
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else 0 if status is None else 1


if __name__ == "__main__":
    main()
