"""Settings of the whole suite: one set of environment variables, torch's global state as it was, two threads."""

import gc
import os
import subprocess
import sys
from pathlib import Path

# Before jit is imported: the developer's own switches must not change what is tested.
for _name in ("JIT_LOGS", "JIT_LOGS_OUT", "JIT_STRICT", "JIT_MATCH_EAGER_ROUNDING", "JIT_FALLBACK_RANDOM",
              "JIT_CACHE_LIMIT", "JIT_CPU_POOL_MB", "JIT_EAGER_WHERE_FASTER"):
    os.environ.pop(_name, None)
os.environ["JIT_VERIFY_GRAPHS"] = "1"  # in this process, and in those that tests start
os.environ["JIT_ENTRY_CACHE"] = "0"  # programs are to be captured by the code that is tested
os.environ["JIT_EAGER_WHERE_FASTER"] = "0"  # tests say themselves where the clock may decide
SHARED = "PYTEST_XDIST_WORKER" in os.environ  # the cores, with other processes that run tests
if SHARED:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a thread that waits in a loop takes what they could use

import hypothesis
import interpreter
import pytest
import torch
from program_server import Server

ROOT = Path(__file__).resolve().parent.parent

# The same examples on every run, and no time limit on one of them: a slow machine is not a wrong result.
# HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

torch.set_num_threads(min(2, torch.get_num_threads()))


def pytest_configure(config):
    # A failure of the compiler is never passed over, even where the results are right.
    config.addinivalue_line("filterwarnings", "error::jit.failures.InternalFailure")


def pytest_collection_finish(session):
    if not session.config.option.collectonly and not SHARED:
        interpreter.run_ahead(item.module for item in session.items)


def pytest_unconfigure():
    interpreter.session.stop()


@pytest.fixture(autouse=True, scope="module")
def young_heap():
    """The collections of garbage that tests ask for look at what came after the tests before them, and after what was
    loaded: a hundredth of it all."""
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())  # loads what the first test would
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def torch_state():
    """Each test starts from seed 0 and leaves torch's global state as it found it. None starts PyTorch's own compiler
    in this process: it keeps the frame evaluator, and later tests would show nothing about what runs behind breaks."""
    # Without a GPU, PyTorch notes each seed for when there is one, with a traceback.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
    dtype, grad, threads = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.distributions.Distribution.set_default_validate_args(True)  # loading PyTorch's own compiler ends that
    yield
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    if (build := sys.modules.get("jit.runtime.build")) is not None:
        build.prebuilt_in.clear()  # of files that a test has loaded
    if (native := sys.modules.get("jit.runtime")) is not None:
        assert native.native().frame_hook_status() != "taken", "PyTorch's compiler was started in the tests' process"


@pytest.fixture
def eager_numbers():
    """Captured programs draw eager's random numbers."""
    import jit

    with jit.config.patch(fallback_random=True):
        yield


@pytest.fixture
def kernel_numbers(monkeypatch):
    """Kernels draw small tensors too, on the CPU as on a GPU."""
    monkeypatch.setattr("jit.devices.cpu.Cpu.fewest_drawn", 0)


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A server that runs programs in processes with PyTorch and jit loaded: see ``program_server``."""
    server = Server(tmp_path_factory.mktemp("programs"), "jit")
    yield server
    server.stop()


@pytest.fixture
def python():
    """Run a script in a new interpreter that finds this checkout: ``python("import jit", JIT_LOGS="graph")`` gives the
    finished process."""

    def run(*arguments: str, check: bool = True, timeout: float = 150, cwd=None,
            **variables) -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("JIT_") or k in ("JIT_CACHE_DIR", "JIT_ENTRY_CACHE")}
        environment.update(variables,
                           PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
        arguments = ("-c", *arguments) if not arguments[0].endswith(".py") else arguments
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=timeout,
                              env=environment, cwd=cwd or ROOT)
        if check and done.returncode:
            raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run
