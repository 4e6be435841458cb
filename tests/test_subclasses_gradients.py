"""Gradients of tensors of classes with a ``__torch_dispatch__``: of arguments, of what is returned, and through them,
as PyTorch's autograd has them above the class."""

import pytest
import torch
import torch.nn.functional as F
from torch import func
from frame_harness import same
from subclass_programs import Pair, StraightThrough, pair
from test_subclasses_programs import taken_apart

import jit


def wanted(*shape):
    return Pair(torch.randn(*shape), torch.randn(*shape)).requires_grad_()


PROGRAMS = {
    "elementwise": (lambda p: (p * 2).sin(), lambda: [wanted(3, 4)]),
    "a product": (lambda p, x: p @ x, lambda: [wanted(3, 4), torch.randn(4, 5)]),
    "two arguments": (lambda p, q: F.linear(p, q) * 2, lambda: [wanted(3, 4), wanted(5, 4)]),
    "one of two": (lambda p, q: F.softmax(p * q, -1), lambda: [wanted(3, 4), pair(3, 4)]),
    "not of this call": (lambda p: (p.detach() * 2, p.a + 1)[0], lambda: [wanted(3)]),
    "past a rounding": (lambda x, w: F.linear(x, w),
                        lambda: [torch.randn(2, 4, requires_grad=True), StraightThrough(torch.randn(3, 4), 2)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient(name):
    fn, make = PROGRAMS[name]
    jit.reset()
    fast, found = jit.compile(fn, fullgraph=True), []
    for run in (fn, fast, fast):
        torch.manual_seed(0)
        args = make()
        result = run(*args)
        if result.requires_grad:
            given = torch.randn(result.shape)
            result.backward(Pair(given, given + 1) if type(result) is Pair else given)
        found.append(taken_apart([result.detach(), result.requires_grad, [a.grad for a in args]]))
    same(found[0], found[1], rtol=1e-5)
    same(found[0], found[2], rtol=1e-5)


PLACES = {"a row": lambda p: p, "a row of a view": lambda p: p[1:], "of a result": lambda p: (p * 2).detach()}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("key", [0, slice(None, None, 2), ...])
def test_a_number_put_at_a_place(name, key):
    def fn(p):
        q = PLACES[name](p)
        try:
            q[key] = 5
        except RuntimeError as error:
            return str(error)
        return q.a, q.b

    found = []
    for run in (fn, jit.compile(fn, fullgraph=True)):
        torch.manual_seed(0)
        p = wanted(3, 4)
        found.append(taken_apart([run(p), p.detach()]))
    same(found[0], found[1])


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func in (torch.sum, torch.Tensor.sum) else out


@pytest.mark.parametrize("inner", [lambda x: x.sum(), lambda x: (x * 3).sum() * x.mean()])
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_a_plain_result_under_a_mode_and_then_one_of_the_class(inner, backend):
    def fn(x, p):
        with Doubling():
            return inner(x) + torch.sum(p), inner(x) * p

    found = []
    for run in (fn, jit.compile(fn, backend=backend)):
        x, p = torch.arange(3.0).requires_grad_(), Pair(torch.ones(2, 3), torch.arange(6.0).view(2, 3))
        total, product = run(x, p)
        found.append(taken_apart([total.detach(), product.detach(),
                                  torch.autograd.grad(total.sum() + product.sum(), x)[0]]))
    same(found[0], found[1], rtol=1e-5)


def test_a_gradient_of_another_context():
    class Marked(Pair):
        @staticmethod
        def __new__(cls, a, b, mark=0):
            return Pair.__new__(cls, a, b)

        def __init__(self, a, b, mark=0):
            super().__init__(a, b)
            self.mark = mark

        def __tensor_flatten__(self):
            return ["a", "b"], self.mark

        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            return Marked(inner["a"], inner["b"], context)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            parts = [[getattr(t, n) if isinstance(t, Marked) else t for t in args] for n in "ab"]
            return Marked(*[func(*p, **(kwargs or {})) for p in parts])

    p = Marked(torch.randn(3), torch.randn(3)).requires_grad_()
    out = jit.compile(lambda p: p * 2, fullgraph=True)(p)
    with pytest.raises(RuntimeError, match="another context"):
        out.backward(Marked(torch.ones(3), torch.ones(3), 5))
    jit.compile(lambda p: p * 2, fullgraph=True)(p).backward(Marked(torch.ones(3), torch.ones(3)))
    same(p.grad.a, torch.full((3,), 2.0))


VIEWS = {
    "a row": lambda p: p[1:], "turned": lambda p: p.t(), "of a result": lambda p: (p * 2)[1:],
    "twice": lambda p: p.t()[1:],
    "a result and its view": lambda p: (lambda q: (q, q[1:]))(p * 2), "flat": lambda p: (p + 1).view(-1),
    "of what is behind it": lambda p: p.t().sin().t(), "off": lambda p: torch.no_grad()(lambda q: q[1:])(p)}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("wants", [True, False])
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_a_view_is_one_where_it_leaves(name, wants, backend):
    def change(q):
        try:
            with torch.no_grad():
                q = q.mul_(3)
            q.add_(1)
        except RuntimeError as error:
            return str(error)

    found, fn = [], VIEWS[name]
    for run in (fn, jit.compile(fn, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        p = wanted(3, 4) if wants else pair(3, 4)
        made = run(p)
        given = [*made] if isinstance(made, tuple) else [made]
        facts = [(q._is_view(), q.requires_grad, q.is_leaf, q.a.requires_grad) for q in given]
        facts.append(change(given[-1]))
        if wants and name != "off" and given[0].requires_grad:
            given[0].sum().backward()
            facts.append(p.grad)
        found.append(taken_apart([facts, given, p.detach()]))
    same(found[0], found[1], rtol=1e-5)


class Held(torch.Tensor):
    pass


OUT_OF_TRANSFORMS = {
    "a factor": lambda x, y: func.grad(lambda x: (x * y.sum()).sum())(x),
    "a term": lambda x, y: func.grad(lambda x: x + y.sum())(x),
    "detached": lambda x, y: func.grad(lambda x: x * y.sum().detach())(x),
    "twice": lambda x, y: func.grad(func.grad(lambda x: x * x * y.sum()))(x),
    "function and its gradient": lambda x, y: [func.vjp(lambda x: x * y.sum(), x)[k] for k in (0,)],
    "of it": lambda x, y: func.grad(lambda y: (y * x).sum())(y),
    "beside": lambda x, y: func.grad(lambda x: (x, y), has_aux=True)(x),
    "made beside": lambda x, y: func.grad(lambda x: (x, y * 2), has_aux=True)(x),
    "rows": lambda x, y: func.jacrev(lambda x: x * y.sum())(x),
    "forward": lambda x, y: func.jvp(lambda x: x * y.sum(), (x,), (x,))}


@pytest.mark.parametrize("name", OUT_OF_TRANSFORMS)
@pytest.mark.parametrize("wants", [True, False])
def test_classes_of_what_leaves_a_transform(name, wants):
    fn, found = OUT_OF_TRANSFORMS[name], []
    for run in (fn, jit.compile(fn)):
        result = run(torch.tensor(0.5), torch.arange(3.0, requires_grad=wants).as_subclass(Held))
        found.append([(type(t), t.requires_grad, t.tolist()) for t in torch.utils._pytree.tree_leaves(result)])
    assert found[0] == found[1]


def _unrecorded_row(p):
    with torch.no_grad():
        p[1] += 1
    return p


def _unrecorded_view(p):
    with torch.no_grad():
        q = p[1:]
        q += 1
    return q.shape, q.requires_grad, p


@pytest.mark.parametrize("fn", [_unrecorded_row, _unrecorded_view])
def test_a_view_that_is_changed_where_nothing_is_recorded(fn):
    found = []
    for run in (fn, jit.compile(fn)):
        torch.manual_seed(0)
        p = wanted(3, 4)
        result = torch.utils._pytree.tree_leaves(run(p))
        wants = [r.requires_grad for r in result if isinstance(r, torch.Tensor)]
        found.append(taken_apart([result, wants, p.detach()]))
    same(*found)


LIKE = {"zeros": torch.zeros_like, "ones": torch.ones_like, "random": lambda p: torch.rand_like(p) * 0,
        "empty": lambda p: torch.empty_like(p).zero_(), "of a size": lambda p: p.new_zeros(3), "sum": torch.sum}


@pytest.mark.parametrize("kind", [Pair, Held])
@pytest.mark.parametrize("name", LIKE)
def test_what_an_operator_gives_is_taken_as_it_is(name, kind):
    seen: list = []

    class Asking(Pair):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            seen.append(str(func))
            first, *rest = args
            return func(first.a.as_subclass(Held) if kind is Held else Pair(first.a, first.b), *rest, **(kwargs or {}))

    found = []
    for run in (LIKE[name], jit.compile(LIKE[name])):
        seen.clear()
        result = run(Asking(torch.ones(3), torch.ones(3)))
        found.append((type(result), list(seen), str(result.a if kind is Pair else result)))
    assert found[0] == found[1]
