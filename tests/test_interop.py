"""jit.interop: captured graphs as GraphModules of torch.fx, and backends that were written for torch.compile."""

import copy
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import jit
from jit.interop import to_graph_module, torch_backend

PROGRAMS = {}


def program(*shapes):
    def register(fn):
        PROGRAMS[fn.__name__] = fn, shapes
        return fn

    return register


@program((4, 3), (3, 5))
def products(a, b):
    return (a @ b).relu(), torch.einsum("ij,jk->ki", a, b)


@program((4, 6))
def norms(x):
    return F.layer_norm(x, (6,)), F.softmax(x, -1), F.gelu(x), x.std(0), torch.logsumexp(x, 1)


@program((4, 6))
def views_and_copies(x):
    return x[1:, ::2], x.T, x.T.contiguous(), x.view(2, 12), x.flip(0), x.expand(2, 4, 6), torch.cat([x, x[:1]])


@program((4, 6))
def indices(x):
    values, places = x.topk(2, -1)
    return values, places, x.gather(1, places), x.T[places[:, 0]], x.argsort(-1), torch.where(x > 0, x, 0)


@program((2, 3, 8, 8))
def convolutions(x):
    w = torch.ones(4, 3, 3, 3)
    return F.max_pool2d(F.conv2d(x, w, padding=1), 2), F.avg_pool2d(x, 2), x.to(memory_format=torch.channels_last) + 1


@program((4, 3))
def numbers(x):
    return x * 2 + 1, x.sum() / x.shape[0], torch.arange(4), torch.full((2,), 3.5), x.to(torch.float64), x > 0, -x % 2


@program((4, 3))
def changed_input(x):
    before = x * 2
    x.add_(1)
    x[0] = 5
    return before + x, x[1:]


@program((4, 3))
def two_changes(x):
    y = x.clone()
    x.mul_(y), y.sub_(x)
    x.T.add_(1)
    return x, y


@program((4, 3))
def attention(x):
    q = x.reshape(1, 1, 4, 3)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@program((4, 3))
def several_results(x):
    return torch.linalg.qr(x)[1].abs(), *torch.var_mean(x, 0), *x.split(2), x.max(0).values


@program((4, 3))
def complex_numbers(x):
    return torch.fft.rfft(x).abs(), torch.view_as_real(x.to(torch.complex64))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 + ctx.saved_tensors[0]


@program((4, 3))
def a_backward_of_its_own(x):
    return Twice.apply(x) + 1


def recorded(made):
    """A backend for torch.compile that runs the GraphModule and keeps it."""
    def backend(gm, example_inputs):
        made.append((gm, example_inputs))
        return gm.forward

    return backend


def close(a, b):
    torch.testing.assert_close(a, b, equal_nan=True)
    for x, y in zip(a, b):
        assert x.stride() == y.stride()


def inputs(shapes, dtype=torch.float32):
    return [torch.randn(shape).to(dtype) for shape in shapes]


def in_tuple(v):
    return v if isinstance(v, tuple) else (v,)


@pytest.mark.parametrize("layout", ["plain", "transposed", "sliced"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_module_computes_the_same(name, dynamic, layout):
    fn, shapes = PROGRAMS[name]
    made = []
    fast = jit.compile(fn, backend=torch_backend(recorded(made)), fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        given = inputs(shapes)
        if layout == "transposed":
            given = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in given]
        elif layout == "sliced":
            given = [torch.cat([t, t], 0)[: t.shape[0]] for t in given]
        if layout != "plain" and name == "views_and_copies":
            given = [t.contiguous() for t in given]  # it asks for a view
        others = [t.clone() for t in given]
        close(in_tuple(fast(*given)), in_tuple(fn(*others)))
        torch.testing.assert_close(given, others)
    gm = made[0][0]
    assert isinstance(gm, fx.GraphModule) and len(made) == 1
    assert {n.op for n in gm.graph.nodes} <= {"placeholder", "call_function", "call_method", "output"}


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("two_changes", "changed_input")])
def test_training(name):
    fn, shapes = PROGRAMS[name]
    fast = jit.compile(fn, backend=torch_backend(lambda gm, given: gm.forward))
    for _ in range(2):
        given = [t.requires_grad_() for t in inputs(shapes)]
        others = [t.detach().clone().requires_grad_() for t in given]
        grads = []
        for run, leaves in ((fast, given), (fn, others)):
            outs = [o for o in in_tuple(run(*leaves)) if o.requires_grad]
            torch.autograd.backward([o.sum() * k for k, o in enumerate(outs, 2)])
            grads.append([t.grad for t in leaves])
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("backend", [lambda graph, given: to_graph_module(graph), torch_backend(lambda gm, given: gm)])
def test_training_of_what_changes_its_inputs(backend):
    def fn(x, buffer):
        y = x * 2
        buffer.mul_(0.9).add_(y.detach().mean(0))
        return (y * buffer).sum()

    fast = jit.compile(fn, backend=backend)
    x, buffer = torch.randn(4, 3, requires_grad=True), torch.ones(3)
    x2, buffer2 = x.detach().clone().requires_grad_(), torch.ones(3)
    for _ in range(3):
        fast(x, buffer).backward(), fn(x2, buffer2).backward()
    torch.testing.assert_close([x.grad, buffer], [x2.grad, buffer2])


