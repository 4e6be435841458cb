"""Attention that is spelled out, ``softmax(f(q @ k^T)) @ v``, as one operation whose kernel never writes the scores.

What is looked for is a product whose left operand is a softmax over the last dimension of values that are computed,
element by element, from the product of two others: scales, biases, masks by ``where`` or by addition, caps and any
other function of a score and of its place. That function becomes a graph of its own, the *tree*, from the scores, and
from the *leaves*, tensors that are read at a score's place. Roundings of the program's dtypes are part of the tree.
Nothing is rewritten whose scores or weights are read by anything else.

``jit::attention(q, k, v, leaves, blocks, side, tree, full, safe, far)`` gives the attention, (*batch, M, V), and of
each row, (*batch, M) in float32, the logarithm of the sum of exponentials, the largest score, and the logarithm of the
sum of exponentials of the scores less that one. q, k and v have the same leading dimensions.
``blocks`` says of each block of ``side`` by ``side`` scores whether none (0), some (1) or all (2) of them are kept, or
is None; ``full`` is the tree for blocks of which all are. ``safe``: rows of which no score is kept give zeros, and not
NaN. ``far``: masks may have put all of a row near the end of float32, where no logarithm of a sum can be told from the
largest score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from jit import config
from jit.devices import backend
from jit.graph import dims
from jit.graph.build import HALF, Builder
from jit.graph.dims import product
from jit.graph.ir import CHECKED, Graph, Node, Output, Part, TensorType, Transform, ancestors, filled, same_ints
from jit.graph.passes.block_states import block_states
from jit.graph.passes.dce import eliminate_dead_nodes, unmarked
from jit.graph.passes.rewrite import changed
from jit.graph.prim_info import info

BLOCK = 128
WIDEST = 256  # of a query, key or value: what a kernel holds of each
FAR = 1e4


@dataclass(eq=False)
class Attention:
    """A place in a graph. ``out`` is the product with v, ``sums`` the logarithms of sums of exponentials."""

    out: Node
    scores: Node
    x: Node
    operands: tuple[tuple[Node, bool], ...]  # query, key, value, and whether the last two dimensions are exchanged
    safe: bool
    kept: Node | None = None
    inside: Node | None = None  # x where all scores of a block are kept
    far: bool = False
    leaves: list[Node] = field(default_factory=list)
    sums: list[Node] = field(default_factory=list)


def fuse_attention(graph: Graph, differentiated: bool = False) -> Graph:
    """The graph with one operation in the place of each attention that is spelled out, where the device has a kernel
    for it. ``differentiated``: gradients are taken of the graph."""
    calls = [n for n in graph.nodes if _is_product(n) and backend(n.device).fuses_attention
             and (backend(n.device).fuses_gradients_of_attention or not differentiated)]
    biased = [n for n in graph.nodes if _is_biased(n)]
    if not calls and not biased:
        return graph
    users, returned = graph.users(), {o.node for o in graph.outputs}
    found = [a for n in calls if (a := _match(graph, n, users, returned)) is not None]
    return eliminate_dead_nodes(_Fused(graph, found, biased).run()) if found or biased else graph


def _is_product(n: Node) -> bool:
    return (n.op == "aten_call" and n.attrs["target"] == "aten::bmm" and n.attrs["overload"] == "" and not n.several)


def _is_biased(n: Node) -> bool:
    """Whether it is the library's attention with a bias that its fast kernels do not take."""
    if (n.op != "aten_call" or n.attrs["target"] != "aten::scaled_dot_product_attention" or n.impure
        or not backend(n.device).fuses_biased_attention):
        return False
    q, k, v, mask, dropout, causal, _, grouped = filled(n.attrs["args"], n.inputs)
    if mask is None or dropout or causal or grouped or q.dtype not in HALF or not mask.dtype.is_floating_point:
        return False
    types = [t.type for t in (q, k, v, mask)]
    widths = (q.shape[-1], v.shape[-1])
    return (all(type(s) is int for t in types for s in t.shape) and all(t.device == n.device for t in types)
            and len({t.shape[:-2] for t in types[:3]}) == 1 and len({t.dtype for t in types[:3]}) == 1
            and all(8 <= w <= WIDEST for w in widths) and not n.type.is_empty and q.type.rank > 2)


# what is looked for


def _plain(n: Node) -> Node:
    """The node whose value ``n`` has, whatever its gradient is said to be."""
    while _shows(n) and n.dtype is n.inputs[0].dtype and same_ints(n.shape, n.inputs[0].shape):
        n = n.inputs[0]
    return n


