"""No kernel reads a byte outside of its inputs: they lie between pages that cannot be read, so that one read too many
is a signal.

Every program is called with inputs that end right before such a page and with inputs that begin right behind one, at
several sizes in one compiled function's life, in processes of their own.
"""

import ctypes
import mmap
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import jit

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Fenced:
    """Tensors between unreadable pages; their memory is given back at the end of the ``with`` block."""

    def __init__(self, at_end: bool):
        self.at_end, self.held = at_end, []

    def copy(self, t: torch.Tensor) -> torch.Tensor:
        """``t`` with its strides, in memory of no byte more than these need, which ends (or begins) where nothing can
        be read."""
        span = (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0) * t.element_size()
        size = -(-max(span, 1) // PAGE) * PAGE
        start = _libc.mmap(None, size + 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE,
                           mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        assert start not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        self.held.append((start, size + 2 * PAGE))
        for fence in (start, start + PAGE + size):
            assert _libc.mprotect(fence, PAGE, 0) == 0, os.strerror(ctypes.get_errno())
        if not span:
            return t.clone()
        first = start + PAGE + (size - span if self.at_end else 0)
        flat = torch.frombuffer((ctypes.c_char * span).from_address(first), dtype=t.dtype)
        flat.copy_(t.as_strided(flat.shape, (1,)))
        return flat.as_strided(t.shape, t.stride())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for start, size in self.held:
            _libc.munmap(start, size)


def _matrix(*shape, dtype=torch.float32):
    return (torch.randn(shape) * 4).to(dtype)


def _index(size, *shape):
    return torch.randint(0, size, shape)


def _gradient(f, *inputs):
    """The gradients of ``f(*inputs).sum()``; the kernels of the backward read the inputs too."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    return torch.autograd.grad(f(*inputs).sum(), inputs)


SIZES = (1, 3, 17, 64, 67, 200, 1030)
HALVES = (torch.bfloat16, torch.float16)

# name -> (program, size -> its inputs)
PROGRAMS = {
    "pointwise": (lambda x, y: x * 2 + y.relu(), lambda n: (_matrix(n), _matrix(n))),
    "exponentials": (lambda x: (x.exp() + 1).log() + torch.tanh(x).sin(), lambda n: (_matrix(n),)),
    **{f"of_{str(d)[6:]}": (lambda x: x + x, lambda n, d=d: (_matrix(n, dtype=d),))
       for d in (*HALVES, torch.float64, torch.int8, torch.int16, torch.int64, torch.uint8)},
    "bools": (lambda m, x: torch.where(m, x, 0) + (~m).float(), lambda n: (_matrix(n) > 0, _matrix(n))),
    "casts": (lambda x: (x.to(torch.int32), x.double() / 3), lambda n: (_matrix(n, dtype=torch.bfloat16),)),
    "broadcast": (lambda x, y: x + y, lambda n: (_matrix(5, n), _matrix(5, 1))),
    "broadcast_row": (lambda x, y: x + y, lambda n: (_matrix(5, n), _matrix(n))),
    "sum": (lambda x: x.sum(), lambda n: (_matrix(n),)),
    "row_sums": (lambda x: x.sum(1), lambda n: (_matrix(9, n),)),
    "column_sums": (lambda x: x.sum(0), lambda n: (_matrix(33, n),)),
    "sums_of_halves": (lambda x: (x.sum(0), x.sum(1)), lambda n: (_matrix(9, n, dtype=torch.bfloat16),)),
    "extremes": (lambda x: (x.amax(1), x.argmin(0), x.argmax(1)), lambda n: (_matrix(9, n),)),
    "variance": (lambda x: x.var(1) + x.mean(1), lambda n: (_matrix(9, n + 1),)),
    "softmax": (lambda x: x.softmax(1), lambda n: (_matrix(9, n),)),
    "softmax_of_columns": (lambda x: x.softmax(0), lambda n: (_matrix(33, n),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), lambda n: (_matrix(9, n), _matrix(n), _matrix(n))),
    "rows_in_turn": (lambda x: (x - x.amax(1, keepdim=True)).exp().log1p(), lambda n: (_matrix(40, n),)),
    "cumsum": (lambda x: (x.cumsum(1), x.cumsum(0)), lambda n: (_matrix(9, n),)),
    "transposed": (lambda x, y: x.t() + y, lambda n: (_matrix(n, 70), _matrix(70, n))),
    "transposed_halves": (lambda x, y: x.t() + y,
                          lambda n: (_matrix(n, 70, dtype=torch.bfloat16), _matrix(70, n, dtype=torch.bfloat16))),
    "permuted": (lambda x: x.permute(2, 0, 1).contiguous() * 2, lambda n: (_matrix(20, n, 6),)),
    "columns": (lambda x: x[:, 1:] * 2, lambda n: (_matrix(9, n + 1),)),
    "strided": (lambda x: x[:, ::2] * 2, lambda n: (_matrix(9, 2 * n),)),
    "sliced_input": (lambda x: x * 2 + x.sum(1, keepdim=True), lambda n: (_matrix(9, n + 5)[:, :n],)),
    "strided_input": (lambda x: x * 2, lambda n: (_matrix(3 * n)[::3],)),
    "transposed_input": (lambda x: x.softmax(-1), lambda n: (_matrix(n, 33).t(),)),
    "expanded_input": (lambda x: x * 2 + 1, lambda n: (_matrix(1, n).expand(7, n),)),
    "flipped": (lambda x: x.flip(0, 1) * 2, lambda n: (_matrix(9, n),)),
    "joined": (lambda x, y: torch.cat([x, y], 1) * 2, lambda n: (_matrix(9, n), _matrix(9, 3))),
    "padded": (lambda x: F.pad(x, (2, 3, 1, 0)) * 2, lambda n: (_matrix(9, n),)),
    "rolled": (lambda x: x.roll(1, 1) * 2, lambda n: (_matrix(9, n),)),
    "gather": (lambda x, i: x.gather(1, i) * 2, lambda n: (_matrix(9, n), _index(n, 9, n))),
    "vector": (lambda x, i: x[i] * 2, lambda n: (_matrix(n), _index(n, 2 * n))),
    "vector_of_halves": (lambda x, i: x[i] * 2, lambda n: (_matrix(n, dtype=torch.float16), _index(n, 2 * n))),
    "vector_of_bytes": (lambda x, i: x[i] + 1, lambda n: (_matrix(n, dtype=torch.uint8), _index(n, 2 * n))),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, lambda n: (_matrix(12, n), _index(12, 30))),
    "columns_at": (lambda x, i: x[:, i] * 2, lambda n: (_matrix(9, n), _index(n, 40))),
    "of_a_comparison": (lambda x, t: t[(x > 0).long()] * 2, lambda n: (_matrix(n), _matrix(2))),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y, reduction="none"), lambda n: (_matrix(9, n), _index(n, 9))),
    **{f"gradient_of_{name}": (f, make) for name, f, make in (
        ("softmax", lambda x: _gradient(lambda x: x.softmax(1).square(), x), lambda n: (_matrix(9, n),)),
        ("layer_norm", lambda x, w: _gradient(lambda x, w: F.layer_norm(x, w.shape, w).square(), x, w),
         lambda n: (_matrix(9, n), _matrix(n))),
        ("bias", lambda x, b: _gradient(lambda x, b: F.gelu(x + b), x, b), lambda n: (_matrix(9, n), _matrix(n))),
        ("rows", lambda w, i: _gradient(lambda w: w[i].tanh(), w), lambda n: (_matrix(12, n), _index(12, 30))),
        ("cross_entropy", lambda x, y: _gradient(lambda x: F.cross_entropy(x, y), x),
         lambda n: (_matrix(9, n), _index(n, 9))),
    )},
    **{f"attention_{name}": (lambda q, k, v, b: torch.softmax(q @ k.mT * 0.02 + b, -1) @ v, make) for name, make in (
        ("", lambda n: (_matrix(3, 70, 24), _matrix(3, n, 24), _matrix(3, n, 32), _matrix(70, n))),
        ("transposed", lambda n: (_matrix(3, n, 20), _matrix(3, 20, n).mT, _matrix(3, 17, n).mT, _matrix(n))),
        ("of_halves", lambda n: (*(_matrix(3, n, 40, dtype=torch.float16) for _ in range(3)),
                                 _matrix(n, 1, dtype=torch.float16))),
    )},
    "masked_pad_of_rows": (lambda x, i: torch.cat([x[i], x], 0) + 1, lambda n: (_matrix(4, n), _index(4, 5))),
}


def _same(got, want):
    got, want = ((v,) if isinstance(v, torch.Tensor) else v for v in (got, want))
    for a, b in zip(got, want, strict=True):
        near = 0.05 if b.dtype in HALVES else 2e-4  # sums differ in order; this is about memory
        torch.testing.assert_close(a, b, rtol=near, atol=near)


def fenced(names):
    """Prints each program before it is run, and every difference from eager."""
    for name in names:
        f, make = PROGRAMS[name]
        compiled = jit.compile(f)
        for n in SIZES:
            for at_end in (True, False):
                print("at", name, n, "end" if at_end else "begin", flush=True)
                torch.manual_seed(n)
                args = make(n)
                with Fenced(at_end) as fence:
                    got = compiled(*(fence.copy(a) for a in args))
                    _same(got, f(*args))
    print("end")


GROUPS = 4


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_kernel_reads_outside_of_its_inputs(group):
    done = subprocess.run([sys.executable, __file__, str(group)], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": ROOT})
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0 and last == ["end"], f"exit status {done.returncode} {last}\n{done.stderr[-3000:]}"


def test_a_fence_stops_a_read():
    """One byte behind the end, and one before the beginning, are signals."""
    for at_end in (True, False):
        text = ("import ctypes, torch; from tests.test_guard_pages import Fenced\n"
                f"t = Fenced({at_end}).copy(torch.zeros(100)); print(t.sum().item(), flush=True)\n")
        text += f"ctypes.string_at(t.data_ptr() {'+ 400' if at_end else '- 1'}, 1)"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT,
                              env={**os.environ, "PYTHONPATH": ROOT})
        assert done.returncode < 0 and done.stdout.split() == ["0.0"]


if __name__ == "__main__":
    fenced(list(PROGRAMS)[int(sys.argv[1]) :: GROUPS])
