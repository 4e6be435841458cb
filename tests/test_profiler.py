"""What profilers see of compiled code: regions, runs of plans and kernels, by names that say where they come from."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import types

import pytest
import torch
from torch import nn

import jit
from jit import shown
from jit.runtime import native

FILE = os.path.basename(__file__)
STEM = shown.identifier(FILE)


def line_of(fn, text):
    """The line of a function that holds a text."""
    import inspect

    lines, first = inspect.getsourcelines(fn)
    return first + next(k for k, line in enumerate(lines) if text in line)


def seen_in(call, **options):
    """(events, what the call gives) of a call under PyTorch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profile:
        result = call()
    return list(profile.events()), result


def names(events, start="jit"):
    return [e.name for e in events if e.name.startswith(start)]


def chain(event):
    """The names of the events around one, the innermost first."""
    found = []
    while event is not None:
        found.append(event.name)
        event = event.cpu_parent
    return found


def only(events, name):
    found = [e for e in events if e.name == name]
    assert len(found) == 1, (name, names(events))
    return found[0]


def activated(x):
    y = torch.softmax(x, -1)
    return torch.nn.functional.gelu(y) * 2


def test_a_region_its_plan_and_its_kernel():
    f = jit.compile(activated)
    x = torch.randn(7, 16)
    f(x)
    events, _ = seen_in(lambda: f(x))
    region = f"jit: activated ({FILE}:{line_of(activated, 'def activated')})"
    kernel = f"jit_softmax_gelu_mul_{STEM}_{line_of(activated, 'softmax')}"
    assert names(events) == [region, region.replace("jit:", "jit graph:"), kernel]
    assert chain(only(events, kernel)) == names(events)[::-1]


def trained(x, w):
    return torch.tanh(x @ w).sum(1)


def backward_of(f, x, w):
    w.grad = None
    f(x, w).sum().backward()
    return w.grad


def test_forward_and_backward():
    f, x = jit.compile(trained), torch.randn(7, 16)
    w = torch.randn(16, 5, requires_grad=True)
    backward_of(f, x, w)
    events, _ = seen_in(lambda: backward_of(f, x, w))
    at = f"trained ({FILE}:{line_of(trained, 'def trained')})"
    line = line_of(trained, "tanh")
    forward, backward = only(events, f"jit forward: {at}"), only(events, f"jit backward: {at}")
    ahead = only(events, f"jit_sum_tanh_{STEM}_{line}" if f"jit_sum_tanh_{STEM}_{line}" in names(events)
                 else f"jit_tanh_sum_{STEM}_{line}")
    assert chain(ahead) == [ahead.name, forward.name, f"jit: {at}"]
    behind = [e for e in events if e.name.startswith("jit_backward_tanh")]
    assert behind and all(chain(e)[1:3] == [backward.name, "CompiledBackward"] for e in behind)
    assert "aten::mm" in [e.name for e in forward.cpu_children]


def test_a_backward_is_linked_with_its_forward(tmp_path):
    f, x = jit.compile(trained), torch.randn(7, 16)
    w = torch.randn(16, 5, requires_grad=True)
    backward_of(f, x, w)
    with torch.profiler.profile() as profile:
        backward_of(f, x, w)
    events = list(profile.events())
    forward = next(e for e in events if e.name.startswith("jit forward: "))
    node = only(events, "CompiledBackward")
    assert forward.sequence_nr == node.sequence_nr >= 0
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    started = [r["ts"] for r in rows if r.get("cat") == "fwdbwd" and r["ph"] == "s"]
    own = next(r for r in rows if r.get("name") == forward.name)
    assert any(own["ts"] <= ts <= own["ts"] + own["dur"] for ts in started)
    with torch.no_grad():
        events, _ = seen_in(lambda: f(x, w))
    assert all(e.sequence_nr < 0 for e in events if e.name.startswith("jit "))


