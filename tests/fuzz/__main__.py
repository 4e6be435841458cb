"""``python -m tests.fuzz``: runs any number of random programs, counts, and saves the failing ones, made small."""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MEMORY = 10 << 30  # bytes of address space of a worker
SILENT = 600  # seconds without a word after which a worker is ended: C code that never returns cannot be interrupted
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def parser():
    p = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Random Python programs in eager and compiled; what differs is saved as a small program.")
    p.add_argument("--programs", type=int, default=1000, help="how many programs (1000)")
    p.add_argument("--seed", type=int, default=0, help="seed of the first program; the others follow (0)")
    p.add_argument("--jobs", type=int, default=1, help="processes (1)")
    p.add_argument("--native", type=float, default=0.01,
                   help="share of programs that run on the real CPU backend instead of op by op (0.01)")
    p.add_argument("--save", default="fuzz-failures", help="folder for failing programs (fuzz-failures)")
    p.add_argument("--shrink-seconds", type=float, default=40,
                   help="time for making one failing program small; 0 saves it as it is (40)")
    p.add_argument("--run", metavar="FILE", help="run a saved program instead")
    p.add_argument("--show", type=int, metavar="SEED", help="print the program of a seed instead")
    p.add_argument("--chunk", type=int, default=250, help="programs per process, which is then replaced (250)")
    p.add_argument("--seconds", type=float, default=0, help="start no more processes after this time; 0: no limit (0)")
    p.add_argument("--theme", action="append", help="programs about this only; may be given several times: "
                   "transforms, subclasses, control, randomness, derivatives")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p


def positions(text):
    """Line -> the compound statements around it, the innermost last, as a short text."""
    found = {}

    def walk(node, path):
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                inner = path
                name = type(node).__name__
                if isinstance(node, (ast.For, ast.While,
                                     ast.If)) and field in ("body", "orelse") or isinstance(node, ast.Try):
                    inner = (*path, f"{name}.{field}")
                elif isinstance(node, (ast.With, ast.Match, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
                                       ast.Lambda)):
                    inner = (*path, name)
                elif isinstance(node, ast.FunctionDef) and field == "body" and node.name != "f":
                    inner = (*path, "callee")
                walk(child, inner)
        if hasattr(node, "lineno"):
            for line in range(node.lineno, node.end_lineno + 1):
                if len(found.get(line, ())) <= len(path):
                    found[line] = path

    walk(ast.parse(text), ())
    return {line: ">".join(path[-3:]) or "f" for line, path in found.items()}


def count_opcodes(counter):
    """Count what the symbolic executor executes."""
    from jit.frame.executor import HANDLERS

    def counted(name, fn):
        def handler(frame, instr):
            counter[name] += 1
            return fn(frame, instr)

        return handler

    for name, fn in list(HANDLERS.items()):
        HANDLERS[name] = counted(name, fn)
    return set(HANDLERS)


def sort_of(why) -> str:
    """What a difference is about: the part of the outcome, and the first word of what is said of it."""
    part, _, said = why.partition(": ")[2].partition(" ") if why.startswith("call") else ("", "", why)
    word = re.match(r"\W*[A-Za-z_]*", said)[0]
    return part.partition("[")[0] + " " + ("list" if said.startswith("[") else word)


def work(options):
    """A worker: a line of JSON before and after each program."""
    import random

    import torch

    from fuzz.compare import run
    from fuzz.generate import generate
    from fuzz.shrink import shrink

    torch.set_num_threads(1)
    sys.unraisablehook = lambda unraisable: None  # what generators raise when they are collected
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # a program that grows without bound raises MemoryError
    out, sys.stdout = sys.stdout, open(os.devnull, "w")  # programs print at odd times
    opcodes: collections.Counter = collections.Counter()
    known = count_opcodes(opcodes)
    for seed in range(options.seed, options.seed + options.programs):
        print(json.dumps({"start": seed}), file=out, flush=True)
        rng = random.Random(f"settings {seed}")
        backend = "jit" if rng.random() < options.native else "eager"
        dynamic = True if rng.random() < 0.1 else None
        text = generate(seed, options.theme)
        outcome = run(text, backend, dynamic)
        row = {"seed": seed, "kind": outcome.kind, "why": outcome.why, "backend": backend,
               "captures": len(outcome.captures)}
        at = positions(text)
        row["breaks"] = [(b.kind, b.whole_frame, at.get(b.line, "f")) for b in outcome.breaks]
        if outcome.kind == "mismatch":
            first = sort_of(outcome.why)
            if options.shrink_seconds:
                def fails(t, first=first, backend=backend, dynamic=dynamic):
                    o = run(t, backend, dynamic)
                    return o.kind == "mismatch" and sort_of(o.why) == first

                text = shrink(text, fails, options.shrink_seconds)
            row["why"] = run(text, backend, dynamic).why
            row["text"], row["settings"] = text, (backend, dynamic)
        print(json.dumps(row), file=out, flush=True)
    print(json.dumps({"opcodes": opcodes, "known": sorted(known)}), file=out, flush=True)


