"""What autograd refuses in eager: results that cannot require grad, ``out=``, functions without a derivative."""

import pytest
import torch

import jit

INTEGERS = {
    "sum": lambda x: x.sum(dtype=torch.int64),
    "sum of what is computed": lambda x: (x * 2).sum(dtype=torch.int64),
    "prod": lambda x: x.prod(dtype=torch.int32),
    "cumsum": lambda x: x.cumsum(0, dtype=torch.int64),
    "cumprod": lambda x: x.cumprod(0, dtype=torch.int64),
    "nansum": lambda x: x.nansum(dtype=torch.int64),
    "mean": lambda x: x.mean(dtype=torch.int64),
    "out=": lambda x: torch.add(x, 1, out=torch.ones(x.shape)),
    "a leaf changed in place": lambda x: x.add_(1),
}


def refusal(fn, *args):
    try:
        fn(*args)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_refused_where_gradients_are_recorded(name, used):
    def fn(x):
        y = INTEGERS[name](x)
        return y if used else x.detach() + 1

    for requires_grad, size in ((False, 3), (True, 3), (False, 5), (True, 6000), (True, 7)):
        jit.reset()
        compiled = jit.compile(fn)
        for n in (size, size + 1, size + 2):
            x = torch.ones(n, requires_grad=requires_grad)
            assert refusal(compiled, x) == refusal(fn, x)


@pytest.mark.parametrize("fn", [lambda x: x // 2, lambda x: 7 // x, lambda x: x // x.detach() + x, lambda x: torch.histc(x), lambda x: x.argsort().float()],
                         ids=["floor division", "of a number", "partly", "histc", "argsort"])
def test_refused_in_the_backward(fn):
    def gradient(f):
        def run():
            x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
            f(x).sum().backward()

        return run

    expected = refusal(gradient(fn))
    assert expected is not None and refusal(gradient(jit.compile(fn))) == expected
