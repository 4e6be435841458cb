"""Ops without an expansion: library calls, found by PyTorch's operator schemas and typed by a rule or by a run on meta
tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import torch

from jit import torch_private, turns
from jit.devices import backend
from jit.errors import EagerRaises, Unsupported
from jit.graph import probe, registry, unstated_views
from jit.graph.build import NUMBER, is_number, resolve_device, scalar_dtype
from jit.graph.dims import Dim, hint, specialize
from jit.graph.handles import NamedResult
from jit.graph.ir import CHECKED, Node, TensorType, contiguous_strides
from jit.graph.nested import key, of_kind, replaced, several
from jit.graph.number_results import NumberResult, type_of, type_of_value
from jit.graph.op_info import op_info
from jit.graph.probe import StandIns, ask, is_quick, plain_ints, smaller
from jit.graph.probed_sizes import dims_of, learned
from jit.recent import Recent
from jit.runtime.result_numbers import DTYPES

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.handles import TensorHandle
    from jit.graph.probe import Answer

_PROBED_NUMEL = 1 << 12  # largest input of a call that is made to learn its results' strides
_QUICK_NUMEL = 1 << 22  # elements of all operands of a call that is made to learn its results' types
_QUICK_COST = 1 << 30  # the same times the largest size or number
_VERIFY_NUMEL = 1 << 16  # largest input that is run for real to find out whether eager raises too


class Argument:
    """One schema argument, with what is needed to match values fast."""

    __slots__ = ("name", "kind", "optional", "list", "default", "has_default",
                 "kwarg_only", "written", "aliased", "length")

    def __init__(self, a: object) -> None:
        text = str(a.type)
        self.optional = text.startswith("Optional[")
        if self.optional:
            text = text[9:-1]
        self.list = text.startswith("List[")
        if self.list:
            text = text[5:-1]
            if text.startswith("Optional["):
                text = text[9:-1]
        self.name, self.kind, self.length = a.name, text, a.N or 1
        self.has_default = a.has_default_value()
        self.default = a.default_value if self.has_default else None
        self.kwarg_only = a.kwarg_only
        self.written = a.alias_info is not None and a.alias_info.is_write
        self.aliased = a.alias_info is not None

    def accepts(self, v: object) -> bool:
        if v is None:
            return self.optional or self.has_default and self.default is None
        if self.list:
            if isinstance(v, (list, tuple)):
                return all(self._one(e) or e is None and self.kind == "Tensor" for e in v)
            return self.kind in ("int", "SymInt", "float") and is_number(v) and self._one(v)
        return self._one(v)

    def _one(self, v: object) -> bool:
        return isinstance(v, _TAKEN.get(self.kind, ())) and (type(v) is not bool or self.kind in ("bool", "number"))


_SIZE = (int, Dim, torch.dtype, torch.layout, torch.memory_format)
# By the kind of an argument: what it may be. A bool is no number for most. "Any" is the name of a group of processes.
_TAKEN = {"Tensor": Node, "int": _SIZE, "SymInt": _SIZE, "float": (int, float, Dim), "bool": bool, "number": NUMBER,
          "str": str, "Any": str, "Generator": torch.Generator, "Device": (torch.device, str, int)}


class Overload:
    """An aten overload: its operator, arguments, and what its results are."""

    __slots__ = ("op", "name", "overload", "arguments", "returns", "single", "random", "data_dependent", "views",
                 "mutates", "device_index", "base", "plain", "trusting", "_composite")

    def __init__(self, base: str, op: object) -> None:
        schema = torch_private.schema(op)
        self.op, self.name, self.overload, self.base = op, schema.name, schema.overload_name, base
        self.arguments = [Argument(a) for a in schema.arguments]
        self.returns = [str(r.type) for r in schema.returns]
        self.single = self.returns == ["Tensor"]
        self.random = torch.Tag.nondeterministic_seeded in op.tags or any(a.name == "generator" for a in self.arguments)
        self.data_dependent = torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags
        self.mutates = any(a.written for a in self.arguments)
        self.views = not self.mutates and any(r.alias_info is not None for r in schema.returns)
        symbolic = set(re.findall(r"SymInt(?:\[\d*\])?\?? (\w+)", str(schema)))
        # Arguments that are numbers of dimensions and the like: no sizes.
        self.plain = tuple(i for i, a in enumerate(self.arguments) if a.kind == "int"
                           and not a.list and a.name not in symbolic)
        # LAPACK's routines exchange the rows that these numbers name, wherever in memory that is: they are given no
        # made-up ones.
        self.trusting = any(a.kind == "Tensor" and "pivots" in a.name for a in self.arguments)
        self._composite = None
        self.device_index = next((i for i, a in enumerate(self.arguments) if a.kind == "Device"), None)

    @property
    def composite(self) -> bool:
        """Whether it is made of other operators, so that its schema does not say all of what its results share with its
        arguments."""
        if self._composite is None:
            self._composite = (self.name.startswith("aten::")
                               and any(map(self.op.has_kernel_for_dispatch_key, torch_private.COMPOSITES)))
        return self._composite

    @property
    def gives_tensors(self) -> bool:
        """Whether it returns tensors, or a list of them, or numbers beside tensors."""
        return self.returns == ["List[Tensor]"] or "Tensor" in self.returns and all(
            r == "Tensor" or r in DTYPES or r == "List[Tensor]" for r in self.returns)

    def draws(self, values: list[object]) -> bool:
        """Whether a call takes random numbers: where it could for its dropout only, there has to be some."""
        return self.random and not any(a.name == "dropout_p" and type(v) in (int, float) and v == 0
                                       for a, v in zip(self.arguments, values))

    def with_numbers(self, results: Node | tuple[Node | None, ...]) -> object:
        """The nodes of its results, with those that are numbers to the program marked as such."""
        if not isinstance(results, tuple) or DTYPES.keys().isdisjoint(self.returns):
            return results
        return tuple(NumberResult(n) if kind in DTYPES and n is not None else n
                     for n, kind in zip(results, self.returns))

    def run(self, values: list[object]) -> torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]:
        """Call it with values of all arguments in schema order."""
        positional = [v for v, a in zip(values, self.arguments) if not a.kwarg_only]
        return self.op(*positional, **{a.name: v for v, a in zip(values, self.arguments) if a.kwarg_only})

    def bind(self, args: Sequence[object], kwargs: dict[str, object], strict: bool = False) -> list | None:
        """Values of all arguments in schema order, or None when they do not fit. ``strict``: what may be None but has
        no default has to be given."""
        if len(args) > len(self.arguments):
            return None
        values, used = [], 0
        for i, a in enumerate(self.arguments):
            if i < len(args):
                if a.kwarg_only:
                    return None
                v = args[i]
            elif a.name in kwargs:
                v = kwargs[a.name]
                used += 1
            elif a.has_default:
                values.append(a.default)
                continue
            elif a.optional and not strict:
                values.append(None)
                continue
            else:
                return None
            if not a.accepts(v):
                return None
            values.append((v,) * a.length if a.list and is_number(v) else v)
        return values if used == len(kwargs) else None


_overloads: dict[str, list[Overload]] = {}


def overloads(name: str) -> list[Overload]:
    """The functional overloads of ``aten::name``, or of ``name`` with its own namespace; empty when there is none."""
    found = _overloads.get(name)
    if found is None:
        found = []
        namespace, _, plain = name.rpartition("::")
        packet = getattr(getattr(torch.ops, namespace or "aten"), plain, None)
        if packet is not None:
            for op in torch_private.overloads_of(packet):
                if any(a.is_out for a in torch_private.schema(op).arguments):
                    continue
                entry = Overload(name, op)
                if not any(a.kind.startswith("Dimname") or a.kind in ("Dict", "t") for a in entry.arguments):
                    found.append(entry)
        _overloads[name] = found
    return found


def _may_draw(fn: object) -> bool:
    """Whether a callable may draw random numbers."""
    of = getattr(fn, "__self__", None)
    known = [of] if isinstance(of, Overload) else overloads(getattr(fn, "__name__", "") or "")
    return not known or any(o.random for o in known)


probe.may_draw = _may_draw


def bind(name: str, args: Sequence[object], kwargs: dict[str, object], b: Builder,
         only: object = None) -> tuple[Overload, list[object]] | None:
    """The first overload that fits, with its argument values. Numbers given for tensors become 0-dim tensors as a last
    resort."""
    candidates = [Overload(name, only)] if only is not None else overloads(name)
    for strict in (True, False):
        for o in candidates:
            values = o.bind(args, kwargs, strict)
            if values is not None:
                return o, values
    # Sizes may be given one by one.
    tail = len(args)
    while tail and is_number(args[tail - 1]):
        tail -= 1
    if tail < len(args):
        for o in candidates:
            if len(o.arguments) > tail and o.arguments[tail].list:
                values = o.bind((*args[:tail], tuple(args[tail:])), kwargs)
                if values is not None:
                    return o, values
    lifted = [b.scalar(v, scalar_dtype(v)) if is_number(v) else v for v in args]
    if any(v is not a for v, a in zip(lifted, args)):
        for o in candidates:
            values = o.bind(lifted, kwargs)
            if values is not None:
                return o, values
    return None


def call(b: Builder, name: str, args: Sequence[float | Node | int], kwargs: dict[str, object], only=None,
         checked: bool = False) -> Node | tuple[Node, ...]:
    """Record ``aten::name`` on Nodes. Returns a Node, a tuple of Nodes, or a list of Nodes. ``checked``: see
    ``record``."""
    return record(b, *functional(b, name, args, kwargs, only), checked)


def functional(b: Builder, name: str, args: Sequence[object], kwargs: dict[str, object],
               only: object = None) -> tuple[Overload, list[object]]:
    """(overload, argument values) of a call of ``aten::name`` that makes tensors. Raises Unsupported for what has no
    such form."""
    found = bind(name, args, kwargs, b, only)
    if found is None:
        raise Unsupported(f"no form of {name} takes these arguments", "check the call against the documentation",
                          kind="unknown-function")
    o, values = found
    if o.data_dependent:
        raise Unsupported(f"the result of {name} depends on the data",
                          "keep it outside the compiled function", kind="data-dependent-shape")
    if o.mutates:
        raise Unsupported(f"{name} changes its arguments and has no functional form here", kind="mutating-op")
    if o.views:
        raise Unsupported(f"{name} returns a view that has no rule here", kind="unknown-function")
    if not o.gives_tensors:
        raise Unsupported(f"{name} does not return tensors", kind="unknown-function")
    return o, values


def as_python(name: str, result: Node | Sequence[Node | TensorHandle]) -> NamedResult | Node | tuple:
    """A result of ``aten::name`` as PyTorch's Python functions return it: lists as tuples, several results as their
    named tuple."""
    if isinstance(result, list):
        return tuple(result)
    if isinstance(result, tuple):
        cls = getattr(torch.return_types, name, None)
        if cls is not None and len(cls.__match_args__) == len(result):
            return NamedResult(cls, cls.__match_args__, result)
    return result


def as_operator(called: object, result: object) -> object:
    """A result as an operator of ``torch.ops`` returns it, be it one overload or all: several results as a plain tuple,
    a list as a list."""
    if isinstance(result, NamedResult):
        return tuple(result)
    if type(result) is tuple:
        returns = [torch_private.schema(o).returns for o in torch_private.overloads_of(called)]
        if any(len(r) == 1 and r[0].type.kind() == "ListType" for r in returns) and max(map(len, returns)) == 1:
            return list(result)
    return result


def shared(o: Overload, values: list[object]) -> tuple | None:
    """For each result of the overload, the ``unstated_views.Shown`` that says which argument's memory it shows, or
    None; None alone where all results are new memory.

    Operators with a type rule make new memory, and so do all that are kernels of their own and not made of others.
    """
    if o.base in registry.LIBRARY or not o.composite or next(nodes_of(values), None) is None:
        return None
    return types_by_probe(o, _with_device(o, values))[2]


def record(b: Builder, o: Overload, values: list[object], checked: bool = False) -> Node | tuple[Node, ...]:
    """An ``aten_call`` of overload ``o`` with all arguments given. ``checked``: whether it may raise, whatever is known
    of the operator otherwise."""
    values = _with_device(o, values)
    if any(type(values[i]) is Dim for i in o.plain):
        values = [specialize(v) if i in o.plain and type(v) is Dim else v for i, v in enumerate(values)]
    if any(type(v) is int and not -(1 << 63) <= v < 1 << 63 for v in values):
        raise Unsupported(f"{o.name} is given a number that does not fit in 64 bits", kind="argument-error")
    types, values = result_types(o, values)
    result = b.aten(o.name, o.overload, tuple(values), types, impure=o.draws(values))
    if checked:
        made = next(r for r in several(result) if r is not None)
        made = made.inputs[0] if made.op == "getitem" else made
        made.attrs = {**made.attrs, CHECKED: True}
    return list(result) if o.returns == ["List[Tensor]"] else o.with_numbers(result)


def result_types(o: Overload, values: list[object]) -> tuple:
    """(the type of each result of a call, or of the one result, by the operator's rule or by a run on meta tensors; the
    values, some of which may have been specialised)."""
    rule = registry.LIBRARY.get(o.base)
    types = NotImplemented if rule is None else rule(*replaced(Node, attrgetter("type"), list(values)))
    if types is NotImplemented:
        types, values, _ = types_by_probe(o, values)
    return tuple(types) if isinstance(types, list) else types, values


def _with_device(o: Overload, values: list[object]) -> list[object]:
    """The values with the device on which an operator makes its result, where it takes one."""
    if o.device_index is not None:
        given = values[o.device_index]
        if given is not None or next(nodes_of(values), None) is None:
            values = list(values)
            values[o.device_index] = resolve_device(given, torch.device("cpu") if op_info(o.base).made_on_cpu
                                                    else torch.get_default_device())
    return values


_meta_cache = Recent(4096)


def types_by_probe(o: Overload, values: list[object]) -> tuple:
    """What a run of the overload on meta tensors says, or several runs where sizes are symbolic; these are specialised
    where that does not tell. Returns (result types, values, shared), see ``shared``."""
    types = shown = None
    like = op_info(o.base).result_like
    if like is not None:
        given = values[next(i for i, a in enumerate(o.arguments) if a.name == like)].type  # type: ignore[attr-defined]
        return given.replace(strides=contiguous_strides(given.shape)), values, None
    if next(dims_of(values), None) is not None:
        types = learned(values, lambda plain: _by_plain_sizes(o, plain))
    if types is None:
        values = _static(values)
        types, shown = _by_plain_sizes(o, values)
    device = (torch.device(values[o.device_index]) if o.device_index is not None and values[o.device_index] is not None
              else _device(values))
    types = tuple([None if t is None else type_of(kind) if kind in DTYPES else t.replace(device=device)
                   for t, kind in zip(types, (*o.returns, *(None for _ in types)))])
    return (types[0] if o.single else types), values, shown


def _by_plain_sizes(o: Overload, values: list[object]) -> tuple:
    """``_by_meta``, once for each call."""
    call = (o.name, o.overload, key(_kind, values), torch.get_default_dtype())
    found = _meta_cache.get(call)
    if found is None:
        found = _meta_cache[call] = _by_meta(o, values)
    return found


def _device(values: list[object]) -> torch.device:
    """The device of the first tensor."""
    return next((n.type.device for n in nodes_of(values)), torch.device("cpu"))


def types_by_run(o: Overload, values: list[float | Node]) -> tuple[TensorType, list[float | Node]]:
    """As ``_meta_types`` for an operator that has a kernel for meta tensors and must not be run on others; nothing is
    remembered. Raises EagerRaises with what that kernel raises."""
    types = None
    if next(dims_of(values), None) is not None:
        types = learned(values, lambda plain: (_run_on_meta(o, plain), None))
    if types is None:
        values = _static(values)
        types = _run_on_meta(o, values)
    return (types[0] if o.single else types), values


def _run_on_meta(o: Overload, values: list[float | Node]) -> tuple[TensorType, ...]:
    device = _device(values)
    with torch.no_grad():
        try:
            result = o.run([StandIns(0, "meta").of(v) for v in values])
        except Exception as error:  # of the user's own kernel
            raise EagerRaises(error) from None
    found = [_type_of(r).replace(device=device) if isinstance(r, torch.Tensor) else type_of_value(r)
             for r in several(result)]
    if None in found:
        raise EagerRaises(TypeError("it returns what is no tensor"))
    return tuple(found)


def _static(values: list[object]) -> list[object]:
    """The values with plain sizes, which are guarded to stay what they are."""
    for node in of_kind(Node, values):
        if node.type.is_symbolic:
            for d in (*node.type.shape, *node.type.strides):
                specialize(d)
    return replaced(Dim, specialize, list(values))


def _kind(v: object) -> tuple[object, ...]:
    if type(v) is Node:
        return "T", tuple(map(hint, v.type.shape)), tuple(map(hint, v.type.strides)), v.type.dtype
    return type(v), v


def _ask(o: Overload, values: list[object], device: str = "meta", grad: bool = False,
         leaves: Collection[Node] = (), fill: int | None = 0) -> Answer:
    """The ``probe.Answer`` to a call of the overload on tensors without data, or with what ``StandIns`` fills in."""
    return ask(o.run, (_on(o, values, device),), {}, StandIns(fill, device, leaves=leaves), grad)


def _ask_with_values(o: Overload, values: list[object]) -> Answer:
    """The answer on the CPU: on zeros, and where they are refused, as weights that sum to zero, on other values."""
    for fill in (0, 1, None):
        answer = _ask(o, values, "cpu", fill=fill)
        if answer.error is None:
            break
    return answer


def _on(o: Overload, values: list[object], device: str) -> list[object]:
    """The values with the meta device in place of the one on which an operator makes its result, for a run without
    data."""
    if device != "meta" or o.device_index is None:
        return values
    return [torch.device("meta") if i == o.device_index else v for i, v in enumerate(values)]


def _by_data(o: Overload, values: list[object]) -> Answer | None:
    """The answer to a run on the CPU, on zeros, of an operator for which the types of its results depend on those of
    its operands alone; None where that may take long, or be refused."""
    nodes = list(nodes_of(values))
    if (not nodes or o.data_dependent or o.trusting or o.mutates or o.random and turns.here()
        # Places that are all zero are in what has any elements.
        or _has_places(nodes) and (o.composite or o.random or any(hint(n.type.numel) == 0 for n in nodes))
        or not o.name.startswith("aten::") or not (o.composite or o.op.has_kernel_for_dispatch_key("Meta"))
        or any(not backend(n.type.device).host for n in nodes)):
        return None
    elements, sizes = sum(hint(n.type.numel) for n in nodes), [*plain_ints(values)]
    sizes += [d for n in nodes for d in map(hint, n.type.shape)]
    if elements > _QUICK_NUMEL or elements * max(map(abs, sizes), default=1) > _QUICK_COST:
        return None
    answer = _ask(o, values, "cpu")
    if answer.error is not None:
        return None
    if o.composite:  # what it is made of may depend on the values
        other = _ask(o, values, "cpu", fill=None)
        if other.error is not None or _types_of(other) != _types_of(answer):
            return None
    return answer


def _types_of(answer: Answer) -> tuple[TensorType | None, ...]:
    return tuple([None if r is None else _type_of(r) for r in several(answer.result)])


def _by_meta(o: Overload, values: list[object]) -> tuple:
    """(types of the results, ``shared``) by a run on meta tensors, or on values for those that have no meta kernel.
    PyTorch's kernels for meta tensors are written in Python, slow, and may load most of PyTorch: see ``_by_data``."""
    shown, with_data = None, _by_data(o, values)
    answer = with_data or _ask(o, values)
    if answer.error is not None:
        meta, answer = answer, _with_values(o, values) if op_info(o.base).typed_by_run else _whatever_values(o, values)
        if answer is None:
            raise _diagnose(o, values, meta.error) from meta.error
    elif o.composite:
        shown = unstated_views.found(answer.result, [answer.given.of(n) for n in nodes_of(values)],
                                     lambda: o.run(answer.given.of(_on(o, values, "meta"))))
    types = _types_of(answer)
    return types if with_data else _as_run(o, values, types), shown


