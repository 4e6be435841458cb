"""Pieces of plans that are built by hand."""

import torch

from jit.runtime.steps import Aten, Const, Slot


def s(i):
    return Slot(i)


def c(value):
    return Const(value)


def aten(name, args, *outs, overload=""):
    return Aten("aten::" + name, overload, args, outs, None)


def leaf(*sizes):
    return torch.randn(*sizes, requires_grad=True)
