"""What the benchmarks share: arguments, compilers, timing and ratio tables.

Table printing, the comparison with eager and the import of timm are those of examples/_compare.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
if str(ROOT) not in sys.path:
    sys.path.insert(1, str(ROOT))

COMPILERS = ("eager", "torch.compile", "jit")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def parser(doc: str, seconds: float | None = 1.0) -> argparse.ArgumentParser:
    """The arguments that every benchmark has; ``doc`` is the script's docstring."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is one")
    p.add_argument("--compilers", default=",".join(COMPILERS),
                   help=f"comma-separated, of {', '.join(COMPILERS)}; a mode may follow: jit:max-autotune")
    p.add_argument("--threads", type=int, default=0, help="CPU threads (default: torch's own choice)")
    p.add_argument("--json", help="write all figures to this file")
    if seconds is not None:
        p.add_argument("--seconds", type=float, default=seconds,
                       help=f"timing of each row and compiler (default {seconds})")
    return p


def start(args) -> list[str]:
    """Settle device and threads, print what was measured on, return the list of compilers. Raises SystemExit on an
    unknown one."""
    import torch

    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    names = [c.strip() for c in args.compilers.split(",") if c.strip()]
    for name in names:
        base, _, mode = name.partition(":")
        if base not in COMPILERS or (mode and mode not in MODES):
            raise SystemExit(f"no compiler {name!r}; there are {', '.join(COMPILERS)}, with one of {', '.join(MODES)} "
                             "after a colon")
    where = (torch.cuda.get_device_name() if args.device == "cuda"
             else f"{platform.machine()} CPU, {torch.get_num_threads()} threads")
    print(f"{where}, torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    return names


def wrap(name: str, program):
    """``program`` under a compiler name of the command line, such as ``jit`` or ``torch.compile:max-autotune``."""
    from _compare import compiled

    base, _, mode = name.partition(":")
    return compiled(base, program, **({"mode": mode} if mode and mode != "default" else {}))


def sync(device: str):
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def interleaved(programs: dict, device: str, seconds: float, flush: bool = False) -> dict[str, float]:
    """Median seconds of each zero-argument callable, a call of each in turn until ``seconds`` per callable have passed
    (7 rounds at least).

    On a GPU the time is between two events on the stream; with ``flush`` its second-level cache is overwritten before
    each call.
    """
    import torch

    samples = {name: [] for name in programs}
    scratch = torch.empty(64 * 2**20, dtype=torch.int32, device=device) if flush and device == "cuda" else None
    for run in programs.values():
        for _ in range(3):
            run()
    sync(device)
    stop, rounds = time.perf_counter() + seconds * len(programs), 0
    while rounds < 7 or time.perf_counter() < stop and rounds < 500:
        rounds += 1
        for name, run in programs.items():
            if device == "cuda":
                if scratch is not None:
                    scratch.zero_()
                first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                first.record()
                run()
                last.record()
                torch.cuda.synchronize()
                samples[name].append(first.elapsed_time(last) / 1e3)
            else:
                begin = time.perf_counter()
                run()
                samples[name].append(time.perf_counter() - begin)
    return {name: statistics.median(s) for name, s in samples.items()}


def geomean(values) -> float:
    """Geometric mean of positive numbers; nan when there are none."""
    logs = [math.log(v) for v in values if v and v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def in_subprocess(script: str, arguments: list[str], timeout: float, cache: str | None = None,
                  gpu: str | None = None) -> dict:
    """Run ``script`` with ``arguments``; return the JSON object on its line that starts with RESULT, or {"error": ...}.

    The kernel caches of both compilers are in the folder ``cache``, or else in a new one, so that the process starts
    cold. ``gpu`` is the only GPU that it sees, as CUDA_VISIBLE_DEVICES names it; None: all.
    """
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpu
    with tempfile.TemporaryDirectory(prefix="jit-bench-") as folder:
        env["JIT_BENCH_CACHE"] = cache or folder
        try:
            done = subprocess.run([sys.executable, script, *arguments],
                                  capture_output=True, text=True, timeout=timeout, env=env)
        except subprocess.TimeoutExpired:
            return {"error": f"no result after {timeout:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT "):])
    return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def result(**figures):
    """Print the line that ``in_subprocess`` reads."""
    print("RESULT " + json.dumps(figures), flush=True)


def save(args, rows):
    """Write the rows to the file of ``--json``, if any."""
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
