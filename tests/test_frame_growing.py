"""Containers that are longer at each step: what is only appended to is not guarded, and what keeps growing is read by
the interpreter."""

import collections
import copy
import warnings

import pytest
import torch
from frame_harness import same

import jit

STEPS = 14  # more than the compilations of one function


def run(program, make, compiled, steps=STEPS):
    """What each call gave, and the arguments afterwards; the same objects go into all calls."""
    torch.manual_seed(0)
    state = make()
    fn = jit.compile(program, backend="eager") if compiled else program
    out = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(steps):
            try:
                out.append(fn(torch.arange(3.0) + step, *state))
            except (ValueError, IndexError, KeyError, RuntimeError) as error:
                out.append(error)
    return out, state


def check(program, make, steps=STEPS):
    jit.reset()
    same(run(program, make, False, steps), run(program, make, True, steps), rtol=1e-6)


def graphs(program, make, steps=STEPS):
    """How many graphs the calls need, checked against eager."""
    check(program, make, steps)
    before = jit.frame.dispatch.compile_count()
    run(program, make, True, steps)
    return jit.frame.dispatch.compile_count() - before


# -- between calls -----------------------------------------------------------------------------------------------------


def appended(x, seen):
    seen.append(x * 2)
    return x + 1


def extended(x, seen):
    seen += [x, x * 2]
    seen.extend((x,))
    return seen[-1] + seen[-2]


def last(x, seen):
    return x + seen[-1] + seen[0], seen.append(x * 3)


def counted(x, seen):
    seen.append(x)
    return x * len(seen)


def checked(x, seen):
    if seen:
        x = x + 1
    seen.append(1)
    return x if not seen else x * 2


def limited(x, seen):
    if len(seen) < 9:
        seen.append(x)
        return x * 2
    return x * 3


def of_set(x, seen):
    seen.add("a")
    seen.add(int(x.shape[0]))
    return x + 1


def of_dict(x, seen):
    seen[len(seen)] = x * 2
    return x + 1


def of_two(x, seen, other):
    seen.append(x)
    other.append(len(seen))
    return x * len(other)


@pytest.mark.parametrize("program, make, most", [
    (appended, lambda: ([],), 1),
    (appended, lambda: (collections.deque(),), 1),
    (extended, lambda: ([],), 1),
    (last, lambda: ([torch.ones(3)],), 2),
    (counted, lambda: ([],), 3),
    (checked, lambda: ([],), 2),
    (limited, lambda: ([],), 4),
    (of_set, lambda: (set(range(100, 110)),), 1),
    (of_dict, lambda: ({},), 3),
    (of_two, lambda: ([], []), 3),
    (of_two, lambda: (lambda a: (a, a))([]), 3),
], ids=lambda p: getattr(p, "__name__", ""))
def test_what_is_not_read_is_no_fact(program, make, most):
    assert graphs(program, make) <= most


def read(x, seen):
    seen.append(x)
    return torch.stack(seen).sum(0)


def walked(x, seen):
    total = x * 0
    for v in seen:
        total = total + v
    seen.append(x)
    return total


def joined(x, seen):
    seen[:] = seen + [x]
    return torch.cat(seen)


def found(x, seen):
    seen.append(float(x.shape[0]))
    return x, seen.index(3.0), seen.count(3.0), 7.0 in seen


def queued(x, seen):
    seen.append(x)
    first = seen.popleft() if len(seen) > 5 else seen[0]
    return first + seen[-1]


def keyed(x, seen):
    seen[f"k{len(seen)}"] = x
    return sum(seen.values())


def listed(x, seen):
    seen[len(seen)] = x
    return list(seen), max(seen), sum(seen.values())


def united(x, seen):
    seen.add(len(seen))
    return x * sum(sorted(seen)), 4 in seen


def popped(x, seen):
    seen.append(x)
    seen.append(x + 1)
    return seen.pop() + seen.pop(0)


def raised(x, seen):
    seen.append(x)
    return seen[7] + x


def hole(x, seen):
    seen[len(seen)] = x
    return seen[5] + x


@pytest.mark.parametrize("program, make", [
    (read, lambda: ([],)),
    (walked, lambda: ([],)),
    (joined, lambda: ([torch.ones(2)],)),
    (found, lambda: ([],)),
    (queued, lambda: (collections.deque(),)),
    (keyed, lambda: ({},)),
    (listed, lambda: ({},)),
    (united, lambda: (set(),)),
    (popped, lambda: ([],)),
    (raised, lambda: ([],)),
    (hole, lambda: ({},)),
], ids=lambda p: getattr(p, "__name__", ""))
def test_what_is_read_while_it_grows(program, make):
    check(program, make)


