"""Checks on tensor values in graphs that draw random numbers, change their inputs or run a backward: no breaks, and
where one fails, the call leaves what eager leaves."""

import pytest
import torch
from torch.distributions import Categorical, Normal

import jit


def act(logits):
    distribution = Categorical(logits=logits)
    action = distribution.sample()
    return action, distribution.log_prob(action), distribution.entropy()


def sample(mean, scale):
    return (Normal(mean, scale).rsample(),)


def change(buffer, x):
    if (x < 0).any():
        raise ValueError("negative")
    buffer.add_(x)
    return (buffer * 2,)


def draw_and_change(buffer, x):
    buffer.add_(torch.rand(3))
    if not (x > 0).all():
        raise ValueError("not positive")
    return (buffer * torch.rand(3), x + 1)


PROGRAMS = {"act": (act, (torch.randn(4),), (torch.full((4,), float("nan")),)),
            "sample": (sample, (torch.randn(4), torch.ones(4)), (torch.randn(4), -torch.ones(4))),
            "change": (change, (torch.zeros(3), torch.ones(3)), (torch.zeros(3), -torch.ones(3))),
            "both": (draw_and_change, (torch.zeros(3), torch.ones(3)), (torch.zeros(3), -torch.ones(3)))}


def outcome(fn, arguments, seed):
    """(results or the error's text, the arguments afterwards, the next random number)."""
    torch.manual_seed(seed)
    given = [t.clone() for t in arguments]
    try:
        result = fn(*given)
    except ValueError as error:
        result = str(error)
    return result, given, torch.rand(1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_break_and_eager_where_it_fails(name, eager_numbers):
    fn, good, bad = PROGRAMS[name]
    assert jit.explain(fn)(*[t.clone() for t in good]).graph_break_count == 0
    compiled = jit.compile(fn, fullgraph=True)
    for seed, arguments in enumerate((good, good, bad, good, bad, bad, bad, bad, good)):
        (a, given, drawn), (b, expected, next_) = (outcome(f, arguments, seed) for f in (compiled, fn))
        if isinstance(b, str):
            assert a == b
        else:
            torch.testing.assert_close(a, b)
        assert drawn == next_
        torch.testing.assert_close(given, expected, equal_nan=True)


def test_a_whole_step_with_a_check(eager_numbers):
    def build():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            noisy = Normal(model(x), 1.0).rsample()
            loss = noisy.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss
        return model, step

    (model, step), (other, eager) = build(), build()
    compiled = jit.compile(step)
    bad = torch.full((2, 3), float("nan"))
    for seed, x in enumerate((torch.ones(2, 3), bad, torch.ones(2, 3), torch.ones(2, 3))):
        torch.manual_seed(seed)
        ours = error_or(compiled, x)
        torch.manual_seed(seed)
        theirs = error_or(eager, x)
        if torch.is_tensor(theirs):
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours is theirs
        torch.testing.assert_close(list(model.parameters()), list(other.parameters()))
    assert jit.explain(build()[1])(torch.ones(2, 3)).graph_break_count == 0


def error_or(fn, x):
    try:
        return fn(x)
    except ValueError as error:
        return type(error)


def test_truths_of_masks():
    def f(x):
        return torch._is_all_true(x > 0), torch._is_any_true(x > 0)

    compiled = jit.compile(f, fullgraph=True)
    for x in (torch.randn(3, 4), torch.ones(2), torch.empty(0), torch.tensor(1.0), torch.randn(4, 6).t()[::2]):
        assert all(map(torch.equal, compiled(x), f(x)))
    for fn in (torch._is_all_true, jit.compile(lambda x: torch._is_all_true(x))):
        with pytest.raises(RuntimeError, match="kBool"):
            fn(torch.ones(2))
