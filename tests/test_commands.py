"""``python -m jit`` as a new user meets it: what there is, what is missing on the machine, and how to cure it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jit import __main__, config, devices
from jit.runtime import cache, doctor

ROOT = Path(__file__).resolve().parent.parent


def test_alone_and_with_a_word_that_is_no_command(capsys):
    assert __main__.main([]) == 0
    told = capsys.readouterr().out
    assert all(f"\n  {name} " in told and meaning in told for name, (_, meaning) in __main__.COMMANDS.items())
    assert "python -m jit COMMAND --help" in told
    assert __main__.main(["docter"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("jit: there is no command 'docter'; did you mean doctor?\n") and not told.out
    assert all(f"\n  {name} " in told.err for name in __main__.COMMANDS)
    assert __main__.main(["q"]) == 2 and "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("command", __main__.COMMANDS)
def test_each_has_help_with_examples(command, capsys):
    try:
        assert __main__.main([command, "--help"]) == 0
    except SystemExit as end:
        assert end.code == 0
    told = capsys.readouterr().out
    assert f"usage: python -m jit {command}" in told and "example" in told
    assert told.count(f"python -m jit {command}") >= 2


def test_what_a_command_does_not_take_is_said(capsys):
    for command in ("doctor", "build", "cache"):
        with pytest.raises(SystemExit) as end:
            __main__.main([command, "--no-such-option"])
        assert end.value.code == 2 and f"usage: python -m jit {command}" in capsys.readouterr().err


@pytest.fixture
def check(monkeypatch, capsys):
    """Run doctor: its exit status, and its lines by check, each with the cure below it."""
    monkeypatch.setattr(doctor, "CHECKS", list(doctor.CHECKS))  # to which the command adds one
    monkeypatch.setattr(doctor, "NEEDS", dict(doctor.NEEDS))

    def run() -> tuple[int, dict[str, str], str]:
        status = __main__.main(["doctor"])
        text = capsys.readouterr().out
        lines: dict[str, str] = {}
        name = ""
        for line in text.splitlines():
            if line.startswith("      "):
                lines[name] += "\n" + line.strip()
            elif line[:4] in ("ok  ", "warn", "FAIL", "skip"):
                name = line[6:].partition(":")[0]
                lines[name] = line
        return status, lines, text.splitlines()[-1]

    return run


def test_all_is_there(check):
    status, lines, last = check()
    assert (status, last) == (0, "ready")
    assert {line[:4].strip() for line in lines.values()} <= {"ok", "warn"}
    assert {"python", "torch", "compiler", "cache folder", "native runtime", "openmp", "compiled loops"} <= set(lines)


def test_no_compiler(check, monkeypatch, tmp_path):
    """One failure with its cure; what follows from it is not said again."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    status, lines, last = check()
    assert (status, last) == (1, "something is missing: compiler")
    assert lines["compiler"].startswith("FAIL  compiler: no C++ compiler: 'g++' is not on PATH")
    assert "cure: install g++ 11 or newer (Debian: apt-get install g++), or point CXX at one" in lines["compiler"]
    for name, without in (("native runtime", "compiler"), ("frame hook", "native runtime"), ("openmp", "compiler")):
        assert lines[name] == f"skip  {name}: cannot be checked without {without}, see above"


