"""What eager keeps for the backward, and whether the program changes it.

Autograd keeps what its formulas read, and a backward raises where that has been written since. A captured graph may read other values in its backward than eager does. So PyTorch is
asked what it keeps, on tensors without data, for the operations about which it matters:

An input that the program goes on to write, such as an activation to which a residual is added in place, is kept itself only where eager keeps it too; elsewhere a copy is (``note``).
A result that is reached through an operation of which the program has changed what eager keeps has a backward that raises (``refused``), and so has one that is
reached through an operation whose backward does not take the dtypes that its forward takes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from jit import torch_private
from jit.graph.dims import Dim, hint
from jit.graph.handles import NamedResult, TensorHandle
from jit.graph.trial import Described, StandIns, error_of, smaller, without_traces

_KINDS = 1 << 12  # calls that are remembered
_SMALL = 1 << 12  # elements of all operands up to which an operation that cannot do without data is tried with some


class Event(NamedTuple):
    """An operation that was recorded for autograd, or that wrote to memory, with descriptions in the place of handles."""

    fn: object
    args: list
    kwargs: dict
    read: list  # descriptions of tensors
    made: tuple  # (base, node that it held when the operation was over) of each result
    wrote: tuple  # bases
    mixed: bool  # whether the tensors are of several dtypes, which nothing has converted
    loc: object


def note(tracer, fn, args, kwargs, result, wrote, loc):
    """An operation is over: ``wrote`` are the bases that it has written."""
    made: list = []
    _results(result, made)
    if tracer.grad_enabled and any(h.requires_grad for h in made) or wrote:
        read: list = []
        given: dict = {}
        given_args, given_kwargs = _described(list(args), given, read), _described(dict(kwargs), given, read)
        mixed = not tracer.autocast and len({d.type.dtype for d in read}) > 1
        event = Event(fn, given_args, given_kwargs, read, tuple((h.base, h.base.node) for h in made), wrote, mixed, loc)
        tracer.events.append(event)
        if tracer.fragile and tracer.grad_enabled:
            _note_kept_inputs(tracer, event)


def _results(v, found: list):
    if isinstance(v, TensorHandle):
        found.append(v)
    elif isinstance(v, (list, tuple, NamedResult)):
        for e in v:
            _results(e, found)


def _described(v, given: dict, read: list):
    if isinstance(v, TensorHandle):
        if id(v) not in given:
            given[id(v)] = Described(v.type, v.requires_grad, v.is_conj, v.base)
            read.append(given[id(v)])
        return given[id(v)]
    if type(v) in (list, tuple):
        return type(v)([_described(e, given, read) for e in v])
    if isinstance(v, dict):
        return {k: _described(e, given, read) for k, e in v.items()}
    return v


def _note_kept_inputs(tracer, event: Event):
    """Which of the activations that came in does eager keep for an operation?"""
    read = [d for d in event.read if any(d.base is b for b in tracer.fragile)]
    if read:
        effects = _effects(event)
        found = {id(d.base) for d in read if effects is None or id(d.base) in effects[0]}
        if found:
            tracer.set(tracer, "fragile", tuple(b for b in tracer.fragile if id(b) not in found))


def _effects(event: Event) -> tuple | None:
    """Ids of the bases of which autograd keeps something, and of those whose version counters go on; None where PyTorch does not say."""
    small = sum(hint(d.type.numel) for d in event.read) <= _SMALL
    for device in ("meta", "cpu") if small and all(d.type.device.type == "cpu" for d in event.read) else ("meta",):
        given = StandIns(1, device, grad=True)
        args, kwargs = given.of(event.args), given.of(event.kwargs)
        before = {id(d): torch_private.version_of(given.of(d)) for d in event.read}
        kept: set = set()

        def pack(t):
            kept.add(torch_private.storage_id(t))
            return t

        try:
            with without_traces(), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                result = event.fn(*args, **kwargs)
        except Exception:  # of PyTorch's: it may not take tensors without data
            continue
        made = [t for t in _tensors(result)]
        found = {id(d.base) for d in event.read if torch_private.storage_id(given.of(d)) in kept}
        found |= {id(base) for t, (base, _) in zip(made, event.made) if torch_private.storage_id(t) in kept}
        advanced = {id(d.base) for d in event.read if torch_private.version_of(given.of(d)) != before[id(d)]}
        return found, advanced
    return None


def _tensors(v):
    if isinstance(v, torch.Tensor):
        yield v
    elif isinstance(v, (list, tuple)):
        for e in v:
            yield from _tensors(e)


_backwards: dict = {}  # what a call is -> what its backward raises, or None


def _backward_error(event: Event) -> str | None:
    """What the backward of an operation says to the dtypes of its operands, whatever their values: PyTorch is asked, on small tensors."""
    key = event.fn, _kind(event.args), _kind(event.kwargs)
    try:
        if key not in _backwards:
            if len(_backwards) >= _KINDS:
                _backwards.clear()
            _backwards[key] = _tried(event)
        return _backwards[key]
    except TypeError:  # an argument that is no key
        return None


def _kind(v):
    if isinstance(v, Described):
        return v.type.dtype, tuple(map(hint, v.type.shape)), v.type.device.type, v.requires_grad
    if isinstance(v, (list, tuple)):
        return tuple(map(_kind, v))
    if isinstance(v, dict):
        return tuple((k, _kind(e)) for k, e in v.items())
    return hint(v) if type(v) is Dim else (type(v), v)


def _tried(event: Event) -> str | None:
    sizes, error = smaller(event.read), None
    for fill in (1, None):
        given = StandIns(fill, "cpu", sizes, grad=True)
        made: list = []
        if error_of(lambda: made.extend(_tensors(event.fn(*given.of(event.args), **given.of(event.kwargs)))), (), {}, True) is not None:
            return None
        made = [t for t in made if t.requires_grad]
        wanted = [t for t in map(given.of, event.read) if t.requires_grad]
        error = made and wanted and error_of(torch.autograd.grad, (made, wanted, [torch.ones_like(t) for t in made]), {"allow_unused": True}, True)
        if not error or "dtype" not in str(error):
            return None
    return str(error)


def refused(tracer, roots) -> list:
    """For each of ``roots`` (handles), why a backward from it raises in eager: where a value was changed that autograd keeps, or an operation's backward does not take its
    operands; None where it does not."""
    from jit.graph.backward import carrying, leaves, passed  # which asks for this before a gradient is recorded

    writes: dict = {}  # id of a base -> numbers of the events that wrote to it
    for k, event in enumerate(tracer.events):
        for base in event.wrote:
            writes.setdefault(id(base), []).append(k)
    suspects = [(k, e) for k, e in enumerate(tracer.events) if writes and any(writes.get(id(b), (-1,))[-1] > k for b in (*(d.base for d in e.read), *(b for b, _ in e.made)))]
    mixed = [e for e in tracer.events if e.mixed and any(d.requires_grad for d in e.read)]
    if not suspects and not mixed:
        return [None] * len(roots)
    sources = [h.base.input or h.node for h in leaves(tracer)]
    ends = [root.node for root in roots]  # first of all: what a view shows now may be a node that is made only here
    carries = carrying(tracer.builder.nodes, sources)
    asked: dict = {}

    def effects(k):
        if k not in asked:
            asked[k] = _effects(tracer.events[k])
        return asked[k]

    def change_of(k):
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
            if any(node in way for _, node in event.made) and (change := change_of(k)) is not None:
                why = _message(event, change)
                break
        if why is None:
            why = next((error for event in mixed if any(node in way for _, node in event.made) and (error := _backward_error(event))), None)
        found.append(why)
    return found


def _message(event: Event, change: Event) -> str:
    def place(loc):
        return "" if loc is None else " at {}:{}".format(*(loc.user or loc)[:2])

    name = getattr(event.fn, "__name__", "an operation")
    return ("one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{name}(){place(event.loc)} has kept it, and {getattr(change.fn, '__name__', 'an operation')}(){place(change.loc)} has changed it since")
