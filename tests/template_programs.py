"""Programs with products that are followed by something, for the tests of templates, and a template that is one class.

``PROGRAMS[name]`` is a ``Program``: a function, the shapes of its tensors, and how many products it has that may be
computed with what follows them.
"""

import dataclasses

import torch
import torch.nn.functional as F

from jit.codegen import template
from jit.codegen.templates.products import Product

PROGRAMS = {}


@dataclasses.dataclass
class Program:
    fn: object
    tensors: object
    taken: int
    dynamic: bool = False

    def __call__(self, dtype=torch.float32, device="cpu"):
        g = torch.Generator().manual_seed(5)
        made = self.tensors(lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64).to(device, dtype))
        return list(made)

    def taken_in_triton(self, dtype):
        """How many products are taken over there: of float32 none whose sums may be long."""
        return 0 if self.dynamic and dtype is torch.float32 else self.taken


def program(tensors, taken=1, dynamic=False):
    def add(fn):
        PROGRAMS[fn.__name__] = Program(fn, tensors, taken, dynamic)
        return fn

    return add


@program(lambda t: (t(2, 9, 24), t(40, 24), t(40), t(2, 9, 40)))
def bias_gelu_residual(x, w, b, r):
    return F.gelu(F.linear(x, w, b)) + r


@program(lambda t: (t(19, 21), t(21, 50)))
def odd_sizes(x, w):
    return torch.tanh(x @ w) * 2


@program(lambda t: (t(21, 19), t(50, 21)))
def both_transposed(x, w):
    return (x.t() @ w.t()).relu()


@program(lambda t: (t(40, 70), t(64, 60)))
def sliced(x, w):
    return (x[3:37:2, 5:37] @ w[::2, 7:48]).sigmoid()


@program(lambda t: (t(20, 16), t(16, 34)))
def also_a_result(x, w):
    y = x @ w
    return y.relu(), y


@program(lambda t: (t(20, 16), t(16, 34)), taken=0)
def read_by_a_reduction_too(x, w):
    y = x @ w
    return y.exp(), y.sum(0)


@program(lambda t: (t(20, 16), t(16, 34), t(34, 9)))
def also_multiplied_later(x, w, v):
    y = x @ w
    z = y.relu()
    return z, y @ v


@program(lambda t: (t(20, 16), t(16, 36)), taken=0)
def first_part_apart(x, w):
    y = x @ w
    return y[:, :12] * 0.5, y


@program(lambda t: (t(20, 16), t(16, 36)))
def first_part_alone(x, w):
    return (x @ w)[:, :12].relu()


@program(lambda t: (t(20, 16), t(16, 36)), taken=0)
def first_part_often(x, w):
    y = x @ w
    return y[:, None, :12] * torch.arange(3.0, device=x.device)[:, None], y


@program(lambda t: (t(20, 16), t(16, 36)))
def turned_whole(x, w):
    y = (x @ w).view(4, 5, 3, 12)
    return y.permute(2, 0, 3, 1).relu(), y


@program(lambda t: (t(18, 16), t(16, 16), t(16, 16)), taken=2)
def one_after_the_other(x, w, v):
    return (((x @ w).relu() @ v) + x).relu()


@program(lambda t: (t(18, 16), t(16, 20), t(16, 20)))
def two_in_one(x, w, v):
    return F.silu(x @ w) * (x @ v)


@program(lambda t: (t(20, 20), t(20, 20)))
def operand_changed(x, w):
    x.add_(torch.tanh(x @ w))
    return x * 2


@program(lambda t: (t(20, 24), t(24, 32), t(20, 32)))
def other_input_changed(x, w, y):
    y.mul_(0.5).add_(x @ w)


@program(lambda t: (t(24, 16), t(16, 16)))
def heads(x, w):
    return (x @ w).relu().view(4, 6, 2, 8).transpose(1, 2).contiguous()


@program(lambda t: (t(20, 24), t(24, 32), t(20, 1), t(1, 32)))
def broadcast(x, w, rows, columns):
    return (x @ w) * rows + columns


@program(lambda t: (t(20, 24), t(24, 32)))
def cast(x, w):
    return (x @ w).half() + 1, (x @ w) > 0


@program(lambda t: (t(20, 24), t(24, 32), torch.arange(20) % 7, t(7, 32)))
def gathered(x, w, at, table):
    return (x @ w) + table[at]


@program(lambda t: (t(20, 24), t(24, 32), t(20, 32)))
def added_to(x, w, c):
    return torch.addmm(c, x, w).relu()


@program(lambda t: (t(20, 24), t(24, 32), t(32)), dynamic=True)
def symbolic(x, w, b):
    return torch.addmm(b, x, w).relu() + x.shape[0]


@program(lambda t: (t(12, 24),), dynamic=True)
def symbolic_with_itself(x):
    return (x @ x.t()).relu()


@program(lambda t: (t(20, 24), t(24, 20)), taken=0)
def read_at_two_places(x, w):
    y = x @ w
    return torch.tanh(y) + y.t()


@program(lambda t: (t(20, 24), t(24, 20)), taken=0)
def read_in_parts(x, w):
    y = F.pad(x @ w, (1, 0))
    return y * 2


@program(lambda t: (t(20, 24), t(24, 32)), taken=0)
def nothing_behind(x, w):
    return x @ w


@program(lambda t: (t(20, 24), t(24, 32)), taken=0)
def read_by_a_row(x, w):
    return (x @ w).softmax(-1)


@program(lambda t: (t(20, 24), t(24, 32), t(20, 3)), taken=0)
def joined(x, w, y):
    return torch.cat([(x @ w).relu(), y], 1)


@program(lambda t: (t(20, 24), t(24, 32), t(32, 8)), taken=0)
def another_product_first(x, w, v):
    y = x @ w
    return y @ v, y.relu()


@program(lambda t: (t(0, 24), t(24, 32)), taken=0)
def nothing_at_all(x, w):
    return (x @ w).relu()


def plain():
    """Make a template known that computes products by the loops of any kernel: one class, with a name."""

    @template.template
    class Plain(Product):
        name = "plain"

    return Plain.name


def forget(name):
    del template.TEMPLATES[name]
