"""A captured graph as a script of its own, which runs it with its kernels on random inputs of the same types, and
compares them with eager. It is readable: the graph is Python on eager tensors, and the kernels' texts can be edited."""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import pickle
import textwrap
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.utils.benchmark

from .. import config, numerics
from ..codegen import replaced
from ..graph import foreign, writing
from ..graph.dims import hint
from ..graph.nested import of_kind
from ..graph.printing import unbound_symbols
from ..graph.recording import Gradient
from ..runtime.user_kernels import SpecName
from ..spelling import counted
from ..versions import JIT
from .gather import versions
from .inputs import Input

if TYPE_CHECKING:
    from ..graph.ir import Graph

_WIDTH = 110  # of the lines of text that stand for a graph


@dataclasses.dataclass(frozen=True)
class Rerun:
    """What a script has in it.

    Attributes:
        title: of the script: what the graph is of, and where.
        graph: as it was captured.
        inputs: what its tensors are like.
        integers: name of a size symbol that no tensor shows -> its value.
        gradient: what it is differentiated for, if it is.
        kernels: (name, source text) of each kernel.
        options: those of ``jit.config`` that were not at their defaults.
        note: what else is to be said, such as what is wrong with it.
    """

    title: str
    graph: Graph
    inputs: Sequence[Input]
    integers: Mapping[str, int]
    gradient: Gradient | None
    kernels: Sequence[tuple[str, str]] = ()
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    note: str = ""

    def text(self) -> str:
        """The script."""
        imports, _, body = self.graph.python().partition("\n\n")
        own = only_there(self.graph)
        notes = [self.note, f"It runs kernels of the program's own ({own}), which this file does not have: it is to be "
                            "read, and does not run." if own else ""]
        said = "".join(f"\n\n{note}" for note in notes if note)
        kernels = "".join(f"    # {name}\n    {replaced.digest(text)!r}: {_quoted(text)},\n"
                          for name, text in {t: (n, t) for n, t in self.kernels}.values())
        inputs = "\n".join(f"    {i.text()}," for i in self.inputs)
        return f'''"""{self.title}{said}

    python FILE              run it by its kernels and in eager, on random inputs, and compare
    python FILE --time       and time both
    python FILE --recapture  compile the Python below instead of the very graph that was captured

Kernels can be edited in KERNELS: what stands there is what runs, but with --recapture.
Made with {made_with()}.
"""

{imports}
{_registrations(self.graph)}
import jit
from jit.report.rerun import Gradient, Input, main

{body.strip()}


INPUTS = [
{inputs}
]
INTEGERS = {dict(self.integers)!r}
GRADIENT = {_gradient(self.gradient)}
OPTIONS = {dict(self.options)!r}
KERNELS = {{
{kernels}}}
GRAPH = {_packed(self.graph)}

if __name__ == "__main__":
    raise SystemExit(main(jit, graph, GRAPH, INPUTS, INTEGERS, GRADIENT, OPTIONS, KERNELS))
'''


def made_with() -> str:
    """The versions that a script is made with."""
    return f"jit {JIT}, {versions()}"


def only_there(graph: Graph) -> str:
    """What in a graph only its own process has: kernels of the program's, by their names; "" where there is nothing."""
    return ", ".join(sorted(set(of_kind(SpecName, [n.attrs for n in graph.nodes]))))


def _registrations(graph: Graph) -> str:
    """What has to be imported by hand: what registers operators that do not come with PyTorch."""
    called = {n.attrs["target"] for n in graph.nodes if n.op == "aten_call"}
    others = ", ".join(sorted(name for name in called if foreign.is_foreign(name)))
    return f"\n# It calls {others}: import here what registers that.\n" if others else ""


def _gradient(gradient: Gradient | None) -> str:
    if gradient is None:
        return "None"
    words = [f"{f.name}={value!r}" for f in dataclasses.fields(gradient)
             if (value := getattr(gradient, f.name)) != f.default]
    return f"Gradient({', '.join(words)})"


def _quoted(text: str) -> str:
    fits = "'''" not in text and "\\" not in text and not text.endswith("'")
    return f"'''\\\n{text}'''" if fits else repr(text)


