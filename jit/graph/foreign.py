"""Operators that PyTorch does not bring along: of ``torch.library``, ``torch.library.custom_op``, ``triton_op``, or an
extension's C++.

A schema says nothing of what a kernel does besides: it may log, count, or send. So such a kernel runs where the program
calls it, as often and in that order, and never while tracing, to find out a type or an error. ``TRIED`` is the one list
of what may be run while tracing, with what ``torch.nn`` defines; all others go through ``call``. Of those of
``torch.distributed`` more is known: see ``collectives``.

A call becomes a step of the graph, which is never merged, dropped or run twice, where a fake kernel gives the type of
its result and no gradient goes through it (``frame.library.foreign_operators`` deals with those that are registered).
All else is a break: the rewritten function calls the operator itself, so that PyTorch records it for autograd. A kernel
in Python can see and change what the program's Python code reads, which a graph with steps before and after it does not
keep up with; so it is a step only where it is seen to be ``quiet`` (``frame.quiet``), or where no break is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from jit import torch_private
from jit.errors import EagerRaises, Unsupported
from jit.graph import aten, collectives
from jit.graph.handles import TensorHandle, to_node
from jit.graph.sym_float import plain

if TYPE_CHECKING:
    from jit.graph.aten import Overload
    from jit.graph.ir import Node
    from jit.graph.tracer import Tracer

TRIED = frozenset(("aten", "prims", "jit"))  # namespaces of operators that only compute; ``jit`` is our own
_NO_FAKE = ("register one with torch.library.register_fake, and the call can be a step of the graph; without one it "
            "runs as in eager")
_PARTS = ("torch.nn.",)  # of PyTorch that write operators in Python which only compute


def is_foreign(name: str) -> bool:
    """Whether an operator, by a name such as ``torchvision::nms``, is none that may be tried out; names without a
    namespace are ``aten``'s."""
    namespace, found, _ = name.partition("::")
    return bool(found) and namespace not in TRIED and not torch_private.module_of_operator(name).startswith(_PARTS)


def is_python(name: str) -> bool:
    """Whether an operator has a kernel that is written in Python, other than one for meta tensors."""
    registered = getattr(torch.library, "_impls", None)
    if registered is None:
        return True  # not known to this torch
    start = name.replace("::", "/")
    return any(key.startswith((start + "/", start + ".")) and not key.endswith("/Meta") for key in registered)


def check(tracer: Tracer, name: str) -> Callable[..., Unsupported]:
    """Raise Unsupported where no operator of the name can be a step of the graph. -> what makes other such errors."""
    short = name.replace("::", ".")

    def refuse(why: str, hint: str = "") -> Unsupported:
        return Unsupported(f"torch.ops.{short}, an operator that is not PyTorch's own, {why}", hint,
                           kind="foreign-operator")

    if tracer.steps_aside is not None:
        why = tracer.steps_aside(is_python(name) and not tracer.quiet_kernel)
        if why:
            raise refuse(why)
    if tracer.autocast:
        raise refuse("is called under autocast")
    if not tracer.quiet_kernel and any(handle.base.mutated for handle in tracer.inputs):
        raise refuse("is called after a tensor from outside was changed")
    return refuse


def call(tracer: Tracer, name: str, overload: object, args: Sequence[TensorHandle | object],
         kwargs: dict) -> TensorHandle:
    """Record a call of the operator ``name`` of which ``overload`` is what the program calls, an overload or all of
    them.

    Raises Unsupported where it cannot be a step of the graph.
    """
    if collectives.is_collective(name):
        return collectives.call(tracer, name, overload, args, kwargs)
    refuse = check(tracer, name)
    handles: list = []
    nodes, named = to_node(plain(list(args)), handles), to_node(plain(dict(kwargs)), handles)
    if tracer.grad_enabled and any(h.requires_grad for h in handles):
        raise refuse("is called where gradients are recorded")
    o = _bound(name, overload, nodes, named)
    if o is None:
        raise refuse("does not take these arguments as they are")
    o, values = o
    if o.mutates or o.views or not o.gives_tensors:
        raise refuse("changes or returns what is no new tensor")
    if o.data_dependent or not torch_private.has_kernel_for_key(o.op.name(), "Meta"):
        raise refuse("has no fake kernel that says the type of its result", _NO_FAKE)
    try:
        if tracer.types_of_results is not None:
            types = tracer.types_of_results[0] if o.single else tracer.types_of_results
        else:
            types, values = aten.types_by_run(o, values)
    except EagerRaises as raised:  # the operator itself may not raise
        if "no fake impl registered" in str(raised):
            raise refuse("has no fake kernel that says the type of its result", _NO_FAKE) from None
        hint = "mend the function that register_fake was given"
        raise refuse(f"has a fake kernel that raises {raised}", hint) from None
    result = tracer.builder.aten(o.name, o.overload, tuple(values), types, impure=True)
    result = list(result) if o.returns == ["List[Tensor]"] else o.with_numbers(result)
    return tracer.wrap(result, handles, False, 0, name)


def _bound(name: str, overload: object, nodes: list[float | Node],
           named: dict) -> tuple[Overload, list[Node | float]] | None:
    """The overload that takes these arguments, with its values; None where there is none. Nothing is converted."""
    for op in torch_private.overloads_of(overload):
        o = aten.Overload(name, op)
        values = None if any(a.is_out for a in torch_private.schema(op).arguments) else o.bind(nodes, named)
        if values is not None:
            return o, values
    return None
