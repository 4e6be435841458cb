"""What runs a captured graph: our code generator, the graph op by op on eager tensors, or a function of the user's."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from . import config, devices, logs, progress, telling
from .errors import BackendError
from .graph.interpret import compile_python
from .graph.passes.gradients import with_copies
from .graph.printing import unbound_symbols
from .plans import Plan, passing_on_late_errors, recorded, without_autocast
from .runtime import happened

if TYPE_CHECKING:
    from .graph.ir import Graph, Node
    from .graph.recording import Gradient

_graph_log = logs.channel("graph")


def load() -> None:
    """Load now what compiling would load when it comes to it: imports keep the interpreter's lock, and so other
    threads, for long."""
    from . import compiling, second  # noqa: F401  late, as in ``compile_native``
    from .graph import binding

    for kind in devices.registered():
        if kind.emitter is not None and (kind.host or kind.generators() is not None):
            importlib.import_module(kind.emitter)
    binding.resolve(torch.relu)  # the table of all operators is made
    torch.nn.functional.gelu(torch.empty(1, device="meta"))  # with it PyTorch loads what its own type rules need


def _loading(module: str) -> contextlib.AbstractContextManager:
    """Around an import that takes a while the first time: told as a stage of its own."""
    return contextlib.nullcontext() if module in sys.modules else logs.timed("loading the compiler")


def compile_native(graph: Graph, examples: Sequence[torch.Tensor], gradient: Gradient | None = None) -> Plan:
    """Optimise, differentiate where ``gradient`` asks for it, schedule, generate and load kernels."""
    with _loading("jit.second"):
        # Late: the code generator, autodiff and the operators take as long to load as all the rest.
        from . import compiling, second

    unaligned = frozenset(i for i, t in enumerate(examples)
                          if (wanted := devices.backend(t.device).pointer_alignment) and t.data_ptr() % wanted)
    if gradient is not None:
        return second.compile_differentiable(graph, unaligned, gradient)
    return compiling.compile_plain(graph, unaligned, any(t.requires_grad for t in examples))


def _expects(device: torch.device) -> None:
    """Kernels for a device will be asked for soon: what takes a while to start is started."""
    emitter = devices.backend(device).emitter
    if emitter is not None:
        with _loading(emitter):
            module = importlib.import_module(emitter)
        getattr(module, "expects_kernels", lambda: None)()


compile_native.expects = _expects  # type: ignore[attr-defined]  # captures ask a backend for it


def compile_eager(graph: Graph, examples: Sequence[torch.Tensor], gradient: Gradient | None = None) -> Plan:
    """Run the captured graph op by op on eager tensors: tells capture faults from kernel faults. Autograd
    differentiates it."""
    if gradient is not None and gradient.changed:
        graph = with_copies(graph, gradient.changed)
    if _graph_log:
        _graph_log(graph.python())
    run = passing_on_late_errors(recorded(compile_python(graph), gradient is not None), graph)
    return Plan(without_autocast(run), tuple(unbound_symbols(graph)), [], graph)


def _called(fn: Any) -> str:
    """A backend of the user's in messages: its name and the line where it begins."""
    code = getattr(fn, "__code__", None) or getattr(getattr(type(fn), "__call__", None), "__code__", None)
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"the backend {name!r}" + (f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else "")


def _checked(out: object, wanted: Sequence[Node]) -> tuple[torch.Tensor, ...]:
    """The results of a backend's function. Raises TypeError where they are not those of the graph."""
    results = tuple(out) if isinstance(out, (list, tuple)) else (out,)
    if len(results) != len(wanted):
        raise TypeError(f"{len(results)} result{'s'[:len(results) != 1]} came from it, and the graph has {len(wanted)}")
    for k, (t, node) in enumerate(zip(results, wanted)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"result {k} is of type {type(t).__name__}, and in the graph a tensor")
        if t.dtype != node.type.dtype or t.dim() != len(node.type.shape):
            raise TypeError(f"result {k} is {t.dtype} with {t.dim()} dimensions, and in the graph {node.type.dtype} "
                            f"with {len(node.type.shape)}")
        for d, (size, have) in enumerate(zip(node.type.shape, t.shape)):
            if isinstance(size, int) and size != have:
                raise TypeError(f"the size of dimension {d} of result {k} is {have}, and in the graph {size}")
    return results


def from_callable(fn: Callable) -> Callable:
    """A backend given by the user: ``fn(graph, example_inputs)`` returns a callable on tensors, and on the integers
    that stand for size symbols which no tensor shows. Where gradients are wanted it has to record them."""

    def backend(graph: Graph, examples: Sequence[torch.Tensor], gradient: Gradient | None = None) -> Plan:
        if gradient is not None and gradient.changed:
            graph = with_copies(graph, gradient.changed)
        if _graph_log:
            _graph_log(graph.python())
        progress.start()  # it tells nothing by itself
        try:
            run = fn(graph, examples)
        except Exception as error:  # whatever the user's own code raises
            raise BackendError(f"{_called(fn)} raised {telling.raised(error)}") from error
        if not callable(run):
            raise BackendError(f"{_called(fn)} returned {type(run).__name__}; it has to return a function of the "
                               "graph's tensors that gives a list of its results")
        wanted = [o.node for o in graph.outputs if o.mutates is None]
        told: list[str] = []

        def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            try:
                return _checked(run(*tensors), wanted)
            except Exception as error:  # as above; the call runs in eager then, where this may not be raised
                wrong = BackendError(f"the function that {_called(fn)} returned failed with {telling.raised(error)}")
                if config.strict:
                    happened.pass_on(wrong)
                    raise wrong from error
                if not told:
                    told.append(str(wrong))
                    telling.warn(f"jit: {wrong}; such calls run in eager. JIT_STRICT=1 raises "
                                 "instead.")
                raise

        late = passing_on_late_errors(recorded(call, gradient is not None), graph)
        return Plan(without_autocast(late), tuple(unbound_symbols(graph)), [], graph)

    return backend


BACKENDS = {"jit": compile_native, "eager": compile_eager}
