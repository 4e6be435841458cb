"""Time to a first result in a new process: with empty kernel caches, and again with the caches that the first process
left.

Seconds of importing the compiler and of the first call, for a small kernel, a chain of modules and a transformer layer.
Each figure is from a process of its own.
"""

from __future__ import annotations

import tempfile
import time

import _harness as harness
from _compare import table

PROGRAMS = ("kernel", "mlp", "transformer_layer")


def build(name: str, device: str):
    """(program, arguments)."""
    import torch

    torch.manual_seed(0)
    if name == "kernel":
        return (lambda x, y: torch.nn.functional.gelu(x + y).sum(-1)), (torch.randn(64, 256, device=device),
                                                                        torch.randn(256, device=device))
    if name == "mlp":
        layers = [m for _ in range(6) for m in (torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU())]
        return torch.nn.Sequential(*layers).to(device).eval(), (torch.randn(32, 256, device=device),)
    # Without the fused inference path of torch.nn, which hides the layer from every compiler.
    layer = torch.nn.TransformerDecoderLayer(256, 4, 1024, batch_first=True).to(device).eval()
    return layer, (torch.randn(4, 32, 256, device=device), torch.randn(4, 32, 256, device=device))


def one(args):
    import torch

    program, arguments = build(args.program, args.device)
    with torch.no_grad():
        program(*arguments)
        harness.sync(args.device)
        begin = time.perf_counter()
        candidate = harness.wrap(args.compiler, program)
        imported = time.perf_counter()
        candidate(*arguments)
        harness.sync(args.device)
        harness.result(import_s=imported - begin, first_call_s=time.perf_counter() - imported)


def main():
    parser = harness.parser(__doc__, seconds=None)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help=f"comma-separated, of {', '.join(PROGRAMS)}")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--program", choices=PROGRAMS, help="measure this program here and now, under --compiler")
    parser.add_argument("--compiler", default="eager")
    args = parser.parse_args()
    if args.program:
        return one(args)
    names = [n for n in harness.start(args) if n != "eager"]
    # Both compilers build or load some parts once per machine; do that before measuring.
    for name in names:
        harness.in_subprocess(__file__, ["--program", "kernel", "--compiler", name, "--device", args.device],
                              args.timeout)
    saved, lines, failed = [], [], False
    for program in args.programs.split(","):
        totals = {}
        for name in names:
            with tempfile.TemporaryDirectory(prefix="jit-bench-") as cache:
                for state in ("empty caches", "caches kept"):
                    arguments = ["--program", program, "--compiler", name,
                                 "--device", args.device, "--threads", str(args.threads)]
                    row = harness.in_subprocess(__file__, arguments, args.timeout, cache=cache)
                    saved.append({"program": program, "compiler": name, "state": state, **row})
                    if "error" in row:
                        failed |= name.startswith("jit")
                        lines.append([program, state, name, row["error"], "", ""])
                        continue
                    totals[name, state] = row["import_s"] + row["first_call_s"]
                    ratio = totals.get(("torch.compile", state))
                    versus = f"{ratio / totals[name, state]:.1f}x" if ratio and name != "torch.compile" else ""
                    lines.append([program, state, name, f"{row['import_s']:.2f} s",
                                  f"{row['first_call_s']:.2f} s", versus])
    print(table(["", "", "compiler", "import", "first call", "sooner than torch.compile"], lines))
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
