"""Which float32 values of a kernel need to be no more exact than a half."""

import torch

from gpu_texts import compiled_for_gpu
from jit.codegen import approximate
from jit.codegen.triton import analysis, emit
from jit.codegen.planner import Planner


def kernels(monkeypatch, fn, *args):
    found, real = [], Planner.begin_kernels

    def seen(self):
        found.extend(k for k in self.launches if k.device == "cuda")
        return real(self)

    monkeypatch.setattr(Planner, "begin_kernels", seen)
    compiled_for_gpu(fn, *args)
    return found


def test_parts_of_a_sum_are_as_exact_as_the_whole(monkeypatch):
    def loss(x):
        return torch.exp(x).mean()

    def exact(x):
        return torch.exp(x.float()).mean()

    x = torch.randn(1024, 1024, dtype=torch.bfloat16)
    first, second = kernels(monkeypatch, loss, x)
    assert [b.rounded for b in first.buffers] == [False, True] and approximate.rounded_inputs(second)
    assert "exp_fast" in emit.emit(first).text
    first, second = kernels(monkeypatch, exact, x)
    assert not any(b.rounded for b in first.buffers) and not approximate.rounded_inputs(second)
    assert "exp_fast" not in emit.emit(first).text


def test_exponentials_that_are_only_summed(monkeypatch):
    x = torch.randn(300, 1000)
    (k,) = kernels(monkeypatch, lambda x: torch.logsumexp(x, -1), x)
    assert analysis.summed_exponentials(k) and "exp_fast" in emit.emit(k).text
    (k,) = kernels(monkeypatch, lambda x: torch.softmax(x, -1), x)  # each is a result as well
    assert not analysis.summed_exponentials(k)
    (k,) = kernels(monkeypatch, lambda x: torch.exp(x - x.mean(-1, keepdim=True)).sum(-1), x)
    assert not analysis.summed_exponentials(k)


def test_powers(monkeypatch):
    x = torch.rand(300, 1000, dtype=torch.bfloat16)
    (k,) = kernels(monkeypatch, lambda x: torch.linalg.vector_norm(x, 3.5, dim=-1), x)
    powers = [s for s in k.body if s.prim == "pow"]
    assert len(powers) == 2 and all(s.dst in approximate.fast_values(k) for s in powers)
    (k,) = kernels(monkeypatch, lambda x: (torch.sin(x) * 1.5) ** 40.5, x)  # an error would grow by as much
    sine = next(s for s in k.body if s.prim == "sin")
    assert sine.dst not in approximate.fast_values(k)


def test_what_is_kept_in_float8_is_exact(monkeypatch):
    """A step of float8 is an eighth of a number: one that is missed is no small error."""
    x = torch.randn(300, 1000, dtype=torch.bfloat16)
    (k,) = kernels(monkeypatch, lambda x: torch.exp(x.float()).to(torch.float8_e4m3fn), x)
    assert any(s.prim == "exp" for s in k.body) and not approximate.fast_values(k)
    (k,) = kernels(monkeypatch, lambda x: torch.exp(x.float()).to(torch.bfloat16), x)
    assert approximate.fast_values(k)


def test_what_is_rounded_to_halves_in_the_end(monkeypatch):
    """The inverse error function is no smooth one: a small error of its argument is a large one of its value near 1. A
    sigmoid is right to a unit in the last place even so, where halves are all that is kept."""
    x = torch.randn(300, 1000, dtype=torch.bfloat16)
    (k,) = kernels(monkeypatch, lambda x: torch.erfinv(torch.sigmoid(x)), x)
    found = next(s for s in k.body if s.prim == "sigmoid")
    assert found.dst not in approximate.fast_values(k) and found.dst in approximate.rounded_values(k)
    assert "_rcp_fast" in emit.emit(k).text
    for other in (lambda x: torch.erfinv(torch.sigmoid(x.float())), lambda x: x * (torch.sigmoid(x.float()) > 0.7),
                  lambda x: torch.round(torch.sigmoid(x) * 9).to(torch.int32),
                  lambda x: torch.erfinv(torch.sigmoid(x)).to(torch.float8_e4m3fn)):
        (k,) = kernels(monkeypatch, other, x)
        assert next(s for s in k.body if s.prim == "sigmoid").dst not in approximate.rounded_values(k)
        assert "_rcp_fast" not in emit.emit(k).text
