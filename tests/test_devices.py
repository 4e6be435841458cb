"""Devices as objects: nothing tests for them by name, and another kind of device is one class and its registration."""

import ast
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pretended_device import PLACE, Pretend, on_host

from jit import devices
from jit.devices import cuda

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"cpu", "cuda", "meta"}
FLAGS = {"is_cpu", "is_cuda"}

# Where names stand for something else than a kind of device that plans run on.
ALLOWED = {
    "jit/graph/refusals.py": 'in which tensors PyTorch is asked: of zeros, or "meta" ones',
    "jit/graph/aten.py": "the same",
    "jit/graph/probe.py": "the same",
    "jit/torch_private.py": "what PyTorch itself offers",
    "jit/runtime/cuda_graphs.py": "CUDA graphs: nothing else calls it than the executor on such a device",
    "jit/frame/library/torch_functions.py": "a function of torch.cuda that has a rule",
    "jit/report/bench_process.py": "a process that measures eager and torch.compile without the package",
    "jit/frame/library/optimizers.py": "Python that is captured: the program's tensors are asked",
}


def names_tested(tree) -> list:
    """(line, what) of comparisons with device names, keys and collections of them, and tensors' flags."""

    def named(node):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return bool(node.elts) and all(map(named, node.elts))
        return isinstance(node, ast.Constant) and node.value in NAMES

    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(named, (node.left, *node.comparators))):
            found.append((node.lineno, "a comparison"))
        elif isinstance(node, ast.Dict) and any(map(named, filter(None, node.keys))):
            found.append((node.lineno, "a key of a dictionary"))
        elif isinstance(node, ast.Subscript) and named(node.slice):
            found.append((node.lineno, "an item by name"))
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(node.elts) > 1 and named(node):
            found.append((node.lineno, "a collection of names"))
        elif isinstance(node, ast.MatchValue) and named(node.value):
            found.append((node.lineno, "a case"))
        elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
              and node.func.attr in ("startswith", "__eq__") and any(map(named, node.args))):
            found.append((node.lineno, "a comparison"))
        elif isinstance(node, ast.Attribute) and (node.attr in FLAGS or node.attr == "cuda"
                                                  and isinstance(node.value, ast.Name) and node.value.id == "torch"):
            found.append((node.lineno, f".{node.attr}"))
    return found


