"""Tensor subclasses such as libraries write, and programs that use them: name -> (function, what makes its
arguments). ``BREAKS``: those that are not captured whole."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map, tree_map_only


# -- classes with __torch_function__ ---------------------------------------------------------------------------------

class Plain(torch.Tensor):
    """Nothing but a class."""


class Named(torch.Tensor):
    """Carries a name along."""

    @staticmethod
    def __new__(cls, data, label="none"):
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data, label="none"):
        self.label = label

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Named):
            result.label = "+".join([a.label for a in args if isinstance(a, Named)])
        return result

    def shout(self):
        return self.label.upper()

    @property
    def initial(self):
        return self.label[:1]


class Counted(torch.Tensor):
    """Counts the calls it sees by function."""

    calls: dict = {}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counted.calls[func.__name__] = Counted.calls.get(func.__name__, 0) + 1
        return super().__torch_function__(func, types, args, kwargs)


HANDLED = {}


def implements(*functions):
    def register(fn):
        for f in functions:
            HANDLED[f] = fn
        return fn
    return register


class Diagonal:
    """No tensor at all, but torch functions take it."""

    def __init__(self, n, value):
        self.n, self.value = n, value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED:
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


@implements(torch.mm, torch.matmul)
def diagonal_mm(a, b):
    return a.value * b if isinstance(a, Diagonal) else a * b.value


class Quiet(torch.Tensor):
    """Without a say."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Base(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs) if func is not torch.add else func(*args, **kwargs) + 100


class Derived(Base):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.mul:
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs) - 1000 if func is torch.add else func(*args, **kwargs)


class Scaled(torch.nn.Parameter):
    """A parameter with a scale and a loader, as serving libraries have them."""

    def __new__(cls, data, *args, **kwargs):
        return super().__new__(cls, data=data, requires_grad=False)

    def __init__(self, data, scale=1.0, loader=None):
        self.scale, self.loader = scale, loader

    @property
    def twice(self):
        return self.scale * 2


class QuantizedByFunction(torch.Tensor):
    """int8 weights with a scale per row: linear is implemented in __torch_function__."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data, scale):
        self.data_int8, self.scale = data, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantize(self):
        return self.data_int8.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["data_int8", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_int8"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear:
            x, w, bias = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias")
            y = F.linear(x, w.data_int8.to(x.dtype)) * w.scale.view(-1)
            return y if bias is None else y + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(func, args, kwargs, cls(args[0].data_int8, args[0].scale))
        raise NotImplementedError(f"{func}")


class Quantized(QuantizedByFunction):
    """The same by operators in __torch_dispatch__. ``across``: the scales are per column."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    TABLE = {}

    def __init__(self, data, scale, across=False):
        super().__init__(data, scale)
        self.across = across

    def __new__(cls, data, scale, across=False):
        return QuantizedByFunction.__new__(cls, data, scale)

    def __tensor_flatten__(self):
        return ["data_int8", "scale"], (self.across,)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_int8"], inner["scale"], *context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in cls.TABLE:
            return cls.TABLE[func](func, types, args, kwargs or {})
        args, kwargs = tree_map_only(Quantized, lambda q: q.dequantize(), (args, kwargs or {}))
        return func(*args, **kwargs)


def at(*ops):
    def register(fn):
        for op in ops:
            Quantized.TABLE[op] = fn
        return fn
    return register


@at(torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten.alias.default)
def _map(func, types, args, kwargs):
    q = args[0]
    return return_and_correct_aliasing(func, args, kwargs, Quantized(func(q.data_int8), func(q.scale), q.across))


@at(torch.ops.aten.t.default)
def _t(func, types, args, kwargs):
    q = args[0]
    return return_and_correct_aliasing(func, args, kwargs, Quantized(q.data_int8.t(), q.scale.t(), not q.across))


@at(torch.ops.aten.mm.default)
def _mm(func, types, args, kwargs):
    x, w = args
    if w.across:
        return torch.mm(x, w.data_int8.to(x.dtype)) * w.scale
    return torch.mm(x, w.dequantize())


@at(torch.ops.aten.addmm.default)
def _addmm(func, types, args, kwargs):
    bias, x, w = args
    return _mm(None, types, (x, w), {}) + bias


