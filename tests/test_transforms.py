"""``torch.func`` in compiled functions: one graph, and eager's results."""

import pytest
import torch
import torch.nn.functional as F
from torch import func, nn
from torch.func import (
    functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap,
)
from torch.utils._pytree import tree_leaves, tree_map

import jit

torch.manual_seed(0)
X, Y, V = torch.randn(5, 4), torch.randn(5, 4), torch.randn(4)
W, B = torch.randn(3, 4), torch.randn(3)
NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
PARAMETERS = {k: v.detach() for k, v in NET.named_parameters()}
IMAGES, KERNEL = torch.randn(3, 2, 6, 6), torch.randn(4, 2, 3, 3)
PLACES = torch.tensor([0, 3, 1, 1, 2])


def loss(p, x, y):
    return F.mse_loss(functional_call(NET, p, (x,)), y)


def scalar(v):
    return (v.sin() * v.sum()).sum()


def pair(v):
    return {"a": v.exp() * v.sum(), "b": (v**2).cumsum(0)}


def _order(t):
    return [k for k, n in zip(t.stride(), t.shape) if n > 1]


def same(expected, found, strides=True):
    assert type(expected) is type(found)
    expected, found = tree_leaves(expected), tree_leaves(found)
    assert len(expected) == len(found)
    for e, f in zip(expected, found):
        if not isinstance(e, torch.Tensor):
            assert e == f
            continue
        assert (e.shape, e.dtype, e.requires_grad, e.device) == (f.shape, f.dtype, f.requires_grad, f.device)
        if e.numel() and strides:
            assert _order(f) == _order(e)
        torch.testing.assert_close(f, e, rtol=2e-5, atol=1e-5, equal_nan=True)


def check(fn, *args, strides=True, **options):
    """In one graph, twice, with the same results as eager's, and in the same memory order but for what libraries
    compute."""
    expected = fn(*args)
    jit.reset()
    before = jit.compile_count()
    compiled = jit.compile(fn, fullgraph=True, **options)
    for _ in range(2):
        same(expected, compiled(*args), strides)
    assert jit.compile_count() == before + 1
    return compiled


