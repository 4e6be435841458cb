"""``torch.autograd.forward_ad`` and ``torch.autograd.functional`` inside compiled functions, batched gradients, and
``torch.vmap`` of what changes tensors in place and of what makes them."""

import pytest
import torch
from torch.autograd import forward_ad, functional
from torch.utils import _pytree as pytree

import jit

torch.manual_seed(0)
WEIGHT = torch.randn(3, 3)


def f(x):
    return (x @ WEIGHT).sin() * x.exp()


def scalar(x):
    return (x ** 3).sum() + x.prod()


def dual(x, t):
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x, t)
        primal, tangent = forward_ad.unpack_dual(f(made))
    return primal * 2, tangent


def asked_twice(x, t):
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x, t)
        out = f(made)
        first, second = forward_ad.unpack_dual(out), forward_ad.unpack_dual(out.sin())
        assert forward_ad.unpack_dual(x).tangent is None
        assert forward_ad.unpack_dual(made.detach()).tangent is None
        return first.tangent, second.tangent, forward_ad.unpack_dual(made).tangent


def two_duals(x, t):
    with forward_ad.dual_level():
        a, b = forward_ad.make_dual(x, t), forward_ad.make_dual(t, x * 2)
        out = a * b + a.relu().sum()
        result = forward_ad.unpack_dual(out)
    return result.primal, result.tangent, forward_ad.unpack_dual(out)[1] is None


def kept_after(x, t):
    with forward_ad.dual_level():
        out = f(forward_ad.make_dual(x, t))
    return out + 1


def by_hand(x, t):
    level = forward_ad.enter_dual_level()
    tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, t, level=level)), level=level).tangent
    forward_ad.exit_dual_level(level=level)
    return tangent


def batched(x, t):
    x = x.detach().requires_grad_()
    y = f(x)
    basis = torch.eye(y.numel()).view(-1, *y.shape)
    return torch.autograd.grad(y, x, basis, is_grads_batched=True)


def batched_with_none(x, t):
    x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
    basis = torch.eye(9).view(9, 3, 3)
    found = torch.autograd.grad(f(x), (x, t), basis, is_grads_batched=True, allow_unused=True)
    zeros = torch.autograd.grad(f(x), (x, t), basis, is_grads_batched=True, materialize_grads=True)
    return found[0], found[1] is None, zeros


def map_in_place(x, t):
    y, z = x.clone(), t.t().clone()

    def one(a, b):
        a[1:].add_(b[0])
        b.zero_()
        return a.sum() + b.sum()

    return torch.vmap(one, in_dims=(0, 1))(y, z), y, z


def map_gives_what_it_changed(x, t):
    y = x.clone()
    z = torch.vmap(lambda a: a.mul_(2))(y)
    z.add_(1)
    return y, z


def nested_maps_in_place(x, t):
    y = x.clone()
    return torch.vmap(torch.vmap(lambda a: (a.add_(1), a * 2)[1]))(y), y


def map_of_creations(x, t):
    def one(a):
        b = a.new_zeros(3)
        b[1] = a[0]
        return b, torch.zeros(3) + a, torch.arange(3.) * a, torch.ones_like(a), torch.full((2,), 3.)

    return torch.vmap(one)(x)


def same_numbers(x, t):
    torch.manual_seed(3)
    return torch.vmap(lambda a: a + torch.randn(3), randomness="same")(x)


WHOLE = {
    "dual": dual, "asked twice": asked_twice, "two duals": two_duals, "kept after": kept_after, "by hand": by_hand,
    "jacobian": lambda x, t: functional.jacobian(f, x),
    "jacobian of two": lambda x, t: functional.jacobian(lambda a, b: (a * b, a + b), (x, t)),
    "jacobian, vectorized": lambda x, t: functional.jacobian(f, x, vectorize=True),
    "jacobian, forward": lambda x, t: functional.jacobian(f, x, vectorize=True, strategy="forward-mode"),
    "hessian": lambda x, t: functional.hessian(scalar, x),
    "hessian, vectorized": lambda x, t: functional.hessian(scalar, x, vectorize=True),
    "vjp": lambda x, t: functional.vjp(f, x, t), "jvp": lambda x, t: functional.jvp(f, x, t),
    "vhp": lambda x, t: functional.vhp(scalar, x, t), "hvp": lambda x, t: functional.hvp(scalar, x, t),
    "strict": lambda x, t: functional.jvp(f, x, t, strict=True),
    "batched": batched, "batched with none": batched_with_none,
    "map in place": map_in_place, "map gives what it changed": map_gives_what_it_changed,
    "nested maps in place": nested_maps_in_place, "map of creations": map_of_creations, "same numbers": same_numbers,
}


def under_no_grad(x, t):
    with torch.no_grad(), forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent


def no_grad_among_duals(x, t):
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x, t)
        with torch.no_grad():
            out = f(made)
        return forward_ad.unpack_dual(out).tangent


def changed_in_place(x, t):
    x = x.clone()
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x, t)
        made.mul_(2)
        return forward_ad.unpack_dual(made * 3).tangent, x


def broken(x, t):
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x, t)
        jit.graph_break()
        return forward_ad.unpack_dual(f(made)).tangent


