"""Parameters and old constructors of tensors inside compiled functions."""

import numpy as np
import pytest
import torch

import jit


def parameter(x):
    p = torch.nn.Parameter(x * 2)
    return p, isinstance(p, torch.nn.Parameter), p.requires_grad, p.is_leaf, p.grad, p.dim(), p.shape


def frozen(x):
    p = torch.nn.Parameter(x + 1, requires_grad=False)
    return p, p * 2, p.requires_grad


def initialised(x):
    p = torch.nn.Parameter(torch.empty(3, 3))
    torch.nn.init.ones_(p)
    with torch.no_grad():
        p.mul_(x.sum())
    return p, p.detach() + 1


def module(x):
    torch.manual_seed(0)
    m = torch.nn.Linear(4, 2)
    return m.weight, m.bias, m.in_features


def kept(x):
    class Box:
        pass
    box = Box()
    box.p = torch.nn.Parameter(torch.ones(2))
    return [box.p], x + 1


WHOLE = [parameter, frozen, initialised, module, kept]


def used(x):
    p = torch.nn.Parameter(torch.ones(3))
    y = (p * x).sum()
    return p, y


def called(x):
    torch.manual_seed(1)
    m = torch.nn.Linear(3, 2)
    return m.weight, m(x).sum()


def same(a, b):
    if isinstance(a, torch.Tensor):
        assert type(a) is type(b) and a.requires_grad == b.requires_grad and a.is_leaf == b.is_leaf
        torch.testing.assert_close(a, b)
    elif isinstance(a, (list, tuple)):
        for p, q in zip(a, b, strict=True):
            same(p, q)
    else:
        assert a == b


@pytest.mark.parametrize("fn", [*WHOLE, used, called])
def test_new_parameters(fn):
    compiled = jit.compile(fn, fullgraph=fn in WHOLE)
    for _ in range(3):
        x = torch.rand(3, 3) if fn is called else torch.rand(3)
        want, got = fn(x), compiled(x)
        same(want, got)
        if fn in (used, called):
            want[1].backward(), got[1].backward()
            torch.testing.assert_close(want[0].grad, got[0].grad)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


USES = [lambda p, x: Scaled.apply(p), lambda p, x: torch.func.grad(lambda t: (t * t).sum())(p),
        lambda p, x: torch.func.grad(lambda t: (t * p).sum())(x), lambda p, x: torch.vmap(lambda t: t * 2)(p),
        lambda p, x: torch.utils.checkpoint.checkpoint(lambda t: t * 2, p, use_reentrant=False),
        lambda p, x: torch.func.functional_call(torch.nn.Linear(3, 1), {"weight": p[None], "bias": p[:1]}, x),
        lambda p, x: torch.stack([p, x]), lambda p, x: x.clone().copy_(p), lambda p, x: torch.where(x > 0, p, x)]


@pytest.mark.parametrize("case", range(len(USES)))
def test_no_use_loses_the_gradient(case):
    def fn(x):
        p = torch.nn.Parameter(torch.ones(3))
        return p, USES[case](p, x)

    compiled = jit.compile(fn)
    for _ in range(2):
        x = torch.ones(3)
        torch.manual_seed(0)
        want = fn(x)
        torch.manual_seed(0)
        got = compiled(x)
        assert want[1].requires_grad == got[1].requires_grad
        if want[1].requires_grad:
            want[1].sum().backward(), got[1].sum().backward()
            torch.testing.assert_close(want[0].grad, got[0].grad)


def test_memory_is_shared():
    def fn(x):
        return torch.nn.Parameter(x)

    x = torch.ones(3)
    p = jit.compile(fn, fullgraph=True)(x)
    x.add_(1)
    assert torch.equal(p.data, x)


OLD = [lambda x: torch.LongTensor(3).shape, lambda x: torch.FloatTensor(2, 3).dtype, lambda x: torch.LongTensor([1, 2]),
       lambda x: torch.LongTensor(x.shape).shape, lambda x: torch.FloatTensor(),
       lambda x: torch.IntTensor((1, 2)) + x.int(),
       lambda x: torch.LongTensor([x.long().sum(), x.long().max()]),
       lambda x: torch.LongTensor([np.int64(3), 4]), lambda x: torch.DoubleTensor([x.sum().item(), 1])]


@pytest.mark.parametrize("case", range(len(OLD)))
def test_old_constructors(case):
    compiled = jit.compile(OLD[case], fullgraph=True)
    for k in range(3):
        x = torch.arange(2.0) + k
        same(OLD[case](x), compiled(x))


def test_numbers_from_outside_are_guarded():
    given = []
    compiled = jit.compile(lambda x: x * torch.LongTensor(given) + torch.tensor([given[0], 1.5]))
    for k in range(4):
        given[:] = [np.int64(k), torch.tensor(k + 1)]
        x = torch.ones(2)
        same(x * torch.LongTensor(given) + torch.tensor([given[0], 1.5]), compiled(x))


def test_an_object_of_an_autograd_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def fn(x):
        return Double().apply(x).sum()

    compiled = jit.compile(fn, fullgraph=True)
    for _ in range(2):
        a, b = (torch.ones(3, requires_grad=True) for _ in "ab")
        fn(a).backward(), compiled(b).backward()
        torch.testing.assert_close(a.grad, b.grad)


def changed_in_place(y):
    log = []
    for change in (lambda p: p.__setitem__(0, 0), lambda p: p.add_(1), lambda p: p[1].zero_(), lambda p: p.t().mul_(2)):
        parameter = torch.nn.Parameter(y.clone())
        try:
            change(parameter)
        except RuntimeError as error:
            log.append(str(error))
        with torch.no_grad():
            change(parameter)
        log.append(parameter.tolist())
    parameter[0] = 0
    return log


@pytest.mark.parametrize("backend", ["eager", "jit"])
def test_a_new_parameter_may_not_be_changed_where_gradients_are_recorded(backend):
    def fn(y):
        log = []
        parameter = torch.nn.Parameter(y)
        try:
            parameter[0] = 0
        except RuntimeError as error:
            log.append(str(error))
        return log, parameter.tolist()

    for program in (fn, changed_in_place):
        found = []
        for call in (program, jit.compile(program, backend=backend)):
            try:
                found.append(call(torch.arange(4.0).view(2, 2)))
            except RuntimeError as error:
                found.append(str(error))
        assert found[0] == found[1]
