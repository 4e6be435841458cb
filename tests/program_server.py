"""Runs programs as ``python FILE`` and ``python -m MODULE`` would, without loading PyTorch for each: ``Server``.

``python tests/program_server.py [jit]`` loads PyTorch, and jit too where that is asked for, and forks a process for
each line on stdin, a JSON object; it answers with the exit status, a line each. Programs that do something before they
import jit need a server without it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Server:
    """A process that runs programs.

    Args:
        folder: for files of its own.
        loaded: "jit", or nothing.
        variables: of its environment, without those of jit that are set here.
    """

    def __init__(self, folder: Path, *loaded: str, **variables: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("JIT_") or k == "JIT_CACHE_DIR"}
        env |= {"JIT_ENTRY_CACHE": "0", "JIT_EAGER_WHERE_FASTER": "0", "PYTHONPATH": str(HERE.parent), **variables}
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        self.process = subprocess.Popen([sys.executable, __file__, *loaded], env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def run(self, *argv: object, cwd: object = None, logs: str = "", together: bool = False,
            seconds: float = 300) -> subprocess.CompletedProcess:
        """What a program does that is started with these words: a file and its arguments, or "-m", a module and its.

        Args:
            cwd: the folder that it runs in.
            logs: what ``JIT_LOGS`` would say; with jit loaded.
            together: stderr goes where stdout does.
            seconds: after which it is killed.
        """
        order = {"argv": list(map(str, argv)), "cwd": str(cwd or HERE.parent), "logs": logs, "seconds": seconds,
                 "out": str(self.out), "err": str(self.out if together else self.err)}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(argv, status, self.out.read_text(),
                                           "" if together else self.err.read_text())

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait()


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
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    for stream, file in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(file, flags), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["cwd"])
    if order["logs"]:
        sys.modules["jit"].logs.enable(order["logs"])
    first, *rest = order["argv"]
    status: object = 0
    try:
        if first == "-m":
            sys.argv, sys.path[0] = [rest[0], *rest[1:]], order["cwd"]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [first, *rest]
            sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
            runpy.run_path(first, run_name="__main__")
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
