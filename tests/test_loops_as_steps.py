"""torch.while_loop as one step of the graph: with eager's results, and followed as Python where a round does more."""

import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
from torch._higher_order_ops import while_loop

import jit
from jit.runtime import rounds

torch.manual_seed(0)


def plain(condition, body, carried):
    """What a loop means."""
    carried = tuple(x.clone() for x in carried)
    while condition(*carried):
        carried = tuple(body(*carried))
    return carried


def looped(fn, loop):
    return lambda *args: fn(loop, *args)


def agree(fn, *inputs, whole=True, **options):
    """``fn(loop, *args)`` compiled once and called with each of ``inputs``, twice."""
    compiled = jit.compile(looped(fn, while_loop), fullgraph=whole, **options)
    for args in inputs * 2:
        expected, got = fn(plain, *args), compiled(*args)
        expected, got = (x if isinstance(x, tuple) else (x,) for x in (expected, got))
        assert len(expected) == len(got)
        for g, e in zip(got, expected):
            torch.testing.assert_close(g, e)
            assert g.stride() == e.stride() and g.requires_grad == e.requires_grad
    return compiled


def count(loop, x, n):
    return loop(lambda x, k: k > 0, lambda x, k: (torch.tanh(x * 1.1), k - 1), (x, n))


def test_rounds_are_counted_by_data():
    compiled = agree(count, *[(torch.randn(64), torch.tensor(n)) for n in (3, 0, 1, 17, 2, 250)])
    assert len(compiled.on_miss.captures) == 1
    found = jit.explain(looped(count, while_loop))(torch.randn(8), torch.tensor(2))
    assert found.graph_count == 1 and found.graph_break_count == 0
    assert "run_loop" in found.graphs[0]


@pytest.mark.parametrize("options", [{}, {"backend": "eager"}])
def test_backends(options):
    agree(count, *[(torch.randn(5), torch.tensor(n)) for n in (3, 0, 5)], **options)


def test_sizes_become_symbols():
    def fn(loop, x, n):
        return loop(lambda x, k: k > 0, lambda x, k: (x.cumsum(0) * 0.1 + x.shape[0], k - 1), (x, n))

    compiled = agree(fn, *[(torch.randn(size, 3), torch.tensor(n)) for size, n in
                           ((4, 2), (7, 1), (9, 0), (30, 4), (2, 3))])
    assert len(compiled.on_miss.captures) <= 2


def test_layouts_of_what_is_carried():
    def fn(loop, x, n):
        return loop(lambda x, k: k > 0, lambda x, k: (x * 2 + 1, k - 1), (x, n))

    x = torch.randn(6, 8)
    for t in (x, x[:, ::2], x[1:4], x[:0], torch.randn(6, 1).expand(6, 8).contiguous(), torch.randn(()),
              x.double(), x.bfloat16(), torch.arange(5)):
        agree(fn, *[(t, torch.tensor(n)) for n in (0, 3)])
    agree(lambda loop, x, n: fn(loop, x, n)[0].sum(), (x.t(), torch.tensor(3)), (x.t(), torch.tensor(0)))


def test_what_a_round_reads_from_outside():
    weight, bias = torch.randn(4, 4) * 0.3, torch.randn(4)
    net = torch.nn.Linear(4, 4)

    def fn(loop, x, scale):
        y = x.sin() * scale
        with torch.no_grad():
            return loop(lambda a, b: (a - b).abs().max() > 1e-3,
                        lambda a, b: (torch.tanh(a @ weight + bias + y), torch.tanh(net(a)) * 0.0 + a), (x, x + 1))

    with torch.no_grad():
        agree(fn, (torch.randn(3, 4), torch.tensor(0.5)), (torch.randn(3, 4), torch.tensor(2.0)))


