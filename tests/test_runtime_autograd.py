"""Differentiable plans built by hand: the node in autograd's graph, what it saves and frees, hooks, views, threads, and
replayed operators; against eager."""

import ctypes
import subprocess
import threading
import weakref

import pytest
import torch
from frame_harness import all_equal
from runtime_harness import aten, c, leaf, s

from jit.runtime import load_plan, native
from jit.runtime.plan import GradSpec, Plan, load_differentiable
from jit.runtime.steps import Alloc, Call, Copy, Free, Reg, Several, View

CPU, F32 = "cpu", torch.float32
SOURCE = r"""
#include <cstdint>
#include <cmath>
#define KERNEL(name, body) extern "C" void name(void** p, const int64_t* n) { \
  float *a = (float*)p[0], *b = (float*)p[1], *c = (float*)p[2], *d = (float*)p[3]; \
  for (int64_t i = 0; i < n[0]; ++i) { body; } }
KERNEL(sin2, b[i] = std::sin(a[i]) * 2.0f)
KERNEL(sin2_back, c[i] = std::cos(a[i]) * 2.0f * b[i])
KERNEL(exp_, b[i] = std::exp(a[i]))
KERNEL(mul, c[i] = a[i] * b[i])
KERNEL(mul_back, d[i] = b[i] * c[i]; ((float*)p[4])[i] = a[i] * c[i])
KERNEL(fork, b[i] = a[i] * a[i]; c[i] = a[i] * 3.0f)
KERNEL(fork_back, d[i] = 2.0f * a[i] * b[i] + 3.0f * c[i])
"""


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "k.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", str(folder / "k.so"), str(folder / "k.cpp")], check=True)
    library = ctypes.CDLL(str(folder / "k.so"))
    return lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value


VECTOR = (("size", 0, 0), ("const", 1))


def new(slot):
    """A fresh float vector as long as input 0."""
    return Alloc(slot, F32, CPU, (0,), (1,))


@pytest.fixture
def sin2(kernels):
    """y = 2 sin(x); saves x."""
    forward = Plan(1, 0, VECTOR, 2, (new(1), Call(kernels("sin2"), (0, 1), (0,))), (1,))
    backward = Plan(2, 0, VECTOR, 3, (new(2), Call(kernels("sin2_back"), (0, 1, 2), (0,))), (2,))

    def second(inputs, saved, ints, tangents, wanted, changed, foreign):
        assert saved == inputs and not ints and wanted == (True,) and not changed
        (x,), (t,) = inputs, tangents
        return (x.cos() * 2 * t,)

    return load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (("input", 0),), (0,), second=second))


@pytest.fixture
def exponential(kernels):
    """y = exp(x); saves its result."""
    forward = Plan(1, 0, VECTOR, 2, (new(1), Call(kernels("exp_"), (0, 1), (0,))), (1,))
    backward = Plan(2, 0, VECTOR, 3, (new(2), Call(kernels("mul"), (0, 1, 2), (0,))), (2,))
    return load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (("output", 0),), (0,)))


@pytest.fixture
def product(kernels):
    """z = x * y; saves copies of both as extra results."""
    forward = Plan(2, 0, VECTOR, 5, (new(2), new(3), new(4), Call(kernels("mul"), (0, 1, 2), (0,)), Copy(3, 0),
                                     Copy(4, 1)), (2, 3, 4))
    backward = Plan(3, 0, VECTOR, 5, (new(3), new(4), Call(kernels("mul_back"), (0, 1, 2, 3, 4), (0,))), (3, 4))
    return load_differentiable(forward, backward, GradSpec(1, (0, 1), (0,), (("extra", 0), ("extra", 1)), (0, 1)))


