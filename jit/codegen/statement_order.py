"""The body of a kernel before it is finished: without what nothing uses, and with stores behind the loads of what they
overwrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loops import KernelBuilder


def drop_dead(builder: KernelBuilder) -> KernelBuilder:
    """Remove statements whose value nothing uses from a builder's body."""
    live, body = set(), []
    for s in reversed(builder.body):
        if s.effect or s.dst in live:
            live.update(s.uses)
            body.append(s)
    builder.body = body[::-1]
    return builder


def reads_first(builder: KernelBuilder) -> KernelBuilder:
    """Move each store behind the last load of its buffer: what takes the memory of an input or operand is written when
    all of the old elements have been read."""
    last = {s.loaded: k for k, s in enumerate(builder.body) if s.loaded}
    waiting, body = {}, []
    for k, s in enumerate(builder.body):
        if last.get(s.stored, -1) > k:
            waiting.setdefault(last[s.stored], []).append(s)
        else:
            body.append(s)
        body += waiting.pop(k, ())
    builder.body = body
    return builder
