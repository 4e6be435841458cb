"""NumPy arrays inside compiled functions, against eager: tensors of arrays, functions, methods and operators of arrays,
writes to their memory, and what is left to NumPy."""

import numpy as np
import pytest
import torch
from numpy_harness import check, same

import jit

RNG = np.random.default_rng(0)


def floats(*shape, dtype="float64"):
    return RNG.standard_normal(shape).astype(dtype)


A, B, M, V = floats(3, 4), floats(3, 4), floats(3, 3), floats(5)
F = floats(3, 4, dtype="float32")
I = RNG.integers(-5, 9, (3, 4))  # noqa: E741
T = torch.arange(12.0).reshape(3, 4)
GLOBAL = floats(3, 4)


class Holder:
    def __init__(self):
        self.a = floats(3, 4)


HOLDER = Holder()


def closure():
    inner = floats(3, 4)
    return lambda x: x + torch.from_numpy(inner)


TENSORS = {
    "from_numpy": (lambda a: torch.from_numpy(a) * 2, A),
    "from_numpy itself": (lambda a: torch.from_numpy(a), A),
    "twice": (lambda a: (torch.from_numpy(a), torch.from_numpy(a)), A),
    "as_tensor": (lambda a: torch.as_tensor(a) + 1, A),
    "as_tensor dtype": (lambda a: torch.as_tensor(a, dtype=torch.float32) + 1, A),
    "as_tensor device": (lambda a: torch.as_tensor(a, device="cpu"), A),
    "tensor": (lambda a: torch.tensor(a), A),
    "tensor transposed": (lambda a: torch.tensor(a.T), A),
    "tensor dtype": (lambda a: torch.tensor(a, dtype=torch.float32) @ torch.ones(4), A),
    "asarray": (lambda a: torch.asarray(a) * 3, A),
    "global": (lambda x: x + torch.from_numpy(GLOBAL), T),
    "attribute": (lambda x: x + torch.from_numpy(HOLDER.a), T),
    "closure": (closure(), T),
    "in a dict": (lambda d: torch.from_numpy(d["obs"]).float().mean(), {"obs": A}),
    "in a list": (lambda d: torch.stack([torch.as_tensor(a) for a in d]), [A, B]),
    "0-d": (lambda a: torch.from_numpy(a) + 1, np.array(2.0)),
    "empty": (lambda a: torch.from_numpy(a).sum(), np.zeros((0, 3))),
    "strided": (lambda a: torch.from_numpy(a) * 2, A[:, ::2]),
    "write to the tensor": (lambda a: torch.from_numpy(a).mul_(2).sum(), A),
    "numpy()": (lambda x: x.numpy(), T),
    "numpy() of a result": (lambda x: (x * 2).numpy(), T),
    "detach().cpu().numpy()": (lambda x: (x * 2).detach().cpu().numpy(), T),
    "np.asarray of a tensor": (lambda x: np.asarray(x) + 1, T),
    "np.array of a tensor": (lambda x: np.array(x), T),
    "there and back": (lambda x: torch.from_numpy(np.sin(x.numpy())) * 2, T),
    "write to a tensor's array": (lambda x: x.numpy().__setitem__(0, 5.0), T),
    "tensor and its array": (lambda x: (x, x.numpy(), x.numpy()[1]), T),
    "both of a result": (lambda x: (y := x + 1, y.numpy()), T),
    "scalar times tensor": (lambda x, a: x * a.sum(), T, A),
    "tensor minus float32 scalar": (lambda x, a: (x - a.max(), a.max() < x), T, F),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_arrays(name):
    check(*TENSORS[name])


ARRAYS = {
    "operators": (lambda a, b: (a + b, a - 1, 2 * a, a / b, a // 0.5, a % 0.7, -a, +a, abs(a), a ** 2, a @ b.T), A, B),
    "integers": (lambda i: (i + 1, i * i, i // 2, i % 3, i / 2, -i, i & 3, i | 8, i ^ 1, ~i, i << 1, i >> 1,
                              i ** 2), I),
    "by zero": (lambda i: (i // (i - i), i % (i - i), (i * 1.0) / (i - i)), I),
    "divmod": (lambda i: divmod(i, 4), I),
    "small integers": (lambda i: (i + 1, i * 100, i / 2, i + 1.5, np.sqrt(i), i.sum(), i.mean(), np.cumsum(i)),
                       I.astype("int8")),
    "promotion": (lambda f, a, i: (f + 1, f + 1.5, f * a, f + i, f + np.float64(1), f + np.float32(1), i + np.int8(1),
                                   f * np.array(2.0), i.astype("int16") + f.astype("float16")), F, A, I),
    "comparisons": (lambda a, b: (a < b, a <= 0, a == b, a != b, 1 > a, (a > 0) & (b > 0), ~(a > 0)), A, B),
    "bools": (lambda a: ((a > 0) + (a > 1), (a > 0) * 2, (a > 0).sum(), (a > 0).mean(), (a > 0).any(0)), A),
    "scalars": (lambda a: (a.sum(), a[0, 0], a.sum() + 1, a.max() / a.min(), -a.mean(), abs(a.min()), a.sum() * a), A),
    "scalar types": (lambda f: (f.sum(), f.sum() + 1, f.sum() * 1.5, f.sum() * np.float64(2), f[0][1], f.mean()), F),
    "functions": (lambda a: (np.sin(a), np.exp(a), np.sqrt(np.abs(a)), np.log1p(a * a), np.tanh(a), np.floor(a),
                             np.rint(a), np.sign(a), np.square(a), np.isfinite(a), np.cbrt(a), np.arctan2(a, 2)), A),
    "of integers": (lambda i: (np.sin(i), np.exp2(i), np.maximum(i, 2), np.abs(i), np.sign(i), np.gcd(i, 6)), I),
    "two operands": (lambda a, b: (np.maximum(a, b), np.fmin(a, 0), np.hypot(a, b), np.power(np.abs(a), b),
                                   np.logaddexp(a, b), np.copysign(a, b), np.heaviside(a, 0.5)), A, B),
    "two results": (lambda a: (np.modf(a), np.divmod(a, 0.3), np.frexp(a)), A),
    "dtype=": (lambda a, i: (np.add(a, 1, dtype="float32", casting="same_kind"), np.sum(i, dtype="float32"),
                             np.mean(i, dtype=np.float32), np.multiply(i, i, dtype=float)), F, I),
    "reductions": (lambda a: (a.sum(0), a.sum(axis=(0, 1)), a.sum(1, keepdims=True), a.prod(), a.mean(-1), a.var(),
                              a.std(0, ddof=1), a.max(0), a.min(axis=1), a.argmax(), a.argmin(1), a.any(), a.all(1),
                              np.ptp(a), np.median(a, 0), np.average(a, axis=1)), A),
    "reductions with where": (lambda a: (np.sum(a, where=a > 0), np.sum(a, 0, initial=5.0), np.max(a, initial=9.0),
                                         np.any(a, where=a > 1)), A),
    "reduce": (lambda a: (np.add.reduce(a), np.maximum.reduce(a, axis=1), np.multiply.reduce(a, axis=None),
                          np.add.accumulate(a, 1), np.subtract.outer(a[0], a[1])), A),
    "cumulative": (lambda a: (np.cumsum(a), a.cumsum(0), np.cumprod(a, 1), np.diff(a), np.diff(a, axis=0, n=2)), A),
    "shapes": (lambda a: (a.reshape(4, 3), a.reshape(-1), a.ravel(), a.flatten(), a.T, a.transpose(1, 0),
                          np.expand_dims(a, 1), a[None].squeeze(), a.swapaxes(0, 1), np.moveaxis(a[None], 0, -1)), A),
    "order": (lambda a: (a.reshape((4, 3), order="F"), np.ravel(a, order="F"), a.T + 1, a.T.copy(), np.copy(a.T),
                         a.T.astype("float32"), np.sin(a.T), a.T.flatten(), a.T.sum(0)), A),
    "attributes": (lambda a: (a.shape, a.ndim, a.size, a.dtype, a.itemsize, a.nbytes, a.strides, len(a),
                              a.dtype == np.float64, a.dtype.kind), A),
    "isinstance": (lambda a: (isinstance(a, np.ndarray), type(a), isinstance(a.sum(), np.floating),
                              isinstance(a.sum(), float), np.ndim(a), np.shape(a), np.isscalar(a.sum())), A),
    "joining": (lambda a, b: (np.concatenate([a, b]), np.concatenate((a, b), axis=1), np.stack([a, b], -1),
                              np.vstack([a, b]), np.hstack([a, b]), np.concatenate([a, b], axis=None),
                              np.concatenate([a, b.astype("float32")]), np.dstack([a, b]), np.column_stack([a, b]),
                              np.tile(a, 2), np.repeat(a, 2, axis=0), np.roll(a, 1, 1)), A, B),
    "splitting": (lambda a: (np.split(a, 2, axis=1), np.array_split(a, 2), np.atleast_3d(a)), A),
    "indexing": (lambda a: (a[0], a[:, 1], a[1:, ::2], a[..., None], a[-1, -1], a[[0, 2]], a[np.array([0, 1]), [2, 3]],
                            a[1:2, 0], a[0][1]), A),
    "index arrays": (lambda a, i: (a[i], np.take(a, i, 1), np.take_along_axis(a, i[None], 0)), A,
                     np.array([0, 2, 1, 1])),
    "where": (lambda a, b: (np.where(a > 0, a, b), np.where(a > 0, a, 0), np.where(a > 0, 1, 2), np.clip(a, -1, 1),
                            a.clip(0), np.clip(a, None, b)), A, B),
    "creation": (lambda a: (np.zeros(3), np.ones((2, 3), dtype="int32"), np.full((2,), 7), np.arange(5),
                            np.arange(0, 1, .25),
                            np.eye(3), np.zeros_like(a), np.ones_like(a, dtype=bool), np.full_like(a, 2), a * 1), A),
    "more creation": (lambda a: (np.linspace(0, 1, 5) + a[0, 0], np.array([1, 2, 3]) * 2, np.array([a[0], a[1]]),
                                 np.array([a[0, 0], 2.0]), np.asarray(a), np.array(a), np.ascontiguousarray(a),
                                 np.array(a, dtype="float32"), np.identity(2), np.tri(3) * a[0, 0]), A),
    "casts": (lambda a, i: (a.astype("float32"), a.astype(int), i.astype(float), i.astype(bool), np.float32(a),
                            a.astype(np.float64), a.sum().astype("float32"), np.float64(i[0, 0])), A, I),
    "products": (lambda a, m, v: (np.dot(a, a.T), a.dot(a[0]), np.inner(v, v), np.outer(v, v), np.matmul(m, m),
                                  m @ m[0],
                                  np.tensordot(a, a, 2), np.einsum("ij,kj->ik", a, a), np.einsum("ii", m),
                                  np.kron(m, m),
                                  np.vdot(v, v), np.trace(m), np.cross(m, m[0])), A, M, V),
    "linear algebra": (lambda m: (np.linalg.inv(m), np.linalg.det(m), np.linalg.solve(m, m[0]), np.linalg.norm(m),
                                  np.linalg.norm(m, axis=1), np.linalg.norm(m, ord=1), np.linalg.matrix_power(m, 3),
                                  np.linalg.cholesky(m @ m.T + np.eye(3))), M),
    "fourier": (lambda v: (np.fft.fft(v), np.fft.rfft(v), np.fft.ifft(np.fft.fft(v)).real, np.abs(np.fft.fft(v))), V),
    "sorting": (lambda a: (np.sort(a), np.sort(a, axis=None), np.sort(a, 0), np.searchsorted(np.sort(a[0]), a[1])), A),
    "triangles": (lambda m: (np.tril(m), np.triu(m, 1), np.diag(m), np.diag(m[0]), np.diagonal(m)), M),
    "padding": (lambda a: (np.pad(a, 1), np.pad(a, ((0, 1), (2, 0)), mode="edge"), np.pad(a[0], 2, mode="reflect")), A),
    "NaN": (lambda a: (np.nansum(a), np.nanmean(a, 0), np.isnan(a), np.nan_to_num(a), np.maximum(a, 0), np.nanmax(a)),
            np.where(A > 1, np.nan, A)),
    "complex": (lambda a: (a.real, a.imag, np.abs(a), a.conj(), a * 2, a.sum(), a.mean(), a.var(), np.exp(a)),
                A + 1j * B),
    "statistics": (lambda a: (np.cov(a), np.corrcoef(a), np.gradient(a[0]), np.trapezoid(a)), A),
    "grids": (lambda v: (np.meshgrid(v, v[:2]), np.broadcast_to(v, (2, 5))), V),
    "interpolation": (lambda v: (np.interp(v, np.array([-1.0, 0.0, 1.0]), np.array([0.0, 2.0, 1.0])),
                                 np.polyval([1, 2], v)),
                      V),
    "errstate": (lambda a: _without_warnings(a), A),
    "loop": (lambda a: [row * 2 for row in a], A),
    "softmax": (lambda a: (e := np.exp(a - a.max(-1, keepdims=True))) / e.sum(-1, keepdims=True), F),
    "distances": (lambda a, b: np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)), A, B),
}


def _without_warnings(a):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(a) / 0.0


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name):
    check(*ARRAYS[name])


def in_place(a):
    a += 1
    a[0] *= 2
    a[:, 1] = a[:, 0]
    a[a > 1] = 0
    a[1, 2] = 7
    return a


def through_views(a):
    row, column = a[0], a[:, 1]
    row += 10
    column[...] = 3
    return a.sum(), row, column


def outs(a):
    out = np.empty_like(a)
    np.add(a, 1, out=out)
    np.sin(out, out)
    np.multiply(a, 2, out=a)
    return out, np.sum(a, axis=0, out=np.zeros(4)), np.add(a, 1, out=out, where=a > 0) is out


def methods(a):
    a.sort()
    b = a.copy()
    b.fill(2)
    np.copyto(a, b, where=a > 0)
    return b


def integers(i):
    i += 1
    i //= 2
    i[0] = 2.7
    i[1] = [1, 2, 3, 4]
    return i


WRITES = {
    "in place": (in_place, A), "views": (through_views, A), "out=": (outs, A), "methods": (methods, A),
    "integers": (integers, I), "strided": (in_place, np.asfortranarray(A)), "part": (in_place, floats(6, 8)[::2, ::2]),
    "tensor": (lambda x: in_place(x.numpy()), T), "both": (lambda x: (in_place(x.numpy()), x + 1), T),
    "array of a result": (lambda x: in_place((x * 2).numpy()), T),
    "tensor of it": (lambda a: (t := torch.from_numpy(a), in_place(a), t.sum())[1:], A),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name):
    check(*WRITES[name])


BREAKS = {
    "negative steps": (lambda a: torch.as_tensor(a[::-1].copy()) + 1, A, None),
    "strings": (lambda a: a == "x", np.array(["x", "y"]), None),
    "objects": (lambda a: a + 1, np.array([1, None and 2, 3], dtype=object)[[0, 2]], None),
    "other byte order": (lambda a: a + 1, A.astype(">f8"), None),
    "other byte order to a tensor": (lambda a: torch.from_numpy(a), A.astype(">f8"), None),
    "read-only": (lambda a: a + 1, np.broadcast_to(V, (2, 5)), None),
    "reversed to a tensor": (lambda a: torch.from_numpy(a), A[::-1], None),
    "structured": (lambda a: a["x"] + 1, np.zeros(3, dtype=[("x", "f4"), ("y", "i4")]), None),
    "masked array": (lambda a: (a + 1).sum(), np.ma.masked_array([1.0, 2.0], [0, 1]), None),
    "uint16": (lambda a: a + 1, np.arange(3, dtype="uint16"), None),
    "mask": (lambda a: a[a > 0].sum(), A, None),
    "unique": (lambda i: np.unique(i), I, None),
    "branch": (lambda a: a + 1 if a.sum() > 0 else a - 1, A, None),
    "bad shapes": (lambda a, v: a + v, A, V, None),
    "bad cast": (lambda i: np.add(i, 0.5, out=i), I, None),
    "negative power": (lambda i: i ** -1, I, None),
    "negative powers": (lambda i: 2 ** i, I, None),
    "index out of range": (lambda a, i: a[i], A, np.array([0, 7]), None),
    "singular": (lambda m: np.linalg.inv(m * 0), M, None),
    "array and tensor": (lambda a, x: torch.from_numpy(a) + x * a, A, T, None),
    "needs grad": (lambda x: (x * 2).numpy(), torch.ones(3, requires_grad=True), None),
    "argsort": (lambda a: np.argsort(a), A, None),
    "random": (lambda a: np.random.default_rng(0).normal(size=3) + a[0, :3], A, None),
    "truth of several": (lambda a: bool(a > 0), A, None),
    "to a read-only view": (lambda v: np.broadcast_to(v, (2, 5)).__setitem__(0, 1), V, None),
    "percentile": (lambda a: np.percentile(a, 30), A, None),
    "svd": (lambda m: np.linalg.svd(m)[1], M, None),
    "histogram": (lambda a: np.histogram(a, 3)[0], A, None),
    "flags": (lambda a: a.flags.c_contiguous, A, None),
    "matrix": (lambda a: a * a, np.matrix(np.eye(2)), None),
    "longdouble": (lambda a: a * 2, np.arange(3, dtype=np.longdouble), None),
    "datetimes": (lambda a: a - a[0], np.arange(3).astype("datetime64[D]"), None),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_left_to_numpy(name):
    fn, *arguments, breaks = BREAKS[name]
    check(fn, *arguments, breaks=breaks)


def test_guards():
    """What is relied on of an array, and what is not."""
    compiled = jit.compile(lambda a: torch.from_numpy(a) * 2 + a.ndim, fullgraph=True)
    wide = floats(8, 8)
    for a in (A, A.astype("float32"), A.T, wide[::2], I, V, np.array(1.0), wide[:3, :4], np.zeros((0, 4))):
        same(torch.from_numpy(a) * 2 + a.ndim, compiled(a))
    with pytest.raises(TypeError):
        compiled([1.0])


def test_wanted_errors():
    compiled = jit.compile(lambda a: np.log(a - a) + 1)
    compiled(A)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        compiled(A)
    with np.errstate(divide="ignore"):
        same(np.full_like(A, -np.inf), compiled(A))

    def inside(a):
        with np.errstate(all="raise"):
            return np.log(a - a)

    with pytest.raises(FloatingPointError):
        jit.compile(inside)(A)


def test_few_compiles_over_lengths():
    compiled = jit.compile(lambda a: (np.tanh(a) * 2 + a.sum() / a.size).mean(), fullgraph=True)
    seen = []
    for n in range(2, 14):
        a = floats(n)
        np.testing.assert_allclose(compiled(a), (np.tanh(a) * 2 + a.sum() / a.size).mean())
        seen.append(n)
    assert len(compiled.entries) <= 3


def test_contents_are_read_at_each_call():
    a = floats(3)
    compiled = jit.compile(lambda x: x + torch.from_numpy(a))
    for k in range(3):
        a[:] = k
        same(torch.full((3,), 1.0 + k, dtype=torch.float64), compiled(torch.ones(3)))


def test_arrays_are_not_kept_alive():
    import gc
    import weakref

    a = floats(3)
    compiled = jit.compile(lambda a: a * 2)
    compiled(a)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


def test_arrays_that_share_memory():
    def program(a, b):
        a += 1
        return b * 2

    compiled = jit.compile(program)
    for _ in range(2):
        left, right = floats(4), floats(4)
        same(right * 2, compiled(left, right))
        memory = floats(6)
        twin = memory.copy()
        same(program(twin[:4], twin[2:]), compiled(memory[:4], memory[2:]))
        same(twin, memory)


@pytest.mark.parametrize("make", [
    lambda x: x[1:].numpy(), lambda x: np.tanh(x[1:].numpy()), lambda x: x.numpy()[1:], lambda x: x[1:].numpy().T + 1,
    lambda x: x[:, :0].numpy()])
def test_empty_arrays_have_numpys_strides(make):
    def fn(x):
        return torch.from_numpy(make(x)), make(x).strides

    for x in (torch.ones(1, 3), torch.arange(6.0).view(3, 2).t()[1:]):
        (a, want), (b, got) = fn(x), jit.compile(fn)(x)
        assert a.stride() == b.stride() and a.shape == b.shape and want == got
