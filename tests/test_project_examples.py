"""The examples run as a reader would run them, and show what they say they show."""

import re

import pytest
import torch


@pytest.fixture
def example(python):
    return lambda name, *arguments: python(f"examples/{name}.py", *arguments, timeout=170)


def test_quickstart(example):
    out = example("quickstart").stdout
    assert "same as eager" in out and "graphs compiled: 1" in out
    assert re.search(r"1 graphs?, 0 breaks, [1-9]\d* operations, 1 kernels?",
                     out) and "tanh" in out.split("--- kernel")[1]


def test_guards_and_recompiles(example):
    done = example("guards_and_recompiles")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[jit:")]
    verdict = dict(line.rsplit(": ", 1) for line in lines)
    assert list(verdict.values()) == ["compiled", "served by an existing entry", "compiled", "compiled", "compiled",
                                      "served by an existing entry", "compiled", "served by an existing entry"]
    assert "[jit:guards]" in done.stderr and "[jit:recompiles]" in done.stderr


def test_graph_breaks(example):
    done = example("graph_breaks")
    assert "[jit:graph_breaks]" in done.stderr and "graph_breaks.py:" in done.stderr
    assert "fullgraph=True says:" in done.stdout and "one graph" in done.stdout


def test_matmul_softmax(example):
    out = example("matmul_softmax", "--compilers", "eager,jit", "--seconds", "0.1").stdout
    assert re.search(r"^jit .* ok$", out, re.MULTILINE)


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_transformer(example, model):
    out = example("transformer", "--model", model, "--length", "16", "--compilers", "eager,jit", "--seconds",
                  "0.1").stdout
    assert re.search(r"^jit .* ok$", out, re.MULTILINE)


def test_training_step(example):
    out = example("training_step", "--steps", "12", "--compilers", "eager,jit").stdout
    assert "one curve" in out
    kernels, library = ([int(n) for n in re.search(rf"^ *{row} +(\d+) +(\d+)$", out, re.MULTILINE).groups()]
                        for row in ("kernels", "library"))
    assert kernels[0] == 0 < kernels[1]
    # On a GPU eager's optimizer changes all parameters at once.
    assert torch.cuda.is_available() or sum(kernels[1:] + library[1:]) < library[0]


def test_custom_pass(example):
    done = example("custom_pass")
    assert ("calls of the operator: 1" in done.stdout and "[jit:passes] rms_norm" in done.stderr
            and "custom_pass_example.rms_norm" in done.stderr)
    assert re.search(r"\[jit:passes\] cheaper_gelu \(\w+\): [1-9]", done.stderr)
    difference, of_gradient = (
        (float(v) for v in re.search(r"rewritten by hand: (\S+), of its gradient (\S+)", done.stdout).groups()))
    assert difference < 1e-5 and of_gradient < 1e-2
