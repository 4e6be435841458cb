"""Facts that guard programs watch: what re-arms them and what is walked again; what cannot be watched."""

import collections
import contextvars
import gc
import threading
import types
import weakref

import pytest
import torch
from guard_harness import LOCAL, Plain, program
from torch import nn

from jit.runtime import guards as G
from jit.runtime import load_plan, native
from jit.runtime.plan import Plan
from jit.runtime.steps import Aten, Const, Slot


def walks(p):
    return p.stats["walks"]


def test_armed_after_one_walk():
    o = Plain(a=1, b=2)
    p = program([(-1, "const", o), (0, "dict_attr", "a")], [(0, "type_is", Plain), (1, "eq", 1)])
    for _ in range(5):
        assert p.check(())
    assert walks(p) == 1 and p.stats["armed"] and p.stats["dicts"] == 1
    o.a = 1  # the same object again
    o.b = 99  # another name
    o.new = 3
    assert p.check(()) and walks(p) == 1
    o.a = 2
    assert not p.check(()) and walks(p) == 2
    assert "expected 1, found 2" in p.explain(())
    o.a = int("1")
    assert p.check(()) and walks(p) == 3
    assert p.check(()) and walks(p) == 3
    del o.a
    assert not p.check(()) and "cannot be reached" in p.explain(())


def test_equal_value_of_another_object_is_walked_and_accepted():
    o = Plain(a=1000001)
    p = program([(-1, "const", o), (0, "dict_attr", "a")], [(1, "eq", 1000001)])
    assert p.check(())
    o.a = int("1000001")
    assert p.check(()) and walks(p) == 2
    assert p.check(()) and walks(p) == 2


def test_replaced_dict_and_class():
    o = Plain(a=1)
    p = program([(-1, "const", o), (0, "dict_attr", "a"), (0, "type_attr", "shared")], [(1, "eq", 1)])
    assert p.check(())
    o.__dict__ = {"a": 2}
    assert not p.check(())
    o.__dict__ = {"a": 1}
    assert p.check(())

    class A(Plain):
        pass

    class B(Plain):
        pass

    o = A(a=1)
    p = program([(-1, "const", o)], [(0, "type_is", A)])
    assert p.check(())
    o.__class__ = B
    assert not p.check(())


def test_class_attributes():
    class Base:
        scale = 2

    class Sub(Base):
        pass

    o = Sub()
    p = program([(-1, "const", o), (0, "type_attr", "scale")],
                [(1, "eq", 2), (0, "type_lacks", "extra"), (0, "no_dict_attr", "scale")])
    assert p.check(()) and p.check(()) and walks(p) == 1
    Sub.other = 1  # another name: only the tag moves
    assert p.check(()) and p.check(()) and walks(p) == 1 and p.stats["armed"]
    Base.scale = 3
    assert not p.check(())
    Base.scale = 2
    assert p.check(())
    Sub.scale = 9
    assert not p.check(())
    del Sub.scale
    assert p.check(())
    Base.extra = 1
    assert not p.check(())
    del Base.extra
    assert p.check(())
    o.scale = 2
    assert not p.check(())
    del o.scale
    assert p.check(())
    Sub.__bases__ = (type("Other", (), {"scale": 5}),)
    assert not p.check(())


def test_object_without_a_dict_that_gets_one():
    class C:
        pass

    o = C()
    p = program([(-1, "const", o)], [(0, "no_dict_attr", "late")])
    assert p.check(())
    o.late = 1
    assert not p.check(())


