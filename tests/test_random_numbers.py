"""Random numbers of ``random`` and ``numpy.random`` in compiled functions: the generators' own numbers, in order, and
afterwards the generators are as eager leaves them."""

import random
from random import randint as roll, random as draw, uniform as draw_between

import numpy as np
import pytest
import torch

import jit
from jit.frame.values import drawn
from jit.runtime import drawing

X = torch.arange(6.0).view(2, 3)


def state(g):
    if isinstance(g, random.Random):
        return g.getstate()
    if isinstance(g, np.random.Generator):
        return repr(g.bit_generator.state)
    return repr(g.get_state()) if isinstance(g, np.random.RandomState) else g


def comparable(v):
    if isinstance(v, (list, tuple)):
        return type(v)(comparable(e) for e in v)
    if isinstance(v, (np.ndarray, np.generic, torch.Tensor)):
        return type(v).__name__, v.dtype, v.tolist()
    return type(v).__name__, state(v)


def check(fn, make=lambda: (), fullgraph=True, calls=4):
    compiled = jit.compile(fn, fullgraph=fullgraph)
    for seed in range(calls):
        runs = []
        for f in (fn, compiled):
            random.seed(seed)
            np.random.seed(seed)
            args = make()
            results = [f(X + seed, *args) for _ in range(2)]
            runs.append((comparable(results), random.getstate(), repr(np.random.get_state()), [state(a) for a in args]))
        for want, got in zip(*runs):
            assert want == got
    return compiled


METHODS = {
    "random": lambda x: x * random.random(),
    "uniform": lambda x: x + random.uniform(-1, 3),
    "randint": lambda x: (x * random.randint(30, 100), random.randint(1, 6)),
    "randrange": lambda x: (x + random.randrange(10), random.randrange(2, 20, 3)),
    "gauss": lambda x: x + random.gauss(0, 1) * random.normalvariate(1, 2) + random.gauss(2, 1),
    "others": lambda x: (x, random.triangular(0, 1, 0.3), random.betavariate(1, 2), random.expovariate(2.0)),
    "bits": lambda x: (x, random.getrandbits(20)),
    "in order": lambda x: (random.random(), random.random() + random.randint(1, 5), x),
    "choice": lambda x: x * random.choice([0.5, 1.5, 2.5]),
    "choices": lambda x: (x, random.choices([1, 2, 3], k=4), random.sample(range(10), 3)),
    "compared": lambda x: torch.where(torch.tensor(random.random() < 0.5), x, -x),
    "float math": lambda x: x * (2 * random.random() - 1) / 3,
    "by another name": lambda x: x * draw() + draw_between(1, 2) + roll(1, 6),
    "numpy scalar": lambda x: x * np.random.uniform(1, 2) + np.random.randint(3),
    "numpy rand": lambda x: x + torch.from_numpy(np.random.rand(2, 3)),
    "numpy randn": lambda x: (np.random.randn(3, 2), np.random.normal(size=(2,)).astype(np.float32), x),
    "numpy ints": lambda x: x[torch.from_numpy(np.random.randint(0, 2, size=(4,)))],
    "numpy permutation": lambda x: x[:, torch.as_tensor(np.random.permutation(3))],
    "both": lambda x: x + np.random.random() + random.random(),
}


@pytest.mark.parametrize("name", METHODS)
def test_numbers_are_the_generators_own(name):
    check(METHODS[name])


def test_shuffle_of_numbers():
    def fn(x):
        numbers = [1.0, 2.0, 3.0, 4.0]
        random.shuffle(numbers)
        return x * numbers[0] + numbers[3], numbers
    check(fn)


def test_a_list_from_outside_is_shuffled():
    numbers = [1, 2, 3, 4]

    def fn(x):
        random.shuffle(numbers)
        return x + 1, list(numbers)

    compiled = jit.compile(fn)
    for seed in range(3):
        random.seed(seed)
        numbers[:] = [1, 2, 3, 4]
        want = fn(X)[1]
        random.seed(seed)
        numbers[:] = [1, 2, 3, 4]
        assert compiled(X)[1] == want == numbers


def test_seeded_inside():
    def fn(x):
        random.seed(3)
        np.random.seed(5)
        a = x * random.random() if random.random() < 0.9 else x
        words = ["a", "b", "c"]
        random.shuffle(words)
        return a + np.random.rand(3).sum(), words, random.choice(words), np.random.randint(5)
    check(fn)


def test_generators_from_outside():
    def fn(x, a, b, c):
        return x + a.random() + b.normal() + torch.from_numpy(c.randn(3)), a.randint(1, 9), b.integers(5), a

    check(fn, lambda: (random.Random(3), np.random.default_rng(4), np.random.RandomState(5)))


def test_new_generators():
    def fn(x):
        a, b, c = random.Random(42), np.random.default_rng(7), np.random.RandomState(1)
        return x * a.random() + torch.from_numpy(b.normal(size=3)) + c.rand(), a, b, c, a.random() < 0.5
    check(fn)


def test_states_are_set():
    def fn(x, a, b):
        new = random.Random(9002)
        a.seed(42)
        b.setstate(new.getstate())
        return x + a.random() + b.randint(1, 10) + new.uniform(0, 1), new.getstate() == b.getstate()
    check(fn, lambda: (random.Random(1), random.Random(2)))


