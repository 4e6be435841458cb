"""Numbers that change between calls: floats and integers become symbolic, their arithmetic stays Python's, and few
compilations are enough."""

import math
import warnings

import pytest
import torch
from frame_harness import observe, same, sequence

import jit

VECTOR = torch.arange(3.0)
FLOATS = (0.5, 0.25, 3.0, -2.5, 1e-3, 7.0, -0.0, math.inf, math.nan, 1e300)


def few(fn, calls, at_most, backend="eager", fullgraph=True):
    """Calls the compiled function with each tuple of arguments against eager; no more than ``at_most`` entries are
    made."""
    jit.reset()
    compiled = jit.compile(fn, backend=backend, fullgraph=fullgraph)
    for args in calls:
        want, got = observe(fn, args), observe(compiled, args)
        assert want[1] == got[1], f"{args}: {want[1]} in eager, {got[1]} compiled"
        same(want[0], got[0], str(args))
    assert len(compiled.entries) <= at_most
    return compiled


@pytest.mark.parametrize("backend, dtype",
                         [("eager", d) for d in (torch.float32, torch.bfloat16, torch.float64, torch.int32)]
                         + [("jit", torch.float32), ("jit", torch.int32)])
def test_a_float_that_changes(dtype, backend):
    x = torch.arange(6).to(dtype)

    def f(x, k):
        return x * k, x + k, k / (x + 2.5), x - k > k, torch.where(x > 1, x, k), x.reshape(2, 3)[0, 0] * k

    few(f, [(x, k) for k in FLOATS], 2, backend)


def test_operands_of_other_kinds():
    x = torch.tensor([-2.0, -0.5, 0.25, 3.0])

    def f(x, k):
        y = x.clone()
        y.mul_(k)
        y += k
        return (y, x.clamp(-1.0, k), x.clamp(max=k), x.masked_fill(x > 0, k), torch.rsub(x, k), x.div(k),
                torch.mul(x, other=k), k ** 2 * x)

    few(f, [(x, k) for k in (0.5, 0.25, 1.5, 2.0)], 9)


def test_python_arithmetic_is_exact():
    def f(x, k):
        a = (k * 3 - 0.1) / 7 + -k
        return x * a, a, math.sqrt(k) + math.exp(-k), float(k) * 2

    few(f, [(torch.ones(2), k) for k in (0.1, 0.2, 0.3, 1 / 3, 1e-30, 12345.678)], 2)


def test_arithmetic_that_raises():
    done = []

    def f(x, k):
        done.append(k)
        return x * (1 / k), math.sqrt(k)

    few(f, [(torch.ones(2), k) for k in (2.0, 3.0, 0.0, 4.0, -1.0, 5.0)], 2, fullgraph=False)
    assert done == [k for k in (2.0, 3.0, 0.0, 4.0, -1.0, 5.0) for _ in range(2)]


def test_a_branch_on_a_float_is_guarded():
    def f(x, k):
        return x + 1 if k > 0.5 else x * k

    few(f, [(torch.ones(2), k) for k in (0.5, 0.25, 0.75, 0.5, 0.75, 2.0, 0.25)], 4)


def test_text_and_keys_are_guarded():
    def f(x, k):
        return x, f"{k:.2f}", {k: 1}, [1, 2, 3][int(k)], round(k), k.is_integer(), k == 1.0

    few(f, [(torch.ones(2), k) for k in (0.5, 1.0, 0.25, 1.0, 0.5)], 3)


def test_attributes_globals_and_closures():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.scale, self.options = 0, 1.0, {"shift": 0.5}

        def forward(self, x):
            self.calls += 1
            return x * self.scale + self.options["shift"] * self.calls

    model = Model()
    compiled = jit.compile(model, backend="eager", fullgraph=True)
    before = jit.compile_count()
    for i in range(8):
        model.scale, model.options["shift"] = 0.3 * i, -0.7 * i
        assert torch.equal(compiled(torch.ones(3)), torch.ones(3) * (0.3 * i) + (-0.7 * i) * (i + 1))
        assert model.calls == i + 1
    assert jit.compile_count() - before <= 3


def test_a_counter_of_a_closure():
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return x * count

    compiled = jit.compile(f, backend="eager", fullgraph=True)
    for i in range(1, 12):
        assert compiled(torch.ones(2))[0] == i
    assert len(compiled.entries) <= 2


def test_integers_of_any_sign():
    def f(x, n):
        return x + n, n - 3, n * n, x * (n // 2), x.roll(n % 5)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few(f, [(torch.arange(5), n) for n in (1, 2, 7, 3, -4, -5, 5, -6)], 8)

    def g(x, n):
        return x + n, x * (2 * n - 3), n + 1

    few(g, [(torch.arange(5), n) for n in (1, -2, 7, -3, -4, 0, 5, -600)], 2)


def test_sizes_in_float_arithmetic():
    def f(x):
        b, n = x.shape
        return x * (b + n) / max(b, 1) + math.sqrt(n), x / n**0.5, n / b

    few(f, [(torch.ones(b, n),) for b, n in ((3, 4), (5, 8), (2, 6), (7, 10), (4, 20))], 5)


def test_a_float_across_a_break():
    def f(x, k):
        a = k * 2
        y = x * a
        print("here")
        return y * a + k

    few(f, [(torch.ones(2), k) for k in (0.5, 0.25, 3.0, -2.5)], 3, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "jit"])
def test_gradients_with_a_float_that_changes(backend):
    def f(x, k):
        return (x * k + 1 / (k + 1)).sin() * x / k

    jit.reset()
    compiled = jit.compile(f, backend=backend, fullgraph=True)
    for k in (0.5, 0.25, 3.0, -2.5):
        x = torch.arange(5.0).requires_grad_()
        y = x.detach().clone().requires_grad_()
        f(x, k).sum().backward()
        compiled(y, k).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert len(compiled.entries) == 2


