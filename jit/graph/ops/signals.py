"""Spectra and histograms: library calls whose result types PyTorch cannot tell from meta tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.errors import Unsupported
from jit.graph.build import is_number
from jit.graph.handles import NamedResult, TensorHandle
from jit.graph.ir import TensorType
from jit.graph.layout import reinterpreted
from jit.graph.registry import extern, op

if TYPE_CHECKING:
    from jit.graph.ir import Node
    from jit.graph.tracer import Tracer


@extern("istft")
def istft(x: Node, n_fft, hop_length=None, win_length=None, window=None, center: bool = True, normalized: bool = False,
          onesided=None, length=None, return_complex: bool = False):
    """(..., n_fft // 2 + 1 or n_fft, frames) complex -> (..., samples). Source: ``torch.istft``'s documentation."""
    if x.rank not in (2, 3) or not x.dtype.is_complex:
        return NotImplemented
    samples = n_fft + (n_fft // 4 if hop_length is None else hop_length) * (x.shape[-1] - 1)
    edge = n_fft // 2 if center else 0
    dtype = x.dtype if return_complex else reinterpreted(x, "real").dtype
    return TensorType.contiguous((*x.shape[:-2], samples - 2 * edge if length is None else length), dtype, x.device)


@op("histogramdd", raw=True)
def histogramdd(t: Tracer, self: TensorHandle, bins, range=None, weight: Node | None = None, density: bool = False):
    """(N, D) -> a D-dimensional histogram and the D tensors of bin edges."""
    if self.type.rank != 2 or self.type.is_symbolic:
        raise Unsupported("histogramdd of a tensor that is not (N, D)", kind="unknown-function")
    bins = [bins] * self.type.shape[1] if is_number(bins) else list(bins)
    if bins and isinstance(bins[0], TensorHandle):
        edges, histogram = bins, t._call_aten("_histogramdd_from_bin_tensors",
                                              (self, bins), {"weight": weight, "density": density})
    else:
        named = {"range": range, "weight": weight, "density": density}
        edges = t._call_aten("_histogramdd_bin_edges", (self, bins), named)
        histogram = t._call_aten("_histogramdd_from_bin_cts", (self, bins), named)
    cls = torch.return_types.histogramdd if hasattr(torch.return_types, "histogramdd") else None
    return NamedResult(cls, cls.__match_args__, (histogram, tuple(edges))) if cls else (histogram, tuple(edges))


@extern("_histogramdd_bin_edges")
def histogramdd_edges(x: Node, bins, range=None, weight: Node | None = None, density: bool = False) -> list:
    return [TensorType.contiguous((n + 1,), x.dtype, x.device) for n in bins]


@extern("_histogramdd_from_bin_cts")
def histogramdd_counts(x: Node, bins, range=None, weight: Node | None = None, density: bool = False):
    return TensorType.contiguous(tuple(bins), x.dtype, x.device)


@extern("_histogramdd_from_bin_tensors")
def histogramdd_from_edges(x: Node, bins, weight: Node | None = None, density: bool = False):
    return TensorType.contiguous(tuple(e.shape[0] - 1 for e in bins), x.dtype, x.device)
