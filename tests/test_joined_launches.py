"""Runs of one kernel that are one launch: which wait for each other, what they need in memory, and the kernel that
finds out of which run each of its programs is. On the CPU the runs of such a step are done one after the other, the
last one first."""

import dataclasses
import random

import interpreter
import pytest
import torch
import triton_kernels as zoo
from codegen_graphs import check, moved, trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jit
from jit.codegen import compile_graph, joining, loops, sizes
from jit.codegen.planned import RunTogether
from jit.codegen.triton import emit as triton_emit
from jit.codegen.triton import worker
from jit.codegen.triton.compile import build_sources
from jit.devices.cpu import Cpu
from jit.graph import dims
from jit.graph.ir import Output, TensorType
from jit.runtime import load_plan
from jit.runtime.plan import GpuKernel, Plan
from jit.runtime.steps import LaunchTogether


@pytest.fixture
def joined(monkeypatch):
    """Kernels of the CPU wait for each other too; gives the lists of runs that became one step."""
    found, real = [], joining._Joining.walk

    def walk(self):
        steps = real(self)
        for s in steps:
            if isinstance(s, RunTogether):
                found.append(s.runs)
                for run, kernel, values in zip(s.runs, s.kernels, s.values):
                    own = joining._from_its_first(self.p.launches[run.number])[0]
                    assert restored(kernel, values).text("k") == own.text("k")
        return steps

    monkeypatch.setattr(Cpu, "joins_launches", True)
    monkeypatch.setattr(joining._Joining, "walk", walk)
    jit.reset()
    yield found
    jit.reset()


def restored(kernel, values):
    """A kernel with its sizes again in the place of symbols."""
    def of(axes):
        return tuple(dataclasses.replace(a, extent=dims.subst(a.extent, values)) for a in axes)

    return dataclasses.replace(kernel, axes=of(kernel.axes), raxes=of(kernel.raxes),
                               body=loops.substituted(kernel.body, values),
                               sizes=tuple(n for n in kernel.sizes if n not in values))


def softmax(b, x):
    e = b.exp(b.sub(x, b.amax(x, [-1], True)))
    return b.div(e, b.sum(e, [-1], True))


def mm(b, x, y):
    return b.aten("aten::mm", "", (x, y), TensorType.contiguous((x.type.shape[0], y.type.shape[1]), x.type.dtype,
                                                                x.type.device))


def test_kernels_of_one_text_are_one_step(joined):
    check(lambda b, *xs: [softmax(b, x) for x in xs], *[torch.randn(4, 8) for _ in range(5)])
    assert [len(runs) for runs in joined] == [5]


def test_a_chain_of_one_kernel_is_not_one_step(joined):
    check(lambda b, x: softmax(b, softmax(b, softmax(b, x))), torch.randn(4, 8))
    assert joined == []


def test_what_is_needed_comes_first(joined):
    """The second product needs two of the four softmaxes."""
    def fn(b, x, y):
        first, other = softmax(b, x), softmax(b, y)
        again = softmax(b, mm(b, first, other))
        return again, softmax(b, mm(b, again, first)), softmax(b, mm(b, other, again))

    check(fn, torch.randn(6, 6), torch.randn(6, 6))
    assert [len(runs) for runs in joined] == [2, 2]


def test_parts_of_one_tensor(joined):
    """Each run writes at a place of its own."""
    c = check(lambda b, *xs: b.cat([b.sum(b.mul(x, x), [0], True) for x in xs], 0),
              *[torch.randn(9) for _ in range(6)])
    assert [len(runs) for runs in joined] == [6] and c.plan.outputs


def test_inputs_that_are_written(joined):
    """A new value waits for whoever still reads the old one."""
    def fn(b, x, y, z):
        new = [softmax(b, y), softmax(b, z), softmax(b, x)]
        return [Output(n, i) for i, n in enumerate(new)] + [Output(mm(b, x, y))]

    check(fn, *[torch.randn(5, 5) for _ in range(3)])


