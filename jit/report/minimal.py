"""``jit.minify``: the least part of a program's graphs that still fails.

Each captured graph is run by its kernels and compared with eager, as ``jit.verify`` does, until one raises or is less
exact than eager. Any set of its operations is a graph of its own: what they read of the others is an input, with the
value that eager computes, and what none of them reads is a result. The set is made smaller by delta debugging (Zeller
and Hildebrandt, Simplifying and isolating failure-inducing input, 2002): without one half, one quarter, ... one
operation at a time, as long as what is left still fails in the same way.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from .. import backends, config, numerics
from ..graph.ir import Part, ancestors
from ..graph.prim_info import info
from ..graph.printing import expression
from ..graph.recording import Gradient
from ..spelling import counted
from .inputs import input_of
from .rerun import Rerun, only_there

if TYPE_CHECKING:
    from ..graph.ir import Graph, Node

_ALWAYS = ("number", "source")  # what is made from nothing goes with what reads it
_SECONDS = 120  # that a trial in a process of its own may take
CRASH, RAISES, WRONG = "crash", "raises", "wrong"


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a graph fails. ``kind``: ``RAISES``, ``WRONG`` or, in a process of its own, ``CRASH``; ``what``: the type of
    the exception, "value", "gradient", or the signal; ``text``: more of it."""

    kind: str
    what: str
    text: str

    def is_like(self, other: Failure | None) -> bool:
        return other is not None and (self.kind, self.what) == (other.kind, other.what)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Minimal:
    """What ``jit.minify`` found.

    Attributes:
        failure: how it fails, as text; "" where nothing does.
        graph: the least graph, as runnable Python; "" where none fails.
        operations, before: how many operations it has, and how many the graph had that it was cut from.
        script: a program that runs it, by jit's own kernels and in eager, and compares; "" where none fails. With a
            backend or passes that were given it says that these are not in it.
        trials: how many graphs were tried.
        places: (file, line, function) of the program's lines that the operations come from.
        text: all of that in a few sentences.
    """

    failure: str
    graph: str = ""
    operations: int = 0
    before: int = 0
    script: str = ""
    trials: int = 0
    places: tuple[tuple[str, int, str], ...] = ()
    text: str = ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the script to a file. Raises ValueError where there is none, and OSError where that fails."""
        if not self.script:
            raise ValueError(f"there is no script to save: {self.text}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.script)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass
class _Graph:
    """A captured graph, with the inputs of its first run."""

    graph: Graph
    tensors: list[torch.Tensor]
    sizes: dict[str, int]
    gradient: Gradient | None


def minify(compiled: Callable[[Callable], Callable], fn: Any, args: Sequence[object], kwargs: dict[str, object],
           backend: Callable, isolated: bool) -> Minimal:
    """See ``jit.minify``. ``compiled``: makes the program run its graphs by a backend; ``backend``: that which is to be
    looked at."""
    eager, in_eager = [], ""
    with torch.random.fork_rng():
        try:
            twin, given, named = copy.deepcopy((fn, args, kwargs))
            eager = [twin(*given, **named)]
        except Exception as error:  # of the user's own code
            in_eager = f"{type(error).__name__}: {error}"
    found: list[_Graph] = []
    try:
        with torch.random.fork_rng(), config.patch(strict=True):
            result = compiled(_recording(found))(*args, **kwargs)
    except Exception as error:  # it is reported: whose it is, is the question
        raised = f"{type(error).__name__}: {error}"
        where = "in eager too" if in_eager == raised else "while it is captured"
        return Minimal(raised, text=f"it fails {where}, so there is no graph to cut: {raised}")
    if isolated and (own := ", ".join(filter(None, (only_there(one.graph) for one in found)))):
        raise ValueError(f"isolated=True: no other process has the program's own kernels {own}; leave isolated out")
    trials = _Trials(backend, isolated)
    for number, one in enumerate(found):
        failure = trials.failure(one)
        if failure is not None:
            return _cut(trials, one, failure, number)
    report = numerics.Verification()
    if eager:
        numerics.compare_results(report, eager[0], result)
    if report.faults:
        return Minimal("wrong result", trials=trials.count, text=(
            f"each of the {len(found)} graphs is as exact as eager by its kernels, but the program is not: what "
            f"differs is how it was captured, which jit.compile(fn, backend=\"eager\") shows too: {report.faults[0]}"))
    return Minimal("", trials=trials.count, text=f"nothing fails: {counted(len(found), 'graph')} tried")


def _recording(found: list[_Graph]) -> Callable:
    """A backend that runs graphs in eager, operation by operation, and notes each with the inputs of its first run."""

    def backend(graph: Graph, examples: Sequence[torch.Tensor], gradient: Gradient | None = None) -> Any:
        copied, plan = graph.copy(), backends.compile_eager(graph, examples, gradient)
        pending = [copied]

        def call(*arguments: Any) -> Any:
            if pending:
                tensors = arguments[:len(arguments) - len(plan.int_symbols)]
                found.append(_Graph(pending.pop(), [numerics.twin(t) for t in tensors],
                                    dict(zip(plan.int_symbols, arguments[len(tensors):])), gradient))
            return plan.native(*arguments)

        return dataclasses.replace(plan, native=call)

    return backend


# -- trials


class _Trials:
    """Runs graphs by a backend, and says how they fail."""

    def __init__(self, backend: Callable, isolated: bool) -> None:
        self.backend, self.isolated, self.count = backend, isolated, 0

    def failure(self, one: _Graph) -> Failure | None:
        """How a graph fails, if it does."""
        self.count += 1
        return _in_process_of_its_own(one) if self.isolated else self.here(one)

    def here(self, one: _Graph) -> Failure | None:
        check = numerics.Check(one.graph, one.tensors, one.sizes, numerics.Verification(), "graph", self.backend)
        try:
            with torch.no_grad():
                check.prepare()
        except Exception:  # eager itself: such a part of the graph says nothing of the compiler
            return None
        try:
            with torch.random.fork_rng(), config.patch(strict=True):
                return self.differs(check, one)
        except Exception as error:  # of the backend, which is what is looked for
            text = f"{type(error).__name__}: {error}"
            first: BaseException = error
            while first.__cause__ is not None:  # what a backend or a pass raised
                first = first.__cause__
            return Failure(RAISES, type(first).__name__, f"it raises {text.splitlines()[0]}")

    def differs(self, check: numerics.Check, one: _Graph) -> Failure | None:
        with torch.no_grad():
            bad = check.worst(check.outputs) if check.outputs else None
        if bad is not None:
            return Failure(WRONG, "value", _of_error(f"the value of {bad.name} = {expression(bad)}", check.last[bad]))
        if one.gradient is None:
            return None
        check.aim(one.gradient)
        wrong = check.wrong_gradient(tuple(one.gradient.wrt), ())
        if wrong is None:
            return None
        return Failure(WRONG, "gradient", _of_error(f"the gradient of {one.graph.inputs[wrong].name}", check.found))


def _of_error(what: str, measured: tuple[bool, float, float, float]) -> str:
    _, error, eager, allowed = measured
    return f"{what} is less exact than eager's: error {error:.3g}, eager's {eager:.3g}, allowed {allowed:.3g}"


def _in_process_of_its_own(one: _Graph) -> Failure | None:
    """As ``_Trials.here``, by the kernels of jit, in another process: one that ends is a failure too."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_script(one, "a trial", "", whole=True))
        try:
            done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=_SECONDS,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
        except subprocess.TimeoutExpired:
            return Failure(CRASH, "time", f"it takes longer than {_SECONDS} s")
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return Failure(CRASH, f"signal {-done.returncode}", f"the process ends by signal {-done.returncode}")
    lines = done.stderr.strip().splitlines()
    if "Traceback (most recent call last):" in done.stderr and lines:
        return Failure(RAISES, lines[-1].partition(":")[0], f"it raises {lines[-1]}")
    return Failure(WRONG, "result", done.stdout.strip())


