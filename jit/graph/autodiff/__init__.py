"""Gradients of graphs: reverse mode to a joint graph (``reverse``), and its division into a forward and a backward
(``partition``).

Rules are tables by prim and by library operator: ``vjps_*`` and ``rules``. A library operator without a rule is run
again in the backward with PyTorch's autograd on (``replay``). Differentiate a graph before ``without_gradients`` takes
out what it says about them.
"""

from __future__ import annotations

from jit.graph.autodiff import (  # noqa: F401  (they fill the tables)
    attention,
    composites,
    dropout,
    formulas,
    fused_attention,
    vjps_collectives,
    vjps_contractions,
    vjps_layers,
    vjps_library,
    vjps_reductions,
    vjps_sampling,
    vjps_sequences,
    vjps_views,
)
from jit.graph.autodiff.again import Differentiated, differentiated_again, gradients, settled
from jit.graph.autodiff.partition import Halves, partition
from jit.graph.autodiff.reverse import Joint, carrying_outputs, differentiate

__all__ = ["Differentiated", "Halves", "Joint", "carrying_outputs", "differentiate",
           "differentiated_again", "gradients", "partition", "settled"]
