"""Rows of benchmarks/ecosystem.py: ways in which people train, with PyTorch alone."""

from __future__ import annotations

import copy

import torch
from _ecosystem_common import integers, learning, normal, row
from _ecosystem_patterns import small_net
from torch import nn
from torch.nn import functional as F


def state_of(model):
    return [p.detach() for p in model.parameters()]


def _step_inside(make, schedule=None):
    """A row in which the whole step is compiled, the optimizer's included; the schedule's step is outside."""
    def build(device, wrap):
        model = small_net(device)
        optimizer = make(model.parameters())
        schedules = schedule(optimizer) if schedule else None

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        program = wrap(step)

        def run(i):
            loss = program(normal(device, 32 + i, 32, seed=i), integers(device, 8, 32 + i, seed=i))
            if schedules is not None:
                schedules.step()
            return loss, state_of(model)

        return run
    return build


def _one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, 10**6)


row("optimizer: AdamW with OneCycleLR, the step compiled")(
    _step_inside(lambda p: torch.optim.AdamW(p, 1e-3), _one_cycle))
row("optimizer: SGD with momentum and cosine annealing, the step compiled")(
    _step_inside(lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, weight_decay=1e-4),
                 lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10**5)))
row("optimizer: RMSprop, the step compiled")(_step_inside(lambda p: torch.optim.RMSprop(p, 1e-3)))
row("optimizer: Adagrad, the step compiled")(_step_inside(lambda p: torch.optim.Adagrad(p, 1e-2)))
row("optimizer: NAdam, the step compiled")(_step_inside(lambda p: torch.optim.NAdam(p, 1e-3)))


@row("optimizer: the schedule's step compiled too")
def schedule_inside(device, wrap):
    model = small_net(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.01 * step))

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    program = wrap(step)

    def run(i):
        return program(normal(device, 32, 32, seed=i), integers(device, 8, 32, seed=i)), state_of(model)

    return run


@row("optimizer: LBFGS with a closure, the closure compiled")
def lbfgs(device, wrap):
    model = small_net(device, 8, 16, 2)
    first = copy.deepcopy(model.state_dict())
    compute = wrap(lambda x, y: F.mse_loss(model(x), y))

    def run(i):
        # From the same weights each time: how often the closure is called depends on them.
        model.load_state_dict(first)
        optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
        x, y = normal(device, 32, 8, seed=i), normal(device, 32, 2, seed=i + 50)

        def closure():
            optimizer.zero_grad()
            loss = compute(x, y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return run


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                                  nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def forward(self, x):
        return self.body(x)


def conv_net(device):
    torch.manual_seed(0)
    return ConvNet().to(device)


@row("DataLoader loop: clip_grad_norm, GradScaler, autocast")
def loader_loop(device, wrap):
    model = conv_net(device)
    program = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    images, labels = normal(device, 72, 3, 16, 16), integers(device, 10, 72)

    def run(i):
        losses = []
        # The last batch of each pass is smaller, and its size another one for each i.
        data = torch.utils.data.TensorDataset(images[:48 + i], labels[:48 + i])
        for x, y in torch.utils.data.DataLoader(data, batch_size=16):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16 if device == "cpu" else torch.float16):
                loss = F.cross_entropy(program(x).float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach().bfloat16())
        return losses

    return run


@row("the whole step compiled: autocast, clip_grad_norm, AdamW")
def whole_step(device, wrap):
    model = conv_net(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.bfloat16(), norm.bfloat16()

    program = wrap(step)
    return lambda i: program(normal(device, 16 + i, 3, 16, 16, seed=i), integers(device, 10, 16 + i, seed=i))


@row("EMA of the weights (AveragedModel)")
def ema(device, wrap):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = small_net(device)
    program = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averaged_program = wrap(averaged)

    def run(i):
        optimizer.zero_grad()
        x, y = normal(device, 32 + i, 32, seed=i), integers(device, 8, 32 + i, seed=i)
        loss = F.cross_entropy(program(x), y)
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
        with torch.no_grad():
            return loss, averaged_program(x)

    return run


@row("EMA by hand inside the compiled step")
def ema_inside(device, wrap):
    model = small_net(device)
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def step(x):
        with torch.no_grad():
            target = teacher(x)
        loss = F.mse_loss(model(x + 0.1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), model.parameters()):
                a.lerp_(b, 0.01)
        return loss

    program = wrap(step)

    def run(i):
        return program(normal(device, 32 + i, 32, seed=i)), state_of(teacher)

    return run


@row("gradient accumulation")
def accumulation(device, wrap):
    model = small_net(device)
    program = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def run(i):
        optimizer.zero_grad()
        for k in range(4):
            loss = F.cross_entropy(program(normal(device, 8 + i, 32, seed=i + 20 * k)),
                                   integers(device, 8, 8 + i, seed=i)) / 4
            loss.backward()
        optimizer.step()
        return loss, state_of(model)

    return run


@row("a GAN with a gradient penalty (create_graph)")
def gradient_penalty(device, wrap):
    critic, generator = small_net(device, 16, 64, 1), small_net(device, 8, 64, 16, seed=1)

    def call(real, noise, mix):
        fake = generator(noise)
        between = (mix * real + (1 - mix) * fake).detach().requires_grad_()
        slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    program = wrap(call)
    return learning(nn.ModuleList([critic, generator]),
                    lambda i: program(normal(device, 16 + i, 16, seed=i), normal(device, 16 + i, 8, seed=i + 30),
                                      normal(device, 16 + i, 1, seed=i + 60).sigmoid()))


@row("activation checkpointing")
def checkpointing(device, wrap):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
                            for _ in range(4)]).to(device)

    def call(x):
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x.square().mean()

    program = wrap(call)
    return learning(blocks, lambda i: program(normal(device, 32 + i, 64, seed=i)))


@row("parametrizations: weight norm and spectral norm")
def parametrized(device, wrap):
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(32, 64)), nn.ReLU(),
                          nn.utils.parametrizations.spectral_norm(nn.Linear(64, 8))).to(device)
    program = wrap(model)
    return learning(model, lambda i: program(normal(device, 16 + i, 32, seed=i)).square().mean())


@row("contrastive loss with a queue (MoCo)")
def queue(device, wrap):
    class Contrast(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net(device, 32, 64, 16)
            self.register_buffer("queue", F.normalize(normal(device, 16, 128), dim=0))
            self.at = 0

        def forward(self, x, y):
            q, k = F.normalize(self.net(x), dim=1), F.normalize(self.net(y), dim=1).detach()
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.07
            self.queue[:, self.at:self.at + len(k)] = k.T
            self.at = (self.at + len(k)) % 128
            return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=x.device))

    model = Contrast()
    program = wrap(model)
    return learning(model, lambda i: program(normal(device, 16, 32, seed=i), normal(device, 16, 32, seed=i + 40)))
