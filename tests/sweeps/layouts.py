"""Every operator on inputs of other layouts, after its sizes have become symbols.

Each sample of an operator is compiled once with ``dynamic=True`` on the default backend and called with its tensors as
they are, then, in an order that the seed says, as slices of larger ones, transposed, every second element of a row,
repeated by ``expand``, with a stride of 1 in dimensions of size 1, and as they are again. Results, strides, exceptions'
types and gradients are compared with eager. ``--dtypes`` does the same in every dtype of each operator.
"""

import argparse
import random
import re
import sys
import warnings

import torch

from . import workers
from .database import difference, doubled, dtype_of, mapped, operators, outcome, samples, tensors_of


def _sliced(t):
    base = t.new_zeros((*t.shape[:-1], t.shape[-1] + 3))
    return base, lambda b: b[..., 1:-2], t


def _rows(t):
    base = t.new_zeros((t.shape[0] + 3, *t.shape[1:]))
    return base, lambda b: b[2:-1], t


def _stepped(t):
    base = t.new_zeros((*t.shape[:-1], 2 * t.shape[-1]))
    return base, lambda b: b[..., ::2], t


def _transposed(t):
    order = tuple(reversed(range(t.dim())))
    return t.new_zeros([t.shape[d] for d in order]), lambda b: b.permute(order), t


def _expanded(t):
    d = next((d for d in range(t.dim()) if t.shape[d] > 1), None)
    if d is None:
        return None
    first = t.narrow(d, 0, 1)
    return torch.zeros_like(first), lambda b: b.expand(t.shape), first.expand(t.shape)


def _unit(t):
    if 1 not in t.shape:
        return None
    strides = [1 if n == 1 else s for n, s in zip(t.shape, t.new_empty(t.shape).stride())]
    return t.new_zeros(t.shape), lambda b: b.as_strided(b.shape, strides), t


# PyTorch documents that what these give is whatever the memory held: only its type is compared
UNINITIALISED = re.compile("(new_)?empty(_.*)?")
LAYOUTS = {"sliced": _sliced, "rows": _rows, "stepped": _stepped, "transposed": _transposed, "expanded": _expanded,
           "unit": _unit}


def laid_out(t, kind):
    """(a leaf, a view of it with the values of ``t`` in another layout): of the same shape; two of the same tensor
    where ``kind`` is "dense"."""
    made = None
    if t.layout is torch.strided and t.dim() and t.numel() and kind != "dense":
        made = LAYOUTS[kind](t.detach())
    if made is None:
        leaf = t.detach().clone().requires_grad_(t.requires_grad)
        return leaf, leaf.view_as(leaf) if leaf.requires_grad and leaf.layout is torch.strided else leaf
    base, view, values = made
    with torch.no_grad():
        if kind == "expanded":
            base.copy_(values.narrow(*_repeated(values, base), 1))
        else:
            view(base).copy_(values)
    base.requires_grad_(t.requires_grad)
    return base, view(base)


def _repeated(values, base):
    return next(d for d in range(base.dim()) if base.shape[d] != values.shape[d]), 0


def arguments(sample, kind):
    """(args, kwargs, leaves) with all tensors of a sample in one layout, or each in one of its own."""
    leaves, chosen = [], iter(kind) if isinstance(kind, list) else None

    def one(t):
        leaf, view = laid_out(t, next(chosen) if chosen else kind)
        if leaf.requires_grad:
            leaves.append(leaf)
        return view

    args, kwargs = mapped(one, sample[0]), mapped(one, sample[1])
    return args, kwargs, leaves


def check(op, most: int, seed: int, every: bool = False, dense: bool = False) -> list[str]:
    """What differs from eager, one line each. ``every``: in all dtypes that the operator has; ``dense``: in no other
    layout."""
    dtypes = sorted(op.supported_dtypes("cpu"), key=str) if every else [dtype_of(op)]
    return [f"{dtype}, {text}" if every else text for dtype in dtypes for text in _check(op, dtype, most, seed, dense)]


def _check(op, dtype, most: int, seed: int, dense: bool) -> list[str]:
    import jit

    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    try:
        given = samples(op, dtype, grad, most)
    except Exception:
        return []
    found, draw = [], random.Random(seed)
    for number, sample in enumerate(given):
        jit.reset()
        compiled = jit.compile(lambda *args, op=op.op, **kwargs: op(*args, **kwargs), dynamic=True)
        kinds = list(LAYOUTS)
        draw.shuffle(kinds)
        count = len(tensors_of(list(sample)))
        mixed = [draw.choice(["dense", *LAYOUTS]) for _ in range(count)]
        for kind in ("dense",) if dense else ("dense", *kinds, mixed, "dense"):
            runs = []
            for fn in (op.op, op.op, compiled):
                args, kwargs, leaves = arguments(sample, kind)
                with torch.set_grad_enabled(grad):
                    runs.append((*outcome(fn, args, kwargs, leaves), args, kwargs))
            if UNINITIALISED.fullmatch(op.name):
                runs = mapped(torch.zeros_like, [list(run) for run in runs])
            # Random operators are not the same twice in eager
            differs = None if compared(*runs[:2]) else compared(*runs[1:])
            if differs and "values differ" in differs:
                args, kwargs, leaves = arguments((doubled(sample[0]), doubled(sample[1])), kind)
                differs = compared(*runs[1:], exact=outcome(op.op, args, kwargs, leaves))
            if differs:
                found.append(f"sample {number}, {kind}: {differs}")
    return found


def compared(want, got, exact=(None, None)):
    """How two runs differ: their results, gradients (of whatever strides) and arguments afterwards."""
    return (difference(want[0], got[0], "result", exact=exact[0])
            or difference(want[1], got[1], "gradient", False, exact[1]) or difference(want[2:], got[2:], "arguments"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", help="regular expression over the operators' names")
    p.add_argument("--samples", type=int, default=4, help="of each operator")
    p.add_argument("--dtypes", action="store_true", help="in every dtype that an operator has, not only in one")
    p.add_argument("--dense", action="store_true", help="in no other layouts")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--timeout", type=float, default=180, help="seconds for one operator")
    given = p.parse_args()
    import jit

    jit.runtime.native()
    chosen = {name: op for name, op in operators().items() if not given.only or re.search(given.only, name)}

    def report(name, findings):
        for text in findings:
            print(f"{name}: {text}", flush=True)

    def checked(name):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        return check(chosen[name], given.samples, given.seed, given.dtypes, given.dense)

    with jit.config.patch(cache_limit=64):
        done = workers.run(list(chosen), checked, given.jobs, given.timeout, report)
    wrong = sum(bool(v) for v in done.values())
    print(f"{len(done)} operators, {wrong} differ from eager")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
