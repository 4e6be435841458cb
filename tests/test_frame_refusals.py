"""Operands that PyTorch refuses, such as None and text: the same exception as in eager, or the same result where it takes them."""

import operator

import pytest
import torch

import jit
from frame_harness import same

OPERANDS = (None, "a", (1, 2), [1, 2], True, 2, 2.5, {}, ...)
FUNCTIONS = [operator.mul, operator.add, operator.sub, operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.lt, operator.eq, operator.and_, operator.or_,
             operator.xor, operator.lshift, torch.mul, torch.add, torch.sub, torch.div, torch.maximum, torch.pow, torch.fmod, torch.logical_and, torch.logical_xor,
             torch.bitwise_and, torch.atan2, torch.eq, torch.lt, torch.clamp]
METHODS = ["mul_", "add_", "logical_or_", "bitwise_or_", "fmod_", "view", "fill_", "masked_fill_", "copy_", "__getitem__", "sum", "any", "amax", "unsqueeze", "flip", "roll",
           "cumsum", "chunk", "tril", "flatten", "clamp_", "expand", "repeat", "index_select", "norm"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS], ids=lambda f: getattr(f, "__name__", f))
def test_odd_operands(name, dtype):
    fn = name if callable(name) else lambda x, v: getattr(x.clone(), name)(v)
    x = torch.tensor([1, 0, 3]).to(dtype)
    for swap in (False, True):
        for operand in OPERANDS:
            def program(x):
                try:
                    return fn(operand, x) if swap and callable(name) else fn(x, operand)
                except Exception as error:
                    return type(error), str(error)

            same(program(x), jit.compile(program, backend="eager")(x))


@pytest.mark.parametrize("index", [0, (..., -1), slice(1, None), torch.tensor([0, 2])], ids=["0", "last", "slice", "tensor"])
def test_odd_values_put_into_tensors(index):
    for value in OPERANDS:
        def program(x):
            y = x.clone()
            try:
                y[index] = value
            except Exception as error:
                return y, type(error), str(error)
            return y

        same(program(torch.ones(3)), jit.compile(program, backend="eager")(torch.ones(3)))


def test_large_operands_are_refused_too():
    def program(x):
        try:
            return x.tril("a")
        except TypeError as error:
            return str(error)

    x = torch.ones(300, 300)
    same(program(x), jit.compile(program, backend="eager")(x))


def test_layouts_of_one_row_that_was_symbolic():
    def program(x, y, n):
        return torch.add(y, x)[:n].pow(2).clamp(max=100), torch.add(y, x)[:n].exp()

    compiled = jit.compile(program, backend="eager")
    x, y = torch.arange(6.0).view(3, 2).t(), torch.arange(3.0)
    for n in (2, 1, 0, 2, 1):
        same(program(x, y, n), compiled(x, y, n))
    same(program(x, y, 1), jit.compile(program, backend="eager", dynamic=True)(x, y, 1))
