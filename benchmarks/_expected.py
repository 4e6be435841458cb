"""Speeds that were reached before, as data: what benchmarks/operators.py compares a run with.

``expected_speeds.json`` has, for each device and dtype, the share of a copy's rate of each row. A share depends less on
the machine's state than a time does, and ``SLACK`` leaves room for what is left: a row below it has become slower.
"""

from __future__ import annotations

import json
from pathlib import Path

TABLE = Path(__file__).with_name("expected_speeds.json")
SLACK = 0.85  # of the share that was reached


def slower(shares: dict[str, float], device: str, dtype: str, table: Path = TABLE) -> list[str]:
    """What to print of each row whose share is below what is expected on ``device``. Rows that the table lacks are not
    judged; raises KeyError where it has none of this device and dtype."""
    expected = json.loads(table.read_text())[device][dtype]
    return [f"{row}: {share:.2f} of a copy's rate, {expected[row]:.2f} expected" for row, share in shares.items()
            if share < SLACK * expected.get(row, 0.0)]


def update(shares: dict[str, float], device: str, dtype: str, table: Path = TABLE) -> None:
    """Put ``shares`` in the place of those in the table; other rows stay."""
    figures = json.loads(table.read_text()) if table.exists() else {}
    figures.setdefault(device, {}).setdefault(dtype, {}).update({row: round(s, 2) for row, s in shares.items()})
    table.write_text(json.dumps(figures, indent=0, sort_keys=True) + "\n")
