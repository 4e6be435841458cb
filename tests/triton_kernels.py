"""A zoo of loop kernels for the tests of the GPU emitter: every kind of loop, by name, at a given dtype and size.

``CASES[name](dtype, scale)`` gives a ``Case``. ``scale`` 1 is for the interpreter (a few programs), larger ones for a
device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from jit.codegen import loops, reference
from jit.graph import dims
from jit.graph.prims import info

CASES = {}
F32, I64, BOOL = torch.float32, torch.int64, torch.bool


@dataclass
class Case:
    """A kernel with the length of each buffer, the values of its sizes, and inputs that may not be random."""

    kernel: loops.Kernel
    lengths: dict
    sizes: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)
    half_tolerance: float = 1.0

    def buffers(self, seed: int = 0) -> dict:
        """Fresh CPU tensors for all buffers; outputs hold a poison that no kernel computes."""
        g = torch.Generator().manual_seed(seed)
        out = {}
        for b in self.kernel.buffers:
            n = self.lengths[b.name]
            if b.name in self.inputs:
                t = self.inputs[b.name].to(b.dtype).clone()
                assert t.numel() == n
            elif b.role == "error":
                t = torch.zeros(n, dtype=b.dtype)
            elif b.role == "out":
                t = torch.full((n,), 77, dtype=torch.float64).to(b.dtype)
            elif b.dtype is BOOL:
                t = torch.rand(n, generator=g) < 0.3
            elif b.dtype.is_floating_point:
                t = torch.randn(n, generator=g, dtype=torch.float64).to(b.dtype)
            else:
                t = torch.randint(-20, 20, (n,), generator=g).to(b.dtype)
            out[b.name] = t
        return out

    def expected(self, buffers: dict) -> dict:
        """What the reference interpreter makes of copies of these buffers."""
        copies = {n: t.clone() for n, t in buffers.items()}
        reference.evaluate(self.kernel, copies, self.sizes)
        return copies

    def grid(self, source) -> int:
        return dims.evaluate(source.grid, self.sizes)


def case(fn):
    CASES[fn.__name__] = fn
    return fn


class B(loops.KernelBuilder):
    """A builder with float32 arithmetic on any float buffer."""

    def __init__(self):
        super().__init__("cuda")

    def wide(self, buffer, index, **kwargs):
        """A load in the type of arithmetic."""
        v = self.load(buffer, index, **kwargs)
        return self.cast(v, F32) if self.dtype[v] in loops.HALF else v

    def do(self, op, *args, dtype=None):
        if dtype is None:
            dtype = info(op).result or self.dtype[args[1] if op == "where" else args[0]]
        return self.compute(op, *args, dtype=dtype)

    def put(self, buffer, index, value, mask=None):
        dtype = next(k.dtype for k in self.buffers if k.name == buffer)
        self.store(buffer, index, self.cast(value, dtype), mask)

    def number(self, x, like):
        return self.const(x, self.dtype[like])

    def case(self, lengths, **kwargs):
        kernel = loops.verify(self.finish("k"))
        return Case(kernel, {b.name: n for b, n in zip(kernel.buffers, lengths)}, **kwargs)


@case
def bias_gelu(dt, s):
    n, m = 3 * s, 40 * s
    b = B()
    i, j = b.axis(n), b.axis(m)
    x, w, y = b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    v = b.do("add", b.wide(x, i * m + j), b.wide(w, j))
    e = b.do("erf", b.do("mul", v, b.number(0.7071067811865476, v)))
    b.put(y, i * m + j, b.do("mul", b.do("mul", v, b.number(0.5, v)), b.do("add", e, b.number(1.0, v))))
    return b.case((n * m, m, n * m))


@case
def swiglu(dt, s):
    n = 256 * s
    b = B()
    i = b.axis(n)
    x, w, y = b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    v = b.wide(x, i)
    b.put(y, i, b.do("mul", b.do("mul", v, b.do("sigmoid", v)), b.wide(w, i)))
    return b.case((n, n, n))


@case
def multiply_add(dt, s):
    n = 200 * s
    b = B()
    i = b.axis(n)
    x, w, y = b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    v = b.wide(x, i)
    b.put(y, i, b.do("fma", v, b.number(0.75, v), b.do("fma", v, b.wide(w, i), v)))
    return b.case((n, n, n))


@case
def scalar_kernel(dt, s):
    b = B()
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, 0, b.do("neg", b.wide(x, 0)))
    return b.case((1, 1))


@case
def strided_read(dt, s):
    n, m = 5, 33 * s
    b = B()
    i, j = b.axis(n), b.axis(m)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i * m + j, b.wide(x, i * (2 * m + 3) + j * 2 + 1))
    return b.case((n * (2 * m + 3), n * m))


def _side_by_side(dt, s, columns, count, first=0, dtype=None):
    """Rows of ``count`` outputs that lie interleaved, of inputs that do so too: each is the sum of its neighbour and of
    a row that all share. ``first``: where the inputs begin in their memory."""
    n, m = 3, columns
    b = B()
    i, j = b.axis(n), b.axis(m)
    x, w, y = b.buffer(dtype or dt), b.buffer(dt), b.buffer(dtype or dt, "out")
    row = i * (count * m + 5) + first
    values = [b.wide(x, row + j * count + k) for k in range(count)]
    shared = None if dtype else b.wide(w, j)
    for k in range(count):
        value = values[(k + 1) % count]
        b.put(y, (i * m + j) * count + k, value if dtype else b.do("add", value, shared))
    return b.case((n * (count * m + 5) + first, m, n * m * count))


@case
def pairs_in_rows(dt, s):
    return _side_by_side(dt, s, 200 * s, 2)


@case
def pairs_in_long_rows(dt, s):
    return _side_by_side(dt, s, 4100, 2)


@case
def pairs_that_begin_anywhere(dt, s):
    return _side_by_side(dt, s, 77 * s, 2, 3)


@case
def pairs_of_bools(dt, s):
    return _side_by_side(dt, s, 100 * s, 2, dtype=BOOL)


@case
def fours_in_rows(dt, s):
    return _side_by_side(dt, s, 50 * s, 4)


@case
def eights_in_rows(dt, s):
    return _side_by_side(dt, s, 33 * s, 8)


@case
def number_beside_row_values(dt, s):
    """Interleaved stores of what varies along one dimension, or none, of a block."""
    n, m = 5, 16 * s
    b = B()
    i, j = b.axis(n), b.axis(m)
    x, w, y = b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    values = [b.wide(x, i), b.wide(w, j), b.const(2.0, F32), b.do("mul", b.wide(x, i), b.wide(w, j))]
    for k, value in enumerate(values):
        b.put(y, (i * m + j) * 4 + k, value)
    return b.case((n, m, n * m * 4))


@case
def pixels_to_channels(dt, s):
    c, h, w = 2, 5, 6 * s
    b = B()
    n, i, j, y, x = b.axis(c), b.axis(2), b.axis(2), b.axis(h), b.axis(w)
    source, target = b.buffer(dt), b.buffer(dt, "out")
    b.put(target, (((n * 2 + i) * 2 + j) * h + y) * w + x, b.wide(source, (n * 2 * h + 2 * y + i) * 2 * w + 2 * x + j))
    return b.case((c * 4 * h * w, c * 4 * h * w))


@case
def channels_to_pixels(dt, s):
    c, h, w = 2, 5, 6 * s
    b = B()
    n, y, i, x, j = b.axis(c), b.axis(h), b.axis(2), b.axis(w), b.axis(2)
    source, target = b.buffer(dt), b.buffer(dt, "out")
    b.put(target, (n * 2 * h + 2 * y + i) * 2 * w + 2 * x + j, b.wide(source, (((n * 2 + i) * 2 + j) * h + y) * w + x))
    return b.case((c * 4 * h * w, c * 4 * h * w))


@case
def each_four_times(dt, s):
    n, m = 3, 40 * s
    b = B()
    i, j = b.axis(n), b.axis(4 * m)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i * 4 * m + j, b.wide(x, i * m + j // 4))
    return b.case((n * m, n * m * 4))


@case
def transpose_add(dt, s):
    n, m = 20 * s, 35 * s
    b = B()
    i, j = b.axis(n), b.axis(m)
    x, w, y = b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i * m + j, b.do("add", b.wide(x, j * n + i), b.wide(w, i * m + j)))
    return b.case((n * m,) * 3)


@case
def permute_3d(dt, s):
    a, n, m = 3, 9 * s, 17 * s
    b = B()
    k, i, j = b.axis(a), b.axis(n), b.axis(m)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, (k * n + i) * m + j, b.wide(x, (j * n + i) * a + k))
    return b.case((a * n * m,) * 2)


@case
def rope(dt, s):
    n, t, d = 2 * s, 4, 16
    h = d // 2
    b = B()
    i, k, j = b.axis(n), b.axis(t), b.axis(d)
    q, c, z, y = b.buffer(dt), b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    at = (i * t + k) * d
    jv = b.index(j)
    low = b.do("lt", jv, b.const(h, I64))
    high = b.do("ge", jv, b.const(h, I64))
    left = b.do("neg", b.wide(q, at + j + h, mask=low))
    right = b.wide(q, at + j - h, mask=high)
    rotated = b.do("where", low, left, right)
    o = b.do("add", b.do("mul", b.wide(q, at + j), b.wide(c, k * d + j)), b.do("mul", rotated, b.wide(z, k * d + j)))
    b.put(y, at + j, o)
    return b.case((n * t * d, t * d, t * d, n * t * d))


def _turned(dt, rows, columns, more=0):
    b = B()
    i, j = b.axis(rows), b.axis(columns)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    v = b.wide(x, i * (columns + more) + columns + more - 1 - j)
    b.put(y, i * columns + j, b.do("add", v, b.wide(x, i * (columns + more) + j)))
    return b.case((rows * (columns + more), rows * columns))


@case
def turned_rows(dt, s):
    return _turned(dt, 7, 40 * s)


@case
def turned_rows_of_a_part(dt, s):
    return _turned(dt, 5, 4104, 3)


@case
def turned_in_one_row(dt, s):
    b = B()
    i = b.axis(1000 * s)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i, b.do("neg", b.wide(x, 1000 * s - 1 - i)))
    return b.case((1000 * s,) * 2)


@case
def counts_of_places(dt, s):
    """Two are added for each index, one of which is out of range."""
    n, places = 5 * s, 300
    b = B()
    i, j = b.axis(n), b.axis(700)
    index, y, err = b.buffer(I64), b.buffer(torch.int32, "inout"), b.buffer(torch.int32, "error")
    b.update(y, b.position(b.load(index, i * 701 + j), places, err, 7) + 3, b.const(2, torch.int32), "sum")
    values = torch.arange(n * 701) ** 2 % 89
    values[n * 350] = places
    return b.case((n * 701, places + 3, 1), inputs={index: values})


@case
def extremes_at_places(dt, s):
    n = 300 * s
    b = B()
    i = b.axis(n)
    x, index, y, z = b.buffer(torch.int32), b.buffer(I64), b.buffer(torch.int32, "inout"), b.buffer(I64, "inout")
    at = b.clamped(b.load(index, i), 40)
    b.update(y, at, b.load(x, i), "max")
    b.update(z, at * 2, b.cast(b.load(x, i), I64), "min")
    return b.case((n, n, 40, 80), inputs={index: torch.arange(n) * 7 % 45})


@case
def embedding(dt, s):
    n, v, d = 6 * s, 50, 24
    b = B()
    i, j = b.axis(n), b.axis(d)
    w, index, y, err = b.buffer(dt), b.buffer(I64), b.buffer(dt, "out"), b.buffer(torch.int32, "error")
    at = b.load(index, i)
    b.put(y, i * d + j, b.wide(w, b.position(at, v, err, 7) * d + j))
    values = torch.arange(n) * 7 % v
    values[n // 2] = v + 3
    return b.case((v * d, n, n * d, 1), inputs={index: values})


@case
def overlapping_windows(dt, s):
    """Sums of 3 x 3 places, with edges, and largest ones of places that are computed: results share what they read."""
    n, h, w = 6, 9, 8 * s
    b = B()
    k, i, j = b.axis(n), b.axis(h), b.axis(w)
    x, y, z = b.buffer(dt), b.buffer(dt, "out"), b.buffer(dt, "out")
    total = best = None
    for u in range(3):
        for v in range(3):
            inside = None
            for at, size in ((i + u - 1, h), (j + v - 1, w)):
                place = b.index(at, torch.int32)
                for low, high in ((b.const(-1, torch.int32), place), (place, b.const(size, torch.int32))):
                    c = b.do("lt", low, high)
                    inside = c if inside is None else b.do("logical_and", inside, c)
            value = b.wide(x, (k * h + i + u - 1) * w + j + v - 1, mask=inside)
            value = b.do("where", inside, value, b.number(0.0, value))
            total = value if total is None else b.do("add", total, value)
            row = b.clamped(b.index(i + u - 1, torch.int32), h)
            value = b.wide(x, (k * h + row) * w + j)
            best = value if best is None else b.do("maximum", best, value)
    b.put(y, (k * h + i) * w + j, total)
    b.put(z, (k * h + i) * w + j, best)
    return b.case((n * h * w,) * 3)


@case
def bags(dt, s):
    n, v, d = 5 * s, 40, 24
    b = B()
    i, j, r = b.axis(n), b.axis(d), b.axis(6, "r")
    table, index, y, err = b.buffer(dt), b.buffer(I64), b.buffer(dt, "out"), b.buffer(torch.int32, "error")
    at = b.load(index, i * 6 + r)
    b.put(y, i * d + j, b.reduce("sum", b.wide(table, b.position(at, v, err, 7) * d + j)))
    values = torch.arange(6 * n) * 7 % v
    values[n // 2] = -1
    return b.case((v * d, 6 * n, n * d, 1), inputs={index: values})


@case
def reverse_of_short_axes(dt, s):
    a, n, m, d = 3, 10 * s, 9, 4
    b = B()
    i, j, k, l = b.axis(d), b.axis(m), b.axis(n), b.axis(a)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, ((i * m + j) * n + k) * a + l, b.wide(x, ((l * n + k) * m + j) * d + i))
    return b.case((a * n * m * d,) * 2)


@case
def nested_division(dt, s):
    n = 60 * s
    b = B()
    i = b.axis(n)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i, b.wide(x, (i // 6) % 5 * 3 + i % 3))
    return b.case((15, n))


@case
def masked_store(dt, s):
    n = 100 * s
    b = B()
    i = b.axis(n)
    x, m, y = b.buffer(dt), b.buffer(BOOL), b.buffer(dt, "inout")
    b.put(y, i, b.do("mul", b.wide(x, i), b.wide(y, i)), mask=b.load(m, i))
    return b.case((n, n, n))


@case
def integers(dt, s):
    n = 300 * s
    b = B()
    i = b.axis(n)
    x, w = b.buffer(I64), b.buffer(torch.int32)
    u = b.buffer(torch.uint8)
    outs = [b.buffer(I64, "out") for _ in range(9)]
    o8 = b.buffer(torch.uint8, "out")
    v, a = b.load(x, i), b.cast(b.load(w, i), I64)
    d = b.do("where", b.do("eq", a, b.const(0, I64)), b.const(3, I64), a)
    ops = [b.do("floor_div", v, d), b.do("remainder", v, d), b.do("trunc_div", v, d), b.do("fmod", v, d),
           b.do("minimum", v, a), b.do("shl", v, b.do("abs", a)), b.do("bitwise_xor", v, a), b.do("sign", v),
           b.do("pow", b.do("remainder", v, b.const(7, I64)), b.do("abs", b.do("remainder", a, b.const(5, I64))))]
    for o, value in zip(outs, ops):
        b.put(o, i, value)
    b.put(o8, i, b.do("sub", b.load(u, i), b.const(200, torch.uint8)))
    return b.case((n,) * 13)


@case
def booleans(dt, s):
    n = 200 * s
    b = B()
    i = b.axis(n)
    x, w, m = b.buffer(dt), b.buffer(dt), b.buffer(BOOL)
    outs = [b.buffer(BOOL, "out") for _ in range(7)]
    v, a, k = b.wide(x, i), b.wide(w, i), b.load(m, i)
    c = b.do("lt", v, a)
    ops = [c, b.do("logical_and", c, k), b.do("logical_not", k), b.do("bitwise_xor", c, k), b.do("isfinite", v),
           b.do("lt", k, c), b.cast(v, BOOL)]
    for o, value in zip(outs, ops):
        b.put(o, i, value)
    return b.case((n,) * 10)


@case
def nan_propagation(dt, s):
    n = 64 * s
    b = B()
    i = b.axis(n)
    x, w = b.buffer(dt), b.buffer(dt)
    outs = [b.buffer(dt, "out") for _ in range(8)]
    v, a = b.wide(x, i), b.wide(w, i)
    ops = [b.do("maximum", v, a), b.do("minimum", v, a), b.do("fmax", v, a), b.do("relu", v), b.do("sign", v),
           b.do("copysign", v, a), b.do("where", b.do("signbit", v), a, v),
           b.do("round", b.do("mul", v, b.number(2.5, v)))]
    for o, value in zip(outs, ops):
        b.put(o, i, value)
    g = torch.Generator().manual_seed(1)
    xs, ws = torch.randn(n, generator=g), torch.randn(n, generator=g)
    xs[::5], ws[1::7], xs[3], ws[4] = float("nan"), float("nan"), float("inf"), float("-inf")
    return b.case((n,) * 10, inputs={x: xs, w: ws})


@case
def float_division(dt, s):
    n = 128 * s
    b = B()
    i = b.axis(n)
    x, w = b.buffer(dt), b.buffer(dt)
    outs = [b.buffer(F32, "out") for _ in range(5)]
    v, a = b.wide(x, i), b.wide(w, i)
    ops = [b.do("div", v, a), b.do("trunc_div", v, a), b.do("sqrt", b.do("abs", v)), b.do("floor_div", v, a),
           b.do("remainder", v, a)]
    for o, value in zip(outs, ops):
        b.put(o, i, value)
    g = torch.Generator().manual_seed(2)
    return b.case((n,) * 7, inputs={x: torch.randint(-12, 12, (n,), generator=g) / 4.0,
                                    w: torch.randint(1, 7, (n,), generator=g) / 2.0})


@case
def unary_functions(dt, s):
    n = 128 * s
    b = B()
    i = b.axis(n)
    x = b.buffer(dt)
    v = b.wide(x, i)
    names = "exp exp2 expm1 sin cos tanh erf i0 sigmoid floor ceil trunc neg abs".split()
    positive = "log log2 log10 log1p rsqrt reciprocal".split()
    outs = [b.buffer(dt, "out") for _ in names + positive]
    p = b.do("add", b.do("abs", v), b.number(0.1, v))
    for o, f in zip(outs, names + positive):
        b.put(o, i, b.do(f, p if f in positive else v))
    return b.case((n,) * (1 + len(outs)))


def _row(b, n, m):
    return b.axis(n), b.axis(m, "r")


def softmax_kernel(dt, n, m, log=False):
    b = B()
    i, j = _row(b, n, m)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    v = b.wide(x, i * m + j)
    d = b.do("sub", v, b.reduce("max", v))
    e = b.do("exp", d)
    t = b.reduce("sum", e)
    b.put(y, i * m + j, b.do("sub", d, b.do("log", t)) if log else b.do("div", e, t))
    return b.case((n * m, n * m))


@case
def softmax(dt, s):
    return softmax_kernel(dt, 5 * s, 50 * s)


@case
def log_softmax(dt, s):
    return softmax_kernel(dt, 3, 200 * s, log=True)


@case
def softmax_of_infinities(dt, s):
    c = softmax_kernel(dt, 4, 60 * s)
    data = torch.randn(4, 60 * s, generator=torch.Generator().manual_seed(6))
    data[0], data[1, 3], data[2, 5], data[3, : 30 * s] = float("-inf"), float("inf"), float("nan"), float("-inf")
    c.inputs[c.kernel.buffers[0].name] = data.reshape(-1)
    return c


@case
def softmax_full_block(dt, s):
    return softmax_kernel(dt, 2, 64 * s)


@case
def layer_norm(dt, s):
    n, m = 4, 96 * s
    b = B()
    i, j = _row(b, n, m)
    x, w, c, y = b.buffer(dt), b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    mean_out, rstd_out = b.buffer(F32, "out"), b.buffer(F32, "out")
    v = b.wide(x, i * m + j)
    scale = b.number(1.0 / m, v)
    mean = b.do("mul", b.reduce("sum", v), scale)
    d = b.do("sub", v, mean)
    var = b.do("mul", b.reduce("sum", b.do("mul", d, d)), scale)
    rstd = b.do("rsqrt", b.do("add", var, b.number(1e-5, v)))
    b.put(y, i * m + j, b.do("add", b.do("mul", b.do("mul", d, rstd), b.wide(w, j)), b.wide(c, j)))
    b.put(mean_out, i, mean)
    b.put(rstd_out, i, rstd)
    return b.case((n * m, m, m, n * m, n, n))


def _norm_gradients(dt, chunks, length, rows, m):
    """A norm's gradient with the sums over columns for its weights, ``length`` rows to a program."""
    b = B()
    z, k, j = b.axis(chunks), b.axis(length), b.axis(m, "r")
    i = z * length + k
    inside = None if rows == chunks * length else b.do("lt", b.index(i), b.const(rows, I64))
    x, g, w, dx = b.buffer(dt), b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    sums, weighted = b.buffer(F32, "out"), b.buffer(F32, "out")
    u, v = b.wide(x, i * m + j, mask=inside), b.wide(g, i * m + j, mask=inside)
    b.total(sums, z * m + j, b.cast(v, F32))
    b.total(weighted, z * m + j, b.cast(b.do("mul", u, v), F32))
    t = b.do("mul", v, b.wide(w, j))
    b.put(dx, i * m + j, b.do("sub", t, b.do("mul", u, b.reduce("sum", b.do("mul", t, u)))), mask=inside)
    return b.case((rows * m, rows * m, m, rows * m, chunks * m, chunks * m))