def test_functions_and_cells():
    def make():
        n = 1

        def f(x=1, *, y=2):
            return n

        def put(v):
            nonlocal n
            n = v

        return f, put

    f, put = make()
    root = (-1, "const", f)
    code = program([root, (0, "function", "code")], [(1, "is", f.__code__)])
    defaults = program([root, (0, "function", "defaults"), (1, "item", 0)], [(2, "eq", 1)])
    keyword = program([root, (0, "function", "kwdefaults"), (1, "item", "y")], [(2, "eq", 2)])
    cell = program([root, (0, "closure", 0), (1, "cell",)], [(2, "eq", 1)])
    note = program([root, (0, "function", "dict")], [(1, "dict_lacks", "note")])
    everything = (code, defaults, keyword, cell)
    assert all(p.check(()) and p.check(()) and walks(p) == 1 for p in everything)
    put(2)
    assert not cell.check(()) and code.check(())
    put(1)
    assert cell.check(())
    f.__defaults__ = (5,)
    assert not defaults.check(())
    f.__kwdefaults__["y"] = 3
    assert not keyword.check(())
    f.__code__ = (lambda x=1, *, y=2: put).__code__
    assert not code.check(())
    assert not note.check(())  # no dict at all yet
    f.note = 1
    assert not note.check(())


def test_lists_and_dicts():
    items, table = [1, 2], {"a": 1}
    p = program(
        [(-1, "const", items), (0, "item", 1), (-1, "const", table), (2, "item", "a")],
        [(0, "len", 2), (1, "eq", 2), (2, "dict_keys", ("a",)), (3, "eq", 1), (2, "dict_lacks", "b"), (2, "len", 1)],
    )
    assert p.check(()) and p.check(()) and walks(p) == 1
    items[0] = 5
    assert p.check(()) and walks(p) == 2
    items.append(3)
    assert not p.check(())
    items.pop()
    assert p.check(())
    table["b"] = 1
    assert not p.check(())
    del table["b"]
    table["a"] = 2
    assert not p.check(())
    table["a"] = 1
    assert p.check(())
    items[:] = [1, 2]
    table.clear()
    assert not p.check(())


def test_items_that_have_moved():
    """A list that has got other memory with the same items in it needs no walk, and is looked at in its new place from
    then on."""
    items = [object() for _ in range(3)]
    wanted = items[1]
    p = program([(-1, "const", items), (0, "item", 1)], [(0, "len", 3), (1, "is", wanted)])
    assert p.check(())
    items.extend(range(10000))
    del items[3:]
    for _ in range(3):
        assert p.check(()) and walks(p) == 1
    items[1] = None
    assert not p.check(())
    items[1] = wanted
    assert p.check(())
    items.clear()
    assert not p.check(())


def test_other_objects_at_the_same_address():
    """An object's class is not looked at where it cannot change, but another object may come to lie where the object
    was."""

    def cell(value):
        return (lambda: value).__closure__[0]

    makes = {"dict": lambda k: {"a": k}, "ordered": lambda k: collections.OrderedDict(a=k), "list": lambda k: [k],
             "tuple": lambda k: (k, []), "cell": cell, "float": lambda k: k + 0.5}
    holders = {"attribute": (Plain(), "dict_attr", "v"), "cell": (cell(None), "cell"), "list": ([None], "item", 0),
               "dict": ({"v": None}, "item", "v")}

    def put(where, value):
        holder = holders[where][0]
        if where == "attribute":
            holder.v = value
        elif where == "cell":
            holder.cell_contents = value
        else:
            holder["v" if where == "dict" else 0] = value

    for where, (holder, *steps) in holders.items():
        for name, make in makes.items():
            put(where, make(1))
            value = make(1)
            inner = ([(1, "item", "a" if name in ("dict", "ordered") else 0)]
                     if name not in ("cell", "float") else [(1, "cell")] if name == "cell" else [(1, "type")])
            p = program([(-1, "const", holder), (0, *steps), *inner],
                        [(1, "type_is", type(value)), (2, "is", float) if name == "float" else (2, "eq", 1)])
            del value
            assert p.check(()) and p.check(()), (where, name)
            for k in range(60):
                other = list(makes)[k % len(makes)]
                put(where, None)
                put(where, makes[other](k % 2))
                assert p.check(()) == (other == name and (k % 2 == 1 or name == "float")), (where, name, other, k)


