"""The texts that a process runs, as digests: what an entry that is kept on disk relies on besides its guards.

Guards compare what Python can see change. What cannot change in one process, such as which value a member of an
enumeration has, is what its source text says, so each module that an entry names is relied on as a whole. What a
module's file says now is what the process runs only if it was not written since the process began.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import linecache
import os
import sys
import time
import types
import weakref

import torch

from jit.runtime import cache

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Top-level modules that versions tell of.
_KNOWN_BY_VERSION = frozenset(sys.stdlib_module_names) | {"torch", "torchgen", "jit", "_jit_native"}


class Unknown(Exception):
    """What a module says cannot be told; the text says why."""


def _start_of_process() -> float:
    """When this process began, in seconds of the epoch."""
    try:
        with open("/proc/self/stat", "rb") as f:
            ticks = int(f.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()


# A little later: nothing of the program's is read by then, and the clock of files is coarse.
BEGAN = _start_of_process() + 0.03
_digests: dict[str, str] = {}  # of files


def forget() -> None:
    """Look at all files again."""
    _digests.clear()


def of_file(path: str) -> str:
    """The digest of a file that this process has read. Raises Unknown."""
    found = _digests.get(path)
    if found is None:
        try:
            with open(path, "rb") as f:
                info = os.fstat(f.fileno())
                data = f.read()
        except OSError as error:
            raise Unknown(f"{path} cannot be read: {error}") from None
        if max(info.st_mtime, info.st_ctime) > BEGAN:
            raise Unknown(f"{path} was written after this process began")
        found = _digests[path] = hashlib.sha256(data).hexdigest()
    return found


_scripts: weakref.WeakKeyDictionary[types.ModuleType, str] = weakref.WeakKeyDictionary()


def of_module(name: str) -> str:
    """The digest of what a module says; empty where versions tell. Raises Unknown."""
    if name.partition(".")[0] in _KNOWN_BY_VERSION:
        return ""
    module = sys.modules.get(name)
    if module is None:
        raise Unknown(f"there is no module {name}")
    path = _file_of(module)
    if isinstance(path, str) and os.path.isfile(path):
        return of_file(path)
    if path is None and name == "__main__":
        return _of_command()
    lines = linecache.getlines(path) if isinstance(path, str) else []
    if lines:  # of a module in an archive
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    if isinstance(module, types.ModuleType) and hasattr(module, "__path__"):  # a package without a file of its own
        return ""
    raise Unknown(f"the module {name} has no file")


def _file_of(module: types.ModuleType) -> str | None:
    """A module's file. Python takes that from a script when the script ends, before what is done at the end."""
    path = getattr(module, "__file__", None)
    return _scripts.get(module) if path is None else path


def note_script() -> None:
    """Remember the file of the script that runs."""
    module = sys.modules.get("__main__")
    path = getattr(module, "__file__", None)
    if module is not None and isinstance(path, str):
        _scripts[module] = os.path.abspath(path)


def _of_command() -> str:
    """The digest of what ``python -c`` was given. Raises Unknown where it was something else."""
    given = getattr(sys, "orig_argv", [])
    if len(sys.argv) > 0 and sys.argv[0] == "-c" and "-c" in given:
        return hashlib.sha256(given[given.index("-c") + 1].encode()).hexdigest()
    raise Unknown("the module __main__ has no file")


def of_modules(names: set[str]) -> dict[str, str]:
    """The digests of modules, by name. Raises Unknown."""
    found = {name: of_module(name) for name in sorted(names)}
    return {name: text for name, text in found.items() if text}


@functools.cache
def of_jit() -> str:
    """The digest of this package. It is looked up by the sizes and times of its files, and read where these are new.
    Raises Unknown."""
    files = []
    for folder, _, names in os.walk(_PACKAGE):
        for name in names:
            if name.endswith((".py", ".cpp", ".h")):
                path = os.path.join(folder, name)
                info = os.stat(path)
                files.append((path[len(_PACKAGE) + 1:], info.st_size, info.st_mtime_ns, info.st_ctime_ns,
                              info.st_ino))
    if any(max(changed, made) > BEGAN * 1e9 for _, _, changed, made, _ in files):
        raise Unknown(f"{_PACKAGE} was written after this process began")
    files.sort()
    key = cache.key("the text of jit", _PACKAGE, repr(files))
    known = cache.get(key)
    if known is None:
        text = hashlib.sha256()
        for name, *_ in files:
            with open(os.path.join(_PACKAGE, name), "rb") as f:
                text.update(cache.key(name, f.read()).encode())
        known = text.hexdigest().encode()
        cache.put(key, known)
    return known.decode()


@functools.cache
def versions() -> str:
    """What is the same in all processes that may share entries: Python, PyTorch and this package. Raises Unknown."""
    return cache.key(repr(sys.version_info), importlib.util.MAGIC_NUMBER, sys.platform, torch.__version__,
                     str(torch.version.git_version), of_jit())