def records(b: Builder, name: str, args: list[Node | None], kwargs: dict[str, bool | float | Node], given: set[Node],
            index: int) -> bool:
    """Whether eager gives result ``index`` of ``aten::name`` a history where the nodes ``given`` among its arguments
    require grad. True for what is no operator of PyTorch's, such as reflected arithmetic."""
    # Which only Python's form of a creation takes.
    found = bind(name, args, {k: v for k, v in kwargs.items() if k != "requires_grad"}, b)
    return found is None or has_history(*found, given, index)


_histories: dict = {}


def has_history(o: Overload, values: list[object], given: set[Node], index: int) -> bool:
    """As ``records``, of an overload. PyTorch is asked, on meta tensors."""
    wanted = tuple([n in given for n in nodes_of(values)])
    call = (o.name, o.overload, key(_kind, values), wanted)
    if call not in _histories:
        _histories[call] = _run_recorded(o, values, given)
    found = _histories[call]
    return found is None or found[min(index, len(found) - 1)]


def _run_recorded(o: Overload, values: list[object], given: set[Node]) -> tuple | None:
    """Which results of a run require grad where ``given`` do: of one on small tensors of zeros, of one on meta tensors
    where that cannot be made, or of one on zeros where it has no such run; None where it has none."""
    result = _small_run(o, values, given)
    if result is None:
        result = _ask(o, values, grad=True, leaves=given).result
    if result is None and _whatever_values(o, values) is not None:
        result = _ask(o, values, "cpu", grad=True, leaves=given).result
    if result is None:
        return None
    return tuple([isinstance(r, torch.Tensor) and r.requires_grad for r in several(result)])


