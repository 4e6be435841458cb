"""What a user can write so that a function is not compiled again for what has differed: one entry for each kind of
fact for which there is something to write."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Callable

import torch

from .. import torch_private
from . import facts, guards


def cure(program: Any, locals: Sequence[object], widens: bool = True) -> str:
    """What to write so that calls such as with these locals, which a guard program has not accepted, need no code of
    their own; "" where there is nothing. ``widens``: what is compiled behind a changed number or size is for any value
    of it, where it can be."""
    differed = _differed(program, locals)
    if differed is None:
        return ""
    about, fact, found = differed
    if guards.VALUE_IN_USE in about:
        return "it follows from a graph break: mend that one, which JIT_LOGS=graph_breaks tells"
    advice = _CURES.get(type(fact))
    if type(fact) is facts.Equals and _are_numbers(found, fact.value):
        advice = _of_number if widens else _of_fixed_number
    return "" if advice is None else advice(about, fact, found)


def _differed(program: Any, locals: Sequence[object]) -> tuple[str, Any, object] | None:
    """About what the first fact is that does not hold, the fact, and what was found; None where it was not reached."""
    failure = program.failure(tuple(locals))
    if failure is None:
        return None
    index, reached, found = failure
    at, _, payload, fact = (*program.checks[index], None, None)[:4]
    if not reached and at >= 0:
        return None
    with torch_private.WithoutTorchFunction():
        if type(fact) is facts.Dims:  # its text says which condition it is
            found = fact.failing(payload, lambda i: program.value(tuple(locals), i))
        return "" if at < 0 else guards.path(program.accessors, at), fact, found


def _are_numbers(*values: object) -> bool:
    return all(type(v) in (int, float) for v in values)


# What marks a tensor's sizes as static, ours first, then what PyTorch's function of that name writes.
STATIC = ("_jit_static_dims", "_dynamo_static_indices")
_VALUES = (type(None), bool, int, float, str, enum.Enum)  # what programs choose by, and do not make anew


def held(program: Any, locals: Sequence[object]) -> float:
    """The share of a guard program's checks that hold for these locals before the first one that does not."""
    failure = program.failure(tuple(locals))
    return 1.0 if failure is None else failure[0] / max(len(program.checks), 1)


_SMALL_SIZE = "nothing needs to be done: sizes of 0 and 1 have code of their own"


def _of_tensor(about: str, fact: facts.Tensor, found: object) -> str:
    spec = fact.value
    if not isinstance(found, torch.Tensor):
        return f"pass a tensor for {about} at each call"
    if found.dtype != spec.dtype:
        return f"convert {about} to one dtype before the call: each dtype has code of its own"
    if spec.device is not None and found.device != torch.device(spec.device):
        return f"keep {about} on one device: each has code of its own"
    if spec.requires_grad is not None and found.requires_grad != spec.requires_grad:
        return ("call it always with gradients, or always without (torch.no_grad(), detach()): each way has code of "
                "its own")
    if spec.sizes is not None and found.dim() != len(spec.sizes):
        return f"give {about} the same number of dimensions at each call"
    for d, (wanted, size) in enumerate(zip(spec.sizes or (), found.shape)):
        if wanted is not None and wanted != size:
            if any(d in (getattr(found, name, None) or ()) for name in STATIC):
                return (f"leave out the mark_static of dim {d} of {about}: while it is there, each size has code of "
                        "its own; jit.mark_dynamic in its place makes code for all sizes at once")
            if size in (0, 1) or wanted in (0, 1):
                return _SMALL_SIZE
            mark = f"jit.mark_dynamic({about}, {d}) before the first call, or " if about.isidentifier() else ""
            return f"{mark}jit.compile(..., dynamic=True) makes code for all sizes at once"
    if spec.strides is not None and any(want not in (None, have) for want, have in zip(spec.strides, found.stride())):
        return f"lay {about} out alike at each call, as contiguous() does: each layout has code of its own"
    return ""


def _of_number(about: str, fact: facts.Equals, found: object) -> str:
    return (f"nothing needs to be done: {about} is a number, and what is compiled now is for any value of it, unless "
            "Python itself has to know the value, as that of a key or of the length of a loop")


def _of_fixed_number(about: str, fact: facts.Equals, found: object) -> str:
    return (f"leave out dynamic=False: with it each value of {about} has code of its own, without it code is for any "
            "value of a number that has changed")


def _of_few(about: str) -> str:
    return (f"keep the values of {about} few: each has code of its own; jit.config.cache_limit says how many there may "
            "be")


def _of_identity(about: str, fact: facts.Is | facts.At, found: object) -> str:
    before = fact.object if isinstance(fact, facts.Is) else None
    if isinstance(found, _VALUES) or isinstance(fact, facts.Is) and isinstance(before, _VALUES):
        return _of_few(about)
    return f"make the object once, and not for each call: {about} has to be the same one"


def _of_sizes(about: str, fact: facts.Dims, found: object) -> str:
    condition = str(found).partition(" does not hold")[0]
    if condition.endswith(">= 2"):
        return _SMALL_SIZE
    numbers = [text for text in (guards.in_users_terms(str(what)) for _, what in fact.named_in(condition))
               if not text.endswith(")")]  # not x.size(0)
    if numbers and condition.endswith(" == 0"):
        return (f"Python itself has to know the value of {' and '.join(numbers)}, as that of a key or of the length of "
                "a loop, so each value has code of its own: keep its values few, or make it a tensor with torch.tensor "
                "and compute with that (torch.where, torch.clamp)")
    if numbers:
        return (f"the program decides by the value of {' and '.join(numbers)}, and each way has code of its own: make "
                "it a tensor with torch.tensor, and decide with torch.where, or keep its values few")
    return "sizes for which this holds and sizes for which it does not have code of their own: pad to sizes of one kind"


_CURES: dict[type, Callable[[str, Any, object], str]] = {
    facts.Tensor: _of_tensor,
    facts.Equals: lambda about, fact, found: _of_few(about),
    facts.Is: _of_identity,
    facts.TypeIs: lambda about, fact, found: f"give {about} an object of one class at each call",
    facts.Length: lambda about, fact, found: (f"keep the length of {about} the same, or stack what it holds into one "
                                              "tensor"),
    facts.DictKeys: lambda about, fact, found: (f"keep the keys of {about} the same from call to call, or pass "
                                                "its values as a list, where only these are read"),
    facts.Truth: lambda about, fact, found: (f"each way that {about} can turn out has code of its own: keep the cases "
                                             "few"),
    facts.NoDictAttr: lambda about, fact, found: f"set all attributes of {about} before the first call",
    facts.Dims: _of_sizes,
    facts.At: _of_identity,
    facts.Same: lambda about, fact, found: _of_few(about),
    facts.IsNot: lambda about, fact, found: _of_few(about),
    facts.GlobalState: lambda about, fact, found: "call it in one mode (gradients, autocast, default dtype): each has "
                                                  "code of its own",
}
