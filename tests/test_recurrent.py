"""Recurrent layers and cells: gradients, dtypes, directions, dropout, lengths that vary, packed sequences, loops over
steps; and how many graphs training and sampling with one model take."""

import warnings

import pytest
import torch
from torch import nn

import jit

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
FORMS = {
    "plain": {},
    "two ways, two layers, dropout": dict(bidirectional=True, num_layers=2, dropout=0.3),
    "batch first, no bias": dict(batch_first=True, bias=False),
}
CLOSE = {torch.float32: 3e-5, torch.float64: 1e-12, torch.bfloat16: 4e-2}


def states(s):
    return s if isinstance(s, tuple) else (s,)


def step(module, fn, x, *state):
    """(results, gradients) of one training step."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    out, state = fn(x, *state)
    results = [out, *states(state)]
    sum((r.double() * r.double()).sum() for r in results).backward()
    return [r.detach() for r in results], [x.grad, *[p.grad for p in module.parameters()]]


def agrees(module, expected, found, *args):
    (results, grads), (found_results, found_grads) = (step(module, fn, *args) for fn in (expected, found))
    for a, b in zip(results + grads, found_results + found_grads):
        assert a.stride() == b.stride() and a.dtype is b.dtype
        close = CLOSE[a.dtype]
        torch.testing.assert_close(b, a, rtol=close, atol=close)


CASES = [(kind, "plain", dtype) for kind in KINDS for dtype in CLOSE] + [
    ("lstm", "two ways, two layers, dropout", torch.float32), ("gru", "two ways, two layers, dropout", torch.float64),
    ("lstm", "batch first, no bias", torch.float32), ("rnn", "batch first, no bias", torch.float32)]


@pytest.mark.parametrize("kind, form, dtype", CASES, ids=str)
def test_training_at_lengths_that_vary(kind, form, dtype):
    torch.manual_seed(0)
    options = FORMS[form]
    module = KINDS[kind](5, 6, **options).to(dtype)

    def f(x):
        out, state = module(x * 2)
        return out.sin(), state

    compiled = jit.compile(f, fullgraph=True)
    before = jit.compile_count()
    for length, batch in ((4, 3), (7, 3), (5, 2), (9, 4), (6, 5)):
        shape = (batch, length, 5) if options.get("batch_first") else (length, batch, 5)
        agrees(module, f, compiled, torch.randn(shape, dtype=dtype))
    assert jit.compile_count() - before <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_inference_at_lengths_that_vary(kind):
    module = KINDS[kind](5, 6, num_layers=2, dropout=0.5).eval()
    compiled = jit.compile(lambda x: module(x), fullgraph=True)
    before = jit.compile_count()
    with torch.no_grad():
        for length in (4, 7, 5, 9, 6):
            x = torch.randn(length, 3, 5)
            out, state = module(x)
            found, found_state = compiled(x)
            for a, b in zip((out, *states(state)), (found, *states(found_state))):
                torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
    assert jit.compile_count() - before <= 2


def test_projections_and_relu():
    for module in (nn.LSTM(5, 6, proj_size=3, bidirectional=True), nn.RNN(5, 6, nonlinearity="relu")):
        compiled = jit.compile(lambda x, m=module: m(x), fullgraph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for length in (4, 6, 3):
                agrees(module, module, compiled, torch.randn(length, 2, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_batch_and_with_a_state(kind):
    module = KINDS[kind](5, 6)
    compiled = jit.compile(lambda x, *s: module(x, *s), fullgraph=True)
    agrees(module, module, compiled, torch.randn(4, 5))
    state = torch.randn(1, 3, 6)
    state = (state, torch.randn(1, 3, 6)) if kind == "lstm" else state
    agrees(module, module, compiled, torch.randn(4, 3, 5), state)


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_that_is_changed_before_the_backward(kind):
    """As in eager that is an error, and no wrong gradient."""
    module = KINDS[kind](5, 6).double()
    compiled = jit.compile(lambda x: module(x)[0])
    for fn in (lambda x: module(x)[0], compiled):
        x = torch.randn(4, 3, 5, dtype=torch.float64)
        out = fn(x)
        with torch.no_grad():
            module.weight_hh_l0.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_result_that_is_changed_in_place():
    module = nn.GRU(5, 6).double()

    def f(x):
        out, state = module(x)
        out.add_(1)
        return out * 2, state

    agrees(module, f, jit.compile(f), torch.randn(4, 3, 5, dtype=torch.float64))


def test_a_backward_that_is_run_twice():
    module = nn.GRU(5, 6).double()
    compiled = jit.compile(lambda x: module(x)[0])
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    out = compiled(x).sum()
    first, = torch.autograd.grad(out, x, retain_graph=True)
    second, = torch.autograd.grad(out, x)
    expected, = torch.autograd.grad(module(x)[0].sum(), x)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected)


def test_gradients_of_gradients():
    module = nn.GRU(5, 6).double()
    compiled = jit.compile(lambda x: module(x)[0])
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for fn in (lambda x: module(x)[0], compiled):
        g, = torch.autograd.grad(fn(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), x)[0])
    torch.testing.assert_close(found[1], found[0])


def test_memory_of_a_record_is_let_go():
    import gc
    import weakref

    module = nn.GRU(5, 6).double()
    compiled = jit.compile(lambda x: module(x)[0])
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    compiled(x).sum().backward()
    seen = weakref.ref(x)
    out = compiled(x)
    del x, out
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind):
    module = KINDS[kind](5, 6, bidirectional=True)

    def f(packed):
        out, state = module(packed)
        return out.data * 2, states(state)[0]

    compiled = jit.compile(f)
    for lengths in ([4, 2, 1], [5, 5, 2], [3, 3, 3], [6, 1]):
        packed = nn.utils.rnn.pack_padded_sequence(torch.randn(max(lengths), len(lengths), 5), torch.tensor(lengths))
        results = []
        for fn in (f, compiled):
            module.zero_grad()
            out, state = fn(packed)
            (out.square().sum() + state.sum()).backward()
            results.append([out, state, *[p.grad.clone() for p in module.parameters()]])
        for a, b in zip(*results):
            torch.testing.assert_close(b, a, rtol=3e-5, atol=3e-5)


def test_packing_inside():
    module = nn.GRU(5, 6, batch_first=True)

    def f(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = module(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return out * 2, state

    compiled = jit.compile(f)
    for lengths in ([4, 2, 5], [1, 3, 3], [4, 4, 2]):
        agrees(module, f, compiled, torch.randn(3, max(lengths), 5), torch.tensor(lengths))


def test_autocast():
    module = nn.LSTM(5, 6)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, state = module(x)
        return out, state

    compiled = jit.compile(f)
    x = torch.randn(4, 3, 5)
    try:
        f(x)
    except RuntimeError as error:
        pytest.skip(f"this processor has no such LSTM: {error}")
    (results, grads), (found, found_grads) = (step(module, fn, x) for fn in (f, compiled))
    for a, b in zip(results + grads, found + found_grads):
        assert a.dtype is b.dtype
        torch.testing.assert_close(b, a, rtol=5e-2, atol=5e-2)


CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}


@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind):
    cell = CELLS[kind](5, 6)

    def f(x, *h):
        s = cell(x, *h)
        return states(s)[0] * 2, s

    compiled = jit.compile(f, fullgraph=True)
    for batch in (3, 4, 2):
        agrees(cell, f, compiled, torch.randn(batch, 5))
    h = torch.randn(3, 6)
    agrees(cell, f, compiled, torch.randn(3, 5), (h, h * 2) if kind == "lstm" else h)


class Characters(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding, self.out = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.rnn = kind(16, 16, 2, dropout=0.1, batch_first=True)

    def forward(self, x, state=None):
        y, state = self.rnn(self.embedding(x), state)
        return self.out(y), state


def detached(state):
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_training_and_sampling_with_one_model(kind):
    """The limit of entries counts training, sampling and validation apart: none of them ends in eager."""
    torch.manual_seed(0)
    model = Characters(KINDS[kind])
    compiled = jit.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    counts = []
    before = jit.compile_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model.train()
            state = None
            for length in (20, 20, 33, 41, 17, 50):
                x = torch.randint(30, (4, length))
                optimizer.zero_grad()
                y, state = compiled(x[:, :-1], state)
                state = detached(state)
                nn.functional.cross_entropy(y.flatten(0, 1), x[:, 1:].flatten()).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                x, state = torch.randint(30, (1, 5)), None
                for _ in range(6):
                    expected, _ = model(x, state)
                    y, state = compiled(x, state)
                    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
                    x = y[:, -1:].argmax(-1)
            with torch.inference_mode():
                for length in (20, 33, 18):
                    compiled(torch.randint(30, (4, length)))
            counts.append(jit.compile_count() - before)
    assert counts[0] <= 8 and counts[2] == counts[0]


def test_modules_that_share_a_function_are_counted_apart():
    modules = [nn.Linear(3, 3) for _ in range(12)]
    for k, m in enumerate(modules):
        m.scale = float(k)

    def f(m, x):
        return m(x) * m.scale

    compiled = jit.compile(f)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for _ in range(2):
            for m in modules:
                for x in (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64)[:, :3].float()):
                    assert torch.equal(compiled(m, x), f(m, x))
    assert not compiled.on_miss.given_up and not compiled.on_miss.limits.full


def test_one_kind_of_call_that_is_given_up_leaves_others():
    numbers = [type("Number", (), {"value": k})() for k in range(12)]

    def f(x, n):
        return x + n.value

    compiled = jit.compile(f)
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in numbers:
            compiled(x, n)
    assert len([w for w in said if "runs in eager" in str(w.message)]) == 1
    before = jit.compile_count()
    compiled(x, numbers[-1])
    assert jit.compile_count() == before
    with torch.no_grad():
        assert torch.equal(compiled(x, numbers[-1]), x + 11)
    assert jit.compile_count() == before + 1


RANDOM = {
    "rrelu": lambda x: nn.functional.rrelu(x * 2, training=True).sin(),
    "fractional pooling": lambda x: nn.functional.fractional_max_pool2d(x * 2, 2, output_size=3).sin(),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_are_recorded_too(name):
    f = RANDOM[name]
    compiled, found = jit.compile(f, fullgraph=True), []
    x = torch.randn(1, 2, 8, 8, dtype=torch.float64)
    for fn in (f, compiled):
        y = x.clone().requires_grad_()
        torch.manual_seed(4)
        out = fn(y)
        found.append((out.detach(), torch.autograd.grad(out.sum(), y)[0]))
    for a, b in zip(*found):
        torch.testing.assert_close(b, a)
