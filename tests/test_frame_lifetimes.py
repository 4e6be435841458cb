"""Entries keep no object of the program alive that the program has let go of: what dies in eager dies compiled, and at
the same time, and the calls after that are eager's."""

import gc
import weakref

import pytest
import torch
from frame_harness import Noisy, check_lets_go, compiled, same
from torch import nn

import jit
from jit.frame.source import Const, Item, Local
from jit.runtime import guards as G
from jit.runtime import native

ONES = torch.ones(3)
HEAD = "import weakref, gc, collections, functools\nimport torch\nfrom torch import nn\n"
BOX = "class Box:\n  k = 2\n"
MAKE = "def make(w):\n  def g(x): return x * w\n  return g\n"
REPLACED = {  # name -> (program with the function ``f``, the object to watch, how the program lets it go)
    "global": ("w = torch.ones(3)\ndef f(x): return x * w", "w", "w = torch.zeros(3)"),
    "del of a global": ("w = torch.ones(3)\ndef f(x):\n  try: return x * w\n  except NameError: return x", "w",
                        "del w"),
    "returned global": ("w = torch.ones(3)\ndef f(x): return x * w, w", "w", "w = torch.zeros(3)"),
    "written global": ("w = torch.ones(3)\ndef f(x):\n  w.add_(1)\n  return x * w", "w", "w = torch.zeros(3)"),
    "global with another shape": ("w = torch.ones(3)\ndef f(x): return x * w", "w", "w = torch.ones(1)"),
    "view": ("w = torch.ones(6)\nv = w[:3]\ndef f(x): return x * v", "v", "v = w[3:] * 2"),
    "parameter": ("m = nn.Linear(3, 3)\ndef f(x): return m(x)", "m.weight",
                  "m.weight = nn.Parameter(torch.ones(3, 3))"),
    "both parameters": ("m = nn.Linear(3, 3)\ndef f(x): return m(x)", "m.bias",
                        "m.weight = nn.Parameter(torch.ones(3, 3)); m.bias = None"),
    "parameter without gradients": ("m = nn.Linear(3, 3)\ndef f(x):\n  with torch.no_grad(): return m(x)", "m.weight",
                                    "m.weight = nn.Parameter(torch.ones(3, 3))"),
    "parameter of a deep module": ("m = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU())\n"
                                   "def f(x): return m(x)", "m[0][0].weight",
                                   "m[0][0].weight = nn.Parameter(torch.ones(3, 3))"),
    "parameter in a list": ("p = nn.ParameterList([torch.ones(3)])\ndef f(x): return x * p[0]", "p[0]",
                            "p[0] = nn.Parameter(torch.zeros(3))"),
    "parameter in a dict": ("p = nn.ParameterDict({'a': nn.Parameter(torch.ones(3))})\ndef f(x): return x * p['a']",
                            "p['a']", "p['a'] = nn.Parameter(torch.zeros(3))"),
    "buffer": ("m = nn.BatchNorm1d(3)\ndef f(x): return m(x[None].expand(2, 3))", "m.running_mean",
               "m.running_mean = torch.zeros(3)"),
    "submodule": ("m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())\ndef f(x): return m(x)", "m[0].weight",
                  "m[0] = nn.Identity()"),
    "submodule itself": ("m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())\ndef f(x): return m(x)", "m[0]",
                         "m[0] = nn.Identity()"),
    "module": ("m = nn.Linear(3, 3)\ndef f(x): return m(x)", "m", "m = nn.Linear(3, 3)"),
    "gradient": ("m = nn.Linear(3, 3)\nm(torch.ones(3)).sum().backward()\ndef f(x): return m.weight.grad @ x",
                 "m.weight.grad", "m.zero_grad()\nm(torch.zeros(3)).sum().backward()"),
    "attribute": (BOX + "a = Box(); a.w = torch.ones(3)\ndef f(x): return x * a.w", "a.w", "a.w = torch.zeros(3)"),
    "dictionary of an object": (BOX + "a = Box(); a.w = torch.ones(3)\ndef f(x): return x * a.w", "a.w",
                                "a.__dict__ = {'w': torch.zeros(3)}"),
    "slot": ("class Slotted:\n  __slots__ = ('w',)\na = Slotted(); a.w = torch.ones(3)\ndef f(x): return x * a.w",
             "a.w", "a.w = torch.zeros(3)"),
    "object with slots": ("class Slotted:\n  __slots__ = ('w',)\n"
                          "a = Slotted(); a.w = torch.ones(3)\ndef f(x): return x * a.w", "a.w",
                          "a = Slotted(); a.w = torch.zeros(3)"),
    "attribute of a tensor": ("w = torch.ones(3); w.scale = torch.ones(3)\ndef f(x): return x * w * w.scale", "w.scale",
                              "w.scale = torch.zeros(3)"),
    "list": ("v = [torch.ones(3)]\ndef f(x): return x * v[0]", "v[0]", "v[0] = torch.zeros(3)"),
    "whole list": ("v = [torch.ones(3)]\ndef f(x): return x * v[0]", "v[0]", "v = [torch.zeros(3)]"),
    "list that is appended to": ("v = [torch.ones(3)]\ndef f(x):\n  if len(v) < 3: v.append(x)\n  return x * v[0]",
                                 "v[0]", "v = [torch.zeros(3)]"),
    "nested containers": ("v = {'a': [(torch.ones(3), 1)]}\ndef f(x):\n  t, k = v['a'][0]\n  return x * t * k",
                          "v['a'][0][0]", "v = {'a': [(torch.zeros(3), 2)]}"),
    "inside a container": ("v = {'a': [(torch.ones(3), 1)]}\ndef f(x):\n  t, k = v['a'][0]\n  return x * t * k",
                           "v['a'][0][0]", "v['a'] = [(torch.zeros(3), 2)]"),
    "tuple": ("v = (torch.ones(3), 2)\ndef f(x): return x * v[0] * v[1]", "v[0]", "v = (torch.zeros(3), 2)"),
    "dict that is written": ("v = {'w': torch.ones(3)}\ndef f(x):\n  v['n'] = v.get('n', 0) + 1\n  return x * v['w']",
                             "v['w']", "v = {'w': torch.zeros(3)}"),
    "default dict": ("v = collections.defaultdict(list); v['w'].append(torch.ones(3))\ndef f(x): return x * v['w'][0]",
                     "v['w'][0]", "v['w'] = [torch.zeros(3)]"),
    "ordered dict": ("v = collections.OrderedDict(w=torch.ones(3))\n"
                     "def f(x):\n  for t in v.values(): x = x * t\n  return x", "v['w']", "v['w'] = torch.zeros(3)"),
    "deque": ("v = collections.deque([torch.ones(3)])\ndef f(x): return x * v[0]", "v[0]", "v[0] = torch.zeros(3)"),
    "key": ("w = torch.ones(3); v = {w: 2}\ndef f(x): return x * v[w] * w", "w", "w = torch.zeros(3); v = {w: 2}"),
    "keys": ("v = {torch.ones(3): 2}\ndef f(x):\n  for t, k in v.items(): x = x * t * k\n  return x", "list(v)[0]",
             "v = {torch.zeros(3): 2}"),
    "object as a key": (BOX + "a = Box(); v = {a: torch.ones(3)}\ndef f(x): return x * v[a]", "v[a]",
                        "a = Box(); v = {a: torch.zeros(3)}"),
    "cell": (MAKE + "g = make(torch.ones(3))\ndef f(x): return g(x)", "g.__closure__[0].cell_contents",
             "g.__closure__[0].cell_contents = torch.zeros(3)"),
    "closure": (MAKE + "g = make(torch.ones(3))\ndef f(x): return g(x)", "g.__closure__[0].cell_contents",
                "g = make(torch.zeros(3))"),
    "own closure": ("def make(w):\n  def f(x): return x * w\n  return f\nf = make(torch.ones(3))",
                    "f.__closure__[0].cell_contents", "cell.cell_contents = torch.zeros(3)"),
    "written cell": ("def make(w):\n  def g(x):\n    nonlocal w\n    w = w * 2\n    return x * w\n"
                     "  return g\ng = make(torch.ones(3))\ndef f(x): return g(x)", "g", "g = make(torch.zeros(3))"),
    "default": ("def g(x, w=torch.ones(3)): return x * w\ndef f(x): return g(x)", "g.__defaults__[0]",
                "g.__defaults__ = (torch.zeros(3),)"),
    "function with a default": ("def g(x, w=torch.ones(3)): return x * w\ndef f(x): return g(x)", "g.__defaults__[0]",
                                "def g(x, *, w=torch.zeros(3)): return x * w"),
    "partial": ("g = functools.partial(torch.mul, torch.ones(3))\ndef f(x): return g(x)", "g.args[0]",
                "g = functools.partial(torch.mul, torch.zeros(3))"),
    "bound method": ("g = torch.ones(3).mul\ndef f(x): return g(x)", "g.__self__", "g = torch.zeros(3).mul"),
    "method of a module": ("g = nn.Linear(3, 3).forward\ndef f(x): return g(x)", "g.__self__.weight",
                           "g = nn.Linear(3, 3).forward"),
    "class": ("class A: w = torch.ones(3)\ndef f(x): return x * A.w", "A.w", "A.w = torch.zeros(3)"),
    "module of a reference": ("m = nn.Linear(3, 3); r = weakref.ref(m)\n"
                              "def f(x):\n  k = r()\n  return x if k is None else k(x)", "m.weight", "m = None"),
    "reference": ("w = torch.ones(3); r = weakref.ref(w)\ndef f(x):\n  k = r()\n  return x if k is None else x * k",
                  "w", "w = None"),
    "reference to an object": (BOX + "a = Box(); a.w = torch.ones(3); r = weakref.ref(a)\n"
                                     "def f(x):\n  k = r()\n  return x if k is None else x * k.w", "a.w", "a = None"),
    "proxy": ("w = nn.Linear(3, 3); r = weakref.proxy(w)\n"
              "def f(x):\n  try: return r.weight * x\n  except ReferenceError: return x", "w", "w = None"),
    "weak keys": ("w = torch.ones(3); d = weakref.WeakKeyDictionary(); d[w] = 2\ndef f(x):\n"
                  "  for k, v in d.items(): x = x * k * v\n  return x, len(d)", "w", "w = None"),
    "weak values": ("w = torch.ones(3); d = weakref.WeakValueDictionary(); d['w'] = w\ndef f(x):\n"
                    "  k = d.get('w')\n  return x if k is None else x * k", "w", "w = None"),
    "weak set": ("w = torch.ones(3); d = weakref.WeakSet([w])\ndef f(x):\n  for k in d: x = x * k\n  return x, len(d)",
                 "w", "w = None"),
    "identity": ("w = torch.ones(3)\ndef f(x): return x * 2, id(w) == 5, w is x", "w", "w = torch.zeros(3)"),
    "identity of an object": (BOX + "a = Box(); a.w = torch.ones(3)\ndef f(x): return x * a.w * (a is x)", "a",
                              "a = Box(); a.w = torch.zeros(3)"),
    "object that is changed": (BOX + "a = Box(); a.w = torch.ones(3); a.n = 0\ndef f(x):\n  a.n += 1\n  return x * a.w",
                               "a", "a = Box(); a.w = torch.zeros(3); a.n = 5"),
    "object that is returned": (BOX + "a = Box(); a.w = torch.ones(3)\ndef f(x): return x * a.w, a.k", "a.w",
                                "a = Box(); a.w = torch.zeros(3)"),
    "after a break": ("w = torch.ones(3); m = nn.Linear(3, 3)\ndef f(x):\n"
                      "  y = m(x) * w\n  print(end='')\n  return m(y) + w", "w", "w = torch.zeros(3)"),
    "parameter after a break": ("m = nn.Linear(3, 3)\ndef f(x):\n  y = m(x)\n  print(end='')\n  return m(y)",
                                "m.weight", "m.weight = nn.Parameter(torch.ones(3, 3))"),
    "closure with a break": ("def make(w):\n  def g(x):\n    y = x * w\n    print(end='')\n"
                             "    return y * w\n  return g\ng = make(torch.ones(3))\ndef f(x): return g(x) + 1",
                             "g.__closure__[0].cell_contents", "g = make(torch.zeros(3))"),
    "after an exception": ("w = torch.ones(3)\ndef f(x):\n  try:\n"
                           "    y = x * w\n    raise ValueError(y)\n  except ValueError as e: return e.args[0] * w",
                           "w", "w = torch.zeros(3)"),
    "what only eager runs": ("w = torch.ones(3)\ndef f(x):\n  y = x * w\n  return eval('y + w', {'y': y, 'w': w})", "w",
                             "w = torch.zeros(3)"),
    "state of an optimizer": ("p = nn.Parameter(torch.ones(3)); o = torch.optim.Adam([p])\n"
                              "def f(x):\n  p.grad = x.clone()\n  o.step()\n  return p.detach().clone()",
                              "o.state[p]['exp_avg']", "o = torch.optim.Adam([p])"),
    "parameter of an optimizer": ("p = nn.Parameter(torch.ones(3)); o = torch.optim.SGD([p], lr=0.5, momentum=0.5)\n"
                                  "def f(x):\n  p.grad = x.clone()\n  o.step()\n  return p.detach().clone()", "p",
                                  "p = nn.Parameter(torch.zeros(3)); o = torch.optim.SGD([p], lr=0.5, momentum=0.5)"),
}  # fmt: skip


