"""How the caller of a graph makes results that no graph can give, from other results: see ``results.derive``.

``call()`` of a recipe gives (function, operands): a ``Result`` among these stands for a result, a ``TensorHandle`` for
an argument of the program, all else for itself. The function changes nothing.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit import torch_private
from jit.runtime import names

if TYPE_CHECKING:
    from jit.graph.handles import TensorHandle


@dataclasses.dataclass(frozen=True)
class Result:
    position: int


@dataclasses.dataclass(frozen=True)
class Detached:
    """Result ``position`` is ``detach()``, or ``data``, of what the graph gives there."""

    position: int
    how: str

    def call(self) -> tuple[Callable, tuple]:
        return operator.attrgetter("data") if self.how == "data" else torch.Tensor.detach, (Result(self.position),)


@dataclasses.dataclass(frozen=True)
class Shown:
    """Result ``position`` is a view of the memory of the input ``member``, which it shares with others; the offset
    counts from that one's first element. ``recorded``: whether grad mode was on."""

    position: int
    member: TensorHandle
    sizes: tuple
    strides: tuple
    offset: int
    recorded: bool

    def call(self) -> tuple[Callable, tuple]:
        return show, (self.member, self.sizes, self.strides, self.offset, self.recorded)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Result ``position`` requires grad though no gradient leads from it, as a view does that is made where gradients
    are not recorded, of a tensor that requires grad, and what ``requires_grad_()`` was called on."""

    position: int

    def call(self) -> tuple[Callable, tuple]:
        return leaf, (Result(self.position),)


@dataclasses.dataclass(frozen=True)
class Silent:
    """Result ``position`` is a view, made where gradients are not recorded, of all that the graph gives there."""

    position: int

    def call(self) -> tuple[Callable, tuple]:
        return silently, (Result(self.position),)


@dataclasses.dataclass(frozen=True)
class OneOfSeveral:
    """Result ``position`` is, for autograd, one of several views that an operation gave of an input after the program
    had changed it."""

    position: int

    def call(self) -> tuple[Callable, tuple]:
        return torch_private.one_of_several, (Result(self.position),)


@dataclasses.dataclass(frozen=True)
class ViewOfItself:
    """Result ``position`` is a view for autograd, of all that the graph gives there: what it is a view of in eager is
    no result. ``several``: it is one of several views that an operation gave."""

    position: int
    several: bool

    def call(self) -> tuple[Callable, tuple]:
        return view_of_itself, (Result(self.position), self.several)


@dataclasses.dataclass(frozen=True)
class Called:
    """Result ``position`` is number ``index`` of the results of ``operator`` for what the graph gives there and
    ``arguments``."""

    position: int
    operator: object
    arguments: tuple
    index: int

    def call(self) -> tuple[Callable, tuple]:
        return call, (self.operator, Result(self.position), self.arguments, self.index)


@dataclasses.dataclass(frozen=True)
class Selected:
    """Result ``position`` is ``results[source][index]``, and of that the view (sizes, strides, offset, grad mode) if
    there is one. In the index ``Result(k)`` stands for ``results[k]``. ``recorded``: the grad mode of the index."""

    position: int
    source: int
    index: tuple
    recorded: bool
    view: tuple | None

    def call(self) -> tuple[Callable, tuple]:
        return select, (self.recorded, self.view, Result(self.source), *self.index)


def select(recorded: bool, view: tuple | None, source: torch.Tensor, *index: object) -> torch.Tensor:
    """``source[index]``, made in the grad mode ``recorded``, or a view (sizes, strides, offset from its first element,
    grad mode) of that."""
    with torch.set_grad_enabled(recorded):
        part = source[index]
    return part if view is None else show(part, *view)


def show(member: torch.Tensor, sizes: tuple, strides: tuple, offset: int, recorded: bool) -> torch.Tensor:
    """A view of the memory of ``member``; the offset counts from its first element. ``recorded``: in which grad
    mode."""
    with torch.set_grad_enabled(recorded and torch.is_grad_enabled()):
        return member.as_strided(sizes, strides, member.storage_offset() + offset)


def silently(view: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return view[...]


def view_of_itself(tensor: torch.Tensor, several: bool) -> torch.Tensor:
    """A view of all of ``tensor``. ``several``: autograd is told that it is one of several results of an operation."""
    with torch.enable_grad():
        view = tensor[...]  # view() has strides of its own where there is one element
        return torch_private.one_of_several(view) if several else view


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def call(operator: Callable, source: torch.Tensor, arguments: tuple, index: int) -> torch.Tensor:
    """One of the results of ``operator(source, *arguments)``."""
    return operator(source, *arguments)[index]


def unasked(fn: Callable) -> Callable:
    """``fn`` of a recipe, with no class or mode of the program's that is asked: they have been while capturing."""

    def call(*args: object, **kwargs: object) -> Any:
        with torch_private.WithoutTorchFunction():
            return fn(*args, **kwargs)

    return names.made(call, unasked, fn)
