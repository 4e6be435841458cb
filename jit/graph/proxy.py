"""Proxy: a TensorHandle that behaves like a tensor in running Python code, through ``__torch_function__``.

It lets Python-written functions of PyTorch (``torch.nn.functional``, ``torch.functional``, ``torch.Tensor`` methods)
run as they are while every tensor operation in them is recorded. Tests use it to trace whole functions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit.graph.attributes import ATTRIBUTES
from jit.graph.dims import Dim
from jit.graph.handles import SymSize, TensorHandle
from jit.graph.nested import holds, of_kind, replaced

if TYPE_CHECKING:
    from jit.graph.tracer import Tracer

# Attributes of the proxy itself; everything else is the tensor's.
_OWN = ("_handle", "_tracer")


class Proxy:
    """Wraps one handle. It must not pass for a ``torch.Tensor`` in ``isinstance``: torch's C code would read it as
    one."""

    __slots__ = ("_handle", "_tracer", "__weakref__")

    def __init__(self, tracer: Tracer, handle: TensorHandle) -> None:
        object.__setattr__(self, "_handle", handle)
        object.__setattr__(self, "_tracer", tracer)

    @classmethod
    def __torch_function__(cls, func: Callable, types: tuple[type, ...], args: tuple[object, ...] = (),
                           kwargs: dict[str, int | str | None] | None = None) -> Proxy | tuple[Proxy, ...]:
        tracer = _find_tracer((args, kwargs))
        return call(tracer, func, args, kwargs or {})

    def __getattr__(self, name: str) -> object:
        if name in ATTRIBUTES:
            return wrap(self._tracer, self._tracer.attribute(self._handle, name))
        function = getattr(torch.Tensor, name)
        return lambda *args, **kwargs: call(self._tracer, function, (self, *args), kwargs)

    def __setattr__(self, name: str, value) -> None:
        raise AttributeError(f"cannot set {name} on a traced tensor")

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator:
        return iter(call(self._tracer, torch.Tensor.unbind, (self, 0), {}))

    def __len__(self) -> int:
        return self._tracer.call(len, (self._handle,))

    def __bool__(self) -> bool:
        return self._tracer.call(bool, (self._handle,))

    def __repr__(self) -> str:
        return repr(self._handle)


def _operator(fn: Callable, reflected: bool) -> Callable:
    def forward(self, other: object) -> Proxy:
        return call(self._tracer, fn, (self, other), {})

    def backward(self, other: int) -> Proxy:
        return call(self._tracer, fn, (other, self), {})

    return backward if reflected else forward


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
              "matmul", "and_", "or_", "xor", "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge"):
    _plain = _name.rstrip("_")
    setattr(Proxy, f"__{_plain}__", _operator(getattr(operator, _name), False))
    if _plain not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Proxy, f"__r{_plain}__", _operator(getattr(operator, _name), True))
        setattr(Proxy, f"__i{_plain}__", _operator(getattr(operator, "i" + _plain), False))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Proxy, f"__{_name}__", (lambda fn: lambda self: call(self._tracer,
                                                                 fn, (self,), {}))(getattr(operator, _name)))
Proxy.__getitem__ = _operator(operator.getitem, False)
Proxy.__setitem__ = lambda self, index, value: call(self._tracer, operator.setitem, (self, index, value), {})


def _find_tracer(args: object) -> Tracer | None:
    return next((a._tracer for a in of_kind(Proxy, args)), None)


def call(tracer: Tracer, fn: Callable, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """``fn`` on proxies, recorded."""
    return wrap(tracer, tracer.call(fn, tuple(unwrap(args)), unwrap(kwargs), tracer.builder.loc))


def unwrap(v: object) -> object:
    """Proxies, also nested ones, as handles."""
    return replaced(Proxy, lambda proxy: proxy._handle, v)


def wrap(tracer: Tracer, v: object) -> object:
    """Handles, also nested ones, as proxies; concrete sizes as ``torch.Size``; named results as their class."""
    if isinstance(v, SymSize):
        return v if holds(Dim, v) else torch.Size(v)
    return replaced(TensorHandle, lambda handle: Proxy(tracer, handle), v)
