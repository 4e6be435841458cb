"""Guard programs: plain records of accessors and checks, compiled to a native object that answers "do these locals
fit?".

Accessors are ``(parent index, kind, payload)``; roots have parent -1. Each may have a fourth item, of which ``str``
names it in explanations::

    ("local", i)            local i of the frame's start          ("const", object)   a root that is watched
    ("weak", object)        as "const", but the object is not kept alive: when it dies the program never matches again,
    lets go of
                            all it holds, and the plan of its bound inputs; its dispatcher drops the entry. Or a
                            ``native().Weak`` of it
    ("dict_attr", name)     object.__dict__[name]; for a class, its own __dict__ only
    ("getattr", name)       getattr(object, name); runs on every call, cannot be watched
    ("type_attr", name)     what the MRO of type(object) has      ("class_attr", name)   what the MRO of the object, a
    class, has ("type",)  ("dict",)    type(object), object.__dict__         ("item", key)          of a list, tuple or
    dict, past what a subclass makes of a subscript ("cell",)               a cell's contents
    ("closure", i)         a function's i-th cell ("function", field)     field: code, defaults, kwdefaults, dict (None
    when unset) ("grad",)               tensor.grad                           ("wrapped",)           a dispatcher's
    original function ("iterator_state",)     what an iterator of a builtin type reduces to, as one tuple
    ("generator_state",)    ``native().generator_state(object)``
    ("length",)             ``len(object)``
    ("returned",)           what the function gives, called without arguments on every call
    ("array_memory", f)     ``f(object)``, a tensor that shares the memory of an array, on every call
    ("mro",)                the MRO of a class              ("cache_link",)         what an element of a bounded
    functools.lru_cache holds ("context_value", none) what a ContextVar holds, ``none`` where it was not set
    ("fresh_dict_attr", name), ("fresh_item", key), ...   any of them with "fresh_" before it, for what is replaced all
    the time: read on every call, not watched

An accessor that cannot be reached makes the check on it fail, but for "distinct": what is not there is no other one.
What was read of watched objects is not kept alive, but for constants, classes and code. Where an object is known by
identity, as in "is", as a key, or among keys or elements, there may be a ``native().Weak`` of it, which does not keep
it alive. Checks are ``(accessor index, kind, payload[, fact])``; a ``facts.Fact`` says in words what is expected and
what was found::

    ("type_is", T) ("is", object) ("is_not", object) ("eq", const) ("len", n) ("truth", bool)
    ("at", (id, type))              the object is of that type and lies there; for what has its facts checked again when
    another one has come to lie there ("dict_keys", keys in order) ("dict_lacks", key) ("no_dict_attr", name)
    ("type_lacks", name) ("class_lacks", name) ("elements", the elements of a set or frozenset in order of iteration; a
    set that is watched is read on every call) ("subclass", (class, bool))     issubclass() of a class that is reached,
    by its MRO and by what abstract classes have registered ("instance", (class, bool))     isinstance(); asked on every
    call ("tensor", TensorSpec) ("same", accessor) ("distinct", accessor)
    ("no_alias", accessor)          the memory that two tensors reach does not overlap
    ("apart", (changed, others))    the accessors' tensors: none that is changed reaches into the memory of another one
    ("shares", (accessor, bytes))   the first elements of two views of one storage are so far apart
    ("room", (before, after))       a tensor's storage has so many bytes before the tensor's first element, and from
    there on ("writable", None)     autograd lets a tensor be changed in place where operations are recorded
    ("global_state", snapshot)      accessor -1; snapshot from ``native().global_state_snapshot()``, see
    ``narrowed_state`` ("dims", (accessors, regs, conditions))
        accessor -1; regs as in a plan, where ("size", k, dim), ("stride", k, dim) and ("int", k) read accessors[k];
        conditions are (reg, "==0" | "!=0" | ">=0" | ">0" | "<=0" | "<0")
    ("numbers", (program of numbers, accessors))    accessor -1; its results for what the accessors reach are not zero

"eq" wants the exact type; -0.0 differs from 0.0 and nan equals nan, inside tuples and slices too.

``binds`` are (accessor, plan input) pairs: whenever the watched facts have been walked again, those inputs of the
entry's plan are bound to what the accessors reach.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from jit import logs, torch_private
from jit.runtime import native
from jit.runtime.names import Unbound

_log = logs.channel("guards")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """What a tensor has to look like. None means any; a None inside sizes or strides frees that dim.

    ``cls`` is the exact type. ``keys`` is ``dispatch_keys(t)``, which tells layout, conjugation, inference tensors,
    wrapped tensors of transforms and dispatch subclasses. ``align`` demands that the data pointer is a multiple of it.
    """

    cls: type
    dtype: torch.dtype
    device: torch.device | None = None
    sizes: tuple | None = None
    strides: tuple | None = None
    requires_grad: bool | None = None
    keys: int | None = None
    align: int | None = None

    @staticmethod
    def of(tensor: torch.Tensor, dynamic_dims: tuple[int, ...] = ()) -> "TensorSpec":
        """The spec that exactly this tensor meets, with the sizes of ``dynamic_dims`` free (and then all strides)."""
        sizes = tuple(None if d in dynamic_dims else s for d, s in enumerate(tensor.shape))
        strides = tuple(tensor.stride()) if not dynamic_dims else None
        return TensorSpec(type(tensor), tensor.dtype, tensor.device, sizes,
                          strides, tensor.requires_grad, dispatch_keys(tensor))

    def __str__(self) -> str:
        def text(values: tuple[int, ...] | None) -> str:
            return "any" if values is None else "(" + ", ".join("*" if v is None else str(v) for v in values) + ")"

        grad = "" if self.requires_grad is None else f", requires_grad={self.requires_grad}"
        return (
            f"{self.cls.__name__} {str(self.dtype)[6:]} on {self.device}, sizes {text(self.sizes)}, strides "
            f"{text(self.strides)}{grad}")

    def mismatch(self, value: Any) -> str:
        """How a value differs, in words: "size of dim 1: expected 4, found 5"; empty when it does not."""
        found = type(value)
        if found is not self.cls:
            return f"type: expected {self.cls.__name__}, found {found.__name__}"
        out = []
        if value.dtype != self.dtype:
            out.append(f"dtype: expected {self.dtype}, found {value.dtype}")
        if self.device is not None and value.device != torch.device(self.device):
            out.append(f"device: expected {self.device}, found {value.device}")
        if self.requires_grad is not None and value.requires_grad != self.requires_grad:
            out.append(f"requires_grad: expected {self.requires_grad}, found {value.requires_grad}")
        if self.keys is not None and dispatch_keys(value) != self.keys:
            out.append(f"dispatch keys: expected {self.keys:#x}, found {dispatch_keys(value):#x} "
                       f"({torch_private.dispatch_keys(value)})")
        if not out and self.sizes is not None:
            if value.dim() != len(self.sizes):
                out.append(f"rank: expected {len(self.sizes)}, found {value.dim()}")
            else:
                out += [f"size of dim {d}: expected {want}, found {have}"
                        for d, (want, have) in enumerate(zip(self.sizes, value.shape))
                        if want is not None and want != have]
        if not out and self.strides is not None:
            out += [f"stride of dim {d}: expected {want}, found {have}"
                    for d, (want, have) in enumerate(zip(self.strides, value.stride()))
                    if want is not None and want != have]
        if not out and self.align and value.data_ptr() % self.align:
            out.append(f"data pointer: expected a multiple of {self.align}")
        return "; ".join(out)


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The raw dispatch key set of a tensor."""
    return torch_private.dispatch_keys(tensor).raw_repr()


