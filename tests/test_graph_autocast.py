"""``torch.autocast`` on the CPU, inside and around compiled functions: the same dtypes and values as eager, the same
state afterwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit
from jit.graph import autocast
from jit.graph.ops import normalization  # noqa: F401  (fills the op tables)

torch.manual_seed(0)
X = torch.randn(3, 4)
LIN = nn.Linear(4, 4).requires_grad_(False)
CONV = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                     nn.Linear(72, 5)).eval().requires_grad_(False)
IMAGE = torch.randn(2, 3, 8, 8)


def cast(dtype=torch.bfloat16, **options):
    return torch.autocast("cpu", dtype=dtype, **options)


def check(fn, *args, fullgraph=True, state=False):
    """Compare two calls with eager, under autocast if ``state``."""
    compiled = jit.compile(fn, fullgraph=fullgraph)
    for _ in range(2):
        with cast(enabled=state):
            want, got = fn(*args), compiled(*args)
            assert torch.is_autocast_enabled("cpu") == state
        assert len(want) == len(got)
        for w, g in zip(want, got, strict=True):
            if isinstance(w, torch.Tensor):
                assert w.dtype == g.dtype and w.stride() == g.stride()
                torch.testing.assert_close(g, w, rtol=2e-2, atol=1e-2)
            else:
                assert w == g
    return compiled


def test_inside():
    def f(x):
        with cast():
            a = LIN(x)
            with torch.autocast("cpu", enabled=False):
                d = x @ x.t()
            return a, a @ x.t(), F.softmax(a, -1), d, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    check(f, X)


POLICIES = {
    "lower": lambda x: (x @ x.t(), torch.mm(x, x.t()), torch.addmm(x[:, :3], x, x.t()), torch.bmm(x[None], x.t()[None]),
                        F.linear(x, x), F.scaled_dot_product_attention(x, x, x)),
    "float32": lambda x: (F.mse_loss(LIN(x), x.bfloat16()), LIN(x).prod(),
                          F.cross_entropy(LIN(x), torch.tensor([0, 1, 2])), torch.cdist(LIN(x), x)),
    "promote": lambda x: (torch.cat([LIN(x), x]), torch.stack([LIN(x), LIN(x)])),
    "untouched": lambda x: (F.layer_norm(LIN(x), (4,)), F.gelu(LIN(x)), LIN(x) + x, LIN(x).sum(), LIN(x).softmax(0),
                            LIN(x).sort()[0]),
    "double": lambda x: (x.double() @ x.double().t(), torch.cat([x, LIN(x)])),
    "convolutions": lambda x: (CONV(IMAGE), F.conv_transpose2d(IMAGE, torch.ones(3, 2, 2, 2))),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("state", [False, True])
def test_policies(name, state):
    check(POLICIES[name], X, state=state)


def test_state_is_guarded():
    compiled = jit.compile(lambda x: LIN(x) * 2, fullgraph=True)
    assert compiled(X).dtype is torch.float32
    with cast():
        assert compiled(X).dtype is torch.bfloat16
    with cast(torch.float16):
        assert compiled(X).dtype is torch.float16
    assert compiled(X).dtype is torch.float32


def test_decorator_and_exception():
    @cast()
    def decorated(x):
        return LIN(x), LIN(x) + x

    check(decorated, X)

    def raises(x):
        try:
            with cast():
                LIN(x)
                raise ValueError
        except ValueError:
            return (LIN(x),)

    check(raises, X)


def test_state_that_stays_on():
    def enter(x):
        context = cast()
        context.__enter__()
        return LIN(x), context

    compiled = jit.compile(enter)
    for _ in range(2):
        y, context = compiled(X)
        assert y.dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu")
        context.__exit__(None, None, None)
        assert not torch.is_autocast_enabled("cpu")


def test_break_inside():
    def inner(x):
        a = LIN(x)
        jit.graph_break()
        return a, LIN(x)

    def outer(x):
        with cast():
            z = LIN(x)
            a, b = inner(x)
            w = LIN(x)
        return a, b, z, w, LIN(x)

    check(outer, X, fullgraph=False)


def test_composed_operators_are_refused():
    with cast(), pytest.raises(jit.errors.Unsupported):
        jit.compile(lambda x: torch.cov(x), fullgraph=True)(X)
    check(lambda x: (torch.cov(x),), X, fullgraph=False, state=True)


def test_graph_backend_does_not_cast_twice():
    def f(x):
        with torch.autocast("cpu", enabled=False):
            return x @ x.t()

    with cast():
        assert jit.compile(f, fullgraph=True, backend="eager")(X).dtype is torch.float32


def test_tables_name_operators():
    """What PyTorch says it intercepts."""
    assert all(autocast._intercepted(n, "cpu")
               for n in ("linear", "matmul", "mm", "bmm", "cat", "stack", "mse_loss", "conv2d"))
    assert not any(autocast._intercepted(n, "cpu") for n in ("add", "softmax", "layer_norm"))