def test_replaced_dicts_at_the_same_address():
    o = Plain(a=1)
    p = program([(-1, "const", o), (0, "dict",), (0, "dict_attr", "a")],
                [(1, "type_is", dict), (1, "len", 1), (2, "eq", 1)])
    assert p.check(())
    places = set()
    for k in range(60):
        o.__dict__ = collections.OrderedDict(a=1) if k % 3 == 0 else {"a": k % 2} if k % 3 == 1 else {"a": 1, "b": 2}
        places.add(id(o.__dict__))
        assert p.check(()) == (k % 3 == 1 and k % 2 == 1), k
    assert len(places) < 60  # else this has shown nothing


def test_global_names_and_shadowed_builtins():
    module = types.ModuleType("scratch")
    module.value = 4
    names = module.__dict__
    p = program([(-1, "const", names), (0, "item", "value"), (-1, "const", module), (2, "dict_attr", "value")],
                [(1, "eq", 4), (0, "dict_lacks", "len"), (3, "eq", 4)])
    assert p.check(())
    module.unrelated = 1
    assert p.check(()) and walks(p) == 1
    module.len = lambda x: 0
    assert not p.check(())
    del module.len
    assert p.check(())
    module.value = 5
    assert not p.check(())


def test_module_tree():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    accessors, checks, binds = ([(-1, "const", net), (0, "dict_attr", "_modules")],
                                [(1, "dict_keys", ("0", "1", "2")), (0, "type_is", nn.Sequential)], [])
    x = torch.randn(5, 3)
    for name in ("0", "2"):
        accessors += [(1, "item", name)]
        m = len(accessors) - 1
        accessors += [(m, "dict_attr", "_parameters"), (m, "dict_attr", "training")]
        checks += [(m, "type_is", nn.Linear), (m + 2, "eq", True), (m, "no_dict_attr", "forward")]
        for part in ("weight", "bias"):
            accessors.append((m + 1, "item", part))
            checks.append((len(accessors) - 1, "tensor", G.TensorSpec.of(net[int(name)]._parameters[part])))
            binds.append((len(accessors) - 1, len(binds) + 1))

    def slot(i):
        return Slot(i)

    steps = (
        Aten("aten::linear", "", (slot(0), slot(1), slot(2)), (5,), None),
        Aten("aten::relu", "", (slot(5),), (6,), None),
        Aten("aten::linear", "", (slot(6), slot(3), slot(4)), (7,), None),
    )
    plan = native().bind(load_plan(Plan(5, 0, (), 8, steps, (7,))), {i + 1: p for i, p in enumerate(net.parameters())})
    p = program(accessors, checks, binds)
    p.set_plan(plan)

    def same():
        assert p.check(())
        torch.testing.assert_close(plan(x)[0], net(x).detach())

    same()
    same()
    first = walks(p)
    with torch.no_grad():
        net[0].weight.mul_(2)  # in place: nothing to do
    same()
    assert walks(p) == first
    net[0].weight.data = torch.randn(4, 3)  # other memory, same metadata
    same()
    assert walks(p) == first
    net[2].weight = nn.Parameter(torch.randn(2, 4))  # another object: bound anew
    same()
    assert walks(p) == first + 1 and plan.bound[3] is net[2].weight
    net.load_state_dict({k: torch.randn_like(v) for k, v in net.state_dict().items()})
    same()
    net.eval()
    assert (not p.check(()) and "'training' of item '0'" in p.explain(())
            and "expected True, found False" in p.explain(()))
    net.train()
    same()
    net[0].weight.requires_grad_(False)
    assert not p.check(()) and "requires_grad" in p.explain(())
    net[0].weight.requires_grad_(True)
    same()
    net[0].bias.data = net[0].bias.data.double()
    assert not p.check(()) and "dtype" in p.explain(())
    net[0].bias.data = net[0].bias.data.float()
    same()
    net[0].forward = lambda x: x
    assert not p.check(())
    del net[0].forward
    same()
    net[0] = nn.Linear(3, 4)
    same()
    assert plan.bound[1] is net[0].weight
    torch.utils.swap_tensors(net[0].weight, nn.Parameter(torch.randn(4, 3)))
    same()
    net.append(nn.ReLU())
    assert not p.check(())


