"""Figures as people read them; a dash for what is not known."""

from __future__ import annotations

UNKNOWN = "–"


def byte_size(count: float | None) -> str:
    """A number of bytes: 1.5 MiB."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def amount(count: float | None) -> str:
    """A number of anything: 1.5 M."""
    if count is None:
        return UNKNOWN
    for unit in ("", " k", " M", " G", " T"):
        if abs(count) < 1000 or unit == " T":
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float | None) -> str:
    """Seconds: 1.5 ms."""
    if seconds is None:
        return UNKNOWN
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
