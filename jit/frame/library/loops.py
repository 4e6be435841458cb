"""``torch.while_loop`` whose number of rounds data decide, and ``scan`` and ``map`` of more steps than are written out,
or of a number that varies, as one step of the graph (``graph.rounds``): the rounds are run by the plan, with no Python
in between.

That is done where a round only computes: without gradients, random numbers, effects or writes, on plain tensors of
which each comes out of a round as it went in. All else is followed as the Python that it stands for, and so are loops
whose number of rounds is known, which are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ...graph import rounds
from ...graph.dims import equal
from ...graph.handles import next_version
from ...torch_private import pytree
from ..both_ways import on_host
from ..values import batched
from ..values.containers import TupleValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def _bound(cond_fn, body_fn, carried_inputs):
    return cond_fn, body_fn, tuple(carried_inputs)


def _items(results):
    return tuple(results)


def _truth(pred):
    return pred.reshape(()).to(torch.bool)


def _is_truth(pred):
    return isinstance(pred, torch.Tensor) and pred.numel() == 1 and not pred.dtype.is_complex


def _plain(carried):
    """Whether these are tensors that a loop can carry, or read part by part."""
    return (all([type(x) is torch.Tensor for x in carried])
            and not (torch.is_grad_enabled() and any([x.requires_grad for x in carried])))


def while_loop(s: Session, written_out: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The results of a loop; None where it is followed as ``written_out``, a function that it stands for, with breaks
    where data decide."""
    if batched.active(s) or s.levels or s.tracer.written_before:
        return None
    known = None
    with s.journal.temporarily(s.tracer.builder, "guess", None):  # an entry is to hold for any number of rounds
        with s.speculate(raises=True, keep=False) as attempt:
            cond, _, carried = s.inline(s.wrap_raw(_bound), args, kwargs).items_list(s)
            known = _pred(s, cond, carried.items_list(s)).known(s)
        if not attempt.went_through or known is not None and not known:
            return None
        if known is not None:
            with s.speculate(kinds=("data-dependent-branch",)):
                return s.inline(s.wrap_raw(written_out), args, kwargs)
        found = None
        with s.speculate(raises=True) as attempt:
            found = _as_step(s, *s.inline(s.wrap_raw(_bound), args, kwargs).items_list(s))
        return found if attempt.went_through else None


def _as_step(s: Session, cond: Value, body: Value, carried: Value) -> Value:
    tracer, started, written = s.tracer, len(s.effects.log), _written(s)
    if not s.inline(s.wrap_raw(_plain), [carried], {}).truth(s):
        raise rounds.Refused("carries on what is no plain tensor")
    inputs = carried.items_list(s)
    first = _pred(s, cond, inputs)
    with rounds.tracing(tracer) as made, s.journal.temporarily(s, "assuming", False):
        copies = [s.recording.tensor_of(rounds.start(tracer, v.handle(s))) for v in inputs]
        with s.journal.temporarily(tracer, "written_before", next_version()):
            results = s.inline(s.wrap_raw(_items), [body.call(s, copies, {})], {}).items_list(s)
            if len(results) != len(inputs) or not s.inline(s.wrap_raw(_plain), [TupleValue(results)], {}).truth(s):
                raise rounds.Refused("carries on what is no plain tensor")
            more = _pred(s, cond, results)
            owned = [v if any(v is c for c in copies) else s.record(torch.clone, [v], {}) for v in results]
    if len(s.effects.log) != started or _written(s) != written:
        raise rounds.does_more()
    handles = [[v.handle(s) for v in of] for of in (inputs, copies, owned)]
    nodes = rounds.record_loop(tracer, made, *handles, more.handle(s), first.handle(s))
    return TupleValue([s.recording.tensor_of(tracer.fresh(n)) for n in nodes])


def scan(s: Session, args: list[Value], kwargs: dict[str, Value], most: int) -> Value | None:
    """The results of a scan; None where it is to be written out, as where it has ``most`` steps or fewer."""
    if batched.active(s) or s.levels or s.tracer.written_before:
        return None
    found = None
    with s.journal.temporarily(s.tracer.builder, "guess", None), s.speculate(raises=True) as attempt:
        found = _scan_as_step(s, args, kwargs, most)
    return found if attempt.went_through else None


