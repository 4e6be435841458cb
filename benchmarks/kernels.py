"""Memory-bound kernels: eager, torch.compile and jit on the same inputs, against the rate of a plain copy in the same
run.

Each row is one function that a fusing compiler should turn into one or two passes over memory. "of copy" is the rate at
which its inputs are read once and its outputs written once, over the rate of a copy of 64 million bytes or more: 1.0 is
as fast as memory allows. The last line is the geometric mean of the ratios of times.
"""

from __future__ import annotations

import time

import _harness as harness
import torch
import torch.nn.functional as F
from _compare import TOLERANCE, difference, table, tensors


def bias_gelu(x, b):
    return F.gelu(x + b)


def gated_silu(a, b):
    return F.silu(a) * b


def softmax(x):
    return torch.softmax(x, -1)


def scaled_masked_softmax(x, mask):
    return torch.softmax(torch.where(mask, x * 0.125, float("-inf")), -1)


def log_softmax(x):
    return F.log_softmax(x, -1)


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def residual_layer_norm(x, r, w, b):
    return F.layer_norm(x + r, x.shape[-1:], w, b)


def rms_norm(x, w):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def rotary(q, cos, sin):
    left, right = q.chunk(2, -1)
    return q * cos + torch.cat((-right, left), -1) * sin


def adam_step(p, g, m, v):
    m = torch.lerp(m, g, 0.1)
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def sum_of_all(x):
    return x.float().sum()


def column_mean(x):
    return x.float().mean(0)


def row_variance(x):
    return x.var(-1)


def add_transposed(x, y):
    return x.t() + y


def cross_entropy(x, target):
    return F.cross_entropy(x.float(), target)


def sin_tanh_exp(x):
    return torch.exp(-torch.tanh(torch.sin(x)))


def cases(device: str, dtype: torch.dtype, rows: int) -> dict:
    """{name: (function, arguments)}; matrices are ``rows`` by 4096 elements."""

    def rand(*shape):
        return torch.randn(*shape, device=device, dtype=dtype)

    x, y, w, b = rand(rows, 4096), rand(rows, 4096), rand(4096), rand(4096)
    wide = rand(max(rows // 8, 1), 32768)
    return {
        "sin_tanh_exp": (sin_tanh_exp, (x,)),
        "bias_gelu": (bias_gelu, (x, b)),
        "gated_silu": (gated_silu, (x, y)),
        "softmax": (softmax, (x,)),
        "masked_softmax": (scaled_masked_softmax, (x, torch.rand(rows, 4096, device=device) > 0.3)),
        "log_softmax_32k": (log_softmax, (wide,)),
        "layer_norm": (layer_norm, (x, w, b)),
        "residual_layer_norm": (residual_layer_norm, (x, y, w, b)),
        "rms_norm": (rms_norm, (x, w)),
        "rotary": (rotary, (rand(max(rows // 512, 1), 32, 512, 128), rand(512, 128), rand(512, 128))),
        "adam_step": (adam_step, (x, y, rand(rows, 4096), rand(rows, 4096).abs())),
        "sum_of_all": (sum_of_all, (x,)),
        "column_mean": (column_mean, (x,)),
        "row_variance": (row_variance, (x,)),
        "add_transposed": (add_transposed, (rand(4096, rows), y)),
        "cross_entropy": (cross_entropy, (wide, torch.randint(0, 32768, (wide.shape[0],), device=device))),
    }


def nbytes(value) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(nbytes(v) for v in value)


def measure(function, args, names, device, seconds, tolerance) -> dict:
    """{compiler: {us, cold_s, error}}; a wrong result is an error."""
    figures, programs = {}, {}
    reference = function(*args)
    for name in names:
        try:
            program = harness.wrap(name, function)
            begin = time.perf_counter()
            out = program(*args)
            harness.sync(device)
            figures[name] = {"cold_s": time.perf_counter() - begin, "bytes": nbytes(args) + nbytes(tensors(out))}
            relative = difference(out, reference)[1]
            if relative > tolerance:
                figures[name]["error"] = f"differs from eager by {relative:.1e}"
            del out
            programs[name] = lambda program=program: program(*args)
        except Exception as error:
            figures[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[
                :120]}
    for name, seconds_taken in harness.interleaved(programs, device, seconds, flush=True).items():
        figures[name]["us"] = seconds_taken * 1e6
    return figures


def main():
    parser = harness.parser(__doc__, seconds=0.5)
    parser.add_argument("--dtype", default=None, help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--rows", type=int, default=None, help="rows of 4096 (default: 16384 on a GPU, 2048 on a CPU)")
    parser.add_argument("--only", default="", help="comma-separated names of rows")
    args = parser.parse_args()
    names = harness.start(args)
    gpu = args.device == "cuda"
    dtype = getattr(torch, args.dtype or ("bfloat16" if gpu else "float32"))
    rows = args.rows or (16384 if gpu else 2048)
    chosen = cases(args.device, dtype, rows)
    if args.only:
        missing = set(args.only.split(",")) - set(chosen)
        if missing:
            raise SystemExit(f"no row {', '.join(sorted(missing))}; there are {', '.join(chosen)}")
        chosen = {name: chosen[name] for name in args.only.split(",")}

    source = torch.randn(max(rows, 4096), 4096, device=args.device, dtype=dtype)
    target = torch.empty_like(source)
    copy = 2 * nbytes(source) / harness.interleaved({"copy": lambda: target.copy_(source)},
                                                    args.device, args.seconds, flush=True)["copy"]
    print(f"{str(dtype)[6:]}, copy {copy / 1e9:.0f} GB/s\n", flush=True)

    saved, lines, ratios, failed = [], [], {name: [] for name in names}, False
    with torch.no_grad():
        for kernel, (function, arguments) in chosen.items():
            figures = measure(function, arguments, names, args.device, args.seconds, TOLERANCE[dtype])
            saved.append({"kernel": kernel, **figures})
            line = [kernel]
            for name in names:
                row = figures[name]
                if "error" in row:
                    failed |= name.startswith("jit")
                    line.append(row["error"] if "us" not in row else f"WRONG ({row['error']})")
                    continue
                line.append(f"{row['us']:.0f} us  {row['bytes'] / row['us'] * 1e6 / copy:.2f}  {row['cold_s']:5.2f} s")
                if "us" in figures.get("eager", {}) and name != "eager":
                    ratios[name].append(figures["eager"]["us"] / row["us"])
            lines.append(line)
            print("  ".join(line), flush=True)
    print("\ntime, share of copy, first call")
    print(table(["", *names], lines))
    for name in names:
        if ratios[name]:
            print(f"{name}: {harness.geomean(ratios[name]):.2f}x eager's speed (geometric mean of {len(ratios[name])})")
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
