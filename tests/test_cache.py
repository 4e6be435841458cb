"""The kernel cache and the C++ toolchain: many processes, corruption, folders that cannot be used, and compiler
failures."""

import os
import shutil
import stat
import subprocess
import sys
import warnings

import pytest
import torch

from jit import config
from jit.codegen import toolchain
from jit.errors import CompileError
from jit.runtime import cache, libraries


@pytest.fixture
def folder(tmp_path):
    """An empty cache folder for one test."""
    saved = config.cache_dir
    config.cache_dir = str(tmp_path / "cache")
    yield tmp_path / "cache"
    config.cache_dir = saved


def test_put_and_get(folder):
    k = cache.key("a", b"b")
    assert cache.get(k) is None and cache.file(k) is None
    path = cache.put(k, b"payload")
    assert cache.get(k) == b"payload" and cache.file(k) == path
    cache.put(k, b"other")
    assert cache.get(k) == b"other"
    cache.remove(k)
    assert cache.get(k) is None


def test_keys_tell_parts_apart():
    assert cache.key("ab", "c") != cache.key("a", "bc") != cache.key("abc")


def test_the_folder_is_private(folder):
    cache.put(cache.key("x"), b"1")
    assert stat.S_IMODE((folder / "kernels").stat().st_mode) == 0o700
    assert not [n for n in os.listdir(folder / "kernels") if n.startswith(".new")]


def test_a_folder_open_to_others_is_closed(folder):
    (folder / "kernels").mkdir(parents=True)
    os.chmod(folder / "kernels", 0o777)
    cache.put(cache.key("x"), b"1")
    assert stat.S_IMODE((folder / "kernels").stat().st_mode) == 0o700


@pytest.mark.parametrize("damage",
                         [lambda d: d[:-1], lambda d: b"", lambda d: bytes([d[0] ^ 1]) + d[1:], lambda d: d + b"x"])
def test_a_corrupted_entry_is_absent_and_removed(folder, damage):
    k = cache.key("x")
    path = cache.put(k, b"payload")
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(damage(data))
    assert cache.get(k) is None and not os.path.exists(path)


def test_a_symbolic_link_is_not_followed(folder, tmp_path):
    k = cache.key("x")
    path = cache.put(k, b"payload")
    os.rename(path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path)
    assert cache.get(k) is None


def test_an_unusable_folder_gives_one_warning_and_a_temporary_folder(tmp_path):
    saved = config.cache_dir
    (tmp_path / "file").write_text("not a folder")
    config.cache_dir = str(tmp_path / "file")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache.put(cache.key("x"), b"1")
            cache.put(cache.key("y"), b"2")
            assert cache.get(cache.key("x")) == b"1"
        assert len(caught) == 1 and "JIT_CACHE_DIR" in str(caught[0].message)
        assert stat.S_IMODE(os.stat(cache.directory()).st_mode) == 0o700
    finally:
        config.cache_dir = saved


def test_a_folder_taken_away_later(folder):
    cache.put(cache.key("x"), b"1")
    shutil.rmtree(folder)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        cache.put(cache.key("y"), b"2")
    assert cache.get(cache.key("y")) == b"2"


WRITER = """
import sys
from jit.runtime import cache
for round in range(60):
    for i in range(6):
        k = cache.key("entry", str(i))
        data = cache.get(k)
        assert data is None or data == bytes([i]) * 5000, "a torn entry was read"
        cache.put(k, bytes([i]) * 5000)
"""


def test_two_processes_at_once(folder):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "JIT_CACHE_DIR": str(folder), "PYTHONPATH": root}
    running = [subprocess.Popen([sys.executable, "-c", WRITER], env=environment, stderr=subprocess.PIPE,
                                text=True) for _ in range(2)]
    for process in running:
        error = process.communicate(timeout=120)[1]
        assert process.returncode == 0, error
    assert all(cache.get(cache.key("entry", str(i))) == bytes([i]) * 5000 for i in range(6))


SOURCE = (
    'extern "C" __attribute__((visibility("default"))) void f(void** p, const long* n) { *(long*)p[0] = %d + n[0]; }')


def call(path, name="f"):
    import ctypes

    out = ctypes.c_long(0)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(libraries.address(libraries.load(path), name))
    function((ctypes.c_void_p * 1)(ctypes.addressof(out)), (ctypes.c_long * 1)(2))
    return out.value


def test_build_uses_the_cache(folder, monkeypatch):
    (first,) = toolchain.build([SOURCE % 40])
    assert call(first) == 42
    monkeypatch.setattr(toolchain, "_start", lambda *a: pytest.fail("compiled again"))
    assert toolchain.build([SOURCE % 40]) == [first]


def test_a_corrupted_library_is_rebuilt(folder):
    (path,) = toolchain.build([SOURCE % 50])
    with open(path, "r+b") as f:
        f.write(b"garbage")
    (again,) = toolchain.build([SOURCE % 50])
    assert call(again) == 52


def test_several_units_in_one_build(folder):
    paths = toolchain.build([SOURCE % 1, SOURCE % 2, SOURCE % 1])
    assert [call(p) for p in paths] == [3, 4, 3]


def test_a_compiler_error_carries_its_output(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CompileError, match="(?s)exit status.*error:.*set CXX"):
        toolchain.build(["this is not C++"])


def test_a_missing_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    toolchain.compiler.cache_clear()
    try:
        with pytest.raises(CompileError, match="apt install g"):
            toolchain.compiler()
    finally:
        toolchain.compiler.cache_clear()


def test_one_openmp_runtime_and_torchs_thread_count(folder):
    source = """
extern "C" int omp_get_num_threads(void);
extern "C" __attribute__((visibility("default"))) void f(void** p, const long* n) {
    #pragma omp parallel
    #pragma omp master
    *(long*)p[0] = omp_get_num_threads();
}
"""
    (path,) = toolchain.build([source])
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            assert call(path) == n
    finally:
        torch.set_num_threads(threads)
    assert len(libraries.openmp_runtimes()) == 1