def test_mixed_checks_see_the_present_watched_object():
    holder = Plain(weight=torch.zeros(3))
    p = program([LOCAL, (-1, "const", holder), (1, "dict_attr", "weight")], [(0, "distinct", 2), (0, "no_alias", 2)])
    x = torch.ones(3)
    assert p.check((x,)) and not p.check((holder.weight,)) and not p.check((holder.weight[1:],))
    holder.weight = x
    assert not p.check((x,)) and p.check((torch.ones(3),))
    assert p.stats["mixed_checks"] == 2


def test_unwatchable_facts_are_read_on_each_call():
    class Property:
        n = 1

        @property
        def value(self):
            return Property.n

    o = Property()
    p = program([(-1, "const", o), (0, "getattr", "value")], [(1, "eq", 1)])
    assert p.check(())
    Property.n = 2
    assert not p.check(())
    Property.n = 1
    assert p.check(())

    class Raises:
        def __getattr__(self, name):
            raise KeyError(name)

    assert not program([(-1, "const", Raises()), (0, "getattr", "value")], [(1, "eq", 1)]).check(())
    parameter = nn.Parameter(torch.ones(1))
    grad = program([(-1, "const", parameter), (0, "grad",)], [(1, "is", None)])
    assert grad.check(())
    parameter.sum().backward()
    assert not grad.check(())
    parameter.grad = None
    assert grad.check(())


def test_watched_sets():
    items, frozen = {1, 2}, frozenset({3})
    p = program([(-1, "const", items), (-1, "const", frozen)], [(0, "elements", (1, 2)), (1, "elements", (3,))])
    assert p.check(())
    items.add(7)
    assert not p.check(())
    items.discard(7)
    assert p.check(())


def test_one_unwatchable_fact_leaves_the_rest_watched():
    class Property:
        n = 1

        def __len__(self):
            return Property.n

    holder = Plain(odd=Property(), table=collections.OrderedDict(), a=1)
    accessors = [(-1, "const", holder), (0, "dict_attr", "odd"), (0, "dict_attr", "table"), (0, "dict_attr", "a")]
    p = program(accessors, [(1, "len", 1), (2, "len", 0), (2, "dict_keys", ()), (2, "truth", False), (3, "eq", 1)])
    for _ in range(3):
        assert p.check(())
    assert walks(p) == 1 and p.stats["armed"]
    Property.n = 2
    assert not p.check(()) and walks(p) == 1
    Property.n = 1
    assert p.check(()) and walks(p) == 1
    holder.table["hook"] = 1
    assert not p.check(())
    holder.table.popitem()
    assert p.check(())
    holder.odd = [0]
    assert p.check(()) and p.check(())
    holder.odd.append(1)
    assert not p.check(())


def test_values_below_an_unwatchable_step():
    class Table:
        def __getitem__(self, key):
            return current[0]

    current = [Plain(v=1)]
    p = program([(-1, "const", Table()), (0, "item", "k"), (1, "dict_attr", "v"), LOCAL],
                [(2, "eq", 1), (3, "distinct", 1)])
    assert p.check((0,)) and p.check((0,))
    assert not p.check((current[0],))
    current[0].v = 2
    assert not p.check((0,))
    current[0] = Plain(v=1)
    assert p.check((0,)) and not p.check((current[0],))


