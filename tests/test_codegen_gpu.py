"""Whole plans on a CUDA device: schedules, Triton kernels and library calls together, against eager."""

import pytest
import torch
from codegen_graphs import check, trace
from test_codegen_schedule import convolution, batch_norm, gelu, layer_norm, linear, random_case, softmax

from jit.codegen import compile_graph
from jit.graph.ir import Output

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def cuda(*shapes, dtype=torch.float32):
    return [torch.randn(s, device="cuda", dtype=dtype) for s in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_block(dtype):
    def block(b, x, w1, b1, wu, bu, wd, bd):
        h = layer_norm(b, x, w1, b1)
        h = b.cast(gelu(b, b.opmath(linear(b, h, wu, bu))), x.type.dtype)
        x = b.add(x, linear(b, h, wd, bd))
        return layer_norm(b, x, w1, b1), x, softmax(b, x)

    shapes = [(4, 32, 64), (64,), (64,), (128, 64), (128,), (64, 128), (64,)]
    check(block, *[t * 0.3 for t in cuda(*shapes, dtype=dtype)], native=True)


def test_cross_entropy_rows_and_bad_index():
    def fn(b, x, target):
        m = b.amax(x, [1], True)
        lse = b.add(b.log(b.sum(b.exp(b.sub(x, m)), [1], True)), m)
        picked = b.gather(x, 1, b.reshape(target, (target.type.shape[0], 1)))
        return b.div(b.sum(b.sub(lse, picked)), float(x.type.shape[0]))

    check(fn, *cuda((256, 1000)), torch.randint(0, 1000, (256,), device="cuda"), native=True)


def test_mutation_and_unaligned_input():
    c = check(lambda b, x, y: [Output(b.add(x, y), 0), Output(b.mul(y, 2.0))], *cuda((64, 64), (64, 64)), native=True)
    assert c.plan.mutates == (0,)
    x = torch.randn(1025, device="cuda")[1:]
    graph = trace(lambda b, x: b.exp(x), [x])
    from jit.codegen import Options

    compiled = compile_graph(graph, Options(unaligned=frozenset([0])))
    torch.testing.assert_close(compiled.call(x)[0], x.exp())


def test_inputs_at_odd_addresses():
    from jit.graph.ir import Output

    base, other = torch.randn(4097, device="cuda"), torch.randn(4096, device="cuda")
    x = base[1:]
    compiled = compile_graph(trace(lambda b, x, y: [Output(b.add(x, y), 0), Output(b.exp(y)),
                                                    Output(b.slice(x, 0, 2, 5))], [x, other]))
    want = x + other
    out, view = compiled.call(x, other)
    torch.testing.assert_close(x, want)
    torch.testing.assert_close(out, other.exp())
    assert view.data_ptr() == x[2:].data_ptr()
    y = torch.randn(4097, device="cuda")[1:]
    want = other + y
    out, _ = compiled.call(other, y)
    torch.testing.assert_close(other, want)
    torch.testing.assert_close(out, y.exp())


def test_cpu_scalar_operand():
    check(lambda b, x, y: b.mul(x, y), *cuda((64,)), torch.tensor(2.5), native=True)


def test_convolutions_run_channels_last():
    def block(b, x, w1, w2, mean, var, w):
        for _ in range(2):
            y = b.relu(batch_norm(b, convolution(b, x, w1, 1), mean, var, w))
            x = b.relu(b.add(batch_norm(b, convolution(b, y, w2, 0), mean, var, w), x))
        return x

    shapes = [(2, 16, 12, 12), (16, 16, 3, 3), (16, 16, 1, 1), (16,), (16,), (16,)]
    tensors = cuda(*shapes, dtype=torch.float16)
    tensors[1], tensors[2], tensors[4] = tensors[1] * 0.1, tensors[2] * 0.3, tensors[4].abs() + 0.5
    tensors = [t.float() for t in tensors]
    torch.backends.cudnn.allow_tf32 = False
    check(block, *tensors, native=True)


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed):
    fn, tensors, dynamic = random_case(seed * 7919)
    check(fn, *[t.cuda() for t in tensors], dynamic=dynamic, native=True)
