"""torch.nn.attention.flex_attention: one graph, with eager's values, types and layouts."""

import warnings

import pytest
import torch
import torch.nn.attention.flex_attention as module

warnings.filterwarnings("ignore", message="flex_attention called without")
from torch.nn.attention.flex_attention import (  # noqa: E402
    AuxRequest, and_masks, create_block_mask, flex_attention, or_masks,
)

import jit  # noqa: E402
from jit.errors import Unsupported  # noqa: E402

B, H, M, N, D = 2, 4, 128, 128, 16
IDS = torch.arange(M) // 48
TABLE = torch.linspace(-1, 1, 2 * M - 1)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
LENGTHS = torch.tensor([100, 0])  # the second sequence has no keys at all
PLACES = torch.randn(B, H, M, N)


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k <= 32) & (q - k >= -8)


def documents(b, h, q, k):
    return IDS[q] == IDS[k]


def padding(b, h, q, k):
    return k < LENGTHS[b]


SCORES = {
    "none": None,
    "alibi": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "softcap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    "relative": lambda s, b, h, q, k: s + TABLE[q - k + M - 1],
    "bias": lambda s, b, h, q, k: s + PLACES[b, h, q, k],
    "masked": lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
    "several": lambda s, b, h, q, k: torch.where(h % 2 == 0, torch.sigmoid(s), s.exp().clamp(max=3.0)) + b * 0.5,
    "integers": lambda s, b, h, q, k: s * (1 + q // 4 % 2) - torch.abs(q - k).to(torch.float32) * 0.01,
}
MASKS = {
    "none": None, "causal": causal, "window": window, "documents": documents, "padding": padding,
    "both": and_masks(causal, documents), "either": or_masks(window, documents),
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # eager without PyTorch's compiler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def operands(dtype=torch.float32, heads=H, layout="dense", m=M, n=N, d=D, batch=B):
    def make(h, length):
        if layout == "heads last":
            return torch.randn(batch, length, h, d, dtype=dtype).transpose(1, 2)
        if layout == "sliced":
            return torch.randn(batch, h, length + 3, 2 * d, dtype=dtype)[:, :, 2:-1, :d]
        return torch.randn(batch, h, length, d, dtype=dtype)
    return make(H, m), make(heads, n), make(heads, n)


def close(got, expected, dtype):
    assert got.dtype is expected.dtype and got.shape == expected.shape and got.stride() == expected.stride()
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 1e-2)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def agree(fn, *args, dtype=torch.float32, **options):
    expected = fn(*args)
    compiled = jit.compile(fn, fullgraph=True, **options)
    for _ in range(2):
        got = compiled(*args)
        for a, e in zip(got if type(got) is tuple else (got,), expected if type(expected) is tuple else (expected,)):
            close(a, e, dtype)
    return compiled


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_functions(score, mask):
    block_mask = MASKS[mask] and create_block_mask(MASKS[mask], B, H, M, N, device="cpu")
    agree(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[score], block_mask=block_mask), *operands())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["dense", "heads last", "sliced"])
def test_layouts(dtype, layout):
    block_mask = create_block_mask(causal, None, None, M, N, device="cpu")
    agree(lambda q, k, v: flex_attention(q, k, v, SCORES["alibi"], block_mask), *operands(dtype, layout=layout),
          dtype=dtype)


@pytest.mark.parametrize("heads", [1, 2])
def test_grouped_heads(heads):
    fn = lambda q, k, v: flex_attention(q, k, v, SCORES["alibi"], enable_gqa=True, scale=0.3)
    agree(fn, *operands(heads=heads))


def test_results_beside_attention():
    block_mask = create_block_mask(padding, B, None, M, N, device="cpu")
    agree(lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask, return_lse=True), *operands())

    def fn(q, k, v):
        out, aux = flex_attention(q, k, v, block_mask=block_mask, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    agree(fn, *operands())


def test_options_are_taken():
    agree(lambda q, k, v: flex_attention(q, k, v, kernel_options={"BLOCK_M": 64, "BACKEND": "TRITON"}), *operands())


def test_the_mask_is_made_in_the_graph():
    def fn(q, k, v):
        block_mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=block_mask)

    expected = fn(*operands())
    assert jit.compile(fn)(*operands()).shape == expected.shape


def test_sizes_that_change():
    fn = jit.compile(lambda q, k, v: flex_attention(q, k, v, SCORES["softcap"]), fullgraph=True)
    for m, n in ((16, 16), (20, 24), (33, 7), (64, 64), (5, 100)):
        args = operands(m=m, n=n)
        close(fn(*args), flex_attention(*args, SCORES["softcap"]), torch.float32)


def test_captured_tensors_are_read_at_each_call():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Buffer(torch.zeros(H))

        def forward(self, q, k, v):
            return flex_attention(q, k, v, lambda s, b, h, i, j: s + self.table[h] * (i - j))

    net, args = Net(), operands()
    compiled = jit.compile(net, fullgraph=True)
    with torch.no_grad():
        for value in (0.0, 0.1, 0.2):
            net.table.fill_(value)
            close(compiled(*args), net(*args), torch.float32)


def test_what_eager_refuses():
    q, k, v = operands()
    for wrong in ((q, k[..., :8], v), (q, k[:, :2], v[:, :2]), (q[0], k[0], v[0])):
        with pytest.raises(Exception) as expected:
            flex_attention(*wrong)
        with pytest.raises(type(expected.value)):
            jit.compile(lambda q, k, v: flex_attention(q, k, v))(*wrong)
    with pytest.raises(NotImplementedError):
        jit.compile(lambda q, k, v: flex_attention(q, k, v))(q.requires_grad_(), k, v)


def test_a_function_that_is_not_followed_is_a_break():
    fn = lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + torch.stack([s, s]).sum())
    with pytest.raises(Unsupported):
        jit.compile(fn, fullgraph=True)(*operands())
