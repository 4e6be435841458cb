"""DTensors: what a process has of a tensor that is spread over a mesh of devices is a value of the graph; how it is
spread (its *spec*: mesh, placements, size of the whole) is constant, and guarded.

What an operation on DTensors does is PyTorch's business, and PyTorch is asked: the call is made on stand-ins without
data, DTensors with the same specs, which takes it apart into operators. For each of those PyTorch's own rules
(``sharding_propagator``) say how its arguments have to be spread and how its result is; nothing is communicated for
that. The communication that leads there (``graph.collectives``) and the operator on the parts become nodes.

Gradients: a part of a divided tensor has the part of the gradient; a summand, and each copy of a whole tensor, all of
it. The operator on the parts has its own gradient, which is right where all its tensors are spread in one way. Where a
whole tensor meets one of which each process has a part, each process finds a summand of the whole one's gradient, and
these are summed there.

This module is imported once the program has imported ``torch.distributed.tensor``: see ``library.dtensors``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .. import torch_private
from ..errors import JitError, Unsupported
from ..graph import collectives
from ..graph.collectives import Group, Share
from ..graph.dims import specialize
from ..runtime import facts
from ..runtime.guards import TensorSpec
from ..torch_private import DTENSOR_PART, DTENSOR_SPEC, part_of, pytree
from . import source as src
from .library.distributed import guard_groups
from .spread_parts import LocalPart, local_part, may_join
from .tensor_guards import check_supported, guard_tensor
from .values.base import TUPLE_ITERATOR, Raised, Value
from .values.constant import Constant
from .values.containers import ListValue, TupleValue
from .values.objects import ObjectValue
from .values.tensor import OWN_MEMBERS, TensorMethod, TensorValue

_PRIVATE = torch_private.of_dtensors()
DTensorSpec, TensorMeta = _PRIVATE.Spec, _PRIVATE.Meta

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .emit import Emitter
    from .session import Session
    from .source import Source


def refused(why: str) -> Unsupported:
    return Unsupported(f"a DTensor is used in a way that is not captured: {why}",
                       "do this step outside the compiled function", kind="tensor-subclass")


def _no_gradient(why: str) -> Unsupported:
    return Unsupported(f"a DTensor is used in a way that is not captured: {why}", kind="gradient")


def _no_attribute(why: str) -> Unsupported:
    return Unsupported(f"a DTensor is used in a way that is not captured: {why}", kind="tensor-attribute")


# what processes have


def shares(placements: Sequence[Any]) -> tuple[Share, ...]:
    """How a tensor is spread over each dimension of a mesh."""
    return tuple(map(_share, placements))


def _share(placement: Any) -> Share:
    rule = _SHARES.get(type(placement))
    if rule is None:
        raise refused(f"the placement {placement}")
    return rule(placement)


_SHARES: dict[type, Callable] = {Replicate: lambda p: collectives.WHOLE, Shard: lambda p: Share(dim=p.dim),
                                 Partial: lambda p: Share(reduction=p.reduce_op)}


def groups(s: Session, mesh: Any) -> tuple[Group, ...]:
    """The group of processes of each dimension of a mesh."""
    guard_groups(s)
    if mesh.get_coordinate() is None:
        raise refused("this process is not in the mesh")
    return tuple(Group(mesh.get_group(k).group_name, mesh.size(k), mesh.get_local_rank(k)) for k in range(mesh.ndim))


def redistributed(s: Session, local: TensorValue, source: Any, target: Sequence[Any]) -> TensorValue:
    """The part of a tensor under the placements ``target``, from that under the spec ``source``."""
    if tuple(source.placements) == tuple(target):
        return local
    before, after = shares(source.placements), shares(target)
    for of in (before, after):
        dims = [share.dim for share in of if share.dim is not None]
        if len(set(dims)) < len(dims):
            raise refused("two dimensions of a mesh divide one of its dimensions")
    handle = local.handle(s)
    recorded = s.tracer.grad_enabled and handle.requires_grad
    node = handle.node
    for here, there, group in zip(before, after, groups(s, source.mesh)):
        if here != there:
            form = collectives.redistributed if recorded else collectives.moved
            if recorded and here.reduction not in (None, "sum", "avg"):
                raise _no_gradient(f"the gradient of a {here.reduction} over processes")
            node = form(s.tracer.builder, node, here, there, group)
    return _made(s, node, handle)


def _made(s: Session, node: Node, *handles: Any) -> TensorValue:
    return s.recording.tensor_of(s.tracer.wrap(node, list(handles), False, node.id))


# values


class DTensorValue(TensorValue):
    """A DTensor: ``local`` is its part, ``spec`` PyTorch's own description of the rest."""

    is_spread = True

    def __init__(self, spec: Any, local: TensorValue | None = None, obj: Any = None,
                 source: Source | None = None) -> None:
        super().__init__(None, obj, source)
        self.cls = DTensor if obj is None else type(obj)
        self.spec, self._local = spec, local

    def local(self, s: Session) -> TensorValue:
        """The part that this process has; that of a real DTensor becomes an input of the graph."""
        if self._local is None:
            self.guard(s)
            s.set_field(self, "_local", self._input(s))
        return self._local

    def guard(self, s: Session) -> None:
        """All but its values stays as it is."""
        if self.source is None:
            raise refused("the code refers to it directly, and not by an argument, a global or an attribute")
        self.pytype(s)
        s.guards.add(self.source, facts.Tensor(TensorSpec.of(self.obj)))
        spec = src.GetAttr(self.source, DTENSOR_SPEC)
        if self.source.watched:
            s.guards.add(spec, facts.identity(self.spec))
        else:
            placements = src.GetAttr(spec, "placements")
            s.guards.add(src.GetAttr(spec, "mesh"), facts.identity(self.spec.mesh))
            s.guards.add(placements, facts.Length(len(self.spec.placements)))
            for k, placement in enumerate(self.spec.placements):
                at = src.Item(placements, k)
                s.guards.add(at, facts.TypeIs(type(placement)))
                for name in ("dim", "reduce_op"):
                    if hasattr(placement, name):
                        s.guards.add(src.GetAttr(at, name), facts.Equals(getattr(placement, name)))

    def _input(self, s: Session) -> TensorValue:
        part = part_of(self.obj)
        check_supported(part)
        with torch.set_grad_enabled(s.tracer.grad_enabled):
            example, joined = local_part(self.obj), may_join(self.obj)
        source = LocalPart(self.source, DTENSOR_PART, joined=joined)
        handle = s.tracer.input(example, source, ())
        guard_tensor(s, TensorValue(None, part, src.GetAttr(self.source, DTENSOR_PART)), handle.node.type)
        value = TensorValue(handle, example, source)
        s.heap.by_source[source] = value
        s.recording.inputs.append(value)
        s.recording.tensors[id(handle)] = value
        s.heap.keep(handle)
        s.heap.keep(value)
        return value

    def handle(self, s: Session) -> Any:
        raise refused("its data are read as those of a plain tensor")

    def known(self, s: Session) -> None:
        return None

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.obj)) if self.obj is not None else ("value", id(self))

    def hash_key(self, s: Session) -> Any:
        return super().hash_key(s) if self.obj is not None else ("value", id(self), self)

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(self.cls))
        return self.cls

    def detached(self, s: Session) -> Value:
        return s.torch_call(torch.Tensor.detach, [self], {})

    def requires_grad(self, s: Session) -> bool:
        if self._local is None and self.obj is not None:
            self.guard(s)
            return self.obj.requires_grad
        return self.local(s).handle(s).requires_grad

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__class__":
            return s.wrap_class(self.pytype(s))
        if self.obj is not None:
            self.guard(s)
        known = _ATTRIBUTES.get(name)
        if known is not None:
            return known(s, self)
        found, raw, _ = s.class_lookup(self.cls, name)
        if not found or raw is not OWN_MEMBERS.get(name):
            return self.added_attr(s, name, found, raw)
        if callable(getattr(torch.Tensor, name)):
            return DTensorMethod(self, name)
        if name in _METADATA:
            return s.from_python(getattr(Asker(s).stand_in(self), name))
        if name in _VIEWS:
            return call(s, raw.__get__, [self], {})
        raise _no_attribute(f"its attribute {name!r}")

    def own_attr(self, s: Session, name: str) -> Value | None:
        if self.obj is None or not hasattr(self.obj, "__dict__"):
            return None
        return super().own_attr(s, name)

    def length(self, s: Session) -> int:
        if not self.spec.shape:
            raise Raised(s.exception(TypeError("len() of a 0-d tensor")))
        return self.spec.shape[0]

    def iter(self, s: Session) -> Value:
        return s.iterate(s.torch_call(torch.Tensor.unbind, [self, Constant(0)], {}).items_list(s), TUPLE_ITERATOR)

    def truth(self, s: Session) -> bool:
        raise Unsupported("a branch on the values of a DTensor", kind="data-dependent-branch")

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            mesh = src.Const(self.spec.mesh)
            e.call(made_behind, e.const(tuple(self.spec.placements)), e.const(tuple(self.spec.tensor_meta.shape)),
                   e.const(tuple(self.spec.tensor_meta.stride)), lambda: e.load_source(mesh),
                   lambda: e.load(self._local))

    def describe(self) -> str:
        return "a DTensor" + (f" ({self.source})" if self.source is not None else "")


