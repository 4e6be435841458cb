"""Operators on complex numbers, which are computed in kernels as pairs of real ones: values, dtypes, strides and
gradients against eager, at several layouts in one entry's life."""

import math

import pytest
import torch
from gpu_texts import captured, compiled_for_gpu, library_calls

import jit
from jit.codegen import compile_graph

INF, NAN = math.inf, math.nan
VIEWS = {"aten::view_as_real", "aten::view_as_complex", "aten::_conj", "aten::real", "aten::imag"}


@pytest.fixture(autouse=True)
def _entries(monkeypatch):
    monkeypatch.setattr(jit.config, "cache_limit", 100)


def numbers(*shape, dtype=torch.complex64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator)


# Each with operands a and b, complex, and x, real, of shapes that broadcast.
POINTWISE = {
    "add": lambda a, b, x: a + b,
    "add_alpha": lambda a, b, x: torch.add(a, b, alpha=2),
    "add_complex_alpha": lambda a, b, x: torch.add(a, b, alpha=0.5 - 2j),
    "sub": lambda a, b, x: a - b,
    "rsub": lambda a, b, x: torch.rsub(a, b) + (2 - a),
    "mul": lambda a, b, x: a * b,
    "chain": lambda a, b, x: a * b.conj() + a,
    "div": lambda a, b, x: a / b,
    "numbers": lambda a, b, x: (a * 2 + 1j) / 3 - (1 + 2j) * b / (2 - 1j),
    "number_over": lambda a, b, x: 2 / a + (1 - 1j) / b,
    "real_first": lambda a, b, x: x * a + x - b / x,
    "real_second": lambda a, b, x: (a - x) * x / b,
    "real_and_number": lambda a, b, x: x * 1j + a,
    "neg": lambda a, b, x: -a,
    "conj": lambda a, b, x: (a * b).conj().resolve_conj() + a.conj(),
    "conj_physical": lambda a, b, x: torch.conj_physical(a) * b,
    "parts": lambda a, b, x: (a * b).real * x + (a + b).imag,
    "view_as_real": lambda a, b, x: torch.view_as_real(a * b).sum(-1) * x,
    "view_as_complex": lambda a, b, x: torch.view_as_complex(torch.stack((a.imag, a.real), -1)) * b + x,
    "abs": lambda a, b, x: a.abs() + (a * b).abs() * x,
    "angle": lambda a, b, x: a.angle() + x,
    "sgn": lambda a, b, x: a.sgn() * b,
    "reciprocal": lambda a, b, x: a.reciprocal(),
    "square": lambda a, b, x: a.square() + b**2,
    "exp": lambda a, b, x: a.exp(),
    "polar": lambda a, b, x: torch.polar(a.abs(), x) * b,
    "complex": lambda a, b, x: torch.complex(x, a.imag) + b,
    "where": lambda a, b, x: torch.where(x > 0, a, b) + torch.where(x < 0, a, 1j),
    "masked_fill": lambda a, b, x: a.masked_fill(x > 3, 2 - 1j) + b,
    "addcmul": lambda a, b, x: torch.addcmul(a, b, a, value=0.5),
    "addcdiv": lambda a, b, x: torch.addcdiv(a, a, b, value=2),
    "lerp": lambda a, b, x: torch.lerp(a, b, 0.25) + torch.lerp(a, b, 0.75),
    "casts": lambda a, b, x: x.to(torch.complex64) * a + b,
    "double": lambda a, b, x: a.to(torch.complex128) * b,
    "moved": lambda a, b, x: (a * b).flip(0) + (a + b),
    "library_between": lambda a, b, x: (a * b).sin() + a,
}
# Without gradients.
OTHER = {
    "eq": lambda a, b, x: (a == b, a == a.conj(), a == 1j),
    "ne": lambda a, b, x: (a != b, a != x),
    "isnan": lambda a, b, x: ((a / 0).isnan(), (a / 0).isinf(), torch.isfinite(a * b)),
}
REDUCED = {
    "sum": lambda a: a.sum(),
    "sum_rows": lambda a: a.sum(-1),
    "sum_columns": lambda a: (a * a).sum(0, keepdim=True),
    "mean": lambda a: (a * 2).mean((0, 1)),
    "mean_rows": lambda a: a.mean(1, keepdim=True),
    "sum_double": lambda a: a.sum(1, dtype=torch.complex128),
    "power": lambda a: (a * a.conj()).real.sum(-1),
}
MOVED = {
    "clone": lambda a, b: (a * b).clone(),
    "contiguous": lambda a, b: (a * b).t().contiguous() + 1,
    "cat": lambda a, b: torch.cat((a * b, b), 0),
    "stack": lambda a, b: torch.stack((a, a + b)) * 2,
    "index": lambda a, b: (a * b)[1:, ::2] + 1,
    "reshape": lambda a, b: (a * b).reshape(-1) * 2,
    "roll": lambda a, b: (a * b).roll(1, 0) * b,
    "index_select": lambda a, b: (a + b).index_select(0, torch.tensor([1, 0, 1])),
    "gather": lambda a, b: (a + b).gather(1, torch.tensor([[1], [0], [2]])) * 1j,
    "expand": lambda a, b: (a[0] * b[0]).expand(3, -1) * b,
    "diagonal": lambda a, b: (a * b).diagonal() * 2,
    "repeat": lambda a, b: (a * b).repeat(2, 1) + 1,
}


