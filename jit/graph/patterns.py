"""Patterns: the computation of a Python function, looked for in a graph, and replaced by that of another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Callable

import torch

from jit.errors import JitError, PassError
from jit.graph.shape_env import ShapeEnv
from jit.graph.edit import GraphEditor, trace_on
from jit.graph.ir import CHECKED, Node, TensorType, ancestors
from jit.graph.passes.dce import unmarked
from jit.graph.prim_info import info


class Replacement:
    """A pass that replaces each computation that is ``pattern``'s by ``replacement``'s.

    Args:
        pattern: a function of tensors that returns one tensor. Other values of the computation stay where they are
            needed.
        replacement: a function of the same tensors with a result of the same shape and dtype.
        examples: a tuple with a tensor for each argument, or a list of such tuples, of which dtypes and numbers of
            dimensions count: the pattern is looked for among tensors like these, of whatever size and on whatever
                device.
        name: for messages; that of ``replacement`` where it is left out.
        keep_gradient: gradients stay those of the pattern. Where a gradient is needed, a ``replacement`` that calls an
            operator of the user's own has to say so.
        where: ``where(*nodes) -> bool``, asked before a place is changed with the nodes that stand for the arguments.

    Raises:
        PassError: the pattern cannot be captured, or does not return a tensor that it computes.
    """

    def __init__(self, pattern: Callable, replacement: Callable,
                 examples: Sequence[torch.Tensor | tuple[torch.Tensor, ...]], name: str | None = None,
                 keep_gradient: bool = False, where: Callable | None = None) -> None:
        self.keep_gradient = keep_gradient
        self.pattern, self.replacement, self.where = pattern, replacement, where
        self.__name__ = name or getattr(replacement, "__name__", type(replacement).__name__)
        self.examples = [tuple(e) for e in ([examples] if isinstance(examples, tuple) else examples)]
        self._forms: dict = {}
        self._forms_on(torch.device("cpu"))

    def __call__(self, graph: GraphEditor) -> None:
        taken: set = set()
        for node in reversed(graph.nodes):
            if node in taken or info(node.op).kind in ("input", "number") or node.several:
                continue
            bound = self._bound(graph, node)
            if bound is None or self.where is not None and not self.where(*bound):
                continue
            new = graph.call(self.replacement, *bound, before=node, differentiable=not self.keep_gradient)
            if not isinstance(new, Node):
                raise PassError(f"the replacement {self.__name__} does not return a tensor")
            inside = ancestors([node], frozenset(bound)).difference(bound, graph.inputs)
            taken |= inside
            for n in inside:
                n.attrs = unmarked(n.attrs)
            graph.replace(node, new, self.keep_gradient)

    def _forms_on(self, device: torch.device) -> list:
        """The pattern as nodes on ``device``: (inputs, result) for each of the examples, with and without gradients."""
        if device not in self._forms:
            found = []
            for example in self.examples:
                for carries in (False, True):
                    env = ShapeEnv()
                    inputs = [_input(env, k, t, device) for k, t in enumerate(example)]
                    try:
                        result = trace_on(self.pattern, inputs, env, len(inputs), inputs if carries else ())[0]
                    except JitError as error:
                        raise PassError(f"the pattern of {self.__name__} cannot be captured: {error}") from error
                    if not isinstance(result, Node) or result in inputs:
                        raise PassError(f"the pattern of {self.__name__} has to return one tensor that it computes")
                    found.append((inputs, result))
            self._forms[device] = found
        return self._forms[device]

    def _bound(self, graph: GraphEditor, node: Node) -> list[Node] | None:
        """The nodes that stand for the pattern's arguments if ``node`` is its result."""
        for inputs, result in self._forms_on(node.device):
            if _peeled(result).op != _peeled(node).op:
                continue
            for found in _bindings(result, node, {}):
                bound = [found[i] for i in inputs if i in found]
                if len(bound) == len(inputs) and self._is_result(graph, bound, node):
                    return bound
        return None

    def _is_result(self, graph: GraphEditor, bound: list[Node], node: Node) -> bool:
        """Whether the pattern computes ``node`` from the nodes ``bound``: it is traced on these, and has to be the same
        in all respects."""
        env, made = graph._graph.env, graph._graph.next_id
        for carries in (graph._carries, *(() if graph._carries else (bound,))):
            with env.journal.trial(), contextlib.suppress(JitError):
                result = trace_on(self.pattern, bound, env, made, carries)[0]
                if isinstance(result, Node) and _same(result, node, made):
                    return True
        return False


def _input(env: ShapeEnv, position: int, t: torch.Tensor, device: torch.device) -> Node:
    shape = tuple(env.symbol(max(n, 2), ("pattern", position, d)) for d, n in enumerate(t.shape))
    return Node(position, "input", (), {"index": position}, TensorType.contiguous(shape, t.dtype, device))


def _peeled(n: Node) -> Node:
    """The node whose value ``n`` has, whatever its gradient is said to be."""
    while n.op in ("custom_gradient", "alias") or n.op == "cast" and n.inputs[0].dtype is n.dtype:
        n = n.inputs[0]
    return n


def _bindings(p: Node, g: Node, found: dict) -> Iterator[dict[Node, Node]]:
    """The ways to let nodes of a graph stand for the inputs of a pattern, by operations alone; sizes and attributes are
    looked at later."""
    p, g = _peeled(p), _peeled(g)
    if p.op == "input":
        if p in found:
            if _same(found[p], g, None):
                yield found
        elif not g.several and p.dtype is g.dtype and len(p.shape) == len(g.shape):
            yield {**found, p: g}
        return
    if p.op != g.op or len(p.inputs) != len(g.inputs) or p.op == "aten_call" and p.attrs["target"] != g.attrs["target"]:
        return
    yield from _pairs(p.inputs, g.inputs, found)
    if info(p.op).commutative:
        yield from _pairs(p.inputs, g.inputs[::-1], found)


def _pairs(ps: tuple[Node, ...], gs: tuple[Node, ...], found: dict) -> Iterator[dict[Node, Node]]:
    if not ps:
        yield found
        return
    for more in _bindings(ps[0], gs[0], found):
        yield from _pairs(ps[1:], gs[1:], more)


def _same(a: Node, b: Node, first: int | None) -> bool:
    """Whether two nodes are computed alike. ``first``: nodes from this id on are new ones; others are the same node or
    different."""
    a, b = _peeled(a), _peeled(b)
    if a is b:
        return True
    if (a.op != b.op or a.op == "input" or len(a.inputs) != len(b.inputs)
        or a.impure or a.type != b.type or first is not None and a.id < first):
        return False
    if {k: v for k, v in a.attrs.items() if k != CHECKED} != {k: v for k, v in b.attrs.items() if k != CHECKED}:
        return False
    return all(map(lambda x, y: _same(x, y, first), a.inputs, b.inputs)) or (
        info(a.op).commutative and _same(a.inputs[0], b.inputs[1], first) and _same(a.inputs[1], b.inputs[0], first))
