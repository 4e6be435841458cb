"""Results whose history cannot be walked: it was freed by a ``backward()`` inside the compiled function, or what it
keeps has been overwritten there. They require grad as in eager, and a backward raises."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

_MESSAGE = ("Trying to backward through the graph a second time (or directly access saved tensors after they have "
            "already been freed). Saved intermediate values "
            "of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you "
            "need to backward through the graph a "
            "second time or if you need to access saved tensors after calling backward.")


class Freed(torch.autograd.Function):
    """Gives its argument a history that cannot be walked."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> NoReturn:
        raise RuntimeError(_MESSAGE)


_leaf: list = []


def spent(value: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor that requires grad; other results that are views of ``value`` stay as they are."""
    if not _leaf:
        _leaf.append(torch.zeros((), requires_grad=True))
    with torch.enable_grad():
        return Freed.apply(_leaf[0], value.data)


def refuse_backward(value: torch.Tensor, why: str) -> torch.Tensor:
    """The same tensor; a backward that comes from it into the graph raises RuntimeError. Nothing happens where there is
    no history."""
    node, number = value.grad_fn, value.output_nr
    if node is not None:
        def refuse(gradients: tuple[torch.Tensor, ...]) -> None:
            if gradients[number] is not None:
                raise RuntimeError(why)

        node.register_prehook(refuse)
    return value
