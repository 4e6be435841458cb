"""What a graph break costs, and what the frame evaluation hook costs the rest of the process.

The first table: microseconds per call of functions with breaks on a tiny tensor, the least of several rounds, and speed
over eager. The breaks are calls of print with nothing to print; "no break" is the same arithmetic in one graph, so that
a break's price is the difference by the number of breaks. The second table: pure Python that does nothing but call
functions, before the hook was ever installed, after it was, and while this thread is armed (as it is between a break
and the return of the compiled function). 1.00x is the time before.
"""

from __future__ import annotations

import copy
import re
import time

import _harness as harness
import torch
from _compare import table
from call_overhead import measured, plain


def no_break(x):
    y = torch.sin(x) + 1
    z = y * 2 - x
    w = torch.cos(z) * y
    return w + z


def one_break(x):
    y = torch.sin(x) + 1
    z = y * 2 - x
    print(end="")
    w = torch.cos(z) * y
    return w + z


def three_breaks(x):
    y = torch.sin(x) + 1
    print(end="")
    z = y * 2 - x
    print(end="")
    w = torch.cos(z) * y
    print(end="")
    return w + z


def break_in_callee(x):
    return inner(x * 2) + x


def inner(x):
    y = torch.sin(x) + 1
    print(end="")
    return torch.cos(y) * x


def loop_of_breaks(x):
    for _ in range(10):
        x = torch.sin(x) + 1
        print(end="")
    return x


def callee(t):
    return torch.sin(t) * 2 + torch.cos(t) * t - 1


def through_c(x):
    out = []
    re.sub("x", lambda match: out.append(callee(x)) or "", "xxx")
    return out[0] + out[1] + out[2]


CASES = {"no break": no_break, "1 break": one_break, "3 breaks": three_breaks,
         "1 break in a callee": break_in_callee, "10 breaks in a loop": loop_of_breaks,
         "3 calls through C": through_c}


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


class Tree:
    def __init__(self, depth):
        self.children = [Tree(depth - 1) for _ in range(2)] if depth else []

    def count(self):
        return 1 + sum(child.count() for child in self.children)


PURE = {"fib(16)": lambda: fib(16), "walk of a tree": lambda: Tree(8).count(),
        "copy.deepcopy": lambda: copy.deepcopy([[i] * 4 for i in range(40)])}


def least(programs: dict, rounds: int) -> dict[str, float]:
    """Least seconds of a call of each, a call of each in turn."""
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(rounds):
        for name, program in programs.items():
            begin = time.perf_counter()
            program()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def armed(program):
    """``program`` as it runs inside a compiled region that leaves all its functions alone."""
    from jit.runtime import native

    dispatcher = native().Dispatcher(program)
    dispatcher.add_entry(None, lambda: program(), region=native().Region(lambda fn, first: None))
    return dispatcher


def main():
    args = harness.parser(__doc__, seconds=0.5).parse_args()
    names = harness.start(args)
    before = least(PURE, 200)
    print(flush=True)
    x = torch.rand(8, device=args.device)
    saved, lines, failed = measured([(title, program, (x,), plain, False) for title, program in CASES.items()],
                                    names, args)
    print("microseconds per call, and speed over eager")
    print(table(["", *names], lines))

    if any(name.startswith("jit") for name in names):
        from jit.runtime import native

        after = least(PURE, 200)
        inside = least({name: armed(program) for name, program in PURE.items()}, 200)
        print(f"\npure Python, milliseconds; the hook is {native().frame_hook_status()}")
        rows = [[name, f"{before[name] * 1e3:.3f}", *(f"{t[name] * 1e3:.3f}  {t[name] / before[name]:.2f}x"
                                                      for t in (after, inside))] for name in PURE]
        print(table(["", "never installed", "installed before", "armed"], rows))
        saved.append({"pure": {name: [before[name], after[name], inside[name]] for name in PURE}})
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
