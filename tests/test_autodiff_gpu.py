"""Gradients on a GPU, through compiled kernels and the library's fused attention, against eager autograd."""

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import check_grad, compiled, halves
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
sdpa = F.scaled_dot_product_attention


def cuda(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, device="cuda").requires_grad_()


def check(fn, *inputs, tolerance=None, **options):
    tolerance = tolerance or (2e-2 if inputs[0].dtype in (torch.bfloat16, torch.float16) else 2e-3)
    return check_grad(fn, *inputs, run=compiled, rtol=tolerance, atol=tolerance, **options)


BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention(backend, causal):
    inputs = [cuda(2, 4, 64, 64, dtype=torch.bfloat16) for _ in range(3)]
    with sdpa_kernel([BACKENDS[backend]]):
        check(lambda q, k, v: sdpa(q, k, v, is_causal=causal), *inputs)
        h = halves(lambda q, k, v: sdpa(q, k, v, is_causal=causal), *inputs)[2]
    names = [n.attrs["target"] for n in h.forward.nodes if n.op == "aten_call"]
    assert any(backend in n for n in names) or backend == "math" and "aten::bmm" in names


@pytest.mark.parametrize("backend", ["flash", "efficient"])
def test_attention_dropout_draws_as_eager(backend):
    inputs = [cuda(2, 4, 64, 64, dtype=torch.bfloat16) for _ in range(3)]
    with sdpa_kernel([BACKENDS[backend]]):
        check(lambda q, k, v: sdpa(q, k, v, dropout_p=0.2), *inputs)


def test_attention_layouts_and_widths():
    def heads_last(q, k, v):
        return sdpa(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    check(heads_last, *(cuda(2, 48, 4, 64, dtype=torch.bfloat16) for _ in range(3)))
    check(lambda q, k, v: sdpa(q, k, v), *(cuda(2, 4, 40, 60, dtype=torch.float16) for _ in range(3)))
    check(lambda q, k, v: sdpa(q, k, v), *(cuda(2, 4, 40, 64) for _ in range(3)))
    check(lambda q, k, v: sdpa(q, k, v, scale=0.2), cuda(2, 4, 33, 64, dtype=torch.bfloat16),
          *(cuda(2, 4, 50, 64, dtype=torch.bfloat16) for _ in range(2)))
    check(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), cuda(2, 4, 40, 64, dtype=torch.bfloat16),
          *(cuda(2, 2, 40, 64, dtype=torch.bfloat16) for _ in range(2)))


def test_attention_mask():
    mask = torch.rand(2, 1, 64, 64, device="cuda") > 0.5
    check(lambda q, k, v: sdpa(q, k, v, mask), *(cuda(2, 4, 64, 64, dtype=torch.bfloat16) for _ in range(3)))
    check(lambda q, k, v: sdpa(q, k, v, mask[..., :50]), cuda(2, 4, 64, 64), *(cuda(2, 4, 50, 64) for _ in range(2)))


def test_dropout_draws_as_eager():
    check(lambda x: F.dropout(x, 0.3) * F.dropout(x.sin(), 0.5), cuda(64, 129))
    check(lambda x: F.dropout(x.t(), 0.3), cuda(64, 129))
    check(lambda x: F.dropout2d(x, 0.3), cuda(8, 16, 3, 3))


LAYERS = {
    "mlp": (lambda x, w, c, u: F.linear(F.gelu(F.linear(x, w, c)), u), (4, 33, 64), (128, 64), (128,), (64, 128)),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (512,), w, c), (200, 512), (512,), (512,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (512,), w), (200, 512), (512,)),
    "softmax": (lambda x: x.softmax(-1), (100, 1000)), "log_softmax": (lambda x: x.log_softmax(0), (100, 70)),
    "group_norm": (lambda x, w, c: F.group_norm(x, 4, w, c), (2, 16, 9, 9), (16,), (16,)),
    "batch_norm": (lambda x, w, c: F.batch_norm(x, None, None, w, c, training=True), (4, 16, 9, 9), (16,), (16,)),
    "conv": (lambda x, w, c: F.relu(F.conv2d(x, w, c, padding=1)), (2, 8, 12, 12), (16, 8, 3, 3), (16,)),
    "max_pool": (lambda x: F.max_pool2d(x, 2), (2, 8, 12, 12)),
    "embedding": (lambda x: F.embedding(torch.arange(60, device="cuda").view(3, 20) % 7, x), (7, 64)),
    "cumsum": (lambda x: x.cumsum(1), (5, 300)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(64, device="cuda") % 1000), (64, 1000)),
    "gather": (lambda x: x.gather(1, x.argsort(1)), (5, 30)), "topk": (lambda x: x.topk(3).values, (5, 30)),
    "replay": (lambda x: x.logcumsumexp(1), (5, 30)), "silu_mul": (lambda x, y: F.silu(x) * y, (33, 77), (33, 77)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    fn, *shapes = LAYERS[name]
    check(fn, *(cuda(*s) for s in shapes))
    if name not in ("conv", "gather", "topk", "replay"):
        check(fn, *(cuda(*s) for s in shapes), dynamic=True)


@pytest.mark.parametrize("name", ["mlp", "layer_norm", "rms_norm", "softmax", "cross_entropy", "silu_mul"])
def test_bfloat16_layers(name):
    fn, *shapes = LAYERS[name]
    check(fn, *(cuda(*s, dtype=torch.bfloat16) for s in shapes), tolerance=5e-2)