# -- cutting


def _cut(trials: _Trials, one: _Graph, failure: Failure, number: int) -> Minimal:
    units = _units(one.graph)
    before = len(units)
    values = _values(one)

    def fails(kept: Collection[int]) -> _Graph | None:
        made = _part(one, values, [n for k in sorted(kept) for n in units[k]])
        return made if made is not None and failure.is_like(trials.failure(made)) else None

    least = fails(range(before))
    if least is None:  # as a whole, with what it writes to its inputs, alone
        least, kept = one, list(range(before))
    else:
        kept, least = _least(list(range(before)), fails, least)
    failure = trials.failure(least) or failure
    nodes = [n for k in kept for n in units[k]]
    places = tuple(dict.fromkeys(tuple((n.loc.user or n.loc)[:3]) for n in nodes if n.loc is not None))
    head = f"graph {number}: {failure}"
    text = (f"{head}\ncut down to {len(kept)} of {counted(before, 'operation')} in {counted(trials.count, 'trial')}:\n"
            + "\n".join(f"  {n.name} = {expression(n)}" for n in nodes if not n.several)
            + "".join(f"\n  from {file}:{line} in {function}" for file, line, function in places))
    return Minimal(str(failure), least.graph.python(), len(kept), before, _failing_script(trials, least, failure, head),
                   trials.count, places, text)


