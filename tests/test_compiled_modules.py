"""Modules compiled by jit, in the hands of PyTorch's tools and of libraries: what is done to the compiled module, where
tests/test_frame_modules.py changes the module itself.

A program is run twice, in eager and compiled, by ``jit.compile`` and in place, and what it returns is compared.
"""

import copy
import gc
import inspect
import io
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from frame_harness import same
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, stateless
from torch.optim import swa_utils

import jit

PROGRAMS = {}


def program(fn):
    """Register ``fn(compiled)``, which calls ``compiled`` on what is to be compiled and returns all that counts."""
    PROGRAMS[fn.__name__] = fn
    return fn


class Net(nn.Module):
    """Two layers."""

    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(width, 2)

    def forward(self, x, *, scale=2.0):
        """The logits."""
        return self.last(self.drop(F.relu(self.norm(self.first(x))))) * scale


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


def net():
    torch.manual_seed(0)
    return Net().eval()


def step(module, x):
    """The result and the gradients of the parameters."""
    module.zero_grad()
    y = module(x)
    (y * y).sum().backward()
    return [y.detach(), {name: p.grad for name, p in module.named_parameters()}]


def randn(*shape):
    return torch.randn(*shape)


@program
def what_it_is(compiled):
    fast = compiled(net())
    return [isinstance(fast, Net), fast.__class__ is Net, type(fast).__name__, type(fast).__qualname__, fast.__doc__,
            str(inspect.signature(fast.forward)), str(inspect.signature(type(fast).forward)), repr(fast),
            [n for n, _ in fast.named_parameters()], [n for n, _ in fast.named_modules()], list(fast.state_dict()),
            hasattr(fast, "nothing"), len(list(fast.parameters()))]


@program
def an_attribute_that_is_not_there(compiled):
    with pytest.raises(AttributeError) as caught:
        compiled(net()).nothing  # noqa: B018
    return str(caught.value)


