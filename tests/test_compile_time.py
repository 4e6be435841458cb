"""How much work compiling is: in proportion to the number of operations, inputs and results of a program, and no more.
Lines of the compiler that run are counted, which no clock and no busy machine can change."""

import random
import sys
import time
import types
from pathlib import Path

import jit
import pytest
import torch
from jit.frame import dispatch, stored, writer
from jit.graph.memory import Stretches
from jit.runtime import sources

KEPT, READ = 12_000, 1_000  # lines for a layer
FOLDER = str(Path(jit.__file__).parent)


def lines_of(run):
    """How many lines of the compiler ``run()`` runs."""
    count = 0

    def local(frame, event, argument):
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: local if frame.f_code.co_filename.startswith(FOLDER) else None)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def numbers(n, grad=True):
    return [torch.randn((), requires_grad=grad) for _ in range(n)]


def rows(n, grad=True):
    return [torch.randn(4, requires_grad=grad) for _ in range(n)]


def squares(n):
    return lambda a, b: sum((x - y) ** 2 for x, y in zip(a, b)), (numbers(n), numbers(n))


def stacked(n):
    return lambda a, b: torch.stack([(x - y) ** 2 for x, y in zip(a, b)]).mean(), (numbers(n), numbers(n))


def weighted(n):
    weights = [0.1 * k for k in range(n)]
    return lambda a, b, w: sum(c * (x - y).abs() for x, y, c in zip(a, b, w)) / n, (numbers(n), numbers(n), weights)


def means(n):
    return lambda a, b: sum(((x - y) ** 2).mean() for x, y in zip(a, b)), (rows(n), rows(n))


def chain(n):
    def fn(x):
        for _ in range(n):
            x = (x * 1.1).sin()
        return x
    return fn, (torch.randn(8, requires_grad=True),)


def fan_out(n):
    return lambda x: [(x + k).sin() for k in range(n)], (torch.randn(8, requires_grad=True),)


def fan_in(n):
    return lambda a: torch.cat([x * 2 for x in a]).sin(), (rows(n),)


def several(n):
    return lambda a: [x.sin() * 2 for x in a], (rows(n),)


def parts(n):
    return lambda x: sum(y * k for k, y in enumerate(x.unbind())), (torch.randn(n, 3, requires_grad=True),)


def products(n):
    def fn(x, weights):
        for w in weights:
            x = (x @ w).relu()
        return x
    return fn, (torch.randn(2, 4), [torch.randn(4, 4, requires_grad=True) for _ in range(n)])


def softmaxes(n):
    def fn(x):
        for k in range(n):
            x = (x + k).softmax(-1)
        return x
    return fn, (torch.randn(2, 8, requires_grad=True),)


def recurrence(n):
    def fn(xs, h, u):
        out = []
        for x in xs.unbind():
            h = torch.tanh(x + h @ u)
            out.append(h)
        return torch.stack(out)
    return fn, (torch.randn(n, 2, 4), torch.randn(2, 4), torch.randn(4, 4, requires_grad=True))


def updates(n):
    def fn(params, grads, sums):
        for p, g, s in zip(params, grads, sums):
            s.mul_(0.9).add_(g, alpha=0.1)
            p.sub_(s)
    return fn, (rows(n, False), rows(n, False), rows(n, False))


def filled(n):
    def fn(x):
        y = torch.zeros(n, 4)
        for k in range(n):
            y[k] = x * k
        return y
    return fn, (torch.randn(4, requires_grad=True),)


# The least of the three sizes: what looks at all others for each shows in wide programs only when there are many.
LEAST = {squares: 10, weighted: 10, means: 10, chain: 10, fan_out: 10, several: 10, products: 10, softmaxes: 10,
         recurrence: 10, filled: 10, stacked: 40, fan_in: 40, parts: 40, updates: 40}


@pytest.mark.parametrize("program", LEAST, ids=lambda p: p.__name__)
def test_twice_as_large_a_program_takes_twice_the_work(program):
    sizes = [LEAST[program] * k for k in (1, 2, 4)]

    def compiled(n):
        fn, args = program(n)
        result = jit.compile(fn)(*args)
        if isinstance(result, list):
            result = sum(r.sum() for r in result)
        if result is not None and result.requires_grad:
            result.sum().backward()

    with jit.config.patch(verify_graphs=False):
        for n in sizes:  # what is done once in a process, or for a kernel
            compiled(n)
        counts = [lines_of(lambda: compiled(n)) for n in sizes]
    assert counts[0] > 5000
    few, some, many = counts
    # Compared is what more operations add, without what all programs have in common.
    assert many - some <= 2.3 * (some - few), (counts, (many - some) / (some - few))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.scale = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), 0.5

    def forward(self, x):
        return x + self.scale * self.linear(self.norm(x)).relu()


class Layers(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer() for _ in range(n)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_an_entry_of_twice_the_layers_is_twice_the_work_to_keep(tmp_path, monkeypatch):
    """And to read again, in lines and in bytes."""
    monkeypatch.setattr(stored, "_off", [False])
    monkeypatch.setattr(writer, "QUIET_S", 60.0)
    monkeypatch.setattr(sources, "BEGAN", time.time() + 1e6)
    monkeypatch.setattr(sources, "_digests", {})
    found, x = [], torch.randn(2, 4)
    for n in (4, 8, 16, 32):  # the first for what is done once
        folder = tmp_path / str(n)
        with jit.config.patch(cache_dir=str(folder), entry_cache=True), torch.no_grad():
            module = Layers(n)
            want, got = module(x), jit.compile(module)(x)
            lines = lines_of(writer.finish)
            file, = [f for f in (folder / "entries").glob("*/*")]
            again, captures = jit.compile(Layers(n)), dispatch.captures_so_far()
            again.load_state_dict(module.state_dict())
            results = []
            read = lines_of(lambda: results.append(again(x)))
            assert dispatch.captures_so_far() == captures
            for result in (got, *results):
                torch.testing.assert_close(result, want)
            found.append((lines, read, file.stat().st_size))
    for few, some, many in zip(*found[1:]):
        assert many - some <= 2.3 * (some - few), found
    (few, fewer_read, _), (many, more_read, _) = found[1], found[3]
    assert (many - few) / 24 < KEPT and (more_read - fewer_read) / 24 < READ, found


def test_inputs_near_another_one_are_those_that_may_share_its_memory():
    def meet(a, b):
        return a.extent[0] < b.extent[1] and b.extent[0] < a.extent[1]

    draw = random.Random(0)
    for _ in range(500):
        stretches, known = Stretches(), []
        for k in range(draw.randint(1, 12)):
            begin = draw.randint(0, 40)
            base = types.SimpleNamespace(extent=(begin, begin + draw.randint(1, 8)),
                                         input=types.SimpleNamespace(attrs={"index": k}))
            near = stretches.near(base)
            assert near == [b for b in known if b in near]  # the first ones first
            assert [b for b in near if meet(b, base)] == [b for b in known if meet(b, base)]
            stretches.add(base)
            known.append(base)
    apart = [types.SimpleNamespace(extent=(8 * k, 8 * k + 8), input=types.SimpleNamespace(attrs={"index": k}))
             for k in range(50)]
    stretches = Stretches()
    for base in apart:
        assert stretches.near(base) == []
        stretches.add(base)
    assert stretches.near(apart[20]) == [apart[20]]
