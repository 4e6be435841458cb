"""Plans recorded into CUDA graphs: when they are, which calls a recording serves, and that nothing shows it. Here the
recording of plans for CPUs is pretended (their steps are run on the memory of the recording); the real thing is in
``test_plan_graphs_gpu.py``."""

import copy
import gc
import threading

import pytest
import torch
from torch import nn

import jit
from jit.runtime import native

RO = "reduce-overhead"
WARM = 3  # calls until one is served by a recording


@pytest.fixture(autouse=True)
def pretended():
    native().pretend_graphs(True)
    yield
    native().pretend_graphs(False)
    jit.reset()


def told():
    """(forward, backwards ..) of the plan that was replayed most."""
    gc.collect()
    plans = [o.recordings for o in gc.get_objects() if type(o) is native().Plan and any(o.recordings)]
    assert plans
    return max(plans, key=lambda p: (p[0] or {}).get("replayed", 0))


def compiled(f, **options):
    return jit.compile(f, mode=RO, **options)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def work(x, w):
    return torch.softmax(x @ w, -1), (x * 2).sum(0)


def test_results_are_never_written_again():
    f, w = compiled(work), torch.randn(5, 7)
    kept = []
    for _ in range(8):
        x = torch.randn(3, 5)
        kept.append((x, f(x, w)))
    for x, results in kept:
        for got, want in zip(results, work(x, w)):
            same(got, want)
            assert got.stride() == want.stride()
    assert told()[0] == {"recorded": 1, "replayed": 8 - WARM + 1, "refused": None}


@pytest.mark.parametrize("waits", [False, True])
def test_another_mode_is_not_recorded(waits):
    native().pretend_graphs(True, waits)
    others = [{"mode": "max-autotune-no-cudagraphs"}, {"options": {"cudagraphs": False}},
              {"options": {"auto_cudagraphs": False}}, *([] if waits else [{}, {"mode": "default"}])]
    for options in others:
        f = jit.compile(work, **options)
        for _ in range(8):
            f(torch.randn(3, 5), torch.randn(5, 7))
        assert not [o for o in gc.get_objects() if type(o) is native().Plan and any(o.recordings)], options


MEASURED = 5  # the same where calls are timed first


def test_calls_that_the_device_waits_in_are_recorded_by_themselves():
    native().pretend_graphs(True, True)
    f, w = jit.compile(work), torch.randn(5, 7)
    for _ in range(9):
        x = torch.randn(3, 5)
        for got, want in zip(f(x, w), work(x, w)):
            same(got, want)
    assert told()[0] == {"recorded": 1, "replayed": 9 - MEASURED + 1, "refused": None}


def test_gradients_are_recorded_by_themselves():
    native().pretend_graphs(True, True)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    other = copy.deepcopy(net)
    f = jit.compile(net)
    for _ in range(9):
        x = torch.randn(3, 4)
        for model, call in ((net, f), (other, other)):
            model.zero_grad(set_to_none=True)
            call(x).square().sum().backward()
        for a, b in zip(net.parameters(), other.parameters()):
            same(a.grad, b.grad)
    forward, backward, *_ = told()
    assert forward["replayed"] == backward["replayed"] == 9 - MEASURED + 1
    assert forward["recorded"] == backward["recorded"] == 1


def test_calls_that_keep_the_device_busy_are_not():
    native().pretend_graphs(True, True)
    f, x, w = jit.compile(work), torch.randn(3, 5), torch.randn(5, 7)
    f(x, w)
    native().pretend_graphs(True, False)
    for _ in range(50):
        f(x, w)
    native().pretend_graphs(True, True)  # which is seen no more
    for _ in range(50):
        f(x, w)
    assert told()[0] == {"recorded": 0, "replayed": 0, "refused": None}


def test_calls_are_timed_again_later():
    native().pretend_graphs(True, True)
    f, x, w = jit.compile(work), torch.randn(3, 5), torch.randn(5, 7)
    f(x, w)
    native().pretend_graphs(True, False)
    for _ in range(5):
        f(x, w)
    native().pretend_graphs(True, True)
    for _ in range(50):
        f(x, w)
    assert told()[0]["recorded"] == 1