def test_user_dict_keys():
    class Key:
        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return 7

        def __eq__(self, other):
            return self.n == other.n

    table = {Key(1): "a", Key(2): "b"}
    p = program([(-1, "const", table), (0, "item", Key(2))], [(1, "eq", "b")])
    assert p.check(()) and p.check(())
    table[Key(3)] = "c"
    assert p.check(())
    table[Key(2)] = "z"
    assert not p.check(())


def test_weak_roots_do_not_keep_modules():
    net = nn.Linear(2, 2)
    weight = weakref.ref(net.weight)
    accessors = [(-1, "weak", net, "net"), (0, "dict_attr", "_parameters"), (1, "item", "weight")]
    plan = native().bind(load_plan(Plan(1, 0, (), 2, (Aten("aten::clone", "", (Slot(0), Const(None)), (1,),
                                                       None),), (1,))), {0: net.weight})
    p = program(accessors, [(2, "tensor", G.TensorSpec.of(net.weight))], [(2, 0)])
    d = native().Dispatcher(lambda: None, lambda d, locals: None)
    d.add_entry(p, lambda: plan()[0], plan)
    assert torch.equal(d(), net.weight) and d.hits == 1
    gone = weakref.ref(net)
    del accessors, net
    gc.collect()
    assert gone() is None and weight() is None and not p.check(())
    assert d() is None and d.entries == ()
    with pytest.raises(TypeError):
        plan()


def test_collectable():
    o = Plain()
    p = program([(-1, "const", o), (0, "dict_attr", "p")], [(1, "is_not", None)])
    o.p = p
    assert p.check(())
    seen = weakref.ref(o)
    del o, p
    gc.collect()
    assert seen() is None


def test_threads():
    o = Plain(a=1, other=0)
    p = program([(-1, "const", o), (0, "dict_attr", "a")], [(1, "eq", 1)])
    stop, errors = threading.Event(), []

    def change():
        while not stop.is_set():
            o.other += 1
            Plain.counter = o.other

    def check():
        for _ in range(5000):
            if not p.check(()):
                errors.append("failed")

    changer = threading.Thread(target=change)
    changer.start()
    checkers = [threading.Thread(target=check) for _ in range(4)]
    [t.start() for t in checkers]
    [t.join() for t in checkers]
    stop.set()
    changer.join()
    del Plain.counter
    assert not errors


def test_what_is_asked_anew_on_each_call():
    variable, none, answers = contextvars.ContextVar("variable", default=5), object(), [1]
    p = program([(-1, "const", variable), (0, "context_value", none), (-1, "const", lambda: answers[0]),
                 (2, "returned", None)], [(1, "is", none), (3, "eq", 1)])
    assert p.check(()) and p.check(())
    answers[0] = 2
    assert not p.check(()) and "lambda" in p.explain(())
    answers[0] = 1
    token = variable.set(5)
    assert not p.check(()) and "context_value" in p.explain(())
    variable.reset(token)
    assert p.check(())
    assert not program([(-1, "local", 0), (0, "context_value", none)], [(1, "is", none)]).check((3,))


def of_argument(*names):
    """A program that reads these attributes of its argument, enough times to be watched; each has to be 1."""
    accessors = [LOCAL, *((0, "dict_attr", name) for name in names)]
    return program(accessors, [(1 + k, "eq", 1) for k in range(len(names))] * 12)


def watched_arguments(p):
    return p.stats["arguments"]


def test_an_argument_that_comes_again_is_watched():
    p, o = of_argument("a", "b"), Plain(a=1, b=1, c=1)
    assert p.stats["argument_checks"] == 24 and p.stats["local_checks"] == 0
    assert p.check((o,)) and watched_arguments(p) == 0  # seen for the first time
    for _ in range(3):
        assert p.check((o,))
    assert watched_arguments(p) == 1
    o.c = 5
    assert p.check((o,)) and watched_arguments(p) == 1
    o.a = 2
    assert not p.check((o,)) and not p.check((o,))
    o.a = 1
    assert all(p.check((o,)) for _ in range(4)) and watched_arguments(p) == 1
    o.__dict__ = {"a": 1, "b": 3}
    assert not p.check((o,))
    del o.__dict__["b"]
    assert not p.check((o,)) and not p.check((5,)) and not p.check((None,)) and not p.check(())


