"""``torch.func``: grad, vjp, jvp, vmap and what is made of them, by PyTorch's own Python code, which is followed as any
other. Here is what it rests on: a gradient inside a transform is one that the program asks for (``library.backward``),
and what a map does to a tensor are nodes of the graph (``graph.maps``). Forward mode is the gradient of a gradient:
that of ``vjp`` with respect to what it is given.

No break happens inside of a transform: it takes place where the transform is called.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...errors import Unsupported
from ...graph import backward, gradient_layout, mapping, maps, physical
from ...graph.handles import next_version
from ...graph.ir import TensorType
from ...graph.prims import VIEWS, base_of
from ...torch_private import pytree
from ..states.function_state import below_functions
from ..tables import on_call, on_code, on_name
from ..values import batched, unmapped
from ..values.base import Raised
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.lifting import lift
from ..values.new_parameters import refuse_leaves

if TYPE_CHECKING:
    from ...graph.handles import TensorHandle
    from ...graph.ir import Node
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue

NONE = Constant(None)
_levels = count(1)


@dataclass(frozen=True)
class Level:
    """A transform that the program is in.

    Attributes:
        number: its own.
        first: the number of the first write inside.
        outside: the numbers before which tensors are from outside of the map, and of the gradient, around it.
        nodes: how many nodes there were.
        randomness: of a map, what its slices may draw, as ``torch.vmap`` takes it; "" of a gradient.
        draws: of a map, (first node, the one behind) of each draw for all slices; see ``library.drawn_in_maps``.
        entered: (handle, version of its memory, node, the program's tensor) of each tensor that the function was
            given; of a map, the handle is of a slice, and the mapped dimension is the first of the whole tensor.
        given: of a map, (whole tensor as it was given, its mapped dimension) for each of these.
        tracked: of a gradient, whether autograd was on outside.
        leaves: of a gradient, the tensors that were made to require grad outside.
        duals: of a level of dual numbers, (tensor, its tangent, the version of its memory) of each; see
            ``library.forward_mode``.
        lets: whether ``requires_grad_()`` may be called, which only PyTorch's own code does inside of a transform.
    """

    number: int
    first: int = 0
    randomness: str = ""
    nodes: int = 0
    outside: tuple[int, int] = (0, 0)
    draws: tuple = ()
    entered: tuple = ()
    given: tuple = ()
    tracked: bool = True
    leaves: tuple = ()
    duals: tuple | None = None
    lets: bool = False


def _refuse(why: str, hint: str = "nothing needs to be done: it runs in eager") -> Unsupported:
    return Unsupported(why, hint, kind="functorch")


def _level(s: Session, number: Value) -> Level:
    return next(level for level in s.levels if level.number == number.const(s))


def _replace(s: Session, level: Level, **facts: object) -> None:
    s.journal.set_field(s, "levels", tuple([replace(lv, **facts) if lv is level else lv for lv in s.levels]))


def _outside(s: Session) -> tuple[int, int]:
    return s.tracer.written_before, s.tracer.captured_before


@contextlib.contextmanager
def _around(s: Session, level: Level) -> Iterator[None]:
    """What is written inside is written by what is around a level."""
    inside = _outside(s)
    for name, number in zip(("written_before", "captured_before"), level.outside):
        s.journal.set_field(s.tracer, name, number)
    try:
        yield
    finally:
        for name, number in zip(("written_before", "captured_before"), inside):
            s.journal.set_field(s.tracer, name, number)


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """A break inside is one of the call."""
    try:
        yield
    except Unsupported as error:
        error.frames = []
        raise


@on_name((torch_private.MAPS, "vmap_impl"), *((torch_private.TRANSFORMS, name) for name in (
    "grad_impl", "grad_and_value_impl", "_vjp_with_argnums")))
def transform(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not s.inner_gradients:
        raise _refuse("a transform of torch.func with an operation that is left to eager")
    refuse_leaves(s, (*args, *kwargs.values()))
    before = [level.number for level in s.levels]
    with _whole():
        result = s.inline(fn, args, kwargs)
    assert [level.number for level in s.levels] == before
    return result


@on_name(*((torch_private.TRANSFORMED, name) for name in ("grad", "grad_and_value")))
def transformed(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A transformed function, which has the name of its function, as in eager. PyTorch does without under a
    compiler."""
    made = s.inline(fn, args, kwargs)
    return s.inline(s.wrap_raw(functools.update_wrapper), [made, *(args[:1] or [kwargs["func"]])], {})


@on_name(*((module, "lazy_load_decompositions") for module in (torch_private.MAPS, torch_private.MAPS_BELOW)))
def nothing(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return NONE


@on_code(torch_private.hookless_code())
def without_hooks(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return dict(zip(fn.code.co_freevars, fn.cells(s)))["f"].get(s).call(s, args, kwargs)


def _step(called: object, name: str) -> Callable:
    """Register what is done at a step of a map, for its function in C and for the Python function around that."""
    def register(fn: Callable) -> Callable:
        fn = below_functions(fn)
        on_call(called)(fn)
        on_name((torch_private.MAPS_BELOW, name))(lambda s, _, args, kwargs: fn(s, args, kwargs))
        return fn

    return register


# -- maps ------------------------------------------------------------------------------------------------------------


@_step(torch_private.map_begins, "_vmap_increment_nesting")
def map_begins(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if s.maps or batched.active(s):
        raise _refuse("a map inside of another kind of map")
    level = Level(next(_levels), next_version(), args[1].const(s), len(s.tracer.builder.nodes), _outside(s))
    s.journal.set_field(s, "levels", (*s.levels, level))
    s.journal.set_field(s.tracer, "written_before", level.first)
    none = not args[0].symbolic and args[0].const(s) == 0
    s.journal.set_field(s.tracer.builder, "slices", (*s.tracer.builder.slices, not none))
    return Constant(level.number)


@_step(torch_private.map_ends, "_vmap_decrement_nesting")
def map_ends(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    *left, level = s.levels
    s.journal.set_field(s, "levels", tuple(left))
    if level.randomness != "same" and any(not n.repeatable for n in _between(s, level)):
        raise _refuse("random numbers inside torch.vmap", 'draw them outside, or with randomness="same"')
    if not all(s.tracer.builder.slices) and any(
            isinstance(n.type, TensorType) and not n.type.rank
            for n in maps.depends(s.tracer.builder.nodes, level.number)):
        raise _refuse("numbers of slices that there are none of, which eager may refuse")
    with _around(s, level):
        _write_back(s, level)
    s.journal.set_field(s.tracer, "written_before", level.outside[0])
    s.journal.set_field(s.tracer.builder, "slices", s.tracer.builder.slices[:-1])
    return Constant(len(left))


def _between(s: Session, level: Level) -> Iterator[Node]:
    """The nodes of a map's function, but for draws for all slices."""
    first = level.nodes
    for begin, end in (*level.draws, (None, None)):
        yield from s.tracer.builder.nodes[first:begin]
        first = end


def _write_back(s: Session, level: Level) -> None:
    """What the map's function has written into the slices that it was given is written into the tensors."""
    for slice_, version, _, whole in level.entered:
        if slice_.base.version != version:
            _written(s, level, slice_, whole)


def _written(s: Session, level: Level, slice_: object, whole: Value) -> None:
    if slice_.chain or slice_.requires_grad or whole.handle(s).requires_grad:
        raise _refuse("a mapped tensor that has gradients is changed in place", "change a clone() of it")
    with _around(s, level):
        found = mapping.collect(s.tracer, slice_, level.number, unmapped.size(s, level))
        s.torch_call(torch.Tensor.copy_, [whole, s.recording.tensor_of(found)], {})


@_step(torch_private.map_enters, "_add_batch_dim")
def map_enters(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor, dim, number = args
    at = dim.const(s) % len(tensor.handle(s).shape)
    given = (tensor, at)
    if at:
        tensor = s.torch_call(torch.movedim, [tensor, Constant(at), Constant(0)], {})
    *before, level = s.levels
    handle = unmapped.slice_of(s, tensor.handle(s), number.const(s))
    physical.slice_of(handle, given[0].handle(s), at, level.number, level.randomness)
    entered = (*level.entered, (handle, handle.base.version, handle.node, tensor))
    s.journal.set_field(s, "levels", (*before, replace(level, entered=entered, given=(*level.given, given))))
    return s.recording.tensor_of(handle)


@_step(torch_private.map_leaves, "_remove_batch_dim")
def map_leaves(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor, number, _, dim = args
    level, handle = _level(s, number), physical.very(tensor.handle(s))
    for (slice_, version, _, whole), (given, at) in zip(level.entered, level.given):
        if handle.base is slice_.base and slice_.base.version != version:
            if handle.chain:
                raise _refuse("a result is a view of a mapped tensor that is changed in place", "give a clone() of it")
            _written(s, level, slice_, whole)
        if handle is slice_ and at == dim.const(s) % len(given.handle(s).shape):
            return given  # the very tensor, as in eager, where nothing was to be moved
        if handle is slice_:
            return s.torch_call(torch.movedim, [whole, Constant(0), dim], {})
        if handle.base is slice_.base and slice_.base.version != version:
            return s.torch_call(torch.Tensor.view_as, [whole, whole], {})
    whole = next((value for *_, node, value in level.entered if base_of(handle.node) is node), None)
    view = whole and mapping.shown(s.tracer, handle, base_of(handle.node), whole.handle(s), level.number,
                                unmapped.size(s, level))
    if view:
        found = s.recording.tensor_of(view)
    elif unmapped.differs(s, handle.base, level.number):
        found = _all_slices(s, tensor, level)
    else:  # eager's own way, which fits the shape of a slice only where the map's dimension is in front
        sizes = [lift(s, d) for d in handle.shape]
        sizes.insert(dim.const(s), lift(s, unmapped.size(s, level)))
        return s.torch_call(torch.Tensor.expand, [tensor, TupleValue(sizes)], {})
    at = dim.const(s)
    return found if not at else s.torch_call(torch.movedim, [found, Constant(0), Constant(at)], {})


def _all_slices(s: Session, tensor: Value, level: Level) -> Value:
    """All slices of a result, expanded where each of them is, as a gradient may be."""
    t = tensor.handle(s).type
    expanded = [d for d, (n, step) in enumerate(zip(t.shape, t.strides)) if type(step) is int and step == 0
                and not (type(n) is int and n < 2)]
    if not expanded:
        return s.recording.tensor_of(_collected(s, tensor.handle(s), level))
    for d in expanded:
        tensor = s.torch_call(torch.Tensor.narrow, [tensor, Constant(d), Constant(0), Constant(1)], {})
    found = s.recording.tensor_of(_memory(s, tensor.handle(s), level))
    sizes = TupleValue([lift(s, n) for n in (unmapped.size(s, level), *t.shape)])
    return s.torch_call(torch.Tensor.expand, [found, sizes], {})


def _spread(s: Session, tensor: Value, level: Level) -> Value:
    """What is the same for all slices, expanded."""
    one = s.torch_call(torch.unsqueeze, [tensor, Constant(0)], {})
    sizes = [lift(s, d) for d in (unmapped.size(s, level), *tensor.handle(s).shape)]
    return s.torch_call(torch.Tensor.expand, [one, TupleValue(sizes)], {})


def _memory(s: Session, handle: TensorHandle, level: Level) -> TensorHandle:
    """All slices of a tensor that is mapped, each with elements of its own, also where they do not differ."""
    if handle.node in maps.depends(s.tracer.builder.nodes, level.number):
        found = mapping.collect(s.tracer, handle, level.number, unmapped.size(s, level))
        return found if handle.base.physical is None else physical.laid_out(
            found, handle.base.physical.left(level.number))
    return s.torch_call(torch.clone, [_spread(s, s.recording.tensor_of(handle), level)], {}).handle(s)


def _collected(s: Session, handle: TensorHandle, level: Level) -> TensorHandle:
    """All slices of a result: a view, where each is a view of what the function has computed."""
    base = base_of(handle.node)
    if base is not handle.node and unmapped.differs(s, handle.base, level.number):
        memory = s.tracer.fresh(base, handle.requires_grad)
        memory.base.physical = handle.base.physical
        memory = _memory(s, memory, level)
        view = mapping.shown(s.tracer, handle, base, memory, level.number, unmapped.size(s, level))
        if view is not None:
            if handle.physical is not None:
                view.physical = handle.physical.left(level.number)
            return view
    return _memory(s, handle, level)


@on_call(torch_private.is_mapped)
def is_mapped(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(unmapped.differs(s, args[0].handle(s).base, s.levels[-1].number))


# -- gradients -------------------------------------------------------------------------------------------------------


@on_call(torch_private.grad_begins)
@below_functions
def grad_begins(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if s.tracer.inference:
        raise _refuse("a gradient of torch.func in inference mode, inside of which eager records what it is of")
    level = Level(next(_levels), next_version(), "", len(s.tracer.builder.nodes), _outside(s),
                  tracked=s.tracer.grad_enabled, leaves=s.tracer.inner_leaves)
    s.journal.set_field(s, "levels", (*s.levels, level))
    s.journal.set_field(s.tracer, "captured_before", level.first)
    return Constant(level.number)


@on_call(torch_private.grad_ends)
@below_functions
def grad_ends(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    *left, level = s.levels
    s.journal.set_field(s, "levels", tuple(left))
    s.tracer.set(s.tracer, "inner_leaves", level.leaves)
    s.journal.set_field(s.tracer, "captured_before", level.outside[1])
    for inside, version, node, outside in level.entered:
        if inside.base.version != version:
            _changed(s, level, inside, node, outside)
    return Constant(len(left))


def _changed(s: Session, level: Level, inside: TensorHandle, node: Node, outside: Value) -> None:
    """What the function of a gradient has written into a tensor that it was given is written into the program's."""
    found, changed = backward.outer(s.tracer, inside, level.leaves, level.tracked), outside.handle(s)
    if (inside.chain or found.requires_grad or changed.requires_grad
            or _read_beside(s, level, node, base_of(changed.node))):
        raise _refuse("a tensor that a gradient is taken with is changed in place", "change a clone() of it")
    with _around(s, level):
        s.torch_call(torch.Tensor.copy_, [outside, s.recording.tensor_of(found)], {})


@on_call(torch_private.grad_enters)
@below_functions
def grad_enters(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A tensor of its own, which is differentiated apart from others of its value."""
    handle, level = args[0].handle(s), _level(s, args[1])
    tracked = handle.requires_grad and level.tracked
    b = s.tracer.builder
    inside = s.tracer.fresh(b.alias(handle.node) if tracked else b.detach(handle.node), tracked)
    inside.base.mapped, inside.physical = handle.base.mapped, physical.of(handle)
    inside.base.physical = handle.base.physical
    gradient_layout.note_same(s.tracer, handle, inside)
    _replace(s, level, entered=(*level.entered, (inside, inside.base.version, inside.node, args[0])))
    return s.recording.tensor_of(inside)


def _read_beside(s: Session, level: Level, node: Node, memory: Node) -> bool:
    """Whether the memory that ``node`` shows has been read inside in another way than by ``node``."""
    for reader in s.tracer.builder.nodes[level.nodes:]:
        for read in reader.inputs if reader is not node else ():
            while read is not node and read.op in VIEWS:
                read, = read.inputs
            if read is memory:
                return True
    return False


@on_call(torch_private.grad_leaves)
@below_functions
def grad_leaves(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    level = _level(s, args[1])
    handle = args[0].handle(s)
    for at, (inside, version, node, outside) in enumerate(level.entered):  # the program's own tensor
        if handle is inside:
            if handle.base.version != version:
                _changed(s, level, inside, node, outside)
                entered = (*level.entered[:at], (inside, inside.base.version, node, outside), *level.entered[at + 1:])
                _replace(s, level, entered=entered)
            return outside
    found = backward.outer(s.tracer, handle, level.leaves, level.tracked)
    if found is not handle and found.base is not handle.base:
        found.base.mapped, found.physical = handle.base.mapped, physical.of(handle)
    if found is not handle:
        return s.recording.tensor_of(found)
    if (args[0].cls is torch.Tensor or args[0].dispatches or args[0].obj is not None
            or handle.base.version < level.first):
        return args[0]
    # What is made inside has a wrapper in eager, which has the class: inside of it is a plain tensor.
    return s.record(torch.ops.aten.alias.default, args[:1], {})


@on_call(torch_private.may_require_grad)
def may_require_grad(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(s.levels[-1].lets)


@on_call(torch_private.lets_require_grad)
def lets_require_grad(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _replace(s, s.levels[-1], lets=args[0].truth(s))
    return NONE


def _gradients(outputs, inputs, grad_outputs=None, retain_graph=False, create_graph=True):
    """What transforms take gradients by: zeros where there is none."""
    given = [None] * len(outputs) if grad_outputs is None else grad_outputs
    pairs = [(o, g) for o, g in zip(outputs, given) if o.requires_grad]
    if not pairs:
        return tuple([torch.zeros_like(i) for i in inputs])
    found = torch.autograd.grad([o for o, _ in pairs], inputs, [g for _, g in pairs], retain_graph=True,
                                create_graph=create_graph, allow_unused=True)
    return tuple([torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found)])


@on_name((torch_private.TRANSFORMS, "_autograd_grad"))
def gradients(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not all(s.tracer.builder.slices):
        raise _refuse("gradients in a map over no slices, whose strides nothing says")
    return s.inline(s.wrap_raw(_gradients), args, kwargs)


@on_name((torch_private.TRANSFORMS, "_disable_inference_mode"))
def no_context(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.wrap_raw(contextlib.nullcontext).call(s, [], {})


def _laid_out(given, tangents, wholly=True):
    """Tangents in the layouts of their tensors, as eager keeps them: where one is not, it is a copy that is. Where
    there can be none, None, or, unless they have to be ``wholly``, the tangent as it is."""
    (flat, structure), (tensors, _) = pytree.tree_flatten(tangents), pytree.tree_flatten(given)
    for at, (tensor, tangent) in enumerate(zip(tensors, flat)):
        if not (isinstance(tensor, torch.Tensor) and isinstance(tangent, torch.Tensor)
                and tensor.shape == tangent.shape and tensor.dtype is tangent.dtype):
            continue  # what eager says of it is said later
        steps = list(zip(tensor.shape, tensor.stride(), tangent.stride()))
        if all([n <= 1 or one == other for n, one, other in steps]):
            continue
        if any([n > 1 and one == 0 for n, one, _ in steps]):
            if wholly:
                return None
            continue
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        flat[at] = copy.copy_(tangent)
    return pytree.tree_unflatten(flat, structure)


def laid_out(s: Session, given: Value, tangents: Value, wholly: bool = True) -> Value:
    found = s.inline(s.wrap_raw(_laid_out), [given, tangents, Constant(wholly)], {})
    if found.is_const():
        raise _refuse("a tangent of a tensor whose elements share their places")
    return found


def _forward(vjp, func, primals, tangents, argnums, *, strict=False, has_aux):
    made = vjp(func, *primals, argnums=argnums, has_aux=has_aux)
    if isinstance(argnums, int):
        tangents, = tangents
    start = pytree.tree_map(torch.zeros_like, made[0])
    _, push = vjp(made[1], start)
    pushed, = push(tangents)
    given = pytree.tree_leaves(primals)

    def shown(t):  # what was given comes back as a view of it
        return t.view_as(t) if any([t is p for p in given]) else t

    out, *aux = [pytree.tree_map(shown, part) for part in (made[0], *made[2:])]
    return (out, pushed, *aux)


def refuse_modes(s: Session, *given: Value) -> None:
    """Forward mode is done by other calls here, which are none that a mode of the program's, or the class of a tensor,
    sees in eager."""
    if not s.asker.seen:
        return
    tensors = s.inline(s.wrap_raw(pytree.tree_leaves), [TupleValue(list(given))], {}).items_list(s)
    if s.asker.overridden([v for v in tensors if v.is_tensor]):
        raise _refuse("forward mode under a TorchFunctionMode, or of tensors with a __torch_function__")


@on_name((torch_private.TRANSFORMS, "_jvp_with_argnums"))
def forward(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    with _whole():
        refuse_modes(s, *args[1:3])
        try:
            with s.journal.temporarily(s.tracer, "forward_mode", len(s.levels) + 1):
                func, primals, tangents, *argnums = args
                given = primals
                for at in (*argnums, *(v for k, v in kwargs.items() if k == "argnums")):
                    if not (at.is_const() and at.const(s) is None):
                        given = s.inline(s.wrap_raw(fn.globals["_slice_argnums"]), [primals, at], {})
                args = [func, primals, laid_out(s, given, tangents), *argnums]
                args = [s.wrap_raw(fn.globals["_vjp_with_argnums"]), *args]
                out, pushed, *rest = s.inline(s.wrap_raw(_forward), args, kwargs).items_list(s)
                leaves = s.inline(s.wrap_raw(pytree.tree_leaves), [pushed], {})
                if any(v.is_tensor and v.cls is not torch.Tensor for v in leaves.items_list(s)):
                    raise _refuse("a tangent by way of a tensor subclass, which is a plain tensor in eager")
                if not s.in_a_map:
                    pushed = laid_out(s, out, pushed, wholly=False)
                return TupleValue([out, pushed, *rest])
        except Raised as raised:
            if any(a.is_const() and str(a.const(s)).startswith("vjp(") for a in raised.value.init_args or ()):
                raise _refuse("what jvp() says of a function that gives no tensors") from None
            raise
