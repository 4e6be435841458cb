"""Calls that PyTorch's kernels refuse for what only a kernel looks at, and calls with unusual arguments that it takes:
as in eager on the default backend, whether or not the result is read, on first and later calls of an entry."""

import sys

import pytest
import torch
import torch.nn.functional as F

import jit
from jit.graph import probe

# Nothing may be left to eager because compiling failed
pytestmark = pytest.mark.filterwarnings("error:jit:UserWarning")


def outcome(fn, *args):
    args = [a.clone() for a in args]
    try:
        result = fn(*args)
    except Exception as error:
        return type(error), str(error)
    return [(tuple(r.shape), r.stride(), r.dtype, r.mul(1e4).round().tolist())
            for r in (result if isinstance(result, tuple) else (result,))], [a.tolist() for a in args]


def check(op, refused, accepted=()):
    def used(*args):
        return op(*args), args[0] + 1

    def unused(*args):
        op(*args)
        return args[0] + 1

    for fn in (used, unused):
        for dynamic in (None, True):
            for calls in ([*refused], [*accepted, *refused, *accepted]):
                jit.reset()
                compiled = jit.compile(fn, dynamic=dynamic)
                for args in calls:
                    assert outcome(compiled, *args) == outcome(fn, *args)


EMPTY, ROWS = [(torch.zeros(3, 0),)], [(torch.arange(12.0).view(3, 4),), (torch.arange(15.0).view(3, 5),)]
IMAGE, KERNEL = torch.ones(1, 2, 8), torch.ones(3, 2, 2)
REFUSED = {
    "median of nothing": (lambda x: x.median(-1).values, EMPTY, ROWS),
    "nanmedian of nothing": (lambda x: x.nanmedian(-1).indices, EMPTY, ROWS),
    "mode of nothing": (lambda x: x.mode(-1).values, EMPTY, ROWS),
    "kthvalue of nothing": (lambda x: x.kthvalue(1).values, EMPTY, ROWS),
    "argmax of nothing": (lambda x: x.argmax(-1), EMPTY, ROWS),
    "quantile of nothing": (lambda x: x.quantile(0.5, -1), EMPTY, ROWS),
    "pooling divided by 0": (lambda x: F.avg_pool3d(x[None, None, None], 1, divisor_override=0), ROWS, ()),
    "convolution with a dilation of 0": (lambda x: F.conv1d(x, KERNEL, dilation=0), [(IMAGE,), (torch.ones(1, 2, 9),)],
                                         ()),
    "convolution with negative padding": (lambda x: F.conv1d(x, KERNEL, padding=-1), [(IMAGE,), (torch.ones(1, 2, 9),)],
                                          ()),
    "class weights of another dtype": (lambda x: F.nll_loss(x, torch.zeros(3, dtype=torch.int64),
                                                            torch.ones(x.shape[1]).half()), ROWS, ()),
    "an index of nothing": (lambda x: torch.gather(x, 1, torch.zeros(3, 1, dtype=torch.int64)), EMPTY, ROWS),
}
OUT = {
    "aminmax": lambda x: torch.aminmax(x, out=(torch.zeros((), dtype=torch.float64),
                                               torch.zeros((), dtype=torch.float64))),
    "complex": lambda x: torch.complex(x, x, out=torch.zeros(x.shape, dtype=torch.complex128)),
    "multinomial": lambda x: torch.multinomial(x + 1, 1, out=torch.zeros(x.shape[0], 1, dtype=torch.float64)),
    "factors": lambda x: torch.linalg.cholesky(torch.eye(x.shape[0]),
                                               out=torch.zeros(x.shape[0], x.shape[0], dtype=torch.float64)),
    "sorted": lambda x: torch.sort(x, out=(torch.zeros(x.shape), torch.zeros(x.shape, dtype=torch.int32))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_a_kernel_refuses(name):
    op, refused, accepted = REFUSED[name]
    assert type(outcome(op, *refused[0])[0]) is type
    check(op, refused, accepted)


@pytest.mark.parametrize("name", OUT)
def test_out_of_another_dtype(name):
    def wrapped(x):
        OUT[name](x)
        return x

    assert type(outcome(wrapped, *ROWS[0])[0]) is type
    check(wrapped, ROWS)


CLASS = torch.tensor([1])
TAKEN = {
    "mT of a scalar": (lambda x: x[0, 0].mT * 2, ROWS),
    "H of a scalar": (lambda x: x[0, 0].H * 2, ROWS),
    "adjoint of a scalar": (lambda x: x[0, 0].adjoint() * 2, ROWS),
    "movedim of a scalar": (lambda x: x[0, 0].movedim(0, 0) * 2, ROWS),
    "one class for a vector": (lambda x: F.nll_loss(x[0], CLASS), ROWS),
    "one class for a vector, as it is": (lambda x: F.nll_loss(x[0], CLASS, reduction="none"), ROWS),
    "cross entropy of a vector": (lambda x: F.cross_entropy(x[0], CLASS), ROWS),
    "cat of nothing, along any dimension": (lambda x: torch.cat([x[0], x[0].double()], 3), [(torch.zeros(1, 0),)]),
    "cat of one that is nothing": (lambda x: torch.cat([x[0]], 3), [(torch.zeros(1, 0),)]),
    "differences of order 0": (lambda x: torch.diff(x, 0, 5), ROWS),
    "roll of nothing": (lambda x: torch.roll(x, (1, 2), (0, 5)), EMPTY),
    "gather by nothing": (lambda x: torch.gather(x, 0, x[:, :0]), ROWS),
    "batch norm of nothing": (lambda x: torch.batch_norm(x[0], None, None, None, x[0], True, 0.1, 1e-5, False),
                              [(torch.zeros(1, 0),)]),
    "indices into nothing": (lambda x: (x > 0).all().index_fill(0, torch.tensor([0]), 2), ROWS),
}


@pytest.mark.parametrize("name", TAKEN)
def test_unusual_arguments_that_are_taken(name):
    op, accepted = TAKEN[name]
    assert type(outcome(op, *accepted[0])[0]) is list
    check(op, accepted)


def test_a_scalar_transposed_is_the_tensor_itself():
    def fn(x):
        y = x.sum()
        return y, y.mT, y.mH, y.H, y.T

    for made in (fn(torch.ones(3)), jit.compile(fn)(torch.ones(3))):
        assert [t is made[0] for t in made] == [True, True, True, True, False]


def test_a_guess_that_eager_refuses_is_no_fault():
    def fn(x, i):
        return (x > 0).all().index_fill(0, i, 2)[:1]

    jit.reset()
    compiled = jit.compile(fn)
    for index in (5, 0, -1, 7):
        args = torch.ones(3, dtype=torch.int64), torch.tensor([index])
        assert outcome(compiled, *args) == outcome(fn, *args)


@pytest.mark.parametrize("solve", [torch.linalg.ldl_solve, torch.linalg.lu_solve], ids=lambda f: f.__name__)
def test_no_made_up_numbers_of_rows_are_given_to_lapack(solve, monkeypatch):
    """It would exchange rows outside of the matrix."""
    tried = []
    for module in list(sys.modules.values()):
        if getattr(module, "ask", None) is probe.ask:
            monkeypatch.setattr(module, "ask", lambda fn, *args, real=probe.ask, **kwargs: tried.append(fn)
                                or real(fn, *args, **kwargs))
    factors = {torch.linalg.ldl_solve: torch.linalg.ldl_factor, torch.linalg.lu_solve: torch.linalg.lu_factor}[solve]

    def fn(x, y):
        return solve(*factors(x), y) * torch.ones(())

    jit.reset()
    compiled = jit.compile(fn)
    for n in (3, 4, 5):
        x, y = torch.eye(n) + 0.1, torch.ones(n, 2)
        torch.testing.assert_close(compiled(x, y), fn(x, y))
    assert factors in tried and solve not in tried


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("op", [lambda x: x @ x.t(), lambda x: F.linear(x, x), lambda x: F.smooth_l1_loss(x, x),
                                lambda x: (x > 0).argmax(-1), lambda x: x.addmm(x, x)],
                         ids=["product", "linear", "smooth_l1_loss", "argmax of bool", "addmm"])
def test_dtypes_that_a_gpu_refuses(op):
    check(op, [(torch.ones(4, 4, dtype=torch.int32, device="cuda"),),
               (torch.ones(5, 5, dtype=torch.int32, device="cuda"),)])


def test_sizes_among_the_arguments_are_no_doubt():
    """Stand-ins are smaller than the tensors; what they are refused for may be a number that goes with the real
    sizes."""
    functions = [
        lambda x: F.layer_norm(x, (x.shape[-1],)),
        lambda x: F.rms_norm(x, (512,)),
        lambda x: F.group_norm(x[None], 4),
        lambda x: F.group_norm(x[None], 8, torch.ones(64), torch.zeros(64)),
        lambda x: F.pixel_shuffle(x.view(1, 64, 16, 32), 4),
        lambda x: F.channel_shuffle(x.view(1, 64, 16, 32), 16),
    ]
    x = torch.rand(64, 512)
    for f in functions:
        told = jit.explain(f)(x)
        graph = "".join(told.graphs)
        assert (told.graph_count, told.graph_break_count) == (1, 0) and "torch.ops.aten" not in graph.replace(
            "torch.ops.aten.alias", ""), graph
        torch.testing.assert_close(jit.compile(f)(x), f(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_two_devices():
    functions = [
        lambda x, i: torch.zeros(x.shape)[i],
        lambda x, i: (torch.stack([torch.zeros(x.shape), x]), x + 1)[1],
        lambda x, i: torch.ones(x.shape) + x,
        lambda x, i: x * torch.tensor(2.0),
        lambda x, i: x[i.cpu()],
        lambda x, i: torch.ones(x.shape) @ x.t(),
        lambda x, i: x.masked_fill(torch.ones(x.shape, dtype=torch.bool), 1.0),
    ]
    for f in functions:
        compiled = jit.compile(f)
        for n in (3, 5, 0):
            x, i = torch.rand(4, n, device="cuda"), torch.tensor([0, 2], device="cuda")
            found = []
            for call in (f, compiled):
                try:
                    found.append(call(x, i))
                except Exception as e:
                    found.append(e)
            want, got = found
            assert type(want) is type(got), (want, got)
            if isinstance(want, Exception):
                assert str(want) == str(got)
            else:
                torch.testing.assert_close(got, want)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_of_nothing_and_infinite_rows_on_a_gpu():
    def f(x, y):
        root = y.abs().sqrt()
        loss = F.smooth_l1_loss(root, x)
        return (root, loss, torch.maximum(y, loss), y.std(0, unbiased=False), F.normalize(y, dim=-1),
                F.rms_norm(x, x.shape[-1:]), x.sum(), torch.stack([y, x]), F.mse_loss(y, y),
                F.embedding(torch.arange(2, device="cuda"), y.detach()) if len(y) else y,
                y[torch.arange(y.shape[0], device="cuda")])

    for dynamic in (None, True):
        jit.reset()
        compiled = jit.compile(f, dynamic=dynamic)
        for shape in ((3, 6), (3, 0), (0, 4), (2, 33)):
            for grad in (False, True):
                results = []
                for call in (f, compiled):
                    generator = torch.Generator("cuda").manual_seed(1)
                    x, y = (torch.rand(shape, device="cuda", generator=generator, requires_grad=grad) for _ in range(2))
                    if x.numel() and not grad:
                        x[0, 0] = float("inf")
                    out = call(x, y)
                    if grad:
                        out = (*out, *torch.autograd.grad(sum(o.sum() for o in out), (x, y)))
                    results.append(out)
                torch.testing.assert_close(results[1], results[0], equal_nan=True)
                torch.cuda.synchronize()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_is_kept_on_a_gpu():
    def f(x):
        y = x * 2
        z = F.rms_norm(y, y.shape[-1:])
        y.t().add_(1)
        return z

    for call in (f, jit.compile(f)):
        for n in (8, 1024):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                call(torch.rand(4, n, dtype=torch.bfloat16, device="cuda", requires_grad=True)).sum().backward()
