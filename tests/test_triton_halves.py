"""Functions that kernels compute more cheaply where a half is all that is kept of them: their errors, in Triton's
interpreter, and that they compile; on a GPU, all halves there are."""

import functools
import math

import interpreter
import pytest
import torch
from gpu_texts import compiled_for_gpu, library_calls

import jit
from jit.codegen.triton import emit, halves, ops  # noqa: F401  (emit knows all entries)

ONE = {
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "log": torch.log, "log2": torch.log2, "log10": torch.log10,
    "log1p": torch.log1p, "expm1": torch.expm1, "tanh": torch.tanh, "erf": torch.erf, "erfc": torch.erfc,
    "erfinv": torch.erfinv, "i0": torch.special.i0, "atan": torch.atan, "asin": torch.asin, "acos": torch.acos,
    "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
    "lgamma": torch.lgamma, "digamma": torch.digamma,
}
TWO = {"pow": torch.pow, "atan2": torch.atan2}
# Forms for arguments of which more is known: the function, and the field of ``ops.Context`` that says it.
KNOWN = {"log_of_bfloat16": ("log", "bfloat16"), "log2_of_bfloat16": ("log2", "bfloat16"),
         "log10_of_bfloat16": ("log10", "bfloat16"), "log1p_of_fraction": ("log1p", "fraction")}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e-30, -1e-30]
# Where a value is near zero, and what it is computed from is not: as a share of what is around it.
LOOSE = {"sin": 3e-7, "cos": 3e-7, "tan": 3e-7, "lgamma": 2e-6, "digamma": 2e-6, "acos": 2e-7, "erf": 0, "atan2": 0}


def points() -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    wide = torch.randn(400, generator=g) * torch.exp(torch.randn(400, generator=g) * 3)
    near = torch.cat([torch.linspace(-4, 4, 401), torch.linspace(-1, 1, 301), torch.linspace(0.9, 1.1, 81)])
    some = torch.cat([torch.tensor(SPECIAL), wide.clamp(-3e4, 3e4), near, torch.randn(59, generator=g) * 40])
    return some.half().float()


def text_of(name: str, arity: int, interpret: bool, **known: bool) -> str:
    c = ops.Context(torch.float32, (torch.float32,) * arity, fast=True, interpret=interpret, **known)
    names = ["x", "y"][:arity]
    result = ops.emit(name, c, *names)
    loads = "".join(f"    {n} = tl.load(p{n} + at, mask=inside)\n" for n in names)
    return ("import triton\nimport triton.language as tl\n" + "".join(f"\n\n{h}" for h in c.helpers.values())
            + f"\n\n@triton.jit\ndef kernel({', '.join('p' + n for n in names)}, out, n: tl.constexpr):\n"
            + f"    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)\n    inside = at < n\n{loads}"
            + f"    tl.store(out + at, {result}, mask=inside)\n")


def faults(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: float = 3e-5) -> str:
    """``want``: in float64. Results that underflow in halves may be anything as small."""
    same = (got.double() == want) | got.isnan() & want.isnan()
    apart = (got.double() - want).abs()
    close = apart <= tolerance * want.abs() + max(LOOSE.get(name, 0), 1e-37)
    beyond = want.abs() > (1e36 if name == "i0" else 3e38)  # as eager's formula overflows
    bad = ~(same | close & want.isfinite() | beyond & (got.abs() > 1e36) & (got.sign() == want.sign()))
    return "" if not bad.any() else f"{name}: {bad.sum()} of {bad.numel()}, at {bad.nonzero()[:4].flatten().tolist()}"


