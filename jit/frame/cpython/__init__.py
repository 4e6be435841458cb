"""What differs between versions of CPython in bytecode: a row per version, in a file of its own, made from the row of
the version before it. Only the row of the running interpreter is read."""

from __future__ import annotations

import sys

from . import cp311, cp312, cp313

ROWS = {row.version: row for row in (cp311.ROW, cp312.ROW, cp313.ROW)}
VERSION = sys.version_info[:2]
ROW = ROWS.get(VERSION)
NULL_FIRST = ROW is None or ROW.null_first