GRADIENTS = {
    "grad": (lambda v: grad(scalar)(v), V),
    "grad of an argument": (lambda x, y: grad(lambda a, b: (a * b.sin()).sum(), argnums=1)(x, y), X, Y),
    "grad of two arguments": (lambda x, y: grad(lambda a, b: (a * b.sin()).sum(), argnums=(0, 1))(x, y), X, Y),
    "grad with others": (lambda v: grad(lambda a: (scalar(a), {"twice": a * 2}), has_aux=True)(v), V),
    "value": (lambda v: grad_and_value(scalar)(v), V),
    "value with others": (lambda v: grad_and_value(lambda a: (scalar(a), a + 1), has_aux=True)(v), V),
    "of a dictionary": (lambda p, x, y: grad(loss)(p, x, y), PARAMETERS, X, X[:, :2]),
    "with keywords": (lambda v, y: grad(lambda a, scale: (a * scale).sum())(v, scale=y), V, V + 1),
    "of what is used twice": (lambda v: grad(lambda a: (a * v).sum())(v), V),
    "of what is not used": (lambda v, y: grad(lambda a, b: b.sum(), argnums=0)(v, y), V, V),
    "twice": (lambda v: grad(lambda a: grad(scalar)(a).sum())(v), V),
    "three times": (lambda v: grad(lambda a: grad(lambda b: grad(scalar)(b).sum())(a).prod())(v), V),
    "of both levels": (lambda v: grad(lambda a: (grad(lambda b: (a * b * b).sum())(a) * a).sum())(v), V),
    "without gradients inside": (lambda v: grad(lambda a: _partly(a))(v), V),
    "without gradients outside": (lambda v: _without(lambda: grad(scalar)(v)), V),
    "vjp": (lambda v, t: vjp(torch.sin, v)[1](t), V, V),
    "vjp of several": (lambda v, t: vjp(pair, v)[1]({"a": t, "b": t + 1}), V, V),
    "vjp's value": (lambda v, y: vjp(torch.mul, v, y)[0], V, V + 1),
    "vjp with others": (lambda v, t: (lambda o, f, aux: (o, f(t), aux))(*vjp(lambda a: (a.sin(), a * 3), v,
                                                                             has_aux=True)), V, V),
    "vjp twice": (lambda v, t: (lambda f: (f(t), f(t * 2)))(vjp(torch.exp, v)[1]), V, V),
    "jvp": (lambda v, t: jvp(torch.sin, (v,), (t,)), V, V + 1),
    "jvp of several": (lambda v, t: jvp(lambda a, b: (a * b, a.sum() + b), (v, t), (t, v)), V, V + 1),
    "jvp with others": (lambda v, t: jvp(lambda a: (a.exp(), a), (v,), (t,), has_aux=True), V, V + 1),
    "jvp of grad": (lambda v, t: jvp(grad(scalar), (v,), (t,)), V, V + 1),
    "jvp of jvp": (lambda v, t: jvp(lambda a: jvp(torch.sin, (a,), (t,))[1], (v,), (t,)), V, V + 1),
    "grad of jvp": (lambda v, t: grad(lambda a: jvp(scalar, (a,), (t,))[1])(v), V, V + 1),
    "jacrev": (lambda v: jacrev(lambda a: a.sin() * a.sum())(v), V),
    "jacrev of several": (lambda v: jacrev(pair)(v), V),
    "jacrev in parts": (lambda v: jacrev(lambda a: a.sin() * a.sum(), chunk_size=3)(v), V),
    "jacrev one by one": (lambda v: jacrev(lambda a: a.sin() * a.sum(), chunk_size=1)(v), V),
    "jacrev of parameters": (lambda p, x: jacrev(lambda q: functional_call(NET, q, (x,)))(p), PARAMETERS, X),
    "jacfwd": (lambda v: jacfwd(lambda a: a.sin() * a.sum())(v), V),
    "jacfwd of several": (lambda v: jacfwd(pair)(v), V),
    "jacobians of both": (lambda v: (jacrev(jacfwd(scalar))(v), jacfwd(jacfwd(scalar))(v), jacrev(jacrev(scalar))(v)),
                          V),
    "hessian": (lambda v: hessian(scalar)(v), V),
    "hessian of a net": (lambda x: hessian(lambda a: functional_call(NET, PARAMETERS, (a,)).square().sum())(x), X[0]),
    "vmap of grad": (lambda p, x, y: vmap(grad(loss), in_dims=(None, 0, 0))(p, x, y), PARAMETERS, X, X[:, :2]),
    "vmap of hessian": (lambda x: vmap(hessian(scalar))(x), X),
    "vmap of jacrev": (lambda x: vmap(jacrev(lambda a: a.exp() * a.sum()))(x), X),
    "vmap of jvp": (lambda x, y: vmap(lambda a, t: jvp(scalar, (a,), (t,)))(x, y), X, Y),
    "grad of vmap": (lambda x: grad(lambda a: vmap(scalar)(a).sum())(x), X),
    "grad of vmap of what is shared": (lambda x, v: grad(lambda w: vmap(lambda a: (a * w).sin().sum())(x).sum())(v), X,
                                       V),
    "vjp of vmap": (lambda x, y: vjp(lambda a: vmap(lambda r: r.cumsum(0))(a), x)[1](y), X, Y),
}


def _partly(a):
    with torch.no_grad():
        constant = a.exp()
    return (a * constant).sum()


def _without(fn):
    with torch.no_grad():
        return fn()


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    fn, *args = GRADIENTS[name]
    check(fn, *args)