def layouts():
    """Operands of several layouts: row-major, transposed, sliced, expanded, channels-last, of few dimensions, empty."""
    base = numbers(6, 8, seed=1), numbers(6, 8, seed=2), numbers(6, 8, seed=3).real.contiguous() + 3
    yield base
    yield tuple(v.t() for v in base)
    yield base[0].t(), base[1].t().contiguous(), base[2].t()
    yield tuple(v[1:4, ::2] for v in base)
    yield base[0][:1].expand(6, 8), base[1], base[2][:, :1].expand(6, 8)
    yield base[0], base[1][0], base[2][:, :1]
    yield tuple(v.reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last) for v in base)
    yield base[0], base[1][1, 1], base[2]
    yield tuple(v[1, 1] for v in base)
    yield tuple(v[:0] for v in base)


def split(x):
    return (x.real, x.imag) if x.is_complex() else (x,)


def agree(got, want, name=""):
    assert got.dtype is want.dtype and got.shape == want.shape, name
    assert got.is_conj() == want.is_conj() and got.untyped_storage().nbytes() == want.untyped_storage().nbytes(), name
    if want.numel() > 1:
        assert got.stride() == want.stride(), (name, got.stride(), want.stride())
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)


def several(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", {**POINTWISE, **OTHER})
def test_operator(name):
    fn = {**POINTWISE, **OTHER}[name]
    compiled = jit.compile(fn, fullgraph=True)
    for operands in layouts():
        if name == "moved" and not operands[0].dim():
            continue
        for got, want in zip(several(compiled(*operands)), several(fn(*operands)), strict=True):
            agree(got, want, name)


@pytest.mark.parametrize("name", POINTWISE)
def test_gradients(name):
    fn = POINTWISE[name]
    compiled = jit.compile(fn, fullgraph=True)
    for k, operands in enumerate(layouts()):
        if name == "moved" and not operands[0].dim() or name == "view_as_real" and not operands[0].numel():
            continue  # the second one eager refuses
        found = []
        for call in (compiled, fn):
            leaves = [v.detach().clone().requires_grad_() for v in operands]
            result = call(*leaves)
            weight = numbers(*result.shape, dtype=result.dtype, seed=4)
            result.backward(weight)
            found.append([v.grad for v in leaves])
        for got, want in zip(*found, strict=True):
            assert (got is None) == (want is None), name
            if want is not None:
                assert got.dtype is want.dtype
                torch.testing.assert_close(got, want, rtol=5e-5, atol=5e-5, msg=f"{name} {k}")


@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name):
    fn = REDUCED[name]
    compiled = jit.compile(fn, fullgraph=True)
    for a in (numbers(6, 8), numbers(8, 6).t(), numbers(6, 16)[:, ::2], numbers(3, 40), numbers(300, 257)):
        agree(compiled(a), fn(a), name)
        leaves = [a.clone().requires_grad_() for _ in range(2)]
        for call, leaf in zip((compiled, fn), leaves):
            result = call(leaf)
            result.backward(numbers(*result.shape, dtype=result.dtype))
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", MOVED)
def test_movement(name):
    fn = MOVED[name]
    compiled = jit.compile(fn, fullgraph=True)
    for a, b in ((numbers(3, 4), numbers(3, 4, seed=1)), (numbers(4, 3).t(), numbers(3, 4, seed=1)),
                 (numbers(4, 3).t(), numbers(4, 3, seed=1).t())):
        agree(compiled(a, b), fn(a, b), name)
        pair = [(a.clone().requires_grad_(), b.clone().requires_grad_()) for _ in range(2)]
        for call, leaves in zip((compiled, fn), pair):
            result = call(*leaves)
            result.backward(numbers(*result.shape, seed=5))
        for got, want in zip(*pair):
            torch.testing.assert_close(got.grad, want.grad, rtol=2e-5, atol=2e-5)