def interpret() -> None:
    """In a process of its own, since Triton is told to interpret when it is imported."""
    from jit.codegen.triton.worker import load_function

    x = points()
    for name, function in {**ONE, **TWO}.items():
        two = name in TWO
        a, b = (x, x) if not two else (t.flatten() for t in torch.meshgrid(x[::19], x[::23], indexing="ij"))
        if two:
            s = torch.tensor(SPECIAL)
            p, q = (t.flatten() for t in torch.meshgrid(s, s, indexing="ij"))
            a, b = torch.cat([a, p]), torch.cat([b, q])
        kernel, _ = load_function(text_of(name, 2 if two else 1, True), "kernel")
        out = torch.full_like(a, 77.0)
        kernel[(-(-a.numel() // 1024),)](*([a, b] if two else [a]), out, a.numel())
        want = function(a.double(), b.double()) if two else function(a.double())
        bad = faults(name, out, want, 2e-4 if name == "pow" else 3e-5)
        if bad:
            at = [int(i) for i in bad.split("[")[1].strip("]").split(",")]
            bad += " " + str([(a[i].item(), b[i].item(), out[i].item(), want[i].item()) for i in at])
        print(f"{name} {bad or 'ok'}")
    for name, (function, known) in KNOWN.items():
        x = points().bfloat16().float() if known == "bfloat16" else torch.cat([
            torch.linspace(0, 1, 3001), torch.tensor([math.nan, 0.0, 1.0, 1e-30, 1e-39])])
        text = text_of(function, 1, True, **{known: True})
        kernel, _ = load_function(text, "kernel")
        out = torch.full_like(x, 77.0)
        kernel[(-(-x.numel() // 1024),)](x, out, x.numel())
        bad = faults(name, out, getattr(torch, function)(x.double())) if f"_{name}(" in text else "another form"
        print(f"{name} {bad or 'ok'}")


@functools.cache
def interpreted() -> dict:
    return dict(line.split(" ", 1) for line in interpreter.output(__name__).splitlines())


@pytest.mark.parametrize("name", [*ONE, *TWO, *KNOWN])
def test_error(name):
    assert interpreted()[name] == "ok"


def test_forms_for_what_is_known_of_arguments():
    """Logarithms of float16 numbers, and of what is computed, go another way near 1; those of bfloat16 do not."""
    x = torch.rand(64, 32)

    def texts(program, dtype):
        return "".join(k[1] for c in compiled_for_gpu(program, x.to(dtype)) for k in c.kernels)

    assert "_log_of_bfloat16(" in texts(torch.log, torch.bfloat16)
    assert "_log_of_bfloat16(" in texts(lambda x: torch.xlogy(x, x), torch.bfloat16)
    assert "_log_of_bfloat16(" not in texts(torch.log, torch.float16) + texts(torch.log, torch.float32)
    assert "_log_of_bfloat16(" not in texts(lambda x: torch.log(x.float() + 1).bfloat16(), torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float16):
        assert "_log1p_of_fraction(" in texts(torch.nn.functional.logsigmoid, dtype)
        assert "_log1p_of_fraction(" not in texts(torch.log1p, dtype)
        assert "_log1p_of_fraction(" not in texts(
            lambda x: torch.log1p(torch.exp(-x.float())).to(x.dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_they_compile(dtype):
    """All in one kernel; the functions of angles go around their branch for large ones."""
    def program(x, y):
        return [f(x) for f in ONE.values()] + [f(x, y) for f in TWO.values()] + [torch.nn.functional.logsigmoid(x)]

    x = torch.randn(64, 33).to(dtype)
    compiled = compiled_for_gpu(program, x, x + 1)
    assert not library_calls(compiled)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_all_halves(name, dtype):
    """Nearly all results are eager's, and all are next to them but where values are near zero."""
    every = torch.arange(-(1 << 15), 1 << 15, device="cuda").to(torch.int16).view(dtype)
    if name in TWO:
        some = torch.randn(4096, device="cuda").to(dtype)
        arguments = [every.repeat(4), torch.cat([some, some * 7, torch.tensor(SPECIAL, device="cuda").to(dtype)])]
        arguments[1] = arguments[1].repeat(1 + arguments[0].numel() // arguments[1].numel())[: arguments[0].numel()]
    else:
        arguments = [every]
    function = {**ONE, **TWO}[name]
    got, want = jit.compile(function, fullgraph=True)(*arguments), function(*arguments)
    precise = function(*(a.double() for a in arguments))
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    finite = want.isfinite()
    ulp = (got.double() - precise).abs() / (precise.abs() * torch.finfo(dtype).eps + torch.finfo(dtype).tiny)
    assert (ulp[finite] <= (1.0 if name not in ("lgamma", "erfinv", "digamma") else 2.0)).all(), ulp[finite].max()
    assert (got != want)[finite].float().mean() < 0.02
