"""``torch.vmap`` as nodes of the graph.

What a map gives its function is a ``mapped`` node: one slice of a tensor whose first dimension is the map's. What the
function makes of it are nodes of the slice's type, as in any other program. A ``collected`` node stands for all that
the map makes of one of these: the tensor with the map's dimension first. When the graph is complete
(``autodiff.inner``), after the gradients that are asked for inside have become operations, the nodes between are made
once more with that dimension in front: each prim has a rule, a row of ``RULES``; a library call without one is done for
each slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.dims import is_one
from jit.graph.ir import Node, TensorType, filled, same_ints
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr

MOST_SLICES = 64  # for which a library call is done one by one

RULES: dict[str, Callable] = {}       # prim, or kind of prims -> fn(batch, node) -> node
CALLS: dict[str, Callable] = {}       # operator -> fn(batch, node, *arguments) -> node, or None for one by one


def _refuse(what: str) -> Unsupported:
    return Unsupported(f"{what} inside torch.vmap", "nothing needs to be done: it runs in eager", kind="functorch")


def depends(nodes: Iterable[Node], level: int) -> set[Node]:
    """Those of the nodes, in program order, that differ from slice to slice."""
    found: set[Node] = set()
    for n in nodes:
        own = n.attrs.get("level") == level  # where the map begins or ends
        if n.op == "mapped" if own else not found.isdisjoint(n.inputs):
            found.add(n)
    return found


def without_slices(nodes: list[Node]) -> list[Node]:
    """Nodes without those that are made of one slice, in whose place others stand; not all of them are dead, since what
    reads at places that data decide may raise."""
    found: set[Node] = set()
    for n in nodes:
        if n.op == "mapped" or not found.isdisjoint(n.inputs):
            found.add(n)
    return [n for n in nodes if n not in found] if found else nodes


# -- expansion -------------------------------------------------------------------------------------------------------


class Batch:
    """The nodes of one map with its dimension in front.

    Args:
        b: what makes nodes, behind those that it has made so far.
        level: of the map.
        size: how many slices there are.
    """

    def __init__(self, b: Builder, level: int, size: IntExpr) -> None:
        self.b, self.level, self.size = b, level, size
        self.done: dict[Node, Node | tuple] = {}

    def collected(self, node: Node) -> Node:
        """All slices of a node."""
        reached, stack = {node}, [node]
        while stack:
            for i in stack.pop().inputs:
                if i not in reached:
                    reached.add(i)
                    stack.append(i)
        nodes = [n for n in self.b.nodes if n in reached]
        differing = depends(nodes, self.level)
        for n in nodes:
            if n in differing and n not in self.done:
                self.b.loc = n.loc
                self.done[n] = n.inputs[0] if n.op == "mapped" and n.attrs["level"] == self.level else self.visit(n)
        return self.all(node)

    def visit(self, n: Node) -> Node | tuple:
        if not n.repeatable or n.attrs.get("impure"):
            raise _refuse("random numbers, or a check")
        rule = RULES.get(n.op) or RULES.get(info(n.op).kind)
        made = None if rule is None else rule(self, n)
        return one_by_one(self, n) if made is None else made

    def differs(self, n: Node) -> bool:
        return n in self.done

    def all(self, n: Node) -> Node:
        """All slices of an operand; the same one over and over where they do not differ."""
        if n in self.done:
            return self.done[n]
        return self.b.expand(self.b.unsqueeze(n, 0), (self.size, *n.type.shape))

    def lined(self, n: Node, rank: int) -> Node:
        """An operand that broadcasts to ``rank`` dimensions of each slice."""
        if n not in self.done:
            return n
        made = self.done[n]
        for _ in range(rank - n.type.rank):
            made = self.b.unsqueeze(made, 1)
        return made


def rule(*names: str) -> Callable:
    def register(fn: Callable) -> Callable:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def call(*targets: str) -> Callable:
    def register(fn: Callable) -> Callable:
        CALLS.update(dict.fromkeys(targets, fn))
        return fn

    return register


def _moved(dims: Sequence[int]) -> tuple:
    return tuple([d + 1 for d in dims])


@rule("pointwise")
def _pointwise(m: Batch, n: Node) -> Node:
    return m.b.emit(n.op, tuple([m.lined(i, n.type.rank) for i in n.inputs]), n.attrs, n.type.dtype)


@rule("custom_gradient", "gate")
def _gradient(m: Batch, n: Node) -> Node:
    """Where what is not mapped has a gradient that is, the value is spread over the slices."""
    value, *others = n.inputs
    rank = value.type.rank
    made = (m.all(value), *[m.lined(i, max(rank, i.type.rank)) for i in others])
    return m.b.node(n.op, made, n.attrs, made[0].type)


@rule("alias", "detach", "reinterpret")
def _same(m: Batch, n: Node) -> Node:
    return m.b.emit(n.op, (m.all(n.inputs[0]),), n.attrs, n.type.dtype)


@rule("permute")
def _permute(m: Batch, n: Node) -> Node:
    return m.b.permute(m.all(n.inputs[0]), (0, *_moved(n.attrs["dims"])))


@rule("reshape")
def _reshape(m: Batch, n: Node) -> Node:
    x = n.inputs[0]
    whole, shape, strides = m.all(x), (m.size, *n.type.shape), n.type.strides
    if not same_ints(whole.type.strides[1:], x.type.strides):
        found = _with_ones(n.type.shape, whole.type)
        if found is None:
            return m.b.reshape(whole, shape)
        strides = found
    return m.b.view_node("reshape", whole, {"shape": shape}, shape, (whole.type.strides[0], *strides))


def _with_ones(shape: tuple, whole: TensorType) -> tuple | None:
    """The strides of a slice of ``whole`` in which axes of size one are put in, as ``unsqueeze`` does, or left out;
    None for another shape."""
    left = [(n, step) for n, step in zip(whole.shape[1:], whole.strides[1:]) if not is_one(n)]
    strides: list = []
    after: IntExpr = 1
    for n in reversed(shape):
        if is_one(n):
            strides.insert(0, after * strides[0] if strides else 1)
        elif left and same_ints((n,), (left[-1][0],)):
            strides.insert(0, left.pop()[1])
        else:
            return None
        after = n
    return None if left else tuple(strides)


@rule("expand")
def _expand(m: Batch, n: Node) -> Node:
    return m.b.expand(m.lined(n.inputs[0], n.type.rank), (m.size, *n.type.shape))


@rule("slice")
def _slice(m: Batch, n: Node) -> Node:
    a = n.attrs
    return m.b.slice(m.all(n.inputs[0]), a["dim"] + 1, a["start"], a["length"], a["step"])


@rule("diagonal")
def _diagonal(m: Batch, n: Node) -> Node:
    a = n.attrs
    return m.b.emit(n.op, (m.all(n.inputs[0]),), {**a, "dim1": a["dim1"] + 1, "dim2": a["dim2"] + 1})


@rule("clone")
def _clone(m: Batch, n: Node) -> Node:
    """Slices lie one behind the other, unless they lie between one another."""
    kept = "preserves" in n.attrs or not layout.is_dense(n.type.shape, n.type.strides)
    return m.b.clone(m.all(n.inputs[0]), None if kept else (n.type.numel, *n.type.strides))


@rule("flip")
def _flip(m: Batch, n: Node) -> Node:
    return m.b.flip(m.all(n.inputs[0]), _moved(n.attrs["dims"]))


@rule("cat")
def _cat(m: Batch, n: Node) -> Node:
    return m.b.cat([m.all(i) for i in n.inputs], n.attrs["dim"] + 1)


@rule("constant_pad")
def _pad(m: Batch, n: Node) -> Node:
    return m.b.emit(n.op, (m.all(n.inputs[0]),), {**n.attrs, "pads": ((0, 0), *n.attrs["pads"])})


@rule("reduction")
def _reduce(m: Batch, n: Node) -> Node:
    x, dims = m.all(n.inputs[0]), n.attrs["dims"]
    if not dims and info(n.op).gives_position:
        return m.b.full((m.size, *n.type.shape), 0, n.type.dtype, n.type.device)
    attrs = {k: v for k, v in n.attrs.items() if k != "nan_hits"}
    if not dims:  # of a number: libraries take no dimensions for all
        return m.b.emit(n.op, (m.b.unsqueeze(x, 1),), {**attrs, "dims": (1,), "keepdim": False}, n.type.dtype)
    return m.b.emit(n.op, (x,), {**attrs, "dims": _moved(dims)}, n.type.dtype)


@rule("scan")
def _scan(m: Batch, n: Node) -> Node | None:
    if not n.type.rank:
        return None
    return m.b.emit(n.op, (m.all(n.inputs[0]),), {**n.attrs, "dim": n.attrs["dim"] + 1}, n.type.dtype)


@rule("gather")
def _gather(m: Batch, n: Node) -> Node:
    x, index = map(m.all, n.inputs)
    return m.b.emit("gather", (x, index), {**n.attrs, "dim": n.attrs["dim"] + 1})


@rule("scatter")
def _scatter(m: Batch, n: Node) -> Node:
    return m.b.emit("scatter", tuple(map(m.all, n.inputs)), {**n.attrs, "dim": n.attrs["dim"] + 1})


def _places(m: Batch, n: Node, x: Node, indices: Sequence[Node]) -> tuple[Node, list[Node], tuple, dict]:
    """For what is read or written by index tensors on ``dims``: the tensor with the map's dimension and ``dims`` first,
    index tensors for all of these, the order of its dimensions, and attributes."""
    dims = _moved(n.attrs["dims"])
    order = (0, *dims, *[d for d in range(1, x.type.rank) if d not in dims])
    shape = indices[0].type.shape
    each = m.b.iota(m.size, device=x.type.device)
    for k in range(len(shape)):
        each = m.b.unsqueeze(each, k + 1)
    indices = list(map(m.all, indices))
    if not n.attrs.get("wrap", True):  # what is negative is still out of range
        indices = [m.b.where(m.b.lt(i, 0), x.type.shape[1 + d], i) for d, i in zip(n.attrs["dims"], indices)]
    given = [m.b.expand(each, (m.size, *shape)), *indices]
    return m.b.permute(x, order), given, order, {**n.attrs, "dims": tuple(range(len(given))), "wrap": True}


@rule("index")
def _index(m: Batch, n: Node) -> Node:
    x, *indices = n.inputs
    dims, count = n.attrs["dims"], indices[0].type.rank
    if not any(map(m.differs, indices)):
        return m.b.emit("index", (m.all(x), *indices), {**n.attrs, "dims": _moved(dims)})
    if not m.differs(x):
        found = m.b.emit("index", (x, *map(m.all, indices)), n.attrs)
        first = dims[0]
        return m.b.permute(found, (first, *[d for d in range(found.type.rank) if d != first]))
    ahead, given, _, attrs = _places(m, n, m.all(x), indices)
    found = m.b.emit("index", (ahead, *given), attrs)
    before = range(1 + count, 1 + count + dims[0])
    return m.b.permute(found, (0, *before, *range(1, 1 + count), *range(1 + count + dims[0], found.type.rank)))


@rule("put")
def _put(m: Batch, n: Node) -> Node | None:
    x, values, *indices = n.inputs
    if n.attrs["combine"] not in ("set", "sum"):
        return None
    dims, count = n.attrs["dims"], indices[0].type.rank
    ahead, given, order, attrs = _places(m, n, m.all(x), indices)
    values = m.b.expand(m.lined(values, n.type.rank - len(dims) + count), (
        m.size, *n.type.shape[:dims[0]], *indices[0].type.shape, *n.type.shape[dims[-1] + 1:]))
    first = dims[0]
    values = m.b.permute(values, (0, *range(1 + first, 1 + first + count), *range(1, 1 + first),
                                  *range(1 + first + count, values.type.rank)))
    made = m.b.emit("put", (ahead, values, *given), attrs)
    return m.b.permute(made, [order.index(d) for d in range(len(order))])


@rule("getitem")
def _getitem(m: Batch, n: Node) -> Node:
    return m.done[n.inputs[0]][n.attrs["index"]]


@rule("mapped")
def _mapped(m: Batch, n: Node) -> Node:
    """A slice of another map, of what differs in this one."""
    raise _refuse("a map that has not ended")


@rule("call")
def _call(m: Batch, n: Node) -> Node | None:
    found = CALLS.get(n.attrs["target"].removeprefix("aten::"))
    return None if found is None or n.attrs["overload"] else found(m, n, *filled(n.attrs["args"], n.inputs))


def one_by_one(m: Batch, n: Node) -> Node | tuple:
    """A node of which nothing else is known, for each slice."""
    if type(m.size) is not int or not 0 < m.size <= MOST_SLICES or any(
            i.several for i in n.inputs) or info(n.op).kind not in ("call", "window", "index", "scatter", "scan"):
        raise _refuse(n.attrs.get("target", n.op))
    slices = []
    for k in range(m.size):
        inputs = tuple([m.b.select(m.done[i], 0, k) if m.differs(i) else i for i in n.inputs])
        slices.append(m.b.node(n.op, inputs, n.attrs, n.type))
    if not n.several:
        return m.b.cat([m.b.unsqueeze(s, 0) for s in slices], 0)
    return tuple(None if t is None else m.b.cat(
        [m.b.unsqueeze(m.b.node("getitem", (s,), {"index": i}, t), 0) for s in slices], 0)
        for i, t in enumerate(n.type))


# -- products --------------------------------------------------------------------------------------------------------


def _product(m: Batch, left: Node, right: Node) -> Node:
    """Products of matrices, of which one at least differs."""
    b, (rows, depth), columns = m.b, left.type.shape, right.type.shape[1]
    dtype, device = left.type.dtype, left.type.device
    if not m.differs(right):
        flat = b.reshape(m.all(left), (m.size * rows, depth))
        made = b.aten("aten::mm", "", (flat, right), TensorType.contiguous((m.size * rows, columns), dtype, device))
        return b.reshape(made, (m.size, rows, columns))
    return b.aten("aten::bmm", "", (m.all(left), m.all(right)),
                  TensorType.contiguous((m.size, rows, columns), dtype, device))


def _scaled(m: Batch, x: Node, factor: float) -> Node:
    return x if factor == 1 else m.b.binary("mul", x, factor)


@call("mm")
def _mm(m: Batch, n: Node, left: Node, right: Node) -> Node:
    return _product(m, left, right)


@call("addmm")
def _addmm(m: Batch, n: Node, added: Node, left: Node, right: Node, beta: float = 1, alpha: float = 1) -> Node:
    product = (_product(m, left, right) if m.differs(left) or m.differs(right) else
               m.b.aten("aten::mm", "", (left, right), TensorType.contiguous(
                   n.type.shape, n.type.dtype, n.type.device)))
    return m.b.binary("add", _scaled(m, m.lined(added, 2), beta), _scaled(m, product, alpha))


@call("mv")
def _mv(m: Batch, n: Node, matrix: Node, vector: Node) -> Node:
    column = m.b.unsqueeze(vector, 1)
    if m.differs(vector):
        m.done[column] = m.b.unsqueeze(m.all(vector), 2)
    made = _product(m, matrix, column)
    return m.b.drop_dim(made, 2)


@call("dot", "vdot")
def _dot(m: Batch, n: Node, left: Node, right: Node) -> Node | None:
    if n.type.dtype.is_complex:
        return None
    products = m.b.binary("mul", m.lined(left, 1), m.lined(right, 1))
    return m.b.reduce("sum", products, (1,), False, n.type.dtype)


@call("bmm")
def _bmm(m: Batch, n: Node, left: Node, right: Node) -> Node:
    b, (count, rows, _), columns = m.b, left.type.shape, right.type.shape[2]
    left, right = (b.reshape(m.all(x), (m.size * count, *x.type.shape[1:])) for x in (left, right))
    made = b.aten("aten::bmm", "", (left, right), TensorType.contiguous(
        (m.size * count, rows, columns), n.type.dtype, n.type.device))
    return b.reshape(made, (m.size, count, rows, columns))


@call("linear")
def _linear(m: Batch, n: Node, x: Node, weight: Node, bias: Node | None = None) -> Node:
    b, depth = m.b, x.type.shape[-1]
    rows = layout.infer_size((-1, depth), x.type.numel)[0] if x.type.rank != 2 else x.type.shape[0]
    flat = x if x.type.rank == 2 else b.reshape(x, (rows, depth))
    if m.differs(x) and flat is not x:
        m.done[flat] = b.reshape(m.all(x), (m.size, rows, depth))
    turned = b.transpose(weight, 0, 1)
    if m.differs(weight):
        m.done[turned] = b.transpose(m.all(weight), 1, 2)
    if not m.differs(flat) and not m.differs(turned):
        made = b.aten("aten::mm", "", (flat, turned), TensorType.contiguous(
            (rows, weight.type.shape[0]), n.type.dtype, n.type.device))
        made = b.expand(b.unsqueeze(made, 0), (m.size, *made.type.shape))
    else:
        made = _product(m, flat, turned)
    made = b.reshape(made, (m.size, *n.type.shape))
    return made if bias is None else b.binary("add", made, m.lined(bias, n.type.rank))


@call("convolution")
def _convolution(m: Batch, n: Node, x: Node, weight: Node, bias: Node | None, *others: object) -> Node | None:
    """Of images that differ: of all of them at once."""
    if not m.differs(x) or m.differs(weight) or bias is not None and m.differs(bias):
        return None
    b, count = m.b, m.size * x.type.shape[0]
    flat = b.reshape(m.all(x), (count, *x.type.shape[1:]))
    shape = (count, *n.type.shape[1:])
    made = b.aten("aten::convolution", "", (flat, weight, bias, *others),
                  TensorType.contiguous(shape, n.type.dtype, n.type.device))
    return b.reshape(made, (m.size, *n.type.shape))
