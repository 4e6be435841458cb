"""Gradients of views, reductions, indexing and library operators against eager autograd."""

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import check_grad, compiled, differentiable, extras, leaf

import jit

I = torch.tensor([0, 2, 2, 1])  # noqa: E741
IDX = torch.tensor([[0, 1, 1], [2, 0, 2]])

SHAPES = {
    "permute": lambda x: x.permute(2, 0, 1) * 2, "transpose_reshape": lambda x: (x.transpose(0, 1).reshape(4, 6)) ** 2,
    "view": lambda x: x.view(4, 3, 2).sin(), "expand": lambda x: x[:, :1].expand(2, 5, 4) * 2,
    "slice": lambda x: x[:, 1:], "slice_step": lambda x: x[:, ::2] * x[:, 1::2][:, :1],
    "slice_step_end": lambda x: x[:, :, 1:4:2], "select": lambda x: x[1] * x[0],
    "chunk_uneven": lambda x: x.chunk(3, 2)[0] + x[..., 2:], "split": lambda x: sum(x.split([1, 2], 1)[1].unbind(0)),
    "diagonal": lambda x: x.diagonal(0, 1, 2), "diagonal_offset": lambda x: x.diagonal(-1, 2, 1) * 2,
    "diagonal_upper": lambda x: x.diagonal(1, 0, 2), "flip": lambda x: x.flip(0, 2),
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1), "stack": lambda x: torch.stack([x, x.sin()], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)), "pad_negative": lambda x: F.pad(x, (-1, 2)),
    "reflect": lambda x: F.pad(x, (1, 2), mode="reflect"), "roll": lambda x: torch.roll(x, 1, 1),
    "tril": lambda x: torch.tril(x), "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1), "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: torch.as_strided(x, (2, 3), (1, 2)),
    "contiguous": lambda x: x.transpose(0, 2).contiguous() * 2,
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[1, 1], indexing="ij")[0] * 2,
    "einsum": lambda x: torch.einsum("abc,dbc->ad", x, x * 2),
    "einsum_summed": lambda x: torch.einsum("abc,bc->b", x, x[0]),
    "einsum_implicit": lambda x: torch.einsum("abc,db", x, x[:, :, 0].sin()),
    "einsum_ellipsis": lambda x: torch.einsum("...c,bc->...b", x, x[1]),
    "tensordot": lambda x: torch.tensordot(x, x, ([1, 2], [1, 2])), "kron": lambda x: torch.kron(x[0], x[1]),
    "cumprod": lambda x: x.cumprod(1), "logcumsumexp": lambda x: x.logcumsumexp(2),
    "cdist": lambda x: torch.cdist(x, x.flip(1)), "outer": lambda x: torch.outer(x[0, 0], x[1, 1]),
    "trace": lambda x: torch.trace(x[0, :, :3]),
}  # fmt: skip
REDUCTIONS = {
    "sum": lambda x: x.sum(), "sum_dim": lambda x: x.sum((0, 2)), "mean": lambda x: x.mean(1, keepdim=True),
    "var": lambda x: x.var(1), "std": lambda x: x.std(), "var_mean": lambda x: torch.var_mean(x, (0, 1)),
    "var_zero": lambda x: torch.zeros_like(x).mul(x).std(1), "prod": lambda x: x.prod(1),
    "prod_zero": lambda x: torch.relu(x).prod(2), "prod_all": lambda x: (x + 2).prod(), "amax": lambda x: x.amax(1),
    "amin_ties": lambda x: torch.round(x).amin((0, 1)), "max": lambda x: torch.round(x).max(),
    "max_dim": lambda x: torch.round(x).max(1).values, "min_dim": lambda x: torch.round(x).min(2, keepdim=True)[0],
    "norm": lambda x: x.norm(), "norm_zero": lambda x: (x * 0).norm(dim=1), "norm1": lambda x: x.norm(1, dim=1),
    "norm3": lambda x: x.norm(3, dim=2), "norm_inf": lambda x: x.norm(float("inf"), dim=0),
    "logsumexp": lambda x: x.logsumexp((1, 2)), "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0), "cumsum": lambda x: x.cumsum(1), "median": lambda x: x.median(1).values,
    "sort": lambda x: x.sort(2)[0] * 2, "topk": lambda x: x.topk(2, 1).values,
    "topk_sorted_indices": lambda x: x.topk(2, 1).values.sum() + x.argsort(1).sum(),
    "kthvalue": lambda x: x.kthvalue(2, 1).values, "cummax": lambda x: x.cummax(1).values,
    "aminmax": lambda x: torch.aminmax(x, dim=1).max, "normalize": lambda x: F.normalize(x, dim=1),
    "logcumsumexp": lambda x: x.logcumsumexp(1), "mean_of_bool_mask": lambda x: (x * (x > 0)).sum() / (x > 0).sum(),
    "nansum": lambda x: torch.nansum(x), "dist": lambda x: torch.dist(x, x.flip(0)),
}  # fmt: skip
INDEXING = {
    "gather": lambda x: x.gather(1, torch.tensor([[[0, 1, 1, 2]], [[2, 2, 0, 1]]])),
    "gather_short": lambda x: torch.gather(x, 2, torch.tensor([[[3], [0]]])),
    "take_along": lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1),
    "index": lambda x: x[:, torch.tensor([0, -1, 2, 2])],
    "index_two": lambda x: x[torch.tensor([0, 1, 0]), torch.tensor([2, 2, 1])],
    "index_apart": lambda x: x[torch.tensor([0, 1]), :, torch.tensor([3, 0])],
    "index_select": lambda x: x.index_select(2, torch.tensor([3, 3, 0])),
    "embedding": lambda x: F.embedding(IDX, x[0]),
    "embedding_padding": lambda x: F.embedding(IDX, x[0], padding_idx=2),
    "embedding_freq": lambda x: F.embedding(IDX, x[0], scale_grad_by_freq=True),
    "index_put": lambda x: x.sin().index_put((torch.tensor([0, 1]), torch.tensor([1, 2])), x[0, 0] * 2),
    "index_put_accumulate": lambda x: (x * 2).index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), x[0, 0],
                                                        accumulate=True),
    "scatter": lambda x: torch.zeros(2, 3, 5,
                                     dtype=x.dtype).scatter(2, (IDX.unsqueeze(-1) + torch.arange(2)).expand(2, 3, 2),
                                                            x[..., :2]),
    "scatter_self": lambda x: (x * 2).scatter(1, torch.tensor([[[1, 0, 2, 2]]]), x[:1, :1]),
    "scatter_value": lambda x: x.scatter(1, torch.tensor([[[1, 0, 2, 2]]]), 3.0),
    "scatter_add": lambda x: (x * 2).scatter_add(1, torch.tensor([[[1, 0, 2, 2]]]), x[:1, :1].sin()),
    "index_add": lambda x: x.index_add(1, torch.tensor([2, 0]), x[:, 1:], alpha=2),
    "scatter_reduce": lambda x: x.scatter_reduce(1, torch.tensor([[[1, 0, 2, 2]]]), x.sin(), "amax"),
    "setitem": lambda x: _set(x), "masked_fill": lambda x: x.masked_fill(x > 0, -1.0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0) * 2),
    "where_index": lambda x: x[torch.arange(2), torch.tensor([0, 2])],
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([[0, 1, 2, -100], [2, 2, 0, 1]])),
    "cross_entropy_weighted": lambda x: F.cross_entropy(x[0], torch.tensor([1, 3, 0]),
                                                        weight=torch.arange(1.0, 5).double(), label_smoothing=0.1),
    "cross_entropy_soft": lambda x: F.cross_entropy(x[0], x[1].softmax(-1)),
    "nll": lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([[0, 1, 2, 0], [2, 2, 0, 1]]), reduction="none"),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 2),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :1] * 2, 1, 1, 2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, 0, :3], 0, 1, 2),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([2, 0]), x[:, 1:]),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0]), 2.0),
}  # fmt: skip


