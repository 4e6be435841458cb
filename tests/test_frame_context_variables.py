"""ContextVars, what a program hangs on tensors, and questions about the state of the process: read anew on each call,
changed for real."""

import contextvars
from contextvars import ContextVar

import pytest
import torch

import jit
from frame_harness import same

WITH_DEFAULT, BARE = ContextVar("with_default", default=3), ContextVar("bare")
X = torch.arange(3.0)


def scoped(x):
    before = WITH_DEFAULT.get()
    token = WITH_DEFAULT.set(before + 1)
    try:
        inner = BARE.set([x])
        BARE.get().append(before)
        count = len(BARE.get())
        BARE.reset(inner)
        y = x * WITH_DEFAULT.get() + count
    finally:
        WITH_DEFAULT.reset(token)
    return (y + WITH_DEFAULT.get(), BARE.get(None), token.old_value is contextvars.Token.MISSING,
            token.var is WITH_DEFAULT)


def kept(x):
    WITH_DEFAULT.set(WITH_DEFAULT.get() + 1)
    BARE.set([*BARE.get([]), x.sum()])
    return x * WITH_DEFAULT.get()


def crossed(x):
    """Resets out of order leave another value than there was."""
    first = WITH_DEFAULT.set(10)
    second = WITH_DEFAULT.set(20)
    WITH_DEFAULT.reset(first)
    WITH_DEFAULT.reset(second)
    return x + WITH_DEFAULT.get()


def unset(x):
    try:
        BARE.get()
    except LookupError as error:
        return x + 1, error.args[0] is BARE
    return x + 2, None


def over_a_break(x):
    token = WITH_DEFAULT.set(5)
    jit.graph_break()
    y = x * WITH_DEFAULT.get()
    WITH_DEFAULT.reset(token)
    jit.graph_break()
    try:
        WITH_DEFAULT.reset(token)
    except RuntimeError as error:
        return y + WITH_DEFAULT.get(), type(error)
    return y, None


def given_away(x):
    return x + 1, WITH_DEFAULT.set(8)


def in_contexts(fn, call):
    """What ``call`` gives in contexts with other values, twice in each, and what the variables hold afterwards."""
    seen = []

    def run(value, bare):
        if value is not None:
            WITH_DEFAULT.set(value)
        if bare is not None:
            BARE.set(bare)
        for _ in range(2):
            result = call(X)
            if fn is given_away:
                WITH_DEFAULT.reset(result[1])
                result = result[0]
            seen.append((result, WITH_DEFAULT.get(), BARE.get("nothing")))

    for value, bare in ((None, None), (7, None), (7, ["a"]), (8, ["a"]), (None, [])):
        contextvars.Context().run(run, value, bare)
    return seen


@pytest.mark.parametrize("fn", [scoped, kept, crossed, unset, over_a_break, given_away], ids=lambda fn: fn.__name__)
def test_context_variables(fn):
    compiled = jit.compile(fn, backend="eager", fullgraph=fn is not over_a_break)
    same(in_contexts(fn, fn), in_contexts(fn, compiled))


def test_a_number_in_a_context_variable_is_guarded():
    compiled = jit.compile(lambda x: x * WITH_DEFAULT.get() if WITH_DEFAULT.get() > 4 else x - 1, backend="eager",
                           fullgraph=True)

    def run():
        for value in (3, 5, 4, 6, 7):
            WITH_DEFAULT.set(value)
            assert torch.equal(compiled(X), X * value if value > 4 else X - 1)

    contextvars.copy_context().run(run)


def hung(x, y):
    x.note = ["first"]
    x.note.append(y)
    z = x + 1
    z.note, z.other = x.note, "z"
    del z.other
    return z, hasattr(z, "other"), hasattr(y, "note"), x.note


def test_what_hangs_on_tensors():
    for pair in (lambda: (t := torch.ones(2), t), lambda: (torch.ones(2), torch.zeros(2)),
                 lambda: (torch.nn.Parameter(torch.ones(2)), torch.zeros(2))):
        compiled = jit.compile(hung, backend="eager", fullgraph=True)
        for make in (lambda: (torch.ones(2), torch.zeros(2)), pair):
            ours, theirs = make(), make()
            same((hung(*theirs), theirs[0].note), (compiled(*ours), ours[0].note))


def test_deleting_what_does_not_hang_there_raises():
    def f(x):
        del x.note
        return x + 1

    with pytest.raises(AttributeError, match="note"):
        jit.compile(f, backend="eager")(torch.ones(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_stream_capture_is_asked_for_on_each_call():
    compiled = jit.compile(lambda x: x + 1 if torch.cuda.is_current_stream_capturing() else x - 1, backend="eager",
                           fullgraph=True)
    assert torch.equal(compiled(X), X - 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_stream_capture_without_cuda():
    def f(x):
        try:
            return x + torch.cuda.is_current_stream_capturing()
        except RuntimeError as error:
            return x, str(error)

    same(f(X), jit.compile(f, backend="eager", fullgraph=True)(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("left, right, ends", [((8, 16), (3, 16, 24), [2, 5, 8]), ((8, 16), (16, 24), [8, 16, 16]),
                                               ((3, 8, 16), (16, 24), [8, 16, 24]), ((3, 8, 16), (3, 16, 24), None)])
def test_grouped_products(left, right, ends, dtype):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in (left, right))
    offsets = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    f = lambda a, b: torch._grouped_mm(a, b, offsets) * 2  # noqa: E731
    want, got = f(a, b), jit.compile(f, fullgraph=True)(a, b)
    assert torch.equal(got, want) and got.stride() == want.stride()
    for g, w in zip(torch.autograd.grad(got.sum(), (a, b)), torch.autograd.grad(want.sum(), (a, b)), strict=True):
        assert torch.equal(g, w)


def test_attributes_of_type_expressions():
    def f(x):
        union, alias = int | str, list[int]
        return x + len(union.__args__) + len(alias.__args__), union.__args__, alias.__origin__

    same(f(X), jit.compile(f, backend="eager", fullgraph=True)(X))
