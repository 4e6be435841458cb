"""CPUs: kernels are C++."""

from __future__ import annotations

import functools
import os
import platform
import time
from typing import Callable

import torch

from jit.devices.architecture import Architecture
from jit.devices.backend import Backend

_CACHES = "/sys/devices/system/cpu/cpu0/cache"


def _text(*path) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as f:
            return f.read().strip()
    except OSError:
        return ""


def _cache(level: int) -> int:
    """The bytes of a core's data cache of a level; 0 where the system does not tell."""
    try:
        folders = [f for f in os.listdir(_CACHES) if f.startswith("index")]
    except OSError:
        return 0
    units = {"K": 10, "M": 20}
    for folder in folders:
        size = _text(_CACHES, folder, "size")
        if (_text(_CACHES, folder, "level") == str(level) and _text(_CACHES, folder, "type") != "Instruction"
            and size[:-1].isdigit() and size[-1] in units):
            return int(size[:-1]) << units[size[-1]]
    return 0


@functools.cache
def _features() -> frozenset:
    """The processor's own words for what it can do; empty where the system does not tell."""
    lines = _text("/proc/cpuinfo").splitlines()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())


class Cpu(Backend):
    type, known, host = "cpu", True, True

    def generators(self) -> tuple | None:
        return (torch.default_generator,)

    @functools.cache  # noqa: B019  there is one object for good
    def architecture(self, device: torch.device | None = None) -> Architecture:
        name = next((line.partition(":")[2].strip() for line in _text("/proc/cpuinfo").splitlines()
                     if line.startswith("model name")), "CPU")
        return Architecture(name, len(os.sched_getaffinity(0)), local=_cache(2) or 1 << 20, cache=_cache(3) or 32 << 20)

    def facts(self, device: torch.device) -> str:
        return f"{platform.machine()}, {torch.get_num_threads()} threads: {' '.join(sorted(_features()))}"

    emitter = "jit.codegen.cpp.target"
    traps = False
    memory_alignment = 64  # a line of the cache, and a vector of the widest kind

    @property
    def stored(self) -> frozenset:
        return frozenset([torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])

    def seconds(self, run: Callable, device: torch.device) -> float | None:
        run()
        times: list[float] = []
        while len(times) < 5 or sum(times) < 2e-3 and len(times) < 1000:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    cheap_to_broadcast, cheap_without_reads, cheap_beside_reads = 2, 6, 6
    largest_update = 1 << 12
    tiles_transposes = True
    wide_partials = True
    # Measured with one thread and with two, float32, against PyTorch's kernels. Edges are copied there line by line;
    # the places of uneven shares, and those that look for a position, are conditions along a vector.
    window_limits = {
        "strided": 64, "shares": 64, "resized": 64, "max": 64, "columns": 64, "images": 64, "position": 4,
        "smoothed, channels last": 64, "back": 64, "back, channels last": 1, "back of shares": 1, "nearest back": 64,
        "uneven shares, channels last": 64, "resized back, channels last": 64, "smoothed back, channels last": 64,
        "edge, channels last": 64,
    }
    full_vector = 16  # measured: where results are stored as well, more lanes are slower

    def splits(self, rows: int, row: int, inner: bool) -> bool:
        return (rows if inner else rows / 16) < 8 and row >= 8192 and rows * row >= 65536

    def chunks(self, rows: int, total: int, inner: bool, plain: bool = False) -> int:
        # The same for every number of threads, so that results are too.
        return min(max(total // 8192, 2), 64)

    sums_products, most_vectors, most_half_vectors = "made", 16, 16
    adds_in_chains = tables_of_runs = True
    draws_bool_masks = True
    plain_flash_attention, transposed_attention = True, False
    fuses_attention = fuses_spelled_attention = attends_any_length = True
    fuses_gradients_of_attention = rounds_weights = False
    attended = frozenset([torch.float32, torch.float16, torch.bfloat16])
    fewest_scores, fewest_queries = 1 << 8, 4

    def attends_scores(self, dtype: torch.dtype) -> bool:
        """Where vectors are narrow nothing was measured. The library has products of bfloat16 that are faster than
        float32's where the processor has."""
        found = _features()
        return {"avx2", "fma"} <= found and (dtype is not torch.bfloat16 or not {"avx512_bf16", "amx_bf16"} & found)

    onednn = ctc_loss_in_parts = True
    fewest_drawn = 1024  # fewer are left to the library: eager's numbers, for some microseconds and bytes more
    autocast_key = "AutocastCPU"

    reads_numbers = checks_divisors = True
    adds_numbers_exactly = rounds_limits = refuses_large_numbers = False
    rounds_logit_limits = True
    vectorized = shares_extrema_by_choice = True
    gives_nan_gradients = elu_bends_above_zero = False
    roots_of_halves_are_powers = softmax_rounds = True
    wide_variance = wide_moments = ordered_norms = draws_in_blocks = True
    converts_operands = keeps_channels_last = row_major_results = True
    types_half_statistics = reserves_nothing = refuses_empty = True