IN_PLACE = {
    "mul": lambda a, b: a.mul_(b),
    "add": lambda a, b: a.add_(b, alpha=2).mul_(1j),
    "sub_div": lambda a, b: a.sub_(1j).div_(b),
    "neg": lambda a, b: a.neg_(),
    "view": lambda a, b: (a[0].mul_(2), a.t().add_(1), a)[2],
    "real": lambda a, b: (a.real.mul_(2), a.imag.add_(b.real), a * 1)[2],
    "copy": lambda a, b: a.copy_(b * 2),
    "local": lambda a, b: (a * b).mul_(b).add_(1j),
    "mask": lambda a, b: (a.__setitem__(b.real > 0, 1j), a * 1)[1],
    "steps": lambda a, b: (a[:, ::2].add_(1j), a * 1)[1],
    "setitem": lambda a, b: (a.__setitem__(0, b[1] * 2), a)[1],
    "out": lambda a, b: torch.mul(a, b, out=torch.empty_like(a)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_gradients_in_place(name):
    """Of a tensor that was made in the function."""
    fn = IN_PLACE[name]
    if name == "out":
        return  # which autograd refuses
    found = []
    for call in (fn, jit.compile(lambda a, b: fn(a * 1, b), fullgraph=True)):
        a, b = numbers(3, 4).requires_grad_(), numbers(3, 4, seed=1).requires_grad_()
        call(a * 1 if call is fn else a, b).backward(numbers(3, 4, seed=2))
        found.append((a.grad, b.grad))
    for got, want in zip(*found):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    fn = IN_PLACE[name]
    compiled = jit.compile(fn, fullgraph=True)
    for a, b in ((numbers(3, 4), numbers(3, 4, seed=1)), (numbers(4, 3).t(), numbers(3, 4, seed=1)),
                 (numbers(3, 8)[:, ::2], numbers(4, seed=1).expand(3, 4))):
        ours = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype).copy_(a)
        theirs = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype).copy_(a)
        got, want = compiled(ours, b), fn(theirs, b)
        agree(got, want, name)
        torch.testing.assert_close(ours, theirs)
        assert (got is ours) == (want is theirs)


def test_in_place_refused():
    for fn in (lambda a: a.abs_(), lambda a: a.real.mul_(a)):
        with pytest.raises(RuntimeError):
            fn(numbers(3))
        with pytest.raises(RuntimeError):
            jit.compile(fn)(numbers(3))


def test_types():
    real = numbers(5).real.contiguous()
    one = torch.tensor(2.0, dtype=torch.float64)
    fn = lambda x, c, z: (x + 1j, x * c, x / c, x * z, c - 1)  # noqa: E731
    for x in (real, real.double(), real.bfloat16(), real.half(), real.int(), real > 0):
        for c in (numbers(5), numbers(5, dtype=torch.complex128), numbers(1)[0], numbers(1, dtype=torch.complex128)[0]):
            for z in (one, one.to(torch.complex128)):
                try:
                    want = fn(x, c, z)
                except (RuntimeError, NotImplementedError):
                    continue
                for got, w in zip(jit.compile(fn, fullgraph=True)(x, c, z), want, strict=True):
                    assert got.dtype is w.dtype
                    tolerance = 2e-3 if w.dtype in (torch.complex32, torch.float16) else 2e-2 if (
                        w.dtype is torch.bfloat16) else 1e-5
                    torch.testing.assert_close(got, w, rtol=tolerance, atol=tolerance)