def _packed(graph: Graph) -> str:
    """The graph as a Python expression; "None" where it has something in it that only this process has."""
    if only_there(graph):
        return "None"
    try:
        data = writing.written(graph)
    except (TypeError, AttributeError, pickle.PicklingError):
        return "None"
    lines = textwrap.wrap(base64.b85encode(zlib.compress(data, 9)).decode(), _WIDTH, break_on_hyphens=False)
    return "(\n" + "\n".join(f"    {line!r}" for line in lines) + "\n)"


def main(jit: types.ModuleType, function: Callable, packed: str | None, inputs: Sequence[Input],
         integers: Mapping[str, int], gradient: Gradient | None, options: Mapping[str, object],
         kernels: Mapping[str, str],
         arguments: Sequence[str] | None = None) -> int:
    """What a script does; ``jit``: the package. -> 0: as exact as eager; 1: not. What a compilation raises is
    raised."""
    parser = argparse.ArgumentParser(description="Run a captured graph by its kernels and in eager, and compare.")
    parser.add_argument("--time", action="store_true", help="time both")
    parser.add_argument("--recapture", action="store_true", help="compile the Python of this script")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    given = parser.parse_args(arguments)
    generator = torch.Generator().manual_seed(given.seed)
    tensors = [i.make(generator) for i in inputs]
    with contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(strict=True, entry_cache=False, **options))
        if given.recapture or packed is None:
            if packed is None:
                print("the graph has something in it that only its process had: its Python is compiled")
            return _recaptured(jit, function, tensors, integers, given.time)
        texts = stack.enter_context(replaced.replacing(kernels))
        report = numerics.Verification()
        graph = writing.read(zlib.decompress(base64.b85decode(packed)))
        wanted = torch.enable_grad() if gradient is not None else torch.no_grad()
        with wanted:
            plan = numerics.watching(report, gradient is not None)(graph, tensors, gradient)
            plan.native(*[numerics.twin(t).requires_grad_(t.requires_grad) for t in tensors],
                        *[integers[name] for name in plan.int_symbols])
        print(report)
        print(_of_kernels(texts, [text for _, text in plan.kernels]))
        if given.time:
            run = plan.native
            _time(lambda: function(*tensors, *integers.values()),
                  lambda: run(*tensors, *[integers[name] for name in plan.int_symbols]))
    return int(not report.ok)


def _of_kernels(texts: replaced.Texts, used: Sequence[str]) -> str:
    """Which kernels were those of the script."""
    edited = [name for name, text in texts.texts.items() if name in texts.met and texts.met[name] != text]
    unmet = [name for name in texts.texts if name not in texts.met]
    said = [counted(len(used), "kernel")]
    if edited:
        said.append(f"edited: {', '.join(edited)}")
    if unmet:
        said.append(f"of this file {len(unmet)} are not used: another version of jit, or another machine, writes "
                    "others")
    return "; ".join(said)


def _recaptured(jit: types.ModuleType, function: Callable, tensors: Sequence[torch.Tensor],
                integers: Mapping[str, int], time: bool) -> int:
    report = jit.verify(function)(*[numerics.twin(t).requires_grad_(t.requires_grad) for t in tensors],
                                  *integers.values())
    print(report)
    if time:
        compiled = jit.compile(function)
        compiled(*tensors, *integers.values())
        _time(lambda: function(*tensors, *integers.values()), lambda: compiled(*tensors, *integers.values()))
    return int(not report.ok)


def _time(eager: Callable[[], Any], compiled: Callable[[], Any]) -> None:
    """Print what a run takes, operation by operation in eager, and by its kernels."""
    threads = torch.get_num_threads()
    first, second = (torch.utils.benchmark.Timer("run()", globals={"run": run}, num_threads=threads)
                     .blocked_autorange(min_run_time=0.5).median for run in (eager, compiled))
    print(f"operation by operation {first * 1e6:.1f} us, by its kernels {second * 1e6:.1f} us: "
          f"{first / second:.2f} times as fast")


def symbols_of(graph: Graph) -> dict[str, int]:
    """The size symbols that no input of a graph shows, with the values that they had."""
    return {name: hint(graph.env.symbols[name]) for name in unbound_symbols(graph)}