def watch(expression, space):
    """A reference to what an expression gives that works for every kind of object, and does not keep it alive."""
    return native().Weak(eval(expression, space))


@pytest.mark.parametrize("name", REPLACED)
def test_let_go(name):
    text, watched, replace = REPLACED[name]
    jit.reset()
    spaces = [{}, {}]
    for space in spaces:
        torch.manual_seed(0)
        exec(HEAD + text, space)
        space["cell"] = space["f"].__closure__ and space["f"].__closure__[0]
    programs = spaces[0]["f"], jit.compile(spaces[1]["f"])
    for _ in range(3):
        want, got = (fn(torch.ones(3)) for fn in programs)
        same(want, got, rtol=1e-6)
    del want, got
    held = [watch(watched, space) for space in spaces]
    for space in spaces:
        torch.manual_seed(1)
        exec(replace, space)
    gc.collect()
    assert [r() is not None for r in held] == [False, False], "alive in eager, compiled"
    for _ in range(3):
        want, got = (fn(torch.ones(3)) for fn in programs)
        same(want, got, rtol=1e-6)


@pytest.mark.parametrize("name", ["global", "parameter", "list", "attribute", "closure", "tuple", "nested containers",
                                  "slot", "key", "class", "reference", "default"])
def test_replaced_many_times(name):
    """What comes to lie where the old one was is not taken for it: each replacement is another value at, often, the
    same address."""
    text, watched, replace = REPLACED[name]
    jit.reset()
    spaces = [{}, {}]
    for space in spaces:
        torch.manual_seed(0)
        exec(HEAD + text, space)
    programs = spaces[0]["f"], jit.compile(spaces[1]["f"])
    places = set()
    for k in range(100):
        for space in spaces:
            torch.manual_seed(k)
            change = replace.replace("zeros(3)", f"full((3,), {k}.)").replace("ones(3, 3)", f"full((3, 3), {k}.)")
            exec(change.replace("w = None", f"w = None; w = torch.full((3,), {k}.); r = weakref.ref(w)"), space)
        places.add(id(eval(watched, spaces[1])))
        for _ in range(2):
            want, got = (fn(torch.ones(3)) for fn in programs)
            same(want, got, rtol=1e-6)
        del want, got
        if k >= 11 and len(places) <= k:
            return
    raise AssertionError("no address was used again, so that this has shown nothing")