MAPS = {
    "elementwise": (lambda x: vmap(torch.sin)(x), X),
    "along another dimension": (lambda x: vmap(lambda r: r * 2, in_dims=1)(x), X),
    "to another dimension": (lambda x: vmap(lambda r: r * 2, in_dims=1, out_dims=1)(x), X),
    "to the last dimension": (lambda x: vmap(lambda r: torch.outer(r, r), out_dims=-1)(x), X),
    "two arguments": (lambda x, y: vmap(torch.dot)(x, y), X, Y),
    "one of two": (lambda x, v: vmap(torch.dot, in_dims=(0, None))(x, v), X, V),
    "of another rank": (lambda x, v: vmap(lambda a, b: a + b, in_dims=(0, None))(x[:, 0], X), X, V),
    "of a dictionary": (lambda x, y: vmap(lambda d: {"sum": d["x"] + d["y"]})({"x": x, "y": y}), X, Y),
    "dimensions in a dictionary": (lambda x, v: vmap(lambda d: d["x"] @ d["v"], in_dims=({"x": 0, "v": None},))(
        {"x": x, "v": v}), X, V),
    "several results": (lambda x: vmap(lambda r: (r.sum(), r.max(), r.softmax(0)), out_dims=(0, 0, 1))(x), X),
    "what does not differ": (lambda x, v: vmap(lambda r: (r, v * 2))(x), X, V),
    "within": (lambda x, y: vmap(vmap(torch.dot, in_dims=(None, 0)), in_dims=(0, None))(x, y), X, Y),
    "within of the inner one alone": (lambda x, y: vmap(lambda r: vmap(lambda q: q.sin())(y) * r.sum())(x), X, Y),
    "in parts": (lambda x: vmap(lambda r: r.cumsum(0), chunk_size=2)(x), X),
    "sums": (lambda x: vmap(lambda r: (r.sum(), r.mean(0, keepdim=True), r.std(), r.amax(), r.argmax(), r.argmin(0),
                                       r.prod(), r.norm(), r.logsumexp(0), (r > 0).any(), (r > 0).all()))(x), X),
    "of numbers": (lambda x: vmap(lambda a: (a.sum(), a.argmax(), a.cumsum(0), a.reshape(1), a.expand(3)))(x[:, 0]), X),
    "scans": (lambda x: vmap(lambda r: (r.cumsum(0), r.cumprod(0), r.cummax(0), r.logcumsumexp(0)))(x), X),
    "sorts": (lambda x: vmap(lambda r: (r.sort(), r.topk(2), r.argsort(), r.median(), r.kthvalue(2)))(x), X),
    "views": (lambda x: vmap(lambda r: (r[1:], r[::2], r.view(2, 2).t(), r.unsqueeze(0).expand(3, 4), r.flip(0),
                                        r.view(2, 2).diagonal(), r.chunk(2), r.roll(1), r[None, :, None]))(x), X),
    "layout": (lambda x: vmap(lambda r: (torch.cat([r, r[:1]]), torch.stack([r, r]), F.pad(r, (1, 2)), r.repeat(2),
                                         r.tile(2, 2), torch.tril(r.expand(4, 4)), r.clone()))(x), X),
    "joined with what is shared": (lambda x, v: vmap(lambda r: torch.cat([r, v]))(x), X, V),
    "products": (lambda x, w, b: vmap(lambda r: (w @ r, F.linear(r, w, b), torch.outer(r, b), r @ w.t(),
                                                 torch.einsum("i,ji->j", r, w)))(x), X, W, B),
    "products of what differs": (lambda x, w: vmap(lambda a, b: (a @ b, torch.mv(b.t(), a), b @ b.t(),
                                                                 torch.matmul(a[None, None], b)))(
        x, w), X, torch.randn(5, 4, 3)),
    "weights that differ": (lambda w, b, x: vmap(lambda q, c: F.linear(x, q, c))(w, b), torch.randn(6, 3, 4),
                            torch.randn(6, 3), X),
    "added products": (lambda x, y: vmap(lambda a, b: (torch.addmm(b, a, b, beta=2, alpha=3),
                                                       torch.addmv(b[0], a, b[1]), torch.baddbmm(
        b[None], a[None], b[None])))(x, y), torch.randn(3, 4, 4), torch.randn(3, 4, 4)),
    "lookups": (lambda x, i: vmap(lambda r, k: (r[k], torch.gather(r, 0, k[None]), torch.take(r, k)),
                                       in_dims=(None, 0))(x[0], i % 4), X, PLACES),
    "lookups in what differs": (lambda x, v: vmap(lambda r: (r[v], r.index_select(0, v), r[None].take_along_dim(
        v[None], 1)))(x), X, torch.tensor([2, 0])),
    "lookups of both": (lambda x, i: vmap(lambda r, k: (r[k], F.one_hot(k, 4), F.embedding(k, r[:, None])))(x, i % 4),
                        X, PLACES),
    "lookups behind a dimension": (lambda x, i: vmap(lambda r, k: r[:, k])(x, i), torch.randn(5, 2, 4, 3),
                                   torch.tensor([[0, 1], [2, 3], [1, 1], [0, 0], [3, 2]])),
    "writes": (lambda x, i: vmap(lambda r, k: (torch.zeros(4).index_put((k,), r[:2]), torch.zeros(4).scatter(
        0, k, r), torch.zeros(4).index_add(0, k, r[:2]), r.scatter_add(0, k, r)))(x, i), X,
        torch.tensor([[0, 1], [2, 3], [1, 1], [0, 0], [3, 2]])),
    "gradients of writes": (lambda x, i: grad(lambda a: vmap(lambda r, k: torch.zeros(4).index_put((k,), r[:2] * r[2:])
                            .pow(2).sum() + r.index_put((k,), r[:2]).sum())(a, i).sum())(x), X,
                            torch.tensor([[0, 1], [2, 3], [1, 1], [0, 0], [3, 2]])),
    "changes in place": (lambda x: vmap(lambda r: r.clone().add_(1).mul_(r))(x), X),
    "changes of a part in place": (lambda x: vmap(_part_of)(x), X),
    "changes of a new tensor": (lambda x: vmap(_new)(x), X),
    "creations": (lambda x: vmap(lambda r: torch.zeros(3) + r[0] + torch.arange(3) + torch.ones_like(r).sum()
                                          + r.new_full((3,), 2.0) + torch.eye(3)[0])(x), X),
    "selections": (lambda x: vmap(lambda r: torch.where(r > 0, r, -r).clamp(0.1, 1.0).masked_fill(r > 1, 0.0))(x), X),
    "of types": (lambda x: vmap(lambda r: (r.double(), r.int(), r > 0, r.bfloat16() * 2, r.to(torch.float64) + 1))(x),
                 X),
    "mixed types": (lambda x, v: vmap(lambda a: a * v.double())(x[:, 0]), X, V),
    "norms": (lambda x: vmap(lambda r: (F.layer_norm(r, (4,)), F.softmax(r, -1), F.log_softmax(r, 0), F.normalize(
        r, dim=0), F.gelu(r), F.rms_norm(r, (4,))))(x), X),
    "losses": (lambda x, y: vmap(lambda a, b: (F.mse_loss(a, b), F.cross_entropy(a[None], b[:1].abs().long() % 4),
                                               F.smooth_l1_loss(a, b), F.cosine_similarity(a, b, 0)))(x, y), X, Y),
    "convolutions": (lambda x, w: vmap(lambda a: F.conv2d(a[None], w, padding=1)[0])(x), IMAGES, KERNEL),
    "convolutions that differ": (lambda x, w: vmap(lambda a, k: F.conv2d(a[None], k[None])[0])(x, w[:3]),
                                 IMAGES, KERNEL),
    "pools": (lambda x: vmap(lambda a: (F.max_pool2d(a, 2), F.avg_pool2d(a, 2), F.adaptive_avg_pool2d(a, 1),
                                        F.interpolate(a[None], scale_factor=2)))(x), IMAGES),
    "attention": (lambda q: vmap(lambda a: F.scaled_dot_product_attention(a, a, a))(q), torch.randn(2, 1, 3, 5, 8)),
    "factorisations": (lambda a: vmap(lambda m: (torch.linalg.inv(m), torch.linalg.det(m), torch.linalg.solve(
        m, m[0])))(a), torch.randn(3, 4, 4) + 4 * torch.eye(4)),
    "a net": (lambda p, x: vmap(lambda r: functional_call(NET, p, (r,)))(x), PARAMETERS, X),
    "an ensemble": (lambda p, x: vmap(lambda q: functional_call(NET, q, (x,)))(p),
                    tree_map(lambda t: torch.stack([t, t * 2, -t]), PARAMETERS), X),
    "random numbers that are the same": (lambda x: vmap(lambda r: r * 0 + torch.full((4,), 2.0),
                                                            randomness="same")(x), X),
    "slices that overlap": (lambda x: vmap(lambda r: r.sum(), in_dims=0)(x.unfold(0, 3, 1)), torch.randn(9)),
    "sliced": (lambda x: vmap(lambda r: r.sin().sum())(x[::2, 1:].t()), X),
    "expanded": (lambda v: vmap(lambda r: r * 2)(v.expand(3, 4)), V),
}


