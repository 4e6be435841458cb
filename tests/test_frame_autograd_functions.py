"""torch.autograd.Function in captured programs, against eager: values, gradients, gradients of gradients, and what is
left to eager."""

import math

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import jit

BACKENDS = ["eager", "jit"]
PROGRAMS = {}
LOG = []


def program(*shapes, whole=True, frozen=(), dtype=torch.float64, second=True):
    """A function of tensors of these shapes; those at the positions ``frozen`` do not require grad. ``whole``: it is
    one graph.
    ``second``: gradients of gradients are compared too; there are none through a backward that is not linear."""

    def add(fn):
        PROGRAMS[fn.__name__] = (fn, shapes, whole, frozen, dtype, second)
        return fn

    return add


class Cube(Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x ** 3 * k

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * 3 * x * x * ctx.k + 0.5, None


class Several(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        return x * y, mask, x + y

    @staticmethod
    def backward(ctx, a, m, b):
        x, y = ctx.saved_tensors
        assert m.shape == x.shape
        return a * y + b, (a * x + b if ctx.needs_input_grad[1] else None)


class Exp(Function):
    @staticmethod
    def forward(x, scale=1.0):
        return (x * scale).exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * ctx.scale, None


class Sinh(Function):
    @staticmethod
    def forward(x, scale=2.0):
        return (x * scale).sinh(), x.cosh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x, *output)

    @staticmethod
    def vjp(ctx, a, b):
        x, y, z = ctx.saved_tensors
        return a * ctx.scale * (1 + y * y).sqrt() + b * x.sinh() * (1 + 0 * z), None


class Reverse(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g * ctx.strength, None


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Nothing(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return None, g


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class Wide(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g, None, None  # the bias is narrower; more Nones than arguments


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        y[0] = 0
        y.mul_(2)
        ctx.mask = y > 0
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[~ctx.mask] = 0
        g.mul_(2)
        return g


class Optional(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return None if a is None else a * 2, None if b is None else b * 3


class Logged(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        LOG.append(tuple(g.shape))
        return g * 2


class Random(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


class WithNumber(Function):
    @staticmethod
    def forward(ctx, x, pair):
        return x * pair[0], "text", 3

    @staticmethod
    def backward(ctx, g, text, number):
        assert text is None and number is None
        return g * 5, None


class Narrow(Function):
    @staticmethod
    def forward(ctx, x):
        return x.double() * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Inner(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Cube.apply(x, 2)

    @staticmethod
    def backward(ctx, g):
        return Cube.apply(g, 1) + Exp.apply(ctx.saved_tensors[0])


@program((3, 4), second=False)
def nonlinear_backward(x):
    return Cube.apply(x, 2) * x, Cube.apply(x * 2, 1), x.sin()


@program((3, 4), second=False)
def nonlinear_backward_in_a_chain(x):
    return Cube.apply(Cube.apply(x, 1) + 1, 2), (Cube.apply(x, 2) * 2).detach() * x


@program((3, 4), (3, 4))
def several_results(x, y):
    a, mask, b = Several.apply(x, y)
    return a * mask, b, mask


@program((3, 4), (3, 4), frozen=(1,))
def needs_input_grad(x, y):
    a, mask, b = Several.apply(x * 2, y)
    return a, b * 2


@program((3, 4), (3, 4))
def one_of_several_results(x, y):
    return Several.apply(x, y)[0] + x, Several.apply(y, x)[2].exp()


@program((3, 4))
def saved_result(x):
    return Exp.apply(x), Exp.apply(x * 2, 0.5), Exp.apply(x, 3.0)


@program((3, 4))
def vjp_and_saved_results(x):
    a, b = Sinh.apply(x)
    return a + b, Sinh.apply(b, 0.5)[0]


@program((3, 4), (4, 2))
def reversed_gradient(x, w):
    h = x @ w
    return h.sum(), Reverse.apply(h, 0.3).exp(), Reverse.apply(x, 2.0) * 2


@program((3, 4))
def straight_through(x):
    return StraightThrough.apply(x) * x, StraightThrough.apply(x.sin())


@program((3, 4))
def returns_its_input(x):
    return Same.apply(x) + 1, Same.apply(x * 2).sum()


@program((3, 4), whole=False)
def view_of_an_input_is_returned(x):
    return Same.apply(x), Reverse.apply(x, 1.0)


@program((3, 4), (3, 4))
def no_gradient_for_one(x, y):
    return Nothing.apply(x, y), x.cos()


@program((3, 4), (3, 4), second=False)
def no_gradient_before_a_nonlinear_one(x, y):
    return Nothing.apply(Cube.apply(x, 2) * 2, y)


@program((3, 4))
def once(x):
    return Once.apply(x) * 2


@program((3, 4), (4,))
def broadcast(x, bias):
    return Wide.apply(x, bias), Wide.apply(x.exp(), bias * 2)


@program((3, 4))
def in_place_inside(x):
    return InPlace.apply(x), InPlace.apply(x * 3).sum()


@program((3, 4), (3, 4), whole=False)
def gradients_not_materialized(x, y):
    a, b = Optional.apply(x, y)
    return a, b


@program((3, 4), whole=False)
def backward_with_side_effects(x):
    return Logged.apply(x.sin()) + 1


@program((3, 4), whole=False, second=False)
def backward_with_random_numbers(x):
    return Random.apply(x.sin()) + 1


@program((3, 4), whole=False)
def changes_its_argument(x):
    y = x * 1
    return Dirty.apply(y) + y


@program((3, 4))
def results_that_are_no_tensors(x):
    y, text, number = WithNumber.apply(x, (2, 3))
    return y * number, len(text)


@program((3, 4), dtype=torch.float32)
def another_dtype(x):
    return Narrow.apply(x), Narrow.apply(x * 2).float()


@program((3, 4), second=False)
def functions_in_functions(x):
    return Inner.apply(x), Inner.apply(x.sin())


@program((3, 4), second=False)
def under_no_grad(x):
    with torch.no_grad():
        a, _, b = Several.apply(x, x)
    return Cube.apply(x, 1) * a + b


@program((3, 4), whole=False, second=False)
def local_class(x):
    scale = 3.0

    class Scale(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.y = x * 2
            return x * scale

        @staticmethod
        def backward(ctx, g):
            return g * scale + ctx.y

    return Scale.apply(x)


@program((3, 4), second=False)
def in_a_loop(x):
    for i in range(3):
        x = Cube.apply(x.tanh(), i + 1)
        if i == 1:
            x = Once.apply(x)
    return x


@program((3, 4), second=False)
def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda x: Cube.apply(x.sin(), 2).exp(), x, use_reentrant=False)


@program((3, 4), second=False)
def transposed_tangent(x):
    return Cube.apply(x, 2).t().reshape(-1), Exp.apply(x)[:, 1], Exp.apply(x).sum()


def leaves(shapes, frozen, dtype):
    torch.manual_seed(0)
    return [torch.randn(s, dtype=dtype, requires_grad=i not in frozen) for i, s in enumerate(shapes)]


def tensors_of(result):
    return [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)]


def observe(fn, args, used, second):
    """(results, what requires a gradient, gradients, gradients of gradients, log) of one call."""
    LOG.clear()
    torch.manual_seed(1)
    results = tensors_of(fn(*args))
    chosen = [r for i, r in enumerate(results) if r.requires_grad and i in used]
    inputs = [a for a in args if a.requires_grad]
    if not chosen:
        return [r.detach() for r in results], [r.requires_grad for r in results]
    loss = sum((r * r).sum() for r in chosen)
    torch.manual_seed(2)
    try:
        grads = torch.autograd.grad(loss, inputs, create_graph=second, allow_unused=True)
    except RuntimeError as error:
        grads = [str(error)]
    more = []
    if second:
        again = [g for g in grads if isinstance(g, torch.Tensor) and g.requires_grad]
        if again:
            try:
                more = torch.autograd.grad(sum((g * g.detach()).sum() for g in again), inputs, allow_unused=True)
            except RuntimeError as error:
                more = [str(error)]
    return [r.detach() for r in results], [r.requires_grad for r in results], list(grads), list(more), list(LOG)


def same(got, want):
    assert type(got) is type(want), (got, want)
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    else:
        assert got == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions(name, backend):
    fn, shapes, whole, frozen, dtype, second = PROGRAMS[name]
    compiled = jit.compile(fn, backend=backend, fullgraph=whole)
    count = len(tensors_of(fn(*leaves(shapes, frozen, dtype))))
    for used in [set(range(count))] + [{i} for i in range(count) if count > 1]:
        for twice in (False, True) if second else (False,):
            got, want = (observe(f, leaves(shapes, frozen, dtype), used, twice) for f in (compiled, fn))
            same(list(got), list(want))
    with torch.no_grad():
        got, want = (observe(f, leaves(shapes, frozen, dtype), (), False) for f in (compiled, fn))
        same(list(got), list(want))
    got, want = (observe(f, leaves(shapes, range(9), dtype), (), False) for f in (compiled, fn))
    same(list(got), list(want))


def test_functions_are_part_of_one_graph():
    for name in ("nonlinear_backward", "several_results", "once", "functions_in_functions"):
        fn, shapes, _, frozen, dtype, _ = PROGRAMS[name]
        report = jit.explain(fn)(*leaves(shapes, frozen, dtype))
        assert report.graph_break_count == 0, name


class WrongShape(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g[:1, :1].repeat(2, 7)


class WrongCount(WrongShape):
    @staticmethod
    def backward(ctx, g):
        return g, g


class Raises(WrongShape):
    @staticmethod
    def backward(ctx, g):
        raise ValueError("no gradient today")


class NoBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


class RaisesAtOnce(Function):
    @staticmethod
    def forward(ctx, x):
        if x.shape[0] == 3:
            raise ValueError("not three")
        return x * 2


@pytest.mark.parametrize("function", [WrongShape, WrongCount, Raises, NoBackward, RaisesAtOnce])
def test_errors(function):
    def program(x):
        try:
            return function.apply(x * 2) + 1
        except ValueError:
            return x * 5

    def outcome(fn):
        x = torch.ones(3, 4, requires_grad=True)
        try:
            fn(x).sum().backward()
        except Exception as error:
            return type(error), str(error).split(" at ")[0]
        return x.grad

    got, want = outcome(jit.compile(program, backend="eager")), outcome(program)
    assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


def test_a_backward_that_is_not_linear_has_no_second_derivative():
    """It would be run more often than in eager, and what it adds each time would count."""
    x = torch.ones(3, requires_grad=True)
    y = jit.compile(lambda x: Cube.apply(x, 1) * x)(x)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_wrong_arguments():
    compiled = jit.compile(lambda x: Exp.apply(x, 1, 2, 3), backend="eager")
    with pytest.raises(TypeError, match="too many positional"):
        compiled(torch.ones(2, requires_grad=True))


class ByOperators(Function):
    """Its backward calls operators that are library calls, which may raise, on what was saved."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(g, y)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (0, 2)])
def test_a_backward_of_library_calls_is_not_run_in_the_forward(shape):
    def program(x):
        return (ByOperators.apply(x.t() if x.dim() == 2 else x) * 2).sum()

    x, y = (torch.linspace(-1, 1, math.prod(shape)).reshape(shape).requires_grad_() for _ in range(2))
    program(x).backward()
    jit.compile(program, fullgraph=True)(y).backward()
    torch.testing.assert_close(y.grad, x.grad)
    with torch.no_grad():
        torch.testing.assert_close(jit.compile(program, fullgraph=True)(y), program(x))


class Solved(torch.autograd.Function):
    """Its backward applies it again, and so does the backward of that."""

    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        y = Solved.apply(a.mT, g)
        return -y @ x.mT, y


def test_a_backward_that_applies_its_own_function():
    a, b = torch.randn(3, 3, dtype=torch.float64) + 4 * torch.eye(3, dtype=torch.float64), torch.randn(3, 2).double()

    def f(a, b):
        return Solved.apply(a, b).sin().sum()

    compiled = jit.compile(f)
    told = jit.explain(f)(a.requires_grad_(), b.requires_grad_())
    assert told.break_reasons[0].kind == "autograd"
    for fn in (f, compiled):
        first = torch.autograd.grad(fn(a, b), (a, b), create_graph=True)
        second = torch.autograd.grad(sum(g.cos().sum() for g in first), (a, b))
        if fn is f:
            want = first, second
    for got, expected in zip((*first, *second), (*want[0], *want[1])):
        torch.testing.assert_close(got, expected)


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_what_is_dropped_behind_a_function_has_drawn_and_may_raise():
    def f(x, i):
        y = Twice.apply(x)
        y[i]
        torch.rand_like(y)
        return x * 3

    x, compiled = torch.ones(3, requires_grad=True), jit.compile(f)
    after = []
    for fn in (f, compiled):
        torch.manual_seed(0)
        fn(x, torch.tensor([1]))
        after.append(torch.rand(2).tolist())
        with pytest.raises(IndexError):
            fn(x, torch.tensor([7]))
    assert after[0] == after[1]