def _set(x):
    y = x * 2
    y[:, 1] = x[:, 0].sin()
    y[0, torch.tensor([0, 2])] = x[1, 0]
    y[y > 1] = 0.5
    return y + x


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check_grad(SHAPES[name], leaf(2, 3, 4))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    if name == "aminmax" and not differentiable(lambda x: torch.aminmax(x).max):
        pytest.skip("this PyTorch has no derivative of it")
    check_grad(REDUCTIONS[name], leaf(2, 3, 4))


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name):
    check_grad(INDEXING[name], leaf(2, 3, 4))


PRODUCTS = {
    "mm": (torch.mm, (3, 4), (4, 5)), "mv": (torch.mv, (3, 4), (4,)), "dot": (torch.dot, (4,), (4,)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "matmul_batched": (torch.matmul, (2, 1, 3, 4), (5, 4, 2)), "matmul_vector": (torch.matmul, (2, 3, 4), (4,)),
    "vector_matmul": (torch.matmul, (4,), (2, 4, 3)),
    "transposed": (lambda x, y: torch.mm(x.t(), y.t()), (4, 3), (5, 4)), "linear3": (F.linear, (2, 3, 4), (5, 4)),
    "addmm": (lambda x, y: torch.addmm(x[:, 0], x, y, beta=0.5, alpha=2), (3, 4), (4, 3)),
    "baddbmm": (lambda x, y: torch.baddbmm(x[:, :, :1], x, y, alpha=3), (2, 3, 4), (2, 4, 5)),
    "bilinear": (lambda x, y: F.bilinear(x, x, y), (3, 4), (2, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    fn, *shapes = PRODUCTS[name]
    check_grad(fn, *(leaf(*s) for s in shapes))


LAYERS = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), (2, 3, 8), (4, 3, 3), (4,)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (2, 3, 8, 7), (4, 3, 3, 3), (4,)),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (1, 4, 8, 8), (6, 2, 3, 3)),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), (1, 2, 5, 5), (2, 2, 3, 3)),
    "conv2d_same_even": (lambda x, w: F.conv2d(x, w, padding="same"), (1, 2, 5, 5), (2, 2, 2, 2)),
    "conv2d_single": (lambda x, w: F.conv2d(x, w), (2, 5, 5), (3, 2, 3, 3)),
    "conv3d": (F.conv3d, (1, 2, 4, 4, 4), (2, 2, 2, 2, 2)),
    "conv_transpose": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1), (1, 3, 4, 4),
                       (3, 2, 3, 3), (2,)),
    "max_pool": (lambda x: F.max_pool2d(x, 2, 1), (2, 3, 5, 5)),
    "max_pool_indices": (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (2, 3, 4, 4)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2, padding=1), (2, 3, 5, 5)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (2, 3, 6)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), (2, 3, 6)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 4, 4)),
    "adaptive3": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (2, 3, 5, 5)),
    "reflect2": (lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"), (1, 2, 4, 4)),
    "replicate": (lambda x: F.pad(x, (1, 2), mode="replicate"), (2, 2, 4)),
    "adaptive_max": (lambda x: F.adaptive_max_pool2d(x, 2), (2, 3, 5, 5)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 3)),
    "bilinear": (lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), (1, 2, 3, 3)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=True), (1, 2, 4, 4)),
    "antialias": (lambda x: F.interpolate(x, size=(2, 2), mode="bilinear", antialias=True), (1, 2, 4, 4)),
    "grid_sample": (lambda x, g: F.grid_sample(x, torch.tanh(g), align_corners=False), (1, 2, 4, 4), (1, 3, 3, 2)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (1, 4, 3, 3)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (2, 3, 4), (4,), (4,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (2, 3, 4), (4,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3, 3), (4,), (4,)),
    "instance_norm": (lambda x: F.instance_norm(x), (2, 3, 4, 4)),
    "batch_norm_free": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (3, 4, 2), (4,), (4,)),
    "local_response": (lambda x: F.local_response_norm(x, 2), (2, 4, 3)),
    "ctc_like_unfold": (lambda x: F.unfold(x, 2), (1, 2, 4, 4)),
    "fold": (lambda x: F.fold(x, (4, 4), 2), (1, 8, 9)), "inverse": (lambda x: torch.linalg.inv(x), (3, 3)),
    "svd_values": (lambda x: torch.linalg.svdvals(x), (3, 4)), "matrix_norm": (lambda x: torch.linalg.norm(x), (3, 4)),
    "glu": (lambda x: F.glu(x), (3, 4)), "prelu": (lambda x, w: F.prelu(x, w), (2, 3, 4), (3,)),
}  # fmt: skip


