"""``jit.compile(passes=[...])``: graphs that the user's passes change, on the default backend, against the program that
they stand for in eager."""

import pytest
import torch
import torch.nn.functional as F

import jit
from jit import passes

VECTOR, MATRIX = torch.ones(2), torch.ones(2, 2)


def gated(x, y):
    return x * torch.sigmoid(y)


def squashed(x, y):
    return torch.tanh(x) + y


def same(fn, instead, *inputs, **options):
    """``fn`` compiled with passes does what ``instead`` does in eager: values, types, layouts, gradients, memory
    afterwards."""
    compiled = jit.compile(fn, fullgraph=True, **options)
    for dtype in (torch.float32, torch.float64):
        for grad in (False, True):
            outcomes = []
            for call in (instead, compiled):
                given = [t.detach().to(dtype).clone().requires_grad_(grad) for t in inputs]
                results = call(*given)
                results = results if isinstance(results, tuple) else (results,)
                outcomes.append((results, torch.autograd.grad([r.sum() for r in results], given, allow_unused=True)
                                 if grad else ()))
            (want, slopes), (got, found) = outcomes
            for a, b in zip((*want, *slopes), (*got, *found), strict=True):
                torch.testing.assert_close(b, a)
            assert [t.stride() for t in want] == [t.stride() for t in got]
    return compiled


def both(name="gated", **options):
    return passes.Replacement(gated, squashed, [(MATRIX, MATRIX), (MATRIX.double(), MATRIX.double())], name, **options)


def test_a_pattern_inside_a_program():
    def fn(x, w):
        y = x @ w
        return gated(y, y + 1).sum(-1), y

    same(fn, lambda x, w: (squashed(x @ w, x @ w + 1).sum(-1), x @ w), torch.randn(4, 5), torch.randn(5, 3),
         passes=[both()])


def test_operands_in_the_other_order():
    same(lambda x, y: torch.sigmoid(y) * x, squashed, torch.randn(3, 4), torch.randn(3, 4), passes=[both()])


@pytest.mark.parametrize("layout", [lambda t: t, lambda t: t.t(), lambda t: t[:, 1:3], lambda t: t[:0],
                                    lambda t: t[:1].expand(5, 4)],
                         ids=["dense", "transposed", "sliced", "empty", "expanded"])
def test_any_layout(layout):
    same(lambda x, y: gated(layout(x), layout(y)), lambda x, y: squashed(layout(x), layout(y)), torch.randn(5, 4),
         torch.randn(5, 4), passes=[both()])


def test_every_place_and_patterns_in_patterns():
    def twice(g):
        return lambda x, y: g(g(x, y), y) - g(y, x)

    same(twice(gated), twice(squashed), torch.randn(3, 4), torch.randn(3, 4), passes=[both()])


def test_an_operand_that_is_computed_twice():
    square = passes.Replacement(lambda x: torch.exp(x) * torch.exp(x), lambda x: x + 2, [(VECTOR,), (VECTOR.double(),)])
    same(lambda x: torch.exp(x) * torch.exp(x), lambda x: x + 2, torch.randn(3), passes=[square])


def test_what_is_not_the_pattern_stays():
    halves = passes.Replacement(lambda x: F.leaky_relu(x, 0.5), torch.tanh, [(VECTOR,), (VECTOR.double(),)])
    same(lambda x: (F.leaky_relu(x, 0.25), F.leaky_relu(x, 0.5)), lambda x: (F.leaky_relu(x, 0.25), torch.tanh(x)),
         torch.randn(4), passes=[halves])
    rows = passes.Replacement(lambda x: x.sum(-1), lambda x: x.mean(-1), [(MATRIX,), (MATRIX.double(),)])
    same(lambda x: (x.sum(0), x.sum(1)), lambda x: (x.sum(0), x.mean(1)), torch.randn(4, 4), passes=[rows])


def test_composites_in_half_precision():
    smooth = passes.Replacement(F.gelu, F.silu, (torch.ones(2, 2, dtype=torch.bfloat16),))
    x = torch.randn(4, 5).bfloat16()
    torch.testing.assert_close(jit.compile(lambda x: F.gelu(x) * 2, passes=[smooth])(x), F.silu(x) * 2)


def test_sizes_that_the_replacement_asks_for_are_guarded():
    def instead(x):
        return x * 2 if x.shape[0] > 4 else x * 3

    compiled = jit.compile(lambda x: torch.tanh(x) + 1, passes=[passes.Replacement(torch.tanh, instead, (VECTOR,))],
                           dynamic=True)
    for n in (8, 3, 5, 2, 4, 0):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), instead(x) + 1)


