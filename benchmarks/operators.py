"""Memory-bound operators of every kind, against the rate of a plain copy: eager, torch.compile and jit in one run.

The rows are in _operator_rows.py: some 180 operators and short chains, forward, and forward with backward. The share is
the rate at which a program's arguments are read once and its results written once (with a backward: the arguments
twice, the results' gradients once, and its own gradients written once) over the rate of a copy of the same size. 1.0 is
as fast as memory allows; several programs cannot reach it, such as sorts. A row whose results differ from eager's is
WRONG. The last lines are geometric means, and the rows in which jit is behind.

With ``--prepare N``, N processes first compile all rows into a shared kernel cache, since torch.compile needs seconds
for each; the times are taken afterwards, by one process alone.

``--expected`` compares jit's shares with those of ``expected_speeds.json``, which ``--update-expected`` writes, and
fails where a row has become slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

if "--prepare" in sys.argv:
    os.environ.setdefault("JIT_BENCH_CACHE", tempfile.mkdtemp(prefix="jit-bench-"))

import _expected
import _harness as harness
import torch
from _compare import TOLERANCE, difference, table
from _operator_rows import ROWS, WIDTH, Maker, nbytes

NOISE = 1.05  # a row is behind if it takes so many times as long
LOOSE = 4  # several roundings of half types, and two orders of adding


def leaves(value) -> list[torch.Tensor]:
    """The tensors in a result, integers among them."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in leaves(v)] if isinstance(value, (list, tuple)) else []


def comparable(t: torch.Tensor) -> torch.Tensor:
    if t.is_complex():
        t = torch.view_as_real(t)
    return t.float()


class Program:
    """A row with its arguments, as a callable per compiler."""

    def __init__(self, name: str, maker: Maker):
        torch.manual_seed(0)
        self.row = ROWS[name]
        self.function, self.arguments, *moved = self.row.make(maker)
        self.wanted = []
        if self.row.grad:
            self.wanted = [a.requires_grad_() for a in self.arguments if a.is_floating_point()]
        self.random = self.row.group == "random" or "dropout" in name
        self.changes = name.endswith("_in_place")
        with torch.enable_grad() if self.row.grad else torch.no_grad():
            out = self.function(*(self._copies() if self.changes else self.arguments))
        self.grads = [torch.randn_like(t) for t in leaves(out)] if self.row.grad else []
        self.bytes = moved[0] if moved else nbytes(self.arguments) + nbytes(out)
        if self.row.grad:
            self.bytes += nbytes(self.arguments) + nbytes(self.grads) + nbytes(self.wanted)

    def _copies(self) -> tuple:
        return tuple(a.clone() for a in self.arguments)

    def under(self, compiler: str):
        compiled = harness.wrap(compiler, self.function)

        def run(arguments=self.arguments):
            if not self.row.grad:
                with torch.no_grad():
                    return compiled(*arguments)
            out = compiled(*arguments)
            return out, torch.autograd.grad(leaves(out), self.wanted, self.grads)
        return run

    def results(self, run) -> list[torch.Tensor]:
        if not self.changes:
            return leaves(run())
        arguments = self._copies()
        run(arguments)
        return list(arguments)


