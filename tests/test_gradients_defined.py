"""Which gradients eager leaves undefined (None), which are zeros, and which results have none; results that are views
by other means than strides."""

import pytest
import torch
import torch.nn.functional as F

import jit

ONES = torch.ones(4, 4, dtype=torch.bool)
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])


def overwritten(change):
    def program(x, y):
        z = x * 2
        change(z, y)
        return z

    return program


PROGRAMS = {
    "norm_0": lambda x, y: x.norm(0),
    "norm_0_dim": lambda x, y: torch.linalg.vector_norm(x, 0, 1, keepdim=True),
    "norm_0_and_sum": lambda x, y: x.norm(0) + x.sum(),
    "power_0": lambda x, y: x**0,
    "repeated_to_nothing": lambda x, y: x.repeat(0, 1),
    "tiled_to_nothing": lambda x, y: x.tile(2, 0),
    "zero_": overwritten(lambda z, y: z.zero_()),
    "zero_row": overwritten(lambda z, y: z[1].zero_()),
    "zero_column": overwritten(lambda z, y: z[:, ::2].zero_()),
    "fill_": overwritten(lambda z, y: z.view(-1).fill_(3.0)),
    "copy_": overwritten(lambda z, y: z.copy_(y)),
    "copy_detached": overwritten(lambda z, y: z.copy_(y.detach())),
    "assigned": overwritten(lambda z, y: z.__setitem__(slice(None), y)),
    "assigned_number": overwritten(lambda z, y: z.__setitem__(slice(None), 1.5)),
    "masked_fill_": overwritten(lambda z, y: z.masked_fill_(ONES, 0.0)),
    "normal_": overwritten(lambda z, y: z.uniform_(0, 0)),
    "histogram": lambda x, y: (torch.histc(x, 5, -1, 1), x * 2),
    "other_bits": lambda x, y: (x.bfloat16().view(torch.float16), x * 2),
    "embedding_losses": lambda x, y: F.cosine_embedding_loss(x, y, SIGNS, 0.1) + F.hinge_embedding_loss(x[0], SIGNS),
    "loss_targets": lambda x, y: (F.hinge_embedding_loss(x, y),
                                  F.cosine_embedding_loss(x, y.detach(), y[0], reduction="none")),
    "batch_norm": lambda x, y: torch.native_batch_norm(x, y[0], y[1], torch.zeros(4), torch.ones(4), True, 0.1, 1e-5),
    "slogdet": lambda x, y: torch.ops.aten._linalg_slogdet(x)[:2],
    "solve": lambda x, y: torch.ops.aten._linalg_solve_ex(x, y)[:2],
}


