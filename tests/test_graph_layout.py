"""Type rules against eager: shapes and strides of results for contiguous, permuted, expanded and sliced inputs."""

import random

import pytest
import torch
import torch.nn.functional as F
from graph_harness import check
from hypothesis import given, settings, strategies as st

import jit
from jit.graph.ir import TensorType
from jit.graph.prims import infer


@st.composite
def layouts(draw, shape):
    """A tensor of this shape with unusual strides: permuted, sliced, expanded, channels-last."""
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    kind = draw(st.sampled_from(("dense", "dense", "sliced", "expanded", "contiguous")))
    if kind == "contiguous" or rank == 0:
        return torch.randn(shape)
    physical = [shape[d] for d in order]
    if kind == "sliced":
        x = torch.randn([s + 1 for s in physical])[tuple(slice(0, s) for s in physical)]
        if draw(st.booleans()):
            x = torch.randn([2 * s for s in physical])[tuple(slice(0, 2 * s, 2) for s in physical)]
    elif kind == "expanded":
        k = draw(st.integers(0, rank - 1))
        x = torch.randn([1 if i == k else s for i, s in enumerate(physical)]).expand(physical)
    else:
        x = torch.randn(physical)
    inverse = [0] * rank
    for i, d in enumerate(order):
        inverse[d] = i
    return x.permute(inverse)


shapes = st.lists(st.sampled_from((1, 2, 3, 4, 1, 5, 0)), min_size=0, max_size=5).map(tuple)
solid = st.lists(st.sampled_from((1, 2, 3, 4, 5)), min_size=1, max_size=5).map(tuple)


@st.composite
def operands(draw, count):
    """Tensors that broadcast together."""
    shape = draw(shapes)
    out = []
    for _ in range(count):
        own = tuple(1 if draw(st.integers(0, 5)) == 0 else s for s in shape)
        own = own[draw(st.sampled_from((0, 0, 0, 1))) :] if own else own
        out.append(draw(layouts(own)))
    return out


@settings(max_examples=30, deadline=None)
@given(operands(2))
def test_binary(xs):
    check(lambda a, b: (a + b, a * 2, torch.exp(a), (a > b), a / b, torch.maximum(b, a)), *xs)


@settings(max_examples=30, deadline=None)
@given(operands(3))
def test_ternary(xs):
    check(lambda a, b, c: (torch.where(a > 0, b, c), torch.addcmul(a, b, c), a.to(torch.float64) * b + c,
                           a.masked_fill(b > 0, 1.0), torch.clamp(a, b, c)), *xs)


@settings(max_examples=30, deadline=None)
@given(operands(2))
def test_mixed_dtypes(xs):
    check(lambda a, b: (a.to(torch.bfloat16) + b, a.double() * b, a.to(torch.int32) + b, a.half()), *xs)


@settings(max_examples=30, deadline=None)
@given(shapes.flatmap(layouts))
def test_unary_copies(x):
    check(lambda x: (x.clone(), x.contiguous(), torch.zeros_like(x), x.double(), x.to(torch.float64, copy=True),
                     F_relu(x), x.flip(list(range(x.dim()))), x.square()), x)


def F_relu(x):
    return torch.nn.functional.relu(x)


@settings(max_examples=30, deadline=None)
@given(solid.flatmap(layouts), st.data())
def test_reductions(x, data):
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    keep = data.draw(st.booleans())
    check(
        lambda x: (x.sum(dim, keep), x.mean(dim, keep), x.amax(dim, keep), x.max(dim, keep), x.argmax(dim, keep),
                   x.cumsum(dim), x.softmax(dim), x.log_softmax(dim), x.sum(), (x > 0).any(dim, keep),
                   x.prod(dim, keep)),
        x,
    )


@settings(max_examples=30, deadline=None)
@given(solid.flatmap(lambda s: st.tuples(layouts(s), layouts(s))), st.data())
def test_cat(xs, data):
    dim = data.draw(st.integers(0, xs[0].dim() - 1))
    check(lambda a, b: (torch.cat([a, b], dim), torch.stack([a, b], dim), torch.cat([a, b.double()], dim)), *xs)