def _part_of(r):
    out = r.clone()
    out[1:3] = r[:2] * 2
    out[0] += 1
    return out


def _new(r):
    out = torch.zeros(4) + 0 * r
    for k in range(4):
        out[k] = r[:k].sum()
    return out


@pytest.mark.parametrize("name", MAPS)
def test_maps(name):
    fn, *args = MAPS[name]
    check(fn, *args, strides=name not in ("products", "factorisations"))


def test_ensembles_of_modules():
    nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3)]
    parameters, buffers = stack_module_state(nets)
    parameters = tree_map(torch.Tensor.detach, parameters)

    def run(parameters, x):
        return vmap(lambda p, b: functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0))(parameters, buffers)

    check(run, parameters, X)


@pytest.mark.parametrize("fn", [lambda x, w: vmap(lambda r: (r * w).sin().sum())(x),
                                lambda x, w: vmap(grad(lambda r: (r * w).sin().sum()))(x),
                                lambda x, w: vjp(lambda a: a * w, x)[1](x),
                                lambda x, w: jvp(lambda a: (a * w).sin(), (x,), (x,))[1],
                                lambda x, w: grad(lambda a: (a * w).sin().sum())(x)])
def test_gradients_from_outside(fn):
    """Autograd outside of the transforms goes through them."""
    found = []
    for run in (fn, jit.compile(fn, fullgraph=True)):
        x, w = X.clone().requires_grad_(), V.clone().requires_grad_()
        out = run(x, w)
        leaves = tree_leaves(out)
        sum((t * t).sum() for t in leaves).backward()
        found.append([*leaves, x.grad, w.grad])
    for expected, result in zip(*found):
        assert expected.requires_grad == result.requires_grad
        torch.testing.assert_close(result, expected)


