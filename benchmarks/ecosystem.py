"""What people build on PyTorch: one row per pattern and per library, in eager, torch.compile and jit.

Each row under each compiler is a process of its own, with empty kernel caches, so that a crash or a hang costs one row.
It runs the program three times with the same inputs, then with eleven others that differ in size or values, and
compares all that comes out with eager's: results, gradients, changed parameters, strides, dtypes. Then eager and the
compiler are timed in turn in the same process.

Columns: graphs and breaks of the first call; compiles, the most of any one function over the twelve inputs; seconds of
the first call, all compiling included; least milliseconds per call with the same inputs, and speed over eager, then
with the twelve inputs in turn, speed over eager; whether the results are eager's. A library that cannot be imported is
"not installed".

    ecosystem.py --compilers jit             without torch.compile, which takes most of the time
    ecosystem.py --only torch_geometric      rows whose names contain one of these, comma-separated
    ecosystem.py --jobs 8 --threads 1        eight processes at a time, spread over the GPUs if the rows run on GPUs
    ecosystem.py --read figures.json         the table of figures that --json saved, of a run that was cut off, say
"""

from __future__ import annotations

import concurrent.futures
import importlib
import itertools
import json
import os
import pathlib
import queue
import time
import warnings

import _harness as harness
from _compare import table

PARTS = ("_ecosystem_patterns", "_ecosystem_training", "_ecosystem_libraries")
NOISE = 1.05  # a row is slower than another from here on


def rows():
    """All rows by name."""
    for part in PARTS:
        importlib.import_module(part)
    return importlib.import_module("_ecosystem_common").ROWS


class Jit:
    """jit, with what it captured."""

    def __init__(self, mode):
        import jit.runtime
        from _compare import CACHE

        jit.runtime.native()  # built once per machine, not part of a first call
        jit.config.cache_dir = f"{CACHE}/jit"
        self.captured, self.mode = [], mode

    def wrap(self, program):
        from jit import api, arguments
        from jit.frame.dispatch import Settings

        settings = Settings(api._backend(None), on_capture=self.captured.append, mode=self.mode,
                            options=arguments.all_options(self.mode, None))
        return api._compile(program, settings)

    def drawing_as_eager(self):
        import jit

        return jit.config.patch(fallback_random=True)

    def counts(self):
        """(graphs, breaks, the most compiles of one function)."""
        from jit.frame import dispatch

        graphs = sum(c.graph is not None and any(n.op != "input" for n in c.graph.nodes) for c in self.captured)
        most = max((len(d.on_miss.captures) for d in list(dispatch._dispatchers) if hasattr(d.on_miss, "captures")),
                   default=0)
        return graphs, sum(len(c.breaks) for c in self.captured), most

    def reasons(self):
        seen = [f"{b.kind} at {b.file.split('site-packages/')[-1]}:{b.line} {' '.join(b.why.split())[:150]}"
                for c in self.captured for b in c.breaks]
        return list(dict.fromkeys(seen))[:12]


class Theirs:
    """torch.compile, with what it captured."""

    def __init__(self, mode):
        import torch

        torch.compiler.reset()
        self.mode = mode

    def wrap(self, program):
        import torch

        return torch.compile(program, mode=self.mode)

    def drawing_as_eager(self):
        import torch._inductor.config

        return torch._inductor.config.patch(fallback_random=True)

    def counts(self):
        import torch._dynamo.utils as utils

        frames = {}
        for metric in utils.get_compilation_metrics():
            frame, _, again = str(metric.compile_id).partition("/")
            frames[frame] = max(frames.get(frame, 0), 1 + int(again.split("_")[0] or 0))
        breaks = sum(utils.counters["graph_break"].values())
        return utils.counters["stats"]["unique_graphs"], breaks, max(frames.values(), default=0)

    def reasons(self):
        import torch._dynamo.utils as utils

        return [" ".join(k.split())[:200] for k in utils.counters["graph_break"]][:12]


def one_line(error: BaseException) -> str:
    """The type of an error and the last line of its text that is not advice."""
    lines = [l.strip() for l in str(error).splitlines() if l.strip()]
    lines = [l for l in lines if "TORCHDYNAMO_VERBOSE" not in l and "TORCH_LOGS" not in l] or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:200]


def times(programs, device, seconds, inputs):
    """Least seconds per call of each ``run(i)``, over ``inputs`` in turn: what else a machine does only adds to it."""
    samples = {name: [] for name in programs}
    for _ in range(2):
        for run in programs.values():
            for i in inputs:
                run(i)
    stop = time.perf_counter() + seconds * len(programs)
    while len(samples["eager"]) < 5 or time.perf_counter() < stop and len(samples["eager"]) < 1000:
        for name, run in programs.items():
            harness.sync(device)
            begin = time.perf_counter()
            for i in inputs:
                run(i)
            harness.sync(device)
            samples[name].append((time.perf_counter() - begin) / len(inputs))
    return {name: min(s) for name, s in samples.items()}


