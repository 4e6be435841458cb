"""The graph: SSA nodes over tensors, in program order, without side effects.

A ``Node`` has an op (the name of a prim of ``prim_info.PRIMS``), inputs, attributes and a ``TensorType``. In-place
operations do not exist here: an input that the program changed is an ``Output`` with ``mutates`` set. A *view* node's
value shares memory with its first input. An output that is a view of an ``input`` node must be a real view of that
tensor: it shows what the mutating outputs write there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, NamedTuple

import torch

from jit.devices import backend
from jit.turns import point
from jit.graph.dims import Dim, IntExpr, equal, product, structurally_equal
from jit.graph.nested import replaced
from jit.graph.shape_env import ShapeEnv


def same_ints(a: Sequence[IntExpr], b: Sequence[IntExpr]) -> bool:
    """Whether two sequences of IntExpr are structurally equal; never guards."""
    return a is b or (len(a) == len(b) and all(map(structurally_equal, a, b)))


def contiguous_strides(shape: Sequence[IntExpr]) -> tuple[IntExpr, ...]:
    """Row-major strides in elements, as ``torch.empty(shape)`` has them: a dimension of size 0 counts as 1."""
    strides: list[IntExpr] = []
    step: IntExpr = 1
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

    def __init__(self, shape: tuple[IntExpr, ...], strides: tuple[IntExpr, ...], dtype: torch.dtype,
                 device: torch.device) -> None:
        self.shape, self.strides, self.dtype, self.device = shape, strides, dtype, device
        self._numel: IntExpr | None = None
        self._contiguous: bool | None = None

    @staticmethod
    def contiguous(shape: Iterable[IntExpr], dtype: torch.dtype, device: torch.device) -> "TensorType":
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
        for n in self.shape:
            if type(n) is int and n == 0:
                return True
        return False

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

    def replace(self, shape: Iterable[IntExpr] | None = None, strides: Iterable[IntExpr] | None = None,
                dtype: torch.dtype | None = None, device: torch.device | None = None) -> "TensorType":
        return TensorType(
            self.shape if shape is None else tuple(shape), self.strides if strides is None else tuple(strides),
            dtype or self.dtype, device or self.device
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not TensorType:
            return NotImplemented
        return (self.dtype == other.dtype and self.device == other.device
                and same_ints(self.shape, other.shape) and same_ints(self.strides, other.strides))

    def __hash__(self) -> int:
        return hash((self.shape, self.strides, self.dtype, self.device))

    def __reduce__(self) -> tuple:
        return TensorType, (self.shape, self.strides, self.dtype, self.device)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        # Printing relies on nothing: whether strides of symbols are those of contiguous memory is not asked.
        plain = self.is_contiguous if self._contiguous is not None or not self.is_symbolic else same_ints(
            self.strides, contiguous_strides(self.shape))
        strides = "" if plain else f" strides ({', '.join(map(str, self.strides))})"
        where = "" if backend(self.device).host else f" {self.device}"  # type: ignore[operator]
        return f"{str(self.dtype)[6:]}[{shape}]{strides}{where}"


def _is_contiguous(shape: Sequence[IntExpr], strides: Sequence[IntExpr]) -> bool:
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
    (file, line, function); ``region``, the number of the checkpointed call that it is part of, 0 for none; ``call``,
    the name of the function of PyTorch's that the program called there, "" where that is not known."""

    file: str
    line: int
    function: str
    user: tuple | None = None
    region: int = 0
    call: str = ""

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} {self.function}"


@dataclass(frozen=True)
class Ref:
    """In the argument template of an ``aten_call``: the node's input number ``index``."""

    index: int


def filled(template: object, inputs: Sequence[object]) -> Any:
    """An argument template with what ``inputs`` has in the place of references."""
    return replaced(Ref, lambda ref: inputs[ref.index], template)


# The attribute of nodes whose exceptions the program sees: those that it was traced to, and few of its gradients.
CHECKED = "checked"
# The attribute of a ``full`` that stands for memory whose content is of no matter.
UNWRITTEN = "unwritten"


