"""How long a call takes, and how sure that is.

A *turn* is a run of calls that are timed together, from when the device has nothing to do until it has done them all.
Turns of several systems alternate in *rounds*, so that a machine that slows down for a while slows all of them, and
two systems are compared by the ratio within each round. The middle of such samples is given with an interval that
holds the true one with a confidence of 95 percent, whatever the samples' distribution is.

It imports nothing of the package, as ``calls.py`` does not.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

CONFIDENCE = 0.95
FEWEST = 6  # samples for an interval with that confidence
MOST_CALLS = 100_000  # of a turn


def seconds_per_call(run: Callable[[], object], count: int, settle: Callable[[], object]) -> float:
    """The time of a turn of ``count`` calls, each. ``settle`` waits until the device has nothing to do."""
    settle()
    begin = time.perf_counter()
    for _ in itertools.repeat(None, count):
        run()
    settle()
    return (time.perf_counter() - begin) / count


def calls_in(run: Callable[[], object], seconds: float, settle: Callable[[], object]) -> int:
    """How many calls take about so many seconds; one at least."""
    count = 1
    while True:
        took = seconds_per_call(run, count, settle) * count
        if took >= seconds / 4 or count >= MOST_CALLS:
            return max(1, min(MOST_CALLS, round(count * seconds / max(took, 1e-9))))
        count = min(MOST_CALLS, count * 4)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The middle of samples.

    Attributes:
        median: of the samples.
        low, high: an interval for the true median; minus and plus infinity of fewer than ``FEWEST`` samples.
        lower_quarter, upper_quarter: between them lies the middle half of the samples.
        count: how many samples there are.
    """

    median: float
    low: float
    high: float
    lower_quarter: float
    upper_quarter: float
    count: int

    @property
    def error(self) -> float:
        """Half the interval's width, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else math.inf

    @property
    def spread(self) -> float:
        """The width of the middle half, as a share of the median."""
        return (self.upper_quarter - self.lower_quarter) / self.median if self.median else math.inf


def estimate(samples: Sequence[float]) -> Estimate:
    """Of one sample or more."""
    ordered = sorted(samples)
    n = len(ordered)
    quarters = statistics.quantiles(ordered, n=4, method="inclusive") if n > 1 else [ordered[0]] * 3
    outside = _outside(n)
    low, high = (-math.inf, math.inf) if not outside else (ordered[outside - 1], ordered[n - outside])
    return Estimate(statistics.median(ordered), low, high, quarters[0], quarters[2], n)


def _outside(n: int) -> int:
    """The number k for which the true median of n samples is between the k-th least and the k-th largest of them, by
    ``CONFIDENCE``; 0 where n is too small. How many samples are below the true median is as heads of n coins."""
    below, k = 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if below > (1 - CONFIDENCE) / 2:
            break
        k += 1
    return k


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Of the samples of two systems that were taken in the same rounds."""
    return estimate([a / b for a, b in zip(numerators, denominators, strict=True)])


def inside_noise(found: Estimate) -> bool:
    """Whether a ratio may as well be 1."""
    return found.low <= 1 <= found.high
