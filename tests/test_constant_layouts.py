"""Tensors without elements, and views with strides of their own of constants, inside kernels and concatenations; known
values that cannot be computed."""

import pytest
import torch
from frame_harness import same

import jit

CONCATENATIONS = {
    "of nothing": lambda x: torch.cat([x[:0].sigmoid(), x[:0]]),
    "of nothing, computed with": lambda x: torch.cat([x[:0].sigmoid(), x[:0].exp()]) * 2,
    "of new tensors": lambda x: torch.cat([x.new_ones(0), x.new_ones(0)]),
    "in columns": lambda x: torch.cat([x.reshape(-1, 1)[:, :0].sigmoid(), x.reshape(-1, 1)[:, :0]], 1).sum(1),
    "beside something": lambda x: torch.cat([x[:0].sigmoid(), x[:0], x * 2]),
    "of all that there is": lambda x: torch.cat([x.sigmoid(), x]),
    "summed": lambda x: torch.cat([x.sigmoid(), x[:0]]).sum(),
    "stacked": lambda x: torch.stack([x.sigmoid(), x]).sum(0),
    "flipped": lambda x: torch.hstack([x.sigmoid()[:0], x[:0] + 1]).flip(0),
}


@pytest.mark.parametrize("name", CONCATENATIONS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_concatenations(name, dynamic):
    program = CONCATENATIONS[name]
    compiled = jit.compile(program, fullgraph=True, dynamic=dynamic)
    for n in 3, 0, 4, 0, 5:
        for x in torch.randn(n), torch.randn(2 * n)[::2]:
            same(program(x), compiled(x), rtol=1e-6)
            ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
            if program(theirs).requires_grad:
                compiled(ours).sum().backward(), program(theirs).sum().backward()
                same(theirs.grad, ours.grad, rtol=1e-6)


STRIDED = {
    "ones": lambda x: torch.cat([torch.ones(4).as_strided((2,), (2,)), x]),
    "filled, computed with": lambda x: torch.cat([torch.full((4,), 2.0).as_strided((3,), (1,), 1) + 1, x * 2]),
    "zeros that overlap": lambda x: torch.cat([torch.zeros(4).as_strided((2, 2), (1, 1)).reshape(-1), x * 2]),
    "one number": lambda x: torch.cat([torch.tensor(2.0).as_strided((3,), (0,)), x * 2]),
    "a range": lambda x: torch.cat([torch.arange(7).as_strided((2, 2), (3, 1), 2).reshape(-1), x.long()]),
    "a range, part of it": lambda x: x[torch.arange(2, 9).as_strided((2, 3), (2, 1), 1)[1, ::2] % len(x)],
    "a view of a range": lambda x: torch.cat([torch.arange(12).view(3, 4).t().as_strided((2, 3), (5, 2), 1).reshape(-1),
                                              x.long()]),
    "a float range": lambda x: torch.cat([torch.arange(6.0).as_strided((2, 2), (3, 1), 1).flatten(), x]),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided_views_of_constants(name):
    program = STRIDED[name]
    compiled = jit.compile(program, fullgraph=True)
    for n in 3, 4, 5:
        x = torch.arange(2.0 * n)[::2]
        same(program(x), compiled(x))


KNOWN = {
    "cholesky": lambda x: x + 1 if torch.linalg.cholesky(-torch.eye(2))[0, 0] > 0 else x,
    "an index": lambda x: x[torch.tensor([1, 2])[torch.tensor(5)].item():],
    "gather": lambda x: x[: torch.ones(2).gather(0, torch.tensor([7])).long().item()],
    "division": lambda x: x[: (torch.tensor(5) // torch.tensor(0)).item()],
    "remainder": lambda x: x * 2 if bool((torch.tensor([1]) % torch.tensor([0])).any()) else x,
    "inverse": lambda x: x[: torch.linalg.inv(torch.zeros(2, 2)).sum().long().item()],
    "repetition": lambda x: x[: torch.repeat_interleave(torch.tensor([1, 2]), torch.tensor([1, -2])).sum().item()],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_values_that_cannot_be_computed(name):
    program = KNOWN[name]
    compiled = jit.compile(program)
    for n in 2, 3, 4:
        found = []
        for fn in program, compiled:
            with pytest.raises(Exception) as raised:
                fn(torch.ones(n))
            found.append((raised.type, str(raised.value)))
        assert found[0] == found[1]
