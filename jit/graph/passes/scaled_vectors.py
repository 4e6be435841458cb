"""Vectors that are divided by a norm of theirs before a matrix is multiplied by them, as in front of each linear layer
of a transformer: ``W @ (x * g * s)`` with one number ``s`` that a sum over ``x`` gives is ``s * (W @ (x * g))``. The
kernel of the product reads ``x`` anyway, and takes that sum beside its own: the norm needs no kernel in front of it, for
whose end each product would wait.

The vector is not rounded to its dtype in between, so that the product is a little more exact than eager's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

import torch

from jit.graph import dims
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jit.graph.build import Builder
    from jit.graph.ir import Graph, Node

MOST_NODES = 16  # that make the one number of a sum
HALF_A_MACHINE = 1 << 26  # elements of a matrix from which its reads leave no time for another sum


class Scaled:
    """A vector as ``rest``, in float32, times ``scale``, which is made of sums over all of the vector."""

    def __init__(self, rest: Node, scale: list[tuple[Node, bool]]) -> None:
        self.rest, self.scale = rest, scale


def readers(graph: Graph, products: Callable) -> dict[Node, list[Node]]:
    """Node -> those that read it, through views of all of it. ``products`` tells which nodes count as one reader each,
    whatever they do with it."""
    found: dict = {}
    for n in graph.nodes:
        for i in n.inputs:
            found.setdefault(whole(i), []).append(n)
    for o in graph.outputs:
        found.setdefault(whole(o.node), []).append(o.node)
    return found


def whole(n: Node) -> Node:
    """What a view shows all of, in order."""
    while n.op in ("reshape", "alias") or n.op == "unsqueeze":
        n = n.inputs[0]
    return n
