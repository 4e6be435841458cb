"""Operators that are not PyTorch's own run as often, in the order and on the values that eager runs them on, and never
while capturing."""

import contextlib
import io
import warnings

import pytest
import torch
from frame_harness import same

import jit

SEEN = []  # what kernels were called with


def plain(v):
    return v.tolist() if isinstance(v, torch.Tensor) else [plain(e) for e in v] if isinstance(v, list) else v


def operator(name, schema, mutates=()):
    """A ``custom_op`` whose kernel is the decorated function, which notes its calls."""

    def register(kernel):
        def noted(*args):
            SEEN.append((name, *map(plain, args)))
            return kernel(*args)

        return torch.library.custom_op(f"jit_foreign::{name}", noted, mutates_args=mutates, schema=schema)

    return register


@operator("send", "(Tensor x, float k) -> Tensor")
def send(x, k):
    return x * k


@operator("typed", "(Tensor x) -> Tensor")
def typed(x):
    return x + 1


@typed.register_fake
def _(x):
    return torch.empty_like(x)


def _backward(ctx, grad):
    SEEN.append(("backward", grad.tolist()))
    return grad * 3


typed.register_autograd(_backward)


@operator("scale_", "(Tensor(a!) x, float k) -> ()", mutates=("x",))
def scale_(x, k):
    x.mul_(k)


@operator("several", "(Tensor[] xs) -> Tensor[]")
def several(xs):
    return [x + 1 for x in xs]


@several.register_fake
def _(xs):
    return [torch.empty_like(x) for x in xs]


@operator("number", "(int k) -> int")
def number(k):
    return k + 1


@operator("liar", "(Tensor x) -> Tensor")
def liar(x):
    return x.double() if len(x) > 2 else x.repeat(2)


@liar.register_fake
def _(x):
    return torch.empty_like(x)


@operator("no_type", "(Tensor x) -> Tensor")
def no_type(x):
    return x.clone()


@no_type.register_fake
def _(x):
    raise ValueError("no type is known")


@operator("fails", "(Tensor x) -> Tensor")
def fails(x):
    raise ValueError("not this one")


@fails.register_fake
def _(x):
    return torch.empty_like(x)


LIBRARY = torch.library.Library("jit_foreign", "FRAGMENT")
LIBRARY.define("plain(Tensor x) -> Tensor")
LIBRARY.impl("plain", lambda x: (SEEN.append(("plain", x.tolist())), x.clone())[1], "CPU")
LIBRARY.define("composed(Tensor x) -> Tensor")
LIBRARY.impl("composed", lambda x: (SEEN.append(("composed", x.tolist())), x.sin() + 1)[1], "CompositeImplicitAutograd")
LIBRARY.define("itself(Tensor(a) x) -> Tensor(a)")
LIBRARY.impl("itself", lambda x: (SEEN.append(("itself", x.tolist())), x[:1])[1], "CPU")
OPS = torch.ops.jit_foreign


def twice_and_unread(x):
    send(x, 2.0)
    return send(x, 2.0) + send(x, 2.0)


def in_order(x):
    print("first", len(SEEN))
    y = send(x + 1, 3.0)
    print("second", len(SEEN))
    z = OPS.plain(y) + OPS.composed(y)
    SEEN.append("the program")
    return typed(z), len(SEEN)


def written(x):
    y = x * 2
    scale_(y, 3.0)
    scale_(x, 0.5)
    v = y[:1]
    scale_(v, 2.0)
    return x, y, v


def lists_and_numbers(x):
    p, q = several([x, x * 2])
    return p + q, OPS.number(4), OPS.number.default(len(SEEN))


def views(x):
    y = x * 1
    v = OPS.itself(y)
    v.add_(1)
    return y, v


def lies(x):
    return liar(x + 1) * 2, no_type(x)


def raises(x):
    try:
        fails(x * 2)
    except ValueError as error:
        text = str(error)
    OPS.plain(x)
    return x + 1, text


def on_constants(x):
    ones = torch.ones(2)
    return OPS.plain(ones) + OPS.plain(ones), OPS.plain(torch.tensor(3)).item() + x


def leaves_with_an_error(x):
    send(x, 1.0)
    return torch.linalg.cholesky(typed(x).view(1, 2))


def wrong_arguments(x):
    return send(x, "two")


PROGRAMS = [twice_and_unread, in_order, written, lists_and_numbers, views, lies, raises, on_constants,
            leaves_with_an_error, wrong_arguments]


