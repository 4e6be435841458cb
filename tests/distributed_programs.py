"""Programs of two processes, run by ``test_distributed.py``: each compares compiled code with eager's, on the CPU with
gloo. ``python distributed_programs.py FILE`` runs all of them in one process of the group and writes what failed."""

import contextlib
import gc
import json
import os
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn

import jit
from jit.runtime import native

CASES = {}
CUDA = os.environ.get("JIT_TEST_DISTRIBUTED") == "cuda"  # NCCL, for programs that can be run with it
PLACE = torch.device("cuda", int(os.environ["RANK"])) if CUDA else torch.device("cpu")


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def same(a, b, what="", rtol=1e-5, atol=1e-6):
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b), what
        for x, y in zip(a, b):
            same(x, y, what, rtol, atol)
    elif isinstance(a, torch.Tensor):
        if isinstance(a, functional.AsyncCollectiveTensor):
            a = a.trigger_wait()
        assert type(a) is type(b), (what, type(a), type(b))
        if hasattr(a, "to_local"):
            assert a.placements == b.placements and a.shape == b.shape and a.stride() == b.stride(), what
            a, b = a.to_local(), b.to_local()
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride(), what
        assert a.requires_grad == b.requires_grad, what
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=lambda m: f"{what}: {m}")
    else:
        assert a == b, (what, a, b)


def whole(fn, *arguments, grad=False, calls=2, graph=True, options=None):
    """Compare calls of a function with eager's: results, changed arguments, gradients; and that it is one graph."""
    compiled = jit.compile(fn, fullgraph=graph, options=options)
    for k in range(calls):
        theirs, ours = ([make() for make in arguments] for _ in range(2))
        for t in (*theirs, *ours) if grad else ():
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                t.requires_grad_()
        want, got = fn(*theirs), compiled(*ours)
        same(want, got, f"call {k}")
        if grad:
            for result in (want, got):
                sum(r.sum() for r in (result if isinstance(result, tuple) else (result,)) if r.requires_grad).backward()
            for a, b in zip(theirs, ours):
                if isinstance(a, torch.Tensor):
                    same([a.grad is None], [b.grad is None])
                    if a.grad is not None:
                        same(a.grad, b.grad, "gradient")
        for a, b in zip(theirs, ours):
            if isinstance(a, torch.Tensor):
                same(a.detach(), b.detach(), "argument")


def own(*shape, scale=1.0):
    """Numbers that each process has others of."""
    def make():
        return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) * scale * (dist.get_rank() + 1)

    return make


@contextlib.contextmanager
def counted_collectives(wanted="_c10d_functional"):
    """The names of the functional collectives that are called, or of those of another namespace."""
    names = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield names
    for event in profile.events():
        space, _, name = event.name.partition("::")
        if space == wanted:
            names.append(name)


# collectives in place


