"""From a captured graph to loaded kernels: optimised, for training divided into a forward and a backward, scheduled.

Loading this module loads the code generator, autodiff and the tables of operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from . import config, failures, in_parts, logs, meanwhile, progress, shown, torch_private
from .codegen import Options, begin_graph
from .codegen.layout import channels_last
from .codegen.registers import Registers
from .collecting import uncollected
from .errors import Unsupported
from .graph.autodiff.partition import Halves, partition
from .graph.autodiff.freed import kept_by_eager, kept_for_others, uses
from .graph.autodiff.narrow import narrowed
from .graph.handles import may_overlap_itself
from .graph.interpret import view_function
from .graph.ir import Graph
from .graph.passes import SCHEDULED, STANDARD, optimize, run_passes
from .graph.passes.attention import fuse_attention
from .graph.passes.few_queries import attend_few_queries
from .graph.passes.convolutions import separate_bias
from .graph.passes.gradients import without_gates
from .graph.passes.seeds import merge_seeds
from .graph.prims import VIEWS, base_of
from .graph.printing import symbol_origins
from .graph.retarget import on_device
from .graph import rounds
from .graph.writing import PackedGraph  # by the module, graphs have names
from .narrowing import narrow_of
from .plans import Plan, one_of_several, recorded
from .runtime import names
from .runtime import rounds as round_names
from .runtime.plan import GradSpec, load_differentiable
from .runtime.plan import Plan as PlanRecord

if TYPE_CHECKING:
    from .codegen.planner import CompiledGraph
    from .graph.autodiff.reverse import Joint
    from .graph.recording import Gradient

_graph_log, _kernels_log = logs.channel("graph"), logs.channel("kernels")


def schedule(graph: Graph, unaligned: frozenset[int] = frozenset(), symbols: Iterable[str] = (),
             graphs: str | None = None, owns_inputs: bool = False) -> CompiledGraph:
    """-> CompiledGraph of an optimised graph; logs it. For ``symbols``, ``graphs`` (None: as ``config`` has it) and
    ``owns_inputs`` see ``Options``."""
    return begin(graph, unaligned, symbols, graphs, owns_inputs)()


def begin(graph: Graph, unaligned: frozenset[int] = frozenset(), symbols: Iterable[str] = (),
          graphs: str | None = None, owns_inputs: bool = False,
          registers: Registers | None = None, backward: bool = False) -> Callable[[], CompiledGraph]:
    """Begin with ``schedule``: what is returned waits for the kernels, and gives the result. For ``registers`` and
    ``backward`` see ``Options``."""
    for name in rounds.names_in(graph):
        every = frozenset(range(len(name.graph.inputs)))  # nothing is known of where what is carried begins
        made = compile_plain(name.graph, every, False, "never")
        round_names.compiled(name, made.native, made.int_symbols)
    with logs.timed("passes"):
        graph = run_passes(graph, SCHEDULED)
    if _graph_log:
        _graph_log(graph.python())
    with torch_private.WithoutTorchFunction():  # the program's default device is none of the compiler's own tensors'
        begun = begin_graph(graph, Options(unaligned=unaligned, symbols=tuple(symbols),
                                           graphs=_recorded() if graphs is None else graphs,
                                           owns_inputs=owns_inputs, backward=backward, registers=registers))

    def finish() -> CompiledGraph:
        with torch_private.WithoutTorchFunction():
            compiled = begun()
        if _kernels_log:
            for name, text in compiled.kernels:
                _kernels_log(f"{name}\n{text}")
        return compiled

    return finish


def telling_of(graph: Graph) -> progress.compiling:
    """The context in which a graph of gradients is compiled, after the capture."""
    file, line, function = graph.place() or ("", 0, "a compiled function")
    return progress.compiling(f"gradients of {function}", file, line)


def _recorded() -> str:
    """Which plans are recorded into CUDA graphs: see ``runtime.plan.Plan``."""
    return "always" if config.cudagraphs else "waiting" if config.auto_cudagraphs else "never"


def compile_plain(graph: Graph, unaligned: frozenset, hidden: bool, graphs: str | None = None) -> Plan:
    """A plan without gradients; for ``hidden`` see ``_with_library_views``, for ``graphs`` ``schedule``."""
    graph = merge_seeds(graph)
    repeat = in_parts.repeat_of(graph)
    if repeat is not None:
        compiled = in_parts.without_gradients(graph, repeat, unaligned, _recorded() if graphs is None else graphs,
                                              begin, _without_gradients)
    else:
        graph = _without_gradients(graph)
        compiled = schedule(graph, unaligned, graphs=graphs)
    compiled = named(compiled, "graph", graph)
    makers = _view_makers(graph, _read_by_library(graph))
    call = _with_library_views(compiled.call, makers, len(graph.inputs), compiled.int_symbols, hidden)
    return Plan(call, tuple(compiled.int_symbols), list(compiled.kernels), graph, launches=len(compiled.launches),
                described=(compiled.described,))


def _without_gradients(graph: Graph) -> Graph:
    """The graph after the passes for one without gradients."""
    with logs.timed("passes"):
        return run_passes(graph, (separate_bias, *STANDARD, fuse_attention, attend_few_queries))


def named(compiled: CompiledGraph, what: str, graph: Graph) -> CompiledGraph:
    """``compiled`` with a name for its plan, which is ``what`` for ``graph``."""
    name, described = shown.plan(what, graph.place()), compiled.described
    return dataclasses.replace(compiled, plan=dataclasses.replace(compiled.plan, name=name),
                               described=described and dataclasses.replace(described, name=name))


def for_device(graph: Graph, device: torch.device) -> CompiledGraph:
    """What a captured graph, without its gradients, would be compiled to for a device, which need not be there."""
    return schedule(_without_gradients(merge_seeds(on_device(graph, device))), graphs="never")


def compile_joint(joint: Joint, graph: Graph, unaligned: frozenset[int], gradient: Gradient, second: Callable) -> Plan:
    """A forward and a backward plan for the ``joint`` graph of ``graph``; ``second`` makes ``GradSpec.second``, see
    ``second.SecondDerivatives.of``."""
    with logs.timed("autodiff"):
        joint.graph = channels_last(joint.graph)
        halves, read = _divided(joint, gradient)
    keeps = meanwhile.soon(kept_by_eager, graph, gradient.wrt, gradient.tangents)
    saved_unaligned = frozenset(k for k, (kind, i) in enumerate(halves.saved) if kind == "input" and i in unaligned)
    types = tuple(n.type for n in halves.backward.inputs[: len(halves.saved)])
    origins = symbol_origins(halves.forward)
    begun = begin(without_gates(halves.backward), saved_unaligned, owns_inputs=True, backward=True)
    if halves.forward.env.symbols:  # the forward is told which the backward needs
        backward = begun()
        forward = schedule(halves.forward, unaligned, [name for name in backward.int_symbols if name not in origins])
    else:  # the kernels of both are compiled at the same time
        other = begin(halves.forward, unaligned)
        backward, forward = begun(), other()
    narrow = (None if read is None else
              narrow_of(PackedGraph(halves.backward),
                        narrower(len(halves.saved), tuple(backward.int_symbols), saved_unaligned, _recorded())))
    return _differentiable(graph, forward, backward, gradient, unaligned, dict(
        saved=halves.saved, keeps=keeps(), grads=halves.grads, uses=read, narrow=narrow,
        symbols=tuple(("int", forward.int_symbols.index(name)) if name in forward.int_symbols
                      else origins[name] for name in backward.int_symbols),
        second=second(halves, types, gradient, forward.int_symbols, unaligned, saved_unaligned),
        depends=tuple(() if k is None else ways for k, ways in zip(halves.grads, halves.depends, strict=True))),
        halves.backward)


def compile_joint_in_parts(graph: Graph, unaligned: frozenset[int], gradient: Gradient,
                           second: Callable) -> Plan | None:
    """As ``compile_joint``, for a graph of which a part is repeated, and which can be compiled in parts."""
    graph = merge_seeds(graph)
    repeat = in_parts.repeat_of(graph)
    if repeat is None:
        return None
    keeps = meanwhile.soon(kept_by_eager, graph, gradient.wrt, gradient.tangents)
    made = in_parts.with_gradients(graph, repeat, unaligned, gradient, _recorded(), begin)
    if made is None:
        return None
    saved = made.saves.saved
    saved_unaligned = frozenset(k for k, (kind, i) in enumerate(saved) if kind == "input" and i in unaligned)
    narrow = None if made.uses is None else narrow_of(made.later(), narrower_in_parts(_recorded()))
    return _differentiable(graph, made.forward, made.backward, gradient, unaligned, dict(
        saved=saved, keeps=keeps(), grads=made.grads, depends=made.depends, uses=made.uses, narrow=narrow,
        second=second(made.saves, made.types, gradient, (), unaligned, saved_unaligned)))


def _differentiable(graph: Graph, forward: CompiledGraph, backward: CompiledGraph, gradient: Gradient,
                    unaligned: frozenset[int], facts: dict[str, Any], gradients: Graph | None = None) -> Plan:
    """The two plans as one function. ``facts``: what else ``GradSpec`` says; ``gradients``: the graph of the
    backward."""
    forward, backward = named(forward, "forward", graph), named(backward, "backward", graph)
    n_outputs = sum(o.mutates is None for o in graph.outputs)
    saved = frozenset(facts["saved"])
    strided, others = _views(forward.plan, graph, n_outputs, gradient.views)
    spec = GradSpec(
        n_outputs=n_outputs,
        wrt=gradient.wrt,
        tangents=gradient.tangents,
        views=strided,
        several=tuple(k for k, *_ in strided if k in gradient.several),
        watched=tuple((*place, int(place[0] == "input" and place[1] in gradient.changed), *way)
                      for place, *way in gradient.watched if place not in saved),
        **facts,
    )
    call = load_differentiable(forward.plan, backward.plan, spec)
    if others:
        makers = _view_makers(graph, others)
        if any(not set(symbols) <= set(forward.int_symbols) for *_, symbols in makers):
            raise Unsupported("a result that needs a gradient is a view whose sizes are known only at run time",
                              "return a copy", kind="gradient")
        makers = [(k, base, one_of_several(function) if k in gradient.several else function, symbols)
                  for k, base, function, symbols in makers]
        call = _with_library_views(call, makers, len(graph.inputs), forward.int_symbols)
    silent = _view_makers(graph, [k for k in _read_by_library(graph) if k not in gradient.views])
    call = _with_library_views(call, silent, len(graph.inputs), forward.int_symbols, hidden=True)
    if not torch.is_grad_enabled():  # the program switches it on by itself
        call = recorded(call, True)
    return Plan(call, tuple(forward.int_symbols), [*forward.kernels, *backward.kernels],
                graph, gradients, len(forward.launches) + len(backward.launches),
                (forward.described, backward.described))


def _divided(joint: Joint, gradient: Gradient) -> tuple[Halves, tuple | None]:
    """The two halves, and of several results which of them read what is saved. What the caller has is saved itself only
    where autograd keeps it for these results too: elsewhere he may write to it, and the backward reads a copy."""
    changed, loose = (*gradient.changed, *gradient.fragile), gradient.loose
    while True:
        halves = partition(joint, changed, loose)
        if len(gradient.tangents) < 2:
            return halves, None
        read = uses(halves.backward, len(halves.saved))
        more = kept_for_others(halves.saved, read, gradient.watched, gradient.unsaid)
        if not more:
            return halves, read
        changed += tuple(k for kind, k in more if kind == "input")
        loose += tuple(k for kind, k in more if kind == "output")


def _views(plan: PlanRecord, graph: Graph, n_outputs: int, differentiable: Iterable[int]) -> tuple:
    """``GradSpec.views`` of a forward plan, for its results at the positions ``differentiable``, which are views of
    inputs or of other results; and the positions of those that the library makes: they are of another dtype, or strided
    freely, or views of memory in which elements share a place, such as an expanded input, or of what a library call
    showed of an input. There the gradient depends on which view operator was used, and not on the strides alone."""
    made: dict[int, Any] = {slot: step for step in plan.compute if step.part_of is not None for slot in step.makes}
    results = plan.outputs[:n_outputs]
    position = {o.node: k for k, o in reversed(list(enumerate(graph.outputs[:n_outputs])))}
    strided, others = [], []
    for k in differentiable:
        root = base_of(graph.outputs[k].node)
        view = made.get(results[k])
        # The slot of the memory may be that of another view of it: what has the gradient is the result that is the
        # memory itself.
        base = view.source if view is not None and view.source < plan.n_inputs else position.get(root)
        if view is None or base is None or may_overlap_itself(root.type):
            others.append(k)
            continue
        strided.append((k, "input" if view.source < plan.n_inputs else "output", base,
                        (view.sizes, view.strides, view.offset)))
    return tuple(strided), tuple(others)


def _read_by_library(graph: Graph) -> list:
    """The positions of results that are views of inputs or of other results as another dtype, or strided freely over an
    input. A library call of the plan makes these, and such a tensor would not share its version counter with what it
    shows."""
    returned = [o.node for o in graph.outputs if o.mutates is None]
    found = []
    for k, node in enumerate(returned):
        root, ops = base_of(node), set()
        while node.op in VIEWS:
            ops.add(node.op)
            node = node.inputs[0]
        if ("reinterpret" in ops and (root.op == "input" or root in returned)
            or "as_strided" in ops and root.op == "input"):
            found.append(k)
    return found


def _view_makers(graph: Graph, positions: Iterable[int]) -> list:
    """(position, base, function, names of the symbols that it takes) for results that are views; see
    ``view_function``."""
    return [(k, *view_function(graph, k)) for k in positions]


def _with_library_views(call: Callable, makers: Iterable[tuple], n_inputs: int, int_symbols: Sequence[str],
                        hidden: bool = False) -> Callable:
    """``call`` with some results made anew by PyTorch's own view operators, so that autograd knows them as views of
    their bases. ``hidden``: nothing of that is recorded. Those whose sizes are known only at run time are left."""
    makers = [m for m in makers if set(m[3]) <= set(int_symbols)]
    if not makers:
        return call
    return with_library_views(call, tuple((k, base, recorded(function, False) if hidden else function,
                                           tuple(int_symbols.index(name) for name in symbols))
                                          for k, base, function, symbols in makers), n_inputs)


def with_library_views(call: Callable, makers: tuple[tuple, ...], n_inputs: int) -> Callable:
    """As above, for (position, base, function, positions of its integers) each."""

    def with_views(*args: Any) -> tuple[torch.Tensor, ...]:
        results = list(call(*args))
        tensors, sizes = args[:n_inputs], args[n_inputs:]
        for k, base, function, places in makers:
            more = () if base is None else (results[base],)
            (results[k],) = function(*tensors, *more, *[sizes[p] for p in places])
        return tuple(results)

    return names.made(with_views, with_library_views, call, makers, n_inputs)


def narrower(first: int, int_symbols: tuple[str, ...], unaligned: frozenset[int], graphs: str) -> Callable:
    """``narrowing.narrow_of``'s ``compile`` for a packed backward, whose tangents are its inputs from ``first`` on.
    A later process loads this file when it calls it."""

    def compile(packed: PackedGraph, given: Sequence[bool]) -> Callable | None:
        backward = packed()
        absent = [first + k for k, there in enumerate(given) if not there]
        gated = any(n.op == "gate" for n in backward.nodes)  # a backward of the user's own may give some for zeros
        compiled = _if_possible(lambda: narrowed_backward(backward, absent, unaligned, graphs), backward, gated)
        # One that needs fewer sizes would be called with too many: the whole backward serves.
        if compiled is not None and tuple(compiled.int_symbols) != int_symbols:
            if gated:
                raise NotImplementedError("jit: a backward of torch.autograd.Function with symbolic sizes, for some of "
                                          "the results")
            return None
        return None if compiled is None else compiled.call

    return names.made_later(compile, narrower, first, int_symbols, unaligned, graphs)


def narrower_in_parts(graphs: str) -> Callable:
    """Likewise for a backward in parts (``in_parts.Course``)."""

    def compile(source: Callable[[], in_parts.Course], given: Sequence[bool]) -> Callable | None:
        course = source()
        compiled = _if_possible(lambda: in_parts.narrowed_backward(course, given, graphs, begin), course.graphs[-1](),
                                False)
        return None if compiled is None else compiled.call

    return names.made_later(compile, narrower_in_parts, graphs)


def _if_possible(compiled: Callable[[], CompiledGraph | None], backward: Graph, gated: bool) -> CompiledGraph | None:
    """A backward for some results; None where that for all of them serves. ``gated``: it does not."""
    try:
        with telling_of(backward), logs.timed("a backward for some results"), uncollected():
            return compiled()
    except Unsupported:
        if gated:
            raise
    except Exception as e:  # a rule of ours has failed, which is told
        if gated:
            raise
        failures.report(e, backward.place(), "the backward for all results is used, with zeros")
    return None


def narrowed_backward(backward: Graph, absent: Sequence[int], unaligned: frozenset[int], graphs: str) -> CompiledGraph:
    """A backward for the case that the tangents at the input positions ``absent`` are not given. Raises Unsupported."""
    return begin(optimize(without_gates(narrowed(backward, absent))), unaligned, graphs=graphs, owns_inputs=True,
                 backward=True)()


