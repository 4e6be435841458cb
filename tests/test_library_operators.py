"""Operators of ``torch.library`` inside compiled functions: in the graph, with gradients, changed arguments and sizes
that change, as in eager."""

import numpy as np
import pytest
import torch
from frame_harness import same

import jit
from jit import compiling, torch_private

CALLS = []


@torch.library.custom_op("jit_library::sine", mutates_args=())
def sine(x: torch.Tensor, k: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.numpy()) * np.float32(k))


@sine.register_fake
def _(x, k=1.0):
    return torch.empty_like(x)


def _save(ctx, inputs, output):
    x, k = inputs
    ctx.save_for_backward(x)
    ctx.k = k


sine.register_autograd(lambda ctx, grad: (grad * ctx.saved_tensors[0].cos() * ctx.k, None), setup_context=_save)


@torch.library.custom_op("jit_library::both", mutates_args=())
def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + y, (x * y).sum(0)


@both.register_fake
def _(x, y):
    return torch.empty_like(x), x.new_empty(x.shape[1:])


@torch.library.custom_op("jit_library::joined", mutates_args=())
def joined(xs: list[torch.Tensor], weights: list[float], name: str | None = None) -> list[torch.Tensor]:
    return [x * w for x, w in zip(xs, weights)]


@joined.register_fake
def _(xs, weights, name=None):
    return [torch.empty_like(x) for x in xs]


@torch.library.custom_op("jit_library::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, k: float) -> None:
    x.mul_(k)


@torch.library.custom_op("jit_library::take", mutates_args=("out",))
def take(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(x + 1)
    return x * 2


@take.register_fake
def _(x, out):
    return torch.empty_like(x)


@torch.library.custom_op("jit_library::itself", mutates_args=())
def itself(x: torch.Tensor) -> torch.Tensor:
    return x


@itself.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("jit_library::loud", mutates_args=())
def loud(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(len(CALLS))
    return x + 1


@loud.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("jit_library::no_gradient", mutates_args=())
def no_gradient(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@no_gradient.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.triton_op("jit_library::followed", mutates_args=())
def followed(x: torch.Tensor, k: float) -> torch.Tensor:
    return x.sin() * k + 1


followed.register_autograd(lambda ctx, grad: (grad * 7, None))


@torch.library.triton_op("jit_library::followed_", mutates_args=("x",))
def followed_(x: torch.Tensor) -> None:
    x.copy_(x * 2)


PROGRAMS = {
    "one": lambda x: sine(x + 1, 2.0) * 3,
    "by name": lambda x: torch.ops.jit_library.sine(x, k=0.5) + torch.ops.jit_library.sine.default(x),
    "tuple": lambda x: both(x, x * 2)[1] + both(x, x)[0],
    "lists": lambda x: joined([x, x * 2], [1.0, 3.0]) + joined([x], [2.0], "name"),
    "changed": lambda x: (scale_(x, 2.0), x * 1)[1],
    "changed inside": lambda x: [y := x + 1, scale_(y, 3.0), y, y[:1]][2:],
    "changed view": lambda x: [y := x + 1, scale_(y[1:], 3.0), y][2],
    "changed and given": lambda x: [out := torch.zeros_like(x), take(x, out), out],
    "after a change": lambda x: (x.add_(1), sine(x))[1],
    "body": lambda x: followed(x, 2.0) * x,
    "body that changes": lambda x: (followed_(x), x + 1)[1],
}


def run(fn, grad, sizes):
    found = []
    for n in sizes:
        for layout in range(3):
            x = torch.linspace(-1, 1, 6 * n).view(3, 2 * n)
            x = [x, x[:, ::2], x.t()][layout].requires_grad_(grad)
            results = fn(x)
            version = x._version > 0
            if grad:
                torch.autograd.backward(results.sum())
            found.append((results, x, x.grad, version))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_and_as_eager(name):
    compiled = jit.compile(PROGRAMS[name], fullgraph=True)
    sizes = (2, 2, 3, 5, 8)
    same(run(PROGRAMS[name], False, sizes), run(compiled, False, sizes), rtol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_a_break_where_one_is_allowed(name):
    assert jit.explain(PROGRAMS[name])(torch.ones(3, 4)).graph_break_count == 0


@pytest.mark.parametrize("name", ["one", "by name", "body"])
def test_registered_gradients(name):
    compiled = jit.compile(PROGRAMS[name], fullgraph=True)
    sizes = (2, 2, 3, 5, 8)
    ours = run(lambda x: compiled(x * 1), True, sizes)
    same([r[2] for r in run(lambda x: PROGRAMS[name](x * 1), True, sizes)], [r[2] for r in ours], rtol=1e-5)


def test_sizes_that_change_compile_twice(monkeypatch):
    made, real = [], compiling.begin
    monkeypatch.setattr(compiling, "begin", lambda *a, **k: made.append(1) or real(*a, **k))
    compiled = jit.compile(PROGRAMS["one"], fullgraph=True)
    for n in (4, 5, 6, 7, 9, 12):
        torch.testing.assert_close(compiled(torch.ones(n)), PROGRAMS["one"](torch.ones(n)))
    assert len(made) == 2


def test_the_kernel_is_called_directly(monkeypatch):
    called, real = [], torch_private.operator_of
    monkeypatch.setattr(torch_private, "operator_of", lambda name: called.append(name) or real(name))
    x = torch.ones(3, 4)
    compiled = jit.compile(PROGRAMS["one"], fullgraph=True)
    compiled(x)
    assert not called
    first = torch.full((3, 4), 2.0).sin() * 6
    torch.testing.assert_close(compiled(x), first)
    sine.register_kernel("cpu")(lambda x, k=1.0: x * 0 + k)
    try:
        torch.testing.assert_close(compiled(x), x * 6)
        with sine.set_kernel_enabled("cpu", False):
            torch.testing.assert_close(compiled(x), first)
    finally:
        sine._backend_fns.pop("cpu")
        sine.register_kernel("cpu")(sine._init_fn)


def test_what_returns_its_argument_raises_as_eager():
    compiled = jit.compile(lambda x: itself(x * 1) + 1)
    with pytest.raises(RuntimeError) as theirs:
        itself(torch.ones(2))
    for _ in range(2):
        with pytest.raises(RuntimeError) as ours:
            compiled(torch.ones(2))
        assert str(ours.value) == str(theirs.value)


def test_a_kernel_that_changes_the_programs_objects_is_called_between_graphs():
    def program(x):
        y = loud(x)
        return y, len(CALLS)

    compiled = jit.compile(program)
    CALLS.clear()
    assert [compiled(torch.ones(2))[1] for _ in range(3)] == [1, 2, 3]


def test_without_a_registered_gradient_eager_says_so():
    compiled = jit.compile(lambda x: no_gradient(x * 1).sum())
    for fn in no_gradient, compiled:
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError, match="no autograd formula"):
            fn(x).sum().backward()


def test_a_changed_argument_is_no_longer_right_for_the_backward():
    def program(x):
        y = x.exp()
        with torch.no_grad():
            scale_(y, 2.0)
        return y.sum()

    for fn in program, jit.compile(program):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(torch.ones(2, requires_grad=True)).backward()
