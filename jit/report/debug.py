"""``JIT_DEBUG=folder``: every stage of each compilation as files, and for each graph a script that runs it again.

    folder/train-4711/              the program's name and the process
        index.txt                   a line for each compilation, in order
        000_Model.forward/          what was compiled
            report.html, report.txt what ``jit.explain`` says of it
            bytecode.txt, instructions.txt, guards.txt
            error.txt               where a rule of the compiler has failed
            graph0.py               the graph as it was captured
            graph0.forward.py, graph0.backward.py   optimised; without gradients the forward alone
            graph0.loops.txt, graph0.plan.txt       loop kernels; what the runtime does
            graph0.kernels/         the sources, C++ or Triton
            graph0.rerun.py         runs it again on random inputs, with these kernels, and compares with eager
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .. import config, observing
from ..frame.decode import decode
from ..spelling import counted
from . import gather, html, model, text
from .inputs import input_of
from .rerun import Rerun, symbols_of

if TYPE_CHECKING:
    from ..observing import Observer

_NUMBERS = itertools.count()
_lock = threading.Lock()  # of the index


@contextlib.contextmanager
def recording(name: str) -> Iterator[None]:
    """Writes what is compiled in the block, which is called ``name``. A folder that cannot be written is warned of; the
    program goes on."""
    started, failed = time.perf_counter(), None
    try:
        with observing.observed(input_of) as observer:
            yield
    except BaseException as error:  # it is noted, and goes on
        failed = error
        raise
    finally:
        if observer.captured or observer.begun or observer.errors or failed is not None:
            try:
                _write(name, observer, failed, time.perf_counter() - started)
            except OSError as error:
                warnings.warn(f"JIT_DEBUG={config.debug}: {error}; the stages of {name} are not written there",
                              RuntimeWarning, stacklevel=2)


def _folder() -> Path:
    """That of this process."""
    script = Path(getattr(sys.modules.get("__main__"), "__file__", None) or "python").stem
    return Path(config.debug) / f"{script}-{os.getpid()}"


def _write(name: str, observer: Observer, failed: BaseException | None, seconds: float) -> None:
    folder = _folder() / f"{next(_NUMBERS):03d}_{_file_name(name)}"
    folder.mkdir(parents=True)
    captured = [c for c, _ in observer.captured]
    files: dict[str, str] = {}
    said = "nothing was captured"
    if captured:
        report = gather.report(name, captured, observer)
        files["report.html"] = html.page(report)
        files["report.txt"] = text.render(report, 120, everything=True)
        files["bytecode.txt"] = "\n\n".join(r.bytecode for r in report.regions if r.bytecode)
        files["instructions.txt"] = "\n\n".join(decode(c.code).text() for c in captured if c.code is not None)
        files["guards.txt"] = "\n".join(f"{g.about}: {g.fact}" if g.about else g.fact
                                        for r in report.regions for g in r.guards)
        plans = [p for r in report.regions for p in r.plans]
        kernels = sum(s.kind == model.KERNEL for p in plans for s in p.steps)
        breaks = sum(len(r.breaks) for r in report.regions)
        said = f"{counted(len(observer.begun), 'graph')}, {counted(kernels, 'kernel')}, {counted(breaks, 'break')}"
    reported = {c.graph: region for c, region in zip(captured, report.regions)} if captured else {}
    for number, (graph, begun) in enumerate(observer.begun.items()):
        region, plan = reported.get(graph), observer.plans.get(graph)
        files |= _of_graph(f"graph{number}", name, begun, region.plans if region is not None else (),
                           getattr(plan, "kernels", []))
    errors = [*observer.errors, *([failed] if failed is not None else [])]
    if errors:
        files["error.txt"] = "\n".join("".join(traceback.format_exception(e)) for e in errors)
        said += f", failed: {type(errors[-1]).__name__}"
    for file, contents in files.items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(contents.rstrip("\n") + "\n" if contents else "", encoding="utf-8")
    with _lock, open(folder.parent / "index.txt", "a", encoding="utf-8") as index:
        index.write(f"{folder.name}: {said}, {seconds:.2f} s\n")


def _of_graph(called: str, name: str, begun: observing.Begun, plans: tuple[model.PlanReport, ...],
              kernels: list[tuple[str, str]]) -> dict[str, str]:
    """The files of one graph."""
    file, line, _ = begun.graph.place() or ("", 0, "")
    where = f", {file}:{line}" if file else ""
    files = {f"{called}.py": begun.graph.python(),
             f"{called}.rerun.py": Rerun(f"{called} of {name}{where}", begun.graph, begun.inputs,
                                         symbols_of(begun.graph), begun.gradient, kernels, begun.options).text()}
    for plan in plans:
        files[f"{called}.{plan.direction}.py"] = plan.graph
        sources = dict(plan.kernels)
        for step in plan.steps:
            if step.source in sources:  # once, under the name of the first step
                source = sources.pop(step.source)
                suffix = "py" if "@triton.jit" in source else "cpp"
                files[f"{called}.kernels/{step.name}.{step.source[-6:]}.{suffix}"] = source
    files[f"{called}.loops.txt"] = "\n\n".join(dict.fromkeys(t for p in plans for _, t in p.loops))
    files[f"{called}.plan.txt"] = "\n\n".join(f"# {p.direction}\n{p.text}" for p in plans)
    return files


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name).strip("_")[:80] or "function"