@pytest.mark.parametrize("backend", ["eager", "jit"])
def test_dimensions_that_change(backend):
    """A symbolic number where a rule wants a plain one becomes known; the functions of PyTorch that are Python get one
    too."""

    def f(x, n):
        return (x.sum(n), x.flatten(n), x.unfold(n, 2, 1), x.roll(n, n), x.transpose(n, 0),
                torch.nn.functional.adaptive_avg_pool2d(x, n), torch.nn.functional.softmax(x, n) + n)

    jit.reset()
    compiled = jit.compile(f, backend=backend, fullgraph=True, dynamic=True)
    x = torch.randn(3, 3, 4, 4)
    for n in (2, 3, 1):
        torch.testing.assert_close(compiled(x, n), f(x, n))


def test_attributes_after_a_break_are_constants():
    """Integers that the function goes on with are symbolic at once, as a loop's are; what a module holds is not."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.flat = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(1)

        def forward(self, x):
            x = x * 2
            jit.graph_break()
            return self.flat(self.pool(x))

    found = jit.explain(Model().eval(), backend="eager")(torch.ones(2, 3, 4, 4))
    assert (found.graph_count, found.graph_break_count) == (2, 1)
    assert not any("== s" in guard or "i0" in guard for guard in found.guards)


def test_sizes_that_become_empty():
    """Kernels over sizes that are computed from others, of which some are 0 on a later call."""

    def f(x, n):
        rest = x[:, n:]
        return (rest * 2, rest.sum(1), x[n:].sum(0), x[n:].sum(), torch.cat([x[:, :n].exp(), rest], 1),
                rest.t().contiguous(), torch.softmax(rest, 1), rest.cumsum(1),
                rest.unsqueeze(1) + x[:, :n].unsqueeze(2))

    jit.reset()
    compiled = jit.compile(f, fullgraph=True, dynamic=True)
    x = torch.randn(6, 6)
    for n in (2, 3, 6, 0, 5):
        torch.testing.assert_close(compiled(x, n), f(x, n))
    # Sizes of 0 and 1, which have a say in the order of strides, have entries of their own
    assert len(compiled.entries) <= 4


def test_symbolic_integers_beside_floats_and_below_zero():
    """Comparisons with floats, and quotients of what may be negative, hold for all integers on the same side."""
    limits = (1.7, 2.0, -0.5, math.inf, -math.inf, math.nan, 5.5, 1e300)

    def f(x, n):
        compared = [(n < v, n <= v, n > v, n >= v, n == v, n != v, v < n, v <= n, v > n, v >= n, v == n,
                     v != n) for v in limits]
        return x * n, compared, (n - 7) % 4 == 2, (n - 100) // 8 < -3

    jit.reset()
    compiled = jit.compile(f, backend="eager")
    x = torch.ones(2)
    with jit.config.patch(cache_limit=40):
        for n in (3, 4, 5, 2, 6, 7, 9, 1, 0, -3, 30, 80):
            got, want = compiled(x, n), f(x, n)
            assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
        start = jit.compile_count()
        for n in range(30, 34):
            compiled(x, n)
        assert jit.compile_count() - start <= 2


def test_division_by_an_integer_that_is_zero_later():
    def f(x, n):
        try:
            return x + 7 // n, 7 % n
        except ZeroDivisionError as error:
            return str(error)

    sequence(lambda: f, [(VECTOR, 3), (VECTOR, 2), (VECTOR, 0), (VECTOR, 4)])


def test_slices_without_an_end_that_get_one():
    def f(v, k):
        return v[k:k], v[:k], v[::k]

    sequence(lambda: f, [([1, 2, 3], None), ([1, 2, 3], 1), ([1, 2, 3], 2)], fullgraph=True)


def test_the_length_of_a_number_that_changes():
    def make():
        def f(x, k):
            try:
                return x + len(0.5 + k)
            except TypeError as error:
                return str(error)

        return f

    sequence(make, [(VECTOR, k) for k in (1.5, 2, 2.5, 7, 8)])


def test_small_integers_are_one_object():
    def make():
        def f(x, n, k):
            one, big = 1, 1000
            return x + 1, n is k, one is k, k is not one, n + 1 is k + 1, big is n, n is None

        return f

    sequence(make, [(VECTOR, 2, 1), (VECTOR, 3, 3), (VECTOR, 1, 5), (VECTOR, 7, 7), (VECTOR, 1000, 3)])
    jit.reset()
    f = make()
    assert jit.compile(f, backend="eager", dynamic=True)(VECTOR, 2, 1)[1:] == f(VECTOR, 2, 1)[1:]


@pytest.mark.parametrize("backend", ["eager", "jit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int32])
def test_tensors_filled_with_a_float_that_changes(dtype, backend):
    x = torch.arange(6).reshape(2, 3).t().to(dtype)

    def f(x, k):
        return (x.new_full((2, 3), k), torch.full_like(x, k), torch.full((3,), k, dtype=x.dtype), x.new_tensor(k),
                torch.scalar_tensor(k, dtype=x.dtype), x.new_tensor([k, 1.0]), torch.full((2,), k))

    steady = dtype.is_floating_point and dtype is not torch.float16  # into others, not every number goes
    few(f, [(x, k) for k in FLOATS[:7]], 2 if steady else 7, backend)
    few(lambda x, k: torch.full_like(x, k), [(x, k) for k in FLOATS], 2 if steady else 10, backend, False)
