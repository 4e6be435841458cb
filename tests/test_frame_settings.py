"""Settings of torch that the program changes between calls: each call of a compiled function gives what eager gives
under them."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import jit

X = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))
BACKENDS = [{"backend": "eager"}, {}]


def layout(t):
    return t.dtype, t.device, tuple(t.shape), t.stride(), t.requires_grad


def check(compiled, fn, *args):
    """Compare a call with eager's: values, layouts, and the gradients of inputs."""
    got, want = compiled(*args), fn(*args)
    got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w and type(g) is type(w)
            continue
        assert layout(g) == layout(w)
        if w.device.type != "meta":
            torch.testing.assert_close(g, w, equal_nan=True)
        if w.requires_grad:
            leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
            for ours, theirs in zip(*(torch.autograd.grad(r.sum(), leaves, retain_graph=True) for r in (g, w))):
                torch.testing.assert_close(ours, theirs)


def sequence(fn, contexts, *args, **options):
    """One compiled function, called under each context in turn, and once more."""
    compiled = jit.compile(fn, **options)
    for make in (*contexts, *contexts):
        with make():
            check(compiled, fn, *args)
    return compiled


def attention(q):
    return F.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q, q, q, is_causal=True)


def switched(setter, getter, value):
    """A context in which a process-wide setting has another value."""

    @contextlib.contextmanager
    def context():
        before = getter()
        setter(value)
        try:
            yield
        finally:
            setter(before)

    return context


@pytest.mark.parametrize("options", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
def test_attention_kernels_chosen_around_the_call(options, grad):
    q = X.clone().requires_grad_(grad)
    contexts = [contextlib.nullcontext, lambda: sdpa_kernel(SDPBackend.MATH),
                lambda: sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
                lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
                switched(torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.flash_sdp_enabled, False)]
    sequence(attention, contexts, q, **options)


@pytest.mark.parametrize("grad", [False, True])
def test_no_attention_kernel_is_left(grad):
    """Eager raises where none of the kernels that are on can do it: here only the fused one is, and the gradient of a
    mask is asked."""
    mask = torch.zeros(6, 6).requires_grad_(grad)

    def f(q):
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.5)

    def outcome(fn):
        try:
            return fn(X).shape
        except RuntimeError as error:
            return str(error).splitlines()[0]

    compiled = jit.compile(f)
    for make in (contextlib.nullcontext, lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)):
        with make():
            assert outcome(compiled) == outcome(f)


def queried(x):
    return (x * 2, torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
            torch.is_anomaly_enabled(), torch.get_default_dtype())


def test_queries_follow_the_settings():
    contexts = [contextlib.nullcontext, lambda: sdpa_kernel(SDPBackend.MATH),
                torch.autograd.set_detect_anomaly and (lambda: torch.autograd.set_detect_anomaly(True)),
                switched(torch.set_default_dtype, torch.get_default_dtype, torch.float64)]
    sequence(queried, contexts, X[0, 0])


def matmuls(a, b):
    return a @ b, F.linear(a, b), torch.get_float32_matmul_precision()


def test_precision_of_products():
    """Library calls see the real switches, and the program sees them too."""
    contexts = [contextlib.nullcontext,
                switched(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "high"),
                switched(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "medium")]
    sequence(matmuls, contexts, torch.randn(8, 8), torch.randn(8, 8))


def tf32(x):
    return (x @ x, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark)


def test_switches_of_cuda_libraries():
    def attribute(owner, name, value):
        def put(v):
            with torch.backends.__allow_nonbracketed_mutation():  # torch.testing forbids it for the whole process
                setattr(owner, name, v)

        return switched(put, lambda: getattr(owner, name), value)

    contexts = [contextlib.nullcontext, attribute(torch.backends.cuda.matmul, "allow_tf32", True),
                attribute(torch.backends.cudnn, "allow_tf32", False),
                attribute(torch.backends.cudnn, "enabled", False), attribute(torch.backends.cudnn, "benchmark", True)]
    sequence(tf32, contexts, torch.randn(4, 4))


def made(x):
    return (torch.ones(3), torch.arange(4.0), torch.tensor([1.5, 2.0]), torch.empty(2).fill_(1), torch.full((2,), 3),
            torch.linspace(0, 1, 4), torch.eye(2), torch.zeros_like(x), x.new_ones(2), x.sum())


