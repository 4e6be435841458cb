"""``nn.Module``: whatever is changed about a module between calls, the compiled one goes on as the module itself does.

A program makes a module, compiles it, and calls it again and again with changes in between. It is run twice, in eager
and compiled, and everything that it returns is compared.
"""

import collections
import copy
import io
import pickle
import types

import pytest
import torch
import torch.nn.functional as F
from frame_harness import same
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import swa_utils

import jit

PROGRAMS = {}


def program(fn):
    """Register ``fn(compiled)``, which calls ``compiled`` on what is to be compiled and returns all that counts."""
    PROGRAMS[fn.__name__] = fn
    return fn


def randn(*shape):
    return torch.randn(*shape)


def step(module, x):
    """A forward and a backward: the result and the gradients of the parameters."""
    module.zero_grad()
    y = module(x)
    (y * y).sum().backward()
    return [y.detach(), *(p.grad for p in module.parameters())]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = 2.0

    def forward(self, x):
        return F.relu(self.norm(self.first(x))) * self.scale


class Times(nn.Module):
    factor = 2

    def forward(self, x):
        return self.inner(x) * self.factor

    def inner(self, x):
        return x + 1


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


# -- containers


@program
def a_sequential_is_changed(compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    fast, x = compiled(module), randn(2, 4)
    out = [fast(x)]
    changes = [lambda: module.__setitem__(1, nn.Tanh()), lambda: module.append(nn.Sigmoid()),
               lambda: module.__delitem__(0),
               lambda: module.insert(0, nn.Linear(4, 4)), lambda: module.extend([nn.GELU()]), lambda: module.pop(-1)]
    for change in changes:
        change()
        out += [fast(x), len(fast)]
    return out


@program
def lists_and_dicts_of_modules(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            self.heads = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})

        def forward(self, x, which="a"):
            for i, layer in enumerate(self.layers[1:]):
                x = layer(x) + i
            for layer in reversed(self.layers):
                x = layer(x)
            x = self.heads[which](x)
            for name, head in self.heads.items():
                x = head(x) + len(name)
            return x + ("b" in self.heads) + len(self.layers) + len(self.heads)

    model = Model()
    fast, x = compiled(model), randn(2, 4)
    out = [fast(x), fast(x, "b")]
    model.layers.append(nn.Linear(4, 4))
    out.append(fast(x))
    model.heads["c"] = nn.Sigmoid()
    out += [fast(x), fast(x, "c")]
    model.heads.pop("b")
    out.append(fast(x))
    model.layers[0] = nn.Identity()
    return [*out, fast(x)]


@program
def lists_and_dicts_of_parameters(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.ParameterList([randn(4) for _ in range(3)])
            self.q = nn.ParameterDict({"a": randn(4), "b": randn(4)})

        def forward(self, x):
            for p in self.p:
                x = x * p
            for p in self.p[1:]:
                x = x + p
            for key, value in self.q.items():
                x = x + value * self.q[key]
            return x * len(self.p) + len(self.q)

    model = Model()
    fast, x = compiled(model), randn(2, 4)
    out = step(fast, x)
    model.p.append(nn.Parameter(randn(4)))
    out += step(fast, x)
    model.q["z"] = nn.Parameter(randn(4))
    model.p[0] = nn.Parameter(randn(4))
    out += step(fast, x)
    del model.q["a"]
    return out + step(fast, x)


# -- hooks


@program
def hooks_on_the_forward(compiled):
    module, log = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []
    fast, x = compiled(module), randn(2, 4)
    out = [fast(x)]
    double = module[0].register_forward_hook(lambda m, i, o: (log.append("double"), o * 2)[1])
    out += [fast(x), fast(x)]
    before = module.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    named = module.register_forward_pre_hook(lambda m, args, kwargs: (args, kwargs), with_kwargs=True)
    after = module.register_forward_hook(lambda m, args, kwargs, o: o + 1, with_kwargs=True)
    out.append(fast(x))
    for handle in (double, before, named, after):
        handle.remove()
        out.append(fast(x))
    module.register_forward_hook(lambda m, args, o: o - 1, always_call=True)
    module.register_forward_hook(lambda m, args, o: o * 3, prepend=True)
    return [*out, fast(x), log]


@program
def a_hook_that_is_always_called(compiled):
    class Model(nn.Module):
        def forward(self, x, bad=False):
            if bad:
                raise ValueError("bad")
            return x * 2

    model, log, x = Model(), [], randn(2)
    fast = compiled(model)
    model.register_forward_hook(lambda m, args, o: log.append(o is None), always_call=True)
    out = [fast(x)]
    with pytest.raises(ValueError):
        fast(x, bad=True)
    return [*out, fast(x), log]


@program
def hooks_of_all_modules(compiled):
    module, log = nn.Linear(4, 4), []
    fast, x = compiled(module), randn(2, 4)
    out = [fast(x)]
    for register, hook in ((nn.modules.module.register_module_forward_hook, lambda m, i, o: o * 3),
                           (nn.modules.module.register_module_forward_pre_hook, lambda m, i: (i[0] * 5,)),
                           (nn.modules.module.register_module_full_backward_hook,
                            lambda m, gi, go: log.append(go[0].clone()))):
        handle = register(hook)
        try:
            out += step(fast, x)
        finally:
            handle.remove()
        out += step(fast, x)
    return [*out, log]


@program
def hooks_on_gradients(compiled):
    module, log = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), []
    fast, x = compiled(module), randn(2, 4).requires_grad_()
    out = step(fast, x)
    hooks = [
        lambda: module[0].register_full_backward_hook(lambda m, gi, go: (log.append(go[0].clone()), (gi[0] * 2,))[1]),
             lambda: module[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
             lambda: module.register_full_backward_hook(lambda m, gi, go: log.append(gi[0].clone())),
             lambda: module[0].weight.register_hook(lambda g: g * 10),
             lambda: module[0].weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))]
    for register in hooks:
        handle = register()
        out += [*step(fast, x), x.grad.clone()]
        handle.remove()
        out += [*step(fast, x), x.grad.clone()]
    return [*out, log]


