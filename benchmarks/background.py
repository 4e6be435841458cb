"""What a program waits for while a model is compiled: in the call (torch.compile, jit) and in the background
(``jit.config.compile_in``). Kernel caches are empty; each row is a process of its own, which calls the model in
inference, one call after the other, until it is compiled.

Columns: milliseconds of a call in eager, of the first call and its ratio to eager, the longest of all calls and its
ratio, the median of those before the model was compiled, seconds until it was, and milliseconds of a call from then on.
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
        program = harness.wrap(base, model)
        is_ready = bool  # in the call: when that is done
        if where:
            import jit

            jit.config.compile_in = where
            is_ready = lambda: not jit.wait_for_compiles(0)  # noqa: E731
        begin, calls = time.perf_counter(), []
        while True:
            calls.append(seconds(program))
            if not is_ready() or time.perf_counter() - begin > args.timeout:
                break
        ready = time.perf_counter() - begin
        after = [seconds(program) for _ in range(8)]
    harness.result(eager=eager, first=calls[0], longest=max(calls + after), before=statistics.median(calls),
                   calls=len(calls), ready=ready, after=statistics.median(after[3:]))


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
                lines.append([model, way, row["error"], "", "", "", "", "", ""])
                continue
            ms = {k: row[k] * 1e3 for k in ("eager", "first", "longest", "before", "after")}
            lines.append([model, way, f"{ms['eager']:.1f}", f"{ms['first']:.1f} ({ms['first'] / ms['eager']:.2f})",
                          f"{ms['longest']:.1f} ({ms['longest'] / ms['eager']:.2f})",
                          f"{ms['before']:.1f} ({ms['before'] / ms['eager']:.2f})", str(row["calls"]),
                          f"{row['ready']:.1f}", f"{ms['after']:.1f}"])
    print(table(["model", "compiled in", "eager ms", "first call", "longest call", "median before", "calls", "ready s",
                 "then ms"], lines))
    harness.save(args, saved)


if __name__ == "__main__":
    main()
