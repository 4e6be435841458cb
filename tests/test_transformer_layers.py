"""The layers of ``torch.nn.Transformer`` in inference, where PyTorch calls one operator for the whole layer."""

import jit
import pytest
import torch
from torch import nn

LAYOUTS = {
    "plain": lambda: torch.randn(3, 5, 16), "transposed": lambda: torch.randn(5, 3, 16).transpose(0, 1),
    "sliced": lambda: torch.randn(3, 9, 32)[:, ::2, 8:24], "expanded": lambda: torch.randn(1, 5, 16).expand(3, 5, 16),
    "permuted": lambda: torch.randn(3, 16, 5).transpose(1, 2), "empty": lambda: torch.randn(0, 5, 16),
    "large": lambda: torch.randn(64, 40, 16).transpose(0, 1),
}


@pytest.mark.parametrize("dynamic", [False, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm_first, activation", [(True, "gelu"), (False, "relu")])
@torch.no_grad()
def test_a_layer(norm_first, activation, dtype, dynamic):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first, activation=activation,
                                       dtype=dtype).eval()

    def program(x):
        return torch.tanh(layer(x)).transpose(0, 1), layer(x)

    compiled = jit.compile(program, dynamic=dynamic)
    for make in LAYOUTS.values():
        x = make().to(dtype)
        expected, got = program(x), compiled(x)
        torch.testing.assert_close(got, expected)
        assert [t.stride() for t in got] == [t.stride() for t in expected]


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both"])
@torch.no_grad()
def test_it_is_one_graph(mask):
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), torch.randn(3, 5, 16)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [4]]) if mask in ("padding", "both") else None
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1) if mask in ("causal", "both") else None

    def program(x):
        return layer(x * 2, causal, padding) + 1

    told = jit.explain(program)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), told.break_reasons
    torch.testing.assert_close(jit.compile(program)(x), program(x))


@torch.no_grad()
def test_what_eager_refuses():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    compiled = jit.compile(layer)
    torch.testing.assert_close(compiled(torch.ones(2, 3, 16)), layer(torch.ones(2, 3, 16)))
    for wrong in (torch.ones(2, 3, 8), torch.ones(2, 3, 16, dtype=torch.float64), torch.ones(2, 2, 3, 16)):
        with pytest.raises(Exception) as expected:
            layer(wrong)
        with pytest.raises(type(expected.value)) as got:
            compiled(wrong)
        assert str(got.value) == str(expected.value)
