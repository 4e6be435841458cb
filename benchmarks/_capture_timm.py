"""The models of timm for benchmarks/capture.py: the smallest of each family (the first word of the name), at a small image size."""

from __future__ import annotations

import torch
from _capture_common import Built
from _compare import import_timm


def names() -> list[str]:
    timm = import_timm()
    families = {}
    for name in timm.list_models():
        families.setdefault(name.split("_")[0], name)
    return sorted(families.values())


def build(name) -> Built:
    timm = import_timm()
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    channels, height, width = model.default_cfg["input_size"]
    return Built(model, (torch.randn(1, channels, height, width),))
