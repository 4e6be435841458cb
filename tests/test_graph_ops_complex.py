"""Complex tensors, views that read memory as another dtype, and library calls with result types of their own: compiled
against eager."""

import itertools

import pytest
import torch

import jit

torch.manual_seed(0)
C = torch.randn(3, 4, dtype=torch.complex64)
C2 = torch.randn(3, 4, dtype=torch.complex64)
X = torch.randn(3, 4)
R2 = torch.randn(3, 4, 2)
I = torch.randint(-3, 9, (3, 4))
M = torch.randn(4, 5)
WINDOW = torch.hann_window(16)


CALLS = {
    "arithmetic": (lambda a, b: (a * b + 1) * 2j, C, C2),
    "real_times_complex": (lambda x, c: x * c, X, C),
    "number": (lambda x: x + 1j, X),
    "number_half": (lambda x: x + 1j, X.half()),
    "number_bfloat16": (lambda x: x * 1j, X.bfloat16()),
    "number_int": (lambda x: x + 1j, I),
    "number_double": (lambda x: x * 1j, X.double()),
    "abs_angle": (lambda a: (a.abs(), a.angle(), torch.abs(a).sum(), a.sgn()), C),
    "conj": (lambda a: (a.conj(), a.conj().resolve_conj(), a.conj().is_conj(), a.conj() * 2, a.conj().t(),
                        a.conj_physical(), a.conj()[1:, ::2]), C),
    "hermitian": (lambda a: (a.mH, a.H, a.adjoint(), a.conj().real), C),
    "parts": (lambda a: (a.real, a.imag, torch.real(a) + torch.imag(a)), C),
    "view_as_real": (lambda a: torch.view_as_real(a), C),
    "view_as_complex": (lambda a: torch.view_as_complex(a) * 2, R2),
    "write_parts": (lambda a: (a.real.mul_(2), a.imag.add_(1), a + 0)[2], C),
    "write_view_as_real": (lambda a: (torch.view_as_real(a)[..., 0].zero_(), a * 1)[1], C),
    "write_view_as_complex": (lambda a: (torch.view_as_complex(a).mul_(1j), a + 0)[1], R2),
    "write_view_of_local": (lambda a: (lambda b: (torch.view_as_complex(b).mul_(1j), b))(a + 1)[1], R2),
    "write_conj": (lambda a: (a.conj().mul_(1j), a)[1], C),
    "view_dtype": (lambda a: (a.view(torch.int32), a.view(torch.int32) + 1, a.view(torch.int16)), X),
    "view_dtype_wider": (lambda a: a.view(torch.int64).view(torch.float64), X),
    "write_view_dtype": (lambda a: (a.view(torch.int32).bitwise_and_(0x7FFFFFFF), a + 0)[1], X),
    "write_view_dtype_narrower": (lambda a: (a.view(torch.int16)[:, ::2].zero_(), a + 0)[1], X),
    "reductions": (lambda a: (a.sum(), a.mean(0), a.prod(1), a.cumsum(0), a.var()), C),
    "joins": (lambda a, x: (torch.cat([a, x]), torch.stack([a, a])), C, X),
    "indexing": (lambda a, i: (a[1], a[:, 1:3], a[i], a.flip(0), a.T.contiguous()), C, torch.tensor([0, 2])),
    "setitem": (lambda a: (a.__setitem__((slice(None), 1), 3 + 1j), a)[1], C),
    "matmul": (lambda a, b: (a @ b.t(), torch.mm(a, b.mH), torch.einsum("ij,kj->ik", a, b)), C, C2),
    "fft": (lambda x: (torch.fft.fft(x), torch.fft.rfft(x).abs(), torch.fft.ifft(torch.fft.fft(x)).real), X),
    "casts": (lambda x: (x.cfloat(), x.to(torch.complex128), x.cdouble(), torch.complex(x, x).to(torch.complex128)), X),
    "comparisons": (lambda a, b: (a == b, a != b, torch.isclose(a, b), a.isnan(), torch.isfinite(a), torch.isreal(a)),
                    C, C2),
    "functions": (lambda a: (a.sqrt(), a.exp(), a.log(), a.sin(), a**2, a.reciprocal(), 1 / a, 2 - a, 2**a, a.sigmoid(),
                             a.tanh(), -a), C),
    "where": (lambda a, b: torch.where(a.real > 0, a, b), C, C2),
    "creation": (lambda x: (torch.zeros(3, dtype=torch.complex64), torch.ones_like(x, dtype=torch.complex64),
                            torch.full((2,), 1 + 2j), torch.tensor([1j, 2.0])), X),
    "norm": (lambda c: (c.norm(), torch.linalg.vector_norm(c, dim=1)), C),
    "in_place": (lambda c: (c.mul_(2), c.add_(1j), c)[2], C),
    "in_place_refused": (lambda x, c: x.mul_(c), X, C),
    "order_refused": (lambda a, b: a < b, C, C2),
    "softmax_refused": (lambda a: a.softmax(0), C),
    "conj_view_refused": (lambda a: torch.view_as_real(a.conj()), C),
    "pad_tri": (lambda c: (torch.nn.functional.pad(c, (1, 2)), c.tril(), c.diagonal(), torch.diag_embed(c)), C),
    # memory seen with other strides
    "as_strided_write": (lambda x: (x.as_strided((2, 2), (1, 5)).add_(1), x + 0)[1], M),
    "as_strided_offsets": (lambda x: (x[1:].as_strided((2, 2), (1, 5)), x.as_strided((2, 2), (5, 1), 3),
                                      x[1:].as_strided((2,), (1,), 2) + 1), M),
    "overlapping_unfold_of_view": (lambda x: x[1:].unfold(0, 2, 1) * 2, M),
    # result types that meta tensors do not tell
    "istft": (lambda c: torch.istft(c, 16, window=WINDOW, length=40),
              torch.stft(torch.randn(2, 64), 16, return_complex=True, window=WINDOW)),
    "histogramdd": (lambda x: (torch.histogramdd(x, [2, 3]).hist, torch.histogramdd(x, 4).bin_edges), torch.rand(9, 2)),
    "batch_norm_training": (lambda x, m, v: torch.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5),
                            torch.randn(5, 3), torch.zeros(3), torch.ones(3)),
    "batch_norm_inference": (lambda x, m, v: torch.native_batch_norm(x, None, None, m, v, False, 0.1, 1e-5),
                             torch.randn(5, 3), torch.zeros(3), torch.ones(3)),
    "segment_reduce": (lambda x, n: torch.segment_reduce(x, "sum", lengths=n, axis=0), torch.randn(6),
                       torch.tensor([2, 3, 1])),
    "resize_to_same": (lambda x, y: (x.resize_as_(y), x.resize_(4, 5)), M, M + 1),
    "named_like_generic_arguments": (lambda x, y: (torch.trapezoid(y, x=x), torch.cdist(x1=x, x2=y)), M, M + 1),
    "svd_lowrank": (lambda x: torch.svd_lowrank(x, 2)[1], M),
}


