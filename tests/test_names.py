"""Names that last: what an entry holds is named, and the name leads to it again, here and in another process."""

import collections
import fractions
import functools
import gc
import math
import operator
import pickle
import types
from pathlib import Path

import named_programs
import pytest
import torch
from named_programs import PROGRAMS
from torch import nn

import jit
from jit.frame import dispatch
from jit.graph.dims import Sym
from jit.runtime import held, names, native
from jit.runtime.naming import Naming, name_of
from jit.runtime.names import Importable, Made, Unbound, Unnameable, Value, bind

VALUES = [
    None, True, 0, -5, 2**70, 1.5, -0.0, math.inf, 2 - 3j, "text", b"bytes", ..., NotImplemented, (), (1, ("a", None)),
    frozenset({1, 2}), range(3, 9, 2), slice(1, None, 2), torch.float16, torch.device("cpu"), torch.device("cuda", 1),
    torch.strided, torch.channels_last, torch.Size([2, 3]), (torch.int8, slice(0, 2)),
]  # fmt: skip
OBJECTS = [
    int, dict, len, math.sin, operator.add, torch, torch.nn.functional, torch.add, torch.relu, torch.Tensor,
    torch.nn.functional.linear, torch.nn.functional.relu, nn.Linear, nn.Linear.forward, torch.ops.aten.add.Tensor,
    torch.ops.aten.relu.default, torch.ops.aten.mul, torch.Tensor.add, torch.Tensor.shape, list.append,
    object.__getattribute__,
    collections.OrderedDict, types.FunctionType, types.NoneType, type({}.keys()), torch.__dict__, native().TailCall,
    native().failed, native().EMPTY_SLOT, named_programs, named_programs.__dict__, named_programs.pointwise,
    named_programs.Kind.DOUBLED, named_programs.Block, named_programs.Block.forward, named_programs.SETTINGS,
    named_programs.Model.forward.__code__, named_programs.closures.__code__.co_consts[1], torch.default_generator,
    nn.Module.__call__, functools.reduce, vars(named_programs.Cube)["forward"], named_programs.Cube.forward,
    name_of, vars(Naming)["__dict__"], vars(Naming)["__weakref__"], vars(nn.Module)["__dict__"],
    fractions.Fraction.numerator.fget, type(named_programs.remembered.cache_info()),
]  # fmt: skip
EQUAL = [
    named_programs.SETTINGS.__init__, named_programs.Cube.apply, torch.autograd.Function.apply, dict.fromkeys,
    type.__dict__["__mro__"].__get__, (len, 1, (int,)),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_constants_are_written_as_they_are(value):
    found = bind(pickle.loads(pickle.dumps(name_of(value))))
    assert type(found) is type(value) and found == value and repr(found) == repr(value)


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: str(name_of(obj)))
def test_objects_are_found_again(obj):
    name = name_of(obj)
    assert not name.why_not() and bind(pickle.loads(pickle.dumps(name))) is obj


@pytest.mark.parametrize("obj", EQUAL, ids=lambda obj: str(name_of(obj)))
def test_what_is_made_anew_is_equal(obj):
    assert bind(pickle.loads(pickle.dumps(name_of(obj)))) == obj


def test_a_partial_function():
    found = bind(name_of(functools.partial(torch.add, 1, alpha=2)))
    assert (found.func, found.args, found.keywords) == (torch.add, (1,), {"alpha": 2})


def test_records_and_sizes():
    from jit.runtime.guards import TensorSpec

    spec = TensorSpec.of(nn.Parameter(torch.ones(2, 3)))
    size = Sym("s0", 5, lo=2) * 3 + 1
    assert bind(name_of(spec)) == spec and bind(name_of(size)) == size