@case
def all_reduce_in_place():
    def f(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    whole(f, own(4))
    whole(f, own(3, 5))
    whole(f, lambda: own(4, 6)().t())
    with torch.no_grad():
        whole(f, own(2))


@case
def all_reduce_of_an_argument():
    def f(x):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x + 1

    whole(f, own(4))
    whole(f, lambda: own(4, 4)().t())


@case
def asynchronous():
    def f(x):
        y, z = x * 2, x + 5
        work = dist.all_reduce(y, async_op=True)
        z = (z @ z.t()).relu()
        done = work.wait()
        return y + 1, z, done

    whole(f, own(4, 4))


@case
def gatherings():
    def f(x):
        n = dist.get_world_size()
        flat, rows = x.new_empty(n * x.shape[0], *x.shape[1:]), [torch.empty_like(x) for _ in range(n)]
        dist.all_gather_into_tensor(flat, x)
        dist.all_gather(rows, x + 1)
        part = x.new_empty(x.shape[0] // n, *x.shape[1:])
        dist.reduce_scatter_tensor(part, x * 2)
        lines = x.new_empty(x.shape)
        dist.all_to_all_single(lines, x)
        dist.broadcast(lines, 1)
        return flat, rows[0] - rows[1], part, lines

    whole(f, own(4))
    whole(f, own(2, 3))


@case
def groups_by_argument():
    group = dist.new_group([0, 1])

    def f(x, group):
        dist.all_reduce(x, group=group)
        return x * dist.get_rank(group) + dist.get_world_size(group)

    compiled = jit.compile(f, fullgraph=True)
    for g in (group, None, dist.group.WORLD, group):
        same(f(own(4)(), g), compiled(own(4)(), g))


@case
def constants():
    def f(x):
        if dist.is_initialized() and dist.is_available():
            return x * dist.get_rank() + dist.get_world_size() + dist.group.WORLD.size() + dist.group.WORLD.rank()
        return x

    whole(f, own(4))


@case
def a_break_beside():
    def f(x):
        dist.all_reduce(x)
        jit.graph_break()
        dist.barrier()
        y = x * 2
        dist.all_reduce(y)
        return y

    whole(f, own(4), graph=False)


@case
def gradients_past_a_collective_in_place():
    def f(x):
        y = x * 2
        dist.all_reduce(y)
        return y * 3

    whole(f, own(4), grad=True)


@case
def a_failure_behind_a_collective():
    """The collective is not made again: the other process has no partner for it."""
    def f(x, at):
        dist.all_reduce(x)
        return x.cumsum(0)[at]

    compiled = jit.compile(f)
    index = torch.tensor([1, 2])
    same(compiled(own(4)(), index), f(own(4)(), index))
    try:
        compiled(own(4)(), index + 4)
    except (IndexError, RuntimeError):
        pass
    else:
        raise AssertionError("no error")
    same(compiled(own(4)(), index), f(own(4)(), index))


# functional collectives


@case
def functional_forms():
    def f(x):
        world = dist.group.WORLD
        a = functional.all_reduce(x * 2, "sum", world)
        b = functional.all_gather_tensor(x, 0, world)
        c = functional.reduce_scatter_tensor(x * 3, "sum", 0, world)
        d = functional.all_to_all_single(x, None, None, world)
        e = functional.all_gather_tensor(x, 1, world)
        return a + d, b * 2, c - 1, e.sin()

    def waited(x):
        return tuple(functional.wait_tensor(r) if isinstance(r, functional.AsyncCollectiveTensor) else r for r in f(x))

    whole(waited, own(4, 3))


@case
def functional_gradients():
    def f(x, y):
        world = dist.group.WORLD
        a = functional.all_gather_tensor_autograd(x.sin(), 0, world)
        b = functional.reduce_scatter_tensor_autograd(y * y, "sum", 0, world)
        c = functional.all_to_all_single_autograd(x * 2, None, None, world)
        return (a * 2).cos().sum() + (b ** 2).sum() + (c * x).sum()

    whole(f, own(4, 3, scale=0.1), own(4, 2, scale=0.1), grad=True)


@case
def coalesced():
    def f(x, y):
        a, b = functional.all_reduce_coalesced([x * 2, y], "sum", dist.group.WORLD)
        return a + 1, b * 2

    def waited(x, y):
        return tuple(r + 0 for r in f(x, y))

    whole(waited, own(4), own(2, 2))


@case
def order_of_dead_collectives():
    def f(x):
        functional.all_reduce(x, "sum", dist.group.WORLD)  # nobody reads it
        y = functional.all_reduce(x * 2, "max", dist.group.WORLD)
        functional.all_reduce(x, "sum", dist.group.WORLD)
        return y + 1

    whole(f, own(4))


@case
def one_rank_compiles_alone():
    """A process that compiles anew does not keep the other one from anything but the collectives."""
    def f(x):
        y = x.sin()
        dist.all_reduce(y)
        return y.sum()

    compiled = jit.compile(f, fullgraph=True, dynamic=False)
    for n in (4, 8, 4, 16):
        size = n if dist.get_rank() == 0 else 4  # the same bytes below: only the shapes around differ
        def g(x, size=size):
            return compiled(x.reshape(-1)[:4] + size)
        same(g(torch.ones(size)), f(torch.ones(size).reshape(-1)[:4] + size))


# data parallel


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def gradients_of(step, model, rounds=3, context=None):
    found = []
    for k in range(rounds):
        model.zero_grad()
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * k + dist.get_rank()))
        with context(k) if context else torch.enable_grad():
            loss = step(model, x)
            loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
    return found