def test_arguments_and_results():
    """Arguments, results and what a call has made are let go with the call."""
    jit.reset()

    class Box:
        pass

    def f(x, y, box):
        box.w = x * 2
        return x * 2, id(x) == id(y), {x: 1}[x], [y + 1], box.given * x

    compiled = jit.compile(f)
    for _ in range(3):
        x, y, box = torch.ones(3), torch.ones(3), Box()
        box.given = torch.ones(3)
        out = compiled(x, y, box)
        held = [native().Weak(v) for v in (x, y, box, box.given, box.w, out[0], out[3][0])]
        del x, y, box, out
        assert [v() for v in held] == [None] * len(held)


def test_arguments_of_a_call_that_raises():
    jit.reset()

    def f(x, i):
        y = x * 2
        return y[i] + torch.linalg.cholesky(y)

    compiled = jit.compile(f)
    for _ in range(3):
        x, i = -torch.ones(3, 3), torch.tensor(1)
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(x, i)
        held = native().Weak(x), native().Weak(i)
        del x, i
        gc.collect()
        assert [v() for v in held] == [None, None]


def test_saved_for_a_backward():
    """A parameter that is replaced lives as long as the history that needs it, and its gradient gets there."""
    for compile in (lambda f: f, jit.compile):
        jit.reset()
        m = nn.Linear(3, 3)
        f = compile(lambda x: torch.tanh(m(x)).sum())
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            loss = f(x)
            weight = native().Weak(m.weight)
            m.weight = nn.Parameter(torch.zeros(3, 3))
            gc.collect()
            assert weight() is not None
            loss.backward()
            assert x.grad is not None and weight().grad is not None
            del loss, x
            gc.collect()
            assert weight() is None


