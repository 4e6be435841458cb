"""Gradients of captured programs against eager's: which results require them, where they stop, and what they are."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit

BACKENDS = ["eager", "jit"]
PROGRAMS = {}


def program(*shapes, frozen=(), **options):
    """A function of tensors of these shapes; those at the positions ``frozen`` do not require grad."""

    def add(fn):
        PROGRAMS[fn.__name__] = (fn, shapes, frozen, options)
        return fn

    return add


@program((3, 4), (4, 5))
def product(x, w):
    return (x @ w).sin().sum()


@program((3, 4), (3, 4))
def several_results(x, y):
    z = x * y
    return z, z.exp(), x + 1, [y.sum(0), {"k": (x - y).abs()}]


@program((3, 4), (3, 4), frozen=(0,))
def some_inputs_frozen(x, y):
    return x * 2, x * y


@program((3, 4), (3, 4))
def stops_under_no_grad(x, y):
    a = x * y
    with torch.no_grad():
        b, c = a * 2, y * 3
    return a * b + c, b, c * x


@program((3, 4))
def detached(x):
    y = x.exp()
    return y * y.detach(), x.detach() * 2, (x * 2).data


@program((3, 4), (3, 4))
def grad_mode_switched(x, y):
    with torch.no_grad():
        a = x + y
        with torch.enable_grad():
            b = x * y
    with torch.set_grad_enabled(False):
        c = b * 2
    return a, b, c, torch.is_grad_enabled()


@torch.no_grad()
def helper(x):
    return x.softmax(-1)


@program((3, 4))
def decorated_helper(x):
    return helper(x) * x


@program((3, 4), (4,))
def views(x, w):
    a = x.t()[1:3].reshape(-1, 2)
    b = x.view(2, 6).unsqueeze(0).expand(3, 2, 6)
    return (a * 2).sum() + (b * b).sum() + (x[..., 0] * w[:3]).sum() + x.diagonal().prod()


@program((3, 4), (4,))
def written_views(x, w):
    buffer = torch.zeros(3, 4)
    row = buffer[0]
    row.copy_(w)
    buffer[1] = x[1] * 2
    buffer[:, 2] *= 3
    return buffer, row, buffer.sum()


@program((3, 4), (3, 4))
def in_place_on_intermediates(x, y):
    z = x * 2
    z += y
    z.mul_(y).clamp_(-1, 1)
    return z, z.relu_()


@program((3, 4), (3, 4))
def in_place_through_views(x, y):
    z = x * 2
    z.mul_(y)
    z[0].add_(x[1])
    z[:, 1] = y[:, 0] * 3
    w = z.view(-1)
    w[2:5].zero_()
    return z, w


@program((4,), frozen=(0,))
def transforms(x):
    return (torch.func.jacrev(lambda v: v**2)(x), torch.func.grad(lambda v: v.sin().sum())(x),
            torch.func.hessian(lambda v: (v**3).sum())(x))


@program((3, 4))
def integers_and_masks(x):
    i = x.argmax(1)
    m = x > 0
    return (x.gather(1, i[:, None]), torch.where(m, x, -x), i, m, x.masked_fill(m, 0.0), x.topk(2).values,
            x.sort(descending=True)[0], x.round() + x.sign())


@program((5, 3), (3,), (3,))
def normalised(x, w, b):
    return (F.layer_norm(x, (3,), w, b), F.softmax(x, 0), x.log_softmax(-1), x.var(1), x.std(0), x.logsumexp(1),
            F.normalize(x))


@program((2, 3, 6, 6), (4, 3, 3, 3), (4,))
def convolved(x, w, b):
    y = F.conv2d(x, w, b, padding=1, stride=2)
    return (F.max_pool2d(y.relu(), 2), F.avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, 1),
            F.interpolate(x, scale_factor=2, mode="bilinear"))


@program((2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True), F.scaled_dot_product_attention(q, k, v)


@program((7, 3))
def embedded(w):
    return (F.embedding(torch.tensor([[0, 2], [2, 6]]), w), F.embedding(torch.tensor([1, 1]), w, padding_idx=1),
            w[torch.tensor([0, 0, 3])])


@program((4, 5))
def losses(x):
    target = torch.tensor([0, 4, 2, -100])
    return (F.cross_entropy(x, target), F.cross_entropy(x, target, label_smoothing=0.1, reduction="sum"),
            F.mse_loss(x, x.detach() + 1), F.smooth_l1_loss(x, torch.zeros(4, 5)))


@program((3, 4), (3, 4))
def joined(x, y):
    return (torch.cat([x, y, x], 1), torch.stack([x, y]).sum(0), F.pad(x, (1, 2)), x.flip(0), x.roll(1, 1),
            torch.chunk(y, 2, 1)[1], x.cumsum(1), torch.einsum("ij,kj->ik", x, y))


@program((3, 4), (3, 4))
def broken_in_the_middle(x, y):
    z = x * y
    jit.graph_break()
    w = z.exp() + x
    print("between", end="")
    return w * z, w


@program((3, 4))
def branch_on_values(x):
    y = x * 2
    if y.sum() > 1e6:
        return y
    return y.tanh() + x


@program((3, 4))
def loop_with_item(x):
    total = x.sum()
    n = int(total.detach().abs().item()) % 3 + 1
    for _ in range(n):
        x = x * 1.5
    return x


@program((3, 4), (4,))
def ties(x, w):
    z = torch.zeros(3, 4) * x
    return (z.amax(1), z.max(), torch.maximum(z, z * 2), z.abs(), z.relu(), z.clamp(0, 1), (z + 4).sqrt(),
            z.max(1).values, z.norm())


@program((3, 4))
def unused_and_constant(x):
    unused = x * 3  # noqa: F841
    return torch.zeros_like(x) + 1, x.new_ones(2), x.floor(), x.shape[0]


def leaves(shapes, frozen):
    torch.manual_seed(0)
    return [torch.randn(s).requires_grad_(i not in frozen) for i, s in enumerate(shapes)]


def tensors_in(v):
    if isinstance(v, torch.Tensor):
        yield v
    elif isinstance(v, dict):
        for e in v.values():
            yield from tensors_in(e)
    elif isinstance(v, (list, tuple)):
        for e in v:
            yield from tensors_in(e)


def outcome(fn, args):
    """(results, gradients of the inputs) with a fixed random weight for each result that requires grad."""
    results = list(tensors_in(fn(*args)))
    generator = torch.Generator().manual_seed(1)
    weighted = [(r, torch.randn(r.shape, generator=generator).to(r.dtype)) for r in results if r.requires_grad]
    if weighted:
        torch.autograd.backward([r for r, _ in weighted], [w for _, w in weighted])
    return results, [a.grad for a in args]


def same(got, want):
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (g is None) == (w is None), i
        if g is not None:
            assert g.shape == w.shape and g.dtype == w.dtype and g.requires_grad == w.requires_grad, (i, g, w)
            torch.testing.assert_close(g.detach(), w.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name, backend, capsys):
    fn, shapes, frozen, options = PROGRAMS[name]
    compiled = jit.compile(fn, backend=backend, **options)
    want = outcome(fn, leaves(shapes, frozen))
    for _ in range(2):
        got = outcome(compiled, leaves(shapes, frozen))
        same(got[0], want[0])
        same(got[1], want[1])
    with torch.no_grad():
        same(list(tensors_in(compiled(*leaves(shapes, frozen)))), list(tensors_in(fn(*leaves(shapes, frozen)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(4, 8)
        self.ln = nn.LayerNorm(8)
        self.last = nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        h = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.last(self.ln(F.gelu(self.first(h))))


def trained(compiler, steps=4, seed=0):
    torch.manual_seed(seed)
    net = Net()
    run = compiler(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    history = []
    for step in range(steps):
        x, y = torch.randn(4, 3, 5, 5), torch.randint(0, 2, (4,))
        loss = F.cross_entropy(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    return history, dict(net.state_dict())


@pytest.mark.parametrize("backend", BACKENDS)
def test_training(backend):
    want, got = trained(lambda m: m), trained(lambda m: jit.compile(m, backend=backend, fullgraph=True))
    same(got[0], want[0])
    assert got[1].keys() == want[1].keys()
    same(list(got[1].values()), list(want[1].values()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_graph_is_kept_and_freed(backend):
    compiled = jit.compile(lambda x: (x.exp() * x).sum(), backend=backend)
    x = torch.randn(4, requires_grad=True)
    loss = compiled(x)
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_the_gradient(backend):
    def fn(x):
        return (x.sin() * x).sum()

    def penalty(f):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        (g * g).sum().backward()
        return x.grad

    torch.testing.assert_close(penalty(jit.compile(fn, backend=backend)), penalty(fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_partial_results_and_hooks(backend):
    compiled = jit.compile(lambda x, y: (x * y, x + y, y * 2), backend=backend)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    a, b, c = compiled(x, y)
    seen = []
    b.register_hook(lambda g: seen.append(g.clone()) or g * 10)
    b.sum().backward()
    assert len(seen) == 1 and torch.equal(x.grad,
                                          torch.full((3,), 10.0)) and torch.equal(y.grad, torch.full((3,), 10.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_tensor_changed_in_place(backend):
    compiled = jit.compile(lambda x, w: x * w, backend=backend)
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    y = compiled(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_result_that_is_a_view_can_be_written(backend):
    def fn(x):
        y = x * 2
        return y, y[0], x.t()

    def run(f):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        y, row, t = f(x)
        row.mul_(3)
        (y * y).sum().backward(retain_graph=True)
        (t * 5).sum().backward()
        return [y, row, t, x.grad]

    same(run(jit.compile(fn, backend=backend)), run(fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_parameter_is_another_entry(backend):
    net = nn.Linear(3, 2)
    compiled = jit.compile(net, backend=backend)
    compiled(torch.ones(1, 3)).sum().backward()
    assert net.weight.grad is not None
    net.weight.requires_grad_(False)
    net.weight.grad = net.bias.grad = None
    compiled(torch.ones(1, 3)).sum().backward()
    assert net.weight.grad is None and net.bias.grad is not None
    net.requires_grad_(False)
    assert not compiled(torch.ones(1, 3)).requires_grad


@pytest.mark.parametrize("used", [[0], [1], [3], [0, 1], [0, 1, 2, 3]], ids=str)
def test_some_results_are_used(used):
    """The others have no gradient: nothing of theirs reaches the inputs, not as NaN either."""

    def fn(x, w, t):
        logits = F.linear(x.tanh(), w)
        return F.cross_entropy(logits, t), logits, x.sqrt(), x * 2

    t = torch.randint(0, 10, (16,))
    x, w = torch.rand(16, 8), torch.randn(10, 8)
    x[0] = 0  # sqrt has an infinite gradient there
    grads = []
    for f in (fn, jit.compile(fn)):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        results = f(*leaves, t)
        sum(results[k].sum() for k in used).backward()
        grads.append([v.grad for v in leaves])
    for want, got in zip(*grads):
        assert (want is None) == (got is None)
        if want is not None:
            torch.testing.assert_close(got, want)


def test_a_failing_backward_for_some_results_is_no_error(monkeypatch):
    from jit import compiling

    original = compiling.narrowed

    def fails(graph, absent):
        if absent:
            raise ValueError("mine")
        return original(graph, absent)

    monkeypatch.setattr(compiling, "narrowed", fails)
    x = torch.randn(4, requires_grad=True)
    f = jit.compile(lambda x: (x.sin(), x * 3))
    with jit.config.patch(strict=False), pytest.warns(UserWarning, match="ValueError: mine"):
        f(x)[1].sum().backward()
    assert x.grad.tolist() == [3] * 4


@pytest.mark.usefixtures("eager_numbers")
def test_random_numbers_are_not_drawn_again():
    f = jit.compile(lambda x: F.dropout(x, 0.5, True) * x)
    x = torch.randn(32, requires_grad=True)
    torch.manual_seed(0)
    y = f(x)
    torch.manual_seed(0)
    (want,) = torch.autograd.grad((F.dropout(x, 0.5, True) * x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], want)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x, create_graph=True)[0], want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_without_a_gradient(backend):
    def fn(x, w, b):
        return (*torch.native_layer_norm(x, (4,), w, b, 1e-5), *torch.linalg.lu(x @ x.T), torch.rand_like(x))

    compiled = jit.compile(fn, backend=backend)
    arguments = leaves(((4, 4), (4,), (4,)), ())
    assert [r.requires_grad for r in compiled(*arguments)] == [r.requires_grad for r in fn(*arguments)]
