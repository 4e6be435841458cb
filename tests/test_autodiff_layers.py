"""Layers whose backward reads what the library's forward has kept, and runs no second forward: values and gradients
against eager."""

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import check_grad
from torch import nn

import jit


def leaf(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def replays(result):
    return [n.attrs["args"][0]
            for n in result.backward.nodes if n.op == "aten_call" and n.attrs["target"] == "jit::vjp"]


def outcome(fn, sources):
    for x in sources:
        x.grad = None
    torch.manual_seed(0)
    results = fn()
    results = results if isinstance(results, tuple) else (results,)
    torch.autograd.backward([r.sum() * (k + 1) + (r * r).sum() for k, r in enumerate(results)])
    return [r.detach() for r in results], [None if x.grad is None else x.grad.clone() for x in sources]


LSTMS = {
    "plain": dict(), "no_bias": dict(bias=False), "two_layers": dict(num_layers=2),
    "both_ways": dict(num_layers=2, bidirectional=True), "batch_first": dict(batch_first=True),
    "projected": dict(proj_size=2), "dropout": dict(num_layers=2, dropout=0.5),
}


# The library draws the mask of a dropout in float64 itself.
@pytest.mark.parametrize("name, dtype", [(name, dtype) for name in LSTMS for dtype in (torch.float32, torch.float64)
                                         if (name, dtype) != ("dropout", torch.float64)], ids=str)
def test_lstm(name, dtype, monkeypatch):
    torch.manual_seed(1)
    layer = nn.LSTM(3, 4, **LSTMS[name]).to(dtype)
    own = dtype is torch.float32 and name != "projected"
    if own:
        from jit.graph.autodiff import reverse

        monkeypatch.setattr("jit.graph.autodiff.reverse.replay", None)  # nothing is run again
        assert reverse.ATEN_VJPS["mkldnn_rnn_layer"]
    x = leaf(5, 2, 3, dtype=dtype)
    sources = [x, *layer.parameters()]
    with jit.config.patch(fallback_random=True):
        compiled = jit.compile(lambda x: (lambda y, s: (y, *s))(*layer(x)), fullgraph=True)
        got = outcome(lambda: compiled(x), sources)
    want = outcome(lambda: (lambda y, s: (y, *s))(*layer(x)), sources)
    torch.testing.assert_close(got, want)
    assert [r.stride() for r in got[0]] == [r.stride() for r in want[0]]


def test_lstm_with_a_state_and_one_result():
    torch.manual_seed(1)
    layer = nn.LSTM(3, 4)
    x, h, c = (leaf(5, 2, 3, dtype=torch.float32), leaf(1, 2, 4, dtype=torch.float32),
               leaf(1, 2, 4, dtype=torch.float32, seed=2))
    for fn in (lambda: layer(x, (h, c))[1][1], lambda: layer(x, (h, c))[0][-1].tanh()):
        sources = [x, h, c, *layer.parameters()]
        torch.testing.assert_close(outcome(jit.compile(fn), sources), outcome(fn, sources))


def test_lstm_in_evaluation_and_twice_differentiated():
    torch.manual_seed(1)
    layer = nn.LSTM(3, 4).eval()
    x = leaf(5, 2, 3, dtype=torch.float32)
    sources = [x, *layer.parameters()]
    fn = lambda: layer(x)[0]  # noqa: E731
    torch.testing.assert_close(outcome(jit.compile(fn), sources), outcome(fn, sources))
    layer.train()

    def penalty(f):
        (g,) = torch.autograd.grad(f().sum(), x, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), sources, allow_unused=True)

    for got, want in zip(penalty(jit.compile(fn)), penalty(fn), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_library_is_without_its_layer(monkeypatch):
    torch.manual_seed(1)
    layer = nn.LSTM(3, 4)
    x = leaf(5, 2, 3, dtype=torch.float32)
    sources = [x, *layer.parameters()]
    with torch.backends.mkldnn.flags(enabled=False):
        fn = lambda: layer(x)[0]  # noqa: E731
        torch.testing.assert_close(outcome(jit.compile(fn), sources), outcome(fn, sources))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss(reduction, zero_infinity, dtype):
    targets = torch.tensor([[1, 2, 2], [3, 1, 0]])

    def fn(x):
        return F.ctc_loss(x.log_softmax(2), targets, (6, 5), (3, 2), reduction=reduction, zero_infinity=zero_infinity)

    tolerance = dict(rtol=1e-4, atol=1e-5) if dtype is torch.float32 else {}
    result = check_grad(fn, leaf(6, 2, 4, dtype=dtype), **tolerance)
    assert not replays(result)


def test_ctc_loss_of_one_sequence_of_joined_targets_and_of_targets_that_are_too_long():
    assert not replays(check_grad(lambda x: F.ctc_loss(x.log_softmax(1), torch.tensor([1, 2]), (6,), (2,),
                                                       reduction="none"), leaf(6, 4)))
    assert not replays(check_grad(lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([1, 2, 3]), (6, 6), (2, 1)),
                                  leaf(6, 2, 4)))
    assert not replays(check_grad(lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([[1, 1, 1]]), (3,), (3,),
                                                       zero_infinity=True), leaf(3, 1, 4)))


