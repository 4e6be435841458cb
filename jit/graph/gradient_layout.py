"""How eager lays out the gradients that a program asks for by ``torch.autograd.grad`` or a transform of ``torch.func``.

They come as the formulas of PyTorch's operators give them: that of a sum is expanded, and that of a softmax of a
transposed matrix is not transposed. (``backward()`` gives a leaf its gradient in the leaf's own layout.) A program may
read the strides, and whether such a gradient can be changed in place depends on them. A graph has formulas of its own,
so PyTorch is asked: the operations that were recorded for autograd (``saved_tensors.Event``) are done once more, on
tensors that are made up, and so is the call that asks for the gradients.

Where PyTorch does not say, or says what no dense or expanded tensor has, a gradient is laid out as what it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.errors import JitError
from jit.graph import layout
from jit.graph.dims import hint
from jit.graph.nested import of_kind, replaced
from jit.graph.probe import Described, StandIns, gradients, own_numbers, without_traces
from jit.graph.saved_tensors import Event, described

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.functions import FunctionTrace
    from jit.graph.handles import TensorHandle
    from jit.graph.ir import TensorType
    from jit.graph.tracer import Tracer

_SMALL = 1 << 12  # elements of all tensors up to which they are made with numbers, for the device's own kernels


def note_same(tracer: Tracer, given: TensorHandle, made: TensorHandle) -> None:
    """A transform takes a tensor as one of its own."""
    _note(tracer, _same, [given], [made])


def note_leaf(tracer: Tracer, handle: TensorHandle) -> None:
    """A tensor requires grad from here on."""
    _note(tracer, _leaf, [handle], [handle])


def types(tracer: Tracer, roots: list[TensorHandle], tangents: list, wrt: list[TensorHandle],
          create: bool) -> tuple[list[TensorType], list]:
    """-> (the types of the gradients of ``roots`` with respect to ``wrt``, as ``backward.record`` is asked for them,
    and for each the tangent that it is, if it is one)."""
    like = [layout.empty_like(h.type) for h in wrt]
    given = any(t is not None for t in tangents)
    if not given and all(type(n) is int and n < 2 for h in wrt for n in h.type.shape):
        return like, [None] * len(wrt)
    found, seeds = _replayed(tracer, roots, tangents, wrt, create)
    same = [next((t for t, seed in zip(tangents, seeds) if g is not None and g is seed), None) for g in found]
    return [t if g is None else _laid_out(t, g) for t, g in zip(like, found)], same


def note_gradients(tracer: Tracer, roots: list[TensorHandle], tangents: list, wrt: list[TensorHandle],
                   made: list[TensorHandle | None]) -> None:
    """Gradients that can be differentiated themselves have been asked for: other gradients lead through them."""
    asked = [k for k, h in enumerate(made) if h is not None]
    if any(made[k].requires_grad for k in asked):
        _note(tracer, _gradients, [list(roots), list(tangents), [wrt[k] for k in asked], True],
              [made[k] for k in asked])


def note_function(tracer: Tracer, trace: FunctionTrace, gradients: list[TensorHandle | None],
                  made: list[TensorHandle]) -> None:
    """An ``autograd.Function`` has been called, whose backward is what was recorded since its trace began."""
    of = described([trace.tangents, gradients], {})[0]
    _note(tracer, _Function(tuple(tracer.events[trace.events:]), *of, trace.results), [trace.arguments], made)


def _note(tracer: Tracer, fn: object, args: list, made: list[TensorHandle]) -> None:
    args, _, read = described(args, {})
    tracer.events.append(Event(fn, args, {}, read, (), (), False, False, None, tuple(h.number for h in made)))


def _same(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x if x.requires_grad else x.requires_grad_()


def _gradients(roots: list, tangents: list, wrt: list, create: bool) -> list:
    seeds = [torch.ones_like(r) if t is None else t for r, t in zip(roots, tangents)]
    return gradients(roots, wrt, seeds, keep=True, again=create)


@dataclass(frozen=True, eq=False)
class _Function:
    """An ``autograd.Function`` whose backward does recorded operations once more."""

    events: tuple
    tangents: list
    gradients: list
    results: list

    def __call__(self, arguments: list[torch.Tensor]) -> tuple:
        return _Replayed.apply(self, *arguments)


class _Replayed(torch.autograd.Function):

    @staticmethod
    def forward(ctx, function: _Function, *arguments: torch.Tensor) -> tuple:
        ctx.function, ctx.device = function, arguments[0].device.type
        made = StandIns(1, ctx.device)
        return tuple([made.of(node) for node in function.results])

    @staticmethod
    def backward(ctx, *tangents: torch.Tensor) -> tuple:
        function, recorded = ctx.function, torch.is_grad_enabled()
        replay = _Replay(ctx.device, {d.number: t for d, t in zip(function.tangents, tangents)})
        for event in function.events:
            with torch.set_grad_enabled(recorded):
                replay.run(event)
        return None, *[None if d is None else replay.given(d) for d in function.gradients]


_OURS = (_same, _leaf, _gradients)


class _Replay:
    """Operations done once more on tensors that are made up; ``known``: those that are there, by number."""

    def __init__(self, device: str, known: dict[int, torch.Tensor], grad: bool = False) -> None:
        self.stand_ins, self.known = StandIns(1, device, grad=grad), known

    def given(self, v: object) -> object:
        return self.stand_ins.of(replaced(Described, self.of, v))

    def of(self, d: Described) -> torch.Tensor:
        if d.number not in self.known:
            self.known[d.number] = self.stand_ins.of(d)
        return self.known[d.number]

    def run(self, event: Event) -> bool:
        args, kwargs = self.given(event.args), self.given(event.kwargs)
        with own_numbers(event.fn):
            made = list(of_kind(torch.Tensor, event.fn(*args, **kwargs)))
        self.known.update(zip(event.numbers, made))
        return len(made) == len(event.numbers)


def _replayed(tracer: Tracer, roots: list, tangents: list, wrt: list, create: bool) -> tuple[list, list]:
    """Eager's gradients, of tensors that are made up, and the tangents; None for those of which PyTorch does not
    say."""
    asked, _, read = described([list(roots), list(tangents), list(wrt)], {})
    seen = {d.number: d for e in tracer.events for d in e.read}
    seen.update((d.number, d) for d in read)
    small = sum(hint(d.type.numel) for d in seen.values()) <= _SMALL and all(
        backend(d.type.device).host for d in seen.values())
    device = "cpu" if small else "meta"
    replay = _Replay(device, {}, grad=True)
    with without_traces(), torch.inference_mode(False), torch.enable_grad():
        try:
            for event in tracer.events:
                with torch.set_grad_enabled(event.recorded or event.fn in _OURS or type(event.fn) is _Function):
                    if not replay.run(event):
                        return [None] * len(wrt), []
            given = replay.given(asked)
            return _gradients(*given, create), given[1]
        except JitError:
            raise
        except Exception:  # eager's own, of tensors without data or with other numbers than the program's
            return [None] * len(wrt), []


def _laid_out(t: TensorType, g: torch.Tensor) -> TensorType:
    """The type ``t`` of a gradient with the strides of ``g``."""
    if tuple(g.shape) != tuple(map(hint, t.shape)) or g.stride() == tuple(map(hint, t.strides)):
        return t
    strides = g.stride()
    if not all(type(n) is int for n in t.shape):
        found = _of_symbols(t.shape, strides)
    else:
        kept = [d for d, s in enumerate(strides) if s]
        dense = layout.is_dense([t.shape[d] for d in kept], [strides[d] for d in kept])
        found = tuple(strides) if dense and not any(n == 0 for n in t.shape) else None
    return t if found is None else t.replace(strides=found)


def _of_symbols(shape: Sequence[IntExpr], strides: Sequence[int]) -> tuple | None:
    """The strides for sizes that are symbols: 0 where an expanded tensor has it, and dense else."""
    order = sorted((d for d, s in enumerate(strides) if s), key=lambda d: (strides[d], -d))
    made: list[IntExpr] = [0] * len(shape)
    step: IntExpr = 1
    for d in order:
        made[d] = step
        step = step * shape[d]
    return tuple(made) if [hint(s) for s in made] == list(strides) else None