@program
def deep_copies(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = step(fast, x)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        other.first.weight.mul_(2)
    return [*out, *step(other, x), *step(fast, x), isinstance(other, Net), list(other.state_dict())]


@program
def pickled_and_saved(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = [fast(x)]
    other = pickle.loads(pickle.dumps(fast))
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    third = torch.load(file, weights_only=False)
    state = io.BytesIO()
    torch.save(fast.state_dict(), state)
    state.seek(0)
    fresh = compiled(Net().eval())
    fresh(x)
    keys = fresh.load_state_dict(torch.load(state))
    return [*out, other(x), third(x), fresh(x), str(keys), type(third).__name__]


@program
def moved_and_cast(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = [fast(x)]
    assert fast.to(torch.float64) is fast and fast.double() is fast
    out.append(fast(x.double()))
    fast.to("cpu").float()
    out += [fast(x), fast.half()(x.half()).dtype, fast.bfloat16()(x.bfloat16()).shape]
    return out


@program
def modes(compiled):
    fast, x = compiled(net()), randn(8, 4)
    fast.drop.p = 0.0
    out = [fast(x)]
    assert fast.train() is fast and fast.training
    out += [fast(x), fast.norm.running_mean.clone()]
    assert fast.eval() is fast and not fast.training
    out += [fast(x), fast.requires_grad_(False) is fast, fast(x).requires_grad]
    return out


@program
def hooks_that_come_later(compiled):
    fast, x, seen = compiled(net()), randn(3, 4), []
    out = [fast(x)]
    handle = fast.register_forward_hook(lambda m, args, y: seen.append(y.shape) or y + 1)
    out.append(fast(x))
    before = fast.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    out.append(fast(x))
    handle.remove(), before.remove()
    inner = fast.first.register_forward_hook(lambda m, args, y: y * 3)
    out.append(fast(x))
    inner.remove()
    return [*out, fast(x), seen]


@program
def backward_hooks(compiled):
    fast, x, seen = compiled(net()), randn(3, 4), []
    out = step(fast, x)
    handle = fast.register_full_backward_hook(lambda m, grads, tangents: seen.append(tangents[0].sum().item()) or None)
    out += step(fast, x)
    handle.remove()
    return [*out, *step(fast, x), len(seen)]


@program
def a_parametrization(compiled):
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(9.0).reshape(3, 3) / 9)

        def forward(self, x):
            return x @ self.weight

    fast, x = compiled(Square()), randn(2, 3)
    out = step(fast, x)
    parametrize.register_parametrization(fast, "weight", Symmetric())
    out += [*step(fast, x), fast.weight, type(fast).__name__, parametrize.is_parametrized(fast)]
    out.append(isinstance(fast, Square))
    with parametrize.cached():
        out += [fast(x), fast(x + 1)]
    parametrize.remove_parametrizations(fast, "weight")
    return [*out, *step(fast, x), fast.weight, type(fast).__name__]


@program
def a_parametrization_of_the_module_behind(compiled):
    module = nn.Linear(3, 3)
    fast, x = compiled(module), randn(2, 3)
    out = [fast(x)]
    parametrize.register_parametrization(module, "weight", Symmetric())
    return [*out, fast(x), fast.weight, [n for n, _ in fast.named_parameters()]]


@program
def parametrizations_of_parts(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = step(fast, x)
    parametrizations.weight_norm(fast.first)
    out += step(fast, x)
    parametrizations.spectral_norm(fast.last)
    torch.manual_seed(1)
    out += step(fast, x)
    copied = copy.deepcopy(fast)
    return [*out, *step(copied, x)]


@program
def old_norms(compiled):
    fast, x = compiled(nn.Linear(4, 4)), randn(3, 4)
    out = [fast(x)]
    torch.nn.utils.weight_norm(fast)
    out += step(fast, x)
    torch.nn.utils.remove_weight_norm(fast)
    out += step(fast, x)
    torch.nn.utils.spectral_norm(fast.eval())
    return [*out, *step(fast, x)]


@program
def pruned(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = step(fast, x)
    prune.l1_unstructured(fast.first, "weight", amount=0.5)
    out += step(fast, x)
    prune.remove(fast.first, "weight")
    out += step(fast, x)
    one = compiled(nn.Linear(4, 4))
    one(x)
    prune.random_unstructured(one, "bias", amount=2)
    return [*out, *step(one, x), prune.is_pruned(one)]


@program
def averages(compiled):
    fast, x = compiled(net().train()), randn(6, 4)
    fast.drop.p = 0.0
    plain = swa_utils.AveragedModel(fast)
    ema = swa_utils.AveragedModel(fast, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
        plain.update_parameters(fast), ema.update_parameters(fast)
    swa_utils.update_bn([x], plain)
    return [plain(x), ema.eval()(x), fast.eval()(x), list(ema.state_dict())]


@program
def other_parameters_for_a_call(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = [fast(x)]
    doubled = {name: p.detach() * 2 for name, p in fast.named_parameters()}
    out += [torch.func.functional_call(fast, doubled, (x,)), fast(x)]
    with stateless._reparametrize_module(fast, doubled):
        out.append(fast(x, scale=1.0))
    return [*out, fast(x)]


@program
def data_parallel(compiled):
    fast, x = compiled(net()), randn(3, 4)
    parallel = nn.DataParallel(fast)
    out = [parallel(x), list(parallel.state_dict()), parallel.module is fast]
    replica = fast._replicate_for_data_parallel()
    for name, child in fast.named_children():  # as replicate() has it: each has modules and parameters of its own
        replica._modules[name] = copy.deepcopy(child)
    with torch.no_grad():
        replica.last.weight.mul_(3)
    return [*out, replica(x), fast(x), isinstance(replica, Net)]


@program
def parts_that_change(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = step(fast, x)
    fast.last = nn.Linear(4, 3)
    nn.init.constant_(fast.last.weight, 0.5)
    nn.init.zeros_(fast.last.bias)
    out += step(fast, x)
    fast.scale_by = nn.Parameter(torch.ones(2))
    fast.register_buffer("seen", torch.zeros(3))
    del fast.scale_by
    return [*out, *step(fast, x), list(fast.state_dict())]


@program
def a_method_that_is_set(compiled):
    fast, x = compiled(net()), randn(3, 4)
    out = [fast(x)]
    old = fast.forward
    fast.forward = lambda x: old(x) + 10
    out.append(fast(x))
    del fast.forward
    return [*out, fast(x)]


@program
def inside_of_others(compiled):
    fast, x = compiled(net()), randn(3, 4)
    outer = compiled(nn.Sequential(fast, nn.Tanh()))
    out = step(outer, x)
    with torch.no_grad():
        fast.first.weight.mul_(2)
    out += [*step(outer, x), list(outer.state_dict()), fast.apply(lambda m: None) is fast]
    listed = nn.ModuleList([fast])
    return [*out, listed[0](x)]


@program
def compiled_twice(compiled):
    fast, x = compiled(net()), randn(3, 4)
    again = compiled(fast)
    return [fast(x), again(x), isinstance(again, Net), list(again.state_dict())]


@program
def optimized(compiled):
    fast, x = compiled(net()), randn(6, 4)
    optimizer = torch.optim.AdamW(fast.parameters(), lr=0.1)
    out = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(fast(x), torch.tensor([0, 1, 0, 1, 0, 1]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(fast.parameters(), 1.0)
        optimizer.step()
        out.append(loss.detach())
    return out


WAYS = {"compile": jit.compile, "in place": jit.compile_in_place}
# A replica has a copy of the module's __dict__, and with it what calls the module itself; as after module.compile().
CASES = [(name, way) for name in PROGRAMS for way in WAYS if (name, way) != ("data_parallel", "in place")]


@pytest.mark.parametrize("name, way", CASES)
def test_module(name, way):
    def run(compiled):
        torch.manual_seed(7)
        return PROGRAMS[name](compiled)

    same(run(lambda m: m), run(WAYS[way]), rtol=2e-5)


# -- in place -------------------------------------------------------------------------------------------------------


def compilations(run):
    before = jit.compile_count()
    run()
    return jit.compile_count() - before


def test_a_module_compiled_in_place_stays_itself():
    module, x = net(), randn(3, 4)
    expected, keys = module(x), list(module.state_dict())
    assert jit.compile_in_place(module, fullgraph=True) is module
    assert type(module) is Net and list(module.state_dict()) == keys
    assert compilations(lambda: torch.testing.assert_close(module(x), expected)) == 1
    assert compilations(lambda: torch.testing.assert_close(module.__call__(x), expected)) == 0
    assert compilations(lambda: jit.compile_in_place(module, disable=True)(x)) == 0
    assert "_compiled_call_impl" not in vars(module)
    with pytest.raises(TypeError, match="takes a module, not function"):
        jit.compile_in_place(step)


def test_copies_of_one_are_not_compiled():
    module, x = jit.compile_in_place(net()), randn(3, 4)
    expected = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert compilations(lambda other=other: torch.testing.assert_close(other(x), expected)) == 0


def test_nothing_is_kept_alive():
    for way in WAYS.values():
        module = net()
        way(module)(randn(3, 4))
        gone = weakref.ref(module)
        del module
        gc.collect()
        assert gone() is None


def test_parts_compiled_in_place():
    model, x = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]), randn(2, 4)
    expected = model(x)
    for part in model:
        jit.compile_in_place(part)
    assert compilations(lambda: torch.testing.assert_close(model(x), expected)) == 3
    fast = jit.compile(model, fullgraph=True)
    assert compilations(lambda: torch.testing.assert_close(fast(x), expected)) == 1
    assert jit.explain(model)(x).graph_break_count == 0


# -- what libraries look for ----------------------------------------------------------------------------------------


def test_the_module_behind():
    module = net()
    fast = jit.compile(module)
    assert fast._orig_mod is module and getattr(fast, "_orig_mod", fast) is module
    assert "_orig_mod" not in vars(fast) and not any("_orig_mod" in name for name in fast.state_dict())


class LightningModule(nn.Module):
    """As in the library: what it calls of a module is this, and not the module."""

    def log(self, name, value):
        self.logged = getattr(self, "logged", 0) + 1


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        return jit.is_compiling()

    def configure_optimizers(self):
        return jit.is_compiling()


def test_steps_of_a_lightning_module_are_compiled():
    torch.manual_seed(0)
    module = Regression()
    fast, batch = jit.compile(module, fullgraph=True), (randn(5, 4), randn(5, 1))
    expected = module.training_step(batch, 0)
    for k in range(3):
        assert compilations(lambda k=k: torch.testing.assert_close(fast.training_step(batch, k), expected)) == (k < 1) \
            or k == 1  # the index becomes a symbol
    expected.backward()
    grads = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    fast.training_step(batch, 5).backward()
    torch.testing.assert_close([p.grad for p in fast.parameters()], grads)
    assert fast.validation_step(batch, 0) is True and fast.configure_optimizers() is False
    assert module.validation_step(batch, 0) is False and fast.logged == module.logged == 5
    copied = copy.deepcopy(fast)
    assert copied.validation_step(batch, 0) is True and copied._orig_mod is not module
