"""What of torch's global state a captured graph meets: modes, generators, determinism, operators of the program's
own."""

import pytest
import torch

import jit

X = torch.randn(4, generator=torch.Generator().manual_seed(0))


def test_generators_are_drawn_from_in_program_order():
    generator = torch.Generator()

    def f(x):
        return (torch.rand(3, generator=generator), x.clone().normal_(generator=generator),
                torch.randperm(4, generator=generator), torch.bernoulli(x.abs().clamp(0, 1), generator=generator))

    compiled = jit.compile(f, fullgraph=True)
    for seed in (1, 2):
        generator.manual_seed(seed)
        want = f(X)
        generator.manual_seed(seed)
        for w, g in zip(want, compiled(X), strict=True):
            assert torch.equal(w, g)


def test_another_generator_is_another_entry():
    f = lambda x, g: torch.rand(4, generator=g) + x  # noqa: E731
    compiled = jit.compile(f, fullgraph=True)
    for seed in (1, 2):
        assert torch.equal(compiled(X, torch.Generator().manual_seed(seed)), f(X, torch.Generator().manual_seed(seed)))


class AddHundred(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + 100 if func in (torch.mul, torch.Tensor.mul) else result


def test_function_modes_see_every_operation():
    def inside(x):
        with AddHundred():
            return torch.mul(x, 2)

    around = lambda x: torch.mul(x, 2)  # noqa: E731
    assert torch.equal(jit.compile(inside)(X), X * 2 + 100)
    compiled = jit.compile(around)
    for _ in range(2):
        with AddHundred():
            seen = compiled(X)
        assert torch.equal(seen, X * 2 + 100)
        assert torch.equal(compiled(X), X * 2)


def test_dispatch_modes_see_every_operation():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    compiled = jit.compile(lambda x: x * 2 + 1)
    compiled(X)
    with Spy():
        compiled(X)
    assert torch.ops.aten.mul.Tensor in seen


@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_grad_mode_is_of_no_account_in_inference_mode(backend):
    weight = torch.ones(4, requires_grad=True)

    def inside(x):
        with torch.inference_mode(), torch.enable_grad():
            y, on = weight * x, torch.is_grad_enabled()
            made = torch.ones(4, requires_grad=True) * 2
            weight[0] = 9
        return y, y.requires_grad, y.is_inference(), on, made.requires_grad, weight.detach().clone()

    expected = inside(X)
    weight = torch.ones(4, requires_grad=True)
    for _ in range(2):
        got = jit.compile(inside, backend=backend)(X)
        assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(got[1:], expected[1:]))
        weight = torch.ones(4, requires_grad=True)


def test_inference_mode_makes_inference_tensors():
    def inside(x):
        with torch.inference_mode():
            y = x * 2
        return y

    compiled = jit.compile(inside)
    for _ in range(2):
        assert compiled(X).is_inference()
    plain = jit.compile(lambda x: (torch.is_inference_mode_enabled(), x * 2), fullgraph=True)
    assert plain(X)[0] is False and not plain(X)[1].is_inference()
    with torch.inference_mode():
        assert plain(X)[0] is True and plain(X)[1].is_inference()


def test_deterministic_mode_fills_what_is_not_written():
    f = lambda x: (torch.are_deterministic_algorithms_enabled(), torch.empty(3), torch.empty_like(x),
                   x.new_empty(2, dtype=torch.int32))  # noqa: E731
    compiled = jit.compile(f, fullgraph=True)
    assert compiled(X)[0] is False
    torch.use_deterministic_algorithms(True)
    try:
        flag, a, b, c = compiled(X)
    finally:
        torch.use_deterministic_algorithms(False)
    assert flag is True and a.isnan().all() and b.isnan().all() and (c == torch.iinfo(torch.int32).max).all()