@case
def data_parallel():
    import contextlib

    def step(model, x):
        return model(x).square().mean()

    for context in (None, "no_sync"):
        results = []
        for how in ("eager", "inside", "outside", "step"):
            model = small()
            ddp = nn.parallel.DistributedDataParallel(jit.compile(model) if how == "inside" else model)
            called = jit.compile(ddp) if how == "outside" else ddp
            taken = jit.compile(step) if how == "step" else step
            scope = (lambda k: ddp.no_sync() if k == 1 else contextlib.nullcontext()) if context else None
            results.append(gradients_of(lambda _, x: taken(called, x), model, context=scope))
        for other in results[1:]:
            for (a, ga), (b, gb) in zip(results[0], other):
                same(a, b, "loss")
                same(ga, gb, "gradients")


# sharded modules


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def sharded_blocks(count):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Blocks(count)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def sharded(count, compile_):
    model = sharded_blocks(count)
    called = compile_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for k in range(4):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * k + dist.get_rank()))
        loss = called(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        found.append((loss.detach(), [p.grad.full_tensor() for p in model.parameters()]))
        optimizer.step()
    return found


@case
def fully_sharded():
    for count in (2, 10):
        same(sharded(count, lambda m: m), sharded(count, jit.compile))


@case
def fully_sharded_blocks_are_graphs():
    called = jit.compile(sharded_blocks(10))
    for _ in range(3):
        called(torch.ones(6, 8)).sum().backward()
    before = jit.compile_count()
    assert before >= 3, f"{before} graphs"
    called(torch.ones(6, 8)).sum().backward()
    assert jit.compile_count() == before, "compiled again"


def sharded_in_ways(compile_, steps=5, **how):
    """Training steps of a sharded model: the losses, the gradients, the parameters."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = Blocks(3)
    if how.get("uneven"):
        model.blocks[1] = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 8, bias=False))
    if how.get("frozen"):
        for p in model.blocks[1].parameters():
            p.requires_grad_(False)
    more = {}
    if how.get("mixed"):
        more["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if "reshard" in how:
        more["reshard_after_forward"] = how["reshard"]
    for block in model.blocks:
        fully_shard(block, **more)
    fully_shard(model, **more)
    called = compile_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    if how.get("hooks"):
        for p in model.blocks[0].parameters():
            p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.full_tensor().clone()))
    if how.get("factor"):
        model.set_force_sum_reduction_for_comms(True)
        model.set_gradient_divide_factor(4.0)
    found = []
    for k in range(steps):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * k + dist.get_rank()))
        if how.get("inference") and k % 2:
            with torch.no_grad():
                found.append(called(x))
            continue
        if how.get("accumulate"):
            model.set_requires_gradient_sync(k % 2 == 1)
        loss = called(x).float().square().mean()
        if not how.get("adds"):
            optimizer.zero_grad()
        loss.backward(retain_graph=False)
        found.append((loss.detach(), [None if p.grad is None else p.grad.full_tensor() for p in model.parameters()]))
        optimizer.step()
        if how.get("clips"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return found, [p.full_tensor().detach() for p in model.parameters()], seen


@case
def fully_sharded_in_many_ways():
    ways = [{}, {"uneven": True}, {"frozen": True}, {"mixed": True}, {"reshard": False}, {"hooks": True},
            {"factor": True}, {"inference": True}, {"accumulate": True}, {"adds": True}, {"clips": True},
            {"mixed": True, "uneven": True, "adds": True}]
    for how in ways:
        near = {"rtol": 3e-2, "atol": 3e-3} if how.get("mixed") else {}  # kernels round to bfloat16 less often
        same(sharded_in_ways(lambda m: m, **how), sharded_in_ways(jit.compile, **how), str(how), **near)


@case
def groups_of_fsdp_are_gathered_natively():
    from jit import torch_private
    from jit.runtime import sharded_groups

    if not (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 14):
        assert torch_private.fsdp_groups() is None
        return
    assert torch_private.fsdp_groups() is not None, "this PyTorch's groups are not known"
    model = sharded_blocks(2)
    called = jit.compile(model)
    for _ in range(3):
        called(torch.ones(6, 8)).sum().backward()
    originals, calls = {}, []
    for module in model.modules():
        if not hasattr(module, "_get_fsdp_state"):
            continue
        for group in torch_private.fsdp_groups().of(module._get_fsdp_state()):
            assert type(group._jit_group) is sharded_groups.Group and group._jit_group.plan is not None
            originals = group._jit_group.originals
            for name in list(originals):
                originals[name] = lambda *args, name=name: calls.append(name)
    called(torch.ones(6, 8)).sum().backward()
    assert originals and not calls, calls


@case
def groups_follow_what_is_set_on_them():
    """What FSDP is told between calls holds for the next one."""
    def program(compile_):
        model = sharded_blocks(2)
        called, found = compile_(model), []
        x = torch.ones(6, 8) * (dist.get_rank() + 1)
        for k in range(8):
            if k == 3:
                model.set_reshard_after_backward(False)
            if k == 4:
                model.set_reshard_after_backward(True)
                model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
                model.blocks[1].set_modules_to_backward_prefetch([model.blocks[0]])
            if k == 5:
                model.unshard()
                model.reshard()
            if k == 6:
                model.blocks[0].up.weight.requires_grad_(False)
            if k == 7:
                model.load_state_dict({n: p * 2 for n, p in model.state_dict().items()})
            loss = called(x).square().mean()
            loss.backward()
            found.append((loss.detach(), [None if p.grad is None else p.grad.full_tensor()
                                          for p in model.parameters()]))
        return found

    same(program(lambda m: m), program(jit.compile), atol=1e-5)  # weights that were doubled: sums are larger


@case
def collectives_are_called_together():
    group = dist.group.WORLD.group_name
    ops = torch.ops._c10d_functional

    def f(x, y):
        a, b = x * 2, y.sin()
        first = ops.wait_tensor(ops.all_reduce(a, "sum", group))
        second = ops.wait_tensor(ops.all_reduce(b, "sum", group))
        largest = ops.wait_tensor(ops.all_reduce(y, "max", group))
        return first.cos() + 1, second * first.sum(), largest, first

    with counted_collectives() as names:
        whole(f, own(4, 3), own(5))
    assert "all_reduce_coalesced_" not in names and names.count("all_reduce_") == 4, names
    asked = {"bucket_collectives": True}
    with counted_collectives() as names:
        whole(f, own(4, 3), own(5), options=asked)
    assert names.count("all_reduce_coalesced_") == 2 and names.count("all_reduce") == 8, names
    # (six of eager, two of what nothing is called together with, and which is an argument)

    def g(x):  # the second needs the first
        first = ops.wait_tensor(ops.all_reduce(x * 2, "sum", group))
        return ops.wait_tensor(ops.all_reduce(first + 1, "sum", group))

    with counted_collectives() as names:
        whole(g, own(4, 3), options=asked)
    assert names.count("all_reduce_") == 4 and "all_reduce_coalesced_" not in names, names


def recorded():
    """(forward, backwards ..) of the plan that was replayed most by CUDA graphs, or what is pretended to be one."""
    gc.collect()
    plans = [o.recordings for o in gc.get_objects() if type(o) is native().Plan and any(o.recordings)]
    return max(plans, key=lambda p: (p[0] or {}).get("replayed", 0))


@contextlib.contextmanager
def recordings():
    native().pretend_graphs(not CUDA)
    try:
        yield
    finally:
        native().pretend_graphs(False)


def several_collectives(x, w):
    ops, group = torch.ops._c10d_functional, dist.group.WORLD.group_name
    a, b = torch.tanh(x @ w), x * 2
    first, second = ops.all_reduce(a, "sum", group), ops.all_reduce(b, "avg" if b.is_cuda else "sum", group)
    a = ops.wait_tensor(first).softmax(-1)
    gathered = ops.wait_tensor(ops.all_gather_into_tensor(a.sin(), 2, group))
    part = ops.wait_tensor(ops.reduce_scatter_tensor(gathered * 3, "sum", 2, group))
    return part + a, ops.wait_tensor(second).cos() + 1, gathered


@case
def recordings_make_collectives_in_between():
    options = {"bucket_collectives": True}
    with recordings():
        for grad in (False, True):
            f = jit.compile(several_collectives, mode="reduce-overhead", fullgraph=True,
                            options=options if grad else None)
            kept, w, u = [], *(torch.eye(4, device=PLACE).add(0.1).requires_grad_(grad) for _ in range(2))
            for k in range(9):
                x = own(6, 4, scale=0.1 * (k + 1))().to(PLACE)
                with torch.set_grad_enabled(grad):
                    kept.append((f(x, w), several_collectives(x, u)))
                if grad:
                    for p, results in ((w, kept[-1][0]), (u, kept[-1][1])):
                        p.grad = None
                        sum(r.sum() for r in results).backward()
                    same(w.grad, u.grad, f"gradient of call {k}")
            for k, (got, want) in enumerate(kept):
                same(got, want, f"call {k}")
            for one in recorded()[:1 + grad]:
                assert one["recorded"] == 1 and one["replayed"] >= 6 and not one["refused"], one
            jit.reset()


@case
def one_rank_records_and_the_other_does_not():
    how = {"mode": "reduce-overhead"} if dist.get_rank() else {"options": {"auto_cudagraphs": False}}
    f = jit.compile(several_collectives, fullgraph=True, **how)
    w = torch.eye(4, device=PLACE) + 0.1
    with recordings():
        for k in range(7):
            x = own(6, 4, scale=0.1 * (k + 1))().to(PLACE)
            same(f(x, w), several_collectives(x, w), f"call {k}")
        if dist.get_rank():
            assert recorded()[0]["replayed"] >= 4


def several_sums(x, *groups):
    ops = torch.ops._c10d_functional
    for group in groups:
        x = ops.wait_tensor(ops.all_reduce((x * 2).softmax(0), "sum", group.group_name))
    return x + 1


@case
def a_collective_that_fails_behind_another():
    """The first one is not made again: the other process has no partner for it."""
    for how in ({"mode": "reduce-overhead"}, {}):
        gone, f = dist.new_group(), jit.compile(several_sums, **how)
        x = torch.ones(4, 4, device=PLACE)
        with recordings():
            for _ in range(5):
                same(f(x, dist.group.WORLD, gone), several_sums(x, dist.group.WORLD, gone))
            dist.destroy_process_group(gone)
            with counted_collectives("c10d") as names, contextlib.suppress(RuntimeError, ValueError):
                f(x, dist.group.WORLD, gone)
                raise AssertionError("nothing was raised")
        assert names == ["allreduce_"], (names, how)
        jit.reset()


@case
def collectives_that_nobody_waits_for_are_not_recorded():
    group = dist.group.WORLD.group_name

    def f(x):
        y = x * 2
        torch.ops._c10d_functional.all_gather_into_tensor(y, 2, group)
        return ((y + 1).softmax(0) * 2).cos().cumsum(0)

    fast = jit.compile(f, mode="reduce-overhead", fullgraph=True)
    with recordings():
        for k in range(5):
            x = own(4, 4, scale=0.1 * (k + 1))().to(PLACE)
            same(fast(x), f(x), f"call {k}")
        plans = [o.recordings for o in gc.get_objects() if type(o) is native().Plan]
        assert any("not waited for" in str(one) for one in plans), plans


@case
def waits_for_what_another_call_has_started():
    ops, group = torch.ops._c10d_functional, dist.group.WORLD.group_name

    def finish(started):
        return (ops.wait_tensor(started) * 2).softmax(0).exp().sum(-1)

    f = jit.compile(finish, mode="reduce-overhead")
    with recordings():
        for k in range(6):
            x = own(4, 4, scale=0.1 * (k + 1))().to(PLACE)
            same(f(ops.all_reduce(x, "sum", group)), finish(ops.all_reduce(x, "sum", group)), f"call {k}")


@case
def broadcasts_work_in_place():
    group = dist.group.WORLD.group_name
    ops = torch.ops._c10d_functional

    with counted_collectives() as names:
        whole(lambda x: ops.wait_tensor(ops.broadcast(x * 2, 0, group)) + 1, own(4, 3))
    assert names.count("broadcast_") == 2, names


@case
def collectives_leave_what_others_read():
    group = dist.group.WORLD.group_name
    ops = torch.ops._c10d_functional

    def f(x, y):
        a = x * 2
        v = (y + 1).view(-1)
        return (ops.wait_tensor(ops.all_reduce(x, "sum", group)),
                ops.wait_tensor(ops.all_reduce(a, "sum", group)), a + 1,
                ops.wait_tensor(ops.all_reduce(v, "sum", group)).sum(), y)

    whole(f, own(4, 3), own(5, 2))
    whole(f, own(4, 3), own(5, 2), grad=True)


# tensors that are spread


def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


@case
def redistributions():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    m = mesh()
    kinds = (Replicate(), Shard(0), Shard(1), Partial())
    for source in kinds:
        for target in kinds[:3]:
            def f(x, source=source, target=target):
                spread = DTensor.from_local(x, m, [source], run_check=False)
                return (spread.redistribute(m, [target]).to_local() * 2).sin()

            # A whole tensor is the same one everywhere.
            made = (lambda: torch.arange(16.0).view(4, 4)) if source == Replicate() else own(4, 4)
            whole(f, made, grad=True)


@case
def operators_on_spread_tensors():
    from torch.distributed.tensor import DTensor, Replicate, Shard

    m = mesh()

    def f(x, w):
        a = DTensor.from_local(x, m, [Replicate()], run_check=False)
        b = DTensor.from_local(w, m, [Shard(0)], run_check=False)
        y = F.linear(a, b)
        y = F.silu(y) * y + 1
        return (y @ y.t()).redistribute(m, [Replicate()]).to_local(), y.sum().full_tensor()

    whole(f, lambda: torch.arange(12.0).view(3, 4) / 10, own(2, 4, scale=0.1), grad=True)


@case
def results_are_spread():
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    m = mesh()
    x = distribute_tensor(torch.arange(32.0).view(8, 4), m, [Shard(0)])
    f = lambda t: (t * 2, t.sin().sum(1))  # noqa: E731
    compiled = jit.compile(f, fullgraph=True)
    for _ in range(2):
        same(f(x), compiled(x))
    y, z = (distribute_tensor(torch.arange(32.0).view(8, 4), m, [Shard(0)]).requires_grad_() for _ in range(2))
    f(y)[0].sum().full_tensor().backward()
    compiled(z)[0].sum().full_tensor().backward()
    assert type(z.grad) is DTensor
    same(y.grad.full_tensor(), z.grad.full_tensor())
    other = distribute_tensor(torch.arange(32.0).view(8, 4), m, [Shard(1)])  # is compiled anew
    same(f(other), compiled(other))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.gate, self.up = nn.Linear(8, 16, bias=False), nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        x = self.norm(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))


def parallel(plan, compile_, make=MLP):
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(0)
    model = parallelize_module(make(), mesh(), plan())
    called = compile_(model)
    found = []
    for k in range(3):
        x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(k)).requires_grad_()
        model.zero_grad()
        y = called(x)
        y.square().mean().backward()
        found.append((y.detach(), x.grad, [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
                                           for p in model.parameters()]))
    return found


def _plan():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}


def _sequence_plan():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
    )

    return {"": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
            "norm": SequenceParallel(), "gate": ColwiseParallel(input_layouts=Shard(1)),
            "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()}


@case
def tensor_parallel():
    same(parallel(_plan, lambda m: m), parallel(_plan, lambda m: jit.compile(m, fullgraph=True)))


@case
def sequence_parallel():
    same(parallel(_sequence_plan, lambda m: m), parallel(_sequence_plan, lambda m: jit.compile(m, fullgraph=True)))


def main(file):
    torch.set_num_threads(1)
    if CUDA:
        torch.cuda.set_device(PLACE)
    dist.init_process_group("nccl" if CUDA else "gloo")
    wanted, failed = sys.argv[2:], {}
    for name, run in CASES.items():
        if wanted and name not in wanted:
            continue
        try:
            run()
        except Exception:
            # The other process may be at another collective by now: there is no way to go on.
            failed[name] = traceback.format_exc()
            with open(file, "w") as f:
                json.dump(failed, f)
            print(failed[name], flush=True)
            os._exit(1)
        jit.reset()
        print("done", name, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
