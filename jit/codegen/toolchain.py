"""The C++ compiler: finding g++, choosing flags, building shared objects side by side, loading them next to torch's
OpenMP runtime.

Kernels are headerless C++ that names libm, libmvec and OpenMP entry points itself. They are linked against libm and
libmvec alone: the ``GOMP_*`` symbols come from the OpenMP runtime that torch has already loaded, which is put into the
global scope first. A second runtime would mean a second thread pool, which ignores ``torch.set_num_threads`` and fights
torch's own for the cores.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

import torch  # loads the OpenMP runtime that kernels must use

from jit import logs, turns
from jit.codegen import cache
from jit.errors import CompileError
from jit.runtime import sanitizers
from jit.runtime.names import Name, Naming, Unbound, Value, calling, rule

# No -ffast-math: NaN, infinities, signed zeros and the order of additions outside an explicit simd reduction are kept.
# -fno-math-errno and -fno-trapping-math only give up errno and floating-point exception flags, without which nothing
# with a call or a select in it is vectorised. 512-bit vectors are asked for because g++ prefers 256 on most processors
# that have them: measured on Sapphire Rapids, tanh, exp and NaN-propagating maxima run 1.3 to 1.7 times faster with
# 512; elsewhere the option has no effect. -ffp-contract=off keeps a*b+c at two roundings, as eager has it (x*x - y*y is
# 0 for x == y); helpers that want a fused multiply-add say so. -fno-thread-jumps: jump threading turns chains of
# selects into a web of masks, at up to half the speed. -fno-tree-pre: the elimination of partial redundancies turns
# selects by two comparisons of one value (a > b or a is NaN) into jumps where they follow each other, and the loop is
# not vectorised any more, at a tenth to a thirtieth of the speed. -fno-builtin-sin: sine and cosine of one value would
# become a single call of a function that has no vector form, at a tenth of the speed.
FLAGS = (
    "-std=c++17", "-O3", "-march=native", *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
    "-fopenmp",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-thread-jumps",
    "-fno-builtin-sinf", "-fno-builtin-cosf", "-fno-builtin-sin", "-fno-builtin-cos",
    "-fno-tree-pre",
    "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector", "-fno-semantic-interposition",
    "-fvisibility=hidden", "-fno-plt", "-w", *sanitizers.flags("kernels"),
)  # fmt: skip
# Zen 4 does 512 bits in two halves: what is in a cache takes the same time so, and sums of what streams from memory
# take 1.03 to 1.13 times as long (64 MiB: 1725 us, and 1588 with 256 bits). Such kernels are marked ``STREAMS``. Asked
# for as a flag, 256 bits keep g++ 12 from vectorising some that have other work.
_HALVES = '-DSTREAMS=__attribute__((target("prefer-vector-width=256")))'
_UNALIGNED = "-Wa,-muse-unaligned-vector-move"
LINK_FLAGS = ("-shared", "-nostdlib", "-Wl,-z,now", "-Wl,--build-id=none", "-Wl,-s")
LIBRARIES = ("-Wl,--push-state,--as-needed", "-lmvec", "-Wl,--pop-state", "-lm", "-lgcc")

_log = logs.channel("timing")


@functools.lru_cache(maxsize=None)
def compiler() -> str:
    """The path of g++: ``$CXX`` when that is GNU C++, else the first of g++, g++-14 ... g++-11, c++ that is.

    Raises CompileError saying what to install when there is none.
    """
    wanted = os.environ.get("CXX", "").strip()
    for name in ([wanted] if wanted else []) + ["g++"] + [f"g++-{v}" for v in range(16, 10, -1)] + ["c++"]:
        path = shutil.which(name)
        if path and _is_gnu(path):
            return path
    raise CompileError(
        "no GNU C++ compiler was found, so CPU kernels cannot be built. Install one (Debian/Ubuntu: apt install g++; "
        "conda: conda install gxx) or set CXX to its path."
    )


def _is_gnu(path: str) -> bool:
    if re.fullmatch(r"(.*-)?g\+\+(-\d+)?", os.path.basename(os.path.realpath(path))):
        return True
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return "Free Software Foundation" in text


@functools.lru_cache(maxsize=None)
def fingerprint() -> str:
    """What a build depends on besides its source: compiler (path, size, time of change), flags, CPU model and CPU
    flags."""
    path = os.path.realpath(compiler())
    return "\n".join((_stamp(path), " ".join(flags() + LINK_FLAGS + LIBRARIES), *cpu_features()))


def _stamp(path: str) -> str:
    """A program as a line: path, size and time of change."""
    info = os.stat(path)
    return f"{path} {info.st_size} {info.st_mtime_ns}"


@functools.lru_cache(maxsize=None)
def flags() -> tuple[str, ...]:
    """``FLAGS``, what streaming kernels are compiled with, and what keeps aligned moves to the stack from ending the
    process on x86.

    g++ 12 drops the realignment of the stack in functions that call nothing, and stores to its arrays there as if they
    were aligned all the same, where it takes their address into a register first. The assembler (binutils 2.38 or
    later) can encode every such move for any address, which takes no longer where it is aligned. Where the assembler is
    older, the compiler is told to use no memory below the stack pointer, which mends the kernels in which this was
    found.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return FLAGS
    assembler = shutil.which("as")
    key = cache.key("assembler", _stamp(os.path.realpath(compiler())),
                    _stamp(os.path.realpath(assembler)) if assembler else "")
    known = cache.get(key)
    if known is None:
        known = b"yes" if _accepts(_UNALIGNED) else b"no"
        cache.put(key, known)
    return (*FLAGS, *_streams(), _UNALIGNED if known == b"yes" else "-mno-red-zone")