def _shows(n: Node) -> bool:
    """Whether the elements of ``n`` are those of its operand, perhaps repeated or as another dtype, in their order."""
    return (info(n.op).in_order or n.op == "expand" or n.op == "cast" or n.op == "custom_gradient") and n.op != "detach"


def _is(n: Node, value: float) -> bool:
    while _shows(n):
        n = n.inputs[0]
    return info(n.op).constant and n.attrs["value"] == value


def _where_empty(n: Node, largest: Node, value: float) -> Node | None:
    """z of ``where(largest == -inf, value, z)``."""
    if n.op != "where" or not _is(n.inputs[1], value):
        return None
    empty = _plain(n.inputs[0])
    if empty.op == "eq" and _plain(empty.inputs[0]) is largest and _is(empty.inputs[1], -math.inf):
        return _plain(n.inputs[2])
    return None


def _over_rows(n: Node, op: str, x: Node) -> bool:
    return (n.op == op and n.attrs["keepdim"] and tuple(n.attrs["dims"]) == (x.type.rank - 1,)
            and _plain(n.inputs[0]) is x)


def _softmax(w: Node) -> tuple[Node, Node, Node, bool] | None:
    """(x, its largest values, the sums, whether empty rows are taken care of) of a softmax over the last dimension."""
    if w.op != "div":
        return None
    e, total = map(_plain, w.inputs)
    if e.op != "exp" or (shifted := _plain(e.inputs[0])).op != "sub":
        return None
    x, shift = map(_plain, shifted.inputs)
    if x.dtype is not torch.float32 or not x.type.rank:
        return None
    largest, safe = shift, False
    if shift.op == "where":
        largest, safe = _plain(shift.inputs[2]), True
        if _where_empty(shift, largest, 0.0) is None:
            return None
    if not _over_rows(largest, "amax", x):
        return None
    if safe:
        found = _where_empty(total, largest, 1.0)
        if found is None:
            return None
        total = found
    return (x, largest, total, safe) if _over_rows(total, "sum", e) else None


def _match(graph: Graph, out: Node, users: dict[Node, list[Node]], returned: set[Node]) -> Attention | None:
    w = _plain(out.inputs[0])
    while _shows(w):
        if not same_ints(w.type.shape[-1:], w.inputs[0].type.shape[-1:]):
            return None
        w = w.inputs[0]
    found = _softmax(w)
    if found is None:
        return None
    x, largest, total, safe = found
    if not safe and not backend(out.device).fuses_spelled_attention:
        return None
    scores = _scores(x)
    if scores is None or out.dtype not in backend(out.device).attended:
        return None
    operands = tuple(map(_operand, (*scores.inputs, out.inputs[1])))
    a = Attention(out, scores, x, operands, safe)
    if not _fits(a) or not _alone(graph, a, largest, total, users, returned):
        return None
    top = _plain(x)
    if top.op == "where" and safe and _is(top.inputs[2], -math.inf):
        kept = top.inputs[0]
        if same_ints(kept.shape[-2:], x.shape[-2:]) and scores not in ancestors([kept]):
            a.kept, a.inside = kept, top
    a.leaves = _leaves(a)
    a.far = _far(a)
    if a.far and not backend(out.device).fuses_spelled_attention:
        return None
    return a if all(n.device == out.device for n in a.leaves) else None


def _scores(x: Node) -> Node | None:
    """The product that ``x`` is a function of, element by element; None where there is no such product."""
    seen, stack = set(), [x]
    while stack:
        n = stack.pop()
        if n in seen or n.several:
            continue
        seen.add(n)
        if _is_product(n) and same_ints(n.shape[-2:], x.shape[-2:]) and dims.structurally_equal(n.type.numel,
                                                                                              x.type.numel):
            return n
        if _in_place(n, x):
            stack += n.inputs[:1] if n.op == "custom_gradient" else n.inputs
    return None


def _operand(n: Node) -> tuple[Node, bool]:
    """What a product reads, without copies and casts from a half type, which kernels of this kind do not need; and
    whether its last two dimensions have to be exchanged."""
    swapped = False
    while True:
        rank = 0 if n.several else n.type.rank
        n = _plain(n)
        if n.op == "permute" and tuple(n.attrs["dims"]) == (*range(rank - 2), rank - 1, rank - 2):
            swapped = not swapped
        elif not (_shows(n) and n.op != "expand" and same_ints(n.shape[-2:], n.inputs[0].shape[-2:])
                  and (n.dtype is (dtype := n.inputs[0].dtype) or dtype in HALF and n.dtype is torch.float32)):
            return n, swapped
        n = n.inputs[0]