def edges():
    values = [complex(a, b) for a in (0.0, -0.0, 1.0, -2.5, INF, -INF, NAN, 1e-30, 3e38, 1e25)
              for b in (0.0, -0.0, 3.0, -INF, NAN, 2e38, 1e-38)]
    z = torch.tensor(values)
    return z[:, None].expand(-1, len(values)).contiguous(), z[None].expand(len(values), -1).contiguous()


EDGES = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "div_number": lambda a, b: a / 2.0,
    "mul_number": lambda a, b: a * 2.0,
    "real": lambda a, b: (a.real * b, a * b.real, a.real + b),
    "reciprocal": lambda a, b: a.reciprocal(),
    "abs": lambda a, b: a.abs(),
    "angle": lambda a, b: a.angle(),
    "eq": lambda a, b: (a == b, a != b, a.isnan(), a.isinf(), a.isfinite()),
    "polar": lambda a, b: torch.polar(a.real, b.real.clamp(-10, 10)),
}


@pytest.mark.parametrize("name", EDGES)
def test_edge_values(name):
    """Infinities, what is no number, zeros of both signs, numbers whose squares overflow or vanish."""
    a, b = edges()
    fn = EDGES[name]
    for got, want in zip(several(jit.compile(fn, fullgraph=True)(a, b)), several(fn(a, b)), strict=True):
        if want.dtype is torch.bool:
            assert torch.equal(got, want)
            continue
        near = torch.isfinite(want) & torch.isfinite(got)
        assert ((got - want)[near].abs() <= 4e-6 * want[near].abs()).all()
        for g, w in zip(split(got), split(want), strict=True):  # of what is not finite, each part
            torch.testing.assert_close(g[~near], w[~near], rtol=4e-6, atol=0, equal_nan=True)


def test_exponentials_of_large_numbers():
    z = torch.complex(torch.tensor([100.0, 88.0, -200.0, INF, -INF, 0.0, 3.0]),
                      torch.tensor([1e-10, 1.0, 2.0, 0.0, 1.0, 0.0, 100.0]))
    got, want = jit.compile(torch.exp)(z), torch.exp(z)
    torch.testing.assert_close(torch.view_as_real(got), torch.view_as_real(want), rtol=1e-5, atol=0, equal_nan=True)


def test_gradients_at_zero_and_infinity():
    values = torch.tensor([0j, 1j, 1 + 0j, 3e20 + 1e20j, 1e-25 + 1e-25j])
    for fn, z in ((lambda a: a.abs(), values), (lambda a: a.sgn(), values), (lambda a: a.angle(), values[:3]),
                  (lambda a: a.square(), values), (lambda a: 1 / (a + 1), values)):
        grads = []
        for call in (fn, jit.compile(fn, fullgraph=True)):
            a = z.clone().requires_grad_()
            call(a).backward(torch.ones_like(fn(z)))
            grads.append(a.grad)
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_gradient_that_is_conjugated():
    """The gradient that reaches a compiled function may be a lazy conjugate."""
    fn = lambda a, b: a * b + a  # noqa: E731
    found = []
    for call in (fn, jit.compile(fn, fullgraph=True)):
        a, b = numbers(4).requires_grad_(), numbers(4, seed=1).requires_grad_()
        (call(a, b).conj() * numbers(4, seed=2)).real.sum().backward()
        found.append((a.grad, b.grad))
    for got, want in zip(*found):
        torch.testing.assert_close(got, want)


def test_gradient_of_gradient():
    fn = lambda a: (a * a.conj() * a).real.sum()  # noqa: E731
    found = []
    for call in (fn, jit.compile(fn, fullgraph=True)):
        a = numbers(4).requires_grad_()
        (g,) = torch.autograd.grad(call(a), a, create_graph=True)
        (second,) = torch.autograd.grad(g.abs().sum(), a)
        found.append((g.detach(), second))
    for got, want in zip(*found):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["chain", "div", "abs", "real_first", "casts", "where", "conj"])
def test_symbolic_sizes(name):
    fn = POINTWISE[name]
    compiled = jit.compile(fn, fullgraph=True, dynamic=True)
    for shape in ((5, 7), (6, 7), (6, 9), (12, 3)):
        a, b, x = numbers(*shape), numbers(*shape, seed=1), numbers(*shape, seed=2).real.contiguous()
        agree(compiled(a, b, x), fn(a, b, x), name)
        agree(compiled(a.t(), b.t(), x.t()), fn(a.t(), b.t(), x.t()), name)


