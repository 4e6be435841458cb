"""Random numbers inside torch.vmap: eager's numbers where these are asked for, and the generator behind them."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jacrev, vmap

import jit

X = torch.linspace(-2, 2, 20).view(4, 5)
LAYOUTS = {"plain": X, "columns": X[:, ::2], "turned": torch.linspace(-1, 1, 18).view(6, 3).t(),
           "expanded": torch.linspace(0, 1, 5).expand(3, 5), "one": X[:1]}

BOTH = {
    "rand": lambda t: t * torch.rand(()),
    "randn": lambda t: t + torch.randn(2, 1),
    "size": lambda t: t + torch.randn(size=(t.shape[0],)),
    "randint": lambda t: t + torch.randint(3, 9, (2, 1)),
    "randint_high": lambda t: t + torch.randint(9, size=(1,)),
    "normal_of_size": lambda t: t + torch.normal(1.0, 2.0, (20,)).sum(),
    "randperm": lambda t: t * torch.randperm(6)[0],
    "rand_like": lambda t: t * torch.rand_like(t),
    "randn_like_double": lambda t: t * torch.randn_like(t, dtype=torch.float64),
    "randint_like": lambda t: t + torch.randint_like(t, 2, 7),
    "dropout": lambda t: F.dropout(t, 0.3).sin(),
    "dropout_off": lambda t: F.dropout(t, 0.3, False),
    "module": lambda t: torch.nn.Dropout(0.4)(t * 2),
    "uniform_": lambda t: t * torch.empty_like(t).uniform_(),
    "normal_": lambda t: t + t.new_empty(3, 1).normal_(1.0, 3.0),
    "exponential_": lambda t: t.exp().exponential_(2.0),
    "bernoulli_": lambda t: t * torch.zeros_like(t).bernoulli_(0.3),
    "gumbel": lambda t: F.gumbel_softmax(t, hard=True),
    "several": lambda t: (torch.rand(2), t * torch.randn(()) + torch.rand_like(t)),
    "unused": lambda t: (torch.rand(2), t * 2)[1],
    "in_another": lambda t: vmap(lambda e: e * torch.rand(()) + torch.rand_like(e), randomness="different")(t),
    "in_the_same": lambda t: vmap(lambda e: e * torch.rand(()) + torch.rand_like(e), randomness="same")(t),
    "gradient": grad(lambda t: (F.dropout(t * t, 0.4) * torch.rand_like(t)).sum()),
    "jacobian": jacrev(lambda t: F.dropout(t.sin(), 0.4)),
}
EACH = {
    "bernoulli": lambda t: torch.bernoulli(t.sigmoid()),
    "poisson": lambda t: torch.poisson(t.abs()),
    "normal": lambda t: torch.normal(t, 2.0),
    "normal_normal": lambda t: torch.normal(t, t.abs() + 1),
    "normal_std": lambda t: torch.normal(1.0, t.abs() + 1),
    "multinomial": lambda t: torch.multinomial(t.softmax(0), 2, replacement=True),
    "rows": lambda t: torch.multinomial(t.softmax(0).expand(3, -1), 1),
    "categorical": lambda t: torch.distributions.Categorical(logits=t, validate_args=False).sample(),
}


def compare(program, given):
    """A program gives eager's results twice over, and leaves the generator where eager leaves it."""
    torch.manual_seed(3)
    want = [program(given), program(given), torch.rand(1)]
    compiled = jit.compile(program, fullgraph=True)
    torch.manual_seed(3)
    got = [compiled(given), compiled(given), torch.rand(1)]
    for w, g in zip(want, got):
        for a, b in zip(w, g) if isinstance(w, tuple) else ((w, g),):
            assert a.dtype is b.dtype and a.shape == b.shape
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("randomness", ["different", "same"])
def test_programs(name, randomness, layout, eager_numbers):
    function = BOTH[name]
    compare(lambda x: vmap(function, randomness=randomness)(x), LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EACH)