def flat(v):
    if isinstance(v, (tuple, list)):
        for e in v:
            yield from flat(e)
    else:
        yield v


def outcome(fn, args):
    torch.manual_seed(1)
    try:
        return list(flat(fn(*args)))
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return [type(error).__name__]


@pytest.mark.parametrize("backend", ["eager", None])
@pytest.mark.parametrize("name", CALLS)
def test_call(name, backend):
    fn, *inputs = CALLS[name]
    fullgraph = not name.endswith("_refused")
    compiled = jit.compile(fn, fullgraph=fullgraph, backend=backend)
    want_in, got_in = [x.clone() for x in inputs], [x.clone() for x in inputs]
    want, got = outcome(fn, want_in) + want_in, outcome(compiled, got_in) + got_in
    assert len(want) == len(got)
    for w, g in zip(want, got, strict=True):
        assert type(w) is type(g)
        if isinstance(w, torch.Tensor):
            assert (w.dtype, w.shape, w.is_conj()) == (g.dtype, g.shape, g.is_conj())
            assert w.numel() < 2 or w.stride() == g.stride()
            torch.testing.assert_close(g.resolve_conj(), w.resolve_conj(), equal_nan=True)
        else:
            assert w == g
    tensors = [(w, g) for w, g in zip(want, got) if isinstance(w, torch.Tensor) and w.numel()]
    for (w, g), (w2, g2) in itertools.combinations(tensors, 2):
        assert shares(w, w2) == shares(g, g2)


def shares(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_symbolic_sizes_that_are_negative_now():
    f = lambda x, n, m: x.reshape(n, m, 5)  # noqa: E731
    compiled = jit.compile(f, fullgraph=True)
    x = torch.arange(125.0)
    for n, m in ((25, 1), (5, 5), (5, -1), (-1, 5), (1, -1)):
        assert torch.equal(compiled(x, n, m), f(x, n, m))
    g = lambda y, k: y.expand(3, k)  # noqa: E731
    compiled = jit.compile(g, fullgraph=True)
    for y, k in ((torch.ones(1, 1), 4), (torch.ones(3, 1), 5), (torch.ones(3, 4), -1)):
        assert torch.equal(compiled(y, k), g(y, k))


def test_functions_of_torch_that_want_plain_sizes():
    f = lambda x, n: torch.nn.functional.interpolate(x, size=(n, n), mode="nearest")  # noqa: E731
    compiled = jit.compile(f, fullgraph=True)
    for n in (3, 5, 7):
        assert torch.equal(compiled(R2[None].float(), n), f(R2[None].float(), n))
    image = R2[None]
    # Calls a function that was rebound before
    up = jit.compile(lambda x: torch.nn.functional.upsample(x, scale_factor=2), fullgraph=True)
    assert torch.equal(up(image), torch.nn.functional.upsample(image, scale_factor=2))
