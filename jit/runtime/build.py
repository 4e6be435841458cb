"""Builds the native extension ``_jit_native`` on first use and keeps it in the cache folder.

The key of a build is a digest of the C++ sources, of torch's, Python's and the compiler's identity and of the flags,
so an upgrade of any of them builds anew. Any number of processes may ask at once: one builds under a file lock, and the
finished library appears by an atomic rename together with its SHA-256, which is checked before the library is loaded.
Only torch's headers and CPython's are needed; CUDA's are not (the driver is opened at run time).

A wheel of ``make wheel`` has the built library in it (``PREBUILT``), with a key of the same facts but for the compiler.
Where that key is this process's, it is used, and no compiler is needed.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from jit import config, logs, progress, telling
from jit.errors import CompileError, NoCompiler
from jit.runtime import sanitizers

if TYPE_CHECKING:
    import types

MODULE = "_jit_native"
KEEP_DAYS = 30
PREBUILT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prebuilt")
prebuilt_in: list[str] = []  # further folders with a library that was built elsewhere
SOURCE_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-plt",
         "-g0", "-Wall", "-Wno-unused-function", "-Wno-attributes", "-Wno-missing-field-initializers",
         *sanitizers.flags("runtime"))


def sources() -> list[str]:
    """The .cpp files, the slowest to compile first."""
    files = [os.path.join(SOURCE_DIR, f) for f in os.listdir(SOURCE_DIR) if f.endswith(".cpp")]
    return sorted(files, key=lambda f: (-os.path.getsize(f), f))


def compiler() -> str:
    """Path of the C++ compiler: ``$CXX`` or g++. Raises NoCompiler when there is none."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        named = " (from the variable CXX)" if os.environ.get("CXX") else ""
        raise NoCompiler(f"no C++ compiler: {name!r}{named} is not on PATH, and the native runtime, without which "
                         "nothing can be compiled, is not built for this torch and Python. Cure: install g++ 11 or "
                         "newer (Debian: apt-get install g++), or point CXX at one; or install a wheel that was made "
                         "by `make wheel` on a machine with g++ and the same torch and Python.")
    return path


def digest() -> str:
    """Key of the build that this process needs."""
    real = os.path.realpath(compiler())
    info = os.stat(real)
    facts = (torch.__version__, torch.version.git_version, sys.hexversion,
             sysconfig.get_config_var("SOABI"), real, info.st_size, info.st_mtime_ns, FLAGS, loaded_cxx_library())
    return _digest_of(facts)


def portable_digest() -> str:
    """Key of a build that this process can load, whatever compiler has made it."""
    return _digest_of((torch.__version__, torch.version.git_version, sys.hexversion,
                       sysconfig.get_config_var("SOABI"), sysconfig.get_platform(), FLAGS))


def _digest_of(facts: tuple) -> str:
    """Of facts and the sources."""
    h = hashlib.sha256(repr(facts).encode())
    for name in sorted(os.listdir(SOURCE_DIR)):
        if name.endswith((".cpp", ".h")):
            h.update(name.encode())
            with open(os.path.join(SOURCE_DIR, name), "rb") as f:
                h.update(f.read())
    return h.hexdigest()[:32]


def _torch_dir() -> str:
    return os.path.dirname(os.path.abspath(torch.__file__))


def _compile_command(source: str, output: str) -> list[str]:
    root = _torch_dir()
    includes = [os.path.join(root, "include"), os.path.join(root, "include", "torch", "csrc", "api", "include"),
                sysconfig.get_paths()["include"]]
    return [compiler(), *FLAGS, *(f"-I{i}" for i in includes[:1]), *(f"-isystem{i}" for i in includes[1:]),
            "-c", source, "-o", output]


def _link_command(objects: list[str], output: str) -> list[str]:
    lib = os.path.join(_torch_dir(), "lib")
    return [compiler(), "-shared", "-o", output, *objects, f"-L{lib}",
            "-ltorch_python", "-ltorch_cpu", "-lc10", *loaded_cxx_library(), "-ldl", "-Wl,-z,now"]