def outcome(fn, *tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    results = fn(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    torch.autograd.backward([(r.abs() if r.is_complex() else r).sum() for r in results if r.requires_grad])
    return results, [t.grad for t in leaves]


def compare(got, want):
    for g, w in zip(got[0], want[0], strict=True):
        assert g.requires_grad == w.requires_grad and g.stride() == w.stride()
        torch.testing.assert_close(g, w)
    for g, w in zip(got[1], want[1], strict=True):
        assert (g is None) == (w is None), (g, w)
        if w is not None:
            torch.testing.assert_close(g, w)


@pytest.mark.parametrize("backend", ["jit", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_undefined_or_zero(name, backend):
    x, y = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1))
    fn = PROGRAMS[name]
    compare(outcome(jit.compile(fn, backend=backend, fullgraph=True), x, y), outcome(fn, x, y))


VIEWS = {
    "view_as_complex": lambda x: torch.view_as_complex(x),
    "of_a_slice": lambda x: torch.view_as_complex(x[1:]),
    "as_strided": lambda x: torch.as_strided(x, (3, 2), (2, 1), 1),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "imaginary": lambda x: torch.view_as_complex(x).imag,
    "two_views": lambda x: (torch.view_as_complex(x), x.t(), x * 2),
    "view_of_a_result": lambda x: (lambda y: (y, torch.view_as_complex(y), y.unfold(0, 2, 2)))(x * 3),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_by_the_library(name):
    """They are views to autograd too: a write to one reaches its base."""
    fn, x = VIEWS[name], torch.randn(5, 2)
    compiled = jit.compile(fn, fullgraph=True)
    for n in (5, 5, 7):
        x = torch.randn(n, 2)
        got, want = outcome(compiled, x), outcome(fn, x)
        compare(got, want)
        assert [r._is_view() for r in got[0]] == [r._is_view() for r in want[0]]

    def written(f):
        leaf = x.clone().requires_grad_()
        base = leaf * 1
        results = f(base)
        view = results if isinstance(results, torch.Tensor) else results[-1]
        view.mul_(2)
        (base * base).sum().backward()
        return base.detach(), leaf.grad

    if name != "unfold":  # whose elements overlap
        for g, w in zip(written(compiled), written(fn)):
            torch.testing.assert_close(g, w)


def test_the_number_of_a_dimension_is_no_size():
    """A dimension that varies from call to call is specialised; library calls take no symbol for it."""
    fn = jit.compile(lambda x, dim, index, source: torch.scatter(x, dim, index, source), fullgraph=True)
    x, index, source = torch.randn(3, 4), torch.tensor([[0, 1], [2, 0]]), torch.randn(2, 2)
    for dim in (0, 1, -1, 0):
        leaves = [v.clone().requires_grad_() for v in (x, source)]
        got = fn(leaves[0], dim, index, leaves[1])
        torch.testing.assert_close(got, torch.scatter(x, dim, index, source))
        got.sum().backward()
        assert leaves[1].grad.sum() == 4


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (2, 2)], ids=str)
@pytest.mark.parametrize("fn", [torch.linalg.det, torch.linalg.inv, lambda x: torch.linalg.slogdet(x)[1],
                                torch.linalg.matrix_exp], ids=["det", "inv", "slogdet", "matrix_exp"])
def test_of_library_operators_on_nothing(fn, shape):
    def program(x):
        return fn(x).sum() * 2

    found = []
    for f in (program, jit.compile(program)):
        x = (torch.eye(shape[-1]) * 2).expand(shape).clone().requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, allow_unused=True)
        found.append(g)
    assert (found[0] is None) == (found[1] is None)
    assert found[0] is None or torch.allclose(*found)


@pytest.mark.parametrize("shape", [(3, 4), (3, 0), (0, 3), (5, 4)], ids=str)
@pytest.mark.parametrize("fn", [lambda x, y: (y.triu(1), x.neg()), lambda x, y: (y.exp(), x.floor(), x * y),
                                lambda x, y: (x.softmax(-1), y.floor())], ids=["triu", "floor", "softmax"])
def test_inputs_that_a_result_does_not_depend_on(fn, shape):
    """Also where the values of gradients do not tell: they are zero, or there are none."""
    compiled = jit.compile(fn)
    for k in range(len(fn(*torch.ones(2, 2, 2)))):
        found = []
        for f in (fn, compiled):
            leaves = [torch.ones(shape, requires_grad=True) for _ in range(2)]
            f(*leaves)[k].sum().backward()
            found.append([t.grad for t in leaves])
        for want, got in zip(*found, strict=True):
            assert (want is None) == (got is None)
            assert want is None or torch.equal(want, got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_targets_have_no_gradient_in_any_dtype(dtype):
    """Losses that are one library call for halves: the call's own gradient says which of its arguments have one."""
    rows, signs = torch.randn(4, 3).to(dtype), torch.tensor([1.0, -1.0, 1.0, -1.0]).to(dtype)
    for fn, given in (((F.hinge_embedding_loss, (rows[:, 0], signs)),
                       (F.cosine_embedding_loss, (rows, rows + 1, signs)))):
        defined = []
        for call in (fn, jit.compile(fn)):
            leaves = [t.clone().requires_grad_() for t in given]
            defined.append([g is not None for g in torch.autograd.grad(call(*leaves), leaves, allow_unused=True)])
        assert defined[0] == defined[1]
