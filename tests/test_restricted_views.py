"""Views that autograd refuses once their memory is changed: several that one call gave, and those made where gradients
are not recorded."""

import re

import pytest
import torch

import jit


def chunk_then_write(y):
    v = y.chunk(2, -1)[0]
    y[0] = 0.5
    return v * 2


def returned(y):
    v = y.chunk(2, -1)[0]
    y[0] = 0.5
    return v


def used_before(y):
    v = y.chunk(2, -1)[0] * 2
    y[0] = 0.5
    return v, y


def written_without_grad(y):
    v = y.split(2, -1)[1]
    with torch.no_grad():
        y.zero_()
    return v * 2


def through_another_view(y):
    v = y.unbind(0)[1]
    y.view(-1)[0] = 1
    return v.sin()


def of_a_result(y):
    z = y * 2
    v = z.unbind(0)[1]
    z.mul_(2)
    return v.sin()


def itself(y):
    a, b = y.unbind(0)[:2]
    a.mul_(2)
    return b


def slices_of_tensor_split(y):
    w = torch.tensor_split(y, 2)[0][0]
    y.mul_(2)
    return w


def view_of_one(y):
    w = y.unbind(0)[1][:2]
    y.mul_(2)
    return w * 3


def memory_gets_a_gradient(y):
    z = torch.zeros(3, 4)
    v = z.unbind(0)[1]
    z.add_(y)
    return v.sin()


def memory_without_a_gradient(y):
    z = torch.zeros(3, 4)
    v = z.unbind(0)[1]
    z.add_(1)
    return v.sin() * y


def unsafe(y):
    v = y.unsafe_chunk(2, -1)[0]
    y[0] = 0.5
    return v * 2


def silent_written(y):
    with torch.no_grad():
        v = y[0]
    v.mul_(2)
    return y


def silent_then_write(y):
    with torch.no_grad():
        v = y[0]
    y.mul_(2)
    return v * 2 + y


def silent_returned(y):
    with torch.no_grad():
        v = y[0]
    y.mul_(2)
    return v, y


def silent_gets_a_gradient(y):
    z = torch.zeros(3, 4)
    with torch.no_grad():
        v = z[0]
    v.add_(y[0])
    return z.sin()


def silent_of_what_gets_one(y):
    z = torch.zeros(3, 4)
    with torch.no_grad():
        v = z[0]
    z.add_(y)
    return v.sin() + y


def recorded_view_written_silently(y):
    v = y[0]
    with torch.no_grad():
        v.mul_(2)
    return v.sin() + y


def detached_written(y):
    v = y.detach()
    v.mul_(2)
    return v.sin() + y


def detached_view(y):
    v = y.detach()[0]
    y.mul_(2)
    return v.sin() + y


def several_of_detached(y):
    v, w = y.detach()[:2].unbind(0)
    v.mul_(2)
    return w * y


def expanded(y):
    v = y.unsqueeze(0).expand(2, *y.shape)
    y.mul_(2)
    return v.sin() + y


def windows_of_a_detached(y):
    v = y.detach().unfold(-1, 2, 1)
    return v * 2, y.sin()


def windows_of_a_detached_view(y):
    v = y[:, 1:].detach()[1:].unfold(-1, 2, 1)
    return v, v.sum() * y


def windows_of_a_detached_value(y):
    v = y.sin().detach()
    return v.unfold(-1, 2, 1), v[1:].unfold(-1, 3, 1), y * 2


def windows_of_one_then_write(y):
    v = y.split(2, -1)[0].unfold(-1, 1, 2)
    y[0] = 0.5
    return v * 2


def one_then_write_of_windows(y):
    v, w = y.split(2, -1)
    u = v.unfold(-1, 2, 2)
    y.mul_(2)
    return w * 2 if u.dim() > 3 else v * 2


def strided_of_a_silent_view(y):
    with torch.no_grad():
        v = y.sin()[0]
    w = v.as_strided((2, 3), (1, 1))
    return w, y * 2


def written_through_detach(y):
    v = y.chunk(2, -1)[0]
    y.detach().mul_(2)
    return v * 2