@pytest.fixture
def fork(kernels):
    """(x * x, 3 x), each with a tangent; saves x."""
    forward = Plan(1, 0, VECTOR, 3, (new(1), new(2), Call(kernels("fork"), (0, 1, 2), (0,))), (1, 2))
    backward = Plan(3, 0, VECTOR, 4, (new(3), Call(kernels("fork_back"), (0, 1, 2, 3), (0,))), (3,))
    return load_differentiable(forward, backward, GradSpec(2, (0,), (0, 1), (("input", 0),), (0,)))


def test_gradient_and_history(sin2):
    x = leaf(100)
    (y,) = sin2(x)
    assert y.grad_fn.name() == "CompiledBackward" and not y.is_leaf and y.requires_grad
    (y * y).sum().backward()
    want = torch.autograd.grad(((x.sin() * 2) ** 2).sum(), x)[0]
    torch.testing.assert_close(x.grad, want)
    assert "differentiable" in repr(sin2)


def test_chain_of_compiled_and_eager(sin2, exponential):
    x = leaf(20)
    z = exponential(sin2(x.tanh())[0] + 1)[0].mean()
    got = torch.autograd.grad(z, x)[0]
    torch.testing.assert_close(got, torch.autograd.grad(((x.tanh().sin() * 2) + 1).exp().mean(), x)[0])


def test_no_history_when_none_is_needed(sin2):
    assert sin2(torch.randn(4))[0].grad_fn is None
    x = leaf(4)
    with torch.no_grad():
        assert not sin2(x)[0].requires_grad
    with torch.inference_mode():
        assert not sin2(x)[0].requires_grad


def test_second_backward(sin2, product):
    x = leaf(5)
    (y,) = sin2(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 4 * x.detach().cos())
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.sum().backward()
    (z,) = product(x, leaf(5))
    z.sum().backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        z.sum().backward()


def test_nothing_saved_can_go_twice(kernels):
    forward = Plan(1, 0, (), 2, (aten("neg", (s(0),), 1),), (1,))
    f = load_differentiable(forward, forward, GradSpec(1, (0,), (0,), (), (0,)))
    x = leaf(3)
    (y,) = f(x)
    y.sum().backward()
    y.sum().backward()
    assert x.grad.tolist() == [-2] * 3


def test_in_place_writes_are_noticed(sin2, exponential):
    x = leaf(5)
    h = x * 1
    (y,) = sin2(h)
    with torch.no_grad():
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    (y,) = exponential(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*output 0 of Compiled"):
        y.sum().backward()
    (y,) = sin2(x)
    y.mul_(2)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 4 * x.detach().cos())


def test_some_inputs_need_no_gradient(product):
    x, y = leaf(6), torch.randn(6)
    (z,) = product(x, y)
    z.sum().backward()
    assert torch.equal(x.grad, y) and y.grad is None
    x.grad = None
    y.requires_grad_()
    (z,) = product(x, y)
    gx, gy = torch.autograd.grad(z.sum(), (x, y))
    assert torch.equal(gx, y) and torch.equal(gy, x)
    (z,) = product(x.detach(), y)
    assert torch.autograd.grad(z.sum(), y)[0].equal(x)
    (z,) = product(x, x)
    z.sum().backward()
    assert torch.equal(x.grad, 2 * x)


def test_partial_outputs(fork):
    x = leaf(7)
    a, b = fork(x)
    b.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [3] * 7
    x.grad = None
    a.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, 2 * x.detach())
    x.grad = None
    (a.sum() + 2 * b.sum()).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 6)


def test_gradient_is_none_where_there_is_no_path():
    # (-x, -y): two functions in one plan
    forward = Plan(2, 0, (), 4, (aten("neg", (s(0),), 2), aten("neg", (s(1),), 3)), (2, 3))
    spec = GradSpec(2, (0, 1), (0, 1), (), (0, 1), depends=((0,), (1,)))
    f = load_differentiable(forward, forward, spec)
    x, y = leaf(3), leaf(3)
    a, b = f(x, y)
    a.sum().backward()
    assert x.grad is not None and y.grad is None
    with pytest.raises(RuntimeError, match="unused|not have been used"):
        torch.autograd.grad(f(x, y)[1].sum(), x)
    never = load_differentiable(forward, forward, GradSpec(2, (0, 1), (0, 1), (), (0, None)))
    sum(t.sum() for t in never(x, y)).backward()
    assert y.grad is None


