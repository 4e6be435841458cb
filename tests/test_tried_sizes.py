"""How often one function is compiled for inputs that vary: sizes that are tried as symbols, loops that go on after a
break at any position, sizes that are added, sorted and written at. Results are eager's at each call."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit
from jit.frame import dispatch


def most():
    """The most compiles of one function."""
    return max((len(d.on_miss.captures) for d in list(dispatch._dispatchers) if hasattr(d.on_miss, "captures")),
               default=0)


@pytest.fixture(autouse=True)
def none_before():
    jit.reset()
    yield
    jit.reset()


def check(fn, calls, limit, compiled=None):
    compiled = compiled or jit.compile(fn)
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args))
    assert most() <= limit
    return compiled


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, cache=None):
        b, t = x.shape[:2]
        q, k, v = self.qkv(x).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4).contiguous()
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(y.transpose(1, 2).reshape(b, t, 8)), (k, v)


def test_a_prompt_and_then_a_word_at_a_time():
    model = Attention()

    def generate(step, n):
        x, outs = torch.randn(2, n, 8, generator=torch.Generator().manual_seed(n)), []
        y, cache = step(x)
        for _ in range(4):
            y, cache = step(y[:, -1:].contiguous(), cache)
            outs.append(y)
        return torch.stack(outs), cache

    compiled = jit.compile(model)
    with torch.no_grad():
        for n in (6, 6, 7, 9, 12, 3):
            torch.testing.assert_close(generate(compiled, n), generate(model, n))
    assert most() <= 3


def test_what_the_program_holds_to_a_number_is_one():
    weight = torch.randn(6, 5)

    def f(x, y=None):
        return x.sin() if y is None else x.sum() + (y @ weight).relu()

    compiled = check(f, [(torch.randn(n, 4),) for n in (3, 4)], 2)
    compiled(torch.randn(5, 4), torch.randn(3, 6))
    tried = compiled.on_miss.dynamic.tried
    assert {d for _, d in tried.numbers} == {1}
    check(f, [(torch.randn(5, 4), torch.randn(n, 6)) for n in (2, 4, 9)], 3, compiled)
    for bad in (5, 7):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(5, 4), torch.randn(3, bad))


def test_sizes_that_are_not_held_may_change():
    def f(x, y=None):
        return x * 2 if y is None else (x.sum() * y.softmax(-1), y.flatten(), y.t().contiguous())

    calls = [(torch.randn(n, 4),) for n in (3, 4)]
    shapes = (2, 3), (2, 7), (6, 3), (4, 4), (1, 5), (5, 1), (0, 2)
    calls += [(torch.randn(5, 4), torch.randn(shape)) for shape in shapes]
    check(f, calls, 7)  # sizes of 0 and 1 are entries of their own


def test_the_sizes_come_after_other_inputs():
    def f(parts):
        return parts["a"] * 2, parts["b"].sum() + (parts["c"].cumsum(0) if "c" in parts else 0)

    def call(n, c=None):
        return ({"a": torch.randn(3, 2), "b": torch.randn(n), **({"c": torch.randn(c)} if c else {})},)

    check(f, [call(4), call(5, 6), call(5, 7), call(6, 3), call(7)], 3)


def test_layers_over_sequences_are_compiled_once():
    model = nn.LSTM(4, 6, batch_first=True)

    def f(x):
        out, (h, c) = model(x)
        return out.sin().mean(1), h, c

    check(f, [(torch.randn(b, t, 4),) for b, t in ((3, 7), (3, 8), (5, 4), (2, 11))], 1)
    compiled = jit.compile(f)
    for t in (5, 6, 9):
        grads = []
        for fn in (f, compiled):
            model.zero_grad()
            fn(torch.ones(2, t, 4))[0].sum().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        torch.testing.assert_close(*grads)
    with pytest.raises(RuntimeError, match="4"):
        compiled(torch.randn(2, 3, 5))


def test_a_loop_over_the_steps_beside_such_a_layer():
    model = nn.GRU(4, 4, batch_first=True)

    def f(x):
        out = model(x)[0]
        total = 0
        for t in range(x.shape[1]):
            total = total * 0.5 + out[:, t]
        return total

    check(f, [(torch.randn(2, t, 4),) for t in (3, 4, 3, 4)], 4)


def test_with_fullgraph_nothing_is_refused_that_numbers_allow():
    def f(x, y=None):
        return x.sin() if y is None else x.sum() + torch.stack([row * i for i, row in enumerate(y.unbind(0))])

    compiled = jit.compile(f, fullgraph=True)
    for args in ((torch.randn(3, 4),), (torch.randn(4, 4), torch.randn(3, 2)), (torch.randn(5, 4), torch.randn(4, 2))):
        torch.testing.assert_close(compiled(*args), f(*args))


def rounds(x, layers, log):
    for i, w in enumerate(layers):
        x = (x @ w).tanh() + i
        log.append(float(x.sum()) > 0)
        if x.sum() > 0:
            x = x * 2
    return x


@pytest.mark.parametrize("learns", [False, True])
def test_what_goes_on_after_a_break_in_a_loop(learns):
    torch.manual_seed(0)
    compiled = jit.compile(rounds)
    for n in (3, 4, 5, 7):
        layers = [torch.randn(4, 4, requires_grad=learns) for _ in range(7)]
        logs = [], []
        x = torch.randn(n, 4)
        want, got = rounds(x, layers, logs[0]), compiled(x, layers, logs[1])
        torch.testing.assert_close(got, want)
        assert logs[0] == logs[1]
        if learns:
            torch.testing.assert_close(*(torch.autograd.grad(out.sum(), layers) for out in (got, want)))
    assert most() <= 4


def test_iterators_end_where_they_end():
    def f(x, it):
        for a, b in it:
            x = x * a + b
            print(end="")
        return x

    compiled = jit.compile(f)
    for n in range(8):
        want, got = (fn(torch.ones(2), zip(range(n), [1.0] * 5)) for fn in (f, compiled))
        torch.testing.assert_close(got, want)


def test_sizes_added_and_sorted():
    def f(x, y):
        parts = {"rows": x.shape[0], "columns": y.shape[0]}
        n = sum([x.shape[0], y.shape[0]])
        first = sorted(parts.items())[0][1]
        last = sorted([("b", x.shape[0]), ("a", 2)])[1][1]
        return torch.zeros(n), x.new_ones(first), sum([1.5, x.shape[0]]), last * x

    check(f, [(torch.randn(a), torch.randn(b)) for a, b in ((3, 4), (4, 5), (7, 2), (2, 9), (5, 5))], 3)


def test_sizes_that_decide_an_order():
    def f(x, y):
        return [v for _, v in sorted([("a", x.shape[0]), ("a", y.shape[0])], reverse=True)]

    check(f, [(torch.randn(a), torch.randn(b)) for a, b in ((3, 4), (4, 5), (7, 2), (2, 9), (5, 5))], 4)


def written(x, v, at):
    y = x * 1
    y[..., at, :] = v
    return y, y[..., at, :] * 2


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
                                    lambda x: torch.cat([x, x], 1)[:, ::2]])
def test_writes_at_any_place(layout):
    compiled = jit.compile(written)
    for n in (5, 7):
        for at in (3, 2, 0, 1, n - 1, n - 2, -1, -n):
            sides = []
            for fn in (written, compiled):
                x, v = (torch.randn(*shape, generator=torch.Generator().manual_seed(at)).requires_grad_()
                        for shape in ((2, n, 3), (2, 3)))
                a, b = fn(layout(x), v, at)
                sides.append((a, b, *torch.autograd.grad(a.sin().sum() + b.cos().sum(), (x, v))))
                assert len(sides) == 1 or a.stride() == sides[0][0].stride()
            torch.testing.assert_close(*sides)
        with pytest.raises(IndexError):
            compiled(torch.randn(2, n, 3), torch.randn(2, 3), n)
    assert len(compiled.on_miss.captures) <= 7  # from the end, and errors, apart


def test_writes_of_any_length_into_an_argument():
    def f(x, v, at, n):
        x[:, at:at + n] = v[:, :n]
        return x.sum()

    compiled = jit.compile(f)
    for at, n in ((1, 2), (2, 3), (0, 3), (0, 6), (3, 3), (5, 1), (2, 0), (4, 2)):
        x, y, v = torch.zeros(3, 6), torch.zeros(3, 6), torch.randn(3, 6)
        torch.testing.assert_close(compiled(x, v, at, n), f(y, v, at, n))
        assert torch.equal(x, y)


# Of these one changes after another.
HEIGHTS = [160, 160, 160, 176, 176, 176, 192, 192, 192, 208, 208, 208]
WIDTHS = [200, 181, 166, 200, 200, 181, 166, 150, 149, 200, 201, 202]
DEPTHS = [3, 3, 3, 3, 4, 5, 6, 7, 7, 7, 9, 9]


def breaks(x):
    more = 1  # a branch that sets a number is no step of the graph
    if x.sum() > 1e9:
        more = 0
    return x + more


class Sizes:
    def __init__(self, h, w, d):
        self.h, self.w, self.d = h, w, d


def of_tuples(x, sizes):
    (h, w), (h2, w2) = sizes
    return breaks(x) * h / w + h2 * w2


def behind_a_break(x, sizes):
    x = breaks(x)
    (h, w), (h2, w2) = sizes
    return x * h / w + h2 * w2


def behind_two_breaks(x, sizes):
    x = breaks(breaks(x) * sizes[0][0])
    return x + sizes[1][1], x.new_zeros(sizes[1]), x.expand(sizes[0][1], 4)


def of_a_list(x, sizes):
    x = breaks(x)
    return [x * h + w for h, w in sizes]


def of_dicts(x, settings):
    x = breaks(x)
    return x * settings["image"]["h"] + settings["image"]["w"] * settings["d"]


def of_an_object(x, settings):
    x = breaks(x)
    return x * settings.h + settings.w * settings.d


@pytest.mark.parametrize("fn, make", [
    (of_tuples, lambda h, w, d: [(h, w), (w, d)]), (behind_a_break, lambda h, w, d: [(h, w), (w, d)]),
    (behind_two_breaks, lambda h, w, d: [(h, w), (w, d)]), (of_a_list, lambda h, w, d: [(h, w), (w, d)] * (3 + d % 4)),
    (of_dicts, lambda h, w, d: {"image": {"h": h, "w": w}, "d": d}), (of_an_object, Sizes)])
def test_integers_that_change_one_after_another(fn, make):
    check(fn, [(torch.randn(4), make(*numbers)) for numbers in zip(HEIGHTS, WIDTHS, DEPTHS)],
          3 if fn in (of_a_list, of_an_object) else 2)


def test_arguments_that_change_one_after_another():
    check(lambda x, h, w, d: x * h + w * d, [(torch.randn(4), *n) for n in zip(HEIGHTS, WIDTHS, DEPTHS)], 3)


def test_attributes_of_a_module_that_change_one_after_another():
    class Scaled(nn.Module):
        def forward(self, x):
            return breaks(x) * self.h + self.w * self.d

    model = Scaled()
    compiled = jit.compile(model)
    for model.h, model.w, model.d in zip(HEIGHTS, WIDTHS, DEPTHS):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x), model(x))
    assert most() <= 3


def test_integers_that_change_once_sizes_have():
    """In what goes on after a break, they are tried together with the sizes."""
    def fn(x, sizes):
        x = breaks(x)
        return x * sizes[0][0], x.new_zeros(sizes[1])

    check(fn, [(torch.randn(n), ((h,), (w, 3)))
               for n, h, w in ((4, 7, 9), (5, 7, 9), (6, 7, 9), (5, 8, 9), (4, 8, 9), (4, 8, 10), (7, 9, 11))], 2)


def test_a_loop_over_results_whose_sizes_depend_on_data():
    """What goes on behind such a result is captured for any size, and any position of the loop, at once."""
    def fn(levels, shape):
        found = []
        for x in levels:
            kept = x[x > 0]
            found.append((kept.topk(min(5, kept.size(0)))[0] * shape[0] + shape[1]).clamp(max=100))
        return torch.cat(found)

    generator = torch.Generator().manual_seed(0)
    check(fn, [([torch.randn(n + i, generator=generator) for n in (30, 20, 12)], (2 + i % 3, 3 + i % 4))
               for i in range(12)], 2)


def test_an_integer_beside_others_that_is_needed_as_a_number():
    """It is tried, and compiled for as before: for two, then it is read by a break."""
    def fn(x, settings):
        dim, n = settings
        return x.sum(dim) * n, [x + i for i in range(dim)]

    compiled = check(fn, [(torch.randn(3, 4, 5), (1, n)) for n in range(2, 9)], 2)
    check(fn, [(torch.randn(3, 4, 5), (dim, 3)) for dim in (0, 1, 2, 1, 0)], 4, compiled)