OFFSETS = torch.tensor([0, 2, 2, 5])
INDICES = torch.tensor([1, 0, 3, 3, 2, 1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("options", [dict(mode="sum"), dict(mode="mean"), dict(mode="sum", padding_idx=3),
                                     dict(mode="mean", include_last_offset=True)], ids=str)
def test_embedding_bag(options, dtype):
    offsets = torch.tensor([0, 2, 2, 7]) if options.get("include_last_offset") else OFFSETS
    tolerance = dict(rtol=1e-5, atol=1e-6) if dtype is torch.float32 else {}
    assert not replays(check_grad(lambda w: F.embedding_bag(INDICES, w, offsets, **options), leaf(5, 3, dtype=dtype),
                                  **tolerance))
    assert not replays(
        check_grad(lambda w: F.embedding_bag(INDICES[:6].view(2, 3), w,
                                             **{k: v for k, v in options.items() if k != "include_last_offset"}),
                   leaf(5, 3, dtype=dtype), **tolerance))


@pytest.mark.parametrize("options", [dict(), dict(padding_idx=1)], ids=str)
def test_weighted_embedding_bag(options):
    result = check_grad(lambda w, p: F.embedding_bag(INDICES, w, OFFSETS, mode="sum", per_sample_weights=p, **options),
                        leaf(5, 3), leaf(7))
    assert not replays(result)


@pytest.mark.parametrize("options", [dict(mode="max"), dict(mode="mean", padding_idx=3),
                                     dict(mode="sum", scale_grad_by_freq=True)], ids=str)
def test_other_bags_are_replayed(options):
    assert replays(check_grad(lambda w: F.embedding_bag(INDICES, w, OFFSETS, **options), leaf(5, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fn", [lambda x: x.logcumsumexp(1), lambda x: x.logcumsumexp(-2) * x,
                                lambda x: x.t().logcumsumexp(0).exp(), lambda x: (x * 1e4).logcumsumexp(0)])
def test_logcumsumexp(fn, dtype):
    tolerance = dict(rtol=1e-4, atol=1e-4) if dtype is torch.float32 else {}
    assert not replays(check_grad(fn, leaf(4, 5, dtype=dtype), **tolerance))


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_median(name):
    fn = getattr(torch, name)
    for x in (torch.tensor([3.0, 1.0, 2.0, 2.0, 2.0]), torch.tensor([[1.0, 2.0], [float("nan"), 5.0]]),
              torch.tensor(2.0), torch.tensor([float("nan")] * 3)):
        result = check_grad(lambda x: fn(x) * 2, x.double().requires_grad_())
        assert not replays(result) or not x.dim()
    assert not replays(check_grad(lambda x: fn(x, 1).values, leaf(4, 5)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask", [False, True])
def test_attention_by_products_is_as_exact_as_eagers_in_halves(dtype, mask):
    """Three dimensions: no fused kernel. Eager computes in float32, in the backward up to PyTorch 2.14 only."""
    generator = torch.Generator().manual_seed(0)
    given = [3 * torch.randn(4, n, 8, generator=generator).to(dtype) for n in (3, 6, 6)]
    bias = torch.randn(3, 6, generator=generator).to(dtype) if mask else None

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, None if bias is None else bias.to(q.dtype), is_causal=not mask)

    outcomes = []
    for fn, kind in ((attention, torch.float64), (attention, dtype), (jit.compile(attention), dtype)):
        leaves = [t.to(kind).requires_grad_() for t in given]
        out = fn(*leaves)
        wide = out.double() if kind is torch.float64 else out.float()
        outcomes.append([out, *torch.autograd.grad(wide.square().sum(), leaves)])
    for truth, want, got in zip(*outcomes):
        error, eagers = ((t.double() - truth).abs().max() for t in (got, want))
        assert error <= 2 * eagers and got.dtype is want.dtype
