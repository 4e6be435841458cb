"""``python -m jit bench``: eager, torch.compile and jit beside each other.

Each system runs in a process of its own (``bench_process.py``), which is started for it and loads nothing of the
others. All of them are alive at once and take turns: one works while the others wait.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import arguments as options
from ..runtime import native
from ..spelling import counted
from . import calls, timing
from .bench_table import printed
from .systems import EAGER, JIT, TORCH

_EXAMPLES = f"""examples:
  python -m jit bench -c "torch.softmax(x * 2, -1)" --args "x=torch.randn(512, 512)"
  python -m jit bench model.py:Model.forward --args "Model(), torch.randn(8, 16)" --backward --against eager
  python -m jit bench ops.py:gelu --args "torch.randn(4096, device='cuda')" --cold --json gelu.json

{calls.KNOWN} The same
numbers are drawn for them in each process. torch.compile's first call takes ten seconds and more."""
_ENOUGH = 500  # rounds
_CERTAIN, _LONGER = 0.03, 4.0
_LAST_S = 40.0  # for what a process writes to its cache at its end


@dataclasses.dataclass(frozen=True)
class Job:
    """What is measured, as the processes are told it.

    Attributes:
        function, expression, args: what is called, as in ``calls.find``.
        backward: whether gradients are computed too.
        no_grad: whether it is called under ``torch.no_grad``.
        mode: of torch.compile and of jit, or None.
        threads: of torch on the CPU; 0 for its own choice.
        cold: an empty folder for all caches; None to use those that there are.
        path, package: what the processes have on ``sys.path``: first of all, and at its end.
    """

    function: str | None
    expression: str | None
    args: str
    backward: bool = False
    no_grad: bool = False
    mode: str | None = None
    threads: int = 0
    cold: str | None = None
    path: tuple[str, ...] = ()
    package: str = str(Path(__file__).resolve().parents[2])

    @property
    def title(self) -> str:
        return f"{self.function or self.expression}"


@dataclasses.dataclass
class System:
    """What was found out about one system.

    Attributes:
        error: why there is nothing more, on one line; "" if there is.
        first_call_s: seconds of the first call, with what has to be loaded for it.
        first_call: whether that has compiled; "" for eager.
        calls: of a turn.
        samples: seconds of a call, one sample a round.
        graphs, breaks: of the function; None where there are none, or where that could not be found out.
        peak_bytes: of the GPU's memory during a call, the arguments' included; None without a GPU.
        difference: from the results of eager, a dict of ``results.Difference`` each for "values" and "gradients"; of
            eager itself, between its first two calls.
        warnings: first lines of what it warned of.
    """

    error: str = ""
    first_call_s: float | None = None
    first_call: str = ""
    calls: int = 0
    samples: list[float] = dataclasses.field(default_factory=list)
    graphs: int | None = None
    breaks: int | None = None
    peak_bytes: int | None = None
    difference: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def told(self, answer: dict[str, Any]) -> None:
        """Take what a process has answered."""
        for name, value in answer.items():
            if name == "seconds":
                self.samples.append(value)
            elif hasattr(self, name):
                setattr(self, name, value)


@dataclasses.dataclass
class Comparison:
    """All that was found out, with the systems in the order of the table.

    Attributes:
        where: what it ran on: "device", "torch", "python", and "load", of other programs where that is much.
    """

    job: Job
    where: dict[str, str]
    systems: dict[str, System]

    def estimate(self, name: str) -> timing.Estimate | None:
        """Seconds of a call; None where it has none."""
        system = self.systems.get(name)
        return timing.estimate(system.samples) if system is not None and system.samples and not system.error else None

    def ratio(self, name: str, base: str) -> timing.Estimate | None:
        """How many times as fast as ``base`` a system is, round by round; None where one of them has no times."""
        if self.estimate(name) is None or self.estimate(base) is None or name == base:
            return None
        return timing.ratio(self.systems[base].samples, self.systems[name].samples)

    def plain(self) -> dict[str, Any]:
        """For a JSON file: seconds, bytes; numbers that are not finite as text."""
        made: dict[str, Any] = {**dataclasses.asdict(self.job), **self.where, "systems": {}}
        for name in ("cold", "path", "package"):
            del made[name]
        made["cold"] = self.job.cold is not None
        for name, system in self.systems.items():
            found = self.estimate(name)
            made["systems"][name] = dataclasses.asdict(system) | {
                "call_s": None if found is None else dataclasses.asdict(found),
                "times_as_fast_as": {base: dataclasses.asdict(r) | {"inside_noise": timing.inside_noise(r)}
                                     for base in self.systems if (r := self.ratio(name, base)) is not None}}
        return _finite(made)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)


