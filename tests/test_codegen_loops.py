"""The kernel language, its verifier and its reference interpreter."""

import pytest
import torch

from jit import devices
from jit.codegen import loops, reference
from jit.codegen.handlers import Handlers
from jit.codegen.target import target_of
from jit.graph import dims

KINDS = [kind for group in loops.Statement.__subclasses__() for kind in group.__subclasses__()]


def softmax_kernel(rows=3, columns=5, prefix=""):
    b = loops.KernelBuilder("cpu")
    i, j = b.axis(rows), b.axis(columns, "r")
    x, y = b.buffer(torch.float32, "in", prefix + "x"), b.buffer(torch.float32, "out", prefix + "y")
    v = b.load(x, i * columns + j)
    e = b.compute("exp", b.compute("sub", v, b.reduce("max", v), dtype=torch.float32), dtype=torch.float32)
    b.store(y, i * columns + j, b.compute("div", e, b.reduce("sum", e), dtype=torch.float32))
    return b.finish("softmax")


def test_softmax_by_reference():
    x, y = torch.randn(15), torch.zeros(15)
    reference.evaluate(loops.verify(softmax_kernel()), {"x": x, "y": y}, {})
    torch.testing.assert_close(y.view(3, 5), x.view(3, 5).softmax(-1))


def handler_tables():
    for backend in devices.registered():
        if backend.emitter:
            target_of(backend.type)
    return Handlers.tables


@pytest.mark.parametrize("table", handler_tables(), ids=lambda t: t.of)
def test_emitters_have_a_handler_of_each_kind_of_statement(table):
    of = [kind for kind in KINDS if issubclass(kind, table.kinds)]
    assert of and not [kind.__name__ for kind in of if not any(base in table for base in kind.__mro__)]


def test_a_kind_of_statement_that_an_emitter_does_not_know_is_an_error():
    class Other(loops.Statement):
        pass

    with pytest.raises(NotImplementedError, match="the reference interpreter .* Other"):
        reference.means[Other]


def test_levels():
    k = softmax_kernel()
    reduced = {s.dst for s in k.body if isinstance(s, loops.Reduce)}
    assert reduced and not reduced & k.element_values
    assert k.is_element(k.body[-1])


def test_key_ignores_names_and_sees_structure():
    assert softmax_kernel().key == softmax_kernel(prefix="other_").key
    assert softmax_kernel().key != softmax_kernel(columns=6).key


def test_key_sees_what_is_known_of_sizes():
    def kernel(multiple):
        b = loops.KernelBuilder("cpu")
        n = dims.Sym("n", hint=32, lo=2, multiple=multiple)
        i = b.axis(n)
        b.store(b.buffer(torch.float32, "out"), i, b.const(1.0, torch.float32))
        return b.finish("k")

    assert kernel(1).key != kernel(16).key


def test_symbolic_sizes():
    b = loops.KernelBuilder("cpu")
    n = dims.Sym("n", hint=7, lo=2)
    i = b.axis(n)
    x, y = b.buffer(torch.int64, "in"), b.buffer(torch.int64, "out")
    b.store(y, n - 1 - i, b.compute("add", b.load(x, i), b.index(i), dtype=torch.int64))
    k = loops.verify(b.finish("k"))
    assert k.sizes == ("n",)
    out = torch.zeros(4, dtype=torch.int64)
    reference.evaluate(k, {x: torch.arange(4) * 10, y: out}, {"n": 4})
    assert out.tolist() == [33, 22, 11, 0]


def test_argmax_takes_the_first_and_nan_wins():
    b = loops.KernelBuilder("cpu")
    i, j = b.axis(2), b.axis(4, "r")
    x, y = b.buffer(torch.float32, "in"), b.buffer(torch.int64, "out")
    b.store(y, i, b.reduce("argmax", b.load(x, i * 4 + j)))
    out = torch.zeros(2, dtype=torch.int64)
    reference.evaluate(loops.verify(b.finish("k")),
                       {x: torch.tensor([1.0, 5, 5, 2, 1, float("nan"), 9, float("nan")]), y: out}, {})
    assert out.tolist() == [1, 1]


def test_masked_and_indirect_loads_and_checks():
    b = loops.KernelBuilder("cpu")
    i = b.axis(4)
    index, x, y, flag = (b.buffer(torch.int64, "in"), b.buffer(torch.float32, "in"), b.buffer(torch.float32, "out"),
                         b.buffer(torch.int32, "error"))
    at = b.load(index, i)
    ok = b.compute("lt", at, b.const(3, torch.int64), dtype=torch.bool)
    b.store(y, i, b.load(x, b.position(at, 3, flag, 7), ok, -1.0))
    k = loops.verify(b.finish("k"))
    out, error = torch.zeros(4), torch.zeros(1, dtype=torch.int32)
    reference.evaluate(k, {index: torch.tensor([2, 0, 5, 1]), x: torch.tensor([10.0, 20, 30]), y: out, flag: error}, {})
    assert out.tolist() == [30, 10, -1, 20] and error.item() == 7


@pytest.mark.parametrize("mistake", ["plain index", "no check", "other check", "may be empty"])
def test_addresses_that_data_decide_are_bounded_and_checked(mistake):
    b, n = loops.KernelBuilder("cpu"), dims.Sym("n", lo=0)
    i = b.axis(4)
    index, x, y, flag = (b.buffer(torch.int64, "in"), b.buffer(torch.float32, "in"), b.buffer(torch.float32, "out"),
                         b.buffer(torch.int32, "error"))
    at = b.load(index, i)
    good = b.position(at, n if mistake == "may be empty" else 3, flag, 7)
    b.store(y, i, b.load(x, dims.Sym(at, lo=0, hi=2) if mistake == "plain index" else good))
    if mistake in ("no check", "other check"):
        k = next(k for k, s in enumerate(b.body) if isinstance(s, loops.Check))
        b.body[k : k + 1] = [] if mistake == "no check" else [loops.Check(at, 5, flag, 7)]
    with pytest.raises(loops.VerifyError, match="bounded|checked|mask"):
        loops.verify_addresses(b.finish("k"))


@pytest.mark.parametrize("mistake", ["undefined", "half", "dtype", "element store", "role", "twice"])
def test_verify_refuses(mistake):
    b = loops.KernelBuilder("cpu")
    i, j = b.axis(2), b.axis(3, "r")
    x, y = b.buffer(torch.float16, "in"), b.buffer(torch.float32, "out")
    v = b.load(x, i * 3 + j)
    w = b.cast(v, torch.float32)
    if mistake == "undefined":
        b.store(y, i, "nowhere")
    elif mistake == "half":
        b.compute("exp", v, dtype=torch.float16)
    elif mistake == "dtype":
        b.store(y, i * 3 + j, v)
    elif mistake == "element store":
        b.store(y, i, w)
    elif mistake == "role":
        b.store(x, i * 3 + j, v)
    else:
        b.body.append(loops.Const(w, 1.0, torch.float32))
    with pytest.raises(loops.VerifyError):
        loops.verify(b.finish("k"))
