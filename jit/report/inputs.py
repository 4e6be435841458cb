"""What the inputs of a graph are like, written down so that others like them can be made: their types, layouts and the
range of their elements, but not the elements themselves."""

from __future__ import annotations

import base64
import dataclasses
import zlib

import torch

from .. import devices
from ..graph.dims import hint
from ..graph.ir import contiguous_strides




@dataclasses.dataclass(frozen=True)
class Input:
    """A tensor that a graph was called with.

    Attributes:
        shape, strides: in elements; strides of None are those of a contiguous tensor.
        dtype, device: of the tensor.
        low, high: the least and the largest element; None where there is none, or they are not finite.
        mean, std: of floating point elements.
        requires_grad: whether it does.
        elements: the elements themselves, in memory order from the lowest address, as ``packed`` writes them; None
            where any others in the range will do.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"
    strides: tuple[int, ...] | None = None
    low: float | None = None
    high: float | None = None
    mean: float = 0.0
    std: float = 1.0
    requires_grad: bool = False
    elements: str | None = None

    def make(self, generator: torch.Generator) -> torch.Tensor:
        """A tensor like it: its own elements, or random ones of the same range. ``generator``: of the CPU."""
        strides = self._strides()
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, strides)) if 0 not in self.shape else 0
        if self.elements is not None:
            memory = unpacked(self.elements, self.dtype)
        elif self.dtype.is_complex:
            memory = torch.randn(extent, generator=generator, dtype=torch.complex64).to(self.dtype)
        elif self.dtype.is_floating_point:
            drawn = torch.randn(extent, generator=generator, dtype=torch.float64) * self.std + self.mean
            memory = drawn.clamp(self.low, self.high) if self.low is not None else drawn
            memory = memory.to(self.dtype)
        elif self.dtype is torch.bool:
            memory = torch.rand(extent, generator=generator) < self.mean
        else:
            low, high = int(self.low or 0), int(self.high or 0)
            drawn = torch.rand(extent, generator=generator, dtype=torch.float64)
            memory = (low + (drawn * (high - low + 1)).floor()).clamp(low, high).to(self.dtype)
        made = memory.to(self.device).as_strided(self.shape, strides)
        return made.requires_grad_() if self.requires_grad else made

    def _strides(self) -> tuple[int, ...]:
        return tuple(map(hint, contiguous_strides(self.shape))) if self.strides is None else self.strides

    def text(self) -> str:
        """Python that makes it."""
        words = [repr(self.shape), str(self.dtype)]
        for field in dataclasses.fields(self)[2:]:
            value = getattr(self, field.name)
            if value != field.default:
                words.append(f"{field.name}={value!r}")
        return f"Input({', '.join(words)})"


def input_of(tensor: torch.Tensor, whole: bool = False) -> Input:
    """What a strided tensor is like. ``whole``: with its elements."""
    t = tensor.detach()
    shape, strides = tuple(t.shape), tuple(t.stride())
    low = high = None
    mean, std = 0.0, 1.0
    if t.numel() and devices.backend(t.device).memory and not t.dtype.is_complex:
        wide = t.to(torch.float64) if t.dtype.is_floating_point else t.to(torch.int64)
        finite = wide[wide.isfinite()] if t.dtype.is_floating_point else wide
        if finite.numel():
            low, high = (v.item() for v in finite.aminmax())
        if finite.numel() and t.dtype in (torch.bool, *_FLOATS):
            mean = finite.double().mean().item()
            std = finite.double().std(correction=0).item()
    return Input(shape, t.dtype, str(t.device), None if strides == contiguous_strides(shape) else strides, low, high,
                 _short(mean), _short(std), tensor.requires_grad, packed(t) if whole else None)


_FLOATS = tuple(v for v in vars(torch).values() if isinstance(v, torch.dtype) and v.is_floating_point)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def packed(tensor: torch.Tensor) -> str:
    """The elements of the memory that a tensor shows, as text."""
    t = tensor.detach()
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0
    flat = t.as_strided((extent,), (1,)).cpu().contiguous()
    return base64.b85encode(zlib.compress(bytes(flat.view(torch.uint8).tolist()))).decode()


def unpacked(text: str, dtype: torch.dtype) -> torch.Tensor:
    """What ``packed`` has written, in one dimension."""
    data = zlib.decompress(base64.b85decode(text))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)
