"""Operands that PyTorch refuses, such as None and text: the same exception as in eager, or the same result where it
takes them."""

import collections
import operator

import pytest
import torch
from frame_harness import Cases, said, same, sequence

import jit

cases = Cases()
VECTOR = torch.arange(3.0)
OPERANDS = (None, "a", (1, 2), [1, 2], True, 2, 2.5, {}, ...)
FUNCTIONS = [operator.mul, operator.add, operator.sub, operator.truediv, operator.floordiv, operator.mod, operator.pow,
             operator.lt, operator.eq, operator.and_, operator.or_, operator.xor, operator.lshift, torch.mul, torch.add,
             torch.sub, torch.div, torch.maximum, torch.pow, torch.fmod, torch.logical_and, torch.logical_xor,
             torch.bitwise_and, torch.atan2, torch.eq, torch.lt, torch.clamp]
METHODS = ["mul_", "add_", "logical_or_", "bitwise_or_", "fmod_", "view", "fill_", "masked_fill_", "copy_",
           "__getitem__", "sum", "any", "amax", "unsqueeze", "flip", "roll", "cumsum", "chunk", "tril", "flatten",
           "clamp_", "expand", "repeat", "index_select", "norm"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS], ids=lambda f: getattr(f, "__name__", f))
def test_odd_operands(name, dtype):
    fn = name if callable(name) else lambda x, v: getattr(x.clone(), name)(v)
    x = torch.tensor([1, 0, 3]).to(dtype)
    for swap in (False, True):
        for operand in OPERANDS:
            def program(x):
                try:
                    return fn(operand, x) if swap and callable(name) else fn(x, operand)
                except Exception as error:
                    return type(error), str(error)

            same(program(x), jit.compile(program, backend="eager")(x))


@pytest.mark.parametrize("index", [0, (..., -1), slice(1, None), torch.tensor([0, 2])],
                         ids=["0", "last", "slice", "tensor"])
def test_odd_values_put_into_tensors(index):
    for value in OPERANDS:
        def program(x):
            y = x.clone()
            try:
                y[index] = value
            except Exception as error:
                return y, type(error), str(error)
            return y

        same(program(torch.ones(3)), jit.compile(program, backend="eager")(torch.ones(3)))


def test_large_operands_are_refused_too():
    def program(x):
        try:
            return x.tril("a")
        except TypeError as error:
            return str(error)

    x = torch.ones(300, 300)
    same(program(x), jit.compile(program, backend="eager")(x))


@cases(VECTOR, [], fullgraph=False, raises=True)
def texts_of_torch_errors(x, log):
    for call in (lambda: x.sum().size(0), lambda: x.size(4), lambda: torch.sin(1), lambda: abs([]), lambda: round({}),
                 lambda: [][1.5], lambda: 1 - x.shape):
        try:
            log.append(call())
        except (TypeError, IndexError) as error:
            log.append(str(error))
    log[1.5] = 1


@cases(VECTOR)
def errors_of_tensors_that_are_known(x):
    zero_dim = torch.zeros(2).any(0)
    return said(lambda: zero_dim.unbind(0)), said(lambda: x @ torch.tensor(2)), said(lambda: torch.ones(2).sum()[:1])


class OnlyRight:
    def __radd__(self, other):
        return "right"


@cases(VECTOR, torch.tensor(2), torch.tensor([True, False]), OnlyRight(), OnlyRight(), fullgraph=False)
def operands_and_values_of_wrong_kinds(x, n, b, o, p):
    log = []
    for y in (x, n, b):
        for wrong in (lambda: y * None, lambda: None + y, lambda: y & None, lambda: y > None,
                      lambda: y.__setitem__(..., "2"), lambda: y.__setitem__(0, None), lambda: o + p, lambda: 1 + p):
            try:
                log.append(wrong())
            except (TypeError, IndexError, RuntimeError) as error:
                log.append(str(error))
    return x + 1, log


@cases(torch.tensor([1, 0, 2]), VECTOR, fullgraph=False)
def a_dtype_that_a_kernel_refuses_raises_where_it_is(n, x):
    """Also where nobody reads the result, and where the operation would be in place."""
    log = []
    for refused in (lambda: (x == n).argmax(), lambda: (x == n).softmax(0), lambda: torch.nn.functional.gelu(n),
                    lambda: n.frac_(), lambda: (n > 0) % (n > 1), lambda: n.to(torch.complex64).max(),
                    lambda: (n > 0).topk(1), lambda: n.add_(1), lambda: n.argmax()):
        try:
            refused()
            log.append("fine")
        except RuntimeError as error:
            log.append(str(error))
    return log, x + n


@cases(torch.arange(3.0), fullgraph=False)
def what_is_refused_of_no_elements(x):
    log = []
    for dtype in (torch.float32, torch.int64, torch.bool):
        z = x.to(dtype)[3:]
        for refused in (lambda: z.softmax(-1), lambda: z.median(0), lambda: z.topk(1), lambda: z.amax(0),
                        lambda: z.argmax(), lambda: z.index_select(0, torch.tensor([0])), lambda: z.float().mean(),
                        lambda: z[0], lambda: z.cumsum(0), lambda: z.dot(x[None])):
            try:
                refused()
                log.append("fine")
            except (RuntimeError, IndexError) as error:
                log.append(str(error))
    return log, x + 1


@cases(torch.tensor([3]), [], fullgraph=False)
def a_call_that_lacks_an_argument(n, log):
    try:
        if torch.equal(n):
            pass
    except TypeError as error:
        log.append(str(error))
    return n + 1


