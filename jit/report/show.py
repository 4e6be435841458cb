"""What a function becomes on its way to kernels, one stage at a time: ``python -m jit show``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import api, backends, compiling
from ..frame import dispatch
from ..frame.decode import decode
from ..graph.ir import Graph
from . import model

STAGES = {
    "bytecode": "CPython's bytecode of the function, and what it is rewritten to",
    "instructions": "the same as the instructions that are executed symbolically, alike for all versions of Python",
    "graph": "the captured graph, optimised, as runnable Python",
    "joint": "with gradients: the graphs of the forward and of the backward",
    "loops": "the loop kernels that the graph is fused to",
    "cpp": "the source of the kernels for the CPU",
    "triton": "the source of the kernels for NVIDIA GPUs",
    "plan": "what the runtime does at each call, step by step",
    "guards": "what has to hold for the compiled code to be used",
}
_DEVICES = {"cpp": "cpu", "triton": "cuda"}


class NothingToShow(Exception):
    """Why there is nothing at a stage."""


def stage(name: str, fn: Callable, args: Sequence[object], kwargs: dict[str, object], device: str | None = None) -> str:
    """The text of a stage of what a call of ``fn`` compiles to. ``device``: for which kind of device kernels are made,
    that of the arguments if it is not given: it need not be there. Raises NothingToShow."""
    if name == "instructions":
        code = getattr(fn.forward if isinstance(fn, torch.nn.Module) else dispatch.plain(fn), "__code__", None)
        if code is None:
            raise NothingToShow(f"{fn!r} is not written in Python")
        return decode(code).text()
    told = api.explain(fn)(*args, **kwargs).report
    assert told is not None
    if name == "bytecode":
        return _joined([r.bytecode for r in told.regions if r.bytecode], "it is not rewritten: it runs as it is")
    if name == "guards":
        return _joined([f"{g.about}: {g.fact}" if g.about else g.fact for r in told.regions for g in r.guards],
                       "nothing is checked", "\n")
    plans = [plan for region in told.regions for plan in region.plans]
    if name == "joint" and not any(plan.direction == model.BACKWARD for plan in plans):
        raise NothingToShow("no gradients are needed: have an argument require them, as in "
                            "torch.randn(4, requires_grad=True)")
    if name in ("graph", "joint"):
        return _joined([f"# {plan.direction}\n{plan.graph}" if name == "joint" else plan.graph for plan in plans
                        if name == "joint" or plan.direction == model.FORWARD], "it has no operations on tensors")
    wanted = _DEVICES.get(name, device)
    if wanted is not None and any(step.device.partition(":")[0] != wanted for plan in plans for step in plan.steps):
        texts, loops, kernels = _for_device(fn, args, kwargs, torch.device(wanted))
    else:
        texts = [plan.text for plan in plans]
        loops = [text for plan in plans for _, text in plan.loops]
        kernels = [text for plan in plans for _, text in plan.kernels]
    if name == "plan":
        return _joined(texts, "there is nothing to do")
    return _joined(list(dict.fromkeys(loops if name == "loops" else kernels)),
                   "it needs no kernel of ours: everything is done by library calls")


def _for_device(fn: Callable, args: Sequence[object], kwargs: dict[str, object],
                device: torch.device) -> tuple[list[str], list[str], list[str]]:
    """The texts of the plans, of the loop kernels and of the kernels for a device that the arguments are not on; the
    call is made op by op."""
    texts: list[str] = []
    loops: list[str] = []
    kernels: list[str] = []

    def backend(graph: Graph, examples: Sequence[torch.Tensor], gradient: Any = None) -> Any:
        made = compiling.for_device(graph, device)
        texts.append(made.plan.text())
        loops.extend(kernel.text() for kernel in made.loops.values())
        kernels.extend(text for _, text in made.kernels)
        return backends.compile_eager(graph, examples, gradient)

    api.compiled_with(fn, dispatch.Settings(backend))(*args, **kwargs)
    return texts, loops, kernels


def _joined(texts: Sequence[str], otherwise: str, between: str = "\n\n") -> str:
    if not texts:
        raise NothingToShow(otherwise)
    return between.join(text.rstrip() for text in texts)