@settings(max_examples=30, deadline=None)
@given(shapes.flatmap(layouts), st.data())
def test_view_programs(x, data):
    """A chain of random views, then a use of the result."""
    steps = []
    y = x
    for _ in range(data.draw(st.integers(1, 4))):
        rank = y.dim()
        kind = data.draw(st.sampled_from(("permute", "slice", "select", "unsqueeze", "squeeze", "flatten", "reshape",
                                          "expand", "transpose", "narrow", "split")))
        if kind == "permute":
            order = data.draw(st.permutations(range(rank)))
            step = lambda t, order=order: t.permute(order)
        elif kind == "unsqueeze":
            d = data.draw(st.integers(-rank - 1, rank))
            step = lambda t, d=d: t.unsqueeze(d)
        elif kind == "squeeze":
            step = lambda t: t.squeeze()
        elif kind == "reshape":
            step = lambda t: t.reshape(-1)
        elif rank == 0:
            continue
        elif kind == "slice":
            a, b, s = (data.draw(st.integers(-4, 5)), data.draw(st.one_of(st.none(), st.integers(-4, 6))),
                       data.draw(st.integers(1, 3)))
            d = data.draw(st.integers(0, rank - 1))
            step = lambda t, a=a, b=b, s=s, d=d: t[(slice(None),) * d + (slice(a, b, s),)]
        elif kind == "select":
            d = data.draw(st.integers(0, rank - 1))
            if y.shape[d] == 0:
                continue
            i = data.draw(st.integers(-y.shape[d], y.shape[d] - 1))
            step = lambda t, d=d, i=i: t.select(d, i)
        elif kind == "flatten":
            a = data.draw(st.integers(0, rank - 1))
            b = data.draw(st.integers(a, rank - 1))
            step = lambda t, a=a, b=b: t.flatten(a, b)
        elif kind == "expand":
            n = data.draw(st.integers(1, 3))
            step = lambda t, n=n: t.unsqueeze(0).expand(n, *t.shape)
        elif kind == "transpose":
            a, b = data.draw(st.integers(0, rank - 1)), data.draw(st.integers(0, rank - 1))
            step = lambda t, a=a, b=b: t.transpose(a, b)
        elif kind == "narrow":
            d = data.draw(st.integers(0, rank - 1))
            n = data.draw(st.integers(0, y.shape[d]))
            s = data.draw(st.integers(0, y.shape[d] - n))
            step = lambda t, d=d, s=s, n=n: t.narrow(d, s, n)
        else:
            d = data.draw(st.integers(0, rank - 1))
            if y.shape[d] == 0:
                continue
            step = lambda t, d=d: t.split(2, d)[-1]
        steps.append(step)
        y = step(y)

    def program(t):
        for s in steps:
            t = s(t)
        return t, t + 1, t.contiguous()

    check(program, x)


@settings(max_examples=30, deadline=None)
@given(solid.flatmap(layouts), st.data())
def test_mutation_programs(x, data):
    """Random writes through random views of an input and of an intermediate."""
    x = (x.clone(memory_format=torch.preserve_format)
         if any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape)) else x)
    rank = x.dim()
    program = []
    for _ in range(data.draw(st.integers(1, 5))):
        target = data.draw(st.integers(0, 1))
        d = data.draw(st.integers(0, rank - 1))
        i = data.draw(st.integers(0, x.shape[d] - 1))
        step = data.draw(st.integers(1, 3))
        view = data.draw(st.sampled_from(("self", "select", "slice", "transpose", "flatten", "unsqueeze")))
        write = data.draw(st.sampled_from(("add_", "mul_", "fill_", "copy_", "setitem", "relu_", "iadd")))
        program.append((target, d, i, step, view, write))

    def run(x):
        y = x * 2 + 1
        kept = y.unsqueeze(0)
        for target, d, i, step, view, write in program:
            t = (x, y)[target]
            if view == "select":
                t = t.select(d, i)
            elif view == "slice":
                t = t[(slice(None),) * d + (slice(i, None, step),)]
            elif view == "transpose":
                t = t.transpose(0, d)
            elif view == "flatten":
                t = t.view(t.shape).unsqueeze(0)[0]
            elif view == "unsqueeze":
                t = t.unsqueeze(d)
            if write == "add_":
                t.add_(1.5)
            elif write == "mul_":
                t.mul_(t.sum())
            elif write == "fill_":
                t.fill_(float(i))
            elif write == "copy_":
                t.copy_((y, x)[target].mean())
            elif write == "setitem":
                t[...] = t * 0.5
            elif write == "relu_":
                t.relu_()
            else:
                t += 1
        return y, kept, x.sum(), y.flatten()

    check(run, x, rtol=1e-3, atol=1e-3)


