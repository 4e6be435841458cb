"""What training is done with, around and inside compiled functions: DistributedDataParallel, gradient scalers,
checkpointing."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_harness import model

import jit

PROCESS = """
import os, sys, torch, jit
import torch.distributed as dist
from torch import nn
rank = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
def step(net, optimizer, x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
def run(wrap, step):
    net = wrap(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = [step(net, optimizer, torch.full((3, 4), rank + i / 3)) for i in range(3)]
    return [*losses, *(p.detach() for p in net.parameters()), *(p.grad for p in net.parameters())]
DDP = nn.parallel.DistributedDataParallel
want = run(DDP, step)
eager = {"backend": "eager"}
for wrap, fn in ((lambda m: DDP(jit.compile(m)), step), (lambda m: jit.compile(DDP(m), **eager), step),
                 (DDP, jit.compile(step, **eager))):
    for g, w in zip(run(wrap, fn), want):
        torch.testing.assert_close(g, w)
class Forked(nn.Module):
    # one of two branches is used, which one depends on the step
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.left, self.right = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)
    def forward(self, x, left):
        h = self.stem(x).tanh()
        return self.left(h) if left else self.right(h)
def forked(net, optimizer, x, k):
    optimizer.zero_grad()
    loss = net(x, k % 2 == 0).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
def accumulated(net, optimizer, x, k):
    optimizer.zero_grad()
    with net.no_sync():
        net(x).square().mean().backward()
        apart = [p.grad.clone() for p in net.parameters()]
    net(x + 1).square().mean().backward()
    optimizer.step()
    return torch.cat([a.flatten() for a in apart])
def again(net, optimizer, x, k):
    return step(net, optimizer, x)
def train(make, wrap, step):
    net = wrap(make())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    results = [step(net, optimizer, torch.full((3, 4), rank + i / 3), i) for i in range(3)]
    gradients = (p.grad for p in net.parameters() if p.grad is not None)
    return [*results, *(p.detach() for p in net.parameters()), *gradients]
for make, step_of, options in ((Forked, forked, {"find_unused_parameters": True}), (model, accumulated, {}),
                               (model, again, {"static_graph": True}),
                               (model, accumulated, {"gradient_as_bucket_view": True})):
    ddp = lambda m: DDP(m, **options)
    want = train(make, ddp, step_of)
    for wrap, fn in ((lambda m: ddp(jit.compile(m)), step_of), (lambda m: jit.compile(ddp(m), **eager), step_of),
                     (ddp, jit.compile(step_of, **eager))):
        got = train(make, wrap, fn)
        assert len(got) == len(want), options
        for g, w in zip(got, want):
            torch.testing.assert_close(g, w)
alone = run(lambda m: m, step)
assert not torch.equal(alone[-1], want[-1])
for g, w in zip(run(lambda m: m, jit.compile(step, **eager)), alone):
    torch.testing.assert_close(g, w)
dist.destroy_process_group()
print("agreed")
"""


def test_distributed_data_parallel(python, tmp_path):
    """Gradients are averaged over two processes, whatever of the module, its wrapper and the step is compiled."""
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(python, PROCESS, str(rank), str(tmp_path / "store"), timeout=100) for rank in range(2)]
        assert all("agreed" in r.result().stdout for r in runs)


X = torch.linspace(-1, 1, 20).reshape(5, 4)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_gradient_scaler(inside, fused):
    """A step that is skipped because of an infinite gradient is skipped, and the scale falls."""

    def step(net, optimizer, scaler, x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def run(compiled):
        net = model()
        fn = jit.compile(step, backend="eager") if compiled and inside else step
        forward = jit.compile(net, backend="eager") if compiled and not inside else net
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8, growth_interval=2)
        seen = []
        for k in range(5):
            x = X * float("inf") if k == 2 else X + k
            seen += [fn(forward, optimizer, scaler, x), torch.tensor(scaler.get_scale())]
        return seen + [p.detach() for p in net.parameters()]

    for got, want in zip(run(True), run(False)):
        torch.testing.assert_close(got, want, equal_nan=True)


class Counted(torch.autograd.Function):
    """Counts how often its forward is run by Python."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        Counted.runs += 1
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_checkpointed_layers_have_eager_gradients(place):
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4)) for _ in range(3))

    def program(x):
        for layer in layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        loss = x.square().sum()
        if place == "inside":
            loss.backward()
        return loss

    def run(fn):
        layers.zero_grad()
        x = X.clone().requires_grad_()
        loss = fn(x)
        if place == "outside":
            loss.backward()
        return [loss.detach(), x.grad, *(p.grad for p in layers.parameters())]

    compiled = jit.compile(program, fullgraph=True)
    for _ in range(2):
        for got, want in zip(run(compiled), run(program)):
            torch.testing.assert_close(got, want)


