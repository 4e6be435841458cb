"""A whole training step in one compiled function: forward, loss, backward(), clipping and AdamW, in eager, under
torch.compile and under jit.

Run: python examples/training_step.py [--steps N] [--every N]
The three start from the same weights and see the same batches, so their losses have to follow one curve. "kernels" are
those that a compiler has generated and launches in one step, by its own count; "library" are the operators of PyTorch
that run beside them, by PyTorch's profiler (for eager, all there are). On a GPU "device" counts everything that the
profiler saw on it in one step, where it may look. Under torch.compile the step is compiled but for backward(), which
runs between its graphs.
"""

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from _compare import COMPILERS, compiled, device, synchronize
from training import TOLERANCE, Model, batches

VIEWS = frozenset("""view reshape transpose t permute expand as_strided slice select squeeze unsqueeze alias detach
unbind split chunk narrow lift_fresh result_type empty empty_like empty_strided resolve_conj item _local_scalar_dense
_unsafe_view view_as flatten to""".split())


def step(model, optimizer, ids):
    """One step; ids: (batch, length + 1) int64. Gives the loss."""
    optimizer.zero_grad()
    scores = model(ids[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def observe(run, *arguments):
    """-> (operators of PyTorch, activities on the GPU) of one call: what no other operator calls, and computes
    something."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as seen:
        run(*arguments)
        synchronize()
    events = seen.events()
    on_device = sum(e.device_type is torch.autograd.DeviceType.CUDA for e in events)

    def within_an_operator(event):
        while (event := event.cpu_parent) is not None:
            if event.name.startswith("aten::"):
                return True
        return False

    called = [e for e in events if e.name.startswith("aten::") and e.name[6:] not in VIEWS
              and not within_an_operator(e)]
    return len(called), on_device


def generated(compiler, model, optimizer, ids):
    """How many kernels of its own a compiler launches in a step, by its own record."""
    if compiler == "jit":
        import jit

        return jit.explain(step)(model, optimizer, ids).launch_count
    if compiler == "torch.compile":
        from torch._inductor import metrics

        torch.compiler.reset()
        metrics.reset()
        torch.compile(step)(model, optimizer, ids)
        return metrics.generated_kernel_count
    return 0


def train(compiler: str, steps: int) -> dict:
    """Losses and figures of ``steps`` steps."""
    torch.manual_seed(0)
    model = Model().to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = compiled(compiler, step)
    losses, first, begin = [], 0.0, time.perf_counter()
    for number, ids in enumerate(batches(steps)):
        losses.append(run(model, optimizer, ids))
        if number == 1:  # the first one makes the optimizer's state, the second one is compiled for good
            synchronize()
            first = time.perf_counter() - begin
            begin = time.perf_counter()
    synchronize()
    later = (time.perf_counter() - begin) / max(steps - 2, 1) * 1e3
    library, on_device = observe(run, model, optimizer, ids)
    return {"losses": torch.stack(losses).tolist(), "first": first, "later": later,
            "library": library, "device": on_device, "kernels": generated(compiler, model, optimizer, ids)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=25, help="steps between two printed losses")
    parser.add_argument("--compilers", type=lambda text: text.split(","), default=list(COMPILERS))
    options = parser.parse_args()

    results = {name: train(name, options.steps) for name in options.compilers}
    print(f"{'step':>8}" + "".join(f"{name:>16}" for name in results))
    for number in sorted({*range(0, options.steps, options.every), options.steps - 1}):
        print(f"{number:>8}" + "".join(f"{r['losses'][number]:>16.4f}" for r in results.values()))
    print(f"{'first 2':>8}" + "".join(f"{r['first']:>14.2f} s" for r in results.values()))
    print(f"{'later':>8}" + "".join(f"{r['later']:>13.2f} ms" for r in results.values()))
    for row in ("kernels", "library") + ("device",) * any(r["device"] for r in results.values()):
        print(f"{row:>8}" + "".join(f"{r[row]:>16}" for r in results.values()))
    curves = [r["losses"] for r in results.values()]
    apart = max((abs(a - b) / max(abs(a), 0.1) for other in curves[1:] for a, b in zip(curves[0], other)), default=0.0)
    print(f"largest difference of two losses: {apart:.2e} of the loss "
          f"({'one curve' if apart <= TOLERANCE else 'the curves part'})")
    sys.exit(apart > TOLERANCE)


if __name__ == "__main__":
    main()
