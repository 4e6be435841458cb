"""``python -m tests.fuzz.tensors``: random programs on tensors, compiled with the default backend, against eager.

Each program is called many times in one entry's life: at several sizes (0 and 1 among them), layouts (dense, sliced,
transposed, expanded, stepped, at an offset), dtypes, with arguments that share memory, with nan, infinities, negative
zeros and extremes, with gradients and without, in random order. Compared are results, arguments afterwards, the storage
around them, gradients, and the types of exceptions. A hundred programs share a process, so that one that dies is a
finding; what the compiler warns about itself is one too.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sweeps import workers  # noqa: E402
from sweeps.database import difference, mapped, tensors_of  # noqa: E402
from fuzz.judge import overlapping, truth  # noqa: E402

# {a} and {b} stand for tensors of the program, {i} for one of indices, {n} for the integer and {s} for the float among
# its arguments, {k} for a small number.
EXPRESSIONS = """
{a} + {b} | {a} - {b} * 2 | {a} * {b} | {a} / ({b}.abs() + 1) | {a} * {s} | {a} + {n} | {s} - {a} | {a} ** 2
torch.maximum({a}, {b}) | torch.where({a} > {b}, {a}, {b})
{a}.relu() | {a}.tanh() | torch.sigmoid({a}) | F.gelu({a}, approximate='tanh') | {a}.abs().sqrt()
{a}.exp().clamp(max=100) | torch.nan_to_num({a}) | {a}.neg() | {a}.round() | {a}.sign()
{a}.clamp(-1, {s}) | torch.addcmul({a}, {b}, {b}, value=0.5) | torch.lerp({a}, {b}, 0.25) | F.silu({a})
F.leaky_relu({a}, 0.1) | torch.clamp({a}, min={k})
{a}.sum() | {a}.sum(-1) | {a}.sum(0, keepdim=True) | {a}.mean(-1, keepdim=True) | {a}.amax(-1) | {a}.amin(0)
{a}.var(-1) | {a}.std(0, unbiased=False) | {a}.prod(-1)
{a}.logsumexp(-1) | {a}.norm(dim=-1) | {a}.cumsum(-1) | {a}.cumsum(0) | {a}.argmax(-1) | {a}.max(-1).values
{a}.any(-1) | ({a} > 0).all() | {a}.count_nonzero(-1)
torch.softmax({a}, -1) | torch.log_softmax({a}, -1) | F.layer_norm({a}, {a}.shape[-1:]) | F.normalize({a}, dim=-1)
{a} - {a}.mean(0) | {a}.softmax(0)
{a}.t() | {a}.transpose(-1, 0) | {a}[1:] | {a}[:-1] | {a}[..., ::2] | {a}[:, 1:] | {a}[0] | {a}[-1] | {a}[:, None]
{a}.unsqueeze(-1) | {a}.squeeze() | {a}.flatten()
{a}.reshape(-1) | {a}.view(-1) | {a}.contiguous() | {a}.clone() | {a}.expand(2, *{a}.shape) | {a}.repeat(2, 1)
{a}.flip(-1) | {a}.roll(1, 0) | {a}.diagonal() | {a}.detach()
{a}.narrow(-1, 0, 1) | {a}[:, :{n}] | {a}[{n}:] | {a}.chunk(2, -1)[0] | {a}.split(2, 0)[-1] | torch.cat([{a}, {b}], -1)
torch.cat([{a}, {a}[:1]]) | torch.stack([{a}, {a}])
F.pad({a}, (1, {k})) | {a}.tril() | {a}.triu(1) | torch.atleast_2d({a}) | torch.einsum('ij->ji', {a})
{a}.unfold(-1, 2, 1) | {a}.as_strided({a}.shape, {a}.stride()) | {a}.mT
{a} @ {b}.t() | {a}.t() @ {b} | torch.matmul({a}, {a}.transpose(-1, -2)) | F.linear({a}, {b})
torch.outer({a}.flatten()[:3], {b}.flatten()[:4])
{a}[{i}] | {a}.index_select(0, {i}) | F.embedding({i}, {a}) | {a}.gather(0, {i}[:, None].expand(-1, {a}.shape[-1]))
{a}.take({i}) | {a}[:, {i}] | {a}[{i}, {i}]
{a}.flatten()[({a} > {b}).long().flatten()] | {a}[({b}.sum(-1) > 0).long()]
torch.zeros_like({a}).index_add(0, {i}, {a}[{i}]) | {a}.index_fill(0, {i}, 2)
torch.zeros_like({a}).scatter_add(0, {i}[:, None].expand(-1, {a}.shape[-1]), {a}[{i}]) | {a}.masked_fill({a} > {s}, -1)
{a}.index_copy(0, {i}[:1], {a}[:1])
{a}.float() | {a}.double() | {a}.half() | {a}.long() | {a}.bool() | {a}.to(torch.bfloat16) | ({a} > {b}) | ({a} == {b})
{a}.isnan() | {a} != 0 | {a}.int() // 2 | {a}.long() % 3
F.one_hot({i}, 12).sum(0) | torch.arange({a}.shape[-1]) + {a} | torch.ones({a}.shape[0], {n}) | {a}.new_full((2,), {s})
torch.zeros({a}.shape) | torch.full_like({a}, {k})
{a} * {a}.shape[0] | {a}.sum() / {a}.numel() | ({a}.shape, {a}.stride(), {a}.is_contiguous()) | {a}.sort(-1).values
{a}.topk(1).values | {a}.kthvalue(1).values | {a}.median(-1).values
F.cross_entropy({a}, ({b}.sum(-1) > 0).long()) | F.mse_loss({a}, {b})
F.nll_loss(torch.log_softmax({a}, -1), {i}[:{a}.shape[0]]) | F.smooth_l1_loss({a}, {b}) | torch.dist({a}, {b})
F.rms_norm({a}, {a}.shape[-1:]) | F.batch_norm({a}, None, None, training=True) | F.avg_pool1d({a}[None], 2)
F.max_pool1d({a}[None], 2) | F.interpolate({a}[None, None], scale_factor=2)
"""
STATEMENTS = """
{a}.add_(1) | {a}.mul_({s}) | {a}.add_({b}) | {a}.clamp_(-1, 1) | {a}.zero_() | {a}.copy_({b}) | {a}[0] = {s}
{a}[:, 1:] = 0 | {a}[..., ::2] += 1 | {a}[{i}] = {s} | {a}.relu_()
{a}[1:].mul_(2) | {a}.t().add_(1) | {a}.view(-1)[0] = 3 | {a}.masked_fill_({a} > 1, 0) | {a}[{a} > 1] = -1
{a}.index_add_(0, {i}, {a}[{i}].clone()) | {a}.transpose_(0, 1) | {a}.fill_({k})
{a}.diagonal().add_(1) | torch.add({a}, {b}, out={v}) | {a}.scatter_(0, {i}[:, None], 1.5) | {a}.index_fill_(0, {i}, 0)
{a}.squeeze_() | {a}.unsqueeze_(0) | {a}.sub_({a}.mean())
"""
SIZES = ((3, 4), (5, 4), (4, 7), (2, 9), (6, 6), (1, 5), (4, 1), (0, 4), (3, 0), (17, 33), (9, 70), (64, 18))
DTYPES = (torch.float32,) * 8 + (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
                                 torch.bool)
LOST_BY_EAGER = "a kernel of eager's has lost the GPU"
HEADER = "import torch\nimport torch.nn.functional as F\n\n\ndef f(x, y, i, n, s):\n"
CALLS = 12  # of each program


def rows(text):
    return [e.strip() for line in text.strip().splitlines() for e in line.split(" | ")]


EXPRESSIONS, STATEMENTS = rows(EXPRESSIONS), rows(STATEMENTS)


def generate(seed: int) -> str:
    """The text of a program: ``f(x, y, i, n, s)`` on two tensors, a vector of indices, an int and a float."""
    rng = random.Random(f"tensors {seed}")
    names, lines = ["x", "y"], []
    written, silent = rng.random() < 0.4, rng.random() < 0.2

    def filled(template):
        pick = lambda: rng.choice(names[-4:] + ["x", "y"])  # noqa: E731
        return re.sub(r"\{(\w)\}", lambda m: {"a": pick, "b": pick, "v": pick, "i": lambda: "i", "n": lambda: "n",
                                              "s": lambda: rng.choice(["s", "0.5", "2"]),
                                              "k": lambda: str(rng.randrange(3))}[m[1]](), template)

    for step in range(rng.randrange(2, 9)):
        kind = rng.random()
        if written and kind < 0.3:
            lines.append(filled(rng.choice(STATEMENTS)))
        elif silent and kind < 0.45:
            lines.append("with torch.no_grad():")
            if written and kind < 0.37:
                lines.append("    " + filled(rng.choice(STATEMENTS)))
            else:
                lines.append(f"    v{step} = {filled(rng.choice(EXPRESSIONS))}")
                names.append(f"v{step}")
        elif kind > 0.94:
            condition = rng.choice(["x.shape[0] > 3", "x.shape[-1] % 2", "n > 2", "x.dim() == y.dim()",
                                    "y.stride(0) > 4", "x is y"])
            lines.append(f"if {condition}:")
            lines.append("    x = " + filled(rng.choice(EXPRESSIONS)))
        else:
            lines.append(f"v{step} = {filled(rng.choice(EXPRESSIONS))}")
            names.append(f"v{step}")
    lines.append(f"return {', '.join(dict.fromkeys(names[-3:]))}")
    return HEADER + "".join(f"    {line}\n" for line in lines)


# arguments

def values(rng, shape, dtype, special):
    """Multiples of 1/4, so that sums and products round alike; ``special`` puts extremes among them."""
    t = torch.randint(-8, 9, shape, generator=rng).double() / 4
    if dtype is torch.bool:
        return t > 0
    if dtype is torch.uint8:
        t = t.abs()
    if special and dtype.is_floating_point and t.numel():
        extremes = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, torch.finfo(dtype).max,
                                 torch.finfo(dtype).tiny, 1e-30, 300.0], dtype=torch.float64)
        at = torch.randint(0, 4, shape, generator=rng) == 0
        t = torch.where(at, extremes[torch.randint(0, len(extremes), shape, generator=rng)], t)
    return t.to(dtype)


def place(rng, t, layout):
    """(storage as a flat tensor, view of it with the values of ``t``)."""
    shape = t.shape
    if layout == "transposed":
        base = torch.full((*shape[::-1],), 7).to(t.dtype)
        view = base.t()
    elif layout == "sliced":
        base = torch.full((shape[0], shape[1] + 3), 7).to(t.dtype)
        view = base[:, 2 : 2 + shape[1]]
    elif layout == "stepped":
        base = torch.full((2 * shape[0], 3 * shape[1]), 7).to(t.dtype)
        view = base[::2, ::3]
    elif layout == "offset":
        base = torch.full((t.numel() + 5,), 7).to(t.dtype)
        view = base[3 : 3 + t.numel()].view(shape)
    elif layout == "expanded" and shape[0]:
        base = t[:1].clone()
        return base, base.expand(shape)
    else:
        base = t.clone()
        return base, base
    view.copy_(t)
    return base, view


def arguments(seed, device):
    """A function that makes the arguments of one call afresh: (x, y, i, n, s), and the leaves and storages behind them;
    ``wide``: in double precision."""
    def make(wide=False):
        rng, draw = torch.Generator().manual_seed(seed), random.Random(seed)
        size = draw.choice(SIZES)
        dtype = draw.choice(DTYPES)
        special = draw.random() < 0.2
        grad = draw.random() < 0.35
        kept, tensors = [], []
        for _ in range(2):
            base, view = place(
                rng, values(rng, size, dtype, special).to(torch.float64 if wide and dtype.is_floating_point else dtype),
                draw.choice(("dense", "dense", "dense", "sliced", "transposed", "expanded", "stepped", "offset")))
            base = base.to(device)
            if device != "cpu":  # moved with its layout
                view = base.as_strided(view.shape, view.stride(), view.storage_offset())
            if grad and dtype.is_floating_point:
                leaf = base.detach().requires_grad_()
                view = leaf.as_strided(view.shape, view.stride(), view.storage_offset()) if view is not base else leaf
                base = leaf
            kept.append(base)
            tensors.append(view)
        alias = draw.random()
        if alias < 0.12:
            tensors[1] = tensors[0]
        elif alias < 0.18:
            tensors[1] = tensors[0].flip(0) if grad else tensors[0][:, :]
        elif alias < 0.22 and size[0] > 1 and not grad:
            tensors[1] = tensors[0][: size[0] - 1]
        index = torch.randint(0, max(size[0], 1), (draw.choice((1, 3, 5)),), generator=rng)
        if draw.random() < 0.1:
            index[0] = draw.choice((-1, size[0], 10**9, -100))
        return (*tensors, index.to(device), draw.randrange(0, 5), draw.choice((0.5, 1.0, 1.5, -2.0))), kept
    return make


def observe(fn, make, wide=False):
    """(result or exception, gradients, arguments and the storages around them afterwards)."""
    default = torch.get_default_dtype()
    try:
        if wide:
            torch.set_default_dtype(torch.float64)
        return _observed(fn, *make(wide))
    finally:
        torch.set_default_dtype(default)


def _observed(fn, args, kept):
    torch.manual_seed(3)
    gradients = None
    try:
        result = fn(*args)
    except Exception as error:
        return error, None, [t.detach().clone() for t in kept]
    wanted = [t for t in tensors_of(result) if t.requires_grad]
    leaves = [t for t in kept if t.requires_grad]
    if wanted and leaves:
        try:
            loss = sum((t.double() * torch.linspace(0.5, 1.5, t.numel(), device=t.device).view(t.shape)).sum()
                       for t in wanted)
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        except Exception as error:
            gradients = error
    return (mapped(lambda t: t.detach() if not t.requires_grad else t, result), gradients,
            [t.detach().clone() for t in kept])


def compared(want, got, exact=(None, None, None), least=None, ties=False):
    return (difference(want[0], got[0], "result", True, exact[0], least,
                       ties) or difference(want[1], got[1], "gradient", False, exact[1], least, ties)
            or difference(want[2], got[2], "memory", True, exact[2], least, ties))


def _truth(fn, make, want, raises=False):
    """What ``judge.truth`` says of a call, None where eager itself gives
    another outcome than ``want`` a second time, as where it reads memory that nobody has written, or writes into what
    it reads, which is no excuse for an exception too many or too few (``raises``)."""
    if not raises and overlapping(lambda: observe(fn, make)):
        return None
    for left in (7.25e9, -3.0):
        junk = [torch.full((size,), left) for size in (*range(1, 65), *range(80, 1200, 16)) for _ in range(4)]
        del junk
        if compared(want, observe(fn, make)):
            return None
    dtype = next((a.dtype for a in make()[0] if torch.is_tensor(a) and a.is_floating_point()), torch.float32)
    return truth(lambda: observe(fn, make, wide=True), dtype)


def _refused(fn, make) -> bool:
    """Whether the CPU raises: a GPU's kernels would stop the process then, in eager as well, where an index is outside
    of a tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = observe(fn, make)
    return isinstance(want[0], Exception) or isinstance(want[1], Exception)


