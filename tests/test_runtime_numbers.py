"""Programs of numbers: the same doubles as Python and eager tensors give, or None."""

import math
import random
import struct

import pytest
import torch

import jit
from jit.graph.sym_float import to_words
from jit.runtime.numbers import load_numbers, unpack


def double(words) -> float:
    return struct.unpack("<d", struct.pack("<ii", *words))[0]


def evaluate(rows, *arguments):
    """The last row's number, or None."""
    out = load_numbers(len(arguments), rows, [("low", len(rows) - 1), ("high", len(rows) - 1)])(*arguments)
    return None if out is None else double(unpack(out))


def same(a, b) -> bool:
    return (a is b or a is not None and b is not None and struct.pack("<d", a) == struct.pack("<d", b) or a != a
            and b != b)


EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e300, -1e300, 1e-300, 5e-324, math.inf, -math.inf, math.nan, 7.0]
BINARY = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
          "**": lambda a, b: a ** b}


def python(fn, *arguments):
    """What Python gives, in the terms of a program."""
    try:
        value = fn(*arguments)
    except (ArithmeticError, ValueError):
        return None
    return value if isinstance(value, (int, float)) and to_words(float(value)) is not None else None


@pytest.mark.parametrize("symbol", BINARY)
def test_arithmetic(symbol):
    rng = random.Random(0)
    pairs = [(a, b) for a in EDGES for b in EDGES] + [(rng.uniform(-3, 3), rng.uniform(-9, 9)) for _ in range(200)]
    for a, b in pairs:
        want, got = python(BINARY[symbol], a, b), evaluate([("number", 0), ("number", 1), (symbol, 0, 1)], a, b)
        assert same(want, got), (a, b, want, got)


def test_functions():
    for a in EDGES:
        for fn, rows in (((math.sqrt, [("sqrt", 0)]), (math.exp, [("call", math.exp, (0,))]),
                          (lambda v: -v, [("neg", 0)]))):
            assert same(python(fn, a), evaluate([("number", 0), *rows], a)), (a, fn)
    assert evaluate([("number", 0), ("call", str, (0,))], 1.0) is None


def test_powers_that_come_again():
    bases, exponents = (0.9, 0.999, 0.99, 0.5, 0.25, 1.5), (3.0, 4.0)
    rows = [("const", b) for b in bases] + [("number", k) for k in range(2)]
    rows += [("**", i % 6, 6 + i % 2) for i in range(30)]
    results = [(half, 8 + i) for i in range(30) for half in ("low", "high")]
    words = unpack(load_numbers(2, rows, results)(*exponents))
    assert [double(words[2 * i: 2 * i + 2]) for i in range(30)] == [bases[i % 6] ** exponents[i % 2] for i in range(30)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_items(dtype):
    for value in (0.1, -3.0, 1e5, math.inf):
        t = torch.tensor(value, dtype=dtype)
        assert evaluate([("item", 0)], t) == t.item()
        assert evaluate([("item", 0)], t.reshape(1, 1)) == t.item()
    assert evaluate([("item", 0)], torch.zeros(2, dtype=dtype)) is None
    assert evaluate([("item", 0)], torch.zeros((), device="meta", dtype=dtype)) is None


def test_arithmetic_of_float32():
    rng = random.Random(1)
    for _ in range(100):
        a, b = (torch.tensor(rng.uniform(-5, 5)) for _ in range(2))
        for kind, fn in (("add32", torch.add), ("sub32", torch.sub), ("mul32", torch.mul)):
            assert evaluate([("item", 0), ("item", 1), (kind, 0, 1)], a, b) == fn(a, b).item()
    assert evaluate([("const", 0.1), ("round32", 0)]) == torch.tensor(0.1).item()


def test_integers():
    call = load_numbers(2, [("number", 0)], [("int", 1), ("high", 0), ("int", 0)])
    assert unpack(call(7, -(1 << 40)))[::2] == (-(1 << 40), 7)
    assert call(7, 1 << 63) is None and call(7, 1.0) is None
    assert call(1 << 60, 1) is None  # no double holds every such integer
    assert call("7", 1) is None


def test_wrong_programs_are_refused():
    for rows, results in (([("sqrt", 0)], []), ([("number", 1)], []), ([("const", 1)], []), ([("what", 0)], []),
                          ([("number", 0)], [("low", 1)]), ([("number", 0)], [("middle", 0)]), ([("number",)], []),
                          ([("call", math.exp, (0,))], [])):
        with pytest.raises((ValueError, TypeError)):
            load_numbers(1, rows, results)
    with pytest.raises(TypeError):
        load_numbers(1, [("number", 0)], [])()


def changing(fn, *calls, **options):
    """Compare a function of numbers and a tensor with eager over calls with other numbers."""
    jit.reset()
    compiled = jit.compile(fn, **options)
    x = torch.linspace(0.5, 2, 6)
    for numbers in calls:
        try:
            want = fn(x, *numbers)
        except (ArithmeticError, ValueError) as error:
            with pytest.raises(type(error)):
                compiled(x, *numbers)
            continue
        got = compiled(x, *numbers)
        assert got.dtype is want.dtype
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)


PROGRAMS = {
    "arithmetic": (lambda x, a, b: x * (a * 2 - b / 3) + (-a), [(0.5, 2.0), (0.25, 3.0), (1.5, 4.0), (1.0, 0.5)]),
    "division": (lambda x, a, b: x * (1 / a + b), [(0.5, 2.0), (0.25, 3.0), (1.5, 4.0), (0.0, 0.5)]),
    "power": (lambda x, a, b: x * (a ** b), [(0.5, 2.0), (0.25, 3.0), (1.5, 4.0), (0.0, -0.5)]),
    "functions": (lambda x, a, b: x * math.sqrt(a) + math.exp(b) * math.hypot(a, b) + float(a),
                  [(0.5, 2.0), (0.25, 3.0), (1.5, 4.0), (-1.0, 0.5)]),
    "integers": (lambda x, a, n: x * (a ** n) + n / 7, [(0.5, 3), (0.25, 4), (1.5, 5), (1.5, -2), (0.0, -2)]),
    "powers-of-integers": (lambda x, a, n: x * (2 ** n) * a, [(0.5, 3), (0.25, 4), (1.5, 5), (1.5, 9)]),
    "sizes": (lambda x, a, n: x[:n] * (a / x[:n].shape[0]), [(0.5, 3), (0.25, 4), (1.5, 5), (1.5, 6)]),
    "large": (lambda x, a, b: x * a + b, [(0.5, 2.0), (0.25, 3.0), (1.5, 4.0), (2.0, math.inf), (math.nan, 1.0)]),
}


@pytest.mark.parametrize("options", [{}, {"backend": "eager"}])
@pytest.mark.parametrize("name", PROGRAMS)
def test_changing_numbers(name, options):
    fn, calls = PROGRAMS[name]
    changing(fn, *calls, **options)


def test_numbers_of_tensors():
    def f(x, step, factor):
        step += 1
        n = step.item()
        return x * (1 - 0.9 ** n) + (step * 3 - factor).item() / 2

    jit.reset()
    compiled = jit.compile(f, fullgraph=True)
    x = torch.linspace(-1, 1, 5)
    for dtype in (torch.float32, torch.float64, torch.float32):
        a, b, factor = torch.zeros((), dtype=dtype), torch.zeros((), dtype=dtype), torch.tensor(0.1, dtype=dtype)
        for _ in range(3):
            torch.testing.assert_close(compiled(x, a, factor), f(x, b, factor))
            assert torch.equal(a, b)
    assert jit.compile_count() > 0