@pytest.mark.parametrize("obj, why", [
    (object(), "no name leads to this object"),
    (lambda: 0, "test_names.<lambda> is not what its module has under that name"),
    (type("Local", (), {}), "test_names.Local is not what its module has"),
    ((1, [2]), "no name leads to this list"),
    (torch.ones(2), "no name leads to this torch.Tensor"),
    ((lambda: 0).__code__, "the code of <lambda>, which no function with a name has"),
], ids=lambda v: v if isinstance(v, str) else "")  # fmt: skip
def test_what_only_this_process_has_says_so(obj, why):
    name = name_of(obj)
    assert why in name.why_not()
    with pytest.raises(Unbound, match=None):
        bind(name)


def test_a_name_that_leads_to_nothing():
    for name in (Importable("no_such_module", "f"), Importable("math", "no_such"), names.Given("function")):
        with pytest.raises(Unbound):
            bind(name)


def test_a_name_is_tried_out():
    """A function that is not what its module has under its name, and one that a decorator has replaced."""
    moved = types.FunctionType((lambda: 0).__code__, globals(), "name_of")
    moved.__qualname__, moved.__module__ = "name_of", "jit.runtime.naming"
    assert type(name_of(moved)) is Unnameable
    assert bind(name_of(named_programs.pointwise)) is named_programs.pointwise


def run(program):
    """What is to be kept alive of a compiled program that was called, and the entries of it and of the functions that
    go on behind its breaks."""
    torch.manual_seed(0)
    compiled, calls = PROGRAMS[program]()
    for arguments in calls:
        made = compiled(*arguments)
        if isinstance(made, types.GeneratorType):
            list(made)
    first = getattr(type(compiled), "_jit_dispatcher", compiled)
    if isinstance(first, types.FunctionType):  # the maker of a compiled generator
        settings = first.__closure__[1].cell_contents.settings
        dispatchers = []
    else:
        settings, dispatchers = first.on_miss.settings, [first]
    dispatchers += [made for made in settings.resumes.values() if isinstance(made, native().Dispatcher)]
    return (compiled, calls), [entry for dispatcher in dispatchers for entry in dispatcher.entries]


def given_to(entry, arguments=()):
    """What those who bind have: also the arguments of a call."""
    return {**held.naming_of(entry).given, **{f"argument {k}": a for k, a in enumerate(arguments)}}


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_that_ordinary_programs_hold_is_named(program):
    alive, entries = run(program)
    assert entries
    for entry in entries:
        rows = entry.holds()
        assert rows and {what: name.why_not() for what, name in rows if name.why_not()} == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_names_lead_to_what_is_held(program):
    alive, entries = run(program)
    for entry in entries:
        naming, given = held.naming_of(entry), given_to(entry)
        for what, name in entry.holds():
            if "<argument" not in str(name):
                found = bind(pickle.loads(pickle.dumps(name)), given)
                assert naming.name(found) == name or "place_of" in str(name), what


SCRIPT = """
import pickle, sys
import torch
import named_programs, jit
from jit.frame.dispatch import Settings, make_dispatcher
from jit.runtime import names, native
from jit.runtime.naming import Naming
torch.set_num_threads(2)
with open(sys.argv[1], "rb") as f:
    entries = pickle.load(f)
torch.manual_seed(0)
for program, rows in entries:
    compiled, calls = named_programs.PROGRAMS[program]()
    dispatcher = getattr(type(compiled), "_jit_dispatcher", compiled)
    settings = dispatcher.on_miss.settings
    given = {"function": getattr(dispatcher.__wrapped__, "__func__", dispatcher.__wrapped__), "settings": settings}
    if type(dispatcher) is native().BoundDispatcher:
        given["self"] = dispatcher.__self__
    for what, name, text in rows:
        found = names.bind(name, given)
        naming = Naming(given)
        assert not isinstance(found, native().Weak) or found() is not None, what
        if text is not None:
            shown = [t.tolist() for t in found(*[a for a in calls[0]])]
            assert shown == text, (program, what, shown, text)
            print("ran", program)
    assert not dispatcher.entries
print("bound", sum(len(rows) for _, rows in entries))
"""