def test_a_backward_for_the_tangents_that_are_given(kernels, fork):
    forward = Plan(1, 0, VECTOR, 3, (new(1), new(2), Call(kernels("fork"), (0, 1, 2), (0,))), (1, 2))
    backward = Plan(3, 0, VECTOR, 4, (new(3), Call(kernels("fork_back"), (0, 1, 2, 3), (0,))), (3,))
    # of x and the second tangent: 3 t, as long as the first tangent is
    second_alone = Plan(3, 0, (("size", 1, 0), ("const", 1)), 4, (aten("mul", (s(2), c(3)), 3, overload="Tensor"),),
                        (3,))
    asked = []

    def narrow(present):
        asked.append(present)
        return load_plan(second_alone) if present == (False, True) else None

    f = load_differentiable(forward, backward, GradSpec(2, (0,), (0, 1), (("input", 0),), (0,), narrow=narrow))
    x = torch.full((4,), float("inf"), requires_grad=True)
    for _ in range(2):
        a, b = f(x)
        b.sum().backward(retain_graph=True)
        assert x.grad.tolist() == [3] * 4  # and not 0 * inf
        x.grad = None
    a.sum().backward()
    assert asked == [(False, True), (True, False)] and x.grad.isinf().all()
    x = leaf(4)
    a, b = f(x)
    (a + b).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 3)
    assert len(asked) == 2


@pytest.mark.parametrize("answer, error", [(3, RuntimeError), (load_plan, RuntimeError),
                                           (ValueError("mine"), ValueError)], ids=["type", "shape", "raises"])
def test_bad_narrow_says_so(kernels, answer, error):
    def narrow(present):
        if isinstance(answer, Exception):
            raise answer
        return answer if answer == 3 else load_plan(Plan(1, 0, (), 1, (), (0,)))

    forward = Plan(1, 0, (), 3, (aten("neg", (s(0),), 1), aten("neg", (s(0),), 2)), (1, 2))
    backward = Plan(2, 0, (), 3, (aten("add", (s(0), s(1), c(-1)), 2, overload="Tensor"),), (2,))
    f = load_differentiable(forward, backward, GradSpec(2, (0,), (0, 1), (), (0,), narrow=narrow))
    with pytest.raises(error):
        f(leaf(3))[0].sum().backward()


TANGENTS = {
    "expanded": lambda: torch.randn(1, 1).expand(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "strided": lambda: torch.randn(4, 12)[:, ::2],
    "one": lambda: torch.ones(4, 6),
    "zero": lambda: torch._efficientzerotensor(4, 6),
    "conj": lambda: torch.randn(4, 6, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.randn(4, 6).to_sparse(),
}


@pytest.mark.parametrize("kind", list(TANGENTS))
def test_tangents_of_other_layouts(kernels, kind):
    regs = (("size", 0, 0), ("size", 0, 1), ("const", 1), ("mul", 0, 1))
    forward = Plan(1, 0, regs, 2, (Alloc(1, F32, CPU, (0, 1), (1, 2)), Call(kernels("sin2"), (0, 1), (3,))),
                   (1,))
    backward = Plan(2, 0, regs, 3,
                    (Alloc(2, F32, CPU, (0, 1), (1, 2)), Call(kernels("sin2_back"), (0, 1, 2), (3,))), (2,))
    f = load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (("input", 0),), (0,)))
    x, t = leaf(4, 6), TANGENTS[kind]()
    want = x.detach().cos() * 2 * t.to_dense()
    (y,) = f(x)
    if kind == "sparse":  # only a Function hands such a tangent on
        class Sparse(torch.autograd.Function):
            @staticmethod
            def forward(ctx, v):
                return v.clone()

            @staticmethod
            def backward(ctx, g):
                return t

        Sparse.apply(y).sum().backward()
    else:
        y.backward(t)
    torch.testing.assert_close(x.grad, want)


