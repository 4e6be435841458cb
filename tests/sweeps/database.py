"""PyTorch's database of operators (OpInfo): names, sample inputs, and what is seen of a call."""

import itertools
import sys
from dataclasses import dataclass

import torch

PREFERRED = (torch.float32, torch.int64, torch.bool, torch.float64, torch.complex64)
# Others: 2e-4, relative and absolute
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-8, torch.complex128: 1e-8}


def operators() -> dict:
    """Name -> OpInfo. The wrapper that seeds the generator before random operators, which no compiler can follow, is
    taken off."""
    from torch.testing._internal.common_methods_invocations import op_db

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal.") and "wrapper_set_seed" in vars(module):
            module.wrapper_set_seed = _bare
    return {o.name + (f".{o.variant_test_name}" if o.variant_test_name else ""): o for o in op_db}


def _bare(op, *args, **kwargs):
    return op(*args, **kwargs)


def dtype_of(op, device: str = "cpu"):
    """The dtype to sample an operator in on a device, or None."""
    have = op.supported_dtypes(device)
    return next((d for d in PREFERRED if d in have), next(iter(have), None))


def samples(op, dtype, grad: bool, most: int, device: str = "cpu") -> list:
    """Up to ``most`` (args, kwargs) of an operator, with tensors on ``device``."""
    torch.manual_seed(1)
    made = itertools.islice(op.sample_inputs(device, dtype, requires_grad=grad), most)
    return [((s.input, *s.args), dict(s.kwargs)) for s in made]


def mapped(fn, v):
    """``v`` with each tensor in lists, tuples and dicts replaced by ``fn(tensor)``; generators are cloned."""
    if isinstance(v, torch.Tensor):
        return fn(v)
    if type(v) in (list, tuple):
        return type(v)(mapped(fn, e) for e in v)
    if type(v) is dict:
        return {k: mapped(fn, e) for k, e in v.items()}
    return v.clone_state() if isinstance(v, torch.Generator) else v


def tensors_of(v) -> list:
    """All tensors in a nest of lists, tuples and dicts."""
    if isinstance(v, torch.Tensor):
        return [v]
    if isinstance(v, dict):
        v = list(v.values())
    return [t for e in v for t in tensors_of(e)] if isinstance(v, (list, tuple)) else []


def outcome(fn, args, kwargs, leaves=()):
    """What a call gives: (the result | the exception, gradients of ``leaves`` with respect to a weighted sum of the
    results)."""
    torch.manual_seed(7)
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        return error, None
    wanted = [t for t in tensors_of(result) if t.requires_grad and t.layout is torch.strided]
    if not (leaves and wanted):
        return result, None
    total = 0
    for k, t in enumerate(wanted):
        weights = torch.linspace(0.5, 1.5 + k, t.numel(), device=t.device).view(t.shape)
        total = total + ((t.abs() if t.is_complex() else t).double() * weights).sum()
    try:
        return result, torch.autograd.grad(total, leaves, allow_unused=True)
    except Exception as error:
        return result, error


@dataclass
class Exact:
    """A tensor of an outcome in double precision, and which of its elements say nothing of the outcome in another
    precision."""

    values: torch.Tensor
    doubtful: torch.Tensor


def difference(want, got, path="result", strides=True, exact=None, least=None, ties=False) -> str | None:
    """How two outcomes differ, in words.

    Args:
        exact: the outcome in double precision, of tensors or of ``Exact``: eager's own distance from it is allowed for
    eight times over, and where eager overflows
            nothing is asked.
        least: a dtype to which values were rounded on the way.
        ties: whether integers and booleans may differ in one element of a hundred, as where values of few bits are
    compared.
    """
    if isinstance(want, BaseException) or isinstance(got, BaseException):
        if type(want) is not type(got):
            return f"{path}: {_short(want)} in eager, {_short(got)} compiled"
        return None
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        return tensor_difference(want, got, path, strides, exact if isinstance(exact, (torch.Tensor, Exact)) else None,
                                 least, ties)
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(want) != len(got):
            return f"{path}: {len(want)} results in eager, {len(got)} compiled"
        parts = exact if isinstance(exact, (list, tuple)) and len(exact) == len(want) else [None] * len(want)
        found = (difference(a, b, f"{path}[{i}]", strides, e, least,
                            ties) for i, (a, b, e) in enumerate(zip(want, got, parts)))
        return next(filter(None, found), None)
    if isinstance(want, dict) and isinstance(got, dict):
        return difference(list(want.items()), list(got.items()), path, strides, least=least, ties=ties)
    if type(want) is not type(got):
        return f"{path}: {type(want).__name__} in eager, {type(got).__name__} compiled"
    same = want == got or want != want and got != got
    return None if same or not isinstance(want, (int, float, complex, str, bool,
                                                 torch.Size)) else f"{path}: {want} in eager, {got} compiled"


def tensor_difference(want, got, path, strides=True, exact=None, least=None, ties=False) -> str | None:
    for what in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(want, what) != getattr(got, what):
            return f"{path}: {what} {getattr(want, what)} in eager, {getattr(got, what)} compiled"
    if want.layout is not torch.strided:
        want, got, exact = want.to_dense(), got.to_dense(), None
    exact, doubtful = (exact.values, exact.doubtful) if isinstance(exact, Exact) else (exact, False)
    if exact is not None and exact.shape != want.shape:
        exact, doubtful = None, False
    steps = [[s for s, n in zip(t.stride(), t.shape) if n > 1] if t.numel() else [] for t in (want, got)]
    if strides and steps[0] != steps[1]:
        return f"{path}: strides {want.stride()} in eager, {got.stride()} compiled"
    want, got = want.detach(), got.detach()
    if not (want.is_floating_point() or want.is_complex()):
        wrong = (want != got) & ~torch.as_tensor(doubtful)
        if exact is not None:  # of numbers that were rounded before
            own, error = (want.double() - exact.double()).abs(), (got.double() - exact.double()).abs()
            wrong &= (own == 0) | (error > 8 * own)
        count = int(wrong.sum())
        return (f"{path}: {count} of {want.numel()} values differ"
                if count * 100 > (want.numel() if ties else 0) else None)
    tolerance = max(TOLERANCE.get(want.dtype, 2e-4), TOLERANCE.get(least, 0))
    wide = torch.complex128 if want.is_complex() else torch.float64
    want, got = want.to(wide), got.to(wide)
    slack = tolerance
    if exact is not None and want.numel():
        own = (want - exact.detach().to(wide)).abs().nan_to_num(0, 0, 0)
        slack += 8 * own.max().item()
    close = torch.isclose(want, got, tolerance, slack, equal_nan=True)
    if exact is not None:  # what is too large for eager only may come out otherwise
        true = exact.detach().to(wide)
        close |= doubtful | ~((want == true) | want.isnan() & true.isnan() | want.isfinite() & true.isfinite())
    return (None if bool(close.all()) else f"{path}: {int((~close).sum())} of {want.numel()} "
                                           f"values differ, by up to {(want - got).abs().max():.3g}")


def doubled(v):
    """``v`` with tensors of single precision and halves as double precision ones."""
    wide = (dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64)
            | dict.fromkeys((torch.complex32, torch.complex64), torch.complex128))
    return mapped(lambda t: t.detach().to(wide.get(t.dtype, t.dtype)).requires_grad_(t.requires_grad), v)


def _short(v) -> str:
    return (f"{type(v).__name__}: {str(v).splitlines()[0] if str(v) else ''}"[:150]
            if isinstance(v, BaseException) else "a result")
