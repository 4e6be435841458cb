"""``torch.autocast`` against eager: which operators are converted and to what, gradients, regions inside and around
compiled functions."""

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import custom_bwd, custom_fwd

import jit
from jit.graph import autocast
from jit.graph.handles import TensorHandle
from jit.graph.op_info import LOWER, op_info
from jit.graph.ops import normalization  # noqa: F401  (fills the op tables)

HALF = (torch.float16, torch.bfloat16)
HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


# ---- the tables, against the lists of PyTorch ------------------------------------------------------------------------


def listed(macro: str) -> list[str]:
    """The operators of one list of autocast_mode.h."""
    text = HEADER.read_text()
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.S)[1]
    return sorted({m[1] or m[2] for m in re.finditer(r"_\((?:ADD_NS\((\w+)\)|(\w+))", body)})


class Operand(TensorHandle):
    """A tensor of which only the device and the dtype matter."""

    __slots__ = ("kind",)
    dtype = property(lambda self: self.kind)
    device = property(lambda self: torch.device("cuda"))

    def __init__(self, dtype):
        self.kind = dtype


def decision(name, *dtypes, low=torch.float16, **kwargs):
    """The dtypes that the operands of ``aten::name`` on a GPU are given under autocast to ``low``; "refused" where it
    breaks."""
    tracer = SimpleNamespace(autocast={"cuda": low}, call_op=lambda op, args, kwargs: Operand(args[1]))
    operands = tuple(map(Operand, dtypes))
    try:
        cast = autocast.convert(tracer, name, operands, kwargs)
    except jit.errors.Unsupported:
        return "refused"
    return tuple(o.dtype for o in (operands if cast is None else cast[0]))


MIXES = [(a, b) for a in (torch.float32,
                          torch.float16) for b in (torch.float32, torch.float16, torch.float64, torch.int64)]


def each(dtypes, target):
    return tuple(target if d.is_floating_point and d is not torch.float64 else d for d in dtypes)


@pytest.mark.skipif(not HEADER.exists(), reason="this torch has no headers")
def test_operators_on_a_gpu():
    """What autocast does with each operator on its lists for GPUs, by the dtypes of two operands."""
    for name in listed("AT_FORALL_LOWER_PRECISION_FP"):
        for mix in MIXES:
            assert decision(name, *mix) == each(mix, torch.float16), name
    for macro in ("AT_FORALL_FP32", "AT_FORALL_FP32_SET_OPT_DTYPE"):
        for name in listed(macro):
            for mix in MIXES:
                assert decision(name, *mix) == each(mix, torch.float32), name
    for name in listed("AT_FORALL_PROMOTE"):
        for mix in MIXES:
            assert decision(name, *mix) == each(mix, torch.float32 if torch.float32 in mix else torch.float16), name
        assert decision(name, torch.float16, torch.bfloat16) == "refused"


def test_every_intercepted_operator_has_a_policy():
    """All names that PyTorch registers for GPUs: lower precision and promotion as their tables say, float32 else."""
    registered = {r.split("::")[1].split(".")[0]
                  for r in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
                  if r.startswith("aten::")}
    for name in sorted(registered):
        how = op_info(name).autocast
        want = ("refused" if name == "binary_cross_entropy"
                else (torch.float16 if how == LOWER else torch.float32,) * 2)
        assert decision(name, torch.float32, torch.float32) == (
            want if how in (None, LOWER) else (torch.float32,) * 2), name


def test_operators_on_a_gpu_that_are_made_of_intercepted_ones():
    for name in ("cross_entropy_loss", "nll_loss_nd", "pairwise_distance", "square", "rpow", "rdiv", "arccos", "arcsin",
                 "special_softmax", "special_expm1"):
        assert decision(name, torch.float16, torch.float16) == (torch.float32,) * 2, name
    assert decision("arctan2", torch.float16, torch.float32) == (torch.float32,) * 2


