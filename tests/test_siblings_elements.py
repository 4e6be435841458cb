"""Modules that are put into sets and dicts of a call's own, as ``nn.Module.modules`` does, are told by their siblings;
where it matters which object it is, they are followed."""

import jit
import pytest
import torch
from test_siblings import N, Model, compare, told  # noqa: F401
from torch import nn


class Layer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.act = nn.ReLU()


class Counting(Layer):
    """Visits everything that it is made of."""

    def forward(self, x):
        if any(len(m._forward_hooks) for m in self.modules()):
            return x
        names = {m: len(list(m.parameters())) for m in (self.a, self.b)}
        return self.act(self.b(self.a(x))) * names[self.a] + (self.b in names) + len({*self.parameters()})


class Shared(Layer):
    """Whether two of its parts are one."""

    def forward(self, x):
        seen = set()
        for part in (self.a, self.b):
            x = part(x) * (2.0 if part in seen else 1.0)
            seen.add(part)
        return x


class Ordered(Layer):
    """In the order of a set, which depends on where the objects are in memory."""

    def forward(self, x):
        for part in {self.a, self.b}:
            x = torch.tanh(part(x)) * (1.0 + (part is self.a))
        return x


@pytest.mark.parametrize("grad", [True, False])
def test_visited(told, grad):  # noqa: F811
    model = Model([Counting() for _ in range(N)])
    compare(model, torch.randn(3, 8), grad=grad)
    assert told.count("Counting") == N - 2


def test_one_of_which_two_parts_are_one(told):  # noqa: F811
    layers = [Shared() for _ in range(N)]
    layers[3].b = layers[3].a
    compare(Model(layers), torch.randn(3, 8))
    assert 0 < told.count("Shared") < N - 1
    compiled = jit.compile(model := Model([Shared() for _ in range(N)]))
    x = torch.randn(2, 8)
    torch.testing.assert_close(compiled(x), model(x))
    model.blocks[2].b = model.blocks[2].a
    torch.testing.assert_close(compiled(x), model(x))


def test_the_order_of_a_set(told):  # noqa: F811
    model = Model([Ordered() for _ in range(8)])
    compare(model, torch.randn(3, 8))
    assert "Ordered" not in told


SEEN = set()


class Noted(Layer):
    """Puts itself into a set that there is for all."""

    def forward(self, x):
        first = self not in SEEN
        SEEN.add(self)
        return self.a(x) * (2.0 if first else 1.0)


def test_a_set_of_all():
    layers = [Noted() for _ in range(N)]
    model = Model([*layers, *layers[:2]])
    compiled, x = jit.compile(model), torch.randn(3, 8)
    for _ in range(2):
        SEEN.clear()
        expected = [model(x), model(x)]
        SEEN.clear()
        torch.testing.assert_close([compiled(x), compiled(x)], expected)
        assert SEEN == set(layers)


class Within(Layer):
    def forward(self, x, before):
        x = self.a(x) * (2.0 if self in before or self.b in before else 1.0)
        return x


def test_a_set_that_is_given(told):  # noqa: F811
    """One that was made while capturing, but not in the call."""
    layers = nn.ModuleList(Within() for _ in range(N))

    def program(x):
        before = {layers[2], layers[3].b}
        for layer in layers:
            x = layer(x, before)
        return x

    x = torch.randn(3, 8)
    torch.testing.assert_close(jit.compile(program)(x), program(x))

    def with_dict(x):
        before = {layers[2]: 1, layers[3].b: 2}
        for layer in layers:
            x = layer(x, before)
        return x

    torch.testing.assert_close(jit.compile(with_dict)(x), with_dict(x))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("make", [
    lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
    lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True),
], ids=["post", "pre"])
def test_layers_of_pytorch(told, train, make):  # noqa: F811
    model = Model([make() for _ in range(N)]).train(train)
    compare(model, torch.randn(2, 5, 16), grad=train, same_facts=False)
    assert told.count("TransformerEncoderLayer") == N - 2


class Equal(nn.Module):
    """Equal to others of the same number."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Equal) and self.number == other.number

    def __hash__(self):
        return hash(self.number)


def test_modules_that_say_what_they_are_equal_to():
    a, b, c = Equal(1), Equal(1), Equal(2)

    def program(x):
        found = {a: 2.0, c: 3.0}
        return x * found[b] + (b in {c}) + len({a, b, c}) * x

    x = torch.randn(3)
    compiled = jit.compile(program)
    torch.testing.assert_close(compiled(x), program(x))
    b.number = 2
    torch.testing.assert_close(compiled(x), program(x))
