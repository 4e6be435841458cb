"""Python functions that a broken frame reaches through C code (``map``, ``sorted(key=)``, hooks, descriptors): a
dispatcher each, served by the frame hook.

The hook (``runtime/native/frame_hook.cpp``) knows a ``Region`` per ``jit.compile`` settings. It is armed while the
rewritten function of an entry with a break runs, and asks ``Callees.decide`` about every code object that it has not
seen.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import inspect
import sys
import types
import weakref
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from .. import config, failures, logs
from ..runtime import native
from . import marks, tables
from .dispatch import MAKERS, Missed, Settings, function_of_cells, track

if TYPE_CHECKING:
    from .capture import Captured

log = logs.channel("graph_breaks")

# Top-level packages whose functions are evaluated as they are: they do no tensor work of their own, or are not to be
# looked into.
LEFT_ALONE = frozenset(sys.stdlib_module_names) | {
    "jit", "torch", "torchgen", "triton", "numpy", "sympy", "pytest", "_pytest",
    "pluggy", "hypothesis", "coverage", "IPython", "ipykernel",
    "pydevd", "_pydevd_bundle", "debugpy", "tqdm", "greenlet", "gevent",
}
# What a module's call enters: the one function of torch that stands for the user's code.
MODULE_CALL = torch.nn.Module.__call__.__code__
# What is left alone with all that it calls: imports, which run on the program's behalf but are none of it; activation
# checkpoints that are no part of a graph, since their backward, which is no call of the compiled function, does the
# same again and has to come by as many saved tensors.
QUIET = (importlib._bootstrap._find_and_load, inspect.unwrap(checkpoint))
MOST_GONE = 3  # modules of one class that came and went, until methods of its next ones are evaluated as they are
MOST_IDLE = 2  # captures with nothing for a graph after which a function is left alone
_said: set = set()


class CalleeMissed(Missed):
    """``on_miss`` of a function under the hook: one that turns out to do nothing for a graph is soon left alone."""

    ends_are_told = False  # the interpreter evaluates the frame, and tells nobody

    def __init__(self, settings, code, region, bound=None) -> None:
        super().__init__(settings, bound)
        self.code, self.region = code, region

    def compile(self, dispatcher, values: tuple[object, ...], key: str | None = None):
        entry = super().compile(dispatcher, values, key)
        if self.given_up or (len(self.captures) >= MOST_IDLE and not any(map(self.worth_calling, self.captures))):
            self.leave_alone()
        return entry

    def worth_calling(self, captured: Captured) -> bool:
        """A frame that has no operation and has seen no tensor before a break is cheaper to evaluate; its callees are
        offered in their turn."""
        return captured.graph is not None or (bool(captured.breaks) and captured.sees_tensors)

    def leave_alone(self) -> None:
        self.given_up = True
        if self.bound is None:
            self.region.leave_alone(self.code)


class Callees:
    """Decides, for one ``Settings``, which functions get a dispatcher."""

    def __init__(self, settings: Settings) -> None:
        self.settings = dataclasses.replace(settings, quiet=True, resumes={})
        self.region = native().Region(self.decide)
        self.gone: collections.Counter[tuple] = collections.Counter()  # by code and class: owners that are no more

    def decide(self, fn, first) -> tuple | None | None:
        """For the hook: None (its frames are evaluated as they are), or (dispatcher, takes the closure's cells first,
        one per first argument)."""
        try:
            return self.dispatcher_of(fn, first)
        except Exception as error:  # the program must not see it
            code = fn.__code__
            failures.report(error, (code.co_filename, code.co_firstlineno, code.co_qualname), "it is left alone")
            return None

    def dispatcher_of(self, fn, first) -> tuple | None:
        code = fn.__code__
        if not worth_capturing(fn):
            return None
        owned = isinstance(first, torch.nn.Module) and code.co_argcount > 0
        if owned and self.gone[code, type(first)] >= MOST_GONE:  # made anew for each call: nothing comes of compiling
            return None
        bound = self.remember(code, first) if owned else None
        cells = bool(code.co_freevars)
        plain = function_of_cells(code, fn.__globals__) if cells else fn
        missed = CalleeMissed(self.settings, code, self.region, bound)
        dispatcher = track(native().Dispatcher(plain, missed))
        log(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) is reached through C code and compiled on "
            "its own")
        return dispatcher, cells, owned

    def remember(self, code, owner):
        """A weak reference to a module, whose death lets its dispatchers of ``code`` go."""
        address, region, gone, cls = id(owner), self.region, self.gone, type(owner)

        def disown(_: object) -> None:
            gone[code, cls] += 1
            region.disown(code, address)

        return weakref.ref(owner, disown)


def worth_capturing(fn) -> bool:
    """True for functions of the user's, and of libraries that work on tensors."""
    code = fn.__code__
    if code is MODULE_CALL:
        return True
    name = fn.__globals__.get("__name__")
    if not isinstance(name, str) or name.partition(".")[0] in LEFT_ALONE or code.co_filename.startswith("<frozen"):
        return False
    if not isinstance(fn, types.FunctionType) or marks.is_disabled(fn):
        return False
    return fn not in tables.forbidden and fn not in tables.functions


def make_region(settings: Settings):
    """The region of new settings, or None where the hook is off; says so once."""
    if not config.frame_hook:
        return None
    status = native().frame_hook_status()
    if status in ("not built", "taken", "off"):
        why = {"not built": "was not built for this interpreter", "taken": "is in use by another tool",
               "off": "is switched off"}[status]
        if status not in _said:
            _said.add(status)
            log(f"the frame evaluation hook {why}: functions that breaks reach through C code run in eager")
        return None
    for fn in QUIET:
        native().quiet_code(fn.__code__)
    return Callees(settings).region


MAKERS["region"] = make_region