def program(accessors: Sequence[tuple], checks: Sequence[tuple], binds: Iterable[tuple] = ()) -> Any:
    """The native guard program. Raises ValueError or TypeError saying which record is wrong."""
    made = native().GuardProgram(tuple(accessors), tuple(checks), tuple(binds))
    if _log:
        _log("\n".join(_line(accessors, c) for c in checks))
    return made


def _line(accessors: Sequence[tuple], check: tuple) -> str:
    """A check in words."""
    at, kind, payload, fact = (*check, None, None)[:4]
    return (f"{path(accessors, at)}: {f'{kind} {short(payload)}' if fact is None else fact}" if at >= 0
            else str(fact or kind))


def global_state_snapshot() -> tuple:
    """The torch state of this thread that a capture depends on: grad and inference mode, autocast, default dtype and
    device, determinism, modes, the kernels that attention may choose among, anomaly mode. Plain ints."""
    return native().global_state_snapshot()


def function_modes() -> tuple[tuple[str, str], ...]:
    """The torch function modes of this thread, that of a default device among them: (class, device) of each."""
    return tuple((f"{type(mode).__module__}.{type(mode).__qualname__}", str(getattr(mode, "device", "")))
                 for mode in torch_private.function_modes())


def state_under(snapshot: tuple, modes: tuple[tuple[str, str], ...]) -> tuple:
    """A snapshot of another process, under these torch function modes, as this one has it: where classes lie differs.
    Raises Unbound where other modes are on."""
    if not modes:
        return snapshot
    if function_modes() != modes:
        raise Unbound("other torch function modes are on")
    return (*snapshot[:MODES_AT], global_state_snapshot()[MODES_AT], *snapshot[MODES_AT + 1:])