def test_unchanged_swapped_and_shared():
    def fn(loop, x, y, n):
        a, b, c, k = loop(lambda a, b, c, k: k < 5, lambda a, b, c, k: (b, a, c, k + 1), (x, y, x, n))
        a, b = a.clone(), b.clone()
        a.add_(1)
        return a, b, c, k

    x, y = torch.randn(3), torch.randn(3)
    kept = x.clone(), y.clone()
    agree(fn, *[(x, y, torch.tensor(n)) for n in (0, 1, 4, 5, 9)])
    assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])


def test_results_are_memory_of_their_own():
    def fn(loop, x, n):
        a, k = loop(lambda a, k: k < 2, lambda a, k: (a, k + 1), (x, n))
        a.mul_(0)
        return a, k

    x = torch.ones(3)
    for n in (0, 5):
        for f in (jit.compile(looped(fn, while_loop)), jit.compile(looped(fn, while_loop), fullgraph=True)):
            out, _ = f(x, torch.tensor(n))
            assert torch.equal(x, torch.ones(3)) and torch.equal(out, torch.zeros(3))


def test_views_among_the_results():
    def fn(loop, x, n):
        return loop(lambda x, k: k > 0, lambda x, k: ((x * 2).t().contiguous().t().contiguous(), k - 1), (x, n))

    agree(fn, *[(torch.randn(3, 4), torch.tensor(n)) for n in (2, 0)])


def test_truths_of_all_kinds():
    for pred in (lambda x: x.sum() < 50, lambda x: (x.sum() < 50).reshape(1, 1), lambda x: (50 - x.sum()).clamp(min=0),
                 lambda x: torch.logical_not(x.sum() >= 50)):
        agree(lambda loop, x, pred=pred: loop(pred, lambda x: (x * 1.5 + 0.1,), (x,)),
              *[(torch.rand(4) * f,) for f in (1, 3, 100)])


def test_several_loops_and_what_is_around():
    def fn(loop, x, n):
        x, k = count(loop, x.sin(), n)
        y = (x + k).exp()
        y, k = count(loop, y, n + 1)
        return y * 2, x.sum(), k

    agree(fn, *[(torch.randn(7), torch.tensor(n)) for n in (0, 1, 6)])


def test_loops_inside_loops():
    def fn(loop, x, n):
        def body(x, k):
            y, _ = count(loop, x, k)
            return y + 1, k - 1
        return loop(lambda x, k: k > 0, body, (x, n))

    agree(fn, *[(torch.randn(7), torch.tensor(n)) for n in (0, 1, 4)], whole=False)


def test_newton():
    def fn(loop, a):
        def more(x, step):
            return step.abs().max() > 1e-5

        def body(x, step):
            step = (x * x - a) / (2 * x)
            return x - step, step

        return loop(more, body, (torch.ones_like(a), torch.ones_like(a)))[0]

    compiled = agree(fn, *[(torch.rand(9) * f + 0.5,) for f in (1, 10, 1000)])
    torch.testing.assert_close(compiled(torch.full((3,), 9.0)), torch.full((3,), 3.0))


def test_indices_out_of_range_raise():
    table = torch.randn(10)

    def fn(loop, k):
        def body(k, x):
            return k + 1, x + table.index_select(0, k.reshape(1)).sum()

        return loop(lambda k, x: k < 20, body, (k, torch.zeros(())))

    compiled = jit.compile(looped(fn, while_loop))
    for start in (0, 5):
        with pytest.raises(IndexError):
            compiled(torch.tensor(start))
    torch.testing.assert_close(compiled(torch.tensor(20))[1], torch.zeros(()))


def test_gradients_and_random_numbers_are_followed_as_python():
    x = torch.randn(4, requires_grad=True)
    for n in (0, 3):
        compiled = jit.compile(looped(count, while_loop))
        got, _ = compiled(x, torch.tensor(n))
        expected, _ = plain_count(x, n)
        torch.testing.assert_close(got, expected)
        if n:
            for g, e in zip(torch.autograd.grad(got.sum(), x), torch.autograd.grad(expected.sum(), x)):
                torch.testing.assert_close(g, e)

    def drawn(loop, x, n):
        return loop(lambda x, k: k > 0, lambda x, k: (x + torch.rand(4), k - 1), (x, n))

    with jit.config.patch(fallback_random=True):
        compiled = jit.compile(looped(drawn, while_loop))
        torch.manual_seed(3)
        got = compiled(torch.zeros(4), torch.tensor(3))[0]
        torch.manual_seed(3)
        torch.testing.assert_close(got, drawn(plain, torch.zeros(4), torch.tensor(3))[0])