@torch.library.custom_op("jit_tests::scale", mutates_args=())
def scale(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


@scale.register_fake
def _(x, k):
    return torch.empty_like(x)


@torch.library.custom_op("jit_tests::shift", mutates_args=("x",))
def shift(x: torch.Tensor, k: float) -> None:
    x.add_(k)


def test_custom_operators():
    assert torch.equal(jit.compile(lambda x: scale(x, 2.0) + 1, fullgraph=True)(X), X * 2 + 1)
    assert torch.equal(jit.compile(lambda x: torch.ops.jit_tests.scale(x, 2.0) + 1, fullgraph=True)(X), X * 2 + 1)

    def changes(x):
        shift(x, 2.0)
        return x * 2

    x = X.clone()
    assert torch.equal(jit.compile(changes)(x), (X + 2) * 2) and torch.equal(x, X + 2)


@pytest.mark.parametrize("make", [lambda x: x.to_sparse(), lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)])
def test_layouts_that_are_not_strided_break(make):
    x = make(X)
    dense = lambda y: y.to_dense() if y.is_sparse else y.dequantize()  # noqa: E731
    assert torch.equal(dense(jit.compile(lambda y: y.clone())(x)), dense(x))
    assert torch.equal(dense(jit.compile(lambda y: make(y + 0))(X)), dense(x))


def test_result_class_of_out_arguments():
    out = (torch.empty(4), torch.empty(4, dtype=torch.int64))
    f = lambda x: torch.sort(x, out=out)  # noqa: E731
    assert type(jit.compile(f)(X)) is type(f(X))


def test_meta_tensors():
    f = (lambda x, y: ((x @ y).relu().sum(0), x.t(), x.add_(1), torch.arange(4, device=x.device) + x[0], x.softmax(-1),
                       x.argmax(1)))  # noqa: E731
    compiled = jit.compile(f, fullgraph=True)
    for device in ("meta", "cpu", "meta"):
        args = torch.ones(3, 4, device=device), torch.ones(4, 5, device=device)
        for want, got in zip(f(*args), compiled(*args), strict=True):
            assert (want.device, want.dtype, want.shape,
                    want.stride()) == (got.device, got.dtype, got.shape, got.stride())


def test_checkpointing_is_the_function():
    from torch.utils.checkpoint import checkpoint

    f = lambda x: checkpoint(lambda a, k: a.tanh() * k, x, 2.0, use_reentrant=False) + x  # noqa: E731
    assert torch.allclose(jit.compile(f, fullgraph=True)(X), f(X))
    g = lambda x: checkpoint(lambda a: a.tanh(), x, use_reentrant=True) + x  # noqa: E731
    assert torch.allclose(jit.compile(g)(X), g(X))


def test_detached_results_of_inputs_that_require_grad():
    x = X.clone().requires_grad_()

    def under_no_grad(x):
        with torch.no_grad():
            return x[1:], x.view(2, 2), x * 2

    for f in (lambda x: (x.detach(), x.view(2, 2).detach()[1:], x.detach() * 2), lambda x: (x.data, x * 2),
              lambda x: (x.detach(), (x * 2).detach(), x * 3), under_no_grad):
        for want, got in zip(f(x), jit.compile(f, fullgraph=True)(x), strict=True):
            assert want.requires_grad == got.requires_grad and torch.equal(want, got)
            assert (want.untyped_storage().data_ptr() == x.data_ptr()) == (
                got.untyped_storage().data_ptr() == x.data_ptr())


def test_checks_of_values_in_functions_of_torch():
    loss = lambda x, y, v: torch.nn.functional.gaussian_nll_loss(x, y, v)  # noqa: E731
    compiled = jit.compile(loss, fullgraph=True)
    for _ in range(2):
        assert torch.allclose(compiled(X, X + 1, X.abs() + 1), loss(X, X + 1, X.abs() + 1))
    with pytest.raises(ValueError, match="negative"):
        jit.compile(loss)(X, X + 1, -X.abs())


def test_objects_as_arguments_of_functions_of_torch():
    distance = torch.nn.PairwiseDistance()
    loss = lambda a, b, c: torch.nn.functional.triplet_margin_with_distance_loss(
        a, b, c, distance_function=distance)  # noqa: E731
    rows = X.repeat(3, 1)
    assert torch.allclose(jit.compile(loss, fullgraph=True)(rows, rows + 1, rows * 2), loss(rows, rows + 1, rows * 2))


@torch.jit.script
def scripted(x, n: int):
    if n > 2:
        x = x * n
    return x + 1


def test_scripted_functions_are_followed_in_python():
    compiled = jit.compile(lambda x, n: scripted(x, n) * 2, fullgraph=True)
    for n in (1, 3):
        assert torch.equal(compiled(X, n), (scripted(X, n) * 2))


