"""Trials: a call that is being traced is made by PyTorch itself, on made-up tensors of the same types, to see what it says to it.

One function makes the tensors, and one makes the call: without a gradient unless that is the question, apart from autocast, drawing no numbers from the program's
generators, and without a warning. Operators of the user's own are never called: what they do is not known.
"""

from __future__ import annotations

import contextlib
import math
import warnings

import torch

from jit import torch_private
from jit.graph.dims import Dim, hint
from jit.graph.handles import SymSize, TensorHandle
from jit.graph.ir import Node, contiguous_strides
from jit.graph.sym_float import SymFloat


class Described:
    """A tensor of a call that was made earlier: what a stand-in has to be like."""

    __slots__ = ("type", "requires_grad", "is_conj", "base")

    def __init__(self, type, requires_grad: bool, is_conj: bool, base):
        self.type, self.requires_grad, self.is_conj, self.base = type, requires_grad, is_conj, base


class StandIns:
    """Arguments with tensors in the place of handles and nodes, and numbers in that of symbols.

    Args:
        fill: a number that the tensors hold; None for values that are all different, between 0.1 and 1.1, and ones for integers.
        device: where they are made; None: each where the tensor is for which it stands.
        sizes: size -> another one to be used in its place.
        grad: those of handles that require grad do so too, and are no leaves.
    """

    def __init__(self, fill=0, device: str | None = "cpu", sizes=None, grad: bool = False):
        self.fill, self.device, self.sizes, self.grad = fill, device, sizes, grad
        self.made: dict = {}  # id of a handle or node -> its tensor, and what that is a view of

    def of(self, v):
        """The stand-in for an argument."""
        if isinstance(v, (TensorHandle, Node, Described)):
            if id(v) not in self.made:
                self.made[id(v)] = self._tensor(v)
            return self.made[id(v)][1]
        if type(v) is Dim:
            return hint(v)
        if type(v) is SymFloat:
            return v.value
        if type(v) in (list, tuple, SymSize):
            return type(v)([self.of(e) for e in v])
        if isinstance(v, dict):
            return {k: self.of(e) for k, e in v.items()}
        if isinstance(v, slice):
            return slice(self.of(v.start), self.of(v.stop), self.of(v.step))
        if isinstance(v, torch.Generator):
            return None if self.device == "meta" else v.clone_state()
        if isinstance(v, torch.device) and self.device == "meta":
            return torch.device("meta")
        return v

    def _tensor(self, v):
        t = v.type
        shape, strides = tuple(map(hint, t.shape)), tuple(map(hint, t.strides))
        if self.sizes:
            shape = tuple(self.sizes.get(n, n) for n in shape)
            strides = contiguous_strides(shape)
        x = torch.empty_strided(shape, strides, dtype=t.dtype, device=self.device or t.device)
        if self.device != "meta":
            self._fill(x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,)) if 0 in strides else x)
        if not isinstance(v, Node):
            if self.grad and v.requires_grad:
                return x, _not_a_leaf(x.requires_grad_())
            if v.is_conj:
                return x, x.conj()
        return x, x

    def _fill(self, x):
        if self.fill == 0:
            x.zero_()
        elif self.fill is not None:
            x.fill_(self.fill)
        elif x.dtype.is_floating_point or x.dtype.is_complex:
            steps = torch.arange(x.numel(), dtype=torch.float64)
            x.copy_(((steps * 0.6180339887).frac() + 0.1).view(x.shape))
        else:
            x.fill_(1)


def _unseen_by_hooks():
    """The program's own hooks see nothing of what a trial saves."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


@contextlib.contextmanager
def without_traces():
    """A trial draws no numbers from the program's generators, warns of nothing, and is no part of autocast."""
    states = [(g, g.get_state()) for g in _default_generators()]
    try:
        with torch_private.WithoutAutocast(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for generator, state in states:
            if not torch.equal(generator.get_state(), state):  # a GPU's may not be set while a CUDA graph is captured
                generator.set_state(state)


def _default_generators() -> list:
    """The CPU's, and those of GPUs that the program uses: some trials are made on the tensors' own device."""
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


def error_of(fn, args, kwargs, grad: bool = False) -> Exception | None:
    """What ``fn(*args, **kwargs)`` raises."""
    try:
        with without_traces(), torch.set_grad_enabled(grad), _unseen_by_hooks():
            fn(*args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)
    return None


def smaller(tensors, numbers=frozenset()) -> dict:
    """Sizes for ``StandIns``: one for each of the larger ones among those of handles: another one for another one, even for even, and in their order. Those among ``numbers``
    stay what they are, and what these divide stays divisible."""
    sizes = sorted({n for h in tensors for n in map(hint, h.type.shape)})
    taken, found, last = {n for n in sizes if n <= 8}, {}, 8
    for n in sizes:
        if n > 8 and n not in numbers:
            unit = math.lcm(2 - n % 2, *(k for k in numbers if 2 <= k <= n and n % k == 0))
            last = last + unit - last % unit if n % 2 == 0 else last + 2 - (last - n) % 2
            if n % 2:
                while last % unit:
                    last += 2
            found[n] = last
    return {n: small for n, small in found.items() if small < n and n not in taken}


def _not_a_leaf(x):
    """The same tensor as a result, which may be written; a view of a leaf may not."""
    made = x.clone()
    return made if made.stride() == x.stride() else x.view_as(x)