def test_nothing_tests_for_a_device_by_name():
    found, used = [], set()
    for path in sorted((ROOT / "jit").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith("jit/devices/"):
            continue
        here = names_tested(ast.parse(path.read_text()))
        if name in ALLOWED:
            used.update([name] if here else [])
        else:
            found += [f"{name}:{line}: {what}: ask jit.devices.backend(...)" for line, what in here]
    assert not found, "\n".join(found)
    assert used == set(ALLOWED), f"no exception is needed for {set(ALLOWED) - used}"


@pytest.mark.parametrize("text",
                         ["d.type == 'cuda'", "'cpu' != t.device.type", "d in ('cpu', 'cuda')", "x = {'cuda': 1}",
                          "COST['cpu']", "t.is_cuda", "torch.cuda.is_available()", "for d in ('cpu', 'cuda'): pass",
                          "name.startswith('cuda')", "match d:\n case 'meta': pass"])
def test_the_check_sees(text):
    assert names_tested(ast.parse(text))


@pytest.mark.parametrize("text",
                         ["torch.zeros(1, device='cpu')", "kind == 'call'", "torch.backends.cuda.matmul", "('cpu', 1)"])
def test_the_check_allows(text):
    assert not names_tested(ast.parse(text))


# the objects


def facts():
    return {name for name in vars(devices.Backend) if not name.startswith("_")}


def test_what_a_kind_says_is_asked():
    """Each attribute of a backend is one that all have, and is read somewhere."""
    for found in devices.registered():
        own = {name for cls in type(found).__mro__[:-2] for name in vars(cls) if not name.startswith("_")}
        assert own <= facts(), f"{found.type}: {own - facts()}"
    text = "\n".join(path.read_text() for path in (ROOT / "jit").rglob("*.py") if "devices" not in path.parts)
    unread = {name for name in facts() if not re.search(rf"\.{name}\b", text)}
    assert not unread


def test_kinds():
    assert [devices.of_type(n).type for n in ("cpu", "cuda", "meta")] == ["cpu", "cuda", "meta"]
    assert devices.backend(torch.device("cuda", 3)) is devices.of_type("cuda")
    unknown = devices.backend(torch.device("mps"))
    assert not unknown.known and unknown.emitter is None


def test_an_architecture_is_read_from_the_device(monkeypatch):
    if not torch.cuda.is_available():
        assert devices.of_type("cuda").architecture() is cuda.H200
    found = SimpleNamespace(name="NVIDIA A100", multi_processor_count=108, warp_size=32, regs_per_multiprocessor=65536,
                            shared_memory_per_block_optin=163 << 10, L2_cache_size=40 << 20, memory_clock_rate=1215000,
                            memory_bus_width=5120, clock_rate=1410000, major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    cuda._read.cache_clear()
    a100 = devices.of_type("cuda").architecture(torch.device("cuda", 1))
    cuda._read.cache_clear()
    assert ((a100.processors, a100.capability, a100.registers) == (108, 80, 256 << 10)
            and 1.5e12 < a100.bandwidth < 1.6e12 and 3.1e14 < a100.products < 3.2e14)
    here = devices.of_type("cpu").architecture()
    assert here.processors >= 1 and 1 << 14 <= here.local <= here.cache


def test_choices_follow_the_architecture():
    """Fewer multiprocessors, fewer programs."""
    import triton_kernels as zoo

    from jit.codegen.triton import heuristics, tiling

    tiled = tiling.tile(zoo.CASES["swiglu"](torch.float32, 100).kernel)
    small = dataclasses.replace(cuda.H200, processors=8)
    assert heuristics.choose(tiled, small).x > heuristics.choose(tiled, cuda.H200).x
    row = tiling.tile(zoo.softmax_kernel(torch.bfloat16, 4, 32000).kernel)
    half = dataclasses.replace(cuda.H200, registers=128 << 10)
    assert heuristics.choose(row, half).looped and not heuristics.choose(row, cuda.H200).looped
    gpu = devices.of_type("cuda")
    assert gpu.chunks(4, 4_000_000, True) == 32 * gpu.architecture().processors // 4


# another kind of device


@pytest.fixture
def pretend():
    found = devices.register(Pretend())
    yield found
    devices.unregister(found.type)


def softmax_of_sums(b, x, w):
    y = b.add(b.mul(x, w), 1.0)
    e = b.exp(b.sub(y, b.amax(y, [1], True)))
    return b.div(e, b.sum(e, [1], True)), b.sum(y, [0])


def picked(b, x, at):
    return b.gather(b.tanh(x), 1, at)


def test_another_device_is_one_class(pretend):
    from codegen_graphs import moved, trace

    import jit.runtime
    from jit.codegen import compile_graph
    from jit.graph.interpret import evaluate
    from jit.graph.passes import SCHEDULED, STANDARD, run_passes

    x, w, at = torch.randn(60, 300), torch.randn(300), torch.randint(300, (60, 2))
    for fn, tensors in ((softmax_of_sums, (x, w)), (picked, (x, at))):
        want = evaluate(trace(fn, tensors), list(tensors))
        graph = moved(trace(fn, tensors), PLACE)
        compiled = compile_graph(run_passes(graph, (*STANDARD, *SCHEDULED)))
        assert ({k.device for k in compiled.loops.values()} == {"privateuseone"}
                and any(getattr(step, "device", None) == PLACE for step in compiled.plan.steps))
        got = jit.runtime.load_plan(on_host(compiled.plan))(*tensors)
        for mine, theirs in zip(got, want):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    bad = at.clone()
    bad[3, 1] = 300
    with pytest.raises(RuntimeError):  # whose kernels set a flag, as the class says
        jit.runtime.load_plan(on_host(compiled.plan))(x, bad)


def test_a_traced_program_on_another_device(pretend):
    """The frame's layers take such tensors' types: the graph, its gradient and its kernels' plan."""
    from graph_harness import ElsewhereTracer
    from graph_harness import trace as traced

    from jit.codegen import Options, compile_graph
    from jit.graph.autodiff import differentiate, partition
    from jit.graph.shape_env import ShapeEnv

    seen = {}

    def program(x, w):
        seen["flags"] = x.is_cpu, x.is_cuda, x.is_meta
        return torch.nn.functional.layer_norm(x @ w.t(), (8,)).relu().sum(1)

    graph, _, _ = (traced(program, torch.randn(4, 6, requires_grad=True), torch.randn(8, 6, requires_grad=True),
                          tracer=ElsewhereTracer(ShapeEnv(), PLACE), differentiated=True))
    assert seen["flags"] == (False, False, False)
    halves = partition(differentiate(graph, [0, 1], [0]))
    for half in (halves.forward, halves.backward):
        compiled = compile_graph(half, Options(target="reference"))
        assert compiled.loops and all(k.device == "privateuseone" for k in compiled.loops.values())


def test_an_unknown_device_is_refused():
    from jit.errors import Unsupported
    from jit.graph.build import Builder
    from jit.graph.ir import TensorType
    from jit.graph.shape_env import ShapeEnv

    with pytest.raises(Unsupported, match="a tensor is on privateuseone:0"):
        Builder(ShapeEnv()).node("input", (), {"index": 0}, TensorType.contiguous((2,), torch.float32, PLACE))


def test_no_emitter_is_loaded_before_there_are_kernels(python):
    found = python("import sys, jit, jit.devices; print([n for n in sys.modules if n.partition('.')[0] "
                   "== 'triton' or n.startswith(('jit.codegen.cpp', 'jit.codegen.triton'))])")
    assert found.stdout.strip() == "[]", found.stdout
