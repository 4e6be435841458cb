"""The groups of parameters that FSDP2 (``fully_shard``) gathers and reduces, with fewer steps of Python.

A group is gathered before each forward and backward of its module, and its gradients are reduced behind it. FSDP does
that for any kind of group, parameter by parameter, which takes the processor 0.7 to 1 ms for a layer of a transformer,
longer than a GPU takes to compute it. Most groups need little of it: plain tensors on one device, sharded over their
first dimension and resharded over one mesh. Such a group is given methods of its own here, which do what FSDP's do, in
the same order, on the same streams and with the same objects, so that whatever else FSDP or the program does with the
group finds it as ever. Lists that are the same at each call are made once. Everything else is left to FSDP's method,
at each call anew.

What these methods do was read from FSDP's own, which are private: ``torch_private.fsdp_groups`` knows them by digest,
and where they are others the group stays as it is.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Callable

import torch

from .. import logs, torch_private
from .extension import native

SIMPLE = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})  # no containers
MOST_PIECES = 128  # of parameters times processes that are copied each for itself, by one kernel or two

_log = logs.channel("plan")


def lighten(state: Any) -> None:
    """Give the groups of an FSDP state, and of all states below the same root, their methods. Called again, it does so
    for groups that were not there."""
    api = torch_private.fsdp_groups()
    if api is None:
        return
    for each in {id(s): s for s in (state, *state._state_ctx.all_states)}.values():
        groups = api.of(each)
        if groups:
            _shorten_hooks(each)
        for group in groups:
            if "_jit_group" not in vars(group) and type(group) is api.group_class:
                group._jit_group = Group(group, api)


@functools.cache
def _shortened(function: Callable) -> Callable:
    """A hook without what keeps PyTorch's compiler out of it, which is made anew at each call, and with ranges for the
    profiler only while one is there. While that compiler reads the code, the hook is called as it was."""
    inner = inspect.unwrap(function)
    names = {**inner.__globals__, "record_function": torch_private.recorded}
    direct = types.FunctionType(inner.__code__, names, inner.__name__, inner.__defaults__, inner.__closure__)
    direct.__kwdefaults__ = inner.__kwdefaults__

    def hook(*args: Any, **kwargs: Any) -> Any:
        return (function if torch.compiler.is_compiling() else direct)(*args, **kwargs)

    native().quiet_code(hook.__code__)  # with all that it calls
    return functools.update_wrapper(hook, function)


def _shorten_hooks(state: Any) -> None:
    """Have a state's hooks called by fewer steps: those of its modules' forward, and that of their results."""
    if "_pre_backward" in vars(state):
        return
    for module in state._modules:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in hooks.items():
                if getattr(hook, "__self__", None) is state:
                    hooks[key] = types.MethodType(_shortened(hook.__func__), state)
    state._pre_backward = types.MethodType(_shortened(type(state)._pre_backward), state)


class Plan:
    """What stays the same from call to call, for as long as the parameters of a group are the same objects."""

    def __init__(self, group: Any, api: Any) -> None:
        mesh = group.mesh_info
        self.params = list(group.fsdp_params)
        self.sharded = [p.sharded_param for p in self.params]
        self.gathered = [p.all_gather_outputs[0] for p in self.params]
        self.world, self.rank = mesh.shard_process_group.size(), mesh.shard_process_group.rank()
        self.numels = [p._sharded_param_data.numel() for p in self.params]
        self.total = sum(self.numels)
        self.dtype = self.gathered[0].dtype
        self.dtypes, self.lengths = [[self.dtype] for _ in self.params], [[n] for n in self.numels]
        self.by_pieces = self.world * len(self.params) <= MOST_PIECES
        # ``data`` has a version counter of its own: gathering is no change that autograd should see.
        self.views = [] if self.by_pieces else [t.data.view(self.world, -1) for t in self.gathered]
        self.storages = [(t.untyped_storage(), t.numel() * t.itemsize) for t in self.gathered]
        self.places = [[(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names)]
                       for info in (p._module_info for p in self.params)]
        self.handle = group.device_handle
        # A device without streams of its own has others in their place, which do nothing.
        self.switches = isinstance(self.handle.current_stream(), torch.Stream)
        stream = torch.Stream if self.switches else type(self.handle.current_stream())
        self.record, self.wait_stream, self.wait_event = stream.record_event, stream.wait_stream, stream.wait_event
        self.own = [api.padded_size(p._orig_size, self.world).numel() // self.world for p in self.params]

    def holds(self, group: Any) -> bool:
        return (len(self.params) == len(group.fsdp_params)
                and all(p.sharded_param is known for p, known in zip(self.params, self.sharded)))


def _plain(param: Any) -> bool:
    """Whether a parameter of FSDP's needs nothing but to be gathered and reduced."""
    local = param._sharded_local_tensor
    return (type(local) in (torch.Tensor, torch.nn.Parameter) and not param.is_dtensor and not param.offload_to_cpu
            and param.fsdp_placement.dim == 0 and len(param.all_gather_outputs) == 1
            and hasattr(param, "_unsharded_param") and not param.all_gather_outputs[0].is_inference()
            and type(param._sharded_param_data) is torch.Tensor
            and all(type(module).__setattr__ is torch.nn.Module.__setattr__ and "__setattr__" not in vars(module)
                    for module in (param._module_info.module, *param._module_info.shared_modules)))


