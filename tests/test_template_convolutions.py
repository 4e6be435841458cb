"""Templates for convolutions: computed with what follows them, by C++, by the loops' interpreter and by Triton's, and
compiled for sm_90."""

import convolution_programs
import interpreter
import pytest
import template_programs
import torch
import torch.nn.functional as F
from codegen_graphs import moved
from convolution_programs import PROGRAMS, last
from test_templates import agrees, captured, compiled, first, products

from jit.codegen import Options, compile_graph, loops, reference, template
from jit.codegen.template import Candidate
from jit.codegen.templates.triton_product import Blocks
from jit.graph import dims
from jit.graph.passes import SCHEDULED, STANDARD, run_passes
from jit.graph.passes.convolutions import separate_bias

BLOCKS = [Blocks(16, 16, 16, 4, 1), Blocks(32, 16, 16, 4, 2), Blocks(16, 32, 32, 8, 3)]
TURNS = ((False, 0), (False, 1), (True, 2))  # with operands as they are given, and laid out for kernels


@pytest.fixture
def plain():
    names = convolution_programs.plain()
    yield names
    for name in names:
        template_programs.forget(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(plain, name):
    found = PROGRAMS[name]
    tensors = found()
    library, _ = compiled(captured(found, tensors), lambda call: None, channels_last=False)
    ours, asked = compiled(captured(found, tensors), first, channels_last=False)
    assert len(asked) == found.taken
    assert len(products(ours.plan)) == len(products(library.plan)) - found.taken
    agrees(found, tensors, lambda given: ours.call(*given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_loops(plain, name):
    found = PROGRAMS[name]
    tensors = found()
    ours, _ = compiled(captured(found, tensors), first, target="reference", channels_last=False)
    for kernel in ours.loops.values():
        loops.verify(kernel)
    agrees(found, tensors, lambda given: reference.run_plan(ours, *given))


def with_blocks(turn):
    def choose(call):
        mine = [c for c in call.candidates if c.template.name.startswith("triton")]
        assert mine, call.kernel.text()
        if mine[0].template.name == "triton depthwise":
            return mine[turn * 5 % len(mine)]
        return Candidate(mine[0].template, BLOCKS[turn])

    return choose


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1: a line for each program."""
    from jit.codegen.triton import emit, worker

    def run(kernel, buffers, sizes):
        source = emit.emit(kernel, interpret=True)
        assert not kernel.raxes or kernel.layout is None or "tl.dot" in source.text
        programs = dims.evaluate(source.grid, sizes)
        if programs:
            fn, _ = worker.load_function(source.text, source.function)
            fn[(programs,)](*[buffers[b.name] for b in kernel.buffers], *[sizes[n] for n in kernel.sizes])

    for name, found in PROGRAMS.items():
        for channels_last, turn in TURNS:
            try:
                tensors = found(torch.float16)
                graph = moved(captured(found, tensors), torch.device("cuda", 0))
                ours, asked = compiled(graph, with_blocks(turn), target="reference", channels_last=channels_last)
                assert len(asked) == found.taken, len(asked)
                agrees(found, tensors, lambda given, o=ours: reference.run_plan(o, *given, run_kernel=run))
                print(f"ok {name}.{channels_last}.{turn}")
            except Exception as error:
                print(f"FAILED {name}.{channels_last}.{turn}: {type(error).__name__}: "
                      f"{' | '.join(str(error).splitlines()[:20])}")


@pytest.mark.parametrize("channels_last, turn", TURNS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_triton_interpreted(name, channels_last, turn):
    pytest.importorskip("triton")
    key = f"{name}.{channels_last}.{turn}"
    assert interpreter.outcomes(__name__)[key] == f"ok {key}"


def calls_on_cuda(found, tensors):
    graph = moved(captured(found, tensors), torch.device("cuda", 0))
    return compiled(graph, lambda call: None, target="reference", channels_last=False)[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_texts_compile_for_sm_90(dtype):
    pytest.importorskip("triton")
    from jit.codegen.triton import compile as triton_compile
    from jit.codegen.triton import emit

    sources = {}
    for name in ("normed", "pixelwise", "few_channels", "odd_channels", "patches", "many_channels"):
        call = calls_on_cuda(PROGRAMS[name], PROGRAMS[name](dtype))[0]
        for k, blocks in enumerate((Blocks(64, 32, 16, 4, 3), Blocks(128, 64, 64, 8, 2))):
            kernel = Candidate(call.candidates[0].template, blocks).lay_out(call.kernel)
            sources[f"{name} {k}"] = emit.emit(kernel)
            assert ("under >> tap" in sources[f"{name} {k}"].text) == (name == "many_channels")
    built = triton_compile.build_sources(sources, 90, keep_ptx=True)
    assert all(b.cubin[:4] == b"\x7fELF" for b in built.values())


def settled(fn, *args):
    """The candidates that are used for the calls of a program on a GPU where nothing is timed."""
    graph = moved(captured(template_programs.Program(fn, None, 0), args), torch.device("cuda", 0))
    chosen = {}

    def choose(call):
        found = template.settled(call)
        if found is not None:
            chosen[call.node.attrs["target"]] = found
        return found

    compile_graph(run_passes(graph, (separate_bias, *STANDARD, *SCHEDULED)), Options(target="reference", choose=choose))
    return chosen


def test_what_is_used_without_timing():
    def half(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype)

    def few(x, w):
        return F.conv2d(x, w, None, 2, 3)

    assert list(settled(few, half(8, 3, 64, 64), half(32, 3, 7, 7))) == ["aten::conv2d"]
    assert not settled(few, half(8, 3, 64, 64, dtype=torch.float32), half(32, 3, 7, 7, dtype=torch.float32))

    def patches(x, w, b):
        return F.conv2d(x, w, b, 16).flatten(2).transpose(1, 2)

    assert settled(patches, half(64, 3, 224, 224), half(768, 3, 16, 16), half(768))

    def narrow(x, w, r):
        return F.relu(F.conv2d(x, w) + r)

    found = settled(narrow, last(half(64, 64, 56, 56)), half(256, 64, 1, 1), last(half(64, 256, 56, 56)))
    assert [c.template.name for c in found.values()] == ["triton product"]
    # Much arithmetic, few rows, an operand that is not read along its rows, and nothing that follows.
    assert not settled(narrow, last(half(64, 1024, 14, 14)), half(2048, 1024, 1, 1), last(half(64, 2048, 14, 14)))
    assert not settled(narrow, last(half(1, 64, 8, 8)), half(256, 64, 1, 1), last(half(1, 256, 8, 8)))
    assert not settled(lambda x, w: F.relu(x.t() @ w), half(64, 8191), half(64, 64))
    assert not settled(lambda x, w: x @ w, half(65536, 64), half(64, 64))
    assert settled(lambda x, w: F.relu(x @ w), half(65536, 64), half(64, 64))

    def square(x, w, b):
        return F.silu(F.conv2d(x, w, None, 1, 1) * b[:, None, None])

    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        given = last(half(64, channels, size, size)), half(channels, channels, 3, 3), half(channels)
        assert settled(square, *given)["aten::conv2d"].configuration.depth == 64
        assert not settled(lambda x, w, b: F.conv2d(x, w, None, 1, 1), *given)
    # Much arithmetic, other numbers of channels, larger kernels.
    for size, channels, kernel in ((28, 512, 3), (14, 96, 3), (28, 128, 5)):
        assert not settled(square, last(half(64, channels, size, size)), half(channels, channels, kernel, kernel),
                           half(channels))

    def depthwise(x, w):
        return F.conv2d(x, w, None, 1, 3, 1, x.shape[1])

    assert list(settled(depthwise, last(half(64, 96, 56, 56)), half(96, 1, 7, 7))) == ["aten::conv2d"]
    assert not settled(depthwise, half(64, 96, 56, 56), half(96, 1, 7, 7))