def _small_run(o: Overload, values: list[object], given: set[Node]) -> object:
    """The results of a run on the CPU on tensors of other sizes; None where there is none. PyTorch's kernels for meta
    tensors are written in Python, slow, and may load most of PyTorch."""
    nodes = list(nodes_of(values))
    sizes = smaller(nodes, plain_ints(values))
    if (o.trusting or not o.name.startswith("aten::") or _has_places(nodes)
        or not is_quick(nodes, sizes, values)):
        return None
    return ask(o.run, (values,), {}, StandIns(0, "cpu", sizes, leaves=given), True).result


def _as_run(o: Overload, values: list[object], types: tuple[TensorType | None, ...]) -> tuple[TensorType | None, ...]:
    """``types``, which a meta kernel says, with the strides that the CPU's kernel gives: these differ for transforms
    and decompositions. Only small calls of PyTorch's own operators are made for it, on zeros."""
    nodes = list(nodes_of(values))
    if o.random and _has_places(nodes) or o.trusting or not o.name.startswith("aten::") or not nodes:
        return types
    if any(not backend(n.type.device).host or hint(n.type.numel) > _PROBED_NUMEL for n in nodes):
        return types
    real = _ask(o, values, "cpu").result
    if real is None:  # it refuses zeros, such as a matrix that is not invertible
        return types
    return tuple([a if a is None or not isinstance(r, torch.Tensor) or tuple(r.shape) != a.shape
                  else a.replace(strides=r.stride())
                  for a, r in zip(types, several(real))])


