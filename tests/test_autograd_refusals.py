"""What autograd refuses in eager: results that cannot require grad, ``out=``, functions without a derivative."""

import pytest
import torch
import torch.nn.functional as F
from frame_harness import refusal

import jit

INTEGERS = {
    "sum": lambda x: x.sum(dtype=torch.int64),
    "sum of what is computed": lambda x: (x * 2).sum(dtype=torch.int64),
    "prod": lambda x: x.prod(dtype=torch.int32),
    "cumsum": lambda x: x.cumsum(0, dtype=torch.int64),
    "cumprod": lambda x: x.cumprod(0, dtype=torch.int64),
    "nansum": lambda x: x.nansum(dtype=torch.int64),
    "mean": lambda x: x.mean(dtype=torch.int64),
    "out=": lambda x: torch.add(x, 1, out=torch.ones(x.shape)),
    "a leaf changed in place": lambda x: x.add_(1),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_refused_where_gradients_are_recorded(name, used):
    def fn(x):
        y = INTEGERS[name](x)
        return y if used else x.detach() + 1

    for requires_grad, size in ((False, 3), (True, 3), (False, 5), (True, 6000), (True, 7)):
        jit.reset()
        compiled = jit.compile(fn)
        for n in (size, size + 1, size + 2):
            x = torch.ones(n, requires_grad=requires_grad)
            assert refusal(compiled, x) == refusal(fn, x)


@pytest.mark.parametrize("fn", [lambda x: x // 2, lambda x: 7 // x, lambda x: x // x.detach() + x,
                                lambda x: torch.histc(x), lambda x: x.argsort().float()],
                         ids=["floor division", "of a number", "partly", "histc", "argsort"])
def test_refused_in_the_backward(fn):
    def gradient(f):
        def run():
            x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
            f(x).sum().backward()

        return run

    expected = refusal(gradient(fn))
    assert expected is not None and refusal(gradient(jit.compile(fn))) == expected


LOSSES = {
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "l1_loss": F.l1_loss,
    "soft_margin_loss": F.soft_margin_loss,
    "product": lambda x, y: (x * y).sum(),
    "where": lambda x, y: torch.where(y > 0, x, y).sum(),
    "distance": lambda x, y: torch.dist(x, y.to(x.dtype)),
}


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bool), (torch.float32, torch.int64),
                                    (torch.float16, torch.float32), (torch.float64, torch.float32)],
                         ids=lambda d: "-".join(str(t)[6:] for t in d))
