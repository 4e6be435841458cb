"""Whether eager keeps an input for the backward.

Autograd keeps what its formulas read, and finds out when that has been written since. A captured graph may read other values in its backward than eager does, so an input
that the program goes on to write, such as an activation to which a residual is added in place, is kept itself only where eager keeps it too; elsewhere a copy is.
"""

from __future__ import annotations

import torch

from jit import torch_private
from jit.graph.dims import Dim, hint
from jit.graph.handles import TensorHandle
from jit.graph.sym_float import SymFloat


def note(tracer, fn, args, kwargs):
    """Look at an operation that has been recorded: which of the activations that came in does eager keep for it?"""
    if not tracer.grad_enabled or not tracer.fragile:
        return
    read: list = []
    _find((args, kwargs), tracer.fragile, read)
    if not read:
        return
    kept = _kept_by_eager(fn, args, kwargs)
    found = {id(h.base) for h in read if kept is None or id(h) in kept}
    if found:
        tracer.set(tracer, "fragile", tuple(b for b in tracer.fragile if id(b) not in found))


def _find(v, bases, found):
    if isinstance(v, TensorHandle):
        if any(v.base is b for b in bases):
            found.append(v)
    elif isinstance(v, (list, tuple)):
        for e in v:
            _find(e, bases, found)
    elif isinstance(v, dict):
        _find(tuple(v.values()), bases, found)


def _kept_by_eager(fn, args, kwargs):
    """Ids of the handles whose memory autograd keeps for ``fn(*args, **kwargs)``, tried on tensors without data; None where that cannot be told."""
    made: dict = {}  # id of a handle -> a tensor of its type
    kept: set = set()

    def pack(t):
        kept.add(torch_private.storage_id(t))
        return t

    blank, named = _blank(list(args), made), _blank(dict(kwargs), made)
    state = torch.random.get_rng_state()
    try:
        with torch.enable_grad(), torch_private.WithoutAutocast(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = fn(*blank, **named)
    except Exception:  # of PyTorch's: it may not take tensors without data
        return None
    finally:
        torch.random.set_rng_state(state)
    del result
    return {k for k, (t, _) in made.items() if torch_private.storage_id(t) in kept}


def _blank(v, made):
    if isinstance(v, TensorHandle):
        if id(v) not in made:
            t = v.type
            x = torch.empty_strided(tuple(map(hint, t.shape)), tuple(map(hint, t.strides)), dtype=t.dtype, device="meta")
            made[id(v)] = (x, x.requires_grad_() if v.requires_grad else x)
            if v.requires_grad:  # no leaf, which operations may write
                made[id(v)] = (x, x.view_as(x))
        return made[id(v)][1]
    if type(v) is Dim:
        return hint(v)
    if type(v) is SymFloat:
        return v.value
    if type(v) in (list, tuple):
        return type(v)([_blank(e, made) for e in v])
    if isinstance(v, dict):
        return {k: _blank(e, made) for k, e in v.items()}
    if isinstance(v, slice):
        return slice(_blank(v.start, made), _blank(v.stop, made), _blank(v.step, made))
    if isinstance(v, (torch.device, torch.Generator)):
        return torch.device("meta") if isinstance(v, torch.device) else None
    return v
