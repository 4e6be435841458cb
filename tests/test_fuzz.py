"""A few hundred random programs in eager and compiled; ``python -m tests.fuzz`` runs any number."""

import os
import random

import pytest
from fuzz.compare import run
from fuzz.generate import generate
from fuzz.shrink import shrink

CHUNK = 25


def failure(seed, backend="eager", dynamic=None):
    """What is wrong about a program, with its text made small; None if nothing is."""
    text = generate(seed)
    outcome = run(text, backend, dynamic)
    if outcome.kind != "mismatch":
        return None
    text = shrink(text, lambda t: run(t, backend, dynamic).kind == "mismatch", seconds=20)
    return f"seed {seed}: {run(text, backend, dynamic).why}\n{text}"


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_programs(first):
    found = [f for f in (failure(seed, dynamic=True if seed % 10 == 9 else None)
                         for seed in range(first, first + CHUNK)) if f]
    assert not found, "\n\n".join(found)


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "search",
                    reason="HYPOTHESIS_PROFILE=search looks for new failures")
def test_new_programs():
    """Other programs on each run; the message names the seed."""
    chosen = random.SystemRandom().sample(range(10**6, 10**9), 10)
    found = [f for f in map(failure, chosen) if f]
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("seed", [3, 16])
def test_programs_on_the_real_backend(seed):
    found = failure(seed, backend="jit")
    assert not found, found


def test_differences_are_found_and_made_small():
    text = "def f(x, log):\n    log.append(1)\n    y = [x, 2]\n    return y\ndef calls():\n    return [(1, [])]\n"
    assert run(text).kind == "same"
    broken = text.replace("def f", "import jit\ndef f").replace("return y", "return jit.is_compiling()")
    assert run(broken).kind == "mismatch"
    small = shrink(broken, lambda t: run(t).kind == "mismatch", seconds=20)
    assert run(small).kind == "mismatch" and len(small) < len(broken) and "append" not in small


def test_programs_are_the_same_for_one_seed():
    assert generate(7) == generate(7) != generate(8)