def test_what_waits_is_bounded(joined, monkeypatch):
    def fn(b, *xs):
        return [b.sum(mm(b, x, x), [0]) for x in xs]

    xs = [torch.randn(8, 8) for _ in range(6)]
    check(fn, *xs)
    assert [len(runs) for runs in joined] == [6]
    joined.clear()
    monkeypatch.setattr(joining, "MOST_HELD", 3 * 8 * 8 * 4)
    check(fn, *xs)
    assert joined and max(len(runs) for runs in joined) <= 5
    joined.clear()
    monkeypatch.setattr(joining, "MOST_HELD", 0)
    check(fn, *xs)
    assert max((len(runs) for runs in joined), default=0) <= 2


def test_sizes_that_are_symbols(joined):
    xs = [torch.randn(4, 8) for _ in range(3)] + [torch.randn(6, 8) for _ in range(2)]
    check(lambda b, *xs: [softmax(b, x) for x in xs], *xs, dynamic={(i, 0) for i in range(5)})
    assert sum(len(runs) for runs in joined) >= 2


def test_sizes_that_differ(joined):
    """Kernels for other sizes are one with those of the same structure."""
    shapes = [(4, 8), (5, 8), (3, 7), (30,), (2, 3, 4), (64,), (16, 16)]
    check(lambda b, *xs: [b.mul(x, 0.5) for x in xs], *map(torch.randn, shapes))
    assert sorted(len(runs) for runs in joined) == [3, 4]  # multiples of 16, and others
    joined.clear()
    check(lambda b, *xs: [b.sum(b.mul(x, x), list(range(len(x.type.shape)))) for x in xs], *map(torch.randn, shapes))
    assert sum(len(runs) for runs in joined) == 7 and len(joined) == 2


