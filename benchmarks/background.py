"""What a program waits for while a model is compiled: in the call (torch.compile, jit) and in the background
(``jit.config.compile_in``). Kernel caches are empty; each row is a process of its own, which calls the model in
inference, one call after the other, until it is compiled.

Columns: milliseconds of a call in eager; seconds of making the compiled form, which loads the compiler where it is to
work in the background; milliseconds of the first call, of the longest and the median of those before the model was
compiled, each with its ratio to eager; how many these were; seconds until it was; milliseconds of the next call and of
later ones.
"""

from __future__ import annotations

import statistics
import time

import _harness as harness
from _compare import table

WAYS = ("torch.compile", "jit", "jit:background")
MODELS = ("gpt2", "resnet50")


def one(args):
    import _zoo
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    model, positional, keywords = _zoo.build(args.model, args.device, torch.float32, args.small)
    base, _, where = args.way.partition(":")

    def seconds(program) -> float:
        begin = time.perf_counter()
        program(*positional, **keywords)
        harness.sync(args.device)
        return time.perf_counter() - begin

    with torch.no_grad():
        eager = statistics.median([seconds(model) for _ in range(8)][3:])
        begin = time.perf_counter()
        if base == "jit":
            import jit

            jit.config.compile_in = where or "call"
        program = harness.wrap(base, model)
        made = time.perf_counter() - begin
        begin, calls = time.perf_counter(), []
        while True:
            calls.append(seconds(program))
            if not where or jit.wait_for_compiles(0) or time.perf_counter() - begin > args.timeout:
                break
        ready = time.perf_counter() - begin
        after = [seconds(program) for _ in range(8)]
    harness.result(eager=eager, made=made, first=calls[0], longest=max(calls), before=statistics.median(calls),
                   calls=len(calls), ready=ready, next=after[0], after=statistics.median(after[3:]))


def main():
    parser = harness.parser(__doc__, seconds=None)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated, of those of benchmarks/models.py")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"comma-separated, of {', '.join(WAYS)}")
    parser.add_argument("--small", action=harness.argparse.BooleanOptionalAction, default=None,
                        help="short inputs (default: on a CPU)")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for each row")
    parser.add_argument("--model", help="measure this model here and now, compiled in --way")
    parser.add_argument("--way", default="jit:background")
    args = parser.parse_args()
    if args.model:
        return one(args)
    harness.start(args)
    small = args.device == "cpu" if args.small is None else args.small
    saved, lines = [], []
    for model in args.models.split(","):
        for way in args.ways.split(","):
            given = ["--model", model, "--way", way, "--device", args.device, "--threads", str(args.threads),
                     "--timeout", str(args.timeout), "--small" if small else "--no-small"]
            row = harness.in_subprocess(__file__, given, args.timeout + 60)
            saved.append({"model": model, "way": way, **row})
            if "error" in row:
                lines.append([model, way, row["error"], *[""] * 8])
                continue
            eager = row["eager"]
            lines.append([model, way, f"{eager * 1e3:.1f}", f"{row['made']:.1f}",
                          *(f"{row[k] * 1e3:.1f} ({row[k] / eager:.2f})" for k in ("first", "longest", "before")),
                          str(row["calls"]), f"{row['ready']:.1f}", f"{row['next'] * 1e3:.1f}",
                          f"{row['after'] * 1e3:.1f}"])
    print(table(["model", "compiled in", "eager ms", "made s", "first call", "longest call", "median before", "calls",
                 "ready s", "next ms", "then ms"], lines))
    harness.save(args, saved)


if __name__ == "__main__":
    main()
