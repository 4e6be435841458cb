"""Backwards for some of the results: where a call gives (loss, logits), say, and only the loss gets a gradient.

They are compiled when they are met, and kept on disk with the entry that they belong to: a later process loads them as
it does the others, and loads no more of the compiler than this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from . import failures
from .errors import Unsupported
from .runtime import held, names

if TYPE_CHECKING:
    from .codegen.planner import CompiledGraph
    from .graph.ir import Graph
    from .graph.writing import PackedGraph

Made = dict[tuple[bool, ...], Any]


def narrow_of(packed: PackedGraph, first: int, int_symbols: tuple[str, ...], unaligned: frozenset[int], graphs: str,
              compile: Callable, made: Made | None = None) -> Callable[[tuple[bool, ...]], Any]:
    """``GradSpec.narrow`` of a backward.

    Args:
        packed: the backward for all tangents, which are its inputs from ``first`` on.
        int_symbols: those of its plan.
        unaligned, graphs: see ``codegen.Options``.
        compile: ``compiling.narrowed_backward``.
        made: which tangents are given -> loaded plan, of those that there are already. More are added.
    """
    known: Made = {} if made is None else made

    def narrow(present: Sequence[bool]) -> Any:
        given = tuple(map(bool, present))
        if given not in known:
            absent = [first + k for k, there in enumerate(given) if not there]
            plan = _compiled(packed(), int_symbols, lambda backward: compile(backward, absent, unaligned, graphs))
            if plan is None:
                return None
            known[given] = plan
            held.grown(narrow)
        return known[given]

    return names.made_later(narrow, narrow_of, packed, first, int_symbols, unaligned, graphs, compile, known)


def _compiled(backward: Graph, int_symbols: tuple[str, ...], compile: Callable[[Graph], CompiledGraph]) -> Any:
    """The loaded plan of a backward for some tangents; None where the one for all serves."""
    gated = any(n.op == "gate" for n in backward.nodes)  # a backward of the user's own may give some for zeros
    try:
        compiled = compile(backward)
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