def _scan_as_step(s: Session, args: list[Value], kwargs: dict[str, Value], most: int) -> Value:
    tracer, started, written = s.tracer, len(s.effects.log), _written(s)
    carried, leaves, reverse, plain = s.inline(s.wrap_raw(_scanned), args, kwargs).items_list(s)
    inputs, xs = carried.items_list(s), leaves.items_list(s)
    if not plain.truth(s) or not xs:
        raise rounds.Refused("carries on or reads what is no plain tensor")
    steps = [v.handle(s).shape[0] for v in xs]
    if type(steps[0]) is int and steps[0] <= most or not all(equal(n, steps[0]) for n in steps):
        raise rounds.Refused("is written out")
    with rounds.tracing(tracer) as made, s.journal.temporarily(s, "assuming", False):
        copies, parts = [[s.recording.tensor_of(begin(tracer, v.handle(s))) for v in of]
                         for begin, of in ((rounds.start, inputs), (rounds.start_part, xs))]
        with s.journal.temporarily(tracer, "written_before", next_version()):
            alike, on, ys, spec = s.inline(s.wrap_raw(_scan_round), [TupleValue(copies), TupleValue(parts), *args],
                                           kwargs).items_list(s)
            if not alike.truth(s):
                raise rounds.Refused("carries on what is no plain tensor")
            owned = [v if any(v is c for c in copies) else s.record(torch.clone, [v], {}) for v in on.items_list(s)]
    if len(s.effects.log) != started or _written(s) != written:
        raise rounds.does_more()
    handles = [[v.handle(s) for v in of] for of in (inputs, copies, xs, parts, owned, ys.items_list(s))]
    nodes = rounds.record_scan(tracer, made, reverse.truth(s), *handles)
    found = [s.recording.tensor_of(tracer.fresh(n)) for n in nodes]
    n = len(inputs)
    return s.inline(s.wrap_raw(_scan_found), [TupleValue(found[:n]), TupleValue(found[n:]), spec, *args], kwargs)


def _scanned(combine_fn, init, xs, *, dim=0, reverse=False):
    carried, leaves = pytree.tree_flatten(init)[0], pytree.tree_flatten(xs)[0]
    plain = _plain([*carried, *leaves]) and all([x.dim() > dim >= 0 for x in leaves])
    return tuple(carried), tuple([x.movedim(dim, 0) for x in leaves] if plain else []), reverse, plain


def _scan_round(carried, parts, combine_fn, init, xs, *, dim=0, reverse=False):
    spec = pytree.tree_flatten(init)[1]
    carry, out = combine_fn(pytree.tree_unflatten(list(carried), spec),
                            pytree.tree_unflatten(list(parts), pytree.tree_flatten(xs)[1]))
    on, spec_on = pytree.tree_flatten(carry)
    ys, spec_of_ys = pytree.tree_flatten(out)
    return spec == spec_on and _plain([*on, *ys]), tuple(on), tuple(ys), spec_of_ys


def _scan_found(carried, stacked, spec, combine_fn, init, xs, *, dim=0, reverse=False):
    carry = pytree.tree_unflatten(list(carried), pytree.tree_flatten(init)[1])
    return carry, pytree.tree_unflatten([t.movedim(0, dim) if dim < t.dim() else t for t in stacked], spec)


def _pred(s: Session, cond: Value, carried: list[Value]) -> Value:
    """Whether there is another round, as a bool without dimensions."""
    pred = cond.call(s, carried, {})
    if not s.inline(s.wrap_raw(_is_truth), [pred], {}).truth(s):
        raise rounds.Refused("is made or not by what is no tensor")
    return on_host(s, s.inline(s.wrap_raw(_truth), [pred], {}))


def _written(s: Session) -> int:
    """How many tensors from outside have been written."""
    return sum(h.base.mutated for h in s.tracer.inputs)