def test_sizes_and_numbers_that_change():
    made = []

    def fn(x, n, f):
        return x.view(-1, n) * f + torch.arange(n), x.new_zeros(n + x.shape[0])

    fast = jit.compile(fn, backend=torch_backend(recorded(made)), fullgraph=True)
    for rows, n, f in ((2, 3, 0.5), (4, 5, 1.5), (3, 4, 2.5), (6, 7, -1.0)):
        x = torch.randn(rows, n)
        close(fast(x, n, f), fn(x, n, f))
    assert len(made) <= 3
    gm, given = made[-1]
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    assert len(placeholders) == len(given) > 1 and all(isinstance(v, (int, torch.Tensor)) for v in given)
    assert len(gm(*given)) == 2


def test_a_backend_gets_the_integers_that_no_tensor_shows():
    seen = []

    def backend(graph, examples):
        run = to_graph_module(graph)
        return lambda *given: seen.append(given) or run(*given)

    fast = jit.compile(lambda x, n: x * n, backend=backend)
    for n in (2, 3, 5):
        assert torch.equal(fast(torch.ones(3), n), torch.full((3,), float(n)))
    assert [type(v) for v in seen[-1]] == [torch.Tensor, int]


def test_random_numbers_are_drawn_as_in_eager():
    def fn(x):
        return F.dropout(x, 0.5) + torch.rand(3) + torch.randn_like(x)

    with jit.config.patch(fallback_random=True):
        fast = jit.compile(fn, backend=torch_backend(lambda gm, given: gm.forward), fullgraph=True)
        torch.manual_seed(3)
        found = [fast(torch.ones(4, 3)) for _ in range(2)]
    torch.manual_seed(3)
    for result in found:
        torch.testing.assert_close(result, fn(torch.ones(4, 3)))


def test_what_nodes_say_of_themselves():
    made = []
    fast = jit.compile(lambda x: torch.softmax(x @ x.T, -1), backend=torch_backend(recorded(made)))
    x = torch.randn(4, 3)
    fast(x)
    gm, given = made[0]
    first, *rest, output = gm.graph.nodes
    assert first.meta["example_value"] is given[0] and given[0].shape == x.shape
    for node in rest:
        record = node.meta.get("tensor_meta")
        if record is not None:
            value = node.meta["val"]
            assert value.device.type == "meta" and value.shape == record.shape and value.dtype == record.dtype
            assert value.stride() == record.stride
    mm = next(n for n in rest if n.target is torch.ops.aten.mm.default)
    assert "test_interop.py" in next(n for n in rest if "stack_trace" in n.meta).meta["stack_trace"] and mm.users
    assert rest[-1].meta["tensor_meta"].shape == (4, 4)


def test_a_pass_of_fx_over_it():
    def backend(gm, example_inputs):
        for node in gm.graph.nodes:
            if node.target is torch.add:
                node.target = torch.sub
        gm.recompile()
        return copy.deepcopy(gm)

    fast = jit.compile(lambda x: x + 3, backend=torch_backend(backend))
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), -2.0))


def test_interpreted_and_traced_again():
    made = []
    fast = jit.compile(lambda x: F.relu(x) * x.sum(), backend=torch_backend(recorded(made)))
    x = torch.randn(3, 4)
    expected = fast(x)
    gm = made[0][0]
    torch.testing.assert_close(fx.Interpreter(gm).run(x)[0], expected)
    assert operator.mul not in [n.target for n in gm.graph.nodes] and "def forward" in gm.code


def test_a_backend_that_gives_nothing_callable():
    with pytest.raises(jit.errors.BackendError, match="has to return a callable"):
        jit.compile(lambda x: x + 1, backend=torch_backend(lambda gm, given: None), fullgraph=True)(torch.ones(2))


def test_it_is_loaded_when_asked_for(python):
    script = """
import sys, torch, jit
jit.compile(lambda x: x + 1)(torch.ones(2))
assert "jit.interop" not in sys.modules
assert jit.fx is jit.interop and jit.fx.to_graph_module and "jit.interop" in sys.modules
try:
    jit.no_such_name
except AttributeError as error:
    print(error)
"""
    assert python(script).stdout.strip() == "module 'jit' has no attribute 'no_such_name'"


def test_backends_of_pytorchs_compiler(python):
    script = """
import torch, jit, torch._dynamo as dynamo
from torch._dynamo.backends.common import aot_autograd

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
x = torch.randn(3, 4)
net(x).sum().backward()
expected = [p.grad.clone() for p in net.parameters()]
graphs = []
def compiler(gm, given):
    graphs.append(gm)
    return gm.forward
for backend in (dynamo.lookup_backend("eager"), dynamo.lookup_backend("aot_eager"), aot_autograd(fw_compiler=compiler)):
    fast = jit.compile(net, backend=jit.interop.torch_backend(backend), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))
    net.zero_grad()
    fast(x).sum().backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], expected)
assert len(graphs) >= 2
print("same")
"""
    assert python(script).stdout.strip() == "same"