def one(args):
    """Measure one row under one compiler and print the RESULT line."""
    import torch
    from _ecosystem_common import VARIED, difference, snapshot

    if args.threads:
        torch.set_num_threads(args.threads)
    row = rows()[args.row]
    base, _, mode = args.compiler.partition(":")
    order = [0, 0, *range(VARIED)]

    def program(wrap):
        torch.manual_seed(0)
        return row.build(args.device, wrap)

    figures = {}
    caught = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            eager = program(lambda it: it)
            expected = [snapshot(eager(i)) for i in order]
            if base == "eager":
                figures["ms"] = times({"eager": eager}, args.device, args.seconds, [0])["eager"] * 1e3
                return harness.result(**figures)
            compiler = (Jit if base == "jit" else Theirs)(mode or None)
            figures = checked(program, compiler, row, expected, order, args.device, snapshot, difference)
            # As many calls lie behind the one as behind the other, whose state may decide how much there is to do.
            both = {"eager": program(lambda it: it) if row.random else eager, "compiled": figures.pop("program")}
            for key, inputs in (("", [0]), ("varied_", range(VARIED))):
                measured = times(both, args.device, args.seconds, list(inputs))
                figures[key + "eager_ms"], figures[key + "ms"] = (measured[k] * 1e3 for k in ("eager", "compiled"))
            figures["compiles_after"] = compiler.counts()[2]
    except Exception as error:
        figures.pop("program", None)
        figures["error"] = one_line(error)
        if args.traceback:
            raise
    told = list(dict.fromkeys(" ".join(str(w.message).split())[:300] for w in caught
                              if str(w.message).startswith("jit:")))
    harness.result(**figures, **({"told": told} if told else {}))


def checked(program, compiler, row, expected, order, device, snapshot, difference):
    """The compiled program's figures, before it is timed."""
    import contextlib

    figures, results = {}, []
    with compiler.drawing_as_eager() if row.random else contextlib.nullcontext():
        compiled = program(compiler.wrap)
        for at, i in enumerate(order):
            harness.sync(device)
            begin = time.perf_counter()
            out = compiled(i)
            harness.sync(device)
            if not at:
                figures["cold_s"] = time.perf_counter() - begin
            results.append(snapshot(out))
            if not at:
                figures["graphs"], figures["breaks"], _ = compiler.counts()
        figures["all_graphs"], _, figures["compiles"] = compiler.counts()
    figures["reasons"] = compiler.reasons()
    figures["wrong"] = next((f"call {at}, input {i}: {d}" for at, i in enumerate(order)
                             if (d := difference(results[at], expected[at]))), "")
    if row.random:  # timed as a user would run it, drawing numbers in kernels
        compiled = program(compiler.wrap)
    return {**figures, "program": compiled}


def state(row) -> str:
    """One word for a row under one compiler."""
    if "error" in row:
        return "not installed" if row["error"].startswith("not installed") else "RAISES"
    return "WRONG" if row.get("wrong") else "ok"


def line(name, compiler, row):
    word = state(row)
    if word == "not installed" or "error" in row and "ms" not in row:
        return [name, compiler, "", "", "", "", "", "", "", "", row["error"][:90]]
    note = row.get("wrong") or (row.get("told") or [""])[0][:90]
    return [name, compiler, row["graphs"], row["breaks"], row["compiles"], f"{row['cold_s']:.2f}",
            f"{row['eager_ms']:.3f}", f"{row['ms']:.3f}", f"{row['eager_ms'] / row['ms']:.2f}x",
            f"{row['varied_eager_ms'] / row['varied_ms']:.2f}x", f"{word} {note}".strip()]


