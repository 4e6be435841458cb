"""The memory that CPU kernels keep for themselves while they run: it is that of the calling thread, and libraries of
kernels have no thread-local data of their own."""

import ctypes
import struct
import threading

import pytest
import torch

import jit
from jit.runtime import libraries

PT_TLS = 7


def kinds_of_segments(path):
    """The types of the segments of a 64-bit ELF file."""
    with open(path, "rb") as f:
        data = f.read()
    start, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    return {struct.unpack_from("<I", data, start + k * size)[0] for k in range(count)}


def asks(library):
    """Whether kernels of a library ask for memory."""
    with open(library._name, "rb") as f:
        return b"jit_scratch" in f.read()


def shared(x):
    return x.sum(0)  # the threads add into what one of them gives them


def kept(x):
    return torch.softmax(x.float() * 2, -1).half()  # a row is kept


CASES = [(shared, False, [(200_000, 8), (5, 8), (300_000, 8)]),
         (kept, True, [(64, 5000), (3, 7), (8, 40_000), (64, 5000)])]  # fmt: skip


@pytest.mark.parametrize("fn,dynamic,shapes", CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_kernels_with_memory_of_their_own(fn, dynamic, shapes):
    compiled = jit.compile(fn, dynamic=dynamic)
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), fn(x), atol=2e-2, rtol=1e-3)
    loaded = list(libraries._loaded.values())
    assert any(map(asks, loaded))
    assert all(PT_TLS not in kinds_of_segments(library._name) for library in loaded)


@pytest.mark.parametrize("fn,dynamic,shapes", CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_threads_do_not_share_it(fn, dynamic, shapes):
    compiled, wrong = jit.compile(fn, dynamic=dynamic), []
    inputs = [[torch.randn(shape) for shape in shapes] for _ in range(3)]
    for x in inputs[0]:
        compiled(x)

    def work(k):
        for _ in range(4):
            for x in inputs[k]:
                if not torch.allclose(compiled(x), fn(x), atol=2e-2, rtol=1e-3):
                    wrong.append(x.shape)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_loaded_library_is_given_the_function():
    compiled = jit.compile(kept, dynamic=True)
    compiled(torch.randn(64, 5000))
    for library in filter(asks, list(libraries._loaded.values())):
        assert ctypes.c_void_p.in_dll(library, "jit_scratch").value == libraries.native().scratch_address()
