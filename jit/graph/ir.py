"""The graph: SSA nodes over tensors, in program order, without side effects.

A ``Node`` has an op (the name of a prim of ``prim_info.PRIMS``), inputs, attributes and a ``TensorType``. In-place
operations do not exist here: an input that the program changed is an ``Output`` with ``mutates`` set. A *view* node's
value shares memory with its first input. An output that is a view of an ``input`` node must be a real view of that
tensor: it shows what the mutating outputs write there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, ClassVar, NamedTuple

import torch

from jit.graph.dims import Dim, IntExpr, equal, product, structurally_equal
from jit.graph.shape_env import ShapeEnv


def same_ints(a, b) -> bool:
    """Whether two sequences of IntExpr are structurally equal; never guards."""
    return a is b or (len(a) == len(b) and all(map(structurally_equal, a, b)))


def contiguous_strides(shape) -> tuple[IntExpr, ...]:
    """Row-major strides in elements, as ``torch.empty(shape)`` has them: a dimension of size 0 counts as 1."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        if type(size) is int:
            if size > 1:
                step = step * size
        else:
            step = step * size
    return tuple(reversed(strides))


class TensorType:
    """Shape and strides (tuples of IntExpr, strides in elements), dtype and device of one tensor. Immutable, compared
    structurally."""

    __slots__ = ("shape", "strides", "dtype", "device", "_numel", "_contiguous")

    def __init__(self, shape, strides, dtype: torch.dtype, device: torch.device):
        self.shape, self.strides, self.dtype, self.device = shape, strides, dtype, device
        self._numel = self._contiguous = None

    @staticmethod
    def contiguous(shape, dtype: torch.dtype, device: torch.device) -> "TensorType":
        """A row-major type."""
        shape = tuple(shape)
        t = TensorType(shape, contiguous_strides(shape), dtype, device)
        t._contiguous = True
        return t

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> IntExpr:
        if self._numel is None:
            self._numel = product(self.shape)
        return self._numel

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no elements: a size is the number 0. One that is a symbol is not."""
        return any(type(n) is int and n == 0 for n in self.shape)

    @property
    def is_contiguous(self) -> bool:
        """As ``Tensor.is_contiguous()``: strides of dimensions of size 1 do not matter; a tensor without elements is
        contiguous."""
        if self._contiguous is None:
            self._contiguous = (same_ints(self.strides, contiguous_strides(self.shape))
                                or _is_contiguous(self.shape, self.strides))
        return self._contiguous

    @property
    def is_symbolic(self) -> bool:
        return any(type(d) is Dim for d in self.shape) or any(type(d) is Dim for d in self.strides)

    def replace(self, shape=None, strides=None, dtype=None, device=None) -> "TensorType":
        return TensorType(
            self.shape if shape is None else tuple(shape), self.strides if strides is None else tuple(strides),
            dtype or self.dtype, device or self.device
        )

    def __eq__(self, other):
        if self is other:
            return True
        if type(other) is not TensorType:
            return NotImplemented
        return (self.dtype == other.dtype and self.device == other.device
                and same_ints(self.shape, other.shape) and same_ints(self.strides, other.strides))

    def __hash__(self):
        return hash((self.shape, self.strides, self.dtype, self.device))

    def __reduce__(self):
        return TensorType, (self.shape, self.strides, self.dtype, self.device)

    def __repr__(self):
        shape = ", ".join(map(str, self.shape))
        strides = "" if self.is_contiguous else f" strides ({', '.join(map(str, self.strides))})"
        where = "" if self.device.type == "cpu" else f" {self.device}"
        return f"{str(self.dtype)[6:]}[{shape}]{strides}{where}"


def _is_contiguous(shape, strides) -> bool:
    if any(equal(s, 0) for s in shape):
        return True
    expected: IntExpr = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if equal(size, 1):
            continue
        if not equal(stride, expected):
            return False
        expected = expected * size
    return True


class Loc(NamedTuple):
    """The source position that a node comes from; ``user``, that of the program itself where ``file`` is PyTorch's, as
    (file, line, function); ``region``, the number of the checkpointed call that it is part of, 0 for none."""

    file: str
    line: int
    function: str
    user: tuple | None = None
    region: int = 0

    def __str__(self):
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} {self.function}"


@dataclass(frozen=True)
class Ref:
    """In the argument template of an ``aten_call``: the node's input number ``index``."""

    index: int


# The attribute of nodes whose exceptions the program sees: those that it was traced to, and few of its gradients.
CHECKED = "checked"


class Node:
    """One operation. ``attrs`` has hashable values; ``type`` is a tuple of (TensorType or None) when there are several
    results."""

    __slots__ = ("id", "op", "inputs", "attrs", "type", "loc")

    def __init__(self, id: int, op: str, inputs: tuple, attrs: dict, type, loc: Loc | None = None):
        self.id, self.op, self.inputs, self.attrs, self.type, self.loc = id, op, inputs, attrs, type, loc

    @property
    def shape(self):
        return self.type.shape

    @property
    def dtype(self):
        return self.type.dtype

    @property
    def device(self):
        return self.type.device

    @property
    def name(self) -> str:
        return f"{'x' if self.op == 'input' else 'v'}{self.id}"

    @property
    def impure(self) -> bool:
        """Whether the operation is done for more than its result: random numbers, PyTorch's state, or an exception that
        it may raise (``"raises"``)."""
        return bool(self.attrs.get("impure"))

    @property
    def repeatable(self) -> bool:
        """Whether it may be done twice: it is pure, or an exception is all that it is done for."""
        return self.attrs.get("impure") in (None, False, "raises")

    def __repr__(self):
        attrs = "".join(f", {k}={v}" for k, v in self.attrs.items())
        return f"{self.name} = {self.op}({', '.join(n.name for n in self.inputs)}{attrs}) : {self.type}"


