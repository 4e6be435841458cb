"""Numbers and 0-dimensional tensors beside tensors of each dtype: rounded, wrapped or as they are, as in eager, on the
default backend."""

import pytest
import torch
from sweeps.numbers import check

HALVES, INTEGERS = (torch.float16, torch.bfloat16), (torch.int32, torch.uint8)
FEW = (1e-12, 0.1, -1 / 3, 1e-6)


def same(expression, dtypes, numbers=FEW, **options):
    assert check(expression, "cpu", dtypes, numbers=numbers, **options) == []


@pytest.mark.parametrize("expression", ["x == N", "x != N", "N < x", "x >= N", "x.clone().eq_(N)", "(x > N).sum()",
                                        "x[x > N].sum()", "x % N", "torch.fmod(x, N)"])
def test_comparisons_and_remainders_round_numbers(expression):
    same(expression, HALVES)


@pytest.mark.parametrize("expression", ["x == N", "x < N", "x % N"])
def test_numbers_that_are_symbols_are_rounded(expression):
    same(expression, HALVES, symbolic=True)


@pytest.mark.parametrize("expression", ["x * N", "x + N", "N - x", "x / N", "x // N",
                                        "torch.div(x, N, rounding_mode='trunc')", "torch.add(x, y, alpha=N)"])
def test_arithmetic_takes_numbers_as_they_are(expression):
    same(expression, HALVES)


@pytest.mark.parametrize("expression", ["x * torch.tensor(N)", "x / torch.tensor(N)", "torch.tensor(N) * x",
                                        "x + torch.tensor(N)", "x - t", "x / t", "x // torch.tensor(N)", "x > t"])
def test_tensors_without_dimensions_count_as_numbers(expression):
    same(expression, HALVES, (1e-12, 0.1, 1e-6, 1000.7, 2**31))


@pytest.mark.parametrize("expression", ["x ** N", "torch.pow(x, torch.tensor(N))"])
def test_gradients_of_powers_take_the_programs_exponent(expression):
    same(expression, (torch.bfloat16, torch.float64), (0.1, -1 / 3, 1e-6, 300))


@pytest.mark.parametrize("expression", ["N ** x", "torch.xlogy(x, N)", "torch.xlogy(x, t)", "F.celu(x, N)"])
def test_gradients_compute_with_the_number_itself(expression):
    same(expression, (*HALVES, torch.float64), (1e-12, 0.1, 1000.7, float("nan")))


@pytest.mark.parametrize("expression", ["F.threshold(x, N, 0.5)", "F.hardtanh(x, -abs(N), abs(N))",
                                        "F.hardshrink(x, N)", "F.softshrink(x, abs(N))", "x.clamp(N, 2)",
                                        "F.leaky_relu(x, N)", "F.elu(x, N)", "torch.logit(x, abs(N))"])
def test_activations_round_where_eager_does(expression):
    same(expression, (torch.bfloat16, torch.float32), (0.1, -1 / 3, 3, float("inf")))


@pytest.mark.parametrize("expression", ["x == N", "x < N", "x + N", "x // N", "x % N", "torch.fmod(x, N)",
                                        "torch.div(x, N, rounding_mode='trunc')", "x.clone().remainder_(N)", "x & N"])
def test_integers_beyond_the_dtype_wrap(expression):
    same(expression, INTEGERS, (3, 300, 2**31, 2**40 + 1))


@pytest.mark.parametrize("expression", ["x.where(x > 0, N)", "torch.where(x > 0, N, x)"])
def test_where_refuses_numbers_beyond_the_dtype(expression):
    same(expression, (torch.float32, torch.int32, torch.int8), (1e39, 3, 300, 2**31))


def test_remainders_of_numbers_have_no_gradient():
    same("N % x", (torch.float32,), (0.1, 3))