def written_through_detach_and_returned(y):
    v = y.unbind(0)[1]
    y.detach().view(-1)[1:].zero_()
    return v


def made_behind_a_silent_write(y):
    with torch.no_grad():
        y.mul_(2)
    return y.chunk(2, -1)[0], y


def made_behind_a_write_through_detach(y):
    y.detach()[0] = 0.5
    return y.unbind(0)[1:]


def written_by_data(y):
    v = y.chunk(2, -1)[0]
    y.data.mul_(2)
    return v * 2


def one_of_several_written_silently(y):
    v = y.split(2, 0)[-1]
    with torch.no_grad():
        v.mul_(2)
    return y, v


def shape_of_one_of_several_changed_silently(y):
    v = y.split(2, 0)[-1]
    with torch.no_grad():
        v.unsqueeze_(0)
    return y, v


def one_of_several_made_and_written_silently(y):
    with torch.no_grad():
        v = y.split(2, 0)[-1]
        v.mul_(2)
    return y


def made_and_written_silently_then_used(y):
    with torch.no_grad():
        v = y[1:]
        v.mul_(2)
    return v * 3


def made_and_written_silently_then_returned(y):
    with torch.no_grad():
        v = y[1:]
        v.mul_(2)
    return y, v


def view_of_a_written_view(y):
    with torch.no_grad():
        v = y[1:]
        v.mul_(2)
    return v[1:]


def made_behind_the_silent_write_of_a_view(y):
    with torch.no_grad():
        y[1:].mul_(2)
        v = y[1:]
    return v * 3, v


def written_silently_and_copied(y):
    with torch.no_grad():
        v = y[1:]
        v.mul_(2)
        w = v.clone()
    return w * 3, v.detach() * 2, y * 2


RESTRICTED = [made_and_written_silently_then_used, made_and_written_silently_then_returned, view_of_a_written_view,
              made_behind_the_silent_write_of_a_view, written_silently_and_copied,
              one_of_several_written_silently, shape_of_one_of_several_changed_silently,
              one_of_several_made_and_written_silently,
              written_through_detach, written_through_detach_and_returned, made_behind_a_silent_write,
              made_behind_a_write_through_detach, written_by_data,
              windows_of_a_detached, windows_of_a_detached_view, windows_of_a_detached_value, windows_of_one_then_write,
              one_then_write_of_windows, strided_of_a_silent_view, chunk_then_write, returned, used_before,
              written_without_grad, through_another_view, of_a_result, itself, slices_of_tensor_split, view_of_one,
              memory_gets_a_gradient, memory_without_a_gradient, unsafe, silent_written, silent_then_write,
              silent_returned, silent_gets_a_gradient, silent_of_what_gets_one, recorded_view_written_silently,
              detached_written, detached_view, several_of_detached, expanded]


def outcome(fn, make):
    """(which results require gradients, the gradient of the leaf), or the error, with its words."""
    leaf = torch.arange(1.0, 13.0).view(3, 4).requires_grad_()
    try:
        found = fn(*make(leaf))
        found = found if isinstance(found, tuple) else (found,)
        for r in found:
            r.grad_fn  # noqa: B018  (where autograd refuses a view, reading this raises)
        return ([r.requires_grad for r in found],
                torch.autograd.grad(sum((r * r).sum() for r in found), leaf, allow_unused=True)[0])
    except RuntimeError as error:  # which operator has made the view is told otherwise
        return None, re.sub("Output . of [A-Za-z0-9]+ is", "A result is", str(error))


def check(fn, make):
    check_same(fn, jit.compile(fn), make)


def check_same(fn, compiled, make):
    for _ in range(2):
        (wants, want), (have, got) = outcome(fn, make), outcome(compiled, make)
        assert have == wants
        if torch.is_tensor(want) and torch.is_tensor(got):
            torch.testing.assert_close(got, want)
        else:
            assert got == want


@pytest.mark.parametrize("fn", RESTRICTED, ids=lambda fn: fn.__name__)
def test_changed_memory(fn):
    check(fn, lambda leaf: (leaf * 1,))


