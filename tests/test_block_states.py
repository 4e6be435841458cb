"""Which blocks of a mask are visited: none that has a score to keep is left out, and none that has one to mask is taken
whole."""

import pytest
import torch

import jit
from jit.graph.build import Builder
from jit.graph.interpret import compile_python
from jit.graph.ir import Graph, Output
from jit.graph.passes.block_states import block_states

SIDE = 32
LENGTH = 256
DOCUMENTS = torch.arange(LENGTH) // 21
SMALL = (torch.arange(LENGTH) // 50).to(torch.int8)
WINDOWS = torch.tensor([10, 50])
LARGE = torch.full((LENGTH,), torch.iinfo(torch.int64).max) - torch.arange(LENGTH)
RANDOM = torch.randint(0, 5, (LENGTH,), generator=torch.Generator().manual_seed(0))
FLAGS = RANDOM > 0

MASKS = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 40),
    "both sides": lambda b, h, q, k: (q - k).abs() <= 20,
    "outside": lambda b, h, q, k: ~((q - k).abs() <= 20),
    "neither": lambda b, h, q, k: ~(q >= k) & ~(k > -q + 40),
    "prefix": lambda b, h, q, k: (k < 30) | (q > k),
    "documents": lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k],
    "other documents": lambda b, h, q, k: DOCUMENTS[q] != DOCUMENTS[k],
    "small integers": lambda b, h, q, k: SMALL[q] <= SMALL[k],
    "large integers": lambda b, h, q, k: LARGE[q] <= LARGE[k],
    "large differences": lambda b, h, q, k: LARGE[q] - LARGE[k] - 2 ** 62 * 2 < 0,
    "random": lambda b, h, q, k: (RANDOM[q] == RANDOM[k]) & (q + k < 100),
    "flags": lambda b, h, q, k: FLAGS[q] & (k <= q),
    "of each head": lambda b, h, q, k: (q - k < WINDOWS[h]) & (q >= k),
    "of each batch": lambda b, h, q, k: (k < 20 * b + 10) | (k == q),
    "coarse": lambda b, h, q, k: q // 7 >= k // 3,
    "bounded": lambda b, h, q, k: torch.minimum(q, k) > torch.maximum(k - 8, q - 60),
    "keys alone": lambda b, h, q, k: k < 70,
    "all": lambda b, h, q, k: b >= 0,
    "floats": lambda b, h, q, k: q * 0.5 >= k,
    "strided": lambda b, h, q, k: (q - k) % 4 == 0,
    "equal flags": lambda b, h, q, k: FLAGS[q] == FLAGS[k],
    "flags of each head": lambda b, h, q, k: (FLAGS[q] != FLAGS[h]) & (q >= k),
    "unequal": lambda b, h, q, k: (q >= k) ^ (k < 5),
}


def mask(f, shape):
    for dim in (3, 2, 1, 0):
        f = torch.vmap(f, in_dims=tuple(0 if d == dim else None for d in range(4)))
    return f(*(torch.arange(n) for n in shape))


def states(f, shape):
    """By blocks' bounds; whether elements were counted."""
    found = []

    def backend(graph, examples):
        made = Builder(graph.env)
        made.nodes, made.next_id = list(graph.nodes), graph.next_id
        state = block_states(made, graph.outputs[0].node, SIDE)
        found.append(any(n.op == "sum" for n in made.nodes))
        found.append(compile_python(Graph(graph.inputs, made.nodes, [Output(state)], graph.env))(*examples)[0])
        return lambda *tensors: [torch.empty([o.node.shape[0], *o.node.shape[1:]], dtype=o.node.dtype)
                                 for o in graph.outputs]

    jit.compile(lambda: mask(f, shape), backend=backend, fullgraph=True)()
    return found


def counted(kept, shape):
    kept = kept.expand(shape)
    *lead, m, n = shape
    kept = torch.nn.functional.pad(kept, (0, -n % SIDE, 0, -m % SIDE))
    count = kept.reshape(*lead, -(-m // SIDE), SIDE, -(-n // SIDE), SIDE).sum((-3, -1))
    return (count > 0).int() + (count == SIDE * SIDE).int()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("m, n", [(128, 128), (100, 140), (1, 200), (70, 16)])
def test_no_block_is_left_out_or_taken_whole_by_mistake(name, m, n):
    shape = (2, 2, m, n)
    by_elements, got = states(MASKS[name], shape)
    expected = counted(mask(MASKS[name], shape), shape)
    got = got.expand(expected.shape)
    assert got.dtype is torch.int32
    assert not ((got == 0) & (expected != 0)).any() and not ((got == 2) & (expected != 2)).any()
    if by_elements:
        assert torch.equal(got, expected)


EXACT = ("causal", "window", "both sides", "prefix", "documents", "of each head", "keys alone", "flags")


@pytest.mark.parametrize("name", EXACT)
def test_common_masks_are_not_computed_and_as_good_as_counted(name):
    by_elements, got = states(MASKS[name], (1, 2, 100, 140))
    expected = counted(mask(MASKS[name], (1, 2, 100, 140)), (1, 2, 100, 140))
    assert not by_elements
    # A block without a score to keep is visited only where two comparisons hold in different places of it.
    assert (got != expected).float().mean() <= 0.1
    assert torch.equal(got == 2, expected == 2)
