"""NVIDIA's GPUs: kernels are Triton's.

What is measured was measured on an H200, and the numbers of that are taken where no GPU is here to be asked, so that
a machine without one compiles the same kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Callable

import torch

from jit import torch_private
from jit.devices.architecture import Architecture
from jit.devices.backend import Backend, Problem

H200 = Architecture("NVIDIA H200", processors=132, lanes=32, registers=256 << 10, local=227 << 10, cache=50 << 20,
                    bandwidth=4.8e12, products=9.9e14, capability=90)

# Of each multiprocessor of a GPU with a capability, or with a lower one than the next: operations per tick in products
# of halves.
PRODUCTS = {70: 1024, 80: 2048, 86: 1024, 90: 4096, 100: 8192, 120: 1024}

# To time a call: the GPU waits until calls have been launched, each of which takes the processor less than so many
# cycles of the GPU's clock, at most so many of them; and works for so many seconds.
_LAUNCH_CYCLES, _LAUNCHES, _BUSY = 100_000, 20, 3e-3


@functools.cache
def _read(index: int) -> Architecture:
    p = torch.cuda.get_device_properties(index)
    return Architecture(
        p.name, p.multi_processor_count, p.warp_size,
        registers=4 * getattr(p, "regs_per_multiprocessor", H200.registers // 4),
        local=getattr(p, "shared_memory_per_block_optin", H200.local),
        cache=getattr(p, "L2_cache_size", H200.cache),
        # Two transfers at each tick of a clock in kHz, over a bus whose width is in bits.
        bandwidth=2e3 * getattr(p, "memory_clock_rate", 0) * getattr(p, "memory_bus_width", 0) / 8,
        products=1e3 * getattr(p, "clock_rate", 0) * p.multi_processor_count
        * max((n, rate) for n, rate in PRODUCTS.items() if n <= max(10 * p.major + p.minor, 70))[1],
        capability=10 * p.major + p.minor)


def _triton() -> str:
    try:
        import triton  # late: the check is whether it can be imported
    except Exception as e:  # of any kind: Triton is somebody else's
        raise Problem(f"triton cannot be imported: {type(e).__name__}: {e}",
                      "pip install triton (only GPU kernels need it)", fatal=torch.cuda.is_available()) from None
    return triton.__version__


def _driver() -> str:
    try:
        if torch.version.cuda is None and os.path.exists("/proc/driver/nvidia/version"):
            raise Problem("this machine has an NVIDIA driver, but torch is built without CUDA: CPU only",
                          "install a torch with CUDA (https://pytorch.org says how), if a GPU is to be used",
                          fatal=False)
        if torch.version.cuda is None:
            return "torch is built without CUDA: CPU only"
        ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        raise Problem(f"torch is built for CUDA {torch.version.cuda}, but the driver is missing: {e}",
                      "install the NVIDIA driver if this machine has a GPU; the CPU works without",
                      fatal=False) from None
    if not torch.cuda.is_available():
        raise Problem("the CUDA driver is there but torch sees no GPU",
            "check nvidia-smi, CUDA_VISIBLE_DEVICES and that the driver is new enough for CUDA " + torch.version.cuda,
            fatal=False)
    if not torch_private.current_raw_stream:
        raise Problem("torch has no _cuda_getCurrentRawStream", "use a torch release from 2.11 on")
    return ", ".join(f"{found} (sm_{found.capability})" for found in map(_read, range(torch.cuda.device_count())))


class Cuda(Backend):
    type, known, indexed = "cuda", True, True
    module = torch.cuda
    activity = "CUDA"

    def current(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def generators(self) -> tuple | None:
        return torch.cuda.default_generators if torch.cuda.is_initialized() else None

    def recording(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def place(self) -> contextlib.AbstractContextManager:
        if not torch.cuda.is_initialized():
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.current_stream())

    def settle(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def has_room(self) -> bool:
        if not torch.cuda.is_initialized():
            return True
        free, _ = torch.cuda.mem_get_info()
        return 2 * torch.cuda.max_memory_allocated() < free + torch.cuda.memory_reserved()

    def architecture(self, device: torch.device | None = None) -> Architecture:
        if not torch.cuda.is_initialized() and not torch.cuda.is_available():
            return H200
        index = torch.device("cuda" if device is None else device).index
        return _read(torch.cuda.current_device() if index is None else index)

    def facts(self, device: torch.device) -> str:
        return f"CUDA {torch.version.cuda}: {super().facts(device)}"

    def checks(self) -> tuple:
        return ("triton", _triton), ("cuda", _driver)

    emitter = "jit.codegen.triton.target"
    pointer_alignment = 16  # wide loads

    @property
    def stored(self) -> frozenset:
        """float8 where there are instructions that convert it."""
        new = self.architecture().capability >= 89
        return frozenset([torch.float8_e4m3fn, torch.float8_e5m2]) if new else frozenset()

    def seconds(self, run: Callable, device: torch.device) -> float | None:
        """The time on the GPU, of calls that wait in its queue: a plain timer sees the launches of short kernels. On
        the current stream, whose memory the program uses again."""
        if not torch.cuda.is_available() or not torch_private.cuda_sleep:
            return None
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                return None
            run()
            once = self._queued(run, 1)
            return self._queued(run, max(2, min(_LAUNCHES, int(_BUSY / max(once, 1e-6)))))

    def _queued(self, run: Callable, times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch_private.cuda_sleep(times * _LAUNCH_CYCLES)
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / times

    # Not measured: gradients of what is smoothed.
    window_limits = {**dict.fromkeys((
        "strided", "uneven shares", "edge", "resized", "edge back", "nearest back", "resized back", "back",
        "back of shares", "max", "max of shares", "position", "position of shares", "picked", "picked of shares",
        "columns", "images", "sample", "smoothed"), 64), "shares": 16,
        # Found to differ from the library's gradient of avg_pool2d with count_include_pad=False.
        "back, channels last": 0}

    places_at_once = 64  # neighbouring results share what they read, and memory takes longer than what they compute

    least_share = 17

    # Another launch costs more than the arithmetic.
    cheap_to_broadcast, cheap_without_reads, cheap_beside_reads = 8, 24, 60
    largest_update = 0
    one_pass_moments = cuts_several = cuts_what_waits = adds_columns_beside_rows = True
    refines_views = sums_by_rows = repeats_behind_rows = True
    atomics = groups_rows = adds_bags = searches = joins_launches = True
    # Microseconds: 16.8 million in rows of 256 floats 333 (the library 1747); 33.5 million in bfloat16, rows of 512 261
    # (1298), of 1024 636 (684).
    longest_sorted = 512

    def splits(self, rows: int, row: int, inner: bool) -> bool:
        if inner:
            return 2 * rows < 3 * self.architecture().processors and row >= 16384
        return rows / 32 < 2 * self.architecture().processors and row >= 256 and rows * row >= 65536

    def chunks(self, rows: int, total: int, inner: bool, plain: bool = False) -> int:
        if inner:  # so many short programs that no multiprocessor is left with more of them than others
            programs = 32 * self.architecture().processors
            length = max(min(rows * total // programs, 16384), 2048, rows * total // (4 * programs))
            return max(total // length, 2)
        processors = self.architecture().processors
        short = total // 64  # pieces of which the loop is written out: where there are enough columns, and few pieces
        if plain and short <= 1024 and short * rows >= 2048 * processors:
            return short
        return min(max(4 * processors * 64 // rows, 2), max(total // 32, 2))

    splits_scans = True

    def scan_pieces(self, outer: int, length: int, inner: int) -> int:
        """Pieces of a loop's block along rows, of enough for the loads of a thread across them."""
        processors = self.architecture().processors
        if inner == 1:
            return 4096 if length >= 16384 and outer <= processors // 2 else 0
        programs = outer * -(-inner // 256)
        return 128 if length >= 512 and programs < 4 * processors else 0

    def walkers(self) -> int:
        return 2 * self.architecture().processors

    sums_products, most_vectors, most_half_vectors = "all", 4, 16
    sure_templates = norms_in_products = True
    launches_side_by_side, launches_early = True, 1
    launches_user_kernels = True
    products_flat = convolves = convolves_backwards = pixels_as_products = adds_bias_apart = True
    aligned_rows = 16  # bytes
    sums_columns_with_producer = True
    native_dropout = True
    asks_for_attention = dense_masks = fuses_attention = fuses_few_queries = True
    fuses_spelled_attention = fuses_biased_attention = True
    fewest_drawn = 0
    libraries = ("cudnn",)
    autocast_key = "AutocastCUDA"
    autocast_widens = True
    autocast_leaves = frozenset(["binary_cross_entropy"])

    divides_by_reciprocals = True
    clamp_passes_nan_limits = scales_products = rms_by_mean = saves_otherwise = True