def test_channels_last(kernels):
    regs = (("const", 2), ("const", 3), ("const", 4), ("const", 5), ("const", 1), ("const", 15), ("const", 60),
            ("const", 120))
    image = ((0, 1, 2, 3), (6, 4, 5, 1))  # sizes 2 3 4 5, strides 60 1 15 3
    forward = Plan(1, 0, regs, 2, (Alloc(1, F32, CPU, *image), Call(kernels("sin2"), (0, 1), (7,))), (1,))
    backward = Plan(2, 0, regs, 3, (Alloc(2, F32, CPU, *image), Call(kernels("sin2_back"), (0, 1, 2), (7,))),
                    (2,))
    f = load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (("input", 0),), (0,)))
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    t = torch.randn(2, 3, 4, 5)
    (y,) = f(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.backward(t)
    torch.testing.assert_close(x.grad, x.detach().cos() * 2 * t)
    assert x.grad.stride() == x.stride()


def test_tangent_of_an_output_with_gaps_is_dense(kernels):
    regs = (("const", 4), ("const", 6), ("const", 1), ("const", 8), ("const", 24))
    forward = Plan(1, 0, regs, 2, (Alloc(1, F32, CPU, (0, 1), (3, 2)), Copy(1, 0)), (1,))
    backward = Plan(1, 0, regs, 2, (Alloc(1, F32, CPU, (0, 1), (1, 2)), Call(kernels("exp_"), (0, 1), (4,))),
                    (1,))
    f = load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (), (0,)))
    x = leaf(4, 6)
    for t in (torch.randn(4, 6), torch.randn(4, 8)[:, :6]):
        (y,) = f(x)
        assert y.stride() == (8, 1)
        torch.testing.assert_close(torch.autograd.grad(y, x, t)[0], t.exp())


def test_leaf_gradients_are_not_shared(kernels):
    # both gradients are the tangent itself
    forward = Plan(2, 0, (), 3, (aten("add", (s(0), s(1), c(1)), 2, overload="Tensor"),), (2,))
    backward = Plan(1, 0, (), 1, (), (0, 0))
    f = load_differentiable(forward, backward, GradSpec(1, (0, 1), (0,), (), (0, 1)))
    x, y, t = leaf(4), leaf(4), torch.ones(4)
    (z,) = f(x, y)
    z.backward(t, retain_graph=True)
    x.grad.add_(10)
    assert y.grad.tolist() == [1] * 4 and t.tolist() == [1] * 4
    z.backward(t)
    assert x.grad.tolist() == [12] * 4 and y.grad.tolist() == [2] * 4 and t.tolist() == [1] * 4
    gx, gy = torch.autograd.grad(f(x, y)[0], (x, y), t)
    gx.zero_()
    assert t.tolist() == [1] * 4


def test_gradients_on_saved_memory_are_copied():
    # the gradient of x is what was saved, of y a view of it
    forward = Plan(2, 0, (), 4, (aten("neg", (s(0),), 2), aten("clone", (s(1), c(None)), 3)), (2, 3))
    backward = Plan(2, 0, (("const", 4), ("const", 1), ("const", 0)), 3, (View(2, 0, (0,), (1,), 2),), (0, 2))
    f = load_differentiable(forward, backward, GradSpec(1, (0, 1), (0,), (("extra", 0),), (0, 1)))
    x, y = leaf(4), leaf(4)
    (z,) = f(x, y)
    z.sum().backward(retain_graph=True)
    x.grad.zero_()
    assert torch.equal(y.grad, y)
    y.grad.zero_()
    z.sum().backward()
    assert torch.equal(y.grad, y) and torch.equal(x.grad, y)


