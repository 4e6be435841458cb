"""Tensors of other classes: with ``__torch_function__`` of several kinds, with ``__torch_dispatch__`` around tensors
inside, parameters, objects that only torch functions take for tensors; and modes. They have attributes, are arguments
or made by the program, are mixed with plain tensors, changed in place and returned."""

from __future__ import annotations

from ..grammar import rules
from .theme import Theme

PRELUDE = """
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

class Sub(torch.Tensor):
    tag = 'none'
    def shout(self):
        return self.tag.upper()
    @property
    def twice(self):
        return self * 2

class Tagged(torch.Tensor):
    @staticmethod
    def __new__(cls, data, tag='t'):
        out = torch.Tensor._make_subclass(cls, data)
        out.tag = tag
        return out
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Tagged):
            out.tag = '+'.join([getattr(a, 'tag', '?') for a in args if isinstance(a, Tagged)])[:9]
        return out

class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        G_d['calls'] = G_d.get('calls', 0) + 1
        return super().__torch_function__(func, types, args, kwargs or {})

class Plainly(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return out + 1 if func in (torch.add, torch.Tensor.add) else out

class Quiet(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

class Two(torch.Tensor):
    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.size(), strides=a.stride(), storage_offset=a.storage_offset(), dtype=a.dtype, layout=a.layout,
            device=a.device, requires_grad=a.requires_grad)
    def __init__(self, a, b):
        self.a, self.b = a, b
    def __tensor_flatten__(self):
        return ['a', 'b'], None
    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Two(inner['a'], inner['b'])
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        one = func(*tree_map(lambda t: t.a if isinstance(t, Two) else t, args),
                   **tree_map(lambda t: t.a if isinstance(t, Two) else t, kwargs))
        two = func(*tree_map(lambda t: t.b if isinstance(t, Two) else t, args),
                   **tree_map(lambda t: t.b if isinstance(t, Two) else t, kwargs))
        if isinstance(one, torch.Tensor):
            return return_and_correct_aliasing(func, args, kwargs, Two(one, two))
        if isinstance(one, (tuple, list)):
            return type(one)([Two(p, q) if isinstance(p, torch.Tensor) else p for p, q in zip(one, two)])
        return one
    def __repr__(self):
        return f'Two({self.a}, {self.b})'

class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)
    def __init__(self, data, scale):
        self.data_int, self.scale = data, scale
    def __tensor_flatten__(self):
        return ['data_int'], self.scale
    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner['data_int'], context)
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        full = lambda t: t.data_int.float() * t.scale if isinstance(t, Scaled) else t
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return return_and_correct_aliasing(func, args, kwargs, cls(func(args[0].data_int), args[0].scale))
        return func(*tree_map(full, args), **tree_map(full, kwargs or {}))
    def __repr__(self):
        return f'Scaled({self.data_int}, {self.scale})'

class Weight(torch.nn.Parameter):
    def __new__(cls, data, scale=1):
        return super().__new__(cls, data, requires_grad=False)
    def __init__(self, data, scale=1):
        self.scale = scale
    @property
    def scaled(self):
        return self * self.scale

class Like:
    def __init__(self, x, n=1):
        self.x, self.n = x, n
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in (torch.add, torch.mul, torch.sin, torch.sum):
            return NotImplemented
        args = [a.x * a.n if isinstance(a, Like) else a for a in args]
        return Like(func(*args, **(kwargs or {})), 2)

class Noting(TorchFunctionMode):
    def __init__(self, log):
        super().__init__()
        self.log = log
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append(getattr(func, '__name__', '?'))
        return func(*args, **(kwargs or {}))

class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func in (torch.sum, torch.Tensor.sum) else out

def sub(x, tag='s'):
    out = x.as_subclass(Sub)
    out.tag = tag
    return out

def floats(x):
    return x.detach().float().clone()
"""

MAKE = ["sub({})", "sub({}, 'x')", "Tagged({})", "Tagged({}, 'u')", "{}.as_subclass(Counting)", "{}.as_subclass(Quiet)",
        "{}.as_subclass(Plainly)", "Two({}, {} * 2)", "Scaled({}.to(torch.int8), 0.5)", "Weight({})", "Weight({}, 3)",
        "torch.nn.Parameter({})"]
SUBS = [("<sub.name>", 8.0)]
SUBS += [(make.format(of, of), weight / 3) for make, weight in zip(MAKE, (3, 1, 3, 1, 3, 1, 2, 5, 3, 3, 2, 2))
         for of in ("torch.arange(3.0)", "floats(<tensor>)", "torch.arange(6.0).view(2, 3)")]

