"""Arguments and results that are written after a compiled function and before its backward: it raises where eager's
does, and nowhere else."""

import pytest
import torch
import torch.nn.functional as F

import jit


def _scaled_norm(x, y):
    x.mul_(2)
    return (x.norm(),)


def _scaled_sin(x, y):
    x.mul_(y)
    return (x.sin(),)


FUNCTIONS = {
    "layer_norm": lambda x, y: (F.layer_norm(x, (4,)),),
    "batch_norm": lambda x, y: (F.batch_norm(x, None, None, training=True),),
    "mul": lambda x, y: (x * y,),
    "div": lambda x, y: (x / y,),
    "norm": lambda x, y: (x.norm(dim=-1),),
    "std": lambda x, y: (torch.std(x, 0),),
    "gelu": lambda x, y: (F.gelu(x) * 2,),
    "softmax": lambda x, y: (torch.softmax(x, -1),),
    "exp_tanh": lambda x, y: (x.exp(), y.tanh()),
    "product": lambda x, y: (torch.mm(x, y) + x,),
    "relu": lambda x, y: (F.relu(x),),
    "sum_sigmoid": lambda x, y: (x.sum(0), x.sigmoid()),
    "softplus": lambda x, y: (F.softplus(x),),
    "scaled_norm": _scaled_norm,
    "scaled_sin": _scaled_sin,
    "mse": lambda x, y: (F.mse_loss(x, y),),
    "normalize_abs": lambda x, y: (F.normalize(x), x.abs()),
    "clamp_add": lambda x, y: (x.clamp(-1, 1), x + y),
    "silu_elu": lambda x, y: (F.silu(x), F.elu(x), x.sqrt()),
    "cumsum_max": lambda x, y: (x.cumsum(0), x.max(-1).values),
    "where_rsqrt": lambda x, y: (x.rsqrt(), torch.where(x > 0, x, y)),
    "expand_logsumexp": lambda x, y: (x.expand(2, 4, 4) * 2, x.logsumexp(0)),
    "moments": lambda x, y: (x.mean(), x.var(1), x.prod(0)),
    "view_of_layer_norm": lambda x, y: (F.layer_norm(x, (4,)).view(2, 8),),
    "selected_by_a_tensor": lambda x, y: (torch.std(x, 0)[(x.sum() > 0).long()].view(1, 1),
                                          y.exp()[(x.sum() < 0).long()], (x + y)[(x.sum() < 0).long()]),
    "the_same_twice": lambda x, y: (x.exp(), x.exp() * 2),
    "of_what_was_kept": lambda x, y: (x.sin(), (x + 1).sin()),
    "of_a_kept_result": lambda x, y: ((e := x.exp()), (e + 1).sin(), y * y),
    "detached": lambda x, y: ((e := x.exp()) * 2, e.detach()),
}


def _observed(f, written, taken=slice(None), create_graph=False):
    """Gradients of the results ``taken``, after argument or result ``written`` was written to."""
    torch.manual_seed(0)
    leaves = [torch.rand(4, 4, requires_grad=True) for _ in range(2)]
    arguments = [t * 1 for t in leaves]
    results = f(*arguments)
    tensors = [*arguments, *results]
    if written >= len(tensors):
        return None
    with torch.no_grad():
        tensors[written].add_(1)
    differentiable = [r for r in results[taken] if r.requires_grad]
    if not differentiable:
        return None
    loss = sum((r * 1).sum() for r in differentiable)
    try:
        return torch.autograd.grad(loss, leaves, allow_unused=True, create_graph=create_graph)
    except RuntimeError as e:
        assert "modified by an inplace operation" in str(e)
        return "raises"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name):
    compiled = jit.compile(FUNCTIONS[name])
    for written in range(5):
        want, got = _observed(FUNCTIONS[name], written), _observed(compiled, written)
        if want is None or want == "raises":
            assert got == want, written
        else:
            assert got != "raises", written
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("create_graph", (False, True))
@pytest.mark.parametrize("name", [name for name, f in FUNCTIONS.items() if len(f(*[torch.rand(4, 4)] * 2)) > 1])
def test_one_of_several_results(name, create_graph):
    compiled = jit.compile(FUNCTIONS[name])
    for taken in range(3):
        for written in range(2 if create_graph else 0, 5):  # computed from anew then: what an argument keeps
            want, got = (_observed(f, written, slice(taken, taken + 1), create_graph)
                         for f in (FUNCTIONS[name], compiled))
            if want is None or want == "raises":
                assert got == want, (taken, written)
            else:
                assert got != "raises", (taken, written)
                torch.testing.assert_close(got, want)


def test_across_a_break():
    def f(x, y):
        y.sub_(x.mean())
        distance = torch.dist(x, y)
        y.transpose_(0, 1)
        return y, distance

    def g(x, y):
        deviation = y.std(0, unbiased=False)
        jit.graph_break()
        deviation[0] = 2.0
        return x, deviation

    for function in (f, g):
        for call in (function, jit.compile(function)):
            x, y = (torch.rand(4, 4, requires_grad=True) for _ in range(2))
            results = call(x * 1, y * 1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                sum(r.sum() for r in results).backward()


def test_sizes_that_vary():
    def f(x):
        return F.layer_norm(x, x.shape[-1:]), x.norm(dim=-1)

    compiled = jit.compile(f, dynamic=True)
    for n in (3, 5, 8):
        for k, raises in ((0, False), (1, True)):
            x = torch.rand(n, n + 1, requires_grad=True)
            results = compiled(x * 1)
            with torch.no_grad():
                results[k].add_(1)
            if raises:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    (results[0].sum() + results[1].sum()).backward()
            else:
                (results[0].square().sum() + results[1].sum()).backward()


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_lies_between_the_elements_of_an_argument_is_saved(dynamic):
    """Only one of the results needs what ``as_strided`` shows, so that the backward reads a copy: a copy of the
    argument has nothing between its elements."""
    def f(y, i):
        shown = y.as_strided((3, 4), (4, 1))
        return F.batch_norm(shown, None, None, training=True), shown.index_fill(0, i, 2), shown.exp() * shown.sin()

    def gradient(fn, columns):
        leaf = (torch.arange(72.0) % 7 / 4).requires_grad_()
        results = fn(leaf.as_strided((3, columns), (24, 3)), torch.tensor([2]))
        return torch.autograd.grad(sum((r * torch.arange(12.0).view(3, 4)).sum() for r in results), leaf)

    compiled = jit.compile(f, dynamic=dynamic)
    for columns in (4, 6, 3, 4):
        torch.testing.assert_close(gradient(compiled, columns), gradient(f, columns))