def test_states_are_put_back():
    def fn(x, a):
        state, other = random.getstate(), np.random.get_state()
        y = x * random.random() + np.random.rand()
        random.seed(3)
        y = y + random.random()
        random.setstate(state), np.random.set_state(other)
        kept = a.getstate()
        first = a.random()
        a.setstate(kept)
        return y + random.random() + np.random.rand(), first, a.random(), random.uniform(0, 1), kept
    check(fn, lambda: (random.Random(4),))


def test_the_same_generator_twice_is_not_two():
    def fn(x, a, b):
        return x + a.random() * 2 + b.random()

    compiled = jit.compile(fn)
    for shared in (False, True, False):
        for f in (fn, compiled):
            a = random.Random(1)
            b = a if shared else random.Random(2)
            result = f(X, a, b)
            if f is fn:
                want = result, a.getstate(), b.getstate()
        assert torch.equal(result, want[0]) and (a.getstate(), b.getstate()) == want[1:]


def test_a_method_of_the_object_itself_is_followed():
    def fn(x, g):
        return x + g.random()

    compiled = jit.compile(fn)
    for own in (False, True, False, True):
        g, h = random.Random(1), random.Random(1)
        if own:
            g.random = h.random = lambda: 0.25
        assert torch.equal(fn(X, g), compiled(X, h)) and g.getstate() == h.getstate()


def test_a_call_that_is_left_to_eager_draws_once():
    def fn(x):
        r = random.random()
        if (x > 100).any():
            raise ValueError("too large")
        return x * r

    compiled = jit.compile(fn)
    for value in (1.0, 2.0, 200.0, 3.0):
        seen = []
        for f in (fn, compiled):
            random.seed(0)
            try:
                f(torch.full((2,), value))
            except ValueError as error:
                seen.append(str(error))
            seen.append(random.getstate())
        assert seen[:len(seen) // 2] == seen[len(seen) // 2:]


@pytest.mark.parametrize("fn", [
    lambda x: x * 2 if random.random() < 0.5 else x * 3,
    lambda x: torch.ones(random.randint(2, 6)) + x.sum(),
    lambda x: [x, x + 1, x + 2][random.randrange(3)],
    lambda x: x + (random.choice("ab") == "a"),
    lambda x: (random.Random().random() < 2, x + 1)[1],
])
def test_what_has_to_know_a_number_breaks_or_not_and_is_right(fn):
    check(fn, fullgraph=False)


def test_gradients():
    def fn(x):
        return (x * random.random()).sum() + (x ** 2 * float(np.random.rand())).sum()

    compiled = jit.compile(fn, fullgraph=True)
    for seed in range(3):
        grads = []
        for f in (fn, compiled):
            random.seed(seed), np.random.seed(seed)
            x = X.clone().requires_grad_()
            f(x).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_drawn_numbers_beside_tensors_that_are_changed():
    def fn(x, y):
        noise = np.random.rand(3)
        x.add_(torch.as_tensor(noise).float() * random.random())
        return x * y + float(np.random.uniform()), noise

    compiled = jit.compile(fn)
    for k in range(3):
        results = []
        for f in (fn, compiled):
            random.seed(k), np.random.seed(k)
            x = torch.ones(3)
            results.append((x, *f(x, torch.arange(3.0)), random.random(), np.random.rand()))
        (x, out, noise, *rest), (x2, out2, noise2, *rest2) = results
        torch.testing.assert_close((x, out), (x2, out2))
        assert (noise == noise2).all() and rest == rest2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64, torch.float16])
@pytest.mark.parametrize("fn", [
    lambda x: x.clamp(0, random.random()), lambda x: x.clamp(random.random(), 5),
    lambda x: torch.clamp(x, max=1.5, min=random.random()),
    lambda x: x.clamp(0, random.getrandbits(2)), lambda x: x.clamp(random.random(), random.random())])
def test_limits_that_are_drawn(fn, dtype):
    compiled = jit.compile(fn)
    for x in (torch.tensor(0.7).to(dtype), torch.arange(3).to(dtype)):
        for _ in range(2):
            random.seed(1)
            want = fn(x)
            random.seed(1)
            got = compiled(x)
            assert got.dtype is want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("make", [lambda: np.random.RandomState(1.5), lambda: np.random.RandomState(-1),
                                  lambda: np.random.RandomState("a"), lambda: random.Random([1])],
                         ids=["a float", "negative", "a text", "a list"])
def test_seeds_that_are_refused(make):
    def f(x):
        try:
            return x + 1, make().random()
        except (TypeError, ValueError) as error:
            return x + 1, type(error), str(error)

    want, got = f(X), jit.compile(f)(X)
    assert want[1:] == got[1:]
    torch.testing.assert_close(got[0], want[0])


def test_many_numbers_are_drawn_once_while_capturing(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args[1])
        return drawing.called(*args)

    monkeypatch.setattr(drawn, "called", counted)

    def f(x):
        return x + sum([random.random() for _ in range(100)]), [random.randint(0, 5) for _ in range(100)]

    seen = []
    for fn in (f, jit.compile(f)):
        random.seed(3)
        seen.append(fn(X))
    assert seen[0][1] == seen[1][1] and len(calls) <= 2 * 200
    torch.testing.assert_close(seen[1][0], seen[0][0])


def test_a_number_behind_many_others_is_read():
    def f(x):
        return x + 1, [int(random.random() * 5) + 1 for _ in range(80)], [1] * int(random.random() * 5)

    random.seed(4)
    want = f(X)
    random.seed(4)
    assert jit.compile(f)(X)[1:] == want[1:]