def made_behind(placements: tuple, shape: tuple, stride: tuple, mesh: Any, local: torch.Tensor) -> Any:
    """A DTensor of a local part, behind a graph."""
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


class DTensorMethod(TensorMethod):
    """A method of PyTorch's tensors, of a DTensor."""

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        owner = self.owner
        s.calls.guard_kinds(args, kwargs)
        if self.name in _QUESTIONS:
            made = Asker(s).stand_in(owner)
            return s.from_python(getattr(made, self.name)(*(a.const(s) for a in args),
                                                          **{k: v.const(s) for k, v in kwargs.items()}))
        if self.name in ("backward", "requires_grad_", "retain_grad", "register_hook", "item", "tolist", "numpy"):
            raise _no_attribute(f"its method {self.name}()")
        return call(s, getattr(torch.Tensor, self.name), [owner, *args], kwargs)


class PlacementValue(ObjectValue):
    """A placement, which is immutable: known by what it says."""

    def compare(self, s: Session, op: Any, other: Value) -> Value | None:
        if op.equality is None or not isinstance(other, PlacementValue):
            return None
        return Constant((self.pin(s) == other.pin(s)) == op.equality)

    def getattr(self, s: Session, name: str) -> Value:
        found = getattr(self.obj, name, None)
        if type(found) in (int, str, bool):
            self.pin(s)
            return Constant(found)
        return super().getattr(s, name)


