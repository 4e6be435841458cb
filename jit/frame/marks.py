"""What a program has said about a function, by a decorator of ours or of torch.compile's: to leave it alone, to take
its result for a constant, to follow another one in its place.

Decorators of ours write an attribute at the function whose value is its code object, so that ``functools.wraps``, which
copies attributes, does not mark what wraps it. What those of PyTorch write is read where PyTorch's compiler was loaded
by the program; it is never loaded for that. What each mark means in captured code is a row of
``library/compiler_control.py``.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from .. import torch_private
from . import tables

DISABLED, CONSTANT, IN_GRAPH = "_jit_disabled", "_jit_constant_result", "_jit_in_graph"
REASON = "_jit_disabled_reason"


def put(fn: Any, mark: str) -> None:
    """Mark a Python function."""
    setattr(fn, mark, fn.__code__)


def has(fn: Any, mark: str) -> bool:
    """Whether a function was marked itself: it, and not what it wraps."""
    found = getattr(fn, "__dict__", {}).get(mark)
    return found is not None and found is getattr(fn, "__code__", None)


def has_torch(fn: Any, mark: str) -> bool:
    """The same for an attribute that a decorator of PyTorch's writes."""
    given = getattr(fn, "__dict__", {})
    return bool(given.get(mark, False)) and given.get(torch_private.TORCH_MARKED_ID, id(fn)) == id(fn)


def is_disabled(fn: Any) -> bool:
    """Whether a function is to be left alone, by ``jit.disable`` or by ``torch.compiler.disable``."""
    return has(fn, DISABLED) or has_torch(fn, torch_private.TORCH_DISABLED)


def innermost(fn: Any) -> Any:
    """What ``torch.compile`` was given, where ``fn`` is what it gave back."""
    while has_torch(fn, torch_private.TORCH_ORIGINAL) and not is_disabled(fn):
        fn = fn.__dict__[torch_private.TORCH_ORIGINAL]
    return fn


def rule_of(fn: Any) -> Callable | None:
    """The rule of ``tables.marks`` for a call of a Python function that has marks."""
    for mark, rule in tables.marks.items():
        if has(fn, mark) if mark.startswith("_jit_") else has_torch(fn, mark):
            return rule
    return None


@functools.lru_cache(maxsize=4)
def _own(ids: Any) -> frozenset:
    """What is in a set of PyTorch's from the start."""
    return frozenset(ids.lazy_initializer())


def _said(which: str, fn: Any) -> bool:
    """Whether the program has put a callable into one of the sets of PyTorch's compiler."""
    rules = sys.modules.get(torch_private.TORCH_RULES)
    ids = getattr(rules, which, None)
    return ids is not None and id(fn) in ids and id(fn) not in _own(ids)


def is_disallowed(fn: Any) -> bool:
    """Whether the program has called ``torch._dynamo.disallow_in_graph`` for it. PyTorch does so for functions of some
    of its private modules."""
    return (_said(torch_private.TORCH_DISALLOWED, fn)
            and not str(getattr(fn, "__module__", "")).startswith(torch_private.TORCH_OWN))


def is_in_graph(fn: Any) -> bool:
    """Whether ``allow_in_graph`` was called for it, ours or that of PyTorch."""
    try:
        return has(fn, IN_GRAPH) or fn in tables.in_graph or _said(torch_private.TORCH_ALLOWED, fn)
    except TypeError:  # it has no hash
        return False


def substitute_of(fn: Any) -> Any:
    """The Python function that the program has given, by ``substitute_in_graph``, to be followed in the place of a
    callable; None where there is none."""
    try:
        found = tables.substitutes.get(fn)
    except TypeError:  # it has no hash
        return None
    if found is None:
        variables = sys.modules.get(torch_private.TORCH_SUBSTITUTES[0])
        owner = getattr(variables, torch_private.TORCH_SUBSTITUTES[1], None)
        handlers = getattr(owner, torch_private.TORCH_SUBSTITUTES[2], dict)()
        found = getattr(handlers.get(fn), torch_private.TORCH_SUBSTITUTE, None)
        if str(getattr(found, "__module__", "")).startswith(torch_private.TORCH_COMPILER):
            return None  # one of PyTorch's own, which programs need not know of
    return found
