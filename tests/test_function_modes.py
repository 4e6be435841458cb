"""A ``TorchFunctionMode`` of the program's in compiled functions sees what it sees in eager, and nothing of the
compiler's."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import jit


class Noting(TorchFunctionMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Wider(TorchFunctionMode):
    """Tells another length, and another shape."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.__len__:
            return result + 1
        return (*result, 7) if func == torch.Tensor.shape.__get__ else result


class Loose:
    """Equal to everything."""

    def __eq__(self, other):
        return True


LOOSE = Loose()


def without_gradients(x):
    with torch.no_grad():
        return x + 1


def broken(x):
    y = x + 1
    jit.graph_break()
    return y * 2


WHOLE = {
    "attributes": lambda x: (x.shape, x.dtype, x.T, x.device, x.is_leaf, x.requires_grad),
    "methods": lambda x: (x.dim(), x.size(), x.stride(), x.numel()),
    "length": lambda x: len(x) + 1,
    "grad mode": without_gradients,
    "operators": lambda x: (x == 1, 2 - x, -x, abs(x), x[0]),
    "equality of other objects": lambda x: (x == "a", x == NOTHING, x != "a", [1] == x, x == LOOSE, LOOSE == x),
}
NOTHING = None
ARRAY = np.arange(4.0)
BROKEN = {"arrays": lambda x: [np.random.permutation(4).tolist(), np.sin(ARRAY), np.stack([ARRAY, ARRAY])],
          "an array and a tensor": lambda x: [ARRAY.sum() * x, torch.from_numpy(np.sin(ARRAY)).cos()],
          "forward mode": lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
          "break": broken, "truth": lambda x: bool(x.sum() > 1), "branch": lambda x: x + 1 if x.sum() > 1 else x}


@pytest.mark.parametrize("name", [*WHOLE, *BROKEN])
def test_what_a_mode_sees(name):
    body = {**WHOLE, **BROKEN}[name]

    def fn(x):
        log = []
        with Noting(log):
            body(x)
        return log

    x = torch.ones(2, 2)
    fast = jit.compile(fn, fullgraph=name in WHOLE)
    assert [fast(x), fast(x)] == [fn(x)] * 2


def test_sizes_are_read_unseen():
    def fn(x):
        log = []
        with Noting(log):
            n = x.shape[0] * 2
            jit.graph_break()
            x * n
        return log

    fast = jit.compile(fn, dynamic=True)
    for n in (3, 4, 5):
        assert fast(torch.ones(n)) == fn(torch.ones(n))


def test_a_mode_has_the_last_word():
    def fn(x):
        with Wider():
            return len(x), x.shape, x * len(x)

    x = torch.ones(2, 3)
    expected, found = fn(x), jit.compile(fn, fullgraph=True)(x)
    assert expected[:2] == found[:2] and torch.equal(expected[2], found[2])


class Tagged(torch.Tensor):
    seen: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_running_a_graph_asks_no_class(backend):
    def fn(x):
        x.view(-1)[1:].mul_(2)
        jit.graph_break()
        return len(Tagged.seen)

    counts = []
    for run in (fn, jit.compile(fn, backend=backend)):
        x = torch.arange(3.0).as_subclass(Tagged)
        Tagged.seen.clear()
        counts.append(run(x))
    assert counts[0] == counts[1]


def _set_and_read(x):
    x.grad = None
    x.requires_grad = True
    x.data = torch.zeros(3)
    return x.grad


def _gradient(x):
    y = x.detach().requires_grad_()
    return torch.autograd.grad((y * y).sum(), y)[0]


def _shared_over_a_break(x):
    y = x[1:]
    jit.graph_break()
    y += 3
    x.mul_(2)
    return y


@pytest.mark.parametrize("fn", [_set_and_read, _gradient, _shared_over_a_break])
def test_each_call_is_seen_once(fn):
    compiled, seen = jit.compile(fn), []
    for run in (fn, fn, compiled, compiled):
        Tagged.seen.clear()
        run(torch.ones(3).as_subclass(Tagged))
        seen.append(list(Tagged.seen))
    assert seen[0] == seen[2] and seen[1] == seen[3]


