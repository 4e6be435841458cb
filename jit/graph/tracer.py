"""Tracer: turns calls of torch functions on TensorHandles into a Graph.

``call`` finds the op (``binding``), hands Nodes to its expansion (``registry.OPS``) or records a library call
(``aten``), and wraps results into handles. In-place forms, ``out=`` and views are dealt with here, in ``changes`` and
in ``handles``; no op needs to know of them.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit import failures, torch_private
from jit.devices import backend
from jit.errors import EagerRaises, JitError, NeedsEager, Unsupported
from jit.graph import (
    aten, autocast, changes, constants, foreign, layout, memory, pairs, refusals, results, saved_tensors,
    unstated_views, unwritable,
)
from jit.graph.attributes import attribute
from jit.graph.binding import resolve
from jit.graph.build import Builder, is_number, result_dtype
from jit.graph.dims import Dim, bounds, specialize
from jit.graph.input_strides import symbolic_strides
from jit.graph.nested import holds, of_kind, refilled, replaced, several
from jit.graph.shape_env import ShapeEnv
from jit.graph.foreach import foreach
from jit.graph.handles import (
    Base, NamedResult, TensorHandle, ViewStep, conform, may_overlap_itself, next_version,
    overlaps_itself, replay, restriction, scatter, to_node, to_nodes, view_path,
)
from jit.graph.ir import Graph, Loc, Node, TensorType, same_ints
from jit.graph.journal import Journal
from jit.graph.prim_info import info
from jit.graph.prims import VIEWS, base_of
from jit.graph.recording import Recording, result_is_differentiable
from jit.graph.registry import LIBRARY, OPS, Op, complex_form
from jit.graph.sym_float import plain

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.memory import Region
    from jit.graph.recording import Gradient
    from jit.graph.sym_float import SymFloat

RENAMED = {"input": "self", "axis": "dim", "keepdims": "keepdim", "x": "self",
           "a": "self", "x1": "self", "x2": "other", "a_min": "min", "a_max": "max"}
_DIFFERENTIABLE = frozenset(d for d in vars(torch).values() if isinstance(d, torch.dtype)
                            and (d.is_floating_point or d.is_complex))


_WRAPPED = TensorType((), (), torch.float64, torch.device("cpu"))  # a Python number among the operands


class Tracer:
    """Records tensor operations.

    Attributes:
        env: the ShapeEnv of size symbols.
        journal: takes back what was recorded: nodes, inputs, versions, grad mode, size guards.
        builder: the Builder that owns the nodes.
        inputs: handles of the graph inputs, in order.
        autocast: device type -> dtype, where autocast is on at this point of the program.
        needs_grad: whether eager would have recorded any of the operations for autograd.
        made_leaves: the bases of tensors that the program made to require grad; None for one that is a constant.
        regions: of inputs that share memory (memory.Region).
        either: bases of which one may be the memory of another, as the way decides that the program takes.
        places: (origin of an input, its offset in its storage) of those inputs where the program relies on it.
        decompose: False records operations whole, as library calls, where they have more than one step: the graph then
            gives eager's results bit for bit.
    """

    def __init__(self, env: ShapeEnv | None = None, decompose: bool = True) -> None:
        self.decompose = decompose
        self.env = env if env is not None else ShapeEnv()
        self.builder = Builder(self.env)
        self.inputs: list[TensorHandle] = []
        self.devices: set[torch.device] = set()  # of the inputs
        self.expects: Callable[[torch.device], None] = lambda device: None  # told of each
        self.stretches = memory.Stretches()  # of the inputs, and of those that a rollback has taken back
        # Whether autograd takes no part at all, as in a __torch_dispatch__: views are none to it.
        self.below = torch_private.below_autograd()
        self.inference = torch.is_inference_mode_enabled()
        self.set_grad_enabled(torch.is_grad_enabled())
        self.needs_grad, self.made_leaves = False, tuple[Any, ...]()
        self.unfolding, self.written_before = None, 0  # see ``backward.unfolded``; memory from outside of a map
        self.forward_mode = 0  # the level that torch.func.jvp made, where autograd is used; PyTorch does without
        self.captured_before = 0  # memory from outside of a gradient of torch.func; 0 where there is none
        self.inner_leaves: tuple = ()  # the handles of such tensors that an operation made
        self.inner_gradients = False  # whether the graph has ``gradient`` nodes, or ``collected`` ones
        self.spent: frozenset = frozenset()  # nodes whose history a backward() has freed
        self.autocast = autocast.enabled()
        self.regions: list[memory.Region] = []
        self.places: tuple = ()
        self.either: tuple[Base, ...] = ()
        self.apart = False  # whether what is traced is a round of a loop, or a way of a branch: a graph of its own
        self.depth = 0  # of calls inside calls
        # From whether a foreign operator's kernel is in Python to why it is no step of the graph, or None; see
        # foreign.py.
        self.steps_aside, self.quiet_kernel, self.types_of_results = None, False, None
        # From a 0-dim boolean to whether the capture may go on as if it were true; None where nothing is so taken.
        self.assume = None
        self.events: list[saved_tensors.Event] = []  # operations of which autograd may keep something, and writes
        self.wrote: tuple = ()  # bases that the present operation has written
        # (base, how many events there were) of writes by way of ``data``, which no version counter tells
        self.wrote_unseen: tuple = ()
        # Whether the present call may be refused, so that only PyTorch's own operator will do; see refusals.py.
        self.doubted = False
        self.journal = Journal()
        self.journal.grows(self.builder.nodes, self.inputs, self.events)
        self.journal.saves(self.builder, "next_id")
        self.journal.saves(self, "grad_enabled", "below", "needs_grad", "made_leaves", "wrote", "wrote_unseen")
        self.journal.includes(self.env.journal)

    # state that can be rolled back

    def set(self, obj: Base | TensorHandle | Region | Tracer, name: str, value: object) -> None:
        """Set an attribute of a handle, base or this tracer."""
        self.journal.set_field(obj, name, value)

    def set_grad_enabled(self, enabled: bool) -> None:
        self.grad_enabled = bool(enabled) and not (self.below or self.inference)  # there it may be on, and does nothing

    def set_autocast(self, enabled: dict) -> None:
        """``enabled``: device type -> dtype, for the devices for which autocast is on from here."""
        self.set(self, "autocast", enabled)

    # inputs

    def input(self, example: torch.Tensor, origin, dynamic_dims: Collection[int] = (),
              dynamic_strides: Collection[int] = ()) -> TensorHandle:
        """A graph input of the example's shape, strides, dtype and device.

        Sizes in ``dynamic_dims`` become symbols, and so do strides that are products of them and those in
        ``dynamic_strides``. Raises Unsupported for
        tensors that are not plain strided ones.
        """
        if example.layout is not torch.strided or example.is_quantized or example.is_nested:
            raise Unsupported(f"a {str(example.layout)[6:]} or quantized tensor is used", kind="tensor-layout")
        if example.is_conj() or example.is_neg():
            raise Unsupported("a tensor is used that has its conjugate or negative bit set",
                              "call resolve_conj() first", kind="lazy-conjugate")
        shape = tuple(self.env.symbol(n, (origin, "size", d)) if d in dynamic_dims else int(n)
                      for d, n in enumerate(example.shape))
        strides = (symbolic_strides(example, shape, self.env, origin, dynamic_strides)
                   if dynamic_strides or any(type(s) is Dim for s in shape) else tuple(example.stride()))
        t = TensorType(shape, strides, example.dtype, example.device)
        if example.device not in self.devices:
            self.devices.add(example.device)
            self.expects(example.device)
        node = self.builder.node("input", (), {"index": len(self.inputs)}, t)
        base = Base(node, node, example, example.requires_grad)
        base.extent = memory.extent(example)
        handle = TensorHandle(self, base, (), node, example.requires_grad, origin)
        handle.is_leaf = example.is_leaf
        memory.check_apart(base, [other for other in self._near(base) if other.mutated])
        self.inputs.append(handle)
        self.stretches.add(base)
        return handle

    def _near(self, base: Base) -> list[Base]:
        """The inputs that may share memory with an input, the first ones first."""
        places = [(b.input.attrs["index"], b) for b in self.stretches.near(base)]
        return [b for at, b in places if at < len(self.inputs) and self.inputs[at].base is b]

    def shared_input(self, region: memory.Region, example: torch.Tensor, origin) -> TensorHandle:
        """A handle for a tensor of a region whose flat input is there."""
        handle = region.member(self, example, origin)
        handle.is_leaf = example.is_leaf
        return handle

    def region_of(self, example: torch.Tensor) -> memory.Region | None:
        """The region that an input belongs to."""
        return next((r for r in self.regions for t in r.tensors if t is example), None)

    def constant(self, value: torch.Tensor) -> TensorHandle:
        """A tensor made while tracing, of one element or small: its values become part of the graph."""
        if value.numel() > 64:
            raise Unsupported("a tensor of many elements is made from Python numbers", kind="large-constant")
        b = self.builder
        self.made_leaves += (None,) * value.requires_grad
        values = [0] * value.numel() if value.is_meta else value.flatten().tolist()
        scalars = [b.scalar(v, value.dtype, value.device) for v in values]
        if value.dim() == 0:
            node = scalars[0]
        elif not scalars:
            node = b.full(tuple(value.shape), 0, value.dtype, value.device)
        else:
            rows = [b.reshape(s, (1,)) for s in scalars]
            node = b.reshape(b.cat(rows, 0) if len(rows) > 1 else rows[0], tuple(value.shape))
        return self.fresh(b.clone(node) if info(node.op).kind in ("number", "view") else node,
                          value.requires_grad)

    # calls

    def supports(self, fn: Callable) -> bool:
        """Whether ``call`` knows this callable."""
        return resolve(fn) is not None

    def takes_sym_floats(self, fn: Callable) -> bool:
        """Whether numbers among the operands of this callable may be ``SymFloat``."""
        binding = resolve(fn)
        if binding is None or binding.python is not None:
            return False
        name = binding.name.removeprefix("_foreach_")
        entry = OPS.get(name) or OPS.get(name.removesuffix("_"))
        return entry is not None and (entry.wraps or entry.numbers)

    def call(self, fn: Callable, args: Sequence[object] = (), kwargs: dict[str, object] | None = None,
             loc: Loc | None = None) -> object:
        """The result of ``fn(*args, **kwargs)``: handles, tuples, lists, ``SymSize``, ``NamedResult``, ints, Dims,
        dtypes...

        Raises EagerRaises for what eager refuses too, Unsupported for what cannot be captured.
        """
        kwargs = kwargs or {}
        binding = resolve(fn)
        if binding is not None and binding.overload is not None and foreign.is_foreign(binding.name):
            self.builder.loc = loc
            return foreign.call(self, binding.name, binding.overload, args, kwargs)
        start = self.builder.next_id
        known = constants.worth_trying(args) or kwargs and constants.worth_trying(kwargs)
        mark = self.journal.checkpoint() if known else None
        self.depth += 1
        try:
            try:
                result = self._call(fn, args, kwargs, loc)
            except JitError as error:
                return constants.again(self, fn, args, kwargs, error, mark)
        except Unsupported as error:
            if self.depth == 1:
                tell(error, fn, loc)
            raise
        finally:
            self.depth -= 1
        if self.depth == 0 and not (loc is not None and loc.region):  # what is checkpointed is kept by nobody
            wrote = self.wrote
            if wrote:
                self.wrote = ()
            if wrote or self.grad_enabled:
                saved_tensors.note(self, fn, args, kwargs, result, wrote, loc, start)
        return result

    def _call(self, fn: Callable, args: Sequence[object], kwargs: dict[str, object], loc: Loc | None) -> object:
        binding = resolve(fn)
        if binding is None:
            raise Unsupported(f"{getattr(fn, '__qualname__', fn)} is not a tensor operation that is known",
                              kind="unknown-function")
        self.builder.loc = loc if loc is None or loc.call else Loc(*loc[:5], binding.name)
        outer, self.doubted = self.doubted, refusals.check(self, fn, binding, args, kwargs)
        mark, sized = self.journal.checkpoint(), any(type(v) is Dim for v in (*args, *kwargs.values()))
        try:
            if binding.python is not None:
                return binding.python(self, *args, **kwargs)
            if binding.reflected is not None and not isinstance(args[0], TensorHandle):
                if binding.name == "remainder" and isinstance(args[0], (str, bytes)):
                    raise Unsupported("a string is formatted with a tensor", kind="format")
                return self.call_op(binding.reflected, (args[1], args[0]), kwargs)
            if binding.unreduced is not None and len(args) <= binding.unreduced and "reduction" not in kwargs:
                kwargs = {**kwargs, "reduction": 0}
            result = self.call_op(binding.name, args, kwargs, binding.overload)
            return result if binding.overload is None else aten.as_operator(binding.overload, result)
        except JitError as error:
            if isinstance(error, EagerRaises) and binding.python is None:  # nothing is done, and nothing drawn
                self.journal.rollback(mark)
                refusals.keep_sizes((args, kwargs))
            if not sized or getattr(error, "kind", None) != "internal":
                raise
        except Exception as error:  # eager's own, or a rule's that wants plain ints; ``confirmed`` tells ours
            if not sized:
                raise refusals.confirmed(error, fn, args, kwargs) from error
        finally:
            self.doubted = outer
        # A rule that wants a plain int, such as the number of a dimension: it is known from here on.
        self.journal.rollback(mark)
        fixed = self.env.specialize
        return self.call(fn, tuple(fixed(v) if type(v) is Dim else v for v in args),
                         {k: fixed(v) if type(v) is Dim else v for k, v in kwargs.items()}, loc)

    def call_op(self, name: str, args: Sequence[object], kwargs: dict[str, object], overload: object = None) -> object:
        """Run the op called ``name`` on arguments that hold handles."""
        if self.autocast:
            cast = autocast.convert(self, name, args, kwargs)
            if cast is not None:
                active, self.autocast = self.autocast, {}  # what the op is made of sees none of it
                try:
                    return self.call_op(name, *cast, overload)
                finally:
                    self.autocast = active
        if kwargs:
            own = _parameters(name)
            kwargs = {k if k in own else RENAMED.get(k, k): v for k, v in kwargs.items()}
            if "out" in kwargs:
                out = kwargs.pop("out")
                if out is not None:
                    return changes.out(self, name, args, kwargs, out)
            if "self" in kwargs:
                args = (kwargs.pop("self"), *args)
        if name.startswith("_foreach_"):
            made = foreach(self, name, args, kwargs)
            if made is not NotImplemented:
                return made
        entry = self._entry(name, args, kwargs)
        self.builder.recording = self.grad_enabled and _has_gradient((args, kwargs))
        if entry is None:
            if name.endswith("_") and not name.endswith("__"):
                return changes.inplace(self, name[:-1], args, kwargs)
            return self._call_aten(name, args, kwargs, overload)
        if entry.alias:
            args, kwargs = replaced(Dim, _settled, (tuple(args), kwargs))
        if entry.raw:
            made = entry.fn(self, *_pack(entry, args), **kwargs)
            return made if made is not NotImplemented else self._call_aten(name, args, kwargs, overload)
        if not entry.alias:
            args = self._on_one_device(args, entry.pointwise)
        start, first = self.builder.next_id, len(self.builder.nodes)
        handles: list = []
        nodes = to_nodes(_pack(entry, args), handles)
        named = {k: to_node(v, handles) for k, v in kwargs.items()}
        if entry.pointwise and not handles:
            return constants.of_numbers(self, name, args, kwargs, overload)
        try:
            result = entry.fn(self.builder, *nodes, **named)
        except TypeError as error:
            if error.__traceback__.tb_next is not None:  # raised inside the expansion, not by its signature
                raise
            result = NotImplemented
        if result is NotImplemented:
            return self._call_aten(name, args, kwargs, overload)
        if not self.decompose and not entry.alias and len(self.builder.nodes) - first > 1:
            result = self._whole(name, args, kwargs, result, first) or result
        if entry.pointwise and result.op != "aten_call":
            operands = [*nodes, *(v for k, v in named.items() if k not in _keyword_only(entry.fn))] if named else nodes
            if entry.swapped:
                operands = operands[::-1]
            result = self._iterator_layout(result, operands, start, entry)
        asked = (None if entry.alias or not self.builder.recording else lambda given,
                 k: aten.records(self.builder, name, nodes, named, given, k))
        made = self.wrap(result, handles, entry.alias, start, name, asked)
        for view in made if entry.several else ():
            if view.chain:
                self.restrict(view, "several")
        if not entry.alias and _gives_back(result, start):
            # What may be a copy in eager, or the argument itself.
            found = aten.bind(name, nodes, named, self.builder)
            shown = None if found is None else self._shown(*found, handles, result)
            return made if shown is None else _put(made, shown)
        return made

    def _entry(self, name: str, args: Sequence[object], kwargs: dict[str, object]) -> Op | None:
        """The op's entry, or None where it is left to the library: what has no form for complex numbers is, among which
        it is given some, and what may be refused."""
        entry = OPS.get(name)
        if self.doubted and entry is not None and not entry.alias and not entry.raw and aten.overloads(name):
            return None
        if entry is None or entry.alias or entry.raw or not (any(map(_is_complex, args))
                                                             or any(map(_is_complex, kwargs.values()))):
            return entry
        return complex_form(name) if aten.overloads(name) else entry

    def compute(self, name: str, args: Sequence[object], kwargs: dict[str, float | int | SymFloat]) -> tuple:
        """Nodes that the functional op ``name`` gives for arguments that hold handles; for in-place and ``out=``
        forms."""
        handles: list = []
        entry = self._entry(name, args, kwargs)
        result = NotImplemented
        if entry is not None and entry.raw:
            result = entry.fn(self, *_pack(entry, args), **kwargs)
            return (result.node, list(of_kind(TensorHandle, args))) if isinstance(result,
                TensorHandle) else (result, [])
        if entry is None or not entry.alias:
            args = self._on_one_device(args, entry is not None and entry.pointwise)
        if entry is not None:
            nodes = to_nodes(_pack(entry, args), handles)
            try:
                result = entry.fn(self.builder, *nodes, **{k: to_node(v, handles) for k, v in kwargs.items()})
            except TypeError as error:
                if error.__traceback__.tb_next is not None:
                    raise
        if result is NotImplemented:
            handles = []
            args, kwargs = plain(args), plain(kwargs)
            nodes = to_nodes(args, handles)
            named = {k: to_node(v, handles) for k, v in kwargs.items()}
            result = aten.as_python(name, aten.call(self.builder, name, nodes, named, checked=self.doubted))
        return result, handles

    def _whole(self, name: str, args: tuple[object, ...], kwargs: dict[str, int], result: Node,
               start: int) -> Node | None:
        """One ``aten_call`` in place of an expansion, with the types that the expansion found; None when there is no
        such call."""
        if not isinstance(result, Node) or sum(n.op != "cast" and info(n.op).kind != "number"
                                               for n in self.builder.nodes[start:]) < 2:
            return None
        handles: list = []
        args, kwargs = plain(args), plain(kwargs)
        nodes = to_nodes(args, handles)
        found = aten.bind(name, nodes, {k: to_node(v, handles) for k, v in kwargs.items()}, self.builder)
        if found is None or found[0].mutates or len(found[0].returns) != 1:
            return None
        overload, values = found
        return self.builder.aten(overload.name, overload.overload, tuple(values), result.type, impure=overload.random)

    def _on_one_device(self, args: Sequence[object], elementwise: bool) -> tuple[object, ...] | list[object]:
        """The arguments, with 0-dim CPU tensors among operands of an elementwise op that are elsewhere moved. Raises
        Unsupported for other mixtures."""
        device = mixed = None
        for a in args:
            if type(a) is TensorHandle:
                if device is None or a.type.shape and a.type.device != device:
                    mixed = mixed or device is not None
                    device = a.type.device
                elif a.type.device != device:
                    mixed = True
        if not mixed:
            return args
        device = next((a.type.device for a in args if type(a) is TensorHandle and not backend(a.type.device).host),
                      device)
        moved = []
        for a in args:
            if type(a) is TensorHandle and a.type.device != device:
                if not elementwise or a.type.shape:
                    raise Unsupported("tensors on several devices are the operands of one operation",
                                      "move them to one device first", kind="device")
                a = self.call_op("to", (a, device), {})
                self.builder.moved.add(a.node)
            moved.append(a)
        return tuple(moved)

    def _call_aten(self, name: str, args: Sequence[object], kwargs: dict[str, object],
                   overload: object = None) -> TensorHandle | NamedResult | tuple[TensorHandle, ...]:
        handles: list = []
        if kwargs.get("requires_grad") is False:  # of a Python function that makes a tensor
            kwargs = {k: v for k, v in kwargs.items() if k != "requires_grad"}
        if not holds(TensorHandle, (args, kwargs)) and not aten.overloads(name):
            raise Unsupported(f"{name} has no tensor argument", kind="unknown-function")
        args, kwargs = self._on_one_device(plain(args), False), plain(kwargs)
        nodes = to_nodes(args, handles)
        only = overload if overload is not None and isinstance(overload, torch_private.OpOverload) else None
        if only is not None and any(a.alias_info is not None and a.alias_info.is_write
                                    for a in torch_private.schema(only).arguments):
            return changes.inplace(self, name.rstrip("_"), args, kwargs)
        named = {k: to_node(v, handles) for k, v in kwargs.items()}
        o, values = aten.functional(self.builder, name, nodes, named, only)
        shown = self._shown(o, values, handles)
        if shown is None or None in shown:
            result = aten.record(self.builder, o, values, self.doubted)
            result = self.wrap(result if overload is not None else aten.as_python(name, result), handles, False,
                0, name, lambda given, k: o.base in LIBRARY or aten.has_history(o, values, given, k))
            return result if shown is None else _put(result, shown)
        result = shown[0] if o.returns == ["Tensor"] else shown
        return result if overload is not None else aten.as_python(name, result)

    def _shown(self, o: aten.Overload, values: list[object], handles: list[TensorHandle],
               expansion: tuple = ()) -> list | None:
        """For each result of an operator, the handle where it is an argument or a view of one though the schema does
        not say so, else None; None alone where all of it is new memory. ``expansion``: the nodes that an expansion made
        for the results."""
        shown = aten.shared(o, values)
        if shown is None:
            return None
        left, given = list(handles), []
        for node in aten.nodes_of(values):
            k = next((k for k, h in enumerate(left) if h.node is node), None)
            given.append(None if k is None else left.pop(k))
        own = list(aten.nodes_of(expansion)) or [None] * len(shown)
        by_position = not any(a.kwarg_only for a in o.arguments)
        calls = [(o.op, tuple(values[1:]), k) if by_position else None for k in range(len(shown))]
        return [None if s is None else unstated_views.show(self, given[s.argument], s, *made)
                for s, *made in zip(shown, own, calls)]

    def _iterator_layout(self, node: Node, args: list[object], start: int, entry: Op) -> Node:
        """Give the result of an elementwise op the strides that TensorIterator computes from its operands.

        Where operands of another dtype than the common one are converted first, that makes them dense; conditions and
        masks are not converted.
        """
        tensors = list(of_kind(Node, args))
        types = [a.type for a in tensors]
        if not types:
            return node
        if entry.wraps and any(is_number(a) for a in args[:3]):
            types.append(_WRAPPED)
        if backend(types[0].device).converts_operands and any(not t.is_contiguous for t in types):
            masks = [a for a in tensors if entry.masks and a.dtype is torch.bool]
            common = result_dtype(*(a for a in args if isinstance(a, Node) and a not in masks or is_number(a)),
                                  *([] if len(masks) < len(tensors) else masks))
            if node.type.dtype.is_floating_point and not common.is_floating_point:
                common = node.type.dtype
            types = [t if t.dtype is common or t is _WRAPPED or t.dtype is torch.bool and entry.masks
                     else layout.empty_like(t) for t in types]
        strides = (layout.preserved_strides(types[0]) if entry.like_first
                   else layout.iterator_strides(node.type.shape, types))
        if same_ints(strides, node.type.strides):
            return node
        if node.type.dtype.is_complex:
            return pairs.laid_out(self.builder, node, strides, start)
        if node.id >= start and info(node.op).kind not in ("view", "number", "input"):
            node.type = node.type.replace(strides=strides)
            return node
        return self.builder.clone(node, strides)

    # results

    def fresh(self, node: Node, requires_grad: bool = False) -> TensorHandle:
        """A handle on new memory that holds ``node``."""
        handle = TensorHandle(self, Base(node, carries=requires_grad), (), node, requires_grad)
        handle.is_leaf = not requires_grad
        return handle

    def _records_grad(self, handles: list[TensorHandle]) -> bool:
        return self.grad_enabled and any(h.requires_grad for h in handles)

    def check_history(self, handles: Sequence[TensorHandle]) -> None:
        """Autograd refuses the history of a restricted view that was written, whoever asks for it."""
        if any(h.stale and h.requires_grad for h in handles):
            raise NeedsEager("a view made under no_grad or by a call with several results was changed in place, and is "
                             "used where gradients are recorded", "clone() it", kind="gradient")

    def wrap(self, result: NamedResult | Node | tuple[Node, ...] | list, handles: list[TensorHandle], alias: bool,
             start: int, name: str = "",
             asked: Callable | None = None) -> TensorHandle | NamedResult | tuple[TensorHandle, ...]:
        """Handles for the nodes of a result, with the same Python structure. ``name``: of the op, which says whose
        results have no gradient. ``asked``: see ``Recording``, with the number of the result behind."""
        carries = {h.node for h in handles if h.requires_grad}
        given = [h.node for h in handles] if carries else ()
        if carries and self.grad_enabled:
            self.check_history(handles)

        def wrapped(node: Node, index: int) -> TensorHandle:
            grad = None
            if carries:
                ask = None if asked is None else lambda nodes: asked(nodes, index)
                grad = Recording(self.grad_enabled and result_is_differentiable(name, index), carries, given, ask)
            return self._wrap_node(node, handles, alias, grad, start)

        return refilled(result, [wrapped(r, i) if isinstance(r, Node) else r for i, r in enumerate(several(result))])

    def _wrap_node(self, node: Node, handles: list[TensorHandle], alias: bool, grad: Recording | None,
                   start: int) -> TensorHandle:
        if alias:
            for h in handles:
                path = view_path(node, h.node)
                if path == ():
                    return h
                if path is not None:
                    return self.view(h, path, node)
        elif node.id < start or node.op in VIEWS:
            # An expansion gave back an argument or a view of one: the result is new memory all the same.
            if base_of(node).id < start or overlaps_itself(node.type):
                node = self.builder.clone(node)
        elif info(node.op).kind == "number":
            node = self.builder.clone(node)
        if grad is None or node.type.dtype not in _DIFFERENTIABLE:
            return self.fresh(node)
        if (info(node.op).kind in ("call", "part") and node.id >= start and grad.enabled
            and grad.asked is not None and not grad.asked(grad.carry)):
            return self.fresh(self.builder.detach(node))
        reached = grad.reached(node)
        missing = grad.missing(reached)
        if missing:
            node = self.builder.with_zero_gradients(node, missing)
        elif not reached:
            return self.fresh(node)
        if not grad.enabled:
            return self.fresh(self.builder.detach(node))
        self.needs_grad = True
        return self.fresh(node, True)

    def view(self, handle: TensorHandle, path: tuple[ViewStep, ...], node: Node, of_base: bool = False) -> TensorHandle:
        """A handle that shows part of ``handle``'s memory: the view ``path`` of it, or, with ``of_base``, of the value
        that has that memory."""
        grad = (handle.requires_grad and node.type.dtype in _DIFFERENTIABLE
                and not any(step.op == "detach" for step in path))
        if grad and not self.grad_enabled:
            node = self.builder.detach(node)
            path = (*path, ViewStep(node))
        result = TensorHandle(self, handle.base, tuple(path) if of_base else handle.chain + tuple(path), node)
        why = "no_grad" if not self.grad_enabled and node.type.dtype in _DIFFERENTIABLE else restriction(handle.chain)
        if result.chain and why and not self.below:
            self.restrict(result, why)
        if handle.base.region is not None:
            result.member = handle.base.region.owner(handle)
        if grad and self.grad_enabled:
            result.requires_grad, result.is_leaf = True, False
            self.needs_grad = True
        elif grad and not self.below:
            # It requires grad all the same where its base does, as a leaf: the gradient of what is computed from it
            # leads nowhere.
            cast = any(step.op == "reinterpret" and step.attrs["how"] == "dtype" for step in path)
            result.requires_grad = handle.views_require_grad and not cast
        return result

    def restrict(self, view: TensorHandle, why: str) -> None:
        """Of one of several views that an operation gave, or one made where gradients are not recorded, or a view of
        such a one: see ``ViewStep``."""
        view.chain[-1].restricted = why
        self.set(view.base, "restricted", (*view.base.restricted, weakref.ref(view)))

    def write(self, target: TensorHandle, value: Node, handles: Sequence[TensorHandle] = (),
              inplace: bool = True) -> None:
        """Make ``value`` (cast and broadcast to the target's type) the content of ``target``, through its view chain.
        ``inplace``: as an in-place operation does, and not as one that changes a tensor besides what it gives."""
        b = self.builder
        base = target.base
        came = base.input is not None  # whenever the program has first used it
        if base.version < self.written_before or self.written_before and came:
            raise Unsupported("a tensor from outside of torch.vmap is changed in it", "clone() it", kind="functorch")
        if inplace and (base.version < self.captured_before or self.captured_before and came):
            raise Unsupported("a tensor from outside of a gradient of torch.func is changed in it, which eager refuses",
                              "clone() it", kind="functorch")
        if base in self.either:
            raise Unsupported("a tensor is changed that may be another one, as a branch on values decides",
                              "clone() it", kind="overlapping-memory")
        # Eager allows some; they change elements that the view does not show, or one element several times.
        if (any(map(overlaps_itself, (target.type, base.type))) or target.chain
            and may_overlap_itself(target.type) or base.input is not None and may_overlap_itself(base.type)):
            raise Unsupported("a write to a tensor of which several elements share memory",
                              "clone() it first", kind="overlapping-memory")
        self.check_selections(base)
        grad = self.check_change(target, handles)
        if grad and any(step.op == "detach" for step in target.chain):
            raise NeedsEager("a detached tensor is written with values that carry a gradient",
                             "clone() it first", kind="gradient")
        if not self.grad_enabled and any(h.requires_grad for h in handles):
            if value.type.dtype in _DIFFERENTIABLE:
                value = b.detach(value)
        value = conform(b, value, target.type, strides=not target.chain)
        if grad and target.requires_grad and not Recording(True, {target.node}).reached(value):
            # The gradient of what is overwritten is zero, and not undefined.
            value = conform(b, b.where(b.scalar(True, torch.bool, target.device), value, target.node),
                            target.type, strides=not target.chain)
        if target.chain:
            parents = [base.node]
            for step in target.chain:
                parents.append(replay(b, parents[-1], (step,)))
            for step, parent in zip(reversed(target.chain), reversed(parents[:-1])):
                value = scatter(b, step, parent, value)
            value = _unwound(conform(b, value, base.type))
        elif info(value.op).kind in ("input", "number") or overlaps_itself(value.type):
            value = b.clone(value, base.type.strides)
        if base.carries and not grad:
            value = b.with_gradient_of(value, base.node)
        self.set(base, "node", value)
        self.set(base, "version", next_version())
        if base.input is not None and not base.mutated:
            memory.check_apart(base, self._near(base))
            self.set(base, "mutated", True)
        by_data = any(step.attrs.get("asked") == "data" for step in target.chain)
        if not by_data:
            self.wrote = (*self.wrote, base)
            for view in filter(None, [ref() for ref in base.restricted]):
                self.set(view, "stale", True)
        else:
            self.wrote_unseen = (*self.wrote_unseen, (base, len(self.events)))
        if base.input is not None and not by_data:
            self.set(base, "noted", True)
            if base.region is not None:
                self._note_writer(base.region, target, grad)
        if grad:
            self.set(base, "grad", True)
            self.set(base, "carries", True)
            self.needs_grad = True

    def check_selections(self, base: Base) -> None:
        """A copy that stands for a view is no longer right when what it was read from is written, or shows other
        places."""
        if base.frozen is not None or any(s() is not None for s in base.shadows):
            raise Unsupported("a write to a tensor of which one element was selected by a 0-dim tensor",
                              "select with an int, or clone() the selection", kind="tensor-select")

    def check_change(self, target: TensorHandle, handles: Sequence[TensorHandle] = ()) -> bool:
        """Whether an in-place operation of ``target`` is recorded for the gradient, where its other operands are
        ``handles``. Raises what eager raises for those that autograd refuses, also where only the shape is changed."""
        base = target.base
        if self.grad_enabled and not restriction(target.chain) and (refused := unwritable.refusal(target)):
            raise refused
        grad = target.type.dtype in _DIFFERENTIABLE and self._records_grad([target, *handles])
        by_data = any(step.attrs.get("asked") == "data" for step in target.chain)
        # Of one of several views eager refuses the history behind any change, wherever that was made.
        stale = target.requires_grad and restriction(target.chain) == "several" and not by_data
        if (grad or self.grad_enabled and base.carries) and restriction(target.chain) or stale:
            raise NeedsEager("a view is changed in place where gradients are recorded, and it was made under no_grad "
                             "or by a call with several results", "clone() it first", kind="gradient")
        others = [view for ref in base.restricted if (view := ref()) not in (None, target)]
        if others and (grad or target.requires_grad or not by_data and any(view.requires_grad for view in others)):
            raise NeedsEager("a tensor is changed in place that has views which were made under no_grad or by a call "
                             "with several results", "clone() them", kind="gradient")
        return grad

    def _note_writer(self, region: Region, target: TensorHandle, grad: bool) -> None:
        """Keep which of the inputs in a region is written: its version counter goes on."""
        if grad:
            raise Unsupported("values with a gradient are written to an input that shares memory with another one",
                              "clone one of them", kind="aliased-mutation")
        owner = region.owner(target)
        self.set(region, "written", (*region.written, owner) if owner not in region.written else region.written)

    # attributes

    def attribute(self, handle: TensorHandle, name: str) -> object:
        """The value of ``tensor.name`` for an attribute or property (not a method). Raises Unsupported when it is not
        known."""
        try:
            return attribute(self, handle, name)
        except JitError:
            raise
        except Exception as error:  # eager's own; ``confirmed`` tells ours
            failure = refusals.confirmed(error, getattr, (handle, name), {})
            if isinstance(failure, Unsupported):
                tell(failure, getattr, self.builder.loc)
            raise failure from error

    # the end

    def gradient(self, outputs: list[TensorHandle]) -> Gradient | None:
        """See ``results.gradient``."""
        return results.gradient(self, outputs)

    def finish(self, outputs: list[TensorHandle], differentiated: bool = False) -> Graph:
        """See ``results.finish``."""
        return results.finish(self, outputs, differentiated)


@functools.cache
def _parameters(name: str) -> frozenset:
    """The parameter names of an op: those of its expansion, or of the operator's overloads."""
    entry = OPS.get(name)
    if entry is not None:
        return frozenset(inspect.signature(entry.fn).parameters)
    return frozenset(a.name for o in aten.overloads(name.removesuffix("_")) for a in o.arguments)


@functools.cache
def _keyword_only(fn: Callable) -> frozenset:
    """Parameters of an expansion that are no operands of the iteration, such as ``alpha``."""
    return frozenset(p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY)


def tell(error: Unsupported, fn: Callable, loc: Loc | None) -> None:
    """Where a rule of ours has failed, and there is no other way to trace ``fn``, called at ``loc``, the user is
    told."""
    if error.cause is not None and not error.told:
        cause, error.cause, error.told = error.cause, None, True
        failures.report(cause, loc and (loc.user or loc[:3]), f"{getattr(fn, '__name__', fn)} is called in eager")


def _unwound(node: Node) -> Node:
    """The value under reshapes that lead back to its own type: what holds it is then not a view of something else."""
    root = node
    while root.op in ("reshape", "alias"):
        root = root.inputs[0]
    return root if root.type == node.type else node


def _gives_back(result: NamedResult | Node | list | tuple, start: int) -> bool:
    """Whether an expansion gave nodes that were there before ``start``, or views of them."""
    return any(base_of(node).id < start for node in of_kind(Node, result))


def _put(result, shown):
    """The results of an operator with those handles in their place that are not None."""
    return refilled(result, [s or r for r, s in zip(several(result), shown)])


def _has_gradient(values: object) -> bool:
    return any(h.requires_grad for h in of_kind(TensorHandle, values))


def _settled(v: Dim) -> IntExpr:
    """A symbolic number among the arguments of a view as a plain one where it is negative now: -1 is a size to be
    inferred, or counts from the end."""
    low = bounds(v)[0]
    return specialize(v) if (low is None or low < 0) and v < 0 else v


def _is_complex(v: object) -> bool:
    """Whether complex numbers occur in an argument."""
    if type(v) is TensorHandle:
        return v.type.dtype.is_complex
    if type(v) in (list, tuple):
        return any(map(_is_complex, v))
    return type(v) is complex or isinstance(v, torch.dtype) and v.is_complex


def _pack(entry: Op, args: Sequence[object]) -> tuple[object, ...] | list[object]:
    """Trailing positional numbers as one tuple, for ops with ``varargs``: ``x.view(2, 3)``."""
    if entry.varargs is None or len(args) < 2:
        return args
    if all(is_number(a) for a in args[1:]):
        return (args[0], tuple(args[1:]))
    return args