def _fits(a: Attention) -> bool:
    dtype, device = a.out.dtype, backend(a.out.device)
    if any(n.dtype is not dtype for n, _ in a.operands) or a.scores.dtype not in (dtype, torch.float32):
        return False
    if not device.attends_scores(a.scores.dtype):
        return False
    widths = (a.scores.inputs[0].shape[-1], a.out.shape[-1])
    if not all(type(n) is int and 8 <= n <= WIDEST for n in widths):
        return False
    if dtype in HALF and config.match_eager_rounding and not device.rounds_weights:
        return False
    shapes = [t.shape for t in (a.x, a.scores, *(n for n, _ in a.operands))]
    if not device.attends_any_length and any(type(n) is not int for shape in shapes for n in shape):
        return False
    sizes = [dims.size_hint(n) for n in a.x.shape]
    return (product(sizes) >= device.fewest_scores and sizes[-2] >= device.fewest_queries
            and not a.out.type.is_empty)


def _alone(graph: Graph, a: Attention, largest: Node, total: Node, users: dict[Node, list[Node]],
           returned: set[Node]) -> bool:
    """Whether nothing else reads the scores or what is computed of them; fills in ``sums``."""
    inside, before = ancestors([a.out.inputs[0]]), ancestors([a.x]) - {a.scores}
    place = {n: k for k, n in enumerate(graph.nodes)}
    seen, stack = set(), [a.scores]
    while stack:
        n = stack.pop()
        if n in seen or n is a.out:
            continue
        seen.add(n)
        if n not in inside and _is_sum(n, largest, total, a.safe) and place[n] > place[a.out]:
            a.sums.append(n)
            continue
        if n in returned or n.several or n.op == "detach" or n in before and not _in_place(n, a.x):
            return False
        if n not in inside and not _leads_to_sum(n, users, largest, total, a.safe):
            return False
        stack += users[n]
    return True


def _in_place(n: Node, x: Node) -> bool:
    """Whether each element of ``n`` is computed of the score at its own place."""
    whole = (n.type.rank > 1 and same_ints(n.shape[-2:], x.shape[-2:])
             and dims.structurally_equal(n.type.numel, x.type.numel))
    return whole and (info(n.op).kind == "pointwise" or _shows(n))


def _is_sum(n: Node, largest: Node, total: Node, safe: bool) -> bool:
    """Whether it is ``log(total) + largest``, and -inf of rows without anything."""
    if n.op == "where" and safe:
        found = _where_empty(n, largest, -math.inf)
        return found is not None and _is_sum(found, largest, total, False)
    if n.op != "add" or safe:
        return False
    log, other = map(_plain, n.inputs)
    return log.op == "log" and _plain(log.inputs[0]) is total and other is largest


def _leads_to_sum(n: Node, users: dict[Node, list[Node]], largest: Node, total: Node, safe: bool) -> bool:
    return info(n.op).kind == "pointwise" and all(
        _is_sum(u, largest, total, safe) or _leads_to_sum(u, users, largest, total, safe) for u in users[n])


def _leaves(a: Attention) -> list[Node]:
    """What the tree reads beside the scores: what it computes of each score it computes from these."""
    found: dict[Node, None] = {}
    behind: dict[Node, bool] = {}

    def of_scores(n: Node) -> bool:
        if n not in behind:
            behind[n] = n is a.scores or any(map(of_scores, n.inputs))
        return behind[n]

    seen, stack = {a.scores}, [a.x]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        p = info(n.op)
        if p.is_source:
            continue
        whole = not n.several and n.type.rank > 1 and same_ints(n.shape[-2:], a.x.shape[-2:])
        inline = (of_scores(n) or p.kind == "view" and p.in_kernels and n.op != "as_strided"
                  or p.in_kernels and (p.kind in ("pointwise", "index") or n.op == "custom_gradient") and
                  (whole or all(info(m.op).kind in ("source", "number", "pointwise", "view") for m in ancestors([n]))))
        if inline:
            stack += n.inputs
        else:
            found[n] = None
    return list(found)


