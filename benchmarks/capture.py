"""How much of the world's models is captured: every architecture of transformers and every family of timm, in
inference.

Each model is built from its configuration alone, at a tiny size and with random weights, and run in eager, under
jit.compile(backend="eager") and under jit.compile with the CPU kernels, twice each; all outputs are compared with
eager's. The microseconds of CPU time per instruction are those of the capturing process: execution, graph, guards and
rewritten code, and for "kernels" their text too. Models that do not run in eager at the sizes tried are listed apart,
and so are those whose result in eager changes when their weights are changed by a rounding. Random numbers are drawn as
eager draws them. "as told" are models with another result where torch.compiler.is_compiling() is true, which are right
where it is not. The kernels of earlier runs are taken from the cache unless JIT_CACHE_DIR says otherwise.

    capture.py --transformers                all architectures of the installed transformers
    capture.py --timm                        one model of each family of the installed timm
    capture.py --transformers llama bert t5  these only; a name may be a pattern such as 'qwen*'
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import fnmatch
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time

import _harness as harness

BACKENDS = {"eager": "eager", "kernels": None}


class TimedOut(BaseException):
    """Not an Exception, so that nothing on the way takes it for a failure of its own."""


def _on_alarm(signum, frame):
    raise TimedOut


def provider(library):
    """The module that lists and builds the models of a library: ``names() -> list[str]`` and ``build(name) ->
    Built``."""
    if library == "transformers":
        import _capture_transformers as module
    else:
        import _capture_timm as module
    return module


def where(file, line):
    """The file from the last folder that a reader knows: site-packages or this project."""
    for mark in ("site-packages/", str(harness.ROOT) + "/"):
        if mark in file:
            file = file.split(mark)[-1]
    return f"{file}:{line}"


def one_line(error) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return " ".join(text.split())[:300]


def first_difference(ours, theirs, path="output", seen=None):
    """Where two nested results differ, in words; None when they agree to float32's accuracy."""
    import torch

    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor):
            return f"{path} is a {type(ours).__name__}"
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{path} is {ours.dtype} {tuple(ours.shape)} and not {theirs.dtype} {tuple(theirs.shape)}"
        if ours.stride() != theirs.stride() and theirs.numel():
            return f"{path} has strides {ours.stride()} and not {theirs.stride()}"
        if not theirs.is_floating_point() and not theirs.is_complex():
            return (None if torch.equal(ours, theirs)
                    else f"{path} differs in {int((ours != theirs).sum())} of {theirs.numel()}")
        tolerance = (1e-3 if theirs.dtype in (torch.float32, torch.complex64)
                     else 3e-2 if theirs.dtype in (torch.float16, torch.bfloat16) else 1e-8)
        if not theirs.numel():
            return None
        finite = theirs[torch.isfinite(theirs)]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        if torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale + 1e-7, equal_nan=True):
            return None
        return (
            f"{path} differs by {float((ours - theirs).abs().nan_to_num(float('inf')).max()):.2e} where the largest "
            f"value is {scale:.2e}")
    if type(ours) is not type(theirs):
        return f"{path} is a {type(ours).__name__} and not a {type(theirs).__name__}"
    seen = seen or set()
    if id(theirs) in seen:
        return None
    seen.add(id(theirs))
    if isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return f"{path} has keys {list(ours)} and not {list(theirs)}"
        return next((d for k in theirs if (d := first_difference(ours[k], theirs[k], f"{path}[{k!r}]", seen))), None)
    if isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{path} has {len(ours)} items and not {len(theirs)}"
        return next((d for i, (a, b) in enumerate(zip(ours, theirs))
                     if (d := first_difference(a, b, f"{path}[{i}]", seen))), None)
    if isinstance(theirs, (int, float, str, type(None))):
        return None if ours == theirs or ours != ours and theirs != theirs else f"{path} is {ours!r} and not {theirs!r}"
    if hasattr(theirs, "__dict__") and type(theirs).__module__.split(".")[0] in ("transformers", "timm"):
        return first_difference(dict(vars(ours)), dict(vars(theirs)), path, seen)
    return None