def _calls(seed: int, calls: int) -> tuple:
    """(``dynamic``, what ``arguments`` takes for each call) of a program."""
    rng = random.Random(f"calls {seed}")
    return rng.choice((None, None, True)), [rng.randrange(1 << 30) for _ in range(calls)]


def eager_alone(seed: int, device) -> None:
    """The calls of ``run`` without what is compiled: where the process ends or loses its GPU here too, the program
    shows nothing."""
    space = {}
    exec(compile(generate(seed), f"<tensors {seed}>", "exec"), space)
    for number in _calls(seed, CALLS)[1]:
        if device == "cpu" or not _refused(space["f"], arguments(number, "cpu")):
            observe(space["f"], arguments(number, device))


def run(seed: int, device="cpu", text=None, calls=CALLS) -> str | None:
    """What is wrong with a program, or None."""
    import jit

    program = generate(seed) if text is None else text
    spaces = [{}, {}]
    for space in spaces:
        exec(compile(program, f"<tensors {seed}>", "exec"), space)
    jit.reset()
    dynamic, numbers = _calls(seed, calls)
    compiled = jit.compile(spaces[1]["f"], dynamic=dynamic)
    for call, number in enumerate(numbers):
        if device != "cpu" and _refused(spaces[0]["f"], arguments(number, "cpu")):
            continue
        make = arguments(number, device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = observe(spaces[0]["f"], make)
        if device != "cpu":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise RuntimeError(LOST_BY_EAGER) from error
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = observe(compiled, make)
        failed = [str(w.message) for w in told if re.match(r"jit: .*(failed|internal)", str(w.message))]
        why = failed[0] if failed else compared(want, got)
        raises = isinstance(want[0], Exception) or isinstance(got[0], Exception)
        if why and not failed and (raises or "values differ" in why):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exact = _truth(spaces[0]["f"], make, want, raises)
            least = torch.bfloat16 if "bfloat16" in program else torch.float16 if ".half()" in program else None
            halves = least or any(torch.is_tensor(a) and a.dtype in (torch.float16, torch.bfloat16) for a in make()[0])
            why = compared(want, got, exact, least, bool(halves)) if exact is not None else None
        if why:
            args, _ = make()
            shapes = ", ".join(f"{tuple(a.shape)} {a.stride()} {a.dtype}" if torch.is_tensor(a) else repr(a)
                               for a in args)
            return f"call {call} ({shapes}; dynamic={dynamic}): {why}"
    return None


def main():
    p = argparse.ArgumentParser(prog="python -m tests.fuzz.tensors", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", type=int, default=500)
    p.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--chunk", type=int, default=100, help="programs per process")
    p.add_argument("--device", default="cpu")
    p.add_argument("--timeout", type=float, default=600, help="seconds for one process")
    p.add_argument("--seconds", type=float, help="after these no further process is started")
    p.add_argument("--level", help="build kernels with this in place of -O3: -O0 is twice "
                                   "as fast, and misses only what the C++ compiler itself gets wrong")
    p.add_argument("--show", type=int, metavar="SEED", help="print a program and what is wrong with it instead")
    given = p.parse_args()
    if given.jobs < 1:
        p.error("--jobs: at least one process")
    if given.level:
        from jit.codegen import toolchain

        toolchain.FLAGS = tuple(given.level if flag == "-O3" else flag for flag in toolchain.FLAGS)
    if given.show is not None:
        print(generate(given.show))
        print(run(given.show, given.device))
        return 0
    import jit

    jit.runtime.native()
    last = given.seed + given.programs

    def checked(first):
        torch.set_num_threads(1)
        return [f"seed {seed}: {why}"
                for seed in range(first, min(first + given.chunk, last)) if (why := run(seed, given.device))]

    def alone(seed):
        torch.set_num_threads(1)
        eager_alone(seed, given.device)
        return []

    def one(seed):
        torch.set_num_threads(1)
        why = run(seed, given.device)
        return [f"seed {seed}: {why}"] if why else []

    def died(found):
        return found.startswith(("the process", "takes more", "the check itself"))

    dead = []

    chunks = itertools.count(1)

    def report(first, found):
        at = next(chunks)
        if at % 25 == 0:
            print(f"{at * given.chunk} programs", file=sys.stderr, flush=True)
        if any(map(died, found)):
            dead.append(first)
            return
        for text in found:
            print(text, flush=True)

    until = time.time() + given.seconds if given.seconds else None
    done = workers.run(list(range(given.seed, last, given.chunk)), checked, given.jobs, given.timeout, report, until)
    wrong = sum(len(v) for k, v in done.items() if k not in dead)
    singles = [seed for first in dead for seed in range(first, min(first + given.chunk, last))]
    single = workers.run(singles, one, given.jobs, 90, lambda seed, found: None)
    lost = [seed for seed, found in single.items() if any(map(died, found))]
    by_eager = {seed for seed, found in workers.run(lost, alone, given.jobs, 90, lambda seed, found: None).items()
                if any(map(died, found))}
    by_eager |= {seed for seed in lost if any(LOST_BY_EAGER in text for text in single[seed])}
    for seed, found in single.items():
        for text in found:
            print(f"seed {seed}: eager alone: {text}"[:300] if seed in by_eager else text
                  if text.startswith("seed") else f"seed {seed}: {text}", flush=True)
    wrong += sum(bool(found) and seed not in by_eager for seed, found in single.items())
    programs = sum(min(given.chunk, last - first) for first in done)
    print(f"{programs} programs, {wrong} differ from eager or fail"
          + (f"; {len(by_eager)} end the process in eager" if by_eager else ""))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