class Counts:
    """What came of all programs."""

    def __init__(self):
        self.kinds, self.shares, self.breaks, self.places, self.opcodes = (collections.Counter() for _ in range(5))
        self.known: set = set()
        self.failures: list = []

    def add(self, row):
        self.kinds[row["kind"]] += 1
        if row["kind"] == "invalid":
            return
        real = [b for b in row["breaks"] if b[0] not in ("raises", "gradient")]
        self.shares["captures"] += row["captures"]
        self.shares["whole"] += not row["breaks"]
        self.shares["raises"] += any(b[0] == "raises" for b in row["breaks"])
        self.shares["broken"] += any(not b[1] for b in real)
        self.shares["eager"] += any(b[1] for b in real)
        for kind, whole, place in row["breaks"]:
            self.breaks[kind + (" (whole frame)" if whole else "")] += 1
            if not whole:
                self.places[place] += 1

    def __str__(self):
        tested = max(1, self.kinds["same"] + self.kinds["mismatch"])
        shares = {k: f"{v} ({100 * v / tested:.1f}%)" for k, v in self.shares.items()}
        never = sorted(self.known - set(self.opcodes))
        return "\n".join([
            f"programs: {tested} ({self.kinds['invalid']} more did not end in eager), "
            f"mismatches: {self.kinds['mismatch']}, crashes: {self.kinds['crash']}",
            f"captured whole: {shares.get('whole', 0)}, with graph breaks: {shares.get('broken', 0)}, "
            f"a frame left to eager: {shares.get('eager', 0)}, "
            f"raising out of a frame: {shares.get('raises', 0)}; frames captured: {self.shares['captures']}",
            "break kinds: " + ", ".join(f"{k} {n}" for k, n in self.breaks.most_common(60)),
            f"break positions: {len(self.places)} kinds; "
            + ", ".join(f"{k} {n}" for k, n in self.places.most_common(40)),
            f"opcodes executed while capturing: {len(self.opcodes)} of {len(self.known)}; "
            f"never: {', '.join(never) or 'none'}"])


HEADER = '''"""A program that differs: {why}

Seed {seed}. Run it with: python -m tests.fuzz --run {name}
"""
'''


def save(folder, row):
    """Write a failing program with what is wrong about it."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"seed_{row['seed']}.py"
    why = row["why"].replace("\\", "\\\\").replace('"""', "'''")
    backend, dynamic = row.get("settings", ("eager", None))
    file.write_text(HEADER.format(why=why, seed=row["seed"], name=file) + f"SETTINGS = ({backend!r}, {dynamic!r})\n"
                    + row["text"])
    return file


def run_worker(seed, count, options, counts):
    """One process for ``count`` programs; one that dies is a failure of the program that it was at. -> how many were
    run"""
    command = [sys.executable, "-m", "tests.fuzz", "--worker", "--programs", str(count), "--seed", str(seed),
               "--native", str(options.native), "--shrink-seconds", str(options.shrink_seconds),
               *(f"--theme={theme}" for theme in options.theme or ())]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)


def drive(options):
    """All programs, over processes that are replaced now and then."""
    import selectors

    from fuzz.generate import generate

    counts, began, todo = Counts(), time.monotonic(), collections.deque()
    for start in range(options.seed, options.seed + options.programs, options.chunk):
        todo.append((start, min(options.chunk, options.seed + options.programs - start)))
    selector, live = selectors.DefaultSelector(), {}
    while todo or live:
        if options.seconds and time.monotonic() - began > options.seconds:
            todo.clear()
        while todo and len(live) < options.jobs:
            start, count = todo.popleft()
            process = run_worker(start, count, options, counts)
            live[process] = [start, count, None, time.monotonic()]
            selector.register(process.stdout, selectors.EVENT_READ, process)
        for process, state in live.items():
            if time.monotonic() - state[3] > SILENT:
                process.kill()
        for key, _ in selector.select(timeout=10):
            process, state = key.data, live[key.data]
            state[3] = time.monotonic()
            line = process.stdout.readline()
            if not line:
                selector.unregister(process.stdout)
                del live[process]
                if process.wait() and state[2] is not None:
                    counts.kinds["crash"] += 1
                    killed = process.returncode == -signal.SIGKILL  # making the program may be what never ended
                    row = {"seed": state[2], "why": f"the process died with status {process.returncode}",
                           "text": "" if killed else generate(state[2], options.theme)}
                    print(f"seed {state[2]}: {row['why']} -> {save(options.save, row)}", flush=True)
                    left = state[0] + state[1] - state[2] - 1
                    if left > 0:
                        todo.appendleft((state[2] + 1, left))
                continue
            if not line.startswith("{"):
                continue
            row = json.loads(line)
            if "start" in row:
                state[2] = row["start"]
            elif "opcodes" in row:
                counts.opcodes.update(row["opcodes"])
                counts.known.update(row["known"])
                state[2] = None
                total, mismatches = sum(counts.kinds.values()), counts.kinds["mismatch"]
                print(f"... {total} programs, {mismatches} mismatches, {time.monotonic() - began:.0f} s", flush=True)
            else:
                counts.add(row)
                if row["kind"] == "mismatch":
                    print(f"seed {row['seed']}: {row['why'][:300]} -> {save(options.save, row)}", flush=True)
    print(counts)
    return bool(counts.kinds["mismatch"] or counts.kinds["crash"])


def main():
    options = parser().parse_args()
    if options.show is not None:
        from fuzz.generate import generate

        print(generate(options.show, options.theme))
        return 0
    if options.run:
        from fuzz.compare import run

        text = Path(options.run).read_text()
        namespace: dict = {}
        line = next((x for x in text.splitlines() if x.startswith("SETTINGS = ")), "SETTINGS = ('eager', None)")
        exec(line, namespace)
        outcome = run(text, *namespace["SETTINGS"])
        print(outcome.kind, outcome.why)
        for b in outcome.breaks:
            print(b)
        return outcome.kind == "mismatch"
    if options.worker:
        work(options)
        return 0
    return drive(options)


if __name__ == "__main__":
    sys.exit(main())
