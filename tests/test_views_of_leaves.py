"""Views of tensors that a compiled function makes to require grad: they require grad as eager's do, lead there, and
show the memory that they share."""

import pytest
import torch

import jit


def of_another(x):
    y = x.detach().requires_grad_()
    return y.t(), y[0], y


def of_data(x):
    y = x.data.requires_grad_()
    return y[1:], (y * 2).sum()


def of_a_part(x):
    y = x.detach()[1:].requires_grad_()
    with torch.no_grad():
        silent = y.t()
    return silent.requires_grad, silent * 2, y[0] * 1, y


def silent_of_a_leaf(x):
    y = x.detach().requires_grad_()
    with torch.no_grad():
        v = y.t()
    return v, v.requires_grad, v.is_leaf, v * 2


def silent_of_a_new_one(x):
    y = torch.zeros(3, 4).requires_grad_()
    with torch.no_grad():
        v = y.t()
    return v.requires_grad, v * 2, x + 1


def made_before(x):
    y = torch.zeros(3, 4)
    v = y.view(-1)
    y.requires_grad_()
    return v.requires_grad, v * 2, x + 1


def made_before_of_another(x):
    y = x.detach()
    v = y[1:]
    y.requires_grad_()
    return v, y, y[0]


def differentiated(x):
    ys = [t.detach().requires_grad_() for t in x.unbind(0)]
    return [t[1:] for t in ys], torch.autograd.grad(sum((t * t).sum() for t in ys), ys)


def several(x):
    y = x.detach().requires_grad_()
    return y.unbind(0), y.expand(2, 3, 4), y.t().detach()


def shown(value):
    if isinstance(value, (tuple, list)):
        return [shown(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value
    return (value.requires_grad, value.is_leaf, type(value.grad_fn), value.stride(), value.tolist(),
            value._base is not None and value._base.requires_grad)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("fn", [of_another, of_data, of_a_part, silent_of_a_leaf, silent_of_a_new_one, made_before,
                                made_before_of_another, differentiated, several])
def test_views_of_leaves_require_grad_as_in_eager(fn, recorded):
    compiled = jit.compile(fn)
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 1).expand(3, 4)):
        x.requires_grad_(recorded)
        assert shown(compiled(x)) == shown(fn(x))


def test_gradients_lead_to_the_leaf_and_writes_show():
    found = []
    for call in (of_another, jit.compile(of_another)):
        x = torch.arange(12.0).view(3, 4)
        view, *rest = call(x)
        x[0, 0] = 100
        (view * 3).sum().backward()
        found.append((view.tolist(), view._base.grad.tolist(), shown(rest)))
    assert found[0] == found[1]
