"""PyTorch's operators of control flow, as the Python that they stand for: ``torch.cond``, and ``map``, ``scan``,
``associative_scan`` and ``while_loop`` of ``torch._higher_order_ops``. In eager most of them are compiled by PyTorch's
own compiler for the call. Loops over a dimension are written out, or steps of the graph, as ``while_loop`` is where
that is possible (``loops``). Where the predicate of ``cond`` is data, both branches are computed, and their results
chosen from, if that is the same: they give plain tensors of the same types, without gradients (a branch that is not
taken might add what is no number), random numbers, effects or writes. Else it is what any branch on a tensor is: a step
or a break (``both_ways``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...devices import backend
from ...errors import Unsupported
from ...graph.handles import next_version
from ...graph.prim_info import info
from ...torch_private import pytree
from ..tables import on_function, on_name
from ..values.constant import Constant
from ..values.containers import TupleValue
from . import loops

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue

MOST_STEPS = 256  # of a loop that is written out
DOUBLED = 16  # so few elements are combined with all those before in steps that double


def _cond(pred, true_fn, false_fn, operands=()):
    return true_fn(*operands) if pred else false_fn(*operands)


def _chosen(pred, results):
    """The results of one of two branches."""
    first, others = (pytree.tree_flatten(r) for r in results)
    pred = pred.reshape(()).to(torch.bool)
    return pytree.tree_unflatten([torch.where(pred, a, b) for a, b in zip(first[0], others[0])], first[1])


def _alike(results):
    """Whether two branches give the same kinds of tensors, which may be chosen from by element."""
    first, others = (pytree.tree_flatten(r) for r in results)
    return (first[1] == others[1] and all([isinstance(t, torch.Tensor) for t in [*first[0], *others[0]]])
            and all([a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and not a.requires_grad
                     and not b.requires_grad and a.is_contiguous() and b.is_contiguous()
                     for a, b in zip(first[0], others[0])]))


def _map_flat(f, xs, args):
    results = []
    for k in range(xs[0].shape[0]):
        flat, structure = pytree.tree_flatten(f(*[x[k] for x in xs], *args))
        results.append(flat)
    return pytree.tree_unflatten([torch.stack(found) for found in zip(*results)], structure)


def _while_loop(cond_fn, body_fn, carried_inputs):
    carried = tuple(carried_inputs)
    if not cond_fn(*carried):
        return tuple([v.clone() if isinstance(v, torch.Tensor) else v for v in carried])
    carried = tuple(body_fn(*carried))
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    return carried


def _map_as_scan(f, xs, *args):
    return lambda carry, x: (carry, f(x, *args)), (), xs


def _map(f, xs, *args):
    leaves, spec = pytree.tree_flatten(xs)
    results = []
    for k in range(leaves[0].shape[0]):
        flat, structure = pytree.tree_flatten(f(pytree.tree_unflatten([x[k] for x in leaves], spec), *args))
        results.append(flat)
    return pytree.tree_unflatten([torch.stack(found) for found in zip(*results)], structure)


def _scan(combine_fn, init, xs, *, dim=0, reverse=False):
    leaves, spec = pytree.tree_flatten(xs)
    leaves = [x.movedim(dim, 0) for x in leaves]
    steps = list(range(leaves[0].shape[0]))
    carry, results = init, []
    for k in reversed(steps) if reverse else steps:
        carry, out = combine_fn(carry, pytree.tree_unflatten([x[k] for x in leaves], spec))
        flat, structure = pytree.tree_flatten(out)
        results.append(flat)
    if reverse:
        results.reverse()
    found = [torch.stack(of) for of in zip(*results)]
    return carry, pytree.tree_unflatten([t.movedim(0, dim) if dim < t.dim() else t for t in found], structure)


def _associative_scan(combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    leaves, spec = pytree.tree_flatten(xs)
    dim = dim % leaves[0].dim()
    leaves = [x.movedim(dim, 0) for x in leaves]
    leaves = [x.flip(0) for x in leaves] if reverse else leaves
    combined = combine_fn if combine_mode == "pointwise" else torch.vmap(combine_fn)

    def combine(a, b):
        return pytree.tree_leaves(combined(*[pytree.tree_unflatten(part, spec) for part in (a, b)]))

    halves = []
    while leaves[0].shape[0] >= 2 * DOUBLED:  # pairs are combined, so that half as many are left
        halves.append(leaves)
        leaves = combine([x[0:-1:2] for x in leaves], [x[1::2] for x in leaves])
    step = 1
    while step < leaves[0].shape[0]:
        later = combine([x[:-step] for x in leaves], [x[step:] for x in leaves])
        leaves = [torch.cat([x[:step], y]) for x, y in zip(leaves, later)]
        step *= 2
    for firsts in reversed(halves):
        n = firsts[0].shape[0]
        evens = combine([x[: (n - 1) // 2] for x in leaves], [x[2::2] for x in firsts])
        at = torch.arange(n, device=firsts[0].device)
        is_odd = [(at % 2 == 1).reshape(-1, *[1] * (x.dim() - 1)) for x in leaves]
        leaves = [torch.where(odd, x[(at - 1).clamp(min=0) // 2], torch.cat([first[:1], even])[at // 2])
                  for odd, x, first, even in zip(is_odd, leaves, firsts, evens)]
    leaves = [x.flip(0) for x in leaves] if reverse else leaves
    return pytree.tree_unflatten([x.movedim(0, dim) for x in leaves], spec)


def _scanned(combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    """(whether ``_associative_scan`` takes these, whether eager compiles them, how long they are, all tensors)"""
    leaves = pytree.tree_leaves(xs)
    own = combine_mode == "pointwise"
    plain = (callable(combine_fn) and isinstance(dim, int) and isinstance(reverse, bool)
             and combine_mode in ("pointwise", "generic") and len(leaves) > 0
             and all([isinstance(x, torch.Tensor) and -x.dim() <= dim < x.dim() for x in leaves])
             and all([x.shape[dim] == leaves[0].shape[dim] and x.dim() == leaves[0].dim() for x in leaves])
             and all([x.numel() > 0 for x in leaves]))
    return plain, own, leaves[0].shape[dim] if plain else 0, tuple(leaves)


def _takes(combine_fn, init, xs, *, dim=0, reverse=False):
    """Whether ``scan`` takes these."""
    carried, leaves = pytree.tree_leaves(init), pytree.tree_leaves(xs)
    return (callable(combine_fn) and isinstance(dim, int) and isinstance(reverse, bool) and len(carried) > 0
            and all([isinstance(x, torch.Tensor) for x in [*carried, *leaves]])
            and all([-x.dim() <= dim < x.dim() and x.shape[dim] > 0 for x in leaves]))


def _few_tensors(xs, dim=0):
    """Whether they are tensors of one length along a dimension, which is not too long to be written out."""
    leaves = pytree.tree_leaves(xs)
    return (len(leaves) > 0 and all([isinstance(x, torch.Tensor) and x.dim() > dim >= 0 for x in leaves])
            and all([x.shape[dim] == leaves[0].shape[dim] for x in leaves]) and 0 < leaves[0].shape[dim] <= MOST_STEPS)


def _of_tensors(pred, true_fn, false_fn, operands=()):
    """Whether ``torch.cond`` takes these."""
    if isinstance(pred, (bool, int, float)):
        return True
    return (isinstance(pred, torch.Tensor) and pred.numel() == 1 and callable(true_fn) and callable(false_fn)
            and isinstance(operands, (tuple, list))
            and all([isinstance(x, torch.Tensor) for x in pytree.tree_leaves(operands)]))


@on_function(torch.cond)
def cond(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    direct = s.calls.direct
    if not s.inline(s.wrap_raw(_of_tensors), args, kwargs).truth(s):
        raise Unsupported("torch.cond is given arguments that it does not take", "see its documentation",
                          kind="functorch")
    given = dict(zip(("pred", "true_fn", "false_fn", "operands"), args)) | kwargs
    # To choose from both results is better than to read which it is, which the host waits for.
    with s.speculate(kinds=("data-dependent-branch",)), s.journal.temporarily(s, "joining", False):
        return s.inline(s.wrap_raw(_cond), args, kwargs, direct)
    return _both(s, given) or s.inline(s.wrap_raw(_cond), args, kwargs, direct)


def _both(s: Session, given: dict[str, Value]) -> Value | None:
    """Both branches, and what is chosen from their results; None where that is not the same as one of them, or it is
    not the predicate that depends on data."""
    pred = given["pred"]
    if not pred.is_tensor or pred.known(s) is not None:
        return None
    nodes, log = s.tracer.builder.nodes, s.effects.log
    before, found = (len(nodes), len(log), _mutated(s)), None
    with s.speculate(raises=True) as attempt:  # a branch that raises may not be the one that is taken
        operands = given["operands"].items_list(s) if "operands" in given else []
        with s.journal.temporarily(s.tracer, "written_before", next_version()):  # a write to what was there is refused
            results = TupleValue([given[name].call(s, operands, {}) for name in ("true_fn", "false_fn")])
        made = nodes[before[0]:]
        plain = len(log) == before[1] and all(n.repeatable for n in made) and _mutated(s) == before[2]
        # Without ``fullgraph`` a break is better than a product or a convolution that is not needed.
        plain = plain and (s.unbroken or all(info(n.op).in_kernels or n.op == "input" for n in made))
        if plain and s.inline(s.wrap_raw(_alike), [results], {}).truth(s):
            if pred.pytype(s) is not torch.Tensor:  # the class of the predicate says nothing of the results
                pred = s.recording.tensor_of(s.tracer.fresh(pred.handle(s).node))
            found = s.inline(s.wrap_raw(_chosen), [pred, results], {})
        if found is None:
            raise Unsupported("the two branches cannot both be computed", kind="data-dependent-branch")
    return found if attempt.went_through else None


def _mutated(s: Session) -> int:
    """How many tensors from outside have been written."""
    return sum(h.base.mutated for h in s.tracer.inputs)


@on_name((torch_private.LOOPS + "cond", "CondOp.__call__"))
def cond_operator(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) - 1 + len(kwargs) != 4 or set(kwargs) - {"pred", "true_fn", "false_fn", "operands"}:
        return s.inline(fn, args, kwargs)
    return cond(s, args[1:], kwargs)


@on_name((torch_private.LOOPS + "wrap", "Wrap.__call__"))
def wrapped(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An operator that calls a function, which PyTorch's compiler makes a graph of its own."""
    return args[1].call(s, list(args[2:]), kwargs)