def _far(a: Attention) -> bool:
    """Whether scores may be finite and larger than ``FAR`` for other reasons than what is multiplied."""
    along = any(n.dtype.is_floating_point and n.type.rank and same_ints(n.shape[-1:], a.x.shape[-1:]) for n in a.leaves)
    numbers = [abs(n.attrs["value"]) for n in ancestors([a.x], frozenset([a.scores, *a.leaves]))
               if info(n.op).constant and type(n.attrs["value"]) in (int, float)]
    return along or any(FAR < n < math.inf for n in numbers)


# what is put in its place


class _Fused(Transform):
    def __init__(self, graph: Graph, found: list[Attention], biased: list[Node]) -> None:
        super().__init__(graph, builder=Builder(graph.env))
        self.biased = set(biased)
        self.at = {a.out: a for a in found}
        self.sums = {n: a for a in found for n in a.sums}
        self.lse: dict[Attention, Node] = {}
        # What a kernel reads at places that data say it checks itself.
        self.inlined = {m for a in found for m in ancestors([a.x], frozenset([a.scores, *a.leaves]))}

    def visit(self, n: Node) -> Node:
        b: Builder = self.b  # type: ignore[assignment]
        if n in self.biased:
            return _of_library(b, n, *filled(n.attrs["args"], self.operands(n)))
        if n in self.sums:
            return b.reshape(self.lse[self.sums[n]], n.shape)
        a = self.at.get(n)
        operands = None if a is None else _aligned(b, [(self.new[m], swapped) for m, swapped in a.operands])
        if a is None or operands is None:
            return self.keep(n, attrs=unmarked(n.attrs)) if n in self.inlined and n.attrs.get(CHECKED) else self.keep(n)
        q, k, v = operands
        tree, full, blocks = _tree(self.graph, a), None, None
        if a.kept is not None:
            full, blocks = _tree(self.graph, a, True), block_states(b, self.new[a.kept], BLOCK)
        out = TensorType.contiguous((*q.shape[:-1], v.shape[-1]), q.dtype, q.device)
        sums = TensorType.contiguous(q.shape[:-1], torch.float32, q.device)
        args = (q, k, v, tuple([self.new[m] for m in a.leaves]), blocks, BLOCK, tree, full, a.safe, a.far)
        made, self.lse[a], *_ = b.aten("jit::attention", "", args, (out, sums, sums, sums))
        return b.reshape(made, n.shape)


def _of_library(b: Builder, n: Node, q: Node, k: Node, v: Node, mask: Node, dropout: float, causal: bool,
                scale: float | None, grouped: bool) -> Node:
    """``scaled_dot_product_attention`` with a bias that is added to the scores."""
    t = Builder(b.env)
    shape = (*q.shape[:-1], k.shape[-2])
    s = t.node("input", (), {"index": 0}, TensorType.contiguous(shape, torch.float32, n.device))
    bias = t.node("input", (), {"index": 1}, mask.type)
    x = t.add(t.mul(s, 1 / math.sqrt(q.shape[-1]) if scale is None else scale), t.cast(bias, torch.float32))
    tree = Graph([s, bias], t.nodes, [Output(x)], b.env)
    sums = TensorType.contiguous(q.shape[:-1], torch.float32, q.device)
    args = (q, k, v, (mask,), None, BLOCK, tree, None, True, True)
    return b.aten("jit::attention", "", args, (n.type, sums, sums, sums))[0]


def _aligned(b: Builder, operands: list[tuple[Node, bool]]) -> list[Node] | None:
    """Query, key and value with the same leading dimensions, as views, keys as rows; None where that needs a copy."""
    found = [b.transpose(n, n.type.rank - 2, n.type.rank - 1) if swapped is (k != 1) else n
             for k, (n, swapped) in enumerate(operands)]
    for wanted in sorted((n.shape[:-2] for n in found), key=len, reverse=True):
        made = [n if same_ints(n.shape[:-2], wanted) else b.try_view(n, (*wanted, *n.shape[-2:])) for n in found]
        if all(n is not None for n in made):
            return made  # type: ignore[return-value]
    return None


def _tree(graph: Graph, a: Attention, inside: bool = False) -> Graph:
    """The modified scores as a graph apart, of the scores and the leaves. ``inside``: where all are kept."""
    tree = Part(graph, [a.scores, *a.leaves], [a.x]).run()
    if not inside:
        return tree
    (x,) = [o.node for o in tree.outputs]
    top = _plain(x)
    return eliminate_dead_nodes(changed(tree, {top: {"op": "cast", "inputs": (top.inputs[1],), "attrs": {}}}))
