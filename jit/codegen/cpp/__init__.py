"""Loop kernels to C++ text and to machine code.

``emit`` gives the text of one translation unit; ``compile_cpp`` compiles what this process has not compiled yet and
returns addresses.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from typing import Callable

import torch

from jit import config, logs, turns
from jit.codegen import kernel_names, loops, replaced, toolchain
from jit.codegen.cpp import compiler_check, ops
from jit.codegen.cpp.emission import KernelText
from jit.codegen.cpp.support import PRODUCT, RUNTIME, SCRATCH, STREAM, TRANSPOSE
from jit.recent import Recent
from jit.runtime import libraries

_lock = threading.Lock()
_addresses = Recent(2048)  # kernel name -> libraries.Address; what is in no plan and leaves here is unloaded
_texts = Recent(2048)
_begun: weakref.WeakValueDictionary[str, _Units] = weakref.WeakValueDictionary()  # kernel name -> what compiles it
KERNELS_PER_UNIT = 4  # a second compiler process pays from about this many kernels on


def kernel_text(kernel: loops.Kernel) -> tuple[str, str]:
    """(exported name, text) of one kernel. The name, which ``perf`` shows, is made from its operations and its text,
    so structural duplicates have the same one."""
    turns.point()
    key = (kernel.key, torch.get_num_threads())
    text = _texts.get(key)
    if text is None:
        if kernel.layout is not None:
            text = kernel.layout.emit(kernel, None, False)
        else:
            text = KernelText(kernel, "KERNEL", torch.get_num_threads()).text()
        _texts[key] = text
    function = kernel_names.of_function(kernel)
    name, named = _named(function, text)
    given = replaced.instead_of(named)
    return (name, named) if given is named else _named(function, given.replace(name, "KERNEL"))


def _named(function: str, text: str) -> tuple[str, str]:
    name = f"{function}_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    return name, text.replace("KERNEL", name)


def unit(texts: list[str]) -> str:
    """One translation unit: the declarations that the kernels need, then the kernels."""
    body = "\n".join(texts)
    parts, functions = [RUNTIME], ""
    if "scratch(" in body:
        parts.append(SCRATCH)
    if "STREAM_FENCE" in body:
        parts.append(STREAM)
    if "transpose_tile(" in body:
        parts.append(TRANSPOSE)
    if "block_product(" in body:
        functions = PRODUCT
    return "\n".join(parts) + ops.prelude(functions + body) + "\n" + functions + body


def emit(kernels: list[loops.Kernel]) -> str:
    """The C++ text of a list of kernels as one translation unit; structural duplicates appear once.

    Raises Unsupported when a kernel uses a dtype or an operator that has no C++ form.
    """
    return unit(list(dict(kernel_text(k) for k in kernels).values()))


def compile_cpp(kernels: list[loops.Kernel]) -> dict[str, int]:
    """Kernel name -> address of ``void f(void** ptrs, const int64_t* ints)``; pointers in the order of
    ``kernel.buffers``, integers of ``kernel.sizes``.

    Raises Unsupported as :func:`emit` does, and CompileError when the compiler fails.
    """
    return begin_cpp(kernels)()


def begin_cpp(kernels: list[loops.Kernel]) -> Callable[[], dict[str, int]]:
    """Begin with ``compile_cpp``: what is returned waits for the compiler, and gives the addresses. Raises
    Unsupported."""
    with logs.timed("C++ emission"):
        named = {k.name: kernel_text(k) for k in kernels}
    with _lock:
        found = {name: _addresses.get(name) for name, _ in named.values()}
        begun = {name: _begun.get(name) for name in found if found[name] is None}  # which may end at any time
        units = {id(unit): unit for unit in begun.values() if unit is not None}
        missing = {name: text for name, text in named.values() if found[name] is None and begun[name] is None}
        if missing:
            compiler_check.quirks()  # raises where the compiler cannot be used
            count = min(-(-len(missing) // KERNELS_PER_UNIT), config.compile_threads)
            made = _Units(_balanced(list(missing.items()), count))
            units[id(made)] = made
            _begun.update(dict.fromkeys(missing, made))

    def finish() -> dict[str, int]:
        for unit in units.values():
            found.update(unit.addresses())
        return {k: found[name] for k, (name, _) in named.items()}

    return finish


class _Units:
    """Translation units that are being compiled, each a list of (kernel's name, text)."""

    def __init__(self, groups: list[list[tuple[str, str]]]) -> None:
        self.groups, self.lock = groups, threading.Lock()
        self.build: toolchain.Build | None = toolchain.Build([unit([text for _, text in group]) for group in groups])
        self.found: dict[str, int] = {}

    def addresses(self) -> dict[str, int]:
        """Kernel's name -> address, when they are there. Raises CompileError each time that it is asked."""
        with self.lock:
            if self.build is not None:
                try:
                    paths = self.build.paths()
                finally:  # if it has failed, another one may try it anew
                    for name in [name for group in self.groups for name, _ in group]:
                        _begun.pop(name, None)
                with _lock:
                    for group, path in zip(self.groups, paths):
                        library = libraries.load(path)
                        for name, _ in group:
                            self.found[name] = _addresses[name] = libraries.address(library, name)
                self.build = None
        return self.found


def _after_in_child() -> None:
    """A thread that compiles in the background is not there in a child that was forked while it held the lock."""
    global _lock
    _lock = threading.Lock()
    _begun.clear()


os.register_at_fork(after_in_child=_after_in_child)


def forget() -> None:
    """Let go of the kernels that no plan uses."""
    with _lock:
        _addresses.clear()
        _texts.clear()


def _balanced(items: list, count: int) -> list[list]:
    """Items shared out in ``count`` groups of about the same amount of text."""
    groups, sizes = [[] for _ in range(count)], [0] * count
    for item in sorted(items, key=lambda x: (-len(x[1]), x[0])):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(item)
        sizes[smallest] += len(item[1])
    return groups
