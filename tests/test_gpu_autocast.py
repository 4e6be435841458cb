"""``torch.autocast("cuda")`` and gradient scaling on a GPU: a small transformer and a convolutional network against
eager, forward, gradients and whole steps."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HALF = [torch.bfloat16, torch.float16]


class Block(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(n, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


def transformer():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 64), Block(), Block(), nn.LayerNorm(64), nn.Linear(64, 50)).cuda()


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(32, 10)).cuda()


def words():
    x = torch.randint(50, (4, 32), generator=torch.Generator().manual_seed(1)).cuda()
    return x, x.roll(1, 1)


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, 16, 16, generator=generator).cuda(), torch.arange(8).cuda()


MODELS = {"transformer": (transformer, words), "convnet": (convnet, images)}


def loss_of(model, x, y):
    out = model(x)
    return out, F.cross_entropy(out.flatten(0, -2), y.flatten())


def error(got, want) -> float:
    """Largest difference over the largest magnitude."""
    return ((got.float() - want.float()).abs().max() / want.float().abs().max().clamp(min=1e-6)).item()


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("low", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_gradients(name, low, around):
    """As near to a float32 run as eager's autocast is, and the same dtypes."""
    make, data = MODELS[name]
    x, y = data()

    def inside(model, x, y):
        with torch.autocast("cuda", low, enabled=not around):
            return loss_of(model, x, y)

    def run(fn, context):
        model = make()
        with context:
            out, loss = fn(model, x, y)
        (loss * 64).backward()
        return out, loss, [p.grad for p in model.parameters()]

    exact = run(loss_of, contextlib.nullcontext())
    context = (lambda: torch.autocast("cuda", low)) if around else contextlib.nullcontext
    program = loss_of if around else inside
    want, got = run(program, context()), run(jit.compile(program), context())
    assert got[0].dtype is want[0].dtype and got[1].dtype is want[1].dtype and got[0].stride() == want[0].stride()
    slack = 2e-2 if low is torch.bfloat16 else 4e-3
    for g, w, e in zip((*got[:2], *got[2]), (*want[:2], *want[2]), (*exact[:2], *exact[2]), strict=True):
        assert g.dtype is w.dtype
        assert error(g, e) <= 2 * error(w, e) + slack


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("low", HALF)
def test_steps_with_a_scaler(low, fused, whole):
    """Losses and scales over steps, one of which is skipped because its gradients are infinite; the forward alone or
    the whole step compiled."""
    def step(model, optimizer, scaler, x, y, factor):
        optimizer.zero_grad()
        with torch.autocast("cuda", low):
            loss = loss_of(model, x, y)[1] * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def run(compiled):
        model = transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)
        fn = jit.compile(step) if compiled and whole else step
        forward = jit.compile(model) if compiled and not whole else model
        x, y = words()
        seen = []
        for k in range(6):
            seen.append((fn(forward, optimizer, scaler, x, y, float("inf") if k == 2 else 1.0).item(),
                         scaler.get_scale()))
        return seen, [p.detach() for p in model.parameters()]

    (got, ours), (want, theirs) = run(True), run(False)
    assert [s for _, s in got] == [s for _, s in want]
    for (g, _), (w, _) in zip(got, want, strict=True):
        assert g == w or abs(g - w) < 3e-2 * abs(w)
    for g, w in zip(ours, theirs, strict=True):
        assert torch.isfinite(g).all() and (g - w).abs().max() < 2e-2


POLICIES = {
    "lower": lambda x, h: (x @ h.t(), F.linear(x, x), torch.bmm(x[None], h.t()[None]), torch.mm(h, x.t())),
    "float32": lambda x, h: (h.exp(), h.softmax(-1), h.sum(), h.cumsum(0), F.layer_norm(h, (8,)), h.pow(2), h.norm(),
                             F.mse_loss(h, x), F.cross_entropy(h, torch.arange(8, device="cuda")), h.rsqrt(),
                             F.softplus(h)),
    "promote": lambda x, h: (torch.addcmul(h, h, x), torch.atan2(h, h), torch.dot(h[0], x[0]),
                             torch.cross(h[:, :3], x[:, :3], dim=1),
                             h.scatter_add(0, torch.zeros(1, 8, dtype=torch.int64, device="cuda"), x[:1].to(h.dtype))),
    "untouched": lambda x, h: (h + h, h * x, F.gelu(h), torch.cat([h, h]), torch.stack([h, x.to(h.dtype)]), h.sigmoid(),
                               h.max(), h.mean()),
    "out": lambda x, h: (torch.mm(x, x, out=torch.empty(8, 8, device="cuda")), x.clone().addmm_(x, x)),
}


@pytest.mark.parametrize("low", HALF)
@pytest.mark.parametrize("name", POLICIES)
def test_policies(name, low):
    x = torch.rand(8, 8, generator=torch.Generator().manual_seed(2)).cuda()
    h = x.to(low)
    fn = POLICIES[name]
    compiled = jit.compile(fn)
    with torch.autocast("cuda", low):
        want, got = fn(x, h), compiled(x, h)
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype and g.stride() == w.stride()
        assert error(g, w) < (2e-2 if low is torch.bfloat16 else 3e-3)
