"""The judge of the tensor fuzzer: it lets roundings pass and nothing else."""

import random
import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from fuzz import judge, tensors  # noqa: E402
from sweeps.database import mapped, tensors_of  # noqa: E402


def outcome(fn, *tensors):
    return [fn(*tensors)]


def truth(fn, *tensors):
    return judge.truth(lambda: outcome(fn, *(t.double() for t in tensors)), tensors[0].dtype)[0]


QUARTERS = torch.randint(-8, 9, (9, 7), generator=torch.Generator().manual_seed(1)) / 4
THIRDS = QUARTERS / 3


@pytest.mark.parametrize("decided, fn, tensors", [
    # a number that differs from another by a rounding
    (False, lambda x: x / x.abs().sum() * 3 > (x * 3) / x.abs().sum(), (THIRDS,)),
    (False, lambda x: x - x.mean(0, keepdim=True) != x - x.sum(0, keepdim=True) / 9, (THIRDS,)),
    (False, lambda x: (x * 3).long(), (THIRDS + 1 / 3,)),
    (False, lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]).bool(), (torch.full((1, 3), 0.1),)),
    (False, lambda x: x.cumsum(-1)[:, -1] * float("inf"), (torch.tensor([[0.25, 0.5, 1e-30, -0.75]]),)),
    (False, lambda x: (x.sum(-1) > 0).long(), (torch.tensor([1e-30, 1.75, 1e-30, -1.75]),)),
    # a sum that leaves the range of floats in one order of its terms
    (False, lambda x: x.sum(0), (torch.tensor([3e38, 3e38, -3e38, 1]),)),
    (False, lambda x: x.sum(0, keepdim=True).sort(-1).values,
     (torch.tensor([[3e38, 1], [3e38, 1], [-float("inf"), 1]]),)),
    (False, lambda x: x.cumsum(0).int(), (torch.tensor([-float("inf"), 3e38, 1, 3e38]),)),
    # a product that leaves it, in its gradient too
    (False, lambda x: torch.autograd.grad(x.requires_grad_().prod(-1)[0], x)[0][1, 0],
     (torch.tensor([[1, 1, 1], [2e38, 4, 0.125]]),)),
    (False, lambda x: x.prod(0).long() % 3, (torch.tensor([0.0, 1e30, 1e30, -1.0]),)),
    # a product that leaves the range of floats, but for kernels that multiply and add with one rounding
    (False, lambda x, y: x * 3 + y, (torch.tensor([2e38]), torch.tensor([-float("inf")]))),
    (False, lambda x, y: x * 3 + y, (torch.tensor([2e38]), torch.tensor([-3e38]))),
    (True, lambda x, y: x * 3 + y, (torch.tensor([1e38]), torch.tensor([-float("inf")]))),
    # exact numbers
    (True, lambda x: x.sum(0) > 1, (QUARTERS,)),
    (True, lambda x: x.sum(0).sort().values, (QUARTERS,)),
    (True, lambda x: (x * 4).long(), (QUARTERS,)),
    (True, lambda x: x == x.t().clone().t(), (THIRDS,)),
    (True, lambda x: torch.cat([x, x]).flip(0)[1:] == torch.cat([x, x]).flip(0)[1:].contiguous(), (THIRDS,)),
    # roundings that change little
    (True, lambda x: x.exp().log_softmax(-1), (THIRDS,)),
    (True, lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), (THIRDS,)),
    (True, lambda x: x @ x.t() + x.sum(), (THIRDS,)),
])
def test_what_roundings_decide(decided, fn, tensors):
    assert bool(truth(fn, *tensors).doubtful.any()) is not decided


def test_the_dtype_itself_is_double_precision():
    """A program that says its arguments' dtype is no other in doubles: the parts go together there too."""
    halves = (THIRDS.half(),)
    assert truth(lambda x: torch.zeros_like(x).index_add(0, torch.tensor([1]), x.half()[:1]),
                 *halves).values.dtype is torch.float64


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.float16))
def test_conversions_copy_where_they_do_for_the_dtype(dtype):
    def f(x):
        x = x.clone()
        x.double().mul_(2)
        x.float().add_(1)
        return x

    x = QUARTERS.to(dtype)
    assert torch.equal(truth(f, x).values, f(x).double())


def test_a_wrong_element_is_found():
    """One element of a result that is wrong by a part in a hundred, in random programs on ordinary numbers."""
    found = missed = 0
    for seed in range(120):
        space, rng = {}, random.Random(seed)
        exec(compile(tensors.generate(seed), "<program>", "exec"), space)
        make = tensors.arguments(seed, "cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = tensors.observe(space["f"], make)
            floats = [t for t in tensors_of(want[0]) if t.is_floating_point() and t.dtype.itemsize >= 4 and t.numel()
                      and bool(t.isfinite().all())]
            if not floats:
                continue
            chosen, at = rng.choice(floats), rng.random()

            def spoiled(t):
                if t is not chosen:
                    return t
                flat = t.detach().clone(memory_format=torch.preserve_format)
                place = tuple(int(at * n) for n in t.shape)
                flat[place] = flat[place] * 1.01 + 0.01
                return flat.requires_grad_(t.requires_grad)

            got = (mapped(spoiled, want[0]), *want[1:])
            exact = tensors._truth(space["f"], make, want)
            if exact is None:
                continue
            why = tensors.compared(want, got, exact)
        found, missed = found + bool(why), missed + (not why)
    assert found >= 40 and missed * 20 <= found, (found, missed)


def test_an_exception_that_roundings_decide_is_let_pass():
    """Whether an index is out of range hangs on a sum in which terms cancel and 1e-30 is left or not."""
    assert tensors.run(2205034, text='''
import torch

def f(x, y, i, n, s):
    v1 = x.transpose(-1, 0)
    v2 = y[(x.sum(-1) > 0).long()]
    v3 = v1.cumsum(-1)
    return v1.split(2, 0)[-1], y.prod(-1), v3 * v3.shape[0]
''') is None


def test_memory_that_a_result_does_not_fill_is_seen():
    y = torch.randn(3, 4)
    assert judge.overlapping(lambda: torch.nn.functional.mse_loss(y, y).as_strided((3, 4), (4, 1)))
    assert not judge.overlapping(
        lambda: torch.nn.functional.mse_loss(y, y, reduction="none").as_strided((3, 4), (4, 1)))
    assert not judge.overlapping(lambda: (y + 1)[1:].as_strided((3, 4), (4, 1), 0))
