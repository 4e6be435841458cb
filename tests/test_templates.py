"""Templates: products computed with what follows them, by C++ and by the loops' interpreter, by Triton's interpreter
and for sm_90 without a GPU; and the choice between them and the library."""

import contextlib
import dataclasses
import os

import interpreter
import pytest
import template_programs
import torch
from codegen_graphs import compare, moved
from graph_harness import clone_inputs, flatten, trace
from pretended_device import PLACE, Pretend, on_host
from template_programs import PROGRAMS

import jit
from jit import arguments, devices, logs
from jit.errors import CompileError, Unsupported
from jit.codegen import Options, compile_graph, loops, reference, timing
from jit.codegen.planner import Planner
from jit.codegen.cpp.emission import KernelText
from jit.codegen.template import TEMPLATES, Candidate, Layout
from jit.codegen.templates.products import Product
from jit.codegen.templates.triton_product import Blocks
from jit.graph import dims
from jit.graph.passes import SCHEDULED, STANDARD, run_passes


@pytest.fixture
def plain():
    """A template for products on any device."""
    name = template_programs.plain()
    yield name
    template_programs.forget(name)


@pytest.fixture
def chosen(monkeypatch, plain):
    """Compiled programs use templates wherever they can; gives the calls that were asked about."""
    asked = []

    def choose(call, plan):
        asked.append(call)
        return call.candidates[0]

    monkeypatch.setattr(timing, "choose", choose)
    with jit.config.patch(templates=True):
        yield asked


def captured(found, tensors):
    return trace(found.fn, *clone_inputs(tensors), dynamic=found.dynamic)[0]


def compiled(graph, choose, **options):
    """The plan of a graph, and the calls that were asked about."""
    asked = []

    def asking(call):
        asked.append(call)
        return choose(call)

    return compile_graph(run_passes(graph, (*STANDARD, *SCHEDULED)), Options(choose=asking, **options)), asked


def products(plan):
    """The library calls of a plan."""
    return [step for step in plan.steps if step.kind == "aten"]


def first(call):
    return call.candidates[0]


