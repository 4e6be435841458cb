"""Which kernels ``scaled_dot_product_attention`` may choose among, as ``torch.nn.attention.sdpa_kernel`` sets it: its
switches are followed while capturing, and replayed only if the region leaves them changed. Library calls see the real
switches, so a choice made inside the region is part of the graph: the composed form alone, or a break. What they are at
the start of the region is guarded where it matters."""

from __future__ import annotations

from ... import torch_private
from ..tables import on_call
from ..values.constant import Constant

SETTERS = {fn: name for name, fn in torch_private.attention_setters.items()}
GETTERS = {name: fn for name, fn in torch_private.attention_getters.items() if name in torch_private.attention_setters}


def changed(s) -> bool:
    return any(now != GETTERS[name]() for name, now in s.attention.items())


def is_read(graph) -> bool:
    """Whether what a graph computes, its layouts and its gradient depend on the switches."""
    return any("attention" in n.attrs["target"] for n in graph.nodes if n.op == "aten_call")


def _setter(fn, name):
    @on_call(fn)
    def switch(s, args, kwargs):
        s.guards.state.read.add("attention")
        s.set_entry(s.attention, name, args[0].truth(s))
        s.effect(fn, args)
        on = {n for n in GETTERS if s.attention.get(n, GETTERS[n]())}
        choice = None if not changed(s) else "math" if on == {"math"} else "other"
        s.tracer.set(s.tracer.builder, "attention", choice)
        return Constant(None)


def _getter(fn, name):
    @on_call(fn)
    def is_on(s, args, kwargs):
        s.guards.state.read.add("attention")
        return Constant(s.attention.get(name, fn()))


for _fn, _name in SETTERS.items():
    if _name in GETTERS:
        _setter(_fn, _name)
        _getter(GETTERS[_name], _name)


def reduced(s, effects):
    """The effects without those on these switches, when they are in the end what they were."""
    return effects if changed(s) else [e for e in effects if e[0] not in SETTERS]