@case
def norm_gradients(dt, s):
    return _norm_gradients(dt, 3, 6, 18, 24 * s)


@case
def norm_gradients_of_odd_rows(dt, s):
    return _norm_gradients(dt, 4, 5, 17, 32 * s)


@case
def row_sum(dt, s):
    n, m = 7, 130 * s
    b = B()
    i, j = _row(b, n, m)
    x, y = b.buffer(dt), b.buffer(F32, "out")
    b.put(y, i, b.reduce("sum", b.wide(x, i * m + j)))
    return b.case((n * m, n))


@case
def sum_all(dt, s):
    n, m = 6, 70 * s
    b = B()
    i, j = b.axis(n, "r"), b.axis(m, "r")
    x, y = b.buffer(dt), b.buffer(F32, "out")
    b.put(y, 0, b.reduce("sum", b.wide(x, i * m + j)))
    return b.case((n * m, 1))


@case
def middle_sum(dt, s):
    a, n, m = 3, 9 * s, 20
    b = B()
    k, j, i = b.axis(a), b.axis(m), b.axis(n, "r")
    x, y = b.buffer(dt), b.buffer(F32, "out")
    b.put(y, k * m + j, b.reduce("sum", b.wide(x, (k * n + i) * m + j)))
    return b.case((a * n * m, a * m))