def test_a_checkpoint_copies_none_of_what_it_reads():
    layers = [torch.randn(16, 16, requires_grad=True) for _ in range(3)]

    def program(x):
        for w in layers:  # read as arguments, and by a closure
            x = checkpoint(lambda x, w: (x @ w).sort(-1).values * w[0], x, w, use_reentrant=False)
            x = checkpoint(lambda x: (x @ w).sort(-1).values, x, use_reentrant=False)
        return x.sum()

    (region,) = jit.explain(program)(torch.randn(8, 16, requires_grad=True)).report.regions
    kept = [r.computes for plan in region.plans for r in plan.memory.returned]
    assert len(region.plans) == 2 and kept and "clone" not in kept, kept


def in_a_checkpoint(x, w):
    return checkpoint(lambda x, w: (x @ w).sigmoid(), x, w, use_reentrant=False)


@pytest.mark.parametrize("written", ["nothing", "x", "w", "y"])
@pytest.mark.parametrize("around", [False, True])
def test_writing_to_what_a_checkpoint_was_given_is_refused_as_in_eager(written, around):
    """Eager keeps the arguments, and of the results nothing. ``around``: the input is read outside too."""
    def program(x, w):
        return in_a_checkpoint(x, w) + (x + 1 if around else 0)

    def run(fn):
        tensors = {"x": X.clone().requires_grad_(), "w": torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()}
        tensors["y"] = fn(tensors["x"], tensors["w"])
        with torch.no_grad():
            if written in tensors:
                tensors[written].mul_(2)
        try:
            tensors["y"].sum().backward()
        except RuntimeError as error:
            return str(error).partition(":")[0]
        return tensors["x"].grad, tensors["w"].grad

    compiled = jit.compile(program, fullgraph=True)
    for _ in range(2):
        got, want = run(compiled), run(program)
        assert type(got) is type(want), (got, want)
        torch.testing.assert_close(got, want) if written in ("nothing", "y") else assert_same_error(got, want)


def assert_same_error(got, want):
    assert got == want and "modified by an inplace operation" in got


def test_a_checkpoint_that_cannot_be_captured_runs_again_in_the_backward():
    """With a reentrant checkpoint, eager's, the region is run twice: once for its results and once for the backward."""

    def program(x):
        return checkpoint(lambda x: Counted.apply(x.sin()).exp(), x, use_reentrant=True).sum()

    def run(fn):
        Counted.runs = 0
        x = X.clone().requires_grad_()
        fn(x).backward()
        return x.grad, Counted.runs

    (got, runs), (want, expected) = run(jit.compile(program, backend="eager")), run(program)
    torch.testing.assert_close(got, want)
    assert runs == expected == 2


def saved_bytes(fn, *args) -> int:
    """What autograd keeps between the forward and the backward, without the arguments and parameters."""
    kept: dict = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        fn(*args)
    return sum(kept.values())


def test_no_more_is_saved_than_in_eager():
    def program(x, w):
        for _ in range(6):
            x = F.gelu(x.sin() * w + 1).exp().tanh()
        return x.sum()

    x, w = torch.randn(256, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    assert saved_bytes(jit.compile(program), x, w) * 4 < saved_bytes(program, x, w)


def test_steps_after_torch_compile_was_used(python):
    """It replaces methods of optimizers by functions that switch its frame hook off."""
    python("""
import torch, jit
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(net.parameters())
def step(x):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
for _ in range(2):
    jit.compile(step, backend="eager", fullgraph=True)(torch.ones(4, 3))
""")


def calls(fn, name: str) -> int:
    """How many operators with this in their name run."""
    with torch.profiler.profile() as seen:
        fn()
    return sum(e.name in (f"aten::{name}", f"aten::{name}.out") for e in seen.events())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_checkpointed_region_is_computed_again(dropout):
    """Between forward and backward the layers keep their inputs only, and the backward has the products of the forward
    in it."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Dropout(dropout),
                                         nn.Linear(256, 16)) for _ in range(4))

    def kept(x):
        for layer in layers:
            x = x + layer(x)
        return x.square().sum()

    def program(x):
        for layer in layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x.square().sum()

    x = torch.randn(64, 16, requires_grad=True)
    compiled, whole = jit.compile(program, fullgraph=True), jit.compile(kept, fullgraph=True)
    assert saved_bytes(whole, x) - saved_bytes(compiled, x) > 3 * 64 * 256 * 4
    assert saved_bytes(compiled, x) < 10 * 64 * 16 * 4 + sum(p.nbytes for p in layers.parameters())
    losses = [f(x) for f in (compiled, whole)]
    again, once = (calls(loss.backward, "linear") + calls(lambda: None, "linear") for loss in losses)
    assert again > once
    if not dropout:
        got, want = (torch.autograd.grad(f(x), [x, *layers.parameters()]) for f in (compiled, program))
        for g, w in zip(got, want):
            torch.testing.assert_close(g, w)