def test_shapes_and_stacks():
    f, x = jit.compile(activated), torch.randn(7, 16)
    f(x)
    events, got = seen_in(lambda: f(x), record_shapes=True, with_stack=True, with_modules=True, profile_memory=True)
    kernel = next(e for e in events if e.name.startswith("jit_softmax"))
    assert [list(s) for s in kernel.input_shapes] == [[7, 16], [7, 16]]
    torch.testing.assert_close(got, activated(x))
    assert f"jit: activated ({FILE}:{line_of(activated, 'def')})" in chain(kernel)


def test_other_sizes_of_one_entry():
    f = jit.compile(activated, dynamic=True)
    for n in (3, 5):
        x = torch.randn(n, 16)
        f(x)
        events, got = seen_in(lambda x=x: f(x), record_shapes=True)
        torch.testing.assert_close(got, activated(x))
        kernel = next(e for e in events if e.name.startswith("jit_softmax"))
        assert [list(s) for s in kernel.input_shapes] == [[n, 16], [n, 16]]


def broken(x):
    y = x.exp() + 1
    jit.graph_break()
    return y.sin()


def test_around_a_break():
    f = jit.compile(broken, options={"eager_where_faster": False})
    x = torch.randn(5)
    f(x), f(x)
    events, got = seen_in(lambda: f(x))
    torch.testing.assert_close(got, broken(x))
    first, rest = (f"jit: broken ({FILE}:{line_of(broken, 'def')})",
                   f"jit: broken, resumed ({FILE}:{line_of(broken, 'graph_break')})")
    assert [n for n in names(events, "jit: ")] == [first, rest]
    assert names(events, "jit_") == [f"jit_exp_add_{STEM}_{line_of(broken, 'exp')}",
                                     f"jit_sin_{STEM}_{line_of(broken, 'sin')}"]
    sine = only(events, names(events, "jit_")[1])
    assert chain(sine) == [sine.name, rest.replace("jit:", "jit graph:"), rest]


def stepping(x):
    for k in range(2):
        x = torch.sin(x) * 2
        yield x + k


def test_steps_of_a_generator():
    f = jit.compile(stepping)
    x = torch.randn(5)
    list(f(x))
    events, got = seen_in(lambda: list(f(x)))
    for a, b in zip(got, stepping(x), strict=True):
        torch.testing.assert_close(a, b)
    assert any(n.startswith("jit: stepping, resumed") for n in names(events))
    assert any(n.startswith("jit_sin") for n in names(events))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


def test_a_module_goes_by_its_forward():
    m, x = jit.compile(Layer()), torch.randn(4, 8)
    with torch.no_grad():
        m(x)
        events, _ = seen_in(lambda: m(x))
    assert f"jit: Layer.forward ({FILE}:{line_of(Layer.forward, 'def')})" in names(events)
    in_place = jit.compile_in_place(Layer())
    with torch.no_grad():
        in_place(x)
        events, _ = seen_in(lambda: in_place(x))
    assert f"jit: Layer.forward ({FILE}:{line_of(Layer.forward, 'def')})" in names(events)


def test_compiling_is_seen():
    f, x = jit.compile(lambda x: (x * 3).cos()), torch.randn(5)
    events, _ = seen_in(lambda: f(x))
    assert [n for n in names(events) if n.startswith("jit: compiling <lambda> (")]
    assert not names(seen_in(lambda: f(x))[0], "jit: compiling")


def gathered(x, i):
    return torch.exp(x[i]) * 2


def test_an_exception_leaves_no_range_open():
    f, x = jit.compile(gathered), torch.randn(5)
    f(x, torch.tensor([1, 2]))
    wrong, right = torch.tensor([1, 9]), torch.tensor([1, 2])

    def call():
        with pytest.raises(IndexError):
            f(x, wrong)
        return f(x, right)

    events, got = seen_in(call)
    torch.testing.assert_close(got, gathered(x, right))
    regions = [e for e in events if e.name.startswith("jit: gathered")]
    assert len(regions) == 2 and all(e.cpu_parent is None for e in regions)
    assert regions[0].time_range.end <= regions[1].time_range.start
    assert len(names(events, "jit_getitem_exp_mul")) == 2