OWN_BACKWARDS = {
    "grid_sample": (lambda x, g: F.grid_sample(x, torch.tanh(g), align_corners=False), (1, 2, 4, 4), (1, 3, 3, 2)),
    "grid_sample_of_one": (lambda x, g: F.grid_sample(x.detach(), g, padding_mode="border", align_corners=True),
                           (1, 2, 4, 4), (1, 3, 3, 2)),
    "grid_sample_fixed": (lambda x, g: F.grid_sample(x, g.detach(), mode="bicubic", align_corners=True), (1, 2, 4, 4),
                          (1, 3, 3, 2)),
    "grid_sample3d": (lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False), (1, 2, 3, 3, 3),
                      (1, 2, 2, 2, 3)),
    "unfold": (lambda x: F.unfold(x, (2, 3), padding=1, stride=2, dilation=1), (2, 2, 5, 6)),
    "fold": (lambda x: F.fold(x, (4, 5), 2, padding=1), (1, 8, 30)),
    "cumprod": (lambda x: x.cumprod(1), (3, 4)), "cumprod_zero": (lambda x: x.relu().cumprod(-1), (3, 6)),
    "cdist": (torch.cdist, (2, 5, 3), (2, 4, 3)), "cdist_1": (lambda x, y: torch.cdist(x, y, p=1.0), (5, 3), (4, 3)),
    "cdist_long": (torch.cdist, (30, 3), (28, 3)), "cdist_self": (lambda x: torch.cdist(x, x), (5, 3)),
    "pdist": (F.pdist, (5, 3)),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.detach().sigmoid(), reduction="sum"),
                             (4, 3), (4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN_BACKWARDS)
