"""What training steps are made of, in combination, against eager: scalers with skipped steps, closures, parameter
groups, saved states, gradients of gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_harness import model, same

import jit

O = torch.optim
X = torch.linspace(-1, 1, 24).reshape(6, 4)


def compare(step, make, steps=5, arguments=lambda k: (), **options):
    """Do ``step(net, *what make(net) gives, *arguments(k))`` compiled and in eager; all results, parameters, gradients
    and states have to agree."""
    jit.reset()
    compiled = jit.compile(step, **{"backend": "eager", **options})

    def run(fn):
        net = model()
        made = make(net)
        seen = []
        for k in range(steps):
            seen.append(fn(net, *made, *arguments(k)))
            seen.append([p.grad if p.grad is None else p.grad.clone() for p in net.parameters()])
        return (seen, [p.detach().clone() for p in net.parameters()],
                [m.state_dict() for m in made if hasattr(m, "state_dict")])

    same(run(compiled), run(step))


OPTIMIZERS = {
    "sgd": (O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd-foreach": (O.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "sgd-fused": (O.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True, "weight_decay": 0.01}),
    "sgd-fused-plain": (O.SGD, {"lr": 0.1, "fused": True}),
    "adam": (O.Adam, {"lr": 0.01, "foreach": False, "amsgrad": True}),
    "adamw-foreach": (O.AdamW, {"lr": 0.01, "foreach": True, "maximize": True}),
    "adamw-fused": (O.AdamW, {"lr": 0.01, "fused": True}),
    "adam-fused": (O.Adam, {"lr": 0.01, "fused": True, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "adagrad-fused": (O.Adagrad, {"lr": 0.1, "fused": True, "lr_decay": 0.1, "weight_decay": 0.01}),
    "rmsprop": (O.RMSprop, {"lr": 0.01}),
}


def scaled(net, optimizer, scaler, factor, unscale):
    optimizer.zero_grad()
    loss = net(X).square().mean() * factor
    scaler.scale(loss).backward()
    if unscale:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), scaler._scale.clone(), scaler._growth_tracker.clone()


@pytest.mark.parametrize("name, unscale", [*((n, True) for n in OPTIMIZERS), ("sgd", False), ("adam", False),
                                           ("sgd-fused", False), ("adamw-fused", False)])
def test_scaled_steps(name, unscale):
    """The third and the fourth step are skipped; the scale falls, and grows again."""
    kind, options = OPTIMIZERS[name]
    make = lambda net: (kind(net.parameters(), **options),
                        torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2))  # noqa: E731
    compare(scaled, make, 8, lambda k: (float("inf") if k in (2, 3) else 1.0 + k, unscale),
            **({"backend": "jit"} if name == "adamw-fused" else {}))


@pytest.mark.parametrize("name", ["sgd-fused", "adamw-fused"])
def test_fused_scaled_steps_are_one_graph(name):
    kind, options = OPTIMIZERS[name]
    make = lambda net: (kind(net.parameters(), **options),
                        torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2))  # noqa: E731
    compare(scaled, make, 6, lambda k: (float("nan") if k == 2 else 1.0, True), fullgraph=True)


def test_a_scaler_that_is_off_and_one_at_its_limit():
    compare(scaled_off, lambda net: (O.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)))
    largest = 3e38  # a scale that would be infinite does not grow
    compare(scaled, lambda net: (O.SGD(net.parameters(), lr=0.1),
                                 torch.amp.GradScaler("cpu", init_scale=largest, growth_interval=1)), 3,
            lambda k: (1e-38, False))


def scaled_off(net, optimizer, scaler):
    optimizer.zero_grad()
    loss = net(X).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), scaler.get_scale()


def test_gradients_that_were_accumulated_are_unscaled_once():
    def step(net, optimizer, scaler):
        optimizer.zero_grad(set_to_none=False)
        for part in X.chunk(3):
            scaler.scale(net(part).square().mean() / 3).backward()
        scaler.step(optimizer)
        scaler.update()
        return scaler._scale.clone()

    compare(step, lambda net: (O.AdamW(net.parameters(), fused=True),
                               torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)))


# ---- closures, groups, states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, options", [(O.SGD, {"lr": 0.1}), (O.AdamW, {}), (O.LBFGS, {"lr": 0.5, "max_iter": 3}),
                                           (O.LBFGS, {"max_iter": 4, "line_search_fn": "strong_wolfe"}), (O.Rprop, {})])
def test_closures(kind, options):
    def step(net, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = net(X.double()).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    compare(step, lambda net: (kind(net.double().parameters(), **options),), 2)


def plain(net, optimizer, set_to_none=True):
    optimizer.zero_grad(set_to_none=set_to_none)
    loss = F.mse_loss(net(X), X[:, :3])
    loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.02)
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("kind", [O.SGD, O.Adam, O.AdamW])
def test_groups(kind, set_to_none):
    """Groups with rates and decays of their own, parameters that get no gradient, and one that is frozen."""
    def make(net):
        net[0].bias.requires_grad_(False)
        extra = nn.Parameter(torch.ones(3))
        more = {"momentum": 0.9} if kind is O.SGD else {"betas": (0.8, 0.9)}
        return (kind([{"params": net[0].parameters(), "lr": 0.1},
                      {"params": [*net[2].parameters(), extra], "weight_decay": 0.3, **more}], lr=0.01),)

    compare(plain, make, 4, lambda k: (set_to_none,))


@pytest.mark.parametrize("kind", ["sgd", "adamw-foreach", "adamw-fused"])
def test_states_that_are_saved_and_loaded_midway(kind):
    cls, options = OPTIMIZERS[kind]
    step = jit.compile(plain, backend="eager")

    def run(fn):
        net = model()
        optimizer = cls(net.parameters(), **options)
        losses = []
        for k in range(6):
            losses.append(fn(net, optimizer))
            if k == 2:
                saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
            if k == 4:  # back to where it was
                net.load_state_dict(saved[1])
                optimizer.load_state_dict(saved[0])
        fresh = model()
        fresh.load_state_dict(net.state_dict())
        other = cls(fresh.parameters(), **options)
        other.load_state_dict(optimizer.state_dict())
        losses.append(fn(fresh, other))
        return losses, [p.detach() for p in fresh.parameters()], other.state_dict()

    same(run(step), run(plain))


SCHEDULERS = {
    "step": lambda o: O.lr_scheduler.StepLR(o, 2, 0.5), "cosine": lambda o: O.lr_scheduler.CosineAnnealingLR(o, 4),
    "one-cycle": lambda o: O.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "lambda": lambda o: O.lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)),
    "exponential": lambda o: O.lr_scheduler.ExponentialLR(o, 0.9),
    "chain": lambda o: O.lr_scheduler.SequentialLR(o, [O.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
                                                       O.lr_scheduler.CosineAnnealingLR(o, 4)], [2]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules(name, inside):
    """With several groups; the rate changes after each step, within the compiled function or without."""
    jit.reset()
    compiled = jit.compile(lambda net, optimizer, schedule: (plain(net, optimizer), inside and schedule.step())[0],
                           backend="eager")

    def run(fn):
        net = model()
        optimizer = O.AdamW([{"params": net[0].parameters(), "lr": 0.05}, {"params": net[2].parameters()}], lr=0.02)
        schedule = SCHEDULERS[name](optimizer)
        seen = []
        for _ in range(8):
            seen.append(compiled(net, optimizer, schedule) if fn is compiled else plain(net, optimizer))
            if fn is not compiled or not inside:
                schedule.step()
            seen.append(list(schedule.get_last_lr()))
        return seen, [p.detach() for p in net.parameters()]

    same(run(compiled), run(plain))


@pytest.mark.parametrize("scheduled", [False, True])
def test_steps_and_rates_compile_nothing_again(scheduled):
    def step(optimizer):
        optimizer.step()

    for kind, options in ((O.AdamW, {"foreach": True}), (O.AdamW, {"fused": True}), (O.SGD, {"momentum": 0.9})):
        jit.reset()
        net = model()
        optimizer = kind(net.parameters(), lr=0.01, **options)
        schedule = O.lr_scheduler.ExponentialLR(optimizer, 0.9)
        net(X).sum().backward()
        compiled = jit.compile(step, backend="eager", fullgraph=True)
        counts = []
        for _ in range(8):
            compiled(optimizer)
            if scheduled:
                schedule.step()
            counts.append(jit.compile_count())
        assert counts[-1] == counts[2], (kind, options, counts)


# ---- gradients of gradients ------------------------------------------------------------------------------------------


def penalty_by_backward(net, optimizer):
    optimizer.zero_grad()
    loss = net(X).square().mean()
    loss.backward(create_graph=True)
    norm = sum(p.grad.square().sum() for p in net.parameters())
    for p in net.parameters():
        p.grad = None
    (loss + norm).backward()
    optimizer.step()
    return loss.detach(), norm.detach()


def penalty_by_grad(net, optimizer):
    optimizer.zero_grad()
    x = X.clone().requires_grad_()
    gradient, = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    loss = ((gradient.norm(dim=1) - 1) ** 2).mean() + net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def hessian_product(net, optimizer):
    parameters = list(net.parameters())
    gradients = torch.autograd.grad(net(X).square().mean(), parameters, create_graph=True)
    products = torch.autograd.grad(sum((g * torch.ones_like(g)).sum() for g in gradients), parameters)
    return list(products)


def kept_for_later(net, optimizer):
    loss = net(X).square().mean()
    loss.backward(create_graph=True)
    total = sum(p.grad.sum() for p in net.parameters())
    return total


@pytest.mark.parametrize("options", [{"backend": "eager"}, {}])
@pytest.mark.parametrize("program", [penalty_by_backward, penalty_by_grad, hessian_product])
def test_gradients_of_gradients(program, options):
    compare(program, lambda net: (O.SGD(net.parameters(), lr=0.1),), 3, **options)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_that_stay_differentiable():
    """``backward(create_graph=True)`` leaves gradients with a history on the parameters."""
    def run(fn):
        net = model()
        total = fn(net, None)
        history = [p.grad.requires_grad for p in net.parameters()]
        found = torch.autograd.grad(total, list(net.parameters()), allow_unused=True)
        for p in net.parameters():
            p.grad = None
        return total.detach(), history, [f.detach() for f in found if f is not None]

    same(run(jit.compile(kept_for_later, backend="eager")), run(kept_for_later))


@pytest.mark.parametrize("name", ["cosine", "one-cycle", "lambda", "exponential"])
def test_schedules_inside_compile_few_times(name):
    """The step and its schedule are one graph, with another one where the schedule takes another formula."""
    jit.reset()

    def step(net, optimizer, schedule):
        loss = plain(net, optimizer)
        schedule.step()
        return loss

    net = model()
    optimizer = O.AdamW(net.parameters(), lr=0.02)
    schedule = SCHEDULERS[name](optimizer)
    compiled = jit.compile(step, backend="eager", fullgraph=True)
    start = jit.compile_count()
    for _ in range(8):
        compiled(net, optimizer, schedule)
    assert jit.compile_count() - start <= 3
