"""What eager's backward frees, and what a second backward then finds missing.

In eager each operation's node keeps what its own gradient reads, and a backward without ``retain_graph`` frees what the
nodes keep that it has walked: those between the results that it starts from and the tensors whose gradients it
computes. A later one raises where it comes to such a node, and only there. ``kept_by_eager`` finds the nodes that keep
something, and says of each which results lead to it and where it leads.
"""

from __future__ import annotations

from jit.graph.functions import differentiated
from jit.graph.gradient_paths import may_carry
from jit.graph.ir import Graph, Node
from jit.graph.op_info import op_info
from jit.graph.prim_info import NOTHING, OTHERS, info
from jit.graph.recording import positions


def kept_by_eager(graph: Graph, wrt: tuple[int, ...], tangents: tuple[int, ...]) -> tuple:
    """((tangents, wrt), ..): one entry for all nodes that keep something and lie on the way from the same results to
    the same inputs; both as bits for positions in the arguments.

    A node is taken for one that keeps something when its gradient can not be computed without data. Multiplication by a
    number is not, though eager keeps some numbers.
    """
    ahead = {graph.inputs[i]: 1 << k for k, i in enumerate(wrt)}  # node -> inputs that it leads to
    data = set(graph.inputs)
    for n in graph.nodes:
        if not data.isdisjoint(n.inputs) or n.impure:
            data.add(n)
        if n.op != "detach" and n not in ahead and may_carry(n):
            bits = 0
            for i in _sources(n):
                bits |= ahead.get(i, 0)
            if bits:
                ahead[n] = bits
    behind: dict = {}  # node -> results that lead to it
    for t, position in enumerate(tangents):
        node = graph.outputs[position].node
        behind[node] = behind.get(node, 0) | 1 << t
    found = {}
    for n in reversed(graph.nodes):
        given = behind.get(n, 0)
        if not given or n not in ahead:
            continue
        for i in _sources(n):
            if i in ahead:
                behind[i] = behind.get(i, 0) | given
        if _keeps(n, ahead, data):
            found[given, ahead[n]] = None
    return tuple(found)


def _sources(n: Node) -> tuple[Node, ...]:
    """What a node's gradient goes to."""
    return n.inputs[1::2] if n.op == "custom_gradient" else differentiated(n)


def _keeps(n: Node, ahead: dict, data: set) -> bool:
    if n.op == "custom_gradient":
        return any(d in data for d in n.inputs[2::2])
    if n.op == "aten_call":
        return op_info(n.attrs["target"]).saves != NOTHING
    saves = info(n.op).saves
    for k, i in enumerate(n.inputs):
        if i in ahead:
            read = saves and saves[min(k, len(saves) - 1)]
            if saves is None or any(x in data for j, x in enumerate(n.inputs)
                                    if (j != k if read is OTHERS else j in read)):
                return True
    return False


def uses(backward: Graph, n_saved: int) -> tuple:
    """For each saved value, the first ``n_saved`` inputs of ``backward``, the tangents (the others) whose gradients
    read it, as bits."""
    saved, tangents, found = {}, {}, [0] * n_saved
    for n in backward.nodes:
        if n.op == "input":
            at = n.attrs["index"]
            saved[n], tangents[n] = (1 << at, 0) if at < n_saved else (0, 1 << at - n_saved)
            continue
        given = own = 0
        for i in n.inputs:
            given |= tangents[i]
            own |= saved[i]
        tangents[n], saved[n] = given, 0 if given else own
        if given:
            read = 0
            for i in n.inputs:
                if not tangents[i]:
                    read |= saved[i]
            for k in positions(read):
                found[k] |= given
    for o in backward.outputs:  # a gradient that is a saved value, whatever the tangents are
        for k in positions(saved[o.node]):
            found[k] = (1 << len(backward.inputs) - n_saved) - 1
    return tuple(found)


def kept_for_others(saved: tuple, read: tuple, watched: tuple, unsaid: tuple) -> list:
    """Which of the ``saved`` ("input" or "output", position) are read in the backward of a result for which autograd
    does not keep them, while it keeps them for others (``watched``); not those that are ``unsaid``. ``read``: see
    ``uses``; the other two: see saved_tensors.held_by_caller."""
    kept: dict = {}
    for place, tangents, _ in watched:
        kept[place] = kept.get(place, 0) | tangents
    return [place for place, tangents in zip(saved, read, strict=True)
            if place in kept and place not in unsaid and tangents & ~kept[place]]