def _with_values(o: Overload, values: list[object]) -> Answer:
    """The answer to a run on the CPU."""
    if any(hint(n.type.numel) > _VERIFY_NUMEL for n in nodes_of(values)):
        raise Unsupported(f"{o.name} has no shape rule", kind="no-shape-rule")
    answer = _ask_with_values(o, values)
    if answer.error is not None:
        raise EagerRaises(answer.error)
    return answer


def _has_places(nodes: Iterable[Node]) -> bool:
    """Whether there are integers, which may be places in memory or offsets that a kernel does not check."""
    return any(not (t.is_floating_point or t.is_complex or t is torch.bool) for t in (n.type.dtype for n in nodes))


_LARGE = 1 << 20  # more than any length that a program gives beside such values


def _whatever_values(o: Overload, values: list[object]) -> Answer | None:
    """The answer to a run on the CPU where those for zeros, ones, large and other values are alike but for what they
    hold: the sizes follow from those of the arguments. None where that is not known."""
    nodes = list(nodes_of(values))
    large = any(hint(n.type.numel) > _VERIFY_NUMEL for n in nodes)
    if large or o.trusting or not o.name.startswith("aten::") or _has_places(nodes):
        return None
    answers = [_ask(o, values, "cpu", fill=fill) for fill in (0, 1, None, _LARGE)]
    if any(answer.error is not None for answer in answers):
        return None
    first, *others = [[(r.shape, r.stride(), r.dtype, r.layout, r.is_quantized) if isinstance(r, torch.Tensor) else r
                       for r in several(answer.result)] for answer in answers]
    return answers[0] if all(other == first for other in others) else None


def _type_of(t: torch.Tensor | float) -> TensorType:
    number = type_of_value(t)
    if number is not None:
        return number
    if t.layout is not torch.strided or t.is_quantized:
        raise Unsupported("a result that is sparse or quantized", kind="tensor-layout")
    return TensorType(tuple(t.shape), tuple(t.stride()), t.dtype, torch.device("cpu"))


def nodes_of(v: object) -> Iterator[Node]:
    """The Nodes in nested values, in order."""
    return of_kind(Node, v)


def _diagnose(o: Overload, values: list[int | Node], error: Exception) -> EagerRaises:
    """EagerRaises when a real run raises too, whatever the values, else Unsupported."""
    if not o.trusting and all(hint(n.type.numel) <= _VERIFY_NUMEL for n in nodes_of(values)):
        real = _ask_with_values(o, values).error
        if real is not None:
            return EagerRaises(real)
    return Unsupported(f"{o.name} has no shape rule: {error}", kind="no-shape-rule")
