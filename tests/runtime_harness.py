"""Pieces of plans that are built by hand."""

import torch


def s(i):
    return ("slot", i)


def c(value):
    return ("const", value)


def aten(name, args, *outs, overload=""):
    return ("aten", "aten::" + name, overload, args, outs, None)


def leaf(*sizes):
    return torch.randn(*sizes, requires_grad=True)
