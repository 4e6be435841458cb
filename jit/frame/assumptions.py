"""Branches on tensor values of which one side only raises, or warns: ``if bad.any(): raise ValueError(...)``,
``assert ok``, ``if bad.any(): warnings.warn(...)``; and operators whose result has another size, or that raise, for
unusual values.

Capture goes on along the other side, and the condition becomes one more result of the graph. The rewritten function
looks at it after the graph has run and before anything of the program's is changed; where it does not hold, the call is
done in eager instead, which raises what the program raises, and warns. In a graph that changes its inputs or draws
random numbers it is a step of the plan that raises, before the commit: what was drawn is put back, as for any failure.
A function whose assumption fails on more than a quarter of the calls does its work twice on each of these: it is
captured again with a break at the branch.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from typing import TYPE_CHECKING

import torch

from ..runtime.naming import Naming
from ..runtime.names import Given, Name, Value, calling, rule
from .states.function_state import unasked
from .watching import Watching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..graph.handles import TensorHandle
    from .canonical import Instr
    from .dispatch import Settings
    from .session import Session

_LONGEST = 80  # instructions of a side that raises


_DOES_NOT_HOLD = "jit: an assumption does not hold; the call is done in eager"
_PATIENCE = 3  # failures that are put up with, however few calls there were
_IN_A_ROW = 4  # and one behind the other, however many calls there were


class Doubt(Watching):
    """Called by the rewritten function of an entry whenever its assumption fails. ``learned``: the branches whose usual
    way was assumed (``ways.Ways``). ``missed`` and ``dispatcher`` are those of the entry."""

    def __init__(self, learned: tuple = ()) -> None:
        self.learned, self.failures, self.missed, self.dispatcher = learned, 0, None, None
        self.row, self.last = 0, -1  # failures in a row, and the entry's calls at the last one

    def watch(self, missed, dispatcher, entry) -> None:
        """Have the entry taken back once the assumption has failed too often. Not with ``fullgraph``, where there may
        be no break instead."""
        if not missed.settings.fullgraph:
            self.missed, self.dispatcher, entry.doubt = weakref.ref(missed), weakref.ref(dispatcher), self

    def __call__(self, error: Exception | None = None) -> None:
        """``error``: what the plan has raised, where the assumption is one of its steps."""
        if error is not None and str(error) != _DOES_NOT_HOLD:
            return
        self.failures += 1
        missed, dispatcher = self.missed and self.missed(), self.dispatcher and self.dispatcher()
        if missed is None or dispatcher is None:
            return
        for entry in dispatcher.entries:
            if getattr(entry, "doubt", None) is not self:
                continue
            self.row = self.row + 1 if entry.hits == self.last + 1 else 1
            self.last = entry.hits
            often = self.failures >= _PATIENCE and 4 * self.failures > entry.hits
            if (often or self.row >= _IN_A_ROW) and missed.may_take_back():
                missed.takes_back(self.differed(), "nothing needs to be done")
                for ways in self.learned:
                    ways.forget()
                missed.assuming &= bool(self.learned)
                dispatcher.remove_entry(entry)


    def differed(self) -> str:
        """What has not held."""
        if not self.learned:
            return "a check that raises or warns where it fails was taken to pass, and failed at several calls"
        file, _, _, line = self.learned[0].place[:4]
        return f"the branch at {file}:{line} was taken to go one way, and went the other at several calls"


def doubt_of(settings: Settings, places: tuple[tuple, ...]) -> Doubt:
    """A Doubt of what it is written as."""
    return Doubt(tuple(map(settings.ways.of, places)))


@rule(Doubt)
def _name_of_doubt(naming: Naming, doubt: Doubt) -> Name:
    return calling(doubt_of, Given("settings"), Value(tuple(ways.place for ways in doubt.learned)))


class Reconsider(Exception):
    """The capture is to be done again, without assumptions, or without another thing that a flag of the session allows:
    ``what``; with "" as before, since more is known now."""

    def __init__(self, what: str = "assuming") -> None:
        super().__init__(what)
        self.what = what


def only_raises(frame, index: int) -> bool:
    """Whether the instructions from ``index`` on lead to a raise, without a jump, a return or a loop."""
    for instr in frame.instructions[index: index + _LONGEST]:
        if instr.op == "RAISE_VARARGS":
            return True
        if instr.target is not None or instr.op.startswith(("RETURN", "YIELD",
                                                            "STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR")):
            return False
    return False


def warns(frame, index: int, end: int) -> bool:
    """Whether the instructions from ``index`` to ``end`` give a warning, or log one, without a jump."""
    side = frame.instructions[index:end]
    return len(side) <= _LONGEST and all(instr.target is None for instr in side) and _warn_among(frame, side)


def returns(frame, index: int) -> bool:
    """Whether the instructions from ``index`` on lead to a return, without a jump."""
    for instr in frame.instructions[index: index + _LONGEST]:
        if instr.op.startswith("RETURN"):
            return True
        if instr.target is not None or instr.op.startswith(("RAISE", "YIELD", "STORE")):
            break
    return False


def struggles(frame, index: int) -> bool:
    """Whether what is left of a function from ``index`` on warns, and ends by a raise: it tries again what failed."""
    rest = frame.instructions[index:]
    return bool(rest) and rest[-1].op == "RAISE_VARARGS" and _warn_among(frame, rest)


def _warn_among(frame, instructions: Sequence[Instr]) -> bool:
    return any(instr.op == "LOAD_GLOBAL" and _speaks(frame.globals.get(instr.arg), then)
               for instr, then in zip(instructions, instructions[1:]))


def _speaks(named: object, then: Instr) -> bool:
    if named is warnings.warn:
        return True
    if then.op not in ("LOAD_ATTR", "LOAD_METHOD"):
        return False
    return (named is warnings and then.arg == "warn"
            or isinstance(named, logging.Logger) and then.arg.startswith(("warn", "error", "critical", "exception")))


def assume(s: Session, tensor: torch.Tensor, expected: bool) -> bool:
    """Go on as if the truth of a tensor were ``expected``; False where that is not possible."""
    handle = tensor.handle(s)
    if not s.assuming or s.in_a_map or any(type(n) is not int or n != 1 for n in handle.shape):
        return False
    with unasked(s):
        holds = s.torch_call(torch.ne if expected else torch.eq, [tensor.detached(s), s.from_python(0)], {})
        if handle.shape:
            holds = s.torch_call(torch.Tensor.reshape, [holds, s.from_python(())], {})
        s.set_field(s, "assumption", holds if s.assumption is None
                    else s.torch_call(torch.logical_and, [s.assumption, holds], {}))
    return True


def assume_handle(s: Session, handle: TensorHandle) -> bool:
    """``assume`` for an operator whose result has the usual size only where something holds."""
    return assume(s, s.recording.tensor_of(handle), True)


def truth_at(frame, instr: Instr, tensor: torch.Tensor):
    """The assumed truth of a tensor that a conditional jump depends on, or None."""
    jumps_if = instr.op == "POP_JUMP_IF_TRUE"
    if only_raises(frame, frame.pc + 1) and not only_raises(frame, instr.target):
        wanted = jumps_if
    elif only_raises(frame, instr.target):
        wanted = not jumps_if
    elif warns(frame, frame.pc + 1, instr.target):
        wanted = jumps_if
    elif warns(frame, instr.target, _end_behind(frame, instr)):
        wanted = not jumps_if
    elif returns(frame, frame.pc + 1) and struggles(frame, instr.target):
        wanted = not jumps_if
    else:
        return _learned(frame, instr, tensor, jumps_if)
    return wanted if assume(frame.s, tensor, wanted) else None


def _end_behind(frame, instr: Instr) -> int:
    """Where what ``instr`` jumps to ends, if what it goes on with may jump past that, as the second half of an ``or``
    does."""
    between = frame.instructions[frame.pc + 1: instr.target]
    return max((i.target for i in between if i.target is not None), default=0)


def _learned(frame, instr: Instr, tensor: torch.Tensor, jumps_if: bool) -> bool | None:
    s = frame.s
    ways = s.ways.at(frame.fn.code, instr) if s.ways is not None and s.learning and not s.unbroken else None
    usual = ways and ways.usual()
    wanted = jumps_if == (usual == "jumped")
    if usual is None or not assume(s, tensor, wanted):
        return None
    s.set_field(s, "learned", (*s.learned, ways))
    return wanted


def runs_twice(s: Session) -> bool:
    """Whether an eager run of the same call may follow what was captured."""
    return (not any(h.base.mutated for h in s.tracer.inputs) and not s.tracer.inner_gradients
            and all(n.repeatable for n in s.tracer.builder.nodes))


def check_inside(s: Session) -> None:
    """Have the plan raise where the assumption does not hold. It is read on the host: an assertion on a GPU would end
    the process."""
    holds = s.torch_call(torch.Tensor.cpu, [s.assumption], {})
    s.tracer.builder.check(holds.handle(s).node, _DOES_NOT_HOLD)


def check(graph, what: str) -> None:
    """Raises Reconsider, of ``what``, for a graph that cannot be followed by an eager run of the same call."""
    if any(o.mutates is not None for o in graph.outputs) or not all(n.repeatable for n in graph.nodes):
        raise Reconsider(what)
