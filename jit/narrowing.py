"""Backwards for some of the results: where a call gives (loss, logits), say, and only the loss gets a gradient.

They are compiled when they are met, and kept on disk with the entry that they belong to: a later process loads them as
it does the others, and loads no more of the compiler than this file.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from . import failures
from .errors import Unsupported
from .runtime import held, names

if TYPE_CHECKING:
    from .graph.writing import PackedGraph

Made = dict[tuple[bool, ...], Any]


def narrow_of(packed: PackedGraph, first: int, int_symbols: tuple[str, ...], unaligned: frozenset[int], graphs: str,
              made: Made | None = None) -> Callable[[tuple[bool, ...]], Any]:
    """``GradSpec.narrow`` of a backward.

    Args:
        packed: the backward for all tangents, which are its inputs from ``first`` on.
        int_symbols: those of its plan.
        unaligned, graphs: see ``codegen.Options``.
        made: which tangents are given -> loaded plan, of those that there are already. More are added.
    """
    known: Made = {} if made is None else made

    def narrow(present: Sequence[bool]) -> Any:
        given = tuple(map(bool, present))
        if given not in known:
            plan = _compiled(packed, [first + k for k, there in enumerate(given) if not there], int_symbols, unaligned,
                             graphs)
            if plan is None:
                return None
            known[given] = plan
            held.grown(narrow)
        return known[given]

    return names.made_later(narrow, narrow_of, packed, first, int_symbols, unaligned, graphs, known)


def _compiled(packed: PackedGraph, absent: list[int], int_symbols: tuple[str, ...], unaligned: frozenset[int],
              graphs: str) -> Any:
    """The loaded plan of a backward without these inputs; None where the one for all tangents serves."""
    backward = packed()
    gated = any(n.op == "gate" for n in backward.nodes)  # a backward of the user's own may give some for zeros
    try:
        # By its name: a process that finds the backward on disk does not load it.
        compiled = importlib.import_module("jit.compiling").narrowed_backward(backward, absent, unaligned, graphs)
    except Unsupported:
        if gated:
            raise
        return None
    except Exception as e:  # a rule of ours has failed, which is told
        if gated:
            raise
        failures.report(e, backward.place(), "the backward for all results is used, with zeros")
        return None
    # One that needs fewer sizes would be called with too many: the whole backward serves.
    if gated and tuple(compiled.int_symbols) != int_symbols:
        raise NotImplementedError("jit: a backward of torch.autograd.Function with symbolic sizes, for some of the "
                                  "results")
    return compiled.call if tuple(compiled.int_symbols) == int_symbols else None
