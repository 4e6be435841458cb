"""What eager keeps for the backward, and whether the program changes it.

Autograd keeps what its formulas read, and a backward raises where that has been written since. A captured graph may
read other values in its backward than eager does. So PyTorch is asked what it keeps, on tensors without data, for the
operations about which it matters:

An input that the program may go on to write, such as an activation to which a residual is added in place, is kept
itself only where eager keeps it too; elsewhere the backward reads what was computed from it, or a copy (``note``).
A result that is reached through an operation of which the program has changed what eager keeps has a backward that
raises (``refused``), and so has one that is reached through an operation whose backward does not take the dtypes or
sizes that its forward takes, such as a scatter that leaves out a part of its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

from jit import torch_private, turns
from jit.devices import backend
from jit.errors import NeedsEager
from jit.graph import probe
from jit.graph.dims import Dim, hint
from jit.graph.gradient_paths import carrying, leaves, passed
from jit.graph.handles import NamedResult, TensorHandle, next_number
from jit.graph.layout import equal_ints
from jit.graph.nested import key, of_kind, replaced
from jit.graph.op_info import op_info
from jit.graph.prim_info import info
from jit.graph.probe import (QUICK, Described, StandIns, ask, gradients, is_quick, of_tensors, plain_ints, smaller,
                             with_sizes)

if TYPE_CHECKING:
    from jit.graph.handles import Base
    from jit.graph.ir import Loc, Node
    from jit.graph.tracer import Tracer

_KINDS = 1 << 12  # calls that are remembered
_SMALL = 1 << 12  # elements of all operands up to which an operation is tried with them as large as they are


class Event(NamedTuple):
    """An operation that was recorded for autograd, or that wrote to memory, with descriptions in the place of
    handles."""

    fn: object
    args: list
    kwargs: dict
    read: list  # descriptions of tensors
    made: tuple  # (base, node that it held when the operation was over) of each result
    wrote: tuple  # bases
    mixed: bool  # whether the tensors are of several dtypes, which nothing has converted
    recorded: bool  # whether gradients are recorded; else it keeps nothing
    loc: object
    numbers: tuple  # those of the handles of results
    nodes: tuple[int, int] = (0, 0)  # the numbers of its nodes: the first, and that behind the last


def described(args: Sequence[object], kwargs: dict[str, object]) -> tuple[list, dict, list]:
    """The arguments of a call with descriptions in the place of handles, and these descriptions."""
    given = {h: Described(h) for h in of_kind(TensorHandle, (args, kwargs))}
    return *replaced(TensorHandle, given.get, [list(args), kwargs]), list(given.values())


def note(tracer: Tracer, fn: Callable, args: Sequence[object], kwargs: dict[str, object],
         result: int | NamedResult | TensorHandle | tuple[TensorHandle, ...] | None, wrote: tuple[Base, ...],
         loc: Loc | None, start: int = 0) -> None:
    """An operation is over: ``wrote`` are the bases that it has written, ``start`` is the number of its first node."""
    made = list(of_kind(TensorHandle, result))
    if tracer.grad_enabled and any(h.requires_grad for h in made) or wrote:
        given_args, given_kwargs, read = described(args, kwargs)
        mixed = not tracer.autocast and len({d.type.dtype for d in read}) > 1
        event = Event(fn, given_args, given_kwargs, read, tuple((h.base, h.base.node) for h in made), wrote, mixed,
                      tracer.grad_enabled, loc, tuple([h.number for h in made]),
                      (start, tracer.builder.next_id) if start else (0, 0))
        tracer.events.append(event)
        if tracer.grad_enabled:
            _note_kept_inputs(tracer, event)


def _note_kept_inputs(tracer: Tracer, event: Event) -> None:
    """Which of the tensors that came in does eager keep for an operation?"""
    bases = {id(d.base): d.base for d in event.read if d.base.fragile}
    if bases:
        effects = _effects(event)
        for key, base in bases.items():
            if effects is None or key in effects[0]:
                tracer.set(base, "fragile", False)


def note_checkpoint(tracer: Tracer, given: Sequence[TensorHandle], made: Sequence[TensorHandle],
                    loc: Loc | None) -> None:
    """A checkpointed call is over: eager keeps the tensors that it was given as arguments, and nothing of what it has
    computed. What it reads besides is read as it is when the backward computes it again."""
    if tracer.grad_enabled and any(h.requires_grad for h in made):
        args, _, read = described([list(given)], {})
        tracer.events.append(Event(checkpoint, args, {}, read, tuple((h.base, h.base.node) for h in made), (), False,
                                   True, loc, (next_number(),)))
        _note_kept_inputs(tracer, tracer.events[-1])


def read_again(tracer: Tracer) -> set[Node]:
    """What nothing but checkpointed calls reads."""
    inside: set[Node] = set()
    outside: set[Node] = set()
    for n in tracer.builder.nodes:
        (inside if n.loc is not None and n.loc.region else outside).update(n.inputs)
    return inside - outside


def checkpoint(given: list[torch.Tensor]) -> torch.Tensor:
    """Stands for a checkpointed call in what is noted for autograd: it keeps what it is given."""
    return _Kept.apply(torch.zeros((), requires_grad=True), *given)


class _Kept(torch.autograd.Function):

    @staticmethod
    def forward(ctx, first: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*given)
        return first.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple:
        return gradient, *[None] * len(ctx.saved_tensors)


_known: dict = {}  # what a call is -> its effects by position


def _effects(event: Event) -> tuple | None:
    """Ids of the bases of which autograd keeps something, and of those whose version counters go on; None where PyTorch
    does not say."""
    key = _key(event)
    if key is None or key not in _known:
        found = _asked(event)
        if key is None:
            return _by_id(event, found)
        if len(_known) >= _KINDS:
            _known.clear()
        _known[key] = found
    return _by_id(event, _known[key])


def _by_id(event: Event, found: tuple | None) -> tuple | None:
    if found is None:
        return None
    read, made, advanced = found
    return ({id(event.read[i].base) for i in read} | {id(event.made[i][0]) for i in made},
            {id(event.read[i].base) for i in advanced})


def _asked(event: Event) -> tuple | None:
    """The same as positions in ``read`` and ``made`` of what is kept, and in ``read`` of what is written."""
    kinds = [backend(d.type.device) for d in event.read]
    small, sizes = sum(hint(d.type.numel) for d in event.read) <= _SMALL, None
    made_on: list[tuple[str | None, dict[int, int] | None, Event]] = []
    if not small:
        numbers = plain_ints((event.args, event.kwargs))
        sizes = smaller(event.read, numbers)
        own = {n for d in event.read for n in map(hint, d.type.shape)}
        if not own.isdisjoint(numbers):  # such as the number of features: made smaller with them, where that is taken
            others = smaller(event.read, [n for n in numbers if n not in own], own.intersection(numbers))
            args, kwargs = with_sizes(others, (event.args, event.kwargs))
            made_on.append(("cpu", others, event._replace(args=args, kwargs=kwargs)))
    made_on = [way for way in (("cpu", sizes, event), *made_on) if _is_small(way[2], way[1])]
    # PyTorch's kernels for tensors without data are written in Python, slow, and may load most of PyTorch.
    made_on.append(("meta", None, event))
    if (any(kind.saves_otherwise for kind in kinds) and not all(kind.host for kind in kinds)
        and all(d.type.dtype.is_floating_point for d in event.read)):
        made_on.insert(0, (None, sizes, event))  # of floats there is no index that a kernel could fail on
    for device, others, tried in made_on:
        given = StandIns(1, device, others, grad=True)
        before = [torch_private.version_of(given.of(d)) for d in event.read]
        answer = ask(tried.fn, tried.args, tried.kwargs, given, True, keeping=True)
        if answer.error is not None:  # it may not take tensors without data
            continue
        kept = answer.kept
        read = tuple(i for i, d in enumerate(event.read) if torch_private.storage_id(given.of(d)) in kept)
        made = tuple(i for i, (t, _) in enumerate(zip(of_kind(torch.Tensor, answer.result), event.made))
                     if torch_private.storage_id(t) in kept)
        return read, made, tuple(i for i, d in enumerate(event.read)
                                 if torch_private.version_of(given.of(d)) != before[i])
    return None


def _is_small(event: Event, sizes: dict[int, int] | None) -> bool:
    """Whether an operation can be made on tensors of these sizes, with data: it computes few elements, and draws
    nothing on a thread that may not."""
    if op_info(_name(event)).untried or turns.here() and probe.may_draw(event.fn):  # type: ignore[arg-type]
        return False
    made = sum(hint(node.type.numel) for _, node in event.made if not node.several)
    return is_quick(event.read, sizes or {}, () if made <= QUICK else (event.args, event.kwargs))


_backwards: dict = {}  # what a call is -> what its backward raises, or None


def _backward_error(event: Event) -> str | None:
    """What the backward of an operation says to the dtypes and sizes of its operands, whatever their values: PyTorch is
    asked, on small tensors."""
    unequal = _is_unequal(event)
    if unequal:
        for d in event.read:
            for n in d.type.shape:
                int(n)  # recorded: the error tells the sizes
    key = _key(event)
    if key is None or op_info(_name(event)).untried:
        return None
    if key not in _backwards:
        if len(_backwards) >= _KINDS:
            _backwards.clear()
        _backwards[key] = _asked_backward(event, unequal)
    return _backwards[key]


def _key(event: Event) -> tuple[object, tuple[tuple[object, ...], ...], tuple[tuple, ...]] | None:
    """What a call is, but for the values of its tensors: an equal one keeps and writes the same. None for arguments
    that are no keys."""
    places = {id(d): i for i, d in enumerate(event.read)}

    def kind(v: object) -> tuple[object, ...]:
        if isinstance(v, Described):
            return places[id(v)], v.type.dtype, tuple(map(hint, v.type.shape)), v.type.device.type, v.requires_grad
        return hint(v) if type(v) is Dim else (type(v), v)

    call = event.fn, key(kind, event.args), key(kind, event.kwargs)
    try:
        hash(call)
    except TypeError:
        return None
    return call


_OF_TYPES = ("dtype", "invalid gradient", "must match the size")  # in errors that do not depend on values


def _name(event: Event) -> str:
    """The operator's, as in its row."""
    return getattr(event.fn, "__name__", "").partition(".")[0].rstrip("_")


