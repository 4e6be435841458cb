"""The records of prims and operators: complete, in agreement with each other, and the only place where names are
listed."""

import ast
from pathlib import Path

import pytest
import torch

from jit import torch_private
from jit.codegen import loops, lower, prepare, reference
from jit.codegen.cpp import ops as cpp
from jit.codegen.triton import ops as triton
from jit.errors import Unsupported
from jit.graph import op_info, prim_info
from jit.graph.autodiff.rules import UNDEFINED, VJPS, GradBuilder
from jit.graph.build import Builder
from jit.graph.ir import Node, Ref, TensorType, operator
from jit.graph.ops.arithmetic import pointwise  # noqa: F401  (the operators are registered)
from jit.graph.prim_info import OTHERS, PRIMS, Cost, info
from jit.graph.prims import evaluate, infer, library_form
from jit.graph.registry import OPS
from jit.graph.shape_env import ShapeEnv

ROOT = Path(__file__).resolve().parent.parent
POINTWISE = sorted(p.name for p in PRIMS.values() if p.kind == "pointwise")
KINDS = {"input", "number", "source", "pointwise", "view", "copy", "reduction", "scan", "index", "call", "part",
         "gradient", "kernel", "window", "scatter"}
CPU = torch.device("cpu")


def operands(p, dtype=torch.float32):
    types = [TensorType.contiguous((2, 3), dtype, CPU)] * p.arity
    if p.name == "where":
        types[0] = types[0].replace(dtype=torch.bool)
    return [Node(k, "input", (), {"index": k}, t) for k, t in enumerate(types)]


def node_of(p, dtype=torch.float32):
    inputs = operands(p, dtype)
    return Node(len(inputs), p.name, tuple(inputs), {}, infer(p.name, tuple(i.type for i in inputs), {}, dtype))


def dtype_of(name):
    """A dtype over which kernels compute the prim."""
    if info(name).truth or info(name).bools == ("logical_not",):
        return torch.bool
    return torch.int64 if info(name).of_words or name in ("shl",
                                                          "shr") or name.startswith("bitwise_") else torch.float32


@pytest.mark.parametrize("name", sorted(PRIMS))
def test_a_record_is_complete(name):
    p = PRIMS[name]
    assert p.name == name and p.kind in KINDS and isinstance(p.cost, Cost)
    assert p.linear in (None, prim_info.IN_ALL, prim_info.IN_EACH, prim_info.IN_FIRST)
    for form in (p.bools, p.integers):
        assert not isinstance(form, tuple) or all(n in PRIMS for n in form)
    if p.saves is not None:
        positions = [k for read in p.saves if read is not OTHERS for k in read]
        assert len(p.saves) <= (p.arity or 1) and all(k < p.arity for k in positions)
    if p.kind in ("view", "copy", "scan", "index", "part"):
        assert p.infer is not None
    if p.checks or p.kind in ("copy", "scan", "index"):
        assert p.library is not None
    if p.kind == "reduction" and p.combine is not None:
        assert callable(getattr(Builder, name))
    if p.commutative:
        assert p.arity == 2


@pytest.mark.parametrize("name", POINTWISE)
def test_a_pointwise_prim_has_all_its_forms(name):
    p = info(name)
    assert p.arity in (1, 2, 3) and name in lower.LOWER and name in loops.POINTWISE
    dtype = dtype_of(name)
    assert cpp.expression(name, ["a", "b", "c"][: p.arity], [dtype] * p.arity, p.result or dtype, [None] * p.arity)
    assert triton.emit(name, triton.Context(p.result or dtype, (dtype,) * p.arity), *["a", "b", "c"][: p.arity])
    assert name in ("cast", "where", "fma", "random_bits") or callable(getattr(Builder, name))
    if not p.of_words:  # which is no operator of PyTorch's
        target, overload, args = library_form(node_of(p, dtype))
        assert len(args) <= len(torch_private.schema(operator(target, overload)).arguments)


