"""Products of tensors of two dtypes: PyTorch refuses them, some releases not where there are no elements; results have
the dtype that eager's have."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import jit
from jit.graph import aten

DTYPES = (torch.bool, torch.int32, torch.bfloat16, torch.float64)
PRODUCTS = {  # with the letters of the operands' sizes
    "mv": (torch.mv, "mk k"), "mm": (torch.mm, "mk kn"), "bmm": (torch.bmm, "bmk bkn"), "dot": (torch.dot, "k k"),
    "vdot": (torch.vdot, "k k"), "addmv": (lambda a, v: torch.addmv(a.new_zeros(1), a, v), "mk k"),
    "addmv of the other": (lambda a, v: torch.addmv(v.new_zeros(1), a, v), "mk k"),
    "addmm": (lambda a, b: torch.addmm(a.new_zeros(1), a, b), "mk kn"),
    "baddbmm": (lambda a, b: torch.baddbmm(b.new_zeros(1), a, b), "bmk bkn"), "matrix @ vector": (torch.matmul, "mk k"),
    "vector @ matrix": (torch.matmul, "k kn"), "batch @ vector": (torch.matmul, "bmk k"),
    "vector @ batch": (torch.matmul, "k bkn"), "batch @ batch": (torch.matmul, "bmk bkn"),
    "linear": (F.linear, "mk nk"), "einsum": (lambda a, b: torch.einsum("mk,kn->mn", a, b), "mk kn"),
    "inner": (torch.inner, "mk nk"), "tensordot": (lambda a, b: torch.tensordot(a, b, 1), "mk kn"),
}  # fmt: skip
SIZES = {"m": 2, "k": 3, "n": 4, "b": 2}


@pytest.mark.parametrize("name", PRODUCTS)
def test_of_two_dtypes(name):
    product, letters = PRODUCTS[name]

    def fn(a, b):
        return product(a, b).clamp(min=1)  # whose dtype depends on the product's

    for dtypes in itertools.permutations(DTYPES, 2):
        compiled = jit.compile(fn)
        for nothing in ("", "m", "n", "b", "mn"):  # of rows that are nothing some releases corrupt memory
            found = []
            for f in (fn, compiled):
                a, b = ((torch.ones([0 if c in nothing else SIZES[c] for c in word],
                                    dtype=d) for word, d in zip(letters.split(), dtypes)))
                try:
                    result = f(a, b)
                    found.append((result.dtype, result.shape, result.stride()))
                except (RuntimeError, NotImplementedError) as error:
                    found.append(str(error))
            assert found[0] == found[1], (nothing, dtypes)


@pytest.mark.parametrize("statistics", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("call", [
    lambda x, w, b, m, v: torch.native_batch_norm(x, w, b, m, v, True, 0.1, 1e-5),
    lambda x, w, b, m, v: torch.ops.aten._native_batch_norm_legit(x, w, b, m, v, True, 0.1, 1e-5),
    lambda x, w, b, m, v: torch.ops.aten._native_batch_norm_legit(x, w, b, m, v, False, 0.1, 1e-5),
    lambda x, w, b, m, v: torch.ops.aten._batch_norm_with_update(x, w, b, m, v, 0.1, 1e-5),
    lambda x, w, b, m, v: torch.nn.functional.batch_norm(x, m, v, w, b, True),
], ids=["native", "legit", "evaluation", "with_update", "functional"])
def test_statistics_of_batch_norms_have_their_dtype(call, statistics):
    def made():
        torch.manual_seed(3)
        return [torch.randn(6, 4, 5).bfloat16(), *(torch.rand(4).to(statistics) + 0.5 for _ in range(4))]

    compiled = jit.compile(call)
    for _ in range(2):
        given, ours = made(), made()
        want, got = call(*given), compiled(*ours)
        for a, b in (zip([*(want if isinstance(want, tuple) else [want]), *given],
                         [*(got if isinstance(got, tuple) else [got]), *ours])):
            torch.testing.assert_close(b, a, rtol=2e-2, atol=2e-2)


def test_a_library_call_with_another_dtype_than_announced_runs_in_eager(monkeypatch):
    """Its memory is not read as that of another dtype, whatever a type rule says."""
    asked = aten.types_by_probe

    def wrong(*args):
        types, *rest = asked(*args)
        return types.replace(dtype=torch.float64), *rest

    monkeypatch.setattr(aten, "types_by_probe", wrong)
    x = torch.randn(3, 4)
    torch.testing.assert_close(jit.compile(lambda x: torch.logcumsumexp(x, 0).exp())(x), torch.logcumsumexp(x, 0).exp())