def different_numbers(x, t):
    torch.manual_seed(3)
    return (torch.vmap(lambda a: a + torch.randn(3), randomness="different")(x),
            torch.vmap(lambda a: torch.nn.functional.dropout(a, 0.5), randomness="different")(x))


def no_numbers(x, t):
    try:
        return torch.vmap(lambda a: a + torch.randn(3))(x)
    except RuntimeError:
        return x * 0


def a_view_of_what_a_map_changed(x, t):
    y = x.clone()
    return torch.vmap(lambda a: a.mul_(2)[1:])(y), y


LEFT = {
    "under no_grad": under_no_grad, "no_grad among duals": no_grad_among_duals, "changed in place": changed_in_place,
    "broken": broken, "different numbers": different_numbers, "no numbers": no_numbers,
    "a view of what a map changed": a_view_of_what_a_map_changed,
    "create_graph": lambda x, t: functional.jacobian(f, x, create_graph=True).detach(),
}


def same(expected, found):
    expected, found = pytree.tree_leaves(expected), pytree.tree_leaves(found)
    assert len(expected) == len(found)
    for a, b in zip(expected, found):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a, rtol=2e-5, atol=2e-5)
            assert a.requires_grad == b.requires_grad
        else:
            assert a == b


@pytest.mark.parametrize("name", WHOLE)
def test_in_one_graph(name):
    program = WHOLE[name]
    compiled = jit.compile(program, fullgraph=True)
    for n in range(2):
        x, t = torch.randn(3, 3), torch.randn(3, 3)
        same(program(x.clone(), t.clone()), compiled(x, t))


@pytest.mark.parametrize("name", LEFT)
def test_left_to_eager(name):
    program = LEFT[name]
    compiled = jit.compile(program)
    for n in range(3):
        x, t = torch.randn(3, 3), torch.randn(3, 3)
        same(program(x.clone(), t.clone()), compiled(x, t))
    torch.randn(2)  # no map is left open


def test_the_tangent_has_gradients_of_its_own():
    compiled = jit.compile(dual, fullgraph=True)
    x, t = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    found = []
    for fn in (dual, compiled):
        primal, tangent = fn(x, t)
        found.append([primal, tangent, *torch.autograd.grad(tangent.square().sum() + primal.sum(), (x, t))])
    same([v.detach() for v in found[0]], [v.detach() for v in found[1]])


def test_batched_gradients_that_are_differentiated():
    def program(x):
        basis = torch.eye(9).view(9, 3, 3)
        return torch.autograd.grad(f(x), x, basis, is_grads_batched=True, create_graph=True)[0]

    compiled = jit.compile(program, fullgraph=True)
    x = torch.randn(3, 3, requires_grad=True)
    expected, found = program(x), compiled(x)
    same(expected.detach(), found.detach())
    same(*(torch.autograd.grad(v.square().sum(), x)[0] for v in (expected, found)))


def test_dual_numbers_from_outside():
    compiled = jit.compile(f)
    with forward_ad.dual_level():
        for _ in range(2):
            made = forward_ad.make_dual(torch.randn(3, 3), torch.randn(3, 3))
            same(tuple(forward_ad.unpack_dual(f(made))), tuple(forward_ad.unpack_dual(compiled(made))))
    x = torch.randn(3, 3)
    same(f(x), compiled(x))


class Seen(torch.Tensor):
    calls: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("fn", [
    lambda x: torch.func.jvp(torch.sin, (x,), (x.cos(),))[1], lambda x: torch.func.jacfwd(torch.sin)(x),
    lambda x: torch.func.hessian(lambda y: y.sin().sum())(x)])
def test_classes_see_the_same_calls(fn):
    seen = []
    for run in (fn, jit.compile(fn)):
        Seen.calls.clear()
        run(torch.ones(3).as_subclass(Seen))
        seen.append(list(Seen.calls))
    assert seen[0] == seen[1] and seen[0]


LAID_OUT = {
    "a row on zeros": lambda x: torch.zeros(3, 3) + x[0], "a row less zeros": lambda x: x[0] - torch.zeros(3, 3),
    "an element": lambda x: x.new_zeros(x.shape) + x[1, 1], "expanded, plus one": lambda x: x[0].expand(3, 3) + 1,
    "transposed on itself": lambda x: x.t() + x, "on transposed zeros": lambda x: torch.zeros(3, 3).t() + x,
    "copied": lambda x: x.t().contiguous(), "in place": lambda x: torch.zeros(3, 3).t().clone().add_(x),
    "summed": lambda x: x.sum(0, keepdim=True) + torch.zeros(3, 3), "transposed": lambda x: x.t() * 1,
    "reduced": lambda x: (torch.zeros(3) + x[0]).sum(),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_tangents_have_the_layouts_of_their_tensors(name):
    def pushed(x, t):
        return torch.func.jvp(LAID_OUT[name], (x,), (t,))

    def by_duals(x, t):
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(LAID_OUT[name](forward_ad.make_dual(x, t))))

    for fn in (pushed, by_duals):
        compiled = jit.compile(fn)
        for x, t in ((torch.randn(3, 3), torch.ones(3, 3)), (torch.randn(3, 3).t(), torch.ones(3, 3))):
            found, expected = compiled(x, t), fn(x, t)
            torch.testing.assert_close(tuple(found), tuple(expected))
            assert [v.stride() for v in found] == [v.stride() for v in expected]