def _plan(group: Any, api: Any) -> Plan | None:
    params = group.fsdp_params
    if (type(group.mesh_info) is not api.mesh_class or not params or not all(map(_plain, params))
            or group.mesh_info.shard_process_group.size() < 2
            or len({p.all_gather_outputs[0].dtype for p in params}) != 1
            or any(p.all_gather_outputs[0].numel() != p._sharded_param_data.numel()
                   * group.mesh_info.shard_process_group.size() for p in params)
            or isinstance(group.device_handle.current_stream(), torch.Stream)
            and group.device.type != getattr(torch.accelerator.current_accelerator(), "type", None)):
        return None
    return Plan(group, api)


class Group:
    """The methods of one group. Each asks whether it may do its work, and else calls FSDP's."""

    def __init__(self, group: Any, api: Any) -> None:
        self.group, self.api = group, api
        self.plan: Plan | None = None
        self.refused: tuple | None = None  # the parameters for which there is no plan
        self.result: Any = None            # what was gathered here and not waited for yet
        cls = type(group)
        self.originals: dict[str, Callable] = {}
        for name in ("unshard", "wait_for_unshard", "_to_sharded", "_to_unsharded", "post_backward",
                     "_register_post_backward_hook"):
            self.originals[name] = types.MethodType(getattr(cls, name), group)
            setattr(group, name, getattr(self, name.strip("_")))
        for name in ("pre_forward", "post_forward", "pre_backward"):
            setattr(group, name, types.MethodType(_shortened(getattr(cls, name)), group))
        group._prefetch_unshard = _shortened(cls._prefetch_unshard)  # a static method
        if _log:
            _log(f"the group {group._module_fqn or ''} of FSDP is gathered and reduced here")

    def current(self) -> Plan | None:
        """The plan, if there is one for the parameters as they are now."""
        group, plan = self.group, self.plan
        if plan is None or not plan.holds(group):
            # Before the first gathering of all there is nothing to plan for.
            if group._sharded_state is not self.api.sharded or not all(p.all_gather_outputs for p in group.fsdp_params):
                return None
            known = tuple(map(id, group.fsdp_params))
            if self.refused == known:
                return None
            plan = self.plan = _plan(group, self.api)
            if plan is None:
                self.refused = known
        return plan

    # -- the parameters' places in their modules

    def to_unsharded(self) -> None:
        api, group, plan = self.api, self.group, self.plan
        if plan is None or group._sharded_state is not api.sharded or not plan.holds(group):
            return self.originals["_to_unsharded"]()
        for p, sharded, places in zip(plan.params, plan.sharded, plan.places):
            whole = p._unsharded_param
            if whole.requires_grad is not sharded.requires_grad:
                whole.requires_grad_(sharded.requires_grad)
            for module, name in places:
                module._parameters[name] = whole
            p.sharded_state = api.unsharded
        group._sharded_state = api.unsharded

    def to_sharded(self) -> None:
        api, group, plan = self.api, self.group, self.plan
        if plan is None or group._sharded_state is not api.unsharded or not plan.holds(group):
            return self.originals["_to_sharded"]()
        for p, sharded, places, (storage, _) in zip(plan.params, plan.sharded, plan.places, plan.storages):
            for module, name in places:
                module._parameters[name] = sharded
            storage.resize_(0)
            p.sharded_state = api.sharded
        group._sharded_state = api.sharded

    # -- gathering

    def unshard(self, async_op: bool = False) -> None:
        api, group = self.api, self.group
        if group._all_gather_result is not None or group._sharded_state is api.unsharded:
            return
        plan = None if async_op else self.current()
        if (plan is None or group._sharded_state is not api.sharded or api.in_transform()
                or group._reshard_after_forward_event is not None
                or not group.unshard_in_backward or group._training_state not in api.gathering_states):
            return self.originals["unshard"](async_op)
        context, comm, process_group = group.comm_ctx, group._all_gather_comm, group.mesh_info.shard_process_group
        copying, gathering = context.all_gather_copy_in_stream, context.all_gather_stream
        with torch.no_grad(), torch_private.recorded(group._with_fqn("FSDP::all_gather")):
            shards = [p._sharded_param_data for p in plan.params]
            before = torch.accelerator.current_stream() if plan.switches else None
            try:
                if plan.switches:
                    torch.accelerator.set_stream(copying)
                whole = comm.allocate((plan.total * plan.world,), dtype=plan.dtype, device=group.device)
                mine = whole.narrow(0, plan.total * plan.rank, plan.total)
                native().copy_pieces(mine, shards, 1, False)
                if plan.switches:
                    plan.wait_stream(gathering, copying)
                    torch.accelerator.set_stream(gathering)
                work = api.gather(comm, whole, mine, process_group)
                event = plan.record(gathering)
            finally:
                if before is not None:
                    torch.accelerator.set_stream(before)
        group._all_gather_result = self.result = api.result_class(
            whole, event, work, plan.dtypes, plan.lengths, plan.numels)

    def wait_for_unshard(self) -> None:
        api, group, result, plan = self.api, self.group, self.result, self.plan
        self.result = None
        if group._all_gather_result is None:
            return
        if (result is None or group._all_gather_result is not result or plan is None or not plan.holds(group)
                or result.all_gather_work is not None or api.in_transform()):
            return self.originals["wait_for_unshard"]()
        context = group.comm_ctx
        forward = group._training_state is api.forward
        if forward and (previous := context.all_gather_state):
            group._wait_all_gather_streams_on_event(previous.event)
            context.all_gather_state = None
        with torch.no_grad(), torch_private.recorded(group._with_fqn("FSDP::all_gather_copy_out")):
            if result.all_gather_event is not None:
                plan.wait_event(plan.handle.current_stream(), result.all_gather_event)
            for storage, size in plan.storages:
                storage.resize_(size)
            if plan.by_pieces:
                native().copy_pieces(result.all_gather_output, plan.gathered, plan.world, True)
            else:
                torch.split_with_sizes_copy(result.all_gather_output.view(plan.world, -1), plan.numels, dim=1,
                                            out=plan.views)
        self.to_unsharded()
        copied = plan.handle.Event()
        copied.record()
        if forward:
            context.all_gather_state = api.state_class(result, copied)
        else:
            group._wait_all_gather_streams_on_event(copied)
        group._all_gather_result = None

    # -- reducing

    def register_post_backward_hook(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Gives a module's arguments, behind the gradients of which the group is reduced."""
        if not torch.is_grad_enabled():
            return args, kwargs
        if kwargs or not all(type(a) in SIMPLE for a in args) or self.api.in_transform():
            return self.originals["_register_post_backward_hook"](args, kwargs)
        places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.requires_grad]
        if not places:
            return args, kwargs
        given = list(args)
        for i, a in zip(places, self.api.register_class.apply(self.group, *(args[i] for i in places))):
            given[i] = a
        return tuple(given), kwargs

    def post_backward(self, *unused: Any) -> None:
        api, group, plan = self.api, self.group, self.plan
        if (plan is None or not plan.holds(group) or not group.reduce_grads or group._all_reduce_hook is not None
                or getattr(group, "reduce_scatter_unused_params", False) or len(group.modules) > 1
                or group._partial_reduce_output is not None
                or any(p.unsharded_accumulated_grad is not None for p in plan.params)):
            return self.originals["post_backward"](*unused)
        group._training_state = api.post_backward
        found = [(p, grad, own) for p, own in zip(plan.params, plan.own)
                 if (grad := p._unsharded_param.grad) is not None]
        if any(type(grad) is not torch.Tensor for _, grad, _ in found) or len({g.dtype for _, g, _ in found}) > 1:
            return self.originals["post_backward"](*unused)
        for p, _, _ in found:
            p._unsharded_param.grad = None
        if group.reshard_after_backward:
            group.reshard()
        api.free_reduced(group, bool(found))
        if not found:
            return
        group._wait_for_post_backward()
        with torch.no_grad(), torch_private.recorded(group._with_fqn("FSDP::post_backward_reduce")):
            params, grads, numels = map(list, zip(*found))
            found.clear()
            self.reduce(plan, params, grads, numels)

    def reduce(self, plan: Plan, params: list, grads: list[torch.Tensor], numels: list[int]) -> None:
        api, group = self.api, self.group
        context, comm, process_group = group.comm_ctx, group._reduce_scatter_comm, group._reduce_scatter_process_group
        stream = context.reduce_scatter_stream
        dtype = group._reduce_dtype or grads[0].dtype
        before_factor, after_factor, op, _ = api.divide_factors(
            process_group, None, dtype, group.device.type, group.gradient_divide_factor,
            group.force_sum_reduction_for_comms)
        own = sum(numels)
        given = comm.allocate((own * plan.world,), dtype=dtype, device=group.device)
        if plan.by_pieces and all(g.is_contiguous() and g.dim() and g.shape[0] % plan.world == 0 for g in grads):
            native().copy_pieces(given, grads, plan.world, False)
        else:
            torch_private.chunk_cat(grads, 0, plan.world, out=given.view(plan.world, -1))
        grads.clear()
        current = plan.handle.current_stream()
        plan.wait_stream(stream, current)
        try:
            if plan.switches:
                torch.accelerator.set_stream(stream)
            reduced = comm.allocate((own,), dtype=dtype, device=group.device)
            if before_factor is not None and before_factor != 1:
                given.div_(before_factor)
            api.reduce_scatter(comm, reduced, given, process_group, op)
            scattered = plan.record(stream)
            if after_factor is not None and after_factor != 1:
                reduced.div_(after_factor)
            if group._orig_dtype is not None and reduced.dtype != group._orig_dtype:
                reduced = reduced.to(group._orig_dtype)
            begin, places = 0, []
            for p, numel in zip(params, numels):
                places.append((p.sharded_size, p.contiguous_sharded_stride, begin))
                begin += numel
            for p, grad in zip(params, native().pieces(reduced, places)):
                sharded = p.sharded_param
                held = sharded.grad
                if held is None:
                    sharded.grad = p.to_sharded_dtensor(grad)
                else:
                    held._local_tensor += grad
                if hooks := getattr(sharded, "_post_accumulate_grad_hooks", None):
                    for hook in hooks.values():
                        hook(sharded)
            done = plan.record(stream)
        finally:
            if plan.switches:
                torch.accelerator.set_stream(current)
        api.keep_reduced(group, given, scattered, stream, done)
