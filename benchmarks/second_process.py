"""Time to the first result of whole models in a process: with empty caches, and again with the caches that the first
process left.

Seconds of the first call behind all imports and one call in eager (whose seconds are in the row of eager: the second
one's), each from a process of its own. Captures: how many functions jit has captured in it. The training step is a
forward and a backward.
"""

from __future__ import annotations

import importlib
import tempfile
import time

import _harness as harness
from _compare import table

PROGRAMS = ("gpt2", "llama", "resnet50", "t5", "gpt2 training")
# What each loads by itself when it first compiles.
IMPORTS = {"jit": ("jit", "jit.frame.dispatch", "jit.compiling", "jit.second"),
           "torch.compile": ("torch._dynamo", "torch._inductor.compile_fx"),
           "eager": ()}


def one(args):
    import torch

    import _zoo

    name, _, training = args.program.partition(" ")
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    model, positional, keywords = _zoo.build(name, args.device, dtype, args.device == "cpu")
    if training:
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        keywords["labels"] = keywords["input_ids"]

    def step(program):
        if not training:
            with torch.no_grad():
                program(*positional, **keywords)
        else:
            program(*positional, **keywords).loss.backward()
        harness.sync(args.device)

    base = args.compiler.partition(":")[0]
    for module in IMPORTS[base]:
        importlib.import_module(module)
    step(model)
    begin = time.perf_counter()
    step(model)
    eager = time.perf_counter() - begin
    begin = time.perf_counter()
    candidate = harness.wrap(args.compiler, model)
    step(candidate)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    step(candidate)
    second = time.perf_counter() - begin
    captures = None
    if base == "jit":
        from jit.frame.dispatch import captures_so_far

        captures = captures_so_far()
    harness.result(first_call_s=first, second_call_s=second, eager_s=eager, captures=captures)


def main():
    parser = harness.parser(__doc__, seconds=None)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help=f"comma-separated, of {', '.join(PROGRAMS)}")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--program", choices=PROGRAMS, help="measure this program here and now, under --compiler")
    parser.add_argument("--compiler", default="eager")
    args = parser.parse_args()
    if args.program:
        return one(args)
    names = [n for n in harness.start(args) if n != "eager"]
    saved, lines, failed = [], [], False
    for program in args.programs.split(","):
        first = {}
        for name in names:
            with tempfile.TemporaryDirectory(prefix="jit-bench-") as cache:
                for state in ("cold", "second process"):
                    arguments = ["--program", program, "--compiler", name, "--device", args.device,
                                 "--threads", str(args.threads)]
                    row = harness.in_subprocess(__file__, arguments, args.timeout, cache=cache)
                    saved.append({"program": program, "compiler": name, "state": state, **row})
                    if "error" in row:
                        failed |= name.startswith("jit")
                        lines.append([program, state, name, row["error"], "", "", ""])
                        continue
                    first[name, state] = row["first_call_s"]
                    theirs = first.get(("torch.compile", state))
                    versus = f"{theirs / row['first_call_s']:.1f}x" if theirs and name != "torch.compile" else ""
                    captures = "" if row["captures"] is None else str(row["captures"])
                    lines.append([program, state, name, f"{row['first_call_s']:.2f} s", f"{row['eager_s']:.2f} s",
                                  captures, versus])
    print(table(["", "", "compiler", "first call", "eager", "captures", "sooner than torch.compile"], lines))
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