def placement(s: Session, obj: Any) -> Value:
    """A new value for a placement."""
    return s.wrap(obj, src.Const(obj, str(obj), owned=True))


_ATTRIBUTES: dict[str, Callable] = {
    "placements": lambda s, t: TupleValue([placement(s, p) for p in t.spec.placements]),
    "device_mesh": lambda s, t: s.wrap(t.spec.mesh, src.Const(t.spec.mesh, "mesh")),
    "requires_grad": lambda s, t: Constant(t.requires_grad(s)),
    DTENSOR_PART: lambda s, t: t.local(s).detached(s),
}
_METADATA = frozenset(("shape", "dtype", "device", "ndim", "layout", "itemsize", "nbytes", "is_cuda", "is_cpu",
                       "is_meta", "is_sparse", "is_quantized", "is_nested", "names"))
_VIEWS = frozenset(("T", "mT", "H", "mH"))
_QUESTIONS = frozenset(("size", "dim", "numel", "stride", "nelement", "ndimension", "is_floating_point", "is_complex",
                        "is_contiguous", "element_size", "get_device", "__len__", "is_signed", "storage_offset"))


# calls


class Part(torch.Tensor):
    """Stands for the local part ``value`` of a DTensor while PyTorch is asked."""

    value: TensorValue
    __torch_function__ = torch_private.no_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        raise refused(f"{func} on a part of one")