@pytest.mark.parametrize("name", [n for n in POINTWISE if not info(n).of_words])
def test_the_forms_of_eager_and_of_the_library_agree(name):
    """The text that is printed, the call in place of a kernel, and what the record says of the result."""
    p, dtype = info(name), dtype_of(name)
    node = node_of(p, dtype)
    values = [torch.tensor([[0.5, -0.25, 0.75], [1.0, 0.0, 0.125]]).mul(k + 1).to(i.dtype)
              for k, i in enumerate(node.inputs)]
    want = evaluate(node, values)
    call = prepare.library_call(node)
    args = [values[a.index] if isinstance(a, Ref) else a for a in call["args"]]
    schema = torch_private.schema(operator(call["target"], call["overload"])).arguments
    named = {s.name: a for s, a in zip(schema, args) if s.kwarg_only}
    got = operator(call["target"], call["overload"])(*args[: len(args) - len(named)], **named)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert want.dtype is node.dtype
    if p.commutative:
        torch.testing.assert_close(evaluate(node, values[::-1]), want, equal_nan=True)
    if p.takes_number and dtype.is_floating_point:
        torch.testing.assert_close(evaluate(node, [values[0], 2]), evaluate(node, [values[0], torch.tensor(2.0)]),
                                   equal_nan=True)


OF_OTHERS = [(n, torch.bool, info(n).bools) for n in POINTWISE] + [
    (n, torch.int32, info(n).integers) for n in POINTWISE]


@pytest.mark.parametrize("name, dtype, form", [case for case in OF_OTHERS if case[2] is not None])
def test_forms_over_bools_and_integers(name, dtype, form):
    """What a record says that a prim is over bools or integers is what eager computes, where eager takes them."""
    p = info(name)
    whole = torch.tensor([0, 1, 0, 1]).to(dtype), torch.tensor([0, 0, 1, 1]).to(dtype)
    values = list(whole[: p.arity])
    try:
        want = evaluate(node_of(p, dtype), values)
    except RuntimeError:  # subtracted bools, and the like: what kernels compute only on the way to something else
        pytest.skip("eager refuses it")
    if isinstance(form, torch.dtype):
        got = evaluate(node_of(p, form), [v.to(form) for v in values]).to(want.dtype)
    elif isinstance(form, tuple):
        got = values
        for step in form:
            got = [reference.pointwise(step, got, want.dtype)]
        got = got[0]
    else:
        got = torch.full_like(want, form)
    assert torch.equal(got, want)


CLAIMS = [n for n in POINTWISE if info(n).gradient is not None
          and (info(n).saves is not None or info(n).linear is not None or info(n).flat)]


@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_gradient_reads(name):
    """``saves``, ``linear`` and ``flat`` against the gradient rule: which operands the graph of each gradient reads."""
    p = info(name)
    b = GradBuilder(ShapeEnv())
    inputs = [b.node("input", (), {"index": i.attrs["index"]}, i.type) for i in operands(p)]
    node = b.node(name, tuple(inputs), {},
                  infer(name, tuple(i.type for i in inputs), {}, torch.float64 if name == "cast" else torch.float32))
    g = b.node("input", (), {"index": 9}, node.type)
    entries = p.gradient(b, node, g)
    for k, entry in enumerate(entries):
        entry = entry() if callable(entry) and not isinstance(entry, Node) else entry
        if entry is None or entry is UNDEFINED:
            continue
        read, stack = set(), [entry]
        while stack:
            n = stack.pop()
            read.add(n)
            stack += [] if n is node else n.inputs
        if p.flat:
            assert not read & {node, g, *inputs}
        if p.saves is not None:
            positions = p.saves[min(k, len(p.saves) - 1)]
            allowed = {i for j, i in enumerate(inputs) if (j != k if positions is OTHERS else j in positions)}
            # The result can be made of all
            assert read & {node, *inputs} <= (allowed | {node} if allowed == set(inputs) else allowed)
        if p.linear is not None and (k == 0 or p.linear != prim_info.IN_FIRST):
            assert inputs[k] not in read and node not in read