def test_without_a_second_forward(name):
    fn, *shapes = OWN_BACKWARDS[name]
    r = check_grad(fn, *(leaf(*s) for s in shapes))
    assert all(n.attrs.get("target") != "jit::vjp" for n in r.backward.nodes)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    fn, *shapes = LAYERS[name]
    check_grad(fn, *(leaf(*s) for s in shapes))


def test_batch_norm_updates_its_statistics():
    def fn(x, w, mean, var):
        return F.batch_norm(x, mean, var, w, training=True)

    r = check_grad(fn, leaf(5, 3, 2), leaf(3), torch.zeros(3).double(), torch.ones(3).double())
    assert sum(o.mutates is not None for o in r.forward.outputs) == 2
    check_grad(lambda x, m, v: F.batch_norm(x, m, v) * m.sum(), leaf(5, 3), torch.zeros(3).double(),
               torch.ones(3).double())


def test_channels_last_convolution():
    check_grad(lambda x, w: F.conv2d(x, w).relu(),
               leaf(2, 3, 5, 5).detach().to(memory_format=torch.channels_last).requires_grad_(), leaf(4, 3, 3, 3))


# attention


@pytest.mark.parametrize("variant", ["plain", "causal", "mask", "bool_mask", "scale", "gqa", "rank3", "transposed",
                                     "mask_grad", "all_masked"])
