"""``python -m jit doctor``: builds the native runtime ahead of use and checks what compiling needs. Each failure says
how to cure it.

A check is a function in the table; it returns a line for the user, or raises ``Problem``. A problem is fatal when
compiled code cannot run without the thing; checks that need it are left out then, since they could only say the same
again.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Sequence
from typing import Callable

import torch

from jit import config, devices, environment, torch_private, versions
from jit.devices import Problem
from jit.errors import CompileError, NoCompiler
from jit.runtime import build, native

CHECKS: list = []
NEEDS: dict[str, tuple[str, ...]] = {}  # check -> those without which it says nothing

_EXAMPLES = """examples:
  python -m jit doctor
  CXX=g++-13 python -m jit doctor       with another compiler
  JIT_CACHE_DIR=/scratch/jit python -m jit doctor       with another folder for what is kept

Each line is a check: "ok", "warn" for what something works without, "FAIL" for what nothing works without, "skip" where
an earlier one has failed. Below a problem stands its cure."""


def check(name: str, *needs: str) -> Callable:
    """Decorator: add a check under a name, and those without which it says nothing. The order is that of the file,
    which is that of dependence."""

    def add(function: Callable) -> Callable:
        CHECKS.append((name, function))
        NEEDS[name] = needs
        return function

    return add


def without_compiler(error: NoCompiler) -> Problem:
    """What lacks where the native runtime came with the package."""
    return Problem("no C++ compiler: functions that need CPU kernels run in eager; GPU kernels, and functions of "
                   "library calls alone, are compiled", "install g++ 11 or newer, or point CXX at one",
                   fatal=build.prebuilt() is None)


@check("python")
def _python() -> str:
    fault = versions.python_fault()
    if fault:
        raise Problem(fault, f"use {versions.SUPPORTED}; `python3.12 -m venv FOLDER` makes an environment of "
                             "another Python")
    return f"CPython {sys.version.split()[0]}"


@check("torch")
def _torch() -> str:
    fault = versions.torch_fault()
    if fault:
        raise Problem(fault, f"install one that is supported: pip install {versions.TORCH_REQUIREMENT}; there is "
                             f"support for {versions.SUPPORTED}")
    for name, without in torch_private.absent.items():
        print(f"warn  torch: no torch.{name}: {without}")
    return f"{torch.__version__} in {os.path.dirname(torch.__file__)}"


@check("environment")
def _environment() -> str:
    strange = [name + probably for name, probably in environment.unknown()]
    if strange:
        raise Problem(f"not read, although their names begin with JIT_: {', '.join(strange)}",
                      "correct their names, or leave them: jit.config.describe() shows all that are read", fatal=False)
    given = [name for name in environment.known() if name in os.environ]
    return ", ".join(f"{name}={os.environ[name]}" for name in given) or "no variable of jit is set"


@check("compiler")
def _compiler() -> str:
    try:
        path = build.compiler()
    except NoCompiler as e:
        if build.prebuilt() is not None:
            raise without_compiler(e) from None
        raise Problem(str(e).split(" Cure: ")[0], str(e).split(" Cure: ")[-1]) from None
    version = subprocess.run([path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True).stdout.strip()
    if not version or int(version.split(".")[0]) < 11:
        raise Problem(f"{path} is version {version or 'unknown'}", "install g++ 11 or newer, or point CXX at one")
    return f"{path} {version}"


@check("python headers")
def _headers() -> str:
    folder = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(folder, "Python.h")):
        raise Problem(f"no Python.h in {folder}",
                      "install Python's development files (Debian: apt-get install python3-dev)",
                      fatal=build.prebuilt() is None)
    return folder


@check("cache folder")
def _cache() -> str:
    try:
        os.makedirs(config.cache_dir, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=config.cache_dir):
            pass
    except OSError as e:
        raise Problem(f"{config.cache_dir} cannot be written ({e})", "set JIT_CACHE_DIR to a folder that you can "
                                                                     "write; without one everything is compiled anew "
                                                                     "in each process", fatal=False) from None
    free = shutil.disk_usage(config.cache_dir).free
    if free < 256 << 20:
        raise Problem(f"{config.cache_dir} has {free >> 20} MB left",
                      "free some space, or set JIT_CACHE_DIR to another disk", fatal=False)
    return config.cache_dir


@check("native runtime", "python", "torch", "compiler", "python headers")
def _native() -> str:
    try:
        path = native().__file__
        return f"prebuilt, came with the package: {path}" if path == build.prebuilt() else f"built: {path}"
    except CompileError as e:
        raise Problem(str(e), "see the compiler's output above; a newer g++ (or CXX=...) cures most; `python -m jit "
                              "build` tries again") from None


@check("frame hook", "native runtime")
def _frame_hook() -> str:
    status = native().frame_hook_status()
    if status == "not built":
        raise Problem("the frame evaluation hook was not built for this interpreter: functions that graph breaks reach "
                      "through C code run in eager",
                      "install the Python development files of this CPython, with their internal headers",
                      fatal=False)
    if status == "taken":
        raise Problem("another tool has the frame evaluation hook: functions that graph breaks reach through C code "
                      "run in eager",
                      "leave the debugger or the other compiler out", fatal=False)
    return status


def openmp_libraries() -> list[str]:
    """Paths of the OpenMP runtimes that this process has loaded."""
    with open("/proc/self/maps") as f:
        files = {line.split(maxsplit=5)[5].strip() for line in f if line.count("/")}
    return sorted({os.path.realpath(p) for p in files if re.match(r"lib(gomp|iomp5|omp)\b", os.path.basename(p))})


@check("openmp", "compiler")
def _openmp() -> str:
    source = (
        'extern "C" int omp_get_max_threads(); extern "C" int threads() { int n = 0;\n#pragma omp parallel '
        'reduction(+:n)\nn += 1;\nreturn n; }\n')
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "probe")
        with open(path + ".cpp", "w") as f:
            f.write(source)
        try:
            compiler = build.compiler()
        except NoCompiler as e:
            raise without_compiler(e) from None
        done = subprocess.run([compiler, "-O1", "-fopenmp", "-shared",
                               "-fPIC", path + ".cpp", "-o", path + ".so"], capture_output=True, text=True)
        if done.returncode:
            raise Problem(f"the compiler cannot build OpenMP code: {done.stderr.strip()[-500:]}",
                          "install libgomp's development files (Debian: they come with g++)")
        try:
            threads = ctypes.CDLL(path + ".so").threads()
        except OSError as e:
            raise Problem(f"OpenMP code does not load: {e}",
                          "install libgomp (Debian: apt-get install libgomp1)") from None
    found = openmp_libraries()
    home = os.path.realpath(os.path.dirname(torch.__file__))
    site = os.path.dirname(home)
    if len(found) > 1:
        raise Problem(
            f"{len(found)} OpenMP runtimes are loaded, which makes threads fight: {', '.join(found)}",
            "import torch before anything that brings another one, and remove the other from LD_PRELOAD and "
            "LD_LIBRARY_PATH",
        )
    if found and not found[0].startswith(site):
        raise Problem(f"the OpenMP runtime is {found[0]}, not torch's own",
                      "remove it from LD_PRELOAD and LD_LIBRARY_PATH, and import torch first", fatal=False)
    return f"{found[0] if found else 'statically linked'}, {threads} threads"


for _backend in devices.registered():
    CHECKS.extend(_backend.checks())


def main(arguments: Sequence[str] = ()) -> int:
    """Run all checks, print a line for each; 1 when one that matters failed."""
    argparse.ArgumentParser(
        prog="python -m jit doctor", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Check what compiling needs, and build the native runtime if that was not done yet, which takes "
                    "a minute or two.\nThe exit status is 1 when something is missing without which nothing can be "
                    "compiled.", epilog=_EXAMPLES).parse_args(list(arguments))
    failed: list[str] = []
    skipped: list[str] = []
    for name, function in CHECKS:
        missing = [other for other in NEEDS.get(name, ()) if other in failed or other in skipped]
        if missing:
            skipped.append(name)
            print(f"skip  {name}: cannot be checked without {' and '.join(missing)}, see above")
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they say, a check says with its cure
                said = function()
            print(f"ok    {name}: {said}")
        except Problem as p:
            if p.fatal:
                failed.append(name)
            print(f"{'FAIL' if p.fatal else 'warn'}  {name}: {p.what}\n      cure: {p.cure}")
        except Exception as e:  # a check that fails must not end the others
            failed.append(name)
            print(f"FAIL  {name}: {type(e).__name__}: {e}\n      cure: the checks before this one may say why")
    print(f"something is missing: {', '.join(failed)}" if failed else "ready")
    return int(bool(failed))
