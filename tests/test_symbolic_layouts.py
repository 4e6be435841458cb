"""Inputs of other layouts after sizes have become symbols, on the default backend: values, strides, gradients, what
lies beside a written view."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import jit
from jit.errors import GuardError
from jit.graph.dims import Sym
from jit.graph.ir import TensorType
from jit.graph.shape_env import ShapeEnv

from sweeps.database import difference

rn = torch.randn


def wide(*shape):
    return rn(*shape[:-1], shape[-1] + 13)[..., 5 : 5 + shape[-1]]


def rows(*shape):
    return rn(shape[0] + 9, *shape[1:])[4 : 4 + shape[0]]


def stepped(*shape):
    return rn(*shape[:-1], 3 * shape[-1])[..., ::3]


def turned(*shape):
    return rn(*reversed(shape)).permute(*reversed(range(len(shape))))


def repeated(*shape):
    return rn(1, *shape[1:]).expand(shape)


def column(*shape):
    return rn(*shape[:-1], 1).expand(shape)


LAYOUTS = (wide, rows, stepped, turned, repeated, column)
PROGRAMS = {
    "pointwise": lambda x: x * 2 + 1,
    "row": lambda x: torch.softmax(x, -1) + x.sum(-1, keepdim=True),
    "column": lambda x: x.sum(0) + x.amax(0),
    "contiguous": lambda x: (x.contiguous() + 1, x.is_contiguous(), x.contiguous() is x, x.stride()),
    "flat": lambda x: x.reshape(-1) * 2,
    "dense copies": lambda x: (x.clone(), torch.empty_like(x).fill_(2), x.double()),
    "rows read": lambda x: x[1:] - x[:-1],
    "product": lambda x: torch.relu(x @ x.t()),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "joined": lambda x: torch.cat([x, x * 2], 1),
    "view": lambda x: x.t()[1:],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_function_over_sizes_and_layouts(name, dynamic):
    program = PROGRAMS[name]
    jit.reset()
    compiled = jit.compile(program, dynamic=dynamic, fullgraph=True)
    shapes = [(4, 5), (4, 7), (6, 7), (3, 9)]
    inputs = [rn(*s) for s in shapes] + [make(*s) for s in ((4, 6), (5, 8), (5, 5)) for make in LAYOUTS] + [
        rn(7, 7), rn(2, 3)]
    with jit.config.patch(cache_limit=64):
        for x in inputs:
            want, got = program(x), compiled(x)
            assert not difference(want, got), (x.shape, x.stride(), difference(want, got))


def test_gradients_of_views_after_the_sizes_have_become_symbols():
    def program(x, w):
        return (torch.tanh(x * w) @ w.unsqueeze(1)).sum()

    compiled = jit.compile(program, fullgraph=True)
    with jit.config.patch(cache_limit=64):
        for n, view in ((3, None), (5, None), (6, None),
                        *((n, v) for n in (4, 7)
                          for v in (lambda b: b[:, 2:10], lambda b: b[1:, ::2][:, :8], lambda b: b.t()[:8, :8].t(),
                                    lambda b: b[:1, :8].expand(5, 8)))):
            gradients = []
            base, weight = rn(n + 12, 20), rn(8)
            for fn in (program, compiled):
                b, w = base.clone().requires_grad_(), weight.clone().requires_grad_()
                fn(b[:n, :8] if view is None else view(b), w).backward()
                gradients.append((b.grad, w.grad))
            assert not difference(*gradients), difference(*gradients)


@pytest.mark.parametrize("write", [lambda x: x.mul_(0), lambda x: x.add_(x.sum()),
                                   lambda x: x[1:].copy_(x[:-1].clone()), lambda x: x.t().sub_(1)])
def test_writes_stay_within_the_view(write):
    def program(x):
        write(x)
        return x.sum()

    jit.reset()
    compiled = jit.compile(program)
    with jit.config.patch(cache_limit=64):
        for cut in (lambda b: b, lambda b: b[:, :9], lambda b: b[:7], lambda b: b[:, 2:8], lambda b: b[1:5, ::2],
                    lambda b: b.t()[3:, :4], lambda b: b):
            runs = []
            for fn in (program, compiled):
                buffer = torch.arange(110.0).view(10, 11)
                runs.append((fn(cut(buffer)), buffer))
            assert not difference(*runs), difference(*runs)


def test_indices_in_a_slice():
    table = rn(9, 4)
    jit.reset()
    compiled = jit.compile(lambda i, w: F.embedding(i, w) * w[i], fullgraph=True)
    with jit.config.patch(cache_limit=64):
        for make in (lambda n: torch.randint(0, 9, (2, n)), lambda n: torch.randint(0, 9, (2, n + 6))[:, :n],
                     lambda n: torch.randint(0, 9, (n, 2)).t(), lambda n: torch.randint(0, 9, (2, 1)).expand(2, n)):
            for n, w in ((3, table), (5, table), (6, rn(4, 9).t()), (8, rn(18, 8)[::2, ::2])):
                i = make(n)
                assert torch.equal(compiled(i, w), F.embedding(i, w) * w[i])


def test_equal_strides_are_no_accident():
    """A stride that no other dimension continues must not be taken for one that does, nor the other way round."""
    def program(x):
        return x.is_contiguous(), x.contiguous() is x, x.view(-1) if x.is_contiguous() else x.reshape(-1)

    for order in ((0, 1), (1, 0)):
        jit.reset()
        compiled = jit.compile(program, dynamic=True, fullgraph=True)
        inputs = [rn(4, 20)[:, :7], rn(4, 7)]
        for k in (*order, *order):
            assert not difference(program(inputs[k]), compiled(inputs[k]))


def test_empty_operands_of_two_layouts():
    compiled = jit.compile(lambda x, y: (y - x, y + x * 2), dynamic=True, fullgraph=True)
    for x, y in ((rn(0, 7)[:, :4], rn(4, 0).t()), (rn(3, 7)[:, :4], rn(4, 3).t()), (rn(0, 5), rn(5, 0).t())):
        assert not difference((y - x, y + x * 2), compiled(x, y))


def test_a_slice_of_symbolic_length_that_is_the_whole():
    def program(x, n):
        y = x[:, :n]
        return y.is_contiguous(), y.contiguous() * 2, y.clone().stride()

    jit.reset()
    compiled = jit.compile(program, dynamic=True, fullgraph=True)
    for columns, n in ((8, 5), (9, 4), (6, 6), (7, 7), (7, 5)):
        x = rn(4, columns)
        assert not difference(program(x, n), compiled(x, n)), (columns, n)


def test_a_symbolic_size_or_stride_without_a_condition_is_an_error():
    from jit.frame.size_facts import SizeFacts

    env = ShapeEnv()
    facts = SizeFacts(env, {}, None)
    n = env.symbol(5, ("x", "size", 0))
    types = [TensorType((n, 4), (4, 1), torch.float32, torch.device("cpu")),
             TensorType((4, n), (n, 1), torch.float32, torch.device("cpu"))]
    facts.check_bound("x", types[0])
    with pytest.raises(GuardError, match="stride s0 of dim 0 of x"):
        facts.check_bound("x", types[1].replace(shape=(4, 5)))
    env.bind(n, ("x", "stride", 0))
    facts.check_bound("x", types[1].replace(shape=(4, 5)))
    env._record(next(iter(env.guards)).__class__("==0", Sym("unknown", 3, env=env) - n))
    with pytest.raises(GuardError, match="unknown"):
        facts.payload(lambda source: 0)


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_steps_through_empty_tensors(dynamic):
    """The tangents of empty results have any strides, which say nothing about sizes."""
    def f(x):
        return (2 - x)[..., ::2], x.float()

    compiled = jit.compile(f, dynamic=dynamic)
    for shape in ((3, 4), (0, 4), (0, 6), (1, 6), (5, 8), (0, 9), (1, 9)):
        grads = []
        for fn in (f, compiled):
            x = torch.ones(shape, requires_grad=True)
            grads.append(torch.autograd.grad(sum(t.sum() for t in fn(x)), x)[0])
        torch.testing.assert_close(grads[1], grads[0])


# results and gradients that are views of inputs in other layouts

def like_another(x, y):
    v = y.as_strided(x.shape, y.stride())
    return y, v, v.flatten()


def rows_of_another(x, y):
    return y.as_strided(x.shape, y.stride())[1:], y.sum(0, keepdim=True)


def vector_products(x, y):
    return F.linear(y, x.norm(dim=0)), F.linear(x[0], y[0]), F.linear(x, y[0], None)


def of_empties(x, y):
    z = torch.nan_to_num(x)
    return z, y.sum(0, keepdim=True), torch.sigmoid(z), F.normalize(x, dim=-1)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [like_another, rows_of_another, vector_products, of_empties])
def test_views_of_memory_and_empties(program, dynamic, grad, monkeypatch):
    monkeypatch.setattr(jit.config, "cache_limit", 64)
    compiled = jit.compile(program, dynamic=dynamic)
    sizes = [(5, 4), (4, 4), (6, 3)] + ([(3, 0), (0, 4), (2, 0)] if program is of_empties else [])
    for size in sizes:
        for storage, strides in ((90, (size[1], 1)), (90, (1, size[0])), (90, (2, 6)), (90, (7, 1))):
            results = []
            for fn in (program, compiled):
                torch.manual_seed(1)
                leaves = [torch.randn(storage, requires_grad=grad) for _ in range(2)]
                given = [leaf.as_strided(size, strides, 2) for leaf in leaves]
                got = fn(*given)
                gradients = ()
                if grad:
                    gradients = torch.autograd.grad(sum((r * torch.arange(r.numel()).view(r.shape)).sum() for r in got),
                                                    leaves, allow_unused=True)
                results.append((got, gradients, [r.untyped_storage().data_ptr() == g.untyped_storage().data_ptr()
                                                 for r in got for g in given]))
            assert not difference(results[0][0], results[1][0], "result")
            assert not difference(results[0][1], results[1][1], "gradient", False)
            assert results[0][2] == results[1][2]
    assert jit.explain(program)(*[torch.randn(5, 4) for _ in range(2)]).graph_break_count == 0


def test_as_strided_of_inputs_that_share_memory():
    def f(x, y):
        y[..., ::2] += 1
        v = y.as_strided(x.shape, y.stride())
        v[0] *= 2
        return v, v.tanh(), y

    compiled = jit.compile(f)
    for place in (lambda m: (m[:, 2:7], m[:, 2:7]), lambda m: (m[:2, :5], m[:, 2:7]), lambda m: (m[:, 2:7],) * 2):
        seen = []
        for fn in (f, compiled):
            torch.manual_seed(0)
            memory = torch.randn(3, 8)
            x, y = place(memory)
            result = fn(x, y)
            seen.append((*result, memory, x._version > 0, y._version > 0,
                         [r.data_ptr() - memory.data_ptr() for r in result[::2]]))
        assert not difference(*seen, "result")


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_views_beyond_a_part(dynamic):
    """What ``as_strided`` of a view shows beyond that view has no gradient in eager."""
    def diagonal(x):
        return x.diagonal().as_strided(x.shape, x.stride())

    def rows(x):
        return x[1:].as_strided(x.shape, x.stride(), x.storage_offset()) * 2, x[:, 1:].as_strided((2, 2), (1, 1))

    def turned(x):
        return x.t().as_strided(x.shape, x.stride())

    for program in (diagonal, rows, turned):
        compiled = jit.compile(program, dynamic=dynamic)
        for size in ((3, 4), (4, 4), (5, 3)):
            seen = []
            for fn in (program, compiled):
                torch.manual_seed(0)
                leaf = torch.randn(90, requires_grad=True)
                results = fn(leaf.as_strided(size, (size[1], 1), 2))
                results = results if isinstance(results, tuple) else (results,)
                gradients = torch.autograd.grad(sum((r * torch.arange(1, r.numel() + 1).view(r.shape)).sum()
                                                    for r in results), leaf)
                seen.append((results, gradients))
            assert not difference(seen[0][0], seen[1][0], "result")
            assert not difference(seen[0][1], seen[1][1], "gradient", False)


def test_reductions_over_dimensions_of_size_one_are_dense():
    """A kernel that has nothing to add up gives its results eager's strides all the same, whatever the argument's."""
    norms = {p: (lambda x, d, keep, p=p: x.norm(p, d, keep)) for p in ("fro", 0, 1, 2.5, math.inf, -math.inf)}
    others = {name: (lambda x, d, keep, name=name: getattr(torch, name)(x, d, keep))
              for name in ("sum", "amax", "prod", "logsumexp", "nansum", "any")}
    others |= {"std": lambda x, d, keep: x.std(d, correction=0, keepdim=keep),
               "median": lambda x, d, keep: x.median(d, keep)[0]}
    for name, function in {**norms, **others}.items():
        for keep, needs in itertools.product((False, True), repeat=2):
            compiled = jit.compile(lambda x, d, keep: function(x, d, keep), fullgraph=True)
            for x, d in (((torch.randn(4, 5).t()[..., None], -1), (torch.randn(6, 7).t()[..., None], -1),
                          (torch.randn(4, 5).t()[None], 0), (torch.randn(4, 5, 3).permute(2, 0, 1)[:, None], 1))):
                x.requires_grad_(needs)
                want, got = function(x, d, keep), compiled(x, d, keep)
                assert got.stride() == want.stride() and torch.allclose(want.double(), got.double()), (
                    name, keep, x.stride())


ELEMENTWISE = {
    **{f.__name__: f for f in (torch.nan_to_num, torch.deg2rad, torch.rad2deg, F.hardtanh, F.relu6, F.gelu, F.silu,
                               torch.exp, torch.round, torch.neg, torch.zeros_like, torch.clone, torch.isnan)},
    "number over it": lambda x: 2 / x, "tensor over it": lambda x: x.__rdiv__(torch.tensor(2.0)),
    "plus a number": lambda x: x + 1, "times itself": lambda x: x * x, "number minus it": lambda x: 1 - x,
    "sign of a number": lambda x: torch.copysign(x, -3.0), "power": lambda x: x**2,
    "limits": lambda x: x.clamp(0.2, 0.5), "larger": lambda x: x > 0.5, "filled": lambda x: x.masked_fill(x > 0.5, 2),
    "chosen": lambda x: torch.where(x > 0.5, x, 1.0), "diagonal": lambda x: torch.diag(x),
    "doubles": lambda x: x.double(), "loss": lambda x: F.binary_cross_entropy_with_logits(x, x, reduction="none"),
    "mean": lambda x: F.mse_loss(x, x * 2, reduction="none"),
    "huber": lambda x: F.huber_loss(x, x + 1, reduction="none"), "interpolated": lambda x: torch.lerp(x, x, 0.5),
    "product added": lambda x: torch.addcmul(x, x, x), "inverted": lambda x: 3 // x, "remainder": lambda x: x % 0.25,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_strides_of_dimensions_of_size_one(name):
    """They address nothing, but a program can ask for them."""
    fn = ELEMENTWISE[name]
    compiled = jit.compile(lambda x: (fn(x), fn(x).stride()))
    for shape in ((6, 6), (1, 4), (4, 1), (1, 1), (5, 1), (1, 3)):
        x = torch.rand(shape).t()
        want, (got, stride) = fn(x), compiled(x)
        assert got.stride() == stride == want.stride(), shape
        torch.testing.assert_close(got, want)


EMPTY = [((0, 4), (7, 1)), ((0, 4), (1, 9)), ((3, 0), (5, 1)), ((0, 4, 5), (1, 9, 2)), ((2, 4, 0), (9, 2, 1)),
         ((0, 4, 2, 2), (16, 1, 8, 4)), ((2, 4, 1), (8, 1, 3))]


@pytest.mark.parametrize("fn", [
    lambda x, w: F.batch_norm(x, None, None, training=True), lambda x, w: F.batch_norm(x, None, None, w, training=True),
    lambda x, w: F.batch_norm(x, w, w, w, w), lambda x, w: x.mean(1, keepdim=True), lambda x, w: x.mean(0),
    lambda x, w: F.mse_loss(x, x + 1, reduction="none"), lambda x, w: F.smooth_l1_loss(x, x + 1, reduction="none"),
    lambda x, w: F.l1_loss(x, x + 1, reduction="none"),
], ids=["batch_norm", "with a weight", "inference", "mean", "mean of rows", "mse", "smooth_l1", "l1"])
@pytest.mark.parametrize("shape, strides", EMPTY, ids=str)
def test_strides_of_nothing_and_of_single_elements(fn, shape, strides):
    x, outcomes = torch.full((1000,), 0.3).as_strided(shape, strides), []
    w = torch.ones(shape[1])
    for f in (fn, jit.compile(fn)):
        try:
            y = f(x, w)
            outcomes.append((y.shape, y.stride()))
        except (IndexError, ValueError) as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


def test_statistics_stay_where_a_batch_is_empty():
    norm = torch.nn.BatchNorm2d(4)
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    x = torch.randn(0, 4, 3, 3, requires_grad=True)
    jit.compile(norm)(x).sum().backward()
    after = norm.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in ("running_mean", "running_var")) and x.grad.shape == x.shape
    assert torch.equal(norm.weight.grad, torch.zeros(4)) and torch.equal(norm.bias.grad, torch.zeros(4))
