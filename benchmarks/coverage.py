"""Which of PyTorch's operators become kernels of ours, and which the library computes, forward and backward.

Goes through PyTorch's database of operators (OpInfo), compiles one sample of each on the default backend, and looks at
the plans: ``prim`` (one operation of the graph), ``composite`` (several, in kernels of ours), ``library`` (with the
operators that are called), ``break`` (no graph holds it) or ``nothing`` (the operand itself, or a constant). The
sample is the one with the most elements among the first ones. Why a library call is one is said by
``_coverage_reasons.py``; ``--docs`` writes the table of docs/performance.md, for a GPU what differs from it. What was
found on another machine is read with ``--found``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import re
import sys
import textwrap
import unittest.mock
import warnings
from pathlib import Path

sys.path.append(sys.path.pop(0))  # this folder last, as this file has the name of a package that others import

import torch  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(1, str(ROOT))

import _coverage_reasons as reasons  # noqa: E402
from jit.graph.op_info import op_info  # noqa: E402
from tests.sweeps import workers  # noqa: E402
from tests.sweeps.database import dtype_of, mapped, operators, outcome, samples, tensors_of  # noqa: E402

MARKS = {"cpu": ("<!-- coverage: written by benchmarks/coverage.py -->", "<!-- coverage: end -->"),
         "cuda": ("<!-- coverage on GPUs: written by benchmarks/coverage.py -->", "<!-- coverage on GPUs: end -->")}
WHERE = {"cpu": "the CPU", "cuda": "a GPU"}


@dataclasses.dataclass(frozen=True)
class Found:
    """How one operator was compiled.

    forward, backward: "prim", "composite", "library", "break", "nothing", "error" or "" (no gradient).
    calls: the library's operators that the forward calls, and those that the backward calls.
    kernels: how many kernels of ours there are in both.
    """

    name: str
    forward: str
    backward: str = ""
    calls: tuple = ((), ())
    kernels: int = 0
    note: str = ""


def largest(op, dtype, grad: bool, device: str, among: int = 12):
    """The sample with the most elements among the first ones."""
    made = samples(op, dtype, grad, among, device)
    return max(made, key=lambda s: sum(t.numel() for t in tensors_of(list(s)))) if made else None


def plans_of(fn, args, kwargs, leaves) -> tuple[list, int, list, object]:
    """(plans of the graphs that a call compiles, a backward one before its forward; breaks; graphs; its outcome)."""
    import jit
    from jit import compiling

    plans, graphs, real = [], [], compiling.begin

    def observed(graph, *rest, **options):
        finish = real(graph, *rest, **options)
        graphs.append(graph)

        def finished():
            made = finish()
            plans.append(made.plan)
            return made

        return finished

    jit.reset()
    compiling.begin = observed
    try:
        # No name ends in an underscore here: a function that changes its arguments is compiled like the others.
        compiled = jit.compile(lambda *a, **k: fn(*a, **k))
        result, gradients = outcome(compiled, args, kwargs, leaves)
    finally:
        compiling.begin = real
    return plans, graphs, result if isinstance(result, BaseException) else gradients


def library_calls(plan) -> tuple:
    """The operators of PyTorch that a plan calls; "(vjp)" of those whose gradient autograd computes."""
    names = []
    for step in plan.steps:
        if step.kind in ("aten", "vjp"):
            name = step.name.removeprefix("aten::")
            names.append(name + " (vjp)" * (step.kind == "vjp"))
    return tuple(dict.fromkeys(names))


def kernels_of(plan) -> int:
    return sum(bool(step.KERNEL) for step in plan.steps)


def kind_of(plans: list, graphs: list) -> str:
    from jit.graph.prim_info import info

    if any(library_calls(p) for p in plans):
        return "library"
    work = [n for g in graphs for n in g.nodes if info(n.op).kind not in ("input", "number")]
    return "prim" if len(work) <= 1 else "composite"


def look(name: str, op, device: str = "cpu") -> Found:
    """How one operator is compiled for a device."""
    import jit

    dtype = dtype_of(op, device)
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes(device)
    try:
        sample = largest(op, dtype, False, device)
    except Exception as error:
        return Found(name, "error", note=f"no sample: {error}"[:80])
    if sample is None:
        return Found(name, "error", note="no sample")
    plans, graphs, result = plans_of(op.op, *sample, ())
    if isinstance(result, BaseException):
        return Found(name, "error", note=f"{type(result).__name__}: {result}"[:80])
    if not plans:
        operator = name.removeprefix("nn.functional.").removesuffix(".grad_oriented").replace("linalg.", "linalg_")
        if op_info(operator).deferrable:
            return Found(name, "library", calls=((operator,), ()))
        breaks = jit.explain(lambda *a, **k: op.op(*a, **k))(*sample[0], **sample[1]).graph_break_count
        return Found(name, "break" if breaks else "nothing")
    forward = kind_of(plans, graphs)
    calls, backward, behind = tuple(dict.fromkeys(c for p in plans for c in library_calls(p))), "", ()
    count = sum(map(kernels_of, plans))
    if differentiable:
        sample = largest(op, dtype, True, device)
        args, kwargs = mapped(_leaf, sample[0]), mapped(_leaf, sample[1])
        leaves = [t for t in tensors_of([args, kwargs]) if t.requires_grad]
        plans, graphs, result = plans_of(op.op, args, kwargs, leaves)
        if leaves and len(plans) >= 2 and not isinstance(result, BaseException):
            backward, behind = kind_of(plans[:1], graphs[:1]), library_calls(plans[0])
            count += kernels_of(plans[0])
            more = tuple(c for p in plans[1:] for c in library_calls(p))
            calls = tuple(dict.fromkeys((*calls, *more)))
            forward = "library" if calls else forward
    return Found(name, forward, backward, (calls, behind), count)


def _leaf(t):
    return t.detach().clone().requires_grad_(t.requires_grad)


def table(found: list[Found], device: str) -> str:
    """The text for docs/performance.md."""
    by_kind = collections.defaultdict(list)
    for f in found:
        by_kind[max((f.forward, f.backward), key=_ORDER.index)].append(f)
    whole = [f for kind in ("nothing", "prim", "composite") for f in by_kind[kind]]
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    for f in by_kind["library"]:
        for side, calls in zip(("", " backward"), f.calls):
            for call in calls:
                rows[reasons.reason(call)][call].append(f.name + side)
    lines = [f"Of {len(found)} operators of PyTorch's database, one sample each on {WHERE[device]}, {len(whole)} are "
             f"computed by our kernels alone, forward and backward; {len(by_kind['library'])} call the library "
             f"somewhere, and {len(by_kind['break'])} are a break.", "",
             "| why the library is called | which of its operators (B: in a backward alone) |", "| --- | --- |"]
    for why in sorted(rows, key=lambda r: (r == reasons.NOT_YET, -len(rows[r]))):
        lines.append(f"| {why} | {', '.join(_named(rows[why]))} |")
    if device == "cpu":
        lines += ["", *_wrapped("No graph: ", by_kind["break"]), "", *_wrapped("Kernels of ours alone: ", whole)]
    return "\n".join(lines)


def _named(calls: dict) -> list[str]:
    """The library's operators, each once."""
    plain = {c for c in calls if not c.endswith(" (vjp)")}
    forward = {c for c in plain if any(not by.endswith(" backward") for by in calls[c])}
    gradients = {c.removesuffix(" (vjp)") for c in calls} - forward
    return sorted([*forward, *(f"{c} (B)" for c in gradients)])


