"""A call commits once, whatever instruction of its rewritten function raises: before the commit point nothing has
happened, and eager may run the call instead; behind it all tensors are written, and what else the program does has been
done in its order, each once.

Tracing raises before each instruction in turn: what an interrupt or a lack of memory there would do.
"""

import bisect
import contextvars
import dis
import sys

import pytest
import torch
from test_failing_calls import KEPT, PROGRAMS as FAILING, Thing, copied, outcome, seen, versions

import jit
from jit import logs
from jit.failures import InternalFailure
from jit.frame import blocks
from jit.frame.blocks import ARGUMENTS, COMPUTE, EFFECTS, READ_BACK, REBUILD, BlockError
from jit.frame.emit import Emitter

PROGRAMS = {name: make for name, make in FAILING.items() if name not in KEPT}
VARIABLE = contextvars.ContextVar("number", default=0)


def program(make):
    PROGRAMS[make.__name__] = make
    return make


@program
def results_made_from_others():
    def f(x, log):
        log.append(len(log))
        y = x * 2
        return y, y.detach(), x.detach(), y.t().data
    return f, (torch.ones(2, 3), [])


@program
def values_read_off_results():
    def f(x, log, o):
        log.append(x.sum().item())
        o.found = (x * 2).nonzero()
        o.seen = log
        return x[x > 0], len(log)
    return f, (torch.arange(5.0), [], Thing(found=None))


@program
def an_assumption():
    def f(x, log):
        log.append(1)
        if (x > 100).any():
            raise ValueError("too large")
        log.append(2)
        return x + 1
    return f, (torch.ones(3), [])


@program
def copies_with_a_history():
    def f(w, x, log):
        log.append(x.sum())
        x.mul_(w)
        log.append(2)
        return x.sum() + 1
    return f, (torch.ones(3, requires_grad=True), torch.ones(3), [])


@program
def writes_through_shared_memory():
    """The plan changes nothing, and the version counters go on."""
    def f(x, y, log):
        log.append(1)
        x.copy_(y)
        log.append(2)
        return x[1:], y
    x = torch.ones(3)
    return f, (x, x, [])


@program
def a_freed_history():
    def f(w, log):
        y = (w * w).sum()
        y.backward()
        log.append(y.detach())
        return y
    return f, (torch.ones(3, requires_grad=True), [])


@program
def containers_of_all_kinds():
    def f(b, log, d, s, o, it):
        b.add_(next(it))
        d["new"] = o
        d.pop("old")
        s.add(len(d))
        log += [b, log]
        o.inner.k = [log]
        del o.gone
        log.reverse()
        VARIABLE.reset(VARIABLE.set(2))
        return {"b": b * 2, "log": log, "lazy": iter(d)}
    return f, (torch.ones(2), [0], {"old": 1}, {7}, Thing(inner=Thing(k=1), gone=2), iter([1, 2, 3]))


@program
def new_objects():
    def f(x, log):
        class_ = Thing(x=x)
        loop = [1]
        loop.append(loop)

        def inner(n, *, m=3):
            return (class_, n, m)
        inner.mark = loop
        log.append(inner)
        log.append((n for n in [1, 2]))
        return class_, loop, inner
    return f, (torch.ones(2), [])


@program
def numbers_that_change():
    def f(x, k, rate, log):
        log.append(k + 1)
        log.append(rate * 2)
        return x * rate + k
    return f, (torch.ones(3), 5, 0.5, [])


@program
def a_break():
    def f(x, log):
        log.append(1)
        x.add_(1)
        kept = [x * 2, log]
        sys.getallocatedblocks()
        log.append(kept)
        return kept
    return f, (torch.ones(3), [])


class Tripwire:
    """A tracing function that raises before the so-manieth instruction of a code object."""

    def __init__(self, code, point, error):
        self.code, self.left, self.error, self.at = code, point, error, None

    def __call__(self, frame, event, arg):
        if frame.f_code is not self.code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame, event, arg):
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                self.at = frame.f_lasti
                raise self.error("tripped")
        return self.step