def agrees(found, tensors, run):
    theirs, ours = clone_inputs(tensors), clone_inputs(tensors)
    want = [t for t in flatten(found.fn(*theirs)) if isinstance(t, torch.Tensor)]
    compare([*run(ours), *ours], [*want, *theirs])


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(plain, name):
    """By C++, with another template that is one class."""
    found = PROGRAMS[name]
    tensors = found()
    library, _ = compiled(captured(found, tensors), lambda call: None)
    ours, asked = compiled(captured(found, tensors), first)
    assert len(asked) == found.taken
    assert len(products(ours.plan)) == len(products(library.plan)) - found.taken
    agrees(found, tensors, lambda given: ours.call(*given))
    agrees(found, tensors, lambda given: library.call(*given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_loops(plain, name):
    """Whose interpreter says what they mean."""
    found = PROGRAMS[name]
    tensors = found()
    ours, _ = compiled(captured(found, tensors), first, target="reference")
    for kernel in ours.loops.values():
        loops.verify(kernel)
    agrees(found, tensors, lambda given: reference.run_plan(ours, *given))


def test_another_device(plain):
    devices.register(Pretend())
    try:
        found = PROGRAMS["bias_gelu_residual"]
        tensors = found()
        ours, asked = compiled(moved(captured(found, tensors), PLACE), first)
        assert len(asked) == 1 and not products(ours.plan)
        call = jit.runtime.load_plan(on_host(ours.plan))
        agrees(found, tensors, lambda given: call(*given))
    finally:
        devices.unregister(Pretend.type)


def test_other_sizes(plain):
    """A plan with symbols serves other sizes."""
    found = PROGRAMS["symbolic"]
    ours, asked = compiled(captured(found, found()), first)
    assert len(asked) == 1
    for m, k, n in ((20, 24, 32), (3, 7, 50), (65, 2, 33)):
        agrees(found, [torch.randn(m, k), torch.randn(k, n), torch.randn(n)],
               lambda given: ours.call(*given, *[m for _ in ours.int_symbols]))


def test_nothing_is_used_that_nobody_chose(plain):
    """Without the option, and with a template of other devices."""
    found = PROGRAMS["odd_sizes"]
    graph = run_passes(captured(found, found()), (*STANDARD, *SCHEDULED))
    assert len(products(compile_graph(graph).plan)) == 1
    TEMPLATES[plain].emitter = "jit.codegen.triton.target"
    with jit.config.patch(templates=True):
        assert len(products(compile_graph(graph).plan)) == 1


def test_gradients(chosen):
    def block(x, w, v):
        return torch.nn.functional.silu(x @ w) @ v

    given = [torch.randn(s) for s in ((12, 20), (20, 28), (28, 8))]
    ours, theirs = ([t.clone().requires_grad_() for t in given] for _ in range(2))
    out, want = jit.compile(block, fullgraph=True)(*ours), block(*theirs)
    out.square().sum().backward()
    want.square().sum().backward()
    torch.testing.assert_close(out, want)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=2e-6 * other.grad.abs().max().item())
    # In the forward the first, whose kernel makes what silu gives, which both halves multiply, and silu's derivative;
    # in the backward the gradient of what silu gives, times that.
    assert sorted(len(call.results) for call in chosen) == [1, 2]


def test_halves_keep_float32_between(plain):
    """As in every kernel, unless each value is to be rounded as eager rounds it."""
    found = PROGRAMS["odd_sizes"]
    x, w = found(torch.float16)
    kernels = {}
    for exact in (False, True):
        with jit.config.patch(match_eager_rounding=exact):
            ours, _ = compiled(captured(found, [x, w]), first)
        (kernel,) = ours.loops.values()
        total = next(s.dst for s in kernel.body if s.reduces)
        kernels[exact] = [s.prim for s in kernel.body if s.prim and total in s.operands]
        got, truth = ours.call(x, w)[0], torch.tanh(x.double() @ w.double()) * 2
        eager = torch.tanh(x @ w) * 2
        assert (got - truth).abs().max() <= (eager - truth).abs().max() * 1.01
    assert kernels == {False: ["tanh"], True: ["cast"]}


# the choice


def lines(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("[jit:templates]")]


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    timing._known.clear()
    with jit.config.patch(cache_dir=str(tmp_path)):
        yield
    timing._known.clear()


def test_the_choice_is_timed_told_and_remembered(plain, private_cache, capfd):
    def program(x, w):
        return (x @ w).relu()

    x, w = torch.randn(64, 48), torch.randn(48, 32)
    logs.enable("templates")
    try:
        before = torch.get_rng_state()
        for _ in range(2):
            ours = jit.compile(program, fullgraph=True, options={"templates": True})
            torch.testing.assert_close(ours(x, w), program(x, w))
        timing._known.clear()
        with pytest.warns(UserWarning) if "max-autotune" not in arguments._told else contextlib.nullcontext():
            jit.compile(program, mode="max-autotune")(x, w)
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        logs.enable("")
    told = lines(capfd)
    assert len(told) == 3, told
    assert all("aten::mm of (64, 48) x (48, 32) float32 with relu" in t for t in told)
    for text, how in zip(told, ("timed", "known", "remembered")):
        assert f", {how}: library " in text and f", {plain} " in text and "us -> " in text


def test_the_fastest_is_chosen(plain, private_cache, monkeypatch):
    """What is not at least a little faster than the library is not used."""
    found = PROGRAMS["odd_sizes"]
    graph = run_passes(captured(found, found()), (*STANDARD, *SCHEDULED))
    for ours, used in ((1e-6, True), (2e-6, False), (1.99e-6, False), (5e-6, False)):
        turns = iter([0.0] + [2e-6, ours] * timing.ROUNDS)
        monkeypatch.setattr(devices.of_type("cpu").__class__, "seconds", lambda self, run, device, t=turns: next(t))
        timing._known.clear()
        with jit.config.patch(templates=True, cache_dir=os.path.join(jit.config.cache_dir, str(ours))):
            assert (len(products(compile_graph(graph).plan)) == 0) is used


def test_what_cannot_be_timed_is_the_librarys(plain, private_cache, monkeypatch):
    monkeypatch.setattr(devices.of_type("cpu").__class__, "seconds", lambda self, run, device: None)
    found = PROGRAMS["odd_sizes"]
    with jit.config.patch(templates=True):
        graph = run_passes(captured(found, found()), (*STANDARD, *SCHEDULED))
        assert len(products(compile_graph(graph).plan)) == 1
    assert not timing._known


def test_numbers_and_sizes_that_change(plain, private_cache):
    """What is timed has present sizes, and numbers of some kind."""
    x, w = torch.randn(8, 16), torch.randn(16, 32)

    def program(x, w, s):
        return (x @ w) * s

    ours = jit.compile(program, fullgraph=True, options={"templates": True})
    for n, s in ((8, 1.5), (8, 2.5), (9, 0.5), (12, 0.1)):
        x = torch.randn(n, 16)
        torch.testing.assert_close(ours(x, w, s), program(x, w, s))
    assert len(timing._known) >= 3


@pytest.mark.parametrize("stage", ["value", "build", "run"])
def test_candidates_that_fail_are_left_out(private_cache, monkeypatch, stage):
    """One that cannot be stated, built or run, beside one that can."""
    class Plain(Layout):
        def emit(self, kernel, aligned, interpret):
            return KernelText(dataclasses.replace(kernel, layout=None), "KERNEL", 1).text()

    broken_layout = Plain()

    class Broken(Product):
        name = "broken"

        def value(self, e, node, index):
            if stage == "value":
                raise Unsupported("this product", kind="kernel")
            return super().value(e, node, index)

        def lay_out(self, kernel, configuration):
            return dataclasses.replace(kernel, layout=broken_layout)

    def broken(planner, compile=Planner.begin_kernels, finish=Planner.finish):
        if any(k.layout is broken_layout for k in planner.launches):
            if stage == "build":
                raise CompileError("no such tool")
            raise RuntimeError("no such instruction")
        return compile(planner)

    monkeypatch.setattr(Planner, "begin_kernels", broken)
    TEMPLATES["broken"] = Broken()
    template_programs.plain()
    try:
        found = PROGRAMS["odd_sizes"]
        tensors = found()
        with jit.config.patch(templates=True):
            plan = compile_graph(run_passes(captured(found, tensors), (*STANDARD, *SCHEDULED)))
        agrees(found, tensors, lambda given: plan.call(*given))
        (seconds,) = timing._known.values()
        assert seconds.keys() == {"library", "plain"}
    finally:
        template_programs.forget("broken")
        template_programs.forget("plain")


def test_max_autotune_sets_the_option():
    assert arguments.all_options("max-autotune-no-cudagraphs", None) == {"templates": True,
                                                                               "auto_cudagraphs": False}
    assert arguments.all_options("max-autotune", None) == {"templates": True, "cudagraphs": True}
    assert arguments.all_options("max-autotune", {"templates": False, "strict": True}) == {
        "templates": False, "cudagraphs": True, "strict": True}
    assert arguments.all_options(None, None) == arguments.all_options("default", {}) == {}


# Triton

BLOCKS = [Blocks(16, 16, 16, 4, 1), Blocks(16, 32, 16, 4, 2), Blocks(32, 16, 32, 8, 3)]


def with_blocks(blocks):
    def choose(call):
        mine = [c for c in call.candidates if c.template.name == "triton product"]
        assert mine, call.kernel.text()
        return Candidate(mine[0].template, blocks)

    return choose


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1: a line for each program."""
    from jit.codegen.triton import emit, worker

    def run(kernel, buffers, sizes):
        source = emit.emit(kernel, interpret=True)
        assert (kernel.layout is None) == ("tl.dot" not in source.text)
        programs = dims.evaluate(source.grid, sizes)
        if programs:
            fn, _ = worker.load_function(source.text, source.function)
            fn[(programs,)](*[buffers[b.name] for b in kernel.buffers], *[sizes[n] for n in kernel.sizes])

    for turn, (name, found) in enumerate(PROGRAMS.items()):
        for dtype in (torch.float32, torch.float16):
            try:
                tensors = found(dtype)
                graph = moved(captured(found, tensors), torch.device("cuda", 0))
                ours, asked = compiled(graph, with_blocks(BLOCKS[turn % len(BLOCKS)]), target="reference")
                assert len(asked) == found.taken_in_triton(dtype), len(asked)
                agrees(found, tensors, lambda given, o=ours: reference.run_plan(o, *given, run_kernel=run))
                print(f"ok {name}.{dtype}")
            except Exception as error:
                print(f"FAILED {name}.{dtype}: {type(error).__name__}: {' | '.join(str(error).splitlines()[:20])}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_triton_interpreted(name, dtype):
    pytest.importorskip("triton")
    assert interpreter.outcomes(__name__)[f"{name}.{dtype}"] == f"ok {name}.{dtype}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plans_for_sm_90(private_cache, dtype):
    """Whole plans are made without a GPU, in the configurations of the least cost."""
    pytest.importorskip("triton")
    for name, found in PROGRAMS.items():
        graph = moved(captured(found, found(dtype)), torch.device("cuda", 0))
        ours, asked = compiled(graph, lambda call: min(call.candidates, key=lambda c: c.cost))
        written = [text for _, text in ours.kernels if "tl.dot" in text]
        assert len(asked) == len(written) == found.taken_in_triton(dtype), name


def calls_on_cuda(found, tensors):
    """The calls that may be taken over in a program that is told to be on a GPU."""
    graph = moved(captured(found, tensors), torch.device("cuda", 0))
    return compiled(graph, lambda call: None, target="reference")[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_texts_compile_for_sm_90(private_cache, dtype):
    pytest.importorskip("triton")
    from jit.codegen.triton import compile as triton_compile
    from jit.codegen.triton import emit

    sources = {}
    for name in ("bias_gelu_residual", "sliced", "heads", "symbolic", "gathered"):
        if not PROGRAMS[name].taken_in_triton(dtype):
            continue
        (call,) = calls_on_cuda(PROGRAMS[name], PROGRAMS[name](dtype))
        for k, blocks in enumerate((Blocks(64, 32, 32, 4, 3), Blocks(16, 64, 64, 4, 2))):
            kernel = Candidate(call.candidates[0].template, blocks).lay_out(call.kernel)
            sources[f"{name} {k}"] = emit.emit(kernel)
    built = triton_compile.build_sources(sources, 90, keep_ptx=True)
    assert all(b.cubin[:4] == b"\x7fELF" and b.function.startswith("jit_product") for b in built.values())


def test_matrix_units_are_used(private_cache):
    pytest.importorskip("triton")
    from jit.codegen.triton import emit, worker

    (call,) = calls_on_cuda(PROGRAMS["odd_sizes"], [torch.empty(256, 256, dtype=torch.bfloat16)] * 2)
    s = emit.emit(Candidate(call.candidates[0].template, Blocks(64, 64, 32, 4, 3)).lay_out(call.kernel))
    built = worker.build(dict(text=s.text, function=s.function, arguments=s.arguments, divisible=s.divisible,
                              capability=90, warps=s.warps, stages=s.stages, keep_ptx=True))
    assert "wgmma" in built["ptx"] and "cp.async" in built["ptx"]


def test_configurations_follow_the_architecture():
    big = lambda t: (t(4096, 1024), t(1024, 4096))  # noqa: E731
    small = lambda t: (t(16, 1024), t(1024, 4096))  # noqa: E731
    h200 = devices.cuda.H200

    def best(tensors, architecture=h200):
        meta = lambda *shape: torch.empty(shape, dtype=torch.bfloat16)  # noqa: E731
        found = template_programs.Program(PROGRAMS["odd_sizes"].fn, tensors, 1)
        (call,) = calls_on_cuda(found, tensors(meta))
        t = call.candidates[0].template
        problem = t.problem(call.kernel)
        return sorted(t.configurations(problem, architecture), key=lambda c: t.cost(problem, c, architecture))

    assert best(big)[0].rows >= 128 and best(small)[0].rows == 16
    less = dataclasses.replace(h200, local=64 << 10, registers=64 << 10)
    for c in best(big, less):
        assert c.stages * (c.rows + c.columns) * c.depth * 2 <= less.local and 8 * c.rows * c.columns <= less.registers
    assert best(big, dataclasses.replace(h200, products=0.0, bandwidth=0.0))
