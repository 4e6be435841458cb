"""Results that are arguments or views of them though no schema says so, ``as_strided`` and its bounds, and which
results require grad: on the real backend."""

import itertools
import math

import pytest
import torch

import jit
from frame_harness import all_equal, same
from inplace_harness import check
from sharing.programs import compare, compare_history, database, label, samples
from sharing.traced import differences

SILENT = ("atleast_1d", "atleast_3d", "einsum", "meshgrid.variadic_tensors", "cartesian_prod", "sum_to_size",
          "unsafe_split", "unsafe_chunk")
COPIES = ("round", "block_diag", "hstack", "nn.functional.pad.constant", "positive", "combinations")


@pytest.mark.parametrize("name", SILENT + COPIES)
def test_operators_share_memory_as_in_eager(name):
    info = next(info for info in database() if label(info) == name)
    for args, kwargs in samples(info, 2)[-1:]:
        assert compare(info.op, args, kwargs, native=name in SILENT[:3]) == []


@pytest.mark.parametrize("name", ("zeros_like", "__rpow__", "cat"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.complex64), ids=str)
def test_operators_have_a_history_as_in_eager(name, dtype):
    info = next(info for info in database() if label(info) == name)
    for args, kwargs in samples(info, 2, dtype):
        assert compare_history(info.op, args, kwargs) == []


TRACED = [
    *SILENT, *COPIES,
    *"""full_like pow where lerp heaviside nn.functional.hinge_embedding_loss nn.functional.cosine_embedding_loss
    linspace.tensor_overload sum_to_size expand_as dsplit unfold nn.functional.dropout
    nn.functional.feature_alpha_dropout.without_train real float narrow_copy tile""".split()]


@pytest.mark.parametrize("name", sorted(set(TRACED)))
def test_the_tracer_knows_memory_and_history(name):
    for info in [info for info in database() if label(info) == name]:
        for args, kwargs in samples(info, 4):
            assert differences(info.op, args, kwargs) == []


def both_ways(view, make):
    """A write through what ``view`` gives, seen in its argument, and the other way round; of an input and of a value
    made in the program."""

    def through(x):
        y = view(x)
        y.mul_(3)
        return x + 1, y

    def under(x):
        made = x * 2
        y = view(made)
        made.add_(1)
        return y * 2, made, y

    for f in (through, under):
        compiled = jit.compile(f, fullgraph=True)
        for m in make:
            check(f, lambda m=m: ((m(),), ()), compiled)


SQUARE = (lambda: torch.arange(9.0).view(3, 3), lambda: torch.arange(16.0).view(4, 4),
          lambda: torch.arange(25.0).view(5, 5).t(), lambda: torch.arange(72.0).view(6, 12)[:, ::2])


@pytest.mark.parametrize("view", (
    lambda y: torch.einsum("ii->i", y), lambda y: torch.einsum("ij->ji", y), lambda y: torch.einsum("ij", y),
    torch.atleast_1d, torch.atleast_2d, torch.atleast_3d, lambda y: y.sum_to_size(y.shape),
    lambda y: torch.cartesian_prod(y[0]), lambda y: torch.meshgrid(y[0], indexing="ij")[0],
    lambda y: torch.unsafe_split(y, 2)[0], lambda y: torch.unsafe_chunk(y, 2, 1)[1]), ids=lambda f: None)  # fmt: skip
def test_silent_views_at_several_shapes(view):
    both_ways(view, SQUARE)


def test_identity_and_copies():
    def f(x):
        one = torch.atleast_2d(x)
        other = x.sum_to_size(x.shape)
        part = torch.cartesian_prod(x[0])
        copy = torch.einsum("ij,ij->ij", x, x)
        return one is x, other is x, part, copy, one

    compiled = jit.compile(f, fullgraph=True)
    for make in SQUARE:
        check(f, lambda make=make: ((make(),), ()), compiled)


@pytest.mark.parametrize("view", (
    lambda x: torch.view_as_complex(x.view(-1, 2)), lambda x: torch.view_as_complex(x.view(-1, 2)).imag,
    lambda x: x.as_strided((3, 2), (1, 1)), lambda x: x.unfold(0, 3, 2), lambda x: x.view(-1, 2).unfold(0, 2, 1)),
    ids=lambda f: None)  # fmt: skip
