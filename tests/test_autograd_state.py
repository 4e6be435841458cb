"""What a tensor is to autograd: a leaf, a view of one, a result, or something that autograd does not see. It decides
which operation in place is refused, with which words and before which other error, and what a call gives."""

import pytest
import torch
from frame_harness import same
from subclass_programs import Pair, pair
from torch.autograd import forward_ad

import jit

TENSORS = {
    "a leaf": lambda n: torch.arange(float(n), requires_grad=True),
    "a parameter": lambda n: torch.nn.Parameter(torch.arange(float(n))),
    "a slice of a leaf": lambda n: torch.arange(2.0 * n, requires_grad=True)[1:n + 1],
    "a transposed leaf": lambda n: torch.arange(2.0 * n, requires_grad=True).view(n, 2).t(),
    "a view that is a leaf": lambda n: torch.arange(float(n)).view(n).requires_grad_(),
    "a result": lambda n: torch.arange(float(n), requires_grad=True) * 1,
    "a slice of a result": lambda n: (torch.arange(2.0 * n, requires_grad=True) * 1)[1:n + 1],
    "plain": lambda n: torch.arange(float(n)),
    "expanded": lambda n: torch.ones(1).expand(n),
    "an expanded leaf": lambda n: torch.ones(1, requires_grad=True).expand(n),
}
WRITES = {
    "fits": lambda x: x.add_(1),
    "another size": lambda x: x.add_(torch.ones(x.shape[-1] + 1)),
    "operator, another size": lambda x: x.__isub__(torch.ones(x.shape[-1] + 1)),
    "too many dimensions": lambda x: x.mul_(torch.ones(2, 2, x.shape[-1])),
    "copy_": lambda x: x.copy_(torch.ones(x.shape[-1] + 1)),
    "fill_": lambda x: x.fill_(torch.ones(3)),
    "an item": lambda x: x.__setitem__(0, torch.ones(9)),
    "a slice": lambda x: x[1:].add_(torch.ones(9)),
    "an item that a tensor tells": lambda x: x.__setitem__(torch.tensor(0), 1.0),
    "an item that a tensor tells, another size": lambda x: x.__setitem__(torch.tensor(0), torch.ones(9)),
    "some items": lambda x: x.__setitem__(torch.tensor([0, 1]), torch.ones(9)),
    "masked": lambda x: x.masked_fill_(torch.ones(9, dtype=torch.bool), 1.0),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0]), torch.ones(2)),
    "another dtype": lambda x: x.add_(torch.ones(3, dtype=torch.complex64)),
    "no such kernel": lambda x: x.bitwise_and_(1),
    "a view": lambda x: x[None].add_(torch.ones(9)),
    "three operands": lambda x: x.addcmul_(torch.ones(x.shape), torch.ones(9)),
    "out=": lambda x: torch.add(torch.ones(2), torch.ones(9), out=x),
    "the shape": lambda x: x.unsqueeze_(0),
}


def _noting(write):
    def fn(x):
        said = []
        try:
            write(x)
        except Exception as error:
            said.append((type(error).__name__, str(error)))
        return said, x.detach() + 0

    return fn


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_said_first(tensor, write):
    fn = _noting(WRITES[write])
    fast = jit.compile(fn)
    for n in (3, 3, 5):
        same(fn(TENSORS[tensor](n)), fast(TENSORS[tensor](n)))


