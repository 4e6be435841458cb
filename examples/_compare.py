"""What the examples share: running one function or module in eager, under torch.compile and under jit, and a table of
the three.

The benchmarks use it too. Every figure comes from the same process and the same inputs; the timed rounds of the three
are interleaved, so that a machine that slows down for a while slows all of them. Kernel caches start empty, so that
"cold" is the time of a first call ever: capture, code generation and the compilation of every kernel.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import functools
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

CACHE = os.environ.get("JIT_BENCH_CACHE")  # a benchmark that starts several processes says which folder they share
if not CACHE:
    CACHE = tempfile.mkdtemp(prefix="jit-example-")
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(CACHE, "inductor")
os.environ["TRITON_CACHE_DIR"] = os.path.join(CACHE, "triton")

import torch

COMPILERS = ("eager", "torch.compile", "jit")

# Relative error (norm of the difference over the norm of eager's result) up to which two correct programs may differ.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def device() -> str:
    """"cuda" when there is a GPU that torch can use, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_dtype() -> torch.dtype:
    """bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if device() == "cuda" else torch.float32


def arguments(doc: str, seconds: float = 3.0) -> argparse.ArgumentParser:
    """The arguments that every comparing example has; ``doc`` is the script's docstring."""
    p = argparse.ArgumentParser(description=doc.split("\n")[0])
    p.add_argument("--seconds", type=float, default=seconds, help=f"timing of each compiler (default {seconds})")
    p.add_argument("--compilers", type=lambda text: text.split(","), default=list(COMPILERS),
                   help=f"comma-separated, of {', '.join(COMPILERS)}")
    return p


def synchronize():
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def import_timm():
    """The module ``timm``.

    timm imports torchvision for its image transforms. torchvision's compiled part does not load beside a CPU build of
    torch; the two operators that its import looks up are declared here instead. Raises ImportError saying what to
    install.
    """
    extra = Path(sys.prefix) / "extra"
    if importlib.util.find_spec("torchvision") is None and extra.is_dir():
        sys.path.append(str(extra))
    spec = importlib.util.find_spec("torchvision")
    if spec is not None and "torchvision" not in sys.modules and not _loads(Path(spec.origin).parent):
        library = import_timm.library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"{error}; timm and torchvision come with `make demo`, or: pip install --no-deps -r "
                          "requirements-models.txt") from error
    return timm


def _loads(folder: Path) -> bool:
    for library in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
            return True
        except OSError:
            return False
    return False


def compiled(compiler: str, program, **options):
    """``program`` under one of COMPILERS; ``options`` go to the compiler (``mode="max-autotune"``, ...)."""
    if compiler == "eager":
        return program
    if compiler == "torch.compile":
        torch.compiler.reset()
        return torch.compile(program, **options)
    if compiler == "jit":
        import jit
        import jit.runtime

        # Built once per machine and kept in the usual cache folder, unlike the kernels measured here.
        jit.runtime.native()
        jit.config.cache_dir = os.path.join(CACHE, "jit")
        return jit.compile(program, **options)
    raise ValueError(f"no compiler {compiler!r}; there are: {', '.join(COMPILERS)}")


def tensors(value) -> list[torch.Tensor]:
    """The floating-point tensors in nested tuples, lists, dicts and model outputs, in order."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def difference(value, reference) -> tuple[float, float]:
    """(largest absolute difference, largest relative difference of norms); (inf, inf) where the structures differ."""
    ours, theirs = tensors(value), tensors(reference)
    if len(ours) != len(theirs) or any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(ours, theirs)):
        return float("inf"), float("inf")
    largest = relative = 0.0
    for a, b in zip(ours, theirs):
        if not a.numel():
            continue
        delta = a.double() - b.double()
        if bool(torch.isnan(delta).any()):
            return float("inf"), float("inf")
        largest = max(largest, float(delta.abs().max()))
        relative = max(relative, float(delta.norm() / (b.double().norm() + 1e-30)))
    return largest, relative


@dataclasses.dataclass
class Row:
    """One compiler's figures: seconds of the first call, milliseconds of a later one (median and least), differences
    from eager."""

    compiler: str
    cold_s: float = 0.0
    ms: float = 0.0
    min_ms: float = 0.0
    max_error: float = 0.0
    relative_error: float = 0.0
    error: str = ""

    def ok(self, tolerance: float) -> bool:
        """True when it ran and its result is eager's."""
        return not self.error and self.relative_error <= tolerance


