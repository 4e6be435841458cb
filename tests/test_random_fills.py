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
