"""Methods that fill a tensor with random numbers draw eager's, whatever the layout, and whichever form of the operator
the arguments ask for."""

import pytest
import torch

import jit

FILLS = {
    "random up to": lambda t: t.random_(3), "random from": lambda t: t.random_(0, 5), "random": lambda t: t.random_(),
    "uniform": lambda t: t.uniform_(), "normal": lambda t: t.normal_(1, 2), "coin": lambda t: t.bernoulli_(0.5),
    "exponential": lambda t: t.exponential_(), "geometric": lambda t: t.geometric_(0.5),
}
LAYOUTS = {
    "dense": lambda: torch.arange(6.0).view(2, 3), "transposed": lambda: torch.arange(6.0).view(3, 2).t(),
    "stepped": lambda: torch.arange(12.0).view(2, 6)[:, ::2], "column": lambda: torch.arange(6.0).view(2, 3)[:, 1],
    "permuted": lambda: torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
}


@pytest.mark.parametrize("backend", ["jit", "eager"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FILLS)
def test_fills(name, layout, backend):
    fill, found = FILLS[name], []
    for fn in (fill, jit.compile(fill, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        t = LAYOUTS[layout]()
        fn(t)
        found.append((t, torch.rand(())))
    for a, b in zip(*found):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["normal_", "uniform_", "bernoulli_", "exponential_"])
def test_a_refused_fill_draws_nothing(name):
    def fn(x):
        try:
            getattr(x, name)()
        except RuntimeError as error:
            return str(error)

    found = []
    for run in (fn, jit.compile(fn)):
        torch.manual_seed(0)
        found.append((run(torch.ones(3, requires_grad=True)), torch.rand(2).tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", [True, 2.0, None, "a"])
def test_what_is_no_seed_of_a_generator(seed):
    def fn():
        try:
            torch.Generator().manual_seed(seed)
        except Exception as error:
            return repr(error)

    assert fn() == jit.compile(fn)()


def test_lists_with_sizes_are_tensors():
    def fn(x):
        n, m = x.shape
        return (torch.tensor([[n, 2], [3, m]]), torch.tensor([n, 2.5]), torch.tensor([(n, True)]),
                torch.as_tensor([[m]], dtype=torch.float32))

    compiled = jit.compile(fn, dynamic=True)
    for shape in ((2, 3), (4, 5)):
        for a, b in zip(fn(torch.ones(shape)), compiled(torch.ones(shape))):
            assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