def _is_unequal(event: Event) -> bool:
    """Whether two operands differ in shape that the backward of an operation wants alike. The answer is recorded."""
    pair = [event.args[position] if position < len(event.args) else event.kwargs.get(name)
            for name, position in op_info(_name(event)).backward_equal]
    return (bool(pair) and all(isinstance(v, Described) for v in pair)
            and not equal_ints(pair[0].type.shape, pair[1].type.shape))


def _asked_backward(event: Event, unequal: bool) -> str | None:
    sizes, error = {} if unequal else smaller(event.read), None
    for fill in (1, None):
        given = StandIns(fill, "meta" if unequal else "cpu", sizes, grad=True)
        answer = ask(event.fn, event.args, event.kwargs, given, True)
        if answer.error is not None:
            return None
        made = [t for t in of_kind(torch.Tensor, answer.result) if t.requires_grad]
        wanted = [t for t in map(given.of, event.read) if t.requires_grad]
        error = made and wanted and of_tensors(gradients, made, wanted).error
        if not error or not any(said in str(error) for said in _OF_TYPES):
            return None
    return str(error)


def refused(tracer: Tracer, roots: list[TensorHandle]) -> list:
    """For each of ``roots`` (handles), why a backward from it raises in eager: where a value was changed that autograd
    keeps, or an operation's backward does not take its operands; None where it does not.

    Raises NeedsEager where such a value was changed by way of ``data``: eager's backward reads what is there then.
    """
    writes: dict = {}  # id of a base -> numbers of the events that wrote to it
    for k, event in enumerate(tracer.events):
        for base in event.wrote:
            writes.setdefault(id(base), []).append(k)
    last = {base: numbers[-1] for base, numbers in writes.items()}
    for base, before in tracer.wrote_unseen:
        last[id(base)] = max(before, last.get(id(base), -1))
    suspects = [(k, e) for k, e in enumerate(tracer.events) if last and e.recorded
                and any(last.get(id(b), -1) > k for b in (*(d.base for d in e.read), *(b for b, _ in e.made)))]
    mixed = [e for e in tracer.events if e.mixed and e.recorded and any(d.requires_grad for d in e.read)]
    if not suspects and not mixed:
        return [None] * len(roots)
    sources = [h.base.input or h.node for h in leaves(tracer)]
    ends = [root.node for root in roots]  # first of all: what a view shows now may be a node that is made only here
    carries = carrying(tracer.builder.nodes, sources)
    asked: dict = {}

    def effects(k: int) -> tuple[set[int], ...]:
        if k not in asked:
            asked[k] = _effects(tracer.events[k])
        return asked[k]

    def change_of(k: int) -> Event | None:
        """The event that changes what event ``k`` keeps."""
        for base in (effects(k) or ((),))[0]:
            for later in writes.get(base, ()):
                if later > k and (effects(later) is None or base in effects(later)[1]):
                    return tracer.events[later]
        return None

    found = []
    for end in ends:
        way = passed([end], carries)
        why = None
        for k, event in suspects:
            if not any(node in way for _, node in event.made):
                continue
            if any(before > k and id(base) in (effects(k) or ((),))[0] for base, before in tracer.wrote_unseen):
                raise NeedsEager("what autograd keeps for the backward was changed by way of .data",
                                 "clone() it first", kind="gradient")
            if (change := change_of(k)) is not None:
                why = _message(event, change)
                break
        if why is None:
            why = next((error for event in mixed if any(node in way for _, node in event.made)
                        and (error := _backward_error(event))), None)
        found.append(why)
    return found


