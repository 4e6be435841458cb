"""``python -m tests.sweeps.numbers``: do numbers and 0-dimensional tensors beside tensors of every dtype count as they
do in eager?

Whether a number is rounded to the tensor's dtype, and where, differs between eager's operators and devices, and decides
comparisons, zeros and infinities. Each expression below is compiled on the default backend with each number in place of
``N``, and compared with eager: results, gradients, dtypes and exceptions.
"""

import argparse
import re
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sweeps import workers  # noqa: E402
from sweeps.database import tensors_of  # noqa: E402

EXPRESSIONS = """
x + N ; N + x ; x - N ; N - x ; x * N ; x / N ; N / x ; x // N ; N // x ; x % N ; N % x ; x ** N ; N ** x ; -x * N
x.add(N).mul(N)
x == N ; x != N ; x < N ; x <= N ; x > N ; x >= N ; N < x ; N >= x ; torch.eq(x, N) ; torch.logical_and(x > N, x < 2)
torch.isin(x, N)
x & N ; x | N ; x ^ N ; x << N ; x >> N ; torch.bitwise_and(N, x) ; torch.gcd(x, torch.tensor(N)) ; N << x
torch.fmod(x, N) ; torch.remainder(x, N) ; torch.remainder(N, x) ; torch.div(x, N, rounding_mode='trunc')
torch.div(x, N, rounding_mode='floor')
x.clamp(N, 2) ; x.clamp_min(N) ; x.clamp_max(N) ; x.clamp(-2, N) ; x.clamp(N) ; x.clamp(max=N)
x.clamp(min=torch.tensor(N, dtype=x.dtype, device=x.device))
torch.where(x > 0, x, N) ; torch.where(x > 0, N, x) ; torch.where(x > 0, N, 2) ; x.masked_fill(x > 0, N)
x.index_fill(0, i, N) ; x.where(x > 0, N)
torch.add(x, y, alpha=N) ; torch.sub(x, y, alpha=N) ; torch.rsub(x, y, alpha=N)
torch.index_add(x, 0, i, y[:2], alpha=N) ; torch.rsub(x, N)
F.leaky_relu(x, N) ; F.elu(x, N) ; F.celu(x, N) ; F.threshold(x, N, 0.5) ; F.threshold(x, 0.5, N)
F.hardtanh(x, -abs(N), abs(N)) ; F.softplus(x, N)
F.softplus(x, 1.0, N) ; F.hardshrink(x, N) ; F.softshrink(x, abs(N)) ; F.rrelu(x, abs(N), abs(N)) ; F.logsigmoid(x * N)
F.glu(x) * N ; F.gelu(x * N)
torch.lerp(x, y, N) ; torch.addcmul(x, x, y, value=N) ; torch.addcdiv(x, x, y, value=N) ; x.nan_to_num(N)
torch.nan_to_num(x / 0, 1, N, N)
torch.copysign(x, N) ; torch.copysign(N, x) ; torch.float_power(x, N) ; torch.float_power(N, x) ; torch.full_like(x, N)
x.new_full((3,), N) ; torch.fill(x, N)
x.clone().fill_(N) ; F.pad(x, (1, 1), value=N) ; torch.logit(x, abs(N)) ; torch.xlogy(x, N) ; torch.xlogy(N, x.abs())
torch.special.xlog1py(x, N)
x.clone().add_(N) ; x.clone().mul_(N) ; x.clone().div_(N) ; x.clone().sub_(N) ; x.clone().pow_(N)
x.clone().clamp_(N, 2) ; x.clone().remainder_(N)
x.clone().masked_fill_(x > 0, N) ; x.clone().index_fill_(0, i, N) ; x.clone().copy_(y * N) ; x.clone().eq_(N)
x.clone().floor_divide_(N)
F.smooth_l1_loss(x, y, beta=abs(N), reduction='none') ; F.huber_loss(x, y, delta=abs(N), reduction='none')
F.normalize(x, dim=-1, eps=abs(N))
F.margin_ranking_loss(x, y, (x > 0).to(x.dtype) * 2 - 1, margin=N, reduction='none')
F.hinge_embedding_loss(x, (y > 0).to(x.dtype) * 2 - 1, margin=N)
x + torch.tensor(N) ; x - torch.tensor(N) ; x * torch.tensor(N) ; x / torch.tensor(N) ; torch.tensor(N) / x
x > torch.tensor(N) ; x >= torch.tensor(N)
torch.remainder(x, torch.tensor(N)) ; torch.maximum(x, torch.tensor(N)) ; torch.pow(x, torch.tensor(N))
torch.fmod(x, torch.tensor(N)) ; x // torch.tensor(N)
torch.where(x > 0, x, torch.tensor(N)) ; x.masked_fill(x > 0, torch.tensor(N)) ; torch.atan2(x, torch.tensor(N))
torch.hypot(x, torch.tensor(N))
x + t ; x - t ; x * t ; x / t ; t / x ; x > t ; x == t ; x ** t ; t ** x ; torch.maximum(x, t) ; torch.fmin(x, t)
torch.remainder(x, t) ; x // t
torch.where(x > 0, x, t) ; torch.copysign(x, t) ; torch.xlogy(x, t) ; torch.atan2(x, t)
torch.lerp(x, y, t.to(x.dtype)) ; torch.heaviside(x, t.to(x.dtype))
torch.isclose(x, y, N, N) ; F.cosine_similarity(x, y, eps=abs(N)) ; F.pairwise_distance(x, y, eps=N)
F.layer_norm(x, (4,), eps=abs(N)) ; x.softmax(-1) > N
x.sum(-1) * N ; x.sum(-1) > N ; x.mean() * N ; x.cumsum(0) * N ; x.amax(-1) == N ; x.norm() > N ; x.sum() / N
(x > N).sum() ; (x == N).any() ; (x * N).sum()
torch.linspace(0, N, 5, dtype=x.dtype, device=x.device)
torch.arange(0, 5, abs(N) + 0.5, dtype=x.dtype, device=x.device) ; torch.full((3,), N, dtype=x.dtype)
torch.tensor([N], device=x.device) + x ; torch.tensor(N, dtype=x.dtype, device=x.device) ; x[x > N].sum()
torch.searchsorted(y.flatten().sort()[0], N)
torch.clip(x, min=N) ; F.dropout(x, 0.0) * N ; torch.true_divide(x, N) ; torch.floor_divide(x, N)
torch.ldexp(x, torch.tensor(2)) ; x.eq(N) ; x.lt(N) ; x.ge(N)
"""
FLOATS = (1e-12, 0.1, -1 / 3, 1000.7, 1e-6, 1e39, float("inf"), float("nan"))
INTEGERS = (-1, 3, 300, 2**31, 2**40 + 1, 2**53 + 1)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.int8,
          torch.uint8, torch.bool)