def test_operators_on_a_gpu_that_are_left_alone():
    for name in ("add", "mul", "div", "sub", "relu", "gelu", "sigmoid", "tanh", "max", "where", "clone", "transpose",
                 "native_dropout", "embedding", "add_", "addmm_", "exp_", "lt", "cat", "stack"):
        assert decision(name, torch.float16, torch.float32) == (torch.float16, torch.float32), name
    assert decision("mm", torch.float32, torch.float32, out=Operand(torch.float32)) == (torch.float32,) * 2
    assert decision("matmul", torch.float32, torch.float32, out=Operand(torch.float32)) == "refused"


# ---- values and dtypes on the CPU ------------------------------------------------------------------------------------


M, V, I = (torch.rand(*shape, generator=torch.Generator().manual_seed(0)) for shape in ((4, 4), (4,), (2, 3, 6, 6)))
BATCH, ROWS, IMAGE = M[None], torch.arange(4), I
# (function, operands) of the lists for the CPU: lower precision, float32, promotion; and what is not on them.
ON_CPU = [
    (torch.mm, (M, M)), (torch.matmul, (M, V)), (torch.bmm, (BATCH, BATCH)), (torch.addmm, (M, M, M)),
    (torch.baddbmm, (BATCH, BATCH, BATCH)), (torch.addbmm, (M, BATCH, BATCH)), (F.linear, (M, M, V)),
    (torch.conv1d, (IMAGE[0], I[0, :, :, :2])), (torch.conv2d, (IMAGE, I[:, :, :3, :3])),
    (torch.conv3d, (IMAGE[None], I[None, :, :2, :2, :2])),
    (torch.conv_transpose1d, (IMAGE[0], I[0].transpose(0, 1)[:, :, :2])),
    (torch.conv_transpose2d, (IMAGE, I[0, :, None, :3, :3])), (torch.prelu, (M, V[:1])),
    (F.scaled_dot_product_attention, (BATCH, BATCH, BATCH)), (torch.linalg.vecdot, (M, M)), (F.mse_loss, (M, M + 1)),
    (F.l1_loss, (M, M + 1)), (F.smooth_l1_loss, (M, M + 1)), (F.huber_loss, (M, M + 1)),
    (F.kl_div, (M.log_softmax(-1), M)), (F.nll_loss, (M.log_softmax(-1), ROWS)), (F.cross_entropy, (M, ROWS)),
    (F.binary_cross_entropy, (M, M)), (F.binary_cross_entropy_with_logits, (M, M)), (F.soft_margin_loss, (M, M)),
    (F.multi_margin_loss, (M, ROWS)), (F.hinge_embedding_loss, (M, M.sign())),
    (F.margin_ranking_loss, (V, V + 1, V.sign())), (F.cosine_embedding_loss, (M, M + 1, V.sign())),
    (F.triplet_margin_loss, (M, M + 1, M - 1)), (F.poisson_nll_loss, (M, M)), (torch.prod, (M,)), (torch.cdist, (M, M)),
    (torch.trace, (M,)), (torch.quantile, (M, 0.5)), (F.avg_pool3d, (IMAGE, 2)), (F.adaptive_avg_pool3d, (IMAGE, 2)),
    (F.grid_sample, (IMAGE, I[:, :, :, :2].permute(0, 2, 1, 3))), (torch.linalg.inv, (M + torch.eye(4) * 4,)),
    (torch.fft.rfft, (M,)), (torch.cat, ([M, M],)), (torch.stack, ([M, M],)), (torch.index_copy, (M, 0, ROWS, M)),
    (torch.add, (M, M)), (torch.mul, (M, V)), (torch.div, (M, M)), (torch.eq, (M, M)), (torch.lt, (M, V)),
    (torch.softmax, (M, -1)), (F.gelu, (M,)), (F.layer_norm, (M, (4,))), (torch.sum, (M,)),
]


