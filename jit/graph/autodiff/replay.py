"""Gradients of library calls without a rule: the operator is run again in the backward, with PyTorch's autograd on.

The node is an ``aten_call`` with target ``jit::vjp`` and arguments ``(name, overload, arguments of the original,
wanted, present)``. Its inputs are the original's, then the given gradients. ``wanted`` are the positions of the inputs
whose gradients are asked for; ``present`` says for each result of the original whether its gradient is given. The
result is a tuple, one gradient for each of ``wanted``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit import torch_private
from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import aten, layout
from jit.graph.dims import Dim, hint
from jit.graph.ir import CHECKED, Node, Ref, filled, operator
from jit.graph.nested import replaced, several
from jit.graph.prim_info import info
from jit.graph.probe import StandIns, gradients, of_tensors

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder

TARGET = "jit::vjp"


def draws(node: Node) -> bool:
    """Whether a node takes random numbers. Recurrent layers do for their dropout only."""
    if node.op != "aten_call" or node.attrs["target"] == TARGET:
        return node.impure
    target, overload, args = (node.attrs[k] for k in ("target", "overload", "args"))
    of_torch = target.startswith("aten::")
    names = [a.name for a in torch_private.schema(operator(target, overload)).arguments] if of_torch else ()
    if "dropout" in names and "train" in names:
        return bool(args[names.index("dropout")] and args[names.index("train")])
    if "dropout_p" in names:
        return node.impure
    return node.impure or torch.Tag.nondeterministic_seeded in operator(target, overload).tags


def replay(b: GradBuilder, node: Node, given: Node | tuple[Node | None, ...], carries: set[Node]) -> list:
    """(input, gradient) for the inputs of ``node`` that carry gradients.

    Raises:
        Unsupported: the operator is random; a second run would draw other numbers.
    """
    target, overload, args = (node.attrs[k] for k in ("target", "overload", "args"))
    if target == TARGET:
        raise Unsupported(f"double backward of {args[0]}",
                          "compute it outside the compiled function", kind="gradient")
    if draws(node):
        raise Unsupported(f"the gradient of the random operator {target}",
                          "compute it outside the compiled function", kind="gradient")
    return replay_call(b, target, overload, args, node.inputs, given, carries)


def replay_call(b: GradBuilder, target: str, overload: str, args: tuple[object, ...], inputs: tuple[Node, ...],
                given: Node | tuple[Node | None, ...], carries: set[Node]) -> list:
    """The same for an operator that has no node: argument template ``args`` over ``inputs``."""
    wanted = tuple(k for k, i in enumerate(inputs) if i in carries)
    if len({_tensor(i) for i in inputs}) < len(inputs):
        raise Unsupported(f"the gradient of {target} with one tensor as several arguments, of which some are detached",
                          kind="gradient")
    given = several(given)
    present = tuple(g is not None for g in given)
    undefined = _undefined(target, overload, args, inputs, wanted, present)
    wanted = tuple(k for k in wanted if k not in undefined)
    if not wanted:
        return []
    template = (target, overload, args, wanted, present)
    types = tuple(layout.empty_like(inputs[k].type) for k in wanted)
    used = tuple(inputs) + tuple(g for g in given if g is not None)
    made = b.node("aten_call", used, {"target": TARGET, "overload": "",
                                      "args": template + tuple(Ref(len(inputs) + k) for k in range(sum(present)))},
                                      types)
    if any(i.type.is_empty for i in inputs) and all(backend(i.type.device).refuses_empty for i in inputs):
        # Forwards of nothing take any index, backwards do not, though their results are known. On a GPU they would end
        # the process.
        made.attrs = {**made.attrs, CHECKED: True}
    return [(inputs[k], b.result(made, n)) for n, k in enumerate(wanted)]


_MOST_ASKED = 1 << 16  # elements


def _undefined(target: str, overload: str, args: tuple[object, ...], inputs: tuple[Node, ...], wanted: tuple[int, ...],
               present: tuple[bool, ...]) -> list:
    """Those of the positions ``wanted`` to which eager gives no gradient, not even zeros: PyTorch is asked, for tensors
    that are not large."""
    if not target.startswith("aten::") or sum(hint(i.type.numel) for i in inputs) > _MOST_ASKED:
        return []
    made = StandIns(1 if any(i.type.is_empty for i in inputs) else None)
    tensors = [made.of(i).requires_grad_(k in wanted) for k, i in enumerate(inputs)]
    values = replaced(Dim, hint, filled(args, tensors))
    results = of_tensors(aten.Overload(target, operator(target, overload)).run, values).result
    if results is None:  # it refuses these values
        return []
    results = [r for r, p in zip(several(results), present) if p
               and isinstance(r, torch.Tensor) and r.requires_grad]
    found = of_tensors(gradients, results, [tensors[k] for k in wanted]).result
    if found is None:
        return []
    return [k for k, g in zip(wanted, found) if g is None]


def _tensor(n: Node) -> Node:
    while info(n.op).is_whole_view:
        n = n.inputs[0]
    return n


def run(op: object, args: list[object], kwargs: dict[str, None], wanted: list[torch.Tensor],
        tangents: list[torch.Tensor | None]) -> list:
    """Gradients of ``op(*args, **kwargs)`` with respect to the tensors at the flat positions ``wanted`` of its
    arguments' tensors.

    ``tangents`` has one entry for each result, None where there is no gradient. An undefined gradient is zeros. Where
    grad mode is on and something requires grad the gradients are differentiable.
    """
    leaves: dict = {}
    again = torch.is_grad_enabled()

    def fresh(v: torch.Tensor) -> torch.Tensor:
        if id(v) not in leaves:
            leaves[id(v)] = v, v.view_as(v) if again and v.requires_grad else v.detach().requires_grad_(any(v is w
                for w in wanted))
        return leaves[id(v)][1]

    with torch.enable_grad():
        results = op(*replaced(torch.Tensor, fresh, args), **replaced(torch.Tensor, fresh, kwargs))
        pairs = [(r, t) for r, t in zip(several(results), tangents)
                 if t is not None and isinstance(r, torch.Tensor) and r.requires_grad]
        sources = [leaves[id(w)][1] for w in wanted]
        if not pairs:
            return [torch.zeros_like(s) for s in sources]
        again = again and any(v.requires_grad for v in (*(v for v, _ in leaves.values()), *(t for _, t in pairs)))
        found = torch.autograd.grad([r for r, _ in pairs], sources, [t for _, t in pairs],
                                    allow_unused=True, create_graph=again)
    return [torch.zeros_like(s) if g is None else g for g, s in zip(found, sources)]
