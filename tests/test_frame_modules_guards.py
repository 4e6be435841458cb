"""What a compiled module is compiled again for: a change of anything that it used, and of nothing else.

``USED`` and ``UNUSED`` are tables of changes made after the first call. After each the result has to be that of eager;
after one of ``UNUSED`` nothing may have been captured again.
"""

import collections
import copy

import pytest
import torch
from frame_harness import same
from torch import nn

import jit
from jit.backends import BACKENDS
from jit.frame import dispatch
from jit.frame.modules import compile_module


class Config(dict):
    """A dict whose entries are attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Shouting(dict):
    def __getitem__(self, key):
        return dict.__getitem__(self, key.lower())


class Base(nn.Module):
    gain, idle = 2.0, 3.0

    def shifted(self, x):
        return x + 1

    def unused(self, x):
        return x - 1


class Model(Base):
    table = {"used": 1, "other": 2}

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.blocks = nn.ModuleDict({"main": nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "side": nn.Linear(4, 4)})
        self.register_buffer("offset", torch.ones(4))
        self.register_buffer("spare", torch.ones(4))
        self.config, self.names = Config(width=2, depth=3), Shouting(key=1, other=2)
        self.ordered = collections.OrderedDict(x=1, y=2)
        self.options, self.note, self.limits = {"scale": 2, "bias": 1}, "n", [1, 2, 3]
        self.scale, self.hint, self.flag, self.nothing = 2.0, 5, True, None

    def forward(self, x):
        x = self.blocks["main"](self.norm(self.a(x)))
        x = self.shifted(x) * self.gain * self.scale + self.offset
        if self.flag and self.nothing is None:
            x = x * self.config.width + self.names["KEY"] + self.options["scale"] + self.ordered["x"] + self.table[
                "used"]
        return x * helper(x) + getattr(self.a.weight, "bonus", 0)


def helper(x):
    return 2 + LEVEL


LEVEL, IDLE = 1, 1
USED, UNUSED = {}, {}


for _name, _value in (("scale", 3.0), ("flag", False), ("nothing", 1), ("gain", 9.0), ("offset", torch.ones(1)),
                      ("config", Config(width=7)), ("shifted", torch.sin), ("forward", torch.cos),
                      ("a", nn.Linear(4, 4, bias=False))):
    USED[f"attribute {_name}"] = lambda m, n=_name, v=_value: setattr(m, n, v)
for _name, _value in ((("hint", 6), ("note", "m"), ("spare", None), ("b", nn.ReLU()), ("brand_new", 1),
                       ("unused", torch.sin), ("idle", 1), ("limits", []), ("new_module", nn.ReLU()))):
    UNUSED[f"attribute {_name}"] = lambda m, n=_name, v=_value: setattr(m, n, v)

USED.update({
    "entry of a dict": lambda m: m.options.update(scale=5),
    "entry of a dict with attributes": lambda m: m.config.update(width=5),
    "entry of a dict with its own subscript": lambda m: dict.__setitem__(m.names, "key", 5),
    "entry of an ordered dict": lambda m: m.ordered.update(x=5),
    "entry of a dict of the class": lambda m: m.table.update(used=5),
    "class attribute": lambda m: setattr(Base, "gain", 5.0),
    "class attribute nearer": lambda m: setattr(Model, "gain", 6.0),
    "method": lambda m: setattr(Base, "shifted", lambda self, x: x * 7),
    "forward of the class": lambda m: setattr(Model, "forward", Base.shifted),
    "method of a module inside": lambda m: setattr(m.blocks["main"][1], "forward", torch.sin),
    "module inside": lambda m: m.blocks["main"].__setitem__(1, nn.Tanh()),
    "module added": lambda m: m.blocks["main"].append(nn.Tanh()),
    "module taken away": lambda m: m.blocks["main"].pop(0),
    "hook": lambda m: m.a.register_forward_hook(lambda mod, args, out: out * 2),
    "hook before": lambda m: m.blocks["main"].register_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
    "bias gone": lambda m: setattr(m.a, "bias", None),
    "training": lambda m: m.eval(),
    "momentum": lambda m: setattr(m.norm, "momentum", 0.5),
    "eps": lambda m: setattr(m.norm, "eps", 0.5),
    "an attribute of a parameter": lambda m: setattr(m.a.weight, "bonus", 4),
    "a type": lambda m: m.offset.data.__class__ and m.register_buffer("offset", torch.ones(4, dtype=torch.float64)),
    "no gradient": lambda m: m.a.requires_grad_(False),
    "global": lambda m: globals().update(LEVEL=4),
    "function": lambda m: globals().update(helper=lambda x: 11),
    "code of a function": lambda m: setattr(helper, "__code__", (lambda x: 12).__code__),
    "parametrization": lambda m: nn.utils.parametrize.register_parametrization(m.a, "weight", nn.Tanh()),
    "another parameter": lambda m: setattr(m.a, "weight", nn.Parameter(torch.full((4, 4), 0.5))),
    "another buffer": lambda m: m.register_buffer("offset", torch.full((4,), 3.0)),
    "weight norm": lambda m: nn.utils.weight_norm(m.blocks["main"][0]),
})
UNUSED.update({
    "entry of a dict": lambda m: m.options.update(bias=5),
    "new entry of a dict": lambda m: m.options.update(more=5),
    "entry of a dict with attributes": lambda m: m.config.update(depth=5),
    "new entry of a dict with attributes": lambda m: m.config.update(more=5),
    "entry of a dict with its own subscript": lambda m: dict.__setitem__(m.names, "other", 5),
    "entry of an ordered dict": lambda m: m.ordered.update(y=5),
    "order of an ordered dict": lambda m: m.ordered.move_to_end("x"),
    "entry of a dict of the class": lambda m: m.table.update(other=5),
    "class attribute": lambda m: setattr(Base, "idle", 5.0),
    "new class attribute": lambda m: setattr(Model, "idle_too", 5.0),
    "method": lambda m: setattr(Base, "unused", lambda self, x: x * 7),
    "method overridden": lambda m: setattr(Model, "unused", lambda self, x: x * 7),
    "module inside": lambda m: m.blocks.__setitem__("side", nn.Tanh()),
    "module added": lambda m: m.blocks.update({"more": nn.Tanh()}),
    "hook of another module": lambda m: m.b.register_forward_hook(lambda mod, args, out: out * 2),
    "training of another module": lambda m: m.b.eval(),
    "training of a module that does not ask": lambda m: m.a.eval(),
    "no gradient of another module": lambda m: m.b.requires_grad_(False),
    "type of another module": lambda m: m.b.double(),
    "element of a list": lambda m: m.limits.append(3),
    "global": lambda m: globals().update(IDLE=4),
    "an attribute of a parameter": lambda m: setattr(m.a.weight, "other", 4),
    "hook on a gradient": lambda m: m.a.weight.register_hook(lambda g: g),
    "values of a parameter": lambda m: m.a.weight.data.mul_(2),
    "data of a parameter": lambda m: setattr(m.a.weight, "data", torch.full((4, 4), 0.25)),
    "values of a buffer": lambda m: m.offset.mul_(2),
    "a step of an optimizer": lambda m: optimize(m),
    "loaded state": lambda m: m.load_state_dict({k: v * 2 if v.is_floating_point() else v
                                                 for k, v in m.state_dict().items()}),
    "a state dict": lambda m: m.state_dict(),
})


def optimize(module):
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(module.parameters(), 0.1).step()


@pytest.fixture(autouse=True)
def unchanged():
    """Puts the classes and globals of this file back."""
    classes = {c: dict(vars(c)) for c in (Base, Model)}
    code, level, idle, fn = helper.__code__, LEVEL, IDLE, helper
    yield
    for cls, names in classes.items():
        for name in [n for n in vars(cls) if n not in names]:
            delattr(cls, name)
        for name, value in names.items():
            if not name.startswith("__"):
                setattr(cls, name, value)
    Model.table.update(used=1, other=2)
    globals().update(LEVEL=level, IDLE=idle, helper=fn)
    helper.__code__ = code


def results(module, x):
    module.zero_grad()
    y = module(x)
    y.sum().backward()
    return [y, *(p.grad for p in module.parameters())]


def changed(fn):
    """The results of eager and compiled after a change, and how many captures it took."""
    torch.manual_seed(0)
    model, captures = Model(), []
    twin = copy.deepcopy(model)
    compiled = compile_module(model, dispatch.Settings(BACKENDS["jit"], fullgraph=True, on_capture=captures.append))
    x = torch.randn(3, 4, requires_grad=True)
    with jit.config.patch(strict=True):
        same(results(twin, x), results(compiled, x), rtol=1e-4)
        results(compiled, x)
        results(twin, x)
        before = len(captures)
        assert before == 1
        torch.manual_seed(1)
        fn(model)
        torch.manual_seed(1)
        fn(twin)
        for _ in range(2):
            same(results(twin, x), results(compiled, x), rtol=1e-3)
    return len(captures) - before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", USED)
def test_a_change_of_what_is_used(name):
    assert changed(USED[name]) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNUSED)
def test_a_change_of_what_is_not_used(name):
    assert changed(UNUSED[name]) == 0