ULPS = 4
NAN = slice(5, 6)  # the row of the arguments that has infinities and NaN


def expressions():
    found = []
    for line in EXPRESSIONS.strip().splitlines():
        found += line.split(" ; ")
    return list(dict.fromkeys(found))


def arguments(dtype, device):
    """(x, y, i): two matrices with numbers that halves hold, and that they round, zeros of both signs, large numbers,
    infinities and NaN; two rows' indices."""
    rng = torch.Generator().manual_seed(1)
    some = torch.tensor([[0.0, -0.0, 1e-7, 300.0], [0.1, -0.1, 1 / 3, -1 / 3],
                         [float("inf"), float("-inf"), float("nan"), 2.0]])
    x = torch.cat([torch.randint(-8, 9, (3, 4), generator=rng) / 4, some, torch.randn(3, 4, generator=rng)])
    y = torch.randn(9, 4, generator=rng)
    x, y = ((t if dtype.is_floating_point else (t * 2).nan_to_num().clamp(-100, 100).long()).to(dtype).to(device)
            for t in (x, y))
    return [t.requires_grad_(dtype.is_floating_point) for t in (x, y)] + [torch.tensor([0, 2], device=device)]


def outcome(fn, dtype, device, number, rows=slice(None)):
    """Results and gradients of a call, or its exception. ``rows``: those of the matrices that are given."""
    x, y, i = arguments(dtype, device)
    x, y = (t.detach()[rows].clone().requires_grad_(t.requires_grad) for t in (x, y))
    torch.manual_seed(0)
    try:
        result = tensors_of(fn(x, y, i, torch.tensor(number, device=device)))
        wanted = [t for t in result if t.requires_grad]
        grads = torch.autograd.grad(wanted, (x, y), [torch.ones_like(t) for t in wanted],
                                    allow_unused=True) if wanted else ()
        return [t.detach() for t in result], grads
    except Exception as error:
        return error


