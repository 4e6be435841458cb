"""Values read off tensors after the graph: kept, stored and returned without a break; a break where the program needs
them."""

import pytest
import torch
import torch.nn.functional as F
from frame_harness import Cases, same

import jit

cases = Cases()
VECTOR = torch.arange(3.0)


def integers(*shape):
    return torch.randint(-3, 4, shape).float()


def written_afterwards(x):
    y = x * 2
    chosen = y[y > 0]
    y.add_(5)
    return chosen, y


def input_written_afterwards(x):
    chosen, total = x[x > 0], x.sum().item()
    x.add_(1)
    return chosen, total


def logged(x, log):
    log.append(x.sum().item())
    log[0] = {"largest": x.max().item(), "where": (x > 0).nonzero()}
    return x * 2


class Meter:
    def __init__(self):
        self.total, self.seen = 0.0, []

    def add(self, v):
        self.total += v.sum().item() * 2 - 1
        self.seen.append(v.numel() / 4)


def metered(x, meter):
    meter.add(x)
    meter.add(x + 1)
    return x + meter.seen[0]


def parts(x):
    (i,) = torch.where(x > 0)
    values, counts = torch.unique(x, return_counts=True)
    return i, counts, torch.where(x > 1)[0], len(torch.where(x > 2)), values


WHOLE = {
    "item": (lambda x: x.sum().item(), integers(3, 4)),
    "numbers": (lambda x: {"l": x.sum().item(), "y": x + 1, "i": x.argmax().item(), "b": (x > 0).any().item()},
                integers(3, 4)),
    "float_int": (lambda x: (float(x.sum()), int((x > 0).sum()), x[0].tolist()), integers(3, 4)),
    "arithmetic": (lambda x, t: (t + x.sum().item() * 2 - 1, x.sum().item() / 4), integers(3), 1.5),
    "is_none": (lambda x: (x.sum().item() is None, isinstance(x.sum().item(), float)), integers(3)),
    "nonzero": (lambda x: ((x > 0).nonzero(), torch.argwhere(x), torch.nonzero(x, as_tuple=True)), integers(3, 4)),
    "masks": (lambda x: (x[x > 0], x[:, x[0] > 0], torch.masked_select(x, x > 1)), integers(3, 4)),
    "written_afterwards": (written_afterwards, integers(3, 4)),
    "input_written_afterwards": (input_written_afterwards, integers(3, 4)),
    "unique": (lambda x: (torch.unique(x, return_inverse=True, return_counts=True), x.unique_consecutive(),
                          x.unique(dim=0)), integers(3, 4)),
    "parts": (parts, integers(9)),
    "counted": (lambda x: (torch.bincount(x.abs().long().view(-1)), F.one_hot(x.abs().long())), integers(3, 4)),
    "compared": (lambda x: (torch.equal(x, x + 0), torch.allclose(x, x + 1, rtol=0.1), x.sum().is_nonzero()),
                 integers(3, 4)),
    "places": (lambda x, i: (torch.narrow(x + 1, 0, i[0], 1), torch.tensor_split(x, i)), integers(4, 2),
               torch.tensor([1, 3])),
    "slices": (lambda x, i: (x[: i[0]], (x * 2)[i[0] :, None]), integers(4, 2), torch.tensor([1, 3])),
    "least_squares": (lambda x: torch.linalg.lstsq(x, x)[2:], torch.eye(4)),
    "logged": (logged, integers(3, 4), [1]),
    "metered": (metered, integers(3, 4), None),
}


@pytest.mark.parametrize("backend", ["eager", "jit"])
@pytest.mark.parametrize("name", WHOLE)
def test_no_break(name, backend):
    fn, *args = WHOLE[name]
    compiled = jit.compile(fn, fullgraph=True, backend=backend)
    kept = [[(list(a) if type(a) is list else Meter() if a is None else a) for a in args] for _ in range(2)]
    for _ in range(3):
        x = integers(*args[0].shape) if name != "least_squares" else args[0]
        for given in kept:
            given[0] = x.clone()
        same(fn(*kept[0]), compiled(*kept[1]))
        same([getattr(a, "__dict__", a) for a in kept[0]], [getattr(a, "__dict__", a) for a in kept[1]])


