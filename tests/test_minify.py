"""jit.minify cuts a program that fails down to the least graph that does, and says which lines it comes from."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import jit
from jit.codegen import cpp

ROOT = pathlib.Path(__file__).resolve().parent.parent


def network(x, w, b):
    h = x
    for _ in range(3):
        h = F.layer_norm(h @ w, (16,), b)
        h = F.gelu(h, approximate="tanh") * torch.softmax(h, -1) + x  # the line of tanh and exp
    return h.sum(), h


LINE = network.__code__.co_firstlineno + 4


def given():
    torch.manual_seed(0)
    return torch.randn(4, 16), torch.randn(16, 16, requires_grad=True), torch.randn(16)


def of_text(change):
    """A backend that runs the graph's Python, changed."""
    def backend(graph, examples):
        namespace = {}
        exec(change(graph.python()), namespace)
        return namespace["graph"]
    return backend


def test_a_wrong_value_is_cut_down_to_its_operation():
    m = jit.minify(network, given(), backend=of_text(lambda t: t.replace("torch.tanh(", "1.01 * torch.tanh(")))
    assert m.operations == 1 < 50 < m.before
    assert "torch.tanh(" in m.graph and m.graph.count("torch.exp(") == 0
    assert m.places == ((__file__, LINE, "network"),)
    assert "the value of" in m.failure and f"cut down to 1 of {m.before} operations" in str(m)
    assert f"{__file__}:{LINE} in network" in str(m)
    assert "with the backend or the passes that jit.minify was given" in m.script


def test_what_takes_two_operations_is_cut_down_to_two():
    def breaks(text):
        if "torch.rsqrt(" in text and "torch.exp(" in text:
            raise IndexError("rsqrt beside exp")
        return text

    m = jit.minify(network, given(), backend=of_text(breaks))
    assert m.operations == 2 and "torch.rsqrt(" in m.graph and "torch.exp(" in m.graph
    assert "raised IndexError at" in m.failure and m.failure.endswith("rsqrt beside exp")


PLANTED = """
import os
if os.environ.get("PLANTED"):
    import torch
    from jit.codegen import cpp
    before = cpp._named
    cpp._named = lambda name, text: before(name, text.replace(*os.environ["PLANTED"].split("|")))
"""


def run(path, planted, tmp_path):
    """Runs a script while the texts of C++ kernels are written with a fault."""
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, env={
        **os.environ, "PLANTED": planted, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])})


WRONG = "= tanh_f32(|= 0.01f + tanh_f32("


def test_a_wrong_kernel_of_ours_is_found(tmp_path, monkeypatch):
    """The very kernels are wrong, and the script shows it as long as they are."""
    before = cpp._named
    monkeypatch.setattr(cpp, "_named", lambda name, text: before(name, text.replace(*WRONG.split("|"))))
    m = jit.minify(network, given())
    assert m.operations == 1 and "torch.tanh(" in m.graph
    assert "that jit.minify was given" not in m.script
    script = tmp_path / "least.py"
    m.save(script)
    done = run(script, WRONG, tmp_path)
    assert done.returncode == 1 and "not as exact as eager" in done.stdout, done.stdout + done.stderr
    done = run(script, "", tmp_path)
    assert done.returncode == 0 and "1 are not used" in done.stdout, done.stdout + done.stderr


def test_a_wrong_gradient_is_cut_down():
    def wrong(graph, examples):
        class Halved(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.exp()

            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0].exp() * 0.5

        namespace = {"halved": Halved.apply}
        exec(graph.python().replace("torch.exp(", "halved("), namespace)
        return namespace["graph"]

    m = jit.minify(network, given(), backend=wrong)
    assert m.operations == 1 and "torch.exp(" in m.graph
    assert "the gradient of" in m.failure


def test_a_pass_that_changes_the_result_is_found():
    def halves(graph):
        for node in graph.nodes:
            if node.op == "tanh":
                graph.replace(node, graph.call(lambda x: torch.tanh(x) * 0.5, *node.inputs, before=node))

    with torch.no_grad():
        m = jit.minify(network, given(), passes=[halves])
    assert m.operations == 1 and "torch.tanh(" in m.graph, str(m)


def test_nothing_fails():
    m = jit.minify(network, given())
    assert (m.failure, m.graph, m.script, m.operations) == ("", "", "", 0)
    assert str(m) == "nothing fails: 1 graph tried"
    with pytest.raises(ValueError, match="nothing fails"):
        m.save("nowhere.py")


def test_several_graphs_and_a_module():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x):
            x = torch.relu(self.layer(x))
            jit.graph_break()
            return torch.sigmoid(x).sum()

    m = jit.minify(jit.compile(Model()), (torch.randn(2, 16),),
                   backend=of_text(lambda t: t.replace("torch.sigmoid(", "2 * torch.sigmoid(")))
    assert str(m).startswith("graph 1: ") and m.operations == 1 and "torch.sigmoid(" in m.graph


def test_a_program_that_raises_in_eager_has_no_graph_to_cut():
    def f(x):
        raise KeyError("no such thing")

    m = jit.minify(f, (torch.randn(2),))
    assert "no such thing" in m.failure and not m.graph and "in eager" in str(m)


def test_symbolic_sizes_random_numbers_and_several_results():
    def f(x):
        values, places = torch.sort(torch.nn.functional.dropout(x, 0.5) * x.shape[0])
        return torch.tanh(values[:, ::2]), places

    m = jit.minify(f, (torch.randn(6, 8),), dynamic=True,
                   backend=of_text(lambda t: t.replace("torch.tanh(", "2 * torch.tanh(")))
    assert m.operations == 1 and "torch.tanh(" in m.graph


def test_a_process_that_ends_is_cut_too(tmp_path):
    """Each trial runs in a process of its own, in which kernels with tanh end it."""
    script = tmp_path / "crash.py"
    script.write_text("""
import torch, jit
if __name__ == "__main__":
    def f(x):
        return torch.tanh(x.exp() + 1) * 2
    m = jit.minify(f, (torch.randn(8),), isolated=True)
    print(m.operations, m.failure)
""")
    done = run(script, "= tanh_f32(|= (__builtin_trap(), 0.0f) + tanh_f32(", tmp_path)
    assert done.stdout.strip() == "1 the process ends by signal 4", done.stdout + done.stderr


def test_isolated_takes_our_own_kernels_alone():
    with pytest.raises(ValueError, match="isolated"):
        jit.minify(network, given(), isolated=True, backend="eager")
