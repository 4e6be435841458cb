"""Training steps of norms as they are made for a GPU: their values, and how often they read and write the image."""

import interpreter
import pytest
import torch
import torch.nn.functional as F
from gpu_training import Step

from jit.codegen import by_rows, loops
from jit.devices import cuda

NORMS = {
    "batch": lambda x, w, c: F.batch_norm(x, None, None, w, c, True),
    "group": lambda x, w, c: F.group_norm(x, 4, w, c),
    "instance": lambda x, w, c: F.instance_norm(x, None, None, w, c),
}
BEHIND = {"nothing": lambda y: y, "relu": F.relu, "silu": F.silu}


def image(*shape, last=False):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last) if last else x


def weights(n):
    g = torch.Generator().manual_seed(2)
    return torch.rand(n, generator=g) + 0.5, torch.randn(n, generator=g)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(6, 8, 9, 8), (3, 16, 7, 5)])
def test_like_eager(norm, behind, last, shape):
    Step(lambda x, w, c: BEHIND[behind](NORMS[norm](x, w, c)), image(*shape, last=last),
         *weights(shape[1])).check(1e-4, 1e-4)


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("walkers", [4, 7, 64])
@pytest.mark.parametrize("norm", ["group", "instance"])
@pytest.mark.parametrize("shape", [(6, 8, 9, 8), (7, 16, 5, 6)])
def test_sums_that_rows_take_along(monkeypatch, norm, walkers, behind, shape):
    monkeypatch.setattr(by_rows, "SHORTEST", 1)
    monkeypatch.setattr(by_rows, "FEWEST", 1)
    monkeypatch.setattr(cuda.Cuda, "walkers", lambda self: walkers)
    step = Step(lambda x, w, c: BEHIND[behind](NORMS[norm](x, w, c)), image(*shape), *weights(shape[1]))
    step.check(1e-4, 1e-4)
    along = [k for k in step.kernels() if any(isinstance(s, loops.Total) for s in k.body)]
    assert len(along) == (norm == "group")


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1."""
    from test_neighbours import run

    by_rows.SHORTEST = by_rows.FEWEST = 1
    cuda.Cuda.walkers = lambda self: 8
    for behind in BEHIND:
        for norm in NORMS:
            step = Step(lambda x, w, c: BEHIND[behind](NORMS[norm](x, w, c)), image(6, 8, 4, 4), *weights(8))
            step.check(1e-4, 1e-4, run)
            print("ok", norm, behind)


def test_texts():
    assert len(interpreter.output(__name__).splitlines()) == len(NORMS) * len(BEHIND)


def test_with_a_residual():
    def fn(x, w, c, r):
        return F.relu(F.group_norm(x, 4, w, c) + r)

    Step(fn, image(6, 8, 9, 8), *weights(8), image(6, 8, 9, 8) + 1).check(1e-4, 1e-4)


def moves(step, numel):
    """How often kernels read or write a tensor as large as the image."""
    total = 0
    for k in step.kernels():
        every = {a.name: a.extent for a in k.axes + k.raxes}
        seen = set()
        for s in k.body:
            if isinstance(s, (loops.Load, loops.Store)):
                points = 1
                for n in s.symbols:
                    points *= every.get(n, 1)
                if points >= numel and s.buffer not in seen:
                    seen.add(s.buffer)
                    total += 1
    return total


# Forward: the image is read for the statistics, and read and written. Backward: image and gradient are read for the
# sums, and read again for the gradient that is written; those of weights are sums that the rows take along.
MOVES = {"batch": 3 + 5, "group": 2 + 5, "instance": 2 + 3}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("norm", NORMS)
def test_image_moves(norm, behind):
    x = image(96, 32, 32, 32)
    step = Step(lambda x, w, c: BEHIND[behind](NORMS[norm](x, w, c)), x, *weights(32))
    assert moves(step, x.numel()) == MOVES[norm]


@pytest.mark.parametrize("behind", BEHIND)
def test_image_moves_of_many_groups(behind):
    x = image(1024, 16, 8, 8)
    step = Step(lambda x, w, c: BEHIND[behind](NORMS["group"](x, w, c)), x, *weights(16))
    assert moves(step, x.numel()) == 2 + 3
