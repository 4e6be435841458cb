"""A compiled ``optimizer.step()`` on its own: microseconds per step for a list of small parameters, where the work is
nothing and the overhead all.

Eager's ``foreach`` and ``fused`` forms are rows of their own; each compiler gets the same form, compiled as a function
that calls ``step()``. The learning rate follows a scheduler in one row: a rate or a step counter that changes must not
compile anything again.
"""

from __future__ import annotations

import _harness as harness
import torch
from _compare import difference, table
from call_overhead import microseconds

OPTIMIZERS = {
    "SGD, momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "Adam, foreach": (torch.optim.Adam, {"foreach": True}),
    "AdamW, foreach": (torch.optim.AdamW, {"foreach": True}),
    "AdamW, fused": (torch.optim.AdamW, {"fused": True}),
    "AdamW, one by one": (torch.optim.AdamW, {"foreach": False}),
}


def parameters(count: int, size: int, device: str) -> list:
    generator = torch.Generator().manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(*((size, size) if k % 2 else (size,)), generator=generator).to(device))
            for k in range(count)]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator).to(device)
    return made


def program(kind, options, args, scheduled: bool):
    """-> (a function of no arguments that does one step, the parameters)."""
    weights = parameters(args.count, args.size, args.device)
    optimizer = kind(weights, **options)

    def step():
        optimizer.step()

    return step, weights, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (k + 1)) if scheduled else None


def main():
    p = harness.parser(__doc__, seconds=0.5)
    p.add_argument("--count", type=int, default=53, help="parameters, half of them matrices (default 53)")
    p.add_argument("--size", type=int, default=16,
                   help="elements of a vector, rows and columns of a matrix (default 16)")
    args = p.parse_args()
    names = harness.start(args)
    rows = [(title, *case, False) for title, case in OPTIMIZERS.items()]
    rows.append(("AdamW, foreach, LambdaLR", *OPTIMIZERS["AdamW, foreach"], True))
    saved, lines, failed = [], [], False
    for title, kind, options, scheduled in rows:
        reference, weights, schedule = program(kind, options, args, scheduled)
        expected = []
        for _ in range(4):
            reference()
            schedule and schedule.step()
            expected.append([w.detach().clone() for w in weights])
        programs, errors = {}, {}
        for name in names:
            try:
                step, weights, schedule = program(kind, options, args, scheduled)
                step = harness.wrap(name, step)
                for want in expected:
                    step()
                    schedule and schedule.step()
                    if difference([w.detach() for w in weights], want)[1] > 1e-4:
                        raise ValueError("differs from eager")
                programs[name] = (lambda a, b: lambda: (a(), b.step()))(step, schedule) if scheduled else step
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:80]
                failed |= name.startswith("jit")
        times = microseconds(programs, (), args.device, args.seconds)
        saved.append({"step": title, **times, **errors})
        lines.append([title, *(errors.get(n) or (f"{times[n]:.1f}" + (f"  {times['eager'] / times[n]:5.2f}x"
            if n != "eager" and "eager" in times else "")) for n in names)])
        print(f"  {title}", flush=True)
    print(f"\nmicroseconds per step of {args.count} parameters, and speed over eager")
    print(table(["", *names], lines))
    harness.save(args, saved)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