def run(program, built):
    """One call without gradients, from the same state of the random generator each time."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        return program(*built.args(), **built.kwargs())


def rounding_decides(built, expected) -> bool:
    """Whether eager's own result is another one when the weights change by a rounding or two, as where near ties are
    sorted."""
    import torch

    model = copy.deepcopy(built.model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point():
                weight.mul_(1 + 2 * torch.finfo(weight.dtype).eps * torch.randn_like(weight).clamp(-1, 1))
    return first_difference(run(model, built), expected) is not None


def as_told(settings, built, expected) -> bool:
    """Whether the program is right where it hears from torch.compiler.is_compiling() what eager hears."""
    import jit
    from jit import api

    jit.reset()
    with jit.config.patch(says_compiling=False):
        compiled = api._compile(built.model, dataclasses.replace(settings, on_capture=None, resumes={}, regions=[]))
        return first_difference(run(compiled, built), expected) is None


def check(library, name, seconds, backends) -> dict:
    """Everything that is known of one model afterwards, as a row of the JSON."""
    import gc
    import warnings


    import jit
    from jit import api
    from jit.frame import dispatch

    jit.config.fallback_random = True  # some models draw numbers: eager's are compared with eager's
    row = {"library": library, "name": name}
    signal.signal(signal.SIGALRM, _on_alarm)
    try:
        signal.alarm(int(seconds))
        start = time.perf_counter()
        built = provider(library).build(name)
        row["model"], row["parameters"] = type(built.model).__name__, sum(p.numel() for p in built.model.parameters())
        expected = run(built.model, built)
        unstable = first_difference(run(built.model, built), expected)
        row["eager_s"] = time.perf_counter() - start
        if unstable:
            row["ran"] = f"not the same twice: {unstable}"
            return row
        row["ran"] = "ok"
    except TimedOut:
        row["ran"] = "timed out"
        return row
    except Exception as error:
        row["ran"] = one_line(error)
        return row
    finally:
        signal.alarm(0)
    for label in backends:
        captured, result = [], {}
        row[label] = result
        start = time.perf_counter()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                signal.alarm(int(seconds))
                jit.reset()
                settings = dispatch.Settings(api._backend(BACKENDS[label]), on_capture=captured.append)
                compiled = api._compile(built.model, settings)
                first = run(compiled, built)
                result["first_s"] = time.perf_counter() - start
                second = run(compiled, built)
                signal.alarm(0)
            wrong = first_difference(first, expected)
            again = first_difference(second, expected)
            result["status"] = "wrong" if wrong or again else "right"
            if wrong or again:
                result["why"] = wrong or f"second call: {again}"
                signal.alarm(int(seconds))
                if rounding_decides(built, expected):
                    return ({k: v for k, v in row.items() if k not in backends} |
                            {"ran": f"a rounding of the weights decides: {result['why']}"})
                if as_told(settings, built, expected):
                    result["status"] = "told"
            failures = sorted({str(w.message).replace("\n", " ")[:300]
                               for w in caught if str(w.message).startswith("jit: ")})
            if failures:
                result["failures"] = failures
        except TimedOut:
            result["status"], result["why"] = "error", "timed out"
        except Exception as error:
            result["status"], result["why"] = "error", one_line(error)
        finally:
            signal.alarm(0)
        result["graphs"] = sum(c.graph is not None and any(n.op != "input" for n in c.graph.nodes) for c in captured)
        result["captures"] = len(captured)
        result["instructions"] = sum(c.instructions for c in captured)
        result["capture_s"] = sum(c.seconds for c in captured)
        result["breaks"] = [{"where": where(b.file, b.line), "function": b.function,
                             "kind": b.kind, "why": " ".join(b.why.split())[:300]}
                            for c in captured for b in c.breaks]
    jit.reset()
    del built, expected
    gc.collect()
    return row


def work(library, seconds, backends):
    """A worker process: names come in on stdin, a row for each goes out."""
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        name = line.strip()
        try:
            row = check(library, name, seconds, backends)
        except Exception as error:
            row = {"library": library, "name": name, "ran": "ok", "error": one_line(error)}
        harness.result(**row)


class Worker:
    """A process that checks models one by one, replaced after a crash, a hang, or ``chunk`` models (whose memory goes
    with it)."""

    def __init__(self, library, seconds, backends, chunk):
        self.command = [sys.executable, __file__, "--worker", library,
                        "--timeout", str(seconds), "--backends", ",".join(backends)]
        self.limit = seconds * (len(backends) + 1) + 60
        self.chunk, self.process, self.done = chunk, None, 0
        self.library = library

    def start(self):
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(harness.ROOT),
                                                           os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.read, args=(self.process, self.lines), daemon=True).start()
        self.done = 0

    @staticmethod
    def read(process, lines):
        for line in process.stdout:
            if line.startswith("RESULT "):
                lines.put(json.loads(line[len("RESULT "):]))
        lines.put(None)

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def check(self, name) -> dict:
        if self.process is None or self.done >= self.chunk:
            self.stop()
            self.start()
        self.done += 1
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            row = self.lines.get(timeout=self.limit)
            why = f"the process ended with code {self.process.wait()}" if row is None else ""
        except (queue.Empty, BrokenPipeError):
            row, why = None, "the process hung or was killed"
        if row is None:
            self.stop()
            row = {"library": self.library, "name": name, "ran": "ok", "error": why}
        return row


def verdict(row, backends) -> str:
    """One word or two for the table."""
    if row["ran"] != "ok":
        return "no eager"
    if "error" in row:
        return "CRASH"
    states = [row[b]["status"] for b in backends]
    if "error" in states:
        return "ERROR"
    if "wrong" in states:
        return "WRONG"
    if "told" in states:
        return "as told"
    if any(row[b].get("failures") for b in backends):
        return "fell back"
    return "ok" if all(row[b]["graphs"] == 1 and not row[b]["breaks"] for b in backends) else "breaks"


def details(row, backends) -> str:
    if row["ran"] != "ok":
        return row["ran"]
    if "error" in row:
        return row["error"]
    for b in backends:
        result = row[b]
        if result["status"] != "right":
            return f"{b}: {result.get('why')}"
        if result.get("failures"):
            return f"{b}: {result['failures'][0]}"
    breaks = row[backends[0]]["breaks"]
    return f"{breaks[0]['where']} {breaks[0]['why']}" if breaks else ""


def summary(rows, backends):
    """Totals, and the reasons of breaks grouped by why and by place."""
    verdicts = collections.Counter(verdict(r, backends) for r in rows)
    ran = [r for r in rows if r["ran"] == "ok"]
    print(f"\n{len(rows)} models, {len(ran)} run in eager")
    if not ran:
        return
    right = sum(verdicts[v] for v in ("ok", "breaks", "fell back"))
    print(f"right      {right:5} {right / len(ran):7.1%}")
    print(f"one graph  {verdicts['ok']:5} {verdicts['ok'] / len(ran):7.1%}")
    for v in ("breaks", "fell back", "as told", "WRONG", "ERROR", "CRASH"):
        print(f"{v:10} {verdicts[v]:5} {verdicts[v] / len(ran):7.1%}")
    for b in backends:
        times = sorted(r[b]["first_s"] for r in ran if "first_s" in r.get(b, {}))
        if times:
            print(f"first call, {b}: median {times[len(times) // 2]:.2f} s, longest {times[-1]:.1f} s")
        costs = [(r[b]["capture_s"], r[b]["instructions"]) for r in ran if r.get(b, {}).get("instructions")]
        if costs:
            seconds, instructions = map(sum, zip(*costs))
            print(f"captures, {b}: {instructions} instructions of Python, {seconds / instructions * 1e6:.1f} "
                  "microseconds of CPU time for each"
                  + (", kernels not counted" if b == "eager" else ", its kernels included"))
    def plain(text):
        """A reason without the names of the objects of one model."""
        return re.sub(r"\(\S+\)|transformers\.models\.\S+|0x[0-9a-f]+|tensor [ab] \(\d+\)", "..", text)

    groups = collections.defaultdict(set)
    for row in ran:
        for b in backends:
            for reason in row.get(b, {}).get("breaks", ()):
                groups[plain(reason["why"]), reason["where"]].add(row["name"])
            for failure in row.get(b, {}).get("failures", ()):
                groups["fell back: " + failure, ""].add(row["name"])
    if groups:
        print("\nreasons of breaks (models, place, why):")
    for (why, place), names in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4}  {place}  {why}  [{', '.join(sorted(names)[:4])}{', ...' if len(names) > 4 else ''}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models or patterns (default: all)")
    parser.add_argument("--transformers", action="store_true", help="architectures of transformers")
    parser.add_argument("--timm", action="store_true", help="families of timm")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--backends", default="eager,kernels",
                        help="comma-separated, of eager and kernels (default: both)")
    parser.add_argument("--timeout", type=int, default=120,
                        help="seconds for one model under one backend (default 120)")
    parser.add_argument("--chunk", type=int, default=40, help="models per worker process (default 40)")
    parser.add_argument("--part", default="1/1",
                        help="i/n: every n-th model from the i-th on, for several machines or processes")
    parser.add_argument("--json", help="write all rows to this file, after each model")
    parser.add_argument("--summary", nargs="+", metavar="FILE",
                        help="print the totals of files written by --json and stop")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    backends = [b for b in args.backends.split(",") if b]
    if args.worker:
        return work(args.worker, args.timeout, backends)
    if args.summary:
        rows = [row for file in args.summary for row in json.load(open(file))]
        return summary(rows, [b for b in backends if any(b in r for r in rows)])
    rows, failed = [], False
    for library in [l for l in ("transformers", "timm") if getattr(args, l)] or ["transformers", "timm"]:
        names = [n for n in provider(library).names() if not args.names
                 or any(fnmatch.fnmatch(n, p) for p in args.names)]
        part, parts = map(int, args.part.split("/"))
        names = names[part - 1::parts]
        if args.list:
            print("\n".join(names))
            continue
        worker = Worker(library, args.timeout, backends, args.chunk)
        try:
            for name in names:
                row = worker.check(name)
                rows.append(row)
                word = verdict(row, backends)
                failed |= word in ("WRONG", "ERROR", "CRASH")
                graphs = "/".join(str(row[b]["graphs"]) for b in backends if b in row) or "-"
                seconds = "/".join(f"{row[b].get('first_s', 0):.1f}" for b in backends if b in row) or "-"
                print(f"{name:36} {word:9} graphs {graphs:7} {seconds:>9} s  {details(row, backends)[:160]}",
                      flush=True)
                if args.json:
                    with open(args.json, "w") as file:
                        json.dump(rows, file, indent=1)
        finally:
            worker.stop()
    if not args.list:
        summary(rows, backends)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
