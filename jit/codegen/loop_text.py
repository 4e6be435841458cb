"""Loop kernels in readable form, and what else tells two of them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.dim_text import render

if TYPE_CHECKING:
    import torch

    from ..graph.dims import IntExpr
    from .loops import Kernel


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def size_facts(kernel: Kernel) -> dict:
    """Size symbol -> (known divisor, bounds), as they stand in the kernel's expressions."""
    found, wanted = {}, set(kernel.sizes)
    stack = [a.extent for a in kernel.axes + kernel.raxes]
    stack += [s.expression for s in kernel.body]
    while stack:
        e = stack.pop()
        if e is None or type(e) is int:
            continue
        for mono in e.terms:
            for atom in mono:
                if atom.kind != "sym":
                    stack += [atom.a, atom.b]
                elif atom.name in wanted and atom.name not in found:
                    found[atom.name] = (atom.multiple, *atom.bounds)
    return found


def readable(kernel: Kernel, title: str, names: dict) -> str:
    """The kernel, one statement per line, with other names for those in ``names``."""
    def n(x: str) -> str:
        return names.get(x, x)

    def e(x: IntExpr) -> str:
        return str(x) if type(x) is int else render(x, style="py", names=names)

    lines = [f"kernel {title} on {kernel.device} sizes({', '.join(map(n, kernel.sizes))})"]
    lines += [f"  for {n(a.name)} in {e(a.extent)} ({a.kind})" for a in kernel.axes + kernel.raxes]
    lines += [f"  {b.role} {n(b.name)}: {short(b.dtype)}{', rounded' * b.rounded}" for b in kernel.buffers]
    lines += ["    " + s.line(n, e) for s in kernel.body]
    return "\n".join(lines)
