"""What a program's classes, functions, modules and libraries are made to be after a capture: on the default backend,
after every change, eager's results."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from frame_harness import changes_in_order

import jit
from jit import config

BACKEND = "jit"
# A class to which __getitem__ was given has another slot for ever, which PyTorch's own indexing looks at
APART = ("tensor operators",)
CHANGES = {
    # who is an instance of what
    "abstract class": ("import abc\nclass B(abc.ABC): pass\nclass A: pass\n"
                       "a=A()\ndef f(x): return x*(2 if isinstance(a,B) else 3), issubclass(A,B), isinstance(5,B)",
                       ["B.register(A)", "B.register(int)", "a=5"]),
    "collections.abc": ("import collections.abc as c\n"
                        "class A: pass\na=A()\ndef f(x): return x*isinstance(a,c.Sized), isinstance(a,c.Sequence)",
                        ["c.Sequence.register(A)", "class A:\n  def __len__(s): return 3\na=A()"]),
    "subclasshook": ("import abc\nclass B(abc.ABC):\n"
                     "  @classmethod\n  def __subclasshook__(c,k): return True if hasattr(k,'go') else NotImplemented\n"
                     "class A: pass\na=A()\n" "def f(x): return x*isinstance(a,B)",
                     ["A.go=1", "class C: go=1\na=C()", "B.__subclasshook__=classmethod(lambda c,k: False)",
                      "class D: go=2\na=D()"]),
    "instancecheck": ("class M(type):\n  def __instancecheck__(c,o): return getattr(o,'k',0)>1\n"
                      "class P(metaclass=M): pass\n"
                      "class A: k=1\na=A()\ndef f(x): return x*isinstance(a,P), isinstance(x,P)",
                      ["A.k=2", "a.k=0", "M.__instancecheck__=lambda c,o: True", "del M.__instancecheck__",
                       "M.__instancecheck__=lambda c,o: hasattr(o,'shape')"]),
    "subclasscheck": ("class M(type):\n  def __subclasscheck__(c,o): return o.__name__ in c.names\n"
                      "class P(metaclass=M): names=['A']\nclass A: pass\nclass B: pass\n"
                      "def f(x): return x*issubclass(A,P), issubclass(B,(int,P))",
                      ["P.names.append('B')", "P.names=[]", "M.__subclasscheck__=lambda c,o: 7"]),
    "super in a metaclass": ("class M(type):\n"
                             "  def __instancecheck__(c,o): return super().__instancecheck__(o) or c.more\n"
                             "class P(metaclass=M): more=False\nclass Q(P): pass\nq=Q()\n"
                             "def f(x): return x*isinstance(q,P), isinstance(5,P)",
                             ["P.more=True", "Q.__bases__=(object,) if False else (P,)", "q=5"]),
    "bases": ("class A: v=1\nclass B: v=2\nclass C(A): pass\nc=C()\ndef f(x):\n"
              "  try: raise E()\n  except F: k=1\n  except Exception: k=2\n  return x*(c.v+isinstance(c,B)*10+k*100)\n"
              "class F(Exception): pass\nclass G(Exception): pass\nclass E(F): pass",
              ["C.__bases__=(B,)", "E.__bases__=(G,)", "C.__bases__=(A,B)", "E.__bases__=(F,)"]),
    "match": ("import collections.abc as c\n"
              "class A:\n  def __len__(s): return 2\n  def __getitem__(s,i): return i+1\na=A()\n"
              "def f(x):\n  match a:\n    case [p,q]: return x*p+q\n    case _: return x", ["c.Sequence.register(A)"]),
    "class of": ("class A: k=1\n"
                 "class B(A): k=2\na=A()\ndef f(x): return x*a.k, isinstance(a,B), type(a).__name__, a.__class__.k",
                 ["a.__class__=B", "a.__class__=A", "B.k=7", "A.__name__='Z'"]),
    "union": ("a=5\nK=int|str\ndef f(x): return x*isinstance(a,K), isinstance(a,(K,list))",
              ["a='t'", "K=float|None", "a=None", "K=(int,list)"]),
    "tensor types": ("def f(x): return x*2, isinstance(x,torch.FloatTensor), isinstance(x,torch.DoubleTensor), "
                     "isinstance(x,torch.Tensor), isinstance(x*2,torch.nn.Parameter), "
                     "isinstance(x.double(),torch.DoubleTensor)", ["X=X.double()", "X=torch.nn.Parameter(X)"]),
    "protocol": ("import typing\n"
                 "@typing.runtime_checkable\nclass P(typing.Protocol):\n  def go(self): ...\nclass A: pass\n"
                 "a=A()\ndef f(x): return x*isinstance(a,P)", ["a.go=1", "a=5", "class B:\n  def go(s): pass\na=B()"]),
    # attributes
    "metaclass attribute": ("class M(type): v=2\nclass A(metaclass=M): pass\ndef f(x): return x*A.v",
                            ["M.v=3", "M.v=4; A.v=5", "M.v=property(lambda c: 9)", "M.v=7"]),
    "metaclass getattr": ("class M(type):\n  def __getattr__(c,n): return 4\nclass A(metaclass=M): pass\n"
                          "def f(x): return x*A.v", ["M.__getattr__=lambda c,n: 6", "A.v=2", "M.v=3"]),
    "data descriptor later": ("class A: pass\na=A(); a.v=2\n"
                              "class D:\n  def __get__(s,o,c): return 7\nclass E(D):\n  def __set__(s,o,v): pass\n"
                              "def f(x): return x*a.v", ["A.v=D()", "A.v=E()", "E.__get__=lambda s,o,c: 8", "A.v=5",
                                                         "D.__set__=lambda s,o,v: 0", "A.v=D()"]),
    "descriptor on a base": ("class B: pass\nclass A(B): pass\na=A(); a.__dict__['v']=2\ndef f(x): return x*a.v",
                             ["B.v=property(lambda s: 9)", "B.v=5", "A.v=property(lambda s: 4)", "A.v=1"]),
    "getattr later": ("class A: pass\na=A()\ndef f(x): return x*getattr(a,'v',2)",
                      ["A.__getattr__=lambda s,n: 5", "a.v=7", "A.__getattribute__=lambda s,n: 9"]),
    "property": ("class A:\n  n=2\n  @property\n  def k(s): return s.n\na=A()\ndef f(x): return x*a.k",
                 ["A.k=property(lambda s: 5)",
                  "A.k=A.__dict__['k'].getter(lambda s: 6) if isinstance(A.__dict__['k'],property) else 1", "A.k=4"]),
    "slots": ("class A: __slots__=('k','j')\na=A(); a.k=2\ndef f(x): return x*a.k, hasattr(a,'j')",
              ["a.k=3", "a.j=1", "A.k=property(lambda s: 5)"]),
    "one dict": ("class A: pass\na,b=A(),A(); a.v=1; b.v=2\ndef f(x):\n  a.v=a.v+5\n  return x*b.v",
                 ["b.__dict__=a.__dict__", "b.__dict__={'v': 3}", "a.v=2"]),
    "one dict of two classes": ("class A: pass\nclass B: pass\na,b=A(),B(); a.v=1; b.__dict__=a.__dict__\n"
                                "def f(x):\n  a.v=a.v+5\n  b.w=a.v\n  return x*b.v*a.w, sorted(vars(a))",
                                ["a.v=2", "b.v=7"]),
    "dict of an object": ("class A: pass\na=A(); a.v=1; d=a.__dict__\ndef f(x):\n  a.v=a.v+5\n  return x*d['v']",
                          ["a.v=2", "d['v']=3", "d=dict(v=1)"]),
    "super past a class": ("class A:\n  def k(s): return 1\nclass B(A): pass\n"
                           "class C(B):\n  def k(s): return super().k()+1\nc=C()\ndef f(x): return x*c.k()",
                           ["B.k=lambda s: 9", "A.k=lambda s: 5", "C.__bases__=(A,)", "C.__bases__=(B,)"]),
    "dir": ("class A: k=1\ndef f(x): return x, 'k' in dir(A), 'z' in dir(A)", ["A.z=1", "A=type('A',(A,),{})"]),
    # special methods
    "radd": ("class A: pass\na=A()\ndef f(x):\n  try: return x+a\n  except TypeError as e: return str(e)",
             ["A.__radd__=lambda s,o: o*2", "A.__radd__=lambda s,o: o*3", "del A.__radd__"][:2]),
    "eq": ("class A: pass\na,b=A(),A()\ndef f(x): return x*(2 if a==b else 3), a in [b]",
           ["A.__eq__=lambda s,o: True", "A.__eq__=lambda s,o: NotImplemented"]),
    "call": ("class A:\n  def __call__(s,x): return x*2\na=A()\ndef f(x): return a(x)",
             ["A.__call__=lambda s,x: x*3", "a.__call__=lambda x: x*9"]),
    "len and bool": ("class A: pass\na=A()\ndef f(x): return x*(2 if a else 3)",
                     ["A.__len__=lambda s: 0", "A.__bool__=lambda s: True", "A.__bool__=lambda s: False"]),
    "iter": ("class A:\n  def __iter__(s): return iter([1,2])\na=A()\ndef f(x): return x*sum(a)",
             ["A.__iter__=lambda s: iter([5])", "A.__getitem__=lambda s,i: [1][i]"]),
    "init and new": ("class A:\n  def __init__(s): s.v=2\ndef f(x): return x*A().v",
                     ["A.__init__=lambda s: setattr(s,'v',3)", "A.__new__=lambda c: type('Z',(),{'v':8})()"]),
    "hash": ("class A: pass\na=A(); d={a: 2}\ndef f(x): return x*d[a], a in {a}",
             ["d[a]=3", "A.__hash__=lambda s: 7; d={a: 4}"]),
    "enter": ("class A:\n  def __enter__(s): return 2\n  def __exit__(s,*a): return True\n"
              "a=A()\ndef f(x):\n  with a as k: x=x*k\n  return x", ["A.__enter__=lambda s: 5"]),
    "format": ("class A: pass\na=A()\nA.__repr__=lambda s: 'r'\ndef f(x): return x, f'{a!r}', str(a)",
               ["A.__repr__=lambda s: 'q'", "A.__str__=lambda s: 's'"]),
    "init_subclass": ("class A:\n  n=[]\n  def __init_subclass__(c): A.n.append(1)\ndef f(x): return x*len(A.n)",
                      ["class B(A): pass", "A.__init_subclass__=classmethod(lambda c: A.n.extend([1,2]))",
                       "class C(A): pass"]),
    # functions
    "code": ("def g(x,k=2,*,m=3): return x*k+m\ndef h(x,k=2,*,m=3): return x-k\ndef f(x): return g(x)",
             ["g.__code__=h.__code__", "g.__defaults__=(7,)", "g.__kwdefaults__={'m':1}", "g.__kwdefaults__['m']=5"]),
    "own code": ("def f(x,k=2): return x*k\ndef h(x,k=2): return x-k",
                 ["f.__defaults__=(5,)", "f.__code__=h.__code__"]),
    "method code": ("class A:\n  def go(s,x): return x*2\na=A()\nm=a.go\ndef f(x): return a.go(x)+m(x)",
                    ["A.go.__code__=(lambda s,x: x*5).__code__", "A.go=lambda s,x: x*7"]),
    "static and class methods": ("class A:\n  k=3\n  @staticmethod\n  def s(x): return x*2\n  @classmethod\n"
                                 "  def c(cls,x): return x*cls.k\na=A()\ndef f(x): return a.s(x)+A.c(x)",
                                 ["A.s=staticmethod(lambda x: x*4)", "A.c=classmethod(lambda c,x: x)", "A.k=9",
                                  "A.s.__code__=(lambda x: x*8).__code__"]),
    "partial": ("import functools\ng=functools.partial(lambda x,a,k=1: x*a*k, a=3)\ndef f(x): return g(x)",
                ["g.keywords['k']=5", "g.keywords['a']=2", "g=functools.partial(lambda x: x-1)"]),
    "singledispatch": ("import functools\n@functools.singledispatch\n"
                       "def g(v,x): return x\n@g.register(int)\ndef _(v,x): return x+1\nclass A: pass\n"
                       "class B(A): pass\nb=B()\ndef f(x): return g(2,x)*g('a',x)+g(b,x)",
                       ["g.register(str,lambda v,x: x*3)", "g.register(A,lambda v,x: x*5)",
                        "g.register(bool,lambda v,x: x*9)", "B.__bases__=(A,) if 1 else ()"]),
    "annotations and names": ("def g(): pass\n"
                              "def f(x): return x, g.__name__, g.__doc__, g.__annotations__, g.__module__",
                              ["g.__name__='z'", "g.__doc__='d'", "g.__annotations__['a']=1", "g.__qualname__='q'"]),
    # modules and builtins
    "sys.modules": ("import sys, types\n"
                    "sys.modules['late_m']=types.SimpleNamespace(k=2)\ndef f(x):\n  import late_m\n  return x*late_m.k",
                    ["sys.modules['late_m']=types.SimpleNamespace(k=5)", "sys.modules['late_m'].k=7"]),
    "package": ("import sys, types\n"
                "P=types.ModuleType('late_p'); S=types.ModuleType('late_p.s'); P.__path__=[]; P.s=S; S.k=2\n"
                "sys.modules['late_p']=P; sys.modules['late_p.s']=S\n" "def f(x):\n"
                "  import late_p.s\n  from late_p import s\n  import late_p.s as t\n  return x*late_p.s.k*s.k*t.k",
                ["P.s=types.SimpleNamespace(k=5); sys.modules['late_p']=P; sys.modules['late_p.s']=S",
                 "S.k=3; sys.modules['late_p']=P; sys.modules['late_p.s']=S",
                 "sys.modules['late_p']=P; sys.modules['late_p.s']=types.SimpleNamespace(k=7)"]),
    "module attribute": ("import types\nm=types.ModuleType('m'); m.k=2\ndef f(x): return x*getattr(m,'k',3)",
                         ["m.__dict__.pop('k',0)", "m.__dict__['k']=5", "m.__getattr__=lambda n: 8",
                          "m.__class__=type('M',(types.ModuleType,),{'k': property(lambda s: 11)})"]),
    "builtins": ("import builtins\ndef f(x): return x*len([1,2])*abs(-3)",
                 ["len=lambda v: 5", "globals().pop('len',0)", "abs=lambda v: 9"]),
    "torch functions": ("import torch.nn.functional as F\n"
                        "O=[F.relu, torch.exp]\ndef f(x): return F.relu(x)+torch.exp(x)",
                        ["F.relu=lambda x: x*7", "F.relu,torch.exp=O", "torch.exp=lambda x: x", "F.relu,torch.exp=O"]),
    # PyTorch's own classes
    "tensor method": ("O=torch.Tensor.__dict__.get('relu')\n"
                      "def back():\n  if 'relu' in torch.Tensor.__dict__: del torch.Tensor.relu\n"
                      "def f(x): return x.relu()+getattr(x,'late_k',1)",
                      ["torch.Tensor.relu=lambda s: s*7", "back()", "torch.Tensor.late_k=3",
                       "torch.Tensor.relu=torch.Tensor.sigmoid", "back()", "del torch.Tensor.late_k"][:5]
                      + ["back(); hasattr(torch.Tensor,'late_k') and delattr(torch.Tensor,'late_k')"]),
    "tensor operators": ("O={n: torch.Tensor.__dict__.get(n) for n "
                         "in ('__add__','__getitem__','__eq__','__neg__','__len__')}\n"
                         "def back():\n  for n,o in O.items():\n    if o is not None: setattr(torch.Tensor,n,o)\n"
                         "    elif n in torch.Tensor.__dict__: delattr(torch.Tensor,n)\n"
                         "def f(x):\n  y=x+1\n  return y, x[0], -x, len(x)",
                         ["torch.Tensor.__add__=lambda s,o: s*o*5", "back()", "torch.Tensor.__getitem__=lambda s,i: 9",
                          "back()", "torch.Tensor.__neg__=lambda s: 4", "torch.Tensor.__len__=lambda s: 77", "back()"]),
    "tensor properties": ("def back():\n"
                          "  for n in ('late_p',):\n    if n in torch.Tensor.__dict__: delattr(torch.Tensor,n)\n"
                          "def f(x): return x*x.shape[0], hasattr(x,'late_p')",
                          ["torch.Tensor.late_p=property(lambda s: 3)", "back()", "X.late_p=5"]),
    "parameter class": ("w=torch.nn.Parameter(torch.ones(3))\n"
                        "def back():\n  if 'late_q' in torch.nn.Parameter.__dict__: del torch.nn.Parameter.late_q\n"
                        "def f(x): return x*w*getattr(w,'late_q',2)",
                        ["torch.nn.Parameter.late_q=3", "back()", "w.__dict__['late_q']=4",
                         "torch.nn.Parameter.late_q=property(lambda s: 7)", "back()"]),
    # containers of standard kinds
    "enum": ("import enum\nclass E(enum.Enum):\n  A=1\n  B=2\n  @property\n  def k(s): return s.value*2\n"
             "e=E.A\ndef f(x): return x*e.k*len(E), e is E.A", ["e=E.B", "E.k=property(lambda s: 5)", "E.A._value_=9"]),
    "dataclass": ("import dataclasses\n@dataclasses.dataclass\nclass D:\n  a: int=1\n  b: int=2\n"
                  "d=D()\ndef f(x): return x*d.a+D().b, d==D(), [k.name for k in dataclasses.fields(d)]",
                  ["D.b=5", "d.a=3", "D.__init__.__defaults__=(7,8)", "D.__eq__=lambda s,o: True"]),
    "namedtuple": ("T=collections.namedtuple('T','a b')\nt=T(1,2)\ndef f(x): return x*t.a, t._fields",
                   ["T.a=property(lambda s: 9)", "t=T(4,5)", "T._fields=('z',)"]),
}
MODULES = ("from torch import nn\nclass M(nn.Module):\n  def __init__(s):\n"
           "    super().__init__()\n    s.l=nn.Linear(3,3); s.register_buffer('b',torch.ones(3)); s.d=nn.Dropout(0.)\n"
           "    nn.init.constant_(s.l.weight,.5)\n    nn.init.constant_(s.l.bias,1.)\n"
           "  def forward(s,x): return s.d(s.l(x))*s.b, s.training\nm=M()\ndef f(x): return m(x)\n")
CHANGES |= {
    "forward hook": (MODULES,
                     ["h=m.l.register_forward_hook(lambda m,i,o: o*3)", "'h' in globals() and h.remove()",
                      "g=m.register_forward_pre_hook(lambda m,i: (i[0]+1,))", "g.remove() if 'g' in globals() else 0"]),
    "global hook": (MODULES, ["h=nn.modules.module.register_module_forward_hook(lambda m,i,o: o)",
                              "'h' in globals() and h.remove()",
                              "g=nn.modules.module.register_module_forward_pre_hook(lambda m,i: (i[0]*2,))",
                              "'g' in globals() and g.remove()",
                              "'h' in globals() and h.remove(); 'g' in globals() and g.remove()"]),
    "buffers": (MODULES, ["m.b=torch.full((3,),4.)",
                          "m._buffers['b']=torch.full((3,),2.); m._non_persistent_buffers_set.add('b')",
                          "del m.b; m.b=torch.zeros(3)", "del m.b; m.b=3"][:3]),
    "parameters": (MODULES,
                   ["m.l.weight=nn.Parameter(torch.ones(3,3))", "m.l.bias=None", "m.l.bias=nn.Parameter(torch.ones(3))",
                    "m.l.weight.requires_grad_(False)", "m.l.weight.data.mul_(2)"]),
    "modes": (MODULES, ["m.eval()", "m.train()", "m.d.p=.0; m.l.eval()"]),
    "dtype": (MODULES, ["m.double(); X=X.double()", "m.float()", "m.half(); X=X.half()", "m.float()"]),
    "submodules": (MODULES, ["m.l=nn.Identity()", "m.l=nn.Sequential(nn.ReLU(),nn.Identity())",
                             "m.l.append(nn.Hardtanh()) if hasattr(m.l,'append') else 0", "m.d=nn.ReLU()"]),
    "methods of modules": (MODULES, ["M.forward=lambda s,x: x*5", "m.forward=lambda x: x*7", "nn.Linear.late=1",
                                     "M.__call__=lambda s,x: x*9"]),
    "linear's forward": (MODULES + "O=nn.Linear.forward\n",
                         ["nn.Linear.forward=lambda s,x: x*5", "nn.Linear.forward=O", "nn.Linear.forward=O"]),
    "parametrization": (MODULES + "import torch.nn.utils.parametrize as P\n"
                                  "class Twice(nn.Module):\n  def forward(s,w): return w*2\n",
                        ["P.is_parametrized(m.l) or P.register_parametrization(m.l,'weight',Twice())",
                         "P.is_parametrized(m.l) and P.remove_parametrizations(m.l,'weight')"]),
}


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in APART])
def test_changes(name):
    run(name)


@pytest.mark.parametrize("name", APART)
def test_changes_in_a_process_of_its_own(name):
    here = Path(__file__).parent
    program = (f"import sys; sys.path[:0] = {[str(here), str(here.parent)]!r}; import test_frame_late_changes "
               f"as t; t.run({name!r})")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def run(name):
    text, changes = CHANGES[name]
    hooks = [v for k, v in vars(torch.nn.modules.module).items() if k.startswith("_global_") and isinstance(v, dict)]
    try:
        with config.patch(cache_limit=64):
            changes_in_order(text, changes, steps=6, backend=BACKEND)
    finally:
        for table in hooks:
            table.clear()


def test_entries_that_are_set_for_a_while():
    """Of a dict's entry the last value is what is left, and where others may look at it, each."""
    seen = []

    def fn(d, x, last):
        before = d["a"]
        d["a"] = x * 2
        y = d["a"] + 1
        d["a"] = x * 3
        if last == "other":
            d["a"] = y
        elif last == "before":
            d["a"] = before
        elif last == "seen":
            seen.append(d)
            d["a"] = before
        elif last == "new":
            d["b"] = x
            d["a"] = before
        return y

    for last in ("other", "before", "seen", "new", "none"):
        found = []
        for run in (fn, jit.compile(fn)):
            d = {"a": torch.ones(2), "z": 1}
            first = d["a"]
            for _ in range(2):
                y = run(d, torch.arange(2.0), last)
            found.append((y, d["a"], d["a"] is first, list(d)))
        (y, a, same, keys), (y2, a2, same2, keys2) = found
        assert torch.equal(y, y2) and torch.equal(a, a2) and same == same2 and keys == keys2
    assert len(seen) == 4