def test_default_dtypes():
    contexts = [contextlib.nullcontext] + [switched(torch.set_default_dtype, torch.get_default_dtype, d)
                                           for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]
    for dtype in (torch.float32, torch.int64):
        sequence(made, contexts, torch.ones(3, dtype=dtype))


def promoted(n, x):
    return (n * 2.5, n / 2, n.sqrt(), n.float().mean(), torch.nn.functional.one_hot(n % 3, 3) + 0.5,
            torch.where(n > 1, 1.0, 2.0), x * 2.5)


def test_default_dtypes_of_results():
    contexts = [contextlib.nullcontext] + [switched(torch.set_default_dtype, torch.get_default_dtype, d)
                                           for d in (torch.float64, torch.bfloat16)]
    sequence(promoted, contexts, torch.arange(4), torch.ones(2))


@pytest.mark.parametrize("options", BACKENDS)
def test_default_devices(options):
    contexts = [contextlib.nullcontext, lambda: torch.device("meta"), lambda: torch.device("cpu"),
                lambda: torch.device("meta"), lambda: torch.device("cpu", 0)]
    with jit.config.patch(strict=True):
        sequence(made, contexts, torch.ones(3), **options)


def test_what_the_default_device_says_nothing_of():
    sequence(lambda x: (torch.normal(1.0, 2.0, (2, 3)).device, torch.rand(3).device, x + 1),
             [lambda: torch.device("meta"), contextlib.nullcontext], torch.ones(3), backend="eager")


def test_default_devices_that_are_set():
    def context(device):
        return switched(torch.set_default_device, lambda: None, device)

    sequence(made, [contextlib.nullcontext, context("meta"), context("cpu")], torch.ones(3))
    assert torch.get_default_device().type == "cpu"


def test_default_devices_inside():
    def f(x):
        with torch.device("meta"):
            a = torch.ones(3)
            with torch.device("cpu"):
                b = torch.ones(3)
        return a, b, torch.ones(2) + x, torch.get_default_device()

    sequence(f, [contextlib.nullcontext, lambda: torch.device("cpu")], torch.ones(2))


def scattered(x, i, v):
    y = torch.zeros(4, 3).index_add(0, i, v)
    z = torch.zeros(4, 3).index_put((i,), v, accumulate=True)
    return y + x, z, torch.zeros(4).scatter_add(0, i, v[:, 0]), torch.empty(2), x.cumsum(0)


def test_deterministic_algorithms():
    def context(mode, **options):
        return switched(lambda v: torch.use_deterministic_algorithms(v, **options),
                        torch.are_deterministic_algorithms_enabled, mode)

    filled = lambda x, i, v: (*scattered(x, i, v)[:3], torch.are_deterministic_algorithms_enabled())  # noqa: E731
    sequence(filled, [contextlib.nullcontext, context(True), context(True, warn_only=True)], torch.ones(4, 3),
             torch.tensor([0, 1, 1, 3, 0]), torch.randn(5, 3))


def test_operators_that_refuse_to_be_deterministic():
    """What raises under the switch in eager raises when it was compiled without it."""
    def f(x):
        return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)

    compiled, x = jit.compile(f), torch.randn(1, 1, 4, 4)
    check(compiled, f, x)
    with switched(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True)():
        for fn in (f, compiled):
            with pytest.raises(RuntimeError, match="deterministic"):
                fn(x)
    check(compiled, f, x)


def test_threads():
    def f(x):
        return x.sum(), x.softmax(-1), (x * 2).mean(0), x.amax(1)

    x = torch.randn(512, 300)
    sequence(f, [contextlib.nullcontext, switched(torch.set_num_threads, torch.get_num_threads, 1),
                 switched(torch.set_num_threads, torch.get_num_threads, 3)], x)


def test_grad_and_inference_modes():
    net = nn.Linear(8, 8)

    def f(x):
        y = net(x)
        return y, y.requires_grad, y.is_inference(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    compiled = jit.compile(f)
    for make in (contextlib.nullcontext, torch.no_grad, torch.inference_mode, torch.enable_grad) * 2:
        with make():
            got, want = compiled(X), f(X)
        assert got[1:] == want[1:] and torch.allclose(got[0], want[0])