def test_a_leaf_made_inside():
    def made(x, at):
        x = x.detach() * 1
        if at == "view":
            x = x[1:]
        x = x.requires_grad_()
        if at == "shown":
            x = x[1:]
        return _noting(lambda x: x.add_(1))(x)

    fast = jit.compile(made)
    for at in ("whole", "view", "shown"):
        same(made(torch.ones(3), at), fast(torch.ones(3), at))


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: Pair(x, x.detach() + 1)], ids=["plain", "of a class"])
def test_refused_for_this_tensor_alone(wrap):
    """One compiled function: what is said of a leaf holds for no other tensor."""
    def leaf(n):
        return wrap(torch.ones(n)).requires_grad_()

    made = (leaf, lambda n: leaf(n).view(-1), lambda n: leaf(n) * 2, lambda n: (leaf(n) * 2).view(-1),
            lambda n: wrap(torch.ones(n)), lambda n: wrap(torch.ones(n)).view(n).requires_grad_())

    def fn(x):
        try:
            x.mul_(3)
        except RuntimeError as error:
            return str(error)
        return None

    for order in (made, made[::-1]):
        fast = jit.compile(fn)
        for make in order:
            for _ in range(2):
                x, y = make(3), make(3)
                assert fn(x) == fast(y)
                assert x.requires_grad == y.requires_grad and x.is_leaf == y.is_leaf
                given = [t.a if type(t) is Pair else t for t in (x.detach(), y.detach())]
                assert torch.equal(*given)


def test_overlap_is_told_before_shapes():
    def fn(x):
        said = []
        for write in (lambda: x.__isub__(x.t()), lambda: x.add_(x[:1, :2]), lambda: x[1:].add_(x)):
            try:
                write()
            except RuntimeError as error:
                said.append(str(error))
        return said

    def operators(x):
        try:
            x -= x.t()
        except RuntimeError as error:
            return str(error)
        return x

    for f in (fn, operators):
        fast = jit.compile(f)
        for make in (lambda: torch.arange(6.0).view(3, 2), lambda: torch.arange(6.0).view(3, 2).t()):
            assert f(make()) == fast(make())


# -- what a call gives ----------------------------------------------------------------------------------------------


class Sub(torch.Tensor):
    pass


def _leaf(x):
    return x.detach().clone().requires_grad_()


RESULTS = {
    "a leaf": lambda x: _leaf(x),
    "a leaf of what is computed": lambda x: _leaf(x.tanh()),
    "a function": lambda x: torch.Tensor.requires_grad_(x.detach() * 1),
    "and back": lambda x: _leaf(x).requires_grad_(False),
    "a parameter": lambda x: torch.nn.Parameter(x.detach() * 2),
    "a result of a leaf": lambda x: _leaf(x) * 3,
    "beside an unused argument": lambda x: (x[1], _leaf(x) * 3)[1],
    "changed with a leaf": lambda x: (x.detach() + 1).mul_(_leaf(x)),
}