@on_name((torch_private.LOOPS + "map", "MapImpl.__call__"))
def map_operator(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 4 or kwargs:
        return s.inline(fn, args, kwargs)
    return _written_out(s, _map_flat, args[1:], {}, args[2], Constant(0))


@on_name((torch_private.LOOPS + "while_loop", "while_loop"))
def while_loop(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    direct = s.calls.direct
    return loops.while_loop(s, _while_loop, args, kwargs) or s.inline(s.wrap_raw(_while_loop), args, kwargs, direct)


@on_name((torch_private.LOOPS + "map", "map"))
def map_(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    xs = kwargs["xs"] if "xs" in kwargs else args[1]
    given = s.inline(s.wrap_raw(_map_as_scan), args, kwargs).items_list(s)
    found = loops.scan(s, given, {}, MOST_STEPS)
    return found.items_list(s)[1] if found is not None else _written_out(s, _map, args, kwargs, xs, Constant(0))


@on_name((torch_private.LOOPS + "scan", "scan"))
def scan(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not s.inline(s.wrap_raw(_takes), args, kwargs).truth(s):
        raise Unsupported("scan is given arguments that it does not take", "see its documentation", kind="functorch")
    return loops.scan(s, args, kwargs, MOST_STEPS) or _written_out(
        s, _scan, args, kwargs, kwargs["xs"] if "xs" in kwargs else args[2], kwargs.get("dim", Constant(0)))


@on_name((torch_private.LOOPS + "associative_scan", "associative_scan"))
def associative_scan(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """In the order in which eager combines, which depends on each bit of the length, where that is a number; else in
    one that is the same for all lengths up to a power of two."""
    plain, own, length, leaves = s.inline(s.wrap_raw(_scanned), args, kwargs).items_list(s)
    compiled = own.truth(s)
    if plain.truth(s) and (compiled or not length.is_leaf) and not (
            compiled and any(backend(x.handle(s).device).host for x in leaves.items_list(s))):  # which eager refuses
        return s.inline(s.wrap_raw(_associative_scan), args, kwargs)
    return s.inline(fn, args, kwargs)


def _written_out(s: Session, loop: object, args: list[Value], kwargs: dict[str, Value], xs: Value,
                 dim: Value) -> Value:
    if not s.inline(s.wrap_raw(_few_tensors), [xs, dim], {}).truth(s):
        raise Unsupported(f"a loop of torch._higher_order_ops has more than {MOST_STEPS} steps, or goes over something "
                          "that is no tensor",
                          "nothing needs to be done: it runs in eager", kind="functorch")
    return s.inline(s.wrap_raw(loop), args, kwargs)