def test_sizes_change():
    """One entry serves several numbers of slices, and of elements in one."""
    compiled = jit.compile(lambda x, w: vmap(grad(lambda r, w: (r @ w).sin().sum()), in_dims=(0, None))(x, w),
                           fullgraph=True, dynamic=True)
    before = jit.compile_count()
    for n, k in ((5, 4), (7, 4), (3, 6), (11, 2)):
        x, w = torch.randn(n, k), torch.randn(k, 3)
        expected = vmap(grad(lambda r, w: (r @ w).sin().sum()), in_dims=(0, None))(x, w)
        torch.testing.assert_close(compiled(x, w), expected)
    assert jit.compile_count() - before <= 2


REFUSED = {
    "a branch on a slice": lambda x: vmap(lambda r: r if r.sum() > 0 else -r)(x),
    "a number out of a slice": lambda x: vmap(lambda r: r * r[0].item())(x),
    "no scalar": lambda x: grad(lambda a: a.sin())(x),
    "no tensor": lambda x: grad(lambda a: 3)(x),
    "random numbers": lambda x: vmap(lambda r: r + torch.rand(4))(x),
    "other sizes": lambda x: vmap(lambda a, b: a + b)(x, x[:2]),
    "a dimension that is not there": lambda x: vmap(torch.sin, in_dims=3)(x),
    "a result that is no tensor": lambda x: vmap(lambda r: 3)(x),
    "another structure of dimensions": lambda x: vmap(torch.sin, in_dims=(0, 1))(x),
    "another structure of cotangents": lambda x: vjp(torch.sin, x)[1]((x, x)),
    "cotangents of another shape": lambda x: vjp(torch.sin, x)[1](x[0]),
    "a shared tensor changed in place": lambda x: _changes(x),
    "a branch on an integer slice": lambda x: vmap(lambda k: k * 2 if k > 1 else k)(PLACES),
    "a number out of an integer slice": lambda x: vmap(lambda k: k * k.item())(PLACES),
    "a list of an integer slice": lambda x: vmap(lambda k: torch.tensor(k.tolist()))(PLACES),
    "sizes from a slice": lambda x: vmap(lambda k: torch.ones(int(k)))(PLACES),
    "places in a slice": lambda x: vmap(lambda k: k.reshape(1).nonzero())(PLACES),
    "what is masked": lambda x: vmap(lambda r: r[r > 0].sum())(x),
    "an assertion on a slice": lambda x: vmap(_asserts)(PLACES),
    "integers": lambda x: grad(lambda a: a.sum())(x.int()),
}


def _asserts(k):
    assert k < 10
    return k * 2


def _changes(x):
    shared = torch.zeros(4)
    vmap(lambda r: shared.add_(r))(x)
    return shared


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_eagers(name):
    fn = REFUSED[name]
    with pytest.raises(Exception) as expected:
        fn(X)
    with pytest.raises(type(expected.value)) as found:
        jit.compile(fn)(X)
    assert str(found.value).splitlines()[:1] == str(expected.value).splitlines()[:1]