def test_tensors_of_the_replacements_own():
    offset = torch.randn(3)
    shifted = passes.Replacement(torch.tanh, lambda x: x + offset + torch.arange(3) + x.new_ones(3), (VECTOR,))
    x = torch.randn(3)
    torch.testing.assert_close(jit.compile(torch.tanh, passes=[shifted])(x), x + offset + torch.arange(3) + 1)


@pytest.mark.parametrize("instead", [lambda x: x * 1, lambda x: x], ids=["new memory", "the argument"])
def test_results_share_memory_as_before(instead):
    def fn(x):
        y = torch.tanh(x)
        x.add_(1)
        return y, y.view(-1), x

    x = torch.randn(2, 3)
    before = x.clone()
    y, flat, same_x = jit.compile(fn, passes=[passes.Replacement(torch.tanh, instead, (MATRIX,))])(x)
    assert torch.equal(y, before) and flat.data_ptr() == y.data_ptr() != x.data_ptr() and same_x is x
    torch.testing.assert_close(x, before + 1)


def test_a_result_that_becomes_the_argument_is_a_tensor_of_its_own():
    def without_tanh(graph):
        for node in graph.nodes:
            if node.op == "tanh":
                graph.replace(node, node.inputs[0])

    x = torch.randn(3)
    y = jit.compile(torch.tanh, passes=[without_tanh])(x)
    assert torch.equal(x, y) and y is not x and y.data_ptr() != x.data_ptr()


def test_modules_in_training():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.linear(x)).sum()

    net, x, gradients = Net(), torch.randn(3, 4), []
    jit.compile(net, passes=[passes.Replacement(torch.relu, F.silu, (MATRIX,))])(x).backward()
    gradients.append(net.linear.weight.grad.clone())
    net.zero_grad()
    F.silu(net.linear(x)).sum().backward()
    torch.testing.assert_close(gradients[0], net.linear.weight.grad)


@pytest.fixture(scope="module")
def cube():
    @torch.library.custom_op("jit_test_passes::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x * x * x

    cube.register_fake(torch.empty_like)
    return cube


def test_an_operator_of_the_users_own(cube):
    ours = passes.Replacement(lambda x: x * x * x, cube, (MATRIX,), keep_gradient=True)
    x = torch.randn(3, 4)
    fn = lambda x: (x * x * x + 1).sum()  # noqa: E731
    torch.testing.assert_close(jit.compile(fn, passes=[ours])(x), fn(x))
    assert any("jit_test_passes" in plan for plan in _graphs_after(fn, x, ours))
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(jit.compile(fn, passes=[ours])(x), x), torch.autograd.grad(fn(x), x))


def _graphs_after(fn, x, *chosen):
    texts = []

    def backend(graph, examples):
        texts.append(graph.python())
        return lambda *tensors: [fn(*tensors)]

    jit.compile(fn, passes=chosen, backend=backend)(x)
    return texts


def test_an_operator_without_a_gradient_here_says_what_to_do(cube):
    ours = passes.Replacement(lambda x: x * x * x, cube, (MATRIX,))
    with pytest.raises(jit.PassError, match="keep_gradient"):
        jit.compile(lambda x: x * x * x + 1, passes=[ours])(torch.randn(2, 2, requires_grad=True))


def test_where_chooses_places():
    wide = both(where=lambda x, y: x.shape[-1] > 3)
    compiled = jit.compile(gated, passes=[wide], dynamic=False)
    for n in (2, 5):
        x, y = torch.randn(3, n), torch.randn(3, n)
        torch.testing.assert_close(compiled(x, y), (squashed if n > 3 else gated)(x, y))


def test_passes_run_in_order():
    first = passes.Replacement(torch.tanh, torch.exp, (VECTOR,))
    second = passes.Replacement(torch.exp, torch.sin, (VECTOR,))
    x = torch.randn(3)
    torch.testing.assert_close(jit.compile(torch.tanh, passes=[first, second])(x), x.sin())
    torch.testing.assert_close(jit.compile(torch.tanh, passes=[second, first])(x), x.exp())


@pytest.mark.parametrize("backend", ["eager", "jit"])
def test_every_backend_sees_the_changed_graph(backend):
    x = torch.randn(3)
    torch.testing.assert_close(jit.compile(torch.tanh, passes=[passes.Replacement(torch.tanh, torch.sin, (VECTOR,))],
                                           backend=backend)(x), x.sin())


