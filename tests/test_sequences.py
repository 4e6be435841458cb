"""Short sequences of views, writes and changes of history on one piece of memory, on the default backend; all of them:
``python -m tests.sweeps.sequences``."""

import pytest
from sweeps.sequences import SOURCES, difference, program, programs

# Each was wrong once.
FOUND = [
    ("argument", "y = v.detach().requires_grad_()"),
    ("argument", "a = v[:1].expand(3, 4) ; a = (v * 1).detach().requires_grad_()"),
    ("view", "jit.graph_break() ; y = v.detach().requires_grad_()"),
    ("product", "- v.t_() ; y = v.exp()"),
    ("product", "a = v[1:] ; - v.t_()"),
    ("exp", "a = v[i] ; - v.t_()"),
    ("product", "v.unsqueeze_(0) ; - torch.mul(w, w, out=v)"),
    ("product", "- v.sigmoid_() ; y = v * w ; v.add_(1)"),
    ("product", "- a = v[1:] ; v, y = y, v ; v.copy_(y)"),
    ("exp", "a = v.data ; - a.mul_(2)"),
    ("argument", "y = v * v ; - v.data.add_(1)"),
    ("argument", "- v.data.add_(1) ; y = v * v"),
    ("whole view", "a = v.split(2)[0] ; - v.data.add_(1)"),
    ("product", "a = v[1:] ; v, y = y, v ; v.copy_(y)"),
]


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("source, statements", FOUND)
def test_found(source, statements, dynamic):
    assert difference(program(source, statements.split(" ; ")), True, dynamic) is None


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_some(first):
    found = [(source, statements, why) for at, (source, statements) in enumerate(programs(3, 120, 7)[first:first + 40])
             if (why := difference(program(source, statements), at % 5 != 4, True if at % 3 == 2 else None))]
    assert not found


def test_the_statements_are_taken_apart():
    assert "with torch.no_grad():\n        v.t_()\n" in program("view", ["- v.t_()"])
    assert len(programs(1, None, 0)) == len(SOURCES) * len({s for _, (s,) in programs(1, None, 0)})
