"""The names of torch.compile's surface: ours, and those of ``torch.compiler`` and ``torch._dynamo`` in code that is
compiled, which run in a process of their own (tests/torch_surface_programs.py)."""

import _statistics
import ast
import functools
import inspect
import json
import pathlib
import re

import pytest
import torch

import jit
from jit.frame import tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
X = torch.linspace(-1, 1, 12).reshape(4, 3)


def breaks(fn, *args):
    return [(b.kind, b.why) for b in jit.explain(fn)(*args).break_reasons]


def compilations(run):
    before = jit.compile_count()
    run()
    return jit.compile_count() - before


# -- names of PyTorch's ---------------------------------------------------------------------------------------------

DONE_BY_TORCH = ["forbidden-call"]  # a break: Python does it
EXPECTED = {
    "torch.compile, inside": DONE_BY_TORCH,
    "torch.compiler.disable": ["disabled"],
    "torch.compiler.disable, recursive=False": ["disabled"],
    "torch._dynamo.disable": ["disabled"],
    "torch._dynamo.decorators.skip": ["disabled"],
    "torch.compiler.reset": DONE_BY_TORCH,
    "torch._dynamo.reset": DONE_BY_TORCH,
    "torch.compiler.list_backends": DONE_BY_TORCH,
    "torch._dynamo.list_backends": DONE_BY_TORCH,
    "torch._dynamo.lookup_backend": DONE_BY_TORCH,
    "torch._dynamo.register_backend": DONE_BY_TORCH,
    "torch._dynamo.graph_break": ["graph-break"],
    "torch._dynamo.skip_frame": ["graph-break"],
    "torch._dynamo.step_unsupported": ["graph-break"],
    "torch._dynamo.forbid_in_graph": ["disabled"],
    "torch._dynamo.run, inside": DONE_BY_TORCH,
    "torch._dynamo.explain": ["forbidden-call", "forbidden-call", "disabled"],
    "torch._dynamo.allow_c_slot": DONE_BY_TORCH,
    "torch._dynamo.set_recursion_limit": DONE_BY_TORCH,
    "torch.compiler.set_default_backend": DONE_BY_TORCH * 4,
    "torch.compiler.set_enable_guard_collectives": ["disabled"],
    "torch.compiler.set_stance": ["disabled"] * 3,
    "torch.compiler.set_stance, decorator": ["disabled"],
    "torch._dynamo.set_stance": ["disabled"] * 3,
    "torch._dynamo.set_stance, decorator": ["disabled"],
    "torch._dynamo.config.patch": ["instantiate"],
    "torch._dynamo.patch_dynamo_config": ["instantiate"],
    "torch._dynamo.dont_skip_tracing": ["instantiate"],
    "torch._dynamo.disable_nested_graph_breaks": ["instantiate"],
    "torch._dynamo.disallow_in_graph": ["disabled"],
    "torch._dynamo.decorators.leaf_function": ["disabled"],
}
NAMES = re.findall(r'^ *@?program\("(.+?)"\)|^    "(torch\..+?)": lambda',
                   (ROOT / "tests" / "torch_surface_programs.py").read_text(), re.M)