@pytest.mark.parametrize("backend", ["eager", "jit"])
def test_a_pattern_in_a_backward_of_the_programs_own(backend):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (torch.tanh(g) * 2 + 1) * x

    x = torch.randn(3, requires_grad=True)
    changed = passes.Replacement(torch.tanh, lambda x: torch.cos(x) * 0.5, (VECTOR,))
    jit.compile(lambda x: Scaled.apply(x), passes=[changed], backend=backend)(x).sum().backward()
    torch.testing.assert_close(x.grad, (torch.ones(3).cos() + 1) * x.detach())


def test_tools_take_passes():
    sine = passes.Replacement(torch.tanh, torch.sin, (VECTOR,))
    x = torch.randn(5)
    assert any("sin" in text for text in jit.explain(torch.tanh, passes=[sine])(x).kernels)
    torch.testing.assert_close(jit.verify(torch.tanh, passes=[sine])(x).result, x.sin())


# what is refused


def shorter(graph):
    for node in graph.nodes:
        if node.op == "tanh":
            graph.replace(node, graph.call(torch.sum, node.inputs[0], before=node))


def failing(graph):
    raise KeyError("no such thing")


def with_a_result(graph):
    return graph


def too_late(graph):
    node = next(n for n in graph.nodes if n.op == "tanh")
    graph.call(torch.exp, graph.outputs[0], before=node)


HERE = r"^%sthe pass '%s' \(.*test_user_passes.py:\d+\)"


@pytest.mark.parametrize("p, text", [
    (shorter, HERE % ("in ", "shorter") + r" at .*:\d+: .*float32\[3\].* cannot be replaced by .*float32\[\]"),
    (failing, HERE % ("", "failing") + r" raised KeyError at .*test_user_passes.py:\d+: 'no such thing'"),
    (with_a_result, HERE % ("in ", "with_a_result") + ": returned a value"),
    (too_late, HERE % ("", "too_late") + " raised ValueError at .*computed there or later"),
], ids=lambda v: getattr(v, "__name__", None))
@pytest.mark.parametrize("fullgraph", [False, True])
def test_faults_of_passes_are_told_by_name(p, text, fullgraph):
    compiled = jit.compile(lambda x: torch.tanh(x) + 1, passes=[p], fullgraph=fullgraph)
    for _ in range(2):
        with pytest.raises(jit.PassError, match=text):
            compiled(torch.randn(3))


def test_faults_of_patterns_are_told_at_once():
    with pytest.raises(jit.PassError, match="cannot be captured: the result depends on the data"):
        passes.Replacement(lambda x: x.nonzero(), lambda x: x, (VECTOR,))
    with pytest.raises(jit.PassError, match="has to return one tensor"):
        passes.Replacement(lambda x: x, torch.exp, (VECTOR,))


def test_a_replacement_writes_into_nothing_of_the_program():
    def writes(x):
        return x.add_(1)

    with pytest.raises(jit.PassError, match="writes into a tensor that it is given"):
        jit.compile(torch.tanh, passes=[passes.Replacement(torch.tanh, writes, (VECTOR,))])(torch.randn(3))


@pytest.mark.parametrize("wrong", [shorter, "tanh", [1]])
def test_arguments_that_are_no_passes(wrong):
    with pytest.raises(TypeError, match="expected a list of functions"):
        jit.compile(torch.tanh, passes=wrong)


def test_keys_follow_the_text_of_a_pass():
    assert passes.key(both()) == passes.key(both())
    assert passes.key(both()) != passes.key(passes.Replacement(gated, gated, (MATRIX, MATRIX)))
    assert passes.key(both()) != passes.key(both(keep_gradient=True)) and passes.key(shorter) != passes.key(failing)
    shorter_too = type(both())(gated, squashed, (MATRIX, MATRIX))
    shorter_too.key = "2026-11"
    assert passes.key(shorter_too) == "2026-11"


def test_the_log_says_what_was_replaced(capsys):
    jit.logs.enable("passes")
    try:
        jit.compile(torch.tanh, passes=[passes.Replacement(torch.tanh, torch.sin, (VECTOR,), "sine")])(torch.randn(3))
    finally:
        jit.logs.enable("")
    assert ("[jit:passes] sine (" in (text := capsys.readouterr().err) and "1 node replaced" in text
            and "torch.sin(" in text)
