"""Numbers of small integer tensors that the program needs to know, with ``fullgraph``: read before the graph runs, with
guards, and symbols once they have changed."""

import pytest
import torch

import jit


def sizes(x, n):
    k = n.item()
    torch._check(k >= 0)
    return torch.arange(0, k) + x.sum().long(), x.new_zeros(k, 2)


def split(x, lengths):
    a, b = lengths.tolist()
    p, q = x[:a + b].split([a, b])
    return p.sum(), q * 2


def branch(x, n):
    return x * 2 if n > 2 else x - n.item()


def nested(x, t):
    rows = t.tolist()
    return rows * 2, x + rows[0][1], x[rows[0][0]:]


def computed(x, n):
    return x[: (n + 1).max().item()], x.view(-1, int(n.min()) + 1)


def index(x, n):
    return [x, x + 1, x + 2, x * 3, x * 4, x * 5][int(n)]


def loop(x, n):
    for _ in range(int(n)):
        x = x + 1
    return x


def written_before(x, n):
    m = n + 1
    m.mul_(2)
    return x[:m.item()]


PROGRAMS = [
    (sizes, [torch.tensor(k) for k in (3, 4, 7, 5, 3, 1, 0)], 5), (sizes, [torch.tensor([k]) for k in (3, 4, 5)], 2),
    (split, [torch.tensor(v) for v in ([3, 5], [4, 4], [2, 6], [5, 1], [3, 5])], 3),
    (branch, [torch.tensor(k) for k in (1, 2, 3, 4, 0, 5)], 5),
    (nested, [torch.tensor(v) for v in ([[1, 2], [3, 4]], [[2, 3], [3, 4]], [[1, 5], [3, 4]], [[0, 1]])], None),
    (computed, [torch.tensor(v) for v in ([1, 3], [2, 3], [3, 5], [1, 1])], None),
    (index, [torch.tensor(k) for k in (0, 1, 2, 0)], None), (loop, [torch.tensor(k) for k in (0, 2, 3, 2)], None),
    (written_before, [torch.tensor(k) for k in (0, 1, 2, 3, 1)], None),
]


def same(a, b):
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for p, q in zip(a, b):
            same(p, q)
    else:
        assert a == b and type(a) is type(b)


@pytest.mark.parametrize("case", range(len(PROGRAMS)))
@pytest.mark.parametrize("fullgraph", [True, False])
def test_right_and_compiled_a_few_times(case, fullgraph):
    fn, given, most = PROGRAMS[case]
    compiled = jit.compile(fn, fullgraph=fullgraph)
    x = torch.randn(12)
    for n in given:
        for _ in range(2):
            same(fn(x, n.clone()), compiled(x, n.clone()))
    if fullgraph and most is not None:
        assert len(compiled.entries) <= most


def test_a_value_that_changes_in_place_is_read_again():
    n = torch.tensor(2)
    compiled = jit.compile(lambda x: x[:n.item()], fullgraph=True)
    for k in (2, 3, 4, 2):
        n.fill_(k)
        same(torch.arange(6)[:k], compiled(torch.arange(6)))


def test_what_is_only_returned_is_no_guard():
    compiled = jit.compile(lambda x, n: (x + n.item(), n.tolist()), fullgraph=True)
    for k in range(5):
        same((torch.ones(2) + k, k), compiled(torch.ones(2), torch.tensor(k)))
    assert len(compiled.entries) == 1


def test_gradients():
    def fn(x, lengths):
        a, b = lengths.tolist()
        p, q = x.split([a, b])
        return (p ** 2).sum() + q.sum()

    compiled = jit.compile(fn, fullgraph=True)
    for v in ([3, 6], [4, 5], [2, 7]):
        grads = []
        for f in (fn, compiled):
            x = torch.arange(9.0, requires_grad=True)
            f(x, torch.tensor(v)).backward()
            grads.append(x.grad)
        same(*grads)


def test_loops_that_a_number_ends():
    """How often a loop runs is no fact for each of its rounds: it is compiled a few times, and not once per number."""
    def f(x, n):
        while n > 0:
            x, n = torch.tanh(x * 1.1), n - 1
        return x

    fast = jit.compile(f)
    for n in (3, 5, 2, 7, 0, 4, 9, 1, 6, 8):
        assert torch.allclose(fast(torch.ones(4), torch.tensor(n)), f(torch.ones(4), torch.tensor(n)))
    assert len(fast.entries) == 1, "what told rounds ahead is taken back"

    whole = jit.compile(f, fullgraph=True)  # there it is all that can be done
    for n in (3, 2, 1, 3, 2, 1):
        whole(torch.ones(4), torch.tensor(n))
    assert len(whole.entries) == 3

    def g(x, n):
        return x.sin() if n > 2 else x.cos()

    fast = jit.compile(g)
    for n in (3, 1, 4, 2, 0, 9, 1, 7):
        assert torch.allclose(fast(torch.ones(4), torch.tensor(n)), g(torch.ones(4), torch.tensor(n)))
    assert len(fast.entries) == 2 and not jit.explain(g)(torch.ones(4), torch.tensor(5)).graph_break_count
