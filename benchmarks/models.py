"""Whole models in inference: eager, torch.compile and jit, a process of its own for every pair, kernel caches empty at
its start.

Columns: seconds of the first call (capture, code generation and compiling), median milliseconds of a later call, speed
over eager, and the error against the same model in double the precision, beside eager's own. A row whose error is more
than twice eager's is WRONG.
"""

from __future__ import annotations

import copy
import statistics
import time

import _harness as harness
from _compare import table


def relative_error(values, exact) -> float:
    """Largest ||a - b|| / ||b|| over pairs of tensors; inf where the structures differ."""
    if len(values) != len(exact) or any(a.shape != b.shape for a, b in zip(values, exact)):
        return float("inf")
    errors = [float((a.double() - b.double()).norm() / (b.double().norm() + 1e-30)) for a, b in zip(values, exact)]
    return float("inf") if any(e != e for e in errors) else max(errors, default=0.0)


def one(args):
    """Measure one model under one compiler and print the RESULT line."""
    import _zoo
    import torch
    from _compare import tensors

    if args.threads:
        torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    model, positional, keywords = _zoo.build(args.model, args.device, dtype, args.small)
    exact_dtype = torch.float64 if dtype == torch.float32 else torch.float32

    def raised(value):
        return value.to(exact_dtype) if torch.is_tensor(value) and value.is_floating_point() else value

    with torch.no_grad():
        precise = copy.deepcopy(model).to(exact_dtype)
        exact = [t.clone() for t in tensors(precise(*map(raised, positional),
                                                    **{k: raised(v) for k, v in keywords.items()}))]
        del precise
        eager_error = relative_error(tensors(model(*positional, **keywords)), exact)
        program = harness.wrap(args.compiler, model)
        harness.sync(args.device)
        begin = time.perf_counter()
        out = program(*positional, **keywords)
        harness.sync(args.device)
        cold = time.perf_counter() - begin
        error = relative_error(tensors(out), exact)
        error = max(error, relative_error(tensors(program(*positional, **keywords)), exact))
        del out, exact
        for _ in range(3):
            program(*positional, **keywords)
        samples, stop = [], time.perf_counter() + args.seconds
        while len(samples) < 10 or time.perf_counter() < stop:
            harness.sync(args.device)
            begin = time.perf_counter()
            program(*positional, **keywords)
            harness.sync(args.device)
            samples.append((time.perf_counter() - begin) * 1e3)
    harness.result(cold_s=cold, ms=statistics.median(samples), min_ms=min(samples),
                   rel_error=error, eager_error=eager_error, ok=error <= 2 * eager_error + 1e-6)


def main():
    parser = harness.parser(__doc__, seconds=3.0)
    parser.add_argument("--models", default="",
                        help="comma-separated names (default: gpt2,resnet50 on a CPU, all on a GPU)")
    parser.add_argument("--dtype", default="", help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--small", action="store_true", default=None, help="small batches (default on a CPU)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one model under one compiler")
    parser.add_argument("--model", help="measure this model here and now, under --compiler")
    parser.add_argument("--compiler", default="eager")
    args = parser.parse_args()
    if args.model:
        return one(args)
    import _zoo

    names = harness.start(args)
    gpu = args.device == "cuda"
    models = [m for m in (args.models or (",".join(_zoo.NAMES) if gpu else "gpt2,resnet50")).split(",") if m]
    dtype = args.dtype or ("bfloat16" if gpu else "float32")
    small = not gpu if args.small is None else args.small
    saved, lines, speed, cold, failed = [], [], {}, {}, False
    for model in models:
        rows = {}
        for name in names:
            arguments = ["--model", model, "--compiler", name, "--device",
                         args.device, "--dtype", dtype, "--seconds", str(args.seconds), "--threads", str(args.threads)]
            row = rows[name] = harness.in_subprocess(__file__, arguments + (["--small"] if small else []), args.timeout)
            saved.append({"model": model, "compiler": name, **row})
            wrong = "error" in row or not row["ok"]
            failed |= wrong and name.startswith("jit")
            if "error" in row:
                lines.append([model, name, "-", "-", "-", row["error"]])
            else:
                over = rows["eager"]["min_ms"] / row["min_ms"] if "min_ms" in rows.get("eager", {}) else None
                lines.append([model, name, f"{row['cold_s']:.2f} s", f"{row['ms']:.2f} ms", f"{over:.2f}x" if over
                              else "-",
                              f"{row['rel_error']:.1e} / {row['eager_error']:.1e} {'WRONG' if wrong else 'ok'}"])
                if not wrong and over:
                    speed.setdefault(name, []).append(over)
                cold.setdefault(name, {})[model] = row["cold_s"]
            print("  ".join(lines[-1]), flush=True)
    print(f"\n{dtype}, {'small' if small else 'full'} batches")
    print(table(["", "compiler", "first call", "median", "vs eager", "error / eager's"], lines))
    for name, values in speed.items():
        if name != "eager":
            print(f"{name}: {harness.geomean(values):.2f}x eager's speed (geometric mean of {len(values)})")
    theirs = cold.get("torch.compile", {})
    for name in cold:
        common = [theirs[m] / c for m, c in cold[name].items() if m in theirs]
        if name.startswith("jit") and common:
            print(f"{name}: first call {harness.geomean(common):.1f}x sooner than torch.compile's (geometric mean of "
                  f"{len(common)})")
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
