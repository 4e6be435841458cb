"""As test_frame_guard_sequences.py: what classes, functions and modules are made of, changed in a random order."""

import pytest
from frame_harness import changes_in_order

import jit

CHANGES = {
    "class counter": (
        "class A: n=0\n"
        "def f(x): return x*A.n",
        ["A.n=1", "A.n=2", "A.n+=1", "A.n=torch.ones(3)", "A.n=2.5"]),
    "class tensor state": (
        "class A: t=torch.zeros(3)\n"
        "def f(x):\n"
        "  A.t=A.t+x\n"
        "  return A.t*2",
        ["A.t=torch.ones(3)", "A.t=5"]),
    "type(self) state": (
        "class A:\n"
        "  n=0\n"
        "  def go(s,x):\n"
        "    type(s).n+=1\n"
        "    return x*s.n\n"
        "a=A()\n"
        "def f(x): return a.go(x)",
        ['A.n=7', 'a.n=3', "a.__dict__.pop('n',0)"]),
    "function attr state": (
        'def f(x):\n'
        "  f.n=getattr(f,'n',0)+1\n"
        '  return x*f.n',
        ["f.n=5", "f.n=2.0", "f.__dict__.clear()"]),
    "mutable default": (
        "def g(x,acc=[]):\n"
        "  acc.append(1)\n"
        "  return x*len(acc)\n"
        "def f(x): return g(x)",
        ["g.__defaults__=([1,2],)", "g.__defaults__[0].clear()"]),
    "mutable default dict": (
        'def g(x,acc={}):\n'
        "  acc['n']=acc.get('n',0)+1\n"
        "  return x*acc['n']\n"
        'def f(x): return g(x)',
        ['g.__defaults__=({},)', "g.__defaults__[0]['n']=7"]),
    "lru_cache": (
        "import functools\n"
        "@functools.lru_cache\n"
        "def g(k): return k*2\n"
        "def f(x): return x*g(3)",
        ["getattr(g,'cache_clear',int)()", 'g=lambda k:9']),
    "cached property": (
        "import functools\n"
        "class A:\n"
        "  k=1\n"
        "  @functools.cached_property\n"
        "  def p(s): return s.k*2\n"
        "a=A()\n"
        "def f(x): return x*a.p",
        ['a.k=5', "a.__dict__.pop('p',0)", 'a.p=9', 'a=A()']),
    "metaclass": (
        "class M(type):\n"
        "  def __getattr__(c,n): return 4\n"
        "class A(metaclass=M): pass\n"
        "def f(x): return x*A.zz",
        ["A.zz=3", "M.zz=5", "M.__getattr__=lambda c,n:6"]),
    "metaclass call": (
        "class M(type):\n"
        "  def __call__(c,*a): return type.__call__(c,*a)\n"
        "class A(metaclass=M):\n"
        "  def __init__(s,v): s.v=v\n"
        "def f(x): return x*A(2).v",
        ['M.__call__=lambda c,*a: type.__call__(c,7)', "A.__init__=lambda s,v:setattr(s,'v',v+1)"]),
    "new": (
        "class A:\n"
        "  def __new__(c,v):\n"
        "    o=object.__new__(c); o.w=v; return o\n"
        "def f(x): return x*A(2).w",
        ["A.__new__=staticmethod(lambda c,v: type('o',(),{'w':9})())", 'A.__init__=lambda s,v: None']),
    "descriptor": (
        "class D:\n"
        "  def __get__(s,o,c): return 3\n"
        "class A: d=D()\n"
        "a=A()\n"
        "def f(x): return x*a.d",
        ['D.__get__=lambda s,o,c:4', "a.__dict__['d']=5", 'D.__set__=lambda s,o,v:None', 'A.d=9']),
    "set_name descr": (
        'class D:\n'
        "  def __get__(s,o,c): return o.__dict__.get('q',1)\n"
        "  def __set__(s,o,v): o.__dict__['q']=v*2\n"
        'class A: d=D()\n'
        'a=A()\n'
        'def f(x):\n'
        '  a.d=a.d+1\n'
        '  return x*a.d',
        ["a.q=5", "a=A()", "D.__set__=lambda s,o,v:o.__dict__.update(q=v)"]),
    "module getattr": (
        'import types as T\n'
        "m=T.ModuleType('m'); m.__getattr__=lambda n: 3\n"
        'def f(x): return x*m.zz',
        ['m.zz=5', 'm.__getattr__=lambda n:8', "m.__dict__.pop('zz',0)"]),
    "module attr tensor": (
        'import types as T\n'
        "m=T.ModuleType('m'); m.t=torch.ones(3)\n"
        'def f(x):\n'
        '  m.t=m.t+1\n'
        '  return x*m.t',
        ["m.t=torch.zeros(3)", "m.t=4"]),
    "dict replaced": (
        "class A: pass\n"
        "a=A(); a.k=1\n"
        "def f(x): return x*a.k",
        ["a.__dict__={'k':4}", "a.__dict__={'k':5,'j':1}", 'a.k=6']),
    "bases": (
        "class XX: k=1\n"
        "class Y: k=2\n"
        "class A(XX): pass\n"
        "a=A()\n"
        "def f(x): return x*a.k*A.k",
        ["A.__bases__=(Y,)", "A.__bases__=(XX,)", "A.__bases__=(XX,Y)", "XX.k=5"]),
    "name of class": (
        "class A: pass\n"
        "a=A()\n"
        "def f(x): return x, type(a).__name__, A.__qualname__, A.__module__",
        ["A.__name__='Z'", "A.__qualname__='Q'", "A.__module__='w'"]),
    "fn names": (
        "def g(): pass\n"
        "def f(x): return x, g.__name__, g.__qualname__, g.__doc__",
        ["g.__name__='z'", "g.__doc__='d'", "g.__qualname__='q'"]),
    "annotations": (
        "class A:\n"
        "  a:int=1\n"
        "def f(x): return x, list(A.__annotations__)",
        ["A.__annotations__['b']=int", 'A.__annotations__={}']),
    "grad mode": (
        "w=torch.ones(3,requires_grad=True)\n"
        "def f(x): return x*w, torch.is_grad_enabled()",
        ["torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"]),
    "requires grad flips": (
        "w=torch.ones(3)\n"
        "def f(x): return x*w",
        ["w.requires_grad_(True)", "w.requires_grad_(False)"]),
    "grad of param": (
        "w=torch.ones(3,requires_grad=True)\n"
        "def f(x): return x if w.grad is None else x*w.grad",
        ["w.grad=torch.ones(3)", "w.grad=torch.full((3,),4.)", "w.grad=None",
         "w.grad.add_(1) if w.grad is not None else 0"]),
    "data swapped": (
        "w=torch.ones(3)\n"
        "def f(x): return x*w",
        ["w.data=torch.full((3,),3.)", "w.data=torch.ones(1)",
         "w.data=torch.ones(3,dtype=torch.float64)", "w.set_(torch.ones(3, dtype=w.dtype))", "w.resize_(1).fill_(2)"]),
    "strides change": (
        "w=torch.ones(3,3)\n"
        "def f(x): return w.view(9)*1 if w.is_contiguous() else w*x",
        ["w.t_()", "w=torch.ones(3,6)[:,::2]", "w=torch.ones(3,3)"]),
    "storage offset": (
        "b=torch.arange(9.); w=b[:3]\n"
        "def f(x): return w.storage_offset(), x*w",
        ["w=b[3:6]", "w=b[:3]", "w=b[6:]"]),
    "eval mode": (
        "m=torch.nn.Dropout(1.0)\n"
        "def f(x): return m(x)",
        ["m.eval()", "m.train()", "m.p=0.0", "m.p=1.0"]),
    "hooks order": (
        "m=torch.nn.Identity()\n"
        "H=[]\n"
        "def f(x): return m(x)",
        ["H.append(m.register_forward_hook(lambda a,b,o:o*2))",
         "H.append(m.register_forward_hook(lambda a,b,o:o+1,prepend=True))",
         "[h.remove() for h in H]; H.clear()", "H.append(m.register_forward_pre_hook(lambda a,b:(b[0]*3,)))"]),
    "call patched": (
        "class N(torch.nn.Identity): pass\n"
        "m=N()\n"
        "def f(x): return m(x)",
        ["N.__call__=lambda s,x:x*4", "N.forward=lambda s,x:x*7", "m.forward=lambda x:x+3"]),
    "sequential changes": (
        "m=torch.nn.Sequential(torch.nn.ReLU(),torch.nn.Tanh())\n"
        "def f(x): return m(x)",
        ["m.append(torch.nn.Sigmoid())", "m.pop(0) if len(m) else 0", "m.insert(0,torch.nn.Sigmoid())"]),
    "paramlist": (
        "m=torch.nn.ParameterList([torch.ones(3)]*2)\n"
        "def f(x):\n"
        "  for p in m: x=x*p+1\n"
        "  return x",
        ["m.append(torch.ones(3)*2)", "m[0]=torch.nn.Parameter(torch.zeros(3))",
         "m[0]=torch.nn.Parameter(torch.full((3,),4.))"]),
    "property on class appears": (
        "class A: pass\n"
        "a=A(); a.k=1\n"
        "def f(x): return x*a.k",
        ['A.k=property(lambda s:5)', 'A.k=3', "A.k=property(lambda s:s.__dict__['k']*2)"]),
    "getattribute appears": (
        "class A: k=1\n"
        "a=A()\n"
        "def f(x): return x*a.k",
        ["A.__getattribute__=lambda s,n: 9 if n=='k' else object.__getattribute__(s,n)",
         'A.__getattribute__=object.__getattribute__']),
    "eq appears": (
        "class A: pass\n"
        "a=A(); b=A()\n"
        "def f(x): return x*(a==b), x*(a!=b)",
        ["A.__eq__=lambda s,o:True", "A.__eq__=lambda s,o:False", "A.__ne__=lambda s,o:True"]),
    "bool ctx": (
        "class A: pass\n"
        "a=A()\n"
        "def f(x): return x+1 if a else x, not a, a and 1, a or 2",
        ["A.__bool__=lambda s:False", "A.__len__=lambda s:0", "A.__bool__=lambda s:True"]),
    "iter appears": (
        "class A:\n"
        "  def __getitem__(s,i):\n"
        "    if i>2: raise IndexError\n"
        "    return i\n"
        "a=A()\n"
        "def f(x): return [x*v for v in a]",
        ["A.__iter__=lambda s:iter([5,6])", "A.__getitem__=lambda s,i:[][i]"]),
    "contains": (
        "class A: pass\n"
        "a=A()\n"
        "def f(x):\n"
        "  try: return x*(3 in a)\n"
        "  except TypeError as e: return str(e)",
        ["A.__contains__=lambda s,o:True", "A.__iter__=lambda s:iter([3])", "A.__contains__=None"]),
    "with": (
        "class A:\n"
        "  def __enter__(s): return 2\n"
        "  def __exit__(s,*a): return False\n"
        "a=A()\n"
        "def f(x):\n"
        "  with a as k: return x*k",
        ["A.__enter__=lambda s:5", "A.__exit__=lambda s,*a:True"]),
    "operator reflected": (
        "class A:\n"
        "  def __rmul__(s,o): return o*3\n"
        "class B(A): pass\n"
        "a=A()\n"
        "def f(x): return 2*a, x",
        ["A.__rmul__=lambda s,o:o*5", "a=B()", "B.__rmul__=lambda s,o:o*7"]),
    "iadd": (
        "class A:\n"
        "  v=0\n"
        "a=A(); h=[a]\n"
        "def f(x):\n"
        "  q=h[0]\n"
        "  q+=1\n"
        "  return x, q is a",
        ["A.__iadd__=lambda s,o:s", "A.__add__=lambda s,o:5", "A.__iadd__=lambda s,o:7"]),
    "subclass of list": (
        "class L(list): pass\n"
        "l=L([1,2])\n"
        "def f(x): return x*l[0], len(l), [v for v in l], bool(l)",
        ["L.__getitem__=lambda s,i:9", "L.__len__=lambda s:0", "L.__iter__=lambda s:iter([7])",
         "l.append(4)", "l[:]=[3]", "L.__bool__=lambda s:True"]),
    "subclass of dict": (
        'class L(dict): pass\n'
        'l=L(a=1)\n'
        "def f(x): return x*l.get('a',3), 'a' in l, len(l), l['a'] if 'a' in l else 0",
        ['L.__getitem__=lambda s,i:9', 'L.__contains__=lambda s,i:True', "l['a']=4", 'L.get=lambda s,k,d:8',
         'L.__missing__=lambda s,k:6']),
    "str enum/ctx": (
        "import enum\n"
        "class E(enum.IntEnum):\n"
        "  A=1\n"
        "  B=2\n"
        "e=E.A\n"
        "def f(x): return x*e, e==1, e is E.A, e.name",
        ["e=E.B", "e=1", "e=True"]),
    "dataclass": (
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class D:\n"
        "  a:int=1\n"
        "  b:object=None\n"
        "d=D()\n"
        "def f(x):\n"
        "  e=dataclasses.replace(d,b=x)\n"
        "  return e.a*e.b, d==D(), repr(d)",
        ['d.a=3', 'd=D(5)', 'D.__eq__=lambda s,o:True', "D.__repr__=lambda s:'r'"]),
    "closure of method": (
        "def mk(k):\n"
        "  class A:\n"
        "    def g(s,x): return x*k\n"
        "  return A()\n"
        "a=mk(2)\n"
        "def f(x): return a.g(x)",
        ["a=mk(3)", "a=mk(4)", "a.g=mk(5).g", "a=mk(torch.ones(3))"]),
    "wraps": (
        "import functools\n"
        "def dec(k):\n"
        "  def d(fn):\n"
        "    @functools.wraps(fn)\n"
        "    def w(*a): return fn(*a)*k\n"
        "    return w\n"
        "  return d\n"
        "@dec(2)\n"
        "def g(x): return x+1\n"
        "def f(x): return g(x)",
        ["g=dec(3)(g.__wrapped__)", "g=dec(4)(g)", "g=dec(1)(lambda x:x)"]),
    "generator global": (
        "def mk():\n"
        "  i=0\n"
        "  while True:\n"
        "    i+=1\n"
        "    yield i\n"
        "g=mk()\n"
        "def f(x): return x*next(g)",
        ["g=mk()", "next(g)", "g=iter([5]*200)"]),
    "int cache": (
        "a=257; b=int('257')\n"
        'def f(x): return x*(a==b), a>b',
        ["a=258", "b=258", "a=True; b=1"]),
    "nan": (
        "n=float('nan')\n"
        'def f(x): return n==n, x*0 if n!=n else x, n in [n], [n]==[n]',
        ['n=1.0', "n=float('nan')"]),
    "shared buffers": (
        "b=torch.zeros(6); u=b[:3]; v=b[3:]\n"
        "def f(x):\n"
        "  u.add_(x)\n"
        "  return v*2",
        ["u=b[:3]", "u=b[2:5]", "v=b[1:4]", "v=torch.ones(3)", "u=torch.ones(3)", "v=u"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name):
    changes_in_order(*CHANGES[name])


class Counted:
    """An index that counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def __index__(self):
        self.asked += 1
        return 1


def test_an_index_is_asked_once():
    def fn(values):
        index, found = Counted(), []
        for each in (values, (1, 2), "ab", range(3), b"ab"):
            found += [each[index], index.asked, len(each[index:]), index.asked]
        values[index] = 7
        found += [index.asked, [1] * index, "a" * index, index.asked]
        values.insert(index, 1)
        values.pop(index)
        del values[index]
        return found, values, index.asked

    assert jit.compile(fn)([1, 2, 3]) == fn([1, 2, 3])
