"""A ``print`` that breaks the graph, for tests of what happens at breaks: the real one is done behind the graph."""

import builtins

import jit


@jit.disable
def print(*args, **kwargs):
    builtins.print(*args, **kwargs)
