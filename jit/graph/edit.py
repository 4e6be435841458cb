"""A graph under change: what a pass of the user's is given. Operations are added by calling functions of PyTorch on
nodes, and nodes are replaced by others."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit import telling, torch_private
from jit.errors import JitError, PassError
from jit.graph.build import Builder
from jit.graph.gradient_paths import carrying
from jit.graph.handles import TensorHandle
from jit.graph.ir import Graph, Node, Output, same_ints
from jit.graph.nested import frozen, of_kind, replaced
from jit.graph.passes.dce import eliminate_dead_nodes, mark_checked, unmarked
from jit.graph.passes.rewrite import protected_nodes
from jit.graph.prims import VIEWS
from jit.graph.proxy import Proxy, call, unwrap
from jit.graph.tracer import Tracer
from jit.graph.verify import InvalidGraph, verify

if TYPE_CHECKING:
    from jit.graph.ir import Loc
    from jit.graph.shape_env import ShapeEnv


class FunctionTracer(Tracer):
    """The tracer of a whole Python function, which runs on proxies. A tensor that the function has from elsewhere
    becomes part of the graph if it is small."""

    busy = 0  # whether a call is being recorded: tensor work is that of tracing itself then

    def call(self, fn: Callable, args: Sequence[object] = (), kwargs: dict[str, object] | None = None,
             loc: Loc | None = None) -> Any:
        self.busy += 1
        try:
            if self.busy == 1:
                args, kwargs = (replaced(torch.Tensor, self.constant, tuple(args)),
                                replaced(torch.Tensor, self.constant, kwargs or {}))
            return super().call(fn, args, kwargs, loc)
        finally:
            self.busy -= 1


class Recording(torch.overrides.TorchFunctionMode):
    """Records the calls that a Python function makes of PyTorch's functions without a proxy: those that make tensors
    from none."""

    def __init__(self, tracer: FunctionTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Callable, types: object, args: Sequence[object] = (),
                           kwargs: dict[str, object] | None = None) -> Any:
        return func(*args, **(kwargs or {})) if self.tracer.busy else call(self.tracer, func, args, kwargs or {})


def trace_on(fn: Callable, nodes: Sequence[Node], env: ShapeEnv, next_id: int, carries: Collection[Node] = (),
             loc: Loc | None = None) -> tuple:
    """(what ``fn`` gives for ``nodes`` in place of tensors, with nodes for tensors; the nodes that were made; those of
    them that carry a gradient).

    Raises PassError where ``fn`` writes into what it is given, and what tracing raises.
    """
    tracer = FunctionTracer(env)
    tracer.autocast, tracer.grad_enabled = {}, True
    tracer.builder.next_id, tracer.builder.loc = next_id, loc
    handles = {n: tracer.fresh(n, n in carries) for n in nodes}
    versions = {n: h.base.version for n, h in handles.items()}
    with torch_private.WithTorchFunction(), Recording(tracer):
        result = unwrap(fn(*[Proxy(tracer, handles[n]) for n in nodes]))
    if any(h.base.version != versions[n] for n, h in handles.items()):
        raise PassError("the function writes into a tensor that it is given; a replacement may only write into tensors "
                        "of its own")
    carrying = {h.node for h in of_kind(TensorHandle, result) if h.requires_grad}
    result = frozen(TensorHandle, lambda handle: handle.node, result)
    mark_checked(tracer.builder.nodes)
    return result, tracer.builder.nodes, carrying


class GraphEditor:
    """The graph that a pass changes.

    Attributes:
        nodes: all nodes in program order. A ``Node`` has ``op`` (the name of a basic operation, or ``"aten_call"`` for
            an operator of a library, which ``attrs["target"]`` names), ``inputs`` (nodes), ``attrs``, ``shape``,
            ``dtype``, ``device``, ``name``, and ``loc``, the line of the program. They are changed by the methods below
            only.
        inputs: the nodes that stand for the tensors that the graph is given.
        outputs: the nodes that it returns, or writes into an input.
        changes: how many nodes were replaced.
    """

    def __init__(self, graph: Graph, differentiable_inputs: tuple[int, ...] = ()) -> None:
        self._graph = graph.copy()
        self._carries = carrying(self._graph.nodes, [self._graph.inputs[k] for k in differentiable_inputs])
        self._fresh: set = set()  # nodes that were made here and stand for nothing yet
        self.changes = 0

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._graph.nodes)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(self._graph.inputs)

    @property
    def outputs(self) -> tuple[Node, ...]:
        return tuple(o.node for o in self._graph.outputs)

    def users(self, node: Node) -> list[Node]:
        """The nodes that read ``node``."""
        return [n for n in self._graph.nodes if node in n.inputs]

    def call(self, fn: Callable, *nodes: Node, before: Node, differentiable: bool = True) -> Node:
        """The result of ``fn`` on nodes in place of tensors, computed in the graph before the node ``before``: a node,
        or a tuple of nodes.

        ``fn`` may call whatever can be captured: functions and methods of PyTorch, operators of the user's own. A
        gradient is derived for what it does, unless it is not ``differentiable``, as operators of the user's own are
        not here: see ``keep_gradient`` of ``replace``.

        Raises:
            PassError: ``fn`` writes into its arguments, or does what cannot be captured.
            ValueError: one of ``nodes`` is computed at ``before`` or later.
        """
        place = self._graph.nodes.index(before)
        earlier = set(self._graph.nodes[:place])
        if not all(n in earlier for n in nodes):
            raise ValueError(f"{fn!r} is called before {before.name} on nodes that are computed there or later")
        try:
            result, made, carrying = trace_on(fn, nodes, self._graph.env,
                                              self._graph.next_id, self._carries if differentiable else (), before.loc)
        except PassError:
            raise
        except JitError as error:
            hint = ("; with keep_gradient=True the gradient is that of what is replaced" if differentiable
                    and any(n in self._carries for n in nodes) else "")
            raise PassError(f"{getattr(fn, '__qualname__', fn)} cannot be captured: {error}{hint}") from error
        self._insert(place, made)
        self._carries |= carrying
        self._fresh.update(made)
        return result

    def replace(self, node: Node, new: Node, keep_gradient: bool = False) -> None:
        """Let all that reads ``node`` read ``new``, and return it in its place. ``node`` is dropped if nothing else
        needs it.

        ``keep_gradient``: gradients are those of ``node``, as if it were still computed, which it is as far as they
        need it.

        Raises:
            PassError: ``new`` has another shape, dtype or device.
            ValueError: one of them is not in the graph, or ``new`` is computed behind ``node``.
        """
        t, place = node.type, self._graph.nodes.index(node)
        if self._graph.nodes.index(new) >= place:
            raise ValueError(f"{new.name} is computed behind {node.name}, which it is to replace")
        if (new.several or not same_ints(new.shape, t.shape)
            or new.dtype is not t.dtype or new.device != t.device):
            raise PassError(f"{_told(node)} cannot be replaced by {_told(new)}: shape, dtype and device have to be the "
                            "same")
        shares = new not in self._fresh or new.op in VIEWS or new.op == "scalar"  # memory with something else
        if not same_ints(new.type.strides, t.strides) or shares and node in protected_nodes(self._graph):
            b = Builder(self._graph.env)
            b.next_id, b.loc = self._graph.next_id, node.loc
            new = b.clone(new, t.strides)
            self._insert(place, b.nodes)
        self._fresh.discard(new)
        if keep_gradient and node in self._carries:
            b = Builder(self._graph.env)
            b.next_id, b.loc = self._graph.next_id, node.loc
            new = b.with_gradient_of(b.detach(new), node)
            self._insert(self._graph.nodes.index(node) + 1, b.nodes)
            self._carries.add(new)
        for n in self._graph.nodes:
            if node in n.inputs and n is not new:
                n.inputs = tuple([new if i is node else i for i in n.inputs])
        self._graph.outputs = [Output(new if o.node is node else o.node, o.mutates) for o in self._graph.outputs]
        node.attrs = unmarked(node.attrs)  # what it would raise is the replacement's affair
        self._graph.origins.setdefault(new.id, node.id)
        self.changes += 1

    def _insert(self, place: int, made: list[Node]) -> None:
        self._graph.nodes[place:place] = made
        self._graph.next_id = max([self._graph.next_id, *(n.id + 1 for n in made)])

    def result(self) -> Graph:
        """The changed graph without what nothing needs any more. Raises InvalidGraph."""
        return verify(eliminate_dead_nodes(self._graph))


@contextlib.contextmanager
def refused(name: str) -> Iterator[None]:
    """What a pass raises, as a PassError that says so. ``name``: the pass in words, such as "the pass 'f'"."""
    try:
        yield
    except PassError as error:
        raise PassError(f"in {name}{telling.raised_at(error)}: {error}") from error
    except InvalidGraph as error:
        raise PassError(f"{name} made an invalid graph: {error}") from error
    except Exception as error:  # of the user's own code
        raise PassError(f"{name} raised {telling.raised(error)}") from error


def _told(node: Node) -> str:
    """A node in messages: its operation, the program's line, its name in the graph and its type."""
    loc = node.loc and (node.loc.user or node.loc)
    place = "" if not loc else f" of {loc[0]}:{loc[1]}"
    return f"{node.op}{place} ({node.name}: {node.type})"
