"""What is done while kernels are compiled: once, at the wait or when it is asked for, and guard programs that are
written in two pieces."""

import threading

import jit
import pytest
import torch
from jit import meanwhile
from jit.frame import guards as frame_guards
from jit.frame import source as src
from jit.frame.guards import Guards
from jit.frame.size_facts import SizeFacts
from jit.graph.shape_env import ShapeEnv
from jit.runtime import facts


def test_a_call_is_made_once_at_the_wait_or_before():
    made = []
    with meanwhile.scope():
        first, second = meanwhile.soon(made.append, 1), meanwhile.soon(lambda: made.append(2) or "two")
        assert not made and second() == "two" and made == [2]
        meanwhile.now()
        assert made == [2, 1] and first() is None and second() == "two"
        meanwhile.now()
        late = meanwhile.soon(made.append, 3)
    meanwhile.now()
    assert made == [2, 1]  # its scope is over
    late()
    assert made == [2, 1, 3]


def test_scopes_are_those_of_a_thread_and_of_a_compilation():
    made = []
    with meanwhile.scope():
        meanwhile.soon(made.append, "outer")
        with meanwhile.scope():
            meanwhile.now()
            assert not made
        thread = threading.Thread(target=meanwhile.now)
        thread.start()
        thread.join()
        assert not made
        meanwhile.now()
    assert made == ["outer"]
    assert meanwhile.soon(lambda: 5)() == 5


def test_what_a_call_raises_comes_out_and_the_next_is_still_made():
    made = []
    with meanwhile.scope():
        meanwhile.soon(lambda: 1 / 0)
        meanwhile.soon(made.append, 1)
        with pytest.raises(ZeroDivisionError):
            meanwhile.now()
        meanwhile.now()
    assert made == [1]


def recorded(prepare):
    """The program of some facts, of which ``prepare(guards)`` has come by half way."""
    guards = Guards(SizeFacts(ShapeEnv(), {}, None))
    x, y = src.Local(0, "x"), src.Local(1, "y")
    guards.add(None, guards.state)
    guards.add(x, facts.TypeIs(list))
    guards.add(x, facts.Length(2))
    guards._rows.insert(0, (None, guards.state))
    prepare(guards)
    guards.add(src.Item(x, 0), facts.TypeIs(int))
    guards.add(y, facts.TypeIs(int))
    guards.add_presence(src.Item(x, 1))
    accessors, checks = guards.program()
    return [row[:3] for row in accessors], [(at, kind, payload, str(fact)) for at, kind, payload, fact in checks]


def test_a_program_in_two_pieces():
    whole = recorded(lambda guards: None)
    assert recorded(Guards.prepare) == whole and len(whole[1]) >= 6


def test_a_program_of_which_what_was_written_is_not_so_any_more_is_written_again():
    def slots(guards):
        guards.prepare()
        guards.fresh.add(src.Local(0, "x"))

    def taken_back(guards):
        guards.add(src.Local(2, "z"), facts.TypeIs(int))
        guards.prepare()
        del guards._rows[-1]

    assert recorded(slots) == recorded(lambda guards: guards.fresh.add(src.Local(0, "x")))
    assert recorded(slots) != recorded(lambda guards: None)

    def never(guards):
        guards.add(src.Local(2, "z"), facts.TypeIs(int))
        del guards._rows[-1]

    assert recorded(taken_back) == recorded(never)


def test_guards_are_written_while_kernels_are_compiled(monkeypatch):
    begun = []
    real = frame_guards._Program.goes_on

    def goes_on(program, rows, fresh):
        begun.append((len(program.rows), len(rows), real(program, rows, fresh)))
        return begun[-1][-1]

    monkeypatch.setattr(frame_guards._Program, "goes_on", goes_on)
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(3)])
    compiled, x = jit.compile(model), torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), model(x))
    ((first, all_, goes_on_),) = begun
    assert goes_on_ and 20 < first <= all_ <= first + 5
    model[1].register_forward_hook(lambda m, a, r: r * 2)
    torch.testing.assert_close(compiled(x), model(x))
    for module in torch.nn.ReLU(), torch.nn.Linear(3, 4):
        model.append(module)
        torch.testing.assert_close(compiled(x), model(x))
    with torch.autocast("cpu"):
        torch.testing.assert_close(compiled(x), model(x))
