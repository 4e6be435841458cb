"""The eager run of a call whose plan has failed behind an operator that cannot be undone: it does not happen again.

An operator of the program's own may print, count or send, and its results may be others at the next call. The
calls that the plan has made of such operators are taken for those that the program makes when it is run again, as
long as they are the same operators: they give what the plan's gave, or raise what it raised. Collectives in place
are other operators in eager than in a plan: there the call is an error.
"""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from jit import telling, torch_private

if TYPE_CHECKING:
    import types


SPACE = "_c10d_functional::"
_PREDICTED = re.compile(r"jit: (\S+) returned (.* predicted)")  # what the native executor says
_told: set[tuple[str, str, int]] = set()  # calls of operators of which the user knows


class _Happened(torch_private.DispatchMode):
    """Answers calls of operators from ``records``: (name, overload, results, error or None), in order."""

    def __init__(self, records: list[tuple]) -> None:
        super().__init__()
        self.records = records

    def __torch_dispatch__(self, func: Callable, types: object, args: Sequence[object] = (),
                           kwargs: dict[str, object] | None = None) -> Any:
        name = (torch_private.schema(func).name, torch_private.schema(func).overload_name)
        for k, (*made, results, error) in enumerate(self.records):
            # A plan may have made a functional collective in place.
            if (made[0].removesuffix("_") if made[0].startswith(SPACE) else made[0], made[1]) != name:
                continue
            del self.records[k]
            if error is not None:
                raise error.with_traceback(None)
            returns = torch_private.schema(func).returns
            if len(returns) == 1:
                return list(results) if str(returns[0].type) == "List[Tensor]" else results[0]
            return results or None
        if name[0].startswith(("c10d::", SPACE)) and any(made.startswith(SPACE) for made, *_ in self.records):
            raise RuntimeError("a compiled call has failed behind a collective; the other processes would wait for it "
                               "in vain if it were made again")
        return func(*args, **(kwargs or {}))


def _code_of(handler: int | Callable | None) -> types.CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    return getattr(handler, "__code__", None) or getattr(getattr(type(handler), "__call__", None), "__code__", None)


def pass_on(error: Exception) -> None:
    """Have an error that is about to be raised reach the program: what has raised it cannot be run again."""
    error._jit_passed_on = True  # type: ignore[attr-defined]


def is_foreign(error: Exception, repeatable: bool) -> bool:
    """Whether an error that reached a rewritten function's handler, and which no native plan has raised, is not
    followed by a run in eager: it is to be passed on, or comes from elsewhere: from a signal's handler, or, where only
    a plan can have raised it (not ``repeatable``), from another thread."""
    if vars(error).pop("_jit_passed_on", False):
        return True
    called = error.__traceback__ and error.__traceback__.tb_next
    if called is None:
        return not repeatable
    code = called.tb_frame.f_code
    return any(_code_of(signal.getsignal(number)) is code for number in signal.valid_signals())


def tell_of_prediction(error: Exception, operators: Sequence[tuple[str, str, int]]) -> None:
    """Warn, once for each place, where ``error`` of a plan says that an operator of the program's own gave what its
    fake kernel has not predicted: each such call is run twice, and nothing else shows it. ``operators``: (name, file,
    line) of all of them in the plan."""
    found = _PREDICTED.match(str(error))
    if found is None:
        return
    # The plan may call it by a common name of such operators.
    named = [row for row in operators if row[0] == found[1]] or operators
    if not named or named[0] in _told:
        return
    _told.add(named[0])
    names = " or ".join(dict.fromkeys(name for name, *_ in named))
    telling.warn(f"jit: the operator {names} returned {found[2]}: its fake kernel (register_fake) says other sizes or "
                 "another dtype than its kernel gives. Results are right, but such calls run in eager after the "
                 "compiled code has stopped there, which takes longer than eager alone. Have both give the same; "
                 "torch.library.opcheck compares them.", at=named[0][1:])


def _run(records: list[tuple], original: Callable, *args: object) -> Any:
    with _Happened(records):
        return original(*args)


def again(call: Callable, records: list[tuple]) -> Callable:
    """``call`` for a function that is run where ``records`` have happened."""
    return functools.partial(call, _run, records) if records else call
