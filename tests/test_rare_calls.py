"""Calls that few programs make, found by running many small ones: each as in eager, and whole unless it says so."""

import collections
import copy
from collections import OrderedDict, defaultdict, deque

import pytest
import torch
from frame_harness import Cases, said

import jit

cases = Cases()
VECTOR = torch.arange(4.0)


class Named(dict):
    def __init__(self):
        super().__init__()
        self["first"] = 0


@cases(VECTOR)
def dicts_made_from_keys(x):
    return (defaultdict.fromkeys("ab", x + 1), OrderedDict.fromkeys("ba"), collections.Counter(a=1),
            list(Named.fromkeys("ab", 2).items()))


@cases(VECTOR)
def deques_changed_in_the_middle(x):
    d, full = deque([1, 2, 3]), deque([1, 2], 2)
    d.remove(3)
    d.insert(1, x * 2)
    return d, said(lambda: full.insert(0, 1)), full


@cases(VECTOR, fullgraph=False)
def values_that_are_not_in_a_deque(x):
    return said(lambda: deque([1]).remove(2)), x + 1


@cases(VECTOR, fullgraph=False)
def names_that_builtin_functions_do_not_take(x):
    return said(lambda: isinstance(x, torch.Tensor, strict=True)), said(lambda: len([x], of=1)), x * 2


@cases(VECTOR)
def names_that_builtin_functions_take(x):
    return sorted([1, 3], reverse=True), sum([1], start=2), max([1, 2], key=lambda v: -v), x - 1


SHAPE = torch.Tensor.shape


@cases(VECTOR)
def descriptors_read_by_hand(x):
    return SHAPE.__get__(x), torch.Tensor.dtype.__get__(x), x + 1


