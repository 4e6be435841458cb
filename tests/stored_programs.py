"""Runs programs of tests/named_programs.py with a cache folder, and says of each how many captures it took and what it
gave. Arguments: the folder, names (all if none is given)."""

import json
import sys
import types

import named_programs
import torch

import jit
from jit.frame import dispatch, writer
from jit.runtime import native


def plain(value):
    """What a program gave as lists and numbers."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.stride()), value.requires_grad, value.tolist()]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def use(folder):
    """Keep entries there."""
    native()  # is kept in the usual folder
    jit.config.cache_dir, jit.config.entry_cache = folder, True
    writer.at_once = True


def main():
    use(sys.argv[1])
    for name in sys.argv[2:] or named_programs.PROGRAMS:
        torch.manual_seed(0)
        compiled, calls = named_programs.PROGRAMS[name]()
        before, results = dispatch.captures_so_far(), []
        for arguments in calls:
            made = compiled(*arguments)
            results.append(plain(list(made) if isinstance(made, types.GeneratorType) else made))
        print(json.dumps([name, dispatch.captures_so_far() - before, results]))


if __name__ == "__main__":
    main()