class Pair(torch.Tensor):
    """Two tensors that go through everything side by side."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.size(), strides=a.stride(), storage_offset=a.storage_offset(), dtype=a.dtype, layout=a.layout,
            device=a.device, requires_grad=a.requires_grad)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["a"], inner["b"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first = func(*tree_map(lambda t: t.a if isinstance(t, Pair) else t, args),
                     **tree_map(lambda t: t.a if isinstance(t, Pair) else t, kwargs))
        second = func(*tree_map(lambda t: t.b if isinstance(t, Pair) else t, args),
                      **tree_map(lambda t: t.b if isinstance(t, Pair) else t, kwargs))
        if isinstance(first, torch.Tensor):
            return return_and_correct_aliasing(func, args, kwargs, Pair(first, second))
        if isinstance(first, (tuple, list)):
            return type(first)([Pair(f, s) if isinstance(f, torch.Tensor) else f for f, s in zip(first, second)])
        return first

    def __repr__(self):
        return f"Pair({self.a}, {self.b})"


class StraightThrough(torch.Tensor):
    """Values are rounded where an operator sees them; gradients are those of the operator."""

    __slots__ = ("inner", "bits")

    @staticmethod
    def __new__(cls, inner, bits):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner, bits):
        self.inner, self.bits = inner, bits

    def __tensor_flatten__(self):
        return ["inner"], self.bits

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["inner"], context)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        bits = next(a.bits for a in args if isinstance(a, cls))

        def seen(t):
            if isinstance(t, cls):
                return (t.inner * 2**bits).round() / 2**bits
            return (t * 2**bits).round() / 2**bits if isinstance(t, torch.Tensor) else t

        return func(*tree_map(seen, args), **tree_map(seen, kwargs or {}))


class Doubling(torch.overrides.TorchFunctionMode):
    """Doubles the results of sums."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.sum, torch.Tensor.sum) else result


def weights(cls, n=6, m=4):
    torch.manual_seed(0)
    return cls.of(torch.randn(n, m))


def pair(*shape):
    return Pair(torch.randn(*shape), torch.randn(*shape))


class QuantizedLinear(torch.nn.Module):
    def __init__(self, cls, bias=True):
        super().__init__()
        layer = torch.nn.Linear(4, 6, bias=bias)
        layer.weight = torch.nn.Parameter(cls.of(layer.weight.detach()), requires_grad=False)
        self.layer = layer

    def forward(self, x):
        return torch.relu(self.layer(x)) * 2


MLP = {cls: QuantizedLinear(cls) for cls in (Quantized, QuantizedByFunction)}


def under_a_mode(x):
    with Doubling():
        y = x.sum() + torch.sum(x, 0)
    return y + x.sum()


def flattened_and_back(p):
    names, context = p.__tensor_flatten__()
    return Pair.__tensor_unflatten__({n: getattr(p, n) * 2 for n in names}, context, p.size(), p.stride())


def nested_modes(x):
    with Doubling(), Doubling():
        return x.sum()


