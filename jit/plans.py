"""A compiled graph as the rewritten bytecode calls it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable

import torch

from . import torch_private
from .runtime import happened, names, native

if TYPE_CHECKING:
    from .graph.ir import Graph


@dataclasses.dataclass(eq=False)
class Plan:
    """A compiled graph as the rewritten bytecode calls it.

    Attributes:
        native: callable on the graph's input tensors and then the integers of ``int_symbols``; gives a tuple of
            tensors.
        int_symbols: names of the size symbols that are passed as integers.
        kernels: (name, source text) of each kernel.
        graph: what it computes, as it was optimised.
        backward: the graph of the gradients, where there is one.
        launches: how many generated kernels one call launches, with those of the backward.
        described: what the plan does, and that of the backward, where someone asks for a report
            (``codegen.described.Described``).
    """

    native: Callable
    int_symbols: tuple[str, ...] = ()
    kernels: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    graph: Graph | None = None
    backward: Graph | None = None
    launches: int = 0
    described: tuple = ()

    def bind(self, tensors: dict[int, torch.Tensor]) -> Plan:
        """The plan with some inputs given for good, which it does not keep alive."""
        if not isinstance(self.native, native().Plan):
            return dataclasses.replace(self, native=_bound(self.native, {k: names.weak(t) for k, t in tensors.items()}))
        return dataclasses.replace(self, native=native().bind(self.native, tensors, True))


def _bound(fn: Callable, weak: dict[int, Callable]) -> Callable:
    """A Python callable with the inputs at the given positions filled in, of which it has weak references; a
    ReferenceError once one of them is gone."""
    def given(at: int) -> torch.Tensor:
        tensor = weak[at]()
        if tensor is None:
            raise ReferenceError("a tensor that the plan was bound to is gone")
        return tensor

    def call(*rest: Any) -> Any:
        left = iter(rest)
        merged = [given(at) if at in weak else next(left) for at in range(max(weak) + 1)]
        return fn(*merged, *left)

    return names.made(call, _bound, fn, weak)


def recorded(fn: Callable, recording: bool) -> Callable:
    """``fn`` with grad mode switched on or off."""
    mode = torch.enable_grad() if recording else torch.no_grad()
    run = mode(fn)
    return names.made(run if recording else functools.partial(_not_recorded, run), recorded, fn, recording)


def _not_recorded(run: Callable, *args: Any) -> Any:
    """What a graph gives that ran without gradients. The program has not made its views so: they may be changed where
    gradients are recorded."""
    results = run(*args)
    if torch.is_grad_enabled():
        for t in results:
            if isinstance(t, torch.Tensor) and torch_private.is_view(t) and not any(t is a for a in args):
                torch_private.set_creation_meta(t, torch_private.creation_meta.DEFAULT)
    return results


def one_of_several(fn: Callable) -> Callable:
    """``fn``, whose results are views, with autograd told that each is one of several results of an operation."""

    def call(*args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch_private.one_of_several, fn(*args)))

    return names.made(call, one_of_several, fn)


def passing_on_late_errors(fn: Callable, graph: Graph) -> Callable:
    """``fn``, a Python function that runs ``graph``; what it raises after it has written an input is passed on, and the
    call is not run again in eager, which would write twice."""
    written = [o.mutates for o in graph.outputs if o.mutates is not None]
    if not written:
        return fn

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        inputs = [args[i] for i in written if not args[i].is_inference()]
        before = [torch_private.version_of(t) for t in inputs]
        try:
            return fn(*args)
        except Exception as error:  # whatever it is, it is raised again
            if [torch_private.version_of(t) for t in inputs] != before:
                happened.pass_on(error)
            raise

    return names.made(call, passing_on_late_errors, fn, graph)


def without_autocast(fn: Callable) -> Callable:
    """``fn`` with autocast off, and with no class or mode that is asked: a captured graph has its casts in it, and what
    these make of its operations."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        with torch_private.WithoutAutocast(), torch_private.WithoutTorchFunction():
            return fn(*args)

    return names.made(call, without_autocast, fn)
