"""Captured graphs for tools that were written for PyTorch's own: the one place that imports ``torch.fx``.

Nothing else imports this package; ``import jit.interop``, or ``jit.interop.to_graph_module``, loads it.
"""

from .backend import torch_backend
from .graph_module import to_graph_module

__all__ = ["to_graph_module", "torch_backend"]