def test_copies_that_would_take_longer_than_launches():
    native().pretend_graphs(True, True)
    f, xs = jit.compile(lambda x: torch.softmax(x[0, :4], 0) @ x[1, :4]), [torch.randn(8, 1 << 22) for _ in range(2)]
    for k in range(8):
        f(xs[k % 2])
    assert told()[0] == {"recorded": 0, "replayed": 0,
                         "refused": "copies of inputs and results would take too long"}


def test_an_input_that_stays_is_read_in_place():
    f, w, x = compiled(work), torch.randn(5, 7), torch.randn(3, 5)
    for _ in range(8):
        x.normal_()
        w.mul_(0.9)
        for got, want in zip(f(x, w), work(x, w)):
            same(got, want)
    assert told()[0]["recorded"] == 1


def test_an_input_that_has_moved_is_noticed():
    f, w, x = compiled(work), torch.randn(5, 7), torch.randn(3, 5)
    held = []
    for k in range(30):
        if k > 4 and k % 3 == 0:
            w = torch.randn(5, 7)
            held.append(w)
        for got, want in zip(f(x, w), work(x, w)):
            same(got, want)
    # After some moves it counts as one that moves, and is copied.
    assert 1 < told()[0]["recorded"] <= 4


def test_parameters_in_place():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    f = compiled(net)
    with torch.no_grad():
        for k in range(10):
            x = torch.randn(3, 4)
            same(f(x), net[2](net[1](net[0](x))))
            if k == 5:
                net[0].weight.mul_(2)
            if k == 7:
                net[0].weight.data = torch.randn(6, 4)
    assert told()[0]["recorded"] <= 2


def cache_step(cache, x, at):
    cache[at] = x.sin()
    return (cache * 2).sum(0)


def test_a_cache_written_in_place():
    f = compiled(cache_step)
    a, b = torch.zeros(6, 4), torch.zeros(6, 4)
    version = a._version
    for k in range(8):
        x, at = torch.randn(4), torch.tensor(k % 6)
        same(f(a, x, at), cache_step(b, x, at))
        same(a, b)
    assert a._version - version == b._version


def test_written_inputs_that_move():
    def step(x, y):
        x.add_(y)
        y.mul_(2)
        return x.sum() + (y.exp() @ y.T).sum()

    f = compiled(step)
    for _ in range(8):
        x, y = torch.randn(3, 3), torch.randn(3, 3)
        u, v = x.clone(), y.clone()
        same(f(x, y), step(u, v))
        same(x, u)
        same(y, v)


def test_views_of_inputs_and_results():
    def views(x):
        y = torch.relu(x @ x) + 1
        return x[1:], y, y[0], y.t(), x

    f = compiled(views)
    for _ in range(6):
        x = torch.randn(4, 4)
        got, want = f(x), views(x)
        for a, b in zip(got, want):
            same(a, b)
            assert a.stride() == b.stride()
        assert got[4] is x and got[0].data_ptr() == x[1:].data_ptr()
        assert got[2].data_ptr() == got[1].data_ptr() and got[3]._base is not None
        got[1].zero_()
        assert not got[2].any() and not got[3].any()


def test_layouts_and_sizes_in_one_entrys_life():
    f = compiled(work, dynamic=True)
    for _ in range(3):
        for n in (3, 4, 5, 2):
            base = torch.randn(n, 10)
            for x in (base[:, :5], base[:, ::2], torch.randn(5, n).t(), torch.randn(1, 5).expand(n, 5)):
                w = torch.randn(7, 5).t()
                for got, want in zip(f(x, w), work(x, w)):
                    same(got, want)


def test_recordings_are_bounded():
    f = compiled(work, dynamic=True)
    w = torch.randn(5, 7)
    for _ in range(6):
        for n in range(2, 20):
            x = torch.randn(n, 5)
            same(f(x, w)[0], work(x, w)[0])
    assert all((o.recordings[0] or {}).get("recorded", 0) <= 8 * 6 for o in gc.get_objects()
               if type(o) is native().Plan)


def test_gradients():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    other = copy.deepcopy(net)
    f = compiled(net)
    for _ in range(8):
        x = torch.randn(3, 4)
        for call, m in ((f, net), (other, other)):
            m.zero_grad()
            call(x).square().sum().backward()
        for p, q in zip(net.parameters(), other.parameters()):
            same(p.grad, q.grad)
    forward, backward, *_ = told()
    assert forward["recorded"] == 1 and forward["refused"] is None, forward
    assert backward["recorded"] >= 1 and backward["refused"] is None, backward


