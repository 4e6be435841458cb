"""What autograd would record of an operation, and what a captured graph has to be differentiated for."""

from __future__ import annotations

import dataclasses

from jit.graph.ir import Node

# Operations whose results have no gradient although they take tensors that do, or which of several results have one (PyTorch: output_differentiability).
NOT_DIFFERENTIABLE = frozenset(("rand_like", "randn_like", "randint_like", "multinomial"))
DIFFERENTIABLE_RESULTS = {
    "linalg_lu": (False, True, True),
    "lu_unpack": (False, True, True),
    "native_layer_norm": (True, False, False),
    "native_group_norm": (True, False, False),
    "native_batch_norm": (True, False, False),
    "_native_batch_norm_legit": (True, False, False),
    "_native_batch_norm_legit_no_training": (True, False, False),
    "_batch_norm_with_update": (True, False, False, False),
}


def result_is_differentiable(name: str, index: int) -> bool:
    """Whether eager gives result number ``index`` of the operation a gradient."""
    if name in NOT_DIFFERENTIABLE:
        return False
    known = DIFFERENTIABLE_RESULTS.get(name)
    return known is None or index >= len(known) or known[index]


class Recording:
    """What autograd would record of one operation: whether it does (``enabled``), and the nodes that ``carry`` a gradient into it."""

    def __init__(self, enabled: bool, carry: set):
        self.enabled, self.carry = enabled, carry

    def reaches(self, node: Node) -> bool:
        """Whether a gradient of ``node`` leads to one of the carrying nodes."""
        oldest, seen, stack = min(n.id for n in self.carry), set(), [node]
        while stack:
            n = stack.pop()
            if n in self.carry:
                return True
            if n.id > oldest and n.op != "detach" and n not in seen:
                seen.add(n)
                stack.extend(n.inputs)
        return False


@dataclasses.dataclass(frozen=True)
class Gradient:
    """Which inputs (``wrt``) and returned outputs (``tangents``) of a graph have gradients, by position. The results ``views`` are views of
    inputs or of other results; autograd takes their gradient there."""

    wrt: tuple
    tangents: tuple
    views: tuple = ()