def test_attention(variant):
    mask = torch.randn(5, 6).double()
    q, k, v = leaf(2, 4, 5, 8), leaf(2, 4, 6, 8), leaf(2, 4, 6, 8)
    sdpa = F.scaled_dot_product_attention
    fn = {
        "plain": lambda q, k, v: sdpa(q, k, v), "causal": lambda q, k, v: sdpa(q, k, v, is_causal=True),
        "mask": lambda q, k, v: sdpa(q, k, v, mask), "bool_mask": lambda q, k, v: sdpa(q, k, v, mask > 0),
        "scale": lambda q, k, v: sdpa(q, k, v, scale=0.3),
        "gqa": lambda q, k, v: sdpa(q, k[:, :2], v[:, :2], enable_gqa=True),
        "rank3": lambda q, k, v: sdpa(q[0], k[0], v[0]),
        "transposed": lambda q, k, v: sdpa(q.transpose(1, 2), k[:, :, :5].transpose(1, 2),
                                           v[:, :, :5].transpose(1, 2)).transpose(1, 2),
        "mask_grad": lambda q, k, v: sdpa(q, k, v, q[..., :6] * 0.1),
        "all_masked": lambda q, k, v: sdpa(q[0], k[0], v[0], mask > 9),
    }[variant]  # fmt: skip
    r = check_grad(fn, q, k, v)
    if variant == "gqa":
        assert any(n.attrs.get("target", "").endswith("flash_attention_for_cpu") for n in r.forward.nodes)
    if variant == "plain":
        assert [t.shape for t in extras(r)] == [(2, 4, 5)], "only the row sums are saved"


# random


@pytest.mark.parametrize("transposed", [False, True])
def test_dropout(transposed):
    x = leaf(6, 40)
    if transposed:
        x = leaf(40, 6).detach().t().requires_grad_()
    r = check_grad(lambda x: F.dropout(x, 0.3) * F.dropout(x.sin(), 0.5), x)
    assert {t.dtype for t in extras(r)} == {torch.bool}


def test_alpha_dropouts():
    check_grad(lambda x: F.alpha_dropout(x, 0.3, training=True) * x, leaf(6, 40))
    check_grad(lambda x: F.feature_alpha_dropout(x, 0.4, training=True) * x, leaf(4, 8, 3, 3))


def test_other_dropouts():
    check_grad(lambda x: F.dropout2d(x, 0.5) + F.dropout(x, 0.0) + F.dropout(x, 1.0), leaf(4, 8, 3, 3))


def test_attention_dropout():
    check_grad(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.4), leaf(2, 2, 5, 8),
               leaf(2, 2, 6, 8), leaf(2, 2, 6, 8))


def test_random_noise_is_constant():
    check_grad(lambda x: x * torch.rand_like(x) + torch.randn(3, 4).double(), leaf(3, 4))
    check_grad(lambda x: x / 0.9 * x.new_empty(3, 1).bernoulli_(0.9), leaf(3, 4))


@pytest.mark.parametrize("fn",
                         [lambda x: torch.fft.rfft(x).abs(),
                          lambda x: torch.fft.ifft(torch.fft.fft(x, dim=1)[..., 1:] * 2).real,
                          lambda x: torch.view_as_real(torch.polar(x.abs() + 1, x) * torch.complex(x, x)).sum(-1)])
def test_complex_numbers(fn):
    check_grad(fn, leaf(2, 4, 6))
    check_grad(fn, leaf(2, 4, 6), run=compiled)


def test_recurrent_layers():
    def fn(x, h, c, w, u, b, d):
        return torch.ops.aten.lstm.input(x, (h, c), (w, u, b, d), True, 1, 0.0, True, False, False)

    check_grad(fn, leaf(5, 2, 3), leaf(1, 2, 4), leaf(1, 2, 4), leaf(16, 3), leaf(16, 4), leaf(16), leaf(16))


