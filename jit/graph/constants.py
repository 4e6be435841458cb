"""Values that are known while tracing: those of tensors computed from constants alone, which no input and no random
number reaches.

A model that makes its own mask of ones, or a tensor of sizes, may branch on it, index by it or count with it as if it
were Python data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit.errors import EagerRaises, Unsupported
from jit.graph import refusals
from jit.graph.binding import resolve
from jit.graph.dims import Dim
from jit.graph.handles import TensorHandle
from jit.graph.interpret import compile_python
from jit.graph.ir import Graph, Node, Output, same_ints
from jit.graph.nested import holds, of_kind, replaced
from jit.graph.prim_info import info
from jit.graph.registry import OPS

if TYPE_CHECKING:
    from jit.errors import JitError
    from jit.graph.build import Builder
    from jit.graph.ir import TensorType
    from jit.graph.tracer import Tracer

_NODES, _ELEMENTS = 4000, 1 << 20  # of what is computed while tracing


def value(builder: Builder, node: Node) -> torch.Tensor | None:
    """What ``node`` holds on every run, or None where that depends on random numbers or on sizes that may change; where
    it depends on inputs, what ``builder.guess`` says."""
    if node not in builder.known:
        nodes = cone(node)
        if nodes and any(n.op == "input" for n in nodes):
            return builder.guess(node) if builder.guess is not None else None
        builder.known[node] = _evaluated(builder, node, nodes) if nodes else None
    return builder.known[node]


def _evaluated(builder: Builder, node: Node, nodes: list[Node]) -> torch.Tensor:
    """What ``node`` holds. Raises Unsupported where an operation that it is computed from raises for these values, as
    it will when the program runs it."""
    compute = compile_python(Graph([], nodes, [Output(node)], builder.env))
    try:
        with torch.no_grad():
            return compute()[0]
    except Exception as error:  # of eager's own operators: whatever they raise for these values
        raise Unsupported(f"a value that cannot be computed while tracing: {type(error).__name__}: {error}",
                          kind="data-dependent-value") from None


def cone(node: Node) -> list | None:
    """The nodes that ``node`` is computed from, in program order; None where one is random, large or of a size that may
    change, or stands for others that are not there yet, as a map's do, or there are too many."""
    seen, todo = {node}, [node]
    while todo:
        n = todo.pop()
        if (n.impure or len(seen) > _NODES or not all(map(_fixed, n.types))
            or holds(Dim, n.attrs) or info(n.op).kind == "gradient" and not info(n.op).in_kernels):
            return None
        for i in n.inputs:
            if i not in seen:
                seen.add(i)
                todo.append(i)
    return sorted(seen, key=lambda n: n.id)


def _fixed(t: TensorType | None) -> bool:
    return t is None or not t.is_symbolic and t.numel <= _ELEMENTS


def worth_trying(v: object) -> bool:
    """Whether there is a 0-dim tensor, an integer one or a mask among arguments."""
    return any(not h.type.shape or not h.type.dtype.is_floating_point for h in of_kind(TensorHandle, v))


def has_number(v: object) -> bool:
    """Whether there is a 0-dim tensor among arguments."""
    return any(not h.type.shape for h in of_kind(TensorHandle, v))


def as_numbers(builder: Builder, v: object) -> object:
    """Arguments with the known ones of their 0-dim tensors as Python numbers."""

    def number(handle: TensorHandle) -> object:
        found = None if handle.type.shape else value(builder, handle.node)
        return handle if found is None else found.item()

    return replaced(TensorHandle, number, v)


def again(tracer: Tracer, fn: Callable, args: Sequence[object], kwargs: dict[str, Any], error: JitError,
          mark: tuple[int | tuple[int, ...], ...] | None):
    """What ``fn`` gives where its failure with ``error`` is due to known tensors that it took for unknown ones. Else
    raises the error."""
    b = tracer.builder
    if mark is None or _elementwise(fn) or getattr(error, "kind", "") == "out-argument":
        raise error
    tracer.journal.rollback(mark)
    if isinstance(error, EagerRaises) and refusals.of_dtypes(error.error):
        raise error
    numbers, named = as_numbers(b, tuple(args)), as_numbers(b, kwargs)
    if has_number(args) and not has_number(numbers) or has_number(kwargs) and not has_number(named):
        try:
            return tracer.call(fn, numbers, named, b.loc)
        except EagerRaises:
            pass  # the first error speaks of tensors, as eager does
    if getattr(error, "kind", "").startswith("data-dependent"):
        found = {h: value(b, h.node) for h in of_kind(TensorHandle, (args, kwargs))}
        if not holds(Dim, (args, kwargs)) and all(t is not None for t in found.values()):
            try:
                with torch.no_grad():
                    result = fn(*replaced(TensorHandle, found.get, args), **replaced(TensorHandle, found.get, kwargs))
            except Exception as refused:  # eager's own, for these values
                raise EagerRaises(refused) from None
            return _handles(tracer, result, error)
    if isinstance(error, EagerRaises):
        refusals.keep_sizes((args, kwargs))  # its text tells them, and what was guarded has been rolled back
    raise error


def _handles(tracer: Tracer, result: object, error: JitError) -> object:
    """A result of eager code with handles for its tensors, which have to be small."""

    def handle_of(tensor: torch.Tensor) -> TensorHandle:
        if tensor.numel() > 64:
            raise error
        handle = tracer.constant(tensor)
        return (handle if same_ints(handle.type.strides, tensor.stride())
                else tracer.fresh(tracer.builder.clone(handle.node, tensor.stride())))

    return replaced(torch.Tensor, handle_of, result)


def _elementwise(fn: Callable) -> bool:
    """Whether a callable is an elementwise operation: in those a 0-dim tensor and a number are not the same."""
    binding = resolve(fn)
    entry = OPS.get(binding.name.removesuffix("_")) if binding is not None and binding.python is None else None
    return entry is not None and entry.pointwise


def of_numbers(tracer: Tracer, name: str, args, kwargs, overload) -> TensorHandle:
    """An elementwise function of Python numbers alone, which is a tensor in eager."""
    fixed = tracer.env.specialize
    args, kwargs = ([fixed(v) if type(v) is Dim else v for v in args],
                    {k: fixed(v) if type(v) is Dim else v for k, v in kwargs.items()})
    fn = getattr(torch, name, None)
    if overload is not None or fn is None or not all(type(v) in (int, float, bool, complex, str)
                                                     for v in (*args, *kwargs.values())):
        raise Unsupported(f"{name} is called without a tensor", kind="argument-error")
    return tracer.constant(fn(*args, **kwargs))