def test_saved_values_that_are_still_held():
    def chain(x):
        return (x.sin() * x.exp() @ x.cos()).tanh()

    f = compiled(chain)
    for _ in range(3):
        xs = [torch.randn(4, 4, requires_grad=True) for _ in range(5)]
        results = [f(x) for x in xs]  # the memory of the first is not free while the next are computed
        for x, y in reversed(list(zip(xs, results))):
            (g,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            (again,) = torch.autograd.grad(y.sum(), x)
            (want,) = torch.autograd.grad(chain(x).sum(), x)
            same(g, want)
            same(again, want)
    assert told()[0]["replayed"] > 0


def test_accumulated_gradients():
    net = nn.Linear(4, 4)
    other = copy.deepcopy(net)
    f = compiled(net)
    for _ in range(4):
        for _ in range(3):
            x = torch.randn(2, 4)
            f(x).tanh().sum().backward()
            other(x).tanh().sum().backward()
        for p, q in zip(net.parameters(), other.parameters()):
            same(p.grad, q.grad)
        net.zero_grad()
        other.zero_grad()


def test_gradients_that_are_gone_lie_where_they_lay():
    f = compiled(lambda x: (x.sin() * x.exp() @ x.cos()).tanh())
    places = set()
    for k in range(12):
        x = torch.randn(4, 4, requires_grad=True)
        f(x).sum().backward()
        if k > 6:
            places.add(x.grad.data_ptr())
    assert len(places) == 1
    assert told()[1]["recorded"] == 1


@pytest.mark.parametrize("view", [False, True])
def test_gradients_that_are_kept_are_never_written_over(view):
    def chain(x):
        return (x.sin() * x.exp() @ x.cos()).tanh()

    f, kept = compiled(chain), []
    for k in range(12):
        x = torch.randn(4, 4, requires_grad=True)
        f(x).sum().backward()
        (want,) = torch.autograd.grad(chain(x).sum(), x)
        if k >= 5:  # recorded long before
            kept.append((x.grad[1:].t() if view else x.grad, want[1:].t() if view else want))
        del x
        for got, want in kept:
            same(got, want)
    assert told()[1]["recorded"] == 2 and told()[1]["replayed"] >= 6


def test_gradients_are_copied_where_nobody_has_asked_for_recordings():
    native().pretend_graphs(True, True)
    f, kept = jit.compile(lambda x: (x.sin() * x.exp() @ x.cos()).tanh()), []
    for _ in range(12):
        x = torch.randn(4, 4, requires_grad=True)
        f(x).sum().backward()
        kept.append(x.grad)
    assert len({g.data_ptr() for g in kept}) == len(kept)
    assert told()[1]["recorded"] == 1 and told()[1]["replayed"] >= 6


def test_one_functions_result_is_the_nexts_input():
    def g(x):
        return (x @ x.t()).relu() @ x

    f1, f2 = compiled(work), compiled(g)
    w = torch.randn(5, 7)
    for _ in range(8):
        x = torch.randn(3, 5)
        same(f2(f1(x, w)[0]), g(work(x, w)[0]))


def test_the_same_result_as_the_next_argument():
    f = compiled(lambda x: (x @ x).tanh() + 1)
    x = y = torch.randn(4, 4)
    for _ in range(8):
        x, y = f(x), (y @ y).tanh() + 1
        same(x, y)


def test_hooks_for_saved_tensors():
    def chain(x):
        return (x.sin() * x.exp() @ x.cos()).tanh()

    f, x, seen = compiled(chain), torch.randn(4, 4, requires_grad=True), []
    for _ in range(6):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(t), t.clone())[1], lambda t: t):
            y = f(x)
        f(torch.randn(4, 4, requires_grad=True))
        (g,) = torch.autograd.grad(y.sum(), x)
        same(g, torch.autograd.grad(chain(x).sum(), x)[0])


def test_memory_is_given_back():
    def chain(x):
        return (x.sin() * x.exp() @ x.cos()).tanh()

    f, x = compiled(chain), torch.randn(4, 4, requires_grad=True)
    for _ in range(5):
        y = f(x)
    want = torch.autograd.grad(chain(x).sum(), x)[0]
    del f
    jit.reset()
    gc.collect()
    same(torch.autograd.grad(y.sum(), x)[0], want)


