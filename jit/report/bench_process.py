"""One system at work for ``python -m jit bench``: eager, torch.compile or jit, in a process that was started for it.

``bench`` runs this file as a script, by its path, so that the process loads the package only where jit is measured:
eager and torch.compile are measured beside nothing of ours. It is the only file that calls torch.compile, which is
what it measures; the process of the user's never loads it.

Commands come as a word and its argument on a line of the standard input; each is answered by a line of JSON on what the
standard output was, which the program's own prints no longer reach.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import logging
import os
import platform
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_WARM_CALLS, _WARM_S = 12, 0.5  # at least, before anything is timed
_LEAD_S, _TURN_S = 5e-3, 25e-3  # of a turn: not timed, and timed
_MOST_WARNINGS = 5


def _beside(name: str) -> types.ModuleType:
    """A file that lies beside this one and imports nothing of the package, loaded without the package."""
    spec = importlib.util.spec_from_file_location(f"_jit_bench_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


calls, results, systems, timing = map(_beside, ("calls", "results", "systems", "timing"))
EAGER, TORCH, JIT = systems.EAGER, systems.TORCH, systems.JIT
COMPILED, READ, PARTLY, NOTHING = systems.COMPILED, systems.READ, systems.PARTLY, systems.NOTHING


class Contestant:
    """A function, its arguments and the system that runs it.

    Args:
        job: what ``bench.Job`` says, as a dict.
        system: one of EAGER, TORCH and JIT.
    """

    def __init__(self, job: dict[str, Any], system: str) -> None:
        self.job, self.system = job, system
        torch.manual_seed(0)
        if job["threads"]:
            torch.set_num_threads(job["threads"])
        found, self.args, self.kwargs = calls.find(job["function"], job["expression"], job["args"])
        self.fn = _undone(found)
        self.leaves = _trained(self.fn, self.args, self.kwargs)
        if job["backward"] and not self.leaves:
            raise calls.Usage("--backward: no argument or module requires gradients; make one that does, as in "
                              "torch.randn(4, requires_grad=True)")
        torch.set_grad_enabled(not job["no_grad"])
        self.said: list[str] = []
        warnings.showwarning = self._warned  # type: ignore[assignment]
        self.seeds: list[torch.Tensor] = []
        self.run: Callable[[], object] = lambda: None
        self.calls, self.state = 1, ""
        self.gradients: list[tuple[str, torch.Tensor | None]] = []

    def _warned(self, message: Any, category: type, *rest: object) -> None:
        first = str(message).strip().split("\n")[0]
        if len(self.said) < _MOST_WARNINGS and first not in self.said:
            self.said.append(first)

    def where(self) -> dict[str, object]:
        """What it runs on."""
        tensors = [leaf for _, leaf in results.leaves([self.args, self.kwargs]) if isinstance(leaf, torch.Tensor)]
        on = next((t.device for t in [*tensors, *(t for _, t in self.leaves)] if t.is_cuda), None)
        place = (torch.cuda.get_device_name(on) if on is not None
                 else f"{platform.machine()} CPU, {torch.get_num_threads()} threads")
        return {"device": place, "torch": torch.__version__, "python": platform.python_version()}

    def settle(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    # -- the commands ---------------------------------------------------------------------------------------------

    def first(self, file: str) -> dict[str, object]:
        """The first call, with what has to be loaded for it. Eager writes its results to a file, the others are
        compared with these."""
        begin, wall = time.perf_counter(), time.time()
        compiled = self.compiled()
        self.run = functools.partial(compiled, *self.args, **self.kwargs)
        if self.job["backward"]:
            self.run = functools.partial(self.step, self.run)
        result = self.run()
        self.settle()
        seconds = time.perf_counter() - begin
        self.state = self.how(wall)
        told: dict[str, object] = {"first_call_s": seconds, "first_call": self.state}
        if self.system == EAGER:
            torch.save({"values": results.copied(result), "gradients": results.copied(dict(self.gradients))}, file)
            return told
        return {**told, **self.apart(result, file)}

    def again(self, file: str) -> dict[str, object]:
        """How far a second call is from what ``first`` has written, with other random numbers."""
        torch.manual_seed(1)
        return self.apart(self.run(), file)

    def apart(self, result: object, file: str) -> dict[str, object]:
        eagers = torch.load(file, weights_only=True)
        ours = {"values": results.copied(result), "gradients": results.copied(dict(self.gradients))}
        return {"difference": {kind: vars(results.difference(ours[kind], eagers[kind])) for kind in eagers
                               if kind == "values" or self.job["backward"]}}

    def warm(self, _: str) -> dict[str, object]:
        """Calls until nothing is new any more, and how many of them make a turn."""
        begin, count = time.perf_counter(), 0
        while count < _WARM_CALLS or time.perf_counter() - begin < _WARM_S:
            self.run()
            count += 1
            if time.perf_counter() - begin > 20 * _WARM_S and count >= 3:
                break
        self.settle()
        self.calls = timing.calls_in(self.run, _TURN_S, self.settle)
        return {"calls": self.calls}

    def turn(self, _: str) -> dict[str, object]:
        """Seconds of a call. Calls that are not timed come first: another process has had the caches, and the threads
        are asleep."""
        begin = time.perf_counter()
        self.run()
        while time.perf_counter() - begin < _LEAD_S:
            self.run()
        return {"seconds": timing.seconds_per_call(self.run, self.calls, self.settle)}

    def counts(self, _: str) -> dict[str, object]:
        """Memory of the GPU at most, graphs, breaks: after all that is timed, since it calls the function anew."""
        told: dict[str, object] = {"peak_bytes": None, "graphs": None, "breaks": None}
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
            self.run()
            self.settle()
            told["peak_bytes"] = torch.cuda.max_memory_allocated()
        if self.system == JIT:
            jit = importlib.import_module("jit")
            options = {"mode": self.job["mode"]} if self.job["mode"] else {}
            made = jit.explain(self.fn, **options)(*self.args, **self.kwargs)
            told.update(graphs=made.graph_count, breaks=made.graph_break_count)
            if self.state == PARTLY and not made.kernels:
                self.state = COMPILED
        elif self.system == TORCH:
            told.update(self._torchs_counts())
        if self.system != EAGER and not told["graphs"]:
            self.state = NOTHING
        return told | {"warnings": self.said, "first_call": self.state}

    # -- what they need -------------------------------------------------------------------------------------------

    def compiled(self) -> Callable[..., object]:
        if self.system == EAGER:
            return self.fn
        options = {"mode": self.job["mode"]} if self.job["mode"] else {}
        if self.system == TORCH:
            return torch.compile(self.fn, **options)
        jit = importlib.import_module("jit")
        if self.job["cold"]:  # the native runtime is loaded from where it was built: once on a machine
            importlib.import_module("jit.runtime").native()
            jit.config.cache_dir = os.path.join(self.job["cold"], "jit")
        return jit.compile(self.fn, **options)

    def how(self, wall: float) -> str:
        """Whether the first call has compiled, by what it has written since it began at ``wall``."""
        if self.system == EAGER:
            return ""
        if self.system == TORCH:
            # Written by the first call into the environment, where it was not there.
            return COMPILED if _written(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), wall) else READ
        jit = importlib.import_module("jit")
        if not jit.compile_count():
            return READ
        return COMPILED if _written(os.path.join(jit.config.cache_dir, "kernels"), wall) else PARTLY

    def step(self, run: Callable[[], object]) -> object:
        """A call and the gradients of what it gives."""
        result = run()
        outputs = [leaf for _, leaf in results.leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not outputs:
            raise calls.Usage("--backward: no tensor of the result requires gradients")
        if [(s.shape, s.dtype, s.device) for s in self.seeds] != [(o.shape, o.dtype, o.device) for o in outputs]:
            numbers = torch.Generator().manual_seed(0)  # alike in all processes; ones would hide what cancels in a sum
            self.seeds = [torch.randn(o.shape, dtype=o.dtype, generator=numbers).to(o.device) for o in outputs]
        torch.autograd.backward(outputs, self.seeds)
        self.gradients = [(name, leaf.grad) for name, leaf in self.leaves]
        for _, leaf in self.leaves:
            leaf.grad = None
        return result

    def _torchs_counts(self) -> dict[str, int]:
        """Graphs and breaks: those that a backend is given, and those that are logged, by TORCH_LOGS."""
        graphs = 0

        def backend(module: Any, examples: object) -> Callable[..., object]:
            nonlocal graphs
            graphs += 1
            return module.forward

        torch.compiler.reset()
        with _heard("__graph_breaks") as said:
            torch.compile(self.fn, backend=backend)(*self.args, **self.kwargs)
        return {"graphs": graphs, "breaks": sum(text.startswith("Graph break") for text in said)}


@contextlib.contextmanager
def _heard(channel: str) -> Iterator[list[str]]:
    """What is logged meanwhile by those of torch.compile's loggers that write to a channel of TORCH_LOGS."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.endswith(channel)]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield said
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _written(folder: str, since: float) -> bool:
    """Whether there is a file in a folder that was written since then."""
    for top, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                if os.stat(os.path.join(top, name)).st_mtime >= since:
                    return True
    return False