def held_by_caller(tracer: Tracer, outputs: list[TensorHandle], wrt: tuple[int, ...],
                   tangents: tuple[int, ...]) -> tuple:
    """What autograd keeps, for the backward from the results ``tangents`` to the inputs ``wrt`` (positions), of the
    tensors that the caller has: he may write to them.

    Returns:
        watched: ((("input" | "output", position), tangents, wrt), ..), the latter two as bits for positions in what was
            given: a backward that goes from any of these results to any of these inputs raises when the tensor has
            been written.
        loose: positions of the results that autograd does not keep: they may be written, and no backward raises.
        unsaid: (("input" | "output", position), ..) that operations read or made of which PyTorch does not say what it
            keeps, or that share memory with other inputs.
    """
    held: dict = {}
    for kind, handles in (("input", tracer.inputs), ("output", outputs)):
        for k, h in enumerate(handles):
            if h.base.region is None and (kind == "input") == (h.base.input is not None):
                held.setdefault(id(h.base), []).append((kind, k))
    events = [e for e in tracer.events if e.recorded and (any(id(d.base) in held for d in e.read)
                                                         or any(id(b) in held for b, _ in e.made))]
    nodes = tracer.builder.nodes
    sources = {tracer.inputs[i].base.input: 1 << k for k, i in enumerate(wrt)}
    carries = carrying(nodes, sources) if events else ()
    ahead = {n: sources.get(n, 0) for n in carries}  # node -> the inputs that it leads to
    behind = dict.fromkeys(carries, 0)  # node -> the results that lead to it
    for n in nodes:
        if n in ahead:
            for i in n.inputs:
                ahead[n] |= ahead.get(i, 0)
    for k, i in enumerate(tangents):
        if outputs[i].node in behind:
            behind[outputs[i].node] |= 1 << k
    for n in reversed(nodes):
        if behind.get(n):
            for i in n.inputs:
                if i in behind:
                    behind[i] |= behind[n]
    found: dict = {}
    unknown: set = set()
    for event in events:
        ways = [(behind[n], ahead[n]) for _, n in event.made if behind.get(n) and ahead[n]]
        effects = _effects(event) if ways else ((),)
        if effects is None:
            unknown.update(id(b) for b in (*(d.base for d in event.read), *(b for b, _ in event.made)))
            continue
        for base in effects[0]:
            for place in held.get(base, ()):
                for way in ways:
                    found[place, *way] = None
    kept = {place for place, *_ in found}
    loose = tuple(k for k, h in enumerate(outputs) if h.base.input is None
                  and id(h.base) not in unknown and ("output", k) not in kept)
    unsaid = tuple((kind, k) for kind, handles in (("input", tracer.inputs), ("output", outputs))
                   for k, h in enumerate(handles) if id(h.base) in unknown or h.base.region is not None)
    return tuple(found), loose, unsaid


