"""Backwards for some of the results are compiled when they are met, and kept on disk with their entry."""

import json
import threading

import pytest
import torch

import jit
from jit import compiling
from jit.runtime import cache
from test_stored import folder  # noqa: F401


@pytest.fixture
def compiled_backwards(monkeypatch):
    seen, real = [], compiling.narrowed_backward

    def narrowed_backward(backward, absent, *rest):
        seen.append(absent)
        return real(backward, absent, *rest)

    monkeypatch.setattr(compiling, "narrowed_backward", narrowed_backward)
    return seen


def program(x, w, v):
    h = torch.tanh(x @ w)
    return h.square().mean(), h @ v, (h * 2).sum(0)


def gradients(fn, which, grads=None, rows=5):
    torch.manual_seed(0)
    x = torch.randn(rows, 4)
    leaves = [torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)]
    results = fn(x, *leaves)
    chosen = [results[k] for k in which]
    return torch.autograd.grad(chosen, leaves, [torch.ones_like(r) for r in chosen], allow_unused=True)


def same(compiled, which, rows=5):
    for a, b in zip(gradients(compiled, which, rows=rows), gradients(program, which, rows=rows), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


def test_later_forms_find_them(folder, compiled_backwards):  # noqa: F811
    first = jit.compile(program)
    same(first, [0])
    same(first, [0])
    assert len(compiled_backwards) == 1
    second = jit.compile(program)
    same(second, [0])
    assert len(compiled_backwards) == 1 and len(cache.kept(cache.entries)) == 1
    same(second, [1])  # that form adds another one
    assert len(compiled_backwards) == 2
    third = jit.compile(program)
    for which in ([0], [1], [0, 1, 2], [2], [1], [0]):
        same(third, which)
    assert len(compiled_backwards) == 3 and len(cache.kept(cache.entries)) == 1


def test_forms_of_any_size_and_in_another_thread(folder, compiled_backwards):  # noqa: F811
    for expected in (1, 1):
        compiled = jit.compile(program, dynamic=True)
        for rows in (5, 7, 1):
            thread = threading.Thread(target=same, args=(compiled, [0], rows))
            thread.start()
            thread.join()
            same(compiled, [0], rows)
        assert len(compiled_backwards) >= expected
    before = len(compiled_backwards)
    same(jit.compile(program, dynamic=True), [0], 9)
    assert len(compiled_backwards) == before


def test_what_is_not_kept_works_too(compiled_backwards):
    with jit.config.patch(entry_cache=False):
        compiled = jit.compile(program)
        for _ in range(2):
            same(compiled, [0])
            same(compiled, [2])
        assert len(compiled_backwards) == 2


SCRIPT = """
import json, sys, torch, jit
from jit.frame.dispatch import captures_so_far
from jit.runtime import native
native()
jit.config.entry_cache = True
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 5)
    def forward(self, x, labels):
        logits = self.b(torch.relu(self.a(x)))
        return torch.nn.functional.cross_entropy(logits, labels), logits
torch.manual_seed(0)
model, x, labels = Model(), torch.randn(6, 4), torch.arange(6) % 5
exec(sys.argv[1])
compiled = jit.compile(model)
loss, logits = compiled(x, labels)
loss.backward()
found = [p.grad.tolist() for p in model.parameters()]
print(json.dumps([captures_so_far(), "jit.compiling" in sys.modules, found]))
exec(sys.argv[2])
"""


@pytest.fixture
def run(python, tmp_path):
    """``run(cache folder, what is done before it is compiled, and at the end)``: what the script prints."""
    file = tmp_path / "program.py"
    file.write_text(SCRIPT)

    def run(folder, before="", behind=""):  # noqa: F811
        done = python(str(file), before, behind, JIT_CACHE_DIR=str(tmp_path / folder))
        return json.loads(done.stdout.splitlines()[0])

    return run


def test_another_process_loads_no_compiler(run):
    first, second = run("cache"), run("cache")
    assert first[:2] == [1, True] and second[:2] == [0, False] and first[2] == second[2]


def test_saved_with_what_was_compiled(run, tmp_path):
    path = str(tmp_path / "model.jit")
    first = run("first", "", f"jit.save(compiled, {path!r})")
    second = run("second", f"jit.load({path!r})")
    assert second[:2] == [0, False] and first[2] == second[2]
