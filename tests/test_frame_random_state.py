"""Seeds and states of random generators inside compiled functions: effects in order with the draws."""

import pytest
import torch
import torch.nn.functional as F

import jit

X = torch.linspace(-1, 1, 12).view(3, 4)
G = torch.Generator()
PROGRAMS = {}


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def seed_first(x):
    torch.manual_seed(3)
    return x + torch.rand(3, 4)


@program
def seed_between(x):
    a = torch.rand(3, 4)
    torch.manual_seed(3)
    b = torch.rand(3, 4)
    return a + x, b, torch.randn(2)


@program
def seed_last(x):
    y = F.dropout(x, 0.5) + torch.rand(3, 4)
    torch.manual_seed(4)
    return y


@program
def seed_alone(x):
    torch.random.manual_seed(seed=5)
    return x.shape[0]


@program
def seeds_in_a_loop(x):
    out = []
    for k in range(3):
        torch.manual_seed(k % 2)
        out.append(F.dropout(x, 0.5))
    return out


@program
def seed_of_several_kinds(x):
    out = []
    for seed in (-1, -(2**63), 2**63 - 1, True):
        torch.manual_seed(seed)
        out.append(torch.rand(2))
    return out


@program
def what_a_seed_returns(x):
    g = torch.manual_seed(3)
    return g is torch.default_generator, torch.rand(2, generator=g), torch.rand(2)


@program
def state_kept_and_restored(x):
    before = torch.get_rng_state()
    a = torch.rand(4)
    torch.random.set_rng_state(before)
    b = torch.rand(4)
    return torch.equal(before, before), a, b, before.sum(), torch.get_rng_state()


@program
def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        a = torch.randn(4)
        with torch.random.fork_rng(devices=[]):
            b = torch.rand(4)
        c = torch.rand(4)
    return a, b, c, torch.rand(4), x * 2


@program
def forked_and_raised(x):
    try:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            a = torch.rand(4)
            raise KeyError("k")
    except KeyError:
        return a, torch.rand(4)


@program
def not_forked(x):
    with torch.random.fork_rng(enabled=False):
        torch.manual_seed(1)
        a = torch.rand(4)
    return a, torch.rand(4)


@program
def generator_of_the_program(x):
    G.manual_seed(8)
    a = torch.rand(4, generator=G)
    state = G.get_state()
    b, c = torch.rand(4, generator=G), torch.rand(2)
    G.set_state(state)
    return a, b, torch.rand(4, generator=G), c, torch.rand(4, generator=G.manual_seed(8))


@program
def effects_between(x):
    log = [torch.rand(2)]
    torch.manual_seed(3)
    log.append(torch.rand(2))
    x.add_(log[0][0])
    torch.manual_seed(3)
    log.append(torch.rand(2))
    return log, x


def seeded(x):
    torch.manual_seed(2)
    return x + torch.rand(3, 4)


@program
def through_calls(x):
    return seeded(x) * torch.rand(3, 4) + seeded(x)


@program
def unused(x):
    torch.manual_seed(2)
    torch.rand(3)
    return torch.rand(3)


def run(fn, seed):
    torch.manual_seed(seed)
    G.manual_seed(seed)
    return fn(X.clone()), torch.rand(3), torch.get_rng_state(), torch.rand(2, generator=G)