# -- in a loop with a break --------------------------------------------------------------------------------------------


def decode(x, out, ids):
    """Greedy decoding: appends, reads all, and ends when the data says so."""
    for step in range(STEPS):
        x = torch.tanh(x) + step * 0.1
        out.append(x)
        ids.append(x.argmax())
        if torch.stack(ids).sum() > 1000:
            break
    return torch.stack(out, 1).softmax(-1)


def by_step(x, out):
    for step in range(STEPS):
        x = x * 1.01
        out[step] = x + 1
        if x.sum() > 1e6:
            break
    return x, len(out), out[3]


def until_long(x):
    out = []
    while len(out) < STEPS:
        x = x * 1.5
        out.append(x)
        if x.sum() > 1e9:
            return None
    return out


def comprehension(x):
    return [x * i if x.sum() + i > 5 else x - i for i in range(STEPS)]


def set_of(x):
    return ({i * 2 if x.sum() + i > 5 else -i for i in range(STEPS)},
            {i: x * i if x.sum() + i > 5 else x for i in range(STEPS)})


def aliases(x):
    a = []
    b = a
    for i in range(STEPS):
        a.append(x * i)
        if x.sum() > 1e9:
            break
        b[-1] = b[-1] + len(a)
    return a, b, a is b


def with_caught(x):
    out = collections.deque()
    for i in range(STEPS):
        try:
            out.append(x + i)
            if x.sum() > 1e9:
                break
            out[i + 1]
        except IndexError as error:
            out.append(str(error))
            out.pop()
    return list(out)


def many_facts(x, items, table, queue):
    """Different facts change at different steps."""
    shown = ()
    for i, w in enumerate([x] * STEPS):
        items[:] = items[-2:] + [i]
        x = x + (1 if items else 2)
        shown = shown + (f"{i}-{len(queue)}",)
        if x.sum() > 1e12:
            return x
        x = x + max(len(items), len(table)) * w
        if len(queue) > 3:
            queue.popleft()
        queue.append(x)
    return x, shown


def in_a_try(x, items, table):
    caught = None
    for i in range(STEPS):
        try:
            caught = [v for v in items if not isinstance(v, int)]
            if x.sum() > 1e12:
                return x
            table[i] = x + 3
            x = x + len(table)
            if i % 3 == 0:
                items.append(i)
            table["missing"]
        except KeyError as error:
            caught = str(error), f"{i}-{len(items)}"
    return x, caught


def by_a_closure(x, items):
    both, table = items, {}
    for i in list(range(STEPS)):
        (lambda: items.append(i))()
        both.append(4)
        if x.sum() > 1e12:
            return x
        table[len(table)] = 1
        table.pop(0, None)
        text = f"{i}-{len(items)}"
        del items[:2]
    return x, text, table


@pytest.mark.parametrize("program, make", [
    (decode, lambda: ([], [])),
    (many_facts, lambda: ([], {}, collections.deque())),
    (in_a_try, lambda: ([], {})),
    (by_a_closure, lambda: ([],)),
    (by_step, lambda: ({},)),
    (until_long, tuple),
    (comprehension, tuple),
    (set_of, tuple),
    (aliases, tuple),
    (with_caught, tuple),
], ids=lambda p: getattr(p, "__name__", ""))
def test_a_loop_with_a_break(program, make):
    check(program, make, steps=2)


# -- what is replaced --------------------------------------------------------------------------------------------------


class Stateful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("state", torch.zeros(3))
        self.cache, self.history = None, []

    def forward(self, x):
        self.state = self.state * 0.9 + x.mean(0)
        self.cache = x if self.cache is None else torch.cat([self.cache, x])[-4:]
        self.history = self.history[-2:] + [x]
        return self.linear(x) + self.state + self.cache.sum(0) * len(self.history)


def results(model, calls, compiled, before=lambda model, i: None):
    torch.manual_seed(0)
    model = copy.deepcopy(model)
    fn = jit.compile(model, backend="eager") if compiled else model
    out = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(calls):
            before(model, i)
            out.append(fn(torch.randn(2, 3)).detach())
    return out, model.state_dict()