class TenAxes(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.ndim.__get__ or func in {torch.Tensor.nbytes.__get__: 1}:
            return 10
        return super().__torch_function__(func, types, args, kwargs or {})


@cases(VECTOR)
def classes_of_numbers_as_types(x):
    return (x.to(bool), x.to(int), x.to(float) + 1, x.to(complex), x.to(int, copy=True), x.to(dtype=bool),
            said(lambda: x.type(int)))


@cases(VECTOR)
def tensors_by_the_older_name(x):
    return x.new(2, 3).shape, x.new(torch.Size([2, 3])).shape, x.new([2, 3]), x.new((4,)), x.new().shape


@cases(VECTOR.clone(), torch.ones(2, 3))
def memory_taken_from_another_tensor(x, y):
    x.data = y
    x.add_(1)
    return x, x.shape, x * 2


@cases(VECTOR.clone(), VECTOR * 10)
def memory_exchanged(x, y):
    x.data, y.data = y.data, x.data
    return x + 2 * y


@cases(VECTOR.clone(), VECTOR * 10)
def memory_taken_from_a_result(x, y):
    z, before = y * 2, x + 1
    x.data = z
    z.add_(1)
    return z, x[1:], before


@cases(VECTOR.clone(), torch.zeros(8))
def memory_taken_from_a_slice(x, y):
    x.data = y[::2]
    x.mul_(2).add_(1)
    return x.stride(), y.sum()


@cases(VECTOR.clone().requires_grad_(), VECTOR * 10)
def memory_of_a_leaf(x, y):
    x.data = y
    return x is y, y + 1


@cases(VECTOR.clone().requires_grad_(), VECTOR * 10, fullgraph=False)
def a_leaf_used_with_its_new_memory(x, y):
    x.data = y * 2
    return (x * x).sum()


test_programs = cases.test()


@pytest.mark.parametrize("layout", (lambda t: t, lambda t: t[::2], lambda t: t.t(), lambda t: t[:0]))
def test_versions_and_memory_behind_setting_data(layout):
    def take(x, y):
        x.data = y
        return x.mul_(3)

    compiled = jit.compile(take, fullgraph=True)
    for _ in range(3):
        pairs = [(torch.ones(3, 4), layout(torch.arange(16.0).view(4, 4))) for _ in range(2)]
        results = [fn(*pair) for fn, pair in zip((take, compiled), pairs)]
        for result, (x, y) in zip(results, pairs):
            assert result is x and x.data_ptr() == y.data_ptr() and x._version == 1 and y._version == 0
        assert torch.equal(*results) and torch.equal(pairs[0][1], pairs[1][1])
        assert results[0].stride() == results[1].stride()


def test_descriptors_that_a_class_compares():
    def fn(x):
        same = SHAPE.__get__ == torch.Tensor.shape.__get__, SHAPE.__get__ != torch.Tensor.dtype.__get__, len == len
        return x.ndim, x.nbytes, same, x.shape[0]

    x = torch.ones(3).as_subclass(TenAxes)
    assert jit.compile(fn, fullgraph=True)(x) == fn(x) == (10, 10, (True, True, True), 3)


def test_a_gradient_with_new_memory_is_the_leafs():
    def step(x, y):
        x.data = y
        return (x * x).sum()

    compiled, found = jit.compile(step), []
    for fn in (step, compiled, compiled):
        x = torch.ones(4, requires_grad=True)
        fn(x, VECTOR).backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_inference_tensors_are_told_apart():
    def fn(x):
        return x + 1 if x.is_inference() and x[1:].is_inference() else x - 1

    with torch.inference_mode():
        inside = torch.ones(3)
    compiled = jit.compile(fn, fullgraph=True)
    for x in (torch.ones(3), inside, torch.ones(3), inside):
        assert torch.equal(compiled(x), fn(x))
        with torch.inference_mode():
            assert torch.equal(compiled(x), fn(x))


def test_regions_without_hooks_of_saved_tensors():
    def fn(x, y):
        z = x * y
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            return z * z

    compiled = jit.compile(fn)
    for _ in range(2):
        x = torch.ones(4, requires_grad=True)
        compiled(x, VECTOR).sum().backward()
        assert torch.equal(x.grad, 2 * VECTOR * VECTOR)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # which raises where they are disabled
            assert torch.equal((x * 2).detach(), torch.full((4,), 2.0))


def test_modules_copied_while_hooks_of_sharding_are_looked_for():
    import torch.distributed.fsdp  # noqa: F401  (from then on calls of modules are looked at)

    def fn(m, x):
        return copy.deepcopy(m)(x)

    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with torch.no_grad():
        assert torch.allclose(jit.compile(fn)(module, VECTOR), fn(module, VECTOR))


def test_the_call_that_makes_the_parameters_of_a_lazy_module():
    """It runs in eager, also where breaks are not wanted; the calls after it are one graph."""
    module, twin = (torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU(), torch.nn.LazyBatchNorm1d())
                    for _ in range(2))
    compiled = jit.compile(module, fullgraph=True)
    for rows in (2, 2, 3):
        x = torch.randn(rows, 4)
        torch.manual_seed(1)
        want = twin(x)
        torch.manual_seed(1)
        assert torch.allclose(compiled(x), want)
    assert torch.allclose(module[2].running_mean, twin[2].running_mean) and module[0].weight.requires_grad
    assert type(module[0]) is torch.nn.Linear and jit.explain(module)(x).graph_break_count == 0


@pytest.mark.parametrize("value", [torch.tensor(5), torch.tensor([1, 2, 3]), torch.ones(1, 2, 3), torch.ones(4), 7])
@pytest.mark.parametrize("x", [torch.arange(6.0).view(2, 3), torch.arange(3), torch.tensor(2.0)])
def test_writing_by_a_bool_alone(x, value):
    """True is all of a tensor, in its dtype; False is nothing, whatever is written."""
    def fn(x, value, all_of_it):
        y = x.clone()
        if all_of_it:
            y[True] = value
        else:
            y[False] = value
        return y

    compiled = jit.compile(fn)
    for all_of_it in (True, False):
        found = []
        for f in (fn, compiled):
            try:
                found.append(f(x, value, all_of_it))
            except RuntimeError as error:
                found.append(type(error))
        if isinstance(found[0], type):
            assert found[0] is found[1]
        else:
            torch.testing.assert_close(*found)