def test_leaf_gradient_is_stolen(sin2):
    x, seen = leaf(1 << 15), []
    (y,) = sin2(x)
    y.grad_fn.register_hook(lambda gi, go: seen.append(gi[0].data_ptr()))
    y.sum().backward()
    assert x.grad.data_ptr() == seen[0]
    before = x.grad
    sin2(x)[0].sum().backward()
    assert x.grad is before
    torch.testing.assert_close(x.grad, 4 * x.detach().cos())


def test_bound_inputs(product):
    x, w = leaf(5), leaf(5)
    bound = native().bind(product, {1: w})
    assert isinstance(bound, native().Plan)
    (z,) = bound(x)
    z.sum().backward()
    assert torch.equal(x.grad, w) and torch.equal(w.grad, x)
    other = leaf(5)
    bound.rebind({1: other})
    bound(x)[0].sum().backward()
    assert torch.equal(other.grad, x) and torch.equal(w.grad, x)


def test_hooks(sin2):
    x = leaf(5)
    (y,) = sin2(x)
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    order = []
    y.grad_fn.register_prehook(lambda g: order.append("pre"))
    y.grad_fn.register_hook(lambda gi, go: order.append("post"))
    x.register_post_accumulate_grad_hook(lambda p: order.append("leaf"))
    (y * 3).sum().backward()
    assert y.grad.tolist() == [30] * 5 and order == ["pre", "post", "leaf"]
    torch.testing.assert_close(x.grad, x.detach().cos() * 60)


def test_gradient_of_an_intermediate(sin2, exponential):
    x = leaf(5)
    (y,) = sin2(x)
    (z,) = exponential(y)
    gy, gz = torch.autograd.grad(z.sum(), (y, z), retain_graph=True)
    torch.testing.assert_close(gy, z.detach())
    assert gz.tolist() == [1] * 5
    (gx,) = torch.autograd.grad(y, x, gy)
    torch.testing.assert_close(gx, z.detach() * 2 * x.detach().cos())


def test_saved_tensor_hooks(sin2, exponential, product):
    for f, inputs in ((sin2, 1), (exponential, 1), (product, 2)):
        packed, unpacked = [], []

        def pack(t):
            packed.append(t)
            return t.detach().numpy().copy()

        def unpack(a):
            unpacked.append(a)
            return torch.from_numpy(a)

        xs = [leaf(5) for _ in range(inputs)]
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            (y,) = f(*xs)
        assert len(packed) == inputs and not unpacked
        del packed[:]
        y.sum().backward()
        assert len(unpacked) == inputs
        grads = [x.grad for x in xs]
        for x in xs:
            x.grad = None
        f(*xs)[0].sum().backward()
        assert all_equal(grads, [x.grad for x in xs])


def test_saved_tensor_hook_gives_another_layout(kernels):
    regs = (("const", 4), ("const", 6), ("const", 1), ("const", 24))
    forward = Plan(1, 0, regs, 2, (Alloc(1, F32, CPU, (0, 1), (1, 2)), Call(kernels("sin2"), (0, 1), (3,))),
                   (1,))
    backward = Plan(2, 0, regs, 3,
                    (Alloc(2, F32, CPU, (0, 1), (1, 2)), Call(kernels("sin2_back"), (0, 1, 2), (3,))), (2,))
    f = load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (("input", 0),), (0,)))
    x = leaf(4, 6)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.detach().t().contiguous().t()):
        (y,) = f(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.detach()[:2]):
        (y,) = f(x)
    with pytest.raises(RuntimeError, match="saved tensor's hook"):
        y.sum().backward()


