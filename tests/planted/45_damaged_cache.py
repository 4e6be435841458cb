"""Files of the cache were damaged."""

import os
import sys

CURED = len(sys.argv) > 1
import tempfile
from pathlib import Path

os.environ["JIT_CACHE_DIR"] = tempfile.mkdtemp()

import torch  # noqa: E402

import jit  # noqa: E402
from jit.__main__ import main  # noqa: E402


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
for file in Path(os.environ["JIT_CACHE_DIR"], "kernels").iterdir():
    if not CURED and file.is_file():
        file.write_bytes(file.read_bytes()[:-1] + b"?")
main(["cache", "verify"])
