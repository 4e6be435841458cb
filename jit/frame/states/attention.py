"""Which kernels ``scaled_dot_product_attention`` may choose among, as ``torch.nn.attention.sdpa_kernel`` sets it.
Library calls see the real switches, so a choice made inside the region is part of the graph: the composed form alone,
or a break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import torch_private
from ..tables import on_call
from ..tracked_state import TrackedState, part
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

_GETTERS = {name: fn for name, fn in torch_private.attention_getters.items() if name in torch_private.attention_setters}


def _tell_tracer(s: Session) -> None:
    on = {name for name in _GETTERS if s.states.peek(ATTENTION, name)}
    choice = None if not s.states.differs(ATTENTION) else "math" if on == {"math"} else "other"
    s.tracer.set(s.tracer.builder, "attention", choice)


ATTENTION = TrackedState("the choice of attention kernels", lambda name: _GETTERS[name](), part("attention"),
                               enter=_tell_tracer)


def is_read(graph) -> bool:
    """Whether what a graph computes, its layouts and its gradient depend on the switches."""
    return any("attention" in n.attrs["target"] for n in graph.nodes if n.op == "aten_call")


def _register(name, getter, setter) -> None:
    @on_call(setter)
    def switch(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
        s.states.set(ATTENTION, args[0].truth(s), setter, args, (name,))
        return Constant(None)

    @on_call(getter)
    def is_on(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
        return Constant(s.states.get(ATTENTION, name))


for _name, _getter in _GETTERS.items():
    _register(_name, _getter, torch_private.attention_setters[_name])