def tripped(fn, args, target, point, error):
    """-> (outcome, offset of the instruction that was not run, None if there was none)."""
    if sys.version_info >= (3, 13):  # the first call that asks for instructions is not told of them
        traced(fn, copied(args), Tripwire(target.__code__, sys.maxsize, error))
    wire = Tripwire(target.__code__, point, error)
    return traced(fn, args, wire), wire.at


def traced(fn, args, wire):
    before = sys.gettrace()
    torch.manual_seed(1)
    sys.settrace(wire)
    try:
        return outcome(fn, args)
    finally:
        sys.settrace(before)


def parts(args):
    """What tensors hold, and all else."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    rest = [t.grad if t.is_leaf else None for t in tensors] + [a for a in args if not isinstance(a, torch.Tensor)]
    return [(seen(t.detach()), t.requires_grad) for t in tensors], seen(rest)


def block_at(target, offset):
    starts = [start for start, _ in target._jit_blocks]
    at = bisect.bisect_right(starts, offset) - 1
    return target._jit_blocks[at][1] if at >= 0 else None


def is_protected(target, offset):
    return any(e.start <= offset < e.end for e in dis._parse_exception_table(target.__code__))


NAMES = [block.name for block in blocks.ORDER]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_raises_at_any_instruction(name, error):
    torch.manual_seed(0)
    f, args = PROGRAMS[name]()
    c = jit.compile(f)
    for _ in range(3):
        c(*copied(args))
    entry = c.entries[-1]
    target, reached = entry.target, set()
    whole, ends = copied(args), copied(args)  # what eager leaves, and what the rewritten function does, at its end
    torch.manual_seed(1)
    expected = outcome(f, whole)
    last = [start for start, block in target._jit_blocks if block in ("return", "break")][0]
    tripped(c, ends, target, sum(i.offset < last for i in dis.get_instructions(target)), KeyboardInterrupt)
    counted, last_counted = versions(whole), versions(ends)
    whole, ends, nothing = parts(whole), parts(ends), parts(copied(args))
    commits = "effects" if ends[0] == nothing[0] and last_counted == versions(copied(args)) else "results"
    assert ends == whole or any(block == "break" for _, block in target._jit_blocks)
    for point in range(2000):
        mine = copied(args)
        before = versions(mine)
        got, at = tripped(c, mine, target, point, error)
        if at is None:
            break
        block, left = block_at(target, at), parts(mine)
        reached.add(block)
        where = point, block
        if got[0] == "returned" or got[1] is not error:
            assert error is MemoryError and is_protected(target, at), where
            assert (got[:3], left, versions(mine)) == (expected[:3], whole, counted), where
        elif block is None or block in NAMES[:NAMES.index(commits)]:
            assert error is KeyboardInterrupt or not is_protected(target, at), where
            assert left == nothing and versions(mine) == before, where
        else:
            assert left[0] == ends[0] or block in ("results", "history", "write back") and left[0] == nothing[0], where
            if block in NAMES[:NAMES.index("effects")]:
                assert left[1] == nothing[1], where
                continue
            assert versions(mine) == last_counted, where
            if block in ("rebuild", "return", "let go", "break"):
                assert left[1] == ends[1], where
    assert point > 5 and "rebuild" in reached


def refused(f, *args):
    """What a compiled call says of a bug of ours, which is an error in the tests."""
    with pytest.raises(InternalFailure) as caught:
        jit.compile(f)(*args)
    return str(caught.value)


def test_a_change_outside_of_the_blocks_that_change(monkeypatch):
    def f(x, log):
        log.append(x.sum())
        return x + 1

    def replay(e, effects):
        for fn, args in effects:
            e.change(fn, args)
            e.cmd("pop")

    monkeypatch.setattr(Emitter, "replay", replay)
    assert "called in the block 'rebuild', which changes nothing" in refused(f, torch.ones(2), [])


@pytest.mark.parametrize("fn", [list.append, dict.__setitem__, object.__setattr__, setattr, bytearray.extend])
def test_a_function_that_changes_things_is_no_way_to_make_them(fn):
    e = Emitter(None, test_a_change_outside_of_the_blocks_that_change.__code__, 1, None)
    with pytest.raises(BlockError, match="changes what may have been there"):
        e.call(fn, e.local(".a0"))
    with pytest.raises(BlockError, match="store_attr changes"):
        e.cmd("store_attr", "x")
    e.call(list.copy, e.local(".a0"))


def test_a_change_before_the_commit_point(monkeypatch):
    def f(w, x):
        x.mul_(w)
        return x.sum()

    args = torch.ones(3, requires_grad=True), torch.ones(3)
    jit.compile(f)(*copied(args))
    monkeypatch.setattr(blocks, "before_commit", lambda repeatable: blocks.ORDER[:blocks.ORDER.index(EFFECTS)])
    assert "the block 'write back' changes something before the commit point" in refused(f, *args)


def test_what_may_fail_behind_the_commit_point(monkeypatch):
    def f(x, n):
        x.add_(1)
        return torch.repeat_interleave(x, n)

    args = torch.ones(3), torch.tensor([1, 2, 3])
    jit.compile(f)(*copied(args))
    with Emitter(None, f.__code__, 2, None).into(READ_BACK, fails=True):
        pass
    for block in (EFFECTS, REBUILD):
        with pytest.raises(BlockError, match="what may fail"):
            with Emitter(None, f.__code__, 2, None).into(block, fails=True):
                pass
    commands = {block: [] for block in blocks.ORDER}
    blocks.check(commands, [], {READ_BACK}, blocks.before_commit(True))
    with pytest.raises(BlockError, match="'read back' may fail behind"):
        blocks.check(commands, [], {READ_BACK}, blocks.before_commit(False))


def test_a_local_that_a_later_block_stores():
    commands = {block: [] for block in blocks.ORDER}
    commands[ARGUMENTS] = [("load_fast", (".a0",)), ("store_fast", (".t1",))]
    commands[COMPUTE] = [("load_fast", (".t1",))]
    blocks.check(commands, [".a0"], set(), ())
    commands[READ_BACK], commands[EFFECTS] = [("load_fast", (".t2",))], [("store_fast", (".t2",))]
    with pytest.raises(BlockError, match=".t2 is read in the block 'read back' before it is stored"):
        blocks.check(commands, [".a0"], set(), ())


def headings(f, *args):
    c = jit.compile(f)
    c(*args)
    text = blocks.listing(c.entries[-1].target)
    return [line[:-1] for line in text.splitlines() if not line.startswith(" ")]


def test_listings_name_the_blocks():
    f, args = PROGRAMS["effects_and_writes"]()
    assert headings(f, *args) == ["arguments", "compute", "results", "effects", "rebuild", "return", "failed"]
    f, args = PROGRAMS["copies_with_a_history"]()
    assert headings(f, *args) == ["compute", "results", "write back", "effects", "rebuild", "return", "failed"]
    f, args = PROGRAMS["a_break"]()
    assert headings(f, *args) == ["compute", "results", "effects", "rebuild", "let go", "break", "resume", "failed"]
    assert headings(lambda x, k: x * k.v, torch.ones(2), Thing(v=torch.ones(2)))[:2] == ["arguments", "compute"]


def test_the_log_shows_the_blocks(capsys, monkeypatch):
    monkeypatch.delenv("JIT_LOGS_OUT", raising=False)
    f, args = PROGRAMS["a_break"]()
    logs.enable("bytecode")
    try:
        jit.compile(f)(*args)
    finally:
        logs.enable("")
    err = capsys.readouterr().err
    assert "[jit:bytecode] rewritten:\n" in err and "[jit:bytecode] break:\n" in err
    first = err[err.index("rewritten:"):]
    assert first.index("compute:") < first.index("effects:") < first.index("rebuild:") < first.index("resume:")
