"""A backward raises in eager where the program has changed a value that autograd has kept; so does the compiled
function's, and only there. On the default backend."""

import pytest
import torch
import torch.nn.functional as F

import jit


def result_of_exp(x, w):
    y = (x * 2).exp()
    y.add_(1)
    return y


def factor(x, w):
    h = x * 2
    y = h * w
    h.mul_(3)
    return y


def addend(x, w):
    h = x * 2
    y = h + w
    h.mul_(3)
    return y


def written_before_use(x, w):
    h = x * 2
    h.add_(1).relu_()
    return h * 3


def result_of_a_write(x, w):
    h = x * 2
    h.relu_()
    h.mul_(2)
    return h


def without_recording(x, w):
    h = x * 2
    y = h @ w
    with torch.no_grad():
        h[0] = 0
    return y


def through_a_view(x, w):
    y = torch.softmax(x * 2, -1)
    y.t()[0] = 1
    return y


def read_through_a_view(x, w):
    h = x * 2
    y = h.t() @ w
    h.add_(1)
    return y


def index(x, w):
    i = torch.zeros(2, dtype=torch.long)
    y = (x * 2)[i]
    i.add_(1)
    return y


def detached(x, w):
    h = x.sin()
    u = h.cos()
    h.add_(1)
    return u.detach() + h


def another_result(x, w):
    h = x * 2
    y = h * w
    h.mul_(3)
    return x.sin(), y


def only_the_shape_is_kept(x, w):
    h = x * 2
    y = h.sum(0) + h.reshape(-1)[0]
    h.zero_()
    return y


def statistics(x, w):
    mean, var = torch.zeros(4), torch.ones(4)
    return F.batch_norm(F.batch_norm(x, mean, var, training=True), mean, var, training=True) + mean.sum()


def norm_and_residual(x, w):
    h = x * 2
    y = F.layer_norm(h, (4,))
    h.add_(y)
    return h


def dropout_in_place(x, w):
    return F.dropout(F.relu(x * w), 0.0, inplace=True)


def masked(x, w):
    h = x * 2
    m = h > 0
    y = torch.where(m, h, w)
    m.logical_not_()
    return y


def inputs_in_a_step(x, w):
    y = (x * w).sum()
    (g,) = torch.autograd.grad(y, [w])
    with torch.no_grad():
        w.sub_(g)
    return x * 2


def gradient_inside(x, w):
    h = x * 2
    y = (h * w).sum()
    h.mul_(2)
    try:
        return torch.autograd.grad(y, [w])[0]
    except RuntimeError:
        return x * 7


def ignored(x, w):
    h = x * 2
    y = h * w
    h.mul_(3)
    del y
    return h


def transposed_in_place(x, w):
    y = torch.log_softmax(x * 2, -1)
    y.transpose_(0, 1)
    return y


def another_shape_of_a_factor(x, w):
    h = x * 2
    y = h * w
    h.unsqueeze_(0)
    return y, h


def another_shape_of_a_view(x, w):
    y = (x * w).exp()
    y.t().unsqueeze_(0)
    return y


def result_shown_by_a_view(x, w):
    y = (x * w).logsumexp(-1)[:-1]
    y.t().add_(1)
    return y


def unrecorded_write_then_another(x, w):
    h = x * 2
    with torch.no_grad():
        h.sigmoid_()
    y = h * 3
    h.add_(1)
    return y, h


def unrecorded_write_of_a_view(x, w):
    h = x.cumsum(0)
    v = h[:, 1:]
    with torch.no_grad():
        v.exp_().mul_(h[:, :1])
    y = F.pad(h, (1, 1))
    v.diagonal().add_(1)
    return y, h


def unrecorded_use_of_what_is_written(x, w):
    h = x * 2
    with torch.no_grad():
        g = torch.empty(h.shape[0], 4)
        torch.mul(h, w[:1], out=g)
        h.add_(1)
    g.mul_(h)
    return g * w[:1]


