"""A process is forked while a function is compiled in the background."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


import os


@jit.compile
def double(x):
    return x * 2


double(torch.ones(4))
pid = os.fork()
if pid == 0:
    print(double(torch.ones(5)).sum())
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