def _wrapped(title: str, found: list[Found]) -> list[str]:
    return textwrap.wrap(title + ", ".join(sorted(f.name for f in found)) + ".", 180, break_on_hyphens=False,
                         break_long_words=False)


_ORDER = ["", "nothing", "prim", "composite", "library", "break", "error"]


def write(text: str, device: str) -> None:
    """Put the table between its marks in docs/performance.md."""
    page, (begin, end) = ROOT / "docs/performance.md", MARKS[device]
    old = page.read_text()
    head, _, rest = old.partition(begin)
    page.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cpu", choices=MARKS)
    p.add_argument("--found", help="go through nothing: read what --json has written")
    p.add_argument("--only", help="regular expression over the operators' names")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--timeout", type=float, default=120, help="seconds for one operator")
    p.add_argument("--json", help="write what was found to this file")
    p.add_argument("--docs", action="store_true", help="write the table into docs/performance.md")
    given = p.parse_args()
    found: list[Found] = []
    if given.found:
        read = json.loads(Path(given.found).read_text())
        found = [Found(**{**one, "calls": tuple(map(tuple, one["calls"]))}) for one in read]
    else:
        try:
            go_through(given, found)
        finally:  # also of a run that is interrupted
            found.sort(key=lambda f: f.name)
            if given.json:
                Path(given.json).write_text(json.dumps([dataclasses.asdict(f) for f in found], indent=0))
    if given.docs:
        write(table(found, given.device), given.device)
    print(collections.Counter(max((f.forward, f.backward), key=_ORDER.index) for f in found))


@contextlib.contextmanager
def untouched_gpu():
    """No GPU, as far as torch and numba tell: importing PyTorch's database of operators asks both for one, and no child
    of a process that has asked can use it."""
    with (unittest.mock.patch("torch.cuda.is_available", lambda: False),
          unittest.mock.patch.dict(os.environ, NUMBA_DISABLE_CUDA="1")):
        yield


def go_through(given, found: list[Found]) -> None:
    """Look at the operators that the command line names, each in a process of its own."""
    with untouched_gpu():
        import jit

        jit.runtime.native()
        known = operators()
    chosen = [name for name in known if not given.only or re.search(given.only, name)]

    def checked(name: str) -> list:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        return [look(name, known[name], given.device)]

    def report(name: str, results: list) -> None:
        one = results[0] if results and isinstance(results[0], Found) else Found(name, "error", note=str(results)[:400])
        found.append(one)
        calls = "; ".join(f"{side}: {', '.join(c)}" for side, c in zip(("forward", "backward"), one.calls) if c)
        print(f"{name:44} {one.forward:10} {one.backward:10} {one.kernels:2} {calls} {one.note}", flush=True)

    workers.run(chosen, checked, given.jobs, given.timeout, report)


if __name__ == "__main__":
    main()
