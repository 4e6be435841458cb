"""Kernel libraries: loading them next to torch's OpenMP runtime, and what the processor is that they run on.

Kernels are linked against libm and libmvec alone: the ``GOMP_*`` symbols come from the OpenMP runtime that torch has
already loaded, which is put into the global scope first. A second runtime would mean a second thread pool, which
ignores ``torch.set_num_threads`` and fights torch's own for the cores.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import os
import re
import sys
import weakref

import torch  # loads the OpenMP runtime that kernels must use

from jit.errors import CompileError
from jit.runtime import cache
from jit.runtime.extension import native
from jit.runtime.naming import Naming
from jit.runtime.names import Name, Unbound, Value, calling, rule


def cpu_facts() -> dict[str, str]:
    """What /proc/cpuinfo tells of its first processor: model name, flags, vendor and family; empty strings where that
    is not told."""
    found = {"model name": "", "flags": "", "vendor_id": "", "cpu family": ""}
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if not line.strip():
                    break
                name, _, value = line.partition(":")
                if name.strip() in found:
                    found[name.strip()] = value.strip()
    except OSError:
        pass
    return found


def openmp_runtimes() -> list[str]:
    """Paths of the OpenMP runtimes loaded in this process; kernels need exactly one."""
    found = set()
    with open("/proc/self/maps") as f:
        for line in f:
            path = line.rstrip("\n").partition("/")[2]
            if re.match(r"lib(gomp|iomp5|omp)[-.]", path.rpartition("/")[2]):
                found.add("/" + path)
    return sorted(found)


@functools.lru_cache(maxsize=None)
def _share_openmp() -> object:
    runtimes = openmp_runtimes()
    if not runtimes:
        raise CompileError("torch has loaded no OpenMP runtime (libgomp, libiomp5 or libomp); CPU kernels need a torch "
                           "built with OpenMP")
    ours = next((p for p in runtimes if os.path.dirname(torch.__file__) in p), runtimes[0])
    return ctypes.CDLL(ours, mode=ctypes.RTLD_GLOBAL)


class Library(ctypes.CDLL):
    """A loaded kernel library. It is closed when nothing refers to it; the dynamic linker counts, and plans hold what
    they call by themselves."""

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and not sys.is_finalizing():
            _ctypes.dlclose(self._handle)


class Address(int):
    """The address of a function of ``library``, which stays loaded for as long as this object lives."""

    library: Library
    name: str


_loaded: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()  # by key


def load(path: str) -> Library:
    """Load a built kernel library. Raises CompileError when the dynamic linker refuses it."""
    _share_openmp()
    try:
        found = Library(path, mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise CompileError(f"the kernel library {path} does not load: {error}. Remove it, or set JIT_CACHE_DIR to "
                           "another folder.") from error
    try:
        scratch = ctypes.c_void_p.in_dll(found, "jit_scratch")
    except ValueError:
        pass  # its kernels need no memory of their own
    else:
        scratch.value = native().scratch_address()
    _loaded[os.path.basename(path)] = found
    return found


def address(library: Library, name: str) -> Address:
    """The address of an exported function."""
    found = Address(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
    found.library, found.name = library, name
    return found


def kernel(key: str, name: str) -> Address:
    """The address of a function of a library that was built before: ``key`` is the digest of its text, the compiler and
    its options. Raises Unbound when it is not in the cache any more."""
    library = _loaded.get(key)
    if library is None:
        path = cache.file(key)
        if path is None:
            raise Unbound(f"the kernels {key} are not in the cache any more")
        library = load(path)
    return address(library, name)


@rule(Address)
def _name_of_kernel(naming: Naming, kernel_: Address) -> Name:
    return calling(kernel, Value(os.path.basename(kernel_.library._name)), Value(kernel_.name))