def test_threads():
    f, w, wrong = compiled(work), torch.randn(5, 7), []
    f(torch.randn(3, 5), w)

    def run():
        for _ in range(60):
            x = torch.randn(3, 5)
            for got, want in zip(f(x, w), work(x, w)):
                if not torch.allclose(got, want, atol=1e-5):
                    wrong.append(x)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_failures_change_nothing():
    """At each point where a call may fail, while recording and while served: eager's state, and it goes on."""
    for calls in (2, 3):  # one that records, one that is served
        for point in (0, 1, 3, 6, 10, 15, 22, 30):
            jit.reset()
            f = compiled(cache_step)
            a, b = torch.zeros(6, 4), torch.zeros(6, 4)
            for k in range(6):
                x, at = torch.randn(4), torch.tensor(k)
                if k == calls:
                    native().fail_at(point)
                got = f(a, x, at)
                native().fail_at(-1)
                same(got, cache_step(b, x, at))
                same(a, b)


def test_settings_of_the_library_are_part_of_the_kind():
    f, w = compiled(work), torch.randn(5, 7)
    for on in (True, False):
        with torch.backends.cudnn.flags(benchmark=on):
            for _ in range(5):
                x = torch.randn(3, 5)
                same(f(x, w)[0], work(x, w)[0])


@pytest.mark.parametrize("program, reason", [
    (lambda x: torch.bernoulli(x.clamp(0, 1)).sum(0) * 2, "random numbers are drawn"),
    (lambda x: (x @ x)[x[0].long().clamp(0, 0)], "checks indices"),
])
def test_what_is_not_recorded_says_why(program, reason, capsys):
    jit.logs.enable("cudagraphs")
    try:
        f = compiled(program)
        for _ in range(4):
            f(torch.rand(3, 3))
    finally:
        jit.logs.enable("")
    assert told()[0]["recorded"] == 0 and reason in told()[0]["refused"]
    said = [line for line in capsys.readouterr().err.splitlines() if "is not recorded" in line]
    assert len(said) == 1 and reason in said[0]


def test_plans_are_refused_without_a_gpu():
    native().pretend_graphs(False)
    f, w = compiled(work), torch.randn(5, 7)
    for _ in range(5):
        x = torch.randn(3, 5)
        same(f(x, w)[0], work(x, w)[0])
    assert told()[0]["recorded"] == 0 and "CPU" in told()[0]["refused"]


def test_random_numbers_are_those_of_the_default_mode(kernel_numbers):
    def program(x):
        for _ in range(3):
            x = nn.functional.dropout(torch.relu(x @ x), 0.3) * 0.1
        return x, torch.rand_like(x)

    drawn, x = [], torch.randn(16, 16)
    for mode in ("default", RO):
        f = jit.compile(program, mode=mode)
        torch.manual_seed(7)
        drawn.append([f(x) for _ in range(8)] + [torch.rand(3)])
    for a, b in zip(*drawn):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert not torch.equal(drawn[1][6][0], drawn[1][7][0])
    assert told()[0]["replayed"] > 0


def test_dropouts_backward_has_the_same_mask(kernel_numbers):
    def program(x):
        return nn.functional.dropout(x.sin() * x, 0.5)

    f = compiled(program)
    for _ in range(6):
        x = torch.rand(40, 10, requires_grad=True)
        y = f(x)
        y.sum().backward()
        kept = y.detach() != 0
        same(x.grad, torch.where(kept, 2 * (x.cos() * x + x.sin()), torch.zeros(())).detach())
    forward, backward, *_ = told()
    assert forward["replayed"] > 0 and backward["replayed"] > 0, (forward, backward)


def test_gradients_of_some_results():
    """The backward for some results is another plan, made when it is asked for."""
    def program(x, w):
        y = torch.tanh(x @ w)
        return y.sum(), (y * 2).exp()

    f = compiled(program)
    for _ in range(7):
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        got = torch.autograd.grad(f(x, w)[0], (x, w))
        want = torch.autograd.grad(program(x, w)[0], (x, w))
        for a, b in zip(got, want):
            same(a, b)
    assert any(backward["replayed"] for backward in told()[1:]), told()
