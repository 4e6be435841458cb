"""Kernels with several results for each point, side by side or of several images: their values by Triton's interpreter,
and the accesses of what is built for sm_90."""

import re

import interpreter
import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import moved
from graph_harness import ElsewhereTracer, trace
from gpu_texts import compiled_for_gpu
from gpu_training import GPU, Step

from jit import devices
from jit.codegen import Options, compile_graph, reference
from jit.codegen.triton import emit, neighbours, tiling
from jit.graph import dims
from jit.graph.passes import SCHEDULED, STANDARD, run_passes
from jit.graph.shape_env import ShapeEnv
from jit.graph.windows import Resized


# Name -> (program, whether its results lie side by side for images of 16 x 32).
PROGRAMS = {
    "average": (lambda x: F.avg_pool2d(x, 3, 1, 1), True),
    "average of pairs": (lambda x: F.avg_pool2d(F.relu(x), 2), True),
    "largest": (lambda x: F.max_pool2d(x, 3, 2, 1), True),
    "with holes": (lambda x: F.max_pool2d(x, 3, 1, 1, 2), True),
    "positions": (lambda x: F.max_pool2d(x, 2, 2, return_indices=True), True),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), True),
    "bilinear by three": (lambda x: F.interpolate(x, scale_factor=3, mode="bilinear"), False),
    "to a half": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), True),
    "corners": (lambda x: F.interpolate(x, (37, 20), mode="bilinear", align_corners=True), False),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), True),
    "samples": (lambda x: F.grid_sample(x, x[:, :2].tanh().permute(0, 2, 3, 1), align_corners=False), False),
    "two together": (lambda x: F.avg_pool2d(x, 3, 1, 1) * F.max_pool2d(x, 3, 1, 1), True),
}
GRADIENTS = {
    "average": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "largest": lambda x: F.max_pool2d(x, 3, 2, 1),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
}
SHAPES = [(2, 4, 6, 16), (1, 3, 7, 5)]


