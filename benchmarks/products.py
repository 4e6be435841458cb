"""Matrix products with what stands around them: weights of few bits that are multiplied by one or a few vectors, as in
decoding, and large products followed by an activation. For each compiler the time, how many times eager's speed that
is, and, where the reads of the weight are all that a product has to do, its share of a copy's rate.

    python benchmarks/products.py --compilers eager,torch.compile:max-autotune-no-cudagraphs,jit,jit:max-autotune
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import _harness as harness
from _compare import table
from kernels import TOLERANCE, measure, nbytes

GROUP = 128  # elements of a row that share a factor

CASES = {}


def case(rows: int, depth: int, columns: int, bits: float = 0.0):
    """Decorator of a maker of (function, arguments); with ``bits`` for each element of the weight."""

    def add(make):
        CASES[f"{make.__name__} {rows}x{depth}x{columns}"] = (make, (rows, depth, columns), bits)
        return make

    return add


def numbers(device, dtype, *shape, scale=1.0):
    return (torch.randn(shape, device=device) * scale).to(dtype)


def words(device, dtype, *shape):
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, device=device, dtype=dtype)


@case(1, 2048, 2048, 16)
@case(1, 2048, 8192, 16)
@case(1, 4096, 16384, 16)
def plain(device, dtype, m, k, n):
    return (lambda x, w: F.linear(x, w)), (numbers(device, dtype, m, k), numbers(device, dtype, n, k))


@case(1, 4096, 16384, 8)
@case(4, 4096, 16384, 8)
@case(16, 4096, 16384, 8)
@case(1, 2048, 8192, 8)
def int8(device, dtype, m, k, n):
    return (lambda x, w, s: x @ (w.to(x.dtype) * s).T), (
        numbers(device, dtype, m, k), words(device, torch.int8, n, k), numbers(device, dtype, n, 1, scale=0.01))


@case(1, 4096, 16384, 8)
def int8_factor_behind(device, dtype, m, k, n):
    return (lambda x, w, s: F.linear(x, w.to(x.dtype)) * s), (
        numbers(device, dtype, m, k), words(device, torch.int8, n, k), numbers(device, dtype, n, scale=0.01))


@case(1, 4096, 16384, 4)
@case(4, 4096, 16384, 4)
def int4_in_pairs(device, dtype, m, k, n):
    def fn(x, p, s):
        w = torch.stack([p & 15, p >> 4], -1).view(n, k).to(x.dtype) - 8
        return F.linear(x, (w.view(n, k // GROUP, GROUP) * s[..., None]).view(n, k))

    return fn, (numbers(device, dtype, m, k), words(device, torch.uint8, n, k // 2),
                numbers(device, dtype, n, k // GROUP, scale=0.01))


@case(1, 4096, 16384, 4)
def int4_in_halves(device, dtype, m, k, n):
    def fn(x, p, s):
        return x @ ((torch.cat([p & 15, p >> 4], -1).to(x.dtype) - 8) * s.repeat_interleave(GROUP, 1)).t()

    return fn, (numbers(device, dtype, m, k), words(device, torch.uint8, n, k // 2),
                numbers(device, dtype, n, k // GROUP, scale=0.01))


@case(1, 4096, 16384, 4)
def int4_in_words(device, dtype, m, k, n):
    def fn(x, q, s, z):
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
        w = ((q[:, None, :] >> shifts[None, :, None]) & 15).view(k // GROUP, GROUP, n).to(x.dtype)
        return x @ ((w - z[:, None]) * s[:, None]).view(k, n)

    factors = [numbers(device, dtype, k // GROUP, n, scale=0.01) for _ in range(2)]
    return fn, (numbers(device, dtype, m, k), words(device, torch.int32, k // 8, n), *factors)


@case(1, 4096, 16384, 8)
def float8(device, dtype, m, k, n):
    return (lambda x, w, s: x @ (w.to(x.dtype) * s).T), (
        numbers(device, dtype, m, k), numbers(device, torch.float8_e4m3fn, n, k), numbers(device, dtype, n, 1))


@case(2048, 768, 3072)
@case(12608, 768, 3072)
@case(2048, 1024, 2816)
@case(4096, 4096, 11008)
def linear_gelu(device, dtype, m, k, n):
    return (lambda x, w, b: F.gelu(F.linear(x, w, b))), (
        numbers(device, dtype, m, k), numbers(device, dtype, n, k, scale=k**-0.5), numbers(device, dtype, n))


@case(2048, 4096, 11008)
def gated(device, dtype, m, k, n):
    return (lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v)), (
        numbers(device, dtype, m, k), *(numbers(device, dtype, n, k, scale=k**-0.5) for _ in range(2)))


@case(8192, 4096, 4096)
def linear_residual(device, dtype, m, k, n):
    return (lambda x, w, r: F.linear(x, w) + r), (
        numbers(device, dtype, m, k), numbers(device, dtype, n, k, scale=k**-0.5), numbers(device, dtype, m, n))


@case(4096, 2048, 32768)
def linear_cross_entropy(device, dtype, m, k, n):
    return (lambda x, w, t: F.cross_entropy(F.linear(x, w).float(), t)), (
        numbers(device, dtype, m, k), numbers(device, dtype, n, k, scale=k**-0.5),
        torch.randint(0, n, (m,), device=device))


def main():
    parser = harness.parser(__doc__, seconds=0.3)
    parser.add_argument("--only", default="", help="rows whose names contain one of these, separated by commas")
    parser.add_argument("--smaller", type=int, default=0,
                        help="divide rows above 16 and columns by this (default: 1, on a CPU 8)")
    args = parser.parse_args()
    names, saved, lines = harness.start(args), [], []
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    less = args.smaller or (1 if args.device == "cuda" else 8)
    source = torch.randn(4096, 16384, device=args.device, dtype=dtype)
    target = torch.empty_like(source)
    copy = 2 * nbytes(source) / harness.interleaved({"copy": lambda: target.copy_(source)},
                                                    args.device, args.seconds, flush=True)["copy"]
    print(f"{str(dtype)[6:]}, copy {copy / 1e9:.0f} GB/s\n", flush=True)
    ratios, failed = {name: [] for name in names}, False
    with torch.no_grad():
        for name, (make, (m, k, n), bits) in CASES.items():
            if args.only and not any(word in name for word in args.only.split(",")):
                continue
            m, n = m if m <= 16 else m // less, n // less
            function, arguments = make(args.device, dtype, m, k, n)
            figures = measure(function, arguments, names, args.device, args.seconds, 4 * TOLERANCE[dtype])
            line = [name]
            for compiler in names:
                row = figures[compiler]
                if "error" in row:
                    failed |= compiler.startswith("jit")
                    line.append(row["error"])
                    continue
                speed = figures["eager"]["us"] / row["us"] if "us" in figures.get("eager", {}) else float("nan")
                ratios[compiler].append(speed)
                share = f"  {bits / 8 * k * n / row['us'] * 1e6 / copy:.2f}" if bits else ""
                line.append(f"{row['us']:.1f} us  {speed:.2f}x{share}")
            saved.append({"product": name, **figures})
            lines.append(line)
            print("  ".join(line), flush=True)
    print("\ntime, times eager's speed, share of copy")
    print(table(["", *names], lines))
    for name in names:
        print(f"{name}: {harness.geomean(ratios[name]):.2f}x eager's speed (geometric mean of {len(ratios[name])})")
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
