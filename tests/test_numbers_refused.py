"""Numbers that do not fit the dtype of a tensor, or its kind: every function that takes one raises what it raises in
eager, also when the number has become a symbol, when nobody reads the result, and on tensors too large to be tried."""

import pytest
import torch
import torch.nn.functional as F
from frame_harness import refusal

import jit

# Nothing may be left to eager because compiling failed
pytestmark = pytest.mark.filterwarnings("error:jit:UserWarning")
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64]
NUMBERS = [300, -2, 0.5, 70000.0, 1e39, -1e39, 1 << 31, 1 << 62, 1 << 63, float("inf"), True, 1j]
FUNCTIONS = {
    "masked_fill": lambda x, v: x.masked_fill(x == x, v),
    "masked_fill_": lambda x, v: x.clone().masked_fill_(x == x, v),
    "clamp": lambda x, v: x.clamp(max=v),
    "clamp, both": lambda x, v: x.clamp(0, v),
    "clamp, below": lambda x, v: x.clamp(min=v),
    "clamp, around": lambda x, v: x.clamp(-5, v),
    "clamp_": lambda x, v: x.clone().clamp_(min=v),
    "fill_": lambda x, v: x.clone().fill_(v),
    "full_like": lambda x, v: torch.full_like(x, v),
    "new_full": lambda x, v: x.new_full((3,), v),
    "full": lambda x, v: torch.full((3,), v, dtype=x.dtype),
    "full, large": lambda x, v: torch.full((1 << 18,), v, dtype=x.dtype),
    "add": lambda x, v: x + v,
    "mul_": lambda x, v: x.clone().mul_(v),
    "pow": lambda x, v: x**v,
    "eq": lambda x, v: x == v,
    "where": lambda x, v: torch.where(x == x, x, v),
    "bitwise_or": lambda x, v: x | v,
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "alpha of sub_": lambda x, v: x.clone().sub_(x, alpha=v),
    "alpha of rsub": lambda x, v: torch.rsub(x, x, alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "lerp": lambda x, v: torch.lerp(x, x, v),
    "setitem": lambda x, v: x.clone().__setitem__(0, v),
    "setitem by a mask": lambda x, v: x.clone().__setitem__(x == x, v),
    "setitem by an index": lambda x, v: x.clone().__setitem__(torch.tensor([1]), v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0]), v),
    "scatter": lambda x, v: x.scatter(0, torch.tensor([0]), v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "threshold": lambda x, v: F.threshold(x, 0, v),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -1, v),
    "softshrink": lambda x, v: F.softshrink(x, v),
    "tensor": lambda x, v: torch.tensor(v, dtype=x.dtype),
    "scalar_tensor": lambda x, v: torch.scalar_tensor(v, dtype=x.dtype),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [3, 1 << 17], ids=["small", "large"])
def test_refused_numbers(name, size):
    function = FUNCTIONS[name]

    def unused(x, v):
        function(x, v)
        return x.shape

    for dtype in DTYPES:
        x = torch.tensor([1, 0, 2]).to(dtype)[torch.arange(size) % 3]
        for v in NUMBERS:
            jit.reset()
            expected = refusal(function, x, v)
            assert refusal(jit.compile(unused), x, v) == expected, (dtype, v)


@pytest.mark.parametrize("name", ["masked_fill", "clamp", "clamp, below", "clamp, both", "clamp, around", "full_like",
                                  "fill_", "setitem", "pow", "add", "threshold", "index_fill"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16, torch.float32], ids=lambda d: str(d)[6:])
def test_numbers_that_become_symbols(name, dtype):
    """A number that changes becomes a symbol: later ones that do not fit raise all the same, and those that fit do
    not."""
    function = FUNCTIONS[name] if name != "setitem" else lambda x, v: (y := x.clone(), y.__setitem__(0, v))[0]
    x = torch.tensor([1, 0, 2]).to(dtype)
    for numbers in ((1, 2, 3, 300, 5, -2, 7, 70000, 1 << 40, 9), (1.0, 2.0, 3.0, 300.0, -2.0, 7e4, 4.0, 1e39, 5.0)):
        jit.reset()
        compiled = jit.compile(function)
        with jit.config.patch(cache_limit=32):  # each number that raises is an entry
            for v in numbers:
                expected = refusal(function, x, v)
                assert refusal(compiled, x, v) == expected, v
                if expected is None:
                    assert torch.equal(compiled(x, v), function(x, v)), v


def test_a_symbol_that_may_be_any_number_stays_one():
    """Where eager takes every number, one kernel serves all."""
    compiled = jit.compile(lambda x, v: x * v + v)
    x = torch.tensor([True, False])
    for v in (2, 3, 4):
        compiled(x, v)
    count = jit.compile_count()
    for v in (300, 5, 1 << 40):
        assert torch.equal(compiled(x, v), x * v + v)
    assert jit.compile_count() == count
