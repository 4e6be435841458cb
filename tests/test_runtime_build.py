"""Building the native extension: the cache, many processes at once, damage, and what goes wrong. A tiny extension
stands in for the real one."""

import _ctypes
import ctypes
import importlib.util
import os
import stat
import subprocess
import sys
import time

import pytest

from jit import config
from jit.errors import CompileError
from jit.runtime import build, doctor

TINY = r"""
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_jit_native", nullptr, -1};
PyMODINIT_FUNC PyInit__jit_native() {
    PyObject* m = PyModule_Create(&definition);
    PyModule_AddIntConstant(m, "answer", 42);
    return m;
}
"""
BUILD = """
import sys
from jit.runtime import build
build.SOURCE_DIR = sys.argv[1]
real = build._build_in
def counted(folder):
    print("building", flush=True)
    return real(folder)
build._build_in = counted
print(build.load().answer)
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    (source / "module.cpp").write_text(TINY)
    monkeypatch.setattr(build, "SOURCE_DIR", str(source))
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "cache"))
    return source


def test_build_is_kept(tiny, monkeypatch):
    path = build.library_path()
    info = os.stat(path)
    assert stat.S_IMODE(os.stat(config.cache_dir).st_mode) == 0o700
    assert sorted(os.listdir(os.path.dirname(path))) == ["_jit_native.so", "_jit_native.so.sha256", "lock"]
    monkeypatch.setattr(build, "_build_in", lambda folder: pytest.fail("built again"))
    assert build.library_path() == path and os.stat(path).st_mtime_ns == info.st_mtime_ns


def test_changed_source_is_another_build(tiny):
    before = build.digest()
    (tiny / "module.cpp").write_text(TINY + "// changed\n")
    assert build.digest() != before


def test_damage_is_noticed(tiny):
    path = build.library_path()
    with open(path, "r+b") as f:
        f.seek(100)
        f.write(b"\xff\xff\xff")
    damaged = build._file_digest(path)
    assert build.library_path() == path and build._file_digest(path) != damaged


def test_old_builds_go(tiny):
    stale = os.path.join(config.cache_dir, "runtime", "0" * 32)
    os.makedirs(stale, mode=0o700)
    os.chmod(config.cache_dir, 0o700)
    os.chmod(os.path.dirname(stale), 0o700)
    fresh = stale[:-1] + "1"
    os.makedirs(fresh, mode=0o700)
    old = time.time() - 40 * 86400
    os.utime(stale, (old, old))
    build.library_path()
    assert not os.path.exists(stale) and os.path.exists(fresh)


def test_compile_error_has_the_output_and_a_cure(tiny):
    (tiny / "module.cpp").write_text("int main( { return nonsense; }")
    with pytest.raises(CompileError) as e:
        build.library_path()
    assert "error:" in str(e.value) and "Cure:" in str(e.value) and "module.cpp" in str(e.value)
    assert not any(n.endswith(".so") for _, _, files in os.walk(config.cache_dir) for n in files)


def test_no_compiler(tiny, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="Cure"):
        build.library_path()


def test_unusable_cache_builds_privately(tiny, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="JIT_CACHE_DIR"):
        path = build.library_path()
    assert not path.startswith(config.cache_dir) and os.path.exists(path)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(config, "cache_dir", str(folder))
    with pytest.warns(UserWarning, match="can be written by others"):
        build.library_path()


def test_processes_build_once(tiny, tmp_path):
    environment = {**os.environ, "JIT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen([sys.executable, "-c", BUILD, str(tiny)], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = []
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        outputs.append(out.split())
    assert all(o[-1] == "42" for o in outputs)
    assert sum(o.count("building") for o in outputs) == 1


def test_real_sources_are_packaged():
    files = os.listdir(build.SOURCE_DIR)
    assert "module.cpp" in files and len(build.sources()) >= 2
    setup = os.path.join(os.path.dirname(__file__), "..", "setup.cfg")
    text = open(setup).read()
    assert "native/*.cpp" in text and "native/*.h" in text


def test_doctor(python):
    done = python("import sys; from jit.__main__ import main; sys.exit(main(['doctor']))")
    assert "ready" in done.stdout and "ok    native runtime" in done.stdout
    failed = python("import sys; from jit.__main__ import main; sys.exit(main(['doctor']))", check=False,
                    CXX="no-such-compiler")
    assert failed.returncode == 1 and "FAIL  compiler" in failed.stdout and "cure:" in failed.stdout
    unknown = python("import sys; from jit.__main__ import main; sys.exit(main(['x']))", check=False)
    assert unknown.returncode == 2 and "doctor" in unknown.stderr


def test_doctor_sees_libraries(tmp_path):
    assert len(doctor.openmp_libraries()) == 1
    spec = importlib.util.find_spec("torch")
    assert doctor.openmp_libraries()[0].startswith(os.path.dirname(os.path.dirname(os.path.realpath(spec.origin))))
    other = tmp_path / "libiomp5.so"
    (tmp_path / "x.cpp").write_text("int unused_symbol_of_a_test;")
    subprocess.run([build.compiler(), "-shared", "-fPIC", str(tmp_path / "x.cpp"), "-o", str(other)], check=True)
    loaded = ctypes.CDLL(str(other))
    try:
        assert len(doctor.openmp_libraries()) == 2
    finally:
        _ctypes.dlclose(loaded._handle)
    assert len(doctor.openmp_libraries()) == 1


def test_links_the_loaded_standard_library(tiny, tmp_path, monkeypatch):
    """Some compilers link a static copy of it unasked; two copies in one process crash on printing an integer."""
    wrapper = tmp_path / "g++static"
    wrapper.write_text(f'#!/bin/sh\nexec {build.compiler()} -static-libstdc++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    source = tiny / "module.cpp"
    source.write_text("#include <sstream>\n"
                      + TINY.replace("42", "(std::ostringstream() << 42L << ' ' << 1.5).str().size() == 6 ? 42 : 0"))
    path = build.library_path()
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "libstdc++.so" in needed
    symbols = subprocess.run(["nm", "-DC", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    assert "std::num_put" not in symbols
