"""A compiled graph as the rewritten bytecode calls it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable

from . import torch_private
from .runtime import native


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
    """

    native: Callable
    int_symbols: tuple = ()
    kernels: list = dataclasses.field(default_factory=list)
    graph: object = None
    backward: object = None
    launches: int = 0

    def bind(self, tensors: dict) -> Plan:
        """The plan with some inputs given for good, which it does not keep alive."""
        if not isinstance(self.native, native().Plan):
            return dataclasses.replace(self, native=_bound(self.native, tensors))
        return dataclasses.replace(self, native=native().bind(self.native, tensors, True))


def _bound(fn, tensors):
    """A Python callable with the inputs at the given positions filled in; a ReferenceError once one of them is gone."""
    tensors = {at: native().Weak(tensor) for at, tensor in tensors.items()}

    def given(at):
        tensor = tensors[at]()
        if tensor is None:
            raise ReferenceError("a tensor that the plan was bound to is gone")
        return tensor

    def call(*rest):
        rest = iter(rest)
        merged, at = [], 0
        for at in range(max(tensors) + 1):
            merged.append(given(at) if at in tensors else next(rest))
        return fn(*merged, *rest)

    return call


def without_autocast(fn) -> Callable:
    """``fn`` with autocast off: a captured graph has its casts in it."""

    @functools.wraps(fn)
    def call(*args):
        with torch_private.WithoutAutocast():
            return fn(*args)

    return call