EXPRESSIONS = {
    "sub": SUBS + rules("""
        <sub> + <tensor>
        <sub> + <sub>
        <sub> * <int>
        <tensor> * <sub>
        <sub>.sin()
        <sub>[1:]
        <sub>.clone()
        <sub>.detach()
        <sub>.view(-1)
        <sub>.sum(0)
        torch.add(<sub>, <int>)
        torch.where(<sub> > 1.3, <sub>, 0.5)
        torch.nn.functional.relu(<sub>)
        """),
    "tensor": rules("""
        <sub> | 9
        <sub>.sum() | 2
        <sub>.sin() + <tensor>
        <tensor>.float() * <sub>
        <sub>.t()
        <sub>.as_subclass(torch.Tensor)
        torch.Tensor.as_subclass(<tensor>, Sub)
        sub(<tensor>).twice
        Tagged(floats(<tensor>)).sum()
        Two(torch.ones(3), torch.arange(3.0)).a
        Two(floats(<tensor>), torch.ones(())).a | 0.3
        Scaled(torch.ones(3, dtype=torch.int8), <int>) * <tensor>
        Weight(torch.ones(3), <int>).scaled
        torch.add(Like(<tensor>, <int>), <tensor>).x
        torch.sin(Like(<tensor>)).x
        torch.cat([<sub>.reshape(-1), <tensor>.float().reshape(-1)])[:4]
        torch.stack([<sub>, <sub>]).sum(0)
        torch.nn.functional.linear(torch.ones(2, 3), Scaled(torch.ones(4, 3, dtype=torch.int8), 0.5))
        torch.zeros_like(<sub>)
        <sub>.new_ones(3)
        torch.split(<sub>, 2)[0]
        <sub>.max(0).values
        """),
    "str": rules("""
        type(<sub>).__name__ | 3
        getattr(<sub>, 'tag', '') | 2
        <sub.name>.tag | 1
        sub(<tensor>, <str>).shout()
        """),
    "int": rules("""
        <sub>.shape[0]
        <sub>.numel()
        len(<sub>)
        getattr(<sub>, 'scale', <int>)
        G_d.get('calls', 0)
        """),
    "bool": rules("""
        isinstance(<tensor>, Sub)
        isinstance(<sub>, (Two, Tagged))
        isinstance(<sub>, torch.nn.Parameter)
        type(<sub>) is torch.Tensor
        type(<sub> + 1) is Two
        hasattr(<sub>, 'tag')
        <sub>.requires_grad
        torch.is_tensor(<sub>)
        """),
    "any": [("<sub>", 1.0)],
}

STATEMENTS = [
    ("<sub.new> = <sub>", 7),
    ("<sub.new> = <sub.name> * <int>", 1), ("<sub.name>.add_(<int>)", 1.5), ("<sub.name>.mul_(<tensor>)", 0.7),
    ("<sub.name> += <int>", 0.7), ("<sub.name>[0] = <int>", 0.7), ("<sub.name>.zero_()", 0.4),
    ("<sub.name>.tag = <str>", 1), ("<sub.name>.extra = <any>", 0.7), ("log.append(<sub.name>.extra)", 0.3),
    ("del <sub.name>.tag", 0.2), ("<sub.name>.view(-1)[1:].add_(1)", 0.4),
    ("log.append(type(<sub>).__name__)", 1), ("log.append(<sub>)", 1.5), ("<sub.name>.copy_(<tensor>)", 0.4),
    ("log.append((<sub>.sum(), getattr(<sub.name>, 'tag', None)))", 1),
    ("<tensor.name>.add_(<sub>)", 0.5), ("<tensor.name>.copy_(<sub>)", 0.4), ("<obj>.x = <sub>", 0.5),
    ("<list.new>, <sub.new> = [<int>], <sub>", 0.5), ("<dict.name>['t'] = <sub>", 0.5),
    ("with Noting(log):\n<block>", 1.5), ("with Doubling():\n<block>", 1.5),
    ("with Doubling(), Noting(log):\n    <tensor.new> = <tensor.name>.sum() + torch.sum(<sub>)\n<block>", 1),
    ("with torch._C.DisableTorchFunctionSubclass():\n<block>", 0.5),
    ("for <sub.new> in (<sub>, <sub>):\n<loop>", 0.7), ("for <tensor.new> in <sub>[:2]:\n<loop>", 0.4),
    ("<sub.new> = Two(torch.ones(3), torch.arange(3.0))\n<sub.name>.a.add_(<int>)\nlog.append(<sub.name> * 2)", 0.7),
    ("p_<#> = Sub([1.0, 2.0]).requires_grad_()\n(p_<#> * <int>).sum().backward()\nlog.append(p_<#>.grad)", 0.5),
    ("p_<#> = torch.nn.Parameter(torch.ones(3))\n(p_<#> * <tensor>).sum().backward()\nlog.append(p_<#>.grad)", 0.4),
]

ARGUMENTS = ("sub(torch.arange(3.0))", "Tagged(torch.arange(3.0), 'arg')", "torch.ones(3).as_subclass(Counting)",
             "Two(torch.arange(3.0), torch.ones(3))", "Two(torch.arange(6.0).view(2, 3), torch.ones(2, 3))",
             "Scaled(torch.ones(3, dtype=torch.int8), 0.5)", "Weight(torch.arange(3.0), 2)",
             "torch.arange(6.0).view(3, 2).t().as_subclass(Plainly)", "torch.nn.Parameter(torch.ones(3))",
             "sub(torch.arange(3.0, requires_grad=True))", "Two(torch.ones(3, requires_grad=True), torch.ones(3))")
THEME = Theme(PRELUDE, EXPRESSIONS, STATEMENTS, ARGUMENTS, inner=False)