@dataclass(frozen=True)
class Output:
    """A result: returned when ``mutates`` is None, else written (``copy_``) into graph input number ``mutates`` after
    all reads."""

    node: Node
    mutates: int | None = None


class Graph:
    """Inputs (nodes ``input``, attribute ``index`` counts them), all nodes in topological program order, outputs, size
    symbols.

    ``origins``: id of a node that a rewrite has made -> id of the one in whose place it stands, with the same values.
    ``next_id``: no node had that id or a higher one, be it one that is gone. Both are handed on by a graph that this
    one is a rewrite of, ``like``.
    """

    printer: ClassVar[Callable[[Graph], str]]  # set by ``printing``, which knows the text of every prim

    def __init__(self, inputs: list, nodes: list, outputs: list, env: ShapeEnv | None = None,
                 like: Graph | None = None):
        self.inputs, self.nodes, self.outputs = inputs, nodes, outputs
        self.env = env if env is not None else ShapeEnv()
        self.origins = {} if like is None else like.origins
        self.next_id = max(0 if like is None else like.next_id, max((n.id for n in nodes), default=-1) + 1)

    def copy(self) -> Graph:
        """The same graph of nodes of its own, with the same ids."""
        made = _Copy(self).run()
        made.origins = dict(self.origins)
        return made

    def python(self) -> str:
        """The graph as a Python function ``graph(*inputs)`` on eager tensors."""
        return Graph.printer(self)

    def place(self) -> tuple | None:
        """Where in the program its first operation is: (file, line, function)."""
        loc = next((n.loc for n in self.nodes if n.loc is not None), None)
        return loc and (loc.user or loc[:3])

    def users(self) -> dict:
        """Node -> list of the nodes that read it."""
        users: dict = {n: [] for n in self.nodes}
        for n in self.nodes:
            for i in n.inputs:
                users[i].append(n)
        return users

    def __repr__(self):
        lines = [repr(n) for n in self.nodes]
        lines += [f"{'return' if o.mutates is None else f'x{self.inputs[o.mutates].id} <-'} {o.node.name}"
                  for o in self.outputs]
        return "\n".join(lines)


class Transform:
    """A graph made anew, node by node in program order: a subclass says in ``visit`` what becomes of each.

    A node that is kept has its id, whatever it reads now. One that is added has a new id, and ``origins`` says in whose
    place it stands.

    Attributes:
        graph: the graph that is read, which stays as it is.
        new: node of ``graph`` -> what stands for it. nodes: of the new graph, so far.
    """

    def __init__(self, graph: Graph):
        self.graph, self.new, self.nodes, self.next_id = graph, {}, [], graph.next_id

    def add(self, op: str, inputs, attrs: dict, type, like: Node | None = None) -> Node:
        """A new node, with the source position of ``like``."""
        made = Node(self.next_id, op, tuple(inputs), attrs, type, like and like.loc)
        self.next_id += 1
        self.nodes.append(made)
        return made

    def keep(self, n: Node, inputs: tuple) -> Node:
        """``n``, reading ``inputs``."""
        made = n if inputs == n.inputs else Node(n.id, n.op, inputs, n.attrs, n.type, n.loc)
        self.nodes.append(made)
        return made

    def wants(self, n: Node) -> bool:
        """Whether a node is visited. One that is not may be read by none that is."""
        return True

    def visit(self, n: Node, inputs: tuple) -> Node:
        """What stands for ``n``, whose inputs are now ``inputs``."""
        return self.keep(n, inputs)

    def output(self, o: Output) -> Node:
        """What is returned or written for an output."""
        return self.new[o.node]

    def run(self) -> Graph:
        for n in self.graph.nodes:
            if self.wants(n):
                made = self.new[n] = self.visit(n, tuple([self.new[i] for i in n.inputs]))
                if made.id != n.id:
                    self.graph.origins.setdefault(made.id, n.id)
        outputs = [Output(self.output(o), o.mutates) for o in self.graph.outputs]
        return Graph([self.new[n] for n in self.graph.inputs], self.nodes, outputs, self.graph.env, self.graph)


class _Copy(Transform):
    def visit(self, n, inputs):
        self.nodes.append(Node(n.id, n.op, inputs, n.attrs, n.type, n.loc))
        return self.nodes[-1]


def operator(target: str, overload: str):
    """The operator of that name. One of a library may be defined anew, so nothing is to be remembered under its
    name."""
    namespace, name = target.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def origins_in(inputs) -> dict[str, tuple]:
    """Symbol name -> ("size" | "stride", position of the input node, dimension) that is its value: sizes before
    strides. A stride along which there are not two elements may be anything."""
    found: dict[str, tuple] = {}
    for kind in ("size", "stride"):
        for i, node in enumerate(inputs):
            shape = node.type.shape
            if kind == "stride" and any(type(n) is int and n == 0 for n in shape):
                continue
            for d, value in enumerate(shape if kind == "size" else node.type.strides):
                if kind == "stride" and type(shape[d]) is int and shape[d] == 1:
                    continue
                if type(value) is Dim and value.const == 0 and len(value.terms) == 1:
                    (mono, c), = value.terms.items()
                    if c == 1 and len(mono) == 1 and mono[0].kind == "sym":
                        found.setdefault(mono[0].name, (kind, i, d))
    return found