class Asker(torch_private.DispatchMode):
    """Sees the operators of one call of PyTorch on stand-ins of DTensors, and records what they stand for."""

    def __init__(self, s: Session) -> None:
        super().__init__()
        self.s = s
        self.values: dict[int, tuple[Any, Value]] = {}  # id of a stand-in -> it, and what it stands for

    def stand_in(self, value: DTensorValue) -> Any:
        """A DTensor like ``value``, without data."""
        if value._local is None:
            part = part_of(value.obj)
            sizes, strides, dtype, device = part.shape, part.stride(), part.dtype, part.device
        else:
            t = value._local.handle(self.s).type
            sizes, strides = tuple(map(specialize, t.shape)), tuple(map(specialize, t.strides))
            dtype, device = t.dtype, t.device
        part = torch_private.make_wrapper(Part, tuple(sizes), strides=tuple(strides), dtype=dtype, device=device)
        made = DTensor(part, value.spec, requires_grad=False)
        self.values[id(made)] = made, value
        return made

    def real(self, value: Value) -> Any:
        """An argument for PyTorch."""
        s = self.s
        if value.is_spread:
            return next((made for made, known in self.values.values() if known is value), None) or self.stand_in(value)
        if value.is_tensor:
            t = value.handle(s).type
            made = torch_private.make_wrapper(Part, tuple(map(specialize, t.shape)), dtype=t.dtype, device=t.device,
                                              strides=tuple(map(specialize, t.strides)))
            self.values[id(made)] = made, value
            return made
        if value.is_slice:
            return slice(*map(self.real, value.nested(s)))
        if value.builtin in (list, tuple):
            parts = [self.real(v) for v in value.items_list(s)]
            return value.builtin(parts) if value.pytype(s) in (list, tuple) else value.pytype(s)(parts)
        if value.is_const():
            return value.const(s)
        if value.symbolic is int:
            return specialize(value.lower(s))
        raise Unsupported(f"{value.describe()} as an argument beside a DTensor", kind="torch-argument")

    def value(self, obj: Any) -> Value:
        """What a call has given."""
        if isinstance(obj, torch.Tensor):
            known = self.values.get(id(obj))
            if known is None:
                raise refused("a tensor that none of its operators has given")
            return known[1]
        if type(obj) is list:
            return ListValue([self.value(v) for v in obj])
        if isinstance(obj, tuple):
            return TupleValue([self.value(v) for v in obj], type(obj))
        return self.s.from_python(obj)

    def __torch_dispatch__(self, func: Any, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        with outside(self.s):
            return self.operator(func, args, kwargs or {})

    def operator(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Record an operator on DTensors."""
        s = self.s
        if func in _PRIVATE.apart or func in _PRIVATE.sometimes_apart and any(
                isinstance(t, DTensor) and any(p.is_partial() for p in t.placements) for t in args):
            raise refused(f"the operator {func}")
        if not any(isinstance(t, DTensor) for t in pytree.tree_leaves((args, kwargs))):
            raise refused(f"the operator {func} on a plain tensor")
        info = _PRIVATE.rules.unwrap_to_op_info(func, args, kwargs)
        _PRIVATE.propagate(info)
        sharding = info.output_sharding
        given = list(info.flat_args_schema)
        wanted: Sequence[Any] = given
        if sharding.needs_redistribute:
            schema = sharding.redistribute_schema
            func = schema.op
            wanted = (pytree.tree_leaves(schema.args_schema) if info.args_tree_spec is not None
                      else list(schema.args_schema))
        flat = pytree.tree_leaves(args) if info.args_tree_spec is not None else list(args)
        specs = sharding.output_spec
        outputs = [spec for spec in (specs if isinstance(specs, (tuple, list)) else [specs]) if spec is not None]
        if not outputs:
            raise refused(f"the operator {func}, which gives no DTensor")
        local: list[Value] = []
        for k, target in enumerate(wanted):
            before = given[k] if k < len(given) else None
            if isinstance(before, DTensorSpec):
                value = self._tensor(flat[k])
                if func in _KEEPS:
                    s.tracer.set(value.handle(s).base, "fragile", False)
                local.append(self._met(redistributed(s, value, before, target.placements), target, outputs))
            else:
                local.append(self._plain(target if sharding.use_val_from_redistribute_schema or k >= len(given)
                                         else before))
        if info.args_tree_spec is not None:
            local = _unflattened(local, info.args_tree_spec, s)
        named = {k: self._plain(v) for k, v in info.local_kwargs.items()}
        result = s.record(*_better(func, local), named)
        return self._outputs(func, args, result, specs)

    def _tensor(self, made: Any) -> TensorValue:
        value = self.values[id(made)][1]
        return value.local(self.s) if value.is_spread else value

    def _plain(self, arg: Any) -> Value:
        """An argument that is no DTensor."""
        if isinstance(arg, (torch.Tensor, DTensorSpec)):
            raise refused("beside a plain tensor")
        if isinstance(arg, (list, tuple)):
            return TupleValue([self._plain(a) for a in arg])
        return self.s.from_python(arg)

    def _met(self, value: TensorValue, spec: Any, outputs: list) -> TensorValue:
        """An operand of an operator with results like ``outputs``."""
        s = self.s
        handle = value.handle(s)
        if not s.tracer.grad_enabled or not handle.requires_grad:
            return value
        node = handle.node
        for k, (share, group) in enumerate(zip(shares(spec.placements), groups(s, spec.mesh))):
            whole = {shares(o.placements)[k] == collectives.WHOLE for o in outputs}
            if share == collectives.WHOLE and whole != {True}:
                if len(whole) > 1:
                    raise _no_gradient("an operator of which one result is whole and another one is not")
                node = collectives.summed_back(s.tracer.builder, node, group)
        return value if node is handle.node else _made(s, node, handle)

    def _outputs(self, func: Any, args: tuple, result: Value, specs: Any) -> Any:
        s = self.s
        if any(a.alias_info is not None and a.alias_info.is_write for a in torch_private.schema(func).arguments):
            first = args[0]
            if isinstance(first, DTensor) and tuple(first.placements) == tuple(specs.placements):
                return first
            raise refused(f"{func}, which changes how it is spread")
        if not isinstance(specs, (tuple, list)):
            return self._output(result, specs)
        parts = result.items_list(s)
        return type(specs)([None if spec is None else self._output(v, spec) for v, spec in zip(parts, specs)])

    def _output(self, value: Value, spec: Any) -> Any:
        """A stand-in for a result."""
        shares(spec.placements)
        return self.stand_in(DTensorValue(spec, value))


@contextlib.contextmanager
def outside(s: Session) -> Iterator[None]:
    """PyTorch's switches are the compiler's own again."""
    with torch.set_grad_enabled(True), torch_private.WithoutAutocast():
        yield


def _better(func: Any, args: list[Value]) -> tuple[Any, list[Value]]:
    """An operator that only calls come down to, by one that the graph knows more of."""
    found = _INSTEAD.get(func)
    if found is None or any(not (a.is_const() and not a.value) for a in args[2:]):
        return func, args
    return found, args[:2]


_aten = torch.ops.aten
_KEEPS = frozenset((_aten.mm.default, _aten.addmm.default, _aten.bmm.default))  # their operands, for the backward
_INSTEAD = {_aten._unsafe_view.default: _aten.view.default, _aten._softmax.default: _aten.softmax.int,
            _aten._log_softmax.default: _aten.log_softmax.int}


def _unflattened(local: list[Value], tree: Any, s: Session) -> list[Value]:
    def value(v: Any) -> Value:
        return TupleValue([value(e) for e in v]) if isinstance(v, (list, tuple)) else v

    return [value(v) for v in pytree.tree_unflatten(local, tree)]


def call(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``fn(*args, **kwargs)`` of PyTorch, with DTensors among the arguments."""
    whole = _PARTWISE.get(fn)
    if whole is not None:
        found = whole(s, fn, args, kwargs)
        if found is not None:
            return found
    asker = Asker(s)
    given, named = [asker.real(a) for a in args], {k: asker.real(v) for k, v in kwargs.items()}
    cast, s.tracer.autocast = s.tracer.autocast, {}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device, dtype in cast.items():
                stack.enter_context(torch.autocast(device, dtype))
            stack.enter_context(asker)
            result = fn(*given, **named)
    except (Raised, JitError):
        raise
    except Exception as error:  # of PyTorch's own, which eager raises behind the break
        raise refused(f"{getattr(fn, '__name__', fn)} raises {type(error).__name__}: {error}") from None
    finally:
        s.tracer.autocast = cast
    return asker.value(result)


def _attention(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Attention of DTensors that are divided along batches and heads alone: that of the parts."""
    if len(args) < 3 or not all(a.is_spread for a in args[:3]) or any(
            v.is_spread for v in (*args[3:], *kwargs.values())):
        return None
    specs = [a.spec for a in args[:3]]
    found = {tuple(spec.placements) for spec in specs}
    rank = len(specs[0].shape)
    if len(found) > 1 or not all(share.reduction is None and (share.dim is None or share.dim < rank - 2)
                                 for share in shares(specs[0].placements)):
        return None
    local = s.torch_call(fn, [*(a.local(s) for a in args[:3]), *args[3:]], kwargs)
    handle, shape = local.handle(s), (*specs[0].shape[:-1], specs[2].shape[-1])
    return DTensorValue(spec_of(specs[0].mesh, specs[0].placements, shape, handle), local)


_PARTWISE: dict[Callable, Callable] = {torch.nn.functional.scaled_dot_product_attention: _attention}


def spec_of(mesh: Any, placements: Sequence[Any], shape: Sequence[int], handle: Any) -> Any:
    """The spec of a tensor of ``shape``, of which the part behind ``handle`` is laid out as the whole is."""
    order = sorted(range(len(shape)), key=lambda d: -specialize(handle.type.strides[d]))
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], step = step, step * max(shape[d], 1)
    return DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(torch.Size(shape), tuple(strides), handle.dtype))