def observe(fn, sizes=(2, 2, 3, 4, 2), grad=False):
    """What calls give, raise, print and show to the kernels."""
    SEEN.clear()
    found, out = [], io.StringIO()
    with contextlib.redirect_stdout(out):
        for i, n in enumerate(sizes):
            x = torch.arange(i, i + 2.0 * n)[::2] if i % 2 else torch.arange(n) + float(i)
            try:
                results = fn(x.requires_grad_() if grad else x)
                if grad:
                    results.sum().backward()
                found.append((results, x, x.grad))
            except Exception as error:
                found.append((type(error).__name__, str(error), x))
    return found, list(SEEN), out.getvalue()


def check(program, compiled, **options):
    theirs, ours = observe(program, **options), observe(compiled, **options)
    assert theirs[1:] == ours[1:]
    same(theirs[0], ours[0], rtol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_only_the_programs_own_calls(program):
    with torch.no_grad():
        check(program, jit.compile(program))


@pytest.mark.parametrize("program", [twice_and_unread, lambda x: typed(typed(x * 2) * 3) + typed(x),
                                     lambda x: several([x, typed(x * 2)])[1] * 2],
                         ids=["no backward", "twice", "a list"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_backward_runs_once(program):
    check(program, jit.compile(program), grad=True)


def unbroken(x):
    y = typed(x * 2)
    typed(y)
    a, b = several([y, y])
    return typed(y) + a * b.sum()


def test_with_a_fake_kernel_it_is_a_step():
    check(unbroken, jit.compile(unbroken, fullgraph=True))
    check(unbroken, jit.compile(unbroken, fullgraph=True, backend="eager"))
    assert jit.explain(unbroken)(torch.ones(2)).graph_break_count == 4


@pytest.mark.parametrize("program", [lambda x: send(x, 1.0), lambda x: no_type(x), lambda x: OPS.plain(x),
                                     lambda x: OPS.composed(x), lambda x: OPS.itself(x) + 1,
                                     lambda x: OPS.number(1) + x,
                                     lambda x: typed(x.requires_grad_() * 2), lambda x: (SEEN.append(1), typed(x)),
                                     lambda x: (x.add_(1), typed(x)), lambda x: torch.vmap(typed)(x)])
def test_what_is_no_step_is_refused_without_a_call(program):
    SEEN.clear()
    with pytest.raises(jit.Unsupported):
        jit.compile(program, fullgraph=True)(torch.ones(3))
    assert SEEN == []


def test_what_a_fake_kernel_says_wrongly_is_noticed():
    SEEN.clear()
    program = lambda x: liar(x) + 1  # noqa: E731
    compiled = jit.compile(program, fullgraph=True)
    for k, size in enumerate((2, 3, 2)):  # of two elements the sizes are others, of three the dtype
        x = torch.ones(size)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = compiled(x)
        said = [(w.lineno, str(w.message)) for w in told if "register_fake" in str(w.message)]
        assert [line for line, _ in said] == [program.__code__.co_firstlineno] * (k == 0)  # once for each place
        assert all("the operator jit_foreign::liar returned sizes" in text for _, text in said)
        assert len(SEEN) == 1  # the call has gone on in eager, with what the operator gave
        torch.testing.assert_close(result, liar(x) + 1)
        SEEN.clear()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_operators_that_torch_nn_defines_in_python_are_pytorchs_own(reduction):
    options = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options").LinearCrossEntropyOptions(
        batch_chunk_size=2, allow_retain_graph=True)

    def program(x, w, target):
        return torch.nn.functional.linear_cross_entropy(x, w, target, reduction=reduction, options=options) * 2

    compiled = jit.compile(program, fullgraph=True)
    for rows in 5, 4, 7:
        outcomes = []
        for f in program, compiled:
            x, w = (torch.linspace(-1, 1, rows * 3).view(rows, 3).requires_grad_(),
                    torch.linspace(0, 1, 12).view(4, 3).requires_grad_())
            loss = f(x, w, torch.arange(rows) % 4)
            outcomes.append((loss.detach(), *torch.autograd.grad(loss.sum(), (x, w))))
        torch.testing.assert_close(*outcomes)


def test_an_operator_that_is_defined_again():
    def define(factor, schema, fake=True):
        op = torch.library.custom_op("jit_foreign::changing", lambda x, k=1.0: x * factor * k, mutates_args=(),
                                     schema=schema)
        op.register_fake(lambda x, k=1.0: torch.empty_like(x))
        return op

    x = torch.arange(3.0)
    program = lambda x: OPS.changing(x, 2.0) + 1 if wide else OPS.changing(x) + 1  # noqa: E731
    wide = False
    define(2, "(Tensor x) -> Tensor")
    compiled = jit.compile(program, fullgraph=True)
    assert compiled(x).tolist() == program(x).tolist() == [1, 3, 5]
    define(3, "(Tensor x, float k) -> Tensor")
    wide = True
    assert compiled(x).tolist() == program(x).tolist() == [1, 7, 13]