def image(shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def compiled(fn, x):
    graph = moved(trace(fn, x, tracer=ElsewhereTracer(ShapeEnv(), GPU))[0], GPU)
    return compile_graph(run_passes(graph, (*STANDARD, *SCHEDULED)), Options(target="reference"))


def run(kernel, buffers, sizes):
    from jit.codegen.triton import worker

    source = emit.emit(kernel, interpret=True)
    fn, _ = worker.load_function(source.text, source.function)
    fn[(dims.evaluate(source.grid, sizes),)](*[buffers[b.name] for b in kernel.buffers])


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1: a line for each case."""
    neighbours.FEWEST_POINTS = 1
    for name, (fn, _) in PROGRAMS.items():
        for shape in SHAPES:
            x = image(shape)
            want = fn(x)
            got = reference.run_plan(compiled(fn, x), x, run_kernel=run)
            for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        print("ok", name)
    for name, fn in GRADIENTS.items():
        for shape in SHAPES:
            Step(fn, image(shape)).check(1e-4, 1e-4, run)
        print("ok gradient of", name)


def test_values():
    assert len(interpreter.output(__name__).splitlines()) == len(PROGRAMS) + len(GRADIENTS)


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(neighbours, "FEWEST_POINTS", 1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_which_have_several_results(any_size, name):
    fn, side_by_side = PROGRAMS[name]
    tilings = [tiling.tile(k) for k in compiled(fn, image((2, 8, 16, 32), torch.bfloat16)).loops.values()]
    found = [t for t in tilings if t.kind == "vectors"]
    assert found
    written = [a for t in found for a in neighbours.accesses(t.kernel) if any(s.stored for s in a.members.values())]
    assert any(a.length > 1 for a in written) == side_by_side


def test_not_where_reads_are_vectors_or_points_are_few(any_size, monkeypatch):
    x = image((2, 8, 16, 32)).contiguous(memory_format=torch.channels_last)
    for fn in (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")):
        assert all(tiling.tile(k).kind != "vectors" for k in compiled(fn, x).loops.values())
    monkeypatch.setattr(neighbours, "FEWEST_POINTS", 1 << 16)
    small = compiled(lambda x: F.avg_pool2d(x, 3, 1, 1), image((1, 2, 16, 32)))
    assert all(len(list(neighbours.accesses(tiling.tile(k).kernel))) >= 9 for k in small.loops.values())


def test_distances_that_repeat():
    assert [Resized(28, 28 * k, how, False, scale).period for k, how, scale in (
        (2, "linear", 2.0), (2, "cubic", None), (4, "linear", 4.0))] == [2, 2, 4]
    assert Resized(28, 84, "linear", False, 3.0).period is None and Resized(28, 47, "cubic", False, None).period is None


def test_positions_are_found_in_the_forward():
    step = Step(lambda x: F.max_pool2d(x, 3, 2, 1), image((2, 4, 16, 32)))
    kinds = [[n.attrs["how"] for n in half.nodes if n.op == "window"]
             for half in (step.halves.forward, step.halves.backward)]
    assert kinds == [["max", "position"], ["picked"]]
    assert [n.type.dtype for n in step.halves.backward.inputs] == [torch.int16, torch.float32]


@pytest.mark.parametrize("aligned", [True, False])
def test_built_for_sm_90(any_size, aligned):
    """A thread reads and writes 16 bytes at a time, and exchanges nothing with others."""
    pytest.importorskip("triton")
    from jit.codegen.triton import worker

    (kernel,) = compiled(lambda x: F.avg_pool2d(x, 3, 1, 1), image((2, 8, 16, 32), torch.bfloat16)).loops.values()
    source = emit.emit(kernel, aligned=None if aligned else ())
    ptx = worker.build(dict(text=source.text, function=source.function, arguments=source.arguments, capability=90,
                            divisible=source.divisible, warps=source.warps, stages=source.stages, keep_ptx=True))["ptx"]
    assert bool(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) == aligned
    assert bool(re.findall(r"st\.global\S*\.v4\.b32", ptx)) == aligned
    assert not re.findall(r"(ld|st)\.shared", ptx)


def test_additions_at_places_that_data_decide_stay_additions(monkeypatch):
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(type(devices.of_type(device)), "atomics", True)
    for rows, columns in ((12, 8), (300, 16), (9, 7)):
        x, s = torch.randn(40, columns), torch.randn(rows, columns)
        made = compiled_for_gpu(lambda x, i, s: x.index_add(0, i, s), x, torch.randint(0, 40, (rows,)), s)
        texts = [text for c in made for _, text in c.kernels if "atomic_add" in text]
        assert len(texts) == 1 and "tl.store" not in texts[0]


def test_small_indices_are_added_one_by_one(monkeypatch):
    """Not two at a time, of which ptxas mistakes one for the other; ``test_gpu_windows`` has the values."""
    pytest.importorskip("triton")
    from jit.codegen.triton import heuristics, worker

    (kernel,) = compiled(lambda x: F.adaptive_avg_pool2d(x, 20), image((7, 64, 56, 56))).loops.values()
    tiled = tiling.tile(kernel)
    config = heuristics.Config(x=32, y=2, warps=1, singly=True)
    source = emit.emit_tiled(tiled, config, None, False)
    job = dict(text=source.text, function=source.function, arguments=source.arguments, capability=90,
               divisible=source.divisible, warps=source.warps, stages=source.stages, keep_ptx=True)
    assert "s16x2" not in worker.build(job)["ptx"]
    monkeypatch.setattr(worker, "added_singly", lambda ptx: ptx)
    assert "add.s16x2" in worker.build(job)["ptx"]  # else this shows nothing


def test_rows_in_the_order_of_memory():
    """The channels of a group, in images of which channels come last, are read side by side, for several groups."""
    x = torch.randn(2, 32, 16, 16, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    (found,) = compiled_for_gpu(lambda x: F.group_norm(x, 8), x)
    tiled = next(t for t in map(tiling.tile, found.loops.values()) if t.kind == "inner")
    (load,) = [s for s in tiled.kernel.body if s.loaded and "@r" in s.symbols]
    assert [dims.evaluate(load.index, {"@x": 0, "@r": r}) for r in range(6)] == [0, 1, 2, 3, 32, 33]
    assert tiling.side_by_side(tiled, 64) == 8 and tiling.side_by_side(tiled, 32) == 4
    assert tiling.side_by_side(tiled, 8) == 1