def test_an_old_compiler(check, monkeypatch, tmp_path):
    (tmp_path / "g++").write_text("#!/bin/sh\necho 9.4.0\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    status, lines, _ = check()
    assert status == 1 and f"{tmp_path}/g++ is version 9.4.0" in lines["compiler"]
    assert "cure: install g++ 11 or newer, or point CXX at one" in lines["compiler"]


@pytest.mark.parametrize("version, fault", [("2.5.1", "is too old"), ("2.99.0", "was not tested")])
def test_another_torch(check, monkeypatch, version, fault):
    """The native runtime is not built for it, which would take minutes and then fail."""
    monkeypatch.setattr("torch.__version__", version)
    status, lines, last = check()
    assert (status, last) == (1, "something is missing: torch")
    assert lines["torch"].startswith(f"FAIL  torch: torch {version} {fault}")
    assert 'cure: install one that is supported: pip install "torch>=2.11,<2.16"' in lines["torch"]
    assert lines["native runtime"].startswith("skip  ") and lines["compiled loops"].startswith("skip  ")


def test_no_triton(check, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    status, lines, _ = check()
    assert "triton: triton cannot be imported: ModuleNotFoundError" in lines["triton"]
    assert "cure: pip install triton (only GPU kernels need it)" in lines["triton"]
    assert status == 0 and lines["triton"].startswith("warn  ") or devices.backend("cuda").module.is_available()


def test_no_driver(check, monkeypatch):
    """A torch for CUDA on a machine without a driver."""
    monkeypatch.setattr("torch.version.cuda", "12.8")

    def missing(name, *rest, **more):
        if name == "libcuda.so.1":
            raise OSError("libcuda.so.1: cannot open shared object file")
        return real(name, *rest, **more)

    real = doctor.ctypes.CDLL
    monkeypatch.setattr(doctor.ctypes, "CDLL", missing)
    status, lines, _ = check()
    assert status == 0 and lines["cuda"].startswith("warn  cuda: torch is built for CUDA 12.8, but the driver is")
    assert "cure: install the NVIDIA driver if this machine has a GPU; the CPU works without" in lines["cuda"]


def test_a_driver_and_a_torch_that_does_not_use_it(check, monkeypatch):
    monkeypatch.setattr("torch.version.cuda", None)
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda p: p == "/proc/driver/nvidia/version" or exists(p))
    status, lines, _ = check()
    assert status == 0 and lines["cuda"].startswith("warn  cuda: this machine has an NVIDIA driver, but torch is built")
    assert "cure: install a torch with CUDA" in lines["cuda"]


def test_a_cache_folder_that_cannot_be_written(check, tmp_path):
    (tmp_path / "file").write_text("")
    with config.patch(cache_dir=str(tmp_path / "file" / "cache")):
        status, lines, _ = check()
    assert status == 0 and f"warn  cache folder: {tmp_path}/file/cache cannot be written (" in lines["cache folder"]
    assert "cure: set JIT_CACHE_DIR to a folder that you can write" in lines["cache folder"]


def test_two_openmp_runtimes(check, monkeypatch):
    monkeypatch.setattr(doctor, "openmp_libraries", lambda: ["/a/libgomp.so.1", "/b/libiomp5.so"])
    status, lines, _ = check()
    assert status == 1 and "2 OpenMP runtimes are loaded" in lines["openmp"]
    assert "/a/libgomp.so.1, /b/libiomp5.so" in lines["openmp"] and "LD_PRELOAD" in lines["openmp"]


def test_an_openmp_runtime_that_is_not_torchs(check, monkeypatch):
    """As LD_PRELOAD brings it: torch uses it, too, so there is one, and things work."""
    monkeypatch.setattr(doctor, "openmp_libraries", lambda: ["/usr/lib/libgomp.so.1"])
    status, lines, _ = check()
    assert status == 0 and lines["openmp"].startswith("warn  openmp: the OpenMP runtime is /usr/lib/libgomp.so.1, not")
    assert "remove it from LD_PRELOAD" in lines["openmp"]


# -- cache ----------------------------------------------------------------------------------------------------------


PROGRAM = """
import torch, jit

@jit.compile
def doubled(x):
    return (x * 2).sin()

doubled(torch.ones(5))
"""


def test_what_is_kept_is_told_and_removed(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JIT_")}
    environment.update(JIT_CACHE_DIR=str(tmp_path / "cache"), PYTHONPATH=str(ROOT))

    def jit(*arguments):
        return subprocess.run([sys.executable, "-m", "jit", *arguments], cwd=tmp_path, env=environment, text=True,
                              capture_output=True, timeout=300)

    warmed = jit("warm", "program.py")
    assert warmed.returncode == 0 and "kept 1 compiled functions" in warmed.stderr, warmed.stderr
    script = ("import sys; from jit.__main__ import main\n"
              "for arguments in ('ls', 'stats', 'verify', 'clear --entries', 'ls', 'stats', 'clear', 'stats'):\n"
              "    print('--', arguments, main(['cache', *arguments.split()]))")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, text=True,
                          capture_output=True, timeout=300)
    listed, stats, verified, cleared, nothing, fewer, emptied, none = done.stdout.split("-- ")[:8]
    assert "doubled" in listed and "cpu" in listed
    assert all(store.name in stats for store in cache.STORES) and "(JIT_CACHE_SIZE_MB)" in stats
    assert "all files are whole" in verified and "removed 0.0 MiB" in cleared
    assert f"nothing is kept in {tmp_path}/cache" in nothing
    assert "kernels        0 files" not in fewer and "kernels        0 files" in none, (fewer, none)


def test_a_damaged_file_is_found(tmp_path, capsys):
    with config.patch(cache_dir=str(tmp_path)):
        cache.put(cache.key("a file of a test"), b"content")
        (file,) = cache.kept(cache.STORES[-1]) or [f for store in cache.STORES for f in cache.kept(store)]
        with open(file.path, "r+b") as stream:
            stream.write(b"damage")
        assert __main__.main(["cache", "verify"]) == 1
        assert f"removed, since it was damaged: {file.path}" in capsys.readouterr().out
        assert __main__.main(["cache", "verify"]) == 0


def test_a_reader_that_does_not_read_on_is_no_error():
    """As ``python -m jit ... | head`` is."""
    process = subprocess.Popen([sys.executable, "-m", "jit", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() in (0, 1)
    process.stderr.close()