@pytest.mark.parametrize("before", [
    lambda model, i: None,
    lambda model, i: setattr(model.linear, "weight", torch.nn.Parameter(torch.randn(3, 3))),
    lambda model, i: setattr(model, "linear", torch.nn.Linear(3, 3)),
    lambda model, i: setattr(model.linear, "forward", lambda x: x * i),
    lambda model, i: setattr(model.linear, "bias", None if i % 2 else torch.nn.Parameter(torch.randn(3))),
], ids=["state", "parameter", "module", "method", "sometimes"])
def test_what_a_model_replaces(before):
    jit.reset()
    model = Stateful()
    same(results(model, STEPS, False, before), results(model, STEPS, True, before))


def test_parameters_that_are_replaced_need_one_more_graph():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
    fn = jit.compile(model, backend="eager")
    before = jit.frame.dispatch.compile_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(STEPS):
            given = {name: torch.randn_like(p) for name, p in model.named_parameters()}
            if i % 3 == 2:
                given["0.weight"] = given["2.weight"]
            x = torch.randn(2, 3, requires_grad=True)
            same(torch.func.functional_call(model, given, (x,)), torch.func.functional_call(fn, given, (x,)))
    assert jit.frame.dispatch.compile_count() - before <= 4


def test_gradients_reach_parameters_that_are_replaced():
    model = torch.nn.Linear(3, 3)
    fn = jit.compile(model)
    for _ in range(4):
        model.weight = torch.nn.Parameter(torch.randn(3, 3))
        x = torch.randn(2, 3)
        got = torch.autograd.grad(fn(x).pow(2).sum(), model.weight)
        want = torch.autograd.grad((x @ model.weight.T + model.bias).pow(2).sum(), model.weight)
        torch.testing.assert_close(got, want)


class Holder:
    def __init__(self):
        self.value = torch.zeros(3)


HOLDER = Holder()
TOTAL = torch.zeros(3)


def test_state_of_an_object_and_of_a_global():
    def program(x):
        global TOTAL
        TOTAL = TOTAL + x
        HOLDER.value = HOLDER.value * 0.5 + TOTAL
        return HOLDER.value * 2

    def calls(fn):
        global TOTAL
        TOTAL, HOLDER.value = torch.zeros(3), torch.zeros(3)
        return [fn(torch.arange(3.0) + i) for i in range(STEPS)]

    want = calls(program)
    fn, before = jit.compile(program, backend="eager"), jit.frame.dispatch.compile_count()
    same(want, calls(fn))
    assert jit.frame.dispatch.compile_count() - before <= 2


def test_a_replaced_object_is_freed():
    import weakref

    model = Stateful()
    fn = jit.compile(model, backend="eager")
    for _ in range(4):
        fn(torch.randn(2, 3))
    old = weakref.ref(model.state)
    fn(torch.randn(2, 3))
    assert old() is None


class Counted:
    calls, total = 0, torch.zeros(3)

    def run(self, x):
        type(self).calls += 1
        Counted.total = Counted.total + x
        return x * self.calls + self.total


def test_state_of_a_class():
    def calls(fn):
        Counted.calls, Counted.total = 0, torch.zeros(3)
        return [fn(torch.arange(3.0) + i) for i in range(STEPS)], Counted.calls, Counted.total

    want = calls(Counted().run)
    compiled = Counted()
    fn, before = (jit.compile(lambda x: compiled.run(x), backend="eager", fullgraph=True),
                  jit.frame.dispatch.compile_count())
    same(want, calls(fn))
    assert jit.frame.dispatch.compile_count() - before <= 3


COUNTERS = {
    "attribute": ("class Box: n = 0\nbox = Box()\nbox.n = 0\n", "box.n += 1\n    return x * box.n"),
    "module": ("class M(torch.nn.Module):\n    n = 0\nbox = M()\nbox.n = 0\n", "box.n += 1\n    return x * box.n"),
    "global": ("n = 0\n", "global n\n    n += 1\n    return x * n"),
    "item": ("box = {'n': 0}\n", "box['n'] += 1\n    return x * box['n']"),
    "float": ("class Box: n = 0\nbox = Box()\nbox.n = 0.5\n", "box.n += 0.25\n    return x * box.n"),
}


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_do_not_make_guards_walk(name):
    """A number that each call changes is read by each call; nothing else that is known is looked at again for it."""
    setup, body = COUNTERS[name]
    spaces = [{"torch": torch}, {"torch": torch}]
    for space in spaces:
        exec(setup + "def f(x):\n    " + body, space)
    compiled = jit.compile(spaces[1]["f"])
    x = torch.ones(3)
    walked = []
    for call in range(12):
        same(spaces[0]["f"](x), compiled(x), rtol=1e-6)
        walked.append(sum(entry.guards.stats["walks"] for d in jit.frame.dispatch._dispatchers for entry in d.entries))
    assert walked[-1] == walked[5] > 0