def test_one_of_several_of_overlapping_memory():
    for fn in (shape_of_one_of_several_changed_silently, lambda y: y.unbind(0)[1]):
        check(fn, lambda leaf: ((leaf[:1] * 1).expand(3, 4),))

        def written(y, fn=fn):
            v = fn(y)
            with torch.no_grad():
                (v[-1] if isinstance(v, tuple) else v)[..., 0] = 2
            return v

        compiled = jit.compile(fn)
        check_same(written, lambda y: written(y, compiled), lambda leaf: ((leaf[:1] * 1).expand(3, 4),))


def test_of_an_argument():
    def given(leaf):
        y = leaf * 1
        return y, y.chunk(2, -1)[0]

    def use(y, v):
        y.mul_(2)
        return v * 2

    def leave(y, v):
        y.mul_(2)
        return y

    def use_a_part(y, v):
        v = v[0]
        y.mul_(2)
        return v

    for fn in (use, leave, use_a_part):
        check(fn, given)
    check(lambda v: v.mul_(2), lambda leaf: given(leaf)[1:])


def across_a_break(y):
    y.add_(1)
    v = y.chunk(2, -1)[0]
    jit.graph_break()
    v.mul_(2)
    return y


def chunk_of_changed(y):
    y[:, 4:] = 0
    return y.split(2, 0)[-1].t()


@pytest.mark.parametrize("fn", [
    lambda y: y.chunk(2, -1)[0], lambda y: y.unbind(0), lambda y: y.add_(1).split(3, 1)[1][:, 1:],
    lambda y: (y.t().unbind(0)[0].view(-1), y), lambda y: y.chunk(2, -1)[1] * 2,
    lambda y: (z := y * 2, z.hsplit(2)[0])[::-1], lambda y: y[:2].narrow(0, 1, 1), across_a_break, chunk_of_changed],
    ids=range(9))  # fmt: skip
@pytest.mark.parametrize("written", [True, False])
def test_changed_by_the_caller(fn, written):
    compiled = jit.compile(fn)
    for rows, columns in ((3, 4), (1, 6), (5, 4), (3, 8)):
        found = []
        for f in (fn, compiled):
            leaf = torch.arange(float(rows * columns)).view(rows, columns).requires_grad_()
            try:
                y = leaf * 1
                results = f(y)
                result = results[0] if isinstance(results, tuple) else results
                if written:
                    result.mul_(2)
                found.append(torch.autograd.grad((result * result).sum() + y.sum(), leaf)[0])
            except RuntimeError as error:
                found.append(re.sub("Output . of [A-Za-z0-9]+ is", "A result is", str(error)))
        want, got = found
        assert torch.equal(want, got) if torch.is_tensor(want) and torch.is_tensor(got) else want == got


@pytest.mark.parametrize("split", [lambda x: x.unsafe_chunk(2, -1), lambda x: x.unsafe_split(2),
                                   lambda x: x.unsafe_split_with_sizes([1, 3], -1),
                                   lambda x: torch.unsafe_split(x, 3, 1), lambda x: x.unsafe_split(4, 1)],
                         ids=lambda f: None)  # fmt: skip
def test_results_that_are_no_views_of_the_argument(split):
    """They show its memory, and have a version counter and a history of their own."""

    def all_of_them(x):
        return split(x)

    def one_and_more(x):
        v = split(x)[0]
        return v, v * 2, x.neg()

    def written(x):
        v = split(x)[0]
        y = x * 2
        x.mul_(2)
        return v, y

    for fn in (all_of_them, one_and_more, written):
        for leaf_given in (False, True):
            compiled = jit.compile(fn)
            for shape in ((3, 4), (5, 4), (3, 4)):
                found = []
                for f in (fn, compiled):
                    leaf = torch.arange(1.0, 1 + shape[0] * shape[1]).view(shape).requires_grad_()
                    x = leaf if leaf_given else leaf * 1
                    try:
                        results = f(x)
                        versions = [v._version for v in results]
                        shared = [v.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for v in results]
                        names = [type(v.grad_fn).__name__ for v, known in zip(results, shared) if known]
                        with torch.no_grad():
                            results[0].add_(1)
                        after = (x._version, results[0]._version, results[0]._is_view())
                        gradient = torch.autograd.grad(sum((v * torch.arange(v.numel()).view(v.shape)).sum()
                                                           for v in results), leaf)[0].tolist()
                        found.append((versions, shared, names, after, [v.tolist() for v in results], gradient))
                    except RuntimeError as error:
                        found.append(str(error))
                assert found[1] == found[0]