def _undone(fn: Any) -> Any:
    """The function or module that a program has compiled itself, by a decorator of jit's or of torch.compile's."""
    if "jit" not in sys.modules and "torch._dynamo" not in sys.modules:
        return fn
    fn = getattr(fn, "_orig_mod", fn) if isinstance(fn, torch.nn.Module) else fn
    dispatch, marks = (importlib.import_module(f"jit.frame.{name}") for name in ("dispatch", "marks"))
    return marks.innermost(dispatch.plain(fn))


def _trained(fn: Any, args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors that gradients are for, with names: in the arguments, in modules among these, and in what the
    function itself holds or refers to."""
    found: dict[int, tuple[str, torch.Tensor]] = {}

    def add(name: str, value: object) -> None:
        if isinstance(value, torch.nn.Module):
            for inner, parameter in value.named_parameters():
                add(f"{name}.{inner}" if name else inner, parameter)
        elif isinstance(value, torch.Tensor):
            if value.requires_grad and value.is_leaf:
                found.setdefault(id(value), (name, value))
        elif isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                add(f"{name}[{number}]", item)
        elif isinstance(value, dict):
            for key, item in value.items():
                add(f"{name}[{key!r}]" if name else str(key), item)

    for number, value in enumerate(args):
        add(f"argument {number}", value)
    add("", kwargs)
    add("", fn)
    add("", getattr(fn, "__self__", None))
    with contextlib.suppress(TypeError):  # not written in Python
        held = inspect.getclosurevars(fn)
        add("", {**held.nonlocals, **held.globals})
    return list(found.values())


def _reason(error: BaseException) -> str:
    """An exception on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def main() -> None:
    job, system = json.loads(sys.argv[1]), sys.argv[2]
    sys.path[:0] = job["path"]
    sys.path.append(job["package"])
    sys.argv = [str(job["function"] or "-c").rpartition(":")[0] or "-c"]
    answers, commands = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def answer(told: dict[str, object]) -> None:
        answers.write(json.dumps(told) + "\n")
        answers.flush()

    try:
        contestant = Contestant(job, system)
        answer(contestant.where())
    except calls.Usage as error:
        return answer({"usage": str(error)})
    except Exception as error:  # the user's file
        return answer({"usage": _reason(error)})
    for line in commands:
        command, _, argument = line.rstrip("\n").partition(" ")
        try:
            answer(getattr(contestant, command)(argument))
        except calls.Usage as error:
            answer({"usage": str(error)})
        except Exception as error:  # the user's function, or a compiler
            answer({"error": _reason(error), "warnings": contestant.said})


if __name__ == "__main__":
    main()