NAMES = [a or b for a, b in NAMES] + [b + ", decorator" for a, b in NAMES if b]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What the script says of each program."""
    import os
    import subprocess
    import sys

    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    environment.pop("JIT_STRICT", None)
    done = subprocess.run([sys.executable, "tests/torch_surface_programs.py"], cwd=ROOT, env=environment, text=True,
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_what_names_of_torch_do_in_compiled_code(outcomes, name):
    found = outcomes[name]
    assert "error" not in found, found
    assert found["right"], found
    if name != "torch.compiler.wrap_numpy":  # its breaks are NumPy's
        assert found["breaks"] == EXPECTED.get(name, []), found


def test_breaks_say_what_was_asked_for(outcomes):
    assert "of old age; take torch.compiler.disable off it" in outcomes["torch.compiler.disable"][
        "texts"][0]
    assert "graph_break() was called: here" in outcomes["torch._dynamo.graph_break"]["texts"][0]
    assert "disallow_in_graph was called" in outcomes["torch._dynamo.disallow_in_graph"]["texts"][0]
    assert outcomes["torch.compiler.disable, given to jit"]["graphs"] == 0


def public_names():
    """All public names of torch.compile, torch.compiler and torch._dynamo; nothing is imported for it."""
    yield from (f"{name}=" for name in inspect.signature(torch.compile).parameters if name != "model")
    yield from (f"torch.compiler.{name}" for name in torch.compiler.__all__)
    source = pathlib.Path(torch.__file__).parent / "_dynamo" / "__init__.py"
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            yield from (f"torch._dynamo.{name}" for name in ast.literal_eval(node.value))


def test_the_page_has_a_row_for_each_public_name():
    page = (ROOT / "docs" / "torch_compile.md").read_text()
    rows = " ".join(row.split("|")[1] for row in page.splitlines() if row.startswith("| "))
    listed = set(re.findall(r"`([\w.]+=?)`", rows))
    missing = [name for name in public_names() if not listed & {name, name.replace("_dynamo", "compiler")}]
    assert not missing, missing


def test_the_page_says_of_each_program_whether_it_breaks():
    page = (ROOT / "docs" / "torch_compile.md").read_text()
    for row in page.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 5 and cells[3] in ("no", "a break"):
            for name in re.findall(r"`(torch[\w.]+)`", cells[1]):
                if name in NAMES and name not in ("torch.compile", "torch.compiler.compile"):
                    assert bool(EXPECTED.get(name)) == (cells[3] == "a break"), row


# -- ours -----------------------------------------------------------------------------------------------------------


def test_a_limit_of_one_function():
    def fn(t):
        return t * 2

    kinds = [X.to(dtype) for dtype in (torch.float32, torch.float64, torch.int32, torch.int64)]
    few, many = jit.compile(fn, recompile_limit=2), jit.compile(fn)
    with pytest.warns(UserWarning, match="was compiled 2 times and runs in eager"):
        for t in kinds:
            assert torch.equal(few(t), t * 2)
    assert len(few.entries) == 2
    for t in kinds:
        many(t)
    assert len(many.entries) == 4
    alike = jit.compile(fn, options={"recompile_limit": 1})
    with pytest.warns(UserWarning, match="was compiled 1 times"):
        for t in kinds:
            assert torch.equal(alike(t), t * 2)
    with pytest.raises(ValueError, match="recompile_limit=0"):
        jit.compile(fn, recompile_limit=0)
    with pytest.raises(TypeError, match="recompile_limit=True"):
        jit.compile(fn, recompile_limit=True)


def test_the_limit_has_two_names(python):
    before = jit.config.cache_limit
    with jit.config.patch(recompile_limit=3):
        assert jit.config.cache_limit == jit.config.recompile_limit == 3
    assert jit.config.cache_limit == before
    jit.config.recompile_limit = before
    show = "import jit; print(jit.config.cache_limit)"
    assert python(show, JIT_RECOMPILE_LIMIT="5").stdout.strip() == "5"
    done = python(show, check=False, JIT_RECOMPILE_LIMIT="no")
    assert done.returncode and "JIT_RECOMPILE_LIMIT='no'" in done.stderr


@pytest.mark.parametrize("asked", ["option", "config"])
def test_an_error_where_a_function_would_be_compiled_again(asked):
    fn = jit.compile(lambda t: t * 2, options={"error_on_recompile": True} if asked == "option" else None)
    with jit.config.patch(error_on_recompile=asked == "config"):
        assert torch.equal(fn(X), X * 2)  # the first time is none
        with pytest.raises(jit.RecompileError, match=r"(?s)test_surface.py.*error_on_recompile.*entry 0: .*float64"):
            fn(X.double())
        assert torch.equal(fn(X), X * 2)
        assert len(fn.entries) == 1
    assert issubclass(jit.RecompileError, RuntimeError)


def test_a_stance_that_forbids_says_what_differs():
    fn = jit.compile(lambda t, k: t * k)
    fn(X, 2), fn(X.int(), 3)
    with jit.set_stance("fail_on_recompile"):
        with pytest.raises(jit.RecompileError, match=r"(?s)compiled again.*entry 0: .*float64.*entry 1: .*float64"):
            fn(X.double(), 2)
        with pytest.raises(jit.RecompileError, match="would be compiled for"):
            jit.compile(lambda t: t + 1)(X)
    assert torch.equal(fn(X, 2), X * 2)


@pytest.mark.parametrize("name", ["_jit_dynamic_dims", "_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"])
def test_unbacked_sizes(name):
    fn = jit.compile(lambda t: t * t.shape[0])
    given = torch.ones(3, 2)
    jit.mark_unbacked(given, 0) if name.startswith("_jit") else setattr(given, name, {0})
    fn(given)
    assert compilations(lambda: [fn(torch.ones(n, 2)) for n in (4, 7, 9)]) == 0
    one = torch.ones(1, 2)
    assert torch.equal(fn(one), one) and torch.equal(fn(torch.ones(0, 2)), torch.ones(0, 2))


def test_marks_in_compiled_code_are_those_of_eager():
    def fn(t):
        t = t + 1
        jit.mark_dynamic(t, 0), jit.mark_static(t, 1)
        return t

    fast = jit.compile(fn, fullgraph=True)
    made = fast(X)
    assert made._jit_dynamic_dims == {0} and made._jit_static_dims == {1} and torch.equal(made, X + 1)


def test_reasons_for_leaving_a_function_alone():
    @jit.disable(reason="it reads a clock")
    def left(t):
        return t + jit.is_compiling()

    def fn(t):
        return left(t * 2) - 1

    assert breaks(fn, X)[0][0] == "disabled" and "it reads a clock" in breaks(fn, X)[0][1]
    assert torch.equal(jit.compile(fn)(X), X * 2 - 1)


def compiling_in(seen):
    def callee(t):
        seen.append(jit.is_compiling())
        return (t * 3).relu().sum()

    return callee


@pytest.mark.parametrize("recursive", [True, False])
def test_a_function_is_left_alone_with_or_without_what_it_calls(recursive):
    seen = []
    callee = compiling_in(seen)

    def left(t):
        seen.append(jit.is_compiling())
        return callee(t) + 1

    disabled = jit.disable(left, recursive=recursive)
    fast = jit.compile(lambda t: disabled(t * 2) - 1)
    for _ in range(3):
        assert torch.allclose(fast(X), callee(X * 2))
    assert not any(seen[0::3]), "the function itself"
    assert torch.allclose(jit.compile(disabled)(X), left(X))
    if recursive:
        assert not any(seen)
    else:
        assert any(seen)


def test_what_wraps_a_marked_function_is_not_marked():
    @jit.disable
    def left(t):
        return t + 1

    @jit.assume_constant_result
    def constant():
        return 2.0

    @functools.wraps(left)
    def around_left(t):
        return t * 2

    @functools.wraps(constant)
    def around_constant(t):
        return t * constant()

    assert not breaks(around_left, X) and not breaks(lambda t: around_left(t) + 1, X)
    assert torch.equal(jit.compile(lambda t: around_constant(t), fullgraph=True)(X), X * 2)
    assert torch.equal(jit.compile(around_left, fullgraph=True)(X), X * 2)


# -- functions that belong into the graph ---------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [False, True])
def test_functions_in_the_graph_are_run_on_stand_ins(gradient):
    @jit.allow_in_graph
    def odd(t, scale):
        import ctypes
        ctypes.c_int(3)  # of C, and not known
        with torch.no_grad():
            kept = t * 2
        return kept * scale, torch.nn.functional.softmax(t, -1).view(-1)

    def fn(t):
        a, b = odd(t * 2, 3.0)
        return a + b.view_as(a)

    assert not breaks(fn, X)
    fast = jit.compile(fn, fullgraph=True)
    for shape in ((4, 3), (2, 5), (0, 3)):
        t = torch.randn(shape, requires_grad=gradient)
        u = t.detach().clone().requires_grad_(gradient)
        out, expected = fast(t), fn(u)
        torch.testing.assert_close(out, expected)
        if gradient:
            tangent = torch.randn(shape)
            out.backward(tangent), expected.backward(tangent)
            torch.testing.assert_close(t.grad, u.grad)


def test_functions_in_the_graph_that_cannot_be_followed_are_breaks():
    @jit.allow_in_graph
    def reads(t):
        return t.data_ptr() % 2 + t.sum()

    def fn(t):
        return t * float(reads(t))

    assert breaks(fn, X)
    torch.testing.assert_close(jit.compile(fn)(X), fn(X))


def test_functions_in_the_graph_draw_random_numbers_in_order():
    @jit.allow_in_graph
    def noisy(t):
        import ctypes
        ctypes.c_int(3)
        return t + torch.rand(t.shape)

    with jit.config.patch(fallback_random=True):
        fast = jit.compile(lambda t: noisy(t) * torch.rand(2), fullgraph=True)
        torch.manual_seed(3)
        results = [fast(torch.zeros(2)) for _ in range(2)]
    torch.manual_seed(3)
    for result in results:
        assert torch.equal(result, torch.rand(2) * torch.rand(2))


def test_stand_ins_pass_for_tensors():
    weight = torch.nn.Parameter(torch.randn(2))

    @jit.allow_in_graph
    def odd(t, w, more):
        __import__("ctypes").c_int(3)
        found = [isinstance(t, torch.Tensor), isinstance(t, torch.nn.Parameter), isinstance(w, torch.nn.Parameter),
                 torch.is_tensor(t), t.shape, t.size(0), len(t), t.dtype, t.device, t.requires_grad, t.is_contiguous()]
        if t.shape[0] > 4:
            t = t.reshape(-1, 2).clone()
        same = t
        t += 1
        t[0] = 7
        values, places = t.max(0)
        return {"a": (same is t, t * w + more["x"][0]), "b": [*found, t.size()], "c": t.sort(0), "d": (values, places)}

    def fn(t, x):
        kept = t * 2
        found = odd(kept, weight, {"x": [x]})
        return kept, found["a"], found["b"], found["c"].values, found["d"]

    fast = jit.compile(fn, fullgraph=True)
    for n in (3, 4, 6, 8):
        t, x = torch.randn(n, 2), torch.randn(2)
        found, expected = fast(t, x), fn(t, x)
        assert [type(v) for v in found[2]] == [type(v) for v in expected[2]] and found[2] == expected[2]
        torch.testing.assert_close(found[:2], expected[:2])
        torch.testing.assert_close(found[3:], expected[3:])


@pytest.mark.parametrize("what", ["a tensor from elsewhere", "an attribute", "a value", "a result of no stand-in"])
def test_what_stand_ins_cannot_do_is_a_break(what):
    other = torch.ones(3)

    @jit.allow_in_graph
    def odd(t):
        __import__("ctypes").c_int(3)
        if what == "a tensor from elsewhere":
            return t * other
        if what == "an attribute":
            t.mark = 3
        if what == "a value":
            return t * 2 if t.sum() > 0 else t
        return other if what.startswith("a result") else t + 1

    fast = jit.compile(lambda t: odd(t * 1) + 1)
    assert breaks(lambda t: odd(t * 1) + 1, torch.ones(3))
    for k in (1, -2, 3):
        other.fill_(k)
        assert torch.equal(fast(torch.full((3,), float(k))), odd(torch.full((3,), float(k))) + 1)


def test_lists_of_functions_and_wrong_ones():
    assert jit.allow_in_graph([compiling_in]) == [compiling_in]
    with pytest.raises(TypeError, match="not int"):
        jit.allow_in_graph(3)


@pytest.fixture
def no_substitutes():
    before = dict(tables.substitutes)
    yield
    tables.substitutes.clear()
    tables.substitutes.update(before)


def test_a_function_in_the_place_of_one_in_c(no_substitutes):
    original = _statistics._normal_dist_inv_cdf

    def fn(t):
        return t * original(0.5, 3.0, 1.0)

    assert breaks(fn, X)[0][0] == "c-call"

    @jit.substitute_in_graph(original)
    def of_a_half(p, mu, sigma, /):
        return mu + (p - 0.5) * sigma

    assert not breaks(fn, X)
    torch.testing.assert_close(jit.compile(fn, fullgraph=True)(X), fn(X))
    assert of_a_half(0.9, 0.0, 1.0) == original(0.9, 0.0, 1.0) != 0.4
    with pytest.raises(ValueError, match="has a substitute"):
        jit.substitute_in_graph(original)


def test_substitutes_of_python_functions_take_the_same(no_substitutes):
    def original(a, b=1):
        return eval("a + b")  # cannot be followed

    with pytest.raises(TypeError, match="does not take what"):
        jit.substitute_in_graph(original)(lambda a, c: a)
    jit.substitute_in_graph(original)(lambda a, b=1: a + b)
    assert torch.equal(jit.compile(lambda t: original(t), fullgraph=True)(X), X + 1)
    with pytest.raises(TypeError, match="not int"):
        jit.substitute_in_graph(3)


# -- others ---------------------------------------------------------------------------------------------------------


def test_regions_are_captured_whole_and_their_kernels_made_once():
    @jit.nested_compile_region
    def layer(t, w):
        return torch.softmax(t * w, -1) + t

    def fn(t, ws):
        for w in ws:
            t = layer(t, w)
        return t

    ws = [torch.randn(3) for _ in range(6)]
    torch.testing.assert_close(jit.compile(fn, fullgraph=True)(X, ws), fn(X, ws))
    report = jit.explain(fn)(X, ws)
    assert len(report.kernels) < report.launch_count == 6 or report.launch_count == 1
    assert jit.nested_compile_region()(layer) is layer


def test_steps_of_cuda_graphs_are_nothing():
    def fn(t):
        jit.cudagraph_mark_step_begin()
        return t * 2

    assert torch.equal(jit.compile(fn, fullgraph=True)(X), X * 2) and jit.cudagraph_mark_step_begin() is None


def test_names_that_ask():
    assert jit.is_dynamo_compiling() is False
    assert torch.equal(jit.compile(lambda t: t * jit.is_dynamo_compiling(), fullgraph=True)(X), X)


def test_our_own_control_in_compiled_code_is_a_break():
    def fn(t):
        return jit.compile(torch.relu)(t) + 1

    assert breaks(fn, X)[0][0] == "forbidden-call"
    assert torch.equal(jit.compile(fn)(X), torch.relu(X) + 1)


def test_nothing_of_torchs_compiler_is_loaded(python):
    script = """
import sys, torch, jit
@jit.allow_in_graph
def f(x): return x.sin()
@jit.disable(reason="r")
def g(x): return x + 1
h = jit.compile(lambda x: g(f(x) * 2))
with torch.no_grad():
    h(torch.ones(3)), jit.compile_in_place(torch.nn.Linear(3, 3))(torch.ones(3))
assert not [m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor"))]
print("apart")
"""
    assert python(script).stdout.strip() == "apart"
