"""Numbers that are read from tensors and computed with: as operands of tensors, in Python's arithmetic, in lists."""

import math

import pytest
import torch
from numpy_harness import check

X = torch.tensor([[1.5, -2.0, 0.25], [3.0, 0.5, -1.0]])
I = torch.tensor([3, 1, 2])  # noqa: E741
W = torch.arange(4.0)


def in_place(x):
    y = x.clone()
    m = x.max().item()
    y[0] = 0
    y.mul_(m).add_(m)
    return y, m


def written_since(x):
    y = x * 1
    m = y.sum()
    number = m.item()
    m += 100
    return y * number, m, number


def clip(x, limit=1.0):
    norm = x.norm().item()
    return x * (limit / (norm + 1e-6)), norm


PROGRAMS = {
    "item": lambda x: x * x.sum().item(),
    "float": lambda x: x * float(x.sum()),
    "either side": lambda x: (2 - x.sum().item(), x.mean().item() - x, x / x.max().item(), x.max().item() / x),
    "arithmetic": lambda x: x * (x.sum().item() * 2 + 1) - -x.max().item(),
    "several": lambda x: x * (x.sum().item() + x.max().item() * x.min().item()),
    "quotient": lambda x: x * (x.sum().item() / x.max().item()),
    "functions": lambda x: x * math.tanh(x.sum().item()) + math.erf(x.max().item()),
    "partial functions": lambda x: x * math.sqrt(x.max().item()) + math.exp(x.min().item()) + math.log(x.max().item()),
    "largest": lambda x: (x * max(1.0, x.sum().item()), x / max(x.min().item(), 0.5), max(x.max().item(), 2.0)),
    "smallest": lambda x: (x * min(x.sum().item(), x.max().item(), 0.25), min(float("nan"), x.sum().item())),
    "extreme integers": lambda x: torch.arange(3) * max(2, int(x.numel() * 0 + 3), torch.tensor([3, 1]).max().item()),
    "scaled": lambda x: (torch.add(x, x * 3, alpha=x.sum().item()), torch.sub(x, 2 - x, alpha=x.max().item() * 2),
                         torch.addcmul(x, x + 1, x, value=x.min().item()),
                         x.clone().addcdiv_(x, x - 9, value=-x[0, 0].item())),
    "absolute": lambda x: x * abs(x.min().item()),
    "comparison with a tensor": lambda x: (x > x.mean().item(), x == x.max().item()),
    "comparison": lambda x: (x.sum().item() > 1, x.sum().item() < x.max().item()),
    "calls": lambda x: (torch.mul(x, x.sum().item()), x.add(x.max().item()), torch.maximum(x, x * 0)),
    "clamp": lambda x: x.clamp(x.min().item() + 1),
    "in place": in_place,
    "written since": written_since,
    "clip": clip,
    "tolist": lambda x: x.tolist(),
    "sum of a list": lambda x: x * sum(x[0].tolist()),
    "elements": lambda x: [x * v for v in x[0].tolist()],
    "nested": lambda x: x * x.tolist()[1][2] + len(x.tolist()),
    "unpacked": lambda x: (lambda a, b, c: x * a + b - c)(*x[0].tolist()),
    "assertion": lambda x: _checked(x),
    "double": lambda x: x.double() * x.sum().item(),
    "half": lambda x: (x.half() * x.sum().item(), x.bfloat16() + x.max().item()),
    "integers times floats": lambda x: torch.arange(3) * x.sum().item(),
    "truth": lambda x: x * (x > 0).any().item(),
}


def _checked(x):
    norm = x.norm().item()
    if not math.isfinite(norm):
        raise ValueError("not finite")
    if norm > 1000:
        raise ValueError("too large")
    return x / norm


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    check(PROGRAMS[name], X, breaks=None if name == "assertion" else 0)


def test_integers():
    check(lambda x, i: (x * i.sum().item(), x + (i.max().item() + 1), i * i[0].item(), i // 2 * i[1].item()),
          W, I, breaks=None)
    check(lambda i: [i + n for n in i.tolist()], I, breaks=None)


def test_gradients_do_not_flow_through_a_number():
    import jit

    x = X.clone().requires_grad_()
    compiled = jit.compile(lambda x: (x * (x * x).sum().item()).sum(), fullgraph=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, torch.full_like(X, (X * X).sum().item()))


def test_where_python_raises():
    import jit

    compiled = jit.compile(lambda x: x * math.sqrt(x.sum().item()))
    torch.testing.assert_close(compiled(W), W * math.sqrt(6))
    with pytest.raises(ValueError, match="math domain"):
        compiled(-W)
    divided = jit.compile(lambda x: x * (1.0 / x[0].item()))
    torch.testing.assert_close(divided(W + 1), W + 1)
    with pytest.raises(ZeroDivisionError):
        divided(W)


def test_extremes_of_unlike_types_are_breaks():
    check(lambda x: x * max(1, x.sum().item()), X, breaks=1)


def test_a_branch_is_a_step_where_its_ways_give_tensors():
    check(lambda x: x * 2 if x.sum().item() > 0 else x - 1, X)
    check(lambda x: x * 2 if x.sum().item() > 0 else [x - 1], X, breaks=1)
    check(lambda x: x * 2 if x.tolist()[0][0] > 0 else [x - 1], X, breaks=1)