def check(results: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> str:
    """What is wrong, or "". Of integers, a few may differ: positions of equal values, and roundings of quantised
    ones."""
    if [(t.dtype, t.shape) for t in results] != [(t.dtype, t.shape) for t in expected]:
        return "other dtypes or shapes"
    for a, b in zip(results, expected):
        if not b.numel():
            continue
        if b.dtype.is_floating_point or b.is_complex():
            a, b = comparable(a), comparable(b)
            apart = difference([a.nan_to_num(0, 0, 0)], [b.nan_to_num(0, 0, 0)])[1]
            if apart > tolerance:
                return f"differs by {apart:.1e}"
        else:
            share = (a != b).float().mean().item()
            if share > 0.01:
                return f"{share:.1%} of the integers differ"
    return ""


def measure(name: str, maker: Maker, compilers: list[str], args) -> dict:
    figures: dict = {c: {} for c in compilers}
    try:
        program = Program(name, maker)
    except Exception as error:
        return {c: {"error": f"{type(error).__name__}: {error}".splitlines()[0][:100]} for c in compilers}
    expected, runs = program.results(program.under("eager")), {}
    for c in compilers:
        try:
            run = program.under(c)
            results = program.results(run)
            wrong = "" if program.random else check(results, expected, LOOSE * TOLERANCE[maker.dtype])
            if wrong:
                figures[c]["error"] = wrong
            runs[c] = run
            del results
        except Exception as error:
            figures[c]["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    del expected
    if not args.only_compile:
        for c, seconds in harness.interleaved(runs, args.device, args.seconds, flush=True).items():
            figures[c].update(us=seconds * 1e6, rate=program.bytes / seconds)
    return figures


def copy_rate(maker: Maker, seconds: float) -> float:
    """Bytes per second of a copy, counted as read and written."""
    source = maker.x(2 * maker.rows, WIDTH)
    target = torch.empty_like(source)
    times = harness.interleaved({"copy": lambda: target.copy_(source)}, maker.device, seconds, flush=True)
    return 2 * nbytes(source) / times["copy"]


def prepare(args, names: list[str]) -> None:
    """Fill the kernel caches, in as many processes as were asked for."""
    running = []
    for i in range(args.prepare):
        mine = ",".join(names[i::args.prepare])
        if mine:
            arguments = sys.argv[1:]
            at = arguments.index("--prepare")
            del arguments[at:at + 2]
            running.append(subprocess.Popen([sys.executable, __file__, *arguments, "--only", mine, "--only-compile"],
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for process in running:
        process.wait()


def main():
    parser = harness.parser(__doc__, seconds=0.05)
    parser.add_argument("--dtype", default=None, help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--rows", type=int, default=None, help="rows of 4096 (default: 16384 on a GPU, 512 on a CPU)")
    parser.add_argument("--only", default="", help="comma-separated names of rows, or parts of names")
    parser.add_argument("--groups", default="", help="comma-separated groups of rows")
    parser.add_argument("--prepare", type=int, default=0, help="processes that compile all rows first")
    parser.add_argument("--only-compile", action="store_true", help="fill the kernel caches and time nothing")
    parser.add_argument("--expected", action="store_true", help="fail where jit is slower than it was")
    parser.add_argument("--update-expected", action="store_true", help="write jit's shares as those to expect")
    args = parser.parse_args()
    gpu = (args.device or ("cuda" if torch.cuda.is_available() else "cpu")) == "cuda"
    names = [n for n in ROWS if not args.groups or ROWS[n].group in args.groups.split(",")]
    if args.only:
        parts = args.only.split(",")
        names = [n for n in names if n in parts] or [n for n in names if any(p in n for p in parts)]
    if not names:
        raise SystemExit(f"no such row; groups are {', '.join(sorted({r.group for r in ROWS.values()}))}")
    if args.prepare:
        prepare(args, names)
    compilers = harness.start(args)
    dtype = getattr(torch, args.dtype or ("bfloat16" if gpu else "float32"))
    maker = Maker(args.device, dtype, args.rows or (16384 if gpu else 512))

    copy = copy_rate(maker, max(args.seconds, 0.2))
    print(f"{str(dtype)[6:]}, {len(names)} rows, copy {copy / 1e9:.0f} GB/s", flush=True)

    saved, lines, shares, behind = [], [], {c: [] for c in compilers}, []
    ratios: dict = {c: [] for c in compilers}
    for name in names:
        figures = measure(name, maker, compilers, args)
        line = [name]
        for c in compilers:
            f = figures[c]
            if "rate" in f:
                f["of_copy"] = f["rate"] / copy
                shares[c].append(f["of_copy"])
                if "us" in figures.get("eager", {}):
                    ratios[c].append(figures["eager"]["us"] / f["us"])
            times = f"{f['us']:.0f} us {f['of_copy']:.2f}" if "us" in f else ""
            line.append(f"{times} {'WRONG ' + f['error'] if 'error' in f else ''}".strip())
        mine = figures.get("jit", {}).get("us")
        others = [(f["us"], c) for c, f in figures.items() if not c.startswith("jit") and "us" in f]
        if mine and others and mine > NOISE * min(others)[0]:
            behind.append(f"{name} ({mine / min(others)[0]:.2f}x of {min(others)[1]})")
        saved.append({"row": name, "group": ROWS[name].group, "copy": copy, **figures})
        lines.append(line)
        print("  ".join(line), flush=True)
    if args.only_compile:
        return
    print("\n" + table(["time, share of copy", *compilers], lines))
    for c in compilers:
        print(f"{c}: {harness.geomean(shares[c]):.3f} of a copy's rate, {harness.geomean(ratios[c]):.2f}x eager's speed"
              f" (geometric means of {len(shares[c])} rows)")
    if "jit" in compilers:
        print(f"jit is behind in {len(behind)}: {', '.join(behind)}")
    harness.save(args, saved)
    reached = {r["row"]: r["jit"]["of_copy"] for r in saved if "of_copy" in r.get("jit", {})}
    where = (torch.cuda.get_device_name() if args.device == "cuda" else "cpu"), str(dtype)[6:]
    if args.update_expected:
        _expected.update(reached, *where)
    if args.expected:
        lost = _expected.slower(reached, *where)
        print("\n".join(["slower than expected:", *lost] if lost else ["no row is slower than expected"]))
        if lost:
            raise SystemExit(1)
    raise SystemExit(any("error" in f for r in saved for c, f in r.items() if c.startswith("jit")))


if __name__ == "__main__":
    main()