@pytest.mark.parametrize("grad", (False, True), ids=("data", "grad"))
def test_views_that_the_library_makes_share_the_version_counter(view, grad):
    def f(x):
        y = x * 2
        return view(x), y, view(y)

    def hidden(x):
        with torch.no_grad():
            return f(x)

    def beside(x):
        return x * 3, *hidden(x)

    for fn in (f, hidden, beside):
        compiled = jit.compile(fn)
        for size in (8, 8, 12, 16):
            check(fn, lambda size=size: ((torch.arange(float(size)).requires_grad_(grad),), ()), compiled, calls=1)


def test_gradients_of_silent_views():
    def f(x):
        y = x * 2
        torch.einsum("ii->i", y).mul_(3)
        return y, torch.einsum("ij->ji", y), torch.atleast_3d(x)

    compiled = jit.compile(f)
    for make in SQUARE:
        check(f, lambda make=make: ((make().requires_grad_() * 1,), ()), compiled)


# as_strided


def outcomes(f, makes, repeat=1, **options):
    """``f`` and its compiled form on each of the inputs, in turn: results, errors and the inputs afterwards."""
    compiled = jit.compile(f, **options)
    for k, make in itertools.product(range(repeat), makes):
        found = []
        for fn in (f, compiled):
            x = make()
            try:
                found.append((fn(x), x))
            except RuntimeError as error:
                found.append((str(error), x))
        same(found[0], found[1], f"call {k} on {tuple(x.shape)}")


def numbers(*shape):
    return lambda: torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


BUFFER = torch.arange(40.0)


@pytest.mark.parametrize("f", (
    lambda x: (x + 1).as_strided((2, 3), (3, 1)) * 1,
    lambda x: ((x + 1).as_strided((2, 3), (3, 1)), x * 2)[1],
    lambda x: (x + 1)[1:].as_strided((2, 2), (2, 1)),
    lambda x: (x + 1).as_strided((), (), 5),
    lambda x: (x + 1).as_strided((2,), (1,), 1 << 40),
    lambda x: (x + 1).as_strided((2, 2), (1 << 50, 1)),
    lambda x: (x + 1).as_strided((2,), (-1,)),
    lambda x: (x + 1).as_strided((2,), (1,), -1),
    lambda x: (x + 1).as_strided((2, 2), (1,)),
    lambda x: (x + 1).as_strided((0, 3), (3, 1), 100),
    lambda x: (x + 1).as_strided((x.shape[0], 2), (1, 1)),
    lambda x: (x + 1).as_strided((x.shape[0] - 1, 2), (1, 1)),
    lambda x: torch.as_strided_copy(x * 2, (2, 2), (2, 1)),
    lambda x: torch.as_strided_scatter(x * 2, torch.zeros(2, 2), (2, 2), (2, 1)),
    lambda x: torch.cat([torch.ones(4).as_strided((3, 2), (1, 1)).sum(0), x]),
), ids=lambda f: None)  # fmt: skip
def test_as_strided_stays_inside_made_values(f):
    outcomes(f, [numbers(6), numbers(2), numbers(4), numbers(5), numbers(7), numbers(3)])


@pytest.mark.parametrize("f", (
    lambda x: (lambda y: (y.as_strided((2, 3), (3, 1)).mul_(0), y))(x + 1),
    lambda x: (lambda y: (y[1:].as_strided((2, 2), (2, 1)).mul_(2), y))(x * 3),
    lambda x: (lambda y: (y.view(-1).as_strided((2,), (3,)).add_(1), y))(x + 1),
    lambda x: (lambda y: (y.as_strided((2, 2), (1, 2), 1).mul_(3), y))(x + 1),
    lambda x: (lambda y: (y.as_strided((2, 2), (3, 1), 2).mul_(3), y))(x + 1),
), ids=lambda f: None)  # fmt: skip
def test_writes_through_as_strided(f):
    outcomes(f, [numbers(6), numbers(2), numbers(7), numbers(5), numbers(8)])


