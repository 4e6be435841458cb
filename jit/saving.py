"""Compiled functions in one file, for another process, another machine of the same kind, or a container without a
compiler.

The file is a zip archive: entries as they are kept on disk (``jit/frame/stored.py``), the kernels that they call, the
native runtime, and ``manifest.json``, which says what they need. What is loaded is unpacked into a private folder,
which is read beside the cache until the process ends. So nothing is taken that does not fit: each entry has its guards,
and the digests of the modules that it relies on.

Loading runs what is in the file. Load only files that you trust.
"""

from __future__ import annotations

import atexit
import dataclasses
import io
import json
import os
import platform
import shutil
import sys
import tempfile
import types
import zipfile
import zlib
from typing import Any

import torch

from . import telling
from .errors import LoadError
from .frame import dispatch, stored
from .frame.dispatch import Missed, Settings
from .runtime import build, cache, native, sources

_MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Saved:
    """What ``save`` has written.

    Attributes:
        path: the file.
        functions: the name of the function of each entry.
        left_out: (function, why) of each entry that could not be saved.
    """

    path: str
    functions: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What ``load`` has found.

    Attributes:
        functions: the name of the function of each entry.
        differs: what is not here as it was where they were saved; empty if they can be used.
    """

    functions: tuple[str, ...]
    differs: tuple[str, ...]


def save(compiled: Any, path: str | os.PathLike) -> Saved:
    """Write all that has been compiled of a function or a module to a file.

    Args:
        compiled: what ``jit.compile`` gave. It has to have been called, once for each kind of call that is to be saved.
        path: the file, which is replaced in one step.

    Raises:
        TypeError: ``compiled`` is not compiled.
        LoadError: none of it can be saved; the message says why.
        OSError: the file cannot be written.
    """
    settings = _settings_of(compiled)
    found: dict[str, bytes] = {}
    functions, left_out = [], []
    for dispatcher in dispatch.dispatchers():
        missed = dispatcher.on_miss
        if not isinstance(missed, Missed) or missed.settings.ways is not settings.ways:
            continue
        name = stored.name_of(dispatcher)
        for entry in dispatcher.entries:
            try:
                place, data = stored.written(missed, entry)
                kernels = {key: cache.get(key) for key in stored.header_of(data).kernels}
                gone = [key for key, binary in kernels.items() if binary is None]
                if gone:
                    raise stored.NotKept(f"its kernels are not in the cache any more ({gone[0]})")
            except stored.NotKept as error:
                left_out.append((name, str(error)))
                continue
            functions.append(name)
            found[f"entries/{place}"] = data
            found.update((f"kernels/{key}", binary) for key, binary in kernels.items() if binary is not None)
    if not functions:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out) or "it has not been called yet"
        raise LoadError(f"jit.save: there is nothing to save of {compiled!r}: {why}")
    with tempfile.TemporaryDirectory() as runtime:
        build.put_prebuilt(runtime)
        for file in os.listdir(runtime):
            with open(os.path.join(runtime, file), "rb") as f:
                found[f"runtime/{file}"] = f.read()
    manifest = {"functions": functions, "here": _here()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        for name, data in found.items():
            archive.writestr(name, data)
    path = os.fspath(path)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(packed.getvalue())
        os.replace(temporary, path)
    except BaseException:  # an interrupt leaves no file behind either
        os.unlink(temporary)
        raise
    return Saved(path, tuple(functions), tuple(left_out))


def load(path: str | os.PathLike, *, recompile: bool = False) -> Loaded:
    """Have this process use what ``jit.save`` has written: compile the same functions as there, and their calls find
    their entries instead of being captured.

    Args:
        path: the file.
        recompile: where something is not as it was where they were saved, warn, and compile what cannot be used.

    Raises:
        LoadError: something is not as it was (other versions, another processor, other texts of modules), which the
            message names; and for a file that is none of ``save``'s.
        OSError: the file cannot be read.
    """
    try:
        archive = zipfile.ZipFile(os.fspath(path))
        manifest = json.loads(archive.read(_MANIFEST))
        contents = {name: archive.read(name) for name in archive.namelist() if name != _MANIFEST}
        functions, there = tuple(manifest["functions"]), dict(manifest["here"])
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, NotImplementedError, zlib.error) as error:
        raise LoadError(f"jit.load: {os.fspath(path)} is not a whole file of jit.save: {error}") from None
    here = _here()
    differs = [f"{what}: {was} there, {here.get(what)} here" for what, was in there.items() if here.get(what) != was]
    if not differs:
        for name, data in contents.items():
            if name.startswith("entries/"):
                header = stored.header_of(data)
                differs += [f"{header.name}: {text}" for text in header.differences()]
    if differs:
        text = f"jit.load: what is in {os.fspath(path)} does not fit here: {'; '.join(dict.fromkeys(differs))}"
        if not recompile:
            raise LoadError(f"{text}. Save it again here, or load it with recompile=True, which compiles anew what "
                            "does not fit")
        telling.warn(f"{text}; it is compiled anew", RuntimeWarning)
    folder = tempfile.mkdtemp(prefix="jit-loaded-")
    atexit.register(_remove, folder, os.getpid())
    for store in cache.STORES:
        cache.fill(os.path.join(folder, store.name),
                   {name.partition("/")[2]: data for name, data in contents.items()
                    if name.startswith(f"{store.name}/")})
        store.add(os.path.join(folder, store.name))
    runtime = os.path.join(folder, "runtime")
    os.mkdir(runtime, 0o700)
    for name, data in contents.items():
        if name.startswith("runtime/"):
            with open(os.path.join(runtime, os.path.basename(name)), "wb") as f:
                f.write(data)
    build.prebuilt_in.append(runtime)
    return Loaded(functions, tuple(dict.fromkeys(differs)))


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _here() -> dict[str, str]:
    """What has to be the same for all entries of a file."""
    try:
        text = sources.of_jit()
    except sources.Unknown as error:
        raise LoadError(f"jit.save and jit.load: {error}") from None
    return {"Python": platform.python_version(), "implementation": sys.implementation.cache_tag or "",
            "platform": f"{sys.platform} {platform.machine()}", "PyTorch": torch.__version__,
            "PyTorch's text": str(torch.version.git_version), "jit": text}


def _settings_of(compiled: Any) -> Settings:
    """What something was compiled with. Raises TypeError."""
    found = getattr(type(compiled), "_jit_dispatcher", compiled)
    if isinstance(found, types.MethodType):
        found = found.__func__
    if not isinstance(found, (native().Dispatcher, native().BoundDispatcher)):
        raise TypeError(f"jit.save takes what jit.compile gave, not {type(compiled).__qualname__}")
    return found.on_miss.settings