class Gone(Exception):
    """A process that has ended, or does not answer."""


class Process:
    """One that works for a system."""

    def __init__(self, job: Job, system: str, timeout: float) -> None:
        self.timeout = timeout
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        environment = dict(os.environ)
        if job.cold is not None:
            environment.update(TORCHINDUCTOR_CACHE_DIR=os.path.join(job.cold, system, "inductor"),
                               TRITON_CACHE_DIR=os.path.join(job.cold, system, "triton"))
        if system == TORCH:  # by which its process counts breaks
            environment["TORCH_LOGS"] = "graph_breaks"
        # -P: the folder of the script, which is inside the package, is not searched for modules.
        command = [sys.executable, "-P", str(Path(__file__).with_name("bench_process.py")),
                   json.dumps(dataclasses.asdict(job)), system]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=environment, text=True)

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to a command. Raises Gone, and Usage where the user has to change something."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError:
            raise Gone(self._why()) from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        end = time.monotonic() + self.timeout
        while not select.select([self.process.stdout], [], [], 0.2)[0]:
            if self.process.poll() is not None:
                break
            if time.monotonic() > end:
                raise Gone(f"no answer after {self.timeout:.0f} s")
        line = self.process.stdout.readline() if self.process.poll() is None or select.select(
            [self.process.stdout], [], [], 0)[0] else ""
        if not line:
            raise Gone(self._why())
        told = json.loads(line)
        if "usage" in told:
            raise calls.Usage(told["usage"])
        return told

    def _why(self) -> str:
        """What it has said last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        code = self.process.returncode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit status {code}"
        return f"its process {how}" + (f": {lines[-1][:200]}" if lines else "")

    def end(self, seconds: float) -> None:
        """Let it finish what it is writing to its cache."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()


def compare(job: Job, against: Sequence[str], seconds: float, timeout: float = 900.0) -> Comparison:
    """Measure jit and the systems of ``against``; eager is always called, since the results are compared with its.

    Args:
        seconds: of turns, for each system; up to four times as long where they are not certain by then.
        timeout: seconds after which a process that does not answer is given up.

    Raises calls.Usage where there is something that the user has to change, such as a file that is not there.
    """
    calls.check(job.function, job.expression)
    load = _load()
    native()  # built now if it was not yet: that is once on a machine, and no part of a first call
    with contextlib.ExitStack() as stack:
        names = [name for name in (EAGER, TORCH) if name in against or name == EAGER] + [JIT]
        processes: dict[str, Process] = {}
        stack.callback(_end, processes)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jit-bench-"))
        for name in names:
            processes[name] = Process(job, name, timeout)
        systems = {name: System() for name in names}
        where = {"device": "", "torch": torch.__version__, "python": platform.python_version(), "load": load}

        def ask(name: str, command: str) -> None:
            _asked(processes[name], systems[name], command)

        for name in names:
            _say(f"starting {name}")
            with _failing(systems[name]):
                where.update(processes[name].answer())
        file = os.path.join(folder, "results")
        for name in names:
            _say(f"first call of {name}")
            ask(name, f"first {file}")
            if name == EAGER and systems[EAGER].error:
                for other in names[1:]:  # the function itself raises, and there is nothing to compare with
                    systems[other].error = "not called, since eager fails"
                break
        else:
            ask(EAGER, f"again {file}")
            timed = [name for name in names if name in against or name == JIT]
            for name in timed:
                _say(f"warming up {name}")
                ask(name, "warm")
            _rounds({name: systems[name] for name in timed if not systems[name].error}, ask, seconds)
            for name in timed:
                _say(f"graphs and breaks of {name}")
                ask(name, "counts")
        _say("")
    if EAGER not in against and not systems[EAGER].error:
        del systems[EAGER]
    return Comparison(job, where, systems)


def _end(processes: dict[str, Process]) -> None:
    """Let them finish, unless the user has had enough of it."""
    for process in processes.values():
        process.end(_LAST_S if sys.exc_info()[0] is None else 0.0)


