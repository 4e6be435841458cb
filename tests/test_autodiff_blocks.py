"""What typical blocks save for their backward: no more than eager does."""

import torch
import torch.nn.functional as F
from autodiff_harness import check_grad, extras, leaf


def test_linear_gelu_saves_the_pre_activation():
    r = check_grad(lambda x, w, b: F.gelu(F.linear(x, w, b)), leaf(3, 4, 5), leaf(6, 5), leaf(6))
    assert [t.shape for t in extras(r)] == [(3, 4, 6)]


def test_layer_norm_saves_row_statistics():
    r = check_grad(lambda x, w, b: F.layer_norm(x, (5,), w, b), leaf(3, 4, 5), leaf(5), leaf(5))
    assert [t.shape for t in extras(r)] == [(3, 4, 1), (3, 4, 1)]


def test_cross_entropy_saves_row_statistics():
    r = check_grad(lambda x, t: F.cross_entropy(x, t), leaf(3, 5), torch.tensor([1, -100, 4]))
    assert all(t.numel <= 3 for t in extras(r))


def test_mlp_saves_pre_activation_only():
    r = check_grad(lambda x, u, w: F.linear(torch.relu(F.linear(x, u)), w).sum(), leaf(4, 5), leaf(7, 5), leaf(3, 7))
    assert [t.shape for t in extras(r)] == [(4, 7)]


def test_flat_function_gives_zeros():
    r = check_grad(lambda x, y: x * 2 + y.round(), leaf(3), leaf(3))
    assert r.grads == (0, 1)  # zeros, as eager gives


def test_qkv_slices_join():
    def fn(x, w):
        q, k, v = F.linear(x, w).chunk(3, -1)
        return q * k + v

    r = check_grad(fn, leaf(4, 5), leaf(9, 5))
    assert not any(n.op == "constant_pad" for n in r.backward.nodes)


def test_gradients_that_share_memory_are_separate():
    r = check_grad(lambda x, y: x + y.t(), leaf(3, 3), leaf(3, 3))
    assert len({o.node for o in r.backward.outputs}) == 2


def test_gradients_know_their_tangents():
    r = check_grad(lambda x, y: (x * y, x.exp(), y.round()), leaf(3), leaf(3))
    assert r.depends == ((0, 1), (0, 2))