def plain_count(x, n):
    return count(plain, x, torch.tensor(n))


def test_loops_whose_rounds_are_known():
    def fn(loop, x):
        k, x = loop(lambda k, x: k < 4, lambda k, x: (k + 1, x.sin()), (torch.tensor(0), x))
        return x, k

    agree(fn, (torch.randn(3),), (torch.randn(3),))
    assert not any("run_loop" in g for g in jit.explain(looped(fn, while_loop))(torch.randn(3)).graphs)

    def half(loop, x):  # the first round is known
        return loop(lambda k, x: (k < 1) | (x.sum() > 1), lambda k, x: (k + 1, x * 0.5), (torch.tensor(0), x))

    agree(half, *[(torch.rand(4) * f,) for f in (0.1, 5, 1000)])


def test_closures_that_change_are_guarded():
    class Scale:
        by = 2.0

    def fn(loop, x, n):
        return loop(lambda x, k: k > 0, lambda x, k: (x * Scale.by, k - 1), (x, n))

    compiled = jit.compile(looped(fn, while_loop))
    args = torch.ones(3), torch.tensor(2)
    torch.testing.assert_close(compiled(*args)[0], torch.full((3,), 4.0))
    Scale.by = 3.0
    torch.testing.assert_close(compiled(*args)[0], torch.full((3,), 9.0))


ENDLESS = """
import signal, threading, time, torch, jit
from torch._higher_order_ops import while_loop

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without

def fn(x):
    return while_loop(lambda x: x < 1, lambda x: (x * 1.0,), (x,))

compiled = jit.compile(fn, fullgraph=True)
compiled(torch.ones(()))

def interrupt():
    time.sleep(0.5)
    signal.raise_signal(signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    compiled(torch.zeros(()))
except KeyboardInterrupt:
    print("interrupted", compiled(torch.ones(()))[0].item())
"""


def test_a_loop_without_end_is_interrupted():
    """In a process of its own, which a loop that is not interrupted holds up."""
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["interrupted", "1.0"], done.stderr


def test_nothing_is_kept_alive():
    weight = torch.randn(4)

    def fn(x, n):
        return while_loop(lambda x, k: k > 0, lambda x, k: (x * 0.5 + weight, k - 1), (x, n))

    def names_of_rounds():
        return [o for o in gc.get_objects() if type(o) is rounds.RoundName and o.compiled]

    # Other tests of this process may still hold names of theirs.
    before = {str(name) for name in names_of_rounds()}
    compiled, kept = jit.compile(fn, fullgraph=True), weakref.ref(weight)
    compiled(torch.randn(4), torch.tensor(3))
    names = [weakref.ref(name) for name in names_of_rounds() if str(name) not in before]
    assert names
    compiled = fn = weight = None
    # What is kept on disk is written by a thread, which knows the plan until it is done.
    deadline = time.monotonic() + 30
    while kept() is not None or any(name() is not None for name in names):
        assert time.monotonic() < deadline, "the weight or a round is still alive"
        jit.reset()
        gc.collect()
        time.sleep(0.01)


def test_threads():
    compiled = jit.compile(looped(count, while_loop), fullgraph=True)
    compiled(torch.zeros(4), torch.tensor(1))
    wrong = []

    def work(seed):
        x = torch.full((4,), float(seed))
        for n in range(20):
            got = compiled(x, torch.tensor(n))[0]
            if not torch.allclose(got, plain_count(x, n)[0]):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
