"""Branches and loops on the values of a tensor as steps of the graph (``graph.rounds``): ``if x.sum() > 0: ...`` and
``while error > 1e-3: ...``.

The program is followed along both ways of the branch, each into a graph apart, up to where they meet. Variables that
are not the same then are results of one step, whose plan reads the condition and runs one of the two graphs. A loop is
a step that runs the graph of its body until its condition fails.

That is done where the ways only compute: without gradients, random numbers, effects on objects, or writes to tensors
from before, and where variables that differ are plain tensors of the same types and strides. Else the branch breaks the
graph. A result may be a tensor from before the branch itself, where a way leaves a variable as it was; the step then
gives that very tensor. Whether it does is not known here, so none of the tensors that it may be can be changed
(``Tracer.either``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ..devices import backend
from ..graph import rounds
from ..graph.handles import next_version
from ..graph.ir import same_ints
from .assumptions import Reconsider
from .decode import successors
from .executor import Frame, Returned, Yielded
from .speculation import reachable
from .states.function_state import unasked
from .ways import place_of
from .values import batched
from .values.base import Value
from .values.containers import TupleValue

if TYPE_CHECKING:
    from ..errors import Unsupported
    from ..graph.handles import TensorHandle
    from ..graph.ir import Node
    from ..graph.tracer import Tracer
    from .canonical import Instr
    from .session import Session

class _Way:
    """What following the program along one way has come to.

    Attributes:
        made: the nodes that were traced.
        stack, locals: the frame's, where the ways meet.
        returned: what the frame returned, where they only meet in that.
    """

    def __init__(self, f: Frame, made: list[Node], returned: Value | None) -> None:
        self.made, self.stack, self.locals, self.returned = made, list(f.stack), dict(f.locals), returned


def _since(refusal: Unsupported, found: tuple[str, str]) -> Unsupported:
    """The break with why it is no step of the graph, and what the user can do about that; "" where it is not said."""
    why, cure = found
    refusal.why, refusal.hint = refusal.why + why, cure or refusal.hint
    return refusal


def followed(f: Frame, instr: Instr, value: Value, wanted: bool, refusal: Unsupported) -> int:
    """Where to go on behind a conditional jump of which both ways were followed: the index of an instruction.

    Args:
        value: what the jump depends on, taken off the stack.
        wanted: whether the jump is taken where it holds.
        refusal: why it is a break else.

    Raises:
        refusal: they cannot be followed.
        Reconsider: likewise, and the program is captured once more, knowing that.
        Returned: with the frame's result, where both ways return.
    """
    s, place = f.s, (place_of(f.fn.code, instr), f.s.tracer.grad_enabled)
    if s.ways is not None and place in s.ways.apart:
        refusal.why = refusal.why.removesuffix(s.ways.apart[place][0])
        raise _since(refusal, s.ways.apart[place])
    if not s.joining or batched.active(s) or s.levels or s.tracer.written_before != s.joined or s.tracer.regions:
        raise refusal
    kept = (f.pc, list(f.stack), dict(f.locals), f.mark, f.kept)
    # What needs a value that is read later raises one error each time, along the ways too.
    said, refusal.frames = refusal.why, []
    ways = (instr.target, f.pc + 1) if wanted else (f.pc + 1, instr.target)
    journal, tracer, version = s.journal, s.tracer, next_version()
    with s.speculate(raises=True) as attempt:
        with (journal.temporarily(tracer.builder, "guess", None), journal.temporarily(s, "assuming", False),
              journal.temporarily(s, "joined", version), journal.temporarily(tracer, "written_before", version)):
            holds, loop = _condition(s, value), _loop_at(f, ways)
            following = _both(f, holds, ways) if loop is None else _rounds(f, holds, loop)
    if not attempt.went_through:
        f.pc, f.stack, f.locals, f.mark, f.kept = kept
        refusal.why, refusal.where, refusal.user, refusal.frames = said, None, None, []
        if isinstance(attempt.refusal, rounds.Refused):
            found = f"; it is no step of the graph: a way of it {attempt.refusal.reason}", attempt.refusal.cure
        else:
            found = "", ""
        if s.ways is not None:  # captured anew, so that nothing is relied on that was met along the ways
            s.ways.apart[place] = found
            raise Reconsider("")
        raise _since(refusal, found)
    if isinstance(following, Value):
        raise Returned(following)
    return following


def _condition(s: Session, value: Value) -> Value:
    """A condition as one bool without dimensions."""
    if value.is_tensor and s.asker.overridden([value]):
        raise rounds.Refused("asks a mode or a class what holds")
    tensor = value if value.is_tensor else value.truth_of(s) if value.is_read else None
    if tensor is None or tensor.pytype(s) is not torch.Tensor:
        raise rounds.Refused("depends on what is no plain tensor")
    handle = tensor.handle(s)
    if any(type(n) is not int or n != 1 for n in handle.shape) or handle.dtype.is_complex:
        raise rounds.Refused("depends on several values")
    tensor = tensor.detached(s)
    with unasked(s):
        if handle.shape:
            tensor = s.torch_call(torch.Tensor.reshape, [tensor, s.from_python(())], {})
        return on_host(s, s.torch_call(torch.Tensor.to, [tensor, s.from_python(torch.bool)], {}))


def on_host(s: Session, condition: Value) -> Value:
    """A condition where the plan can read it."""
    return condition if backend(condition.handle(s).device).host else s.torch_call(torch.Tensor.cpu, [condition], {})


def _both(f: Frame, holds: Value, starts: tuple[int, int]) -> int | Value:
    """Where to go on behind both ways, which start at these instructions, or what the frame returns."""
    s, join = f.s, f.code.join(f.pc)
    if join is None:
        raise rounds.Refused("does not return")
    before = _Before(f)
    ways = [_way(f, before, start, join) for start in starts]
    before.require_unchanged(f)
    merged = _Merged(s, ways)
    if join == len(f.instructions):
        result = merged.slot(ways[0].returned, ways[1].returned)
    else:
        stack = [merged.slot(a, b) for a, b in zip(ways[0].stack, ways[1].stack, strict=True)]
        live = [n for n in f.code.live_locals(join) if any(n in way.locals for way in ways)]
        if any(n not in way.locals for n in live for way in ways):
            raise rounds.Refused("leaves a variable unset")
        variables = {n: merged.slot(*(way.locals[n] for way in ways)) for n in live}
    found = merged.record(holds)
    if join == len(f.instructions):
        return found(result)
    f.stack = [found(v) for v in stack]
    there = {n: v for n, v in before.locals.items() if all(n in way.locals for way in ways)}
    f.locals = {**there, **{n: found(v) for n, v in variables.items()}}
    return join


def _way(f: Frame, before: _Before, start: int, stop: int) -> _Way:
    """Follow the frame from ``start`` to ``stop``, from what was before."""
    f.stack, f.locals, f.pc, returned = list(before.stack), dict(before.locals), start, None
    with rounds.tracing(f.s.tracer) as made:
        try:
            f.loop(stop)
        except Returned as done:
            if stop != len(f.instructions):
                raise rounds.Refused("returns") from None
            returned = done.value
        except Yielded:
            raise rounds.Refused("yields") from None
    return _Way(f, made, returned)


# loops


class _Loop(NamedTuple):
    """A loop: its body starts at instruction ``body`` and leads to the conditional jump ``test``, behind which the
    program goes on with the body or at ``leave``. ``inside``: the instructions of the body; ``while_holds``: whether it
    goes on with the body where the condition of the present jump holds."""

    body: int
    test: int
    leave: int
    inside: frozenset[int]
    while_holds: bool


def _loop_at(f: Frame, ways: tuple[int, int]) -> _Loop | None:
    """The loop of which the present conditional jump decides whether there is another round."""
    instructions = f.instructions
    meant = {_behind_jumps(instructions, way) for way in ways}
    tests = {k for k, instr in enumerate(instructions) if instr.op in _TESTS
             and {_behind_jumps(instructions, way) for way in (k + 1, instr.target)} == meant}
    for body, leave in (ways, ways[::-1]):
        inside, found, queue = set(), set(), [body]
        while queue:
            k = queue.pop()
            if k in tests:
                found.add(k)
            elif k not in inside:
                inside.add(k)
                queue += successors(instructions, k)
        left = _behind_jumps(instructions, leave)
        if len(found) == 1 and left not in inside and not any(instructions[k].op.startswith("RETURN") for k in inside):
            return _Loop(body, found.pop(), left, frozenset(inside), body == ways[0])
    return None


_TESTS = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")


def _behind_jumps(instructions: list[Instr], index: int) -> int:
    while instructions[index].op in ("JUMP", "NOP"):
        index = successors(instructions, index)[0]
    return index


def _rounds(f: Frame, holds: Value, loop: _Loop) -> int:
    """Where to go on behind a loop whose rounds are a step."""
    s, tracer, before = f.s, f.s.tracer, _Before(f)
    stored = dict.fromkeys(f.instructions[k].arg for k in sorted(loop.inside) if f.instructions[k].op in _STORES)
    live = f.code.live_locals(loop.body) | f.code.live_locals(loop.leave)
    names = [n for n in stored if n in live]
    if not names or any(n not in f.locals or not _is_plain(s, f.locals[n]) for n in names):
        raise rounds.Refused("carries on what is no plain tensor")
    carried = [f.locals[n].handle(s) for n in names]
    first = holds if loop.while_holds else _opposite(s, holds)
    with rounds.tracing(tracer) as made:
        started = [rounds.start(tracer, h) for h in carried]
        if any(not same_ints(h.type.strides, t.type.strides) for h, t in zip(carried, started)):
            raise rounds.Refused("carries on a tensor with gaps")
        f.locals = {**f.locals, **{n: s.recording.tensor_of(h) for n, h in zip(names, started)}}
        f.pc = loop.body
        try:
            f.loop(loop.test)
        except (Returned, Yielded):
            raise rounds.Refused("returns or yields") from None
        more = _condition(s, f.pop())
        test = f.instructions[loop.test]
        goes_on = _behind_jumps(f.instructions, test.target) == _behind_jumps(f.instructions, loop.body)
        more = more if goes_on == (test.op == "POP_JUMP_IF_TRUE") else _opposite(s, more)
    if f.stack != before.stack or any(n not in f.locals or not _is_plain(s, f.locals[n]) for n in names):
        raise rounds.Refused("carries on what is no plain tensor")
    before.require_unchanged(f)
    results = [f.locals[n].handle(s) for n in names]
    nodes = rounds.record_loop(tracer, made, carried, started, results, more.handle(s), first.handle(s), own=False)
    found = [tracer.fresh(n) for n in nodes]
    _note_shared(tracer, found, [carried, results], [[], made])
    f.locals = {**before.locals, **{n: s.recording.tensor_of(h) for n, h in zip(names, found)}}
    return loop.leave


_STORES = ("STORE_FAST", "DELETE_FAST", "STORE_DEREF", "DELETE_DEREF")


def _opposite(s: Session, holds: Value) -> Value:
    with unasked(s):
        return s.torch_call(torch.logical_not, [holds], {})


def _is_plain(s: Session, value: Value) -> bool:
    """Whether a value is a plain tensor without a gradient."""
    return (value.is_tensor and value.pytype(s) is torch.Tensor
            and not (s.tracer.grad_enabled and value.handle(s).requires_grad))


# what ways may do


class _Before:
    """The program's state before a branch, to which ways may add values, but which they may not change."""

    def __init__(self, f: Frame) -> None:
        s = f.s
        self.stack, self.locals = list(f.stack), dict(f.locals)
        self.marks = [(journal, journal.checkpoint()) for journal in (s.journal, s.tracer.journal)]
        self.log, self.written, self.states = len(s.effects.log), _written(s), dict(s.states.now)

    def require_unchanged(self, f: Frame) -> None:
        s = f.s
        done = [e.fn for e in s.effects.log[self.log:] if e.state is None]
        if done:
            raise rounds.does_more(getattr(done[0], "__name__", "a side effect"))
        if _written(s) != self.written:
            raise rounds.does_more("it writes to a tensor from before")
        if s.states.changed_since(self.states):
            raise rounds.does_more("it sets a switch of PyTorch's or Python's")
        changed, fields = [], {}
        for journal, mark in self.marks:
            for holder, name, old in journal.changes_since(mark):
                if holder is s or holder is s.tracer:
                    fields.setdefault((holder, name), old)
                elif not (name == "_handle" and old is None):  # a tensor from outside is used for the first time
                    changed.append(holder)
        for (holder, name), old in fields.items():
            now = getattr(holder, name)
            if now is not old and name != "either" and now != old:
                raise rounds.Refused(f"leaves {name} changed")
        there = [self.stack, self.locals, f.cells, s.heap.by_object, s.heap.by_source, s.generators,
                 *[g for g in s.frames if g is not f]]
        if changed and not reachable(there).isdisjoint(map(id, changed)):
            raise rounds.Refused("changes an object from before")


