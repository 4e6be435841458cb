"""Values of integer tensors that Python reads are taken to stay: right when they do not, and a graph break from then
on."""

import pytest
import torch
from frame_harness import same

import jit
from jit import api
from jit.frame import dispatch


def masked(x, mask, grid):
    h, w = grid.tolist()
    if mask.all():
        x = x + 1
    else:
        x = x * mask[:, None]
    x = x.view(h, w, -1) * torch.arange(h)[:, None, None]
    return x, int(mask.sum()), x[: mask.sum()] * 2


CALLS = [([1, 1, 1], [2, 3]), ([1, 1, 1], [2, 3]), ([1, 1, 0], [2, 3]), ([1, 1, 1], [2, 3]), ([1, 0, 1], [3, 2]),
         ([1, 1, 0], [2, 3])]


def captures_of(fn, backend="eager"):
    captured = []
    return api.compiled_with(fn, dispatch.Settings(api._backend(backend), on_capture=captured.append)), captured


@pytest.mark.parametrize("backend", ["eager", None])
def test_values_that_change(backend):
    compiled, captured = captures_of(masked, backend)
    for at, (mask, grid) in enumerate(CALLS):
        arguments = torch.randn(3, 6), torch.tensor(mask), torch.tensor(grid)
        same(masked(*arguments), compiled(*arguments), rtol=1e-6)
        if at < 2:
            assert len(captured) == 1 and not captured[0].breaks
    assert any(b.kind.startswith("data-dependent") for c in captured for b in c.breaks)


def test_the_places_that_are_read_are_read_by_the_graph_once_a_value_has_changed():
    def f(x, n):
        y = x * 2
        return y + n.item()

    compiled, captured = captures_of(f)
    for n in (1, 2, 3, 4, 5):
        assert torch.equal(compiled(torch.ones(2), torch.tensor(n)), torch.full((2,), 2.0 + n))
    assert len(captured) == 2 and not any(c.breaks for c in captured)


def test_inputs_that_change_and_random_numbers():
    def f(x, n):
        x.add_(1)
        if n > 0:
            return x * torch.rand(2), x[: n.item()]
        n += 5
        return x - 1, n

    compiled, captured = captures_of(f)
    ours, theirs = torch.zeros(3, 2), torch.zeros(3, 2)
    for n in (1, 1, 0, 2, 0, 3):
        m, k = torch.tensor(n), torch.tensor(n)
        torch.manual_seed(n)
        a = f(theirs, k)
        torch.manual_seed(n)
        b = compiled(ours, m)
        for p, q in ((a, b), (theirs, ours), (k, m)):
            same(p, q)
    assert not captured[0].breaks


def test_modules_and_gradients():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.register_buffer("steps", torch.tensor(2))

        def forward(self, x):
            for _ in range(int(self.steps)):
                x = self.linear(x)
            return x.sum()

    model = Model()
    compiled = jit.compile(model, backend="eager")
    x = torch.randn(2, 3)
    for steps in (2, 2, 3, 1, 1):
        model.steps.fill_(steps)
        found = [torch.autograd.grad(m(x), list(model.parameters())) for m in (model, compiled)]
        for a, b in zip(*found):
            assert torch.allclose(a, b)


@pytest.mark.parametrize("read", [lambda x, n: 1 if x.sum().item() > 0 else 2,
                                  lambda x, n: "more" if x.sum() > n else "less",
                                  lambda x, n: list(range(int(x.argmax()))),
                                  lambda x, n: 4 if (x[0] * n).long().item() == 0 else 5,
                                  lambda x, n: torch.arange(100).add(n).tolist()[3]])
def test_what_depends_on_floats_or_is_long_is_not_guessed(read):
    compiled, captured = captures_of(read)
    x, n = torch.arange(3.0), torch.tensor(1)
    assert compiled(x, n) == read(x, n) and captured[0].breaks


def test_fullgraph_guesses_nothing():
    with pytest.raises(jit.errors.Unsupported):
        jit.compile(lambda x, n: x * 2 if (n + x.long()[0]).item() else x, backend="eager",
                    fullgraph=True)(torch.ones(2), torch.tensor(3))


def test_reset_forgets_what_has_changed():
    compiled, captured = captures_of(lambda x, n, m: [x] if (n + m).item() == 2 else x * 3)
    for n in (1, 2, 2):
        compiled(torch.ones(2), torch.tensor(n), torch.tensor(0))
    assert any(c.breaks for c in captured)
    jit.reset()
    compiled(torch.ones(2), torch.tensor(2), torch.tensor(0))
    assert not captured[-1].breaks


def test_other_values_may_not_even_fit():
    def f(x, lengths):
        parts = x.split(lengths.tolist())
        return [p.sum() for p in parts], torch.stack(list(lengths[: lengths[0]])) if lengths[0] < 3 else None

    compiled = jit.compile(f, backend="eager")
    for lengths in ([1, 2, 3], [1, 2, 3], [2, 2, 2], [6], [3, 3]):
        arguments = torch.arange(6.0), torch.tensor(lengths)
        same(f(*arguments), compiled(*arguments))


TIMES = torch.tensor([0.0, 0.5, 1.0, 1.5])


def stepped(x):
    for t in TIMES:
        x = x.cos() if t >= 1 else x + t
    return x


@pytest.mark.parametrize("change", [lambda: TIMES.copy_(torch.tensor([2.0, 0.5, 1.0, -1.5])),
                                    lambda: TIMES.data.fill_(3.0), lambda: TIMES.numpy().fill(-1.0)])
@pytest.mark.parametrize("backend", ["eager", None])
def test_small_floats_that_the_program_keeps(backend, change):
    compiled, captured = captures_of(stepped, backend)
    before, x = TIMES.clone(), torch.randn(5)
    try:
        for _ in range(3):
            same(stepped(x), compiled(x), rtol=1e-6)
        assert len(captured) == 1 and not captured[0].breaks
        change()
        for _ in range(3):
            same(stepped(x), compiled(x), rtol=1e-6)
        assert len(captured) > 1 and "run_branch" in captured[-1].graph.python()
    finally:
        TIMES.copy_(before)


def test_floats_that_are_learned_or_large_are_not_guessed():
    weight, many = torch.ones((), requires_grad=True), torch.ones(100)
    for fn in (lambda x: x * 2 if weight > 0.5 else x, lambda x: x * 2 if many.sum() > 0.5 else x):
        compiled, captured = captures_of(fn)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert captured[0].breaks or "run_branch" in captured[0].graph.python()


def test_a_zero_that_gets_a_sign():
    at = torch.zeros(())
    compiled, captured = captures_of(lambda x: x + 1 if 1 / at > 0 else x - 1)
    for value in (0.0, 0.0, -0.0, 0.0):
        at.fill_(value)
        assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), -1.0 if str(value) == "-0.0" else 1.0))


def test_a_guess_that_did_not_hold_is_told():
    said = []
    jit.logs.channel("recompiles").listener = said.append
    try:
        compiled = jit.compile(lambda x, n: x * (2 if n > 3 else 5))
        for n in (1, 2, 7):
            compiled(torch.ones(2), torch.tensor(n))
        compiled(torch.ones(2), torch.tensor(1))
    finally:
        jit.logs.channel("recompiles").listener = None
    line = compiled.__wrapped__.__code__.co_firstlineno
    told = f"{__file__}:{line}, which was taken to stay the same: expected False, found True"
    assert len(said) == 1 and told in said[0]
    assert "torch.where" in said[0]