_UNREAD = -2
_MODES = "torch function modes and default device"
_STATE_FIELDS = ("dispatch keys (inference mode, modes, transforms)", "excluded dispatch keys (autocast, transforms)",
                 "grad mode", "CPU autocast dtype", "CUDA autocast dtype", "default dtype",
                 "deterministic algorithms", _MODES,
                 "torch function state", "attention kernels", "anomaly mode and cuDNN switches",
                 "settings of autocast")  # fmt: skip
MODES_AT = _STATE_FIELDS.index(_MODES)  # of the field that has where classes lie
_SELDOM_READ = ("attention", "switches", "autocast")  # the last fields


def narrowed_state(snapshot: tuple, read: Collection[str]) -> tuple:
    """A snapshot that leaves open those of the fields that few programs read which are not in ``read``, a set with any
    of "attention", "switches" and "autocast"."""
    first = len(snapshot) - len(_SELDOM_READ)
    return (*snapshot[:first], *(value if name in read else _UNREAD
                                 for name, value in zip(_SELDOM_READ, snapshot[first:])))


def state_difference(expected: tuple, found: tuple) -> str:
    """How the state of this thread differs from a snapshot, in words."""
    return "; ".join(f"{name}: {_state_words(name, want, have)}"
                     for name, want, have in zip(_STATE_FIELDS, expected, found) if want not in (have, _UNREAD))


# How PyTorch numbers the dtypes that may be a default, or autocast's.
_DTYPES = {-1: "off", 5: "float16", 6: "float32", 7: "float64", 15: "bfloat16"}


def _state_words(name: str, want: int, have: int) -> str:
    """How a field of the state differs."""
    if name.endswith("dtype"):
        return f"expected {_DTYPES.get(want, want)}, found {_DTYPES.get(have, have)}"
    if name == "grad mode":
        return f"expected {'on' if want else 'off'}, found {'on' if have else 'off'}"
    return "set otherwise"  # numbers that stand for several switches


# How modules keep their parts, which the program names otherwise, and what is in use where a graph breaks.
_PARTS = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")
_IN_USE = re.compile(r"(?<![\w\])])\.stack\d+\b((?:\.\w+|\[[^\]]*\])*)")


VALUE_IN_USE = "a value in use at the graph break"


def in_users_terms(text: str) -> str:
    """The text of a source as the program would write it."""
    named = _PARTS.sub(lambda m: f"[{m[1]}]" if m[1].isdigit() else f".{m[1]}", text)
    return _IN_USE.sub(lambda m: f"{m[1].lstrip('.')} of {VALUE_IN_USE}" if m[1] else VALUE_IN_USE, named)


def path(accessors: Sequence[tuple], index: int) -> str:
    """An accessor by its name, or by what it reads."""
    if index < 0:
        return "global state"
    parent, kind, *rest = accessors[index]
    if len(rest) > 1:
        return in_users_terms(str(rest[1]))
    value = rest[0]() if kind == "weak" else rest[0] if rest else None
    if parent < 0:
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        return f"local {value}" if kind == "local" else name if isinstance(name, str) else f"<{type(value).__name__}>"
    return f"{kind} {'' if value is None else f'{value!r} '}of {path(accessors, parent)}"


def short(value: object) -> str:
    """An object in at most 120 characters."""
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__}({value.dtype}, {tuple(value.shape)}, {value.device})"
    try:
        text = repr(value)
    except Exception:  # of the program's own class
        text = object.__repr__(value)
    return text if len(text) <= 120 else text[:117] + "..."


def explain(program: Any, locals: Sequence[object]) -> str:
    """Why a program does not accept a tuple of locals: the accessor, what was expected and what was found. Empty when
    it does."""
    failure = program.failure(tuple(locals))
    if failure is None:
        return ""
    index, reached, found = failure
    at, kind, payload, fact = (*program.checks[index], None, None)[:4]
    if at < 0:
        if kind == "global_state":  # which the line below would change
            return fact.mismatch(None) if fact else f"{kind} does not hold"
        with torch_private.WithoutTorchFunction():
            return fact.failing(payload, lambda i: program.value(tuple(locals), i)) if fact else f"{kind} does not hold"
    where = path(program.accessors, at)
    if not reached:
        return f"{where}: cannot be reached any more"
    with torch_private.WithoutTorchFunction():  # nothing of the program's is run to look at what was found
        how = f"expected {kind} {short(payload)}, found {short(found)}" if fact is None else fact.mismatch(found)
    return f"{where}: {how}"
