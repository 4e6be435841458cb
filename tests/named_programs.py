"""Ordinary programs of an importable module, for tests of the names of what their entries hold: each makes what is
called and gives (compiled, arguments), the same in every process."""

import enum
import functools

import torch
import torch.nn.functional as F
from torch import nn

import jit

SCALE = torch.full((4,), 2.0)
TABLE = {"shift": torch.ones(4), "steps": [1, 2, 3]}


class Kind(enum.Enum):
    PLAIN = 1
    DOUBLED = 2


class Settings:
    factor = 3

    def __init__(self):
        self.kind, self.limits = Kind.DOUBLED, (0.5, 2.0)


SETTINGS = Settings()


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, 8), nn.Linear(8, width)
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]))

    def forward(self, x):
        return x + self.second(F.gelu(self.first(self.norm(x)))) * self.mask


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Parameter(torch.ones(4, 2))
        self.options = {"scale": 2.0}

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x @ self.head * self.options["scale"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def pointwise(x):
    return torch.relu(x) * SCALE + 1


def containers(x):
    return {"a": x + TABLE["shift"], "b": [x * k for k in TABLE["steps"]]}


def objects(x):
    if SETTINGS.kind is Kind.DOUBLED:
        x = x * 2
    return x.clamp(*SETTINGS.limits) * SETTINGS.factor


def breaks(x):
    y = x * 2
    print(end="")
    z = y + 1
    for k in range(2):
        print(end="")
        z = z * k + y
    return z


def callee(x, k=2):
    print(end="")
    return x * k


def breaks_in_a_callee(x):
    return callee(x + 1) * callee(x, k=3)


def numbered(x):
    for k in range(3):
        yield x * k


def generators(x):
    return sum(numbered(x))


def closures(x):
    scale = x.sum()

    def scaled(y):
        return y * scale

    return scaled(x), sorted([3, 1, 2], key=lambda k: -k), scaled


def functions_of_tensors(x):
    return torch.vmap(lambda row: row.sin() * 2)(x[None])


def random_numbers(x):
    return F.dropout(x, 0.5) + torch.rand(4)


def writes(x):
    x.add_(1)
    TABLE["count"] = TABLE.get("count", 0) + 1
    return x[1:].mul_(2)


def assumption(x):
    if bool((x > 100).any()):
        raise ValueError("too large")
    return x * 2


def guess(x, n):
    return x[: int(n.sum())] * 2


def mixed_types(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x[None] @ x[:, None]


def custom_gradient(x):
    y = x.detach().requires_grad_()
    return torch.autograd.grad(Cube.apply(y).sum(), y)[0]


def partial_functions(x):
    return functools.partial(torch.add, alpha=3)(x, x)


@functools.lru_cache
def remembered(k):
    return k * 2


def cached(x):
    return x * remembered(3)


def errors(x):
    try:
        return x.view(7)
    except RuntimeError:
        return x


def training_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _function(fn, *arguments, calls=1):
    def make():
        return jit.compile(fn), [arguments] * calls

    return make


def _module(cls, *sizes, training=False):
    def make():
        torch.manual_seed(0)
        module = cls()
        return jit.compile(module if training else module.eval().requires_grad_(False)), [(torch.ones(*sizes),)]

    return make


def _training(kind, **options):
    def make():
        torch.manual_seed(0)
        model = Model()
        arguments = model, kind(model.parameters(), **options), torch.ones(3, 4)
        return jit.compile(training_step), [arguments] * 3

    return make


X = torch.linspace(-1, 1, 4)
PROGRAMS = {
    **{fn.__name__: _function(fn, X) for fn in (
        pointwise, containers, objects, breaks, breaks_in_a_callee, generators, closures, functions_of_tensors,
        random_numbers, assumption, mixed_types, custom_gradient, partial_functions, cached, errors)},
    "writes": _function(writes, X.clone()),
    "guess": _function(guess, X, torch.tensor([1, 2])),
    "a_compiled_generator": _function(numbered, X),
    "sizes": lambda: (jit.compile(pointwise_of_any_size), [(torch.ones(n),) for n in (4, 5, 6)]),
    "numbers": lambda: (jit.compile(times), [(X, k / 4) for k in range(1, 4)]),
    "model": _module(Model, 3, 4),
    "model_that_is_trained": _module(Model, 3, 4, training=True),
    "attention": _module(Attention, 2, 5, 8),
    "sgd": _training(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": _training(torch.optim.AdamW, lr=0.1),
}  # fmt: skip


def pointwise_of_any_size(x):
    return x.reshape(-1, 1).expand(-1, 2).sum(0) + x.shape[0]


def times(x, k):
    return x * k + k**2
