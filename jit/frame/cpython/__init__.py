"""What differs between versions of CPython: a row per version, in a file of its own, made from the row of
the version before it. Only the row of the running interpreter is read."""

from __future__ import annotations

import sys

from . import cp311, cp312, cp313, cp314, cp315

ROWS = {module.ROW.version: module.ROW for module in (cp311, cp312, cp313, cp314, cp315)}
VERSION = sys.version_info[:2]
ROW = ROWS.get(VERSION)
# The layout of the stack; of an unknown version nothing is decoded.
NULL_FIRST = ROW is None or ROW.null_first
ITERATOR_SLOTS = 1 if ROW is None else ROW.iterator_slots
EXIT_SLOTS = 1 if ROW is None else ROW.exit_slots
