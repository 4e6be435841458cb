"""Globals that a program writes by name and through ``globals()``."""

import collections

import torch
from frame_harness import Cases

cases = Cases()
VECTOR = torch.arange(3.0)


@cases(True, fullgraph=False)
def the_globals_as_a_dict(v):
    globals()["WRITTEN"] = v
    return WRITTEN, collections.defaultdict(int) | {1: 2}  # noqa: F821


GLOBAL = 1


@cases(VECTOR, [], fullgraph=False)
def two_ways_to_a_global(x, log):
    global GLOBAL
    GLOBAL = x
    log.append(globals()["GLOBAL"] is x)
    globals()["GLOBAL"] = 5
    log.append(GLOBAL)
    GLOBAL = 7
    log.append(globals()["GLOBAL"])
    globals()["GLOBAL"] = 1
    return x + GLOBAL, log, globals().get("GLOBAL"), "GLOBAL" in globals()


test_programs = cases.test()
