"""Whole training steps inside a compiled function, against eager: backward(), gradients that add up, optimizers,
schedulers, clipping."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_harness import same as close

import jit

same = functools.partial(close, rtol=1e-6, atol=1e-9)
BACKENDS = ["eager", "jit"]
X, Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(6) % 4


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 4)).double()


def same_models(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        same(p, q)
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            same(p.grad, q.grad)
            assert p.grad.stride() == q.grad.stride()


def train(net, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss


O = torch.optim
OPTIMIZERS = {
    "sgd": (O.SGD, {"lr": 0.1}),
    "sgd-single": (O.SGD, {"lr": 0.1, "foreach": False, "weight_decay": 0.1}),
    "sgd-momentum": (O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True, "weight_decay": 0.01}),
    "sgd-maximize": (O.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "sgd-fused": (O.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "adam": (O.Adam, {"lr": 0.01, "foreach": False}),
    "adam-foreach": (O.Adam, {"lr": 0.01, "foreach": True, "weight_decay": 0.1}),
    "adam-amsgrad": (O.Adam, {"lr": 0.01, "amsgrad": True}),
    "adam-amsgrad-foreach": (O.Adam, {"lr": 0.01, "amsgrad": True, "foreach": True, "maximize": True}),
    "adam-fused": (O.Adam, {"lr": 0.01, "fused": True}),
    "adamw": (O.AdamW, {"lr": 0.01}),
    "adamw-foreach": (O.AdamW, {"lr": 0.01, "foreach": True}),
    "adamw-fused": (O.AdamW, {"lr": 0.01, "fused": True, "amsgrad": True}),
    "rmsprop": (O.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "adagrad": (O.Adagrad, {"lr": 0.01}),
    "nadam": (O.NAdam, {"lr": 0.01}),
    "adamax": (O.Adamax, {"lr": 0.01}),
    "adadelta": (O.Adadelta, {"lr": 0.1}),
    "radam": (O.RAdam, {"lr": 0.01}),
}
WHOLE = [n for n in OPTIMIZERS if n.startswith(("sgd", "adam")) and not n.endswith("max")]


COMPILED = ("sgd-momentum", "adam-amsgrad-foreach", "adamw", "adamw-fused")


@pytest.mark.parametrize("name, backend", [(n, "eager") for n in OPTIMIZERS] + [(n, "jit") for n in COMPILED])
def test_optimizers(name, backend):
    kind, options = OPTIMIZERS[name]
    step = jit.compile(train, backend=backend, fullgraph=name in WHOLE)
    a, b = model(), model()
    for_a, for_b = kind(a.parameters(), **options), kind(b.parameters(), **options)
    for _ in range(4):
        got, want = step(a, for_a, X, Y), train(b, for_b, X, Y)
        same(got, want)
        same_models(a, b)
        same(for_a.state_dict(), for_b.state_dict())


def test_a_step_is_compiled_twice_at_most():
    """Once with the optimizer's state yet to be made, and once for all later steps: counters and bias corrections are
    no constants."""
    jit.reset()
    step = jit.compile(train, fullgraph=True)
    net = model()
    optimizer = O.AdamW(net.parameters(), lr=0.01)
    start = jit.compile_count()
    for _ in range(6):
        step(net, optimizer, X, Y)
    assert jit.compile_count() - start == 2


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("scheduler",
                         [lambda o: O.lr_scheduler.StepLR(o, 2, 0.5), lambda o: O.lr_scheduler.CosineAnnealingLR(o, 10),
                          lambda o: O.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
                          lambda o: O.lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1))])
def test_schedulers(scheduler, inside):
    def program(net, optimizer, schedule, x, y):
        loss = train(net, optimizer, x, y)
        if inside:
            schedule.step()
        return loss

    jit.reset()
    step = jit.compile(program, backend="eager")
    a, b = model(), model()
    for_a, for_b = O.AdamW(a.parameters(), lr=0.02), O.AdamW(b.parameters(), lr=0.02)
    rate_a, rate_b = scheduler(for_a), scheduler(for_b)
    counts = []
    for _ in range(9):
        same(step(a, for_a, rate_a, X, Y), program(b, for_b, rate_b, X, Y))
        if not inside:
            rate_a.step(), rate_b.step()
        same_models(a, b)
        same(for_a.state_dict(), for_b.state_dict())
        assert rate_a.get_last_lr() == rate_b.get_last_lr()
        counts.append(jit.compile_count())
    if not inside:
        assert counts[-1] == counts[4]


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping(foreach):
    def program(net, optimizer, x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x) * 20, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=foreach)
        nn.utils.clip_grad_value_(net.parameters(), 0.05, foreach=foreach)
        optimizer.step()
        return loss.detach(), norm

    step = jit.compile(program, backend="eager" if foreach else "jit", fullgraph=True)
    a, b = model(), model()
    for_a, for_b = O.SGD(a.parameters(), lr=0.1), O.SGD(b.parameters(), lr=0.1)
    for _ in range(4):
        same(step(a, for_a, X, Y), program(b, for_b, X, Y))
        same_models(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_add_up_in_the_same_tensor(backend):
    def program(net, x, y):
        F.cross_entropy(net(x), y).backward()
        (net(x * 2).sum() * 0.1).backward()

    step = jit.compile(program, backend=backend, fullgraph=True)
    a, b = model(), model()
    seen = None
    for _ in range(4):
        step(a, X, Y), program(b, X, Y)
        same_models(a, b)
        now = [id(p.grad) for p in a.parameters()]
        assert seen is None or now == seen
        seen = now


def test_accumulation_over_micro_batches():
    def program(net, optimizer, batches, y):
        optimizer.zero_grad(set_to_none=False)
        total = 0
        for x in batches:
            loss = F.cross_entropy(net(x), y) / len(batches)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    step = jit.compile(program, fullgraph=True)
    a, b = model(), model()
    for_a, for_b = O.Adam(a.parameters(), lr=0.01), O.Adam(b.parameters(), lr=0.01)
    for _ in range(4):
        batches = [torch.randn(6, 8).double() for _ in range(3)]
        same(step(a, for_a, batches, Y), program(b, for_b, batches, Y))
        same_models(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_steps_in_one_graph(backend):
    def program(net, optimizer, x, y):
        losses = [train(net, optimizer, x + i, y).detach() for i in range(3)]
        return torch.stack(losses)

    step = jit.compile(program, backend=backend, fullgraph=True)
    a, b = model(), model()
    for_a, for_b = O.SGD(a.parameters(), lr=0.1, momentum=0.9), O.SGD(b.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        same(step(a, for_a, X, Y), program(b, for_b, X, Y))
        same_models(a, b)
        same(for_a.state_dict(), for_b.state_dict())


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_that_are_returned(backend):
    """A loss that backward() has been called on requires grad, and cannot be differentiated again."""

    def program(net, x, y):
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        return loss, out, loss * 2, loss.item(), [loss.detach()]

    step = jit.compile(program, backend=backend)
    a, b = model(), model()
    for _ in range(2):
        got, want = step(a, X, Y), program(b, X, Y)
        same([*got[:3], got[4]], [*want[:3], want[4]])
        assert got[3] == pytest.approx(want[3])
        for result in (*got[:3], *want[:3]):
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                result.sum().backward()


HISTORIES = {
    "sum": lambda x: x.sum(), "views": lambda x: (x.view(3, 1)[1:] + 1).sum() - 3,
    "cat": lambda x: torch.cat([x, -x[:1]]).sum(), "exp": lambda x: x.exp().sum(),
    "times_number": lambda x: (x * 2).sum(), "one_of_two": lambda x: x.sum() + x.exp().sum(),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", HISTORIES)
def test_what_a_freed_graph_did_not_keep(name, backend):
    """A backward() frees what the history keeps; where it keeps nothing, it can be walked again."""

    def program(x):
        loss = HISTORIES[name](x)
        loss.backward()
        return loss, loss + x.sum()

    def run(f):
        x = torch.tensor([1.0, 2, 3], requires_grad=True)
        results, seen = f(x), []
        for result in results:
            try:
                result.backward()
            except RuntimeError as error:
                seen.append(str(error)[:60])
            seen.append((result.item(), x.grad.tolist()))
        return seen

    assert run(jit.compile(program, backend=backend)) == run(program)


@pytest.mark.parametrize("backend", BACKENDS)
def test_retained_graph(backend):
    def program(net, x, y):
        loss = F.cross_entropy(net(x), y)
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        return loss

    step = jit.compile(program, backend=backend, fullgraph=True)
    a, b = model(), model()
    for _ in range(2):
        got, want = step(a, X, Y), program(b, X, Y)
        got.backward(), want.backward()
        same_models(a, b)


GRADIENTS = {}


def gradients(fn):
    GRADIENTS[fn.__name__] = fn
    return fn


@gradients
def to_arguments(x, w):
    return torch.autograd.grad((x @ w).sin().sum(), (x, w))


@gradients
def to_intermediates(x, w):
    h = x @ w
    k = h.exp()
    return torch.autograd.grad(k.sum(), [h, x, k])


@gradients
def unused(x, w):
    return (torch.autograd.grad(x.sin().sum(), (x, w), allow_unused=True),
            torch.autograd.grad(x.sum(), [w], materialize_grads=True))


@gradients
def with_tangents(x, w):
    y = x @ w
    return torch.autograd.grad([y, x.cos()], [x], grad_outputs=[torch.ones_like(y).cumsum(0), x.detach()])


@gradients
def penalty(x, w):
    x = x.detach().requires_grad_(True)
    g, = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
    loss = ((g.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    return loss.detach(), g.detach(), x.grad


@gradients
def second_derivative(x, w):
    y = (x ** 3).sum() + (x @ w).sin().sum()
    g, = torch.autograd.grad(y, x, create_graph=True)
    return torch.autograd.grad((g * g).sum(), (x, w))


@gradients
def linear_second_derivative(x, w):
    g, = torch.autograd.grad((x * 2).sum() + (w * x.sum()).sum(), x, create_graph=True)
    return g.detach(), g.requires_grad, torch.autograd.grad(g.sum(), [w], allow_unused=True)


@gradients
def with_create_graph_outside(x, w):
    g, = torch.autograd.grad((x @ w).sin().sum(), x, create_graph=True)
    return g.sum(), g * 2


@gradients
def backward_under_no_grad(x, w):
    y = (x @ w).sum()
    with torch.no_grad():
        y.backward()
        return x.grad + 1, w.grad


@gradients
def set_and_cleared(x, w):
    x.grad = torch.ones_like(x)
    (x * w.t()).sum().backward()
    got = x.grad
    w.grad = None
    return got, x.grad is got, w.grad


@gradients
def chosen_inputs(x, w):
    (x @ w).exp().sum().backward(inputs=[w])
    return x.grad, w.grad


@gradients
def nothing_is_reached(x, w):
    y = (x.detach() @ w)
    y.backward(torch.ones_like(y))
    return x.grad, w.grad


@gradients
def broken_between(x, w):
    y = (x @ w).sin()
    torch._C._get_tracing_state()
    print(end="")
    y.sum().backward()
    return x.grad + 1


@gradients
def overwritten_after(x, w):
    y = (x @ w).sin().sum()
    y.backward()
    with torch.no_grad():
        x -= x.grad
        w.sub_(0.1)
    return (x @ w).sum().detach()


@gradients
def no_history(x, w):
    return x.detach().sum().backward()


@gradients
def not_a_scalar(x, w):
    return (x @ w).backward()


@gradients
def twice(x, w):
    y = (x @ w).sin().sum()
    y.backward()
    y.backward()


@gradients
def unused_is_an_error(x, w):
    return torch.autograd.grad(x.sum(), [w])


@gradients
def to_a_tensor_without_grad(x, w):
    return torch.autograd.grad(x.sum(), [w.detach()])


@gradients
def random_mask(x, w):
    y = F.dropout(x @ w, 0.5)
    (y * y).sum().backward()
    return y.detach(), x.grad


@gradients
def non_leaf_arguments(x, w):
    y = x * 2
    y.sum().backward(inputs=[x])
    return y.is_leaf


@gradients
def library_operators(x, w):
    y = F.scaled_dot_product_attention(x[None, None], w.t()[None, None], w.t()[None, None])
    z = F.conv1d(x[None], torch.ones(2, 4, 2)) if x.shape[0] == 4 else x.cumsum(0)
    (y.sum() + z.sort(-1)[0].sin().sum()).backward()
    return x.grad


def outcome(fn, flags):
    torch.manual_seed(3)
    x, w = (torch.randn(s, dtype=torch.float64, requires_grad=f) for s, f in zip(((3, 4), (4, 3)), flags))
    torch.manual_seed(4)
    try:
        result = fn(x, w)
    except RuntimeError as error:
        return "raised", str(error).splitlines()[0]
    after = [x.grad, w.grad, x, w]
    if isinstance(result, tuple) and isinstance(result[0], torch.Tensor) and result[0].requires_grad:
        after.append(torch.autograd.grad(result[0].sum(), [v for v in (x, w) if v.requires_grad], allow_unused=True))
    return "returned", result, after


@pytest.mark.usefixtures("eager_numbers")
@pytest.mark.parametrize("backend, flags", [("jit", (True, True)), ("eager", (True, False))])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_inside(name, backend, flags):
    fn = GRADIENTS[name]
    compiled = jit.compile(fn, backend=backend)
    for _ in range(2):
        same(outcome(compiled, flags), outcome(fn, flags))


def test_gradients_inside_are_one_graph():
    for name in ("to_arguments", "to_intermediates", "unused", "with_tangents", "penalty", "second_derivative",
                 "backward_under_no_grad", "chosen_inputs", "set_and_cleared", "random_mask", "overwritten_after"):
        outcome(jit.compile(GRADIENTS[name], backend="eager", fullgraph=True), (True, True))


def test_arguments_that_are_results_of_other_operations():
    def program(x):
        (x * 2).sum().backward()

    for fn in (program, jit.compile(program, backend="eager")):
        leaf = torch.ones(3, requires_grad=True)
        fn(leaf * 3)
        assert torch.equal(leaf.grad, torch.full((3,), 6.0))


@pytest.mark.parametrize("register", [lambda p, seen: p.register_hook(lambda g: seen.append(1) or g * 2),
                                      lambda p, seen: p.register_post_accumulate_grad_hook(lambda p: seen.append(2))])
def test_hooks_on_gradients_are_called(register):
    def program(net, x):
        net(x).sum().backward()

    def run(fn, late):
        net, seen = model(), []
        if not late:
            register(net[0].weight, seen)
        fn(net, X)
        if late:
            register(net[0].weight, seen)
        fn(net, X)
        return [p.grad for p in net.parameters()], seen

    for late in (False, True):
        same(run(jit.compile(program, backend="eager"), late), run(program, late))


def test_frozen_and_shared_parameters():
    def program(net, head, x):
        (net(x) @ head.weight).sum().backward()
        return [p.grad is None for p in net.parameters()]

    def run(fn):
        net = model()
        net[0].weight.requires_grad_(False)
        head = nn.Linear(8, 4).double()
        head.weight = nn.Parameter(net[3].weight.detach()[:, :8].contiguous())
        net.register_parameter("again", net[3].weight)
        first = fn(net, head, X)
        net[0].weight.requires_grad_(True)
        return [first, fn(net, head, X), [p.grad for p in net.parameters()]]

    same(run(jit.compile(program)), run(program))


def test_step_after_the_optimizer_was_loaded():
    a, b = model(), model()
    for_a, for_b = O.Adam(a.parameters(), lr=0.01), O.Adam(b.parameters(), lr=0.01)
    step = jit.compile(train, backend="eager")
    for turn in range(4):
        same(step(a, for_a, X, Y), train(b, for_b, X, Y))
        if turn == 1:
            for_a.load_state_dict(copy.deepcopy(for_a.state_dict()))
            for_b.load_state_dict(copy.deepcopy(for_b.state_dict()))
        same_models(a, b)


def test_counters_that_python_cannot_divide_by():
    """A counter of -1 becomes 0, and the bias correction of step 0 divides by zero: eager raises that."""
    net = model()
    optimizer = O.Adam(net.parameters(), lr=0.01)
    step = jit.compile(train, backend="eager")
    for _ in range(2):
        step(net, optimizer, X, Y)
    for state in optimizer.state.values():
        state["step"].fill_(-1)
    with pytest.raises(ZeroDivisionError):
        step(net, optimizer, X, Y)


def test_groups_of_parameters_and_tensor_rates():
    def run(fn):
        net = model()
        optimizer = O.AdamW([{"params": net[0].parameters(), "lr": torch.tensor(0.1)},
                             {"params": net[3].parameters(), "weight_decay": 0.3}], lr=0.01, foreach=False)
        return [[fn(net, optimizer, X, Y) for _ in range(4)], [p.detach() for p in net.parameters()]]

    same(run(jit.compile(train)), run(train))


def test_what_foreach_functions_return():
    def f(x):
        made = torch._foreach_add([x, x + 1], 1)
        return made, torch._foreach_neg(list(made)), torch._foreach_mul_([x * 2], 3), torch._foreach_norm(made)

    x = torch.randn(3)
    for a, b in zip(f(x), jit.compile(f, fullgraph=True)(x), strict=True):
        assert type(a) is type(b) and (a is None or len(a) == len(b)
                                       and all(torch.allclose(p, q) for p, q in zip(a, b, strict=True)))


def test_a_view_that_was_there_before_its_base_required_grad_gets_no_gradient():
    def step(x, y):
        (y.sin() * 2).sum().backward()
        return x.grad, y.grad

    def made(how):
        x = torch.arange(3.0)
        if how == "before":
            y = x[1]
            x.requires_grad_()
        else:
            y = x[1].requires_grad_()
        return x, y

    compiled = jit.compile(step)
    for how in ("its own", "before", "its own"):
        want, got = step(*made(how)), compiled(*made(how))
        assert [g is None for g in want] == [g is None for g in got]
