"""A sample of the sweep over the inputs that PyTorch's operators refuse; the whole of it is ``python -m tests.sweeps.errors``."""

import pytest

pytest.importorskip("expecttest")  # which PyTorch's databases import

from sweeps.errors import check, everything  # noqa: E402

NAMES = ["fliplr", "diff", "eye", "ldexp", "lcm", "eq", "narrow", "complex", "index_select", "scatter", "masked_scatter", "nn.functional.one_hot", "__radd__", "float_power", "nn.RNNCell"]


@pytest.mark.parametrize("name", NAMES)
def test_refused_inputs(name):
    found = everything()
    if name not in found:
        pytest.skip("this PyTorch lists no refused inputs of it")
    assert not check(*found[name](), texts=True)