@program
def the_old_kind_of_backward_hook(compiled):
    module, log = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []
    fast, x = compiled(module), randn(2, 4)
    handle = module[1].register_backward_hook(lambda m, gi, go: log.append((gi[0].clone(), go[0].clone())))
    out = step(fast, x)
    handle.remove()
    return [*out, *step(fast, x), log]


@program
def hooks_of_state_dicts(compiled):
    net, log = Net(), []
    fast, x = compiled(net), randn(3, 4)
    out = step(fast, x)
    net.register_state_dict_pre_hook(lambda *args: log.append("before"))
    net.register_state_dict_post_hook(lambda *args: log.append("after"))
    net.register_load_state_dict_pre_hook(lambda *args: log.append("before loading"))
    net.register_load_state_dict_post_hook(lambda *args: log.append("after loading"))
    fast.load_state_dict({k: v * 2 for k, v in fast.state_dict().items()})
    out += step(fast, x)
    net.load_state_dict({k: v.clone() for k, v in fast.state_dict().items()}, assign=True)
    return [*out, *step(fast, x), log, list(fast.state_dict())]


# -- attributes


@program
def buffers_and_attributes_that_change(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.last, self.cache = 0, None, None
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.calls += 1
            self.count += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            if self.cache is None:
                self.cache = x * 2
            if self.calls == 3:
                self.register_buffer("late", torch.ones(4))
            if self.calls > 3:
                x = x + self.late
            self.last = x
            return x * self.calls + self.count + self.mean + self.cache

    model, out = Model(), []
    fast = compiled(model)
    for _ in range(5):
        out += [fast(randn(2, 4)), model.calls, model.count.clone(), model.mean.clone(), model.last.clone(),
                list(model._buffers)]
    return [*out, dict(model.state_dict())]


@program
def what_was_none_is_there_and_back(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("bias", None)
            self.register_parameter("gain", None)

        def forward(self, x):
            y = self.inner(x) if self.bias is None else self.inner(x) + self.bias
            return y if self.gain is None else y * self.gain

    model = Model()
    fast, x = compiled(model), randn(2, 4)
    out = [fast(x)]
    for name, value in ((("bias", torch.ones(4)), ("gain", nn.Parameter(randn(4))), ("bias", None),
                         ("bias", randn(4).double()), ("inner", nn.ReLU()))):
        setattr(model, name, value)
        out.append(fast(x))
    del model.inner
    model.inner = nn.Tanh()
    return [*out, fast(x)]


@program
def training_and_evaluating(compiled):
    module, out = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.0)), []
    fast = compiled(module)
    changes = [module.train, module.eval, module.train, module[1].eval, lambda: setattr(module[1], "momentum", 0.5),
               module[1].reset_running_stats]
    for change in changes:
        change()
        out += step(fast, randn(2, 3, 6, 6))
    return [*out, dict(module.state_dict())]