def test_a_new_tensor_is_made_to_require_grad():
    def f(x):
        with torch.no_grad():
            y = torch.zeros_like(x).requires_grad_()
            z = x * 2 + y
        return y, z, y.requires_grad

    ours, theirs = jit.compile(f, fullgraph=True, backend="eager")(X), f(X)
    assert ours[0].requires_grad and ours[0].is_leaf and not ours[1].requires_grad and ours[2] is theirs[2]
    assert torch.equal(ours[1], theirs[1])


def test_distributions_with_lazy_parameters():
    def f(x):
        return torch.distributions.Categorical(logits=x).entropy(), torch.distributions.Categorical(logits=x).probs

    for w, g in zip(f(X), jit.compile(f, fullgraph=True)(X), strict=True):
        assert torch.allclose(w, g)


def test_what_captured_code_hears_when_it_asks_for_a_compiler():
    def f(x):
        return x + 1 if torch.compiler.is_compiling() else x - 1

    assert torch.equal(jit.compile(f, fullgraph=True)(X), X + 1)
    with jit.config.patch(says_compiling=False):
        assert torch.equal(jit.compile(f, fullgraph=True)(X), X - 1)


def attention_by(backend, x, mask=None):
    with torch.nn.attention.sdpa_kernel(backend):
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    return y + torch.nn.functional.scaled_dot_product_attention(x, x, x), y


@pytest.mark.parametrize("mask", [None, torch.randn(5, 5), torch.ones(5, 5, dtype=torch.bool).tril()])
@pytest.mark.parametrize("options", [{"backend": "eager"}, {}])
def test_a_choice_of_attention_kernels(options, mask):
    x = torch.randn(2, 3, 5, 8, requires_grad=True)
    compiled = jit.compile(attention_by, fullgraph=True, **options)
    for backend in (torch.nn.attention.SDPBackend.MATH, [torch.nn.attention.SDPBackend.MATH]):
        for result, expected in zip(compiled(backend, x, mask), attention_by(backend, x, mask), strict=True):
            torch.testing.assert_close(result, expected)
            assert result.stride() == expected.stride()
            gradients = [torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (result, expected)]
            torch.testing.assert_close(*gradients)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_choice_of_attention_kernels_with_a_break_inside():
    def f(x):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            y = x * 2
            jit.graph_break()
            z = torch.nn.functional.scaled_dot_product_attention(y, y, y)
            state = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
        return z, state

    x = torch.randn(2, 3, 5, 8)
    result, expected = jit.compile(f)(x), f(x)
    torch.testing.assert_close(result[0], expected[0])
    assert result[0].stride() == expected[0].stride() and result[1] == expected[1] == (False, True)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_another_choice_of_attention_kernels_breaks():
    x = torch.randn(2, 3, 5, 8)
    backend = torch.nn.attention.SDPBackend.FLASH_ATTENTION
    for result, expected in zip(jit.compile(attention_by)(backend, x), attention_by(backend, x)):
        torch.testing.assert_close(result, expected)
    assert torch.backends.cuda.math_sdp_enabled()


def test_python_types_as_dtypes():
    def f(x):
        return (torch.ones(2, dtype=bool), torch.zeros(2, dtype=int), x.sum(dtype=float), x.new_ones(2, dtype=bool),
                torch.arange(3, dtype=float))

    for result, expected in zip(jit.compile(f, fullgraph=True)(X), f(X), strict=True):
        assert result.dtype == expected.dtype and torch.equal(result, expected)


def test_the_properties_of_a_gpu_are_no_break():
    """Without one, asking for them raises."""
    def f(x):
        try:
            own = torch.cuda.get_device_properties(0)
            return (x * own.major + torch.cuda.is_bf16_supported(), own.name, own.total_memory,
                    torch.cuda.get_device_capability(), torch.cuda.get_device_name("cuda"))
        except AssertionError as error:
            return x + torch.cuda.is_bf16_supported(), str(error)

    for result, expected in zip(jit.compile(f, fullgraph=True)(X), f(X), strict=True):
        assert torch.equal(result, expected) if isinstance(result, torch.Tensor) else result == expected
