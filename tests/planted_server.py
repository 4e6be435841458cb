"""Runs the programs of ``tests/planted`` as ``python FILE`` would, without loading PyTorch for each of them.

``python tests/planted_server.py [jit]`` loads PyTorch, and jit too where that is asked for, and forks a process for
each line on stdin, a JSON object: ``argv`` (the program and its arguments), ``logs`` (what ``JIT_LOGS`` would say; with
jit loaded), ``out`` (a file for stdout and stderr), ``seconds`` (after which it is killed). It answers with the exit
status, a line each. Programs that do something before they import jit need a server without it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
import traceback


def main() -> None:
    import torch

    torch.set_num_threads(1)
    if "jit" in sys.argv[1:]:
        import jit

        jit.api.backends.load()
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
    """Run the program in this process, which is of no use for anything else then. -> its exit status"""
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if order["logs"]:
        sys.modules["jit"].logs.enable(order["logs"])
    sys.argv = list(order["argv"])
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    status: object = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # whatever the program raises, as the interpreter shows it
        traceback.print_exception(error)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    main()
