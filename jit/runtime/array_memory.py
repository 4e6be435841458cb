"""The memory of NumPy arrays as tensors, and of tensors as arrays."""

from __future__ import annotations

import numpy as np
import torch

from .. import torch_private

# The types of elements that both know, and for which PyTorch has all operations.
DTYPES = {np.dtype(name): getattr(torch, name) for name in (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")}


def memory_of(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares the memory of an array. Raises TypeError or ValueError for an array that cannot be one: of a
    subclass, read-only, of other elements, with steps that are negative or no multiples of an element."""
    if type(array) is not np.ndarray or not array.flags.writeable or array.dtype not in DTYPES:
        raise TypeError("an array that cannot be a tensor")
    return torch.from_numpy(array)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    with torch_private.WithoutTorchFunction():  # no mode of the program's sees it
        return tensor.detach().numpy()


def as_read_only(tensor: torch.Tensor) -> np.ndarray:
    array = as_array(tensor)
    array.flags.writeable = False
    return array


def as_scalar(tensor: torch.Tensor) -> np.generic:
    """The NumPy scalar that a tensor of one element holds."""
    with torch_private.WithoutTorchFunction():
        return tensor.detach().numpy()[()]
