"""A graph for another device, to look at what its kernels would be there."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .ir import Graph, Node
from .nested import replaced


def on_device(graph: Graph, device: torch.device) -> Graph:
    """The same graph with all tensors on ``device``."""
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        type_: Any = (tuple([None if t is None else t.replace(device=device) for t in n.types]) if n.several
                      else n.type.replace(device=device))
        attrs = {name: replaced(torch.device, lambda _: device, value) for name, value in n.attrs.items()}
        new[n] = n.replace(inputs=tuple([new[i] for i in n.inputs]), attrs=attrs, type=type_)
    return Graph([new[i] for i in graph.inputs], list(new.values()),
                 [dataclasses.replace(o, node=new[o.node]) for o in graph.outputs], graph.env)