@pytest.mark.parametrize("name", LOSSES)
def test_a_backward_that_does_not_take_the_dtypes_of_its_forward(name, dtypes):
    def fn(x, y):
        return LOSSES[name](x * 2, y)

    def outcome(f, shape, swap):
        x, y = (torch.linspace(-1, 1, 12).to(dtypes[0]).view(shape).requires_grad_(),
                torch.arange(12).view(shape).to(dtypes[1]))
        try:
            result = f(y, x) if swap else f(x, y)
        except Exception as error:
            return type(error), str(error)
        try:
            result.backward()
        except Exception as error:
            return result.dtype, type(error), str(error)
        return result.dtype, None if x.grad is None else x.grad.dtype, x.grad

    jit.reset()
    compiled = jit.compile(fn)
    for shape in ((3, 4), (2, 6), (4, 3)):
        for swap in (False, True):
            want, got = outcome(fn, shape, swap), outcome(compiled, shape, swap)
            assert want[:2] == got[:2]
            if isinstance(want[-1], torch.Tensor):
                torch.testing.assert_close(got[-1], want[-1])
            else:
                assert want == got


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("steps", [False, True], ids=["slopes", "steps"])
@pytest.mark.parametrize("name", ["scatter_add", "scatter", "scatter_reduce", "nll"])
def test_operands_of_which_only_a_part_is_read(name, steps, dynamic):
    """The forward takes them; eager's backward does not, whether or not anything comes of their gradients."""
    programs = {
        "scatter_reduce": lambda x, y, i: torch.zeros_like(x).scatter_reduce(
            dim=0, index=i[:, None].expand(-1, x.shape[1]), src=y, reduce="sum"),
        "scatter_add": lambda x, y, i: torch.zeros_like(x).scatter_add(0, i[:, None].expand(-1, x.shape[1]), y),
        "scatter": lambda x, y, i: torch.zeros_like(x).scatter(0, i[:, None].expand(-1, x.shape[1]), y),
        "nll": lambda x, y, i: torch.nn.functional.nll_loss(torch.log_softmax(x[0], -1), i[: y.shape[1] // 4]),
    }
    def program(x, y, i):
        return programs[name](*(v.round() if steps else v for v in (x, y)), i)

    compiled = jit.compile(program, dynamic=dynamic)
    for rows, columns, wide in ((4, 4, 4), (3, 4, 7), (4, 5, 5), (4, 2, 6)):
        told = []
        for fn in (program, compiled):
            torch.manual_seed(0)
            x, y = torch.randn(rows, columns, requires_grad=True), torch.randn(3, wide, requires_grad=True)
            result = fn(x, y, torch.tensor([1, 0, 2]))
            try:
                told.append((result.detach(), torch.autograd.grad(result.sum(), [x, y], allow_unused=True)))
            except RuntimeError as error:
                told.append((result.detach(), str(error)))
        assert isinstance(told[0][1], str) == isinstance(told[1][1], str), (rows, columns, wide, told)
        if steps and isinstance(told[0][1], str):
            assert told[0][1] == told[1][1]
        torch.testing.assert_close(told[0][0], told[1][0])
        if not isinstance(told[0][1], str):
            torch.testing.assert_close(told[0][1], told[1][1])


def test_out_that_shares_memory_with_an_operand():
    def f(x, y):
        doubled = x * 2
        return torch.add(doubled, x.chunk(2, -1)[0], out=y)

    def g(x, y):
        return torch.add(y, y[:, None], out=y[:, None])

    for function, requires_grad in ((f, True), (g, False)):
        compiled = jit.compile(function)
        for n in (4, 6):
            errors = []
            for call in (function, compiled):
                x = torch.ones(n, 1, requires_grad=requires_grad) * 1
                y = x if requires_grad else torch.ones(1, n)
                with pytest.raises(RuntimeError) as error:
                    call(x, y)
                errors.append(str(error.value))
            assert errors[0] == errors[1]


def test_rows_without_elements_added_by_any_index():
    def f(x, i):
        return torch.zeros_like(x).index_add(0, i, x.index_fill(0, i.clamp(0, 1), 2)[i] * 2)

    compiled = jit.compile(f)
    for i in (torch.tensor([0, 1]), torch.tensor([7, 0]), torch.tensor([-1])):
        found = []
        for call in (f, compiled):
            x = torch.empty(3, 0, requires_grad=True)
            try:
                call(x, i).sum().backward()
                found.append(x.grad.shape)
            except (RuntimeError, IndexError) as e:
                found.append((type(e), str(e)))
        assert found[0] == found[1]


def test_a_mask_without_dimensions():
    """PyTorch writes to a view that it makes for it."""
    def fn(x):
        try:
            x[x.mean() > 0.5] = 2
        except RuntimeError as error:
            return str(error)
        return x * 1

    fast = jit.compile(fn)
    for make in (lambda: torch.ones(3, requires_grad=True), lambda: torch.ones(3, requires_grad=True) * 1,
                 lambda: torch.ones(3), lambda: torch.ones(4, requires_grad=True)[1:]):
        expected, found = fn(make()), fast(make())
        assert expected == found if isinstance(expected, str) else torch.equal(expected, found)


def _places():
    """Tensors of eight that share memory with what is returned first, by how autograd lets them be written."""
    leaf = (torch.arange(40.0) / 10 - 2).requires_grad_()
    whole = leaf.detach()[:8].clone().requires_grad_()
    computed = leaf * 1
    with torch.no_grad():
        unrecorded = computed[:8]
    return {"computed": (computed, computed[:8].flip(0)), "a view": (computed, computed[8:16]),
            "a leaf": (whole, whole), "a view of a leaf": (leaf, leaf[8:16]), "of no_grad": (computed, unrecorded)}


@pytest.mark.parametrize("first", ["computed", "a view", "a leaf", "a view of a leaf"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_refused_after_a_change(first, dynamic):
    """What has changed before autograd refuses a change stays changed, also where the entry was made of a tensor that
    may be changed."""
    def fn(x, seen):
        with torch.no_grad():
            x.clamp_(-1, 1)
        seen.append(1)
        y = x.exp().sum()
        x.mul_(2)
        return y

    jit.reset()
    compiled = jit.compile(fn, dynamic=dynamic)
    for name in (first, *_places()):
        (base, x), (of_eager, y) = _places()[name], _places()[name]
        seen, wanted = [], []
        assert refusal(compiled, x, seen) == refusal(fn, y, wanted), name
        assert torch.equal(base, of_eager) and torch.equal(x, y) and seen == wanted, name


STRIDED = {"every other": lambda y: y[:, ::2], "column": lambda y: y[:, 1], "transposed": lambda y: y.t()[1:],
           "expanded": lambda y: y[:, :1].expand(3, 4)}


@pytest.mark.parametrize("view", STRIDED)
def test_a_strided_view_of_a_result_is_written(view):
    """What is asked of eager about a write is asked of a result of these strides, and not of a view of a leaf."""
    def fn(x):
        y = x * 2
        shown = STRIDED[view](y)
        try:
            shown += 1
        except RuntimeError as error:
            return str(error)
        return (y * y).sum()

    found = []
    for run in (fn, jit.compile(fn)):
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        result = run(x)
        if torch.is_tensor(result):
            result.backward()
            result = float(result.detach()), x.grad.tolist()
        found.append(result)
    assert found[0] == found[1]


@pytest.mark.parametrize("fn", [
    lambda x, w: x.chunk(2)[0].mul_(w), lambda x, w: x.unbind(0)[0].add_(w), lambda x, w: (x * 1).unbind(0)[0].add_(w),
    lambda x, w: x[:2].sub_(w)])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_which_of_two_errors_comes_first(fn, shape):
    def caught(x, w):
        try:
            fn(x, w)
        except RuntimeError as error:
            return str(error)

    x = torch.ones(3, requires_grad=True)
    assert jit.compile(caught)(x, torch.ones(shape)) == caught(x, torch.ones(shape))