def with_dtypes(args, dtypes):
    """The operands with their floating tensors in these dtypes, in turn."""
    dtypes = iter(dtypes * 9)

    def convert(v):
        if isinstance(v, (list, tuple)):
            return type(v)(map(convert, v))
        return v.to(next(dtypes)) if isinstance(v, torch.Tensor) and v.is_floating_point() else v

    return convert(args)


def outcome(fn, args, low=torch.bfloat16, **options):
    try:
        with torch.autocast("cpu", low, **options):
            result = fn(*args)
    except Exception as error:
        return type(error).__name__
    return [t for t in (result if isinstance(result, (tuple, list)) else [result])]


def agree(got, want):
    """The same dtypes, sizes and strides; values up to a rounding in bfloat16."""
    if isinstance(want, str):
        assert got == want
        return
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        if isinstance(w, torch.Tensor):
            assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
            torch.testing.assert_close(g.float(), w.float(), rtol=2e-2, atol=1e-2, equal_nan=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_operators_on_the_cpu():
    for fn, args in ON_CPU:
        for dtypes in ((torch.float32,), (torch.bfloat16,), (torch.float32, torch.bfloat16),
                       (torch.float64, torch.float32)):
            given = with_dtypes(args, dtypes)
            assert dtypes != (torch.float32,) or not isinstance(outcome(fn, given), str), fn
            agree(outcome(jit.compile(lambda *a: fn(*a), backend="eager"), given), outcome(fn, given))


X, Y = (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),
        torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
H = X.bfloat16()
PROGRAMS = {
    "in-place": lambda: (X.clone().addmm_(X, Y), X[None].clone().baddbmm_(X[None], Y[None]),
                         X[0].clone().addmv_(X, Y[0]), X.clone().__iadd__(H)),
    "out": lambda: (torch.mm(X, Y, out=torch.empty(4, 4)), torch.matmul(X, Y, out=torch.empty(4, 4)),
                    torch.cat([X, H], out=torch.empty(8, 4)), torch.bmm(X[None], Y[None], out=torch.empty(1, 4, 4))),
    "forms": lambda: (X @ Y, X.__rmatmul__(Y), X.mv(Y[0]), X[0].dot(Y[0]), torch.tensordot(X, Y, 1),
                      torch.einsum("ij,jk->ik", X, Y), torch.linalg.multi_dot([X, Y, X])),
    "joined": lambda: (torch.cat([X, H]), torch.hstack([H, X]), torch.stack([H, H]), torch.column_stack([H, X])),
    "reduced": lambda: (H.sum(), H.prod(1, True), torch.prod(H, 0, False, dtype=torch.float64), H.norm(),
                        torch.linalg.vector_norm(H), H.softmax(-1, torch.float32)),
    "others": lambda: (X.double() @ Y.double(), torch.tensor([[1, 2]]) @ torch.tensor([[1], [2]]),
                       (X.cfloat() @ Y.cfloat()).real, torch.where(X > 0, X, H)),
    "cells": lambda: (F.linear(X, Y, X[0]), F.prelu(X, torch.tensor([0.2])), F.bilinear(X, Y, torch.ones(2, 4, 4)),
                      F.scaled_dot_product_attention(X[None], H[None], X[None])),
    "spatial": lambda: (F.avg_pool3d(H[None, None, None], (1, 2, 2)), F.pad(H[None], (1, 1), mode="reflect"),
                        F.interpolate(H[None, None], scale_factor=2, mode="bilinear")),
}


@pytest.mark.parametrize("low", HALF)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, low):
    fn = PROGRAMS[name]
    agree(outcome(jit.compile(fn), (), low), outcome(fn, (), low))


# ---- regions ---------------------------------------------------------------------------------------------------------


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.Softmax(-1),
                         nn.Linear(16, 4))


def cast(dtype=torch.bfloat16, **options):
    return torch.autocast("cpu", dtype, **options)


