"""A row of each kind of kernel is as fast on the device as it was (benchmarks/expected_speeds.json)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
ROWS = ("gelu_erf", "swiglu_of_halves", "add_transposed", "cat_of_eight", "embedding", "sum_of_all", "sum_of_columns",
        "variance_of_rows", "softmax_1000", "layer_norm_20000", "cumsum_of_rows", "max_pool_3x3", "grad_layer_norm",
        "adam", "dropout")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_speeds():
    if torch.cuda.get_device_name() not in json.loads((BENCHMARKS / "expected_speeds.json").read_text()):
        pytest.skip("no speeds are known of this device")
    run = subprocess.run([sys.executable, str(BENCHMARKS / "operators.py"), "--compilers", "jit", "--expected",
                          "--only", ",".join(ROWS)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
