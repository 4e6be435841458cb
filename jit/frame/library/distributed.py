"""``torch.distributed``: collectives as steps of the graph, and what is known of groups of processes.

A collective that changes its tensor in place is the functional one (``graph.collectives``) and a write of what it
gives. Nothing is waited for before that is read, so an asynchronous one is no other, and its ``Work`` is done at once.
Groups, and meshes of devices, are objects that do not change: what they say is constant as long as they are the same
ones.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from ... import torch_private
from ...errors import Unsupported
from ...graph import layout
from ...graph.collectives import REDUCTIONS
from ...runtime import facts
from .. import source as src
from ..tables import add_forbidden, on_call, on_descriptor, on_function, wrapper
from ..values import batched
from ..values.base import Raised
from ..values.constant import Constant
from ..values.containers import ListValue, TupleValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

NONE = Constant(None)


def refused(why: str) -> Unsupported:
    return Unsupported(f"a call of torch.distributed that is no step of a graph: {why}", kind="collective")


class Work:
    """What an asynchronous collective of a captured function gives: whoever reads its result waits for it."""

    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


# groups


def guard_groups(s: Session) -> Any:
    """The default group of processes, or None, guarded to be that: all groups go with it."""
    world = torch_private.process_groups()
    default = world.default_pg
    s.guards.add(src.GetAttr(src.Const(world, "world"), "default_pg"), facts.identity(default))
    return default


def known(s: Session, value: Value) -> Any:
    """The real object of a value, guarded to be the same one."""
    if value.is_const():
        return value.const(s)
    found = getattr(value, "obj", None)
    if found is None or not value.is_object:
        raise refused(f"{value.describe()} is no constant")
    return value.pin(s)


def group_of(s: Session, value: Value | None) -> Any:
    """The group of processes that a program means. Raises Unsupported where this process is not in it."""
    default = guard_groups(s)
    group = default if value is None or value.is_const() and value.const(s) is None else known(s, value)
    if not isinstance(group, dist.ProcessGroup):
        raise refused("there is no such group of processes")
    return group


def arguments(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """The arguments of a call by name, with defaults."""
    signature = inspect.signature(fn)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise Raised(s.exception(error)) from None
    return {name: bound.arguments[name] if name in bound.arguments else s.wrap_raw(p.default)
            for name, p in signature.parameters.items()}


def _answered(*functions: Callable) -> None:
    """Register functions that say something of a group, and of nothing else that may change."""
    for fn in functions:
        @on_function(fn)
        def answer(s: Session, args: list[Value], kwargs: dict[str, Value], fn=fn) -> Value:
            guard_groups(s)
            try:
                return s.from_python(fn(*(known(s, a) for a in args), **{k: known(s, v) for k, v in kwargs.items()}))
            except (ValueError, RuntimeError) as error:
                raise Raised(s.exception(error)) from None


def _in_c(method: Any) -> Callable:
    """The function behind a method of pybind11's, which some versions wrap into an object that is no key of a table."""
    return getattr(method, "__func__", method)