def test_another_process_binds_the_names(python, tmp_path):
    """Also the plans, which then compute what they compute here."""
    kept = []
    for program in ("pointwise", "containers", "objects", "breaks", "closures", "assumption", "model",
                    "model_that_is_trained", "attention", "guess", "errors"):
        alive, (entry, *_) = run(program)
        rows = []
        arguments = PROGRAMS[program]()[1][0]
        for what, name in entry.holds():
            plan = bind(name, given_to(entry)) if "load_plan" in str(name)[:40] else None
            result = None
            if type(plan) is native().Plan and len(arguments) == 1:
                result = [t.tolist() for t in plan(*arguments)]
            rows.append((what, name, result))
        kept.append((program, rows))
    assert sum(result is not None for _, rows in kept for *_, result in rows) >= 4
    path = tmp_path / "names"
    path.write_bytes(pickle.dumps(kept))
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{SCRIPT}")
    out = python(str(script), str(path)).stdout
    assert f"bound {sum(len(rows) for _, rows in kept)}" in out and "ran pointwise" in out and "ran model" in out


def test_kernels_that_are_gone_are_not_bound(tmp_path):
    from jit.runtime import cache, libraries

    with pytest.raises(Unbound, match="not in the cache any more"):
        bind(names.calling(libraries.kernel, Value(cache.key("no such text")), Value("k")))


def test_objects_of_local_classes_are_unnameable_with_a_reason():
    class Local:
        factor = 2

    def f(x, obj):
        return x * obj.factor

    compiled = jit.compile(f)
    compiled(torch.ones(3), Local())
    reasons = [name.why_not() for _, name in compiled.entries[0].holds() if name.why_not()]
    assert reasons and all("Local is not what its module has under that name" in why for why in reasons)


def test_a_closure_is_named_from_the_compiled_function():
    """Neither the function nor its cells are importable."""
    weight = torch.ones(3)
    compiled = jit.compile(lambda x: x * weight + 1)
    compiled(torch.ones(3))
    rows = compiled.entries[0].holds()
    assert not any(name.why_not() for _, name in rows)
    assert any(str(name) == "<function>.<closure(0)>.<cell>" for _, name in rows)


def test_an_entry_that_is_dropped_holds_nothing_of_the_program():
    compiled = jit.compile(named_programs.Model())
    compiled(torch.ones(2, 4))
    entry, dispatcher = type(compiled)._jit_dispatcher.entries[0], type(compiled)._jit_dispatcher
    assert entry.owner is dispatcher
    del compiled, dispatcher
    gc.collect()
    assert entry.owner is None
    assert all(isinstance(name, names.Name) for _, name in entry.holds())


def test_explain_tells_what_has_no_name():
    assert jit.explain(named_programs.breaks)(torch.ones(4)).unnamed == []
    assert jit.explain(named_programs.Model())(torch.ones(2, 4)).unnamed == []
    local = type("Local", (), {"factor": 2})()
    told = jit.explain(lambda x, obj: x * obj.factor)(torch.ones(2), local).unnamed
    assert told and all("Local is not what its module has under that name" in line for line in told)


def test_a_lambda_inside_a_function_is_named_by_the_function():
    compiled = jit.compile(lambda x, fn: fn(x))
    compiled(torch.ones(2), lambda x: x * 2)
    (name,) = {name for what, name in compiled.entries[0].holds() if "fn.__code__: is code" in what}
    assert "test_a_lambda_inside_a_function_is_named_by_the_function" in str(name) and not name.why_not()
    changed = Made(name.function, (name.arguments[0], Value("another digest")))
    with pytest.raises(Unbound, match="is not the same function any more"):
        bind(changed, given_to(compiled.entries[0]))


def test_naming_costs_nothing_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(Naming, "name", lambda *a: pytest.fail("named while compiling"))
    run("model_that_is_trained")
    assert dispatch.compile_count() > 0