class Node:
    """One operation. ``attrs`` has hashable values; ``type`` is a tuple of (TensorType or None) when there are several
    results."""

    __slots__ = ("id", "op", "inputs", "attrs", "type", "loc")
    type: TensorType  # a tuple of (TensorType or None) where there are several results

    def __init__(self, id: int, op: str, inputs: tuple, attrs: dict, type: TensorType | tuple[TensorType | None, ...],
                 loc: Loc | None = None) -> None:
        self.id, self.op, self.inputs, self.attrs, self.loc = id, op, inputs, attrs, loc
        self.type = type  # type: ignore[assignment]

    def replace(self, op: str | None = None, inputs: tuple | None = None, attrs: dict | None = None,
                type: Any = None) -> Node:
        """The same node, by its id and source position, with what is given for another."""
        return Node(self.id, self.op if op is None else op, self.inputs if inputs is None else inputs,
                    self.attrs if attrs is None else attrs, self.type if type is None else type, self.loc)

    @property
    def types(self) -> tuple:
        """The type of each of its results."""
        return self.type if self.several else (self.type,)  # type: ignore[return-value]

    @property
    def several(self) -> bool:
        """Whether it has several results, which ``getitem`` nodes give, or none."""
        return type(self.type) is tuple

    @property
    def shape(self) -> tuple[IntExpr, ...]:
        return self.type.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.type.dtype

    @property
    def device(self) -> torch.device:
        return self.type.device

    @property
    def name(self) -> str:
        return f"{'x' if self.op == 'input' else 'v'}{self.id}"

    @property
    def impure(self) -> bool:
        """Whether the operation is done for more than its result: random numbers, PyTorch's state, or an exception that
        it may raise (``"raises"``)."""
        return bool(self.attrs) and bool(self.attrs.get("impure"))

    @property
    def repeatable(self) -> bool:
        """Whether it may be done twice: it is pure, or an exception is all that it is done for."""
        return self.attrs.get("impure") in (None, False, "raises")

    def __repr__(self) -> str:
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
    ``next_id``: no node had that id or a higher one, be it one that is gone. A rewrite hands both on.
    """

    printer: ClassVar[Callable[[Graph], str]]  # set by ``printing``, which knows the text of every prim

    def __init__(self, inputs: list[Node], nodes: list[Node], outputs: list[Output],
                 env: ShapeEnv | None = None) -> None:
        self.inputs, self.nodes, self.outputs = inputs, nodes, outputs
        self.env = env if env is not None else ShapeEnv()
        self.origins: dict[int, int] = {}
        self.next_id: int = max([n.id for n in nodes], default=-1) + 1
        self._of_op: dict[str, list[Node]] | None = None

    def copy(self) -> Graph:
        """The same graph of nodes of its own, with the same ids."""
        return _Copy(self).run()

    def replace(self, nodes: list | None = None, outputs: list | None = None) -> Graph:
        """The same graph with these nodes of it alone, or with these outputs."""
        made = Graph(self.inputs, self.nodes if nodes is None else nodes,
                     self.outputs if outputs is None else outputs, self.env)
        made.origins, made.next_id = self.origins, self.next_id
        return made

    def python(self) -> str:
        """The graph as a Python function ``graph(*inputs)`` on eager tensors."""
        return Graph.printer(self)

    def place(self) -> tuple[str, int, str] | None:
        """Where in the program its first operation is: (file, line, function)."""
        loc = next((n.loc for n in self.nodes if n.loc is not None), None)
        return loc and (loc.user or loc[:3])

    def of_ops(self, ops: Iterable[str]) -> Iterator[Node]:
        """The nodes of some ops, those of one after those of another."""
        if self._of_op is None:  # by then the graph is whole
            found: dict[str, list[Node]] = {}
            for n in self.nodes:
                found.setdefault(n.op, []).append(n)
            self._of_op = found
        of_op = self._of_op
        return (n for op in ops for n in of_op.get(op, ()))

    def users(self) -> dict[Node, list[Node]]:
        """Node -> list of the nodes that read it."""
        users: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for n in self.nodes:
            for i in n.inputs:
                users[i].append(n)
        return users

    def __repr__(self) -> str:
        lines = [repr(n) for n in self.nodes]
        lines += [f"{'return' if o.mutates is None else f'x{self.inputs[o.mutates].id} <-'} {o.node.name}"
                  for o in self.outputs]
        return "\n".join(lines)


class NodeList:
    """Nodes in the making, in program order: what gives each its id and its source position.

    Attributes:
        nodes: those that were made.
        next_id: the id of the next one.
        loc: the source position of what is made now.
    """

    def __init__(self, next_id: int = 0) -> None:
        self.nodes: list[Node] = []
        self.next_id = next_id
        self.loc: Loc | None = None

    def node(self, op: str, inputs: tuple, attrs: dict,
             type: TensorType | tuple[TensorType | None, ...]) -> Node:
        point()
        made = Node(self.next_id, op, inputs, attrs, type, self.loc)
        self.next_id += 1
        self.nodes.append(made)
        return made


class _Values(dict):
    """Old node -> what stands for it; ``missing`` says what does where nothing is there."""

    def __init__(self, missing: Callable[[Node], Any] | None) -> None:
        self.missing = missing

    def __missing__(self, n: Node) -> Any:
        if self.missing is None:
            raise KeyError(n)
        made = self[n] = self.missing(n)
        return made


class Transform:
    """A graph made from another, node by node in program order: a subclass says in ``visit`` what becomes of each. The
    graph that is read stays as it is.

    Ids: in a rewrite of the graph a node that is kept has its id, whatever it reads now; one that is added has an id
    that none has had before, and ``origins`` says in whose place it stands. A graph ``apart`` has nodes of its own,
    numbered in program order. Nodes that are made have the source position of the one that is visited.

    Args:
        graph: the graph that is read.
        inputs: the nodes of it that are inputs of the new one, which come first, in this order. If it is left out,
            its inputs are, where they stand.
        builder: what makes the nodes.

    Attributes:
        new: node of ``graph`` -> what stands for it: a node, or a tuple of nodes for several results.
        nodes, inputs: of the new graph, so far.
    """

    apart = False  # whether the new graph is one of its own, and no rewrite of the one that is read

    def __init__(self, graph: Graph, inputs: Sequence[Node] | None = None, builder: NodeList | None = None) -> None:
        self.graph, self.entries = graph, inputs
        self.b = NodeList() if builder is None else builder
        self.b.next_id = 0 if self.apart else graph.next_id
        self.new, self.nodes = _Values(self.missing), self.b.nodes
        self.inputs: list[Node] = []
        self.origins = {} if self.apart else dict(graph.origins)

    # what a subclass says

    def order(self) -> Iterable[Node]:
        """The nodes that are visited, in this order."""
        return self.graph.nodes

    def entry(self, n: Node, type: TensorType | None = None) -> Node:
        """The next input of the new graph, which stands for ``n``; of another ``type`` if one is given."""
        index = len(self.inputs)
        if self.apart:
            return self.input(type or n.type)
        if type is not None or n.op != "input" or n.attrs["index"] != index:
            n = n.replace("input", (), {"index": index}, type)
        self.inputs.append(n)
        self.nodes.append(n)
        return n

    def visit(self, n: Node) -> Node:
        """What stands for ``n``: a node, a tuple of nodes for several results, or None for nothing."""
        return self.keep(n)

    def missing(self, n: Node) -> Node:
        """What is to stand for ``n``, of which nothing does, when it is read after all."""
        raise KeyError(n)

    def output(self, o: Output) -> Node:
        """What is returned or written for an output."""
        return self.new[o.node]

    def outputs(self) -> list[Output]:
        """The outputs of the new graph."""
        found = []
        for o in self.graph.outputs:
            self.b.loc = o.node.loc
            found.append(Output(self.output(o), o.mutates))
        return found

    # what it is said with

    def operands(self, n: Node) -> tuple:
        """What stands for the inputs of ``n``."""
        new = self.new
        return tuple([new[i] for i in n.inputs])

    def keep(self, n: Node, inputs: tuple | None = None, op: str | None = None, attrs: dict | None = None,
             type: Any = None) -> Node:
        """``n``, reading ``inputs``, or what stands for its own, and with what else is given for another."""
        if inputs is None:
            inputs = self.operands(n)
        if self.apart:
            return self.b.node(op or n.op, inputs, n.attrs if attrs is None else attrs, type or n.type)
        if op is not None or attrs is not None or type is not None or inputs != n.inputs:
            n = n.replace(op, inputs, attrs, type)
        self.nodes.append(n)
        return n

    def node(self, op: str, inputs: Iterable[Node], attrs: dict, type: TensorType | tuple[TensorType | None, ...],
             like: Node | None = None) -> Node:
        """A new node, with the source position of ``like`` if that is another one than what is visited."""
        made = self.b.node(op, tuple(inputs), attrs, type)
        if like is not None:
            made.loc = like.loc
        return made

    def input(self, type: TensorType) -> Node:
        """A further input of the new graph."""
        self.inputs.append(self.b.node("input", (), {"index": len(self.inputs)}, type))
        return self.inputs[-1]

    def stands_for(self, made: Node, n: Node) -> Node:
        """Remember that ``made``, which is new, has the values of ``n``."""
        if not self.apart:
            self.origins.setdefault(made.id, n.id)
        return made

    def run(self) -> Graph:
        b, new, visit, first = self.b, self.new, self.visit, self.graph.next_id
        for n in self.entries or ():
            b.loc = n.loc
            made: Any = self.entry(n)
            if made is not None:
                new[n] = made
        b.loc = None
        for n in self.order():
            if n in new:
                continue
            b.loc, op = n.loc, n.op
            if op == "input":
                made = self.entry(n) if self.entries is None else None
            elif op == "getitem" and type(new.get(n.inputs[0])) is tuple:
                made = new[n.inputs[0]][n.attrs["index"]]
            else:
                made = visit(n)
            if made is not None:
                new[n] = made
                if made is not n and type(made) is Node and made.id >= first:
                    self.stands_for(made, n)
        b.loc = None
        whole = Graph(self.inputs, self.nodes, self.outputs(), self.graph.env)
        new.missing = None  # which is a method of the transform: no circle of references is left
        if not self.apart:
            whole.origins, whole.next_id = self.origins, self.b.next_id
        return whole


class _Copy(Transform):
    def entry(self, n: Node, type: TensorType | None = None) -> Node:
        self.inputs.append(self.visit(n))
        return self.inputs[-1]

    def visit(self, n: Node) -> Node:
        return self.keep(n, attrs=n.attrs)


class Part(Transform):
    """What computes the nodes ``results``: a graph apart that returns them, in which the nodes ``inputs`` are
    inputs."""

    apart = True

    def __init__(self, graph: Graph, inputs: Sequence[Node], results: Sequence[Node]) -> None:
        super().__init__(graph, inputs)
        self.results, self.needed = results, ancestors(results, frozenset(inputs))

    def order(self) -> list:
        return [n for n in self.graph.nodes if n in self.needed]

    def outputs(self) -> list[Output]:
        return [Output(self.new[n]) for n in self.results]


def ancestors(nodes: Iterable[Node], stop: Collection[Node] = frozenset()) -> set[Node]:
    """``nodes`` and all that they are computed from; nothing behind ``stop`` is followed."""
    found, stack = set(), list(nodes)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            if n not in stop:
                stack += n.inputs
    return found


def operator(target: str, overload: str) -> Any:
    """The operator of that name. One of a library may be defined anew, so nothing is to be remembered under its
    name."""
    namespace, name = target.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def origins_in(inputs: list[Node]) -> dict[str, tuple]:
    """Symbol name -> ("size" | "stride", position of the input node, dimension) that is its value: sizes before
    strides, and last a stride along which there are not two elements, which may be anything in what a library has
    made."""
    found: dict[str, tuple] = {}
    for kind, single in (("size", False), ("stride", False), ("stride", True)):
        for i, node in enumerate(inputs):
            shape = node.type.shape
            if kind == "stride" and any(type(n) is int and n == 0 for n in shape):
                continue
            for d, value in enumerate(shape if kind == "size" else node.type.strides):
                if kind == "stride" and (type(shape[d]) is int and shape[d] == 1) is not single:
                    continue
                if type(value) is Dim and value.const == 0 and len(value.terms) == 1:
                    (mono, c), = value.terms.items()
                    if c == 1 and len(mono) == 1 and mono[0].kind == "sym":
                        found.setdefault(mono[0].name, (kind, i, d))
    return found
