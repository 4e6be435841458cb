"""Threads that call, step and compile the same functions, and objects that hold something else in each thread."""

import threading
import warnings
import weakref

import torch
from frame_harness import all_equal, compiled, observe, same

import jit

ONES = torch.ones(3)


def test_many_threads_call_one_function():
    def f(x, k):
        y = x * k
        if k % 3 == 0:
            jit.graph_break()
        return y + len(str(k))

    c = compiled(f)
    wrong = []

    def work(base):
        for k in range(30):
            value = (base + k) % 6
            if not torch.equal(c(ONES, value), f(ONES, value)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_threads_step_generators_of_one_function():
    @jit.compile(backend="eager")
    def series(x, k):
        for i in range(4):
            if k % 2:
                jit.graph_break()
            x = x * 2 + k
            yield x

    wrong, started = [], threading.Barrier(4)

    def work(base):
        started.wait()
        for k in range(10):
            got = list(series(ONES, base + k))
            want = list(series.__wrapped__(ONES, base + k))
            if not all_equal(got, want):
                wrong.append(base + k)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def test_many_threads_compile_at_once():
    functions = [compiled(lambda x, k=k: torch.sin(x) * k + len(str(k))) for k in range(4)]
    results, started = [], threading.Barrier(8)

    def work():
        started.wait()
        results.append([float(fn(ONES).sum()) for fn in functions])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 8 and all(r == results[0] for r in results) and all(len(fn.entries) == 1 for fn in functions)


def test_threads_add_to_one_list():
    seen = []

    def f(x):
        seen.append(1)
        if x.sum() > 100:
            return x
        seen.append(len(seen))
        return x * 2

    c, wrong = compiled(f), []

    def work():
        for _ in range(30):
            if not torch.equal(c(ONES), ONES * 2):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(seen) == 300


def test_attributes_that_a_c_class_looks_up_itself():
    local = threading.local()

    def of_thread(x):
        return x * getattr(local, "k", 9), hasattr(local, "k")

    def set_in_thread(x):
        local.k = x + 1
        return local.k * 2

    class Held:
        k = 3

    held = Held()
    proxy = weakref.proxy(held)

    def of_proxy(x):
        proxy.n = 5
        return x * proxy.k + proxy.n, isinstance(proxy, Held)

    def elsewhere(fn):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(observe(fn, (ONES,))))
        thread.start()
        thread.join()
        return seen

    def calls(fn):
        out = []
        for k in (2, 3):
            local.k = Held.k = k
            out += [observe(fn, (ONES,)), elsewhere(fn)]
        return out

    for fn in (of_thread, set_in_thread, of_proxy):
        same(calls(fn), calls(compiled(fn)))