def test_several_arguments_in_turn():
    p, objects = of_argument("a"), [Plain(a=1) for _ in range(4)]
    for _ in range(3):
        assert all(p.check((o,)) for o in objects)
    assert watched_arguments(p) == 4
    objects[2].a = 7
    for _ in range(2):
        assert [p.check((o,)) for o in objects] == [True, True, False, True]
    assert watched_arguments(p) == 3


def test_arguments_that_never_come_again():
    p, refs = of_argument("a"), []
    for k in range(1500):
        o = Plain(a=1 if k % 3 else 2)
        refs.append(weakref.ref(o))
        for _ in range(k % 5):
            assert p.check((o,)) is (o.a == 1)
        del o
    assert all(r() is None for r in refs) and watched_arguments(p) <= 512


def test_an_argument_is_watched_again_after_many_others():
    p, o = of_argument("a"), Plain(a=1)
    for _ in range(300):
        assert p.check((Plain(a=1),))
    for _ in range(200):
        assert p.check((o,))
    assert watched_arguments(p) == 1


def test_another_argument_at_the_same_address():
    p = of_argument("a")
    places = set()
    for k in range(50):
        o = Plain(a=1)
        places.add(id(o))
        assert all(p.check((o,)) for _ in range(3))
        del o
        o = Plain(a=2)
        assert not p.check((o,)), k
        del o
    assert len(places) < 50  # addresses came again


def test_an_argument_that_always_changes_is_read_each_time():
    p, o = of_argument("a", "b"), Plain(a=1, b=1)
    for k in range(200):
        o.a = 1 if k % 2 else 1.0 - 1.0
        assert p.check((o,)) is bool(k % 2)
    o.a = 1
    for k in range(2000):
        assert p.check((o,))
    assert watched_arguments(p) == 1


def test_tensors_below_an_argument():
    m = nn.Linear(2, 2)
    spec = G.TensorSpec.of(m.weight)
    p = program([LOCAL, (0, "dict_attr", "_parameters"), (1, "item", "weight")], [(2, "tensor", spec)] * 12)
    assert all(p.check((m,)) for _ in range(4)) and watched_arguments(p) == 1
    m.weight.requires_grad_(False)
    assert not p.check((m,))
    m.weight.requires_grad_(True)
    assert p.check((m,)) and p.check((m,))
    m.weight.data = torch.ones(3, 2)
    assert not p.check((m,))
    m.weight = nn.Parameter(torch.ones(2, 2))
    assert p.check((m,)) and not p.check((nn.Linear(3, 2),))


def test_arguments_of_a_collected_program():
    p, o = of_argument("a"), Plain(a=1)
    for _ in range(4):
        assert p.check((o,))
    o.p = p  # a cycle
    gone = weakref.ref(o)
    del o, p
    gc.collect()
    assert gone() is None


def test_code_of_the_program_runs_while_an_argument_is_looked_at():
    class Key:
        def __init__(self, name):
            self.name = name

        def __hash__(self):
            return 7

        def __eq__(self, other):
            o.a = o.b
            return isinstance(other, Key) and self.name == other.name

    o = Plain(a=1, b=1)
    o.d = {Key("x"): 1, Key("y"): 1}
    accessors = [LOCAL, (0, "dict_attr", "d"), (1, "item", Key("y")), (0, "dict_attr", "a")]
    p = program(accessors, [(2, "eq", 1), (3, "eq", 1)] * 12)
    assert all(p.check((o,)) for _ in range(4))
    o.b = 2
    o.d[Key("z")] = 3
    assert not p.check((o,))
