"""``python tests/sanitized.py address`` or ``thread``: a part of the suite with the native runtime and CPU kernels
built with GCC's sanitizers.

``address`` (with undefined behaviour): reads and writes outside of memory that was allocated, or freed; the runtime and
the kernels.
``thread``: memory that threads use without order between them; the runtime. CPython's and PyTorch's own code is not
watched, but allocations and locks of theirs are known. The first report ends the process that it is in, and the file is
a failure; the report is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = {
    "address": """test_runtime_plan test_runtime_guards test_runtime_watched test_runtime_dispatcher
    test_runtime_autograd test_runtime_vjp test_guard_mutations test_frame_lifetimes test_frame_threads
    test_frame_reentrance test_frame_tracing test_frame_interrupts test_frame_exceptions test_frame_generators_closed
    test_frame_hook test_symbolic_layouts test_cpp_kernels test_cpp_pointwise test_changed_after_use
    test_failing_calls test_indices test_unloading test_inplace_programs test_numbers_refused""",
    "thread": """test_runtime_plan test_runtime_guards test_runtime_watched test_runtime_dispatcher
    test_runtime_autograd test_runtime_vjp test_frame_hook test_frame_threads test_frame_reentrance
    test_frame_interrupts test_project_api""",
}
LIBRARIES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
# CPython keeps memory to its end, and test processes are ended by signals on purpose: no leaks are asked about. Threads
# of OpenMP's library wait for each other in ways that the thread sanitizer is not told of: what it says of code of
# theirs is not ours.
SETTINGS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0:handle_segv=0:use_sigaltstack=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1:report_signal_unsafe=0",
}
# What has to be reported, so that silence means something: a read past an allocation, and an unordered write of two
# threads.
FAULTS = {
    "address": "#include <cstdlib>\n"
               "int main(int n, char **) { volatile char *p = (char *)malloc(8); return p[7 + n]; }",
    "thread": "#include <thread>\nint x; int main() { std::thread t([] { x++; }); x++; t.join(); }",
}
# These ask that an address is used again, which the sanitizer avoids.
LEFT_OUT = "not test_replaced_many_times"
REPORT = re.compile(r"(ERROR: AddressSanitizer|runtime error:|WARNING: ThreadSanitizer)")


def preloaded(kind: str) -> str:
    """Paths of the sanitizer's libraries, as the compiler names them. Exits where it has none."""
    compiler = os.environ.get("CXX") or "g++"
    paths = [subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True,
                            check=True).stdout.strip() for name in LIBRARIES[kind]]
    if not all(map(os.path.isabs, paths)):
        sys.exit(f"{compiler} has no {kind} sanitizer: install its libasan, libubsan and libtsan")
    return " ".join(paths)


def proved(kind: str, flags) -> bool:
    """Whether a program with a fault, built with these flags, is reported."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "fault")
        command = [os.environ.get("CXX") or "g++", "-O1", "-x", "c++", "-", "-o", program, *flags, "-pthread"]
        subprocess.run(command, input=FAULTS[kind], text=True, check=True)
        done = subprocess.run([program], env=dict(os.environ, **SETTINGS), capture_output=True, text=True)
        return bool(REPORT.search(done.stderr))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kind", choices=sorted(FILES))
    p.add_argument("files", nargs="*", help="test files instead of the usual ones")
    given = p.parse_args()
    files = given.files or [str(HERE / f"{name}.py") for name in FILES[given.kind].split()]
    env = dict(os.environ, **SETTINGS, JIT_SANITIZE=given.kind, LD_PRELOAD=preloaded(given.kind),
               PYTHONPATH=str(HERE.parent), OMP_NUM_THREADS="2",
               PYTHONMALLOC="malloc" if given.kind == "address" else "default")
    flags = subprocess.run([sys.executable, "-c",
                            "from jit.runtime import sanitizers; print(*sanitizers.flags('runtime'))"],
                           env=dict(env, LD_PRELOAD=""), capture_output=True, text=True, check=True).stdout.split()
    if not proved(given.kind, flags):
        sys.exit(f"the {given.kind} sanitizer does not report a program that has a fault")
    subprocess.run([sys.executable, "-c", "import jit.runtime; jit.runtime.native()"], env=env, check=True)
    failed = []
    for file in files:
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--timeout",
                               "1200", "-k", LEFT_OUT, file], env=env, capture_output=True, text=True)
        text = done.stdout + done.stderr
        reported = REPORT.search(text)
        print(f"{'FAILED' if done.returncode or reported else 'ok':7}{os.path.basename(file)}: "
              f"{done.stdout.strip().splitlines()[-1:]}", flush=True)
        if done.returncode or reported:
            failed.append(file)
            print(text[max(reported.start() - 200, 0) if reported else -6000:][:9000], flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
