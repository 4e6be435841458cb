"""The disk with the cache is full."""

import os
import sys

CURED = len(sys.argv) > 1
import tempfile

os.environ["JIT_CACHE_DIR"] = tempfile.mkdtemp()

import torch  # noqa: E402

import jit  # noqa: E402
from jit.runtime import cache  # noqa: E402

_write = cache._write


def write(folder, key, data):
    """As on a disk that is full."""
    if folder.startswith(os.environ["JIT_CACHE_DIR"]) and not CURED:
        raise OSError(28, "No space left on device")
    return _write(folder, key, data)


cache._write = write


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)  # here