def test_strides_of_dimensions_of_size_one_that_are_normalised():
    """A product's, where the whole is dense in row order; row-major ones elsewhere."""
    for shape, strides in (((1, 5), (1, 1)), ((1, 5), (7, 1)), ((4, 5), (1, 4)), ((4, 1), (1, 4)), ((4, 1), (3, 1)),
                           ((1, 5), (0, 1)), ((2, 1, 4), (4, 1, 1)), ((2, 1, 4), (4, 9, 1)), ((1, 4), (1, 2)),
                           ((1, 3, 2, 2), (12, 1, 6, 3)), ((2, 3, 2, 2), (12, 1, 6, 3))):
        x = torch.randn(64).as_strided(shape, strides)
        compiled = jit.compile(lambda x: (F.rms_norm(x, x.shape[-1:]),
                                          F.rms_norm(x, x.shape[-1:], torch.ones(x.shape[-1:])),
                                          F.rms_norm(x, x.shape)))
        for k, y in enumerate(compiled(x)):
            want = (F.rms_norm(x, x.shape[-1:]), F.rms_norm(x, x.shape[-1:], torch.ones(x.shape[-1:])),
                    F.rms_norm(x, x.shape))[k]
            assert y.stride() == want.stride(), (shape, strides, k)
            torch.testing.assert_close(y, want)


def test_layouts_of_advanced_indexing():
    """Of sources and index tensors with any strides, and dimensions of one element, which count in the order of the
    result's."""
    def typed(t):
        return TensorType(tuple(t.shape), tuple(t.stride()), t.dtype, t.device)

    rng = random.Random(0)
    for _ in range(3000):
        rank = rng.randrange(1, 5)
        many = rng.randrange(1, rank + 1)
        first = rng.randrange(rank - many + 1)
        shape = [8 if first <= d < first + many else rng.randrange(1, 4) for d in range(rank)]
        x = torch.empty(2000).as_strided(shape, [rng.randrange(20) for _ in shape])
        sizes = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))]
        indices = [torch.zeros(200, dtype=torch.int64).as_strided(sizes, [rng.randrange(9) for _ in sizes])
                   for _ in range(many)]
        want = x[(slice(None),) * first + tuple(indices)]
        found = infer("index", tuple(map(typed, (x, *indices))), {"dims": list(range(first, first + many))})
        assert found.strides == want.stride(), (shape, x.stride(), first, [(i.shape, i.stride()) for i in indices])


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (4, 5, 3, 2), (4, 5, 2, 3, 2)], ids=str)
def test_losses_per_element_are_dense(shape):
    """Whatever the layouts of scores and classes, which change in one entry's life."""
    programs = [lambda x, t: F.nll_loss(x, t, reduction="none"),
                lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=0.1),
                lambda x, t: F.cross_entropy(x, t, reduction="none")]
    compiled = [jit.compile(f) for f in programs]
    scores, classes = torch.randn(shape), torch.randint(0, 5, shape[:1] + shape[2:])

    def laid_out(t):
        yield t
        for d in range(t.dim() - 1):
            yield t.transpose(d, -1).contiguous().transpose(d, -1)
        yield torch.stack([t, t], -1)[..., 1]

    for x in laid_out(scores):
        for t in laid_out(classes):
            for f, g in zip(programs, compiled, strict=True):
                want, got = f(x, t), g(x, t)
                torch.testing.assert_close(got, want, check_stride=True)


PAIRS = {
    "rsub": torch.rsub, "rsub with a factor": lambda x, y: torch.rsub(x, y, alpha=2), "-": lambda x, y: x - y,
    "reflected //": lambda x, y: x.__rfloordiv__(y), "reflected %": lambda x, y: x.__rmod__(y),
    "reflected **": lambda x, y: x.abs().__rpow__(y.abs()), "reflected -": lambda x, y: x.__rsub__(y),
    "where": lambda x, y: torch.where(y > 0, y, x), "addcmul": lambda x, y: torch.addcmul(y, y, x),
    "lerp": lambda x, y: torch.lerp(y, x, 0.3),
    "huber_loss": lambda x, y: F.huber_loss(*torch.broadcast_tensors(x, y), reduction="none"), "fmod": torch.fmod,
    "copysign": torch.copysign, "mse_loss": lambda x, y: F.mse_loss(*torch.broadcast_tensors(x, y), reduction="none"),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(*torch.broadcast_tensors(x, y), reduction="none"),
    "masked_fill": lambda x, y: y.masked_fill(x > 0, 1.0),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(*torch.broadcast_tensors(x, y), reduction="none"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_operands_of_different_layouts(name):
    """The result's strides are those of the operand that eager's kernel takes first, and so are the values."""
    dense, turned, row = torch.randn(5, 10, 5), torch.randn(5, 10, 5).permute(2, 1, 0), torch.randn(10, 5)
    compiled = jit.compile(PAIRS[name])
    for x, y in (((turned, row), (row, turned), (turned, dense), (dense, turned), (turned[:3], dense[:3]),
                  (dense[:, ::2], turned[:, ::2]))):
        if name != "masked_fill" or y.dim() == 3:
            torch.testing.assert_close(compiled(x, y), PAIRS[name](x, y), check_stride=True)