def test_create_graph(sin2):
    x = leaf(5)
    (y,) = sin2(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(g, 2 * x.cos())
    (gg,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    torch.testing.assert_close(gg, -2 * x.sin())
    # through a history before it, and into the tangent
    h = x * 3
    t = leaf(5)
    (y,) = sin2(h)
    (g,) = torch.autograd.grad(y, x, t, create_graph=True)
    gx, gt = torch.autograd.grad(g.sum(), (x, t))
    x2, t2 = x.detach().requires_grad_(), t.detach().requires_grad_()
    (g2,) = torch.autograd.grad((x2 * 3).sin() * 2, x2, t2, create_graph=True)
    torch.testing.assert_close((gx, gt), torch.autograd.grad(g2.sum(), (x2, t2)))


def test_create_graph_needs_second(exponential):
    x = leaf(5)
    with pytest.raises(NotImplementedError, match="differentiated again"):
        torch.autograd.grad(exponential(x)[0].sum(), x, create_graph=True)


def test_errors_of_second_come_through(kernels):
    class Mine(Exception):
        pass

    def second(*given):
        raise Mine("no")

    forward = Plan(1, 0, (), 2, (aten("neg", (s(0),), 1),), (1,))
    f = load_differentiable(forward, forward, GradSpec(1, (0,), (0,), (), (0,), second=second))
    x = leaf(3)
    with pytest.raises(Mine):
        torch.autograd.grad(f(x)[0].sum(), x, create_graph=True)


def test_create_graph_is_told_what_was_written():
    seen = []

    def second(inputs, saved, ints, tangents, wanted, changed, foreign):
        seen.append((saved, ints, wanted, changed, foreign))
        return None, -tangents[0]

    forward = Plan(2, 1, (), 3, (aten("neg", (s(1),), 2),), (2,))
    backward = Plan(1, 0, (), 2, (aten("neg", (s(0),), 1),), (1,))
    f = load_differentiable(forward, backward, GradSpec(1, (0, 1), (0,), (), (None, 0), second=second))
    h, k = leaf(3) * 1, leaf(3)
    (y,) = f(h, k, 7)
    torch.autograd.grad(y.sum(), k, create_graph=True)
    with torch.no_grad():
        h.add_(1)
    torch.autograd.grad(y.sum(), (h, k), create_graph=True, allow_unused=True)
    assert seen == [((), (7,), (False, True), (), False), ((), (7,), (True, True), (0,), False)]


def test_batched_tangents(sin2):
    x = leaf(3)
    (y,) = sin2(x)
    (jacobian,) = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    torch.testing.assert_close(jacobian, torch.diag(2 * x.detach().cos()))


def test_views_of_outputs_and_inputs(kernels):
    regs = (("size", 0, 0), ("const", 1), ("const", 2), ("const", 3), ("const", 0))
    forward = Plan(1, 0, regs, 3, (new(1), Call(kernels("sin2"), (0, 1), (0,)), View(2, 1, (2, 3), (3, 1), 4)),
                   (1, 2, 2))
    backward = Plan(2, 0, VECTOR, 3, (new(2), Call(kernels("sin2_back"), (0, 1, 2), (0,))), (2,))
    how = ((2, 3), (3, 1), 4)
    views = ((1, "output", 0, how), (2, "input", 0, how))
    f = load_differentiable(forward, backward, GradSpec(3, (0,), (0,), (("input", 0),), (0,), views=views))
    x = leaf(6)
    h = x * 1
    y, v, w = f(h)
    assert v._base is y and v.shape == (2, 3) and torch.equal(v.view(-1), y) and w._base is h
    (v * v).sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach().sin() * x.detach().cos())
    x.grad = None
    y, v, w = f(x * 1)
    v.mul_(2)
    assert y.grad_fn.name().endswith("CopySlices")
    y.sum().backward()
    torch.testing.assert_close(x.grad, 4 * x.detach().cos())
    with torch.no_grad():
        y, v, w = f(x)
    assert v.data_ptr() == y.data_ptr() and w.data_ptr() == x.data_ptr()


def test_saved_view_of_an_output_makes_no_cycle(kernels):
    regs = (("size", 0, 0), ("const", 1), ("const", 0))
    forward = Plan(1, 0, regs, 3, (new(1), Call(kernels("exp_"), (0, 1), (0,)), View(2, 1, (0,), (1,), 2)),
                   (1, 2))
    backward = Plan(2, 0, VECTOR, 3, (new(2), Call(kernels("mul"), (0, 1, 2), (0,))), (2,))
    f = load_differentiable(forward, backward,
                            GradSpec(2, (0,), (0,), (("output", 1),), (0,), views=((1, "output", 0, ((0,), (1,), 2)),)))
    x = leaf(6)
    k = torch.ones(6)
    y, v = f(x * k)
    alive = weakref.ref(k)
    del k
    v.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, x.detach().exp())
    assert alive() is not None
    del y, v
    assert alive() is None
    y, v = f(x)
    v.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_non_differentiable_outputs():
    forward = Plan(1, 0, (), 3, (aten("max", (s(0), c(0), c(False)), 1, 2, overload="dim"),), (1, 2))
    steps = (Alloc(2, F32, CPU, (0,), (1,)), aten("zero_", (s(2),), None),
             aten("scatter", (s(2), c(0), s(0), s(1)), 3, overload="src"))
    backward = Plan(2, 1, (("int", 0), ("const", 1)), 4, steps, (3,))
    f = load_differentiable(forward, backward,
                            GradSpec(2, (0,), (0,), (("output", 1),), (0,), symbols=(("size", 0, 0),)))
    x = leaf(8)
    value, index = f(x)
    assert not index.requires_grad and index.grad_fn is None
    value.backward()
    want = torch.zeros(8)
    want[x.argmax()] = 1
    assert torch.equal(x.grad, want)