# how it is computed


def compiled_graphs(fn, *args):
    return [compile_graph(graph) for graph in captured(fn, *args, fullgraph=True)]


ONE_KERNEL = {
    "chain": lambda a, b: a * b.conj() + a,
    "views": lambda a, b: (a * b)[1:].conj() * a[:-1] + 2j,
    "parts": lambda a, b: (a * b).real + (a - b).imag,
    "division": lambda a, b: (a / b).abs(),
    "power": lambda a, b: (a.exp() * b).abs().square().sum(-1),
    "written": lambda a, b: (a * b).mul_(b).add_(1),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    """A chain of operations is one kernel, beside which the library does no more than show memory as real or complex
    numbers."""
    (compiled,) = compiled_graphs(ONE_KERNEL[name], numbers(64, 32), numbers(64, 32, seed=1))
    assert len(compiled.kernels) == 1
    assert set(library_calls([compiled])) <= VIEWS


def test_vectors_of_neighbours_on_a_gpu():
    """On a GPU the parts are read and written as whole vectors of pairs."""
    a, b = numbers(64, 32), numbers(64, 32, seed=1)
    (compiled,) = compiled_for_gpu(lambda a, b: a * b.conj() + a, a, b)
    assert set(library_calls([compiled])) <= VIEWS
    ((_, text),) = compiled.kernels
    assert text.count("tl.split(") == 2 and text.count("tl.join(") == 1 and text.count("tl.load(") == 2


@pytest.mark.parametrize("shape", [(40, 72), (64, 64), (200, 131)])
def test_transposed_tiles(shape):
    """Operands in another order than the result, large enough to go through tiles on a CPU."""
    rows, columns = shape
    a, b, x = numbers(columns, rows), numbers(rows, columns, seed=1), numbers(rows, columns, seed=2).real.contiguous()
    for fn in (lambda a, b, x: a.t() * b + x, lambda a, b, x: b - a.t() * x, lambda a, b, x: (a.t() / b).abs()):
        agree(jit.compile(fn, fullgraph=True)(a, b, x), fn(a, b, x))


def test_gradient_inside():
    """Of a value in between, whose parts are not read from memory."""
    def fn(a, b):
        c = a * b
        total = (c * 2j + c.conj()).abs().sum()
        return torch.autograd.grad(total, c)[0]

    a, b = numbers(4).requires_grad_(), numbers(4, seed=1).requires_grad_()
    torch.testing.assert_close(jit.compile(fn, fullgraph=True)(a, b), fn(a, b))


def test_zero_gradient_of_what_was_real():
    fn = lambda x: x.to(torch.complex64).imag * 1.0  # noqa: E731
    x = torch.randn(3).requires_grad_()
    jit.compile(fn, fullgraph=True)(x).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3))


def test_spectra():
    """Fourier transforms are the library's, with kernels between them."""
    def fn(x):
        y = torch.fft.rfft(x)
        return torch.fft.irfft(y * y.conj() / (y.abs() + 1), n=64)

    found = []
    for call in (fn, jit.compile(fn, fullgraph=True)):
        x = numbers(8, 64).real.contiguous().requires_grad_()
        result = call(x)
        result.square().sum().backward()
        found.append((result.detach(), x.grad))
    for got, want in zip(*found):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_sines_beside_cosines():
    """In vectors: g++ would make one call of the two, which has no vector form."""
    x = numbers(1000).real.contiguous() * 20
    (compiled,) = compiled_graphs(lambda x: torch.polar(x, x), x)
    assert len(compiled.kernels) == 1
    agree(jit.compile(torch.polar)(x, x), torch.polar(x, x))


@pytest.mark.parametrize("fn", [lambda x: torch.fft.ifft(x).view(2, 3), lambda x: torch.fft.ifft(x).view(2, 3) + 1,
                                lambda x: torch.cat([torch.fft.ihfft(x)[None], torch.fft.ihfft(x * 2)[None]]),
                                lambda x: torch.fft.ifft(x)[::2] * 1j, lambda x: torch.fft.ifft(x)])
def test_views_of_what_a_library_gives_conjugated(fn):
    """``ifft`` of real numbers is memory that is read conjugated."""
    x = torch.randn(6)
    torch.testing.assert_close(jit.compile(fn, fullgraph=True)(x), fn(x))
