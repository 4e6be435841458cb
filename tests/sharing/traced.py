"""The same questions, asked of the tracer alone: no bytecode, no kernels. The whole database takes minutes, and a
finding is one of the tracer's own."""

from __future__ import annotations

import warnings

import torch

from graph_harness import CountingTracer, TraceMode, unwrap
from inplace_harness import tensors
from jit.errors import JitError
from jit.graph.shape_env import ShapeEnv
from jit.graph.handles import TensorHandle, offset_in_base
from .programs import fresh


def _eager(op, args, kwargs):
    """What is told of each tensor among the results."""
    given = tensors([args, kwargs])
    owners = {t.untyped_storage()._cdata: k for k, t in enumerate(given)}
    told = []
    for r in tensors([op(*args, **kwargs)]):
        same = next((k for k, t in enumerate(given) if t is r), None)
        owner = owners.get(r.untyped_storage()._cdata) if r.numel() and r.layout is torch.strided else None
        place = (tuple(r.shape), r.stride(), r.storage_offset()) if owner is not None else None
        told.append((same, owner, place, r.requires_grad, r.is_leaf))
    return told


def _handles(v, found):
    if isinstance(v, TensorHandle):
        found.append(v)
    elif isinstance(v, (list, tuple)):
        for e in v:
            _handles(e, found)
    return found


def _traced(op, args, kwargs):
    given = tensors([args, kwargs])
    mode = TraceMode(CountingTracer(ShapeEnv()))
    with mode:
        result = unwrap(op(*args, **kwargs))
    known = [mode.captured[id(t)][1]._handle if id(t) in mode.captured else None for t in given]
    told = []
    for h in _handles(result, []):
        same = next((k for k, g in enumerate(known) if g is h), None)
        owner = next((k for k, g in enumerate(known) if g is not None and g.base is h.base),
                     None) if 0 not in h.type.shape else None
        place = (tuple(h.type.shape), tuple(h.type.strides), offset_in_base(h)) if owner is not None else None
        told.append((same, owner, place, h.requires_grad, h.is_leaf or not h.requires_grad))
    return told


def differences(op, args, kwargs) -> list:
    """Where no argument requires grad, and where one of them does after the other: what differs from eager, as
    texts."""
    count = len([t for t in tensors([args, kwargs]) if t.is_floating_point() or t.is_complex()])
    found = []
    for chosen in (None, *range(count)):
        told = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for run in (_eager, _traced):
                given = fresh(args), fresh(kwargs)
                if chosen is not None:
                    [t
                     for t in tensors(list(given)) if t.is_floating_point() or t.is_complex()][chosen].requires_grad_()
                torch.manual_seed(0)
                try:
                    told.append(run(op, *given))
                except JitError:
                    told.append(None)  # a break
                except Exception as error:
                    told.append(None if run is _eager else f"{type(error).__name__}: {error}")
        eager, traced = told
        if (eager is not None and traced is not None
            and (isinstance(traced,
                            str) or not all(_alike(e, t) for e, t in zip(eager, traced)) or len(eager) != len(traced))):
            found.append(f"argument {chosen} requires grad: {eager} in eager, {traced} traced"[:400])
    return found


def _alike(e, t) -> bool:
    """An offset that the tracer does not know, of memory that is read as another dtype, is left out."""
    if e[2] is not None and t[2] is not None and t[2][2] is None:
        e, t = (*e[:2], e[2][:2], *e[3:]), (*t[:2], t[2][:2], *t[3:])
    return e == t
