"""``python -m tests.sweeps.sequences``: every short sequence of statements on one piece of memory.

A program makes a tensor ``v`` (an argument, a view of one, a result ...), runs a few of the statements below, and
returns ``v`` and what was made of it. Views, writes, changes of shape, ``out=``, ``detach()``, ``requires_grad_()``,
graph breaks, each with gradients recorded or not, follow each other in every order; the default backend is compared
with eager on values, layouts, history, memory in common, gradients, and exceptions' types. With a depth of 2 these are
all programs, of larger ones ``--programs`` takes some at random.
"""

import argparse
import itertools
import random
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from inplace_harness import observe, same_record  # noqa: E402
from sweeps import workers  # noqa: E402

import jit  # noqa: E402

SOURCES = {"argument": "v = x", "view": "v = x.t()", "whole view": "v = x[:]", "product": "v = x * 2",
           "exp": "v = x.exp()", "without gradients": "v = w * 2"}
# Those that start with "-" run under no_grad.
STATEMENTS = """
a = v[1:] ; - a = v[1:] ; a = v.t() ; a = v.split(2)[0] ; a = v[i] ; a = v.view(2, 8) ; a = v[:1].expand(3, 4)
a = v.diagonal() ; a = v.detach() ; a = v.data ; a = v.detach()[i] ; a = v.unbind(0)[1] ; - a = v.t()[i] ; y = v
v.add_(1) ; - v.add_(1) ; v.sigmoid_() ; - v.sigmoid_() ; v.relu_() ; v.cumsum_(0) ; v.zero_() ; v[0] = w[0]
v.addcmul_(w, w) ; v.masked_fill_(v > 0, 0.5) ; v[torch.tensor([0, 2])] = 1 ; v.data.add_(1) ; - v.data.add_(1)
v.copy_(y)
a.mul_(2) ; - a.mul_(2) ; a.mul_(w[0, 0]) ; y.add_(1) ; - y.add_(1) ; v.unsqueeze_(0) ; - v.t_()
y = v * w ; y = v * v ; y = v.exp() ; - y = v.exp() ; y = a.sigmoid() ; y = v.sum(0) ; y = torch.softmax(v, -1)
y = torch.where(v > 0, v, w) ; y = torch.lerp(v, w, 0.5) ; - v = v + w ; v, y = y, v
torch.mul(w, 2, out=y) ; - torch.mul(w, w, out=v) ; torch.clamp(w, 0, 1, out=a)
y = v.detach().requires_grad_() ; a = (v * 1).detach().requires_grad_() ; - y = v.clone().requires_grad_()
a = torch.ones(4, requires_grad=True) ; jit.graph_break() ; - jit.graph_break()
"""
STATEMENTS = [s.strip() for line in STATEMENTS.strip().splitlines() for s in line.split(" ; ")]


def program(source: str, statements) -> str:
    lines = [SOURCES[source], "a = y = w * 3"]
    for s in statements:
        lines += ["with torch.no_grad():", "    " + s[2:]] if s.startswith("- ") else [s]
    return "def f(x, w, i):\n" + "".join(f"    {line}\n" for line in [*lines, "return v, a, y"])


def _arguments(grad: bool):
    def make():
        torch.manual_seed(1)
        leaf = torch.randn(4, 4).requires_grad_(grad)
        return [leaf * 1 if grad else leaf, torch.randn(4, 4), torch.tensor(1)], [leaf]

    return make


def _seen(fn, grad: bool) -> dict:
    record = observe(fn, _arguments(grad))
    # Views that have no place in common need not share a counter, and who refuses a history has another name for it.
    del record["counters"]
    record["history"] = [h if isinstance(h, tuple) else "refused" for h in record["history"]]
    if "error" in record:
        return {"error": record["error"][0]}
    if "backward error" in record:
        del record["gradients"]
        record["backward error"] = "raises"
    return record


def difference(text: str, grad: bool = True, dynamic=None) -> str | None:
    """What is wrong with a program, or None."""
    fns = []
    for _ in range(2):
        space = {"torch": torch, "jit": jit}
        exec(compile(text, "<sequence>", "exec"), space)
        fns.append(space["f"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = _seen(fns[0], grad)
        jit.reset()
        try:
            same_record(eager, _seen(jit.compile(fns[1], dynamic=dynamic), grad))
        except AssertionError as error:
            return str(error).replace("\n", " ")[:400]
    return None


def programs(depth: int, number: int | None, seed: int) -> list:
    """(source, statements) of all programs of a depth, or of ``number`` of them."""
    if number is None:
        return [(s, c) for s in SOURCES for c in itertools.product(STATEMENTS, repeat=depth)]
    rng = random.Random(seed)
    return [(rng.choice(list(SOURCES)), tuple(rng.choice(STATEMENTS) for _ in range(depth))) for _ in range(number)]


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.sweeps.sequences", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--depth", type=int, default=2, help="statements of a program")
    p.add_argument("--programs", type=int, help="how many; without it all")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--dynamic", action="store_true", help="with sizes that are symbols")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--seconds", type=float, help="after these no further process is started")
    given = p.parse_args()
    todo = programs(given.depth, given.programs, given.seed)
    size = 200

    def checked(first):
        torch.set_num_threads(1)
        found = []
        for at, (source, statements) in enumerate(todo[first:first + size], first):
            why = difference(program(source, statements), at % 5 != 4, True if given.dynamic else None)
            if why:
                found.append(f"{source}: {' ; '.join(statements)}{'' if at % 5 != 4 else ' (no gradient)'}: {why}")
        return found

    until = time.time() + given.seconds if given.seconds else None
    done = workers.run(list(range(0, len(todo), size)), checked, given.jobs, 600,
                       lambda first, found: [print(text, flush=True) for text in found], until)
    wrong = sum(map(len, done.values()))
    print(f"{sum(min(size, len(todo) - first) for first in done)} programs, {wrong} differ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
