"""Builder: appends prim nodes to a graph under construction, with the API in which composites are written.

Methods take Nodes and, where a value is meant, Python numbers or Dims. They do not promote dtypes: see ``promote``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import layout, pairs
from jit.graph.dims import Dim, plain_if_few
from jit.graph.ir import Node, NodeList, Ref, TensorType, contiguous_strides, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.nested import frozen, of_kind, several
from jit.graph.prim_info import PRIMS, info
from jit.graph.prims import infer
from jit.graph.sym_float import SymFloat

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.shape_env import ShapeEnv

HALF = (torch.float16, torch.bfloat16)
NUMBER = (bool, int, float, complex, Dim, SymFloat)
_COMPLEX_OF = {torch.float64: torch.complex128, torch.float16: torch.complex32}  # of others it is complex64
_SCALAR_DTYPES = {bool: torch.bool, int: torch.int64, Dim: torch.int64}


def resolve_device(device: Any, default: torch.device) -> torch.device:
    """A device argument (None, a name, an index) as a device with an index where its kind has several."""
    if device is None:
        device = default
    elif isinstance(device, int):
        device = torch.device("cuda", device)
    else:
        device = torch.device(device)
    if device.index is None and backend(device).indexed:
        return default if default.type == device.type and default.index is not None else backend(device).current()
    return device


def _with_plain_sizes(t: TensorType) -> TensorType:
    """A type in which sizes of 0 and 1 are plain ints."""
    if not any(type(n) is Dim for n in t.shape):
        return t
    shape = tuple(map(plain_if_few, t.shape))
    return t if same_ints(shape, t.shape) else t.replace(shape=shape)


def is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def is_number(v: object) -> bool:
    return isinstance(v, NUMBER)


def scalar_dtype(v: float | SymFloat | IntExpr | complex) -> torch.dtype:
    """The dtype that a Python number becomes as a tensor of its own."""
    if isinstance(v, (float, SymFloat)):
        return torch.get_default_dtype()
    if isinstance(v, complex):
        return torch.complex64 if torch.get_default_dtype() != torch.float64 else torch.complex128
    if type(v) not in _SCALAR_DTYPES:
        raise Unsupported(f"a {type(v).__name__} is needed as a number", kind="argument-error")
    return _SCALAR_DTYPES[type(v)]


def vectorized(x: Node) -> bool:
    """Whether eager's kernel of an activation's gradient is the one for vectors of a CPU, which chooses by another
    comparison than that for single numbers of GPUs and of halves: they differ for NaN."""
    return backend(x.type.device).vectorized and not (x.op == "cast" and x.inputs[0].type.dtype in HALF)


def wrapped(value: int, dtype: torch.dtype) -> int:
    """An integer as one of ``dtype``, of which the lowest bits count."""
    limits = torch.iinfo(dtype)
    return (value - limits.min) % (1 << limits.bits) + limits.min


_promoted: dict = {}


def promote_dtypes(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """``torch.promote_types``, remembered."""
    if a is b:
        return a
    result = _promoted.get((a, b))
    if result is None:
        result = _promoted[a, b] = torch.promote_types(a, b)
    return result


def _category(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def result_dtype(*args: Any) -> torch.dtype:
    """``torch.result_type`` of Nodes and Python numbers.

    Tensors with dimensions outrank 0-dim tensors, which outrank numbers, unless the lower rank has a higher category
    (bool, int, float, complex); floats beside complex numbers of a lower rank keep their precision. Source:
    ``c10 result_type`` rules,
    https://pytorch.org/docs/stable/tensor_attributes.html
    """
    dim = zero = number = None
    for v in args:
        if isinstance(v, Node):
            d = v.type.dtype
            if v.type.shape:
                dim = d if dim is None else promote_dtypes(dim, d)
            else:
                zero = d if zero is None else promote_dtypes(zero, d)
        elif v is not None:
            d = scalar_dtype(v)
            number = d if number is None else promote_dtypes(number, d)
    result = dim
    for lower in (zero, number):
        if lower is None:
            continue
        if result is None:
            result = lower
        elif _category(lower) > _category(result):
            result = (_COMPLEX_OF.get(result, torch.complex64) if lower.is_complex and result.is_floating_point
                      else promote_dtypes(result, lower))
    return result


class Builder(NodeList):
    """Nodes of one graph. ``recording`` says whether autograd would record the present operation."""

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Callable[..., Node]: ...  # the methods of prims, set below

    default_device = torch.device("cpu")  # made here: a mode of the program's would see it being made

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__()
        self.env = env
        self.known: dict = {}  # see constants.py
        # Tensors without dimensions that came from the CPU to the device of the other operands of one operation.
        self.moved: set = set()
        self.guess: Callable | None = None  # node -> the value that it is taken to have on every run, or None
        self.recording = False
        self.slices: tuple = ()  # of each map around, of which what is made is one slice, whether it has any
        # "math" or "other": the kernels that the program itself has chosen for attention.
        self.attention: str | None = None

    # nodes

    def node(self, op: str, inputs: tuple, attrs: dict, type: TensorType | tuple[TensorType | None, ...]) -> Node:
        for t in several(type):
            if t is not None and not backend(t.device).known:
                raise Unsupported(f"a tensor is on {t.device}", kind="device")
        return NodeList.node(self, op, inputs, attrs, type)

    def emit(self, op: str, inputs: tuple, attrs: dict, dtype: torch.dtype | None = None) -> Node:
        """A node with its inferred type."""
        return self.node(op, inputs, attrs, infer(op, tuple([i.type for i in inputs]), attrs, dtype))

    def scalar(self, value: Any, dtype: torch.dtype, device: torch.device | None = None,
               exact: bool = False) -> Node:
        """A rank-0 constant: the value converted to the dtype, so that integers wrap and halves are rounded. ``exact``:
        the number among halves is the program's own, as eager's arithmetic takes it (``PrimInfo.exact_numbers``)."""
        if dtype in HALF and not exact and type(value) in (SymFloat, Dim):
            return self.cast(self.scalar(value, torch.float32, device), dtype)
        if type(value) is SymFloat and dtype.is_floating_point:
            t = TensorType.contiguous((), dtype, device or self.default_device)
            return self.node("float_scalar", (), {"low": value.low, "high": value.high}, t)
        if type(value) is not Dim:
            if dtype is torch.bool:
                value = bool(value)
            elif dtype.is_complex:
                value = complex(value)
            elif dtype.is_floating_point:
                value = float(value)
                value = (value if exact or dtype not in HALF
                         else torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype).item())
            else:
                value = wrapped(int(value), dtype)
        return self.node("scalar", (), {"value": value},
                         TensorType.contiguous((), dtype, device or self.default_device))

    def full(self, shape: tuple[IntExpr, ...], value: Any, dtype: torch.dtype,
             device: torch.device | None = None) -> Node:
        shape = tuple(shape)
        if type(value) is not Dim:
            value = (bool(value) if dtype is torch.bool else float(value) if dtype.is_floating_point
                     else complex(value) if dtype.is_complex else int(value))
        return self.node("full", (), {"shape": shape, "value": value},
                         TensorType.contiguous(shape, dtype, device or self.default_device))

    def iota(self, length: IntExpr, start: int = 0, step: int = 1, dtype: torch.dtype = torch.int64,
             device: torch.device | None = None) -> Node:
        length = plain_if_few(length)
        attrs = {"length": length, "start": start, "step": step}
        return self.node("iota", (), attrs, TensorType.contiguous((length,), dtype, device or self.default_device))

    def lift(self, v: float | SymFloat | IntExpr | Node, like: Any, exact: bool = False) -> Node:
        """A Node for a number next to ``like``; ``exact``: see ``scalar``."""
        return v if isinstance(v, Node) else self.scalar(v, like.type.dtype, like.type.device, exact)

    # pointwise

    def unary(self, op: str, x: Node) -> Node:
        t = x.type
        dtype = info(op).result or t.dtype
        strides = layout.iterator_strides(t.shape, (t,))
        return self.node(op, (x,), {}, TensorType(t.shape, strides, dtype, t.device))

    def binary(self, op: str, a: Node | float | SymFloat | IntExpr, b: Node | float | SymFloat | IntExpr) -> Node:
        p = info(op)
        a = self.lift(a, b, p.exact_numbers)
        b = self.lift(b, a, p.exact_numbers)
        return self.emit(op, (a, b), {}, p.result or a.type.dtype)

    def where(self, cond: Node, a: float | int | Node, b: float | int | Node) -> Node:
        a = self.lift(a, b)
        b = self.lift(b, a)
        if a.type.dtype in pairs.PARTS:
            return pairs.chosen(self, cond, a, b)
        return self.emit("where", (cond, a, b), {}, a.type.dtype)

    def fma(self, x: Node, y: Node, z: Node) -> Node:
        """``x * y + z``. Of floats it is rounded once, as eager's kernels that write it in one expression are compiled;
        no product overflows in it."""
        return self.emit("fma", (x, y, z), {}, z.type.dtype) if is_float(z.type.dtype) else self.add(z, self.mul(x, y))

    def cast(self, x: Any, dtype: torch.dtype) -> Any:
        """A number stays one: it becomes what the operation is of that it is given to."""
        if not isinstance(x, Node) or x.type.dtype is dtype:
            return x
        t = x.type
        if dtype in pairs.PARTS and (t.dtype in pairs.PARTS or not t.dtype.is_complex):
            return pairs.converted(self, x, dtype)
        return self.node("cast", (x,), {}, TensorType(t.shape, layout.preserved_strides(t), dtype, t.device))

    def promote(self, *args: Any, dtype: torch.dtype | None = None, to_float: bool = False,
                exact: bool = False) -> list:
        """Nodes and numbers in their common dtype (or ``dtype``). Numbers become scalar nodes. ``to_float``: integers
        become the default float. ``exact``: numbers among halves are not rounded (see ``scalar``)."""
        if dtype is None:
            dtype = result_dtype(*args)
        if to_float and not dtype.is_floating_point and not dtype.is_complex:
            dtype = torch.get_default_dtype()
        device = self.device_of(*args)
        return [None if v is None else self.cast(v, dtype) if isinstance(v, Node)
                else self.scalar(v, dtype, device, exact) for v in args]

    def device_of(self, *args: object) -> torch.device:
        """The device of the first tensor with dimensions, or of the first tensor."""
        first = None
        for v in of_kind(Node, args):
            if v.type.shape:
                return v.type.device
            first = first or v.type.device
        return first or self.default_device

    def opmath(self, x: Node) -> Node:
        """float16 and bfloat16 as float32: what eager computes in inside one operation."""
        return self.cast(x, torch.float32) if x.type.dtype in HALF else x

    # views

    def view_node(self, op: str, x: Node, attrs: dict[str, tuple[IntExpr, ...]], shape: tuple[IntExpr, ...],
                  strides: tuple[IntExpr, ...]) -> Node:
        return self.node(op, (x,), attrs, TensorType(shape, strides, x.type.dtype, x.type.device))

    def permute(self, x: Node, dims: Sequence[int]) -> Node:
        dims = tuple(dims)
        if dims == tuple(range(x.type.rank)):
            return x
        return self.emit("permute", (x,), {"dims": dims})

    def transpose(self, x: Node, a: int, b: int) -> Node:
        dims = list(range(x.type.rank))
        dims[a], dims[b] = dims[b], dims[a]
        return self.permute(x, dims)

    def try_view(self, x: Node, shape: tuple[IntExpr, ...]) -> Node | None:
        """``x.view(shape)`` for a shape without -1, or None when it would need a copy."""
        strides = layout.view_strides(x.type.shape, x.type.strides, shape)
        if strides is None:
            return None
        return self.view_node("reshape", x, {"shape": tuple(shape)}, tuple(shape), strides)

    def reshape(self, x: Node, shape: tuple[IntExpr, ...]) -> Node:
        """View if possible, else copy and view. The same node when the shape is the same."""
        shape = layout.infer_size(tuple(shape), x.type.numel)
        if same_ints(shape, x.type.shape):
            return x
        made = self.try_view(x, shape) or self.try_view(self.clone(x, contiguous_strides(x.type.shape)), shape)
        assert made is not None
        return made

    def expand(self, x: Node, shape: tuple[IntExpr, ...]) -> Node:
        shape = tuple(shape)
        if same_ints(shape, x.type.shape):
            return x
        return self.emit("expand", (x,), {"shape": shape})

    def slice(self, x: Node, dim: int, start: IntExpr, length: IntExpr, step: int = 1) -> Node:
        return self.emit("slice", (x,), {"dim": dim, "start": start, "length": plain_if_few(length), "step": step})

    def piece(self, x: Node, dim: int, start: IntExpr, length: IntExpr) -> Node:
        """A slice of the very ``length``, though it may be 0 or 1: one that is put together with others, or the
        gradient of what has this length."""
        return self.emit("slice", (x,), {"dim": dim, "start": start, "length": length, "step": 1})

    def drop_dim(self, x: Node, dim: int) -> Node:
        """Remove a dimension of size 1 (a view with exactly the other strides)."""
        t = x.type
        shape = t.shape[:dim] + t.shape[dim + 1 :]
        return self.view_node("reshape", x, {"shape": shape}, shape, t.strides[:dim] + t.strides[dim + 1 :])

    def select(self, x: Node, dim: int, index: IntExpr) -> Node:
        return self.drop_dim(self.slice(x, dim, index, 1), dim)

    def unsqueeze(self, x: Node, dim: int) -> Node:
        t = x.type
        shape = t.shape[:dim] + (1,) + t.shape[dim:]
        stride = t.shape[dim] * t.strides[dim] if dim < t.rank else 1
        return self.view_node("reshape", x, {"shape": shape}, shape, t.strides[:dim] + (stride,) + t.strides[dim:])

    def alias(self, x: Node) -> Node:
        return self.emit("alias", (x,), {})

    def with_gradient(self, y: Node, *partials: Any, kinked: bool = False) -> Node:
        """``y`` with these ``partials``, each (x, function that gives dy/dx, elementwise, of a shape that x broadcasts
        to): what eager's formula gives where the derivative of the expansion differs from it, as at a kink; None
        instead of the function, for the last x only: eager leaves that gradient undefined, which is not the same as
        zero. ``kinked``: the derivative of the partial is zero, and eager says so; None of it is undefined. Where
        nothing is differentiated, ``y``."""
        if not self.recording:
            return y
        operands = [v for x, partial in partials if isinstance(x, Node)
                    for v in ((x, self.cast(partial(), x.type.dtype)) if partial else (x,))]
        return self.emit("custom_gradient", (y, *operands), {"kinked": True} if kinked else {}, y.type.dtype)

    def with_formula(self, y: Node, name: str, *partials: Any, **attrs: object) -> Node:
        """``with_gradient``, whose gradient is that of the composite ``name``: the same up to the ends of floats."""
        made = self.with_gradient(y, *partials)
        return self.marked(made, name, **attrs) if self.recording else made

    def with_gradient_of(self, y: Node, x: Node) -> Node:
        """The value of ``y``, whose gradient is all ``x``'s: what a tensor is after it was written where nothing is
        recorded."""
        one = self.scalar(1, x.type.dtype, x.type.device)
        return self.node("custom_gradient", (y, x, one), {}, y.type)

    def with_zero_gradients(self, y: Node, xs: Iterable[Node]) -> Node:
        """The value of ``y`` with its gradient, and zero for that of each of ``xs``, which its expansion did not
        need."""
        own = (y, self.scalar(1, y.type.dtype, y.type.device))
        zeros = [v for x in xs for v in (x, self.scalar(0, x.type.dtype, x.type.device))]
        return self.node("custom_gradient", (y, *own, *zeros), {}, y.type)

    def detach(self, x: Node) -> Node:
        """``x``, through which no gradient flows."""
        return self.emit("detach", (x,), {})

    def marked(self, x: Node, name: str, **attrs: object) -> Node:
        """``x``, a node that was just made, as the result of the composite ``name``, which has a gradient rule of its
        own."""
        x.attrs = {**x.attrs, **({"grad": name} if name else {}), **attrs}
        return x

    # copies

    def clone(self, x: Node, strides: tuple[IntExpr, ...] | None = None, preserves: bool = False) -> Node:
        """``preserves``: with the layout of ``x``, also where it is part of a larger tensor."""
        t = x.type
        strides = layout.preserved_strides(t) if strides is None else tuple(strides)
        if t.dtype in pairs.PARTS and pairs.computed(x):
            return pairs.joined(self, pairs.parts(self, x), strides)
        attrs = {"preserves": True} if preserves else {}
        return self.node("clone", (x,), attrs, TensorType(t.shape, strides, t.dtype, t.device))

    def contiguous(self, x: Node) -> Node:
        return x if x.type.is_contiguous else self.clone(x, contiguous_strides(x.type.shape))

    def flip(self, x: Node, dims: Sequence[int]) -> Node:
        return self.emit("flip", (x,), {"dims": tuple(dims)})

    def cat(self, xs: list[Node], dim: int) -> Node:
        return self.emit("cat", tuple(xs), {"dim": dim})

    def pad(self, x: Node, pads: list[tuple[int, IntExpr]], value: float | int = 0) -> Node:
        dtype = x.type.dtype
        # As eager passes it on.
        value = float(value) if dtype.is_floating_point else bool(value) if dtype is torch.bool else int(float(value))
        return self.emit("constant_pad", (x,), {"pads": tuple(map(tuple, pads)), "value": value})

    def power(self, x: Node, e: float) -> Node:
        """``x ** e`` for a number e, by the arithmetic that eager's kernels have for a few of them."""
        short = self.short_power(x, e)
        return self.pow(x, e) if short is None else short

    def within(self, x: Node, low: Any, high: Any, nan: bool, strict: bool = False) -> Node:
        """Where ``low <= x <= high``, or ``<`` where ``strict``. ``nan``: NaN is within, as for kernels that ask what
        is beyond."""
        if not nan:
            return self.logical_and(*((self.gt(x, low), self.lt(x, high)) if strict
                                      else (self.ge(x, low), self.le(x, high))))
        return self.logical_not(self.logical_or(*((self.le(x, low), self.ge(x, high)) if strict
                                                  else (self.lt(x, low), self.gt(x, high)))))

    def squared(self, x: Node) -> Node:
        """``x ** 2``, whose gradient is not that of ``x * x`` where that overflows."""
        y = self.mul(x, x)
        return self.marked(y, "power", exponent=2.0) if self.recording else y

    def short_power(self, x: Node, e: float) -> Node | None:
        """``power`` if there is a shorter way than the general one."""
        if e == 2.0:
            return self.mul(x, x)
        if e == 3.0:
            return self.mul(self.mul(x, x), x)
        if not is_float(x.type.dtype):
            return None
        if e in (0.5, -0.5):  # whose kernel for float16 is that of any power: +inf for the root of -inf
            return (None if x.type.dtype is torch.float16 and backend(x.type.device).roots_of_halves_are_powers
                    else self.sqrt(x) if e > 0 else self.rsqrt(x))
        if e == -1.0:
            return self.reciprocal(x)
        return self.reciprocal(self.mul(x, x)) if e == -2.0 else x if e == 1.0 else None

    # reductions, scans, indexing

    def dims_of(self, x: Node, dim: int | Sequence[int] | None) -> tuple[int, ...]:
        """Sorted non-negative dimensions from None (all), an int or a list."""
        rank = x.type.rank
        if dim is None:
            return tuple(range(rank))
        dims = [normalize_dim(d, rank) for d in several(dim)]
        if len(set(dims)) != len(dims):
            repeated = next(d for d in dims if dims.count(d) > 1)
            raise RuntimeError(f"dim {repeated} appears multiple times in the list of dims")
        return tuple(sorted(dims)) if rank else ()

    def reduce(self, op: str, x: Node, dims: Sequence[int] | None, keepdim: bool = False,
               dtype: torch.dtype | None = None) -> Node:
        dims = self.dims_of(x, dims)
        if dtype is None:
            dtype = info(op).result or x.type.dtype
        return self.emit(op, (x,), {"dims": dims, "keepdim": bool(keepdim)}, dtype)

    def total(self, x: Node, dims: Sequence[int], precise: bool = False) -> Node:
        """The sum with ``dims`` kept. ``precise``: on a CPU it is added up in float64, as eager does in some places."""
        total = self.reduce("sum", x, dims, True)
        return self.marked(total, "", precise=True) if precise and total.op == "sum" else total

    def cumsum(self, x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
        return self.emit("cumsum", (x,), {"dim": dim}, dtype or x.type.dtype)

    def scan(self, op: str, x: Node, dim: int) -> Node:
        """The scan prim ``op`` along ``dim``."""
        return self.emit(op, (x,), {"dim": dim}, info(op).result or x.type.dtype)

    def sort_keys(self, x: Node, dim: int, start: IntExpr = 0, length: IntExpr | None = None) -> Node:
        """Integers in ascending order along ``dim``: ``length`` of them from number ``start`` on."""
        size = x.type.shape[dim] if length is None else length
        return self.emit("sort_keys", (x,), {"dim": dim, "start": start, "length": size}, x.type.dtype)

    def gather(self, x: Node, dim: int, index: Node) -> Node:
        if not x.type.rank and not index.type.rank:
            return self.reshape(self.gather(self.unsqueeze(x, 0), 0, self.unsqueeze(index, 0)), ())
        return self.emit("gather", (x, index), {"dim": dim})

    def index(self, x: Node, dims: Sequence[int], indices: Sequence[Node], wrap: bool = True) -> Node:
        """``x`` read at index tensors of one shape on neighbouring ``dims``. Without ``wrap`` (one index only) a
        negative index is out of range."""
        return self.emit("index", (x, *indices), {"dims": tuple(dims)} if wrap
                         else {"dims": tuple(dims), "wrap": False})

    def put(self, x: Node, dims: Sequence[int], indices: Sequence[Node], values: Node, combine: str,
            wrap: bool = True) -> Node:
        """``x`` with ``values`` set, or added, where ``index`` would read."""
        return self.emit("put", (x, values, *indices), {"dims": tuple(dims), "wrap": wrap, "combine": combine})

    def scatter(self, x: Node, dim: int, index: Node, values: Node, combine: str) -> Node:
        """``x`` with ``values`` set, or added, where ``gather`` would read."""
        if not x.type.rank and not index.type.rank:
            x, index, values = (self.unsqueeze(n, 0) for n in (x, index, values))
            return self.reshape(self.scatter(x, 0, index, values, combine), ())
        return self.emit("scatter", (x, values, index), {"dim": dim, "combine": combine})

    # library calls

    def aten(self, target: str, overload: str, args: tuple, type: TensorType | tuple[TensorType | None, ...],
             impure: bool | str = False) -> Node | tuple[Node | None, ...]:
        """An ``aten_call``. ``args`` has Nodes in place; they become inputs. Several results come back as a tuple of
        Nodes. ``impure``: see ``Node``."""
        inputs: list[Node] = []

        def reference(node: Node) -> Ref:
            if node not in inputs:
                inputs.append(node)
            return Ref(inputs.index(node))

        attrs = {"target": target, "overload": overload, "args": frozen(Node, reference, args)}
        if impure:
            attrs["impure"] = impure
        node = self.node("aten_call", tuple(inputs), attrs, frozen(TensorType, _with_plain_sizes, type))
        if not node.several:
            return node
        return tuple(None if t is None else self.node("getitem", (node,), {"index": i}, t)
                     for i, t in enumerate(node.types))

    def check(self, condition: Node, message: str) -> None:
        """Raise RuntimeError with ``message`` when the graph runs and ``condition``, a 0-dim boolean, is false; on a
        GPU as an assertion on the device."""
        self.aten("aten::_assert_async", "msg", (condition, message), (), impure="raises")


def _unary_method(name: str) -> Callable:
    def method(self: Builder, x: Node) -> Node:
        return self.unary(name, x)

    method.__name__ = name
    return method


def _binary_method(name: str) -> Callable:
    def method(self: Builder, a: Node, b: float | Node | IntExpr) -> Node:
        return self.binary(name, a, b)

    method.__name__ = name
    return method


def _reduction_method(name: str) -> Callable:
    def method(self: Builder, x: Node, dims: list[int] | None = None, keepdim: bool = False,
               dtype: torch.dtype | None = None) -> Node:
        return self.reduce(name, x, dims, keepdim, dtype)

    method.__name__ = name
    return method


_METHODS = {("pointwise", 1): _unary_method, ("pointwise", 2): _binary_method, ("reduction", None): _reduction_method}
for _p in PRIMS.values():
    if (_p.kind, _p.arity) in _METHODS and not hasattr(Builder, _p.name):
        setattr(Builder, _p.name, _METHODS[_p.kind, _p.arity](_p.name))