NEEDED = {
    "identity_of_bool": lambda x: (x > 9).any().item() is False,
    "equality": lambda x: (x.sum().item() == 1.0, x.sum().item() in [1, 2], [x.sum().item()] == [1.0]),
    "text": lambda x: (f"{x.sum().item():.3f}", str(x.max().item()), "%d" % x.min().item()),
    "branch": lambda x: x + 1 if x.sum().item() > 0 else x - 1,
    "truth": lambda x: (not (x > 0).sum().item(), bool(x.sum().item()), x.sum().item() or 3),
    "operand": lambda x: x * x.sum().item(),
    "argument": lambda x: torch.full((2,), x.sum().item()),
    "method": lambda x: x[x > 0].mean() * 2 + x,
    "is_tensor": lambda x: (torch.is_tensor(x[x > 0]), len(x[x > 0]), x[x > 0].shape, x[x > 0] is x),
    "range": lambda x: list(range((x > 0).sum().item())),
    "key": lambda x: {x.sum().item(): 1},
    "extremes": lambda x: (max([x.sum().item(), 1.0]), sorted([x.sum().item(), x.max().item()]),
                           sum([x.sum().item(), 1])),
    "index": lambda x: list(range(20))[(x > 0).sum().item()],
    "arithmetic": lambda x: (-x.sum().item(), x.sum().item() // 2, 1 / (x.max().item() + 5), round(x.sum().item(), 2),
                             x.sum().item() ** 2),
    "written": lambda x: x.index_fill(0, (x > 0).nonzero()[:, 0], 1.0),
    "unpacked": lambda x: [i + 1 for i in torch.where(x > 0)],
}


@pytest.mark.parametrize("name", NEEDED)
def test_break_where_it_is_needed(name):
    fn = NEEDED[name]
    compiled = jit.compile(fn)
    for _ in range(3):
        x = integers(7)
        same(fn(x), compiled(x))


def test_gradients_go_through():
    def fn(x):
        y = x * x
        with torch.no_grad():
            large = y[y > 4]
        return large, y.sum(), y[y > 1], y.max().item()

    def outcome(f):
        x = torch.tensor([1.0, 2, -3, 0.5], requires_grad=True)
        a, b, c, d = f(x)
        (b + c.sum() * 2).backward()
        return a, b.detach(), c.detach(), d, c.requires_grad, x.grad

    same(outcome(fn), outcome(jit.compile(fn)))


def test_views_that_are_written_break():
    def fn(x, i):
        y = x * 2
        part = y[: i[0]]
        y.add_(1)
        return y, part

    same(fn(torch.ones(4), torch.tensor([2])), jit.compile(fn)(torch.ones(4), torch.tensor([2])))


def test_errors_come_before_changes():
    """``bincount`` raises for negative numbers: eager's error, and the list as eager leaves it."""

    def fn(x, log):
        log.append(1)
        counts = torch.bincount(x + 1)
        log.append(2)
        return counts

    compiled = jit.compile(fn, fullgraph=True)
    log = []
    assert compiled(torch.tensor([0, 2]), log).tolist() == [0, 1, 0, 1] and log == [1, 2]
    with pytest.raises(RuntimeError, match="non-negative"):
        compiled(torch.tensor([0, -5]), log)
    assert log == [1, 2, 1]


@cases(VECTOR, [1, 2], fullgraph=False)
def an_index_that_is_read_off_a_tensor(x, v):
    try:
        del v[int((x == x).sum().round())]
    except IndexError as error:
        return x + 1, str(error)
    return x, None


test_programs = cases.test()