def test_threads():
    f, x = jit.compile(activated), torch.randn(7, 16)
    f(x)
    wrong = []

    def work():
        events, got = seen_in(lambda: f(x))
        kernels = [e for e in events if e.name.startswith("jit_softmax")]
        if not kernels or not torch.allclose(got, activated(x)):
            wrong.append(names(events))

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        threads = [threading.Thread(target=lambda: [f(x) for _ in range(3)]) for _ in range(3)]
        for t in threads:
            t.start()
        f(x)
        for t in threads:
            t.join()
    assert len([e for e in profile.events() if e.name.startswith("jit_softmax")]) >= 1
    work()
    assert not wrong


def test_a_replay_of_a_recording():
    native().pretend_graphs(True)
    try:
        f, x, w = jit.compile(trained, mode="reduce-overhead"), torch.randn(7, 16), torch.randn(16, 5)
        for _ in range(4):
            f(x, w)
        events, got = seen_in(lambda: f(x, w))
        torch.testing.assert_close(got, trained(x, w))
        at = f"jit graph: trained ({FILE}:{line_of(trained, 'def')})"
        assert [n for n in names(events) if "graph" in n] == [at] * ("replay" not in at) + []
        assert chain(only(events, f"replay of {at}")) == [f"replay of {at}", at, at.replace("jit graph", "jit")]
        assert not names(events, "jit_")  # nobody launches them one by one
    finally:
        native().pretend_graphs(False)
        jit.reset()


def test_nothing_is_told_where_nobody_asks():
    """The name is asked for at the first range, so none was made without a profiler."""
    asked = []
    f, x = jit.compile(activated), torch.randn(7, 16)
    f(x)
    own = f.on_miss

    class Asked:
        def __call__(self, *args):
            return own(*args)

        def shown(self, dispatcher):
            asked.append(dispatcher)
            return "it"

    f.on_miss = Asked()
    for _ in range(3):
        f(x)
    assert not asked
    events, _ = seen_in(lambda: (f(x), f(x)))
    assert asked == [f] and names(events, "jit: ") == ["jit: it"] * 2
    f(x)
    assert asked == [f]


def test_a_name_that_raises_is_no_harm():
    f, x = jit.compile(activated), torch.randn(7, 16)
    f(x)
    own = f.on_miss

    class Raises:
        def __call__(self, *args):
            return own(*args)

        def shown(self, dispatcher):
            raise ValueError("no")

    f.on_miss = Raises()
    events, got = seen_in(lambda: f(x))
    torch.testing.assert_close(got, activated(x))
    assert names(events, "jit: ") == ["jit: a function"]


# names


@pytest.mark.parametrize("words, file, line, want", [
    (("softmax", "gelu"), "/a/model.py", 42, "jit_softmax_gelu_model_py_42"),
    (("foo::bar", "add"), "<ipython-input-3>", 1, "jit_foo_bar_add_ipython_input_3_1"),
    ((), "", 0, "jit"),
    (("exp",), "", 0, "jit_exp"),
    (("é",), "ü.py", 3, "jit_py_3"),
])
def test_kernel_names(words, file, line, want):
    assert shown.kernel(words, file, line) == want


def test_kernel_names_are_bounded_identifiers():
    name = shown.kernel(["a" * 40, "b" * 40, "c"], "x" * 100 + ".py", 123456, backward=True)
    assert len(name) <= shown.MOST and re.fullmatch(r"jit_backward_a+_\w+_py_123456", name)
    assert len(shown.kernel(["a" * 200], "x.py", 1)) <= shown.MOST
    assert shown.kernel(["a" * 200], "x.py", 1).endswith("_x_py_1")


