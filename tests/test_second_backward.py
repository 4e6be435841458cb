"""Which backward may come a second time without ``retain_graph``: where eager has kept nothing, and where the first one
has not been."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import jit

MESSAGE = "backward through the graph a second time"


def leaves():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(3, 4, generator=g).requires_grad_() for _ in range(3)]


def outcome(fn, walks):
    """What each backward does, and the gradients at the end. ``walks``: (position of the result, positions of the
    leaves that are asked for or None, retain_graph)."""
    sources = leaves()
    results = fn(*sources)
    results = results if isinstance(results, tuple) else (results,)
    found = []
    for at, wanted, retain in walks:
        root = results[at % len(results)]
        try:
            if wanted is None:
                root.backward(torch.ones_like(root), retain_graph=retain)
                found.append("walked")
            else:
                grads = torch.autograd.grad(root, [sources[k] for k in wanted], torch.ones_like(root),
                                            retain_graph=retain, allow_unused=True)
                found.append([None if g is None else g.tolist() for g in grads])
        except RuntimeError as error:
            assert MESSAGE in str(error)
            found.append("raised")
    return found, [x.grad for x in sources]


def check(fn, *walks):
    got, want = outcome(jit.compile(fn, fullgraph=True), walks), outcome(fn, walks)
    for g, w in zip(got[0], want[0], strict=True):
        assert (g == w) if isinstance(w, str) or isinstance(g, str) else True, (got[0], want[0])
        if not isinstance(w, str):
            for a, b in zip(g, w, strict=True):
                assert (a is None) == (b is None)
                if b is not None:
                    torch.testing.assert_close(torch.tensor(a), torch.tensor(b))
    if "raised" not in want[0]:  # eager accumulates what it meets on the way to the node that misses something
        torch.testing.assert_close(got[1], want[1])
    return want[0]


ALLOWED = {
    "mean": lambda x, y, z: x.mean(), "sum": lambda x, y, z: (x + y - z).sum(1),
    "views": lambda x, y, z: torch.cat([x.t(), y.view(4, 3)]), "negation": lambda x, y, z: -x,
    "cumsum": lambda x, y, z: x.cumsum(0).flip(1), "casts": lambda x, y, z: x.double() + y,
    "pad": lambda x, y, z: F.pad(x, (1, 1)), "lower": lambda x, y, z: x.tril(),
    "stacked": lambda x, y, z: torch.stack([x, y]).repeat(2, 1, 1), "rounded": lambda x, y, z: x.floor() + y,
    "rolled": lambda x, y, z: x.roll(1, 0), "expanded": lambda x, y, z: x.expand(2, 3, 4),
}
REFUSED = {
    "product": lambda x, y, z: x * y, "square": lambda x, y, z: x * x, "exponential": lambda x, y, z: x.exp(),
    "matrices": lambda x, y, z: x @ y.t(), "softmax": lambda x, y, z: x.softmax(1),
    "rectified": lambda x, y, z: x.relu(), "limited": lambda x, y, z: x.clamp(0, 1),
    "maximum": lambda x, y, z: x.amax(1), "quotient": lambda x, y, z: x / y,
    "chosen": lambda x, y, z: torch.where(y > 0, x, z), "variance": lambda x, y, z: x.var(),
    "factor": lambda x, y, z: x * y.detach(), "sorted": lambda x, y, z: x.sort(1).values,
    "layer_norm": lambda x, y, z: F.layer_norm(x, (4,)), "loss": lambda x, y, z: F.mse_loss(x, y),
    "dropout": lambda x, y, z: F.dropout(x, 0.5), "absolute": lambda x, y, z: x.abs(),
}


@pytest.mark.parametrize("name", [*ALLOWED, *REFUSED])
def test_twice(name):
    fn = {**ALLOWED, **REFUSED}[name]
    if name == "dropout":
        with jit.config.patch(fallback_random=True):
            torch.manual_seed(0)
            found = outcome(jit.compile(fn), [(0, None, False)] * 2)[0]
    else:
        found = check(fn, (0, None, False), (0, None, False))
        check(fn, (0, None, True), (0, None, False), (0, None, True))
    assert found == ["walked", "walked" if name in ALLOWED else "raised"]


PAIRS = {
    "apart": lambda x, y, z: (x.exp().sum(), y.exp().sum()),
    "of_one_leaf": lambda x, y, z: (x.exp().sum(), x.sin().sum()),
    "trunk": lambda x, y, z: ((x * y).exp().sum(), (x * y).sin() * z),
    "one_product": lambda x, y, z: (lambda h: (h.exp().sum(), h.sin().sum(), z.cos()))(x * y),
    "one_sum": lambda x, y, z: (lambda h: (h.exp().sum(), h.sin().sum(), h.sum()))(x + y),
    "chain": lambda x, y, z: (lambda h: (h, (h * y).exp(), (h * z).sum()))(x.tanh()),
    "free": lambda x, y, z: (x.exp().sum(), y.mean(), (x + z).sum()),
    "branches": lambda x, y, z: (x.exp() + y.exp() + (y * z).sum()).sum(),
    "late": lambda x, y, z: ((x.exp() + y.exp()).log(), z * 2 + x.sin()),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("walks", [
    [(0, None, False), (1, None, False), (2, None, False), (0, None, False)],
    [(1, None, False), (0, None, False), (1, None, False)],
    [(2, None, False), (0, None, True), (0, None, False), (0, None, False)],
    [(0, (0,), False), (0, (1,), False), (0, (0, 1), False)], [(0, (1,), True), (1, (0, 1), False), (0, None, False)],
], ids=str)
def test_results_one_after_the_other(name, walks):
    fn = PAIRS[name]
    if name == "late":  # a number, which eager keeps
        fn = lambda x, y, z: ((x.exp() + y.exp()).log(), z + x.sin())  # noqa: E731
    check(fn, *walks)


WALK = st.tuples(st.integers(0, 2),
                 st.one_of(st.none(), st.sets(st.integers(0, 2), min_size=1).map(lambda s: tuple(sorted(s)))),
                 st.booleans())
COMPILED = {name: jit.compile(fn, fullgraph=True) for name, fn in PAIRS.items() if name not in ("late",)}


@given(st.sampled_from(sorted(COMPILED)), st.lists(WALK, min_size=1, max_size=4))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_order(name, walks):
    def asked(fn):
        sources = leaves()
        results = fn(*sources)
        results = results if isinstance(results, tuple) else (results,)
        found = []
        for at, wanted, retain in walks:
            root = results[at % len(results)]
            try:
                found.append(
                    [None if g is None else g.sum().item()
                     for g in torch.autograd.grad(root, [sources[k] for k in wanted or (0, 1, 2)],
                                                  torch.ones_like(root), retain_graph=retain, allow_unused=True)])
            except RuntimeError as error:
                assert MESSAGE in str(error)
                found.append("raised")
        return found

    got, want = asked(COMPILED[name]), asked(PAIRS[name])
    assert [g if isinstance(g, str) else [v is None for v in g] for g in got] == [
        g if isinstance(g, str) else [v is None for v in g] for g in want]
    for g, w in zip(got, want, strict=True):
        for a, b in zip(g, w, strict=True):
            assert isinstance(w, str) or b is None or a == pytest.approx(b, rel=1e-4, abs=1e-4)


def test_saved_values_go_with_their_results():
    """What only the first result's gradient reads is freed by its backward, the rest by the other's."""
    import weakref

    f = jit.compile(lambda x, y: ((x @ x.t()).exp().sum(), (y @ y.t()).exp().sum()), fullgraph=True)
    kept = []

    class Box:
        def __init__(self, t):
            self.t = t

    def pack(t):
        box = Box(t)
        kept.append(weakref.ref(box))
        return box

    x, y, _ = leaves()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.t):
        a, b = f(x, y)
    alive = lambda: sum(k() is not None for k in kept)  # noqa: E731
    total = alive()
    a.backward()
    half = alive()
    b.backward()
    assert 0 < half < total and alive() == 0


INSIDE = {
    "factor of what is added": lambda x, y, z: torch.add(x, y, alpha=2),
    "of what is subtracted": lambda x, y, z: x.sub(y, alpha=3.5),
    "in place": lambda x, y, z: x.clone().add_(y, alpha=0.5), "between": lambda x, y, z: torch.lerp(x, y, 0.5),
    "number": lambda x, y, z: x * 2, "quotient": lambda x, y, z: x / y, "quotient by a number": lambda x, y, z: x / 2,
    "product": lambda x, y, z: x * y, "sums": lambda x, y, z: (x + y).mean(0), "power": lambda x, y, z: x ** 2,
    "exponential behind a sum": lambda x, y, z: torch.add(x, y, alpha=2).exp(),
    "sum behind an exponential": lambda x, y, z: torch.add(x.exp(), y, alpha=2)}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("broken", [False, True])
def test_the_first_one_inside_the_program(name, broken):
    def fn(x, y, z):
        h = INSIDE[name](x, y, z)
        if broken:
            jit.graph_break()
        h.sum().backward()
        return h

    found = []
    for run in (fn, jit.compile(fn)):
        sources = leaves()
        h = run(*sources)
        try:
            h.sum().backward()
            found.append("walked")
        except RuntimeError as error:
            found.append(MESSAGE in str(error))
        torch.testing.assert_close(sources[0].grad, (2 if found[-1] == "walked" else 1) * torch.autograd.grad(
            INSIDE[name](*sources).sum(), sources[0])[0])
    if name not in ("number", "quotient by a number") or not broken:  # a number, which eager keeps
        assert found[0] == found[1]