def compare(program, *args, compilers=COMPILERS, seconds: float = 2.0, warmup: int = 3, **kwargs) -> list[Row]:
    """Run ``program(*args, **kwargs)`` without gradients under each compiler; at least 5 timed calls of each in about
    ``seconds``.

    Returns a Row per compiler, eager first. A compiler that raises gets a row with its error; eager's own errors are
    raised.
    """
    rows, programs = [], {}
    with torch.no_grad():
        reference = program(*args, **kwargs)
        synchronize()
        for compiler in compilers:
            row = Row(compiler)
            rows.append(row)
            try:
                candidate = compiled(compiler, program)
                start = time.perf_counter()
                result = candidate(*args, **kwargs)
                synchronize()
                row.cold_s = time.perf_counter() - start
                row.max_error, row.relative_error = difference(result, reference)
                del result
                for _ in range(warmup):
                    candidate(*args, **kwargs)
                synchronize()
                programs[compiler] = candidate
            except Exception as error:
                if compiler == "eager":
                    raise
                row.error = (
                    f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
        samples = _interleaved(programs, args, kwargs, seconds)
    for row in rows:
        if row.compiler in samples:
            row.ms, row.min_ms = statistics.median(samples[row.compiler]), min(samples[row.compiler])
    return rows


def _interleaved(programs: dict, args, kwargs, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of calls, a round of each program in turn; short calls are timed in batches of about a
    millisecond."""
    from jit.report import timing  # late: a first call is timed with the import of its compiler

    samples = {name: [] for name in programs}
    runs = {name: functools.partial(program, *args, **kwargs) for name, program in programs.items()}
    batch = {name: min(1000, timing.calls_in(run, 1e-3, synchronize)) for name, run in runs.items()}
    stop, rounds = time.perf_counter() + seconds * len(programs), 0
    while rounds < 5 or time.perf_counter() < stop and rounds < 1000:
        rounds += 1
        for name, run in runs.items():
            samples[name].append(timing.seconds_per_call(run, batch[name], synchronize) * 1e3)
    return samples


def table(columns: list[str], rows: list[list]) -> str:
    """Rows of cells under column headings, the first column to the left and the others to the right."""
    cells = [columns] + [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = ["  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]).rstrip()
             for row in cells]
    return "\n".join([lines[0], "-" * len(lines[0])] + lines[1:])


def milliseconds(ms: float) -> str:
    """A time in the unit that suits it."""
    return f"{ms * 1e3:.2f} us" if ms < 0.1 else f"{ms:.2f} ms"


def report(title: str, rows: list[Row], tolerance: float | None = None) -> bool:
    """Print the table of ``compare``; times against eager above 1 are faster than eager. Returns False when jit failed
    or was wrong."""
    tolerance = TOLERANCE[torch.float32] if tolerance is None else tolerance
    base = next((r for r in rows if r.compiler == "eager"), None)
    lines = []
    for row in rows:
        if row.error:
            lines.append([row.compiler, "-", "-", "-", "-", "failed"])
            continue
        speed = f"{base.min_ms / row.min_ms:.2f}x" if base and row.min_ms else "-"
        verdict = "" if row.compiler == "eager" else "ok" if row.ok(tolerance) else "DIFFERS"
        first = f"{row.cold_s:.2f} s" if row.compiler != "eager" else "-"
        lines.append([row.compiler, first, milliseconds(row.ms), milliseconds(row.min_ms),
                      speed, f"{row.max_error:.1e} {verdict}" if verdict else "-"])
    print(f"\n{title}")
    print(table(["", "first call", "median", "least", "vs eager", "max error"], lines))
    by_name = {r.compiler: r for r in rows}
    ours, theirs = by_name.get("jit"), by_name.get("torch.compile")
    if ours and theirs and not ours.error and not theirs.error:
        print(f"jit against torch.compile: first call {theirs.cold_s / max(ours.cold_s, 1e-9):.1f}x sooner, later "
              f"calls {theirs.min_ms / ours.min_ms:.2f}x as fast")
    for row in rows:
        if row.error:
            print(f"{row.compiler} failed: {row.error}")
    return ours is None or ours.ok(tolerance)
