"""Symbolic values: what the executor's stack and locals hold, one idea per file."""