@program
def parameters_are_replaced(compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast, x = compiled(module), randn(2, 4)
    out = step(fast, x)
    module[0].weight = nn.Parameter(randn(4, 4))
    out += step(fast, x)
    module[0].weight.data = randn(4, 4)
    out += step(fast, x)
    with torch.no_grad():
        module[0].weight.copy_(randn(4, 4))
    out += step(fast, x)
    module[0].weight, module[0].bias = nn.Parameter(randn(6, 4)), None
    out += step(fast, x)
    module[0].weight.data = randn(4, 5).t()
    return out + step(fast, x)


@program
def the_type_of_a_module_is_changed(compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast, x = compiled(module), randn(2, 4)
    out = step(fast, x)
    module.double()
    out += step(fast, x.double())
    fast.float()
    out += step(fast, x)
    module.half()
    with torch.no_grad():
        return [*out, fast(x.half())]


@program
def gradients_are_switched_off_and_on(compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    fast, x = compiled(module), randn(2, 4)
    out = step(fast, x)
    module[0].requires_grad_(False)
    out += step(fast, x)
    module.requires_grad_(False)
    out.append(fast(x))
    module.requires_grad_(True)
    module[2].bias.requires_grad = False
    return out + step(fast, x)


@program
def tied_weights(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 8, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, i):
            return self.head(self.embed(i))

    model, i = Model(), torch.randint(0, 8, (3,))
    fast = compiled(model)
    out = step(fast, i)
    model.head.weight = nn.Parameter(randn(8, 4))
    out += step(fast, i)
    model.embed.weight = model.head.weight
    return out + step(fast, i)


@program
def forward_is_overridden_on_the_instance(compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast, x = compiled(module), randn(2, 4)
    out = [fast(x)]
    old = module[0].forward
    module[0].forward = lambda x: old(x) * 2
    out.append(fast(x))
    del module[0].forward
    module.forward = types.MethodType(lambda self, x: self[0](x) - 1, module)
    out.append(fast(x))
    module.forward = lambda x: x + 7
    out.append(fast(x))
    del module.forward
    module[1].__call__ = lambda x: x  # which Python does not look at
    return [*out, fast(x)]


@program
def a_class_is_changed_later(compiled):
    class Base(Times):
        pass

    class Derived(Base):
        pass

    module = nn.Sequential(Derived(), nn.ReLU())
    alone = Derived()
    fast, fast_alone, x, out = compiled(module), compiled(alone), randn(3), []
    changes = [lambda: None, lambda: setattr(Base, "factor", 5), lambda: setattr(Base, "inner", lambda self, x: x - 1),
               lambda: setattr(Derived, "factor", 7), lambda: setattr(Derived, "forward", lambda self, x: x * 100),
               lambda: delattr(Derived, "forward"), lambda: setattr(module[0], "factor", 9),
               lambda: setattr(Derived, "factor", property(lambda self: 11)),
               lambda: setattr(Derived, "__call__", lambda self, x: x * 3)]
    with jit.config.patch(cache_limit=20):
        for change in changes:
            change()
            out += [fast(x), fast_alone(x)]
    return out


@program
def getattr_of_its_own(compiled):
    class Model(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.table = inner, {"scale": 2.0}

        def __getattr__(self, name):
            if name.startswith("dyn_"):
                return self.table[name[4:]]
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) * self.dyn_scale + self.weight.sum()

    inner = nn.Linear(4, 4)
    model = Model(inner)
    fast, x = compiled(model), randn(2, 4)
    out = step(fast, x)
    model.table["scale"] = 3.0
    inner.weight = nn.Parameter(randn(4, 4))
    out += step(fast, x)
    model.dyn_scale = 9.0
    return out + step(fast, x)


@program
def setattr_of_its_own(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.k = nn.Linear(4, 4), 0

        def __setattr__(self, name, value):
            super().__setattr__(name, value + 1 if name == "k" else value)

        def forward(self, x):
            self.k = self.k * 2
            self.seen = x.sum()
            return self.inner(x) * self.k

    model, out = Model(), []
    fast, x = compiled(model), randn(2, 4)
    for _ in range(4):
        out += [fast(x), model.k, model.seen]
    return out


@program
def walking_the_tree(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x):
            total = 0.0
            for name, p in self.named_parameters():
                if name.endswith("weight"):
                    total = total + p.pow(2).mean()
            for name, b in self.named_buffers():
                total = total + b.sum() * len(name)
            count = sum(p.numel() for p in self.parameters()) + len(list(self.modules())) + sum(
                len(n) for n, _ in self.named_children())
            count += len(self.state_dict())
            return self.rest(self.first(x)) + total + count

    model = Model()
    fast, x = compiled(model), randn(3, 4)
    out = step(fast, x)
    model.extra = nn.Linear(2, 2)
    out.append(fast(x))
    model.first.register_parameter("z", nn.Parameter(randn(3)))
    out.append(fast(x))
    model.rest.register_buffer("q", randn(3))
    return [*out, fast(x)]


@program
def dicts_of_a_class_with_its_own_subscript(compiled):
    class Config(dict):
        def __getitem__(self, key):
            return dict.__getitem__(self, key) + 1

        __getattr__ = __getitem__

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = Config(a=1, t=torch.ones(3))

        def forward(self, x):
            return x * self.config["a"] + self.config.t + self.config["t"]

    model = Model()
    fast, x = compiled(model), randn(3)
    out = [fast(x)]
    model.config["a"] = 7
    out.append(fast(x))
    model.config["t"] = torch.zeros(3)
    out.append(fast(x))
    dict.__getitem__(model.config, "t").add_(1)
    out.append(fast(x))
    model.config = Config(a=3, t=x)
    return [*out, fast(x)]


# -- what PyTorch puts on top of modules


@program
def parametrizations_come_and_go(compiled):
    module = nn.Sequential(nn.Linear(4, 4))
    fast, x = compiled(module), randn(2, 4)
    out = step(fast, x)
    parametrize.register_parametrization(module[0], "weight", Symmetric())
    out += step(fast, x)
    with parametrize.cached():
        out += step(fast, x)
    parametrize.register_parametrization(module[0], "weight", nn.Tanh())
    out += step(fast, x)
    parametrize.remove_parametrizations(module[0], "weight")
    return out + step(fast, x)


@program
def norms_of_weights(compiled):
    out, x = [], randn(2, 4)
    for normed in (nn.utils.weight_norm, parametrizations.weight_norm, nn.utils.spectral_norm,
                   parametrizations.spectral_norm, parametrizations.orthogonal):
        module = normed(nn.Linear(4, 4))
        fast = compiled(module)
        out += step(fast, x) + step(fast, x)
        module.eval()
        out += [*step(fast, x), dict(module.state_dict())]
    return out


@program
def lazy_modules(compiled):
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d())
    fast, x = compiled(module), randn(2, 6)
    return [fast(x), *step(fast, x), type(module[0]).__name__, list(module.state_dict())]


@program
def a_functional_call(compiled):
    net, x = Net().eval(), randn(3, 4)
    fast = compiled(lambda p, x: torch.func.functional_call(net, p, (x,)))
    params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
    out = [fast(params, x)]
    fast(params, x).sum().backward()
    out += [p.grad for p in params.values()]
    doubled = {k: v.detach() * 2 for k, v in params.items()}
    fast_net = compiled(net)
    out += [fast(doubled, x), fast({"first.weight": doubled["first.weight"]}, x), [p.clone() for p in net.parameters()]]
    out += [torch.func.functional_call(fast_net, doubled, (x,)), fast_net(x),
            nn.utils.stateless.functional_call(fast_net, params, (x,)), fast_net(x)]
    return out


@program
def averaged_models(compiled):
    net, x, out = Net(), randn(3, 4), []
    fast = compiled(net)
    average = swa_utils.AveragedModel(fast, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    fast_average, optimizer = compiled(average), torch.optim.SGD(fast.parameters(), 0.1)
    for _ in range(3):
        out += [t.clone() for t in step(fast, x)]
        optimizer.step()
        average.update_parameters(fast)
        out += [fast_average(x), average(x)]
    swa_utils.update_bn([randn(3, 4)], average)
    return [*out, fast_average(x), dict(average.state_dict())]


@program
def an_average_kept_inside(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 4)
            self.average = copy.deepcopy(self.net).requires_grad_(False)

        @torch.no_grad()
        def update(self):
            for p, q in zip(self.net.parameters(), self.average.parameters()):
                q.lerp_(p, 0.1)

        def forward(self, x):
            if self.training:
                self.update()
            return self.net(x) - self.average(x)

    model, x, out = Model(), randn(2, 4), []
    fast = compiled(model)
    for _ in range(3):
        fast(x).sum().backward()
        out += [p.detach().clone() for p in model.parameters()]
        model.net.weight.data.add_(0.1)
    model.eval()
    return [*out, fast(x)]


@program
def initializing_by_apply(compiled):
    def start(module):
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.5)
            nn.init.zeros_(module.bias)

    net, x = Net(), randn(3, 4)
    fast = compiled(net)
    out = step(fast, x)
    fast.apply(start)
    out += step(fast, x)
    with torch.no_grad():
        return [*out, compiled(lambda m, x: m.apply(start)(x))(net, x),
                compiled(lambda w: nn.init.uniform_(w, 1.0, 1.0) * 2)(torch.empty(3))]


@program
def modules_as_arguments(compiled):
    def through(module, x, others):
        for other in others:
            x = other(x)
        return module(x) * 2

    fast, a, b, x = compiled(through), nn.Linear(4, 4), nn.Linear(4, 4), randn(2, 4)
    return [fast(a, x, [b]), fast(b, x, [a]), fast(a, x, [b, nn.ReLU()]), fast(nn.ReLU(), x, []),
            *(fast(nn.Linear(4, 4), x, []) for _ in range(3))]


# -- compiled modules as objects


@program
def copies(compiled):
    net, x = Net(), randn(3, 4)
    fast = compiled(net)
    out = step(fast, x)
    deep = copy.deepcopy(fast)
    deep.first.weight.data.mul_(2)
    deep.scale = 3.0
    out += step(deep, x) + step(fast, x)
    shallow = copy.copy(fast)
    shallow.scale = 7.0
    return [*out, *step(shallow, x), *step(fast, x), isinstance(deep, Net), isinstance(shallow, Net)]


@program
def pickled_and_saved(compiled):
    net, x = Net(), randn(3, 4)
    fast = compiled(net)
    out = step(fast, x) + step(pickle.loads(pickle.dumps(fast)), x)
    for thing in (fast, fast.state_dict()):
        file = io.BytesIO()
        torch.save(thing, file)
        file.seek(0)
        thing = torch.load(file, weights_only=isinstance(thing, collections.OrderedDict))
        if isinstance(thing, dict):
            net.load_state_dict({k: v * 2 for k, v in thing.items()})
            thing = fast
        out += step(thing, x)
    return out


@program
def parts_compiled_on_their_own(compiled):
    module = nn.Sequential(nn.Linear(4, 4), Net(), nn.ReLU())
    module[1] = compiled(module[1])
    x = randn(3, 4)
    out = step(module, x)
    fast = compiled(module)
    out += step(fast, x)
    module[1].scale = 5.0
    out += step(fast, x)
    module[1] = Net()
    module[1].forward = compiled(module[1].forward)
    out += step(fast, x)
    module[1].scale = 6.0
    return [*out, *step(fast, x), list(module.state_dict())]


@program
def disabled_parts(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act = nn.Linear(4, 4), jit.disable(nn.ReLU())

        @jit.disable
        def note(self, x):
            self.seen = x.sum().item()
            return x + 1

        def forward(self, x):
            return self.act(self.note(self.first(x))) * 2

    model, x = Model(), randn(3, 4)
    fast = compiled(model)
    return [*step(fast, x), model.seen, *step(fast, x + 1), model.seen, list(fast.state_dict())]


@program
def methods_of_compiled_modules(compiled):
    module = nn.Sequential(nn.Linear(4, 4))
    fast, x = compiled(module), randn(2, 4)
    out = [fast(x), repr(fast) == repr(module), fast.extra_repr(), fast.get_parameter("0.weight")]
    fast.share_memory()
    fast.add_module("relu", nn.ReLU())
    out.append(fast(x))
    fast.set_submodule("0", nn.Linear(4, 4))
    out.append(fast(x))
    fast.to("meta")
    return [*out, fast(torch.empty(2, 4, device="meta")).shape]


def run(fn, compiled):
    torch.manual_seed(0)
    return fn(compiled)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_module(name):
    jit.reset()
    with jit.config.patch(strict=True):
        same(run(PROGRAMS[name], lambda f: f), run(PROGRAMS[name], jit.compile), rtol=1e-3)


def test_modules_that_are_moved_to_where_they_are():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm, self.width = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), 5

        def forward(self, x):
            self.linear = self.linear.to(torch.float32)
            self.norm.to("cpu", torch.float32)
            y = self.norm(self.linear.float().to(x.dtype)(x)) + torch.IntTensor([self.width]) + torch.FloatTensor(
                (1, 2.5, 3))
            return y, torch.LongTensor([x.shape[0], 2])

    model, x = Model().eval(), torch.randn(2, 3)
    compiled = jit.compile(model, backend="eager", fullgraph=True)
    weight = model.linear.weight
    for _ in range(2):
        same(model(x), compiled(x), rtol=1e-6)
    assert model.linear.weight is weight


def test_modules_that_are_moved():
    def f(x):
        return linear.to(torch.float64)(x.double()), torch.IntTensor([[1, 2], [3, 4]]), torch.FloatTensor(x.shape).shape

    linear, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    compiled = jit.compile(f, backend="eager")
    want = f(x)
    for _ in range(2):
        linear.float()
        same(want, compiled(x), rtol=1e-6)
        assert linear.weight.dtype is torch.float64