PROGRAMS = [result_of_exp, factor, addend, written_before_use, result_of_a_write, without_recording, through_a_view,
            read_through_a_view, index, detached, another_result, only_the_shape_is_kept, statistics, norm_and_residual,
            dropout_in_place, masked, inputs_in_a_step, gradient_inside, ignored, transposed_in_place,
            another_shape_of_a_factor, another_shape_of_a_view, result_shown_by_a_view,
            unrecorded_write_then_another, unrecorded_write_of_a_view, unrecorded_use_of_what_is_written]
LAYOUTS = {
    "dense": lambda n: torch.linspace(-1, 1, n * 4).view(n, 4),
    "transposed": lambda n: torch.linspace(-1, 1, n * 4).view(4, n).t(),
    "sliced": lambda n: torch.linspace(-1, 1, n * 6).view(n, 6)[:, 1:5],
}


def outcome(fn, layout, n, used):
    """Results, gradients, or the type of what the backward raises, from result number ``used`` alone."""
    x, w = (LAYOUTS[layout](n).detach().clone(memory_format=torch.preserve_format).requires_grad_() for n in (n, 4))
    if fn is inputs_in_a_step or n != 4:
        w = LAYOUTS[layout](n).detach().clone().requires_grad_()
    results = fn(x, w)
    results = results if isinstance(results, tuple) else (results,)
    result = results[used % len(results)]
    if not result.requires_grad:
        return [r.detach().clone() for r in results], None
    try:
        result.sum().backward()
    except RuntimeError as error:
        assert "has been modified by an inplace operation" in str(error)
        return [r.detach().clone() for r in results], RuntimeError
    return [r.detach().clone() for r in results], [x.grad, w.grad]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_eager(program, dynamic):
    compiled = jit.compile(program, dynamic=dynamic)
    square = program in (without_recording, read_through_a_view)
    for layout in LAYOUTS:
        for n in (4,) if square else (4, 3, 5):
            for used in (0, 1):
                want, got = outcome(program, layout, n, used), outcome(compiled, layout, n, used)
                torch.testing.assert_close(got[0], want[0])
                if want[1] is RuntimeError or got[1] is RuntimeError or want[1] is None:
                    assert got[1] is want[1], (layout, n, used)
                else:
                    torch.testing.assert_close(got[1], want[1])


def test_a_write_through_data_is_not_noticed():
    def f(x, w):
        h = x * 2
        y = h * w
        h.data.mul_(2)
        return y

    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    jit.compile(f)(x, w).sum().backward()
    assert x.grad is not None


def test_without_a_backward_the_call_is_one_graph():
    for program in (factor, result_of_exp, without_recording):
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        torch.testing.assert_close(jit.compile(program, fullgraph=True)(x, w), program(x, w))


@pytest.mark.parametrize("operation", ["sigmoid", "exp", "sqrt", "tanh", "rsqrt", "reciprocal"])
def test_what_is_kept_does_not_depend_on_where_it_was_asked_first(operation):
    """PyTorch is asked once what an operation keeps; the first to ask starts with gradients off."""
    def off_at_first(x):
        torch.set_grad_enabled(True)
        return off_then_on(x)

    def broken_where_off(x):
        with torch.no_grad():
            jit.graph_break()
        return off_then_on(x)

    def off_then_on(x):
        y = getattr(torch, operation)(x)
        y.add_(1)
        return y

    sizes = {"off": (3, 7, 11), "break": (5, 3, 7), "inference": (7, 3, 5)}  # that no other test has asked about
    with torch.no_grad():
        y = jit.compile(off_at_first)(torch.ones(sizes["off"], requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = jit.compile(broken_where_off)(torch.ones(sizes["break"], requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        jit.compile(off_then_on)(torch.ones(sizes["inference"]))
    y = jit.compile(off_then_on)(torch.ones(sizes["inference"], requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