class _Either:
    """A result of the step."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Merged:
    """Pairs of values, where two ways meet."""

    def __init__(self, s: Session, ways: list[_Way]) -> None:
        self.s, self.ways, self.pairs = s, ways, {}

    def slot(self, a: Value, b: Value) -> object:
        """What is in a variable in which one way has left ``a`` and the other one ``b``: one of them where they are the
        same, an ``_Either``, or a list of such things for a tuple."""
        if a is b or a.is_leaf and b.is_leaf and type(a.value) is type(b.value) and repr(a.value) == repr(b.value):
            return a
        if type(a) is type(b) is TupleValue and a.cls is b.cls is tuple and a.source is b.source is None:
            items = [v.items_list(self.s) for v in (a, b)]
            if len(items[0]) == len(items[1]):
                return [self.slot(x, y) for x, y in zip(*items)]
        if not all(_is_plain(self.s, v) for v in (a, b)):
            raise rounds.Refused("leaves other values than tensors without gradients")
        return self.pairs.setdefault((id(a), id(b)), (_Either(len(self.pairs)), a, b))[0]

    def record(self, holds: Value):
        """Record the step. -> a function from what ``slot`` gave to a value"""
        s, tracer = self.s, self.s.tracer
        handles = [[v.handle(s) for v in of] for of in zip(*[pair[1:] for pair in self.pairs.values()])]
        values: list = []
        if handles:
            nodes = rounds.record_branch(tracer, holds.handle(s), [way.made for way in self.ways], handles)
            found = [tracer.fresh(n) for n in nodes]
            _note_shared(tracer, found, handles, [way.made for way in self.ways])
            values = [s.recording.tensor_of(h) for h in found]
        else:
            for way in self.ways:
                rounds.require_no_more(way.made)

        def value(of: object) -> Value:
            if isinstance(of, list):
                return TupleValue([value(v) for v in of])
            return values[of.index] if isinstance(of, _Either) else of

        return value


def _note_shared(tracer: Tracer, found: list[TensorHandle], ways: list[list[TensorHandle]], made: list[list[Node]],
                 ) -> None:
    """Note which results may be memory of tensors from before, or of each other: ``ways`` are the tensors that each way
    gives, and ``made`` the nodes that are its own."""
    either: list = []
    for handles, nodes in zip(ways, made):
        inside = {n for n in nodes if n.op != "input"}
        for h, result in zip(handles, found):
            own = h.base.input is None and h.base.node in inside
            if not own and h.base.mutated:
                raise rounds.Refused("gives a tensor that was changed before")
            if not own or sum(other.base is h.base for other in handles) > 1:
                either += [result.base, h.base]
    tracer.journal.set_field(tracer, "either", tuple(dict.fromkeys((*tracer.either, *either))))


def _written(s: Session) -> int:
    """How many tensors from outside have been written."""
    return sum(h.base.mutated for h in s.tracer.inputs)