def _rounds(systems: dict[str, System], ask: Any, seconds: float) -> None:
    """A turn of each in a round, in one order and in the other by turns, so that none always comes first: for so many
    seconds of each, and up to ``_LONGER`` times as long until times and ratios are as certain as ``_CERTAIN``."""
    begin, done = time.monotonic(), 0
    while True:
        _say(f"round {done + 1}")
        for name in systems if done % 2 == 0 else reversed(systems):
            ask(name, "turn")
        done += 1
        took = (time.monotonic() - begin) / max(len(systems), 1)
        if done > timing.FEWEST and (done >= _ENOUGH or took >= _LONGER * seconds
                                     or took >= seconds and _error(systems) <= _CERTAIN):
            break


def _error(systems: dict[str, System]) -> float:
    """Of the least certain of times and ratios."""
    samples = [system.samples for system in systems.values() if not system.error]
    return max((e.error for e in (*map(timing.estimate, samples), *(timing.ratio(a, b) for a in samples
                                                                    for b in samples if a is not b))), default=0.0)


def _load() -> str:
    """What other programs are doing, where that is much; "" where it is not."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f"{load:.1f} on {counted(cores, 'core')}" if load > max(0.5, cores / 4) else ""


@contextlib.contextmanager
def _failing(system: System) -> Iterator[None]:
    try:
        yield
    except Gone as error:
        system.error = str(error)


def _asked(process: Process, system: System, command: str) -> None:
    if not system.error:
        with _failing(system):
            system.told(process.ask(command))


def _say(text: str) -> None:
    """What is going on, on the terminal's last line; "" takes it away."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def command(given_arguments: Sequence[str]) -> int:
    """``python -m jit bench FILE:FUNCTION | -c EXPR --args ARGS``."""
    parser = argparse.ArgumentParser(
        prog="python -m jit bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compare eager, torch.compile and jit: the first call, the time of a call, graphs, breaks, memory "
                    "and results.\nEach runs in a process of its own; they take turns, and ratios are of the same "
                    "rounds.\nThe exit status is 1 if eager or jit fails.",
        epilog=_EXAMPLES)
    calls.add_to(parser)
    parser.add_argument("--against", default=f"{EAGER},{TORCH}", metavar="LIST",
                        help=f"what jit is compared with: {EAGER}, {TORCH} or both (the default)")
    parser.add_argument("--backward", action="store_true", help="gradients too, of what requires them")
    parser.add_argument("--no-grad", action="store_true", help="call it under torch.no_grad()")
    parser.add_argument("--cold", action="store_true", help="with empty caches, so that both compilers compile; else "
                                                            "they use what they have kept on disk")
    parser.add_argument("--mode", choices=[mode for mode in options.MODES if mode is not None],
                        help="of torch.compile and of jit")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, for each system (default: 2); up to "
                                                                      "four times as long where the machine is noisy")
    parser.add_argument("--threads", type=int, default=0, help="of torch on the CPU (default: torch's own choice)")
    parser.add_argument("--json", metavar="FILE", help="write all figures to this file, too, in seconds and bytes")
    given = parser.parse_args(given_arguments)
    against = [name.strip() for name in given.against.split(",") if name.strip()]
    for name in against:
        if name not in (EAGER, TORCH):
            parser.error(f"--against: no system {name!r}; there are {EAGER} and {TORCH}")
    if given.backward and given.no_grad:
        parser.error("--backward needs gradients, and --no-grad records none")
    with contextlib.ExitStack() as stack:
        cold = stack.enter_context(tempfile.TemporaryDirectory(prefix="jit-bench-")) if given.cold else None
        job = Job(given.function, given.expression, given.args, given.backward, given.no_grad, given.mode,
                  given.threads, cold, tuple(sys.path[:1]))
        try:
            found = compare(job, against, given.seconds)
        except calls.Usage as error:
            _say("")
            print(f"jit bench: {error}", file=sys.stderr)
            return 1
    print(printed(found))
    if given.json is not None:
        Path(given.json).write_text(json.dumps(found.plain(), indent=1) + "\n", encoding="utf-8")
    return int(any(found.systems[name].error != "" for name in (EAGER, JIT) if name in found.systems))