def summary(saved, names):
    """The totals of each compiler; whether a row of jit's is not right."""
    failed = False
    found = {(r["row"], r["compiler"]): r for r in saved}
    for name in names:
        mine = {r["row"]: r for r in saved if r["compiler"] == name and state(r) != "not installed"}
        right = [n for n, r in mine.items() if state(r) == "ok"]
        failed |= name.startswith("jit") and len(right) < len(mine)
        slower = [n for n, r in mine.items() if "ms" in r and r["ms"] > NOISE * r["eager_ms"]]
        varied = [n for n, r in mine.items() if "varied_ms" in r and r["varied_ms"] > NOISE * r["varied_eager_ms"]]
        often = [n for n, r in mine.items() if r.get("compiles", 0) > 3]
        print(f"\n{name}: {len(right)} of {len(mine)} rows right")
        for what, them in ((f"slower than eager ({NOISE - 1:.0%} and more)", slower),
                           ("slower than eager with varied inputs", varied), ("with more than 3 compiles", often)):
            print(f"  {len(them)} {what}{': ' if them else ''}{'; '.join(them)}")
        if name.startswith("jit") and "torch.compile" in names:
            behind, compared = [], 0
            for n, r in mine.items():
                other = found.get((n, "torch.compile"), {})
                if "ms" in r and "ms" in other:
                    compared += 1
                    # Each was timed beside eager in its own process: their speeds over eager are compared.
                    if r["ms"] / r["eager_ms"] > NOISE * other["ms"] / other["eager_ms"]:
                        behind.append(n)
            print(f"  {len(behind)} of {compared} slower than torch.compile{': ' if behind else ''}{'; '.join(behind)}")
        ratios = [r["eager_ms"] / r["ms"] for r in mine.values() if "ms" in r and state(r) == "ok"]
        print(f"  {harness.geomean(ratios):.2f}x eager's speed (geometric mean of {len(ratios)} rows that are right)")
    return failed


def measured(args, rows_, names):
    """(row, compiler, figures) of each row under each compiler, as they come."""
    gpus = queue.SimpleQueue()
    shared = itertools.cycle(gpus_here()) if args.device == "cuda" and args.jobs > 1 else itertools.repeat(None)
    for gpu in itertools.islice(shared, args.jobs):
        gpus.put(gpu)

    def figures(name, compiler):
        if rows_[name].missing():
            return name, compiler, {"error": f"not installed: {rows_[name].missing()}"}
        if rows_[name].gpu and args.device != "cuda":
            return name, compiler, {"error": "not installed: a GPU"}
        gpu = gpus.get()
        try:
            return name, compiler, harness.in_subprocess(__file__, [
                "--row", name, "--compiler", compiler, "--device", args.device,
                "--seconds", str(args.seconds), "--threads", str(args.threads)], args.timeout, gpu=gpu)
        finally:
            gpus.put(gpu)

    order = [(n, c) for n in rows_ for c in names]
    if args.jobs > 1:  # the libraries' rows, which take longest, come first, so that none is left to run alone
        order.sort(key=lambda pair: (names.index(pair[1]), -list(rows_).index(pair[0])))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(figures, *pair) for pair in order]):
            yield done.result()


def gpus_here() -> list[str]:
    """The GPUs that a process started here may be given, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def report(saved, names):
    """Print the table and the totals; whether a row of jit's is not right."""
    print(table(["", "", "graphs", "breaks", "compiles", "first s", "eager ms", "ms", "speed", "varied", ""],
                [line(r["row"], r["compiler"], r) for r in saved]))
    return summary(saved, names)


def main():
    parser = harness.parser(__doc__, seconds=0.5)
    parser.add_argument("--only", default="", help="rows whose names contain one of these, comma-separated")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one row under one compiler")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--read", metavar="FILE", help="print the table of the figures in this file, run nothing")
    parser.add_argument("--row", help="measure this row here and now, under --compiler")
    parser.add_argument("--compiler", default="jit")
    parser.add_argument("--traceback", action="store_true", help="with --row: let an error through")
    args = parser.parse_args()
    if args.row:
        args.device = args.device or "cpu"
        return one(args)
    if args.list:
        return print("\n".join(rows()))
    if args.read:
        saved = json.loads(pathlib.Path(args.read).read_text())
        raise SystemExit(report(saved, list(dict.fromkeys(r["compiler"] for r in saved))))
    # "torch" is short for torch.compile.
    args.compilers = ",".join("torch.compile" + c[5:] if c.split(":")[0] == "torch" else c
                              for c in args.compilers.split(","))
    names = [n for n in harness.start(args) if n != "eager"]
    wanted = [w.strip() for w in args.only.split(",") if w.strip()]
    chosen = {name: row for name, row in rows().items() if not wanted or any(w in name for w in wanted)}
    if not chosen:
        raise SystemExit(f"no row's name contains {args.only!r}; --list prints them")
    order, saved = list(chosen), []
    for name, compiler, figures in measured(args, chosen, names):
        saved.append({"row": name, "compiler": compiler, **figures})
        print("  ".join(map(str, line(name, compiler, figures))), flush=True)
        saved.sort(key=lambda r: (order.index(r["row"]), names.index(r["compiler"])))
        harness.save(args, saved)
    raise SystemExit(report(saved, names))


if __name__ == "__main__":
    main()
