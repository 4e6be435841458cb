"""The wheel with the native runtime in it: on a machine without g++ and with empty caches."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jit.errors import NoCompiler
from jit.runtime import build

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    build.library_path()  # it is built; the wheel takes that
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "tools/wheel.py", "--into", str(folder)], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    assert done.stdout.strip() == str(made)
    return made


@pytest.fixture(scope="module")
def unpacked(wheel):
    zipfile.ZipFile(wheel).extractall(wheel.parent / "unpacked")
    return wheel.parent / "unpacked"


@pytest.fixture
def without_compiler(unpacked, tmp_path):
    """Run a script, or a command of ``python -m jit``, with the unpacked wheel, no g++ and empty caches."""
    (tmp_path / "bin").mkdir()

    def run(*arguments, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JIT_") and k != "CXX"}
        environment.update(PATH=str(tmp_path / "bin"), HOME=str(tmp_path), JIT_CACHE_DIR=str(tmp_path / "cache"),
                           PYTHONPATH=str(unpacked), **variables)
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, text=True, capture_output=True,
                              env=environment)

    return run


def test_the_wheel_says_for_what_it_was_made(wheel, unpacked):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{tag}-{tag}-linux_" in wheel.name and "+torch" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    runtime = "jit/runtime/"
    assert {runtime + f for f in ("prebuilt/key", "prebuilt/_jit_native.so", "native/plan.cpp")} <= set(names)
    assert not any(n.startswith(("tests", "tools", "benchmarks")) for n in names)
    assert not (ROOT / "jit" / "runtime" / "prebuilt").exists()


PROGRAM = """
import warnings
import torch, jit
from jit.runtime import native
print("prebuilt" if "prebuilt" in native().__file__ else native().__file__)
x = torch.randn(4, 4)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    product = jit.compile(lambda a, b: a @ b)
    assert torch.equal(product(x, x), x @ x)
print(len(told), jit.compile_count())
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for k in range(3):
        f = jit.compile(lambda a: (a + k).sin().sum())
        assert torch.equal(f(x), (x + k).sin().sum())
        assert torch.equal(f(x), (x + k).sin().sum())
for w in told:
    print(w.category.__name__, w.message)
try:
    jit.compile(lambda a: a.cos() + 1, fullgraph=True)(x)
except jit.errors.CompileError as error:
    print("raises", error)
"""


def test_it_runs_without_a_compiler_and_says_what_does_not(without_compiler):
    done = without_compiler("-c", PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "prebuilt" and lines[1] == "0 1", lines
    assert lines[2].startswith("RuntimeWarning jit: no GNU C++ compiler was found: functions that need CPU kernels run "
                               "in eager. GPU kernels, and functions of library calls alone, need none"), lines
    assert lines[3].startswith("raises no GNU C++ compiler") and len(lines) == 4, lines


def test_gpu_kernels_are_compiled_without_a_compiler(without_compiler):
    pytest.importorskip("triton")
    done = without_compiler("-c", f"""
import sys
sys.path.append({str(ROOT / "tests")!r})
import torch, triton_kernels
from jit.codegen.triton import compile as triton_compile, emit
made = emit.emit(triton_kernels.CASES["swiglu"](torch.float32, 2).kernel)
print(len(triton_compile.build_sources({{"k": made}}, 90)["k"].cubin) > 1000, emit.__file__)
""")
    assert done.returncode == 0 and done.stdout.startswith("True "), done.stdout + done.stderr
    assert "unpacked" in done.stdout


def test_commands_say_what_is_used(without_compiler):
    done = without_compiler("-m", "jit", "build")
    assert done.returncode == 0 and done.stdout.startswith("prebuilt, came with the package: "), done
    done = without_compiler("-m", "jit", "doctor")
    assert "ok    native runtime: prebuilt, came with the package: " in done.stdout, done.stdout
    assert "warn  compiler: no C++ compiler: functions that need CPU kernels run in eager" in done.stdout, done.stdout
    assert "FAIL  compiler" not in done.stdout and "FAIL  openmp" not in done.stdout, done.stdout


def test_another_key_is_not_used(unpacked, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "PREBUILT", str(unpacked / "jit" / "runtime" / "prebuilt"))
    monkeypatch.setattr(build, "prebuilt_in", [])  # those of files that other tests loaded
    assert build.prebuilt() == build.library_path() == str(unpacked / "jit" / "runtime" / "prebuilt" / "_jit_native.so")
    monkeypatch.setattr(build.torch, "__version__", "2.99.0")
    assert build.prebuilt() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompiler, match="native runtime, without which nothing can be compiled.*make wheel"):
        build.library_path()


def test_a_damaged_one_is_not_used(unpacked, monkeypatch, tmp_path):
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    for file in (unpacked / "jit" / "runtime" / "prebuilt").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(build, "PREBUILT", str(folder))
    monkeypatch.setattr(build, "prebuilt_in", [])  # those of files that other tests loaded
    assert build.prebuilt() is not None
    with open(folder / "_jit_native.so", "r+b") as f:
        f.seek(1000)
        f.write(b"damage")
    assert build.prebuilt() is None