@pytest.mark.parametrize("f", (
    lambda x: x.as_strided((2, 2), (2, 1)),
    lambda x: x.as_strided((2, 2), (2, 1), 3) * 2,
    lambda x: (x.as_strided((2, 2), (2, 1), 3), x * 2)[1],
    lambda x: (x.as_strided((2,), (1,), 1).mul_(2), x + 0),
    lambda x: (x[1:].as_strided((2,), (2,)).mul_(2), x + 0),
), ids=lambda f: None)  # fmt: skip
def test_as_strided_of_inputs_knows_their_storage(f):
    cut = [lambda a=a, b=b: BUFFER.clone()[a:b]
           for a, b in ((0, 7), (0, 4), (37, 40), (36, 40), (2, 6), (38, 40), (0, 7))]
    outcomes(f, [numbers(7), numbers(4), numbers(3), *cut, numbers(2), numbers(7)], repeat=2)


@pytest.mark.parametrize("grad", (False, True))
def test_as_strided_scatter_at_places_that_change(grad):
    compiled = jit.compile(torch.as_strided_scatter, fullgraph=True)
    for shape, size, stride, offset in (((1,), (), (), 0), ((3, 3), (2, 2), (1, 2), 1), ((3, 3), (2, 2), (2, 1), 0),
                                        ((16,), (2, 2), (8, 3), 2), ((4, 4), (2, 2), (1, 2), 11),
                                        ((4, 4), (3, 2), (5, 1), 4)):
        outcomes = []
        for f in (torch.as_strided_scatter, compiled):
            x, src = (torch.arange(float(math.prod(shape))).view(shape).requires_grad_(grad),
                      (-torch.ones(size)).requires_grad_(grad))
            made = f(x, src, size, stride, offset)
            outcomes.append([made.detach(), *(torch.autograd.grad((made * made).sum(), (x, src)) if grad else ())])
        assert all_equal(*outcomes)


@pytest.mark.parametrize("op", (torch.as_strided, torch.as_strided_copy), ids=lambda f: f.__name__)
@pytest.mark.parametrize("place", (((2, 2), (1, 2), None), ((2, 2), (1, 2), 1), ((3, 2), (5, 1), 12),
                                   ((2, 3), (0, 1), 25), ((2, 2), (7, 3), 30), ((4,), (2,), 26)), ids=str)
def test_gradients_of_as_strided_at_places_in_the_storage(op, place):
    layouts = {
        "dense": lambda b: b * 1, "sliced": lambda b: b[:, 2:7], "transposed": lambda b: b.t(),
        "corner": lambda b: b[2:5, 3:], "stepped": lambda b: b[1:, ::2], "expanded": lambda b: b[2].expand(4, 10),
        "flat": lambda b: b.view(-1)[7:40],
    }  # fmt: skip
    for last in (lambda y: y * 2, lambda y: y):
        def program(x):
            return last(op(x, *place))

        for kind, view in layouts.items():
            jit.reset()
            outcomes = []
            for f in (program, jit.compile(program)):
                base = torch.arange(60.0).view(6, 10).requires_grad_()
                made = f(view(base))
                weights = torch.arange(1.0, made.numel() + 1).view(made.shape)
                outcomes.append((made.detach(), made.stride(), torch.autograd.grad((made * weights).sum(), base)[0]))
            (a, b, c), (d, e, g) = outcomes
            assert torch.equal(a, d) and b == e and torch.equal(c, g), kind


def test_as_strided_sees_eagers_layout():
    def f(x):
        last = (x * 2).contiguous(memory_format=torch.channels_last)
        turned = x.transpose(2, 3).mul(3)
        windows = (x + 1).as_strided((4, 5), (2, 1))
        return last.as_strided((6,), (2,), 1) * 1, turned.as_strided((8,), (3,)) + 0, windows * 2, torch.cat([last, x])

    outcomes(f, [numbers(2, 3, 4, 4), numbers(1, 3, 5, 5),
                 lambda: numbers(2, 3, 4, 4)().to(memory_format=torch.channels_last)])


def test_gradient_of_a_write_through_as_strided():
    def f(x):
        y = x.as_strided((2, 2), (2, 1))
        y.mul_(2)
        return y, x

    check(f, lambda: ((torch.arange(4.0).requires_grad_() * 1,), ()), jit.compile(f))


# gradients