class Naming(TorchFunctionMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append(getattr(func, "__name__", "?"))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("use", [
    list, tuple, lambda x: [*x], lambda x: max(*x), lambda x: [].extend(x), sorted, lambda x: float(x[0]),
    lambda x: int(x[1]), lambda x: f"{x}", lambda x: f"{x[1]:.1f}", repr, str, lambda x: "{!r}".format(x)])
def test_modes_see_what_python_asks_of_a_tensor(use):
    def fn(x):
        log = []
        with Naming(log):
            found = use(x)
        return log, str(found)

    x, compiled = torch.arange(3.0), jit.compile(fn)
    for _ in range(2):
        assert compiled(x) == fn(x)


@pytest.mark.parametrize("switch", [torch.no_grad, torch.enable_grad, lambda: torch.set_grad_enabled(False)])
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_grad_mode_is_switched_under_a_mode(switch, backend):
    def fn(x):
        log = []
        with Naming(log):
            with switch():
                y = x * 0.5
                inside = torch.is_grad_enabled()
            z = (x * y.sum()).sum()
        return y * 1, z, inside, torch.is_grad_enabled(), log

    x, compiled = torch.arange(3.0, requires_grad=True), jit.compile(fn, backend=backend)
    for _ in range(2):
        want, got = fn(x), compiled(x)
        assert [t.requires_grad for t in got[:2]] == [t.requires_grad for t in want[:2]] and got[2:] == want[2:]
        torch.testing.assert_close(torch.autograd.grad(got[1], x), torch.autograd.grad(want[1], x))


def test_grad_mode_that_a_mode_keeps():
    class Refusing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") == "_set_grad_enabled":
                return None
            return func(*args, **kwargs or {})

    def fn(x):
        with Refusing():
            with torch.no_grad():
                y = x * 2
        return y, torch.is_grad_enabled()

    x = torch.ones(2, requires_grad=True)
    want, got = fn(x), jit.compile(fn)(x)
    assert got[0].requires_grad == want[0].requires_grad and got[1] == want[1]


class Around(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Around(inner["inner"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map(lambda t: t.inner if isinstance(t, Around) else t, args)
        found = func(*args, **(kwargs or {}))
        return torch.utils._pytree.tree_map(lambda t: Around(t) if isinstance(t, torch.Tensor) else t, found)


@pytest.mark.parametrize("use", [list, lambda x: [*x], str, repr, lambda x: f"{x}", lambda x: float(x.sum())])
def test_a_mode_sees_a_class_that_is_dispatched(use):
    def fn(x, moded):
        log = []
        try:
            if not moded:
                use(x)
            with Naming(log):
                use(x)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            log.append(type(error))
        return log

    compiled, switched_off = jit.compile(fn), str(torch._C._dispatch_tls_local_exclude_set())
    for moded in (True, False):
        assert compiled(Around(torch.ones(3)), moded) == fn(Around(torch.ones(3)), moded)
        assert str(torch._C._dispatch_tls_local_exclude_set()) == switched_off


class Sub(torch.Tensor):
    """Notes the calls with it."""

    calls: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


KNOWN = {
    "rows": lambda x: [row for row in torch.ones(3) if row], "branch": lambda x: 1 if torch.ones(1) else 2,
    "bool": lambda x: bool(torch.ones(1)), "element of a list": lambda x: [1, 2, 3][torch.tensor(1)],
    "any": lambda x: any(torch.zeros(2)), "with others": lambda x: torch.ones(1) and x, "copy": lambda x: copy.copy(x),
    "not": lambda x: not torch.ones(1)}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_asked_of_known_values(name):
    def fn(x):
        log = []
        with Noting(log):
            KNOWN[name](x)
        return log

    assert jit.compile(fn)(torch.ones(3)) == fn(torch.ones(3))


@pytest.mark.parametrize("fn", [
    lambda x: x[x > 0], lambda x: torch.nonzero(x), lambda x: copy.copy(x),
    lambda x: [1, 2][x.sum() > 0], lambda x: unpacked(x)], ids=["mask", "places", "copy", "index", "dual"])
def test_a_class_sees_no_call_of_the_compiler(fn):
    compiled, found = jit.compile(fn), []
    for run in (fn, compiled, compiled):
        Sub.calls = []
        run(torch.ones(3).as_subclass(Sub))
        found.append(Sub.calls)
    assert found[0] == found[1] == found[2]


def unpacked(x):
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.ones(3), torch.ones(3))
        return forward_ad.unpack_dual(x.sum().tanh())


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * 2 * ctx.saved_tensors[0]


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def leaf(x):
    return x.detach().requires_grad_()


def squared_backward(x, function=Square):
    y = leaf(x)
    torch.autograd.backward((function.apply(y) * 1).sum())
    return y.grad


def checked(x):
    if x.sum() < -100:
        raise ValueError
    return x + 1


def chosen(x):
    if x.sum() > 1:
        y = x * 2
    else:
        y = x * 3
    return y.sum()


def while_small(x):
    while x.sum() < 100:
        x = x * 2
    return x


# What PyTorch does in C, or the compiler for itself, is no call that a mode or a class sees.
IN_C = {
    "map": lambda x: torch.vmap(lambda t: t.sin(), in_dims=1, out_dims=1)(x),
    "map as it is": lambda x: torch.vmap(lambda t: t, out_dims=1)(x),
    "map that writes": lambda x: torch.vmap(lambda t: t.add_(1))(x),
    "map over columns that writes": lambda x: torch.vmap(lambda t: t.add_(1), in_dims=1)(x),
    "map of what is not mapped": lambda x: torch.vmap(lambda t: torch.ones(3))(x),
    "map to what is expanded": lambda x: torch.vmap(lambda t: t.sum().expand(3))(x),
    "gradient": lambda x: torch.func.grad(lambda t: t.sin().sum())(x),
    "function": lambda x: Square.apply(leaf(x)),
    "its gradient": lambda x: torch.autograd.grad(Square.apply(y := leaf(x)).sum(), y),
    "its backward": squared_backward,
    "function that returns its argument": lambda x: Same.apply(x),
    "that with a gradient": lambda x: Same.apply(leaf(x)),
    "its backward too": lambda x: squared_backward(x, Same),
    "assertion": checked, "branch": chosen, "loop": while_small,
    "parameter": lambda x: (torch.nn.Parameter().requires_grad, torch.nn.Parameter(x.detach()).is_leaf),
}


@pytest.mark.parametrize("kind", ["plain", "class"])
@pytest.mark.parametrize("name", IN_C)
def test_what_is_no_call_of_the_program(name, kind):
    def fn(x):
        log = []
        with Naming(log):
            found = IN_C[name](x)
        return log, str(found), type(found)

    compiled, seen = jit.compile(fn), []
    for run in (fn, compiled, compiled):
        x, Sub.calls = torch.arange(6.0).view(2, 3), []
        seen.append((run(x if kind == "plain" else x.as_subclass(Sub)), Sub.calls))
    assert seen[0] == seen[1] == seen[2]


class Inverting(TorchFunctionMode):
    """Changes what is computed, and nothing else."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result.logical_not() if isinstance(result, torch.Tensor) and result.dtype is torch.bool else result


@pytest.mark.parametrize("of", [-50.0, 0.0, 1.0])
@pytest.mark.parametrize("body", [chosen, checked])
def test_a_mode_that_changes_results_has_no_say_in_what_the_compiler_asks(body, of):
    def fn(x):
        with Inverting():
            try:
                return body(x)
            except ValueError:
                return None

    x, compiled = torch.full((2, 3), of), jit.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), fn(x))


# What is made, or put back, behind a break inside of a mode.
BEHIND_A_BREAK = {
    "leaf": leaf, "parameter": lambda x: torch.nn.Parameter(x.detach()), "text": lambda x: f"{x}",
    "class": lambda x: x.as_subclass(Plainly), "class that is dispatched": lambda x: Around(x.clone()) * 1,
    "view": lambda x: (x.add_(1), x[1:])[1],
}


class Plainly(torch.Tensor):
    pass


@pytest.mark.parametrize("kind", ["plain", "class"])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", BEHIND_A_BREAK)
def test_what_is_made_behind_a_break_is_seen_by_no_mode(name, recorded, kind):
    def fn(x):
        log = []
        with torch.set_grad_enabled(recorded), Naming(log):
            kept = BEHIND_A_BREAK[name](x)
            jit.graph_break()
            return log, type(kept), torch.is_grad_enabled()

    compiled, seen = jit.compile(fn), []
    for run in (fn, compiled, compiled):
        x, Sub.calls = torch.arange(6.0).view(2, 3), []
        seen.append((run(x if kind == "plain" else x.as_subclass(Sub)), Sub.calls))
    assert seen[0] == seen[1] == seen[2]


def test_a_gradient_that_is_read_again_asks_no_class():
    def fn(x):
        y = leaf(x)
        (y * 2).sum().backward()
        jit.graph_break()
        return y.grad

    compiled, seen = jit.compile(fn), []
    for run in (fn, compiled, compiled):
        Sub.calls = []
        run(torch.ones(3).as_subclass(Sub))
        seen.append(Sub.calls)
    assert seen[0] == seen[1] == seen[2]


def telling(name, base=torch.Tensor, members=None):
    """A class of tensors that notes which function it is asked about, of which classes and with how many arguments."""
    def function(cls, func, types, *given):
        TOLD.append((cls.__name__, str(func), types, len(given), [list(named or ()) for named in given[1:]]))
        return super(made, cls).__torch_function__(func, types, *given)

    made = type(name, (base,), members or {"__torch_function__": classmethod(function)})
    return made


TOLD: list = []
A = telling("A")
B, D = telling("B", A), telling("D")
OFF = telling("OFF", members={"__torch_function__": torch._C._disabled_torch_function_impl})


class Telling(TorchFunctionMode):
    def __torch_function__(self, func, types, *given):
        TOLD.append(("mode", str(func), types, len(given), [list(named or ()) for named in given[1:]]))
        return func(*given[0], **(given[1] if given[1:] else {}))


CALLS = {
    "function in C": lambda a, b: torch.sin(a), "of a list": lambda a, b: torch.stack([a, b]),
    "with a name": lambda a, b: torch.add(a, b, alpha=2), "operator": lambda a, b: a + b, "power": lambda a, b: a ** b,
    "equal": lambda a, b: a == b, "attribute": lambda a, b: a.shape, "method": lambda a, b: a.detach(),
    "method in Python": lambda a, b: a.split(1), "function in Python": F.mse_loss,
    "absolute value": lambda a, b: abs(a),
    "weights": lambda a, b: F.layer_norm(a, (3,), b), "length": lambda a, b: len(a), "new": lambda a, b: torch.ones(3),
    "data": lambda a, b: torch.tensor(a),
}


@pytest.mark.filterwarnings("ignore:To copy construct", "ignore:Using a target size")
@pytest.mark.parametrize("name", CALLS)
def test_what_is_told_about_a_call(name):
    def fn(a, b, moded):
        if moded:
            with Telling():
                return CALLS[name](a, b)
        return CALLS[name](a, b)

    for kinds in itertools.product((torch.Tensor, A, B, OFF), (torch.Tensor, B, D, OFF)):
        for moded in (True, False):
            seen = []
            for run in (fn, jit.compile(fn)):
                TOLD.clear()
                try:
                    result = run(*(torch.arange(3.0).as_subclass(k) for k in kinds), moded)
                except TypeError:
                    result = TypeError
                seen.append((list(TOLD), type(result)))
            assert seen[0] == seen[1], kinds


def test_what_is_asked_of_an_array():
    def fn(x):
        log = []
        with Noting(log):
            a = np.arange(3)
            told = [a.sum() > 2, int(a[0]), float(a[1]), bool(a[2]), not a[0], [5, 6, 7][a[1]], len(a)]
            if a[0] == 0:
                x = x + 1
        return log, told, x

    log, told, x = fn(torch.ones(2))
    assert (log, told) == jit.compile(fn)(torch.ones(2))[:2] and log == ["add"] and x.tolist() == [2, 2]
