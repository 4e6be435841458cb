"""The backward when some results got no gradient: eager's gradients, with nothing of the absent tangents read."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import halves, leaf, sizes_of
from graph_harness import flatten

import jit
from jit.graph.autodiff.narrow import narrowed
from jit.graph.interpret import evaluate
from jit.graph.passes import optimize
from jit.graph.printing import unbound_symbols
from jit.graph.verify import verify


def classifier(x, w, b, t):
    logits = F.linear(x.tanh(), w, b)
    return F.cross_entropy(logits, t), logits


def attention(q, k, v):
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights @ v, weights


def convolution(x, w):
    y = F.conv2d(x, w, padding=1)
    return y.relu(), y[:, :1], F.max_pool2d(y, 2)


def apart(x, y):
    return x.sqrt(), torch.cat([x * y, y]), F.pad(y.exp(), (1, 2)), torch.where(x > 1, x, y) - y


def indexed(x, i):
    return x[i], x.gather(0, i), x.flip(0).cumsum(0), x.amax(0), x.float().sum()


def replayed(x, y):
    return torch.logcumsumexp(x, 0), x / y, torch.mv(x[None] * y[:, None], x)


CASES = {
    "classifier": (classifier, lambda: (leaf(4, 5), leaf(3, 5), leaf(3), torch.tensor([0, 2, 1, 1]))),
    "attention": (attention, lambda: (leaf(2, 3, 4), leaf(2, 3, 4), leaf(2, 3, 4))),
    "convolution": (convolution, lambda: (leaf(2, 3, 6, 6), leaf(4, 3, 3, 3))),
    "apart": (apart, lambda: (leaf(5, low=0.5), leaf(5))),
    "indexed": (indexed, lambda: (leaf(6), torch.tensor([0, 5, 5]))),
    "replayed": (replayed, lambda: (leaf(6), leaf(6, low=1.0))),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", list(CASES))
def test_gradients_of_some_results(name, dynamic):
    fn, make = CASES[name]
    inputs = make()
    graph, tangents, result, captured = halves(fn, *inputs, dynamic=dynamic)
    tensors = [*(x.detach() for x in inputs), *captured]
    values = evaluate(result.forward, tensors, sizes_of(graph, unbound_symbols(result.forward), tensors))
    returned = sum(o.mutates is None for o in graph.outputs)
    saved = [tensors[i] if kind == "input" else values[i] if kind == "output" else values[returned + i]
             for kind, i in result.saved]
    sources = [x for x in inputs if x.requires_grad]
    text = repr(result.backward)
    for present in itertools.product([False, True], repeat=len(tangents)):
        if not any(present):
            continue
        outs = list(flatten(fn(*inputs)))
        given = [torch.randn_like(outs[k]) if p else torch.full_like(outs[k], float("nan"))
                 for k, p in zip(tangents, present)]
        chosen = [outs[k] for k, p in zip(tangents, present) if p]
        want = torch.autograd.grad(chosen, sources, [g for g, p in zip(given, present) if p], allow_unused=True)
        small = narrowed(result.backward, [len(saved) + k for k, p in enumerate(present) if not p])
        verify(small)
        small = optimize(small)
        assert len(small.inputs) == len(result.backward.inputs) and len(small.outputs) == len(result.backward.outputs)
        got = evaluate(small, [*saved, *given], sizes_of(graph, unbound_symbols(small), tensors))
        for w, position, reaching in zip(want, result.grads, result.depends, strict=True):
            assert (w is None) == (not any(present[k] for k in reaching))
            torch.testing.assert_close(got[position],
                                       torch.zeros_like(got[position]) if w is None else w.to(got[position].dtype))
    assert repr(result.backward) == text


def test_no_product_with_zeros():
    # At 0 the gradient of sqrt is infinite; that of the other result is 2.
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    _, _, result, _ = halves(lambda x: (x.sqrt(), x * 2), x)
    small = optimize(narrowed(result.backward, [len(result.saved)]))
    (got,) = evaluate(small, [*[x.detach() for _ in result.saved], torch.ones(3, dtype=torch.float64),
                              torch.ones(3, dtype=torch.float64)], [])
    assert got.tolist() == [2] * 3


def test_work_for_the_absent_is_dropped():
    _, _, result, _ = halves(classifier, *CASES["classifier"][1]())
    loss_only = optimize(narrowed(result.backward, [len(result.saved) + 1]))
    logits_only = optimize(narrowed(result.backward, [len(result.saved)]))
    assert len(loss_only.nodes) < len(result.backward.nodes) and len(logits_only.nodes) < len(loss_only.nodes)


def test_an_absent_gradient_is_not_looked_up():
    """An index that has no row is refused where a gradient is read there, and only there."""
    def write(x, y, i):
        y = y * 1
        before = y - y * 2
        y.index_add_(0, i, x[i].clone())
        return before, y

    compiled = jit.compile(write)
    for index in (1, 10**9):
        for wanted in ((0,), (0, 1)):
            outcomes = []
            for fn in (write, compiled):
                x, y = (torch.ones(3, 0, requires_grad=True) for _ in range(2))
                results = fn(x, y, torch.tensor([index]))
                try:
                    outcomes.append([g is None for g in torch.autograd.grad([results[k].sum() for k in wanted], (x, y),
                                                                            allow_unused=True)])
                except RuntimeError as error:
                    outcomes.append(type(error))
            assert outcomes[0] == outcomes[1], (index, wanted)
