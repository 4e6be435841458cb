"""In-place random fills. They stay library calls that draw from PyTorch's generators in program order."""

from __future__ import annotations

from jit.graph import aten
from jit.graph.handles import TensorHandle
from jit.graph.ir import TensorType
from jit.graph.layout import preserved_strides
from jit.graph.registry import extern, op

# In-place method -> the functional aten op that fills a tensor like its first argument.
FILLS = {
    "normal_": "normal_functional", "uniform_": "uniform", "exponential_": "exponential", "random_": "random", "geometric_": "geometric",
    "cauchy_": "cauchy", "log_normal_": "log_normal",
}  # fmt: skip


def _fill(name, functional):
    def run(t, self, *args, **kwargs):
        value = aten.call(t.builder, functional, [self.node, *args], kwargs)
        t.write(self, value)
        return self

    op(name, raw=True)(run)


for _name, _functional in FILLS.items():
    _fill(_name, _functional)


@op("bernoulli_", raw=True)
def bernoulli_(t, self, p=0.5, *, generator=None):
    probability = p.node if isinstance(p, TensorHandle) else float(p)
    value = aten.call(t.builder, "bernoulli", [self.node, probability], {"generator": generator})
    t.write(self, value)
    return self


@extern(*FILLS.values(), "bernoulli", "rand_like", "randn_like", "randint_like", "dropout")
def _like_self(self, *args):
    """Random ops whose result is like their first argument, unless dtype, device or memory format are given."""
    if any(not isinstance(a, (int, float, TensorType)) and a is not None for a in args):
        return NotImplemented
    return self.replace(strides=preserved_strides(self))