def _of_group(method: Callable) -> None:
    """Register a method of a group, in C, that says something constant."""
    @on_call(method)
    def answer(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return s.from_python(method(*(known(s, a) for a in args)))


if dist.is_available():
    _answered(dist.get_rank, dist.get_world_size, dist.get_group_rank, dist.get_global_rank, dist.is_initialized,
              dist.get_process_group_ranks, dist.get_backend, dist.is_backend_available, dist.is_nccl_available,
              dist.is_gloo_available)
    for _name in ("rank", "size", "name"):
        _of_group(_in_c(getattr(dist.ProcessGroup, _name)))
    for _name in ("group_name", "group_desc", "bound_device_id"):
        if _name in vars(dist.ProcessGroup):
            _of_group(_in_c(vars(dist.ProcessGroup)[_name].fget))
    _mesh = dist.device_mesh.DeviceMesh
    _answered(_mesh.get_rank, _mesh.get_local_rank, _mesh.size, _mesh.get_coordinate)

    @on_function(_mesh.get_group)
    def group_of_mesh(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        guard_groups(s)
        found = _mesh.get_group(*(known(s, a) for a in args), **{k: known(s, v) for k, v in kwargs.items()})
        return s.wrap(found, src.Const(found, "the group of a mesh"))

    @on_call(torch_private.group_of_name)
    def group_by_name(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        guard_groups(s)
        try:
            found = torch_private.group_of_name(args[0].const(s))
        except RuntimeError as error:  # there is none
            raise Raised(s.exception(error)) from None
        return s.wrap(found, src.Const(found, "a group of processes"))

    _KNOWN = {_in_c(getattr(dist.ProcessGroup, name)) for name in ("rank", "size", "name")}

    @wrapper(type(vars(dist.ProcessGroup)["rank"]))
    def wrap_method_in_c(s: Session, obj: Any, source: src.Source | None) -> Value:
        return s.wrap(obj.__func__, src.GetAttr(source, "__func__") if source is not None else None)

    @on_descriptor(type(vars(dist.ProcessGroup)["rank"]))
    def method_of_group(s: Session, value: Value, raw: Any, name: str, cls: type) -> Value:
        """A method that pybind11 has made, of a group of processes or of another object."""
        if raw.__func__ not in _KNOWN:
            raise Unsupported(f"method {name} of {cls.__name__}, implemented in C", kind="descriptor")
        return s.bound_method(s.wrap_raw(raw.__func__), value)


# collectives in place


def _reduction(s: Session, value: Value) -> Constant:
    found = str(known(s, value)).rpartition(".")[2].lower()
    if found not in REDUCTIONS:
        raise refused(f"a reduction by {found}")
    return Constant(found)


def _tensor(s: Session, value: Value, by_rows: bool = True) -> Value:
    """A tensor for a collective, which goes through its memory as it lies; ``by_rows``: which lies row by row."""
    if not value.is_tensor or value.handle(s).dtype.is_complex:
        raise refused("its argument is no tensor of real numbers")
    t = value.handle(s).type
    if not (t.is_contiguous if by_rows else layout.is_dense(t.shape, t.strides)):
        raise refused("a tensor does not lie row by row in memory")
    return value


def _tensors(s: Session, value: Value) -> list[Value]:
    if not value.is_sequence:
        raise refused("its argument is no list of tensors")
    found = [_tensor(s, v) for v in value.items_list(s)]
    shapes = {tuple(v.handle(s).shape) for v in found}
    if len(shapes) != 1 or not all(type(n) is int for n in next(iter(shapes))):
        raise refused("the tensors of a list differ in size")
    return found


_wait = torch_private.functional_collective("wait_tensor") if dist.is_available() else None


def _put(targets, given):
    parts = _wait(given).view(len(targets), *targets[0].shape)
    for k, target in enumerate(targets):
        target.data.copy_(parts[k])


def _in_place(fn: Callable, op: str, prepare: Callable) -> None:
    """Register a function of torch.distributed that is the functional operator ``op`` and a write. ``prepare(s,
    arguments by name, the group)`` gives the tensors that are written, what the operator takes, and its other arguments
    but for the group's name."""
    @on_function(fn)
    def collective(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if batched.active(s):
            raise refused("it is inside torch.vmap")
        given = arguments(s, fn, args, kwargs)
        group = group_of(s, given.get("group"))
        if group.rank() < 0:
            raise refused("this process is not in the group")
        _guard_alone(s)
        asynchronous = given["async_op"].truth(s)
        targets, taken, others = prepare(s, given, group)
        name = [*others, Constant(group.group_name)]
        recording = s.tracer.grad_enabled
        s.tracer.set_grad_enabled(False)
        try:
            started = s.torch_call(torch_private.functional_collective(op), [taken, *name], {})
            s.inline(s.wrap_raw(_put), [TupleValue(targets), started], {})
        finally:
            s.tracer.set_grad_enabled(recording)
        return s.wrap_class(Work).call(s, [], {}) if asynchronous else NONE


def _guard_alone(s: Session) -> None:
    """No collectives are being collected to be done at once, by ``_coalescing_manager``."""
    waiting = torch_private.coalescing()
    if waiting:
        raise refused("several collectives are put together in one")
    if waiting is not None:
        s.guards.add(src.Const(waiting, "the collectives that wait", owned=True), facts.Length(0))


def _all_reduce(s: Session, given: dict[str, Value], group: Any) -> tuple:
    return [_tensor(s, given["tensor"], False)], given["tensor"], [_reduction(s, given["op"])]


def _broadcast(s: Session, given: dict[str, Value], group: Any) -> tuple:
    source, of_group = (known(s, given[k]) if k in given else None for k in ("src", "group_src"))
    if (source is None) == (of_group is None):
        raise refused("one of src and group_src has to be given")
    root = dist.get_group_rank(group, source) if of_group is None else of_group
    return [_tensor(s, given["tensor"], False)], given["tensor"], [Constant(root)]


def _gather(s: Session, given: dict[str, Value], group: Any) -> tuple:
    return [_tensor(s, given["output_tensor"])], _tensor(s, given["input_tensor"]), [Constant(group.size())]


def _gather_list(s: Session, given: dict[str, Value], group: Any) -> tuple:
    targets, taken = _tensors(s, given["tensor_list"]), _tensor(s, given["tensor"])
    if len(targets) != group.size() or tuple(targets[0].handle(s).shape) != tuple(taken.handle(s).shape):
        raise refused("the tensors to gather into have other sizes than the one that is sent")
    return targets, taken, [Constant(group.size())]


def _scatter(s: Session, given: dict[str, Value], group: Any) -> tuple:
    return ([_tensor(s, given["output"])], _tensor(s, given["input"]),
            [_reduction(s, given["op"]), Constant(group.size())])


def _scatter_list(s: Session, given: dict[str, Value], group: Any) -> tuple:
    parts = _tensors(s, given["input_list"])
    if len(parts) != group.size() or not parts[0].handle(s).shape:
        raise refused("a list has another length than the group has processes")
    whole = s.torch_call(torch.cat, [ListValue(parts)], {})
    return [_tensor(s, given["output"])], whole, [_reduction(s, given["op"]), Constant(group.size())]


def _exchange(s: Session, given: dict[str, Value], group: Any) -> tuple:
    output, taken = _tensor(s, given["output"]), _tensor(s, given["input"])
    splits = []
    for value, tensor in ((given["output_split_sizes"], output), (given["input_split_sizes"], taken)):
        if value.is_const() and value.const(s) is None or value.is_sequence and not value.items_list(s):
            size = tensor.handle(s).shape[0]
            if type(size) is not int or size % group.size():
                raise refused("all_to_all of a size that the processes do not divide evenly")
            splits.append(TupleValue([Constant(size // group.size())] * group.size()))
        else:
            splits.append(value)
    return [output], taken, splits


if dist.is_available():
    _in_place(dist.all_reduce, "all_reduce", _all_reduce)
    _in_place(dist.broadcast, "broadcast", _broadcast)
    _in_place(dist.all_gather, "all_gather_into_tensor", _gather_list)
    _in_place(dist.reduce_scatter, "reduce_scatter_tensor", _scatter_list)
    _in_place(dist.all_to_all_single, "all_to_all_single", _exchange)
    for _names, _op, _prepare in (
            (("all_gather_into_tensor", "all_gather_single"), "all_gather_into_tensor", _gather),
            (("reduce_scatter_tensor", "reduce_scatter_single"), "reduce_scatter_tensor", _scatter)):
        for _name in _names:  # the second one is newer
            if hasattr(dist, _name):
                _in_place(getattr(dist, _name), _op, _prepare)
    add_forbidden("a function of torch.distributed that has no form in graphs", "call it outside the compiled function",
                  dist.barrier, dist.monitored_barrier, dist.send, dist.recv, dist.isend, dist.irecv,
                  dist.batch_isend_irecv, dist.reduce, dist.gather, dist.scatter, dist.all_to_all,
                  dist.all_gather_object, dist.gather_object, dist.broadcast_object_list, dist.scatter_object_list,
                  dist.new_group, dist.init_process_group, dist.destroy_process_group, dist.all_gather_coalesced,
                  dist.all_reduce_coalesced)