def test_changes_of_a_mapped_tensor():
    """In place, through the slices, as eager has it."""

    def run(x):
        y = x * 1
        out = vmap(lambda r: r.mul_(2).sum())(y)
        return out, y

    same(run(X), jit.compile(run)(X))


def test_random_numbers_are_eagers_to_draw():
    def run(x):
        return vmap(lambda r: r + torch.rand(4), randomness="different")(x)

    torch.manual_seed(3)
    expected = run(X)
    torch.manual_seed(3)
    assert torch.equal(jit.compile(run)(X), expected)


def test_a_break_inside_takes_place_outside():
    """State of the transform is never left behind, and what follows is compiled."""
    seen = []

    def run(x):
        y = x * 2
        z = vmap(lambda r: (seen.append(1), print("", end=""), r.sum())[2])(y)
        return z + 1

    expected = run(X)
    compiled = jit.compile(run)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), expected)
    assert len(seen) == 3
    torch.testing.assert_close(vmap(torch.sin)(X), X.sin())


def test_integers_behind_a_map():
    """What is computed from slices is not guessed, and a branch on it is a break."""

    def fn(i):
        y = vmap(lambda k: k * 2)(i)
        return y + 1 if y[0] == 0 else y - 1

    compiled = jit.compile(fn)
    for i in (PLACES, PLACES + 1, PLACES):
        assert torch.equal(compiled(i), fn(i))


@pytest.mark.parametrize("used", [lambda kept: kept[0] + 1, lambda kept: kept[0].sum(), lambda kept: kept])
def test_slices_that_are_used_behind_the_map(used):
    """Eager says what comes of that; nothing of one slice is taken for all."""

    def fn(x):
        kept = []
        y = vmap(lambda r: (kept.append(r * 2), r * 3)[1])(x)
        return y, used(kept)

    found = []
    for run in (fn, jit.compile(fn)):
        try:
            found.append(repr(run(X)))
        except RuntimeError as error:
            found.append(type(error))
    assert found[0] == found[1]


def test_what_vjp_gives_may_leave():
    """Through a break, and as a result."""

    def broken(x, t):
        out, back = vjp(lambda a: a.sin() * a.sum(), x)
        jit.graph_break()
        return back(t)[0] + out

    same(broken(V, V + 1), jit.compile(broken)(V, V + 1))
    out, back = jit.compile(lambda x: vjp(torch.exp, x))(V)
    same((V.exp(), (V.exp() * 2,)), (out, back(torch.full((4,), 2.0))))


def test_a_negative_row_of_a_map_is_out_of_range():
    """``index_select`` and ``embedding`` do not count from the end, in a map of different tables too."""
    tables, places = torch.randn(3, 5, 2), torch.tensor([[0, 4], [1, 2], [3, -1]])
    compiled = jit.compile(lambda t, i: vmap(lambda r, k: r.index_select(0, k))(t, i), fullgraph=True)
    same(vmap(lambda r, k: r.index_select(0, k))(tables, places.abs()), compiled(tables, places.abs()))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(tables, places)


@pytest.mark.parametrize("into, out", [(0, 0), (0, 1), (1, 0), (1, 1), (1, -1)])
@pytest.mark.parametrize("inner", [lambda t: t, lambda t: t.acos_(), lambda t: t.mul_(2).add_(1), lambda t: t[:],
                                   lambda t: t.contiguous()])
def test_what_a_map_gives_back_as_it_was_given_is_the_tensor_itself(inner, into, out):
    def fn(x):
        y = vmap(inner, into, out)(x)
        return y is x, y * 1, y.stride()

    compiled = jit.compile(fn, fullgraph=True)
    for shape in ((4, 3), (4, 3), (2, 5)):
        a = torch.rand(shape)
        b = a.clone()
        want, got = fn(a), compiled(b)
        assert want[0] == got[0] and want[2] == got[2]
        torch.testing.assert_close(got[1], want[1])
        torch.testing.assert_close(b, a)


def changed(change):
    def of_one(t):
        made = torch.zeros(2)
        change(made, t)
        return made

    return lambda x: vmap(of_one)(x)


@pytest.mark.parametrize("change", [
    lambda made, t: made.add_(t), lambda made, t: made.mul_(t), lambda made, t: made.copy_(t),
    lambda made, t: made.fill_(t), lambda made, t: made[0].add_(t), lambda made, t: made.__setitem__(1, t)])
