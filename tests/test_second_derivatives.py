"""Gradients of gradients of compiled functions, against eager: values, which of them are defined, and what is
compiled."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit
from jit.second import _Second

POSITIVE = (torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.3).requires_grad_()


@pytest.fixture
def compiled_only(monkeypatch):
    def by_steps(self, *given):
        raise AssertionError(f"op by op: {self.compiled}")

    monkeypatch.setattr(_Second, "by_steps", by_steps)


def leaves(*shapes, seed=1, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*s, dtype=dtype, generator=g).requires_grad_() for s in shapes]


def tensors_of(results):
    return results if isinstance(results, (tuple, list)) else (results,)


def derivatives(fn, sources, order=2, seed=0):
    """What ``fn`` and its derivatives up to ``order`` give: each as (requires_grad, value) or None."""
    torch.manual_seed(seed)
    sources = list(sources)
    values = [v for v in tensors_of(fn(*sources)) if v.requires_grad]
    found = [values]
    generator = torch.Generator().manual_seed(seed + 1)
    for k in range(order):
        tangents = [torch.randn(v.shape, dtype=v.dtype, generator=generator).requires_grad_(k == 0) for v in values]
        if not values:
            break
        gradients = torch.autograd.grad(values, sources, tangents, create_graph=k + 1 < order, allow_unused=True)
        found.append(gradients)
        values = [g for g in gradients if g is not None and g.requires_grad]
        if k == 0:
            sources += tangents
    return [[None if v is None else (v.requires_grad, v.detach()) for v in vs] for vs in found]


def compare(got, want, rtol=1e-9, atol=1e-9):
    assert [[None if v is None else v[0] for v in vs] for vs in got] == [
        [None if v is None else v[0] for v in vs] for vs in want]
    for gs, ws in zip(got, want, strict=True):
        for g, w in zip(gs, ws):
            if w is not None:
                torch.testing.assert_close(g[1], w[1], rtol=rtol, atol=atol, equal_nan=True)


def check(fn, *sources, order=2, dynamic=None, **tolerance):
    compare(derivatives(jit.compile(fn, fullgraph=True, dynamic=dynamic), sources, order),
            derivatives(fn, sources, order), **tolerance)


UNARY = """abs acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p log2
    logit neg reciprocal rsqrt sigmoid sin sinc sinh sqrt square tan tanh relu digamma i0""".split()
ACTIVATIONS = """celu elu gelu hardshrink hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus
    softshrink softsign tanhshrink""".split()


@pytest.mark.parametrize("name", UNARY)
def test_functions(name):
    x, = leaves((3, 4))
    offset = 1.1 if name == "acosh" else 0.0
    check(lambda x: getattr(torch, name)(x.sigmoid() + offset), x)
    if name not in ("acosh", "logit", "erfinv"):
        check(lambda x: getattr(torch, name)(x), POSITIVE)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    check(getattr(F, name), *leaves((3, 4)))


OPS = {
    "add": (lambda x, y: x + y, (3, 4), (4,)),
    "mul": (lambda x, y: x * y, (3, 4), (4,)),
    "div": (lambda x, y: x / y, (3, 4), (4,)),
    "pow": (lambda x, y: x.abs() ** y, (3, 4), (3, 1)),
    "cube": (lambda x: x**3, (3, 4)),
    "square_root": (lambda x: x.abs() ** 0.5, (3, 4)),
    "atan2": (torch.atan2, (3, 4), (3, 4)),
    "hypot": (torch.hypot, (3, 4), (3, 4)),
    "maximum": (torch.maximum, (3, 4), (3, 4)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5) * x, (3, 4)),
    "where": (lambda x, y: torch.where(x > 0, x * y, y**2), (3, 4), (3, 4)),
    "lerp": (lambda x, y, w: torch.lerp(x, y, w), (3,), (3,), (3,)),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), (3,), (3,), (3,)),
    "sum": (lambda x: x.sum(1) * x.sum(0, keepdim=True)[0, :3], (3, 4)),
    "mean": (lambda x: x.mean(0) ** 2, (3, 4)),
    "var": (lambda x: x.var(1), (3, 4)),
    "std": (lambda x: x.std(), (3, 4)),
    "norm": (lambda x: x.norm(2, dim=1), (3, 4)),
    "frobenius": (lambda x: torch.linalg.norm(x), (3, 4)),
    "amax": (lambda x: x.amax(1) * x.amin(0)[:3], (3, 4)),
    "max": (lambda x: x.max(1).values * 2, (3, 4)),
    "logsumexp": (lambda x: x.logsumexp(1), (3, 4)),
    "softmax": (lambda x: x.softmax(1), (3, 4)),
    "log_softmax": (lambda x: x.log_softmax(1), (3, 4)),
    "cumsum": (lambda x: x.cumsum(1) ** 2, (3, 4)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (3, 4), (4,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3), (4,), (4,)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (5, 4), (4,), (4,)),
    "instance_norm": (lambda x: F.instance_norm(x), (2, 3, 5)),
    "linear": (F.linear, (3, 4), (5, 4), (5,)),
    "mm": (torch.mm, (3, 4), (4, 5)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "baddbmm": (torch.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "mv": (torch.mv, (3, 4), (4,)),
    "dot": (torch.dot, (4,), (4,)),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (3, 4), (5, 4)),
    "matmul": (torch.matmul, (2, 3, 4), (4, 5)),
    "attention_by_products": (lambda q, k, v: ((q @ k.mT) / 2).softmax(-1) @ v, (2, 3, 4), (2, 3, 4), (2, 3, 4)),
    "conv1d": (F.conv1d, (2, 3, 8), (4, 3, 3), (4,)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (2, 3, 6, 6), (4, 3, 3, 3), (4,)),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (2, 4, 6, 6), (4, 2, 2, 2)),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), (2, 3, 4, 4), (3, 2, 3, 3), (2,)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2) ** 2, (2, 3, 4, 4)),
    "max_pool": (lambda x: F.max_pool2d(x, 2) ** 2, (2, 3, 4, 4)),
    "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x, 2) ** 2, (2, 3, 5, 5)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") ** 2, (2, 3, 4, 4)),
    "pad": (lambda x: F.pad(x, (1, 2)) ** 2, (3, 4)),
    "views": (lambda x: (x.view(2, 6).t() * x.movedim(0, 1).sum()).flip(0), (3, 4)),
    "slices": (lambda x: x[:, 1:] * x[:, :-1] * x[::2].sum(), (3, 4)),
    "cat": (lambda x, y: torch.cat([x * y, y]).exp().sum(0) ** 2, (3, 4), (3, 4)),
    "index": (lambda x: x[torch.tensor([0, 2, 2])] ** 2, (3, 4)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 0], [1, 3], [2, 2]])) ** 2, (3, 4)),
    "embedding": (lambda w: F.embedding(torch.tensor([0, 2, 2]), w) ** 2, (3, 4)),
    "scatter_add": (lambda x, y: x.scatter_add(1, torch.tensor([[0, 0], [1, 3], [2, 2]]), y) ** 2, (3, 4), (3, 2)),
    "index_put": (lambda x, y: x.index_put((torch.tensor([0, 1]),), y) ** 2, (3, 4), (2, 4)),
    "sort": (lambda x: x.sort(1).values ** 2, (3, 4)),
    "topk": (lambda x: x.topk(2).values ** 2, (3, 4)),
    "tril": (lambda x: x.tril() ** 2, (3, 4)),
    "diagonal": (lambda x: x.diagonal() ** 2, (3, 4)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 3])), (3, 4)),
    "mse": (lambda x, y: F.mse_loss(x, y), (3, 4), (3, 4)),
    "smooth_l1": (lambda x, y: F.smooth_l1_loss(x, y), (3, 4), (3, 4)),
    "bce_logits": (lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(3, 4, dtype=x.dtype)), (3, 4)),
    "kl_div": (lambda x: F.kl_div(x.log_softmax(1), torch.full((3, 4), 0.25, dtype=x.dtype), reduction="batchmean"),
               (3, 4)),
    "cosine_similarity": (F.cosine_similarity, (3, 4), (3, 4)),
    "detached": (lambda x, y: x * y.detach() * y, (3, 4), (3, 4)),
    "fork": (lambda x, y: (x * y, x.sum(), y * 2), (3, 4), (3, 4)),
    "glu": (lambda x: F.glu(x), (3, 4)),
    "prelu": (F.prelu, (3, 4), (1,)),
}
# What has no rule in a backward.
BY_STEPS = {
    "cumprod": (lambda x: x.cumprod(1), (3, 4)),
    "det": (torch.linalg.det, (3, 3)),
    "reflection": (lambda x: F.pad(x, (1, 2), mode="reflect") ** 2, (2, 3, 4)),
    "unfold": (lambda x: x.unfold(1, 2, 1) ** 2, (3, 4)),
    "sign": (lambda x: x.tanh().sign() * x, (3, 4)),
    "norm_3": (lambda x: x.norm(3, dim=1), (3, 4)),
    "floor": (lambda x: (x * 3).floor() * x, (3, 4)),
}


@pytest.mark.parametrize("name", OPS)
def test_operators(name, compiled_only):
    fn, *shapes = OPS[name]
    check(fn, *leaves(*shapes))


@pytest.mark.parametrize("name", BY_STEPS)
def test_op_by_op(name):
    fn, *shapes = BY_STEPS[name]
    check(fn, *leaves(*shapes))


def mlp(x, w, v):
    h = torch.tanh(x @ w)
    return (h * h.sigmoid()) @ v


MLP = (3, 4), (4, 6), (6, 2)


def test_gradgradcheck(compiled_only):
    assert torch.autograd.gradgradcheck(jit.compile(mlp, fullgraph=True), leaves(*MLP))
    assert torch.autograd.gradgradcheck(jit.compile(lambda x, w: F.conv2d(x, w).tanh().mean((2, 3)).softmax(1),
                                                    fullgraph=True), leaves((1, 2, 4, 4), (3, 2, 2, 2)))


def test_third_and_fourth_order(compiled_only):
    check(mlp, *leaves(*MLP), order=4)
    check(lambda x: (x.sin() * x).logsumexp(1), *leaves((3, 4)), order=3)


def test_where_a_higher_order_has_no_rule():
    """The second derivative of a convolution is compiled, of which the third is not."""
    check(lambda x, w: F.conv1d(x, w).tanh().sum(1), *leaves((1, 2, 5), (3, 2, 2)), order=3)
    check(lambda x: F.interpolate(x.tanh(), scale_factor=2, mode="linear") ** 2, *leaves((1, 2, 4)), order=3)


@pytest.mark.parametrize("like_eager", [True, False])
def test_dropout(like_eager, compiled_only):
    """Nothing is drawn again: the gradients' gradients have the forward's mask."""
    with jit.config.patch(fallback_random=like_eager):
        if like_eager:
            check(lambda x, w: F.dropout((x @ w).tanh(), 0.5) * x, *leaves((8, 8), (8, 8)))
            check(lambda x: (F.dropout(x, 0.3).exp() * torch.rand_like(x)).sum(1), *leaves((8, 8)), order=3)
        compiled = jit.compile(lambda x: F.dropout(x, 0.5) ** 3, fullgraph=True)
        x, = leaves((8, 8))
        y = compiled(x)
        mask = (y != 0).double()
        assert 0 < mask.mean() < 1
        for order in range(2):
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (g2,) = torch.autograd.grad(g.sum(), x, create_graph=True)
            (g3,) = torch.autograd.grad(g2.sum(), x)
            torch.testing.assert_close((g, g2, g3), (24 * mask * x**2, 48 * mask * x, 48 * mask))


def test_one_plan_for_all_sizes(compiled_only):
    compiled = jit.compile(mlp, dynamic=True, fullgraph=True)
    for n in (5, 3, 7):
        sources = leaves((n, 4), (4, 6), (6, 2), seed=n)
        compare(derivatives(compiled, sources), derivatives(mlp, sources))


@pytest.mark.parametrize("fn", [lambda x, n: (x.cumsum(0) * n).softmax(0) ** 2,
                                lambda x, n: (torch.cat([x * n, x.sin()]).view(2, -1).sum(0)) ** 3])
def test_numbers_and_symbolic_sizes(fn, compiled_only):
    compiled = jit.compile(fn, dynamic=True, fullgraph=True)
    for n in (4, 6, 9):
        sources = leaves((n,), seed=n)
        compare(derivatives(lambda x: compiled(x, n), sources), derivatives(lambda x: fn(x, n), sources))


def test_inputs_that_are_changed_in_place(compiled_only):
    def fn(x, state):
        z = state.sum() + x  # which keeps nothing
        state.mul_(2).add_(1)
        return (z * state).sin() * state * torch.rand_like(x)

    def run(f):
        return derivatives(lambda x: f(x, torch.linspace(1, 2, 4, dtype=torch.float64)), leaves((3, 4)))

    with jit.config.patch(fallback_random=True):
        compare(run(jit.compile(fn, fullgraph=True)), run(fn))


def test_batch_norm_with_running_statistics(compiled_only):
    def run(wrapped):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(4).double()
        f = jit.compile(norm) if wrapped else norm
        return derivatives(lambda x: f(x).tanh(), leaves((5, 4)))

    compare(run(True), run(False))


def test_only_what_is_asked_for():
    """Weights' gradients are not computed where the input's is wanted, and constants get none."""
    calls = []
    fn = jit.compile(mlp, fullgraph=True)
    x, w, v = leaves(*MLP)
    y = fn(x, w, v)
    second = _Second.gradients

    def gradients(self, present, wanted, needs, first):
        calls.append((present, wanted, needs))
        return second(self, present, wanted, needs, first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Second, "gradients", gradients)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (g2,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert calls == [((True,), (True, False, False), (True, True, True, False))] and torch.equal(g, g2)
    (g * g).sum().backward()
    wx, ww, wv = (t.detach().requires_grad_() for t in (x, w, v))
    (want,) = torch.autograd.grad(mlp(wx, ww, wv).sum(), wx, create_graph=True)
    (want * want).sum().backward()
    for a, b in zip((x, w, v), (wx, ww, wv)):
        torch.testing.assert_close(a.grad, b.grad)


def test_linear_gradients_need_no_graph():
    f = jit.compile(lambda x, c: (x * c).sum(), fullgraph=True)
    x, = leaves((4,))
    c = torch.arange(4.0, dtype=torch.float64)
    (g,) = torch.autograd.grad(f(x, c), x, create_graph=True)
    assert torch.equal(g, c) and not g.requires_grad


def test_some_results_and_views():
    def fn(x, y):
        a = x.sin() * y
        return a, a[0], y.exp() * x

    def run(f):
        x, y = leaves((3, 4), (3, 4))
        a, b, c = f(x, y)
        (g,) = torch.autograd.grad(b.sum() + c.sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.pow(2).sum(), (x, y), retain_graph=True),
                *torch.autograd.grad(a.sum() * g.sum(), (x, y))]

    torch.testing.assert_close(run(jit.compile(fn, fullgraph=True)), run(fn))


def test_tangents_of_other_strides():
    """A tangent that is laid out in another way, and one that comes from a sum, which has no memory of its own."""
    fn = lambda x: (x.t() * x.sum()).flip(0)  # noqa: E731

    def run(f):
        x, t = leaves((2, 3), (3, 2))
        (g,) = torch.autograd.grad(f(x), x, t, create_graph=True)
        (h,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return [*torch.autograd.grad(g.pow(2).sum(), (x, t)), *torch.autograd.grad(h.pow(2).sum(), x)]

    torch.testing.assert_close(run(jit.compile(fn)), run(fn))


def test_saved_values_that_were_written_to():
    f = jit.compile(lambda x, y: (x * y).exp(), fullgraph=True)
    x, y = leaves((4,), (4,))
    h = x * 1
    z = f(h, y)
    with torch.no_grad():
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(z.sum(), y, create_graph=True)
    g = jit.compile(lambda x, y: x + y.exp(), fullgraph=True)
    h = x * 1
    z = g(h, y)
    with torch.no_grad():
        h.add_(1)  # its value is not needed
    (dy,) = torch.autograd.grad(z.sum(), y, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(dy.sum(), y)[0], y.exp())


def test_saved_tensor_hooks():
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t.clone()

    f = jit.compile(mlp, fullgraph=True)
    sources = leaves(*MLP)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        got = derivatives(f, sources)
    compare(got, derivatives(mlp, sources))
    assert packed


def test_gradient_penalty_of_a_module(compiled_only):
    """A critic's penalty, as in training: gradients for weights through the gradient for the input."""

    def run(wrapped):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(),
                            nn.LayerNorm(16), nn.Linear(16, 1)).double()
        f = jit.compile(net) if wrapped else net
        x = torch.randn(3, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        loss = f(x).mean() + ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()
        loss.backward()
        return [loss.detach(), x.grad, *[p.grad for p in net.parameters()]]

    for got, want in zip(run(True), run(False), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want)


def test_a_function_of_ones_own():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    check(lambda x: Square.apply(x.sin()).exp(), *leaves((3, 4)))


def test_what_cannot_be_done_says_why():
    def fn(x, s):
        y = torch.linalg.det(x + s)  # of whose gradient the gradient is computed op by op
        s.mul_(2)
        return y

    x, = leaves((3, 3))
    z = jit.compile(fn, fullgraph=True)(x, torch.ones(3, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="changes an input in place.*hint: clone"):
        torch.autograd.grad(z, x, create_graph=True)


@pytest.mark.parametrize("fn", [lambda x: x.prod(1), lambda x: x.prod() + x[2].prod(), lambda x: x.cumprod(1)],
                         ids=["rows", "all", "cumprod"])
def test_products_with_zeros(fn):
    """Up to the second derivative."""
    def second(fn):
        x = torch.tensor([[1.0, 0, 2], [0, 0, 3], [1, 2, 4]], dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return g.detach(), torch.autograd.grad((g * torch.arange(1.0, 10).view(3, 3)).sum(), x)[0]

    for got, want in zip(second(jit.compile(fn)), second(fn)):
        torch.testing.assert_close(got, want)
