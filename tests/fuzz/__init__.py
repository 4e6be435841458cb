"""Differential fuzzing: random Python programs in eager and compiled (``python -m tests.fuzz --help``)."""
