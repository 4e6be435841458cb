"""torch beside its operators: modes, queries of global state, capture queries, and tensor attributes that are not
operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NoReturn

import torch
from torch.distributions.utils import lazy_property
from torch.utils.checkpoint import checkpoint

from ... import config, torch_private
from ...errors import Unsupported
from ...graph.handles import replay, view_path
from ...graph.ir import same_ints
from ...graph.saved_tensors import note_checkpoint
from ...runtime import facts
from .. import source as src
from ..assumptions import assume
from ..tables import (
    add_forbidden, on_call, on_code, on_function, on_tensor_attribute, on_tensor_method, on_tensor_setter,
)
from ..values import first_reads
from ..values.base import Raised
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.deferred import tensors_in
from ..values.items import item
from ..values.lifting import lift
from ..values.tensor import GradNode, TensorValue
from . import tensors_of_data
from .builtin_functions import IdentityNumber

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue

NONE = Constant(None)


def _always(value: bool | None, *fns: Callable) -> None:
    for fn in fns:
        handler = lambda s, args, kwargs, value=value: Constant(value)
        (on_function if hasattr(fn, "__code__") else on_call)(fn)(handler)


for _answer, _fns in torch_private.ANSWERS.items():
    _always(_answer, *_fns)
_always(False, torch.jit.is_scripting, torch.jit.is_tracing, torch.onnx.is_in_onnx_export,
        torch.compiler.is_exporting)


@on_function(torch.cuda.is_current_stream_capturing)
def is_current_stream_capturing(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = torch_private.is_capturing_stream
    try:
        now = fn()
    except RuntimeError as error:  # in a build of PyTorch without CUDA it is a class that cannot be made
        raise Raised(s.exception(error)) from None
    return s.wrap(now, src.Returned(src.Const(fn)))


@on_function(torch.cuda.get_device_properties)
def gpu_properties(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """They never change; which GPU is the current one does, and is asked."""
    device = (args[0] if args else kwargs.get("device", Constant(None))).const(s)
    if device is None or isinstance(device, (str, torch.device)) and torch.device(device) == torch.device("cuda"):
        device = s.wrap_raw(torch.cuda.current_device).call(s, [], {}).const(s)
    return s.fold(torch.cuda.get_device_properties, [Constant(device)], {})


def _answered(fn: Callable) -> None:
    @on_call(fn)
    def ask(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A question about the state of the process: its answer is guarded."""
        if args or kwargs:
            raise Unsupported(f"{fn.__name__}() with arguments", kind="argument-error")
        return s.wrap(fn(), src.Returned(src.Const(fn)))


for _fn in torch_private.QUESTIONS:
    _answered(_fn)


