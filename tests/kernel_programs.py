"""Programs that launch Triton kernels of their own, on any device: with TRITON_INTERPRET=1,
``python kernel_programs.py`` compares each of them, compiled, with eager on the CPU, and prints a line for each."""

import json
import sys

import torch
import triton
import triton.language as tl

import jit

FACTOR: tl.constexpr = 3


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def scale_(x, n, k, BLOCK: tl.constexpr = 32):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(x + at, tl.load(x + at, mask=mask) * k, mask=mask)


@triton.jit
def offset(x, amount, bias, out, n, WITH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x + at, mask=mask) + amount
    if bias is not None:
        value += tl.load(bias + at, mask=mask)
    if WITH == "twice":
        value *= 2
    tl.store(out + at, value, mask=mask)


@triton.jit
def rows(x, out, stride_row, stride_column, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < width
    value = tl.load(x + row * stride_row + at * stride_column, mask=mask, other=0.0)
    tl.store(out + row * width + at, value * 2 + tl.program_id(1), mask=mask)


@triton.jit
def place(x, out, row, column, width):
    return out + row * width + column, tl.load(x + row * width + column)


@triton.jit
def put(where, value):
    tl.store(where, value + 1)


@triton.jit
def by_helpers(x, out, width, BLOCK: tl.constexpr):
    where, value = place(x, out, tl.program_id(0), tl.program_id(1), width)
    put(where, value)


@triton.jit
def count(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.atomic_add(total + at * 0, tl.load(x + at, mask=mask), mask=mask)


@triton.jit
def gather(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    pointer = out + at * 0
    for _ in range(1):
        pointer = pointer + at
    tl.store(pointer, tl.load(x + tl.load(index + at, mask=mask), mask=mask), mask=mask)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"]),
                    "EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def by_heuristics(x, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if EVEN:
        value += 1
    tl.store(out + at, value, mask=at < n)


def first_is_best(call, quantiles):
    """What measures for the autotuner here: it calls each once, and finds those called later slower."""
    first_is_best.calls += 1
    call()
    return [float(first_is_best.calls)] * 3


first_is_best.calls = 0
CONFIGS = [triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 32}, num_warps=4)]


@triton.autotune(CONFIGS, key=["n"], restore_value=["total"], do_bench=first_is_best)
@triton.jit
def tuned(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(total + at, tl.load(total + at, mask=mask) + tl.load(x + at, mask=mask) * BLOCK, mask=mask)


@triton.autotune([triton.Config({"BLOCK": 32}, num_warps=2)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def one_choice(x, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x + at, mask=mask)
    if EVEN:
        value += 1
    tl.store(out + at, value, mask=mask)


PROGRAMS = {}


def program(*sizes, calls=3, **options):
    """Registers a program of vectors of these lengths. ``grad``: they require gradients; ``break``: it is not whole."""

    def register(fn):
        PROGRAMS[fn.__name__] = fn, sizes or (40, 40, 57, 64, 80, 3), options
        return fn

    return register


def grid_of(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@program()
def with_a_function_for_the_grid(x):
    out = torch.empty_like(x)
    add[grid_of(x.numel())](x, x + 1, out, x.numel(), BLOCK=16, num_warps=2)
    return out * 2


@program()
def with_a_tuple(x):
    out = torch.empty(x.shape[0], device=x.device)
    n = x.shape[0]
    add[(triton.cdiv(n, 16), 1, 1)](out=out, n=n, x=x.relu(), y=x, BLOCK=16)
    add[((n + 31) // 32,)](out, x, out, n, 32)
    return out


@program()
def in_place(x):
    scale_[(triton.cdiv(x.numel(), 32),)](x, x.numel(), 2)
    y = x + 1
    scale_[(triton.cdiv(x.numel(), 32),)](y, y.numel(), 0.5)
    return y, x.sum()


@program()
def a_view_is_written(x):
    y = x * 1
    scale_[(1,)](y[1:], 2, 3.0)
    scale_[(1,)](y.view(-1, 1)[0], 1, 7.0)
    return y, y[:2]


@program()
def memory_before_a_view_is_reached(x):
    y = torch.zeros_like(x)
    scale_[(1,)](x[0:1], 3, 2.0)  # an address: it goes on behind the view's end
    add[(1,)](x[:1], x[1:2], y[:1], 2, 16)
    return y


@program()
def optional_arguments(x):
    out, n = torch.empty_like(x), len(x)
    offset[grid_of(n)](x, 1, None, out, n, WITH="twice", BLOCK=32)
    again = torch.empty_like(out)
    offset[grid_of(n)](out, 2.5, x, again, n, "once", 32)
    return out, again


@program(12, 24, 36)
def strides(x):
    x = x.view(3, -1)
    out = torch.empty(x.shape, device=x.device)
    rows[(3, 1)](x, out, x.stride(0), x.stride(1), x.shape[1], 16)
    turned = x.t()
    back = torch.full((x.shape[1], 4), 7.0, device=x.device)
    rows[x.shape[1], 1, 1](turned, back, *turned.stride(), 3, BLOCK=4)
    return out, back


@program(12, 24, 36)
def by_other_functions(x):
    out = torch.zeros_like(x)
    by_helpers[3, x.numel() // 3](x, out, x.numel() // 3, 1)
    return out, x


@program()
def sums(x):
    total = torch.zeros(1, device=x.device)
    count[grid_of(x.numel())](x, total, x.numel(), BLOCK=32)
    return total * x


@program()
def gathered(x):
    index = torch.arange(x.numel(), device=x.device).flip(0)
    out = torch.empty_like(x)
    gather[(triton.cdiv(x.numel(), 32),)](x, index, out, x.numel(), 32)
    return out, index


@program()
def heuristics(x):
    out = torch.empty_like(x)
    by_heuristics[(1,)](x, out, x.numel())
    return out


@program(40, 40, 40, 57, 57, 57, whole=True)
def autotuned(x):
    total = x * 2
    tuned[grid_of(x.numel())](x, total, x.numel())
    return total + 1, x


@program()
def one_configuration(x):
    out = torch.empty_like(x)
    one_choice[grid_of(x.numel())](x, out, n=x.numel())
    return out


def helper(x):
    out = torch.empty_like(x)
    add[grid_of(x.numel())](x, x, out, x.numel(), BLOCK=32)
    return out


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return helper(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return helper(grad.contiguous()) + 0 * x


@program(grad=True)
def in_an_autograd_function(x):
    return Doubled.apply(x * 3).sin()


@program(grad=True)
def without_a_gradient(x):
    return helper(x) + x


@program()
def nothing_is_launched(x):
    out = torch.zeros_like(x)
    add[(0,)](x, x, out, x.numel(), 16)
    return out


@program()
def twice_the_same(x):
    a, b = helper(x), helper(x)
    scale_[(2,)](a, a.numel(), 3)
    return a, b


@program()
def another_dtype(x):
    bits = torch.empty(x.numel(), dtype=torch.int32, device=x.device)
    add[grid_of(x.numel())](x.view(torch.int32), bits.zero_(), bits, x.numel(), 32)
    return bits.view(torch.float32)


@program()
def wrapped(x):
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[grid_of(x.numel())](x, x, out, x.numel(), BLOCK=32)
    return out


def make(n, device="cpu", grad=False):
    x = torch.linspace(-1, 2, n, device=device)
    return x.requires_grad_() if grad else x


def outcome(fn, x, grad):
    """(results, what the argument is afterwards, its gradient)"""
    results = fn(x)
    results = results if isinstance(results, tuple) else (results,)
    if grad:
        sum(r.sum() for r in results if r.requires_grad).backward()
    return [*(r.detach() for r in results), x.detach(), x.grad]


def compare(name, device="cpu"):
    """What is wrong with a program, as text; empty if nothing is."""
    fn, sizes, options = PROGRAMS[name]
    grad = options.get("grad", False)
    compiled = jit.compile(fn, fullgraph=True)
    for n in sizes:
        ours = outcome(compiled, make(n, device, grad), grad)  # first: it has to deal with a tuner that has not chosen
        theirs = outcome(fn, make(n, device, grad), grad)
        for k, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            if (a is None) != (b is None):
                return f"{n}: {k}: {a} in eager, {b} compiled"
            if a is not None and (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
                return f"{n}: {k}: {a.dtype} {a.shape} {a.stride()} in eager, {b.dtype} {b.shape} {b.stride()}"
            if a is not None and not torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True):
                return f"{n}: {k}: {a} in eager, {b} compiled"
    return ""


def main(names):
    for name in names or PROGRAMS:
        try:
            wrong = compare(name)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        print(json.dumps([name, wrong]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
