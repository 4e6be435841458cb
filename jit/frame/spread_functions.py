"""The functions of ``torch.distributed.tensor`` that make DTensors of parts, spread them anew, and take them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import tensor as spread
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from .. import torch_private
from ..graph.dims import specialize
from . import dtensors, tables
from .dtensors import DTensorSpec, DTensorValue, PlacementValue, refused
from .library.distributed import arguments, known
from .tables import new_value, on_call, on_function, wrapper
from .values.constant import Constant

if TYPE_CHECKING:
    from .session import Session
    from .values.base import Value

tables.spread_call = dtensors.call
wrapper(DTensor)(lambda s, obj, source: DTensorValue(torch_private.spec_of(obj), None, obj, source))
wrapper(Placement)(lambda s, obj, source: PlacementValue(type(obj), obj, source))


def _made(cls: type) -> None:
    """Placements may be made while capturing: nothing changes them."""
    new_value(cls)(dtensors.placement)

    @on_call(cls)
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return dtensors.placement(s, cls(*(a.const(s) for a in args), **{k: v.const(s) for k, v in kwargs.items()}))


for _cls in (spread.Shard, spread.Replicate, spread.Partial):
    _made(_cls)


def _real(s: Session, value: Value) -> Any:
    """A mesh, a placement, or a list of these, guarded to be what it is."""
    if value.is_sequence:
        return tuple(_real(s, v) for v in value.items_list(s))
    return known(s, value)


def _placements(s: Session, value: Value, mesh: Any, rank: int) -> tuple:
    """The placements that a program means; without any, the tensor is whole everywhere."""
    given = _real(s, value)
    if given is None:
        return (Replicate(),) * mesh.ndim
    if len(given) != mesh.ndim:
        raise refused("another number of placements than its mesh has dimensions")
    return tuple(Shard(p.dim + rank) if type(p) is Shard and p.dim < 0 else p for p in given)


def _is(s: Session, value: Value, *answers: Any) -> bool:
    return value.is_const() and any(value.const(s) is a for a in answers)


@on_function(DTensor.from_local)
def from_local(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = arguments(s, DTensor.from_local, args, kwargs)
    local, mesh = given["local_tensor"], _real(s, given["device_mesh"])
    if not local.is_tensor or local.is_spread or mesh is None:
        raise refused("made of what is no tensor, or without a mesh")
    if not _is(s, given["run_check"], False):
        raise refused("from_local() that communicates to check")
    if not _is(s, given.get("grad_placements", Constant(None)), None):
        raise refused("from_local() with grad_placements")
    handle = local.handle(s)
    part = torch.empty_strided(tuple(map(specialize, handle.type.shape)), tuple(map(specialize, handle.type.strides)),
                               dtype=handle.dtype, device="meta")
    placements = _placements(s, given["placements"], mesh, part.dim())
    size = {name: _size(s, given[name]) for name in ("shape", "stride")}
    with torch.no_grad():  # it says how large the whole is
        spec = torch_private.spec_of(DTensor.from_local(part, mesh, placements, run_check=False, **size))
    dtensors.groups(s, mesh)
    return DTensorValue(spec, local)


def _size(s: Session, value: Value) -> Any:
    return None if _is(s, value, None) else tuple(v.const(s) for v in value.items_list(s))


@on_function(DTensor.to_local)
def to_local(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = arguments(s, DTensor.to_local, args, kwargs)
    if not _is(s, given["grad_placements"], None):
        raise refused("to_local() with grad_placements")
    return given["self"].local(s)


@on_function(DTensor.redistribute)
def redistribute(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = arguments(s, DTensor.redistribute, args, kwargs)
    for name in ("forward_dtype", "backward_dtype"):
        if not _is(s, given.get(name, Constant(None)), None):
            raise refused(f"redistribute() with a {name}")
    tensor = given["self"]
    mesh = _real(s, given["device_mesh"])
    if mesh is not None and mesh != tensor.spec.mesh:
        raise refused("redistribute() to another mesh")
    return _redistributed(s, tensor, given["placements"])


def _redistributed(s: Session, tensor: DTensorValue, placements: Value) -> DTensorValue:
    spec = tensor.spec
    target = _placements(s, placements, spec.mesh, len(spec.shape))
    if any(share.reduction is not None and share != before
           for share, before in zip(dtensors.shares(target), dtensors.shares(spec.placements))):
        raise refused("redistribute() to summands")
    local = dtensors.redistributed(s, tensor.local(s), spec, target)
    return DTensorValue(DTensorSpec(spec.mesh, target, tensor_meta=spec.tensor_meta), local)


@on_function(DTensor.full_tensor)
def full_tensor(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = arguments(s, DTensor.full_tensor, args, kwargs)
    if not _is(s, given["grad_placements"], None):
        raise refused("full_tensor() with grad_placements")
    return _redistributed(s, given["self"], Constant(None)).local(s)