def test_programs_of_each_slice(name, layout, eager_numbers):
    function = EACH[name]
    if (name, layout) == ("categorical", "turned"):
        pytest.skip("softmax of columns gives rows in eager's map, columns here, and the draw goes by memory")
    compare(lambda x: vmap(function, randomness="different")(x), LAYOUTS[layout])


def test_dimensions_and_chunks(eager_numbers):
    def f(t, k):
        return t * torch.rand_like(t) + k * torch.randn(3)[1]

    compare(lambda x: vmap(f, (1, None), 1, randomness="different")(x, 2.0), X)
    compare(lambda x: vmap(f, (-1, None), randomness="different", chunk_size=2)(x, 2.0), X)
    compare(lambda x: vmap(f, (0, 0), (1,), randomness="same")(x, x[:, 0]), X)


def test_sizes_that_change(eager_numbers):
    def program(x):
        return vmap(lambda t: t * torch.rand_like(t) + torch.rand(2)[1], randomness="different")(x)

    compiled = jit.compile(program, fullgraph=True, dynamic=True)
    for n in (3, 5, 2, 7):
        x = torch.ones(n, 4)
        torch.manual_seed(1)
        want = program(x)
        torch.manual_seed(1)
        assert torch.equal(compiled(x), want)


@pytest.mark.parametrize("function", [BOTH["rand"], BOTH["rand_like"], BOTH["dropout"], BOTH["uniform_"]])
def test_what_is_refused(function):
    def program(x):
        return vmap(function)(x)

    with pytest.raises(RuntimeError) as want:
        program(X)
    with pytest.raises(RuntimeError) as got:
        jit.compile(program)(X)
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("function", [lambda t: torch.bernoulli(t.sigmoid()), lambda t: torch.normal(t, 1.0)])
def test_what_cannot_be_the_same(function):
    with pytest.raises(RuntimeError, match="same randomness"):
        jit.compile(lambda x: vmap(function, randomness="same")(x))(X)


def test_memory_that_does_not_differ():
    """Eager refuses to fill one tensor with numbers of each slice."""
    with pytest.raises(RuntimeError, match="unbatched"):
        jit.compile(lambda x: vmap(lambda t: t + torch.empty(5).uniform_(), randomness="different")(x))(X)


def test_numbers_of_kernels(kernel_numbers):
    ones = torch.ones(6, 400)
    compiled = jit.compile(lambda x: vmap(lambda t: (F.dropout(t, 0.5), torch.rand(400), torch.randn_like(t)),
                                          randomness="different")(x), fullgraph=True)
    dropped, uniform, normal = compiled(ones)
    assert abs(float((dropped > 0).float().mean()) - 0.5) < 0.05 and abs(float(uniform.mean()) - 0.5) < 0.05
    assert abs(float(normal.std()) - 1) < 0.1
    for drawn in (dropped, uniform, normal):
        assert len({tuple(row.tolist()) for row in drawn}) == 6
    compiled = jit.compile(lambda x: vmap(lambda t: (F.dropout(t, 0.5), torch.rand(400), torch.randn_like(t)),
                                          randomness="same")(x), fullgraph=True)
    for drawn in compiled(ones):
        assert len({tuple(row.tolist()) for row in drawn}) == 1


def test_gradients_of_what_was_dropped(kernel_numbers):
    """The mask of the backward is that of the forward."""
    x = torch.ones(5, 300, requires_grad=True)
    out = jit.compile(lambda x: vmap(lambda t: F.dropout(t * t, 0.5), randomness="different")(x), fullgraph=True)(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach() * 2)


def test_a_draw_that_raises_is_caught_inside(eager_numbers):
    def f(t):
        try:
            return t + torch.randint(5, 2, (3,))
        except RuntimeError:
            return t * 2 + torch.rand(5)

    compare(lambda x: vmap(f, randomness="different")(x), X)
