"""An entry with a break, made because a fact was another one at each call, does not serve the calls of earlier entries
without one."""

import torch

import jit


def test_entries_without_breaks_come_first():
    def f(items, x):
        for item in items:
            x = x * item
        return x.sin()

    compiled, x = jit.compile(f), torch.ones(3)
    for n in range(12):  # the length of the list becomes a break
        items = [2] * n
        assert torch.equal(compiled(items, x), f(items, x))
    entries = compiled.entries
    whole = [e for e in entries if e.region is None and e.target is not None]
    assert 0 < len(whole) < len(entries)
    before = whole[1].hits
    for _ in range(3):
        assert torch.equal(compiled([2] * 11, x), f([2] * 11, x))
        assert torch.equal(compiled([2], x), f([2], x))
    assert whole[1].hits == before + 3
