"""The checks that torch.distributions makes of its arguments are no breaks, also where numbers are drawn behind or
before them: what fails a check raises what eager raises, and leaves the random generator as eager does."""

import numpy as np
import pytest
import torch
import torch.distributions as D
from numpy_harness import same

import jit

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
LINEAR = torch.nn.Linear(3, 2)


def act(logits):
    policy = D.Categorical(logits=logits)
    action = policy.sample()
    return action, policy.log_prob(action), policy.entropy()


def act_on_arrays(observation):
    policy = D.Categorical(logits=LINEAR(torch.as_tensor(observation, dtype=torch.float32)))
    action = policy.sample()
    return action, policy.log_prob(action)


PROGRAMS = {
    "normal": (lambda m: D.Normal(m, m.exp()).log_prob(m + 1), X),
    "rsample": (lambda m: D.Normal(m, m.exp()).rsample(), X),
    "twice": (lambda m: D.Normal(D.Normal(m, m.exp()).sample().abs(), 1.0).sample(), X),
    "categorical": (lambda x: D.Categorical(logits=x).log_prob(torch.tensor([0, 1, 2, 0])), X),
    "act": (act, X),
    "act on arrays": (act_on_arrays, np.ones((2, 3))),
    "probabilities": (lambda x: D.Categorical(probs=x.softmax(-1)).sample(), X),
    "bernoulli": (lambda x: D.Bernoulli(x.sigmoid()).log_prob((x > 0).float()), X),
    "beta": (lambda x: D.Beta(x.exp(), x.exp()).log_prob(x.sigmoid()), X),
    "independent": (lambda m: D.Independent(D.Normal(m, m.exp()), 1).log_prob(m), X),
    "mixture": (lambda m: D.MixtureSameFamily(D.Categorical(logits=m), D.Normal(m, m.exp())).log_prob(m[:, 0]), X),
    "divergence": (lambda m: D.kl_divergence(D.Normal(m, 1.0), D.Normal(0.0, m.exp())), X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn, argument = PROGRAMS[name]
    compiled = jit.compile(fn, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        expected, after = fn(argument), torch.rand(1)
        torch.manual_seed(seed)
        same(expected, compiled(argument))
        same(after, torch.rand(1))


def test_what_fails_a_check():
    def program(scale):
        noise = torch.rand(3)
        return D.Normal(noise, scale).sample() + torch.rand(3)

    compiled = jit.compile(program)
    for scale in (1.0, -1.0, 2.0, -2.0, -1.0, -1.0, -1.0, 3.0):
        found = []
        for fn in (program, compiled):
            torch.manual_seed(3)
            try:
                found.append(fn(torch.tensor([scale, 1.0, 1.0])))
            except ValueError as error:
                found.append(str(error))
            found.append(torch.rand(2))
        same(found[:2], found[2:])


def test_types_by_name():
    for kind in ("torch.DoubleTensor", torch.LongTensor, "torch.HalfTensor", torch.float64):
        same(X.type(kind), jit.compile(lambda x, kind=kind: x.type(kind), fullgraph=True)(X))
    with pytest.raises(ValueError):
        jit.compile(lambda x: x.type("torch.NoTensor"))(X)


def test_reversed_sizes():
    fn = lambda x: (list(reversed(x.shape)), [n for n in reversed(torch.Size([2, 3]))])
    compiled = jit.compile(fn, fullgraph=True)
    assert compiled(X) == ([3, 4], [3, 2])
