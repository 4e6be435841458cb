"""The functions ``interpret`` of test modules, each run once, in a process of its own with Triton's interpreter. Those
of the collected modules run ahead of the tests that read what they print, on a core that would be idle."""

import functools
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 900  # seconds
KINDLY = ("nice", "-n", "15") if shutil.which("nice") else ()


class Runs:
    """The processes of one session of pytest, with the variables that the session began with."""

    def __init__(self, folder: Path = HERE, limit: float = LIMIT):
        path = os.pathsep.join([str(folder), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "2", "PYTHONPATH": path}
        self.limit = limit
        self.ahead: dict[str, Future] = {}
        self.lock = threading.Lock()  # between a process that starts and the end of all
        self.running: list[subprocess.Popen] = []
        self.stopped = False
        self.thread = threading.Thread(target=self._work, name="interpreter of kernels", daemon=True)

    def start(self, modules) -> None:
        """Begin to run those of these modules, one after the other, behind what the session does."""
        self.ahead = {name: Future() for name in modules}
        if self.ahead:
            self.thread.start()

    def _work(self) -> None:
        for module, run in self.ahead.items():
            if run.set_running_or_notify_cancel():
                try:
                    run.set_result(self.run(module, KINDLY))
                except BaseException as error:
                    run.set_exception(error)

    def run(self, module: str, prefix=()) -> subprocess.CompletedProcess:
        command = [*prefix, sys.executable, "-W", "ignore", "-c", f"import {module} as t; t.interpret()"]
        with self.lock:
            if self.stopped:
                raise RuntimeError("the session is over")
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, env=self.environment, cwd=HERE.parent)
            self.running.append(process)
        try:
            texts = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            process.kill()
            texts = process.communicate()
        finally:
            process.kill()  # one that has ended is left alone
            process.wait()
            self.running.remove(process)
        return subprocess.CompletedProcess(command, process.returncode, *texts)

    @functools.cache
    def finished(self, module: str) -> subprocess.CompletedProcess:
        """Wait for the module's process where it runs already; else run it at once."""
        ahead = self.ahead.get(module)
        return self.run(module) if ahead is None or ahead.cancel() else ahead.result()

    def output(self, module: str) -> str:
        done = self.finished(module)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def stop(self) -> None:
        for run in self.ahead.values():
            run.cancel()
        with self.lock:
            self.stopped = True
            for process in list(self.running):
                process.kill()
        if self.thread.is_alive():
            self.thread.join(30)


session = Runs()


def output(module: str) -> str:
    """What ``interpret`` of this test module prints."""
    return session.output(module)


def outcomes(module: str) -> dict[str, str]:
    """By name, the lines "ok name" and "FAILED name: why" that ``interpret`` of this test module prints."""
    return {line.split()[1].rstrip(":"): line
            for line in output(module).splitlines() if line.startswith(("ok ", "FAILED "))}


def run_ahead(modules) -> None:
    """Begin with those of these modules whose tests read the output, where a core is free for it."""
    if len(os.sched_getaffinity(0)) >= 2:
        session.start(dict.fromkeys(m.__name__ for m in modules if hasattr(m, "interpret")
                                    and getattr(m, "interpreter", None) is sys.modules[__name__]))
