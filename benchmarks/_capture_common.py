"""What the providers of benchmarks/capture.py share: a model with its inputs."""

from __future__ import annotations

import copy
import dataclasses

import torch


@dataclasses.dataclass
class Built:
    """A model in eval mode and the arguments of one call; ``args()`` and ``kwargs()`` are fresh copies, as a call may
    change them."""

    model: torch.nn.Module
    positional: tuple = ()
    keywords: dict = dataclasses.field(default_factory=dict)

    def args(self):
        return copy.deepcopy(self.positional)

    def kwargs(self):
        return copy.deepcopy(self.keywords)