def nested(model, x):
    with cast():
        a = model[0](x)
        with cast(enabled=False):
            b = model[1](a.float())
            with cast():
                c = model[5](b)
            d = model[3](b)
        e = model[3](b)
    return a, b, c, d, e, model[3](b)


@cast()
def decorated(model, x):
    return model(x), torch.is_autocast_enabled("cpu")


def uncached(model, x):
    with cast(cache_enabled=False):
        return model[0](x) + model[0](x * 2), torch.is_autocast_cache_enabled()


def switched_by_argument(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=x.shape[0] > 2):
        return model(x)


def left_by_an_exception(model, x):
    try:
        with cast():
            model(x)
            raise ValueError
    except ValueError:
        return model(x), torch.is_autocast_enabled("cpu")


def broken_inside(model, x):
    with cast():
        a = model[0](x)
        jit.graph_break()
        with cast(enabled=False):
            jit.graph_break()
            b = model[3](a.float())
        return a, b, model[3](b)


REGIONS = [nested, decorated, uncached, switched_by_argument, left_by_an_exception, broken_inside]


def gradients(fn, model, x, around):
    """Results, and the gradients of parameters and input."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    with around():
        results = fn(model, x)
    results = results if isinstance(results, tuple) else (results,)
    sum(r.float().square().sum() for r in results if isinstance(r, torch.Tensor)).backward()
    return results, [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("options", [{}, {"backend": "eager"}])
@pytest.mark.parametrize("fn", REGIONS)
def test_regions(fn, options):
    """Called outside of any autocast, inside, and inside one that is off."""
    compiled = jit.compile(fn, **options)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    for around in (contextlib.nullcontext, cast, lambda: cast(enabled=False), contextlib.nullcontext):
        (got, ours), (want, theirs) = gradients(compiled, net(), x, around), gradients(fn, net(), x, around)
        for g, w in zip(got, want, strict=True):
            if isinstance(w, torch.Tensor):
                assert g.dtype is w.dtype
                torch.testing.assert_close(g, w, rtol=3e-2, atol=3e-2)
            else:
                assert g == w
        for g, w in zip(ours, theirs, strict=True):
            assert (g is None) == (w is None)
            if w is not None:
                assert g.dtype is w.dtype
                torch.testing.assert_close(g, w, rtol=8e-2, atol=3e-2)
        assert not torch.is_autocast_enabled("cpu")


class InFull(torch.autograd.Function):
    """A product in float32, whatever autocast says."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w, 

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class AsAround(torch.autograd.Function):
    """A product in the precision that autocast says, in the backward too."""

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w, 

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g @ w.t()).to(x.dtype), (x.t() @ g).to(w.dtype)


@pytest.mark.parametrize("function", [InFull, AsAround])
@pytest.mark.parametrize("inside", [False, True])
def test_functions_with_a_backward_of_their_own(function, inside):
    def f(x, w):
        with cast() if inside else contextlib.nullcontext():
            return function.apply(x @ w, w)[0]

    def run(fn, around):
        x, w = X.clone().requires_grad_(), Y.clone().requires_grad_()
        with around():
            out = fn(x, w)
        out.float().sum().backward()
        return out.detach(), x.grad, w.grad

    compiled = jit.compile(f, backend="eager")
    for around in (contextlib.nullcontext, cast, contextlib.nullcontext):
        for g, w in zip(run(compiled, around), run(f, around), strict=True):
            assert g.dtype is w.dtype
            torch.testing.assert_close(g, w, rtol=3e-2, atol=3e-2)


def test_entered_around_both_ways():
    """One compiled module called with autocast on and off, and with another dtype: each call as in eager."""
    model, x = net(), torch.randn(5, 8)
    compiled = jit.compile(model)
    for _ in range(2):
        for around in (contextlib.nullcontext, cast, lambda: cast(torch.float16), lambda: cast(enabled=False)):
            with around():
                got, want = compiled(x), model(x)
            assert got.dtype is want.dtype
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
