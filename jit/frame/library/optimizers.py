"""torch.optim: what its code does for PyTorch's own compiler, and around a step, is as it is in eager."""

from __future__ import annotations

import torch
from torch.autograd.profiler import record_function
from torch.optim import optimizer

from ..tables import on_function
from ..values.constant import Constant
from ..values.tensor import TensorValue


@on_function(record_function.__enter__)
def enter_record_function(s, args, kwargs):
    """Names a range for a profiler, which sees the kernels of a graph and not the lines of the program."""
    return args[0]


@on_function(record_function.__exit__)
def exit_record_function(s, args, kwargs):
    return Constant(None)


@on_function(optimizer._get_value)
def get_value(s, args, kwargs):
    value, = args
    return value.call_method(s, "item") if isinstance(value, TensorValue) else value


@on_function(optimizer._stack_if_compiling)
def stack_if_compiling(s, args, kwargs):
    return args[0]


