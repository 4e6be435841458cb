"""``torch.set_float32_matmul_precision``: how exactly libraries multiply matrices of float32."""

from __future__ import annotations

import torch

from ..tracked_state import calls_library, switch

switch("the precision of float32 products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision,
       values=("highest", "high", "medium"), matters=calls_library)
