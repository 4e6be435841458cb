"""The sizes of a call's results as functions of symbolic sizes, learned by making the call at several sizes.

A library call without a type rule is made on tensors without data to learn what it gives (``aten.types_by_probe``).
With symbolic sizes it is made at a few more, which are unrelated to each other, or keep their order where they have to,
and each size and stride of a result has to be a number, a size of an argument, a number of elements, or such a one
scaled and shifted by constants, at all. Where one is not, the caller specialises the sizes. What is found is no proof:
the plan compares the sizes that a call gives with those that were predicted, and a difference leaves that call to
eager, before anything was changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Callable

from jit.errors import EagerRaises, Unsupported
from jit.graph.dims import Dim, coefficient, env_of, evaluate, free_symbols, product, subst, symbols_of
from jit.graph.ir import Node, contiguous_strides
from jit.graph.nested import of_kind, replaced
from jit.graph.polynomials import of_atom

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr, Symbol
    from jit.graph.ir import TensorType
    from jit.graph.shape_env import ShapeEnv

# How much larger the symbols are at each of the other calls: even numbers, of which no two columns are alike.
_STEPS = (
    (2, 12, 6, 20, 8, 16, 18, 2, 16, 32, 16, 14, 12, 26, 12, 20),
    (10, 4, 14, 2, 18, 6, 24, 28, 22, 28, 2, 32, 30, 6, 28, 12),
    (6, 16, 2, 12, 4, 22, 12, 16, 2, 8, 24, 10, 28, 32, 6, 8),
)


def dims_of(values: object) -> Iterator[Dim]:
    """The symbolic sizes, strides and numbers in nested arguments."""
    for node in of_kind(Node, values):
        yield from (d for d in (*node.type.shape, *node.type.strides) if type(d) is Dim)
    yield from of_kind(Dim, values)


def learned(values: list, run: Callable[[list], tuple]) -> tuple | None:
    """The result types of a call over the symbols in its arguments; None where they cannot be told.

    Args:
        values: the arguments.
        run: the call for arguments with plain sizes -> (result types, what shows memory of an argument).
    """
    dims = list(dict.fromkeys(dims_of(values)))
    symbols = {s.name: s for d in dims for s in symbols_of(d)}
    env = next((env_of(d) for d in dims), None)
    if env is None or any(s.hint is None for s in symbols.values()):
        return None
    following = _following(env, symbols)
    free = [s for s in symbols.values() if s.name not in following]
    if len(free) > len(_STEPS[0]):
        return None
    # Each size by itself, then those that are equal now as one; and these so that a larger one stays larger where the
    # call, or what is known of them, asks for that.
    for together, in_order in itertools.product((False, True), repeat=2):
        groups = _groups(free, together)
        if in_order:
            groups.sort(key=lambda group: group[0].hint)
        growing = [tuple(itertools.accumulate(steps)) if in_order else steps for steps in _STEPS]
        samples = [_larger(groups, steps, following) for steps in ((0,) * len(groups), *growing)]
        if not all(_allowed(env, sample) for sample in samples):
            continue
        types = _agreeing(values, samples, run, _candidates(values, dims))
        if types is not None:
            for first, *others in groups:
                for other in others:
                    env.decide("==0", of_atom(other) - of_atom(first))
            return types
    return None


def _groups(symbols: list[Symbol], together: bool) -> list[list[Symbol]]:
    """The symbols that change by the same number."""
    if not together:
        return [[s] for s in symbols]
    groups: dict = {}
    for s in symbols:
        groups.setdefault(s.hint, []).append(s)
    return list(groups.values())


def _following(env: ShapeEnv, symbols: dict[str, Symbol]) -> dict[str, IntExpr]:
    """The symbols that the others determine, by the equations that are relied on already, as those of the strides of a
    contiguous tensor."""
    found: dict[str, IntExpr] = {}
    for p in env.guards:
        if p.kind != "==0" or not free_symbols(p.expr) <= symbols.keys():
            continue
        e = subst(p.expr, found)
        for name in sorted(free_symbols(e), key=list(symbols).index, reverse=True):
            by = coefficient(e, name)
            if type(by) is int and by in (1, -1) and name not in free_symbols(rest := e - by * of_atom(symbols[name])):
                found = {n: subst(other, {name: -by * rest}) for n, other in found.items()}
                found[name] = -by * rest
                break
    return found


def _larger(groups: list[list[Symbol]], steps: Sequence[int], following: dict[str, IntExpr]) -> dict[str, int]:
    sample = {s.name: s.hint + step * s.multiple for group, step in zip(groups, steps) for s in group}
    return sample | {name: evaluate(e, sample) for name, e in following.items()}


def _allowed(env: ShapeEnv, sample: dict[str, int]) -> bool:
    """Whether the facts about these symbols that are relied on already hold."""
    return all(p.holds(sample) for p in env.guards if free_symbols(p.expr) <= sample.keys())


def _candidates(values: list, dims: list[Dim]) -> list[Dim]:
    """What a size of a result may be equal to, or grow with."""
    counts = [n for node in of_kind(Node, values) if type(n := product(node.type.shape)) is Dim]
    return list(dict.fromkeys([*dims, *counts]))


def _agreeing(values: list, samples: list[dict], run: Callable, candidates: list[Dim]) -> tuple | None:
    """The result types that hold for all samples, the first of which is what is now."""
    found: list[tuple] = []
    for sample in samples:
        def at(e: IntExpr, sample: dict = sample) -> int:
            return evaluate(e, sample) if type(e) is Dim else e

        def plain(node: Node, at: Callable = at) -> Node:
            t = node.type
            return node.replace(type=t.replace(shape=tuple(map(at, t.shape)), strides=tuple(map(at, t.strides))))

        try:
            types, shown = run(replaced(Dim, at, replaced(Node, plain, values)))
        except (EagerRaises, Unsupported):
            if sample is samples[0]:
                raise
            return None
        if shown is not None:
            return None
        found.append(types)
    if len({tuple(None if t is None else (t.dtype, t.rank) for t in types) for types in found}) > 1:
        return None
    made = []
    for several in zip(*found):
        if several[0] is None:
            made.append(None)
            continue
        type_ = _type(several, samples, candidates)
        if type_ is None:
            return None
        made.append(type_)
    return tuple(made)


def _type(several: Sequence[TensorType], samples: list[dict], candidates: list[Dim]) -> TensorType | None:
    """One result's type from what it is at each sample."""
    shape = [_expression(sizes, samples, candidates) for sizes in zip(*(t.shape for t in several))]
    if any(n is None for n in shape):
        return None
    if all(t.strides == contiguous_strides(t.shape) for t in several):
        return several[0].replace(shape=tuple(shape), strides=contiguous_strides(shape))
    parts = [product(shape[i:j]) for i in range(len(shape)) for j in range(i + 1, len(shape) + 1)]
    candidates = [*candidates, *(p for p in parts if type(p) is Dim)]
    strides = [_expression(each, samples, candidates) for each in zip(*(t.strides for t in several))]
    return None if any(n is None for n in strides) else several[0].replace(shape=tuple(shape), strides=tuple(strides))


def _expression(numbers: Sequence[int], samples: list[dict], candidates: list[Dim]) -> IntExpr | None:
    """What has these values at the samples: a number, a candidate, or one that is scaled and shifted."""
    first = numbers[0]
    if all(n == first for n in numbers):
        return first
    for scaled in (False, True):
        for e in candidates:
            at = [evaluate(e, sample) for sample in samples]
            if not scaled:
                if tuple(at) == tuple(numbers):
                    return e
                continue
            grown = next((k for k, n in enumerate(at) if n != at[0]), None)
            if grown is None or (numbers[grown] - first) % (at[grown] - at[0]):
                continue
            by = (numbers[grown] - first) // (at[grown] - at[0])
            # Sizes of 0 and 1 are no symbols, and a negative one is none at all.
            if by > 0 and first >= 2 and all(n == first + by * (m - at[0]) for n, m in zip(numbers, at)):
                made = e * by + (first - by * at[0])
                return made if made >= 2 else None
    return None
