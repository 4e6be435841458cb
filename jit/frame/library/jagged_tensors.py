"""What makes tensors of the jagged layout, and what the Python code of ``torch.nested`` asks; see ``values.jagged``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ... import torch_private
from ..tables import on_name
from ..values.constant import Constant
from ..values.jagged import JaggedTensor, NestedInt
from ..values.mappings import DictValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue


@on_name((torch_private.NESTED, "get_tensor_symint"))
def nested_int(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factor = kwargs["coeff"].exact_int() if "coeff" in kwargs else None
    return NestedInt(args[0], 1 if factor is None else factor)


@on_name((torch_private.NESTED, "NestedTensor.__new__"))
def new(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    named = dict(kwargs)
    cls = args[0].const(s)
    values, offsets = (*args[1:], *(named.pop(n) for n in ("values", "offsets") if n in named))
    s.set_field(s.asker, "seen", True)
    made = JaggedTensor(cls, made=([], {k: v for k, v in named.items() if k == "requires_grad"}))
    for name, value in (("_values", values), ("_offsets", offsets),
                        ("_lengths", named.get("lengths", Constant(None))),
                        ("_ragged_idx", named.get("_ragged_idx", Constant(1)))):
        s.set_entry(made.attrs, name, value)
    made.laid_out(s)
    return made


@on_name((torch_private.NESTED, "NestedTensor.__init__"))
def init(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The rest of what it does is a word to another compiler."""
    cache = kwargs.get("_metadata_cache", Constant(None))
    s.set_entry(args[0].attrs, "_metadata_cache", cache if not cache.is_none and cache.truth(s) else DictValue({}))
    return Constant(None)


def _nothing() -> Iterator[None]:
    yield


@on_name(("torch.fx.experimental.proxy_tensor", "maybe_enable_thunkify"))
def no_thunks(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.wrap_raw(_nothing).call(s, [], {})


@on_name(("torch.fx.experimental.symbolic_shapes", "is_nested_int"))
def is_nested_int(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(type(args[0]) is NestedInt)
