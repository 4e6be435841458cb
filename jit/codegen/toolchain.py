"""The C++ compiler: finding g++, choosing flags, building shared objects side by side.

Kernels are headerless C++ that names libm, libmvec and OpenMP entry points itself. ``jit/runtime/libraries.py`` loads
them.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
import weakref

from jit import logs, progress, turns
from jit.errors import CompileError, NoCompiler
from jit.runtime import cache, sanitizers
from jit.runtime.libraries import cpu_facts

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
LINK_FLAGS = ("-shared", "-nostdlib", "-Wl,-z,now", "-Wl,--build-id=none")
LIBRARIES = ("-Wl,--push-state,--as-needed", "-lmvec", "-Wl,--pop-state", "-lm", "-lgcc")

_log = logs.channel("timing")


@functools.lru_cache(maxsize=None)
def compiler() -> str:
    """The path of g++: ``$CXX`` when that is GNU C++, else the first of g++, g++-14 ... g++-11, c++ that is.

    Raises NoCompiler saying what to install when there is none.
    """
    wanted = os.environ.get("CXX", "").strip()
    for name in ([wanted] if wanted else []) + ["g++"] + [f"g++-{v}" for v in range(16, 10, -1)] + ["c++"]:
        path = shutil.which(name)
        if path and _is_gnu(path):
            return path
    raise NoCompiler(
        "no GNU C++ compiler was found: functions that need CPU kernels run in eager. GPU kernels, and functions of "
        "library calls alone, need none and are compiled. Install one (Debian/Ubuntu: apt install g++; "
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


def build(sources: list[str]) -> list[str]:
    """Compile each C++ source text to a shared object; return the paths of the checked cache entries, in order.

    What the cache lacks is compiled by processes that run side by side. Raises CompileError with the compiler's output.
    """
    return Build(sources).paths()


class Build:
    """C++ source texts that are being compiled to shared objects: the processes run from the start on, and end at the
    latest with this object."""

    def __init__(self, sources: list[str]) -> None:
        """Raises CompileError where the compiler cannot be started."""
        self._keys = [cache.key("cpp", source, fingerprint()) for source in sources]
        self._paths = {k: cache.file(k) for k in self._keys}
        self._running: list[tuple[str, str, subprocess.Popen, str]] = []
        missing = {k: s for k, s in zip(self._keys, sources) if self._paths[k] is None}
        if missing:
            folder = tempfile.mkdtemp(prefix="jit-cpp-")
            self._stopped = weakref.finalize(self, _stop, self._running, folder, os.getpid())
            try:
                for k, source in missing.items():
                    self._running.append((k, source, *_start(source, os.path.join(folder, k[:16]))))
            except BaseException:  # those that run already are of no use
                self._stopped()
                raise

    def paths(self) -> list[str]:
        """The paths of the checked cache entries, in order, when all are there. Raises CompileError with the compiler's
        output."""
        if self._running:
            with logs.timed(f"g++ of {len(self._running)} translation unit(s)"):
                try:
                    for done, (k, source, process, output) in enumerate(self._running):
                        progress.kernels(done, len(self._running))
                        text = turns.wait_for(process).decode(errors="replace")
                        if process.returncode:
                            raise CompileError(_failure(process, text, source))
                        with open(output, "rb") as f:
                            self._paths[k] = cache.put(k, f.read())
                finally:
                    self._stopped()
        found = [self._paths[k] for k in self._keys]
        if None in found:
            raise CompileError("the compiler was stopped, or has failed before")
        return found


def _stop(running: list, folder: str, pid: int) -> None:
    """End the processes that run, and remove what they have written. A forked child has none of them."""
    if os.getpid() == pid:
        for _, _, process, _ in running:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)
    running.clear()


def _start(source: str, stem: str) -> tuple[subprocess.Popen, str]:
    """A running compiler and the path that it will write. The text goes through a file, so that no process waits for
    another's pipe."""
    with open(stem + ".cpp", "w") as f:
        f.write(source)
    command = [compiler(), *flags(), *LINK_FLAGS, stem + ".cpp", "-o", stem + ".so", *LIBRARIES]
    try:
        return (subprocess.Popen([*_behind(), *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT), stem + ".so")
    except OSError as error:
        raise CompileError(f"{command[0]} could not be started: {error}. Set CXX to a working g++.") from error


def _behind() -> list[str]:
    """What starts a command that the program's threads come before, where this is the thread in the background."""
    nice = shutil.which("nice") if turns.here() else None
    return [] if nice is None else [nice, "-n", "10"]


def _failure(process: subprocess.Popen, text: str, source: str) -> str:
    handle, path = tempfile.mkstemp(prefix="jit-failed-", suffix=".cpp")
    with os.fdopen(handle, "w") as f:
        f.write(source)
    lines = text.strip().splitlines()
    shown = "\n".join(lines[:40]) + (f"\n... {len(lines) - 40} more lines" if len(lines) > 40 else "")
    return (
        f"{compiler()} failed with exit status {process.returncode} on a generated kernel, whose source is in "
        f"{path}:\n{shown}\n"
        "If the compiler is at fault (too old, killed for want of memory, missing libmvec), set CXX to another g++ (11 "
        "or later)."
    )