@on_function(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def is_compiling(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Yes: libraries ask in order to leave out what a capture cannot follow, such as branches on a mask's values,
    checks and warnings."""
    return Constant(config.says_compiling)


@on_function(torch.Tensor.__format__)
def formatted(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].formatted(s, args[1])


@on_function(torch.set_default_dtype, *([torch.set_num_threads] if hasattr(torch.set_num_threads, "__code__") else []))
def global_setting(s: Session, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    raise Unsupported("a change of torch's global settings", kind="global-state",
                      hint="set it outside the compiled function")


_DISABLED_FOR_DYNAMO = torch_private.hide_from_compiler(lambda: None).__code__


@on_code(_DISABLED_FOR_DYNAMO)
def without_dynamo(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function that PyTorch hides from its own compiler: the function itself."""
    return dict(zip(fn.code.co_freevars, fn.cells(s)))["fn"].get(s).call(s, args, kwargs)


@on_function(checkpoint, getattr(checkpoint, "__wrapped__", checkpoint))
def checkpointed(s: Session, args: list[Value], kwargs: dict[str, Value]):
    """Activation checkpointing that is not reentrant computes what the function does; the backward of the graph
    computes the region again."""
    options = {k: kwargs.pop(k) for k in ("use_reentrant", "preserve_rng_state",
                                          "context_fn", "determinism_check", "debug", "early_stop") if k in kwargs}
    reentrant = options.get("use_reentrant")
    if reentrant is None or not reentrant.is_const() or reentrant.const(s) is not False or "context_fn" in options:
        raise Unsupported("torch.utils.checkpoint.checkpoint() is reentrant, or has a context_fn",
                          kind="autograd", hint="pass use_reentrant=False")
    with s.recording.new_region():
        result = args[0].call(s, list(args[1:]), kwargs)
    note_checkpoint(s.tracer, [v.handle(s) for v in args[1:] if v.is_tensor],
                    [v.handle(s) for v in tensors_in(s, [result])], s.recording.location())
    return result


@on_function(torch_private.assert_)
def torch_assert(s: Session, args: list[Value], kwargs: dict[str, Value]):
    if args[0].is_tensor:
        if assume(s, args[0], True):
            return NONE
        raise Unsupported("an assertion on the values of a tensor", kind="data-dependent-branch")
    if not args[0].truth(s):
        raise Raised(s.exception(AssertionError, args[1:2]))
    return NONE


@on_function(torch_private.check_all)
def check_tensor_all(s: Session, args: list[Value], kwargs: dict[str, Value]):
    condition = args[1] if len(args) > 1 else kwargs.get("cond")
    if (condition is None or not condition.is_tensor or condition.handle(s).dtype is not torch.bool
        or not assume(s, s.torch_call(torch.Tensor.all, [condition], {}), True)):
        return s.inline(s.wrap_raw(torch_private.check_all), args, kwargs)
    return NONE


@on_call(torch.is_tensor) if not hasattr(torch.is_tensor, "__code__") else on_function(torch.is_tensor)
def is_tensor(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    return Constant(args[0].is_tensor)


@on_tensor_attribute("__dict__")
def tensor_dict(s: Session, tensor) -> NoReturn:
    raise Unsupported("the __dict__ of a tensor is read", kind="tensor-attribute")


def _autograd_fact(s: Session, tensor: TensorValue, name: str) -> Value:
    """What autograd knows of a tensor that requires grad, beside that: for one from outside it becomes a guard."""
    if tensor.source is not None and tensor.handle(s).requires_grad:
        fact = getattr(tensor.obj, name)
        s.guards.add(src.GetAttr(tensor.source, name), facts.Equals(fact))
        return Constant(fact)
    return s.recording.traced(lambda: s.tracer.attribute(tensor.handle(s), name))


@on_tensor_attribute("is_leaf")
def is_leaf(s: Session, tensor: Value) -> Value:
    return _autograd_fact(s, tensor, "is_leaf")


@on_tensor_attribute("output_nr")
def output_nr(s: Session, tensor) -> Value:
    return _autograd_fact(s, tensor, "output_nr")


@on_tensor_attribute("retains_grad")
def retains_grad(s: Session, tensor) -> Value:
    return _autograd_fact(s, tensor, "retains_grad")


@on_tensor_attribute("grad_fn")
def grad_fn(s: Session, tensor):
    if is_leaf(s, tensor).value:
        return NONE
    if tensor.source is not None:
        raise Unsupported("the grad_fn of a tensor is read", kind="tensor-attribute")
    return GradNode()


def plain_reader(name: str) -> Callable:
    """The handler of a method that makes Python data of a tensor's values, where they are known while capturing."""

    def handler(s: Session, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        found = tensor.known(s)
        if found is None or args or kwargs:
            number = item(s, tensor) if name in ("item", "__float__") else None
            if not s.lazy_reads and not args and not kwargs:
                number = number or first_reads.read(s, tensor, name)
            if number is not None:
                return number
            if name == "__bool__" and not args and not kwargs:
                raise Unsupported("a branch depends on the values of a tensor", kind="data-dependent-branch")
            # None: as a call of torch, which may be made later.
            return None if name in ("item", "tolist") else unknown_values(s, tensor, args, kwargs)
        return s.from_python(s.really(getattr(found, name)))

    return handler


for _name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
    on_tensor_method(_name)(plain_reader(_name))


@on_tensor_method("data_ptr", "cpu_")
def unknown_values(s: Session, tensor, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    tensor.handle(s)
    raise Unsupported("a tensor's values are read by Python", kind="data-dependent-value",
                      hint="keep the computation in tensors, or do this outside the compiled function")


def _kept_apart(s: Session, copied: list, base: object) -> None:
    """Tensors from outside of one deep copy: what shares memory does so in the copy, too."""
    mine, *others = [next((v for v in s.recording.inputs if v.handle(s).base is b), None) for b in (base, *copied)]
    for other in others:
        if mine is None or other is None or mine.source is None or other.source is None:
            continue
        if torch_private.storage_id(mine.obj) == torch_private.storage_id(other.obj):
            raise Unsupported("copy.deepcopy() of tensors that share memory", kind="tensor-layout")
        if not (mine.source.watched and other.source.watched):
            s.guards.add(mine.source, facts.NoAlias(other.source))


@on_tensor_method("__deepcopy__")
def deepcopy(s: Session, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    handle, memo = tensor.handle(s), args[0]
    if handle.requires_grad:
        raise Unsupported("copy.deepcopy() of a tensor that requires grad", kind="autograd")
    b, at = s.tracer.builder, (id(memo), handle.base)
    memory = s.recording.copied.get(at)
    if memory is None:  # all of it is copied, once for all tensors that show it
        s.heap.keep(memo)
        _kept_apart(s, [base for number, base in s.recording.copied if number == id(memo)], handle.base)
        memory = s.tracer.fresh(b.clone(b.detach(handle.base.node)))
        if handle.base.region is not None or not same_ints(memory.type.strides, handle.base.node.type.strides):
            raise Unsupported("copy.deepcopy() of a tensor with gaps in memory, or of two that share memory",
                              kind="tensor-layout")
        s.set_entry(s.recording.copied, at, memory)
    node = replay(b, memory.node, handle.chain)
    new = s.recording.tensor_of(s.tracer.view(memory, view_path(node, memory.node), node) if handle.chain else memory)
    memo.setitem(s, IdentityNumber(tensor) if tensor.obj is None else Constant(id(tensor.obj)), new)
    return new


@on_function(lazy_property.__get__)
def lazy_property_get(s: Session, args: list[Value], kwargs: dict[str, Value]):
    """Of a class, a new property each time that is only asked for its type."""
    if args[1].is_nothing(s):
        prop = args[0].pin(s).__get__(None, None)
        return s.wrap(prop, src.Const(prop, owned=True))
    return s.inline(s.wrap_raw(lazy_property.__get__), args, kwargs)


@on_tensor_method("size")
def size(s: Session, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    shape = lift(s, torch.Size(tensor.handle(s).shape) if all(type(d) is int for d in tensor.handle(s).shape)
                 else tuple(tensor.handle(s).shape))
    shape = TupleValue(shape.load(s), torch.Size)
    dim = args[0] if args else kwargs.get("dim")
    if dim is None or dim.is_nothing(s):
        return shape
    if dim.is_leaf and type(dim.value) is not int:
        raise Unsupported("size() is given a dimension that is not an integer", kind="argument-error")
    if dim.has_index(s):
        at, rank = dim.index(s), len(shape.load(s))
        if not -rank <= at < rank:
            text = (f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {at})" if rank
                    else f"Dimension specified as {at} but tensor has no dimensions")
            raise Raised(s.exception(IndexError(text)))
    return shape.getitem(s, dim)


@on_tensor_attribute("shape")
def shape(s: Session, tensor: Value) -> Value:
    return size(s, tensor, [], {})


@on_tensor_method("__len__")
def tensor_len(s: Session, tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.from_python(tensor.length(s))


@on_tensor_method("__iter__")
def tensor_iter(s: Session, tensor, args: list[Value], kwargs: dict[str, Value]):
    return tensor.iter(s)


@on_tensor_method("__hash__")
def tensor_hash(s: Session, tensor, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    if tensor.obj is not None:
        return Constant(hash(tensor.hash_key(s)))
    raise Unsupported("hash() of a tensor that is made here is needed as a number", kind="identity")


add_forbidden("a tensor's memory address", "", torch.Tensor.data_ptr)


# -- what Module.to asks and does, which is nothing where everything is as it is asked for
# --------------------------------------


@on_call(torch_private.parse_to)
def parse_to(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if any(v.is_tensor for v in (*args, *kwargs.values())):
        raise Unsupported("Module.to() is given a tensor", "give a device or a dtype", kind="torch-argument")
    return s.fold(torch_private.parse_to, args, kwargs)


@on_call(torch_private.shallow_copies)
def has_compatible_type(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Whether a tensor may take another one's data: of plain tensors, where they are on devices of one kind."""
    a, b = (v.handle(s).device.type for v in args)
    return Constant(a == b)


@on_tensor_method("new")
def new(s: Session, tensor: Value, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``Tensor.new`` of sizes or of numbers, the older name of ``new_empty`` and ``new_tensor``."""
    if kwargs:
        return None
    if all(v.pytype(s) is int for v in args):
        return s.torch_call(torch.Tensor.new_empty, [tensor, TupleValue(args or [Constant(0)])], {})
    if len(args) > 1 or args[0].builtin not in (list, tuple):
        return None
    if args[0].cls is torch.Size:
        return s.torch_call(torch.Tensor.new_empty, [tensor, args[0]], {})
    if args[0].cls in (list, tuple) and all(v.pytype(s) is int for v in args[0].items_list(s)):
        return s.torch_call(torch.Tensor.new_tensor, [tensor, args[0]], {})
    return None


@on_tensor_setter("data")
def set_data(s: Session, tensor: Value, value: Value) -> None:
    """The tensor object shows another one's memory: done to the real object behind the graph, and what the program does
    with it until then is done with that memory. One that requires grad stays a leaf of its own, so that its next use in
    the graph is a break."""
    if value.is_tensor and value.identity() == tensor.identity():
        return
    if not value.is_tensor or tensor.obj is None or value.cls not in _PLAIN or tensor.cls not in _PLAIN:
        raise Unsupported("the .data of a tensor is set", kind="tensor-attribute")
    had, gets = tensor.handle(s), value.handle(s)
    if had.device != gets.device or had.dtype is not gets.dtype or s.maps or s.levels or had.base.region is not None:
        raise Unsupported("the .data of a tensor is set", kind="tensor-attribute")
    memory = value if value.obj is not None else value.getattr(s, "data")
    s.effect(setattr, [tensor, Constant("data"), memory])
    tensor.shows(s, None if had.requires_grad else value.getattr(s, "data").handle(s))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _legacy(cls, dtype: torch.dtype, kinds: tuple[type, ...]) -> None:
    """A class such as ``torch.IntTensor``, called with a sequence of numbers."""

    @on_call(cls)
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        options = {"dtype": Constant(dtype), "device": Constant(torch.device("cpu"))}
        if not kwargs and all(v.pytype(s) is int for v in args):  # sizes
            return s.torch_call(torch.empty, list(args) or [Constant(0)], options)
        if len(args) == 1 and not kwargs and args[0].builtin in (list, tuple):
            if args[0].cls is torch.Size:
                return s.torch_call(torch.empty, list(args), options)
            if args[0].cls in (list, tuple) and tensors_of_data.holds_late(args[0]):
                return tensors_of_data.make(s, args[0], options, dtype.is_floating_point)
            if args[0].cls in (list, tuple) and all(v.pytype(s) in kinds for v in args[0].items_list(s)):
                return s.torch_call(torch.tensor, list(args), options)
        raise Unsupported(f"a new torch.{cls.__name__}", "use torch.tensor or torch.empty", kind="instantiate")


for _cls, _dtype in ((torch.IntTensor, torch.int32), (torch.LongTensor, torch.int64), (torch.ShortTensor, torch.int16)):
    _legacy(_cls, _dtype, (int,))
for _cls, _dtype in ((torch.FloatTensor, torch.float32), (torch.DoubleTensor, torch.float64)):
    _legacy(_cls, _dtype, (int, float))
