"""``python -m tests.sharing``: the whole database, or a part of it, in worker processes; prints what differs from
eager."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
CHUNK = 24  # operators to a process


def parser():
    p = argparse.ArgumentParser(prog="python -m tests.sharing",
                                description="What operators share with their arguments, in eager and compiled.")
    p.add_argument("--only", help="regular expression over operator names")
    p.add_argument("--samples", type=int, default=4, help="samples of each operator (4)")
    p.add_argument("--dtype", help="a dtype's name, for operators that take it; otherwise float32, or what they take")
    p.add_argument("--traced", action="store_true", help="ask the tracer alone, which takes minutes and not hours")
    p.add_argument("--native", action="store_true",
                   help="real kernels for all programs, not only where memory is shared")
    p.add_argument("--no-history", action="store_true", help="leave out requires_grad of the results")
    p.add_argument("--jobs", type=int, default=1, help="processes (1)")
    p.add_argument("--timeout", type=float, default=900, help="seconds for each process (900)")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    return p


def work(args):
    """Run the operators with the positions ``args.worker`` and print a line of JSON for each."""
    import torch

    from tests.sharing.programs import compare, compare_history, database, label, samples
    from tests.sharing.traced import differences

    dtype = getattr(torch, args.dtype) if args.dtype else None
    infos = database()
    for position in map(int, args.worker.split(",")):
        info, found, done = infos[position], [], 0
        print(json.dumps({"begin": label(info)}), flush=True)
        try:
            given = samples(info, args.samples, dtype)
        except Exception as error:
            given, found = [], [f"no samples: {error}"]
        for k, (values, named) in enumerate(given):
            op = info.op
            lines = differences(op, values, named) if args.traced else compare(op, values, named, args.native)
            if not args.no_history and not args.traced:
                lines += compare_history(op, values, named)
            found += [f"sample {k}: {line}" for line in lines]
            done += 1
        print(json.dumps({"end": label(info), "samples": done, "found": found}), flush=True)


def run(command, timeout):
    """The lines that a worker printed, and how it ended."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
        return done.stdout, "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr[-300:]}"
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(), "timeout"


def main():
    args = parser().parse_args()
    if args.worker:
        return work(args)
    from tests.sharing.programs import database, label

    chosen = [k for k, info in enumerate(database()) if not args.only or re.search(args.only, label(info))]
    chunks = [chosen[k : k + CHUNK] for k in range(0, len(chosen), CHUNK)]
    commands = [[sys.executable, "-m", "tests.sharing", "--worker", ",".join(map(str, c)),
                 *sys.argv[1:]] for c in chunks]
    operators = count = wrong = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for output, failure in pool.map(lambda c: run(c, args.timeout), commands):
            begun = None
            for line in filter(lambda text: text.startswith("{"), output.splitlines()):
                record = json.loads(line)
                begun = record.get("begin")
                if begun is None:
                    operators, count, wrong = operators + 1, count + record["samples"], wrong + bool(record["found"])
                    for text in record["found"]:
                        print(f"{record['end']}: {text}", flush=True)
            if failure:
                wrong += 1
                print(f"{begun or 'a worker'}: {failure}", flush=True)
    print(f"{operators} operators, {count} samples, {wrong} operators that differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