@pytest.mark.parametrize("view", (lambda x: x.t(), lambda x: x[0], lambda x: x[:, 1:], lambda x: x.movedim(0, 1),
                                  lambda x: (x.t(), x[1])), ids=lambda f: None)
@pytest.mark.parametrize("leaf", (lambda: torch.ones(2, 1).expand(2, 3), lambda: torch.ones(()).expand(3, 3),
                                  lambda: torch.arange(4.0).as_strided((3, 2), (1, 1)), lambda: torch.ones(2, 3)),
                         ids=("row", "number", "windows", "plain"))  # fmt: skip
def test_gradient_of_views_of_inputs_that_overlap(view, leaf):
    compiled = jit.compile(view)
    for _ in range(2):
        found = []
        for f in (view, compiled):
            x = leaf().requires_grad_()
            out = f(x)
            out = out if isinstance(out, tuple) else (out,)
            sum((o * torch.arange(1.0, 1 + o.numel()).view(o.shape)).sum() for o in out).backward()
            found.append(([o.detach() for o in out], x.grad))
        same(*found)


@pytest.mark.parametrize("f", (
    lambda x: 1**x,
    lambda x: torch.cat([x[:0], torch.ones(2)]),
    lambda x: (torch.zeros_like(x), x.new_ones(3), torch.full_like(x, 2)),
    lambda x: torch.cat([x[:0], x.detach() * 2]),
    lambda x: torch.where(torch.ones(3, dtype=torch.bool), torch.ones(3), x),
    lambda x: torch.lerp(torch.ones(3, dtype=x.dtype), x, 0.0),
    lambda x: x.repeat(0, 1),
), ids=lambda f: None)  # fmt: skip
@pytest.mark.parametrize("dtype", (torch.float32, torch.complex64), ids=str)
def test_requires_grad_is_eagers(f, dtype):
    def told(x):
        y = f(x)
        return y, [t.requires_grad for t in (y if isinstance(y, tuple) else (y,))]

    compiled = jit.compile(told)
    for size in (3, 3):
        check(told, lambda size=size: ((torch.ones(size, dtype=dtype).mul(2).requires_grad_(),), ()), compiled)


@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("grad", (False, True), ids=("data", "grad"))
@pytest.mark.parametrize("fn", [
    lambda x: x.clone().as_strided((2, 2), (1, 2)).double(),
    lambda x: torch.cat([x]).as_strided((2, 2), (1, 2)).double(), lambda x: (x + 0).as_strided((2, 2), (1, 2)).double(),
    lambda x: x.clone().as_strided((2, 2), (1, 2), 1) * x[0, 0],
    lambda x: x[:, :3].clone().as_strided((2, 2), (1, 2), 1).double(),
    lambda x: x.clone().as_strided((x.shape[0] - 1, 3), x.stride()).double(),
    lambda x: x.roll(1, 0).as_strided((2, 2), (1, 2)).double(),
    lambda x: x.to(torch.float64).float().as_strided((2, 2), (1, 2)).double(),
    lambda x: torch.nn.functional.pad(x, (0, 0)).as_strided((2, 2), (1, 2)).double()], ids=lambda f: None)  # fmt: skip
def test_as_strided_of_a_copy_of_a_part(fn, grad, dynamic):
    """It counts from the start of the copy, which no other tensor of the same values may take the place of."""
    compiled = jit.compile(fn, dynamic=dynamic)
    for n in (4, 5, 6):
        base = torch.arange(60.0)
        for size, stride, offset in (((n, 4), (4, 1), 5), ((n, 4), (1, n), 2), ((n, 4), (5, 1), 3)):
            found = []
            for f in (fn, compiled):
                leaf = base.clone().requires_grad_(grad)
                y = f(leaf.as_strided(size, stride, offset))
                found.append((y.detach(), *(torch.autograd.grad((y * y).sum(), leaf) if grad else ())))
            torch.testing.assert_close(found[1], found[0])


def test_a_tensor_times_a_tuple():
    """Eager's error, and no internal failure."""
    def f(x):
        return x.any(-1) * (1, 2)

    for fn in (f, jit.compile(f)):
        with pytest.raises(TypeError):
            fn(torch.rand(2, 2))