def test_without_a_cycle():
    """Nothing waits for the garbage collector where eager does not."""
    jit.reset()
    m, w = nn.Linear(3, 3), [torch.ones(3)]
    compiled = jit.compile(lambda x: m(x) * w[0])
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    gc.collect()
    gc.disable()
    try:
        held = native().Weak(m.weight), native().Weak(w[0])
        m.weight = nn.Parameter(torch.ones(3, 3))
        w[0] = torch.zeros(3)
        assert [v() for v in held] == [None, None]
    finally:
        gc.enable()


def test_reset():
    """After ``jit.reset()``, and with the compiled function itself, the rest goes."""
    module = nn.Linear(3, 3)
    compiled = jit.compile(module)
    compiled(torch.ones(3))
    held = weakref.ref(module)
    jit.reset()
    del module, compiled
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_replaced_over_and_over(backend):
    """Parameters that are replaced between the steps of a training: each is let go at once, and few of the calls
    compile."""
    jit.reset()
    module = nn.Linear(4, 4)
    compiled, start = jit.compile(lambda x: module(x).sum(), backend=backend), jit.compile_count()
    for _ in range(6):
        compiled(torch.ones(2, 4)).backward()
        held = native().Weak(module.weight)
        module.weight = nn.Parameter(torch.randn(4, 4))
        gc.collect()
        assert held() is None
        assert torch.allclose(compiled(torch.ones(2, 4)), module(torch.ones(2, 4)).sum(), atol=1e-5)
    assert jit.compile_count() - start <= 3