def loaded_cxx_library() -> list[str]:
    """Path of the C++ standard library that this process has loaded with torch, in a list that is empty where it cannot
    be told.

    A compiler that links its own static copy makes a library with two sets of locale facets in one process: printing an
    integer then crashes.
    """
    try:
        with open("/proc/self/maps") as f:
            return sorted({line.split(maxsplit=5)[5].strip() for line in f if "/libstdc++.so" in line})[:1]
    except OSError:
        return []


def _cure_of_cxx() -> str:
    """What a failed build says of the compiler that the user has chosen."""
    given = os.environ.get("CXX")
    return f"the variable CXX is {given!r}: unset it, or set it to a working g++; " if given else ""


def _run(commands: list[list[str]], jobs: int) -> None:
    """Run the commands, at most ``jobs`` at a time; raise CompileError with the output of the first that fails."""
    waiting = list(commands)
    running: list[tuple] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cmd = waiting.pop(0)
                log = tempfile.TemporaryFile("w+", errors="replace")
                running.append((cmd, subprocess.Popen(cmd, stdin=subprocess.DEVNULL,
                                                      stdout=log, stderr=subprocess.STDOUT), log))
            for item in list(running):
                cmd, process, log = item
                if process.poll() is None:
                    continue
                running.remove(item)
                with log:
                    if process.returncode:
                        log.seek(0)
                        text = log.read()
                        raise CompileError(
                            f"the native runtime did not build (exit status {process.returncode}).\ncommand: "
                            f"{' '.join(cmd)}\n{text[-8000:]}\n"
                            f"Cure: {_cure_of_cxx()}g++ 11 or newer with C++20 is needed, and the Python headers "
                            "(Debian: python3-dev); `python -m jit doctor` checks both."
                        )
            progress.kernels(len(commands) - len(waiting) - len(running), len(commands))
            time.sleep(0.02)
    finally:
        for _, process, log in running:
            process.kill()
            process.wait()
            log.close()


def _check_owner(folder: str) -> None:
    """Refuse a folder that another user could write into: what lies there is loaded as code."""
    info = os.stat(folder)
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} belongs to another user or can be written by others")


def _file_digest(path: str) -> str:
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.hexdigest()


def _intact(library: str) -> bool:
    try:
        with open(library + ".sha256") as f:
            return f.read().strip() == _file_digest(library)
    except OSError:
        return False


@contextlib.contextmanager
def _lock(path: str) -> Iterator[None]:
    with open(path, "a") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.phase("waiting for the process that builds"):
                progress.start()
                fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _build_in(folder: str) -> str:
    """Compile and link into ``folder``; returns the library's path. The caller holds the lock."""
    library = os.path.join(folder, MODULE + ".so")
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as work, logs.timed("build of the native runtime"):
        units = [(s, os.path.join(work, os.path.basename(s) + ".o")) for s in sources()]
        commands, jobs = [_compile_command(s, o) for s, o in units], max(2, config.compile_threads)
        try:
            _run(commands, jobs)
        except CompileError as e:
            if "frame_hook.cpp" not in str(e) and "generator_state.cpp" not in str(e):
                raise
            # This CPython's internal headers do not compile.
            _run([c + ["-DJIT_NO_FRAME_HOOK"] for c in commands], jobs)
        made = os.path.join(work, MODULE + ".so")
        _run([_link_command([o for _, o in units], made)], jobs=1)
        with open(made + ".sha256", "w") as f:
            f.write(_file_digest(made))
        os.replace(made + ".sha256", library + ".sha256")
        os.replace(made, library)
    return library


def _drop_old(parent: str, keep: str) -> None:
    """Remove the builds that no process has loaded for KEEP_DAYS; each load touches its folder."""
    for name in os.listdir(parent):
        folder = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            if name != keep and time.time() - os.stat(folder).st_mtime > KEEP_DAYS * 86400:
                shutil.rmtree(folder, ignore_errors=True)


