"""The guard of a tensor that becomes a graph input, and the choice of the dims that are symbols."""

from __future__ import annotations

import torch

from ..errors import Unsupported
from ..runtime.guards import TensorSpec

PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)


def guard_tensor(s, value) -> set[int]:
    """Guard the metadata of a real tensor; -> the dims whose sizes are to be symbols."""
    tensor = value.obj
    if type(tensor) not in PLAIN_CLASSES:
        raise Unsupported(f"tensor subclass {type(tensor).__name__}", kind="tensor-subclass",
                          hint="compile the function that works on plain tensors")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Unsupported(f"a tensor of layout {tensor.layout}" if not tensor.is_quantized else "a quantized tensor", kind="tensor-layout")
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported("a tensor with its conjugate or negative bit set", kind="tensor-bits", hint="call resolve_conj() first")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise Unsupported("a tensor inside a torch.func transform", kind="functorch")
    dims = set() if s.dynamic is None else s.dynamic.tensor_dims(value.source, tensor)
    if value.source is not None:
        if value.source.watched:
            s.guards.add(value.source, "is", tensor)
        s.guards.add(value.source, "tensor", TensorSpec.of(tensor, dynamic_dims=tuple(sorted(dims))))
    return dims
