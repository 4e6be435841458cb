"""Random numbers that a function inside ``torch.vmap`` draws: other ones for each slice (``randomness="different"``),
or the same for all.

Each slice its own: they are drawn for all slices at once, of a size with the map's in front, where the map is called,
which is how PyTorch draws them, so that the generator gives the same numbers in the same order. The function is given a
slice of these. All the same: they are drawn once, like one slice. What is told here is how the arguments of a draw
change; what no rule is for is refused where the map ends, since it has drawn inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F

from ...graph import mapping, maps
from ...graph.binding import resolve
from .. import tables
from ..values import unmapped
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.lifting import lift

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from .transforms import Level

MOST_ORDERS = 64  # slices for which random orders are drawn one by one


class Rule(NamedTuple):
    """``run``: fn(draw, args, kwargs) -> what the function is given, or None. ``draws``: random numbers."""

    run: Callable
    draws: bool


RULES: dict[str | Callable, Rule] = {}  # by the name of an operator, or by a function of Python


def rule(*names: str | Callable, draws: bool = True) -> Callable:
    def register(fn: Callable) -> Callable:
        RULES.update(dict.fromkeys(names, Rule(fn, draws)))
        return fn

    return register


class Draw:
    """One call that draws inside of a map.

    Attributes:
        each: whether each slice has its own numbers.
    """

    def __init__(self, s: Session, at: int, fn: object) -> None:
        self.s, self.at, self.fn = s, at, fn
        self.level: Level = s.levels[at]
        self.each = self.level.randomness == "different"
        whole = self.level.entered[0][-1].handle(s)
        self.count, self.device = whole.shape[0], whole.device

    def differs(self, tensor: Value) -> bool:
        nodes = self.s.tracer.builder.nodes
        return tensor.handle(self.s).node in maps.depends(nodes, self.level.number)

    def whole(self, tensor: Value, rank: int | None = None) -> Value:
        """All slices of a tensor, which broadcasts to ``rank`` dimensions of each; without a gradient."""
        s, handle = self.s, tensor.handle(self.s)
        if self.differs(tensor):
            handle = s.torch_call(torch.Tensor.detach, [tensor], {}).handle(s)
            found = s.recording.tensor_of(mapping.collect(s.tracer, handle, self.level.number, self.count))
        else:
            sizes = TupleValue([lift(s, d) for d in (self.count, *handle.shape)])
            found = s.torch_call(torch.Tensor.expand, [tensor, sizes], {})
        for _ in range((rank or 0) - len(handle.shape)):
            found = s.torch_call(torch.unsqueeze, [found, Constant(1)], {})
        return found

    def outside(self, fn: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A call where the map is called."""
        s, inside = self.s, self.s.levels[self.at:]
        s.journal.set_field(s, "levels", s.levels[:self.at])
        try:
            return s.torch_call(fn, args, kwargs)
        finally:  # a map around this one has learned of the draw
            s.journal.set_field(s, "levels", (*s.levels, *inside))

    def change(self, **facts: object) -> None:
        """Of the map."""
        s, at = self.s, self.at
        s.journal.set_field(s, "levels", (*s.levels[:at], replace(s.levels[at], **facts), *s.levels[at + 1:]))

    def slices(self, drawn: Value) -> Value:
        """What the function is given of what was drawn for all slices."""
        s = self.s
        return s.recording.tensor_of(unmapped.slice_of(s, drawn.handle(s), self.level.number))

    def like(self, tensor: Value) -> Value | None:
        """What to draw like; for the same numbers in all slices, one of these. None where there is none."""
        whole = self.whole(tensor)
        return whole if self.each else self.s.torch_call(torch.select, [whole, Constant(0), Constant(0)], {})

    def drawn(self, fn: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = self.outside(fn, args, kwargs)
        return self.slices(made) if self.each else made


@rule("rand", "randn", "randint", "normal")
def _of_size(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if any(v.is_tensor for v in (*args, *kwargs.values())):
        return _elementwise(d, args, kwargs)
    if not d.each:
        return d.drawn(d.fn, args, kwargs)
    kwargs, args = dict(kwargs), list(args)
    if "size" in kwargs:
        size = kwargs.pop("size")
    elif args and args[-1].nested(d.s) is not None:
        size = args.pop()
    else:
        size, args = TupleValue(args), []
    sizes = [lift(d.s, d.count), *size.nested(d.s)]
    return d.drawn(d.fn, [*args, TupleValue(sizes)], kwargs)


@rule("randperm")
def _orders(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if not d.each:
        return d.drawn(d.fn, args, kwargs)
    if type(d.count) is not int or not 0 < d.count <= MOST_ORDERS:
        return None
    orders = [d.outside(d.fn, args, kwargs) for _ in range(d.count)]
    return d.slices(d.outside(torch.stack, [TupleValue(orders)], {}))


@rule("rand_like", "randn_like", "randint_like")
def _like(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    tensor, *others = args or [None]
    if tensor is None or not tensor.is_tensor:
        return None
    return d.drawn(d.fn, [d.like(tensor), *others], kwargs)


@rule("bernoulli", "poisson", "binomial")
def _elementwise(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    given = [*args, *kwargs.values()]
    tensors = [v for v in given if v.is_tensor]
    if not d.each or not tensors or any(t.handle(d.s).requires_grad for t in tensors):
        return None
    rank = max(len(t.handle(d.s).shape) for t in tensors)
    args = [d.whole(v, rank) if v.is_tensor else v for v in args]
    return d.drawn(d.fn, args, {k: d.whole(v, rank) if v.is_tensor else v for k, v in kwargs.items()})


@rule("multinomial")
def _rows(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if not d.each or not args or not args[0].is_tensor:
        return None
    s, rank = d.s, len(args[0].handle(d.s).shape)
    whole = d.whole(args[0])
    if rank == 2:
        whole = d.outside(torch.flatten, [whole, Constant(0), Constant(1)], {})
    drawn = d.outside(d.fn, [whole, *args[1:]], kwargs)
    if rank == 2:
        sizes = TupleValue([lift(s, d.count), Constant(-1), lift(s, drawn.handle(s).shape[1])])
        drawn = d.outside(torch.reshape, [drawn, sizes], {})
    return d.slices(drawn)


@rule("dropout")
def _dropout(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The tensor times what is made of ones, row by row as PyTorch makes it inside of a map."""
    given = dict(zip(("input", "p", "train"), args), **kwargs)
    tensor, draws = given.pop("input", None), given.get("train")
    if tensor is None or draws is None or not tensor.is_tensor or not draws.is_const() or not draws.const(d.s):
        return None
    row_major = {"memory_format": Constant(torch.contiguous_format)}
    ones = d.outside(torch.ones_like, [d.like(tensor)], row_major)
    return d.s.torch_call(torch.mul, [tensor, d.drawn(d.fn, [ones], given)], {})


@rule(F.dropout, F.gumbel_softmax, draws=False)
def _followed(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Functions that are recorded as a whole elsewhere."""
    return d.s.inline(d.s.wrap_raw(d.fn), args, kwargs)


@rule("empty_like", "zeros_like", "ones_like", "full_like", draws=False)
def _made_like(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A new tensor like a slice is one that differs, although its values do not yet."""
    if not args or not args[0].is_tensor or not d.differs(args[0]) or "requires_grad" in kwargs:
        return None
    return d.slices(d.outside(d.fn, [d.whole(args[0]), *args[1:]], kwargs))


@rule("new_empty", "new_zeros", "new_ones", "new_full", draws=False)
def _made_new(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    tensor, *others = args
    if not others or not d.differs(tensor) or "requires_grad" in kwargs or any(v.is_tensor for v in others):
        return None
    if others[0].nested(d.s) is None:
        others = [TupleValue(others)]
    sizes = TupleValue([lift(d.s, d.count), *others[0].nested(d.s)])
    return d.slices(d.outside(d.fn, [d.whole(tensor), sizes, *others[1:]], kwargs))


@rule("uniform_", "normal_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_", "bernoulli_")
def _filled(d: Draw, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Numbers that are drawn into memory like that of all slices are copied into each."""
    s, (tensor, *others) = d.s, args
    if any(v.is_tensor for v in (*others, *kwargs.values())):
        return None
    if not d.differs(tensor):
        return None if d.each else d.drawn(d.fn, args, kwargs)  # eager raises if each is to have its own
    form = Constant(torch.preserve_format if d.each else torch.contiguous_format)
    new = d.outside(torch.empty_like, [d.like(tensor)], {"memory_format": form})
    d.outside(d.fn, [new, *others], kwargs)
    s.torch_call(torch.Tensor.copy_, [tensor, d.slices(new) if d.each else new], {})
    return tensor


def call(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A torch callable inside of a transform; None where it draws nothing, or where no rule is for it."""
    binding = resolve(fn)
    found = RULES.get(fn) or (RULES.get(binding.name) if binding is not None else None)
    at = max((i for i, level in enumerate(s.levels) if level.randomness and level.entered), default=None)
    if found is None or at is None or "out" in kwargs or s.levels[at].randomness == "error" and found.draws:
        return None
    first = len(s.tracer.builder.nodes)
    draw = Draw(s, at, fn)
    made = found.run(draw, args, kwargs)
    if made is not None and found.draws:
        draw.change(draws=(*s.levels[at].draws, (first, len(s.tracer.builder.nodes))))
    return made


tables.mapped_draw = call