def test_what_is_not_mapped_is_changed_by_what_is(change):
    fn, x = changed(change), torch.ones(3)
    with pytest.raises(RuntimeError) as expected:
        fn(x)
    jit.reset()
    with pytest.raises(RuntimeError) as found:
        jit.compile(fn)(x)
    assert str(found.value) == str(expected.value)


LAYOUTS = {
    "clone": lambda t: t.clone(),
    "contiguous clone": lambda t: t.clone(memory_format=torch.contiguous_format),
    "changed clone": lambda t: t.clone().mul_(2),
    "softmax": lambda t: torch.softmax(t, -1),
    "log_softmax": lambda t: torch.log_softmax(t, 0),
    "layer_norm": lambda t: F.layer_norm(t, t.shape[-1:]),
    "part of what is made": lambda t: torch.cat([t.sin(), t])[1:],
    "expanded": lambda t: t.sum().expand(3),
    "two parts": lambda t: t.cos().split(1),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("x", [X, X.t(), X[:, ::2], torch.randn(2, 3, 4).permute(2, 0, 1), X[:, :1].expand(5, 4)])
def test_layouts(name, x):
    check(lambda x: vmap(LAYOUTS[name])(x), x)


WORDS = {
    "sizes": lambda x: vmap(lambda t: t + torch.ones(7))(x),
    "no such place": lambda x: vmap(lambda t: t.select(0, 9))(x),
    "no such view": lambda x: vmap(lambda t: t.view(7))(x),
    "jvp of no tensor": lambda x: jvp(lambda t: 3, (x,), (x,)),
    "jvp without others": lambda x: jvp(lambda t: t, (x,), (x,), has_aux=True),
    "jacfwd of no tensor": lambda x: jacfwd(lambda t: 3)(x),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_errors_say(name):
    fn = WORDS[name]
    with pytest.raises(Exception) as expected:
        fn(X)
    jit.reset()
    with pytest.raises(type(expected.value)) as found:
        jit.compile(fn)(X)
    assert str(found.value) == str(expected.value)


CAPTURED = torch.arange(4.0)
CHANGES = {
    "in place": lambda t: CAPTURED.add_(1),
    "by index": lambda t: CAPTURED.__setitem__(2, 5),
    "a view": lambda t: CAPTURED[1:].mul_(3),
    "without gradients": lambda t: CAPTURED.data.add_(1),
    "the argument": lambda t: t.mul_(2),
}


@pytest.mark.parametrize("of", ["grad", "vjp", "jvp", "of a map", "map of"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_inside(name, of):
    def inside(t):
        try:
            CHANGES[name](t)
        except RuntimeError as error:
            said.append(str(error))
        return (t * 2).sum()

    fn = {"grad": lambda x: grad(inside)(x), "vjp": lambda x: vjp(inside, x)[0],
          "jvp": lambda x: jvp(inside, (x,), (x,)), "of a map": lambda x: grad(lambda t: vmap(inside)(t).sum())(x),
          "map of": lambda x: vmap(grad(inside))(x)}[of]
    jit.reset()
    seen = []
    for run in (fn, jit.compile(fn)):
        said: list = []
        CAPTURED.copy_(torch.arange(4.0))
        x = torch.ones(3, 2)
        seen.append((tree_leaves(run(x)), said, CAPTURED.clone(), x))
    (results, *eager), (found, *compiled) = seen
    same(results, found)
    same(eager, compiled)


IN_INFERENCE_MODE = {
    "grad": lambda x: func.grad(lambda x: (x * x).sum())(x), "jacrev": lambda x: func.jacrev(lambda x: x * x)(x),
    "hessian": lambda x: func.hessian(lambda x: (x ** 3).sum())(x), "jvp": lambda x: func.jvp(torch.sin, (x,), (x,)),
    "of each": lambda x: vmap(func.grad(lambda x: x * x))(x), "map": lambda x: vmap(torch.sin)(x)}


@pytest.mark.parametrize("name", IN_INFERENCE_MODE)
@pytest.mark.parametrize("outside", [False, True])
def test_in_inference_mode(name, outside):
    def fn(x):
        with torch.inference_mode(not outside):
            return IN_INFERENCE_MODE[name](x)

    want, got = (torch.inference_mode(outside)(run)(torch.arange(3.0)) for run in (fn, jit.compile(fn)))
    torch.testing.assert_close(got, want)