def test_swapped_back():
    """A parameter that is put aside and put back is found again."""
    jit.reset()
    module = nn.Linear(4, 4)
    compiled, x = jit.compile(lambda x: module(x)), torch.ones(2, 4)
    first, second = module.weight, nn.Parameter(torch.zeros(4, 4))
    for weight in (first, second, first, second, first):
        module.weight = weight
        assert torch.allclose(compiled(x), module(x), atol=1e-6)


def test_swapped_tensors():
    """References to tensors are none of Python's, which ``swap_tensors`` would refuse; and it is seen."""
    jit.reset()
    module = nn.Linear(4, 4)
    compiled, x = jit.compile(lambda x: module(x)), torch.ones(2, 4)
    for _ in range(3):
        assert torch.allclose(compiled(x), module(x), atol=1e-6)
        assert not weakref.getweakrefs(module.weight)
        torch.utils.swap_tensors(module.weight, nn.Parameter(torch.randn(4, 4)))


def test_dead_entries_are_dropped():
    """An entry for an object that is gone goes at the next miss, with its plan."""
    jit.reset()
    space = {"torch": torch, "w": torch.ones(3)}
    exec("def f(x): return x * w, w is x", space)
    compiled = jit.compile(space["f"])
    for k in range(20):
        space["w"] = torch.full((3,), float(k))
        assert torch.equal(compiled(torch.ones(3))[0], space["w"])
    assert len(compiled.entries) <= 2


def test_weak():
    """What native code, guards and rewritten functions refer to objects of the program with."""
    Weak = native().Weak
    tensor, module = torch.ones(3), nn.Linear(2, 2)
    for obj in (tensor, module, module.weight, test_weak, {1}):
        assert Weak(obj)() is obj
    for obj in (1, "text", [], {}, (1,), None):
        with pytest.raises(TypeError):
            Weak(obj)
    weak, other = Weak(tensor), Weak(module)
    del tensor, module, obj
    gc.collect()
    assert weak() is None and other() is None and repr(weak) == "<weak, gone>"
    assert not weakref.getweakrefs(torch.ones(3))


def test_a_tensor_that_only_autograd_holds():
    """Such a tensor is alive, and its Python object is the same when it comes back."""
    leaf = torch.ones(3, requires_grad=True)
    weight = (leaf * 1).exp()
    weak, out = native().Weak(weight), (weight * weight).sum()
    number = id(weight)
    del weight
    assert weak() is not None and id(weak()) == number
    del out
    assert weak() is None