def _least(kept: list[int], fails: Callable[[Collection[int]], _Graph | None],
           least: _Graph) -> tuple[list[int], _Graph]:
    """Delta debugging: without a part, as long as the rest fails; then with smaller parts."""
    size = max(1, len(kept) // 2)
    while True:
        removed = False
        at = 0
        while at < len(kept) and len(kept) > 1:
            rest = kept[:at] + kept[at + size:]
            made = fails(rest) if rest else None
            if made is None:
                at += size
            else:
                kept, least, removed = rest, made, True
        if size == 1 and not removed:
            return kept, least
        size = max(1, min(size, len(kept)) // 2) if size > 1 else 1


def _units(graph: Graph) -> list[list[Node]]:
    """The operations, in order, each with those that only take one of several results of it."""
    units: dict[Node, list[Node]] = {}
    for n in graph.nodes:
        kind = info(n.op).kind
        if kind == "input" or kind in _ALWAYS:
            continue
        if kind == "part":
            units[n.inputs[0]].append(n)
        else:
            units[n] = [n]
    return list(units.values())


def _values(one: _Graph) -> dict[Node, torch.Tensor]:
    """What each operation gives in eager, and the inputs."""
    check = numerics.Check(one.graph, one.tensors, one.sizes, numerics.Verification(), "graph")
    with torch.no_grad(), torch.random.fork_rng():
        check.prepare()
    return {**check.like, **dict(zip(one.graph.inputs, one.tensors))}


def _part(one: _Graph, values: dict[Node, torch.Tensor], nodes: Sequence[Node]) -> _Graph | None:
    """The graph of these operations; None where it has no result, or reads what is no tensor."""
    kept = set(nodes)
    read = dict.fromkeys(i for n in nodes for i in n.inputs if i not in kept)
    inputs = [n for n in read if info(n.op).kind not in _ALWAYS]
    returned = {o.node for o in one.graph.outputs}
    used = {i for n in nodes for i in n.inputs}
    results = [n for n in nodes if not n.several and (n in returned or n not in used)]
    if not results or any(n not in values for n in inputs):
        return None
    gradient = None
    if one.gradient is not None:
        carry = _carrying(one)
        wrt = [k for k, n in enumerate(inputs) if n in carry]
        behind = {n for n in results if carry & ancestors([n], frozenset(inputs)) & set(inputs)}
        tangents = [k for k, n in enumerate(results) if n in carry and n in behind]
        gradient = Gradient(tuple(wrt), tuple(tangents)) if wrt and tangents else None
    graph = Part(one.graph, inputs, results).run()
    return _Graph(graph, [numerics.twin(values[n]) for n in inputs], one.sizes, gradient)


def _carrying(one: _Graph) -> set[Node]:
    """The values through which gradients go."""
    assert one.gradient is not None
    found = {one.graph.inputs[k] for k in one.gradient.wrt}
    for n in one.graph.nodes:
        if n.op != "detach" and not found.isdisjoint(n.inputs) and (
                n.several or n.type.dtype.is_floating_point or n.type.dtype.is_complex):
            found.add(n)
    return found


# -- scripts


def _failing_script(trials: _Trials, one: _Graph, failure: Failure, head: str) -> str:
    """A script that fails: on random inputs if these do, else on the very ones."""
    made = [i.make(torch.Generator().manual_seed(0)) for i in map(input_of, one.tensors)]
    random = dataclasses.replace(one, tensors=[t.detach() for t in made])
    if trials.backend is not backends.compile_native:
        head += ("\n\nIt fails with the backend or the passes that jit.minify was given. This file runs jit's own "
                 "kernels without them: what it shows is the graph.")
    return _script(one, "the least graph that fails", head, whole=not failure.is_like(trials.failure(random)),
                   kernels=_kernels(trials, one))


def _kernels(trials: _Trials, one: _Graph) -> list[tuple[str, str]]:
    try:
        plan = trials.backend(one.graph.copy(), list(one.tensors), one.gradient) if not trials.isolated else None
    except Exception:  # which may be how it fails
        return []
    return list(getattr(plan, "kernels", ()))


def _script(one: _Graph, title: str, note: str, whole: bool, kernels: Sequence[tuple[str, str]] = ()) -> str:
    wrt = () if one.gradient is None else one.gradient.wrt
    inputs = [dataclasses.replace(input_of(t, whole), requires_grad=k in wrt) for k, t in enumerate(one.tensors)]
    return Rerun(title, one.graph, inputs, one.sizes, one.gradient, kernels, config.changed(), note).text()