DYNAMIC = {
    "linear": (lambda x, w: F.gelu(F.linear(x, w)).sum(1), (2, 3, 4), (5, 4)),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[1:]), (4, 6)),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k), (2, 3, 5, 8), (2, 3, 6, 8)),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), (2, 3, 5, 6), (4, 3, 3, 3)),
    "slices": (lambda x: x[:, 1:] * x[:, :-1], (3, 5)),
    "cat": (lambda x, y: torch.cat([x, y], 1).softmax(1), (3, 4), (3, 5)),
    "broadcast": (lambda x, y: x * y, (3, 4), (4,)),
    "topk": (lambda x: x.topk(2).values, (3, 5)), "embedding": (lambda x: F.embedding(IDX, x), (3, 4)),
    "replay": (lambda x: x.logcumsumexp(1), (3, 4)), "flattened": (lambda x: x.flatten(1).mean(1), (2, 3, 4)),
    "dropout": (lambda x: F.dropout(x, 0.4), (3, 40)),
}  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_symbolic_sizes(name):
    fn, *shapes = DYNAMIC[name]
    check_grad(fn, *(leaf(*s) for s in shapes), dynamic=True)


def test_the_same_graphs_every_time():
    from autodiff_harness import halves

    def fn(x, w):
        return F.layer_norm(F.linear(x, w), (5,)).softmax(-1) @ w + F.dropout(x, 0.1)

    texts = {(h.forward.python(), h.backward.python(),
              h.saved) for h in (halves(fn, leaf(3, 4), leaf(5, 4))[2] for _ in range(3))}
    assert len(texts) == 1


# compiled


COMPILED = ["layer_norm", "group_norm", "conv2d", "max_pool", "batch_norm_free", "rms_norm"]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layers(name):
    fn, *shapes = LAYERS[name]
    check_grad(fn, *(leaf(*s) for s in shapes), run=compiled)


def test_compiled_transformer_block():
    def fn(x, g, w, o, u, d, dynamic=False):
        h = F.layer_norm(x, (8,), g)
        q, k, v = F.linear(h, w).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + F.dropout(
            F.linear(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape), o), 0.1)
        return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (8,), g), u)), d)

    shapes = (2, 5, 8), (8,), (24, 8), (8, 8), (16, 8), (8, 16)
    check_grad(fn, *(leaf(*s) for s in shapes), run=compiled)
    check_grad(fn, *(leaf(*s) for s in shapes), run=compiled, dynamic=True)


def test_compiled_loss():
    check_grad(lambda x, t: F.cross_entropy(x, t), leaf(6, 5), torch.tensor([0, 1, 2, -100, 4, 3]), run=compiled)


SPARSE = {
    "embedding": lambda w, at: F.embedding(at, w, sparse=True),
    "embedding_bag": lambda w, at: F.embedding_bag(at, w, torch.arange(0, at.shape[0], 2), sparse=True, mode="sum"),
    "gather": lambda w, at: torch.gather(w, 0, at[:, None].expand(-1, w.shape[1]), sparse_grad=True),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("before", ["nothing", "a product", "another use"])
def test_gradients_that_are_sparse(name, before):
    """They stay so where eager's do, at several sizes in one function's life."""

    def program(w, at):
        y = SPARSE[name](w * 2 if before == "a product" else w, at) * 3
        return y.sum() + (w * w).sum() if before == "another use" else y.sum()

    compiled = jit.compile(program)
    for rows in (4, 5, 9):
        at = torch.arange(rows + 1) % rows
        runs = []
        for f in (program, compiled):
            w = torch.arange(3.0 * rows).view(rows, 3).requires_grad_()
            runs.append(torch.autograd.grad(f(w, at), w)[0])
        assert runs[0].layout is runs[1].layout
        torch.testing.assert_close(runs[1].to_dense(), runs[0].to_dense())
