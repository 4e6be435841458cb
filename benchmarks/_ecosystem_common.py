"""What the rows of benchmarks/ecosystem.py are made of: a registry, the comparison with eager, and training helpers.

A row is a function ``build(device, wrap) -> run``. It makes models and inputs from a fixed seed, gives what a user
would compile to ``wrap`` (the compiler, or nothing for eager), and returns ``run(i)``: the i-th of ``VARIED`` calls
with inputs that differ in size or values, which returns what has to be eager's, gradients and changed state included.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from typing import Callable

import torch

VARIED = 12
TOLERANCE = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float16: 3e-2, torch.bfloat16: 5e-2}
ROWS: dict[str, Row] = {}


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        needs: modules without which the row is "not installed".
        gpu: whether it runs on a GPU only.
        random: whether the compiled part draws random numbers; then results are compared while eager's are drawn.
    """

    name: str
    build: Callable
    needs: tuple[str, ...] = ()
    gpu: bool = False
    random: bool = False

    def missing(self) -> str:
        """The first module that cannot be found, or ""."""
        return next((m for m in self.needs if not _found(m)), "")


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of a package that holds it
        return False


def row(name: str, *needs: str, gpu: bool = False, random: bool = False):
    """Add a row; a decorator of its ``build``."""
    def add(build):
        assert name not in ROWS, name
        ROWS[name] = Row(name, build, needs, gpu, random)
        return build
    return add


def snapshot(value):
    """Tensors and arrays in nested results copied as they are now, in plain lists and dicts."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value).__module__ == "numpy":
        return ("numpy", str(value.dtype), torch.as_tensor(value).clone())
    if isinstance(value, dict):
        return {k: snapshot(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [snapshot(v) for v in value]
    return value


def difference(ours, theirs, path: str = "result") -> str:
    """Where two snapshots differ, in words; "" where they agree to rounding."""
    if isinstance(theirs, torch.Tensor):
        return _tensors(ours, theirs, path)
    if type(ours) is not type(theirs):
        return f"{path} is a {type(ours).__name__}, in eager a {type(theirs).__name__}"
    if isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return f"{path} has keys {list(ours)}, in eager {list(theirs)}"
        return next((d for k in theirs if (d := difference(ours[k], theirs[k], f"{path}[{k!r}]"))), "")
    if isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{path} has {len(ours)} items, in eager {len(theirs)}"
        return next((d for i, (a, b) in enumerate(zip(ours, theirs)) if (d := difference(a, b, f"{path}[{i}]"))), "")
    if isinstance(theirs, float):
        same = ours == theirs or abs(ours - theirs) <= 1e-3 * abs(theirs) + 1e-6 or ours != ours and theirs != theirs
    else:
        same = ours == theirs
    return "" if same else f"{path} is {ours!r}, in eager {theirs!r}"


def _tensors(ours, theirs, path):
    if not isinstance(ours, torch.Tensor):
        return f"{path} is a {type(ours).__name__}, in eager a tensor"
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{path} is {ours.dtype} {tuple(ours.shape)}, in eager {theirs.dtype} {tuple(theirs.shape)}"
    if theirs.numel() and any(n > 1 and a != b for n, a, b in zip(ours.shape, ours.stride(), theirs.stride())):
        return f"{path} has strides {ours.stride()}, in eager {theirs.stride()}"
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return "" if torch.equal(ours, theirs) else f"{path} differs in {int((ours != theirs).sum())} of {ours.numel()}"
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    a, b = ours.to(wide), theirs.to(wide)
    if not torch.equal(a.isfinite(), b.isfinite()):
        return f"{path} is not finite in other places"
    a, b = a.nan_to_num(0.0, 0.0, 0.0), b.nan_to_num(0.0, 0.0, 0.0)
    error, size = float((a - b).norm()), float(b.norm())
    allowed = TOLERANCE.get(theirs.dtype, 2e-3)
    return "" if error <= allowed * size + allowed * 1e-3 else f"{path} differs by {error:.1e}, its norm is {size:.1e}"


def seeded(device: str, seed: int = 0) -> torch.Generator:
    """A generator for inputs, which leaves the program's random numbers alone."""
    return torch.Generator(device).manual_seed(seed)


@functools.cache
def normal(device: str, *shape: int, seed: int = 0, **options) -> torch.Tensor:
    """Normally distributed numbers; the same tensor for the same arguments, so that no timed call makes it."""
    return torch.randn(*shape, generator=seeded(device, seed), device=device, **options)


@functools.cache
def integers(device: str, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(high, shape, generator=seeded(device, seed), device=device)


def learning(model: torch.nn.Module, loss: Callable):
    """``run(i)`` of a model whose loss and gradients are wanted: ``loss(i)`` calls it."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def run(i):
        for p in parameters:
            p.grad = None
        value = loss(i)
        value.backward()
        return value, [p.grad for p in parameters]

    return run


def inferring(call: Callable):
    """``run(i)`` without gradients."""
    def run(i):
        with torch.no_grad():
            return call(i)
    return run
