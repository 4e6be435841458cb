"""Switches refuse what is no bool or dtype, as in eager; transformed functions have the names of their functions."""

import pytest
import torch
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, vmap

import jit

SWITCHES = {
    "grad mode, of a number": lambda: torch.set_grad_enabled(1), "by name": lambda: torch.set_grad_enabled(mode=0),
    "grad mode, of text": lambda: torch.set_grad_enabled("a"), "grad mode": lambda: torch.set_grad_enabled(False),
    "autocast, of a number": lambda: torch.autocast("cpu", enabled=1),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16), "off": lambda: torch.autocast("cpu", enabled=False)}


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_refuse_other_types(name):
    def fn(x):
        try:
            with SWITCHES[name]():
                return torch.is_grad_enabled(), (x @ x).dtype
        except TypeError as error:
            return str(error), torch.is_grad_enabled()

    x, compiled = torch.ones(2, 2), jit.compile(fn)
    for _ in range(2):
        assert compiled(x) == fn(x) and torch.is_grad_enabled()


def doubled(x):
    """Twice as much."""
    return x.sum() * 2


@pytest.mark.parametrize("transform", [grad, grad_and_value, vmap, jacrev, jacfwd, hessian])
def test_transformed_functions_have_names(transform):
    def fn(x):
        made = transform(doubled)
        return x + 1, made.__name__, made.__doc__, made.__wrapped__ is doubled

    assert jit.compile(fn, fullgraph=True)(torch.ones(2))[1:] == fn(torch.ones(2))[1:]


def test_refusals_name_the_function():
    def fn(x):
        try:
            vmap(grad(lambda r: r.sum()))(x.sum())
        except ValueError as error:
            return str(error)

    assert "vmap(<lambda>" in fn(torch.ones(2)) and jit.compile(fn)(torch.ones(2)) == fn(torch.ones(2))