PROGRAMS = {
    "a class and nothing else": (lambda x: (x * 2 + 1).relu(), lambda: [torch.randn(3, 4).as_subclass(Plain)]),
    "mixed with plain tensors": (lambda x, y: (x @ y, y.t() + x, torch.cat([x, y.t()]), 2 / x),
                                 lambda: [torch.randn(3, 4).as_subclass(Plain), torch.randn(4, 3)]),
    "views and shapes": (lambda x: (x.view(-1), x[0], x.t(), x.shape[0] * x.size(1), x.split(1), len(x), x.dtype, x.T),
                         lambda: [torch.randn(3, 4).as_subclass(Plain)]),
    "functional": (lambda x: F.softmax(F.gelu(F.layer_norm(x, (4,))), -1),
                   lambda: [torch.randn(3, 4).as_subclass(Plain)]),
    "made inside": (lambda x: ((x + 1).as_subclass(Plain) * 2, Plain(x), torch.Tensor._make_subclass(Plain, x * 3)),
                    lambda: [torch.randn(3, 4)]),
    "left inside": (lambda x: x.as_subclass(Plain).mul(2).as_subclass(torch.Tensor) + 1, lambda: [torch.randn(3, 4)]),
    "a name carried along": (lambda x, y: ((x + y).label, (x * y + x).sum(), x.shout(), y.initial),
                             lambda: [Named(torch.randn(3), "a"), Named(torch.randn(3), "b")]),
    "a named one made inside": (lambda x: Named(x * 2, "new") + 1, lambda: [torch.randn(3)]),
    "calls are counted": (lambda x: ((x + 1).sum(), dict(Counted.calls)),
                          lambda: Counted.calls.clear() or [torch.randn(3).as_subclass(Counted)]),
    "what is no tensor": (lambda d, x: torch.mm(d, x) + torch.matmul(x, d),
                          lambda: [Diagonal(3, 2.0), torch.randn(3, 3)]),
    "without a say": (lambda x: (x * 2, x.view(-1)), lambda: [torch.randn(3, 4).as_subclass(Quiet)]),
    "a class before its base": (lambda x, y: (torch.add(x, y), torch.add(y, x), torch.mul(x, y), x - y),
                                lambda: [torch.ones(3).as_subclass(Base), torch.ones(3).as_subclass(Derived)]),
    "a parameter of a class": (lambda x, w: (F.linear(x, w) * w.scale, w.twice, isinstance(w, torch.nn.Parameter)),
                               lambda: [torch.randn(2, 4), Scaled(torch.randn(3, 4), 0.5)]),
    "in place": (lambda x, y: (x.add_(1).mul_(y), x), lambda: [torch.randn(3).as_subclass(Plain), torch.randn(3)]),
    "a mode inside": (under_a_mode, lambda: [torch.randn(3)]),
    "modes in modes": (nested_modes, lambda: [torch.randn(3)]),
    "quantized by function": (lambda x, w, b: F.linear(x, w, b).relu(),
                              lambda: [torch.randn(5, 4), weights(QuantizedByFunction), torch.randn(6)]),
    "quantized by dispatch": (lambda x, w, b: F.linear(x, w, b).relu(),
                              lambda: [torch.randn(5, 4), weights(Quantized), torch.randn(6)]),
    "quantized in three dimensions": (lambda x, w: F.linear(x, w) + 1,
                                      lambda: [torch.randn(2, 5, 4), weights(Quantized)]),
    "quantized, other operators": (lambda x, w: (x @ w.t(), w.detach().dequantize(), w * 2, w.shape, w.dtype, w.device),
                                   lambda: [torch.randn(5, 4), weights(Quantized)]),
    "quantized module by dispatch": (lambda x: MLP[Quantized](x), lambda: [torch.randn(5, 4)]),
    "quantized module by function": (lambda x: MLP[QuantizedByFunction](x), lambda: [torch.randn(5, 4)]),
    "quantized inside": (lambda w, x: F.linear(x, Quantized.of(w)), lambda: [torch.randn(6, 4), torch.randn(5, 4)]),
    "gradient through quantized": (lambda x, w, b: F.linear(x * 2, w, b).relu(),
                                   lambda: [torch.randn(2, 5, 4, requires_grad=True), weights(Quantized),
                                            torch.randn(6, requires_grad=True)]),
    "gradient through a function": (lambda x, w: F.linear(x * 2, w).sum(),
                                    lambda: [torch.randn(5, 4, requires_grad=True), weights(QuantizedByFunction)]),
    "straight through": (lambda x, w: (F.linear(x.sin(), w) ** 2).sum(),
                         lambda: [torch.randn(5, 4, requires_grad=True), StraightThrough(torch.randn(6, 4), 3)]),
    "a pair": (lambda p: (p * 2 + 1).relu().sum(0), lambda: [pair(3, 4)]),
    "a pair and a tensor": (lambda p, x: F.softmax(p @ x, -1), lambda: [pair(3, 4), torch.randn(4, 5)]),
    "parts of a pair": (lambda p: (p.chunk(2), p.shape, p.a + 1), lambda: [pair(4, 3)]),
    "pairs made inside": (lambda x: (Pair(x, x + 1) * 2).b, lambda: [torch.randn(3)]),
    "a pair in place": (lambda p: p.add_(1).mul_(2), lambda: [pair(3)]),
    "a pair in a list": (lambda p, q: torch.cat([p, q]), lambda: [pair(2, 3), pair(4, 3)]),
    "pairs of pairs": (lambda p: (p + 1).sum(), lambda: [Pair(pair(3), pair(3))]),
    "flattened and back": (flattened_and_back, lambda: [pair(3)]),
}
BREAKS: frozenset = frozenset()
