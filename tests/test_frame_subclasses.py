"""Subclasses of containers with their own ``__getitem__``, ``__iter__`` and ``__len__``, objects whose class hides
their attributes, and what programs hang on tensors: what is read is what Python reads, and a change between calls is
seen."""

import collections

import pytest
import torch
from frame_harness import same

import jit


class List(list):
    def __len__(self):
        return 100

    def __iter__(self):
        return iter([7, 8])

    def __getitem__(self, i):
        return list.__getitem__(self, i) * 10


class Tuple(tuple):
    def __getitem__(self, i):
        return tuple.__getitem__(self, i) * 10


class Dict(dict):
    def __getitem__(self, key):
        return dict.__getitem__(self, key) * 10

    def __len__(self):
        return 55

    def __iter__(self):
        return iter(["z"])

    def keys(self):
        return ["a"]


class Ordered(collections.OrderedDict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 10

    def __iter__(self):
        return iter(["z"])


class Default(collections.defaultdict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 10


class Set(set):
    def __iter__(self):
        return iter([1, 2])

    def __contains__(self, item):
        return item == 99


class Tripled:
    """Every attribute is three times what is stored."""

    def __init__(self):
        self.v, self.n = torch.ones(3), 2

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        return value * 3 if name in ("v", "n") else value


class Hidden:
    """A property of the name of an entry of the instance's dict."""

    def __init__(self):
        self.__dict__["v"] = torch.ones(3)

    @property
    def v(self):
        return self.__dict__["v"] * 5


def lists(held, x):
    return x * held[0] + len(held) + sum(iter(held)), list.__len__(held), list.__getitem__(held, 1), held[-1]


def tuples(held, x):
    return x * held[0] + len(held), [y for y in held]


def dicts(held, x):
    return x * held["a"] + len(held), [y for y in held], list(dict.keys(held)), held["t"], list(held.items())


def ordered(held, x):
    return x * held["a"] + len(held), [y for y in held], list(held.keys())


def in_order(held, x):
    for value in held.values():
        x = x * 2 + value
    return x, list(held), list(reversed(held)), next(iter(held)), list(held.items())


def defaults(held, x):
    return x * held["a"] + held["new"] + len(held), list(held)


def sets(held, x):
    return x + sum(held) + (99 in held) + (1 in held), set.__len__(held), set.__contains__(held, 5)


def attributes(held, x):
    return x * held.n + held.v


def hidden(held, x):
    return x + held.v


def put(key, value):
    return lambda held: type(held).__mro__[1].__setitem__(held, key, value)


CASES = {
    "list": (lists, lambda: List([1, 2, 3]), [put(0, 5), lambda held: list.append(held, 9),
                                              lambda held: list.clear(held) or list.extend(held, [4, 5])]),
    "tuple": (tuples, lambda: Tuple([torch.ones(3), torch.zeros(3)]), []),
    "dict": (dicts, lambda: Dict(a=1, t=torch.ones(3)), [put("a", 4), put("t", torch.zeros(3)), put("q", 1)]),
    "ordered dict of a subclass": (ordered, lambda: Ordered(a=1, t=2),
                                   [put("a", 4), lambda held: held.move_to_end("a")]),
    "ordered dict": (in_order, lambda: collections.OrderedDict(a=1, b=2, c=3),
                     [lambda held: held.move_to_end("a"), put("a", 5), lambda held: held.move_to_end("c", last=False),
                      lambda held: (held.pop("b"), held.update(b=9))]),
    "default dict": (defaults, lambda: Default(int, a=1), [lambda held: None, put("a", 3)]),
    "set": (sets, lambda: Set([5, 6, 7]), [lambda held: set.remove(held, 5), lambda held: set.add(held, 99)]),
    "getattribute": (attributes, Tripled,
                     [lambda held: setattr(held, "v", torch.zeros(3)), lambda held: setattr(held, "n", 7)]),
    "property": (hidden, Hidden, [lambda held: held.__dict__.update(v=torch.zeros(3))]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rooted", ["argument", "global"])
def test_subclass(name, rooted):
    fn, make, changes = CASES[name]

    def run(compiled):
        held, x = make(), torch.arange(3.0)
        fast = compiled(fn) if rooted == "argument" else compiled(lambda held, x: fn(known, x))
        known = held
        out = [fast(held, x), fast(held, x)]
        for change in changes:
            change(held)
            out += [fast(held, x), fast(make(), x)]
        return out

    jit.reset()
    with jit.config.patch(strict=True):
        same(run(lambda f: f), run(lambda f: jit.compile(f, fullgraph=True)))


def test_only_the_entries_that_are_read_are_guarded():
    held, x = Dict(a=1, b=2), torch.ones(3)
    fast = jit.compile(lambda held, x: x * held["a"], fullgraph=True)
    fast(held, x)
    before = jit.compile_count()
    dict.__setitem__(held, "b", 5)
    dict.__setitem__(held, "c", 5)
    same(x * 10, fast(held, x))
    assert jit.compile_count() == before


def test_subclasses_of_containers_run_no_code_in_guards():
    ran = []

    class Counting(dict):
        def __getitem__(self, key):
            ran.append(key)
            return dict.__getitem__(self, key)

    held = Counting(a=torch.ones(3))
    fast = jit.compile(lambda x: x + held["a"], fullgraph=True)
    fast(torch.ones(3))
    ran.clear()
    for _ in range(3):
        fast(torch.ones(3))
    assert ran == ["a"] * 3  # by the program


def test_attributes_of_tensors():
    def tagged(x):
        return x * 2 if getattr(x, "tag", None) else x * 3

    fast, x, y = jit.compile(tagged, fullgraph=True), torch.ones(3), torch.ones(3)
    for change in (lambda: None, lambda: setattr(x, "tag", True), lambda: setattr(y, "tag", 0),
                   lambda: delattr(x, "tag")):
        change()
        same((tagged(x), tagged(y)), (fast(x), fast(y)))


@pytest.mark.parametrize("name", ["is_leaf", "output_nr", "retains_grad"])
def test_what_autograd_knows_of_a_tensor(name):
    def ask(x):
        return x.detach() * (2 + getattr(x, name)), getattr(x, name)

    leaf = torch.ones(3, requires_grad=True)
    kept = leaf * 2
    kept.retain_grad()
    fast = jit.compile(ask, fullgraph=True)
    for x in (leaf, leaf * 1, kept, torch.stack([leaf, leaf]).unbind()[1], torch.ones(3), leaf):
        same(ask(x), fast(x))


def test_grad_fn():
    def ask(x, w):
        y = x * w
        return y.detach() * (2 if y.grad_fn is None else 3), w.grad_fn is None

    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    fast = jit.compile(ask)
    for v in (w, x, w):
        same(ask(x, v), fast(x, v))
    assert jit.explain(ask)(x, w).graph_break_count == 0

    def name(x, w):
        y = x * w
        return y.grad_fn.name(), y

    same(name(x, w), jit.compile(name)(x, w))


class Passing(torch.Tensor):
    asked: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.asked.append(getattr(func, "__name__", "?"))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_a_recorded_write_is_asked_for_once(backend):
    def fn(x, w):
        x.copy_(w)
        return x * 2

    w, results = torch.ones(3, requires_grad=True), []
    for run in (fn, jit.compile(fn, backend=backend)):
        for x in (torch.zeros(3), torch.zeros(3).as_subclass(Passing)):
            Passing.asked.clear()
            found = run(x, w)
            results.append((type(x), type(found), x.requires_grad, found.tolist(), list(Passing.asked)))
    assert results[:2] == results[2:]