def test_memory_goes_early(product):
    """What only the backward holds is gone when it has run, and without retain_graph as soon as it has been read."""
    sizes = 1 << 20
    stats = native().pool_stats
    x, y = leaf(sizes), leaf(sizes)
    (z,) = product(x, y)
    native().release_pool()
    assert stats()["cached_bytes"] == 0
    z.sum().backward()
    # both saved copies went back to the pool
    assert stats()["cached_bytes"] >= 2 * 4 * sizes
    x.grad = y.grad = None
    (z,) = product(x, y)
    native().release_pool()
    z.sum().backward(retain_graph=True)
    assert stats()["cached_bytes"] < 2 * 4 * sizes
    del z
    assert stats()["cached_bytes"] >= 2 * 4 * sizes


def test_saved_memory_is_reused_within_the_backward():
    # saved a; backward: b = -a, then c = -b: c is made where a was
    n = 1 << 20
    regs = (("const", n), ("const", 1))

    def fill(dst, src):
        return Alloc(dst, F32, CPU, (0,), (1,)), Copy(dst, src)

    forward = Plan(1, 0, regs, 3, (aten("neg", (s(0),), 1), *fill(2, 0)), (1, 2))
    backward = Plan(2, 0, regs, 5,
                    (*fill(2, 0), *fill(3, 2), Free(2), aten("mul", (s(3), s(1)), 4, overload="Tensor")), (4,))
    f = load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (("extra", 0),), (0,)))
    x = leaf(n)
    for retain in (False, True):
        (y,) = f(x)
        native().release_pool()
        before = native().pool_stats()
        torch.autograd.grad(y, x, torch.ones(n), retain_graph=retain)
        after = native().pool_stats()
        assert after["hits"] - before["hits"] == (0 if retain else 1)
        assert after["misses"] - before["misses"] == (2 if retain else 1)


def test_graph_dies_with_its_outputs(sin2):
    x = leaf(5)
    h = x * 1
    (y,) = sin2(h)
    alive = weakref.ref(h)
    del h
    assert alive() is not None
    del y
    assert alive() is None


def test_deep_chain_is_freed_without_recursion(sin2):
    x = leaf(2)
    y = x
    for _ in range(20_000):
        (y,) = sin2(y)
    y.sum().backward()
    y = x
    for _ in range(20_000):
        (y,) = sin2(y)
    del y