@pytest.mark.parametrize("make", [lambda: torch.arange(3.0), lambda: torch.arange(3.0, requires_grad=True),
                                  lambda: torch.arange(6.0)[::2].as_subclass(Sub),
                                  lambda: torch.arange(3.0, requires_grad=True).as_subclass(Sub)],
                         ids=["plain", "recorded", "of a class", "of a class, recorded"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_require_grad(name, make):
    fn = RESULTS[name]
    fast = jit.compile(fn)
    for _ in range(3):
        a, b = fn(make()), fast(make())
        same(a, b)
        assert a.is_leaf == b.is_leaf and (a.grad_fn is None) == (b.grad_fn is None)


def test_backward_to_a_leaf_of_a_class():
    def fn(x):
        leaf = _leaf(x * 2)
        (leaf * 3).sum().backward()
        return leaf.grad

    fast = jit.compile(fn)
    for make in (lambda: torch.ones(3).as_subclass(Sub), lambda: torch.ones(2, requires_grad=True).as_subclass(Sub)):
        same(fn(make()), fast(make()))


@pytest.mark.parametrize("backend", ["jit", "eager"])
@pytest.mark.parametrize("fn", [lambda x: torch.ones(4)[1:], lambda x: x[:], lambda x: x.as_subclass(Sub),
                                lambda x: torch.ones(3).as_subclass(Sub)],
                         ids=["made", "of an argument", "of a class", "made, of a class"])
def test_views_may_be_changed_with_gradients(fn, backend):
    weight = torch.arange(3.0, requires_grad=True)
    fast = jit.compile(fn, backend=backend)
    for _ in range(2):
        same(fn(torch.ones(3)).mul_(weight), fast(torch.ones(3)).mul_(weight))


# -- below autograd -------------------------------------------------------------------------------------------------


def test_views_of_tensors_inside_that_require_grad():
    """A ``__torch_dispatch__`` is called below autograd: what it makes of tensors requires no grad, be they views."""
    def inside():
        return Pair(torch.ones(2, 3, requires_grad=True), torch.ones(2, 3))

    def fn(p):
        t = p.t()
        return t.a.requires_grad, t.a.is_leaf, (p.view(-1) * 2).a, (p[0] + 1).b

    fast = jit.compile(fn, fullgraph=True)
    same(fn(inside()), fast(inside()))
    same(fn(inside()), fast(inside()))


def test_dispatch_that_eager_calls():
    """The compiled ``__torch_dispatch__`` of a call that is left to eager records nothing."""
    def fn(p, w):
        jit.graph_break()
        return [*map(torch.Tensor.t, [p * w])][0] * 2

    fast = jit.compile(fn)
    for make in (lambda: pair(2, 3), lambda: Pair(torch.ones(2, 3, requires_grad=True), torch.ones(2, 3))):
        w = torch.ones(3, requires_grad=True)
        torch.manual_seed(0)
        a = fn(make(), w)
        torch.manual_seed(0)
        b = fast(make(), w)
        assert a.requires_grad and b.requires_grad
        same((a.a, a.b), (b.a, b.b))


def test_dispatch_among_dual_numbers():
    def fn(p, x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones(3))
            [*map(torch.Tensor.sin, [p])]
            return (p * 2).a, forward_ad.unpack_dual(dual.sin()).tangent

    fast = jit.compile(fn)
    for _ in range(2):
        a, b = pair(3), pair(3)
        b.a.copy_(a.a), b.b.copy_(a.b)
        same(fn(a, torch.ones(3)), fast(b, torch.ones(3)), rtol=1e-6)


@pytest.mark.parametrize("weight", [lambda x: torch.ones(3, requires_grad=True), lambda x: torch.nn.Parameter(x * 1),
                                    lambda x: torch.ones(3, requires_grad=True) * 2],
                         ids=["a leaf", "a parameter made inside", "a result"])
def test_tensors_of_classes_are_changed_with_gradients(weight):
    def fn(p, x, given):
        w = weight(x) if given is None else given
        p.mul_(w)
        return p * 2

    fast = jit.compile(fn)
    for make in (lambda: Pair(torch.ones(3), torch.ones(3)),
                 lambda: Pair(torch.ones(3), torch.ones(3)).requires_grad_() * 2):
        for given in (None, weight(torch.ones(3))):
            p, q = make(), make()
            a, b = fn(p, torch.ones(3), given), fast(q, torch.ones(3), given)
            assert a.requires_grad == b.requires_grad and p.requires_grad == q.requires_grad
            same((a.a, a.b, p.a), (b.a, b.b, q.a))


@pytest.mark.parametrize("backend", ["jit", "eager"])
@pytest.mark.parametrize("fn", [lambda x: x.detach(), lambda x: x[1:], lambda x: x.data, _leaf],
                         ids=["detach", "view", "data", "leaf"])
def test_a_class_is_asked_once(fn, backend):
    """What a compiled function makes of its results does not ask their class again, whose own call it may be."""
    class Asked(torch.Tensor):
        asked = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.asked.append(func)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    def left_to_eager(x):
        jit.graph_break()
        return [*map(fn, [x])]

    for program in (fn, left_to_eager):
        fast, said = jit.compile(program, backend=backend), []
        for run in (program, fast, fast):
            Asked.asked = []
            run(torch.ones(3).as_subclass(Asked))
            said.append(Asked.asked)
        assert said[0] == said[1] == said[2]