# memory that other views show


def all_windows_but_one(x):
    x.add_(1)
    v = x.unfold(-1, 2, 1)
    v[..., ::2].add_(1)
    return x, v


def part_of_windows(x, v):
    v[..., 0].mul_(3)
    return x, v


def view_from_before_a_write(x):
    v = x.as_strided((3, 4), (4, 1))
    x[torch.tensor([1])] = 2
    w = v.abs().sqrt()
    x.zero_()
    return v, w


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
def test_memory_of_an_argument_that_overlaps_or_has_gaps(dtype, dynamic):
    compiled = [jit.compile(fn,
                            dynamic=dynamic) for fn in (all_windows_but_one, part_of_windows, view_from_before_a_write)]
    for shape in ((4, 5), (5, 6), (4, 5)):
        wide = torch.arange(shape[0] * (shape[1] + 3)).to(dtype).view(shape[0], -1)
        for part in (lambda t: t, lambda t: t[:, : t.shape[1] - 3]):
            for fn, ours in (zip((all_windows_but_one, part_of_windows, view_from_before_a_write), compiled,
                                 strict=True)):
                found = []
                for f in (fn, ours):
                    memory = wide.clone()
                    x = part(memory)
                    results = f(x, x.unfold(-1, 2, 1)) if fn is part_of_windows else f(x)
                    found.append([memory, *[r.clone() for r in results]])
                torch.testing.assert_close(found[1], found[0])


# Views that are made where gradients are not recorded require grad where the tensor does whose memory they show, as
# leaves: no gradient leads from what is computed from them.


@torch.no_grad()
def silently(view, x):
    return view(x)


def used(x):
    v = silently(lambda x: x[1:], x * 2)
    return v.requires_grad, v.is_leaf, v * 3


def given_back(x):
    return silently(lambda x: x[1:], x * 2)


def given_back_with_its_memory(x):
    z = x * 2
    return silently(lambda x: x.reshape(-1), z), z


def of_an_input_given_back(x):
    return x.amax(-1), silently(lambda x: x[1:], x)


def of_an_input(x):
    v = silently(lambda x: x[1:], x)
    return v.requires_grad, v.is_leaf, v * 3, x + 1


def beside_a_gradient(x):
    z = x * 2
    v, w = silently(lambda x: (x[1:], x[1:] * 2), z)
    return v * z[:-1], w, silently(torch.t, v).requires_grad


def viewed_again(x):
    u = silently(lambda x: x.view(-1), x * 2)[1:]
    return u.requires_grad, u.is_leaf, u * 1


def parts(x):
    first, second = silently(lambda x: x.split(2)[:2], x * 2)
    return first * 1, second.detach()


def detached(x):
    v = silently(lambda x: x[1:], x * 2).detach()
    return v.requires_grad, v * x[1:]


def read_as_a_dtype(x):
    """Such a view has no history at all."""
    v = silently(lambda x: x.view(x.dtype), x * 2)
    return x.view(x.dtype) * 2, x.view(torch.int32)[1:], (x * 2).view(x.dtype), v.requires_grad, v * 1


def first_by_tensor(x):
    """Row 1, which a 0-dim tensor says: eager gives a view."""
    return x[(x.sum() > 0).long()]


def chosen(x):
    y = x * 2
    v = silently(first_by_tensor, y)
    return v, v * y.sum(), v.requires_grad, v.is_leaf


def chosen_given_back(x):
    return silently(first_by_tensor, x * 2), silently(lambda y: first_by_tensor(y)[1:], x * 3)


def chosen_of_an_input(x):
    v = silently(first_by_tensor, x)
    return v, v[1:], first_by_tensor(v), v * 2


