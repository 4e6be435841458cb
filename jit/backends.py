"""What runs a captured graph: our code generator, the graph op by op on eager tensors, or a function of the user's."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable

from . import logs
from .errors import NeedsEager
from .runtime import native

ALIGNMENT = 16  # bytes; what CUDA kernels rely on, see ``frame.tensor_guards``
_graph_log, _kernels_log = logs.channel("graph"), logs.channel("kernels")


@dataclasses.dataclass(eq=False)
class Plan:
    """A compiled graph as the rewritten bytecode calls it.

    Attributes:
        native: callable on the graph's input tensors and then the integers of ``int_symbols``; gives a tuple of tensors.
        int_symbols: names of the size symbols that are passed as integers.
        kernels: (name, source text) of each kernel.
    """

    native: Callable
    int_symbols: tuple = ()
    kernels: list = dataclasses.field(default_factory=list)
    graph: object = None

    def bind(self, tensors: dict) -> Plan:
        """The plan with some inputs given for good."""
        if not isinstance(self.native, native().Plan):
            return dataclasses.replace(self, native=_bound(self.native, tensors))
        return dataclasses.replace(self, native=native().bind(self.native, tensors))


def _bound(fn, tensors):
    """A Python callable with the inputs at the given positions filled in."""

    def call(*rest):
        rest = iter(rest)
        merged, at = [], 0
        for at in range(max(tensors) + 1):
            merged.append(tensors[at] if at in tensors else next(rest))
        return fn(*merged, *rest)

    return call


def _schedule(graph, unaligned=frozenset()):
    """-> CompiledGraph of an optimised graph; logs it."""
    from .codegen import Options, compile_graph
    from .graph.passes.contractions import rewrite_contractions

    with logs.timed("passes"):
        graph = rewrite_contractions(graph)
    if _graph_log:
        _graph_log(graph.python())
    compiled = compile_graph(graph, Options(unaligned=unaligned))
    if _kernels_log:
        for name, text in compiled.kernels:
            _kernels_log(f"{name}\n{text}")
    return compiled


def compile_native(graph, examples, gradient=None) -> Plan:
    """Optimise, differentiate where ``gradient`` asks for it, schedule, generate and load kernels."""
    from .graph.passes import optimize

    unaligned = frozenset(i for i, t in enumerate(examples) if t.is_cuda and t.data_ptr() % ALIGNMENT)
    with logs.timed("passes"):
        graph = optimize(graph)
    if gradient is not None:
        raise NeedsEager("gradients are needed", "call it under torch.no_grad(), or use backend='eager'", kind="gradient")
    compiled = _schedule(graph, unaligned)
    return Plan(compiled.call, tuple(compiled.int_symbols), list(compiled.kernels), graph)


def without_autocast(fn) -> Callable:
    """``fn`` with autocast off: a captured graph has its casts in it."""
    import torch

    @functools.wraps(fn)
    def call(*args):
        with torch._C._DisableAutocast():
            return fn(*args)

    return call


def compile_eager(graph, examples, gradient=None) -> Plan:
    """Run the captured graph op by op on eager tensors: tells capture faults from kernel faults. Autograd differentiates it."""
    import torch

    from .graph.interpret import compile_python
    from .graph.printing import unbound_symbols

    if _graph_log:
        _graph_log(graph.python())
    mode = torch.no_grad() if gradient is None else torch.enable_grad()
    return Plan(without_autocast(mode(compile_python(graph))), tuple(unbound_symbols(graph)), [], graph)


def from_callable(fn) -> Callable:
    """A backend given by the user: ``fn(graph, example_inputs)`` returns a callable on tensors."""

    def backend(graph, examples, gradient=None) -> Plan:
        if _graph_log:
            _graph_log(graph.python())
        run = fn(graph, examples)
        if not callable(run):
            raise TypeError(f"the backend {fn!r} returned {type(run).__name__}; it has to return a callable")

        def call(*tensors):
            out = run(*tensors)
            return tuple(out) if isinstance(out, (list, tuple)) else (out,)

        return Plan(without_autocast(call), (), [], graph)

    return backend


BACKENDS = {"jit": compile_native, "eager": compile_eager}