def test_threads(sin2, product):
    xs = [leaf(1000) for _ in range(8)]
    errors = []

    def work(x):
        try:
            for _ in range(50):
                x.grad = None
                (y,) = product(sin2(x)[0], x)
                y.sum().backward()
                d = x.detach()
                torch.testing.assert_close(x.grad, 2 * (d.sin() + d * d.cos()))
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(x,)) for x in xs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_backward_on_another_thread_and_shared_graph(sin2):
    x = leaf(1000)
    (y,) = sin2(x)
    loss = y.sum()
    threads = [threading.Thread(target=lambda: loss.backward(retain_graph=True)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.testing.assert_close(x.grad, 8 * x.detach().cos())


def test_anomaly_mode(exponential):
    x = torch.full((3,), 200.0, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning, match="CompiledBackward"):
        with pytest.raises(RuntimeError, match="CompiledBackward.*returned nan"):
            (exponential(x)[0] * 0.0).sum().backward()


def test_checkpoint(sin2):
    from torch.utils.checkpoint import checkpoint

    x = leaf(50)
    for reentrant in (False, True):
        x.grad = None
        checkpoint(lambda v: sin2(v)[0].exp(), x, use_reentrant=reentrant).sum().backward()
        torch.testing.assert_close(x.grad, torch.autograd.grad((x.sin() * 2).exp().sum(), x)[0])


def test_symbols_and_ints(kernels):
    # y = x[:k] * 2; the backward needs both k and the size of x
    regs = (("int", 0), ("const", 1), ("const", 0))
    forward = Plan(1, 1, regs, 3, (View(1, 0, (0,), (1,), 2), aten("mul", (s(1), c(2)), 2, overload="Tensor")),
                   (2,))
    pad = Several((c(0), Reg(2)))
    backward = Plan(1, 2, (("int", 0), ("int", 1), ("sub", 0, 1)), 3,
                    (aten("constant_pad_nd", (s(0), pad, c(0)), 1), aten("mul", (s(1), c(2)), 2, overload="Tensor")),
                    (2,))
    f = load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (), (0,), symbols=(("size", 0, 0), ("int", 0))))
    for n, k in ((5, 2), (9, 9), (30, 1)):
        x = leaf(n)
        f(x, k)[0].sum().backward()
        assert x.grad.tolist() == [2.0] * k + [0.0] * (n - k)


# ---- bad data --------------------------------------------------------------------------------------------------------

GOOD = dict(n_outputs=1, wrt=(0,), tangents=(0,), saved=(), grads=(0,))
BAD = [
    (dict(n_outputs=3), "n_outputs"), (dict(wrt=(1,)), "wrt"), (dict(tangents=(1,)), "tangents"),
    (dict(saved=(("input", 0),)), "takes 1 tensors"), (dict(saved=(("extra", 0),)), "out of range"),
    (dict(saved=(("x", 0),)), "unknown kind"), (dict(grads=()), "grads"), (dict(grads=(1,)), "grads"),
    (dict(symbols=(("int", 0),)), "symbols"), (dict(tangents=(0, 0)), "twice"),
    (dict(views=((0, "output", 0, ((), (), 0)),)), "offset"), (dict(depends=((1,),)), "depends"),
]  # fmt: skip


@pytest.mark.parametrize("change, text", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_data_says_so(change, text):
    plan = Plan(1, 0, (), 2, (aten("neg", (s(0),), 1),), (1,))
    with pytest.raises(ValueError, match=text):
        load_differentiable(plan, plan, GradSpec(**{**GOOD, **change}))


def test_bad_types_say_so():
    plan = Plan(1, 0, (), 2, (aten("neg", (s(0),), 1),), (1,))
    with pytest.raises(TypeError, match="callable"):
        load_differentiable(plan, plan, GradSpec(**GOOD, second=3))
    with pytest.raises(TypeError, match="two loaded plans"):
        native().differentiable(plan, plan, GradSpec(**GOOD))
    same = Plan(1, 0, (), 1, (), (0,))
    with pytest.raises(ValueError, match="is an input"):
        load_differentiable(same, plan, GradSpec(**GOOD))