def _ready_in_home(key: str) -> str | None:
    """The library in the default cache folder, if it was built there already and nobody else can have written it."""
    home = str(config.OPTIONS["cache_dir"].default)
    folder = os.path.join(home, "runtime", key)
    library = os.path.join(folder, MODULE + ".so")
    try:
        for part in (home, os.path.dirname(folder), folder):
            _check_owner(part)
    except OSError:
        return None
    return library if _intact(library) else None


def prebuilt() -> str | None:
    """The library that the package came with, or that was loaded with compiled functions, where it fits this
    process."""
    for folder in (PREBUILT, *prebuilt_in):
        library = os.path.join(folder, MODULE + ".so")
        try:
            with open(os.path.join(folder, "key")) as f:
                fits = f.read().strip() == portable_digest()
        except OSError:
            continue
        if fits and _intact(library):
            return library
    return None


def put_prebuilt(folder: str) -> None:
    """Put the library of this process, building it if need be, and its key into ``folder``, from where a package can
    come with it."""
    os.makedirs(folder, exist_ok=True)
    library = library_path()
    for suffix in ("", ".sha256"):
        shutil.copyfile(library + suffix, os.path.join(folder, MODULE + ".so" + suffix))
    with open(os.path.join(folder, "key"), "w") as f:
        f.write(portable_digest())


def findings_folder(library: str) -> str:
    """Where what is found out about the compiler is kept: beside the library, or in the cache folder where that came
    with the package."""
    if os.path.dirname(library) != PREBUILT:
        return os.path.dirname(library)
    os.makedirs(config.cache_dir, mode=0o700, exist_ok=True)
    return config.cache_dir


def main(arguments: Sequence[str] = ()) -> int:
    """``python -m jit build``: the library is built ahead of use."""
    argparse.ArgumentParser(
        prog="python -m jit build", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Build the native runtime ahead of use, where the package did not come with it: by g++, in a "
                    "minute or two, once for each torch, Python and g++.\nPrints where it is.",
        epilog="examples:\n  python -m jit build\n  JIT_CACHE_DIR=/opt/jit python -m jit build       for others, in an "
               "image").parse_args(list(arguments))
    try:
        came = prebuilt()
        print(f"prebuilt, came with the package: {came}" if came else f"built: {library_path()}")
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def library_path() -> str:
    """Path of the built library, building it if need be. Raises CompileError when it cannot be built.

    The one that the package came with is looked for first. A build in the default cache folder serves all kernel
    caches: it depends on nothing that they hold.
    """
    came = prebuilt()
    if came is not None:
        return came
    key = digest()
    ready = _ready_in_home(key)
    if ready is not None:
        os.utime(os.path.dirname(ready))
        return ready
    try:
        os.makedirs(config.cache_dir, mode=0o700, exist_ok=True)
        folder = os.path.join(config.cache_dir, "runtime", key)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for part in (config.cache_dir, os.path.dirname(folder), folder):
            _check_owner(part)
        library = os.path.join(folder, MODULE + ".so")
        if not _intact(library):
            with progress.compiling("the native runtime, once on this machine"), _lock(os.path.join(folder, "lock")):
                if not _intact(library):
                    _build_in(folder)
                    _drop_old(os.path.dirname(folder), keep=key)
        os.utime(folder)
        return library
    except OSError as e:
        private = tempfile.mkdtemp(prefix="jit-runtime-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        telling.warn(f"jit: the cache folder {config.cache_dir!r} cannot be used ({e}); the native runtime is built in "
                     f"{private} for this process only, which takes minutes each time. "
                     "Cure: set JIT_CACHE_DIR to a folder that only you can write.")
        return _build_in(private)


def load() -> types.ModuleType:
    """Build if need be and import the extension; returns the module."""
    path = library_path()
    loader = importlib.machinery.ExtensionFileLoader(MODULE, path)
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as e:
        if os.path.dirname(path) == PREBUILT:
            raise CompileError(f"the native runtime that the package came with does not load here: {e}\nCure: delete "
                               f"{PREBUILT}; it is then built on this machine, by g++ 11 or newer.") from e
        raise CompileError(f"the native runtime was built but does not load: {e}\nCure: delete {os.path.dirname(path)} "
                           "and try again.") from e
    return module