def agree(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for v, w in zip(a, b, strict=True):
            agree(v, w)
    else:
        assert a == b


@pytest.mark.usefixtures("eager_numbers")
@pytest.mark.parametrize("backend", ["jit", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_numbers(name, backend):
    """With library draws all is eager's: results, the generators afterwards, in one graph."""
    fn = PROGRAMS[name]
    compiled = jit.compile(fn, fullgraph=True, backend=backend)
    for seed in (5, 6, 6):
        agree(run(fn, seed), run(compiled, seed))


@pytest.mark.usefixtures("kernel_numbers")
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_of_kernels_repeat(name):
    compiled = jit.compile(PROGRAMS[name], fullgraph=True)
    first = run(compiled, 5)
    agree(first, run(compiled, 5))
    if name in ("seed_first", "seed_last", "seed_between"):  # what eager draws afterwards
        again = run(compiled, 6)
        assert torch.equal(first[1], again[1]) and torch.equal(first[2], again[2])


@pytest.mark.usefixtures("kernel_numbers")
def test_the_same_seed_gives_the_same_numbers_inside_and_outside():
    def draws(x):
        return F.dropout(x, 0.5), torch.rand(5)

    def inside(x):
        torch.manual_seed(9)
        return draws(x)

    got = jit.compile(inside, fullgraph=True)(torch.ones(50))
    torch.manual_seed(9)
    agree(got, jit.compile(draws, fullgraph=True)(torch.ones(50)))


@pytest.mark.usefixtures("kernel_numbers")
def test_masks_on_both_sides_of_a_seed_in_the_backward():
    @jit.compile(fullgraph=True)
    def f(x):
        y = F.dropout(x, 0.5)
        torch.manual_seed(1)
        z = F.dropout(x, 0.5)
        return y, z

    x = torch.ones(300, requires_grad=True)
    y, z = f(x)
    for out in (y, z):
        (g,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        assert torch.equal(g, out.detach())
    assert not torch.equal(y, z) and torch.equal(z, f(x)[1])


def test_a_seed_that_changes():
    compiled = jit.compile(lambda seed: (torch.manual_seed(seed), torch.rand(3))[1], fullgraph=True)
    for seed in (1, 2, 3, 1, -4):
        assert torch.equal(compiled(seed), compiled(seed))
    before = jit.compile_count()
    assert not torch.equal(compiled(5), compiled(6)) and jit.compile_count() == before
    with jit.config.patch(fallback_random=True):
        library = jit.compile(lambda seed: (torch.manual_seed(seed), torch.rand(3))[1], fullgraph=True)
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            assert torch.equal(torch.rand(3), library(seed))


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1, 2.0])
def test_other_seeds_break_and_are_right(seed):
    def f(x):
        torch.manual_seed(seed)
        return x + torch.rand(3)

    compiled = jit.compile(f)
    for _ in range(2):
        first = compiled(torch.ones(3)), torch.rand(2)
    agree(first, (compiled(torch.ones(3)), torch.rand(2)))
    with jit.config.patch(fallback_random=True):
        agree((jit.compile(f)(torch.ones(3)), torch.rand(2)), (f(torch.ones(3)), torch.rand(2)))
    (record,) = jit.explain(f)(torch.ones(3)).break_reasons
    assert record.kind in ("global-state", "torch-argument")


def test_bad_arguments_raise_as_in_eager():
    for fn in (lambda: torch.manual_seed("a"), lambda: torch.manual_seed(2**64),
               lambda: torch.set_rng_state(torch.zeros(3)),
               lambda: torch.set_rng_state(torch.zeros(5056, dtype=torch.uint8)), lambda: torch.manual_seed(),
               lambda: G.manual_seed("a")):
        with pytest.raises(Exception) as want:
            fn()
        with pytest.raises(want.type) as got:
            jit.compile(fn)()
        assert str(got.value) == str(want.value)


def test_a_new_generator_breaks_and_is_right():
    def f(x):
        g = torch.Generator()
        g.manual_seed(3)
        return x + torch.rand(4, generator=g)

    compiled = jit.compile(f)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(4)), f(torch.ones(4)))
    before = jit.compile_count()
    assert torch.equal(compiled(torch.ones(4)), f(torch.ones(4))) and jit.compile_count() == before


def test_generators_that_come_and_go_break_and_are_right():
    def f(x, g):
        g.manual_seed(g.initial_seed() + 1) if x.shape[0] == 3 else None
        return x * 2 + torch.rand(4, generator=g), F.dropout(x, 0.0)

    for program in (f, lambda x, g: x * 2 + torch.rand(4, generator=g)):
        compiled = jit.compile(program)
        for seed in range(3):
            x, generators = torch.ones(4), [torch.Generator().manual_seed(seed) for _ in range(2)]
            agree(compiled(x, generators[0]), program(x, generators[1]))
            agree(*(g.get_state() for g in generators))
        before = jit.compile_count()
        for seed in range(9):
            agree(compiled(x, torch.Generator().manual_seed(seed)), program(x, torch.Generator().manual_seed(seed)))
        assert jit.compile_count() == before
    generator, kept = torch.Generator(), jit.compile(program, fullgraph=True)
    for seed in (1, 2):
        agree(kept(x, generator.manual_seed(seed)), program(x, generator.manual_seed(seed)))


def broken_fork(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        a = torch.rand(4)
        jit.graph_break()
        b = torch.rand(4)
    return a, b, torch.rand(4)


def printed(x):
    a = torch.rand(2)
    torch.manual_seed(3)
    print("seeded", a.shape)
    b = torch.rand(2)
    torch.manual_seed(3)
    return a, b, torch.rand(2)


def checked(x):
    torch.manual_seed(2)
    a = torch.rand(3)
    assert x.sum() < 5
    torch.manual_seed(2)
    return a, torch.rand(3)


def read_by_python(x):
    torch.manual_seed(2)
    a = torch.rand(3)
    if torch.initial_seed() == 2 and a.sum() > 0:
        torch.manual_seed(4)
    return a, torch.rand(3)


@pytest.mark.usefixtures("eager_numbers")
@pytest.mark.parametrize("fn", [broken_fork, printed, checked, read_by_python])
def test_with_breaks(fn):
    compiled = jit.compile(fn)
    for seed in (3, 4, 3):
        agree(run(fn, seed), run(compiled, seed))


@pytest.mark.usefixtures("kernel_numbers")
def test_seeds_are_not_joined_across_an_effect():
    from jit.graph.passes import optimize
    from graph_harness import trace

    graph, _, _ = trace(lambda x: torch.rand(3) + torch.rand(3) + x[0, 0], X)
    assert sum(n.impure for n in optimize(graph).nodes) == 1
    graph, _, _ = trace(lambda x: torch.rand(3) + torch.randperm(3) + torch.rand(3) + torch.rand(3), X)
    assert [n.attrs["target"] for n in optimize(graph).nodes if n.impure] == [
        "aten::randint", "aten::randperm", "aten::randint"]