def chosen_then_viewed(x):
    y = x * 2
    v = silently(first_by_tensor, y)
    return v[1:], first_by_tensor(v), silently(first_by_tensor, y[1:]), silently(lambda v: v[1:], first_by_tensor(y))


def chosen_of_chosen(x):
    return first_by_tensor(silently(first_by_tensor, x * 2))


def chosen_without_history(x):
    return (silently(lambda y: first_by_tensor(y.detach()), x * 2), silently(first_by_tensor, (x * 2).detach()),
            silently(first_by_tensor, (x * 2).long()), silently(lambda x: first_by_tensor(x * 2), x))


CHOSEN = (chosen, chosen_given_back, chosen_of_an_input, chosen_then_viewed, chosen_of_chosen, chosen_without_history)
SILENT = (used, given_back, given_back_with_its_memory, of_an_input_given_back, of_an_input, beside_a_gradient,
          viewed_again, parts, detached, read_as_a_dtype, *CHOSEN)


def described(fn, x):
    """What a call gives, and the gradient that each of its tensors has toward ``x``."""
    results = fn(x)
    found = []
    for r in results if isinstance(results, tuple) else (results,):
        if not isinstance(r, torch.Tensor):
            found.append(r)
            continue
        found.append((r.requires_grad, r.is_leaf, r.stride(), r.detach().tolist()))
        if r.requires_grad and x.requires_grad:
            (g,) = torch.autograd.grad(r.sum(), [x], retain_graph=True, allow_unused=True)
            found.append(g if g is None else g.tolist())
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", SILENT, ids=lambda f: f.__name__)
def test_what_is_made_without_gradients_requires_grad_as_its_base_does(fn, dynamic):
    compiled = jit.compile(fn, dynamic=dynamic)
    for rows in (5, 3, 6, 5):
        whole = torch.arange(rows * 3.0).view(rows, 3)
        leaf = whole.clone().requires_grad_()
        for x in (leaf, leaf * 1, whole.t().clone().t(), leaf[:], (leaf * 1)[1:]):
            if x.shape[0] > 2:
                assert described(compiled, x) == described(fn, x)


def several_across_a_break(x):
    v = (x * 2).split(2, 0)[-1]
    jit.graph_break()
    v[0] = 1.5
    return v


def resized_across_a_break(x):
    v = (x * x).transpose(-1, 0)
    jit.graph_break()
    with torch.no_grad():
        torch.add(x, x, out=v)
    return v


def written_across_a_break(x):
    v = (x * x).transpose(-1, 0)
    jit.graph_break()
    v.mul_(2)
    return v + 1


def break_without_grad(x):
    v = (x * x)[:1]
    with torch.no_grad():
        jit.graph_break()
        u = v * 2
        v.mul_(3)
    return v + 1, u


def one_given_back(x):
    return (x * 2).unbind(0)[-1]


def parts_given_back(x):
    return (x * 2).chunk(2, -1)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [several_across_a_break, resized_across_a_break, written_across_a_break,
                                break_without_grad, one_given_back, parts_given_back],
                         ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_views_of_what_is_no_result_are_views_for_autograd(fn, dynamic):
    """Behind a break, or in the caller, they are refused or resized as in eager."""
    def seen(call, x, written):
        try:
            results = call(x)
            results = results if isinstance(results, tuple) else (results,)
            if written:
                results[0].mul_(2)
            (gradient,) = torch.autograd.grad(sum(r.sin().sum() for r in results), [x])
        except RuntimeError as error:
            return re.sub(r"utput \d+ of \w+", "utput", str(error))
        return [r.detach() for r in results], gradient

    compiled = jit.compile(fn, dynamic=dynamic)
    for shape in ((1, 5), (4, 4), (2, 6), (5, 3)):
        for written in (False, True):
            values = torch.rand(shape)
            for layout in (values, values.t().clone().t(), values.repeat(1, 2)[:, : shape[1]]):
                want, got = [seen(call, layout.detach().requires_grad_(), written) for call in (fn, compiled)]
                if isinstance(want, str):
                    assert got == want
                else:
                    torch.testing.assert_close(got, want)