def keeps(tracer: Tracer, base) -> bool:
    """Whether autograd keeps the memory of ``base`` for a backward, as far as PyTorch says."""
    for event in tracer.events:
        if event.recorded and (any(d.base is base for d in event.read) or any(b is base for b, _ in event.made)):
            effects = _effects(event)
            if effects is None or id(base) in effects[0]:
                return True
    return False


def kept_by(tracer: Tracer, history: set[Node]) -> set[Node]:
    """The nodes of a history whose operations keep something for the backward, which a second one misses. Where PyTorch
    does not say, a prim does that keeps something for its own gradient."""
    found = {n.id: n for n in history if not info(n.op).saves_nothing}
    for event in tracer.events:
        nodes = [k for k in range(*event.nodes) if k in found]
        if nodes and event.recorded and _passes_twice(event):
            for k in nodes:
                del found[k]
    return set(found.values())


_twice: dict = {}  # what a call is -> whether its backward may come a second time


def _passes_twice(event: Event) -> bool:
    """Whether the backward of an operation may come a second time, since nothing is kept for it: no number either,
    which hooks do not see."""
    key = _key(event)
    if key is None or key not in _twice:
        given = StandIns(1, "cpu", smaller(event.read, plain_ints(event.args)), grad=True)
        answer = ask(event.fn, event.args, event.kwargs, given, True)
        made = [] if answer.error else [t for t in of_kind(torch.Tensor, answer.result) if t.grad_fn is not None]
        wanted = [t for t in map(given.of, event.read) if t.requires_grad]
        found = bool(made and wanted) and all(of_tensors(gradients, made, wanted).error is None for _ in range(2))
        if key is None:
            return found
        if len(_twice) >= _KINDS:
            _twice.clear()
        _twice[key] = found
    return _twice[key]


def _message(event: Event, change: Event) -> str:
    def place(loc: Loc | None) -> str:
        return "" if loc is None else " at {}:{}".format(*(loc.user or loc)[:2])

    name = getattr(event.fn, "__name__", "an operation")
    return ("one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{name}(){place(event.loc)} has kept it, and "
            f"{getattr(change.fn, '__name__', 'an operation')}(){place(change.loc)} has changed it since")