def test_kinds_share_their_facts():
    for p in PRIMS.values():
        assert not p.gives_position or p.combine.startswith("arg")
        assert p.operators == () or p.kind == "pointwise" and p.arity == 1
        assert all(OPS[name].pointwise for name in p.operators)
        assert p.gradient is None or VJPS[p.name] is p.gradient  # no second rule in place of it
    with pytest.raises(Unsupported):
        cpp.expression("no_such_prim", ["a"], [torch.float32], torch.float32, [None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("op", sorted(loops.REDUCE_OPS))
def test_neutral_values(op, dtype):
    value = loops.neutral(op, dtype)
    assert type(value) is (float if dtype.is_floating_point else bool if dtype is torch.bool else int)
    x = torch.tensor([[3, 2, 5]]).to(dtype)
    if op in ("any", "all") and dtype is not torch.bool:
        return
    with_it = torch.cat([x, torch.tensor([[value]]).to(dtype)], 1)
    if op.startswith("arg") and dtype is torch.bool:
        return
    assert torch.equal(reference._reduce(op, with_it, 1, dtype if not op.startswith("arg") else torch.int64),
                       reference._reduce(op, x, 1, dtype if not op.startswith("arg") else torch.int64))


# operators


def forms(name):
    """The overloads of ``aten::name``."""
    packet = getattr(torch.ops.aten, name, None)
    return [getattr(packet, o) for o in packet.overloads()] if hasattr(packet, "overloads") else []


@pytest.mark.parametrize("name", sorted(op_info.ROWS))
def test_a_row_is_of_an_operator_and_agrees_with_its_schema(name):
    row = op_info.ROWS[name]
    namespace, _, short = name.rpartition("::")
    other = namespace and hasattr(getattr(torch.ops, namespace), short)
    assert other or forms(name) or name in OPS or hasattr(torch, name) or hasattr(torch.Tensor, name)
    assert row != op_info.OpInfo(), "a row that says nothing"
    schemas = [torch_private.schema(f) for f in forms(name)]
    if row.out_form is not None:
        assert row.out_form in getattr(torch.ops.aten, name).overloads()
    if row.bias is not None:
        assert all(s.arguments[row.bias].name == "bias" for s in schemas)
    if row.images:
        assert all(s.arguments[row.images].name == "weight" for s in schemas if not s.overload_name)
    if row.differentiable is not None and len(row.differentiable) > 1:
        assert all(len(s.returns) <= len(row.differentiable) for s in schemas)
    if row.cast_as is not None:
        assert forms(row.cast_as) and row.autocast is None
    if row.factory:
        assert callable(getattr(torch, name)) and not isinstance(getattr(torch, name), torch.Tensor)
    if row.fresh:
        assert all(r.alias_info is None for s in schemas if not any(a.is_out for a in s.arguments) for r in s.returns)


def test_rows_are_found_by_name():
    assert op_info.op_info("aten::mm") is op_info.op_info("mm") is op_info.ROWS["mm"]
    assert op_info.op_info("mylib::mm") == op_info.OpInfo()  # another's operator of the same name
    with pytest.raises(ValueError, match="two rows"):
        op_info._rows("mm", total=True)
    assert op_info.op_info("where").deferrable and op_info.op_info("where").total  # told apart


def test_what_makes_its_result_on_the_cpu():
    named = [n for n, row in op_info.ROWS.items() if row.made_on_cpu]
    torch.set_default_device("meta")
    try:
        assert named and all(getattr(torch, n)(0.0, 1.0, (2,)).device.type == "cpu" for n in named)
        assert torch.empty(2).device.type == "meta"
    finally:
        torch.set_default_device(None)


# Where names of prims may stand beside each other: the records, and the two tables of texts with what these are made
# of.
TABLES = ("jit/graph/pointwise.py", "jit/graph/prims.py", "jit/codegen/cpp/ops.py", "jit/codegen/triton/ops.py",
          "jit/codegen/triton/emit.py", "jit/graph/passes/block_states.py")


def names_in(node):
    """The strings of a literal collection, or of a text that is split into words; None for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        text = node.func.value
        return text.value.split() if isinstance(text, ast.Constant) and isinstance(text.value, str) else None
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List,
                                              ast.Set)) else node.keys if isinstance(node, ast.Dict) else None
    if not elements or not all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in elements):
        return None
    return [e.value for e in elements]


def sets_of_prims(text):
    """(line, names) of each collection of names of prims that a module keeps, or that an operation is looked for in."""
    tree = ast.parse(text)
    kept = [n for s in tree.body if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is not None
            for n in ast.walk(s.value)]
    kept += [c for n in ast.walk(tree) if isinstance(n, ast.Compare)
             and any(isinstance(o, (ast.In, ast.NotIn)) for o in n.ops)
             and ast.unparse(n.left).endswith(".op") for c in n.comparators]
    for node in kept:
        names = names_in(node)
        if names and len(names) > 1 and all(n in PRIMS for n in names):
            yield node.lineno, names


# Tests of a few prims by name in the rule that is about them.
BY_NAME = {("reshape", "alias"), ("any", "all"), ("autograd_function", "tangent"), ("custom_gradient", "alias"),
           ("detach", "alias", "custom_gradient"), ("detach", "custom_gradient"), ("floor_div", "remainder")}
VIEW_STEPS = ("jit/graph/handles.py",)  # how each view is written through, a function for each


def kept_by(lists, exempt):
    """``path:line: names`` of what ``lists`` finds in the modules of jit."""
    files = [(str(p.relative_to(ROOT)), p) for p in (ROOT / "jit").rglob("*.py")]
    return [f"{path}:{line}: {' '.join(names)}" for path, p in files if path not in exempt
            for line, names in lists(p.read_text()) if tuple(names) not in BY_NAME]


def test_no_other_lists_of_prims():
    found = kept_by(sets_of_prims, TABLES + VIEW_STEPS)
    assert not found, "\n".join(found)


def takes_tensors(name):
    """Whether there is such an operator, and it is none of TorchScript's on texts and containers."""
    name = name.removeprefix("aten::")
    texts = [str(torch_private.schema(f)) for f in forms(name)]
    return name in op_info.ROWS or any("Tensor" in text and "Dict(" not in text for text in texts)


def kept_names(text):
    """(line, names) of the collections and tables of names of operators that a module keeps in a variable."""
    for s in ast.parse(text).body:
        if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is not None:
            for node in ast.walk(s.value):
                names = names_in(node)
                if names and len(names) > 1 and sum(map(takes_tensors, names)) >= 0.8 * len(names):
                    yield node.lineno, names


# Operators that have no schema text of their own, and functions of NumPy.
OTHERS_NAMES = ("jit/torch_private.py", "jit/frame/library/numpy_functions.py")


def test_no_other_lists_of_operators():
    found = kept_by(kept_names, TABLES + VIEW_STEPS + OTHERS_NAMES)
    assert not found, "\n".join(found)
    assert list(kept_names("_FRESH = frozenset('linear matmul einsum'.split())"))
    assert list(kept_names("_NAMES = {'addcmul': 3, 'aten::addcdiv': 3}"))


def test_lists_of_prims_are_found():
    assert list(sets_of_prims("_CHEAP = frozenset('add mul'.split())")) == [(1, ["add", "mul"])]
    assert list(sets_of_prims("def f(n):\n    return n.op in ('exp', 'log')")) == [(2, ["exp", "log"])]
    assert not list(sets_of_prims("_DEVICES = ('cpu', 'cuda')"))
