"""The code objects of modules, for the tests of decoding and encoding."""

import functools
import types


def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


@functools.cache
def codes_of(path) -> list:
    """Every code object of a file."""
    with open(path, encoding="utf-8") as file:
        return list(codes(compile(file.read(), path, "exec")))