@cases(VECTOR, torch.tensor(2.0), torch.tensor(3), fullgraph=False)
def a_format_that_a_tensor_does_not_know(x, y, n):
    log = [f"{y:>8.1f}|{n:>4}|{n:x}", f"{x!r:>3}"]
    for wrong in (lambda: f"{x:>3}", lambda: f"{y:d}", lambda: f"{n:q}", lambda: format(x, "s")):
        try:
            None + wrong()
        except (TypeError, ValueError) as error:
            log.append((type(error).__name__, str(error)))
    return log, x + 1


test_refusals = cases.test()


def test_arguments_that_torch_refuses():
    def f(x, how):
        try:
            return abs(x > 0) if how else x[:1.5]
        except (TypeError, NotImplementedError) as error:
            return type(error), str(error)

    sequence(lambda: f, [(VECTOR, True), (VECTOR, False)])


def test_an_error_of_torch_names_the_very_class_of_an_argument():
    def f(x, t):
        return said(lambda: x.mean().sub_(t)), said(lambda: x.add(x.shape)), said(lambda: x + 1)

    sequence(lambda: f, [(VECTOR, collections.namedtuple("Pair", "a b")(1, 2)), (VECTOR, (1, 2))])


def test_tensors_are_not_rounded_by_the_builtin():
    def f(x):
        return said(lambda: round(x)), said(lambda: round(torch.nn.Parameter(x), 2)), x.round() + 1

    sequence(lambda: f, [(VECTOR,)])


def test_new_tensors_need_a_size():
    def f(x):
        makers = torch.zeros, torch.ones, torch.empty, x.new_zeros, x.new_ones, x.new_empty
        return [said(make) for make in makers], torch.zeros(()) + torch.ones(size=()) + x.new_ones(()) + x

    sequence(lambda: f, [(VECTOR,)])


@pytest.mark.parametrize("value", [torch.tensor(0), torch.tensor(True), torch.tensor(0.5), torch.tensor([7]),
                                   torch.tensor([1.5], dtype=torch.float64), 3, torch.tensor([1.0, 2.0])], ids=str)
def test_what_may_be_put_at_an_index(value):
    def make():
        def f(y, v, m):
            log = []
            for put in (lambda y: y.__setitem__(y.sum() > 1, v), lambda y: y.__setitem__(m, v),
                        lambda y: y.__setitem__((m,), v), lambda y: y.__setitem__([0, 1], v),
                        lambda y: y.__setitem__(torch.tensor([2]), v), lambda y: y.__setitem__(slice(0, 2), v),
                        lambda y: y.__setitem__(m.to(torch.uint8), v)):
                z = y.clone()
                try:
                    put(z)
                except (RuntimeError, IndexError) as error:
                    log.append(str(error))
                log.append(z)
            return log

        return f

    sequence(make, [(torch.arange(3.0), value, torch.tensor([True, False, True]))])


def test_what_only_zeros_are_refused_for():
    """An operator without a meta kernel is asked on other values too; what is wrong with the program's is raised."""
    def f(x, w, a):
        return torch.cov(x.sin(), correction=1, fweights=w, aweights=a)

    x, w, a = torch.randn(4, 10), torch.arange(1, 11), torch.linspace(0.1, 1.0, 10)
    assert jit.explain(f)(x, w, a).graph_break_count == 0
    compiled = jit.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(x, w, a), f(x, w, a))
    with pytest.raises(RuntimeError, match="weights sum to zero"):
        compiled(x, w * 0, a)


WRONG = ["x.requires_grad_(None)", "x.requires_grad_(0)", "x.requires_grad_([True])", "x.size(1, 2)", "x.size(bogus=1)",
         "x.__len__(1)", "x.__hash__(bogus=1)", "x.item(1)", "x.tolist(bogus=1)", "x.equal(None)", "x.equal(x, x)",
         "x.numpy(1)", "x.as_subclass(None)", "x.register_hook()", "x.backward(bogus=1)", "x.cpu(None)",
         "x.data_ptr(3)", "torch.is_tensor(x, 1)", "torch.is_grad_enabled(1)", "torch.is_grad_enabled(bogus=1)",
         "torch.is_autocast_cache_enabled(x)", "torch.get_autocast_dtype('cpu', 1)", "set(x, 1)", "frozenset(bogus=1)",
         "dict({}, {})", "zip(bogus=1)", "bool(1, 2)", "slice(1, 2, 3, 4)", "dir(1, 2)", "getattr(x, None)",
         "hasattr(x, 1)", "delattr(x, None)", "setattr(x, 1, 2)", "object.__new__(1)", "dict.__new__()",
         "object.__getattribute__('a', 'b')", "iter(x, bogus=1)", "torch.autograd.grad(bogus=1)"]


@pytest.mark.parametrize("call", WRONG)
def test_what_a_call_does_not_take_is_refused(call):
    """By functions that graphs have rules of their own for, which take arguments as they come."""
    space = {"torch": torch}
    exec(f"def f(x):\n    try:\n        return x + 1, {call}\n    except Exception as error:\n"
         "        return x + 1, type(error), str(error)\n", space)
    want, got = space["f"](VECTOR.clone()), jit.compile(space["f"])(VECTOR.clone())
    assert len(want) == 3 and want[1:] == got[1:]
    torch.testing.assert_close(got[0], want[0])


@pytest.mark.parametrize("ask", [lambda x: x.dim_order(), lambda x: x.t().dim_order(),
                                 lambda x: x[:1].dim_order(ambiguity_check=True)], ids=["rows", "columns", "one row"])
def test_the_order_of_dimensions(ask):
    def f(x):
        return x + 1, said(lambda: ask(x))

    for n in (2, 3, 4):
        same(f(torch.ones(n, 3)), jit.compile(f)(torch.ones(n, 3)))