LAYERS = '''
import sys, torch, jit

def first(x):
    return torch.nn.functional.gelu(x) * 2

{gap}
def second(x):
    return torch.nn.functional.gelu(x) * 2

x = torch.randn(64)
f, g = jit.compile(first), jit.compile(second)
f(x), g(x)
with torch.profiler.profile() as p:
    f(x), g(x)
print([e.name for e in p.events() if e.name.startswith("jit_")])
from jit.codegen import cpp
print(len(cpp._addresses))
'''


def test_kernels_of_one_text_are_one_in_all_lines_and_processes(tmp_path):
    """Two functions, and the same program with other line numbers: four names, one binary."""
    seen, kept = [], []
    for gap in ("", "\n\n\n"):
        path = tmp_path / "layers.py"
        path.write_text(LAYERS.format(gap=gap))
        env = {**os.environ, "JIT_CACHE_DIR": str(tmp_path / "cache"), "JIT_ENTRY_CACHE": "0"}
        run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, check=True,
                             cwd=tmp_path)
        lines = [line for line in run.stdout.splitlines() if not line.startswith("USDT")]
        seen += eval(lines[-2])
        assert lines[-1] == "1"
        kept.append({p.name for p in (tmp_path / "cache" / "kernels").rglob("*") if p.is_file()})
    assert seen == ["jit_gelu_mul_layers_py_5", "jit_gelu_mul_layers_py_9", "jit_gelu_mul_layers_py_5",
                    "jit_gelu_mul_layers_py_12"]
    assert kept[0] == kept[1] and kept[0]


def test_the_report_says_the_same_names():
    x = torch.randn(7, 16)
    w = torch.randn(16, 5, requires_grad=True)
    f = jit.compile(trained)
    backward_of(f, x, w)
    events, _ = seen_in(lambda: backward_of(f, x, w))
    told = jit.explain(trained)(x, w).report
    steps = [s for region in told.regions for plan in region.plans for s in plan.steps if s.kind == "kernel"]
    assert {s.name for s in steps} == set(names(events, "jit_"))
    for s in steps:  # the function in the binary, as perf shows it
        assert re.fullmatch(r"jit_\w+", s.function) and STEM not in s.function
        text = next(text for region in told.regions for plan in region.plans for name, text in plan.kernels
                    if name == s.source)
        assert f"{s.function}(" in text


def test_the_binary_of_a_cpu_kernel_says_what_it_computes():
    f, x = jit.compile(activated), torch.randn(7, 16)
    f(x)
    gc.collect()
    plans = [o for o in gc.get_objects() if type(o) is native().Plan and "activated" in o.data.name]
    assert plans and plans[0].data.name.startswith("jit graph: activated (")


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
def test_the_loops_of_a_cpu_kernel_have_a_symbol(tmp_path):
    """By which ``perf`` names the samples in them: with several threads they are in functions that are not exported."""
    script = "import torch, jit; jit.compile(lambda x: torch.softmax(x.sin(), -1))(torch.randn(512, 512))"
    env = {**os.environ, "JIT_CACHE_DIR": str(tmp_path), "JIT_ENTRY_CACHE": "0"}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True)
    files = [p for p in (tmp_path / "kernels").rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    found = [line.split()[-1] for p in files
             for line in subprocess.run(["nm", str(p)], capture_output=True, text=True, check=True).stdout.splitlines()]
    exported = [name for name in found if re.fullmatch(r"jit_sin_max_sub_exp_sum_\w+?", name) and "_part" not in name]
    assert exported and any(name.startswith(exported[0]) and name != exported[0] for name in found), found


def test_a_function_without_a_line():
    code = compile("def made(x):\n    return x.exp() + 1\n", "<string>", "exec")
    space = {}
    exec(code, space)
    f, x = jit.compile(space["made"]), torch.randn(5)
    f(x)
    events, _ = seen_in(lambda: f(x))
    assert names(events) == ["jit: made (<string>:1)", "jit graph: made (<string>:1)", "jit_exp_add_string_2"]
    assert isinstance(space["made"], types.FunctionType)