def unlike(want, got, strides: bool) -> str | None:
    """How a tensor differs from eager's by more than roundings."""
    if (want is None) != (got is None):
        return f"{'nothing' if want is None else 'a tensor'} in eager"
    if want is None:
        return None
    if want.dtype != got.dtype or want.shape != got.shape or strides and want.stride() != got.stride():
        return (f"{want.dtype} {tuple(want.shape)} {want.stride()} in eager, {got.dtype} "
                f"{tuple(got.shape)} {got.stride()} compiled")
    same = (want == got) | (want != want) & (got != got)
    if want.dtype.is_floating_point:
        close = ULPS * torch.finfo(want.dtype).eps
        same |= torch.isclose(want.double(), got.double(), close, torch.finfo(want.dtype).tiny)
    at = (~same).flatten().nonzero().flatten()[:3].tolist()
    return ", ".join(f"{want.flatten()[k].item()} is {got.flatten()[k].item()}" for k in at) or None


def with_nan_alone(want, alone):
    """A result of eager's with the row of ``NAN`` as eager has it without the other rows. At NaN some of its kernels
    give one thing in whole vectors and another in what is left behind them, so that what they give hangs on the
    machine's vectors."""
    if alone is None or want is None or want.shape != (9, 4) or alone.shape != (1, 4):
        return want
    return torch.cat([want[:NAN.start], alone, want[NAN.stop:]])


def check(expression: str, device: str, dtypes, symbolic: bool = False, rounding: bool = False,
          numbers=(*FLOATS, *INTEGERS)) -> list:
    """What an expression gives that differs from eager."""
    import jit

    jit.config.match_eager_rounding = rounding
    found = []
    for dtype in dtypes:
        for number in numbers:
            body = re.sub(r"\bN\b", "n" if symbolic else f"({number!r})", expression)
            text = f"def f(x, y, i, t, n=None):\n    return {body}\n"
            functions = []
            for _ in range(2):
                space = {"torch": torch, "F": F, "inf": float("inf"), "nan": float("nan")}
                exec(compile(text, f"<{expression}>", "exec"), space)
                functions.append(space["f"])
            jit.reset()
            functions[1] = jit.compile(functions[1], dynamic=True if symbolic else None)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                if symbolic:
                    want, got = (outcome(lambda *a, f=f: f(*a, number), dtype, device, number) for f in functions)
                else:
                    want, got = (outcome(f, dtype, device, number) for f in functions)
            why = next((str(w.message) for w in told if re.match(r"jit: .*(failed|internal)", str(w.message))), None)
            if isinstance(want, Exception) or isinstance(got, Exception):
                if type(want) is not type(got):
                    why = (f"{type(want).__name__ if isinstance(want, Exception) else 'no exception'} "
                           f"in eager, {type(got).__name__} compiled: {want if isinstance(want, Exception) else got}"[
                               :200])
            else:
                for kind, a, b in (("result", want[0], got[0]), ("gradient", want[1], got[1])):
                    if len(a) != len(b):
                        why = why or f"{len(a)} {kind}s in eager, {len(b)} compiled"
                    for k, (u, v) in enumerate(zip(a, b)):
                        how = unlike(u, v, kind == "result")
                        if how and "nan" in how:
                            call = functions[0] if not symbolic else lambda *args: functions[0](*args, number)
                            row = outcome(call, dtype, device, number, NAN)
                            if not isinstance(row, Exception):
                                how = unlike(with_nan_alone(u, row[kind == "gradient"][k]), v, False)
                        why = why or how and f"{kind} {k}: {how}"
            if why:
                found.append(f"{dtype}, N = {number!r}: {why}")
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", help="regular expression over the expressions")
    p.add_argument("--dtypes", help="separated by commas (all)")
    p.add_argument("--device", default="cpu")
    p.add_argument("--symbolic", action="store_true", help="numbers are arguments, with symbols from the start")
    p.add_argument("--rounding", action="store_true", help="with jit.config.match_eager_rounding")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--timeout", type=float, default=600, help="seconds for one expression")
    given = p.parse_args()
    import jit

    jit.runtime.native()
    dtypes = [getattr(torch, name) for name in given.dtypes.split(",")] if given.dtypes else DTYPES
    chosen = [e for e in expressions() if not given.only or re.search(given.only, e)]

    def report(expression, findings):
        for text in findings:
            print(f"{expression}: {text}", flush=True)

    def checked(expression):
        torch.set_num_threads(1)
        return check(expression, given.device, dtypes, given.symbolic, given.rounding)

    done = workers.run(chosen, checked, given.jobs, given.timeout, report)
    wrong = sum(bool(v) for v in done.values())
    print(f"{len(done)} expressions, {wrong} differ from eager")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