@case
def outer_and_inner_sum(dt, s):
    a, n, m = 5, 6, 20 * s
    b = B()
    i = b.axis(n)
    k, j = b.axis(a, "r"), b.axis(m, "r")
    x, y = b.buffer(dt), b.buffer(F32, "out")
    b.put(y, i, b.reduce("sum", b.wide(x, (k * n + i) * m + j)))
    return b.case((a * n * m, n))


@case
def col_max(dt, s):
    n, m = 40 * s, 33
    b = B()
    j, i = b.axis(m), b.axis(n, "r")
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, j, b.reduce("max", b.wide(x, i * m + j)))
    return b.case((n * m, m))


@case
def col_softmax(dt, s):
    n, m = 37 * s, 24
    b = B()
    j, i = b.axis(m), b.axis(n, "r")
    x, y = b.buffer(dt), b.buffer(dt, "out")
    v = b.wide(x, i * m + j)
    e = b.do("exp", b.do("sub", v, b.reduce("max", v)))
    b.put(y, i * m + j, b.do("div", e, b.reduce("sum", e)))
    return b.case((n * m, n * m))


@case
def all_reductions(dt, s):
    n, m = 6, 45 * s
    b = B()
    i, j = _row(b, n, m)
    x = b.buffer(dt)
    v = b.wide(x, i * m + j)
    big = b.do("gt", v, b.number(1.5, v))
    found = [b.reduce("max", v), b.reduce("min", v),
             b.reduce("prod", b.do("add", b.do("mul", v, b.number(0.01, v)), b.number(1.0, v)))]
    outs = [(b.buffer(F32, "out"), r) for r in found]
    outs += [(b.buffer(BOOL, "out"), b.reduce(o, big)) for o in ("any", "all")]
    outs += [(b.buffer(I64, "out"), b.reduce(o, v)) for o in ("argmax", "argmin")]
    outs += [(b.buffer(I64, "out"), b.reduce("sum", b.cast(big, I64)))]
    for o, r in outs:
        b.put(o, i, r)
    g = torch.Generator().manual_seed(3)
    data = torch.randint(-4, 5, (n, m), generator=g) / 2.0
    data[1, m // 2] = float("nan")
    data[1, m // 2 + 1] = float("nan")
    data[2] = float("-inf")
    data[3] = 2.0
    return b.case((n * m,) + (n,) * len(outs), inputs={x: data.reshape(-1)})


@case
def argmax_of_two_axes(dt, s):
    n, a, m = 3, 4, 11 * s
    b = B()
    i, k, j = b.axis(n), b.axis(a, "r"), b.axis(m, "r")
    x, y = b.buffer(dt), b.buffer(I64, "out")
    b.put(y, i, b.reduce("argmax", b.wide(x, (k * n + i) * m + j)))
    return b.case((n * a * m, n))


@case
def cumsum(dt, s):
    n, m = 3, 100 * s
    b = B()
    i, j = _row(b, n, m)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i * m + j, b.scan("sum", b.wide(x, i * m + j)))
    return b.case((n * m, n * m), half_tolerance=4.0)


@case
def cross_entropy(dt, s):
    n, m = 5, 80 * s
    b = B()
    i, j = _row(b, n, m)
    x, t, y, err = b.buffer(dt), b.buffer(I64), b.buffer(F32, "out"), b.buffer(torch.int32, "error")
    v = b.wide(x, i * m + j)
    top = b.reduce("max", v)
    total = b.reduce("sum", b.do("exp", b.do("sub", v, top)))
    picked = b.wide(x, i * m + b.position(b.load(t, i), m, err, 7))
    b.put(y, i, b.do("sub", b.do("add", b.do("log", total), top), picked))
    return b.case((n * m, n, n, 1), inputs={t: torch.arange(n) * 13 % m})


@case
def logsumexp(dt, s):
    n, m = 5, 90 * s
    b = B()
    i, j = _row(b, n, m)
    x, y = b.buffer(dt), b.buffer(F32, "out")
    v = b.wide(x, i * m + j)
    top = b.reduce("max", v)
    safe = b.do("where", b.do("isinf", top), b.number(0.0, v), top)
    b.put(y, i, b.do("add", b.do("log", b.reduce("sum", b.do("exp", b.do("sub", v, safe)))), safe))
    g = torch.Generator().manual_seed(5)
    data = torch.randn(n, m, generator=g)
    data[1], data[2, 3], data[3, 5], data[4, : m // 2] = float("-inf"), float("inf"), float("nan"), float("-inf")
    return b.case((n * m, n), inputs={x: data.reshape(-1)})


@case
def in_place_normalise(dt, s):
    n, m = 3, 90 * s
    b = B()
    i, j = _row(b, n, m)
    x = b.buffer(dt, "inout")
    y = b.buffer(dt, "out")
    v = b.wide(x, i * m + j)
    mean = b.do("mul", b.reduce("sum", v), b.number(1.0 / m, v))
    b.put(x, i * m + j, b.do("mul", v, b.number(0.5, v)))
    b.put(y, i * m + j, b.do("sub", v, mean))
    return b.case((n * m, n * m))


@case
def row_of_one(dt, s):
    n = 40 * s
    b = B()
    i, j = _row(b, n, 1)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i + j, b.reduce("max", b.wide(x, i + j)))
    return b.case((n, n))


def _sizes(*pairs):
    return [dims.Sym(n, hint=h, lo=2) for n, h in pairs]


@case
def symbolic_pointwise(dt, s):
    n, m = _sizes(("s0", 7 * s), ("s1", 45 * s))
    b = B()
    i, j = b.axis(n), b.axis(m)
    x, w, y = b.buffer(dt), b.buffer(dt), b.buffer(dt, "out")
    b.put(y, i * m + j, b.do("add", b.wide(x, i * m + j), b.wide(w, j)))
    h = {"s0": 7 * s, "s1": 45 * s}
    return b.case((315 * s * s, 45 * s, 315 * s * s), sizes=h)


@case
def symbolic_softmax(dt, s):
    n, m = _sizes(("s0", 4), ("s1", 70 * s))
    b = B()
    i, j = _row(b, n, m)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    v = b.wide(x, i * m + j)
    e = b.do("exp", b.do("sub", v, b.reduce("max", v)))
    b.put(y, i * m + j, b.do("div", e, b.reduce("sum", e)))
    return b.case((280 * s, 280 * s), sizes={"s0": 4, "s1": 70 * s})


def tolerance(case_: Case, dtype) -> dict:
    """Allowed differences from the reference for an output of that dtype."""
    k = case_.half_tolerance
    if dtype is torch.bfloat16:
        return dict(rtol=1.6e-2 * k, atol=1e-2 * k)
    if dtype is torch.float16:
        return dict(rtol=2e-3 * k, atol=2e-3 * k)
    if dtype is torch.float32:
        return dict(rtol=2e-5, atol=1e-5)
    return dict(rtol=1e-9, atol=1e-9) if dtype is torch.float64 else dict(rtol=0, atol=0)


def compare(case_: Case, got: dict, want: dict):
    """Assert that all written buffers agree."""
    for b in case_.kernel.buffers:
        if b.role != "in":
            torch.testing.assert_close(got[b.name].cpu(), want[b.name], equal_nan=True, **tolerance(case_, b.dtype),
                                       msg=lambda m, b=b: f"{b.name}: {m}")


@case
def random_numbers(dt, s):
    n, m = 5 * s, 70 * s
    b = B()
    i, j = b.axis(n), b.axis(m)
    seed, x, narrow, wide, y = (b.buffer(I64), b.buffer(dt), b.buffer(torch.int32, "out"), b.buffer(I64, "out"),
                                b.buffer(dt, "out"))
    key, at = b.load(seed, 0), i * m + j
    bits = b.compute("random_bits", key, b.index(at), dtype=torch.int32)
    b.put(narrow, at, bits)
    b.put(wide, at, b.compute("random_bits", key, b.index(at * 2 + (1 << 33)), dtype=I64))
    value = b.wide(x, at)
    kept = b.do("where", b.do("ge", bits, b.const(-858993459, torch.int32)), value, b.number(0.0, value))
    b.put(y, at, kept)
    return b.case((1, n * m, n * m, n * m, n * m), inputs={seed: torch.tensor([0x6A09E667F3BCC909])})


@case
def dropout_in_a_row(dt, s):
    """What is drawn is read in every pass over its row."""
    n, m = 3, 90 * s
    b = B()
    i, j = _row(b, n, m)
    seed, x, y, w = b.buffer(I64), b.buffer(dt), b.buffer(dt, "out"), b.buffer(dt, "out")
    at = i * m + j
    bits = b.compute("random_bits", b.load(seed, 0), b.index(at), dtype=torch.int32)
    v = b.wide(x, at)
    v = b.do("where", b.do("ge", bits, b.const(0, torch.int32)), b.do("mul", v, b.number(2.0, v)), b.number(0.0, v))
    largest = b.reduce("max", v)
    e = b.do("exp", b.do("sub", v, largest))
    b.put(y, at, b.do("div", e, b.reduce("sum", e)))
    b.put(w, at, v)
    return b.case((1, n * m, n * m, n * m), inputs={seed: torch.tensor([-8765432109876543210 + 17])})


@case
def times_a_changing_float(dt, s):
    from jit.graph.sym_float import to_words

    b = B()
    i = b.axis(300 * s)
    x, y = b.buffer(dt), b.buffer(dt, "out")
    low, high = (b.index(dims.Sym(n, lo=-(1 << 31), hi=(1 << 31) - 1)) for n in ("f0", "f1"))
    value = b.wide(x, i)
    factor = b.cast(b.compute("from_words", low, high, dtype=torch.float64), b.dtype[value])
    b.put(y, i, b.do("mul", value, factor))
    words = to_words(-0.37)
    return b.case((300 * s, 300 * s), sizes={"f0": words[0], "f1": words[1]})