def test_sources_keep_nothing():
    """Sources are keys of what is remembered between captures."""
    box, key = nn.Linear(1, 1), torch.ones(1)
    const, item = Const(box, "box"), Item(Local(0, "d"), key)
    assert const.obj is box and const == Const(box) and hash(const) == hash(Const(box))
    assert item.real_key() is key and item == Item(Local(0, "d"), key) and hash(item) == hash(Item(Local(0, "d"), key))
    assert const != Const(nn.Linear(1, 1)) and item != Item(Local(0, "d"), torch.ones(1))
    held = weakref.ref(box), native().Weak(key)
    del box, key
    assert held[0]() is None and held[1]() is None and const.obj is None


def test_keys_of_one_class_have_hashes_of_their_own():
    """A table of a hundred operators is looked up in constant time."""
    keys = [nn.Linear(1, 1) for _ in range(100)]
    assert len({hash(Item(Local(0, "d"), key)) for key in keys}) == 100


def test_keys_and_places_of_guard_programs():
    """Facts that name an object weakly, and those that name a place."""
    Weak = native().Weak
    key, space = torch.ones(1), {}
    space["d"] = {key: 5}
    accessors = [(-1, "const", space), (0, "item", "d"), (1, "item", Weak(key))]
    program = G.program(accessors, [(2, "eq", 5), (1, "dict_keys", (Weak(key),)), (1, "at", (id(space["d"]), dict))])
    assert program.check(()) and program.check(())
    space["d"][key] = 6
    assert not program.check(())
    space["d"][key] = 5
    assert program.check(())
    space["other"] = 1
    assert program.check(())
    space["d"] = {torch.ones(1): 5}
    assert not program.check(())
    space["d"] = {}
    held = Weak(key)
    del key
    assert held() is None and not program.check(())
    tensor = torch.ones(1)
    program = G.program([(-1, "local", 0)], [(0, "is", Weak(tensor))])
    assert program.check((tensor,)) and not program.check((torch.ones(1),))
    module = nn.Linear(1, 1)
    program = G.program([(-1, "local", 0)], [(0, "is", Weak(module))])
    assert program.check((module,)) and "Linear" in program.explain((tensor,))
    del module
    assert not program.check((tensor,))


def test_snapshots_hold_nothing():
    """What a walk has read through containers of every kind dies when it is taken out, and what lies there then is
    looked at."""
    space = {"v": {"a": [(torch.ones(3), [torch.ones(3)])]}}
    accessors = [(-1, "const", space), (0, "item", "v"), (1, "item", "a"), (2, "item", 0), (3, "item", 1),
                 (4, "item", 0), (3, "item", 0)]
    spec = G.TensorSpec(torch.Tensor, torch.float32, sizes=(3,))
    program = G.program(accessors, [(5, "tensor", spec), (6, "tensor", spec), (4, "len", 1)])
    for k in range(8):
        assert program.check(()) and program.check(())
        held = [native().Weak(t) for t in (space["v"]["a"][0][0], space["v"]["a"][0][1][0])]
        size = 3 if k % 2 else 4
        space["v"] = None
        assert [w() for w in held] == [None, None]
        space["v"] = {"a": [(torch.ones(3), [torch.ones(size)])]}
        assert program.check(()) == (size == 3)
        space["v"]["a"][0][1][0] = torch.ones(3)


def test_arguments_and_results_are_let_go():
    def f(x, h):
        y = x * 2
        jit.graph_break()
        return y + 1

    check_lets_go(compiled(f), 3)


def test_variables_that_let_go_of_objects_with_finalizers():
    log = []

    def f(x, held):
        held = Noisy(held.name + " made", log)
        y = x * 2
        del held
        log.append("after")
        return y

    def in_a_generator(x, held):
        yield x
        held = None  # noqa: F841
        log.append("let go")
        yield x + 1

    for fn, generator in ((f, in_a_generator), (compiled(f), compiled(in_a_generator))) * 2:
        log.clear()
        same(fn(ONES, Noisy("given", log)), ONES * 2)
        assert sorted(log) == ["after", "given", "given made"]
        log.clear()
        same(list(generator(ONES, Noisy("given", log))), [ONES, ONES + 1])
        assert log == ["given", "let go"]


def test_what_a_weak_reference_leads_to_is_not_kept():
    class Held:
        k = 3

    held = Held()
    reference = weakref.ref(held)

    def f(x):
        target = reference()
        return x if target is None else x * target.k

    c = compiled(f)
    gc.disable()
    try:
        assert torch.equal(c(ONES), ONES * 3) and torch.equal(c(ONES), ONES * 3)
        del held
        assert reference() is None and torch.equal(c(ONES), ONES)
    finally:
        gc.enable()