def general_case(name, dtype, scale=1):
    """A kernel of the zoo for any sizes, and whether it is another."""
    case = zoo.CASES[name](dtype, scale)
    kernel, values = sizes.general(case.kernel)
    assert restored(kernel, values).text("k") == case.kernel.text("k")
    return dataclasses.replace(case, kernel=loops.verify(kernel), sizes={**case.sizes, **values}), bool(values)


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1: prints a line per failure."""
    count = 0
    for name in sorted(zoo.CASES):
        case, other = general_case(name, torch.float32)
        if not other:
            continue
        count += 1
        want, buffers = case.expected(case.buffers()), case.buffers()
        source = triton_emit.emit(case.kernel, interpret=True)
        fn, _ = worker.load_function(source.text, source.function)
        try:
            fn[(case.grid(source),)](*[buffers[b.name] for b in case.kernel.buffers],
                                     *[case.sizes[n] for n in case.kernel.sizes])
            zoo.compare(case, buffers, want)
        except Exception as error:
            print(f"FAILED {name}: {type(error).__name__}: {error}\n{source.text}")
    print(f"interpreted {count}")


def test_kernels_for_other_sizes_do_the_same():
    printed = interpreter.output(__name__)
    assert "FAILED" not in printed, printed[:6000]
    assert int(printed.split("interpreted ")[1]) > 8


def test_kernels_for_other_sizes_compile():
    kernels = {}
    for name in zoo.CASES:
        case, other = general_case(name, torch.bfloat16, 8)
        if other:
            kernels[name] = triton_emit.emit(case.kernel)
    made = build_sources(kernels, 90, joined=dict.fromkeys(kernels, 4))
    assert all(c.joined == 4 and c.cubin.startswith(b"\x7fELF") for c in made.values())


def random_program(rng, b, xs):
    values, n = list(xs), len(xs)
    for _ in range(rng.randrange(6, 24)):
        x, y = rng.choice(values[-8:]), rng.choice(values)
        kind = rng.choice(["softmax", "softmax", "mm", "center", "scale", "cat", "stack"])
        if kind == "softmax":
            v = softmax(b, x)
        elif kind == "mm":
            v = mm(b, x, y)
        elif kind == "center":
            v = b.sub(x, b.sum(x, [0], True))
        elif kind == "scale":
            v = b.mul(x, 0.5) if rng.random() < 0.5 else b.add(x, y)
        elif kind == "cat":
            half = x.type.shape[0] // 2
            v = b.cat([softmax(b, b.slice(x, 0, 0, half)), softmax(b, b.slice(y, 0, half, half))], 0)
        else:
            s = b.cat([b.sum(b.mul(t, t), [0, 1], True) for t in (x, y, *rng.sample(values, 2))], 0)
            v = b.mul(x, b.sum(s, [0], True))
        values.append(v)
    outputs = [Output(v) for v in rng.sample(values[n:], min(4, len(values) - n))]
    return outputs + [Output(v, i) for i, v in enumerate(rng.sample(values[n:], n)) if rng.random() < 0.6]


@settings(max_examples=150, deadline=None, derandomize=True,
          suppress_health_check=[*HealthCheck])
@given(st.integers(0, 10**9), st.sampled_from([0, 512, 16 << 20]))
def test_random_graphs(joined, seed, most):
    saved, joining.MOST_HELD = joining.MOST_HELD, most
    try:
        check(lambda b, *xs: random_program(random.Random(seed), b, xs), *[torch.randn(4, 4) * 0.3 for _ in range(3)])
    finally:
        joining.MOST_HELD = saved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimizers(joined, dtype):
    """Parameters of few shapes, some of them twice in a list, empty ones, and views."""
    def parameters():
        torch.manual_seed(3)
        base = torch.randn(6, 16).to(dtype)
        shapes = [(8, 16)] * 4 + [(16,)] * 5 + [(0, 16)] + [(1,)] * 3 + [(40, 8)] * 2
        found = [torch.randn(s).to(dtype) for s in shapes] + [base[:3], base[3:], torch.randn(16, 8).to(dtype).t()]
        found = [torch.nn.Parameter(p) for p in found]
        for p in found:
            p.grad = torch.randn(p.shape).to(dtype)
        return found

    def run(ps, compiled):
        opt = torch.optim.AdamW(ps, lr=0.01, foreach=True)

        def step():
            norm = torch.nn.utils.clip_grad_norm_(ps, 1.0)
            opt.step()
            for p in ps:
                p.grad.mul_(0.5)
            return norm

        step = jit.compile(step) if compiled else step
        return [step() for _ in range(4)], [p.detach() for p in ps], [p.grad for p in ps]

    for got, want in zip(run(parameters(), True), run(parameters(), False)):
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)
    assert joined


def test_gradients_of_equal_layers(joined):
    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(*[layer for _ in range(4) for layer in (
            torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU())])

    a, b = model(), model()
    fn = jit.compile(a)
    for rows in (8, 8, 5, 3, 8):
        x = torch.randn(rows, 16)
        for net, call in ((a, fn), (b, b)):
            net.zero_grad()
            call(x).square().sum().backward()
        for p, q in zip(a.parameters(), b.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert joined


# the kernel


def on_gpu(fn, *tensors):
    return compile_graph(moved(trace(fn, tensors), torch.device("cuda", 0)))


def test_plans_for_gpus(monkeypatch):
    """A step with the pointers of all runs, of a kernel that is one parameter."""
    monkeypatch.setattr("jit.devices.cuda.Cuda.joins_launches", True)
    c = on_gpu(lambda b, *xs: [softmax(b, x) for x in xs], *[torch.randn(8, 64) for _ in range(5)])
    (step,) = [s for s in c.plan.steps if s.KERNEL]
    assert isinstance(step, LaunchTogether) and len(step.grid) == 5 and len(step.pointers) == 10
    assert step.kernel.joined == 8 and step.kernel.cubin.startswith(b"\x7fELF") and "launch 5 of" in c.plan.text()
    assert len(c.launches) == 1
    load_plan(c.plan)
    c = on_gpu(lambda b, *xs: [softmax(b, xs[0]), b.amax(xs[1], [0, 1])], *[torch.randn(8, 64) for _ in range(2)])
    assert all(s.kind != "launch_together" for s in c.plan.steps)


@pytest.mark.parametrize("arguments", [1, 2, 3, 4, 7, 24, 60, 200, 250])
def test_where_arguments_lie(arguments):
    for wanted in (2, 3, 8, 100, 5000):
        most, start, size = worker.places(arguments, wanted)
        assert 2 <= most and size == start + 8 * arguments * most <= worker.PARAMETERS
        words = start // 4
        assert words & (words - 1) == 0 and most <= words and (words == 2 or words // 2 < most)
        # No more fit with as many words or twice as many.
        assert most >= wanted or all(4 * n + 8 * arguments * min(most + 1, n) > worker.PARAMETERS
                                     for n in (words, 2 * words) if n > most)
    assert worker.places(600, 2) == (0, 0, 0)


def test_texts_that_are_not_known():
    with pytest.raises(RuntimeError, match="not in the form"):
        worker.joined("nothing", 2, 4)
    with pytest.raises(RuntimeError, match="not in the form"):
        worker.joined(PTX.replace("%ctaid.x", "%nctaid.x"), 1, 4)
    with pytest.raises(RuntimeError, match="not in the form"):
        worker.joined(PTX.replace("f_param_0]", "f_param_1]"), 1, 4)
    assert "f_param" not in worker.joined(PTX, 1, 4)


PTX = """.visible .entry f(
	.param .u64 .ptr .global .align 1 f_param_0
)
.reqntid 128
{
	.reg .b32 	%r<3>;
	.reg .b64 	%rd<2>;
	ld.param.b64 	%rd1, [f_param_0];
	mov.u32 	%r1, %ctaid.x;
	st.global.b32 [%rd1], %r1;
	ret;
}
"""


def plan(kernel, pointers=(0, 1), grid=(0, 0), ints=()):
    return Plan(2, 0, (("const", 1),), 2, (LaunchTogether(kernel, pointers, ints, grid),), ())


def test_steps_that_are_refused():
    kernel = GpuKernel("f", b"\x7fELF", 4, joined=2)
    load_plan(plan(kernel))
    for bad, why in ((plan(kernel, (0, 1, 0)), "same number"), (plan(kernel, grid=()), "same number"),
                     (plan(GpuKernel("f", b"\x7fELF", 4)), "not made for"),
                     (plan(GpuKernel("f", b"\x7fELF", 4, joined=1)), "out of range"),
                     (plan(GpuKernel("f", b"\x7fELF", 4, joined=2, ints=((0, "i32"),)), ints=(0, 0)), "in 64 bits")):
        with pytest.raises(ValueError, match=why):
            load_plan(bad)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_on_a_gpu(monkeypatch, dtype, mode):
    """More runs than one launch takes, some with nothing to do, sizes that change, and what is written in place."""
    monkeypatch.setattr("jit.devices.cuda.Cuda.joins_launches", True)
    jit.reset()

    def fn(xs, ys):
        out = [torch.softmax(x, -1) for x in xs]
        for x in xs:
            x.mul_(2)
        for y in ys:
            y.add_(1)
        return out, torch.stack([x.float().square().sum() for x in xs]), [y.sum() for y in ys]

    compiled = jit.compile(fn, mode=mode) if mode else jit.compile(fn)
    for n in (40, 40, 40, 40, 40, 0, 3, 17, 64):
        made = [[torch.randn(n, 48, device="cuda").to(dtype) for _ in range(70)]
                + [torch.randn(n + k, 16 * k + 5, device="cuda").to(dtype) for k in range(12)],
                [torch.randn(7 + k % 40, device="cuda").to(dtype) for k in range(150)]
                + [torch.randn(3000 * k + 16, device="cuda").to(dtype) for k in range(30)]]
        got, want = [[t.clone() for t in ts] for ts in made], [[t.clone() for t in ts] for ts in made]
        a, b = compiled(*got), fn(*want)
        for p, q in zip((*a[0], a[1], *a[2], *got[0], *got[1]), (*b[0], b[1], *b[2], *want[0], *want[1])):
            torch.testing.assert_close(p, q, rtol=1.6e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-4)
    jit.reset()
