"""What a call costs beyond its work: tiny functions, where the kernel takes nanoseconds and the rest is guards and
launching.

Microseconds per call, the least of several rounds. "vs eager" above 1 is faster than eager. The module rows are the
same few operations behind a growing tree of modules, so that they show what guarding the tree costs. The rows "forward
+ backward" also call ``backward()`` and take the gradients away again.
"""

from __future__ import annotations

import time

import _harness as harness
import torch
import torch.nn.functional as F
from _compare import difference, table


def add_one(x):
    return x + 1


def ratio(a, b):
    return a / (torch.abs(a) + 1) * b


def matmul_softmax(a, b):
    return F.softmax(torch.matmul(a, b), dim=1)


def many_arguments(a, b, c, d, scale, flag, names):
    out = a * scale + b - c * d
    return out if flag else -out


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16))

    def forward(self, x):
        return x * self.weight


def tower(depth: int) -> torch.nn.Module:
    return torch.nn.Sequential(*[Scale() for _ in range(depth)])


def cases(device: str) -> dict:
    def rand(*shape):
        return torch.rand(*shape, device=device)

    return {
        "x + 1, 8 elements": (add_one, (rand(8),)),
        "a / (abs(a) + 1) * b": (ratio, (rand(10), rand(10))),
        "softmax(a @ b), 100x100": (matmul_softmax, (rand(100, 100), rand(100, 100))),
        "seven arguments": (many_arguments, (rand(8), rand(8), rand(8), rand(8), 0.5, True, ["a", "b"])),
        "1 module": (tower(1).to(device), (rand(16),)),
        "10 modules": (tower(10).to(device), (rand(16),)),
        "100 modules": (tower(100).to(device), (rand(16),)),
    }


def wave(x):
    return (x.sin() * x.cos() + x).sum()


def dense(x, w, b):
    return torch.tanh(x @ w + b).square().mean()


def training_cases(device: str) -> dict:
    def rand(*shape):
        return torch.rand(*shape, device=device, requires_grad=True)

    return {
        "forward + backward, 64 elements": (wave, (rand(64),)),
        "forward + backward, 8x16 dense layer": (dense, (rand(8, 16), rand(16, 16), rand(16))),
    }


def training_step(program):
    """``program``, a function of leaves with a scalar result, with its gradients: -> (loss, gradients)."""

    def step(*leaves):
        loss = program(*leaves)
        loss.backward()
        gradients = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        return loss.detach(), gradients

    return step


def microseconds(programs: dict, args, device: str, seconds: float) -> dict[str, float]:
    """Least microseconds per call over rounds of a few milliseconds, a round of each program in turn."""
    best, count = {}, {}
    for name, program in programs.items():
        for _ in range(50):
            program(*args)
        harness.sync(device)
        begin = time.perf_counter()
        for _ in range(20):
            program(*args)
        harness.sync(device)
        count[name] = max(20, int(20 * 5e-3 / max(time.perf_counter() - begin, 1e-7)))
    stop, rounds = time.perf_counter() + seconds * len(programs), 0
    while rounds < 7 or time.perf_counter() < stop:
        rounds += 1
        for name, program in programs.items():
            harness.sync(device)
            begin = time.perf_counter()
            for _ in range(count[name]):
                program(*args)
            taken = (time.perf_counter() - begin) / count[name] * 1e6
            harness.sync(device)
            best[name] = min(best.get(name, float("inf")), taken)
    return best


def measured(todo, names, args) -> tuple:
    """Microseconds of each case under each compiler: (records, lines of a table, whether jit failed).

    ``todo``: (title, program, its arguments, what a program becomes before it is called, whether gradients are
    recorded).
    """
    saved, lines, failed = [], [], False
    for title, program, arguments, prepare, gradients in todo:
        with torch.set_grad_enabled(gradients):
            reference, programs, errors = prepare(program)(*arguments), {}, {}
            for name in names:
                try:
                    candidate = prepare(harness.wrap(name, program))
                    if max(difference(candidate(*arguments), reference)[1] for _ in range(3)) > 1e-4:
                        raise ValueError("differs from eager")
                    programs[name] = candidate
                except Exception as error:
                    errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:80]
                    failed |= name.startswith("jit")
            times = microseconds(programs, arguments, args.device, args.seconds)
        saved.append({"call": title, **times, **errors})
        line = [title]
        for name in names:
            if name in errors:
                line.append(errors[name])
            elif name == "eager" or "eager" not in times:
                line.append(f"{times[name]:.2f}")
            else:
                line.append(f"{times[name]:.2f}  {times['eager'] / times[name]:5.2f}x")
        lines.append(line)
    return saved, lines, failed


def plain(program):
    return program


def main():
    args = harness.parser(__doc__, seconds=0.5).parse_args()
    names = harness.start(args)
    print(flush=True)
    todo = [(title, *case, plain, False) for title, case in cases(args.device).items()]
    todo += [(title, *case, training_step, True) for title, case in training_cases(args.device).items()]
    saved, lines, failed = measured(todo, names, args)
    print("microseconds per call, and speed over eager")
    print(table(["", *names], lines))
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
