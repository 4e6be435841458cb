"""A pass of the user's leaves a graph that is none."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def cut(editor):
    for node in editor.nodes:
        if not CURED and "tanh" in str(node.op):
            editor.replace(node, editor.call(torch.sum, node.inputs[0], before=node))  # here


@jit.compile(passes=[cut])
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