def _streams() -> tuple[str, ...]:
    of = cpu_facts()
    return (_HALVES,) if (of["vendor_id"], of["cpu family"]) == ("AuthenticAMD", "25") else ()


def _accepts(flag: str) -> bool:
    """Whether the assembler that the compiler calls knows an option."""
    with tempfile.TemporaryDirectory(prefix="jit-cpp-") as folder:
        command = [compiler(), flag, "-x", "assembler", "-c", os.devnull, "-o", os.path.join(folder, "empty.o")]
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
        except OSError as error:
            raise CompileError(f"{command[0]} could not be started: {error}. Set CXX to a working g++.") from error


@functools.lru_cache(maxsize=None)
def cpu_features() -> tuple[str, str]:
    """(model name, flags) of the first processor in /proc/cpuinfo; empty strings where there is none."""
    found = cpu_facts()
    return found["model name"], found["flags"]


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


def build(sources: list[str]) -> list[str]:
    """Compile each C++ source text to a shared object; return the paths of the checked cache entries, in order.

    What the cache lacks is compiled by processes that run side by side. Raises CompileError with the compiler's output.
    """
    keys = [cache.key("cpp", source, fingerprint()) for source in sources]
    paths = {k: cache.file(k) for k in keys}
    missing = {k: s for k, s in zip(keys, sources) if paths[k] is None}
    if missing:
        with tempfile.TemporaryDirectory(prefix="jit-cpp-") as folder, logs.timed(f"g++ of {len(missing)} translation "
                                                                                  "unit(s)"):
            running = [(k, source, *_start(source, os.path.join(folder, k[:16]))) for k, source in missing.items()]
            try:
                for k, source, process, output in running:
                    text = turns.wait_for(process).decode(errors="replace")
                    if process.returncode:
                        raise CompileError(_failure(process, text, source))
                    with open(output, "rb") as f:
                        paths[k] = cache.put(k, f.read())
            finally:
                for _, _, process, _ in running:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
    return [paths[k] for k in keys]


def _start(source: str, stem: str) -> tuple[subprocess.Popen, str]:
    """A running compiler and the path that it will write. The text goes through a file, so that no process waits for
    another's pipe."""
    with open(stem + ".cpp", "w") as f:
        f.write(source)
    command = [compiler(), *flags(), *LINK_FLAGS, stem + ".cpp", "-o", stem + ".so", *LIBRARIES]
    try:
        return (subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT),
                stem + ".so")
    except OSError as error:
        raise CompileError(f"{command[0]} could not be started: {error}. Set CXX to a working g++.") from error


def _failure(process: subprocess.Popen, text: str, source: str) -> str:
    handle, path = tempfile.mkstemp(prefix="jit-failed-", suffix=".cpp")
    with os.fdopen(handle, "w") as f:
        f.write(source)
    lines = text.strip().splitlines()
    shown = "\n".join(lines[:40]) + (f"\n... {len(lines) - 40} more lines" if len(lines) > 40 else "")
    return (
        f"{process.args[0]} failed with exit status {process.returncode} on a generated kernel, whose source is in "
        f"{path}:\n{shown}\n"
        "If the compiler is at fault (too old, killed for want of memory, missing libmvec), set CXX to another g++ (11 "
        "or later)."
    )


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


def load(path: str) -> Library:
    """Load a built kernel library. Raises CompileError when the dynamic linker refuses it."""
    _share_openmp()
    try:
        return Library(path, mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise CompileError(f"the kernel library {path} does not load: {error}. Remove it, or set JIT_CACHE_DIR to "
                           "another folder.") from error


def address(library: Library, name: str) -> Address:
    """The address of an exported function."""
    found = Address(ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    found.library, found.name = library, name
    return found


def kernel(key: str, name: str) -> Address:
    """The address of a function of a library that was built before: ``key`` is the digest of its text, the compiler and
    its options. Raises Unbound when it is not in the cache any more."""
    path = cache.file(key)
    if path is None:
        raise Unbound(f"the kernels {key} are not in the cache any more")
    return address(load(path), name)


@rule(Address)
def _name_of_kernel(naming: Naming, kernel_: Address) -> Name:
    return calling(kernel, Value(os.path.basename(kernel_.library._name)), Value(kernel_.name))
